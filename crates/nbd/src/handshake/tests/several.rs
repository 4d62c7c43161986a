//! Several exports, of which a client chooses one.

use super::*;

/// Exports of these names; each is as many MiB large as its place says, from 1 on.
fn exports(names: &[&str]) -> Exports {
    let sized = |(index, name): (u64, &&str)| ExportInfo { name: (*name).into(), ..ExportInfo::new((index + 1) << 20) };
    Exports::new((0..).zip(names).map(sized).collect())
}

/// What comes back after the greeting, and how it ends, of a server with exports of these names.
fn converse_with(names: &[&str], input: &[u8]) -> (Vec<u8>, Result<Option<Ended>, Error>) {
    let mut handshake = Handshake::new(exports(names), Security::Plain);
    assert_eq!(handshake.take_output(), GREETING);
    let result = handshake.receive(&[CLIENT_FLAGS, input].concat()).map(|_| handshake.ended());
    (handshake.take_output(), result)
}

/// The number of the export that a client gets, and its size in MiB.
fn chosen(ended: Result<Option<Ended>, Error>) -> Option<usize> {
    match ended.unwrap() {
        Some(Ended::Transmission(index, _)) => Some(index.get()),
        _ => None,
    }
}

/// The data of INFO and GO: a name, and no item of information.
fn named(name: &str) -> Vec<u8> {
    [&u32::try_from(name.len()).unwrap().to_be_bytes(), name.as_bytes(), b"\0\0"].concat()
}

#[test]
fn list_has_all_in_order() {
    let (output, ended) = converse_with(&["b", "a", "ä b"], &option(3, b""));
    let expected = [
        reply(3, 2, b"\0\0\0\x01b"),
        reply(3, 2, b"\0\0\0\x01a"),
        reply(3, 2, b"\0\0\0\x04\xc3\xa4 b"),
        reply(3, 1, b""),
    ];
    assert_eq!((output, ended.unwrap()), (expected.concat(), None));
    assert_eq!(converse_with(&[], &option(3, b"")).0, reply(3, 1, b""), "there may be none for this client");
}

#[test]
fn info_and_go_are_about_the_export_that_is_named() {
    for (name, index, size) in [("b", 0, b"\0\0\0\0\0\x10\0\0"), ("a", 1, b"\0\0\0\0\0\x20\0\0")] {
        for number in [6, 7] {
            let (output, ended) = converse_with(&["b", "a"], &option(number, &named(name)));
            assert_eq!(
                output,
                [reply(number, 3, &[b"\0\0", &size[..], b"\x0d\x6d"].concat()), reply(number, 1, b"")].concat()
            );
            assert_eq!(chosen(ended), (number == 7).then_some(index));
        }
    }
}

#[test]
fn the_old_option_chooses_by_name() {
    let (output, ended) = converse_with(&["b", "a"], &option(1, b"a"));
    assert_eq!((output, chosen(ended)), (b"\0\0\0\0\0\x20\0\0\x0d\x6d".to_vec(), Some(1)));
    for unknown in [&b"c"[..], b"", b"aa", b"A"] {
        let (_, ended) = converse_with(&["b", "a"], &option(1, unknown));
        assert!(matches!(ended, Err(Error::UnknownExport { .. })), "{unknown:?}");
    }
}

#[test]
fn the_empty_name_is_that_of_the_only_export_or_of_the_one_that_is_called_so() {
    for (names, expected) in [(&["a"][..], Some(0)), (&["a", "b"], None), (&["a", "", "b"], Some(1)), (&[], None)] {
        let (output, ended) = converse_with(names, &option(7, &named("")));
        assert_eq!(chosen(ended), expected, "{names:?}");
        let unknown = first_reply_kind(&output) == 0x8000_0006;
        assert_eq!(unknown, expected.is_none(), "{names:?}");
    }
}

#[test]
fn an_unknown_name_is_refused_and_the_client_may_try_again() {
    let (output, ended) = converse_with(&["a", "b"], &[option(7, &named("c")), option(7, &named("b"))].concat());
    assert_eq!((first_reply_kind(&output), chosen(ended)), (0x8000_0006, Some(1)));
}

/// The protocol document, `NBD_OPT_SET_META_CONTEXT`: what was selected is of the export that was named with it.
#[test]
fn contexts_are_those_of_the_export_that_they_were_selected_for() {
    let select = |name: &str| {
        let length = u32::try_from(name.len()).unwrap().to_be_bytes();
        option(10, &[&length, name.as_bytes(), b"\0\0\0\x01\0\0\0\x0fbase:allocation"].concat())
    };
    let session = |selected: &str, gone: &str| {
        let input = [option(8, b""), select(selected), option(7, &named(gone))].concat();
        match converse_with(&["a", "b"], &input).1.unwrap() {
            Some(Ended::Transmission(_, session)) => session,
            ended => panic!("{ended:?}"),
        }
    };
    let of = |place: u64, allocation| Session::new(&ExportInfo::new(place << 20), Headers::Structured, allocation);
    assert_eq!(session("a", "a"), of(1, true));
    assert_eq!(session("b", "b"), of(2, true));
    assert_eq!(session("a", "b"), of(2, false));
    let (output, _) = converse_with(&["a", "b"], &[option(8, b""), select("")].concat());
    assert_eq!(first_reply_kind(&output[20..]), 0x8000_0006, "there is no default");
}

#[test]
fn in_tls_the_exports_may_be_others() {
    let mut handshake = Handshake::new(Exports::default(), Security::TlsRequired);
    handshake.receive(&[CLIENT_FLAGS, &option(5, b"")].concat()).unwrap();
    let mut handshake = handshake.in_tls(exports(&["a", "b"]));
    handshake.receive(&option(7, &named("b"))).unwrap();
    assert!(matches!(handshake.ended(), Some(Ended::Transmission(index, _)) if index.get() == 1));
}
