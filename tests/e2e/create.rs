//! `uraid create`: what it makes, and what it refuses to overwrite.

mod configure;
mod cut;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES, Shape};

use crate::control::{ask, metric, status};

/// Byte offset and bytes.
type Part = (usize, &'static [u8]);

/// What other formats leave on a device.
const SIGNATURES: &[(&str, &[Part])] = &[
    ("ext4", &[(1024, &[0x00, 0x10, 0, 0, 0x00, 0x40, 0, 0]), (1024 + 56, &[0x53, 0xef])]),
    ("xfs", &[(0, b"XFSB\x00\x00\x10\x00")]),
    ("btrfs", &[(65536 + 64, b"_BHRfS_M")]),
    ("md 1.2", &[(4096, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0])]),
    ("md 1.0", &[(MEMBER_BYTES - 8192, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0])]),
    ("LVM", &[(512, b"LABELONE"), (512 + 24, b"LVM2 001")]),
    ("LUKS", &[(0, b"LUKS\xba\xbe\x00\x02")]),
    ("swap", &[(4096 - 10, b"SWAPSPACE2")]),
    ("MBR", &[(446, &[0x80, 0, 2, 0, 0x83, 0, 2, 0, 0, 8, 0, 0, 0, 8, 0, 0]), (510, &[0x55, 0xaa])]),
    ("GPT", &[(512, b"EFI PART\x00\x00\x01\x00")]),
    ("text", &[(0, b"Dear diary,\n")]),
    ("data at the end", &[(MEMBER_BYTES - 4, b"data")]),
];

#[test]
fn signatures_are_not_overwritten_without_force() {
    let shape = shape::raid5_of_3();
    for (name, parts) in SIGNATURES {
        let array = Array::planned(&shape);
        let mut contents = vec![0; MEMBER_BYTES];
        for (offset, bytes) in *parts {
            contents[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        for member in array.members() {
            std::fs::write(member, vec![0; MEMBER_BYTES]).unwrap();
        }
        let victim = &array.members()[1];
        std::fs::write(victim, &contents).unwrap();
        let refusal = array.run_create(MEMBER_BYTES, &[]).code_is(1);
        assert!(refusal.stderr.contains(victim.to_str().unwrap()), "{name}: the file is named: {}", refusal.stderr);
        assert!(refusal.stderr.contains("--force"), "{name}: the way out is named: {}", refusal.stderr);
        assert!(std::fs::read(victim).unwrap() == contents, "{name}: nothing was written");
        let untouched = std::fs::read(&array.members()[0]).unwrap();
        assert!(untouched.iter().all(|&byte| byte == 0), "{name}: nor to the other members");
        let _ = array.run_create(MEMBER_BYTES, &["--force"]).success();
        let _ = Server::start(&array).stop();
    }
}

#[test]
fn members_of_an_array_are_not_overwritten_without_force() {
    for shape in [shape::raid0_of_4(), shape::rm2_of_6()] {
        let array = Array::create(&shape);
        let before = array.examine()["uuid"].clone();
        let refusal = array.run_create(MEMBER_BYTES, &[]).code_is(1);
        assert!(refusal.stderr.contains("--force"), "the way out is named: {}", refusal.stderr);
        assert_eq!(array.examine()["uuid"], before, "the array is what it was");
        let _ = array.run_create(MEMBER_BYTES, &["--force"]).success();
        assert_ne!(array.examine()["uuid"], before, "a new array");
    }
}

/// Whatever its members held, a new array is zeros from the start, and then its parity is right everywhere.
#[test]
fn a_new_array_is_zeros_and_becomes_consistent() {
    for shape in shape::all() {
        let array = Array::planned(&shape);
        for (slot, member) in array.members().iter().enumerate() {
            let byte = u8::try_from(slot + 1).expect("few members");
            std::fs::write(member, vec![byte; MEMBER_BYTES]).unwrap();
        }
        let _ = array.run_create(MEMBER_BYTES, &["--force"]).success();
        assert_eq!(array.examine()["state"].as_str(), Some("clean"), "{}: as created", shape.name);
        assert_eq!(array.examine()["blank"].as_bool(), Some(true), "{}: as created", shape.name);
        let members = array.members().iter().map(|member| member.to_str().unwrap());
        let map = binary::uraid(["map", "--json", "--lba", "0"].into_iter().chain(members)).success().json();
        assert_eq!(map["blank"], serde_json::json!([0, array.expected_size() / 512]), "{}", shape.name);
        assert_eq!(map["read"]["reads"], serde_json::json!([]), "{}: nobody reads members", shape.name);
        let server = Server::start_members(&array, array.members(), &["--rebuild-limit", "1M"]);
        let mut client = server.connect();
        let all = usize::try_from(client.size()).unwrap();
        for at in (0..all).step_by(1 << 20) {
            let len = (all - at).min(1 << 20);
            assert_same(&client.read(at, len), &vec![0; len], &format!("{}, byte {at}", shape.name));
        }
        client.disconnect();
        let _ = ask(&array, &["set", "--rebuild-limit", "none"]).success();
        assert!(ask(&array, &["wait"]).success().text().starts_with("whole"), "{}", shape.name);
        let _ = server.stop();
        assert_eq!(array.examine()["blank"].as_bool(), Some(false), "{}: as stopped", shape.name);
        Content::read(&array).assert_consistent(shape.name);
    }
}

#[test]
fn members_have_the_size_asked_for_and_their_space() {
    for sparse in [false, true] {
        let array = Array::planned(&shape::raid5_of_5_left_symmetric());
        let options: &[&str] = if sparse { &["--sparse", "--name", "tank"] } else { &["--name", "tank"] };
        let _ = array.run_create(MEMBER_BYTES, options).success();
        for member in array.members() {
            let metadata = std::fs::metadata(member).unwrap();
            assert_eq!(metadata.len(), MEMBER_BYTES as u64);
            assert!(sparse || metadata.blocks() * 512 >= metadata.len(), "{}: preallocated", member.display());
        }
        assert_eq!(array.examine()["name"], "tank");
    }
}

/// A create that was killed as it began leaves empty files: the same command makes the array.
#[test]
fn files_that_were_left_empty_become_members() {
    for count in [1, 3] {
        let array = Array::planned(&shape::raid5_of_3());
        for member in &array.members()[..count] {
            File::create(member).unwrap();
        }
        let _ = array.run_create(MEMBER_BYTES, &[]).success();
        for member in array.members() {
            let metadata = std::fs::metadata(member).unwrap();
            assert_eq!(metadata.len(), MEMBER_BYTES as u64);
            assert!(metadata.blocks() * 512 >= metadata.len(), "{}: preallocated", member.display());
        }
        let server = Server::start(&array);
        let image = Random::new(7).bytes(array.expected_size());
        write_export(server.uri(), &image);
        assert_same(&read_export(server.uri()), &image, "what was written");
        let _ = server.stop();
    }
    // Where the array can't be made they stay empty.
    let array = Array::planned(&shape::raid5_of_3());
    let (empty, impossible) = (&array.members()[0], array.path("none").join("file"));
    File::create(empty).unwrap();
    let words = ["create", "--level", "1", "--size", "16M"].map(OsString::from).into_iter();
    let _ = binary::uraid(words.chain([empty.into(), impossible.into()])).code_is(1);
    assert_eq!(std::fs::metadata(empty).unwrap().len(), 0);
}

#[test]
fn create_prints_facts_as_json() {
    let array = Array::planned(&shape::rm2_of_7_adjacent());
    let created = array.run_create(MEMBER_BYTES, &["--json"]).success().json();
    let examined = array.examine();
    for field in ["uuid", "level", "layout", "chunk", "size"] {
        assert!(!examined[field].is_null(), "{field} in {examined:#}");
        assert_eq!(created[field], examined[field], "{field}");
    }
}

/// Words that the command line doesn't know, and arrays that can't be, are usage errors. Neither makes a file.
#[test]
fn bad_arguments_make_nothing() {
    let array = Array::planned(&shape::raid5_of_3());
    let member = |slot: usize| array.members()[slot].to_str().unwrap();
    let two = [member(0), member(1)];
    for arguments in
        [&["create", "--level", "7"][..], &["create", "--size", "16M"], &["create", "--levl", "5"], &["crate"]]
    {
        let output = binary::uraid(arguments.iter().chain(&two)).code_is(2);
        assert!(!output.stderr.is_empty(), "{arguments:?} is explained");
    }
    let impossible: [&[&str]; 6] = [
        &["--level", "5"],
        &["--level", "rm2"],
        &["--level", "0", "--chunk", "5000"],
        &["--level", "0", "--chunk", "2M"],
        &["--level", "10", "--copies", "3"],
        &["--level", "1", "--layout", "left-symmetric"],
    ];
    for options in impossible {
        let output = binary::uraid(["create", "--size", "16M"].iter().chain(options).chain(&two)).code_is(2);
        assert!(!output.stderr.contains("panicked"), "{options:?}: {}", output.stderr);
    }
    assert!(!array.members().iter().any(|member| member.exists()), "no member file was made");
    let same_twice = binary::uraid(["create", "--level", "1", "--size", "16M", member(0), member(0)]);
    assert!(matches!(same_twice.code, Some(1 | 2)), "one file as two members: {same_twice:?}");
}

/// The smallest member counts.
#[test]
fn unequal_members_give_the_smallest_ones_capacity() {
    let shapes: [Shape; 3] = [shape::raid0_of_4(), shape::raid5_of_5_left_symmetric(), shape::rm2_of_6()];
    for shape in shapes {
        let array = Array::planned(&shape);
        for (slot, member) in array.members().iter().enumerate() {
            let bytes = MEMBER_BYTES + slot * (3 << 20);
            std::fs::write(member, vec![0; bytes]).unwrap();
        }
        let options = shape.options();
        let paths = array.members().iter().map(|member| member.to_str().unwrap());
        let words = ["create"].into_iter().chain(options.iter().map(String::as_str)).chain(paths);
        let _ = binary::uraid(words).success();
        let size = array.expected_size();
        assert_eq!(array.examine()["size"].as_u64(), Some(size as u64), "{}", shape.name);
        let smallest = Array::create(&shape);
        assert_eq!(size, smallest.expected_size(), "{}: as of equal members", shape.name);
    }
}

/// Where a member's map of blank regions begins: `docs/on-disk-format.md`.
const MAP_START: u64 = 96 << 10;

/// Nobody knows then what is blank, or where members agree: that is told until a scrub has seen to it.
#[test]
fn a_map_that_is_damaged_on_all_members_is_told_until_a_scrub_repairs() {
    let array = Array::planned(&shape::raid5_of_3());
    for (slot, member) in array.members().iter().enumerate() {
        std::fs::write(member, Random::new(60 + slot as u64).bytes(MEMBER_BYTES)).unwrap();
    }
    let _ = array.run_create(MEMBER_BYTES, &["--force"]).success();
    for member in array.members() {
        let file = OpenOptions::new().write(true).open(member).unwrap();
        file.write_all_at(&[0xff; 512], MAP_START).unwrap();
    }
    let _ = Server::start(&array).stop();
    assert_eq!(array.examine()["scrub_owed"].as_bool(), Some(true));
    let server = Server::start_members(&array, array.members(), &["--metrics", "0"]);
    let address = server.line_after("metrics at http://");
    let owed = || metric(&address, "uraid_scrub_owed").unwrap();
    let told = ask(&array, &["wait"]).code_is(1).stderr;
    assert!(told.contains("degraded: a scrub is owed"), "{told}");
    assert!(told.contains("survives no failure there, and 1 more failure elsewhere"), "{told}");
    assert_eq!((status(&array)["health"]["scrub_owed"].as_bool(), owed()), (Some(true), "1".to_owned()));
    let _ = ask(&array, &["scrub", "start", "--wait"]).code_is(1);
    assert!(ask(&array, &["wait"]).code_is(1).stderr.contains("a scrub is owed"), "it repaired nothing");
    let _ = ask(&array, &["scrub", "start", "--repair", "--wait"]).success();
    assert_eq!(ask(&array, &["wait"]).success().text(), "whole: survives 1 more failure\n");
    assert_eq!(owed(), "0");
    let _ = server.stop();
    assert_eq!(array.examine()["scrub_owed"].as_bool(), Some(false));
    Content::read(&array).assert_consistent("repaired");
}
