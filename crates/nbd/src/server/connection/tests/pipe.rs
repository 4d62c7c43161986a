//! A client on a socket that counts, and tells the memory of requests' data from other memory.
//!
//! What is received elsewhere than into its buffer has to be copied there, and what is sent from elsewhere was copied
//! out of it: those bytes are the copies that the server does. What the sockets copy in the kernel is not counted.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::Waker,
};

use tokio::io::AsyncWrite;

use super::super::*;
use crate::{
    ExportInfo, Headers, Payload,
    proto::REQUEST_MAGIC,
    server::{Limits, budget::Budget},
    transmission::Session,
};

pub(super) const READ: u8 = 0;
pub(super) const WRITE: u8 = 1;

const SIZE_BYTES: u64 = 64 << 20;

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) receives: u32,
    pub(super) sends: u32,
    pub(super) kicks: u32,
    pub(super) received_into_buffers_bytes: u64,
    pub(super) received_elsewhere_bytes: u64,
    pub(super) sent_from_buffers_bytes: u64,
    pub(super) sent_from_elsewhere_bytes: u64,
}

/// What the socket, the buffers and the export share.
#[derive(Default)]
struct Shared {
    counts: RefCell<Counts>,
    /// Addresses of the buffers in use.
    buffers: RefCell<Vec<Range<usize>>>,
    /// What the client has sent and the server has not received.
    wire: RefCell<Vec<u8>>,
}

/// A connection past its handshake, and its client.
pub(super) struct Client {
    connection: Connection<Pipe, Loopback>,
    shared: Rc<Shared>,
}

impl Client {
    pub(super) fn new() -> Self {
        let shared = Rc::new(Shared::default());
        let export = Rc::new(Loopback { shared: Rc::clone(&shared), held: RefCell::default() });
        let session = Session::new(&export.info(), Headers::Simple, false);
        let limits = Limits::default();
        let mut received = ReceiveBuffer::for_handshake();
        received.enlarge().expect("memory");
        let connection = Connection {
            stream: Pipe(Rc::clone(&shared)),
            export,
            outbox: Outbox::new(session, limits, Budget::new(&limits)),
            decoder: Decoder::new(session),
            received,
            stage: Stage::Header,
            pacer: Pacer::new(Arc::default()),
            received_bytes: 0,
            stopping: Stopping::No,
        };
        Self { connection, shared }
    }

    /// Sends requests of one kind, all at once.
    pub(super) fn request(&mut self, count: u32, kind: u8, length_bytes: u32) {
        let mut wire = self.shared.wire.borrow_mut();
        for cookie in 0..u64::from(count) {
            wire.extend(REQUEST_MAGIC.to_be_bytes());
            wire.extend([0, 0, 0, kind]);
            wire.extend(cookie.to_be_bytes());
            wire.extend((cookie * u64::from(length_bytes)).to_be_bytes());
            wire.extend(length_bytes.to_be_bytes());
            if kind == WRITE {
                let end = wire.len() + length_bytes as usize;
                wire.resize(end, 0xAB);
            }
        }
    }

    /// What has been counted when everything that was sent is answered.
    pub(super) fn served(&mut self) -> Counts {
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(turn) = self.connection.poll_turn(&mut cx) {
            assert!(turn.unwrap().is_continue(), "the client has not left");
        }
        assert!(self.shared.wire.borrow().is_empty() && self.connection.outbox.is_idle());
        *self.shared.counts.borrow()
    }
}

impl Shared {
    fn is_buffer(&self, memory: &[u8]) -> bool {
        let start = memory.as_ptr() as usize;
        self.buffers.borrow().iter().any(|buffer| buffer.contains(&start))
    }
}

/// The server's end of the socket: takes everything, and has what the client sent.
struct Pipe(Rc<Shared>);

impl Stream for Pipe {
    fn poll_receive(&mut self, _: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.0.wire.borrow_mut();
        let mut counts = self.0.counts.borrow_mut();
        counts.receives += 1;
        if wire.is_empty() {
            return Poll::Pending;
        }
        let received = wire.len().min(target.len());
        target[..received].copy_from_slice(&wire[..received]);
        wire.drain(..received);
        if self.0.is_buffer(target) {
            counts.received_into_buffers_bytes += received as u64;
        } else {
            counts.received_elsewhere_bytes += received as u64;
        }
        Poll::Ready(Ok(received))
    }

    fn is_closed(&self) -> bool {
        false
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut counts = self.0.counts.borrow_mut();
        counts.sends += 1;
        for slice in slices {
            if self.0.is_buffer(slice) {
                counts.sent_from_buffers_bytes += slice.len() as u64;
            } else {
                counts.sent_from_elsewhere_bytes += slice.len() as u64;
            }
        }
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Answers a batch when it is kicked.
struct Loopback {
    shared: Rc<Shared>,
    held: RefCell<Vec<(Command<Buffer>, ReplySlot<Buffer>)>>,
}

/// Known by its address while it lives.
struct Buffer {
    bytes: Vec<u8>,
    shared: Rc<Shared>,
}

impl Export for Loopback {
    type Buffer = Buffer;

    fn info(&self) -> ExportInfo {
        ExportInfo::new(SIZE_BYTES)
    }

    fn buffer(&self, length_bytes: u32) -> Option<Buffer> {
        let bytes = vec![0; length_bytes as usize];
        let start = bytes.as_ptr() as usize;
        self.shared.buffers.borrow_mut().push(start..start + bytes.len());
        Some(Buffer { bytes, shared: Rc::clone(&self.shared) })
    }

    fn submit(&self, command: Command<Buffer>, reply: ReplySlot<Buffer>) {
        self.held.borrow_mut().push((command, reply));
    }

    fn kick(&self) {
        self.shared.counts.borrow_mut().kicks += 1;
        for (command, reply) in self.held.borrow_mut().drain(..) {
            reply.done(Ok(match command {
                Command::Read { buffer, .. } => Payload::Data(buffer),
                Command::Write { buffer, .. } => {
                    assert!(buffer.as_ref().iter().all(|&byte| byte == 0xAB), "the data arrived whole");
                    Payload::None
                }
                _ => Payload::None,
            }));
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let start = self.bytes.as_ptr() as usize;
        self.shared.buffers.borrow_mut().retain(|buffer| buffer.start != start);
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
