//! The engine's cache in front of modelled arrays.

use uraid_layout::{Bytes, Sectors};

use super::super::{ArraySpec, CacheSpec, Nanos, Phases, Tape, presets};
use super::{List, RAID5, fixed_disk, run_list};

fn cached(disks: u8, chunk: u64) -> ArraySpec {
    let cache = CacheSpec { size: Bytes(32 << 20), hit_us: 50.0 };
    let used = Some(Sectors(60_000));
    ArraySpec { cache: Some(cache), used, ..ArraySpec::new(presets::lightning(), disks, RAID5, Bytes(chunk)) }
}

/// Adjacent writes of 4 KiB, as many as fill some stripes of four data units of 16 KiB.
fn stream(stripes: u64) -> Vec<(u64, u64)> {
    (0..stripes * 16).map(|index| (index * 8, 8)).collect()
}

#[test]
fn small_writes_become_whole_stripes() {
    let array = cached(5, 16 << 10);
    let outcome = run_list(&array, List::of(true, &stream(20)), 1);
    // 20 stripes of five units of 32 sectors, of which nothing is read.
    assert_eq!((outcome.sectors, outcome.served - outcome.writes_served), (20 * 5 * 32, 0));
    assert!(outcome.writes_served <= 20 * 5);
    assert_eq!(outcome.methods.full, 20);
    assert_eq!(outcome.traffic.taken, Bytes((20 * 64) << 10));
    assert_eq!(outcome.traffic.destaged, outcome.traffic.taken);
    assert_eq!((outcome.response.mean, outcome.response.count), (50_000.0, 320));
    // Without the cache each of them reads and writes two units' parts.
    let without =
        run_list(&ArraySpec { cache: None, phases: Phases::Request, ..array }, List::of(true, &stream(20)), 1);
    assert_eq!((without.sectors, without.served), (320 * 4 * 8, 320 * 4));
}

#[test]
fn what_is_written_again_is_written_out_once() {
    let spans: Vec<(u64, u64)> = (0..50).map(|_| (16, 8)).collect();
    let outcome = run_list(&cached(5, 16 << 10), List::of(true, &spans), 1);
    assert_eq!(outcome.traffic.coalesced, Bytes(49 * 4096));
    assert_eq!(outcome.traffic.destaged, Bytes(4096));
    assert_eq!((outcome.served, outcome.writes_served), (4, 2), "one small write");
}

#[test]
fn what_is_in_memory_is_not_read() {
    let write = List::of(true, &[(16, 8)]).requests;
    let read = List::of(false, &[(16, 8), (0, 32), (4000, 8)]).requests;
    let array = ArraySpec { disk: fixed_disk(), ..cached(5, 16 << 10) };
    let outcome = run_list(&array, List::new([write, read].concat()), 1);
    // The rest of the second is read around what is in memory: two operations of 16 and 8 sectors, and the third is
    // read.
    let reads_for_destage = 2;
    assert_eq!(outcome.served - outcome.writes_served - reads_for_destage, 3);
    assert_eq!(outcome.sectors, 16 + 8 + 8 + 4 * 8);
}

#[test]
fn without_room_writes_go_through() {
    let spec = CacheSpec { size: Bytes(1 << 20), hit_us: 50.0 };
    let array = ArraySpec { cache: Some(spec), ..cached(5, 16 << 10) };
    let spans: Vec<(u64, u64)> = (0..2000).map(|index| (index * 7919 % 20_000 * 8, 8)).collect();
    let outcome = run_list(&array, List::of(true, &spans), 4);
    assert!(outcome.traffic.taken.0 < 2000 * 4096, "{:?}", outcome.traffic);
    assert!(outcome.response.mean > 50_000.0, "{:?}", outcome.response);
    assert!(outcome.traffic.taken.0 - outcome.traffic.coalesced.0 >= outcome.traffic.destaged.0);
    let again = run_list(&array, List::of(true, &spans), 4);
    assert_eq!(outcome, again);
}

#[test]
fn caches_that_make_no_sense_are_refused() {
    let with = |size, hit_us, chunk| {
        let array = ArraySpec { cache: Some(CacheSpec { size: Bytes(size), hit_us }), ..cached(5, chunk) };
        super::super::System::new(&[array]).is_ok()
    };
    assert!(with(1 << 20, 1.0, 4096));
    assert!(!with(1 << 19, 1.0, 4096));
    assert!(!with(1 << 20, 0.0, 4096));
    assert!(!with(1 << 20, f64::NAN, 4096));
    assert!(!with(1 << 20, 1.0, 6144));
    let mix = super::super::workload::Mix::uniform(
        super::super::sizes::Sizes::fixed(Bytes(4096)).unwrap(),
        1.0,
        Sectors(1000),
        1,
    );
    assert!(Tape::new(&cached(5, 4096), mix.unwrap()).is_err());
    assert_eq!(Nanos(super::super::cache::TICK_NS), Nanos(100_000_000));
}
