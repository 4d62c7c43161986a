//! What a server says of members that fill up, hang and fail: on a small tmpfs, and behind FUSE.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use uraid_tests::array::Array;
use uraid_tests::binary::command;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::{Client, Command};
use uraid_tests::process::Process;
use uraid_tests::run::{CLIENT_TIME_MAX, client};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

use super::fuse::Fuse;
use super::logged;
use crate::control::scrub::Events;
use crate::control::{PATIENCE, ask, metric, status, until};

const MEMBER_BYTES: usize = 6 << 20;

/// Of four members without parity.
const HALF_STRIPE: usize = 128 << 10;

/// A member's file once more, behind FUSE: it hangs and fails when it is told to.
pub(super) struct Failing {
    fuse: Fuse,
    fails_reads: PathBuf,
    fails_writes: PathBuf,
}

impl Failing {
    pub(super) fn on(array: &Array, slot: usize) -> Self {
        let path = |what: &str| array.path(&format!("{what}{slot}"));
        let (file, fails_reads, fails_writes) = (path("fuse"), path("fails-reads"), path("fails-writes"));
        let set = |name: &str, path: &Path| OsString::from(format!("{name}={}", path.display()));
        let mut arguments =
            ["[", "nbdkit", "--exit-with-parent", "--filter=error", "file"].map(OsString::from).to_vec();
        arguments.push(set("file", &array.members()[slot]));
        arguments.extend(["error=EIO", "error-pread-rate=100%", "error-pwrite-rate=100%"].map(OsString::from));
        arguments.push(set("error-pread-file", &fails_reads));
        arguments.push(set("error-pwrite-file", &fails_writes));
        arguments.push("]".into());
        Self { fuse: Fuse::mount(file, arguments), fails_reads, fails_writes }
    }

    fn hang(&self, is_on: bool) {
        self.fuse.hang(is_on);
    }

    fn fail_reads(&self, is_on: bool) {
        switch(&self.fails_reads, is_on);
    }

    /// The file, behind FUSE.
    pub(super) fn file(&self) -> &Path {
        self.fuse.file()
    }

    pub(super) fn fail_writes(&self, is_on: bool) {
        switch(&self.fails_writes, is_on);
    }
}

fn switch(trigger: &Path, is_on: bool) {
    if is_on {
        fs::write(trigger, "").unwrap();
    } else {
        fs::remove_file(trigger).unwrap();
    }
}

/// A file system that can be filled up.
pub(super) struct Tmpfs {
    pub(super) mount_point: PathBuf,
    /// Where that is; it goes last.
    _place: TempDir,
}

impl Tmpfs {
    pub(super) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let mount_point = place.path().join("small");
        fs::create_dir(&mount_point).unwrap();
        let _ = client("mount", ["-t", "tmpfs", "-o", "size=64m", "none", mount_point.to_str().unwrap()]).success();
        Self { mount_point, _place: place }
    }

    /// Leaves no room.
    pub(super) fn fill(&self) {
        let mut filler = fs::File::create(self.mount_point.join("filler")).unwrap();
        let full = std::io::copy(&mut std::io::repeat(7), &mut filler).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    /// Makes room again.
    pub(super) fn make_room(&self) {
        fs::remove_file(self.mount_point.join("filler")).unwrap();
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = client("umount", [Path::new("--lazy"), &self.mount_point]);
    }
}

/// An array whose members have no room yet for what is written.
fn on_small_tmpfs(shape: &Shape) -> (Tmpfs, Array) {
    let tmpfs = Tmpfs::new();
    let array = Array::planned_in(shape, &tmpfs.mount_point);
    let _ = array.run_create(MEMBER_BYTES, &["--sparse", "--force"]).success();
    (tmpfs, array)
}

/// An array full of random bytes that is served from its members' files, some of them behind FUSE, and what it holds.
fn served(
    shape: &Shape,
    behind: &[usize],
    absent: &[usize],
    options: &[&str],
) -> (Array, Server, Events, Vec<Failing>, Vec<u8>) {
    served_sized(shape, MEMBER_BYTES, behind, absent, options)
}

/// The same with members of another size.
fn served_sized(
    shape: &Shape,
    member_bytes: usize,
    behind: &[usize],
    absent: &[usize],
    options: &[&str],
) -> (Array, Server, Events, Vec<Failing>, Vec<u8>) {
    let array = Array::create_sized(shape, member_bytes);
    let server = Server::start(&array);
    let image = Random::new(7).bytes(array.expected_size());
    write_export(server.uri(), &image);
    let _ = server.stop();
    let fuses: Vec<Failing> = behind.iter().map(|&slot| Failing::on(&array, slot)).collect();
    let mut members = array.members().to_vec();
    behind.iter().zip(&fuses).for_each(|(&slot, failing)| failing.fuse.file().clone_into(&mut members[slot]));
    let members: Vec<_> = (0..).zip(members).filter(|(slot, _)| !absent.contains(slot)).map(|(_, path)| path).collect();
    let (events, hook) = Events::new(&array);
    let all = [&["--on-event", hook.to_str().unwrap(), "--metrics", "0", "--cache", "none"], options].concat();
    let server = Server::start_members(&array, &members, &all);
    let _ = events.until("started");
    (array, server, events, fuses, image)
}

pub(super) fn state(status: &Value) -> &str {
    status["health"]["state"].as_str().unwrap()
}

/// The members in this trouble, as the array's health has it, which is what each member has.
#[track_caller]
pub(super) fn in_trouble(status: &Value, trouble: &str) -> Vec<u64> {
    let slots = |list: &Value| -> Vec<u64> {
        let all = list.as_array().unwrap().iter();
        all.filter(|one| one["trouble"] == trouble).map(|one| one["slot"].as_u64().unwrap()).collect()
    };
    let of_array = slots(&status["health"]["troubles"]);
    let has = |member: &&Value| member["troubles"].as_array().unwrap().iter().any(|name| name == trouble);
    let members = status["members"].as_array().unwrap().iter().filter(has);
    assert_eq!(members.map(|member| member["slot"].as_u64().unwrap()).collect::<Vec<_>>(), of_array, "{status:#}");
    of_array
}

/// A client that is asked for something and waits for its reply on a thread of its own.
fn ask_for(mut client: Client, command: Command, offset: u64, length: u32, data: Vec<u8>) -> Receiver<u32> {
    let (sender, reply) = channel();
    std::thread::spawn(move || sender.send(client.call(command, offset, length, &data).error));
    reply
}

#[test]
fn clients_that_wait_for_room_are_seen_and_a_stop_does_not_lose_what_they_wrote() {
    let (tmpfs, array) = on_small_tmpfs(&shape::raid0_of_4());
    let (events, hook) = Events::new(&array);
    let server = Server::start_members(
        &array,
        array.members(),
        &["--on-event", hook.to_str().unwrap(), "--metrics", "0", "--cache-size", "64M"],
    );
    let address = server.line_after("metrics at http://");
    assert_eq!(events.until("started"), [""; 0]);
    tmpfs.fill();
    // It fits the cache, and not the file system.
    let image = Random::new(3).bytes(array.expected_size());
    let mut client = server.connect();
    // Whole stripes would be written through.
    for (number, part) in image.chunks(HALF_STRIPE).enumerate() {
        client.write(number * HALF_STRIPE, part);
    }
    let flush = ask_for(server.connect(), Command::Flush, 0, 0, Vec::new());
    let now =
        until(&array, "nobody waits", |now| state(now) == "stalled" && in_trouble(now, "no-room") == [0, 1, 2, 3]);
    assert_eq!(events.until("stalled").last().unwrap(), "member-no-room");
    let screen = ask(&array, &["status"]).success().text();
    let path = array.members()[0].to_str().unwrap();
    assert!(screen.contains(&format!("stalled: waiting for room on {path}")), "{screen}");
    assert!(now["members"][0]["troubles"] == json!(["no-room"]), "{now:#}");
    assert_eq!(metric(&address, "uraid_array_health{state=\"stalled\"}").as_deref(), Some("1"));
    assert_eq!(metric(&address, "uraid_member_trouble{member=\"1\",trouble=\"no-room\"}").as_deref(), Some("1"));
    let refusal = ask(&array, &["stop"]).code_is(1).stderr;
    assert!(refusal.contains("only in memory") && refusal.contains("--force"), "{refusal}");
    assert!(flush.try_recv().is_err(), "it still waits");
    tmpfs.make_room();
    assert_eq!(flush.recv_timeout(PATIENCE).unwrap(), 0);
    let _ = events.until("recovered");
    assert_eq!(state(&status(&array)), "whole");
    let _ = ask(&array, &["stop"]).success();
    let _ = server.end().success();
    let server = Server::start(&array);
    assert_same(&read_export(server.uri()), &image, "after there was room");
    let _ = server.stop();
}

/// A stop that has to wait for room says so, and the array is stopped when there was some.
#[test]
fn a_stop_that_waits_for_room_says_what_it_waits_for() {
    let (tmpfs, array) = on_small_tmpfs(&shape::raid0_of_4());
    let (events, hook) = Events::new(&array);
    let (served, mut log) = logged(&array, &["--on-event", hook.to_str().unwrap(), "--cache-size", "64M"]);
    let server = Server::spawn(served, array.socket()).unwrap_or_else(|output| panic!("{}", output.stderr));
    tmpfs.fill();
    let data = Random::new(3).bytes(HALF_STRIPE);
    server.connect().write(0, &data);
    let _ = until(&array, "nobody waits", |now| state(now) == "stalled");
    let mut command = command();
    command.args(["stop", "--force", "--socket"]).arg(server.socket());
    let mut stop = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let _ = BufReader::new(stop.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let path = array.members()[0].to_str().unwrap();
    for part in
        ["stopping for ", " to be written", "waiting for room on ", path, "`uraid stop --force` waits no longer"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The server says it by a clock of its own.
    let logged = log.find(|line| line.contains("stopping waits for ")).expect("the server says so, too");
    assert!(logged.contains(path), "{logged}");
    assert!(stop.try_wait().unwrap().is_none(), "it still waits");
    tmpfs.make_room();
    assert!(stop.wait().unwrap().success());
    let _ = events.until("stopped");
    let _ = server.end().success();
    let server = Server::start(&array);
    assert_same(&read_export(server.uri())[..HALF_STRIPE], &data, "after there was room");
    let _ = server.stop();
}

/// A stop that nobody insists on ends, too, after half a minute in which nothing moves.
#[test]
fn a_stop_on_a_full_file_system_does_not_wait_for_ever() {
    let (tmpfs, array) = on_small_tmpfs(&shape::raid0_of_4());
    let server = Server::start_members(&array, array.members(), &["--cache-size", "64M", "--write-deadline", "1s"]);
    tmpfs.fill();
    server.connect().write(0, &Random::new(3).bytes(HALF_STRIPE));
    let _ = until(&array, "nobody waits", |now| state(now) == "stalled");
    server.signal(Signal::TERM);
    let said = server.end_within(CLIENT_TIME_MAX).code_is(1).stderr;
    for part in ["gave up waiting for ", "which has no room", "that clients have written is lost"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    tmpfs.make_room();
    let _ = Server::start(&array).stop();
}

/// A stop that is insisted on ends although there never is room. It says what is lost: nothing that was flushed.
#[test]
fn a_stop_by_force_on_a_full_file_system_loses_only_what_was_not_flushed() {
    let (tmpfs, array) = on_small_tmpfs(&shape::raid0_of_4());
    let server = Server::start_members(&array, array.members(), &["--cache-size", "64M"]);
    let data = Random::new(3).bytes(2 * HALF_STRIPE);
    let (flushed, cached) = data.split_at(HALF_STRIPE);
    let mut client = server.connect();
    client.write(0, flushed);
    client.flush();
    tmpfs.fill();
    client.write(4 * HALF_STRIPE, cached);
    client.disconnect();
    let _ = until(&array, "nobody waits", |now| state(now) == "stalled");
    let mut command = command();
    command.args(["stop", "--force", "--socket"]).arg(server.socket());
    let first = Process::start(command);
    let _ = until(&array, "it does not stop", |now| !now["stopping"].is_null());
    let second = ask(&array, &["stop", "--force"]);
    let path = array.members()[0].to_str().unwrap();
    for stop in [first.finish(CLIENT_TIME_MAX), second] {
        let said = stop.code_is(1).stderr;
        let lost = "what was not flushed of 128 KiB that clients have written is lost";
        assert!(said.contains("gave up waiting for ") && said.contains("which has no room"), "{said}");
        assert!(said.contains(path) && said.contains(lost), "{said}");
    }
    let _ = server.end().code_is(1);
    tmpfs.make_room();
    let server = Server::start(&array);
    assert_same(&read_export(server.uri())[..HALF_STRIPE], flushed, "what was flushed");
    let _ = server.stop();
}

/// What an array did not finish is finished when there is room, and no member is given up for want of it.
#[test]
fn a_start_waits_for_room() {
    let (tmpfs, array) = on_small_tmpfs(&shape::raid5_of_3());
    // The log has the content of all that is written, whole parity stripes or not.
    let server = Server::start_members(&array, array.members(), &["--cache", "none", "--full-stripe-log", "content"]);
    let image = Random::new(6).bytes(HALF_STRIPE - 512);
    server.connect().write(0, &image);
    server.kill();
    // What is to be written again has no room any more.
    for (path, member) in array.members().iter().zip(array.facts()) {
        let file = fs::File::options().write(true).open(path).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, punch, member.data_offset as u64, (MEMBER_BYTES - member.data_offset) as u64 / 2).unwrap();
    }
    tmpfs.fill();
    for options in [&["--degraded", "--write-deadline", "1s"][..], &[]] {
        let (command, mut log) = logged(&array, options);
        let starting = Process::start(command);
        // That is after the deadline.
        let waiting = log.find(|line| line.contains("waiting for ")).unwrap();
        assert!(waiting.contains(tmpfs.mount_point.to_str().unwrap()), "{waiting}");
        starting.signal(Signal::TERM);
        let _ = starting.finish(CLIENT_TIME_MAX).code_is(128 + Signal::TERM.as_raw());
    }
    let (command, mut log) = logged(&array, &[]);
    let starting = std::thread::spawn({
        let socket = array.socket();
        move || Server::spawn(command, socket)
    });
    let _ = log.find(|line| line.contains("waiting for room")).unwrap();
    tmpfs.make_room();
    let server = starting.join().unwrap().unwrap_or_else(|output| panic!("it serves: {}", output.stderr));
    assert_eq!(state(&status(&array)), "whole");
    assert_same(&server.connect().read(0, image.len()), &image, "after there was room");
    let _ = server.stop();
}

#[test]
fn a_member_that_is_needed_and_hangs_is_seen_until_it_answers() {
    let degraded = (shape::raid5_of_3(), &[0][..]);
    for ((shape, absent), threads) in [((shape::raid0_of_4(), &[][..]), "0"), (degraded.clone(), "0"), (degraded, "2")]
    {
        let before = if absent.is_empty() { "whole" } else { "degraded" };
        let options: &[&str] = &["--connection-threads", threads, "--read-deadline", "200ms"];
        let options = if absent.is_empty() { options.to_vec() } else { [options, &["--degraded"]].concat() };
        let (array, server, events, fuses, image) = served(&shape, &[1], absent, &options);
        let address = server.line_after("metrics at http://");
        assert_eq!(state(&status(&array)), before);
        fuses[0].hang(true);
        let length = u32::try_from(image.len()).unwrap();
        let read = ask_for(server.connect(), Command::Read, 0, length, Vec::new());
        let now = until(&array, "nobody stalls", |now| state(now) == "stalled");
        assert_eq!(in_trouble(&now, "stalled"), [1], "{now:#}");
        assert!(now["health"]["troubles"][0]["waits_ms"].as_u64().unwrap() >= 200, "{now:#}");
        let told = events.until("stalled");
        assert_eq!(told.last().unwrap(), "member-stalled", "{told:?}");
        let screen = ask(&array, &["status"]).success().text();
        assert!(screen.contains("stalled: member 1 (") && screen.contains("does not answer for "), "{screen}");
        assert_eq!(metric(&address, "uraid_member_trouble{member=\"1\",trouble=\"stalled\"}").as_deref(), Some("1"));
        fuses[0].hang(false);
        assert_eq!(read.recv_timeout(PATIENCE).unwrap(), 0);
        let _ = until(&array, "it has answered", |now| state(now) == before);
        let _ = server.stop();
    }
}

#[test]
fn members_whose_reads_all_fail_are_seen() {
    let (array, server, events, fuses, image) = served(&shape::raid5_of_3(), &[0, 1], &[], &[]);
    let address = server.line_after("metrics at http://");
    fuses.iter().for_each(|fuse| fuse.fail_reads(true));
    let length = u32::try_from(image.len()).unwrap();
    let read = ask_for(server.connect(), Command::Read, 0, length, Vec::new());
    assert_ne!(read.recv_timeout(PATIENCE).unwrap(), 0, "nobody has it");
    let now = status(&array);
    assert_eq!((state(&now), &now["health"]["survives"]), ("failing", &0.into()), "{now:#}");
    assert_eq!(in_trouble(&now, "failing"), [0, 1], "{now:#}");
    let told = events.until("failing");
    assert!(told.contains(&"member-failing".to_owned()), "{told:?}");
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains("failing: members 0 (") && screen.contains("replace them"), "{screen}");
    assert_eq!(metric(&address, "uraid_array_health{state=\"failing\"}").as_deref(), Some("1"));
    let _ = server.stop();
}

/// All threads know whose failure it was, and a client that goes on asking does not fill the log.
#[test]
fn a_frozen_array_names_the_members_that_froze_it() {
    for threads in ["0", "2"] {
        let (array, server, events, fuses, _) =
            served(&shape::raid5_of_3(), &[1, 2], &[], &["--connection-threads", threads]);
        let address = server.line_after("metrics at http://");
        fuses.iter().for_each(|fuse| fuse.fail_writes(true));
        let mut client = server.connect();
        let data = vec![7; 1 << 20];
        // The first may be replied to before the second member has failed.
        while client.call(Command::Write, 0, 1 << 20, &data).error == 0 {}
        let now = until(&array, "it is not frozen", |now| state(now) == "frozen");
        let mut to_look_at = in_trouble(&now, "failed");
        assert!(!to_look_at.is_empty(), "{now:#}");
        to_look_at.extend(now["health"]["missing"].as_array().unwrap().iter().map(|slot| slot.as_u64().unwrap()));
        to_look_at.sort_unstable();
        assert_eq!(to_look_at, [1, 2], "{now:#}");
        let _ = events.until("frozen");
        let screen = ask(&array, &["status"]).success().text();
        assert!(screen.contains("frozen by member"), "{screen}");
        assert_eq!(screen.matches(" active ").count(), 1, "{screen}");
        assert_eq!(metric(&address, "uraid_array_health{state=\"frozen\"}").as_deref(), Some("1"));
        let asked = 200;
        for _ in 0..asked {
            assert_ne!(client.call(Command::Read, 0, 4096, &[]).error, 0);
        }
        fuses.iter().for_each(|fuse| fuse.fail_writes(false));
        let _ = ask(&array, &["stop"]);
        let log = server.end().stderr;
        let failed: Vec<&str> = log.lines().filter(|line| line.contains("a request failed")).collect();
        let more = |line: &&str| line.split("and ").nth(1)?.split(' ').next()?.parse::<usize>().ok();
        let summed: usize = failed.iter().filter_map(more).sum();
        let told = failed.iter().filter(|line| more(line).is_none()).count();
        assert!(told + summed > asked, "all are counted: {log}");
        assert!(summed > 0 && told < asked, "{told} lines: {log}");
        assert!(!log.contains("Some(") && !log.contains("MemberIndex"), "{log}");
    }
}

/// Nobody has what is to be rebuilt, and it is more than a list of bad blocks has room for: who waits is told so, and
/// it goes on when it can.
#[test]
fn a_rebuild_that_misses_more_than_can_be_listed_says_where() {
    let shape = shape::raid5_of_3();
    let (array, server, events, fuses, image) = served_sized(&shape, 72 << 20, &[1], &[], &["--max-errors", "off"]);
    let address = server.line_after("metrics at http://");
    let _ = ask(&array, &["fail", "2"]).success();
    fuses[0].fail_reads(true);
    let _ = ask(&array, &["add", "--force", array.members()[2].to_str().unwrap()]).success();
    let ended = ask(&array, &["wait"]).code_is(1).stderr;
    let now = status(&array);
    let held = &now["health"]["held_up"][0];
    let stripe = held["stripe"].as_u64().unwrap();
    assert_eq!(now["rebuild"]["stuck_stripe"], stripe);
    // Its list has room for 16376 blocks, and a chunk is one; several stripes are rebuilt at the same time.
    assert!(held["work"] == "rebuild" && (16000..=16376).contains(&stripe), "{now:#}");
    assert_eq!(held["unreadable"][0]["slot"], 1);
    let [start, end] = [stripe, stripe + 1].map(|stripe| stripe * 2 * array.shape.chunk_bytes() as u64);
    assert_eq!(held["stripe_blocks"], json!([start / 512, end / 512]));
    for part in [
        &format!("rebuilding member 2 is held up at parity stripe {stripe}, because the list of bad blocks is full"),
        &format!("continues after a single write of all of bytes {start} to {end}"),
        "of the array are lost, bytes ",
    ] {
        assert!(ended.contains(part), "{part}: {ended}");
    }
    let told = events.until("rebuild-stuck");
    assert!(told.contains(&"rebuild-started".to_owned()) && told.contains(&"content-lost".to_owned()), "{told:?}");
    let labels = format!("work=\"rebuild\",stripe=\"{stripe}\",member=\"1\",start=\"{start}\",end=\"{end}\"");
    assert_eq!(metric(&address, &format!("uraid_rebuild_stuck{{{labels}}}")).as_deref(), Some("1"));
    fuses[0].fail_reads(false);
    // Whoever does what that says, for this stripe and those after it, need not wait for the next try.
    write_export(server.uri(), &image);
    assert!(ask(&array, &["wait"]).success().text().starts_with("whole"));
    let _ = events.until("content-restored");
    let _ = events.until("recovered");
    assert_same(&read_export(server.uri()), &image, "rebuilt");
    let _ = server.stop();
}

/// What was not read for a while is computed once more by a scrub.
#[test]
fn a_scrub_restores_what_can_be_read_after_all() {
    let options = ["--max-errors", "off"];
    let (array, server, events, fuses, image) = served(&shape::raid5_of_3(), &[1], &[], &options);
    let _ = ask(&array, &["fail", "2"]).success();
    fuses[0].fail_reads(true);
    let _ = ask(&array, &["add", "--force", array.members()[2].to_str().unwrap()]).success();
    let ended = ask(&array, &["wait"]).code_is(1).stderr;
    assert!(ended.contains(" of the array are lost, bytes 4096 to 12288, 16384 to "), "{ended}");
    let _ = events.until("content-lost");
    fuses[0].fail_reads(false);
    let _ = ask(&array, &["scrub", "start", "--repair", "--wait"]);
    let _ = events.until("content-restored");
    assert!(ask(&array, &["wait"]).success().text().starts_with("whole"));
    assert_same(&read_export(server.uri()), &image, "restored");
    let _ = server.stop();
}

/// A copy goes on past what nobody has, and writes restore it.
#[test]
fn a_copy_that_meets_what_can_not_be_read_says_what_is_lost() {
    let (array, server, events, fuses, image) = served(&shape::raid0_of_4(), &[1], &[], &[]);
    fuses[0].fail_reads(true);
    let new = array.path("new");
    let new = new.to_str().unwrap();
    let _ = ask(&array, &["replace", "--size", "6M", "1", new]).success();
    let ended = ask(&array, &["wait"]).code_is(1).stderr;
    let chunk = array.shape.chunk_bytes();
    assert!(ended.contains(&format!(" of the array are lost, bytes {chunk} to {}, ", 2 * chunk)), "{ended}");
    let _ = events.until("content-lost");
    let _ = events.until("replace-finished");
    write_export(server.uri(), &image);
    let _ = events.until("content-restored");
    assert!(ask(&array, &["wait"]).success().text().starts_with("whole"));
    assert_same(&read_export(server.uri()), &image, "copied, and written");
    let _ = server.stop();
}
