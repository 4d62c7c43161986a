//! Parity: the fused XOR against the pairwise loop that it replaces, in bytes of all sources per second.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use uraid_io::xor::xor_into;

/// One source after the other into the target.
fn pairwise(target: &mut [u8], sources: &[&[u8]]) {
    target.copy_from_slice(sources[0]);
    for source in &sources[1..] {
        for (sum, byte) in target.iter_mut().zip(*source) {
            *sum ^= byte;
        }
    }
}

fn xor(criterion: &mut Criterion) {
    for count in [2_usize, 4, 8, 31] {
        let mut group = criterion.benchmark_group(format!("xor/{count} sources"));
        for len in [4 << 10, 64 << 10, 1 << 20] {
            let memory: Vec<Vec<u8>> = (0_u8..).take(count).map(|byte| vec![byte; len]).collect();
            let sources: Vec<&[u8]> = memory.iter().map(Vec::as_slice).collect();
            let mut target = vec![0; len];
            group.throughput(Throughput::Bytes((len * count) as u64));
            group.bench_function(BenchmarkId::new("fused", len), |bencher| {
                bencher.iter(|| xor_into(&mut target, &sources));
            });
            group.bench_function(BenchmarkId::new("pairwise", len), |bencher| {
                bencher.iter(|| pairwise(&mut target, &sources));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, xor);
criterion_main!(benches);
