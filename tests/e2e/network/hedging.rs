//! Reads that an export takes unusually long for.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use super::{Exports, Kind};
use crate::control::{ask, status};
use uraid_tests::image::{Random, write_export};
use uraid_tests::nbd::Client;
use uraid_tests::server::Server;
use uraid_tests::shape;

const BLOCK: usize = 4096;

/// Asks an export's server to pause or to go on, and waits until it has done so.
fn tell(exports: &Exports, slot: usize, word: u8) {
    let mut control = UnixStream::connect(exports.pause_control(slot)).unwrap();
    control.write_all(&[word]).unwrap();
    let mut answer = [0];
    control.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], word.to_ascii_uppercase());
}

/// An array on three exports, one of which is going to pause, and what it holds.
struct Rig {
    exports: Exports,
    server: Server,
    image: Vec<u8>,
}

impl Rig {
    fn start(options: &[&str]) -> Self {
        let exports = Exports::start(&shape::raid5_of_3(), Kind::Pausing);
        exports.create();
        let server = exports.serve_array(&[&["--cache", "none"], options].concat());
        let image = Random::new(101).bytes(exports.array.expected_size());
        write_export(server.uri(), &image);
        Self { exports, server, image }
    }

    /// Reads the first block of each of so many units, one after the other; how many of them a member has.
    fn read_units(&self, client: &mut Client, count: usize, slot: usize) -> u64 {
        let array = &self.exports.array;
        let (chunk, placement) = (array.shape.chunk_bytes(), array.placement(&array.facts()));
        for unit in 0..count {
            let at = unit * chunk;
            assert!(client.read(at, BLOCK) == self.image[at..at + BLOCK], "unit {unit}");
        }
        (0..count).filter(|&unit| placement.copies(unit)[0].0 == slot).count() as u64
    }

    fn count(&self, slot: usize, what: &str) -> u64 {
        status(&self.exports.array)["members"][slot][what].as_u64().expect("it is counted")
    }
}

#[test]
fn a_read_that_takes_unusually_long_is_computed_and_its_member_stays() {
    // Nothing else answers.
    let rig = Rig::start(&["--read-deadline", "off", "--write-deadline", "off"]);
    let mut client = rig.server.connect();
    // How long reads take is known after a hundred of each member.
    let own = (0..4).map(|_| rig.read_units(&mut client, 120, 1)).sum::<u64>();
    assert!(own >= 100, "{own} reads");
    let before = rig.count(1, "hedged");
    tell(&rig.exports, 1, b'p');
    let computed = rig.read_units(&mut client, 60, 1);
    assert!(computed > 0);
    let after = status(&rig.exports.array);
    assert_eq!(after["members"][1]["hedged"].as_u64(), Some(before + computed), "each once");
    let is_said = [&after["members"][1]["slow"], &after["members"][1]["overdue"], &after["health"]["state"]];
    assert_eq!(is_said, [&false.into(), &0.into(), &"whole".into()] as [&serde_json::Value; 3]);
    tell(&rig.exports, 1, b'r');
    let _ = rig.read_units(&mut client, 60, 1);
    client.disconnect();
    let _ = rig.server.stop();
}

#[test]
fn with_hedging_off_the_deadline_is_waited_for() {
    let rig = Rig::start(&["--read-deadline", "200ms"]);
    let mut client = rig.server.connect();
    for _ in 0..4 {
        let _ = rig.read_units(&mut client, 120, 1);
    }
    let _ = ask(&rig.exports.array, &["set", "--hedge", "off"]).success();
    let before = rig.count(1, "hedged");
    tell(&rig.exports, 1, b'p');
    assert!(rig.read_units(&mut client, 4, 1) > 0);
    assert_eq!(rig.count(1, "hedged"), before);
    assert!(rig.count(1, "overdue") > 0);
    tell(&rig.exports, 1, b'r');
    client.disconnect();
    let refused = ask(&rig.exports.array, &["set", "--hedge", "2s"]).code_is(1).stderr;
    assert!(refused.contains("auto or off"), "{refused}");
    let _ = rig.server.stop();
}
