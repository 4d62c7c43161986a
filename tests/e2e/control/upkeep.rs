//! Scrubs and rebuilds over a server's life: on a schedule, within limits, interrupted and gone on with, waited for.

use std::process::Stdio;

use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::scrub::{Events, damage};
use super::{ask, status, sum, sweep, until};

/// A server that somebody listens to.
fn served(array: &Array, options: &[&str]) -> (Server, Events) {
    let _ = std::fs::remove_file(array.path("events"));
    let (events, hook) = Events::new(array);
    let server =
        Server::start_members(array, array.members(), &[options, &["--on-event", hook.to_str().unwrap()]].concat());
    assert_eq!(events.until("started"), [""; 0]);
    (server, events)
}

#[test]
fn an_interrupted_scrub_goes_on_where_it_was_and_keeps_what_it_has_found() {
    for is_killed in [false, true] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let server = Server::start(&array);
        write_export(server.uri(), &Random::new(31).bytes(array.expected_size()));
        let _ = server.stop();
        damage(&array, 0);
        let (server, events) = served(&array, &[]);
        let _ = ask(&array, &["set", "--scrub-limit", "4M"]).success();
        let _ = ask(&array, &["scrub", "start", "--repair"]).success();
        assert_eq!(events.until("scrub-mismatch"), ["scrub-started"]);
        let quarter = array.expected_size() as u64 / 4;
        let _ = until(&array, "a quarter is done", |now| sweep(now, "scrub").unwrap().0 > quarter);
        if is_killed {
            server.kill();
        } else {
            let _ = server.stop();
            assert_eq!(events.until("stopped"), [""; 0]);
        }

        let (server, events) = served(&array, &[]);
        assert_eq!(events.until("scrub-finished"), [""; 0], "what was told is told once");
        let now = status(&array);
        let scrub = &now["scrub"];
        assert_eq!((&scrub["mode"], &scrub["running"]), (&"repair".into(), &false.into()));
        assert_eq!(scrub["done_bytes"], array.expected_size());
        assert_eq!(scrub["mismatched_bytes"], 4096, "what was found before");
        let all: usize = array.facts().iter().map(|member| member.data_size).sum();
        assert!(sum(&now, "read_bytes") < all as u64 * 95 / 100, "killed: {is_killed}: {now:#}");
        let finished = now["scrub_finished_s"].as_u64().unwrap();
        let _ = server.stop();
        assert_eq!(array.examine()["scrub_finished_s"], finished);

        let (server, events) = served(&array, &["--scrub-every", "1d"]);
        let now = status(&array);
        assert_eq!((&now["scrub"], &now["scrub_finished_s"]), (&Value::Null, &finished.into()));
        let _ = server.stop();
        assert_eq!(events.until("stopped"), [""; 0]);
    }
}

#[test]
fn a_scrub_that_was_stopped_is_not_gone_on_with() {
    let array = Array::create(&shape::raid5_of_3());
    let (server, _) = served(&array, &[]);
    let _ = ask(&array, &["set", "--scrub-limit", "1K"]).success();
    let _ = ask(&array, &["scrub", "start"]).success();
    let _ = ask(&array, &["scrub", "stop"]).success();
    let _ = server.stop();
    let (server, _) = served(&array, &[]);
    let now = status(&array);
    assert_eq!((&now["scrub"], &now["scrub_finished_s"]), (&Value::Null, &Value::Null));
    let _ = server.stop();
}

#[test]
fn scrubs_begin_by_themselves_when_they_are_due() {
    let array = Array::create(&shape::rm2_of_6());
    let refusal = Server::try_start(&array, array.members(), &["--scrub-every", "soon"]).err().unwrap().code_is(2);
    assert!(refusal.stderr.contains("30d"), "{}", refusal.stderr);
    let (server, events) = served(&array, &["--scrub-every", "30d"]);
    assert_eq!(status(&array)["scrub"], Value::Null, "a new array is not due");
    let _ = server.stop();
    assert_eq!(events.until("stopped"), [""; 0]);
    let (server, events) = served(&array, &["--scrub-every", "1s"]);
    for _ in 0..2 {
        assert_eq!(events.until("scrub-finished"), ["scrub-started"]);
    }
    assert_eq!(status(&array)["scrub"]["mode"], "check");
    let _ = server.stop();
}

#[test]
fn a_limit_holds_a_scrub_back_until_it_is_lifted() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_3());
        let (server, events) = served(&array, &["--connection-threads", threads]);
        let said = ask(&array, &["set", "--scrub-limit", "1K"]).success().text();
        assert!(said.contains("1 KiB/s"), "{said}");
        let _ = ask(&array, &["scrub", "start"]).success();
        let now = until(&array, "how long it takes", |now| now["sweeps"][0]["seconds_left"].is_u64());
        assert_eq!((&now["scrub"]["running"], &now["sweeps"][0]["work"]), (&true.into(), &"scrub".into()));
        let screen = ask(&array, &["status"]).success().text();
        assert!(screen.contains("/s, ") && screen.contains(" left), checking"), "{screen}");
        // A part goes beyond it, of at most a MiB.
        assert!(sum(&now, "read_bytes") <= 1 << 20, "{now:#}");
        let _ = ask(&array, &["set", "--scrub-limit", "none"]).success();
        assert_eq!(events.until("scrub-finished"), ["scrub-started"]);
        let _ = server.stop();
    }
}

/// Large enough that whoever waits for the end of the work is told apart: what was not finished is on record as that.
#[test]
fn a_stop_waits_neither_for_a_scrub_nor_for_a_rebuild() {
    for threads in ["0", "2"] {
        let array = Array::planned(&shape::raid5_of_3());
        let _ = array.run_create(1 << 30, &["--sparse"]).success();
        let options = ["--connection-threads", threads];
        let (server, events) = served(&array, &options);
        let _ = ask(&array, &["scrub", "start"]).success();
        let _ = server.stop();
        assert_eq!(events.until("stopped"), ["scrub-started"], "the scrub was not finished");
        let (server, _) = served(&array, &options);
        let now = status(&array);
        assert_eq!((&now["scrub"]["mode"], &now["scrub_finished_s"]), (&"check".into(), &Value::Null));
        let _ = ask(&array, &["scrub", "stop"]).success();
        let _ = ask(&array, &["fail", "1"]).success();
        let _ = ask(&array, &["add", "--force", array.members()[1].to_str().unwrap()]).success();
        let _ = server.stop();
        let (server, _) = served(&array, &options);
        assert_eq!(status(&array)["health"]["rebuilding"], serde_json::json!([1]), "the rebuild was not finished");
        let _ = server.stop();
    }
}

#[test]
fn what_a_scrub_finds_just_before_a_stop_is_told() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let server = Server::start(&array);
        write_export(server.uri(), &Random::new(32).bytes(array.expected_size()));
        let _ = server.stop();
        damage(&array, 0);
        let (server, events) = served(&array, &["--connection-threads", threads]);
        let _ = ask(&array, &["scrub", "start"]).success();
        let _ = server.stop();
        let told = events.until("stopped");
        assert!(told.starts_with(&["scrub-started".into(), "scrub-mismatch".into()]), "{told:?}");
    }
}

#[test]
fn waiting_ends_with_the_work_and_says_whether_the_array_is_whole() {
    let array = Array::create(&shape::raid5_of_3());
    let (server, _) = served(&array, &[]);
    assert!(ask(&array, &["wait"]).success().text().starts_with("whole"));
    let _ = ask(&array, &["fail", "1"]).success();
    let refusal = ask(&array, &["wait"]).code_is(1).stderr;
    assert!(refusal.contains("member 1 is missing"), "{refusal}");
    let _ = ask(&array, &["add", "--force", array.members()[1].to_str().unwrap()]).success();
    assert!(ask(&array, &["wait"]).success().text().starts_with("whole"));
    assert_eq!(status(&array)["rebuild"], Value::Null);
    let said = ask(&array, &["scrub", "start", "--wait"]).success().text();
    assert!(said.contains("finished; nothing wrong"), "{said}");
    damage(&array, 0);
    let found = ask(&array, &["scrub", "start", "--wait"]).code_is(1);
    assert!(
        found.text().contains("finished; 4 KiB wrong") && found.stderr.contains("do not agree"),
        "{}",
        found.stderr
    );
    let _ = server.stop();
}

#[test]
fn commands_that_print_to_nobody_end_quietly() {
    let array = Array::create(&shape::raid1_of_2());
    let (server, _) = served(&array, &[]);
    let (socket, member) = (array.socket(), array.members()[0].clone());
    let socket = socket.to_str().unwrap();
    for words in [
        &["status", "--socket", socket][..],
        &["status", "--json", "--socket", socket],
        &["scrub", "start", "--socket", socket],
        &["examine", member.to_str().unwrap()],
        &["layout", "--level", "5", "--members", "5"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = binary::command();
        let output = command.args(words).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8(output.stderr).unwrap()),
            (Some(0), String::new()),
            "{words:?}"
        );
    }
    let _ = server.stop();
}

#[test]
fn members_say_how_long_their_operations_take() {
    let array = Array::create(&shape::raid1_of_2());
    let (server, _) = served(&array, &["--cache", "none"]);
    let mut client = server.connect();
    for block in 0..20 {
        client.write(block * 4096, &[7; 4096]);
    }
    client.flush();
    for member in status(&array)["members"].as_array().unwrap() {
        let latency = |field: &str| member["write_latency"][field].as_u64().unwrap();
        let buckets: Vec<u64> = member["write_latency"]["buckets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|count| count.as_u64().unwrap())
            .collect();
        assert_eq!(buckets.len(), 21);
        assert!(buckets.iter().sum::<u64>() >= member["writes"].as_u64().unwrap(), "{member:#}");
        assert_eq!(latency("mean_us"), latency("sum_us") / buckets.iter().sum::<u64>(), "{member:#}");
        // The smallest bound below which 99 of 100 are.
        let count: u64 = buckets.iter().sum();
        let most = (0..20).find(|&last| buckets[..=last].iter().sum::<u64>() * 100 >= count * 99).unwrap();
        assert_eq!(latency("p99_us"), 16 << most, "{member:#}");
    }
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains("read ms") && screen.contains(" / "), "{screen}");
    let _ = server.stop();
}
