//! The checksum of a 4 KiB block.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const BLOCK_BYTES: usize = 4096;

fn crc(criterion: &mut Criterion) {
    let block: Vec<u8> = (0..=u8::MAX).cycle().take(BLOCK_BYTES).collect();
    let mut group = criterion.benchmark_group("crc32");
    group.throughput(Throughput::Bytes(BLOCK_BYTES as u64));
    group.bench_function("4 KiB", |bencher| bencher.iter(|| crc32fast::hash(black_box(&block))));
    group.finish();
}

criterion_group!(benches, crc);
criterion_main!(benches);
