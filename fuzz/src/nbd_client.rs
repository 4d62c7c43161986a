//! What NBD servers send, with any changes, to the client's half of the protocol.
//!
//! The sound replies are written from the protocol document alone. Whatever is changed, the client must say the same of
//! the bytes in any pieces, keep no more of them than a reply's head, and call no read done of which a byte is missing
//! or came twice.

use uraid_nbd::client::{Agreed, Ended, Goal, Handshake, Part, Received, RequestIndex, Transmission};
use uraid_nbd::{Command, Span};

use crate::Input;

const OPTION_REPLY: [u8; 8] = 0x0003_e889_0455_65a9_u64.to_be_bytes();
const UNSUPPORTED: u32 = (1 << 31) + 1;
const SIZE: u64 = 1 << 30;
/// Each read's length.
const READ: usize = 1024;
/// How many reads are under way.
const READS: usize = 4;
/// More is never kept: the longest head of a reply.
const HEAD_MAX: usize = 44;

/// How requests and replies look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Simple,
    Structured,
    Extended,
}

/// Holds a changed handshake, and changed replies after a sound one, against what must not happen.
///
/// # Panics
/// When it does.
pub fn check(input: &mut Input<'_>) {
    let form = input.pick(&[Form::Simple, Form::Structured, Form::Extended]);
    let cut = usize::from(input.byte() % 60) + 1;
    let goal = Goal::Use { export: "disk".into() };
    let sound = handshake(form);
    let agreed = shake_hands(&goal, &sound, sound.len()).expect("a sound handshake");
    if input.byte().is_multiple_of(4) {
        let mut changed = sound;
        input.change(&mut changed);
        let in_pieces = shake_hands(&goal, &changed, cut);
        assert_eq!(in_pieces, shake_hands(&goal, &changed, changed.len()), "in pieces and at once");
        let _ = shake_hands(&Goal::List, &changed, cut);
        return;
    }
    let mut replies = replies(form, input);
    input.change(&mut replies);
    assert_eq!(story(&agreed, &replies, cut), story(&agreed, &replies, usize::MAX / 2), "in pieces and at once");
}

fn handshake(form: Form) -> Vec<u8> {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let length = u32::try_from(data.len()).expect("short").to_be_bytes();
        [&OPTION_REPLY[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length, data].concat()
    };
    let headers = match form {
        Form::Simple => [reply(11, UNSUPPORTED, b"no"), reply(8, UNSUPPORTED, b"")].concat(),
        Form::Structured => [reply(11, UNSUPPORTED, b""), reply(8, 1, b"")].concat(),
        Form::Extended => reply(11, 1, b""),
    };
    let export = [&b"\0\0"[..], &SIZE.to_be_bytes(), &0x6d_u16.to_be_bytes()].concat();
    let sizes =
        [&b"\0\x03"[..], &512_u32.to_be_bytes(), &4096_u32.to_be_bytes(), &(1_u32 << 20).to_be_bytes()].concat();
    [b"NBDMAGICIHAVEOPT\0\x03".to_vec(), headers, reply(7, 3, &sizes), reply(7, 3, &export), reply(7, 1, b"")].concat()
}

/// What the client agrees on with a server that says this, in pieces of that length; none where it refuses, or waits.
fn shake_hands(goal: &Goal, bytes: &[u8], cut: usize) -> Option<Agreed> {
    let mut handshake = Handshake::new(goal.clone(), false);
    for piece in bytes.chunks(cut.max(1)) {
        let used = handshake.receive(piece).ok()?;
        let said = handshake.take_output();
        assert!(said.len() <= 8 << 10, "a client says little");
        match handshake.ended() {
            Some(Ended::Transmission(agreed)) => return Some(*agreed),
            Some(_) => return None,
            None => assert_eq!(used, piece.len(), "all is taken until the end"),
        }
    }
    None
}

/// The answers to all reads, in pieces and in an order that the input says.
fn replies(form: Form, input: &mut Input<'_>) -> Vec<u8> {
    let mut replies = Vec::new();
    let first = usize::from(input.byte());
    for number in 0..READS {
        let index = (first + number) % READS;
        let (cookie, offset) = ((index as u64).to_be_bytes(), index as u64 * 4096);
        if form == Form::Simple {
            replies.extend([&b"\x67\x44\x66\x98\0\0\0\0"[..], &cookie, &[index as u8; READ]].concat());
            continue;
        }
        let mut chunk = |flags: u16, kind: u16, payload: &[u8]| {
            let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
            let length = payload.len() as u64;
            replies.extend(match form {
                Form::Extended => {
                    [&b"\x6e\x8a\x27\x8c"[..], &flags, &kind, &cookie, &offset.to_be_bytes(), &length.to_be_bytes()]
                        .concat()
                }
                _ => [&b"\x66\x8e\x33\xef"[..], &flags, &kind, &cookie, &(length as u32).to_be_bytes()].concat(),
            });
            replies.extend(payload);
        };
        let middle = offset + (READ as u64) / 2;
        match input.byte() % 4 {
            0 => chunk(1, 1, &[&offset.to_be_bytes()[..], &[7; READ]].concat()),
            1 => {
                chunk(0, 2, &[&middle.to_be_bytes()[..], &(READ as u32 / 2).to_be_bytes()].concat());
                chunk(1, 1, &[&offset.to_be_bytes()[..], &[7; READ / 2]].concat());
            }
            2 => chunk(1, 0x8001, b"\0\0\0\x05\0\x04text"),
            _ => {
                chunk(0, 1, &[&offset.to_be_bytes()[..], &[7; READ / 2]].concat());
                chunk(0, 1, &[&middle.to_be_bytes()[..], &[7; READ / 2]].concat());
                chunk(1, 0, b"");
            }
        }
    }
    replies
}

/// Everything that the client says of these bytes in pieces of that length.
fn story(agreed: &Agreed, bytes: &[u8], cut: usize) -> Vec<String> {
    let mut client = Transmission::new(agreed, READS as u32);
    let requests: Vec<RequestIndex> = (0..READS as u64)
        .map(|index| {
            let span = Span { offset_bytes: index * 4096, length_bytes: READ as u64 };
            client.begin(&Command::Read { span, buffer: () }).expect("there is room").0
        })
        .collect();
    assert!(requests.iter().enumerate().all(|(index, request)| request.get() == index), "places in order");
    let mut delivered = [[0_u8; READ]; READS];
    let (mut told, mut pending, mut pieces, mut data_left) = (Vec::new(), Vec::new(), bytes.chunks(cut), 0_usize);
    loop {
        let taken = data_left.min(pending.len());
        pending.drain(..taken);
        data_left -= taken;
        let mut rest = &pending[..];
        let next = if data_left > 0 { Ok(None) } else { client.next(&mut rest) };
        pending = rest.to_vec();
        match next {
            Err(error) => {
                told.push(error.to_string());
                return told;
            }
            Ok(None) => {
                assert!(pending.len() < HEAD_MAX, "no more than a head is kept");
                let Some(piece) = pieces.next() else {
                    told.push(format!("{data_left} {}", pending.len()));
                    return told;
                };
                pending.extend_from_slice(piece);
            }
            Ok(Some(received)) => {
                let Received { request, part, ended } = received;
                told.push(format!("{received:?}"));
                let own = &mut delivered[request.get()];
                if let Part::Data { at_bytes, length_bytes } | Part::Zeros { at_bytes, length_bytes } = part {
                    own[at_bytes as usize..(at_bytes + length_bytes) as usize].iter_mut().for_each(|count| *count += 1);
                }
                if let Part::Data { length_bytes, .. } = part {
                    data_left = length_bytes as usize;
                }
                assert!(ended != Some(Ok(())) || *own == [1; READ], "every byte, once");
            }
        }
    }
}
