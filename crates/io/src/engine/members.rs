//! The members: who is there, what can be read of them, to whom a write goes, and what becomes of those that fail.
//!
//! Nobody else knows. Whoever plans asks here what it has to do without; whoever writes asks where a write of a slot
//! goes; whoever finds that a member failed says so here. What the members have on record about each other is kept up
//! in rounds of superblock writes ([`Members::keep_record`]), which a task asks for and waits for.
//!
//! Invariants:
//! - A member that is missing is neither read nor written.
//! - A member that is being rebuilt is written by every write, and read only before the watermark.
//! - While a member is copied, every write to its slot goes to both.
//! - More failures than the level survives freeze the array: nothing is answered from then on.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;

use smallvec::{SmallVec, smallvec};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, DiskSector, Geometry, MemberIndex, MemberSet, Sectors, StripeId};
use uuid::Uuid;

use super::abilities::Abilities;
use super::between::{Between, Side};
use super::counters::Counters;
use super::error::EngineError;
use super::inspect::survives;
use super::operations::Operations;
use super::record::{Record, Writes};
use super::tasks::{Tasks, Waiters};
use super::troubles::{Troubled, Troubles};
use crate::disk::{DiskError, log_at, log_place};
use crate::format::superblock::{LOGS_MAX, LogChange, LogChangeError, LogIndex, LogSet, ScrubHistory};

/// See the module.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) tasks: Rc<Tasks>,
    /// The shapes in which the array has its content, by [`Side`]: one, or two while it is being reshaped.
    shapes: SmallVec<[Shape; 1]>,
    pub(super) operations: Operations,
    pub(super) counters: RefCell<Counters>,
    pub(super) troubled: RefCell<Troubled>,
    record: RefCell<Record>,
    /// Somebody wants what is wanted on record.
    is_record_demanded: Cell<bool>,
    /// A task has it put on record.
    is_keeping_record: Cell<bool>,
    /// A round of the record has ended.
    recorded: Waiters,
    /// Up to where members that are being rebuilt can be read.
    watermark: Cell<StripeId>,
    twin: Cell<Option<Twin>>,
    pub(super) abilities: Abilities,
    /// Members written since their last flush began.
    unflushed: Cell<MemberSet>,
    standing: Cell<Standing>,
    /// The way from one shape to the other.
    between: Option<Between>,
}

#[derive(Debug)]
struct Shape {
    geometry: Geometry,
    detours: RefCell<Detours>,
}

/// How to do without members.
#[derive(Debug)]
struct Detours {
    /// Without those that are missing.
    missing: Rc<Repair>,
    /// Without those that are being rebuilt, too, where any are.
    lost: Option<Rc<Repair>>,
    /// The last one that was made for a single request, which is often the next.
    last: Option<Rc<Repair>>,
}

/// A member at the seat, beyond the slots, that takes every write of a slot and is to take its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Twin {
    pub(super) slot: MemberIndex,
    pub(super) seat: MemberIndex,
    pub(super) data: Bytes,
    pub(super) has_failed: bool,
    /// It is saying that the slot is its: it stays until that has ended.
    pub(super) is_sealing: bool,
}

/// What may be done with the array.
#[derive(Clone, Copy, Debug)]
struct Standing {
    /// More members failed than the level survives: nothing is answered from now on.
    is_frozen: bool,
    is_read_only: bool,
    /// The members were found dirty, and redundancy is left in which that may show: they are not marked clean.
    is_suspect: bool,
}

/// A task between its demand for the dirty mark and the end of its writes.
#[derive(Debug)]
pub(super) struct Writer<'a>(&'a Members);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.record.borrow_mut().writer_done();
    }
}

impl Members {
    /// The members that `record` describes, and the shape that the array has, or the two that it is between. Where
    /// fewer are there than the level needs, what can be had of an array that is only read.
    ///
    /// # Errors
    /// [`EngineError::TooManyMissing`] where something is to be written.
    pub(super) fn new(
        tasks: Rc<Tasks>,
        geometry: Geometry,
        record: Record,
        is_read_only: bool,
    ) -> Result<Self, EngineError> {
        let between = Between::of(&record);
        let geometries: SmallVec<[Geometry; 2]> = match &between {
            Some(Between { course, .. }) => [course.below(), course.above()].into_iter().cloned().collect(),
            None => smallvec![geometry],
        };
        let shape = |geometry| Shape::new(geometry, &record, is_read_only);
        let shapes: SmallVec<[Shape; 1]> = geometries.into_iter().map(shape).collect::<Result<_, _>>()?;
        let count = shapes.iter().map(|shape| shape.geometry.members()).max().expect("an array has a shape");
        let tolerance = tolerance(&shapes);
        let is_partial = shapes.iter().any(|shape| !shape.survives(record.missing()));
        let is_suspect = !record.is_clean() && record.lost().len() < tolerance;
        Ok(Self {
            operations: Operations::new(Rc::clone(&tasks)),
            tasks,
            counters: RefCell::new(Counters::new(count)),
            troubled: RefCell::new(Troubled::new(is_partial)),
            record: RefCell::new(record),
            is_record_demanded: Cell::new(false),
            is_keeping_record: Cell::new(false),
            recorded: Waiters::default(),
            shapes,
            watermark: Cell::new(StripeId(0)),
            twin: Cell::new(None),
            abilities: Abilities::new(),
            unflushed: Cell::new(MemberSet::EMPTY),
            standing: Cell::new(Standing { is_frozen: false, is_read_only, is_suspect }),
            between,
        })
    }

    /// Takes the record out at the end.
    pub(super) fn into_parts(self) -> (Geometry, Record) {
        let shape = self.shapes.into_iter().next().expect("an array has a shape");
        (shape.geometry, self.record.into_inner())
    }

    /// One of the shapes that the array has.
    ///
    /// # Panics
    /// When it has one only, and this is the other.
    pub(super) fn geometry(&self, side: Side) -> &Geometry {
        &self.shapes[side as usize].geometry
    }

    /// The way from one shape to the other, while the array is being reshaped.
    pub(super) fn between(&self) -> Option<&Between> {
        self.between.as_ref()
    }

    /// How large the array is.
    pub(super) fn capacity(&self) -> Sectors {
        self.between.as_ref().map_or_else(|| self.geometry(Side::Below).capacity(), |between| between.course.kept())
    }

    /// All of them, in the order of [`Side`].
    pub(super) fn geometries(&self) -> impl Iterator<Item = &Geometry> + Clone {
        self.shapes.iter().map(|shape| &shape.geometry)
    }

    /// Every slot, of whichever shape.
    pub(super) fn all(&self) -> MemberSet {
        MemberSet::all(self.count())
    }

    /// How many that are.
    pub(super) fn count(&self) -> usize {
        self.shapes.iter().map(|shape| shape.geometry.members()).max().expect("an array has a shape")
    }

    /// How many failures every shape survives, whichever members fail.
    pub(super) fn tolerance(&self) -> usize {
        tolerance(&self.shapes)
    }

    /// What the members have on record, or are to have.
    pub(super) fn record(&self) -> Ref<'_, Record> {
        self.record.borrow()
    }

    /// Has something put on record.
    pub(super) fn change_record<R>(&self, change: impl FnOnce(&mut Record) -> R) -> R {
        change(&mut self.record.borrow_mut())
    }

    /// The members that are not there.
    pub(super) fn missing(&self) -> MemberSet {
        self.record.borrow().missing()
    }

    /// Those that are.
    pub(super) fn present(&self) -> MemberSet {
        self.all().minus(self.missing())
    }

    /// The members that are written and do not have all of their content yet.
    pub(super) fn rebuilding(&self) -> MemberSet {
        self.record.borrow().rebuilding()
    }

    /// Those of them that can't be read in all parity stripes.
    pub(super) fn unready(&self) -> MemberSet {
        if self.watermark.get().0 < self.geometry(Side::Below).stripes().0 {
            self.rebuilding()
        } else {
            MemberSet::EMPTY
        }
    }

    /// The members that can't be read in the stripes up to `last`.
    pub(super) fn lost(&self, last: StripeId) -> MemberSet {
        let is_readable = self.rebuilding_detours().lost.is_none() || last < self.watermark.get();
        let record = self.record.borrow();
        if is_readable || planted!(RebuildingRead) { record.missing() } else { record.lost() }
    }

    /// How to do without what is lost in a shape's stripes up to `last`.
    pub(super) fn detour(&self, side: Side, last: StripeId) -> Rc<Repair> {
        let is_missing = self.lost(last) == self.missing();
        let detours = self.shapes[side as usize].detours.borrow();
        Rc::clone(detours.lost.as_ref().filter(|_| !is_missing).unwrap_or(&detours.missing))
    }

    /// How to do without more members in a shape, for one request; none where that can't be.
    pub(super) fn find_detour(&self, side: Side, without: MemberSet) -> Option<Rc<Repair>> {
        let Shape { geometry, detours } = &self.shapes[side as usize];
        let last = &mut detours.borrow_mut().last;
        if last.as_ref().is_none_or(|last| last.failed() != without) {
            *last = Some(Rc::new(Repair::new(geometry, without).ok()?));
        }
        last.clone()
    }

    /// Those of the shape in which members are rebuilt: an array that is being reshaped takes nobody in.
    fn rebuilding_detours(&self) -> RefMut<'_, Detours> {
        self.shapes[Side::Below as usize].detours.borrow_mut()
    }

    /// Members whose reads are overdue: they are written, and read only where that can't be helped.
    pub(super) fn slow(&self) -> MemberSet {
        self.operations.slow().minus(self.missing())
    }

    /// Notes up to where members that are being rebuilt have everything.
    pub(super) fn set_watermark(&self, watermark: StripeId) {
        self.watermark.set(watermark);
    }

    /// Nothing is being rebuilt any more.
    pub(super) fn end_rebuild(&self) {
        self.rebuilding_detours().lost = None;
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.standing.get().is_frozen
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.standing.get().is_read_only
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.standing.get().is_suspect
    }

    /// Notes that parity has been brought into agreement since the members were opened.
    pub(super) fn trust_parity(&self) {
        self.standing.set(Standing { is_suspect: false, ..self.standing.get() });
    }

    /// From now on nothing is answered.
    pub(super) fn freeze(&self) {
        self.standing.set(Standing { is_frozen: true, ..self.standing.get() });
    }

    /// # Errors
    /// [`EngineError::Frozen`].
    pub(super) fn check_frozen(&self) -> Result<(), EngineError> {
        if self.is_frozen() { Err(EngineError::Frozen) } else { Ok(()) }
    }

    /// How many more members may fail, whichever they are; a lower bound where that is more than one.
    pub(super) fn tolerates(&self) -> usize {
        let lost = self.record.borrow().lost();
        self.geometries().map(|geometry| survives(geometry, lost)).min().expect("an array has a shape")
    }

    /// Whether it can be changed who is there.
    ///
    /// # Errors
    /// [`EngineError::Frozen`]; [`EngineError::ReadOnly`].
    pub(super) fn check_changes(&self) -> Result<(), EngineError> {
        self.check_frozen()?;
        if self.is_read_only() { Err(EngineError::ReadOnly) } else { Ok(()) }
    }

    /// Whether the array has one shape, and is not on its way to another.
    ///
    /// # Errors
    /// [`EngineError::Reshaping`].
    pub(super) fn check_at_rest(&self) -> Result<(), EngineError> {
        if self.between.is_some() { Err(EngineError::Reshaping) } else { Ok(()) }
    }

    /// Whether a member can be given up.
    ///
    /// # Errors
    /// [`EngineError::NotThere`]; [`EngineError::Needed`]; [`EngineError::LogDevices`]; as [`Members::check_changes`].
    pub(super) fn check_fail(&self, member: MemberIndex) -> Result<(), EngineError> {
        if let Some(log) = log_at(member) {
            return self.check_fail_log(log);
        }
        if member.index() >= self.count() || self.record.borrow().recorded_missing().contains(member) {
            return Err(EngineError::NotThere { member });
        }
        if self.missing().contains(member) {
            // That it is missing is not on record yet.
            return self.check_changes();
        }
        let lost = self.unready().with(member);
        if self.tolerance() == 0 || !self.can_do_without(lost) {
            return Err(EngineError::Needed { member });
        }
        self.check_changes()
    }

    /// The same of a log device.
    fn check_fail_log(&self, log: LogIndex) -> Result<(), EngineError> {
        let logs = self.logs();
        match logs.contains(log) {
            false => Err(LogChangeError::HasFailed { log }.into()),
            true if logs.len() == 1 => Err(LogChangeError::Last { log }.into()),
            true => self.check_changes(),
        }
    }

    /// Whether what these members hold, beside those that are missing, can be computed from the others.
    pub(super) fn can_do_without(&self, members: MemberSet) -> bool {
        let lost = self.missing().union(members);
        self.shapes.iter().all(|shape| shape.survives(lost))
    }

    /// Whether the array would survive giving these members up, with those that are being rebuilt as they are.
    pub(super) fn survives(&self, without: MemberSet) -> bool {
        self.without(self.missing().union(without)).is_some()
    }

    /// How to do without these members, and without those that are being rebuilt, too, in each shape; none where one
    /// does not survive that.
    fn without(&self, missing: MemberSet) -> Option<SmallVec<[Detours; 1]>> {
        let rebuilding = self.unready().minus(missing);
        let of_shape = |Shape { geometry, .. }: &Shape| {
            let repair = |without| Repair::new(geometry, without).ok().map(Rc::new);
            let lost = if rebuilding.is_empty() { None } else { Some(repair(missing.union(rebuilding))?) };
            Some(Detours { missing: repair(missing)?, lost, last: None })
        };
        self.shapes.iter().map(of_shape).collect()
    }

    /// Takes note of members that missed a write or a flush: the array goes on without them.
    ///
    /// # Errors
    /// [`EngineError::WriteFailed`] where there is no redundancy, and so nothing is gained by giving them up;
    /// [`EngineError::Frozen`] where the level does not survive it.
    pub(super) fn fail(&self, failed: MemberSet) -> Result<(), EngineError> {
        let failed = failed.minus(self.missing());
        if failed.is_empty() {
            return Ok(());
        }
        if self.tolerance() == 0 {
            // What they have is nowhere else.
            self.troubled.borrow_mut().note_lost(failed);
            return Err(EngineError::WriteFailed { members: failed });
        }
        match self.without(self.missing().union(failed)) {
            Some(without) => {
                tracing::error!(members = %failed, "members failed; the array continues without them");
                for (shape, Detours { missing, lost, .. }) in self.shapes.iter().zip(without) {
                    let mut detours = shape.detours.borrow_mut();
                    (detours.missing, detours.lost) = (missing, lost);
                }
                self.record.borrow_mut().fail(failed);
                Ok(())
            }
            None if planted!(FreezeIgnored) => Ok(()),
            None => {
                let before = self.record.borrow().lost();
                tracing::error!(members = %failed, %before, "more members failed than the level survives: the array is \
                    frozen");
                self.troubled.borrow_mut().note_frozen(failed);
                self.freeze();
                Err(EngineError::Frozen)
            }
        }
    }

    /// The log devices that every record is to be on.
    pub(super) fn logs(&self) -> LogSet {
        self.record.borrow().logs()
    }

    /// What is wrong with what is there.
    pub(super) fn troubles(&self, roomless: MemberSet, kept: MemberSet) -> Troubles {
        self.troubled.borrow().among(self.present(), self.record().failed_logs(), roomless, kept)
    }

    /// Where a member's log is: with the member, or on every log device.
    pub(super) fn log_places(&self, member: MemberIndex) -> SmallVec<[MemberIndex; LOGS_MAX]> {
        if self.record.borrow().any().logs.is_none() {
            return smallvec![member];
        }
        self.logs().iter().map(log_place).collect()
    }

    /// Whether the log is on log devices.
    pub(super) fn has_logs(&self) -> bool {
        self.record.borrow().any().logs.is_some()
    }

    /// Takes note of log devices that lack a record: the array goes on without them, and is frozen without any.
    pub(super) fn fail_logs(&self, failed: LogSet) {
        let failed = failed.minus(failed.minus(self.logs()));
        if failed.is_empty() || planted!(LogFailureIgnored) {
            return;
        }
        if self.logs().minus(failed).is_empty() {
            tracing::error!(logs = %failed, "the last log device failed: the array is frozen");
            self.troubled.borrow_mut().note_frozen_by_logs(failed);
            self.freeze();
            return;
        }
        tracing::error!(logs = %failed, "log devices failed; the array continues without them");
        self.record.borrow_mut().fail_logs(failed);
        self.demand_record();
    }

    /// Has log devices come and go, with the next round. Whoever comes is at the place behind them, and whoever goes is
    /// there afterwards. Nothing is under way.
    pub(super) fn change_logs(&self, change: LogChange, generation: Uuid) {
        let (count, exchanged) = {
            let record = self.record.borrow();
            let logs = record.any().logs.as_ref().expect("log devices are changed where there are some");
            (logs.devices.len(), logs.exchanged(change))
        };
        if let Some((one, other)) = exchanged {
            self.operations.exchange(log_place(one), log_place(other));
        }
        self.counters.borrow_mut().change_logs(change, count);
        self.troubled.borrow_mut().set_stalled_logs(LogSet::EMPTY);
        self.record.borrow_mut().change_logs(change, generation);
    }

    /// Takes in a member at a slot that was missing, to be rebuilt, in what plans rest on.
    ///
    /// # Errors
    /// [`EngineError::Frozen`] where the others can't be read without it.
    pub(super) fn take_in(&self, slot: MemberIndex) -> Result<(), EngineError> {
        let lost = self.record.borrow().lost().with(slot);
        let geometry = self.geometry(Side::Below);
        let repair = |without| Repair::new(geometry, without).map(Rc::new).map_err(|_| EngineError::Frozen);
        let (missing, lost) = (repair(self.missing().without(slot))?, repair(lost)?);
        *self.rebuilding_detours() = Detours { missing, lost: Some(lost), last: None };
        self.operations.forget(slot);
        self.troubled.borrow_mut().forget(slot);
        self.abilities.forget(slot);
        Ok(())
    }

    /// The member at the seat that takes a slot's writes, too.
    pub(super) fn twin(&self) -> Option<Twin> {
        self.twin.get()
    }

    /// Begins or ends that, or notes how it is.
    pub(super) fn set_twin(&self, twin: Option<Twin>) {
        self.twin.set(twin);
    }

    /// The member at the seat failed: the old one stays, and nobody's work fails.
    fn give_up_twin(&self, error: &DiskError) {
        let Some(twin) = self.twin.get() else { return };
        tracing::error!(member = %twin.slot, %error, "the new member failed; the old one keeps its slot");
        self.twin.set(twin.is_sealing.then_some(Twin { has_failed: true, ..twin }));
    }

    /// Who takes the place of the member in a slot: the twin does.
    pub(super) fn exchange(&self, slot: MemberIndex, seat: MemberIndex) {
        self.operations.exchange(slot, seat);
        self.troubled.borrow_mut().forget(slot);
        self.abilities.exchange(slot, seat);
    }

    /// To whom a write of a slot goes, and where it begins there: the member in the slot, and its twin. A copy is for
    /// the twin alone. Nobody gets what is for a missing member; the others hold what it misses.
    pub(super) fn targets(
        &self,
        slot: MemberIndex,
        sector: DiskSector,
        is_copy: bool,
    ) -> SmallVec<[(MemberIndex, Bytes); 2]> {
        let record = self.record.borrow();
        if record.missing().contains(slot) {
            return SmallVec::new();
        }
        let own = (!is_copy).then(|| (slot, record.offset(slot, sector)));
        let is_forgotten = planted!(CopyUnwritten) && !is_copy;
        let twin = self.twin.get().filter(|twin| twin.slot == slot && !is_forgotten);
        let twin = twin.map(|twin| (twin.seat, Bytes(twin.data.0 + Sectors(sector.0).bytes().0)));
        own.into_iter().chain(twin).collect()
    }

    /// The seat of the disk for a member that is to take another one's place; none where the array has as many members
    /// as there can be.
    pub(super) fn seat(&self) -> Option<MemberIndex> {
        let seat = u8::try_from(self.count()).expect("members are at most 64");
        (seat < 64).then_some(MemberIndex(seat))
    }

    /// Whether a place of the disk is the seat.
    pub(super) fn is_seat(&self, member: MemberIndex) -> bool {
        member.index() >= self.count()
    }

    /// Members written since their last flush began.
    pub(super) fn unflushed(&self) -> MemberSet {
        self.unflushed.get()
    }

    /// Notes that a write to a member has completed.
    pub(super) fn note_written(&self, member: MemberIndex) {
        self.unflushed.set(self.unflushed.get().with(member));
    }

    /// Notes of which members a flush is to come.
    pub(super) fn set_unflushed(&self, members: MemberSet) {
        self.unflushed.set(members);
    }

    /// Where a sector of a present member's data area is in the member.
    pub(super) fn offset(&self, member: MemberIndex, sector: DiskSector) -> Bytes {
        self.record.borrow().offset(member, sector)
    }

    /// The inverse of [`Members::offset`].
    pub(super) fn sector(&self, member: MemberIndex, offset: Bytes) -> DiskSector {
        self.record.borrow().sector(member, offset)
    }

    /// Looks at the end of an operation: what it says of its member.
    pub(super) fn note_result(&self, member: MemberIndex, result: &Result<(), DiskError>) {
        match result {
            Ok(()) => {}
            Err(error) if log_at(member).is_some() => {
                self.counters.borrow_mut().error(member);
                tracing::warn!(%error, "disk operation failed");
            }
            Err(error @ DiskError::Unsupported { .. }) => tracing::debug!(%member, %error, "zeros are written"),
            Err(error) if self.is_seat(member) => self.give_up_twin(error),
            Err(error @ DiskError::TimedOut { .. }) => tracing::debug!(%member, %error, "the others go on"),
            Err(error) => {
                self.counters.borrow_mut().error(member);
                tracing::warn!(%member, %error, "disk operation failed");
                if matches!(error, DiskError::ShortIo { .. } | DiskError::BeyondEnd { .. })
                    && self.fail(MemberSet::EMPTY.with(member)).is_err()
                {
                    tracing::error!(%member, "the member was truncated while in use");
                }
            }
        }
    }

    /// Has the superblocks say how scrubs are: at once, or when they are written next. Who fails a superblock is given
    /// up, and freezes the array where it is needed; what scrubs do is not worth that, so that nothing is written at
    /// once while some member fails what nobody makes good.
    pub(super) fn keep_scrub(&self, record: ScrubHistory, at_once: bool) {
        if !self.is_read_only() && !self.is_frozen() {
            let is_safe = !self.troubled.borrow().has_failed() || planted!(ScrubFreezes);
            self.change_record(|kept| kept.keep_scrub(record, at_once && is_safe));
            self.demand_record();
        }
    }

    /// Has what is wanted put on record, though nobody waits for it.
    pub(super) fn demand_record(&self) {
        // Where a round is under way, another follows it by itself.
        if self.record.borrow().wants_round() {
            self.is_record_demanded.set(true);
        }
    }

    /// Whether a round of the record is to begin.
    pub(super) fn wants_record_round(&self) -> bool {
        let is_kept = self.is_keeping_record.get() && !planted!(RecordKeptTwice);
        self.is_record_demanded.get() && !is_kept && self.record.borrow().wants_round()
    }

    /// Waits for the end of a round of the record, which it demands.
    pub(super) async fn wait_record(&self) {
        self.demand_record();
        self.recorded.wait(&self.tasks).await;
    }

    /// Waits until the members are durably marked dirty with every failure on record, and keeps them so.
    ///
    /// # Errors
    /// [`EngineError::Frozen`].
    pub(super) async fn begin_writing(&self) -> Result<Writer<'_>, EngineError> {
        self.check_frozen()?;
        // Counted before the first demand: while it waits nobody may ask for the opposite.
        self.record.borrow_mut().writer_begun();
        let writer = Writer(self);
        while !self.record.borrow_mut().demand_dirty() && !planted!(DirtyMarkSkipped) {
            self.wait_record().await;
            self.check_frozen()?;
        }
        Ok(writer)
    }

    /// Waits until every member that may have missed a write is durably recorded as failed.
    ///
    /// # Errors
    /// [`EngineError::Frozen`].
    pub(super) async fn failures_recorded(&self) -> Result<(), EngineError> {
        self.check_frozen()?;
        while !self.record.borrow().has_failures_on_record() && !planted!(FailureUnrecorded) {
            self.wait_record().await;
            self.check_frozen()?;
        }
        Ok(())
    }

    /// Waits until all that is wanted is on record.
    ///
    /// # Errors
    /// [`EngineError::Frozen`].
    pub(super) async fn settled(&self) -> Result<(), EngineError> {
        self.check_frozen()?;
        while !self.record.borrow().is_settled() {
            self.wait_record().await;
            self.check_frozen()?;
        }
        Ok(())
    }

    /// Puts on record what is wanted, round by round, and lets those go on who wait for it.
    pub(super) async fn keep_record(&self) {
        self.is_record_demanded.set(false);
        self.is_keeping_record.set(true);
        loop {
            self.mark_logs().await;
            let Some(writes) = self.change_record(Record::next_step) else { break };
            self.round(writes, || self.record.borrow().step_members(), !planted!(RoundUnflushed)).await;
            if self.is_frozen() {
                self.record.borrow_mut().give_up();
            }
        }
        self.is_keeping_record.set(false);
        self.recorded.wake(&self.tasks);
    }

    /// Marks the log devices before the members are marked, where they are to be.
    async fn mark_logs(&self) {
        let marks = self.record.borrow().log_marks();
        if marks.is_empty() {
            return;
        }
        let places: SmallVec<[MemberIndex; LOGS_MAX]> = self.logs().iter().map(log_place).collect();
        let mut failed = self.operations.write_all(marks).await.failed_logs;
        if !planted!(LogMarkUnflushed) {
            failed = failed.union(self.operations.flush_all(places).await.failed_logs);
        }
        self.fail_logs(failed);
        if self.is_frozen() {
            self.record.borrow_mut().give_up();
        }
    }

    /// A round: writes to many, and then a flush of those of `whom` that are still there. Whoever fails either is given
    /// up; where the array can't do without it, it is frozen.
    pub(super) async fn round(&self, writes: Writes, whom: impl Fn() -> MemberSet, flushes: bool) {
        self.end_step(self.operations.write_all(writes).await.failed);
        if flushes {
            self.end_step(self.operations.flush_all(whom().iter()).await.failed);
        }
    }

    fn end_step(&self, failed: MemberSet) {
        if self.fail(failed).is_err() {
            self.freeze();
        }
    }
}

impl Shape {
    /// A shape of which members are missing. Where fewer are there than its level needs, what can be had if it is only
    /// read.
    fn new(geometry: Geometry, record: &Record, is_read_only: bool) -> Result<Self, EngineError> {
        let without = |missing| match Repair::new(&geometry, missing) {
            Err(_) if is_read_only => Ok(Rc::new(Repair::partial(&geometry, missing))),
            repair => {
                repair.map(Rc::new).map_err(|source| EngineError::TooManyMissing { missing, source: source.into() })
            }
        };
        let missing = without(record.missing())?;
        let is_whole = record.rebuilding().is_empty();
        let lost = (!is_whole).then(|| without(record.lost())).transpose()?;
        Ok(Self { geometry, detours: RefCell::new(Detours { missing, lost, last: None }) })
    }

    fn survives(&self, lost: MemberSet) -> bool {
        Repair::new(&self.geometry, lost).is_ok()
    }
}

fn tolerance(shapes: &[Shape]) -> usize {
    shapes.iter().map(|shape| shape.geometry.tolerance()).min().expect("an array has a shape")
}
