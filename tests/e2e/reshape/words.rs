//! What is said of an array that is being reshaped, or was: events, reasons, and what to do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::assert_same;
use uraid_tests::process::Output;
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::{blank, full, reshape, served, text};
use crate::control::ask;

/// Runs a command with these words about members.
fn on(words: &[&str], members: &[PathBuf]) -> Output {
    let words = words.iter().map(|word| (*word).to_owned());
    binary::uraid(words.chain(members.iter().map(|path| text(path).to_owned())))
}

/// Whoever hears of the end of a reshape hears which way it went: in the log, in its fields, and as a program.
#[test]
fn the_end_of_a_reshape_says_which_way_it_went() {
    for is_back in [false, true] {
        let array = Array::create(&shape::raid5_of_3());
        let _ = full(&array);
        let (old, new) = (array.members().to_vec(), blank(&array, "n3"));
        let all = [old.clone(), vec![new.clone()]].concat();
        let _ = reshape(&["--begin", "--add", text(&new)], &old).success();
        let (hook, told) = (array.path("hook"), array.path("told"));
        std::fs::write(&hook, format!("#!/bin/sh\necho \"$1|$URAID_SHAPE\" >>{}\n", told.display())).unwrap();
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
        let options = ["--log-format", "json", "--on-event", text(&hook), "--reshape-limit", "1M"];
        let mut command = Server::command(&array, &all, &options);
        command.env("URAID_LOG", "info");
        let server = Server::spawn(command, array.socket()).unwrap();
        if is_back {
            let _ = ask(&array, &["reshape", "--abort"]).success();
        }
        let _ = ask(&array, &["set", "--reshape-limit", "none"]).success();
        let _ = ask(&array, &["wait"]).success();
        let _ = ask(&array, &["stop"]).success();
        let log = server.end().success().stderr;
        let mut lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        let ended = lines.find(|line| line["event"] == "reshaped").unwrap_or_else(|| panic!("it ends: {log}"));
        let (said, shape) = if is_back { ("went back", "old") } else { ("has its new shape", "new") };
        assert_eq!(ended["back"], is_back, "{ended}");
        assert!(ended["message"].as_str().is_some_and(|message| message.contains(said)), "{ended}");
        let told = std::fs::read_to_string(&told).unwrap();
        assert!(told.lines().any(|line| line == format!("reshaped|{shape}")), "{told}");
        assert!(told.lines().any(|line| line == "started|"), "{told}");
    }
}

/// A log, its size, and what to do: each array that can't be served meanwhile is told its own reason.
#[test]
fn who_can_not_be_served_while_it_is_reshaped_is_told_why() {
    let array = Array::create(&shape::raid1_of_3());
    let content = full(&array);
    let (old, new) = (array.members().to_vec(), blank(&array, "n3"));
    let begin = ["--begin", "--level", "5", "--add", text(&new)];
    let refused = reshape(&begin, &old).code_is(1).stderr;
    assert!(refused.contains("RAID 1 has redundancy, and the array has no log"), "{refused}");
    assert!(refused.contains("`uraid configure --consistency log MEMBERS`"), "{refused}");
    assert_eq!(binary::examine(&old)["state"], "clean", "nothing was written");
    // What that says helps.
    let _ = on(&["configure", "--consistency", "log"], &old).success();
    let _ = reshape(&begin, &old).success();
    let all = [old, vec![new]].concat();
    let refused = Server::refused(&array, &all, &["--read-only"]).stderr;
    assert!(refused.contains("can only be served for writing meanwhile (uraid serve MEMBERS)"), "{refused}");
    assert_same(&served(&array, &all, &[])[..content.len()], &content, "served");

    // Chunks of 1 MiB: the log has room for its stripes, and half of it has not.
    let array = Array::create(&shape::raid5_of_5_right_symmetric());
    let _ = {
        let server = Server::start(&array);
        let _ = ask(&array, &["wait"]).success();
        server.stop()
    };
    let refused = reshape(&["--begin", "--chunk", "512K"], array.members()).code_is(1).stderr;
    let sizes: Vec<u64> = refused.split([' ', ',']).filter_map(|word| word.parse().ok()).filter(|&n| n > 999).collect();
    let log = log_bytes(&array);
    assert!(matches!(sizes[..], [size, needed] if size == log && needed > log && needed < 4 * log), "{log}: {refused}");
    assert!(refused.contains("leave --begin out") && !refused.contains("configure"), "{refused}");
}

fn log_bytes(array: &Array) -> u64 {
    array.examine()["members"][0]["log_size"].as_u64().unwrap()
}
