//! What a server says of log devices, and of how long operations take.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uraid_io::histogram::Histogram;
use uuid::Uuid;

/// A device that the log is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDevice {
    pub number: u8,
    pub uuid: Uuid,
    pub path: Option<String>,
    pub state: LogDeviceState,
    /// It does not answer, and writes wait for it.
    pub stalled: bool,
    /// Records written to it.
    pub records: u64,
    pub written_bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    pub write_latency: Latency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogDeviceState {
    /// It has every record.
    Active,
    /// It failed or was missing, and is not used any more.
    Failed,
}

/// A log device that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAdded {
    /// Its number.
    pub log_device: u8,
    pub uuid: Uuid,
}

/// A log device, for messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedLog {
    pub number: u8,
    pub path: Option<String>,
}

/// Latency of a member's operations, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// `None` without operations.
    pub mean_us: Option<u64>,
    /// Upper bound for 99 of 100 operations, to the precision of the buckets.
    pub p99_us: Option<u64>,
    /// Sum over all operations.
    pub sum_us: u64,
    /// Number of operations by latency. The bounds are powers of two from 16 us on; the last bucket has no bound.
    pub buckets: Vec<u64>,
}

impl Latency {
    /// Summarises a histogram.
    #[must_use]
    pub fn of(histogram: &Histogram) -> Self {
        let us = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Self {
            mean_us: histogram.mean().map(us),
            p99_us: histogram.quantile(990).map(us),
            sum_us: us(histogram.sum()),
            buckets: histogram.buckets().to_vec(),
        }
    }

    /// The histogram, if the server sent one of this version.
    pub fn histogram(&self) -> Option<Histogram> {
        let buckets = self.buckets.as_slice().try_into().ok()?;
        Some(Histogram::of_buckets(buckets, Duration::from_micros(self.sum_us)))
    }
}
