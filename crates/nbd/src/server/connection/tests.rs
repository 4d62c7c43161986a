//! A connection that is never idle beside others, and what a connection asks of the system and of memory for each
//! request.

use std::{
    cell::{Cell, RefCell},
    io,
    pin::Pin,
    sync::Arc,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWrite},
    net::UnixStream,
    task::LocalSet,
};

mod pipe;

use super::*;
use crate::server::{Connections, Limits, budget::Budget, peer::Peer};
use crate::{ExportInfo, Payload, proto::REQUEST_MAGIC, transmission::REQUEST_BYTES};

/// A client without end: every receive brings another flush, until it is told to leave.
struct Busy {
    greeted: Cell<bool>,
    receives: Rc<Cell<u32>>,
    leave: Rc<Cell<bool>>,
}

impl Stream for Busy {
    fn poll_receive(&mut self, _: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut bytes = Vec::new();
        if !self.greeted.replace(true) {
            bytes.extend_from_slice(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
        } else if !self.leave.get() {
            self.receives.set(self.receives.get() + 1);
            bytes.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
            bytes.extend_from_slice(&[0, 0, 0, 3]);
            bytes.extend_from_slice(&[0; 20]);
        }
        target[..bytes.len()].copy_from_slice(&bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn is_closed(&self) -> bool {
        false
    }
}

impl AsyncWrite for Busy {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A client that asks for one flush and ends, on a stream that keeps what is written until it is asked three times to
/// flush it.
struct Hoarder {
    asks: Vec<Vec<u8>>,
    kept: Vec<u8>,
    refusals: u32,
    sent: Rc<RefCell<Vec<u8>>>,
}

impl Stream for Hoarder {
    fn poll_receive(&mut self, _: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        let bytes = self.asks.pop().unwrap_or_default();
        target[..bytes.len()].copy_from_slice(&bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn is_closed(&self) -> bool {
        false
    }
}

impl AsyncWrite for Hoarder {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.kept.extend_from_slice(bytes);
        self.refusals = 3;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.refusals > 0 {
            self.refusals -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let kept = mem::take(&mut self.kept);
        self.sent.borrow_mut().extend(kept);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Does nothing, at once.
struct Idle;

impl Export for Idle {
    type Buffer = Vec<u8>;

    fn info(&self) -> ExportInfo {
        ExportInfo::new(1 << 20)
    }

    fn buffer(&self, length_bytes: u32) -> Option<Vec<u8>> {
        Some(vec![0; length_bytes as usize])
    }

    fn submit(&self, _: Command<Vec<u8>>, reply: ReplySlot<Vec<u8>>) {
        reply.done(Ok(Payload::None));
    }

    fn kick(&self) {}
}

#[test]
fn a_connection_ends_when_its_last_reply_has_left_the_stream() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sent = Rc::new(RefCell::default());
    let go = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0".to_vec();
    let flush = [&REQUEST_MAGIC.to_be_bytes()[..], &[0, 0, 0, 3], &[0; 20]].concat();
    let hoarder = Hoarder { asks: vec![flush, go], kept: Vec::new(), refusals: 0, sent: Rc::clone(&sent) };
    LocalSet::new().block_on(&runtime, async {
        let (_drain, draining) = watch::channel(Stopping::No);
        let limits = Limits::default();
        let (permit, _) = Connections::default().admit(Peer::Local(None), &limits).unwrap();
        let common =
            Common { export: Rc::new(Idle), limits, budget: Budget::new(&limits), rates: Arc::default(), tls: None };
        serve_connection(hoarder, common, draining, permit).await.unwrap();
    });
    assert!(sent.borrow().ends_with(b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\0"), "{:?}", sent.borrow());
}

#[test]
fn a_connection_that_never_waits_keeps_no_other_socket_waiting() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (receives, leave) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let busy = Busy { greeted: Cell::new(false), receives: Rc::clone(&receives), leave: Rc::clone(&leave) };
    LocalSet::new().block_on(&runtime, async {
        let (mut socket, peer) = UnixStream::pair().unwrap();
        let (drain, draining) = watch::channel(Stopping::No);
        let limits = Limits::default();
        let (permit, _) = Connections::default().admit(Peer::Local(None), &limits).unwrap();
        let common =
            Common { export: Rc::new(Idle), limits, budget: Budget::new(&limits), rates: Arc::default(), tls: None };
        let serving = serve_connection(busy, common, draining, permit);
        let busy = tokio::task::spawn_local(serving);
        let other = tokio::task::spawn_local({
            let receives = Rc::clone(&receives);
            async move {
                let mut byte = [0];
                socket.read_exact(&mut byte).await.unwrap();
                receives.get()
            }
        });
        while receives.get() == 0 {
            yield_now().await;
        }
        let before = receives.get();
        peer.try_write(&[1]).unwrap();
        let after = other.await.unwrap();
        assert!(after - before <= 3 * READS_PER_TURN, "{} receives before the event loop asked", after - before);
        leave.set(true);
        busy.await.unwrap().unwrap();
        drop(drain);
    });
}

const BLOCK_BYTES: u32 = 4096;
const BATCH: u32 = 32;

/// System calls of the front end for a batch that arrives at once: a receive and one that finds nothing more, a send,
/// and the export's turn. The wait for the next event is one more.
const CALLS_PER_BATCH: u32 = 4;

#[test]
fn a_batch_of_reads_is_one_send_straight_from_the_buffers() {
    let mut client = pipe::Client::new();
    for batches in 1..=3 {
        client.request(BATCH, pipe::READ, BLOCK_BYTES);
        let counts = client.served();
        let data_bytes = u64::from(batches * BATCH * BLOCK_BYTES);
        assert_eq!(counts.sent_from_buffers_bytes, data_bytes, "no read's data is copied");
        assert_eq!(counts.sent_from_elsewhere_bytes, u64::from(batches * BATCH) * 16, "headers");
        assert_eq!((counts.sends, counts.kicks), (batches, batches));
        assert!(counts.receives + counts.sends + counts.kicks <= batches * CALLS_PER_BATCH, "{counts:?}");
    }
}

#[test]
fn a_batch_of_writes_is_one_receive_and_a_copy_into_the_buffers() {
    let mut client = pipe::Client::new();
    for batches in 1..=3 {
        client.request(BATCH, pipe::WRITE, BLOCK_BYTES);
        let counts = client.served();
        let wire_bytes = u64::from(batches * BATCH) * (REQUEST_BYTES as u64 + u64::from(BLOCK_BYTES));
        assert_eq!(
            counts.received_elsewhere_bytes, wire_bytes,
            "each byte is received once, and copied once into its buffer"
        );
        assert_eq!((counts.sends, counts.kicks), (batches, batches));
        assert!(counts.receives + counts.sends + counts.kicks <= batches * CALLS_PER_BATCH, "{counts:?}");
    }
}

#[test]
fn most_of_a_large_write_is_received_into_its_buffer() {
    let mut client = pipe::Client::new();
    let length_bytes = 8 << 20;
    client.request(1, pipe::WRITE, length_bytes);
    let counts = client.served();
    let wire_bytes = REQUEST_BYTES as u64 + u64::from(length_bytes);
    assert_eq!(counts.received_elsewhere_bytes + counts.received_into_buffers_bytes, wire_bytes);
    assert!(counts.received_elsewhere_bytes <= 256 << 10, "only what came with the request: {counts:?}");
}
