//! Beginning and ending a reshape while the array is served. When all content is where it is to be, the members'
//! superblocks say that the array has its shape. Clients wait meanwhile, as when it grows. Then it uses all of its
//! members' room.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use uraid_io::array::{Exchange, Target, begin_served, finish_served, plan_served};
use uraid_io::engine::{Command, Engine, EngineError, Reply};
use uraid_layout::{Geometry, MemberIndex};
use uuid::Uuid;

use super::grow::{at_rest, fail, flush, go_on_with};
use super::{Reactor, Token};
use crate::condition::slots;
use crate::disk::LiveDisk;
use crate::text::list;

/// How often to look.
const PERIOD: Duration = Duration::from_millis(50);

/// Begins to give the array another shape. `begun` is told before anything else goes on. Whoever calls it has to set
/// limits of rates again.
///
/// # Errors
/// If that can't be now; the array is served as it was then, unless one of its members fails while it goes on record:
/// then the server ends.
pub(crate) async fn begin<D: LiveDisk>(
    reactor: &Reactor<D>,
    target: &Target,
    exchange: Exchange,
    begun: impl FnOnce(&Engine<D, Token>),
) -> Result<()> {
    // So that there is little left to write out while clients wait.
    let late = flush(reactor).await?;
    ensure!(
        late.is_empty(),
        "a reshape can't begin while the array waits for members {}; `uraid status` says why. It has the shape that it \
         had",
        list(&slots(late)),
    );
    // A scrub may have begun meanwhile.
    check(reactor, target, &exchange)?;
    let mut replies = Vec::new();
    let result = begin_at_once(reactor, target, exchange, &mut replies);
    if result.is_ok() {
        begun(&reactor.engine.borrow());
    }
    replies.into_iter().for_each(|reply| reactor.answer(reply));
    // What goes on in the background was closed with the engine, until somebody wants something.
    reactor.engine.borrow_mut().submit(Token::Close, Command::Flush);
    reactor.turn();
    result
}

/// Whether a reshape can begin.
///
/// # Errors
/// Why it can't.
pub(crate) fn check<D: LiveDisk>(reactor: &Reactor<D>, target: &Target, exchange: &Exchange) -> Result<()> {
    let engine = reactor.engine.borrow();
    at_rest(reactor, &engine)?;
    Ok(plan_served(&engine, target, &exchange.joining()).map(drop)?)
}

/// Nothing else may run meanwhile.
fn begin_at_once<D: LiveDisk>(
    reactor: &Reactor<D>,
    target: &Target,
    exchange: Exchange,
    replies: &mut Vec<Reply<Token>>,
) -> Result<()> {
    let mut engine = reactor.engine.borrow_mut();
    reactor.wind_up(&mut engine, replies)?;
    let (joining, count) = (exchange.joining(), engine.geometry().members());
    let places = (count..).map(|slot| MemberIndex(u8::try_from(slot).expect("slots are few")));
    let places: Vec<MemberIndex> = places.take(joining.len()).collect();
    let put = || {
        for (&slot, member) in places.iter().zip(exchange.into_members()) {
            let is_in = engine.disk_mut().put(slot, Some(member)).is_ok();
            ensure!(
                is_in,
                "operations on the last member that was copied to are still under way; try again when they have ended"
            );
            engine.disk_mut().forget_latencies(slot);
        }
        Ok(())
    };
    let result = put().and_then(|()| {
        go_on_with(reactor, &mut engine, |engine| match begin_served(engine, target, &joining, Uuid::new_v4()) {
            Ok(()) => Ok(()),
            Err(error) if engine.is_frozen() => {
                fail(reactor, EngineError::Frozen);
                Err(error)
                    .context("the reshape may have begun; the server ends: serve the array again, with all members")
            }
            Err(error) => Err(error.into()),
        })
    });
    if result.is_err() && !engine.is_frozen() {
        // They are nobody's members.
        places.iter().for_each(|&slot| drop(engine.disk_mut().put(slot, None)));
    }
    result
}

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
            fail(reactor, EngineError::Frozen);
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
