//! Finds members that are slow compared with the array's other members, from the latencies of their operations.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use uraid_io::disk::laggards::{Laggards, WINDOW};
use uraid_layout::MemberIndex;

use super::Reactor;
use super::snapshot::Snapshot;
use crate::disk::LiveDisk;

/// Compares the members periodically, forever. Missing and incomplete members are left out, because their load differs.
pub(crate) async fn watch<D: LiveDisk>(reactor: Rc<Reactor<D>>) {
    let all = reactor.engine.borrow().slots();
    let mut laggards = Laggards::new(all.len(), Duration::ZERO);
    let (began, mut replaced) = (Instant::now(), None::<(MemberIndex, u32)>);
    loop {
        sleep(WINDOW).await;
        let Ok(snapshot) = Snapshot::take(&reactor).await else { continue };
        if snapshot.condition.replaced != replaced {
            replaced = snapshot.condition.replaced;
            replaced.into_iter().for_each(|(slot, _)| laggards.forget(slot));
        }
        let present = all.minus(snapshot.condition.lost());
        reactor.reports.set_lagging(laggards.look(began.elapsed(), &snapshot.latencies, present));
        reactor.note_condition();
    }
}
