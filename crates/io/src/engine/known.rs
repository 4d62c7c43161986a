//! What is known to read as zeros, for clients that ask: what is [blank](super::blank), and what else is
//! [known](super::zeros).
//!
//! When the server starts, holes of the members' files tell. Only parity stripes count that are holes on all members:
//! their content is zeros whoever is asked for it. Where blocks have checksums, a hole may be what a file system has
//! made of content, and nothing counts.

use std::ops::Range;

use uraid_layout::{Bytes, Cell, DiskSector, Geometry, Lba, MemberIndex, SECTOR_BYTES, StripeId};

use super::core::Core;
use super::error::EngineError;
use super::parts::Parts;
use super::transfer::writing::ZERO_OPERATION_MIN;
use super::zeros::Status;

/// The most runs of one status that are looked at to find out whether zeros are fast.
const RUNS_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug)]
pub struct Known<'a>(&'a Core);

impl<'a> Known<'a> {
    pub(super) fn of(core: &'a Core) -> Self {
        Self(core)
    }

    /// What is known of a range: of at most so many parts of it, from its start on, each with its end. What can't be
    /// read is not zeros.
    ///
    /// # Errors
    /// [`EngineError::Frozen`].
    pub fn status(&self, range: &Range<Lba>, most: usize) -> Result<Vec<(Status, Lba)>, EngineError> {
        let sides = &self.0.sides;
        sides.below.members.check_frozen()?;
        let lost = sides.lost();
        let mut found: Vec<(Status, Lba)> = Vec::new();
        for (parts, is_blank, Range { start: mut at, end }) in self.pieces(range.clone()) {
            while at < end {
                let (status, until) = match is_blank {
                    true if parts.blanks.may_punch() => (Status::Hole, end),
                    true => (Status::Zeros, end),
                    false => made_status(parts, at, end, &lost),
                };
                let is_room = found.len() < most;
                match found.last_mut() {
                    Some(last) if last.0 == status => last.1 = until,
                    _ if is_room => found.push((status, until)),
                    _ => return Ok(found),
                }
                at = until;
            }
        }
        Ok(found)
    }

    /// The pieces of a range that are each of one shape, and blank or not at all, in order. Each is found once, however
    /// many runs of one status it has: ranges are as large as the array.
    fn pieces(&self, range: Range<Lba>) -> impl Iterator<Item = (&'a Parts, bool, Range<Lba>)> + use<'a> {
        let (core, Range { start: mut at, end }) = (self.0, range);
        std::iter::from_fn(move || {
            let (parts, side_end) = (at < end).then(|| core.sides.at(at))?;
            let (is_blank, until) = parts.blanks.run(parts.geometry(), at, end.min(side_end));
            let piece = at..until;
            at = until;
            Some((parts, is_blank, piece))
        })
    }

    /// Whether most of a range can be made zeros without sending zeros to members: it is zeros, or whole parity stripes
    /// of which all members are known to have an operation for that. Not if that would take long to find out.
    #[must_use]
    pub fn is_fast(&self, range: &Range<Lba>, may_punch: bool) -> bool {
        let most_sent = (range.end.0 - range.start.0) / 2;
        let (mut sent, mut runs) = (0, 0);
        for (parts, is_blank, Range { start: mut at, end }) in self.pieces(range.clone()) {
            while at < end {
                let (status, until) = if is_blank { (Status::Zeros, end) } else { parts.zeros.run(at, end) };
                sent += sent_for(parts, is_blank, status, at..until, may_punch);
                runs += 1;
                if sent > most_sent || runs > RUNS_MAX {
                    return false;
                }
                at = until;
            }
        }
        true
    }

    /// Begins a search for what reads as zeros: the members' holes are to be found now. False: they would not tell.
    #[must_use]
    pub fn begin_search(&self) -> bool {
        let begins = self.may_search() && !self.0.has_transfers();
        if begins {
            let zeros = &self.0.sides.below.zeros;
            zeros.begin_search();
            // Members have something else.
            for (lba, content) in self.0.sides.caches().flat_map(|cache| cache.dirty()) {
                zeros.note_written(&(lba..Lba(lba.0 + Bytes(content.len() as u64).whole_sectors().0)));
            }
        }
        begins
    }

    /// Ends it, with the holes that were found, by slot and ascending. They need space if they are not `Status::Hole`.
    pub fn end_search(&self, holes: &[Vec<Range<Bytes>>], status: Status) {
        let Parts { members, zeros, .. } = &self.0.sides.below;
        let geometry = self.0.sides.below.geometry();
        if self.may_search() && holes.len() >= geometry.members() {
            let of = |member: MemberIndex| {
                let data = members.offset(member, DiskSector(0)).0;
                let within = |bytes: u64| bytes.saturating_sub(data);
                let sectors = move |hole: &Range<Bytes>| {
                    within(hole.start.0).div_ceil(SECTOR_BYTES)..within(hole.end.0) / SECTOR_BYTES
                };
                holes[member.index()].iter().map(sectors).collect::<Vec<_>>()
            };
            let common = geometry.all_members().iter().map(of).reduce(|one, other| common(&one, &other));
            for stripes in common.unwrap_or_default().iter().filter_map(|hole| stripes_within(geometry, hole)) {
                zeros.note_found(&self.0.sides.below.content_of(stripes), status);
            }
        }
        zeros.end_search();
    }

    /// Whether holes of the members' files tell what reads as zeros: all members are there and have everything, and
    /// nothing is over what they have.
    fn may_search(&self) -> bool {
        let Parts { members, sums, overlay, .. } = &self.0.sides.below;
        let is_whole = members.missing().is_empty() && members.rebuilding().is_empty() && members.twin().is_none();
        let is_plain = sums.is_none() && members.between().is_none() && overlay.borrow().is_empty();
        is_whole && is_plain && !members.is_suspect() && !members.is_frozen()
    }
}

/// What is known of what begins at an address and is not blank, and up to where; `lost`: what nobody has, ascending.
fn made_status(parts: &Parts, at: Lba, end: Lba, lost: &[Range<Lba>]) -> (Status, Lba) {
    let next = lost.partition_point(|range| range.end <= at);
    match lost.get(next).filter(|_| !planted!(LostCalledZeros)) {
        Some(range) if range.start <= at => (Status::Data, range.end.min(end)),
        next => parts.zeros.run(at, next.map_or(end, |range| end.min(range.start))),
    }
}

/// How many zeros have to be sent to make a range zeros that has one status.
fn sent_for(parts: &Parts, is_blank: bool, status: Status, range: Range<Lba>, may_punch: bool) -> u64 {
    let (Lba(at), Lba(until)) = (range.start, range.end);
    let stripe = parts.geometry().stripe_sectors().0;
    let members = &parts.members;
    let can = members.abilities.can(may_punch).minus(members.abilities.cannot(may_punch));
    let whole = (until / stripe * stripe).saturating_sub(at.next_multiple_of(stripe));
    let of_member = whole / stripe * parts.geometry().chunk().0 * parts.geometry().rows() as u64;
    let can_all = members.present().minus(can).is_empty() && of_member >= ZERO_OPERATION_MIN.0;
    // Zeros that are to have space are written.
    let is_there = status != Status::Data && (may_punch || is_blank && !parts.blanks.may_punch());
    match () {
        () if is_there => 0,
        () if can_all => until - at - whole,
        () => until - at,
    }
}

/// What two lists of ascending ranges have in common.
fn common(one: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut ones, mut others, mut common) = (one.iter().peekable(), other.iter().peekable(), Vec::new());
    while let (Some(one), Some(other)) = (ones.peek(), others.peek()) {
        let both = one.start.max(other.start)..one.end.min(other.end);
        if one.end <= other.end {
            ones.next();
        } else {
            others.next();
        }
        if !both.is_empty() {
            common.push(both);
        }
    }
    common
}

/// The parity stripes all units of which lie within such sectors of their members.
fn stripes_within(geometry: &Geometry, sectors: &Range<u64>) -> Option<Range<u64>> {
    let count = geometry.stripes().0;
    let cells = (0_u16..).map(Cell).take(geometry.maps().first()?.cells());
    let first = |stripe| cells.clone().map(move |cell| geometry.sector(StripeId(stripe), cell).0);
    let (start, end) = (first(0).min()?, first(0).max()? + geometry.chunk().0);
    let stride = if count > 1 { first(1).min()? - start } else { end };
    let from = sectors.start.saturating_sub(start).div_ceil(stride);
    let to = sectors.end.checked_sub(end)? / stride + 1;
    Some(from..to.min(count)).filter(|stripes| !stripes.is_empty())
}
