//! The transmission phase without I/O, client's side: requests are encoded, replies are held against them.
//!
//! The forms of both are [the server's](crate::transmission). Data never pass through here: the caller sends a write's
//! data after the header, and receives a read's data where it wants them.

use super::{agreed::Agreed, covered::Covered, error::Error};
use crate::{
    Command, Headers,
    proto::{
        EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk,
        command, command_flag,
    },
};

const REQUEST_BYTES: usize = 28;
const EXTENDED_REQUEST_BYTES: usize = 32;
const MAGIC_BYTES: usize = 4;
/// Error 32, cookie 64.
const SIMPLE_BYTES: usize = MAGIC_BYTES + 12;
/// Flags 16, type 16, cookie 64, length 32.
const STRUCTURED_BYTES: usize = MAGIC_BYTES + 16;
/// Flags 16, type 16, cookie 64, offset 64, length 64.
const EXTENDED_BYTES: usize = MAGIC_BYTES + 28;
/// Offset 64, in front of data.
const OFFSET_BYTES: usize = 8;
/// Offset 64, length 32.
const HOLE_BYTES: usize = 12;
/// Error 32, length of the text 16.
const ERROR_BYTES: usize = 6;
/// The longest payload of an error: its fields, a text and an offset.
const ERROR_PAYLOAD_MAX: u64 = 8 << 10;

/// A request, for as long as it is under way: a number below the most that there may be at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestIndex(u32);

impl RequestIndex {
    /// As a number from 0 on.
    #[must_use]
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

/// All of a request but its data.
#[derive(Debug, Clone, Copy)]
pub struct RequestHeader {
    bytes: [u8; EXTENDED_REQUEST_BYTES],
    is_extended: bool,
}

impl RequestHeader {
    /// What goes on the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        if self.is_extended { &self.bytes } else { &self.bytes[..REQUEST_BYTES] }
    }
}

/// What comes next in the stream of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The request that it belongs to.
    pub request: RequestIndex,
    /// What it delivers.
    pub part: Part,
    /// The request's end, if this is it, once the part's data have been received: success, or the error's number.
    pub ended: Option<Result<(), u32>>,
}

/// What a reply, or a chunk of one, delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Nothing.
    None,
    /// Data of a read, which follow in the stream and belong to the caller.
    Data {
        /// Where in the read's data they begin.
        at_bytes: u32,
        /// How many, never 0.
        length_bytes: u32,
    },
    /// Zeros of a read, which do not follow.
    Zeros {
        /// Where in the read's data they begin.
        at_bytes: u32,
        /// How many, never 0.
        length_bytes: u32,
    },
}

/// One connection's requests and replies.
#[derive(Debug)]
pub struct Transmission {
    headers: Headers,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// A request that ends when the data before the next reply have been taken.
    ending: Option<u32>,
    /// What is left of an error's text, and what is told when that is behind.
    skipping: Option<(u64, Received)>,
}

#[derive(Debug, Default)]
struct Slot {
    request: Option<Sent>,
    /// How many requests had this place before.
    generation: u32,
    covered: Covered,
    error: Option<u32>,
}

/// What was asked.
#[derive(Debug, Clone, Copy)]
struct Sent {
    offset_bytes: u64,
    /// How many bytes it reads. 0: it is no read.
    reads_bytes: u32,
}

/// A reply's header.
struct Header {
    kind: Kind,
    is_last: bool,
    cookie: u64,
    /// The request's offset, where the reply has it.
    offset_bytes: Option<u64>,
    payload_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A simple reply with this error number.
    Simple(u32),
    Chunk(u16),
}

impl Transmission {
    /// The start of the transmission phase, with so many requests under way at most.
    #[must_use]
    pub fn new(agreed: &Agreed, requests_max: u32) -> Self {
        Self {
            headers: agreed.headers(),
            slots: (0..requests_max).map(|_| Slot::default()).collect(),
            vacant: (0..requests_max).rev().collect(),
            ending: None,
            skipping: None,
        }
    }

    /// Whether another request may be sent now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.vacant.is_empty()
    }

    /// Begins a request: its header is to be sent, and then a write's data. None: too many are under way.
    ///
    /// # Panics
    /// If its length does not fit the form of requests that was agreed on, or is a read's or write's of 4 GiB or more.
    pub fn begin(&mut self, command: &Command<()>) -> Option<(RequestIndex, RequestHeader)> {
        use command_flag as flag;
        let is_extended = self.headers == Headers::Extended;
        let set = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let (kind, flags, span) = match *command {
            Command::Read { span, .. } => (command::READ, 0, Some(span)),
            Command::Write { span, fua, .. } => {
                (command::WRITE, set(fua, flag::FUA) | set(is_extended, flag::PAYLOAD_LEN), Some(span))
            }
            Command::Flush => (command::FLUSH, 0, None),
            Command::Trim { span, fua } => (command::TRIM, set(fua, flag::FUA), Some(span)),
            Command::WriteZeroes { span, fua, no_hole, fast } => {
                let flags = set(fua, flag::FUA) | set(no_hole, flag::NO_HOLE) | set(fast, flag::FAST_ZERO);
                (command::WRITE_ZEROES, flags, Some(span))
            }
            Command::Cache { span } => (command::CACHE, 0, Some(span)),
            Command::BlockStatus { .. } => unreachable!("no context was asked for, so nobody asks for its status"),
        };
        let index = self.vacant.pop()?;
        let slot = &mut self.slots[index as usize];
        let (offset_bytes, length_bytes) = span.map_or((0, 0), |span| (span.offset_bytes, span.length_bytes));
        let reads_bytes = if kind == command::READ { span.map_or(0, crate::Span::data_bytes) } else { 0 };
        slot.request = Some(Sent { offset_bytes, reads_bytes });
        slot.error = None;
        slot.covered.clear();
        let cookie = cookie(index, slot.generation);
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        let magic = if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&offset_bytes.to_be_bytes());
        if is_extended {
            bytes[24..].copy_from_slice(&length_bytes.to_be_bytes());
        } else {
            let length_bytes = u32::try_from(length_bytes).expect("a compact request has a length of 32 bits");
            bytes[24..28].copy_from_slice(&length_bytes.to_be_bytes());
        }
        Some((RequestIndex(index), RequestHeader { bytes, is_extended }))
    }

    /// The request that ends a session. It has no reply.
    #[must_use]
    pub fn farewell(&self) -> RequestHeader {
        let is_extended = self.headers == Headers::Extended;
        let magic = if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        bytes[6..8].copy_from_slice(&command::DISC.to_be_bytes());
        RequestHeader { bytes, is_extended }
    }

    /// Takes what comes next from the front of `input`, or `None` if its rest has yet to arrive: then keep what is left
    /// of `input`, fewer bytes than 44, and call again with more behind it. After [`Part::Data`] take these from
    /// `input`, or from the stream, before the next call.
    ///
    /// # Errors
    /// What the server may not say. The connection must be closed; requests under way have no end then.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Received>, Error> {
        if let Some(ended) = self.ending.take() {
            self.vacate(ended);
        }
        if let Some(received) = self.skip(input) {
            return Ok(received);
        }
        let Some((header, rest)) = Header::decode(self.headers, input)? else { return Ok(None) };
        let (index, sent) = self.find(&header)?;
        let Some((part, error, text_bytes, rest)) = header.payload(self.headers, sent, rest)? else { return Ok(None) };
        *input = rest;
        let slot = &mut self.slots[index as usize];
        slot.error = slot.error.or(error);
        if let Part::Data { at_bytes, length_bytes } | Part::Zeros { at_bytes, length_bytes } = part {
            slot.covered.add(at_bytes..at_bytes + length_bytes)?;
        }
        let ended = header.is_last.then(|| slot.error.map_or(Ok(()), Err));
        if ended == Some(Ok(())) && sent.reads_bytes > 0 && !slot.covered.is_all_of(sent.reads_bytes) {
            return Err(Error::Reply { what: "less than all of a read" });
        }
        self.skipping = Some((text_bytes, Received { request: RequestIndex(index), part, ended }));
        Ok(self.skip(input).flatten())
    }

    /// Skips an error's text; then comes what it belongs to.
    fn skip(&mut self, input: &mut &[u8]) -> Option<Option<Received>> {
        let (left_bytes, received) = self.skipping.as_mut()?;
        let skipped = usize::try_from(*left_bytes).map_or(input.len(), |left| left.min(input.len()));
        *input = &input[skipped..];
        *left_bytes -= skipped as u64;
        if *left_bytes > 0 {
            return Some(None);
        }
        let received = *received;
        self.skipping = None;
        self.ending = received.ended.map(|_| received.request.0);
        Some(Some(received))
    }

    fn vacate(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.request = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.vacant.push(index);
    }

    /// The request that a reply belongs to.
    fn find(&self, header: &Header) -> Result<(u32, Sent), Error> {
        let Header { cookie: found, offset_bytes, .. } = *header;
        let index = found as u32; // the lower half
        let slot = self.slots.get(index as usize).filter(|slot| cookie(index, slot.generation) == found);
        let sent = slot.and_then(|slot| slot.request).ok_or(Error::UnknownCookie { cookie: found })?;
        if offset_bytes.is_some_and(|offset_bytes| offset_bytes != sent.offset_bytes) {
            return Err(Error::Reply { what: "another offset than the request" });
        }
        Ok((index, sent))
    }
}

fn cookie(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

/// What a reply delivers, its error, how many bytes of text follow, and what is behind it. `None` if some of it has yet
/// to arrive.
type Payload<'a> = Result<Option<(Part, Option<u32>, u64, &'a [u8])>, Error>;

impl Header {
    /// The first reply's header in `input`, and what is behind it. `None` if some of it has yet to arrive; the magic
    /// number is looked at before.
    fn decode(headers: Headers, input: &[u8]) -> Result<Option<(Self, &[u8])>, Error> {
        let Some((magic, _)) = input.split_first_chunk::<MAGIC_BYTES>() else { return Ok(None) };
        let magic = u32::from_be_bytes(*magic);
        let length = match (magic, headers) {
            (SIMPLE_REPLY_MAGIC, Headers::Simple | Headers::Structured) => SIMPLE_BYTES,
            (STRUCTURED_REPLY_MAGIC, Headers::Structured) => STRUCTURED_BYTES,
            (EXTENDED_REPLY_MAGIC, Headers::Extended) => EXTENDED_BYTES,
            (found, _) => return Err(Error::ReplyMagic { found }),
        };
        let Some((bytes, rest)) = input.split_at_checked(length) else { return Ok(None) };
        let mut fields = &bytes[MAGIC_BYTES..];
        if magic == SIMPLE_REPLY_MAGIC {
            let kind = Kind::Simple(u32::from_be_bytes(take(&mut fields)));
            let cookie = u64::from_be_bytes(take(&mut fields));
            return Ok(Some((Self { kind, is_last: true, cookie, offset_bytes: None, payload_bytes: 0 }, rest)));
        }
        let is_last = u16::from_be_bytes(take(&mut fields)) & chunk::FLAG_DONE != 0;
        let kind = Kind::Chunk(u16::from_be_bytes(take(&mut fields)));
        let cookie = u64::from_be_bytes(take(&mut fields));
        let is_extended = magic == EXTENDED_REPLY_MAGIC;
        let offset_bytes = is_extended.then(|| u64::from_be_bytes(take(&mut fields)));
        let payload_bytes = match is_extended {
            true => u64::from_be_bytes(take(&mut fields)),
            false => u32::from_be_bytes(take(&mut fields)).into(),
        };
        Ok(Some((Self { kind, is_last, cookie, offset_bytes, payload_bytes }, rest)))
    }

    /// Holds what the reply delivers against what was asked.
    fn payload<'a>(&self, headers: Headers, sent: Sent, rest: &'a [u8]) -> Payload<'a> {
        let wrong = |what| Err(Error::Reply { what });
        match self.kind {
            Kind::Simple(0) if sent.reads_bytes == 0 => Ok(Some((Part::None, None, 0, rest))),
            Kind::Simple(_) if sent.reads_bytes > 0 && headers == Headers::Structured => {
                wrong("a read's data, or its error, without a chunk, though chunks were agreed on")
            }
            Kind::Simple(0) => Ok(Some((Part::Data { at_bytes: 0, length_bytes: sent.reads_bytes }, None, 0, rest))),
            Kind::Simple(error) => Ok(Some((Part::None, Some(error), 0, rest))),
            Kind::Chunk(chunk::NONE) if self.payload_bytes == 0 && self.is_last => {
                Ok(Some((Part::None, None, 0, rest)))
            }
            Kind::Chunk(chunk::OFFSET_DATA) if self.payload_bytes > OFFSET_BYTES as u64 => {
                let Some((mut fields, rest)) = rest.split_at_checked(OFFSET_BYTES) else { return Ok(None) };
                let offset_bytes = u64::from_be_bytes(take(&mut fields));
                let (at_bytes, length_bytes) = within(sent, offset_bytes, self.payload_bytes - OFFSET_BYTES as u64)?;
                Ok(Some((Part::Data { at_bytes, length_bytes }, None, 0, rest)))
            }
            Kind::Chunk(chunk::OFFSET_HOLE) if self.payload_bytes == HOLE_BYTES as u64 => {
                let Some((mut fields, rest)) = rest.split_at_checked(HOLE_BYTES) else { return Ok(None) };
                let offset_bytes = u64::from_be_bytes(take(&mut fields));
                let length_bytes = u32::from_be_bytes(take(&mut fields)).into();
                let (at_bytes, length_bytes) = within(sent, offset_bytes, length_bytes)?;
                Ok(Some((Part::Zeros { at_bytes, length_bytes }, None, 0, rest)))
            }
            Kind::Chunk(kind) if kind >> 15 == 1 => {
                if !(ERROR_BYTES as u64..=ERROR_PAYLOAD_MAX).contains(&self.payload_bytes) {
                    return wrong("an error of a wrong length");
                }
                let Some((mut fields, rest)) = rest.split_at_checked(ERROR_BYTES) else { return Ok(None) };
                match u32::from_be_bytes(take(&mut fields)) {
                    0 => wrong("an error without its number"),
                    error => Ok(Some((Part::None, Some(error), self.payload_bytes - ERROR_BYTES as u64, rest))),
                }
            }
            Kind::Chunk(_) => wrong("a chunk that does not belong to it, or has a wrong length"),
        }
    }
}

/// Where in a read's data a range of the export is.
fn within(sent: Sent, offset_bytes: u64, length_bytes: u64) -> Result<(u32, u32), Error> {
    let end = u64::from(sent.reads_bytes);
    let at = offset_bytes.checked_sub(sent.offset_bytes).filter(|&at| at < end && length_bytes <= end - at);
    match (at.map(u32::try_from), u32::try_from(length_bytes)) {
        (Some(Ok(at_bytes)), Ok(length_bytes)) if length_bytes > 0 => Ok((at_bytes, length_bytes)),
        _ => Err(Error::Reply { what: "data that nobody asked for" }),
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (field, after) = rest.split_first_chunk::<N>().expect("the fields add up to the header's length");
    *rest = after;
    *field
}

#[cfg(test)]
mod tests;
