//! What goes into the journal of pages, and out of it.

use uraid_layout::{DiskSector, Lba, Sectors};

use crate::buf::Lease;
use crate::cache::{Cache, FlushLeft, Wanted};
use crate::engine::error::EngineError;
use crate::engine::journal::{FLUSH_SHARE, HURRY_SHARE, Journal, Sending};
use crate::engine::log::Piece;
use crate::engine::parts::Parts;
use crate::format::log::record::{Kind, LogSequence};

/// Makes everything durable that the cache took in before: in the journal, or where it is about to be written; not as
/// long as somebody waits until something is out of it. False: the journal has no room, and it is to be written out.
///
/// # Errors
/// [`EngineError::LogFailed`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn flush(parts: &Parts) -> Result<bool, EngineError> {
    let Some(journal) = &parts.journal else { return Ok(false) };
    let Some(mark) = parts.writeback.with(|cache| cache.journal().mark()) else { return Ok(false) };
    if parts.writeback.cache().is_some_and(|cache| cache.is_stuck()) {
        // What could not be written is tried again.
        let _ = parts.writeback.with(Cache::drain);
    }
    loop {
        parts.members.check_frozen()?;
        if journal.is_pressed() {
            journal.changed.wait(parts.tasks()).await;
            continue;
        }
        let left = parts.writeback.cache().map_or(FlushLeft::Nothing, |cache| cache.journal().left(mark));
        match left {
            FlushLeft::Nothing => {
                note_full(parts, false);
                return Ok(true);
            }
            FlushLeft::Wait => journal.changed.wait(parts.tasks()).await,
            FlushLeft::Journal if put(parts, journal, Wanted::Fresh).await? => {}
            FlushLeft::Flights if put(parts, journal, Wanted::Flights(mark)).await? => {}
            FlushLeft::Journal | FlushLeft::Flights => return Ok(false),
        }
    }
}

/// Has what is newer than the journal's of these parity stripes not wait where it need not: what the journal has of it
/// may be in place.
///
/// # Errors
/// As [`flush`].
pub(in crate::engine) async fn free(parts: &Parts, stripes: &std::ops::Range<u64>) -> Result<(), EngineError> {
    let Some(journal) = &parts.journal else { return Ok(()) };
    let is_due = || parts.writeback.cache().is_some_and(|cache| cache.journal().is_fresh_over_live(stripes.clone()));
    if is_due() {
        journal.wait_arrived(&parts.members).await?;
    }
    if is_due() {
        journal.log.tell_trim(&parts.members, &parts.flusher, &parts.replies).await?;
        pass_on(parts, journal);
    }
    Ok(())
}

/// Waits until nothing of a range is live: then it may be written without the cache. Who waits holds no stripes.
///
/// # Errors
/// [`EngineError::NotDestaged`]; as [`flush`].
pub(in crate::engine) async fn retire(parts: &Parts, lba: Lba, len: Sectors) -> Result<(), EngineError> {
    let Some(journal) = parts.journal.as_ref().filter(|_| is_live(parts, lba, len)) else { return Ok(()) };
    let _pressing = journal.begin_pressing(&parts.writeback);
    let mut has_tried = false;
    while is_live(parts, lba, len) {
        parts.members.check_frozen()?;
        journal.wait_arrived(&parts.members).await?;
        // What fails is tried once.
        let has_tried = std::mem::replace(&mut has_tried, true);
        let _ = parts.writeback.with(if has_tried { Cache::hurry } else { Cache::drain });
        if parts.writeback.cache().is_some_and(|cache| cache.journal().is_held_within(lba, len)) {
            check_written(parts)?;
            journal.changed.wait(parts.tasks()).await;
            continue;
        }
        // What else there is in those records may be there for long.
        let last = journal.log.last();
        while !renew_copies(parts, journal, last).await? {
            check_written(parts)?;
            journal.changed.wait(parts.tasks()).await;
        }
        journal.log.tell_trim(&parts.members, &parts.flusher, &parts.replies).await?;
        pass_on(parts, journal);
    }
    Ok(())
}

/// Refuses to go on where something can't be written out, when all else is.
fn check_written(parts: &Parts) -> Result<(), EngineError> {
    let cache = parts.writeback.cache();
    let unwritten = cache.and_then(|cache| cache.unwritten().filter(|_| cache.is_blocked()));
    unwritten.map_or(Ok(()), |unwritten| Err(unwritten.into()))
}

/// Whether the journal has something of a range that would come back after a stop.
pub(in crate::engine) fn is_live(parts: &Parts, lba: Lba, len: Sectors) -> bool {
    let is_live = |cache: &Cache| cache.journal().is_live(lba, len) && !planted!(LiveReplaced);
    parts.writeback.cache().is_some_and(|cache| is_live(&cache))
}

/// Has nothing rely on records up to this one: what they hold goes into the journal again, unless it is written out
/// before. False: there is no room for now.
///
/// # Errors
/// As [`flush`].
pub(super) async fn renew_copies(parts: &Parts, journal: &Journal, upto: LogSequence) -> Result<bool, EngineError> {
    loop {
        parts.members.check_frozen()?;
        journal.wait_arrived(&parts.members).await?;
        pass_on(parts, journal);
        if journal.log.released_upto() >= upto {
            return Ok(true);
        }
        let has_some = parts.writeback.with(|cache| cache.journal_mut().refresh(upto)).unwrap_or(false);
        if !has_some && journal.is_busy() {
            continue;
        }
        if !has_some || !put(parts, journal, Wanted::HeldUpto(upto)).await? {
            return Ok(false);
        }
    }
}

/// Makes room where the ring is full, all else is written out, and what can't be keeps the oldest records: that goes
/// into the journal once more. False: it takes all the room that there is.
///
/// # Errors
/// As [`flush`].
pub(super) async fn make_room(parts: &Parts) -> Result<bool, EngineError> {
    let Some(journal) = parts.journal.as_ref().filter(|_| !planted!(FullOfUnwritten)) else { return Ok(false) };
    let last = journal.log.last();
    while !renew_copies(parts, journal, last).await? {
        if parts.writeback.cache().is_none_or(|cache| cache.is_blocked()) {
            note_full(parts, true);
            return Ok(false);
        }
        journal.changed.wait(parts.tasks()).await;
    }
    journal.log.tell_trim(&parts.members, &parts.flusher, &parts.replies).await?;
    pass_on(parts, journal);
    let has_room = journal.chosen(&parts.members, 1, FLUSH_SHARE).is_some();
    note_full(parts, !has_room);
    Ok(has_room)
}

fn note_full(parts: &Parts, is_full: bool) {
    let _ = parts.writeback.with(|cache| cache.journal_mut().note_full(is_full));
}

/// Takes note of what nobody needs the journal for any more.
pub(in crate::engine) fn settle(parts: &Parts) {
    let Some(journal) = &parts.journal else { return };
    pass_on(parts, journal);
    journal.changed.wake(parts.tasks());
}

/// The same; nobody looks again for that.
fn pass_on(parts: &Parts, journal: &Journal) {
    journal.settle_late(&parts.members, &parts.writeback);
    while let Some(sequence) = parts.writeback.with(|cache| cache.journal_mut().released()).flatten() {
        journal.log.release(sequence, &parts.members);
    }
    let _ = parts.writeback.with(|cache| cache.journal_mut().marked(journal.log.marked()));
    journal.press(&parts.writeback);
}

/// Puts what is wanted into the journal, as much as a record takes. False: there is no room.
async fn put(parts: &Parts, journal: &Journal, wanted: Wanted) -> Result<bool, EngineError> {
    let Some(sending) = journal.begin_batch() else {
        journal.arrived.wait(parts.tasks()).await;
        return Ok(true);
    };
    let result = put_batch(parts, journal, &sending, wanted).await;
    drop(sending);
    if !matches!(result, Ok(Put::NoPlace)) {
        // Those who wait for a place would only wake each other.
        journal.arrived.wake(parts.tasks());
    }
    if matches!(result, Err(_) | Ok(Put::GivenBack)) {
        // Nobody who waits for what was on its way gets it.
        journal.changed.wake(parts.tasks());
    }
    match result? {
        Put::Done => settle(parts),
        // Nothing has changed: whoever waits for room goes on when there is.
        Put::NoRoom | Put::GivenBack => return Ok(false),
        // Some record is on its way.
        Put::NoPlace => journal.arrived.wait(parts.tasks()).await,
    }
    Ok(true)
}

/// What has become of a batch.
enum Put {
    Done,
    /// Rings are full.
    NoRoom,
    /// They have become so since the batch was on its way.
    GivenBack,
    /// Who has room takes part in as many open records as it may.
    NoPlace,
}

async fn put_batch(
    parts: &Parts,
    journal: &Journal,
    sending: &Sending<'_>,
    mut wanted: Wanted,
) -> Result<Put, EngineError> {
    let members = &parts.members;
    // What is not in place is the array's only where it is not marked clean.
    let _writer = if planted!(JournalOfClean) { None } else { Some(members.begin_writing().await?) };
    let count_of = |wanted| {
        let count = parts.writeback.cache().map_or(0, |cache| cache.journal().count(wanted));
        count.min(journal.most)
    };
    let mut count = count_of(wanted);
    // What is to be destaged after it makes room.
    let is_renewed = matches!(wanted, Wanted::HeldUpto(_));
    let share = if is_renewed { 8 } else { FLUSH_SHARE };
    let mut chosen = journal.chosen(members, count, share);
    if chosen.is_none() {
        journal.log.tell_trim(members, &parts.flusher, &parts.replies).await?;
        chosen = journal.chosen(members, count, share);
    }
    if chosen.is_none() && is_renewed {
        // What the oldest record has is enough to go on.
        wanted = Wanted::HeldUpto(LogSequence(journal.log.released_upto().0 + 1));
        count = count_of(wanted);
        chosen = journal.chosen(members, count, share).filter(|_| count > 0);
    }
    // As much as there is room for: who has made some counts on it.
    while chosen.is_none() && count > 1 {
        count /= 2;
        chosen = journal.chosen(members, count, share);
    }
    let Some(chosen) = chosen else {
        let _ = parts.writeback.with(Cache::hurry);
        return Ok(Put::NoRoom);
    };
    if journal.log.have_their_share(chosen) {
        return Ok(Put::NoPlace);
    }
    let mut going = journal.content.borrow_mut().pop().unwrap_or_default();
    let take = |cache: &mut Cache| cache.journal_mut().take(count, wanted, &mut going);
    let batch = parts.writeback.with(take).expect("there is a cache as long as there is a journal");
    if going.is_empty() {
        let _ = parts.writeback.with(|cache| cache.journal_mut().journaled(batch, None));
        journal.content.borrow_mut().push(going);
        return Ok(Put::Done);
    }
    sending.note(batch, parts.tasks());
    let piece = |member, (lba, lease): &(Lba, Lease)| Piece {
        member,
        sector: DiskSector(lba.0),
        len: uraid_layout::Bytes(lease.len() as u64).whole_sectors(),
        kind: Kind::Page,
        content: Some(lease.part(0..lease.len())),
    };
    let fill = |update: &mut Vec<Piece>| {
        update.extend(chosen.iter().flat_map(|member| going.iter().map(move |page| piece(member, page))));
    };
    let result = journal.log.put_pages(fill, members).await;
    if !sending.is_overtaken() {
        let _ = parts.writeback.with(|cache| match result {
            Ok(None) => cache.journal_mut().give_back(batch),
            Ok(record) => cache.journal_mut().journaled(batch, record),
            Err(_) => cache.journal_mut().journaled(batch, None),
        });
    }
    going.clear();
    journal.content.borrow_mut().push(going);
    if result?.is_none() {
        let _ = parts.writeback.with(Cache::hurry);
        return Ok(Put::GivenBack);
    }
    members.failures_recorded().await?;
    let is_over = |cache: &mut Cache| journal.hurried.get().is_none_or(|mark| cache.is_drained(mark));
    if journal.log.is_fuller_than(HURRY_SHARE) && parts.writeback.with(is_over) == Some(true) {
        journal.want_hurry();
    }
    Ok(Put::Done)
}

/// Has the next batch written out, if what was written out by now leaves too much in the rings: all that is dirty, so
/// that pages of one stripe come together.
///
/// # Errors
/// As [`flush`].
pub(in crate::engine) async fn hurry(parts: &Parts) -> Result<(), EngineError> {
    let Some(journal) = &parts.journal else { return Ok(()) };
    let result = hurry_alone(parts, journal).await;
    journal.is_hurrying.set(false);
    result
}

async fn hurry_alone(parts: &Parts, journal: &Journal) -> Result<(), EngineError> {
    pass_on(parts, journal);
    // Rings that are full get no records, which would tell them.
    journal.log.tell_trim(&parts.members, &parts.flusher, &parts.replies).await?;
    pass_on(parts, journal);
    journal.changed.wake(parts.tasks());
    if journal.log.is_fuller_than(HURRY_SHARE) {
        journal.hurried.set(parts.writeback.with(Cache::hurry));
    }
    Ok(())
}
