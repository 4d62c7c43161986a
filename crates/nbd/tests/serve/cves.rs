//! What has brought down other NBD servers: the pattern of each known CVE, and a server that serves on.
//!
//! Two of them have their tests elsewhere, too: CVE-2021-3716, bytes in the clear behind STARTTLS, in
//! `handshake::nothing_in_the_clear_may_follow_starttls`, and CVE-2025-47711, block status of more than 32 bits, in
//! `transmission`.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::atomic::Ordering::SeqCst,
    time::Duration,
};

use uraid_nbd::Limits;

use crate::{
    memory::{Finish, SIZE_BYTES, info},
    support::{GREETING, Reply, TestServer, assert_closed, extended_request, request},
};

const CLIENT_FLAGS: &[u8] = b"\0\0\0\x03";
const GO: u32 = 7;
const INFO: u32 = 6;

/// A server that does not end handshakes because they take long.
fn patient(connections_max: usize) -> TestServer {
    let limits = Limits { connections_max, handshake_timeout: Duration::from_secs(3600), ..Limits::default() };
    TestServer::with(Finish::AtOnce, info(), limits)
}

/// `IHAVEOPT | option 32 | length 32 | data`, whatever the length says.
fn option(option: u32, length_bytes: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &length_bytes.to_be_bytes(), data].concat()
}

/// A connection whose greeting has been read.
fn greeted(server: &TestServer) -> UnixStream {
    let mut stream = server.connect();
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(greeting, GREETING);
    stream
}

/// The type of a reply to an option.
fn reply_kind(stream: &mut UnixStream) -> u32 {
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    std::io::copy(&mut stream.take(field(16).into()), &mut std::io::sink()).unwrap();
    field(12)
}

/// nbd-server, CVE-2005-3534: a request is longer than the server's buffer, which it overruns.
#[test]
fn cve_2005_3534_requests_that_are_longer_than_any_buffer() {
    let server = TestServer::start(Finish::AtOnce);
    let mut client = server.client(true);
    for length in [(4 << 20) + 512, 64 << 20, 1 << 31, u32::MAX] {
        client.send(&request(0, 0, 1, 0, length));
        assert_eq!(client.reply(), Reply::error(1, 22), "a read of {length}");
    }
    for length in [(4 << 20) + 512, 64 << 20] {
        client.send(&[request(0, 1, 2, 0, length), vec![0xff; length as usize]].concat());
        assert!(matches!(client.reply(), Reply::Chunk { kind: 0x8001, .. }), "a write of {length}");
    }
    for length in [(64 << 20) + 1, 1 << 31, u32::MAX] {
        let mut client = server.client(false);
        client.send(&request(0, 1, 3, 0, length));
        client.assert_closed();
    }
    assert_eq!(server.counts.bytes_max.load(SeqCst), 0, "no buffer was made for any of them");
    client.assert_alive();
}

/// nbd-server, CVE-2013-7441: a client leaves, or says something unknown, in the handshake, and the process that
/// accepts connections ends with it.
#[test]
fn cve_2013_7441_clients_that_leave_in_the_handshake() {
    let server = TestServer::start(Finish::AtOnce);
    let conversation = [CLIENT_FLAGS, &option(99, 3, b"abc"), &option(3, 0, b""), &option(GO, 6, &[0; 6])].concat();
    for length in 0..conversation.len() {
        let mut stream = server.connect();
        // The server may have ended the connection before all was sent, and what it said is lost to who does not read.
        let _ = stream.write_all(&conversation[..length]);
        let _ = stream.shutdown(if length % 2 == 0 { Shutdown::Both } else { Shutdown::Write });
        drop(stream);
        // Others have heard everything until then, and wait for the server's end.
        let mut stream = greeted(&server);
        stream.write_all(&conversation[..length]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    }
    server.client(true).assert_alive();
    assert!(server.stop_and_join());
}

/// nbd-server, CVE-2015-0847: connections end while the server is busy with the end of others, in a signal handler that
/// may not do what it does.
#[test]
fn cve_2015_0847_many_connections_end_at_once() {
    let server = TestServer::start(Finish::Later);
    let mut bystander = server.client(true);
    for _ in 0..8 {
        let mut clients: Vec<_> = (0..48).map(|index| server.client(index % 2 == 0)).collect();
        for client in &mut clients {
            client.send(&(0..4).flat_map(|cookie| request(0, 0, cookie, 0, 4096)).collect::<Vec<_>>());
        }
        drop(clients);
        bystander.assert_alive();
    }
    assert!(server.stop_and_join());
}

/// nbd-server, CVE-2022-26495: room is made for the length of a name and one more, which is none for 0xffffffff.
#[test]
fn cve_2022_26495_lengths_of_names_that_wrap() {
    let server = TestServer::start(Finish::AtOnce);
    for number in [INFO, GO, 9, 10] {
        let mut stream = greeted(&server);
        stream.write_all(&[CLIENT_FLAGS, &option(8, 0, b"")].concat()).unwrap();
        assert_eq!(reply_kind(&mut stream), 1);
        for name_bytes in [u32::MAX, u32::MAX - 1, 1 << 31, 0x7fff_ffff] {
            let data = [&name_bytes.to_be_bytes()[..], b"mem\0\0"].concat();
            stream.write_all(&option(number, data.len() as u32, &data)).unwrap();
            assert_eq!(reply_kind(&mut stream), 0x8000_0003, "option {number} with a name of {name_bytes}");
        }
        // The same of a query, and of the number of queries.
        for data in [b"\0\0\0\0\0\0\0\x01\xff\xff\xff\xffb", b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0"] {
            stream.write_all(&option(number, data.len() as u32, data)).unwrap();
            assert_eq!(reply_kind(&mut stream), 0x8000_0003, "option {number}");
        }
    }
    server.client(true).assert_alive();
}

/// nbd-server, CVE-2022-26496: a name that is longer than its buffer on the stack.
#[test]
fn cve_2022_26496_names_that_are_longer_than_any() {
    let server = patient(64);
    for (length, expected) in [(4096, 0x8000_0006), (16 << 10, 0x8000_0009), (1 << 20, 0x8000_0009)] {
        let name = vec![b'a'; length];
        let data = [&(length as u32).to_be_bytes()[..], &name, &[0, 0]].concat();
        let mut stream = greeted(&server);
        let option = option(GO, data.len() as u32, &data);
        if length == 1 << 20 {
            stream.write_all(&[CLIENT_FLAGS, &option[..64]].concat()).unwrap();
            assert_closed(&mut stream);
            continue;
        }
        stream.write_all(&[CLIENT_FLAGS, &option].concat()).unwrap();
        assert_eq!(reply_kind(&mut stream), expected, "a name of {length} bytes");
    }
    server.client(true).assert_alive();
}

/// QEMU, CVE-2017-7539: what nobody expects in the handshake meets a connection that is not ready for requests.
#[test]
fn cve_2017_7539_requests_in_the_handshake() {
    let server = TestServer::start(Finish::AtOnce);
    for early in [request(0, 0, 1, 0, 4096), request(0, 2, 1, 0, 0), extended_request(0, 0, 1, 0, 4096)] {
        let mut stream = greeted(&server);
        stream.write_all(&[CLIENT_FLAGS, &early].concat()).unwrap();
        assert_closed(&mut stream);
        let mut stream = greeted(&server);
        stream.write_all(&early).unwrap();
        assert_closed(&mut stream);
    }
    assert_eq!(server.counts.submits.load(SeqCst), 0);
    server.client(true).assert_alive();
}

/// QEMU, CVE-2017-9524: a client is gone before the server has got itself ready for it.
#[test]
fn cve_2017_9524_clients_that_are_gone_at_once() {
    let server = TestServer::start(Finish::AtOnce);
    for _ in 0..200 {
        drop(server.connect());
        let mut stream = server.connect();
        let _ = stream.write_all(&[CLIENT_FLAGS, &option(GO, 6, &[0; 6])[..9]].concat());
    }
    server.client(true).assert_alive();
    assert!(server.stop_and_join());
}

/// QEMU, CVE-2017-15119: options that declare gigabytes keep the server reading.
#[test]
fn cve_2017_15119_options_that_declare_gigabytes() {
    let server = patient(64);
    for number in [1, 2, 3, 5, INFO, GO, 8, 9, 10, 11, 99] {
        let mut stream = greeted(&server);
        stream.write_all(&[CLIENT_FLAGS, &option(number, u32::MAX, &[0; 512])].concat()).unwrap();
        assert_closed(&mut stream);
    }
    // Nor is it enough to send many that are skipped.
    let mut stream = greeted(&server);
    let skipped = option(99, 16 << 10, &[0; 16 << 10]).repeat(65);
    let _ = stream.write_all(&[CLIENT_FLAGS, &skipped].concat());
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest); // replies to what came before the limit, unless the end overtook them
    assert!(rest.len() <= 64 * 64);
    server.client(true).assert_alive();
}

/// QEMU, CVE-2024-7409: the server stops while clients are in their handshakes, or those take all the room there is.
#[test]
fn cve_2024_7409_a_stop_amid_handshakes() {
    let server = patient(8);
    let beginnings: [&[u8]; 4] = [b"", b"\0\0", CLIENT_FLAGS, b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0"];
    let mut half_open: Vec<_> = beginnings
        .iter()
        .cycle()
        .take(32)
        .map(|beginning| {
            let mut stream = server.connect();
            let _ = stream.write_all(beginning); // those who came first give way
            stream
        })
        .collect();
    server.client(true).assert_alive();
    assert!(server.stop_and_join(), "nobody has to be waited for");
    for stream in &mut half_open {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        let is_closed = end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(is_closed && rest.len() <= GREETING.len(), "after {rest:?}");
    }
}

/// nbdkit, CVE-2019-14850: a connection without a word makes the server do expensive things.
#[test]
fn cve_2019_14850_connections_that_say_nothing_cost_nothing() {
    let server = TestServer::start(Finish::AtOnce);
    for _ in 0..64 {
        let mut stream = greeted(&server);
        stream.write_all(CLIENT_FLAGS).unwrap();
        drop(stream);
    }
    let mut client = server.client(true);
    assert_eq!((server.counts.submits.load(SeqCst), server.counts.kicks.load(SeqCst)), (0, 0));
    assert_eq!(server.counts.bytes_max.load(SeqCst), 0);
    client.assert_alive();
}

/// nbdkit, CVE-2019-14851: questions about an export, before another one is chosen, or again, fail an assertion.
#[test]
fn cve_2019_14851_questions_before_the_choice() {
    let server = TestServer::start(Finish::AtOnce);
    let mut stream = greeted(&server);
    stream.write_all(CLIENT_FLAGS).unwrap();
    let about = |number, name: &[u8]| {
        let data = [&(name.len() as u32).to_be_bytes()[..], name, &[0, 1, 0, 3]].concat();
        option(number, data.len() as u32, &data)
    };
    for _ in 0..2 {
        for (number, name, replies) in [
            (INFO, &b"mem"[..], &[3, 3, 1][..]),
            (INFO, b"other", &[0x8000_0006]),
            (GO, b"other", &[0x8000_0006]),
            (INFO, b"", &[3, 3, 1]),
        ] {
            stream.write_all(&about(number, name)).unwrap();
            replies.iter().for_each(|&kind| assert_eq!(reply_kind(&mut stream), kind, "{number} {name:?}"));
        }
    }
    stream.write_all(&about(GO, b"mem")).unwrap();
    [3, 3, 1].iter().for_each(|&kind| assert_eq!(reply_kind(&mut stream), kind));
    stream.write_all(&request(0, 3, 7, 0, 0)).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..8], *b"\x67\x44\x66\x98\0\0\0\0");
}

/// nbdkit, CVE-2025-47711: a status is asked of nearly all that 32 bits can say, or of more, and there is one extent.
#[test]
fn cve_2025_47711_the_status_of_everything_at_once() {
    let server = TestServer::start(Finish::AtOnce);
    let mut client = server.client(true);
    client.send(&request(0, 7, 1, 0, SIZE_BYTES as u32));
    let whole = [&[0, 0, 0, 1][..], &(SIZE_BYTES as u32).to_be_bytes(), &[0, 0, 0, 3]].concat();
    assert_eq!(client.reply(), Reply::Chunk { flags: 1, kind: 5, cookie: 1, payload: whole });
    for length in [u32::MAX, u32::MAX - 511, 1 << 31] {
        client.send(&request(0, 7, 2, 0, length));
        assert_eq!(client.reply(), Reply::error(2, 22), "{length} bytes");
    }
    client.assert_alive();
    let mut client = server.extended_client();
    for length in [u64::MAX, 1 << 63, 1 << 32] {
        client.send(&extended_request(0, 7, 3, 0, length));
        assert_eq!(client.reply(), Reply::extended(0x8001, 3, 0, &[0, 0, 0, 22, 0, 0]), "{length} bytes");
    }
}
