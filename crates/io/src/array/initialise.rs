//! A new array's members: marked, made ready, and only then an array that holds something.
//!
//! What members held before is anything, and parity of anything does not agree. So all of a new array's regions are
//! *blank*, which its map says: they are zeros to clients, and become zeros on the members while the array is served.
//! What else members held where the array keeps something is zeroed here: checksums and lists of bad blocks.
//!
//! The members' first superblocks say that the array is *initialising*, and are durable on all of them before anything
//! of this is touched. Only when zeros and map are durable, too, the next round of superblocks takes that back. Cut off
//! anywhere, this leaves no array, one that is initialising, or one that is whole: whoever opens what is initialising
//! does all of it again.

use smallvec::smallvec;
use uraid_layout::{Bytes, Geometry, MemberIndex};

use super::assemble::Assembled;
use super::bitmap::{bitmap_writes, read_bitmap, read_blank_map};
use super::blocking::{flush, perform, store_all, superblock_writes};
use super::error::RecoverError;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Disk, DiskError, DiskOp, OpKind, Segments};
use crate::engine::Record;
use crate::format::Epoch;
use crate::format::bitmap::{Bitmap, Regions};
use crate::format::superblock::{Allocation, Area, Areas, Blank, Consistency, Revision, Superblock, erased};

/// What is zeroed of each member at once, where nothing is sent for it.
const STEP: u64 = 64 << 20;

/// The same where zeros are sent.
const SENT: u64 = 1 << 20;

/// What a new array's members hold where nothing was written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeros: they were just made.
    Zeros,
    /// Anything.
    Unknown,
}

/// Makes an array of the members of `disk`, whose first superblocks these are, in the order of slots; blocks. Returns
/// what they say in the end. `progress` gets the bytes zeroed so far on all members together, and how many there will
/// be.
///
/// # Errors
/// When a member fails. If the array is there by then, it is initialising.
///
/// # Panics
/// When the superblocks don't say that the array is initialising, or not each slot has its own.
pub fn format(
    disk: &mut impl Disk,
    superblocks: Vec<Superblock>,
    content: Content,
    progress: impl FnMut(Bytes, Bytes),
) -> Result<Vec<Superblock>, Error> {
    let is_new = |own: &Superblock| own.initialising.is_some() && superblocks.len() == own.slots.len();
    assert!(superblocks.iter().all(is_new), "a new array has all members, and none is initialised");
    let geometry = Geometry::new(superblocks[0].spec).expect("a superblock is sound");
    let mut overwritten: Vec<Vec<(MemberIndex, Area)>> = vec![Vec::new(); 2];
    for own in &superblocks {
        for (pass, areas) in erased(own.areas.member_size, own.sector_size).into_iter().enumerate() {
            overwritten[pass].extend(areas.into_iter().map(|area| (own.slot, area)));
        }
    }
    // A former array loses its superblocks first, durably: cut off later, it is gone, and not an array whose members
    // hold zeros here and there.
    for areas in overwritten {
        perform(disk, zero_writes(areas))?;
        if !planted!(FormerOverwritten) {
            perform(disk, superblocks.iter().map(|own| flush(own.slot)))?;
        }
    }
    let mut superblocks = superblocks;
    if planted!(InitialisingUnmarked) {
        superblocks.iter_mut().for_each(|own| own.initialising = None);
    }
    // All members say durably that they are initialising before anything else changes: no start takes what is half made
    // for an array.
    perform(disk, superblocks.iter().flat_map(superblock_writes))?;
    if !planted!(InitialisingUnflushed) {
        perform(disk, superblocks.iter().map(|own| flush(own.slot)))?;
    }
    finish(disk, &geometry, superblocks, content, progress)
}

/// How much [`initialise`] zeroes, on all members together.
pub(super) fn initialisation_bytes<D>(assembled: &Assembled<D>) -> Bytes {
    let superblocks: Vec<Superblock> = assembled.record.superblocks().flatten().cloned().collect();
    total(&areas(&superblocks))
}

/// Ends an array's creation, of which nothing is known but that it was begun.
pub(super) fn initialise<D: Disk>(
    assembled: Assembled<D>,
    mut progress: impl FnMut(Bytes),
) -> Result<Assembled<D>, RecoverError> {
    let Assembled { geometry, record, mut disk, generation, .. } = assembled;
    let missing = record.missing();
    if !missing.is_empty() && !planted!(InitialisingDegraded) {
        return Err(RecoverError::InitialisingDegraded { missing });
    }
    let superblocks: Vec<Superblock> = record.into_superblocks().into_iter().flatten().collect();
    let content = if planted!(InitialisingSkipped) { Content::Zeros } else { Content::Unknown };
    let superblocks = finish(&mut disk, &geometry, superblocks, content, |done, _| progress(done))?;
    let superblocks: Vec<_> = superblocks.into_iter().map(Some).collect();
    let bitmap = read_bitmap(&mut disk, &geometry, true, &superblocks);
    // It was written a moment ago.
    let blank = read_blank_map(&mut disk, &superblocks).map(|(map, _)| map);
    let mut record = Record::new(superblocks);
    record.renew(generation);
    Ok(Assembled { geometry, record, disk, is_recovered: true, bitmap, blank, ..assembled })
}

/// Zeros what has to be, has the map say that all is blank, and then says that the array is whole.
fn finish(
    disk: &mut impl Disk,
    geometry: &Geometry,
    mut superblocks: Vec<Superblock>,
    content: Content,
    mut progress: impl FnMut(Bytes, Bytes),
) -> Result<Vec<Superblock>, Error> {
    let allocation = superblocks[0].initialising.unwrap_or_default();
    for own in &mut superblocks {
        (own.initialising, own.is_clean) = (None, true);
        (own.epoch, own.revision) = (Epoch(own.epoch.0 + 1), Revision(own.revision.0 + 1));
        let is_blank = content == Content::Unknown;
        let shift = Regions::of_blank(geometry).shift();
        own.blank = is_blank.then_some(Blank { since: own.epoch, shift, allocation });
    }
    if content == Content::Unknown {
        let may_punch = allocation == Allocation::Sparse;
        let areas = areas(&superblocks);
        let (mut done, total) = (Bytes(0), total(&areas));
        progress(done, total);
        zero(disk, &areas, Some(may_punch), |step| {
            done.0 += step.0;
            progress(done, total);
        })?;
    }
    if allocation == Allocation::Full {
        zero(disk, &logs(&superblocks), None, |_| ())?;
    }
    let maps = superblocks.iter().filter_map(|own| Some((own, own.blank_map()?)));
    let maps = maps.flat_map(|(own, (seal, regions))| {
        bitmap_writes(own.slot, own.areas.blank_map(), seal, &Bitmap::empty(regions))
    });
    perform(disk, maps.filter(|_| !planted!(BlankMapUnmade)))?;
    // All of it is durable before a member says that the array is whole.
    if !planted!(InitialisedUnflushed) {
        perform(disk, superblocks.iter().map(|own| flush(own.slot)))?;
    }
    store_all(disk, &superblocks)?;
    Ok(superblocks)
}

/// What has to be zeros: checksums, so that they know nothing, and lists of bad blocks, so that they are empty.
fn areas(superblocks: &[Superblock]) -> Vec<(MemberIndex, Area)> {
    let of = |own: &Superblock| {
        let Areas { sums, bad_blocks, .. } = own.areas;
        [sums, bad_blocks].map(|area| (own.slot, area))
    };
    superblocks.iter().flat_map(of).filter(|(_, area)| area.size.0 > 0).collect()
}

/// Logs, of which every place is written: the file system has nothing to note when a record is the first one there,
/// which would cost each flush as much as the record.
fn logs(superblocks: &[Superblock]) -> Vec<(MemberIndex, Area)> {
    let has_log = |own: &&Superblock| own.consistency == Consistency::Log && own.logs.is_none();
    superblocks.iter().filter(has_log).map(|own| (own.slot, own.areas.log)).collect()
}

fn total(areas: &[(MemberIndex, Area)]) -> Bytes {
    Bytes(areas.iter().map(|(_, area)| area.size.0).sum())
}

/// Zeros areas, all members at a time, whether or not by punching holes, or by sending zeros. `progress` gets the bytes
/// of each step.
fn zero(
    disk: &mut impl Disk,
    areas: &[(MemberIndex, Area)],
    may_punch: Option<bool>,
    mut progress: impl FnMut(Bytes),
) -> Result<(), Error> {
    let longest = areas.iter().map(|(_, area)| area.size.0).max().unwrap_or(0);
    let mut can_zero = may_punch.is_some();
    for at in (0..longest).step_by(usize::try_from(STEP).expect("a step is small")) {
        let part = |&(member, area): &(MemberIndex, Area)| {
            let size = Bytes(area.size.0.checked_sub(at).filter(|&left| left > 0)?.min(STEP));
            Some((member, Area { offset: Bytes(area.offset.0 + at), size }))
        };
        let parts: Vec<(MemberIndex, Area)> = areas.iter().filter_map(part).collect();
        if let Some(may_punch) = may_punch.filter(|_| can_zero) {
            let zeroing = |&(member, Area { offset, size: len }): &(MemberIndex, Area)| {
                let kind = OpKind::Zero { len, may_punch };
                DiskOp { tag: 0, member, kind, offset, segments: Segments::new() }
            };
            match perform(disk, parts.iter().map(zeroing)) {
                Err(Error::Disk(DiskError::Unsupported { .. })) => can_zero = false,
                done => done?,
            }
        }
        if !can_zero {
            // Also where some members could: it is the same again.
            for from in (0..STEP).step_by(usize::try_from(SENT).expect("a step is small")) {
                let sent = |&(member, area): &(MemberIndex, Area)| {
                    let size = Bytes(area.size.0.checked_sub(from).filter(|&left| left > 0)?.min(SENT));
                    Some((member, Area { offset: Bytes(area.offset.0 + from), size }))
                };
                perform(disk, zero_writes(parts.iter().filter_map(sent).collect()))?;
            }
        }
        progress(total(&parts));
    }
    Ok(())
}

/// Writes of zeros, at most [`SENT`] each.
fn zero_writes(areas: Vec<(MemberIndex, Area)>) -> impl Iterator<Item = DiskOp> {
    let zeros = Buf::zeroed(Bytes(SENT));
    areas.into_iter().map(move |(member, Area { offset, size })| {
        let len = usize::try_from(size.0).expect("a step is small");
        let segments = smallvec![zeros.lease_read(0..len)];
        DiskOp { tag: 0, member, kind: OpKind::Write, offset, segments }
    })
}
