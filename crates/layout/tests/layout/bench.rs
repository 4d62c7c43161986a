//! Arrays of bytes, small enough to be encoded anew after every request.

use proptest::prelude::*;
use uraid_layout::plan::{
    Buffer, Cached, Extent, Method, Plan, Planner, Queue, Request, Slice, View, check, interpret,
};
use uraid_layout::repair::Repair;
use uraid_layout::stripe::Role;
use uraid_layout::{
    Bytes, Cell, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, Rotation, SECTOR_BYTES, Sectors, Spec,
    StripeId,
};

use crate::oracle::{factor, product};

pub(crate) const SECTOR: usize = SECTOR_BYTES as usize;

/// The chunk of the small geometries: 8 sectors.
pub(crate) const CHUNK: u64 = 8;

pub(crate) fn geometry(level: Level, members: u8, stripes: u64) -> Geometry {
    let height = if let Level::Rm2 { height, .. } = level { u64::from(height) } else { 1 };
    let spec = Spec { level, members, chunk: Bytes(CHUNK * 512), member_size: Sectors(CHUNK * height * stripes) };
    Geometry::new(spec).expect("a valid geometry")
}

pub(crate) fn rm2(height: u8, placement: Placement) -> Level {
    Level::Rm2 { height, placement }
}

pub(crate) fn small_geometries() -> Vec<Geometry> {
    let raid5 = |rotation| Level::Raid5 { rotation };
    let raid6 = |rotation| Level::Raid6 { rotation };
    vec![
        geometry(Level::Raid0, 3, 2),
        geometry(Level::Raid1, 2, 2),
        geometry(Level::Raid1, 3, 2),
        geometry(Level::Raid10 { copies: 2 }, 4, 2),
        geometry(Level::Raid10 { copies: 2 }, 3, 3),
        geometry(Level::Raid10 { copies: 3 }, 4, 4),
        geometry(raid5(Rotation::LeftSymmetric), 3, 2),
        geometry(raid5(Rotation::LeftSymmetric), 5, 2),
        geometry(raid5(Rotation::RightAsymmetric), 4, 2),
        geometry(raid6(Rotation::LeftSymmetric), 4, 2),
        geometry(raid6(Rotation::LeftSymmetric), 6, 2),
        geometry(raid6(Rotation::RightAsymmetric), 5, 3),
        geometry(rm2(2, Placement::Adjacent), 4, 2),
        geometry(rm2(2, Placement::Partitioned), 5, 2),
        geometry(rm2(3, Placement::Adjacent), 6, 1),
        geometry(rm2(3, Placement::Adjacent), 7, 2),
        geometry(rm2(3, Placement::Partitioned), 7, 2),
    ]
}

/// Bytes that differ from sector to sector and from seed to seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// What the members hold when the array's content is `content`: data by address, parity by summing its group up.
pub(crate) fn encode(geometry: &Geometry, content: &[u8]) -> Vec<Vec<u8>> {
    let size = geometry.used_sectors().0 as usize * SECTOR;
    let mut members = vec![vec![0; size]; geometry.members()];
    for (index, sector) in content.chunks(SECTOR).enumerate() {
        let at = geometry.locate(Lba(index as u64));
        members[at.member.index()][at.sector.0 as usize * SECTOR..][..SECTOR].copy_from_slice(sector);
    }
    let chunk = CHUNK as usize * SECTOR;
    for stripe in 0..geometry.stripes().0 {
        let stripe = StripeId(stripe);
        for (number, group) in (0..).zip(geometry.map(stripe).groups()) {
            let Role::Data(unit) = geometry.map(stripe).role(group.data[0]) else { panic!("data") };
            if !geometry.exists(stripe, unit) {
                continue;
            }
            let place = |cell: Cell| (geometry.member(cell).index(), geometry.sector(stripe, cell).0 as usize * SECTOR);
            let mut sum = vec![0; chunk];
            for &cell in &group.data {
                let (member, at) = place(cell);
                let holder = geometry.member(group.parity).0.into();
                let factor = factor(geometry.spec().level, members.len() as u64, number, holder, member as u64);
                let bytes = sum.iter_mut().zip(&members[member][at..][..chunk]);
                bytes.for_each(|(sum, &byte)| *sum ^= if factor == 1 { byte } else { product(byte, factor) });
            }
            let (member, at) = place(group.parity);
            members[member][at..][..chunk].copy_from_slice(&sum);
        }
    }
    members
}

/// Every set of members that the array survives without, the empty one first.
pub(crate) fn tolerated(geometry: &Geometry) -> Vec<MemberSet> {
    let mut sets: Vec<MemberSet> = (0..1u32 << geometry.members())
        .filter(|set| set.count_ones() as usize <= geometry.tolerance().max(2))
        .map(|set| (0..32).filter(|member| set >> member & 1 == 1).map(MemberIndex).collect::<MemberSet>())
        .filter(|&failed| failed.len() <= geometry.tolerance() || Repair::new(geometry, failed).is_ok())
        .collect();
    sets.sort_by_key(|set| set.len());
    sets
}

/// An array of bytes under test.
pub(crate) struct Bench<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) repair: Repair,
    pub(crate) missing: MemberSet,
    pub(crate) left_out: Vec<Cell>,
    pub(crate) cached: Vec<Cached>,
    pub(crate) cache: Vec<u8>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) writes: u64,
    pub(crate) content: Vec<u8>,
    pub(crate) members: Vec<Vec<u8>>,
    pub(crate) planner: Planner,
    pub(crate) plan: Plan,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(geometry: &'a Geometry, failed: MemberSet, missing: MemberSet) -> Self {
        let content = noise(geometry.capacity().0 as usize * SECTOR, 7);
        let mut members = encode(geometry, &content);
        for member in missing.iter() {
            members[member.index()].fill(0xDB);
        }
        let repair = Repair::partial(geometry, failed);
        let (planner, plan) = (Planner::new(), Plan::default());
        let (left_out, cached, cache, queues) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { geometry, repair, missing, left_out, cached, cache, queues, writes: 0, content, members, planner, plan }
    }

    pub(crate) fn degraded(geometry: &'a Geometry, failed: MemberSet) -> Self {
        Self::new(geometry, failed, failed)
    }

    /// An array of which some members can't be read, however many, and all can be written.
    pub(crate) fn unreadable(geometry: &'a Geometry, failed: MemberSet) -> Self {
        let repair = Repair::partial(geometry, failed);
        Self { repair, ..Self::healthy(geometry) }
    }

    /// An array of which cells of a parity stripe can't be read, too, though their members have not failed.
    pub(crate) fn lacking(geometry: &'a Geometry, failed: MemberSet, stripe: StripeId, cells: &[Cell]) -> Self {
        let repair = Repair::partial(geometry, failed).beside(geometry, stripe, cells.iter().copied());
        Self { repair, ..Self::degraded(geometry, failed) }
    }

    pub(crate) fn healthy(geometry: &'a Geometry) -> Self {
        Self::degraded(geometry, MemberSet::EMPTY)
    }

    pub(crate) fn view(&self) -> View<'_> {
        let Self { geometry, repair, missing, left_out, cached, queues, .. } = self;
        View { missing: *missing, left_out, cached, queues, ..View::new(geometry, repair) }
    }

    pub(crate) fn read(&mut self, lba: u64, len: u64) {
        self.read_all(&[Extent::request(Lba(lba), Sectors(len))]);
    }

    /// Reads extents, and finds each where it was wanted and nothing anywhere else.
    pub(crate) fn read_all(&mut self, extents: &[Extent]) {
        let Self { geometry, repair, missing, left_out, cached, queues, .. } = self;
        let view = View { missing: *missing, left_out, cached, queues, ..View::new(geometry, repair) };
        self.planner.read(&mut self.plan, &view, extents).expect("in range");
        check(&self.plan, &view, Request::Read(extents)).unwrap_or_else(|flaw| panic!("{flaw}: {:?}", self.plan));
        let mut answer = vec![0xAB; request_bytes(extents)];
        let mut expected = answer.clone();
        for &Extent { lba, content } in extents {
            let bytes = &self.content[lba.0 as usize * SECTOR..][..content.len.0 as usize * SECTOR];
            expected[content.start.0 as usize * SECTOR..][..bytes.len()].copy_from_slice(bytes);
        }
        interpret(&self.plan, &mut self.members, &mut answer, &self.cache);
        assert!(answer == expected, "read {extents:?} without {:?}: {:?}", self.repair.failed(), self.plan);
    }

    /// Writes extents: noise where they are of the request, what the cache has where they are of it.
    pub(crate) fn write_all(&mut self, extents: &[Extent], method: Option<Method>) -> Method {
        let Self { geometry, repair, missing, left_out, cached, queues, .. } = self;
        let view = View { missing: *missing, left_out, cached, queues, ..View::new(geometry, repair) };
        let method = match method {
            Some(method) => self.planner.write_by(&mut self.plan, &view, extents, method),
            None => self.planner.write(&mut self.plan, &view, extents),
        }
        .expect("in range");
        check(&self.plan, &view, Request::Write(extents)).unwrap_or_else(|flaw| panic!("{flaw}: {:?}", self.plan));
        self.writes += 1;
        let mut request = noise(request_bytes(extents), self.writes);
        for &Extent { lba, content } in extents {
            let target = &mut self.content[lba.0 as usize * SECTOR..][..content.len.0 as usize * SECTOR];
            let start = content.start.0 as usize * SECTOR;
            match content.buffer {
                Buffer::Request => target.copy_from_slice(&request[start..][..target.len()]),
                Buffer::Cache => target.copy_from_slice(&self.cache[start..][..target.len()]),
                Buffer::Zeroes => target.fill(0),
                Buffer::Scratch => panic!("content is never in scratch"),
            }
        }
        let before = self.members.clone();
        interpret(&self.plan, &mut self.members, &mut request, &self.cache);
        let mut expected = encode(geometry, &self.content);
        for stripe in (0..geometry.stripes().0).map(StripeId) {
            for &cell in left_out.iter().filter(|&&cell| geometry.uses(stripe, cell)) {
                let (member, start) = (geometry.member(cell).index(), geometry.sector(stripe, cell).0);
                let bytes = start as usize * SECTOR..(start + CHUNK) as usize * SECTOR;
                expected[member][bytes.clone()].copy_from_slice(&before[member][bytes]);
            }
        }
        for member in self.geometry.all_members().minus(self.missing).iter() {
            assert!(
                self.members[member.index()] == expected[member.index()],
                "member {member} after write {extents:?} without {:?}: {:?}",
                self.missing,
                self.plan
            );
        }
        method
    }

    pub(crate) fn write(&mut self, lba: u64, len: u64) -> Method {
        self.write_all(&[Extent::request(Lba(lba), Sectors(len))], None)
    }

    /// Puts bytes into the cache.
    pub(crate) fn hold(&mut self, bytes: &[u8]) -> Slice {
        let start = Sectors((self.cache.len() / SECTOR) as u64);
        self.cache.extend_from_slice(bytes);
        Slice { buffer: Buffer::Cache, start, len: Sectors((bytes.len() / SECTOR) as u64) }
    }

    /// Puts what the array holds of a cell into the cache.
    pub(crate) fn remember(&mut self, stripe: StripeId, cell: Cell, start: u64, len: u64) {
        let at = (self.geometry.sector(stripe, cell).0 + start) as usize * SECTOR;
        let members = encode(self.geometry, &self.content);
        let content = self.hold(&members[self.geometry.member(cell).index()][at..][..len as usize * SECTOR]);
        self.cached.push(Cached { stripe, cell, start: Sectors(start), content });
        self.cached.sort_by_key(|cached| cached.stripe);
    }

    pub(crate) fn forget(&mut self) {
        self.cached.clear();
        self.cache.clear();
    }

    /// Disk operations of the last plan.
    pub(crate) fn operations(&self) -> (usize, usize) {
        (self.plan.reads().len(), self.plan.writes().len())
    }
}

/// How long a request buffer the extents need, in bytes.
pub(crate) fn request_bytes(extents: &[Extent]) -> usize {
    let of_request = extents.iter().map(|extent| extent.content).filter(|slice| slice.buffer == Buffer::Request);
    of_request.map(|slice| (slice.start.0 + slice.len.0) as usize * SECTOR).max().unwrap_or(0)
}

pub(crate) fn any_geometry() -> impl Strategy<Value = Geometry> {
    let level = prop_oneof![
        (2..12u8).prop_map(|members| (Level::Raid0, members)),
        (2..6u8).prop_map(|members| (Level::Raid1, members)),
        (2..9u8, 2..4u8).prop_map(|(members, copies)| (Level::Raid10 { copies: copies.min(members) }, members)),
        (3..12u8, 0..4usize).prop_map(|(members, rotation)| {
            let all = [
                Rotation::LeftAsymmetric,
                Rotation::RightAsymmetric,
                Rotation::LeftSymmetric,
                Rotation::RightSymmetric,
            ];
            (Level::Raid5 { rotation: all[rotation] }, members)
        }),
        (4..12u8, 0..4usize)
            .prop_map(|(members, rotation)| (Level::Raid6 { rotation: Rotation::ALL[rotation] }, members)),
        (9..15u8, 2..5u8, any::<bool>()).prop_map(|(members, height, adjacent)| {
            (rm2(height, if adjacent { Placement::Adjacent } else { Placement::Partitioned }), members)
        }),
    ];
    (level, 2..4u64).prop_map(|((level, members), stripes)| geometry(level, members, stripes))
}
