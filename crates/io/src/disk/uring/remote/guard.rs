//! Keeps an export this process's own: see [`owner`](crate::member) of members. It looks at the mark there, and counts
//! it on, with reads and writes that the connection carries beside all others.
//!
//! It holds everything else back before the mark is known to be this process's, and whenever that was known too long
//! ago: this process was stopped, perhaps, and another one has the export now.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use uraid_layout::{Bytes, MemberIndex};

use super::super::super::{DiskOp, OpKind, Segments};
use crate::buf::Buf;
use crate::format::owner::{OWNER_AT, OWNER_BYTES, Owner, is_one};
use crate::member::{BEAT_EVERY, LEASE, Vacancy, this_process};

/// The tag of its operations, which nobody else's has.
const TAG: u64 = u64::MAX;

/// How long to wait for the next look before the export is claimed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is known of an export's mark. It goes from one disk to the next with the export.
#[derive(Debug)]
pub(crate) struct Claim {
    stage: Stage,
    /// What was there before the own mark.
    before: Vec<u8>,
    /// How far the own mark has counted, how far that the server has taken, and how far it had when it was found.
    beat: u64,
    beat_taken: u64,
    beat_found: u64,
    settling: Duration,
    /// Since when the own mark is there.
    marked: Option<Duration>,
    /// When the last look began that found it, settling over.
    confirmed: Option<Duration>,
}

/// See the module.
pub(super) struct Guard {
    claim: Claim,
    /// What is under way, and since when.
    under_way: Option<(Step, Duration)>,
    due: Duration,
    /// Nothing more is begun.
    is_paused: bool,
    /// Its own mark was found since somebody asked.
    is_new: bool,
    block: Buf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The export is not this process's yet.
    Entering,
    /// It is.
    Holding,
    /// It is another's.
    Robbed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    Mark,
}

impl Claim {
    /// On an export that was found like this.
    pub(crate) fn new(vacancy: Vacancy) -> Self {
        let Vacancy { found: before, beat, settling } = vacancy;
        let (beat_taken, beat_found, marked, confirmed) = (beat, beat, None, None);
        Self { stage: Stage::Entering, before, beat, beat_taken, beat_found, settling, marked, confirmed }
    }

    /// Whether its own mark may be on the export. One that was found is somebody else's of this process, who may use
    /// the export still.
    pub(crate) fn has_marked(&self) -> bool {
        self.beat > self.beat_found
    }

    /// How far the own mark has counted.
    pub(crate) fn beat(&self) -> u64 {
        self.beat
    }

    /// Whether another process has the export.
    pub(crate) fn is_robbed(&self) -> bool {
        self.stage == Stage::Robbed
    }
}

impl Guard {
    /// Of a connection to an export of which that is known.
    pub(super) fn new(claim: Claim) -> Self {
        let block = Buf::zeroed(Bytes(OWNER_BYTES as u64));
        Self { claim, under_way: None, due: Duration::ZERO, is_paused: false, is_new: false, block }
    }

    /// What is known when the connection is not used any more.
    pub(super) fn into_claim(self) -> Claim {
        self.claim
    }

    /// Whether everything else has to wait.
    pub(super) fn holds_back(&self) -> bool {
        self.claim.confirmed.is_none_or(|at| now() > at + LEASE)
    }

    /// Whether it was this process's own, and that is not known any more.
    pub(super) fn has_lapsed(&self) -> bool {
        self.claim.confirmed.is_some() && self.holds_back()
    }

    /// Whether its own mark was found since this was asked.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Whether another process has the export.
    pub(super) fn is_robbed(&self) -> bool {
        self.claim.is_robbed()
    }

    /// How far the mark has counted that the server has taken: what a flush from now on makes durable.
    pub(super) fn beat_taken(&self) -> u64 {
        self.claim.beat_taken
    }

    /// The same, with the count that is under way.
    pub(super) fn beat(&self) -> u64 {
        self.claim.beat
    }

    /// Whether it begins nothing more.
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Begins nothing more.
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    /// What is to be asked now, if anything is.
    pub(super) fn next_op(&mut self) -> Option<DiskOp> {
        let now = now();
        if self.under_way.is_some() || self.is_paused || self.is_robbed() || now < self.due {
            return None;
        }
        self.under_way = Some((Step::Look, now));
        Some(op(OpKind::Read, Segments::from_iter([self.block.lease_write(0..OWNER_BYTES)])))
    }

    /// Takes in how it ended; what is to be asked next, if that is at once. `mark` makes the mark for a count.
    pub(super) fn ended(&mut self, is_well: bool, mark: impl FnOnce(u64) -> Owner) -> Option<DiskOp> {
        let (step, began) = self.under_way.take().expect("one was begun");
        if !is_well {
            self.due = now() + BEAT_EVERY;
            return None;
        }
        match step {
            Step::Look => self.look(began, mark),
            Step::Mark => {
                self.claim.beat_taken = self.claim.beat;
                self.claim.marked.get_or_insert_with(now);
                self.due = now() + if self.claim.stage == Stage::Holding { BEAT_EVERY } else { LOOK_EVERY };
                None
            }
        }
    }

    /// Takes in what a look that began then has found.
    fn look(&mut self, began: Duration, mark: impl FnOnce(u64) -> Owner) -> Option<DiskOp> {
        let (found, owner) = (self.block.as_ref(), self.found());
        let is_own = owner.as_ref().is_some_and(|owner| owner.run == this_process().run);
        // Who enters may find that the one before has left.
        let is_free = self.claim.marked.is_none() && (!is_one(found) || found == self.claim.before);
        if !is_own && !is_free {
            // One that can't be read may be read the next time.
            self.due = now() + LOOK_EVERY;
            if owner.is_some() || !is_one(found) {
                self.claim.stage = Stage::Robbed;
            }
            return None;
        }
        if let Some(marked) = self.claim.marked {
            if began < marked + self.claim.settling {
                self.due = now() + LOOK_EVERY;
                return None;
            }
            self.claim.stage = Stage::Holding;
            self.claim.confirmed = Some(began);
            self.is_new = true;
        }
        if self.is_paused {
            return None;
        }
        self.claim.beat += 1;
        self.block.as_mut().copy_from_slice(&mark(self.claim.beat).encode());
        self.under_way = Some((Step::Mark, now()));
        Some(op(OpKind::Write, Segments::from_iter([self.block.lease_read(0..OWNER_BYTES)])))
    }

    /// Who was found there.
    pub(super) fn found(&self) -> Option<Owner> {
        Owner::decode(self.block.as_ref())
    }
}

/// A flush that nobody asked for.
pub(super) fn flush() -> DiskOp {
    DiskOp { tag: TAG, member: MemberIndex(u8::MAX), kind: OpKind::Flush, offset: Bytes(0), segments: Segments::new() }
}

fn op(kind: OpKind, segments: Segments) -> DiskOp {
    DiskOp { tag: TAG, member: MemberIndex(u8::MAX), kind, offset: OWNER_AT, segments }
}

/// The time that passes while the machine sleeps, too.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const NOBODY: [u8; OWNER_BYTES] = [0; OWNER_BYTES];

    fn own_mark(beat: u64) -> Owner {
        Owner { beat, ..this_process().clone() }
    }

    fn entering(settling: Duration) -> Guard {
        Guard::new(Claim::new(Vacancy { found: NOBODY.to_vec(), beat: 0, settling }))
    }

    /// What is due now, which is a look, finds this.
    fn look(guard: &mut Guard, found: &[u8]) -> Option<DiskOp> {
        guard.due = Duration::ZERO;
        let asked = guard.next_op().expect("it is time");
        assert_eq!(asked.kind, OpKind::Read);
        drop(asked);
        guard.block.as_mut().copy_from_slice(found);
        guard.ended(true, own_mark)
    }

    /// Has the mark written that is asked for; what is on the export then.
    fn mark(guard: &mut Guard, asked: Option<DiskOp>) -> Vec<u8> {
        assert_eq!(asked.expect("the mark is to be written").kind, OpKind::Write);
        let written = guard.block.as_ref().to_vec();
        assert!(guard.ended(true, own_mark).is_none());
        written
    }

    fn holding() -> (Guard, Vec<u8>) {
        let mut guard = entering(Duration::ZERO);
        let asked = look(&mut guard, &NOBODY);
        let marked = mark(&mut guard, asked);
        assert!(guard.holds_back() && guard.claim.has_marked());
        let asked = look(&mut guard, &marked);
        assert!(!guard.holds_back());
        let marked = mark(&mut guard, asked);
        (guard, marked)
    }

    fn others() -> [u8; OWNER_BYTES] {
        Owner { run: Uuid::from_u128(1), ..this_process().clone() }.encode()
    }

    #[test]
    fn an_export_is_held_when_the_mark_has_stayed_for_a_while() {
        let mut guard = entering(Duration::from_secs(60));
        let asked = look(&mut guard, &NOBODY);
        let marked = mark(&mut guard, asked);
        for _ in 0..3 {
            assert!(look(&mut guard, &marked).is_none());
            assert!(guard.holds_back() && !guard.is_robbed());
        }
        guard.claim.settling = Duration::ZERO;
        assert!(look(&mut guard, &marked).is_some());
        assert!(!guard.holds_back());
    }

    #[test]
    fn who_was_not_confirmed_for_long_looks_before_anything_else() {
        let (mut guard, marked) = holding();
        guard.claim.confirmed = Some(now().saturating_sub(LEASE + Duration::from_millis(1)));
        assert!(guard.holds_back());
        assert!(look(&mut guard, &marked).is_some());
        assert!(!guard.holds_back());
    }

    #[test]
    fn whoever_finds_another_mark_or_none_is_robbed() {
        for found in [others(), NOBODY] {
            let (mut guard, _) = holding();
            assert!(look(&mut guard, &found).is_none());
            assert!(guard.is_robbed());
            guard.due = Duration::ZERO;
            assert!(guard.next_op().is_none(), "it looks no more");
        }
        let mut guard = entering(Duration::ZERO);
        assert!(look(&mut guard, &others()).is_none());
        assert!(guard.is_robbed() && !guard.claim.has_marked(), "somebody came first");
    }

    #[test]
    fn a_mark_that_was_found_counts_on_and_is_not_taken_for_its_own_before() {
        let found = Owner { beat: 7, ..this_process().clone() }.encode();
        let vacancy = Vacancy { found: found.to_vec(), beat: 7, settling: Duration::ZERO };
        let mut guard = Guard::new(Claim::new(vacancy));
        assert!(!guard.claim.has_marked(), "whoever looks only leaves it there");
        let asked = look(&mut guard, &found);
        let marked = mark(&mut guard, asked);
        assert!(guard.claim.has_marked());
        assert_eq!(Owner::decode(&marked).map(|owner| owner.beat), Some(8));
        assert_eq!(guard.beat_taken(), 8);
    }

    #[test]
    fn an_older_mark_of_its_own_and_a_torn_one_rob_nobody() {
        let (mut guard, _) = holding();
        let older = Owner { beat: 0, ..this_process().clone() }.encode();
        assert!(look(&mut guard, &older).is_some());
        assert!(guard.ended(true, own_mark).is_none());
        let mut torn = others();
        torn[100] ^= 1;
        assert!(look(&mut guard, &torn).is_none());
        assert!(!guard.is_robbed());
    }
}
