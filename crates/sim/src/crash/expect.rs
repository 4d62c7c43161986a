//! What must be found on the members after a crash, from the definition: every sector of the array holds what it may,
//! what nobody wrote to has not changed, each parity group agrees, and each block is the one that its checksum is
//! of.
//!
//! Of an array whose groups all agree, with missing units computed from them, any further tolerated set of members
//! gives the same content: erasure decoding only ever uses the groups. So the groups say it for all sets.

use uraid_io::format::BLOCK;
use uraid_io::format::badblocks::{BadBlocks, Lack};
use uraid_io::format::sums::{BlockNumber, PAGE_BYTES, Page, PageNumber, Sum, Tag};
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_layout::{Bytes, Cell, DiskSector, Lba, MemberIndex, MemberSet, SECTOR_BYTES, StripeId};

use super::Finding;
use super::shape::Shape;
use super::states::mix;
use crate::decode;
use crate::dst::model::{Model, Number};
use crate::image::{Image, SECTOR, Sector};
use crate::member::{bad_blocks_of, superblock_of};

/// What may be found.
#[derive(Clone, Debug)]
pub(super) struct Expect {
    model: Model,
    /// The columns of parity stripes in which anything was written.
    columns: Vec<(StripeId, u64)>,
    /// By sector of a member's data area, whether it is in one of the columns.
    touched: Vec<Vec<bool>>,
    /// A number that differs where anything else does.
    pub(super) hash: u64,
    /// Whether each block has to be the one that its checksum is of.
    sums_agree: bool,
    /// Members that may have failed.
    failed: MemberSet,
    /// By sector of a member's data area, whether it is where a write may have failed that such a member took part of.
    open: Vec<Vec<bool>>,
}

/// The sectors of one column, by cell: half a sector is no thing to XOR.
type Column = Vec<Option<Sector>>;

impl Expect {
    pub(super) fn new(shape: &Shape, model: &Model) -> Self {
        let geometry = &shape.geometry;
        let (mut columns, mut hash) = (Vec::new(), 0);
        for lba in (0..model.capacity().0).map(Lba) {
            if model.allowed(lba).eq([Number(1)]) {
                continue;
            }
            let (stripe, _, column) = geometry.split(lba);
            columns.push((stripe, column.0));
            hash = mix(hash ^ lba.0);
            hash = model.allowed(lba).fold(hash, |hash, number| mix(hash ^ number.0 << 32));
            // Zeros are told from content by how they show.
            hash = mix(hash ^ u64::from(model.may_hold(lba, &[0; SECTOR])));
        }
        columns.sort_unstable();
        columns.dedup();
        let used = usize::try_from(geometry.used_sectors().0).expect("a small array");
        let mut touched = vec![vec![false; used]; geometry.members()];
        for &(stripe, column) in &columns {
            for cell in cells(shape, stripe) {
                let sector = usize::try_from(geometry.sector(stripe, cell).0 + column).expect("a small array");
                touched[geometry.member(cell).index()][sector] = true;
            }
        }
        Self {
            model: model.clone(),
            columns,
            touched,
            hash,
            sums_agree: shape.integrity != Integrity::None,
            failed: MemberSet::EMPTY,
            open: Vec::new(),
        }
    }

    /// The same, where members may have failed. What such a one holds in a block that was written is the old, the new,
    /// or some of both, and an array without redundancy goes on with it: the block may have no checksum any more, which
    /// says that nothing is known of it. Where it failed to give its checksums they may be marked as lost.
    ///
    /// Where it failed to take them, too, and nothing makes up for the member, the old checksum may be left, and reads
    /// fail: but only of what no flush has made durable since.
    pub(super) fn after_failures_of(self, shape: &Shape, failed: MemberSet) -> Self {
        let geometry = &shape.geometry;
        let mut open = vec![vec![false; self.touched[0].len()]; geometry.members()];
        if geometry.tolerance() == 0 {
            let unsettled = (0..self.model.capacity().0).map(Lba).filter(|&lba| self.model.allowed(lba).count() > 1);
            for place in unsettled.map(|lba| geometry.locate(lba)) {
                open[place.member.index()][usize::try_from(place.sector.0).expect("a small member")] = true;
            }
        }
        Self { failed, open, ..self }
    }

    /// Holds the members that are part of the array against it. Where it `may_lack` content, lists of bad blocks may
    /// say so of stripes that were being written as a whole.
    pub(super) fn check(
        &self,
        shape: &Shape,
        images: &[Option<Image>],
        accepted: MemberSet,
        may_lack: bool,
    ) -> Result<(), Finding> {
        let data = shape.areas.data.offset.0;
        for member in accepted.iter() {
            let image = images[member.index()].as_ref().expect("an accepted member is there");
            let base = shape.members.get(member).expect("every slot has one").current();
            for offset in image.differences(base).filter(|offset| offset.0 >= data) {
                let sector = (offset.0 - data) / SECTOR_BYTES;
                let is_touched =
                    usize::try_from(sector).ok().and_then(|sector| self.touched[member.index()].get(sector));
                // Beyond the data area is the superblock's copy.
                if is_touched == Some(&false) {
                    return Err(Finding::Changed { member, sector });
                }
            }
        }
        if self.sums_agree {
            accepted.iter().try_for_each(|member| self.check_sums(shape, images, member))?;
        }
        let lists = self.lists(shape, images, accepted)?;
        let absent = |member: MemberIndex, sector: DiskSector| {
            lists[member.index()].within(sector..DiskSector(sector.0 + 1), Lack::Absent).next().is_some()
        };
        let mut listed = Vec::new();
        for &(stripe, at) in &self.columns {
            let has = self.check_column(shape, images, accepted, (stripe, at), &absent)?;
            listed.extend(has.then_some(stripe));
        }
        // Only what was written and is not durable can be lost so.
        let is_torn = |stripe: StripeId| {
            let len = shape.geometry.stripe_sectors().0;
            (stripe.0 * len..(stripe.0 + 1) * len).any(|lba| self.model.allowed(Lba(lba)).count() > 1)
        };
        let has_sums = shape.consistency == Consistency::Log && shape.integrity == Integrity::None;
        let wrong = listed.into_iter().find(|&stripe| !(may_lack && has_sums && is_torn(stripe)));
        wrong.map_or(Ok(()), |stripe| Err(Finding::Undecodable { stripe }))
    }

    /// What the members say that they lack, by slot: nothing of what nobody has written.
    fn lists(&self, shape: &Shape, images: &[Option<Image>], accepted: MemberSet) -> Result<Vec<BadBlocks>, Finding> {
        let mut lists = vec![BadBlocks::default(); shape.geometry.members()];
        for member in accepted.iter() {
            let image = images[member.index()].as_ref().expect("an accepted member is there");
            let own = superblock_of(image).map_err(|source| Finding::NoSuperblock { member, source })?;
            let list = bad_blocks_of(image, &own);
            let is_touched = |sector: u64| {
                let index = usize::try_from(sector).expect("a small member");
                self.touched[member.index()].get(index) == Some(&true)
            };
            let mut absent = list.all(Lack::Absent).flat_map(|run| run.start.0..run.end.0);
            if let Some(sector) = absent.find(|&sector| !is_touched(sector)) {
                return Err(Finding::Changed { member, sector });
            }
            drop(absent);
            lists[member.index()] = list;
        }
        Ok(lists)
    }

    /// Whether something of the column is said to be absent.
    fn check_column(
        &self,
        shape: &Shape,
        images: &[Option<Image>],
        accepted: MemberSet,
        (stripe, at): (StripeId, u64),
        absent: &impl Fn(MemberIndex, DiskSector) -> bool,
    ) -> Result<bool, Finding> {
        let geometry = &shape.geometry;
        let map = geometry.map(stripe);
        let mut is_listed = false;
        let mut column: Column = cells(shape, stripe)
            .map(|cell| {
                let (member, sector) = (geometry.member(cell), geometry.sector(stripe, cell).0 + at);
                let image = images[member.index()].as_ref().filter(|_| accepted.contains(member))?;
                let is_absent = absent(member, DiskSector(sector));
                is_listed |= is_absent;
                let offset = shape.areas.data.offset.0 + sector * SECTOR_BYTES;
                (!is_absent).then(|| *image.sector(Bytes(offset)))
            })
            .collect();
        if column.iter().any(Option::is_none) {
            decode(shape, stripe, &mut column);
        }
        for (index, &cell) in map.data().iter().enumerate() {
            let sector = match &column[usize::from(cell.0)] {
                Some(sector) => sector,
                None if is_listed => continue,
                None => return Err(Finding::Undecodable { stripe }),
            };
            let unit = stripe.0 * map.data().len() as u64 + index as u64;
            let lba = Lba(unit * geometry.chunk().0 + at);
            if !self.model.may_hold(lba, sector) {
                return Err(Finding::Content(self.model.wrong(lba, sector)));
            }
        }
        for (index, group) in map.groups().iter().enumerate() {
            if group.cells().any(|cell| column[usize::from(cell.0)].is_none()) {
                if is_listed {
                    continue;
                }
                return Err(Finding::Undecodable { stripe });
            }
            let unit = |cell: Cell| column[usize::from(cell.0)].as_ref().map(<[u8; SECTOR]>::as_slice);
            if decode::sum(group, SECTOR, unit).iter().any(|&byte| byte != 0) {
                return Err(Finding::Parity { stripe, group: index, column: at });
            }
        }
        Ok(is_listed)
    }

    /// Holds a member's blocks against its checksums, which were kept with them through whatever came.
    fn check_sums(&self, shape: &Shape, images: &[Option<Image>], member: MemberIndex) -> Result<(), Finding> {
        let image = images[member.index()].as_ref().expect("an accepted member is there");
        let own = superblock_of(image).map_err(|source| Finding::NoSuperblock { member, source })?;
        let (tag, mut bytes) = (Tag::new(own.array, own.member), [0; PAGE_BYTES]);
        image.read(own.areas.sums.offset, &mut bytes);
        let (page, damaged) = Page::decode(&tag, PageNumber(0), &bytes);
        for block in (0..shape.geometry.used_sectors().bytes().0 / BLOCK.bytes().0).map(BlockNumber) {
            let mut content = [0; 4096];
            image.read(Bytes(own.areas.data.offset.0 + block.0 * BLOCK.bytes().0), &mut content);
            let sum = page.sum(block.place().1);
            let says_so = sum == Sum::LOST || sum == Sum::UNKNOWN && covers(&self.touched[member.index()], block);
            let says_so = says_so || self.open.get(member.index()).is_some_and(|open| covers(open, block));
            let is_told = self.failed.contains(member) && says_so;
            if damaged > 0 || sum != tag.sum(block, &content) && !is_told {
                return Err(Finding::Sum { member, block: block.0 });
            }
        }
        Ok(())
    }
}

/// Whether one of a block's sectors is among these of its member.
fn covers(sectors: &[bool], block: BlockNumber) -> bool {
    let len = usize::try_from(BLOCK.0).expect("a small number");
    let first = usize::try_from(block.0).expect("a small member") * len;
    sectors[first..first + len].contains(&true)
}

/// Computes what is missing, as far as it can be.
fn decode(shape: &Shape, stripe: StripeId, column: &mut Column) {
    let groups = shape.geometry.map(stripe).groups();
    while let Some(found) = decode::next_found(groups, |cell| column[usize::from(cell.0)].is_none()) {
        let unit = |cell: Cell| column[usize::from(cell.0)].as_ref().map(<[u8; SECTOR]>::as_slice);
        let content = found.content(SECTOR, unit);
        column[usize::from(found.target.0)] = Some(content.try_into().expect("a sector"));
    }
}

fn cells(shape: &Shape, stripe: StripeId) -> impl Iterator<Item = Cell> {
    (0..shape.geometry.map(stripe).cells()).map(|cell| Cell(u16::try_from(cell).expect("a stripe has fewer cells")))
}
