//! As much of a client as a load generator needs: fixed newstyle with `NBD_OPT_GO`, requests, simple replies. Blocking.
//!
//! Written from the protocol document alone, and so independent of the server's own codec. It never asks for structured
//! replies, so a server may send simple ones only.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes; the data follows the header.
    Write,
    /// Makes everything durable that was written before.
    Flush,
}

/// Why a client can't go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection failed.
    #[error("{0}")]
    Io(String, #[source] io::Error),
    /// The server did something that the protocol does not allow, or refused.
    #[error("{0}")]
    Server(String),
}

/// A connection in transmission.
#[derive(Debug)]
pub struct Connection {
    /// The socket, after the handshake.
    pub stream: UnixStream,
    /// Size of the export in bytes.
    pub size: u64,
}

type Result<T> = std::result::Result<T, ClientError>;

/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without its data.
pub const REPLY_BYTES: usize = 16;

const INIT_MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const FIXED_NEWSTYLE: u16 = 1;
/// `NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES`.
const CLIENT_FLAGS: u32 = 3;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const DISCONNECT: u16 = 2;
/// Longest option reply that is read: an error with its text, or an information.
const OPTION_REPLY_MAX: u32 = 64 << 10;
/// How long a silent server is waited for.
const SILENCE_MAX: Duration = Duration::from_secs(30);

impl Connection {
    /// Connects to `socket` and negotiates `export`.
    ///
    /// # Errors
    /// If nobody listens, the server refuses, or it stays silent for 30 seconds. Such a silence is an error later, too.
    pub fn open(socket: &Path, export: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket).map_err(io(|| format!("can't connect to {}", socket.display())))?;
        let timeout = Some(SILENCE_MAX);
        let limited = stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout));
        limited.map_err(io(|| "can't limit how long to wait".into()))?;
        let size = negotiate(&mut &stream, export)?;
        Ok(Self { stream, size })
    }

    /// Makes everything durable that was written before. Nothing may be in flight.
    ///
    /// # Errors
    /// If the connection fails or the server answers with an error.
    pub fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&request(Operation::Flush, 0, 0, 0)).map_err(io(|| "can't send a flush".into()))?;
        let mut reply = [0; REPLY_BYTES];
        self.stream.read_exact(&mut reply).map_err(io(|| "no reply to a flush".into()))?;
        cookie(&reply).map(|_| ())
    }

    /// Ends the session. Nothing may be in flight.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn close(mut self) -> Result<()> {
        self.stream.write_all(&header(DISCONNECT, 0, 0, 0)).map_err(io(|| "can't disconnect".into()))
    }
}

/// Describes a failure of the connection.
fn io(what: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> ClientError {
    |error| ClientError::Io(what(), error)
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(ClientError::Server(what())) }
}

/// A request's header.
#[must_use]
pub fn request(operation: Operation, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let command = match operation {
        Operation::Read => 0,
        Operation::Write => 1,
        Operation::Flush => 3,
    };
    header(command, cookie, offset, length)
}

/// The cookie of a simple reply.
///
/// # Errors
/// If the server reports an error or sends something else.
pub fn cookie(reply: &[u8; REPLY_BYTES]) -> Result<u64> {
    let [m0, m1, m2, m3, e0, e1, e2, e3, cookie @ ..] = *reply;
    let magic = u32::from_be_bytes([m0, m1, m2, m3]);
    expect(magic == SIMPLE_REPLY_MAGIC, || format!("the server sent {magic:#010x} in place of a simple reply"))?;
    let error = u32::from_be_bytes([e0, e1, e2, e3]);
    expect(error == 0, || format!("the server answered a request with NBD error {error}"))?;
    Ok(u64::from_be_bytes(cookie))
}

fn header(command: u16, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The handshake up to transmission; returns the export's size in bytes.
fn negotiate(stream: &mut (impl Read + Write), export: &str) -> Result<u64> {
    let greeting: [u8; 18] = take(stream)?;
    let is_newstyle = greeting[..8] == *INIT_MAGIC && greeting[8..16] == *OPTION_MAGIC;
    expect(is_newstyle, || "this is no newstyle NBD server".into())?;
    let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
    expect(flags & FIXED_NEWSTYLE != 0, || "the server does not speak fixed newstyle".into())?;
    stream.write_all(&opening(export)?).map_err(io(|| "the server ended the handshake".into()))?;
    let mut size = None;
    loop {
        let magic = u64::from_be_bytes(take(stream)?);
        expect(magic == OPTION_REPLY_MAGIC, || "the server sent no reply to an option".into())?;
        let _option: [u8; 4] = take(stream)?;
        let kind = u32::from_be_bytes(take(stream)?);
        let length = u32::from_be_bytes(take(stream)?);
        expect(length <= OPTION_REPLY_MAX, || format!("the server replies with {length} bytes to an option"))?;
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data).map_err(io(|| "the server ended the handshake".into()))?;
        match kind {
            REPLY_ACK => return size.ok_or_else(|| ClientError::Server("the server told no size".into())),
            REPLY_INFO => size = size.or(export_size(&data)),
            _ => {
                let said = String::from_utf8_lossy(&data);
                return Err(ClientError::Server(format!("the server refused '{export}' with {kind:#010x}: {said}")));
            }
        }
    }
}

/// Client flags and `NBD_OPT_GO` for `export` without information requests.
fn opening(export: &str) -> Result<Vec<u8>> {
    let name = u32::try_from(export.len()).ok().filter(|&length| length <= 4096);
    let name = name.ok_or_else(|| ClientError::Server("an export's name has at most 4096 bytes".into()))?;
    let mut bytes = CLIENT_FLAGS.to_be_bytes().to_vec();
    bytes.extend_from_slice(OPTION_MAGIC);
    bytes.extend_from_slice(&OPTION_GO.to_be_bytes());
    bytes.extend_from_slice(&(4 + name + 2).to_be_bytes());
    bytes.extend_from_slice(&name.to_be_bytes());
    bytes.extend_from_slice(export.as_bytes());
    bytes.extend_from_slice(&[0; 2]);
    Ok(bytes)
}

/// The size in an `NBD_INFO_EXPORT`; `None` for other information.
fn export_size(data: &[u8]) -> Option<u64> {
    let (kind, rest) = data.split_first_chunk()?;
    let (size, _flags) = rest.split_first_chunk()?;
    (u16::from_be_bytes(*kind) == INFO_EXPORT).then(|| u64::from_be_bytes(*size))
}

fn take<const N: usize>(stream: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).map_err(io(|| "the server ended the handshake".into()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A server that has said all that it will say.
    struct Script {
        says: Cursor<Vec<u8>>,
        hears: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.says.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.hears.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn script(parts: &[&[u8]]) -> Script {
        Script { says: Cursor::new(parts.concat()), hears: Vec::new() }
    }

    const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";
    const BLOCK_SIZES: &[u8] =
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0e\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0";
    const ONE_GIBIBYTE: &[u8] =
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\x40\0\0\0\x01\x0d";
    const ACK: &[u8] = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0";
    const UNKNOWN: &[u8] = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x04gone";

    #[test]
    fn the_handshake_is_the_documents() {
        let mut server = script(&[GREETING, BLOCK_SIZES, ONE_GIBIBYTE, ACK]);
        assert_eq!(negotiate(&mut server, "bench").unwrap(), 1 << 30);
        assert_eq!(server.hears, b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x0b\0\0\0\x05bench\0\0");
    }

    #[test]
    fn a_refusal_is_told() {
        let error = negotiate(&mut script(&[GREETING, UNKNOWN]), "bench").unwrap_err().to_string();
        assert!(error.contains("0x80000006") && error.contains("gone"), "{error}");
    }

    #[test]
    fn other_servers_are_refused() {
        for says in [b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0".as_slice(), b"NBDMAGICIHAVEOPT\0\0", b"SSH-2.0"] {
            assert!(negotiate(&mut script(&[says]), "bench").is_err());
        }
        assert!(negotiate(&mut script(&[GREETING, ACK]), "bench").is_err(), "no size");
        let mut long = ACK.to_vec();
        long[16..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(negotiate(&mut script(&[GREETING, &long]), "bench").is_err(), "too long a reply");
    }

    #[test]
    fn requests_are_the_documents() {
        let bytes = request(Operation::Write, 0x0102, 0x1_0000_2000, 4096);
        assert_eq!(bytes, *b"\x25\x60\x95\x13\0\0\0\x01\0\0\0\0\0\0\x01\x02\0\0\0\x01\0\0\x20\0\0\0\x10\0");
        assert_eq!(request(Operation::Read, 0, 0, 0)[4..8], [0, 0, 0, 0]);
        assert_eq!(request(Operation::Flush, 0, 0, 0)[4..8], [0, 0, 0, 3]);
    }

    #[test]
    fn replies_carry_a_cookie_or_an_error() {
        assert_eq!(cookie(b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x2a").unwrap(), 42);
        let error = cookie(b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x2a").unwrap_err().to_string();
        assert!(error.contains("error 5"), "{error}");
        assert!(cookie(b"\x66\x8e\x33\xef\0\0\0\0\0\0\0\0\0\0\0\x2a").is_err());
    }
}
