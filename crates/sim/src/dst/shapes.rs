//! Shapes that a stopped array may get.

use uraid_io::array::Target;
use uraid_io::format::superblock::{Consistency, Integrity, MEMBER_MIN, Superblock};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Geometry, Level, MemberIndex, MemberSet, Placement, Sectors, Spec};

use super::audit::subsets;
use super::scenario::draw_spec;
use uraid_random::Random;

/// Any shape that can be gone to from another one; mostly with all of the content.
pub(super) fn draw_target(from: &Geometry, random: &mut Random) -> Target {
    let spec = from.spec();
    let Spec { level, members, chunk, .. } = loop {
        let drawn = draw_spec(random);
        if !matches!(drawn.level, Level::Rm2 { placement: Placement::Partitioned, .. }) {
            break drawn;
        }
    };
    let (level, members) = match random.below(4) {
        // The level stays, and members join or leave.
        0 => (spec.level, if random.chance(1, 2) { spec.members + 1 } else { spec.members.saturating_sub(1).max(2) }),
        _ => (level, members),
    };
    let size = from.capacity().bytes().0;
    let kept = random.chance(1, 4).then(|| Bytes(random.within(1, size)));
    Target { level, members, chunk, kept, allow_degraded: random.chance(7, 8) }
}

/// How an array of such members is kept consistent when it has another level.
pub(super) fn consistency_after(before: &Superblock, to: Level) -> Consistency {
    let Superblock { consistency: before, integrity, spec, .. } = *before;
    match (spec.level, to) {
        // Its checksums need it.
        _ if integrity == Integrity::Crc32 => Consistency::Log,
        (_, Level::Raid0) => Consistency::None,
        (Level::Raid0, _) if before != Consistency::None => before,
        (Level::Raid1 | Level::Raid10 { .. }, _) if before != Consistency::Bitmap => before,
        (from, _) if from.has_parity() && before != Consistency::Log => before,
        (_, Level::Raid1 | Level::Raid10 { .. }) => Consistency::Bitmap,
        _ => Consistency::Log,
    }
}

/// The least size of a log for a shape, by what is documented of it: four parity stripes, and 64 KiB.
pub(super) fn log_min(target: &Target) -> Bytes {
    let rows = geometry_of(target, Sectors(MEMBER_MIN.0 / 512)).map_or(1, |geometry| geometry.rows() as u64);
    Bytes(4 * rows * target.chunk.0 + (64 << 10))
}

/// The geometry of a target on members with so much room; none where it is no array.
pub(super) fn geometry_of(target: &Target, member_size: Sectors) -> Option<Geometry> {
    let Target { level, members, chunk, .. } = *target;
    Geometry::new(Spec { level, members, chunk, member_size }).ok()
}

/// Whether an array goes on without these members, whatever shape its content is in. Where one has no redundancy nobody
/// is given up, not even a member that has no place in it.
pub(super) fn survive(shapes: &[Geometry], lost: MemberSet) -> bool {
    lost.is_empty() || tolerance(shapes) > 0 && shapes.iter().all(|shape| Repair::new(shape, lost).is_ok())
}

/// How many members an array may lose that has these shapes.
pub(super) fn tolerance(shapes: &[Geometry]) -> usize {
    shapes.iter().map(Geometry::tolerance).min().expect("an array has a shape")
}

/// Every set of further members that all shapes of an array survive beside those that are missing, the empty one first.
pub(super) fn survived(shapes: &[Geometry], missing: MemberSet) -> Vec<MemberSet> {
    let widest = shapes.iter().map(Geometry::members).max().expect("an array has a shape");
    let mut sets = subsets(MemberSet::all(widest).minus(missing), tolerance(shapes).saturating_sub(missing.len()));
    sets.retain(|&set| set.is_empty() || survive(shapes, missing.union(set)));
    sets
}

/// Members that two shapes survive to lose beside those that are missing.
pub(super) fn draw_survived(shapes: [&Geometry; 2], missing: MemberSet, random: &mut Random) -> MemberSet {
    let mut slots: Vec<u8> = (0..shapes.map(|shape| shape.spec().members).into_iter().max().unwrap_or(0)).collect();
    random.shuffle(&mut slots);
    let mut lost = missing;
    for slot in slots.into_iter().map(MemberIndex) {
        if random.chance(1, 4) {
            break;
        }
        let more = lost.with(slot);
        if shapes.iter().all(|shape| Repair::new(shape, more).is_ok()) {
            lost = more;
        }
    }
    lost.minus(missing)
}
