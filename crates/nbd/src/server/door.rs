//! Where connections come in: accepted, given a permit or refused.

use tokio::time::{Duration, sleep};

use super::{
    Connections, Limits, Listener,
    listener::{Accepted, Arrival},
    parting::Parting,
    permits::Permit,
    refusals::{Refusal, Refusals},
    served::Ending,
};

/// How long to leave off accepting when the system is out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// A listener whose clients get permits.
#[derive(Debug)]
pub(super) struct Door {
    listener: Listener,
    limits: Limits,
    open: Connections,
    refusals: Refusals,
}

impl Door {
    pub(super) fn new(listener: Listener, limits: Limits, open: Connections) -> Self {
        Self { listener, limits, open, refusals: Refusals::default() }
    }

    /// Ends: removes the listener's socket files, or returns the sockets for another process.
    pub(super) fn close(self, ending: Ending) -> Vec<Parting> {
        match ending {
            Ending::Close => Vec::new(),
            Ending::HandOver => self.listener.part(),
        }
    }

    /// Waits for a client that may stay. Cancel safe.
    pub(super) async fn next(&mut self) -> (Arrival, Permit) {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = self.refusals.due() => {
                    self.refusals.report();
                    continue;
                }
            };
            let refusal = match accepted {
                Ok(Accepted { refusal: Some(refusal), .. }) => refusal,
                Ok(Accepted { arrival, .. }) if arrival.descriptor().is_some_and(leaves_too_few) => {
                    Refusal::FewDescriptors
                }
                Ok(Accepted { arrival, peer, .. }) => match self.open.admit(peer, &self.limits) {
                    Ok((permit, gave_way)) => {
                        gave_way.into_iter().for_each(|refusal| self.refusals.note(refusal));
                        if matches!(arrival, Arrival::Client(_)) {
                            // Its handshake is over, so it gives way to nobody.
                            assert!(permit.keep(), "the permit is new");
                        }
                        return (arrival, permit);
                    }
                    Err(refusal) => refusal,
                },
                Err(error) => {
                    self.refusals.note(Refusal::Failed(error));
                    sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            self.open.count_refused();
            self.refusals.note(refusal);
        }
    }
}

/// Descriptors that clients leave to whoever looks after the array: for its control socket, its metrics and its
/// programs.
const DESCRIPTORS_RESERVED: u64 = 48;

/// The least limit of open files with which a client is let in where so many are in use.
#[must_use]
pub fn descriptors_needed(in_use: u64) -> u64 {
    in_use + 1 + DESCRIPTORS_RESERVED.min(in_use + 1)
}

/// Whether a client with this descriptor would leave too few to others. The system gives out the lowest number that is
/// free, so a number near the limit means that nearly all are in use.
fn leaves_too_few(descriptor: i32) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let number = u64::try_from(descriptor).expect("a descriptor is a number from 0 on");
    limit.is_some_and(|limit| number + DESCRIPTORS_RESERVED.min(limit / 2) >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_are_needed_are_enough_for_a_client() {
        for in_use in 0..200_u64 {
            let needed = descriptors_needed(in_use);
            let lets_in = |limit: u64| in_use + DESCRIPTORS_RESERVED.min(limit / 2) < limit;
            assert!(lets_in(needed), "{in_use} are in use, and the limit is {needed}");
        }
    }
}
