//! Scrubs as administrators start them and see them, of all reactors together.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use uraid_io::engine::{Blame, Mismatch, ScrubMode, ScrubStatus};
use uraid_layout::{Geometry, MemberIndex};

use super::Control;
use super::protocol::{self, Certainty, Scrub, ScrubFault, ScrubReport};
use crate::events::Event;

/// How often it is looked whether a scrub has found something or has ended.
const PERIOD: Duration = Duration::from_millis(250);

/// Faults that a report lists.
const LISTED_MAX: usize = 1024;

impl Control {
    /// Starts a scrub in all reactors, and looks after it.
    pub(super) async fn start_scrub(self: &Rc<Self>, mode: protocol::ScrubMode) -> Result<Scrub> {
        let mode = match mode {
            protocol::ScrubMode::Check => ScrubMode::Check,
            protocol::ScrubMode::Repair => ScrubMode::Repair,
            protocol::ScrubMode::RepairSuspects => ScrubMode::RepairSuspects,
        };
        let is_running = self.reactor.all_facts().await?.scrub.is_some_and(|status| status.is_running);
        if is_running {
            bail!("a scrub is running already: see `uraid scrub status`, or stop it first");
        }
        self.reactor.start_scrub(mode)?;
        let control = Rc::clone(self);
        tokio::task::spawn_local(async move { control.follow_scrub().await });
        self.scrub().await.map(|report| report.scrub)
    }

    /// Begins no more of a scrub; none may be running.
    pub(super) async fn stop_scrub(&self) -> Result<Scrub> {
        self.reactor.stop_scrub();
        self.scrub().await.map(|report| report.scrub)
    }

    /// How the last scrub is.
    pub(super) async fn scrub(&self) -> Result<ScrubReport> {
        match self.reactor.all_facts().await?.scrub {
            Some(status) => Ok(report(&self.reactor.geometry(), &status)),
            None => bail!("no scrub was started since the server was; `uraid scrub start` does"),
        }
    }

    /// Tells what happens to a scrub until it ends.
    async fn follow_scrub(&self) {
        let mut has_told = false;
        loop {
            tokio::time::sleep(PERIOD).await;
            let Ok(Some(status)) = self.reactor.all_facts().await.map(|facts| facts.scrub) else { return };
            let Some(watcher) = self.reactor.watcher() else { return };
            if status.mismatched.0 > 0 && !std::mem::replace(&mut has_told, true) {
                watcher.tell(Event::ScrubMismatch);
            }
            if !status.is_running {
                if status.done == status.total {
                    watcher.tell(Event::ScrubFinished);
                }
                return;
            }
        }
    }
}

/// A scrub without what it has found one by one.
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
