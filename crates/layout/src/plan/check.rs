//! Proves a plan sound before anything runs it.

use alloc::vec::Vec;

use thiserror::Error;

use super::steps::{Buffer, DiskIo, Extent, Operand, Plan, Slice};
use super::view::View;
use crate::field::Factor;
use crate::{Cell, DiskSector, Geometry, Location, MemberIndex, StripeId};

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Fill what these extents name of the request buffer.
    Read(&'a [Extent]),
    /// Write these extents.
    Write(&'a [Extent]),
    /// Compute what members lost, and write it to them; there is no request buffer.
    Rebuild,
    /// Compare what members hold, and write nothing; there is no request buffer.
    Scrub,
}

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Flaw {
    /// A disk operation on what is not there: a member's, or one cell.
    #[error("{0:?} is on a missing member, or of a missing cell")]
    MissingMember(DiskIo),
    /// A disk operation beyond what the geometry uses, without length, or of another length than its slices.
    #[error("{0:?} is beyond its member, or not as long as its slices")]
    Misfit(DiskIo),
    /// Two disk operations of a phase share a sector.
    #[error("{0:?} overlaps the operation before it")]
    Overlap(DiskIo),
    /// Two disk operations of a phase could be one.
    #[error("{0:?} continues the operation before it")]
    Adjacent(DiskIo),
    /// A slice reaches beyond its buffer.
    #[error("{0:?} is beyond its buffer")]
    BeyondBuffer(Slice),
    /// Something is used before it has a value.
    #[error("{0:?} is used before it is defined")]
    Undefined(Slice),
    /// Something is given a value twice, or is not to be changed.
    #[error("{0:?} is defined twice, or must not change")]
    Redefined(Slice),
    /// An XOR without operands, or with one that is not as long as its target or does not count.
    #[error("the XOR into {0:?} has no operands, or one of another length or without a factor")]
    BadXor(Slice),
    /// The answer of a read has a hole, or a read writes.
    #[error("a read must fill its buffer and write nothing")]
    BadRead,
    /// A comparison writes.
    #[error("{0:?} changes what is compared")]
    BadScrub(DiskIo),
}

/// What the plan may do with a sector of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing: it was never declared.
    Foreign,
    /// Give it a value.
    Undefined,
    /// Use its value.
    Defined,
}

/// The buffers, sector by sector.
struct Buffers {
    request: Vec<State>,
    scratch: Vec<State>,
    cache: Vec<State>,
}

/// Checks that a plan uses nothing undefined, defines nothing twice, writes no sector twice, reads nothing that can't
/// be read and writes nothing that is missing or left out, stays within the members and buffers, and leaves no two
/// adjacent operations.
///
/// # Errors
/// The first [`Flaw`].
pub fn check(plan: &Plan, view: &View<'_>, request: Request<'_>) -> Result<(), Flaw> {
    let mut buffers = Buffers::new(plan, view, request);
    let is_lost = |stripe, cell| view.repair.lacks(view.geometry, stripe, cell);
    check_operations(plan, plan.reads(), view.geometry, is_lost)?;
    for io in plan.reads() {
        plan.slices(io).iter().try_for_each(|&slice| buffers.define(slice))?;
    }
    for xor in plan.xors() {
        let operands = plan.operands(xor);
        let is_bad = |operand: &Operand| operand.content.len != xor.target.len || operand.factor == Factor::ZERO;
        if operands.is_empty() || operands.iter().any(is_bad) {
            return Err(Flaw::BadXor(xor.target));
        }
        operands.iter().try_for_each(|operand| buffers.demand(operand.content))?;
        buffers.define(xor.target)?;
    }
    let is_missing = |_, cell| view.missing.contains(view.geometry.member(cell)) || view.left_out.contains(&cell);
    check_operations(plan, plan.writes(), view.geometry, is_missing)?;
    for io in plan.writes() {
        plan.slices(io).iter().try_for_each(|&slice| buffers.demand(slice))?;
    }
    for recovered in plan.recovered() {
        buffers.demand(recovered.content)?;
        let at = Location { member: recovered.member, sector: recovered.sector };
        if !view.geometry.cell_at(at).is_some_and(|(stripe, cell, _)| is_lost(stripe, cell)) {
            return Err(Flaw::Undefined(recovered.content));
        }
    }
    plan.differences().iter().try_for_each(|difference| buffers.demand(difference.content))?;
    if request == Request::Scrub
        && let Some(io) = plan.writes().first()
    {
        return Err(Flaw::BadScrub(*io));
    }
    let is_read = matches!(request, Request::Read(_));
    let is_answered = !buffers.request.contains(&State::Undefined);
    if is_read && !(is_answered && plan.writes().is_empty()) {
        return Err(Flaw::BadRead);
    }
    Ok(())
}

fn check_operations(
    plan: &Plan,
    ios: &[DiskIo],
    geometry: &Geometry,
    is_gone: impl Fn(StripeId, Cell) -> bool,
) -> Result<(), Flaw> {
    let mut previous: Option<(MemberIndex, u64)> = None;
    for io in ios {
        let slices: u64 = plan.slices(io).iter().map(|slice| slice.len.0).sum();
        let end = io.sector.0.saturating_add(io.len.0);
        let fits = io.member.index() < geometry.members() && end <= geometry.used_sectors().0;
        if io.len.0 == 0 || io.len.0 != slices || !fits {
            return Err(Flaw::Misfit(*io));
        }
        let cell_at = |sector| geometry.cell_at(Location { member: io.member, sector: DiskSector(sector) });
        if (io.sector.0..end).filter_map(cell_at).any(|(stripe, cell, _)| is_gone(stripe, cell)) {
            return Err(Flaw::MissingMember(*io));
        }
        match previous {
            Some((member, end)) if member == io.member && end == io.sector.0 => return Err(Flaw::Adjacent(*io)),
            Some(before) if before > (io.member, io.sector.0) => return Err(Flaw::Overlap(*io)),
            _ => previous = Some((io.member, end)),
        }
    }
    Ok(())
}

impl Buffers {
    fn new(plan: &Plan, view: &View<'_>, request: Request<'_>) -> Self {
        let (extents, state) = match request {
            Request::Read(extents) => (extents, State::Undefined),
            Request::Write(extents) => (extents, State::Defined),
            Request::Rebuild | Request::Scrub => (&[][..], State::Foreign),
        };
        let scratch = alloc::vec![State::Undefined; index(plan.scratch().0)];
        let mut buffers = Self { request: Vec::new(), scratch, cache: Vec::new() };
        for cached in view.cached {
            buffers.enter(cached.content, State::Defined);
        }
        for extent in extents {
            buffers.enter(extent.content, state);
        }
        buffers
    }

    fn enter(&mut self, slice: Slice, state: State) {
        let Some(buffer) = self.buffer(slice.buffer) else { return };
        let (start, end) = (index(slice.start.0), index(slice.start.0 + slice.len.0));
        buffer.resize(buffer.len().max(end), State::Foreign);
        buffer[start..end].fill(state);
    }

    /// None for zeros, which are without end.
    fn buffer(&mut self, buffer: Buffer) -> Option<&mut Vec<State>> {
        match buffer {
            Buffer::Request => Some(&mut self.request),
            Buffer::Scratch => Some(&mut self.scratch),
            Buffer::Cache => Some(&mut self.cache),
            Buffer::Zeroes => None,
        }
    }

    fn sectors(&mut self, slice: Slice) -> Result<Option<&mut [State]>, Flaw> {
        let Some(buffer) = self.buffer(slice.buffer) else { return Ok(None) };
        let index = |sector: u64| usize::try_from(sector).map_err(|_| Flaw::BeyondBuffer(slice));
        let range = index(slice.start.0)?..index(slice.start.0.saturating_add(slice.len.0))?;
        buffer.get_mut(range).map(Some).ok_or(Flaw::BeyondBuffer(slice))
    }

    fn define(&mut self, slice: Slice) -> Result<(), Flaw> {
        let sectors = self.sectors(slice)?.ok_or(Flaw::Redefined(slice))?;
        if slice.buffer == Buffer::Cache || sectors.iter().any(|&state| state != State::Undefined) {
            return Err(Flaw::Redefined(slice));
        }
        sectors.fill(State::Defined);
        Ok(())
    }

    fn demand(&mut self, slice: Slice) -> Result<(), Flaw> {
        let is_defined = |sectors: &mut [State]| sectors.iter().all(|&state| state == State::Defined);
        if self.sectors(slice)?.is_none_or(is_defined) { Ok(()) } else { Err(Flaw::Undefined(slice)) }
    }
}

fn index(sectors: u64) -> usize {
    usize::try_from(sectors).expect("a buffer fits the address space")
}
