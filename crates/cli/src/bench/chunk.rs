//! `uraid bench chunk`: the laboratory on temporary arrays.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use uraid_lab::plan::size as unit;
use uraid_lab::{Config, Driver, Error, Load, Plan, Results, Summary, fio, load, report, run};
use uraid_layout::Bytes;

use super::arrays::{ArraysArgs, ensure_room, observed, positive_seconds, seconds};
use crate::misuse::Misuse;
use crate::terminal::print;
use crate::values::bytes;

/// Arguments of `uraid bench chunk`.
#[derive(Debug, Args)]
#[command(after_help = "The results are in --out: report.html, report.md, summary.json, results.json, figures and \
fio's job files. A run that was interrupted goes on if it is started again in the same way.

Examples:
  uraid bench chunk --dir lab --chunks 16K,64K,256K --workload esg-oltp
  uraid bench chunk --dir /mnt/a --dir /mnt/b --dir /mnt/c --level 5,rm2 --count 6 --workload esg
  uraid bench chunk --members /dev/sd[b-f] --cache writeback,none --workload vm --workload sequential
  uraid bench chunk --dir lab --driver native --workload trace:monday.iolog")]
pub(crate) struct ChunkArgs {
    #[command(flatten)]
    arrays: ArraysArgs,
    /// Load; repeatable. `uraid bench workloads` lists the names
    #[arg(long = "workload", value_name = "NAME|fio:FILE|trace:FILE", default_value = "oltp")]
    workloads: Vec<String>,
    /// What generates the load
    #[arg(long, value_enum, default_value_t, value_name = "DRIVER")]
    driver: DriverName,
    /// Time of a measurement
    #[arg(long, value_parser = positive_seconds, default_value = "5s", value_name = "TIME", help_heading = "Precision")]
    time: u64,
    /// Time before it, which does not count
    #[arg(long, value_parser = seconds, default_value = "2s", value_name = "TIME", help_heading = "Precision")]
    warm_up: u64,
    /// Random requests begin at multiples of this
    #[arg(long, value_parser = bytes, default_value = "4K", value_name = "SIZE", help_heading = "Precision")]
    align: Bytes,
}

/// What generates requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DriverName {
    /// fio with its nbd engine
    #[default]
    Fio,
    /// The built-in generator
    Native,
}

/// Runs the command.
pub(crate) fn run(args: &ChunkArgs) -> Result<()> {
    let loads = loads(args)?;
    let driver = match args.driver {
        DriverName::Fio => Driver::Fio,
        DriverName::Native => Driver::Native,
    };
    let mut facts = BTreeMap::new();
    if driver == Driver::Fio {
        facts.insert("fio".to_owned(), fio::version()?);
    }
    let out = args.arrays.make_directories()?;
    let plan = plan(args, &loads, driver)?;
    let mut results = Results::resume(&out, plan, args.arrays.rounds(), args.arrays.machine(facts))?;
    if results.observations.is_empty() {
        ensure_room(&results.plan.arrays)?;
    }
    observed(&out, |program, observer| run::run(&mut results, &loads, program, &out, observer))?;
    let summary = Summary::of(&results).context("nothing was measured")?;
    let files = report::write(&results, &summary, &out)?;
    show(&results, &summary)?;
    let page = files.iter().find(|name| name.ends_with("html")).context("a report has a page")?;
    print(format_args!("the report is {}", out.join(page).display()))
}

fn loads(args: &ChunkArgs) -> Result<Vec<Load>> {
    ensure!(
        args.align.0.is_power_of_two() && args.align.0 >= 512,
        Misuse("--align: a power of two, from 512 on".into())
    );
    let mut loads: Vec<Load> = Vec::new();
    for spec in &args.workloads {
        let found = load::find(spec, args.align).map_err(|error| match error {
            Error::Workload(unknown) => anyhow::Error::new(Misuse(unknown.to_string())),
            other => other.into(),
        })?;
        for load in found {
            ensure!(
                loads.iter().all(|other| other.name != load.name),
                Misuse(format!("two loads are called {}: name each once", load.name))
            );
            loads.push(load);
        }
    }
    let needs_fio = |load: &&Load| matches!(load.kind, load::Kind::Job(_));
    if let (Some(load), DriverName::Native) = (loads.iter().find(needs_fio), args.driver) {
        bail!(Misuse(format!("{} is a job file: it needs --driver fio", load.name)));
    }
    Ok(loads)
}

fn plan(args: &ChunkArgs, loads: &[Load], driver: Driver) -> Result<Plan> {
    Ok(Plan {
        arrays: args.arrays.arrays()?,
        loads: loads.iter().map(Load::id).collect(),
        driver,
        align: args.align.0,
        warm_up_s: args.warm_up,
        seconds: args.time,
    })
}

/// Prints the shares of each level and cache mode, and the recommendations.
fn show(results: &Results, summary: &Summary) -> Result<()> {
    for group in &summary.groups {
        print(format_args!("{}: the smallest share of any load's best throughput", group.title))?;
        for score in &group.choice.scores {
            let Config { chunk, .. } = score.config;
            let percent = |share: f64| share * 100.0;
            print(format_args!(
                "  {:>5}  {:3.0} % ({:.0} to {:.0}), {}",
                unit(chunk),
                percent(score.least),
                percent(score.low),
                percent(score.high),
                score.worst
            ))?;
        }
    }
    summary.sentences(&results.plan).iter().try_for_each(|sentence| print(format_args!("{sentence}")))
}
