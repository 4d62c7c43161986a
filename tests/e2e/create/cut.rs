//! `uraid create` that is killed while it zeroes, at a moment that is the same each time: its progress goes to a
//! terminal that takes nothing.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, Winsize, tcflow, tcsetwinsize};
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same};
use uraid_tests::run::CLIENT_TIME_MAX;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use crate::control::ask;

/// A terminal with both its ends, whose output is stopped: whoever writes to it waits.
struct StoppedTerminal {
    _ours: OwnedFd,
    theirs: OwnedFd,
}

impl StoppedTerminal {
    fn new() -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).unwrap();
        tcflow(&theirs, Action::OOff).unwrap();
        Self { _ours: ours, theirs }
    }
}

/// The incompatible features of the superblock at the head of a member that never had another version of it.
fn features(member: &Path) -> u8 {
    let mut features = [0];
    File::open(member).unwrap().read_exact_at(&mut features, (16 << 10) + 16).unwrap();
    features[0]
}

/// What docs/on-disk-format.md calls the feature.
const INITIALISING: u8 = 8;

fn wait_until_marked(members: &[PathBuf], create: &mut Child) {
    let deadline = Instant::now() + CLIENT_TIME_MAX;
    while !members.iter().all(|member| features(member) & INITIALISING != 0) {
        assert!(create.try_wait().unwrap().is_none(), "it ended though nobody took its progress");
        assert!(Instant::now() < deadline, "the members are never marked");
        std::thread::yield_now();
    }
}

/// Members that hold something, and an array of which `create` was killed before it had zeroed them.
fn cut_off(shape: &shape::Shape) -> Array {
    let array = Array::planned(shape);
    for (slot, member) in array.members().iter().enumerate() {
        fs::write(member, Random::new(slot as u64).bytes(MEMBER_BYTES)).unwrap();
    }
    let terminal = StoppedTerminal::new();
    let mut command = binary::command();
    command.arg("create").args(shape.options()).arg("--force");
    command.args(array.members().iter().map(OsString::from));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(terminal.theirs.try_clone().unwrap());
    let mut create = command.env("TERM", "xterm").spawn().unwrap();
    wait_until_marked(array.members(), &mut create);
    create.kill().unwrap();
    let _ = create.wait().unwrap();
    array
}

#[test]
fn a_create_that_was_killed_is_finished_before_anything_is_kept_in_the_array() {
    for shape in [shape::raid5_of_5_left_symmetric(), shape::rm2_of_7_adjacent(), shape::raid1_of_2()] {
        let array = cut_off(&shape);
        assert_eq!(array.examine()["state"].as_str(), Some("initialising"), "{}", shape.name);
        let before: Vec<Vec<u8>> = array.members().iter().map(|member| fs::read(member).unwrap()).collect();
        let refusal = Server::refused(&array, array.members(), &["--read-only"]).stderr;
        assert!(refusal.contains("serve it for writing"), "{}: {refusal}", shape.name);
        let refusal = Server::refused(&array, &array.without(&[1]), &["--degraded", "--force"]).stderr;
        let says_what_to_do = refusal.contains("name all of its members") && refusal.contains("create it again");
        assert!(says_what_to_do, "{}: {refusal}", shape.name);
        for (member, before) in array.members().iter().zip(&before) {
            assert!(fs::read(member).unwrap() == *before, "{}: what is refused is not written", shape.name);
        }

        let server = Server::start(&array);
        let mut client = server.connect();
        let data = Random::new(99).bytes(4096);
        client.write(8192, &data);
        client.flush();
        client.disconnect();
        let _ = ask(&array, &["wait"]).success();
        let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let said = server.end().success().stderr;
        assert!(said.contains("creating the array was cut off"), "{}: {said}", shape.name);
        assert_eq!(array.examine()["state"].as_str(), Some("clean"), "{}", shape.name);
        Content::read(&array).assert_consistent(shape.name);
        for lost in 0..array.members().len() {
            let copy = array.copy();
            let server = Server::start_members(&copy, &copy.without(&[lost]), &["--degraded"]);
            let mut client = server.connect();
            assert_same(&client.read(0, 8192), &[0; 8192], &format!("{}, without {lost}, before it", shape.name));
            assert_same(&client.read(8192, 4096), &data, &format!("{}, without {lost}", shape.name));
            client.disconnect();
            let _ = server.stop();
        }
    }
}

/// Some members are marked and others are not: nothing can be finished, and it is said what can be done.
#[test]
fn members_that_were_never_marked_make_no_array() {
    let array = cut_off(&shape::raid5_of_3());
    fs::write(&array.members()[2], vec![7; MEMBER_BYTES]).unwrap();
    let refusal = Server::refused(&array, array.members(), &["--degraded", "--force"]).stderr;
    assert!(refusal.contains("member2") && refusal.contains("no superblock"), "{refusal}");
    let refusal = Server::refused(&array, &array.without(&[2]), &["--degraded", "--force"]).stderr;
    assert!(refusal.contains("create it again with --force"), "{refusal}");
    let _ = array.run_create(MEMBER_BYTES, &["--force"]).success();
    let server = Server::start(&array);
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    Content::read(&array).assert_consistent("created anew");
}
