//! Bytes on the control socket, right and wrong. Whatever one peer does, the next is answered.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::image::Random;
use uraid_tests::server::Server;
use uraid_tests::shape;

/// How long a response may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest line, as the protocol says.
const LINE: usize = 64 << 10;

/// Connections at a time, as the protocol says.
const CONNECTIONS: usize = 16;

const STATUS: &[u8] = b"{\"command\":\"status\"}\n";

struct Peer(BufReader<UnixStream>);

impl Peer {
    fn new(array: &Array) -> Self {
        let stream = UnixStream::connect(array.path("nbd.ctl")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// One that asks and asks and never reads, so that the server stops reading, too. Each line gets an error, which
    /// costs the server little.
    fn deaf(array: &Array) -> Self {
        let mut peer = Self::new(array);
        peer.0.get_mut().set_nonblocking(true).unwrap();
        let lines = [b'\n'; 4096];
        let full = loop {
            match peer.0.get_mut().write(&lines) {
                Ok(count) => assert!(count > 0, "a socket takes something or nothing"),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        peer
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    #[track_caller]
    fn error(&mut self) -> String {
        let line = self.line();
        assert!(line.starts_with("{\"error\":\"") && line.ends_with("\"}\n"), "{line:?}");
        serde_json::from_str::<Value>(&line).unwrap()["error"].as_str().unwrap().to_owned()
    }

    /// Asks for the status, unless the server has said something and closed the connection already.
    fn asks(&mut self) -> String {
        let _ = self.0.get_mut().write_all(STATUS);
        self.line()
    }

    #[track_caller]
    fn is_answered(&mut self) {
        self.send(STATUS);
        let line = self.line();
        assert!(line.starts_with("{\"result\":{\"version\":\"") && line.ends_with("}}\n"), "{line:?}");
    }

    /// Whether the server closes the connection, with bytes unread or not.
    fn closes(mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn these_bytes_get_those() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut peer = Peer::new(&array);
    peer.is_answered();
    peer.send(b"{\"command\":\"set\",\"key\":\"log\",\"value\":\"error\"}\n");
    assert_eq!(peer.line(), "{\"result\":{\"key\":\"log\",\"value\":\"error\"}}\n");
    // Two requests at once, and one in pieces.
    peer.send(&[STATUS, STATUS].concat());
    assert!(peer.line().starts_with("{\"result\"") && peer.line().starts_with("{\"result\""));
    peer.send(&STATUS[..7]);
    peer.send(&STATUS[7..]);
    assert!(peer.line().starts_with("{\"result\""));
    peer.send(b"{\"command\":\"stop\"}\n");
    assert_eq!(peer.line(), "{\"result\":{\"lost\":[]}}\n");
    let _ = server.end().success();
}

#[test]
fn what_is_no_request_gets_an_error_and_the_next_line_an_answer() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut peer = Peer::new(&array);
    let deep = ["[".repeat(20_000), "\n".to_owned()].concat();
    for (bytes, named) in [
        (&b"\n"[..], "status"),
        (b"hello\n", "status"),
        (b"{\"command\":\"frobnicate\"}\n", "frobnicate"),
        (b"{\"command\":\"status\",\"loud\":1}\n", "loud"),
        (b"{\"command\":7}\n", "status"),
        (b"[\"stop\"]\n", "status"),
        (b"{\"command\":\"status\"} trailing\n", "trailing"),
        (b"{\"command\":\"set\",\"key\":\"\\u0000\",\"value\":\"\"}\n", "cache"),
        (b"\xff\xfe\x00\n", "status"),
        (deep.as_bytes(), "status"),
    ] {
        peer.send(bytes);
        let error = peer.error();
        assert!(error.contains(named), "{:?}: {error}", String::from_utf8_lossy(bytes));
        peer.is_answered();
    }
    let _ = server.stop();
}

#[test]
fn lines_without_an_end_are_refused() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut long = Peer::new(&array);
    long.send(&vec![b' '; LINE]);
    assert!(long.error().contains("65536"));
    assert!(long.closes());

    let mut longest = Peer::new(&array);
    longest.send(&[&vec![b' '; LINE - STATUS.len()], STATUS].concat());
    assert!(longest.line().starts_with("{\"result\""));

    let mut half = Peer::new(&array);
    half.send(&STATUS[..10]);
    half.0.get_ref().shutdown(Shutdown::Write).unwrap();
    assert!(half.error().contains("newline"));
    assert!(half.closes());

    let mut silent = Peer::new(&array);
    silent.send(&STATUS[..10]);
    let mut gone = Peer::new(&array);
    gone.send(STATUS);
    drop(gone);
    Peer::new(&array).is_answered();
    let _ = server.stop();
}

#[test]
fn a_peer_that_never_reads_is_nobody_elses_concern() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let _deaf = Peer::deaf(&array);
    Peer::new(&array).is_answered();
    let mut client = server.connect();
    let data = Random::new(1).bytes(4096);
    client.write(0, &data);
    assert_eq!(client.read(0, 4096), data);
    let _ = server.stop();
}

#[test]
fn connections_are_bounded_and_their_places_given_back() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    // Each is being answered for as long as it does not read.
    let deaf: Vec<Peer> = (0..CONNECTIONS).map(|_| Peer::deaf(&array)).collect();
    let mut more = Peer::new(&array);
    assert!(more.error().contains("16"));
    assert!(more.closes());
    drop(deaf);
    // The server finds out one after the other that nobody is there any more; until then it says to try later.
    let is_refused = |line: &str| line.contains("takes no more: try later");
    let answer = std::iter::repeat_with(|| Peer::new(&array).asks()).find(|line| !is_refused(line)).unwrap();
    assert!(answer.starts_with("{\"result\":"), "{answer:?}");
    let _ = server.stop();
}

/// Whoever only keeps a connection open locks nobody out.
#[test]
fn the_connection_that_was_idle_longest_makes_room_for_another() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut peers: Vec<Peer> = (0..CONNECTIONS).map(|_| Peer::new(&array)).collect();
    peers.iter_mut().for_each(Peer::is_answered);
    Peer::new(&array).is_answered();
    let first = peers.remove(0);
    assert!(first.closes());
    peers.iter_mut().for_each(Peer::is_answered);
    let _ = server.stop();
}
