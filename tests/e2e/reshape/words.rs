//! What is said of an array that is being reshaped, or was: events, reasons, and what to do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{SECTOR, assert_same};
use uraid_tests::process::Output;
use uraid_tests::run::run;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use super::{blank, full, reshape, served, text};
use crate::control::{ask, status, sweep, until};

/// Runs a command with these words about members.
fn on(words: &[&str], members: &[PathBuf]) -> Output {
    let words = words.iter().map(|word| (*word).to_owned());
    binary::uraid(words.chain(members.iter().map(|path| text(path).to_owned())))
}

/// A full RAID 5 of three of which a part is in the shape of four, and it is stopped; the members, and the content.
fn amid(array: &Array) -> (Vec<PathBuf>, Vec<u8>) {
    let content = full(array);
    let new = blank(array, "n3");
    let _ = reshape(&["--begin", "--add", text(&new)], array.members()).success();
    let all = [array.members(), &[new]].concat();
    let server = Server::start_members(array, &all, &["--reshape-limit", "1M"]);
    let _ = until(array, "nothing moves", |now| sweep(now, "reshape").is_some_and(|(done, _)| done > 0));
    let _ = server.stop();
    assert_eq!(binary::examine(&all)["state"], "reshaping");
    (all, content)
}

fn bytes_of(members: &[PathBuf]) -> Vec<Vec<u8>> {
    members.iter().map(|path| std::fs::read(path).unwrap()).collect()
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
        let ended = lines.find(|line| line["event"] == "reshape-finished").unwrap_or_else(|| panic!("it ends: {log}"));
        let (said, shape) = if is_back { ("went back", "old") } else { ("has its new shape", "new") };
        assert_eq!(ended["back"], is_back, "{ended}");
        assert!(ended["message"].as_str().is_some_and(|message| message.contains(said)), "{ended}");
        let told = std::fs::read_to_string(&told).unwrap();
        assert!(told.lines().any(|line| line == format!("reshape-finished|{shape}")), "{told}");
        assert!(told.lines().any(|line| line == "started|"), "{told}");
    }
}

/// An array without a log has one while it is reshaped. One whose area for that is too small is told so, and what to
/// do.
#[test]
fn who_can_not_be_served_while_it_is_reshaped_is_told_why() {
    let array = Array::create(&shape::raid1_of_3());
    let content = full(&array);
    let (old, new) = (array.members().to_vec(), blank(&array, "n3"));
    assert_eq!(binary::examine(&old)["consistency"], "bitmap");
    let _ = reshape(&["--begin", "--level", "5", "--add", text(&new)], &old).success();
    let all = [old, vec![new]].concat();
    assert_eq!(binary::examine(&all)["consistency"], "log");
    let refused = Server::refused(&array, &all, &["--read-only"]).stderr;
    assert!(refused.contains("can only be served for writing meanwhile (uraid serve MEMBERS)"), "{refused}");
    assert_same(&served(&array, &all, &[])[..content.len()], &content, "served");
    let server = Server::start_members(&array, &all, &[]);
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    let after = binary::examine(&all);
    assert_eq!((after["level"].as_str(), after["consistency"].as_str()), (Some("5"), Some("log")), "{after:#}");

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
    assert!(refused.contains("while it is stopped") && !refused.contains("configure"), "{refused}");
}

fn log_bytes(array: &Array) -> u64 {
    array.examine()["members"][0]["log_size"].as_u64().unwrap()
}

#[test]
fn list_says_which_way_a_reshape_goes_and_how_far_it_is() {
    let array = Array::create(&shape::raid5_of_3());
    let (all, _) = amid(&array);
    let directory = all[0].parent().unwrap();
    let list = |options: &[&str]| {
        let mut command = binary::command();
        command.env("URAID_RUNTIME_DIR", directory).arg("list").args(options).arg(directory);
        run(command).success()
    };
    let said = list(&[]).text();
    assert!(said.contains("being reshaped to RAID 5 left-symmetric of 4 members in chunks of 4 KiB: "), "{said}");
    assert!(said.contains(" have moved\n"), "{said}");
    let uuid = array.examine()["uuid"].clone();
    let found = |list: &Value| {
        let mut all = list.as_array().unwrap().iter();
        all.find(|one| one["uuid"] == uuid).cloned().unwrap_or_else(|| panic!("{list:#}"))
    };
    let stopped = found(&list(&["--json"]).json())["reshape"].clone();
    assert!(stopped["moved"].as_u64() > Some(0) && stopped["back"] == false, "{stopped:#}");

    let mut command = Server::command(&array, &all, &["--reshape-limit", "64K"]);
    command.env("URAID_RUNTIME_DIR", directory);
    let server = Server::spawn(command, array.socket()).unwrap();
    let running = found(&list(&["--json"]).json());
    assert_eq!((&running["state"], &running["reshape"]["members"]), (&"running".into(), &4.into()), "{running:#}");
    assert_eq!(running["member_count"], 3, "{running:#}");
    assert!(ask(&array, &["status"]).success().text().contains("RAID 5 left-symmetric of 3 members, "));
    let _ = ask(&array, &["reshape", "--abort"]).success();
    let said = list(&[]).text();
    assert!(said.contains("have moved, and it goes back"), "{said}");
    server.kill();
    assert_eq!(found(&list(&["--json"]).json())["reshape"]["back"], true);
}

/// Whatever else is asked of an array between two shapes: it is told what to do, and nothing is written.
#[test]
fn other_commands_say_what_to_do_and_write_nothing() {
    let array = Array::create(&shape::raid5_of_3());
    let (all, _) = amid(&array);
    let before = bytes_of(&all);
    let extra = blank(&array, "n4");
    for (words, said) in [
        (&["rename", "other"][..], "change it then; nothing was changed"),
        (&["configure", "--consistency", "bitmap"], "`uraid reshape --abort MEMBERS`"),
        (&["grow"], "`uraid wait`"),
        (&["create", "--level", "5"], "holds uraid member"),
        (&["wipe"], "--force"),
        (&["reshape", "--chunk", "16K"], "a reshape to another shape is under way"),
        (&["reshape", "--add", text(&extra)], "a reshape to another shape is under way"),
    ] {
        let refused = on(words, &all).code_is(1).stderr;
        assert!(refused.contains(said), "{words:?}: {refused}");
    }
    assert!(bytes_of(&all) == before, "nothing was written");
}

#[test]
fn a_new_member_is_named_once_and_is_no_member_yet() {
    let array = Array::create(&shape::raid5_of_3());
    let _ = full(&array);
    let (old, new) = (array.members().to_vec(), blank(&array, "n3"));
    let link = array.path("link");
    std::os::unix::fs::symlink(&new, &link).unwrap();
    for options in [&["--rehearse"][..], &[]] {
        for second in [&new, &link] {
            let add = ["--level", "rm2", "--add", text(&new), "--add", text(second)];
            let refused = reshape(&[options, &add].concat(), &old).code_is(1).stderr;
            assert!(refused.contains("is the same file as") && refused.contains("once"), "{refused}");
        }
        let refused = reshape(&[options, &["--add", text(&old[1])]].concat(), &old).code_is(1).stderr;
        assert!(refused.contains("is member 1 of this array already"), "{refused}");
    }
    assert!(std::fs::read(&new).unwrap().iter().all(|&byte| byte == 0), "nothing was written");
}

/// What an aborted reshape left is of no value where all members are there and none knows of it. Otherwise, and
/// whatever else a new member holds, it takes --force, as with `create` and `add`.
#[test]
fn what_a_new_member_holds_is_overwritten_only_if_it_is_of_no_value_or_by_force() {
    let array = Array::create(&shape::raid5_of_3());
    let content = full(&array);
    let (old, new) = (array.members().to_vec(), blank(&array, "n3"));
    let all = [old.clone(), vec![new.clone()]].concat();
    let _ = reshape(&["--begin", "--add", text(&new)], &old).success();
    let left = array.path("left");
    std::fs::copy(&new, &left).unwrap();
    let _ = reshape(&["--abort"], &all).success();
    // As if the power had failed before it was told that it is none.
    std::fs::copy(&left, &new).unwrap();
    // Member 2 might have gone on with it.
    let add = ["--degraded", "--add", text(&new)];
    let refused = reshape(&add, &old[..2]).code_is(1).stderr;
    assert!(refused.contains("name all members, or use --force"), "{refused}");
    // It is a member of that array, as far as the array knows.
    let refused = reshape(&["--degraded", "--force", "--add", text(&old[2])], &old[..2]).code_is(1).stderr;
    assert!(refused.contains("is member 2 of this array already"), "{refused}");
    let refused = on(&["create", "--level", "1"], &[new.clone(), blank(&array, "n9")]).code_is(1).stderr;
    assert!(refused.contains("use --force to overwrite it"), "{refused}");
    // It is told apart when it is named among the members.
    let said = on(&["examine"], &all).success().text();
    assert!(said.lines().any(|line| line.contains("left ") && line.contains("n3")), "{said}");
    let _ = reshape(&["--rehearse", "--add", text(&new)], &old).success();

    let other = blank(&array, "n4");
    std::fs::write(&other, vec![7; MEMBER_BYTES]).unwrap();
    let refused = reshape(&["--add", text(&other)], &old).code_is(1).stderr;
    assert!(refused.contains("holds data (at byte 0); use --force to overwrite it"), "{refused}");
    let _ = reshape(&["--force", "--add", text(&other)], &old).success();
    let all = [old, vec![other]].concat();
    assert_same(&served(&array, &all, &[])[..content.len()], &content, "by force");
}

/// The command line of before a reshape still names who left: it says so, and what to do.
#[test]
fn who_left_in_a_reshape_is_told_to_be_left_out() {
    let array = Array::create(&shape::raid5_of_5_left_asymmetric());
    let content = full(&array);
    let all = array.members().to_vec();
    let size = (content.len() / 2).to_string();
    let last = array.path("last");
    let _ = std::fs::copy(&all[4], &last).unwrap();
    let _ = reshape(&["--remove", text(&all[4]), "--size", &size], &all).success();
    let refused = Server::refused(&array, &all, &[]).stderr;
    for part in [text(&all[4]), "all of its members without it", "left in a reshape", "leave it out"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let refused = reshape(&["--chunk", "16K"], &all).code_is(1).stderr;
    assert!(refused.contains("leave it out if it left the array"), "{refused}");
    // One that was not told, as the power failed.
    std::fs::copy(&last, &all[4]).unwrap();
    let image = served(&array, &all, &[]);
    assert_same(&image[..content.len() / 2], &content[..content.len() / 2], "it does not count");
    let said = on(&["examine"], &all).success().text();
    assert!(said.lines().any(|line| line.trim_start().starts_with("4  left ")), "{said}");
    let server = Server::start_members(&array, &all[..3], &["--degraded"]);
    let refused = ask(&array, &["add", text(&all[4])]).code_is(1).stderr;
    assert!(refused.contains("left in a reshape") && refused.contains("--force"), "{refused}");
    let _ = server.stop();
}

/// Where `uraid map` has a block is its content, on both sides of the mark, and when it is over; served or not.
#[test]
fn map_knows_both_shapes() {
    let array = Array::create(&shape::raid5_of_3());
    let (all, content) = amid(&array);
    let map = |lba: usize, options: &[&str], members: &[PathBuf]| {
        let lba = lba.to_string();
        on(&[&["map", "--lba", &lba], options].concat(), members)
    };
    let mark = map(0, &["--json"], &all).success().json()["reshape"]["mark"].as_u64().unwrap();
    let (mark, end) = (usize::try_from(mark).unwrap(), content.len() / SECTOR);
    assert!(mark > 0 && mark < end);
    for lba in [0, 7, mark / 2, mark - 1, mark, mark + 9, (mark + end) / 2, end - 1] {
        let found = map(lba, &["--json"], &all).success().json();
        let sides = &found["reshape"];
        let (side, members) = if lba < mark { ("below", 4) } else { ("above", 3) };
        assert_eq!((&sides["side"], &sides[side]["members"]), (&side.into(), &members.into()), "{found:#}");
        assert_eq!(sides["in_use"], false);
        let at = |place: &Value| -> Vec<u8> {
            let start = usize::try_from(place["sector"].as_u64().unwrap()).unwrap() * SECTOR;
            std::fs::read(Path::new(place["path"].as_str().unwrap())).unwrap()[start..start + SECTOR].to_vec()
        };
        assert_same(&at(&found), &content[lba * SECTOR..(lba + 1) * SECTOR], &format!("block {lba} of {found:#}"));
        // Parity is that of the same shape: all of the row together is nothing.
        let reads = found["write"]["reads"].as_array().unwrap().len();
        assert!(reads >= 1 && found["parity"].as_array().unwrap().len() == 1, "{found:#}");
        let said = map(lba, &[], &all).success().text();
        assert!(said.contains(&format!("{side} the mark of an array that is being reshaped")), "{said}");
        assert!(said.contains(&format!("at block {mark}")) && !said.contains("in use"), "{said}");
    }
    let beyond = map(end, &[], &all).code_is(1).stderr;
    assert!(beyond.contains("beyond the array"), "{beyond}");
    // A member that only one of the shapes has.
    let degraded = map(0, &["--json", "--failed", "3"], &all).success().json();
    assert_eq!(degraded["failed"], serde_json::json!([3]), "{degraded:#}");
    let whole = map(mark, &["--json", "--failed", "3"], &all).success().json();
    assert_eq!(whole["failed"], serde_json::json!([]), "{whole:#}");
    assert!(map(0, &["--failed", "4"], &all).code_is(1).stderr.contains("no member 4"));

    let server = Server::start_members(&array, &all, &["--reshape-limit", "64K"]);
    let said = map(0, &[], &all).success().text();
    assert!(said.contains("it moves while the array is in use"), "{said}");
    assert_eq!(map(0, &["--json"], &all).success().json()["reshape"]["in_use"], true);
    let _ = ask(&array, &["set", "--reshape-limit", "none"]).success();
    let _ = ask(&array, &["wait"]).success();
    assert!(status(&array)["reshape"].is_null());
    let _ = server.stop();
    assert!(map(0, &["--json"], &all).success().json()["reshape"].is_null());
}
