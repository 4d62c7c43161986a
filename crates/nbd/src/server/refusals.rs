//! Refused connections, summed up: one log line for all refusals within a second.

use std::{fmt, io, time::Duration};

use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::peer::Peer;

/// How long refusals are summed up before they are logged.
const PERIOD: Duration = Duration::from_secs(1);

/// Why a connection was closed at once.
#[derive(Debug)]
pub(super) enum Refusal {
    /// All places are taken.
    TooMany { max: usize },
    /// The peer's host has reached its limit.
    TooManyOfHost { max: usize, peer: Peer },
    /// The user is none of those who may connect.
    Stranger { user: u32 },
    /// Only the last file descriptors are left, which are not for clients.
    FewDescriptors,
    /// One that had not finished its handshake gave way to a new one.
    GaveWay,
    /// The system gave no socket.
    Failed(io::Error),
}

/// The refusals since the last report.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    sum: Sum,
    due: Option<Instant>,
}

/// The count of each kind, and the message of the last one.
#[derive(Debug, Default)]
struct Sum {
    too_many: (u64, usize),
    too_many_of_host: (u64, Option<(usize, Peer)>),
    strangers: (u64, u32),
    few_descriptors: u64,
    gave_way: u64,
    failed: (u64, Option<io::Error>),
}

impl Refusals {
    pub(super) fn note(&mut self, refusal: Refusal) {
        self.sum.add(refusal);
        self.due.get_or_insert_with(|| Instant::now() + PERIOD);
    }

    /// Waits until [`Refusals::report`] is due. Cancel safe.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Logs the refusals, if there are any.
    pub(super) fn report(&mut self) {
        if self.due.take().is_some() {
            warn!("{}", std::mem::take(&mut self.sum));
        }
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        self.report();
    }
}

impl Sum {
    fn add(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::TooMany { max } => self.too_many = (self.too_many.0 + 1, max),
            Refusal::TooManyOfHost { max, peer } => {
                self.too_many_of_host = (self.too_many_of_host.0 + 1, Some((max, peer)));
            }
            Refusal::Stranger { user } => self.strangers = (self.strangers.0 + 1, user),
            Refusal::FewDescriptors => self.few_descriptors += 1,
            Refusal::GaveWay => self.gave_way += 1,
            Refusal::Failed(error) => self.failed = (self.failed.0 + 1, Some(error)),
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = |count| if count == 1 { "connection" } else { "connections" };
        let mut reasons = Vec::new();
        if let (count @ 1.., max) = self.too_many {
            reasons.push(format!("{count} new {} refused: there are {max}, the most at a time", connections(count)));
        }
        if let (count @ 1.., Some((max, peer))) = &self.too_many_of_host {
            let noun = connections(*count);
            reasons.push(format!(
                "{count} new {noun} refused: a host may have {max} at a time; the last came from {peer}"
            ));
        }
        if let (count @ 1.., user) = self.strangers {
            let noun = connections(count);
            reasons.push(format!("{count} new {noun} refused: user {user} is none of those who may connect"));
        }
        if let count @ 1.. = self.few_descriptors {
            let noun = connections(count);
            reasons.push(format!(
                "{count} new {noun} refused: too few file descriptors are left; raise the limit (ulimit -n, or \
                 LimitNOFILE= of the unit)"
            ));
        }
        if let count @ 1.. = self.gave_way {
            let noun = connections(count);
            reasons.push(format!("{count} {noun} closed that had not finished their handshake: new ones came"));
        }
        if let (count @ 1.., Some(error)) = &self.failed {
            reasons.push(format!("{count} new {} could not be accepted: {error}", connections(*count)));
        }
        f.write_str(&reasons.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_many_there_were_and_why() {
        let mut sum = Sum::default();
        let peer = |port| Peer::Remote(([10, 0, 0, 1], port).into());
        sum.add(Refusal::TooMany { max: 64 });
        assert_eq!(sum.to_string(), "1 new connection refused: there are 64, the most at a time");
        sum.add(Refusal::TooMany { max: 64 });
        sum.add(Refusal::TooManyOfHost { max: 48, peer: peer(1) });
        sum.add(Refusal::TooManyOfHost { max: 48, peer: peer(2) });
        sum.add(Refusal::Stranger { user: 1000 });
        sum.add(Refusal::GaveWay);
        sum.add(Refusal::Failed(io::ErrorKind::OutOfMemory.into()));
        assert_eq!(
            sum.to_string(),
            "2 new connections refused: there are 64, the most at a time; 2 new connections refused: a host may have \
             48 at a time; the last came from 10.0.0.1:2; 1 new connection refused: user 1000 is none of those \
             who may connect; 1 connection closed that had not finished their handshake: new ones came; 1 new \
             connection could not be accepted: out of memory"
        );
    }
}
