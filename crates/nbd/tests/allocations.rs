//! At steady state the server takes no memory from the allocator: not for a request, not for a batch of them.
//!
//! A client on its own thread keeps 32 requests of 4 KiB in flight. The server's thread counts its own allocations,
//! from one moment when the client waits for nothing to another, after everything has grown to the size that the load
//! needs: reads in a batch always arrive together, so that all of them have been in flight at once.
#![expect(clippy::unwrap_used, reason = "a step of the set-up that fails is a test that fails")]

use std::{
    cell::RefCell,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    rc::Rc,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::{sync::Notify, task::LocalSet};
use uraid_nbd::{Command, Export, ExportInfo, Limits, Listener, Payload, ReplySlot, Server};

const BLOCK_BYTES: usize = 4096;
const BATCH: usize = 32;
const WARM_UP_BATCHES: usize = 8;
const COUNTED_BATCHES: usize = 64;

/// Answers in `kick`, from buffers that come back.
#[derive(Default)]
struct Pooled {
    free: Rc<RefCell<Vec<Vec<u8>>>>,
    held: RefCell<Vec<(Command<Buffer>, ReplySlot<Buffer>)>>,
}

struct Buffer {
    bytes: Vec<u8>,
    home: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.borrow_mut().push(std::mem::take(&mut self.bytes));
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

impl Export for Pooled {
    type Buffer = Buffer;

    fn info(&self) -> ExportInfo {
        ExportInfo::new(1 << 20)
    }

    fn buffer(&self, length_bytes: u32) -> Option<Buffer> {
        assert_eq!(length_bytes as usize, BLOCK_BYTES);
        let bytes = self.free.borrow_mut().pop().unwrap_or_else(|| vec![0xEE; BLOCK_BYTES]);
        Some(Buffer { bytes, home: Rc::clone(&self.free) })
    }

    fn submit(&self, command: Command<Buffer>, reply: ReplySlot<Buffer>) {
        self.held.borrow_mut().push((command, reply));
    }

    fn kick(&self) {
        for (command, reply) in self.held.borrow_mut().drain(..) {
            reply.done(Ok(match command {
                Command::Read { buffer, .. } => Payload::Data(buffer),
                _ => Payload::None,
            }));
        }
    }
}

/// A client after its handshake, with extended headers or simple replies.
fn connect(socket: &Path, is_extended: bool) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap(); // only so that a failing test ends
    let (headers, acknowledgement): (&[u8], _) =
        if is_extended { (b"IHAVEOPT\0\0\0\x0b\0\0\0\0", 20) } else { (b"", 0) };
    let go = b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
    stream.write_all(&[b"\0\0\0\x03", headers, go].concat()).unwrap();
    let mut greeting_and_info = vec![0; 18 + acknowledgement + 32 + 20];
    stream.read_exact(&mut greeting_and_info).unwrap();
    assert!(greeting_and_info.ends_with(&[0, 0, 0, 1, 0, 0, 0, 0]), "the handshake is acknowledged");
    stream
}

/// Requests that are sent together, and room for their replies.
struct Batch {
    is_extended: bool,
    requests: Vec<u8>,
    replies: Vec<u8>,
}

fn reads() -> Batch {
    Batch { is_extended: false, requests: requests(0, 0), replies: vec![0; BATCH * (16 + BLOCK_BYTES)] }
}

fn writes() -> Batch {
    Batch { is_extended: false, requests: requests(1, BLOCK_BYTES), replies: vec![0; BATCH * 16] }
}

fn extended_reads() -> Batch {
    Batch { is_extended: true, requests: extended(&reads().requests, 0), replies: vec![0; BATCH * (40 + BLOCK_BYTES)] }
}

fn extended_writes() -> Batch {
    Batch { is_extended: true, requests: extended(&writes().requests, BLOCK_BYTES), replies: vec![0; BATCH * 32] }
}

/// The same requests, with `payload_bytes` behind each, with extended headers.
fn extended(requests: &[u8], payload_bytes: usize) -> Vec<u8> {
    let convert = |request: &[u8]| {
        let flags = if payload_bytes > 0 { [0, 32] } else { [0, 0] };
        [b"\x21\xe4\x1c\x71", &flags[..], &request[6..24], &[0; 4], &request[24..]].concat()
    };
    requests.chunks(28 + payload_bytes).flat_map(convert).collect()
}

/// Requests of one kind with `payload_bytes` behind each.
fn requests(kind: u8, payload_bytes: usize) -> Vec<u8> {
    let request = |cookie: usize| {
        let mut bytes = b"\x25\x60\x95\x13\0\0\0".to_vec();
        bytes.push(kind);
        bytes.extend((cookie as u64).to_be_bytes());
        bytes.extend(((cookie * BLOCK_BYTES) as u64).to_be_bytes());
        bytes.extend((BLOCK_BYTES as u32).to_be_bytes());
        bytes.resize(bytes.len() + payload_bytes, 0xAB);
        bytes
    };
    (0..BATCH).flat_map(request).collect()
}

/// Allocations of the server's thread while it serves a batch of requests [`COUNTED_BATCHES`] times.
fn allocations(warm_up: Batch, counted: Batch) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = LocalSet::new();
    let listener = tasks.block_on(&runtime, async { Listener::unix(&socket).unwrap() });
    let server = Server::new(Rc::new(Pooled::default()), Limits::default(), None).unwrap();
    tasks.spawn_local(server.serve(listener, std::future::pending()));
    let paused = Arc::new(Notify::new());
    let (go_on, gone_on) = mpsc::channel();
    let client = std::thread::spawn({
        let paused = Arc::clone(&paused);
        move || {
            let mut stream = connect(&socket, counted.is_extended);
            for (mut batch, times) in [(warm_up, WARM_UP_BATCHES), (counted, COUNTED_BATCHES)] {
                for _ in 0..times {
                    stream.write_all(&batch.requests).unwrap();
                    stream.read_exact(&mut batch.replies).unwrap();
                    let success: &[u8] = match (batch.is_extended, batch.requests[7]) {
                        (false, _) => &[0; 4],
                        (true, kind) => &[0, 1, 0, if kind == 0 { 1 } else { 0 }], // done; data or none
                    };
                    assert_eq!(batch.replies[4..8], *success, "the first request succeeded");
                }
                paused.notify_one();
                gone_on.recv().unwrap();
            }
        }
    });
    tasks.block_on(&runtime, paused.notified());
    // The runtime makes a list for tasks that yield whenever it is entered.
    let entering = allocation_counter::measure(|| tasks.block_on(&runtime, tokio::task::yield_now()));
    go_on.send(()).unwrap();
    let counted = allocation_counter::measure(|| tasks.block_on(&runtime, paused.notified()));
    go_on.send(()).unwrap();
    client.join().unwrap();
    counted.count_total.saturating_sub(entering.count_total)
}

#[test]
fn reads_of_4_kib_allocate_nothing() {
    assert_eq!(allocations(reads(), reads()), 0);
    assert_eq!(allocations(extended_reads(), extended_reads()), 0);
}

#[test]
fn writes_of_4_kib_allocate_nothing() {
    assert_eq!(allocations(reads(), writes()), 0);
    assert_eq!(allocations(extended_reads(), extended_writes()), 0);
}
