//! A client with extended headers, whose requests may be as large as an export. One request at a time.
//!
//! Source: `doc/proto.md` of the NBD project, branch `extension-ext-header`.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{
    CLIENT_FLAGS, Command, Export, OPTION_GO, REPLY_ACK, REPLY_INFO, Result, beginning, connect, expect, greet, io,
    option, take, take_reply,
};

/// The flag of a request of which `length` is that of what follows it.
pub const PAYLOAD_LEN: u16 = 1 << 5;

/// A connection in the transmission phase, with extended headers and, if the server has it, `base:allocation`.
#[derive(Debug)]
pub struct ExtendedClient {
    stream: UnixStream,
    export: Export,
    /// The server's number for `base:allocation`.
    context: Option<u32>,
    next_cookie: u64,
}

/// The reply to a request: one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// `NBD_REPLY_TYPE_*`.
    pub kind: u16,
    /// What it holds.
    pub payload: Vec<u8>,
}

/// Bytes with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many.
    pub length: u64,
    /// In the sense of `base:allocation`: 1 for a hole, 2 for zeros, 3 for both.
    pub status: u64,
}

const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;
const OPTION_SET_META_CONTEXT: u32 = 10;
const OPTION_EXTENDED_HEADERS: u32 = 11;
const REPLY_META_CONTEXT: u32 = 4;
const DONE: u16 = 1;
const KIND_NONE: u16 = 0;
const KIND_DATA: u16 = 1;
const KIND_BLOCK_STATUS_EXT: u16 = 6;
const KIND_ERROR: u16 = (1 << 15) + 1;
/// No reply is longer.
const PAYLOAD_MAX: u64 = 65 << 20;

impl ExtendedClient {
    /// Connects to `socket` and negotiates extended headers, the context, and the default export.
    ///
    /// # Errors
    /// If nobody listens, the server refuses, or it stays silent for a minute. Such a silence is an error later, too.
    pub fn connect(socket: &Path) -> Result<Self> {
        let mut stream = connect(socket)?;
        greet(&mut stream)?;
        let mut said = CLIENT_FLAGS.to_be_bytes().to_vec();
        said.extend(option(OPTION_EXTENDED_HEADERS, &[]));
        said.extend(option(OPTION_SET_META_CONTEXT, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"));
        said.extend(option(OPTION_GO, &[0; 6]));
        stream.write_all(&said).map_err(io(|| "the server ended the handshake".into()))?;
        let (mut export, mut context) = (Export::default(), None);
        for option in [OPTION_EXTENDED_HEADERS, OPTION_SET_META_CONTEXT, OPTION_GO] {
            loop {
                match take_reply(&mut stream)? {
                    (of, REPLY_ACK, _) if of == option => break,
                    (_, REPLY_INFO, data) => export.learn(&data),
                    (_, REPLY_META_CONTEXT, data) => context = data.first_chunk().copied().map(u32::from_be_bytes),
                    (of, kind, _) => expect(false, || format!("the server replied {kind:#010x} to option {of}"))?,
                }
            }
        }
        expect(export.size.is_some(), || "the server told no size".into())?;
        Ok(Self { stream, export, context, next_cookie: 1 })
    }

    /// Bytes of the export.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.export.size.expect("the handshake has told it")
    }

    /// Sends a request and waits for the reply; `payload` follows it if there is any, and `length` is its length then.
    ///
    /// # Errors
    /// If the connection fails, is silent for too long, or the server does not reply in one chunk of the right form.
    pub fn call(&mut self, flags: u16, command: Command, offset: u64, length: u64, payload: &[u8]) -> Result<Chunk> {
        self.send(flags, command, offset, length, payload)?;
        self.receive(offset)
    }

    /// Sends a request without waiting for its reply, which [`ExtendedClient::receive`] takes.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn send(&mut self, flags: u16, command: Command, offset: u64, length: u64, payload: &[u8]) -> Result<()> {
        let beginning = beginning(EXTENDED_REQUEST_MAGIC, flags, command, self.next_cookie, offset);
        let message = [&beginning[..], &length.to_be_bytes(), payload].concat();
        self.stream.write_all(&message).map_err(io(|| format!("can't send a {command:?}")))
    }

    /// Waits for the reply to the request at `offset` that was sent last.
    ///
    /// # Errors
    /// As [`ExtendedClient::call`].
    pub fn receive(&mut self, offset: u64) -> Result<Chunk> {
        let magic = u32::from_be_bytes(take(&mut self.stream)?);
        expect(magic == EXTENDED_REPLY_MAGIC, || format!("the server sent {magic:#010x} in place of a reply"))?;
        let flags = u16::from_be_bytes(take(&mut self.stream)?);
        let kind = u16::from_be_bytes(take(&mut self.stream)?);
        let (cookie, of) = (u64::from_be_bytes(take(&mut self.stream)?), u64::from_be_bytes(take(&mut self.stream)?));
        let is_own = cookie == self.next_cookie && of == offset;
        expect(is_own, || format!("the server replied to request {cookie} at {of}"))?;
        expect(flags == DONE, || "the server replied in several chunks".into())?;
        let length = u64::from_be_bytes(take(&mut self.stream)?);
        expect(length <= PAYLOAD_MAX, || format!("the server replies with {length} bytes"))?;
        let mut payload = vec![0; usize::try_from(length).expect("a reply's length is bounded")];
        self.stream.read_exact(&mut payload).map_err(io(|| "the server ended a reply".into()))?;
        self.next_cookie += 1;
        Ok(Chunk { kind, payload })
    }

    /// What the server says of a piece of the export. It may be less than all of that.
    ///
    /// # Errors
    /// As [`ExtendedClient::call`], and if the server refuses or does not keep to the form.
    pub fn status(&mut self, offset: u64, length: u64) -> Result<Vec<Extent>> {
        self.status_with(0, offset, length)
    }

    /// As [`ExtendedClient::status`], with these [`super::flag`]s.
    ///
    /// # Errors
    /// As there.
    pub fn status_with(&mut self, flags: u16, offset: u64, length: u64) -> Result<Vec<Extent>> {
        let Chunk { kind, payload } = self.call(flags, Command::BlockStatus, offset, length, &[])?;
        let Some((head, extents)) = payload.split_first_chunk::<8>().filter(|_| kind == KIND_BLOCK_STATUS_EXT) else {
            return expect(false, || format!("the server replied {kind:#06x} to a block status")).map(|()| Vec::new());
        };
        let [context, count] =
            [0, 4].map(|at| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let is_sound = Some(context) == self.context && extents.len() == 16 * count as usize && count > 0;
        expect(is_sound, || format!("{count} extents of context {context} in {} bytes", extents.len()))?;
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let extent = |bytes: &[u8]| Extent { length: number(&bytes[..8]), status: number(&bytes[8..]) };
        Ok(extents.chunks(16).map(extent).collect())
    }
}

impl Chunk {
    /// 0 for a success without data, the error number for an error, and none for anything else.
    #[must_use]
    pub fn error(&self) -> Option<u32> {
        match self.kind {
            KIND_NONE if self.payload.is_empty() => Some(0),
            KIND_ERROR => self.payload.first_chunk().copied().map(u32::from_be_bytes),
            _ => None,
        }
    }

    /// The data of a read at that place.
    #[must_use]
    pub fn data(&self, offset: u64) -> Option<&[u8]> {
        self.payload.strip_prefix(&offset.to_be_bytes()).filter(|_| self.kind == KIND_DATA)
    }
}
