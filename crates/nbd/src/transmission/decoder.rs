//! From bytes to checked requests.

use super::session::Session;
use crate::{
    Command, Error, Headers, NbdError, Span,
    info::WRITE_BYTES_MAX,
    proto::{ALLOCATION_CONTEXT_ID, EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC, TransmissionFlags, command, command_flag},
};

/// Length of a compact request without its data.
pub(crate) const REQUEST_BYTES: usize = 28;

/// Length of an extended request without its payload.
pub(crate) const EXTENDED_REQUEST_BYTES: usize = 32;

/// Length of the payload of a block status for one context: what it is about 64, the context's number 32.
pub(crate) const STATUS_PAYLOAD_BYTES: usize = 12;

const MAGIC_BYTES: usize = 4;

/// What a reply repeats of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Echo {
    /// The client's name for the request.
    pub cookie: u64,
    /// What the request has as its offset, valid or not.
    pub offset_bytes: u64,
}

/// A request that may be executed. A write's data follow in the stream, and belong to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// For the reply.
    pub echo: Echo,
    /// What to do. Its span, if it has one, begins at the offset of `echo`.
    pub command: Command<()>,
}

/// The next item of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A request that may be executed.
    Request(Request),
    /// A request that can't be executed; its data, if any, are already skipped.
    Rejected {
        /// For the reply.
        echo: Echo,
        /// Also for the reply.
        error: NbdError,
    },
    /// The client ends the session. Nothing more follows.
    Disconnect,
}

/// Decodes one connection's requests.
#[derive(Debug)]
pub struct Decoder {
    session: Session,
    skipping: Option<Skipping>,
}

#[derive(Debug)]
struct Skipping {
    left_bytes: u32,
    echo: Echo,
    error: NbdError,
}

impl Decoder {
    /// A decoder at the start of the transmission phase.
    pub fn new(session: Session) -> Self {
        Self { session, skipping: None }
    }

    /// Whether the stream stands within the data of a request that is refused.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipping.is_some()
    }

    /// Skips the data of a write that was taken from the stream, and that can't be executed after all; then comes
    /// [`Received::Rejected`].
    ///
    /// # Panics
    /// If data are being skipped already.
    pub fn refuse(&mut self, left_bytes: u32, echo: Echo, error: NbdError) {
        assert!(!self.is_skipping(), "a write is refused before anything behind it is looked at");
        self.skipping = Some(Skipping { left_bytes, echo, error });
    }

    /// Takes what comes next from the front of `input`, or `None` if its rest has yet to arrive: then keep what is left
    /// of `input` and call again with more behind it. After a write, take its data from `input` before the next call.
    ///
    /// # Errors
    /// [`Error::RequestMagic`] and [`Error::PayloadTooLarge`]: the connection must be closed.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Received>, Error> {
        if let Some(skipping) = &mut self.skipping {
            let skipped = input.len().min(skipping.left_bytes as usize);
            *input = &input[skipped..];
            skipping.left_bytes -= skipped as u32;
            if skipping.left_bytes > 0 {
                return Ok(None);
            }
            let (echo, error) = (skipping.echo, skipping.error);
            self.skipping = None;
            return Ok(Some(Received::Rejected { echo, error }));
        }
        let Some((mut header, mut rest)) = Header::decode(self.session.headers, input)? else { return Ok(None) };
        if header.kind == command::DISC {
            *input = rest;
            return Ok(Some(Received::Disconnect));
        }
        if header.names_contexts(&self.session) {
            let Some((payload, behind)) = rest.split_first_chunk() else { return Ok(None) };
            if header.choose_contexts(payload) {
                rest = behind;
            }
        }
        *input = rest;
        let echo = header.echo;
        match check(&self.session, &header) {
            Ok(command) => Ok(Some(Received::Request(Request { echo, command }))),
            Err(error) => {
                self.skipping = Some(Skipping { left_bytes: header.payload_bytes.unwrap_or(0), echo, error });
                self.next(input)
            }
        }
    }
}

/// What is at the front of a stream, and what is behind it. `None` if some of it has yet to arrive.
type Front<'a, T> = Result<Option<(T, &'a [u8])>, Error>;

/// A request as it stands on the wire.
#[derive(Debug)]
struct Header {
    flags: u16,
    kind: u16,
    echo: Echo,
    length_bytes: u64,
    /// None: nothing follows.
    payload_bytes: Option<u32>,
}

impl Header {
    /// The first request of `input`.
    fn decode(headers: Headers, input: &[u8]) -> Front<'_, Self> {
        if headers == Headers::Extended {
            let Some((mut bytes, rest)) = split::<EXTENDED_REQUEST_BYTES>(input, EXTENDED_REQUEST_MAGIC)? else {
                return Ok(None);
            };
            let header = Self::begin(&mut bytes);
            let has_payload = header.has(command_flag::PAYLOAD_LEN);
            Ok(Some((header.with_length(u64::from_be_bytes(take(&mut bytes)), has_payload)?, rest)))
        } else {
            let Some((mut bytes, rest)) = split::<REQUEST_BYTES>(input, REQUEST_MAGIC)? else { return Ok(None) };
            let header = Self::begin(&mut bytes);
            let has_payload = header.kind == command::WRITE;
            Ok(Some((header.with_length(u32::from_be_bytes(take(&mut bytes)).into(), has_payload)?, rest)))
        }
    }

    /// What both forms have between the magic and the length.
    fn begin(bytes: &mut &[u8]) -> Self {
        Self {
            flags: u16::from_be_bytes(take(bytes)),
            kind: u16::from_be_bytes(take(bytes)),
            echo: Echo { cookie: u64::from_be_bytes(take(bytes)), offset_bytes: u64::from_be_bytes(take(bytes)) },
            length_bytes: 0,
            payload_bytes: None,
        }
    }

    fn with_length(self, length_bytes: u64, has_payload: bool) -> Result<Self, Error> {
        let payload_bytes = match u32::try_from(length_bytes) {
            _ if !has_payload => None,
            Ok(payload_bytes) if payload_bytes <= WRITE_BYTES_MAX => Some(payload_bytes),
            _ => return Err(Error::PayloadTooLarge { length_bytes }),
        };
        Ok(Self { length_bytes, payload_bytes, ..self })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether a block status says in its payload which contexts it is about, and does so in as many bytes as it takes.
    fn names_contexts(&self, session: &Session) -> bool {
        self.kind == command::BLOCK_STATUS
            && session.flags.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD)
            && self.payload_bytes.is_some_and(|bytes| bytes as usize == STATUS_PAYLOAD_BYTES)
    }

    /// Makes such a block status one without a payload, if that names the context that there is. Otherwise it stays as
    /// it is, to be refused.
    fn choose_contexts(&mut self, payload: &[u8; STATUS_PAYLOAD_BYTES]) -> bool {
        let mut payload = &payload[..];
        let length_bytes = u64::from_be_bytes(take(&mut payload));
        let is_known = u32::from_be_bytes(take(&mut payload)) == ALLOCATION_CONTEXT_ID;
        if is_known {
            self.flags &= !command_flag::PAYLOAD_LEN;
            (self.length_bytes, self.payload_bytes) = (length_bytes, None);
        }
        is_known
    }
}

/// A request of `N` bytes without its magic, which is looked at before all of it has arrived: who sends requests of the
/// wrong form is not to wait for an answer.
fn split<const N: usize>(input: &[u8], magic: u32) -> Front<'_, &[u8]> {
    let Some(start) = input.first_chunk::<MAGIC_BYTES>() else { return Ok(None) };
    let found = u32::from_be_bytes(*start);
    if found != magic {
        return Err(Error::RequestMagic { found });
    }
    Ok(input.split_first_chunk::<N>().map(|(bytes, rest)| (&bytes[MAGIC_BYTES..], rest)))
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (field, after) = rest.split_first_chunk::<N>().expect("the fields add up to the request's length");
    *rest = after;
    *field
}

/// Whether the request may be executed, and if not, what the client is told. Source: the protocol document, "Error
/// values".
fn check(session: &Session, header: &Header) -> Result<Command<()>, NbdError> {
    let (can, kind) = (|flag| session.flags.contains(flag), header.kind);
    if matches!(kind, command::WRITE | command::TRIM | command::WRITE_ZEROES) && can(TransmissionFlags::READ_ONLY) {
        return Err(NbdError::NotPermitted);
    }
    if header.flags & !flags_allowed(session, kind) != 0 {
        return Err(NbdError::Invalid);
    }
    let (fua, one) = (header.has(command_flag::FUA), header.has(command_flag::REQ_ONE));
    let command = match kind {
        command::READ => Command::Read { span: span(session, header)?, buffer: () },
        command::WRITE if header.payload_bytes.is_some() => {
            Command::Write { span: span(session, header)?, buffer: (), fua }
        }
        command::FLUSH if header.echo.offset_bytes == 0 && header.length_bytes == 0 => Command::Flush,
        command::TRIM if can(TransmissionFlags::SEND_TRIM) => Command::Trim { span: span(session, header)?, fua },
        command::CACHE => Command::Cache { span: span(session, header)? },
        command::WRITE_ZEROES => Command::WriteZeroes {
            span: span(session, header)?,
            fua,
            no_hole: header.has(command_flag::NO_HOLE),
            fast: header.has(command_flag::FAST_ZERO),
        },
        command::BLOCK_STATUS if session.allocation => Command::BlockStatus { span: span(session, header)?, one },
        _ => return Err(NbdError::Invalid),
    };
    Ok(command)
}

/// FUA goes with every command, the protocol says: clients are known to set it on reads.
fn flags_allowed(session: &Session, kind: u16) -> u16 {
    let own = match kind {
        command::READ if session.flags.contains(TransmissionFlags::SEND_DF) => command_flag::DF,
        command::WRITE_ZEROES if session.flags.contains(TransmissionFlags::SEND_FAST_ZERO) => {
            command_flag::NO_HOLE | command_flag::FAST_ZERO
        }
        command::WRITE_ZEROES => command_flag::NO_HOLE,
        command::WRITE if session.headers == Headers::Extended => command_flag::PAYLOAD_LEN,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        _ => 0,
    };
    own | command_flag::FUA
}

fn span(session: &Session, header: &Header) -> Result<Span, NbdError> {
    let &Header { kind, echo: Echo { offset_bytes, .. }, length_bytes, .. } = header;
    let alignment = u64::from(session.minimum_bytes);
    if length_bytes == 0 || !offset_bytes.is_multiple_of(alignment) || !length_bytes.is_multiple_of(alignment) {
        return Err(NbdError::Invalid);
    }
    let end_bytes = offset_bytes.checked_add(length_bytes);
    if end_bytes.is_none_or(|end_bytes| end_bytes > session.size_bytes) {
        let write = matches!(kind, command::WRITE | command::WRITE_ZEROES);
        return Err(if write { NbdError::NoSpace } else { NbdError::Invalid });
    }
    if matches!(kind, command::READ | command::WRITE) && length_bytes > u64::from(session.maximum_bytes) {
        return Err(if header.has(command_flag::DF) { NbdError::Overflow } else { NbdError::Invalid });
    }
    Ok(Span { offset_bytes, length_bytes })
}
