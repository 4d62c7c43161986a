//! `uraid serve --smart-every`: disks that say of themselves that they fail, by a `smartctl` that the test has made.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::json;
use uraid_tests::array::Array;
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::control::scrub::Events;
use super::control::{ask, status};

/// How long the server may take to ask.
const PATIENCE: Duration = Duration::from_secs(120);

/// Serves an array beside a `smartctl` that passes on what it is asked, and answers this.
fn served(array: &Array, hook: &Path, answer: &str) -> (Server, Receiver<String>) {
    let (program, asked) = (array.path("smartctl"), array.path("asked"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &asked, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    // Open for writing too, so that it does not end between two questions.
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&asked).unwrap();
    let (sender, questions) = channel();
    std::thread::spawn(move || {
        BufReader::new(reader).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let script = format!("#!/bin/sh\necho \"$*\" >>'{}'\necho '{answer}'\nexit 8\n", asked.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = ["--smart-every", "1s", "--on-event", hook.to_str().unwrap()];
    (Server::spawn(command(array, &options), array.socket()).unwrap(), questions)
}

/// The array's own directory is the first where programs are looked for.
fn command(array: &Array, options: &[&str]) -> Command {
    let mut command = Server::command(array, array.members(), options);
    command.env("PATH", format!("{}:{}", array.path("").display(), std::env::var("PATH").unwrap()));
    command
}

/// Whether the members lie on a disk that the kernel names: not so on file systems without a device of their own.
fn has_disk(array: &Array) -> bool {
    let device = std::fs::metadata(&array.members()[0]).unwrap().dev();
    Path::new(&format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device))).exists()
}

#[test]
fn a_disk_that_fails_is_an_event_and_shown() {
    let array = Array::create(&shape::raid1_of_2());
    if !has_disk(&array) {
        return;
    }
    let (events, hook) = Events::new(&array);
    let (server, asked) = served(&array, &hook, r#"{"smart_status": {"passed": false}}"#);
    assert_eq!(events.until("member-smart"), ["started"]);
    assert_eq!(events.until("member-smart"), [""; 0], "both members lie on it");
    let now = status(&array);
    assert_eq!(now["health"]["state"], "whole", "nothing is lost yet: {now:#}");
    for member in 0..2 {
        assert_eq!(now["members"][member]["troubles"], json!(["smart"]), "{now:#}");
    }
    let shown = ask(&array, &["status"]).success().text();
    assert!(shown.contains("disk fails"), "{shown}");
    let question = asked.recv_timeout(PATIENCE).unwrap();
    assert!(question.starts_with("--json -H /dev/"), "{question}");
    let _ = server.stop();
}

#[test]
fn disks_that_are_well_or_say_nothing_are_no_event() {
    for answer in [r#"{"smart_status": {"passed": true}}"#, r#"{"smartctl": {"exit_status": 2}}"#, "no JSON"] {
        let array = Array::create(&shape::raid1_of_2());
        if !has_disk(&array) {
            return;
        }
        let (events, hook) = Events::new(&array);
        let (server, asked) = served(&array, &hook, answer);
        // The second look begins when the first has been told of.
        for _ in 0..2 {
            let _ = asked.recv_timeout(PATIENCE).unwrap();
        }
        assert_eq!(status(&array)["members"][0]["troubles"], json!([]), "{answer}");
        let _ = server.stop();
        assert_eq!(events.until("stopped"), ["started"], "{answer}");
    }
}

#[test]
fn without_the_program_the_option_is_refused() {
    let array = Array::create(&shape::raid1_of_2());
    if ["/usr/sbin/smartctl", "/sbin/smartctl"].iter().any(|path| Path::new(path).exists()) {
        return;
    }
    let mut command = command(&array, &["--smart-every", "6h"]);
    command.env("PATH", "/no/such/directory");
    let refused = Server::spawn(command, array.socket()).unwrap_err().code_is(1).stderr;
    assert!(refused.contains("smartmontools"), "{refused}");
}
