//! SIGHUP: the file is read again, and only what has changed in it is touched.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use uraid_tests::nbd::Client;
use uraid_tests::process::Process;
use uraid_tests::run::client;

use super::{Several, stop};
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
        let deadline = std::time::Instant::now() + super::PATIENCE;
        loop {
            let said = several.status(name);
            let limits = &said["limits"];
            if limits["scrub_bytes_per_second"] == 3 << 20
                && limits["client_operations_per_second"] == 100_000
                && said["cache_mode"] == "writethrough"
            {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{said:#}");
        }
    }
    let _ = reload(&several, &server, &several.all(""));
    clients.iter_mut().for_each(|client| client.write(0, &[1; 512]));
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
    // Others mean that the array is opened with them.
    let _ = reload(&several, &server, &one.replace(new.to_str().unwrap(), &old));
    assert!(client.submit(uraid_tests::nbd::Command::Flush, 0, 0, &[]).and_then(|_| client.reply()).is_err());
    let _ = reload(&several, &server, &one);
    let mut client = several.client("one");
    assert_eq!(client.read(0, 512), [8; 512]);
    let said = stop(server);
    assert_eq!(said.stderr.matches("the array one is opened anew").count(), 1, "{}", said.stderr);
}
