//! Servers of members that are started on older copies of what they had, such as snapshots.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::{Exports, Kind, fails, returns, wait_until};

/// An array of which member 1 was copied, before everything was written anew.
struct Copied {
    exports: Exports,
    server: Server,
    older: Vec<u8>,
    older_beat: u64,
    image: Vec<u8>,
}

impl Copied {
    fn new(settling: &str) -> Self {
        Self::beside(settling, false)
    }

    /// Beside a member that is an export, or one that is a file.
    fn beside(settling: &str, is_beside_file: bool) -> Self {
        let mut exports = Exports::start(&shape::raid1_of_2(), Kind::Nbdkit);
        if is_beside_file {
            exports.uris[0] = exports.array.members()[0].clone();
        }
        exports.create();
        let server = exports.serve_returning(settling, &["--cache", "none"]);
        let mut random = Random::new(101);
        write_export(server.uri(), &random.bytes(exports.array.expected_size()));
        let member = &exports.array.members()[1];
        let older = std::fs::read(member).unwrap();
        let older_beat = beat(member);
        wait_until("it has counted on", || beat(member) > older_beat + 1);
        let image = random.bytes(exports.array.expected_size());
        write_export(server.uri(), &image);
        let other = &exports.array.members()[0];
        wait_until("no region is marked", || bits(other).iter().all(|&byte| byte == 0));
        Self { exports, server, older, older_beat, image }
    }

    fn assert_made_anew(self) {
        returns(&self.exports.array, 1);
        assert_same(&read_export(self.server.uri()), &self.image, "made anew");
        self.exports.stop_holding(self.server, &self.image, "made anew");
    }
}

/// Starts the member's server on the copy.
fn roll_back(exports: &mut Exports, older: &[u8]) {
    std::fs::write(&exports.array.members()[1], older).unwrap();
    exports.restart(1);
}

fn is_refused(exports: &Exports) {
    let refused = Server::refused(&exports.array, &exports.uris, &[]).stderr;
    assert!(refused.contains("an older copy of this member"), "{refused}");
    // There is a file with its superblock: that of its server.
    assert!(!refused.contains("not named"), "{refused}");
}

/// Nothing on it but its mark tells.
#[test]
fn a_member_of_which_an_older_copy_is_served_is_made_anew() {
    for is_added in [false, true] {
        let mut copied = Copied::new(if is_added { "off" } else { "500ms" });
        copied.exports.kill(1);
        fails(&copied.exports.array, 1);
        roll_back(&mut copied.exports, &copied.older);
        if is_added {
            copied.exports.add(1);
        }
        copied.assert_made_anew();
    }
}

/// Whoever is started anew does not know how far it had counted.
#[test]
fn a_member_that_was_away_when_the_array_was_started_is_made_anew() {
    let mut copied = Copied::new("off");
    copied.exports.kill(1);
    fails(&copied.exports.array, 1);
    let _ = copied.server.stop();
    copied.server = Server::start_members(&copied.exports.array, &copied.exports.uris[..1], &["--degraded"]);
    roll_back(&mut copied.exports, &copied.older);
    copied.exports.add(1);
    copied.assert_made_anew();
}

/// The other one was stopped cleanly, and let go of.
#[test]
fn an_array_does_not_start_with_an_older_copy_of_a_member() {
    let mut copied = Copied::new("off");
    let _ = copied.server.stop();
    copied.exports.kill(1);
    roll_back(&mut copied.exports, &copied.older);
    is_refused(&copied.exports);
    // Whoever goes on without it, and is killed before anything is written, leaves things as they were.
    for _ in 0..2 {
        Server::start_members(&copied.exports.array, &copied.exports.uris, &["--degraded"]).kill();
        is_refused(&copied.exports);
    }
    copied.server = Server::start_members(&copied.exports.array, &copied.exports.uris, &["--degraded"]);
    assert_same(&read_export(copied.server.uri()), &copied.image, "without it");
    copied.exports.add(1);
    copied.assert_made_anew();
}

/// Nobody has stopped it: what the other one says tells.
#[test]
fn an_array_whose_server_was_killed_does_not_start_with_an_older_copy_of_a_member() {
    for is_beside_file in [false, true] {
        let mut copied = Copied::beside("off", is_beside_file);
        let other = copied.exports.array.members()[0].clone();
        let export = usize::from(!is_beside_file);
        wait_until("the other one knows of more", || durable_beat(&other, export) > copied.older_beat);
        copied.server.kill();
        copied.exports.kill(1);
        roll_back(&mut copied.exports, &copied.older);
        is_refused(&copied.exports);
        // So does whoever refuses to do anything without it.
        let arguments = ["rename", "other"].map(PathBuf::from).into_iter();
        let refused = binary::uraid(arguments.chain(copied.exports.uris.iter().cloned())).code_is(1).stderr;
        assert!(refused.contains("member 1 is missing"), "{refused}");
        is_refused(&copied.exports);
        copied.server = Server::start_members(&copied.exports.array, &copied.exports.uris, &["--degraded", "--force"]);
        assert_same(&read_export(copied.server.uri()), &copied.image, "without it");
        copied.exports.add(1);
        copied.assert_made_anew();
    }
}

/// Whoever was killed comes back with all that there was.
#[test]
fn an_array_whose_server_was_killed_starts_with_members_that_were_used_with_it() {
    for is_beside_file in [false, true] {
        let mut copied = Copied::beside("off", is_beside_file);
        // Killed again and again, also as soon as it has started.
        for _ in 0..3 {
            copied.server.kill();
            copied.server = copied.exports.serve_array(&[]);
        }
        let _ = copied.server.stop();
        copied.server = copied.exports.serve_array(&[]);
        copied.server.kill();
        copied.server = copied.exports.serve_array(&[]);
        assert_same(&read_export(copied.server.uri()), &copied.image, "with both");
        copied.exports.stop_holding(copied.server, &copied.image, "with both");
    }
}

/// How far the mark on a member's file has counted, by the description of the format.
fn beat(member: &Path) -> u64 {
    u64::from_le_bytes(bytes_at(member, (40 << 10) + 32))
}

/// How far the mark of an export is known to have counted that is durable, by what a member says.
fn durable_beat(member: &Path, export: usize) -> u64 {
    u64::from_le_bytes(bytes_at(member, (40 << 10) + 936 + 40 * export as u64 + 32))
}

/// The bits of the first regions, by the same.
fn bits(member: &Path) -> [u8; 496] {
    bytes_at(member, (64 << 10) + 16)
}

fn bytes_at<const N: usize>(path: &Path, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}
