//! What goes wrong with members, drawn at random: who fails in a life, and who corrupts what it was given.

use uraid_io::format::superblock::{Area, Areas};
use uraid_layout::{Geometry, MemberSet};

use super::audit::tolerated;
use super::scenario::Scenario;
use crate::disk::{Faults, Rate, Silent};
use uraid_random::Random;

/// Every member loses, misplaces and changes much of what it is given.
pub(super) fn draw_corrupt(geometry: &Geometry, random: &mut Random) -> Faults {
    let rate = Rate(200);
    let faults = draw_unzeroing(geometry.all_members(), random);
    Faults { members: geometry.all_members(), lost: rate, misdirected: rate, flipped: rate, ..faults }
}

/// Who of `all` may fail in a life, and how, nobody at all in half of those that are not harsh; now and then more
/// members than one of the sets that are `survived`.
pub(super) fn draw(all: MemberSet, survived: &[MemberSet], is_harsh: bool, random: &mut Random) -> Faults {
    let mut faults = draw_unzeroing(all, random);
    if !is_harsh && random.chance(1, 2) {
        return faults;
    }
    faults.members = *random.pick(survived);
    if random.chance(1, 20) {
        faults.members = all.iter().filter(|_| random.chance(1, 2)).collect();
    }
    with_rates(faults, random)
}

/// How these members fail.
pub(super) fn draw_of(members: MemberSet, random: &mut Random) -> Faults {
    with_rates(Faults { members, ..Faults::default() }, random)
}

fn with_rates(mut faults: Faults, random: &mut Random) -> Faults {
    let mut rate = || Rate(if random.chance(1, 3) { u32::try_from(random.within(1, 500)).expect("small") } else { 0 });
    (faults.read_eio, faults.write_eio, faults.flush_eio) = (rate(), rate(), rate());
    (faults.no_space, faults.short, faults.slow) = (rate(), rate(), rate());
    (faults.vanish, faults.hang) = (rate(), Rate(rate().0 / 20));
    faults
}

/// No faults but members that can't write zeros.
fn draw_unzeroing(all: MemberSet, random: &mut Random) -> Faults {
    let mut faults = Faults::default();
    if random.chance(1, 4) {
        faults.cannot_zero = all.iter().filter(|_| random.chance(1, 2)).collect();
    }
    faults
}

/// Adds silent corruption to faults. Without redundancy no member fails visibly then: a failed write leaves a block
/// whose checksum is not known.
pub(super) fn with_silent(faults: Faults, silent: Silent, tolerance: usize, random: &mut Random) -> Faults {
    let mut rate = || Rate(if random.chance(1, 2) { u32::try_from(random.within(1, 3000)).expect("small") } else { 0 });
    let silent = Silent { lost: rate(), misdirected: rate(), flipped: rate(), ..silent };
    let members = if tolerance == 0 { MemberSet::EMPTY } else { may_fail(Some(silent), faults.members) };
    Faults { members, silent: Some(silent), ..faults }
}

/// Those of these members that may fail visibly. A member that corrupts silently does not: a block whose checksum can't
/// be read is not checked.
pub(super) fn may_fail(silent: Option<Silent>, members: MemberSet) -> MemberSet {
    silent.map_or(members, |silent| members.minus(silent.content).minus(silent.tables))
}

/// Which members of an array corrupt what; mostly as many as the level survives.
pub(super) fn draw_silent(scenario: &Scenario, random: &mut Random) -> Silent {
    let Scenario { geometry, superblocks, .. } = scenario;
    let any = |random: &mut Random| geometry.all_members().iter().filter(|_| random.chance(1, 2)).collect();
    let sets: Vec<MemberSet> =
        tolerated(geometry, MemberSet::EMPTY).into_iter().filter(|set| !set.is_empty()).collect();
    let all = if sets.is_empty() || random.chance(1, 3) { any(random) } else { *random.pick(&sets) };
    let tables: MemberSet = all.iter().filter(|_| random.chance(1, 4)).collect();
    let areas = areas_in_use(&superblocks[0].areas, geometry);
    Silent { content: all.minus(tables), tables, areas, lost: Rate(0), misdirected: Rate(0), flipped: Rate(0) }
}

/// The areas as far as the array uses them: a stray write is to hit something.
pub(crate) fn areas_in_use(areas: &Areas, geometry: &Geometry) -> Areas {
    let used = geometry.used_sectors().bytes();
    Areas { data: Area { size: used, ..areas.data }, ..*areas }
}
