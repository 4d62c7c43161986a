//! What the cache knows of the journal: which pages go there, which are live, and what keeps its records.

use super::*;

/// A cache with a journal, of an array with parity.
fn journaled() -> (Cache, Geometry) {
    let geometry = Geometry::new(specs()[3]).expect("a test's geometry");
    let limit = Bytes(64 * PAGE_BYTES as u64);
    let mut cache = Cache::new(&geometry, Pool::new(limit), limit);
    cache.journal_mut().turn_on();
    (cache, geometry)
}

/// Has what flies stall, and put into the journal for a flush that begins then: its sectors.
fn stall(cache: &mut Cache, record: u64) -> Vec<Range<u64>> {
    (0..4).for_each(|_| cache.tick());
    let mark = cache.journal().mark();
    assert_eq!(cache.journal().left(mark), FlushLeft::Flights);
    let mut going = Vec::new();
    let batch = cache.journal_mut().take(usize::MAX, Wanted::Flights(mark), &mut going);
    assert_eq!(cache.journal().left(mark), FlushLeft::Wait);
    cache.journal_mut().journaled(batch, Some(LogSequence(record)));
    assert_eq!(cache.journal().left(mark), FlushLeft::Nothing);
    assert_consistent(cache);
    going.iter().map(|(lba, lease)| lba.0..lba.0 + lease.len() as u64 / 512).collect()
}

/// Clients are busy, and time passes.
fn pass(cache: &mut Cache, ticks: u64) {
    for _ in 0..ticks {
        cache.note_activity();
        cache.tick();
        assert_consistent(cache);
    }
}

/// What is dirty grows old within five seconds, unless the journal has it: what clients don't flush is not lost for
/// longer, and what they do is not written out before there is a need.
#[test]
fn what_the_journal_has_does_not_grow_old() {
    let (mut cache, geometry) = journaled();
    let stripe = geometry.stripe_sectors().0;
    let page = Buf::zeroed(Bytes(PAGE_BYTES as u64));
    let write = |cache: &mut Cache, at: u64| assert!(cache.write(Lba(at * stripe), &page, 0..PAGE_BYTES));
    (0..3).for_each(|at| write(&mut cache, at));
    let mut going = Vec::new();
    let batch = cache.journal_mut().take(usize::MAX, Wanted::Fresh, &mut going);
    cache.journal_mut().journaled(batch, Some(LogSequence(1)));
    // One is written again, and another comes, a second later.
    pass(&mut cache, 10);
    write(&mut cache, 1);
    write(&mut cache, 3);
    pass(&mut cache, 49);
    assert_eq!(cache.next_run(), None);
    pass(&mut cache, 2);
    assert_eq!(cache.next_run(), Some((1..2, Sectors(PAGE_BYTES as u64 / 512))));
    assert_eq!(cache.next_run(), Some((3..4, Sectors(PAGE_BYTES as u64 / 512))));
    pass(&mut cache, 1000);
    assert_eq!(cache.next_run(), None);
    // Idle clients are as good a time as any.
    (0..2).for_each(|_| cache.tick());
    let rest: Vec<_> = std::iter::from_fn(|| cache.next_run()).map(|(stripes, _)| stripes).collect();
    assert_eq!(rest, [0..1, 2..3]);
}

/// The journal's newest of a sector counts: what flies does not go there over what is newer.
#[test]
fn what_flies_goes_into_the_journal_without_what_is_newer_there() {
    let (mut cache, geometry) = journaled();
    let page = Buf::zeroed(Bytes(PAGE_BYTES as u64));
    assert!(cache.write(Lba(0), &page, 0..PAGE_BYTES), "there is room");
    let mut contents = Contents::default();
    cache.take(&geometry, 0..1, &mut contents);
    assert!(cache.write(Lba(2), &page, 0..3 * 512), "there is room");
    let mut going = Vec::new();
    let batch = cache.journal_mut().take(1, Wanted::Fresh, &mut going);
    cache.journal_mut().journaled(batch, Some(LogSequence(1)));
    assert_eq!(stall(&mut cache, 2), [0..2, 5..8]);
    // Both records are needed: it failed.
    cache.settle(&geometry, &mut contents, false);
    assert_consistent(&cache);
    assert_eq!(cache.journal_mut().released(), Some(LogSequence(2)), "trimmed after the one before");
    assert_eq!(cache.journal_mut().released(), None);
}

/// What is in place by its sums may be lost until it is flushed: it is written out again, through the log.
#[test]
fn what_is_in_place_by_its_sums_is_kept_by_the_journal() {
    let (mut cache, geometry) = journaled();
    let stripe = usize::try_from(geometry.stripe_sectors().bytes().0).expect("a small stripe");
    let content = Buf::zeroed(Bytes(stripe as u64));
    assert!(cache.write(Lba(0), &content, 0..stripe), "there is room");
    let mut contents = Contents::default();
    cache.take(&geometry, 0..1, &mut contents);
    contents.note_by_sums();
    assert_eq!(stall(&mut cache, 1).len(), stripe / PAGE_BYTES);
    cache.settle(&geometry, &mut contents, true);
    assert_consistent(&cache);
    assert_eq!(cache.journal_mut().released(), None);
    let (run, dirty) = cache.next_run().expect("a stripe that is dirty as a whole");
    assert_eq!((&run, dirty), (&(0..1), geometry.stripe_sectors()));
    cache.take(&geometry, run, &mut contents);
    assert!(contents.has_held(), "the log gets the content");
    cache.committed(&mut contents);
    assert_eq!(cache.journal_mut().released(), Some(LogSequence(1)));
    cache.settle(&geometry, &mut contents, true);
    assert!(!cache.is_dirty());
    assert_consistent(&cache);
}

/// What did not go into the journal after all counts as before: as what an older record has, or not at all.
#[test]
fn pages_that_are_given_back_are_as_live_as_they_were() {
    let (mut cache, geometry) = journaled();
    let (page, mut going) = (Buf::zeroed(Bytes(PAGE_BYTES as u64)), Vec::new());
    let sectors = Sectors(PAGE_BYTES as u64 / 512);
    let (old, new) = (Lba(0), Lba(geometry.stripe_sectors().0));
    assert!(cache.write(old, &page, 0..PAGE_BYTES), "there is room");
    let batch = cache.journal_mut().take(usize::MAX, Wanted::Fresh, &mut going);
    cache.journal_mut().journaled(batch, Some(LogSequence(1)));
    for _ in 0..2 {
        assert!([old, new].iter().all(|&lba| cache.write(lba, &page, 0..PAGE_BYTES)), "there is room");
        let mark = cache.journal().mark();
        let batch = cache.journal_mut().take(usize::MAX, Wanted::Fresh, &mut going);
        assert_eq!(cache.journal().left(mark), FlushLeft::Wait);
        cache.journal_mut().give_back(batch);
        assert_consistent(&cache);
        assert_eq!(cache.journal().left(mark), FlushLeft::Journal);
        assert_eq!([old, new].map(|lba| cache.journal().is_live(lba, sectors)), [true, false]);
    }
    let batch = cache.journal_mut().take(usize::MAX, Wanted::Fresh, &mut going);
    cache.journal_mut().journaled(batch, Some(LogSequence(2)));
    assert_eq!(cache.journal_mut().released(), Some(LogSequence(1)), "nobody needs it any more");
    cache.journal_mut().marked(LogSequence(1));
    assert!([old, new].iter().all(|&lba| cache.journal().is_live(lba, sectors)));
    cache.journal_mut().marked(LogSequence(2));
    assert!(![old, new].iter().any(|&lba| cache.journal().is_live(lba, sectors)));
}
