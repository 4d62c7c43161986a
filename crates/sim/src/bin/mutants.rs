//! `mutants SEEDS STATES [NAME...]`: plants each bug of `uraid_io::mutant` in turn, or those that are named, and runs seeds from 0 up to SEEDS until
//! one fails; if none does, goes through crashes until one of STATES is wrong. `cargo xtask mutants` calls it. Fails when a bug survives, and when
//! the engine without any does not.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's results")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use uraid_io::mutant::{Mutant, named, plant};
use uraid_sim::crash;
use uraid_sim::crash::shape::Shape;
use uraid_sim::crash::workload::Workloads;
use uraid_sim::dst::{Failure, Options, run};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = || arguments.next().and_then(|number| number.parse::<u64>().ok());
    let (Some(seeds), Some(states)) = (number(), number()) else {
        eprintln!("usage: mutants SEEDS STATES [NAME...]; see `cargo xtask mutants --help`");
        return ExitCode::from(2);
    };
    let mut mutants = Vec::new();
    for name in arguments {
        let Some(mutant) = named(&name) else {
            eprintln!("there is no mutant {name:?}");
            return ExitCode::from(2);
        };
        mutants.push(mutant);
    }
    let mutants = if mutants.is_empty() { Mutant::ALL.to_vec() } else { mutants };
    // What fails says so itself.
    std::panic::set_hook(Box::new(|_| {}));
    let sound = (seeds.min(200), states.min(5000));
    let failure = search(sound.0, false).or_else(|| search(sound.0, true)).map(|failure| failure.to_string());
    if let Some(failure) = failure.or_else(|| enumerate(sound.1).map(|failure| failure.to_string())) {
        println!("{failure}\n\nthe engine fails without any planted bug: nothing can be said about those");
        return ExitCode::FAILURE;
    }
    let survivors: Vec<&str> =
        mutants.iter().filter(|&&mutant| survives(mutant, seeds, states)).map(|mutant| mutant.name()).collect();
    println!("{} of {} mutants killed", mutants.len() - survivors.len(), mutants.len());
    if survivors.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("alive: {}", survivors.join(", "));
    ExitCode::FAILURE
}

/// Whether nobody notices a planted bug, with a line that says who does.
fn survives(mutant: Mutant, seeds: u64, states: u64) -> bool {
    plant(Some(mutant));
    let begun = Instant::now();
    let run = search(seeds, false).or_else(|| search(seeds, true));
    let run = run.map(|failure| format!("seed {}: {}", failure.seed, failure.finding));
    let failure = run.or_else(|| enumerate(states).map(|failure| format!("crash {failure}")));
    plant(None);
    let verdict = match &failure {
        Some(failure) => format!("killed by {:.110}", failure.lines().next().unwrap_or_default()),
        None => format!("ALIVE after {seeds} seeds and {states} states"),
    };
    println!("{:26} {:5.1} s  {verdict}", mutant.name(), begun.elapsed().as_secs_f64());
    failure.is_none()
}

/// Runs seeds on all cores until one fails; of those that do the lowest.
fn search(seeds: u64, is_harsh: bool) -> Option<Box<Failure>> {
    let (next, found) = (AtomicU64::new(0), Mutex::new(None::<Box<Failure>>));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_over = || found.lock().unwrap_or_else(PoisonError::into_inner).is_some();
                    if seed >= seeds || is_over() {
                        return;
                    }
                    let Err(failure) = run(seed, &Options { is_harsh, ..Options::default() }) else { continue };
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    if found.as_ref().is_none_or(|first| failure.seed < first.seed) {
                        *found = Some(failure);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Goes through crashes of arrays with a log or a bitmap on all cores until one is wrong.
fn enumerate(states: u64) -> Option<Box<crash::Failure>> {
    /// Far apart, so that every shape has its turn soon.
    const STRIDE: usize = 1_000_003;
    let shapes = Shape::all();
    let workloads = Workloads::new(&shapes, |_| true);
    let options = crash::Options { states_max: states, ..crash::Options::default() };
    let enumeration = crash::Enumeration::new(&shapes, options);
    let (next, found) = (AtomicU64::new(0), Mutex::new(None));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let singles = workloads.singles();
    let work = || {
        while !enumeration.is_over() && found.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            let turn = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap_or(usize::MAX);
            let number = if turn < singles { turn } else { turn.wrapping_mul(STRIDE) % workloads.len() };
            let Some(workload) = workloads.get(number) else { return };
            if let Err(failure) = enumeration.run(&workload) {
                *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}
