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

    /// Moves through an operation of `disk` that begins at `now`; when it ends, in nanoseconds.
    #[inline]
    pub(super) fn serve(&mut self, disk: &Disk, now: u64, span: Span) -> u64 {
        self.sector = span.sector + span.len;
        match &disk.model {
            Model::Rotating(platters) => self.turn(platters, now, span),
            Model::Flash(memory) => self.transfer(memory, now, span),
        }
    }

    #[inline]
    fn turn(&mut self, platters: &Platters, now: u64, span: Span) -> u64 {
        let Span { sector, len, .. } = span;
        let first = sector / platters.sectors_per_cylinder;
        let last = (sector + len - 1) / platters.sectors_per_cylinder;
        let arrival = now + platters.command + platters.seek(first.abs_diff(self.cylinder));
        self.cylinder = last;
        arrival + platters.wait(arrival + self.ahead, sector, first) + platters.transfer(sector, len, last - first)
    }

    #[inline]
    fn transfer(&mut self, memory: &Memory, now: u64, span: Span) -> u64 {
        let (latency, sector) =
            if span.is_write { (memory.write, memory.write_sector) } else { (memory.read, memory.read_sector) };
        let begin = (now + latency).max(self.interface);
        self.interface = begin + (span.len as f64 * sector) as u64;
        self.interface
    }
}

/// What is to be read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) sector: u64,
    pub(super) len: u64,
    pub(super) is_write: bool,
}
