//! `uraid bench`: what it measures it keeps, and nothing else stays behind.

mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use uraid_tests::binary::{command, uraid};
use uraid_tests::image::Random;
use uraid_tests::process::{Output, Process};
use uraid_tests::run::{client_command, run};

/// How long a run may take; only a hang reaches it.
const TIME_MAX: Duration = Duration::from_secs(120);

/// Small and short: what is measured means nothing.
const SHORT: [&str; 8] = ["--chunks", "16K,64K", "--count", "3", "--time", "1s", "--warm-up", "0s"];

/// A load for the built-in generator.
const NATIVE: [&str; 4] = ["--driver", "native", "--workload", "mix:size=4K,reads=50,depth=4"];

/// A laboratory in a directory of its own.
struct Lab {
    directory: TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A run in `lab`, with small members.
    fn chunk(&self, more: &[&str]) -> Command {
        let mut bench = command();
        bench.current_dir(self.directory.path()).env("TMPDIR", self.directory.path());
        bench.args(["bench", "chunk", "--dir", "lab", "--size", "16M"]).args(SHORT).args(more);
        bench
    }

    fn measure(&self, more: &[&str]) -> Output {
        Process::start(self.chunk(more)).finish(TIME_MAX)
    }

    fn results(&self) -> Value {
        let text = fs::read(self.path("lab/results.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    fn observations(&self) -> Vec<Value> {
        self.results()["observations"].as_array().unwrap().clone()
    }

    /// Members and sockets that runs left behind.
    fn left_behind(&self) -> Vec<PathBuf> {
        let entries = [self.path(""), self.path("lab")].into_iter().flat_map(|path| fs::read_dir(path).unwrap());
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("uraid-bench-")).collect()
    }

    /// Waits until the run has written an observation.
    fn until_measured(&self) {
        let end = Instant::now() + TIME_MAX;
        let has_one = || {
            let text = fs::read(self.path("lab/results.json")).unwrap_or_default();
            let results: Value = serde_json::from_slice(&text).unwrap_or_default();
            results["observations"].as_array().is_some_and(|all| !all.is_empty())
        };
        while !has_one() {
            assert!(Instant::now() < end, "nothing was measured");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn words<'a>(first: &[&'a str], then: &[&'a str]) -> Vec<&'a str> {
    first.iter().chain(then).copied().collect()
}

/// The processes that were started with this word in their command line.
fn processes(word: &Path) -> usize {
    let word = word.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(word)).count()
}

/// The nbdfuse that works in a directory.
fn nbdfuse_of(directory: &Path) -> Option<rustix::process::Pid> {
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"nbdfuse") && String::from_utf8_lossy(&line).contains(directory.to_str().unwrap())
    };
    pids.find(is_it).and_then(rustix::process::Pid::from_raw)
}

/// Two chunks are two cells a round. More rounds go on with what was measured, and another experiment is refused.
#[test]
fn a_run_keeps_what_it_measured_and_goes_on() {
    let lab = Lab::new();
    let first = lab.measure(&words(&NATIVE, &["--rounds", "1"])).success();
    assert!(first.text().contains("For RAID 5, writeback: chunk "), "{}", first.text());
    let before = lab.observations();
    assert_eq!(before.len(), 2);
    for observation in &before {
        let measured = &observation["measured"];
        let [requests, iops, mb_s] = ["requests", "iops", "mb_s"].map(|name| measured[name].as_f64().unwrap());
        assert!(requests > 0.0 && (mb_s / (iops * 4096.0 / 1e6) - 1.0).abs() < 1e-6, "{observation}");
    }
    assert_eq!(lab.left_behind(), Vec::<PathBuf>::new());
    let _ = lab.measure(&words(&NATIVE, &["--rounds", "2"])).success();
    let after = lab.observations();
    assert_eq!(after.len(), 4);
    assert_eq!(after[..2], before, "what was measured is not measured again");
    for other in [&["--rounds", "2", "--cache", "none"][..], &["--rounds", "2", "--align", "8K"]] {
        let refused = lab.measure(&words(&NATIVE, other)).code_is(1);
        assert!(
            refused.stderr.contains("another experiment") && refused.stderr.contains("--out"),
            "{}",
            refused.stderr
        );
    }
    assert_eq!(lab.observations(), after);
}

/// fio runs named workloads and users' own job files. What it ran is beside the results, for anyone to run.
#[test]
fn fio_drives_the_arrays_by_job_files_that_anyone_can_run() {
    let lab = Lab::new();
    fs::write(lab.path("mine.fio"), "[global]\nioengine=libaio\nfilename=/nowhere\n[mine]\nrw=randread\nbs=8k\n")
        .unwrap();
    let loads = ["--workload", "esg-oltp", "--workload", "fio:mine.fio", "--rounds", "1"];
    let _ = lab.measure(&loads).success();
    assert_eq!(lab.observations().len(), 4);
    let [array, socket] = ["a b c", "s.sock"].map(|name| lab.path(name));
    fs::create_dir(&array).unwrap();
    let members = ["0", "1", "2"].map(|name| array.join(name));
    let create = ["create", "--level", "5", "--size", "16M"].map(Path::new).into_iter();
    let _ = uraid(create.chain(members.iter().map(PathBuf::as_path))).success();
    let mut serve = command();
    serve.args(["serve", "--socket"]).arg(&socket).args(&members);
    let server = Process::start_with_open_stdout(serve);
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    for job in ["esg-oltp", "mine"] {
        let mut fio = client_command("fio");
        fio.arg(lab.path("lab/jobs").join(job).with_extension("fio"))
            .args(["--output-format=json", "--output"])
            .arg(lab.path("fio.json"));
        fio.env("URAID_URI", &uri).env("URAID_SIZE", "16m").env("URAID_SEED", "1");
        let _ = run(fio).success();
        let report: Value = serde_json::from_slice(&fs::read(lab.path("fio.json")).unwrap()).unwrap();
        assert!(report["jobs"][0]["mixed"]["total_ios"].as_u64().unwrap() > 0, "{report:#}");
        let sizes = if job == "mine" { "8k" } else { "4096" };
        assert_eq!(report["jobs"][0]["job options"]["bs"], sizes);
    }
    server.signal(Signal::TERM);
    let _ = server.finish(TIME_MAX).success();
}

/// Ctrl-C ends a run: it says how to go on, and leaves no server and no member. The next run measures what is missing.
#[test]
fn an_interrupted_run_goes_on() {
    let lab = Lab::new();
    let arguments = words(&NATIVE, &["--rounds", "2"]);
    let running = Process::start(lab.chunk(&arguments));
    lab.until_measured();
    running.signal(Signal::INT);
    let ended = running.finish(TIME_MAX).code_is(1);
    assert!(
        ended.stderr.contains("interrupted") && ended.stderr.contains("the same command goes on"),
        "{}",
        ended.stderr
    );
    assert_eq!(lab.left_behind(), Vec::<PathBuf>::new());
    assert_eq!(processes(lab.directory.path()), 0, "no server is left");
    let before = lab.observations();
    assert!((1..4).contains(&before.len()), "{before:?}");
    let _ = lab.measure(&arguments).success();
    assert_eq!(lab.observations()[..before.len()], before);
    assert_eq!(lab.observations().len(), 4);
}

/// A killed run takes its server with it, and the next one removes what it left.
#[test]
fn a_killed_run_leaves_no_server_and_its_members_go_with_the_next() {
    let lab = Lab::new();
    let arguments = words(&NATIVE, &["--rounds", "2"]);
    let mut running = Process::start(lab.chunk(&arguments));
    lab.until_measured();
    running.kill();
    let end = Instant::now() + TIME_MAX;
    while processes(lab.directory.path()) > 0 {
        assert!(Instant::now() < end, "the server outlives its laboratory");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(lab.left_behind().len(), 2, "sockets and members");
    let _ = lab.measure(&arguments).success();
    assert_eq!(lab.left_behind(), Vec::<PathBuf>::new());
}

/// Devices (files stand for them here) that hold something stay as they are; blank ones are blank again at the end.
#[test]
fn only_blank_devices_are_used() {
    const SIZE: usize = 16 << 20;
    let lab = Lab::new();
    let devices = ["d0", "d1", "d2"].map(|name| lab.path(name));
    devices.iter().for_each(|path| fs::write(path, vec![0; SIZE]).unwrap());
    let measure = || {
        let mut bench = command();
        bench.current_dir(lab.directory.path()).env("TMPDIR", lab.directory.path());
        bench.args(["bench", "chunk"]).args(&SHORT[..2]).args(&SHORT[4..]).args(NATIVE).args(["--rounds", "1"]);
        bench.args(["--out", "lab", "--members"]).args(&devices);
        Process::start(bench).finish(TIME_MAX)
    };
    let _ = measure().success();
    let _ = fs::remove_dir_all(lab.path("lab"));
    let _ = measure().success();
    let content = Random::new(1).bytes(SIZE);
    fs::write(&devices[1], &content).unwrap();
    fs::remove_dir_all(lab.path("lab")).unwrap();
    let before = fs::read(&devices[0]).unwrap();
    let refused = measure().code_is(1);
    assert!(refused.stderr.contains("d1"), "{}", refused.stderr);
    assert!(
        fs::read(&devices[1]).unwrap() == content && fs::read(&devices[0]).unwrap() == before,
        "nothing is written"
    );
}

#[test]
fn what_makes_no_sense_is_said_before_anything_is_made() {
    let lab = Lab::new();
    fs::write(lab.path("x.fio"), "[x]\n").unwrap();
    for (more, code, wanted) in [
        (&["--workload", "esg-nothing"][..], 2, "uraid bench workloads"),
        (&["--workload", "vm", "--workload", "vm"], 2, "name each once"),
        (&["--workload", "trace:missing"], 1, "missing"),
        (&["--workload", "fio:x.fio", "--driver", "native"], 2, "--driver fio"),
        (&["--level", "rm2", "--driver", "native"], 2, "RM2"),
        (&["--chunks", "3K", "--driver", "native"], 2, "multiples of 4K"),
        (&["--size", "16T", "--driver", "native"], 1, "free"),
    ] {
        let mut bench = command();
        bench.current_dir(lab.directory.path()).args(["bench", "chunk", "--dir", "lab", "--count", "3"]).args(more);
        let refused = run(bench).code_is(code);
        assert!(refused.stderr.contains(wanted), "{more:?}: {}", refused.stderr);
    }
    let mut bench = lab.chunk(&["--rounds", "1"]);
    bench.env("PATH", "/nowhere");
    let refused = run(bench).code_is(1);
    assert!(
        refused.stderr.contains("apt install fio") && refused.stderr.contains("--driver native"),
        "{}",
        refused.stderr
    );
    assert!(!lab.path("lab/results.json").exists() && lab.left_behind().is_empty());
}

/// Whole files from a real ext4: the paper's two tables, for arrays of one's own. What was mounted is unmounted.
#[test]
fn whole_files_are_read_from_a_file_system() {
    let lab = Lab::new();
    let retrieval = |more: &[&str]| {
        let mut bench = command();
        bench.current_dir(lab.directory.path()).env("TMPDIR", lab.directory.path());
        bench.args(["bench", "retrieval", "--dir", "lab", "--size", "64M", "--count", "3", "--level", "0,5"]);
        bench.args(["--chunks", "64K", "--processes", "2", "--time", "1s"]).args(more);
        Process::start(bench)
    };
    let files = ["--files", "300", "--price", "2"];
    let found = retrieval(&words(&files, &["--rounds", "1"])).finish(TIME_MAX).success();
    assert!(found.text().contains("has the most Bang, "), "{}", found.text());
    let before = lab.observations();
    assert_eq!(before.len(), 2);
    for it in &before {
        let times: Vec<f64> = it["mean_s"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
        assert!(times.len() == 2 && times.iter().all(|time| *time > 0.0), "{it}");
        assert!((2..=600).contains(&it["files"].as_u64().unwrap()), "{it}");
    }
    let report = fs::read_to_string(lab.path("lab/report.md")).unwrap();
    assert!(report.contains("Table I:") && report.contains("Table II:"), "{report}");
    let summary: Value = serde_json::from_slice(&fs::read(lab.path("lab/summary.json")).unwrap()).unwrap();
    for row in summary["rows"].as_array().unwrap() {
        // Of three members RAID 5 has two for data; superblocks and logs take a little.
        let room = if row["config"]["level"] == "5" { 2.0 / 3.0 } else { 1.0 };
        let cost = row["cost"].as_f64().unwrap();
        assert!((cost / (2.0 / room) - 1.0).abs() < 0.15, "{row:#}");
    }
    let nothing_is_left = || {
        assert_eq!(lab.left_behind(), Vec::<PathBuf>::new());
        assert_eq!(processes(lab.directory.path()), 0, "no server and no nbdfuse is left");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(lab.directory.path().to_str().unwrap()), "{mounts}");
    };
    nothing_is_left();
    let running = retrieval(&words(&files, &["--rounds", "3"]));
    let end = Instant::now() + TIME_MAX;
    while lab.observations().len() < 3 {
        assert!(Instant::now() < end, "nothing more was measured");
        std::thread::sleep(Duration::from_millis(20));
    }
    running.signal(Signal::INT);
    let ended = running.finish(TIME_MAX).code_is(1);
    assert!(ended.stderr.contains("the same command goes on"), "{}", ended.stderr);
    assert_eq!(lab.observations()[..2], before, "what was measured is kept");
    nothing_is_left();
    let running = retrieval(&words(&files, &["--rounds", "4"]));
    let nbdfuse = loop {
        assert!(Instant::now() < end, "nothing is mounted");
        if let Some(pid) = nbdfuse_of(lab.directory.path()) {
            break pid;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    rustix::process::kill_process(nbdfuse, Signal::KILL).unwrap();
    let _ = running.finish(TIME_MAX).code_is(1);
    nothing_is_left();
    let small = retrieval(&["--files", "3000", "--rounds", "1", "--out", "other"]).finish(TIME_MAX).code_is(1);
    assert!(small.stderr.contains("fewer --files"), "{}", small.stderr);
    nothing_is_left();
}

/// What differs in every round is told apart from what does not.
#[test]
fn a_comparison_tells_what_differs() {
    let lab = Lab::new();
    let _ = lab.measure(&words(&NATIVE, &["--rounds", "1"])).success();
    let compare = |before: &str, after: &str| {
        let mut compare = command();
        compare.current_dir(lab.directory.path()).args(["bench", "compare", "--json", before, after]);
        run(compare)
    };
    // The same results twice as fast, and in six rounds: what differs is known without measuring.
    let of = |factor: f64, name: &str| {
        let mut results = lab.results();
        let first = lab.observations();
        let round = |round: usize| {
            first.iter().cloned().map(move |mut it| {
                it["round"] = round.into();
                let faster = if it["config"]["chunk"] == 16 << 10 { factor } else { 1.0 };
                it["measured"]["mb_s"] = (faster * (100.0 + round as f64)).into();
                it
            })
        };
        results["observations"] = (0..6).flat_map(round).collect();
        fs::create_dir(lab.path(name)).unwrap();
        fs::write(lab.path(name).join("results.json"), results.to_string()).unwrap();
    };
    of(1.0, "before");
    of(2.0, "after");
    let found = compare("before", "after").success().json();
    let differences = found["differences"].as_array().unwrap();
    let significant: Vec<bool> = differences.iter().map(|it| it["is_significant"].as_bool().unwrap()).collect();
    assert_eq!(significant, [true, false], "{found:#}");
    assert!((differences[0]["change"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    let nothing = compare("lab/figures", "after").code_is(1);
    assert!(nothing.stderr.contains("results.json"), "{}", nothing.stderr);
}
