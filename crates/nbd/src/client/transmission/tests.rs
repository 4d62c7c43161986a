//! Byte vectors written down from the protocol document, conversations with the server's half, and what any bytes at
//! all may do.

use proptest::prelude::*;

use super::*;
use crate::{
    ExportInfo, NbdError, Span,
    transmission::{Decoder, Received as Asked, ReplyHeader, Request, Session},
};

const SIZE: u64 = 1 << 30;

fn agreed(headers: Headers) -> Agreed {
    // Flush, FUA, trim, zeroes.
    Agreed::new(SIZE, 0x6d, Some([512, 4096, 32 << 20]), headers).unwrap()
}

fn transmission(headers: Headers) -> Transmission {
    Transmission::new(&agreed(headers), 4)
}

fn span(offset_bytes: u64, length_bytes: u64) -> Span {
    Span { offset_bytes, length_bytes }
}

fn read(offset_bytes: u64, length_bytes: u64) -> Command<()> {
    Command::Read { span: span(offset_bytes, length_bytes), buffer: () }
}

fn begin(transmission: &mut Transmission, command: Command<()>) -> RequestIndex {
    transmission.begin(&command).unwrap().0
}

/// A structured chunk to the first request that had its place.
fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let fields = [&flags.to_be_bytes()[..], &kind.to_be_bytes(), &[0; 8], &length.to_be_bytes()].concat();
    [b"\x66\x8e\x33\xef", &fields[..], payload].concat()
}

fn data_at(offset: u64, data: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], data].concat()
}

fn hole_at(offset: u64, length: u32) -> Vec<u8> {
    [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat()
}

#[test]
fn requests_are_the_documents() {
    let mut compact = transmission(Headers::Simple);
    let write = Command::Write { span: span(0x1_0000_2000, 4096), buffer: (), fua: true };
    let (_, header) = compact.begin(&write).unwrap();
    assert_eq!(header.as_bytes(), b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\x20\0\0\0\x10\0");
    let (_, header) = compact.begin(&Command::Flush).unwrap();
    assert_eq!(header.as_bytes(), b"\x25\x60\x95\x13\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0");
    let mut extended = transmission(Headers::Extended);
    let (_, header) = extended.begin(&write).unwrap();
    // FUA and PAYLOAD_LEN.
    let expected = b"\x21\xe4\x1c\x71\0\x21\0\x01\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\x20\0\0\0\0\0\0\0\x10\0";
    assert_eq!(header.as_bytes(), expected);
    let zeroes = Command::WriteZeroes { span: span(0, SIZE), fua: false, no_hole: true, fast: true };
    let (_, header) = extended.begin(&zeroes).unwrap();
    assert_eq!(header.as_bytes()[4..8], [0, 0x12, 0, 6]);
    let (_, header) = extended.begin(&Command::Trim { span: span(0, 512), fua: false }).unwrap();
    assert_eq!(header.as_bytes()[4..8], [0, 0, 0, 4]);
    assert_eq!(compact.farewell().as_bytes()[..8], *b"\x25\x60\x95\x13\0\0\0\x02");
    assert_eq!((compact.farewell().as_bytes().len(), extended.farewell().as_bytes().len()), (28, 32));
}

#[test]
fn a_simple_reply_has_all_of_a_read_or_an_error() {
    let mut simple = transmission(Headers::Simple);
    let request = begin(&mut simple, read(0, 512));
    let mut input = &b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\0data"[..];
    let part = Part::Data { at_bytes: 0, length_bytes: 512 };
    assert_eq!(simple.next(&mut input).unwrap(), Some(Received { request, part, ended: Some(Ok(())) }));
    assert_eq!(input, b"data");
    let mut input = &b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\x01\0\0\0\0"[..];
    assert_eq!(simple.next(&mut &b""[..]).unwrap(), None);
    let request = begin(&mut simple, read(0, 512));
    assert_eq!(simple.next(&mut input).unwrap(), Some(Received { request, part: Part::None, ended: Some(Err(5)) }));
}

#[test]
fn chunks_come_in_any_order_and_end_with_the_last() {
    let mut structured = transmission(Headers::Structured);
    let request = begin(&mut structured, read(4096, 1536));
    let bytes = [chunk(0, 1, &data_at(5120, &[7; 512])), chunk(0, 2, &hole_at(4096, 1024)), chunk(1, 0, b"")].concat();
    let mut input = &bytes[..];
    let mut next = |skipped: usize| {
        input = &input[skipped..];
        structured.next(&mut input).unwrap().unwrap()
    };
    let part = Part::Data { at_bytes: 1024, length_bytes: 512 };
    assert_eq!(next(0), Received { request, part, ended: None });
    let part = Part::Zeros { at_bytes: 0, length_bytes: 1024 };
    assert_eq!(next(512), Received { request, part, ended: None });
    assert_eq!(next(0), Received { request, part: Part::None, ended: Some(Ok(())) });
}

#[test]
fn an_error_counts_wherever_it_comes_and_its_text_is_skipped() {
    let mut structured = transmission(Headers::Structured);
    let request = begin(&mut structured, read(0, 1024));
    // ENOSPC at an offset, with a text; then the rest of the data.
    let error = [&b"\0\0\0\x1c\0\x04text"[..], &[0; 8]].concat();
    let bytes = [chunk(0, 0x8002, &error), chunk(1, 1, &data_at(512, &[1; 512]))].concat();
    let mut input = &bytes[..30];
    assert_eq!(structured.next(&mut input).unwrap(), None);
    let mut input = &bytes[30..];
    assert_eq!(structured.next(&mut input).unwrap(), Some(Received { request, part: Part::None, ended: None }));
    let part = Part::Data { at_bytes: 512, length_bytes: 512 };
    assert_eq!(structured.next(&mut input).unwrap(), Some(Received { request, part, ended: Some(Err(28)) }));
}

#[test]
fn a_place_is_free_once_the_last_data_are_taken_and_its_next_request_has_another_cookie() {
    let mut simple = Transmission::new(&agreed(Headers::Simple), 1);
    begin(&mut simple, read(0, 512));
    assert!(!simple.has_room());
    let reply = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\0";
    simple.next(&mut &reply[..]).unwrap().unwrap();
    assert!(simple.begin(&Command::Flush).is_none(), "its data are to come");
    assert_eq!(simple.next(&mut &b""[..]).unwrap(), None);
    let (_, header) = simple.begin(&Command::Flush).unwrap();
    assert_eq!(header.as_bytes()[8..16], [0, 0, 0, 1, 0, 0, 0, 0]);
    assert!(matches!(simple.next(&mut &reply[..]), Err(Error::UnknownCookie { cookie: 0 })), "it was answered");
}

#[test]
fn each_lie_is_an_error_of_its_own() {
    let lies: Vec<(&str, Headers, Vec<u8>)> = vec![
        ("no reply", Headers::Structured, b"NBDMAGIC".to_vec()),
        ("a chunk that was not agreed on", Headers::Simple, chunk(1, 0, b"")),
        ("a simple reply among extended ones", Headers::Extended, b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
        ("a simple reply to a read", Headers::Structured, b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
        ("a place that is vacant", Headers::Simple, b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01".to_vec()),
        ("a place that there is not", Headers::Simple, b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x04".to_vec()),
        ("another generation", Headers::Simple, b"\x67\x44\x66\x98\0\0\0\0\0\0\0\x01\0\0\0\0".to_vec()),
        ("less than all", Headers::Structured, chunk(1, 2, &hole_at(4096, 1024))),
        ("nothing at all", Headers::Structured, chunk(1, 0, b"")),
        ("data before", Headers::Structured, chunk(1, 1, &data_at(4095, &[0; 8]))),
        ("data beyond", Headers::Structured, chunk(0, 1, &data_at(5120, &[0; 513]))),
        ("data far away", Headers::Structured, chunk(0, 1, &data_at(u64::MAX, &[0; 8]))),
        ("no data", Headers::Structured, chunk(0, 1, &data_at(4096, b""))),
        ("an empty hole", Headers::Structured, chunk(0, 2, &hole_at(4096, 0))),
        ("a hole beyond", Headers::Structured, chunk(0, 2, &hole_at(4096, u32::MAX))),
        ("half a hole", Headers::Structured, chunk(0, 2, &[0; 11])),
        ("the status of blocks", Headers::Structured, chunk(1, 5, &[0; 12])),
        ("an unknown chunk", Headers::Structured, chunk(1, 77, b"")),
        ("nothing, not last", Headers::Structured, chunk(0, 0, b"")),
        ("no error", Headers::Structured, chunk(1, 0x8001, &[0; 6])),
        ("half an error", Headers::Structured, chunk(1, 0x8001, &[1; 5])),
        ("a long error", Headers::Structured, chunk(1, 0x8001, &[1; 9000])),
        (
            "twice the same",
            Headers::Structured,
            [chunk(0, 2, &hole_at(4096, 1024)), chunk(0, 2, &hole_at(5119, 1))].concat(),
        ),
        (
            "another offset",
            Headers::Extended,
            b"\x6e\x8a\x27\x8c\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\x01\0\0\0\0\0\0\0\0".to_vec(),
        ),
    ];
    for (name, headers, bytes) in lies {
        let mut transmission = transmission(headers);
        begin(&mut transmission, read(4096, 1536));
        let mut input = &bytes[..];
        let mut told = std::iter::from_fn(|| transmission.next(&mut input).transpose()).take(3);
        assert!(told.any(|told| told.is_err()), "{name}");
    }
    let mut transmission = transmission(Headers::Structured);
    begin(&mut transmission, Command::Flush);
    let data = chunk(1, 1, &data_at(0, &[0; 8]));
    assert!(transmission.next(&mut &data[..]).is_err(), "data of a flush");
}

/// What a test asks for: the command and its outcome.
#[derive(Debug, Clone)]
struct Question {
    command: Command<()>,
    outcome: Result<(), NbdError>,
}

fn question() -> impl Strategy<Value = Question> {
    let span = (0..2000u64, 1..40u64).prop_map(|(at, count)| span(at * 512, count * 512));
    let command = (0..6u8, span, any::<[bool; 3]>()).prop_map(|(kind, span, [fua, no_hole, fast])| match kind {
        0 | 1 => Command::Read { span, buffer: () },
        2 => Command::Write { span, buffer: (), fua },
        3 => Command::Flush,
        4 => Command::Trim { span, fua },
        _ => Command::WriteZeroes { span, fua, no_hole, fast },
    });
    let outcome = prop_oneof![4 => Just(Ok(())), 1 => Just(Err(NbdError::NoSpace)), 1 => Just(Err(NbdError::Io))];
    (command, outcome).prop_map(|(command, outcome)| Question { command, outcome })
}

/// The byte at a place of the export.
fn content(at: u64) -> u8 {
    (at % 251) as u8
}

proptest! {
    /// The server's half understands each request as it was meant, and the client's half each answer.
    #[test]
    fn client_and_server_understand_each_other(
        questions in prop::collection::vec(question(), 1..12),
        headers in prop::sample::select(vec![Headers::Simple, Headers::Structured, Headers::Extended]),
        order in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(1..700usize, 1..20),
    ) {
        let mut client = Transmission::new(&agreed(headers), 12);
        let export = ExportInfo { block_sizes: agreed(headers).block_sizes(), ..ExportInfo::new(SIZE) };
        let session = Session::new(&export, headers, false);
        let mut sent = Vec::new();
        let requests: Vec<RequestIndex> = questions.iter().map(|question| {
            let (request, header) = client.begin(&question.command).unwrap();
            sent.extend(header.as_bytes());
            if let Command::Write { span, .. } = question.command {
                sent.extend((span.offset_bytes..span.end_bytes()).map(content));
            }
            request
        }).collect();

        let mut decoder = Decoder::new(session);
        let (mut input, mut answers) = (&sent[..], Vec::new());
        for question in &questions {
            let Some(Asked::Request(Request { echo, command })) = decoder.next(&mut input).unwrap() else {
                panic!("not understood: {question:?}")
            };
            prop_assert_eq!(command, question.command);
            if let Command::Write { span, .. } = command {
                let (data, rest) = input.split_at(span.length_bytes as usize);
                prop_assert!(data.iter().copied().eq((span.offset_bytes..span.end_bytes()).map(content)));
                input = rest;
            }
            let mut answer = Vec::new();
            match (question.outcome, command) {
                (Err(error), _) => answer.extend(ReplyHeader::error(&session, echo, error).as_bytes()),
                (Ok(()), Command::Read { span, .. }) => {
                    answer.extend(ReplyHeader::data(&session, echo, span.data_bytes()).as_bytes());
                    answer.extend((span.offset_bytes..span.end_bytes()).map(content));
                }
                (Ok(()), _) => answer.extend(ReplyHeader::done(&session, echo).as_bytes()),
            }
            answers.push(answer);
        }
        prop_assert!(input.is_empty());

        let first = order.index(answers.len());
        answers.rotate_left(first);
        let bytes = answers.concat();
        let mut told = Vec::new();
        let mut cuts = cuts.into_iter().cycle();
        let (mut pending, mut arrived, mut data_left) = (Vec::new(), 0, 0usize);
        loop {
            let taken = data_left.min(pending.len());
            pending.drain(..taken);
            data_left -= taken;
            let mut rest = &pending[..];
            let next = if data_left > 0 { None } else { client.next(&mut rest).unwrap() };
            pending = rest.to_vec();
            match next {
                Some(received) => {
                    if let Part::Data { length_bytes, .. } = received.part {
                        data_left = length_bytes as usize;
                    }
                    told.push(received);
                }
                None if arrived == bytes.len() => break,
                None => {
                    prop_assert!(pending.len() < EXTENDED_BYTES + HOLE_BYTES);
                    let end = bytes.len().min(arrived + cuts.next().unwrap());
                    pending.extend(&bytes[arrived..end]);
                    arrived = end;
                }
            }
        }
        prop_assert!(pending.is_empty() && data_left == 0);
        let mut expected: Vec<Received> = questions.iter().zip(&requests).map(|(question, &request)| {
            let part = match (question.command, question.outcome) {
                (Command::Read { span, .. }, Ok(())) => Part::Data { at_bytes: 0, length_bytes: span.data_bytes() },
                _ => Part::None,
            };
            Received { request, part, ended: Some(question.outcome.map_err(NbdError::code)) }
        }).collect();
        expected.rotate_left(first);
        prop_assert_eq!(told, expected);
        prop_assert!(client.has_room());
    }

    /// Whatever comes, in whatever pieces, the client says the same of it; and no read is done of which a byte is
    /// missing, or came twice.
    #[test]
    fn any_bytes_in_any_split_read_the_same(
        headers in prop::sample::select(vec![Headers::Simple, Headers::Structured, Headers::Extended]),
        pieces in prop::collection::vec(piece(), 0..14),
        cuts in prop::collection::vec(1..50usize, 1..20),
    ) {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.encode(headers)).collect();
        let whole = story(headers, &bytes, std::iter::repeat(usize::MAX / 2));
        prop_assert_eq!(&whole, &story(headers, &bytes, cuts.into_iter().cycle()));
    }
}

/// A reply, most of them to the two reads of `story`.
#[derive(Debug, Clone)]
struct Piece {
    flags: u16,
    kind: u16,
    cookie: u64,
    at: u64,
    length: u32,
    garbage: Vec<u8>,
}

fn piece() -> impl Strategy<Value = Piece> {
    let kind = prop::sample::select(vec![0u16, 1, 1, 1, 2, 2, 5, 0x8001, 0x8002, 3]);
    let cookie = prop_oneof![6 => 0..2u64, 1 => 0..5u64, 1 => any::<u64>()];
    let garbage = prop_oneof![12 => Just(vec![]), 1 => prop::collection::vec(any::<u8>(), 0..30)];
    (0..2u16, kind, cookie, 0..8u64, 0..6u32, garbage).prop_map(|(flags, kind, cookie, at, length, garbage)| Piece {
        flags,
        kind,
        cookie,
        at: at * 128,
        length: length * 128,
        garbage,
    })
}

impl Piece {
    fn encode(&self, headers: Headers) -> Vec<u8> {
        let cookie = self.cookie.to_be_bytes();
        if headers == Headers::Simple {
            let error = u32::from(self.kind >> 15).to_be_bytes();
            return [b"\x67\x44\x66\x98", &error[..], &cookie, &vec![0; 512], &self.garbage].concat();
        }
        let start = self.cookie.wrapping_mul(4096);
        let offset = start.wrapping_add(self.at).to_be_bytes();
        let payload = match self.kind {
            1 => [&offset[..], &vec![7; self.length as usize]].concat(),
            2 => [&offset[..], &self.length.to_be_bytes()].concat(),
            kind if kind >> 15 == 1 => [&[0, 0, 0, 5, 0, 0][..], &vec![b'x'; self.length as usize]].concat(),
            _ => vec![],
        };
        let (flags, kind) = (self.flags.to_be_bytes(), self.kind.to_be_bytes());
        let head = match headers {
            Headers::Extended => [
                &b"\x6e\x8a\x27\x8c"[..],
                &flags,
                &kind,
                &cookie,
                &start.to_be_bytes(),
                &(payload.len() as u64).to_be_bytes(),
            ]
            .concat(),
            _ => [&b"\x66\x8e\x33\xef"[..], &flags, &kind, &cookie, &(payload.len() as u32).to_be_bytes()].concat(),
        };
        [head, payload, self.garbage.clone()].concat()
    }
}

/// Everything that a client with two reads under way, of 512 bytes at 0 and 4096, says of a stream; its own count of
/// delivered bytes is right where a read is done.
fn story(headers: Headers, bytes: &[u8], mut cuts: impl Iterator<Item = usize>) -> Vec<String> {
    let mut client = transmission(headers);
    begin(&mut client, read(0, 512));
    begin(&mut client, read(4096, 512));
    let mut counts = [[0u8; 512]; 2];
    let (mut told, mut pending, mut arrived, mut data_left) = (vec![], vec![], 0, 0usize);
    loop {
        let taken = data_left.min(pending.len());
        pending.drain(..taken);
        data_left -= taken;
        let mut rest = &pending[..];
        let next = if data_left > 0 { Ok(None) } else { client.next(&mut rest) };
        pending = rest.to_vec();
        match next {
            Ok(Some(received)) => {
                told.push(format!("{received:?}"));
                if let Part::Data { at_bytes, length_bytes } | Part::Zeros { at_bytes, length_bytes } = received.part {
                    let range = at_bytes as usize..(at_bytes + length_bytes) as usize;
                    counts[received.request.get()][range].iter_mut().for_each(|count| *count += 1);
                }
                if let Part::Data { length_bytes, .. } = received.part {
                    data_left = length_bytes as usize;
                }
                if received.ended == Some(Ok(())) {
                    assert_eq!(counts[received.request.get()], [1; 512], "every byte, once");
                }
            }
            Ok(None) if arrived == bytes.len() => {
                told.push(format!("{} {data_left}", pending.len()));
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
