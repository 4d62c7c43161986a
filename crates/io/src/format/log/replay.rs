//! Which records are done again after an unclean stop.
//!
//! A record is *open* from when it gets its number until it is on all its participants, or those that lack it are on
//! record as failed. Only then it is committed, and only what is committed is written in place. Each record says which
//! others were open when it was written, so only those can be open for which no later one says otherwise: they are
//! committed, or as good as that, when every participant that is left holds them, and otherwise nothing of them was
//! written in place. Every other one was committed: it is on every participant that is left, or that member lost it.
//! Where no participant has it any more, the records after it say who took part.

use std::collections::{BTreeMap, btree_map};

use uraid_layout::{MemberIndex, MemberSet};

use super::record::{Header, LogSequence, OPEN_MAX};

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

    /// Takes in what the places have that a member's log is in, which should be the same: of each record one, and which
    /// of them some place lacks.
    pub fn take_in(&mut self, places: &[Self]) -> Vec<LogSequence> {
        let mut records: BTreeMap<LogSequence, Vec<(&Header, usize)>> = BTreeMap::new();
        for header in places.iter().flat_map(|place| &place.records) {
            let copies = records.entry(header.sequence).or_default();
            match copies.iter_mut().find(|(copy, _)| *copy == header) {
                Some((_, count)) => *count += 1,
                None => copies.push((header, 1)),
            }
        }
        let mut lacking = Vec::new();
        for (header, count) in records.into_values().flatten() {
            if count < places.len() {
                lacking.push(header.sequence);
            }
            self.add(header.clone());
        }
        let trims = places.iter().filter_map(|place| place.trim);
        self.trim =
            if planted!(ReplaySmallestMark) { trims.chain(self.trim).min() } else { trims.chain(self.trim).max() };
        lacking
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

/// What is done again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The records, in this order.
    pub redo: Vec<LogSequence>,
    /// The records of which nobody knows whether they were committed, those that are done again among them.
    pub open: Vec<LogSequence>,
    /// What is to be in the place of records that were open and that nobody has, where the run goes on: else they would
    /// be missed. Each is for its participants, of whom it names one.
    pub void: Vec<Header>,
}

/// Decides from the records that the accepted members hold which are done again. Members without records are in
/// `accepted`, too.
///
/// # Errors
/// [`ReplayError`] when a member lacks what it must have.
pub fn choose(accepted: MemberSet, held: &Held) -> Result<Chosen, ReplayError> {
    // Of each record that still matters: a copy, and who holds one.
    let mut records: BTreeMap<LogSequence, (&Header, MemberSet)> = BTreeMap::new();
    for header in held.records() {
        match records.entry(header.sequence) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert((header, MemberSet::EMPTY.with(header.slot)));
            }
            btree_map::Entry::Occupied(mut entry) => {
                let (first, holders) = entry.get_mut();
                let said = |header: &Header| (header.participants, header.trim, header.previous, header.open);
                if said(first) != said(header) || holders.contains(header.slot) {
                    let (first, second, sequence) = (first.slot, header.slot, header.sequence);
                    return Err(ReplayError::Contradiction { first, second, sequence });
                }
                *holders = holders.with(header.slot);
            }
        }
    }
    let is_misread = [planted!(ReplaySmallestMark), planted!(ReplayTrimmed)].contains(&true);
    let open = open_of(&records);
    let mut redo = Vec::with_capacity(records.len());
    for (&sequence, (header, holders)) in &records {
        let is_committed = |other: LogSequence| !open.contains(&other);
        if let Some((member, sequence)) =
            gap_before(header, held, accepted, |other| records.contains_key(&other) || !is_committed(other))
                .filter(|_| !(is_misread || planted!(GapIgnored)))
        {
            return Err(ReplayError::Lost { member, sequence });
        }
        let absent = accepted.minus(*holders);
        match absent.iter().find(|&member| header.participants.contains(member)) {
            None => redo.push(sequence),
            Some(_) if planted!(ReplayAny) => redo.push(sequence),
            Some(member) if is_committed(sequence) && !(is_misread || planted!(LossIgnored)) => {
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
    let (open, gone): (Vec<_>, Vec<_>) = open.into_iter().partition(|sequence| records.contains_key(sequence));
    let is_needed = |sequence: &LogSequence| Some(*sequence) > held.trim && !planted!(VoidsLeft);
    let void = gone.into_iter().filter(is_needed).filter_map(|sequence| void(&records, sequence)).collect();
    Ok(Chosen { redo, open, void })
}

/// A record without anything in the place of one that nobody has, by what the next one says.
fn void(records: &BTreeMap<LogSequence, (&Header, MemberSet)>, sequence: LogSequence) -> Option<Header> {
    let (next, (header, _)) = records.range(sequence..).next()?;
    let back = usize::try_from(next.0 - sequence.0).ok()?;
    let participants = *header.previous.get(back - 1)?;
    let mut previous = [MemberSet::EMPTY; OPEN_MAX];
    previous.iter_mut().zip(&header.previous[back..]).for_each(|(own, known)| *own = *known);
    let open = header.open.map(|other| if other < sequence { other } else { LogSequence(0) });
    let slot = participants.iter().next()?;
    let (content_checksum, extents) = (crc32fast::hash(&[]), Vec::new());
    Some(Header { sequence, participants, previous, open, slot, content_checksum, extents, ..(*header).clone() })
}

/// The records that were open when all that there are later were written, there or not; the newest is.
fn open_of(records: &BTreeMap<LogSequence, (&Header, MemberSet)>) -> Vec<LogSequence> {
    let Some((&newest, (header, _))) = records.last_key_value() else { return Vec::new() };
    let mut open: Vec<LogSequence> = header.open.iter().copied().filter(|open| open.0 > 0).collect();
    if planted!(OpenUnread) {
        open.clear();
    }
    for (&sequence, (header, _)) in records.iter().rev().skip(1) {
        open.retain(|other| *other >= sequence || header.open.contains(other));
    }
    open.push(newest);
    open
}

/// A record shortly before one that is `known` neither to be there nor to be open, and who has lost it.
fn gap_before(
    header: &Header,
    held: &Held,
    accepted: MemberSet,
    known: impl Fn(LogSequence) -> bool,
) -> Option<(MemberIndex, LogSequence)> {
    (1..).zip(header.previous).find_map(|(back, participants)| {
        let before = LogSequence(header.sequence.0.checked_sub(back)?);
        let is_gap = Some(before) > held.trim && !known(before);
        let loser = participants.iter().find(|&member| is_gap && accepted.contains(member));
        loser.map(|member| (member, before))
    })
}

#[cfg(test)]
mod tests {
    use uraid_layout::Bytes;
    use uuid::Uuid;

    use super::*;

    const NONE: MemberSet = MemberSet::EMPTY;

    fn held(slot: u8, sequence: u64, trim: u64, participants: &[u8]) -> Header {
        Header {
            generation: Uuid::nil(),
            sequence: LogSequence(sequence),
            trim: LogSequence(trim),
            participants: participants.iter().map(|&slot| MemberIndex(slot)).collect(),
            previous: Default::default(),
            open: Default::default(),
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
        Ok(choose(accepted, &all(headers))?.redo.into_iter().map(|redo| redo.0).collect())
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
            previous: [previous.iter().map(|&slot| MemberIndex(slot)).collect(), NONE, NONE, NONE],
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
    fn a_record_that_was_open_may_be_missing() {
        let open = |open: [u64; 3], header: Header| Header { open: open.map(LogSequence), ..header };
        let lost =
            |member, sequence| Err(ReplayError::Lost { member: MemberIndex(member), sequence: LogSequence(sequence) });
        let older = [held(0, 1, 0, &[0, 1]), held(1, 1, 0, &[0, 1]), held(0, 2, 0, &[0, 1])];
        let newer = |open_of_3, open_of_4| {
            let mut all = older.to_vec();
            all.extend([open(open_of_3, held(2, 3, 0, &[2])), open(open_of_4, held(2, 4, 0, &[2]))]);
            all
        };
        assert_eq!(chosen(&[0, 1, 2], &newer([2, 0, 0], [0, 2, 3])), Ok(vec![1, 3, 4]), "it was open all the time");
        assert_eq!(chosen(&[0, 1, 2], &newer([2, 0, 0], [3, 0, 0])), lost(1, 2), "it was committed before record 4");
        assert_eq!(chosen(&[0, 1, 2], &newer([0; 3], [2, 3, 0])), lost(1, 2), "it was before record 3");
        assert_eq!(chosen(&[0, 2], &newer([0; 3], [0; 3])), Ok(vec![1, 2, 3, 4]), "who lacks it is gone");
        let open = choose(MemberSet::all(3), &all(&newer([2, 0, 0], [0, 2, 3]))).unwrap().open;
        assert_eq!(open, [2, 3, 4].map(LogSequence), "each of them may have been committed, or not");
    }

    /// Where the run goes on, records that nobody has are not missed later.
    #[test]
    fn what_nobody_has_is_void() {
        let (pair, one) = (MemberSet::all(2), MemberSet::EMPTY.with(MemberIndex(2)));
        let next = Header {
            previous: [one, pair, pair, one],
            open: [LogSequence(3), LogSequence(2), LogSequence(1)],
            ..held(2, 4, 0, &[2])
        };
        let void = choose(MemberSet::all(3), &all(std::slice::from_ref(&next))).unwrap().void;
        let voids: Vec<_> = void.iter().map(|void| (void.sequence.0, void.participants, void.open)).collect();
        let none = LogSequence(0);
        let open = |open: [u64; 3]| open.map(LogSequence);
        assert_eq!(voids, [(3, one, open([0, 2, 1])), (2, pair, open([0, 0, 1])), (1, pair, [none; 3])]);
        assert_eq!(void[0].previous, [pair, pair, one, MemberSet::EMPTY]);
        // With those it may go on.
        let copies = |void: &Header| -> Vec<Header> {
            void.participants.iter().map(|slot| Header { slot, ..void.clone() }).collect()
        };
        let mut later: Vec<Header> = void.iter().flat_map(copies).collect();
        later.extend([next, Header { previous: [one, one, pair, pair], ..held(0, 5, 0, &[0]) }]);
        assert_eq!(chosen(&[0, 1, 2], &later), Ok(vec![1, 2, 3, 4, 5]));
        later.retain(|header| header.sequence.0 != 2);
        assert!(matches!(chosen(&[0, 1, 2], &later), Err(ReplayError::Lost { .. })));
    }

    /// Numbers of which nobody has anything.
    #[test]
    fn a_gap_of_what_was_open_is_none() {
        let after = |open: [u64; 3], header: Header| Header {
            previous: [MemberSet::all(2), MemberSet::all(2), MemberSet::all(2), MemberSet::all(2)],
            open: open.map(LogSequence),
            ..header
        };
        let lost = |sequence| Err(ReplayError::Lost { member: MemberIndex(0), sequence: LogSequence(sequence) });
        let first = [held(0, 1, 0, &[0, 1]), held(1, 1, 0, &[0, 1])];
        let with = |header: Header| [&first[..], &[header]].concat();
        assert_eq!(chosen(&[0, 1, 2], &with(after([2, 3, 0], held(2, 4, 0, &[2])))), Ok(vec![1, 4]));
        assert_eq!(chosen(&[0, 1, 2], &with(after([3, 0, 0], held(2, 4, 0, &[2])))), lost(2));
        assert_eq!(chosen(&[2], &with(after([3, 0, 0], held(2, 4, 0, &[2])))[2..]), Ok(vec![4]));
        assert_eq!(chosen(&[0, 1, 2], &with(after([2, 3, 4], held(2, 5, 1, &[2])))), Ok(vec![5]));
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
        assert_eq!(choose(MemberSet::all(2), &held_all).unwrap().redo.len(), 10);
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
