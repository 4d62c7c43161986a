//! Shutting a server down.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use uraid_nbd::{Drain, Limits};

use crate::{
    limits::ask_and_never_read,
    memory::{Finish, info},
    support::{Reply, TestServer, extended_request, request},
};

#[test]
fn an_idle_client_does_not_hold_up_a_shutdown() {
    let server = TestServer::start(Finish::AtOnce);
    let mut idle = server.client(true);
    let mut shaking = server.connect();
    std::io::Read::read_exact(&mut shaking, &mut [0; 18]).unwrap();
    let socket = server.socket.clone();
    assert!(server.stop_and_join());
    idle.assert_closed();
    crate::support::assert_closed(&mut shaking);
    assert!(!socket.exists());
}

#[test]
fn requests_in_flight_are_answered_before_the_end() {
    let server = TestServer::start(Finish::OnRelease);
    let mut client = server.client(true);
    // The write lacks half of its data: it never starts, and is not answered.
    client.send(&[request(0, 0, 1, 0, 4096), request(0, 1, 2, 0, 4096), vec![1; 2048]].concat());
    server.submitted.recv().unwrap();
    server.stop();
    while server.socket.exists() {
        std::thread::yield_now(); // it goes when the shutdown begins
    }
    server.release();
    let counts = server.counts.clone();
    assert_eq!(client.reply(), Reply::data(1, 0, &[0; 4096]));
    client.assert_closed();
    assert!(server.join());
    assert_eq!(counts.submits.load(SeqCst), 1);
    assert_eq!(counts.buffers_live.load(SeqCst), 0);
}

const ESHUTDOWN: u8 = 108;

const REFUSE: Drain = Drain::Refuse;

/// What came before is done, and what comes now is refused, whatever it is, until the client leaves.
#[test]
fn requests_that_come_during_a_shutdown_are_refused_if_that_is_wanted() {
    let server = TestServer::with(Finish::OnRelease, info(), Limits { drain: REFUSE, ..Limits::default() });
    let mut client = server.client(true);
    let mut extended = server.extended_client();
    // The second one lacks half of its data: it never starts.
    client.send(&[request(0, 0, 1, 0, 4096), request(0, 1, 2, 0, 4096), vec![1; 2048]].concat());
    server.submitted.recv().unwrap();
    server.stop();
    while server.socket.exists() {
        std::thread::yield_now(); // it goes when the shutdown begins
    }
    client.send(&[vec![1; 2048], request(0, 3, 3, 0, 0), request(0, 4, 4, 0, 512), request(0, 7, 5, 0, 512)].concat());
    client.send(&[request(0, 1, 6, 0, 8192), vec![0x25; 8192], request(0, 0, 7, 0, 65536)].concat());
    (2..8).for_each(|cookie| assert_eq!(client.reply(), Reply::error(cookie, ESHUTDOWN)));
    client.send(&request(0, 77, 8, 0, 0));
    assert_eq!(client.reply(), Reply::error(8, 22), "what is no request is not one during a shutdown either");
    extended.send(&extended_request(0, 6, 9, 4096, 1 << 20));
    assert_eq!(extended.reply(), Reply::extended(0x8001, 9, 4096, &[0, 0, 0, ESHUTDOWN, 0, 0]));
    server.release();
    assert_eq!(client.reply(), Reply::data(1, 0, &[0; 4096]), "it was in flight");
    client.send(&request(0, 2, 10, 0, 0));
    client.assert_closed();
    let counts = server.counts.clone();
    drop(extended);
    assert!(server.join());
    assert_eq!((counts.submits.load(SeqCst), counts.buffers_live.load(SeqCst)), (1, 0));
}

#[test]
fn a_client_that_stays_holds_a_shutdown_up_for_its_time_and_not_longer() {
    let limits = Limits { drain: REFUSE, shutdown_timeout: Duration::from_millis(20), ..Limits::default() };
    let server = TestServer::with(Finish::AtOnce, info(), limits);
    let (mut idle, mut shaking) = (server.client(true), server.connect());
    std::io::Read::read_exact(&mut shaking, &mut [0; 18]).unwrap();
    assert!(server.stop_and_join(), "nothing of it was in flight");
    idle.assert_closed();
    crate::support::assert_closed(&mut shaking);
    let server = TestServer::with(Finish::OnRelease, info(), limits);
    let mut client = server.client(true);
    client.send(&request(0, 0, 1, 0, 4096));
    server.submitted.recv().unwrap();
    assert!(!server.stop_and_join(), "something of it was");
    client.assert_closed();
}

/// Its replies are done, and it takes none of them.
#[test]
fn a_client_that_stays_and_never_reads_holds_a_shutdown_up_for_its_time_and_not_longer() {
    for drain in [Drain::Close, REFUSE] {
        let limits = Limits { drain, shutdown_timeout: Duration::from_millis(20), ..Limits::default() };
        let server = TestServer::with(Finish::AtOnce, info(), limits);
        let mut deaf = ask_and_never_read(&server, 20);
        server.submitted.recv().unwrap();
        let counts = server.counts.clone();
        assert!(!server.stop_and_join(), "{drain:?}: not all replies have left");
        assert_eq!(counts.buffers_live.load(SeqCst), 0, "{drain:?}");
        let left = std::io::copy(&mut deaf.stream, &mut std::io::sink());
        assert!(left.is_err() || left.is_ok_and(|bytes| bytes < 20 << 20), "{drain:?}: all replies came");
    }
}

#[test]
fn a_shutdown_is_bounded_even_if_the_export_is_stuck() {
    let limits = Limits { shutdown_timeout: Duration::from_millis(20), ..Limits::default() };
    let server = TestServer::with(Finish::OnRelease, info(), limits);
    let mut client = server.client(true);
    client.send(&request(0, 0, 1, 0, 4096));
    server.submitted.recv().unwrap();
    let counts = server.counts.clone();
    assert!(!server.stop_and_join());
    client.assert_closed();
    assert_eq!(counts.buffers_live.load(SeqCst), 0);
}
