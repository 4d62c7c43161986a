//! Growing an array while it is served: clients go on, and those that connect afterwards see what is new.

use std::fs::File;
use std::time::Duration;

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export};
use uraid_tests::nbd::Client;
use uraid_tests::process::Process;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES, Shape};

use crate::control::scrub::Events;
use crate::control::{ask, status};

/// What members get: several regions of a map of blank regions of the smallest arrays.
const MORE: u64 = 9 << 20;

mod served {
    uraid_tests::for_shapes!(super::grows_under_its_clients: raid0_of_4, raid1_of_2, raid10_of_5, raid5_of_3, rm2_of_6);
}

fn grows_under_its_clients(shape: &Shape) {
    for (threads, cache) in [("0", "writeback"), ("2", "writeback"), ("0", "none")] {
        let what = format!("{}, {threads} threads, cache {cache}", shape.name);
        let array = Array::create(shape);
        let server =
            Server::start_members(&array, array.members(), &["--connection-threads", threads, "--cache", cache]);
        let (mut random, mut model) = (Random::new(5), vec![0; array.expected_size()]);
        let mut before = server.connect();
        let old = model.len();
        write_at_random(&mut before, &mut random, &mut model);
        let refused = ask(&array, &["grow"]);
        assert!(refused.code != Some(0) && refused.stderr.contains("enlarge all members first"), "{what}: {refused:?}");
        for step in 1..3 {
            enlarge(&array, MORE);
            let printed = ask(&array, &["grow"]).success().text();
            assert!(printed.starts_with("grew from "), "{what}: {printed}");
            let size = usize::try_from(status(&array)["size_bytes"].as_u64().unwrap()).unwrap();
            assert!(size > model.len(), "{what}: {size}");
            // It knows the size that the array had.
            write_at_random(&mut before, &mut random, &mut model[..old]);
            model.resize(size, 0);
            let mut after = server.connect();
            write_at_random(&mut after, &mut random, &mut model);
            assert_same(&read_export(server.uri()), &model, &format!("{what}, grown {step} times"));
        }
        let _ = ask(&array, &["wait"]).success();
        before.flush();
        server.kill();
        let server = Server::start(&array);
        assert_same(&read_export(server.uri()), &model, &format!("{what}, after a crash"));
        let _ = server.stop();
    }
}

/// What can't grow is served as it was.
#[test]
fn an_array_that_is_not_whole_does_not_grow() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let (mut random, mut model) = (Random::new(6), vec![0; array.expected_size()]);
    let mut client = server.connect();
    write_at_random(&mut client, &mut random, &mut model);
    let _ = ask(&array, &["fail", "1"]).success();
    enlarge(&array, MORE);
    let refused = ask(&array, &["grow"]);
    assert!(refused.stderr.contains("missing or not rebuilt"), "{refused:?}");
    write_at_random(&mut client, &mut random, &mut model);
    assert_same(&read_export(server.uri()), &model, "as it was");
    let _ = server.stop();
}

fn enlarge(array: &Array, more: u64) {
    for path in array.members() {
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() + more).unwrap();
    }
}

fn write_at_random(client: &mut Client, random: &mut Random, model: &mut [u8]) {
    for _ in 0..40 {
        let (offset, length) = random.sectors(model.len(), 128 << 10);
        let data = random.bytes(length);
        client.write(offset, &data);
        model[offset..offset + length].copy_from_slice(&data);
    }
}

/// What was enlarged and has not grown yet fails, and is replaced, as any member.
#[test]
fn members_that_were_enlarged_can_fail_and_be_replaced() {
    let array = Array::create(&shape::raid5_of_3());
    enlarge(&array, MORE);
    let server = Server::start(&array);
    let mut model = vec![0; array.expected_size()];
    write_at_random(&mut server.connect(), &mut Random::new(7), &mut model);
    let new = array.path("new");
    let larger = (MEMBER_BYTES as u64 + MORE).to_string();
    let _ = ask(&array, &["replace", "--size", &larger, "0", new.to_str().unwrap()]).success();
    let _ = ask(&array, &["wait"]).success();
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = ask(&array, &["add", "--force", array.members()[1].to_str().unwrap()]).success();
    assert!(ask(&array, &["wait"]).success().text().starts_with("whole"));
    assert_same(&read_export(server.uri()), &model, "of members that were enlarged");
    let _ = server.stop();
}

#[test]
fn growth_is_an_event_and_the_list_has_the_size() {
    let array = Array::create(&shape::raid5_of_3());
    let (events, hook) = Events::new(&array);
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    let before = status(&array)["size_bytes"].as_u64().unwrap();
    enlarge(&array, MORE);
    let _ = ask(&array, &["grow"]).success();
    assert_eq!(events.until("grown"), ["started", "initialise-started"]);
    let size = status(&array)["size_bytes"].as_u64().unwrap();
    assert!(size > before, "{before}, then {size}");
    let listed = binary::uraid(["list", "--json", array.members()[0].to_str().unwrap()]).success().json();
    assert!(listed.to_string().contains(&format!("\"size_bytes\":{size}")), "{size}: {listed:#}");
    let _ = server.stop();
}

/// What limits a rebuild does so in an array that has grown, too.
#[test]
fn limits_hold_after_growth() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let mut random = Random::new(7);
    server.connect().write(0, &random.bytes(4 << 20));
    let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
    enlarge(&array, MORE);
    let _ = ask(&array, &["grow"]).success();
    assert_eq!(status(&array)["limits"]["rebuild_bytes_per_second"], 64 << 10);
    let _ = ask(&array, &["fail", "1"]).success();
    let new = array.path("new");
    let _ = ask(&array, &["add", "--size", "32M", new.to_str().unwrap()]).success();
    let mut waiting = binary::command();
    waiting.args(["wait", "--socket"]).arg(array.socket());
    let mut waiting = Process::start(waiting);
    assert!(!waiting.has_ended(Duration::from_secs(1)).unwrap(), "it takes half a minute at that rate");
    let _ = ask(&array, &["set", "--rebuild-limit", "none"]).success();
    let _ = waiting.finish(Duration::from_secs(60)).success();
    let _ = server.stop();
}
