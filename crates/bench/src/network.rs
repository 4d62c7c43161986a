//! `cargo xtask bench network`: what it costs that members are exports of NBD servers.
//!
//! The same three files are members in three ways: as they are, as exports of nbdkit, and as exports of nbdkit that
//! nbdfuse makes files of again. Each way has an array of its own, all of them are served all the time, and one is
//! loaded at a time. The table has the medians of the rounds.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use uraid_tests::process::Process;

use super::fio::{self, End, Load};
use super::generator;
use super::machine::{Place, machine};
use super::measured::Unit;
use super::progress::say;
use super::report::median;
use super::scratch::{MOUNT, Scratch};
use super::server::{EXPORT, Programs};

/// What to measure, and how long.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// MiB of each member
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    mebibytes: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

const LOADS: [(&str, Load, Unit); 4] = [
    ("4K random read QD32", Load::new("randread", "4k", 32), Unit::Kiops),
    ("4K random write QD32", Load::new("randwrite", "4k", 32), Unit::Kiops),
    ("1M read QD8", Load::new("read", "1m", 8), Unit::MegabytesPerSecond),
    ("1M write QD8", Load::new("write", "1m", 8), Unit::MegabytesPerSecond),
];

const MEMBERS: usize = 3;

/// How long any step may take, and between two looks whether it is over.
const STEP_MAX: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How members are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Files,
    Exports,
    Fuse,
}

const WAYS: [(&str, Way); 3] = [("files", Way::Files), ("exports", Way::Exports), ("exports by nbdfuse", Way::Fuse)];

/// An array that is served, with what its members need.
struct Array {
    socket: PathBuf,
    place: PathBuf,
    /// Bytes that are loaded.
    span: u64,
    _server: Process,
    _helpers: Vec<Process>,
}

/// Measures, and prints the table as markdown.
#[expect(clippy::print_stdout, reason = "the table is what was asked for")]
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let programs = Programs::find()?;
    let (directory, medium) = options.place.find()?;
    let scratch = Scratch::create(&directory)?;
    let start = |(name, way): &(&str, Way)| {
        say(&format!("starting and filling the array of {name}"));
        Array::start(*way, &scratch.path().join(format!("{way:?}")), options.mebibytes << 20, &programs)
    };
    let arrays = WAYS.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let mut rows = String::new();
    for (name, load, unit) in LOADS {
        let mut found = vec![Vec::new(); arrays.len()];
        for round in 1..=options.rounds {
            say(&format!("{name}: round {round} of {}", options.rounds));
            for (array, values) in arrays.iter().zip(&mut found) {
                values.push(array.measure(load, unit, options.seconds)?);
            }
        }
        let medians: Vec<f64> = found.into_iter().filter_map(median).collect();
        let cells: Vec<String> = medians.iter().map(|value| format!("{value:.1}")).collect();
        writeln!(rows, "| {name}, {} | {} | {:.2} |", unit.symbol(), cells.join(" | "), medians[1] / medians[2])?;
    }
    println!("{}; {medium}; RAID 5 of {MEMBERS}; medians of {} rounds", machine(), options.rounds);
    let names: Vec<&str> = WAYS.iter().map(|(name, _)| *name).collect();
    println!("\n| load | {} | exports beside nbdfuse |\n|---|---:|---:|---:|---:|\n{rows}", names.join(" | "));
    Ok(())
}

impl Array {
    fn start(way: Way, place: &Path, share: u64, programs: &Programs) -> anyhow::Result<Self> {
        fs::create_dir(place).with_context(|| format!("creating {}", place.display()))?;
        let mut helpers = Vec::new();
        let mut members = Vec::new();
        for number in 0..MEMBERS {
            // The janitor unmounts what is in a directory of a directory here.
            let own = place.with_extension(number.to_string());
            fs::create_dir(&own)?;
            let disk = own.join("disk");
            fs::File::create(&disk)?.set_len(share)?;
            members.push(match way {
                Way::Files => disk,
                Way::Exports => {
                    helpers.push(nbdkit(&own, &disk)?);
                    uri(&own).into()
                }
                Way::Fuse => {
                    helpers.push(nbdkit(&own, &disk)?);
                    let mount = own.join(MOUNT);
                    fs::create_dir(&mount)?;
                    helpers.push(nbdfuse(&own, &mount)?);
                    mount.join("nbd")
                }
            });
        }
        let mut create = Command::new(&programs.uraid);
        create.args(["create", "--level", "5"]).args(&members);
        Process::complete(&mut create, &place.join("create.log"), STEP_MAX)?;
        let socket = place.join("array.sock");
        let mut serve = Command::new(&programs.uraid);
        serve.args(["serve", "--export", EXPORT, "--socket"]).arg(&socket).args(&members);
        let mut server = Process::start_logged(&mut serve, &place.join("server.log"))?;
        until_there(&socket, &mut server)?;
        // A log and what else there is takes a part of each member.
        let span = share;
        let mut fill = Command::new(&programs.generator);
        fill.args(generator::fill_arguments(&socket, EXPORT, span));
        Process::complete(&mut fill, &place.join("fill.log"), STEP_MAX).context("filling")?;
        Ok(Self { socket, place: place.into(), span, _server: server, _helpers: helpers })
    }

    /// In the load's unit.
    fn measure(&self, load: Load, unit: Unit, seconds: u64) -> anyhow::Result<f64> {
        let report = self.place.join("report");
        let mut job = fio::job(load, End::SecondsAndFlush(seconds), self.span, &self.socket, &report);
        Process::complete(&mut job, &self.place.join("fio.log"), STEP_MAX)?;
        Ok(fio::outcome(&fs::read_to_string(&report)?, unit)?.value)
    }
}

fn uri(own: &Path) -> String {
    format!("nbd+unix:///?socket={}", own.join("socket").display())
}

/// A server of a file.
fn nbdkit(own: &Path, disk: &Path) -> anyhow::Result<Process> {
    let pid_file = own.join("nbdkit.pid");
    let mut command = Command::new("nbdkit");
    command.arg("-P").arg(&pid_file).arg("-U").arg(own.join("socket")).arg("file").arg(disk);
    Process::start_daemon(&mut command, &own.join("nbdkit.log"), &pid_file)
}

/// A file of an export.
fn nbdfuse(own: &Path, mount: &Path) -> anyhow::Result<Process> {
    let mut command = Command::new("nbdfuse");
    let mut process = Process::start_logged(command.arg(mount).arg(uri(own)), &own.join("nbdfuse.log"))?;
    until_there(&mount.join("nbd"), &mut process)?;
    Ok(process)
}

/// Waits until a process has made what it is started for.
fn until_there(path: &Path, process: &mut Process) -> anyhow::Result<()> {
    let began = Instant::now();
    while !path.exists() {
        process.check_alive()?;
        ensure!(began.elapsed() < STEP_MAX, "{} does not appear", path.display());
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
