//! Growing the array while it is served. Clients wait while what is in memory is written out and the members'
//! superblocks are written twice: for as long as a flush takes and some milliseconds. What is new becomes zeros
//! afterwards.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use uraid_io::array::{GrowError, check_growth, grow_served};
use uraid_io::engine::{Command, Engine, EngineError, Reply, Troubles};
use uraid_io::member::Member;
use uraid_layout::{Bytes, Geometry, MemberSet};
use uuid::Uuid;

use super::{Caching, Reactor, Token};
use crate::condition::slots;
use crate::disk::LiveDisk;
use crate::patience::Patience;
use crate::text::list;

/// How often to look whether members keep the array waiting.
const PERIOD: Duration = Duration::from_millis(250);

/// Has the array use `used` bytes of each member, or all that the smallest has room for; the larger array. Whoever
/// calls it has to set limits of rates again.
///
/// # Errors
/// If the array can't grow now; it is served as it was then, unless a member fails while superblocks are written:
/// then the server ends.
pub(crate) async fn grow<D: LiveDisk>(reactor: &Reactor<D>, used: Option<Bytes>) -> Result<Geometry> {
    sizes(reactor, used)?;
    // So that there is little left to write out while clients wait.
    let late = flush(reactor).await?;
    ensure!(
        late.is_empty(),
        "the array can't grow while it waits for members {}; `uraid status` says why. It is as large as it was",
        list(&slots(late)),
    );
    // A scrub may have begun meanwhile.
    let sizes = sizes(reactor, used)?;
    let mut replies = Vec::new();
    let grown = grow_at_once(reactor, &sizes, used, &mut replies);
    replies.into_iter().for_each(|reply| reactor.answer(reply));
    if grown.is_err() {
        // What goes on in the background was closed with the engine, until somebody wants something.
        reactor.engine.borrow_mut().submit(Token::Close, Command::Flush);
    }
    reactor.turn();
    grown?;
    let geometry = reactor.engine.borrow().geometry().clone();
    reactor.size.set(geometry.capacity().bytes());
    Ok(geometry)
}

/// Writes out what is in memory, unless members keep it waiting for longer than an operation may take: those.
pub(crate) async fn flush<D: LiveDisk>(reactor: &Reactor<D>) -> Result<MemberSet> {
    let mut flushed = pin!(reactor.administer(Command::Flush));
    loop {
        tokio::select! {
            done = &mut flushed => return done.map(|()| MemberSet::EMPTY),
            () = tokio::time::sleep(PERIOD) => {}
        }
        let Troubles { stalled, roomless, .. } = reactor.engine.borrow().troubles();
        let late = stalled.union(roomless);
        if !late.is_empty() {
            return Ok(late);
        }
    }
}

/// Whether the array can grow; the members' sizes, by slot.
fn sizes<D: LiveDisk>(reactor: &Reactor<D>, used: Option<Bytes>) -> Result<Vec<Option<Bytes>>> {
    let engine = reactor.engine.borrow();
    at_rest(reactor, &engine)?;
    let slots = &engine.disk().members()[..engine.geometry().members()];
    let size = |member: &Option<Arc<Member>>| member.as_ref().map(|member| member.measure()).transpose();
    let sizes = slots.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    check_growth(&engine, &sizes, used)?;
    Ok(sizes)
}

/// Refuses what is not for an array of whose members one is being copied or compared.
pub(super) fn at_rest<D: LiveDisk>(reactor: &Reactor<D>, engine: &Engine<D, Token>) -> Result<()> {
    engine.check_changes()?;
    let is_changing = engine.replacement().is_some() || reactor.begins_replacing.get();
    ensure!(!is_changing, "a member is being copied to another one: wait until that is done (uraid wait)");
    let is_scrubbing = engine.scrub().is_some_and(|scrub| scrub.is_running);
    ensure!(!is_scrubbing, "a scrub is running: wait for it, or stop it (uraid scrub stop)");
    Ok(())
}

/// Nothing else may run meanwhile.
fn grow_at_once<D: LiveDisk>(
    reactor: &Reactor<D>,
    sizes: &[Option<Bytes>],
    used: Option<Bytes>,
    replies: &mut Vec<Reply<Token>>,
) -> Result<()> {
    let mut engine = reactor.engine.borrow_mut();
    reactor.wind_up(&mut engine, replies)?;
    go_on_with(reactor, &mut engine, |engine| match grow_served(engine, sizes, used, Uuid::new_v4()) {
        Ok(()) => Ok(()),
        Err(GrowError::Member(source)) => {
            fail(reactor, EngineError::from(source));
            bail!("a member failed meanwhile; the server ends: serve the array again");
        }
        Err(GrowError::Engine { source }) => {
            fail(reactor, source);
            bail!("it has grown, and the server ends: serve the array again");
        }
        Err(error) => Err(error.into()),
    })
}

/// Has an engine go on with what its array becomes, with the cache and the limits of time that it had.
pub(super) fn go_on_with<D: LiveDisk>(
    reactor: &Reactor<D>,
    engine: &mut Engine<D, Token>,
    change: impl FnOnce(&mut Engine<D, Token>) -> Result<()>,
) -> Result<()> {
    let (patience, mode) = (Patience::of(&*engine), engine.cache_mode());
    change(engine)?;
    if let (Some(Caching { size, read_ahead, .. }), Some(mode)) = (reactor.caching, mode) {
        engine.install_cache(mode, &reactor.pool, size);
        engine.install_read_ahead(read_ahead);
    }
    patience.apply(engine);
    Ok(())
}

/// Ends the server.
pub(super) fn fail<D: LiveDisk>(reactor: &Reactor<D>, error: EngineError) {
    reactor.failure.set(Some(error));
    reactor.failed.notify_one();
}
