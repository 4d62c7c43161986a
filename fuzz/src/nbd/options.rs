//! What a server may and must answer in the handshake.

use super::export::Kind;
use super::wire::{CONTEXT, GREETING, Headers, OPTION_MAGIC, OPTION_REPLY_MAGIC, Reader, option, option_reply as rep};

/// The longest option that a server need look at, the longest that it need skip, and how many it need take. The first
/// holds the longest name of an export and queries beside it.
const LOOKED_AT_MAX: u32 = 16 << 10;
const SKIPPED_MAX: u32 = 1 << 20;
const OPTIONS_MAX: u32 = 64;

/// What the server told of the export, `NBD_FLAG_*`.
pub(super) mod can {
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    pub(in super::super) const ROTATIONAL: u16 = 1 << 4;
    pub(in super::super) const TRIM: u16 = 1 << 5;
    pub(in super::super) const WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const DF: u16 = 1 << 7;
    pub(in super::super) const FAST_ZERO: u16 = 1 << 11;
    pub(in super::super) const STATUS_PAYLOAD: u16 = 1 << 12;
    /// Flags are there, flush, FUA, several connections, cache.
    pub(in super::super) const ALWAYS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 8 | 1 << 10;
}

/// What a handshake has come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) headers: Headers,
    /// The server's number for the context that the client has chosen.
    pub(super) context: Option<u32>,
    /// [`can`].
    pub(super) flags: u16,
}

/// A reply to an option: its type and its data.
type Reply<'a> = (u32, &'a [u8]);

/// Where the handshake stands.
struct Handshake<'a> {
    kind: &'a Kind,
    no_zeroes: bool,
    headers: Headers,
    context: Option<u32>,
}

/// The next thing that the client says.
enum Next<'a> {
    Option {
        number: u32,
        data: &'a [u8],
        is_too_big: bool,
    },
    /// The client has ended its side, between two options or within one.
    End,
    /// Nobody need understand it: the server ends the connection.
    Nonsense,
}

/// Follows the handshake in what was `sent` and `said`; the session, if requests follow. Both readers stand behind the
/// handshake then.
pub(super) fn follow(kind: &Kind, sent: &mut Reader<'_>, said: &mut Reader<'_>) -> Option<Session> {
    assert_eq!(said.take(GREETING.len() as u64), Some(GREETING), "the server greets");
    let flags = sent.u32().filter(|flags| flags & !3 == 0)?;
    let mut handshake = Handshake { kind, no_zeroes: flags & 2 != 0, headers: Headers::Simple, context: None };
    // What came together with nonsense may have no answers. Who knows none of them knows no more of the session.
    let mut is_silent = false;
    for count in 1.. {
        let (number, data, is_too_big) = match next(sent, count) {
            Next::Option { number, data, is_too_big } => (number, data, is_too_big),
            Next::End => {
                assert!(!is_silent, "every option is answered");
                return None;
            }
            Next::Nonsense => return None,
        };
        let is_last = handshake.ends_with(number, data, is_too_big);
        is_silent |= said.is_empty();
        if is_silent {
            assert!(said.is_empty(), "no option is left out");
            // Refused without a reply: also nonsense.
            let is_refused = number == option::EXPORT_NAME && !is_last;
            assert!(!is_last, "the last option is answered");
            if is_refused {
                return None;
            }
            continue;
        }
        if number == option::EXPORT_NAME {
            return is_last.then(|| handshake.old_reply(said));
        }
        let replies = replies(number, said);
        let flags = handshake.check(number, data, is_too_big, &replies);
        match number {
            option::GO if is_last => {
                let flags = flags.expect("the export was described");
                return Some(Session { headers: handshake.headers, context: handshake.context, flags });
            }
            option::ABORT if is_last => return None,
            _ => {}
        }
    }
    unreachable!("options are counted")
}

fn next<'a>(sent: &mut Reader<'a>, count: u32) -> Next<'a> {
    let Some(mut header) = sent.take(16).map(Reader) else { return Next::End };
    if header.take(8) != Some(OPTION_MAGIC) {
        return Next::Nonsense;
    }
    let (Some(number), Some(length)) = (header.u32(), header.u32()) else { return Next::End };
    let length_max = if number == option::EXPORT_NAME { LOOKED_AT_MAX } else { SKIPPED_MAX };
    if length > length_max || count > OPTIONS_MAX {
        return Next::Nonsense;
    }
    let Some(data) = sent.take(length.into()) else { return Next::End };
    Next::Option { number, data, is_too_big: length > LOOKED_AT_MAX }
}

/// All replies to one option: the last one says that it is.
fn replies<'a>(number: u32, said: &mut Reader<'a>) -> Vec<Reply<'a>> {
    let mut replies = Vec::new();
    loop {
        assert_eq!(said.u64(), Some(OPTION_REPLY_MAGIC), "a reply to an option begins");
        assert_eq!(said.u32(), Some(number), "options are answered one after the other");
        let kind = said.u32().expect("a reply has a type");
        let data = said.string().expect("a reply is whole");
        replies.push((kind, data));
        if kind == rep::ACK || kind >> 31 == 1 {
            assert!(kind != rep::ACK || data.is_empty(), "an acknowledgement says nothing");
            return replies;
        }
    }
}

impl Handshake<'_> {
    /// Whether the client means this export.
    fn is_own(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.kind.name.as_bytes()
    }

    /// Whether nothing follows in the handshake if this is said.
    fn ends_with(&self, number: u32, data: &[u8], is_too_big: bool) -> bool {
        match number {
            _ if is_too_big => false,
            option::EXPORT_NAME => self.is_own(data),
            option::GO => information(data).is_some_and(|(name, _)| self.is_own(name)),
            option::ABORT => true,
            _ => false,
        }
    }

    /// The reply to `NBD_OPT_EXPORT_NAME`.
    fn old_reply(&self, said: &mut Reader<'_>) -> Session {
        assert_eq!(said.u64(), Some(self.kind.size), "the export's size");
        let flags = self.flags(said.u16().expect("the export's flags"));
        if !self.no_zeroes {
            assert_eq!(said.take(124), Some(&[0; 124][..]), "room that nobody uses");
        }
        Session { headers: self.headers, context: self.context, flags }
    }

    /// The same flags, once they are what they should be.
    fn flags(&self, flags: u16) -> u16 {
        let Kind { read_only, rotational, trim, fast_zero, .. } = *self.kind;
        let expected = [
            (read_only, can::READ_ONLY),
            (rotational, can::ROTATIONAL),
            (!read_only, can::WRITE_ZEROES),
            (!read_only && trim, can::TRIM),
            (!read_only && fast_zero, can::FAST_ZERO),
            (self.headers != Headers::Simple, can::DF),
            (self.headers == Headers::Extended && self.context.is_some(), can::STATUS_PAYLOAD),
        ];
        let expected = expected.iter().filter(|(is_so, _)| *is_so).fold(can::ALWAYS, |flags, (_, flag)| flags | flag);
        assert_eq!(flags, expected, "what the export can do");
        flags
    }

    /// Checks the replies to an option, and takes in what they settle. The flags, if the export was described.
    fn check(&mut self, number: u32, data: &[u8], is_too_big: bool, replies: &[Reply<'_>]) -> Option<u16> {
        let (&(last, _), before) = replies.split_last().expect("an option has a reply");
        if is_too_big {
            assert_eq!((last, before.len()), (rep::ERR_TOO_BIG, 0), "option {number}");
            return None;
        }
        let (mut expected, mut flags) = (rep::ACK, None);
        let only = |kind| assert!(before.iter().all(|&(found, _)| found == kind), "replies to {number}: {replies:?}");
        match number {
            option::ABORT => only(rep::ACK),
            option::LIST if data.is_empty() => {
                let name = self.kind.name.as_bytes();
                let listed = [&(name.len() as u32).to_be_bytes(), name, self.kind.description.as_bytes()].concat();
                assert_eq!(before, [(rep::SERVER, &listed[..])], "the one export is listed");
            }
            option::INFO | option::GO => {
                only(rep::INFO);
                match information(data) {
                    None => expected = rep::ERR_INVALID,
                    Some((name, _)) if !self.is_own(name) => expected = rep::ERR_UNKNOWN,
                    Some((_, wanted)) => flags = Some(self.described(wanted, before)),
                }
            }
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS if data.is_empty() => {
                only(rep::ACK);
                expected = self.choose_headers(number);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                only(rep::META_CONTEXT);
                expected = self.contexts(number == option::SET_META_CONTEXT, data, before);
            }
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => expected = rep::ERR_INVALID,
            option::STARTTLS => expected = rep::ERR_POLICY,
            _ => expected = rep::ERR_UNSUP,
        }
        assert_eq!(last, expected, "the last reply to option {number} with {data:?}");
        assert!(last == rep::ACK || before.is_empty(), "what is refused is not answered, too: {replies:?}");
        flags
    }

    /// What the server has to say when the client chooses how requests begin.
    fn choose_headers(&mut self, number: u32) -> u32 {
        match (self.headers, number) {
            (Headers::Extended, option::STRUCTURED_REPLY) => return rep::ERR_EXT_HEADER_REQD,
            (Headers::Extended, _) => return rep::ERR_INVALID,
            (_, option::STRUCTURED_REPLY) => self.headers = Headers::Structured,
            _ => self.headers = Headers::Extended,
        }
        rep::ACK
    }

    /// Checks what is told of the export, of `wanted` items no less and no more.
    fn described(&self, wanted: &[u8], told: &[Reply<'_>]) -> u16 {
        let is_wanted = |item: u16| wanted.chunks(2).any(|number| number == item.to_be_bytes());
        let Kind { name, description, block_min, block_preferred, block_max, .. } = *self.kind;
        let sizes = [block_min, block_preferred, block_max].map(u32::to_be_bytes).concat();
        let mut expected = vec![(1, name.as_bytes()), (2, description.as_bytes()), (3, &sizes[..])];
        expected.retain(|&(item, _)| is_wanted(item));
        let (mut flags, mut found) = (None, Vec::new());
        for &(_, information) in told {
            let mut information = Reader(information);
            match information.u16().expect("an item has a number") {
                0 => {
                    assert_eq!(information.u64(), Some(self.kind.size), "the export's size");
                    let before = flags.replace(self.flags(information.u16().expect("the export's flags")));
                    assert!(before.is_none() && information.is_empty(), "the size is told once");
                }
                item => found.push((item, information.0)),
            }
        }
        found.sort_unstable();
        assert_eq!(found, expected, "what is told of the export");
        flags.expect("the size is told always")
    }

    /// What the server has to say when the client asks for contexts, and what it may list.
    fn contexts(&mut self, is_choice: bool, data: &[u8], listed: &[Reply<'_>]) -> u32 {
        if is_choice {
            self.context = None;
        }
        if self.headers == Headers::Simple {
            return rep::ERR_INVALID;
        }
        let Some((name, is_asked_for)) = queries(data, is_choice) else { return rep::ERR_INVALID };
        if !self.is_own(name) {
            return rep::ERR_UNKNOWN;
        }
        assert_eq!(listed.len(), usize::from(is_asked_for), "the context is there if it was asked for");
        for &(_, context) in listed {
            let mut context = Reader(context);
            let number = context.u32();
            assert_eq!(context.0, CONTEXT, "there is one context");
            self.context = if is_choice { number } else { self.context };
        }
        rep::ACK
    }
}

/// The export's name and the wanted items, of data of `NBD_OPT_INFO` and `NBD_OPT_GO` that add up.
fn information(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut data = Reader(data);
    let name = data.string()?;
    let items = data.u16()?;
    let wanted = data.take(2 * u64::from(items))?;
    data.is_empty().then_some((name, wanted))
}

/// The export's name and whether the one context is asked for, of data that add up. No query at all asks what there is.
fn queries(data: &[u8], is_choice: bool) -> Option<(&[u8], bool)> {
    let mut data = Reader(data);
    let name = data.string()?;
    let count = data.u32()?;
    let mut is_asked_for = count == 0 && !is_choice;
    for _ in 0..count {
        let query = data.string()?;
        is_asked_for |= query == CONTEXT || query == b"base:" && !is_choice;
    }
    data.is_empty().then_some((name, is_asked_for))
}
