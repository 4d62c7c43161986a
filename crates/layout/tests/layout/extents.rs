//! Plans of several extents, and of what is in memory already, held against the encoder.

use std::collections::BTreeSet;

use proptest::prelude::*;
use uraid_layout::plan::{Buffer, Extent, Flaw, Method, PlanError, Planner, Request, Slice, check};
use uraid_layout::{
    Bytes, Cell, DataUnit, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, Rotation, Sectors, Spec, StripeId,
};

use crate::bench::{Bench, CHUNK, SECTOR, any_geometry, geometry, noise, rm2, small_geometries, tolerated};

const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

/// One extent of a request to be: the sectors before it, its length and where its content is.
#[derive(Clone, Copy, Debug)]
struct Run {
    gap: u64,
    len: u64,
    buffer: Buffer,
}

/// A range of a cell that is to be in memory.
#[derive(Clone, Copy, Debug)]
struct Memory {
    cell: u64,
    start: u64,
    len: u64,
}

fn any_run() -> impl Strategy<Value = Run> {
    let buffer = prop_oneof![Just(Buffer::Request), Just(Buffer::Cache), Just(Buffer::Zeroes)];
    (0..20u64, 1..14u64, buffer).prop_map(|(gap, len, buffer)| Run { gap, len, buffer })
}

fn any_memory() -> impl Strategy<Value = Memory> {
    (any::<u64>(), 0..CHUNK, 1..=CHUNK).prop_map(|(cell, start, len)| Memory {
        cell,
        start,
        len: len.min(CHUNK - start),
    })
}

/// The extents from `start` on that fit, in parts of their buffers that touch nowhere and are in the opposite order.
fn extents(bench: &mut Bench<'_>, start: u64, runs: &[Run], is_read: bool) -> Vec<Extent> {
    let capacity = bench.geometry.capacity().0;
    let mut extents: Vec<Extent> = Vec::new();
    let (mut lba, mut place) = (start, 1000);
    for run in runs {
        lba += if extents.is_empty() { 0 } else { run.gap };
        let len = run.len.min(capacity.saturating_sub(lba));
        if len == 0 {
            break;
        }
        let buffer = if is_read { Buffer::Request } else { run.buffer };
        place -= len + 1;
        let content = match buffer {
            Buffer::Cache => bench.hold(&noise(len as usize * SECTOR, lba * 31 + len)),
            _ => Slice { buffer, start: Sectors(place), len: Sectors(len) },
        };
        extents.push(Extent { lba: Lba(lba), content });
        lba += len;
    }
    extents
}

/// Writes the runs and reads them back, by a method where one is named, with some old content in memory.
fn write_and_read(bench: &mut Bench<'_>, start: u64, runs: &[Run], memory: &[Memory], method: Option<Method>) {
    for is_read in [false, true] {
        bench.forget();
        for range in memory {
            let (stripe, cell) = cell(bench.geometry, range.cell);
            bench.remember(stripe, cell, range.start, range.len);
        }
        let extents = extents(bench, start, runs, is_read);
        if is_read {
            bench.read_all(&extents);
        } else {
            bench.write_all(&extents, method);
        }
    }
}

/// Any cell of the array that has a sector: those of the partial last stripe of a RAID 10 may be beyond the members.
fn cell(geometry: &Geometry, seed: u64) -> (StripeId, Cell) {
    let stripe = StripeId(seed % geometry.stripes().0);
    let cells = (0..geometry.map(stripe).cells() as u64).map(|cell| Cell(cell as u16));
    let present: Vec<Cell> =
        cells.filter(|&cell| geometry.sector(stripe, cell).0 + CHUNK <= geometry.used_sectors().0).collect();
    (stripe, present[(seed >> 8) as usize % present.len()])
}

#[test]
fn scattered_extents_of_the_small_geometries_in_every_tolerated_state() {
    let buffers = [Buffer::Request, Buffer::Cache, Buffer::Zeroes];
    let mut requests = 0;
    for geometry in small_geometries() {
        let sets = tolerated(&geometry);
        for (index, &failed) in sets.iter().enumerate() {
            for missing in [failed, failed.iter().skip(1).collect()] {
                let mut bench = Bench::new(&geometry, failed, missing);
                for round in 0..12u64 {
                    let bytes = noise(64, round * 1000 + index as u64);
                    let run = |bytes: &[u8]| Run {
                        // From runs of single sectors side by side to runs over several chunks.
                        gap: u64::from(bytes[0]) % (2 + 2 * round),
                        len: 1 + u64::from(bytes[1]) % (1 + round),
                        buffer: buffers[usize::from(bytes[2]) % 3],
                    };
                    let memory = |bytes: &[u8]| {
                        let start = u64::from(bytes[1]) % CHUNK;
                        let len = 1 + u64::from(bytes[2]) % (CHUNK - start);
                        Memory { cell: u64::from(bytes[0]) << 8 | u64::from(bytes[3]), start, len }
                    };
                    let runs: Vec<Run> = bytes[..36].chunks(3).map(run).collect();
                    let memory: Vec<Memory> = bytes[36..60].chunks(4).take(round as usize % 6).map(memory).collect();
                    let start = u64::from(bytes[60]) % geometry.capacity().0;
                    let method = [None, Some(Method::ReadModifyWrite), Some(Method::Reconstruct)][round as usize % 3];
                    write_and_read(&mut bench, start, &runs, &memory, method);
                    requests += 1;
                }
                bench.forget();
                bench.read(0, geometry.capacity().0);
            }
        }
    }
    assert!(requests > 3000, "only {requests}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_extents_in_any_tolerated_state(
        geometry in any_geometry(),
        failed in any::<prop::sample::Index>(),
        kept in any::<u64>(),
        start in any::<u64>(),
        runs in prop::collection::vec(any_run(), 1..40),
        memory in prop::collection::vec(any_memory(), 0..8),
        method in prop::option::of(prop_oneof![Just(Method::ReadModifyWrite), Just(Method::Reconstruct)]),
    ) {
        let sets = tolerated(&geometry);
        let failed = sets[failed.index(sets.len())];
        let missing = failed.iter().filter(|member| kept >> member.0 & 1 == 0).collect();
        let mut bench = Bench::new(&geometry, failed, missing);
        write_and_read(&mut bench, start % geometry.capacity().0, &runs, &memory, method);
    }
}

/// How many disk operations the sectors of each member take when adjacent ones are one.
fn operations(sectors: &BTreeSet<(MemberIndex, u64)>) -> usize {
    sectors.iter().filter(|&&(member, sector)| sector == 0 || !sectors.contains(&(member, sector - 1))).count()
}

/// The reads, writes and parity sectors of one parity stripe that is written where `lbas` say, counted sector by
/// sector.
fn stripe_cost(geometry: &Geometry, lbas: &BTreeSet<u64>) -> (usize, usize, usize) {
    let place = |lba: u64| (geometry.locate(Lba(lba)).member, geometry.locate(Lba(lba)).sector.0);
    let parity = |lba: u64| geometry.parity_of(Lba(lba)).map(|at| (at.member, at.sector.0)).collect::<Vec<_>>();
    let data: BTreeSet<_> = lbas.iter().map(|&lba| place(lba)).collect();
    let touched: BTreeSet<_> = lbas.iter().flat_map(|&lba| parity(lba)).collect();
    let others = (0..geometry.stripe_sectors().0).filter(|lba| !lbas.contains(lba));
    let rest: BTreeSet<_> =
        others.clone().filter(|&lba| parity(lba).iter().any(|at| touched.contains(at))).map(place).collect();
    // Parity whose data is all written is known from that alone.
    let partial: BTreeSet<_> = others.flat_map(parity).filter(|at| touched.contains(at)).collect();
    let changed = lbas.iter().filter(|&&lba| parity(lba).iter().any(|at| partial.contains(at))).map(|&lba| place(lba));
    let modify = operations(&changed.chain(partial.iter().copied()).collect());
    let writes = operations(&data.union(&touched).copied().collect());
    (modify.min(operations(&rest)), writes, touched.len())
}

/// Sixty-four writes of 4 KiB at random places of one parity stripe.
#[test]
fn sixty_four_small_writes_of_one_stripe_cost_one_plan_of_it() {
    for (level, members, height) in
        [(Level::Raid0, 6, 1), (RAID5, 5, 1), (RAID5, 9, 1), (rm2(3, Placement::Adjacent), 7, 3)]
    {
        let spec = Spec { level, members, chunk: Bytes(128 << 10), member_size: Sectors(256 * height) };
        let geometry = Geometry::new(spec).expect("valid");
        let repair = uraid_layout::repair::Repair::none(&geometry);
        let view = uraid_layout::plan::View::new(&geometry, &repair);
        let (mut planner, mut plan) = (Planner::new(), uraid_layout::plan::Plan::default());
        for seed in 0..20 {
            let blocks = geometry.stripe_sectors().0 / 8;
            let mut chosen = BTreeSet::new();
            for bytes in noise(1 << 12, seed).chunks(2) {
                if chosen.len() < 64 {
                    chosen.insert(u64::from(u16::from_le_bytes([bytes[0], bytes[1]])) % blocks);
                }
            }
            assert_eq!(chosen.len(), 64);
            let place = |(slot, &block): (usize, &u64)| Extent {
                lba: Lba(block * 8),
                content: Slice { buffer: Buffer::Cache, start: Sectors(slot as u64 * 9), len: Sectors(8) },
            };
            let extents: Vec<Extent> = chosen.iter().enumerate().map(place).collect();
            planner.write(&mut plan, &view, &extents).expect("in range");
            check(&plan, &view, Request::Write(&extents)).expect("sound");
            let lbas: BTreeSet<u64> = chosen.iter().flat_map(|block| block * 8..block * 8 + 8).collect();
            let (reads, writes, parity) = stripe_cost(&geometry, &lbas);
            assert_eq!((plan.reads().len(), plan.writes().len()), (reads, writes), "{level:?} seed {seed}");
            let written: u64 = plan.writes().iter().map(|io| io.len.0).sum();
            assert_eq!(written, 64 * 8 + parity as u64, "each parity sector is written once");
        }
    }
}

#[test]
fn adjacent_stripes_written_from_several_runs_are_one_operation_a_member() {
    for (level, members) in [(RAID5, 5), (rm2(3, Placement::Adjacent), 7)] {
        let geometry = geometry(level, members, 3);
        let mut bench = Bench::healthy(&geometry);
        let stripe = geometry.stripe_sectors().0;
        let content = bench.hold(&noise(3 * stripe as usize * SECTOR, 5));
        let runs = [(0, 5), (5, CHUNK), (CHUNK + 5, stripe), (CHUNK + 5 + stripe, 2 * stripe - CHUNK - 5)];
        let extents = runs.map(|(start, len)| Extent { lba: Lba(start), content: content.part(start, len) });
        assert_eq!(bench.write_all(&extents, None), Method::Full);
        assert_eq!(bench.operations(), (0, usize::from(members)), "{level:?}");
        bench.forget();
        bench.read_all(&[Extent::request(Lba(0), Sectors(3 * stripe))]);
    }
}

#[test]
fn cached_content_is_not_read_again() {
    for (level, members, parities) in
        [(RAID5, 5, 1), (rm2(3, Placement::Adjacent), 7, 2), (rm2(3, Placement::Partitioned), 7, 2)]
    {
        let geometry = geometry(level, members, 2);
        for stripe in [StripeId(0), StripeId(1)] {
            let map = geometry.map(stripe);
            let lba = stripe.0 * geometry.stripe_sectors().0 + CHUNK;
            let unit = map.cell(DataUnit(1));
            let parity: Vec<Cell> = map.groups_of(DataUnit(1)).iter().map(|&group| map.group(group).parity).collect();
            assert_eq!(parity.len(), parities);
            let mut bench = Bench::healthy(&geometry);
            bench.remember(stripe, unit, 0, CHUNK);
            bench.read(lba, CHUNK);
            assert_eq!(bench.operations(), (0, 0));
            for &cell in &parity {
                bench.remember(stripe, cell, 0, CHUNK);
            }
            assert_eq!(bench.write(lba + 3, 2), Method::ReadModifyWrite);
            assert_eq!(bench.operations(), (0, 1 + parities), "old data and old parity are in memory");
            bench.forget();
            for &cell in &parity {
                bench.remember(stripe, cell, 0, CHUNK);
            }
            assert_eq!(bench.write(lba + 3, 2), Method::ReadModifyWrite);
            assert_eq!(bench.operations(), (1, 1 + parities), "old parity is in memory");
            let io = bench.plan.reads()[0];
            let expected = (geometry.member(unit), geometry.sector(stripe, unit).0 + 3, Sectors(2));
            assert_eq!((io.member, io.sector.0, io.len), expected, "only old data is read");
        }
    }
}

#[test]
fn each_stripe_finds_what_is_in_memory_of_it() {
    let geometry = geometry(RAID5, 4, 8);
    for held in 0..1u64 << 8 {
        let mut bench = Bench::healthy(&geometry);
        for stripe in (0..8).filter(|stripe| held >> stripe & 1 == 1).map(StripeId) {
            bench.remember(stripe, geometry.map(stripe).cell(DataUnit(2)), 0, CHUNK);
            bench.remember(stripe, geometry.map(stripe).cell(DataUnit(0)), 2, 3);
        }
        for stripe in 0..8 {
            let lba = stripe * geometry.stripe_sectors().0;
            for (lba, len) in [(lba + 2 * CHUNK, CHUNK), (lba + 2, 3)] {
                bench.read(lba, len);
                assert_eq!(bench.operations().0, usize::from(held >> stripe & 1 == 0), "{held:b} stripe {stripe}");
            }
        }
    }
}

/// What is in memory of other columns takes no part: the same plan, down to its XORs.
#[test]
fn memory_of_untouched_columns_does_not_cut_a_plan() {
    let geometry = geometry(RAID5, 5, 2);
    let map = geometry.map(StripeId(0));
    let mut bench = Bench::healthy(&geometry);
    let plan = |bench: &mut Bench<'_>| {
        bench.write_all(&[Extent::request(Lba(2), Sectors(3))], Some(Method::ReadModifyWrite));
        (bench.plan.reads().to_vec(), bench.plan.xors().len(), bench.plan.writes().to_vec())
    };
    let bare = plan(&mut bench);
    for (start, len) in [(0, 1), (1, 1), (5, 1), (6, 2)] {
        bench.remember(StripeId(0), map.cell(DataUnit(0)), start, len);
        bench.remember(StripeId(0), map.cell(DataUnit(2)), start, len);
    }
    assert_eq!(plan(&mut bench), bare);
    // Memory beyond both ends is clipped to them.
    bench.forget();
    bench.remember(StripeId(0), map.cell(DataUnit(0)), 1, 6);
    assert_eq!(plan(&mut bench).1, 1);
    assert_eq!(bench.operations(), (1, 2));
}

#[test]
fn a_request_beyond_the_array_or_without_sectors_has_no_plan() {
    let geometry = geometry(RAID5, 3, 2);
    let capacity = geometry.capacity();
    let mut bench = Bench::healthy(&geometry);
    let good = Extent::request(Lba(0), Sectors(1));
    for bad in [
        Extent::request(Lba(1), Sectors(0)),
        Extent::request(Lba(capacity.0), Sectors(1)),
        Extent::request(Lba(1), capacity),
        Extent::request(Lba(u64::MAX), Sectors(2)),
    ] {
        let error = PlanError::OutOfRange { lba: bad.lba, len: bad.content.len, capacity };
        let (mut planner, mut plan) = (Planner::new(), std::mem::take(&mut bench.plan));
        let view = bench.view();
        assert_eq!(planner.read(&mut plan, &view, &[good, bad]), Err(error));
        assert_eq!(planner.write(&mut plan, &view, &[good, bad]), Err(error));
        assert_eq!(planner.write_by(&mut plan, &view, &[bad], Method::Reconstruct), Err(error));
    }
    let nothing = PlanError::OutOfRange { lba: Lba(0), len: Sectors(0), capacity };
    let mut plan = std::mem::take(&mut bench.plan);
    assert_eq!(Planner::new().read(&mut plan, &bench.view(), &[]), Err(nothing));
}

#[test]
#[should_panic(expected = "extents are ascending and disjoint")]
fn extents_that_overlap_are_a_bug_of_the_caller() {
    let geometry = geometry(RAID5, 3, 2);
    let mut bench = Bench::healthy(&geometry);
    bench.write_all(&[Extent::request(Lba(0), Sectors(5)), Extent::zeroes(Lba(4), Sectors(3))], None);
}

#[test]
#[should_panic(expected = "a read goes to the request buffer")]
fn a_read_to_anywhere_else_is_a_bug_of_the_caller() {
    let geometry = geometry(RAID5, 3, 2);
    Bench::healthy(&geometry).read_all(&[Extent::zeroes(Lba(4), Sectors(3))]);
}

fn flaw(bench: &Bench<'_>, request: Request<'_>) -> Result<(), Flaw> {
    check(&bench.plan, &bench.view(), request)
}

#[test]
fn a_plan_for_another_request_or_state_is_found_out() {
    let geometry = geometry(RAID5, 4, 2);
    let mut bench = Bench::healthy(&geometry);
    let extent = |lba, start| Extent {
        lba: Lba(lba),
        content: Slice { buffer: Buffer::Request, start: Sectors(start), len: Sectors(2) },
    };
    let request = [extent(1, 0), extent(9, 4)];
    bench.read_all(&request);
    assert_eq!(flaw(&bench, Request::Read(&request)), Ok(()));
    assert_eq!(flaw(&bench, Request::Read(&[request[0], request[1], extent(12, 6)])), Err(Flaw::BadRead));
    // What nobody asked for must stay as it is.
    let hole = Slice { start: Sectors(4), ..request[1].content };
    assert_eq!(flaw(&bench, Request::Read(&[request[0], extent(12, 8)])), Err(Flaw::Redefined(hole)));
    assert_eq!(flaw(&bench, Request::Read(&request[..1])), Err(Flaw::BeyondBuffer(hole)));
    bench.write_all(&request, None);
    assert_eq!(flaw(&bench, Request::Write(&request)), Ok(()));
    assert!(matches!(flaw(&bench, Request::Write(&[request[0], extent(12, 8)])), Err(Flaw::Undefined(_))));
    // What was in memory and no longer is must not be used.
    bench.remember(StripeId(0), geometry.map(StripeId(0)).cell(DataUnit(0)), 0, CHUNK);
    bench.read(0, 2);
    bench.cached.clear();
    assert!(matches!(flaw(&bench, Request::Read(&[extent(0, 0)])), Err(Flaw::BeyondBuffer(_))));
    // A plan of the whole array is none of an array that has lost a member.
    bench.read(0, 2 * CHUNK);
    let degraded = Bench::degraded(&geometry, MemberSet::EMPTY.with(MemberIndex(0)));
    let request = [Extent::request(Lba(0), Sectors(2 * CHUNK))];
    assert!(matches!(check(&bench.plan, &degraded.view(), Request::Read(&request)), Err(Flaw::MissingMember(_))));
}
