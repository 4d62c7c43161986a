use super::super::{Grid, Settings, run};
use super::grid::{Concurrency, best, scores, search};
use super::{RAID0, RM2};

const REDUCED: Settings = Settings { seed: 1, grid: Grid::Reduced };

#[test]
fn table_2_is_what_the_planner_plans() {
    let report = run("rm2", "table2", &REDUCED).expect("it is there");
    assert_eq!((report.checks.len(), report.failed().count()), (15, 0), "{:#?}", report.checks);
}

/// Table 3: 64 KB for reads alone, 8 KB for writes alone. Runs end when they are within 5 %, and 32 KB is nearer to 64
/// than that.
#[test]
fn rm2s_best_powers_of_two_are_the_papers() {
    let found = search(&RM2, &[1.0, 0.0], &REDUCED).expect("the paper's arrays can be had");
    let [reads, writes] = [0, 1].map(|reads| scores(&found, reads, Concurrency::ALL));
    assert_eq!(best(&writes, true).0, 8, "{writes:?}");
    let of = |wanted: u64| reads.iter().find(|(unit, _)| *unit == wanted).expect("the unit was run").1;
    assert!(of(64) > best(&reads, true).1 - 5.0 && of(64) > of(16) + 5.0 && of(64) > of(128) + 5.0, "{reads:?}");
}

#[test]
fn the_mix_does_not_move_raid_0() {
    let found = search(&RAID0, &[1.0, 0.0], &REDUCED).expect("the paper's arrays can be had");
    let power = |reads| best(&scores(&found, reads, Concurrency::ALL), true).0;
    assert_eq!(power(0), power(1));
}

#[test]
fn a_score_is_the_least_share() {
    let scores = [(2, 50.0), (3, 90.0), (4, 70.0)];
    assert_eq!((best(&scores, false), best(&scores, true)), ((3, 90.0), (4, 70.0)));
}
