use super::*;

#[test]
fn seeds_show_nothing_that_must_not_be() {
    let options = Options::default();
    let mut sum = Report::default();
    for seed in 0..300 {
        sum = sum.plus(run(seed, &options).unwrap_or_else(|failure| panic!("{failure}")));
    }
    let Counts { recoveries, cuts_in_recovery, degraded, sectors_read, .. } = sum.counts;
    let is_varied = recoveries > 50 && cuts_in_recovery > 20 && degraded > 20 && sectors_read > 20_000;
    assert!(is_varied, "the seeds do not show much: {sum:?}");
    let Counts { lies, repaired, unreadable, only_read, several_regions, new, .. } = sum.counts;
    let is_silent = lies > 50 && repaired > 5 && unreadable > 20 && only_read > 50;
    assert!(is_silent, "the seeds corrupt little: {sum:?}");
    let Rotten { superblocks, bitmaps, logs, .. } = sum.rotten;
    let is_rotten = superblocks > 50 && bitmaps > 20 && logs > 10;
    assert!(is_rotten && several_regions > 1 && new > 20, "little rots, or arrays are small: {sum:?}");
    let Changes { fails, joins, returns, shorts, rebuilds, scrubs, .. } = sum.changes;
    let is_changing = fails > 30 && joins > 30 && returns > 30 && shorts > 2 && rebuilds > 30 && scrubs > 20;
    assert!(is_changing, "little is changed while arrays run: {:?}", sum.changes);
    let Alterations { grown, reshaped, turned_back, resumed, joined, left, .. } = sum.alterations;
    let is_altered = grown > 20 && reshaped > 20 && turned_back > 5 && resumed > 50 && joined > 15 && left > 10;
    assert!(is_altered, "little is done to stopped arrays: {:?}", sum.alterations);
    let Logged { exchanged, cut_off, lives, missing, rotten, given_up, refused, .. } = sum.logged;
    let has_logs = exchanged > 20 && cut_off > 5 && lives > 60 && missing > 5 && rotten > 5;
    assert!(has_logs && given_up > 0 && refused > 10, "little becomes of log devices: {:?}", sum.logged);
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
