//! The members of a simulated array, and its log devices.

use std::path::PathBuf;

use uraid_io::array::{Candidate, Refusal, Verdict, judge};
use uraid_io::disk::{log_at, log_place};
use uraid_io::format::superblock::{LogIndex, LogSet, Superblock, SuperblockError};
use uraid_layout::{Bytes, MemberIndex, MemberSet};

use crate::member::{Member, Payload};

/// A sector of one of the members, by its byte offset from the start of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberSector {
    /// The member.
    pub member: MemberIndex,
    /// Where its first byte is.
    pub offset: Bytes,
}

/// A change of one member, from its begin to its end.
#[derive(Clone, Debug)]
pub enum Change {
    /// A write.
    Write {
        /// Where.
        place: MemberSector,
        /// What.
        payload: Payload,
    },
    /// A flush of everything that was written to the member.
    Flush {
        /// Which one.
        member: MemberIndex,
    },
}

/// Members in their slots; none where one is missing. A clone costs microseconds.
///
/// Log devices come along at their [places](log_place): they are no members, and whoever asks for members does not get
/// them.
#[derive(Clone, Debug)]
pub struct Members {
    slots: Vec<Option<Member>>,
    /// By number.
    logs: Vec<Option<Member>>,
}

impl Members {
    /// New members of zeros with these superblocks, in the slots that they name.
    ///
    /// # Panics
    /// When a superblock is unsound.
    #[must_use]
    pub fn new(superblocks: &[Superblock]) -> Self {
        let count = superblocks.iter().map(|superblock| superblock.slots.len()).max().unwrap_or_default();
        let mut slots = vec![None; count];
        for superblock in superblocks {
            slots[superblock.slot.index()] = Some(Member::formatted(superblock));
        }
        Self::of(slots)
    }

    /// Members in slot order.
    #[must_use]
    pub fn of(slots: Vec<Option<Member>>) -> Self {
        Self { slots, logs: Vec::new() }
    }

    /// The same members with these log devices, by number.
    #[must_use]
    pub(crate) fn with_logs(self, logs: Vec<Option<Member>>) -> Self {
        Self { logs, ..self }
    }

    /// The log devices that are there.
    #[must_use]
    pub(crate) fn present_logs(&self) -> LogSet {
        self.logs().map(|(log, _)| log).collect()
    }

    /// The log devices with their numbers.
    pub(crate) fn logs(&self) -> impl Iterator<Item = (LogIndex, &Member)> {
        (0u8..).zip(&self.logs).filter_map(|(log, device)| Some((LogIndex(log), device.as_ref()?)))
    }

    /// Members and log devices with their places.
    fn all(&self) -> impl Iterator<Item = (MemberIndex, &Member)> {
        self.iter().chain(self.logs().map(|(log, device)| (log_place(log), device)))
    }

    /// The number of slots.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slots that have a member.
    #[must_use]
    pub fn present(&self) -> MemberSet {
        self.iter().map(|(slot, _)| slot).collect()
    }

    /// The members with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (MemberIndex, &Member)> {
        (0u8..).zip(&self.slots).filter_map(|(slot, member)| Some((MemberIndex(slot), member.as_ref()?)))
    }

    /// A member, or the log device at a place.
    #[must_use]
    pub fn get(&self, place: MemberIndex) -> Option<&Member> {
        match log_at(place) {
            Some(log) => self.logs.get(usize::from(log.0))?.as_ref(),
            None => self.slots.get(place.index())?.as_ref(),
        }
    }

    /// The same, to change.
    #[must_use]
    pub fn get_mut(&mut self, place: MemberIndex) -> Option<&mut Member> {
        match log_at(place) {
            Some(log) => self.logs.get_mut(usize::from(log.0))?.as_mut(),
            None => self.slots.get_mut(place.index())?.as_mut(),
        }
    }

    /// Puts a member in or takes it out; the one that was there.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn replace(&mut self, slot: MemberIndex, member: Option<Member>) -> Option<Member> {
        std::mem::replace(&mut self.slots[slot.index()], member)
    }

    /// Makes room for so many members at least.
    pub(crate) fn extend_to(&mut self, len: usize) {
        self.slots.resize(self.slots.len().max(len), None);
    }

    /// Makes all members larger that are smaller than this.
    pub(crate) fn enlarge(&mut self, size: Bytes) {
        let smaller = self.slots.iter_mut().flatten().filter(|member| member.size() < size);
        smaller.for_each(|member| member.enlarge(size));
    }

    /// Has the media of all members give back what they hold.
    pub(crate) fn recuperate(&mut self) {
        self.slots.iter_mut().flatten().for_each(Member::recuperate);
    }

    /// Takes those away that are beyond the first `len` slots.
    pub(crate) fn split_off(&mut self, len: usize) -> Vec<Member> {
        self.slots.split_off(len.min(self.slots.len())).into_iter().flatten().collect()
    }

    /// Only the members of `kept`, and all log devices.
    #[must_use]
    pub fn only(&self, kept: MemberSet) -> Self {
        let keep = |(slot, member): (u8, &Option<Member>)| member.clone().filter(|_| kept.contains(MemberIndex(slot)));
        Self { slots: (0u8..).zip(&self.slots).map(keep).collect(), logs: self.logs.clone() }
    }

    /// Does a change; nothing where the member is missing.
    ///
    /// # Panics
    /// As [`Member::issue`].
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Write { place, payload } => {
                if let Some(member) = self.get_mut(place.member) {
                    member.write(place.offset, payload);
                }
            }
            Change::Flush { member } => self.get_mut(member).into_iter().for_each(Member::flush),
        }
    }

    /// The sectors of which a power cut may leave more than one content, and how many; see [`Member::unflushed`].
    pub fn unflushed(&self) -> impl Iterator<Item = (MemberSector, usize)> + '_ {
        self.all().flat_map(|(slot, member)| {
            member.unflushed().map(move |(offset, count)| (MemberSector { member: slot, offset }, count))
        })
    }

    /// What a power cut leaves; see [`Member::cut`].
    ///
    /// # Panics
    /// When a choice is not below the number of contents.
    #[must_use]
    pub fn cut(&self, mut choose: impl FnMut(MemberSector, usize) -> usize) -> Self {
        let mut cut = |place, member: &Option<Member>| {
            let choose = |offset, count| choose(MemberSector { member: place, offset }, count);
            member.as_ref().map(|member| member.cut(choose))
        };
        let slots = (0..).zip(&self.slots).map(|(slot, member)| cut(MemberIndex(slot), member)).collect();
        let logs = (0..).zip(&self.logs).map(|(log, device)| cut(log_place(LogIndex(log)), device)).collect();
        Self { slots, logs }
    }

    /// What the members' superblocks say.
    pub fn superblocks(&self) -> impl Iterator<Item = (MemberIndex, Result<Superblock, SuperblockError>)> {
        self.iter().map(|(slot, member)| (slot, member.superblock()))
    }

    /// The members as candidates for an array, in slot order; those without a superblock that counts are left out.
    #[must_use]
    pub fn candidates(&self) -> Vec<Candidate> {
        let named = |(slot, superblock): (MemberIndex, Result<Superblock, SuperblockError>)| {
            Some(Candidate { path: PathBuf::from(format!("member{slot}")), superblock: superblock.ok()? })
        };
        self.superblocks().filter_map(named).collect()
    }

    /// What they say, together. The array may have gone on without a member that was left out, and that member knew of
    /// a failure that the array did not: those who are `excused` for that are taken out.
    ///
    /// # Errors
    /// Where they contradict each other otherwise.
    pub(crate) fn judge_excusing(&mut self, excused: MemberSet) -> Result<Verdict, Refusal> {
        loop {
            let judged = judge(&self.candidates());
            let Err(Refusal::SplitBrain { first_slot, second_slot, .. }) = judged else { return judged };
            let Some(slot) = [second_slot, first_slot].into_iter().find(|&slot| excused.contains(slot)) else {
                return judged;
            };
            self.replace(slot, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uraid_random::Random;

    const SIZE: Bytes = Bytes(4 << 20);
    const SLOT: MemberIndex = MemberIndex(0);

    fn members() -> Members {
        Members::of(vec![Some(Member::zeroed(SIZE))])
    }

    fn bytes(value: u8, sectors: usize) -> Payload {
        Payload::Bytes(vec![value; sectors * 512].into())
    }

    fn write(members: &mut Members, offset: u64, value: u8, sectors: usize) {
        members.apply(Change::Write {
            place: MemberSector { member: SLOT, offset: Bytes(offset) },
            payload: bytes(value, sectors),
        });
    }

    /// What power cuts may leave of the sectors from the start on: every combination.
    fn outcomes(members: &Members, sectors: usize) -> Vec<Vec<u8>> {
        let counts: Vec<usize> = members.unflushed().map(|(_, count)| count).collect();
        let mut outcomes = Vec::new();
        for mut combination in 0..counts.iter().product() {
            let cut = members.cut(|_, count| {
                let choice = combination % count;
                combination /= count;
                choice
            });
            assert_eq!(cut.unflushed().count(), 0, "what a power cut leaves is durable");
            let member = cut.get(SLOT).expect("it was there");
            outcomes.push((0..sectors).map(|at| member.current().sector(Bytes(at as u64 * 512))[0]).collect());
        }
        outcomes.sort_unstable();
        outcomes
    }

    #[test]
    fn a_power_cut_leaves_any_of_the_versions_of_each_sector() {
        let mut members = members();
        write(&mut members, 0, 1, 2);
        write(&mut members, 0, 2, 1);
        let expected: Vec<Vec<u8>> = (0..3).flat_map(|a| [0, 1].map(|b| vec![a, b])).collect();
        assert_eq!(outcomes(&members, 2), expected);
        assert_eq!(members.get(SLOT).expect("there").current().sector(Bytes(0))[0], 2, "reads see the last");
        members.apply(Change::Flush { member: SLOT });
        assert_eq!(outcomes(&members, 2), [[2, 1]]);
    }

    #[test]
    fn a_flush_covers_what_had_completed_when_it_began_and_nothing_else() {
        let mut members = members();
        let member = members.get_mut(SLOT).expect("there");
        member.write(Bytes(0), bytes(1, 1));
        let late = member.issue(Bytes(512), bytes(2, 1));
        let mark = member.flush_begins();
        member.complete(late);
        member.write(Bytes(1024), bytes(3, 1));
        member.flush_ends(mark);
        assert_eq!(outcomes(&members, 3), [[1, 0, 0], [1, 0, 3], [1, 2, 0], [1, 2, 3]]);
    }

    #[test]
    fn a_write_under_way_may_land_over_a_later_one_that_is_durable() {
        let mut members = members();
        let member = members.get_mut(SLOT).expect("there");
        let early = member.issue(Bytes(0), bytes(1, 1));
        member.write(Bytes(0), bytes(2, 1));
        member.flush();
        assert_eq!(outcomes(&members, 1), [[1], [2]]);
        members.get_mut(SLOT).expect("there").complete(early);
        assert_eq!(members.get(SLOT).expect("there").current().sector(Bytes(0))[0], 1);
    }

    #[test]
    fn what_a_failed_flush_was_to_cover_stays_in_doubt() {
        let mut members = members();
        let member = members.get_mut(SLOT).expect("there");
        member.write(Bytes(0), bytes(1, 1));
        member.flush_fails(member.flush_begins());
        member.flush();
        assert_eq!(outcomes(&members, 1), [[0], [1]]);
        write(&mut members, 0, 2, 1);
        members.apply(Change::Flush { member: SLOT });
        assert_eq!(outcomes(&members, 1), [[2]]);
    }

    #[test]
    fn what_is_written_after_a_write_that_failed_replaces_it() {
        let mut members = members();
        let member = members.get_mut(SLOT).expect("there");
        let failed = member.issue(Bytes(0), bytes(1, 2));
        member.abandon(failed);
        member.flush();
        assert_eq!(outcomes(&members, 1), [[0], [0], [1], [1]], "any part of it may be there");
        write(&mut members, 0, 2, 1);
        members.apply(Change::Flush { member: SLOT });
        assert_eq!(outcomes(&members, 2), [[2, 0], [2, 1]]);
    }

    #[test]
    fn a_killed_program_leaves_what_took_effect_and_a_later_flush_covers_it() {
        let mut members = members();
        let member = members.get_mut(SLOT).expect("there");
        let _ = member.issue(Bytes(0), bytes(1, 2));
        member.kill(|offset| offset == Bytes(512));
        assert_eq!(outcomes(&members, 2), [[0, 0], [0, 1]]);
        members.get_mut(SLOT).expect("there").flush();
        assert_eq!(outcomes(&members, 2), [[0, 1]]);
    }

    #[test]
    fn a_stray_write_may_be_flushed_over_one_that_is_under_way() {
        let mut members = members();
        let member = members.get_mut(MemberIndex(0)).expect("there");
        let under_way = member.issue(Bytes(0), bytes(1, 2));
        member.take_effect(under_way, 0..512);
        member.stray(Bytes(0), bytes(2, 1));
        member.flush();
        member.complete(under_way);
        let mut content = [0; 1024];
        member.read(Bytes(0), &mut content);
        assert!(content[..512] == [2; 512] && content[512..] == [1; 512], "what is under way takes effect once");
        assert!(member.is_rotten(Bytes(0), Bytes(512)) && !member.is_rotten(Bytes(512), Bytes(512)));
    }

    #[test]
    fn a_stray_write_that_brings_what_belongs_there_does_no_harm() {
        let mut members = members();
        let member = members.get_mut(MemberIndex(0)).expect("there");
        let lost = member.issue(Bytes(0), bytes(1, 2));
        member.lose(lost);
        assert!(member.is_rotten(Bytes(0), Bytes(512)) && member.is_rotten(Bytes(512), Bytes(512)));
        member.stray(Bytes(512), bytes(1, 1));
        assert!(member.is_rotten(Bytes(0), Bytes(512)) && !member.is_rotten(Bytes(512), Bytes(512)));
    }

    #[test]
    fn sectors_that_are_written_as_they_were_are_no_choice() {
        let mut members = members();
        write(&mut members, 0, 0, 4);
        assert_eq!(members.unflushed().count(), 0);
        write(&mut members, 0, 7, 1);
        write(&mut members, 0, 7, 1);
        assert_eq!(members.unflushed().map(|(_, count)| count).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn log_devices_come_along_and_are_no_members() {
        let place = log_place(LogIndex(1));
        let mut members = members().with_logs(vec![None, Some(Member::zeroed(SIZE))]);
        assert_eq!((members.present(), members.iter().count()), (MemberSet::EMPTY.with(SLOT), 1));
        assert_eq!(members.present_logs(), LogSet::EMPTY.with(LogIndex(1)));
        members.get_mut(place).expect("there").write(Bytes(0), bytes(1, 1));
        assert_eq!(members.unflushed().map(|(at, count)| (at.member, count)).collect::<Vec<_>>(), [(place, 2)]);
        for (choice, expected) in [(0, 0), (1, 1)] {
            let left = members.only(MemberSet::EMPTY).cut(|_, _| choice);
            assert_eq!(left.get(place).expect("there").current().sector(Bytes(0))[0], expected);
            assert!(left.get(SLOT).is_none() && left.get(log_place(LogIndex(0))).is_none());
        }
    }

    #[test]
    fn a_clone_is_a_member_of_its_own() {
        let mut random = Random::new(1);
        let mut members = members();
        let mut plain = vec![0_u8; 64 << 10];
        for _ in 0..200 {
            let clone = members.clone();
            let before = clone.get(SLOT).expect("there").current().clone();
            let (sector, value) = (random.index(128), random.below(4) as u8);
            write(&mut members, sector as u64 * 512, value, 1);
            let same = plain[sector * 512] == value;
            plain[sector * 512..][..512].fill(value);
            let mut now = vec![0; plain.len()];
            members.get(SLOT).expect("there").read(Bytes(0), &mut now);
            assert!(now == plain, "the image holds what was written");
            assert!(*clone.get(SLOT).expect("there").current() == before, "the clone has not changed");
            assert_eq!(*members.get(SLOT).expect("there").current() == before, same);
        }
    }
}
