//! Xyratex, RAID Chunk Size (2008): by how much IOPS change when the chunk shrinks from 64 to 16 KB, for the workloads
//! of its Enterprise Storage Group.

use uraid_layout::{Bytes, Level, Rotation};

use super::report::{Cell, Report, Table};
use super::{Grid, Item, Paper, Settings};
use crate::mech::run::run_all;
use crate::mech::sizes::Sizes;
use crate::mech::workload::{Component, Mix, Pattern};
use crate::mech::{ArraySpec, CacheSpec, DiskSpec, Error, StopRule, System, presets};

/// What the paper's reproduction has.
pub const PAPER: Paper = Paper {
    name: "xyratex",
    title: "Xyratex, RAID Chunk Size (2008)",
    items: &[Item { name: "esg", title: "IOPS with chunks of 16 KB against 64 KB", run: esg }],
};

/// A kind of request: its size in sectors, how often it comes, the share of reads, and where it is.
pub type Kind = (u64, f64, f64, Access);

/// Where a kind's requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anywhere in the array.
    Random,
    /// In one stream.
    Sequential,
}

/// A workload, and the change in per cent that the paper has on the RS-5402, RS-5412 and 2730, with SAS and with SATA
/// disks.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The paper's name for it.
    pub name: &'static str,
    /// The kinds of its requests.
    pub kinds: &'static [Kind],
    /// With SAS disks.
    pub sas: [f64; 3],
    /// With SATA disks.
    pub sata: [f64; 3],
}

/// What a simulation of them rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choices {
    /// Where requests begin: at multiples of this.
    align: Bytes,
    /// Whether the engine's write-back cache is in front.
    is_cached: bool,
    /// Whether a read's chunks are one command to a disk where they are adjacent, as in the engine.
    joins_reads: bool,
    /// What a disk takes for each command before it seeks, in milliseconds.
    command_ms: f64,
}

/// RAID 5 of 5+1 disks, 16 requests at a time.
const DISKS: u8 = 6;
const DEPTH: usize = 16;
const CHUNKS: [Bytes; 2] = [Bytes(64 << 10), Bytes(16 << 10)];
const LEVEL: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

/// A quarter of theirs: pages are real memory. Random writes are over far more than either holds.
const CACHE_FULL: Bytes = Bytes(256 << 20);
const CACHE_REDUCED: Bytes = Bytes(16 << 20);
const HIT_US: f64 = 50.0;

const TAKEN: Choices =
    Choices { align: Bytes(512), is_cached: true, joins_reads: false, command_ms: presets::COMMAND_MS };

use Access::{Random, Sequential};

/// The Enterprise Storage Group's workloads.
#[rustfmt::skip]
pub const WORKLOADS: [Workload; 10] = [
    Workload { name: "4K OLTP", kinds: &[(8, 100.0, 0.67, Random)],
               sas: [-11.0, -13.0, -5.0], sata: [-10.0, -10.0, -7.0] },
    Workload {
        name: "File Server",
        kinds: &[(1, 10.0, 0.8, Random), (2, 5.0, 0.8, Random), (4, 5.0, 0.8, Random), (8, 60.0, 0.8, Random),
                 (16, 2.0, 0.8, Random), (32, 4.0, 0.8, Random), (64, 4.0, 0.8, Random), (128, 10.0, 0.8, Random)],
        sas: [-19.0, -19.0, -14.0], sata: [-21.0, -22.0, -18.0],
    },
    Workload {
        name: "Web Server",
        kinds: &[(1, 22.0, 1.0, Random), (2, 15.0, 1.0, Random), (4, 8.0, 1.0, Random), (8, 23.0, 1.0, Random),
                 (16, 15.0, 1.0, Random), (32, 2.0, 1.0, Random), (64, 6.0, 1.0, Random),
                 (128, 7.0, 1.0, Random), (256, 1.0, 1.0, Random), (1024, 1.0, 1.0, Random)],
        sas: [-20.0, -20.0, -20.0], sata: [-22.0, -21.0, -23.0],
    },
    Workload { name: "4K random read", kinds: &[(8, 100.0, 1.0, Random)],
               sas: [-10.0, -10.0, -10.0], sata: [-12.0, -10.0, -11.0] },
    Workload { name: "4K random write", kinds: &[(8, 100.0, 0.0, Random)],
               sas: [-15.0, -9.0, 2.0], sata: [-13.0, -11.0, -3.0] },
    Workload { name: "512K sequential write", kinds: &[(1024, 100.0, 0.0, Sequential)],
               sas: [-37.0, -37.0, -51.0], sata: [-82.0, -58.0, 13.0] },
    Workload { name: "512K sequential read", kinds: &[(1024, 100.0, 1.0, Sequential)],
               sas: [-21.0, -21.0, -11.0], sata: [-10.0, -10.0, -1.0] },
    Workload { name: "Media Server", kinds: &[(64, 100.0, 1.0, Sequential)],
               sas: [-26.0, -26.0, -35.0], sata: [-15.0, -16.0, -32.0] },
    Workload {
        name: "Exchange data",
        kinds: &[(8, 90.0, 0.73, Random), (8, 7.0, 1.0, Sequential), (8, 3.0, 0.0, Sequential)],
        sas: [-10.0, -10.0, -5.0], sata: [-10.0, -8.0, -19.0],
    },
    Workload { name: "Exchange logs", kinds: &[(128, 100.0, 0.0, Sequential)],
               sas: [-41.0, -42.0, -33.0], sata: [-49.0, -76.0, -43.0] },
];

fn esg(settings: &Settings) -> Report {
    let mut report = Report::new("xyratex esg", "IOPS with chunks of 16 KB against 64 KB");
    let cases = [
        (TAKEN, "with the cache, requests at any sector"),
        (Choices { align: Bytes(4096), ..TAKEN }, "with the cache, requests at multiples of 4 KB"),
        (Choices { command_ms: 0.0, ..TAKEN }, "with the cache, requests at any sector, commands without time"),
        (
            Choices { joins_reads: true, ..TAKEN },
            "with the cache, requests at any sector, adjacent chunks of a read as one command",
        ),
        (Choices { is_cached: false, ..TAKEN }, "without a cache, requests at any sector"),
    ];
    for (choices, title) in cases {
        if let Err(error) = add(&mut report, choices, title, settings) {
            report.miss(format!("the simulation could not be run: {error}"));
        }
    }
    explain(&mut report);
    report
}

/// Adds a table, and the checks where the choices are those taken.
fn add(report: &mut Report, choices: Choices, title: &str, settings: &Settings) -> Result<(), Error> {
    let disks = [presets::cheetah_15k7(), presets::constellation_es()]
        .map(|disk| presets::with_commands(disk, choices.command_ms));
    let points: Vec<(usize, &DiskSpec)> =
        (0..WORKLOADS.len()).flat_map(|index| disks.iter().map(move |disk| (index, disk))).collect();
    let found = run_all(&points, 0, |&(index, disk)| change(&WORKLOADS[index], disk, choices, settings))?;
    let mut table = Table::new(
        format!("Change of IOPS from 64 to 16 KB, %, {title}; the paper's first controller"),
        "workload",
        ["SAS", "SATA"],
    );
    let mut rows_less = 0;
    let mut within = 0;
    for (workload, found) in WORKLOADS.iter().zip(found.chunks(2)) {
        let [sas, sata] = [found[0], found[1]];
        table.row(workload.name, vec![Cell::points(sas, workload.sas[0], 0), Cell::points(sata, workload.sata[0], 0)]);
        rows_less += usize::from(sas < 0.0 && sata < 0.0);
        within += [(sas, workload.sas), (sata, workload.sata)].iter().filter(|(it, of)| is_within(*it, of)).count();
        if choices == TAKEN {
            report.check(
                format!("{}: less", workload.name),
                "fewer IOPS with SAS and SATA",
                format!("{sas:+.0} % and {sata:+.0} %"),
                sas < 0.0 && sata < 0.0,
            );
        }
    }
    report.tables.push(table);
    let all = 2 * WORKLOADS.len();
    if choices == TAKEN {
        report.check(
            "changes within those of the paper's three controllers, 2 points around",
            format!("all {all}"),
            format!("{within} of {all}"),
            within == all,
        );
    } else if (Choices { joins_reads: false, ..choices }) == TAKEN {
        report.given(
            "the same, adjacent chunks of a read as one command: less",
            "every row",
            format!("{rows_less} of {}, and {within} of {all} changes within the controllers'", WORKLOADS.len()),
            rows_less == WORKLOADS.len(),
        );
    }
    Ok(())
}

/// Whether a change is between the least and the greatest of the paper's, or 2 points from that.
fn is_within(change: f64, paper: &[f64; 3]) -> bool {
    let (low, high) = paper.iter().fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(*it), high.max(*it)));
    (low - 2.0..=high + 2.0).contains(&change)
}

/// The change of IOPS in per cent.
fn change(workload: &Workload, disk: &DiskSpec, choices: Choices, settings: &Settings) -> Result<f64, Error> {
    let mut bytes_per_second = [0.0; 2];
    for (found, chunk) in bytes_per_second.iter_mut().zip(CHUNKS) {
        let size = if settings.grid == Grid::Full { CACHE_FULL } else { CACHE_REDUCED };
        let cache = choices.is_cached.then_some(CacheSpec { size, hit_us: HIT_US });
        // What is joined is joined in the controller; its commands are the disks'.
        let array = ArraySpec {
            merges: false,
            joins_reads: choices.joins_reads,
            cache,
            ..ArraySpec::new(disk.clone(), DISKS, LEVEL, chunk)
        };
        let mut system = System::new(&[array])?;
        let components = workload.kinds.iter().map(|kind| component(*kind, choices)).collect::<Result<_, _>>()?;
        let mut mix = Mix::new(components, system.geometry(0).capacity(), settings.seed)?;
        let requests = if settings.grid == Grid::Full { 20_000 } else { 4000 };
        let rule = StopRule::exactly(warm_up(workload, cache), requests);
        *found = system.run(&mut mix, DEPTH, &rule)?.megabytes_per_second();
    }
    Ok(100.0 * (bytes_per_second[1] / bytes_per_second[0] - 1.0))
}

/// Requests until a cache has been filled twice.
fn warm_up(workload: &Workload, cache: Option<CacheSpec>) -> u64 {
    let written = |&(sectors, percent, reads, _): &Kind| (sectors * 512) as f64 * percent / 100.0 * (1.0 - reads);
    let per_request: f64 = workload.kinds.iter().map(written).sum();
    let fills = cache.filter(|_| per_request > 0.0).map_or(0.0, |cache| 2.0 * cache.size.0 as f64 / per_request);
    500 + fills as u64
}

fn component((sectors, weight, reads, place): Kind, choices: Choices) -> Result<Component, Error> {
    let sizes = Sizes::fixed(Bytes(sectors * 512))?;
    let pattern = if place == Sequential { Pattern::Shared } else { Pattern::Random { align: choices.align } };
    Ok(Component { weight, sizes, reads, pattern })
}

fn explain(report: &mut Report) {
    report.method(
        "RAID 5 of 5+1, 16 requests at a time, disks like a 15 000 rpm SAS and a 7200 rpm SATA one, 0.1 ms a command. \
         The paper's columns are three controllers; its first is beside.",
    );
    report.method(format!(
        "The cache is the engine's: its code decides what is taken in, joined and written out, and that whole stripes \
         go through. It holds {} MiB, an answer from it takes {HIT_US} us, and it \
         is filled twice before a run counts.",
        CACHE_FULL.0 >> 20
    ));
    report.choice(
        "Write commands are coalesced, within a stripe and over several; reads are not: \"for each stripe read\" the \
         drives get requests of their own, so each chunk that a read needs is a command, also where chunks are \
         adjacent on a disk. The paper does not say so more clearly than that, and the sign of one row rests on it: \
         joined, as the engine has them, sequential reads of 512 KB lose nothing, and the web server loses a little \
         less. This reading was chosen after that row had been seen; the checks have both.",
    );
    report.choice(
        "The controllers' caches hold 1 GB. Sequential writes of 64 KB depend on how much the cache holds: when it is \
         nearly full, stripes are written before they are whole. From 16 to 64 MiB \
         Exchange logs changed by anything from -49 % to +37 %; random requests hardly depend on it.",
    );
    report.choice(
        "The time of a command is not in the paper; without any a disk goes on from one chunk to the next \
        without losing a turn, and sequential reads lose nothing.",
    );
    report.choice(
        "Requests begin at any sector, as the load generator has them unless told otherwise; at multiples of \
        4 KB few requests cross a chunk, and small random ones do not change.",
    );
    let failed: Vec<String> = report.failed().map(|check| check.what.trim_end_matches(": less").to_owned()).collect();
    if !failed.is_empty() {
        report.miss(format!(
            "{}. The paper ascribes its drops to coalescing and the cache of its controllers, which are not the \
             engine's.",
            failed.join("; ")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Grid, Settings, run};
    use super::WORKLOADS;

    #[test]
    fn workloads_are_the_papers() {
        for workload in &WORKLOADS {
            let shares: f64 = workload.kinds.iter().map(|kind| kind.1).sum();
            assert!((shares - 100.0).abs() < 1e-9, "{}: {shares} %", workload.name);
        }
    }

    /// Requests that need more chunks take more disk operations: all reads lose, and what is random.
    #[test]
    fn small_chunks_cost_iops() {
        let report = run("xyratex", "esg", &Settings { seed: 1, grid: Grid::Reduced }).expect("it is there");
        let random = ["4K random read", "4K OLTP", "Web Server", "File Server"];
        for name in random.into_iter().chain(["512K sequential read", "Media Server"]) {
            let check =
                report.checks.iter().find(|check| check.what.starts_with(name)).expect("every workload has a check");
            assert!(check.holds, "{check:?}");
        }
    }
}
