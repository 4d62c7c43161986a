//! Arrays that are new: what their members hold is anything, and their map says that nothing of it counts.

use uraid_io::format::bitmap::{Bitmap, Regions};
use uraid_io::format::superblock::{Allocation, Blank, SlotState, Superblock};
use uraid_layout::{Bytes, Geometry, MemberIndex, StripeId};

use super::scenario::Scenario;
use crate::image::SECTOR;
use crate::member::Member;
use crate::members::Members;
use uraid_random::Random;

/// Where the map is in the bitmap's area: `docs/on-disk-format.md`.
pub(crate) const MAP_START: u64 = 32 << 10;

/// Makes a scenario's array one of which no region was written yet, of small regions: its members.
pub(super) fn renew(scenario: &mut Scenario, random: &mut Random) -> Members {
    let shift = u32::try_from(random.below(2)).expect("small");
    let allocation = *random.pick(&[Allocation::Full, Allocation::Sparse]);
    for own in &mut scenario.superblocks {
        own.blank = Some(Blank { since: own.epoch, shift, allocation });
    }
    let geometry = &scenario.geometry;
    let member = |own: &Superblock| {
        let mut image = Member::formatted(own).current().clone();
        let (data, used) = (own.areas.data.offset.0, geometry.used_sectors().bytes().0);
        for at in (data..data + used).step_by(SECTOR) {
            // Here and there nothing was written before.
            if random.chance(7, 8) {
                image.set(Bytes(at), &noise(random));
            }
        }
        let (seal, regions) = own.blank_map().expect("it has one");
        let map = Bitmap::empty(regions);
        for block in 0..regions.bitmap_bytes().0 / 4096 {
            let bytes = map.encode(seal, usize::try_from(block).expect("few"));
            image.put(Bytes(own.areas.bitmap.offset.0 + MAP_START + block * 4096), bytes.as_ref());
        }
        Some(Member::of(image))
    };
    Members::of(scenario.superblocks.iter().map(member).collect())
}

/// The regions that are not blank, as the members say it together; none: nothing is blank.
pub(crate) fn made(truth: &Superblock, geometry: &Geometry, members: &Members) -> Option<Bitmap> {
    let (seal, _) = truth.blank_map()?;
    let regions = Regions::of_shift(geometry, truth.blank?.shift).expect("regions of the array");
    let copy = |(slot, member): (MemberIndex, &Member)| {
        let own = member.superblock().ok().filter(|own| own.array == truth.array)?;
        let mut bytes = vec![0; usize::try_from(regions.bitmap_bytes().0).expect("few")];
        let is_whole = truth.slots[slot.index()].state == SlotState::Active;
        member.read(Bytes(own.areas.bitmap.offset.0 + MAP_START), &mut bytes);
        is_whole.then_some(bytes)
    };
    let copies: Vec<Vec<u8>> = members.iter().filter_map(copy).collect();
    Some(Bitmap::of_copies(regions, seal, copies.iter().map(Vec::as_slice)).0)
}

/// Whether a stripe is blank.
pub(crate) fn is_blank(made: Option<&Bitmap>, stripe: StripeId) -> bool {
    made.is_some_and(|made| !made.contains(made.regions().of(stripe)))
}

fn noise(random: &mut Random) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector.as_chunks_mut::<8>().0.iter_mut().for_each(|chunk| *chunk = random.bits().to_le_bytes());
    sector
}
