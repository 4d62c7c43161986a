//! The redo log in front of the disks.

use uraid_layout::{Bytes, Level};

use super::{List, RAID5, round_disk, run_list};
use crate::mech::array::Phases;
use crate::mech::{ArraySpec, CacheSpec, Outcome};

/// A ring of 80 of a disk's 4000 sectors: two cylinders.
const RING: Bytes = Bytes(80 * 512);

fn array(disks: u8, level: Level, log: Option<Bytes>) -> ArraySpec {
    ArraySpec { log, ..ArraySpec::new(round_disk(), disks, level, Bytes(10 * 512)) }
}

/// Sectors that the disks read and wrote, and operations of which they wrote.
fn traffic(found: &Outcome) -> (u64, u64) {
    (found.sectors, found.writes_served)
}

/// Four sectors of data and of parity are read, logged with 8 sectors each, and written.
#[test]
fn what_is_written_is_in_the_log_first() {
    let plain = run_list(&array(3, RAID5, None), List::of(true, &[(0, 4)]), 1);
    let logged = run_list(&array(3, RAID5, Some(RING)), List::of(true, &[(0, 4)]), 1);
    assert_eq!(traffic(&plain), (4 + 4 + 4, 2), "a reconstruct write of RAID 5 of three reads one unit");
    assert_eq!(traffic(&logged), (4 + 4 + 4 + 2 * (8 + 4), 4));
    let reads = |log| traffic(&run_list(&array(3, RAID5, log), List::of(false, &[(0, 4)]), 1));
    assert_eq!(reads(None), reads(Some(RING)), "reads are not logged");
}

/// The answer is there with the record, one operation before the write in place ends.
#[test]
fn the_client_has_its_answer_when_the_record_is_there() {
    let list = || List::of(true, &[(0, 20)]);
    let [plain, logged] = [None, Some(RING)].map(|log| run_list(&array(3, RAID5, log), list(), 1));
    // 28 sectors' record at the ring's start takes 2.8 revolutions less what it begins at: after it the client goes on.
    assert_eq!(traffic(&plain), (30, 3), "a whole stripe");
    assert_eq!(traffic(&logged), (30 + 3 * (8 + 10), 6));
    assert!(logged.response_ms() < 20.0 && logged.response_ms() >= 17.0, "{}", logged.response_ms());
}

/// Eight writes at a time to different stripes: the first has a record of its own, the others share the next ones.
#[test]
fn what_waits_shares_a_record() {
    let spans: Vec<(u64, u64)> = (0..8).map(|stripe| (stripe * 20, 20)).collect();
    let found = run_list(&array(3, RAID5, Some(RING)), List::of(true, &spans), 8);
    // In place each of the three disks has eight adjacent chunks, of which it joins those that wait together.
    let alone = run_list(&array(3, RAID5, Some(RING)), List::of(true, &spans), 1);
    assert!(found.writes_served < alone.writes_served, "{} {}", found.writes_served, alone.writes_served);
    assert!(found.sectors < alone.sectors, "fewer records have fewer headers");
    assert_eq!(alone.sectors, 8 * (30 + 3 * 18));
}

/// What a cache writes out is logged, too.
#[test]
fn a_cache_destages_through_the_log() {
    let chunk = Bytes(8 * 512);
    let cache = Some(CacheSpec { size: Bytes(1 << 20), hit_us: 10.0 });
    let base = ArraySpec { chunk, cache, phases: Phases::Request, ..array(3, RAID5, None) };
    let spans: Vec<(u64, u64)> = (0..10).map(|index| (index * 8, 8)).collect();
    let list = || List::of(true, &spans);
    let [plain, logged] = [None, Some(RING)].map(|log| run_list(&ArraySpec { log, ..base.clone() }, list(), 1));
    assert!(logged.sectors > plain.sectors, "{} {}", logged.sectors, plain.sectors);
}
