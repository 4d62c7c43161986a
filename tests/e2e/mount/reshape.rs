//! Reshapes of arrays that are served, whose members fill up and fail.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::process::Process;
use uraid_tests::run::CLIENT_TIME_MAX;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

use super::health::{Failing, Tmpfs, in_trouble, state};
use crate::control::{ask, sweep, until};

/// Files of members, and a new one that is begun with on a file system without room for its data.
const MEMBER_BYTES: u64 = 40 << 20;

/// A RAID 0 of four that is full of something, and begun to get a member more, which has no room for what moves; the
/// file system, the members, and the content.
fn without_room() -> (Array, Tmpfs, Vec<PathBuf>, Vec<u8>) {
    let array = Array::create(&Shape { chunk_kib: Some(4), ..shape::raid0_of_4() });
    let (tmpfs, content) = (Tmpfs::new(), full(&array));
    let new = tmpfs.mount_point.join("new");
    File::create(&new).unwrap().set_len(MEMBER_BYTES).unwrap();
    begin(&array, &new);
    tmpfs.fill();
    let all = [array.members(), &[new]].concat();
    (array, tmpfs, all, content)
}

fn full(array: &Array) -> Vec<u8> {
    let server = Server::start(array);
    let content = Random::new(9).bytes(array.expected_size());
    write_export(server.uri(), &content);
    let _ = server.stop();
    content
}

fn begin(array: &Array, new: &Path) {
    let words = ["reshape", "--begin", "--add"].map(OsString::from).into_iter().chain([new.into()]);
    let _ = binary::uraid(words.chain(array.members().iter().map(OsString::from))).success();
}

/// The new member has no room for what moves, and a RAID 0 can't do without it: everybody is told so and nobody hangs,
/// and with room it goes on, or back.
#[test]
fn a_new_member_without_room_is_named_and_holds_nobody_up() {
    for is_back in [false, true] {
        let (array, tmpfs, all, content) = without_room();
        let path = all[4].to_str().unwrap();
        let server = Server::start_members(&array, &all, &[]);
        let now = until(&array, "nobody waits", |now| state(now) == "stalled");
        assert_eq!(in_trouble(&now, "no-room"), [4], "{now:#}");
        let refused = ask(&array, &["stop"]).code_is(1).stderr;
        assert!(refused.contains(&format!("waits for member 4 ({path})")) && refused.contains("--force"), "{refused}");
        if is_back {
            let refused = ask(&array, &["reshape", "--abort"]).code_is(1).stderr;
            let name = format!("member 4 ({path})");
            assert!(refused.contains("goes back only when") && refused.contains(&name), "{refused}");
        }
        // It holds up nobody else who administers the array.
        let refused = ask(&array, &["fail", "1"]).code_is(1).stderr;
        assert!(refused.contains(&format!("waits for member 4 ({path})")), "{refused}");
        let refused = ask(&array, &["add", path]).code_is(1).stderr;
        assert!(refused.contains("the array is being reshaped"), "{refused}");
        let waited = ask(&array, &["wait"]).code_is(1).stderr;
        assert!(waited.contains("waiting for room on") && waited.contains(path), "{waited}");
        tmpfs.make_room();
        let _ = until(&array, "it still waits", |now| state(now) != "stalled");
        let _ = ask(&array, &["wait"]).success();
        let now = until(&array, "it is over", |now| now["reshape"].is_null());
        assert_eq!(now["members"].as_array().unwrap().len(), if is_back { 4 } else { 5 }, "{now:#}");
        assert_same(&read_export(server.uri())[..content.len()], &content, "with room");
        let _ = server.stop();
    }
}

/// Who stops such a server by force is told whom it waits for.
#[test]
fn a_stop_in_a_reshape_names_the_new_member_that_it_waits_for() {
    let (array, tmpfs, all, content) = without_room();
    let path = all[4].to_str().unwrap();
    let server = Server::start_members(&array, &all, &[]);
    let _ = until(&array, "nobody waits", |now| state(now) == "stalled");
    let mut command = binary::command();
    command.args(["stop", "--force", "--socket"]).arg(server.socket()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let stop = Process::start(command);
    // When no member has done anything for a quarter longer than it may take.
    let log = server.end_within(CLIENT_TIME_MAX).stderr;
    assert!(log.contains(&format!("gave up waiting for member 4 ({path}), which has no room")), "{log}");
    let _ = stop.finish(CLIENT_TIME_MAX).code_is(1);
    tmpfs.make_room();
    let server = Server::start_members(&array, &all, &[]);
    let _ = ask(&array, &["wait"]).success();
    assert_same(&read_export(server.uri())[..content.len()], &content, "nothing is lost");
    let _ = server.stop();
}

/// A reshape of a frozen array can't be turned, and whoever tries is told so at once.
#[test]
fn a_reshape_of_a_frozen_array_is_not_turned() {
    let array = Array::create(&shape::raid5_of_3());
    let (content, new) = (full(&array), array.path("new"));
    File::create(&new).unwrap().set_len(MEMBER_BYTES).unwrap();
    begin(&array, &new);
    let fuses: Vec<Failing> = [1, 2].map(|slot| Failing::on(&array, slot)).into();
    let all = [array.members()[0].clone(), fuses[0].file().into(), fuses[1].file().into(), new];
    let server = Server::start_members(&array, &all, &["--reshape-limit", "64K"]);
    let moved = until(&array, "nothing moves", |now| sweep(now, "reshape").is_some_and(|(done, _)| done > 0));
    fuses.iter().for_each(|fuse| fuse.fail_writes(true));
    let _ = until(&array, "it is not frozen", |now| state(now) == "frozen");
    for words in [&["reshape", "--abort"][..], &["reshape"]] {
        let refused = ask(&array, words).code_is(1).stderr;
        assert!(refused.contains("which way the reshape goes") && refused.contains("frozen"), "{refused}");
    }
    let now = until(&array, "it is not frozen", |now| state(now) == "frozen");
    assert_eq!(
        (&now["reshape"]["back"], &now["reshape"]["level"]),
        (&false.into(), &moved["reshape"]["level"]),
        "{now:#}"
    );
    fuses.iter().for_each(|fuse| fuse.fail_writes(false));
    let _ = ask(&array, &["stop"]);
    let _ = server.end();
    drop(fuses);
    let server = Server::start_members(&array, &[array.members(), &all[3..]].concat(), &["--degraded"]);
    let _ = ask(&array, &["reshape", "--abort"]).success();
    let _ = ask(&array, &["wait"]);
    assert_same(&read_export(server.uri())[..content.len()], &content, "back");
    let _ = server.stop();
}

/// An abort that a member which is needed does not take on record is no success, and does not wait for ever.
#[test]
fn an_abort_that_is_not_on_record_is_no_success() {
    let array = Array::create(&Shape { chunk_kib: Some(4), ..shape::raid0_of_4() });
    let (content, new) = (full(&array), array.path("new"));
    File::create(&new).unwrap().set_len(MEMBER_BYTES).unwrap();
    begin(&array, &new);
    let fuse = Failing::on(&array, 1);
    let [first, _, rest @ ..] = array.members() else { panic!("four members") };
    let all = [&[first.clone(), fuse.file().into()], rest, &[new]].concat();
    let server = Server::start_members(&array, &all, &["--reshape-limit", "64K"]);
    fuse.fail_writes(true);
    let refused = ask(&array, &["reshape", "--abort"]).code_is(1).stderr;
    assert!(refused.contains("on record"), "{refused}");
    fuse.fail_writes(false);
    let _ = ask(&array, &["stop", "--force"]);
    let _ = server.end();
    let server = Server::start_members(&array, &all, &[]);
    let _ = ask(&array, &["wait"]).success();
    assert_same(&read_export(server.uri())[..content.len()], &content, "nothing is lost");
    let _ = server.stop();
}
