//! How far the simulation is from a short measurement of real members.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context as _, Result};
use serde::Serialize;
use uraid_lab::machine::Machine;
use uraid_lab::plan::Storage;
use uraid_lab::stats::median_of;
use uraid_lab::{Arrays, Config, Driver, Load, Plan, Results, Rounds, run};
use uraid_model::advise::trial::{CACHE, Trial};
use uraid_serve::text::size;

use crate::bench::arrays::{ensure_room, observed};
use crate::terminal::print;

/// The chunks that are measured.
const CHUNKS: [u64; 3] = [16 << 10, 64 << 10, 256 << 10];

/// Size of a temporary member.
const MEMBER_BYTES: u64 = 256 << 20;

/// Random requests begin at multiples of this, as the simulated ones do.
const ALIGN: u64 = 4 << 10;

const ROUNDS: Rounds = Rounds { min: 3, max: 3, precision: 1.0 };

/// What was measured beside what was simulated.
#[derive(Debug, Serialize)]
pub(super) struct Calibration {
    cells: Vec<Cell>,
    /// Measured throughput over simulated throughput: the geometric mean, the least and the most.
    ratio: [f64; 3],
    /// By how many points the shares of the best chunk's throughput differ at most.
    shares_differ_by: f64,
    /// The best of the chunks by either.
    best_measured: u64,
    best_simulated: u64,
    /// Disks behind the members.
    disks: usize,
    members: usize,
}

/// A load on an array.
#[derive(Debug, Serialize)]
struct Cell {
    load: String,
    chunk: u64,
    /// In units of 10^6 bytes a second.
    measured_mb_s: f64,
    simulated_mb_s: f64,
}

/// Measures some chunks, of which every trial has the loads in their order.
pub(super) fn calibrate(
    directories: &[PathBuf],
    level: &str,
    cache: &str,
    members: u8,
    loads: &[Load],
    trials: &[Trial],
) -> Result<Calibration> {
    for directory in directories {
        fs::create_dir_all(directory).with_context(|| format!("can't make the directory {}", directory.display()))?;
    }
    let disks: BTreeSet<u64> =
        directories.iter().map(|path| fs::metadata(path).map(|metadata| metadata.dev())).collect::<Result<_, _>>()?;
    let arrays = Arrays {
        levels: vec![level.to_owned()],
        chunks: CHUNKS.to_vec(),
        caches: vec![cache.to_owned()],
        place: Storage::Directories {
            paths: directories.iter().map(absolute).collect::<Result<_, _>>()?,
            member_size: MEMBER_BYTES,
        },
        members: members.into(),
        cache_size: CACHE.size.0,
    };
    ensure_room(&arrays)?;
    let ids = loads.iter().map(Load::id).collect();
    let plan = Plan { arrays, loads: ids, driver: Driver::Native, align: ALIGN, warm_up_s: 1, seconds: 2 };
    let mut results = Results::new(plan, ROUNDS, Machine::default());
    let out = Scratch::in_directory(&directories[0])?;
    observed(&out.0, |program, observer| run::run(&mut results, loads, program, &out.0, observer))
        .context("the simulation was not compared with a measurement")?;
    let measured = |chunk: u64, load: &Load| {
        let config = Config { level: level.to_owned(), cache: cache.to_owned(), chunk };
        median_of(&results.values(&config, &load.name, |it| it.mb_s))
    };
    let mut cells = Vec::new();
    for chunk in CHUNKS {
        let trial = trials.iter().find(|trial| trial.chunk.0 == chunk).context("the chunk was simulated")?;
        cells.extend(loads.iter().zip(&trial.mb_s).map(|(load, &simulated_mb_s)| Cell {
            load: load.name.clone(),
            chunk,
            measured_mb_s: measured(chunk, load),
            simulated_mb_s,
        }));
    }
    Ok(Calibration::of(cells, loads.len(), disks.len(), members.into()))
}

/// A directory that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn in_directory(directory: &Path) -> Result<Self> {
        let path = directory.join(format!("uraid-calibrate-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("can't make the directory {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Calibration {
    /// Compares cells, which are in the order of [`CHUNKS`], so many loads for each.
    fn of(cells: Vec<Cell>, loads: usize, disks: usize, members: usize) -> Self {
        let ratios: Vec<f64> = cells.iter().map(|cell| cell.measured_mb_s / cell.simulated_mb_s).collect();
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let (low, high) =
            ratios.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
        let shares = |of: fn(&Cell) -> f64| -> Vec<f64> {
            let best = |load: usize| cells.iter().skip(load).step_by(loads).map(of).fold(0.0, f64::max);
            cells.iter().enumerate().map(|(index, cell)| of(cell) / best(index % loads)).collect()
        };
        let (measured, simulated) = (shares(|cell| cell.measured_mb_s), shares(|cell| cell.simulated_mb_s));
        let apart = measured.iter().zip(&simulated).map(|(left, right)| (left - right).abs()).fold(0.0, f64::max);
        let best = |shares: &[f64]| {
            let least = shares.chunks(loads).map(|of| of.iter().copied().fold(f64::INFINITY, f64::min));
            let best = CHUNKS.into_iter().zip(least).fold((0, 0.0), |best, it| if it.1 > best.1 { it } else { best });
            best.0
        };
        Self {
            ratio: [mean, low, high],
            shares_differ_by: apart * 100.0,
            best_measured: best(&measured),
            best_simulated: best(&simulated),
            cells,
            disks,
            members,
        }
    }

    pub(super) fn show(&self) -> Result<()> {
        for Cell { load, chunk, measured_mb_s, simulated_mb_s } in &self.cells {
            print(format_args!(
                "measured: {load}, {}: {measured_mb_s:.1} MB/s; simulated: {simulated_mb_s:.1} MB/s",
                size(*chunk)
            ))?;
        }
        let [mean, low, high] = self.ratio;
        print(format_args!(
            "  the measurement has {mean:.2} times the simulated throughput ({low:.2} to {high:.2}); shares of the \
             best of these chunks differ by at most {:.0} points; best: {} measured, {} simulated",
            self.shares_differ_by,
            size(self.best_measured),
            size(self.best_simulated)
        ))?;
        if self.disks < self.members {
            print(format_args!(
                "  the {} members share {} disk{}, and the simulation has a disk for each: name one --calibrate \
                 directory for each disk",
                self.members,
                self.disks,
                if self.disks == 1 { "" } else { "s" }
            ))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One load is twice as fast as simulated and the other half as fast, so the mean is right; at 256K the second has
    /// half of the simulated share.
    #[test]
    fn a_calibration_tells_how_far_the_simulation_is_off() {
        let numbers = [(16, [10.0, 40.0]), (64, [20.0, 30.0]), (256, [20.0, 10.0])];
        let cells = numbers.iter().flat_map(|(kib, simulated)| {
            let cell = |(index, load): (usize, &str)| {
                let factor = match (index, kib) {
                    (0, _) => 2.0,
                    (_, 256) => 0.25,
                    _ => 0.5,
                };
                let simulated_mb_s = simulated[index];
                Cell { load: load.into(), chunk: kib << 10, measured_mb_s: simulated_mb_s * factor, simulated_mb_s }
            };
            ["a", "b"].into_iter().enumerate().map(cell).collect::<Vec<_>>()
        });
        let found = Calibration::of(cells.collect(), 2, 1, 3);
        assert!((found.ratio[0] - 2.0_f64.powf(-1.0 / 6.0)).abs() < 1e-9, "{found:?}");
        assert_eq!((found.ratio[1], found.ratio[2]), (0.25, 2.0));
        assert!((found.shares_differ_by - 12.5).abs() < 1e-9, "{found:?}");
        assert_eq!((found.best_measured, found.best_simulated), (64 << 10, 64 << 10));
    }
}
