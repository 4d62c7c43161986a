//! The handshake without I/O: fixed newstyle negotiation, server's side.
//!
//! ```text
//! S: NBDMAGIC | IHAVEOPT | handshake flags 16
//! C: client flags 32
//! C: IHAVEOPT | option 32 | length 32 | data                                  any number of times,
//! S: 0003e889045565a9 | option 32 | reply type 32 | length 32 | data          one or more replies to each
//! ```
//!
//! At most one option of the client is kept in memory, of at most [`OPTION_BYTES_MAX`] bytes, and only the part of it
//! that has arrived. A client chooses one of several [`Exports`].
//!
//! TLS is refused or required, never a matter of the client's taste: NOTLS and FORCEDTLS in the words of the protocol
//! document, "TLS support". Where it is required, one handshake in the clear ends with `NBD_OPT_STARTTLS`, and
//! [`Handshake::in_tls`] is the one that counts. Nothing that was sent in the clear has a meaning in the latter but the
//! client's flags.

mod choice;
mod options;
#[cfg(test)]
mod tests;

use std::mem;

use bytes::{Buf as _, BufMut as _};

pub(crate) use choice::{Exports, Index};
use options::{parse_info, parse_meta_context};

use crate::{
    Error, ExportInfo, Headers,
    partial::Partial,
    proto::{
        ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INIT_MAGIC, OPTION_MAGIC,
        OPTION_REPLY_MAGIC, STRING_BYTES_MAX, info, option, option_reply as rep,
    },
    transmission::Session,
};

/// The most data of an option that is looked at. Longer options are skipped and refused.
pub(crate) const OPTION_BYTES_MAX: u32 = 16 << 10;
/// The most data of an option that is skipped. A longer option ends the connection.
pub(crate) const OPTION_BYTES_SKIPPED_MAX: u32 = 1 << 20;
/// The most options that a client may send.
pub(crate) const OPTIONS_MAX: u32 = 64;

/// Room after the reply to `NBD_OPT_EXPORT_NAME`, for clients that want it.
const EXPORT_NAME_PADDING_BYTES: usize = 124;

const CLIENT_FLAGS_BYTES: usize = 4;
const OPTION_HEADER_BYTES: usize = 16;

/// Whether a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Security {
    /// It is not, and never will be.
    Plain,
    /// It has to be before anything else.
    TlsRequired,
    /// It is.
    Tls,
}

/// How a handshake ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Requests follow, for this export.
    Transmission(Index, Session),
    /// TLS follows, and in it another handshake.
    StartTls,
    /// The client ended the session.
    Aborted,
}

/// One connection's handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    exports: Exports,
    security: Security,
    awaited: Awaited,
    /// The part of the awaited item that has arrived.
    partial: Partial,
    output: Vec<u8>,
    options: u32,
    no_zeroes: bool,
    headers: Headers,
    /// The export of which the client has chosen the context `base:allocation`.
    allocation: Option<Index>,
    ended: Option<Ended>,
}

/// What the client is to send next.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        length_bytes: u32,
    },
    /// Data of an option that is too long to look at.
    Skipped {
        option: u32,
        left_bytes: u32,
    },
    /// The handshake has ended or failed.
    Nothing,
}

impl Handshake {
    /// A handshake whose greeting is ready to be sent.
    pub(crate) fn new(exports: Exports, security: Security) -> Self {
        let mut output = Vec::new();
        output.put_u64(INIT_MAGIC);
        output.put_u64(OPTION_MAGIC);
        output.put_u16(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        Self {
            exports,
            security,
            awaited: Awaited::ClientFlags,
            partial: Partial::default(),
            output,
            options: 0,
            no_zeroes: false,
            headers: Headers::Simple,
            allocation: None,
            ended: None,
        }
    }

    /// The handshake that follows in TLS, where the client may choose one of these exports: as it was after the
    /// client's flags, but for the count of options.
    ///
    /// # Panics
    /// If this one has not ended with [`Ended::StartTls`].
    pub(crate) fn in_tls(self, exports: Exports) -> Self {
        assert_eq!(self.ended, Some(Ended::StartTls), "TLS begins when the client asks for it");
        Self {
            exports,
            security: Security::Tls,
            awaited: Awaited::OptionHeader,
            partial: Partial::default(),
            output: Vec::new(),
            options: self.options,
            no_zeroes: self.no_zeroes,
            headers: Headers::Simple,
            allocation: None,
            ended: None,
        }
    }

    /// Consumes bytes from the client and returns how many. The bytes that it leaves are requests that arrived together
    /// with the last option.
    ///
    /// # Errors
    /// Any that ends the connection. What [`Handshake::take_output`] then still holds may be sent or not.
    pub(crate) fn receive(&mut self, input: &[u8]) -> Result<usize, Error> {
        let mut rest = input;
        while !matches!(self.awaited, Awaited::Nothing) {
            if let Awaited::Skipped { option, left_bytes } = &mut self.awaited {
                let skipped = rest.len().min(*left_bytes as usize);
                rest.advance(skipped);
                *left_bytes -= skipped as u32;
                if *left_bytes > 0 {
                    break;
                }
                let option = *option;
                self.awaited = Awaited::OptionHeader;
                match self.security {
                    Security::TlsRequired => self.require_tls(option),
                    Security::Plain | Security::Tls => {
                        self.reply(option, rep::ERR_TOO_BIG, b"the option has too much data");
                    }
                }
                continue;
            }
            let Some(item) = self.partial.complete(self.awaited.length_bytes(), &mut rest) else { break };
            let awaited = mem::replace(&mut self.awaited, Awaited::Nothing);
            self.awaited = self.step(awaited, &item)?;
        }
        if self.ended == Some(Ended::StartTls) && !rest.is_empty() {
            // The client speaks TLS after the reply alone. Whoever added this wants it taken for a part of what the
            // client says in TLS: CVE-2021-3716, CVE-2011-0411.
            return Err(Error::PlainAfterStartTls);
        }
        Ok(input.len() - rest.len())
    }

    /// Takes the bytes that have to be sent to the client.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    /// How the handshake ended, when it has.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Handles a complete item and returns what must follow.
    fn step(&mut self, awaited: Awaited, item: &[u8]) -> Result<Awaited, Error> {
        match awaited {
            Awaited::ClientFlags => {
                self.client_flags(item)?;
                Ok(Awaited::OptionHeader)
            }
            Awaited::OptionHeader => self.option_header(item),
            Awaited::OptionData { option, .. } => {
                self.ended = self.option(option, item)?;
                Ok(if self.ended.is_some() { Awaited::Nothing } else { Awaited::OptionHeader })
            }
            Awaited::Skipped { .. } | Awaited::Nothing => unreachable!("neither is collected"),
        }
    }

    fn client_flags(&mut self, mut item: &[u8]) -> Result<(), Error> {
        let flags = item.get_u32();
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return Err(Error::ClientFlags { flags });
        }
        if flags & u32::from(FLAG_FIXED_NEWSTYLE) == 0 && self.security == Security::TlsRequired {
            return Err(Error::TlsRequired); // it can't ask for TLS
        }
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        Ok(())
    }

    fn option_header(&mut self, mut item: &[u8]) -> Result<Awaited, Error> {
        let found = item.get_u64();
        let (option, length_bytes) = (item.get_u32(), item.get_u32());
        if found != OPTION_MAGIC {
            return Err(Error::OptionMagic { found });
        }
        // The name of an export has no error reply, whatever is wrong with it.
        let length_max = if option == option::EXPORT_NAME { OPTION_BYTES_MAX } else { OPTION_BYTES_SKIPPED_MAX };
        if length_bytes > length_max {
            return Err(Error::OptionTooLarge { option, length_bytes });
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(Error::TooManyOptions { limit: OPTIONS_MAX });
        }
        if length_bytes > OPTION_BYTES_MAX {
            return Ok(Awaited::Skipped { option, left_bytes: length_bytes });
        }
        Ok(Awaited::OptionData { option, length_bytes })
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.output.put_u64(OPTION_REPLY_MAGIC);
        self.output.put_u32(option);
        self.output.put_u32(kind);
        self.output.put_u32(u32::try_from(data.len()).expect("replies are made of bounded strings"));
        self.output.put_slice(data);
    }

    /// Answers an option whose data are complete, and says whether it ends the handshake.
    pub(super) fn option(&mut self, option: u32, data: &[u8]) -> Result<Option<Ended>, Error> {
        if self.security == Security::TlsRequired {
            match option {
                option::STARTTLS | option::ABORT => {}
                option::EXPORT_NAME => return Err(Error::TlsRequired),
                _ => {
                    self.require_tls(option);
                    return Ok(None);
                }
            }
        }
        match option {
            option::EXPORT_NAME => return self.export_name(data).map(Some),
            option::ABORT => {
                self.acknowledge(option);
                return Ok(Some(Ended::Aborted));
            }
            option::GO | option::INFO => return Ok(self.info(option, data)),
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS if !data.is_empty() => {
                self.reply(option, rep::ERR_INVALID, b"the option takes no data");
            }
            option::LIST => self.list(),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.choose_headers(option),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data),
            option::STARTTLS => return Ok(self.start_tls(data)),
            _ => self.reply(option, rep::ERR_UNSUP, b"unknown option"),
        }
        Ok(None)
    }

    /// `NBD_OPT_STRUCTURED_REPLY` and `NBD_OPT_EXTENDED_HEADERS`: from the latter there is no way back.
    fn choose_headers(&mut self, option: u32) {
        self.headers = match (self.headers, option) {
            (Headers::Extended, option::EXTENDED_HEADERS) => {
                return self.reply(option, rep::ERR_INVALID, b"extended headers are negotiated already");
            }
            (Headers::Extended, _) => {
                return self.reply(option, rep::ERR_EXT_HEADER_REQD, b"extended headers are negotiated");
            }
            (_, option::EXTENDED_HEADERS) => Headers::Extended,
            _ => Headers::Structured,
        };
        self.acknowledge(option);
    }

    fn acknowledge(&mut self, option: u32) {
        self.reply(option, rep::ACK, &[]);
    }

    fn require_tls(&mut self, option: u32) {
        self.reply(option, rep::ERR_TLS_REQD, b"this server requires TLS");
    }

    fn start_tls(&mut self, data: &[u8]) -> Option<Ended> {
        let (kind, reason): (u32, &[u8]) = match self.security {
            Security::Plain => (rep::ERR_POLICY, b"this server is not set up for TLS"),
            Security::Tls => (rep::ERR_INVALID, b"this is TLS already"),
            Security::TlsRequired if !data.is_empty() => (rep::ERR_INVALID, b"the option takes no data"),
            Security::TlsRequired => {
                self.acknowledge(option::STARTTLS);
                return Some(Ended::StartTls);
            }
        };
        self.reply(option::STARTTLS, kind, reason);
        None
    }

    /// The session that begins if the client chooses this export now.
    fn session(&self, export: Index) -> Session {
        Session::new(&self.exports[export], self.headers, self.allocation == Some(export))
    }

    /// `NBD_OPT_EXPORT_NAME`, the old way into the transmission phase, which has no error replies.
    fn export_name(&mut self, name: &[u8]) -> Result<Ended, Error> {
        let Some(export) = self.exports.find(name) else {
            let shown = &name[..name.len().min(STRING_BYTES_MAX)];
            return Err(Error::UnknownExport { name: String::from_utf8_lossy(shown).into_owned() });
        };
        let session = self.session(export);
        self.output.put_u64(self.exports[export].size_bytes);
        self.output.put_u16(session.flags().bits());
        if !self.no_zeroes {
            self.output.put_bytes(0, EXPORT_NAME_PADDING_BYTES);
        }
        Ok(Ended::Transmission(export, session))
    }

    fn list(&mut self) {
        let server = |export: &ExportInfo| {
            let mut server = Vec::new();
            server.put_u32(export.name.len() as u32);
            server.put_slice(export.name.as_bytes());
            server.put_slice(export.description.as_bytes());
            server
        };
        let servers: Vec<_> = self.exports.iter().map(server).collect();
        servers.iter().for_each(|server| self.reply(option::LIST, rep::SERVER, server));
        self.acknowledge(option::LIST);
    }

    /// `NBD_OPT_INFO`, and `NBD_OPT_GO`, which says the same and starts the transmission phase.
    fn info(&mut self, option: u32, data: &[u8]) -> Option<Ended> {
        let Some((name, wanted)) = parse_info(data) else {
            self.reply(option, rep::ERR_INVALID, b"the option's lengths do not add up");
            return None;
        };
        let Some(index) = self.exports.find(name) else {
            self.refuse_unknown(option, name);
            return None;
        };
        let session = self.session(index);
        let export = self.exports[index].clone();
        self.information(option, info::EXPORT, |out| {
            out.put_u64(export.size_bytes);
            out.put_u16(session.flags().bits());
        });
        if wanted.contains(info::NAME) {
            self.information(option, info::NAME, |out| out.put_slice(export.name.as_bytes()));
        }
        if wanted.contains(info::DESCRIPTION) {
            self.information(option, info::DESCRIPTION, |out| out.put_slice(export.description.as_bytes()));
        }
        if wanted.contains(info::BLOCK_SIZE) {
            self.information(option, info::BLOCK_SIZE, |out| {
                let sizes = export.block_sizes;
                out.put_u32(sizes.minimum_bytes);
                out.put_u32(sizes.preferred_bytes);
                out.put_u32(sizes.maximum_bytes);
            });
        }
        self.acknowledge(option);
        (option == option::GO).then_some(Ended::Transmission(index, session))
    }

    fn information(&mut self, option: u32, kind: u16, write: impl FnOnce(&mut Vec<u8>)) {
        let mut data = Vec::new();
        data.put_u16(kind);
        write(&mut data);
        self.reply(option, rep::INFO, &data);
    }

    fn refuse_unknown(&mut self, option: u32, name: &[u8]) {
        let reason: &[u8] = if name.is_empty() {
            b"there are several exports, and no default among them: name one"
        } else {
            b"no such export"
        };
        self.reply(option, rep::ERR_UNKNOWN, reason);
    }

    /// Both options on metadata contexts. To set replaces what was set before, even if it fails.
    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.allocation = None;
        }
        if self.headers == Headers::Simple {
            return self.reply(option, rep::ERR_INVALID, b"negotiate structured replies or extended headers first");
        }
        let Some((name, selected)) = parse_meta_context(data, set) else {
            return self.reply(option, rep::ERR_INVALID, b"the option's lengths do not add up");
        };
        let Some(export) = self.exports.find(name) else { return self.refuse_unknown(option, name) };
        if selected {
            let mut context = Vec::new();
            context.put_u32(if set { ALLOCATION_CONTEXT_ID } else { 0 });
            context.put_slice(ALLOCATION_CONTEXT.as_bytes());
            self.reply(option, rep::META_CONTEXT, &context);
        }
        self.acknowledge(option);
        if set && selected {
            self.allocation = Some(export);
        }
    }
}

impl Awaited {
    fn length_bytes(self) -> usize {
        match self {
            Self::ClientFlags => CLIENT_FLAGS_BYTES,
            Self::OptionHeader => OPTION_HEADER_BYTES,
            Self::OptionData { length_bytes, .. } => length_bytes as usize,
            Self::Skipped { .. } | Self::Nothing => 0,
        }
    }
}
