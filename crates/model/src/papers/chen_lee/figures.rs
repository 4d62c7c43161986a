//! Figures 2 to 7.

use super::super::report::{Cell, Report, Table};
use super::super::{Grid, Settings};
use super::coefficients::{Coefficients, MEMBERS, READ_THRESHOLD, TABLE_2, WRITE_THRESHOLD, best_of, plan, run};
use super::experiment::{Direction, Measured, SIZES, USED, Workload};
use super::rules::{Range, ranges};
use crate::figure::{Axis, Figure, Series};
use crate::mech::presets;
use crate::mech::sizes::{Choices, Sizes};
use crate::mech::stats::regression;

/// The concurrencies that have a panel.
const PANELS: [usize; 3] = [1, 4, 20];

/// Figure 7's numbers of disks.
const MEMBERS_FULL: [u8; 5] = [5, 9, 17, 25, 33];
const MEMBERS_REDUCED: [u8; 2] = [5, 17];

pub(super) fn fig2(settings: &Settings) -> Report {
    panels(
        "fig2",
        "Read throughput for a range of sizes and concurrencies, 17 Lightnings",
        Direction::Read,
        false,
        settings,
    )
}

pub(super) fn fig3(settings: &Settings) -> Report {
    panels(
        "fig3",
        "Write throughput for a range of sizes and concurrencies, 17 Lightnings",
        Direction::Write,
        false,
        settings,
    )
}

pub(super) fn fig4(settings: &Settings) -> Report {
    panels("fig4", "Read throughput as a share of the maximum, 17 Lightnings", Direction::Read, true, settings)
}

pub(super) fn fig5(settings: &Settings) -> Report {
    panels("fig5", "Write throughput as a share of the maximum, 17 Lightnings", Direction::Write, true, settings)
}

/// What the paper's text says of a panel: units that have at least so many per cent of any curve's maximum.
fn papers(direction: Direction, concurrency: usize) -> Vec<Series> {
    let point = |unit, share| Series::points(format!("the paper: {share} % or more"), vec![(unit, f64::from(share))]);
    match (direction, concurrency) {
        (Direction::Read, 4) => vec![point(24.0, 70), point(40.0, 98)],
        (Direction::Read, _) => vec![point(24.0, 70)],
        (Direction::Write, _) => vec![point(6.0, 73)],
    }
}

/// Throughputs of one direction by striping unit: a table and a drawing for each concurrency.
fn panels(what: &str, title: &str, direction: Direction, is_share: bool, settings: &Settings) -> Report {
    let plan = plan(settings, vec![presets::lightning()], MEMBERS);
    let measured = &run(&plan)[0];
    let names = Sizes::chen_lee(Choices::default()).map(|(name, _)| name);
    let label = if is_share { "% of maximum throughput" } else { "MB/s" };
    let mut report = Report::new(&format!("chen-lee {what}"), title);
    for concurrency in PANELS {
        let curves: Vec<Vec<f64>> =
            (0..SIZES).map(|size| curve(measured, Workload { direction, size, concurrency }, is_share)).collect();
        let mut table = Table::new(format!("Concurrency {concurrency}, {label}"), "unit, KB", names);
        for (index, unit) in measured.units.iter().enumerate() {
            let decimals = if is_share { 0 } else { 2 };
            table.row(unit.to_string(), curves.iter().map(|curve| Cell::number(curve[index], decimals)).collect());
        }
        report.tables.push(table);
        let points = |curve: Vec<f64>| measured.units.iter().map(|&unit| unit as f64).zip(curve).collect();
        let mut series: Vec<Series> =
            names.iter().zip(curves).map(|(name, curve)| Series::line(*name, points(curve))).collect();
        if is_share {
            series.extend(papers(direction, concurrency));
        }
        let y = if is_share { Axis::linear(label).over(0.0, 100.0) } else { Axis::log10(label) };
        let name = format!("chen-lee-{what}-{concurrency}");
        let above = format!("{title}: concurrency {concurrency}");
        report.figures.push(Figure::new(&name, &above, Axis::log2("striping unit, KB"), y, series));
    }
    // The shares are of the same runs.
    if !is_share {
        trends(&mut report, measured, direction);
    }
    report
}

fn curve(measured: &Measured, workload: Workload, is_share: bool) -> Vec<f64> {
    let curve = &measured.curves[&workload];
    let most = curve.iter().copied().fold(0.0, f64::max);
    if is_share { curve.iter().map(|value| 100.0 * value / most).collect() } else { curve.clone() }
}

/// What section 4 observes of figures 2 and 3.
fn trends(report: &mut Report, measured: &Measured, direction: Direction) {
    let rises = |less: &[f64], more: &[f64]| less.iter().zip(more).filter(|(less, more)| more >= less).count();
    let at = |size, concurrency| &measured.curves[&Workload { direction, size, concurrency }][..];
    let (mut holds, mut all) = (0, 0);
    for pair in PANELS.windows(2) {
        for size in 0..SIZES {
            holds += rises(at(size, pair[0]), at(size, pair[1]));
            all += measured.units.len();
        }
    }
    report.check(
        "throughput rises with concurrency, at every unit",
        "always",
        format!("{holds} of {all}"),
        holds == all,
    );
    let (mut holds, mut all) = (0, 0);
    for concurrency in PANELS {
        for size in 1..SIZES {
            holds += rises(at(size - 1, concurrency), at(size, concurrency));
            all += measured.units.len();
        }
    }
    report.check(
        "throughput rises with the request size, at every unit",
        "always",
        format!("{holds} of {all}"),
        holds == all,
    );
    let (mut holds, mut all) = (0, 0);
    for (workload, writes) in measured.curves.iter().filter(|(workload, _)| workload.direction == Direction::Write) {
        let reads = &measured.curves[&Workload { direction: Direction::Read, ..*workload }];
        holds += rises(writes, reads);
        all += writes.len();
    }
    report.check("reads are faster than writes, at every unit", "always", format!("{holds} of {all}"), holds == all);
}

pub(super) fn fig6(settings: &Settings) -> Report {
    let plan = plan(settings, vec![presets::lightning()], MEMBERS);
    let measured = &run(&plan)[0];
    let coefficients = Coefficients::of(&plan.disks[0], measured);
    let product = coefficients.best[0].unit / coefficients.values[1];
    let title = "Good striping units by concurrency, 17 Lightnings";
    let mut report = Report::new("chen-lee fig6", title);
    let cases = [("reads", Direction::Read, READ_THRESHOLD, 0), ("writes", Direction::Write, WRITE_THRESHOLD, 2)];
    let mut series = Vec::new();
    for (name, direction, threshold, coefficient) in cases {
        let ranges = ranges(measured, direction, threshold);
        let columns = ["from, KB", "to, KB", "best, KB", "which guarantees, %"];
        let mut table =
            Table::new(format!("{name}: units with at least {:.0} %", threshold * 100.0), "concurrency", columns);
        for Range { concurrency, from, to, best } in &ranges {
            let cells = vec![
                Cell::number(*from, 1),
                Cell::number(*to, 1),
                Cell::number(best.unit, 0),
                Cell::number(best.guarantee * 100.0, 1),
            ];
            table.row(concurrency.to_string(), cells);
        }
        report.tables.push(table);
        let points = |of: fn(&Range) -> f64| ranges.iter().map(|range| (range.concurrency as f64, of(range))).collect();
        series.push(Series::line(format!("{name}, smallest"), points(|range| range.from)));
        series.push(Series::line(format!("{name}, largest"), points(|range| range.to)));
        let line = |concurrency: &usize| {
            let more = (*concurrency - 1) as f64;
            (*concurrency as f64, coefficients.values[coefficient] * product * more + 0.5)
        };
        series.push(Series::dashed(format!("{name}, line"), plan.concurrencies.iter().map(line).collect()));
        let papers = |concurrency: &usize| {
            let more = (*concurrency - 1) as f64;
            (*concurrency as f64, TABLE_2[0].1[coefficient] * product * more + 0.5)
        };
        series
            .push(Series::points(format!("{name}, the paper's line"), plan.concurrencies.iter().map(papers).collect()));
        let falls = ranges.windows(2).filter(|pair| pair[1].best.unit < pair[0].best.unit).count();
        let [first, last] = [ranges.first(), ranges.last()].map(|range| range.map_or(0.0, |range| range.best.unit));
        report.check(
            format!("the best unit for {name} rises with concurrency"),
            "it never falls, and is larger at the end",
            format!("{first} to {last} KB, falls {falls} times"),
            falls == 0 && last > first,
        );
    }
    let axes = (Axis::linear("concurrency"), Axis::log2("striping unit, KB"));
    report.figures.push(Figure::new("chen-lee-fig6", title, axes.0, axes.1, series));
    report
}

pub(super) fn fig7(settings: &Settings) -> Report {
    let all: &[u8] = if settings.grid == Grid::Full { &MEMBERS_FULL } else { &MEMBERS_REDUCED };
    let title = "The coefficients Z by the number of disks, Lightnings";
    let mut report = Report::new("chen-lee fig7", title);
    let mut table =
        Table::new("Coefficients and what their units guarantee", "disks", ["Z_r", "%", "Z_w", "%", "Z_rw", "%"]);
    let mut curves: [Vec<(f64, f64)>; 3] = Default::default();
    for &members in all {
        let mut plan = plan(settings, vec![presets::lightning()], members);
        plan.concurrencies.retain(|concurrency| [1, 2, 4, 10, 20].contains(concurrency));
        let measured = &run(&plan)[0];
        let disk = crate::mech::Disk::new(presets::lightning()).expect("the paper's disks are good");
        let product = disk.performance_product_kib(USED);
        let mut cells = Vec::new();
        for (curve, direction) in curves.iter_mut().zip([Some(Direction::Read), Some(Direction::Write), None]) {
            let best = best_of(measured, direction);
            curve.push((f64::from(members), best.unit / product));
            cells.extend([Cell::number(best.unit / product, 3), Cell::number(best.guarantee * 100.0, 0)]);
        }
        table.row(members.to_string(), cells);
    }
    report.tables.push(table);
    let logarithms =
        |curve: &[(f64, f64)]| regression(&curve.iter().map(|(x, y)| (x.ln(), y.ln())).collect::<Vec<_>>());
    let [reads, writes, mix] = &curves;
    let falls = logarithms(reads);
    report.check(
        "Z_r's slope over the number of disks, both logarithmic",
        "-1/3 within 0.1",
        format!("{falls:.2}"),
        (falls + 1.0 / 3.0).abs() <= 0.1,
    );
    let rises = logarithms(writes);
    report.check("Z_w rises with the number of disks", "slope over 0", format!("{rises:.2}"), rises > 0.0);
    let shown: Vec<String> = mix.iter().map(|point| format!("{:.2}", point.1)).collect();
    let is_flat = mix.iter().all(|point| (point.1 - 0.5).abs() <= 0.1);
    report.check("Z_rw is 0.5 for any number of disks", "within 0.1", shown.join(", "), is_flat);
    report.method("Units and runs as in table 2, at concurrencies 1, 2, 4, 10 and 20.");
    if report.failed().next().is_some() {
        report.miss(
            "Best units are measured ones, and a unit that divides the Lightning's track (24 KB) or is a multiple of \
             it does better than its neighbours, because tracks begin at one angle: Z goes in steps of that. For any \
             mix it is a step above the paper's up to 17 disks, as in table 2.",
        );
    }
    let names = ["Z_r", "Z_w", "Z_rw"];
    let mut series: Vec<Series> =
        names.into_iter().zip(curves).map(|(name, curve)| Series::line(name, curve)).collect();
    let papers = [1, 3, 4].map(|column| (f64::from(MEMBERS), TABLE_2[0].1[column]));
    series.push(Series::points("the paper, 17 Lightnings", papers.to_vec()));
    report.figures.push(Figure::new("chen-lee-fig7", title, Axis::log2("number of disks"), Axis::log2("Z"), series));
    report
}
