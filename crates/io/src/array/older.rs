//! Exports of which the server has an older copy than the array was using: one was brought back from a snapshot, say.
//! Where the array went on in the same epoch their superblocks look as they ought to; the owner's marks do not.

use uraid_layout::Bytes;

use super::judge::{Candidate, SetAside, Verdict};
use crate::format::owner::{OWNER_AT, OWNER_BYTES, Owner, is_one};
use crate::member::Member;

/// What was found where a member has the mark of an owner.
#[derive(Clone, Debug, Default)]
pub struct Mark {
    /// It is an export that somebody used and had not let go of.
    pub is_there: bool,
    /// Who. On a file or a device, who said last what is durable on exports.
    pub owner: Option<Owner>,
}

impl Mark {
    /// Of a member that was opened. May block.
    pub(super) fn of(member: &Member) -> Self {
        let found = match member.found_mark() {
            Some(found) => found.to_vec(),
            // It bears no witness if it can't be read here.
            None => member.peek(OWNER_AT, Bytes(OWNER_BYTES as u64)).unwrap_or_default(),
        };
        Self { is_there: member.is_export() && is_one(&found), owner: Owner::decode(&found) }
    }
}

/// Sets aside exports of which an older copy is served; `marks` are the candidates'.
///
/// - The last that a server does when it stops is to say on all members that it was stopped cleanly, and then to let go
///   of them. So who says neither, when others say both, is of the time before that.
/// - While it runs, every member says how far the marks of exports have counted that are durable: see
///   [`Testimony`](crate::format::owner::Testimony). Who has less was durable once, and is not any more.
pub(super) fn set_aside(verdict: &mut Verdict, candidates: &[Candidate], marks: &[&Mark]) {
    let accepted: Vec<(&Candidate, &Mark)> =
        verdict.slots.iter().flatten().map(|&index| (&candidates[index], marks[index])).collect();
    let is_let_go = |(own, mark): &(&Candidate, &Mark)| own.superblock.is_clean && !mark.is_there;
    let was_stopped = verdict.superblock.is_clean && accepted.iter().any(is_let_go);
    let is_older = |index: usize| {
        let own = (&candidates[index], marks[index]);
        let is_left_behind = was_stopped && !own.0.superblock.is_clean && own.1.is_there;
        is_left_behind || accepted.iter().any(|other| knows_of_more(*other, own))
    };
    for slot in &mut verdict.slots {
        verdict.set_aside.extend(slot.take_if(|index| is_older(*index)).map(|index| (index, SetAside::Older)));
    }
}

/// Whether one member says that more was durable on another than is there now.
fn knows_of_more((one, says): (&Candidate, &Mark), (other, has): (&Candidate, &Mark)) -> bool {
    let Some(witness) = says.owner.as_ref().filter(|owner| owner.testimony.epoch == one.superblock.epoch) else {
        return false;
    };
    let known = witness.testimony.beats.iter().find(|(member, _)| *member == other.superblock.member);
    let Some((_, durable)) = known else { return false };
    match has.owner.as_ref().filter(|owner| owner.run == witness.run) {
        Some(owner) => owner.beat < *durable,
        // Another run has it, which found it as it was then, or whoever had it has let go of it; if not, it is of the
        // time before.
        None => other.superblock.epoch < one.superblock.epoch,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::array::judge;
    use crate::array::judge::tests::mirror;
    use crate::format::Epoch;
    use crate::format::owner::Testimony;
    use crate::format::superblock::Revision;
    use crate::member::this_process;

    /// The slots of those that are set aside as older.
    fn aside(all: &[Candidate], marks: &[Mark]) -> Vec<u8> {
        let mut verdict = judge(all).unwrap();
        set_aside(&mut verdict, all, &marks.iter().collect::<Vec<_>>());
        let missing: Vec<u8> = verdict.missing().iter().map(|slot| slot.0).collect();
        assert!(verdict.set_aside.iter().all(|(_, reason)| *reason == SetAside::Older));
        assert_eq!(verdict.set_aside.len(), missing.len());
        missing
    }

    #[test]
    fn who_is_in_use_when_others_were_stopped_and_let_go_of_is_an_older_copy() {
        let aside = |says: [(bool, bool); 4]| {
            let mut all = mirror([&[]; 4]);
            for (candidate, (is_clean, _)) in all.iter_mut().zip(says) {
                // The last round of all says that it was stopped.
                candidate.superblock.is_clean = is_clean;
                candidate.superblock.revision = Revision(u64::from(is_clean));
            }
            aside(&all, &says.map(|(_, is_there)| Mark { is_there, owner: None }))
        };
        let (let_go, stopped, used, file) = ((true, false), (true, true), (false, true), (false, false));
        assert_eq!(aside([let_go, used, let_go, used]), [1, 3]);
        assert_eq!(aside([let_go, file, file, used]), [3]);
        assert!(aside([let_go, stopped, stopped, let_go]).is_empty(), "a server was killed when it let go of them");
        assert!(aside([stopped, used, used, stopped]).is_empty(), "when it said that it had stopped");
        assert!(aside([used; 4]).is_empty(), "when it used them");
    }

    /// The mark of a run, which has counted so far and knows that of the second member.
    fn mark(run: u128, beat: u64, testimony: Option<(u64, u64)>) -> Mark {
        let beats = |beat| vec![(Uuid::from_u128(2), beat)];
        let testimony = testimony.map(|(epoch, beat)| Testimony { epoch: Epoch(epoch), beats: beats(beat) });
        let testimony = testimony.unwrap_or_default();
        let owner = Owner { run: Uuid::from_u128(run), beat, testimony, ..this_process().clone() };
        Mark { is_there: true, owner: Some(owner) }
    }

    #[test]
    fn who_has_less_than_others_know_to_be_durable_is_an_older_copy() {
        const RUN: u128 = 70;
        /// The second member is this many epochs behind.
        fn is_older(behind: u64, has: Mark, known: Option<(u64, u64)>) -> bool {
            let mut all = mirror([&[]; 4]);
            all[1].superblock.epoch.0 -= behind;
            all.iter_mut().for_each(|candidate| candidate.superblock.is_clean = false);
            // One knows, another one is a file that knows nothing, and the last knows only of a former epoch.
            let marks = [mark(RUN, 50, known), has, Mark::default(), mark(RUN, 51, Some((3, 99)))];
            let aside = aside(&all, &marks);
            assert!(aside.is_empty() || aside == [1]);
            !aside.is_empty()
        }
        let known = Some((4, 40));
        assert!(!is_older(0, mark(RUN, 40, None), known), "it has what was durable");
        assert!(is_older(0, mark(RUN, 39, None), known));
        assert!(is_older(1, mark(RUN, 39, None), known));
        assert!(!is_older(1, mark(RUN, 41, None), known), "a round was cut off");
        assert!(is_older(1, mark(RUN - 1, 90, None), known), "it is of a former run");
        assert!(is_older(1, Mark::default(), known), "it is of the time between two runs");
        assert!(!is_older(0, mark(RUN + 1, 1, None), known), "another run has claimed it since");
        assert!(!is_older(0, Mark::default(), known), "whoever had it has let go of it");
        for says_nothing in [None, Some((3, 40)), Some((5, 40))] {
            assert!(!is_older(0, mark(RUN, 39, None), says_nothing), "what is said is of another epoch");
        }
    }
}
