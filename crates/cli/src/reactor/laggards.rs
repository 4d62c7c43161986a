//! Finds members that are slow compared with the array's other members, from the latencies of their operations.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use uraid_io::disk::laggards::{Laggards, WINDOW};
use uraid_layout::MemberIndex;

use super::Reactor;

impl Reactor {
    /// Compares the members periodically, forever. Missing and incomplete members are left out, because their load
    /// differs.
    pub(super) async fn compare_members(&self) {
        let all = self.engine.borrow().geometry().all_members();
        let mut laggards = Laggards::new(all.len(), Duration::ZERO);
        let (began, mut replaced) = (Instant::now(), None::<(MemberIndex, u32)>);
        loop {
            sleep(WINDOW).await;
            let Ok(facts) = self.all_facts().await else { continue };
            if facts.condition.replaced != replaced {
                replaced = facts.condition.replaced;
                replaced.into_iter().for_each(|(slot, _)| laggards.forget(slot));
            }
            let present = all.minus(facts.condition.lost());
            self.lagging.set(laggards.look(began.elapsed(), &facts.latencies, present));
            self.look();
        }
    }
}
