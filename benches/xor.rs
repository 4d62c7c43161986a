//! Parity: the fused XOR against the pairwise loop that it replaces, and against ISA-L where that is installed; in
//! bytes of all sources per second.
//!
//! "xor 4+1" has both on the same memory in one group. Their ratio in one run is what counts, and only on a quiet
//! machine; run it a few times.

#[cfg(isal)]
mod isal;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use uraid_io::xor::{combine_into, xor_into};
use uraid_layout::field::Factor;

/// What the engine's buffers are aligned to.
const PAGE: usize = 4096;

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

/// Q of RAID 6, whose factors are powers of 2, and what two lost units take, whose factors are any.
fn combine(criterion: &mut Criterion) {
    for count in [4_usize, 8, 14] {
        let mut group = criterion.benchmark_group(format!("combine/{count} sources"));
        for len in [4 << 10, 64 << 10] {
            let memory: Vec<Vec<u8>> = (0_u8..).take(count).map(|byte| vec![byte; len]).collect();
            let with = |factor: fn(usize) -> Factor| {
                let sources = memory.iter().map(Vec::as_slice);
                sources.enumerate().map(|(place, source)| (source, factor(place))).collect::<Vec<_>>()
            };
            let (powers, any) = (with(Factor::power), with(|place| Factor::power(37 * (place + 1))));
            let mut target = vec![0; len];
            group.throughput(Throughput::Bytes((len * count) as u64));
            group.bench_function(BenchmarkId::new("powers of 2", len), |bencher| {
                bencher.iter(|| combine_into(&mut target, &powers));
            });
            group.bench_function(BenchmarkId::new("any factors", len), |bencher| {
                bencher.iter(|| combine_into(&mut target, &any));
            });
        }
        group.finish();
    }
}

/// Four data chunks and their parity, every buffer on a page of its own as in the engine.
fn beside_isal(criterion: &mut Criterion) {
    if cfg!(not(isal)) {
        left_out();
    }
    let mut group = criterion.benchmark_group("xor 4+1");
    for len in [4 << 10, 64 << 10, 1 << 20, 8 << 20] {
        let mut memory: Vec<u8> = (0..=u8::MAX).cycle().take(5 * len + PAGE).collect();
        let aligned = memory.as_ptr().align_offset(PAGE);
        let (target, sources) = memory[aligned..][..5 * len].split_at_mut(len);
        let sources: Vec<&[u8]> = sources.chunks_exact(len).collect();
        group.throughput(Throughput::Bytes(4 * len as u64));
        group.bench_function(BenchmarkId::new("uraid", len), |bencher| bencher.iter(|| xor_into(target, &sources)));
        #[cfg(isal)]
        group
            .bench_function(BenchmarkId::new("isal", len), |bencher| bencher.iter(|| isal::xor_into(target, &sources)));
    }
    group.finish();
}

#[expect(clippy::print_stderr, reason = "for the person who reads the figures")]
fn left_out() {
    eprintln!("ISA-L is left out: its header and library were not there at build time (Debian: libisal-dev)");
}

criterion_group!(benches, beside_isal, xor, combine);
criterion_main!(benches);
