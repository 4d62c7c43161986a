//! Runs a plan on arrays of bytes: what the engine does with real members, in a few lines.

use alloc::vec::Vec;

use super::steps::{Buffer, Plan, Slice};
use crate::{SECTOR_BYTES, field};

/// Runs `plan` on `members`, each the bytes of a member's data area, with `request` as the request's buffer and `cache`
/// as the content that was said to be in memory. Returns what the plan's working memory holds then.
///
/// # Panics
/// When the plan reaches beyond a member or a buffer, or writes to a buffer that is read only: [`check`](super::check)
/// finds such flaws first.
pub fn interpret(plan: &Plan, members: &mut [Vec<u8>], request: &mut [u8], cache: &[u8]) -> Vec<u8> {
    let mut scratch = alloc::vec![0xEE; bytes(plan.scratch().0)];
    for io in plan.reads() {
        let mut at = bytes(io.sector.0);
        for slice in plan.slices(io) {
            let content = &members[io.member.index()][at..][..bytes(slice.len.0)];
            target(*slice, request, &mut scratch).copy_from_slice(content);
            at += content.len();
        }
    }
    for xor in plan.xors() {
        let mut sum = alloc::vec![0; bytes(xor.target.len.0)];
        for operand in plan.operands(xor) {
            let content = source(operand.content, request, &scratch, cache);
            field::add_multiple(&mut sum, &content, operand.factor);
        }
        target(xor.target, request, &mut scratch).copy_from_slice(&sum);
    }
    for io in plan.writes() {
        let mut at = bytes(io.sector.0);
        for slice in plan.slices(io) {
            let content = source(*slice, request, &scratch, cache);
            members[io.member.index()][at..][..content.len()].copy_from_slice(&content);
            at += content.len();
        }
    }
    scratch
}

fn bytes(sectors: u64) -> usize {
    usize::try_from(sectors * SECTOR_BYTES).expect("a plan's ranges fit the address space")
}

fn target<'a>(slice: Slice, request: &'a mut [u8], scratch: &'a mut [u8]) -> &'a mut [u8] {
    let buffer = match slice.buffer {
        Buffer::Request => request,
        Buffer::Scratch => scratch,
        Buffer::Cache | Buffer::Zeroes => panic!("{:?} is read only", slice.buffer),
    };
    &mut buffer[bytes(slice.start.0)..][..bytes(slice.len.0)]
}

fn source(slice: Slice, request: &[u8], scratch: &[u8], cache: &[u8]) -> Vec<u8> {
    let buffer = match slice.buffer {
        Buffer::Request => request,
        Buffer::Scratch => scratch,
        Buffer::Cache => cache,
        Buffer::Zeroes => return alloc::vec![0; bytes(slice.len.0)],
    };
    buffer[bytes(slice.start.0)..][..bytes(slice.len.0)].to_vec()
}
