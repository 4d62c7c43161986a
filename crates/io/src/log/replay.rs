//! Which records are done again after an unclean stop.
//!
//! A lane commits one record at a time, and writes in place only what is committed. So of each lane only the newest record can be uncommitted;
//! it is committed, or as good as that, when every participant that is left holds it, and otherwise nothing of it was written in
//! place. Every older one was committed: it is on every participant that is left, or that member lost it.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

use uraid_layout::{MemberIndex, MemberSet};

use super::record::{Header, Lane, Sequence};

/// A record that is to be done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redo {
    /// Its lane.
    pub lane: Lane,
    /// Its number there.
    pub sequence: Sequence,
}

/// Why the log can't be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A member lacks a record that was committed.
    #[error(
        "member {member} lost record {} of its log, which was committed: its log is damaged. Leave it out, with --degraded, if the others suffice",
        sequence.0
    )]
    Lost {
        /// The member.
        member: MemberIndex,
        /// The record.
        sequence: Sequence,
    },
    /// Copies of a record contradict each other.
    #[error("members {first} and {second} contradict each other about record {} of the log; one of them is not of this array's last run", sequence.0)]
    Contradiction {
        /// One member.
        first: MemberIndex,
        /// Another.
        second: MemberIndex,
        /// The record.
        sequence: Sequence,
    },
}

/// Decides from the records that each accepted member holds, all of the array's generation, which are done again, in this order. Members
/// without records are in `accepted`, too.
///
/// # Errors
/// [`ReplayError`] when a member lacks what it must have.
pub fn choose<'a>(
    accepted: MemberSet,
    held: impl Iterator<Item = &'a Header> + Clone,
) -> Result<Vec<Redo>, ReplayError> {
    let mut trims: BTreeMap<Lane, Sequence> = BTreeMap::new();
    for header in held.clone() {
        let trim = trims.entry(header.lane).or_default();
        let is_first = *trim == Sequence::default();
        *trim = match () {
            () if planted!(ReplayTrimmed) => Sequence(0),
            () if planted!(ReplaySmallestMark) && !is_first => header.trim.min(*trim),
            () => header.trim.max(*trim),
        };
    }
    // Of each record that still matters: a copy, and who holds one.
    let mut records: BTreeMap<(Lane, Sequence), (&Header, MemberSet)> = BTreeMap::new();
    for header in held.filter(|header| header.sequence > trims[&header.lane]) {
        match records.entry((header.lane, header.sequence)) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert((header, MemberSet::EMPTY.with(header.slot)));
            }
            btree_map::Entry::Occupied(mut entry) => {
                let (first, holders) = entry.get_mut();
                let is_same = (first.participants, first.trim) == (header.participants, header.trim);
                if !is_same || holders.contains(header.slot) {
                    let (first, second, sequence) = (first.slot, header.slot, header.sequence);
                    return Err(ReplayError::Contradiction { first, second, sequence });
                }
                *holders = holders.with(header.slot);
            }
        }
    }
    let is_misread = [planted!(ReplaySmallestMark), planted!(ReplayTrimmed)].contains(&true);
    let mut redo = Vec::with_capacity(records.len());
    for (&(lane, sequence), (header, holders)) in &records {
        let absent = accepted.minus(*holders);
        let lacking = absent.iter().find(|&member| header.participants.contains(member));
        let later = (Bound::Excluded((lane, sequence)), Bound::Unbounded);
        let is_newest = records.range(later).next().is_none_or(|((next, _), _)| *next != lane);
        match lacking {
            None => redo.push(Redo { lane, sequence }),
            Some(_) if planted!(ReplayAny) => redo.push(Redo { lane, sequence }),
            Some(member) if !(is_newest || is_misread || planted!(LossIgnored)) => {
                return Err(ReplayError::Lost { member, sequence });
            }
            Some(_) => {}
        }
    }
    if planted!(ReplayReversed) {
        redo.reverse();
    }
    if planted!(ReplayOldestOnly) {
        redo.truncate(1);
    }
    if planted!(ReplaySkipsOldest) && !redo.is_empty() {
        redo.remove(0);
    }
    Ok(redo)
}

#[cfg(test)]
mod tests {
    use uraid_layout::Bytes;
    use uuid::Uuid;

    use super::*;

    fn held(slot: u8, sequence: u64, trim: u64, participants: &[u8]) -> Header {
        Header {
            generation: Uuid::nil(),
            lane: Lane(0),
            sequence: Sequence(sequence),
            trim: Sequence(trim),
            participants: participants.iter().map(|&slot| MemberIndex(slot)).collect(),
            slot: MemberIndex(slot),
            position: Bytes(0),
            content_checksum: 0,
            extents: Vec::new(),
        }
    }

    fn chosen(accepted: &[u8], headers: &[Header]) -> Result<Vec<u64>, ReplayError> {
        let accepted = accepted.iter().map(|&slot| MemberIndex(slot)).collect();
        Ok(choose(accepted, headers.iter())?.into_iter().map(|redo| redo.sequence.0).collect())
    }

    #[test]
    fn a_record_counts_when_every_participant_that_is_left_holds_it() {
        let all = [held(0, 1, 0, &[0, 2]), held(2, 1, 0, &[0, 2])];
        assert_eq!(chosen(&[0, 1, 2], &all), Ok(vec![1]));
        assert_eq!(chosen(&[0, 1], &all[..1]), Ok(vec![1]), "member 2 is gone");
        assert_eq!(
            chosen(&[0, 1, 2], &all[..1]),
            Ok(vec![]),
            "member 2 does not have it: nothing was written in place"
        );
        assert_eq!(chosen(&[0, 1, 2], &[]), Ok(vec![]));
    }

    #[test]
    fn the_largest_mark_of_any_member_counts() {
        let records = [
            held(0, 1, 0, &[0, 1]),
            held(1, 1, 0, &[0, 1]),
            held(0, 2, 0, &[0]),
            held(1, 3, 2, &[1]),
            held(0, 4, 1, &[0]),
        ];
        assert_eq!(chosen(&[0, 1], &records), Ok(vec![3, 4]));
    }

    #[test]
    fn a_member_that_lost_a_committed_record_is_named() {
        let records = [held(0, 1, 0, &[0, 1]), held(0, 2, 0, &[0])];
        assert_eq!(chosen(&[0, 1], &records), Err(ReplayError::Lost { member: MemberIndex(1), sequence: Sequence(1) }));
        assert_eq!(chosen(&[0], &records), Ok(vec![1, 2]), "and may be left out");
    }

    #[test]
    fn lanes_are_apart() {
        let other = |header: Header| Header { lane: Lane(1), ..header };
        let records = [held(0, 1, 0, &[0, 1]), other(held(0, 9, 8, &[0])), other(held(0, 5, 4, &[0]))];
        let redo = choose(MemberSet::all(2), records.iter()).unwrap();
        assert_eq!(redo, [Redo { lane: Lane(1), sequence: Sequence(9) }]);
    }

    #[test]
    fn contradictions_are_refused() {
        let records = [held(0, 1, 0, &[0, 1]), held(1, 1, 0, &[1])];
        assert!(matches!(chosen(&[0, 1], &records), Err(ReplayError::Contradiction { .. })));
        let twice = [held(0, 1, 0, &[0]), held(0, 1, 0, &[0])];
        assert!(matches!(chosen(&[0], &twice), Err(ReplayError::Contradiction { .. })));
    }
}
