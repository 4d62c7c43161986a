//! How much an array withstands.

use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, MemberSet};

/// How many more members an array without these survives, whichever they are; a lower bound where that is more than
/// one.
#[must_use]
pub fn survives(geometry: &Geometry, lost: MemberSet) -> usize {
    let at_least = geometry.tolerance().saturating_sub(lost.len());
    let present = geometry.all_members().minus(lost);
    let survives = |member| Repair::new(geometry, lost.with(member)).is_ok();
    // A level may survive more failures than its tolerance where they hit different mirrors.
    if at_least == 0 && !lost.is_empty() && present.iter().all(survives) { 1 } else { at_least }
}
