//! Waiting for members while an array is opened.
//!
//! A member may hang in any system call, and nothing ends that. So nothing here blocks for longer than a tick: what
//! blocks has a thread of its own, which is left behind with whatever it holds, and operations on the ring are given up
//! as [`Deadline`] does it. Time is counted in ticks: while this program is stopped itself, none passes.
//!
//! It does not decide who can be done without.

use std::borrow::BorrowMut;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use uraid_layout::{MemberIndex, MemberSet};

use crate::cache::TICK;
use crate::disk::{Completion, Deadline, Disk, DiskError, DiskOp, Late};
use crate::error::Error;
use crate::member::MemberError;

/// How long a member may take before it is said that it is waited for.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// How members are waited for.
pub struct Patience {
    deadline: Option<Duration>,
    tick: Box<dyn FnMut()>,
    hung: Vec<MemberError>,
}

/// A disk whose operations are given up when they take too long; all later ones on the same member at once, and without
/// reaching it.
pub(super) struct Watched<D, P> {
    inner: Deadline<D>,
    /// By place.
    paths: Vec<PathBuf>,
    patience: P,
    pace: Pace,
    /// Members that are said to be waited for.
    late: BTreeSet<MemberIndex>,
    given_up: BTreeSet<MemberIndex>,
    refused: Vec<Completion>,
}

/// When the next tick is due.
struct Pace {
    due: Instant,
}

impl Patience {
    /// Waits for each step of a member for `deadline`, or for ever. About every 100 ms that it waits it calls `tick`.
    #[must_use]
    pub fn new(deadline: Option<Duration>, tick: impl FnMut() + 'static) -> Self {
        Self { deadline, tick: Box::new(tick), hung: Vec::new() }
    }

    /// Waits for ever.
    #[must_use]
    pub fn endless() -> Self {
        Self::new(None, || ())
    }

    /// The members whose operations were given up since this was asked last. What was to be done with them has failed,
    /// and what they are about to do is not known: they are to be left out from now on.
    #[must_use]
    pub fn take_hung(&mut self) -> Vec<MemberError> {
        std::mem::take(&mut self.hung)
    }

    /// Runs a step for each path on a thread of its own, and waits at least for as long as it may wait itself. Gives
    /// what came of it in the same order: in time, or who hangs.
    ///
    /// # Errors
    /// When there is no thread to be had.
    ///
    /// # Panics
    /// When a step panics.
    pub(super) fn each<T: Send + 'static>(
        &mut self,
        action: &'static str,
        own_wait: Duration,
        steps: impl IntoIterator<Item = (PathBuf, impl FnOnce() -> T + Send + 'static)>,
    ) -> Result<Vec<Result<T, MemberError>>, MemberError> {
        let (sender, results) = channel();
        let (mut paths, mut found) = (Vec::new(), Vec::new());
        for (index, (path, step)) in steps.into_iter().enumerate() {
            let sender = sender.clone();
            // Nobody waits any more for what comes too late: it is let go of.
            let run = move || drop(sender.send((index, step())));
            if let Err(source) = std::thread::Builder::new().name("member".into()).spawn(run) {
                return Err(MemberError::Io { path, action: "start a thread for it", source });
            }
            paths.push(path);
            found.push(None);
        }
        drop(sender);
        let (mut pace, mut ticks) = (Pace::new(), 0);
        while found.iter().any(Option::is_none) && !(self.is_over(ticks) && ticks >= ticks_of(own_wait)) {
            match results.recv_timeout(pace.left()) {
                Ok((index, result)) => found[index] = Some(result),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("a step with a member does not panic"),
            }
            if pace.has_passed() {
                ticks += 1;
                (self.tick)();
                let late = paths.iter().zip(&found).filter(|(_, result)| result.is_none());
                if ticks == ticks_of(SAID_AFTER) {
                    late.for_each(|(path, _)| tracing::warn!("waiting for {} to {action}", path.display()));
                }
            }
        }
        let deadline = self.deadline.unwrap_or_default();
        let hang = |path| MemberError::Silent { path, action, deadline };
        Ok(paths.into_iter().zip(found).map(|(path, result)| result.ok_or_else(|| hang(path))).collect())
    }

    fn is_over(&self, ticks: u64) -> bool {
        self.deadline.is_some_and(|deadline| ticks >= ticks_of(deadline))
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("deadline", &self.deadline).field("hung", &self.hung).finish_non_exhaustive()
    }
}

impl<D: Disk, P: BorrowMut<Patience>> Watched<D, P> {
    /// Watches over a disk with members at these paths, by place.
    pub(super) fn new(inner: D, paths: Vec<PathBuf>, patience: P) -> Self {
        let inner = Deadline::new(inner);
        let (late, given_up) = (BTreeSet::new(), BTreeSet::new());
        Self { inner, paths, patience, pace: Pace::new(), late, given_up, refused: Vec::new() }
    }

    /// The disk, with nothing in flight; none where operations were given up, whose ends nobody else would understand.
    pub(super) fn into_inner(self) -> Option<D> {
        self.given_up.is_empty().then(|| self.inner.into_inner())
    }

    /// Says what takes long, and gives up what takes too long.
    fn look(&mut self) {
        self.inner.tick();
        let patience = self.patience.borrow_mut();
        (patience.tick)();
        let pending: Vec<Late> = self.inner.pending().filter(|op| !op.is_abandoned).collect();
        // Room is made by somebody; only a member that is alone on its file system is left out for want of it.
        let is_alone = |&member: &MemberIndex| self.inner.inner().kin(member) == MemberSet::EMPTY.with(member);
        let waits_for_room: MemberSet =
            self.inner.inner().roomless().iter().filter(|member| !is_alone(member)).collect();
        for op in &pending {
            let path = &self.paths[op.member.index()];
            if op.age >= ticks_of(SAID_AFTER) && self.late.insert(op.member) {
                tracing::warn!("waiting for {}: {}", path.display(), op.name);
            }
            let is_over = patience.is_over(op.age) && !waits_for_room.contains(op.member);
            if is_over && self.given_up.insert(op.member) {
                let deadline = patience.deadline.unwrap_or_default();
                patience.hung.push(MemberError::Silent { path: path.clone(), action: op.name.verb(), deadline });
            }
        }
        for op in pending.iter().filter(|op| self.given_up.contains(&op.member)) {
            self.inner.give_up(op.id);
        }
    }
}

impl<D: Disk, P: BorrowMut<Patience>> Disk for Watched<D, P> {
    fn submit(&mut self, op: DiskOp) {
        if self.given_up.contains(&op.member) {
            let info = op.info();
            return self.refused.push(op.complete(Err(DiskError::TimedOut { op: info })));
        }
        self.inner.submit(op);
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.inner.kick()
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.refused);
        self.inner.reap(completions);
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.wait_at_most(TICK)
    }

    fn wait_at_most(&mut self, time: Duration) -> Result<(), Error> {
        if !self.refused.is_empty() {
            return self.inner.kick();
        }
        self.inner.wait_at_most(self.pace.left().min(time))?;
        if self.pace.has_passed() {
            self.look();
        }
        Ok(())
    }

    fn kin(&self, member: MemberIndex) -> MemberSet {
        self.inner.inner().kin(member)
    }

    fn roomless(&self) -> MemberSet {
        self.inner.inner().roomless()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.refused.len()
    }
}

impl Pace {
    fn new() -> Self {
        Self { due: Instant::now() + TICK }
    }

    fn left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Whether a tick is due; however much time has passed, it is one.
    fn has_passed(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.due;
        if is_due {
            self.due = now + TICK;
        }
        is_due
    }
}

/// As many ticks as surely take so long: the first may come at once.
fn ticks_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX - 1) + 1
}

#[cfg(test)]
mod tests;
