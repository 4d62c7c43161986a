//! Administration of members while the array is served: failing, removing, adding and replacing them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::sync::MutexGuard;
use tokio::task::{JoinHandle, spawn_blocking};
use uraid_io::array::{JoinError, JoinOptions, join, rejoin, unmake};
use uraid_io::engine::{Command, Joining, Replacement};
use uraid_io::format::owner::{Durable, Testimony};
use uraid_io::format::superblock::Superblock;
use uraid_io::member::{self, Access, Member};
use uraid_io::superblock;
use uraid_layout::{MemberIndex, MemberSet};
use uuid::Uuid;

use super::{Reactor, blocking, disowning, slots};
use crate::description;
use crate::disk::LiveDisk;
use crate::turns::Turns;

/// A member that is ready to join.
#[derive(Debug)]
pub(crate) struct Prepared {
    member: Member,
    joining: Joining,
    /// Its file was created for it, and is removed if the member does not join.
    is_made: bool,
}

impl Prepared {
    /// The slot that the member is for.
    pub(crate) fn slot(&self) -> MemberIndex {
        self.joining.superblock.slot
    }

    /// The member's file, if it was created for it.
    fn made(&self) -> Option<PathBuf> {
        self.is_made.then(|| self.member.path().to_owned())
    }

    /// The member's UUID.
    pub(crate) fn uuid(&self) -> Uuid {
        self.joining.superblock.member
    }
}

/// The members of a reactor's array.
pub(crate) struct Members<D> {
    reactor: Rc<Reactor<D>>,
    /// One is held while a member is being failed, removed or added.
    turns: Turns,
    /// By member that is or was an export: how far its mark counted that is known to be durable.
    flushed_beats: RefCell<HashMap<Uuid, u64>>,
    /// By member that is a file or a device: what it was told last, and whether it has that.
    told: RefCell<HashMap<Uuid, (Testimony, JoinHandle<()>)>>,
}

impl<D: LiveDisk> Members<D> {
    /// Those of this reactor's array.
    pub(crate) fn new(reactor: Rc<Reactor<D>>) -> Self {
        let (flushed_beats, told) = (RefCell::default(), RefCell::default());
        Self { reactor, turns: Turns::default(), flushed_beats, told }
    }

    /// Waits until nobody else changes members. While the guard is held, nobody else does.
    pub(crate) async fn change(&self) -> MutexGuard<'_, ()> {
        self.turns.take().await
    }

    /// Members that are missing and not on record as failed.
    fn unrecorded(&self) -> MemberSet {
        let slots = self.superblock().slots;
        let is_written = |slot: &MemberIndex| slots[slot.index()].state.is_written();
        self.reactor.vacancies().iter().filter(is_written).collect()
    }

    /// Has members that are missing and not on record as failed be so: one of them may be the one that returns. Who was
    /// missing at the start, and nothing was written since, is such a member. All of them go on record together.
    pub(crate) async fn record_missing(&self) -> Result<()> {
        match self.unrecorded().iter().next() {
            Some(slot) => self.fail(slot).await,
            None => Ok(()),
        }
    }

    /// Fails a member. Completes when the failure is on record.
    pub(crate) async fn fail(&self, member: MemberIndex) -> Result<()> {
        self.reactor.administer(Command::Fail { member }).await
    }

    /// Records on a failed member itself that it has failed, if it can be written. Otherwise the member, opened alone,
    /// would claim to be the last one left of the array. The member may hang, so the wait is bounded as for any other.
    pub(crate) async fn disown(&self, slot: MemberIndex) {
        let member = self.reactor.engine.borrow().disk().members().get(slot.index()).cloned().flatten();
        if let Some(member) = member {
            disowning::tell(member, self.superblock()).await;
        }
    }

    /// Releases a member that the array no longer uses.
    pub(crate) fn take_out(&self, slot: MemberIndex) -> Result<()> {
        self.note_beats();
        let mut engine = self.reactor.engine.borrow_mut();
        ensure!(engine.missing().contains(slot), "the array still uses member {slot}: fail it first");
        match engine.disk_mut().put(slot, None) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => bail!("slot {slot} has no member"),
            Err(_) => bail!("member {slot} still has operations under way; try again later"),
        }
    }

    /// Releases a member that the array no longer uses, if there is one. Returns false while operations on it are in
    /// flight.
    pub(crate) fn let_go(&self, slot: MemberIndex) -> bool {
        self.note_beats();
        self.reactor.engine.borrow_mut().disk_mut().put(slot, None).is_ok()
    }

    /// Refuses an operation that needs an array that is neither frozen nor read-only.
    pub(crate) fn ensure_can_join(&self) -> Result<()> {
        Ok(self.reactor.engine.borrow().check_changes()?)
    }

    /// The superblock as the present members have it on record.
    pub(crate) fn superblock(&self) -> Superblock {
        self.reactor.engine.borrow().superblock().clone()
    }

    /// Prepares a member for a slot without one. A returning member gets its own slot, a new one the given slot or else
    /// the first vacant one. No other change of members may run meanwhile.
    pub(crate) async fn prepare(
        &self,
        path: PathBuf,
        options: JoinOptions,
        slot: Option<MemberIndex>,
    ) -> Result<Prepared> {
        self.ensure_can_join()?;
        let slot = slot.or_else(|| self.reactor.vacancies().iter().next()).context("no member is missing")?;
        let (truth, beats) = (self.superblock(), self.flushed_beats());
        self.prepare_by(path.clone(), move || {
            let returns = !options.force && member::exists(&path) && {
                let member = Member::open(&path, Access::Inspect)?;
                superblock::load(&member).is_ok_and(|own| own.array == truth.array)
            };
            if returns { rejoin(&path, &truth, &beats) } else { join(&path, options, &truth, slot) }
        })
        .await
    }

    /// As [`Members::prepare`], for a new member in this slot.
    pub(crate) async fn prepare_new(&self, path: PathBuf, options: JoinOptions, slot: MemberIndex) -> Result<Prepared> {
        self.ensure_can_join()?;
        let truth = self.superblock();
        self.prepare_by(path.clone(), move || join(&path, options, &truth, slot)).await
    }

    /// As [`Members::prepare`], for a member that was there before, and for none else.
    pub(crate) async fn prepare_returning(&self, path: PathBuf) -> Result<Prepared> {
        self.ensure_can_join()?;
        let (truth, beats) = (self.superblock(), self.flushed_beats());
        self.prepare_by(path.clone(), move || rejoin(&path, &truth, &beats)).await
    }

    /// How far the marks of members counted that were there, by what is known now.
    fn flushed_beats(&self) -> HashMap<Uuid, u64> {
        self.note_beats();
        self.flushed_beats.borrow().clone()
    }

    /// Remembers how far the marks have counted of members that are missing: nobody else knows when they have gone.
    fn note_beats(&self) {
        let (engine, mut beats) = (self.reactor.engine.borrow(), self.flushed_beats.borrow_mut());
        for slot in engine.missing().iter() {
            let member = engine.disk().members().get(slot.index()).and_then(Option::as_ref);
            if let Some(beat) = member.filter(|member| member.is_export()).map(|member| member.flushed_beat()) {
                let known = beats.entry(engine.superblock().slots[slot.index()].member).or_default();
                *known = beat.max(*known);
            }
        }
    }

    /// Has every member say what is known to be durable on the array's exports, if it has any. If this process is
    /// killed, the next one finds older copies of them by that.
    pub(crate) fn bear_witness(&self) {
        let engine = self.reactor.engine.borrow();
        let superblock = engine.superblock();
        let slots = engine.geometry().all_members().minus(engine.missing());
        let present = |slot: MemberIndex| {
            Some((superblock.slots.get(slot.index())?.member, engine.disk().members().get(slot.index())?.clone()?))
        };
        let present: Vec<(Uuid, Arc<Member>)> = slots.iter().filter_map(present).collect();
        if engine.check_changes().is_err() || !present.iter().any(|(_, member)| member.is_export()) {
            return;
        }
        let durable = durable(&present, &superblock);
        let testimony = Testimony { epoch: superblock.epoch, durable };
        let mut told = self.told.borrow_mut();
        told.retain(|uuid, _| present.iter().any(|(other, _)| other == uuid));
        for (uuid, member) in present {
            if member.is_export() {
                member.testify(&testimony);
            } else if told.get(&uuid).is_none_or(|(last, telling)| *last != testimony && telling.is_finished()) {
                let says = testimony.clone();
                let telling = spawn_blocking(move || {
                    if let Err(error) = member.testify_now(&says) {
                        tracing::debug!("what is known of exports can't be written to a member: {error}");
                    }
                });
                told.insert(uuid, (testimony.clone(), telling));
            }
        }
    }

    async fn prepare_by(
        &self,
        path: PathBuf,
        work: impl FnOnce() -> Result<(Member, Joining), JoinError> + Send + 'static,
    ) -> Result<Prepared> {
        let (prepared, is_made) = blocking::prepare(&self.reactor, path, work).await?;
        let (member, joining) = prepared?;
        Ok(Prepared { member, joining, is_made })
    }

    /// Adds a member, whose rebuild then starts. Completes when that is on record.
    pub(crate) async fn join(&self, prepared: Prepared) -> Result<()> {
        let slot = prepared.slot();
        let made = prepared.made();
        {
            let mut engine = self.reactor.engine.borrow_mut();
            if !engine.missing().contains(slot) {
                made.as_deref().into_iter().for_each(unmake);
                bail!("slot {slot} has a member");
            }
            if engine.disk_mut().put(slot, Some(Arc::new(prepared.member))).is_err() {
                made.as_deref().into_iter().for_each(unmake);
                bail!(
                    "operations on the member that was in slot {slot} are still under way; try again when they \
                     have ended"
                );
            }
            if engine.superblock().slots[slot.index()].member != prepared.joining.superblock.member {
                engine.disk_mut().forget_latencies(slot);
            }
        }
        let joined = self.reactor.administer(Command::Join(Box::new(prepared.joining))).await;
        let mut engine = self.reactor.engine.borrow_mut();
        if joined.is_err() && engine.missing().contains(slot) {
            // No array relies on its content. If operations are in flight, the server releases it when it ends.
            let _ = engine.disk_mut().put(slot, None);
            made.as_deref().into_iter().for_each(unmake);
        }
        drop(engine);
        self.reactor.tell_members();
        joined
    }

    /// Copies the member in a slot to a new one, which then takes its place. Completes when the copy has begun, and
    /// returns the new member's UUID. No other change of members may run meanwhile.
    pub(crate) async fn replace(&self, slot: MemberIndex, path: PathBuf, options: JoinOptions) -> Result<Uuid> {
        let seat = {
            let engine = self.reactor.engine.borrow();
            engine.check_replaceable(slot)?;
            engine.seat().context("there is no room for it")?
        };
        let truth = self.superblock();
        let prepared = self.prepare_by(path.clone(), move || join(&path, options, &truth, slot)).await?;
        let made = prepared.made();
        let Prepared { member, joining, .. } = prepared;
        let uuid = joining.superblock.member;
        self.reactor.begins_replacing.set(true);
        let put = self.reactor.engine.borrow_mut().disk_mut().put(seat, Some(Arc::new(member)));
        let begun = match put {
            Ok(_) => {
                self.reactor.engine.borrow_mut().disk_mut().forget_latencies(seat);
                self.reactor.administer(Command::Replace(Box::new(joining))).await
            }
            Err(_) => Err(anyhow!(
                "operations on the last member that was there are still under way; try again when they have ended"
            )),
        };
        self.reactor.begins_replacing.set(false);
        self.reactor.turn();
        if begun.is_err() {
            made.as_deref().into_iter().for_each(unmake);
        }
        begun.map(|()| uuid)
    }

    /// Cancels a copy.
    pub(crate) fn stop_replacing(&self) -> Result<()> {
        let was_stopped = self.reactor.adjust(|engine| engine.stop_replacing());
        ensure!(was_stopped, "it takes the place just now");
        Ok(())
    }

    /// The copy in progress, and its target.
    pub(crate) fn replacement(&self) -> Option<(Replacement, description::Member)> {
        slots::replacement(&self.reactor.engine.borrow())
    }
}

/// What is known to be durable on the array's exports: on those that are there by what was flushed, and on others,
/// which are missing and not on record as such, by what members said when the array was opened.
fn durable(present: &[(Uuid, Arc<Member>)], superblock: &Superblock) -> Vec<Durable> {
    let exports = present.iter().filter(|(_, member)| member.is_export());
    let run = member::this_run();
    let mut durable: Vec<Durable> =
        exports.map(|(uuid, member)| Durable { member: *uuid, run, beat: member.flushed_beat() }).collect();
    let is_missing = |known: &&Durable| present.iter().all(|(uuid, _)| *uuid != known.member);
    let found = present.iter().filter_map(|(_, member)| member.found_testimony());
    let found = found.filter(|found| found.epoch == superblock.epoch).flat_map(|found| &found.durable);
    for known in found.filter(is_missing) {
        match durable.iter_mut().find(|other| (other.member, other.run) == (known.member, known.run)) {
            Some(other) => other.beat = other.beat.max(known.beat),
            None => durable.push(*known),
        }
    }
    durable
}
