//! Requests and their replies.

use std::sync::atomic::Ordering::SeqCst;

use crate::{
    memory::{Finish, SIZE_BYTES, info},
    support::{Reply, TestServer, extended_request, request},
};
use uraid_nbd::{ExportInfo, Limits};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 7 + index / 512) as u8).collect()
}

#[test]
fn data_come_back_in_every_form_of_reply() {
    for finish in [Finish::AtOnce, Finish::Later, Finish::Reversed] {
        let server = TestServer::start(finish);
        let data = pattern(3 << 20);
        let length = data.len() as u32;
        let mut client = server.client(true);
        client.send(&[&request(1, 1, 1, 512, length)[..], &data].concat());
        assert_eq!(client.reply(), Reply::done(1));
        client.send(&request(0, 0, 2, 512, length));
        assert_eq!(client.reply(), Reply::data(2, 512, &data));
        let mut simple = server.client(false);
        simple.send(&request(0, 0, 3, 512, length));
        assert_eq!(simple.receive(16), b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x03");
        assert_eq!(simple.receive(data.len()), data);
        let mut extended = server.extended_client();
        let data = pattern(2 << 20);
        extended.send(&[extended_request(32, 1, 4, 1024, data.len() as u64), data.clone()].concat());
        assert_eq!(extended.reply(), Reply::extended(0, 4, 1024, &[]));
        extended.send(&extended_request(4, 0, 5, 1024, data.len() as u64));
        let chunk = [&1024u64.to_be_bytes()[..], &data].concat();
        assert_eq!(extended.reply(), Reply::extended(1, 5, 1024, &chunk));
        assert!(server.stop_and_join());
    }
}

#[test]
fn many_small_writes_arrive_whole_wherever_the_reads_cut_them() {
    let server = TestServer::start(Finish::Later);
    let mut client = server.client(true);
    let data = pattern(2 << 20);
    let mut sender = client.stream.try_clone().unwrap();
    let stream: Vec<u8> = (data.chunks(1536).enumerate())
        .flat_map(|(index, chunk)| {
            [request(0, 1, index as u64, index as u64 * 1536, chunk.len() as u32), chunk.to_vec()].concat()
        })
        .collect();
    let sending = std::thread::spawn(move || std::io::Write::write_all(&mut sender, &stream).unwrap());
    let mut answered: Vec<_> = data.chunks(1536).map(|_| client.reply().cookie()).collect();
    sending.join().unwrap();
    answered.sort_unstable();
    assert!(answered.into_iter().eq(0..data.chunks(1536).count() as u64));
    client.send(&request(4, 0, 9, 0, 2 << 20));
    assert_eq!(client.reply(), Reply::data(9, 0, &data));
}

#[test]
fn one_send_of_many_requests_is_one_batch() {
    let server = TestServer::start(Finish::Reversed);
    let mut client = server.client(true);
    client.send(&(0..32).flat_map(|cookie| request(0, 0, cookie, cookie * 4096, 4096)).collect::<Vec<_>>());
    let answered: Vec<_> = (0..32).map(|_| client.reply().cookie()).collect();
    assert!(answered.into_iter().eq((0..32).rev()), "replies leave in the order in which the export finished");
    assert_eq!(server.counts.submits.load(SeqCst), 32);
    assert_eq!(server.counts.kicks.load(SeqCst), 1);
}

#[test]
fn refused_requests_leave_the_connection_alive() {
    let server = TestServer::start(Finish::AtOnce);
    let mut client = server.client(true);
    let cases = [
        ("unaligned read", (0, 0, 100, 512), 22),
        ("read across the end", (0, 0, SIZE_BYTES - 512, 1024), 22),
        ("write across the end", (0, 1, SIZE_BYTES - 512, 1024), 28),
        ("oversized read", (0, 0, 0, (4 << 20) + 512), 22),
        ("oversized read in one piece", (4, 0, 0, (4 << 20) + 512), 75),
        ("oversized write", (0, 1, 0, (4 << 20) + 512), 22),
        ("the largest write that is skipped", (0, 1, 0, 64 << 20), 28),
        ("unknown command", (0, 42, 0, 512), 22),
        ("fast zeroes that would be slow", (16 | 2, 6, 0, 512), 95),
    ];
    for (cookie, (name, (flags, kind, offset, length), error)) in cases.into_iter().enumerate() {
        let data = if kind == 1 { pattern(length as usize) } else { vec![] };
        client.send(&[request(flags, kind, cookie as u64, offset, length), data].concat());
        assert_eq!(client.reply(), Reply::error(cookie as u64, error), "{name}");
        client.assert_alive();
    }
    assert_eq!(server.counts.buffers_live.load(SeqCst), 0, "nothing is allocated for what is refused");
}

#[test]
fn read_only_exports_refuse_writes() {
    let server = TestServer::with(Finish::AtOnce, ExportInfo { read_only: true, ..info() }, Limits::default());
    let mut client = server.client(true);
    client.send(&[request(0, 1, 1, 0, 4096), pattern(4096)].concat());
    assert_eq!(client.reply(), Reply::error(1, 1));
    client.send(&request(0, 6, 2, 0, 4096));
    assert_eq!(client.reply(), Reply::error(2, 1));
    client.send(&request(0, 0, 3, 0, 512));
    assert_eq!(client.reply(), Reply::data(3, 0, &[0; 512]));
}

#[test]
fn block_status_and_zeroes() {
    let server = TestServer::start(Finish::AtOnce);
    let mut client = server.client(true);
    client.send(&[request(0, 1, 1, 4096, 8192), vec![1; 8192]].concat());
    assert_eq!(client.reply(), Reply::done(1));
    client.send(&request(0, 6, 2, 8192, 4096));
    assert_eq!(client.reply(), Reply::done(2));
    client.send(&request(0, 7, 3, 0, 16384));
    let extents = b"\0\0\0\x01\0\0\x10\0\0\0\0\x03\0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\0\x03".to_vec();
    assert_eq!(client.reply(), Reply::Chunk { flags: 1, kind: 5, cookie: 3, payload: extents.clone() });
    client.send(&request(8, 7, 4, 0, 16384));
    assert_eq!(client.reply(), Reply::Chunk { flags: 1, kind: 5, cookie: 4, payload: extents[..12].to_vec() });
    let mut simple = server.client(false);
    simple.send(&request(0, 7, 5, 0, 512));
    assert_eq!(simple.reply(), Reply::Simple { error: 22, cookie: 5 }, "no context was selected");
}

#[test]
fn block_status_with_extended_headers() {
    let server = TestServer::start(Finish::AtOnce);
    let mut client = server.extended_client();
    client.send(&[extended_request(32, 1, 1, 4096, 4096), vec![1; 4096]].concat());
    assert_eq!(client.reply(), Reply::extended(0, 1, 4096, &[]));
    // Context 1, two extents: 4 KiB of a hole of zeroes, 4 KiB of data.
    let payload = b"\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0";
    client.send(&extended_request(0, 7, 2, 0, 8192));
    assert_eq!(client.reply(), Reply::extended(6, 2, 0, payload));
    client.send(&[&extended_request(32, 7, 3, 0, 12)[..], &8192u64.to_be_bytes(), &[0, 0, 0, 1]].concat());
    assert_eq!(client.reply(), Reply::extended(6, 3, 0, payload));
    client.send(&[&extended_request(32, 7, 4, 0, 12)[..], &8192u64.to_be_bytes(), &[0, 0, 0, 2]].concat());
    assert_eq!(client.reply(), Reply::extended(0x8001, 4, 0, &[0, 0, 0, 22, 0, 0]));
    client.send(&extended_request(0, 5, 5, 512, SIZE_BYTES - 512));
    assert_eq!(client.reply(), Reply::extended(0, 5, 512, &[]));
}

#[test]
fn payloads_that_no_command_wants_are_skipped() {
    let server = TestServer::start(Finish::AtOnce);
    let mut client = server.extended_client();
    let cases = [
        ("write without one", (0, 1, 4096), 22),
        ("read with one", (32, 0, 4096), 22),
        ("trim with a long one", (32, 4, 3 << 20), 22),
        ("status with the longest one", (32, 7, 64 << 20), 22),
    ];
    for (cookie, (name, (flags, kind, length), error)) in (1..).zip(cases) {
        let payload = if flags == 32 { vec![0x21; length as usize] } else { vec![] };
        client.send(&[extended_request(flags, kind, cookie, 512, length), payload].concat());
        assert_eq!(client.reply(), Reply::extended(0x8001, cookie, 512, &[0, 0, 0, error, 0, 0]), "{name}");
        client.send(&extended_request(0, 3, cookie, 0, 0));
        assert_eq!(client.reply(), Reply::extended(0, cookie, 0, &[]), "after a {name}");
    }
    client.send(&extended_request(32, 4, 9, 0, (64 << 20) + 1));
    client.assert_closed();
    let mut client = server.extended_client();
    client.send(&request(0, 3, 0, 0, 0));
    client.assert_closed(); // compact, where extended ones were agreed on
    assert_eq!(server.counts.buffers_live.load(SeqCst), 0);
}

#[test]
fn a_disconnect_waits_for_replies() {
    let server = TestServer::start(Finish::OnRelease);
    let mut client = server.client(true);
    client.send(&[request(0, 0, 1, 0, 512), request(0, 2, 0, 0, 0)].concat());
    server.submitted.recv().unwrap();
    server.release();
    assert_eq!(client.reply(), Reply::data(1, 0, &[0; 512]));
    client.assert_closed();
}

#[test]
fn a_stream_out_of_step_ends_only_its_own_connection() {
    let server = TestServer::start(Finish::AtOnce);
    let mut bystander = server.client(true);
    let mut client = server.client(true);
    client.send(&[0x55; 28]);
    client.assert_closed();
    let mut client = server.client(true);
    client.send(&request(0, 1, 1, 0, (64 << 20) + 1));
    client.assert_closed();
    bystander.assert_alive();
}

#[test]
fn commands_before_the_stream_goes_wrong_are_kicked() {
    let server = TestServer::start(Finish::Reversed);
    let mut client = server.client(true);
    client.send(&[request(0, 1, 1, 0, 512), vec![9; 512], vec![0x55; 28]].concat());
    client.assert_closed();
    let counts = server.counts.clone();
    assert!(server.stop_and_join());
    assert_eq!((counts.submits.load(SeqCst), counts.kicks.load(SeqCst)), (1, 1));
    assert_eq!(counts.buffers_live.load(SeqCst), 0);
}

/// A client that comes after another one has died is served when everything that one asked for has ended; whoever was
/// there before is served meanwhile.
#[test]
fn what_a_dead_client_asked_for_ends_before_its_successor_is_served() {
    let limits = Limits { requests_in_flight_max: 1, ..Limits::default() };
    let server = TestServer::with(Finish::OnRelease, info(), limits);
    let mut beside = server.client(true);
    let mut first = server.client(true);
    let write = |cookie, fill| [request(0, 1, cookie, 0, 4096), vec![fill; 4096]].concat();
    first.send(&[write(1, 1), write(2, 2)].concat());
    server.submitted.recv().unwrap();
    drop(first);
    let mut second = server.client(true);
    second.send(&write(3, 3));
    // Three more questions and answers: the server has looked at all sockets meanwhile.
    drop(server.client(true));
    assert!(server.submitted.try_recv().is_err(), "the first one's write is still under way");
    beside.send(&request(0, 0, 4, 8192, 512));
    server.submitted.recv().unwrap();
    server.release();
    assert_eq!(beside.reply(), Reply::data(4, 8192, &[0; 512]));
    // Nobody waits for an answer to the dead client's second write, and it is not begun any more.
    server.submitted.recv().unwrap();
    server.release();
    assert_eq!(second.reply(), Reply::done(3));
    second.send(&request(0, 0, 5, 0, 4096));
    server.submitted.recv().unwrap();
    server.release();
    assert_eq!(second.reply(), Reply::data(5, 0, &[3; 4096]));
    assert!(server.stop_and_join());
}
