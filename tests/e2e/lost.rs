//! Content that no member has: everybody is told which bytes of the array it is, reads of exactly those fail, and
//! writing them restores it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::{Client, Command};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use crate::control::scrub::Events;
use crate::control::{ask, metric, status};

const BLOCK: usize = 4096;

/// An array full of random bytes, member 2 of which has rotten blocks, and what it held.
fn with_rotten_blocks(chunks: &[usize]) -> (Array, Vec<u8>) {
    let array = Array::planned(&shape::raid5_of_3());
    let _ = array.run_create(MEMBER_BYTES, &["--integrity", "crc32"]).success();
    let image = Random::new(21).bytes(array.expected_size());
    let server = Server::start(&array);
    write_export(server.uri(), &image);
    let _ = server.stop();
    let file = OpenOptions::new().write(true).open(&array.members()[2]).unwrap();
    for chunk in chunks {
        let at = array.facts()[2].data_offset + chunk * array.shape.chunk_bytes();
        file.write_all_at(&[7; BLOCK], at as u64).unwrap();
    }
    (array, image)
}

#[track_caller]
fn examine(members: &[PathBuf], options: &[&str]) -> String {
    let members = members.iter().map(|member| member.to_str().unwrap());
    binary::uraid(["examine"].iter().chain(options).copied().chain(members)).success().text()
}

/// Every block of the array is there, but for the lost ones, which are errors.
#[track_caller]
fn assert_lost(client: &mut Client, image: &[u8], lost: &[usize]) {
    for (block, bytes) in image.chunks(BLOCK).enumerate() {
        let reply = client.call(Command::Read, (block * BLOCK) as u64, u32::try_from(bytes.len()).unwrap(), &[]);
        if lost.contains(&(block * BLOCK)) {
            assert_eq!(reply.error, rustix::io::Errno::IO.raw_os_error() as u32, "block {block} is lost");
        } else {
            assert_eq!(reply.error, 0, "block {block}");
            assert_same(&reply.data, bytes, "what is not lost");
        }
    }
}

/// Block 8 is lost; that of the stripe whose parity is bad is there, and is read where it is.
#[track_caller]
fn assert_mapped(members: &[&str]) {
    let text = binary::uraid(["map", "--lba", "8"].iter().chain(members)).success().text();
    for part in [" (absent)\n", " (unread)\n", "it is lost: reads of it fail until it is written again", "an I/O error"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let map = |lba: &str| binary::uraid(["map", "--json", "--lba", lba].iter().chain(members)).success().json();
    assert_eq!((&map("8")["read"], &map("8")["lost"]), (&json!(null), &json!(true)));
    assert_eq!(map("0")["read"]["reads"][0]["lacks"], json!(null));
}

/// Member 1 is gone, and member 2 can't be read in three parity stripes, of which it has the parity, the only data that
/// is lost, and one of two.
#[test]
fn what_a_rebuild_can_not_have_is_told_until_it_is_written_again() {
    for threads in ["0", "2"] {
        let (array, image) = with_rotten_blocks(&[0, 4, 8]);
        array.remove(&[1]);
        let (events, hook) = Events::new(&array);
        let options = ["--on-event", hook.to_str().unwrap(), "--metrics", "0", "--connection-threads", threads];
        let server = Server::start_members(&array, &array.without(&[1]), &[&options[..], &["--degraded"]].concat());
        let new = array.path("new");
        let _ = ask(&array, &["add", "--size", "16M", new.to_str().unwrap()]).success();
        let ended = ask(&array, &["wait"]).code_is(1).stderr;
        // Left-symmetric, of three, a block in a chunk: the parity of stripes 0, 4 and 8 is on members 2, 1 and 0, and
        // data begins after it.
        assert_eq!(array.shape.chunk_bytes(), BLOCK);
        let lost = [1, 8, 16, 17].map(|block| block * BLOCK);
        let told = "16 KiB of the array are lost, bytes 4096 to 8192, 32768 to 36864 and 65536 to 73728";
        assert!(ended.contains(&format!("failing: {told}: reads of them fail until they are written")), "{ended}");
        assert!(events.until("content-lost").contains(&"rebuild-started".to_owned()));

        let members = [array.members()[0].clone(), new, array.members()[2].clone()];
        let now = status(&array);
        let all = json!({"bytes": 4 * BLOCK, "ranges": 3, "blocks": [[8, 16], [64, 72], [128, 144]]});
        let lacking = |slot: usize| json!({"slot": slot, "path": members[slot].to_str().unwrap(), "blocks": 3});
        assert_eq!((&now["health"]["state"], &now["health"]["survives"]), (&json!("failing"), &json!(0)));
        assert_eq!((&now["health"]["lost"], &now["health"]["lacking"]), (&all, &json!([lacking(1), lacking(2)])));
        let bad = [(0, 0), (3, 0), (0, 3)];
        for (slot, (absent, unread)) in bad.into_iter().enumerate() {
            let counted = json!({"blocks": absent + unread, "absent": absent, "unread": unread});
            assert_eq!(now["members"][slot]["bad_blocks"], counted, "member {slot}");
        }
        let screen = ask(&array, &["status"]).success().text();
        for part in [told, "lacking  member 1: 3 bad blocks, 3 absent and 0 unread\n", "lacking  member 2: "] {
            assert!(screen.contains(part), "{part}: {screen}");
        }
        let address = server.line_after("metrics at http://");
        for (line, value) in [
            ("uraid_array_lost_bytes", "16384"),
            ("uraid_array_health{state=\"failing\"}", "1"),
            ("uraid_member_bad_blocks{member=\"1\",kind=\"absent\"}", "3"),
            ("uraid_member_bad_blocks{member=\"2\",kind=\"absent\"}", "0"),
            ("uraid_member_bad_blocks{member=\"2\",kind=\"unread\"}", "3"),
        ] {
            assert_eq!(metric(&address, line).as_deref(), Some(value), "{line}");
        }
        assert_lost(&mut server.connect(), &image, &lost);
        let _ = ask(&array, &["stop"]).success();
        let _ = events.until("stopped");
        let _ = server.end().success();

        // The members say the same to whoever looks at them, and to the next server.
        let text = examine(&members, &["--bad-blocks"]);
        for part in [
            told,
            "members lack content: survives 1 more failure where all have it",
            "3 bad blocks, 3 absent and 0 unread",
            "absent  sectors 32 to 40 of its data",
            "unread  sectors 32 to 40 of its data",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let said: Value = serde_json::from_str(&examine(&members, &["--json", "--bad-blocks"])).unwrap();
        let runs = json!([[0, 8], [32, 40], [64, 72]]);
        assert_eq!((&said["members"][1]["absent"], &said["members"][2]["unread"]), (&runs, &runs));
        assert_eq!(said["lost"], all);
        let paths = members.each_ref().map(|member| member.to_str().unwrap());
        assert_mapped(&paths);
        let server = Server::start_members(&array, &members, &options);
        assert_eq!(events.until("content-lost"), ["started", "degraded"]);
        let mut client = server.connect();
        assert_lost(&mut client, &image, &lost);
        for at in lost {
            client.write(at, &image[at..at + BLOCK]);
        }
        client.flush();
        let _ = events.until("content-restored");
        let _ = events.until("recovered");
        assert_eq!(ask(&array, &["wait"]).success().text(), "whole: survives 1 more failure\n");
        let health = status(&array)["health"].clone();
        assert_eq!((&health["lost"], &health["lacking"]), (&json!(null), &json!([])));
        assert_same(&read_export(server.uri()), &image, "all of it");
        let _ = server.stop();
        assert!(examine(&members, &[]).contains("whole: survives 1 more failure"));
    }
}

/// What is lost is the same in another shape, whether it moves while the array is stopped or served.
#[test]
fn what_is_lost_stays_lost_in_another_shape() {
    let (array, image) = with_rotten_blocks(&[0, 4, 8]);
    array.remove(&[1]);
    let server = Server::start_members(&array, &array.without(&[1]), &["--degraded"]);
    let new = array.path("new");
    let _ = ask(&array, &["add", "--size", "16M", new.to_str().unwrap()]).success();
    let _ = ask(&array, &["wait"]).code_is(1);
    let _ = server.stop();
    let members = [array.members()[0].clone(), new, array.members()[2].clone()];
    let lost = [1, 8, 16, 17].map(|block| block * BLOCK);
    let told = "16 KiB of the array are lost, bytes 4096 to 8192, 32768 to 36864 and 65536 to 73728";

    let paths = members.iter().map(|member| member.to_str().unwrap());
    let _ = binary::uraid(["reshape", "--layout", "right-asymmetric"].into_iter().chain(paths)).success();
    assert!(examine(&members, &[]).contains(told), "stopped");
    let (events, hook) = Events::new(&array);
    let options = ["--reshape-limit", "4M", "--on-event", hook.to_str().unwrap()];
    let server = Server::start_members(&array, &members, &options);
    assert_lost(&mut server.connect(), &image, &lost);
    let more = array.path("more");
    std::fs::File::create(&more).unwrap().set_len(MEMBER_BYTES as u64).unwrap();
    let _ = ask(&array, &["reshape", "--add", more.to_str().unwrap()]).success();
    assert_lost(&mut server.connect(), &image, &lost);
    assert!(ask(&array, &["status"]).success().text().contains(told), "served, between two shapes");
    let _ = ask(&array, &["set", "--reshape-limit", "none"]).success();
    let ended = ask(&array, &["wait"]).code_is(1).stderr;
    assert!(ended.contains(told), "{ended}");
    let mut client = server.connect();
    assert_lost(&mut client, &image, &lost);
    for at in lost {
        client.write(at, &image[at..at + BLOCK]);
    }
    client.flush();
    let _ = events.until("content-restored");
    assert_eq!(ask(&array, &["wait"]).success().text(), "whole: survives 1 more failure\n");
    assert_same(&read_export(server.uri())[..image.len()], &image, "all of it");
    let _ = server.stop();
}

/// A member whose list can't be read is left out, and looking at it says so.
#[test]
fn a_damaged_list_is_said_by_name() {
    let array = Array::create(&shape::raid5_of_3());
    let file = OpenOptions::new().write(true).open(&array.members()[1]).unwrap();
    // 256 KiB from 256 KiB on, in two copies.
    for copy in [256 << 10, 384 << 10] {
        file.write_all_at(&[7; BLOCK], copy).unwrap();
    }
    let said = array.examine();
    assert_eq!((&said["missing"], &said["members"][1]["state"]), (&json!([1]), &json!("bad-list")));
    assert_eq!(
        (&said["members"][0]["bad_blocks"]["blocks"], &said["members"][1]["bad_blocks"]),
        (&json!(0), &json!(null))
    );
    let text = examine(array.members(), &["--bad-blocks"]);
    assert!(text.contains("its list of bad blocks is damaged: the array is served without it"), "{text}");
    let server = Server::start_members(&array, array.members(), &["--degraded"]);
    assert_eq!(status(&array)["health"]["missing"], json!([1]));
    let _ = server.stop();
}
