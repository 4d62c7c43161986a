//! Chunk sizes tried out: what each keeps of the greatest throughput, in simulation.

use uraid_layout::{Bytes, Level};

use super::{AdviseError, Drive, Load, chunks};
use crate::mech::disk::{Flash, Mechanism, Rotating, Seek};
use crate::mech::run::run_all;
use crate::mech::sizes::{Choices, Shape, Sizes};
use crate::mech::workload::Mix;
use crate::mech::{ArraySpec, Disk, DiskSpec, Error, StopRule, System};

/// A chunk size, and what it is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The chunk.
    pub chunk: Bytes,
    /// The least share of a workload's greatest throughput over all chunks, in per cent, of the workloads that are
    /// possible.
    pub share: f64,
}

/// Where nothing is known: numbers of requests at a time, and shares of reads.
const PROCESSES: [usize; 5] = [1, 2, 4, 8, 16];
const READS: [f64; 2] = [1.0, 0.0];

/// A disk without a turning platter positions faster than this.
const FLASH_MAX_MS: f64 = 1.0;
const REVOLUTION_7200_MS: f64 = 60_000.0 / 7200.0;

/// Chen & Lee's Lightning's quickest and longest seek in its mean one.
const SEEK_RANGE: [f64; 2] = [0.16, 2.0];

impl Drive {
    /// What the rules need of a disk.
    ///
    /// # Errors
    /// When the disk's figures make no sense.
    pub fn of(disk: &DiskSpec) -> Result<Self, Error> {
        let checked = Disk::new(disk.clone())?;
        let track = match &disk.mechanism {
            Mechanism::Rotating(rotating) => Some(Bytes(u64::from(rotating.sectors_per_track) * 512)),
            Mechanism::Flash(_) => None,
        };
        let positioning_ms = checked.positioning_ms(checked.capacity());
        Ok(Self { positioning_ms, transfer_mb_s: checked.transfer_kib_per_ms() * 1.024, track })
    }

    /// A disk with these figures: of memory where it positions within a millisecond and no revolution is named,
    /// otherwise one that turns 7200 times a minute unless something else is said.
    ///
    /// # Errors
    /// When it positions faster than it turns.
    pub fn disk(&self, revolution_ms: Option<f64>) -> Result<DiskSpec, AdviseError> {
        let Self { positioning_ms, transfer_mb_s, .. } = *self;
        self.check()?;
        let mechanism = if revolution_ms.is_none() && positioning_ms < FLASH_MAX_MS {
            let us = positioning_ms * 1e3;
            Mechanism::Flash(Flash {
                capacity_gb: 1000.0,
                read_us: us,
                write_us: us,
                read_mb_s: transfer_mb_s,
                write_mb_s: transfer_mb_s,
                read_channels: 8,
                write_channels: 8,
            })
        } else {
            let revolution_ms = revolution_ms.unwrap_or(REVOLUTION_7200_MS);
            let average_ms = positioning_ms - revolution_ms / 2.0;
            if average_ms <= 0.0 {
                let (what, wanted) =
                    ("the positioning time in ms", "more than half a revolution; say how fast the disk turns");
                return Err(AdviseError::Number { what, value: positioning_ms, wanted });
            }
            let [least, longest] = SEEK_RANGE.map(|factor| factor * average_ms);
            let sectors = (transfer_mb_s * 1e3 * revolution_ms / 512.0).round().clamp(1.0, 1e6);
            Mechanism::Rotating(Rotating {
                cylinders: 50_000,
                tracks_per_cylinder: 8,
                sectors_per_track: sectors as u32,
                revolution_ms,
                seek: Seek { minimum_ms: least, average_ms: Some(average_ms), maximum_ms: longest },
                head_switch_ms: 0.0,
                skewed: true,
                command_ms: 0.0,
            })
        };
        Ok(DiskSpec { name: "as described".to_owned(), source: String::new(), mechanism })
    }
}

/// Tries every chunk that is on offer, with all workloads that are possible by what is known of the load.
///
/// # Errors
/// When the array can't be had, or a size is beyond what can be drawn.
pub fn simulate(level: Level, members: u8, disk: &DiskSpec, load: &Load, seed: u64) -> Result<Vec<Trial>, Error> {
    let sizes = match load.request {
        Some(mean) if mean.0 >= 2048 => vec![Sizes::new(Shape::Exponential, mean, Choices::default())?],
        Some(size) => vec![Sizes::fixed(size.whole_sectors().bytes())?],
        None => Sizes::chen_lee(Choices::default()).map(|(_, sizes)| sizes).to_vec(),
    };
    let reads = load.reads.map_or(READS.to_vec(), |reads| vec![reads]);
    let known = load.concurrency.and_then(|concurrency| usize::try_from(concurrency).ok());
    let processes = known.map_or(PROCESSES.to_vec(), |processes| vec![processes]);
    let chunks: Vec<Bytes> = chunks().collect();
    let workloads = || sizes.iter().flat_map(|sizes| reads.iter().map(move |&reads| (sizes, reads)));
    let points: Vec<_> = chunks.iter().flat_map(|&chunk| workloads().map(move |workload| (chunk, workload))).collect();
    let found = run_all(&points, 0, |&(chunk, (sizes, reads))| {
        let mut system = System::new(&[ArraySpec::new(disk.clone(), members, level, chunk)])?;
        let capacity = system.geometry(0).capacity();
        let each = processes.iter().map(|&processes| {
            let mut mix = Mix::uniform(sizes.clone(), reads, capacity, seed)?;
            let rule = StopRule { warm_up: 100, requests_min: 500, requests_max: 5000, ..StopRule::default() };
            Ok(system.run(&mut mix, processes, &rule)?.megabytes_per_second())
        });
        each.collect::<Result<Vec<f64>, Error>>()
    })?;
    // By chunk, then workload with its number of processes.
    let found: Vec<Vec<f64>> = found.chunks(points.len() / chunks.len()).map(<[Vec<f64>]>::concat).collect();
    let greatest = |workload: usize| found.iter().map(|each| each[workload]).fold(0.0, f64::max);
    let greatest: Vec<f64> = (0..found[0].len()).map(greatest).collect();
    let share =
        |each: &Vec<f64>| each.iter().zip(&greatest).map(|(it, all)| 100.0 * it / all).fold(f64::INFINITY, f64::min);
    Ok(chunks.into_iter().zip(&found).map(|(chunk, each)| Trial { chunk, share: share(each) }).collect())
}

/// The chunk that keeps most; of equals the smallest.
#[must_use]
pub fn best(trials: &[Trial]) -> Option<Trial> {
    trials.iter().copied().reduce(|best, trial| if trial.share > best.share { trial } else { best })
}

#[cfg(test)]
mod tests {
    use uraid_layout::{Bytes, Level, Rotation};

    use super::super::{Drive, Load};
    use super::{Trial, best, simulate};
    use crate::mech::presets;

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

    /// Small writes one at a time to few disks: a chunk decides nothing but how many are cut in two; large reads one at
    /// a time want all disks.
    #[test]
    fn large_requests_one_at_a_time_want_small_chunks() {
        let load = Load { reads: Some(1.0), concurrency: Some(1), request: Some(Bytes(400 << 10)) };
        let trials = simulate(RAID5, 8, &presets::lightning(), &load, 1).expect("the array can be had");
        let best = best(&trials).expect("chunks were tried");
        assert!(best.chunk <= Bytes(32 << 10) && best.share == 100.0, "{trials:?}");
        assert!(trials.last().is_some_and(|last| last.share < 50.0), "1 MiB leaves most disks idle: {trials:?}");
    }

    #[test]
    fn of_equals_the_smallest_is_best() {
        let trial = |kib: u64, share| Trial { chunk: Bytes(kib << 10), share };
        assert_eq!(best(&[trial(4, 70.0), trial(8, 90.0), trial(16, 90.0)]), Some(trial(8, 90.0)));
        assert_eq!(best(&[]), None);
    }
}
