//! What clients that misbehave cost themselves, and nobody else.

use std::{io::Write as _, net::Shutdown, sync::atomic::Ordering::SeqCst, time::Duration};

use uraid_nbd::Limits;

use crate::{
    memory::{Finish, info},
    support::{GREETING, Reply, TestServer, assert_closed, request},
};

const MIB: u32 = 1 << 20;

#[test]
fn garbage_in_a_handshake_ends_that_connection_alone() {
    let server = TestServer::start(Finish::AtOnce);
    let mut bystander = server.client(true);
    for garbage in
        [&b"GET / HTTP/1.1\r\nHost: nbd\r\n\r\n"[..], b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff", &[0xff; 4096]]
    {
        let mut stream = server.connect();
        let mut greeting = [0; 18];
        std::io::Read::read_exact(&mut stream, &mut greeting).unwrap();
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
    std::io::Read::read_exact(&mut stream, &mut [0; 18]).unwrap();
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
