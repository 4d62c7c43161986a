use super::*;

#[test]
fn seeds_show_nothing_that_must_not_be() {
    let options = Options::default();
    let mut sum = Report::default();
    for seed in 0..300 {
        sum = sum.plus(run(seed, &options).unwrap_or_else(|failure| panic!("{failure}")));
    }
    let is_varied = sum.recoveries > 50 && sum.cuts_in_recovery > 20 && sum.degraded > 20 && sum.sectors_read > 20_000;
    assert!(is_varied, "the seeds do not show much: {sum:?}");
    let is_silent = sum.lies > 50 && sum.repaired > 5 && sum.unreadable > 20 && sum.only_read > 50;
    assert!(is_silent, "the seeds corrupt little: {sum:?}");
    let Changes { fails, joins, returns, shorts, rebuilds, scrubs } = sum.changes;
    let is_changing = fails > 30 && joins > 30 && returns > 30 && shorts > 2 && rebuilds > 30 && scrubs > 20;
    assert!(is_changing, "little is changed while arrays run: {:?}", sum.changes);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let options = Options::default();
    for seed in 0..20 {
        let [first, second] = [0, 1].map(|_| run(seed, &options).unwrap_or_else(|failure| panic!("{failure}")));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn members_that_corrupt_what_they_hold_are_found_out() {
    let options = Options { corrupts: true, ..Options::default() };
    let found = (0..50).filter(|&seed| run(seed, &options).is_err()).count();
    assert!(found >= 15, "only {found} of 50 runs on corrupting members fail");
}
