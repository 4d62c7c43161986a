//! Members that return: what they lack is made again, and nothing else where that is known.

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same, read_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::{Load, ask, filled, of_member, path, refuse};
use crate::control::status;

/// A region of the write-intent bitmap of an array of this size.
const REGION: usize = 1 << 20;

/// How long bits may stay set that nobody needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first bits of the write-intent bitmap on a member.
fn marked(array: &Array, slot: usize) -> u64 {
    let mut bits = [0; 8];
    let member = std::fs::File::open(&array.members()[slot]).unwrap();
    member.read_exact_at(&mut bits, (64 << 10) + 16).unwrap();
    u64::from_le_bytes(bits)
}

/// Waits until no region is marked.
#[track_caller]
fn wait_for_quiet(array: &Array) {
    let deadline = Instant::now() + PATIENCE;
    while marked(array, 0) != 0 {
        assert!(Instant::now() < deadline, "still marked: {:#x}", marked(array, 0));
        // A question to the server lets it run.
        let _ = ask(array, &["status"]).success();
    }
}

#[test]
fn a_mirror_that_returns_is_copied_where_it_was_written() {
    let (array, server, events, mut model) = filled(&shape::raid1_of_2());
    wait_for_quiet(&array);
    let _ = ask(&array, &["fail", "1"]).success();
    let mut client = server.connect();
    for region in [1, 3] {
        let data = Random::new(region as u64).bytes(4096);
        client.write(region * REGION + 512, &data);
        model[region * REGION + 512..][..data.len()].copy_from_slice(&data);
    }
    client.flush();
    let before = of_member(&array, 0, "read_bytes");
    let _ = ask(&array, &["add", path(&array, 1)]).success();
    let _ = events.until("recovered");
    assert_eq!(of_member(&array, 0, "read_bytes") - before, 2 * REGION as u64, "two regions, once each");
    wait_for_quiet(&array);
    assert_eq!(marked(&array, 1), 0, "both mirrors are as good as each other");
    let _ = server.stop();
    Content::read(&array).assert_holds(&model, "both mirrors");
}

/// It has only its own word for it that the array went on without it.
#[test]
fn a_mirror_that_was_given_up_does_not_start_alone() {
    let (array, server, events, mut model) = filled(&shape::raid1_of_2());
    wait_for_quiet(&array);
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = events.until("degraded");
    let data = Random::new(31).bytes(4096);
    let mut client = server.connect();
    client.write(0, &data);
    client.disconnect();
    model[..data.len()].copy_from_slice(&data);
    let _ = server.stop();

    let alone = array.without(&[0]);
    for options in [&["--degraded"][..], &["--degraded", "--force"]] {
        let refusal = Server::refused(&array, &alone, options).stderr;
        assert!(refusal.contains("--accept-stale"), "{options:?}: {refusal}");
    }
    let last_resort = ["--degraded", "--read-only", "--force", "--accept-stale", "1"];
    let server = Server::start_members(&array, &alone, &last_resort);
    let health = status(&array)["health"].clone();
    assert_eq!((&health["state"], &health["salvage"]["doubtful_bytes"]), (&"salvage".into(), &model.len().into()));
    let _ = server.stop();

    // Beside the other it returns as before.
    let server = Server::start_members(&array, array.members(), &["--degraded"]);
    let _ = ask(&array, &["add", path(&array, 1)]).success();
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    Content::read(&array).assert_holds(&model, "both mirrors");
}

/// The same while clients write: what they write meanwhile is on both.
#[test]
fn a_mirror_returns_under_load() {
    let (array, server, events, model) = filled(&shape::raid10_of_4());
    let load = Load::start(&server, model, 21);
    for _ in 0..3 {
        let _ = ask(&array, &["fail", "2"]).success();
        let _ = events.until("degraded");
        let _ = ask(&array, &["add", path(&array, 2)]).success();
        let _ = events.until("recovered");
    }
    let model = load.finish();
    let _ = server.stop();
    Content::read(&array).assert_holds(&model, "all mirrors");
}

/// Whoever has lost the superblock is nobody: it does not return, and becomes a new member only when that is asked for
/// as such.
#[test]
fn what_has_no_superblock_does_not_return() {
    let (array, server, events, model) = filled(&shape::raid1_of_2());
    wait_for_quiet(&array);
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = ask(&array, &["remove", "1"]).success();
    let uuid = &array.facts()[1].uuid.clone();
    let member = std::fs::File::options().write(true).open(&array.members()[1]).unwrap();
    let size = member.metadata().unwrap().len();
    member.write_all_at(&vec![0; 64 << 10], 0).unwrap();
    member.write_all_at(&vec![0; 128 << 10], size - (128 << 10)).unwrap();
    drop(member);
    let before = of_member(&array, 0, "read_bytes");
    refuse(&array, &["add", path(&array, 1)], "holds data");
    let _ = ask(&array, &["add", "--force", path(&array, 1)]).success();
    let _ = events.until("recovered");
    let read = of_member(&array, 0, "read_bytes") - before;
    assert!(read >= array.expected_size() as u64, "all of it is made: {read} bytes");
    assert_ne!(&array.facts()[1].uuid, uuid, "it is another member now");
    assert_same(&read_export(server.uri()), &model, "as before");
    let _ = server.stop();
    Content::read(&array).assert_holds(&model, "a new member");

    // Of another array it is refused, whatever its content.
    let (other, other_server, _, _) = filled(&shape::raid1_of_2());
    let _ = ask(&other, &["fail", "1"]).success();
    refuse(&other, &["add", path(&array, 1)], "force");
    let _ = other_server.stop();
}
