//! Byte vectors written down from the protocol document, and what any bytes at all may do.

mod several;

use proptest::prelude::*;

use super::*;
use crate::BlockSizes;

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";
const CLIENT_FLAGS: &[u8] = b"\0\0\0\x03";

fn export() -> ExportInfo {
    ExportInfo {
        name: "disk".into(),
        description: "a test".into(),
        block_sizes: BlockSizes { minimum_bytes: 512, preferred_bytes: 4096, maximum_bytes: 0x200_0000 },
        ..ExportInfo::new(0x10_0000)
    }
}

/// The only export.
fn first() -> Index {
    Exports::from(export()).find(b"disk").unwrap()
}

/// `IHAVEOPT | option 32 | length 32 | data`
fn option(option: u8, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT\0\0\0", &[option][..], &u32::try_from(data.len()).unwrap().to_be_bytes(), data].concat()
}

/// `3e889045565a9 | option 32 | type 32 | length 32 | data`
fn reply(option: u8, kind: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap().to_be_bytes();
    [&[0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9, 0, 0, 0, option][..], &kind.to_be_bytes(), &length, data].concat()
}

/// Sends client flags and `input`; returns what came back after the greeting, and how it ended.
fn converse(input: &[u8]) -> (Vec<u8>, Result<Option<Ended>, Error>) {
    let mut handshake = Handshake::new(export().into(), Security::Plain);
    assert_eq!(handshake.take_output(), GREETING);
    assert_eq!(handshake.receive(CLIENT_FLAGS).unwrap(), 4);
    let result = handshake.receive(input).map(|_| handshake.ended());
    (handshake.take_output(), result)
}

/// The type of the first reply.
fn first_reply_kind(output: &[u8]) -> u32 {
    u32::from_be_bytes(output[12..16].try_into().unwrap())
}

#[test]
fn go_with_the_default_export() {
    // Empty name, one item of information: block sizes.
    let (output, ended) = converse(&option(7, b"\0\0\0\0\0\x01\0\x03"));
    // has-flags, flush, fua, trim, write-zeroes, multi-conn, cache, fast-zero: bits 0 2 3 5 6 8 10 11
    let mut expected = reply(7, 3, b"\0\0\0\0\0\0\0\x10\0\0\x0d\x6d");
    expected.extend(reply(7, 3, b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0"));
    expected.extend(reply(7, 1, b""));
    assert_eq!(output, expected);
    assert_eq!(ended.unwrap(), Some(Ended::Transmission(first(), Session::new(&export(), Headers::Simple, false))));
}

#[test]
fn info_tells_all_and_goes_on() {
    let asked = option(6, b"\0\0\0\x04disk\0\x02\0\x01\0\x02");
    let (output, ended) = converse(&asked);
    let mut expected = reply(6, 3, b"\0\0\0\0\0\0\0\x10\0\0\x0d\x6d");
    expected.extend(reply(6, 3, b"\0\x01disk"));
    expected.extend(reply(6, 3, b"\0\x02a test"));
    expected.extend(reply(6, 1, b""));
    assert_eq!(output, expected);
    assert_eq!(ended.unwrap(), None);
}

#[test]
fn structured_replies_add_the_df_flag() {
    let (output, ended) = converse(&[option(8, b""), option(7, b"\0\0\0\0\0\0")].concat());
    let mut expected = reply(8, 1, b"");
    expected.extend(reply(7, 3, b"\0\0\0\0\0\0\0\x10\0\0\x0d\xed"));
    expected.extend(reply(7, 1, b""));
    assert_eq!(output, expected);
    assert_eq!(ended.unwrap(), Some(Ended::Transmission(first(), Session::new(&export(), Headers::Structured, false))));
}

#[test]
fn extended_headers_include_structured_replies() {
    let invalid = 0x8000_0003;
    let needed = 0x8000_000a;
    let go = option(7, b"\0\0\0\0\0\0");
    let by_name = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    let (output, ended) = converse(&[option(11, b""), go.clone()].concat());
    let mut expected = reply(11, 1, b"");
    // With DF, bit 7. Without a context there is no status to choose contexts for.
    expected.extend(reply(7, 3, b"\0\0\0\0\0\0\0\x10\0\0\x0d\xed"));
    expected.extend(reply(7, 1, b""));
    assert_eq!(output, expected);
    assert_eq!(ended.unwrap(), Some(Ended::Transmission(first(), Session::new(&export(), Headers::Extended, false))));

    let (output, ended) = converse(&[option(11, b""), option(10, by_name), option(6, b"\0\0\0\0\0\0"), go].concat());
    let mut expected = reply(11, 1, b"");
    expected.extend(reply(10, 4, b"\0\0\0\x01base:allocation"));
    expected.extend(reply(10, 1, b""));
    for option in [6, 7] {
        // With BLOCK_STATUS_PAYLOAD, bit 12.
        expected.extend(reply(option, 3, b"\0\0\0\0\0\0\0\x10\0\0\x1d\xed"));
        expected.extend(reply(option, 1, b""));
    }
    assert_eq!(output, expected);
    assert_eq!(ended.unwrap(), Some(Ended::Transmission(first(), Session::new(&export(), Headers::Extended, true))));

    // A choice of contexts takes extended headers.
    let (output, _) = converse(&[option(8, b""), option(10, by_name), option(6, b"\0\0\0\0\0\0")].concat());
    assert!(output.ends_with(&[reply(6, 3, b"\0\0\0\0\0\0\0\x10\0\0\x0d\xed"), reply(6, 1, b"")].concat()));

    // There is no way back, and no second time.
    for (number, error) in [(8, needed), (11, invalid)] {
        let (output, _) = converse(&[option(11, b""), option(number, b"")].concat());
        assert_eq!(first_reply_kind(&output[20..]), error, "option {number}");
    }
    let (output, ended) = converse(&[option(8, b""), option(10, by_name), option(11, b""), option(1, b"")].concat());
    assert!(output.starts_with(&reply(8, 1, b"")));
    assert_eq!(ended.unwrap(), Some(Ended::Transmission(first(), Session::new(&export(), Headers::Extended, true))));
}

#[test]
fn read_only_exports_offer_no_writes() {
    let mut handshake =
        Handshake::new(ExportInfo { read_only: true, multi_conn: false, ..export() }.into(), Security::Plain);
    handshake.take_output();
    handshake.receive(&[CLIENT_FLAGS, &option(1, b"disk")].concat()).unwrap();
    // has-flags, read-only, flush, fua, cache: bits 0 1 2 3 10. No zeroes: the client asked for none.
    assert_eq!(handshake.take_output(), b"\0\0\0\0\0\x10\0\0\x04\x0f");
}

#[test]
fn exports_on_disks_that_rotate_say_so() {
    let mut handshake = Handshake::new(ExportInfo { rotational: true, ..export() }.into(), Security::Plain);
    handshake.take_output();
    handshake.receive(&[CLIENT_FLAGS, &option(1, b"disk")].concat()).unwrap();
    // As without, and bit 4.
    assert_eq!(handshake.take_output(), b"\0\0\0\0\0\x10\0\0\x0d\x7d");
}

#[test]
fn export_name_pads_for_clients_that_want_it() {
    let mut handshake = Handshake::new(export().into(), Security::Plain);
    handshake.take_output();
    let input = [b"\0\0\0\x01", &option(1, b"")[..], b"request"].concat();
    assert_eq!(handshake.receive(&input).unwrap(), input.len() - "request".len());
    let output = handshake.take_output();
    assert_eq!(output[..10], *b"\0\0\0\0\0\x10\0\0\x0d\x6d");
    assert_eq!(output[10..], [0; 124]);
    assert!(matches!(handshake.ended(), Some(Ended::Transmission(..))));
}

#[test]
fn list_and_abort() {
    let (output, ended) = converse(&[option(3, b""), option(2, b"")].concat());
    let mut expected = reply(3, 2, b"\0\0\0\x04diska test");
    expected.extend(reply(3, 1, b""));
    expected.extend(reply(2, 1, b""));
    assert_eq!(output, expected);
    assert_eq!(ended.unwrap(), Some(Ended::Aborted));
}

#[test]
fn metadata_contexts() {
    let structured = option(8, b"");
    let after_structured = |data: &[u8], number| {
        let (output, ended) = converse(&[&structured[..], &option(number, data)].concat());
        assert_eq!(ended.unwrap(), None);
        output[20..].to_vec()
    };
    let by_name = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    let by_namespace = b"\0\0\0\0\0\0\0\x01\0\0\0\x05base:";
    let unknown = b"\0\0\0\0\0\0\0\x02\0\0\0\x05x-a:b\0\0\0\x08base:abc";
    let none = b"\0\0\0\0\0\0\0\0";
    let set = [reply(10, 4, b"\0\0\0\x01base:allocation"), reply(10, 1, b"")].concat();
    let listed = [reply(9, 4, b"\0\0\0\0base:allocation"), reply(9, 1, b"")].concat();
    assert_eq!(after_structured(by_name, 10), set);
    assert_eq!(after_structured(by_namespace, 10), reply(10, 1, b""));
    assert_eq!(after_structured(unknown, 10), reply(10, 1, b""));
    assert_eq!(after_structured(none, 10), reply(10, 1, b""));
    assert_eq!(after_structured(by_name, 9), listed);
    assert_eq!(after_structured(by_namespace, 9), listed);
    assert_eq!(after_structured(unknown, 9), reply(9, 1, b""));
    assert_eq!(after_structured(none, 9), listed);
    assert_eq!(first_reply_kind(&after_structured(b"\0\0\0\x01x\0\0\0\0", 10)), 0x8000_0006);
    for malformed in
        [&b""[..], b"\0\0\0\0", b"\0\0\0\0\0\0\0\x01", b"\0\0\0\0\0\0\0\x01\0\0\0\x02a", b"\0\0\0\0\0\0\0\0\0"]
    {
        assert_eq!(first_reply_kind(&after_structured(malformed, 10)), 0x8000_0003, "{malformed:?}");
    }
    let (output, _) = converse(&option(10, by_name));
    assert_eq!(first_reply_kind(&output), 0x8000_0003, "structured replies come first");
}

#[test]
fn the_last_selection_of_contexts_counts() {
    let by_name = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    let go = option(7, b"\0\0\0\0\0\0");
    let (_, ended) = converse(&[option(8, b""), option(10, by_name), go.clone()].concat());
    assert_eq!(ended.unwrap(), Some(Ended::Transmission(first(), Session::new(&export(), Headers::Structured, true))));
    // A selection that fails leaves none.
    let (_, ended) = converse(&[option(8, b""), option(10, by_name), option(10, b""), go].concat());
    assert_eq!(ended.unwrap(), Some(Ended::Transmission(first(), Session::new(&export(), Headers::Structured, false))));
}

#[test]
fn refused_options_leave_the_handshake_alive() {
    let unsupported = 0x8000_0001;
    let policy = 0x8000_0002;
    let invalid = 0x8000_0003;
    let unknown_export = 0x8000_0006;
    let too_big = 0x8000_0009;
    let cases: &[(u8, Vec<u8>, u32)] = &[
        (5, vec![], policy), // STARTTLS
        (12, vec![], unsupported),
        (99, vec![1, 2, 3], unsupported),
        (3, vec![0], invalid),
        (8, vec![0], invalid),
        (11, vec![0], invalid),
        (7, vec![], invalid),
        (7, b"\0\0\0\x05disk\0\0".to_vec(), invalid),
        (7, b"\xff\xff\xff\xffdisk\0\0".to_vec(), invalid),
        (7, b"\0\0\0\x04disk\0\x01".to_vec(), invalid),
        (7, b"\0\0\0\x04disk\0\x00\0".to_vec(), invalid),
        (7, b"\0\0\0\x04disc\0\0".to_vec(), unknown_export),
        (7, vec![0; 16385], too_big),
        (3, vec![0; 1 << 20], too_big),
    ];
    for (number, data, expected) in cases {
        let (output, ended) = converse(&[option(*number, data), option(2, b"")].concat());
        assert_eq!(first_reply_kind(&output), *expected, "option {number} with {} bytes", data.len());
        assert_eq!(ended.unwrap(), Some(Ended::Aborted), "option {number} with {} bytes", data.len());
    }
}

#[test]
fn garbage_ends_the_connection() {
    let mut handshake = Handshake::new(export().into(), Security::Plain);
    assert!(matches!(handshake.receive(b"GET / HTTP/1.1\r\n\r\n"), Err(Error::ClientFlags { flags: 0x4745_5420 })));
    assert_eq!(handshake.receive(b"more").unwrap(), 0, "a handshake that failed takes nothing");
    assert!(matches!(converse(b"NBDMAGIC\0\0\0\x07\0\0\0\0").1, Err(Error::OptionMagic { .. })));
    assert!(matches!(converse(&option(1, b"disc")).1, Err(Error::UnknownExport { name }) if name == "disc"));
    let huge = b"IHAVEOPT\0\0\0\x07\0\x10\0\x01";
    assert!(matches!(converse(huge).1, Err(Error::OptionTooLarge { option: 7, length_bytes: 0x10_0001 })));
    let endless = option(3, b"").repeat(65);
    assert!(matches!(converse(&endless).1, Err(Error::TooManyOptions { limit: 64 })));
}

/// A handshake of a server that requires TLS, after client flags; and what follows the greeting.
fn converse_before_tls(input: &[u8]) -> (Handshake, Vec<u8>, Result<usize, Error>) {
    let mut handshake = Handshake::new(export().into(), Security::TlsRequired);
    assert_eq!(handshake.take_output(), GREETING);
    assert_eq!(handshake.receive(CLIENT_FLAGS).unwrap(), 4);
    let result = handshake.receive(input);
    let output = handshake.take_output();
    (handshake, output, result)
}

/// A handshake in TLS.
fn in_tls() -> Handshake {
    let (handshake, output, result) = converse_before_tls(&option(5, b""));
    assert_eq!((output, result.unwrap()), (reply(5, 1, b""), 16));
    handshake.in_tls(export().into())
}

#[test]
fn forced_tls_refuses_every_option_but_starttls_and_abort() {
    let go = b"\0\0\0\0\0\0";
    let cases = [(3, &b""[..]), (6, go), (7, go), (8, b""), (8, b"wrong"), (9, b""), (10, b""), (11, b""), (99, b"x")];
    for (number, data) in cases {
        let (handshake, output, result) = converse_before_tls(&option(number, data));
        assert_eq!(first_reply_kind(&output), 0x8000_0005, "option {number}");
        assert_eq!((handshake.ended(), result.is_ok()), (None, true), "option {number}");
    }
    let (_, output, _) = converse_before_tls(&option(7, &[0; 20000]));
    assert_eq!(first_reply_kind(&output), 0x8000_0005, "also if it is too long to look at");
    let (handshake, output, _) = converse_before_tls(&option(2, b""));
    assert_eq!((handshake.ended(), output), (Some(Ended::Aborted), reply(2, 1, b"")));
}

#[test]
fn forced_tls_ends_the_session_at_export_name() {
    let (_, output, result) = converse_before_tls(&option(1, b"disk"));
    assert!(matches!(result, Err(Error::TlsRequired)));
    assert_eq!(output, b"");
    let (_, _, result) = converse_before_tls(&option(1, &[b'a'; 20000]));
    assert!(matches!(result, Err(Error::OptionTooLarge { option: 1, .. })));
}

#[test]
fn a_client_that_is_not_fixed_newstyle_can_not_start_tls() {
    let mut handshake = Handshake::new(export().into(), Security::TlsRequired);
    assert!(matches!(handshake.receive(b"\0\0\0\0"), Err(Error::TlsRequired)));
}

#[test]
fn starttls_takes_no_data() {
    let (handshake, output, result) = converse_before_tls(&option(5, b"x"));
    assert_eq!((first_reply_kind(&output), handshake.ended()), (0x8000_0003, None));
    assert!(result.is_ok());
}

#[test]
fn nothing_in_the_clear_may_follow_starttls() {
    for injected in [&b"x"[..], &option(8, b""), &option(7, b"\0\0\0\0\0\0"), b"\x16\x03\x01"] {
        let (_, _, result) = converse_before_tls(&[&option(5, b"")[..], injected].concat());
        assert!(matches!(result, Err(Error::PlainAfterStartTls)), "{injected:?}");
    }
}

#[test]
fn a_second_starttls_is_invalid() {
    let mut handshake = in_tls();
    handshake.receive(&option(5, b"")).unwrap();
    assert_eq!(first_reply_kind(&handshake.take_output()), 0x8000_0003);
    assert_eq!(handshake.ended(), None);
}

#[test]
fn in_tls_there_is_no_second_greeting_and_every_option_works() {
    let mut handshake = in_tls();
    assert_eq!(handshake.take_output(), b"");
    handshake.receive(&[option(3, b""), option(8, b""), option(7, b"\0\0\0\0\0\0")].concat()).unwrap();
    assert_eq!(first_reply_kind(&handshake.take_output()), 2);
    assert_eq!(
        handshake.ended(),
        Some(Ended::Transmission(first(), Session::new(&export(), Headers::Structured, false)))
    );
}

#[test]
fn what_was_negotiated_in_the_clear_has_no_meaning_in_tls() {
    let selection = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    for headers in [8, 11] {
        let before = [option(headers, b""), option(10, selection), option(5, b"")].concat();
        let (handshake, _, result) = converse_before_tls(&before);
        result.unwrap();
        let mut handshake = handshake.in_tls(export().into());
        handshake.receive(&option(7, b"\0\0\0\0\0\0")).unwrap();
        assert_eq!(
            handshake.ended(),
            Some(Ended::Transmission(first(), Session::new(&export(), Headers::Simple, false)))
        );
    }
}

#[test]
fn options_are_counted_across_starttls() {
    let (handshake, _, result) = converse_before_tls(&[option(3, b"").repeat(63), option(5, b"")].concat());
    result.unwrap();
    assert!(matches!(
        handshake.in_tls(export().into()).receive(&option(3, b"")),
        Err(Error::TooManyOptions { limit: 64 })
    ));
}

/// Mostly well-formed options, some with their bytes changed.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let well_formed =
        (0..13u8, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(number, data)| option(number, &data));
    let known = prop::sample::select(vec![
        option(8, b""),
        option(11, b""),
        option(5, b""),
        option(3, b""),
        option(7, b"\0\0\0\0\0\x01\0\x03"),
        option(6, b"\0\0\0\x04disk\0\0"),
        option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"),
        option(7, &[7; 20000]),
        b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff".to_vec(),
    ]);
    let garbage = prop::collection::vec(any::<u8>(), 0..30);
    let pieces = prop::collection::vec(prop_oneof![3 => known, 3 => well_formed, 1 => garbage], 0..8);
    let flags = prop_oneof![9 => Just(CLIENT_FLAGS.to_vec()), 1 => prop::collection::vec(any::<u8>(), 4)];
    (flags, pieces).prop_map(|(flags, pieces)| [flags, pieces.concat()].concat())
}

proptest! {
    #[test]
    fn any_bytes_in_any_split_end_the_same(
        bytes in stream(),
        cuts in prop::collection::vec(1..97usize, 1..50),
        security in prop::sample::select(vec![Security::Plain, Security::TlsRequired]),
    ) {
        let mut whole = Handshake::new(export().into(), security);
        let whole_result = format!("{:?}", whole.receive(&bytes));
        let mut split = Handshake::new(export().into(), security);
        let mut consumed = 0;
        let mut cuts = cuts.iter().cycle();
        let split_result = loop {
            let end = bytes.len().min(consumed + cuts.next().unwrap());
            let part = &bytes[consumed..end];
            match split.receive(part) {
                Ok(taken) => {
                    consumed += taken;
                    if taken < part.len() || consumed == bytes.len() {
                        break format!("{:?}", Ok::<_, Error>(consumed));
                    }
                }
                error => break format!("{error:?}"),
            }
            prop_assert!(split.partial.capacity() <= 2 * OPTION_BYTES_MAX as usize);
        };
        prop_assert_eq!(whole_result, split_result);
        prop_assert_eq!(whole.ended(), split.ended());
        let output = whole.take_output();
        prop_assert!(output.len() <= 64 * 512 + GREETING.len(), "an option's answer is bounded");
        prop_assert_eq!(output, split.take_output());
    }
}
