//! `cargo xtask lint`: formatting and clippy of the workspace and of the fuzz targets, docs, the directions of
//! dependencies and the source tree's rules.
//!
//! Every check runs even after one failed, and every failure is listed at the end.

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::project::{Project, eprint_step, run_program};
use crate::{fuzz, reliability, source};

/// Each package of the workspace and the project's packages that it may use. Nothing may use `uraid`, the command line.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("uraid-layout", &[]),
    ("uraid-io", &["uraid-layout"]),
    ("uraid-nbd", &[]),
    ("uraid-sim", &["uraid-layout", "uraid-io"]),
    ("uraid", &["uraid-layout", "uraid-io", "uraid-nbd", "uraid-sim"]),
    ("uraid-benches", &["uraid-layout", "uraid-io", "uraid-nbd"]),
    ("uraid-tests", &[]),
    ("xtask", &["uraid-tests"]),
];

/// Libraries that only some packages may use, and why.
const CONFINED: &[(&str, &[&str], &str)] = &[
    ("tokio", &["uraid-nbd", "uraid"], "layout and io run without an executor"),
    ("io-uring", &["uraid-io"], "only the I/O crate talks to disks"),
    ("anyhow", &["uraid", "uraid-tests", "xtask"], "libraries have one error enum each"),
    ("clap", &["uraid", "xtask"], "only programs have a command line"),
];

/// Runs every check; an error that lists each failure.
pub(crate) fn run(project: &Project) -> anyhow::Result<()> {
    let failures = failures_of(project)?;
    if failures.is_empty() {
        eprint_step("lint: clean");
        return Ok(());
    }
    let listed: String = failures.iter().map(|failure| format!("\n  - {failure}")).collect();
    bail!("lint found {} failure(s):{listed}", failures.len())
}

/// Runs every check and returns the failures; an error when a check can't be run at all.
fn failures_of(project: &Project) -> anyhow::Result<Vec<String>> {
    let mut failures = Vec::new();
    eprint_step("checking the source tree");
    failures.extend(source::check(project)?);
    failures.extend(reliability::check(project).err().map(|error| format!("{error:#}")));
    eprint_step("checking the directions of dependencies");
    failures.extend(dependency_failures(&project.metadata()?)?);

    let mut doc = project.cargo(&["doc", "--no-deps", "--workspace", "--quiet"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    let fuzz_fmt = ["fmt", "--manifest-path", fuzz::MANIFEST, "--check"];
    let fuzz_clippy = ["clippy", "--manifest-path", fuzz::MANIFEST, "--locked", "--all-targets", "--quiet"];
    let mut fuzz_clippy = project.cargo(&fuzz_clippy);
    // Nothing is linked, so the fuzzer's own C++ library need not be built, nor be there.
    fuzz_clippy.args(["--", "-D", "warnings"]).env("CUSTOM_LIBFUZZER_PATH", "/none/libnone.a");
    let fmt = [project.cargo(&["fmt", "--all", "--check"]), project.cargo(&fuzz_fmt)];
    for mut command in fmt.into_iter().chain([project.cargo(&clippy), fuzz_clippy, doc]) {
        if let Err(error) = run_program(&mut command) {
            failures.push(format!("{error:#}"));
        }
    }
    Ok(failures)
}

/// What `cargo metadata` shows that [`DIRECTIONS`] or [`CONFINED`] forbid, in all kinds of dependency.
fn dependency_failures(metadata: &Value) -> anyhow::Result<Vec<String>> {
    let mut failures = Vec::new();
    for package in metadata["packages"].as_array().context("metadata lists packages")? {
        let name = package["name"].as_str().context("a package has a name")?;
        let Some((_, allowed)) = DIRECTIONS.iter().find(|(listed, _)| *listed == name) else {
            failures
                .push(format!("package {name} is not in DIRECTIONS of xtask/src/lint.rs: say what it may depend on"));
            continue;
        };
        for dependency in package["dependencies"].as_array().context("a package lists dependencies")? {
            let used = dependency["name"].as_str().context("a dependency has a name")?;
            let ours = DIRECTIONS.iter().any(|(listed, _)| *listed == used);
            if ours && !allowed.contains(&used) {
                failures.push(format!("{name} depends on {used}, against the directions in xtask/src/lint.rs"));
            }
            let confined = CONFINED.iter().find(|(library, users, _)| *library == used && !users.contains(&name));
            if let Some((_, users, reason)) = confined {
                failures.push(format!("{name} depends on {used}, which only {} may use: {reason}", users.join(", ")));
            }
        }
    }
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(package: &str, dependencies: &[&str]) -> Value {
        let dependencies: Vec<Value> = dependencies.iter().map(|name| json!({ "name": name })).collect();
        json!({ "packages": [{ "name": package, "dependencies": dependencies }] })
    }

    #[test]
    fn allowed_directions_pass() {
        let allowed = metadata("uraid", &["uraid-layout", "uraid-io", "uraid-nbd", "uraid-sim", "tokio", "anyhow"]);
        assert_eq!(dependency_failures(&allowed).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn each_forbidden_direction_is_named() {
        for (package, dependency) in [
            ("uraid-layout", "uraid-io"),
            ("uraid-layout", "tokio"),
            ("uraid-nbd", "uraid-io"),
            ("uraid-io", "tokio"),
            ("uraid-io", "uraid"),
            ("uraid-io", "uraid-sim"),
            ("uraid-io", "anyhow"),
            ("uraid-tests", "uraid"),
        ] {
            let failures = dependency_failures(&metadata(package, &["bytes", dependency])).unwrap();
            assert_eq!(failures.len(), 1, "{package} -> {dependency}: {failures:?}");
            assert!(failures[0].contains(package) && failures[0].contains(dependency), "{failures:?}");
        }
    }

    #[test]
    fn a_package_that_nobody_placed_is_a_failure() {
        let failures = dependency_failures(&metadata("uraid-new", &[])).unwrap();
        assert_eq!(failures.len(), 1);
        assert!(failures[0].contains("uraid-new"), "{failures:?}");
    }
}
