//! Scrubs that administrators or the schedule start.
//!
//! The position of a scrub is recorded periodically and read back when the server starts, so a scrub continues after a
//! restart or a crash. Mismatches are reported once per scrub.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::sync::Notify;
use uraid_io::engine::{Blame, Mismatch, ScrubMode, ScrubStatus};
use uraid_io::format::UnixSeconds;
use uraid_io::format::superblock::{ScrubFound, ScrubHistory, ScrubRun};
use uraid_layout::{Geometry, MemberIndex, StripeId};

use crate::clock::now;
use crate::disk::LiveDisk;
use crate::events::Event;
use crate::protocol::{self, Certainty, Scrub, ScrubFault, ScrubReport};
use crate::reactor::Reactor;
use crate::reactor::snapshot::Snapshot;
use crate::text::size;

/// How often to check whether a scrub has found something or has ended.
const PERIOD: Duration = Duration::from_millis(250);

/// How many times, over a whole scrub, its position alone is reason enough to update the record.
const RECORDS: u64 = 128;

/// How often to check whether a scrub is due.
const LOOK_MIN: Duration = Duration::from_secs(60);
const LOOK_MAX: Duration = Duration::from_secs(3600);

/// How long the parts in flight of a stopped scrub may take, and how often to check whether they have ended.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(5);

/// Maximum number of faults listed in a report.
const LISTED_MAX: usize = 1024;

/// The scrubs of an array, and what was reported and recorded about the current one.
pub(crate) struct Scrubs<D> {
    reactor: Rc<Reactor<D>>,
    /// When the array was created: until then there was nothing to scrub.
    created: UnixSeconds,
    /// A scrub exists, and its end has not been noted yet.
    is_on: Cell<bool>,
    begun: Notify,
    has_told: Cell<bool>,
    /// The last position that was recorded for its own sake.
    saved: Cell<StripeId>,
    /// When an administrator last stopped a scrub.
    stopped: Cell<Option<UnixSeconds>>,
    is_stopped: Cell<bool>,
    /// The server is ending; no scrub may begin anymore.
    is_closed: Cell<bool>,
}

impl<D: LiveDisk> Scrubs<D> {
    /// None is known of yet.
    pub(crate) fn new(reactor: Rc<Reactor<D>>, created: UnixSeconds) -> Self {
        Self {
            reactor,
            created,
            is_on: Cell::default(),
            begun: Notify::new(),
            has_told: Cell::default(),
            saved: Cell::default(),
            stopped: Cell::default(),
            is_stopped: Cell::default(),
            is_closed: Cell::default(),
        }
    }

    /// Starts a scrub.
    pub(super) async fn start(&self, mode: protocol::ScrubMode) -> Result<Scrub> {
        let mode = match mode {
            protocol::ScrubMode::Check => ScrubMode::Check,
            protocol::ScrubMode::Repair => ScrubMode::Repair,
            protocol::ScrubMode::RepairSuspects => ScrubMode::RepairSuspects,
        };
        let snapshot = Snapshot::take(&self.reactor).await?;
        if snapshot.scrub.is_some_and(|status| status.is_running) {
            bail!("a scrub is running already: see `uraid scrub status`, or stop it first");
        }
        if snapshot.condition.is_partial() {
            bail!(
                "more members are missing than the level survives, so there is nothing to compare: copy off what is \
                 left, and create a new array"
            );
        }
        self.begin_whole(mode)?;
        self.report().await.map(|report| report.scrub)
    }

    /// Stops a scrub for good: it is not resumed later. Does nothing if none is running.
    pub(super) async fn stop(&self) -> Result<Scrub> {
        self.is_stopped.set(true);
        self.stopped.set(now().ok());
        self.reactor.adjust(|engine| engine.stop_scrub());
        self.report().await.map(|report| report.scrub)
    }

    /// The state of the last scrub.
    pub(super) async fn report(&self) -> Result<ScrubReport> {
        match Snapshot::take(&self.reactor).await?.scrub {
            Some(status) => Ok(report(self.reactor.engine().geometry(), &status)),
            None => bail!("no scrub ran since the server started; `uraid scrub start` starts one"),
        }
    }

    /// Resumes the scrub on record, if there is one.
    pub(crate) fn resume(&self) {
        let Some(mut run) = self.reactor.engine().scrub_record().run else { return };
        if run.mode == ScrubMode::RepairSuspects {
            tracing::warn!(
                "the interrupted scrub continues and repairs only what is certain; to repair suspicions, start it with \
                 --repair"
            );
            run.mode = ScrubMode::Repair;
        }
        if let Err(error) = self.begin(run) {
            tracing::warn!(%error, "the interrupted scrub can't continue");
        }
    }

    /// Reports and records the progress of scrubs, and begins one when `every` has passed since the last complete one.
    /// Runs forever.
    pub(crate) async fn look_after(self: Rc<Self>, every: Option<Duration>) {
        loop {
            let pause = every.map(|every| self.begin_if_due(every));
            tokio::select! {
                () = self.begun.notified() => {}
                () = tokio::time::sleep(pause.unwrap_or(LOOK_MAX)), if pause.is_some() => {}
            }
            while self.is_on.get() {
                tokio::time::sleep(PERIOD).await;
                self.look().await;
            }
        }
    }

    /// Stops a scrub when the server ends: reports anything not reported yet, and records the position.
    pub(crate) async fn end(&self) {
        self.is_closed.set(true);
        if self.is_on.get() {
            self.reactor.adjust(|engine| engine.stop_scrub());
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.look().await;
            if !self.is_on.get() || Instant::now() > deadline {
                return;
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// Begins a scrub of the whole array.
    fn begin_whole(&self, mode: ScrubMode) -> Result<()> {
        self.begin(ScrubRun { mode, position: StripeId(0), found: ScrubFound::default() })?;
        self.reactor.watcher().into_iter().for_each(|watcher| watcher.tell(Event::ScrubStarted));
        Ok(())
    }

    fn begin(&self, run: ScrubRun) -> Result<()> {
        ensure!(!self.is_closed.get(), "the server is stopping");
        self.reactor.adjust(|engine| engine.resume_scrub(run))?;
        let Self { is_on, begun, has_told, saved, is_stopped, .. } = self;
        is_on.set(true);
        is_stopped.set(false);
        has_told.set(run.found.mismatched.0 > 0);
        saved.set(run.position);
        self.keep(Some(run), true);
        begun.notify_one();
        Ok(())
    }

    /// Begins a check-only scrub if one is due. Returns how long to wait until the next check.
    fn begin_if_due(&self, every: Duration) -> Duration {
        let Ok(now) = now() else { return LOOK_MAX };
        let last = self.reactor.engine().scrub_record().finished.unwrap_or(self.created);
        let left = left_until_due(every, last.max(self.stopped.get().unwrap_or_default()), now);
        let is_reshaped = self.reactor.engine().reshape().is_some();
        let is_due = left.is_zero() && !self.is_on.get() && self.is_whole() && !is_reshaped;
        if is_due && let Err(error) = self.begin_whole(ScrubMode::Check) {
            tracing::warn!(%error, "a scheduled scrub can't start");
        }
        // The clock may be changed, and the machine may sleep.
        left.clamp(LOOK_MIN.min(every), LOOK_MAX)
    }

    async fn look(&self) {
        let Ok(Some(status)) = Snapshot::take(&self.reactor).await.map(|snapshot| snapshot.scrub) else { return };
        if self.is_on.get() {
            self.note(&status);
        }
    }

    /// Reports and records the state of the current scrub.
    fn note(&self, status: &ScrubStatus) {
        let Self { is_on, has_told, saved, is_stopped, .. } = self;
        let tell = |event| self.reactor.watcher().into_iter().for_each(|watcher| watcher.tell(event));
        if status.mismatched.0 > 0 && !has_told.replace(true) {
            tell(Event::ScrubMismatch);
        }
        let &ScrubStatus { mode, position, mismatched, repaired, unchecked, .. } = status;
        let run = ScrubRun { mode, position, found: ScrubFound { mismatched, repaired, unchecked } };
        if status.is_running || status.parts > 0 {
            let is_due = position.0.saturating_sub(saved.get().0) >= self.step();
            if is_due {
                saved.set(position);
            }
            return self.keep(Some(run), is_due);
        }
        is_on.set(false);
        if status.done == status.total && status.missed.0 > 0 {
            // It does not count: the next scrub, once the array is whole, compares the part that it left out.
            self.keep(None, true);
            tell(Event::ScrubIncomplete);
        } else if status.done == status.total {
            let finished = now().ok().or(self.reactor.engine().scrub_record().finished);
            let record = ScrubHistory { finished, run: None, ..self.reactor.engine().scrub_record() };
            self.reactor.adjust(|engine| engine.keep_scrub(record, true));
            if unchecked.0 > 0 {
                let unchecked = size(unchecked.bytes().0);
                tracing::warn!("{unchecked} of parity could not be checked, because members can't be read there");
            }
            tell(Event::ScrubFinished);
        } else {
            self.keep(Some(run).filter(|_| !is_stopped.get()), true);
        }
    }

    fn keep(&self, run: Option<ScrubRun>, at_once: bool) {
        let record = self.reactor.engine().scrub_record();
        self.reactor.adjust(|engine| engine.keep_scrub(ScrubHistory { run, ..record }, at_once));
    }

    /// Whether every member is present and complete.
    fn is_whole(&self) -> bool {
        let engine = self.reactor.engine();
        engine.missing().is_empty() && engine.rebuilding().is_none() && !engine.is_frozen()
    }

    /// The number of parity stripes after which a scrub's position is recorded for its own sake.
    fn step(&self) -> u64 {
        (self.reactor.engine().geometry().stripes().0 / RECORDS).max(1)
    }
}

/// Time until the next scrub is due, when the last one was at `last`. If `last` is in the future, a wrong clock set it,
/// and a scrub is due now.
fn left_until_due(every: Duration, last: UnixSeconds, now: UnixSeconds) -> Duration {
    match now.0.checked_sub(last.0) {
        Some(passed) => every.saturating_sub(Duration::from_secs(passed)),
        None => Duration::ZERO,
    }
}

/// The state of a scrub, without its individual findings.
pub(super) fn scrub(status: &ScrubStatus) -> Scrub {
    Scrub {
        mode: match status.mode {
            ScrubMode::Check => protocol::ScrubMode::Check,
            ScrubMode::Repair => protocol::ScrubMode::Repair,
            ScrubMode::RepairSuspects => protocol::ScrubMode::RepairSuspects,
        },
        running: status.is_running,
        done_bytes: status.done.bytes().0,
        total_bytes: status.total.bytes().0,
        mismatched_bytes: status.mismatched.bytes().0,
        repaired_bytes: status.repaired.bytes().0,
        unchecked_bytes: status.unchecked.bytes().0,
        missed_bytes: status.missed.bytes().0,
    }
}

fn report(geometry: &Geometry, status: &ScrubStatus) -> ScrubReport {
    let faults = status.mismatches.iter().take(LISTED_MAX).map(|mismatch| fault(geometry, mismatch)).collect();
    let left_out = status.mismatches.len().saturating_sub(LISTED_MAX) as u64;
    ScrubReport { scrub: scrub(status), faults, unlisted: status.unlisted + left_out }
}

fn fault(geometry: &Geometry, mismatch: &Mismatch) -> ScrubFault {
    let (certainty, at) = match mismatch.blame {
        Blame::Certain(at) => (Certainty::Certain, Some(at)),
        Blame::Suspected(at) => (Certainty::Suspected, Some(at)),
        Blame::Unknown(_) => (Certainty::Unknown, None),
    };
    ScrubFault {
        stripe: mismatch.stripe.0,
        certainty,
        slot: at.map(|at| at.member).map(|MemberIndex(slot)| slot),
        member_sector: at.map(|at| at.sector.0),
        sectors: mismatch.len.0,
        blocks: mismatch.lbas(geometry).map(|lbas| [lbas.start.0, lbas.end.0]).collect(),
        repaired: mismatch.is_repaired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_due_when_so_much_has_passed_since_the_last_one() {
        let day = Duration::from_secs(86400);
        let left = |last, now| left_until_due(30 * day, UnixSeconds(last), UnixSeconds(now));
        assert_eq!(left(1_000_000, 1_000_000), 30 * day);
        assert_eq!(left(1_000_000, 1_000_000 + 29 * 86400), day);
        assert_eq!(left(1_000_000, 1_000_000 + 30 * 86400), Duration::ZERO);
        assert_eq!(left(0, u64::MAX), Duration::ZERO);
        assert_eq!(left(1_000_001, 1_000_000), Duration::ZERO, "nobody has scrubbed in the future");
    }
}
