//! Arrays with checksums: members that were changed while nobody looked are read right, and put right.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use serde_json::json;
use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::Command;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use crate::control::scrub::Events;
use crate::control::{ask, metric, status, until};

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

/// Two blocks of a row are rotten, and a client writes one of them: where there is room for a journal, that is durable,
/// and survives a stop that can't write it out.
#[test]
fn content_that_cannot_be_written_out_stays_in_the_journal() {
    let array = Array::planned(&shape::raid5_of_3());
    let _ = array.run_create(MEMBER_BYTES, &["--integrity", "crc32"]).success();
    let stripe = 2 * array.shape.chunk_bytes();
    let server = Server::start(&array);
    server.connect().write(0, &Random::new(11).bytes(stripe));
    let _ = server.stop();
    array.rot_first_row();
    let server = Server::start(&array);
    let mut client = server.connect();
    let new = Random::new(12).bytes(BLOCK);
    client.write(0, &new);
    client.flush();
    let now = until(&array, "nobody tries to write it out", |now| now["health"]["state"] == "failing");
    assert_eq!(now["health"]["unwritten"]["flushes_fail"], json!(false));
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains("flushes keep it in the log while that has room"), "{screen}");
    client.flush();
    // A member that is copied keeps its place until it is written out, and that is said.
    let new_member = array.path("new");
    let _ = ask(&array, &["replace", "2", new_member.to_str().unwrap(), "--size", "16M"]).success();
    let said = ask(&array, &["wait"]).code_is(1).stderr;
    let member = array.members()[2].to_str().unwrap();
    assert!(said.contains(&format!("Member 2 ({member}) is replaced only then")), "{said}");
    let _ = ask(&array, &["fail", new_member.to_str().unwrap()]).success();
    let said = ask(&array, &["stop"]).code_is(1).stderr;
    assert!(said.contains("Nothing is lost"), "{said}");
    let said = server.end().code_is(1).stderr;
    assert!(said.contains("Nothing is lost"), "{said}");
    let server = Server::start(&array);
    let mut client = server.connect();
    assert_same(&client.read(0, BLOCK), &new, "after a stop");
    client.write(0, &Random::new(13).bytes(stripe));
    let _ = server.stop();
}

/// Two blocks of a row are rotten, and a client writes one of them: no parity can be computed for it, so every flush
/// fails until the whole stripe is written. Everybody is told which bytes it is, and what helps.
#[test]
fn content_that_cannot_be_written_out_is_told_until_its_stripe_is_written() {
    for threads in ["0", "2"] {
        let array = Array::planned(&shape::raid5_of_5_left_symmetric());
        // The log is too small for a journal.
        let _ = array.run_create(MEMBER_BYTES, &["--integrity", "crc32", "--log-size", "512K"]).success();
        let mut image = Random::new(11).bytes(array.expected_size());
        let server = Server::start(&array);
        write_export(server.uri(), &image);
        let _ = server.stop();
        // Left-symmetric, of five: the units of stripe 0 are on members 0 to 3.
        let said = array.examine();
        for slot in [0, 1] {
            let file = OpenOptions::new().write(true).open(&array.members()[slot]).unwrap();
            file.write_all_at(&[7; BLOCK], said["members"][slot]["data_offset"].as_u64().unwrap()).unwrap();
        }
        let (events, hook) = Events::new(&array);
        let options = ["--on-event", hook.to_str().unwrap(), "--metrics", "0", "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &options);
        let address = server.line_after("metrics at http://");
        let before = status(&array)["health"].clone();
        assert_eq!((&before["state"], &before["unwritten"]), (&json!("whole"), &json!(null)));
        let stripe = 4 * array.shape.chunk_bytes();
        let mut put = |client: &mut uraid_tests::nbd::Client, offset: usize, seed| {
            let new = Random::new(seed).bytes(BLOCK);
            client.write(offset, &new);
            image[offset..offset + BLOCK].copy_from_slice(&new);
        };
        let flush = |client: &mut uraid_tests::nbd::Client| client.call(Command::Flush, 0, 0, &[]).error;
        let [mut one, mut other] = [server.connect(), server.connect()];
        put(&mut one, 0, 12);
        assert_eq!(flush(&mut one), rustix::io::Errno::IO.raw_os_error() as u32);
        let now = until(&array, "nobody says so", |now| now["health"]["state"] == "failing");
        let member = |slot: usize| json!({"slot": slot, "path": array.members()[slot].to_str().unwrap()});
        let unwritten = json!({
            "bytes": BLOCK, "blocks": [[0, BLOCK / 512]], "stripe_blocks": [[0, stripe / 512]],
            "unreadable": [member(0), member(1)], "unwritable": [], "flushes_fail": true, "replacing": []
        });
        assert_eq!(now["health"]["unwritten"], unwritten);
        assert_eq!(now["health"]["troubles"], json!([]), "replacing members would not help");
        let screen = ask(&array, &["status"]).success().text();
        let helps = format!("after a write of all of bytes 0 to {stripe}");
        for part in
            ["failing: 4 KiB", "and flushes fail", "bytes 0 to 4096 of the array", "can't be read there", &helps]
        {
            assert!(screen.contains(part), "{part}: {screen}");
        }
        let _ = events.until("unwritten");
        assert_eq!(events.until("failing"), [""; 0], "once");
        assert_eq!(metric(&address, "uraid_unwritten_bytes").as_deref(), Some("4096"));
        let range = "uraid_unwritten_range_bytes{start=\"0\",end=\"4096\"}";
        assert_eq!(metric(&address, range).as_deref(), Some("4096"));
        // A flush covers everybody's writes.
        put(&mut other, 8 * stripe, 13);
        assert_ne!(flush(&mut other), 0);
        let refusal = ask(&array, &["stop"]).code_is(1).stderr;
        for part in [&format!("write all of bytes 0 to {stripe}, or mend"), "only in memory", "--force"] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
        assert_same(&other.read(0, BLOCK), &image[..BLOCK], "it is read from memory");
        one.write(0, &image[..stripe]);
        one.flush();
        other.flush();
        assert_eq!(events.until("written-out"), [""; 0], "no more of it");
        let _ = events.until("recovered");
        assert_eq!(status(&array)["health"], before);
        assert_eq!(metric(&address, "uraid_unwritten_bytes").as_deref(), Some("0"));
        assert_same(&read_export(server.uri()), &image, "all of it");
        let _ = ask(&array, &["stop"]).success();
        let log = server.end().success().stderr;
        let why = "8 sectors can't be written out, sectors 0..+8: members 0 and 1 can't be read there";
        for part in ["unwritten", "4 KiB that clients have written can't be written out", why] {
            assert!(log.contains(part), "{part}: {log}");
        }
    }
}

/// Checksums without a log would not survive a kill.
#[test]
fn checksums_need_a_log() {
    let array = Array::planned(&shape::raid1_of_2());
    let output = array.run_create(MEMBER_BYTES, &["--integrity", "crc32", "--consistency", "bitmap"]);
    assert!(output.code_is(2).stderr.contains("--consistency log"));
}
