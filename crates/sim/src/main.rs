//! `uraid-sim FIRST END MINUTES THREADS [harsh]`: runs seeds from FIRST up to END, at most so many minutes long (0: as
//! long as it takes), on so many threads; `harsh`: members fail in every life, and the power goes soon after.
//! `cargo xtask sim` calls it. The last line is `counted: ` and a JSON object of numbers.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's results")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use uraid_sim::dst::{Alterations, Changes, Counts, Failure, Logged, Options, Report, Rotten, Served, run};

/// Failures after which a run of seeds stops: one bug shows in many.
const FAILURES_MAX: usize = 5;

/// What the program is asked to do.
struct Arguments {
    first: u64,
    end: u64,
    time: Duration,
    threads: u64,
    is_harsh: bool,
}

/// What was found so far.
#[derive(Default)]
struct Sum {
    runs: u64,
    report: Report,
    failures: Vec<Failure>,
}

impl Sum {
    /// The sum for people.
    fn text(&self, elapsed: Duration, threads: u64) -> String {
        let Report { counts, changes, alterations, served, rotten, logged, .. } = self.report;
        let Counts { events, lives, recoveries, cuts, cuts_in_recovery, sectors_read, degraded, .. } = counts;
        let Counts { lies, unreadable, repaired, only_read, several_regions, new, hangs, overdue, .. } = counts;
        let Changes { fails, joins, returns, shorts, rebuilds, scrubs, copies, replaced, promoted } = changes;
        let Alterations { grown, reshaped, turned_back, resumed, .. } = alterations;
        let Served { begun, begun_running, begun_cut_off, windows, windows_under_load, .. } = served;
        let Served { turns, ended, ended_back, grown: served_grown, .. } = served;
        let Rotten { superblocks, bitmaps, logs, blocks, refused } = rotten;
        let Logged { exchanged, lives: logged_lives, missing, rotten: log_rot, given_up, .. } = logged;
        format!(
            "{} runs in {:.1} s ({:.1} a second and thread): {events} events, {lives} lives, {cuts} cuts \
             ({cuts_in_recovery} in recovery), {recoveries} recoveries, {only_read} looks before one, {degraded} lives \
             degraded, {sectors_read} sectors read, {lies} silent corruptions, {repaired} pieces repaired, \
             {unreadable} commands rightly without them, {fails} members given up, {joins} new ones, {returns} that \
             came back ({shorts} of them short), {rebuilds} lives with one rebuilt, {scrubs} scrubs, {copies} copies \
             begun ({replaced} took the place, {promoted} that of a member that failed), {hangs} hangs ({overdue} \
             operations given up), {several_regions} runs of several regions and {new} of new arrays, \
             {superblocks} superblocks, {bitmaps} bitmaps and {logs} logs that rotted ({refused} members refused \
             for it), {blocks} times blocks that could \
             not be read any more, {grown} stopped arrays grown and {reshaped} reshaped ({turned_back} went back; \
             {resumed} times gone on with), {begun} reshapes begun of served arrays ({begun_running} \
             without a stop, where {begun_cut_off} were cut off; {windows} windows, of which {windows_under_load} \
             under load; {turns} turns; {ended} ended, of which {ended_back} back), \
             {served_grown} served arrays grown, {exchanged} times other log devices ({logged_lives} lives with such, \
             {missing} without some of them, {log_rot} places of their rings that rotted, {given_up} given up); {} \
             failed",
            self.runs,
            elapsed.as_secs_f64(),
            self.runs as f64 / elapsed.as_secs_f64() / threads as f64,
            self.failures.len(),
        )
    }

    /// The sum for programs: one JSON object of numbers, by the names of the counts in [`Report`], with `runs`,
    /// `failed` and `milliseconds`.
    fn json(&self, elapsed: Duration) -> String {
        let own = [
            ("runs".to_owned(), self.runs),
            ("failed".to_owned(), self.failures.len() as u64),
            ("milliseconds".to_owned(), u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
        ];
        let all = own.into_iter().chain(self.report.named());
        let fields: Vec<String> = all.map(|(name, count)| format!("\"{name}\": {count}")).collect();
        format!("{{{}}}", fields.join(", "))
    }
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("usage: uraid-sim FIRST END MINUTES THREADS [harsh]; see `cargo xtask sim --help`");
        return ExitCode::from(2);
    };
    // A run that panics is reported with its events.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let sum = run_all(&arguments, begun);
    let elapsed = begun.elapsed();
    println!("{}", sum.text(elapsed, arguments.threads));
    println!("counted: {}", sum.json(elapsed));
    if sum.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments: Vec<String> = arguments.collect();
    let is_harsh = arguments.pop_if(|last| last == "harsh").is_some();
    let numbers: Vec<u64> = arguments.iter().map(|argument| argument.parse().ok()).collect::<Option<_>>()?;
    let [first, end, minutes, threads] = numbers[..] else { return None };
    let time = Duration::from_secs(minutes.checked_mul(60)?);
    (first < end && (1..=1024).contains(&threads)).then_some(Arguments { first, end, time, threads, is_harsh })
}

fn run_all(arguments: &Arguments, begun: Instant) -> Sum {
    let (next, sum) = (AtomicU64::new(arguments.first), Mutex::new(Sum::default()));
    // Whoever looks at one seed wants to see all of it.
    let is_one = arguments.first + 1 == arguments.end;
    let options = Options { is_harsh: arguments.is_harsh, ..Options::default() };
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
