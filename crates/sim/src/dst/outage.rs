//! What may happen to members while a stopped array is changed: the power goes, the program is killed, members fail.

use uraid_layout::MemberSet;

use super::faults::draw_of;
use crate::disk::{Ending, SimDisk, Steps};
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// One attempt to change an array, which may be cut off.
pub(super) struct Outage {
    pub(super) disk: SimDisk,
}

impl Outage {
    /// An attempt on these members. Unless it `is_last`, the power may go at any step, and members of `failing` may
    /// fail.
    pub(super) fn draw(
        members: Members,
        failing: MemberSet,
        is_last: bool,
        random: &mut Random,
        trace: &Trace,
    ) -> Self {
        let disk = SimDisk::new(members, random.fork(), trace.clone());
        if is_last {
            return Self { disk };
        }
        if random.chance(3, 4) {
            let exponent = random.within(2, 11);
            disk.cut_after(Steps(1 + random.below(1 << exponent)));
        }
        if random.chance(2, 3) {
            disk.set_faults(draw_of(failing, random));
            if random.chance(1, 2) {
                // Whoever is to learn of a failure has little time.
                let exponent = random.below(8);
                disk.cut_after_fault(Steps(1 + random.below(1 << exponent)));
            }
        }
        Self { disk }
    }

    /// What is left of the members when it is over.
    pub(super) fn end(&self, random: &mut Random, trace: &Trace) -> Members {
        let ending = if random.chance(1, 4) { Ending::Kill } else { Ending::PowerCut };
        trace.note(format_args!("the attempt ends: dark {}, {ending:?}", self.disk.is_dark()));
        self.disk.leave(ending, random)
    }
}

/// Whether a power cut would take anything of what these members show.
pub(super) fn is_durable(members: &Members) -> bool {
    members.unflushed().next().is_none()
}
