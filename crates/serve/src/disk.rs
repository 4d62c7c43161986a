//! What a running server needs of its members' disk beside operations: to wait for completions in an event loop, to
//! know the members, and to exchange them.

use std::os::fd::AsFd;
use std::sync::Arc;

use uraid_io::disk::{Disk, Latencies, UringDisk};
use uraid_io::member::Member;
use uraid_layout::MemberIndex;

/// A disk whose members come and go while it is used.
///
/// Its file descriptor becomes readable, edge-triggered, when operations complete: clear the readiness, then reap.
pub trait LiveDisk: Disk + AsFd + 'static {
    /// The members by slot.
    fn members(&self) -> &[Option<Arc<Member>>];

    /// Puts a member in at a slot, or takes it out with `None`; returns the one that was there. There is one seat
    /// beyond the slots, for a member that is to take another one's place.
    ///
    /// # Errors
    /// The member that was to be put in, while operations on that slot are in flight that were not abandoned.
    fn put(
        &mut self,
        slot: MemberIndex,
        member: Option<Arc<Member>>,
    ) -> Result<Option<Arc<Member>>, Option<Arc<Member>>>;

    /// Whether operations on a slot's member are in flight that were not abandoned.
    fn is_awaited(&self, slot: MemberIndex) -> bool;

    /// Lets go of all members, whose locks are free then.
    fn release(&mut self);

    /// How long operations took.
    fn latencies(&self) -> &Latencies;

    /// Begins to time operations of a slot's member anew: it is another one.
    fn forget_latencies(&mut self, slot: MemberIndex);
}

impl LiveDisk for UringDisk {
    fn members(&self) -> &[Option<Arc<Member>>] {
        Self::members(self)
    }

    fn put(
        &mut self,
        slot: MemberIndex,
        member: Option<Arc<Member>>,
    ) -> Result<Option<Arc<Member>>, Option<Arc<Member>>> {
        Self::put(self, slot, member)
    }

    fn is_awaited(&self, slot: MemberIndex) -> bool {
        Self::is_awaited(self, slot)
    }

    fn release(&mut self) {
        Self::release(self);
    }

    fn latencies(&self) -> &Latencies {
        Self::latencies(self)
    }

    fn forget_latencies(&mut self, slot: MemberIndex) {
        Self::forget_latencies(self, slot);
    }
}
