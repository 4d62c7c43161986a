//! From bytes to checked requests.

use super::session::Session;
use crate::{
    Command, Error, NbdError, Span,
    info::WRITE_BYTES_MAX,
    proto::{REQUEST_MAGIC, TransmissionFlags, command, command_flag},
};

/// Length of a request without its data.
pub(crate) const REQUEST_BYTES: usize = 28;

/// The client's name for a request, repeated in its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie(pub u64);

/// A request that may be executed. A write's data follow in the stream, and belong to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// For the reply.
    pub cookie: Cookie,
    /// What to do.
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
        cookie: Cookie,
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
    cookie: Cookie,
    error: NbdError,
}

impl Decoder {
    /// A decoder at the start of the transmission phase.
    pub fn new(session: Session) -> Self {
        Self { session, skipping: None }
    }

    /// Whether the stream stands within the data of a write that is refused.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipping.is_some()
    }

    /// Skips the data of a write that was taken from the stream, and that can't be executed after all; then comes
    /// [`Received::Rejected`].
    ///
    /// # Panics
    /// If data are being skipped already.
    pub fn refuse(&mut self, left_bytes: u32, cookie: Cookie, error: NbdError) {
        assert!(!self.is_skipping(), "a write is refused before anything behind it is looked at");
        self.skipping = Some(Skipping { left_bytes, cookie, error });
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
            let (cookie, error) = (skipping.cookie, skipping.error);
            self.skipping = None;
            return Ok(Some(Received::Rejected { cookie, error }));
        }
        let Some((bytes, rest)) = input.split_first_chunk::<REQUEST_BYTES>() else { return Ok(None) };
        let header = Header::decode(bytes)?;
        *input = rest;
        if header.kind == command::DISC {
            return Ok(Some(Received::Disconnect));
        }
        let cookie = header.cookie;
        match check(&self.session, &header) {
            Ok(command) => Ok(Some(Received::Request(Request { cookie, command }))),
            Err(error) => {
                self.skipping = Some(Skipping { left_bytes: header.payload_bytes(), cookie, error });
                self.next(input)
            }
        }
    }
}

/// A request as it stands on the wire.
#[derive(Debug)]
struct Header {
    flags: u16,
    kind: u16,
    cookie: Cookie,
    offset_bytes: u64,
    length_bytes: u32,
}

impl Header {
    fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Error> {
        let mut rest = &bytes[..];
        let found = u32::from_be_bytes(take(&mut rest));
        if found != REQUEST_MAGIC {
            return Err(Error::RequestMagic { found });
        }
        let header = Self {
            flags: u16::from_be_bytes(take(&mut rest)),
            kind: u16::from_be_bytes(take(&mut rest)),
            cookie: Cookie(u64::from_be_bytes(take(&mut rest))),
            offset_bytes: u64::from_be_bytes(take(&mut rest)),
            length_bytes: u32::from_be_bytes(take(&mut rest)),
        };
        if header.payload_bytes() > WRITE_BYTES_MAX {
            return Err(Error::PayloadTooLarge { length_bytes: header.length_bytes });
        }
        Ok(header)
    }

    fn payload_bytes(&self) -> u32 {
        if self.kind == command::WRITE { self.length_bytes } else { 0 }
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
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
        command::WRITE => Command::Write { span: span(session, header)?, buffer: (), fua },
        command::FLUSH if header.offset_bytes == 0 && header.length_bytes == 0 => Command::Flush,
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
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        _ => 0,
    };
    own | command_flag::FUA
}

fn span(session: &Session, header: &Header) -> Result<Span, NbdError> {
    let &Header { kind, offset_bytes, length_bytes, .. } = header;
    let alignment = u64::from(session.minimum_bytes);
    if length_bytes == 0
        || !offset_bytes.is_multiple_of(alignment)
        || !u64::from(length_bytes).is_multiple_of(alignment)
    {
        return Err(NbdError::Invalid);
    }
    let end_bytes = offset_bytes.checked_add(length_bytes.into());
    if end_bytes.is_none_or(|end_bytes| end_bytes > session.size_bytes) {
        let write = matches!(kind, command::WRITE | command::WRITE_ZEROES);
        return Err(if write { NbdError::NoSpace } else { NbdError::Invalid });
    }
    if matches!(kind, command::READ | command::WRITE) && length_bytes > session.maximum_bytes {
        return Err(if header.has(command_flag::DF) { NbdError::Overflow } else { NbdError::Invalid });
    }
    Ok(Span { offset_bytes, length_bytes })
}
