//! The handshake without I/O: fixed newstyle negotiation, client's side.
//!
//! ```text
//! S: NBDMAGIC | IHAVEOPT | handshake flags 16
//! C: client flags 32
//! C: IHAVEOPT | option 32 | length 32 | data                                  one at a time,
//! S: 0003e889045565a9 | option 32 | reply type 32 | length 32 | data          one or more replies to each
//! ```
//!
//! The client asks for the most that there is, and takes the next best where the server does not know an option:
//! extended headers, structured replies, simple ones; `NBD_OPT_GO`, `NBD_OPT_EXPORT_NAME`.

use std::mem;

use bytes::{Buf as _, BufMut as _};

use super::{
    agreed::Agreed,
    error::{Error, Refusal},
};
use crate::{
    Headers,
    partial::Partial,
    proto::{
        FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_BYTES_MAX, info,
        option, option_reply as rep,
    },
};

/// The most data of a reply to an option: two strings and their lengths, with room to spare.
const REPLY_BYTES_MAX: u32 = 16 << 10;
/// The most replies to one option: exports that a server lists.
const REPLIES_MAX: u32 = 4096;

const GREETING_BYTES: usize = 18;
const REPLY_HEADER_BYTES: usize = 20;
/// Size 64, flags 16; zeros follow if the server does not know that it can leave them out.
const EXPORT_NAME_REPLY_BYTES: usize = 10;
const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// What a client connects for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Goal {
    /// To use an export. The empty name is that of the server's default.
    Use {
        /// Its name.
        export: String,
    },
    /// To hear which exports there are.
    List,
}

/// An export as a server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// A line for people. May be empty.
    pub description: String,
}

/// How a handshake ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Requests follow.
    Transmission(Agreed),
    /// TLS follows, and in it the rest: see [`Handshake::in_tls`].
    StartTls,
    /// These exports there are; the session has ended.
    Listed(Vec<Listed>),
}

/// One connection's handshake.
#[derive(Debug)]
pub struct Handshake {
    goal: Goal,
    wants_tls: bool,
    awaited: Awaited,
    /// The part of the awaited item that has arrived.
    partial: Partial,
    output: Vec<u8>,
    /// The option that was sent last, and how many replies it had.
    asked: (u32, u32),
    no_zeroes: bool,
    headers: Headers,
    size_and_flags: Option<(u64, u16)>,
    block_sizes: Option<[u32; 3]>,
    listed: Vec<Listed>,
    ended: Option<Ended>,
}

/// What the server is to send next.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    Greeting,
    ReplyHeader,
    ReplyData {
        kind: u32,
        length_bytes: u32,
    },
    ExportNameReply,
    /// The handshake has ended or failed.
    Nothing,
}

impl Handshake {
    /// A handshake that waits for the server's greeting. With `wants_tls` it uses TLS, or fails.
    #[must_use]
    pub fn new(goal: Goal, wants_tls: bool) -> Self {
        Self {
            goal,
            wants_tls,
            awaited: Awaited::Greeting,
            partial: Partial::default(),
            output: Vec::new(),
            asked: (0, 0),
            no_zeroes: false,
            headers: Headers::Simple,
            size_and_flags: None,
            block_sizes: None,
            listed: Vec::new(),
            ended: None,
        }
    }

    /// The handshake that follows in TLS.
    ///
    /// # Panics
    /// If this one has not ended with [`Ended::StartTls`].
    #[must_use]
    pub fn in_tls(self) -> Self {
        assert_eq!(self.ended, Some(Ended::StartTls), "TLS begins when the server has agreed");
        let mut inner = Self { no_zeroes: self.no_zeroes, ..Self::new(self.goal, false) };
        inner.choose();
        inner
    }

    /// Consumes bytes from the server and returns how many: all of them, until the handshake ends.
    ///
    /// # Errors
    /// Any that ends the connection, [`Error::Refused`] among them.
    pub fn receive(&mut self, input: &[u8]) -> Result<usize, Error> {
        let mut rest = input;
        loop {
            let length = match self.awaited {
                Awaited::Greeting => GREETING_BYTES,
                Awaited::ReplyHeader => REPLY_HEADER_BYTES,
                Awaited::ReplyData { length_bytes, .. } => length_bytes as usize,
                Awaited::ExportNameReply if self.no_zeroes => EXPORT_NAME_REPLY_BYTES,
                Awaited::ExportNameReply => EXPORT_NAME_REPLY_BYTES + EXPORT_NAME_PADDING_BYTES,
                Awaited::Nothing => break,
            };
            let Some(item) = self.partial.complete(length, &mut rest) else { break };
            let awaited = mem::replace(&mut self.awaited, Awaited::Nothing);
            self.step(awaited, &item)?;
        }
        if self.ended == Some(Ended::StartTls) && !rest.is_empty() {
            return Err(Error::PlainAfterStartTls);
        }
        Ok(input.len() - rest.len())
    }

    /// Takes the bytes that have to be sent to the server.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    /// How the handshake ended, when it has.
    #[must_use]
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// Handles a complete item.
    fn step(&mut self, awaited: Awaited, item: &[u8]) -> Result<(), Error> {
        match awaited {
            Awaited::Greeting => self.greeting(item),
            Awaited::ReplyHeader => self.reply_header(item),
            Awaited::ReplyData { kind, .. } => self.reply(kind, item),
            Awaited::ExportNameReply => {
                let mut item = item;
                self.size_and_flags = Some((item.get_u64(), item.get_u16()));
                self.agree()
            }
            Awaited::Nothing => unreachable!("nothing is collected"),
        }
    }

    fn greeting(&mut self, mut item: &[u8]) -> Result<(), Error> {
        for magic in [INIT_MAGIC, OPTION_MAGIC] {
            let found = item.get_u64();
            if found != magic {
                return Err(Error::Greeting { found });
            }
        }
        let flags = item.get_u16();
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(Error::NotFixed);
        }
        self.no_zeroes = flags & FLAG_NO_ZEROES != 0;
        self.output.put_u32(u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)));
        if self.wants_tls {
            self.ask(option::STARTTLS, &[]);
        } else {
            self.choose();
        }
        Ok(())
    }

    /// Asks for what the client came for.
    fn choose(&mut self) {
        match self.goal {
            Goal::Use { .. } => self.ask(option::EXTENDED_HEADERS, &[]),
            Goal::List => self.ask(option::LIST, &[]),
        }
    }

    fn ask(&mut self, option: u32, data: &[u8]) {
        self.asked = (option, 0);
        self.output.put_u64(OPTION_MAGIC);
        self.output.put_u32(option);
        self.output.put_u32(u32::try_from(data.len()).expect("options are made of bounded strings"));
        self.output.put_slice(data);
        self.awaited = if option == option::EXPORT_NAME { Awaited::ExportNameReply } else { Awaited::ReplyHeader };
    }

    /// Asks for the export, with its block sizes.
    fn go(&mut self) {
        let Goal::Use { export } = &self.goal else { unreachable!("only an export that is wanted is asked for") };
        let mut data = Vec::with_capacity(8 + export.len());
        data.put_u32(u32::try_from(export.len()).expect("a name is bounded"));
        data.put_slice(export.as_bytes());
        data.put_u16(1);
        data.put_u16(info::BLOCK_SIZE);
        self.ask(option::GO, &data);
    }

    fn reply_header(&mut self, mut item: &[u8]) -> Result<(), Error> {
        let found = item.get_u64();
        if found != OPTION_REPLY_MAGIC {
            return Err(Error::OptionReplyMagic { found });
        }
        let (asked, replies) = self.asked;
        let (answered, kind, length_bytes) = (item.get_u32(), item.get_u32(), item.get_u32());
        if answered != asked {
            return Err(Error::WrongOption { asked, answered });
        }
        if length_bytes > REPLY_BYTES_MAX {
            return Err(Error::OptionReplyTooLong { option: asked, length_bytes });
        }
        if replies == REPLIES_MAX {
            return Err(Error::TooManyReplies { option: asked });
        }
        self.asked.1 += 1;
        self.awaited = Awaited::ReplyData { kind, length_bytes };
        Ok(())
    }

    fn reply(&mut self, kind: u32, data: &[u8]) -> Result<(), Error> {
        let asked = self.asked.0;
        let wrong = |what| Error::OptionReply { option: asked, what };
        match (asked, kind) {
            (_, rep::ACK) if !data.is_empty() => return Err(wrong("data where none belong")),
            (option::STARTTLS, rep::ACK) => self.ended = Some(Ended::StartTls),
            (option::EXTENDED_HEADERS, rep::ACK) => {
                self.headers = Headers::Extended;
                self.go();
            }
            (option::EXTENDED_HEADERS, error) if is_error(error) => self.ask(option::STRUCTURED_REPLY, &[]),
            (option::STRUCTURED_REPLY, rep::ACK) => {
                self.headers = Headers::Structured;
                self.go();
            }
            (option::STRUCTURED_REPLY, rep::ERR_UNSUP) => self.go(),
            (option::GO, rep::INFO) => {
                self.learn(data)?;
                self.awaited = Awaited::ReplyHeader;
            }
            (option::GO, rep::ACK) => self.agree()?,
            (option::GO, rep::ERR_UNSUP) => {
                let Goal::Use { export } = &self.goal else { unreachable!("an export is wanted") };
                let name = export.clone();
                self.ask(option::EXPORT_NAME, name.as_bytes());
            }
            (option::LIST, rep::SERVER) => {
                self.listed.push(listed(data).ok_or_else(|| wrong("lengths that do not add up"))?);
                self.awaited = Awaited::ReplyHeader;
            }
            (option::LIST, rep::ACK) => {
                self.ended = Some(Ended::Listed(mem::take(&mut self.listed)));
                self.ask(option::ABORT, &[]);
                self.awaited = Awaited::Nothing;
            }
            (_, error) if is_error(error) => {
                let said = String::from_utf8_lossy(&data[..data.len().min(STRING_BYTES_MAX)]);
                let said = said.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect();
                let refusal = Refusal(error);
                let is_tls = asked == option::STARTTLS;
                return Err(if is_tls { Error::NoTls { refusal, said } } else { Error::Refused { refusal, said } });
            }
            _ => return Err(wrong("a type that does not belong to it")),
        }
        Ok(())
    }

    /// Takes in an item of information; of those that were not asked for there may be any.
    fn learn(&mut self, mut data: &[u8]) -> Result<(), Error> {
        let wrong = Error::OptionReply { option: option::GO, what: "information of the wrong length" };
        let Ok(kind) = data.try_get_u16() else { return Err(wrong) };
        match kind {
            info::EXPORT if data.len() == 10 => {
                let told = (data.get_u64(), data.get_u16());
                if self.size_and_flags.is_some_and(|before| before != told) {
                    return Err(Error::OptionReply { option: option::GO, what: "a second size, or other flags" });
                }
                self.size_and_flags = Some(told);
            }
            info::BLOCK_SIZE if data.len() == 12 => {
                self.block_sizes = Some([data.get_u32(), data.get_u32(), data.get_u32()]);
            }
            info::EXPORT | info::BLOCK_SIZE => return Err(wrong),
            _ => {}
        }
        Ok(())
    }

    fn agree(&mut self) -> Result<(), Error> {
        let none = Error::OptionReply { option: self.asked.0, what: "no size of the export" };
        let (size_bytes, flags) = self.size_and_flags.ok_or(none)?;
        self.ended = Some(Ended::Transmission(Agreed::new(size_bytes, flags, self.block_sizes, self.headers)?));
        Ok(())
    }
}

fn is_error(kind: u32) -> bool {
    kind >> 31 == 1
}

/// Name length 32, name, description.
fn listed(mut data: &[u8]) -> Option<Listed> {
    let length = data.try_get_u32().ok()? as usize;
    let (name, description) = data.split_at_checked(length)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(Listed { name: text(name), description: text(description) })
}

#[cfg(test)]
mod tests;
