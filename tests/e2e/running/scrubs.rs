//! Scrubs beside clients: they disturb nothing, and what they can't be sure of stays as it is.

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{assert_same, read_export};
use uraid_tests::shape;

use super::{Load, ask, filled};

/// Scrubs that are started and stopped one after the other.
const STORM: usize = 12;

/// How long parts of a scrub may take that was stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a scrub when the parts of the one before, which was stopped, have ended.
#[track_caller]
fn start(array: &Array, words: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    while ask(array, words).code != Some(0) {
        assert!(Instant::now() < deadline, "the last scrub does not end");
    }
}

#[test]
fn scrubs_come_and_go_while_clients_write() {
    for shape in [shape::raid1_of_3(), shape::raid5_of_5_left_symmetric(), shape::rm2_of_7_adjacent()] {
        let (array, server, events, model) = filled(&shape);
        let load = Load::start(&server, model, 31);
        for round in 0..STORM {
            let words: &[&str] = if round % 2 == 0 { &["scrub", "start"] } else { &["scrub", "start", "--repair"] };
            start(&array, words);
            let _ = ask(&array, &["scrub", "stop"]);
        }
        start(&array, &["scrub", "start"]);
        loop {
            let report = ask(&array, &["scrub", "status", "--json"]).success().json();
            assert_eq!(report["mismatched_bytes"], 0, "{}: {report}", shape.name);
            if report["running"] == false {
                break;
            }
        }
        let model = load.finish();
        drop(events);
        assert_same(&read_export(server.uri()), &model, shape.name);
        let _ = server.stop();
        Content::read(&array).assert_holds(&model, shape.name);
    }
}

/// Of RAID 5 without checksums it can't be told whether data or parity is wrong: a repair leaves both, and the data is
/// what it was.
#[test]
fn a_repair_does_not_destroy_data_for_parity() {
    let (array, server, events, model) = filled(&shape::raid5_of_3());
    let placement = array.placement(&array.facts());
    let (slot, row) = placement.parities(0)[0];
    let member = std::fs::File::options().read(true).write(true).open(&array.members()[slot]).unwrap();
    let at = (array.facts()[slot].data_offset + row * array.shape.chunk_bytes()) as u64;
    let mut bytes = vec![0; 4096];
    // What is dirty in memory is written first.
    server.connect().flush();
    member.read_exact_at(&mut bytes, at).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    member.write_all_at(&bytes, at).unwrap();
    let _ = ask(&array, &["scrub", "start", "--repair"]).success();
    assert_eq!(events.until("scrub-finished"), ["scrub-started", "scrub-mismatch"]);
    let report = ask(&array, &["scrub", "status", "--json"]).success().json();
    assert_eq!((&report["mismatched_bytes"], &report["repaired_bytes"]), (&4096.into(), &0.into()), "{report}");
    assert_same(&read_export(server.uri()), &model, "the data");
    let mut now = vec![0; 4096];
    member.read_exact_at(&mut now, at).unwrap();
    assert!(now == bytes, "the parity is as wrong as it was");
    let _ = server.stop();
    assert_same(&Content::read(&array).image(), &model, "the data on the members");
}
