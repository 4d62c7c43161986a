//! What a measurement finds.

/// What a result counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Thousands of requests a second; more is better.
    Kiops,
    /// Megabytes a second; more is better.
    MegabytesPerSecond,
    /// Mean microseconds from a request to its reply; less is better.
    Microseconds,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// In the row's unit.
    pub(crate) value: f64,
    /// The server's processor time for each request, in microseconds, durability of what was written included; `None`
    /// where requests of several kinds share it.
    pub(crate) processor: Option<f64>,
}

/// What a client reports of its run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    /// In the row's unit.
    pub(crate) value: f64,
}

impl Unit {
    /// How it is written.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Kiops => "kIOPS",
            Self::MegabytesPerSecond => "MB/s",
            Self::Microseconds => "us",
        }
    }
}
