//! What a program counted, for documents that are generated from results.
//!
//! The programs print it as their last line: `counted: ` and a flat JSON object of numbers and lists of names.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::{Map, Value};

use crate::project::{command_line, eprint_step};

/// Counts by name.
pub(crate) type Counts = Map<String, Value>;

/// What that line begins with.
const MARK: &str = "counted: ";

/// A check that found something.
#[derive(Debug)]
pub(crate) struct Failed {
    /// What it counted until then.
    pub(crate) counts: Counts,
    pub(crate) reason: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Failed {}

/// Runs a program whose output goes on to standard output, and returns what it counted.
///
/// # Errors
/// When it can't start, fails ([`Failed`]), or says nothing of what it counted.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<Counts> {
    let line = command_line(command);
    eprint_step(&line);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting `{line}`"))?;
    let mut counted = None;
    for printed in BufReader::new(child.stdout.take().expect("the output is piped")).lines() {
        let printed = printed.with_context(|| format!("reading what `{line}` prints"))?;
        print(&printed);
        counted = printed.strip_prefix(MARK).map(str::to_owned).or(counted);
    }
    let status = child.wait().with_context(|| format!("waiting for `{line}`"))?;
    let counts = counted.with_context(|| format!("`{line}` does not say what it counted")).and_then(|counted| {
        serde_json::from_str(&counted).with_context(|| format!("`{line}` counted {counted}, which is no JSON object"))
    });
    if status.success() {
        return counts;
    }
    Err(Failed { counts: counts.unwrap_or_default(), reason: format!("the check failed ({status})") }.into())
}

#[expect(clippy::print_stdout, reason = "what the program printed")]
fn print(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> anyhow::Result<Counts> {
        run(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn the_line_that_is_marked_counts() {
        let counts = sh(r#"echo hello; echo 'counted: {"runs": 3, "alive": ["A"]}'"#).unwrap();
        assert_eq!(counts["runs"], 3);
        assert_eq!(counts["alive"][0], "A");
    }

    #[test]
    fn failures_and_silence_are_errors() {
        let found = sh(r#"echo 'counted: {"runs": 3}'; exit 1"#).unwrap_err();
        assert_eq!(found.downcast_ref::<Failed>().unwrap().counts["runs"], 3);
        let killed = sh("kill -9 $$").unwrap_err();
        assert!(killed.downcast_ref::<Failed>().unwrap().counts.is_empty());
        assert!(killed.to_string().contains("signal: 9"), "{killed}");
        assert!(sh("echo hello").unwrap_err().to_string().contains("does not say"));
        assert!(sh("echo 'counted: 3'").unwrap_err().to_string().contains("no JSON object"));
    }
}
