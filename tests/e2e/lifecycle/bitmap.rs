//! Mirrors with a write-intent bitmap, killed while they are written: only what was being written is copied again.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::Command;
use uraid_tests::server::Server;
use uraid_tests::shape;

/// A region of an array of this size.
const REGION: usize = 1 << 20;

/// The regions that are written when the server is killed.
const BUSY: [usize; 2] = [3, 8];

/// Writes `byte` over a part of a member's data, and gives what was there.
fn disturb(array: &Array, member: usize, at: usize, bytes: &[u8]) -> Vec<u8> {
    let file = OpenOptions::new().read(true).write(true).open(&array.members()[member]).unwrap();
    let offset = (array.facts()[member].data_offset + at) as u64;
    let mut before = vec![0; bytes.len()];
    file.read_exact_at(&mut before, offset).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    before
}

/// Kills a server of the array while both busy regions are written.
fn kill_under_load(array: &Array, threads: &str) {
    // What is in memory alone marks nothing.
    let options = ["--connection-threads", threads, "--cache", "none"];
    let server = Server::start_members(array, array.members(), &options);
    let mut client = server.connect();
    let mut random = Random::new(61);
    for region in BUSY {
        client.write(region * REGION, &random.bytes(4096));
    }
    client.flush();
    let mut in_flight = 0;
    for round in 0..200 {
        let (offset, length) = random.sectors(REGION, 64 << 10);
        let payload = random.bytes(length);
        let at = (BUSY[round % BUSY.len()] * REGION + offset) as u64;
        let length = u32::try_from(length).expect("a request's length fits 32 bits");
        client.submit(Command::Write, at, length, &payload).expect("sending a write");
        in_flight += 1;
        if in_flight == 16 {
            assert_eq!(client.reply().expect("a reply").error, 0);
            in_flight -= 1;
        }
    }
    server.kill();
}

#[test]
fn killed_mirrors_copy_again_only_what_was_being_written() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid1_of_2());
        let image = Random::new(62).bytes(array.expected_size());
        let server = Server::start(&array);
        write_export(server.uri(), &image);
        let _ = server.stop();

        kill_under_load(&array, threads);
        assert_eq!(array.examine()["state"].as_str(), Some("dirty"));
        // One write that reached one member alone in a busy region, and one in another, which nothing that was marked
        // explains.
        disturb(&array, 1, BUSY[1] * REGION + 900_000, &[0xa5; 512]);
        let quiet = 5 * REGION + 7 * 512;
        let before = disturb(&array, 1, quiet, &[0x5a; 512]);
        let _ = Server::start_members(&array, array.members(), &["--connection-threads", threads]).stop();
        assert_eq!(array.examine()["state"].as_str(), Some("clean"), "after a resync and a clean stop");
        let found = disturb(&array, 1, quiet, &before);
        assert!(found == [0x5a; 512], "a region that was not marked is left alone");
        Content::read(&array).assert_consistent("resynced in part");

        let server = Server::start(&array);
        let found = read_export(server.uri());
        for region in (0..image.len() / REGION).filter(|region| !BUSY.contains(region)) {
            let range = region * REGION..(region + 1) * REGION;
            assert_same(&found[range.clone()], &image[range], "a region that was not written");
        }
        let _ = server.stop();
        Content::read(&array).assert_holds(&found, "both mirrors");
    }
}

/// The server clears the bits of regions that nobody writes any more.
#[test]
fn quiet_regions_need_no_resync() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut client = server.connect();
    client.write(BUSY[0] * REGION, &[1; 4096]);
    client.flush();
    let marked = || {
        // The first sector of the bitmap: its bits begin after 16 bytes.
        let mut bits = [0; 8];
        let member = std::fs::File::open(&array.members()[0]).unwrap();
        member.read_exact_at(&mut bits, (64 << 10) + 16).unwrap();
        u64::from_le_bytes(bits)
    };
    assert_eq!(marked(), 1 << BUSY[0]);
    // Other regions are written until the first is cleared, each for the first time or again.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while marked() & 1 << BUSY[0] != 0 {
        assert!(std::time::Instant::now() < deadline, "still marked: {:#x}", marked());
        client.write(BUSY[1] * REGION, &[2; 4096]);
        client.flush();
    }
    assert_eq!(marked(), 1 << BUSY[1], "what is being written is marked");
    server.kill();
    disturb(&array, 1, BUSY[0] * REGION, &[3; 512]);
    let _ = Server::start(&array).stop();
    assert!(disturb(&array, 1, BUSY[0] * REGION, &[1; 512]) == [3; 512], "it was left alone");
    Content::read(&array).assert_consistent("the rest");
}
