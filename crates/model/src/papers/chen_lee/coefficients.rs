//! Table 2: striping units as shares of disks' performance products, and what the choices that the paper leaves open
//! change of them.

use super::super::report::{Cell, Report, Table};
use super::super::{Grid, Settings};
use super::experiment::{Direction, Measured, Open, Plan, USED, Workload, measure};
use super::rules::{self, Best, best, of_grid, ranges, scores, slope};
use crate::mech::queue::Discipline;
use crate::mech::sizes::{Choices, TooSmall};
use crate::mech::{Disk, DiskSpec, Phases, StopRule, WriteRule, presets};

/// The paper's array has so many disks.
pub(super) const MEMBERS: u8 = 17;

/// Ranges of good units: of reads with 95 % of the maximum, of writes with 90 % (figure 6).
pub(super) const READ_THRESHOLD: f64 = 0.95;
pub(super) const WRITE_THRESHOLD: f64 = 0.90;

/// Figure 4b's concurrency.
const FOUR: usize = 4;

/// Of how many seeds the spread is shown.
const SEEDS: u64 = 3;

/// Table 2's columns.
pub(super) const COLUMNS: [&str; 5] = ["S_r", "Z_r", "S_w", "Z_w", "Z_rw"];

/// Table 2's rows.
pub(super) const TABLE_2: [(&str, [f64; 5]); 4] = [
    ("17 Lightnings", [0.22, 0.73, 0.051, 0.18, 0.48]),
    ("17 Elite3", [0.30, 0.67, 0.066, 0.19, 0.58]),
    ("17 Wren4", [0.22, 0.68, 0.051, 0.17, 0.46]),
    ("average", [0.25, 0.69, 0.056, 0.18, 0.51]),
];

/// The Lightning's best units in KB with their guarantees: for reads, for writes, for any mix (4.1, 4.2).
const BEST: [(&str, u64, f64); 3] = [("reads", 24, 0.70), ("writes", 6, 0.73), ("any mix", 16, 0.60)];

/// What is read from one disk's throughputs.
#[derive(Clone, Debug)]
pub(super) struct Coefficients {
    /// In the order of [`COLUMNS`].
    pub(super) values: [f64; 5],
    /// In the order of [`BEST`].
    pub(super) best: [Best; 3],
    /// Whether the lines of S_r and S_w stay within all ranges.
    within: [bool; 2],
}

impl Coefficients {
    pub(super) fn of(disk: &DiskSpec, measured: &Measured) -> Self {
        let product = Disk::new(disk.clone()).expect("the paper's disks are good").performance_product_kib(USED);
        let best = [Some(Direction::Read), Some(Direction::Write), None].map(|direction| best_of(measured, direction));
        let (read, reads_within) = slope(&ranges(measured, Direction::Read, READ_THRESHOLD));
        let (write, writes_within) = slope(&ranges(measured, Direction::Write, WRITE_THRESHOLD));
        let [reads, writes, mix] = best.map(|best| best.unit);
        let values = [read, reads, write, writes, mix].map(|kilobytes| kilobytes / product);
        Self { values, best, within: [reads_within, writes_within] }
    }
}

/// The measured unit that guarantees most to all workloads of a direction, or to all.
pub(super) fn best_of(measured: &Measured, direction: Option<Direction>) -> Best {
    let considered = |workload: &Workload| direction.is_none_or(|direction| workload.direction == direction);
    best(&of_grid(&scores(measured, considered)))
}

/// The runs of a set of disks.
pub(super) fn plan(settings: &Settings, disks: Vec<DiskSpec>, members: u8) -> Plan {
    let (units, concurrencies, stop) = match settings.grid {
        Grid::Full => (
            full_units(),
            vec![1, 2, 3, 4, 6, 8, 10, 12, 16, 20],
            StopRule { requests_min: 2000, ..StopRule::default() },
        ),
        Grid::Reduced => (
            vec![2, 4, 6, 8, 16, 24, 32, 48, 128],
            vec![1, 4, 20],
            StopRule { precision: 0.1, requests_min: 240, warm_up: 40, ..StopRule::default() },
        ),
    };
    Plan { disks, members, units, concurrencies, open: Open::default(), stop, seed: settings.seed }
}

/// Every KB or two where the best units are, and coarser on to 1 MB: throughput is smooth there over the unit's
/// logarithm.
fn full_units() -> Vec<u64> {
    let fine = (1..=10).chain((12..=32).step_by(2));
    fine.chain([36, 40, 44, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024]).collect()
}

pub(super) fn run(plan: &Plan) -> Vec<Measured> {
    measure(plan).expect("the paper's arrays and workloads are good")
}

pub(super) fn table2(settings: &Settings) -> Report {
    let disks = match settings.grid {
        Grid::Full => vec![presets::lightning(), presets::elite3(), presets::wren4()],
        Grid::Reduced => vec![presets::lightning()],
    };
    let plan = plan(settings, disks, MEMBERS);
    let measured = run(&plan);
    let found: Vec<Coefficients> =
        plan.disks.iter().zip(&measured).map(|(disk, measured)| Coefficients::of(disk, measured)).collect();
    let mut report = Report::new("chen-lee table2", "Concurrency-slope and zero-knowledge coefficients, 17 disks");
    let mut table = Table::new("Coefficients", "disks", COLUMNS);
    let mut near = 0;
    for ((name, paper), coefficients) in TABLE_2.iter().zip(&found) {
        table.row(*name, cells(&coefficients.values, paper));
        near +=
            coefficients.values.iter().zip(paper).filter(|(value, paper)| is_within(**value, **paper, 0.15)).count();
    }
    if found.len() == 3 {
        let averages: [f64; 5] =
            std::array::from_fn(|column| found.iter().map(|of| of.values[column]).sum::<f64>() / 3.0);
        let (name, paper) = TABLE_2[3];
        table.row(name, cells(&averages, &paper));
        report.check("coefficients within 15 % of the paper's", "all 15", near.to_string(), near == 15);
        let near = averages.iter().zip(paper).filter(|(value, paper)| is_within(**value, *paper, 0.10)).count();
        report.check("averages within 10 % of the paper's", "all 5", near.to_string(), near == 5);
    }
    report.tables.push(table);
    lightning(&mut report, &measured[0], &found[0]);
    spread(&mut report, &plan, &found[0]);
    notes(&mut report, &plan, &measured);
    report
}

fn cells(values: &[f64; 5], paper: &[f64; 5]) -> Vec<Cell> {
    values.iter().zip(paper).map(|(value, paper)| Cell::beside(*value, *paper, 3)).collect()
}

fn is_within(value: f64, paper: f64, share: f64) -> bool {
    (value / paper - 1.0).abs() <= share
}

/// What the text says of the Lightning.
fn lightning(report: &mut Report, measured: &Measured, found: &Coefficients) {
    let columns = ["best unit, KB", "guarantees, %", "the paper's unit guarantees here, %"];
    let mut table = Table::new("Lightning: the striping unit when nothing else is known", "requests", columns);
    for ((name, unit, guarantee), best) in BEST.iter().zip(&found.best) {
        let direction =
            [("reads", Direction::Read), ("writes", Direction::Write)].iter().find(|of| of.0 == *name).map(|of| of.1);
        let all = scores(measured, |workload| direction.is_none_or(|direction| workload.direction == direction));
        let of_paper = rules::guarantee(&all, *unit).expect("the paper's unit is measured");
        let percent = [best.guarantee, of_paper].map(|share| Cell::points(share * 100.0, guarantee * 100.0, 0));
        let [guarantees, of_paper] = percent;
        table.row(*name, vec![Cell::beside(best.unit, *unit as f64, 0), guarantees, of_paper]);
        report.check(
            format!("best unit for {name}"),
            format!("{unit} KB, {:.0} % within 5 points", guarantee * 100.0),
            format!("{:.0} KB, {:.0} %", best.unit, best.guarantee * 100.0),
            is_within(best.unit, *unit as f64, 0.1) && (best.guarantee - guarantee).abs() <= 0.05,
        );
    }
    report.tables.push(table);
    for (direction, least, name) in [(Direction::Read, 0.95, "reads"), (Direction::Write, 0.93, "writes")] {
        let lowest = ranges(measured, direction, 1.0).iter().map(|range| range.best.guarantee).fold(1.0, f64::min);
        report.check(
            format!("guarantee of the best unit at known concurrency, {name}"),
            format!("at least {:.0} %", least * 100.0),
            format!("{:.1} %", lowest * 100.0),
            lowest >= least - 0.005,
        );
    }
    let at_four = |workload: &Workload| workload.direction == Direction::Read && workload.concurrency == FOUR;
    let four = best(&of_grid(&scores(measured, at_four)));
    report.check(
        "reads at concurrency 4",
        "40 KB, at least 98 %",
        format!("{:.0} KB, {:.1} %", four.unit, four.guarantee * 100.0),
        (32.0..=48.0).contains(&four.unit) && four.guarantee >= 0.975,
    );
    let [reads, writes] = found.within.map(|within| if within { "yes" } else { "no" });
    report.check(
        "the lines of S_r and S_w stay within every range",
        "both",
        format!("reads {reads}, writes {writes}"),
        found.within == [true; 2],
    );
}

/// How far the Lightning's coefficients and best units are apart over several seeds, of which the first is known.
fn spread(report: &mut Report, plan: &Plan, first: &Coefficients) {
    let mut found = vec![first.clone()];
    for more in 1..SEEDS {
        let plan = Plan { disks: vec![plan.disks[0].clone()], seed: plan.seed + more, ..plan.clone() };
        found.push(Coefficients::of(&plan.disks[0], &run(&plan)[0]));
    }
    let range = |value: &dyn Fn(&Coefficients) -> f64, decimals: usize| {
        let values = found.iter().map(value);
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(it), high.max(it)));
        Cell::text(format!("{low:.decimals$} to {high:.decimals$}"))
    };
    let mut table = Table::new(format!("Lightning, lowest to highest of {SEEDS} seeds"), "", COLUMNS);
    let cells = (0..COLUMNS.len()).map(|column| range(&|found| found.values[column], 3));
    table.row("coefficients", cells.collect());
    report.tables.push(table);
    let columns = BEST.iter().flat_map(|best| [format!("{}, KB", best.0), "which guarantees, %".to_owned()]);
    let mut table = Table::new(format!("Lightning, best units, lowest to highest of {SEEDS} seeds"), "", columns);
    let cells = (0..BEST.len()).flat_map(|best| {
        [range(&|found| found.best[best].unit, 0), range(&|found| found.best[best].guarantee * 100.0, 0)]
    });
    table.row("best units", cells.collect());
    report.tables.push(table);
}

/// How it was done, and what may be why something was missed.
fn notes(report: &mut Report, plan: &Plan, measured: &[Measured]) {
    let operations: u64 = measured.iter().map(|measured| measured.operations).sum();
    let imprecise: u64 = measured.iter().map(|measured| measured.imprecise).sum();
    report.method(format!(
        "{:.0} million disk operations; runs end when the mean response time is known to {:.0} % at 95 %, after at \
         least {} requests ({imprecise} did not get there). Striping units: {} from {} KB to {} KB; concurrencies \
         {:?}. The n-th request is the same in all runs of a distribution.",
        operations as f64 / 1e6,
        plan.stop.precision * 100.0,
        plan.stop.requests_min,
        plan.units.len(),
        plan.units[0],
        plan.units[plan.units.len() - 1],
        plan.concurrencies
    ));
    report.method(
        "The best units are measured ones. A range goes from the smallest to the largest unit that is good enough, \
         with straight lines over the unit's logarithm between measured ones; the line of S starts at half a KB at \
         concurrency 1 and has the least slope that reaches all ranges.",
    );
    report.choice(
        "Sizes below 1 KB are drawn again and the deviation follows the adjusted mean; the writes of a parity stripe \
         wait for its own reads alone; no skew, so that a transfer that crosses a cylinder waits for sector 0; first \
         come, first served. `chen-lee choices` shows what others change.",
    );
    if report.failed().next().is_some() {
        report.miss(
            "Reads agree with the paper. For writes small units are not as far ahead here: for the paper's best units \
             and guarantees, writes at concurrency 1 would have to fall to about 73 % of their maximum at 6 KB and 60 \
             % at 16 KB; here they fall to about 83 % and 68 %. So the unit that guarantees most to writes is larger, \
             and with it the one for any mix, which the track of 24 KB attracts; at the paper's own units the \
             guarantees are met within a few points. Its simulator may have made partial stripes dearer: with \
             reconstruct writes alone Z_w is half of the paper's, with the fewest operations a third to a half above \
             it (`chen-lee choices`). Of what the text leaves open (order of phases, which sizes there are, skew, \
             queueing, and whether a unit that is written in part counts as one to read) nothing accounts for it. What \
             is missing at concurrency 1 is 0.3 to 0.55 of a revolution for each write, on all three disks, so it is \
             no time that depends on the unit. Section 4 says that throughput rises with concurrency at any unit; here \
             it falls at some from 1 to 4 (fig3). Where writes wait for all reads of their request it never falls, but \
             Z_w is further from the paper's.",
        );
    }
}

pub(super) fn choices(settings: &Settings) -> Report {
    let usual = Open::default();
    let sizes = |too_small, nominal_deviation| Open { sizes: Choices { too_small, nominal_deviation }, ..usual };
    let all = [
        ("as in the reports", usual),
        ("writes wait for all reads of their request", Open { phases: Phases::Request, ..usual }),
        ("skewed cylinders", Open { skewed: true, ..usual }),
        ("shortest seek first", Open { discipline: Discipline::Sstf, ..usual }),
        ("elevator", Open { discipline: Discipline::Elevator, ..usual }),
        ("sizes below 1 KB become 1 KB", sizes(TooSmall::BecomeOne, false)),
        ("the deviation stays the nominal mean", sizes(TooSmall::DrawAgain, true)),
        ("the method by whole units", Open { rule: WriteRule::FewestUnits, ..usual }),
        ("read-modify-write only", Open { rule: WriteRule::ReadModifyWrite, ..usual }),
        ("reconstruct writes only", Open { rule: WriteRule::Reconstruct, ..usual }),
        ("other requests for every unit", Open { independent: true, ..usual }),
    ];
    let mut report =
        Report::new("chen-lee choices", "What the choices that the paper leaves open change, 17 Lightnings");
    let mut table = Table::new("Coefficients of the Lightning", "choice", COLUMNS);
    let mut guarantees = Table::new("Guarantees, %", "choice", BEST.map(|best| best.0));
    let mut plan = plan(settings, vec![presets::lightning()], MEMBERS);
    plan.units = vec![1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024];
    plan.concurrencies = vec![1, 2, 4, 10, 20];
    if settings.grid == Grid::Reduced {
        plan.units = vec![2, 6, 16, 24, 64];
        plan.concurrencies = vec![1, 20];
    }
    for (name, open) in all {
        plan.open = open;
        let found = Coefficients::of(&plan.disks[0], &run(&plan)[0]);
        table.row(name, cells(&found.values, &TABLE_2[0].1));
        let percent =
            found.best.iter().zip(BEST).map(|(best, paper)| Cell::points(best.guarantee * 100.0, paper.2 * 100.0, 0));
        guarantees.row(name, percent.collect());
    }
    report.tables.extend([table, guarantees]);
    report.method(format!(
        "A coarser grid than table 2's: units {:?} KB, concurrencies {:?}.",
        plan.units, plan.concurrencies
    ));
    report.choice("Each row changes one choice. None is made for a single number of the paper's.");
    report
}
