//! How fast whole files are read from a file system on an array: the study of Hauser, Berman & Thoma, Is the Bang Worth
//! the Buck? (1996), on real arrays.
//!
//! Each array gets an ext4 with files of the paper's ten sizes, as many of each. Then 1 to 12 processes read whole
//! files in random order. *ART*, the average retrieval time, is a file's mean time with one process. *AAT*, the
//! additional time, is what each further process adds to the mean, by linear regression. *Bang* is the files' mean size
//! over the sum of the two.
//!
//! A file is read at most once between two mounts, so no cache of the kernel answers. A process is a thread here: it
//! only waits for the kernel.

mod document;
mod files;
mod observed;
mod volume;

use std::path::Path;
use std::time::{Duration, Instant};

use uraid_layout::Bytes;

use crate::Error;
use crate::plan::{Config, Rounds};
use crate::run::{Observer, Progress};
use crate::stage::Stage;
pub use document::{Summary, write};
use files::Collection;
use observed::estimate;
pub use observed::{Observation, Plan, Results};
use volume::{Access, Volume};
pub use volume::{Way, ensure_root};

/// What an array needs for so many files. ext4 takes some of the room itself, most of it for a journal.
#[must_use]
pub fn needed(files: usize) -> Bytes {
    Bytes(Collection::new(files).bytes().0 * 5 / 4 + volume::OVERHEAD.0)
}

/// Refuses an array that has no room for the files.
fn ensure_room(files: usize, config: &Config, size: Bytes) -> Result<(), Error> {
    let needed = needed(files);
    if needed.0 <= size.0 {
        return Ok(());
    }
    let mib = |bytes: Bytes| bytes.0.div_ceil(1 << 20);
    let (needed, found) = (mib(needed), mib(size));
    Err(Error::Refused(format!(
        "the files need {needed} MiB, and {config} has {found} MiB: fewer --files, or larger members"
    )))
}

/// Measures what `results` lack of their plan. They are in `out` after each array of a round. `program` is the `uraid`
/// that serves the arrays.
///
/// # Errors
/// As [`crate::run::run`]. Besides, if a file system can't be made, mounted or read.
pub fn run(results: &mut Results, program: &Path, out: &Path, observer: &mut Observer<'_>) -> Result<(), Error> {
    let plan = results.plan.clone();
    volume::keep_mounts_private()?;
    Stage::sweep(&results.scratch)?;
    let scratch = Stage::scratch(&plan.arrays);
    results.scratch.clone_from(&scratch);
    results.save(out)?;
    let stage = Stage::set_up(&plan.arrays, program, scratch, out)?;
    let files = Collection::new(plan.files);
    let mut lab = Lab { stage, plan: &plan, files, out, observer, begun: Instant::now(), measured: 0 };
    let ended = (0..results.rounds.max).try_for_each(|round| lab.round(round, results));
    drop(lab);
    results.scratch.retain(|path| path.exists());
    Stage::drop_empty_log(out);
    results.save(out)?;
    ended
}

struct Lab<'a, 'b> {
    stage: Stage<'a>,
    plan: &'a Plan,
    files: Collection,
    out: &'a Path,
    observer: &'a mut Observer<'b>,
    begun: Instant,
    /// Arrays measured by this run.
    measured: u32,
}

impl Lab<'_, '_> {
    fn round(&mut self, round: usize, results: &mut Results) -> Result<(), Error> {
        let Rounds { min, precision, .. } = results.rounds;
        let configs = self.plan.arrays.configs();
        let is_precise =
            |config| estimate(results, config, Observation::bang).is_some_and(|it| it.precision() <= precision);
        if round >= min && configs.iter().all(is_precise) {
            return Ok(());
        }
        for config in Rounds::ordered(configs, round) {
            if results.observations.iter().any(|it| it.round == round && it.config == config) {
                continue;
            }
            let observation = self.measure(round, config, results);
            // What was measured while somebody stopped everything counts for nothing.
            self.observer.check_stop()?;
            results.observations.push(observation?);
            results.save(self.out)?;
            self.measured += 1;
        }
        Ok(())
    }

    fn measure(&mut self, round: usize, config: Config, results: &Results) -> Result<Observation, Error> {
        self.tell(round, results, format!("{config}: preparing"))?;
        let server = self.stage.serve(&config)?;
        ensure_room(self.plan.files, &config, server.size)?;
        let volume = Volume::attach(&server, self.plan.way, self.stage.directory())?;
        if server.is_new {
            volume.format()?;
            volume.mounted(Access::Write, |root| self.files.write(root))?;
        }
        let (mut mean_s, mut files) = (Vec::new(), 0);
        for processes in 1..=self.plan.processes {
            self.tell(round, results, format!("{config}: {processes} of {} processes", self.plan.processes))?;
            let seed = (round * self.plan.processes + processes) as u64;
            let read = |root: &Path| self.files.read(root, processes, self.plan.seconds, seed);
            let found = volume.mounted(Access::Read, read)?;
            mean_s.push(found.mean_s);
            files += found.files;
        }
        let (size, raw) = (server.size.0, self.stage.raw(&config)?.0);
        volume.detach()?;
        server.stop()?;
        Ok(Observation { round, config, mean_s, files, size, raw })
    }

    fn tell(&mut self, round: usize, results: &Results, what: String) -> Result<(), Error> {
        self.observer.check_stop()?;
        let done = results.observations.len();
        let total = self.plan.arrays.configs().len() * results.rounds.min.max(round + 1);
        let each = match self.measured {
            0 => Duration::from_secs(self.plan.seconds) * u32::try_from(self.plan.processes * 2).unwrap_or(1),
            measured => self.begun.elapsed() / measured,
        };
        let left = each * u32::try_from(total.saturating_sub(done)).unwrap_or(u32::MAX);
        (self.observer.progress)(&Progress { done, total, round: (round + 1, results.rounds.max), what, left });
        Ok(())
    }
}
