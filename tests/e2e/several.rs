//! Several arrays in one server: each by itself, on sockets of its own or on shared ones.

mod clients;
mod privileges;
mod reload;

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::Client;
use uraid_tests::process::{Output, Process};
use uraid_tests::run::run;
use uraid_tests::shape;

use crate::control::metric;

/// How long something may take that takes seconds; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arrays that one server is to serve, the directory of its sockets, and the service manager that hears of it.
struct Several {
    directory: TempDir,
    arrays: Vec<(&'static str, Array)>,
    manager: UnixDatagram,
}

impl Several {
    /// Arrays of these names: RAID 5, 1, RM2, and again.
    fn new(names: &[&'static str]) -> Self {
        let shapes = [shape::raid5_of_3(), shape::raid1_of_2(), shape::rm2_of_6()];
        let arrays = names.iter().zip(shapes.iter().cycle()).map(|(name, shape)| (*name, Array::create(shape)));
        let (directory, arrays) = (tempfile::tempdir().unwrap(), arrays.collect());
        let manager = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { directory, arrays, manager }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The shared socket.
    fn socket(&self) -> PathBuf {
        self.path("nbd.sock")
    }

    fn array(&self, name: &str) -> &Array {
        &self.arrays.iter().find(|(other, _)| *other == name).unwrap().1
    }

    /// The key of the shared socket.
    fn shared(&self) -> String {
        format!("socket = {:?}\n", self.socket())
    }

    /// An array's table, with `more` keys.
    fn table(&self, name: &str, more: &str) -> String {
        format!("[array.{name}]\nmembers = {:?}\n{more}\n", self.array(name).members())
    }

    /// All arrays on the shared socket, with `more` keys above.
    fn all(&self, more: &str) -> String {
        let tables: Vec<_> = self.arrays.iter().map(|(name, _)| self.table(name, "")).collect();
        self.shared() + more + &tables.concat()
    }

    /// Starts a server of a file with this text; it says when it is ready.
    #[track_caller]
    fn start(&self, text: &str) -> Process {
        let process = Process::start(self.command(text));
        let _ = self.until("READY=1");
        process
    }

    /// The same; also what it has printed until then.
    #[track_caller]
    fn start_and_read(&self, text: &str) -> (Process, Vec<String>) {
        let mut process = Process::start_with_open_stdout(self.command(text));
        let _ = self.until("READY=1");
        let mut lines = Vec::new();
        let mut printed = BufReader::new(process.take_stdout()).lines().map(Result::unwrap);
        // It has been printed by now.
        while lines.last().is_none_or(|line: &String| !line.starts_with("metrics at ")) {
            lines.push(printed.next().unwrap());
        }
        (process, lines)
    }

    /// The command that serves a file with this text.
    fn command(&self, text: &str) -> Command {
        let mut command = binary::command();
        command.args(["serve", "--config"]).arg(self.write(text));
        command.env("NOTIFY_SOCKET", self.path("notify")).env("URAID_RUNTIME_DIR", self.path("run"));
        command
    }

    fn write(&self, text: &str) -> PathBuf {
        let file = self.path("arrays.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    /// The messages to the service manager up to the one that is waited for.
    #[track_caller]
    fn until(&self, awaited: &str) -> Vec<String> {
        self.until_one(|message| message == awaited)
    }

    /// The messages to the service manager up to one that is waited for.
    #[track_caller]
    fn until_one(&self, is_awaited: impl Fn(&String) -> bool) -> Vec<String> {
        let (mut messages, mut buffer) = (Vec::new(), [0; 4096]);
        let deadline = Instant::now() + PATIENCE;
        while !messages.last().is_some_and(&is_awaited) {
            let length = self.manager.recv(&mut buffer);
            let length = length.unwrap_or_else(|error| panic!("not what was waited for: {messages:?}: {error}"));
            messages.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
            assert!(Instant::now() < deadline, "not what was waited for: {messages:?}");
        }
        messages
    }

    fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket().display())
    }

    /// A connection to an export of the shared socket.
    #[track_caller]
    fn client(&self, name: &str) -> Client {
        Client::of_export(&self.socket(), name).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Runs a command that finds the arrays by itself.
    #[track_caller]
    fn uraid(&self, words: &[&str]) -> Output {
        let mut command = binary::command();
        command.env("URAID_RUNTIME_DIR", self.path("run")).args(words).current_dir(self.directory.path());
        run(command)
    }

    #[track_caller]
    fn status(&self, name: &str) -> Value {
        self.uraid(&["status", "--json", "--socket", &format!("{name}.ctl")]).success().json()
    }

    fn random(&self, name: &str, seed: u64) -> Vec<u8> {
        Random::new(seed).bytes(self.array(name).expected_size())
    }

    /// The names of the exports that a client sees.
    fn listed(&self) -> Vec<String> {
        listed(&self.uri(""))
    }
}

/// The names of the exports that a client sees.
#[track_caller]
fn listed(uri: &str) -> Vec<String> {
    let listed = uraid_tests::run::client("nbdinfo", ["--list", "--json", uri]).success().json();
    listed["exports"].as_array().unwrap().iter().map(|export| export["export-name"].as_str().unwrap().into()).collect()
}

#[track_caller]
fn stop(process: Process) -> Output {
    process.signal(Signal::TERM);
    process.finish(PATIENCE)
}

#[test]
fn arrays_have_sockets_of_their_own() {
    let several = Several::new(&["one", "two"]);
    let sockets = ["one", "two"].map(|name| several.array(name).socket());
    let table = |name, socket: &PathBuf| several.table(name, &format!("socket = {socket:?}\nexport = 'E'"));
    let server = several.start(&(table("one", &sockets[0]) + &table("two", &sockets[1])));
    let images = ["one", "two"].map(|name| several.random(name, 1));
    let uris = sockets.each_ref().map(|socket| format!("nbd+unix:///?socket={}", socket.display()));
    for (uri, image) in uris.iter().zip(&images) {
        assert_eq!(listed(uri), ["E"]);
        write_export(uri, image);
    }
    for ((uri, image), socket) in uris.iter().zip(&images).zip(&sockets) {
        assert_same(&read_export(uri), image, uri);
        assert!(socket.with_extension("ctl").exists(), "the control socket is beside it");
    }
    let output = stop(server).success();
    for (name, uri) in ["one", "two"].iter().zip(&uris) {
        let line = format!("{name}: {}", uri.replace("///?", "///E?"));
        assert!(output.text().lines().any(|found| found == line), "{line} in {}", output.text());
    }
    for (name, image) in ["one", "two"].iter().zip(&images) {
        Content::read(several.array(name)).assert_holds(image, name);
    }
    assert!(sockets.iter().all(|socket| !socket.exists()), "the server leaves nothing behind");
}

#[test]
fn a_killed_server_has_lost_nothing_that_was_flushed() {
    let several = Several::new(&["one", "two"]);
    let text = several.all("");
    let mut server = several.start(&text);
    let images = ["one", "two"].map(|name| several.random(name, 2));
    for (name, image) in ["one", "two"].iter().zip(&images) {
        write_export(&several.uri(name), image);
    }
    let mut waiting = several.client("two");
    waiting.write(0, &[7; 512]);
    server.kill();
    let server = several.start(&text);
    assert_same(&read_export(&several.uri("one")), &images[0], "one");
    assert_same(&read_export(&several.uri("two"))[512..], &images[1][512..], "two");
    let _ = stop(server).success();
    Content::read(several.array("one")).assert_holds(&images[0], "one");
}

/// A missing member, and one that fails while the array is served, are of no concern to other arrays.
#[test]
fn an_array_that_fails_leaves_the_others() {
    let several = Several::new(&["bad", "good"]);
    several.array("bad").remove(&[0]);
    let server = several.start(&several.all("wait-for-members = '1s'\n"));
    assert_eq!(several.listed(), ["good"]);
    assert!(Client::of_export(&several.socket(), "bad").is_err());
    let image = several.random("good", 3);
    write_export(&several.uri("good"), &image);
    // It is tried again when the file is read.
    several.array("bad").restore(&[0]);
    server.signal(Signal::HUP);
    let _ = several.until("READY=1");
    assert_eq!(several.listed(), ["bad", "good"]);
    let _ = several.uraid(&["stop", "--array", "nobody"]).code_is(1);
    let _ = stop(server).success();
    Content::read(several.array("good")).assert_holds(&image, "good");

    several.array("bad").remove(&[0]);
    let server = several.start(&several.all("wait-for-members = '1s'\n"));
    let output = stop(server).code_is(1);
    assert!(output.stderr.contains("the array bad is not served: "), "{}", output.stderr);
    assert!(output.stderr.contains("not all arrays were served to a clean end: bad;"), "{}", output.stderr);
    assert!(!output.stderr.contains("good"), "{}", output.stderr);

    // Without any that can be opened there is no server.
    let text = several.shared() + "wait-for-members = '1s'\n" + &several.table("bad", "");
    let _ = run(several.command(&text)).code_is(1);
}

#[test]
fn one_array_is_stopped_and_the_others_go_on() {
    let several = Several::new(&["one", "two", "three"]);
    let server = several.start(&several.all(""));
    let mut clients = ["one", "three"].map(|name| several.client(name));
    let mut stopped = several.client("two");
    stopped.write(0, &[1; 512]);
    let _ = several.uraid(&["stop", "--socket", "two.ctl"]).success();
    assert!(!several.path("two.ctl").exists());
    assert_eq!(several.listed(), ["one", "three"]);
    let clean = several.array("two").examine();
    assert_eq!(clean["state"], "clean", "{clean:#}");
    for client in &mut clients {
        client.write(4096, &[2; 4096]);
        assert_eq!(client.read(4096, 4096), [2; 4096]);
    }
    server.signal(Signal::HUP);
    let _ = several.until("READY=1");
    assert_eq!(several.client("two").read(0, 512), [1; 512], "the file still has it");
    for name in ["one", "three", "two"] {
        let _ = several.uraid(&["stop", "--socket", &format!("{name}.ctl")]).success();
    }
    let _ = server.finish(PATIENCE).success();
}

#[test]
fn commands_find_each_array() {
    let several = Several::new(&["one", "two"]);
    let tables = several.table("one", "# Its own.\nmax-errors = 7 # so many") + &several.table("two", "");
    let server = several.start(&(several.shared() + "scrub-limit = '1M'\n" + &tables));
    let found: Value = several.uraid(&["list", "--json"]).success().json();
    let uris: Vec<_> = found.as_array().unwrap().iter().map(|array| array["uri"].as_str().unwrap()).collect();
    let mut expected = ["one", "two"].map(|name| several.uri(name));
    expected.sort();
    assert_eq!(uris.len(), 2, "{found:#}");
    assert!(expected.iter().all(|uri| uris.contains(&uri.as_str())), "{found:#}");
    let unclear = several.uraid(&["status"]).code_is(1);
    assert!(["one.ctl", "two.ctl", "--array"].iter().all(|word| unclear.stderr.contains(word)), "{}", unclear.stderr);
    let uuid = several.array("two").examine()["uuid"].as_str().unwrap().to_owned();
    let two = several.uraid(&["status", "--json", "--array", &uuid]).success().json();
    assert_eq!((&two["uri"], &two["config_array"]), (&several.uri("two").into(), &"two".into()), "{two:#}");
    assert_eq!(several.status("one")["limits"]["scrub_bytes_per_second"], 1 << 20, "as for all");

    let set = ["set", "--array", &uuid, "--scrub-limit", "2M", "--max-errors", "9", "--persist"];
    let kept = several.uraid(&set).success();
    assert!(kept.text().contains("arrays.toml, [array.two]"), "{}", kept.text());
    let now = std::fs::read_to_string(several.path("arrays.toml")).unwrap();
    let (before, after) = now.split_once("[array.two]").unwrap();
    assert!(
        before.contains("scrub-limit = '1M'\n") && before.contains("# Its own.\nmax-errors = 7 # so many"),
        "{now}"
    );
    assert!(after.contains("scrub-limit = \"2097152\"\n") && after.contains("max-errors = \"9\"\n"), "{now}");
    assert_eq!(several.status("one")["limits"]["scrub_bytes_per_second"], 1 << 20);
    let _ = several.uraid(&["wait", "--array", &uuid]).success();
    let _ = stop(server).success();
}

#[test]
fn metrics_say_which_array_they_are_of() {
    let several = Several::new(&["one", "two", "bad"]);
    several.array("bad").remove(&[0]);
    let (server, printed) = several.start_and_read(&several.all("metrics = '127.0.0.1:0'\nwait-for-members = '1s'\n"));
    let address = printed.last().unwrap().strip_prefix("metrics at http://").unwrap().to_owned();
    for (line, expected) in [
        ("uraid_array_served{array=\"one\"}", Some("1")),
        ("uraid_array_served{array=\"two\"}", Some("1")),
        ("uraid_array_served{array=\"bad\"}", Some("0")),
        ("uraid_array_members{array=\"one\"}", Some("3")),
        ("uraid_array_members{array=\"two\"}", Some("2")),
        ("uraid_array_members{array=\"bad\"}", None),
        ("uraid_member_present{array=\"two\",member=\"1\"}", Some("1")),
        ("# TYPE uraid_array_members ", Some("gauge")),
    ] {
        assert_eq!(metric(&address, line).as_deref(), expected, "{line}");
    }
    let _ = stop(server).code_is(1);
}

/// All members of an array fail while it is served, and others go on. It is not opened anew as if nothing were.
#[test]
fn an_array_that_freezes_leaves_the_others() {
    let several = Several::new(&["good", "frozen"]);
    let server = several.start(&several.all(""));
    let mut good = several.client("good");
    let mut frozen = several.client("frozen");
    frozen.write(0, &[1; 4096]);
    frozen.flush();
    for member in several.array("frozen").members() {
        std::fs::File::options().write(true).open(member).and_then(|file| file.set_len(64 << 10)).unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while several.status("frozen")["health"]["state"] != "frozen" {
        let _ = frozen.call(uraid_tests::nbd::Command::Write, 2 << 20, 4096, &[2; 4096]);
        let _ = frozen.call(uraid_tests::nbd::Command::Flush, 0, 0, &[]);
        assert!(Instant::now() < deadline, "it freezes");
    }
    good.write(0, &[3; 4096]);
    let changed = several.table("frozen", "connection-threads = 1");
    several.write(&(several.shared() + &several.table("good", "") + &changed));
    server.signal(Signal::HUP);
    let _ = several.until("READY=1");
    assert_eq!(several.listed(), ["good"]);
    good.write(4096, &[4; 4096]);
    assert_eq!(good.read(0, 8192), [[3; 4096], [4; 4096]].concat());
    let output = stop(server).code_is(1);
    assert!(output.stderr.contains("the array frozen is not served: "), "{}", output.stderr);
    assert!(output.stderr.contains("not all arrays were served to a clean end: frozen;"), "{}", output.stderr);
    assert_eq!(several.array("good").examine()["state"], "clean");
}

/// The files of an array's members are deleted: what they hold is gone when the server closes them.
#[test]
fn an_array_is_not_opened_anew_where_that_would_lose_data() {
    let several = Several::new(&["good", "deleted"]);
    let server = several.start(&several.all(""));
    let image = several.random("deleted", 9);
    write_export(&several.uri("deleted"), &image);
    several.array("deleted").members().iter().for_each(|member| std::fs::remove_file(member).unwrap());
    for text in [
        several.shared() + &several.table("good", "") + &several.table("deleted", "connection-threads = 1"),
        several.shared() + &several.table("good", ""),
    ] {
        several.write(&text);
        server.signal(Signal::HUP);
        let _ = several.until("READY=1");
        assert_eq!(several.status("deleted")["connection_threads"], 0, "it goes on as it was");
        assert_same(&read_export(&several.uri("deleted")), &image, "it is all there");
    }
    server.signal(Signal::TERM);
    let output = server.finish(PATIENCE);
    assert_eq!(output.stderr.matches("the array deleted goes on as it was: ").count(), 2, "{}", output.stderr);
}
