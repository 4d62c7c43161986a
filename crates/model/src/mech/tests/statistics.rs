//! Sizes, intervals and stopping.

use uraid_layout::Bytes;

use super::super::sizes::{Choices, Shape, Sizes, TooSmall, UNIT};
use super::super::stats::{BatchMeans, estimate, regression, student_t};
use super::super::{Nanos, StopRule};
use super::assert_near;
use uraid_random::Random;

#[test]
fn students_t_is_what_tables_print() {
    let table = [(0.975, 1.0, 12.706), (0.975, 4.0, 2.776), (0.975, 10.0, 2.228), (0.95, 14.0, 1.761)];
    let table = table.into_iter().chain([
        (0.975, 19.0, 2.093),
        (0.975, 39.0, 2.0227),
        (0.995, 20.0, 2.845),
        (0.975, 1e6, 1.95996),
    ]);
    for (probability, freedom, printed) in table {
        assert_near(student_t(probability, freedom), printed, 4e-4);
    }
}

#[test]
fn an_interval_of_few_observations_is_students() {
    // Mean 3, deviation sqrt(2.5), of 5.
    let found = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95);
    assert_near(found.mean, 3.0, 1e-12);
    assert_near(found.half_width, 2.776 * (2.5f64 / 5.0).sqrt(), 1e-3);
}

#[test]
fn runs_end_when_the_interval_is_narrow_enough() {
    // Exponential: the deviation is the mean, so 5 % at 95 % takes (1.96/0.05)^2 = 1537 independent observations, give
    // or take what the deviation of twenty batches is off by.
    let rule = StopRule { warm_up: 100, requests_min: 20, ..StopRule::default() };
    let (mut counts, mut misses) = (Vec::new(), 0);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut means = BatchMeans::new(rule);
        while !means.add(Nanos((-(1.0 - random.unit()).ln() * 1e6) as u64)) {}
        let found = means.estimate();
        assert!(found.half_width <= 0.05 * found.mean, "{found:?}");
        counts.push(found.count as f64);
        misses += u32::from((found.mean - 1e6).abs() > found.half_width);
    }
    assert_near(estimate(&counts, 0.95).mean, 1537.0, 0.15);
    // 5 % would be 10 of 200; ending at the first narrow interval costs some coverage.
    assert!(misses <= 30, "{misses} of 200 intervals miss the mean");
}

#[test]
fn a_run_without_variance_ends_at_its_fewest_requests() {
    let mut means = BatchMeans::new(StopRule { warm_up: 7, requests_min: 160, ..StopRule::default() });
    let ended = (1..).find(|_| means.add(Nanos(5))).unwrap();
    assert_eq!(ended, 167);
    let mut means = BatchMeans::new(StopRule::exactly(3, 50));
    assert_eq!((1..).find(|&index| means.add(Nanos(index))).unwrap(), 53);
}

#[test]
fn sizes_have_the_means_that_they_are_named_for() {
    let all = [TooSmall::DrawAgain, TooSmall::BecomeOne];
    let all = all
        .into_iter()
        .flat_map(|too_small| [false, true].map(|nominal_deviation| Choices { too_small, nominal_deviation }));
    for choices in all {
        for ((name, sizes), kib) in Sizes::chen_lee(choices).iter().zip([4.0, 16.0, 100.0, 400.0, 1500.0]) {
            assert_near(sizes.mean_sectors() / 2.0, kib, 1e-6);
            let mut random = Random::new(5);
            let draws: Vec<f64> = (0..40_000).map(|_| sizes.draw(&mut random).0 as f64 / 2.0).collect();
            assert!(draws.iter().all(|&size| size >= 1.0 && size.fract() == 0.0), "{name}");
            assert_near(estimate(&draws, 0.95).mean, kib, 0.02);
        }
    }
}

#[test]
fn an_exponential_size_is_geometric_and_a_normal_one_is_cut() {
    // Mean 4: P(1) = 1/4, and P(k+1) = 3/4 P(k).
    let sizes = Sizes::new(Shape::Exponential, Bytes(4 * UNIT.0), Choices::default()).unwrap();
    let mut random = Random::new(9);
    let mut counts = [0u32; 4];
    for _ in 0..100_000 {
        let kib = sizes.draw(&mut random).0 / 2;
        if let Some(count) = counts.get_mut(kib as usize - 1) {
            *count += 1;
        }
    }
    for (count, share) in counts.into_iter().zip([0.25, 0.1875, 0.140_625, 0.105_468_75]) {
        assert_near(f64::from(count) / 1e5, share, 0.03);
    }
    // A normal cut at zero with deviation = mean has 1.2876 times the mean: phi(1)/Phi(1) = 0.24197/0.84134. So half of
    // what is drawn is below m + m*z with Phi(z) = 1 - 0.84134/2, z = 0.1993, and m = 1500/1.2876.
    let sizes = Sizes::new(Shape::Normal, Bytes(1500 * UNIT.0), Choices::default()).unwrap();
    let mut draws: Vec<u64> = (0..40_001).map(|_| sizes.draw(&mut random).0 / 2).collect();
    draws.sort_unstable();
    assert_near(draws[20_000] as f64, 1500.0 / 1.2876 * 1.1993, 0.02);
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    assert!(Sizes::new(Shape::Normal, Bytes(1024), Choices::default()).is_err());
    assert!(Sizes::fixed(Bytes(100)).is_err());
    assert!(Sizes::fixed(Bytes(0)).is_err());
}

#[test]
fn a_line_through_points_is_that_of_least_squares() {
    assert_near(regression(&[(1.0, 5.0), (2.0, 7.0), (3.0, 9.0)]), 2.0, 1e-12);
    assert!(regression(&[(0.0, 0.0), (1.0, 1.0), (2.0, 0.0)]).abs() < 1e-12);
}
