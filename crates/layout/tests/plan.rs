//! Plans, run by the interpreter and held against a slow oracle: the members that the array's content must give, encoded
//! from scratch after every request.

use proptest::prelude::*;
use uraid_layout::plan::{Buffer, Cached, Method, Plan, Planner, Request, Slice, View, Write, check, interpret};
use uraid_layout::repair::Repair;
use uraid_layout::stripe::Role;
use uraid_layout::{
    Bytes, Cell, DataUnit, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, Rotation, SECTOR_BYTES, Sectors,
    Spec, StripeId,
};

const SECTOR: usize = SECTOR_BYTES as usize;

/// The chunk of the small geometries: 8 sectors.
const CHUNK: u64 = 8;

fn geometry(level: Level, members: u8, stripes: u64) -> Geometry {
    let height = if let Level::Rm2 { height, .. } = level { u64::from(height) } else { 1 };
    let spec = Spec { level, members, chunk: Bytes(CHUNK * 512), member_size: Sectors(CHUNK * height * stripes) };
    Geometry::new(spec).expect("a valid geometry")
}

fn rm2(height: u8, placement: Placement) -> Level {
    Level::Rm2 { height, placement }
}

fn small_geometries() -> Vec<Geometry> {
    let raid5 = |rotation| Level::Raid5 { rotation };
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
        geometry(rm2(2, Placement::Adjacent), 4, 2),
        geometry(rm2(2, Placement::Partitioned), 5, 2),
        geometry(rm2(3, Placement::Adjacent), 6, 1),
        geometry(rm2(3, Placement::Adjacent), 7, 2),
        geometry(rm2(3, Placement::Partitioned), 7, 2),
    ]
}

/// Bytes that differ from sector to sector and from seed to seed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
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
fn encode(geometry: &Geometry, content: &[u8]) -> Vec<Vec<u8>> {
    let size = geometry.used_sectors().0 as usize * SECTOR;
    let mut members = vec![vec![0; size]; geometry.members()];
    for (index, sector) in content.chunks(SECTOR).enumerate() {
        let at = geometry.locate(Lba(index as u64));
        members[at.member.index()][at.sector.0 as usize * SECTOR..][..SECTOR].copy_from_slice(sector);
    }
    let chunk = CHUNK as usize * SECTOR;
    for stripe in 0..geometry.stripes().0 {
        let stripe = StripeId(stripe);
        for group in geometry.map(stripe).groups() {
            let Role::Data(unit) = geometry.map(stripe).role(group.data[0]) else { panic!("data") };
            if !geometry.exists(stripe, unit) {
                continue;
            }
            let place = |cell: Cell| (geometry.member(cell).index(), geometry.sector(stripe, cell).0 as usize * SECTOR);
            let mut sum = vec![0; chunk];
            for &cell in &group.data {
                let (member, at) = place(cell);
                sum.iter_mut().zip(&members[member][at..][..chunk]).for_each(|(sum, byte)| *sum ^= byte);
            }
            let (member, at) = place(group.parity);
            members[member][at..][..chunk].copy_from_slice(&sum);
        }
    }
    members
}

/// Every set of members that the array survives without, the empty one first.
fn tolerated(geometry: &Geometry) -> Vec<MemberSet> {
    let mut sets: Vec<MemberSet> = (0..1u32 << geometry.members())
        .filter(|set| set.count_ones() as usize <= geometry.tolerance().max(2))
        .map(|set| (0..32).filter(|member| set >> member & 1 == 1).map(MemberIndex).collect::<MemberSet>())
        .filter(|&failed| failed.len() <= geometry.tolerance() || Repair::new(geometry, failed).is_ok())
        .collect();
    sets.sort_by_key(|set| set.len());
    sets
}

/// An array of bytes under test.
struct Bench<'a> {
    geometry: &'a Geometry,
    repair: Repair,
    missing: MemberSet,
    cached: Vec<Cached>,
    cache: Vec<u8>,
    copy: usize,
    content: Vec<u8>,
    members: Vec<Vec<u8>>,
    planner: Planner,
    plan: Plan,
}

impl<'a> Bench<'a> {
    fn new(geometry: &'a Geometry, failed: MemberSet, missing: MemberSet) -> Self {
        let content = noise(geometry.capacity().0 as usize * SECTOR, 7);
        let mut members = encode(geometry, &content);
        for member in missing.iter() {
            members[member.index()].fill(0xDB);
        }
        let repair = Repair::new(geometry, failed).expect("tolerated");
        let (planner, plan, cached, cache) = (Planner::new(), Plan::default(), Vec::new(), Vec::new());
        Self { geometry, repair, missing, cached, cache, copy: 0, content, members, planner, plan }
    }

    fn degraded(geometry: &'a Geometry, failed: MemberSet) -> Self {
        Self::new(geometry, failed, failed)
    }

    fn healthy(geometry: &'a Geometry) -> Self {
        Self::degraded(geometry, MemberSet::EMPTY)
    }

    fn read(&mut self, lba: u64, len: u64) {
        let view = View {
            geometry: self.geometry,
            repair: &self.repair,
            missing: self.missing,
            cached: &self.cached,
            copy: self.copy,
        };
        self.planner.read(&mut self.plan, &view, Lba(lba), Sectors(len)).expect("in range");
        check(&self.plan, &view, Request::Read(Sectors(len))).unwrap_or_else(|flaw| panic!("{flaw}: {:?}", self.plan));
        let mut answer = vec![0xAB; len as usize * SECTOR];
        interpret(&self.plan, &mut self.members, &mut answer, &self.cache);
        let expected = &self.content[lba as usize * SECTOR..][..answer.len()];
        assert!(answer == expected, "read {lba}+{len} without {:?}: {:?}", self.repair.failed(), self.plan);
    }

    fn write_as(&mut self, lba: u64, len: u64, write: Write, method: Option<Method>) -> Method {
        let view = View {
            geometry: self.geometry,
            repair: &self.repair,
            missing: self.missing,
            cached: &self.cached,
            copy: self.copy,
        };
        let method = match method {
            Some(method) => self.planner.write_by(&mut self.plan, &view, Lba(lba), Sectors(len), method),
            None => self.planner.write(&mut self.plan, &view, Lba(lba), Sectors(len), write),
        }
        .expect("in range");
        check(&self.plan, &view, Request::Write(Sectors(len))).unwrap_or_else(|flaw| panic!("{flaw}: {:?}", self.plan));
        let mut data = match write {
            Write::Data => noise(len as usize * SECTOR, lba * 1000 + len),
            Write::Zeroes => vec![0; len as usize * SECTOR],
        };
        self.content[lba as usize * SECTOR..][..data.len()].copy_from_slice(&data);
        interpret(&self.plan, &mut self.members, &mut data, &self.cache);
        let expected = encode(self.geometry, &self.content);
        for member in self.geometry.all_members().minus(self.missing).iter() {
            assert!(
                self.members[member.index()] == expected[member.index()],
                "member {member} after write {lba}+{len} without {:?}: {:?}",
                self.missing,
                self.plan
            );
        }
        method
    }

    fn write(&mut self, lba: u64, len: u64) -> Method {
        self.write_as(lba, len, Write::Data, None)
    }

    /// Disk operations of the last plan.
    fn operations(&self) -> (usize, usize) {
        (self.plan.reads().len(), self.plan.writes().len())
    }
}

#[test]
fn every_request_of_the_small_geometries_in_every_tolerated_state() {
    let mut requests = 0u64;
    for geometry in small_geometries() {
        let capacity = geometry.capacity().0;
        for failed in tolerated(&geometry) {
            let mut bench = Bench::degraded(&geometry, failed);
            for start in (0..capacity).step_by(7) {
                for len in [1, 2, 5, 8, 9, 16, 24, 29, geometry.stripe_sectors().0, capacity] {
                    let len = len.min(capacity - start);
                    bench.copy = start as usize;
                    bench.read(start, len);
                    bench.write(start, len);
                    requests += 2;
                }
            }
        }
    }
    assert!(requests > 20_000, "only {requests}");
}

#[test]
fn both_methods_are_right_in_every_tolerated_state() {
    for geometry in small_geometries() {
        for failed in tolerated(&geometry) {
            let mut bench = Bench::degraded(&geometry, failed);
            for method in [Method::ReadModifyWrite, Method::Reconstruct] {
                for (start, len) in [(0, 1), (3, 8), (6, 12), (1, geometry.stripe_sectors().0 - 2)] {
                    bench.write_as(start, len.min(geometry.capacity().0 - start), Write::Data, Some(method));
                }
            }
        }
    }
}

#[test]
fn a_member_that_only_failed_a_read_is_still_written() {
    for geometry in small_geometries() {
        for failed in tolerated(&geometry) {
            let mut bench = Bench::new(&geometry, failed, MemberSet::EMPTY);
            for start in (0..geometry.capacity().0).step_by(5) {
                let len = (start % 13 + 1).min(geometry.capacity().0 - start);
                bench.read(start, len);
                bench.write(start, len);
            }
        }
    }
}

#[test]
fn zeros_are_written_without_a_buffer() {
    for geometry in small_geometries() {
        for failed in tolerated(&geometry) {
            let mut bench = Bench::degraded(&geometry, failed);
            for (start, len) in [(0, 1), (3, 8), (6, 12), (0, geometry.stripe_sectors().0)] {
                let len = len.min(geometry.capacity().0 - start);
                bench.write_as(start, len, Write::Zeroes, None);
            }
            let whole = bench
                .plan
                .writes()
                .iter()
                .all(|io| bench.plan.slices(io).iter().all(|slice| slice.buffer == Buffer::Zeroes));
            assert!(whole && bench.plan.reads().is_empty(), "a zeroed parity stripe is zeros on every member");
            bench.read(0, geometry.capacity().0);
        }
    }
}

#[test]
fn resync_makes_parity_of_anything_agree() {
    for geometry in small_geometries() {
        let mut bench = Bench::healthy(&geometry);
        for stripe in (0..geometry.stripes().0).map(StripeId) {
            for group in geometry.map(stripe).groups() {
                let Role::Data(unit) = geometry.map(stripe).role(group.data[0]) else { panic!("data") };
                if geometry.exists(stripe, unit) {
                    let at = geometry.sector(stripe, group.parity).0 as usize * SECTOR;
                    let parity = &mut bench.members[geometry.member(group.parity).index()][at..];
                    parity[..CHUNK as usize * SECTOR].fill(0x77);
                }
            }
        }
        let view = View { geometry: &geometry, repair: &bench.repair, missing: MemberSet::EMPTY, cached: &[], copy: 0 };
        for stripe in (0..geometry.stripes().0).map(StripeId) {
            for (start, len) in [(0, 3), (3, 5)] {
                bench.planner.resync(&mut bench.plan, &view, stripe, Sectors(start), Sectors(len)).expect("exists");
                check(&bench.plan, &view, Request::Resync).expect("sound");
                interpret(&bench.plan, &mut bench.members, &mut [], &[]);
            }
        }
        assert!(bench.members == encode(&geometry, &bench.content));
    }
}

#[test]
fn a_small_write_costs_two_and_two_on_raid5_and_three_and_three_on_rm2() {
    for (level, members, expected) in [
        (Level::Raid0, 4, (0, 1)),
        (Level::Raid1, 3, (0, 3)),
        (Level::Raid10 { copies: 2 }, 4, (0, 2)),
        (Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, (2, 2)),
        (rm2(3, Placement::Adjacent), 7, (3, 3)),
        (rm2(3, Placement::Partitioned), 7, (3, 3)),
        (rm2(3, Placement::Adjacent), 6, (3, 3)),
    ] {
        let geometry = geometry(level, members, 2);
        let mut bench = Bench::healthy(&geometry);
        for unit in 0..geometry.capacity().0 / CHUNK {
            bench.write(unit * CHUNK + 2, 3);
            // In the modified RM2 placement a unit's parity can never be adjacent to it: they are on other members.
            assert_eq!(bench.operations(), expected, "{level:?} unit {unit}");
            let sectors: u64 = bench.plan.reads().iter().map(|io| io.len.0).sum();
            assert_eq!(sectors, 3 * expected.0 as u64, "only the sectors that change move");
        }
    }
}

#[test]
fn a_full_parity_stripe_costs_one_write_a_member_and_no_read() {
    for (level, members, writes) in [
        (Level::Raid0, 4, 4),
        (Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, 5),
        (rm2(3, Placement::Adjacent), 7, 7),
        (rm2(3, Placement::Adjacent), 6, 6),
        (rm2(3, Placement::Partitioned), 7, 21),
    ] {
        let geometry = geometry(level, members, 3);
        let mut bench = Bench::healthy(&geometry);
        let stripe = geometry.stripe_sectors().0;
        assert_eq!(bench.write(stripe, stripe), Method::Full);
        assert_eq!(bench.operations(), (0, writes), "{level:?}");
        if writes == usize::from(members) {
            // Several full stripes are still one operation a member.
            assert_eq!(bench.write(0, 3 * stripe), Method::Full);
            assert_eq!(bench.operations(), (0, writes), "{level:?}");
        }
    }
}

/// Chen & Lee's rule on RAID 5: writing u of the N - 1 units takes min(u + 1, N - 1 - u) reads and u + 1 writes.
#[test]
fn the_method_with_the_fewest_operations_is_chosen() {
    for members in 3..=9u8 {
        let geometry = geometry(Level::Raid5 { rotation: Rotation::LeftSymmetric }, members, 2);
        let mut bench = Bench::healthy(&geometry);
        let data = u64::from(members) - 1;
        for units in 1..=data {
            let method = bench.write(0, units * CHUNK);
            let (modify, reconstruct) = (units + 1, data - units);
            assert_eq!(bench.operations(), (modify.min(reconstruct) as usize, units as usize + 1), "{units} of {data}");
            let expected = match reconstruct {
                0 => Method::Full,
                _ if reconstruct <= modify => Method::Reconstruct,
                _ => Method::ReadModifyWrite,
            };
            assert_eq!(method, expected);
        }
    }
}

#[test]
fn a_partial_write_of_almost_everything_reads_only_the_rest() {
    let geometry = geometry(Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, 1);
    let mut bench = Bench::healthy(&geometry);
    // All but the first sector of unit 0 and the last two of unit 3.
    assert_eq!(bench.write(1, 4 * CHUNK - 3), Method::Reconstruct);
    let mut sectors: Vec<u64> = bench.plan.reads().iter().map(|io| io.len.0).collect();
    sectors.sort_unstable();
    assert_eq!(sectors, [1, 2]);
}

#[test]
fn a_degraded_small_read_costs_the_group_and_a_copy_costs_nothing() {
    let raid5 = geometry(Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, 2);
    let mut bench = Bench::degraded(&raid5, MemberSet::EMPTY.with(MemberIndex(0)));
    bench.read(1, 2);
    assert_eq!(bench.operations(), (4, 0), "Chen & Lee's figure: unit 0 is on disk 0");
    bench.read(CHUNK, 2);
    assert_eq!(bench.operations(), (1, 0), "unit 1 is on disk 1");
    let mirror = geometry(Level::Raid1, 3, 2);
    let mut bench = Bench::degraded(&mirror, MemberSet::EMPTY.with(MemberIndex(0)));
    bench.read(1, 2);
    assert_eq!((bench.operations(), bench.plan.xors().len()), ((1, 0), 0));
    // A whole degraded stripe: every surviving unit once.
    let mut bench = Bench::degraded(&raid5, MemberSet::EMPTY.with(MemberIndex(1)));
    bench.read(0, 4 * CHUNK);
    assert_eq!((bench.operations(), bench.plan.xors().len()), ((4, 0), 1));
}

#[test]
fn a_read_prefers_the_copy_that_the_view_names() {
    let geometry = geometry(Level::Raid1, 3, 2);
    let mut bench = Bench::degraded(&geometry, MemberSet::EMPTY.with(MemberIndex(1)));
    let members: Vec<u8> = (0..4)
        .map(|copy| {
            bench.copy = copy;
            bench.read(0, 4);
            bench.plan.reads()[0].member.0
        })
        .collect();
    assert_eq!(members, [0, 2, 0, 2]);
}

#[test]
fn cached_content_is_not_read_again() {
    let geometry = geometry(Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, 2);
    let mut bench = Bench::healthy(&geometry);
    let map = geometry.map(StripeId(0));
    let unit = map.cell(DataUnit(1));
    bench.cache = vec![0; 2 * CHUNK as usize * SECTOR];
    for (slot, cell) in [unit, map.groups()[0].parity].into_iter().enumerate() {
        let at = geometry.sector(StripeId(0), cell).0 as usize * SECTOR;
        let bytes = &bench.members[geometry.member(cell).index()][at..][..CHUNK as usize * SECTOR];
        bench.cache[slot * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
        let content = Slice { buffer: Buffer::Cache, start: Sectors(slot as u64 * CHUNK), len: Sectors(CHUNK) };
        bench.cached.push(Cached { stripe: StripeId(0), cell, start: Sectors(0), content });
    }
    bench.read(CHUNK, CHUNK);
    assert_eq!(bench.operations(), (0, 0));
    bench.write(CHUNK + 3, 2);
    assert_eq!(bench.operations(), (0, 2), "old data and old parity are in memory");
}

fn any_geometry() -> impl Strategy<Value = Geometry> {
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
        (9..15u8, 2..5u8, any::<bool>()).prop_map(|(members, height, adjacent)| {
            (rm2(height, if adjacent { Placement::Adjacent } else { Placement::Partitioned }), members)
        }),
    ];
    (level, 2..4u64).prop_map(|((level, members), stripes)| geometry(level, members, stripes))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_requests_in_any_tolerated_state(
        geometry in any_geometry(),
        failed in any::<prop::sample::Index>(),
        kept in any::<u64>(),
        requests in prop::collection::vec((any::<u64>(), any::<u64>(), 0..4usize, any::<bool>()), 1..6),
    ) {
        let sets = tolerated(&geometry);
        let failed = sets[failed.index(sets.len())];
        // Some of the failed members are only unreadable.
        let missing = failed.iter().filter(|member| kept >> member.0 & 1 == 0).collect();
        let mut bench = Bench::new(&geometry, failed, missing);
        for (start, len, copy, is_write) in requests {
            let start = start % geometry.capacity().0;
            let len = 1 + len % (geometry.capacity().0 - start);
            bench.copy = copy;
            if is_write {
                bench.write(start, len);
            }
            bench.read(start, len);
        }
    }
}
