//! One disk at work: where its head is, and when an operation that begins now ends.
//!
//! Where spindles turn together, the clock's zero is where sector 0 of the first cylinder passes under the heads, so
//! what is under a head follows from the clock alone; others are ahead of that by an angle of their own.

use super::disk::{Disk, Memory, Model, Platters};

/// Where a disk's moving parts are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    pub(super) cylinder: u64,
    /// Behind the last sector that was served.
    pub(super) sector: u64,
    /// Until when a flash disk's interface is busy.
    interface: u64,
    /// How far the spindle is ahead of the clock, in nanoseconds of its turning.
    pub(super) ahead: u64,
    /// Whether an elevator goes down.
    pub(super) goes_down: bool,
}

impl Head {
    /// Over the first cylinder, on a spindle that is so far ahead of the clock.
    pub(super) fn at_rest(ahead: u64) -> Self {
        Self { ahead, ..Self::default() }
    }
}

/// What is to be read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) sector: u64,
    pub(super) len: u64,
    pub(super) is_write: bool,
}

/// Times are whole nanoseconds, sectors' are not: what is missed by less is not missed.
const ROUNDING_NS: u64 = 2000;

impl Disk {
    /// Moves the head through an operation that begins at `now`; when it ends, in nanoseconds.
    #[inline]
    pub(super) fn serve(&self, head: &mut Head, now: u64, span: Span) -> u64 {
        head.sector = span.sector + span.len;
        match &self.model {
            Model::Rotating(platters) => platters.serve(head, now, span),
            Model::Flash(memory) => memory.serve(head, now, span),
        }
    }

    /// The cylinder of a sector, for queues that go by it.
    #[inline]
    pub(super) fn cylinder(&self, sector: u64) -> u64 {
        match &self.model {
            Model::Rotating(platters) => sector / platters.sectors_per_cylinder,
            Model::Flash(_) => 0,
        }
    }
}

impl Platters {
    #[inline]
    fn serve(&self, head: &mut Head, now: u64, span: Span) -> u64 {
        let first = span.sector / self.sectors_per_cylinder;
        let last = (span.sector + span.len - 1) / self.sectors_per_cylinder;
        let arrival = now + self.command + self.seek(first.abs_diff(head.cylinder));
        head.cylinder = last;
        arrival + self.wait(arrival + head.ahead, span.sector, first) + self.transfer(span, last - first)
    }

    /// How long a sector takes to come under the head.
    #[inline]
    fn wait(&self, now: u64, sector: u64, cylinder: u64) -> u64 {
        let track = sector / self.sectors_per_track;
        let mut angle = (sector - track * self.sectors_per_track) * self.revolution / self.sectors_per_track;
        if self.is_skewed {
            angle = (angle + (track - cylinder) * self.head_switch + cylinder * self.next_cylinder) % self.revolution;
        }
        let now = now % self.revolution;
        let wait = if angle >= now { angle - now } else { angle + self.revolution - now };
        if wait + ROUNDING_NS >= self.revolution { 0 } else { wait }
    }

    /// How long the sectors take to pass, switches to the next tracks and cylinders included.
    #[inline]
    fn transfer(&self, span: Span, cylinders: u64) -> u64 {
        let passing = span.len * self.revolution / self.sectors_per_track;
        let mut switches = 0;
        if cylinders > 0 {
            switches += cylinders * self.crossing(self.next_cylinder);
        }
        if self.head_switch > 0 {
            let track = |sector: u64| sector / self.sectors_per_track;
            let tracks = track(span.sector + span.len - 1) - track(span.sector);
            switches += (tracks - cylinders) * self.crossing(self.head_switch);
        }
        passing + switches
    }

    /// What a change of track that takes `time` costs a transfer.
    #[inline]
    fn crossing(&self, time: u64) -> u64 {
        if self.is_skewed { time } else { time.next_multiple_of(self.revolution) }
    }
}

impl Memory {
    #[inline]
    fn serve(&self, head: &mut Head, now: u64, span: Span) -> u64 {
        let (latency, sector) =
            if span.is_write { (self.write, self.write_sector) } else { (self.read, self.read_sector) };
        let begin = (now + latency).max(head.interface);
        head.interface = begin + (span.len as f64 * sector) as u64;
        head.interface
    }
}
