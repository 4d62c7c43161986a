//! Members that come late, or never, and what a service manager and an administrator hear of it.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use uraid_tests::array::Array;
use uraid_tests::image::{assert_same, read_export};
use uraid_tests::process::Process;
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::super::control::scrub::Events;
use super::super::control::{ask, status};
use super::{SMALL, filled};

/// How long a message may take; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service manager, and the command that starts a server which it hears.
fn managed(array: &Array, members: &[PathBuf], options: &[&str]) -> (UnixDatagram, Command) {
    let name = array.path("notify");
    let manager = UnixDatagram::bind(&name).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Server::command(array, members, options);
    command.env("NOTIFY_SOCKET", &name);
    (manager, command)
}

/// The next message of this kind that the manager hears.
fn next(manager: &UnixDatagram, kind: &str) -> String {
    let mut buffer = [0; 4096];
    loop {
        let length = manager.recv(&mut buffer).unwrap();
        let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
        assert_ne!(text, "READY=1", "it is not ready while it waits");
        if let Some(message) = text.strip_prefix(kind) {
            return message.to_owned();
        }
    }
}

#[test]
fn a_member_that_comes_late_is_waited_for() {
    let (array, image) = filled(&shape::raid5_of_3(), SMALL);
    array.remove(&[1]);
    let (manager, command) = managed(&array, array.members(), &["--wait-for-members", "10m"]);
    let socket = array.socket();
    let server = std::thread::spawn(move || Server::spawn(command, socket));
    let waiting = next(&manager, "STATUS=");
    assert!(waiting.contains("member 1 of") && waiting.contains("waiting"), "{waiting}");
    assert_eq!(next(&manager, "EXTEND_TIMEOUT_USEC="), "60000000");
    array.restore(&[1]);
    let server = server.join().unwrap().unwrap_or_else(|output| panic!("it serves: {}", output.stderr));
    assert_eq!(status(&array)["health"]["state"], "whole");
    assert_same(&read_export(server.uri()), &image, "with the member that came late");
    let _ = ask(&array, &["stop"]).success();
    let told = server.end().stderr;
    assert!(told.contains("member 1 of") && !told.contains("left out"), "{told}");
}

#[test]
fn what_never_comes_is_done_without_in_the_end_and_somebody_hears_of_it() {
    let (array, image) = filled(&shape::raid5_of_3(), SMALL);
    array.remove(&[2]);
    let refusal = Server::refused(&array, array.members(), &["--wait-for-members", "1s"]).stderr;
    assert!(refusal.contains("not there after 1 s") && refusal.contains("--degraded"), "{refusal}");

    let (events, hook) = Events::new(&array);
    let options = ["--wait-for-members", "1s", "--degraded", "--on-event", hook.to_str().unwrap()];
    let server = Server::start_members(&array, array.members(), &options);
    let _ = events.until("degraded");
    assert_same(&read_export(server.uri()), &image, "without the member that did not come");
    let _ = server.stop();

    // It is on record now that it is not to be waited for: an array that is complete without it starts at once.
    let server = Server::start_members(&array, array.members(), &["--degraded"]);
    server.connect().write(0, &image[..4096]);
    let _ = server.stop();
    let server = Server::start_members(&array, array.members(), &["--wait-for-members", "10000w", "--degraded"]);
    let _ = server.stop();
}

#[test]
fn a_server_that_waits_for_members_obeys_signals() {
    for signal in [Signal::INT, Signal::TERM] {
        let (array, _) = filled(&shape::raid1_of_2(), SMALL);
        array.remove(&[0, 1]);
        let (manager, command) = managed(&array, array.members(), &["--wait-for-members", "10m"]);
        let running = Process::start(command);
        let waiting = next(&manager, "STATUS=");
        assert!(waiting.contains("members are not there"), "{waiting}");
        running.signal(signal);
        let told = running.finish(PATIENCE).code_is(128 + signal.as_raw()).stderr;
        assert!(told.contains("not serving the array"), "{told}");
    }
}
