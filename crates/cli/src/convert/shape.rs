//! The geometry of an array of Linux md that is one of uraid's, too: every sector in the same place.

use anyhow::{Context as _, Result, bail, ensure};
use uraid_layout::{Bytes, Geometry, Lba, Level, Location, Rotation, Sectors, Spec};
use uraid_md::geometry::Geometry as MdGeometry;
use uraid_md::superblock::{Level as MdLevel, layout_words};
use uraid_md::{Assembly, Found};

/// Chunks of mirrors, which have none in Linux: the first that their size is a multiple of.
const MIRROR_CHUNKS: [u64; 5] = [64 << 10, 32 << 10, 16 << 10, 8 << 10, 4 << 10];

/// So many chunks are compared at the beginning, and as many at the end: both formulas repeat themselves after far
/// fewer, since an array has at most 64 members.
const COMPARED: u64 = 1 << 16;

/// The geometry that puts everything where it is.
///
/// # Errors
/// When there is none.
pub(super) fn of(assembly: &Assembly, members: &[Found]) -> Result<Geometry> {
    let md = assembly.array.as_ref().ok().context("the array can't be read")?.geometry();
    let superblock = &assembly.superblock;
    let used = match superblock.level {
        MdLevel::Raid0 => {
            let chunks = |member: &Found| member.superblock.data_size.0 / superblock.chunk.0.max(1);
            let first = members.first().map_or(0, chunks);
            ensure!(
                members.iter().all(|member| chunks(member) == first),
                "the members of this RAID 0 differ in size, which no array here has: copy the content instead"
            );
            Sectors(first * superblock.chunk.0)
        }
        _ => superblock.member_size,
    };
    let chunk = match superblock.level {
        MdLevel::Raid1 => {
            let fits = |&chunk: &u64| used.bytes().0.is_multiple_of(chunk);
            Bytes(MIRROR_CHUNKS.into_iter().find(fits).context("the array's size is no multiple of 4 KiB")?)
        }
        _ => superblock.chunk.bytes(),
    };
    let used = Sectors(used.0 / chunk.whole_sectors().0.max(1) * chunk.whole_sectors().0);
    let spec = Spec {
        level: level(superblock.level, superblock.layout)?,
        members: u8::try_from(members.len()).ok().context("an array here has at most 64 members")?,
        chunk,
        member_size: used,
    };
    let geometry = Geometry::new(spec)?;
    compare(md, &geometry)?;
    Ok(geometry)
}

fn level(level: MdLevel, layout: u32) -> Result<Level> {
    let rotation = || Rotation::ALL.get(layout as usize).copied();
    let [copies, distance, offset, _] = layout.to_le_bytes();
    let known = match level {
        MdLevel::Raid0 => Some(Level::Raid0),
        MdLevel::Raid1 => Some(Level::Raid1),
        MdLevel::Raid5 => rotation().map(|rotation| Level::Raid5 { rotation }),
        MdLevel::Raid6 => rotation().map(|rotation| Level::Raid6 { rotation }),
        MdLevel::Raid10 if (distance, offset) == (1, 0) => Some(Level::Raid10 { copies }),
        _ => None,
    };
    let Some(known) = known else {
        let layout = layout_words(level, layout).map_or_else(String::new, |words| format!(", {words}"));
        bail!("{level}{layout} is no level here: copy the content instead, from `uraid serve --md`");
    };
    Ok(known)
}

/// Whether both put everything into the same place.
fn compare(md: &MdGeometry, own: &Geometry) -> Result<()> {
    let differs = "this layout puts content into other places than any here: copy the content instead";
    ensure!(md.capacity() == own.capacity(), "{differs}");
    let chunk = own.chunk().0;
    let chunks = own.capacity().0 / chunk;
    let beginning = 0..chunks.min(COMPARED);
    let end = chunks.saturating_sub(COMPARED).max(beginning.end)..chunks;
    for lba in beginning.chain(end).map(|index| Lba(index * chunk)) {
        let located = md.locate(lba).context(differs)?;
        let place = own.locate(lba);
        let pair = |place: Location| (u16::from(place.member.0), place.sector.0);
        let mut copies: Vec<_> = std::iter::once(place).chain(own.copies(place)).map(pair).collect();
        let mut others: Vec<_> = located.copies.iter().map(|copy| (copy.slot.0, copy.sector.0)).collect();
        copies.sort_unstable();
        others.sort_unstable();
        ensure!(copies == others && located.run.0 >= chunk.min(own.capacity().0 - lba.0), "{differs}");
        if let Some(stripe) = md.stripe(lba) {
            let parities: Vec<_> = own.parity_of(lba).map(pair).collect();
            let slots = [Some(stripe.p), stripe.q];
            let others: Vec<_> = slots.into_iter().flatten().map(|slot| (slot.0, stripe.sector.0)).collect();
            ensure!(parities == others, "{differs}");
        }
    }
    Ok(())
}
