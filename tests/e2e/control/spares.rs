//! Spares that take the places of members that fail, of one array and of several.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use uraid_tests::array::Array;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use super::scrub::Events;
use super::{ask, status};

/// A file that holds nothing.
fn blank(array: &Array, name: &str, bytes: usize) -> PathBuf {
    let path = array.path(name);
    let file = std::fs::File::create_new(&path).unwrap();
    file.set_len(bytes as u64).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Serves all members of an array that are there, with spares and somebody who hears what happens to it.
fn served(array: &Array, spares: &[&Path], more: &[&str]) -> (Server, Events) {
    let (events, hook) = Events::new(array);
    let mut options: Vec<&str> = spares.iter().flat_map(|spare| ["--spare", text(spare)]).collect();
    options.extend(["--on-event", text(&hook)]);
    options.extend(more);
    let server = Server::start_members(array, array.members(), &options);
    assert_eq!(events.until("started"), [""; 0]);
    (server, events)
}

fn spares(array: &Array) -> Vec<Value> {
    status(array)["spares"].as_array().unwrap().clone()
}

#[track_caller]
fn refusal(array: &Array, words: &[&str], named: &str) {
    let refusal = ask(array, words).code_is(1).stderr;
    assert!(refusal.contains(named), "{words:?}: {refusal}");
}

#[test]
fn a_spare_takes_the_place_of_a_member_that_fails_and_keeps_it() {
    for shape in [shape::raid1_of_2(), shape::raid5_of_3(), shape::rm2_of_7_adjacent()] {
        let array = Array::create(&shape);
        let [first, second] = ["spare0", "spare1"].map(|name| blank(&array, name, MEMBER_BYTES));
        let (server, events) = served(&array, &[&first, &second], &[]);
        let image = Random::new(21).bytes(array.expected_size());
        write_export(server.uri(), &image);
        let screen = ask(&array, &["status"]).success().text();
        assert!(screen.contains(&format!("\nspare    {}\n", text(&first))), "{screen}");

        let _ = ask(&array, &["fail", "1"]).success();
        let told = events.until("recovered");
        assert_eq!(told, ["member-failed", "degraded", "spare-taken", "rebuild-started", "rebuild-finished"]);
        let now = status(&array);
        assert_eq!((&now["health"]["state"], &now["members"][1]["path"]), (&"whole".into(), &text(&first).into()));
        assert_eq!(now["spares"], json!([{ "path": text(&second), "problem": null }]));
        let _ = server.stop();

        // The same command line, also when what has failed is gone.
        std::fs::remove_file(array.path("events")).unwrap();
        array.remove(&[1]);
        let (server, _) = served(&array, &[&first, &second], &[]);
        let again = status(&array);
        assert_eq!(again["health"]["state"], "whole");
        for field in ["uuid", "path", "state"] {
            assert_eq!(again["members"][1][field], now["members"][1][field]);
        }
        assert_eq!(again["spares"], now["spares"]);
        assert_same(&read_export(server.uri()), &image, shape.name);
        let _ = server.stop();

        // Without another one, so that what the spare has counts.
        let members = [&array.members()[2..], &[first]].concat();
        let server = Server::start_members(&array, &members, &["--degraded"]);
        assert_same(&read_export(server.uri()), &image, shape.name);
        let _ = server.stop();
    }
}

#[test]
fn an_array_that_starts_degraded_takes_its_spares() {
    let array = Array::create(&shape::rm2_of_7_partitioned());
    let image = Random::new(22).bytes(array.expected_size());
    let server = Server::start(&array);
    write_export(server.uri(), &image);
    let _ = server.stop();
    array.remove(&[2, 5]);
    let [first, second] = ["spare0", "spare1"].map(|name| blank(&array, name, MEMBER_BYTES));
    let (server, events) = served(&array, &[&first, &second], &["--degraded"]);
    let told = events.until("recovered");
    assert_eq!(told.iter().filter(|event| *event == "spare-taken").count(), 2, "{told:?}");
    let now = status(&array);
    let paths = [2, 5].map(|slot: usize| now["members"][slot]["path"].as_str().unwrap().to_owned());
    assert_eq!(paths, [text(&first), text(&second)]);
    assert_same(&read_export(server.uri()), &image, "on spares");
    let _ = server.stop();
}

#[test]
fn every_spare_is_taken_once_whatever_becomes_of_it() {
    let array = Array::create(&shape::raid5_of_3());
    let [first, second] = ["spare0", "spare1"].map(|name| blank(&array, name, MEMBER_BYTES));
    let (server, events) = served(&array, &[&first, &second], &[]);
    write_export(server.uri(), &Random::new(23).bytes(array.expected_size()));
    let _ = ask(&array, &["set", "--rebuild-limit", "1K"]).success();
    for spare in [&first, &second] {
        let _ = ask(&array, &["fail", "1"]).success();
        let told = events.until("rebuild-started");
        assert_eq!(told.iter().filter(|event| *event == "spare-taken").count(), 1, "{told:?}");
        assert_eq!(status(&array)["members"][1]["path"], text(spare));
    }
    let _ = ask(&array, &["fail", "1"]).success();
    assert_eq!(events.until("member-failed"), [""; 0]);
    let now = status(&array);
    assert_eq!((&now["health"]["missing"], &now["spares"]), (&json!([1]), &json!([])));
    let _ = server.stop();
    assert_eq!(events.until("stopped"), [""; 0]);
}

#[test]
fn one_spare_of_two_arrays_is_the_one_s_that_needs_it_first() {
    let [one, other] = [shape::raid5_of_3(), shape::raid1_of_2()].map(|shape| Array::create(&shape));
    let spare = blank(&one, "spare", MEMBER_BYTES);
    let (server, events) = served(&one, &[&spare], &[]);
    let (other_server, other_events) = served(&other, &[&spare], &[]);
    let _ = ask(&one, &["fail", "0"]).success();
    let _ = events.until("recovered");
    assert_eq!(spares(&one), [Value::Null; 0]);

    let _ = ask(&other, &["fail", "0"]).success();
    assert_eq!(other_events.until("degraded"), ["member-failed"]);
    refusal(&other, &["add", text(&spare)], "in use");
    let problem = spares(&other)[0]["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("in use by process"), "{problem}");
    let _ = server.stop();
    // Nobody holds it now, and it is still the other's.
    refusal(&other, &["add", text(&spare)], "uraid");
    assert_eq!(status(&other)["health"]["missing"], json!([0]));
    let _ = other_server.stop();
    let told = other_events.until("stopped");
    assert_eq!(told, [""; 0], "it was not taken");
}

#[test]
fn what_holds_something_is_not_taken_and_not_written() {
    let array = Array::create(&shape::raid5_of_3());
    let spare = blank(&array, "spare", MEMBER_BYTES);
    let mut content = Random::new(24).bytes(MEMBER_BYTES);
    content[..4].copy_from_slice(b"XFSB");
    std::fs::write(&spare, &content).unwrap();
    let (server, events) = served(&array, &[&spare], &[]);
    let is_refused = |spare: &Value| spare["problem"].as_str().unwrap().contains("holds XFS");
    assert!(is_refused(&spares(&array)[0]));
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains("which can't be taken: ") && screen.contains("holds XFS"), "{screen}");
    let _ = ask(&array, &["fail", "2"]).success();
    assert_eq!(events.until("degraded"), ["member-failed"]);
    // It is tried before this is answered: requests about members are done one after another.
    refusal(&array, &["remove", "0"], "fail it first");
    assert!(is_refused(&spares(&array)[0]));
    assert_same(&std::fs::read(&spare).unwrap(), &content, "what nobody may overwrite");
    let _ = server.stop();
    assert_eq!(events.until("stopped"), [""; 0]);
}

#[test]
fn spares_are_added_and_taken_back() {
    let array = Array::create(&shape::raid5_of_3());
    let (server, events) = served(&array, &[], &[]);
    let [blank, full, new] =
        [blank(&array, "blank", MEMBER_BYTES), blank(&array, "full", MEMBER_BYTES), array.path("new")];
    let mut content = vec![7; MEMBER_BYTES];
    content[..4].copy_from_slice(b"XFSB");
    std::fs::write(&full, &content).unwrap();
    let said = ask(&array, &["add", text(&blank)]).success().text();
    assert!(said.contains("is now a spare"), "{said}");
    refusal(&array, &["add", text(&blank)], "already");
    refusal(&array, &["add", text(&full)], "holds XFS");
    refusal(&array, &["add", text(&array.members()[0])], "in use");
    refusal(&array, &["add", text(&new)], "--size");
    refusal(&array, &["add", "--size", "1M", text(&new)], "room");
    assert!(!new.exists(), "what was refused is not made");
    let _ = ask(&array, &["add", "--force", text(&full)]).success();
    let _ = ask(&array, &["add", "--size", "16M", text(&new)]).success();
    let paths: Vec<Value> = spares(&array).iter().map(|spare| spare["path"].clone()).collect();
    assert_eq!(paths, [text(&blank), text(&full), text(&new)]);
    let _ = ask(&array, &["remove", text(&blank)]).success();
    refusal(&array, &["remove", text(&blank)], "not a member");

    let _ = ask(&array, &["fail", "0"]).success();
    let _ = events.until("recovered");
    assert_eq!(status(&array)["members"][0]["path"], text(&full));
    assert_eq!(spares(&array), [json!({ "path": text(&new), "problem": null })]);
    let _ = server.stop();
    assert!(std::fs::read(&blank).unwrap().iter().all(|&byte| byte == 0), "what was taken back is not touched");
}

#[test]
fn a_spare_that_is_too_small_keeps_nobody_from_being_served() {
    let array = Array::create(&shape::raid5_of_3());
    let [small, large] =
        [("small", MEMBER_BYTES / 2), ("large", MEMBER_BYTES)].map(|(name, size)| blank(&array, name, size));
    let (server, events) = served(&array, &[&small, &large], &[]);
    let is_refused =
        |spare: &Value| spare["path"] == text(&small) && spare["problem"].as_str().unwrap().contains("room");
    let now = spares(&array);
    assert!(is_refused(&now[0]) && now[1] == json!({ "path": text(&large), "problem": null }), "{now:?}");
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains("which can't be taken: ") && screen.contains("has room for"), "{screen}");
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = events.until("recovered");
    assert_eq!(status(&array)["members"][1]["path"], text(&large));
    let now = spares(&array);
    assert!(now.len() == 1 && is_refused(&now[0]), "{now:?}");
    let _ = server.stop();
}

/// What no table of formats knows is data all the same.
#[test]
fn what_holds_anything_at_all_is_not_taken() {
    let array = Array::create(&shape::raid5_of_3());
    let [head, tail, forced] = ["head", "tail", "forced"].map(|name| blank(&array, name, MEMBER_BYTES));
    for (file, at) in [(&head, 0), (&tail, MEMBER_BYTES - 1), (&forced, MEMBER_BYTES / 2)] {
        std::fs::File::options().write(true).open(file).unwrap().write_all_at(b"x", at as u64).unwrap();
    }
    let (server, events) = served(&array, &[&head, &tail], &[]);
    for spare in spares(&array) {
        assert!(spare["problem"].as_str().unwrap().contains("holds data (at byte"), "{spare}");
    }
    refusal(&array, &["replace", "1", text(&head)], "holds data (at byte");
    let _ = ask(&array, &["fail", "1"]).success();
    assert_eq!(events.until("degraded"), ["member-failed"]);
    for file in [&head, &tail] {
        refusal(&array, &["add", text(file)], "use --force");
        assert!(std::fs::read(file).unwrap().contains(&b'x'), "it is not written");
        let _ = ask(&array, &["remove", text(file)]).success();
    }
    // What was given up comes back with what it holds, and what is empty at both ends is a new member.
    let _ = ask(&array, &["add", text(&array.members()[1])]).success();
    let _ = events.until("recovered");
    let _ = ask(&array, &["replace", "0", text(&forced)]).success();
    let _ = ask(&array, &["wait"]).success();
    let _ = ask(&array, &["add", "--force", text(&head)]).success();
    let _ = ask(&array, &["fail", "2"]).success();
    let _ = events.until("rebuild-started");
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
}

/// What is refused leaves nothing behind.
#[test]
fn a_file_that_was_to_be_made_for_a_refused_member_is_not_there() {
    let array = Array::create(&shape::raid5_of_3());
    let new = array.path("new");
    let server = Server::start_members(&array, &array.without(&[1]), &["--degraded", "--read-only"]);
    for words in [&["add"][..], &["replace", "1"], &["replace", "0"]] {
        refusal(&array, &[words, &[text(&new), "--size", "16M"]].concat(), "only");
        assert!(!new.exists(), "{words:?}");
    }
    let _ = server.stop();
}

#[test]
fn spares_that_can_be_of_no_use_are_refused() {
    let [array, striped] = [shape::raid5_of_3(), shape::raid0_of_4()].map(|shape| Array::create(&shape));
    let large = blank(&array, "large", MEMBER_BYTES);
    let refused = |array: &Array, options: &[&str], code: i32, named: &str| {
        let output = Server::try_start(array, array.members(), options).err().unwrap().code_is(code);
        assert!(output.stderr.contains(named), "{options:?}: {}", output.stderr);
    };
    refused(&array, &["--spare", text(&large), "--read-only"], 2, "--read-only");
    refused(&array, &["--spare", text(&large), "--spare", text(&large)], 2, "once");
    refused(&array, &["--spare", text(&array.members()[1])], 2, "once");
    refused(&striped, &["--spare", text(&large)], 2, "RAID 0");
}
