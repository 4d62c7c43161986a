//! Chunk sizes tried out in simulation, with the engine's plans, cache and log.
//!
//! A demand's *share* with a chunk is its throughput there, as a share of the highest that any chunk reached. A chunk
//! is as good as its smallest share over all demands. The best one is the smallest chunk that is as good as any other,
//! within [`NEAR`] points and the noise.

use uraid_layout::{Bytes, Level};

use super::{Load, chunks};
use crate::mech::run::run_all;
use crate::mech::stats::estimate;
use crate::mech::{ArraySpec, CacheSpec, Disk, DiskSpec, Error, Spindles, StopRule, System};
use crate::workloads::{self, Demand, UnknownWorkload};

/// Chunk sizes to try, on one kind of array.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// The level.
    pub level: Level,
    /// How many members there are.
    pub members: u8,
    /// All of the members' disks. They turn at angles of their own.
    pub disk: &'a DiskSpec,
    /// Whether there is a write-back cache.
    pub is_cached: bool,
    /// What the array is asked for, by name.
    pub demands: &'a [(String, Demand)],
    /// What the requests are drawn from: several, for intervals.
    pub seeds: &'a [u64],
}

/// A chunk size, and how good it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The chunk.
    pub chunk: Bytes,
    /// The smallest share of a demand's highest throughput over all chunks, in per cent, for each seed.
    pub shares: Vec<f64>,
    /// The demand that has the smallest share, with the first seed.
    pub worst: String,
    /// The demands' throughputs in units of 10^6 bytes a second: the means over the seeds.
    pub mb_s: Vec<f64>,
}

/// Shares that are this close count as equal, in points.
pub const NEAR: f64 = 2.0;

/// Shares that are this close count as equal if the difference may be chance, in points.
pub const NOISE_MAX: f64 = 5.0;

/// The confidence of intervals.
const CONFIDENCE: f64 = 0.95;

/// The modelled cache: small, so that a run is soon beyond filling it.
pub const CACHE: CacheSpec = CacheSpec { size: Bytes(4 << 20), hit_us: 20.0 };

/// The largest redo log, and its share of a member: the engine's defaults.
const LOG_MAX: Bytes = Bytes(64 << 20);
const LOG_SHARE: u64 = 64;

/// The demands that what is known of a load leaves possible: random requests of fixed sizes at multiples of 4 KiB and,
/// if neither their size nor their number is known, sequential streams.
///
/// # Errors
/// If there can be no such requests.
pub fn demands(load: &Load) -> Result<Vec<(String, Demand)>, UnknownWorkload> {
    let sizes = load.request.map_or(vec![Bytes(4 << 10), Bytes(64 << 10), Bytes(1 << 20)], |size| {
        vec![Bytes(size.0.next_multiple_of(512))]
    });
    let reads = load.reads.map_or(vec![100, 0], |reads| vec![(reads * 100.0).round() as u32]);
    let depths = load.concurrency.map_or(vec![1, 4, 16], |depth| vec![depth]);
    let mut specs = Vec::new();
    for size in &sizes {
        for reads in &reads {
            specs.extend(depths.iter().map(|depth| format!("mix:size={},reads={reads},depth={depth}", size.0)));
        }
    }
    if load.request.is_none() && load.concurrency.is_none() {
        for reads in reads.iter().filter(|reads| [0, 100].contains(*reads)) {
            specs.push(if *reads == 0 { "sequential-write" } else { "sequential-read" }.to_owned());
        }
    }
    let mut found = Vec::new();
    for spec in specs {
        found.extend(named(&spec)?);
    }
    Ok(found)
}

/// The demands that a workload's name selects, with requests at multiples of 4 KiB.
///
/// # Errors
/// If there is no such workload.
pub fn named(spec: &str) -> Result<Vec<(String, Demand)>, UnknownWorkload> {
    let found = workloads::find(spec, Bytes(4 << 10))?;
    Ok(found.into_iter().map(|workload| (workload.title.clone(), Demand::Mix(workload))).collect())
}

/// Tries every chunk that is on offer.
///
/// # Errors
/// When the array is impossible, or a demand does not fit it.
pub fn simulate(setting: &Setting<'_>) -> Result<Vec<Trial>, Error> {
    let chunks: Vec<Bytes> = chunks().collect();
    let (demands, seeds) = (setting.demands, setting.seeds);
    let of_chunk = |&chunk: &Bytes| {
        demands.iter().flat_map(move |(_, demand)| seeds.iter().map(move |&seed| (chunk, demand, seed)))
    };
    let points: Vec<(Bytes, &Demand, u64)> = chunks.iter().flat_map(of_chunk).collect();
    let found = run_all(&points, 0, |&(chunk, demand, seed)| throughput(setting, chunk, demand, seed))?;
    // By chunk, demand and seed.
    let at = |chunk: usize, demand: usize, seed: usize| found[(chunk * demands.len() + demand) * seeds.len() + seed];
    let highest = |demand, seed| (0..chunks.len()).map(|chunk| at(chunk, demand, seed)).fold(0.0, f64::max);
    let share = |chunk, demand, seed| 100.0 * at(chunk, demand, seed) / highest(demand, seed);
    let least = |chunk, seed| {
        let shares = (0..demands.len()).map(|demand| (share(chunk, demand, seed), demand));
        shares.fold((f64::INFINITY, 0), |least, next| if next.0 < least.0 { next } else { least })
    };
    let mean = |chunk, demand| (0..seeds.len()).map(|seed| at(chunk, demand, seed)).sum::<f64>() / seeds.len() as f64;
    let trial = |(index, &chunk): (usize, &Bytes)| Trial {
        chunk,
        shares: (0..seeds.len()).map(|seed| least(index, seed).0).collect(),
        worst: demands[least(index, 0).1].0.clone(),
        mb_s: (0..demands.len()).map(|demand| mean(index, demand)).collect(),
    };
    Ok(chunks.iter().enumerate().map(trial).collect())
}

/// What an array gives a demand, in units of 10^6 bytes a second.
fn throughput(setting: &Setting<'_>, chunk: Bytes, demand: &Demand, seed: u64) -> Result<f64, Error> {
    let Setting { level, members, disk, is_cached, .. } = *setting;
    let member = Disk::new(disk.clone())?.capacity().bytes();
    let log = level.has_parity().then(|| Bytes(LOG_MAX.0.min(member.0 / LOG_SHARE) / 4096 * 4096));
    let cache = is_cached.then_some(CACHE);
    let spindles = Spindles::Apart;
    let array = ArraySpec { spindles, cache, log, ..ArraySpec::new(disk.clone(), members, level, chunk) };
    let mut system = System::new(&[array])?;
    let (mut source, depth) = demand.source(system.geometry(0).capacity(), seed)?;
    // What the cache takes before it is full does not count.
    let filling = if is_cached && demand.writes() { 2.0 * CACHE.size.0 as f64 / demand.mean_bytes() } else { 0.0 };
    let warm_up = 100 + (filling as u64).min(4000);
    let rule = StopRule { warm_up, requests_min: 500, requests_max: 5000, ..StopRule::default() };
    Ok(system.run(&mut source, depth, &rule)?.megabytes_per_second())
}

impl Trial {
    /// The mean of its shares, with the ends of its interval.
    #[must_use]
    pub fn share(&self) -> (f64, f64, f64) {
        let (mean, low, high) = interval(&self.shares);
        // A share is from none to all.
        (mean, low.max(0.0), high.min(100.0))
    }
}

/// A mean and the ends of its interval; both ends are the mean where there is one value.
fn interval(values: &[f64]) -> (f64, f64, f64) {
    let found = estimate(values, CONFIDENCE);
    let half = if values.len() > 1 { found.half_width } else { 0.0 };
    (found.mean, found.mean - half, found.mean + half)
}

/// The smallest chunk that is as good as any other: within [`NEAR`] points of the highest share, or within
/// [`NOISE_MAX`] if that may be chance.
#[must_use]
pub fn best(trials: &[Trial]) -> Option<&Trial> {
    let highest = trials.iter().max_by(|left, right| left.share().0.total_cmp(&right.share().0))?;
    let is_as_good = |trial: &&Trial| {
        let behind: Vec<f64> = highest.shares.iter().zip(&trial.shares).map(|(high, it)| high - it).collect();
        let (mean, low, _) = interval(&behind);
        mean <= NEAR || mean <= NOISE_MAX && low <= 0.0
    };
    trials.iter().filter(is_as_good).min_by_key(|trial| trial.chunk)
}

#[cfg(test)]
mod tests {
    use uraid_layout::{Bytes, Level, Rotation};

    use super::super::{Drive, Load};
    use super::{Setting, Trial, best, demands, named, simulate, throughput};
    use crate::mech::{DiskSpec, presets};
    use crate::workloads::Demand;

    const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

    #[test]
    fn a_described_disk_positions_and_transfers_as_described() {
        for (drive, revolution_ms) in [
            (Drive { positioning_ms: 12.7, transfer_mb_s: 150.0, track: None }, Some(60_000.0 / 7200.0)),
            (Drive { positioning_ms: 5.4, transfer_mb_s: 160.0, track: None }, Some(4.0)),
            (Drive { positioning_ms: 0.1, transfer_mb_s: 500.0, track: None }, None),
        ] {
            let found = Drive::of(&drive.disk(revolution_ms).expect("it makes sense")).expect("it makes sense");
            assert!((found.positioning_ms / drive.positioning_ms - 1.0).abs() < 0.02, "{drive:?}: {found:?}");
            assert!((found.transfer_mb_s / drive.transfer_mb_s - 1.0).abs() < 0.01, "{drive:?}: {found:?}");
        }
        let impossible = Drive { positioning_ms: 2.0, transfer_mb_s: 150.0, track: None };
        assert!(impossible.disk(Some(8.3)).is_err());
    }

    /// Chen & Lee Table 1: 19.45 ms with the seeks of the whole disk, 24 KiB in 13.9 ms.
    #[test]
    fn a_preset_has_the_papers_figures() {
        let drive = Drive::of(&presets::lightning()).expect("it makes sense");
        assert!((drive.positioning_ms - 19.45).abs() < 0.1, "{drive:?}");
        assert!((drive.transfer_mb_s - 24.576 / 13.9).abs() < 1e-3, "{drive:?}");
        assert_eq!(drive.track, Some(Bytes(24 << 10)));
    }

    fn setting<'a>(disk: &'a DiskSpec, demands: &'a [(String, Demand)]) -> Setting<'a> {
        Setting { level: RAID5, members: 8, disk, is_cached: false, demands, seeds: &[1, 2, 3] }
    }

    /// Reads of 4 MiB one at a time want all eight disks, which chunks of up to 512 KiB give them.
    #[test]
    fn large_requests_one_at_a_time_want_chunks_on_all_disks() {
        let load = Load { reads: Some(1.0), concurrency: Some(1), request: Some(Bytes(4 << 20)) };
        let demands = demands(&load).expect("it makes sense");
        let trials = simulate(&setting(&presets::constellation_es(), &demands)).expect("the array is possible");
        let best = best(&trials).expect("chunks were tried");
        assert!(best.chunk <= Bytes(512 << 10), "{trials:?}");
        assert!(trials.last().is_some_and(|last| last.share().2 < 90.0), "1 MiB leaves most disks idle: {trials:?}");
    }

    /// Aligned requests of 4 KiB fit any chunk, so that all are as good and the smallest one wins.
    #[test]
    fn small_aligned_reads_fit_any_chunk() {
        let load = Load { reads: Some(1.0), concurrency: Some(8), request: Some(Bytes(4 << 10)) };
        let demands = demands(&load).expect("it makes sense");
        let trials = simulate(&setting(&presets::constellation_es(), &demands)).expect("the array is possible");
        assert_eq!(best(&trials).map(|trial| trial.chunk), Some(Bytes(4 << 10)), "{trials:?}");
        assert!(trials.iter().all(|trial| trial.share().0 > 90.0), "{trials:?}");
    }

    /// A write through the log takes at least one operation more than one without.
    #[test]
    fn the_log_is_part_of_what_is_simulated() {
        let demands = named("mix:size=4K,reads=0,depth=1").expect("it makes sense");
        let disk = presets::constellation_es();
        let of = |level| throughput(&Setting { level, ..setting(&disk, &demands) }, Bytes(65536), &demands[0].1, 1);
        let [raid5, raid0] = [RAID5, Level::Raid0].map(|level| of(level).expect("it is possible"));
        assert!(raid5 < raid0, "{raid5} {raid0}");
    }

    #[test]
    fn what_is_known_narrows_the_demands() {
        let count = |load: Load| demands(&load).expect("it makes sense").len();
        let nothing = Load::default();
        assert_eq!(count(nothing), 3 * 2 * 3 + 2);
        assert_eq!(count(Load { reads: Some(0.7), ..nothing }), 3 * 3);
        assert_eq!(count(Load { reads: Some(1.0), ..nothing }), 3 * 3 + 1);
        assert_eq!(count(Load { request: Some(Bytes(8192)), concurrency: Some(2), reads: Some(0.5) }), 1);
    }

    #[test]
    fn the_smallest_chunk_within_the_noise_is_best() {
        let trial = |kib: u64, shares: &[f64]| Trial {
            chunk: Bytes(kib << 10),
            shares: shares.to_vec(),
            worst: String::new(),
            mb_s: Vec::new(),
        };
        let chunk = |trials: &[Trial]| best(trials).map(|trial| trial.chunk.0 >> 10);
        assert_eq!(chunk(&[trial(4, &[70.0]), trial(8, &[89.0]), trial(16, &[90.0])]), Some(8));
        let noisy = [trial(4, &[99.0, 71.0, 88.0]), trial(8, &[90.0, 92.0, 91.0])];
        assert_eq!(chunk(&noisy), Some(4), "5 points less on average, and once 9 more");
        let noisier = [trial(4, &[99.0, 60.0, 88.0]), trial(8, &[90.0, 92.0, 91.0])];
        assert_eq!(chunk(&noisier), Some(8), "9 points less on average");
        let clear = [trial(4, &[85.0, 86.0, 85.0]), trial(8, &[90.0, 91.0, 90.0])];
        assert_eq!(chunk(&clear), Some(8));
        assert_eq!(chunk(&[]), None);
    }
}
