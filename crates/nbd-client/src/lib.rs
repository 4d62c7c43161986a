//! As much of an NBD client as load generators and tests need: fixed newstyle with `NBD_OPT_GO`, requests, simple
//! replies. Blocking.
//!
//! Written from the protocol document alone, and so independent of the server's own codec. It never asks for structured
//! replies, so a server may send simple ones only; [`extended`] is another client, which has extended headers. Both
//! send whatever they are told to, right or wrong.

pub mod extended;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read = 0,
    /// Write; the data follows the header.
    Write = 1,
    /// End the connection.
    Disconnect = 2,
    /// Make what was acknowledged durable.
    Flush = 3,
    /// Discard.
    Trim = 4,
    /// Say that it will be read soon.
    Cache = 5,
    /// Write zeroes without sending them.
    WriteZeroes = 6,
    /// Ask what is there.
    BlockStatus = 7,
    /// No command of the protocol.
    Unknown = 0x7f,
}

/// Flags of a request.
pub mod flag {
    /// What it writes is durable when it is answered.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeroes are refused if to write them would take as long as to write data.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// NBD error numbers.
pub mod error {
    /// Operation not permitted: a write to a read-only export.
    pub const EPERM: u32 = 1;
    /// No memory for the request's data.
    pub const ENOMEM: u32 = 12;
    /// Invalid argument.
    pub const EINVAL: u32 = 22;
    /// A write beyond the end.
    pub const ENOSPC: u32 = 28;
    /// More than the server takes in one request.
    pub const EOVERFLOW: u32 = 75;
    /// Zeroes that would not be fast.
    pub const ENOTSUP: u32 = 95;
    /// The server is shutting down.
    pub const ESHUTDOWN: u32 = 108;
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

/// A reply to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request that it answers.
    pub cookie: u64,
    /// 0, or the NBD error number.
    pub error: u32,
    /// What a read returned.
    pub data: Vec<u8>,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    export: Export,
    next_cookie: u64,
    /// Of the reads in flight, by cookie.
    read_lengths: HashMap<u64, usize>,
    /// Of the last request.
    unsent: Vec<u8>,
}

/// What a server tells of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Export {
    size: Option<u64>,
    block_sizes: Option<[u32; 3]>,
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
const INFO_BLOCK_SIZE: u16 = 3;
/// Longest option reply that is read: an error with its text, or an information.
const OPTION_REPLY_MAX: u32 = 64 << 10;
/// How long a silent server is waited for.
const SILENCE_MAX: Duration = Duration::from_secs(60);

impl Client {
    /// Connects to `socket` and negotiates `export`.
    ///
    /// # Errors
    /// If nobody listens, the server refuses, or it stays silent for a minute. Such a silence is an error later, too.
    pub fn connect(socket: &Path, export: &str) -> Result<Self> {
        let stream = connect(socket)?;
        let export = negotiate(&mut &stream, export)?;
        Ok(Self { stream, export, next_cookie: 1, read_lengths: HashMap::new(), unsent: Vec::new() })
    }

    /// Bytes of the export.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.export.size.expect("the handshake has told it")
    }

    /// Smallest, preferred and largest request in bytes, if the server said.
    #[must_use]
    pub fn block_sizes(&self) -> Option<[u32; 3]> {
        self.export.block_sizes
    }

    /// The socket, for whoever sends [`request`]s and takes replies apart himself.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a request and returns its cookie; `payload` is what a write carries.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn submit(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> Result<u64> {
        self.submit_with(0, command, offset, length, payload)
    }

    /// As [`Client::submit`], with FUA: what it writes is durable when it is answered.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn submit_durable(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> Result<u64> {
        self.submit_with(flag::FUA, command, offset, length, payload)
    }

    /// As [`Client::submit`], with these [`flag`]s.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn submit_with(
        &mut self,
        flags: u16,
        command: Command,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Result<u64> {
        self.submit_part(flags, command, offset, length, payload, usize::MAX)
    }

    /// As [`Client::submit_with`], but sends only so many bytes of the request. [`Client::submit_rest`] has to be next
    /// of what sends anything.
    ///
    /// # Errors
    /// If the connection fails.
    ///
    /// # Panics
    /// If the last request has not been sent to its end.
    pub fn submit_part(
        &mut self,
        flags: u16,
        command: Command,
        offset: u64,
        length: u32,
        payload: &[u8],
        bytes: usize,
    ) -> Result<u64> {
        assert!(self.unsent.is_empty(), "requests come one after the other");
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        if command == Command::Read {
            self.read_lengths.insert(cookie, length as usize);
        }
        let mut message = header(flags, command, cookie, offset, length).to_vec();
        message.extend(payload);
        self.unsent = message.split_off(bytes.min(message.len()));
        self.stream.write_all(&message).map_err(io(|| format!("can't send a {command:?}")))?;
        Ok(cookie)
    }

    /// Sends what is left of a request that was sent in part.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn submit_rest(&mut self) -> Result<()> {
        let rest = std::mem::take(&mut self.unsent);
        self.stream.write_all(&rest).map_err(io(|| "can't send the rest of a request".into()))
    }

    /// Waits for the next reply, to whichever request.
    ///
    /// # Errors
    /// If the connection fails, is silent for too long, or does not speak NBD.
    pub fn reply(&mut self) -> Result<Reply> {
        let mut header = [0; REPLY_BYTES];
        self.stream.read_exact(&mut header).map_err(io(|| "no reply".into()))?;
        let (error, cookie) = answer(&header)?;
        let length = self.read_lengths.remove(&cookie).filter(|_| error == 0).unwrap_or(0);
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).map_err(io(|| "the server ended a reply".into()))?;
        Ok(Reply { cookie, error, data })
    }

    /// Makes everything durable that was written before. Nothing may be in flight.
    ///
    /// # Errors
    /// If the connection fails or the server answers with an error.
    pub fn flush(&mut self) -> Result<()> {
        self.submit(Command::Flush, 0, 0, &[])?;
        succeeded(self.reply()?.error)
    }

    /// Ends the session. Nothing may be in flight.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn disconnect(mut self) -> Result<()> {
        self.submit(Command::Disconnect, 0, 0, &[]).map(drop)
    }
}

/// A connection that fails when the server is silent for too long.
fn connect(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket).map_err(io(|| format!("can't connect to {}", socket.display())))?;
    let timeout = Some(SILENCE_MAX);
    let limited = stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout));
    limited.map_err(io(|| "can't limit how long to wait".into()))?;
    Ok(stream)
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
pub fn request(command: Command, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    header(0, command, cookie, offset, length)
}

/// The cookie of a simple reply.
///
/// # Errors
/// If the server reports an error or sends something else.
pub fn cookie(reply: &[u8; REPLY_BYTES]) -> Result<u64> {
    let (error, cookie) = answer(reply)?;
    succeeded(error).map(|()| cookie)
}

/// The error number and the cookie of a simple reply.
fn answer(reply: &[u8; REPLY_BYTES]) -> Result<(u32, u64)> {
    let [m0, m1, m2, m3, e0, e1, e2, e3, cookie @ ..] = *reply;
    let magic = u32::from_be_bytes([m0, m1, m2, m3]);
    expect(magic == SIMPLE_REPLY_MAGIC, || format!("the server sent {magic:#010x} in place of a simple reply"))?;
    Ok((u32::from_be_bytes([e0, e1, e2, e3]), u64::from_be_bytes(cookie)))
}

fn succeeded(error: u32) -> Result<()> {
    expect(error == 0, || format!("the server answered a request with NBD error {error}"))
}

fn header(flags: u16, command: Command, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..24].copy_from_slice(&beginning(REQUEST_MAGIC, flags, command, cookie, offset));
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// What every form of a request has before the length.
fn beginning(magic: u32, flags: u16, command: Command, cookie: u64, offset: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&magic.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// The handshake up to transmission; returns what the server tells of the export, its size at least.
fn negotiate(stream: &mut (impl Read + Write), name: &str) -> Result<Export> {
    greet(stream)?;
    stream.write_all(&opening(name)?).map_err(io(|| "the server ended the handshake".into()))?;
    let mut export = Export::default();
    loop {
        let (_, kind, data) = take_reply(stream)?;
        match kind {
            REPLY_ACK => {
                expect(export.size.is_some(), || "the server told no size".into())?;
                return Ok(export);
            }
            REPLY_INFO => export.learn(&data),
            _ => {
                let said = String::from_utf8_lossy(&data);
                return Err(ClientError::Server(format!("the server refused '{name}' with {kind:#010x}: {said}")));
            }
        }
    }
}

/// Takes the server's greeting.
fn greet(stream: &mut impl Read) -> Result<()> {
    let greeting: [u8; 18] = take(stream)?;
    let is_newstyle = greeting[..8] == *INIT_MAGIC && greeting[8..16] == *OPTION_MAGIC;
    expect(is_newstyle, || "this is no newstyle NBD server".into())?;
    let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
    expect(flags & FIXED_NEWSTYLE != 0, || "the server does not speak fixed newstyle".into())
}

/// A reply to an option: that, its type and its data.
fn take_reply(stream: &mut impl Read) -> Result<(u32, u32, Vec<u8>)> {
    let magic = u64::from_be_bytes(take(stream)?);
    expect(magic == OPTION_REPLY_MAGIC, || "the server sent no reply to an option".into())?;
    let (option, kind) = (u32::from_be_bytes(take(stream)?), u32::from_be_bytes(take(stream)?));
    let length = u32::from_be_bytes(take(stream)?);
    expect(length <= OPTION_REPLY_MAX, || format!("the server replies with {length} bytes to an option"))?;
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data).map_err(io(|| "the server ended the handshake".into()))?;
    Ok((option, kind, data))
}

/// Client flags and `NBD_OPT_GO` for `export`, with a request for the block sizes.
fn opening(export: &str) -> Result<Vec<u8>> {
    let name = u32::try_from(export.len()).ok().filter(|&length| length <= 4096);
    let name = name.ok_or_else(|| ClientError::Server("an export's name has at most 4096 bytes".into()))?;
    let wanted = [1_u16.to_be_bytes(), INFO_BLOCK_SIZE.to_be_bytes()].concat();
    let data = [&name.to_be_bytes(), export.as_bytes(), &wanted].concat();
    Ok([&CLIENT_FLAGS.to_be_bytes()[..], &option(OPTION_GO, &data)].concat())
}

/// An option with its data.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("options are short").to_be_bytes();
    [OPTION_MAGIC, &number.to_be_bytes()[..], &length, data].concat()
}

impl Export {
    /// Takes in what an information tells; others than those that are known tell nothing.
    fn learn(&mut self, information: &[u8]) {
        let Some((kind, data)) = information.split_first_chunk() else { return };
        match (u16::from_be_bytes(*kind), data) {
            (INFO_EXPORT, [size @ .., _, _]) => {
                let size = size.try_into().ok().map(u64::from_be_bytes);
                self.size = self.size.or(size);
            }
            (INFO_BLOCK_SIZE, sizes) => {
                if let Ok(sizes) = <&[u8; 12]>::try_from(sizes) {
                    let number =
                        |at: usize| u32::from_be_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]);
                    self.block_sizes = Some([0, 4, 8].map(number));
                }
            }
            _ => {}
        }
    }
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
        let export = Export { size: Some(1 << 30), block_sizes: Some([512, 4096, 32 << 20]) };
        assert_eq!(negotiate(&mut server, "bench").unwrap(), export);
        assert_eq!(server.hears, b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x0d\0\0\0\x05bench\0\x01\0\x03");
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
        let bytes = request(Command::Write, 0x0102, 0x1_0000_2000, 4096);
        assert_eq!(bytes, *b"\x25\x60\x95\x13\0\0\0\x01\0\0\0\0\0\0\x01\x02\0\0\0\x01\0\0\x20\0\0\0\x10\0");
        assert_eq!(request(Command::Read, 0, 0, 0)[4..8], [0, 0, 0, 0]);
        assert_eq!(request(Command::Flush, 0, 0, 0)[4..8], [0, 0, 0, 3]);
    }

    #[test]
    fn flags_are_before_the_command() {
        assert_eq!(header(flag::FUA, Command::Trim, 0, 0, 0)[4..8], [0, 1, 0, 4]);
    }

    #[test]
    fn replies_carry_a_cookie_or_an_error() {
        assert_eq!(cookie(b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x2a").unwrap(), 42);
        let error = cookie(b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x2a").unwrap_err().to_string();
        assert!(error.contains("error 5"), "{error}");
        assert!(cookie(b"\x66\x8e\x33\xef\0\0\0\0\0\0\0\0\0\0\0\x2a").is_err());
    }
}
