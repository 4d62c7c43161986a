//! Members over TLS: GnuTLS's servers on the other side, and what goes wrong with certificates.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::process::Signal;
use uraid_tests::binary;
use uraid_tests::certificates::{Of, Valid};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::{Exports, Kind, fails, nbdkit, returns};

/// Its server is killed, and then hangs.
#[test]
fn a_member_over_tls_fails_and_returns_as_any_other() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Secure);
    exports.create();
    let deadlines = ["--read-deadline", "500ms", "--write-deadline", "1s"];
    let server = exports.serve_returning("500ms", &deadlines);
    let mut random = Random::new(103);
    let mut image = random.bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let mut client = server.connect();
    for (slot, signal) in [(1, Signal::KILL), (2, Signal::STOP)] {
        exports.servers[slot].signal(signal);
        for _ in 0..20 {
            let (offset, length) = random.sectors(image.len(), 256 << 10);
            let data = random.bytes(length);
            client.write(offset, &data);
            image[offset..offset + length].copy_from_slice(&data);
        }
        client.flush();
        fails(&exports.array, slot);
        if signal == Signal::STOP {
            exports.servers[slot].signal(Signal::CONT);
        } else {
            exports.restart(slot);
        }
        returns(&exports.array, slot);
    }
    client.disconnect();
    assert_same(&read_export(server.uri()), &image, "whole again");
    exports.stop_holding(server, &image, "brought up to date");
}

/// Ends every connection when it has agreed to encrypt it: a server that is being killed.
fn end_when_tls_begins(listener: &UnixListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
        // The client's flags, and its first option: STARTTLS.
        stream.read_exact(&mut [0; 4 + 16]).unwrap();
        stream.write_all(b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x05\0\0\0\x01\0\0\0\0").unwrap();
    }
}

#[test]
fn an_array_starts_without_a_server_that_dies_when_tls_begins() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Secure);
    exports.create();
    let server = exports.serve_array(&[]);
    let image = Random::new(104).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let _ = server.stop();
    exports.kill(1);
    std::fs::remove_file(exports.socket(1)).unwrap();
    let listener = UnixListener::bind(exports.socket(1)).unwrap();
    // It ends with the test's process.
    std::thread::spawn(move || end_when_tls_begins(&listener));
    let refused = Server::refused(&exports.array, &exports.uris, &[]).stderr;
    assert!(refused.contains("agree on TLS with") && refused.contains("--degraded"), "{refused}");
    let server = exports.serve_array(&["--degraded"]);
    assert_same(&read_export(server.uri()), &image, "without it");
    let _ = server.stop();
}

#[test]
fn who_does_not_prove_itself_is_refused_by_name_and_nothing_is_written() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Secure);
    exports.certified.issue("expired", Of::Client, Valid::Before, 3);
    exports.certified.issue_by_another("stranger", "stranger");
    let with = |more: &str| PathBuf::from(format!("{}{more}", exports.uri(2, "client").display()));
    let directory = tempfile::tempdir().unwrap();
    let (_open, plain) = nbdkit(directory.path(), "open", &["memory", "32M"]);
    let certificates = exports.certified.path("client");
    let plain = plain.to_str().unwrap().replacen("nbd", "nbds", 1);
    let cases = [
        (exports.uri(2, "stranger"), "TLS was not established: invalid peer certificate: UnknownIssuer"),
        (exports.uri(2, "expired"), "client-cert.pem has expired"),
        (exports.uri(2, "nowhere"), "ca-cert.pem"),
        // The server wants to know who it is.
        (exports.uri(2, "anonymous"), "it may want a certificate that it knows"),
        (with("&tls-hostname=elsewhere"), "not valid for name"),
        (with("&tls-hostname=%20"), "no certificate can be for ' '"),
        (format!("{plain}&tls-certificates={}", certificates.display()).into(), "the server does not offer TLS"),
    ];
    for (uri, expected) in cases {
        let mut arguments = vec![PathBuf::from("create"), "--level".into(), "5".into()];
        arguments.extend(exports.uris[..2].iter().cloned().chain([uri.clone()]));
        let refused = binary::uraid(arguments).code_is(1).stderr;
        assert!(refused.contains(expected) && refused.contains(uri.to_str().unwrap()), "{expected}: {refused}");
    }
    for member in exports.array.members() {
        assert!(std::fs::read(member).unwrap().iter().all(|byte| *byte == 0), "nothing is written");
    }
    let plain = uri_without_tls(&exports);
    let refused = binary::uraid(["examine".into(), plain]).code_is(1).stderr;
    assert!(refused.contains("the server requires TLS"), "{refused}");
}

fn uri_without_tls(exports: &Exports) -> PathBuf {
    super::uri(&exports.socket(0))
}
