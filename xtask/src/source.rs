//! Rules of the source tree that no other tool knows: what the top level holds, how long a file and a line may be,
//! where `unsafe` may stand, which crate is free of the standard library, that no test is switched off, and that links
//! lead somewhere.
//!
//! Rules about code look at code alone: comments and literals are blanked first by [`code_only`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;

use crate::links;
use crate::project::Project;

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
    let mut prose = BTreeMap::new();
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
        }
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
    let code = code_only(text);
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

/// The text with comments and the insides of string and character literals blanked; line breaks stay.
fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blank = literal_or_comment(rest, code.chars().next_back());
        let taken = if blank == 0 { first.len_utf8() } else { blank };
        if blank == 0 {
            code.push(first);
        } else {
            code.extend(rest[..taken].chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        }
        rest = &rest[taken..];
    }
    code
}

/// How many bytes of comment or literal `rest` starts with; 0 when it starts with code.
fn literal_or_comment(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    let inside_word = before.is_some_and(|character| character.is_alphanumeric() || character == '_');
    let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')).filter(|_| !inside_word);
    raw.and_then(|after| raw_string(rest, after)).unwrap_or(0)
}

/// Length of a block comment, which can hold others.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        let step = match tail {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length of a literal between `quote`s, in which a backslash hides the next character.
fn quoted(rest: &str, quote: char) -> usize {
    let mut hidden = false;
    for (at, character) in rest.char_indices().skip(1) {
        if hidden {
            hidden = false;
        } else if character == '\\' {
            hidden = true;
        } else if character == quote {
            return at + quote.len_utf8();
        }
    }
    rest.len()
}

/// Length of a character literal; 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut following = rest.chars().skip(1);
    match (following.next(), following.next()) {
        (Some('\\'), _) => quoted(rest, '\''),
        (Some(character), Some('\'')) => 2 + character.len_utf8(),
        _ => 0,
    }
}

/// Length of the raw string `rest`, whose hashes begin at `after`; `None` when it is no raw string.
fn raw_string(rest: &str, after: &str) -> Option<usize> {
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(rest.len() - body.len() + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(file: &str, text: &str) -> Vec<String> {
        file_failures(Path::new(file), text)
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = "a(\"unsafe \\\" unsafe\"); // unsafe\n/* unsafe /* unsafe */ unsafe */ b('\"', '\\'', r#\"unsafe \
            \" \"#);\n";
        let code = code_only(text);
        assert!(!code.contains("unsafe"), "{code}");
        assert_eq!(code.lines().count(), 2);
        assert!(code.contains("b("), "{code}");
    }

    #[test]
    fn code_around_literals_stays() {
        let code = code_only("fn f<'a>(x: &'a str) { g('\\n', \"s\"); unsafe { h() } } // end");
        assert!(code.contains("unsafe { h() }"), "{code}");
        assert!(code.contains("fn f<'a>"), "{code}");
        assert!(!code.contains("end"), "{code}");
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
