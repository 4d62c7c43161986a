//! `cargo xtask lint`: formatting and clippy of the workspace and of the fuzz targets, docs, the directions of
//! dependencies, their licences, sources and oldest compilers, and the source tree's rules.
//!
//! Every check runs even after one failed, and every failure is listed at the end.

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::project::{Project, eprint_step, run_program};
use crate::{conformance, fuzz, package, reliability, source};

/// Each package of the workspace and the project's packages that it may use. Nothing may use `uraid`, the command line.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("uraid-layout", &[]),
    ("uraid-io", &["uraid-layout", "uraid-nbd"]),
    ("uraid-md", &["uraid-layout"]),
    ("uraid-nbd", &[]),
    ("uraid-random", &[]),
    ("uraid-sim", &["uraid-layout", "uraid-io", "uraid-random"]),
    ("uraid-model", &["uraid-layout", "uraid-io", "uraid-random"]),
    ("uraid-nbd-client", &[]),
    ("uraid-lab", &["uraid-layout", "uraid-nbd-client", "uraid-random", "uraid-model"]),
    ("uraid-serve", &["uraid-layout", "uraid-io", "uraid-nbd"]),
    (
        "uraid",
        &[
            "uraid-layout",
            "uraid-io",
            "uraid-md",
            "uraid-nbd",
            "uraid-serve",
            "uraid-random",
            "uraid-model",
            "uraid-lab",
        ],
    ),
    ("uraid-benches", &["uraid-layout", "uraid-io", "uraid-nbd"]),
    ("uraid-tests", &["uraid-nbd-client"]),
    ("uraid-bench", &["uraid-layout", "uraid-nbd-client", "uraid-model", "uraid-lab", "uraid-tests"]),
    ("xtask", &["uraid-tests"]),
];

/// Libraries that only some packages may use, and why.
const CONFINED: &[(&str, &[&str], &str)] = &[
    ("tokio", &["uraid-nbd", "uraid-serve"], "layout and io run without an executor"),
    ("io-uring", &["uraid-io"], "only the I/O crate talks to disks"),
    (
        "anyhow",
        &["uraid", "uraid-serve", "uraid-tests", "uraid-bench", "xtask"],
        "other libraries have errors that callers can tell apart",
    ),
    ("clap", &["uraid", "uraid-bench", "xtask"], "only programs have a command line"),
    ("plotters", &["uraid-model"], "only what is asked for figures draws them"),
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
    failures.extend(conformance::check(project).err().map(|error| format!("{error:#}")));
    eprint_step("checking the directions of dependencies");
    failures.extend(dependency_failures(&project.metadata()?)?);

    eprint_step("checking which compilers the dependencies need");
    failures.extend(compiler_failures(&project.metadata_of_all()?)?);
    if package::is_installed(project, "cargo-deny") {
        // It also warns of what is allowed and not there, and of what it makes of workspaces.
        let deny = ["deny", "--log-level", "error", "check", "licenses", "bans", "sources"];
        failures.extend(run_program(&mut project.cargo(&deny)).err().map(|error| format!("{error:#}")));
    } else {
        eprint_step("licences and sources of dependencies are not checked: cargo install cargo-deny --locked");
    }

    // As tests are: what build scripts and macros of dependencies take is built once for all.
    let mut doc = project.cargo(&["doc", "--no-deps", "--workspace", "--profile=checked", "--quiet"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    let clippy = ["clippy", "--workspace", "--all-targets", "--profile=checked", "--quiet", "--", "-D", "warnings"];
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
            // Tests may depend on their own package, with what only tests need.
            let ours = used != name && DIRECTIONS.iter().any(|(listed, _)| *listed == used);
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

/// Packages of `cargo metadata` that need a newer compiler than the workspace says is enough.
fn compiler_failures(metadata: &Value) -> anyhow::Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("metadata lists packages")?;
    let needed = |package: &Value| package["rust_version"].as_str().and_then(version);
    let ours = packages.iter().find(|package| package["name"] == "uraid").and_then(needed);
    let ours = ours.context("the package uraid has a rust-version")?;
    let newer = packages.iter().filter(|package| needed(package).is_some_and(|version| version > ours));
    let failure = |package: &Value| {
        let [name, version, needed] = ["name", "version", "rust_version"].map(|field| package[field].as_str());
        let [name, version, needed] = [name, version, needed].map(Option::unwrap_or_default);
        format!("{name} {version} needs Rust {needed}, above the rust-version of the workspace")
    };
    Ok(newer.map(failure).collect())
}

/// A version of Rust: 1.90 is 1.90.0.
fn version(text: &str) -> Option<[u32; 3]> {
    let mut numbers = [0; 3];
    for (number, text) in numbers.iter_mut().zip(text.split('.')) {
        *number = text.parse().ok()?;
    }
    Some(numbers)
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
        let allowed = metadata("uraid", &["uraid-layout", "uraid-io", "uraid-serve", "uraid-model", "clap", "anyhow"]);
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
            ("uraid-sim", "uraid-model"),
            ("uraid-model", "uraid-sim"),
            ("uraid", "uraid-sim"),
            ("uraid", "tokio"),
            ("uraid-serve", "clap"),
            ("uraid-serve", "uraid"),
            ("uraid-serve", "uraid-model"),
            ("uraid-io", "anyhow"),
            ("uraid-tests", "uraid"),
            ("uraid-tests", "uraid-nbd"),
            ("uraid-nbd-client", "uraid-nbd"),
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

    #[test]
    fn who_needs_a_newer_compiler_is_named() {
        let package = |name: &str, version: Value| json!({ "name": name, "version": "2.0.1", "rust_version": version });
        let ours = package("uraid", json!("1.90"));
        let old = [package("a", json!("1.90.0")), package("b", json!("1.9")), package("c", Value::Null)];
        let all = [&old[..], std::slice::from_ref(&ours)].concat();
        let fine = json!({ "packages": all });
        assert_eq!(compiler_failures(&fine).unwrap(), Vec::<String>::new());
        let newer = [package("d", json!("1.90.1")), package("e", json!("1.100")), ours];
        let failures = compiler_failures(&json!({ "packages": newer })).unwrap();
        assert_eq!(failures.len(), 2);
        assert!(failures[0].contains("d 2.0.1 needs Rust 1.90.1"), "{failures:?}");
        assert!(compiler_failures(&json!({ "packages": old })).is_err());
    }
}
