//! What lists of bad blocks mean for clients: which of the array's sectors nobody has.
//!
//! A sector that its member lacks is not lost as long as the other members can make up for it; it is made good when it
//! is read, or by a scrub.

use std::collections::BTreeMap;
use std::ops::Range;

use uraid_layout::repair::Repair;
use uraid_layout::{Cell, DiskSector, Geometry, Lba, Location, MemberIndex, MemberSet, Owner, Sectors};

use crate::format::BLOCK;
use crate::format::badblocks::{BadBlocks, Lack};

/// The array's sectors that nobody has, ascending, where `missing` members are not there or don't have their content
/// yet, and the others lack what is in their lists. A missing member's list counts for nothing; what is lost because
/// too many are missing is not told.
#[must_use]
pub fn lost(geometry: &Geometry, missing: MemberSet, list: &dyn Fn(MemberIndex) -> BadBlocks) -> Vec<Range<Lba>> {
    let present = geometry.all_members().minus(missing);
    let lists: BTreeMap<MemberIndex, BadBlocks> = present.iter().map(|member| (member, list(member))).collect();
    let beside = Repair::partial(geometry, missing);
    // By map, and what is lacking there.
    let mut repairs: BTreeMap<(usize, Vec<Cell>), Repair> = BTreeMap::new();
    let mut lost: Vec<Range<Lba>> = Vec::new();
    for (&member, list) in &lists {
        let runs = [Lack::Absent, Lack::Unread].into_iter().flat_map(|lack| list.all(lack));
        for sectors in runs.flat_map(blocks) {
            let at = Location { member, sector: sectors.start };
            let Some((stripe, _, start)) = geometry.cell_at(at) else { continue };
            let len = sectors.end.0 - sectors.start.0;
            let lacks = |cell: &Cell| {
                let (member, sectors) = geometry.columns(stripe, *cell, start, Sectors(len));
                lists.get(&member).is_some_and(|list| list.touches(&sectors))
            };
            let cells = (0_u16..).map(Cell).take(geometry.map(stripe).cells());
            let lacking: Vec<Cell> = cells.filter(lacks).collect();
            let repair = repairs
                .entry((geometry.map_index(stripe), lacking))
                .or_insert_with_key(|(_, lacking)| beside.beside(geometry, stripe, lacking.iter().copied()));
            // With parity, what it would be needed for is lost, too.
            for &cell in geometry.map(stripe).data() {
                let (member, sectors) = geometry.columns(stripe, cell, start, Sectors(len));
                let is_there = !repair.lacks(geometry, stripe, cell);
                let owner = geometry.owner(Location { member, sector: sectors.start });
                let Some(Owner::Data(lba)) = owner.filter(|_| !is_there) else { continue };
                if !repair.has(geometry, stripe, cell) && beside.has(geometry, stripe, cell) {
                    lost.push(lba..Lba(lba.0 + len));
                }
            }
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

/// Cuts a run of sectors at blocks.
fn blocks(run: Range<DiskSector>) -> impl Iterator<Item = Range<DiskSector>> {
    let mut at = run.start.0;
    std::iter::from_fn(move || {
        let start = at;
        at = (start / BLOCK.0 * BLOCK.0 + BLOCK.0).min(run.end.0);
        (start < at).then_some(DiskSector(start)..DiskSector(at))
    })
}
