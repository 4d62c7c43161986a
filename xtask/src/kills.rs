//! `cargo xtask kills`: servers on real files killed under load, for as many kills or hours as one likes, until one
//! does not keep its word.
//!
//! The loop is the end-to-end harness's; here are its command line and what is said of it.

use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use uraid_tests::binary;
use uraid_tests::kills::{Counts, Cycle};
use uraid_tests::run::is_installed;
use uraid_tests::shape::{self, Shape};

use crate::counts;
use crate::project::{Profile, Project, eprint_step};

/// How long nothing is said.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// How long to go on, and with what.
#[derive(Args)]
pub(crate) struct Options {
    /// Stop after this many kills
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "hours")]
    rounds: u64,
    /// Stop after this many hours
    #[arg(long, value_name = "H", value_parser = hours)]
    hours: Option<Duration>,
    /// Only arrays of these levels
    #[arg(long, value_name = "LEVEL", value_parser = ["0", "1", "10", "5", "6", "rm2"])]
    level: Vec<String>,
    /// The first array's seed; the next array's is one more
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How the server is built, unless URAID_BIN names one
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
}

impl Options {
    /// So many kills, of arrays that follow from `seed`.
    pub(crate) fn rounds(rounds: u64, seed: u64) -> Self {
        Self { rounds, hours: None, level: Vec::new(), seed, profile: Profile::Release }
    }

    /// The same, with assertions.
    pub(crate) fn checked(self) -> Self {
        Self { profile: Profile::Checked, ..self }
    }

    /// As many kills as there is time for, of other arrays each time.
    pub(crate) fn until(time: Duration) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { hours: Some(time), ..Self::rounds(u64::MAX, now.as_secs()) }
    }
}

/// Kills servers until it has been enough.
///
/// # Errors
/// When one was not as it should have been: with its seed, its level, the command that repeats it, and its members'
/// place.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<counts::Counts> {
    if std::env::var_os("URAID_BIN").is_none() {
        binary::choose(&project.server(options.profile)?);
    }
    let shapes = shapes(&options.level);
    let has_fio = is_installed("fio");
    if !has_fio {
        eprint_step("fio is not installed: kills go without it");
    }
    let began = Instant::now();
    let mut said = began;
    let mut counts = Counts::default();
    for seed in options.seed.. {
        let left = match options.hours {
            Some(hours) if began.elapsed() >= hours => 0,
            Some(_) => u64::MAX,
            None => options.rounds - counts.kills,
        };
        if left == 0 {
            break;
        }
        match Cycle::new(seed, &shapes, left, has_fio).run() {
            Ok(done) => counts = [counts, done].into_iter().sum(),
            Err(failure) => {
                let levels: String = options.level.iter().map(|level| format!(" --level {level}")).collect();
                let reason = format!(
                    "{failure}\nafter {counts}\nrepeat it with `cargo xtask kills --seed {seed}{levels}`; only how \
                     processes interleave is not repeated"
                );
                return Err(counts::Failed { counts: by_name(&counts), reason }.into());
            }
        }
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            eprint_step(&format!("{} min: {counts}", began.elapsed().as_secs() / 60));
        }
    }
    eprint_step(&format!("kills: nothing lost and nothing made up; {counts}"));
    Ok(by_name(&counts))
}

fn by_name(counts: &Counts) -> counts::Counts {
    let Counts { cycles, kills, remembering, killed_starts, degraded, sectors, .. } = *counts;
    let numbers = [
        ("kills", kills),
        ("arrays", cycles),
        ("kills_without_write-back", remembering),
        ("more_while_starting", killed_starts),
        ("starts_without_members", degraded),
        ("sectors_verified", sectors),
    ];
    numbers.into_iter().map(|(name, number)| (name.to_owned(), number.into())).collect()
}

/// The shapes of these levels; of all when there are none.
fn shapes(levels: &[String]) -> Vec<Shape> {
    let mut shapes = shape::all();
    shapes.retain(|shape| levels.is_empty() || levels.iter().any(|level| level == shape.level.name()));
    shapes
}

fn hours(text: &str) -> Result<Duration, String> {
    let hours: f64 = text.parse().map_err(|_| format!("'{text}' is no number of hours"))?;
    Duration::try_from_secs_f64(hours * 3600.0).map_err(|error| error.to_string())
}
