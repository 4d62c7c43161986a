//! What clients that misbehave cost themselves, and nobody else.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::Shutdown,
    sync::atomic::Ordering::SeqCst,
    time::Duration,
};

use uraid_nbd::Limits;

use crate::{
    memory::{Finish, info},
    support::{Client, GREETING, Reply, TestServer, assert_closed, request},
};

const MIB: u32 = 1 << 20;
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn garbage_in_a_handshake_ends_that_connection_alone() {
    let server = TestServer::start(Finish::AtOnce);
    let mut bystander = server.client(true);
    for garbage in
        [&b"GET / HTTP/1.1\r\nHost: nbd\r\n\r\n"[..], b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff", &[0xff; 4096]]
    {
        let mut stream = server.connect();
        let mut greeting = [0; 18];
        io::Read::read_exact(&mut stream, &mut greeting).unwrap();
        assert_eq!(greeting, GREETING);
        stream.write_all(garbage).unwrap();
        assert_closed(&mut stream);
        bystander.assert_alive();
    }
    assert!(server.stop_and_join());
}

#[test]
fn silence_in_a_handshake_ends_it() {
    let limits = Limits { handshake_timeout: Duration::from_millis(20), ..Limits::default() };
    let server = TestServer::with(Finish::AtOnce, info(), limits);
    let mut stream = server.connect();
    io::Read::read_exact(&mut stream, &mut [0; 18]).unwrap();
    assert_closed(&mut stream);
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let server = TestServer::with(Finish::AtOnce, info(), Limits { connections_max: 2, ..Limits::default() });
    let mut clients = [server.client(true), server.client(false)];
    assert_closed(&mut server.connect());
    clients.iter_mut().for_each(|client| client.assert_alive());
}

#[test]
fn bytes_in_flight_are_bounded_before_buffers_are_taken() {
    let limits = Limits { bytes_in_flight_max: 4 * u64::from(MIB), ..Limits::default() };
    let server = TestServer::with(Finish::Together(4), info(), limits);
    let mut client = server.client(true);
    // One send, so that nothing but the budget keeps the server from submitting all at once.
    client.send(&(0..16).flat_map(|cookie| request(0, 0, cookie, 0, MIB)).collect::<Vec<_>>());
    let answered: Vec<_> = (0..16).map(|_| client.reply().cookie()).collect();
    assert!(answered.into_iter().eq(0..16));
    assert_eq!(server.counts.held_max.load(SeqCst), 4);
    client.send(&(0..4).flat_map(|_| [request(0, 1, 0, 0, MIB), vec![0; MIB as usize]].concat()).collect::<Vec<_>>());
    (0..4).for_each(|_| assert_eq!(client.reply(), Reply::done(0)));
    assert_eq!(server.counts.held_max.load(SeqCst), 4);
}

#[test]
fn a_request_larger_than_the_budget_is_admitted_alone() {
    let server = TestServer::with(Finish::Later, info(), Limits { bytes_in_flight_max: 4096, ..Limits::default() });
    let mut client = server.client(true);
    client.send(&(0..4).flat_map(|cookie| request(0, 0, cookie, 0, MIB)).collect::<Vec<_>>());
    (0..4).for_each(|cookie| assert_eq!(client.reply(), Reply::data(cookie, 0, &[0; MIB as usize])));
    assert_eq!(server.counts.held_max.load(SeqCst), 1);
}

#[test]
fn requests_in_flight_are_bounded_even_if_they_are_refused() {
    let server =
        TestServer::with(Finish::Together(8), info(), Limits { requests_in_flight_max: 8, ..Limits::default() });
    let mut client = server.client(true);
    client.send(&(0..64).flat_map(|cookie| request(0, 3, cookie, 0, 0)).collect::<Vec<_>>());
    let answered: Vec<_> = (0..64).map(|_| client.reply().cookie()).collect();
    assert!(answered.into_iter().eq(0..64));
    assert_eq!(server.counts.held_max.load(SeqCst), 8);
    client.send(&(0..100).flat_map(|cookie| request(0, 77, cookie, 0, 0)).collect::<Vec<_>>());
    (0..100).for_each(|cookie| assert_eq!(client.reply(), Reply::error(cookie, 22)));
}

#[test]
fn a_client_that_reads_no_replies_stalls_nobody_else() {
    let server = TestServer::with(
        Finish::Later,
        info(),
        Limits { bytes_in_flight_max: 8 * u64::from(MIB), ..Limits::default() },
    );
    let mut stalled = server.client(false);
    stalled.send(&(0..64).flat_map(|cookie| request(0, 0, cookie, 0, MIB)).collect::<Vec<_>>());
    // Its first reply is under way, so its requests are being served.
    assert_eq!(stalled.receive(16)[..8], *b"\x67\x44\x66\x98\0\0\0\0");
    let mut other = server.client(true);
    for cookie in 0..100 {
        other.send(&request(0, 0, cookie, 0, 65536));
        assert_eq!(other.reply(), Reply::data(cookie, 0, &[0; 65536]));
    }
    let submits = server.counts.submits.load(SeqCst);
    assert!(submits < 100 + 64, "the stalled client's requests were not all taken: {submits}");
    stalled.receive(MIB as usize);
    for cookie in 1..64 {
        assert_eq!(stalled.reply(), Reply::done(cookie));
        stalled.receive(MIB as usize);
    }
    drop((stalled, other));
    assert!(server.stop_and_join());
}

#[test]
fn a_client_killed_in_the_middle_of_a_write_leaves_nothing_behind() {
    let server = TestServer::start(Finish::AtOnce);
    let mut client = server.client(true);
    client.send(&[request(0, 1, 1, 0, 4 * MIB), vec![7; 3 << 20]].concat());
    drop(client);
    let mut other = server.client(true);
    other.send(&request(0, 0, 2, 0, MIB));
    assert_eq!(other.reply(), Reply::data(2, 0, &[0; MIB as usize]), "half a write is no write");
    let counts = server.counts.clone();
    assert!(server.stop_and_join());
    assert_eq!(counts.submits.load(SeqCst), 1);
    assert_eq!(counts.buffers_live.load(SeqCst), 0);
}

#[test]
fn commands_of_a_client_that_is_gone_finish_harmlessly() {
    let server = TestServer::start(Finish::OnRelease);
    let mut client = server.client(true);
    client.send(&(0..8).flat_map(|cookie| request(0, 0, cookie, 0, MIB)).collect::<Vec<_>>());
    (0..8).for_each(|_| server.submitted.recv().unwrap());
    client.stream.shutdown(Shutdown::Both).unwrap();
    drop(client);
    let mut other = server.client(true);
    other.send(&request(0, 0, 9, 0, 512));
    server.submitted.recv().unwrap();
    server.release();
    assert_eq!(other.reply(), Reply::data(9, 0, &[0; 512]));
    let counts = server.counts.clone();
    assert!(server.stop_and_join());
    assert_eq!(counts.buffers_live.load(SeqCst), 0);
}

/// Sends as much as the socket takes of requests for `count` times 1 MiB, and reads no reply.
pub(crate) fn ask_and_never_read(server: &TestServer, count: u64) -> Client {
    let mut client = server.client(false);
    client.send(&(0..count).flat_map(|cookie| request(0, 0, cookie, 0, MIB)).collect::<Vec<_>>());
    client
}

#[test]
fn clients_that_never_read_hold_no_more_than_the_budget_together() {
    let limits = Limits { bytes_in_flight_all_max: 32 * u64::from(MIB), ..Limits::default() };
    let server = TestServer::with(Finish::Later, info(), limits);
    let hogs: Vec<_> = (0..20).map(|_| ask_and_never_read(&server, 500)).collect();
    // As much as there is beside the connections' own shares; what the sockets take comes on top.
    (0..16).for_each(|_| server.submitted.recv().unwrap());
    let mut other = server.client(true);
    for cookie in 0..100 {
        other.send(&request(0, 0, cookie, 0, 65536));
        assert_eq!(other.reply(), Reply::data(cookie, 0, &[0; 65536]));
    }
    let bytes_max = server.counts.bytes_max.load(SeqCst);
    assert!((16..=32).contains(&(bytes_max >> 20)), "{bytes_max} bytes were held at a time");
    drop((hogs, other));
    let counts = server.counts.clone();
    assert!(server.stop_and_join());
    assert_eq!(counts.bytes_live.load(SeqCst), 0);
}

/// All of the common budget is in the way of others, in either direction: replies that are not read, data that is not
/// sent.
#[test]
fn clients_that_keep_others_waiting_are_disconnected() {
    // The one that reads has to be seen reading, on a machine that does other things, too.
    let stuck_timeout = Duration::from_secs(2);
    let limits = Limits { bytes_in_flight_all_max: 16 * u64::from(MIB), stuck_timeout, ..Limits::default() };
    let server = TestServer::with(Finish::AtOnce, info(), limits);
    let mut silent: Vec<_> = (0..2).map(|_| server.client(true)).collect();
    silent.iter_mut().for_each(|client| client.send(&request(0, 1, 1, 0, 4 * MIB)));
    let mut other = server.client(true);
    other.send(&request(0, 0, 7, 0, 4 * MIB));
    assert_eq!(other.reply(), Reply::data(7, 0, &[0; 4 << 20]));
    let gone = silent.iter_mut().filter_map(|client| client.stream.read(&mut [0]).ok());
    assert_eq!(gone.collect::<Vec<_>>(), [0, 0], "both were closed");

    server.submitted.recv().unwrap();
    // The first gets three MiB of the eight that are common, the second two: there is some left for others.
    let deaf = [3, 2].map(|served| {
        let deaf = ask_and_never_read(&server, 500);
        (0..served).for_each(|_| server.submitted.recv().unwrap());
        deaf
    });
    other.send(&request(0, 0, 8, 0, 3 * MIB));
    assert_eq!(other.reply(), Reply::data(8, 0, &[0; 3 << 20]));
    other.send(&request(0, 0, 9, 0, 4 * MIB));
    assert_eq!(other.reply(), Reply::data(9, 0, &[0; 4 << 20]));
    // There was room when one of them had gone.
    let is_cut = deaf.map(|mut deaf| {
        deaf.stream.shutdown(Shutdown::Write).unwrap();
        match io::copy(&mut deaf.stream, &mut io::sink()) {
            Ok(replies_bytes) => replies_bytes < 500 << 20,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
            Err(error) => panic!("{error}"),
        }
    });
    assert!(is_cut.contains(&true), "all replies came");
    assert!(server.stop_and_join());
}

#[test]
fn a_request_without_memory_is_refused_and_the_connection_lives() {
    let server = TestServer::start(Finish::AtOnce);
    let mut client = server.client(true);
    server.counts.refused_bytes.store(1 << 20, SeqCst);
    let data = [3; 1 << 20];
    client.send(&[request(0, 0, 1, 0, MIB), request(0, 1, 2, 0, MIB), data.to_vec(), request(0, 3, 3, 0, 0)].concat());
    assert_eq!(
        [client.reply(), client.reply(), client.reply()],
        [Reply::error(1, 12), Reply::error(2, 12), Reply::done(3)]
    );
    server.counts.refused_bytes.store(0, SeqCst);
    client.send(&[request(0, 1, 4, 0, MIB), data.to_vec(), request(0, 0, 5, 0, MIB)].concat());
    assert_eq!([client.reply(), client.reply()], [Reply::done(4), Reply::data(5, 0, &data)]);
}

#[test]
fn silent_connections_keep_nobody_out() {
    let server = TestServer::start(Finish::AtOnce);
    let mut clients: Vec<_> = (0..32).map(|_| server.client(true)).collect();
    let mut silent: Vec<_> = (0..64).map(|_| server.connect()).collect();
    // The last one has its greeting, so all before it had their turn.
    silent[63].read_exact(&mut [0; 18]).unwrap();
    clients.push(server.client(true));
    clients.iter_mut().for_each(Client::assert_alive);
    // The first one has made way, whether it got its greeting or not.
    let mut greeting = Vec::new();
    silent[0].read_to_end(&mut greeting).unwrap();
    assert!(greeting.is_empty() || greeting == GREETING);
}

/// It has made its last request, and its replies change nothing.
#[test]
fn who_has_left_its_replies_keeps_no_newcomer_waiting() {
    let server = TestServer::with(Finish::AtOnce, info(), Limits { stuck_timeout: LONG, ..Limits::default() });
    let mut left = ask_and_never_read(&server, 4);
    left.stream.shutdown(Shutdown::Write).unwrap();
    (0..4).for_each(|_| server.submitted.recv().unwrap());
    server.client(true).assert_alive();
    // Nor does it lose them for that.
    for cookie in 0..4 {
        assert_eq!(left.reply(), Reply::done(cookie));
        left.receive(MIB as usize);
    }
    left.assert_closed();
}

#[test]
fn who_has_left_with_more_requests_than_fit_keeps_a_newcomer_waiting_for_a_moment() {
    let limits = Limits { bytes_in_flight_max: u64::from(MIB), stuck_timeout: LONG, ..Limits::default() };
    let server = TestServer::with(Finish::AtOnce, info(), limits);
    let left = ask_and_never_read(&server, 4);
    left.stream.shutdown(Shutdown::Write).unwrap();
    server.client(true).assert_alive();
}

#[test]
fn who_stops_in_the_middle_of_a_request_or_reply_is_idle() {
    let limits = Limits {
        idle_timeout: Some(Duration::from_millis(50)),
        bytes_in_flight_max: u64::from(MIB),
        ..Limits::default()
    };
    let server = TestServer::with(Finish::AtOnce, info(), limits);
    let mut half = server.client(true);
    half.send(&[request(0, 1, 1, 0, MIB), vec![1; 1000]].concat());
    half.assert_closed();
    let mut deaf = ask_and_never_read(&server, 20);
    deaf.stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    // The server does not read that, with so much to answer.
    let ended = std::iter::from_fn(|| Some(deaf.stream.write(&[0]))).find_map(Result::err).unwrap();
    assert!(matches!(ended.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{ended}");
}
