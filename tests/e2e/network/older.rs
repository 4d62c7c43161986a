//! Servers of members that are started on older copies of what they had, such as snapshots.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::{Exports, Kind, fails, returns};
use crate::control::PATIENCE;

/// An array of which member 1 was copied, before everything was written anew.
struct Copied {
    exports: Exports,
    server: Server,
    older: Vec<u8>,
    image: Vec<u8>,
}

impl Copied {
    fn new(settling: &str) -> Self {
        let exports = Exports::start(&shape::raid1_of_2(), Kind::Nbdkit);
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
        Self { exports, server, older, image }
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
    let refused = Server::refused(&copied.exports.array, &copied.exports.uris, &[]).stderr;
    assert!(refused.contains("an older copy of this member"), "{refused}");
    copied.server = Server::start_members(&copied.exports.array, &copied.exports.uris, &["--degraded"]);
    assert_same(&read_export(copied.server.uri()), &copied.image, "without it");
    copied.exports.add(1);
    copied.assert_made_anew();
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// How far the mark on a member's file has counted, by the description of the format.
fn beat(member: &Path) -> u64 {
    u64::from_le_bytes(bytes_at(member, (40 << 10) + 32))
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
