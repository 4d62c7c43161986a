//! Links in Markdown files: each leads to a file that is there, and to a heading that is in it. Links to other sites
//! are not followed.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The links that lead nowhere, given every Markdown file's text and whether a path of the project exists.
pub(crate) fn failures(texts: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let anchors: BTreeMap<&Path, Vec<String>> =
        texts.iter().map(|(file, text)| (file.as_path(), anchors(text))).collect();
    let mut failures = Vec::new();
    for (file, text) in texts {
        for (line, link) in links(text) {
            let place = format!("{}:{line}: {link}", file.display());
            let (path, anchor) = link.split_once('#').map_or((link.as_str(), None), |(path, to)| (path, Some(to)));
            let Some(target) = resolved(file, path) else {
                failures.push(format!("{place} leads out of the project"));
                continue;
            };
            if !exists(&target) {
                failures.push(format!("{place} leads to nothing: there is no {}", target.display()));
                continue;
            }
            let Some(anchor) = anchor else { continue };
            match anchors.get(target.as_path()) {
                Some(known) if known.iter().any(|known| known == anchor) => {}
                Some(_) => failures.push(format!("{place} leads to no heading of {}", target.display())),
                None => failures.push(format!("{place} leads to a heading of what is no Markdown file")),
            }
        }
    }
    failures
}

/// Where a link of `file` leads, from the project's root; none when that is outside of it.
fn resolved(file: &Path, link: &str) -> Option<PathBuf> {
    if link.is_empty() {
        return Some(file.to_owned());
    }
    let mut target = file.parent()?.to_owned();
    for component in Path::new(link).components() {
        match component {
            Component::Normal(name) => target.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !target.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(target)
}

/// Each link to a place in the project, with the number of its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let end = closing(rest);
            links.push((number, rest[..end].to_owned()));
            rest = &rest[end..];
        }
        // `[name]: target`, to which `[text][name]` leads.
        if let Some((_, target)) = line.strip_prefix('[').and_then(|line| line.split_once("]: ")) {
            links.push((number, target.trim().to_owned()));
        }
    }
    let is_elsewhere = |link: &str| link.contains("://") || link.starts_with("mailto:");
    for (_, link) in &mut links {
        // A title may follow the target, which may stand in angle brackets.
        let target = link.split_whitespace().next().unwrap_or_default();
        *link = target.trim_start_matches('<').trim_end_matches('>').to_owned();
    }
    links.retain(|(_, link)| !is_elsewhere(link));
    links
}

/// Where the parenthesis closes that was opened before `text`.
fn closing(text: &str) -> usize {
    let mut depth = 1;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The anchors of a file's headings, as GitHub and GitLab make them.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut fence = Fence::default();
    for line in text.lines() {
        if fence.covers(line) {
            continue;
        }
        let level = line.bytes().take_while(|&byte| byte == b'#').count();
        let Some(title) = line[level..].strip_prefix(' ').filter(|_| (1..=6).contains(&level)) else { continue };
        let anchor = slug(title);
        let again = anchors.iter().filter(|known| **known == anchor).count();
        anchors.push(anchor.clone());
        if again > 0 {
            anchors.push(format!("{anchor}-{again}"));
        }
    }
    anchors
}

/// A heading in small letters, with hyphens between its words and without its other signs. Of a link its text counts.
fn slug(title: &str) -> String {
    let mut text = String::new();
    let mut rest = title.trim().trim_end_matches('#').trim_end();
    while let Some(at) = rest.find("](") {
        text += &rest[..at];
        let target = &rest[at + 2..];
        rest = target.get(closing(target) + 1..).unwrap_or_default();
    }
    text += rest;
    let keeps = |character: &char| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_');
    text.to_lowercase().chars().filter(keeps).map(|character| if character == ' ' { '-' } else { character }).collect()
}

/// The numbered lines outside of code blocks, with the code in them blanked.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fence = Fence::default();
    let lines = text.lines().enumerate().filter(move |(_, line)| !fence.covers(line));
    lines.map(|(index, line)| {
        let parts = line.split('`').enumerate();
        let kept: Vec<&str> = parts.map(|(part, text)| if part % 2 == 0 { text } else { "" }).collect();
        (index + 1, kept.join("`"))
    })
}

/// Follows code blocks.
#[derive(Default)]
struct Fence {
    is_open: bool,
}

impl Fence {
    /// Whether a line is in a code block, or begins or ends one.
    fn covers(&mut self, line: &str) -> bool {
        let is_fence = line.trim_start().starts_with("```");
        self.is_open ^= is_fence;
        self.is_open || is_fence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let texts = files.iter().map(|(file, text)| (PathBuf::from(file), (*text).to_owned())).collect();
        failures(&texts, |path| {
            files.iter().any(|(file, _)| Path::new(file) == path) || path == Path::new("docs") || path.ends_with("a.rs")
        })
    }

    #[test]
    fn what_is_there_passes() {
        let readme = "# A\n[b](docs/b.md) [c](docs/b.md#two-words) [up](#a) [dir](docs) [code](docs/../a.rs)\n\
            [else](https://example.org/#x) `[no](link)` [mail](mailto:a@b) [t](docs/b.md \"title\")\n\
            ```\n[no](link)\n# no heading\n```\n[r]: docs/b.md\n";
        let b = "## `Two` words!\n[back](../README.md#a) [again](#same-1) [with (parentheses)](../README.md)\n# Same\n\
            # Same\n";
        assert_eq!(found(&[("README.md", readme), ("docs/b.md", b)]), Vec::<String>::new());
    }

    #[test]
    fn what_leads_nowhere_is_named() {
        let text = "# A\n\n[x](docs/x.md)\n[no heading](b.md#no)\n[here](#b)\n[out](../a.md)\n[root](/etc)\n\
            [not prose](a.rs#L3)\n[r]: gone.md\n```\n# b\n```\n";
        let failures = found(&[("a.md", text), ("b.md", "# B\n")]);
        let places: Vec<&str> = failures.iter().filter_map(|failure| failure.split(' ').next()).collect();
        assert_eq!(places, ["a.md:3:", "a.md:4:", "a.md:5:", "a.md:6:", "a.md:7:", "a.md:8:", "a.md:9:"]);
        assert!(failures[0].contains("there is no docs/x.md"), "{failures:?}");
    }
}
