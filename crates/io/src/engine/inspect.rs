//! How much an array withstands.

use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, MemberSet};

/// How many more members an array without these survives, whichever they are; a lower bound where that is more than
/// one. Members that its shape does not have count for nothing.
#[must_use]
pub fn survives(geometry: &Geometry, lost: MemberSet) -> usize {
    let lost = lost.minus(lost.minus(geometry.all_members()));
    let at_least = geometry.tolerance().saturating_sub(lost.len());
    let present = geometry.all_members().minus(lost);
    let survives = |member| Repair::new(geometry, lost.with(member)).is_ok();
    // A level may survive more failures than its tolerance where they hit different mirrors.
    if at_least == 0 && !lost.is_empty() && present.iter().all(survives) { 1 } else { at_least }
}

#[cfg(test)]
mod tests {
    use uraid_layout::{Bytes, Level, MemberIndex, Placement, Sectors, Spec};

    use super::*;

    #[test]
    fn members_of_another_shape_count_for_nothing() {
        let level = Level::Rm2 { height: 3, placement: Placement::Adjacent };
        let spec = Spec { level, members: 7, chunk: Bytes(4096), member_size: Sectors(1 << 10) };
        let geometry = Geometry::new(spec).expect("an array");
        let lost = |slots: &[u8]| slots.iter().map(|&slot| MemberIndex(slot)).collect::<MemberSet>();
        assert_eq!([&[][..], &[7], &[7, 8], &[1, 8]].map(|slots| survives(&geometry, lost(slots))), [2, 2, 2, 1]);
    }
}
