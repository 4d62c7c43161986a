//! SIGHUP: the file is read again, and only what has changed in it is touched.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::nbd::Client;
use uraid_tests::process::Process;
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use super::{PATIENCE, Several, stop};
use crate::tls::Certified;

/// Has the server read a new text; returns what it told the service manager until that was done.
#[track_caller]
fn reload(several: &Several, server: &Process, text: &str) -> Vec<String> {
    several.write(text);
    server.signal(Signal::HUP);
    let told = several.until("READY=1");
    assert!(told.iter().any(|message| message.starts_with("RELOADING=1\nMONOTONIC_USEC=")), "{told:?}");
    told
}

/// Looks until an array's status is as it should be.
#[track_caller]
fn until(several: &Several, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = several.status(name);
        if is_so(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{now:#}");
    }
}

/// Keys with which an array that is stopped waits for its clients to leave, for some time.
const WAITS: &str = "drain = 'eshutdown'\nstop-deadline = '3s'\n";

/// Writes and reads on one connection until told to end; returns how often.
fn busy(mut client: Client, ends: &AtomicBool) -> u32 {
    let mut count = 0_u32;
    while !ends.load(Ordering::Relaxed) {
        let data = count.to_le_bytes().repeat(1024);
        let offset = (count as usize % 64) * 4096;
        client.write(offset, &data);
        assert_eq!(client.read(offset, data.len()), data);
        count += 1;
    }
    client.disconnect();
    count
}

#[test]
fn what_has_not_changed_is_not_touched() {
    let several = Several::new(&["kept", "changed", "gone", "new"]);
    let kept = several.table("kept", "");
    let first = several.shared() + &kept + &several.table("changed", "") + &several.table("gone", "");
    let server = several.start(&first);
    let image = several.random("changed", 8);
    uraid_tests::image::write_export(&several.uri("changed"), &image);
    let mut leaving = several.client("changed");
    leaving.write(0, &[9; 512]);
    let began = several.status("kept")["uptime_ms"].as_u64().unwrap();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| busy(several.client("kept"), &ends));
        let second =
            several.shared() + &several.table("new", "") + &several.table("changed", "connection-threads = 2") + &kept;
        let _ = reload(&several, &server, &second);
        let mut listed = several.listed();
        listed.sort();
        assert_eq!(listed, ["changed", "kept", "new"]);
        assert_eq!(several.array("gone").examine()["state"], "clean");
        assert_eq!(several.status("changed")["connection_threads"], 2);
        assert!(leaving.submit(uraid_tests::nbd::Command::Flush, 0, 0, &[]).and_then(|_| leaving.reply()).is_err());
        let mut again = several.client("changed");
        assert_eq!(again.read(0, 512), [9; 512], "it was closed cleanly before it was opened anew");
        assert_eq!(again.read(512, image.len() - 512), image[512..]);
        several.client("new").write(0, &[1; 512]);
        assert!(several.status("kept")["uptime_ms"].as_u64().unwrap() > began);
        assert_eq!(several.status("kept")["clients"], 1);
        // And back.
        let _ = reload(&several, &server, &first);
        several.client("gone").write(0, &[1; 512]);
        ends.store(true, Ordering::Relaxed);
        assert!(busy.join().unwrap() > 0);
    });
    let _ = stop(server).success();
}

#[test]
fn what_can_be_set_is_set_under_open_clients() {
    let several = Several::new(&["one", "two"]);
    let server = several.start(&several.all(""));
    let mut clients = ["one", "two"].map(|name| several.client(name));
    let more = "client-iops-limit = 100000\nmax-errors = 3\nscrub-limit = '3M'\ncache = 'writethrough'\n";
    let _ = reload(&several, &server, &several.all(more));
    for (name, client) in ["one", "two"].iter().zip(&mut clients) {
        client.write(0, &[1; 512]);
        // The requests are answered in their order, after the array's own.
        let _ = until(&several, name, |said| {
            let limits = &said["limits"];
            limits["scrub_bytes_per_second"] == 3 << 20
                && limits["client_operations_per_second"] == 100_000
                && said["cache_mode"] == "writethrough"
        });
    }
    // And back, to what it is without.
    let _ = reload(&several, &server, &several.all(""));
    for (name, client) in ["one", "two"].iter().zip(&mut clients) {
        client.write(0, &[1; 512]);
        let said = until(&several, name, |said| said["cache_mode"] == "writeback");
        let limits = &said["limits"];
        assert!(limits["scrub_bytes_per_second"].is_null() && limits["client_operations_per_second"].is_null());
    }
    let _ = stop(server).success();
}

#[test]
fn a_file_that_is_wrong_changes_nothing() {
    let several = Several::new(&["one", "two"]);
    let good = several.all("");
    let server = several.start(&good);
    let mut clients = ["one", "two"].map(|name| several.client(name));
    let one = several.table("one", "");
    for (text, named) in [
        ("[array.one".to_owned(), "arrays.toml: "),
        (several.shared() + &one + "sockets = 'x'\n", "array.one: there is no key 'sockets'"),
        (several.shared() + &one + "[array.two]\n", "array.two: it names no members"),
        (several.shared(), "it has no array"),
        (several.shared() + &one + "[array.two]\nmembers = 'x'\nexport = 'one'\n", "the export one: one and two"),
        (format!("socket = {:?}\n{one}", several.path("other.sock")), "socket of the server itself has changed"),
        (several.shared() + "metrics = '0'\n" + &one, "metrics of the server itself has changed"),
    ] {
        let told = reload(&several, &server, &text).join("\n");
        assert!(told.contains("STATUS=nothing has changed") && told.contains(named), "{text}: {told}");
        for client in &mut clients {
            client.write(0, &[1; 512]);
        }
        assert_eq!(several.listed().len(), 2);
    }
    std::fs::remove_file(several.path("arrays.toml")).unwrap();
    server.signal(Signal::HUP);
    assert!(several.until("READY=1").join("\n").contains("can't read "));
    clients.iter_mut().for_each(|client| client.write(0, &[1; 512]));
    let _ = reload(&several, &server, &good);
    clients.iter_mut().for_each(|client| client.write(0, &[1; 512]));
    let output = stop(server).success();
    assert!(output.stderr.contains("nothing has changed, because of the configuration: "), "{}", output.stderr);
}

/// An array that waits for members that do not come can be told others, or that it is not wanted.
#[test]
fn a_wait_for_the_wrong_members_ends() {
    let several = Several::new(&["there", "late"]);
    let there = several.shared() + "wait-for-members = '10m'\n" + &several.table("there", "");
    let server = several.start(&there);
    let lost = |name: &str| format!("{there}[array.late]\nmembers = [{:?}]\n", several.path(name));
    let ask = |text: &str, awaited: &str| {
        several.write(text);
        server.signal(Signal::HUP);
        let starts = |message: &String| message.starts_with("STATUS=") && message.contains(awaited);
        several.until_one(starts);
    };
    ask(&lost("nowhere"), "not there yet: waiting");
    let right = there.clone() + &several.table("late", "");
    let _ = reload(&several, &server, &right);
    several.client("late").write(0, &[1; 512]);
    // From there back to the wrong ones, and to none.
    ask(&lost("neither"), "not there yet: waiting");
    let _ = reload(&several, &server, &there);
    assert_eq!(several.listed(), ["there"]);
    let refused = several.uraid(&["stop", "--array", "late"]).code_is(1);
    assert!(refused.stderr.contains("waits for members"), "{}", refused.stderr);
    let said = stop(server).success();
    let count = said.stderr.matches("the array late is stopped").count();
    assert_eq!(count, 1, "{}", said.stderr);
}

/// At SIGHUP certificates are read again, and what was read before is used on if they are no good.
#[test]
fn certificates_that_are_no_good_change_nothing() {
    let several = Several::new(&["shared"]);
    let certified = Certified::new();
    let tls = format!("tls = 'require'\ntls-certificates = {:?}\n", certified.path("server"));
    let text = several.shared() + &tls + &several.table("shared", "");
    let server = several.start(&text);
    std::fs::write(certified.path("server").join("server-cert.pem"), "").unwrap();
    let told = reload(&several, &server, &text).join("\n");
    assert!(told.contains("STATUS=nothing has changed") && told.contains("holds no certificate"), "{told}");
    let directory = certified.path("anonymous");
    let uri = several.uri("shared").replacen("nbd", "nbds", 1);
    let _ = client("nbdinfo", ["--size", &format!("{uri}&tls-certificates={}", directory.display())]).success();
    let _ = stop(server).success();
}

/// Whoever connects from then on gets the new certificate, and the array goes on.
#[test]
fn certificates_are_read_again_although_the_file_is_the_same() {
    let several = Several::new(&["shared"]);
    let certified = Certified::new();
    let tls = format!("tls = 'require'\ntls-certificates = {:?}\n", certified.path("server"));
    // On a Unix socket clients verify nobody.
    let text = several.shared() + "listen = ['127.0.0.1:0']\n" + &tls + &several.table("shared", "");
    let server = several.start(&text);
    let status = several.status("shared");
    let endpoints = status["endpoints"].as_array().unwrap().iter().map(|endpoint| endpoint.as_str().unwrap());
    let address = endpoints.into_iter().find(|endpoint| endpoint.starts_with("127.0.0.1:")).unwrap();
    let asked = |trusts: &str| {
        let trusts = certified.path(trusts);
        client("nbdinfo", ["--size", &format!("nbds://{address}/shared?tls-certificates={}", trusts.display())])
    };
    certified.issue_by_another("server", "stranger");
    let _ = asked("anonymous").success();
    let _ = asked("stranger").code_is(1);
    // Nor does a file that is wrong change that.
    let told = reload(&several, &server, &("metrics = '0'\n".to_owned() + &text)).join("\n");
    assert!(told.contains("metrics of the server itself has changed"), "{told}");
    let _ = asked("anonymous").success();
    let _ = asked("stranger").code_is(1);
    let told = reload(&several, &server, &text).join("\n");
    assert!(!told.contains("nothing has changed"), "{told}");
    let _ = asked("stranger").success();
    let _ = asked("anonymous").code_is(1);
    let said = stop(server).success().stderr;
    assert!(!said.contains("opened anew"), "{said}");
}

/// The file follows what `uraid replace` has done, and its clients stay.
#[test]
fn members_that_the_array_has_already_are_no_change() {
    let several = Several::new(&["one", "two"]);
    let server = several.start(&several.all("wait-for-members = '1s'\n"));
    let mut client = several.client("one");
    client.write(0, &[7; 512]);
    let (new, text) = (several.path("new"), || std::fs::read_to_string(several.path("arrays.toml")).unwrap());
    let words = ["replace", "--socket", "one.ctl", "--persist", "--size", "16M", "1", new.to_str().unwrap()];
    let _ = several.uraid(&words).success();
    let _ = several.uraid(&["wait", "--socket", "one.ctl"]).success();
    let old = several.array("one").members()[1].display().to_string();
    let both = text();
    assert!(both.contains(&old) && both.contains(&format!("spare = [{new:?}]")), "{both}");
    let one = both.replace(&format!("spare = [{new:?}]\n"), "").replace(&old, new.to_str().unwrap());
    for text in [&both, &one] {
        let _ = reload(&several, &server, text);
        client.write(0, &[8; 512]);
        assert_eq!(several.status("one")["clients"], 1, "{text}");
    }
    // From there on other settings are all that changes.
    let limited = one.replace("wait-for-members", "scrub-limit = '3M'\nwait-for-members");
    for (text, limit) in [(&limited, Value::from(3 << 20)), (&one, Value::Null)] {
        let _ = reload(&several, &server, text);
        let now = until(&several, "one", |said| said["limits"]["scrub_bytes_per_second"] == limit);
        assert_eq!(now["clients"], 1, "{text}");
    }
    // Others mean that the array is opened with them.
    let _ = reload(&several, &server, &one.replace(new.to_str().unwrap(), &old));
    assert!(client.submit(uraid_tests::nbd::Command::Flush, 0, 0, &[]).and_then(|_| client.reply()).is_err());
    let _ = reload(&several, &server, &one);
    let mut client = several.client("one");
    assert_eq!(client.read(0, 512), [8; 512]);
    let said = stop(server);
    assert_eq!(said.stderr.matches("the array one is opened anew").count(), 1, "{}", said.stderr);
}

/// An array that is on its way to other settings goes back to its own if the file does meanwhile.
#[test]
fn what_was_wanted_in_between_is_forgotten() {
    let several = Several::new(&["one"]);
    let shared = several.shared() + WAITS;
    let first = shared.clone() + &several.table("one", "");
    let server = several.start(&first);
    let _stays = several.client("one");
    several.write(&(shared + &several.table("one", "connection-threads = 2")));
    server.signal(Signal::HUP);
    let _ = until(&several, "one", |said| !said["stopping"].is_null());
    let _ = reload(&several, &server, &first);
    assert_eq!(several.status("one")["connection_threads"], 0);
    several.client("one").write(0, &[1; 512]);
    let said = stop(server).success().stderr;
    assert_eq!(said.matches("is opened anew").count(), 1, "{said}");
}

/// An array that still waits for members is opened with what the file says by then.
#[test]
fn what_is_set_while_an_array_waits_holds_when_it_is_served() {
    let several = Several::new(&["there", "late"]);
    let there = several.shared() + "wait-for-members = '10m'\n" + &several.table("there", "");
    let server = several.start(&there);
    several.array("late").remove(&[0]);
    for more in ["", "scrub-limit = '3M'"] {
        several.write(&(there.clone() + &several.table("late", more)));
        server.signal(Signal::HUP);
        let _ = several.until_one(|message| message.starts_with("STATUS=") && message.contains("there yet: waiting"));
    }
    several.array("late").restore(&[0]);
    let _ = several.until("READY=1");
    assert_eq!(several.status("late")["limits"]["scrub_bytes_per_second"], 3 << 20);
    let _ = stop(server).success();
}

/// Who is told of the arrays hears no more of those that are gone.
#[test]
fn nothing_is_said_of_arrays_that_the_file_does_not_have() {
    let several = Several::new(&["kept", "gone", "bad", "new"]);
    several.array("bad").remove(&[0]);
    let start = several.shared() + "wait-for-members = '1s'\n" + &several.table("kept", "");
    let server = several.start(&(start.clone() + &several.table("gone", "") + &several.table("bad", "")));
    let _ = reload(&several, &server, &start);
    let _ = reload(&several, &server, &(start.clone() + &several.table("new", "")));
    let _ = several.uraid(&["fail", "--socket", "new.ctl", "1"]).success();
    let told = several.until_one(|message| message.starts_with("STATUS=") && message.contains("without member 1"));
    let last = told.last().unwrap();
    assert!(!last.contains("gone is") && !last.contains("bad is"), "{last}");
    let _ = stop(server).success();
}

/// A stop is a stop: no array begins any more.
#[test]
fn a_server_that_is_being_stopped_reads_nothing_again() {
    let several = Several::new(&["one", "new"]);
    let one = several.shared() + WAITS + &several.table("one", "");
    let server = several.start(&one);
    let _stays = several.client("one");
    server.signal(Signal::TERM);
    let _ = until(&several, "one", |said| !said["stopping"].is_null());
    several.write(&(one + &several.table("new", "")));
    server.signal(Signal::HUP);
    let said = server.finish(PATIENCE).success().text();
    assert!(said.contains("one: nbd") && !said.contains("new: nbd"), "{said}");
}

/// A second signal ends a server that waits for administrators' programs alone.
#[test]
fn a_second_signal_waits_for_no_program() {
    let several = Several::new(&["one", "two"]);
    let (hook, begun) = (several.path("hook"), several.path("begun"));
    let script =
        format!("#!/bin/sh\n[ \"$1\" = stopped ] || exit 0\nread line <{}\nexec sleep 1000\n", begun.display());
    std::fs::write(&hook, script).unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &begun, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let server = several.start(&several.all(&format!("on-event = {hook:?}\n")));
    server.signal(Signal::TERM);
    // The program of each array opens this to read, and goes on then.
    for _ in 0..2 {
        writeln!(File::options().write(true).open(&begun).unwrap()).unwrap();
    }
    server.signal(Signal::TERM);
    let said = server.finish(PATIENCE).success().stderr;
    assert!(said.contains("not waited for any longer"), "{said}");
}

/// Nor is a log device that `uraid replace` has brought.
#[test]
fn log_devices_that_the_array_has_already_are_no_change() {
    let several = Several::new(&["one"]);
    let array = several.array("one");
    let logs = ["l0", "l1", "l2"].map(|name| array.path(name).display().to_string());
    let members: Vec<&str> = array.members().iter().map(|member| member.to_str().unwrap()).collect();
    let options = ["configure", "--log-device", &logs[0], "--log-device", &logs[1]];
    let _ = several.uraid(&[&options, &members[..]].concat()).success();
    let all = [&members[..], &[&logs[0], &logs[1]]].concat();
    let server = several.start(&format!("{}[array.one]\nmembers = {all:?}\n", several.shared()));
    let mut client = several.client("one");
    let _ = several.uraid(&["replace", "--socket", "one.ctl", "--persist", &logs[1], &logs[2]]).success();
    let text = std::fs::read_to_string(several.path("arrays.toml")).unwrap();
    assert!(text.contains(&logs[2]), "{text}");
    let _ = reload(&several, &server, &text);
    client.write(0, &[8; 512]);
    assert_eq!(several.status("one")["clients"], 1);
    let said = stop(server).success().stderr;
    assert!(!said.contains("opened anew"), "{said}");
}

/// Two blocks of a row are rotten, and a client has written one of them: the array can't be closed cleanly. Somebody is
/// to look at that before it is opened anew.
#[test]
fn an_array_that_was_not_closed_cleanly_waits_for_the_next_time() {
    let several = Several::new(&["good"]);
    let array = Array::planned(&shape::raid5_of_3());
    let _ = array.run_create(MEMBER_BYTES, &["--integrity", "crc32"]).success();
    let server = Server::start(&array);
    server.connect().write(0, &[5; 128 << 10]);
    let _ = server.stop();
    array.rot_first_row();
    let text = |more: &str| several.all("") + &format!("[array.rotten]\nmembers = {:?}\n{more}", array.members());
    let server = several.start(&text(""));
    let mut client = several.client("rotten");
    client.write(0, &[9; 4096]);
    client.flush();
    let _ = until(&several, "rotten", |said| said["health"]["state"] == "failing");
    let changed = text("connection-threads = 1");
    let told = reload(&several, &server, &changed).join("\n");
    assert!(told.contains("rotten is not served: ") && told.contains("Nothing is lost"), "{told}");
    assert_eq!(several.listed(), ["good"]);
    let _ = reload(&several, &server, &changed);
    let mut client = several.client("rotten");
    assert_eq!(client.read(0, 4096), [9; 4096]);
    client.write(0, &[8; 128 << 10]);
    let _ = stop(server).success();
}
