//! The paper's statements on a reduced grid: bounds that hold whatever the seed.

use super::super::report::Cell;
use super::super::{Grid, Settings, run};
use super::PAPER;
use super::coefficients::COLUMNS;
use super::experiment::{Direction, Measured, Workload};
use super::rules::{best, guarantee, of_grid, ranges, scores, slope};
use crate::mech::stats::regression;

const REDUCED: Settings = Settings { seed: 7, grid: Grid::Reduced };

#[test]
fn the_lightnings_coefficients_are_near_the_papers() {
    let report = run(PAPER.name, "table2", &REDUCED).unwrap();
    let values: Vec<f64> = report.tables[0].rows[0].cells.iter().map(number).collect();
    // The grid's units are a third apart, and Z_w is known to be above the paper's.
    let bounds = [(0.12, 0.36), (0.48, 0.97), (0.03, 0.09), (0.12, 0.30), (0.36, 0.73)];
    for ((name, value), (low, high)) in COLUMNS.iter().zip(values).zip(bounds) {
        assert!((low..=high).contains(&value), "{name} = {value}");
    }
    // Guarantees at the paper's own units: 70, 73 and 60 %.
    let rows: Vec<f64> = report.tables[1].rows.iter().map(|row| number(&row.cells[2])).collect();
    for (value, paper) in rows.into_iter().zip([70.0, 73.0, 60.0]) {
        assert!((value - paper).abs() <= 10.0, "{value} % instead of {paper} %");
    }
}

#[test]
fn the_best_unit_falls_with_the_number_of_disks_for_reads_and_not_for_writes() {
    let report = run(PAPER.name, "fig7", &REDUCED).unwrap();
    let rows: Vec<Vec<f64>> = report.tables[0].rows.iter().map(|row| row.cells.iter().map(number).collect()).collect();
    let [few, many] = &rows[..] else { panic!("two numbers of disks") };
    assert!(few[0] > many[0], "Z_r {} and {}", few[0], many[0]);
    assert!(few[2] <= many[2], "Z_w {} and {}", few[2], many[2]);
}

#[test]
fn figures_have_their_curves() {
    let report = run(PAPER.name, "fig5", &REDUCED).unwrap();
    assert_eq!(report.figures.len(), 3);
    for figure in &report.figures {
        assert!(figure.svg().starts_with("<svg"));
        let (papers, ours) = figure.series.split_last().unwrap();
        assert_eq!((ours.len(), &papers.points[..]), (5, &[(6.0, 73.0)][..]), "section 4: 6 KB have 73 % for writes");
    }
    assert!(report.checks.is_empty(), "its runs are figure 3's");
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let report = || run(PAPER.name, "fig6", &REDUCED).unwrap();
    assert_eq!(report(), report());
}

fn number(cell: &Cell) -> f64 {
    match cell {
        Cell::Number(number) => number.value,
        Cell::Text(text) => panic!("{text} is no number"),
    }
}

/// Two workloads at each concurrency: one that wants small units and one that wants large ones.
fn measured() -> Measured {
    let mut measured = Measured { units: vec![1, 2, 4, 8], ..Measured::default() };
    let mut add = |size, concurrency, curve: [f64; 4]| {
        measured.curves.insert(Workload { direction: Direction::Read, size, concurrency }, curve.to_vec());
    };
    add(0, 1, [10.0, 10.0, 8.0, 5.0]);
    add(1, 1, [2.0, 2.0, 2.0, 2.0]);
    add(0, 3, [50.0, 90.0, 100.0, 100.0]);
    add(1, 3, [100.0, 100.0, 98.0, 80.0]);
    measured
}

#[test]
fn a_unit_guarantees_the_lowest_share() {
    let measured = measured();
    let all = scores(&measured, |_| true);
    let expected = [0.5, 0.9, 0.8, 0.5];
    for ((_, score), expected) in of_grid(&all).into_iter().zip(expected) {
        assert!((score - expected).abs() < 1e-12, "{score} {expected}");
    }
    let best = best(&of_grid(&all));
    assert_eq!(best.unit, 2.0);
    assert_eq!(guarantee(&all, 4), Some(0.8));
    assert_eq!(guarantee(&all, 3), None);
}

#[test]
fn the_line_reaches_every_range_with_the_least_slope() {
    let ranges = ranges(&measured(), Direction::Read, 0.95);
    assert_eq!((ranges[0].from, ranges[0].to > 2.0 && ranges[0].to < 4.0), (1.0, true));
    // At concurrency 3: 95 % is half way, in the logarithm, from 90 at 2 to 100 at 4.
    assert!((ranges[1].from / 8f64.sqrt() - 1.0).abs() < 0.03, "{}", ranges[1].from);
    assert!((4.0..8.0).contains(&ranges[1].to), "{}", ranges[1].to);
    let (slope, is_within) = slope(&ranges);
    assert!((slope - (ranges[1].from - 0.5) / 2.0).abs() < 1e-12 && is_within);
}

#[test]
fn a_regression_finds_the_line() {
    assert!((regression(&[(1.0, 5.0), (2.0, 3.0), (3.0, 1.0)]) + 2.0).abs() < 1e-12);
}
