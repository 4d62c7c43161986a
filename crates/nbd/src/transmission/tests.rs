//! Byte vectors written down from the protocol document, and what any bytes at all may do.

use proptest::prelude::*;

use super::*;
use crate::{BlockSizes, Command, Error, ExportInfo, Extent, Headers, NbdError, Span};

mod extended;

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;

fn export() -> ExportInfo {
    ExportInfo {
        block_sizes: BlockSizes { minimum_bytes: 512, preferred_bytes: 4096, maximum_bytes: 32 << 20 },
        ..ExportInfo::new(1 << 30)
    }
}

fn session() -> Session {
    session_with(Headers::Structured)
}

/// With `base:allocation`.
fn session_with(headers: Headers) -> Session {
    Session::new(&export(), headers, true)
}

/// `25609513 | flags 16 | type 16 | cookie 64 | offset 64 | length 32`, with the cookie `COOKIE!!`.
fn request(flags: u16, kind: u16, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    [
        b"\x25\x60\x95\x13",
        &flags.to_be_bytes()[..],
        &kind.to_be_bytes(),
        b"COOKIE!!",
        &offset_bytes.to_be_bytes(),
        &length_bytes.to_be_bytes(),
    ]
    .concat()
}

const COOKIE: u64 = 0x434f_4f4b_4945_2121;

fn echo(offset_bytes: u64) -> Echo {
    Echo { cookie: COOKIE, offset_bytes }
}

fn decode(session: Session, bytes: &[u8]) -> Result<Command<()>, NbdError> {
    let mut rest = bytes;
    match Decoder::new(session).next(&mut rest).unwrap() {
        Some(Received::Request(Request { echo: Echo { cookie: COOKIE, .. }, command })) => Ok(command),
        Some(Received::Rejected { echo: Echo { cookie: COOKIE, .. }, error }) => Err(error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_as_the_document_has_it() {
    let bytes = b"\x25\x60\x95\x13\0\0\0\0COOKIE!!\0\0\0\0\0\x01\0\0\0\0\x10\0";
    let span = Span { offset_bytes: 0x1_0000, length_bytes: 0x1000 };
    assert_eq!(decode(session(), bytes), Ok(Command::Read { span, buffer: () }));
}

#[test]
fn every_command_with_its_flags() {
    assert_commands(session(), 0, request);
}

/// Every command, in the form of request of a session, in which writes have the flag `payload`.
fn assert_commands(session: Session, payload: u16, request: impl Fn(u16, u16, u64, u32) -> Vec<u8>) {
    let span = Span { offset_bytes: 4096, length_bytes: 512 };
    let decoded = |flags, kind| decode(session, &request(flags, kind, 4096, 512));
    assert_eq!(decoded(FUA, 0), Ok(Command::Read { span, buffer: () }));
    assert_eq!(decoded(DF, 0), Ok(Command::Read { span, buffer: () }));
    assert_eq!(decoded(payload, 1), Ok(Command::Write { span, buffer: (), fua: false }));
    assert_eq!(decoded(FUA | payload, 1), Ok(Command::Write { span, buffer: (), fua: true }));
    assert_eq!(decoded(FUA, 4), Ok(Command::Trim { span, fua: true }));
    assert_eq!(decoded(0, 5), Ok(Command::Cache { span }));
    assert_eq!(decoded(0, 6), Ok(Command::WriteZeroes { span, fua: false, no_hole: false, fast: false }));
    assert_eq!(
        decoded(NO_HOLE | FAST_ZERO | FUA, 6),
        Ok(Command::WriteZeroes { span, fua: true, no_hole: true, fast: true })
    );
    assert_eq!(decoded(0, 7), Ok(Command::BlockStatus { span, one: false }));
    assert_eq!(decoded(REQ_ONE, 7), Ok(Command::BlockStatus { span, one: true }));
    assert_eq!(decode(session, &request(0, 3, 0, 0)), Ok(Command::Flush));
    let mut disconnect = &request(0, 2, 0, 0)[..];
    assert_eq!(Decoder::new(session).next(&mut disconnect).unwrap(), Some(Received::Disconnect));
}

#[test]
fn zeroing_and_trimming_may_exceed_the_maximum_payload() {
    let span = Span { offset_bytes: 0, length_bytes: 1 << 30 };
    assert_eq!(decode(session(), &request(0, 4, 0, 1 << 30)), Ok(Command::Trim { span, fua: false }));
    assert!(decode(session(), &request(0, 6, 0, 1 << 30)).is_ok());
    assert!(decode(session(), &request(0, 7, 0, 1 << 30)).is_ok());
}

#[test]
fn refusals_have_the_error_of_the_document() {
    use NbdError::{Invalid, NoSpace, NotPermitted, Overflow};
    let whole = session();
    let simple = Session::new(&export(), Headers::Simple, false);
    let plain = Session::new(&ExportInfo { trim: false, fast_zero: false, ..export() }, Headers::Structured, false);
    let read_only = Session::new(&ExportInfo { read_only: true, ..export() }, Headers::Structured, true);
    let end = 1 << 30;
    let cases = [
        ("unknown command", whole, (0, 8, 0, 512), Invalid),
        ("unknown command with a huge length", whole, (0, 0xffff, 0, u32::MAX), Invalid),
        ("unknown flag", whole, (32, 0, 0, 512), Invalid),
        ("flag of another command", whole, (NO_HOLE, 1, 0, 512), Invalid),
        ("DF without structured replies", simple, (DF, 0, 0, 512), Invalid),
        ("trim that was not offered", plain, (0, 4, 0, 512), Invalid),
        ("fast zeroes that were not offered", plain, (FAST_ZERO, 6, 0, 512), Invalid),
        ("status without a context", plain, (0, 7, 0, 512), Invalid),
        ("flush of a range", whole, (0, 3, 0, 512), Invalid),
        ("empty read", whole, (0, 0, 0, 0), Invalid),
        ("unaligned offset", whole, (0, 0, 1, 512), Invalid),
        ("unaligned length", whole, (0, 0, 0, 513), Invalid),
        ("unaligned write", whole, (0, 1, 0, 100), Invalid),
        ("read at the end", whole, (0, 0, end, 512), Invalid),
        ("read across the end", whole, (0, 0, end - 512, 1024), Invalid),
        ("read that wraps", whole, (0, 0, u64::MAX - 511, 512), Invalid),
        ("trim across the end", whole, (0, 4, end - 512, 1024), Invalid),
        ("cache across the end", whole, (0, 5, end - 512, 1024), Invalid),
        ("status across the end", whole, (0, 7, end - 512, 1024), Invalid),
        ("write across the end", whole, (0, 1, end - 512, 1024), NoSpace),
        ("write that wraps", whole, (0, 1, u64::MAX - 511, 512), NoSpace),
        ("zeroes across the end", whole, (0, 6, end - 512, 1024), NoSpace),
        ("oversized read", whole, (0, 0, 0, (32 << 20) + 512), Invalid),
        ("oversized read in one piece", whole, (DF, 0, 0, (32 << 20) + 512), Overflow),
        ("oversized write", whole, (0, 1, 0, (32 << 20) + 512), Invalid),
        ("write to a read-only export", read_only, (0, 1, 0, 512), NotPermitted),
        ("trim of a read-only export", read_only, (0, 4, 0, 512), NotPermitted),
        ("zeroes to a read-only export", read_only, (FAST_ZERO, 6, 0, 512), NotPermitted),
    ];
    for (name, session, (flags, kind, offset_bytes, length_bytes), error) in cases {
        let payload = if kind == 1 { vec![0x55; length_bytes as usize] } else { vec![] };
        let bytes = [request(flags, kind, offset_bytes, length_bytes), payload, request(0, 3, 0, 0)].concat();
        let mut rest = &bytes[..];
        let mut decoder = Decoder::new(session);
        assert_eq!(
            decoder.next(&mut rest).unwrap(),
            Some(Received::Rejected { echo: echo(offset_bytes), error }),
            "{name}"
        );
        let flush = Received::Request(Request { echo: echo(0), command: Command::Flush });
        assert_eq!(decoder.next(&mut rest).unwrap(), Some(flush), "after {name}");
        assert!(rest.is_empty());
    }
}

#[test]
fn what_ends_the_connection() {
    let mut rest = &b"\x25\x60\x95\x14\0\0\0\0COOKIE!!\0\0\0\0\0\x01\0\0\0\0\x10\0"[..];
    assert!(matches!(Decoder::new(session()).next(&mut rest), Err(Error::RequestMagic { found: 0x2560_9514 })));
    let bytes = request(0, 1, 0, (64 << 20) + 512);
    let mut rest = &bytes[..];
    assert!(matches!(
        Decoder::new(session()).next(&mut rest),
        Err(Error::PayloadTooLarge { length_bytes: 0x400_0200 })
    ));
}

#[test]
fn a_wrong_magic_is_seen_before_the_rest_has_come() {
    let compact = request(0, 3, 0, 0);
    let extended = b"\x21\xe4\x1c\x71\0\0\0\x03";
    for (headers, mut bytes) in [(Headers::Extended, &compact[..]), (Headers::Structured, extended)] {
        assert!(matches!(Decoder::new(session_with(headers)).next(&mut bytes), Err(Error::RequestMagic { .. })));
        assert!(matches!(Decoder::new(session_with(headers)).next(&mut &bytes[..3]), Ok(None)));
    }
}

#[test]
fn reply_headers() {
    let echo = echo(0x1_0000);
    let simple = Session::new(&export(), Headers::Simple, false);
    let read = ReplyHeader::data(&session(), echo, 0x1000);
    // One chunk: done, offset-data, 4096 + 8 bytes, the offset.
    assert_eq!(read.as_bytes(), b"\x66\x8e\x33\xef\0\x01\0\x01COOKIE!!\0\0\x10\x08\0\0\0\0\0\x01\0\0");
    assert_eq!(ReplyHeader::data(&simple, echo, 0x1000).as_bytes(), b"\x67\x44\x66\x98\0\0\0\0COOKIE!!");
    for session in [session(), simple] {
        assert_eq!(ReplyHeader::done(&session, echo).as_bytes(), b"\x67\x44\x66\x98\0\0\0\0COOKIE!!");
    }
    let error = ReplyHeader::error(&session(), echo, NbdError::NoSpace);
    // One chunk: done, error, 6 bytes, ENOSPC, no message.
    assert_eq!(error.as_bytes(), b"\x66\x8e\x33\xef\0\x01\x80\x01COOKIE!!\0\0\0\x06\0\0\0\x1c\0\0");
    assert_eq!(ReplyHeader::error(&simple, echo, NbdError::Io).as_bytes(), b"\x67\x44\x66\x98\0\0\0\x05COOKIE!!");
}

/// With holes and zeros, and more than 8 KiB long.
fn extents() -> [Extent; 4] {
    [
        Extent { length_bytes: 4096, hole: true, zero: true },
        Extent { length_bytes: 1024, hole: false, zero: true },
        Extent { length_bytes: 1 << 40, hole: false, zero: false },
        Extent { length_bytes: 512, hole: false, zero: false },
    ]
}

#[test]
fn block_status() {
    let encoded = encode_extents(&session(), 8192, false, &extents());
    assert_eq!(encoded, b"\0\0\x10\0\0\0\0\x03\0\0\x04\0\0\0\0\x02\0\0\x0c\0\0\0\0\0");
    // One chunk: done, block-status, 4 + 3 * 8 bytes, context 1.
    assert_eq!(
        ReplyHeader::extents(&session(), echo(0), &encoded).as_bytes(),
        b"\x66\x8e\x33\xef\0\x01\0\x05COOKIE!!\0\0\0\x1c\0\0\0\x01"
    );
    assert_eq!(encode_extents(&session(), 8192, true, &extents()), b"\0\0\x10\0\0\0\0\x03");
    let many = vec![Extent { length_bytes: 1, hole: false, zero: false }; EXTENTS_MAX + 1];
    assert_eq!(encode_extents(&session(), 8192, false, &many).len(), 8 * EXTENTS_MAX);
    assert_eq!(encode_extents(&session_with(Headers::Extended), 8192, false, &many).len(), 16 * EXTENTS_MAX);
}

/// nbdkit, CVE-2025-47711: what has one status is longer than what 32 bits can say, and so, nearly, is what was asked
/// for.
#[test]
fn cve_2025_47711_an_extent_that_is_longer_than_32_bits() {
    for length in [u32::MAX, u32::MAX - 511, 1 << 31, 512] {
        let extents = [Extent { length_bytes: 1 << 40, hole: true, zero: true }];
        let encoded = encode_extents(&session(), length.into(), false, &extents);
        assert_eq!(encoded, [length.to_be_bytes(), [0, 0, 0, 3]].concat());
    }
}

/// Everything that the decoder says of a stream that arrives in pieces of the given sizes, with the data of writes
/// dropped.
fn story(headers: Headers, bytes: &[u8], mut cuts: impl Iterator<Item = usize>) -> Vec<String> {
    let longest = match headers {
        Headers::Simple | Headers::Structured => REQUEST_BYTES,
        Headers::Extended => EXTENDED_REQUEST_BYTES + STATUS_PAYLOAD_BYTES,
    };
    let mut decoder = Decoder::new(session_with(headers));
    let (mut told, mut pending, mut arrived) = (vec![], vec![], 0);
    let mut data_bytes = 0;
    loop {
        let mut rest = &pending[..];
        let dropped = data_bytes.min(rest.len());
        rest = &rest[dropped..];
        data_bytes -= dropped;
        let next = if data_bytes > 0 { Ok(None) } else { decoder.next(&mut rest) };
        pending = rest.to_vec();
        assert!(
            next.is_err() || !matches!(next, Ok(None)) || pending.len() < longest,
            "no more than a request's head is left"
        );
        match next {
            Ok(Some(received)) => {
                told.push(format!("{received:?}"));
                if let Received::Request(Request { command: Command::Write { span, .. }, .. }) = received {
                    data_bytes = span.length_bytes as usize;
                }
            }
            Ok(None) if arrived == bytes.len() => {
                told.push(format!("{data_bytes} {} {}", pending.len(), decoder.is_skipping()));
                return told;
            }
            Ok(None) => {
                let end = bytes.len().min(arrived + cuts.next().unwrap());
                pending.extend_from_slice(&bytes[arrived..end]);
                arrived = end;
            }
            Err(error) => {
                told.push(error.to_string());
                return told;
            }
        }
    }
}

fn headers() -> impl Strategy<Value = Headers> {
    prop::sample::select(vec![Headers::Simple, Headers::Structured, Headers::Extended])
}

/// Requests of the form that the headers have, most of them sound, with garbage in between.
fn stream(headers: Headers) -> impl Strategy<Value = Vec<u8>> {
    let is_extended = headers == Headers::Extended;
    let lengths = prop_oneof![
        Just(0u64),
        Just(12),
        Just(512),
        Just(513),
        Just(4096),
        any::<u32>().prop_map(u64::from),
        any::<u64>()
    ];
    let offsets = prop_oneof![Just(0u64), Just(512), Just((1 << 30) - 512), any::<u64>()];
    let flags = prop_oneof![Just(0u16), Just(32), any::<u16>()];
    let requests = (flags, 0..10u16, offsets, lengths).prop_map(move |(flags, kind, offset, length)| {
        let has_data = if is_extended { flags & 32 != 0 } else { kind == 1 };
        let data = if has_data { vec![0xaa; length.min(5000) as usize] } else { vec![] };
        let head = match is_extended {
            true => extended::request(flags, kind, offset, length),
            false => request(flags, kind, offset, length as u32),
        };
        [head, data].concat()
    });
    let status = any::<u64>().prop_map(|length| extended::status(0, 0, length, 1));
    let garbage = prop::collection::vec(any::<u8>(), 0..60);
    prop::collection::vec(prop_oneof![9 => requests, 2 => status, 1 => garbage], 0..12)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_bytes_in_any_split_read_the_same(
        (headers, bytes) in headers().prop_flat_map(|headers| (Just(headers), stream(headers))),
        cuts in prop::collection::vec(1..200usize, 1..40),
    ) {
        let whole = story(headers, &bytes, std::iter::repeat(usize::MAX / 2));
        prop_assert_eq!(whole, story(headers, &bytes, cuts.into_iter().cycle()));
    }
}
