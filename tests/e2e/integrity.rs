//! Arrays with checksums: members that were changed while nobody looked are read right, and put right.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

const BLOCK: usize = 4096;

/// Overwrites blocks of one member: with noise, with what another block holds, with what the block held before.
#[test]
fn a_changed_member_is_read_right_and_put_right() {
    for shape in [shape::raid5_of_3(), shape::rm2_of_6()] {
        let array = Array::planned(&shape);
        let _ = array.run_create(MEMBER_BYTES, &["--integrity", "crc32"]).success();
        let said = array.examine();
        assert_eq!((said["integrity"].as_str(), said["consistency"].as_str()), (Some("crc32"), Some("log")));
        let mut random = Random::new(9);
        let mut image = Vec::new();
        let mut before = Vec::new();
        for _ in 0..2 {
            before = std::fs::read(&array.members()[1]).unwrap();
            image = random.bytes(array.expected_size());
            let server = Server::start(&array);
            write_export(server.uri(), &image);
            let _ = server.stop();
        }
        let data = usize::try_from(said["members"][1]["data_offset"].as_u64().unwrap()).unwrap();
        let after = std::fs::read(&array.members()[1]).unwrap();
        let file = OpenOptions::new().write(true).open(&array.members()[1]).unwrap();
        let blocks = (after.len() - data) / BLOCK / 2;
        for (turn, block) in (0..blocks).step_by(17).enumerate() {
            let at = data + block * BLOCK;
            let bytes = match turn % 3 {
                0 => random.bytes(BLOCK),
                1 => after[data + (block + 1) * BLOCK..][..BLOCK].to_vec(),
                _ => before[at..at + BLOCK].to_vec(),
            };
            file.write_all_at(&bytes, at as u64).unwrap();
        }
        drop(file);
        // Read twice, once with small and once with large requests would be the same: every data block is read.
        // By default a member that is wrong so often is given up.
        let server = Server::start_members(&array, &array.without(&[]), &["--max-errors", "off"]);
        assert!(read_export(server.uri()) == image, "{}: wrong data", shape.name);
        // What the reads did not come across, parity, is come across by small writes.
        let _ = server.stop();
        let server = Server::start_members(&array, &array.without(&[]), &["--read-only"]);
        assert!(read_export(server.uri()) == image, "{}: wrong data again", shape.name);
        let _ = server.stop();
        // With the data put right, every member but the changed one gives it, and the changed one too.
        let healed = std::fs::read(&array.members()[1]).unwrap();
        let differs = |block: &usize| healed[data + block * BLOCK..][..BLOCK] != after[data + block * BLOCK..][..BLOCK];
        let wrong = (0..blocks).filter(differs).count();
        let changed = blocks.div_ceil(17);
        assert!(
            wrong * 3 < changed * 2,
            "{}: {wrong} of {changed} blocks are still wrong; those of parity were not read",
            shape.name
        );
    }
}

/// What was written with checksums is there with a member gone, and after a kill.
#[test]
fn content_is_there_without_a_member_and_after_a_kill() {
    let array = Array::planned(&shape::raid5_of_3());
    let _ = array.run_create(MEMBER_BYTES, &["--integrity", "crc32"]).success();
    let image = Random::new(10).bytes(array.expected_size());
    let server = Server::start(&array);
    write_export(server.uri(), &image);
    server.kill();
    let server = Server::start(&array);
    assert!(read_export(server.uri()) == image, "after a kill");
    let _ = server.stop();
    Content::read(&array).assert_holds(&image, "after a kill");
    array.remove(&[0]);
    let server = Server::start_members(&array, &array.without(&[0]), &["--degraded"]);
    assert!(read_export(server.uri()) == image, "without a member");
    let _ = server.stop();
}

/// Checksums without a log would not survive a kill.
#[test]
fn checksums_need_a_log() {
    let array = Array::planned(&shape::raid1_of_2());
    let output = array.run_create(MEMBER_BYTES, &["--integrity", "crc32", "--consistency", "bitmap"]);
    assert!(output.code_is(2).stderr.contains("--consistency log"));
}
