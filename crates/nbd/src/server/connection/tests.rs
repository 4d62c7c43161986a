//! A connection that is never idle, beside others.

use std::{cell::Cell, pin::Pin};

use tokio::{
    io::{AsyncReadExt as _, AsyncWrite},
    net::UnixStream,
    task::LocalSet,
};

use super::*;
use crate::{BlockSizes, ExportInfo, Payload, proto::REQUEST_MAGIC};

/// A client without end: every receive brings another flush, until it is told to leave.
struct Busy {
    greeted: Cell<bool>,
    receives: Rc<Cell<u32>>,
    leave: Rc<Cell<bool>>,
}

impl Stream for Busy {
    fn poll_receive(&self, _: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
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

/// Does nothing, at once.
struct Idle;

impl Export for Idle {
    type Buffer = Vec<u8>;

    fn info(&self) -> ExportInfo {
        ExportInfo {
            name: String::new(),
            description: String::new(),
            size_bytes: 1 << 20,
            block_sizes: BlockSizes::default(),
            read_only: false,
            multi_conn: true,
            trim: true,
            fast_zero: true,
        }
    }

    fn buffer(&self, length_bytes: u32) -> Vec<u8> {
        vec![0; length_bytes as usize]
    }

    fn submit(&self, _: Command<Vec<u8>>, reply: ReplySlot<Vec<u8>>) {
        reply.done(Ok(Payload::None));
    }

    fn kick(&self) {}
}

#[test]
fn a_connection_that_never_waits_keeps_no_other_socket_waiting() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (receives, leave) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let busy = Busy { greeted: Cell::new(false), receives: Rc::clone(&receives), leave: Rc::clone(&leave) };
    LocalSet::new().block_on(&runtime, async {
        let (mut socket, peer) = UnixStream::pair().unwrap();
        let (drain, draining) = watch::channel(false);
        let busy = tokio::task::spawn_local(serve_connection(busy, Rc::new(Idle), Limits::default(), draining));
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
