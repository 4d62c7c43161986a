//! A short busy poll while clients send one command at a time.
//!
//! The next command of such a client arrives some tens of microseconds after its reply. Sleeping in between costs two
//! wakeups, which is more than all the work. So after a command, the thread polls for the next one for a moment before
//! it sleeps. It does so only while that pays: a command that does not arrive in time costs credit, and without credit
//! the thread sleeps at once for a while. An idle server never spins.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

/// Maximum credit, which each command in time adds to, and the cost of a miss.
const CREDIT_MAX: u32 = 16;
const MISS_COST: u32 = 4;

/// Commands that pass without credit before spinning is tried again.
const REST: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Spinner {
    window: Duration,
    batches: Cell<u64>,
    arrived: Notify,
}

/// Whether spinning pays.
#[derive(Debug, PartialEq, Eq)]
struct Credit {
    left: u32,
    /// Commands still to pass without spinning.
    rest: u32,
}

impl Spinner {
    /// Polls for the next command for `window` after each.
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, batches: Cell::new(0), arrived: Notify::new() }
    }

    /// Whether it ever polls.
    pub(crate) fn spins(&self) -> bool {
        !self.window.is_zero()
    }

    /// Notes that commands have arrived.
    pub(crate) fn touch(&self) {
        self.batches.set(self.batches.get() + 1);
        self.arrived.notify_one();
    }

    /// Spins while it pays. Runs forever.
    pub(crate) async fn run(&self) {
        let mut credit = Credit { left: MISS_COST, rest: 0 };
        let mut seen = 0;
        loop {
            self.arrived.notified().await;
            // A notification of commands that the last spin saw is stale.
            if self.batches.get() != seen && credit.spins() {
                seen = self.spin(&mut credit).await;
            }
        }
    }

    /// Polls until no command has arrived for the window. Returns the number of batches by then.
    async fn spin(&self, credit: &mut Credit) -> u64 {
        let mut seen = self.batches.get();
        let mut since = Instant::now();
        while since.elapsed() < self.window {
            // The runtime polls its sockets every few dozen turns while a task is ready.
            yield_now().await;
            if self.batches.get() != seen {
                seen = self.batches.get();
                since = Instant::now();
                credit.hit();
            }
        }
        credit.miss();
        seen
    }
}

impl Credit {
    /// Whether to spin after this command.
    fn spins(&mut self) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
        }
        self.rest == 0
    }

    fn hit(&mut self) {
        self.left = (self.left + 1).min(CREDIT_MAX);
    }

    fn miss(&mut self) {
        self.left = self.left.saturating_sub(MISS_COST);
        if self.left == 0 {
            self.left = MISS_COST;
            self.rest = REST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_without_hits_rests_for_a_while_and_then_tries_again() {
        let mut credit = Credit { left: MISS_COST, rest: 0 };
        assert!(credit.spins());
        credit.miss();
        let tried: Vec<bool> = (0..REST).map(|_| credit.spins()).collect();
        assert_eq!(tried.iter().position(|&spins| spins), Some(REST as usize - 1));
    }

    #[test]
    fn a_load_with_hits_survives_single_misses() {
        let mut credit = Credit { left: MISS_COST, rest: 0 };
        (0..CREDIT_MAX).for_each(|_| credit.hit());
        for _ in 0..CREDIT_MAX / MISS_COST - 1 {
            credit.miss();
            assert!(credit.spins());
        }
        credit.miss();
        assert!(!credit.spins());
    }
}
