//! `uraid-crash [states=N] [seconds=S] [threads=T] [draw=N] [level=L]... [only=WORKLOAD]`: goes through crashes of
//! small workloads until so many states were checked, or so long, or all of it. `cargo xtask crash` calls it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's results")]

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use uraid_sim::crash::altering::Alteration;
use uraid_sim::crash::creation::Creation;
use uraid_sim::crash::shape::Shape;
use uraid_sim::crash::workload::Workloads;
use uraid_sim::crash::{Counts, Enumeration, Failure, Options};
use uraid_sim::tally::{self, Value};

/// What the program is asked to do.
struct Arguments {
    states: u64,
    time: Duration,
    threads: usize,
    /// Decides with which workload each shape begins.
    draw: u64,
    levels: Vec<String>,
    only: Option<String>,
}

/// What was done so far on arrays of one shape.
#[derive(Clone, Copy, Default)]
struct Row {
    counts: Counts,
    time: Duration,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(wrong) => {
            eprintln!("{wrong:?} is not understood; see `cargo xtask crash --help`");
            return ExitCode::from(2);
        }
    };
    // A state on which something panics is reported with what it is.
    std::panic::set_hook(Box::new(|_| {}));
    let shapes = Shape::every();
    let is_wanted = |shape: &Shape| {
        let is_named = |level: &String| shape.level() == level;
        arguments.levels.is_empty() || arguments.levels.iter().any(is_named)
    };
    let workloads = Workloads::new(&shapes, is_wanted);
    let numbers: Vec<usize> = match &arguments.only {
        None => (0..workloads.len()).collect(),
        Some(name) => {
            let has_name =
                |number: &usize| workloads.get(*number).is_some_and(|workload| workload.name(&shapes) == *name);
            (0..workloads.len()).find(has_name).into_iter().collect()
        }
    };
    let is_meant = |creation: &Creation| {
        is_wanted(creation.shape()) && arguments.only.as_ref().is_none_or(|name| creation.name() == *name)
    };
    let creations: Vec<Creation> = Creation::all().into_iter().filter(is_meant).collect();
    let is_meant = |alteration: &Alteration| {
        is_wanted(alteration.shape()) && arguments.only.as_ref().is_none_or(|name| alteration.name() == *name)
    };
    let alterations: Vec<Alteration> = Alteration::all().into_iter().filter(is_meant).collect();
    if numbers.is_empty() && creations.is_empty() && alterations.is_empty() {
        eprintln!("there is no such workload");
        return ExitCode::from(2);
    }
    let begun = Instant::now();
    let (created, failure) = each(&creations, Creation::run);
    let (altered, failure) = match failure {
        None => each(&alterations, Alteration::run),
        Some(failure) => (Row::default(), Some(failure)),
    };
    let (rows, failure) = match failure {
        None => run(&arguments, &shapes, &workloads, &numbers, begun),
        Some(failure) => (vec![Row::default(); 2 * shapes.len()], Some(failure)),
    };
    let all = numbers.len() + creations.len() + alterations.len();
    let stopped = [("created", created), ("grown and reshaped", altered)];
    print(&shapes, &rows, stopped, all, begun.elapsed());
    failure.iter().for_each(|failure| println!("\n{failure}"));
    let all_rows: Vec<Row> = rows.iter().copied().chain(stopped.map(|(_, row)| row)).collect();
    println!("{}", last_line(&all_rows, all, failure.is_some(), begun.elapsed()));
    if failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What was counted, for programs.
fn last_line(rows: &[Row], all: usize, is_wrong: bool, elapsed: Duration) -> String {
    let sum = rows.iter().fold(Counts::default(), |sum, row| sum.plus(row.counts));
    let Counts { workloads, boundaries, generated, states, nested, recoveries, refused, .. } = sum;
    let counts = [
        ("states", states),
        ("workloads", workloads),
        ("workloads_there_are", all as u64),
        ("wrong", u64::from(is_wrong)),
        ("boundaries", boundaries),
        ("generated", generated),
        ("nested", nested),
        ("recoveries", recoveries),
        ("refused", refused),
    ];
    let seconds = ("seconds", Value::Seconds(elapsed.as_secs_f64()));
    tally::line(&counts.map(|(name, count)| (name, count.into())).into_iter().chain([seconds]).collect::<Vec<_>>())
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let (states, time, levels) = (u64::MAX, Duration::MAX, Vec::new());
    let mut parsed = Arguments { states, time, threads: 1, draw: 0, levels, only: None };
    for argument in arguments {
        let Some((key, value)) = argument.split_once('=') else { return Err(argument) };
        let number = || value.parse::<u64>().map_err(|_| argument.clone());
        match key {
            "states" => parsed.states = number()?,
            "seconds" => parsed.time = Duration::from_secs(number()?),
            "threads" => parsed.threads = usize::try_from(number()?.clamp(1, 1024)).map_err(|_| argument.clone())?,
            "draw" => parsed.draw = number()?,
            "level" => parsed.levels.push(value.into()),
            "only" => parsed.only = Some(value.into()),
            _ => return Err(argument),
        }
    }
    Ok(parsed)
}

/// Goes through the crashes of what is done to arrays that nobody uses, until the first that fails. They are few:
/// whatever else there is time for, all of them are done.
fn each<T>(of: &[T], run: impl Fn(&T) -> Result<Counts, Box<Failure>>) -> (Row, Option<Failure>) {
    let (begun, mut row) = (Instant::now(), Row::default());
    for one in of {
        match run(one) {
            Ok(counts) => row = Row { counts: row.counts.plus(counts), time: begun.elapsed() },
            Err(failure) => return (row, Some(*failure)),
        }
    }
    (row, None)
}

/// Works on the workloads until the first that fails: those of a shape in their order, from one that is drawn on and
/// around, and the shapes in turn, with members that come and without, so that those with many states in each workload
/// leave time for the others.
fn run(
    arguments: &Arguments,
    shapes: &[Shape],
    workloads: &Workloads<'_>,
    numbers: &[usize],
    begun: Instant,
) -> (Vec<Row>, Option<Failure>) {
    let until = begun.checked_add(arguments.time);
    let enumeration = Enumeration::new(shapes, Options { until, states_max: arguments.states, ..Options::default() });
    let rows = Mutex::new((vec![Row::default(); 2 * shapes.len()], None));
    let mut queues = vec![VecDeque::new(); 2 * shapes.len()];
    for &number in numbers {
        let place = workloads.place(number).expect("the numbers are of workloads");
        queues[row(place)].push_back(number);
    }
    for queue in queues.iter_mut().filter(|queue| !queue.is_empty()) {
        queue.rotate_left((arguments.draw % queue.len() as u64) as usize);
    }
    let queues = Mutex::new((queues, vec![0_u64; 2 * shapes.len()]));
    let next = || {
        let mut guard = queues.lock().unwrap_or_else(PoisonError::into_inner);
        let (queues, worked) = &mut *guard;
        let row = (0..queues.len()).filter(|&row| !queues[row].is_empty()).min_by_key(|&row| worked[row])?;
        // Until it is known what it took.
        worked[row] += 1000;
        queues[row].pop_front().and_then(|number| workloads.get(number))
    };
    let is_over = AtomicBool::new(false);
    let work = || {
        while let Some(workload) = next() {
            if is_over.load(Ordering::Relaxed) || enumeration.is_over() {
                return;
            }
            let started = Instant::now();
            let result = enumeration.run(&workload);
            let mut guard = rows.lock().unwrap_or_else(PoisonError::into_inner);
            let (rows, failure) = &mut *guard;
            let at = row((workload.shape, workload.change.is_some()));
            match result {
                Ok(counts) => {
                    let row: &mut Row = &mut rows[at];
                    *row = Row { counts: row.counts.plus(counts), time: row.time + started.elapsed() };
                    queues.lock().unwrap_or_else(PoisonError::into_inner).1[at] += counts.states;
                }
                Err(found) => {
                    *failure = Some(*found);
                    is_over.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(work);
        }
    });
    rows.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Workloads of a shape in which members come have a row of their own.
fn row((shape, is_change): (usize, bool)) -> usize {
    2 * shape + usize::from(is_change)
}

fn print(shapes: &[Shape], rows: &[Row], stopped: [(&str, Row); 2], workloads: usize, elapsed: Duration) {
    println!(
        "{:24} {:>9} {:>10} {:>12} {:>12} {:>10} {:>11} {:>9} {:>8}",
        "array", "workloads", "boundaries", "generated", "states", "nested", "recoveries", "refused", "seconds"
    );
    let line = |name: &str, Row { counts, time }: Row| {
        let Counts { workloads, boundaries, generated, states, nested, recoveries, refused, .. } = counts;
        println!(
            "{name:24} {workloads:9} {boundaries:10} {generated:12} {states:12} {nested:10} {recoveries:11} \
             {refused:9} {:8.1}",
            time.as_secs_f64()
        );
    };
    let mut sum = Row::default();
    for (name, row) in stopped {
        line(name, row);
        sum = Row { counts: sum.counts.plus(row.counts), time: sum.time + row.time };
    }
    let names = shapes.iter().flat_map(|shape| [shape.to_string(), format!("{shape}, members come")]);
    for (name, &row) in names.zip(rows).filter(|(_, row)| row.counts.boundaries > 0) {
        line(&name, row);
        sum = Row { counts: sum.counts.plus(row.counts), time: sum.time + row.time };
    }
    line("total", sum);
    let (states, done) = (sum.counts.states, sum.counts.workloads);
    println!(
        "{states} different states checked in {:.1} s ({:.0} a second), of {done} workloads of {workloads}; nested: \
         left by a crash in a recovery",
        elapsed.as_secs_f64(),
        states as f64 / elapsed.as_secs_f64()
    );
}
