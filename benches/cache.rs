//! The write-back cache without engine, members or destaging: what a small request and a stripe's flight cost in
//! memory.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use uraid_io::buf::Pool;
use uraid_io::cache::{Cache, Contents};
use uraid_layout::{Bytes, Geometry, Lba, Level, Rotation, Sectors, Spec};

const BLOCK: Bytes = Bytes(4096);
const BLOCK_SECTORS: Sectors = Sectors(8);
/// Blocks that are written: a quarter of the cache, so that nothing has to be forgotten.
const BLOCKS: u64 = (16 << 20) / BLOCK.0;
const CACHE: Bytes = Bytes(64 << 20);

/// RAID 5 of five members with 64 KiB chunks: a stripe has 64 blocks.
fn geometry() -> Geometry {
    let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
    let spec = Spec { level, members: 5, chunk: Bytes(64 << 10), member_size: Sectors(1 << 24) };
    Geometry::new(spec).expect("a valid geometry")
}

/// Each block once, in an order that no prefetcher guesses, without end.
fn addresses() -> impl Iterator<Item = Lba> {
    (0_u64..).map(|number| Lba(number.wrapping_mul(0x9E37_79B9) % BLOCKS * BLOCK_SECTORS.0))
}

/// What receiving a request's data and handing them to the cache takes; the data themselves are not written.
fn write(cache: &mut Cache, pool: &Pool, lba: Lba) {
    let buf = pool.try_alloc(BLOCK).expect("the pool is twice the cache");
    assert!(cache.write(lba, &buf, 0..BLOCK.0 as usize), "the cache has room");
}

fn small_requests(criterion: &mut Criterion) {
    let (geometry, pool) = (geometry(), Pool::new(Bytes(2 * CACHE.0)));
    let mut cache = Cache::new(&geometry, pool.clone(), CACHE);
    addresses().take(BLOCKS as usize).for_each(|lba| write(&mut cache, &pool, lba));
    let mut group = criterion.benchmark_group("cache, 4 KiB");
    group.throughput(Throughput::Elements(1));
    let mut next = addresses();
    group.bench_function("write", |bencher| {
        bencher.iter(|| write(&mut cache, &pool, next.next().expect("addresses have no end")));
    });
    let (mut buf, mut missing) = (pool.try_alloc(BLOCK).expect("the pool has room"), Vec::new());
    group.bench_function("read, in memory", |bencher| {
        bencher.iter(|| {
            let lba = next.next().expect("addresses have no end");
            cache.read(lba, BLOCK_SECTORS, &mut buf, Bytes(0), &mut missing);
            assert!(missing.is_empty(), "the cache holds every block");
        });
    });
    let beyond = Lba(BLOCKS * BLOCK_SECTORS.0 * 2);
    group.bench_function("read, not in memory", |bencher| {
        bencher.iter(|| {
            missing.clear();
            cache.read(beyond, BLOCK_SECTORS, &mut buf, Bytes(0), &mut missing);
        });
    });
    group.finish();
}

/// One stripe from dirty to clean: picked, taken for its plan, settled.
fn destage(criterion: &mut Criterion) {
    let (geometry, pool) = (geometry(), Pool::new(Bytes(2 * CACHE.0)));
    let blocks = geometry.stripe_sectors().0 / BLOCK_SECTORS.0;
    let mut group = criterion.benchmark_group("cache, destage a stripe");
    for (name, dirty) in [("of one block", 1), ("of all blocks", blocks)] {
        let mut cache = Cache::new(&geometry, pool.clone(), CACHE);
        let mut contents = Contents::default();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    (0..dirty).for_each(|block| write(&mut cache, &pool, Lba(block * BLOCK_SECTORS.0)));
                    let start = Instant::now();
                    cache.drain();
                    let (stripes, _) = cache.next_run().expect("a stripe is dirty");
                    cache.take(&geometry, stripes, &mut contents);
                    assert!(contents.flies());
                    cache.settle(&geometry, &mut contents, true);
                    spent += start.elapsed();
                }
                spent
            });
        });
        assert!(!cache.is_dirty());
    }
    group.finish();
}

criterion_group!(benches, small_requests, destage);
criterion_main!(benches);
