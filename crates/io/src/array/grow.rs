//! Growing an array after its members were enlarged: one that nobody uses, or one that is served and pauses for it.
//!
//! It takes two rounds of superblock writes. The first says that the members have more room; the second says how much
//! of it the array uses, and that what is new is blank. In between the map of blank regions is made, and what is new of
//! a region in which there is content already is zeroed, so that redundancy agrees there. Cut off anywhere in the first
//! round or after it, it leaves the array as large as it was; cut off in the second, the next opening brings up the
//! members that it did not reach. It can be begun again whatever it was cut off at.

use smallvec::smallvec;
use thiserror::Error;
use uraid_layout::{
    Bytes, DiskSector, Geometry, GeometryError, Level, Location, MemberIndex, MemberSet, Placement, Sectors, StripeId,
};
use uuid::Uuid;

use super::assemble::Assembled;
use super::bitmap::bitmap_writes;
use super::blocking::{flush, perform, store_all};
use super::error::are;
use super::tables::Tables;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Disk, DiskOp, OpKind};
use crate::engine::{Engine, EngineError, Kept, Record};
use crate::format::Epoch;
use crate::format::bitmap::{Bitmap, RegionId, Regions};
use crate::format::superblock::{
    Allocation, Area, Blank, Consistency, Integrity, Revision, Superblock, SuperblockError,
};
use crate::member::Access;

/// What is zeroed at once.
const STEP: Bytes = Bytes(1 << 20);

/// Why an array can't grow. It is as large as it was then, unless it says so.
#[derive(Debug, Error)]
pub enum GrowError {
    /// Members are missing, or being rebuilt.
    #[error(
        "{} missing or not rebuilt: name all members of the array, and replace failed ones first",
        are(*missing)
    )]
    NotWhole {
        /// Their slots.
        missing: MemberSet,
    },
    /// The array was not stopped cleanly.
    #[error(
        "the array was not stopped cleanly, or its creation was interrupted: serve it and stop it once, then grow it"
    )]
    Dirty,
    /// It is between two shapes.
    #[error(
        "the array is being reshaped: let that end, which uses all of the members' room, with `uraid wait` or `uraid \
         reshape MEMBERS`; or have it go back with --abort, and grow it then"
    )]
    Reshaping,
    /// Its map of blank regions has no room for more.
    #[error("the array is new, and grows too far for the map of what was written: serve it until it is initialised")]
    Initialising,
    /// Where things are depends on the size.
    #[error(
        "{} with a partitioned placement can't grow: its parity and data would have to move; copy the content to a \
         new array",
        level.name()
    )]
    Unsuited {
        /// The level.
        level: Level,
    },
    /// It would be smaller.
    #[error("the array uses {used} bytes of each member, and can't shrink to {asked}")]
    Shrinks {
        /// What it uses of each member.
        used: Bytes,
        /// What was asked for.
        asked: Bytes,
    },
    /// A member has not that much room for data.
    #[error(
        "member {member} has room for {room} bytes of data{}, not for {asked}; enlarge it first, or ask for less",
        if *by_sums { ", as many as its area for checksums is made for" } else { "" }
    )]
    NoRoom {
        /// The member with the least room.
        member: MemberIndex,
        /// What it has.
        room: Bytes,
        /// Whether its checksums set the limit.
        by_sums: bool,
        /// What was asked for.
        asked: Bytes,
    },
    /// No member has room for another parity stripe.
    #[error(
        "there is no space to grow into: member {member} has room for {room} bytes of data{}, and the array uses \
         {used} of each member; enlarge all members first",
        if *by_sums { ", as many as its area for checksums is made for" } else { "" }
    )]
    Nothing {
        /// The member with the least room.
        member: MemberIndex,
        /// What it has.
        room: Bytes,
        /// Whether its checksums set the limit.
        by_sums: bool,
        /// What the array uses.
        used: Bytes,
    },
    /// Operations are under way, which these members have not answered yet.
    #[error("{}: try again when all is answered", busy(*members))]
    Busy {
        /// Their slots; none: what is under way is somebody else's.
        members: MemberSet,
    },
    /// It has grown, and can't be served as it is.
    #[error("the array has grown; serve it again")]
    Engine {
        /// Why not.
        source: EngineError,
    },
    /// No array has this geometry.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A member's areas don't allow it.
    #[error("can't grow member {member}")]
    Unfit {
        /// The member.
        member: MemberIndex,
        /// What is wrong.
        source: SuperblockError,
    },
    /// A member failed. If any member has the new size on record, the next opening makes it all members', else the
    /// array is as large as it was.
    #[error("a member failed; `uraid examine` shows the recorded state")]
    Member(#[from] Error),
}

/// An array that has grown.
#[derive(Debug)]
struct Grown {
    geometry: Geometry,
    record: Record,
    /// The write-intent bitmap.
    bitmap: Option<Bitmap>,
    /// The regions that are not blank.
    map: Bitmap,
}

/// Who has not answered.
fn busy(members: MemberSet) -> String {
    if members.is_empty() {
        return "operations on members are still under way".to_owned();
    }
    format!("{} late with operations that were given up", are(members))
}

/// Has the array use more of each member: `used` bytes, or all that the smallest has room for; durably; blocks.
/// `sizes` are those of the members now, by slot. What is new is blank, but for what is zeroed of less than a region
/// and of the room for checksums.
///
/// # Errors
/// When the array is not whole and clean, there is no room, or a member fails.
///
/// # Panics
/// When the array is open for reading only.
pub fn grow<D: Disk>(
    assembled: Assembled<D>,
    sizes: &[Option<Bytes>],
    used: Option<Bytes>,
) -> Result<Assembled<D>, GrowError> {
    assert_eq!(assembled.access, Access::ReadWrite, "growing writes superblocks");
    let Assembled { geometry, record, mut disk, blank, generation, .. } = assembled;
    let grown = enlarge(&mut disk, &geometry, record, blank.as_ref(), sizes, used)?;
    let Grown { geometry, mut record, bitmap, map } = grown;
    record.renew(generation);
    Ok(Assembled { geometry, record, disk, bitmap, blank: Some(map), ..assembled })
}

/// The same of an array whose engine was closed a moment ago, and has nothing to do. It goes on with the larger array,
/// without cache, deadlines and limits. `generation` is a new number for the log, which nobody can guess.
///
/// # Errors
/// As [`grow`]. The engine is as it was then, unless a member has failed: after [`GrowError::Member`] it is frozen.
/// [`GrowError::Busy`].
pub fn grow_served<D: Disk, T>(
    engine: &mut Engine<D, T>,
    sizes: &[Option<Bytes>],
    used: Option<Bytes>,
    generation: Uuid,
) -> Result<(), GrowError> {
    if !engine.is_settled() {
        let is_late = |&member: &MemberIndex| engine.lingering(member) > 0;
        return Err(GrowError::Busy { members: engine.geometry().all_members().iter().filter(is_late).collect() });
    }
    let (geometry, Kept { record, bad_blocks, blank }) = (engine.geometry().clone(), engine.kept());
    let grown = enlarge(engine.disk_mut(), &geometry, record, blank.as_ref(), sizes, used);
    if matches!(grown, Err(GrowError::Member(_))) && !planted!(GrownHalfUsed) {
        // Members may have more on record by now than this engine knows.
        engine.freeze();
    }
    let Grown { geometry, mut record, bitmap, map } = grown?;
    if !planted!(GrownLogKept) {
        record.renew(generation);
    }
    let kept = Kept { record, bad_blocks, blank: Some(map) };
    engine.restart(geometry, kept, bitmap).map_err(|source| GrowError::Engine { source })
}

/// What a served array would become that grows so.
///
/// # Errors
/// As [`grow`] before anything is written, but that it may be unclean.
pub fn check_growth<D: Disk, T>(
    engine: &Engine<D, T>,
    sizes: &[Option<Bytes>],
    used: Option<Bytes>,
) -> Result<Geometry, GrowError> {
    let Kept { record, blank, .. } = engine.kept();
    if record.any().reshape.is_some() {
        return Err(GrowError::Reshaping);
    }
    if !record.lost().is_empty() {
        return Err(GrowError::NotWhole { missing: record.lost() });
    }
    let mut superblocks: Vec<Superblock> = record.into_superblocks().into_iter().flatten().collect();
    let grown = target(engine.geometry(), &mut superblocks, sizes, used)?;
    grown_map(blank.as_ref(), engine.geometry(), &grown).map(|_| grown)
}

/// Carries it out on the members.
fn enlarge(
    disk: &mut impl Disk,
    geometry: &Geometry,
    record: Record,
    blank: Option<&Bitmap>,
    sizes: &[Option<Bytes>],
    used: Option<Bytes>,
) -> Result<Grown, GrowError> {
    if record.any().reshape.is_some() {
        return Err(GrowError::Reshaping);
    }
    if !record.lost().is_empty() {
        return Err(GrowError::NotWhole { missing: record.lost() });
    }
    // What a log or a bitmap has is of the array as large as it was.
    if !record.is_clean() {
        return Err(GrowError::Dirty);
    }
    let mut superblocks: Vec<Superblock> = record.into_superblocks().into_iter().flatten().collect();
    let sums: Vec<Area> = superblocks.iter().map(|superblock| superblock.areas.sums).collect();
    let grown = target(geometry, &mut superblocks, sizes, used)?;
    let map = grown_map(blank, geometry, &grown)?;
    // The second round from here.
    let since = Epoch(superblocks[0].epoch.0 + 2);
    let new = Blank { since, shift: map.regions().shift(), allocation: Allocation::default() };
    let blank = superblocks[0].blank.unwrap_or(new);
    for superblock in &superblocks {
        let after = grown_superblock(superblock, &grown, blank);
        let member = superblock.slot;
        // It is of the epoch before the one that it says it was blank since.
        let after = Superblock { epoch: since, ..after };
        after.check().map_err(|source| GrowError::Unfit { member, source })?;
    }
    // From here on the copy at the tail is at the member's new end. The array is still as large as it was.
    if planted!(GrownAtOnce) {
        superblocks.iter_mut().for_each(|superblock| superblock.epoch.0 += 1);
    } else {
        round(disk, &mut superblocks)?;
    }
    let mut tables = Tables::default();
    for (own, sums) in superblocks.iter().zip(sums).filter(|_| !planted!(GrownUnzeroed)) {
        let more =
            Area { offset: Bytes(sums.offset.0 + sums.size.0), size: Bytes(own.areas.sums.size.0 - sums.size.0) };
        zero(disk, own.slot, more)?;
        for area in unused(geometry, &grown, map.regions(), own) {
            zero(disk, own.slot, area)?;
            // An array that had another shape may have had content there, with its checksums.
            tables.note_zeros(disk, own, area)?;
        }
    }
    let superblocks_by_slot: Vec<Option<Superblock>> = superblocks.iter().cloned().map(Some).collect();
    perform(disk, tables.into_writes(&superblocks_by_slot))?;
    let regions = Regions::new(&grown);
    let has_bitmap = superblocks[0].consistency == Consistency::Bitmap && grown.tolerance() > 0;
    let bitmap = has_bitmap.then(|| Bitmap::empty(regions));
    if let Some(bitmap) = &bitmap {
        let writes = |own: &Superblock| {
            let seal = own.seal().expect("the array has a bitmap");
            bitmap_writes(own.slot, own.areas.bitmap.offset, seal, bitmap)
        };
        perform(disk, superblocks.iter().flat_map(writes))?;
    }
    // Where there was one, it is the same map, as large as the array was.
    let maps = superblocks.iter().map(|own| (own, grown_superblock(own, &grown, blank)));
    let maps = maps.filter_map(|(own, after)| Some((own, after.blank_map()?.0)));
    let writes = maps.flat_map(|(own, seal)| bitmap_writes(own.slot, own.areas.blank_map(), seal, &map));
    perform(disk, writes.filter(|_| !planted!(GrownMapUnmade)))?;
    // Zeros and bitmaps are durable before a member says that the array has them.
    if !planted!(GrownUnflushed) {
        perform(disk, superblocks.iter().map(|superblock| flush(superblock.slot)))?;
    }
    superblocks.iter_mut().for_each(|superblock| *superblock = grown_superblock(superblock, &grown, blank));
    round(disk, &mut superblocks)?;
    let record = Record::new(superblocks.into_iter().map(Some).collect());
    Ok(Grown { geometry: grown, record, bitmap, map })
}

/// What a member says of the array when it has grown.
fn grown_superblock(own: &Superblock, grown: &Geometry, blank: Blank) -> Superblock {
    Superblock { spec: *grown.spec(), blank: Some(blank), ..own.clone() }
}

/// The map of blank regions when the array has grown, from the one that it had before, if it had one: what is new is
/// blank, but where a region has content already.
fn grown_map(map: Option<&Bitmap>, before: &Geometry, after: &Geometry) -> Result<Bitmap, GrowError> {
    let regions = match map {
        Some(map) => Regions::of_shift(after, map.regions().shift()).ok_or(GrowError::Initialising)?,
        None => Regions::of_blank(after),
    };
    let mut grown = Bitmap::empty(regions);
    let last = regions.of(StripeId(before.stripes().0 - 1));
    for region in (0..=last.0).map(RegionId) {
        if map.is_none_or(|map| map.contains(region)) {
            let _ = grown.insert(region);
        }
    }
    Ok(grown)
}

/// Gives the members the room that they have now, and says what the array becomes.
fn target(
    geometry: &Geometry,
    superblocks: &mut [Superblock],
    sizes: &[Option<Bytes>],
    used: Option<Bytes>,
) -> Result<Geometry, GrowError> {
    let spec = *geometry.spec();
    if matches!(spec.level, Level::Rm2 { placement: Placement::Partitioned, .. }) {
        return Err(GrowError::Unsuited { level: spec.level });
    }
    let before = spec.member_size.bytes();
    let mut least: Option<(Bytes, MemberIndex, bool)> = None;
    for superblock in superblocks.iter_mut() {
        let size = sizes.get(superblock.slot.index()).copied().flatten().unwrap_or(superblock.areas.member_size);
        let has_sums = superblock.integrity != Integrity::None;
        superblock.areas = superblock.areas.grown(size.max(superblock.areas.member_size), has_sums);
        let data = superblock.areas.data_sectors().bytes();
        let sums = if has_sums { superblock.areas.summed() } else { data };
        let room = data.min(sums);
        if least.is_none_or(|(least, ..)| room < least) {
            least = Some((room, superblock.slot, sums < data));
        }
    }
    let (room, member, by_sums) = least.expect("an array has members");
    let asked = used.unwrap_or(room.max(before));
    if asked < before {
        return Err(GrowError::Shrinks { used: before, asked });
    }
    if asked > room {
        return Err(GrowError::NoRoom { member, room, by_sums, asked });
    }
    let grown = Geometry::new(uraid_layout::Spec { member_size: asked.whole_sectors(), ..spec })?;
    if grown.capacity() == geometry.capacity() {
        return Err(GrowError::Nothing { member, room, by_sums, used: before });
    }
    Ok(grown)
}

/// Writes the next version of all superblocks, durably.
fn round(disk: &mut impl Disk, superblocks: &mut [Superblock]) -> Result<(), Error> {
    for superblock in superblocks.iter_mut() {
        superblock.epoch = Epoch(superblock.epoch.0 + 1);
        superblock.revision = Revision(superblock.revision.0 + 1);
    }
    store_all(disk, &*superblocks)
}

/// What the array is to use of a member in regions that it has already, and does not use yet; RAID 10 lacks some of its
/// last parity stripe. In bytes from the member's start.
fn unused(before: &Geometry, after: &Geometry, regions: Regions, own: &Superblock) -> Vec<Area> {
    let (member, chunk) = (own.slot, before.chunk().0);
    let area = |start: Sectors, len: Sectors| Area {
        offset: Bytes(own.areas.data.offset.0 + start.bytes().0),
        size: len.bytes(),
    };
    let last = (before.stripes().0 - 1) * before.rows() as u64 * chunk;
    let is_free = |&sector: &u64| before.owner(Location { member, sector: DiskSector(sector) }).is_none();
    let partial = (last..before.used_sectors().0).step_by(usize::try_from(chunk).expect("a chunk is small"));
    let partial = partial.filter(is_free).map(|sector| area(Sectors(sector), Sectors(chunk)));
    let end = regions.stripes(regions.of(StripeId(before.stripes().0 - 1))).end;
    let used = end.0.saturating_mul(before.rows() as u64 * chunk).min(after.used_sectors().0);
    let rest = area(before.used_sectors(), Sectors(used.saturating_sub(before.used_sectors().0)));
    partial.chain([rest]).filter(|area| area.size.0 > 0).collect()
}

/// Zeros a range of a member.
fn zero(disk: &mut impl Disk, member: MemberIndex, area: Area) -> Result<(), Error> {
    let zeros = Buf::zeroed(STEP.min(area.size));
    for at in (0..area.size.0).step_by(usize::try_from(STEP.0).expect("a step is small")) {
        let len = STEP.0.min(area.size.0 - at);
        let lease = zeros.lease_read(0..usize::try_from(len).expect("a step is small"));
        let offset = Bytes(area.offset.0 + at);
        perform(disk, [DiskOp { tag: 0, member, kind: OpKind::Write, offset, segments: smallvec![lease] }])?;
    }
    Ok(())
}
