//! `uraid-sim FIRST END MINUTES THREADS`: runs seeds from FIRST up to END, at most so many minutes long (0: as long as it takes), on so many
//! threads. `cargo xtask sim` calls it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's results")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use uraid_sim::dst::{Changes, Failure, Options, Report, run};

/// Failures after which a run of seeds stops: one bug shows in many.
const FAILURES_MAX: usize = 5;

/// What the program is asked to do.
struct Arguments {
    first: u64,
    end: u64,
    time: Duration,
    threads: u64,
}

/// What was found so far.
#[derive(Default)]
struct Sum {
    runs: u64,
    report: Report,
    failures: Vec<Failure>,
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("usage: uraid-sim FIRST END MINUTES THREADS; see `cargo xtask sim --help`");
        return ExitCode::from(2);
    };
    // A run that panics is reported with its events.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let sum = run_all(&arguments, begun);
    let elapsed = begun.elapsed();
    let Report { lives, recoveries, cuts, cuts_in_recovery, sectors_read, degraded, events, .. } = sum.report;
    let Report { lies, unreadable, repaired, only_read, changes, .. } = sum.report;
    let Changes { fails, joins, returns, shorts, rebuilds, scrubs } = changes;
    println!(
        "{} runs in {:.1} s ({:.1} a second and thread): {events} events, {lives} lives, {cuts} cuts ({cuts_in_recovery} in recovery), \
         {recoveries} recoveries, {only_read} looks before one, {degraded} lives degraded, {sectors_read} sectors read, {lies} silent corruptions, \
         {repaired} pieces repaired, {unreadable} commands rightly without them, {fails} members given up, {joins} replaced, {returns} that came back \
         ({shorts} of them short), {rebuilds} lives with one rebuilt, {scrubs} scrubs; {} failed",
        sum.runs,
        elapsed.as_secs_f64(),
        sum.runs as f64 / elapsed.as_secs_f64() / arguments.threads as f64,
        sum.failures.len(),
    );
    if sum.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let numbers: Vec<u64> = arguments.map(|argument| argument.parse().ok()).collect::<Option<_>>()?;
    let [first, end, minutes, threads] = numbers[..] else { return None };
    let time = Duration::from_secs(minutes.checked_mul(60)?);
    (first < end && (1..=1024).contains(&threads)).then_some(Arguments { first, end, time, threads })
}

fn run_all(arguments: &Arguments, begun: Instant) -> Sum {
    let (next, sum) = (AtomicU64::new(arguments.first), Mutex::new(Sum::default()));
    // Whoever looks at one seed wants to see all of it.
    let is_one = arguments.first + 1 == arguments.end;
    let options = Options::default();
    let options = if is_one { Options { events: usize::MAX, ..options } } else { options };
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_late = !arguments.time.is_zero() && begun.elapsed() >= arguments.time;
            if seed >= arguments.end || is_late {
                return;
            }
            let result = run(seed, &options);
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.runs += 1;
            match result {
                Ok(report) => sum.report = sum.report.plus(report),
                Err(failure) => {
                    println!("{failure}\n");
                    sum.failures.push(*failure);
                }
            }
            if sum.failures.len() >= FAILURES_MAX {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(work);
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}
