//! The array's state on its members: who is there, and whether writes may be under way.
//!
//! The record keeps what is durable and what is wanted. Where they differ it writes the present members' superblocks
//! with the next epoch and flushes them, one round at a time; a task that relies on the record asks for it and waits.
//! A member that can't be written in a round has failed, and the next round says so. Who writes and waits is not its
//! business: it says what comes next.
//!
//! A round that takes a member in writes it last, once the others durably say that it belongs to them: the newest
//! superblock counts, and a member that has nothing of the array's yet must not have it alone.
//!
//! It knows nothing of stripes, plans or what the members hold.

use uraid_layout::{Bytes, DiskSector, MemberIndex, MemberSet, Sectors, StripeId};
use uuid::Uuid;

use crate::buf::{Buf, Lease};
use crate::disk::log_place;
use crate::format::bitmap::{Bitmap, Seal};
use crate::format::log_device::{MARK_BYTES, MARKS, encode_mark};
use crate::format::superblock::{
    Blank, Consistency, LogChange, LogDevices, LogSet, Reshape, Revision, SUPERBLOCK_BYTES, ScrubHistory, SlotEntry,
    SlotState, Superblock, encode,
};
use crate::format::{BLOCK, BLOCK_BYTES, Epoch};

/// What is on record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    /// No write is under way.
    is_clean: bool,
    /// The members that the array does without.
    missing: MemberSet,
    /// The log devices that lack something.
    failed_logs: LogSet,
    /// The members that do not have all of their content yet.
    rebuilding: Vec<Rebuilding>,
    /// How scrubs are.
    scrub: ScrubHistory,
    /// Which regions are blank.
    blank: Option<Blank>,
    /// How often a member has taken another one's place.
    replaced: u32,
    /// How far the array is on its way to another shape.
    reshape: Option<Reshape>,
}

/// A member whose content is being made: see [`SlotState::Rebuilding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rebuilding {
    pub(super) member: MemberIndex,
    pub(super) upto: StripeId,
    pub(super) is_whole: bool,
}

/// Blocks to be written: to whom, where, and what.
pub(crate) type Writes = Vec<(MemberIndex, Bytes, Lease)>;

/// The writes of these blocks of a bitmap to members, where its area begins on each.
pub(super) fn bitmap_writes(
    bitmap: &Bitmap,
    seal: Seal,
    blocks: impl Iterator<Item = usize>,
    areas: &[(MemberIndex, Bytes)],
) -> Writes {
    let write = |(at, bytes): (Bytes, Buf)| {
        let lease = move |&(member, area): &(MemberIndex, Bytes)| {
            (member, Bytes(area.0 + at.0), bytes.lease_read(0..bytes.len()))
        };
        areas.iter().map(lease)
    };
    bitmap.encode_all(seal, blocks).flat_map(write).collect()
}

/// The superblocks of an array's members, and what must become of them.
#[derive(Debug)]
pub struct Record {
    /// Each present member's own superblock; none for a missing member.
    superblocks: Vec<Option<Superblock>>,
    durable: State,
    wanted: State,
    /// What the round under way puts on record.
    round: Option<State>,
    /// Whom the round writes and flushes now.
    step: MemberSet,
    /// Whom it writes and flushes after them.
    later: MemberSet,
    /// Tasks between their first demand for the dirty mark and the end of their writes.
    writers: u32,
    /// Whether a writer was ever let through: before that no member can have missed anything.
    had_writer: bool,
    /// The members can't be written any more.
    has_given_up: bool,
    /// How scrubs are, for the next round: that alone is no reason for one.
    scrub: ScrubHistory,
}

impl State {
    /// Whether it does without the same as another.
    fn has_failures_of(&self, other: &Self) -> bool {
        self.missing == other.missing && self.failed_logs == other.failed_logs
    }
}

impl Record {
    /// The record of an array from its members' superblocks in slot order, each as the member is now to say it: the
    /// same epoch and the same table in all. Slots without a superblock are missing.
    ///
    /// # Panics
    /// When there is no superblock at all, or there are more than 64 slots.
    #[must_use]
    pub fn new(superblocks: Vec<Option<Superblock>>) -> Self {
        let slots = || (0u8..).zip(&superblocks).map(|(slot, superblock)| (MemberIndex(slot), superblock));
        let any = superblocks.iter().flatten().next().expect("an array has a member with a superblock");
        let missing = slots().filter(|(_, superblock)| superblock.is_none()).map(|(slot, _)| slot).collect();
        let recorded = (0u8..).zip(&any.slots).filter(|(_, record)| record.state == SlotState::Failed);
        let recorded = recorded.map(|(slot, _)| MemberIndex(slot)).collect();
        let rebuilding = (0u8..).zip(&any.slots).filter_map(|(slot, record)| match record.state {
            SlotState::Rebuilding { upto, is_whole } => Some(Rebuilding { member: MemberIndex(slot), upto, is_whole }),
            SlotState::Active | SlotState::Failed => None,
        });
        let durable = State {
            is_clean: any.is_clean,
            missing: recorded,
            failed_logs: any.logs.as_ref().map(LogDevices::failed).unwrap_or_default(),
            rebuilding: rebuilding.collect(),
            scrub: any.scrub,
            blank: any.blank,
            replaced: 0,
            reshape: any.reshape,
        };
        let mut wanted = State { missing, ..durable.clone() };
        wanted.rebuilding.retain(|one| !missing.contains(one.member));
        Self {
            scrub: any.scrub,
            durable,
            wanted,
            superblocks,
            round: None,
            step: MemberSet::EMPTY,
            later: MemberSet::EMPTY,
            writers: 0,
            had_writer: false,
            has_given_up: false,
        }
    }

    /// A present member's superblock.
    pub(crate) fn any(&self) -> &Superblock {
        let present = self.present().iter().find_map(|member| self.superblocks[member.index()].as_ref());
        present.or_else(|| self.superblocks.iter().flatten().next()).expect("an array has a member with a superblock")
    }

    /// The superblocks of the present members by slot.
    pub(crate) fn into_superblocks(self) -> Vec<Option<Superblock>> {
        self.superblocks
    }

    /// The members that the array does without.
    #[must_use]
    pub fn missing(&self) -> MemberSet {
        self.wanted.missing
    }

    /// The members that are written and do not have all of their content yet.
    #[must_use]
    pub fn rebuilding(&self) -> MemberSet {
        self.wanted.rebuilding.iter().map(|one| one.member).collect()
    }

    /// The members whose content can't be relied on: those that are missing or being rebuilt.
    #[must_use]
    pub fn lost(&self) -> MemberSet {
        self.missing().union(self.rebuilding())
    }

    /// How far the members have come that are being rebuilt, as it is to be on record.
    pub(super) fn progress(&self) -> &[Rebuilding] {
        &self.wanted.rebuilding
    }

    /// Whether every member has all of its content, and that is on record.
    pub(crate) fn is_whole(&self) -> bool {
        self.lost().is_empty() && self.durable.rebuilding.is_empty()
    }

    /// The log devices that every record is to be on; none where the log is on the members.
    pub(crate) fn logs(&self) -> LogSet {
        self.any().logs.as_ref().map(LogDevices::all).unwrap_or_default().minus(self.wanted.failed_logs)
    }

    /// The log devices that lack something, or are not there.
    pub(super) fn failed_logs(&self) -> LogSet {
        self.wanted.failed_logs
    }

    /// Notes log devices that lack something.
    pub(crate) fn fail_logs(&mut self, logs: LogSet) {
        self.wanted.failed_logs = self.wanted.failed_logs.union(logs);
    }

    /// Has log devices come and go, with the next round, and new runs of the log and of the journal. All that is wanted
    /// is on record, and the members are marked clean: nothing counts that any log device has.
    pub(super) fn change_logs(&mut self, change: LogChange, generation: Uuid) {
        let since = Epoch(self.any().epoch.0 + 1);
        for logs in self.superblocks.iter_mut().flatten().filter_map(|own| own.logs.as_mut()) {
            logs.change(change, since);
        }
        // By number, of which some are others' now.
        let failed = self.any().logs.as_ref().map(LogDevices::failed).unwrap_or_default();
        (self.durable.failed_logs, self.wanted.failed_logs) = (failed, failed);
        if !planted!(LogRunKept) {
            self.renew(generation);
        }
        self.wanted.replaced += 1;
    }

    /// Has it recorded that the members that are being rebuilt durably have what is before a stripe.
    pub(super) fn advance(&mut self, upto: StripeId) {
        for one in &mut self.wanted.rebuilding {
            one.upto = one.upto.max(upto);
        }
    }

    /// Has it recorded that they durably have everything.
    pub(super) fn complete(&mut self) {
        self.wanted.rebuilding.clear();
    }

    /// Has it recorded that no region is blank any more.
    pub(super) fn end_blank(&mut self) {
        self.wanted.blank = None;
    }

    /// How far the array is on its way to another shape, as it is to be on record.
    pub(super) fn reshape(&self) -> Option<Reshape> {
        self.wanted.reshape
    }

    /// The same, as it is durably on record.
    pub(super) fn recorded_reshape(&self) -> Option<Reshape> {
        self.durable.reshape
    }

    /// Has it recorded how far that is.
    pub(super) fn advance_reshape(&mut self, reshape: Reshape) {
        self.wanted.reshape = Some(reshape);
    }

    /// How scrubs are, as it is to be on record.
    pub(super) fn scrub(&self) -> ScrubHistory {
        self.scrub
    }

    /// Has it recorded how scrubs are: at once, or with the next round, whatever that is for.
    pub(super) fn keep_scrub(&mut self, scrub: ScrubHistory, at_once: bool) {
        self.scrub = scrub;
        if at_once {
            self.wanted.scrub = scrub;
        }
    }

    /// Has it recorded that nobody knows where redundancy agrees, with the next round.
    pub(crate) fn owe_scrub(&mut self) {
        self.scrub = self.scrub.owed();
        self.wanted.scrub = self.scrub;
    }

    /// Has it recorded that they have nothing: what they had can't be relied on after a stop that nothing makes good.
    pub(crate) fn restart(&mut self) {
        for one in &mut self.wanted.rebuilding {
            one.upto = StripeId(0);
        }
    }

    /// Takes a member in at the slot of `own`, which was missing, to be rebuilt; with the next round, and a new run of
    /// the log.
    pub(super) fn join(&mut self, own: &Superblock, is_whole: bool, generation: Uuid) {
        let &Superblock { member, slot, areas, revision, .. } = own;
        let truth = self.any().clone();
        self.superblocks[slot.index()] = Some(Superblock { member, slot, areas, revision, ..truth });
        for superblock in self.superblocks.iter_mut().flatten() {
            if !planted!(LogKeptAtJoin) {
                superblock.generation = generation;
            }
            // The round that takes it in says since when.
            superblock.slots[slot.index()] = SlotEntry { member, state: SlotState::Failed, since: superblock.epoch };
        }
        self.wanted.missing = self.wanted.missing.without(slot);
        // The record may be of another member that was there or was being rebuilt: it does not have this one yet.
        if !planted!(SuccessorUnrecorded) {
            self.durable.missing = self.durable.missing.with(slot);
            self.durable.rebuilding.retain(|one| one.member != slot);
        }
        self.wanted.rebuilding.push(Rebuilding { member: slot, upto: StripeId(0), is_whole });
    }

    /// The superblock with which a member that is to take another one's place says so, ahead of the others' next round.
    /// Of its epoch it is the first version: where the others begin that round without it, they count.
    pub(super) fn sealed(&self, own: &Superblock, generation: Uuid) -> Superblock {
        let &Superblock { member, slot, areas, .. } = own;
        let truth = self.any();
        let epoch = Epoch(truth.epoch.0 + 1);
        let revision = Revision(0);
        let mut sealed = Superblock { member, slot, areas, generation, epoch, revision, ..truth.clone() };
        sealed.slots[slot.index()] = SlotEntry { member, state: SlotState::Active, since: epoch };
        sealed
    }

    /// Lets a member take the place of the one in its slot, with the next round, and a new run of the log. The member
    /// has its own superblock of that round already.
    pub(super) fn replace(&mut self, sealed: Superblock) {
        let Superblock { slot, generation, .. } = sealed;
        let epoch = self.any().epoch;
        for superblock in self.superblocks.iter_mut().flatten() {
            superblock.generation = generation;
            superblock.slots[slot.index()] = sealed.slots[slot.index()];
        }
        self.superblocks[slot.index()] = Some(Superblock { epoch, ..sealed });
        self.wanted.replaced += 1;
    }

    /// Whether the members are durably marked clean.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.durable.is_clean
    }

    /// What keeps the array's stripes consistent over an unclean stop.
    pub(crate) fn consistency(&self) -> Consistency {
        self.superblocks.iter().flatten().next().expect("an array has a member").consistency
    }

    /// The members' superblocks, by slot.
    pub(crate) fn superblocks(&self) -> impl Iterator<Item = Option<&Superblock>> {
        self.superblocks.iter().map(Option::as_ref)
    }

    /// Begins another run of the log and of the journal, with the next round.
    pub(crate) fn renew(&mut self, generation: Uuid) {
        for superblock in self.superblocks.iter_mut().flatten() {
            (superblock.generation, superblock.journal) = (generation, generation);
        }
    }

    /// Begins another run of the log alone, with a round that there is for this.
    pub(crate) fn renew_log(&mut self, generation: Uuid) {
        for superblock in self.superblocks.iter_mut().flatten() {
            superblock.generation = generation;
        }
        self.wanted.replaced += 1;
    }

    /// Whether what is durable is what is wanted.
    pub(crate) fn is_settled(&self) -> bool {
        self.round.is_none() && self.durable == self.wanted
    }

    /// Writes that come before the next round, if that marks the members as written: each log device is marked with the
    /// run that begins. From then on one without that mark lacks what others have.
    pub(super) fn log_marks(&self) -> Writes {
        let logs = if self.begins_run() && !planted!(LogsUnmarked) { self.logs() } else { LogSet::EMPTY };
        if logs.is_empty() {
            return Writes::new();
        }
        let mut block = Buf::zeroed(BLOCK.bytes());
        block.as_mut()[..MARK_BYTES].copy_from_slice(&encode_mark(self.any().journal));
        let of = |log| MARKS.map(|at| (log_place(log), at, block.lease_read(0..BLOCK_BYTES)));
        logs.iter().flat_map(of).collect()
    }

    /// Whether the next round marks the members as written, so that a run of the log devices begins.
    fn begins_run(&self) -> bool {
        let begins = self.round.is_none() && self.durable.is_clean && !self.wanted.is_clean;
        begins && !self.has_given_up && !self.logs().is_empty()
    }

    /// Whether a round is to begin.
    pub(super) fn wants_round(&self) -> bool {
        self.round.is_none() && self.durable != self.wanted && !self.has_given_up
    }

    /// Where a sector of a present member's data area is in the member.
    pub(super) fn offset(&self, member: MemberIndex, sector: DiskSector) -> Bytes {
        let superblock = self.superblocks[member.index()].as_ref().expect("a member that is used is present");
        Bytes(superblock.areas.data.offset.0 + Sectors(sector.0).bytes().0)
    }

    /// The inverse of [`Record::offset`].
    pub(super) fn sector(&self, member: MemberIndex, offset: Bytes) -> DiskSector {
        let superblock = self.superblocks[member.index()].as_ref().expect("a member that is used is present");
        DiskSector(Bytes(offset.0 - superblock.areas.data.offset.0).whole_sectors().0)
    }

    /// Where a present member's write-intent bitmap begins in the member.
    pub(super) fn bitmap_offset(&self, member: MemberIndex) -> Bytes {
        self.superblocks[member.index()].as_ref().expect("a member that is used is present").areas.bitmap.offset
    }

    /// Where a present member's map of blank regions begins in the member.
    pub(super) fn blank_map_offset(&self, member: MemberIndex) -> Bytes {
        self.superblocks[member.index()].as_ref().expect("a member that is used is present").areas.blank_map()
    }

    /// Asks that the members be marked dirty and every failure be on record; whether they are.
    pub(super) fn demand_dirty(&mut self) -> bool {
        self.wanted.is_clean = false;
        let is_marked = self.is_marked();
        self.had_writer |= is_marked;
        is_marked
    }

    /// Notes a writer, before its first demand: while it waits nobody may ask for the opposite.
    pub(super) fn writer_begun(&mut self) {
        self.writers += 1;
    }

    /// Notes the end of a writer.
    pub(super) fn writer_done(&mut self) {
        assert!(self.writers > 0, "a writer that ends has begun");
        self.writers -= 1;
    }

    /// Whether writes are under way.
    pub(super) fn has_writers(&self) -> bool {
        self.writers > 0
    }

    /// Whether every member that may have missed a write is on record as failed, and every log device.
    pub(super) fn has_failures_on_record(&self) -> bool {
        !self.had_writer || self.durable.has_failures_of(&self.wanted)
    }

    /// Asks that the members be marked clean; whether they are. Members that never were marked dirty stay untouched,
    /// but between two shapes: nobody is there at the end of that who is missing, and not on record as failed.
    pub(super) fn demand_clean(&mut self) -> bool {
        let is_untouched = self.durable.is_clean && self.durable.rebuilding == self.wanted.rebuilding;
        if is_untouched && self.round.is_none() && self.wanted.reshape.is_none() {
            return true;
        }
        self.wanted.is_clean = true;
        self.is_settled()
    }

    /// The members that are durably recorded as failed.
    pub(super) fn recorded_missing(&self) -> MemberSet {
        self.durable.missing
    }

    /// Notes members that failed.
    pub(crate) fn fail(&mut self, members: MemberSet) {
        self.wanted.missing = self.wanted.missing.union(members);
        self.wanted.rebuilding.retain(|one| !members.contains(one.member));
    }

    /// Members can't be written any more: nothing on record changes from now on.
    pub(super) fn give_up(&mut self) {
        self.has_given_up = true;
    }

    /// The next step of a round: superblocks to be written, all at once. Then [`Record::step_members`] are to be
    /// flushed, and after that comes the next step. None: all that is wanted is on record. Nothing to be written: what
    /// [`Record::log_marks`] says comes first.
    pub(crate) fn next_step(&mut self) -> Option<Writes> {
        while !self.has_given_up {
            match self.round.take() {
                None if self.durable == self.wanted => return None,
                None => {
                    self.wanted.scrub = self.scrub;
                    self.later = self.joining();
                    self.step = self.present().minus(self.later);
                    self.round = Some(self.wanted.clone());
                }
                Some(state) => {
                    self.step = std::mem::take(&mut self.later);
                    if self.step_members().is_empty() {
                        self.durable = state;
                        if self.begins_run() && !planted!(RunBegunUnasked) {
                            // What comes before that round is not the record's to write.
                            return Some(Writes::new());
                        }
                        continue;
                    }
                    self.round = Some(state);
                }
            }
            let writes = self.superblock_writes();
            // A step in which nobody is left is over.
            if !writes.is_empty() {
                return Some(writes);
            }
        }
        None
    }

    /// The members that the present step writes and flushes, as far as they are still there.
    pub(crate) fn step_members(&self) -> MemberSet {
        self.step.minus(self.wanted.missing)
    }

    /// Whether the members are durably marked dirty with every failure on record, and no round is under way that takes
    /// that back.
    fn is_marked(&self) -> bool {
        let says = |state: &State| !state.is_clean && state.has_failures_of(&self.wanted);
        says(&self.durable) && self.round.as_ref().is_none_or(says)
    }

    /// The members whose superblocks are written: those that the array does not do without.
    fn present(&self) -> MemberSet {
        MemberSet::all(self.superblocks.len()).minus(self.wanted.missing)
    }

    /// The members that the next round takes in: on record the array does without them.
    fn joining(&self) -> MemberSet {
        if planted!(JoinsAtOnce) { MemberSet::EMPTY } else { self.durable.missing.minus(self.wanted.missing) }
    }

    /// The superblocks of the present step, each in its next version and at its places.
    fn superblock_writes(&mut self) -> Writes {
        let state = self.round.as_ref().expect("a step is of a round");
        let members = self.step.minus(self.wanted.missing);
        let mut writes = Writes::new();
        for member in members.iter() {
            let superblock = self.superblocks[member.index()].as_mut().expect("a present member has a superblock");
            advance(superblock, state);
            let block = Buf::of(&encode(superblock));
            let lease = || block.lease_read(0..SUPERBLOCK_BYTES);
            writes.extend(superblock.write_positions().into_iter().map(|position| (member, position, lease())));
        }
        writes
    }
}

/// The superblock's next version.
fn advance(superblock: &mut Superblock, state: &State) {
    superblock.epoch = Epoch(superblock.epoch.0 + u64::from(!planted!(EpochKept)));
    superblock.revision = Revision(superblock.revision.0 + 1);
    (superblock.is_clean, superblock.scrub, superblock.blank) = (state.is_clean, state.scrub, state.blank);
    superblock.reshape = state.reshape;
    superblock.logs.iter_mut().for_each(|logs| logs.fail(state.failed_logs, superblock.epoch));
    for (slot, record) in (0u8..).map(MemberIndex).zip(&mut superblock.slots) {
        let rebuilding = state.rebuilding.iter().find(|one| one.member == slot);
        let next = match rebuilding {
            _ if state.missing.contains(slot) => SlotState::Failed,
            Some(&Rebuilding { upto, is_whole, .. }) => SlotState::Rebuilding { upto, is_whole },
            None if record.state.is_rebuilding() => SlotState::Active,
            None => record.state,
        };
        if !record.state.goes_on_as(next) && !planted!(SinceKept) {
            record.since = superblock.epoch;
        }
        record.state = next;
    }
}
