//! Extended headers: byte vectors written down from the document's branch `extension-ext-header`.

use super::*;

const PAYLOAD_LEN: u16 = 32;

/// `21e41c71 | flags 16 | type 16 | cookie 64 | offset 64 | length 64`, with the cookie `COOKIE!!`.
pub(super) fn request(flags: u16, kind: u16, offset_bytes: u64, length_bytes: u64) -> Vec<u8> {
    [
        b"\x21\xe4\x1c\x71",
        &flags.to_be_bytes()[..],
        &kind.to_be_bytes(),
        b"COOKIE!!",
        &offset_bytes.to_be_bytes(),
        &length_bytes.to_be_bytes(),
    ]
    .concat()
}

/// A block status for a context: the payload is `effect length 64 | context 32`.
pub(super) fn status(flags: u16, offset_bytes: u64, length_bytes: u64, context: u32) -> Vec<u8> {
    let payload = [&length_bytes.to_be_bytes()[..], &context.to_be_bytes()].concat();
    [request(flags | PAYLOAD_LEN, 7, offset_bytes, payload.len() as u64), payload].concat()
}

fn session() -> Session {
    session_with(Headers::Extended)
}

/// An export of 16 TiB.
fn large() -> Session {
    Session::new(&ExportInfo { size_bytes: 16 << 40, ..export() }, Headers::Extended, true)
}

#[test]
fn a_write_as_the_document_has_it() {
    let bytes = b"\x21\xe4\x1c\x71\0\x20\0\x01COOKIE!!\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\x10\0";
    let span = Span { offset_bytes: 0x1_0000, length_bytes: 0x1000 };
    assert_eq!(decode(session(), bytes), Ok(Command::Write { span, buffer: (), fua: false }));
}

#[test]
fn every_command_with_its_flags() {
    assert_commands(session(), PAYLOAD_LEN, |flags, kind, offset_bytes, length_bytes| {
        request(flags, kind, offset_bytes, length_bytes.into())
    });
}

#[test]
fn lengths_have_64_bits() {
    let span = Span { offset_bytes: 1 << 40, length_bytes: 15 << 40 };
    let decoded = |kind, length| decode(large(), &request(0, kind, 1 << 40, length));
    assert_eq!(decoded(4, 15 << 40), Ok(Command::Trim { span, fua: false }));
    assert_eq!(decoded(5, 15 << 40), Ok(Command::Cache { span }));
    assert!(matches!(decoded(6, 15 << 40), Ok(Command::WriteZeroes { span: found, .. }) if found == span));
    assert_eq!(decoded(7, 15 << 40), Ok(Command::BlockStatus { span, one: false }));
    for kind in [4, 5, 7] {
        assert_eq!(decoded(kind, (15 << 40) + 512), Err(NbdError::Invalid), "beyond the end");
        assert_eq!(decoded(kind, u64::MAX - 511), Err(NbdError::Invalid), "it wraps");
    }
    assert_eq!(decoded(6, u64::MAX - 511), Err(NbdError::NoSpace));
    for length in [(32 << 20) + 512, 1 << 32, 15 << 40] {
        assert_eq!(decoded(0, length), Err(NbdError::Invalid), "a read of {length}");
        assert_eq!(decode(large(), &request(DF, 0, 0, length)), Err(NbdError::Overflow), "a read of {length}");
    }
}

#[test]
fn a_status_of_chosen_contexts() {
    let span = Span { offset_bytes: 1 << 40, length_bytes: 1 << 40 };
    let decoded = |flags, context| decode(large(), &status(flags, 1 << 40, 1 << 40, context));
    assert_eq!(decoded(0, 1), Ok(Command::BlockStatus { span, one: false }));
    assert_eq!(decoded(REQ_ONE, 1), Ok(Command::BlockStatus { span, one: true }));
    assert_eq!(decoded(0, 0), Err(NbdError::Invalid), "an unknown context");
    assert_eq!(decoded(0, 2), Err(NbdError::Invalid), "an unknown context");
    let beyond = status(0, 1 << 40, (15 << 40) + 512, 1);
    assert_eq!(decode(large(), &beyond), Err(NbdError::Invalid), "the length is that of the payload's");
    let whole = status(0, 0, 512, 1);
    for cut in 0..whole.len() {
        assert_eq!(Decoder::new(session()).next(&mut &whole[..cut]).unwrap(), None, "all of it has to be there");
    }
}

/// The server "MUST gracefully consume the client's payload before failing with NBD_EINVAL".
#[test]
fn refusals_skip_the_payload_and_nothing_else() {
    use NbdError::{Invalid, NoSpace, NotPermitted};
    let (whole, end) = (session(), 1 << 30);
    let read_only = Session::new(&ExportInfo { read_only: true, ..export() }, Headers::Extended, true);
    let without_context = Session::new(&export(), Headers::Extended, false);
    let cases = [
        ("write without a payload", whole, (0, 1, 0, 512), Invalid),
        ("write without a payload of any length", whole, (0, 1, 0, u64::MAX), Invalid),
        ("empty write", whole, (PAYLOAD_LEN, 1, 0, 0), Invalid),
        ("write across the end", whole, (PAYLOAD_LEN, 1, end - 512, 1024), NoSpace),
        ("oversized write", whole, (PAYLOAD_LEN, 1, 0, (32 << 20) + 512), Invalid),
        ("write to a read-only export", read_only, (PAYLOAD_LEN, 1, 0, 512), NotPermitted),
        ("read with a payload", whole, (PAYLOAD_LEN, 0, 0, 512), Invalid),
        ("flush with a payload", whole, (PAYLOAD_LEN, 3, 0, 512), Invalid),
        ("trim with a payload", whole, (PAYLOAD_LEN, 4, 0, 512), Invalid),
        ("cache with a payload", whole, (PAYLOAD_LEN, 5, 0, 512), Invalid),
        ("zeroes with a payload", whole, (PAYLOAD_LEN, 6, 0, 512), Invalid),
        ("unknown command with a payload", whole, (PAYLOAD_LEN, 99, 0, 512), Invalid),
        ("unknown command without one", whole, (0, 99, 0, u64::MAX), Invalid),
        ("status of too short a payload", whole, (PAYLOAD_LEN, 7, 0, 8), Invalid),
        ("status of no payload at all", whole, (PAYLOAD_LEN, 7, 0, 0), Invalid),
        ("status of two contexts", whole, (PAYLOAD_LEN, 7, 0, 16), Invalid),
        ("status of an odd payload", whole, (PAYLOAD_LEN, 7, 0, 13), Invalid),
        ("status of the largest payload", whole, (PAYLOAD_LEN, 7, 0, 64 << 20), Invalid),
        ("status of an unknown context", whole, (PAYLOAD_LEN, 7, 0, 12), Invalid),
        ("status without a context", without_context, (0, 7, 0, 512), Invalid),
        ("status with a payload but no context", without_context, (PAYLOAD_LEN, 7, 0, 12), Invalid),
        ("unknown flag", whole, (64, 0, 0, 512), Invalid),
    ];
    for (name, session, (flags, kind, offset_bytes, length), error) in cases {
        let payload = if flags & PAYLOAD_LEN != 0 { vec![0x55; length as usize] } else { vec![] };
        let bytes = [request(flags, kind, offset_bytes, length), payload, request(0, 3, 0, 0)].concat();
        let (mut rest, mut decoder) = (&bytes[..], Decoder::new(session));
        let rejected = Received::Rejected { echo: echo(offset_bytes), error };
        assert_eq!(decoder.next(&mut rest).unwrap(), Some(rejected), "{name}");
        let flush = Received::Request(Request { echo: echo(0), command: Command::Flush });
        assert_eq!(decoder.next(&mut rest).unwrap(), Some(flush), "after {name}");
        assert!(rest.is_empty());
    }
}

#[test]
fn what_ends_the_connection() {
    for kind in [0, 1, 4, 7, 99] {
        for length_bytes in [(64 << 20) + 1, 1 << 32, u64::MAX] {
            let bytes = request(PAYLOAD_LEN, kind, 0, length_bytes);
            let ended = Decoder::new(session()).next(&mut &bytes[..]);
            assert!(matches!(ended, Err(Error::PayloadTooLarge { length_bytes: found }) if found == length_bytes));
        }
    }
}

#[test]
fn every_reply_is_an_extended_chunk_with_the_offset_of_its_request() {
    let (session, echo) = (session(), echo(0x1_0000));
    let head = b"\x6e\x8a\x27\x8c\0\x01\0\0COOKIE!!\0\0\0\0\0\x01\0\0";
    let chunk = |kind: [u8; 2], rest: &[u8]| [&head[..6], &kind, &head[8..], rest].concat();
    // Type none, no payload.
    assert_eq!(ReplyHeader::done(&session, echo).as_bytes(), chunk([0, 0], &[0; 8]));
    // Offset-data: 4096 + 8 bytes, the offset once more.
    let data = ReplyHeader::data(&session, echo, 0x1000);
    assert_eq!(data.as_bytes(), chunk([0, 1], b"\0\0\0\0\0\0\x10\x08\0\0\0\0\0\x01\0\0"));
    // Error: 6 bytes, EINVAL, no message.
    let error = ReplyHeader::error(&session, echo, NbdError::Invalid);
    assert_eq!(error.as_bytes(), chunk([0x80, 1], b"\0\0\0\0\0\0\0\x06\0\0\0\x16\0\0"));
}

#[test]
fn block_status() {
    let (session, length) = (session(), (1 << 40) + 5120);
    let encoded = encode_extents(&session, length, false, &extents());
    let first = b"\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x03";
    let rest = b"\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\x02\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0";
    assert_eq!(encoded, [&first[..], rest].concat());
    // Block-status-ext: 8 + 3 * 16 bytes, context 1, 3 extents.
    assert_eq!(
        ReplyHeader::extents(&session, echo(0), &encoded).as_bytes(),
        b"\x6e\x8a\x27\x8c\0\x01\0\x06COOKIE!!\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x38\0\0\0\x01\0\0\0\x03"
    );
    assert_eq!(encode_extents(&session, length, true, &extents()), first);
    let cut = encode_extents(&session, length - 1024, false, &extents());
    assert_eq!(cut[32..40], ((1u64 << 40) - 1024).to_be_bytes(), "the last one is cut to what was asked for");
}
