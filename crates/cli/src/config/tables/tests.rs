use super::super::{args, words};
use super::*;

/// What a file with this `text` means beside the words of a command line.
pub(crate) fn tables(given: &[&str], text: &str) -> Result<Tables, String> {
    let given = args::command().get_matches_from([&["uraid", "serve", "--config", "x"], given].concat());
    let given = given.subcommand().unwrap().1.clone();
    let file = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let tables = Source { path: "x".into(), given }.tables(file)?;
    tables.check().map(|()| tables)
}

/// The command line that would serve an array alone.
fn line(tables: &Tables, name: &str) -> String {
    let array = tables.arrays.iter().find(|array| array.name == name).unwrap();
    words(&array.settings.settings).join(" ".as_ref()).into_string().unwrap()
}

const SHARED: &str = "socket = '/s'\n[array.a]\nmembers = ['a']\n";

#[test]
fn a_table_says_more_than_what_stands_above_all() {
    let text = "socket = '/s'\nmetrics = '9187'\ncache-size = '1G'\ndegraded = true\nwait-for-members = '1s'\n\
                [array.b]\nmembers = ['b', 'c']\ncache-size = '2G'\ndegraded = false\nspare = 's'\nexport = 'Bücher'\n\
                [array.a]\nmembers = ['a']\nsocket = '/own'\nforce = true\n";
    let tables = tables(&[], text).unwrap();
    assert_eq!(
        line(&tables, "a"),
        "uraid serve --socket=/own --export=a --degraded --wait-for-members=1s --force --cache-size=1G -- a"
    );
    assert_eq!(
        line(&tables, "b"),
        "uraid serve --export=Bücher --spare=s --wait-for-members=1s --cache-size=2G -- b c"
    );
    let shared: Vec<_> = tables.arrays.iter().map(|array| (array.name.as_str(), array.is_shared)).collect();
    assert_eq!(shared, [("a", false), ("b", true)]);
    assert!(tables.server.args.watch.metrics.is_some());
    assert_eq!(tables.server.args.endpoint.socket, Some("/s".into()));
}

#[test]
fn members_are_waited_for_as_with_one_array() {
    assert_eq!(line(&tables(&[], SHARED).unwrap(), "a"), "uraid serve --export=a --wait-for-members=30s -- a");
}

#[test]
fn tls_is_that_of_the_sockets() {
    let text = "socket = '/s'\ntls = 'require'\ntls-certificates = '/c'\nallow-uid = 7\nhandshake-deadline = '3s'\n\
                [array.shared]\nmembers = 'a'\n[array.tcp]\nmembers = 'b'\nlisten = '1'\n\
                [array.plain]\nmembers = 'c'\nsocket = '/o'\ntls = 'off'\n";
    let tables = tables(&[], text).unwrap();
    let wait = "--wait-for-members=30s";
    assert_eq!(line(&tables, "shared"), format!("uraid serve --export=shared {wait} -- a"));
    assert_eq!(
        line(&tables, "tcp"),
        format!(
            "uraid serve --listen=1 --export=tcp --tls=require --tls-certificates=/c {wait} \
             --handshake-deadline=3s -- b"
        )
    );
    assert_eq!(
        line(&tables, "plain"),
        format!("uraid serve --socket=/o --export=plain --tls=off --allow-uid=7 {wait} --handshake-deadline=3s -- c")
    );
}

#[test]
fn the_command_line_counts_more_than_the_file() {
    let text = "socket = '/s'\n[array.a]\nmembers = 'a'\ncache = 'none'\n[array.b]\nmembers = 'b'\nsocket = '/o'\n";
    let tables = tables(&["--listen", "1", "--cache", "writethrough", "--degraded"], text).unwrap();
    let rest = "--degraded --wait-for-members=30s --cache=writethrough";
    assert_eq!(line(&tables, "a"), format!("uraid serve --export=a {rest} -- a"));
    assert_eq!(line(&tables, "b"), format!("uraid serve --socket=/o --export=b {rest} -- b"));
    let endpoint = &tables.server.args.endpoint;
    assert_eq!((&endpoint.socket, endpoint.listen.len()), (&None, 1), "where it says to listen is all");
}

#[test]
fn what_is_wrong_is_named() {
    let two = |more: &str| format!("{SHARED}[array.b]\nmembers = ['b']\n{more}");
    for (text, named) in [
        ("array = 1\n".into(), "[array.NAME]"),
        ("[array]\n".into(), "no array"),
        ("[array]\na = 1\n".into(), "array.a: it is no table"),
        ("socket = '/s'\n[array.a]\n".into(), "array.a: it names no members"),
        ("[array.a]\nmembers = 'a'\n".into(), "array.a: it has no socket"),
        (format!("members = ['x']\n{SHARED}"), "members stands above the tables"),
        (format!("spare = ['x']\n{SHARED}"), "spare stands above the tables"),
        (format!("name = 'x'\n{SHARED}"), "name stands above the tables"),
        (format!("force = true\n{SHARED}"), "force stands above the tables"),
        (format!("run = 'x'\n{SHARED}"), "run is for a server of one array"),
        (format!("sockets = 'x'\n{SHARED}"), "there is no key 'sockets'"),
        (two("sockets = 'x'\n"), "array.b: there is no key 'sockets'"),
        (two("degraded = 1\n"), "array.b: degraded can't be a TOML integer"),
        (two("cache = 'x'\n"), "array.b: invalid value 'x' for '--cache <MODE>'"),
        (two("metrics = '1'\n"), "array.b: metrics is of the whole server"),
        (two("run = 'x'\n"), "array.b: run is for a server of one array"),
        (two("tls = 'off'\n"), "array.b: tls is about a socket"),
        (two("handshake-deadline = '1s'\n"), "array.b: handshake-deadline is about a socket"),
        (two("export = 'a'\n"), "the export a: a and b"),
        (two("socket = '/s'\n"), "the socket /s: the server and b"),
        (two("control = '/s'\n"), "the socket /s: the server and b"),
        (two("socket = '/t'\n[array.c]\nmembers = 'c'\nsocket = '/./t'\n"), "the socket /t: b and c"),
        (two("listen = '127.0.0.1:7'\n[array.c]\nmembers = 'c'\nlisten = '7'\n"), "127.0.0.1:7: b and c"),
        (two("[array.c]\nmembers = ['c', './b']\n"), "two arrays have the member"),
        (two("spare = 'a'\n"), "the spare a is a member of a"),
        (format!("{SHARED}[array.'x/y']\nmembers = 'b'\n"), "array.x/y: a table's name consists of"),
        (format!("{SHARED}[array.'.x']\nmembers = 'b'\n"), "begins with no dot"),
        (format!("{SHARED}[array.'']\nmembers = 'b'\n"), "a table's name consists of"),
    ] {
        let refused = tables(&[], &text).map(drop).unwrap_err();
        assert!(refused.contains(named), "{text}: {refused}");
    }
    for (words, named) in [
        (&["--spare", "x"][..], "--spare is for one array"),
        (&["--run", "x"], "--run is for one array"),
        (&["--export", "x"], "--export is for one array"),
        (&["m"], "MEMBER is for one array"),
    ] {
        let refused = tables(words, SHARED).map(drop).unwrap_err();
        assert!(refused.contains(named), "{words:?}: {refused}");
    }
}

#[test]
fn two_arrays_may_have_what_can_be_told_apart() {
    let text = "socket = '/s'\n[array.a]\nmembers = ['x', 'y']\nname = 'A'\nspare = 's'\nlisten = '127.0.0.1:0'\n\
                [array.b]\nmembers = ['x', 'y']\nname = 'B'\nspare = 's'\nlisten = '127.0.0.1:0'\nexport = 'a'\n";
    assert_eq!(tables(&[], text).map(|tables| tables.arrays.len()), Ok(2));
}

#[test]
fn the_example_is_right_with_and_without_what_it_leaves_out() {
    let example = include_str!("../../../systemd/arrays.toml");
    let short = tables(&[], example).unwrap();
    let members = "/dev/disk/by-id/ata-D /dev/disk/by-id/ata-E";
    assert_eq!(line(&short, "backup"), format!("uraid serve --export=backup --wait-for-members=30s -- {members}"));
    let setting = |line: &str| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).map(str::to_owned);
    let all: Vec<String> = example.lines().map(|line| setting(line).unwrap_or_else(|| line.into())).collect();
    let all = tables(&[], &all.join("\n")).unwrap();
    let socket = "--socket=/run/uraid/arrays/backup.sock";
    let rest = "--export=backup --degraded --wait-for-members=30s --scrub-every=30d";
    assert_eq!(line(&all, "backup"), format!("uraid serve {socket} {rest} -- {members}"));
    assert!(all.server.args.watch.metrics.is_some());
}
