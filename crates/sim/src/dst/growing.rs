//! A stopped array whose members get larger, and which then uses more of them.
//!
//! Cut off anywhere it is as large as it was or as it is to be, with all of its content, and zeros behind.

use uraid_io::array::{Assembled, GrowError, OpenError, grow, judge};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Geometry, Level, MemberSet, Placement, Sectors, Spec};

use super::altered::{Altered, Content, scatter};
use super::finding::Finding;
use super::found::Found;
use super::outage::{Outage, is_durable};
use super::scenario::uuid;
use crate::disk::{Ending, leave};
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// Attempts after which nothing goes wrong any more.
const ATTEMPTS_MAX: u64 = 4;

/// Beyond so much content an array that grows has regions of it that are blank.
const BLANK_FROM: Bytes = Bytes(4 << 20);

/// An array that is to grow.
pub(super) struct Growing<'a> {
    pub(super) random: &'a mut Random,
    pub(super) trace: &'a Trace,
    before: Geometry,
    /// What it is to use of each member.
    used: Bytes,
    members: Members,
    failed: MemberSet,
}

impl<'a> Growing<'a> {
    /// Makes the members larger, and says how much of it is to be used.
    pub(super) fn new(found: &Found, random: &'a mut Random, trace: &'a Trace) -> Self {
        let before = found.verdict.geometry.clone();
        let used = draw_used(&before, random);
        let mut members = found.members.clone();
        let least = before.spec().member_size.bytes();
        enlarge(&mut members, Bytes(least.0.next_multiple_of(4096)), used, random);
        trace.note(format_args!("the array is to grow from {least} to {used} bytes of each member"));
        Self { random, trace, before, used, members, failed: MemberSet::EMPTY }
    }

    /// Lets it grow, whatever happens meanwhile; none where it rightly stays as it is.
    ///
    /// # Errors
    /// What must not be.
    pub(super) fn run(mut self) -> Result<Altered, Finding> {
        let most = self.random.below(ATTEMPTS_MAX + 1);
        let (mut attempts, mut is_refused) = (0, false);
        loop {
            let found = self.judged()?;
            let has_grown = found.verdict.geometry.capacity() > self.before.capacity();
            if has_grown || is_refused {
                if is_durable(&self.members) {
                    let content = if has_grown { Content::Grown } else { Content::Untouched };
                    let Self { members, failed, .. } = self;
                    return Ok(Altered { members, failed, content, attempts, is_done: has_grown });
                }
                // What shows may not be there after the next power cut.
                self.members = leave(&self.members, Ending::PowerCut, self.random);
                continue;
            }
            let is_last = attempts >= most;
            is_refused = self.attempt(&found, is_last)?;
            attempts += 1;
        }
    }

    /// Tries once; whether it was rightly refused.
    fn attempt(&mut self, found: &Found, is_last: bool) -> Result<bool, Finding> {
        let missing = found.verdict.missing();
        let all = self.before.all_members();
        let failing = all.iter().filter(|_| self.random.chance(1, 3)).collect();
        let outage = Outage::draw(found.members.clone(), failing, is_last, self.random, self.trace);
        let sizes: Vec<Option<Bytes>> =
            all.iter().map(|slot| found.members.get(slot).map(|member| member.size())).collect();
        let generation = uuid(self.random);
        let disk = outage.disk.clone();
        let assembled = Assembled::new(disk, &found.verdict, &found.candidates, Access::ReadWrite, generation);
        let grown = match assembled {
            Ok(assembled) => {
                grow(assembled, &sizes, Some(self.used)).map(drop).map_err(|error| (error.to_string(), Some(error)))
            }
            Err(error) => Err((OpenError::from(error).to_string(), None)),
        };
        let struck = outage.disk.struck();
        self.failed = self.failed.union(struck);
        let left = outage.end(self.random, self.trace);
        self.members_are(&left);
        let Err((text, error)) = grown else { return Ok(false) };
        self.trace.note(format_args!("it did not grow: {text}"));
        if outage.disk.is_dark() {
            return Ok(false);
        }
        let is_lost = !missing.union(struck).union(found.verdict.rebuilding()).is_empty();
        match error {
            Some(GrowError::NotWhole { .. }) if is_lost => Ok(true),
            Some(GrowError::Initialising) if found.verdict.superblock.blank.is_some() => Ok(true),
            Some(GrowError::Unsuited { .. }) if is_partitioned(&self.before) => Ok(true),
            Some(GrowError::Nothing { .. }) if self.is_nothing() => Ok(true),
            Some(GrowError::Member(_)) | None if !struck.is_empty() => Ok(false),
            _ => Err(Finding::Refused { error: text }),
        }
    }

    fn members_are(&mut self, left: &Members) {
        for slot in left.present().iter() {
            self.members.replace(slot, left.get(slot).cloned());
        }
    }

    fn judged(&self) -> Result<Found, Finding> {
        let candidates = self.members.candidates();
        let verdict = judge(&candidates).map_err(|error| Finding::Refused { error: error.to_string() })?;
        let aside = verdict
            .missing()
            .minus(self.failed)
            .iter()
            .filter(|&slot| self.members.get(slot).is_some())
            .collect::<MemberSet>();
        if !aside.is_empty() {
            return Err(Finding::SetAside { members: aside });
        }
        let members = self.members.only(self.before.all_members().minus(verdict.missing()));
        Ok(Found { candidates, verdict, members })
    }

    /// Whether there is no room for another parity stripe in what it is to use.
    fn is_nothing(&self) -> bool {
        let larger = Spec { member_size: Sectors(self.used.0 / 512), ..*self.before.spec() };
        Geometry::new(larger).is_ok_and(|larger| larger.capacity() == self.before.capacity())
    }
}

/// How much an array is to use of each member.
pub(super) fn draw_used(before: &Geometry, random: &mut Random) -> Bytes {
    let Spec { chunk, member_size, .. } = *before.spec();
    let least = member_size.bytes().0.next_multiple_of(4096);
    // Now and then by so much that some of it stays blank.
    Bytes(if random.chance(1, 12) {
        least.max(BLANK_FROM.0 * least / before.capacity().bytes().0) + chunk.0
    } else {
        least + chunk.0 * random.within(1, 24)
    })
}

/// Makes members so large that an array can use so much of each; beyond `least` that holds anything.
pub(super) fn enlarge(members: &mut Members, least: Bytes, used: Bytes, random: &mut Random) {
    let size = members.iter().map(|(_, member)| member.size().0).max().unwrap_or_default();
    members.enlarge(Bytes(size.max(used.0.next_multiple_of(1 << 20)) + (2 << 20) + 512 * random.below(3)));
    scatter(members, least..used, random);
}

pub(super) fn is_partitioned(geometry: &Geometry) -> bool {
    matches!(geometry.spec().level, Level::Rm2 { placement: Placement::Partitioned, .. })
}
