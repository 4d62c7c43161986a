//! Arrays that start though a member can't be read everywhere: behind FUSE, a member's bad places give errors.

use std::path::PathBuf;

use uraid_tests::array::Array;
use uraid_tests::image::{Random, assert_same};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

use super::fuse::{Before, Fuse};
use crate::control::{ask, status};

const MEMBER_BYTES: usize = 6 << 20;

/// What is written: every member has some of it.
const WRITTEN: usize = 1 << 20;

/// Where a member's log and data begin, and the places of its superblock (docs/on-disk-format.md).
const LOG: usize = 512 << 10;
const SUPERBLOCKS: [usize; 3] = [16 << 10, 48 << 10, MEMBER_BYTES - (64 << 10)];

/// A member's file once more, of which the sectors with these bytes can't be read before they were written again.
fn bad_sectors(array: &Array, slot: usize, bad: &[usize]) -> Fuse {
    let bad_file = array.path(&format!("bad{slot}")).display().to_string();
    let each = |action: &str| {
        let one = |at: &usize| {
            let is_touched = format!("[ $4 -le {at} ] && [ $(($4 + $3)) -gt {at} ]");
            format!("if {is_touched} && [ -e {bad_file}.{at} ]; then {action} {bad_file}.{at}; fi; ")
        };
        bad.iter().map(one).collect::<String>()
    };
    bad.iter().for_each(|at| std::fs::write(format!("{bad_file}.{at}"), "").unwrap());
    let before = Before { read: each("echo EIO bad sector >&2; exit 1;"), write: each("rm"), ..Before::default() };
    Fuse::on(array.path(&format!("fuse{slot}")), &array.members()[slot], MEMBER_BYTES, &before)
}

/// The array's members with another file in a slot.
fn with(array: &Array, slot: usize, other: &Fuse) -> Vec<PathBuf> {
    let mut members = array.members().to_vec();
    other.file().clone_into(&mut members[slot]);
    members
}

/// An array whose server was killed when something had been written, and what that is.
fn killed(shape: &Shape, options: &[&str]) -> (Array, Vec<u8>) {
    let array = Array::planned(shape);
    let _ = array.run_create(MEMBER_BYTES, options).success();
    let server = Server::start_members(&array, array.members(), &["--cache", "none"]);
    let image = Random::new(5).bytes(WRITTEN);
    server.connect().write(0, &image);
    server.kill();
    (array, image)
}

#[test]
fn a_bad_data_sector_on_one_half_of_a_mirror_is_healed_while_it_is_opened() {
    let (array, image) = killed(&shape::raid1_of_2(), &[]);
    let data = array.facts()[1].data_offset;
    let bad = bad_sectors(&array, 1, &[data + 8192]);
    let server = Server::start_members(&array, &with(&array, 1, &bad), &[]);
    assert_same(&server.connect().read(0, WRITTEN), &image, "beside a bad sector");
    let _ = server.stop();
}

#[test]
fn a_bad_sector_in_a_log_costs_nothing() {
    let (array, image) = killed(&shape::raid5_of_3(), &[]);
    let bad = bad_sectors(&array, 1, &[LOG, LOG + 65536]);
    let server = Server::start_members(&array, &with(&array, 1, &bad), &[]);
    assert_same(&server.connect().read(0, WRITTEN), &image, "beside a bad log");
    let _ = server.stop();
}

#[test]
fn one_superblock_that_can_not_be_read_is_done_without() {
    for place in SUPERBLOCKS {
        let (array, image) = killed(&shape::raid5_of_3(), &[]);
        let bad = bad_sectors(&array, 1, &[place]);
        let server = Server::start_members(&array, &with(&array, 1, &bad), &[]);
        assert_same(&server.connect().read(0, WRITTEN), &image, "without one copy of a superblock");
        assert_eq!(status(&array)["health"]["state"], "whole");
        let _ = server.stop();
    }
}

#[test]
fn a_member_whose_superblocks_can_not_be_read_is_left_out_where_that_is_asked_for() {
    let (array, image) = killed(&shape::raid5_of_3(), &[]);
    let bad = bad_sectors(&array, 1, &SUPERBLOCKS);
    let members = with(&array, 1, &bad);
    let refusal = Server::refused(&array, &members, &[]).stderr;
    let path = bad.file().display().to_string();
    assert!(refusal.contains("--degraded") && refusal.contains(&path), "{refusal}");
    let server = Server::start_members(&array, &members, &["--degraded"]);
    assert_same(&server.connect().read(0, WRITTEN), &image, "without the member");
    assert_eq!(status(&array)["health"]["missing"], serde_json::json!([1]));
    assert!(ask(&array, &["status"]).success().text().contains("degraded"));
    let _ = server.stop();
}
