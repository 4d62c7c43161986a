//! `cargo xtask test`: the packages that the tests need, the release binary, then every test of the workspace.
//!
//! A program that is missing is a failure that names its package. Only what takes root and devices is left out where they are not there, and that is said.

use std::path::Path;

use anyhow::Context as _;
use clap::Args;

use crate::packages;
use crate::project::{Project, eprint_step, run_program};

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
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    packages::ensure(packages::TESTS, !options.no_install)?;
    run_program(&mut project.cargo(&["build", "--release", "--package", "uraid"]))?;
    let metadata = project.metadata()?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names the target directory")?;
    let mut tests = project.cargo(&["test", "--workspace", "--no-fail-fast"]);
    tests.env("URAID_BIN", format!("{target}/release/uraid"));
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // The end-to-end tests mostly wait: for servers, clients and deadlines.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        tests.env("RUST_TEST_THREADS", (2 * cores).to_string());
    }
    tests.arg("--").args(&options.filter);
    if let Some(reason) = why_not_mount() {
        eprint_step(&format!("tests that mount file systems are left out: {reason}"));
        tests.args(["--skip", "mount::"]);
    }
    run_program(&mut tests)
}

/// What a file system on an array takes that is not there.
fn why_not_mount() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("they take root");
    }
    let devices = [("/dev/fuse", "there is no /dev/fuse"), ("/dev/loop-control", "there are no loop devices")];
    devices.into_iter().find(|(path, _)| !Path::new(path).exists()).map(|(_, reason)| reason)
}
