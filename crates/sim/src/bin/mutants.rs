//! `mutants SEEDS STATES [tests=PROGRAM]... [NAME...]`: plants each bug of `uraid_io::mutant` in turn, or those that are named, two at a time, and looks
//! who notices: directed scenes and crashes, a few seeds and crash states, the tests of each PROGRAM, then all SEEDS and STATES. `cargo xtask mutants` calls
//! it. Fails when a bug survives, and when the engine without any does not.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's results")]

use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use uraid_io::mutant::{Mutant, VARIABLE, named, plant};
use uraid_sim::crash::shape::Shape;
use uraid_sim::crash::workload::Workloads;
use uraid_sim::crash::{Enumeration, creation, directed};
use uraid_sim::dst::{Options, run};
use uraid_sim::{crash, scenes};

/// Bugs that are looked at at once.
const CONCURRENT: usize = 2;

/// Who may notice.
#[derive(Debug)]
enum Check {
    Scenes,
    Creation,
    Directed,
    Seeds { seeds: Range<u64>, is_harsh: bool },
    States { from: usize, states: u64 },
    Tests { filters: &'static [&'static str] },
}

struct Arguments {
    seeds: u64,
    states: u64,
    tests: Vec<String>,
    mutants: Vec<Mutant>,
}

fn main() -> ExitCode {
    let Some(Arguments { seeds, states, tests, mutants }) = arguments() else {
        eprintln!("usage: mutants SEEDS STATES [tests=PROGRAM]... [NAME...]; see `cargo xtask mutants --help`");
        return ExitCode::from(2);
    };
    // What fails says so itself.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let is_test = |check: &Check| matches!(check, Check::Tests { .. });
    let quick = checks(seeds.min(60), states.min(2000)).into_iter().filter(|check| !is_test(check));
    // The tests are run without any bug everywhere else; here it is enough that they can be.
    for check in quick.chain([Check::Tests { filters: &["sums::tests", "log::"] }]) {
        let begun = Instant::now();
        if let Some(finding) = check.run(None, &tests) {
            println!("{finding}\n\nthe engine fails without any planted bug: nothing can be said about those");
            return ExitCode::FAILURE;
        }
        println!("{:26} {:5.1} s  nothing is found by {check:?}", "(none)", begun.elapsed().as_secs_f64());
    }
    let checks = checks(seeds, states);
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(&mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            if survives(mutant, &checks, &tests) {
                survivors.lock().unwrap_or_else(PoisonError::into_inner).push(mutant.name());
            }
        }
    };
    thread::scope(|scope| (0..CONCURRENT).for_each(|_| drop(scope.spawn(work))));
    let survivors = survivors.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (killed, seconds) = (mutants.len() - survivors.len(), begun.elapsed().as_secs());
    println!("{killed} of {} mutants killed in {seconds} s", mutants.len());
    if survivors.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("alive: {}", survivors.join(", "));
    ExitCode::FAILURE
}

fn arguments() -> Option<Arguments> {
    let mut rest = std::env::args().skip(1);
    let mut number = || rest.next()?.parse().ok();
    let (seeds, states) = (number()?, number()?);
    let (mut tests, mut mutants) = (Vec::new(), Vec::new());
    for argument in rest {
        match argument.strip_prefix("tests=") {
            Some(program) => tests.push(program.to_owned()),
            None => mutants.push(named(&argument)?),
        }
    }
    let mutants = if mutants.is_empty() { Mutant::ALL.to_vec() } else { mutants };
    Some(Arguments { seeds, states, tests, mutants })
}

/// The quick ones first; of the slow ones so many.
fn checks(seeds: u64, states: u64) -> Vec<Check> {
    let [first, few, many] = [10, 60, 300].map(|count| seeds.min(count));
    vec![
        Check::Seeds { seeds: 0..first, is_harsh: false },
        Check::Scenes,
        Check::Seeds { seeds: first..few, is_harsh: false },
        Check::States { from: 0, states: states.min(1000) },
        Check::Creation,
        Check::Directed,
        Check::Tests { filters: &["bitmap::tests", "sums::tests", "superblock::store::", "intent::", "troubles::"] },
        Check::Seeds { seeds: 0..few, is_harsh: true },
        Check::Seeds { seeds: few..many, is_harsh: false },
        Check::Tests { filters: &["recovery::", "sums::", "rebuild::", "scrub::"] },
        Check::Seeds { seeds: many..seeds, is_harsh: false },
        Check::Seeds { seeds: few..seeds, is_harsh: true },
        Check::States { from: 1000, states },
    ]
}

/// Whether nobody notices a planted bug, with a line that says who does.
fn survives(mutant: Mutant, checks: &[Check], tests: &[String]) -> bool {
    plant(Some(mutant));
    let begun = Instant::now();
    let finding = checks.iter().find_map(|check| check.run(Some(mutant), tests));
    plant(None);
    let verdict = match &finding {
        Some(finding) => format!("killed by {:.120}", finding.lines().next().unwrap_or_default()),
        None => "ALIVE".into(),
    };
    println!("{:26} {:5.1} s  {verdict}", mutant.name(), begun.elapsed().as_secs_f64());
    finding.is_none()
}

impl Check {
    /// What it finds of the bug that is planted in this thread.
    fn run(&self, mutant: Option<Mutant>, tests: &[String]) -> Option<String> {
        match self {
            Self::Scenes => {
                scenes::ALL.iter().find_map(|scene| Some(format!("scene {}: {}", scene.name, scene.run().err()?)))
            }
            Self::Creation => creation::run().err().map(|failure| format!("crash {failure}")),
            Self::Directed => directed::run().err().map(|failure| format!("crash {failure}")),
            Self::Seeds { seeds, is_harsh } => {
                let options = Options { is_harsh: *is_harsh, ..Options::default() };
                let failure = seeds.clone().find_map(|seed| run(seed, &options).err())?;
                let harsh = if *is_harsh { "harsh " } else { "" };
                Some(format!("{harsh}seed {}: {}", failure.seed, failure.finding))
            }
            Self::States { from, states } => enumerate(*from, *states),
            Self::Tests { filters } => tests.iter().find_map(|program| failed_test(program, filters, mutant)),
        }
    }
}

/// The first of the program's tests that fails.
fn failed_test(program: &str, filters: &[&str], mutant: Option<Mutant>) -> Option<String> {
    let mut command = Command::new(program);
    command.args(filters).args(["--test-threads", "1"]).stderr(Stdio::null());
    if let Some(mutant) = mutant {
        command.env(VARIABLE, mutant.name());
    }
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Some(format!("{program} can't be run: {error}")),
    };
    let printed = BufReader::new(child.stdout.take().expect("it is piped"));
    let failed = printed.lines().map_while(Result::ok).find_map(|line| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(format!("test {name}"))
    });
    if failed.is_some() {
        // Whatever it is told: it may just have ended.
        let _ = child.kill();
    }
    let status = child.wait();
    failed.or_else(|| Some(format!("{program} fails")).filter(|_| !status.is_ok_and(|status| status.success())))
}

/// Goes through crashes of arrays until one is wrong.
fn enumerate(from: usize, states: u64) -> Option<String> {
    /// Far apart, so that every shape has its turn soon.
    const STRIDE: usize = 1_000_003;
    let shapes = Shape::all();
    let workloads = Workloads::new(&shapes, |_| true);
    let options = crash::Options { states_max: states, ..crash::Options::default() };
    let enumeration = Enumeration::new(&shapes, options);
    let mut numbers = (from..workloads.len()).map(|turn| turn.wrapping_mul(STRIDE) % workloads.len());
    while !enumeration.is_over() {
        let workload = workloads.get(numbers.next()?)?;
        if let Err(failure) = enumeration.run(&workload) {
            return Some(format!("crash {failure}"));
        }
    }
    None
}
