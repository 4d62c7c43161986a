//! Exports of which the server has an older copy than the array was using: one was brought back from a snapshot, say.
//! Where the array went on in the same epoch their superblocks look as they ought to; the owner's marks do not.

use uraid_layout::Bytes;
use uuid::Uuid;

use super::judge::{Candidate, SetAside, Verdict};
use crate::format::Epoch;
use crate::format::owner::{Durable, Found, OWNER_AT, OWNER_BYTES, Testimony};
use crate::member::Member;

/// What a member says of who had it, and of exports.
#[derive(Clone, Debug, Default)]
pub struct Mark {
    /// It is an export that somebody used and had not let go of.
    pub is_used: bool,
    /// Who had it while its superblock had this epoch, and how far their marks had counted.
    pub runs: Vec<(Uuid, u64)>,
    /// What is known of exports.
    pub testimony: Testimony,
}

impl Mark {
    /// Of a member that was opened, and has a superblock of this epoch. May block.
    pub(super) fn of(member: &Member, epoch: Epoch) -> Self {
        let found = match member.found_mark() {
            Some(found) => found.to_vec(),
            // It bears no witness if it can't be read here.
            None => member.peek(OWNER_AT, Bytes(OWNER_BYTES as u64)).unwrap_or_default(),
        };
        let (found, testimony) = Found::of(&found, epoch);
        member.note_found(&found, &testimony);
        Self::new(found, testimony, member.is_export())
    }

    fn new(Found { is_used, runs, .. }: Found, testimony: Testimony, is_export: bool) -> Self {
        Self { is_used: is_export && is_used, runs, testimony }
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
    let is_let_go = |(own, mark): &(&Candidate, &Mark)| own.superblock.is_clean && !mark.is_used;
    let was_stopped = verdict.superblock.is_clean && accepted.iter().any(is_let_go);
    let is_older = |index: usize| {
        let own = (&candidates[index], marks[index]);
        let is_left_behind = was_stopped && !own.0.superblock.is_clean && own.1.is_used;
        is_left_behind || accepted.iter().any(|other| knows_of_more(*other, own))
    };
    for slot in &mut verdict.slots {
        verdict.set_aside.extend(slot.take_if(|index| is_older(*index)).map(|index| (index, SetAside::Older)));
    }
}

/// Whether one member says that more was durable on another than is there now.
fn knows_of_more((one, says): (&Candidate, &Mark), (other, has): (&Candidate, &Mark)) -> bool {
    let (one, other) = (&one.superblock, &other.superblock);
    let was_stopped = other.is_clean && !has.is_used && other.epoch == one.epoch;
    if says.testimony.epoch != one.epoch || was_stopped {
        return false;
    }
    let is_there =
        |known: &Durable| has.runs.iter().any(|(run, beat)| run.is_nil() || *run == known.run && *beat >= known.beat);
    says.testimony.durable.iter().any(|known| known.member == other.member && !is_there(known))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::array::judge;
    use crate::array::judge::tests::mirror;
    use crate::format::owner::Owner;
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
            aside(&all, &says.map(|(_, is_used)| Mark { is_used, ..Mark::default() }))
        };
        let (let_go, stopped, used, file) = ((true, false), (true, true), (false, true), (false, false));
        assert_eq!(aside([let_go, used, let_go, used]), [1, 3]);
        assert_eq!(aside([let_go, file, file, used]), [3]);
        assert!(aside([let_go, stopped, stopped, let_go]).is_empty(), "a server was killed when it let go of them");
        assert!(aside([stopped, used, used, stopped]).is_empty(), "when it said that it had stopped");
        assert!(aside([used; 4]).is_empty(), "when it used them");
    }

    /// What these bytes say on an export in epoch 4.
    fn read(bytes: &[u8]) -> Mark {
        let (found, testimony) = Found::of(bytes, Epoch(4));
        Mark::new(found, testimony, true)
    }

    /// What the mark of a run says, which has counted so far, found this, and knows that of the second member.
    fn mark(run: u128, beat: u64, found: Option<Found>, known: Option<(u64, u128, u64)>) -> Mark {
        let durable = |run, beat| Durable { member: Uuid::from_u128(2), run: Uuid::from_u128(run), beat };
        let says = |(epoch, run, beat)| Testimony { epoch: Epoch(epoch), durable: vec![durable(run, beat)] };
        let testimony = known.map(says).unwrap_or_default();
        let owner = Owner { run: Uuid::from_u128(run), beat, testimony, found, ..this_process().clone() };
        read(&owner.encode())
    }

    fn found(epoch: u64, is_used: bool, runs: &[(u128, u64)]) -> Option<Found> {
        let runs = runs.iter().map(|&(run, beat)| (Uuid::from_u128(run), beat)).collect();
        Some(Found { epoch: Epoch(epoch), is_used, runs })
    }

    const RUN: u128 = 70;

    #[test]
    fn who_has_less_than_others_know_to_be_durable_is_an_older_copy() {
        /// The second member is this many epochs behind.
        fn is_older(behind: u64, has: Mark, known: Option<(u64, u128, u64)>) -> bool {
            let mut all = mirror([&[]; 4]);
            all[1].superblock.epoch.0 -= behind;
            all.iter_mut().for_each(|candidate| candidate.superblock.is_clean = false);
            // One knows, another one is a file that knows nothing, and the last knows only of a former epoch.
            let file = Mark::default();
            let aside = aside(&all, &[mark(RUN, 50, None, known), has, file, mark(RUN, 51, None, Some((3, RUN, 99)))]);
            assert!(aside.is_empty() || aside == [1]);
            !aside.is_empty()
        }
        let known = Some((4, RUN, 40));
        for behind in [0, 1] {
            assert!(!is_older(behind, mark(RUN, 40, None, None), known), "it has what was durable");
            assert!(is_older(behind, mark(RUN, 39, None, None), known));
            assert!(is_older(behind, mark(RUN - 1, 90, None, None), known), "it is of another run");
            assert!(is_older(behind, read(&[]), known), "it is of the time between two runs");
            let claimed = |beat| mark(RUN + 2, 1, found(4, true, &[(RUN, beat), (RUN + 1, 7)]), None);
            assert!(!is_older(behind, claimed(40), known), "others have claimed it since");
            assert!(is_older(behind, claimed(39), known));
            let claimed_in_another = mark(RUN + 2, 1, found(3, true, &[(RUN, 40)]), None);
            assert!(is_older(behind, claimed_in_another, known));
        }
        let mut torn = this_process().encode();
        torn[100] ^= 1;
        let nobody_knows = read(&torn);
        let claimed = mark(RUN + 1, 2, Some(Found::of(&torn, Epoch(4)).0), None);
        assert!(!is_older(0, nobody_knows, known) && !is_older(0, claimed, known));
        for says_nothing in [None, Some((3, RUN, 40)), Some((5, RUN, 40))] {
            assert!(!is_older(0, mark(RUN, 39, None, None), says_nothing), "what is said is of another epoch");
        }
    }

    /// Whoever opens the array again finds what the one before has found.
    #[test]
    fn what_was_found_counts_until_something_is_put_on_record() {
        let old = mark(RUN, 20, None, None);
        let mut all = mirror([&[]; 4]);
        all.iter_mut().for_each(|candidate| candidate.superblock.is_clean = true);
        all[1].superblock.is_clean = false;
        let with = |found: Option<Found>| mark(RUN + 1, 3, found, None);
        let let_go = || with(found(4, false, &[]));
        assert_eq!(aside(&all, &[let_go(), old.clone(), let_go(), let_go()]), [1], "without it, nothing was written");
        let used = || with(found(3, false, &[]));
        assert!(aside(&all, &[used(), old, used(), used()]).is_empty(), "of what was there before nothing is left");
    }
}
