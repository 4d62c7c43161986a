//! The control socket: what a running array tells, what can be changed, and peers that are wrong.

mod members;
mod peers;
mod replace;
pub(crate) mod scrub;
mod spares;
mod upkeep;

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::Random;
use uraid_tests::process::{Output, Process};
use uraid_tests::server::Server;
use uraid_tests::shape;

/// How long something may take that takes seconds; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a command that asks the array's server.
#[track_caller]
pub(crate) fn ask(array: &Array, words: &[&str]) -> Output {
    let socket = array.socket();
    binary::uraid([words, &["--socket", socket.to_str().unwrap()]].concat())
}

#[track_caller]
pub(crate) fn status(array: &Array) -> Value {
    ask(array, &["status", "--json"]).success().json()
}

/// The value of a metric, as the page has its line.
#[track_caller]
pub(crate) fn metric(address: &str, line: &str) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address.trim_end_matches("/metrics")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page.lines().find_map(|found| found.strip_prefix(line)).map(|value| value.trim().to_owned())
}

/// How far some background work is, in bytes: done, and in all; none if it is not under way.
pub(crate) fn sweep(status: &Value, work: &str) -> Option<(u64, u64)> {
    let sweep = status["sweeps"].as_array()?.iter().find(|sweep| sweep["work"] == work)?;
    Some((sweep["done_bytes"].as_u64()?, sweep["total_bytes"].as_u64()?))
}

/// Looks until the status is as it should be.
#[track_caller]
pub(crate) fn until(array: &Array, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = status(array);
        if is_so(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{what}: {now:#}");
    }
}

fn sum(status: &Value, field: &str) -> u64 {
    status["members"].as_array().unwrap().iter().map(|member| member[field].as_u64().unwrap()).sum()
}

#[test]
fn status_is_what_the_array_is_and_has_done() {
    for threads in ["0", "3"] {
        let array = Array::create(&shape::rm2_of_7_adjacent());
        let server =
            Server::start_members(&array, array.members(), &["--connection-threads", threads, "--cache-size", "4M"]);
        let mut clients = [server.connect(), server.connect()];
        let data = Random::new(1).bytes(3 << 20);
        clients[0].write(0, &data);
        clients[1].write(4 << 20, &data[..4096]);
        clients[0].flush();
        let _ = clients[1].read(0, 8192);

        let status = status(&array);
        let examined = array.examine();
        assert_eq!(status["uuid"], examined["uuid"]);
        assert_eq!((&status["level"], &status["layout"]), (&"rm2".into(), &"adjacent".into()));
        assert_eq!(status["size_bytes"], array.expected_size());
        assert_eq!(status["uri"], server.uri());
        assert_eq!(status["clients"], 2);
        assert_eq!(status["connection_threads"].as_u64().unwrap().to_string(), threads);
        assert_eq!(
            status["health"],
            serde_json::json!({
                "state": "whole", "survives": 2, "survives_elsewhere": 2, "missing": [], "rebuilding": [],
                "troubles": [], "held_up": [], "unwritten": null, "lost": null, "lacking": [], "salvage": null,
                "scrub_owed": false,
                "log_devices_failed": [], "log_devices_deleted": [], "log_devices_stalled": [],
                "log_devices_left": null
            })
        );
        assert_eq!(status["requests"]["written_bytes"], (3 << 20) + 4096);
        assert_eq!(status["requests"]["read_bytes"], 8192);
        assert_eq!((&status["requests"]["reads"], &status["requests"]["flushes"]), (&1.into(), &1.into()));
        // RM2 of height 3 keeps a parity block for two of data; three clusters are flushed, so all is on the members or
        // in their logs.
        assert!(sum(&status, "written_bytes") + sum(&status, "log_bytes") > 3 << 20, "{status:#}");
        assert_eq!(status["cache_mode"], "writeback");
        let limit = status["cache"]["limit_bytes"].as_u64().unwrap();
        assert!(limit > 3 << 20 && limit <= 4 << 20, "{limit}");
        let log = |field: &str| status["log"][field].as_u64().unwrap();
        assert!(log("used_bytes") > 0 && log("used_bytes") <= log("limit_bytes"), "{status:#}");
        for (slot, member) in status["members"].as_array().unwrap().iter().enumerate() {
            assert_eq!(member["path"], array.members()[slot].to_str().unwrap());
            assert_eq!((&member["slot"], &member["state"]), (&slot.into(), &"active".into()));
            assert_eq!(member["uuid"], examined["members"][slot]["uuid"]);
        }
        let _ = server.stop();
    }
}

/// Who is missing, and how many more may fail, whichever they are: from each level's definition.
#[test]
fn degraded_arrays_say_what_they_survive() {
    for (shape, absent, survives) in [
        (shape::rm2_of_7_adjacent(), &[3][..], 1),
        (shape::rm2_of_7_partitioned(), &[1, 4], 0),
        (shape::raid5_of_3(), &[1], 0),
        (shape::raid1_of_3(), &[0], 1),
        (shape::raid10_of_4(), &[3], 0),
        (shape::raid10_of_5_with_3_copies(), &[2], 1),
    ] {
        let array = Array::create(&shape);
        array.remove(absent);
        let server = Server::start_members(&array, &array.without(absent), &["--degraded"]);
        let status = status(&array);
        let health = serde_json::json!({
            "state": "degraded", "survives": survives, "survives_elsewhere": survives, "missing": absent,
            "rebuilding": [], "troubles": [], "held_up": [], "unwritten": null, "lost": null, "lacking": [],
            "salvage": null, "scrub_owed": false,
            "log_devices_failed": [], "log_devices_deleted": [], "log_devices_stalled": [],
            "log_devices_left": null
        });
        assert_eq!(status["health"], health, "{} without {absent:?}", shape.name);
        for (slot, member) in status["members"].as_array().unwrap().iter().enumerate() {
            let state = if absent.contains(&slot) { "missing" } else { "active" };
            assert_eq!(member["state"], state, "{}", shape.name);
        }
        let screen = ask(&array, &["status"]).success().text();
        assert!(screen.contains("degraded: member"), "{screen}");
        let _ = server.stop();
    }
}

#[test]
fn the_cache_mode_can_be_changed() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_3());
        let server = Server::start_members(&array, array.members(), &["--connection-threads", threads]);
        let output = ask(&array, &["set", "--cache", "writethrough", "--log", "error"]).success();
        assert_eq!(output.text(), "cache is writethrough\nlog is error\n");
        // Write-through is answered when the members' logs have it, and write-back before.
        let mut client = server.connect();
        let data = Random::new(2).bytes(8192);
        client.write(0, &data);
        let written = status(&array);
        assert!(sum(&written, "log_bytes") >= 2 * 8192, "{written:#}");
        assert_eq!(written["cache_mode"], "writethrough");

        let _ = ask(&array, &["set", "--cache", "writeback"]).success();
        assert_eq!(status(&array)["cache_mode"], "writeback");
        client.write(0, &data);
        assert_eq!(client.read(0, data.len()), data);
        let _ = server.stop();
    }
}

#[test]
fn what_members_may_get_away_with_can_be_changed() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_3());
        let options = [
            "--connection-threads",
            threads,
            "--read-deadline",
            "500ms",
            "--write-deadline",
            "off",
            "--max-errors",
            "5",
        ];
        let server = Server::start_members(&array, array.members(), &options);
        let settings = ["set", "--read-deadline", "1m", "--write-deadline", "10s", "--max-errors", "off"];
        let output = ask(&array, &settings).success();
        assert_eq!(output.text(), "read-deadline is 1m\nwrite-deadline is 10s\nmax-errors is off\n");
        let mut client = server.connect();
        let data = Random::new(2).bytes(8192);
        client.write(0, &data);
        assert_eq!(client.read(0, data.len()), data);
        let now = status(&array);
        assert_eq!((sum(&now, "overdue"), sum(&now, "errors")), (0, 0));
        assert_eq!(now["members"][0]["slow"], false);
        let _ = server.stop();
    }
}

#[test]
fn settings_that_can_not_be_are_refused() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start_members(&array, array.members(), &["--cache", "none"]);
    for (option, value, named) in [
        ("--cache", "writeback", "--cache none"),
        ("--cache", "sometimes", "sometimes"),
        ("--log", "loud", "loud"),
        ("--read-deadline", "soon", "2s"),
        ("--write-deadline", "1ms", "between"),
        ("--max-errors", "-1", "off"),
    ] {
        let refusal = ask(&array, &["set", &format!("{option}={value}")]).code_is(1).stderr;
        assert!(refusal.contains(named), "{option} {value}: {refusal}");
    }
    for words in [&["set"][..], &["set", "--cache"], &["set", "--colour", "red"], &["set", "--scrub-limit", "fast"]] {
        let _ = ask(&array, words).code_is(2);
    }
    assert_eq!(status(&array)["cache_mode"], "none");
    let _ = server.stop();
}

#[test]
fn stop_waits_until_the_members_are_clean() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let server = Server::start_members(&array, array.members(), &["--connection-threads", threads]);
        let mut image = vec![0; array.expected_size()];
        let data = Random::new(3).bytes(1 << 20);
        let mut client = server.connect();
        client.write(4096, &data);
        image[4096..4096 + data.len()].copy_from_slice(&data);
        assert_eq!(ask(&array, &["stop"]).success().text(), "stopped\n");
        assert_eq!(array.examine()["state"], "clean");
        Content::read(&array).assert_holds(&image, "what was not flushed is there after a stop");
        let _ = server.end().success();
        assert!(!array.path("nbd.ctl").exists(), "the socket is removed");
        let refusal = ask(&array, &["stop"]).code_is(1).stderr;
        assert!(refusal.contains("nbd.ctl") && refusal.contains("--socket"), "{refusal}");
    }
}

#[test]
fn watching_goes_on_until_the_server_ends() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut command = binary::command();
    command.args(["status", "--watch", "--json", "--socket"]).arg(array.socket());
    let mut watch = Process::start_with_open_stdout(command);
    let mut lines = BufReader::new(watch.take_stdout()).lines().map(|line| line.unwrap());
    let looks: Vec<Value> = (&mut lines).take(2).map(|line| serde_json::from_str(&line).unwrap()).collect();
    assert!(looks[0]["uptime_ms"].as_u64() < looks[1]["uptime_ms"].as_u64(), "{looks:?}");
    let _ = server.stop();
    assert!(lines.all(|line| serde_json::from_str::<Value>(&line).is_ok()));
    let output = watch.finish(Duration::from_secs(60)).code_is(1);
    assert!(output.stderr.contains("server ended"), "{}", output.stderr);
}

#[test]
fn only_the_owner_may_connect_and_only_dead_sockets_are_replaced() {
    let array = Array::create(&shape::raid1_of_2());
    let path = array.path("nbd.ctl");
    Server::start(&array).kill();
    assert!(path.exists(), "a killed server leaves its socket");
    let server = Server::start(&array);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let other = Array::create(&shape::raid1_of_2());
    let options = ["--control", path.to_str().unwrap()];
    let refusal = Server::refused(&other, other.members(), &options).stderr;
    assert!(refusal.contains("nbd.ctl"), "{refusal}");
    let status = status(&array);
    assert_eq!(status["uuid"], array.examine()["uuid"]);
    let _ = server.stop();
}

#[test]
fn a_tcp_server_has_a_control_socket_where_one_is_named() {
    let array = Array::create(&shape::raid1_of_2());
    for (control, is_there) in
        [(vec![], false), (vec!["--control".to_owned(), array.path("own.ctl").display().to_string()], true)]
    {
        let options: Vec<&str> =
            ["--listen", "127.0.0.1:0"].into_iter().chain(control.iter().map(String::as_str)).collect();
        let server = Server::start_members(&array, array.members(), &options);
        assert_eq!(array.path("own.ctl").exists(), is_there);
        if is_there {
            let told = binary::uraid(["status", "--json", "--socket", &control[1]]).success().json();
            assert_eq!(told["uri"], server.uri());
        }
        let _ = server.stop();
    }
}

#[test]
fn limits_that_a_server_is_started_with_hold_until_they_are_changed() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_3());
        let options = ["--rebuild-limit", "64K", "--scrub-limit", "2M", "--degraded", "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &options);
        let limits = |rebuild: Value, scrub: Value| {
            let scrub = ("scrub_bytes_per_second".to_owned(), scrub);
            let others = ["reshape_bytes_per_second", "client_bytes_per_second", "client_operations_per_second"];
            let others = others.map(|limit| (limit.to_owned(), Value::Null));
            let rebuild = ("rebuild_bytes_per_second".to_owned(), rebuild);
            Value::Object([rebuild, scrub].into_iter().chain(others).collect())
        };
        assert_eq!(status(&array)["limits"], limits(json!(64 << 10), json!(2 << 20)));
        let _ = ask(&array, &["set", "--rebuild-limit", "none"]).success();
        assert_eq!(status(&array)["limits"], limits(Value::Null, json!(2 << 20)));
        // A scrub of 16 MiB a member takes at least seconds at this rate.
        let started = Instant::now();
        let _ = ask(&array, &["scrub", "start", "--wait"]).success();
        assert!(started.elapsed() >= Duration::from_secs(3), "{:?}", started.elapsed());
        let _ = server.stop();
    }
    let array = Array::create(&shape::raid1_of_2());
    let refused = Server::try_start(&array, array.members(), &["--scrub-limit", "0"]).unwrap_err().code_is(2);
    assert!(refused.stderr.contains("50M"), "{}", refused.stderr);
}

#[test]
fn an_event_runs_the_program_that_was_named() {
    let array = Array::create(&shape::raid1_of_2());
    let hook = hook_to(&array, &array.path("calls"));
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    let _ = server.stop();
    let uuid = array.examine()["uuid"].as_str().unwrap().to_owned();
    let calls = std::fs::read_to_string(array.path("calls")).unwrap();
    assert_eq!(calls, format!("started|{uuid}|\nstopped|{uuid}|\n"));
}

#[test]
fn a_program_that_can_not_be_run_is_refused_before_anything_is_written() {
    let array = Array::create(&shape::raid1_of_2());
    // Killed, so that the next start would have something to write at once.
    let server = Server::start(&array);
    server.connect().write(0, &[7; 4096]);
    drop(server);
    let contents = || array.members().iter().map(|member| std::fs::read(member).unwrap()).collect::<Vec<_>>();
    let before = contents();
    let plain = array.path("plain");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    let directory = array.path("");
    for (program, advice) in [
        (Path::new("/no/such/program"), "whole path"),
        (Path::new("no-such-program"), "./no-such-program"),
        (&plain, "chmod +x"),
        (&directory, "directory"),
    ] {
        let refusal = Server::refused(&array, array.members(), &["--on-event", program.to_str().unwrap()]).stderr;
        assert!(refusal.contains(program.to_str().unwrap()) && refusal.contains(advice), "{refusal}");
        assert!(contents() == before, "{refusal}");
    }
    let _ = Server::start(&array).stop();
}

/// A member that died while nobody looked is told of when the server starts.
#[test]
fn a_degraded_start_is_told() {
    let array = Array::create(&shape::raid5_of_3());
    let (events, hook) = scrub::Events::new(&array);
    let options = ["--degraded", "--on-event", hook.to_str().unwrap()];
    let server = Server::start_members(&array, &array.without(&[1]), &options);
    assert_eq!(events.until("degraded"), ["started", "member-missing"]);
    let _ = server.stop();
}

/// Whoever has stopped an array may serve it at once, however long the program takes that is told.
#[test]
fn a_program_that_takes_long_keeps_nothing_of_a_stopped_array() {
    let array = Array::create(&shape::raid5_of_3());
    let (gate, hook) = (array.path("gate"), array.path("hook"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &gate, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let script = format!("#!/bin/sh\n[ \"$1\" = stopped ] && read line <{}\nexit 0\n", gate.display());
    std::fs::write(&hook, script).unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    server.connect().write(0, &[7; 4096]);
    let _ = ask(&array, &["stop"]).success();
    let next = Server::start(&array);
    assert_eq!(next.connect().read(0, 4096), [7; 4096]);
    // Open for reading too, so that this does not wait for the program.
    let mut gate = std::fs::OpenOptions::new().read(true).write(true).open(&gate).unwrap();
    std::io::Write::write_all(&mut gate, b"go on\n").unwrap();
    let _ = server.end().success();
    let _ = next.stop();
}

/// Nor does it keep an administrator at the terminal.
#[test]
fn a_signal_ends_a_server_that_waits_for_the_program_alone() {
    let array = Array::create(&shape::raid5_of_3());
    let hook = array.path("hook");
    std::fs::write(&hook, "#!/bin/sh\n[ \"$1\" = stopped ] && exec sleep 1000\nexit 0\n").unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    let _ = ask(&array, &["stop"]).success();
    server.signal(Signal::TERM);
    let said = server.end().success().stderr;
    assert!(said.contains("not waited for any longer"), "{said}");
}

/// The second of two signals is not lost while the first one still waits for a client.
#[test]
fn a_second_signal_ends_a_stop_before_the_program_does() {
    let array = Array::create(&shape::raid5_of_3());
    let hook = array.path("hook");
    std::fs::write(&hook, "#!/bin/sh\n[ \"$1\" = stopped ] && exec sleep 1000\nexit 0\n").unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = ["--on-event", hook.to_str().unwrap(), "--drain", "eshutdown", "--stop-deadline", "3s"];
    let server = Server::start_members(&array, array.members(), &options);
    let _stays = server.connect();
    server.signal(Signal::TERM);
    let _ = until(&array, "it is being stopped", |status| !status["stopping"].is_null());
    server.signal(Signal::TERM);
    let said = server.end().success().stderr;
    assert!(said.contains("not waited for any longer"), "{said}");
}

#[test]
fn a_log_in_json_is_an_object_a_line() {
    let array = Array::create(&shape::raid1_of_2());
    let mut command = Server::command(&array, array.members(), &["--log-format", "json"]);
    command.env("URAID_LOG", "info");
    let server = Server::spawn(command, array.socket()).unwrap();
    let _ = ask(&array, &["stop"]).success();
    let log = server.end().success().stderr;
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let events: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(events, ["started", "stopped"], "{log}");
}

/// A program that writes what it is called with to a file.
fn hook_to(array: &Array, file: &Path) -> PathBuf {
    let path = array.path("hook");
    std::fs::write(&path, format!("#!/bin/sh\necho \"$1|$2|$3\" >>{}\n", file.display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
