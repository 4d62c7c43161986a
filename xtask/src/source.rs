//! Rules of the source tree that no other tool knows: what the top level holds, how long a file and a line may be,
//! where `unsafe` may stand, which crate is free of the standard library, that no test is switched off, that files do
//! not use each other in circles, and that links lead somewhere.
//!
//! Rules about code look at [`code::only`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;

use crate::project::Project;
use crate::{circles, code, links};

/// What the top level holds, besides dot files.
const TOP_LEVEL: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "benches",
    "crates",
    "deny.toml",
    "docs",
    "fuzz",
    "tests",
    "xtask",
];

/// Longest source file, in lines.
const LINES_MAX: usize = 800;

/// Longest line of source and prose, in characters. rustfmt leaves comments and long literals as they are.
const COLUMNS_MAX: usize = 120;

/// Path prefixes of the files that may use `unsafe`.
const UNSAFE_ALLOWED: &[&str] =
    &["crates/io/src/buf", "crates/io/src/disk/uring", "crates/io/src/xor/simd", "benches/isal"];

/// The file that must switch the standard library off for its crate.
const NO_STD: &str = "crates/layout/src/lib.rs";

/// Every rule that the tree breaks, one message each.
pub(crate) fn check(project: &Project) -> anyhow::Result<Vec<String>> {
    let files = project.files()?;
    let mut failures = top_level_failures(files.iter().filter_map(|file| file.iter().next()?.to_str()));
    let (mut prose, mut code) = (BTreeMap::new(), BTreeMap::new());
    for file in &files {
        let rules = match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => file_failures,
            Some("md") => prose_failures,
            _ => continue,
        };
        let text = std::fs::read_to_string(project.root().join(file))
            .with_context(|| format!("reading {}", file.display()))?;
        failures.extend(rules(file, &text));
        if file.extension().is_some_and(|extension| extension == "md") {
            prose.insert(file.clone(), text);
        } else {
            code.insert(file.to_string_lossy().into_owned(), text);
        }
    }
    for directory in circles::WITHOUT_CIRCLES {
        failures.extend(circles::failures(directory, code.iter().map(|(file, text)| (file.as_str(), text.as_str()))));
    }
    failures.extend(links::failures(&prose, |path| project.root().join(path).exists()));
    Ok(failures)
}

/// What is missing from the top level or has no place there, given the first component of every file.
fn top_level_failures<'a>(components: impl Iterator<Item = &'a str>) -> Vec<String> {
    let present: BTreeSet<&str> = components.collect();
    let strangers = present.iter().filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(name));
    let absent = TOP_LEVEL.iter().filter(|name| !present.contains(*name));
    strangers
        .map(|name| format!("{name}: has no place at the top level (the list is in xtask/src/source.rs)"))
        .chain(absent.map(|name| format!("{name}: missing from the top level")))
        .collect()
}

/// The rules that one Rust file breaks.
fn file_failures(file: &Path, text: &str) -> Vec<String> {
    let mut failures = Vec::new();
    let mut fail = |line: usize, message: &str| failures.push(format!("{}:{line}: {message}", file.display()));
    let lines = text.lines().count();
    if lines > LINES_MAX {
        fail(lines, &format!("{lines} lines, over {LINES_MAX}: two ideas in one file?"));
    }
    for (index, line) in text.lines().enumerate().filter(|(_, line)| is_too_long(line)) {
        fail(index + 1, &too_long(line));
    }
    let code = code::only(text);
    let name = file.to_string_lossy();
    let unsafe_allowed = UNSAFE_ALLOWED.iter().any(|prefix| name.starts_with(prefix));
    for (index, line) in code.lines().enumerate() {
        if !unsafe_allowed && words(line).any(|word| word == "unsafe") {
            fail(index + 1, &format!("unsafe outside {}", UNSAFE_ALLOWED.join("*, ")));
        }
        if line.replace(' ', "").contains("#[ignore") {
            fail(index + 1, "an ignored test proves nothing: make it run, or remove it");
        }
    }
    if name.contains("/src/") && name.ends_with("/mod.rs") {
        fail(1, "a module x is x.rs, with its own modules in x/");
    }
    if name == NO_STD && !code.lines().any(|line| line.trim() == "#![no_std]") {
        fail(1, "the layout crate is `#![no_std]`");
    }
    failures
}

/// The rules that one Markdown file breaks. Tables have one line a row, and what a program prints is as it is.
fn prose_failures(file: &Path, text: &str) -> Vec<String> {
    let mut is_printed = false;
    let mut long = Vec::new();
    for (index, line) in text.lines().enumerate() {
        is_printed ^= line.trim_start().starts_with("```");
        if !is_printed && !line.starts_with('|') && is_too_long(line) {
            long.push(format!("{}:{}: {}", file.display(), index + 1, too_long(line)));
        }
    }
    long
}

fn is_too_long(line: &str) -> bool {
    line.chars().count() > COLUMNS_MAX
}

fn too_long(line: &str) -> String {
    format!("{} columns, over {COLUMNS_MAX}", line.chars().count())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !character.is_alphanumeric() && character != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(file: &str, text: &str) -> Vec<String> {
        file_failures(Path::new(file), text)
    }

    #[test]
    fn unsafe_is_found_outside_its_places_only() {
        let text = "fn f() { unsafe { g() } }\n";
        assert_eq!(failures("crates/cli/src/main.rs", text).len(), 1);
        assert_eq!(failures("crates/io/src/engine.rs", text).len(), 1);
        for allowed in ["crates/io/src/buf.rs", "crates/io/src/disk/uring/ring.rs", "crates/io/src/xor/simd.rs"] {
            assert_eq!(failures(allowed, text), Vec::<String>::new());
        }
        assert_eq!(failures("crates/cli/src/main.rs", "#![forbid(unsafe_code)]\n"), Vec::<String>::new());
    }

    #[test]
    fn there_is_one_module_style() {
        assert_eq!(failures("crates/io/src/engine/mod.rs", "mod a;\n").len(), 1);
        for allowed in ["crates/io/src/engine.rs", "crates/io/tests/engine/support/mod.rs"] {
            assert_eq!(failures(allowed, "mod a;\n"), Vec::<String>::new());
        }
    }

    #[test]
    fn ignored_tests_and_long_files_are_found() {
        let ignored = failures("tests/a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n");
        assert_eq!(ignored.len(), 1);
        assert!(ignored[0].starts_with("tests/a.rs:2:"), "{ignored:?}");
        assert_eq!(failures("tests/a.rs", &"\n".repeat(LINES_MAX)), Vec::<String>::new());
        assert_eq!(failures("tests/a.rs", &"\n".repeat(LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn long_lines_are_found_in_source_and_prose() {
        let [fits, long] = [COLUMNS_MAX, COLUMNS_MAX + 1].map(|columns| "ä".repeat(columns));
        assert_eq!(failures("tests/a.rs", &format!("// a\n{fits}\n")), Vec::<String>::new());
        assert_eq!(failures("tests/a.rs", &format!("// a\n{long}\n")), ["tests/a.rs:2: 121 columns, over 120"]);
        let prose = |text: &str| prose_failures(Path::new("a.md"), text);
        assert_eq!(prose(&format!("{fits}\n|{long}\n```console\n{long}\n```\n")), Vec::<String>::new());
        assert_eq!(prose(&format!("```\n```\n{long}\n")), ["a.md:3: 121 columns, over 120"]);
    }

    #[test]
    fn the_layout_crate_must_be_no_std() {
        assert_eq!(failures(NO_STD, "//! #![no_std]\n").len(), 1);
        assert_eq!(failures(NO_STD, "#![no_std]\n"), Vec::<String>::new());
    }

    #[test]
    fn the_top_level_is_exactly_the_list() {
        assert_eq!(top_level_failures(TOP_LEVEL.iter().copied().chain([".ci"])), Vec::<String>::new());
        let wrong = top_level_failures(TOP_LEVEL[1..].iter().copied().chain(["notes.txt"]));
        assert_eq!(wrong.len(), 2);
        assert!(wrong[0].contains("notes.txt") && wrong[1].contains(TOP_LEVEL[0]), "{wrong:?}");
    }
}
