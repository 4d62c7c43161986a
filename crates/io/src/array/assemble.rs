//! From accepted members to an array that can be served, whatever is behind them: files, devices, or simulated members.
//!
//! Members that a cut-off round of superblock writes did not reach catch up first. [`recover`](super::recover) then
//! brings the array into agreement after an unclean stop; it can be cut off at any point and begun again. A member that
//! fails meanwhile is given up where the level allows that ([`losses`](super::losses)).

use smallvec::smallvec;
use uraid_layout::{Bytes, Geometry, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use super::badblocks::{LostList, read_lists};
use super::bitmap::{bitmap_writes, read_bitmap, read_blank_map};
use super::blocking::{flush, run, run_all, superblock_write, superblock_writes};
use super::error::RecoverError;
use super::judge::{Candidate, Verdict};
use super::losses::{Loss, Losses};
use super::overlay::Overlay;
use super::pages::Pages;
use super::redo;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Completion, Disk, DiskOp, OpKind, log_place};
use crate::engine::{Engine, EngineError, Record};
use crate::format::badblocks::BadBlocks;
use crate::format::bitmap::Bitmap;
use crate::format::superblock::{
    Consistency, LogDevices, LogSet, SUPERBLOCK_BYTES, Superblock, SuperblockError, decode, encode,
};
use crate::member::Access;

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
    /// What the journal has that is not in place.
    pub(super) pages: Pages,
    pub(super) is_recovered: bool,
    /// The members that failed since it was begun to be opened.
    pub(super) losses: Losses,
    /// The regions in which redundancy may not agree, or a missing member's content is out of date; none without a
    /// write-intent bitmap or a log.
    pub(super) bitmap: Option<Bitmap>,
    /// What the members lack, by slot.
    pub(super) bad_blocks: Vec<BadBlocks>,
    /// The regions that are not blank, where any are.
    pub(super) blank: Option<Bitmap>,
}

impl<D: Disk> Assembled<D> {
    /// The array that a verdict describes; `disk` has the accepted members in their slots. `generation` is a new number
    /// for the log, which nobody can guess.
    ///
    /// # Errors
    /// When a member fails, or, for reading only, its log can't be relied on.
    ///
    /// # Panics
    /// When members are accepted that are out of date, and not for reading only.
    pub fn new(
        disk: D,
        verdict: &Verdict,
        candidates: &[Candidate],
        access: Access,
        generation: Uuid,
    ) -> Result<Self, RecoverError> {
        Self::with_lists(disk, verdict, candidates, access, generation, LostList::Refused)
    }

    /// The same; members whose lists of bad blocks are lost are taken as `lost_list` says.
    ///
    /// # Errors
    /// As [`Assembled::new`].
    ///
    /// # Panics
    /// As [`Assembled::new`].
    pub fn with_lists(
        mut disk: D,
        verdict: &Verdict,
        candidates: &[Candidate],
        access: Access,
        generation: Uuid,
        lost_list: LostList,
    ) -> Result<Self, RecoverError> {
        let truth = &verdict.superblock;
        let mut superblocks = taken_over(verdict, candidates);
        let mut losses = Losses::new(verdict, candidates);
        let geometry = verdict.geometry.clone();
        // What a log holds before its array is initialised is anything.
        let is_unclean = !truth.is_clean && truth.initialising.is_none();
        let is_logged = truth.consistency == Consistency::Log && is_unclean;
        // Where parity is computed from the data, a member gives what it has before the array goes on without it.
        let can_resync = verdict.lost().is_empty() || geometry.spec().level.is_mirrored();
        let is_resynced = is_unclean && !is_logged && geometry.tolerance() > 0 && can_resync;
        if access == Access::ReadWrite {
            assert!(verdict.stale.is_empty(), "what is out of date is read, not written");
            catch_up(&mut disk, verdict, candidates, &mut superblocks, &mut losses)?;
        }
        let ((overlay, worthless, pages), current) = loop {
            if !is_resynced {
                losses.members().iter().for_each(|member| superblocks[member.index()] = None);
            }
            // A member that is out of date has the log and the bitmap of its time.
            let is_current = |own: &&Superblock| !verdict.stale.contains(own.slot);
            let current = superblocks.iter().map(|own| own.as_ref().filter(is_current).cloned());
            let current: Vec<_> = current.map(|own| own.map(|own| without_logs(own, losses.lost_logs()))).collect();
            if access == Access::ReadWrite || !is_logged {
                break ((Overlay::default(), Vec::new(), Pages::default()), current);
            }
            let read = redo::overlay(&mut disk, &current, &verdict.shapes()).and_then(|(overlay, worthless)| {
                let pages = Pages::read(&mut disk, &current, &geometry, access)?;
                Ok((overlay, worthless, pages))
            });
            match read {
                Ok(read) => break (read, current),
                Err(RecoverError::Io(error)) => losses.give_up(error)?,
                Err(error) => return Err(error),
            }
        };
        let bitmap = read_bitmap(&mut disk, &geometry, truth.is_clean, &current);
        let (blank, is_damaged) = read_blank_map(&mut disk, &current).unzip();
        if is_damaged == Some(true) {
            owe_scrub(&mut disk, access, &mut superblocks, &mut losses, is_resynced)?;
        }
        if let Some(map) = blank.as_ref().filter(|_| access == Access::ReadWrite && !planted!(BlankMapsDiffer)) {
            write_blank_map(&mut disk, &current, map, &mut losses)?;
        }
        // What an array that is initialising has for a list is anything.
        let mut bad_blocks = match truth.initialising {
            Some(_) => vec![BadBlocks::default(); superblocks.len()],
            None => read_lists(&mut disk, &superblocks, &mut losses, access, lost_list)?,
        };
        overlay.cover(&mut bad_blocks);
        redo::lose(&worthless, &mut bad_blocks, &losses)?;
        if !is_resynced {
            losses.members().iter().for_each(|member| superblocks[member.index()] = None);
        }
        let mut record = Record::new(superblocks);
        record.fail_logs(losses.lost_logs());
        if !truth.is_clean && truth.consistency != Consistency::Log {
            // Where writes were under way nothing is as good as anything else; what is rebuilt is made anew from the
            // others.
            record.restart();
        }
        if !is_logged {
            record.renew(generation);
        }
        let is_initialising = truth.initialising.is_some();
        let is_condemned = is_resynced && !losses.members().is_empty();
        // Where a window is that was saved is not known before it is where it is to be.
        let is_saved = truth.reshape.is_some_and(|reshape| reshape.saved > Sectors(0));
        let is_behind = is_logged || is_condemned || is_saved;
        let is_recovered = !is_initialising && (access != Access::ReadWrite || !is_behind);
        Ok(Self {
            geometry,
            record,
            disk,
            access,
            generation,
            overlay,
            pages,
            is_recovered,
            losses,
            bitmap,
            bad_blocks,
            blank,
        })
    }

    /// The members that failed while it was opened: the array goes on without them.
    pub fn losses(&self) -> &[Loss] {
        self.losses.all()
    }

    /// The array's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The slots without a member.
    pub fn missing(&self) -> MemberSet {
        self.record.missing()
    }

    /// Whether the array's creation has not ended, which [`recover`](super::recover) ends.
    pub fn is_initialising(&self) -> bool {
        self.record.any().initialising.is_some()
    }

    /// Whether the array was not stopped cleanly, or not even created, and something may not agree that
    /// [`recover`](super::recover) can bring into agreement.
    pub fn needs_recovery(&self) -> bool {
        match self.record.consistency() {
            _ if self.is_initialising() || self.has_saved() => true,
            Consistency::Log => !self.is_recovered,
            // What is missing can't be computed from parity that has yet to be. Copies that are left are made to agree.
            _ if self.record.is_clean() || self.geometry.tolerance() == 0 => false,
            _ => self.record.lost().is_empty() || self.geometry.spec().level.is_mirrored(),
        }
    }

    /// Whether a window of a reshape was saved, and may not be whole in its places.
    pub(super) fn has_saved(&self) -> bool {
        self.record.any().reshape.is_some_and(|reshape| reshape.saved > Sectors(0))
    }

    /// Makes durable on the members' superblocks that others are missing. A member that fails that is missing, too.
    pub(super) fn record_losses(&mut self) -> Result<(), RecoverError> {
        settle(&mut self.disk, &mut self.record, &mut self.losses, false)
    }

    /// The same with another disk in the place of this one; none where there is no other.
    pub(super) fn with_disk<E>(self, change: impl FnOnce(D) -> Option<E>) -> Option<Assembled<E>> {
        let disk = change(self.disk)?;
        Some(Assembled {
            disk,
            geometry: self.geometry,
            record: self.record,
            access: self.access,
            generation: self.generation,
            overlay: self.overlay,
            pages: self.pages,
            is_recovered: self.is_recovered,
            losses: self.losses,
            bitmap: self.bitmap,
            bad_blocks: self.bad_blocks,
            blank: self.blank,
        })
    }

    /// Goes on without the member that an operation failed on.
    pub(super) fn give_up(&mut self, error: Error) -> Result<(), RecoverError> {
        let before = self.losses.members();
        self.losses.give_up(error)?;
        self.record.fail_logs(self.losses.lost_logs());
        if self.losses.members() == before {
            return Ok(());
        }
        self.record.fail(self.losses.members());
        // What it lacks is not known yet.
        self.bitmap = self.bitmap.take().map(|bitmap| Bitmap::full(bitmap.regions()));
        Ok(())
    }

    /// The superblocks of the members that the array has, by slot, with the log devices that it has.
    pub(super) fn superblocks(&self) -> Vec<Option<Superblock>> {
        let missing = self.record.missing();
        let present =
            |(slot, own): (u8, Option<&Superblock>)| own.filter(|_| !missing.contains(MemberIndex(slot))).cloned();
        let own = (0u8..).zip(self.record.superblocks()).map(present);
        own.map(|own| own.map(|own| without_logs(own, self.losses.lost_logs()))).collect()
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
        let engine = engine.with_overlay(self.overlay).with_intent(self.bitmap).with_bad_blocks(self.bad_blocks);
        Ok(engine.with_blank(self.blank).with_pages(&self.pages).with_rebuild())
    }
}

/// A superblock as it is when these log devices are on record as failed.
fn without_logs(mut own: Superblock, lost: LogSet) -> Superblock {
    let epoch = own.epoch;
    own.logs.iter_mut().for_each(|logs| logs.fail(lost, epoch));
    own
}

/// The superblocks of the accepted members, by slot, as each is to say what the newest does.
pub(super) fn taken_over(verdict: &Verdict, candidates: &[Candidate]) -> Vec<Option<Superblock>> {
    let own = |index: &Option<usize>| {
        index.map(|index| {
            let Superblock { member, slot, areas, revision, .. } = candidates[index].superblock;
            Superblock { member, slot, areas, revision, ..verdict.superblock.clone() }
        })
    };
    verdict.slots.iter().map(own).collect()
}

/// Makes durable what the members show, and has those catch up that the last round did not reach. Those that fail that
/// are given up.
///
/// The superblocks that were found are written again: one whose flush failed may not be on the medium, although it was
/// read, and no later flush would bring it there. So a copy that is damaged is made good, too; in the other slot as
/// well, where a write was torn: if the next one were torn there in the other half, the two might be whole together.
pub(super) fn catch_up(
    disk: &mut impl Disk,
    verdict: &Verdict,
    candidates: &[Candidate],
    superblocks: &mut [Option<Superblock>],
    losses: &mut Losses,
) -> Result<(), RecoverError> {
    // One copy of each member at a time, a whole one first: the other one may be all that there is of this version.
    let mut rounds: [Vec<DiskOp>; 4] = Default::default();
    for index in verdict.slots.iter().flatten() {
        let found = &candidates[*index].superblock;
        let Copies { are_whole, is_other_damaged } = copies(disk, found)?;
        let mut copies: Vec<(bool, DiskOp)> = are_whole.into_iter().zip(superblock_writes(found)).collect();
        copies.sort_by_key(|(is_whole, _)| !is_whole);
        for (round, (is_whole, write)) in rounds.iter_mut().zip(copies) {
            let is_left = [planted!(DamageKept), planted!(FoundCounts)][usize::from(is_whole)];
            round.extend(Some(write).filter(|_| !is_left));
        }
        if is_other_damaged && !planted!(TornCopyKept) {
            rounds[2].push(superblock_write(found, found.other_position()));
        }
        // A member that the round did not reach would be two epochs behind, and set aside, if the next were cut off
        // too.
        if found.epoch < verdict.superblock.epoch && !planted!(CatchUpSkipped) {
            let superblock = superblocks[found.slot.index()].as_mut().expect("an accepted member has a superblock");
            superblock.revision.0 += 1;
            rounds[3].extend(superblock_writes(superblock));
        }
    }
    let accepted = superblocks.iter().flatten().map(|superblock| superblock.slot).collect::<MemberSet>();
    for (number, mut writes) in rounds.into_iter().enumerate() {
        writes.retain(|op| !losses.members().contains(op.member));
        if number > 0 && writes.is_empty() {
            continue;
        }
        attempt(disk, writes, losses)?;
        // Whatever else they show must not change either under what is read now.
        if !planted!(OpenUnflushed) {
            attempt(disk, accepted.minus(losses.members()).iter().map(flush), losses)?;
        }
    }
    let logs = verdict.superblock.logs.as_ref().map(LogDevices::active).unwrap_or_default();
    attempt(disk, logs.minus(losses.lost_logs()).iter().map(log_place).map(flush), losses)
}

/// Writes what is to be on record. A member that fails that is given up, and on record as failed unless it `is_kept`.
fn settle(disk: &mut impl Disk, record: &mut Record, losses: &mut Losses, is_kept: bool) -> Result<(), RecoverError> {
    let mut attempt = |record: &mut Record, ops: Vec<DiskOp>| -> Result<(), RecoverError> {
        for error in run(disk, ops)? {
            let member = error.op().member;
            losses.give_up(error.into())?;
            record.fail(Some(member).filter(|_| !is_kept).into_iter().collect());
        }
        Ok(())
    };
    while let Some(writes) = record.next_step() {
        let write = |(member, offset, lease)| DiskOp {
            tag: 0,
            member,
            kind: OpKind::Write,
            offset,
            segments: smallvec![lease],
        };
        attempt(record, writes.into_iter().map(write).collect())?;
        let flushes = record.step_members().iter().map(flush).collect();
        attempt(record, flushes)?;
    }
    Ok(())
}

/// Takes note that the map of blank regions is damaged on all members: nobody knows where they agree. That is durable
/// before the map is written again, and nothing tells of the damage any more. Members that fail stay where they
/// `are_kept` to compute parity from.
fn owe_scrub(
    disk: &mut impl Disk,
    access: Access,
    superblocks: &mut Vec<Option<Superblock>>,
    losses: &mut Losses,
    are_kept: bool,
) -> Result<(), RecoverError> {
    tracing::error!(
        "the map of blank regions is damaged on all members: what nobody has written since the array was created may \
         read as what its members held before, and members may not agree there; `uraid scrub start --repair` makes \
         them agree"
    );
    if access != Access::ReadWrite || planted!(ScrubOwedUnrecorded) {
        superblocks.iter_mut().flatten().for_each(|own| own.scrub = own.scrub.owed());
        return Ok(());
    }
    let mut record = Record::new(std::mem::take(superblocks));
    record.owe_scrub();
    settle(disk, &mut record, losses, are_kept)?;
    *superblocks = record.into_superblocks();
    Ok(())
}

/// Gives all members the map of blank regions: one that is lost later may be the only one that has a bit.
fn write_blank_map(
    disk: &mut impl Disk,
    members: &[Option<Superblock>],
    map: &Bitmap,
    losses: &mut Losses,
) -> Result<(), RecoverError> {
    let writes = members.iter().flatten().filter_map(|own| {
        let (seal, _) = own.blank_map()?;
        Some(bitmap_writes(own.slot, own.areas.blank_map(), seal, map))
    });
    attempt(disk, writes.flatten(), losses)?;
    let present: MemberSet = members.iter().flatten().map(|own| own.slot).collect();
    attempt(disk, present.minus(losses.members()).iter().map(flush), losses)
}

/// What a member has at the three places of its superblock.
struct Copies {
    /// Whether the two copies of the version that counts are whole: the one at the head, and the one at the tail.
    are_whole: [bool; 2],
    /// Whether the other slot at the head can't be read, or has what is left of a torn write.
    is_other_damaged: bool,
}

/// Looks for them; `own` is the version that counts.
fn copies(disk: &mut impl Disk, own: &Superblock) -> Result<Copies, Error> {
    let mut blocks = [(); 3].map(|()| Buf::zeroed(Bytes(SUPERBLOCK_BYTES as u64)));
    let [head, tail] = own.write_positions();
    let places = (0..).zip([head, tail, own.other_position()]).zip(&mut blocks);
    let reads = places.map(|((tag, offset), block)| {
        let segments = smallvec![block.lease_write(0..SUPERBLOCK_BYTES)];
        DiskOp { tag, member: own.slot, kind: OpKind::Read, offset, segments }
    });
    let reads: Vec<_> = reads.collect();
    let mut are_read = [false; 3];
    for Completion { tag, result, .. } in run_all(disk, reads)? {
        are_read[usize::try_from(tag).expect("one of three")] = result.is_ok();
    }
    let sound = encode(own);
    let are_whole = [0, 1].map(|copy| are_read[copy] && blocks[copy].as_ref() == sound);
    let is_other_damaged =
        !are_read[2] || matches!(decode(blocks[2].as_ref()), Err(SuperblockError::BadChecksum { .. }));
    Ok(Copies { are_whole, is_other_damaged })
}

/// The same; whose operations fail is given up.
fn attempt(
    disk: &mut impl Disk,
    ops: impl IntoIterator<Item = DiskOp>,
    losses: &mut Losses,
) -> Result<(), RecoverError> {
    run(disk, ops)?.into_iter().try_for_each(|error| losses.give_up(error.into()))
}
