//! Proves a plan sound before anything runs it.

use alloc::vec::Vec;

use thiserror::Error;

use super::{Buffer, DiskIo, Plan, Slice, View};
use crate::{Geometry, MemberIndex, MemberSet, Sectors};

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Fill a request buffer of this length.
    Read(Sectors),
    /// Write what a request buffer of this length holds.
    Write(Sectors),
    /// Bring parity up to date; there is no request buffer.
    Resync,
}

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Flaw {
    /// A disk operation on a member that is not there.
    #[error("{0:?} is on a missing member")]
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
    /// A XOR without operands, or with operands that are not as long as its target.
    #[error("the XOR into {0:?} has no operands, or of another length")]
    BadXor(Slice),
    /// The answer of a read has a hole, or a read writes.
    #[error("a read must fill its buffer and write nothing")]
    BadRead,
}

/// Which sectors of the request and of the scratch buffer have a value.
struct Defined {
    request: Vec<bool>,
    scratch: Vec<bool>,
    fixed_request: bool,
}

/// Checks that a plan uses nothing undefined, defines nothing twice, writes no sector twice, reads no member that can't be read and writes none that
/// is missing, stays within the members and buffers, and leaves no two adjacent operations.
///
/// # Errors
/// The first [`Flaw`].
pub fn check(plan: &Plan, view: &View<'_>, request: Request) -> Result<(), Flaw> {
    let (len, is_read) = match request {
        Request::Read(len) => (len, true),
        Request::Write(len) => (len, false),
        Request::Resync => (Sectors(0), false),
    };
    let sectors = |len: Sectors| usize::try_from(len.0).expect("a buffer fits the address space");
    let mut defined = Defined {
        request: alloc::vec![!is_read; sectors(len)],
        scratch: alloc::vec![false; sectors(plan.scratch())],
        fixed_request: !is_read,
    };
    check_operations(plan, plan.reads(), view.geometry, view.repair.failed())?;
    for io in plan.reads() {
        plan.slices(io).iter().try_for_each(|&slice| defined.define(slice))?;
    }
    for xor in plan.xors() {
        let operands = plan.operands(xor);
        if operands.is_empty() || operands.iter().any(|operand| operand.len != xor.target.len) {
            return Err(Flaw::BadXor(xor.target));
        }
        operands.iter().try_for_each(|&operand| defined.demand(operand))?;
        defined.define(xor.target)?;
    }
    check_operations(plan, plan.writes(), view.geometry, view.missing)?;
    for io in plan.writes() {
        plan.slices(io).iter().try_for_each(|&slice| defined.demand(slice))?;
    }
    let is_answered = defined.request.iter().all(|&defined| defined);
    if is_read && !(is_answered && plan.writes().is_empty()) {
        return Err(Flaw::BadRead);
    }
    Ok(())
}

fn check_operations(plan: &Plan, ios: &[DiskIo], geometry: &Geometry, failed: MemberSet) -> Result<(), Flaw> {
    let mut previous: Option<(MemberIndex, u64)> = None;
    for io in ios {
        let slices: u64 = plan.slices(io).iter().map(|slice| slice.len.0).sum();
        let end = io.sector.0.saturating_add(io.len.0);
        if failed.contains(io.member) {
            return Err(Flaw::MissingMember(*io));
        }
        let fits = io.member.index() < geometry.members() && end <= geometry.used_sectors().0;
        if io.len.0 == 0 || io.len.0 != slices || !fits {
            return Err(Flaw::Misfit(*io));
        }
        match previous {
            Some((member, end)) if member == io.member && end == io.sector.0 => return Err(Flaw::Adjacent(*io)),
            Some(before) if before > (io.member, io.sector.0) => return Err(Flaw::Overlap(*io)),
            _ => previous = Some((io.member, end)),
        }
    }
    Ok(())
}

impl Defined {
    fn sectors(&mut self, slice: Slice) -> Result<&mut [bool], Flaw> {
        let buffer = match slice.buffer {
            Buffer::Request => &mut self.request,
            Buffer::Scratch => &mut self.scratch,
            Buffer::Cache | Buffer::Zeroes => return Err(Flaw::Redefined(slice)),
        };
        let index = |sector: u64| usize::try_from(sector).map_err(|_| Flaw::BeyondBuffer(slice));
        let range = index(slice.start.0)?..index(slice.start.0.saturating_add(slice.len.0))?;
        buffer.get_mut(range).ok_or(Flaw::BeyondBuffer(slice))
    }

    fn define(&mut self, slice: Slice) -> Result<(), Flaw> {
        let is_fixed = slice.buffer == Buffer::Request && self.fixed_request;
        let sectors = self.sectors(slice)?;
        if is_fixed || sectors.contains(&true) {
            return Err(Flaw::Redefined(slice));
        }
        sectors.fill(true);
        Ok(())
    }

    fn demand(&mut self, slice: Slice) -> Result<(), Flaw> {
        if matches!(slice.buffer, Buffer::Cache | Buffer::Zeroes) {
            return Ok(());
        }
        if self.sectors(slice)?.contains(&false) { Err(Flaw::Undefined(slice)) } else { Ok(()) }
    }
}
