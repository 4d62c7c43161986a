//! What a client sends: sound sessions, and what an input makes of them.

use super::export::{KINDS, Kind};
use super::wire::{Ask, CONTEXT, Headers, command, flag, option, string};
use crate::Input;

/// Most changes to a session, and most pieces in which it is sent.
const EDITS_MAX: u8 = 12;
const CUTS_MAX: u8 = 8;

/// Longest data of a write that are sent, whatever its length says.
const PAYLOAD_MAX: u64 = 40 << 10;

/// A session as a client sends it: to the server of one of the kinds of export, in these pieces.
#[derive(Clone, Debug)]
pub struct Script {
    pub(super) kind: usize,
    pub(super) pieces: Vec<Vec<u8>>,
}

/// How a client begins.
#[derive(Clone, Copy)]
enum Opening {
    Go(Headers),
    /// Without `NBD_OPT_GO`, as old clients do.
    ExportName(Headers),
}

const OPENINGS: [Opening; 6] = [
    Opening::Go(Headers::Simple),
    Opening::Go(Headers::Structured),
    Opening::Go(Headers::Extended),
    Opening::ExportName(Headers::Simple),
    Opening::ExportName(Headers::Structured),
    Opening::ExportName(Headers::Extended),
];

/// All commands, and one that there is not.
const COMMANDS: [u16; 9] = [
    command::READ,
    command::WRITE,
    command::FLUSH,
    command::TRIM,
    command::CACHE,
    command::WRITE_ZEROES,
    command::BLOCK_STATUS,
    command::DISCONNECT,
    9,
];

/// A session with changes to its handshake.
#[must_use]
pub fn handshake(input: &mut Input<'_>) -> Script {
    let kind = usize::from(input.byte()) % KINDS.len();
    let export = &KINDS[kind];
    let mut messages = if input.byte().is_multiple_of(2) {
        every_option(export)
    } else {
        let opening = input.pick(&OPENINGS);
        [opening.messages(export), vec![every_request(export, opening.headers()).concat()]].concat()
    };
    edit(&mut messages, input, |input| any_option(export, input));
    Script { kind, pieces: cut(&messages.concat(), input) }
}

/// A session with changes to its requests.
#[must_use]
pub fn transmission(input: &mut Input<'_>) -> Script {
    let kind = usize::from(input.byte()) % KINDS.len();
    let export = &KINDS[kind];
    let opening = input.pick(&OPENINGS);
    let headers = opening.headers();
    let mut requests = every_request(export, headers);
    edit(&mut requests, input, |input| any_request(export, headers, input));
    let messages = [opening.messages(export), requests].concat();
    Script { kind, pieces: cut(&messages.concat(), input) }
}

/// Sessions that nobody has changed: every option, and every request in every form, after each way to begin.
pub(super) fn sound(kind: usize) -> Vec<Vec<Vec<u8>>> {
    let export = &KINDS[kind];
    let begun = |opening: Opening| [opening.messages(export), every_request(export, opening.headers())].concat();
    let mut sessions = OPENINGS.map(begun).to_vec();
    sessions.push(every_option(export));
    sessions.push([flags(), vec![option(option::ABORT, b"")]].concat());
    sessions.push([vec![vec![0; 4]], vec![option(option::EXPORT_NAME, export.name.as_bytes())]].concat());
    sessions
}

impl Opening {
    fn headers(self) -> Headers {
        let (Self::Go(headers) | Self::ExportName(headers)) = self;
        headers
    }

    fn messages(self, export: &Kind) -> Vec<Vec<u8>> {
        let mut messages = flags();
        match self.headers() {
            Headers::Simple => {}
            Headers::Structured => messages.push(option(option::STRUCTURED_REPLY, b"")),
            Headers::Extended => messages.push(option(option::EXTENDED_HEADERS, b"")),
        }
        if self.headers() != Headers::Simple {
            messages.push(option(option::SET_META_CONTEXT, &queries(export.name, &[CONTEXT])));
        }
        messages.push(match self {
            Self::Go(_) => option(option::GO, &information(export.name, &[3])),
            Self::ExportName(_) => option(option::EXPORT_NAME, export.name.as_bytes()),
        });
        messages
    }
}

/// Fixed newstyle and no zeroes.
fn flags() -> Vec<Vec<u8>> {
    vec![vec![0, 0, 0, 3]]
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
fn information(name: &str, items: &[u16]) -> Vec<u8> {
    let items_bytes = items.iter().flat_map(|item| item.to_be_bytes());
    let count = (items.len() as u16).to_be_bytes();
    string(name.as_bytes()).into_iter().chain(count).chain(items_bytes).collect()
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
fn queries(name: &str, queries: &[&[u8]]) -> Vec<u8> {
    let count = (queries.len() as u32).to_be_bytes();
    string(name.as_bytes()).into_iter().chain(count).chain(queries.iter().flat_map(|query| string(query))).collect()
}

/// A handshake that says all that can be said, and a request.
fn every_option(export: &Kind) -> Vec<Vec<u8>> {
    let name = export.name;
    let mut messages = flags();
    let options = [
        option(option::LIST, b""),
        option(option::INFO, &information(name, &[0, 1, 2, 3, 77])),
        option(option::INFO, &information("nobody's", &[])),
        option(option::LIST_META_CONTEXT, &queries(name, &[])),
        option(option::STARTTLS, b""),
        option(option::STRUCTURED_REPLY, b""),
        option(option::LIST_META_CONTEXT, &queries(name, &[])),
        option(option::LIST_META_CONTEXT, &queries("", &[b"base:", b"other:context"])),
        option(option::SET_META_CONTEXT, &queries(name, &[b"other:context"])),
        option(option::EXTENDED_HEADERS, b""),
        option(option::EXTENDED_HEADERS, b""),
        option(option::STRUCTURED_REPLY, b""),
        option(99, b"what is that"),
        option(98, &[0; 17 << 10]),
        option(option::SET_META_CONTEXT, &queries(name, &[b"other:context", CONTEXT])),
        option(option::GO, &information("nobody's", &[])),
        option(option::GO, &information("", &[1, 2, 3])),
    ];
    messages.extend(options);
    messages.extend(every_request(export, Headers::Extended).into_iter().take(2));
    messages
}

/// Every request, each once in good order, with every flag that goes with it, and one that is beyond the export.
fn every_request(export: &Kind, headers: Headers) -> Vec<Vec<u8>> {
    let block = u64::from(export.block_min);
    let (extended, structured) = (headers == Headers::Extended, headers != Headers::Simple);
    let carries = if extended { flag::PAYLOAD_LEN } else { 0 };
    let asks = [
        (command::WRITE, flag::FUA | carries, block, 2 * block),
        (command::READ, if structured { flag::DF } else { 0 }, block, 2 * block),
        (command::WRITE_ZEROES, flag::FUA | flag::NO_HOLE, 0, 3 * block),
        (command::WRITE_ZEROES, flag::FAST_ZERO, 0, 3 * block),
        (command::TRIM, flag::FUA, 4 * block, block),
        (command::CACHE, 0, 0, block),
        (command::BLOCK_STATUS, 0, 0, 9 * block),
        (command::BLOCK_STATUS, flag::REQ_ONE, 0, 9 * block),
        (command::BLOCK_STATUS, carries, 0, 12),
        (command::FLUSH, 0, 0, 0),
        (command::READ, 0, export.size - block, 2 * block),
        (command::READ, 0, export.size - block, block),
        (command::WRITE, carries, 0, export.block_max.into()),
        (command::READ, 0, 0, export.block_max.into()),
        (command::DISCONNECT, 0, 0, 0),
    ];
    let request = |((kind, flags, offset, length), cookie)| {
        let ask = Ask { flags, kind, cookie, offset, length };
        ask.encode(headers, &payload(&ask, headers))
    };
    asks.into_iter().zip(1..).map(request).collect()
}

/// What follows a request.
fn payload(ask: &Ask, headers: Headers) -> Vec<u8> {
    let is_there = match headers {
        Headers::Extended => ask.flags & flag::PAYLOAD_LEN != 0,
        Headers::Simple | Headers::Structured => ask.kind == command::WRITE,
    };
    let length = if is_there { ask.length.min(PAYLOAD_MAX) } else { 0 };
    if ask.kind == command::BLOCK_STATUS && length == 12 {
        return [&(1_u64 << 12).to_be_bytes()[..], &1_u32.to_be_bytes()].concat();
    }
    (0..length).map(|at| (at.wrapping_mul(7) ^ ask.cookie.wrapping_mul(13)) as u8).collect()
}

/// Changes messages as the input says: their order, their number, and their first bytes.
fn edit(messages: &mut Vec<Vec<u8>>, input: &mut Input<'_>, any: impl Fn(&mut Input<'_>) -> Vec<u8>) {
    for _ in 0..input.byte() % (EDITS_MAX + 1) {
        let at = usize::from(input.byte()) % messages.len().max(1);
        match input.byte() % 8 {
            0..3 => messages.insert(at, any(input)),
            3 if messages.len() > 1 => drop(messages.remove(at)),
            4 if !messages.is_empty() => messages.insert(at, messages[at].clone()),
            5 if !messages.is_empty() => {
                let other = usize::from(input.byte()) % messages.len();
                messages.swap(at, other);
            }
            6 if !messages.is_empty() => {
                let length = usize::from(input.byte()).min(messages[at].len());
                messages[at].truncate(length);
            }
            7 if messages.get(at).is_some_and(|message| !message.is_empty()) => {
                let end = messages[at].len().min(48);
                input.change(&mut messages[at][..end]);
            }
            _ => messages.push(any(input)),
        }
    }
}

/// Cuts the bytes where the input says.
fn cut(bytes: &[u8], input: &mut Input<'_>) -> Vec<Vec<u8>> {
    let place = |input: &mut Input<'_>| (input.word() as usize) % bytes.len().max(1);
    let mut places: Vec<usize> = (0..input.byte() % (CUTS_MAX + 1)).map(|_| place(input)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|piece| bytes[piece[0]..piece[1]].to_vec()).filter(|piece| !piece.is_empty()).collect()
}

/// An option as the input says.
fn any_option(export: &Kind, input: &mut Input<'_>) -> Vec<u8> {
    let number = match input.byte() % 14 {
        12 => 99,
        13 => input.word() as u32,
        number => u32::from(number),
    };
    let name = input.pick(&[export.name, "", "nobody's", "disk\0"]);
    let contexts: [&[&[u8]]; 5] = [&[], &[CONTEXT], &[b"base:"], &[b"base:allocation\0", b""], &[b"x:y", CONTEXT]];
    let items: [&[u16]; 4] = [&[], &[3], &[0, 1, 2, 3], &[3, 3, 9, 0xffff]];
    let data = match number {
        option::EXPORT_NAME => name.as_bytes().to_vec(),
        option::INFO | option::GO => information(name, input.pick(&items)),
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => queries(name, input.pick(&contexts)),
        _ => Vec::new(),
    };
    let padding: &[usize] = &[0, 0, 0, 0, 0, 1, 5, 300, 5000, 20_000];
    let mut message = option(number, &[data, vec![0; input.pick(padding)]].concat());
    if input.byte() % 8 == 7 {
        let end = message.len().min(64);
        input.change(&mut message[..end]);
    }
    message
}

/// A request as the input says.
fn any_request(export: &Kind, headers: Headers, input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.pick(&COMMANDS);
    let carries = if headers == Headers::Extended && kind == command::WRITE { flag::PAYLOAD_LEN } else { 0 };
    let flags = match input.byte() % 10 {
        0..4 => carries,
        4 => carries | flag::FUA,
        5 => carries | flag::NO_HOLE,
        6 => carries | flag::REQ_ONE,
        7 => flag::DF | (flag::FAST_ZERO * u16::from(kind == command::WRITE_ZEROES)),
        8 => carries ^ flag::PAYLOAD_LEN,
        _ => input.word() as u16,
    };
    let block = u64::from(export.block_min);
    let offset = place(export, input);
    let length = match input.byte() % 10 {
        0..3 => block * u64::from(input.byte() % 16),
        3 => u64::from(input.byte()),
        4 => export.block_max.into(),
        5 => u64::from(export.block_max) + block,
        6 => export.size.saturating_sub(offset),
        7 => export.size.saturating_sub(offset).saturating_add(block),
        8 => 12,
        _ => input.word(),
    };
    let cookie = u64::from(input.byte() % 32) << (8 * (input.byte() % 8));
    let offset = if kind == command::FLUSH && !input.byte().is_multiple_of(4) { 0 } else { offset };
    let length = if kind == command::FLUSH && offset == 0 { 0 } else { length };
    let ask = Ask { flags, kind, cookie, offset, length };
    let mut message = ask.encode(headers, &payload(&ask, headers));
    if input.byte() % 8 == 7 {
        let end = message.len().min(48);
        input.change(&mut message[..end]);
    }
    message
}

/// A place in the export, at its end, behind it or anywhere.
fn place(export: &Kind, input: &mut Input<'_>) -> u64 {
    let block = u64::from(export.block_min);
    match input.byte() % 8 {
        0..4 => block * u64::from(input.byte() % 16),
        4 => export.size.saturating_sub(block * u64::from(input.byte() % 4)),
        5 => export.size.saturating_add(u64::from(input.byte())),
        6 => u64::from(input.byte()),
        _ => input.word(),
    }
}
