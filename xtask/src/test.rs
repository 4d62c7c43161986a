//! `cargo xtask test`: the packages that the tests need, the binary, then every test of the workspace.
//!
//! All of it is built once, with the profile that searches for bugs use, too.
//!
//! A program that is missing is a failure that names its package. Only what takes root and devices is left out where
//! they are not there, and that is said.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::Value;
use uraid_tests::process::Process;

use crate::package;
use crate::packages;
use crate::project::{Profile, Project, eprint_step, run_program};

/// Far longer than the end-to-end tests take on a slow machine: one of them hangs.
const TIME_MAX: Duration = Duration::from_secs(40 * 60);

/// How glibc keeps memory for tests that copy the images of whole members: it asks the kernel for large pages, and does
/// not give them back after each copy. What such tests take is a third of it then, or less. (Variable and value.)
const KEEP_MEMORY: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296:\
     glibc.malloc.top_pad=67108864",
);

/// What to test and whether packages may be installed.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// Never install packages, not even as root: name what is missing and fail
    #[arg(long)]
    no_install: bool,
    /// Run only the tests whose names contain one of these, for example `degraded::raid5`
    filter: Vec<String>,
}

/// Runs the tests; an error when a package is missing, the build fails or a test fails.
///
/// The end-to-end tests mostly wait: for servers, clients and deadlines. They are built first, and run while all others
/// are built and run, which compute.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    packages::ensure(packages::TESTS, !options.no_install)?;
    let left_out = why_not_mount();
    match left_out {
        Some(reason) => eprint_step(&format!("tests that mount file systems are left out: {reason}")),
        // Otherwise its test names what is missing.
        None if options.no_install => {}
        None => packages::MOUNT_CRATES.iter().try_for_each(|program| package::ensure_program(project, program))?,
    }
    let uraid = project.server(Profile::Checked)?;
    let end_to_end = binaries(project, &["--test", "e2e"])?;
    let command = |binary: &Binary| {
        let mut command = Command::new(&binary.executable);
        command.current_dir(&binary.package).env("CARGO_MANIFEST_DIR", &binary.package).args(&options.filter);
        if std::env::var_os("URAID_BIN").is_none() {
            command.env("URAID_BIN", &uraid);
        }
        if left_out.is_some() {
            command.args(["--skip", "mount::"]);
        }
        command
    };
    let log = project.target()?.join("e2e.log");
    let run_beside = |binary: &Binary| {
        let mut command = command(binary);
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env("RUST_TEST_THREADS", (3 * cores).to_string());
        }
        binary.run_logged(&mut command, &log)
    };
    let mut failed: Vec<String> = std::thread::scope(|scope| -> anyhow::Result<Vec<String>> {
        let beside = scope.spawn(|| end_to_end.iter().filter_map(run_beside).collect());
        let others = binaries(project, &[]);
        let failed = others.map(|others| {
            let others = others.iter().filter(|binary| !end_to_end.contains(binary));
            others.filter_map(|binary| binary.run(command(binary).env(KEEP_MEMORY.0, KEEP_MEMORY.1))).collect()
        });
        let beside: Vec<String> = beside.join().expect("starting a program does not panic");
        failed.map(|failed: Vec<String>| failed.into_iter().chain(beside).collect())
    })?;
    let mut documentation =
        project.cargo(&["test", "--workspace", "--doc", "--profile=checked", "--no-fail-fast", "--"]);
    if let Err(error) = run_program(documentation.args(&options.filter)) {
        failed.push(format!("{error:#}"));
    }
    ensure!(failed.is_empty(), "tests failed:\n  {}", failed.join("\n  "));
    Ok(())
}

/// A built test binary and its package's directory.
#[derive(PartialEq, Eq)]
struct Binary {
    executable: PathBuf,
    package: PathBuf,
}

impl Binary {
    /// Runs it: what failed, if anything did.
    fn run(&self, command: &mut Command) -> Option<String> {
        let name = self.executable.display();
        eprint_step(&format!("running {name}"));
        match command.status() {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("{name} ({status})")),
            Err(error) => Some(format!("{name} did not start: {error}")),
        }
    }

    /// Runs it beside others: what failed, if anything did. What it prints goes to `log`, and is printed when it has
    /// ended, so that it does not mix with that of others.
    fn run_logged(&self, command: &mut Command, log: &Path) -> Option<String> {
        let ended = Process::start_logged(command, log).and_then(|mut process| process.has_ended(TIME_MAX));
        let printed = std::fs::read_to_string(log).unwrap_or_default();
        let name = self.executable.display();
        eprint_step(&format!("{name} printed"));
        // Nobody reads a closed standard error.
        let _ = std::io::stderr().write_all(printed.as_bytes());
        match ended {
            Ok(true) => None,
            Ok(false) => Some(format!("{name} was ended after {TIME_MAX:?}: {}", hanging(&printed).join(", "))),
            Err(error) => Some(format!("{name}: {error:#}")),
        }
    }
}

/// The tests that were said to take long, and did not end.
fn hanging(printed: &str) -> Vec<&str> {
    let slow = printed
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" has been running for over 60 seconds"));
    slow.filter(|name| !printed.contains(&format!("test {name} ... "))).collect()
}

/// Builds the tests of the workspace, or of these `targets`: their binaries, in the order in which cargo names them.
fn binaries(project: &Project, targets: &[&str]) -> anyhow::Result<Vec<Binary>> {
    let arguments =
        ["test", "--workspace", "--profile=checked", "--no-run", "--message-format", "json-render-diagnostics"];
    let mut command = project.cargo(&arguments);
    command.args(targets);
    eprint_step("building the tests");
    let messages = command.stderr(Stdio::inherit()).output().context("starting cargo")?;
    ensure!(messages.status.success(), "building the tests failed");
    let messages = String::from_utf8(messages.stdout).context("cargo prints UTF-8")?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let binary = |message: Value| {
        let executable = PathBuf::from(message["executable"].as_str()?);
        let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        (message["profile"]["test"] == true).then_some(Binary { executable, package })
    };
    let binaries: Vec<Binary> = messages.filter_map(binary).collect();
    ensure!(!binaries.is_empty(), "cargo built no test");
    Ok(binaries)
}

/// What a file system on an array takes that is not there.
fn why_not_mount() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("they take root");
    }
    let devices = [("/dev/fuse", "there is no /dev/fuse"), ("/dev/loop-control", "there are no loop devices")];
    devices.into_iter().find(|(path, _)| !Path::new(path).exists()).map(|(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_hang_are_named() {
        let printed = "running 3 tests\ntest a::b has been running for over 60 seconds\ntest quick ... ok\n\
                       test a::b2 has been running for over 60 seconds\ntest a::b ... ok\n";
        assert_eq!(hanging(printed), ["a::b2"]);
    }
}
