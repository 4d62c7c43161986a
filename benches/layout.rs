//! The cost of finding a block, and of finding out how to do without members.
//!
//! The budget of a look-up is 10 ns for chunks that are a power of two; "the loop alone" is what to take off.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use uraid_layout::geometry::default_height;
use uraid_layout::plan::{Extent, Plan, Planner, View};
use uraid_layout::repair::Repair;
use uraid_layout::{
    Bytes, Geometry, Lba, Level, Location, MemberIndex, MemberSet, Owner, Placement, Rotation, Sectors, Spec,
};

/// Few enough for the first-level cache.
const INPUTS: usize = 1024;

const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

fn rm2(height: u8, placement: Placement) -> Level {
    Level::Rm2 { height, placement }
}

fn levels() -> [(&'static str, Level, u8); 7] {
    [
        ("raid0 of 6", Level::Raid0, 6),
        ("raid1 of 2", Level::Raid1, 2),
        ("raid10 of 5", Level::Raid10 { copies: 2 }, 5),
        ("raid5 of 5", RAID5, 5),
        ("raid5 of 7", RAID5, 7),
        ("rm2 of 7", rm2(3, Placement::Adjacent), 7),
        ("rm2 of 7 partitioned", rm2(3, Placement::Partitioned), 7),
    ]
}

fn geometry(level: Level, members: u8, chunk_kib: u64) -> Geometry {
    let spec = Spec { level, members, chunk: Bytes(chunk_kib << 10), member_size: Sectors(1 << 34) };
    Geometry::new(spec).expect("a valid geometry")
}

/// Addresses that a branch predictor or a prefetcher can't learn.
fn addresses(geometry: &Geometry) -> Vec<Lba> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Lba(state % geometry.capacity().0)
    };
    std::iter::repeat_with(next).take(INPUTS).collect()
}

/// Measures one look-up. Which address is next depends on the last result, so that look-ups can't overlap.
fn bench_each<T: Copy>(
    criterion: &mut Criterion,
    (group, name): (&str, &str),
    inputs: &[T],
    look_up: impl Fn(T) -> u64,
) {
    assert_eq!(inputs.len(), INPUTS);
    criterion.benchmark_group(group).bench_function(name, |bencher| {
        let mut at = 0;
        bencher.iter(|| {
            let result = look_up(black_box(inputs[at]));
            at = (at + 1 + usize::from(result % 2 == 1)) % INPUTS;
            result
        });
    });
}

fn locate(criterion: &mut Criterion) {
    let any = geometry(Level::Raid0, 6, 64);
    bench_each(criterion, ("locate", "the loop alone"), &addresses(&any), |lba| lba.0);
    for (chunk_kib, group) in [(64, "locate, 64 KiB chunk"), (60, "locate, 60 KiB chunk")] {
        for (name, level, members) in levels() {
            let geometry = geometry(level, members, chunk_kib);
            let look_up = |lba| geometry.locate(lba).sector.0;
            bench_each(criterion, (group, name), &addresses(&geometry), look_up);
        }
    }
}

fn parity_and_owner(criterion: &mut Criterion) {
    for (name, level, members) in levels() {
        let geometry = geometry(level, members, 64);
        let addresses = addresses(&geometry);
        let look_up = |lba| geometry.parity_of(lba).map(|at| at.sector.0).sum();
        bench_each(criterion, ("parity_of, 64 KiB chunk", name), &addresses, look_up);
        let places: Vec<Location> = addresses.iter().map(|&lba| geometry.locate(lba)).collect();
        let look_up = |at| match geometry.owner(at) {
            Some(Owner::Data(lba)) => lba.0,
            Some(Owner::Parity { .. }) | None => panic!("data is data"),
        };
        bench_each(criterion, ("owner, 64 KiB chunk", name), &places, look_up);
    }
}

fn repair(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("repair");
    let two: MemberSet = [0, 1].map(MemberIndex).into_iter().collect();
    let one = MemberSet::EMPTY.with(MemberIndex(0));
    for (name, level, members, failed) in [
        ("raid1 of 3", Level::Raid1, 3, one),
        ("raid5 of 5", RAID5, 5, one),
        ("raid5 of 64", RAID5, 64, one),
        ("rm2 of 7", rm2(3, Placement::Adjacent), 7, two),
        ("rm2 of 32", rm2(default_height(32), Placement::Adjacent), 32, two),
    ] {
        let geometry = geometry(level, members, 64);
        group.bench_function(name, |bencher| bencher.iter(|| Repair::new(black_box(&geometry), black_box(failed))));
    }
}

/// Planning a 4 KiB read and write at random addresses.
fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan 4 KiB");
    for (name, level, members) in levels() {
        let geometry = geometry(level, members, 64);
        let healthy = Repair::none(&geometry);
        let view = View::new(&geometry, &healthy);
        let addresses: Vec<Lba> = addresses(&geometry).iter().map(|lba| Lba(lba.0 / 8 * 8)).collect();
        let (mut planner, mut plan) = (Planner::new(), Plan::default());
        let mut next = addresses.iter().cycle();
        group.bench_function(format!("read, {name}"), |bencher| {
            bencher.iter(|| {
                let lba = *next.next().expect("a cycle has no end");
                planner.read(&mut plan, &view, &[Extent::request(lba, Sectors(8))])
            });
        });
        group.bench_function(format!("write, {name}"), |bencher| {
            bencher.iter(|| {
                let lba = *next.next().expect("a cycle has no end");
                planner.write(&mut plan, &view, &[Extent::request(lba, Sectors(8))])
            });
        });
    }
}

criterion_group!(benches, locate, parity_and_owner, repair, planning);
criterion_main!(benches);
