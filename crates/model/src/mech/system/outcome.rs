//! What a run has shown.

use uraid_io::cache::Traffic;
use uraid_layout::Bytes;
use uraid_layout::plan::MethodCounts;

use super::super::Nanos;
use super::super::stats::Estimate;

/// What a run has shown. Requests that are not counted (see [`StopRule::warm_up`](super::super::StopRule::warm_up)) are
/// in none of the first five.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Response times, in nanoseconds.
    pub response: Estimate,
    /// Whether the interval is as narrow as the rule asks; otherwise the run was too short.
    pub is_precise: bool,
    /// Requests that ended.
    pub requests: u64,
    /// What they read and wrote.
    pub bytes: Bytes,
    /// How long that took.
    pub time: Nanos,
    /// Virtual time from the start of the run to its end.
    pub end: Nanos,
    /// Operations that disks began to serve, merged ones as one.
    pub served: u64,
    /// Of those, writes.
    pub writes_served: u64,
    /// Operations that were planned and are part of what is served.
    pub planned: u64,
    /// Sectors that disks read or wrote.
    pub sectors: u64,
    /// The share of time that the disks served something: of a disk that serves several operations at once, over one.
    pub utilisation: f64,
    /// Writes that waited for a parity stripe's lock.
    pub lock_waits: u64,
    /// Parity stripes that were written, by method; without those that were planned before on a tape.
    pub methods: MethodCounts,
    /// What the caches took in and wrote out.
    pub traffic: Traffic,
    /// Parity stripes that were rebuilt.
    pub stripes_rebuilt: u64,
}

impl Outcome {
    /// What clients read and wrote, in units of 10^6 bytes a second.
    #[must_use]
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes.0 as f64 * 1e3 / (self.time.0 as f64).max(1.0)
    }

    /// Clients' requests a second.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 * 1e9 / (self.time.0 as f64).max(1.0)
    }

    /// The mean response time in milliseconds.
    #[must_use]
    pub fn response_ms(&self) -> f64 {
        self.response.mean / 1e6
    }

    pub(super) fn add_service(&mut self, is_write: bool, sectors: u64, planned: u64) {
        self.served += 1;
        self.writes_served += u64::from(is_write);
        self.planned += planned;
        self.sectors += sectors;
    }
}
