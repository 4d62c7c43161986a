//! `cargo xtask vm`: the server under a real kernel, in a virtual machine: what users do with it, what a power cut
//! leaves, and Linux md as the judge of layouts.
//!
//! A scenario is a script for a guest, a bounded time and a plain verdict. All that one leaves is under
//! `target/vm/NAME`.

use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};

use self::kernel::Kernel;
use self::machine::{Disks, Machine, Setup};
use self::power::Cuts;
use self::scenario::{Kind, Power, SCENARIOS, Scenario, minutes};
use crate::counts::Counts;
use crate::packages;
use crate::project::{Profile, Project, eprint_step};

mod bench;
mod kernel;
mod layouts;
mod machine;
mod power;
mod scenario;
mod volatile;

/// Guests at a time, on however many cores: each may take 4 GiB.
const GUESTS_MAX: NonZeroUsize = NonZeroUsize::new(4).expect("it is not zero");

/// What to try.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, after_help = scenario::list())]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Scenarios to run [default: all]
    #[arg(value_parser = scenario::names())]
    scenarios: Vec<String>,
    /// Only the scenarios that continuous integration runs
    #[arg(long, conflicts_with = "scenarios")]
    ci: bool,
    /// How often the power is cut
    #[arg(long, value_name = "N", default_value_t = 5)]
    cuts: u32,
    /// What is lost, and when, in power cuts
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How many scenarios run at a time [default: one for each core, at most 4]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// How the server is built
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Plant this bug (see `cargo xtask mutants`): scenarios must fail then; it takes the checked profile
    #[arg(long, value_name = "BUG")]
    plant: Option<String>,
    /// Never install packages, not even as root: name what is missing and fail
    #[arg(long)]
    no_install: bool,
}

/// Other uses of a virtual machine.
#[derive(Subcommand)]
enum Command {
    /// A shell in a virtual machine, with five disks; `poweroff -f` or Ctrl-A X ends it
    Shell,
    /// Compare with Linux md, exported by nbdkit; both run under emulation, so only the ratios tell something
    Bench {
        /// How often each is measured, in turn
        #[arg(long, value_name = "N", default_value_t = 3)]
        rounds: u32,
    },
}

impl Options {
    /// What continuous integration runs; `seed` decides what is lost, and when.
    pub(crate) fn ci(seed: u64) -> Self {
        Self { ci: true, cuts: 1, seed, profile: Profile::Checked, ..Self::at_length() }
    }

    /// Every scenario, and many power cuts.
    pub(crate) fn at_length() -> Self {
        let (command, scenarios, jobs, profile, plant) = (None, Vec::new(), None, Profile::Release, None);
        Self { command, scenarios, ci: false, cuts: 20, seed: 1, jobs, profile, plant, no_install: false }
    }
}

/// What every scenario runs with.
struct Lab {
    kernel: Kernel,
    uraid: PathBuf,
    directory: PathBuf,
    cuts: Cuts,
    planted: Option<String>,
}

/// Runs scenarios, or the other command.
///
/// # Errors
/// When a package is missing or a scenario failed: with the end of its console log and the command that repeats it.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<Counts> {
    packages::ensure(packages::VM, !options.no_install)?;
    let uraid = project.server(if options.plant.is_some() { Profile::Checked } else { options.profile })?;
    let directory = project.target()?.join("vm");
    let kernel = Kernel::prepare(&directory.join("cache"))?;
    let cuts = Cuts { count: options.cuts, seed: options.seed };
    let lab = Lab { kernel, uraid, directory, cuts, planted: options.plant.clone() };
    match &options.command {
        Some(Command::Shell) => lab.shell()?,
        Some(Command::Bench { rounds }) => lab.compare(*rounds)?,
        None => {
            let scenarios = chosen(options);
            lab.run_all(&scenarios, options.jobs.unwrap_or_else(guests))?;
            let cuts_of = |scenario: &&Scenario| match scenario.kind {
                Kind::Power(Power { cuts_max, .. }) => options.cuts.min(cuts_max),
                Kind::Script(_) | Kind::Layouts(_) => 0,
            };
            let cuts: u32 = scenarios.iter().map(cuts_of).sum();
            let counts = [("scenarios", scenarios.len().into()), ("power_cuts", cuts.into())];
            return Ok(counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect());
        }
    }
    Ok(Counts::new())
}

fn chosen(options: &Options) -> Vec<&'static Scenario> {
    let Options { scenarios: names, ci, .. } = options;
    let is_chosen = |scenario: &&Scenario| match names.as_slice() {
        [] => scenario.ci || !ci,
        names => names.iter().any(|name| name == scenario.name),
    };
    SCENARIOS.iter().filter(is_chosen).collect()
}

/// How many guests there may be at a time: most of what one does, it does on one core.
fn guests() -> NonZeroUsize {
    thread::available_parallelism().map_or(NonZeroUsize::MIN, |cores| cores.min(GUESTS_MAX))
}

impl Lab {
    /// Runs every one of `scenarios`, so many at a time, also after one has failed.
    fn run_all(&self, scenarios: &[&Scenario], jobs: NonZeroUsize) -> anyhow::Result<()> {
        let began = Instant::now();
        let waiting = Mutex::new(scenarios.iter());
        let next = || waiting.lock().expect("nobody panics with the list").next();
        let run_some = || {
            let mut failed = Vec::new();
            while let Some(scenario) = next() {
                failed.extend((!self.passes(scenario)).then_some(scenario.name));
            }
            failed
        };
        let failed: Vec<&str> = thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs.get()).map(|_| scope.spawn(run_some)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("no scenario panics")).collect()
        });
        if let Some(bug) = &self.planted {
            ensure!(!failed.is_empty(), "no scenario noticed {bug}");
            eprint_step(&format!("vm: {bug} is noticed by {}", failed.join(", ")));
            return Ok(());
        }
        if !failed.is_empty() {
            bail!("{} of {} scenarios failed: {}", failed.len(), scenarios.len(), failed.join(", "));
        }
        eprint_step(&format!("vm: {} scenarios passed in {} s", scenarios.len(), began.elapsed().as_secs()));
        Ok(())
    }

    /// Runs a scenario, and says how it ended.
    fn passes(&self, scenario: &Scenario) -> bool {
        let began = Instant::now();
        let Err(error) = self.run(scenario) else {
            eprint_step(&format!("{}: pass, {} s", scenario.name, began.elapsed().as_secs()));
            return true;
        };
        let Cuts { count, seed } = self.cuts;
        eprint_step(&format!("{}: FAILED: {error:#}", scenario.name));
        eprint_step(&format!("repeat it with `cargo xtask vm {} --cuts {count} --seed {seed}`", scenario.name));
        false
    }

    fn run(&self, scenario: &Scenario) -> anyhow::Result<()> {
        let share = self.fresh(scenario.name)?;
        let disks = disks(&share, scenario.disks, scenario.disk_mib)?;
        match scenario.kind {
            Kind::Script(script) => {
                let machine = Machine::start(&self.setup(&share, &disks, script, &[]))?;
                machine.finish(scenario.time_max)?;
            }
            Kind::Layouts(script) => {
                layouts::prepare(&share)?;
                let script = layouts::script(script);
                Machine::start(&self.setup(&share, &disks, &script, &[]))?.finish(scenario.time_max)?;
                layouts::judge(&share)?;
            }
            Kind::Power(Power { script, losable, cuts_max }) => {
                let renew = |disk: &Path| blank(disk, scenario.disk_mib);
                let cuts = Cuts { count: self.cuts.count.min(cuts_max), ..self.cuts };
                let setup = self.setup(&share, &[], script, &[]);
                power::run(&setup, &disks, losable, &cuts, scenario.time_max, renew)?;
            }
        }
        // What passed tells nothing more.
        fs::remove_dir_all(&share).with_context(|| format!("removing {}", share.display()))
    }

    fn shell(&self) -> anyhow::Result<()> {
        let share = self.fresh("shell")?;
        let disks = disks(&share, 5, 256)?;
        let script = "trap - ERR; set +eEu\nsetsid bash -i </dev/ttyS0 >/dev/ttyS0 2>&1\n";
        machine::interactive(&self.setup(&share, &disks, script, &[]))
    }

    fn compare(&self, rounds: u32) -> anyhow::Result<()> {
        let share = self.fresh("bench")?;
        let disks = disks(&share, 4, 128)?;
        let script = include_str!("vm/scenario/bench.sh");
        let variables = [("ROUNDS", rounds.to_string())];
        Machine::start(&self.setup(&share, &disks, script, &variables))?.finish(minutes(5) * rounds)?;
        let results = fs::read_to_string(share.join("results")).context("reading the guest's results")?;
        print(&bench::table(&results)?);
        Ok(())
    }

    /// An empty directory for what a scenario leaves.
    fn fresh(&self, name: &str) -> anyhow::Result<PathBuf> {
        let share = self.directory.join(name);
        if share.exists() {
            fs::remove_dir_all(&share).with_context(|| format!("removing {}", share.display()))?;
        }
        fs::create_dir_all(&share).with_context(|| format!("creating {}", share.display()))?;
        Ok(share)
    }

    fn setup<'a>(
        &'a self,
        share: &'a Path,
        disks: &'a [PathBuf],
        script: &'a str,
        variables: &'a [(&'a str, String)],
    ) -> Setup<'a> {
        let (disks, planted) = (Disks::Images(disks), self.planted.as_deref());
        Setup { kernel: &self.kernel, uraid: &self.uraid, share, disks, planted, script, variables }
    }
}

/// New images of `mib` MiB each, without a byte in them yet.
fn disks(share: &Path, count: usize, mib: u64) -> anyhow::Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = (0..count).map(|slot| share.join(format!("disk{slot}"))).collect();
    paths.iter().try_for_each(|path| blank(path, mib))?;
    Ok(paths)
}

/// An image of `mib` MiB without a byte in it, in place of what `path` was.
fn blank(path: &Path, mib: u64) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    file.set_len(mib << 20).with_context(|| format!("sizing {}", path.display()))
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print(text: &str) {
    print!("{text}");
}
