//! The journal of pages in front of the disks.

use uraid_layout::{Bytes, Level};

use super::{List, RAID5, assert_near, fixed_disk, run_list};
use crate::mech::{ArraySpec, CacheSpec, Outcome};

/// Of disks that take 100 us and 1 us a sector.
fn array(disks: u8, level: Level, has_journal: bool) -> ArraySpec {
    let cache = Some(CacheSpec { size: Bytes(4 << 20), hit_us: 10.0 });
    let journal = has_journal.then_some(Bytes(1 << 20));
    ArraySpec { cache, journal, ..ArraySpec::new(fixed_disk(), disks, level, Bytes(16 * 512)) }
}

fn pages(count: u64) -> List {
    List::of(true, &(0..count).map(|page| (page * 1000 * 8, 8)).collect::<Vec<_>>())
}

fn run(array: &ArraySpec, count: u64, processes: usize) -> Outcome {
    run_list(array, pages(count), processes)
}

/// A page is 8 sectors, and so is a record's header.
#[test]
fn a_write_is_answered_when_its_record_is_there() {
    let found = run(&array(5, RAID5, true), 1, 1);
    assert_near(found.response_ms(), 0.116, 1e-6);
}

#[test]
fn a_record_is_on_one_disk_more_than_may_be_lost() {
    for (level, disks, copies) in [(RAID5, 5, 2), (Level::Raid1, 3, 3)] {
        let [with, without] = [true, false].map(|has_journal| run(&array(disks, level, has_journal), 1, 1));
        assert_eq!(with.sectors - without.sectors, copies * 16, "{level:?}");
        assert_eq!(with.writes_served - without.writes_served, copies, "{level:?}");
    }
}

/// The first four of eight have records of their own, and the others share the next.
#[test]
fn what_waits_shares_a_record() {
    let [with, without] = [true, false].map(|has_journal| run(&array(5, RAID5, has_journal), 8, 8));
    assert_eq!(with.sectors - without.sectors, 2 * (4 * 16 + 8 + 4 * 8));
}
