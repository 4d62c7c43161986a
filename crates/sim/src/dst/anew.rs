//! A running array that becomes another one, as a server has it become that: its members are marked clean, their
//! superblocks say what it is, and the same engine goes on with it.

use uraid_io::array::{GrowError, check_growth, finish_served, grow_served};
use uraid_io::engine::{Command, Deadlines};
use uraid_io::format::superblock::Integrity;
use uraid_layout::{Bytes, Geometry, Sectors, Spec};
use uuid::Uuid;

use super::finding::Finding;
use super::growing::{draw_used, enlarge, is_partitioned};
use super::session::{READ_AHEAD, Session, Submitted, settle_superblocks};
use uraid_random::Random;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grown {
    /// The array is larger.
    Larger,
    /// It is rightly as large as it was, and goes on.
    Left,
    /// The power went, or the server ends: the next start shows how large it is.
    Ended,
}

impl Session<'_> {
    /// Gives an array that was closed, and whose content is all where it is to be, the shape that it has then, as a
    /// server does; false when the power goes, or the server has to end: the next start goes on from there.
    pub(super) fn end_reshape(&mut self, generation: Uuid) -> Result<bool, Finding> {
        let deadlines = self.engine.deadlines();
        let (slots, missing) = (self.engine.slots(), self.engine.missing());
        if let Err(error) = finish_served(&mut self.engine, generation) {
            self.trace.note(format_args!("the reshape can't be ended now: {error}"));
            let lingers = |slot| self.engine.lingering(slot) > 0;
            if !self.disk.is_dark() && self.disk.struck().is_empty() && !slots.iter().any(lingers) {
                return Err(Finding::Refused { error: error.to_string() });
            }
            self.disk.cut();
            return Ok(false);
        }
        let now = self.engine.slots();
        let (all, struck) = (self.disk.members(), self.disk.struck());
        for slot in slots.minus(now).iter() {
            let stays = all.get(slot).is_some_and(|member| member.superblock().is_ok());
            if stays && !struck.union(missing).contains(slot) && !self.disk.is_dark() {
                return Err(Finding::Stays { slot });
            }
            if !self.disk.is_busy(slot) {
                self.disk.put(slot, None);
            }
        }
        settle_superblocks(&mut self.superblocks, &self.engine);
        self.go_on(deadlines);
        Ok(true)
    }

    /// Gives the members more room, where the array may grow now: how much of each it is to use.
    ///
    /// # Errors
    /// When it is refused that it grows, and nothing keeps it from that.
    pub(super) fn make_room(&mut self, random: &mut Random) -> Result<Option<Bytes>, Finding> {
        let engine = &self.engine;
        let is_changing = engine.replacement().is_some() || engine.needs_seat() || engine.reshape().is_some();
        let is_scrubbing = engine.scrub().is_some_and(|scrub| scrub.is_running);
        let lingers = engine.slots().iter().any(|slot| engine.lingering(slot) > 0 || self.disk.is_busy(slot));
        // A block has a checksum from when it is written.
        let is_checked = self.superblocks[0].integrity != Integrity::None;
        if is_changing || is_scrubbing || lingers || is_checked || engine.is_frozen() || !self.failed().is_empty() {
            return Ok(None);
        }
        let before = engine.geometry().clone();
        let used = draw_used(&before, random);
        self.trace.note(format_args!("the array is to use {used} bytes of each member"));
        self.disk.with_members(|members| enlarge(members, before.used_sectors().bytes(), used, random));
        match check_growth(&self.engine, &self.sizes(), Some(used)) {
            Ok(larger) => {
                self.larger = Some(larger);
                Ok(Some(used))
            }
            Err(error) => self.excuse_growth(&error, &before, used).map(|()| None),
        }
    }

    /// Has an array that was closed use more of its members.
    ///
    /// # Errors
    /// When it does not, and nothing keeps it from that.
    pub(super) fn grow(&mut self, used: Bytes, generation: Uuid) -> Result<Grown, Finding> {
        let (before, deadlines, sizes) = (self.engine.geometry().clone(), self.engine.deadlines(), self.sizes());
        match grow_served(&mut self.engine, &sizes, Some(used), generation) {
            Ok(()) => {}
            Err(error) if self.disk.is_dark() || matches!(error, GrowError::Member(_)) => {
                self.trace.note(format_args!("the array can't grow now: {error}"));
                if !self.disk.is_dark() && self.disk.struck().is_empty() {
                    return Err(Finding::Refused { error: error.to_string() });
                }
                self.disk.cut();
                return Ok(Grown::Ended);
            }
            Err(error) => {
                self.excuse_growth(&error, &before, used)?;
                // What goes on in the background was closed with the engine, until somebody wants something.
                let begun = self.model.now();
                self.submit(Submitted::Flush { begun }, Command::Flush);
                self.is_closed = false;
                return Ok(Grown::Left);
            }
        }
        let members = self.disk.members();
        for own in &mut self.superblocks {
            let is_its = |found: &uraid_io::format::superblock::Superblock| found.member == own.member;
            let found = members.get(own.slot).and_then(|member| member.superblock().ok()).filter(is_its);
            found.into_iter().for_each(|found| *own = found);
        }
        self.go_on(deadlines);
        Ok(Grown::Larger)
    }

    fn sizes(&self) -> Vec<Option<Bytes>> {
        let members = self.disk.members();
        self.engine.geometry().all_members().iter().map(|slot| members.get(slot).map(|one| one.size())).collect()
    }

    /// Whether it is right that an array does not grow.
    fn excuse_growth(&self, error: &GrowError, before: &Geometry, used: Bytes) -> Result<(), Finding> {
        self.trace.note(format_args!("the array does not grow: {error}"));
        let larger = Geometry::new(Spec { member_size: Sectors(used.0 / 512), ..*before.spec() });
        let is_right = match error {
            GrowError::NotWhole { .. } => !self.failed().is_empty(),
            GrowError::Nothing { .. } => larger.is_ok_and(|larger| larger.capacity() == before.capacity()),
            GrowError::Unsuited { .. } => is_partitioned(before),
            GrowError::Initialising => self.engine.superblock().blank.is_some(),
            GrowError::Busy { members } => !members.is_empty(),
            _ => false,
        };
        if is_right { Ok(()) } else { Err(Finding::Refused { error: error.to_string() }) }
    }

    /// Goes on with what the array is now.
    fn go_on(&mut self, deadlines: Deadlines) {
        self.model.resize(self.engine.geometry().capacity());
        if let Some((mode, size)) = self.cache {
            self.engine.install_cache(mode, &self.pool, size);
            if self.reads_ahead {
                self.engine.install_read_ahead(READ_AHEAD);
            }
        }
        self.engine.set_deadlines(deadlines);
        self.is_closed = false;
        self.trace.note(format_args!("the array is {:?} now", self.engine.geometry().spec()));
    }
}
