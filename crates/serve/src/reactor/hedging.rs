//! Reads of members on a network that take longer than nearly all of that member's reads do are computed from the
//! others. Without such members nothing is done here.

use std::rc::Rc;

use tokio::time::sleep;
use uraid_io::disk::tails::Tails;
use uraid_io::engine::{BEAT, Engine};

use super::{Reactor, Token};
use crate::disk::LiveDisk;

/// So often how long reads take is looked at.
const BEATS: u32 = 100;

/// Watches reads while there are any, forever.
pub(crate) async fn watch<D: LiveDisk>(reactor: Rc<Reactor<D>>) {
    let mut tails = Tails::default();
    loop {
        reactor.beating.notified().await;
        for beat in 0_u32.. {
            if !reactor.engine.borrow().wants_beats() {
                break;
            }
            if beat.is_multiple_of(BEATS) {
                look(&mut tails, &reactor.engine.borrow());
            }
            sleep(BEAT).await;
            if reactor.engine.borrow_mut().beat(tails.after()) {
                reactor.turn();
            }
        }
    }
}

fn look<D: LiveDisk>(tails: &mut Tails, engine: &Engine<D, Token>) {
    let counters = engine.counters();
    let members = engine.slots().iter().filter_map(|slot| {
        let member = engine.disk().members().get(slot.index())?.as_ref()?;
        member.is_export().then(|| (slot, counters.member(slot).hedged))
    });
    tails.look(engine.disk().latencies(), members);
}
