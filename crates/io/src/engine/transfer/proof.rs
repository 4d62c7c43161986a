//! What block checksums say of what a transfer has read, computed and written.

use uraid_layout::plan::DiskIo;
use uraid_layout::{DiskSector, Location, MemberIndex, MemberSet};

use super::{Goal, Transfer, end};
use crate::buf::Buf;
use crate::disk::OpKind;
use crate::engine::damage::Damage;
use crate::engine::operations::Purpose;
use crate::engine::sums::{Opinion, PageId, block_at};
use crate::format::badblocks::Lack;
use crate::format::sums::Sum;
use crate::format::{BLOCK, BLOCK_BYTES};

/// Blocks that members are asked for at once.
const ASKED_MAX: usize = 64;

const BLOCK_SECTORS: usize = BLOCK_BYTES / 512;

/// Whether everything that was read is what was written there. What is not is noted as damage; without the stripe's
/// lock nothing is said for sure yet.
pub(in crate::engine) fn verify(transfer: &mut Transfer<'_>) -> bool {
    let parts = transfer.parts;
    let Some(sums) = &parts.sums else { return true };
    let (lost, overlay) = (transfer.lost(), parts.overlay.borrow());
    let mut is_sound = true;
    for index in 0..transfer.plan.reads().len() {
        let io = transfer.plan.reads()[index];
        let mut sector = io.sector;
        for slice in 0..transfer.plan.slices(&io).len() {
            let slice = transfer.plan.slices(&io)[slice];
            for at in (0..slice.len.0).step_by(BLOCK_SECTORS) {
                let (place, block) = (Location { member: io.member, sector }, block_at(sector));
                sector.0 += BLOCK.0;
                let content = transfer.content.bytes_to_fill(&slice.part(at, BLOCK.0));
                let found = sums.sum(io.member, block, content);
                let known = sums.known(io.member, block);
                if known.agrees(found) || planted!(MismatchIgnored) || overlay.touches(io.member, place.sector, BLOCK) {
                    continue;
                }
                if known == Sum::LOST {
                    let said = sums.opinions(parts.geometry(), lost, place, content);
                    if !is_denied(transfer, &said) && transfer.has_to_believe(place) {
                        continue;
                    }
                }
                is_sound = false;
                if transfer.guard.is_some() {
                    parts.members.counters.borrow_mut().mismatch(io.member);
                    tracing::error!(member = %io.member, sector = %place.sector, "a block does not match its checksum");
                    transfer.unreadable = transfer.unreadable.with(io.member);
                    let found = Some(found);
                    transfer.damage.push(Damage { member: io.member, sector: place.sector, len: BLOCK, found });
                }
            }
        }
    }
    is_sound
}

/// Whether what was computed of members that can't be read is what they should hold. Where the checksums do not say
/// so, their members are asked: one that holds just that has lost the checksum, not the block.
pub(in crate::engine) async fn prove(transfer: &mut Transfer<'_>) -> bool {
    let blocks = unproven(transfer);
    if blocks.is_empty() {
        return true;
    }
    let is_known = |at: &Location| has_looked_at(transfer, *at);
    if blocks.len() > ASKED_MAX || blocks.iter().any(is_known) || planted!(MembersUnasked) {
        return false;
    }
    ask(transfer, blocks).await;
    unproven(transfer).is_empty()
}

/// The blocks that were computed of members that can't be read, and of which nothing shows that they are what these
/// should hold: neither the checksum nor what the member gave.
fn unproven(transfer: &mut Transfer<'_>) -> Vec<Location> {
    let parts = transfer.parts;
    let mut unproven = Vec::new();
    let Some(sums) = parts.sums.as_ref().filter(|_| !planted!(ComputedUnverified)) else { return unproven };
    // What a member's table says of what it does not have yet is of something older, where it has taken a failed one's
    // place.
    let (lost, overlay) = (transfer.lost(), parts.overlay.borrow());
    for index in 0..transfer.plan.recovered().len() {
        let piece = transfer.plan.recovered()[index];
        if lost.contains(piece.member) {
            continue;
        }
        for at in (0..piece.content.len.0).step_by(BLOCK_SECTORS) {
            let place = Location { member: piece.member, sector: DiskSector(piece.sector.0 + at) };
            let block = block_at(place.sector);
            let content = transfer.content.bytes_to_fill(&piece.content.part(at, BLOCK.0));
            let sum = sums.sum(piece.member, block, content);
            if !transfer.pins.pages().contains(&PageId { member: piece.member, number: block.place().0 }) {
                continue;
            }
            // So it is of what a member never got.
            let sectors = place.sector..DiskSector(place.sector.0 + BLOCK.0);
            if parts.bad.lacks(piece.member, sectors, Lack::Absent) && !planted!(AbsentProven) {
                continue;
            }
            // Where the member holds just what the others say, it is the checksum that was lost; what the log has may
            // be newer than either.
            let is_logged = overlay.touches(piece.member, place.sector, BLOCK);
            let known = sums.known(piece.member, block);
            let is_proven = known.agrees(sum) || known == Sum::LOST || is_logged || transfer.has_found(place, sum);
            if !is_proven {
                unproven.push(place);
            }
        }
    }
    unproven
}

/// Reads blocks that were computed from their members, too, and notes what does not match its checksum.
async fn ask(transfer: &mut Transfer<'_>, blocks: Vec<Location>) {
    let (parts, members) = (transfer.parts, &transfer.parts.members);
    let sums = parts.sums.as_ref().expect("what has no checksums proves itself");
    members.operations.begin_call(Purpose::Other);
    let mut asked: Vec<(Location, Buf)> = Vec::new();
    for at in blocks {
        let mut buf = Buf::zeroed(BLOCK.bytes());
        let (offset, end) = (members.offset(at.member, at.sector), DiskSector(at.sector.0 + BLOCK.0));
        let mut operation = members.operations.piecewise(at.member, OpKind::Read, offset, end);
        operation.push(buf.lease_write(0..BLOCK_BYTES));
        operation.finish();
        members.counters.borrow_mut().read(at.member, BLOCK);
        asked.push((at, buf));
    }
    let gone = members.operations.end_call().await.failed.union(members.missing());
    for (Location { member, sector }, buf) in asked.into_iter().filter(|(at, _)| !gone.contains(at.member)) {
        let found = sums.sum(member, block_at(sector), buf.as_ref());
        if !sums.known(member, block_at(sector)).agrees(found) {
            members.counters.borrow_mut().mismatch(member);
            tracing::error!(%member, %sector, "a block does not match its checksum");
            transfer.damage.push(Damage { member, sector, len: BLOCK, found: Some(found) });
        }
    }
}

/// Whether a member was read there, and what it gave is not what its checksum says.
fn has_looked_at(transfer: &Transfer<'_>, at: Location) -> bool {
    let is_same = |damage: &Damage| (damage.member, damage.sector, damage.len) == (at.member, at.sector, BLOCK);
    transfer.damage.iter().any(is_same)
}

/// Whether other copies say that a block's content is not what was written there. Where one of their members gave just
/// this content, it is its checksum that is wrong.
fn is_denied(transfer: &Transfer<'_>, said: &[Opinion]) -> bool {
    let confirms = |&Opinion { copy, sum, agrees }: &Opinion| agrees || transfer.has_found(copy, sum);
    !said.is_empty() && !said.iter().any(confirms)
}

/// Notes what the blocks hold that were written, or that nothing is known of them any more where the member is among
/// `failed`: the old, the new, or some of both.
pub(in crate::engine) fn note_written(transfer: &Transfer<'_>, failed: MemberSet) {
    let Some(sums) = &transfer.parts.sums else { return };
    let members = &transfer.parts.members;
    for io in transfer.plan.writes() {
        for (member, _) in members.targets(io.member, io.sector, matches!(transfer.goal, Goal::Copy { .. })) {
            let (mut block, is_known) = (block_at(io.sector), !failed.contains(member));
            for slice in transfer.plan.slices(io) {
                transfer.content.for_each_lease(*slice, |lease| {
                    for content in lease.bytes().chunks_exact(BLOCK_BYTES) {
                        let sum = if is_known { sums.sum(member, block, content) } else { Sum::UNKNOWN };
                        if !planted!(SumNotUpdated) {
                            sums.set(member, block, sum);
                        }
                        block.0 += 1;
                    }
                });
            }
        }
    }
}

/// Waits until the checksums of what was written are written: who failed to take them.
pub(in crate::engine) async fn wait_written(transfer: &Transfer<'_>) -> MemberSet {
    let members = &transfer.parts.members;
    let Some(sums) = transfer.parts.sums.as_ref().filter(|_| !planted!(SumNotAwaited)) else {
        return MemberSet::EMPTY;
    };
    let is_copy = matches!(transfer.goal, Goal::Copy { .. });
    let is_written = |page: &PageId| {
        let touches = |io: &DiskIo, member: MemberIndex| {
            let last = DiskSector(end(io).0 - 1);
            member == page.member && (block_at(io.sector).place().0..=block_at(last).place().0).contains(&page.number)
        };
        // As for noting them: of a member that has just failed no checksum is written, nor of its copy.
        transfer
            .plan
            .writes()
            .iter()
            .any(|io| members.targets(io.member, io.sector, is_copy).iter().any(|&(member, _)| touches(io, member)))
    };
    members.operations.begin_call(Purpose::Other);
    for &page in transfer.pins.pages().iter().filter(|page| is_written(page)) {
        sums.await_write(members, page);
    }
    members.operations.end_call().await.failed
}
