//! Measures a plan: round by round, every cell once in each, in alternating order.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uraid_model::workloads::Demand;

use crate::load::{Kind, Load, job_path};
use crate::native::Time;
use crate::plan::{Arrays, Driver, Plan, Rounds};
use crate::results::{Measured, Observation, Results};
use crate::stage::{EXPORT, Server, Stage};
use crate::stats::Estimate;
use crate::{Error, fio, native};

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Cells measured, also by an earlier run.
    pub done: usize,
    /// Cells that are needed at least.
    pub total: usize,
    /// The round, from 1 on, and the most rounds.
    pub round: (usize, usize),
    /// What is done now.
    pub what: String,
    /// The time that what is needed at least still takes.
    pub left: Duration,
}

/// Whom a run tells, and who may stop it.
pub struct Observer<'a> {
    /// Called before each step.
    pub progress: &'a mut dyn FnMut(&Progress),
    /// Set by somebody who wants the run to end after the current cell.
    pub stop: &'a AtomicBool,
}

impl Observer<'_> {
    /// Fails if somebody wants the run to end.
    pub(crate) fn check_stop(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Measures what `results` lack of their plan. They are in `out` after each cell. `program` is the `uraid` that serves
/// the arrays.
///
/// # Errors
/// If an array can't be made or measured, or with [`Error::Interrupted`] if the run was asked to end. What was measured
/// is in `out` then, and the next run goes on.
pub fn run(
    results: &mut Results,
    loads: &[Load],
    program: &Path,
    out: &Path,
    observer: &mut Observer<'_>,
) -> Result<(), Error> {
    let plan = results.plan.clone();
    write_jobs(&plan, loads, out)?;
    Stage::sweep(&results.scratch)?;
    let scratch = Stage::scratch(&plan.arrays);
    results.scratch.clone_from(&scratch);
    results.save(out)?;
    let mut lab = Lab {
        stage: Stage::set_up(&plan.arrays, program, scratch, out)?,
        plan: &plan,
        loads,
        out,
        observer,
        begun: Instant::now(),
        measured: 0,
    };
    let ended = (0..results.rounds.max).try_for_each(|round| lab.round(round, results));
    drop(lab);
    results.scratch.retain(|path| path.exists());
    Stage::drop_empty_log(out);
    results.save(out)?;
    ended
}

/// The job files, beside the results.
fn write_jobs(plan: &Plan, loads: &[Load], out: &Path) -> Result<(), Error> {
    let directory = out.join("jobs");
    fs::create_dir_all(&directory).map_err(Error::io("make the directory", &directory))?;
    for load in loads {
        if let Some(text) = fio::job(load, plan) {
            let path = job_path(out, &load.name);
            fs::write(&path, text).map_err(Error::io("write", &path))?;
        }
    }
    Ok(())
}

/// Whether more rounds would tell more of a load.
fn is_done(results: &Results, load: &str, round: usize) -> bool {
    let Rounds { min, precision, .. } = results.rounds;
    round >= min
        && results.plan.arrays.configs().iter().all(|config| {
            let values = results.values(config, load, |it| it.mb_s);
            Estimate::of(&values).is_some_and(|estimate| estimate.precision() <= precision)
        })
}

struct Lab<'a, 'b> {
    stage: Stage<'a>,
    plan: &'a Plan,
    loads: &'a [Load],
    out: &'a Path,
    observer: &'a mut Observer<'b>,
    begun: Instant,
    /// Cells of this run.
    measured: u32,
}

impl Lab<'_, '_> {
    /// Measures every cell once.
    fn round(&mut self, round: usize, results: &mut Results) -> Result<(), Error> {
        let loads = self.loads.iter().filter(|load| !is_done(results, &load.name, round)).collect();
        let loads: Vec<&Load> = Rounds::ordered(loads, round);
        for config in &Rounds::ordered(self.plan.arrays.configs(), round) {
            let missing: Vec<&Load> =
                loads.iter().copied().filter(|load| !results.has(round, config, &load.name)).collect();
            if missing.is_empty() {
                continue;
            }
            self.tell(round, results, format!("{config}: preparing"))?;
            let server = self.stage.serve(config)?;
            if server.is_new {
                native::fill(&server.socket, EXPORT, server.size)?;
            }
            for load in missing {
                self.tell(round, results, format!("{config}: {}", load.name))?;
                let measured = self.cell(&server, load, round);
                // What was measured while somebody stopped everything counts for nothing.
                self.observer.check_stop()?;
                let measured = measured?;
                let (config, load) = (config.clone(), load.name.clone());
                results.observations.push(Observation { round, config, load, measured });
                results.save(self.out)?;
                self.measured += 1;
            }
            server.stop()?;
        }
        Ok(())
    }

    fn cell(&self, server: &Server, load: &Load, round: usize) -> Result<Measured, Error> {
        // What earlier cells left in the cache is not this one's.
        native::flush(&server.socket, EXPORT)?;
        let seed = round as u64 + 1;
        if self.plan.driver == Driver::Fio && !matches!(load.kind, Kind::Demand(Demand::Trace(_))) {
            return fio::run(&job_path(self.out, &load.name), &server.uri, server.size, seed);
        }
        let Some((source, depth)) = load.source(server.size, seed)? else {
            return Err(Error::Refused(format!("{} is a job file: it needs --driver fio", load.name)));
        };
        let seconds = Duration::from_secs;
        let time = Time { warm_up: seconds(self.plan.warm_up_s), measured: seconds(self.plan.seconds) };
        native::load(&server.socket, EXPORT, vec![source], depth, time)
    }

    fn tell(&mut self, round: usize, results: &Results, what: String) -> Result<(), Error> {
        self.observer.check_stop()?;
        let done = results.observations.len();
        let configs = self.plan.arrays.configs().len();
        // Loads that are done need no cell of this round or of later ones.
        let ahead = |load: &Load| {
            let rounds = results.rounds.min.max(round + 1);
            let cells = rounds * configs;
            let has = results.observations.iter().filter(|it| it.load == load.name).count();
            if is_done(results, &load.name, round) { 0 } else { cells.saturating_sub(has) }
        };
        let left: usize = self.loads.iter().map(ahead).sum();
        let each = match self.measured {
            0 => self.plan.cell_time() * 3 / 2,
            measured => self.begun.elapsed() / measured,
        };
        let left_time = each * u32::try_from(left).unwrap_or(u32::MAX);
        (self.observer.progress)(&Progress {
            done,
            total: done + left,
            round: (round + 1, results.rounds.max),
            what,
            left: left_time,
        });
        Ok(())
    }
}

/// The room that the members of arrays need, in bytes, in each of so many directories.
#[must_use]
pub fn room(arrays: &Arrays, member_size: u64, directories: usize) -> u64 {
    let count = (arrays.levels.len() * arrays.chunks.len()) as u64;
    count * member_size * arrays.members.div_ceil(directories.max(1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::arrays;
    use crate::results::tests::results;

    #[test]
    fn a_load_is_done_when_its_medians_are_known_well_enough() {
        let steady = results(
            6,
            |round, _, load| if load == "small" { 100.0 + round as f64 } else { 100.0 + 20.0 * round as f64 },
        );
        assert!(is_done(&steady, "small", 6) && !is_done(&steady, "large", 6));
        assert!(!is_done(&steady, "small", 5), "too few rounds");
    }

    #[test]
    fn every_array_needs_room() {
        assert_eq!(arrays().configs().len(), 3);
        assert_eq!(room(&arrays(), 256 << 20, 2), 3 * 3 * (256 << 20));
    }
}
