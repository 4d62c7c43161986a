//! Bits that rot while nobody looks: in superblocks, write-intent bitmaps and logs, between two lives of an array.
//!
//! What must hold: one copy of a superblock is as good as the other; a damaged bitmap stands for bits that are all set;
//! what a damaged log has lost is found, the member refused by name, and the array is opened without it, where it is
//! not the only one. Of the newest record of the log nobody can say that it was there, so it is left alone; that of the
//! journal counts as long as one copy is whole.

use std::collections::BTreeMap;
use std::ops::Range;

use uraid_io::format::log::record::{LogSequence, decode, may_begin};
use uraid_io::format::superblock::{Area, Consistency, SUPERBLOCK_BYTES, Superblock, positions};
use uraid_io::format::{BLOCK, BLOCK_BYTES};
use uraid_layout::{Bytes, Geometry, MemberIndex, MemberSet, SECTOR_BYTES, Sectors, StripeId};

use super::audit::{as_cell, exists};
use super::finding::Finding;
use super::found::Found;
use super::report::Rotten;
use crate::image::Image;
use crate::member::Member;
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// Makes a block unreadable of some members, mostly in the same column of one parity stripe; others may be read again.
pub(super) fn spoil(members: &mut Members, geometry: &Geometry, random: &mut Random, trace: &Trace) {
    let (stripe, column) = (random.below(geometry.stripes().0), random.below(geometry.chunk().0 / BLOCK.0));
    for slot in members.present().iter() {
        if random.chance(1, 4) {
            members.get_mut(slot).expect("it is present").recuperate();
        }
    }
    for _ in 0..random.within(1, 3) {
        let (stripe, column) = if random.chance(3, 4) {
            (stripe, column)
        } else {
            (random.below(geometry.stripes().0), random.below(geometry.chunk().0 / BLOCK.0))
        };
        let cell = as_cell(random.index(geometry.maps()[0].cells()));
        let (slot, stripe) = (geometry.member(cell), StripeId(stripe));
        let Some(member) = members.get_mut(slot).filter(|_| exists(geometry, stripe, cell)) else { continue };
        let Ok(own) = member.superblock() else { continue };
        let sector = Sectors(geometry.sector(stripe, cell).0 + column * BLOCK.0);
        let at = Bytes(own.areas.data.offset.0 + sector.bytes().0);
        trace.note(format_args!("member {slot} can't read byte {at} any more"));
        member.spoil(at, BLOCK.bytes());
    }
}

/// Damages one copy of the superblock of some members, and the bitmaps of some. `settled` are the members of which all
/// copies are whole.
///
/// # Errors
/// When a member is another one then.
pub(super) fn rot_heads(
    members: &mut Members,
    settled: MemberSet,
    random: &mut Random,
    trace: &Trace,
) -> Result<Rotten, Finding> {
    let mut rotten = Rotten::default();
    for slot in members.present().iter() {
        let member = members.get_mut(slot).expect("it is present");
        let Ok(own) = member.superblock() else { continue };
        // While a round is under way, or was cut off, one copy may be all that there is.
        let is_whole = |at: Bytes| {
            [member.durable(), member.current()].map(|image| superblock_at(image, at))
                == [(); 2].map(|()| Some(own.clone()))
        };
        let is_settled = settled.contains(slot) || own.write_positions().into_iter().all(is_whole);
        // Of a member that was enlarged, and of which no more is used yet, only the copy at the head is found.
        let is_settled = is_settled && own.areas.member_size == member.size();
        let copy = *random.pick(&positions(member.size()).expect("a member has room for its superblocks"));
        if random.chance(1, 2) && is_settled {
            trace.note(format_args!("the superblock of member {slot} rots at byte {copy}"));
            flip(member, Area { offset: copy, size: Bytes(SUPERBLOCK_BYTES as u64) }, random);
            rotten.superblocks += 1;
            match member.superblock() {
                Ok(now) if now == own => {}
                Ok(_) => return Err(Finding::Forgotten { member: slot }),
                Err(source) => return Err(Finding::NoSuperblock { member: slot, source }),
            }
        }
        if random.chance(1, 4) {
            // Nobody uses more than the first block in an array as small as this.
            flip(member, Area { size: BLOCK.bytes(), ..own.areas.bitmap }, random);
            rotten.bitmaps += 1;
        }
    }
    Ok(rotten)
}

/// What has rotted of a log or a journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct RottenLog {
    pub(super) member: MemberIndex,
    /// It is the newest record of the journal, of which somebody else who is there has a copy: that one counts.
    pub(super) has_copy: bool,
}

/// Damages the log or the journal of one of the members that an array is opened with; not the newest record of the log,
/// nor that of the journal where nobody else has it.
pub(super) fn rot_log(found: &mut Found, random: &mut Random, trace: &Trace) -> Option<RottenLog> {
    let truth = &found.verdict.superblock;
    // What becomes of log devices is not drawn here.
    if truth.consistency != Consistency::Log || truth.logs.is_some() {
        return None;
    }
    // What is newest has to stay that: a power cut takes a record that is not flushed yet.
    if found.members.iter().any(|(_, member)| member.unflushed().next().is_some()) {
        return None;
    }
    let accepted: Vec<&Superblock> =
        found.verdict.slots.iter().flatten().map(|&index| &found.candidates[index].superblock).collect();
    let mut held = BTreeMap::new();
    let mut newest = [LogSequence(0); 2];
    for own in &accepted {
        let records = records(found.members.get(own.slot)?, own, truth);
        for InLog { sequence, lane, .. } in &records {
            newest[*lane] = (*sequence).max(newest[*lane]);
        }
        held.insert(own.slot, records);
    }
    let own = (*random.pick(&accepted)).clone();
    let is_newest = |record: &&InLog| record.sequence == newest[record.lane];
    let (latest, older): (Vec<_>, Vec<_>) = held[&own.slot].iter().partition(is_newest);
    let log = own.areas.log;
    let mut at = random.below(log.size.0);
    let is_in_journal = |record: &&&InLog| record.lane == JOURNAL;
    let latest_page = latest.iter().find(is_in_journal).filter(|_| random.chance(3, 4));
    if let Some(InLog { range, .. }) = latest_page {
        at = random.within(range.start, range.end - 1);
    } else if !older.is_empty() && random.chance(3, 4) {
        let range = &random.pick(&older).range;
        at = random.within(range.start, range.end - 1);
    }
    let hit = latest.iter().find(|record| record.range.contains(&at));
    let has = |slot: &MemberIndex, hit: &InLog| held[slot].iter().any(|record| record.is_copy_of(hit));
    let has_copy = hit.is_some_and(|hit| held.keys().any(|slot| *slot != own.slot && has(slot, hit)));
    if hit.is_some_and(|hit| hit.lane != JOURNAL || !has_copy) {
        return None;
    }
    // Without the only member that is up to date there is nobody to open the array with, or those who don't know that
    // they are not.
    if accepted.len() == 1 {
        return None;
    }
    let sector = at / SECTOR_BYTES * SECTOR_BYTES;
    let byte = usize::try_from(at - sector).expect("inside a sector");
    trace.note(format_args!("the log of member {} rots at byte {at}", own.slot));
    let member = found.members.get_mut(own.slot)?;
    member.rot(Bytes(log.offset.0 + sector), byte, 1 << random.below(8));
    Some(RottenLog { member: own.slot, has_copy })
}

/// The number of the journal among a member's logs.
const JOURNAL: usize = 1;

/// A record of the array's present run.
pub(super) struct InLog {
    sequence: LogSequence,
    /// Of the log, or of the journal of pages.
    lane: usize,
    /// The bytes of the log's area that it is.
    pub(super) range: Range<u64>,
}

impl InLog {
    fn is_copy_of(&self, other: &Self) -> bool {
        (self.sequence, self.lane) == (other.sequence, other.lane)
    }
}

/// The records that a member has; or a log device, of the member with that superblock.
pub(super) fn records(member: &Member, own: &Superblock, truth: &Superblock) -> Vec<InLog> {
    let lanes = [(Some(own.ring()), truth.generation), (own.journal_area(), truth.journal)];
    let mut found = Vec::new();
    for (lane, (area, generation)) in lanes.into_iter().enumerate() {
        let Some(area) = area else { continue };
        let mut ring = vec![0; usize::try_from(area.size.0).expect("a small log")];
        member.read(area.offset, &mut ring);
        let start = area.offset.0 - own.log_area().offset.0;
        found.extend((0..ring.len()).step_by(BLOCK_BYTES).filter_map(|at| {
            let rest = &ring[at..];
            let (header, content) = may_begin(rest, generation).then(|| decode(rest).ok())??;
            let range = start + at as u64..start + (at + content.end) as u64;
            let is_its = header.slot == own.slot && header.position.0 == at as u64;
            is_its.then_some(InLog { sequence: header.sequence, lane, range })
        }));
    }
    found
}

/// The copy of a superblock that is at a place.
fn superblock_at(image: &Image, at: Bytes) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read(at, &mut bytes);
    uraid_io::format::superblock::decode(&bytes).ok()
}

/// Changes a bit of an area.
fn flip(member: &mut Member, area: Area, random: &mut Random) {
    let at = area.offset.0 + random.below(area.size.0);
    let sector = at / SECTOR_BYTES * SECTOR_BYTES;
    let byte = usize::try_from(at - sector).expect("inside a sector");
    member.rot(Bytes(sector), byte, 1 << random.below(8));
}
