//! What a server may and must do with what it is sent.

use std::collections::VecDeque;

use uraid_nbd::{Command, Extent, Span};

use super::export::{Kind, Noted};
use super::options::{Session, can, follow};
use super::wire::{
    Ask, CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, EXTENDED_REQUEST_MAGIC, Headers, REQUEST_MAGIC, Reader, SIMPLE_REPLY_MAGIC,
    command, error, flag,
};

/// Larger payloads end the connection.
const PAYLOAD_MAX: u64 = 64 << 20;

const CHUNK_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_STATUS: u16 = 5;
const CHUNK_STATUS_EXTENDED: u16 = 6;
const CHUNK_ERROR: u16 = 1 << 15 | 1;

/// How a request has to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// With one of these errors.
    Error(Vec<u32>),
    Done,
    Data(Vec<u8>),
    /// Lengths and states.
    Extents(Vec<(u64, u64)>),
}

/// A request whose reply has yet to be found.
#[derive(Debug)]
struct Due {
    ask: Ask,
    answer: Answer,
}

/// How a client's requests end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// After a whole request: all are answered.
    Orderly,
    /// In the middle of one, or with nonsense: whatever is not sent yet is not sent any more.
    Abrupt,
}

/// Judges what a server of such an export `said`, and what has reached that, after a client had `sent` all that.
///
/// # Panics
/// When something is wrong.
pub(super) fn judge(kind: &Kind, sent: &[u8], said: &[u8], noted: &[Noted]) {
    let (mut sent, mut said) = (Reader(sent), Reader(said));
    let Some(session) = follow(kind, &mut sent, &mut said) else {
        assert!(said.is_empty(), "nothing is said after the handshake has failed: {said:?}");
        assert!(noted.is_empty(), "nobody has chosen the export: {noted:?}");
        return;
    };
    let (due, end) = asked(kind, &session, sent, &mut noted.iter());
    answered(&session, due, &mut said, end);
}

/// Reads the requests, and compares them with what has reached the export.
fn asked<'a>(
    kind: &Kind,
    session: &Session,
    mut sent: Reader<'_>,
    noted: &mut impl Iterator<Item = &'a Noted>,
) -> (VecDeque<Due>, End) {
    let mut due = VecDeque::new();
    let end = loop {
        if sent.is_empty() {
            break End::Orderly;
        }
        let Some((mut ask, payload_bytes)) = request(session, &mut sent) else { break End::Abrupt };
        if payload_bytes > PAYLOAD_MAX {
            break End::Abrupt;
        }
        if ask.kind == command::DISCONNECT {
            break End::Orderly;
        }
        let Some(mut payload) = sent.take(payload_bytes) else {
            // Before all of it is there, only memory for it may have been asked for.
            let is_for_it = |noted: &Noted| matches!(noted, Noted::NoMemory(bytes) if u64::from(*bytes) == ask.length);
            assert!(noted.next().is_none_or(is_for_it), "a write is whole before it is done");
            break End::Abrupt;
        };
        if chooses_context(session, &ask, payload) {
            (ask.flags, ask.length) = (ask.flags & !flag::PAYLOAD_LEN, Reader(payload).u64().expect("twelve bytes"));
            payload = &[];
        }
        let errors = errors(kind, session, &ask);
        let answer = if errors.is_empty() { carried_out(&ask, payload, noted.next()) } else { Answer::Error(errors) };
        due.push_back(Due { ask, answer });
    };
    assert!(noted.next().is_none(), "nothing reaches the export that nobody asked for");
    (due, end)
}

/// The next request and how many bytes of payload follow; none if it does not begin as one, or not all of it is there.
fn request(session: &Session, sent: &mut Reader<'_>) -> Option<(Ask, u64)> {
    let is_extended = session.headers == Headers::Extended;
    let magic = if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
    if sent.u32()? != magic {
        return None;
    }
    let (flags, kind, cookie, offset) = (sent.u16()?, sent.u16()?, sent.u64()?, sent.u64()?);
    let length = if is_extended { sent.u64()? } else { sent.u32()?.into() };
    let has_payload = if is_extended { flags & flag::PAYLOAD_LEN != 0 } else { kind == command::WRITE };
    Some((Ask { flags, kind, cookie, offset, length }, if has_payload { length } else { 0 }))
}

/// Whether a payload says that a status is asked for the one context.
fn chooses_context(session: &Session, ask: &Ask, payload: &[u8]) -> bool {
    let is_such = ask.kind == command::BLOCK_STATUS && session.flags & can::STATUS_PAYLOAD != 0;
    let has_payload = ask.flags & flag::PAYLOAD_LEN != 0 && payload.len() == 12;
    is_such && has_payload && Reader(&payload[8..]).u32() == session.context
}

/// What may be said against a request; nothing: it is to be carried out.
fn errors(kind: &Kind, session: &Session, ask: &Ask) -> Vec<u32> {
    let Ask { flags, kind: number, offset, length, .. } = *ask;
    let can = |flag| session.flags & flag != 0;
    let mut errors = Vec::new();
    let mut unless = |holds: bool, error: u32| errors.extend(Some(error).filter(|_| !holds));
    let (changes, moves_data) = match number {
        command::READ => (false, true),
        command::WRITE => (true, true),
        command::TRIM | command::WRITE_ZEROES => (true, false),
        _ => (false, false),
    };
    let (has_span, is_known) = match number {
        command::READ | command::WRITE | command::CACHE => (true, true),
        command::TRIM => (true, can(can::TRIM)),
        command::WRITE_ZEROES => (true, can(can::WRITE_ZEROES)),
        command::BLOCK_STATUS => (true, session.context.is_some()),
        command::FLUSH => (false, offset == 0 && length == 0),
        _ => (false, false),
    };
    unless(!changes || !can(can::READ_ONLY), error::EPERM);
    unless(is_known, error::EINVAL);
    let own = match number {
        command::READ if can(can::DF) => flag::DF,
        command::WRITE if session.headers == Headers::Extended => flag::PAYLOAD_LEN,
        command::WRITE_ZEROES if can(can::FAST_ZERO) => flag::NO_HOLE | flag::FAST_ZERO,
        command::WRITE_ZEROES => flag::NO_HOLE,
        command::BLOCK_STATUS => flag::REQ_ONE,
        _ => 0,
    };
    unless(flags & !(own | flag::FUA) == 0, error::EINVAL);
    if session.headers == Headers::Extended && number == command::WRITE {
        unless(flags & flag::PAYLOAD_LEN != 0, error::EINVAL);
    }
    if !has_span {
        return errors;
    }
    let block = u64::from(kind.block_min);
    let is_inside = offset.checked_add(length).is_some_and(|end| end <= kind.size);
    unless(length > 0 && offset.is_multiple_of(block) && length.is_multiple_of(block), error::EINVAL);
    let beyond = matches!(number, command::WRITE | command::WRITE_ZEROES);
    unless(is_inside, if beyond { error::ENOSPC } else { error::EINVAL });
    let is_bounded = !moves_data || length <= kind.block_max.into();
    unless(is_bounded, if flags & flag::DF == 0 { error::EINVAL } else { error::EOVERFLOW });
    errors
}

/// Checks that a request has reached the export as it was asked for: how it has to be answered then.
fn carried_out(ask: &Ask, payload: &[u8], noted: Option<&Noted>) -> Answer {
    let (command, outcome) = match noted.unwrap_or_else(|| panic!("{ask:?} has to reach the export")) {
        Noted::NoMemory(bytes) => {
            let is_for_it = matches!(ask.kind, command::READ | command::WRITE) && u64::from(*bytes) == ask.length;
            assert!(is_for_it, "{ask:?} takes no memory of {bytes} bytes");
            return Answer::Error(vec![error::ENOMEM]);
        }
        Noted::Command(command, outcome) => (command, outcome),
    };
    let span = Span { offset_bytes: ask.offset, length_bytes: ask.length };
    let has = |flag| ask.flags & flag != 0;
    let fua = has(flag::FUA);
    let expected = match ask.kind {
        command::READ => Command::Read { span, buffer: () },
        command::WRITE => Command::Write { span, buffer: (), fua },
        command::FLUSH => Command::Flush,
        command::TRIM => Command::Trim { span, fua },
        command::CACHE => Command::Cache { span },
        command::WRITE_ZEROES => {
            Command::WriteZeroes { span, fua, no_hole: has(flag::NO_HOLE), fast: has(flag::FAST_ZERO) }
        }
        _ => Command::BlockStatus { span, one: has(flag::REQ_ONE) },
    };
    let (found, data) = command.clone().split();
    assert_eq!(found, expected, "what reaches the export is {ask:?}");
    if ask.kind == command::WRITE {
        assert!(data.as_deref() == Some(payload), "a write has its own data: {ask:?}");
    }
    match (outcome, data) {
        (Err(uraid_nbd::NbdError::Io), _) => Answer::Error(vec![error::EIO]),
        (Err(_), _) => Answer::Error(vec![error::ENOTSUP]),
        (Ok(_), Some(data)) if ask.kind == command::READ => Answer::Data(data),
        (Ok(extents), _) if ask.kind == command::BLOCK_STATUS => Answer::Extents(cut(ask, extents)),
        _ => Answer::Done,
    }
}

/// The extents that are about the request: one of them if it wants one.
fn cut(ask: &Ask, extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut left = ask.length;
    let mut cut: Vec<_> = extents
        .iter()
        .map(|extent| {
            let length = extent.length_bytes.min(left);
            left -= length;
            (length, u64::from(extent.hole) | u64::from(extent.zero) << 1)
        })
        .filter(|&(length, _)| length > 0)
        .collect();
    if ask.flags & flag::REQ_ONE != 0 {
        cut.truncate(1);
    }
    cut
}

/// Reads the replies, and finds the request of each.
fn answered(session: &Session, mut due: VecDeque<Due>, said: &mut Reader<'_>, end: End) {
    while !said.is_empty() {
        let is_simple = Reader(said.0).u32() == Some(SIMPLE_REPLY_MAGIC);
        let found = if is_simple { simple(session, &due, said) } else { chunk(session, &due, said) };
        match found {
            Found::Reply(index) => drop(due.remove(index)),
            Found::Short => {
                assert_eq!(end, End::Abrupt, "the last reply is whole: {said:?}");
                return;
            }
            Found::Ambiguous => return,
        }
    }
    assert!(end == End::Abrupt || due.is_empty(), "these have no reply: {due:?}");
}

/// A reply's request.
enum Found {
    Reply(usize),
    /// Not all of the reply is there.
    Short,
    /// Several requests have the same cookie, and nobody can tell which one's reply it is, nor how long.
    Ambiguous,
}

/// The first request of that cookie whose reply may be such.
fn find(due: &VecDeque<Due>, cookie: u64, what: &str, is_such: impl Fn(&Due) -> bool) -> usize {
    let found = due.iter().position(|due| due.ask.cookie == cookie && is_such(due));
    found.unwrap_or_else(|| panic!("nobody asked for {what} with the cookie {cookie:#x}: {due:?}"))
}

fn simple(session: &Session, due: &VecDeque<Due>, said: &mut Reader<'_>) -> Found {
    assert_ne!(session.headers, Headers::Extended, "extended headers have no simple replies");
    let (_, Some(error), Some(cookie)) = (said.u32(), said.u32(), said.u64()) else { return Found::Short };
    // Replies that may have data are structured, if there are such.
    let may_be_simple = |due: &Due| {
        session.headers == Headers::Simple || !matches!(due.ask.kind, command::READ | command::BLOCK_STATUS)
    };
    if error != 0 {
        let is_such =
            |due: &Due| may_be_simple(due) && matches!(&due.answer, Answer::Error(errors) if errors.contains(&error));
        return Found::Reply(find(due, cookie, &format!("the error {error}"), is_such));
    }
    let length = |due: &Due| match &due.answer {
        _ if !may_be_simple(due) => None,
        Answer::Done => Some(0),
        Answer::Data(data) => Some(data.len()),
        Answer::Error(_) | Answer::Extents(_) => None,
    };
    let first = find(due, cookie, "a success", |due| length(due).is_some());
    let bytes = length(&due[first]).expect("a success has a length");
    let mut lengths = due.iter().filter(|due| due.ask.cookie == cookie).filter_map(length);
    if lengths.any(|other| other != bytes) {
        return Found::Ambiguous;
    }
    let Some(found) = said.take(bytes as u64) else { return Found::Short };
    let is_such = |due: &Due| match &due.answer {
        Answer::Data(data) => may_be_simple(due) && data == found,
        answer => may_be_simple(due) && *answer == Answer::Done,
    };
    Found::Reply(find(due, cookie, "such data", is_such))
}

fn chunk(session: &Session, due: &VecDeque<Due>, said: &mut Reader<'_>) -> Found {
    let Some(magic) = said.u32() else { return Found::Short };
    let expected = match session.headers {
        Headers::Simple => panic!("{magic:#x} is no reply, or of a form that nobody has asked for"),
        Headers::Structured => CHUNK_MAGIC,
        Headers::Extended => EXTENDED_CHUNK_MAGIC,
    };
    assert_eq!(magic, expected, "a reply begins");
    let is_extended = session.headers == Headers::Extended;
    let (Some(flags), Some(kind), Some(cookie)) = (said.u16(), said.u16(), said.u64()) else { return Found::Short };
    let offset = if is_extended { said.u64().map(Some) } else { Some(None) };
    let length = if is_extended { said.u64() } else { said.u32().map(u64::from) };
    let (Some(offset), Some(length)) = (offset, length) else { return Found::Short };
    assert_eq!(flags, CHUNK_DONE, "every reply is one chunk");
    let Some(payload) = said.take(length) else { return Found::Short };
    let body = body(session, kind, payload);
    let is_such = |due: &Due| {
        let is_of_it = offset.is_none_or(|offset| offset == due.ask.offset);
        is_of_it
            && match (&due.answer, &body) {
                (Answer::Error(errors), Body::Error(error)) => errors.contains(error),
                (Answer::Done, Body::None) => true,
                (Answer::Data(data), Body::Data(at, found)) => due.ask.offset == *at && data == found,
                (Answer::Extents(extents), Body::Extents(found)) => extents == found,
                _ => false,
            }
    };
    Found::Reply(find(due, cookie, &format!("{kind:#x} of {payload:?}"), is_such))
}

/// What a chunk says.
enum Body<'a> {
    None,
    Error(u32),
    Data(u64, &'a [u8]),
    Extents(Vec<(u64, u64)>),
}

fn body<'a>(session: &Session, kind: u16, payload: &'a [u8]) -> Body<'a> {
    let is_extended = session.headers == Headers::Extended;
    let mut rest = Reader(payload);
    match kind {
        CHUNK_NONE => {
            assert!(payload.is_empty(), "nothing is said twice");
            Body::None
        }
        CHUNK_DATA => Body::Data(rest.u64().expect("data have an offset"), rest.0),
        CHUNK_ERROR => {
            let error = rest.u32().expect("an error has a number");
            let message = rest.u16().expect("an error has a message, perhaps an empty one");
            assert_eq!(rest.0.len(), usize::from(message), "an error's message is as long as it says");
            Body::Error(error)
        }
        CHUNK_STATUS if !is_extended => {
            assert_eq!(rest.u32(), session.context, "there is one context");
            let mut extents = Vec::new();
            while !rest.is_empty() {
                let (Some(length), Some(state)) = (rest.u32(), rest.u32()) else { panic!("half an extent") };
                extents.push((length.into(), state.into()));
            }
            Body::Extents(extents)
        }
        CHUNK_STATUS_EXTENDED if is_extended => {
            assert_eq!(rest.u32(), session.context, "there is one context");
            let count = rest.u32().expect("extents are counted");
            let extent = |_| rest.u64().zip(rest.u64()).expect("an extent is whole");
            let extents = (0..count).map(extent).collect();
            assert!(rest.is_empty(), "there are no more extents than that");
            Body::Extents(extents)
        }
        _ => panic!("a chunk of the type {kind:#x}"),
    }
}
