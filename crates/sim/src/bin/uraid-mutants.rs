//! `uraid-mutants [seeds=N] [states=N] [tests=PROGRAM]... [killers=FILE] [sample=SEED:MINUTES] [NAME...]`: plants each
//! bug of `uraid_io::mutant` in turn, or those that are named, or bugs drawn from a seed until the minutes are over,
//! each of which is looked at to its end. Two at a time. Who notices: directed scenes and crashes, a few seeds and
//! crash states, the tests of each PROGRAM, then all seeds and states. `cargo xtask mutants` calls it. Fails when a bug
//! survives, and when who notices one finds something where none is planted.
//!
//! FILE has, for bugs that were noticed before, who noticed: that is tried first. It says nothing of what is noticed
//! now. With `note` it is written anew at the end.
//!
//! Bugs can be planted where debug assertions are on. Each check of one is a process of its own, with the bug in its
//! environment, so that a bug may do what it likes.
//! One that uses up [`LIMITS`], many times what any check takes without a bug, hangs: that counts as noticed, and is
//! printed as what it is.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's results")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};
use uraid_io::mutant::{Mutant, VARIABLE, named};
use uraid_random::Random;
use uraid_sim::crash::shape::Shape;
use uraid_sim::crash::workload::Workloads;
use uraid_sim::crash::{Enumeration, Grain, altering, creation, directed};
use uraid_sim::dst::{Options, run};
use uraid_sim::tally::{self, Value};
use uraid_sim::{crash, scenes};

/// Bugs that are looked at at once.
const CONCURRENT: usize = 2;

/// What a check may take: without a bug none takes a tenth of it. The time is for what does not use the processor, on a
/// machine however busy.
const LIMITS: Limits = Limits { cpu: Duration::from_secs(600), time: Duration::from_secs(3000) };

/// What a check prints before what it finds.
const FOUND: &str = "found: ";

/// Who may notice. As text it is what a process is told to do, and what the file of killers has.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Check {
    /// All, or the one with this name.
    Scenes(Option<String>),
    Creation,
    Altering,
    Directed,
    Seeds {
        seeds: Range<u64>,
        is_harsh: bool,
    },
    Singles(u64),
    Pairs(u64),
    /// All, or those whose names have one of these in them.
    Tests(Vec<String>),
}

/// Who noticed, as the counts have it.
const KILLERS: [&str; 8] =
    ["by_seeds", "by_scenes", "by_creation", "by_altering", "by_directed", "by_states", "by_tests", "by_limit"];

/// What becomes of a bug, or of one check of it.
enum Verdict {
    Alive,
    Killed {
        by: &'static str,
        check: Check,
        finding: String,
    },
    /// The check finds something where no bug is planted, too.
    Unsound {
        finding: String,
    },
}

struct Arguments {
    seeds: u64,
    states: u64,
    tests: Vec<String>,
    mutants: Vec<Mutant>,
    /// The mutants are drawn: the seed, and for how long more are begun.
    sample: Option<(u64, Duration)>,
    /// Only this check is to be run, by this process.
    check: Option<Check>,
    killers: Option<PathBuf>,
    notes: bool,
}

/// After how much processor time, and how much time, a process hangs.
#[derive(Clone, Copy, Debug)]
struct Limits {
    cpu: Duration,
    time: Duration,
}

/// What it takes to run checks.
struct Bench {
    checks: Vec<Check>,
    /// Who noticed a bug before.
    killers: BTreeMap<String, Check>,
    tests: Vec<String>,
    limits: Limits,
    /// Checks that find nothing where no bug is planted.
    sound: Mutex<BTreeSet<String>>,
}

fn main() -> ExitCode {
    let arguments = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(wrong) => {
            eprintln!("{wrong:?} is not understood; see `cargo xtask mutants --help`");
            return ExitCode::from(2);
        }
    };
    if !cfg!(debug_assertions) {
        eprintln!("no bug can be planted without debug assertions: build with --profile checked");
        return ExitCode::from(2);
    }
    // What fails says so itself.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let Arguments { seeds, states, tests, mut mutants, sample, check, killers: file, notes } = arguments;
    if let Some(check) = check {
        let finding = check.run();
        finding.iter().for_each(|finding| println!("{FOUND}{}", finding.lines().next().unwrap_or_default()));
        return ExitCode::SUCCESS;
    }
    if let Some((seed, time)) = sample {
        Random::new(seed).shuffle(&mut mutants);
        println!("drawn from seed {seed}, for {:.1} minutes", time.as_secs_f64() / 60.0);
    }
    let checks = checks(seeds, states);
    let killers = match file.as_deref().map(killers).transpose() {
        Ok(killers) => killers.unwrap_or_default(),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let bench = Bench { checks, killers, tests, limits: LIMITS, sound: Mutex::default() };
    let verdicts = judge(&mutants, &bench, sample.map(|(_, time)| Instant::now() + time));
    let alive = verdicts.iter().filter(|(_, verdict)| !matches!(verdict, Verdict::Killed { .. }));
    let alive: Vec<String> = alive.map(|(mutant, _)| mutant.name().into()).collect();
    let judged = verdicts.len();
    let killed = judged - alive.len();
    println!("{killed} of {judged} mutants killed in {} s", begun.elapsed().as_secs());
    if !alive.is_empty() {
        println!("alive: {}", alive.join(", "));
    }
    let succeeds = alive.is_empty() && judged > 0;
    let mut fields: Vec<(&str, Value)> =
        vec![("planted", judged.into()), ("killed", killed.into()), ("alive", Value::Names(alive))];
    fields.extend(KILLERS.map(|killer| {
        let is_its = |(_, verdict): &&(Mutant, Verdict)| matches!(verdict, Verdict::Killed { by, .. } if *by == killer);
        (killer, verdicts.iter().filter(is_its).count().into())
    }));
    fields.push(("seconds", Value::Seconds(begun.elapsed().as_secs_f64())));
    println!("{}", tally::line(&fields));
    if let Some(file) = file.filter(|_| notes)
        && let Err(error) = std::fs::write(&file, noted(bench.killers, &verdicts))
    {
        eprintln!("{}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    if succeeds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn arguments(rest: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        seeds: 1000,
        states: 20_000,
        tests: Vec::new(),
        mutants: Vec::new(),
        sample: None,
        check: None,
        killers: None,
        notes: false,
    };
    for argument in rest {
        let number = |value: &str| value.parse().map_err(|_| argument.clone());
        match argument.split_once('=') {
            Some(("seeds", value)) => parsed.seeds = number(value)?,
            Some(("states", value)) => parsed.states = number(value)?,
            Some(("check", value)) => parsed.check = Some(value.parse().map_err(|_| argument.clone())?),
            Some(("killers", file)) => parsed.killers = Some(file.into()),
            Some(("tests", program)) => parsed.tests.push(program.to_owned()),
            Some(("sample", value)) => parsed.sample = Some(sample(value).ok_or_else(|| argument.clone())?),
            Some(_) => return Err(argument),
            None if argument == "note" => parsed.notes = true,
            None => parsed.mutants.push(named(&argument).ok_or_else(|| argument.clone())?),
        }
    }
    if parsed.mutants.is_empty() {
        parsed.mutants = Mutant::ALL.to_vec();
    }
    Ok(parsed)
}

fn sample(text: &str) -> Option<(u64, Duration)> {
    let (seed, minutes) = text.split_once(':')?;
    Some((seed.parse().ok()?, Duration::try_from_secs_f64(minutes.parse::<f64>().ok()? * 60.0).ok()?))
}

/// The quick ones first: the tests, some of which use real memory and files, are the slow ones.
fn checks(seeds: u64, states: u64) -> Vec<Check> {
    const QUICK: [&str; 15] = [
        "badblocks::",
        "bitmap::tests",
        "blank::",
        "cache::",
        "faults::",
        "judge::",
        "superblock::copies::",
        "opening::",
        "intent::",
        "journal::",
        "log::",
        "recovery::",
        "sectors::",
        "sums::",
        "troubles::",
    ];
    let [first, few, many] = [10, 60, 300].map(|count| seeds.min(count));
    vec![
        Check::Seeds { seeds: 0..first, is_harsh: false },
        Check::Scenes(None),
        Check::Seeds { seeds: first..few, is_harsh: false },
        Check::Singles(states.min(2000)),
        Check::Creation,
        Check::Altering,
        Check::Directed,
        Check::Seeds { seeds: 0..few, is_harsh: true },
        Check::Seeds { seeds: few..many, is_harsh: false },
        Check::Tests(QUICK.map(str::to_owned).to_vec()),
        Check::Seeds { seeds: many..seeds, is_harsh: false },
        Check::Seeds { seeds: few..seeds, is_harsh: true },
        Check::Singles(states),
        Check::Pairs(states),
        Check::Tests(Vec::new()),
    ]
}

/// Who noticed which bug, as a file has it: a line each.
fn killers(file: &Path) -> Result<BTreeMap<String, Check>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let entry = |line: &str| {
        let (name, check) = line.split_once(": ")?;
        Some((name.to_owned(), check.parse().ok()?))
    };
    let wrong = |line: &str| format!("{}: {line:?} is not understood", file.display());
    text.lines().map(|line| entry(line).ok_or_else(|| wrong(line))).collect()
}

/// The file when these verdicts are known, too.
fn noted(mut killers: BTreeMap<String, Check>, verdicts: &[(Mutant, Verdict)]) -> String {
    killers.retain(|name, _| named(name).is_some());
    for (mutant, verdict) in verdicts {
        if let Verdict::Killed { check, finding, .. } = verdict {
            killers.insert(mutant.name().to_owned(), check.narrowed(finding));
        }
    }
    killers.iter().map(|(name, check)| format!("{name}: {check}\n")).collect()
}

/// Looks who notices each bug, several at a time, in the order in which that is known. Begins with none after `until`,
/// but leaves none half looked at: those that are noticed late are the ones that matter.
fn judge(mutants: &[Mutant], bench: &Bench, until: Option<Instant>) -> Vec<(Mutant, Verdict)> {
    let (next, verdicts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let is_over = || until.is_some_and(|until| Instant::now() >= until);
    let work = || {
        while !is_over()
            && let Some(&mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let begun = Instant::now();
            let checks = bench.killers.get(mutant.name()).into_iter().chain(&bench.checks);
            let runs = checks.map(|check| bench.run(check, Some(mutant)));
            let verdict = runs.into_iter().find(|verdict| !matches!(verdict, Verdict::Alive)).unwrap_or(Verdict::Alive);
            let verdict = bench.verified(verdict);
            let text = match &verdict {
                Verdict::Alive => "ALIVE".into(),
                Verdict::Killed { finding, .. } => format!("killed by {finding:.120}"),
                Verdict::Unsound { finding } => format!("NOTHING CAN BE SAID: without it there is {finding:.120}"),
            };
            println!("{:26} {:5.1} s  {text}", mutant.name(), begun.elapsed().as_secs_f64());
            verdicts.lock().unwrap_or_else(PoisonError::into_inner).push((mutant, verdict));
        }
    };
    thread::scope(|scope| (0..CONCURRENT).for_each(|_| drop(scope.spawn(work))));
    verdicts.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Bench {
    /// The verdict, if the check that it is of finds nothing where no bug is planted.
    fn verified(&self, verdict: Verdict) -> Verdict {
        let Verdict::Killed { check, finding, .. } = &verdict else { return verdict };
        let check = check.narrowed(finding);
        let sound = || self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        if sound().contains(&check.to_string()) {
            return verdict;
        }
        if let Verdict::Killed { finding, .. } = self.run(&check, None) {
            return Verdict::Unsound { finding };
        }
        sound().insert(check.to_string());
        verdict
    }

    /// Has processes of their own run a check.
    fn run(&self, check: &Check, mutant: Option<Mutant>) -> Verdict {
        if let Check::Tests(filters) = check {
            let runs = self.tests.iter().map(|program| {
                let mut command = Command::new(program);
                command.args(filters).args(["--test-threads", "1"]);
                self.watch(check, command, mutant, |line| {
                    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
                    Some(format!("test {name}"))
                })
            });
            return runs.into_iter().find(|verdict| !matches!(verdict, Verdict::Alive)).unwrap_or(Verdict::Alive);
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg(format!("check={check}"));
        self.watch(check, command, mutant, |line| line.strip_prefix(FOUND).map(str::to_owned))
    }

    /// Runs a process until a line says what it finds, it ends, or one of the limits is reached.
    fn watch(
        &self,
        check: &Check,
        mut command: Command,
        mutant: Option<Mutant>,
        finding: impl Fn(&str) -> Option<String>,
    ) -> Verdict {
        let killed = |by, finding| Verdict::Killed { by, check: check.clone(), finding };
        command.envs(mutant.iter().map(|mutant| (VARIABLE, mutant.name())));
        command.process_group(0).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                return killed(check.name(), format!("{command:?} can't be run: {error}"));
            }
        };
        limit(&child, self.limits.cpu);
        let Limits { cpu, time } = self.limits;
        let deadline = Instant::now() + time;
        let (lines, printed) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let reader = thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let (mut found, mut is_late, mut last) = (None, false, String::new());
        while found.is_none() && !is_late {
            match printed.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    found = finding(&line);
                    last = line;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => is_late = true,
            }
        }
        let status = if found.is_some() || is_late { end(&mut child) } else { child.wait().ok() };
        drop(printed);
        // It ends with the process's output, and there is nothing in it that is missed.
        let _ = reader.join();
        if let Some(found) = found {
            return killed(check.name(), found);
        }
        let is_over_cpu = status.and_then(|status| status.signal()) == Some(Signal::XCPU.as_raw());
        match status {
            _ if is_over_cpu => {
                killed("by_limit", format!("the limit of {cpu:?} of processor time: {check:?} hangs after {last:?}"))
            }
            _ if is_late => killed("by_limit", format!("the limit of {time:?}: {check:?} hangs after {last:?}")),
            Some(status) if status.success() => Verdict::Alive,
            Some(status) => killed(check.name(), format!("{check:?}, whose process ends with {status}")),
            None => killed(check.name(), format!("{check:?}, whose process can't be waited for")),
        }
    }
}

/// Limits what the process may use; one that has ended already needs none.
fn limit(child: &Child, cpu: Duration) {
    let (soft, hard) = (cpu.as_secs(), cpu.as_secs() + 10);
    let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
    let _ = prlimit(Some(Pid::from_child(child)), Resource::Cpu, limit);
}

/// Kills the process and what it has started.
fn end(child: &mut Child) -> Option<ExitStatus> {
    // It may have ended by itself; its number is its own until it was waited for.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait().ok()
}

impl Check {
    /// Its name in the counts.
    fn name(&self) -> &'static str {
        match self {
            Self::Seeds { .. } => KILLERS[0],
            Self::Scenes(_) => KILLERS[1],
            Self::Creation => KILLERS[2],
            Self::Altering => KILLERS[3],
            Self::Directed => KILLERS[4],
            Self::Singles(_) | Self::Pairs(_) => KILLERS[5],
            Self::Tests(_) => KILLERS[6],
        }
    }

    /// What it finds of the bug that is planted in this process; the tests have programs of their own.
    fn run(&self) -> Option<String> {
        match self {
            Self::Scenes(only) => {
                let is_wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
                let scenes = scenes::ALL.iter().filter(|scene| is_wanted(scene.name));
                scenes.into_iter().find_map(|scene| Some(format!("scene {}: {}", scene.name, scene.run().err()?)))
            }
            Self::Creation => creation::run().err().map(|failure| format!("crash {failure}")),
            Self::Altering => altering::run().err().map(|failure| format!("crash {failure}")),
            Self::Directed => directed::run().err().map(|failure| format!("crash {failure}")),
            Self::Seeds { seeds, is_harsh } => {
                let options = Options { is_harsh: *is_harsh, ..Options::default() };
                let failure = seeds.clone().find_map(|seed| run(seed, &options).err())?;
                let harsh = if *is_harsh { "harsh " } else { "" };
                Some(format!("{harsh}seed {}: {}", failure.seed, failure.finding))
            }
            Self::Singles(states) => enumerate(Grain::Singles, *states),
            Self::Pairs(states) => enumerate(Grain::Pairs, *states),
            Self::Tests(_) => None,
        }
    }

    /// What of it found this.
    fn narrowed(&self, finding: &str) -> Self {
        let word = |text: &str| text.split([' ', ':']).next().unwrap_or_default().to_owned();
        let seed = |text: &str| word(text).parse::<u64>().ok().map(|seed| seed..seed + 1);
        match self {
            Self::Scenes(_) => Self::Scenes(finding.strip_prefix("scene ").map(word)),
            Self::Seeds { seeds, is_harsh } => {
                let found = finding.trim_start_matches("harsh ").strip_prefix("seed ").and_then(seed);
                Self::Seeds { seeds: found.unwrap_or_else(|| seeds.clone()), is_harsh: *is_harsh }
            }
            Self::Tests(filters) => {
                let found = finding.strip_prefix("test ").map(|name| vec![name.to_owned()]);
                Self::Tests(found.unwrap_or_else(|| filters.clone()))
            }
            other => other.clone(),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scenes(None) => write!(f, "scenes"),
            Self::Scenes(Some(name)) => write!(f, "scenes {name}"),
            Self::Creation => write!(f, "creation"),
            Self::Altering => write!(f, "altering"),
            Self::Directed => write!(f, "directed"),
            Self::Seeds { seeds: Range { start, end }, is_harsh: false } => write!(f, "seeds {start}..{end}"),
            Self::Seeds { seeds: Range { start, end }, is_harsh: true } => write!(f, "harsh {start}..{end}"),
            Self::Singles(states) => write!(f, "singles {states}"),
            Self::Pairs(states) => write!(f, "pairs {states}"),
            Self::Tests(filters) if filters.is_empty() => write!(f, "tests"),
            Self::Tests(filters) => write!(f, "tests {}", filters.join(" ")),
        }
    }
}

impl FromStr for Check {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        let range = || {
            let (start, end) = rest.split_once("..").ok_or(())?;
            Ok(number(start)?..number(end)?)
        };
        Ok(match kind {
            "scenes" => Self::Scenes((!rest.is_empty()).then(|| rest.to_owned())),
            "creation" => Self::Creation,
            "altering" => Self::Altering,
            "directed" => Self::Directed,
            "seeds" => Self::Seeds { seeds: range()?, is_harsh: false },
            "harsh" => Self::Seeds { seeds: range()?, is_harsh: true },
            "singles" => Self::Singles(number(rest)?),
            "pairs" => Self::Pairs(number(rest)?),
            "tests" => Self::Tests(rest.split_whitespace().map(str::to_owned).collect()),
            _ => return Err(()),
        })
    }
}

/// Goes through crashes of arrays until one is wrong: of few workloads each with two things that are in doubt, or of
/// many with one.
fn enumerate(grain: Grain, states: u64) -> Option<String> {
    /// Far apart, so that every shape has its turn soon.
    const STRIDE: usize = 1_000_003;

    /// A boundary has few states then, so that a workload is soon gone through and the next has its turn.
    const CHOICES_OF_MANY: u128 = 4;

    let shapes = Shape::every();
    let workloads = Workloads::new(&shapes, |_| true);
    let defaults = crash::Options { grain, states_max: states, ..crash::Options::default() };
    let options = match grain {
        Grain::Singles => crash::Options { choices_max: CHOICES_OF_MANY, ..defaults },
        Grain::Pairs | Grain::Areas => defaults,
    };
    let enumeration = Enumeration::new(&shapes, options);
    // Every other one is of those in which a member comes.
    let (all, changes) = (workloads.len(), workloads.changes());
    let mut numbers = (0..all).map(|turn| match turn.wrapping_mul(STRIDE) {
        far if turn % 2 == 0 => far % all,
        far => changes.start + far % changes.len(),
    });
    while !enumeration.is_over() {
        let workload = workloads.get(numbers.next()?)?;
        if let Err(failure) = enumeration.run(&workload) {
            return Some(format!("crash {failure}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(limits: Limits) -> Bench {
        let (checks, killers, sound) = (Vec::new(), BTreeMap::new(), Mutex::default());
        Bench { checks, killers, tests: vec!["false".to_owned()], limits, sound }
    }

    /// What becomes of a shell's script, as of a check.
    fn watched(script: &str, limits: Limits) -> (&'static str, String) {
        let bench = bench(limits);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        match bench.watch(&Check::Scenes(None), command, None, |line| line.strip_prefix(FOUND).map(str::to_owned)) {
            Verdict::Killed { by, finding, .. } => (by, finding),
            Verdict::Alive => ("alive", String::new()),
            Verdict::Unsound { finding } => ("unsound", finding),
        }
    }

    #[test]
    fn a_process_that_never_ends_is_ended_and_counts_as_what_it_is() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(3600));
        let (by, finding) = watched("echo begun; while :; do :; done", Limits { cpu: short, time: long });
        assert!(by == "by_limit" && finding.contains("processor time") && finding.contains("begun"), "{finding}");
        let (by, finding) = watched("sleep 3600", Limits { cpu: long, time: short });
        assert!(by == "by_limit" && !finding.contains("processor time"), "{finding}");
        // What it has started goes with it, and what it has found counts.
        let found = watched("sleep 3600 & echo 'found: it'; wait", Limits { cpu: long, time: long });
        assert_eq!(found, ("by_scenes", "it".to_owned()));
    }

    #[test]
    fn a_process_that_ends_badly_has_noticed_something() {
        let limits = LIMITS;
        assert_eq!(watched("exit 0", limits).0, "alive");
        assert_eq!(watched("exit 3", limits).0, "by_scenes");
        assert_eq!(watched("kill -ABRT $$", limits).0, "by_scenes");
    }

    #[test]
    fn who_finds_something_without_a_bug_has_not_noticed_one() {
        let (mut bench, check) = (bench(LIMITS), Check::Tests(Vec::new()));
        let killed = || Verdict::Killed { by: "by_tests", check: check.clone(), finding: String::new() };
        assert!(matches!(bench.verified(killed()), Verdict::Unsound { finding } if finding.contains("exit status: 1")));
        assert!(matches!(bench.verified(Verdict::Alive), Verdict::Alive));
        bench.tests = vec!["true".to_owned()];
        assert!(matches!(bench.verified(killed()), Verdict::Killed { .. }));
    }

    #[test]
    fn checks_are_what_their_text_says() {
        for check in checks(1000, 20_000) {
            assert_eq!(check.to_string().parse(), Ok(check));
        }
        assert!(
            ["", "seeds", "seeds 1", "seeds 1..x", "rumours"].into_iter().all(|text| text.parse::<Check>().is_err())
        );
    }

    #[test]
    fn what_noticed_a_bug_is_noted_as_narrowly_as_it_is_known() {
        let narrowed = |check: &str, finding: &str| check.parse::<Check>().unwrap().narrowed(finding).to_string();
        assert_eq!(narrowed("seeds 0..60", "seed 8: parity does not agree: stripe 2"), "seeds 8..9");
        assert_eq!(narrowed("harsh 0..60", "harsh seed 31: sector 3"), "harsh 31..32");
        assert_eq!(narrowed("scenes", "scene a_hole: Log, None"), "scenes a_hole");
        assert_eq!(narrowed("tests log::", "test log::a_write"), "tests log::a_write");
        assert_eq!(narrowed("seeds 0..60", "Seeds 0..60, whose process ends with signal 11"), "seeds 0..60");
        assert_eq!(narrowed("pairs 20", "crash of something"), "pairs 20");
    }

    #[test]
    fn a_sample_is_a_seed_and_minutes() {
        assert_eq!(sample("7:0.5"), Some((7, Duration::from_secs(30))));
        assert!(["7", "x:1", "7:x", "7:-1", ""].into_iter().all(|text| sample(text).is_none()));
    }
}
