//! Clients that stay and do nothing: they ask for nothing, or stop in the middle of a request or of its reply.
//!
//! A connection looks a few times within the time that it allows, so that a request costs nothing for it.

use tokio::time::{Duration, Interval, MissedTickBehavior, interval};

/// How often to look within the time allowed.
const LOOKS: u32 = 4;

/// How long a client has been doing nothing.
#[derive(Debug)]
pub(super) struct Idle {
    looks: Option<Interval>,
    /// The bytes that had passed at the last look; none: it was not for the client to act.
    seen: Option<u64>,
    /// Looks since then that found nothing new.
    quiet: u32,
}

impl Idle {
    /// Of a client that may be idle for so long.
    pub(super) fn new(limit: Option<Duration>) -> Self {
        let looks = limit.map(|limit| {
            let mut looks = interval((limit / LOOKS).max(Duration::from_millis(1)));
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            looks
        });
        Self { looks, seen: None, quiet: 0 }
    }

    /// Waits until it is time to look. Cancel safe.
    pub(super) async fn tick(&mut self) {
        match &mut self.looks {
            Some(looks) => drop(looks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Looks at how many bytes have passed; none: it is not for the client to act. Whether the client's time is over.
    pub(super) fn is_over(&mut self, moved: Option<u64>) -> bool {
        if moved.is_none() || moved != self.seen {
            (self.seen, self.quiet) = (moved, 0);
            return false;
        }
        self.quiet += 1;
        self.quiet >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_does_nothing_long_enough_is_idle() {
        let mut idle = Idle::new(None);
        let mut looks = |moved: &[Option<u64>]| moved.iter().map(|&now| idle.is_over(now)).collect::<Vec<_>>();
        assert_eq!(looks(&[Some(0); 4]), [false; 4]);
        assert_eq!(looks(&[Some(1); 4]), [false; 4], "it has sent something");
        assert_eq!(looks(&[None; 100]), [false; 100], "something is being executed");
        assert_eq!(looks(&[Some(2); 5]), [false, false, false, false, true]);
    }
}
