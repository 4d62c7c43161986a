//! Servers killed under load on real files: a short run of what `cargo xtask kills` does for as long as one likes.

use uraid_tests::kills::{Counts, Cycle};
use uraid_tests::shape::Shape;

/// Kills of each shape.
const KILLS: u64 = 6;

uraid_tests::for_shapes!(holds_what_it_flushed:
    raid0_of_4, raid1_of_2, raid10_of_5, raid5_of_5_left_symmetric, rm2_of_7_adjacent, rm2_of_6);

fn holds_what_it_flushed(shape: &Shape) {
    let mut counts = Counts::default();
    // What a cycle does is drawn: there are more of them until each kind of it has come.
    for seed in 1..=20 {
        let has_all = counts.remembering > 0 && (counts.degraded > 0 || shape.tolerated.is_empty());
        if counts.kills >= KILLS && has_all {
            break;
        }
        let kills = KILLS.saturating_sub(counts.kills).max(2);
        let done = Cycle::new(seed, std::slice::from_ref(shape), kills, true).run();
        counts = [counts, done.unwrap_or_else(|failure| panic!("{failure}"))].into_iter().sum();
    }
    assert!(counts.flushes > 0 && counts.fio > 0 && counts.killed_starts > 0, "{counts}");
    assert!(counts.remembering > 0, "{counts}");
    assert!(counts.degraded > 0 || shape.tolerated.is_empty(), "{counts}");
}
