//! Shutting a server down.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use uraid_nbd::Limits;

use crate::{
    memory::{Finish, info},
    support::{Reply, TestServer, request},
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
