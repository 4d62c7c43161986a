//! How fast clients may go on, and for how long they may ask for nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use uraid_nbd::{Drain, Limits, RateLimits, Rates};

use crate::{
    memory::{Finish, info},
    support::{Reply, TestServer, request},
};

const ESHUTDOWN: u8 = 108;

fn rates(operations_per_second: Option<u64>, bytes_per_second: Option<u64>) -> Arc<Rates> {
    Arc::new(Rates::new(RateLimits { operations_per_second, bytes_per_second }))
}

/// The server reads no further than the request that waits, of which it holds nothing.
#[test]
fn requests_wait_for_their_turns_in_the_socket() {
    for rates in [rates(Some(1), None), rates(None, Some(4096))] {
        let server = TestServer::paced(Finish::AtOnce, Limits::default(), Arc::clone(&rates));
        let mut client = server.client(true);
        let write = |cookie| [request(0, 1, cookie, cookie * 65536, 65536), vec![cookie as u8; 65536]].concat();
        client.send(&(0..3).flat_map(write).collect::<Vec<_>>());
        assert_eq!(client.reply(), Reply::done(0), "what there is of the first second is enough for one");
        // Flushes of others never wait.
        let mut other = server.client(true);
        (0..100).for_each(|_| other.assert_alive());
        assert!(server.counts.submits.load(SeqCst) < 103, "the other two would take seconds");
        assert_eq!(server.counts.buffers_live.load(SeqCst), 0, "of who waits nothing is in memory");
        rates.set(RateLimits::default());
        assert_eq!([client.reply(), client.reply()], [Reply::done(1), Reply::done(2)]);
        client.send(&request(0, 0, 9, 2 * 65536, 65536));
        assert_eq!(client.reply(), Reply::data(9, 2 * 65536, &[2; 65536]));
        assert!(rates.delayed() >= 1);
        assert!(server.stop_and_join());
    }
}

/// A shutdown waits for nobody's turn; who waits for one is told if that is wanted.
#[test]
fn who_waits_for_a_turn_holds_up_no_shutdown() {
    for drain in [Drain::Close, Drain::Refuse] {
        let limits = Limits { drain, ..Limits::default() };
        let server = TestServer::paced(Finish::AtOnce, limits, rates(Some(1), None));
        let mut client = server.client(true);
        client.send(&[request(0, 0, 1, 0, 512), request(0, 1, 2, 0, 512), vec![7; 512]].concat());
        client.send(&request(0, 0, 3, 0, 512));
        assert_eq!(client.reply(), Reply::data(1, 0, &[0; 512]));
        server.stop();
        if drain == Drain::Refuse {
            assert_eq!([client.reply(), client.reply()], [2, 3].map(|cookie| Reply::error(cookie, ESHUTDOWN)));
            client.send(&request(0, 2, 4, 0, 0));
        }
        client.assert_closed();
        let counts = Arc::clone(&server.counts);
        assert!(server.join());
        assert_eq!(counts.submits.load(SeqCst), 1);
    }
}

#[test]
fn clients_that_ask_for_nothing_are_disconnected_if_that_is_wanted() {
    let limits = Limits { idle_timeout: Some(Duration::from_secs(1)), ..Limits::default() };
    let server = TestServer::with(Finish::OnRelease, info(), limits);
    let (mut idle, mut waiting) = (server.client(true), server.client(true));
    waiting.send(&request(0, 0, 1, 0, 512));
    server.submitted.recv().unwrap();
    idle.assert_closed();
    server.release();
    assert_eq!(waiting.reply(), Reply::data(1, 0, &[0; 512]), "it waited for the server");
    waiting.assert_closed();
    assert!(server.stop_and_join());
}

#[test]
fn clients_that_go_on_are_not_idle() {
    let limits = Limits { idle_timeout: Some(Duration::from_secs(1)), ..Limits::default() };
    let server = TestServer::with(Finish::AtOnce, info(), limits);
    let (mut idle, mut busy) = (server.client(true), server.client(true));
    let is_closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ = scope.spawn(|| {
            idle.assert_closed();
            is_closed.store(true, SeqCst);
        });
        while !is_closed.load(SeqCst) {
            busy.assert_alive();
        }
    });
    busy.assert_alive();
    assert!(server.stop_and_join());
}
