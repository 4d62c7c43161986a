//! A member that hangs, for real: a file on a FUSE file system whose server is stopped.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use uraid_tests::array::Array;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::run::{CLIENT_TIME_MAX, Running, client, client_command};
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::super::control::status;
use super::until_mounted;

/// Room for the array's members, on another array.
const MEMBER_BYTES: usize = 32 << 20;

/// A RAID 5 of which one member is an export of another array; unmounted when dropped.
struct Array5 {
    array: Array,
    file: PathBuf,
    nbdfuse: Running,
    _backing: (Array, Server),
}

impl Array5 {
    fn create() -> Self {
        let backing = Array::create_sized(&shape::raid1_of_2(), MEMBER_BYTES + (8 << 20));
        let server = Server::start(&backing);
        let array = Array::planned(&shape::raid5_of_3());
        let file = array.members()[1].clone();
        fs::write(&file, "").unwrap();
        let mut command = client_command("nbdfuse");
        command.arg(&file).arg(server.uri());
        let nbdfuse = Running::start(command);
        until_mounted(&file);
        let _ = array.run_create(MEMBER_BYTES, &[]).success();
        Self { array, file, nbdfuse, _backing: (backing, server) }
    }

    fn hang(&self) {
        self.nbdfuse.signal(Signal::STOP);
    }

    /// The command that serves the array, and the lines that it logs.
    fn command(&self, options: &[&str]) -> (Command, impl Iterator<Item = String> + use<>) {
        let log = self.array.path("log");
        let _ = fs::remove_file(&log);
        mkfifoat(CWD, &log, Mode::RUSR | Mode::WUSR).unwrap();
        // Open for writing too, so that opening it waits for nobody.
        let reader = File::options().read(true).write(true).open(&log).unwrap();
        let server = Server::command(&self.array, self.array.members(), options);
        let mut command = Command::new("bash");
        command.args(["-c", "exec \"$@\" 2>\"$0\""]).arg(&log).arg(server.get_program()).args(server.get_args());
        (command, BufReader::new(reader).lines().map_while(Result::ok))
    }
}

impl Drop for Array5 {
    fn drop(&mut self) {
        // What waits for it gets an error then, and nothing that unmounts it hangs.
        self.nbdfuse.kill();
        let _ = client("umount", ["--lazy".as_ref(), self.file.as_os_str()]);
    }
}

#[test]
fn a_start_says_what_it_waits_for_and_obeys_signals() {
    let array = Array5::create();
    array.hang();
    for options in [&[][..], &["--degraded"]] {
        let (command, mut log) = array.command(options);
        let running = Running::start(command);
        let waiting = log.find(|line| line.contains("waiting for")).unwrap();
        assert!(waiting.contains(array.file.to_str().unwrap()), "{waiting}");
        running.signal(Signal::TERM);
        let _ = running.finish(CLIENT_TIME_MAX).success();
    }
}

#[test]
fn a_degraded_start_goes_on_without_a_member_that_hangs() {
    let array = Array5::create();
    let server = Server::start(&array.array);
    let image = Random::new(3).bytes(array.array.expected_size());
    write_export(server.uri(), &image);
    let _ = server.stop();
    array.hang();
    let (command, mut log) = array.command(&["--degraded", "--write-deadline", "3s"]);
    let server = Server::spawn(command, array.array.socket());
    let server = server.unwrap_or_else(|output| panic!("it serves: {}", output.stderr));
    let hung = log.find(|line| line.contains("did not")).unwrap();
    assert!(hung.contains(array.file.to_str().unwrap()), "{hung}");
    assert_eq!(status(&array.array)["health"]["missing"], serde_json::json!([1]));
    assert_same(&read_export(server.uri()), &image, "without the member that hangs");
    let mut client = server.connect();
    client.write(0, &image[4096..8192]);
    client.flush();
    client.disconnect();
    let _ = server.stop();
}
