//! One fault at a time, everywhere: every operation of a workload, on every member and log device, fails in every way,
//! once or from then on.
//!
//! What must hold: no read returns what it must not; a command fails only when more members failed than the level
//! survives; and whatever a flush or FUA made durable is there after a power cut. Operations that never end have no
//! deadline: their command is not replied to, and the array goes on without them only after the next start.
//!
//! What corrupts silently is tried on arrays with checksums, at operations on what these tell of: a member corrupts its
//! content or its table from then on, not both; see [`Silent`](crate::disk::Silent). A command may then fail only where
//! more members hold something else in one place than the level survives.

mod client;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;
use uraid_io::disk::{log_at, log_place};
use uraid_io::format::superblock::{Integrity, LogIndex};
use uraid_layout::MemberIndex;

use crate::crash::shape::Shape;
use crate::crash::workload::Cache;
use crate::crash::{Finding, Outlook};
use crate::disk::{Fault, Planned};
use crate::dst::Scenario;
use client::Client;

/// A fault, and what it happens to.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Which array, by its index.
    pub shape: usize,
    /// Its cache.
    pub cache: Cache,
    /// Whether the array is closed in the end; else only the power cut ends it.
    pub closes: bool,
    /// On which member, or at which log device's place.
    pub member: MemberIndex,
    /// At which of the member's operations.
    pub index: usize,
    /// What happens.
    pub fault: Fault,
    /// Whether it happens to every later operation, too.
    pub lasts: bool,
}

/// What became of cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cases.
    pub cases: u64,
    /// In which the fault struck.
    pub struck: u64,
    /// Commands that rightly failed.
    pub failed: u64,
    /// Of these, as members held something else than was written there.
    pub unreadable: u64,
    /// Pieces that were computed from other members and written back.
    pub repaired: u64,
    /// Cases in which commands were never replied to, as an operation hung.
    pub hung: u64,
    /// Arrays that did not open, as a member failed meanwhile.
    pub unopened: u64,
    /// Arrays recovered after the power cut.
    pub recoveries: u64,
    /// Arrays that were rightly refused after it.
    pub refused: u64,
}

impl Counts {
    /// Two counts as one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        sum!(self, other: cases, struck, failed, unreadable, repaired, hung, unopened, recoveries, refused)
    }
}

/// A case in which something is not as it must be.
#[derive(Clone, Debug, Error)]
#[error("{case}: {finding}\n  again: cargo xtask sweep --only '{case}'")]
pub struct Failure {
    /// The case's name.
    pub case: String,
    /// What was found.
    pub finding: Finding,
}

const CACHES: [Cache; 3] = [Cache::None, Cache::Through, Cache::Back];

/// What may happen to members of an array.
fn faults(integrity: Integrity) -> &'static [Fault] {
    const ALL: [Fault; 7] =
        [Fault::Eio, Fault::NoSpace, Fault::Short, Fault::Hang, Fault::Lost, Fault::Misdirected, Fault::Flipped];
    match integrity {
        Integrity::None => &ALL[..4],
        Integrity::Crc32 => &ALL,
    }
}

/// Every case of the arrays.
///
/// # Errors
/// When a workload without any fault does not end as it must.
pub fn cases(shapes: &[Shape]) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for (index, shape) in shapes.iter().enumerate() {
        for cache in CACHES {
            for closes in [false, true] {
                let failure = |finding| Failure { case: format!("{shape}/{cache:?} without a fault"), finding };
                let disk = Client::try_out(shape, cache, closes).map_err(failure)?;
                let logs = (0..shape.logs).map(|log| log_place(LogIndex(log)));
                for member in shape.geometry.all_members().iter().chain(logs) {
                    for &fault in faults(shape.integrity) {
                        let all = || (0..disk.count(member)).collect();
                        let indices = if fault.is_silent() { disk.corruptible(member, fault) } else { all() };
                        let at = |index_of_op| [false, true].map(|lasts| (index_of_op, lasts));
                        cases.extend(indices.into_iter().flat_map(at).map(|(at, lasts)| Case {
                            shape: index,
                            cache,
                            closes,
                            member,
                            index: at,
                            fault,
                            lasts,
                        }));
                    }
                }
            }
        }
    }
    Ok(cases)
}

impl Case {
    /// A name that no other case has.
    #[must_use]
    pub fn name(&self, shapes: &[Shape]) -> String {
        let Self { shape, cache, closes, member, index, fault, lasts } = *self;
        let lasts = if lasts { "from-then-on" } else { "once" };
        let closes = if closes { "close" } else { "cut" };
        let member = log_at(member).map_or_else(|| format!("member{member}"), |log| format!("log{log}"));
        format!("{}/{cache:?}/{closes}/{member}/operation{index}/{fault:?}/{lasts}", shapes[shape]).to_lowercase()
    }

    /// Runs it.
    ///
    /// # Errors
    /// What must not be.
    pub fn run(&self, shapes: &[Shape]) -> Result<Counts, Box<Failure>> {
        let caught = catch_unwind(AssertUnwindSafe(|| self.try_run(&shapes[self.shape])));
        let result = caught.unwrap_or_else(|panic| Err(Finding::of_panic(&*panic)));
        result.map_err(|finding| Box::new(Failure { case: self.name(shapes), finding }))
    }

    fn try_run(&self, shape: &Shape) -> Result<Counts, Finding> {
        let Self { member, index, fault, lasts, .. } = *self;
        let mut counts = Counts { cases: 1, ..Counts::default() };
        let planned = Planned { member, index, fault, lasts };
        let ended = Client::run(shape, self.cache, self.closes, Some(planned))?;
        counts.struck = u64::from(!ended.struck.union(ended.lied).is_empty() || !ended.struck_logs.is_empty());
        counts.failed = ended.failed;
        counts.unreadable = ended.unreadable;
        counts.repaired = ended.repaired;
        counts.hung = u64::from(ended.is_hung);
        counts.unopened = u64::from(ended.is_unopened);
        // What a power cut leaves: as little as possible, or as much.
        for takes_new in [false, true] {
            let left = ended.members.cut(|_, count| if takes_new { count - 1 } else { 0 });
            let excused = ended.struck.union(ended.lied);
            if fault.is_silent() {
                let looked = crate::dst::look_after(&scenario(shape), &left, &ended.model, excused);
                counts.recoveries += u64::from(looked.map_err(|finding| Finding::Look(Box::new(finding)))?);
                continue;
            }
            match crate::crash::look_after(shape, &shape.together(&left), &ended.model, excused)? {
                Outlook::Refused => counts.refused += 1,
                Outlook::Recovered => counts.recoveries += 1,
                Outlook::Clean => {}
            }
        }
        Ok(counts)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cases, struck, failed, unreadable, repaired, hung, unopened, recoveries, refused } = self;
        write!(
            f,
            "{cases} cases, of which the fault struck in {struck}: {failed} commands rightly failed, {unreadable} of \
             them for want of sound blocks, {repaired} pieces were repaired, {hung} arrays hung, {unopened} did not \
             open; after power cuts {recoveries} were recovered and {refused} rightly refused"
        )
    }
}

/// The array as generated runs have theirs.
fn scenario(shape: &Shape) -> Scenario {
    let superblocks = shape.members.superblocks().map(|(_, superblock)| superblock.expect("a new array has them"));
    let (geometry, superblocks) = (shape.geometry.clone(), superblocks.collect());
    Scenario { geometry, superblocks, cache: None, reads_ahead: false }
}

#[cfg(test)]
mod tests;
