//! Where records go in one member's part of the log: a ring of blocks, filled in order.
//!
//! A record's place is used again when the record is trimmed *and* this member durably holds the mark that says so:
//! what survives on any one member is then enough to know that the records which it has overwritten are not to be done
//! again, nor those before them.

use std::collections::VecDeque;
use std::ops::Range;

use uraid_layout::Bytes;

use super::record::LogSequence;

/// One member's ring. Positions count from the start of the member's log area.
#[derive(Debug)]
pub(crate) struct Ring {
    area: Range<u64>,
    /// Where the next record goes, if it fits there.
    head: u64,
    /// The records that are still needed, oldest first; and what they take together.
    live: VecDeque<(LogSequence, Range<u64>)>,
    used: u64,
    /// The mark that the member durably holds.
    marked: LogSequence,
}

impl Ring {
    /// An empty ring in a part of the log area.
    pub(crate) fn new(area: Range<u64>) -> Self {
        Self { head: area.start, area, live: VecDeque::new(), used: 0, marked: LogSequence(0) }
    }

    /// The ring's size.
    pub(crate) fn size(&self) -> Bytes {
        Bytes(self.area.end - self.area.start)
    }

    /// What records take that are still needed.
    pub(crate) fn used(&self) -> Bytes {
        Bytes(self.used)
    }

    /// Whether a mark would make room.
    pub(crate) fn frees(&self, trim: LogSequence) -> bool {
        self.live.front().is_some_and(|(sequence, _)| *sequence <= trim)
    }

    /// Where a record of `len` bytes would go so that `spare` more bytes could follow it; none without that room.
    pub(crate) fn find(&self, len: Bytes, spare: Bytes) -> Option<Bytes> {
        let fits = |start: u64, end: u64| end.checked_sub(start).is_some_and(|room| len.0 <= room);
        let Some((_, oldest)) = self.live.front() else {
            return (len.0 + spare.0 <= self.size().0).then_some(Bytes(self.area.start));
        };
        if self.head <= oldest.start {
            // What is live goes around the end.
            return fits(self.head, oldest.start.saturating_sub(spare.0)).then_some(Bytes(self.head));
        }
        let before = oldest.start.saturating_sub(spare.0);
        let has_spare = self.head + len.0 + spare.0 <= self.area.end
            || fits(self.area.start, oldest.start) && spare.0 <= oldest.start - self.area.start;
        if fits(self.head, self.area.end) && has_spare {
            return Some(Bytes(self.head));
        }
        fits(self.area.start, before).then_some(Bytes(self.area.start))
    }

    /// Takes the place that [`Ring::find`] found.
    pub(crate) fn take(&mut self, sequence: LogSequence, at: Bytes, len: Bytes) {
        self.head = at.0 + len.0;
        self.live.push_back((sequence, at.0..self.head));
        self.used += len.0;
    }

    /// Notes that the member durably holds a record with the mark `trim`.
    pub(crate) fn mark(&mut self, trim: LogSequence) {
        self.marked = self.marked.max(trim);
        while let Some((_, place)) = self.live.front().filter(|(sequence, _)| *sequence <= self.marked) {
            self.used -= place.end - place.start;
            self.live.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: Bytes = crate::format::BLOCK.bytes();

    #[test]
    fn a_place_is_not_used_again_before_the_mark_is_durable() {
        let mut ring = Ring::new(8192..8192 + 4 * 4096);
        let mut at = Vec::new();
        for sequence in 1..=3 {
            let place = ring.find(BLOCK, BLOCK).unwrap();
            ring.take(LogSequence(sequence), place, BLOCK);
            at.push(place.0);
        }
        assert_eq!(at, [8192, 12288, 16384]);
        assert_eq!(ring.find(BLOCK, BLOCK), None, "the last block is kept for a mark");
        assert_eq!(ring.find(BLOCK, Bytes(0)), Some(Bytes(20480)));
        assert!(!ring.frees(LogSequence(0)) && ring.frees(LogSequence(1)));
        ring.mark(LogSequence(1));
        assert!(!ring.frees(LogSequence(1)), "a mark that frees nothing only takes room");
        assert_eq!(ring.find(BLOCK, BLOCK), Some(Bytes(20480)));
        ring.take(LogSequence(4), Bytes(20480), BLOCK);
        assert_eq!(ring.find(BLOCK, Bytes(0)), Some(Bytes(8192)));
        assert_eq!(ring.find(BLOCK, BLOCK), None);
    }

    #[test]
    fn what_is_used_goes_from_the_oldest_record_to_the_newest() {
        let mut ring = Ring::new(8192..8192 + 4 * 4096);
        let mut used = vec![ring.used().0];
        for sequence in 1..=3 {
            let place = ring.find(BLOCK, BLOCK).unwrap();
            ring.take(LogSequence(sequence), place, BLOCK);
            used.push(ring.used().0);
        }
        ring.mark(LogSequence(2));
        used.push(ring.used().0);
        ring.take(LogSequence(4), Bytes(20480), BLOCK);
        ring.take(LogSequence(5), Bytes(8192), BLOCK);
        used.push(ring.used().0);
        ring.mark(LogSequence(5));
        used.push(ring.used().0);
        assert_eq!(used, [0, 4096, 8192, 12288, 4096, 12288, 0]);
    }

    proptest! {
        /// Whatever comes: no record is put where a live one is, or beyond the ring, and with room for a mark kept
        /// there always is a way on.
        #[test]
        fn live_records_are_never_overwritten(steps in proptest::collection::vec((1..6_u64, 0..4_u64), 1..200)) {
            let mut ring = Ring::new(4096..4096 + 12 * 4096);
            let mut live: Vec<(u64, Range<u64>)> = Vec::new();
            let mut sequence = 0;
            for (blocks, behind) in steps {
                let len = Bytes(blocks * 4096);
                sequence += 1;
                match ring.find(len, BLOCK) {
                    Some(at) => {
                        let range = at.0..at.0 + len.0;
                        prop_assert!(range.start >= 4096 && range.end <= 4096 + 12 * 4096);
                        prop_assert!(live.iter().all(|(_,
                            other)| other.end <= range.start || range.end <= other.start));
                        ring.take(LogSequence(sequence), at, len);
                        live.push((sequence, range));
                    }
                    None => {
                        // A record of one block with the newest mark always fits, and makes room.
                        let at = ring.find(BLOCK, Bytes(0));
                        prop_assert!(at.is_some());
                        let range = at.unwrap().0..at.unwrap().0 + 4096;
                        prop_assert!(live.iter().all(|(_,
                            other)| other.end <= range.start || range.end <= other.start));
                        ring.take(LogSequence(sequence), at.unwrap(), BLOCK);
                        live.retain(|_| false);
                        live.push((sequence, range));
                        ring.mark(LogSequence(sequence - 1));
                        continue;
                    }
                }
                let trim = sequence.saturating_sub(behind + 1);
                ring.mark(LogSequence(trim));
                live.retain(|(sequence, _)| *sequence > trim);
            }
        }
    }
}
