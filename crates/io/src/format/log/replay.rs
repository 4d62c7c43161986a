//! Which records are done again after an unclean stop.
//!
//! The log commits one record at a time, and only what is committed is written in place. So only the newest record
//! can be uncommitted; it is committed, or as good as that, when every participant that is left holds it, and
//! otherwise nothing of it was written in place. Every older one was committed: it is on every participant that is
//! left, or that member lost it. Where no participant has it any more, the record after it says who took part.

use std::collections::{BTreeMap, btree_map};

use uraid_layout::{MemberIndex, MemberSet};

use super::record::{Header, LogSequence};

/// Why the log can't be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A member lacks a record that was committed.
    #[error(
        "member {member} lost record {} of its log, which was committed: its log is damaged. Leave it \
         out, and start with --degraded, if the others suffice",
        sequence.0
    )]
    Lost {
        /// The member.
        member: MemberIndex,
        /// The record.
        sequence: LogSequence,
    },
    /// Copies of a record contradict each other.
    #[error(
        "members {first} and {second} contradict each other about record {} of the log; one of them is not of this \
         array's last run",
        sequence.0
    )]
    Contradiction {
        /// One member.
        first: MemberIndex,
        /// Another.
        second: MemberIndex,
        /// The record.
        sequence: LogSequence,
    },
}

/// The records that members hold, all of the array's generation: those that may still count.
#[derive(Debug, Default)]
pub struct Held {
    /// Up to this one all are in place; none: there is no record.
    trim: Option<LogSequence>,
    records: Vec<Header>,
    /// How many records there were when those that are in place were last dropped.
    kept: usize,
}

impl Held {
    /// Takes note of a record that a member holds. Of those that turn out to be in place few are kept.
    pub fn add(&mut self, header: Header) {
        /// Below this it does not pay to look.
        const FEW: usize = 256;
        let trim = match self.trim {
            _ if planted!(ReplayTrimmed) => LogSequence(0),
            Some(trim) if planted!(ReplaySmallestMark) => header.trim.min(trim),
            trim => header.trim.max(trim.unwrap_or_default()),
        };
        self.trim = Some(trim);
        self.records.push(header);
        if self.records.len() >= FEW + 2 * self.kept && !planted!(ReplaySmallestMark) {
            self.records.retain(|header| header.sequence > trim);
            self.kept = self.records.len();
        }
    }

    /// The records that are not known to be in place.
    pub fn records(&self) -> impl Iterator<Item = &Header> + Clone {
        self.records.iter().filter(|header| Some(header.sequence) > self.trim)
    }
}

/// Of the `accepted` members, each of whom has a part of its log that can't be read, those that may hold something
/// there that counts: they are not to be believed. `is_whole`: no member is missing or being rebuilt, and the level
/// survives one.
///
/// What a member alone can't read shows elsewhere: everything that changes content has two participants at least, and
/// who of them has a record has it until it has the mark that says that it is in place. Only what heals or repairs one
/// member is on that member alone, and that is in place or found again. So the member's log lacks nothing that counts
/// when it has every record that others say it took part in. It is another thing when two members can't read what only
/// they took part in, or when the other participant is missing.
#[must_use]
pub fn doubtful(held: &Held, unreadable: MemberSet, is_whole: bool) -> MemberSet {
    if planted!(UnreadableLogIgnored) {
        return MemberSet::EMPTY;
    }
    let is_alone = unreadable.len() == 1 && is_whole || planted!(HiddenRecordsIgnored);
    let lacks = |member: MemberIndex| {
        let holds = |sought: &Header| {
            let mut own = held.records().filter(|own| own.slot == member);
            own.any(|own| own.sequence == sought.sequence)
        };
        held.records().any(|header| header.participants.contains(member) && !holds(header))
    };
    unreadable.iter().filter(|&member| !is_alone || lacks(member)).collect()
}

/// Decides from the records that the accepted members hold which are done again, in this order. Members without records
/// are in `accepted`, too.
///
/// # Errors
/// [`ReplayError`] when a member lacks what it must have.
pub fn choose(accepted: MemberSet, held: &Held) -> Result<Vec<LogSequence>, ReplayError> {
    // Of each record that still matters: a copy, and who holds one.
    let mut records: BTreeMap<LogSequence, (&Header, MemberSet)> = BTreeMap::new();
    for header in held.records() {
        match records.entry(header.sequence) {
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
    for (&sequence, (header, holders)) in &records {
        let absent = accepted.minus(*holders);
        let lacking = absent.iter().find(|&member| header.participants.contains(member));
        let before = LogSequence(sequence.0.saturating_sub(1));
        let is_gap = Some(before) > held.trim && !records.contains_key(&before);
        let loser = header.previous.iter().find(|&member| is_gap && accepted.contains(member));
        if let Some(member) = loser.filter(|_| !(is_misread || planted!(GapIgnored))) {
            return Err(ReplayError::Lost { member, sequence: before });
        }
        let is_newest = records.last_key_value().is_some_and(|(&last, _)| last == sequence);
        match lacking {
            None => redo.push(sequence),
            Some(_) if planted!(ReplayAny) => redo.push(sequence),
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
            sequence: LogSequence(sequence),
            trim: LogSequence(trim),
            participants: participants.iter().map(|&slot| MemberIndex(slot)).collect(),
            previous: MemberSet::EMPTY,
            slot: MemberIndex(slot),
            position: Bytes(0),
            content_checksum: 0,
            extents: Vec::new(),
        }
    }

    fn all(headers: &[Header]) -> Held {
        let mut held = Held::default();
        headers.iter().cloned().for_each(|header| held.add(header));
        held
    }

    fn chosen(accepted: &[u8], headers: &[Header]) -> Result<Vec<u64>, ReplayError> {
        let accepted = accepted.iter().map(|&slot| MemberIndex(slot)).collect();
        Ok(choose(accepted, &all(headers))?.into_iter().map(|redo| redo.0).collect())
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
        assert_eq!(
            chosen(&[0, 1], &records),
            Err(ReplayError::Lost { member: MemberIndex(1), sequence: LogSequence(1) })
        );
        assert_eq!(chosen(&[0], &records), Ok(vec![1, 2]), "and may be left out");
    }

    #[test]
    fn a_record_that_no_participant_has_any_more_is_missed() {
        let after = |previous: &[u8], header: Header| Header {
            previous: previous.iter().map(|&slot| MemberIndex(slot)).collect(),
            ..header
        };
        let lost = |sequence| Err(ReplayError::Lost { member: MemberIndex(1), sequence: LogSequence(sequence) });
        let records = [held(0, 1, 0, &[0]), after(&[1, 2], held(0, 3, 0, &[0]))];
        assert_eq!(chosen(&[0, 1, 2], &records), lost(2));
        assert_eq!(chosen(&[0, 1], &records), lost(2), "member 2 is gone, and member 1 had it, too");
        assert_eq!(chosen(&[0], &records), Ok(vec![1, 3]), "nobody who is left took part");
        let trimmed = [held(0, 1, 0, &[0]), after(&[1, 2], held(0, 3, 2, &[0]))];
        assert_eq!(chosen(&[0, 1, 2], &trimmed), Ok(vec![3]), "it is in place");
        let newest = [after(&[1], held(0, 2, 0, &[0, 1]))];
        assert_eq!(chosen(&[0, 1], &newest), lost(1), "the newest may not count, and says it all the same");
    }

    #[test]
    fn contradictions_are_refused() {
        let records = [held(0, 1, 0, &[0, 1]), held(1, 1, 0, &[1])];
        assert!(matches!(chosen(&[0, 1], &records), Err(ReplayError::Contradiction { .. })));
        let twice = [held(0, 1, 0, &[0]), held(0, 1, 0, &[0])];
        assert!(matches!(chosen(&[0], &twice), Err(ReplayError::Contradiction { .. })));
    }

    /// A long run of the log: of its headers only those stay in memory that may be done again.
    #[test]
    fn records_that_are_in_place_are_not_kept() {
        let mut held_all = Held::default();
        for sequence in 1..=100_000 {
            held_all.add(held(0, sequence, sequence.saturating_sub(10), &[0]));
            assert!(held_all.records.len() < 300, "at record {sequence}");
        }
        assert_eq!(
            held_all.records().map(|header| header.sequence.0).collect::<Vec<_>>(),
            (99_991..=100_000).collect::<Vec<_>>()
        );
        // An earlier one that turns up later counts no more.
        held_all.add(held(1, 50, 0, &[0, 1]));
        assert_eq!(choose(MemberSet::all(2), &held_all).unwrap().len(), 10);
    }

    #[test]
    fn a_log_that_cannot_be_read_in_full_is_believed_where_the_others_vouch_for_it() {
        let one = MemberSet::EMPTY.with(MemberIndex(1));
        let both = one.with(MemberIndex(0));
        let records = [held(0, 1, 0, &[0, 1]), held(1, 1, 0, &[0, 1]), held(0, 2, 0, &[0, 2]), held(2, 2, 0, &[0, 2])];
        assert_eq!(doubtful(&all(&records), one, true), MemberSet::EMPTY);
        assert_eq!(
            doubtful(&all(&records), one, false),
            one,
            "somebody is missing, with whom it may have had a record"
        );
        assert_eq!(doubtful(&all(&records), both, true), both, "they may have had a record together");
        let lacking = [held(0, 1, 0, &[0, 1]), held(0, 2, 0, &[0, 1]), held(1, 1, 0, &[0, 1])];
        assert_eq!(doubtful(&all(&lacking), one, true), one, "it may have had the newest record, or not");
        let marked = [held(0, 1, 0, &[0, 1]), held(0, 2, 1, &[0]), held(0, 3, 1, &[0, 2])];
        assert_eq!(doubtful(&all(&marked), one, true), MemberSet::EMPTY, "what it lacks is in place");
    }
}
