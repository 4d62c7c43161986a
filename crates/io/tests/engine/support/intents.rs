//! What the members' write-intent bitmaps may hold after a power cut at any moment.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use uraid_io::disk::{Completion, DiskOp, MemDisk};
use uraid_io::format::bitmap::{Bitmap, RegionId, Regions, Seal};
use uraid_io::format::superblock::{Consistency, Superblock};
use uraid_layout::{Bytes, DiskSector, Geometry, Location, MemberIndex, Owner};

use super::size;

/// A bitmap, and what it belongs to; none: nothing that is known.
#[derive(Clone)]
struct Version {
    bits: Bitmap,
    seal: Option<Seal>,
}

/// One member's: what is durable, then what was written since, in order.
struct Versions {
    all: Vec<Version>,
    /// The last that is over.
    completed: usize,
    /// The operation whose version is the last.
    writing: Option<u64>,
}

/// All members'.
pub(crate) struct Intents {
    geometry: Geometry,
    regions: Regions,
    members: Vec<Versions>,
    /// Where the array has a log: the regions in which some member may lack something.
    lacking: Option<BTreeSet<RegionId>>,
    /// The version that a flush under way makes durable.
    flushing: HashMap<(u64, MemberIndex), usize>,
}

impl Intents {
    /// Of the array that a superblock describes; none without bitmaps, or without anything that they could be for.
    /// `seals` are what a bitmap on the members may belong to.
    pub(crate) fn new(superblock: &Superblock, disk: &MemDisk, seals: &[Seal]) -> Option<Self> {
        let geometry = Geometry::new(superblock.spec).expect("a test's geometry");
        let regions = Regions::new(&geometry);
        if superblock.consistency == Consistency::None || geometry.tolerance() == 0 {
            return None;
        }
        assert!(regions.bitmap_bytes() == Bytes(4096), "one block, so that a version is one write");
        let found = |member: MemberIndex| {
            let bytes = disk.member(member).map_or(&[][..], |bytes| &bytes[size(superblock.areas.bitmap.offset)..]);
            let now = Version::read(regions, seals, &bytes[..bytes.len().min(4096)]);
            Versions { all: vec![now], completed: 0, writing: None }
        };
        let members = geometry.all_members().iter().map(found).collect();
        let lacking = (superblock.consistency == Consistency::Log).then(BTreeSet::new);
        Some(Self { regions, members, flushing: HashMap::new(), geometry, lacking })
    }

    /// Whether bits count only while some member lacks something.
    pub(crate) fn has_log(&self) -> bool {
        self.lacking.is_some()
    }

    /// The bits that a power cut may leave on a member: the fewest.
    pub(crate) fn least(&self, member: MemberIndex) -> Vec<RegionId> {
        let all = &self.members[member.index()].all;
        all[0].bits.iter().filter(|&region| all.iter().all(|version| version.bits.contains(region))).collect()
    }

    /// One of the versions that a power cut may leave on a member, as it is written.
    pub(crate) fn encoded(&self, member: MemberIndex, pick: impl Fn(usize) -> usize) -> Vec<u8> {
        let all = &self.members[member.index()].all;
        let Version { bits, seal } = &all[pick(all.len())];
        seal.map_or(vec![0; 4096], |seal| bits.encode(seal, 0).as_ref().to_vec())
    }

    /// Asserts that the bits of written ranges of members' data are set on those that are `active`, whatever a power
    /// cut leaves; where there is a log, those of all that was written since some member lacks something. Which bits
    /// count is for `seals` to say.
    pub(crate) fn assert_set<'a>(
        &mut self,
        active: &[MemberIndex],
        seals: &[Seal],
        written: impl Iterator<Item = (MemberIndex, &'a Range<usize>)>,
    ) {
        let written =
            written.flat_map(|(member, range)| self.regions_of(member, range)).collect::<BTreeSet<RegionId>>();
        let all = match &mut self.lacking {
            None => &written,
            Some(lacking) if seals.is_empty() => return lacking.clear(),
            Some(lacking) => {
                lacking.extend(&written);
                &*lacking
            }
        };
        for &member in active {
            let versions = &self.members[member.index()].all;
            for (region, seal) in all.iter().flat_map(|region| seals.iter().map(move |seal| (*region, *seal))) {
                let is_set = versions.iter().all(|version| version.seal != Some(seal) || version.bits.contains(region));
                assert!(is_set, "{region:?} is written, and member {member} may not have its bit");
            }
        }
    }

    fn regions_of(&self, member: MemberIndex, range: &Range<usize>) -> Vec<RegionId> {
        let step = size(self.geometry.chunk().bytes());
        let region = |byte: usize| {
            let at = Location { member, sector: DiskSector(byte as u64 / 512) };
            match self.geometry.owner(at)? {
                Owner::Data(lba) => Some(self.regions.of(self.geometry.split(lba).0)),
                Owner::Parity { stripe, .. } => Some(self.regions.of(stripe)),
            }
        };
        range.clone().step_by(step).chain([range.end - 1]).filter_map(region).collect()
    }

    /// Takes note of another member at a slot.
    pub(crate) fn put(&mut self, member: MemberIndex, disk: &MemDisk, offset: Bytes, seals: &[Seal]) {
        let bytes = &disk.member(member).expect("it was put there")[size(offset)..][..4096];
        let now = Version::read(self.regions, seals, bytes);
        if member.index() == self.members.len() {
            self.members.push(Versions { all: Vec::new(), completed: 0, writing: None });
        }
        self.members[member.index()] = Versions { all: vec![now], completed: 0, writing: None };
    }

    pub(crate) fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        self.members.swap(one.index(), other.index());
    }

    pub(crate) fn written(&mut self, op: &DiskOp, seals: &[Seal]) {
        let bytes: Vec<u8> = op.segments.iter().flat_map(|segment| segment.bytes().to_vec()).collect();
        let versions = &mut self.members[op.member.index()];
        assert_eq!(versions.writing.replace(op.tag), None, "one write of a bitmap at a time");
        versions.all.push(Version::read(self.regions, seals, &bytes));
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

impl Version {
    fn read(regions: Regions, seals: &[Seal], bytes: &[u8]) -> Self {
        let decode = |seal: Seal| Self { bits: Bitmap::decode(regions, seal, bytes), seal: Some(seal) };
        let all = || Bitmap::full(regions);
        let known = seals.iter().copied().map(decode).find(|version| version.bits != all());
        known.unwrap_or_else(|| Self { bits: all(), seal: None })
    }
}
