//! What each option means.

use bytes::{Buf as _, BufMut as _};

use super::{Ended, Handshake};
use crate::{
    Error,
    proto::{ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, STRING_BYTES_MAX, info, option, option_reply as rep},
    transmission::{Session, transmission_flags},
};

/// Room after the reply to `NBD_OPT_EXPORT_NAME`, for clients that want it.
const EXPORT_NAME_PADDING_BYTES: usize = 124;

impl Handshake {
    /// Answers an option whose data are complete, and says whether it ends the handshake.
    pub(super) fn option(&mut self, option: u32, data: &[u8]) -> Result<Option<Ended>, Error> {
        match option {
            option::EXPORT_NAME => return self.export_name(data).map(Some),
            option::ABORT => {
                self.acknowledge(option);
                return Ok(Some(Ended::Aborted));
            }
            option::GO | option::INFO => return Ok(self.info(option, data)),
            option::LIST if data.is_empty() => self.list(),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured_replies = true;
                self.acknowledge(option);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                self.reply(option, rep::ERR_INVALID, b"the option takes no data");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data),
            option::STARTTLS => self.reply(option, rep::ERR_UNSUP, b"this server has no TLS"),
            _ => self.reply(option, rep::ERR_UNSUP, b"unknown option"),
        }
        Ok(None)
    }

    fn acknowledge(&mut self, option: u32) {
        self.reply(option, rep::ACK, &[]);
    }

    fn serves(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.name.as_bytes()
    }

    fn session(&self) -> Session {
        Session::new(&self.export, self.structured_replies, self.allocation)
    }

    /// `NBD_OPT_EXPORT_NAME`, the old way into the transmission phase, which has no error replies.
    fn export_name(&mut self, name: &[u8]) -> Result<Ended, Error> {
        if !self.serves(name) {
            let shown = &name[..name.len().min(STRING_BYTES_MAX)];
            return Err(Error::UnknownExport { name: String::from_utf8_lossy(shown).into_owned() });
        }
        let session = self.session();
        self.output.put_u64(self.export.size_bytes);
        self.output.put_u16(session.flags().bits());
        if !self.no_zeroes {
            self.output.put_bytes(0, EXPORT_NAME_PADDING_BYTES);
        }
        Ok(Ended::Transmission(session))
    }

    fn list(&mut self) {
        let mut server = Vec::new();
        server.put_u32(self.export.name.len() as u32);
        server.put_slice(self.export.name.as_bytes());
        server.put_slice(self.export.description.as_bytes());
        self.reply(option::LIST, rep::SERVER, &server);
        self.acknowledge(option::LIST);
    }

    /// `NBD_OPT_INFO`, and `NBD_OPT_GO`, which says the same and starts the transmission phase.
    fn info(&mut self, option: u32, data: &[u8]) -> Option<Ended> {
        let Some((name, wanted)) = parse_info(data) else {
            self.reply(option, rep::ERR_INVALID, b"the option's lengths do not add up");
            return None;
        };
        if !self.serves(name) {
            self.reply(option, rep::ERR_UNKNOWN, b"no such export");
            return None;
        }
        let flags = transmission_flags(&self.export, self.structured_replies);
        self.information(option, info::EXPORT, |export, out| {
            out.put_u64(export.size_bytes);
            out.put_u16(flags.bits());
        });
        if wanted.contains(info::NAME) {
            self.information(option, info::NAME, |export, out| out.put_slice(export.name.as_bytes()));
        }
        if wanted.contains(info::DESCRIPTION) {
            self.information(option, info::DESCRIPTION, |export, out| out.put_slice(export.description.as_bytes()));
        }
        if wanted.contains(info::BLOCK_SIZE) {
            self.information(option, info::BLOCK_SIZE, |export, out| {
                let sizes = export.block_sizes;
                out.put_u32(sizes.minimum_bytes);
                out.put_u32(sizes.preferred_bytes);
                out.put_u32(sizes.maximum_bytes);
            });
        }
        self.acknowledge(option);
        (option == option::GO).then(|| Ended::Transmission(self.session()))
    }

    fn information(&mut self, option: u32, kind: u16, write: impl FnOnce(&crate::ExportInfo, &mut Vec<u8>)) {
        let mut data = Vec::new();
        data.put_u16(kind);
        write(&self.export, &mut data);
        self.reply(option, rep::INFO, &data);
    }

    /// Both options on metadata contexts. To set replaces what was set before, even if it fails.
    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.allocation = false;
        }
        if !self.structured_replies {
            return self.reply(option, rep::ERR_INVALID, b"negotiate structured replies first");
        }
        let Some((name, selected)) = parse_meta_context(data, set) else {
            return self.reply(option, rep::ERR_INVALID, b"the option's lengths do not add up");
        };
        if !self.serves(name) {
            return self.reply(option, rep::ERR_UNKNOWN, b"no such export");
        }
        if selected {
            let mut context = Vec::new();
            context.put_u32(if set { ALLOCATION_CONTEXT_ID } else { 0 });
            context.put_slice(ALLOCATION_CONTEXT.as_bytes());
            self.reply(option, rep::META_CONTEXT, &context);
        }
        self.acknowledge(option);
        self.allocation |= set && selected;
    }
}

/// The items of information asked for, of those that there are.
#[derive(Clone, Copy)]
struct Wanted(u16);

impl Wanted {
    fn contains(self, kind: u16) -> bool {
        self.0 & (1 << kind) != 0
    }
}

/// Name length 32, name, number of items 16, items 16 each. `None` if that is not exactly what `data` holds.
fn parse_info(mut data: &[u8]) -> Option<(&[u8], Wanted)> {
    let name = string(&mut data)?;
    let count = data.try_get_u16().ok()?;
    if data.len() != 2 * usize::from(count) {
        return None;
    }
    let mut wanted = Wanted(0);
    while let Ok(kind) = data.try_get_u16() {
        if kind <= info::BLOCK_SIZE {
            wanted.0 |= 1 << kind;
        }
    }
    Some((name, wanted))
}

/// Name length 32, name, number of queries 32, then length 32 and text of each. Returns the name and whether the
/// queries find the one context: by its name, and, to list, also by its namespace or by no query at all.
fn parse_meta_context(mut data: &[u8], set: bool) -> Option<(&[u8], bool)> {
    let name = string(&mut data)?;
    let queries = data.try_get_u32().ok()?;
    let mut selected = queries == 0 && !set;
    for _ in 0..queries {
        let query = string(&mut data)?;
        selected |= query == ALLOCATION_CONTEXT.as_bytes() || (!set && query == b"base:");
    }
    data.is_empty().then_some((name, selected))
}

/// Length 32 and that many bytes.
fn string<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = data.try_get_u32().ok()? as usize;
    let (text, rest) = data.split_at_checked(length)?;
    *data = rest;
    Some(text)
}
