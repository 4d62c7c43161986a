//! The program under test: `URAID_BIN`, or the release binary, built when it has to be.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::process::{Output, Process};
use crate::run::run;

/// How long a build of the release binary may take.
const BUILD_TIME_MAX: Duration = Duration::from_secs(900);

/// A command of the binary under test, to be given arguments. It finds no server by itself, nor is it found: a test
/// that wants that gives it a directory, `URAID_RUNTIME_DIR`.
#[must_use]
pub fn command() -> Command {
    let mut command = Command::new(path());
    command.env("NO_COLOR", "1").env("URAID_RUNTIME_DIR", "/dev/null");
    command
}

/// Runs `uraid` to its end with the arguments given.
#[track_caller]
pub fn uraid<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    let mut command = command();
    command.args(arguments);
    run(command)
}

/// What `uraid examine --json` prints of the members.
#[must_use]
#[track_caller]
pub fn examine(members: &[PathBuf]) -> Value {
    let words = ["examine", "--json"].map(OsStr::new).into_iter();
    uraid(words.chain(members.iter().map(|member| member.as_os_str()))).success().json()
}

static PATH: OnceLock<PathBuf> = OnceLock::new();

/// Has this be the binary under test.
///
/// # Panics
/// If another one is already.
pub fn choose(path: &Path) {
    assert!(*PATH.get_or_init(|| path.to_owned()) == path, "one binary is tested at a time");
}

/// Where the binary under test is.
pub fn path() -> &'static Path {
    PATH.get_or_init(|| std::env::var_os("URAID_BIN").map_or_else(build, PathBuf::from))
}

/// A cargo command that builds what it would for a user. Cargo tells the programs that it runs which package they are
/// of; build scripts of dependencies that look at that would run again, and what depends on them be built again.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let is_of_package = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        name.starts_with(b"CARGO_PKG_") || name.starts_with(b"CARGO_MANIFEST_")
    };
    std::env::vars_os().filter(|(name, _)| is_of_package(name)).for_each(|(name, _)| {
        cargo.env_remove(name);
    });
    cargo
}

/// Builds the release binary and returns where cargo put it.
fn build() -> PathBuf {
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--package", "uraid", "--bin", "uraid", "--message-format", "json"]);
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let built = Process::start(cargo).finish(BUILD_TIME_MAX).success();
    let text = built.text();
    let messages = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let executable = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next();
    executable.expect("cargo names the executable that it built")
}
