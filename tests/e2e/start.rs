//! Starts that are not as they should be: members that come late, hold nothing, are out of date, or are too few.

mod late;

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::{Value, json};
use uraid_tests::array::{Array, Content};
use uraid_tests::binary::uraid;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::Command;
use uraid_tests::placement::{MemberRow, Placement};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES, Shape};

use super::control::{ask, status};

/// Small, so that each chunk can be read alone.
const SMALL: usize = 8 << 20;

/// NBD's number for an I/O error.
const EIO: u32 = 5;

fn filled(shape: &Shape, member_bytes: usize) -> (Array, Vec<u8>) {
    let array = Array::create_sized(shape, member_bytes);
    let image = Random::new(31).bytes(array.expected_size());
    let server = Server::start(&array);
    write_export(server.uri(), &image);
    let _ = server.stop();
    (array, image)
}

fn contents(members: &[PathBuf]) -> Vec<Vec<u8>> {
    members.iter().map(|member| std::fs::read(member).unwrap()).collect()
}

/// As a disk that its firmware has made read-only.
#[test]
fn a_write_protected_member_does_not_stop_a_degraded_start() {
    let (array, image) = filled(&shape::raid5_of_3(), SMALL);
    let path = array.members()[1].to_str().unwrap();
    let protect = |how: &str| client("chattr", [how, path]).success();
    let _ = protect("+i");
    let refusal = Server::refused(&array, array.members(), &[]).stderr;
    let server = Server::try_start(&array, array.members(), &["--degraded"]);
    let _ = protect("-i");
    assert!(refusal.contains(path), "{refusal}");
    let server = server.unwrap_or_else(|refused| panic!("{}", refused.stderr));
    assert_same(&read_export(server.uri()), &image, "without the member");
    let _ = server.stop();
}

#[test]
fn a_new_disk_at_an_old_path_does_not_stop_a_degraded_start() {
    let (array, image) = filled(&shape::raid5_of_3(), SMALL);
    let path = &array.members()[1];
    std::fs::write(path, vec![0; SMALL]).unwrap();
    let refusal = Server::refused(&array, array.members(), &[]).stderr;
    assert!(refusal.contains(path.to_str().unwrap()) && refusal.contains("superblock"), "{refusal}");

    let server = Server::start_members(&array, array.members(), &["--degraded"]);
    assert_same(&read_export(server.uri()), &image, "beside a blank disk");
    let _ = ask(&array, &["stop"]).success();
    let told = server.end().stderr;
    assert!(
        told.contains(path.to_str().unwrap()) && told.contains("no superblock"),
        "what is left out is named: {told}"
    );
    assert_eq!(std::fs::read(path).unwrap(), vec![0; SMALL], "it is not written");

    // A member whose superblocks are all damaged is as good as that.
    let noise = Random::new(5).bytes(2 << 20);
    let mut member = std::fs::read(&array.members()[2]).unwrap();
    for range in [16..1 << 20, SMALL - (1 << 20) + 16..SMALL] {
        member[range.clone()].copy_from_slice(&noise[..range.len()]);
    }
    array.remove(&[1]);
    std::fs::write(&array.members()[2], member).unwrap();
    let refusal = Server::refused(&array, &array.without(&[1]), &["--degraded"]).stderr;
    assert!(refusal.contains("too few"), "{refusal}");
}

/// What the placement says can be had without some members: a group gives the one place back that it lacks.
fn readable(placement: &Placement, absent: &[usize]) -> HashSet<MemberRow> {
    let groups = placement.groups();
    let copies = (0..placement.units()).flat_map(|unit| placement.copies(unit));
    let places: HashSet<MemberRow> = groups.iter().flatten().map(|&(place, _)| place).chain(copies).collect();
    let mut known: HashSet<MemberRow> = places.into_iter().filter(|(slot, _)| !absent.contains(slot)).collect();
    loop {
        let before = known.len();
        for group in &groups {
            let mut unknown = group.iter().map(|&(place, _)| place).filter(|place| !known.contains(place));
            if let (Some(place), None) = (unknown.next(), unknown.next()) {
                known.insert(place);
            }
        }
        if known.len() == before {
            return known;
        }
    }
}

#[test]
fn what_is_left_of_too_few_members_can_be_read() {
    for shape in shape::all().iter().filter(|shape| shape.fatal.is_some()) {
        reads_what_is_left(shape);
    }
}

fn reads_what_is_left(shape: &Shape) {
    let absent = shape.fatal.as_deref().unwrap();
    let (array, image) = filled(shape, SMALL.max(9 * shape.chunk_bytes()));
    let placement = array.placement(&array.facts());
    array.remove(absent);
    let present = array.without(absent);
    let before = contents(&present);
    let refusal = Server::refused(&array, &present, &["--degraded", "--force"]).stderr;
    assert!(refusal.contains("--read-only"), "{}: it says what can be done: {refusal}", shape.name);

    for cache in ["none", "writeback"] {
        let options = ["--degraded", "--force", "--read-only", "--cache", cache];
        let server = Server::start_members(&array, &present, &options);
        let known = readable(&placement, absent);
        let mut client = server.connect();
        let (mut had, chunk) = (0, shape.chunk_bytes());
        for unit in 0..placement.units() {
            let what = format!("{}: unit {unit}", shape.name);
            let (offset, length) = (unit * chunk, u32::try_from(chunk).unwrap());
            let reply = client.call(Command::Read, offset as u64, length, &[]);
            if placement.copies(unit).iter().any(|place| known.contains(place)) {
                assert_eq!(reply.error, 0, "{what} is there");
                assert_same(&reply.data, &image[offset..offset + chunk], &what);
                had += 1;
            } else {
                assert_eq!(reply.error, EIO, "{what} is not there");
            }
        }
        assert!(had < placement.units(), "{}: something is lost", shape.name);
        client.disconnect();
        let health = &status(&array)["health"];
        let lost = (placement.units() - had) * chunk;
        assert_eq!(
            (&health["state"], &health["salvage"]["unreadable_bytes"]),
            (&json!("salvage"), &json!(lost)),
            "{}",
            shape.name
        );
        for words in [&["scrub", "start"][..], &["scrub", "start", "--wait"]] {
            let refusal = ask(&array, words).code_is(1).stderr;
            assert!(refusal.contains("there is nothing to compare"), "{}: {refusal}", shape.name);
        }
        let _ = ask(&array, &["stop"]).success();
        let told = server.end().stderr;
        assert!(told.contains("only what is left is served") && !told.contains("scrub"), "{}: {told}", shape.name);
    }
    assert!(contents(&present) == before, "{}: nothing is written", shape.name);
}

/// Ranges that the server says may be old or wrong.
fn doubtful(server: &Server) -> Vec<std::ops::Range<usize>> {
    let lines = server.printed().lines();
    let ranges = lines.filter_map(|line| line.strip_prefix("may be old or wrong: bytes "));
    let range = |range: &str| {
        let (first, last) = range.split_once(" to ").unwrap();
        first.parse().unwrap()..last.parse::<usize>().unwrap() + 1
    };
    ranges.map(range).collect()
}

#[test]
fn a_member_that_failed_long_ago_is_the_last_resort() {
    for (shape, old, gone) in
        [(shape::raid5_of_3(), vec![0], vec![1]), (shape::rm2_of_7_adjacent(), vec![3, 4], vec![6])]
    {
        for consistency in ["log", "bitmap"] {
            reads_an_old_member(&shape, &old, &gone, consistency);
        }
    }
}

/// An array that is read from old members is not taken for one that has everything.
fn assert_salvage(array: &Array, old: &[usize], ranges: &[std::ops::Range<usize>]) {
    let now = status(array);
    let salvage = &now["health"]["salvage"];
    let stale: Vec<&Value> = salvage["stale"].as_array().unwrap().iter().map(|one| &one["slot"]).collect();
    assert_eq!((&now["health"]["state"], json!(stale)), (&json!("salvage"), json!(old)), "{now:#}");
    let total: usize = ranges.iter().map(ExactSizeIterator::len).sum();
    let doubtful = (&salvage["doubtful_ranges"], &salvage["doubtful_bytes"]);
    assert_eq!(doubtful, (&json!(ranges.len()), &json!(total)), "{now:#}");
    assert_eq!(salvage["doubtful"][0], json!([ranges[0].start / 512, ranges[0].end / 512]), "{now:#}");
    assert_eq!(salvage["unreadable_bytes"], 0, "{now:#}");
    old.iter().for_each(|&slot| assert_eq!(now["members"][slot]["troubles"], json!(["stale"]), "{now:#}"));
    let waited = ask(array, &["wait"]).code_is(1).stderr;
    assert!(waited.contains("salvage: member") && waited.contains("out of date"), "{waited}");
}

fn reads_an_old_member(shape: &Shape, old: &[usize], gone: &[usize], consistency: &str) {
    let what = format!("{} with a {consistency}", shape.name);
    let array = Array::planned(shape);
    let _ = array.run_create(MEMBER_BYTES, &["--consistency", consistency]).success();
    let mut model = Random::new(31).bytes(array.expected_size());
    let server = Server::start(&array);
    write_export(server.uri(), &model);
    let _ = server.stop();
    // On Monday.
    let server = Server::start(&array);
    for slot in old {
        let _ = ask(&array, &["fail", &slot.to_string()]).success();
    }
    let mut client = server.connect();
    let mut written = Vec::new();
    for place in [1, 5] {
        let offset = model.len() / 8 * place / 4096 * 4096;
        let data = Random::new(place as u64).bytes(200 << 10);
        client.write(offset, &data);
        model[offset..offset + data.len()].copy_from_slice(&data);
        written.push(offset..offset + data.len());
    }
    client.flush();
    client.disconnect();
    let _ = server.stop();
    let content = Content::read(&array);
    // On Friday.
    array.remove(gone);
    let left = array.without(gone);
    let before = contents(&left);
    let accept: Vec<String> = old.iter().flat_map(|slot| ["--accept-stale".into(), slot.to_string()]).collect();
    let accept: Vec<&str> = accept.iter().map(String::as_str).collect();
    let refusal = Server::refused(&array, &left, &["--degraded"]).stderr;
    assert!(refusal.contains("too few") && refusal.contains("--accept-stale"), "{what}: {refusal}");
    let options = [&accept[..], &["--degraded"]].concat();
    let refusal = Server::try_start(&array, &left, &options).unwrap_err().code_is(2).stderr;
    assert!(refusal.contains("--read-only"), "{what}: {refusal}");
    let options = [&accept[..], &["--degraded", "--read-only"]].concat();

    let server = Server::start_members(&array, &left, &options);
    let ranges = doubtful(&server);
    for written in &written {
        let is_covered = ranges.iter().any(|range| range.start <= written.start && written.end <= range.end);
        assert!(is_covered, "{what}: {written:?} was written since: {ranges:?}");
    }
    let total: usize = ranges.iter().map(ExactSizeIterator::len).sum();
    assert!(total < model.len() / 4, "{what}: most of it is certain: {ranges:?}");
    assert_salvage(&array, old, &ranges);
    let mut image = read_export(server.uri());
    let found = image.clone();
    for range in ranges {
        image[range.clone()].copy_from_slice(&model[range]);
    }
    assert_same(&image, &model, &format!("{what}: all that is certain"));
    // Where something was written since, members that are up to date give it, and the others what they have.
    let placement = array.placement(content.facts());
    let chunk = shape.chunk_bytes();
    for unit in (0..placement.units()).filter(|&unit| !gone.contains(&placement.copies(unit)[0].0)) {
        let (slot, row) = placement.copies(unit)[0];
        let held = content.at((slot, row));
        assert_same(&found[unit * chunk..(unit + 1) * chunk], held, &format!("{what}: unit {unit} of member {slot}"));
    }
    let _ = ask(&array, &["stop"]).success();
    let told = server.end().stderr;
    for slot in old {
        assert!(told.contains(&format!("member {slot} (")) && told.contains("out of date"), "{what}: {told}");
    }
    assert!(contents(&left) == before, "{what}: nothing is written");

    let refused = |options: &[&str], named: &str| {
        let refusal = Server::refused(&array, &left, &[options, &["--degraded", "--read-only"]].concat()).stderr;
        assert!(refusal.contains(named), "{what}: {options:?}: {refusal}");
    };
    refused(&["--accept-stale", &gone[0].to_string()], "no member of slot");
    refused(&["--accept-stale", "2"], "is up to date");
}

#[test]
fn examine_says_of_each_path_what_it_is() {
    let array = Array::create_sized(&shape::raid5_of_3(), SMALL);
    let (blank, absent) = (array.path("blank"), array.path("absent"));
    std::fs::write(&blank, vec![0; SMALL]).unwrap();
    let paths = [&[blank.clone(), absent.clone()], array.members()].concat();
    let examined = uraid(["examine".as_ref()].into_iter().chain(paths.iter().map(|path| path.as_os_str()))).code_is(1);
    let shown = String::from_utf8_lossy(&examined.stdout).into_owned();
    array.members().iter().for_each(|member| assert!(shown.contains(member.to_str().unwrap()), "{shown}"));
    for path in [&blank, &absent] {
        assert!(examined.stderr.contains(path.to_str().unwrap()), "{}", examined.stderr);
    }
    assert!(examined.stderr.contains("has no uraid superblock"), "{}", examined.stderr);
}

#[test]
fn arrays_of_one_name_are_told_apart_by_their_uuids() {
    let [one, other] = [0, 1].map(|_| Array::planned(&shape::raid1_of_2()));
    let made = [&one, &other].map(|array| array.run_create(MEMBER_BYTES, &["--name", "tank", "--json"]));
    let [uuid, other_uuid] = made.map(|made| made.success().json()["uuid"].as_str().unwrap().to_owned());
    let both = [one.members(), other.members()].concat();
    let refused = Server::refused(&one, &both, &["--name", "tank"]).stderr;
    for part in ["an array named \"tank\" is not the only one", &uuid, &other_uuid, "choose one with --uuid"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let _ = Server::start_members(&one, &both, &["--uuid", &uuid]).stop();
}
