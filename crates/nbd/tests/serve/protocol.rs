//! Rules of the protocol that show on a connection only. The others have their tests beside the codec; all are in
//! `docs/nbd-conformance.md`.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
};

use crate::{
    memory::{Finish, SIZE_BYTES},
    support::{GREETING, Reply, TestServer, extended_request, request},
};

/// A connection past greeting and client flags.
fn begun(server: &TestServer, client_flags: &[u8; 4]) -> UnixStream {
    let mut stream = server.connect();
    assert_eq!(take(&mut stream, GREETING.len()), GREETING);
    stream.write_all(client_flags).unwrap();
    stream
}

fn take(stream: &mut UnixStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// `3e889045565a9 | option 32 | type 32 | length 32 | data`
fn reply(option: u8, kind: u8, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0", &[option, 0, 0, 0, kind][..], &length, data].concat()
}

/// Size 64, and flags 16: has-flags, flush, fua, trim, write-zeroes, multi-conn, cache, fast-zero.
const EXPORT: &[u8] = b"\0\0\0\0\0\x80\0\0\x0d\x6d";

#[test]
fn the_old_way_into_transmission() {
    let server = TestServer::start(Finish::AtOnce);
    for (client_flags, zeroes) in [(b"\0\0\0\x01", 124), (b"\0\0\0\x03", 0), (b"\0\0\0\0", 124), (b"\0\0\0\x02", 0)] {
        let mut stream = begun(&server, client_flags);
        stream.write_all(&[b"IHAVEOPT\0\0\0\x01\0\0\0\x03mem", &request(0, 0, 1, 0, 512)[..]].concat()).unwrap();
        assert_eq!(take(&mut stream, EXPORT.len()), EXPORT);
        assert_eq!(take(&mut stream, zeroes), vec![0; zeroes]);
        assert_eq!(take(&mut stream, 16), b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01");
        assert_eq!(take(&mut stream, 512), [0; 512]);
    }
}

#[test]
fn options_that_are_sent_together_are_answered_in_order() {
    let server = TestServer::start(Finish::AtOnce);
    let mut stream = begun(&server, b"\0\0\0\x03");
    let options: [&[u8]; 4] = [
        b"IHAVEOPT\0\0\0\x03\0\0\0\0",
        b"IHAVEOPT\0\0\0\x08\0\0\0\0",
        b"IHAVEOPT\0\0\0\x06\0\0\0\x06\0\0\0\0\0\0",
        b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0",
    ];
    stream.write_all(&[&options.concat()[..], &request(0, 3, 9, 0, 0)].concat()).unwrap();
    let export = b"\0\0\0\0\0\0\0\x80\0\0\x0d\xed"; // with df
    let mut expected = [reply(3, 2, b"\0\0\0\x03memmemory of a test"), reply(3, 1, b""), reply(8, 1, b"")].concat();
    expected.extend([reply(6, 3, export), reply(6, 1, b""), reply(7, 3, export), reply(7, 1, b"")].concat());
    expected.extend(b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x09");
    assert_eq!(take(&mut stream, expected.len()), expected);
}

#[test]
fn abort_is_acknowledged_and_ends_the_connection() {
    let server = TestServer::start(Finish::AtOnce);
    let mut stream = begun(&server, b"\0\0\0\x03");
    stream.write_all(b"IHAVEOPT\0\0\0\x02\0\0\0\0").unwrap();
    assert_eq!(take(&mut stream, 20), reply(2, 1, b""));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed, in good order");
    // A client need not wait for the reply.
    let mut stream = begun(&server, b"\0\0\0\x03");
    stream.write_all(b"IHAVEOPT\0\0\0\x02\0\0\0\0").unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    server.client(true).assert_alive();
    assert!(server.stop_and_join());
}

#[test]
fn items_of_information_that_are_not_known_are_ignored() {
    let server = TestServer::start(Finish::AtOnce);
    let mut stream = begun(&server, b"\0\0\0\x03");
    // Items 77, 1, 65535, 1, 4, 16: of them there is 1, the name.
    let items = b"\0\x06\0\x4d\0\x01\xff\xff\0\x01\0\x04\0\x10";
    stream.write_all(&[&b"IHAVEOPT\0\0\0\x07\0\0\0\x12\0\0\0\0"[..], items].concat()).unwrap();
    let export = [&[0, 0], EXPORT].concat();
    let expected = [reply(7, 3, &export), reply(7, 3, b"\0\x01mem"), reply(7, 1, b"")].concat();
    assert_eq!(take(&mut stream, expected.len()), expected);
    stream.write_all(&request(0, 3, 1, 0, 0)).unwrap();
    assert_eq!(take(&mut stream, 16), b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01");
}

#[test]
fn requests_of_nothing_leave_the_connection_alive() {
    let server = TestServer::start(Finish::AtOnce);
    let (mut client, mut extended) = (server.client(true), server.extended_client());
    for kind in [0, 1, 4, 5, 6, 7] {
        for offset in [0, 512, SIZE_BYTES, u64::MAX] {
            client.send(&request(0, kind, 1, offset, 0));
            assert_eq!(client.reply(), Reply::error(1, 22), "command {kind} at {offset}");
            client.assert_alive();
            extended.send(&extended_request(if kind == 1 { 32 } else { 0 }, kind, 1, offset, 0));
            let error = Reply::extended(0x8001, 1, offset, &[0, 0, 0, 22, 0, 0]);
            assert_eq!(extended.reply(), error, "command {kind} at {offset}");
        }
    }
}
