//! Reshaping arrays: there and back, killed again and again, while they are served, and what is refused.

mod online;
mod words;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::process::{Output, Process};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use crate::control::ask;

/// Runs `uraid reshape` with these options.
fn reshape(options: &[&str], members: &[PathBuf]) -> Output {
    binary::uraid(arguments(options, members))
}

fn arguments(options: &[&str], members: &[PathBuf]) -> Vec<String> {
    let words = ["reshape"].iter().chain(options).map(|word| (*word).to_owned());
    words.chain(members.iter().map(|path| path.display().to_string())).collect()
}

/// An empty file for a new member.
fn blank(array: &Array, name: &str) -> PathBuf {
    let path = array.path(name);
    File::create(&path).unwrap().set_len(MEMBER_BYTES as u64).unwrap();
    path
}

/// A stopped array that is full of something.
fn full(array: &Array) -> Vec<u8> {
    let content = Random::new(7).bytes(array.expected_size());
    let server = Server::start(array);
    write_export(server.uri(), &content);
    let _ = server.stop();
    content
}

/// What clients read of the array of these members.
fn served(array: &Array, members: &[PathBuf], options: &[&str]) -> Vec<u8> {
    let server = Server::start_members(array, members, options);
    let image = read_export(server.uri());
    let _ = server.stop();
    image
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn an_array_goes_to_another_shape_and_back() {
    let array = Array::create(&shape::raid5_of_3());
    let content = full(&array);
    let old = array.members().to_vec();
    let new: Vec<PathBuf> = ["n3", "n4", "n5", "n6"].iter().map(|name| blank(&array, name)).collect();
    let all = [old.clone(), new.clone()].concat();
    let add: Vec<&str> = new.iter().flat_map(|path| ["--add", text(path)]).collect();

    let rehearsed = reshape(&[&["--rehearse", "--json", "--level", "rm2"][..], &add].concat(), &old).success().json();
    assert_eq!(rehearsed["content"].as_u64(), Some(content.len() as u64));
    let moved = ["rehearsed_steps", "rehearsed"].map(|key| rehearsed[key].as_u64().unwrap_or_default());
    assert!((1..=2).contains(&moved[0]) && moved[1] > 0 && rehearsed["rehearsed_losses"] == true, "{rehearsed}");
    assert_same(&served(&array, &old, &[]), &content, "a rehearsal writes nothing");

    let there = reshape(&[&["--json", "--level", "rm2"][..], &add].concat(), &old).success().json();
    assert_eq!((there["level"].as_str(), there["state"].as_str()), (Some("rm2"), Some("clean")));
    assert_eq!(there["size"], rehearsed["size_after"], "the rehearsal knows the size");
    let image = served(&array, &all, &[]);
    assert_same(&image[..content.len()], &content, "as RM2");
    assert!(image[content.len()..].iter().all(|&byte| byte == 0), "what is more are zeros");
    // Two of seven are gone, one of them old.
    let without: Vec<PathBuf> = [&all[..1], &all[2..5], &all[6..]].concat();
    assert_same(&served(&array, &without, &["--degraded"])[..content.len()], &content, "without two members");

    // They are out of date now; so the way back is tried with another array.
    let array = Array::create(&shape::raid5_of_3());
    let content = full(&array);
    let old = array.members().to_vec();
    let new = blank(&array, "n3");
    let all = [old.clone(), vec![new.clone()]].concat();
    let _ = reshape(&["--add", text(&new), "--chunk", "16K"], &old).success();
    let server = Server::start_members(&array, &all, &[]);
    assert_same(&read_export(server.uri())[..content.len()], &content, "with four members");
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    let size = content.len().to_string();
    let back = reshape(&["--json", "--remove", text(&new), "--chunk", "64K", "--size", &size], &all).success().json();
    assert_eq!(back["size"].as_u64(), Some(content.len() as u64), "it ends where it was told to");
    assert_same(&served(&array, &old, &[]), &content, "with three members again");
    let refused = Server::refused(&array, &[new], &[]);
    assert!(refused.stderr.contains("no uraid superblock"), "{refused:?}");
}

#[test]
fn a_reshape_that_is_killed_goes_on_or_back() {
    let mut random = Random::new(11);
    for is_back in [false, true] {
        // With such a log it is not served meanwhile.
        let array = Array::planned(&shape::raid5_of_5_left_symmetric());
        let _ = array.run_create(MEMBER_BYTES, &["--log-size", "512K"]).success();
        let content = full(&array);
        let old = array.members().to_vec();
        let new = blank(&array, "n5");
        let all = [old.clone(), vec![new.clone()]].concat();
        let options = ["--add", text(&new), "--chunk", "16K"];
        for _ in 0..12 {
            let mut command = binary::command();
            command.args(arguments(&options, &old));
            let mut process = Process::start_with_open_stdout(command);
            // Whenever that is: before it begins, amid it, or when it is over.
            let time = Duration::from_millis(random.below(60) as u64);
            // One that had just ended when it was killed is not asked for again: it would be told that it is over.
            let is_over = process.has_ended(time).unwrap_or(true);
            process.kill();
            if is_over {
                assert_eq!(binary::examine(&all[..1])["state"], "clean");
                break;
            }
            let found = binary::examine(&all[..1]);
            if found["state"] == "reshaping" {
                let refused = Server::refused(&array, &all, &[]);
                assert!(refused.stderr.contains("uraid reshape --abort"), "{refused:?}");
                let moved = found["reshape"]["moved"].as_u64().unwrap();
                assert!(moved <= found["reshape"]["content"].as_u64().unwrap());
            }
        }
        let is_under_way = binary::examine(&all[..1])["state"] == "reshaping";
        let members = match (is_under_way, is_back) {
            (true, true) => {
                let _ = reshape(&["--abort"], &all).success();
                old
            }
            (true, false) => {
                let _ = reshape(&[], &all).success();
                all
            }
            (false, _) => {
                let has_new = binary::examine(&all[..1])["missing"].as_array().unwrap().len() == 5;
                if has_new { all } else { old }
            }
        };
        assert_same(&served(&array, &members, &[])[..content.len()], &content, "after all");
    }
}

#[test]
fn what_can_not_be_reshaped_is_refused_with_a_remedy() {
    let array = Array::create(&shape::raid5_of_3());
    let content = full(&array);
    let members = array.members().to_vec();
    let new = blank(&array, "n3");
    for (options, code, said) in [
        (&[][..], 2, "say what to change"),
        (&["--chunk", "4K"], 2, "has this shape already"),
        (&["--abort"], 1, "no reshape of this array is under way"),
        (&["--level", "1"], 1, "--size"),
        (&["--remove", text(&members[0]), "--size", "4K"], 2, "last slots"),
        (&["--add", text(&members[1])], 1, "is member 1 of this array already"),
        (&["--add", text(&new), "--remove", text(&members[2])], 2, "uraid replace"),
        (&["--level", "rm2", "--add", text(&new), "--layout", "partitioned"], 1, "partitioned"),
        (&["--level", "10", "--copies", "9"], 2, "copies"),
        (&["--size", "1T", "--chunk", "16K"], 2, "is more"),
    ] {
        let refused = reshape(options, &members);
        assert_eq!(refused.code, Some(code), "{options:?}: {refused:?}");
        assert!(refused.stderr.contains(said), "{options:?}: {refused:?}");
    }
    let missing = reshape(&["--chunk", "16K"], &members[..2]);
    assert!(missing.stderr.contains("--degraded"), "{missing:?}");
    assert_same(&served(&array, &members, &[]), &content, "as it was");
    // Without a member, if that is accepted; the others have it in the new shape, too.
    let _ = reshape(&["--chunk", "16K", "--degraded"], &members[..2]).success();
    assert_same(&served(&array, &members[..2], &["--degraded"])[..content.len()], &content, "without a member");
}

#[test]
fn content_moves_while_clients_use_the_array() {
    let array = Array::create(&shape::raid5_of_3());
    let mut content = full(&array);
    let old = array.members().to_vec();
    let new = blank(&array, "n3");
    let all = [old.clone(), vec![new.clone()]].concat();
    let begun = reshape(&["--begin", "--json", "--add", text(&new)], &old).success().json();
    assert_eq!(begun["state"].as_str(), Some("reshaping"));

    // Slow, so that it is there when its server is killed.
    let server = Server::start_members(&array, &all, &["--reshape-limit", "1M", "--cache", "writethrough"]);
    assert_same(&read_export(server.uri()), &content, "before anything has moved");
    let status = ask(&array, &["status", "--json"]).success().json();
    let reshape_of = |status: &serde_json::Value| status["reshape"].clone();
    assert_eq!(reshape_of(&status)["members"].as_u64(), Some(4));
    let refused = ask(&array, &["scrub", "start"]).code_is(1);
    assert!(refused.stderr.contains("being reshaped"), "{}", refused.stderr);
    content = Random::new(8).bytes(content.len());
    write_export(server.uri(), &content);
    server.kill();

    let server = Server::start_members(&array, &all, &[]);
    assert_same(&read_export(server.uri())[..content.len()], &content, "after a kill");
    let _ = ask(&array, &["wait"]).success();
    let status = ask(&array, &["status", "--json"]).success().json();
    assert!(reshape_of(&status).is_null() && status["members"].as_array().map(Vec::len) == Some(4), "{status}");
    assert!(status["size_bytes"].as_u64() > Some(content.len() as u64), "it uses all of its members' room");
    let image = read_export(server.uri());
    assert_same(&image[..content.len()], &content, "in its new shape");
    let _ = server.stop();
    assert_same(&served(&array, &all[1..], &["--degraded"])[..content.len()], &content, "without a member");

    // Back again, from halfway or later.
    let array = Array::create(&shape::raid5_of_3());
    let content = full(&array);
    let (old, new) = (array.members().to_vec(), blank(&array, "n3"));
    let all = [old.clone(), vec![new.clone()]].concat();
    let _ = reshape(&["--begin", "--add", text(&new)], &old).success();
    let server = Server::start_members(&array, &all, &["--reshape-limit", "1M"]);
    let _ = ask(&array, &["reshape", "--abort"]).success();
    let _ = ask(&array, &["set", "--reshape-limit", "none"]).success();
    let _ = ask(&array, &["wait"]).success();
    let status = ask(&array, &["status", "--json"]).success().json();
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");
    let _ = server.stop();
    assert_same(&served(&array, &old, &[]), &content, "back in its old shape");
}
