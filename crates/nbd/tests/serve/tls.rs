//! A server that requires TLS, and clients that do it well, badly or not at all.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
    crypto::ring::default_provider, pki_types::CertificateDer, version,
};
use uraid_nbd::{Limits, Tls, TlsClients};

use crate::{
    memory::{Finish, info},
    support::{GREETING, TestServer, assert_closed, request},
};

const STARTTLS: &[u8] = b"IHAVEOPT\0\0\0\x05\0\0\0\0";
const ACKNOWLEDGED: &[u8] = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x05\0\0\0\x01\0\0\0\0";

struct Secure {
    server: TestServer,
    certificate: CertificateDer<'static>,
}

impl Secure {
    fn start(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = directory.path().join("server-key.pem");
        std::fs::write(directory.path().join("server-cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let tls = Tls::load(directory.path(), TlsClients::All).unwrap();
        let server = TestServer::with_tls(Finish::AtOnce, info(), limits, Some(tls));
        Self { server, certificate: made.cert.der().clone() }
    }

    /// A client whom the server has allowed to start TLS.
    fn acknowledged(&self) -> UnixStream {
        let mut stream = self.server.connect();
        assert_eq!(take(&mut stream, GREETING.len()), GREETING);
        stream.write_all(&[b"\0\0\0\x03", STARTTLS].concat()).unwrap();
        assert_eq!(take(&mut stream, ACKNOWLEDGED.len()), ACKNOWLEDGED);
        stream
    }

    /// A client in TLS and in the transmission phase.
    fn client(&self, version: &'static SupportedProtocolVersion) -> StreamOwned<ClientConnection, UnixStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        let mut client = StreamOwned::new(connection, self.acknowledged());
        client.write_all(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0").unwrap();
        assert_eq!(take(&mut client, 32 + 20)[44..], [0, 0, 0, 1, 0, 0, 0, 0]);
        client
    }

    /// Shows that the server still takes clients, and ends it.
    fn assert_serves(self) {
        let mut client = self.client(&version::TLS13);
        client.write_all(&request(0, 3, 7, 0, 0)).unwrap();
        assert_eq!(take(&mut client, 16)[4..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        drop(client);
        assert!(self.server.stop_and_join());
    }
}

fn take(stream: &mut impl Read, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Requests that are larger than TLS's records and than all buffers, in both directions at once.
#[test]
fn data_come_back_as_they_were_written() {
    let secure = Secure::start(Limits::default());
    for version in [&version::TLS12, &version::TLS13] {
        let mut client = secure.client(version);
        let data: Vec<u8> = (0..1 << 20).map(|index: u32| ((index * 7) >> 4) as u8).collect();
        for cookie in 0..4 {
            client.write_all(&[request(0, 1, cookie, 0, 1 << 20), data.clone()].concat()).unwrap();
            assert_eq!(take(&mut client, 16)[..8], *b"\x67\x44\x66\x98\0\0\0\0");
        }
        let reads: Vec<u8> = (0..8).flat_map(|cookie| request(0, 0, cookie, 0, 1 << 20)).collect();
        client.write_all(&reads).unwrap();
        for _ in 0..8 {
            assert_eq!(take(&mut client, 16)[..8], *b"\x67\x44\x66\x98\0\0\0\0");
            assert!(take(&mut client, data.len()) == data);
        }
    }
    secure.assert_serves();
}

/// The protocol document, "Terminating the transmission phase": the server closes the TLS session first.
#[test]
fn a_disconnect_is_answered_with_the_end_of_tls() {
    let secure = Secure::start(Limits::default());
    let mut client = secure.client(&version::TLS13);
    client.write_all(&[request(0, 3, 1, 0, 0), request(0, 2, 2, 0, 0)].concat()).unwrap();
    assert_eq!(take(&mut client, 16)[12..], [0, 0, 0, 1]);
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "without the end of TLS this is an error");
    secure.assert_serves();
}

#[test]
fn what_is_not_tls_ends_the_connection() {
    let secure = Secure::start(Limits::default());
    let unknown_version = b"\x16\x09\x09\0\x05hello".to_vec();
    let too_long = b"\x16\x03\x01\xff\xff".to_vec();
    let endless_hello = [&b"\x16\x03\x01\x40\0\x01\xff\xff\xff"[..], &[0; 0x4000 - 4]].concat();
    for garbage in [vec![0xff; 100], STARTTLS.to_vec(), unknown_version, too_long, endless_hello] {
        let mut client = secure.acknowledged();
        client.write_all(&garbage).unwrap();
        // There may be an alert before the end.
        let mut rest = Vec::new();
        let end = client.read_to_end(&mut rest);
        assert!(end.is_ok_and(|_| rest.len() < 64) || rest.is_empty(), "{:?}", &garbage[..5]);
    }
    secure.assert_serves();
}

#[test]
fn what_follows_the_request_for_tls_in_the_clear_ends_the_connection() {
    let secure = Secure::start(Limits::default());
    let mut client = secure.server.connect();
    assert_eq!(take(&mut client, GREETING.len()), GREETING);
    client.write_all(&[b"\0\0\0\x03", STARTTLS, b"IHAVEOPT\0\0\0\x08\0\0\0\0"].concat()).unwrap();
    assert_closed(&mut client);
    secure.assert_serves();
}

#[test]
fn a_client_that_stalls_in_the_handshake_of_tls_is_disconnected() {
    let secure = Secure::start(Limits { handshake_timeout: Duration::from_secs(1), ..Limits::default() });
    for beginning in [&b""[..], b"\x16\x03\x01\x02\0\x01\0"] {
        let mut client = secure.acknowledged();
        client.write_all(beginning).unwrap();
        assert_closed(&mut client);
    }
    secure.server.stop_and_join();
}

#[test]
fn a_connection_that_is_cut_anywhere_ends_alone() {
    let secure = Secure::start(Limits::default());
    let mut other = secure.client(&version::TLS12);
    // In the handshake of TLS, in a record, and between two records without the end of TLS.
    secure.acknowledged().write_all(b"\x16\x03\x01\x02\0\x01\0").unwrap();
    let mut cut = secure.client(&version::TLS13);
    cut.sock.write_all(b"\x17\x03\x03\x40\0half").unwrap();
    drop(cut);
    let mut cut = secure.client(&version::TLS13);
    cut.write_all(&[request(0, 1, 1, 0, 1 << 20), vec![1; 1 << 19]].concat()).unwrap();
    drop(cut);
    let mut falsified = secure.client(&version::TLS13);
    falsified.sock.write_all(b"\x17\x03\x03\0\x20this was not encrypted by the client").unwrap();
    assert!(matches!(falsified.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::InvalidData));
    other.write_all(&request(0, 0, 1, 0, 4096)).unwrap();
    assert_eq!(take(&mut other, 16 + 4096)[16..], [0; 4096], "half a write is none");
    drop(other);
    secure.assert_serves();
}

#[test]
fn replies_that_nobody_takes_end_with_the_server() {
    let secure = Secure::start(Limits { shutdown_timeout: Duration::from_millis(100), ..Limits::default() });
    let mut client = secure.client(&version::TLS13);
    let reads: Vec<u8> = (0..32).flat_map(|cookie| request(0, 0, cookie, 0, 1 << 20)).collect();
    client.write_all(&reads).unwrap();
    (0..32).for_each(|_| secure.server.submitted.recv().unwrap());
    assert!(!secure.server.stop_and_join(), "not all replies are sent");
}
