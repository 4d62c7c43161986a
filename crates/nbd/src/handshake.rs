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
//! that has arrived. The server has one export, known by its name and, as the default, by the empty name. There is no
//! TLS.

mod options;
#[cfg(test)]
mod tests;

use std::mem;

use bytes::{Buf as _, BufMut as _};

use crate::{
    Error, ExportInfo,
    proto::{FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, option_reply},
    transmission::Session,
};

/// The most data of an option that is looked at. Longer options are skipped and refused.
pub const OPTION_BYTES_MAX: u32 = 16 << 10;
/// The most data of an option that is skipped. A longer option ends the connection.
pub const OPTION_BYTES_SKIPPED_MAX: u32 = 1 << 20;
/// The most options that a client may send.
pub const OPTIONS_MAX: u32 = 64;

const CLIENT_FLAGS_BYTES: usize = 4;
const OPTION_HEADER_BYTES: usize = 16;

/// How a handshake ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Requests follow.
    Transmission(Session),
    /// The client ended the session.
    Aborted,
}

/// One connection's handshake.
#[derive(Debug)]
pub struct Handshake {
    export: ExportInfo,
    awaited: Awaited,
    /// The part of the awaited item that has arrived.
    partial: Vec<u8>,
    output: Vec<u8>,
    options: u32,
    no_zeroes: bool,
    structured_replies: bool,
    allocation: bool,
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
    pub fn new(export: ExportInfo) -> Self {
        let mut output = Vec::new();
        output.put_u64(INIT_MAGIC);
        output.put_u64(OPTION_MAGIC);
        output.put_u16(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        Self {
            export,
            awaited: Awaited::ClientFlags,
            partial: Vec::new(),
            output,
            options: 0,
            no_zeroes: false,
            structured_replies: false,
            allocation: false,
            ended: None,
        }
    }

    /// Consumes bytes from the client and returns how many. The bytes that it leaves are requests that arrived together
    /// with the last option.
    ///
    /// # Errors
    /// Any that ends the connection. What [`Handshake::take_output`] then still holds may be sent or not.
    pub fn receive(&mut self, input: &[u8]) -> Result<usize, Error> {
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
                self.reply(option, option_reply::ERR_TOO_BIG, b"the option has too much data");
                continue;
            }
            let missing = self.awaited.length_bytes() - self.partial.len();
            let taken = missing.min(rest.len());
            self.partial.extend_from_slice(&rest[..taken]);
            rest.advance(taken);
            if taken < missing {
                break;
            }
            let awaited = mem::replace(&mut self.awaited, Awaited::Nothing);
            let item = mem::take(&mut self.partial);
            self.awaited = self.step(awaited, &item)?;
        }
        Ok(input.len() - rest.len())
    }

    /// Takes the bytes that have to be sent to the client.
    pub fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    /// How the handshake ended, when it has.
    pub fn ended(&self) -> Option<Ended> {
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
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        Ok(())
    }

    fn option_header(&mut self, mut item: &[u8]) -> Result<Awaited, Error> {
        let found = item.get_u64();
        let (option, length_bytes) = (item.get_u32(), item.get_u32());
        if found != OPTION_MAGIC {
            return Err(Error::OptionMagic { found });
        }
        if length_bytes > OPTION_BYTES_SKIPPED_MAX {
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
