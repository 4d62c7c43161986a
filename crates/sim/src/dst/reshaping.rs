//! A stopped array that gets another shape: members join and leave, the power goes at any step, members fail, and the
//! administrator goes on, or back.
//!
//! Cut off anywhere, nothing but a reshape opens it; whichever way it goes, the content that is kept is there at its
//! end. Who leaves is no member any more; who failed is never taken again.

use std::ops::Range;

use uraid_io::array::{
    Assembled, NewMember, OpenError, OpenOptions, ReshapeError, Reshaping, Target, begin_reshape, check_presence,
    judge, plan_reshape,
};
use uraid_io::format::superblock::{Area, Areas, Consistency, Integrity, MEMBER_MIN, Superblock, encode};
use uraid_io::member::Access;
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Geometry, Lba, MemberIndex, MemberSet, Sectors, Spec};

use super::altered::{Altered, Content};
use super::finding::Finding;
use super::found::Found;
use super::outage::{Outage, is_durable};
use super::scenario::uuid;
use super::shapes::{consistency_after, draw_survived, draw_target, geometry_of, log_min};
use crate::disk::{Ending, SimDisk, leave};
use crate::member::{Member, Payload, may_be_served};
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// Attempts after which nothing goes wrong any more.
const ATTEMPTS_MAX: u64 = 6;

/// A few windows, where members have logs of their own size.
const LOGS: [u64; 4] = [16 << 10, 32 << 10, 96 << 10, 512 << 10];

/// An array that is to get another shape.
pub(super) struct Reshaper<'a> {
    random: &'a mut Random,
    trace: &'a Trace,
    from: Geometry,
    target: Target,
    /// By slot, of both shapes.
    members: Members,
    /// Whom the array may do without.
    failed: MemberSet,
    /// Whether some member has it on record that it has begun.
    has_begun: bool,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Ended,
    Broken,
    /// It can't be done, and nothing was written for it.
    Refused,
}

impl<'a> Reshaper<'a> {
    /// Draws a shape, and has new members ready for it.
    pub(super) fn new(found: &Found, random: &'a mut Random, trace: &'a Trace) -> Self {
        let from = found.verdict.geometry.clone();
        let target = draw_target(&from, random);
        let truth = &found.verdict.superblock;
        trace.note(format_args!("the array is to become {target:?}"));
        let mut members = found.members.clone();
        give_logs(&mut members, truth, &target, random);
        members.extend_to(usize::from(target.members));
        for slot in (truth.spec.members..target.members).map(MemberIndex) {
            members.replace(slot, Some(newcomer(truth, random)));
        }
        let failed = found.verdict.missing();
        Self { random, trace, from, target, members, failed, has_begun: false }
    }

    /// Reshapes it, whatever happens meanwhile, or leaves it rightly as it is.
    ///
    /// # Errors
    /// What must not be.
    pub(super) fn run(mut self) -> Result<Altered, Finding> {
        let most = self.random.below(ATTEMPTS_MAX + 1);
        let (mut attempts, mut is_back, mut is_refused) = (0, false, false);
        loop {
            let found = self.judged()?;
            let is_under_way = found.verdict.superblock.reshape.is_some();
            self.has_begun |= is_under_way;
            let is_new = !is_under_way && self.has_target(&found.verdict.geometry);
            if !is_under_way && (is_new || self.has_begun || is_refused) {
                if is_durable(&self.members) {
                    return self.ended(&found.verdict.geometry, is_new, attempts);
                }
                // What shows may not be there after the next power cut.
                self.members = leave(&self.members, Ending::PowerCut, self.random);
                continue;
            }
            if is_under_way {
                self.expect_closed(&found)?;
                is_back = self.random.chance(1, 4);
            }
            let is_last = attempts >= most;
            is_refused = self.attempt(found, is_back, is_last)? == Attempt::Refused;
            attempts += 1;
        }
    }

    /// Whether a geometry is of the target's shape.
    fn has_target(&self, geometry: &Geometry) -> bool {
        let Spec { level, members, chunk, .. } = *geometry.spec();
        (level, members, chunk) == (self.target.level, self.target.members, self.target.chunk)
    }

    /// How much of the content stays.
    fn kept(&self) -> Sectors {
        let size = self.from.capacity().bytes();
        let kept = self.target.kept.map_or(size, |kept| Bytes(kept.0.next_multiple_of(4096)).min(size));
        kept.whole_sectors()
    }

    /// What the array holds at the end.
    fn ended(self, now: &Geometry, is_new: bool, attempts: u64) -> Result<Altered, Finding> {
        let (kept, stripe) = (self.kept(), now.stripe_sectors());
        let is_cut = kept < self.from.capacity();
        let is_same = self.from.spec() == now.spec();
        // A shape may differ from the one before in what is kept alone.
        let is_done = is_new && !is_same;
        let is_fitted = (kept.0..kept.0 + stripe.0).contains(&now.capacity().0);
        let is_right = match () {
            () if is_done => is_fitted || is_cut && self.has_target(&self.from),
            () if self.has_begun && !is_same => is_fitted,
            () => is_same,
        };
        if !is_right {
            let [found, expected] = [now, &self.from].map(|shape| format!("{:?}", shape.spec()));
            let expected = format!("{expected}, or {:?}", self.target);
            return Err(Finding::Shape { found, expected });
        }
        let content = match () {
            // Where shapes differ in nothing else, nobody can tell which way it went.
            () if is_done && !self.has_target(&self.from) => Content::Kept(Lba(kept.0)),
            () if self.has_begun && is_cut => Content::GivenUp(Lba(kept.0)),
            () => Content::Untouched,
        };
        let mut members = self.members;
        members.split_off(now.members());
        // A new member's log is as large as any real array's; these arrays have smaller ones, all of one size.
        let sizes = members.superblocks().filter_map(|(_, own)| Some(own.ok()?.areas.log.size));
        if let Some(least) = sizes.min() {
            members.present().iter().for_each(|slot| give_log(&mut members, slot, least));
        }
        Ok(Altered { members, failed: self.failed, content, attempts, is_done })
    }

    /// Begins, goes on or goes back, once.
    fn attempt(&mut self, found: Found, is_back: bool, is_last: bool) -> Result<Attempt, Finding> {
        let to = self.to(&found);
        let (missing, shapes) = (found.verdict.missing(), [&self.from, &to]);
        let mut failing = draw_survived(shapes, missing, self.random);
        if self.random.chance(1, 16) {
            failing = (0..self.members.len()).map(slot_of).filter(|_| self.random.chance(1, 3)).collect();
        }
        let found = self.without_some(found, &to, is_last)?;
        let is_under_way = found.verdict.superblock.reshape.is_some();
        let mut members = found.members.clone();
        members.extend_to(self.members.len());
        if !is_under_way {
            for slot in (self.from.members()..self.members.len()).map(slot_of) {
                members.replace(slot, self.members.get(slot).cloned());
            }
        }
        if is_last {
            // The medium gives everything back, some time.
            self.members.recuperate();
            members.recuperate();
        }
        let outage = Outage::draw(members, failing, is_last, self.random, self.trace);
        let result = self.go(&outage.disk, &found, is_back);
        let struck = outage.disk.struck();
        self.failed = self.failed.union(struck);
        let left = outage.end(self.random, self.trace);
        for slot in left.present().iter() {
            self.members.replace(slot, left.get(slot).cloned());
        }
        match result {
            Ok((shape, losses)) => {
                let aside = losses.minus(struck);
                if !aside.is_empty() {
                    return Err(Finding::SetAside { members: aside });
                }
                if !outage.disk.is_dark() {
                    self.expect_left(shape.members(), &outage.disk)?;
                }
                Ok(Attempt::Ended)
            }
            Err(error) => {
                self.trace.note(format_args!("it did not come to its end: {error}"));
                let lost = found.verdict.missing().union(struck);
                self.excuse(&error, &found, &outage.disk, lost, &to)
            }
        }
    }

    /// The shape that the array is to get, as large as it has to be.
    fn to(&self, found: &Found) -> Geometry {
        let on_record = found.verdict.superblock.reshape.and_then(|reshape| Geometry::new(reshape.to).ok());
        let drawn = || geometry_of(&self.target, Sectors(MEMBER_MIN.0 / 512));
        on_record.or_else(drawn).unwrap_or_else(|| self.from.clone())
    }

    /// The array without members that it can do without, now and then; they are named again later.
    fn without_some(&mut self, found: Found, to: &Geometry, is_last: bool) -> Result<Found, Finding> {
        let missing = found.verdict.missing();
        if is_last || !self.random.chance(1, 4) {
            return Ok(found);
        }
        let out = draw_survived([&self.from, to], missing, self.random);
        let out: MemberSet = out.iter().filter(|&slot| found.members.get(slot).is_some()).collect();
        if out.is_empty() {
            return Ok(found);
        }
        let left = self.members.only(found.verdict.geometry.all_members().union(to.all_members()).minus(out));
        let fewer = self.found(&left)?;
        // Without the only ones that have the last round it is another array than before.
        let is_same = fewer.verdict.superblock.reshape.is_some() == found.verdict.superblock.reshape.is_some();
        let is_enough = [&self.from, to].iter().all(|shape| Repair::new(shape, fewer.verdict.missing()).is_ok());
        if !is_same || !is_enough {
            return Ok(found);
        }
        self.trace.note(format_args!("members {out:?} are not there"));
        self.failed = self.failed.union(out);
        Ok(fewer)
    }

    /// Has the real code do it: the shape that it has then, and who was given up.
    fn go(&mut self, disk: &SimDisk, found: &Found, is_back: bool) -> Result<(Geometry, MemberSet), ReshapeError> {
        let Found { candidates, verdict, .. } = found;
        let [first, second] = [uuid(self.random), uuid(self.random)];
        let reshaping = if verdict.superblock.reshape.is_some() {
            let newly = verdict.newly_missing();
            let strict = Reshaping::found(disk.clone(), verdict, candidates, is_back, false);
            match strict {
                Err(ReshapeError::Missing { missing }) if missing.minus(newly).is_empty() => {
                    Reshaping::found(disk.clone(), verdict, candidates, is_back, true)?
                }
                strict => strict?,
            }
        } else {
            let assembled = Assembled::new(disk.clone(), verdict, candidates, Access::ReadWrite, first);
            let assembled = assembled.map_err(OpenError::from)?;
            let slots = self.from.members()..usize::from(self.target.members);
            let plan = plan_reshape(&assembled, &self.target, &new_members(&self.members, slots))?;
            begin_reshape(assembled, plan, first, Ok)?
        };
        let reshaped = reshaping.run(is_back, second, |_| ())?;
        Ok((reshaped.geometry, reshaped.losses.iter().map(|loss| loss.member).collect()))
    }

    /// Whether it is right that it did not come to its end.
    fn excuse(
        &self,
        error: &ReshapeError,
        found: &Found,
        disk: &SimDisk,
        lost: MemberSet,
        to: &Geometry,
    ) -> Result<Attempt, Finding> {
        if disk.is_dark() {
            return Ok(Attempt::Broken);
        }
        let truth = &found.verdict.superblock;
        let is_too_much = [&self.from, to].iter().any(|shape| Repair::new(shape, lost).is_err());
        let has_new = disk.struck().iter().any(|slot| slot.index() >= self.from.members());
        let is_spoilt = found.members.iter().any(|(_, member)| member.is_spoilt());
        let lacks = |slot: MemberIndex| {
            let bad_blocks = |member: &Member| member.superblock().map(|own| member.bad_blocks(&own));
            found.members.get(slot).is_some_and(|member| bad_blocks(member).is_ok_and(|list| !list.is_empty()))
        };
        let verdict = match error {
            ReshapeError::Blank => truth.blank.is_some().then_some(Attempt::Refused),
            ReshapeError::NotWhole { .. } => {
                let is_lost = !lost.union(found.verdict.rebuilding()).is_empty();
                let is_refused = !self.target.allow_degraded || !found.verdict.rebuilding().is_empty();
                (is_lost && is_refused).then_some(Attempt::Refused)
            }
            // Only with members missing can moving lose more than is lost.
            ReshapeError::LosesMore { .. } => {
                let lacks_any = (0..self.members.len()).map(slot_of).any(lacks);
                let attempt = if truth.reshape.is_none() { Attempt::Refused } else { Attempt::Broken };
                (lacks_any && !lost.is_empty()).then_some(attempt)
            }
            ReshapeError::TooFew { .. } if truth.reshape.is_none() => is_too_much.then_some(Attempt::Refused),
            ReshapeError::Same | ReshapeError::TooCoarse { .. } | ReshapeError::Course(_) => {
                truth.reshape.is_none().then_some(Attempt::Refused)
            }
            ReshapeError::NoRoom { .. } => truth.reshape.is_none().then_some(Attempt::Refused),
            ReshapeError::Unreadable { .. } => (is_spoilt || is_too_much).then_some(Attempt::Broken),
            ReshapeError::Io(_) | ReshapeError::Unmade(_) => {
                (has_new && truth.reshape.is_none()).then_some(Attempt::Broken)
            }
            _ => is_too_much.then_some(Attempt::Broken),
        };
        verdict.ok_or_else(|| Finding::Refused { error: error.to_string() })
    }

    /// What there is, and what it says.
    fn judged(&mut self) -> Result<Found, Finding> {
        // Whoever can't be excused is found out below.
        drop(self.members.judge_excusing(self.failed));
        let found = self.found(&self.members)?;
        let is_its = |slot: &MemberIndex| self.members.get(*slot).is_some();
        let aside: MemberSet = found.verdict.missing().minus(self.failed).iter().filter(is_its).collect();
        if !aside.is_empty() {
            return Err(Finding::SetAside { members: aside });
        }
        Ok(found)
    }

    fn found(&self, members: &Members) -> Result<Found, Finding> {
        let candidates = members.candidates();
        let verdict = judge(&candidates).map_err(|error| Finding::Refused { error: error.to_string() })?;
        let all = MemberSet::all(verdict.slots.len());
        let mut members = members.only(all.minus(verdict.missing()));
        members.split_off(verdict.slots.len());
        Ok(Found { candidates, verdict, members })
    }

    /// Nothing else opens an array that is between two shapes, but who serves it for writing.
    fn expect_closed(&self, found: &Found) -> Result<(), Finding> {
        let options = |access| OpenOptions { access, allow_degraded: true, force: true };
        let is_opened = |access| {
            let presence = check_presence(&found.verdict, &found.candidates, options(access));
            !matches!(presence, Err(OpenError::Reshaping { .. }))
        };
        let may_be_served = may_be_served(&found.verdict.superblock);
        if is_opened(Access::ReadOnly) || is_opened(Access::ReadWrite) && !may_be_served {
            return Err(Finding::NotRefused { missing: found.verdict.missing() });
        }
        Ok(())
    }

    /// Nothing on members that left says that they belong to the array, unless they failed.
    fn expect_left(&self, slots: usize, disk: &SimDisk) -> Result<(), Finding> {
        let (all, struck) = (disk.members(), disk.struck());
        let mut left = all.iter().filter(|(slot, _)| slot.index() >= slots && !struck.contains(*slot));
        match left.find(|(_, member)| member.superblock().is_ok()) {
            Some((slot, _)) => Err(Finding::Stays { slot }),
            None => Ok(()),
        }
    }
}

/// The members in slots that the array does not have yet.
pub(super) fn new_members(members: &Members, slots: Range<usize>) -> Vec<NewMember> {
    let new = |slot| NewMember {
        path: format!("new{slot}").into(),
        size: members.get(slot).expect("new members are there").size(),
        sector_size: Bytes(512),
        is_clear: false,
    };
    slots.map(slot_of).map(new).collect()
}

pub(super) fn slot_of(index: usize) -> MemberIndex {
    MemberIndex(u8::try_from(index).expect("at most 64 members"))
}

/// Gives the members logs that suit the shape, and are small, so that content is saved in several steps. Of a stopped
/// array nothing is in them.
fn give_logs(members: &mut Members, truth: &Superblock, target: &Target, random: &mut Random) {
    let mut size = *random.pick(&LOGS);
    if consistency_after(truth, target.level) == Consistency::Log {
        size = size.max(log_min(target).0);
    }
    if truth.consistency == Consistency::Log {
        // It may stay as it is.
        size = size.max(truth.areas.log.size.0);
    }
    let room = truth.areas.sums.offset.0 - truth.areas.log.offset.0;
    members.present().iter().for_each(|slot| give_log(members, slot, Bytes(size.min(room))));
}

/// Gives a member a log of that size.
pub(super) fn give_log(members: &mut Members, slot: MemberIndex, size: Bytes) {
    let member = members.get_mut(slot).expect("it is present");
    let Ok(mut own) = member.superblock() else { return };
    own.areas.log = Area { size, ..own.areas.log };
    let bytes = encode(&own);
    own.write_positions().into_iter().for_each(|at| member.write(at, Payload::Bytes(bytes.to_vec().into())));
    member.flush();
}

/// A disk that held something, which is no superblock.
pub(super) fn newcomer(truth: &Superblock, random: &mut Random) -> Member {
    let size = Bytes(truth.areas.member_size.0.max(MEMBER_MIN.0) + (random.below(3) << 20));
    let areas = Areas::new(size, Bytes(0), Integrity::None).expect("a member has room for its areas");
    let mut member = Member::zeroed(size);
    for area in [areas.bitmap, areas.bad_blocks, areas.log, Area { size: Bytes(1 << 20), ..areas.data }] {
        let mut bytes = vec![0; usize::try_from(area.size.0.min(64 << 10)).expect("small")];
        bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.bits().to_le_bytes());
        member.write(area.offset, Payload::Bytes(bytes.into()));
    }
    member.flush();
    member
}
