//! Ending a reshape while the array is served: when all content is where it is to be, the members' superblocks say that
//! the array has its shape. Clients wait meanwhile, as when it grows. Then it uses all of its members' room.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use uraid_io::array::finish_served;
use uraid_io::engine::{Command, Reply};
use uraid_layout::{Geometry, MemberIndex};
use uuid::Uuid;

use super::grow::{fail, go_on_with};
use super::{Reactor, Token};
use crate::disk::LiveDisk;

/// How often to look.
const PERIOD: Duration = Duration::from_millis(250);

/// Waits until all content of a reshape is where it is to be. False: the array is not being reshaped.
pub(crate) async fn is_over<D: LiveDisk>(reactor: &Rc<Reactor<D>>) -> bool {
    loop {
        let is_over = reactor.engine.borrow().reshape().map(|way| way.is_over());
        let Some(is_over) = is_over else { return false };
        if is_over && !reactor.engine.borrow().is_frozen() {
            return true;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Gives the array the shape that its content has; that one. Whoever calls it has to set limits of rates again.
///
/// # Errors
/// If a member fails; then the server ends, and the next start goes on from there.
pub(crate) async fn finish<D: LiveDisk>(reactor: &Reactor<D>) -> Result<Geometry> {
    // So that there is little left to write out while clients wait.
    reactor.administer(Command::Flush).await?;
    let mut replies = Vec::new();
    let finished = finish_at_once(reactor, &mut replies);
    replies.into_iter().for_each(|reply| reactor.answer(reply));
    reactor.turn();
    finished?;
    let geometry = reactor.engine.borrow().geometry().clone();
    reactor.size.set(geometry.capacity().bytes());
    Ok(geometry)
}

/// Nothing else may run meanwhile.
fn finish_at_once<D: LiveDisk>(reactor: &Reactor<D>, replies: &mut Vec<Reply<Token>>) -> Result<()> {
    let mut engine = reactor.engine.borrow_mut();
    reactor.wind_up(&mut engine, replies)?;
    let slots = engine.disk().members().len();
    go_on_with(reactor, &mut engine, |engine| {
        if let Err(error) = finish_served(engine, Uuid::new_v4()) {
            let text = crate::text::chain(&error.into());
            fail(reactor, uraid_io::engine::EngineError::Frozen);
            anyhow::bail!("the reshape can't be ended now ({text}); the server ends: serve the array again");
        }
        Ok(())
    })?;
    for slot in engine.geometry().members()..slots {
        let slot = MemberIndex(u8::try_from(slot).context("slots are few")?);
        if let Ok(Some(member)) = engine.disk_mut().put(slot, None) {
            tracing::info!(path = %member.path().display(), "it is no member any more, and can be taken away");
        }
    }
    Ok(())
}
