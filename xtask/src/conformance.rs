//! `cargo xtask conformance`: `docs/nbd-conformance.md`, made of the list of rules and the tests that check them.
//!
//! `cargo xtask lint` checks that the document is that of the list, and that each test there exists.

mod rules;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};

use crate::project::{Project, eprint_step};
use rules::{EXTENDED_HEADERS, PROTOCOL, Rule, Standing, URI};

/// Short names of files with tests, which tests' names begin with.
const FILES: &[(&str, &str)] = &[
    ("clients", "crates/nbd/tests/serve/clients.rs"),
    ("cves", "crates/nbd/tests/serve/cves.rs"),
    ("endpoint", "crates/nbd/src/server/endpoint.rs"),
    ("extended", "crates/nbd/src/transmission/tests/extended.rs"),
    ("handshake", "crates/nbd/src/handshake/tests.rs"),
    ("limits", "crates/nbd/tests/serve/limits.rs"),
    ("protocol", "crates/nbd/tests/serve/protocol.rs"),
    ("requests", "crates/nbd/tests/serve/requests.rs"),
    ("several", "crates/nbd/src/handshake/tests/several.rs"),
    ("shutdown", "crates/nbd/tests/serve/shutdown.rs"),
    ("sockets", "crates/nbd/tests/serve/sockets.rs"),
    ("tls", "crates/nbd/tests/serve/tls.rs"),
    ("transmission", "crates/nbd/src/transmission/tests.rs"),
    ("engine bytes", "crates/io/tests/engine/bytes.rs"),
    ("engine log", "crates/io/tests/engine/log.rs"),
    ("e2e bytes", "tests/e2e/bytes.rs"),
    ("e2e client_limits", "tests/e2e/client_limits.rs"),
    ("e2e clients", "tests/e2e/clients.rs"),
    ("e2e connection_threads", "tests/e2e/connection_threads.rs"),
    ("e2e extended", "tests/e2e/extended.rs"),
    ("e2e limits", "tests/e2e/limits.rs"),
    ("e2e protocol", "tests/e2e/protocol.rs"),
    ("e2e sparse", "tests/e2e/sparse.rs"),
    ("e2e tls", "tests/e2e/tls.rs"),
];

const HEAD: &str = "\
# Conformance to the NBD protocol

<!-- Made by `cargo xtask conformance` of the list in xtask/src/conformance/rules.rs, do not edit. -->

The rules of [doc/proto.md](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md), of its branch for
[extended headers](https://github.com/NetworkBlockDevice/nbd/blob/extension-ext-header/doc/proto.md), and of
[doc/uri.md](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md) that bind a server, in a few words, with
the section that has each, and the tests that check it. Rules for clients are left out. What no test checks says why.
";

/// Writes the document.
///
/// # Errors
/// When the list names a test that there is not, or the document can't be written.
pub(crate) fn write(project: &Project) -> anyhow::Result<()> {
    let path = path(project);
    fs::write(&path, document(project)?).with_context(|| format!("writing {}", path.display()))?;
    eprint_step(&format!("wrote {}", path.display()));
    Ok(())
}

/// An error when the document is not that of the list, or the list names a test that there is not.
pub(crate) fn check(project: &Project) -> anyhow::Result<()> {
    let path = path(project);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let is_current = document(project)? == text;
    ensure!(is_current, "{}: it is not what the list of rules makes; run `cargo xtask conformance`", path.display());
    Ok(())
}

fn path(project: &Project) -> PathBuf {
    project.root().join("docs/nbd-conformance.md")
}

fn document(project: &Project) -> anyhow::Result<String> {
    let tests = tests(project)?;
    let mut text = HEAD.to_owned();
    for (title, rules) in [("The protocol", PROTOCOL), ("Extended headers", EXTENDED_HEADERS), ("URIs", URI)] {
        write!(text, "\n## {title}\n\n| section | rule | checked by |\n|---|---|---|\n")?;
        for Rule(section, rule, standing) in rules {
            let standing = match standing {
                Standing::Explained(why) => (*why).to_owned(),
                Standing::Checked(names) => {
                    ensure!(!names.is_empty(), "the rule {rule:?} is checked by something");
                    names.iter().map(|name| link(name, &tests)).collect::<anyhow::Result<Vec<_>>>()?.join(", ")
                }
            };
            writeln!(text, "| {section} | {rule} | {standing} |")?;
        }
    }
    Ok(text)
}

/// Every test of the listed files, as the list names them: `file::test`.
fn tests(project: &Project) -> anyhow::Result<BTreeSet<String>> {
    let mut tests = BTreeSet::new();
    for (short, path) in FILES {
        let text = fs::read_to_string(project.root().join(path)).with_context(|| format!("reading {path}"))?;
        tests.extend(names(&text).into_iter().map(|name| format!("{short}::{name}")));
    }
    Ok(tests)
}

/// The functions of a file that are tests, or are given shapes to be.
fn names(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_test = |index: usize, name: &str| {
        let is_marked =
            lines[..index].iter().rev().take_while(|line| line.starts_with("#[")).any(|&line| line == "#[test]");
        is_marked || lines.iter().any(|line| line.starts_with("uraid_tests::for_every_shape!") && line.contains(name))
    };
    let named = lines.iter().enumerate().filter_map(|(index, line)| {
        let (name, _) = line.strip_prefix("fn ")?.split_once('(')?;
        is_test(index, name).then_some(name)
    });
    named.collect()
}

fn link(name: &str, tests: &BTreeSet<String>) -> anyhow::Result<String> {
    let Some((_, path)) = name.split_once("::").and_then(|(short, _)| FILES.iter().find(|(known, _)| *known == short))
    else {
        bail!("{name}: FILES of xtask/src/conformance.rs has no such file");
    };
    ensure!(tests.contains(name), "{name}: {path} has no such test");
    Ok(format!("[{name}](../{path})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_count() {
        let text = "#[test]\nfn one() {\n}\n    #[test]\n    #[should_panic]\n    fn two(\n\nfn helper() {}\n\
                    uraid_tests::for_every_shape!(three);\nfn three(shape: &Shape) {}\n";
        assert_eq!(names(text), ["one", "two", "three"]);
    }

    #[test]
    fn tests_that_there_are_not_are_errors() {
        let tests = BTreeSet::from(["requests::one".to_owned()]);
        assert_eq!(link("requests::one", &tests).unwrap(), "[requests::one](../crates/nbd/tests/serve/requests.rs)");
        assert!(link("requests::two", &tests).unwrap_err().to_string().contains("no such test"));
        assert!(link("elsewhere::one", &tests).unwrap_err().to_string().contains("no such file"));
    }
}
