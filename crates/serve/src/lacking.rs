//! What members lack and clients have lost, summed up: a value that is cheap to compare in every turn of the reactor.
//!
//! It is counted from the members' lists of bad blocks, and does not know how it is told.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use uraid_io::disk::Disk;
use uraid_io::engine::Engine;
use uraid_layout::{Lba, MemberIndex, MemberSet, Sectors};

/// Ranges of lost content that are told in words.
pub const RANGES_TOLD: usize = 16;

/// Arrays have at most so many members.
const MEMBERS_MAX: usize = 64;

/// What present members lack, and what is lost for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// The number of bad blocks of each member, by slot.
    blocks: [u16; MEMBERS_MAX],
    pub(crate) lost: Option<LostContent>,
}

/// Content that no member has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostContent {
    pub(crate) len: Sectors,
    /// The number of ranges.
    pub(crate) ranges: usize,
    first: [(Lba, Lba); RANGES_TOLD],
}

/// The engine's ranges that were summed up last, so that this is done once for each change of the lists.
#[derive(Debug, Default)]
pub(crate) struct Summed {
    ranges: RefCell<Rc<[Range<Lba>]>>,
    sum: Cell<Option<LostContent>>,
}

impl Lacking {
    /// What an engine's lists say.
    pub(crate) fn of<D: Disk, T>(engine: &Engine<D, T>, summed: &Summed) -> Self {
        let mut lacking = Self { lost: summed.of(&engine.lost()), ..Self::default() };
        for member in engine.slots().minus(engine.missing()).iter() {
            let blocks = engine.bad_blocks(member).map_or(0, |list| list.len());
            lacking.blocks[member.index()] = u16::try_from(blocks).expect("lists are bounded");
        }
        lacking
    }

    /// The members with bad blocks, and how many each has.
    pub(crate) fn members(&self) -> impl Iterator<Item = (MemberIndex, u64)> {
        let slots = (0..).map(MemberIndex).zip(self.blocks);
        slots.filter(|&(_, blocks)| blocks > 0).map(|(member, blocks)| (member, blocks.into()))
    }

    /// The members with bad blocks.
    pub(crate) fn set(&self) -> MemberSet {
        self.members().map(|(member, _)| member).collect()
    }

    /// The size of what is lost.
    pub(crate) fn lost_len(&self) -> Sectors {
        self.lost.map_or(Sectors(0), |lost| lost.len)
    }
}

impl Default for Lacking {
    fn default() -> Self {
        Self { blocks: [0; MEMBERS_MAX], lost: None }
    }
}

impl LostContent {
    /// Sums up ascending ranges; `None` if there are none.
    fn of(ranges: &[Range<Lba>]) -> Option<Self> {
        let mut first = [(Lba(0), Lba(0)); RANGES_TOLD];
        first.iter_mut().zip(ranges).for_each(|(place, range)| *place = (range.start, range.end));
        let len = ranges.iter().map(|range| range.end.0 - range.start.0).sum();
        (len > 0).then_some(Self { len: Sectors(len), ranges: ranges.len(), first })
    }

    /// The first ranges, ascending.
    pub(crate) fn first(&self) -> impl Iterator<Item = Range<Lba>> {
        self.first.into_iter().take(self.ranges).map(|(start, end)| start..end)
    }
}

impl Summed {
    fn of(&self, ranges: &Rc<[Range<Lba>]>) -> Option<LostContent> {
        if !Rc::ptr_eq(&self.ranges.borrow(), ranges) {
            self.ranges.replace(Rc::clone(ranges));
            self.sum.set(LostContent::of(ranges));
        }
        self.sum.get()
    }
}

#[cfg(test)]
impl Lacking {
    /// Members with so many bad blocks, and how much is lost, from the array's start on.
    pub(crate) fn new(members: &[(u8, u16)], lost: Sectors) -> Self {
        let mut lacking =
            Self { lost: LostContent::of(std::slice::from_ref(&(Lba(0)..Lba(lost.0)))), ..Self::default() };
        members.iter().for_each(|&(slot, blocks)| lacking.blocks[usize::from(slot)] = blocks);
        lacking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_counted_and_the_first_ranges_are_told() {
        let ranges: Vec<Range<Lba>> = (0..20).map(|at| Lba(at * 16)..Lba(at * 16 + 8)).collect();
        let lost = LostContent::of(&ranges).expect("something is lost");
        assert_eq!((lost.len, lost.ranges), (Sectors(160), 20));
        assert_eq!(lost.first().collect::<Vec<_>>(), ranges[..RANGES_TOLD]);
        let few = LostContent::of(&ranges[..2]).expect("something is lost");
        assert_eq!(few.first().collect::<Vec<_>>(), ranges[..2]);
        assert_eq!(LostContent::of(&[]), None);
    }

    #[test]
    fn ranges_are_summed_up_again_when_they_change() {
        let summed = Summed::default();
        let len = |ranges: &Rc<[Range<Lba>]>| summed.of(ranges).map(|lost| lost.len);
        let [some, more] = [8, 16].map(|end| Rc::from(vec![Lba(0)..Lba(end)]));
        assert_eq!([len(&some), len(&some), len(&more)], [8, 8, 16].map(|sectors| Some(Sectors(sectors))));
        assert_eq!(len(&Rc::default()), None);
    }
}
