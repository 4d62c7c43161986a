//! Members on networks that return by themselves.
//!
//! When the connection of a member that is an export broke, or the member was given up because it did not answer, its
//! server is asked for it again: in the background, with
//! pauses that grow. Once the server answers, and has the same member, it has to answer for a while, the settling time,
//! in which it does what it still had of the old connection. Then the member returns as with `uraid add`: all that may
//! differ on it is written anew ([ADR 22](../../../../docs/adr/0022-members-on-a-network.md)).
//!
//! A connection that breaks while nobody needs the member costs it at once, where the array goes on without it: until
//! the next request the array would be called whole, and the member not be fetched.
//!
//! A member that an administrator has failed or removed is not fetched, nor is one that the array can't take back. One
//! that breaks again soon after its return has to settle for twice as long.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::sleep;
use uraid_io::array::JoinError;
use uraid_io::member::{Access, Member};
use uraid_io::superblock;
use uraid_layout::{MemberIndex, MemberSet};
use uuid::Uuid;

use crate::away::Away;
use crate::description::Description;
use crate::disk::LiveDisk;
use crate::events::Event;
use crate::protocol::Waiting;
use crate::reactor::Reactor;
use crate::reactor::members::Members;

/// How often to look who is away.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long servers have to answer before another member is failed, which they are asked every second; and how often
/// to look.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
const HEARD_EVERY: Duration = Duration::from_millis(20);

/// How long to wait before a server is asked again. The pause doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A member that breaks within this time after its return has to settle for longer, up to a limit.
const STABLE_AFTER: Duration = Duration::from_secs(10 * 60);
const SETTLING_MAX: Duration = Duration::from_secs(5 * 60);

/// Fetches members that are away.
pub(crate) struct Returns<D> {
    description: Rc<Description>,
    reactor: Rc<Reactor<D>>,
    members: Rc<Members<D>>,
    /// How long a server has to answer before its member returns; none: no member returns by itself.
    settling: Cell<Option<Duration>>,
    /// The last return of each member.
    returned: RefCell<Vec<Returned>>,
    /// Members that an administrator has failed: they stay where they are until somebody adds them.
    left: RefCell<HashSet<Uuid>>,
}

/// When a member returned, and how long it had to settle.
#[derive(Clone, Copy, Debug)]
struct Returned {
    member: Uuid,
    at: Instant,
    settling: Duration,
}

impl<D: LiveDisk> Returns<D> {
    /// For an array whose members have to settle for so long; none: they do not return by themselves.
    pub(crate) fn new(
        description: &Rc<Description>,
        reactor: &Rc<Reactor<D>>,
        members: &Rc<Members<D>>,
        settling: Option<Duration>,
    ) -> Rc<Self> {
        let (description, reactor, members) = (Rc::clone(description), Rc::clone(reactor), Rc::clone(members));
        let (settling, returned, left) = (Cell::new(settling), RefCell::default(), RefCell::default());
        Rc::new(Self { description, reactor, members, settling, returned, left })
    }

    /// Changes the settling time.
    pub(super) fn set_settling(&self, settling: Option<Duration>) {
        self.settling.set(settling);
    }

    /// Fetches every member whose connection breaks. Runs forever.
    pub(crate) async fn fetch_all(self: Rc<Self>) {
        loop {
            sleep(LOOK_EVERY).await;
            self.members.bear_witness();
            self.give_up_broken().await;
            // One that is about to return is looked after until it has, or has not.
            let is_away = |away: &Away| away.waiting == Waiting::Settling || self.is_missing(away);
            self.description.away.borrow_mut().retain(is_away);
            if self.settling.get().is_none() {
                continue;
            }
            for away in self.newly_away() {
                tracing::info!(member = %away.slot, path = %away.path.display(), "its server is asked for it again");
                if cut_off(self.reactor.engine().disk().members(), away.slot).is_none() {
                    // A server that takes one client at a time has to be rid of this one. Where operations are under
                    // way still, it is when the member returns.
                    let _ = self.members.let_go(away.slot);
                }
                self.description.away.borrow_mut().push(away.clone());
                spawn_local(Rc::clone(&self).fetch(away.slot, away.member, away.path));
            }
        }
    }

    /// Gives up members whose connection is broken, one after another, as long as the array goes on without them.
    /// Health tells of the others, and of members that another server has taken.
    async fn give_up_broken(&self) {
        if !self.reactor.engine().disk().members().iter().flatten().any(|member| member.is_export()) {
            return;
        }
        let survives = |slot: &MemberIndex| {
            self.reactor.condition().survives(&self.description.shapes(), MemberSet::EMPTY.with(*slot))
        };
        while let Some(slot) = self.broken().iter().find(survives) {
            if let Err(error) = self.members.fail(slot).await {
                tracing::warn!(member = %slot, "its connection is broken, and it can't be given up: {error:#}");
                break;
            }
        }
        self.reactor.note_cut_off(self.broken());
    }

    /// The members that the array has, and of which the connection is broken.
    fn broken(&self) -> MemberSet {
        let engine = self.reactor.engine();
        let has = engine.geometry().all_members().minus(engine.missing());
        has.iter().filter(|slot| cut_off(engine.disk().members(), *slot).is_some()).collect()
    }

    /// Waits until the servers of all members have answered that the array can't do without when another one is gone: a
    /// connection that has ended is noticed by the next request.
    ///
    /// # Errors
    /// When one of them does not.
    pub(super) async fn hear_from_others(&self, than: MemberIndex) -> Result<()> {
        let began = Instant::now();
        let survives = |without: MemberSet| {
            without.is_empty() || self.reactor.condition().survives(&self.description.shapes(), without.with(than))
        };
        loop {
            let unheard = self.not_heard_since(began).without(than);
            if survives(unheard) {
                return Ok(());
            }
            let broken = self.broken().without(than);
            let is_lost = !survives(broken);
            ensure!(
                !is_lost && began.elapsed() < HEARD_WITHIN,
                "the server of {} does not answer, and the array can't do without that and the other at once: try \
                 again when it is back, or was given up",
                self.description.named(if is_lost { broken } else { unheard })
            );
            sleep(HEARD_EVERY).await;
        }
    }

    /// The exports among the members whose servers have not answered since.
    fn not_heard_since(&self, time: Instant) -> MemberSet {
        let engine = self.reactor.engine();
        let has = engine.geometry().all_members().minus(engine.missing());
        let unheard = |slot: &MemberIndex| {
            let member = export(engine.disk().members(), *slot);
            member.is_some_and(|member| member.is_cut_off() || !member.was_heard_since(time))
        };
        has.iter().filter(unheard).collect()
    }

    /// Has a member stay where it is until somebody adds it.
    pub(super) fn leave(&self, slot: MemberIndex) {
        self.left.borrow_mut().insert(self.reactor.engine().superblock().slots[slot.index()].member);
        let mut all = self.description.away.borrow_mut();
        all.iter_mut().filter(|away| away.slot == slot).for_each(|away| away.waiting = Waiting::Administrator);
    }

    /// Has a member return again, if need be: somebody has added it, or could not fail it.
    pub(super) fn want(&self, member: Uuid) {
        self.left.borrow_mut().remove(&member);
    }

    fn newly_away(&self) -> Vec<Away> {
        let (engine, known, left) = (self.reactor.engine(), self.description.away.borrow(), self.left.borrow());
        let members = engine.disk().members();
        let silent = |slot| export(members, slot).filter(|it| engine.lingering(slot) > 0 || it.is_silent());
        let away = |slot: MemberIndex| {
            let member = cut_off(members, slot).or_else(|| silent(slot))?;
            let uuid = engine.superblock().slots[slot.index()].member;
            let is_new = known.iter().all(|away| away.slot != slot) && !left.contains(&uuid);
            is_new.then(|| Away::new(slot, uuid, member.path().into()))
        };
        engine.missing().iter().filter_map(away).collect()
    }

    /// Whether the slot of a member is still its own, and empty.
    fn is_missing(&self, away: &Away) -> bool {
        let engine = self.reactor.engine();
        let is_own = engine.superblock().slots.get(away.slot.index()).is_some_and(|slot| slot.member == away.member);
        is_own && engine.missing().contains(away.slot)
    }

    /// Fetches a member, if it is wanted for as long as that takes.
    async fn fetch(self: Rc<Self>, slot: MemberIndex, member: Uuid, path: PathBuf) {
        let (broke, mut pause) = (Instant::now(), PAUSE_MIN);
        loop {
            sleep(pause).await;
            pause = PAUSE_MAX.min(2 * pause);
            if !self.is_wanted(slot, member) {
                return;
            }
            let Some(settling) = self.settling_time(member, broke) else {
                // Whoever turns it on again has it found anew.
                return self.description.away.borrow_mut().retain(|away| (away.slot, away.member) != (slot, member));
            };
            match self.bring_back(slot, member, &path, settling).await {
                Ok(()) => {
                    let is_done = |away: &Away| away.slot == slot && away.waiting == Waiting::Settling;
                    return self.description.away.borrow_mut().retain(|away| !is_done(away));
                }
                Err(error) => self.note_problem(slot, &error),
            }
        }
    }

    fn is_wanted(&self, slot: MemberIndex, member: Uuid) -> bool {
        let all = self.description.away.borrow();
        let own = all.iter().find(|away| (away.slot, away.member) == (slot, member));
        own.is_some_and(|away| away.waiting != Waiting::Administrator && self.is_missing(away))
    }

    /// How long this member has to settle, which broke then.
    fn settling_time(&self, member: Uuid, broke: Instant) -> Option<Duration> {
        let returned = self.returned.borrow();
        let last = returned.iter().find(|one| one.member == member);
        let last = last.map(|one| (broke.saturating_duration_since(one.at), one.settling));
        self.settling.get().map(|settling| next_settling(settling, last))
    }

    /// Has a member return, once its server has answered for as long as it has to.
    async fn bring_back(&self, slot: MemberIndex, member: Uuid, path: &Path, settling: Duration) -> Result<()> {
        let (uri, broken) = (path.to_owned(), "it could not be looked at");
        let found = spawn_blocking(move || look(&uri, member)).await.context(broken)??;
        self.note_waiting(slot, Waiting::Settling);
        tracing::info!(member = %slot, path = %path.display(), ?settling, "its server answers, and is watched");
        sleep(settling).await;
        // On the same connection: it has been there all the time. The thread closes it.
        spawn_blocking(move || is_member(&found, member)).await.context(broken)??;
        let _alone = self.members.change().await;
        if !self.is_wanted(slot, member) {
            return Ok(());
        }
        ensure!(self.reactor.engine().reshape().is_none(), "the array is being reshaped");
        ensure!(self.members.let_go(slot), "operations on it are still under way");
        self.members.record_missing().await?;
        let prepared = self.members.prepare_returning(path.to_owned()).await?;
        if (prepared.slot(), prepared.uuid()) != (slot, member) {
            bail!("another member is there now");
        }
        self.reactor.watcher().into_iter().for_each(|watcher| watcher.tell(Event::MemberReturns(slot)));
        self.members.join(prepared).await?;
        let mut returned = self.returned.borrow_mut();
        returned.retain(|one| one.member != member);
        returned.push(Returned { member, at: Instant::now(), settling });
        Ok(())
    }

    fn note_waiting(&self, slot: MemberIndex, waiting: Waiting) {
        let mut all = self.description.away.borrow_mut();
        let wanted = all.iter_mut().filter(|away| away.slot == slot && away.waiting != Waiting::Administrator);
        wanted.for_each(|away| (away.waiting, away.problem) = (waiting, None));
    }

    fn note_problem(&self, slot: MemberIndex, error: &anyhow::Error) {
        let problem = crate::text::chain(error);
        let waiting = if is_final(error) { Waiting::Administrator } else { Waiting::Server };
        let mut all = self.description.away.borrow_mut();
        let Some(away) = all.iter_mut().find(|away| away.slot == slot) else { return };
        if away.waiting != Waiting::Administrator {
            away.waiting = waiting;
        }
        if away.problem.as_ref() != Some(&problem) {
            tracing::warn!(member = %slot, path = %away.path.display(), "it can't return now: {problem}");
            away.problem = Some(problem);
        }
    }
}

/// The member in a slot, if it is an export.
fn export(members: &[Option<Arc<Member>>], slot: MemberIndex) -> Option<&Arc<Member>> {
    members.get(slot.index())?.as_ref().filter(|member| member.is_export())
}

/// The same, if its connection broke.
fn cut_off(members: &[Option<Arc<Member>>], slot: MemberIndex) -> Option<&Arc<Member>> {
    export(members, slot).filter(|member| member.is_cut_off())
}

/// How long a member has to settle that ought to settle for so long, and whose last connection was there for so long,
/// after so much settling.
fn next_settling(settling: Duration, last: Option<(Duration, Duration)>) -> Duration {
    match last {
        Some((lasted, settled)) if lasted < STABLE_AFTER => settling.max(SETTLING_MAX.min(2 * settled)),
        Some(_) | None => settling,
    }
}

/// Connects to an export that is to be this member. May block.
fn look(path: &Path, member: Uuid) -> Result<Member> {
    let found = Member::open(path, Access::Inspect)?;
    is_member(&found, member)?;
    Ok(found)
}

/// Refuses anything but this member. May block.
fn is_member(found: &Member, member: Uuid) -> Result<()> {
    ensure!(superblock::load(found)?.member == member, "another member is there now");
    Ok(())
}

/// Whether the array does not take the member back, however often it is tried.
fn is_final(error: &anyhow::Error) -> bool {
    !matches!(error.downcast_ref(), None | Some(JoinError::Member(_) | JoinError::Io(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_breaks_again_soon_settles_for_longer_up_to_a_limit() {
        let seconds = Duration::from_secs;
        let mut settling = next_settling(seconds(10), None);
        let mut times = vec![settling];
        for _ in 0..6 {
            settling = next_settling(seconds(10), Some((seconds(1), settling)));
            times.push(settling);
        }
        assert_eq!(times, [10, 20, 40, 80, 160, 300, 300].map(seconds));
        assert_eq!(next_settling(seconds(10), Some((STABLE_AFTER, seconds(300)))), seconds(10));
        // Who has set a longer time has it.
        assert_eq!(next_settling(seconds(400), Some((seconds(1), seconds(10)))), seconds(400));
    }
}
