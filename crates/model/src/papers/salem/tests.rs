use super::super::report::{Cell, Report};
use super::super::{Settings, run};
use super::PAPER;

fn report(what: &str) -> Report {
    run(PAPER.name, what, &Settings::default()).expect("the paper has it")
}

/// Row `name` of table `index`.
fn row(report: &Report, index: usize, name: &str) -> Vec<f64> {
    let row = report.tables[index].rows.iter().find(|row| row.name == name).expect("the row is there");
    row.cells
        .iter()
        .filter_map(|cell| if let Cell::Number(number) = cell { Some(number.value) } else { None })
        .collect()
}

#[test]
fn every_check_of_every_figure_holds() {
    for item in PAPER.items {
        let report = report(item.name);
        assert!(!report.checks.is_empty(), "{}", report.name);
        assert_eq!(report.failed().collect::<Vec<_>>(), Vec::<&super::super::report::Check>::new(), "{}", report.name);
        assert_eq!(report.figures.len(), 1);
    }
}

#[test]
fn section_4_has_the_numbers_of_the_text() {
    let blocks = report("fig4a");
    assert!((row(&blocks, 0, "1 KB")[9] - 13.0).abs() < 0.5);
    assert!(row(&blocks, 1, "1 KB")[9] < 0.0, "the other data space does not give them");
    let parts = report("fig4b");
    let positioning = row(&parts, 0, "seek and rotation");
    assert!((positioning[0] - 29.7).abs() < 0.05 && (positioning[9] - 25.3).abs() < 0.05, "{positioning:?}");
    for name in ["seek", "rotation", "transfer", "processor"] {
        assert_eq!(row(&parts, 0, name).len(), 10);
    }
}

#[test]
fn a_task_that_the_processor_bounds_gains_nothing_more() {
    let by_buffer = report("fig5a");
    assert_eq!(row(&by_buffer, 0, "128 KB"), [0.0; 10]);
    // 32.8 ms to process a block of 32 KB, and 39 to read it from one disk: seek 10.0, rotation 8.3, transfer 20.5,
    // processor 0.1.
    let (processing, reading) =
        (32.768, 7.0 + 43.0 * (1e8 / 372_736.0 / 3.0 - 1.0) / 1256.0 + 25.0 / 3.0 + 64.0 / 52.0 * 50.0 / 3.0 + 0.11);
    let capped = 100.0 * (reading - processing) / reading;
    assert!((row(&by_buffer, 0, "64 KB")[9] - capped).abs() < 1e-6);
}

#[test]
fn the_future_gains_what_figure_6_has() {
    let gains = row(&report("fig6"), 0, "future: 2 GB, 512 KB, 1 ns a byte");
    for (index, wanted) in [(0, 2.5), (3, 3.3), (5, 3.7)] {
        assert!((gains[index] - wanted).abs() < 0.05, "{gains:?}");
    }
}
