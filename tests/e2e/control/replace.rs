//! A member that is copied to a new one, which takes its place, under a load that checks what it reads.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use uraid_tests::array::Array;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::Client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

use super::scrub::Events;
use super::{ask, status, sweep};

/// What a load leaves, once it is told to end.
struct Load {
    ends: std::sync::Arc<AtomicBool>,
    thread: JoinHandle<Vec<u8>>,
}

impl Load {
    /// Writes at random, and reads what was written, until it is told to end, and once at least.
    fn start(server: &Server, mut model: Vec<u8>, seed: u64) -> Self {
        let ends = std::sync::Arc::new(AtomicBool::new(false));
        let (told, mut client, mut random) = (std::sync::Arc::clone(&ends), server.connect(), Random::new(seed));
        let thread = std::thread::spawn(move || {
            loop {
                step(&mut client, &mut random, &mut model);
                if told.load(Ordering::Relaxed) {
                    client.flush();
                    return model;
                }
            }
        });
        Self { ends, thread }
    }

    #[track_caller]
    fn end(self) -> Vec<u8> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("what it reads is what it has written")
    }
}

fn step(client: &mut Client, random: &mut Random, model: &mut [u8]) {
    let (offset, length) = random.sectors(model.len(), 128 << 10);
    let (offset, length) =
        (offset / 4096 * 4096, length.next_multiple_of(4096).min(model.len() - offset / 4096 * 4096));
    let data = random.bytes(length);
    client.write(offset, &data);
    model[offset..offset + length].copy_from_slice(&data);
    let (offset, length) = random.sectors(model.len(), 128 << 10);
    let (offset, length) =
        (offset / 4096 * 4096, length.next_multiple_of(4096).min(model.len() - offset / 4096 * 4096));
    assert!(client.read(offset, length) == model[offset..offset + length], "{length} bytes at {offset}");
}

/// An array that is served and full, with somebody who hears what happens to it.
fn filled(shape: &Shape, more: &[&str]) -> (Array, Server, Events, Vec<u8>) {
    let array = Array::planned(shape);
    let _ = array.run_create(16 << 20, more).success();
    let (events, hook) = Events::new(&array);
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    let image = Random::new(7).bytes(usize::try_from(status(&array)["size_bytes"].as_u64().unwrap()).unwrap());
    write_export(server.uri(), &image);
    assert_eq!(events.until("started"), [""; 0]);
    (array, server, events, image)
}

/// The members with the new one in the slot's place.
fn replaced(array: &Array, slot: usize, new: &PathBuf) -> Vec<PathBuf> {
    let mut members = array.members().to_vec();
    members[slot].clone_from(new);
    members
}

#[test]
fn a_new_member_takes_the_place_of_one_that_works() {
    let shapes = [
        (shape::raid0_of_4(), &[][..]),
        (shape::raid1_of_2(), &[]),
        (shape::raid5_of_3(), &["--integrity", "crc32"]),
        (shape::rm2_of_7_adjacent(), &[]),
    ];
    for (shape, more) in shapes {
        let (array, server, events, image) = filled(&shape, more);
        let new = array.path("new");
        let (old_name, new_name) = (array.members()[1].to_str().unwrap(), new.to_str().unwrap());
        let refusal = ask(&array, &["replace", old_name, new_name]).code_is(1).stderr;
        assert!(refusal.contains("--size"), "{refusal}");
        let refusal = ask(&array, &["replace", "1", array.members()[0].to_str().unwrap()]).code_is(1).stderr;
        assert!(refusal.contains("member0"), "{refusal}");
        let _ = ask(&array, &["set", "--rebuild-limit", "1M"]).success();
        let load = Load::start(&server, image, 3);
        let _ = ask(&array, &["replace", "--size", "16M", old_name, new_name]).success();
        assert_eq!(events.until("replace-started"), [""; 0], "{}", shape.name);
        let now = status(&array);
        assert_eq!((&now["replace"]["slot"], &now["replace"]["path"]), (&json!(1), &json!(new_name)));
        assert_eq!((&now["members"][1]["path"], &now["health"]["state"]), (&json!(old_name), &json!("whole")));
        let screen = ask(&array, &["status"]).success().text();
        assert!(screen.contains("\nreplace  [") && screen.contains(&format!("member 1 to {new_name}")), "{screen}");
        let refusal = ask(&array, &["replace", "--size", "16M", "0", array.path("other").to_str().unwrap()]).code_is(1);
        assert!(refusal.stderr.contains("being replaced"), "{}", refusal.stderr);
        assert!(!array.path("other").exists(), "nothing was made of it");
        let _ = ask(&array, &["set", "--rebuild-limit", "none"]).success();
        assert_eq!(events.until("replace-finished"), [""; 0], "{}", shape.name);
        let now = status(&array);
        assert_eq!((&now["replace"], &now["members"][1]["path"]), (&Value::Null, &json!(new_name)));
        assert_eq!(now["health"]["state"], "whole");
        let model = load.end();
        assert_same(&read_export(server.uri()), &model, shape.name);
        let _ = server.stop();

        let members = replaced(&array, 1, &new);
        // The old one is no member any more, and says so when it is named.
        let all: Vec<PathBuf> = [&members[..], &array.members()[1..2]].concat();
        let server = Server::start_members(&array, &all, &[]);
        assert_same(&read_export(server.uri()), &model, "with all of them");
        let _ = server.stop();
        if shape.tolerated.is_empty() {
            continue;
        }
        // Without another one, so that what was copied counts.
        let left: Vec<PathBuf> = members[1..].to_vec();
        array.remove(&[0]);
        let server = Server::start_members(&array, &left, &["--degraded"]);
        assert_same(&read_export(server.uri()), &model, "without another");
        let _ = server.stop();
    }
}

#[test]
fn a_copy_that_is_cut_off_or_stopped_leaves_the_old_member() {
    let (array, server, events, image) = filled(&shape::raid5_of_3(), &[]);
    let new = array.path("new");
    let new_name = new.to_str().unwrap();
    let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
    let _ = ask(&array, &["replace", "--size", "16M", "1", new_name]).success();
    assert_eq!(events.until("replace-started"), [""; 0]);
    let _ = ask(&array, &["fail", new_name]).success();
    assert_eq!(events.until("replace-stopped"), [""; 0]);
    assert_eq!(status(&array)["replace"], Value::Null);
    // It is let go of.
    let _ = ask(&array, &["replace", "--force", "1", new_name]).success();
    assert_eq!(events.until("replace-started"), [""; 0]);
    let load = Load::start(&server, image, 4);
    let status = status(&array);
    assert!(sweep(&status, "replace").is_some_and(|(done, total)| done < total), "{status:#}");
    let model = load.end();
    server.kill();

    let server = Server::start(&array);
    assert_same(&read_export(server.uri()), &model, "the old member is one");
    assert_eq!(super::status(&array)["replace"], Value::Null);
    let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
    let _ = ask(&array, &["replace", "--force", "1", new_name]).success();
    let said = ask(&array, &["stop"]).success().text();
    assert!(said.contains("was not finished") && said.contains(new_name), "{said}");
    let _ = server.end().success();
    let refusal = Server::refused(&array, &replaced(&array, 1, &new), &[]).stderr;
    assert!(refusal.contains("new") && refusal.contains("superblock"), "{refusal}");
}

#[test]
fn the_new_member_is_rebuilt_when_the_old_one_fails_midway() {
    let (array, server, events, image) = filled(&shape::raid5_of_3(), &[]);
    let new = array.path("new");
    let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
    let load = Load::start(&server, image, 5);
    let _ = ask(&array, &["replace", "--size", "16M", "1", new.to_str().unwrap()]).success();
    assert_eq!(events.until("replace-started"), [""; 0]);
    let _ = ask(&array, &["fail", "1"]).success();
    assert_eq!(events.until("rebuild-started"), ["member-failed", "replace-rebuilding", "degraded"]);
    assert_eq!(status(&array)["members"][1]["path"], new.to_str().unwrap());
    let _ = ask(&array, &["set", "--rebuild-limit", "none"]).success();
    assert_eq!(events.until("recovered"), ["rebuild-finished"]);
    let model = load.end();
    assert_same(&read_export(server.uri()), &model, "rebuilt");
    // A slot without a member gets one as `add` does it.
    let _ = ask(&array, &["fail", "0"]).success();
    let other = array.path("other");
    let text = ask(&array, &["replace", "--size", "16M", "0", other.to_str().unwrap()]).success().text();
    assert!(text.contains("is being rebuilt"), "{text}");
    let _ = events.until("recovered");
    assert_eq!(status(&array)["members"][0]["path"], other.to_str().unwrap());
    let _ = server.stop();
}

/// The array of an old command line that nobody has edited, of which the replaced member would be all that is left.
#[test]
fn who_was_replaced_does_not_go_on_alone() {
    let (array, server, events, _) = filled(&shape::raid1_of_2(), &[]);
    let _ = ask(&array, &["fail", "1"]).success();
    assert_eq!(events.until("degraded"), ["member-failed"]);
    let new = array.path("new");
    let _ = ask(&array, &["replace", "--size", "16M", "0", new.to_str().unwrap()]).success();
    let _ = events.until("replace-finished");
    let image = Random::new(8).bytes(usize::try_from(status(&array)["size_bytes"].as_u64().unwrap()).unwrap());
    write_export(server.uri(), &image);
    let _ = server.stop();
    for options in [&[][..], &["--degraded"]] {
        let refusal = Server::refused(&array, array.members(), options).stderr;
        assert!(refusal.contains("too few members"), "{refusal}");
    }
    let server = Server::start_members(&array, &replaced(&array, 0, &new), &[]);
    assert_same(&read_export(server.uri()), &image, "with the one that took the place");
    let _ = server.stop();
}
