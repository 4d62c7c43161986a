//! A server on its own thread, and a client that speaks the protocol by hand.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    rc::Rc,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use tempfile::TempDir;
use tokio::sync::mpsc as control;
use uraid_nbd::{ExportInfo, Limits, Listener, Rates, Scheme, Server, Tls};

use crate::memory::{Counts, Finish, Memory, info};

enum Control {
    Stop,
    Release,
}

pub(crate) struct TestServer {
    pub(crate) socket: PathBuf,
    pub(crate) uri: String,
    pub(crate) counts: Arc<Counts>,
    pub(crate) submitted: mpsc::Receiver<()>,
    pub(crate) directory: TempDir,
    control: control::UnboundedSender<Control>,
    thread: JoinHandle<bool>,
}

impl TestServer {
    pub(crate) fn start(finish: Finish) -> Self {
        Self::with(finish, info(), Limits::default())
    }

    pub(crate) fn with(finish: Finish, info: ExportInfo, limits: Limits) -> Self {
        Self::with_tls(finish, info, limits, None)
    }

    pub(crate) fn with_tls(finish: Finish, info: ExportInfo, limits: Limits, tls: Option<Tls>) -> Self {
        Self::with_all(finish, info, limits, tls, Arc::default())
    }

    /// A server whose clients go on no faster than `rates` allows.
    pub(crate) fn paced(finish: Finish, limits: Limits, rates: Arc<Rates>) -> Self {
        Self::with_all(finish, info(), limits, None, rates)
    }

    fn with_all(finish: Finish, info: ExportInfo, limits: Limits, tls: Option<Tls>, rates: Arc<Rates>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        let counts = Arc::new(Counts::default());
        let (submits, submitted) = mpsc::channel();
        let (control, commands) = control::unbounded_channel();
        let (started, uri) = mpsc::channel();
        let thread = {
            let (socket, counts) = (socket.clone(), Arc::clone(&counts));
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let memory = Rc::new(Memory::new(info, finish, counts, submits));
                tokio::task::LocalSet::new().block_on(&runtime, async {
                    let listener = Listener::unix(&socket).unwrap();
                    started.send(listener.endpoint().uri(Scheme::Nbd, "mem")).unwrap();
                    let server = Server::new(Rc::clone(&memory), limits, tls).unwrap().paced_by(rates);
                    run(server, memory, listener, commands).await
                })
            })
        };
        let uri = uri.recv().unwrap();
        Self { socket, uri, counts, submitted, directory, control, thread }
    }

    /// Begins the shutdown.
    pub(crate) fn stop(&self) {
        self.control.send(Control::Stop).unwrap();
    }

    /// Finishes commands held by [`Finish::OnRelease`].
    pub(crate) fn release(&self) {
        self.control.send(Control::Release).unwrap();
    }

    /// Waits for the end of the shutdown. Whether all requests were answered.
    pub(crate) fn join(self) -> bool {
        self.thread.join().unwrap()
    }

    pub(crate) fn stop_and_join(self) -> bool {
        self.stop();
        self.join()
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        // Only so that a failing test ends.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// A client in the transmission phase, with structured replies and `base:allocation`, or with neither.
    pub(crate) fn client(&self, structured: bool) -> Client {
        Client::handshake(self.connect(), structured)
    }

    /// A client in the transmission phase, with extended headers and `base:allocation`.
    pub(crate) fn extended_client(&self) -> Client {
        Client::extended_handshake(self.connect())
    }
}

async fn run(
    server: Server<Memory>,
    memory: Rc<Memory>,
    listener: Listener,
    mut commands: control::UnboundedReceiver<Control>,
) -> bool {
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let served = server.serve(listener, async { stopped.await.unwrap() });
    let controlled = async {
        let mut stop = Some(stop);
        while let Some(command) = commands.recv().await {
            match command {
                Control::Stop => stop.take().unwrap().send(()).unwrap(),
                Control::Release => memory.release(),
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        finished = served => finished,
        () = controlled => unreachable!(),
    }
}

pub(crate) const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
}

const STRUCTURED_REPLY: u8 = 8;
const EXTENDED_HEADERS: u8 = 11;

/// A reply, simple or of one chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple { error: u32, cookie: u64 },
    Chunk { flags: u16, kind: u16, cookie: u64, payload: Vec<u8> },
    Extended { flags: u16, kind: u16, cookie: u64, offset_bytes: u64, payload: Vec<u8> },
}

impl Reply {
    pub(crate) fn cookie(&self) -> u64 {
        match self {
            Self::Simple { cookie, .. } | Self::Chunk { cookie, .. } | Self::Extended { cookie, .. } => *cookie,
        }
    }

    /// The only chunk of a read.
    pub(crate) fn data(cookie: u64, offset_bytes: u64, data: &[u8]) -> Self {
        Self::Chunk { flags: 1, kind: 1, cookie, payload: [&offset_bytes.to_be_bytes(), data].concat() }
    }

    /// The only chunk of a failure.
    pub(crate) fn error(cookie: u64, error: u8) -> Self {
        Self::Chunk { flags: 1, kind: 0x8001, cookie, payload: vec![0, 0, 0, error, 0, 0] }
    }

    pub(crate) fn done(cookie: u64) -> Self {
        Self::Simple { error: 0, cookie }
    }

    /// The only chunk of an extended reply.
    pub(crate) fn extended(kind: u16, cookie: u64, offset_bytes: u64, payload: &[u8]) -> Self {
        Self::Extended { flags: 1, kind, cookie, offset_bytes, payload: payload.to_vec() }
    }
}

pub(crate) fn request(flags: u16, kind: u16, cookie: u64, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    let beginning = beginning(b"\x25\x60\x95\x13", flags, kind, cookie, offset_bytes);
    [beginning, length_bytes.to_be_bytes().to_vec()].concat()
}

/// The same with extended headers.
pub(crate) fn extended_request(flags: u16, kind: u16, cookie: u64, offset_bytes: u64, length_bytes: u64) -> Vec<u8> {
    let beginning = beginning(b"\x21\xe4\x1c\x71", flags, kind, cookie, offset_bytes);
    [beginning, length_bytes.to_be_bytes().to_vec()].concat()
}

/// What both forms of a request have before the length.
fn beginning(magic: &[u8; 4], flags: u16, kind: u16, cookie: u64, offset_bytes: u64) -> Vec<u8> {
    let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
    [magic, &flags[..], &kind, &cookie.to_be_bytes(), &offset_bytes.to_be_bytes()].concat()
}

impl Client {
    pub(crate) fn handshake(stream: UnixStream, structured: bool) -> Self {
        Self::try_handshake(stream, structured).expect("the server takes the connection")
    }

    /// With extended headers.
    pub(crate) fn extended_handshake(stream: UnixStream) -> Self {
        Self::shake_hands(stream, Some(EXTENDED_HEADERS)).expect("the server takes the connection")
    }

    /// `None` if the connection was closed at once.
    pub(crate) fn try_handshake(stream: UnixStream, structured: bool) -> Option<Self> {
        Self::shake_hands(stream, structured.then_some(STRUCTURED_REPLY))
    }

    /// `headers`: the option for them; with it the client selects `base:allocation`.
    fn shake_hands(mut stream: UnixStream, headers: Option<u8>) -> Option<Self> {
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting).ok()?;
        assert_eq!(greeting, GREETING);
        let mut client = Self { stream };
        client.send(b"\0\0\0\x03");
        if let Some(option) = headers {
            client.send(&[b"IHAVEOPT\0\0\0", &[option][..], &[0; 4]].concat());
            assert_eq!(client.receive(20)[12..], [0, 0, 0, 1, 0, 0, 0, 0]);
            client.send(b"IHAVEOPT\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
            assert_eq!(client.receive(20 + 19 + 20)[20..39], *b"\0\0\0\x01base:allocation");
        }
        client.send(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
        assert_eq!(client.receive(32 + 20)[44..], [0, 0, 0, 1, 0, 0, 0, 0]);
        Some(client)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn receive(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// A reply without simple-reply data.
    pub(crate) fn reply(&mut self) -> Reply {
        let magic = self.receive(4);
        let field = |bytes: &[u8]| bytes.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        if magic == b"\x67\x44\x66\x98" {
            let rest = self.receive(12);
            return Reply::Simple { error: field(&rest[..4]) as u32, cookie: field(&rest[4..]) };
        }
        if magic == b"\x6e\x8a\x27\x8c" {
            let head = self.receive(28);
            let payload = self.receive(field(&head[20..]) as usize);
            return Reply::Extended {
                flags: field(&head[..2]) as u16,
                kind: field(&head[2..4]) as u16,
                cookie: field(&head[4..12]),
                offset_bytes: field(&head[12..20]),
                payload,
            };
        }
        assert_eq!(magic, b"\x66\x8e\x33\xef");
        let head = self.receive(16);
        let payload = self.receive(field(&head[12..]) as usize);
        Reply::Chunk {
            flags: field(&head[..2]) as u16,
            kind: field(&head[2..4]) as u16,
            cookie: field(&head[4..12]),
            payload,
        }
    }

    /// Shows that the connection still works.
    pub(crate) fn assert_alive(&mut self) {
        self.send(&request(0, 3, 0xA11CE, 0, 0));
        assert_eq!(self.reply(), Reply::done(0xA11CE));
    }

    pub(crate) fn assert_closed(&mut self) {
        assert_closed(&mut self.stream);
    }
}

/// The server has closed its side: in order, or with the client's bytes unread.
pub(crate) fn assert_closed(stream: &mut UnixStream) {
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("the connection is not closed: {other:?}"),
    }
}
