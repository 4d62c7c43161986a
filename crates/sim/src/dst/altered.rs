//! What a change of a stopped array comes to, and what its members hold beside what the array uses.

use std::ops::Range;

use uraid_layout::{Bytes, Lba, MemberSet};

use crate::member::Payload;
use crate::members::Members;
use uraid_random::Random;

/// A change that is over.
pub(super) struct Altered {
    /// By slot, of the shape that the array has now.
    pub(super) members: Members,
    /// Whom it may do without.
    pub(super) failed: MemberSet,
    pub(super) content: Content,
    pub(super) attempts: u64,
    /// Whether it was done, and not undone or left alone.
    pub(super) is_done: bool,
}

/// What the array holds then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Untouched,
    /// All of it, then zeros.
    Grown,
    /// All of it up to there, then zeros.
    Kept(Lba),
    /// All of it up to there, then what it held or zeros.
    GivenUp(Lba),
}

/// Lets members hold anything in a part of their data areas.
pub(super) fn scatter(members: &mut Members, part: Range<Bytes>, random: &mut Random) {
    for slot in members.present().iter() {
        let member = members.get_mut(slot).expect("it is present");
        let Ok(own) = member.superblock() else { continue };
        let start = own.areas.data.offset.0 + part.start.0.next_multiple_of(512);
        // Of a member that was enlarged all may be data.
        let is_larger = member.size() > own.areas.member_size;
        let room = if is_larger { member.size().0 } else { own.areas.data.offset.0 + own.areas.data.size.0 };
        let end = (own.areas.data.offset.0 + part.end.0).min(room);
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(start) / 512 * 512).expect("small")];
        bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.bits().to_le_bytes());
        member.write(Bytes(start), Payload::Bytes(bytes.into()));
        member.flush();
    }
}
