//! Reading the members' logs after an unclean stop, and doing again what they say; blocking, over any [`Disk`].
//!
//! What is done again is [`replay::choose`]'s decision. Records hold absolute values: this can be cut off anywhere and
//! begun again, as long as the members that it does without are on record as failed. What records have only the sums of
//! is for [`Columns`] to judge.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use smallvec::smallvec;
use uraid_layout::{Bytes, DiskSector, Geometry, Location, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use super::badblocks::write_list;
use super::blocking::{flush, perform};
use super::columns::Columns;
use super::error::RecoverError;
use super::losses::Losses;
use super::overlay::Overlay;
use super::tables::Tables;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Disk, DiskError, DiskOp, OpKind, Segments, log_at, log_place};
use crate::format::badblocks::{BadBlocks, Lack};
use crate::format::log::RECORD_BYTES_MAX;
use crate::format::log::record::{self, Extent, Header, Kind, LogSequence, RecordError};
use crate::format::log::replay::{self, Chosen, Held, ReplayError};
use crate::format::superblock::{Area, SlotState, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES};
use crate::member::Access;

/// What is read of a log at once.
const WINDOW: u64 = 1 << 20;

/// How many blocks of a member's log may be unreadable: with more the member is given up, instead of being asked for
/// each of them.
const UNREADABLE_MAX: u32 = 64;

/// One of the two logs of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Of what is about to be written in place.
    Log,
    /// Of pages.
    Journal,
}

impl Lane {
    /// Where it is on a member; none where there is no journal.
    fn area(self, own: &Superblock) -> Option<Area> {
        match self {
            Self::Log => Some(own.ring()),
            Self::Journal => own.journal_area(),
        }
    }

    /// Where it is on a member of which it was found.
    pub(super) fn place(self, own: &Superblock) -> Area {
        self.area(own).expect("who has a record has a place for it")
    }

    fn generation(self, own: &Superblock) -> Uuid {
        match self {
            Self::Log => own.generation,
            Self::Journal => own.journal,
        }
    }

    fn has(self, kind: Kind) -> bool {
        (self == Self::Journal) == (kind == Kind::Page)
    }
}

/// Where a member's log is: with the member, or on each of the log devices.
pub(super) fn log_places(own: &Superblock) -> Vec<MemberIndex> {
    let Some(logs) = &own.logs else { return vec![own.slot] };
    let used = if planted!(FailedLogRead) { logs.all() } else { logs.active() };
    used.iter().map(log_place).collect()
}

/// Whether the log is on log devices.
fn has_logs(superblocks: &[Option<Superblock>]) -> bool {
    superblocks.iter().flatten().any(|own| own.logs.is_some())
}

/// The records that are to be done again, and where each member has its copy.
pub(super) struct Pending {
    pub(super) redo: Vec<LogSequence>,
    /// Those of which nobody knows whether they were committed, and others of which some log devices lack copies.
    pub(super) open: Vec<LogSequence>,
    /// What is to be in the place of others that nobody has, if the run goes on.
    pub(super) void: Vec<Header>,
    pub(super) held: Held,
}

/// Does again what the logs of the present members say; how many records that were. Not durable yet.
///
/// Only records that were open can be there without being durable, where a member failed the flush that was to commit
/// them and nobody lived to record that. Reads show them, and the power may still take them: so they are written to the
/// log once more, durably, before anything that relies on them is.
///
/// # Errors
/// When a member fails, its log is damaged, or its list of bad blocks is full.
pub(super) fn redo(
    disk: &mut impl Disk,
    superblocks: &[Option<Superblock>],
    shapes: &[Geometry],
    losses: &Losses,
    lists: &mut [BadBlocks],
    mut progress: impl FnMut(Bytes),
) -> Result<usize, RecoverError> {
    let Pending { redo, open, held, .. } = pending(disk, superblocks, shapes, Lane::Log)?;
    renew(disk, superblocks, (&redo, &open), &held, Lane::Log)?;
    let columns = look(disk, superblocks, shapes, (&redo, &held), Access::ReadWrite)?;
    let mut done = Bytes(0);
    let mut tables = Tables::default();
    let mut mended = MemberSet::EMPTY;
    // Content is read once more, a record at a time: a log may be larger than memory.
    for (header, superblock) in copies(&redo, &held, superblocks) {
        let (buf, content) = load(disk, superblock, header, Lane::Log)?;
        apply(disk, superblock, header, &buf, (content.start, &columns))?;
        tables.note_record(disk, superblock, header, buf.bytes(content))?;
        for &Extent { sector, len, .. } in header.extents.iter().filter(|extent| extent.kind != Kind::Sums) {
            let sectors = sector..DiskSector(sector.0 + len.0);
            if lists[header.slot.index()].remove(sectors) && !planted!(BadBlocksNotRedone) {
                mended = mended.with(header.slot);
            }
        }
        done.0 += header.content().0;
        progress(done);
    }
    for write in tables.into_writes(superblocks) {
        perform(disk, [write])?;
    }
    let worthless = columns.agree(disk, None)?;
    lose(&worthless, lists, losses)?;
    let changed = worthless.iter().fold(mended, |all, at| all.with(at.member));
    for own in superblocks.iter().flatten().filter(|own| changed.contains(own.slot)) {
        write_list(disk, own, &mut lists[own.slot.index()])?;
    }
    Ok(redo.len())
}

/// Takes parity that is worth nothing into its members' lists.
///
/// # Errors
/// [`RecoverError::BadBlocks`].
pub(super) fn lose(worthless: &[Location], lists: &mut [BadBlocks], losses: &Losses) -> Result<(), RecoverError> {
    for &Location { member, sector } in worthless.iter().filter(|_| !planted!(WorthlessParityTrusted)) {
        let added = lists[member.index()].add(sector..DiskSector(sector.0 + 1), Lack::Absent);
        added.map_err(|source| RecoverError::BadBlocks { path: losses.path(member), source })?;
    }
    if !worthless.is_empty() {
        tracing::error!(
            parity_sectors = worthless.len(),
            "whole parity stripes were being written when a member was lost: parity that was written in part does not \
             count, and what the member was to hold there may be lost; `uraid status` says which bytes are"
        );
    }
    Ok(())
}

/// What the logs of the present members say that is not in place, and what parity is worth nothing.
///
/// # Errors
/// As [`redo`].
pub(super) fn overlay(
    disk: &mut impl Disk,
    superblocks: &[Option<Superblock>],
    shapes: &[Geometry],
) -> Result<(Overlay, Vec<Location>), RecoverError> {
    let Pending { redo, held, .. } = pending(disk, superblocks, shapes, Lane::Log)?;
    let columns = look(disk, superblocks, shapes, (&redo, &held), Access::Inspect)?;
    let mut overlay = Overlay::new(superblocks.len());
    for (header, superblock) in copies(&redo, &held, superblocks) {
        let (buf, content) = load(disk, superblock, header, Lane::Log)?;
        for Part { sector, len, content } in parts(header, &columns, content.start) {
            overlay.put(header.slot, sector, len, content.map(|content| buf.bytes(content)));
        }
    }
    let worthless = columns.agree(disk, Some(&mut overlay))?;
    Ok((overlay, worthless))
}

/// What the members have of what records that are done again have sums of. For writing, that is written again, as it
/// may not be durable though reads show it.
fn look<'a>(
    disk: &mut impl Disk,
    superblocks: &'a [Option<Superblock>],
    shapes: &'a [Geometry],
    (redo, held): (&[LogSequence], &Held),
    access: Access,
) -> Result<Columns<'a>, RecoverError> {
    // An array that has two shapes has no sums in its log.
    let mut columns = Columns::new(&shapes[0], superblocks);
    for (header, superblock) in copies(redo, held, superblocks) {
        let has_sums = header.extents.iter().any(|extent| extent.kind == Kind::Sums);
        if has_sums {
            let (buf, content) = load(disk, superblock, header, Lane::Log)?;
            columns.note(disk, superblock, header, buf.bytes(content), access)?;
        } else {
            columns.note_redone(header);
        }
    }
    Ok(columns)
}

pub(super) fn pending(
    disk: &mut impl Disk,
    superblocks: &[Option<Superblock>],
    shapes: &[Geometry],
    lane: Lane,
) -> Result<Pending, RecoverError> {
    let mut held = Held::default();
    let mut unreadable: Vec<(MemberIndex, Error)> = Vec::new();
    let size = |shape: &Geometry| if lane == Lane::Log { shape.used_sectors() } else { shape.capacity() };
    let used = shapes.iter().map(size).max().unwrap_or_default();
    let is_redundant = shapes.iter().all(|shape| shape.tolerance() > 0);
    let mut lacking = BTreeSet::new();
    for superblock in superblocks.iter().flatten() {
        let places = log_places(superblock);
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for &place in &places {
            let mut own = Held::default();
            let Scan { error, .. } = Scan::run(disk, (superblock, place), (lane, used), &mut own)?;
            found.push(own);
            errors.extend(error);
        }
        let is_partly_read = !errors.is_empty();
        match errors.pop() {
            // Whoever can't give all that others give is done without, as what it lacks may come back later.
            Some(error) if is_partly_read && errors.len() + 1 < places.len() => return Err(error.into()),
            error => unreadable.extend(error.map(|error| (superblock.slot, error))),
        }
        lacking.extend(held.take_in(&found));
    }
    let accepted = superblocks.iter().flatten().map(|superblock| superblock.slot).collect::<MemberSet>();
    let is_active = |superblock: &Superblock| superblock.slots.iter().all(|entry| entry.state == SlotState::Active);
    let is_whole = accepted.len() == superblocks.len() && superblocks.iter().flatten().all(is_active) && is_redundant;
    let doubtful = replay::doubtful(&held, unreadable.iter().map(|(member, _)| *member).collect(), is_whole);
    for (member, error) in unreadable {
        if doubtful.contains(member) {
            return Err(match error {
                Error::Disk(source) if log_at(source.op().member).is_some() => RecoverError::LogsLost { source },
                error => error.into(),
            });
        }
        tracing::warn!("a part of a log can't be read, and nothing that counts was there: {error}");
    }
    let Chosen { redo, mut open, void } = replay::choose(accepted, &held).map_err(|error| match error {
        ReplayError::Lost { member, sequence } if has_logs(superblocks) => {
            RecoverError::LogsDamaged { member, sequence }
        }
        error => error.into(),
    })?;
    if !planted!(LogCopyUnmended) {
        open.extend(lacking);
    }
    Ok(Pending { redo, open, void, held })
}

/// Each record that is done again, in order, with each member that has it.
pub(super) fn copies<'a>(
    redo: &'a [LogSequence],
    held: &'a Held,
    superblocks: &'a [Option<Superblock>],
) -> impl Iterator<Item = (&'a Header, &'a Superblock)> {
    let mut index: BTreeMap<_, Vec<&Header>> = BTreeMap::new();
    for header in held.records() {
        index.entry(header.sequence).or_default().push(header);
    }
    redo.iter()
        .flat_map(move |redo| index.remove(redo).unwrap_or_default())
        .filter_map(|header| superblocks[header.slot.index()].as_ref().map(|superblock| (header, superblock)))
}

/// Makes those records that are done again durable in the log that were open.
pub(super) fn renew(
    disk: &mut impl Disk,
    superblocks: &[Option<Superblock>],
    (redo, open): (&[LogSequence], &[LogSequence]),
    held: &Held,
    lane: Lane,
) -> Result<(), RecoverError> {
    if planted!(NewestDoubted) {
        return Ok(());
    }
    let open: Vec<LogSequence> = redo.iter().copied().filter(|redo| open.contains(redo)).collect();
    let mut written = BTreeSet::new();
    for (header, superblock) in copies(&open, held, superblocks) {
        let (buf, _) = load(disk, superblock, header, lane)?;
        let offset = Bytes(lane.place(superblock).offset.0 + header.position.0);
        for place in log_places(superblock) {
            let segments = smallvec![buf.lease_read(0..buf.len())];
            perform(disk, [DiskOp { tag: 0, member: place, kind: OpKind::Write, offset, segments }])?;
            written.insert(place);
        }
    }
    Ok(perform(disk, written.into_iter().map(flush))?)
}

/// A look through a member's log for records of the array's generation.
struct Scan {
    place: MemberIndex,
    area: Area,
    /// Why a part of it could not be read, and how many blocks that were.
    error: Option<Error>,
    unreadable: u32,
}

impl Scan {
    /// Finds the records. Blocks that can't be read count as empty, and the scan has the error.
    fn run(
        disk: &mut impl Disk,
        (superblock, place): (&Superblock, MemberIndex),
        (lane, used): (Lane, Sectors),
        held: &mut Held,
    ) -> Result<Self, RecoverError> {
        let area = lane.area(superblock).unwrap_or(Area { offset: Bytes(0), size: Bytes(0) });
        let mut scan = Self { place, area, error: None, unreadable: 0 };
        let Area { size, .. } = area;
        let generation = lane.generation(superblock);
        let block = BLOCK.bytes().0;
        let mut window = Buf::zeroed(Bytes(WINDOW.min(size.0)));
        let (mut start, mut at) = (0, 0);
        let mut end = 0;
        while at < size.0 {
            if at >= end {
                (start, end) = (at, (at + WINDOW).min(size.0));
                scan.read(disk, Bytes(start), &mut window, Bytes(end - start))?;
            }
            let index = |at: u64| usize::try_from(at - start).expect("inside a window");
            let rest = window.bytes(index(at)..index(end));
            if !record::may_begin(rest, generation) {
                at += block;
                continue;
            }
            let found = match record::decode(rest) {
                Err(RecordError::Short { needed }) => scan.decode_long(disk, Bytes(at), needed)?,
                found => found.ok().map(|(header, _)| header),
            };
            let is_own = |header: &Header| {
                // A record that was copied from elsewhere, or is of an earlier run, counts for nothing here.
                let is_here = (header.slot, header.position) == (superblock.slot, Bytes(at));
                let is_inside = |extent: &Extent| extent.sector.0 + extent.len.0 <= used.0 && lane.has(extent.kind);
                let is_now = header.generation == generation || planted!(StaleGenerationAccepted);
                is_here && is_now && header.extents.iter().all(is_inside)
            };
            at += match found.filter(is_own) {
                Some(header) => {
                    let total = header.total().0;
                    assert!(total > 0, "a record has a header");
                    held.add(header);
                    total
                }
                None => block,
            };
        }
        Ok(scan)
    }

    /// Reads a record that is not whole in the window.
    fn decode_long(
        &mut self,
        disk: &mut impl Disk,
        at: Bytes,
        mut needed: Bytes,
    ) -> Result<Option<Header>, RecoverError> {
        loop {
            let len = Bytes(needed.0.next_multiple_of(BLOCK.bytes().0));
            if len > RECORD_BYTES_MAX || at.0 + len.0 > self.area.size.0 {
                return Ok(None);
            }
            let mut buf = Buf::zeroed(len);
            self.read(disk, at, &mut buf, len)?;
            match record::decode(buf.as_ref()) {
                Ok((header, _)) => return Ok(Some(header)),
                // The header says how much content there is only when all of it is there.
                Err(RecordError::Short { needed: more }) if more > needed => needed = more,
                Err(_) => return Ok(None),
            }
        }
    }

    /// Reads a part of the log, block by block where that fails.
    fn read(&mut self, disk: &mut impl Disk, at: Bytes, buf: &mut Buf, len: Bytes) -> Result<(), Error> {
        let Err(error) = fill(disk, (self.place, self.area), at, buf, 0, len) else { return Ok(()) };
        if !matches!(error, Error::Disk(_)) || matches!(error, Error::Disk(DiskError::TimedOut { .. })) {
            return Err(error);
        }
        for from in (0..len.0).step_by(BLOCK_BYTES) {
            let block = BLOCK.bytes();
            match fill(disk, (self.place, self.area), Bytes(at.0 + from), buf, from, block) {
                Ok(()) => {}
                Err(error @ Error::Disk(_)) if self.unreadable < UNREADABLE_MAX => {
                    let from = usize::try_from(from).expect("inside a buffer");
                    buf.bytes_mut(from..from + BLOCK_BYTES).fill(0);
                    self.unreadable += 1;
                    self.error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Reads a record that was found before: its bytes, and where its content is in them.
pub(super) fn load(
    disk: &mut impl Disk,
    superblock: &Superblock,
    header: &Header,
    lane: Lane,
) -> Result<(Buf, Range<usize>), RecoverError> {
    let mut failure = RecoverError::Unstable { member: header.slot, sequence: header.sequence };
    for place in log_places(superblock) {
        let mut buf = Buf::zeroed(header.total());
        match fill(disk, (place, lane.place(superblock)), header.position, &mut buf, 0, header.total()) {
            Ok(()) => match record::decode(buf.as_ref()) {
                Ok((again, content)) if again == *header => return Ok((buf, content)),
                _ => {}
            },
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

/// Reads a part of the log into memory, from byte `from` of it on.
fn fill(
    disk: &mut impl Disk,
    (place, area): (MemberIndex, Area),
    at: Bytes,
    buf: &mut Buf,
    from: u64,
    len: Bytes,
) -> Result<(), Error> {
    let index = |at: u64| usize::try_from(at).expect("a window fits the address space");
    let offset = Bytes(area.offset.0 + at.0);
    let segments = smallvec![buf.lease_write(index(from)..index(from + len.0))];
    perform(disk, [DiskOp { tag: 0, member: place, kind: OpKind::Read, offset, segments }])
}

/// Sectors in a row that a record is done again in; where in its bytes their content is, or none for zeros.
struct Part {
    sector: DiskSector,
    len: Sectors,
    content: Option<Range<usize>>,
}

/// What of a record is done again: all that it has, but where a later one has been written. Its content begins at byte
/// `from`.
fn parts(header: &Header, columns: &Columns<'_>, mut from: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    for extent in header.extents.iter().filter(|extent| extent.kind != Kind::Sums) {
        let first = extent.sector.0;
        parts.extend(columns.old(header.slot, header.sequence, first..first + extent.len.0).into_iter().map(|part| {
            let len = Sectors(part.end - part.start);
            let begin = from + size(Sectors(part.start - first).bytes());
            let content = (extent.kind == Kind::Content).then(|| begin..begin + size(len.bytes()));
            Part { sector: DiskSector(part.start), len, content }
        }));
        from += size(extent.bytes());
    }
    parts
}

/// Writes in place what of a record is done again, whose content begins at byte `from`.
fn apply(
    disk: &mut impl Disk,
    superblock: &Superblock,
    header: &Header,
    buf: &Buf,
    (from, columns): (usize, &Columns<'_>),
) -> Result<(), Error> {
    let count = if planted!(ReplayFirstExtent) { 1 } else { usize::MAX };
    for Part { sector, len, content } in parts(header, columns, from).into_iter().take(count) {
        let len = len.bytes();
        let offset = Bytes(superblock.areas.data.offset.0 + Sectors(sector.0).bytes().0);
        let op = |kind, segments| DiskOp { tag: 0, member: header.slot, kind, offset, segments };
        if let Some(content) = content {
            perform(disk, [op(OpKind::Write, smallvec![buf.lease_read(content)])])?;
            continue;
        }
        match perform(disk, [op(OpKind::Zero { len, may_punch: false }, Segments::new())]) {
            Err(Error::Disk(DiskError::Unsupported { .. })) => write_zeros(disk, header.slot, offset, len)?,
            done => done?,
        }
    }
    Ok(())
}

fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.0).expect("a record fits the address space")
}

fn write_zeros(disk: &mut impl Disk, member: MemberIndex, offset: Bytes, len: Bytes) -> Result<(), Error> {
    let zeros = Buf::zeroed(Bytes(len.0.min(WINDOW)));
    let step = zeros.len();
    for done in (0..len.0).step_by(step) {
        let part = usize::try_from((len.0 - done).min(WINDOW)).expect("a window fits the address space");
        let segments = smallvec![zeros.lease_read(0..part)];
        let offset = Bytes(offset.0 + done);
        perform(disk, [DiskOp { tag: 0, member, kind: OpKind::Write, offset, segments }])?;
    }
    Ok(())
}
