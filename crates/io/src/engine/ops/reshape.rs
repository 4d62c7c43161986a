//! Moving a window of an array that is being reshaped, while clients go on with all else.
//!
//! From the beginning to the end commands that touch the window wait, and those under way are waited for. What is in
//! memory of it is written out, and the log durably says that nothing which it has by now is to be done again: that may
//! be of places that the window is about to take. What it gets later is of places that hold content of other windows,
//! which are not these. Then the window is read, written to its new places, made durable, and the mark goes on record.
//! A window whose new places are some of its old ones is saved first, which goes on record, too: see
//! [`array::reshape`](crate::array::reshape).

use std::ops::Range;

use smallvec::smallvec;
use uraid_layout::reshape::{Heading, Window};
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, Sectors};

use super::destage::destage;
use super::read::fill;
use crate::array::reshape::lacking::{Content, Listed, add, in_blocks, lost_of, others, put};
use crate::array::reshape::moving::Part;
use crate::array::reshape::saved::Whose;
use crate::array::reshape::{moving, saved};
use crate::buf::Buf;
use crate::disk::Segments;
use crate::engine::background::reshape::{at_once, pace};
use crate::engine::between::{Between, Side};
use crate::engine::core::Core;
use crate::engine::error::EngineError;
use crate::engine::members::Members;
use crate::engine::operations::Purpose;
use crate::engine::parts::Parts;
use crate::engine::sums::block_at;
use crate::engine::sweeper::Kind;
use crate::engine::transfer::Workspace;
use crate::format::superblock::Reshape;

/// A write of a member: from a byte on, these pieces.
type Write = (MemberIndex, Bytes, Segments);

/// Moves what is next, if anything is. What can't be moved is tried again later.
pub(in crate::engine) async fn advance(core: &Core, space: &mut Workspace) {
    let parts = &core.sides.below;
    let Some(between) = parts.members.between() else { return };
    let (before, unit) = (between.stuck.get(), between.mark.get().0);
    let moved = turn_and_move(core, space, between).await;
    parts.sweeps.of(Kind::Reshape).drop_unit(unit);
    parts.wake_repairs();
    match moved {
        Ok(()) => between.stuck.set(None),
        Err(error) => {
            between.stuck.set(Some(between.mark.get()));
            parts.sweeps.of(Kind::Reshape).put_off();
            if before != between.stuck.get() && !parts.members.is_frozen() {
                tracing::error!(mark = %between.mark.get(), %error, "content can't be moved to the other shape");
            }
        }
    }
}

async fn turn_and_move(core: &Core, space: &mut Workspace, between: &Between) -> Result<(), EngineError> {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    let reshape = members.record().reshape().expect("an array that is between two shapes says so");
    let is_back = between.is_back.get();
    if reshape.is_back != is_back {
        return put_on_record(members, Reshape { is_back, ..reshape }).await;
    }
    let (mark, heading) = (between.mark.get(), between.heading());
    let Some(window) = between.course.next(mark, heading, pace(parts, between)) else { return Ok(()) };
    let (source, target) = match heading {
        Heading::Up => (core.sides.of(Side::Above), core.sides.of(Side::Below)),
        Heading::Down => (core.sides.of(Side::Below), core.sides.of(Side::Above)),
    };
    let held = core.hold_window(window.content.clone());
    write_out(core, source, space, &window.content).await?;
    if let Some(log) = &parts.log {
        log.retire(members, &parts.flusher, &parts.replies).await?;
    }
    let len = Sectors(window.content.end.0 - window.content.start.0).bytes();
    parts.sweeps.of(Kind::Reshape).charge(len);
    let from = window.content.start;
    let content = read_all(core, source, space, &window.content, moving::memory(&between.memory, len)).await?;
    // Before anything is written: there is room for what has to be said of it.
    let more = listed(target, &window, &content)?.and_then(|listed| listed.more);
    if let Some(lba) = more.filter(|_| !planted!(MoreLostByMoving)) {
        return Err(EngineError::LosesMore { lba });
    }
    let next = if from == mark { window.content.end } else { from };
    let save = reshape.save + u64::from(window.is_saved);
    let moved = Reshape { is_back, mark: next, saved: Sectors(0), save, ..reshape };
    between.moving.replace(Some((window.content.clone(), content.lost.clone())));
    let result = settle(target, between, &window, &content, moved).await;
    if result.is_err() && window.is_saved {
        // Its old places may have been written over: whoever starts the array again has it from where it was saved.
        members.freeze();
    } else {
        between.moving.take();
    }
    result?;
    between.mark.set(next);
    forget(source, &window.content);
    forget(target, &window.content);
    drop(held);
    Ok(())
}

/// Reads a window.
///
/// # Errors
/// As a client's read, where it is not known that nobody has the content.
async fn read_all(
    core: &Core,
    source: &Parts,
    space: &mut Workspace,
    window: &Range<Lba>,
    mut bytes: Buf,
) -> Result<Content, EngineError> {
    let missing = source.members.record().lost();
    let list = |member| source.bad.of(member).map(|list| list.clone()).unwrap_or_default();
    let known = if source.bad.is_empty() { Vec::new() } else { lost_of(source.geometry(), missing, list, window) };
    for piece in others(window, &known, at_once(source).whole_sectors().0) {
        let read = fill(core, source, space, piece, (window.start, bytes)).await?;
        bytes = read.expect("a read's memory comes back");
    }
    let mut lost = Vec::new();
    for block in in_blocks(&known) {
        let memory = Buf::zeroed(Sectors(block.end.0 - block.start.0).bytes());
        match fill(core, source, space, block.clone(), (block.start, memory)).await {
            Ok(read) => put(&mut bytes, window.start, block.start, &read.expect("a read's memory comes back")),
            Err(EngineError::Unreadable { .. }) => {
                // What the memory held before is nobody's business.
                put(&mut bytes, window.start, block.start, &Buf::zeroed(Sectors(block.end.0 - block.start.0).bytes()));
                add(&mut lost, block);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Content { bytes, lost })
}

/// Writes a window to its new places, and has that on record.
async fn settle(
    target: &Parts,
    between: &Between,
    window: &Window,
    content: &Content,
    moved: Reshape,
) -> Result<(), EngineError> {
    let members = &target.members;
    if window.is_saved && !planted!(ReshapeUnsaved) {
        let whose = Whose { array: members.record().any().array, save: moved.save };
        let pieces = saved::pieces(between.copies, whose, &window.content, content);
        let place = |member: MemberIndex, at: Bytes| {
            let record = members.record();
            let own = record.superblocks().nth(member.index()).flatten()?;
            Some(Bytes(own.saves().offset.0 + at.0))
        };
        let write = |(member, at, lease)| Some((member, place(member, at)?, smallvec![lease]));
        write_all(target, pieces.into_iter().filter_map(write).collect(), !planted!(ReshapeSavedUnflushed)).await?;
        let (mark, saved) = (between.mark.get(), Sectors(window.content.end.0 - window.content.start.0));
        put_on_record(members, Reshape { mark, saved, ..moved }).await?;
    }
    if planted!(ReshapeMarkEarly) {
        put_on_record(members, moved).await?;
    }
    let mut parts = moving::parts(target.geometry(), &window.content, &content.bytes, &between.memory);
    let present = members.present();
    parts.retain(|part| present.contains(part.member));
    write_sums(target, &parts).await?;
    for part in &parts {
        members.counters.borrow_mut().write(part.member, part.sectors());
    }
    let write = |part: Part| (part.member, members.offset(part.member, part.sector), part.pieces);
    write_all(target, parts.into_iter().map(write).collect(), !planted!(ReshapeUnflushed)).await?;
    // Lists may have changed meanwhile, of what is elsewhere.
    if let Some(listed) = listed(target, window, content)? {
        target.bad.change(listed.lists);
    }
    if planted!(MovedListsLate) {
        put_on_record(members, moved).await?;
    }
    target.keep_lists().await?;
    put_on_record(members, moved).await
}

/// What the members lack when a window is in its new places: see [`BadLists::listed`].
///
/// [`BadLists::listed`]: crate::engine::badblocks::BadLists::listed
fn listed(target: &Parts, window: &Window, content: &Content) -> Result<Option<Listed>, EngineError> {
    let missing = target.members.record().lost();
    target.bad.listed(target.geometry(), missing, &window.content, &content.lost)
}

/// Writes the checksums of what is about to be written, where blocks have any. They are durable when that is: until the
/// mark is on record nobody reads either.
///
/// # Errors
/// As [`write_all`].
async fn write_sums(target: &Parts, written: &[Part]) -> Result<(), EngineError> {
    let members = &target.members;
    let Some(sums) = target.sums.as_ref().filter(|_| !planted!(MovedSumsKept)) else { return Ok(()) };
    let range = |part: &Part| (part.member, part.sector, part.sectors().0, true);
    members.operations.begin_call(Purpose::Pages { may_go_around: false });
    let pins = sums.pin(members, members.operations.slow(), written.iter().map(range));
    let _ = members.operations.end_call().await;
    for part in written.iter().filter(|part| pins.pages().iter().any(|page| page.member == part.member)) {
        for (sector, content) in part.blocks() {
            let block = block_at(sector);
            sums.set(part.member, block, sums.sum(part.member, block, content));
        }
    }
    if planted!(MovedSumsUnawaited) {
        return Ok(());
    }
    members.operations.begin_call(Purpose::Other);
    pins.pages().iter().for_each(|&page| sums.await_write(members, page));
    let failed = members.operations.end_call().await.failed;
    members.fail(failed)
}

/// Writes to members that are there, durably; who fails that is done without. Flushes are shared with clients: one that
/// fails is everybody's.
///
/// # Errors
/// [`EngineError::WriteFailed`], [`EngineError::FlushFailed`] where it can't be; [`EngineError::Frozen`].
async fn write_all(parts: &Parts, writes: Vec<Write>, is_durable: bool) -> Result<(), EngineError> {
    let members = &parts.members;
    let present = members.present();
    let writes: Vec<Write> = writes.into_iter().filter(|(member, ..)| present.contains(*member)).collect();
    let written: MemberSet = writes.iter().map(|(member, ..)| *member).collect();
    let mut failed = MemberSet::EMPTY;
    for turn in turns(writes, at_once(parts)) {
        failed = failed.union(members.operations.write_pieces(turn.into_iter()).await.failed);
    }
    written.iter().for_each(|member| members.note_written(member));
    members.fail(failed)?;
    if !is_durable {
        return Ok(());
    }
    parts.flusher.flush(members, written).await;
    members.check_frozen()?;
    match parts.flusher.failures() {
        failed if failed.is_empty() => Ok(()),
        members => Err(EngineError::FlushFailed { members }),
    }
}

/// Writes in turns of so much, or of one piece that is more.
fn turns(writes: Vec<Write>, most: Bytes) -> Vec<Vec<Write>> {
    let (mut turns, mut left) = (vec![Vec::<Write>::new()], most.0);
    for (member, mut offset, pieces) in writes {
        let mut is_continued = false;
        for piece in pieces {
            let len = piece.len() as u64;
            if len > left && left < most.0 {
                turns.push(Vec::new());
                (left, is_continued) = (most.0, false);
            }
            left = left.saturating_sub(len);
            let turn = turns.last_mut().expect("there is one");
            match turn.last_mut().filter(|_| is_continued) {
                Some((.., pieces)) => pieces.push(piece),
                None => turn.push((member, offset, smallvec![piece])),
            }
            (offset, is_continued) = (Bytes(offset.0 + len), true);
        }
    }
    turns
}

/// Has it on record how far the reshape is.
async fn put_on_record(members: &Members, reshape: Reshape) -> Result<(), EngineError> {
    members.change_record(|record| record.advance_reshape(reshape));
    members.settled().await
}

/// Waits until nothing under way touches the window that is held, and writes out what is dirty of it.
///
/// # Errors
/// [`EngineError::NotDestaged`] where that can't be; [`EngineError::Frozen`].
async fn write_out(
    core: &Core,
    source: &Parts,
    space: &mut Workspace,
    content: &Range<Lba>,
) -> Result<(), EngineError> {
    // Nobody makes anything dirty from then on.
    core.moving.wait_untouched(source.tasks()).await;
    let stripes = stripes(source, content);
    let most = source.log.as_ref().map_or(u64::MAX, |log| log.stripes_max());
    let is_dirty = |stripes: Range<u64>| source.writeback.cache().is_some_and(|cache| cache.is_dirty_within(stripes));
    let mut at = stripes.start;
    while at < stripes.end {
        let run = at..stripes.end.min(at.saturating_add(most));
        at = run.end;
        if is_dirty(run.clone()) && !planted!(ReshapeDirtyLeft) {
            destage(source, space, run).await;
        }
    }
    // It may have been written out by others, too.
    core.moving.wait_untouched(source.tasks()).await;
    if is_dirty(stripes) && !planted!(ReshapeDirtyLeft) {
        let unwritten = source.writeback.cache().and_then(|cache| cache.unwritten());
        return Err(unwritten.map_or(EngineError::Busy, EngineError::from));
    }
    source.members.check_frozen()
}

/// Forgets what is in memory of a window in one of its shapes, and what was to be healed there.
fn forget(parts: &Parts, content: &Range<Lba>) {
    let stripes = stripes(parts, content);
    if !planted!(WindowHealKept) {
        parts.repairs.heals.forget_within(&stripes);
    }
    if planted!(ReshapeCacheKept) {
        return;
    }
    for stripe in stripes {
        let _ = parts.writeback.with(|cache| cache.forget_clean(uraid_layout::StripeId(stripe)));
    }
}

fn stripes(parts: &Parts, content: &Range<Lba>) -> Range<u64> {
    let (first, last) = parts.stripes_of(content.start, Sectors(content.end.0 - content.start.0));
    first.0..last.0 + 1
}
