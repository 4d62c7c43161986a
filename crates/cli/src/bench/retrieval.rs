//! `uraid bench retrieval`: how fast processes read whole files from an ext4 on temporary arrays.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use uraid_lab::retrieval::{self, Plan, Results, Summary, Way, ensure_root};
use uraid_model::papers::hauser::PROCESSES;
use uraid_serve::text::size;

use super::arrays::{ArraysArgs, ensure_room, observed, positive_seconds};
use crate::terminal::print;

/// Arguments of `uraid bench retrieval`.
#[derive(Debug, Args)]
#[command(after_help = "The study of Hauser, Berman & Thoma (1996): ART is the average retrieval time of a file with \
one process, AAT what each further process adds, Bang the files' mean size over both. Needs root, which mounts the \
file systems, and nbd-client or nbdfuse. The results are in --out: report.html, report.md, summary.json, results.json.

Examples:
  sudo uraid bench retrieval --dir lab --chunks 16K,160K
  sudo uraid bench retrieval --members /dev/sd[b-g] --level 0,5,10 --chunks 16K,160K --price 0.02")]
pub(crate) struct RetrievalArgs {
    #[command(flatten)]
    arrays: ArraysArgs,
    /// Files on each array, 162.5 KiB on average [default: 4000, or as many as the smallest array has room for]
    #[arg(long, value_parser = clap::value_parser!(u32).range(10..=10_000_000), value_name = "N")]
    files: Option<u32>,
    /// The most processes that read at a time
    #[arg(long, default_value_t = PROCESSES as u8, value_parser = clap::value_parser!(u8).range(2..=128))]
    #[arg(value_name = "N")]
    processes: u8,
    /// What a gigabyte of the members costs, with everything around them; for Bang per cost
    #[arg(long, default_value_t = 1.0, value_parser = price, value_name = "PRICE")]
    price: f64,
    /// For how long processes begin files, for each number of processes
    #[arg(long, value_parser = positive_seconds, default_value = "1s", value_name = "TIME", help_heading = "Precision")]
    time: u64,
}

/// A price: more than nothing.
fn price(text: &str) -> Result<f64, String> {
    let price: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if price > 0.0 && price.is_finite() { Ok(price) } else { Err("a price is more than nothing".into()) }
}

/// Files if nobody says how many.
const FILES: usize = 4000;

impl RetrievalArgs {
    /// How many files there are on each array. Arrays of files that are too small for them are refused before anything
    /// is made; arrays of devices when their size is known.
    fn files(&self) -> Result<usize> {
        let Some(smallest) = self.arrays.smallest()? else {
            return Ok(self.files.map_or(FILES, |files| files as usize));
        };
        let fits = |files: &usize| retrieval::needed(*files).0 <= smallest.0;
        match self.files.map(|files| files as usize) {
            Some(files) if fits(&files) => Ok(files),
            None if fits(&FILES) => Ok(FILES),
            None => (1..=FILES / 10).rev().map(|tens| tens * 10).find(fits).context("the members are too small"),
            Some(files) => bail!(
                "the files need {}, and the smallest array has {}: fewer --files, or a larger --size",
                size(retrieval::needed(files).0),
                size(smallest.0)
            ),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &RetrievalArgs) -> Result<()> {
    let arrays = args.arrays.arrays()?;
    let files = args.files()?;
    ensure_root()?;
    let plan =
        Plan { arrays, files, processes: args.processes.into(), seconds: args.time, way: Way::of_this_machine()? };
    let out = args.arrays.make_directories()?;
    let mut results = Results::resume(&out, plan, args.arrays.rounds(), args.arrays.machine(BTreeMap::new()))?;
    if results.observations.is_empty() {
        ensure_room(&results.plan.arrays)?;
    }
    observed(&out, |program, observer| retrieval::run(&mut results, program, &out, observer))?;
    let summary = Summary::of(&results, args.price).context("nothing was measured")?;
    let written = retrieval::write(&results, &summary, &out)?;
    for row in &summary.rows {
        print(format_args!(
            "{:32} ART {:8.3} ms  AAT {:8.3} ms  Bang {:8.1} MB/s  per cost {:8.1}",
            row.config.to_string(),
            row.art_s.median * 1e3,
            row.aat_s.median * 1e3,
            row.bang.median,
            row.worth.median
        ))?;
    }
    summary.sentences().iter().try_for_each(|sentence| print(format_args!("{sentence}")))?;
    let page = written.iter().find(|name| name.ends_with("html")).context("a report has a page")?;
    print(format_args!("the report is {}", out.join(page).display()))
}
