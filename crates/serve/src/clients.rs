//! The clients of a server, as administrators see them: how many there are, and how fast they may go on.

use std::sync::Arc;

use uraid_nbd::{Connections, RateLimits, Rates};

use crate::protocol::Limits;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    pub(crate) connections: Connections,
    /// The most that may be connected.
    pub(crate) connections_max: usize,
    pub(crate) rates: Arc<Rates>,
}

impl Clients {
    /// Limits the data that all of them together read and write in a second.
    pub(crate) fn limit_bytes(&self, bytes_per_second: Option<u64>) {
        self.rates.set(RateLimits { bytes_per_second, ..self.rates.limits() });
    }

    /// Limits the requests that all of them together begin in a second.
    pub(crate) fn limit_operations(&self, operations_per_second: Option<u64>) {
        self.rates.set(RateLimits { operations_per_second, ..self.rates.limits() });
    }

    /// All limits, of which others are those of background work.
    pub(crate) fn limits(&self, others: Limits) -> Limits {
        let RateLimits { operations_per_second, bytes_per_second } = self.rates.limits();
        Limits {
            client_bytes_per_second: bytes_per_second,
            client_operations_per_second: operations_per_second,
            ..others
        }
    }
}
