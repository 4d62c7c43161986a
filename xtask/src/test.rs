//! `cargo xtask test`: the packages that the tests need, the binary, then every test of the workspace.
//!
//! All of it is built once, with the profile that searches for bugs use, too.
//!
//! A program that is missing is a failure that names its package. Only what takes root and devices is left out where
//! they are not there, and that is said.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::Value;

use crate::packages;
use crate::project::{Profile, Project, eprint_step, run_program};

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
    let uraid = project.server(Profile::Checked)?;
    let end_to_end = binaries(project, &["--test", "e2e"])?;
    let left_out = why_not_mount();
    if let Some(reason) = left_out {
        eprint_step(&format!("tests that mount file systems are left out: {reason}"));
    }
    let run = |binary: &Binary, printed: Printed| {
        let mut command = Command::new(&binary.executable);
        command.current_dir(&binary.package).env("CARGO_MANIFEST_DIR", &binary.package).args(&options.filter);
        if std::env::var_os("URAID_BIN").is_none() {
            command.env("URAID_BIN", &uraid);
        }
        if printed == Printed::Later && std::env::var_os("RUST_TEST_THREADS").is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env("RUST_TEST_THREADS", (2 * cores).to_string());
        }
        if left_out.is_some() {
            command.args(["--skip", "mount::"]);
        }
        binary.run(&mut command, printed)
    };
    let mut failed: Vec<String> = std::thread::scope(|scope| -> anyhow::Result<Vec<String>> {
        let beside = scope.spawn(|| end_to_end.iter().filter_map(|binary| run(binary, Printed::Later)).collect());
        let others = binaries(project, &[]);
        let failed = others.map(|others| {
            let others = others.iter().filter(|binary| !end_to_end.contains(binary));
            others.filter_map(|binary| run(binary, Printed::AtOnce)).collect()
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

/// When a test binary's output is printed: as it comes, or when it has ended, so that two do not mix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Printed {
    AtOnce,
    Later,
}

/// A built test binary and its package's directory.
#[derive(PartialEq, Eq)]
struct Binary {
    executable: PathBuf,
    package: PathBuf,
}

impl Binary {
    /// Runs it: what failed, if anything did.
    fn run(&self, command: &mut Command, printed: Printed) -> Option<String> {
        let name = self.executable.display();
        let status = match printed {
            Printed::AtOnce => {
                eprint_step(&format!("running {name}"));
                command.status()
            }
            Printed::Later => command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().map(|output| {
                eprint_step(&format!("{name} printed"));
                print(&output.stdout);
                print(&output.stderr);
                output.status
            }),
        };
        match status {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("{name} ({status})")),
            Err(error) => Some(format!("{name} did not start: {error}")),
        }
    }
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

fn print(bytes: &[u8]) {
    // Nobody reads a closed standard error.
    let _ = std::io::stderr().write_all(bytes);
}

/// What a file system on an array takes that is not there.
fn why_not_mount() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("they take root");
    }
    let devices = [("/dev/fuse", "there is no /dev/fuse"), ("/dev/loop-control", "there are no loop devices")];
    devices.into_iter().find(|(path, _)| !Path::new(path).exists()).map(|(_, reason)| reason)
}
