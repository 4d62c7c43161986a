//! What every sector of an array may hold, from the history of the commands that wrote it.
//!
//! Each sector has its *versions*: everything that was ever written to it and may still show. A version is *gone* once
//! a later one has certainly replaced it. While the array runs, a version that was replied to has replaced all that
//! were replied to before it was begun. Over a power cut, only a version that a flush or FUA made durable has. When
//! nothing is under way and all is durable, a look at the array shows which version each sector holds, and the others
//! are gone.
//!
//! A version that the array stopped with, and that was not durable, is *left*: it may be there or not. As long as no
//! look has shown which, it replaces nothing, and no flush makes it durable that comes after: there may be nothing of
//! it to flush.
//!
//! The model knows nothing of members, stripes or parity.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use uraid_layout::{Lba, Sectors};

use crate::image::{SECTOR, Sector, ZEROS};

/// A moment between the events that the model knows of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// Which write a version is of. The zeros of a new array are of write 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(pub u64);

/// A write that has no reply yet.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Its number.
    pub number: Number,
    /// Its first sector.
    pub lba: Lba,
    /// Its length.
    pub len: Sectors,
}

/// The history of an array's sectors.
#[derive(Clone, Debug)]
pub struct Model {
    sectors: Vec<Versions>,
    /// The sectors with more than one version.
    open: BTreeSet<usize>,
    /// Nothing has changed since what is gone was taken out.
    is_settled: bool,
    clock: Moment,
    next: Number,
}

/// A sector that holds what it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The sector.
    pub lba: Lba,
    /// What it holds.
    pub holds: Holds,
    /// What it may hold.
    pub allowed: Vec<Number>,
}

/// What a sector's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Zeros.
    Zeros,
    /// What that write brought for that sector.
    Version(Number, Lba),
    /// Nothing that anybody wrote; the first bytes.
    Garbage(u64),
}

type Versions = SmallVec<[Version; 2]>;

#[derive(Clone, Copy, Debug)]
struct Version {
    number: Number,
    is_zero: bool,
    begun: Moment,
    /// Writes that fail have none: they may show at any time as long as the array runs.
    replied: Option<Moment>,
    is_durable: bool,
    /// The array stopped before it was durable.
    is_left: bool,
    /// A later one is durable. Reads that were under way by then may show it.
    is_gone: bool,
}

impl Version {
    /// Whether it was replied to by that moment, and the array runs on since.
    fn has_replaced(&self, by: Moment) -> bool {
        !self.is_left && self.replied.is_some_and(|replied| replied <= by)
    }

    fn precedes(&self, later: &Self) -> bool {
        self.replied.is_some_and(|replied| replied < later.begun)
    }

    fn shows(&self, lba: usize, sector: &Sector) -> bool {
        if self.is_zero { *sector == ZEROS } else { *sector == content(self.number, Lba(lba as u64)) }
    }
}

/// What a write brings for a sector: its number, the sector, and what follows from both.
#[must_use]
pub(crate) fn content(number: Number, lba: Lba) -> Sector {
    let mut bytes = [0; SECTOR];
    let seed = (number.0 << 32 | lba.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (index, word) in (0u64..).zip(bytes.chunks_exact_mut(8)) {
        let value = match index {
            0 => number.0,
            1 => lba.0,
            _ => (seed ^ index).wrapping_mul(0xBF58_476D_1CE4_E5B9).rotate_left(31),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

impl Model {
    /// An array of zeros.
    ///
    /// # Panics
    /// When it does not fit the address space.
    #[must_use]
    pub fn new(capacity: Sectors) -> Self {
        let count = index(Lba(capacity.0));
        let sectors = vec![smallvec![zeros()]; count];
        Self { sectors, open: BTreeSet::new(), is_settled: false, clock: Moment(1), next: Number(1) }
    }

    /// Gives the array another size. What is beyond it is gone, and what is new is zeros.
    ///
    /// # Panics
    /// When it does not fit the address space.
    pub(crate) fn resize(&mut self, capacity: Sectors) {
        let count = index(Lba(capacity.0));
        self.open.split_off(&count);
        self.sectors.resize(count, smallvec![zeros()]);
    }

    /// Notes that what was given up from there on may be zeros by now, or what it was.
    pub(crate) fn give_up(&mut self, from: Lba) {
        self.is_settled = false;
        for at in index(from)..self.sectors.len() {
            self.sectors[at].push(zeros());
            self.open.insert(at);
        }
    }

    /// Now: a read that is begun does not show what is gone at that moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock
    }

    /// Begins a write, of zeros or of what [`Model::data`] says.
    ///
    /// # Panics
    /// When the range is not within the array.
    pub fn begin(&mut self, lba: Lba, len: Sectors, is_zero: bool) -> Pending {
        self.is_settled = false;
        let begun = self.tick();
        let pending = Pending { number: self.next, lba, len };
        self.next.0 += 1;
        for at in range(lba, len) {
            self.sectors[at].push(Version {
                number: pending.number,
                is_zero,
                begun,
                replied: None,
                is_durable: false,
                is_left: false,
                is_gone: false,
            });
            self.open.insert(at);
        }
        pending
    }

    /// The bytes of a write.
    #[must_use]
    pub fn data(pending: Pending) -> Vec<u8> {
        range(pending.lba, pending.len).flat_map(|lba| content(pending.number, Lba(lba as u64))).collect()
    }

    /// Ends a write that succeeded; `is_durable` with FUA.
    pub fn replied(&mut self, pending: Pending, is_durable: bool) {
        self.is_settled = false;
        let now = self.tick();
        for at in range(pending.lba, pending.len) {
            if let Some(version) = self.sectors[at].iter_mut().find(|version| version.number == pending.number) {
                version.replied = Some(now);
                version.is_durable |= is_durable;
            }
            self.prune(at);
        }
    }

    /// Ends a flush that succeeded and was begun then: what had been replied to is durable.
    pub fn flushed(&mut self, begun: Moment) {
        self.is_settled = false;
        for at in self.open.iter().copied().collect::<Vec<_>>() {
            for version in &mut self.sectors[at] {
                version.is_durable |= version.has_replaced(begun);
            }
            self.prune(at);
        }
    }

    /// Notes that no read is under way: what is gone shows to nobody.
    pub fn settle(&mut self) {
        let Self { sectors, open, is_settled, .. } = self;
        if std::mem::replace(is_settled, true) {
            return;
        }
        open.retain(|&at| {
            sectors[at].retain(|version| !version.is_gone);
            sectors[at].len() > 1 || !sectors[at][0].is_durable
        });
    }

    /// Ends everything that is under way: nothing of it shows that has not by now.
    pub fn stopped(&mut self) {
        self.is_settled = false;
        let now = self.tick();
        for &at in &self.open {
            for version in &mut self.sectors[at] {
                version.replied = version.replied.or(Some(now));
                version.is_left = !version.is_durable;
            }
        }
        self.settle();
    }

    /// Checks what a read returned that was begun then and is over now.
    ///
    /// # Errors
    /// The first sector that holds what it must not.
    ///
    /// # Panics
    /// When the bytes are not whole sectors of the array.
    pub fn check(&self, lba: Lba, bytes: &[u8], begun: Moment) -> Result<(), Wrong> {
        for (at, sector) in (index(lba)..).zip(sectors(bytes)) {
            let versions = &self.sectors[at];
            let is_gone =
                |version: &Version| versions.iter().any(|later| later.has_replaced(begun) && version.precedes(later));
            if !versions.iter().any(|version| version.shows(at, sector) && !is_gone(version)) {
                let allowed = versions.iter().filter(|version| !is_gone(version));
                return Err(wrong(at, sector, allowed));
            }
        }
        Ok(())
    }

    /// Checks what a read returned of what a power cut has left, before anything is written again.
    ///
    /// # Errors
    /// The first sector that holds what it must not.
    ///
    /// # Panics
    /// When the bytes are not whole sectors of the array.
    pub(crate) fn check_left(&self, lba: Lba, bytes: &[u8]) -> Result<(), Wrong> {
        for (lba, sector) in (lba.0..).map(Lba).zip(sectors(bytes)) {
            if !self.may_hold(lba, sector) {
                return Err(self.wrong(lba, sector));
            }
        }
        Ok(())
    }

    /// Takes in what the array holds from `lba` on, with nothing under way and all of it durable: the other versions
    /// are gone.
    ///
    /// # Errors
    /// The first sector that holds what it must not.
    ///
    /// # Panics
    /// When the bytes are not whole sectors of the array.
    pub(crate) fn observe(&mut self, lba: Lba, bytes: &[u8]) -> Result<(), Wrong> {
        for (at, sector) in (index(lba)..).zip(sectors(bytes)) {
            let versions = &mut self.sectors[at];
            let Some(&shown) = versions.iter().rfind(|version| !version.is_gone && version.shows(at, sector)) else {
                return Err(wrong(at, sector, versions.iter().filter(|version| !version.is_gone)));
            };
            *versions = smallvec![Version { is_durable: true, is_left: false, ..shown }];
            self.open.remove(&at);
        }
        Ok(())
    }

    /// Whether any of these sectors has something that is not durable, or was not when it was last seen.
    pub(crate) fn is_open_within(&self, sectors: Range<u64>) -> bool {
        self.open.range(index(Lba(sectors.start))..index(Lba(sectors.end))).next().is_some()
    }

    /// Which writes' content a sector may hold after a power cut, the oldest first.
    ///
    /// # Panics
    /// When the array has no such sector.
    pub fn allowed(&self, lba: Lba) -> impl Iterator<Item = Number> + '_ {
        self.sectors[index(lba)].iter().filter(|version| !version.is_gone).map(|version| version.number)
    }

    /// Whether a sector may hold that after a power cut.
    ///
    /// # Panics
    /// When the array has no such sector.
    #[must_use]
    pub(crate) fn may_hold(&self, lba: Lba, sector: &Sector) -> bool {
        self.sectors[index(lba)].iter().any(|version| !version.is_gone && version.shows(index(lba), sector))
    }

    /// What is wrong with what a sector holds.
    ///
    /// # Panics
    /// When the array has no such sector.
    #[must_use]
    pub fn wrong(&self, lba: Lba, sector: &Sector) -> Wrong {
        let versions = &self.sectors[index(lba)];
        wrong(index(lba), sector, versions.iter().filter(|version| !version.is_gone))
    }

    /// How many sectors may hold one of several things.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// How many sectors the array has.
    #[must_use]
    pub fn capacity(&self) -> Sectors {
        Sectors(self.sectors.len() as u64)
    }

    fn tick(&mut self) -> Moment {
        self.clock.0 += 1;
        self.clock
    }

    /// Notes which versions not even a power cut brings back.
    fn prune(&mut self, at: usize) {
        let versions = &mut self.sectors[at];
        let durable: SmallVec<[Version; 2]> = versions.iter().filter(|version| version.is_durable).copied().collect();
        for version in versions {
            version.is_gone |= durable.iter().any(|later| version.precedes(later));
        }
    }
}

fn wrong<'a>(at: usize, sector: &Sector, allowed: impl Iterator<Item = &'a Version>) -> Wrong {
    Wrong { lba: Lba(at as u64), holds: Holds::of(sector), allowed: allowed.map(|version| version.number).collect() }
}

/// What nobody has written yet.
fn zeros() -> Version {
    Version {
        number: Number(0),
        is_zero: true,
        begun: Moment(0),
        replied: Some(Moment(0)),
        is_durable: true,
        is_left: false,
        is_gone: false,
    }
}

fn index(lba: Lba) -> usize {
    usize::try_from(lba.0).expect("a simulated array fits the address space")
}

fn range(lba: Lba, len: Sectors) -> Range<usize> {
    index(lba)..index(Lba(lba.0 + len.0))
}

fn sectors(bytes: &[u8]) -> impl Iterator<Item = &Sector> {
    let (sectors, rest) = bytes.as_chunks();
    assert!(rest.is_empty(), "whole sectors are looked at");
    sectors.iter()
}

impl Holds {
    fn of(sector: &Sector) -> Self {
        let word = |at: usize| u64::from_le_bytes(*sector[at..].first_chunk().expect("inside a sector"));
        let (number, lba) = (Number(word(0)), Lba(word(8)));
        match sector {
            _ if *sector == ZEROS => Self::Zeros,
            _ if *sector == content(number, lba) => Self::Version(number, lba),
            _ => Self::Garbage(word(0)),
        }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeros => write!(f, "zeros"),
            Self::Version(number, lba) => write!(f, "write {} of sector {lba}", number.0),
            Self::Garbage(word) => write!(f, "what nobody wrote, beginning {word:#018x}"),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed: Vec<String> = self.allowed.iter().map(|number| number.0.to_string()).collect();
        write!(f, "sector {} holds {}; it may hold write {}", self.lba, self.holds, allowed.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_right(model: &Model, number: u64, begun: Moment) -> bool {
        model.check(Lba(0), &bytes(number), begun).is_ok()
    }

    fn bytes(number: u64) -> Sector {
        if number == 0 { ZEROS } else { content(Number(number), Lba(0)) }
    }

    /// Which of the first versions a power cut may leave.
    fn left(model: &Model) -> Vec<u64> {
        let shows = |&number: &u64| model.clone().observe(Lba(0), &bytes(number)).is_ok();
        (0..5).filter(shows).collect()
    }

    #[test]
    fn a_reply_ends_what_was_replied_to_before_and_a_flush_makes_that_durable() {
        let mut model = Model::new(Sectors(2));
        let first = model.begin(Lba(0), Sectors(1), false);
        assert!(is_right(&model, 0, model.now()) && is_right(&model, 1, model.now()), "either, as it is under way");
        let before = model.now();
        model.replied(first, false);
        assert!(!is_right(&model, 0, model.now()) && is_right(&model, 0, before));
        let flush = model.now();
        let second = model.begin(Lba(0), Sectors(1), false);
        model.replied(second, false);
        assert_eq!(left(&model), [0, 1, 2]);
        model.flushed(flush);
        assert_eq!(left(&model), [1, 2], "the flush was begun before the second reply");
        model.observe(Lba(0), &bytes(1)).expect("allowed");
        assert_eq!(left(&model), [1], "what a look has shown stays");
    }

    #[test]
    fn fua_is_durable_by_itself_and_overlapping_writes_have_no_order() {
        let mut model = Model::new(Sectors(1));
        let first = model.begin(Lba(0), Sectors(1), false);
        let second = model.begin(Lba(0), Sectors(1), false);
        model.replied(second, true);
        assert_eq!(left(&model), [1, 2]);
        model.replied(first, false);
        assert_eq!(left(&model), [1, 2]);
        let third = model.begin(Lba(0), Sectors(1), false);
        model.replied(third, true);
        assert_eq!(left(&model), [3]);
    }

    #[test]
    fn a_write_that_failed_may_show_until_the_array_stops() {
        let mut model = Model::new(Sectors(1));
        let _failed = model.begin(Lba(0), Sectors(1), false);
        let second = model.begin(Lba(0), Sectors(1), false);
        model.replied(second, true);
        assert!(is_right(&model, 1, model.now()));
        model.stopped();
        model.observe(Lba(0), &bytes(2)).expect("allowed");
        let third = model.begin(Lba(0), Sectors(1), false);
        model.replied(third, false);
        assert!(!is_right(&model, 1, model.now()));
        assert_eq!(left(&model), [2, 3]);
    }

    #[test]
    fn what_the_array_stopped_with_may_be_there_or_not_until_a_look_shows_it() {
        let mut before = Model::new(Sectors(1));
        let answered = before.begin(Lba(0), Sectors(1), false);
        before.replied(answered, false);
        let _under_way = before.begin(Lba(0), Sectors(1), false);
        before.stopped();
        before.flushed(before.now());
        before.settle();
        before.stopped();
        before.flushed(before.now());
        assert_eq!(left(&before), [0, 1, 2], "of what may not be there nothing is flushed");
        assert!((0..3).all(|number| is_right(&before, number, before.now())), "nor read by whoever reads later");
        for shown in 0..3 {
            let mut model = before.clone();
            model.observe(Lba(0), &bytes(shown)).expect("allowed");
            assert_eq!(left(&model), [shown], "a look has shown it");
        }
        let third = before.begin(Lba(0), Sectors(1), false);
        before.replied(third, false);
        assert!((0..3).all(|number| !is_right(&before, number, before.now())) && left(&before) == [0, 1, 2, 3]);
        before.flushed(before.now());
        assert_eq!(left(&before), [3], "it has replaced whatever was there");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let model = Model::new(Sectors(4));
        let mut bytes = content(Number(3), Lba(9)).to_vec();
        let wrong = model.check(Lba(2), &bytes, model.now()).expect_err("nobody wrote it there");
        assert_eq!((wrong.lba, wrong.holds), (Lba(2), Holds::Version(Number(3), Lba(9))));
        bytes[100] ^= 1;
        let wrong = model.check(Lba(2), &bytes, model.now()).expect_err("nobody wrote it");
        assert_eq!(wrong.holds, Holds::Garbage(3));
        assert_eq!(
            wrong.to_string(),
            "sector 2 holds what nobody wrote, beginning 0x0000000000000003; it may hold write 0"
        );
    }
}
