//! A server for each kind of export, and a client that sends what it is told to. All of it runs on the thread of the
//! target, so that an input does the same each time.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, yield_now};
use tokio::time::timeout;
use uraid_nbd::{Connections, Limits, Listener, RequestMemory, Server};

use super::export::{BYTES_MAX, Export, KINDS, Noted};

/// How long a session may take: far longer than any does, so that only a hang reaches it.
const SESSION_MAX: Duration = Duration::from_secs(60);

/// Longer than the fuzzer runs: what takes long is none of the judge's business.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// What came of a session.
pub(super) struct Said {
    /// What the server sent.
    pub(super) bytes: Vec<u8>,
    /// What has reached the export.
    pub(super) commands: Vec<Noted>,
}

/// A server that runs.
struct Running {
    export: Rc<Export>,
    address: SocketAddr,
    connections: Connections,
    memory: RequestMemory,
}

struct Servers {
    runtime: Runtime,
    tasks: LocalSet,
    running: Vec<Running>,
}

thread_local! {
    // Never dropped: the fuzzer ends its process in its own way.
    static SERVERS: &'static Servers = Box::leak(Box::new(Servers::start()));
}

/// Sends these pieces, one after the other, to the server of one of [`KINDS`].
///
/// # Panics
/// When the server hangs, or keeps anything of the session.
pub(super) fn converse(kind: usize, pieces: &[Vec<u8>]) -> Said {
    SERVERS.with(|servers| servers.converse(&servers.running[kind], pieces))
}

impl Servers {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("an event loop");
        let tasks = LocalSet::new();
        let start = async { KINDS.iter().enumerate().map(|(index, kind)| Running::start(index, kind)).collect() };
        let running = tasks.block_on(&runtime, start);
        Self { runtime, tasks, running }
    }

    fn converse(&self, server: &Running, pieces: &[Vec<u8>]) -> Said {
        let client = UnixStream::connect_addr(&server.address).expect("the server listens");
        client.set_nonblocking(true).expect("a socket that does not block");
        let session = async {
            let client = tokio::net::UnixStream::from_std(client).expect("a socket for the event loop");
            let (mut receiver, mut sender) = client.into_split();
            let sending = async {
                for piece in pieces {
                    if sender.write_all(piece).await.is_err() {
                        return; // the server has ended the connection
                    }
                    yield_now().await;
                }
                // As before.
                let _ = sender.shutdown().await;
            };
            let mut bytes = Vec::new();
            let receiving = async {
                // A server that has not read everything resets the connection, after what it said.
                let _ = receiver.read_to_end(&mut bytes).await;
            };
            tokio::join!(sending, receiving);
            while !server.is_at_rest() {
                yield_now().await;
            }
            bytes
        };
        let bytes = self.tasks.block_on(&self.runtime, async { timeout(SESSION_MAX, session).await });
        let bytes = bytes.expect("the server answers, ends the connection and keeps nothing of it");
        Said { bytes, commands: server.export.take_noted() }
    }
}

impl Running {
    /// Whether there is no connection, and nothing left of any.
    fn is_at_rest(&self) -> bool {
        self.connections.count() == 0 && self.memory.used_bytes() == 0 && self.export.is_at_rest()
    }

    fn start(index: usize, kind: &'static super::export::Kind) -> Self {
        // An abstract name: no file is left behind.
        let name = format!("uraid-fuzz-{}-{index}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a name of letters");
        let socket = UnixListener::bind_addr(&address).expect("the name is this process's own");
        let listener = Listener::inherit(socket.into()).expect("a listener for the event loop");
        let limits = Limits {
            bytes_in_flight_max: BYTES_MAX / 2,
            bytes_in_flight_all_max: BYTES_MAX,
            requests_in_flight_max: 4,
            stuck_timeout: FOREVER,
            handshake_timeout: FOREVER,
            ..Limits::default()
        };
        let export = Rc::new(Export::new(kind));
        let server = Server::new(Rc::clone(&export), limits, None).expect("an export that can be described");
        let (connections, memory) = (server.connections(), server.request_memory());
        tokio::task::spawn_local(server.serve(listener, std::future::pending()));
        Self { export, address, connections, memory }
    }
}
