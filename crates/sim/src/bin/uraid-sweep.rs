//! `uraid-sweep [threads=T] [level=L]... [only=CASE] [sample=SEED:CASES]`: one fault at a time, everywhere, or so many
//! cases of them that are drawn from a seed. `cargo xtask sweep` calls it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's results")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use uraid_random::Random;
use uraid_sim::crash::shape::Shape;
use uraid_sim::sweep::{Counts, Failure, cases};
use uraid_sim::tally::{self, Value};

/// Failures that are printed: one bug shows in many.
const FAILURES_MAX: usize = 10;

fn main() -> ExitCode {
    let (mut threads, mut levels, mut only, mut sample) = (1, Vec::new(), None, None);
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("threads", value)) if value.parse().is_ok_and(|count: usize| (1..=1024).contains(&count)) => {
                threads = value.parse().unwrap_or(1);
            }
            Some(("level", value)) => levels.push(value.to_owned()),
            Some(("only", value)) => only = Some(value.to_owned()),
            Some(("sample", value)) if drawn(value).is_some() => sample = drawn(value),
            _ => {
                eprintln!("{argument:?} is not understood; see `cargo xtask sweep --help`");
                return ExitCode::from(2);
            }
        }
    }
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let shapes: Vec<Shape> = Shape::every()
        .into_iter()
        .filter(|shape| levels.is_empty() || levels.iter().any(|level| shape.level() == level))
        .collect();
    let mut cases = match cases(&shapes) {
        Ok(cases) => cases,
        Err(failure) => {
            println!("{failure}");
            return ExitCode::FAILURE;
        }
    };
    cases.retain(|case| only.as_ref().is_none_or(|only| case.name(&shapes) == *only));
    if let Some((seed, count)) = sample {
        println!("{} of {} cases, drawn from seed {seed}", count.min(cases.len()), cases.len());
        Random::new(seed).shuffle(&mut cases);
        cases.truncate(count);
    }
    let next = AtomicUsize::new(0);
    let sums = Mutex::new((vec![Counts::default(); shapes.len()], Vec::<Failure>::new()));
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = case.run(&shapes);
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(counts) => sums.0[case.shape] = sums.0[case.shape].plus(counts),
                Err(failure) => sums.1.push(*failure),
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (sums, failures) = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (shape, counts) in shapes.iter().zip(&sums) {
        println!("{:16} {counts}", shape.to_string());
    }
    let sum = sums.into_iter().fold(Counts::default(), Counts::plus);
    failures.iter().take(FAILURES_MAX).for_each(|failure| println!("\n{failure}"));
    println!("{:16} {sum}; {} cases failed; {:.1} s", "total", failures.len(), begun.elapsed().as_secs_f64());
    let seconds = Value::Seconds(begun.elapsed().as_secs_f64());
    let counted = [("cases", cases.len()), ("wrong", failures.len())].map(|(name, count)| (name, count.into()));
    let Counts { struck, failed, repaired, recoveries, refused, .. } = sum;
    let further = [
        ("struck", struck),
        ("failed", failed),
        ("repaired", repaired),
        ("recoveries", recoveries),
        ("refused", refused),
    ];
    let further = further.map(|(name, count)| (name, count.into()));
    let fields: Vec<_> = counted.into_iter().chain(further).chain([("seconds", seconds)]).collect();
    println!("{}", tally::line(&fields));
    if failures.is_empty() && sum.cases > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A seed, and how many cases are drawn from it.
fn drawn(text: &str) -> Option<(u64, usize)> {
    let (seed, count) = text.split_once(':')?;
    Some((seed.parse().ok()?, count.parse().ok()?))
}
