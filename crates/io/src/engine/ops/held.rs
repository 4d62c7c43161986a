//! What every change of parity stripes holds from before its plan until it is over: the stripes' locks, the members'
//! dirty mark, and the bits of the stripes' regions.

use std::ops::Range;

use super::journal;
use crate::engine::error::EngineError;
use crate::engine::intent::Hold;
use crate::engine::members::Writer;
use crate::engine::parts::Parts;
use crate::engine::transfer::Transfer;

/// Parity stripes that are kept out of the journal, until this is dropped.
#[derive(Debug)]
struct Reserved<'a> {
    parts: &'a Parts,
    stripes: Range<u64>,
}

/// The dirty mark and the bits; the locks are the transfer's.
#[derive(Debug)]
pub(in crate::engine) struct Held<'a> {
    hold: Option<Hold<'a>>,
    /// Parity stripes that are kept out of the journal.
    reserved: Option<Reserved<'a>>,
    _writer: Writer<'a>,
}

/// Takes the stripes of a transfer's part, unless it has them, then waits until the members are marked as being written
/// and the bits are durably set.
///
/// # Errors
/// [`EngineError::Frozen`].
pub(in crate::engine) async fn take<'a>(transfer: &mut Transfer<'a>) -> Result<Held<'a>, EngineError> {
    let parts = transfer.parts;
    if transfer.guard.is_none() {
        transfer.guard = Some(parts.locks.acquire(transfer.span()).await);
    }
    let stripes = transfer.guard.as_ref().expect("it was taken").stripes();
    if planted!(ScrubUnlocked) && matches!(transfer.goal, crate::engine::transfer::Goal::Heal { .. }) {
        transfer.guard = None;
    }
    let writer = parts.members.begin_writing().await?;
    let hold = parts.intent.hold(&stripes, &parts.members, &parts.flusher).await?;
    Ok(Held { hold, reserved: None, _writer: writer })
}

/// As [`take`], of stripes that are about to be written without the cache: nothing of the part comes back from the
/// journal after a stop, nor goes there meanwhile.
///
/// # Errors
/// [`EngineError::NotDestaged`]; as [`take`].
pub(in crate::engine) async fn take_over<'a>(transfer: &mut Transfer<'a>) -> Result<Held<'a>, EngineError> {
    let parts = transfer.parts;
    loop {
        journal::retire(parts, transfer.at, transfer.len).await?;
        let mut held = take(transfer).await?;
        if parts.journal.is_none() {
            return Ok(held);
        }
        if !journal::is_live(parts, transfer.at, transfer.len) {
            held.reserved = Some(Reserved::new(parts, transfer.guard.as_ref().expect("it was taken").stripes()));
            return Ok(held);
        }
        drop(held);
        transfer.guard = None;
    }
}

impl<'a> Reserved<'a> {
    fn new(parts: &'a Parts, stripes: Range<u64>) -> Self {
        let _ = parts.writeback.with(|cache| cache.journal_mut().reserve(stripes.clone()));
        Self { parts, stripes }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let _ = self.parts.writeback.with(|cache| cache.journal_mut().unreserve(&self.stripes));
        journal::settle(self.parts);
    }
}

impl Held<'_> {
    /// Ends the hold on the bits early: a planted bug.
    pub(in crate::engine) fn end_intent(&mut self) {
        self.hold = None;
    }
}

/// Ends a part that was done, or failed with `error`: settles what flew of the cache, and gives everything back. False:
/// nothing flew.
pub(in crate::engine) fn release(transfer: &mut Transfer<'_>, held: Held<'_>, error: Option<&EngineError>) -> bool {
    let has_flown = transfer.settle(error);
    if error.is_some() {
        transfer.give_up_on_damage();
    }
    transfer.let_go();
    drop(held);
    transfer.guard = None;
    journal::settle(transfer.parts);
    has_flown
}
