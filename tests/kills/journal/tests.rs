//! Each way in which a server can fail its client, and each in which it may forget, on a journal of a few sectors.

use super::*;

const SEED: u64 = 7;

/// What the export holds before anything is written.
const EMPTY: [u8; 4 * SECTOR] = [0; 4 * SECTOR];

/// A journal of four sectors, and what a server would hold that does everything at once.
struct World {
    journal: Journal,
    image: Vec<u8>,
}

impl World {
    fn new() -> Self {
        Self { journal: Journal::new(SEED, 4), image: EMPTY.to_vec() }
    }

    fn send(&mut self, sectors: Range<usize>, kind: Kind, fua: bool) -> Request {
        let (request, payload) = self.journal.begin_write(sectors.clone(), kind, fua).expect("no read is under way");
        let place = &mut self.image[sectors.start * SECTOR..sectors.end * SECTOR];
        match kind {
            Kind::Data => place.copy_from_slice(&payload),
            Kind::Zeroes => place.fill(0),
        }
        request
    }

    fn write(&mut self, sectors: Range<usize>) {
        let request = self.send(sectors, Kind::Data, false);
        self.journal.end_write(request);
    }

    fn write_durably(&mut self, sectors: Range<usize>) {
        self.write(sectors);
        self.flush();
    }

    fn flush(&mut self) {
        let mark = self.journal.begin_flush();
        self.journal.end_flush(mark);
    }

    /// What the journal says of `image` after a kill.
    fn judge(&self, image: &[u8]) -> Result<(), String> {
        let mut journal = self.journal.clone();
        journal.killed(false);
        journal.restarted(0, image)
    }

    #[track_caller]
    fn refuses(&self, image: &[u8], reason: &str) {
        let wrong = self.judge(image).expect_err(reason);
        assert!(wrong.contains(reason), "{wrong}");
    }
}

#[test]
fn what_was_flushed_must_be_there() {
    let mut world = World::new();
    world.write(0..2);
    assert_eq!(world.judge(&EMPTY), Ok(()), "unflushed writes may be lost");
    assert_eq!(world.judge(&world.image), Ok(()));
    world.flush();
    world.refuses(&EMPTY, "sector 0 holds zeroes; it may hold version 1");
    let old = world.image.clone();
    world.write(1..2);
    assert_eq!(world.judge(&old), Ok(()));
    world.flush();
    world.refuses(&old, "sector 1 holds version 1; it may hold version 2");
}

#[test]
fn a_server_that_remembers_has_everything_that_it_acknowledged() {
    let mut world = World::new();
    world.write(0..1);
    let acknowledged = world.image.clone();
    let _under_way = world.send(1..2, Kind::Data, false);
    world.journal.killed(true);
    for image in [&acknowledged, &world.image] {
        assert_eq!(world.journal.clone().restarted(0, image), Ok(()));
    }
    let wrong = world.journal.restarted(0, &EMPTY).expect_err("the first write is gone");
    assert!(wrong.contains("sector 0 holds zeroes; it may hold version 1"), "{wrong}");
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it() {
    let mut world = World::new();
    let late = world.send(0..1, Kind::Data, false);
    let mark = world.journal.begin_flush();
    world.journal.end_write(late);
    world.journal.end_flush(mark);
    assert_eq!(world.judge(&EMPTY), Ok(()));
    world.flush();
    assert!(world.judge(&EMPTY).is_err());
}

#[test]
fn fua_covers_its_own_write_alone() {
    let mut world = World::new();
    world.write(0..1);
    let request = world.send(1..2, Kind::Data, true);
    assert_eq!(world.judge(&EMPTY), Ok(()), "it is not acknowledged yet");
    world.journal.end_write(request);
    world.refuses(&EMPTY, "sector 1");
    let mut image = world.image.clone();
    image[..SECTOR].fill(0);
    assert_eq!(world.judge(&image), Ok(()));
}

#[test]
fn overlapping_writes_end_in_either_order_and_later_ones_after_both() {
    let mut world = World::new();
    let first = world.send(0..1, Kind::Data, false);
    let one = world.image.clone();
    let second = world.send(0..1, Kind::Data, false);
    world.journal.end_write(second);
    world.journal.end_write(first);
    world.flush();
    assert_eq!(world.judge(&one), Ok(()));
    assert_eq!(world.judge(&world.image), Ok(()));
    world.refuses(&EMPTY, "version 1, 2");
    world.write_durably(0..1);
    assert!(world.judge(&one).is_err());
}

#[test]
fn a_mix_another_place_and_inventions_are_found() {
    let mut world = World::new();
    world.write(0..4);
    let old = world.image.clone();
    world.write(0..4);
    let mut torn = world.image.clone();
    torn[256..512].copy_from_slice(&old[256..512]);
    world.refuses(&torn, "sector 0 holds the first 256 bytes of version 2");
    let mut moved = world.image.clone();
    moved.copy_within(SECTOR..2 * SECTOR, 0);
    world.refuses(&moved, "sector 0 holds version 2 of sector 1");
    let mut sums = world.image.clone();
    sums.iter_mut().zip(&old).for_each(|(byte, other)| *byte ^= other);
    world.refuses(&sums, "sector 0 holds what nobody wrote");
    let mut flipped = world.image.clone();
    flipped[3 * SECTOR + 511] ^= 1;
    world.refuses(&flipped, "sector 3 holds the first 511 bytes of version 2");
}

#[test]
fn zeroes_count_where_they_were_written_only() {
    let mut world = World::new();
    world.write_durably(0..2);
    let zeroed = world.send(1..2, Kind::Zeroes, false);
    let image = world.image.clone();
    assert_eq!(world.judge(&image), Ok(()));
    world.journal.end_write(zeroed);
    world.write(1..2);
    assert_eq!(world.judge(&image), Ok(()));
    world.flush();
    world.refuses(&image, "sector 1 holds zeroes");
}

#[test]
fn what_was_read_after_a_restart_stays() {
    let mut world = World::new();
    world.write(0..1);
    world.journal.killed(false);
    let image = world.image.clone();
    assert_eq!(world.journal.restarted(0, &image), Ok(()));
    world.refuses(&EMPTY, "sector 0 holds zeroes; it may hold version 1");
}

#[test]
fn reads_see_what_was_acknowledged() {
    let mut world = World::new();
    world.write(0..1);
    let image = world.image.clone();
    let read = world.journal.begin_read(0..4).unwrap();
    assert!(world.journal.begin_write(3..4, Kind::Data, false).is_none(), "a read is under way");
    assert_eq!(world.journal.end_read(&read, &image), Ok(()));
    let read = world.journal.begin_read(0..4).unwrap();
    assert!(world.journal.end_read(&read, &EMPTY).is_err(), "it was acknowledged");
    let _request = world.send(2..3, Kind::Data, false);
    assert!(world.journal.begin_read(0..4).is_none(), "a write is under way");
}
