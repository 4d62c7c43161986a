//! A member that hangs, for real: a file on a FUSE file system whose server is stopped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use serde_json::{Value, json};
use uraid_tests::array::Array;
use uraid_tests::binary::{command, uraid};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::Client;
use uraid_tests::process::Process;
use uraid_tests::run::CLIENT_TIME_MAX;
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::super::control::scrub::Events;
use super::super::control::{ask, status, until};
use super::fuse::{Before, Fuse};
use super::{lines_of, logged};

const MEMBER_BYTES: usize = 8 << 20;

/// A RAID 5 of which one member is behind FUSE.
struct Array5 {
    array: Array,
    fuse: Fuse,
    /// Where it is a pipe, flushes wait for it.
    pipe: PathBuf,
}

impl Array5 {
    fn create() -> Self {
        Self::of(MEMBER_BYTES)
    }

    /// Of members that use so much.
    fn of(used_bytes: usize) -> Self {
        let array = Array::planned(&shape::raid5_of_3());
        let (disk, pipe) = (array.path("disk"), array.path("pipe"));
        File::create(&disk).unwrap().set_len(MEMBER_BYTES as u64).unwrap();
        let flush = format!("if [ -p {0} ]; then cat {0}; fi; ", pipe.display());
        let fuse = Fuse::on(array.members()[1].clone(), &disk, MEMBER_BYTES, &Before { flush, ..Before::default() });
        let _ = array.run_create(used_bytes, &[]).success();
        Self { array, fuse, pipe }
    }

    /// Served, and with content, when it hangs.
    fn hangs_written(&self, options: &[&str]) -> (Server, Client, Vec<u8>) {
        let server = Server::start_members(&self.array, self.array.members(), options);
        let image = Random::new(4).bytes(1 << 20);
        let mut client = server.connect();
        client.write(0, &image);
        client.flush();
        self.hang();
        (server, client, image)
    }

    /// Nothing is answered any more.
    fn hang(&self) {
        self.fuse.hang(true);
    }

    /// The next flush has no end.
    fn hang_flushes(&self) {
        mkfifoat(CWD, &self.pipe, Mode::RUSR | Mode::WUSR).unwrap();
    }

    /// Flushes end again.
    fn end_flushes(&self) {
        let pipe = File::options().read(true).write(true).open(&self.pipe).unwrap();
        fs::remove_file(&self.pipe).unwrap();
        // Whoever reads it finds its end.
        drop(pipe);
    }

    /// What hangs fails.
    fn fail(&mut self) {
        self.fuse.kill();
        if self.pipe.exists() {
            // Whoever reads it finds its end.
            drop(File::options().read(true).write(true).open(&self.pipe).unwrap());
        }
    }
}

impl Drop for Array5 {
    fn drop(&mut self) {
        self.fail();
    }
}

#[test]
fn a_start_says_what_it_waits_for_and_obeys_signals() {
    let array = Array5::create();
    array.hang();
    for options in [&[][..], &["--degraded"]] {
        let (command, mut log) = logged(&array.array, options);
        let running = Process::start(command);
        let waiting = log.find(|line| line.contains("waiting for")).unwrap();
        assert!(waiting.contains(array.fuse.file().to_str().unwrap()), "{waiting}");
        running.signal(Signal::TERM);
        let _ = running.finish(CLIENT_TIME_MAX).code_is(128 + Signal::TERM.as_raw());
    }
}

#[test]
fn whoever_creates_or_wipes_is_told_which_member_hangs() {
    let mut array = Array5::create();
    array.hang();
    let hung = array.fuse.file().to_owned();
    let create = ["create", "--force", "--level", "5"].map(OsString::from);
    let create = create.into_iter().chain(array.array.members().iter().map(OsString::from)).collect();
    let all = [create, vec!["wipe".into(), hung.clone().into()]] as [Vec<OsString>; 2];
    let running = all.map(|words| is_told_who_hangs(words, &hung));
    // Until then the kernel keeps the remains of processes.
    array.fail();
    for mut child in running {
        let _ = child.wait().unwrap();
    }
}

/// Also when it hangs only at the end.
#[test]
fn whoever_grows_or_reshapes_a_stopped_array_is_told_which_member_hangs() {
    for (before, words) in [
        (None, &["grow"][..]),
        (None, &["reshape", "--begin", "--add", "new"]),
        (Some(["reshape", "--begin", "--add", "new"]), &["reshape", "--add", "new"]),
    ] {
        let mut array = Array5::of(MEMBER_BYTES / 2);
        let server = Server::start(&array.array);
        let _ = ask(&array.array, &["wait"]).success();
        let _ = server.stop();
        let (members, new) = (array.array.members().to_vec(), array.array.path("new"));
        File::create(&new).unwrap();
        for path in [&members[0], &members[2], &new] {
            File::options().write(true).open(path).unwrap().set_len(MEMBER_BYTES as u64).unwrap();
        }
        let all = |words: &[&str]| -> Vec<OsString> {
            let path = |word: &&str| if *word == "new" { new.clone().into() } else { OsString::from(word) };
            words.iter().map(path).chain(members.iter().map(OsString::from)).collect()
        };
        if let Some(before) = before {
            let _ = uraid(all(&before)).success();
        }
        array.hang_flushes();
        let mut child = is_told_who_hangs(all(words), array.fuse.file());
        // Until then the kernel keeps the remains of the process.
        array.fail();
        let _ = child.wait().unwrap();
    }
}

/// A command that says that it waits for a file, and was killed then.
#[track_caller]
fn is_told_who_hangs(words: Vec<OsString>, hung: &Path) -> Child {
    let mut command = command();
    let mut child = command.args(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let waiting = lines_of(child.stderr.take().unwrap()).find(|line| line.contains("waiting for "));
    child.kill().unwrap();
    let waiting = waiting.expect("it says for whom it waits");
    assert!(waiting.contains(hung.to_str().unwrap()), "{waiting}");
    child
}

#[test]
fn a_degraded_start_goes_on_without_a_member_that_hangs() {
    goes_on_without(Array5::hang, "did not");
}

#[test]
fn a_degraded_start_goes_on_without_a_member_whose_flush_hangs() {
    goes_on_without(Array5::hang_flushes, "did not flush within 3 s");
}

/// The kernel asks a file system in user space for the file's size once more, before it reads what was written.
#[test]
fn a_member_that_hangs_when_it_was_written_keeps_nobody() {
    let mut array = Array5::create();
    let options = ["--cache", "none", "--read-deadline", "500ms", "--write-deadline", "3s"];
    let (server, mut client, mut image) = array.hangs_written(&options);
    let chunk = array.array.shape.chunk_bytes();
    for at in (0..6).map(|number| number * chunk) {
        image[at..at + 4096].fill(7);
        client.write(at, &[7; 4096]);
    }
    client.flush();
    assert_eq!(status(&array.array)["health"]["missing"], json!([1]));
    assert_same(&client.read(0, image.len()), &image, "without the member that hangs");
    client.disconnect();
    array.fail();
    let _ = server.stop();
}

/// Small writes that are flushed go to the other members' journals meanwhile, and the one that hangs is not given up.
#[test]
fn a_member_that_hangs_for_a_while_delays_no_flush_for_as_long() {
    let mut array = Array5::create();
    // Longer than the test may take.
    let options = ["--read-deadline", "500ms", "--write-deadline", "10m"];
    let (server, mut client, mut image) = array.hangs_written(&options);
    let chunk = array.array.shape.chunk_bytes();
    // None of them makes a stripe whole.
    for (number, at) in (0..6).map(|number| (number, usize::from(number) * 2 * chunk)) {
        image[at..at + 4096].fill(number + 7);
        client.write(at, &[number + 7; 4096]);
        client.flush();
    }
    let health = &status(&array.array)["health"];
    assert_eq!(health["missing"], json!([]), "{health}");
    array.fuse.hang(false);
    assert_same(&client.read(0, image.len()), &image, "when the member has answered");
    client.disconnect();
    let _ = server.stop();
    array.fail();
}

/// Everybody who hears of it is told which member it is.
#[test]
fn a_member_that_hangs_when_the_server_stops_is_named() {
    let mut array = Array5::create();
    let (events, hook) = Events::new(&array.array);
    let options = ["--write-deadline", "1s", "--on-event", hook.to_str().unwrap()];
    let server = Server::start_members(&array.array, array.array.members(), &options);
    let mut client = server.connect();
    client.write(0, &[7; 4096]);
    client.disconnect();
    array.hang_flushes();
    let path = array.fuse.file().to_str().unwrap().to_owned();
    let stopped = ask(&array.array, &["stop"]);
    let told = events.members_until("stopped", "member-failed");
    // Until then the kernel keeps the remains of the process.
    array.fail();
    let _ = server.end().success();
    let said = stopped.success().text();
    assert!(said.contains(&format!("member 1 ({path}) failed meanwhile")), "{said}");
    assert_eq!(told, [path]);
}

/// Whoever asks meanwhile is told for whom a stop waits, and can end that.
#[test]
fn a_stop_that_waits_for_a_member_that_hangs_answers_administrators() {
    for threads in ["0", "2"] {
        let mut array = Array5::create();
        // Longer than the test may take.
        let (served, mut log) = logged(&array.array, &["--write-deadline", "10m", "--connection-threads", threads]);
        let server = Server::spawn(served, array.array.socket()).unwrap_or_else(|output| panic!("{}", output.stderr));
        let mut client = server.connect();
        client.write(0, &[7; 4096]);
        client.disconnect();
        array.hang_flushes();
        let named = format!("waiting for member 1 ({}), which does not answer", array.fuse.file().display());
        let stop = |words: &[&str]| {
            let mut command = command();
            command.args(["stop", "--socket"]).arg(server.socket()).args(words);
            Process::start(command)
        };
        let first = stop(&[]);
        let waits = |now: &Value| format!("waiting for {}", now["stopping"]["waits_for"].as_str().unwrap_or_default());
        let now = until(&array.array, "nobody says what the stop waits for", |now| waits(now) == named);
        assert_eq!(now["requests"]["writes"], 1, "{now:#}");
        let shown = ask(&array.array, &["status"]).success().text();
        assert!(shown.contains("stopping for ") && shown.contains(&named), "{shown}");
        let refused = ask(&array.array, &["fail", "0"]).code_is(1).stderr;
        assert!(refused.contains("the server is stopping for ") && refused.contains(&named), "{refused}");
        server.signal(Signal::TERM);
        let said = log.find(|line| line.contains("stopping for ")).unwrap();
        assert!(said.contains(&named) && said.contains("`uraid stop --force` waits no longer: "), "{said}");
        let forced = ask(&array.array, &["stop", "--force"]).code_is(1).stderr;
        let gave_up = named.replace("waiting", "gave up waiting");
        assert!(forced.contains("could not be marked clean") && forced.contains(&gave_up), "{forced}");
        let first = first.finish(CLIENT_TIME_MAX).code_is(1).stderr;
        assert!(first.contains("could not be marked clean") && first.contains(&gave_up), "{first}");
        // Until then the kernel keeps the remains of the process.
        array.fail();
        let _ = server.end().code_is(1);
    }
}

/// Whoever waits for the array waits for that, too.
#[test]
fn a_spare_that_is_about_to_join_is_still_shown() {
    let array = Array5::create();
    let (disk, begun) = (array.array.path("spare.disk"), array.array.path("begun"));
    File::create(&disk).unwrap().set_len(MEMBER_BYTES as u64).unwrap();
    // When it has become a member, others are told of that, and one of them does not answer.
    let (pipe, begun) = (array.pipe.display(), begun.display());
    let write = format!("if ! [ -e {begun} ]; then touch {begun}; mkfifo -m 600 {pipe}; fi; ");
    let spare = Fuse::on(array.array.path("spare"), &disk, MEMBER_BYTES, &Before { write, ..Before::default() });
    let (events, hook) = Events::new(&array.array);
    let path = spare.file().to_str().unwrap();
    // Longer than the test may take.
    let options = ["--spare", path, "--write-deadline", "10m", "--on-event", hook.to_str().unwrap()];
    let server = Server::start_members(&array.array, array.array.members(), &options);
    let _ = ask(&array.array, &["fail", "0"]).success();
    let _ = events.until("spare-taken");
    let now = status(&array.array);
    assert_eq!((&now["health"]["missing"], &now["spares"][0]["path"]), (&json!([0]), &json!(path)), "{now:#}");
    assert_eq!(now["spares"][0]["problem"], json!(null), "{now:#}");
    let mut wait = command();
    wait.args(["wait", "--socket"]).arg(server.socket());
    let waiting = Process::start(wait);
    array.end_flushes();
    let _ = waiting.finish(CLIENT_TIME_MAX).success();
    assert_eq!(status(&array.array)["spares"], json!([]));
    let _ = server.stop();
}

#[test]
fn a_spare_that_hangs_keeps_nobody() {
    let array = Array::create(&shape::raid5_of_3());
    let disk = array.path("disk");
    File::create(&disk).unwrap().set_len(shape::MEMBER_BYTES as u64).unwrap();
    let fuse = Fuse::on(array.path("spare"), &disk, shape::MEMBER_BYTES, &Before::default());
    fuse.hang(true);
    let (events, hook) = Events::new(&array);
    let path = fuse.file().to_str().unwrap();
    // Longer than the start may take.
    let options = ["--spare", path, "--write-deadline", "10m", "--on-event", hook.to_str().unwrap()];
    let server = Server::start_members(&array, array.members(), &options);
    let image = Random::new(5).bytes(array.expected_size());
    write_export(server.uri(), &image);
    let problem = || status(&array)["spares"][0]["problem"].as_str().unwrap().to_owned();
    assert!(problem().contains("did not say what it holds"), "{}", problem());
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = events.until("degraded");
    // Members can be asked for meanwhile.
    let refusal = ask(&array, &["remove", "0"]).code_is(1).stderr;
    assert!(refusal.contains("fail it first"), "{refusal}");

    fuse.hang(false);
    let told = events.until("recovered");
    assert_eq!(told, ["spare-taken", "rebuild-started", "rebuild-finished"]);
    assert_eq!(status(&array)["members"][1]["path"], path);
    assert_same(&read_export(server.uri()), &image, "on the spare");
    let _ = server.stop();
}

fn goes_on_without(hang: fn(&Array5), told: &str) {
    let mut array = Array5::create();
    let server = Server::start(&array.array);
    let image = Random::new(3).bytes(array.array.expected_size());
    write_export(server.uri(), &image);
    let _ = server.stop();
    hang(&array);
    let (command, mut log) = logged(&array.array, &["--degraded", "--write-deadline", "3s"]);
    let server = Server::spawn(command, array.array.socket());
    let server = server.unwrap_or_else(|output| panic!("it serves: {}", output.stderr));
    let hung = log.find(|line| line.contains(told)).unwrap();
    assert!(hung.contains(array.fuse.file().to_str().unwrap()), "{hung}");
    assert_eq!(status(&array.array)["health"]["missing"], json!([1]));
    assert_same(&read_export(server.uri()), &image, "without the member that hangs");
    let mut client = server.connect();
    client.write(0, &image[4096..8192]);
    client.flush();
    client.disconnect();
    // Until then the kernel keeps the remains of a process that has handed it an operation.
    array.fail();
    let _ = server.stop();
}

/// It keeps others waiting for their turn until its deadline. Who leaves meanwhile does not get it.
#[test]
fn what_hangs_when_it_is_to_be_a_member_keeps_others_no_longer_than_its_deadline() {
    let (array, new) = (Array::create(&shape::raid1_of_3()), "new");
    let (mut fuse, hung) = hanging(&array);
    let server = Server::start_members(&array, array.members(), &["--write-deadline", "5s"]);
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = ask(&array, &["remove", "1"]).success();
    let waiting = asked(&array, &json!({ "command": "add", "path": hung }));
    drop(asked(&array, &json!({ "command": "fail", "member": "0" })));
    assert_not_ready(waiting);
    let _ = ask(&array, &["add", "--size", "16M", array.path(new).to_str().unwrap()]).success();
    let _ = ask(&array, &["wait"]).success();
    assert_eq!(status(&array)["health"]["missing"], json!([]), "nobody waited for member 0 to be failed");
    fuse.kill();
    let _ = server.stop();
}

#[test]
fn whatever_else_is_to_be_a_part_of_the_array_has_the_same_deadline() {
    let array = Array::planned(&shape::raid5_of_3());
    let logs = [array.path("log1"), array.path("log2")];
    let options = logs.iter().flat_map(|path| ["--log-device", path.to_str().unwrap()]).collect::<Vec<_>>();
    let _ = array.run_create(MEMBER_BYTES, &options).success();
    let (mut fuse, hung) = hanging(&array);
    let members = [array.members(), &logs[..]].concat();
    let server = Server::start_members(&array, &members, &["--write-deadline", "1s"]);
    for request in [
        json!({ "command": "add", "path": hung }),
        json!({ "command": "add", "path": hung, "log_device": true }),
        json!({ "command": "replace", "member": "2", "path": hung }),
        json!({ "command": "replace", "member": logs[0], "path": hung }),
        json!({ "command": "reshape-begin", "add": [hung] }),
    ] {
        assert_not_ready(asked(&array, &request));
    }
    let now = status(&array);
    assert_eq!((&now["spares"], &now["health"]["missing"]), (&json!([]), &json!([])), "{now:#}");
    // The turn is free.
    let _ = ask(&array, &["fail", "1"]).success();
    fuse.kill();
    let _ = server.stop();
}

/// A file that hangs, and is no part of the array.
fn hanging(array: &Array) -> (Fuse, PathBuf) {
    let (disk, hung) = (array.path("disk"), array.path("hung"));
    File::create(&disk).unwrap().set_len(2 * MEMBER_BYTES as u64).unwrap();
    File::create(&hung).unwrap();
    let fuse = Fuse::on(hung.clone(), &disk, 2 * MEMBER_BYTES, &Before::default());
    fuse.hang(true);
    (fuse, hung)
}

/// A control connection on which this was asked.
fn asked(array: &Array, request: &Value) -> UnixStream {
    let mut stream = UnixStream::connect(array.path("nbd.ctl")).unwrap();
    stream.set_read_timeout(Some(CLIENT_TIME_MAX)).unwrap();
    writeln!(stream, "{request}").unwrap();
    stream
}

#[track_caller]
fn assert_not_ready(asked: UnixStream) {
    let mut answer = String::new();
    BufReader::new(asked).read_line(&mut answer).unwrap();
    assert!(answer.contains("did not get ready within"), "{answer}");
}
