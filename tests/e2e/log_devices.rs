//! Log devices: what is asked of them when an array gets them, and what becomes of it when they are killed, missing,
//! broken, or exchanged.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::Command;
use uraid_tests::process::{Output, Process};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES, Shape};

use crate::control::scrub::Events;
use crate::control::{ask, metric, status};

/// A new array with two log devices, and their paths.
fn created(shape: &Shape) -> (Array, [PathBuf; 2]) {
    let array = Array::planned(shape);
    let logs = ["log0", "log1"].map(|name| array.path(name));
    let _ = array.run_create(MEMBER_BYTES, &options(&logs)).success();
    (array, logs)
}

fn options(logs: &[PathBuf]) -> Vec<&str> {
    logs.iter().flat_map(|path| ["--log-device", path.to_str().expect("a plain path")]).collect()
}

/// The members, and these log devices.
fn with(array: &Array, logs: &[PathBuf]) -> Vec<PathBuf> {
    [array.members(), logs].concat()
}

fn configure(array: &Array, options: &[&str]) -> Output {
    let mut words: Vec<OsString> = vec!["configure".into()];
    words.extend(options.iter().map(OsString::from));
    words.extend(array.members().iter().map(OsString::from));
    binary::uraid(words)
}

/// `uraid` with these words, told of a server.
fn administer(server: &Server, words: &[&str]) -> Output {
    let (command, rest) = words.split_first().expect("a command");
    let socket = ["--socket".into(), OsString::from(server.socket())];
    binary::uraid([OsString::from(command)].into_iter().chain(socket).chain(rest.iter().map(OsString::from)))
}

/// The log devices of an array that is served.
fn served(server: &Server) -> Vec<Value> {
    let status = administer(server, &["status", "--json"]).success().json();
    status["log_devices"].as_array().expect("status tells").clone()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// What the log devices are on record as, by number.
fn states(paths: &[PathBuf]) -> Vec<String> {
    let report = binary::examine(paths);
    let devices = report["log_devices"].as_array().expect("examine tells").iter();
    devices.map(|device: &Value| device["state"].as_str().expect("a word").to_owned()).collect()
}

/// A server that is killed has what was flushed, with both log devices and with each of them alone.
#[test]
fn what_was_flushed_is_there_with_any_log_device_that_is_left() {
    for shape in [shape::raid5_of_3(), shape::rm2_of_6(), shape::raid1_of_3()] {
        let mut random = Random::new(7);
        for left in [&[0, 1][..], &[0], &[1]] {
            let what = format!("{} with log devices {left:?}", shape.name);
            let (array, logs) = created(&shape);
            let mut image = random.bytes(array.expected_size());
            let server = Server::start_members(&array, &with(&array, &logs), &[]);
            write_export(server.uri(), &image);
            let mut client = server.connect();
            for block in 0..40 {
                let (at, data) = (block * 9 * 4096, random.bytes(4096));
                client.write(at, &data);
                image[at..at + 4096].copy_from_slice(&data);
            }
            client.flush();
            server.kill();
            let some: Vec<PathBuf> = left.iter().map(|&log| logs[log].clone()).collect();
            let none = Server::refused(&array, array.members(), &["--degraded"]).stderr;
            assert!(none.contains("only its log devices have the latest writes"), "{what}: {none}");
            if left.len() == 1 {
                let refusal = Server::refused(&array, &with(&array, &some), &[]).stderr;
                assert!(refusal.contains("is missing") && refusal.contains("--degraded"), "{what}: {refusal}");
            }
            let server = Server::start_members(&array, &with(&array, &some), &["--degraded"]);
            assert_same(&read_export(server.uri()), &image, &what);
            let _ = server.stop();
            let expected = |log: &usize| if left.contains(log) { "active" } else { "failed" };
            assert_eq!(states(&with(&array, &logs)), [0, 1].iter().map(expected).collect::<Vec<_>>(), "{what}");
        }
    }
}

/// What is wrong with one path says nothing of the others: a log device that is there and sound is told so.
#[test]
fn a_log_device_that_cannot_be_examined_leaves_the_other_as_it_is() {
    let (array, logs) = created(&shape::raid5_of_3());
    let examine = |paths: &[PathBuf]| {
        let words = [OsString::from("examine")].into_iter().chain(paths.iter().map(OsString::from));
        binary::uraid(words)
    };
    let sound = format!("for each member  {}", text(&logs[0]));
    let gone = logs[1].with_extension("gone");
    let told = examine(&[array.members(), &[logs[0].clone(), gone]].concat()).text();
    assert!(told.contains(&sound) && told.contains("log device 1 not found"), "{told}");
    std::fs::File::options().write(true).open(&logs[1]).unwrap().set_len(0).expect("truncated");
    let told = examine(&with(&array, &logs)).text();
    assert!(told.contains(&sound) && told.contains("log device 1 not found"), "{told}");
}

/// A log device whose file is deleted while the array is served is done without, which status and events tell; with the
/// last one the array is frozen, and nothing that was acknowledged is lost when that is back.
#[test]
fn log_devices_that_fail_are_told_of() {
    let (array, logs) = created(&shape::raid5_of_3());
    let server = Server::start_members(&array, &with(&array, &logs), &[]);
    let socket = server.socket().to_owned();
    let health = || {
        let status = binary::uraid([OsString::from("status"), "--json".into(), "--socket".into(), (&socket).into()]);
        status.success().json()["health"].clone()
    };
    let mut client = server.connect();
    client.write(0, &[1; 4096]);
    client.flush();
    assert_eq!(health()["log_devices_left"], 2);
    std::fs::remove_file(&logs[1]).expect("removed");
    // The server looks every few seconds.
    let told = std::iter::repeat_with(health).take(10_000).find(|told| told["state"] == "degraded");
    let told = told.expect("it is found");
    assert_eq!(told["log_devices_left"], 1, "{told}");
    assert_eq!(told["log_devices_failed"][0]["number"], 1, "{told}");
    client.write(1 << 20, &[2; 4096]);
    client.flush();
    let whole = std::fs::read(&logs[0]).expect("read");
    // Long after the last write, so that the next one finds the file shorter.
    let _ = [health(), health(), health()];
    std::fs::File::options().write(true).open(&logs[0]).and_then(|file| file.set_len(1 << 20)).expect("shortened");
    let mut other = server.connect();
    let _ = other.call(Command::Write, 2 << 20, 4096, &[3; 4096]);
    assert!(other.call(Command::Flush, 0, 0, &[]).error != 0, "nobody has it");
    assert_eq!(health()["state"], "frozen");
    server.signal(Signal::TERM);
    let printed = server.end().code_is(1).stderr;
    assert!(printed.contains("log-device-failed"), "{printed}");
    std::fs::write(&logs[0], whole).expect("written back");
    let server = Server::start_members(&array, &with(&array, &logs[..1]), &[]);
    let mut client = server.connect();
    assert_eq!(client.read(0, 4096), [1; 4096]);
    assert_eq!(client.read(1 << 20, 4096), [2; 4096]);
    let _ = server.stop();
}

/// The last log device is needed: it is used on, and another one can take its place.
#[test]
fn the_last_log_device_is_told_of_when_its_file_is_deleted() {
    let array = Array::planned(&shape::raid5_of_3());
    let [log, new] = ["log", "new"].map(|name| array.path(name));
    let options = ["--single-log-device", "--log-device", text(&log)];
    let _ = array.run_create(MEMBER_BYTES, &options).success();
    let (events, hook) = Events::new(&array);
    let options = ["--on-event", text(&hook)];
    let server = Server::start_members(&array, &with(&array, std::slice::from_ref(&log)), &options);
    let mut client = server.connect();
    client.write(0, &[1; 4096]);
    client.flush();
    std::fs::remove_file(&log).expect("removed");
    assert_eq!(events.until("failing").last().map(String::as_str), Some("log-device-deleted"));
    let health = status(&array)["health"].clone();
    assert_eq!(health["log_devices_deleted"][0]["path"], text(&log), "{health}");
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains("the file of log device 0 (") && screen.contains("`uraid replace`"), "{screen}");
    client.write(4096, &[2; 4096]);
    client.flush();
    let _ = ask(&array, &["replace", text(&log), text(&new)]).success();
    let _ = events.until("recovered");
    let _ = server.stop();
    let server = Server::start_members(&array, &with(&array, &[new]), &[]);
    assert_eq!(server.connect().read(4096, 4096), [2; 4096]);
    let _ = server.stop();
}

#[test]
fn what_makes_no_log_device_is_refused_and_nothing_is_written() {
    let shape = shape::raid5_of_3();
    let (other, others) = created(&shape);
    let array = Array::planned(&shape);
    let [one, two, small] = ["one", "two", "small"].map(|name| array.path(name));
    std::fs::write(&small, vec![0; 1 << 20]).expect("written");
    let text = |path: &PathBuf| path.to_str().expect("a plain path").to_owned();
    let member = text(&array.members()[0]);
    let otherwise = |path: &str| path.replacen("/tmp/", "/tmp/./", 1).replacen("/uraid-", "/./uraid-", 1);
    let cases: [(Vec<String>, &str); 9] = [
        (vec![text(&one), otherwise(&text(&one))], "named as a log device twice"),
        (vec![text(&one), otherwise(&member)], "is a member of the array"),
        (vec![text(&one)], "--single-log-device"),
        (vec![text(&one), text(&one)], "named as a log device twice"),
        (vec![text(&one), member], "is a member of the array"),
        (vec![text(&one), text(&others[0])], "holds uraid log device"),
        (vec![text(&one), text(&other.members()[0])], "holds uraid member"),
        (vec![text(&one), text(&small)], "too few for the log"),
        (["a", "b", "c", "d", "e"].map(|name| text(&array.path(name))).into(), "at most 4"),
    ];
    let before = std::fs::read(&others[0]).expect("read");
    for (paths, expected) in cases {
        let options: Vec<&str> = paths.iter().flat_map(|path| ["--log-device", path]).collect();
        let refused = array.run_create(MEMBER_BYTES, &options);
        assert!(refused.code != Some(0) && refused.stderr.contains(expected), "{expected}: {}", refused.stderr);
        let is_made = |path: &PathBuf| path.exists();
        assert!(!array.members().iter().any(is_made) && !one.exists() && !two.exists(), "{expected}");
    }
    assert!(std::fs::read(&others[0]).expect("read") == before);
    let bitmap = array.run_create(MEMBER_BYTES, &["--consistency", "none", "--log-device", "x", "--log-device", "y"]);
    assert!(bitmap.stderr.contains("choose --consistency log"), "{}", bitmap.stderr);
    let single = array.run_create(MEMBER_BYTES, &["--single-log-device", "--log-device", &text(&one)]);
    let _ = single.success();
    // Log devices of another array, and copies of one.
    let foreign = Server::refused(&array, &with(&array, &others), &[]).stderr;
    assert!(foreign.contains("is a log device of array"), "{foreign}");
    let copy = array.path("copy");
    std::fs::copy(&one, &copy).expect("copied");
    let twice = Server::refused(&array, &with(&array, &[one, copy]), &[]).stderr;
    assert!(twice.contains("one is a copy"), "{twice}");
}

/// Log devices come, go and are exchanged while the array is stopped, whether or not the former ones are there.
#[test]
fn a_stopped_array_gets_other_log_devices_or_none() {
    let shape = shape::raid5_of_3();
    let array = Array::create(&shape);
    let mut random = Random::new(3);
    let image = random.bytes(array.expected_size());
    let logs = ["log0", "log1", "log2"].map(|name| array.path(name));
    for chosen in [&logs[..2], &logs[1..], &[], &logs[..1], &logs[..]] {
        let mut words = options(chosen);
        words.extend(if chosen.len() == 1 { Some("--single-log-device") } else { None });
        words.extend(if chosen.is_empty() { Some("--no-log-devices") } else { None });
        let _ = configure(&array, &words).success();
        assert_eq!(states(&with(&array, chosen)), vec!["active"; chosen.len()]);
        let server = Server::start_members(&array, &with(&array, chosen), &[]);
        write_export(server.uri(), &image);
        server.kill();
        let dirty = configure(&array, &["--no-log-devices"]);
        assert!(dirty.code == Some(1), "{}", dirty.stderr);
        let server = Server::start_members(&array, &with(&array, chosen), &[]);
        assert_same(&read_export(server.uri()), &image, &format!("{chosen:?}"));
        let _ = server.stop();
        // What is not the array's any more is left out, and said to be.
        let server = Server::start_members(&array, &with(&array, &logs), &[]);
        let _ = server.stop();
    }
    let reshape = binary::uraid(
        ["reshape".into(), "--chunk".into(), OsString::from("128K")]
            .into_iter()
            .chain(with(&array, &logs).into_iter().map(OsString::from)),
    );
    assert!(reshape.stderr.contains("log devices can't be reshaped"), "{}", reshape.stderr);
    let none = configure(&array, &["--consistency", "none"]);
    assert!(none.stderr.contains("take them out first"), "{}", none.stderr);
    for gone in &logs {
        std::fs::remove_file(gone).expect("removed");
    }
    let refusal = Server::refused(&array, array.members(), &["--degraded"]).stderr;
    assert!(refusal.contains("uraid configure --no-log-devices"), "{refusal}");
    let _ = configure(&array, &["--no-log-devices"]).success();
    let server = Server::start(&array);
    assert_same(&read_export(server.uri()), &image, "without any");
    let _ = server.stop();
}

/// Log devices are given up, exchanged, added and forgotten while clients write. Whichever is left has all that was
/// flushed.
#[test]
fn a_running_array_gets_other_log_devices() {
    let (array, [zero, one]) = created(&shape::raid5_of_3());
    let [two, three] = ["log2", "log3"].map(|name| array.path(name));
    let mut random = Random::new(11);
    let mut image = random.bytes(array.expected_size());
    let options = ["--metrics", "127.0.0.1:0"];
    let server = Server::start_members(&array, &with(&array, &[zero.clone(), one.clone()]), &options);
    let address = server.line_after("metrics at http://");
    let present = |log| metric(&address, &format!("uraid_log_device_present{{log_device=\"{log}\"}}"));
    write_export(server.uri(), &image);
    let mut client = server.connect();
    let mut put = |block: usize| {
        let (at, data) = (block * 9 * 4096, random.bytes(4096));
        client.write(at, &data);
        client.flush();
        image[at..at + 4096].copy_from_slice(&data);
        image.clone()
    };
    put(0);
    let _ = administer(&server, &["fail", text(&one)]).success();
    assert_eq!(served(&server)[1]["state"], "failed");
    let last = administer(&server, &["fail", text(&zero)]).stderr;
    assert!(last.contains("log device 0 is the only one that works"), "{last}");
    put(1);
    let told = administer(&server, &["replace", text(&one), text(&two)]).success().text();
    assert!(told.contains("is log device 1 now, in the place of"), "{told}");
    put(2);
    let told = administer(&server, &["add", "--log-device", text(&three)]).success().text();
    assert!(told.contains("is log device 2 now"), "{told}");
    put(3);
    let used = administer(&server, &["remove", text(&zero)]).stderr;
    assert!(used.contains("the array still uses log device 0: fail it first"), "{used}");
    let _ = administer(&server, &["fail", text(&zero)]).success();
    let _ = administer(&server, &["remove", text(&zero)]).success();
    let image = put(4);
    // The last one has the number of the one that is gone.
    let devices = served(&server);
    let paths: Vec<&str> = devices.iter().map(|device| device["path"].as_str().expect("a path")).collect();
    assert_eq!(paths, [text(&three), text(&two)]);
    let is_well = |device: &Value| device["state"] == "active" && device["records"].as_u64() > Some(0);
    assert!(devices.iter().all(is_well), "{devices:?}");
    let health = administer(&server, &["status", "--json"]).success().json()["health"].clone();
    assert_eq!((&health["state"], &health["log_devices_left"]), (&Value::from("whole"), &Value::from(2)), "{health}");
    assert_eq!([0, 1, 2].map(present), [Some("1".to_owned()), Some("1".to_owned()), None]);
    server.kill();
    for left in [&two, &three] {
        let alone = [left.clone()];
        let server = Server::start_members(&array, &with(&array, &alone), &["--degraded", "--read-only"]);
        assert_same(&read_export(server.uri()), &image, text(left));
        let _ = server.stop();
    }
    // What the array has forgotten is left out.
    let server = Server::start_members(&array, &with(&array, &[zero, one, two, three]), &[]);
    assert_same(&read_export(server.uri()), &image, "with all of them");
    let _ = server.stop();
}

/// What makes no log device of a running array is refused by name, and nothing is written to it.
#[test]
fn what_a_running_array_does_not_take_is_refused_and_not_written() {
    let shape = shape::raid5_of_3();
    let (_other, others) = created(&shape);
    let (array, logs) = created(&shape);
    let small = array.path("small");
    std::fs::write(&small, vec![0; 1 << 20]).expect("written");
    let server = Server::start_members(&array, &with(&array, &logs), &[]);
    let member = array.members()[0].clone();
    let link = array.path("link");
    std::os::unix::fs::symlink(&logs[0], &link).expect("linked");
    let cases: [(&Path, &str); 5] = [
        (&member, "is a member of the array"),
        (&logs[1], "one of its log devices"),
        (&link, "one of its log devices"),
        (&others[0], "holds uraid log device"),
        (&small, "too few for the log"),
    ];
    for (path, expected) in cases {
        let is_used = path != small && path != others[0];
        let before = (!is_used).then(|| std::fs::read(path).expect("read"));
        for words in [["add", "--log-device", text(path)], ["replace", text(&logs[0]), text(path)]] {
            let refused = administer(&server, &words);
            assert!(refused.code == Some(1) && refused.stderr.contains(expected), "{words:?}: {}", refused.stderr);
            assert!(refused.stderr.contains(text(path)), "{words:?}: {}", refused.stderr);
        }
        assert!(before.is_none_or(|before| before == std::fs::read(path).expect("read")), "{expected}");
    }
    let new = array.path("new");
    let sized = administer(&server, &["replace", "--size", "64M", text(&logs[0]), text(&new)]).stderr;
    assert!(sized.contains("leave --size out") && !new.exists(), "{sized}");
    assert_eq!(served(&server).len(), 2);
    let _ = server.stop();
    let plain = Array::create(&shape);
    let server = Server::start(&plain);
    let refused = administer(&server, &["add", "--log-device", text(&new)]).stderr;
    assert!(refused.contains("the log of this array is on its members") && !new.exists(), "{refused}");
    let _ = server.stop();
}

/// A server that is killed somewhere in an exchange leaves an array with all that was flushed, whichever log devices it
/// has by then.
#[test]
fn a_kill_during_an_exchange_loses_nothing() {
    let (array, logs) = created(&shape::raid5_of_3());
    let mut random = Random::new(5);
    let mut image = random.bytes(array.expected_size());
    let mut paths = logs.to_vec();
    let has_header = |bytes: Vec<u8>| bytes.windows(8).take(64 << 10).any(|part| part == b"\x8dULDEV\r\n");
    let is_made = |path: &PathBuf| std::fs::read(path).is_ok_and(has_header);
    for round in 0..12 {
        let server = Server::start_members(&array, &with(&array, &paths), &["--degraded"]);
        if round == 0 {
            write_export(server.uri(), &image);
        }
        let old = served(&server).into_iter().find(|device| device["state"] == "active").expect("one is active");
        let new = array.path(&format!("new{round}"));
        let mut command = binary::command();
        command.args(["replace", "--socket", text(server.socket()), old["path"].as_str().expect("a path"), text(&new)]);
        let mut client = server.connect();
        let replacing = Process::start(command);
        // The later the round, the further the exchange has come.
        for _ in 0..round * 4 {
            let (at, data) = (random.below(image.len() / 4096) * 4096, random.bytes(4096));
            client.write(at, &data);
            client.flush();
            image[at..at + 4096].copy_from_slice(&data);
        }
        server.kill();
        let _ = replacing.finish(Duration::from_secs(60));
        paths.push(new);
        paths.retain(is_made);
        let server = Server::start_members(&array, &with(&array, &paths), &["--degraded"]);
        assert_same(&read_export(server.uri()), &image, &format!("round {round}"));
        // At most one was left out of the table.
        let devices = served(&server);
        let known = |path: &PathBuf| devices.iter().any(|device| device["path"] == text(path));
        let (kept, left): (Vec<PathBuf>, Vec<PathBuf>) = paths.into_iter().partition(known);
        assert!(devices.len() == 2 && kept.len() == 2 && left.len() < 2, "round {round}: {devices:?}");
        let _ = server.stop();
        paths = kept;
    }
}
