//! Administration of members while the array is served: failing, removing, adding and replacing them.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::sync::oneshot;
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::timeout;
use uraid_io::array::{JoinError, JoinOptions, disown, join, rejoin, unmake};
use uraid_io::disk::UringDisk;
use uraid_io::engine::{Command, Engine, Joining, Replacement};
use uraid_io::format::superblock::Superblock;
use uraid_io::member::{Access, Member};
use uraid_io::superblock;
use uraid_layout::{Bytes, MemberIndex, MemberSet};
use uuid::Uuid;

use super::{Reactor, Token};
use crate::about;
use crate::health::Condition;

/// How often members' files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Timeout for recording on a failed member itself that it has failed.
const DISOWN_TIME_MAX: Duration = Duration::from_secs(2);

/// A member and the slot that it was in when the slot was checked.
#[derive(Debug)]
pub(super) struct Open {
    slot: MemberIndex,
    member: Weak<Member>,
}

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

/// Records on a member itself that it is no longer part of the array.
async fn tell_that_it_is_out(member: Arc<Member>, truth: Superblock) {
    let path = member.path().to_owned();
    match timeout(DISOWN_TIME_MAX, spawn_blocking(move || disown(&member, &truth))).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!("a member that was given up could not be told: {error}"),
        Ok(Err(_)) | Err(_) => {
            let path = path.display();
            tracing::warn!(%path, "a member that was given up could not be told: it hangs");
        }
    }
}

impl Reactor {
    /// Fails a member. Completes when the failure is on record.
    pub(crate) async fn fail_member(&self, member: MemberIndex) -> Result<()> {
        self.command(Command::Fail { member }).await
    }

    /// Records on a failed member itself that it has failed, if it can be written. Otherwise the member, opened alone,
    /// would claim to be the last one left of the array. The member may hang, so the wait is bounded as for any other.
    pub(crate) async fn disown(&self, slot: MemberIndex) {
        let member = self.engine.borrow().disk().members().get(slot.index()).cloned().flatten();
        if let Some(member) = member {
            tell_that_it_is_out(member, self.superblock()).await;
        }
    }

    /// Waits for the same record on members that were replaced; see [`Reactor::disown`].
    pub(crate) async fn finish_disowning(&self) {
        let under_way = std::mem::take(&mut *self.disowning.borrow_mut());
        for one in under_way {
            let _ = one.await;
        }
    }

    /// Releases a member that the array no longer uses.
    pub(crate) fn take_out(&self, slot: MemberIndex) -> Result<()> {
        let mut engine = self.engine.borrow_mut();
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
        self.engine.borrow_mut().disk_mut().put(slot, None).is_ok()
    }

    /// The slots without a member.
    pub(crate) fn vacancies(&self) -> MemberSet {
        self.engine.borrow().missing()
    }

    /// Refuses an operation that needs an array with a single reactor, neither frozen nor read-only.
    pub(crate) fn ensure_can_join(&self) -> Result<()> {
        Ok(self.engine.borrow().check_changes()?)
    }

    /// The superblock as the present members have it on record.
    pub(crate) fn superblock(&self) -> Superblock {
        self.engine.borrow().superblock().clone()
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
        let slot = slot.or_else(|| self.vacancies().iter().next()).context("no member is missing")?;
        let truth = self.superblock();
        prepare(path.clone(), move || {
            let returns = !options.force && path.exists() && {
                let member = Member::open(&path, Access::Inspect)?;
                superblock::load(&member).is_ok_and(|own| own.array == truth.array)
            };
            if returns { rejoin(&path, &truth) } else { join(&path, options, &truth, slot) }
        })
        .await
    }

    /// As [`Reactor::prepare`], for a new member in this slot.
    pub(crate) async fn prepare_new(&self, path: PathBuf, options: JoinOptions, slot: MemberIndex) -> Result<Prepared> {
        self.ensure_can_join()?;
        let truth = self.superblock();
        prepare(path.clone(), move || join(&path, options, &truth, slot)).await
    }

    /// Adds a member, whose rebuild then starts. Completes when that is on record.
    pub(crate) async fn join(&self, prepared: Prepared) -> Result<()> {
        let slot = prepared.slot();
        let made = prepared.made();
        {
            let mut engine = self.engine.borrow_mut();
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
        let joined = self.command(Command::Join(Box::new(prepared.joining))).await;
        let mut engine = self.engine.borrow_mut();
        if joined.is_err() && engine.missing().contains(slot) {
            // No array relies on its content. If operations are in flight, the server releases it when it ends.
            let _ = engine.disk_mut().put(slot, None);
            made.as_deref().into_iter().for_each(unmake);
        }
        drop(engine);
        self.tell_members();
        joined
    }

    /// Copies the member in a slot to a new one, which then takes its place. Completes when the copy has begun, and
    /// returns the new member's UUID. No other change of members may run meanwhile.
    pub(crate) async fn replace(&self, slot: MemberIndex, path: PathBuf, options: JoinOptions) -> Result<Uuid> {
        let seat = {
            let engine = self.engine.borrow();
            engine.check_replaceable(slot)?;
            engine.seat().context("there is no room for it")?
        };
        let truth = self.superblock();
        let prepared = prepare(path.clone(), move || join(&path, options, &truth, slot)).await?;
        let made = prepared.made();
        let Prepared { member, joining, .. } = prepared;
        let uuid = joining.superblock.member;
        self.begins_replacing.set(true);
        let put = self.engine.borrow_mut().disk_mut().put(seat, Some(Arc::new(member)));
        let begun = match put {
            Ok(_) => {
                self.engine.borrow_mut().disk_mut().forget_latencies(seat);
                self.command(Command::Replace(Box::new(joining))).await
            }
            Err(_) => Err(anyhow!(
                "operations on the last member that was there are still under way; try again when they have ended"
            )),
        };
        self.begins_replacing.set(false);
        self.turn();
        if begun.is_err() {
            made.as_deref().into_iter().for_each(unmake);
        }
        begun.map(|()| uuid)
    }

    /// Cancels a copy.
    pub(crate) fn stop_replacing(&self) -> Result<()> {
        let was_stopped = self.engine.borrow_mut().stop_replacing();
        self.turn();
        ensure!(was_stopped, "it takes the place just now");
        Ok(())
    }

    /// The copy in progress, and its target.
    pub(crate) fn replacement(&self) -> Option<(Replacement, about::Member)> {
        let engine = self.engine.borrow();
        let replacement = engine.replacement()?;
        let member = engine.seat().and_then(|seat| engine.disk().members().get(seat.index())?.as_ref());
        let path = member.map(|member| member.path());
        Some((replacement, about::Member::new(replacement.member, path)))
    }

    /// The members in the slots, with their paths.
    fn members(&self) -> Vec<about::Member> {
        let engine = self.engine.borrow();
        let slots = engine.superblock().slots.iter().zip(engine.disk().members());
        slots
            .map(|(slot, member)| about::Member::new(slot.member, member.as_ref().map(|member| member.path())))
            .collect()
    }

    /// Passes the current members to the watcher.
    pub(crate) fn tell_members(&self) {
        self.watcher.get().into_iter().for_each(|watcher| watcher.learn(self.members()));
    }

    /// The array's condition.
    pub(super) fn condition(&self) -> Condition {
        let own = Condition::of(&self.engine.borrow(), self.deleted(), self.lagging.get(), self.last_resort);
        Condition { smart: self.failing_disks(), ..own }
    }

    /// The present members and their paths.
    pub(crate) fn member_paths(&self) -> Vec<(MemberIndex, PathBuf)> {
        let engine = self.engine.borrow();
        let missing = engine.missing();
        let slots = engine.geometry().all_members().minus(missing);
        let path = |slot: MemberIndex| Some(engine.disk().members().get(slot.index())?.as_ref()?.path().to_owned());
        slots.iter().filter_map(|slot| Some((slot, path(slot)?))).collect()
    }

    /// Records which members' disks report that they are failing, and checks the array's condition.
    pub(crate) fn note_failing_disks(&self, members: Vec<(MemberIndex, PathBuf)>) {
        self.smart.replace(members);
        self.look();
    }

    /// Members whose disks report that they are failing. By now, the slot may hold another member.
    pub(super) fn failing_disks(&self) -> MemberSet {
        let smart = self.smart.borrow();
        if smart.is_empty() {
            return MemberSet::EMPTY;
        }
        let there = self.member_paths();
        smart.iter().filter(|&member| there.contains(member)).map(|&(slot, _)| slot).collect()
    }

    /// Members whose files were deleted and that the array can't do without, as of the last check.
    pub(super) fn deleted(&self) -> MemberSet {
        let deleted = self.deleted.borrow();
        if deleted.is_empty() {
            return MemberSet::EMPTY;
        }
        let engine = self.engine.borrow();
        // By now, the slot may hold another member.
        let is_there = |open: &&Open| {
            let member = engine.disk().members().get(open.slot.index()).and_then(Option::as_ref);
            member.is_some_and(|member| Weak::ptr_eq(&open.member, &Arc::downgrade(member)))
        };
        deleted.iter().filter(is_there).map(|open| open.slot).collect()
    }

    /// Finds the members whose files were deleted. Returns `None` if the check hangs.
    pub(crate) async fn find_deleted(&self) -> Option<MemberSet> {
        let found = self.look_for_deleted().await?;
        Some(found.iter().map(|open| open.slot).collect())
    }

    async fn look_for_deleted(&self) -> Option<Vec<Open>> {
        let look = deleted(&self.engine.borrow());
        let mut found = timeout(LOOK_EVERY, spawn_blocking(look)).await.ok()?.ok()?;
        let missing = self.engine.borrow().missing();
        found.retain(|open| !missing.contains(open.slot));
        Some(found)
    }

    /// Passes the array's condition to the watcher. Then releases a member that was replaced, or whose copy was
    /// cancelled.
    pub(super) fn look(&self) {
        let condition = self.condition();
        if let Some(watcher) = self.watcher.get() {
            watcher.look(condition, || self.members());
        }
        let mut engine = self.engine.borrow_mut();
        let Some(seat) = engine.seat().filter(|_| !self.begins_replacing.get() && !engine.needs_seat()) else {
            return;
        };
        let is_taken = engine.disk().members().get(seat.index()).is_some_and(Option::is_some);
        // While operations on it are in flight, the next turn tries again.
        if is_taken && let Ok(Some(member)) = engine.disk_mut().put(seat, None) {
            tracing::info!(path = %member.path().display(), "it is not needed any more, and can be taken away");
            let truth = engine.superblock().clone();
            let mut disowning = self.disowning.borrow_mut();
            disowning.retain(|one| !one.is_finished());
            disowning.push(spawn_local(tell_that_it_is_out(member, truth)));
        }
    }

    /// Limits the rebuild rate of each member, in bytes per second.
    pub(crate) fn set_rebuild_limit(&self, limit: Option<Bytes>) {
        self.engine.borrow_mut().set_rebuild_limit(limit);
        self.turn();
    }

    /// Fails members whose files were deleted: their content is lost when the server ends. Runs forever.
    pub(super) async fn miss_deleted(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.give_up_deleted().await;
        }
    }

    /// Fails the members whose files are deleted by now, as far as the array can do without them.
    pub(crate) async fn give_up_deleted(&self) {
        let Some(found) = self.look_for_deleted().await else { return };
        let said = self.deleted();
        let mut kept = Vec::new();
        for open in found {
            let member = open.slot;
            if !said.contains(member) {
                tracing::error!(%member, "the member's file was deleted");
            }
            match self.fail_member(member).await {
                Ok(()) => continue,
                Err(error) if !said.contains(member) => {
                    tracing::error!(%member, %error, "it is used until the server ends, and is lost then: copy \
                        what the array holds");
                }
                Err(_) => {}
            }
            kept.push(open);
        }
        *self.deleted.borrow_mut() = kept;
        self.turn();
    }

    async fn command(&self, command: Command) -> Result<()> {
        let (sender, reply) = oneshot::channel();
        self.engine.borrow_mut().submit(Token::Administrator(sender), command);
        self.turn();
        Ok(reply.await.context("the server is stopping")??)
    }
}

/// Finds members whose files were deleted. Blocks.
fn deleted(engine: &Engine<UringDisk, Token>) -> impl FnOnce() -> Vec<Open> + Send + 'static {
    let members = engine.disk().members().to_vec();
    move || {
        let slots = (0..).map(MemberIndex).zip(members);
        let open = slots.filter_map(|(slot, member)| Some((slot, member.filter(|member| member.is_deleted())?)));
        open.map(|(slot, member)| Open { slot, member: Arc::downgrade(&member) }).collect()
    }
}

/// Prepares a member on a thread that may block.
async fn prepare(
    path: PathBuf,
    work: impl FnOnce() -> Result<(Member, Joining), JoinError> + Send + 'static,
) -> Result<Prepared> {
    let work = move || {
        let is_made = path.symlink_metadata().is_err();
        work().map(|(member, joining)| Prepared { member, joining, is_made })
    };
    Ok(spawn_blocking(work).await.context("the member could not be prepared")??)
}
