//! The members of an array that is being reshaped: those of both shapes, and what is on record of them.
//!
//! A member that fails a write is done without where both shapes that still matter survive that. It is on record as
//! failed with the next round of superblock writes, and no round counts before everyone that is left has it.

use std::ops::Range;
use std::path::PathBuf;

use smallvec::smallvec;
use uraid_layout::repair::Repair;
use uraid_layout::reshape::Course;
use uraid_layout::{Bytes, Geometry, Lba, MemberIndex, MemberSet, Sectors};

use super::error::ReshapeError;
use super::lacking::{Content, Listed, listed};
use super::moving::{MEMORY, Part, parts};
use crate::Error;
use crate::array::badblocks::write_list;
use crate::array::blocking::{flush, perform, run, superblock_writes};
use crate::array::losses::Loss;
use crate::array::tables::Tables;
use crate::buf::{Buf, Pool};
use crate::disk::{Disk, DiskError, DiskOp, OpKind, Segments};
use crate::format::Epoch;
use crate::format::badblocks::BadBlocks;
use crate::format::superblock::{Area, Reshape, Revision, SlotState, Superblock};

/// See the module.
#[derive(Debug)]
pub(in crate::array) struct Members<D> {
    pub(super) disk: D,
    /// By slot; none is missing.
    own: Vec<Option<Superblock>>,
    /// What they lack, by slot.
    lists: Vec<BadBlocks>,
    /// By slot.
    paths: Vec<PathBuf>,
    losses: Vec<Loss>,
    /// For what moves.
    memory: Pool,
}

impl<D: Disk> Members<D> {
    /// The members of these superblocks, by slot, which lack that; at least one is there.
    pub(in crate::array) fn new(
        disk: D,
        own: Vec<Option<Superblock>>,
        mut lists: Vec<BadBlocks>,
        paths: Vec<PathBuf>,
        losses: Vec<Loss>,
    ) -> Self {
        lists.resize_with(own.len(), BadBlocks::default);
        Self { disk, own, lists, paths, losses, memory: Pool::new(MEMORY) }
    }

    /// What they lack, by slot.
    pub(super) fn lists(&self) -> &[BadBlocks] {
        &self.lists
    }

    /// The superblocks of those that are there, by slot.
    pub(super) fn own(&self) -> &[Option<Superblock>] {
        &self.own
    }

    /// A superblock of one that is there.
    pub(super) fn any(&self) -> &Superblock {
        self.own.iter().flatten().next().expect("an array has a member")
    }

    /// How far the reshape has come.
    pub(in crate::array) fn reshape(&self) -> Reshape {
        self.any().reshape.expect("the array is being reshaped")
    }

    /// The way that it goes.
    pub(super) fn course(&self) -> Course {
        self.reshape().course(self.any().spec).expect("a superblock is sound")
    }

    /// The slots whose members are there.
    pub(super) fn present(&self) -> MemberSet {
        self.own.iter().flatten().map(|own| own.slot).collect()
    }

    /// The slots whose members are not.
    pub(super) fn missing(&self) -> MemberSet {
        MemberSet::all(self.own.len()).minus(self.present())
    }

    /// The disk, what the members have on record, none for a slot without one, and what they lack.
    pub(in crate::array) fn into_record(self) -> (D, Vec<Option<Superblock>>, Vec<BadBlocks>) {
        (self.disk, self.own, self.lists)
    }

    /// The disk, where the members are that are there, by slot, and who failed meanwhile.
    pub(super) fn into_parts(self) -> (D, Vec<Option<PathBuf>>, Vec<Loss>) {
        let paths = self.own.iter().zip(self.paths).map(|(own, path)| own.is_some().then_some(path));
        (self.disk, paths.collect(), self.losses)
    }

    /// The shapes that have to survive what is lost, going forward or back: the one that content moves to, and the one
    /// that it comes from while some is left there.
    pub(super) fn shapes(&self, is_back: bool) -> Vec<Geometry> {
        let Superblock { spec, reshape, .. } = self.any();
        let Some(reshape) = reshape else {
            return vec![Geometry::new(*spec).expect("a superblock is sound")];
        };
        let course = self.course();
        let heading = course.heading(is_back);
        let is_left = reshape.mark != course.end(heading);
        let source = is_left.then(|| course.source(heading).clone());
        source.into_iter().chain([course.target(heading).clone()]).collect()
    }

    /// Runs operations; whoever fails one is done without.
    ///
    /// # Errors
    /// [`ReshapeError::Needed`] where that can't be; [`ReshapeError::Io`].
    pub(super) fn perform(&mut self, ops: impl IntoIterator<Item = DiskOp>) -> Result<(), ReshapeError> {
        let failed = run(&mut self.disk, ops)?;
        failed.into_iter().try_for_each(|error| self.give_up(error))
    }

    /// Writes to those that are there: what is leased, at an offset within one of a member's areas. Not durable yet.
    ///
    /// # Errors
    /// As [`Members::perform`].
    pub(super) fn write(
        &mut self,
        area: impl Fn(&Superblock) -> Area,
        writes: impl IntoIterator<Item = (MemberIndex, Bytes, Segments)>,
    ) -> Result<(), ReshapeError> {
        let op = |(member, at, segments): (MemberIndex, Bytes, Segments)| {
            let own = self.own[member.index()].as_ref()?;
            let offset = Bytes(area(own).offset.0 + at.0);
            Some(DiskOp { tag: 0, member, kind: OpKind::Write, offset, segments })
        };
        let ops: Vec<DiskOp> = writes.into_iter().filter_map(op).collect();
        self.perform(ops)
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// As [`Members::perform`].
    pub(super) fn flush(&mut self) -> Result<(), ReshapeError> {
        let present = self.present();
        self.perform(present.iter().map(flush))
    }

    /// Puts a change on record, durably, on all that are there; what is missing is on record as failed then.
    ///
    /// # Errors
    /// As [`Members::perform`].
    pub(super) fn record(&mut self, change: impl Fn(&mut Superblock)) -> Result<(), ReshapeError> {
        loop {
            let missing = self.missing();
            let epoch = Epoch(self.any().epoch.0 + 1);
            for own in self.own.iter_mut().flatten() {
                (own.epoch, own.revision) = (epoch, Revision(own.revision.0 + 1));
                change(own);
                for (slot, entry) in (0..).map(MemberIndex).zip(&mut own.slots) {
                    let is_told = !planted!(ReshapeLossUnrecorded);
                    if missing.contains(slot) && entry.state != SlotState::Failed && is_told {
                        (entry.state, entry.since) = (SlotState::Failed, epoch);
                    }
                }
            }
            let writes: Vec<DiskOp> = self.own.iter().flatten().flat_map(superblock_writes).collect();
            self.perform(writes)?;
            self.flush()?;
            if self.missing() == missing {
                return Ok(());
            }
        }
    }

    /// Lets those go that the array has no slots for any more: nothing on them tells of it then.
    pub(super) fn split_off(&mut self, slots: usize) -> Vec<Superblock> {
        let slots = slots.min(self.own.len());
        self.lists.truncate(slots);
        self.own.split_off(slots).into_iter().flatten().collect()
    }

    /// What the members lack when a window is where `shape` has it.
    ///
    /// # Errors
    /// [`ReshapeError::ListFull`].
    pub(super) fn listed(
        &self,
        shape: &Geometry,
        window: &Range<Lba>,
        content: &Content,
    ) -> Result<Listed, ReshapeError> {
        if content.lost.is_empty() && self.lists.iter().all(BadBlocks::is_empty) {
            return Ok(Listed { lists: self.lists.clone(), more: None });
        }
        let listed = listed(shape, self.missing(), self.lists.clone(), window, &content.lost);
        listed.map_err(|(member, source)| ReshapeError::ListFull { member, source })
    }

    /// Writes a window where `shape` has it, and makes it durable, and then that the members lack what is in the lists.
    ///
    /// # Errors
    /// As [`Members::perform`].
    pub(super) fn settle(
        &mut self,
        shape: &Geometry,
        window: &Range<Lba>,
        content: &Content,
        lists: Vec<BadBlocks>,
    ) -> Result<(), ReshapeError> {
        let parts = parts(shape, window, &content.bytes, &self.memory);
        self.write_sums(&parts)?;
        let write = |Part { member, sector, pieces }| (member, Sectors(sector.0).bytes(), pieces);
        self.write(|own| own.areas.data, parts.into_iter().map(write))?;
        if !planted!(ReshapeUnflushed) {
            self.flush()?;
        }
        self.keep(lists)
    }

    /// Makes lists of bad blocks durable that have changed.
    ///
    /// # Errors
    /// As [`Members::perform`].
    pub(super) fn keep(&mut self, lists: Vec<BadBlocks>) -> Result<(), ReshapeError> {
        for (slot, mut list) in (0..).map(MemberIndex).zip(lists) {
            let is_same = self.lists[slot.index()] == list;
            let Some(own) = self.own[slot.index()].as_ref().filter(|_| !is_same) else { continue };
            let written =
                write_list(&mut self.disk, own, &mut list).and_then(|()| perform(&mut self.disk, [flush(slot)]));
            self.lists[slot.index()] = list;
            match written {
                Ok(()) => {}
                Err(Error::Disk(error)) => self.give_up(error)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes the checksums of what is about to be written to those that are there. Not durable yet.
    fn write_sums(&mut self, parts: &[Part]) -> Result<(), ReshapeError> {
        let mut tables = Tables::default();
        for part in parts {
            let Some(own) = &self.own[part.member.index()] else { continue };
            match tables.note(&mut self.disk, own, part.blocks()) {
                Ok(()) => {}
                Err(Error::Disk(error)) => self.give_up(error)?,
                Err(error) => return Err(error.into()),
            }
        }
        let writes: Vec<DiskOp> = tables.into_writes(&self.own).collect();
        self.perform(writes)
    }

    /// Writes zeros over areas of a member.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn erase(&mut self, member: MemberIndex, areas: &[Area]) -> Result<(), Error> {
        erase(&mut self.disk, member, areas)
    }

    fn give_up(&mut self, error: DiskError) -> Result<(), ReshapeError> {
        let member = error.op().member;
        let path = self.paths.get(member.index()).cloned().unwrap_or_default();
        let lost = self.missing().with(member);
        let is_survived = |shape: &Geometry| Repair::new(shape, lost).is_ok();
        let is_back = self.any().reshape.is_some_and(|reshape| reshape.is_back);
        if !self.shapes(is_back).iter().all(is_survived) && !planted!(ReshapeNeededGivenUp) {
            return Err(ReshapeError::Needed { path, source: error });
        }
        if self.own[member.index()].take().is_some() {
            tracing::error!("{}: {error}; the reshape goes on without this member", path.display());
            self.losses.push(Loss { member, path, error });
        }
        Ok(())
    }
}

/// Writes zeros over areas of a member, durably.
///
/// # Errors
/// When it fails.
pub(super) fn erase(disk: &mut impl Disk, member: MemberIndex, areas: &[Area]) -> Result<(), Error> {
    const STEP: u64 = 1 << 20;
    let zeros = Buf::zeroed(Bytes(STEP));
    for area in areas {
        for at in (0..area.size.0).step_by(1 << 20) {
            let len = usize::try_from(STEP.min(area.size.0 - at)).expect("a step is small");
            let (offset, segments) = (Bytes(area.offset.0 + at), smallvec![zeros.lease_read(0..len)]);
            let write = DiskOp { tag: 0, member, kind: OpKind::Write, offset, segments };
            perform(disk, [write])?;
        }
    }
    perform(disk, [flush(member)])
}
