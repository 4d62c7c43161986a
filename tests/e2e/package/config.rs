//! `uraid serve --config`: an array that a file describes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::process::Output;
use uraid_tests::run::run;
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::{ask, status};

/// The command, under its other name, that serves what a file with this text describes.
fn serve(array: &Array, text: &str, words: &[&str]) -> Command {
    let file = array.path("array.toml");
    fs::write(&file, text).unwrap();
    let mut command = binary::command();
    command.arg("assemble").args(words).arg("--config").arg(file);
    command
}

fn members(array: &Array) -> String {
    format!("members = {:?}\n", array.members())
}

fn refused(array: &Array, text: &str) -> Output {
    let output = run(serve(array, text, &[]));
    assert!(output.stderr.contains("array.toml: "), "{}", output.stderr);
    assert!(!output.stderr.contains("Usage:"), "it is not the command line that is wrong: {}", output.stderr);
    output
}

#[test]
fn an_array_is_served_as_its_file_says() {
    let array = Array::create(&shape::raid5_of_3());
    let text =
        members(&array) + &format!("socket = {:?}\ncache = 'writethrough'\nconnection-threads = 2\n", array.socket());
    let server = Server::spawn(serve(&array, &text, &[]), array.socket()).unwrap();
    let said = status(&array);
    assert_eq!((&said["cache_mode"], &said["connection_threads"]), (&"writethrough".into(), &2.into()), "{said:#}");
    server.connect().write(0, &Random::new(1).bytes(512));
    let _ = server.stop();
}

#[test]
fn the_command_line_counts_more() {
    let array = Array::create(&shape::raid5_of_3());
    let text = members(&array) + "socket = '/nowhere/at/all.sock'\ncache = 'none'\nread-only = true\n";
    let socket = array.socket();
    let words = ["--socket", socket.to_str().unwrap(), "--cache", "writethrough"];
    let server = Server::spawn(serve(&array, &text, &words), array.socket()).unwrap();
    let said = status(&array);
    assert_eq!((&said["cache_mode"], &said["read_only"]), (&"writethrough".into(), &true.into()), "{said:#}");
    let _ = server.stop();
}

#[test]
fn where_the_command_line_says_to_listen_is_all() {
    let array = Array::create(&shape::raid5_of_3());
    let text = members(&array) + "listen = '127.0.0.1:1'\n";
    let socket = array.socket();
    let words = ["--socket", socket.to_str().unwrap()];
    let server = Server::spawn(serve(&array, &text, &words), array.socket()).unwrap();
    let _ = server.stop();
}

#[test]
fn members_that_are_missing_are_waited_for_and_then_refused() {
    let array = Array::create(&shape::raid5_of_3());
    let without = format!("members = {:?}\nsocket = {:?}\n", array.without(&[1]), array.socket());
    let refused = run(serve(&array, &(without.clone() + "wait-for-members = '1s'\n"), &[])).code_is(1);
    assert!(refused.stderr.contains("not there after 1 s"), "{}", refused.stderr);
    let degraded = without + "wait-for-members = '1s'\ndegraded = true\n";
    let server = Server::spawn(serve(&array, &degraded, &[]), array.socket()).unwrap();
    let _ = server.stop();
}

#[test]
fn a_file_that_is_wrong_is_refused_by_the_name_of_the_key() {
    let array = Array::create(&shape::raid1_of_2());
    let good = members(&array);
    for (text, named) in [
        (good.clone() + "sockets = 'x'", "there is no key 'sockets'"),
        (good.clone() + "degraded = 1", "degraded can't be a TOML integer"),
        (good.clone() + "cache = 'sometimes'", "'--cache <MODE>'"),
        (good.clone() + "cache-size = 'much'", "'--cache-size <SIZE>'"),
        (good.clone() + "uuid = 'x'", "'--uuid <UUID>'"),
        ("degraded = true".into(), "names no members"),
        ("members = [".into(), "line 1"),
    ] {
        let output = refused(&array, &text).code_is(2);
        assert!(output.stderr.contains(named), "{text}: {}", output.stderr);
    }
    let long = run(serve(&array, &"# ".repeat(1 << 20), &[])).code_is(1);
    assert!(long.stderr.contains("more than 1 MiB"), "{}", long.stderr);
    let mut command = binary::command();
    let pipe = run({
        command.args(["serve", "--config", "/dev/zero"]);
        command
    });
    assert!(pipe.code_is(1).stderr.contains("it is no file"));
    let mut command = binary::command();
    let missing = run({
        command.args(["serve", "--config", "/nowhere/array.toml"]);
        command
    });
    assert!(missing.code_is(1).stderr.contains("can't read /nowhere/array.toml"));
    let _ = binary::uraid(["serve"]).code_is(2);
}

#[test]
fn what_is_set_is_kept_in_the_file_that_keeps_the_rest() {
    let array = Array::create(&shape::raid5_of_3());
    let rest = members(&array) + &format!("# Where clients find it.\nsocket = {:?}\n", array.socket());
    let text = rest.clone() + "scrub-limit = '10M' # by day\n";
    let file = array.path("array.toml");
    let server = Server::spawn(serve(&array, &text, &[]), array.socket()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let socket = array.socket().to_owned();
    let set = |words: &[&str]| {
        let mut command = binary::command();
        command.arg("set").arg("--socket").arg(&socket).args(words);
        run(command)
    };
    let _ = set(&["--rebuild-limit", "20M"]).code_is(0);
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "it was not to be kept");
    let kept = set(&["--rebuild-limit", "50M", "--scrub-limit", "none", "--cache", "writethrough", "--persist"]);
    assert!(kept.code_is(0).text().contains("kept in "));
    let now = fs::read_to_string(&file).unwrap();
    assert_eq!(now, rest + "scrub-limit = \"none\" # by day\nrebuild-limit = \"52428800\"\ncache = \"writethrough\"\n");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    // What the server refuses is not kept.
    let _ = set(&["--max-errors", "many", "--persist"]).code_is(1);
    assert_eq!(fs::read_to_string(&file).unwrap(), now);
    let _ = server.stop();
    let server = Server::spawn(serve(&array, &now, &[]), array.socket()).unwrap();
    let said = status(&array);
    assert_eq!(said["limits"]["rebuild_bytes_per_second"], 50 << 20);
    assert_eq!(
        (&said["limits"]["scrub_bytes_per_second"], &said["cache_mode"]),
        (&Value::Null, &"writethrough".into())
    );
    fs::remove_file(&file).unwrap();
    let gone = set(&["--max-errors", "5", "--persist"]).code_is(1);
    assert!(gone.stderr.contains("not kept for the next start"), "{}", gone.stderr);
    let _ = server.stop();
    let server = Server::start(&array);
    let without = set(&["--max-errors", "5", "--persist"]).code_is(2);
    assert!(without.stderr.contains("has no configuration file"), "{}", without.stderr);
    let _ = set(&["--scrub-limit", "5M", "--persist"]).code_is(2);
    assert_eq!(status(&array)["limits"]["scrub_bytes_per_second"], Value::Null, "what can't be kept is not set");
    let _ = server.stop();
}

/// What `uraid replace` and `uraid add` have changed is what the next start finds.
#[test]
fn members_that_came_later_are_named_in_the_file() {
    let array = Array::create(&shape::raid5_of_3());
    let [copied, rebuilt, spare] = ["copied", "rebuilt", "spare"].map(|name| array.path(name).display().to_string());
    let rest = format!("wait-for-members = '1s'\nsocket = {:?}\n", array.socket());
    let [a, b, c] = [0, 1, 2].map(|slot| array.members()[slot].display().to_string());
    let text = format!("members = [\n  {a:?}, # the first\n  {b:?},\n  {c:?},\n]\n{rest}");
    let file = array.path("array.toml");
    let server = Server::spawn(serve(&array, &text, &[]), array.socket()).unwrap();
    let image = Random::new(2).bytes(array.expected_size());
    write_export(server.uri(), &image);
    let replaced = ask(&array, &["replace", "--size", "16M", "1", &copied]).success().text();
    let told = format!("{} does not name {copied}, without which the next start fails", file.display());
    assert!(replaced.contains(&told), "{replaced}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "it was not to be changed");
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();

    // The start says what lacks, which it does not take by itself.
    let refused = run(serve(&array, &text, &[])).code_is(1).stderr;
    let advice = format!("member 1 is {copied}, which is not named: name it in {}, too", file.display());
    assert!(refused.contains(&advice) && refused.contains("its slot now belongs to member"), "{refused}");

    let text = format!("members = [\n  {a:?}, # the first\n  {copied:?},\n  {c:?},\n]\n{rest}");
    let server = Server::spawn(serve(&array, &text, &[]), array.socket()).unwrap();
    let _ = ask(&array, &["fail", "2"]).success();
    let kept = ask(&array, &["replace", "--persist", "--size", "16M", "2", &rebuilt]).success().text();
    assert!(kept.contains(&format!("kept in {}", file.display())), "{kept}");
    let _ = ask(&array, &["add", "--persist", "--size", "16M", &spare]).success();
    let expected =
        format!("members = [\n  {a:?}, # the first\n  {copied:?},\n  {rebuilt:?},\n]\n{rest}spare = [{spare:?}]\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    let server = Server::spawn(serve(&array, &expected, &[]), array.socket()).unwrap();
    let now = status(&array);
    assert_eq!((&now["health"]["state"], &now["spares"][0]["path"]), (&"whole".into(), &spare.into()), "{now:#}");
    assert_same(&read_export(server.uri()), &image, "on the members that came later");
    let _ = ask(&array, &["remove", "--persist", array.path("spare").to_str().unwrap()]).success();
    assert!(fs::read_to_string(&file).unwrap().ends_with("spare = []\n"));
    let _ = server.stop();
}

/// Until a copy is complete the array has the old member, and then the new one: the file names both.
#[test]
fn a_copy_that_is_cut_off_starts_with_the_file_that_names_both() {
    let array = Array::create(&shape::raid5_of_3());
    let new = array.path("new").display().to_string();
    let text = members(&array) + &format!("wait-for-members = '1s'\nsocket = {:?}\n", array.socket());
    let server = Server::spawn(serve(&array, &text, &[]), array.socket()).unwrap();
    let image = Random::new(2).bytes(array.expected_size());
    write_export(server.uri(), &image);
    let _ = ask(&array, &["set", "--rebuild-limit", "1"]).success();
    let _ = ask(&array, &["replace", "--persist", "--size", "16M", "1", &new]).success();
    assert!(!status(&array)["replace"].is_null());
    server.kill();
    let both = fs::read_to_string(array.path("array.toml")).unwrap();
    for path in [&new, array.members()[1].to_str().unwrap()] {
        assert!(both.contains(path), "{both}");
    }
    let server = Server::spawn(serve(&array, &both, &[]), array.socket()).unwrap();
    assert_eq!(status(&array)["members"][1]["path"], array.members()[1].to_str().unwrap());
    let _ = ask(&array, &["replace", "--force", "1", &new]).success();
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    let server = Server::spawn(serve(&array, &both, &[]), array.socket()).unwrap();
    assert_eq!(status(&array)["members"][1]["path"], new);
    assert_same(&read_export(server.uri()), &image, "on the copy");
    let _ = server.stop();
}

/// Everything that can be set and kept is in the file, in the words of a file, and the next start takes it.
#[test]
fn every_setting_is_kept() {
    let array = Array::create(&shape::raid5_of_3());
    let rest = members(&array) + &format!("socket = {:?}\n", array.socket());
    let server = Server::spawn(serve(&array, &rest, &[]), array.socket()).unwrap();
    let settings = [
        ("rebuild-limit", "1048576"),
        ("scrub-limit", "2097152"),
        ("reshape-limit", "3145728"),
        ("client-limit", "4194304"),
        ("client-iops-limit", "500"),
        ("cache", "writethrough"),
        ("read-deadline", "7s"),
        ("write-deadline", "off"),
        ("max-errors", "off"),
        ("rejoin-after", "3s"),
        ("hedge", "off"),
    ];
    let options = settings.map(|(key, value)| [format!("--{key}"), value.to_owned()]).concat();
    let words: Vec<&str> = ["set", "--persist"].into_iter().chain(options.iter().map(String::as_str)).collect();
    let _ = ask(&array, &words).success();
    let kept: String = settings.iter().map(|(key, value)| format!("{key} = {value:?}\n")).collect();
    let now = fs::read_to_string(array.path("array.toml")).unwrap();
    assert_eq!(now, rest + &kept);
    let limits = status(&array)["limits"].clone();
    let _ = server.stop();
    let server = Server::spawn(serve(&array, &now, &[]), array.socket()).unwrap();
    assert_eq!(status(&array)["limits"], limits);
    let _ = server.stop();
}
