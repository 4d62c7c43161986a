use super::super::{Grid, Settings, run};
use super::{TABLE_1, bang, ranks, spearman};

#[test]
fn bang_is_the_papers_to_three_digits() {
    for row in &TABLE_1 {
        let found = bang(row.retrieval, row.additional);
        assert!((found - row.bang).abs() < 0.001, "{}: {found}", row.title());
    }
    assert!(TABLE_1.is_sorted_by(|more, less| more.bang > less.bang));
}

#[test]
fn table_2_is_the_papers_to_three_digits() {
    let report = run("hauser", "table2", &Settings::default()).expect("it is there");
    assert_eq!((report.checks.len(), report.failed().count()), (4, 0));
}

#[test]
fn rank_correlations_are_those_of_textbooks() {
    assert_eq!(ranks(&[0.3, 0.9, 0.5]), [3, 1, 2]);
    let up = [1.0, 2.0, 3.0, 4.0, 5.0];
    assert!((spearman(&up, &up) - 1.0).abs() < 1e-12);
    assert!((spearman(&up, &[5.0, 4.0, 3.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
    // One pair of neighbours exchanged: 1 - 6 * 2 / 120.
    assert!((spearman(&up, &[2.0, 1.0, 3.0, 4.0, 5.0]) - 0.9).abs() < 1e-12);
}

#[test]
fn the_simulation_has_the_papers_trends_but_for_raid_5() {
    let settings = Settings { grid: Grid::Reduced, ..Settings::default() };
    let report = run("hauser", "table1", &settings).expect("it is there");
    let trends = ["narrow units lower ART", "wide units lower AAT", "more disks lower AAT", "the same without RAID 5"];
    for trend in trends {
        let check = report.checks.iter().find(|check| check.what == trend).expect("the trend is looked at");
        assert!(check.holds, "{check:?}");
    }
}
