//! What lists of bad blocks mean for clients: which of the array's sectors nobody has.
//!
//! A sector that its member lacks is not lost as long as the other members can make up for it; it is made good when it
//! is read, or by a scrub.

use std::collections::BTreeMap;
use std::ops::Range;

use uraid_layout::repair::Repair;
use uraid_layout::reshape::Course;
use uraid_layout::{Cell, DiskSector, Geometry, Lba, Location, MemberIndex, MemberSet, Owner, Sectors, StripeId};

use crate::format::BLOCK;
use crate::format::badblocks::{BadBlocks, Lack};
use crate::format::superblock::Reshape;

/// The array's sectors that nobody has, ascending, where `missing` members are not there or don't have their content
/// yet, and the others lack what is in their lists. A missing member's list counts for nothing; what is lost because
/// too many are missing is not told.
#[must_use]
pub fn lost(geometry: &Geometry, missing: MemberSet, list: &dyn Fn(MemberIndex) -> BadBlocks) -> Vec<Range<Lba>> {
    let present = geometry.all_members().minus(missing);
    let lists: BTreeMap<MemberIndex, BadBlocks> = present.iter().map(|member| (member, list(member))).collect();
    let mut finder =
        Finder { geometry, lists: &lists, beside: Repair::partial(geometry, missing), repairs: BTreeMap::new() };
    let mut lost: Vec<Range<Lba>> = Vec::new();
    for (&member, list) in &lists {
        let runs = [Lack::Absent, Lack::Unread].into_iter().flat_map(|lack| list.all(lack));
        for sectors in runs.flat_map(blocks) {
            let at = Location { member, sector: sectors.start };
            let Some((stripe, _, start)) = geometry.cell_at(at) else { continue };
            finder.look(stripe, start, Sectors(sectors.end.0 - sectors.start.0), &mut lost);
        }
    }
    lost.sort_by_key(|range| range.start);
    lost.dedup_by(|next, last| {
        let is_adjacent = next.start <= last.end;
        if is_adjacent {
            last.end = last.end.max(next.end);
        }
        is_adjacent
    });
    lost
}

/// The same of an array that is on its way from one shape to another: what content that has moved lacks in one of them,
/// and what the rest lacks in the other. Of a window that is saved that is `saved`.
#[must_use]
pub fn lost_between(
    course: &Course,
    reshape: &Reshape,
    missing: MemberSet,
    list: &dyn Fn(MemberIndex) -> BadBlocks,
    saved: Vec<Range<Lba>>,
) -> Vec<Range<Lba>> {
    let moving = course.ahead(reshape.mark, course.heading(reshape.is_back), reshape.saved);
    let (start, end) = moving.map_or((reshape.mark, reshape.mark), |moving| (moving.start, moving.end));
    let [below, above] = [course.below(), course.above()].map(|shape| lost(shape, missing, list));
    clip(&below, &(Lba(0)..start)).into_iter().chain(saved).chain(clip(&above, &(end..Lba(course.kept().0)))).collect()
}

/// What is left of ascending ranges without others.
pub(crate) fn without(ranges: &[Range<Lba>], mut others: Vec<Range<Lba>>) -> Vec<Range<Lba>> {
    others.sort_unstable_by_key(|other| other.start);
    let (mut left, mut others) = (Vec::new(), others.into_iter().peekable());
    for range in ranges {
        let mut start = range.start;
        while others.next_if(|other| other.end <= start).is_some() {}
        // One may reach into the next range, too.
        while start < range.end
            && let Some(other) = others.peek().filter(|other| other.start < range.end).cloned()
        {
            left.extend((start < other.start).then_some(start..other.start));
            start = start.max(other.end);
            if other.end <= range.end {
                others.next();
            }
        }
        left.extend((start < range.end).then_some(start..range.end));
    }
    left
}

/// Columns of a data unit.
pub(crate) struct Piece {
    pub(crate) stripe: StripeId,
    pub(crate) cell: Cell,
    pub(crate) start: Sectors,
    pub(crate) len: Sectors,
}

/// The units that a range of the array has something of, and what.
pub(crate) fn pieces(geometry: &Geometry, range: Range<Lba>) -> impl Iterator<Item = Piece> + '_ {
    let (mut at, end) = (range.start.0, range.end.0);
    std::iter::from_fn(move || {
        let (stripe, unit, start) = geometry.split(Lba(at));
        let len = Sectors((geometry.chunk().0 - start.0).min(end.saturating_sub(at)));
        at += len.0;
        (len.0 > 0).then(|| Piece { stripe, cell: geometry.map(stripe).cell(unit), start, len })
    })
}

/// What these ranges have of another one.
pub(crate) fn clip(ranges: &[Range<Lba>], within: &Range<Lba>) -> Vec<Range<Lba>> {
    let clipped = ranges.iter().map(|range| range.start.max(within.start)..range.end.min(within.end));
    clipped.filter(|range| !range.is_empty()).collect()
}

struct Finder<'a> {
    geometry: &'a Geometry,
    lists: &'a BTreeMap<MemberIndex, BadBlocks>,
    /// What is had without the missing members, and nothing lacking.
    beside: Repair,
    /// By map, and what is lacking there.
    repairs: BTreeMap<(usize, Vec<Cell>), Repair>,
}

impl Finder<'_> {
    /// Adds what is lost of columns within a block in which some member lacks something.
    fn look(&mut self, stripe: StripeId, start: Sectors, len: Sectors, lost: &mut Vec<Range<Lba>>) {
        let lacking = self.lacking(stripe, start, len);
        // Others may lack only some of these columns.
        let is_partial = (start.0..start.0 + len.0).any(|at| self.lacking(stripe, Sectors(at), Sectors(1)) != lacking);
        if !is_partial {
            return self.look_at(stripe, start, len, lacking, lost);
        }
        for at in (start.0..start.0 + len.0).map(Sectors) {
            let lacking = self.lacking(stripe, at, Sectors(1));
            self.look_at(stripe, at, Sectors(1), lacking, lost);
        }
    }

    /// The cells that lack some of these columns.
    fn lacking(&self, stripe: StripeId, start: Sectors, len: Sectors) -> Vec<Cell> {
        let lacks = |cell: &Cell| {
            let (member, sectors) = self.geometry.columns(stripe, *cell, start, len);
            self.lists.get(&member).is_some_and(|list| list.touches(&sectors))
        };
        (0_u16..).map(Cell).take(self.geometry.map(stripe).cells()).filter(lacks).collect()
    }

    /// The same of columns in all of which these cells are lacking.
    fn look_at(
        &mut self,
        stripe: StripeId,
        start: Sectors,
        len: Sectors,
        lacking: Vec<Cell>,
        lost: &mut Vec<Range<Lba>>,
    ) {
        let Self { geometry, beside, repairs, .. } = self;
        let repair = repairs
            .entry((geometry.map_index(stripe), lacking))
            .or_insert_with_key(|(_, lacking)| beside.beside(geometry, stripe, lacking.iter().copied()));
        // With parity, what it would be needed for is lost, too.
        for &cell in geometry.map(stripe).data() {
            let (member, sectors) = geometry.columns(stripe, cell, start, len);
            let is_there = !repair.lacks(geometry, stripe, cell);
            let owner = geometry.owner(Location { member, sector: sectors.start });
            let Some(Owner::Data(lba)) = owner.filter(|_| !is_there) else { continue };
            if !repair.has(geometry, stripe, cell) && beside.has(geometry, stripe, cell) {
                lost.push(lba..Lba(lba.0 + len.0));
            }
        }
    }
}

/// Cuts a run of sectors at blocks.
fn blocks(run: Range<DiskSector>) -> impl Iterator<Item = Range<DiskSector>> {
    let mut at = run.start.0;
    std::iter::from_fn(move || {
        let start = at;
        at = (start / BLOCK.0 * BLOCK.0 + BLOCK.0).min(run.end.0);
        (start < at).then_some(DiskSector(start)..DiskSector(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_ranges() {
        let ranges = |ends: &[(u64, u64)]| -> Vec<Range<Lba>> {
            ends.iter().map(|&(start, end)| Lba(start)..Lba(end)).collect()
        };
        let left = |of: &[(u64, u64)], others: &[(u64, u64)]| without(&ranges(of), ranges(others));
        let two = [(8, 16), (24, 32)];
        assert_eq!(left(&two, &[]), ranges(&two));
        assert_eq!(left(&two, &[(0, 8), (16, 24), (32, 40)]), ranges(&two));
        assert_eq!(left(&two, &[(8, 32)]), []);
        assert_eq!(left(&two, &[(26, 27), (10, 12), (15, 25)]), ranges(&[(8, 10), (12, 15), (25, 26), (27, 32)]));
        assert_eq!(left(&two, &[(12, 16), (12, 14), (8, 9)]), ranges(&[(9, 12), (24, 32)]));
    }
}
