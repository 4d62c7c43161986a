//! From accepted members to an array that can be served, whatever is behind them: files, devices, or simulated members.
//!
//! Members that a cut-off round of superblock writes did not reach catch up first. [`Assembled::recover`] then brings the array into
//! agreement after an unclean stop; it can be cut off at any point and begun again.

use smallvec::smallvec;
use uraid_layout::{Bytes, Geometry, MemberIndex, MemberSet};
use uuid::Uuid;

use super::judge::{Candidate, Verdict};
use super::recover::RecoverError;
use super::redo::{self, Overlay};
use crate::Error;
use crate::bitmap::{Bitmap, Regions};
use crate::buf::Buf;
use crate::disk::{Completion, Disk, DiskError, DiskOp, OpKind, Segments};
use crate::engine::{Engine, EngineError, Record};
use crate::member::Access;
use crate::superblock::{Consistency, SUPERBLOCK_BYTES, SlotState, Superblock, encode};

/// An array whose members may be used.
#[derive(Debug)]
pub struct Assembled<D> {
    pub(super) geometry: Geometry,
    pub(super) record: Record,
    pub(super) disk: D,
    pub(super) access: Access,
    /// The log's next run.
    pub(super) generation: Uuid,
    /// What is in the log and not in place, where nothing is to be written.
    pub(super) overlay: Overlay,
    pub(super) is_recovered: bool,
    /// The regions in which redundancy may not agree, or a missing member's content is out of date; none without a write-intent bitmap or a log.
    pub(super) bitmap: Option<Bitmap>,
}

impl<D: Disk> Assembled<D> {
    /// The array that a verdict describes; `disk` has the accepted members in their slots. `generation` is a new number for the log, which nobody
    /// can guess.
    ///
    /// # Errors
    /// When a member fails, or, for reading only, its log can't be relied on.
    ///
    /// # Panics
    /// When members are accepted that are out of date, and not for reading only.
    pub fn new(
        mut disk: D,
        verdict: &Verdict,
        candidates: &[Candidate],
        access: Access,
        generation: Uuid,
    ) -> Result<Self, RecoverError> {
        let truth = &verdict.superblock;
        let own = |index: &Option<usize>| {
            index.map(|index| {
                let Superblock { member, slot, areas, sequence, .. } = candidates[index].superblock;
                Superblock { member, slot, areas, sequence, ..truth.clone() }
            })
        };
        let mut superblocks: Vec<Option<Superblock>> = verdict.slots.iter().map(own).collect();
        if access == Access::ReadWrite {
            assert!(verdict.stale.is_empty(), "what is out of date is read, not written");
            let accepted = superblocks.iter().flatten().map(|superblock| superblock.slot).collect::<MemberSet>();
            // What the members still hold of the writes before must not change under what is read now; a mark that they are clean is one of them.
            if !planted!(OpenUnflushed) {
                perform(&mut disk, accepted.iter().map(flush))?;
            }
            // A member that the round did not reach would be two epochs behind, and set aside, if the next were cut off too.
            let behind = |slot: MemberIndex| {
                verdict.slots[slot.index()].is_some_and(|index| candidates[index].superblock.epoch < truth.epoch)
            };
            let mut late: MemberSet =
                accepted.iter().filter(|&slot| behind(slot) && !planted!(CatchUpSkipped)).collect();
            // The copies that are written first, and those that are written when these are durable.
            let (mut first, mut last) = (Vec::new(), Vec::new());
            for index in verdict.slots.iter().flatten() {
                let found = &candidates[*index].superblock;
                let superblock = superblocks[found.slot.index()].as_mut().expect("an accepted member has a superblock");
                let [is_head_damaged, is_tail_damaged] = damaged(&mut disk, found)?;
                if (is_head_damaged || is_tail_damaged) && !planted!(DamageKept) {
                    late = late.with(found.slot);
                }
                let is_tail_needed = is_head_damaged && !planted!(TornIgnored);
                if is_tail_needed {
                    // The next version goes where the damaged copy is, and leaves the one before it.
                    superblock.sequence.0 += 1;
                }
                if late.contains(found.slot) {
                    superblock.sequence.0 += 1;
                    let [head, tail] = superblock_writes(superblock);
                    first.push(head);
                    // The only whole copy of a version that may count stays until there is another.
                    if is_tail_needed && !planted!(OnlyCopyOverwritten) { &mut last } else { &mut first }.push(tail);
                }
            }
            for writes in [first, last] {
                let written: MemberSet = writes.iter().map(|op| op.member).collect();
                perform(&mut disk, writes)?;
                perform(&mut disk, written.iter().map(flush))?;
            }
        }
        let geometry = verdict.geometry.clone();
        // A member that is out of date has the log and the bitmap of its time.
        let is_current = |own: &&Superblock| !verdict.stale.contains(own.slot);
        let current: Vec<_> = superblocks.iter().map(|own| own.as_ref().filter(is_current).cloned()).collect();
        // What a log holds before its array is initialised is anything.
        let is_logged = truth.consistency == Consistency::Log && !truth.is_clean && truth.initialising.is_none();
        let overlay = if access != Access::ReadWrite && is_logged {
            redo::overlay(&mut disk, &current, &geometry)?
        } else {
            Overlay::default()
        };
        let bitmap = bitmap(&mut disk, &geometry, truth.is_clean, &current);
        let mut record = Record::new(superblocks);
        if !truth.is_clean && truth.consistency != Consistency::Log {
            // Where writes were under way nothing is as good as anything else; what is rebuilt is made anew from the others.
            record.restart();
        }
        if !is_logged {
            record.renew(generation);
        }
        let is_initialising = truth.initialising.is_some();
        let is_recovered = !is_initialising && (access != Access::ReadWrite || !is_logged);
        Ok(Self { geometry, record, disk, access, generation, overlay, is_recovered, bitmap })
    }

    /// The array's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The slots without a member.
    pub fn missing(&self) -> MemberSet {
        self.record.missing()
    }

    /// Whether the array's creation has not ended, which [`Assembled::recover`] ends.
    pub fn is_initialising(&self) -> bool {
        self.record.any().initialising.is_some()
    }

    /// Whether the array was not stopped cleanly, or not even created, and something may not agree that [`Assembled::recover`] can bring into
    /// agreement.
    pub fn needs_recovery(&self) -> bool {
        match self.record.consistency() {
            _ if self.is_initialising() => true,
            Consistency::Log => !self.is_recovered,
            // What is missing can't be computed from parity that has yet to be.
            _ => !self.record.is_clean() && self.geometry.tolerance() > 0 && self.record.lost().is_empty(),
        }
    }

    /// Makes durable on the members' superblocks that others are missing.
    pub(super) fn settle_record(&mut self) -> Result<(), Error> {
        let Self { disk, record, .. } = self;
        let (mut completions, mut failure) = (Vec::new(), None);
        loop {
            record.run(|op| disk.submit(op));
            if record.is_settled() {
                return failure.map_or(Ok(()), |error: DiskError| Err(error.into()));
            }
            while completions.is_empty() {
                disk.kick()?;
                disk.reap(&mut completions);
                if completions.is_empty() {
                    assert!(disk.in_flight() > 0, "whoever waits for members has asked them for something");
                    disk.wait()?;
                }
            }
            for Completion { member, result, .. } in completions.drain(..) {
                record.completed(member, result.is_err());
                failure = failure.or(result.err());
            }
        }
    }

    /// The same with another disk in the place of this one; none where there is no other.
    pub(super) fn with_disk<E>(self, change: impl FnOnce(D) -> Option<E>) -> Option<Assembled<E>> {
        let Self { geometry, record, disk, access, generation, overlay, is_recovered, bitmap } = self;
        let disk = change(disk)?;
        Some(Assembled { geometry, record, disk, access, generation, overlay, is_recovered, bitmap })
    }

    /// The engine that serves the array.
    ///
    /// # Errors
    /// [`EngineError::NotRecovered`]. [`EngineError::TooManyMissing`]: not when the verdict was readable.
    pub fn into_engine<T>(self) -> Result<Engine<D, T>, EngineError> {
        if !self.is_recovered {
            return Err(EngineError::NotRecovered);
        }
        let engine = Engine::new(self.disk, self.geometry, self.record, self.access != Access::ReadWrite)?;
        Ok(engine.with_overlay(self.overlay).with_intent(self.bitmap).with_rebuild())
    }
}

/// Which copies of the version of its superblock that a member has are not whole: the one at the head, and the one at the tail.
fn damaged(disk: &mut impl Disk, superblock: &Superblock) -> Result<[bool; 2], Error> {
    let mut blocks = [(); 2].map(|()| Buf::zeroed(Bytes(SUPERBLOCK_BYTES as u64)));
    let reads = superblock.write_positions().into_iter().zip(&mut blocks).map(|(offset, block)| {
        let segments = smallvec![block.lease_write(0..SUPERBLOCK_BYTES)];
        DiskOp { tag: 0, member: superblock.slot, kind: OpKind::Read, offset, segments }
    });
    perform(disk, reads.collect::<Vec<_>>())?;
    let whole = encode(superblock);
    Ok(blocks.map(|block| block.as_ref() != whole))
}

/// The bits that are set on any of the members, where the array has a write-intent bitmap or a log. What is clean and whole needs none.
pub(super) fn bitmap(
    disk: &mut impl Disk,
    geometry: &Geometry,
    is_clean: bool,
    superblocks: &[Option<Superblock>],
) -> Option<Bitmap> {
    let present = || superblocks.iter().flatten();
    let any = present().next()?;
    let regions = Regions::new(geometry);
    let mut bitmap =
        (geometry.tolerance() > 0 && any.consistency != Consistency::None).then(|| Bitmap::empty(regions))?;
    let is_whole = any.slots.iter().all(|record| record.state == SlotState::Active);
    let is_complete = is_whole && present().count() == geometry.members();
    if is_clean && (is_complete || planted!(BitsOfCleanForgotten)) {
        return Some(bitmap);
    }
    let Some(seal) = any.seal() else {
        // Up to now every member had everything; after an unclean stop one that is missing may lack what is in the log.
        let is_known = is_clean || is_complete || planted!(RedoneUnmarked);
        return Some(if is_known { bitmap } else { Bitmap::full(regions) });
    };
    for own in present() {
        let mut bytes = Buf::zeroed(regions.bitmap_bytes());
        let segments = smallvec![bytes.lease_write(0..bytes.len())];
        let (member, offset) = (own.slot, own.areas.bitmap.offset);
        match perform(disk, [DiskOp { tag: 0, member, kind: OpKind::Read, offset, segments }]) {
            Ok(()) if planted!(BitsUnread) => {}
            Ok(()) if planted!(BitsOfOneMember) => bitmap = Bitmap::decode(regions, seal, bytes.as_ref()),
            Ok(()) => bitmap.unite(&Bitmap::decode(regions, seal, bytes.as_ref())),
            Err(error) => {
                tracing::warn!(%member, %error, "the write-intent bitmap can't be read: all of it counts as set");
                return Some(Bitmap::full(regions));
            }
        }
    }
    Some(bitmap)
}

/// Runs operations and waits for all of them.
///
/// # Errors
/// The first that failed.
pub(super) fn perform(disk: &mut impl Disk, ops: impl IntoIterator<Item = DiskOp>) -> Result<(), Error> {
    let mut pending = 0_usize;
    for op in ops {
        disk.submit(op);
        pending += 1;
    }
    let (mut completions, mut failure) = (Vec::new(), None);
    disk.kick()?;
    loop {
        disk.reap(&mut completions);
        pending -= completions.len();
        for Completion { result, .. } in completions.drain(..) {
            failure = failure.or(result.err());
        }
        if pending == 0 {
            return failure.map_or(Ok(()), |error| Err(error.into()));
        }
        assert!(disk.in_flight() > 0, "{pending} operations are neither under way nor over");
        disk.wait()?;
    }
}

pub(super) fn flush(member: MemberIndex) -> DiskOp {
    DiskOp { tag: 0, member, kind: OpKind::Flush, offset: Bytes(0), segments: Segments::new() }
}

/// The writes of a superblock: of the copy at the head, and of the one at the tail.
pub(super) fn superblock_writes(superblock: &Superblock) -> [DiskOp; 2] {
    let mut block = Buf::zeroed(Bytes(SUPERBLOCK_BYTES as u64));
    block.as_mut().copy_from_slice(&encode(superblock));
    let member = superblock.slot;
    superblock.write_positions().map(|offset| {
        let segments = smallvec![block.lease_read(0..SUPERBLOCK_BYTES)];
        DiskOp { tag: 0, member, kind: OpKind::Write, offset, segments }
    })
}
