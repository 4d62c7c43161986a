//! `cargo xtask reliability`: the tables of `docs/reliability.md`, made of what `cargo xtask night` counted.
//!
//! The results are `docs/reliability.json`, one row for each piece that ran. The document's part between [`BEGIN`] and
//! [`END`] follows from them alone; `cargo xtask lint` checks that nobody has typed there.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::counts::Counts;
use crate::project::{Project, eprint_step};

const BEGIN: &str = "<!-- results: made by `cargo xtask reliability`, do not edit -->";
const END: &str = "<!-- results: end -->";

/// What one run of a piece came to.
pub(crate) struct Row {
    pub(crate) piece: String,
    /// The commit that it ran at.
    pub(crate) commit: String,
    pub(crate) seconds: u64,
    pub(crate) counts: Counts,
    /// What went wrong.
    pub(crate) failure: Option<String>,
}

/// Makes the document's tables again.
///
/// # Errors
/// When the results or the document can't be read or written.
pub(crate) fn write(project: &Project) -> anyhow::Result<()> {
    let (path, text) = read(project)?;
    fs::write(&path, with_tables(&text, &rows(project)?)?).with_context(|| format!("writing {}", path.display()))?;
    eprint_step(&format!("wrote {}", path.display()));
    Ok(())
}

/// An error when the document's tables are not those of the results.
pub(crate) fn check(project: &Project) -> anyhow::Result<()> {
    let (path, text) = read(project)?;
    let is_current = with_tables(&text, &rows(project)?)? == text;
    ensure!(is_current, "{}: its tables are not those of the results; run `cargo xtask reliability`", path.display());
    Ok(())
}

/// Adds a row to the results.
///
/// # Errors
/// When they can't be read or written.
pub(crate) fn record(project: &Project, row: Row) -> anyhow::Result<()> {
    let mut rows = rows(project)?;
    rows.push(row);
    let rows: Vec<Value> = rows.into_iter().map(Row::into_json).collect();
    let path = results(project);
    fs::write(&path, serde_json::to_string_pretty(&rows)? + "\n").with_context(|| format!("writing {}", path.display()))
}

fn results(project: &Project) -> PathBuf {
    project.root().join("docs/reliability.json")
}

fn rows(project: &Project) -> anyhow::Result<Vec<Row>> {
    let path = results(project);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let rows: Vec<Value> = serde_json::from_str(&text).with_context(|| format!("{} is a list", path.display()))?;
    let read = |row: &Value| Row::from_json(row).with_context(|| format!("{}: what is {row}?", path.display()));
    rows.iter().map(read).collect()
}

fn read(project: &Project) -> anyhow::Result<(PathBuf, String)> {
    let path = project.root().join("docs/reliability.md");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok((path, text))
}

/// The document with the tables of these rows.
fn with_tables(text: &str, rows: &[Row]) -> anyhow::Result<String> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("the document has the line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("the document has the line {END}"))?;
    Ok(format!("{before}{BEGIN}\n\n{}\n{END}{after}", table(rows)))
}

fn table(rows: &[Row]) -> String {
    let head = "| `cargo xtask night` | commit | counted | wrong | time |\n|---|---|---|---|---|\n";
    rows.iter().fold(head.to_owned(), |table, row| table + &row.line() + "\n")
}

impl Row {
    fn line(&self) -> String {
        let is_wrong = |name: &str| ["failed", "wrong", "alive"].contains(&name);
        let counted: Vec<String> = self
            .counts
            .iter()
            .filter(|(name, _)| !is_wrong(name) && !name.ends_with("seconds"))
            .filter_map(|(name, count)| Some(format!("{} {}", thousands(count.as_u64()?), name.replace('_', " "))))
            .collect();
        let wrong: Vec<String> =
            self.counts.iter().filter(|(name, _)| is_wrong(name)).map(|(_, value)| say(value)).collect();
        let wrong = match &self.failure {
            Some(failure) if wrong.is_empty() => failure.lines().next().unwrap_or_default().replace('|', "/"),
            None if wrong.is_empty() => "0".to_owned(),
            _ => wrong.join(", "),
        };
        let (piece, commit) = (&self.piece, &self.commit[..self.commit.len().min(12)]);
        format!("| {piece} | {commit} | {} | {wrong} | {} min |", counted.join(", "), self.seconds.div_ceil(60))
    }

    fn into_json(self) -> Value {
        let Self { piece, commit, seconds, counts, failure } = self;
        json!({ "piece": piece, "commit": commit, "seconds": seconds, "counts": counts, "failure": failure })
    }

    fn from_json(row: &Value) -> Option<Self> {
        Some(Self {
            piece: row["piece"].as_str()?.to_owned(),
            commit: row["commit"].as_str()?.to_owned(),
            seconds: row["seconds"].as_u64()?,
            counts: row["counts"].as_object()?.clone(),
            failure: row["failure"].as_str().map(str::to_owned),
        })
    }
}

/// A number, or a list of names: how many, and which.
fn say(value: &Value) -> String {
    match value.as_array() {
        None => value.as_u64().map_or_else(|| value.to_string(), thousands),
        Some(names) if names.is_empty() => "0".to_owned(),
        Some(names) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            format!("{}: {}", names.len(), names.join(", "))
        }
    }
}

/// 1038300 as 1,038,300.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(counts: &Value, failure: Option<&str>) -> Row {
        let (piece, commit) = ("sim".to_owned(), "0123456789abcdef".to_owned());
        let counts = counts.as_object().unwrap().clone();
        Row { piece, commit, seconds: 61, counts, failure: failure.map(str::to_owned) }
    }

    #[test]
    fn rows_are_lines_of_a_table() {
        let counted = row(&json!({ "failed": 0, "in_recovery": 12, "runs": 1_038_300, "seconds": 61.5 }), None);
        assert_eq!(counted.line(), "| sim | 0123456789ab | 12 in recovery, 1,038,300 runs | 0 | 2 min |");
        let alive = row(&json!({ "planted": 3, "alive": ["A", "B"] }), None);
        assert!(alive.line().contains("| 3 planted | 2: A, B |"), "{}", alive.line());
        let found = row(&json!({ "alive": ["A"] }), Some("the check failed"));
        assert!(found.line().contains("| 1: A |"), "{}", found.line());
        let failed = row(&json!({}), Some("seed 3 | failed\nmore"));
        assert!(failed.line().contains("| seed 3 / failed |"), "{}", failed.line());
    }

    #[test]
    fn results_are_kept_as_they_are() {
        let before = row(&json!({ "runs": 3 }), Some("no")).into_json();
        assert_eq!(Row::from_json(&before).unwrap().into_json(), before);
        assert!(Row::from_json(&json!({ "piece": "sim" })).is_none());
    }

    #[test]
    fn only_the_part_between_the_marks_is_made() {
        let text = format!("before\n{BEGIN}\ntyped\n{END}\nafter\n");
        let made = with_tables(&text, &[row(&json!({ "runs": 3 }), None)]).unwrap();
        assert!(made.starts_with("before\n") && made.ends_with("\nafter\n") && !made.contains("typed"), "{made}");
        assert_eq!(with_tables(&made, &[row(&json!({ "runs": 3 }), None)]).unwrap(), made);
        assert!(with_tables("no marks", &[]).is_err());
    }

    #[test]
    fn digits_come_in_threes() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (20_000_000, "20,000,000")] {
            assert_eq!(thousands(number), text);
        }
    }
}
