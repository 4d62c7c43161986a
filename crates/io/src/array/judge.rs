//! Which members make the array up: a verdict from their superblocks alone.
//!
//! Slots come from the superblocks, never from the order in which members are named. The newest superblock's table says
//! who belongs; a member that it lists as active or as being rebuilt is accepted if it is at most one epoch behind,
//! since a round of superblock writes may have been cut off and no write is done before a round ends. Everybody else is
//! set aside, with the reason. What is being rebuilt is written, but counts as lost for what the level survives.
//! Contradictions are refused; nothing is guessed.

use std::cmp::Ordering;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Geometry, GeometryError, MemberIndex, MemberSet, Spec};
use uuid::Uuid;

use crate::format::Epoch;
use crate::format::superblock::{LogSet, Revision, SlotEntry, SlotState, Superblock};

/// A member and what it says.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Where it is.
    pub path: PathBuf,
    /// Its newest valid superblock.
    pub superblock: Superblock,
}

/// What the candidates come to.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The superblock that holds.
    pub superblock: Superblock,
    /// The array's geometry.
    pub geometry: Geometry,
    /// For each slot the accepted candidate's index.
    pub slots: Vec<Option<usize>>,
    /// Candidates that are not part of the array now.
    pub set_aside: Vec<(usize, SetAside)>,
    /// The slots whose members are accepted although the array went on without them: see
    /// [`accept_stale`](super::accept_stale).
    pub stale: MemberSet,
    /// Log devices that should be there and are not. That is not for superblocks to say: at first none.
    pub lost_logs: LogSet,
}

/// Why a candidate is not part of the array now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SetAside {
    /// The array went on without it.
    #[error("the array recorded it as failed and continued without it")]
    Failed,
    /// The array has no slot for it.
    #[error(
        "it is no member any more: it left the array in a reshape, or was to join in one that went back or never began"
    )]
    Left,
    /// Its state is from before the array's last changes.
    #[error("it is stale: its epoch is {}, the array's is {}", epoch.0, newest.0)]
    Stale {
        /// Its epoch.
        epoch: Epoch,
        /// The array's.
        newest: Epoch,
    },
    /// It lacks what others know to have been on it.
    #[error(
        "it is an older copy of this member: the others know of more that was durable on it. Start the array without \
         it, with --degraded, and add it then"
    )]
    Older,
    /// Another member has taken its slot.
    #[error("its slot now belongs to member {owner}")]
    Replaced {
        /// Who has the slot.
        owner: Uuid,
    },
    /// It is a log device that failed.
    #[error("the array recorded this log device as failed, so it may lack records")]
    LogFailed,
    /// It is a log device from before the array was used last.
    #[error(
        "it has none of what the array wrote since it was last stopped: it is an older copy of this log device, or was \
         emptied"
    )]
    LogOld,
    /// It is a log device that the array does not have any more.
    #[error("it is no log device of this array any more")]
    LogLeft,
    /// There is no superblock on it.
    #[error("it has no superblock: it was never a member of an array, left it in a reshape, or was wiped")]
    Blank,
    /// There is none that is whole.
    #[error("every copy of its superblock is damaged")]
    Damaged,
    /// It lost its end.
    #[error("it was truncated: it had {expected} bytes as a member and has {size} now")]
    Truncated {
        /// Its size.
        size: Bytes,
        /// What its superblock says.
        expected: Bytes,
    },
    /// Nobody knows whose member it is: it hangs.
    #[error("it did not {action} in time")]
    Silent {
        /// What was being done.
        action: &'static str,
    },
    /// Nobody knows whose member it is: it can't be read.
    #[error("can't {action}: {}", std::io::Error::from(*errno))]
    Unreadable {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Why the candidates are no array.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Nothing to judge.
    #[error("no members were named")]
    NoMembers,
    /// Members of different arrays.
    #[error(
        "{first} belongs to array {array} and {second} to array {other}; name the members of one array",
        first = first.display(), second = second.display()
    )]
    Foreign {
        /// The first member named.
        first: PathBuf,
        /// Its array.
        array: Uuid,
        /// The stranger.
        second: PathBuf,
        /// The stranger's array.
        other: Uuid,
    },
    /// The same member twice, or a copy of it.
    #[error(
        "{first} and {second} both claim to be member {member} in slot {slot}: one is a copy; name only the one in use",
        first = first.display(), second = second.display()
    )]
    Clone {
        /// One of them.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// Who they say they are.
        member: Uuid,
        /// The slot.
        slot: MemberIndex,
    },
    /// Members that describe different geometries.
    #[error(
        "{first} and {second} describe array {array} differently; one of them was not written by this array's last run",
        first = first.display(), second = second.display()
    )]
    Contradiction {
        /// One of them.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// The array.
        array: Uuid,
    },
    /// Members of two copies of an array, each of which was used.
    #[error(
        "{first} and {second} are of two copies of array {array}, and each was used without the other: what the array \
         has would be a mixture. Name the members of one copy only, with --degraded where it lacks some",
        first = first.display(), second = second.display()
    )]
    Diverged {
        /// One of them.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// The array.
        array: Uuid,
    },
    /// Two halves went on without each other.
    #[error(
        "split brain: {first} says that member {second_slot} failed, and {second} says that member {first_slot} \
         failed; each may hold writes that the other lacks. Decide which to keep and name only its side, with \
         --degraded",
        first = first.display(), second = second.display()
    )]
    SplitBrain {
        /// One side.
        first: PathBuf,
        /// Its slot.
        first_slot: MemberIndex,
        /// The other side.
        second: PathBuf,
        /// Its slot.
        second_slot: MemberIndex,
    },
    /// The superblocks describe no possible array.
    #[error("{path}: the superblock describes an impossible array", path = path.display())]
    Impossible {
        /// The member.
        path: PathBuf,
        /// What is impossible.
        source: GeometryError,
    },
}

/// Judges the candidates.
///
/// # Errors
/// A [`Refusal`] where they contradict each other. Missing members are no refusal: the caller decides on
/// [`Verdict::missing`].
pub fn judge(candidates: &[Candidate]) -> Result<Verdict, Refusal> {
    let newest = candidates.iter().max_by_key(|candidate| rank(candidates, &candidate.superblock));
    let newest = newest.ok_or(Refusal::NoMembers)?;
    refuse_strangers(candidates)?;
    let superblock = &newest.superblock;
    let mut slots: Vec<Option<usize>> = vec![None; superblock.slots.len()];
    let mut set_aside = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        match aside(superblock, &candidate.superblock) {
            Some(reason) => set_aside.push((index, reason)),
            None => slots[candidate.superblock.slot.index()] = Some(index),
        }
    }
    let accepted = || slots.iter().flatten().map(|&index| &candidates[index]);
    let newest_path = || newest.path.clone();
    for candidate in accepted() {
        let (newest, behind) = (superblock, &candidate.superblock);
        if behind.spec != newest.spec && !grows(newest, behind) && !reshapes(newest, behind) {
            let (first, second) = (newest_path(), candidate.path.clone());
            return Err(Refusal::Contradiction { first, second, array: superblock.array });
        }
        if has_diverged(newest, behind) {
            let (first, second) = (newest_path(), candidate.path.clone());
            return Err(Refusal::Diverged { first, second, array: superblock.array });
        }
    }
    for &(index, _) in &set_aside {
        let outsider = &candidates[index];
        // What only a round says that never ended counts for nothing.
        let is_void = |slot: MemberIndex| {
            let since = outsider.superblock.slots.get(slot.index()).map(|entry| entry.since);
            since == Some(outsider.superblock.epoch) && is_unfinished(candidates, &outsider.superblock)
        };
        let went_on = |other: &&Candidate| {
            let slot = other.superblock.slot;
            contradicts(superblock, &outsider.superblock, slot) && !is_void(slot)
        };
        let rival = Some(newest).filter(|_| has_rival(superblock, &outsider.superblock));
        if let Some(other) = accepted().find(went_on).or(rival).filter(|_| !planted!(SplitBrainAccepted)) {
            return Err(Refusal::SplitBrain {
                first: other.path.clone(),
                first_slot: other.superblock.slot,
                second: outsider.path.clone(),
                second_slot: outsider.superblock.slot,
            });
        }
    }
    let geometry =
        Geometry::new(superblock.spec).map_err(|source| Refusal::Impossible { path: newest.path.clone(), source })?;
    Ok(Verdict {
        superblock: superblock.clone(),
        geometry,
        slots,
        set_aside,
        stale: MemberSet::EMPTY,
        lost_logs: LogSet::EMPTY,
    })
}

impl Verdict {
    /// The slots without an accepted member.
    #[must_use]
    pub fn missing(&self) -> MemberSet {
        let empty = (0u8..).zip(&self.slots).filter(|(_, index)| index.is_none());
        empty.map(|(slot, _)| MemberIndex(slot)).collect()
    }

    /// The missing members that the array did not know to be gone when it was last used.
    #[must_use]
    pub fn newly_missing(&self) -> MemberSet {
        self.missing().iter().filter(|&slot| is_active(&self.superblock, slot)).collect()
    }

    /// The candidates that are not part of the array now, by path.
    #[must_use]
    pub(crate) fn asides(&self, candidates: &[Candidate]) -> Vec<(PathBuf, SetAside)> {
        self.set_aside.iter().map(|&(index, reason)| (candidates[index].path.clone(), reason)).collect()
    }

    /// The accepted members that do not have all of their content yet.
    #[must_use]
    pub fn rebuilding(&self) -> MemberSet {
        let slots = (0u8..).map(MemberIndex).zip(&self.superblock.slots);
        let rebuilding = slots.filter(|(_, entry)| entry.state.is_rebuilding()).map(|(slot, _)| slot);
        rebuilding.collect::<MemberSet>().minus(self.missing())
    }

    /// The members whose content can't be relied on: those that are missing or being rebuilt.
    #[must_use]
    pub fn lost(&self) -> MemberSet {
        self.missing().union(self.rebuilding())
    }

    /// The shapes that the array has: while it is being reshaped the one that it had, and the other.
    pub(super) fn shapes(&self) -> Vec<Geometry> {
        self.superblock.shapes()
    }

    /// Whether the level survives what is lost; while the array is being reshaped, whether both do.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.shapes().iter().all(|shape| Repair::new(shape, self.lost()).is_ok())
    }
}

/// Newest last. Of two rounds with the same epoch that contradict each other, an unfinished one does not count. If both
/// are, or neither can be told to be, the one that does without more members went on.
fn rank(candidates: &[Candidate], superblock: &Superblock) -> (Epoch, bool, usize, Revision) {
    let failed = superblock.slots.iter().filter(|entry| entry.state == SlotState::Failed).count();
    (superblock.epoch, !is_unfinished(candidates, superblock), failed, superblock.revision)
}

/// Whether the round that a superblock is of never ended, so that nothing was written after it: a member that it counts
/// on has another round of the same epoch, with other members.
fn is_unfinished(candidates: &[Candidate], superblock: &Superblock) -> bool {
    let counts_on = |other: &Superblock| {
        let entry = superblock.slots.get(other.slot.index());
        entry.is_some_and(|entry| entry.member == other.member && entry.state.is_written())
    };
    let members = |superblock: &Superblock| -> Vec<_> {
        superblock.slots.iter().map(|entry| (entry.member, entry.state.is_written())).collect()
    };
    let others = candidates.iter().map(|candidate| &candidate.superblock);
    let mut same_epoch = others.filter(|other| other.epoch == superblock.epoch);
    same_epoch.any(|other| counts_on(other) && members(other) != members(superblock)) && !planted!(UnfinishedCounts)
}

fn refuse_strangers(candidates: &[Candidate]) -> Result<(), Refusal> {
    for (index, second) in candidates.iter().enumerate() {
        for first in &candidates[..index] {
            let (a, b) = (&first.superblock, &second.superblock);
            let (first, second) = (first.path.clone(), second.path.clone());
            if a.array != b.array && !planted!(ForeignAccepted) {
                return Err(Refusal::Foreign { first, array: a.array, second, other: b.array });
            }
            if a.member == b.member && !planted!(CloneAccepted) {
                return Err(Refusal::Clone { first, second, member: a.member, slot: a.slot });
            }
        }
    }
    Ok(())
}

fn is_active(superblock: &Superblock, slot: MemberIndex) -> bool {
    superblock.slots.get(slot.index()).is_some_and(|entry| entry.state == SlotState::Active)
}

/// Whether a member has another past than the newest superblock: a round gives all members one generation.
fn has_diverged(newest: &Superblock, member: &Superblock) -> bool {
    member.epoch == newest.epoch && member.generation != newest.generation && !planted!(DivergedAccepted)
}

/// Whether the array has just grown, and a member was not reached by the round that says so: it has the room already.
fn grows(newest: &Superblock, behind: &Superblock) -> bool {
    let (size, spec) = (behind.spec.member_size, Spec { member_size: newest.spec.member_size, ..behind.spec });
    let has_room = || Superblock { spec, ..behind.clone() }.check().is_ok();
    behind.epoch < newest.epoch && size < newest.spec.member_size && spec == newest.spec && has_room()
}

/// Whether the array has just got another shape, and a member was not reached by the round that says so.
fn reshapes(newest: &Superblock, behind: &Superblock) -> bool {
    let outcome = behind.reshape.and_then(|reshape| reshape.outcome(behind.spec));
    behind.epoch < newest.epoch && outcome == Some(newest.spec)
}

/// Whether an outsider and the newest superblock each went on without the other's member, of which `slot` is one that
/// the newest has: the outsider gave that up. It did so before the member was taken back, and is merely old, unless it
/// went on after it was given up itself.
fn contradicts(newest: &Superblock, outsider: &Superblock, slot: MemberIndex) -> bool {
    let (Some(now), Some(then)) = (newest.slots.get(slot.index()), outsider.slots.get(slot.index())) else {
        return false;
    };
    let went_on = |own: &SlotEntry| own.state == SlotState::Failed && outsider.epoch >= own.since;
    let is_given_up = now.state.is_written() && then.state == SlotState::Failed;
    is_given_up && (now.since <= then.since || newest.slots.get(outsider.slot.index()).is_some_and(went_on))
}

/// Whether an outsider and the member that the newest superblock has in its slot both went on with the array: the
/// earlier one after the other had replaced it, or the later one, of which the newest has never heard, for more than
/// the round that took it in.
fn has_rival(newest: &Superblock, outsider: &Superblock) -> bool {
    let slot = outsider.slot.index();
    let (Some(now), Some(then)) = (newest.slots.get(slot), outsider.slots.get(slot)) else { return false };
    let went_on = match then.since.cmp(&now.since) {
        Ordering::Less => outsider.epoch >= now.since,
        Ordering::Equal => false,
        Ordering::Greater => outsider.epoch > then.since,
    };
    now.member != outsider.member && then.state == SlotState::Active && went_on && !planted!(RivalsAccepted)
}

/// Why the newest superblock does not accept a member.
fn aside(newest: &Superblock, member: &Superblock) -> Option<SetAside> {
    match newest.slots.get(member.slot.index()) {
        Some(entry) if entry.member != member.member && !planted!(ReplacedAccepted) => {
            return Some(SetAside::Replaced { owner: entry.member });
        }
        Some(entry) if entry.state.is_written() || planted!(FailedAccepted) => {}
        Some(_) => return Some(SetAside::Failed),
        None => return Some(SetAside::Left),
    }
    let is_fresh = member.epoch.0 + 1 >= newest.epoch.0 || planted!(StaleAccepted);
    (!is_fresh).then_some(SetAside::Stale { epoch: member.epoch, newest: newest.epoch })
}

#[cfg(test)]
pub(super) mod tests {
    use uraid_layout::{Bytes, Level, Sectors};
    use uuid::Uuid;

    use super::*;
    use crate::format::superblock::{Area, Areas};

    /// The members of a mirror of four, in epoch 4, each with the slots that it says have failed.
    pub(in crate::array) fn mirror(failed: [&[usize]; 4]) -> Vec<Candidate> {
        let area = |mebibytes: u64| Area { offset: Bytes(mebibytes << 20), size: Bytes(1 << 20) };
        let (log, data) = (Area { offset: Bytes(1 << 19), size: Bytes(1 << 19) }, area(1));
        let areas = Areas {
            member_size: Bytes(4 << 20),
            bitmap: Area { offset: Bytes(64 << 10), size: Bytes(4096) },
            bad_blocks: Area { offset: Bytes(256 << 10), size: Bytes(256 << 10) },
            sums: area(3),
            log,
            data,
        };
        let spec = Spec { level: Level::Raid1, members: 4, chunk: Bytes(4096), member_size: Sectors(2048) };
        let members: Vec<_> = (1..=4).map(|member| (Uuid::from_u128(member), areas)).collect();
        let superblocks = Superblock::of_new_array(Uuid::from_u128(9), spec, &members);
        let says = |(mut superblock, failed): (Superblock, &[usize])| {
            superblock.epoch = Epoch(4);
            for &slot in failed {
                (superblock.slots[slot].state, superblock.slots[slot].since) = (SlotState::Failed, Epoch(4));
            }
            Candidate { path: format!("member{}", superblock.slot).into(), superblock }
        };
        superblocks.into_iter().zip(failed).map(says).collect()
    }

    #[test]
    fn who_has_no_slot_any_more_has_left() {
        let mut all = mirror([&[]; 4]);
        for Candidate { superblock, .. } in &mut all[..3] {
            (superblock.epoch, superblock.spec.members) = (Epoch(5), 3);
            superblock.slots.truncate(3);
        }
        let verdict = judge(&all).unwrap();
        assert_eq!((verdict.missing(), verdict.set_aside), (MemberSet::EMPTY, vec![(3, SetAside::Left)]));
    }

    /// Two copies of an array are used, and then some members of each are named: a number that nobody can guess tells
    /// them apart in the same epoch.
    #[test]
    fn members_of_two_copies_are_no_array() {
        let (common, one, other) = (Uuid::from_u128(20), Uuid::from_u128(21), Uuid::from_u128(22));
        let all = |runs: [(u64, Uuid); 4]| -> Vec<_> {
            let mut all = mirror([&[]; 4]);
            for (Candidate { superblock, .. }, (epoch, generation)) in all.iter_mut().zip(runs) {
                (superblock.epoch, superblock.generation) = (Epoch(epoch), generation);
            }
            all
        };
        let (old, in_one, in_other) = ((4, common), (5, one), (5, other));
        assert!(judge(&all([in_one; 4])).is_ok());
        assert!(judge(&all([in_one, old, in_one, old])).is_ok(), "a round was cut off that begins a run");
        assert!(matches!(judge(&all([in_one, in_one, in_other, in_other])), Err(Refusal::Diverged { .. })));
    }

    /// Members 1 and 3 begin a round without the others, which the power cuts off: member 3 does not have it. Then it
    /// goes on with 0 and 2.
    #[test]
    fn a_round_that_never_ended_does_not_count() {
        let all = mirror([&[1], &[0, 2], &[1], &[1]]);
        let verdict = |slots: &[usize]| {
            let named: Vec<_> = slots.iter().map(|&slot| all[slot].clone()).collect();
            judge(&named).map(|verdict| verdict.missing())
        };
        let only = |slot: u8| MemberSet::all(4).without(MemberIndex(slot));
        assert_eq!(verdict(&[0, 1, 2, 3]), Ok(MemberSet::EMPTY.with(MemberIndex(1))));
        assert_eq!(verdict(&[1, 3]), Ok(only(3)), "member 3 went on without it");
        assert_eq!(verdict(&[1]), Ok(only(1)));
        assert!(matches!(verdict(&[0, 1]), Err(Refusal::SplitBrain { .. })), "nobody here tells");
    }
}
