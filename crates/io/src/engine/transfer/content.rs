//! Where the slices of a plan have their memory.

use std::ops::Range;

use smallvec::SmallVec;
use uraid_layout::Sectors;
use uraid_layout::field::Factor;
use uraid_layout::plan::{Buffer, Operand, Plan, Slice};

use crate::buf::{Buf, Lease};
use crate::cache::Contents;
use crate::engine::memory::{Scratch, ZEROES_BYTES};
use crate::xor::{TERMS_INLINE, combine_into, xor_into};

/// The memory behind a plan's buffers.
#[derive(Debug)]
pub(in crate::engine) struct Content<'a> {
    /// The request's memory; what a read fills, what a write brings.
    pub(in crate::engine) request: Option<Buf>,
    /// Where the part that is planned begins in it.
    pub(in crate::engine) base: Sectors,
    pub(in crate::engine) scratch: Option<Scratch<'a>>,
    /// What was taken from the cache.
    pub(in crate::engine) cached: &'a mut Contents,
    pub(in crate::engine) zeroes: &'a Buf,
}

impl Content<'_> {
    /// The memory of a slice for an operation to fill.
    pub(in crate::engine) fn lease_to_fill(&mut self, slice: &Slice) -> Lease {
        let (buf, range) = self.place_to_fill(slice);
        buf.lease_write(range)
    }

    /// The memory of a slice that was read.
    pub(in crate::engine) fn bytes_to_fill(&mut self, slice: &Slice) -> &mut [u8] {
        let (buf, range) = self.place_to_fill(slice);
        buf.bytes_mut(range)
    }

    /// A read fills the request's memory, or the plan's.
    fn place_to_fill(&mut self, slice: &Slice) -> (&mut Buf, Range<usize>) {
        let range = range(slice, self.base_of(slice.buffer));
        let buf = match slice.buffer {
            Buffer::Request => self.request.as_mut(),
            _ => self.scratch.as_deref_mut(),
        };
        (buf.expect("a plan's slice has memory"), range)
    }

    /// The bytes of a slice of working memory.
    pub(in crate::engine) fn computed(&self, slice: &Slice) -> &[u8] {
        assert_eq!(slice.buffer, Buffer::Scratch, "what was computed is in working memory");
        self.scratch.as_deref().expect("a plan's slice has memory").bytes(range(slice, Sectors(0)))
    }

    /// The memory of a slice that is written, in order.
    pub(in crate::engine) fn for_each_lease(&self, slice: Slice, mut each: impl FnMut(Lease)) {
        let (buf, piece) = match slice.buffer {
            Buffer::Cache => return self.cached.pieces(slice).for_each(|(page, range)| each(page.part(range))),
            Buffer::Request => (self.request.as_ref(), slice.len),
            Buffer::Scratch => (self.scratch.as_deref(), slice.len),
            Buffer::Zeroes => (Some(self.zeroes), ZEROES_BYTES.whole_sectors()),
        };
        let buf = buf.expect("a plan's slice has memory");
        let base = self.base_of(slice.buffer);
        for at in (0..slice.len.0).step_by(usize::try_from(piece.0).expect("a length fits the address space")) {
            let mut part = slice.part(at, piece.0.min(slice.len.0 - at));
            if slice.buffer == Buffer::Zeroes {
                part.start = Sectors(0);
            }
            each(buf.lease_read(range(&part, base)));
        }
    }

    /// Does a plan's XORs.
    pub(in crate::engine) fn compute(&mut self, plan: &Plan) {
        for xor in plan.xors() {
            let operands = plan.operands(xor);
            let forgotten = usize::from(planted!(XorForgetsOperand) && operands.len() > 1);
            let operands = &operands[forgotten..];
            let mut at = 0;
            while at < xor.target.len.0 {
                let left = xor.target.len.0 - at;
                let runs = operands.iter().map(|operand| Contents::run(operand.content.part(at, left)).0);
                let len = runs.min().unwrap_or(left);
                assert!(len > 0, "an operand has what is to be XORed");
                let part = |operand: &Operand| Operand { content: operand.content.part(at, len), ..*operand };
                self.xor(xor.target.part(at, len), &operands.iter().map(part));
                at += len;
            }
        }
    }

    /// Does a XOR of slices that are each in one piece.
    fn xor(&mut self, target: Slice, operands: &(impl Iterator<Item = Operand> + Clone)) {
        let request = self.base;
        let base = move |buffer| if buffer == Buffer::Request { request } else { Sectors(0) };
        let operands_of = |buffer| operands.clone().filter(move |operand| operand.content.buffer == buffer);
        let of = |buffer| operands_of(buffer).map(move |operand| range(&operand.content, base(buffer)));
        let (here, own, other, foreign) = match target.buffer {
            Buffer::Scratch => (self.scratch.as_deref_mut(), Buffer::Scratch, self.request.as_ref(), Buffer::Request),
            _ => (self.request.as_mut(), Buffer::Request, self.scratch.as_deref(), Buffer::Scratch),
        };
        let here = here.expect("a plan's target has memory");
        let (sum, mut sources) = here.disjoint(range(&target, base(own)), of(own));
        sources.extend(of(foreign).map(|range| other.expect("a plan's operand has memory").bytes(range)));
        let cached = operands_of(Buffer::Cache).flat_map(|operand| self.cached.pieces(operand.content));
        sources.extend(cached.map(|(page, range)| &page.bytes()[range]));
        if operands.clone().all(|operand| operand.factor == Factor::ONE) || planted!(FactorsForgotten) {
            return xor_into(sum, &sources);
        }
        let in_order = [own, foreign, Buffer::Cache].into_iter().flat_map(operands_of);
        let factors = in_order.map(|operand| operand.factor);
        let terms: SmallVec<[(&[u8], Factor); TERMS_INLINE]> = sources.iter().copied().zip(factors).collect();
        combine_into(sum, &terms);
    }

    fn base_of(&self, buffer: Buffer) -> Sectors {
        if buffer == Buffer::Request { self.base } else { Sectors(0) }
    }
}

/// The bytes of a slice in a buffer of which the part's own begin at `base`.
fn range(slice: &Slice, base: Sectors) -> Range<usize> {
    let start = base.0 + slice.start.0;
    bytes(Sectors(start))..bytes(Sectors(start + slice.len.0))
}

/// A length as one of memory.
pub(in crate::engine) fn bytes(sectors: Sectors) -> usize {
    usize::try_from(sectors.bytes().0).expect("a buffer fits the address space")
}
