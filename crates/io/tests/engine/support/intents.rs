//! What the members' write-intent bitmaps may hold after a power cut at any moment.

use std::collections::HashMap;
use std::ops::Range;

use uraid_io::bitmap::{Bitmap, RegionId, Regions};
use uraid_io::disk::{Completion, DiskOp, MemDisk};
use uraid_io::superblock::{Consistency, Superblock};
use uraid_layout::{Bytes, DiskSector, Geometry, Location, MemberIndex, Owner};
use uuid::Uuid;

use super::size;

/// One member's: what is durable, then what was written since, in order.
struct Versions {
    all: Vec<Bitmap>,
    /// The last that is over.
    completed: usize,
    /// The operation whose version is the last.
    writing: Option<u64>,
}

/// All members'.
pub(crate) struct Intents {
    geometry: Geometry,
    regions: Regions,
    array: Uuid,
    members: Vec<Versions>,
    /// The version that a flush under way makes durable.
    flushing: HashMap<(u64, MemberIndex), usize>,
}

impl Intents {
    /// Of the array that a superblock describes; none without bitmaps, or without anything that they could be for.
    pub(crate) fn new(superblock: &Superblock, disk: &MemDisk) -> Option<Self> {
        let geometry = Geometry::new(superblock.spec).expect("a test's geometry");
        let regions = Regions::new(&geometry);
        if superblock.consistency != Consistency::Bitmap || geometry.tolerance() == 0 {
            return None;
        }
        assert!(regions.bitmap_bytes() == Bytes(4096), "one block, so that a version is one write");
        let found = |member: MemberIndex| {
            let bytes = disk.member(member).map_or(&[][..], |bytes| &bytes[size(superblock.areas.bitmap.offset)..]);
            let now = Bitmap::decode(regions, superblock.array, &bytes[..bytes.len().min(4096)]);
            Versions { all: vec![now], completed: 0, writing: None }
        };
        let members = geometry.all_members().iter().map(found).collect();
        Some(Self { regions, array: superblock.array, members, flushing: HashMap::new(), geometry })
    }

    /// The bits that a power cut may leave on a member: the fewest.
    pub(crate) fn least(&self, member: MemberIndex) -> Vec<RegionId> {
        let all = &self.members[member.index()].all;
        all[0].iter().filter(|&region| all.iter().all(|version| version.contains(region))).collect()
    }

    /// One of the versions that a power cut may leave on a member, as it is written.
    pub(crate) fn encoded(&self, member: MemberIndex, pick: impl Fn(usize) -> usize) -> Vec<u8> {
        let all = &self.members[member.index()].all;
        all[pick(all.len())].encode(self.array, 0).as_ref().to_vec()
    }

    /// Asserts that the bits of a written range of a member's data are set, whatever a power cut leaves.
    pub(crate) fn assert_set(&self, active: &[MemberIndex], member: MemberIndex, range: Range<usize>) {
        let step = size(self.geometry.chunk().bytes());
        for byte in range.clone().step_by(step).chain([range.end - 1]) {
            let at = Location { member, sector: DiskSector(byte as u64 / 512) };
            let stripe = match self.geometry.owner(at) {
                Some(Owner::Data(lba)) => self.geometry.split(lba).0,
                Some(Owner::Parity { stripe, .. }) => stripe,
                None => continue,
            };
            let region = self.regions.of(stripe);
            for &other in active {
                let is_set = self.members[other.index()].all.iter().all(|version| version.contains(region));
                assert!(
                    is_set,
                    "{stripe:?} is written on member {member}, and {other} may not have the bit of {region:?}"
                );
            }
        }
    }

    /// Takes note of another member at a slot.
    pub(crate) fn put(&mut self, member: MemberIndex, disk: &MemDisk, offset: Bytes) {
        let bytes = &disk.member(member).expect("it was put there")[size(offset)..][..4096];
        let now = Bitmap::decode(self.regions, self.array, bytes);
        self.members[member.index()] = Versions { all: vec![now], completed: 0, writing: None };
    }

    pub(crate) fn written(&mut self, op: &DiskOp) {
        let bytes: Vec<u8> = op.segments.iter().flat_map(|segment| segment.bytes().to_vec()).collect();
        let versions = &mut self.members[op.member.index()];
        assert_eq!(versions.writing.replace(op.tag), None, "one write of a bitmap at a time");
        versions.all.push(Bitmap::decode(self.regions, self.array, &bytes));
    }

    pub(crate) fn flushing(&mut self, tag: u64, member: MemberIndex) {
        self.flushing.insert((tag, member), self.members[member.index()].completed);
    }

    pub(crate) fn completed(&mut self, completion: &Completion) {
        let versions = &mut self.members[completion.member.index()];
        if let Some(durable) = self.flushing.remove(&(completion.tag, completion.member)) {
            if completion.result.is_err() {
                return;
            }
            versions.all.drain(..durable);
            versions.completed -= durable;
            // Other flushes of the member that are under way make the same version durable, or a later one.
            for (_, other) in self.flushing.iter_mut().filter(|((_, member), _)| *member == completion.member) {
                *other = other.saturating_sub(durable);
            }
        } else if versions.writing == Some(completion.tag) {
            versions.writing = None;
            if completion.result.is_ok() {
                versions.completed = versions.all.len() - 1;
            }
        }
    }
}
