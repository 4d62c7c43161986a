//! Byte vectors written down from the protocol document, conversations with the server's half, and what any bytes at
//! all may do.

use proptest::prelude::*;

use super::*;
use crate::{BlockSizes, ExportInfo, handshake as server};

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
const EXPORT: &[u8] = b"\0\0\0\0\0\0\x40\0\0\0\x0d\x6d";
const SIZES: &[u8] = b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0";
const UNSUPPORTED: u32 = 0x8000_0001;

/// A reply of the server's to an option.
fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    [b"\0\x03\xe8\x89\x04\x55\x65\xa9", &option.to_be_bytes()[..], &kind.to_be_bytes(), &length.to_be_bytes(), data]
        .concat()
}

/// An option of the client's.
fn option(number: u8, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    [b"IHAVEOPT\0\0\0", &[number][..], &length.to_be_bytes(), data].concat()
}

fn use_of(export: &str) -> Goal {
    Goal::Use { export: export.into() }
}

/// What the client says to a server that says this, and how it ends.
fn converse(goal: Goal, says: &[&[u8]]) -> (Vec<u8>, Result<Option<Ended>, Error>) {
    let mut handshake = Handshake::new(goal, false);
    let result = handshake.receive(&says.concat());
    (handshake.take_output(), result.map(|_| handshake.ended().cloned()))
}

/// The server's side up to the choice of headers, which is refused.
fn simple() -> Vec<u8> {
    [GREETING, &reply(11, UNSUPPORTED, b"")[..], &reply(8, UNSUPPORTED, b"")].concat()
}

#[test]
fn the_best_of_everything() {
    let go = [reply(7, 3, SIZES), reply(7, 3, EXPORT), reply(7, 3, b"\0\x02text"), reply(7, 1, b"")].concat();
    let (said, ended) = converse(use_of("disk"), &[GREETING, &reply(11, 1, b""), &go]);
    let expected = [b"\0\0\0\x03".to_vec(), option(11, b""), option(7, b"\0\0\0\x04disk\0\x01\0\x03")].concat();
    assert_eq!(said, expected);
    let Some(Ended::Transmission(agreed)) = ended.unwrap() else { panic!("no agreement") };
    assert_eq!((agreed.size_bytes(), agreed.headers()), (1 << 30, Headers::Extended));
    let sizes = BlockSizes { minimum_bytes: 512, preferred_bytes: 4096, maximum_bytes: 32 << 20 };
    assert_eq!(agreed.block_sizes(), sizes);
    // Flags 0d6d: all but read-only, rotational, DF; with flush, FUA, trim, zeroes, several connections, fast zeroes.
    assert!(agreed.can_flush() && agreed.can_fua() && agreed.can_trim() && agreed.can_zero_fast());
    assert!(agreed.can_multi_conn() && !agreed.is_read_only() && !agreed.is_rotational());
}

#[test]
fn the_next_best_where_the_server_does_not_know() {
    let go = [reply(7, 3, EXPORT), reply(7, 1, b"")].concat();
    let (said, ended) = converse(use_of(""), &[GREETING, &reply(11, UNSUPPORTED, b"?"), &reply(8, 1, b""), &go]);
    let expected = [b"\0\0\0\x03".to_vec(), option(11, b""), option(8, b""), option(7, b"\0\0\0\0\0\x01\0\x03")];
    assert_eq!(said, expected.concat());
    let Some(Ended::Transmission(agreed)) = ended.unwrap() else { panic!("no agreement") };
    assert_eq!((agreed.headers(), agreed.block_sizes()), (Headers::Structured, BlockSizes::default()));

    // The oldest: no GO, and zeros behind the reply, as it does not know that they can be left out.
    let oldest = [&b"NBDMAGICIHAVEOPT\0\x01"[..], &simple()[18..], &reply(7, UNSUPPORTED, b"")].concat();
    let (said, ended) = converse(use_of("disk"), &[&oldest, &EXPORT[2..], &[0; 123]]);
    assert!(said.starts_with(b"\0\0\0\x01") && said.ends_with(&option(1, b"disk")));
    assert_eq!(ended.unwrap(), None, "a zero is missing");
    let (_, ended) = converse(use_of("disk"), &[&oldest, &EXPORT[2..], &[0; 124]]);
    assert!(matches!(ended.unwrap(), Some(Ended::Transmission(agreed)) if agreed.headers() == Headers::Simple));
}

#[test]
fn exports_are_listed() {
    let list = [reply(3, 2, b"\0\0\0\x01afirst"), reply(3, 2, b"\0\0\0\0"), reply(3, 1, b"")].concat();
    let (said, ended) = converse(Goal::List, &[GREETING, &list]);
    assert_eq!(said, [b"\0\0\0\x03".to_vec(), option(3, b""), option(2, b"")].concat());
    let listed = |name: &str, description: &str| Listed { name: name.into(), description: description.into() };
    assert_eq!(ended.unwrap(), Some(Ended::Listed(vec![listed("a", "first"), listed("", "")])));
}

#[test]
fn tls_comes_before_anything_else_and_nothing_in_the_clear_after_it() {
    let mut handshake = Handshake::new(use_of("disk"), true);
    let agreed = [GREETING, &reply(5, 1, b"")].concat();
    assert_eq!(handshake.receive(&agreed).unwrap(), agreed.len());
    assert_eq!(handshake.take_output(), [b"\0\0\0\x03".to_vec(), option(5, b"")].concat());
    assert_eq!(handshake.ended(), Some(&Ended::StartTls));
    let mut inner = handshake.in_tls();
    assert_eq!(inner.take_output(), option(11, b""));
    inner.receive(&[reply(11, 1, b""), reply(7, 3, EXPORT), reply(7, 1, b"")].concat()).unwrap();
    assert!(matches!(inner.ended(), Some(Ended::Transmission(_))));

    let mut handshake = Handshake::new(use_of("disk"), true);
    let injected = [&agreed[..], b"x"].concat();
    assert!(matches!(handshake.receive(&injected), Err(Error::PlainAfterStartTls)));
    let mut handshake = Handshake::new(use_of("disk"), true);
    let refused = handshake.receive(&[GREETING, &reply(5, UNSUPPORTED, b"")].concat());
    assert!(matches!(refused, Err(Error::NoTls { .. })), "it does not go on without");
}

#[test]
fn refusals_are_told_with_the_servers_words() {
    let (_, ended) = converse(use_of("disc"), &[&simple(), &reply(7, 0x8000_0006, b"no\nsuch disc")]);
    let Err(error @ Error::Refused { refusal, .. }) = ended else { panic!("{ended:?}") };
    assert!(refusal.is_unknown());
    assert_eq!(error.to_string(), "the server has no such export (it says: no such disc)");
    let (_, ended) = converse(use_of("disk"), &[GREETING, &reply(11, 0x8000_0005, b""), &reply(8, 0x8000_0005, b"")]);
    assert_eq!(ended.unwrap_err().to_string(), "the server requires TLS");
}

/// What it is, what the server says, and whether an error is the one that it should be.
type Lie = (&'static str, Vec<u8>, fn(&Error) -> bool);

#[test]
fn each_lie_is_an_error_of_its_own() {
    let cases: &[Lie] = &[
        ("no server", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), |e| matches!(e, Error::Greeting { .. })),
        ("the old style", b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0".to_vec(), |e| {
            matches!(e, Error::Greeting { .. })
        }),
        ("not fixed", b"NBDMAGICIHAVEOPT\0\0".to_vec(), |e| matches!(e, Error::NotFixed)),
        ("no reply", [GREETING, b"IHAVEOPT\0\0\0\0\0\0\0\0\0\0\0\0"].concat(), |e| {
            matches!(e, Error::OptionReplyMagic { .. })
        }),
        ("another option", [GREETING, &reply(7, 1, b"")].concat(), |e| {
            matches!(e, Error::WrongOption { asked: 11, answered: 7 })
        }),
        ("a long reply", [GREETING, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x0b\0\0\0\x01\xff\0\0\0"].concat(), |e| {
            matches!(e, Error::OptionReplyTooLong { option: 11, .. })
        }),
        ("data in an acknowledgement", [GREETING, &reply(11, 1, b"x")].concat(), |e| {
            matches!(e, Error::OptionReply { option: 11, .. })
        }),
        ("no size", [&simple()[..], &reply(7, 1, b"")].concat(), |e| matches!(e, Error::OptionReply { option: 7, .. })),
        (
            "two sizes",
            [&simple()[..], &reply(7, 3, EXPORT), &reply(7, 3, b"\0\0\0\0\0\0\x40\0\x02\0\x0d\x6d")].concat(),
            |e| matches!(e, Error::OptionReply { option: 7, .. }),
        ),
        ("half a size", [&simple()[..], &reply(7, 3, &EXPORT[..11])].concat(), |e| {
            matches!(e, Error::OptionReply { option: 7, .. })
        }),
        ("a type of another option", [&simple()[..], &reply(7, 2, b"\0\0\0\0")].concat(), |e| {
            matches!(e, Error::OptionReply { option: 7, .. })
        }),
        ("no flags", [&simple()[..], &reply(7, 3, b"\0\0\0\0\0\0\x40\0\0\0\0\0"), &reply(7, 1, b"")].concat(), |e| {
            matches!(e, Error::Export { .. })
        }),
        (
            "too large",
            [&simple()[..], &reply(7, 3, b"\0\0\x80\0\0\0\0\0\0\0\0\x01"), &reply(7, 1, b"")].concat(),
            |e| matches!(e, Error::Export { .. }),
        ),
    ];
    for (name, says, is_expected) in cases {
        let (_, ended) = converse(use_of("disk"), &[says]);
        let error = ended.expect_err(name);
        assert!(is_expected(&error), "{name}: {error:?}");
    }
    for sizes in [
        [0u32, 4096, 4096],
        [3, 4096, 4096],
        [1 << 17, 1 << 17, 1 << 17],
        [512, 3000, 4096],
        [4096, 512, 4096],
        [512, 4096, 700],
    ] {
        let sizes: Vec<u8> = [vec![0, 3], sizes.iter().flat_map(|size| size.to_be_bytes()).collect()].concat();
        let (_, ended) =
            converse(use_of(""), &[&simple(), &reply(7, 3, &sizes), &reply(7, 3, EXPORT), &reply(7, 1, b"")]);
        assert!(matches!(ended, Err(Error::Export { .. })), "{sizes:?}: {ended:?}");
    }
    let endless = [&simple()[..], &reply(7, 3, b"\0\x02").repeat(4097)].concat();
    assert!(matches!(converse(use_of(""), &[&endless]).1, Err(Error::TooManyReplies { option: 7 })));
}

/// Both halves until the client has ended; `cuts` are the sizes of the pieces in which bytes arrive.
fn meet(client: &mut Handshake, server: &mut server::Handshake, cuts: &mut impl Iterator<Item = usize>) {
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    while client.ended().is_none() {
        to_client.extend(server.take_output());
        let cut = to_client.len().min(cuts.next().unwrap());
        let used = client.receive(&to_client[..cut]).unwrap();
        to_client.drain(..used);
        to_server.extend(client.take_output());
        let cut = to_server.len().min(cuts.next().unwrap());
        let used = server.receive(&to_server[..cut]).unwrap();
        to_server.drain(..used);
    }
    assert!(to_client.is_empty(), "a server says nothing that nobody asked for");
}

proptest! {
    #[test]
    fn client_and_server_agree(
        blocks in 1..1u64 << 40,
        powers in (0..17u32, 0..17u32, 0..10u32),
        flags in prop::collection::vec(any::<bool>(), 5),
        cuts in prop::collection::vec(1..60usize, 1..20),
    ) {
        let minimum_bytes = 1 << powers.0;
        let preferred_bytes = 1 << powers.1.max(powers.0).max(9);
        let maximum_bytes = preferred_bytes << powers.2;
        let block_sizes = BlockSizes { minimum_bytes, preferred_bytes, maximum_bytes };
        let export = ExportInfo {
            name: "disk".into(),
            block_sizes,
            read_only: flags[0],
            rotational: flags[1],
            multi_conn: flags[2],
            trim: flags[3],
            fast_zero: flags[4],
            ..ExportInfo::new(blocks.min((1 << 62) / u64::from(minimum_bytes)) * u64::from(minimum_bytes))
        };
        prop_assume!(export.validate().is_ok());
        let mut server = server::Handshake::new(export.clone().into(), server::Security::Plain);
        let mut client = Handshake::new(use_of("disk"), false);
        meet(&mut client, &mut server, &mut cuts.into_iter().cycle());
        let Some(Ended::Transmission(agreed)) = client.ended() else { panic!("no agreement") };
        prop_assert_eq!(agreed.size_bytes(), export.size_bytes);
        prop_assert_eq!(agreed.headers(), Headers::Extended);
        prop_assert_eq!(agreed.is_read_only(), export.read_only);
        prop_assert_eq!(agreed.is_rotational(), export.rotational);
        prop_assert_eq!(agreed.can_multi_conn(), export.multi_conn);
        prop_assert_eq!(agreed.can_trim(), export.trim && !export.read_only);
        prop_assert_eq!(agreed.can_zero_fast(), export.fast_zero && !export.read_only);
        prop_assert!(agreed.can_flush() && agreed.can_fua());
        let told = BlockSizes { maximum_bytes: maximum_bytes.min(32 << 20), ..block_sizes };
        prop_assert_eq!(agreed.block_sizes(), told);
    }

    #[test]
    fn any_bytes_in_any_split_end_the_same(
        pieces in prop::collection::vec(prop_oneof![
            2 => (
                prop::sample::select(vec![3u32, 7, 8, 11]),
                prop::sample::select(vec![1, 2, 3, UNSUPPORTED]),
                prop::collection::vec(any::<u8>(), 0..20),
            ).prop_map(|(option, kind, data)| reply(option, kind, &data)),
            2 => (prop::sample::select(vec![3u32, 7, 8, 11]), prop_oneof![Just(1u32), Just(UNSUPPORTED)])
                .prop_map(|(option, kind)| reply(option, kind, b"")),
            2 => Just(reply(7, 3, EXPORT)),
            1 => prop::collection::vec(any::<u8>(), 0..30),
        ], 0..12),
        is_list in any::<bool>(),
        cuts in prop::collection::vec(1..50usize, 1..20),
    ) {
        let goal = if is_list { Goal::List } else { use_of("disk") };
        let bytes = [GREETING.to_vec(), pieces.concat()].concat();
        let mut whole = Handshake::new(goal.clone(), false);
        let expected = whole.receive(&bytes);
        let mut split = Handshake::new(goal, false);
        let (mut at, mut cuts) = (0, cuts.into_iter().cycle());
        let result = loop {
            let end = bytes.len().min(at + cuts.next().unwrap());
            match split.receive(&bytes[at..end]) {
                Ok(used) if used < end - at || end == bytes.len() => break Ok(at + used),
                Ok(used) => at += used,
                Err(error) => break Err(error),
            }
        };
        prop_assert_eq!(format!("{result:?}"), format!("{expected:?}"));
        prop_assert_eq!(split.take_output(), whole.take_output());
        prop_assert_eq!(split.ended(), whole.ended());
    }
}
