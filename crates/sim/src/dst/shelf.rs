//! The members between two lives of an array, and what is found on opening it: in another order, incomplete, stale,
//! cloned, foreign.

use std::path::PathBuf;

use uraid_io::array::{Candidate, OpenError, OpenOptions, Refusal, Verdict, check_presence, judge};
use uraid_io::format::superblock::{Consistency, SlotState, Superblock};
use uraid_io::member::Access;
use uraid_layout::{Geometry, MemberIndex, MemberSet};

use super::finding::Finding;
use super::found::Found;
use super::report::Rotten;
use super::roster::Roster;
use super::rot::rot_heads;
use super::scenario::uuid;
use super::shapes::{survived, tolerance};
use crate::member::Member;
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// Where the members are while no engine has them.
#[derive(Debug)]
pub(super) struct Shelf {
    members: Members,
    /// Copies of members from earlier lives.
    old: Vec<(MemberIndex, Member)>,
    /// Members that failed, were left out or were replaced at some time: the array may have gone on without them.
    excused: MemberSet,
    /// Members that were joining when a life ended: they may have no superblock yet.
    unwritten: MemberSet,
    /// Whether the array was last closed.
    was_closed: bool,
}

/// Candidates, the verdict on them, and who was accepted.
struct Gathered {
    found: Found,
    /// By slot: which of the administrator's was accepted.
    loose: Vec<(MemberIndex, usize)>,
}

impl Shelf {
    pub(super) fn new(superblocks: &[Superblock]) -> Self {
        Self {
            members: Members::new(superblocks),
            old: Vec::new(),
            excused: MemberSet::EMPTY,
            unwritten: MemberSet::EMPTY,
            was_closed: true,
        }
    }

    /// Takes members back after a life: those that `members` has, of which some were `struck` by faults.
    pub(super) fn put(&mut self, members: &Members, struck: MemberSet, was_closed: bool, random: &mut Random) {
        for slot in members.present().iter() {
            self.members.replace(slot, members.get(slot).cloned());
            if was_closed && random.chance(1, 8) {
                self.old.extend(members.get(slot).cloned().map(|member| (slot, member)));
            }
        }
        self.excused = self.excused.union(struck);
        self.was_closed = was_closed;
    }

    /// Damages what the members have beside content: see [`rot_heads`].
    pub(super) fn rot(&mut self, random: &mut Random, trace: &Trace) -> Result<Rotten, Finding> {
        let all = self.members.present();
        let settled = if self.was_closed { all.minus(self.excused) } else { MemberSet::EMPTY };
        rot_heads(&mut self.members, settled, random, trace)
    }

    /// Leaves a member out from now on, which the array can't be opened with.
    pub(super) fn leave_out(&mut self, slot: MemberIndex) {
        self.members.replace(slot, None);
        self.excused = self.excused.with(slot);
    }

    /// Takes note of what was done to the members in a life that `found` some, and to those that are left in their
    /// slots. Of these faults `struck` some: whoever joined in that life may have lost the superblock with
    /// which it did. `was_open`: the array was opened, and relies on nothing that the members had not durably
    /// then.
    pub(super) fn administered(
        &mut self,
        by: &Roster,
        struck: MemberSet,
        found: MemberSet,
        left: MemberSet,
        was_open: bool,
    ) {
        // When a reshape is over there may be fewer slots than were found.
        let slots = self.members.len();
        for slot in found.minus(left).iter().filter(|slot| slot.index() < slots) {
            self.members.replace(slot, None);
        }
        self.excused = self.excused.minus(by.settled).union(by.unsettled);
        let unwritten = by.unsettled.union(by.settled.minus(by.settled.minus(struck)));
        self.unwritten = if was_open { unwritten } else { self.unwritten.union(unwritten) };
    }

    /// The array as it was closed, and all that it accepts; none where it was not, or too few are left.
    ///
    /// # Errors
    /// When it is not as it was closed.
    pub(super) fn stopped(
        &mut self,
        roster: Option<&mut Roster>,
        random: &mut Random,
        trace: &Trace,
    ) -> Result<Option<Found>, Finding> {
        if !self.was_closed {
            return Ok(None);
        }
        if let Some(roster) = roster {
            self.decide(roster, trace);
            self.take_back(roster);
        }
        let verdict = self.judge_all()?;
        let unexcused = verdict.missing().minus(self.excused);
        if !unexcused.is_empty() {
            return Err(Finding::SetAside { members: unexcused });
        }
        if !verdict.superblock.is_clean || !verdict.is_readable() {
            return Ok(None);
        }
        self.gather(MemberSet::EMPTY, &[], random).map(|gathered| Some(gathered.found))
    }

    /// Takes the members of an array back that has got so many slots while it was stopped; of these `failed` some. Of
    /// others only those are kept that might return to it: that have a slot, and what else they `fit`.
    pub(super) fn altered(&mut self, members: &Members, failed: MemberSet, fits: impl Fn(&Member) -> bool) {
        let slots = members.len();
        self.members.split_off(slots);
        self.members.extend_to(slots);
        for slot in members.present().iter() {
            self.members.replace(slot, members.get(slot).cloned());
        }
        for slot in self.members.present().minus(members.present()).iter() {
            if !self.members.get(slot).is_some_and(&fits) {
                self.members.replace(slot, None);
            }
        }
        // There may be other members in these slots some time.
        self.old.retain(|(_, member)| fits(member));
        let has_slot = |slot: MemberIndex| slot.index() < slots;
        self.excused = self.excused.union(failed).iter().filter(|&slot| has_slot(slot)).collect();
        self.unwritten = MemberSet::EMPTY;
    }

    /// Takes note that a change of the stopped array was cut off: of superblocks one copy may be all that there is.
    pub(super) fn disturbed(&mut self) {
        self.was_closed = false;
    }

    /// What counts of all that the members say, and those.
    ///
    /// # Errors
    /// When they do not agree.
    pub(super) fn judged(&mut self) -> Result<(Superblock, Members), Finding> {
        self.drop_unwritten();
        let verdict = self.judge_all()?;
        Ok((verdict.superblock, self.members.clone()))
    }

    /// Makes room for new members: the array has so many slots, or may have.
    pub(super) fn make_room(&mut self, slots: usize) {
        self.members.extend_to(slots);
    }

    /// Takes note that a reshape has begun without a stop, in which the array has so many slots; `fits` as above.
    pub(super) fn begun(&mut self, slots: usize, fits: impl Fn(&Member) -> bool) {
        self.make_room(slots);
        self.old.retain(|(_, member)| fits(member));
    }

    /// Takes note that a reshape is over, after which the array has so many slots; `fits` as above.
    pub(super) fn reshaped(&mut self, slots: usize, fits: impl Fn(&Member) -> bool) {
        self.members.split_off(slots);
        self.old.retain(|(_, member)| fits(member));
        let has_slot = |slot: &MemberIndex| slot.index() < slots;
        self.excused = self.excused.iter().filter(has_slot).collect();
        self.unwritten = self.unwritten.iter().filter(has_slot).collect();
    }

    /// Hands the administrator the members that are not part of the array now.
    pub(super) fn hand_out(&mut self, missing: MemberSet, to: &mut Roster) {
        missing.iter().for_each(|slot| to.keep(self.members.replace(slot, None)));
        to.copies = self.old.iter().map(|(_, copy)| copy.clone()).collect();
    }

    /// Decides who of two has a slot, of which one was being copied to the other: whom the members accept. Either may
    /// be lost for a while where the other will do.
    fn decide(&mut self, roster: &mut Roster, trace: &Trace) {
        let Some(contender) = roster.contender.take() else { return };
        let own = contender.superblock().expect("only such contend");
        let mut candidates = self.members.candidates();
        let is_lost = roster.random.chance(1, 4);
        let alone = judge(&candidates);
        let will_do = alone.is_ok_and(|verdict| !verdict.missing().contains(own.slot));
        candidates.push(Candidate { path: PathBuf::from("contender"), superblock: own.clone() });
        let accepts = |verdict: Verdict| verdict.slots[own.slot.index()] == Some(candidates.len() - 1);
        let is_accepted = judge(&candidates).is_ok_and(accepts);
        trace.note(format_args!("the copy contends for slot {}: accepted {is_accepted}, lost {is_lost}", own.slot));
        match is_accepted {
            _ if will_do && is_lost => roster.withheld = Some(contender),
            true => {
                // As in `admit`: after a kill the superblock with which it was accepted may not be durable.
                self.unwritten = self.unwritten.with(own.slot);
                roster.keep(self.members.replace(own.slot, Some(contender)));
            }
            false => roster.keep(Some(contender)),
        }
    }

    /// Takes back members that are in no slot, unless the array is known to do without them.
    fn take_back(&mut self, from: &mut Roster) {
        self.drop_unwritten();
        for member in std::mem::take(&mut from.loose) {
            let own = member.superblock().expect("only such are kept");
            if self.members.get(own.slot).is_none() && !from.barred.contains(&own.member) {
                // As in `admit`: after a kill its superblock may not be durable.
                self.unwritten = self.unwritten.with(own.slot);
                self.members.replace(own.slot, Some(member));
            } else {
                from.loose.push(member);
            }
        }
    }

    /// Takes those away that were joining, and have no superblock yet.
    fn drop_unwritten(&mut self) {
        for slot in self.unwritten.iter() {
            if self.members.get(slot).is_some_and(|member| member.superblock().is_err()) {
                self.members.replace(slot, None);
            }
        }
    }

    /// What an operator comes with to open the array. None: it is rightly refused, and no way is left to go on.
    pub(super) fn find(
        &mut self,
        shapes: &[Geometry],
        mut roster: Option<&mut Roster>,
        random: &mut Random,
        trace: &Trace,
    ) -> Result<Option<Found>, Finding> {
        if let Some(roster) = roster.as_deref_mut() {
            self.decide(roster, trace);
            self.take_back(roster);
        }
        let mut verdict = self.judge_all()?;
        // A member that was left out may know of a round that the others never heard of.
        if self.was_closed && self.excused.is_empty() && !verdict.superblock.is_clean {
            return Err(Finding::NotClean);
        }
        let unexcused = verdict.missing().minus(self.excused);
        if !unexcused.is_empty() {
            return Err(Finding::SetAside { members: unexcused });
        }
        let base = verdict.missing();
        if !verdict.is_readable() {
            trace.note(format_args!("too few members are left: {:?} are missing or not rebuilt", verdict.lost()));
            return Ok(None);
        }
        let may_miss = verdict.superblock.is_clean || survives(verdict.superblock.consistency);
        let mut out = MemberSet::EMPTY;
        if random.chance(1, 4) {
            out = *random.pick(&survived(shapes, verdict.lost()));
            if !may_miss && !out.is_empty() {
                self.expect_refusal(out, random)?;
                out = MemberSet::EMPTY;
            }
        }
        let mut replaced = MemberSet::EMPTY;
        if may_miss && random.chance(1, 4) {
            replaced = self.replace_by_old(out, &verdict, shapes, random, trace);
        }
        self.excused = self.excused.union(out).union(replaced);
        let loose = roster.as_ref().map_or(&[][..], |roster| &roster.loose);
        // Without the only ones that know that a reshape has begun it is another array.
        let has_begun = verdict.superblock.reshape.is_some();
        let forgets = |verdict: &Verdict| has_begun && verdict.superblock.reshape.is_none();
        let Gathered { found, loose } = match self.gather(out, loose, random) {
            Ok(gathered) if gathered.found.verdict.is_readable() && !forgets(&gathered.found.verdict) => gathered,
            Ok(_) | Err(Finding::Refused { .. }) => {
                // Who was left out is the one to tell who is right, or has the rest.
                out = MemberSet::EMPTY;
                self.gather(out, &[], random)?
            }
            Err(finding) => return Err(finding),
        };
        verdict = found.verdict.clone();
        let missing = verdict.missing();
        trace.note(format_args!(
            "opening without {missing:?}, to be rebuilt: {:?}, clean: {}",
            verdict.rebuilding(),
            verdict.superblock.is_clean
        ));
        let back: MemberSet = loose.iter().map(|&(slot, _)| slot).collect();
        let base = if out.union(replaced).is_empty() { base } else { MemberSet::EMPTY };
        // Those who know that a reshape has ended say how many slots there are.
        let has_slot = |slot: &MemberIndex| slot.index() < verdict.slots.len();
        let wrong = out.union(replaced).union(base).minus(missing).minus(back);
        let wrong: MemberSet = wrong.iter().filter(has_slot).collect();
        if !wrong.is_empty() {
            return Err(Finding::Accepted { members: wrong });
        }
        if let Some(roster) = roster {
            self.admit(&found, &loose, roster)?;
        }
        self.expect_strangers_refused(&found.candidates, random)?;
        expect_split_brain_refused(&found.candidates, &verdict, random)?;
        let lost = verdict.lost();
        let is_refused = is_refused(&verdict);
        match check_presence(&verdict, &found.candidates, OPTIONS) {
            Ok(()) if is_refused => Err(Finding::NotRefused { missing: lost }),
            Ok(()) => Ok(Some(found)),
            Err(OpenError::DirtyDegraded { .. }) if is_refused => {
                trace.note(format_args!("refused: not stopped cleanly, and incomplete"));
                Ok(None)
            }
            Err(error) => Err(Finding::Refused { error: error.to_string() }),
        }
    }

    /// Puts members that were accepted into their slots; none of them may be one that the array is known to do without.
    fn admit(&mut self, found: &Found, loose: &[(MemberIndex, usize)], roster: &mut Roster) -> Result<(), Finding> {
        let accepted = found.verdict.slots.iter().flatten().map(|&index| &found.candidates[index].superblock);
        let is_barred = |own: &&Superblock| roster.barred.contains(&own.member);
        let wrong: MemberSet = accepted.filter(is_barred).map(|own| own.slot).collect();
        if !wrong.is_empty() {
            return Err(Finding::Accepted { members: wrong });
        }
        let mut loose = loose.to_vec();
        loose.sort_by_key(|&(_, index)| std::cmp::Reverse(index));
        for (slot, index) in loose {
            let member = roster.loose.swap_remove(index);
            let other = self.members.replace(slot, Some(member));
            roster.keep(other);
            // After a kill its superblock may be one that is not durable: a power cut before the array is open takes
            // it.
            self.unwritten = self.unwritten.with(slot);
        }
        Ok(())
    }

    /// How many slots the array has: when a reshape has ended, fewer than it had, and who was in the others may have no
    /// superblock any more.
    fn slots(&self) -> usize {
        let verdict = judge(&self.members.candidates());
        verdict.map_or(self.members.len(), |verdict| verdict.slots.len())
    }

    /// The verdict on everything there is.
    fn judge_all(&mut self) -> Result<Verdict, Finding> {
        let slots = self.slots();
        for (member, superblock) in self.members.superblocks().filter(|(slot, _)| slot.index() < slots) {
            superblock.map_err(|source| Finding::NoSuperblock { member, source })?;
        }
        let verdict = self.members.judge_excusing(self.excused);
        verdict.map_err(|error| Finding::Refused { error: error.to_string() })
    }

    /// Lets an old copy take the place of a member that can be done without: which one.
    fn replace_by_old(
        &mut self,
        out: MemberSet,
        verdict: &Verdict,
        shapes: &[Geometry],
        random: &mut Random,
        trace: &Trace,
    ) -> MemberSet {
        if self.old.is_empty() {
            return MemberSet::EMPTY;
        }
        let (slot, old) = self.old.swap_remove(random.index(self.old.len()));
        // Stale even if only members that the last round did not reach are there.
        let is_stale = old.superblock().is_ok_and(|old| old.epoch.0 + 2 < verdict.superblock.epoch.0);
        let missing = verdict.lost().union(out).with(slot);
        // Who is replaced may be the only one that knows another to be whole.
        let mut others = self.members.candidates();
        others.retain(|other| !out.with(slot).contains(other.superblock.slot));
        let has_begun = verdict.superblock.reshape.is_some();
        let is_enough = judge(&others)
            .is_ok_and(|verdict| verdict.is_readable() && has_begun == verdict.superblock.reshape.is_some());
        // After a reshape there may be fewer slots than it is from.
        let has_slot = slot.index() < self.slots();
        if !has_slot || !is_stale || missing.len() > tolerance(shapes) || !is_enough {
            return MemberSet::EMPTY;
        }
        trace.note(format_args!("an old copy takes the place of member {slot}"));
        self.members.replace(slot, Some(old));
        MemberSet::EMPTY.with(slot)
    }

    /// All but some of the members, and those that are in no slot, in any order.
    fn gather(&self, out: MemberSet, loose: &[Member], random: &mut Random) -> Result<Gathered, Finding> {
        let slots = self.slots();
        let counts = |slot: MemberIndex, member: &Member| slot.index() < slots || member.superblock().is_ok();
        let in_slots = self.members.iter().filter(|&(slot, member)| !out.contains(slot) && counts(slot, member));
        let in_slots = in_slots.map(|(_, member)| (None, member));
        let others = loose.iter().enumerate().map(|(index, member)| (Some(index), member));
        let mut named: Vec<(Option<usize>, &Member)> = in_slots.chain(others).collect();
        random.shuffle(&mut named);
        let mut candidates = Vec::new();
        for (_, member) in &named {
            let no_superblock = |source| Finding::NoSuperblock { member: MemberIndex(0), source };
            let superblock = member.superblock().map_err(no_superblock)?;
            candidates.push(Candidate { path: PathBuf::from(format!("member{}", superblock.slot)), superblock });
        }
        let verdict = judge(&candidates).map_err(|error| Finding::Refused { error: error.to_string() })?;
        let accepted = verdict.slots.iter().map(|index| index.map(|index| named[index].1.clone()));
        let members = Members::of(accepted.collect());
        let slots = (0..).map(MemberIndex).zip(&verdict.slots);
        let loose = slots.filter_map(|(slot, index)| Some((slot, named[(*index)?].0?))).collect();
        Ok(Gathered { found: Found { candidates, verdict, members }, loose })
    }

    /// Without `out` the array must not be opened.
    fn expect_refusal(&self, out: MemberSet, random: &mut Random) -> Result<(), Finding> {
        let Gathered { found, .. } = self.gather(out, &[], random)?;
        if found.verdict.superblock.is_clean {
            // The round that marks the members dirty did not reach those that are left: nothing was written either.
            return Ok(());
        }
        match check_presence(&found.verdict, &found.candidates, OPTIONS) {
            Err(OpenError::DirtyDegraded { .. } | OpenError::TooFew { .. } | OpenError::TooFewBetween { .. }) => Ok(()),
            Ok(()) if !is_refused(&found.verdict) => Ok(()),
            Err(error) => Err(Finding::Refused { error: error.to_string() }),
            Ok(()) => Err(Finding::NotRefused { missing: out }),
        }
    }

    /// A member of another array, or a copy of one that is there, must not be accepted.
    fn expect_strangers_refused(&self, candidates: &[Candidate], random: &mut Random) -> Result<(), Finding> {
        let mut candidates = candidates.to_vec();
        let mut stranger = random.pick(&candidates).clone();
        stranger.path.push("copy");
        let is_foreign = random.chance(1, 2);
        if is_foreign {
            stranger.superblock.array = uuid(random);
        }
        candidates.insert(random.index(candidates.len() + 1), stranger);
        match judge(&candidates) {
            Err(Refusal::Foreign { .. }) if is_foreign => Ok(()),
            Err(Refusal::Clone { .. }) if !is_foreign => Ok(()),
            Err(error) => Err(Finding::Refused { error: error.to_string() }),
            Ok(_) => Err(Finding::Stranger),
        }
    }
}

/// Two sides that each went on without the other must not be opened together.
fn expect_split_brain_refused(candidates: &[Candidate], verdict: &Verdict, random: &mut Random) -> Result<(), Finding> {
    let accepted: Vec<usize> = verdict.slots.iter().flatten().copied().collect();
    if accepted.len() < 2 {
        return Ok(());
    }
    let other = accepted[random.index(accepted.len())];
    let rest = |index: &usize| *index != other;
    let one = accepted.iter().copied().find(rest).expect("there are two");
    let [one_slot, other_slot] = [one, other].map(|index| candidates[index].superblock.slot);
    let without = |index: usize, epochs: u64, gone: MemberIndex| {
        let Candidate { path, superblock: Superblock { member, slot, areas, .. } } = candidates[index].clone();
        let mut superblock = Superblock { member, slot, areas, ..verdict.superblock.clone() };
        superblock.epoch.0 += epochs;
        superblock.slots[gone.index()].state = SlotState::Failed;
        Candidate { path, superblock }
    };
    let mut sides: Vec<Candidate> =
        accepted.iter().filter(|index| rest(index)).map(|&index| without(index, 5, other_slot)).collect();
    sides.insert(random.index(sides.len() + 1), without(other, 3, one_slot));
    match judge(&sides) {
        Err(Refusal::SplitBrain { .. }) => Ok(()),
        Err(error) => Err(Finding::Refused { error: error.to_string() }),
        Ok(_) => Err(Finding::Stranger),
    }
}

/// Degraded arrays are opened, and nothing is forced.
pub(super) const OPTIONS: OpenOptions = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: false };

/// Whether an array is not opened: it was not stopped cleanly, and nothing tells what the rest has of the writes that
/// were under way. Copies have all of it where whoever is lost was lost before.
fn is_refused(verdict: &Verdict) -> bool {
    let is_mirrored = verdict.geometry.spec().level.is_mirrored();
    let was_known = is_mirrored && verdict.newly_missing().is_empty();
    let is_unsure = !verdict.superblock.is_clean && !verdict.lost().is_empty() && !was_known;
    is_unsure && !survives(verdict.superblock.consistency)
}

/// Whether an array that was not stopped cleanly can be opened without some of its members, whatever they hold.
fn survives(consistency: Consistency) -> bool {
    match consistency {
        Consistency::Log => true,
        Consistency::None | Consistency::Bitmap => false,
    }
}
