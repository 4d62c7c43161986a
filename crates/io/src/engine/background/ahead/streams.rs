//! Which reads follow each other, and how far ahead of them to read.
//!
//! A read that begins where another ended continues its stream, and from then on the stream has a window: [`FIRST`] at
//! the beginning, twice as much each time that half of it is read, up to a largest one. While a stream has a window,
//! reads may come a little out of order. A read that continues none begins a stream without a window: random reads cost
//! a look at this table and nothing else.
//!
//! The table is small and fixed. Streams that have a window and were read lately are the last to leave it, so that
//! random reads do not drive them out.

use std::ops::Range;

use uraid_layout::{Lba, Sectors};

/// The first window.
const FIRST: u64 = (128 << 10) / 512;

/// How far from where it is expected a read may begin, where the window is not shorter still.
const REACH: u64 = (256 << 10) / 512;

/// Streams in the table.
const STREAMS: usize = 16;

/// Reads of others after which a stream is taken to have ended.
const LATELY: u64 = 4096;

/// Sectors in a page of the cache: windows are whole pages.
const PAGE: u64 = 8;

#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    capacity: u64,
    largest: u64,
    /// Counts reads.
    clock: u64,
}

#[derive(Clone, Debug)]
struct Stream {
    /// The end of its furthest read.
    position: u64,
    /// The end of what was asked for.
    asked: u64,
    /// 0: nothing has continued it yet.
    window: u64,
    /// The first sector that was asked for and not yet given up.
    kept: u64,
    used: u64,
}

/// What follows from a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Advice {
    /// Read this ahead: whole pages.
    pub(super) ask: Option<Range<u64>>,
    /// Nobody will read this any more, of what was read ahead.
    pub(super) forget: Range<u64>,
}

impl Streams {
    /// A table for an array; windows grow to `largest`, in whole pages.
    pub(super) fn new(capacity: Sectors, largest: Sectors) -> Self {
        let largest = largest.0 / PAGE * PAGE;
        Self { streams: Vec::with_capacity(STREAMS), capacity: capacity.0, largest, clock: 0 }
    }

    /// Takes note of a client's read.
    pub(super) fn read(&mut self, lba: Lba, len: Sectors) -> Advice {
        self.clock += 1;
        let (start, end) = (lba.0, lba.0 + len.0);
        let near = self.streams.iter_mut().filter(|stream| stream.is_continued(start));
        let Some(stream) = near.min_by_key(|stream| stream.position.abs_diff(start)) else {
            return Advice { ask: None, forget: self.begin(end) };
        };
        stream.used = self.clock;
        stream.advance(len.0, end, self.largest, self.capacity)
    }

    /// Begins a stream in place of another, and returns what that one leaves behind.
    fn begin(&mut self, end: u64) -> Range<u64> {
        let stream = Stream { position: end, asked: end, window: 0, kept: end, used: self.clock };
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
            return 0..0;
        }
        let is_lively = |stream: &Stream| stream.window > 0 && self.clock - stream.used < LATELY;
        let last = self.streams.iter_mut().min_by_key(|stream| (is_lively(stream), stream.used));
        let gone = std::mem::replace(last.expect("the table is full"), stream);
        gone.kept..gone.asked
    }
}

impl Stream {
    fn reach(&self) -> u64 {
        self.window.min(REACH)
    }

    fn is_continued(&self, start: u64) -> bool {
        self.position.abs_diff(start) <= self.reach()
    }

    fn advance(&mut self, len: u64, end: u64, largest: u64, capacity: u64) -> Advice {
        let is_first = self.window == 0;
        if is_first {
            self.window = FIRST.min(largest);
        }
        self.position = self.position.max(end);
        if self.asked <= self.position {
            // What lies between was read, or jumped over.
            self.asked = self.position;
        }
        if self.asked - self.position > self.window / 2 {
            return Advice::default();
        }
        let next = if is_first { self.window } else { largest.min(2 * self.window) };
        let is_long = len >= self.window;
        self.window = next;
        let (start, ahead) = (self.asked / PAGE * PAGE, (self.asked + next).min(capacity) / PAGE * PAGE);
        if is_long || start >= ahead {
            // A read that is as long needs no help: its client has several in flight, or could have.
            return Advice::default();
        }
        if is_first {
            self.kept = start;
        }
        let behind = self.position.saturating_sub(self.reach()).clamp(self.kept, self.asked);
        let forget = self.kept..behind;
        (self.kept, self.asked) = (behind, ahead);
        Advice { ask: Some(start..ahead), forget }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 2;
    const MIB: u64 = 2048;

    fn streams() -> Streams {
        Streams::new(Sectors(1 << 30), Sectors(2 * MIB))
    }

    fn read(streams: &mut Streams, lba: u64, len: u64) -> Option<Range<u64>> {
        streams.read(Lba(lba), Sectors(len)).ask
    }

    /// What a sequence of reads of `len` from `lba` asks for.
    fn sequence(streams: &mut Streams, lba: u64, len: u64, count: u64) -> Vec<Range<u64>> {
        (0..count).filter_map(|index| read(streams, lba + index * len, len)).collect()
    }

    #[test]
    fn windows_double_and_follow_each_other() {
        let asks = sequence(&mut streams(), 1000 * MIB, 4 * KIB, 10_000);
        let sizes: Vec<u64> = asks.iter().map(|ask| (ask.end - ask.start) / KIB).collect();
        assert_eq!(sizes[..6], [128, 256, 512, 1024, 2048, 2048]);
        assert_eq!(asks[0].start, 1000 * MIB + 8 * KIB, "where the second read ends");
        assert!(asks.windows(2).all(|pair| pair[0].end == pair[1].start), "nothing is left out or asked for twice");
        let end = 1000 * MIB + 10_000 * 4 * KIB;
        let last = asks.last().expect("asked").end;
        assert!((end + MIB..=end + 3 * MIB).contains(&last), "between half a window and one and a half ahead");
    }

    #[test]
    fn nothing_is_asked_for_twice_when_reads_come_out_of_order() {
        let mut streams = streams();
        let mut asks = sequence(&mut streams, 0, 4 * KIB, 2);
        for pair in 0..500 {
            let lba = 8 * KIB + pair * 8 * KIB;
            asks.extend(read(&mut streams, lba + 4 * KIB, 4 * KIB));
            asks.extend(read(&mut streams, lba, 4 * KIB));
        }
        assert!(asks.len() > 4 && asks.windows(2).all(|pair| pair[0].end == pair[1].start), "{asks:?}");
    }

    #[test]
    fn random_reads_ask_for_nothing_and_leave_a_stream_alone() {
        let mut streams = streams();
        let mut asks = sequence(&mut streams, 0, 4 * KIB, 2);
        for index in 0..2000 {
            for other in 0..40 {
                let random = ((index * 40 + other) * 0x9E37_79B9 % (1 << 16) + 1000) * 2 * MIB;
                assert_eq!(read(&mut streams, random, 4 * KIB), None);
            }
            asks.extend(read(&mut streams, (index + 2) * 4 * KIB, 4 * KIB));
        }
        assert!(asks.windows(2).all(|pair| pair[0].end == pair[1].start), "one stream all the time: {asks:?}");
    }

    #[test]
    fn long_reads_need_no_help() {
        assert_eq!(sequence(&mut streams(), 0, 2 * MIB, 100), []);
        assert_eq!(sequence(&mut streams(), 0, 4 * MIB, 100), []);
    }

    #[test]
    fn the_end_of_the_array_is_the_end() {
        let mut streams = Streams::new(Sectors(512 * KIB), Sectors(2 * MIB));
        let asks = sequence(&mut streams, 0, 4 * KIB, 128);
        assert_eq!(asks.last().expect("asked").end, 512 * KIB);
        assert!(asks.windows(2).all(|pair| pair[0].end == pair[1].start), "{asks:?}");
    }

    #[test]
    fn windows_are_whole_pages_wherever_reads_begin() {
        let asks = sequence(&mut streams(), 3, 1, 5000);
        assert!(asks.len() > 3 && asks.iter().all(|ask| ask.start % PAGE == 0 && ask.end % PAGE == 0), "{asks:?}");
    }

    #[test]
    fn what_is_left_behind_is_forgotten_once() {
        let mut streams = streams();
        let (mut asked, mut forgotten) = (Vec::new(), Vec::new());
        let mut note = |advice: Advice| {
            asked.extend(advice.ask);
            forgotten.extend(Some(advice.forget).filter(|range| !range.is_empty()));
        };
        (0..3000).for_each(|index| note(streams.read(Lba(index * 8), Sectors(8))));
        // Enough others to end it.
        (0..LATELY + 2 * STREAMS as u64).for_each(|index| note(streams.read(Lba((index + 100) * 4 * MIB), Sectors(8))));
        assert_eq!(forgotten.first().expect("forgotten").start, asked.first().expect("asked").start);
        assert!(forgotten.windows(2).all(|pair| pair[0].end == pair[1].start), "{forgotten:?}");
        assert_eq!(forgotten.last().expect("forgotten").end, asked.last().expect("asked").end);
    }
}
