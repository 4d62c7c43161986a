//! Limits for members: how long their operations may take, and how many errors they may make.

use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use uraid_io::engine::Deadlines;

/// How often members' error counts are halved.
pub(crate) const FORGIVEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// Maximum deadline.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Minimum deadline: the engine's unit of time.
const DEADLINE_MIN: Duration = uraid_io::cache::TICK;

const READ_DEADLINE: &str = "2s";
const WRITE_DEADLINE: &str = "30s";
const MAX_ERRORS: &str = "20";

/// As it was asked for on the command line.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PatienceArgs {
    /// Read around a member that takes longer than this to answer
    ///
    /// What it does not deliver is computed from the other members until it answers again. off: wait for it.
    #[arg(long, value_parser = deadline, default_value = READ_DEADLINE, value_name = "TIME|off")]
    #[arg(help_heading = "Failing members")]
    pub(crate) read_deadline: Limit<Duration>,
    /// Fail a member that takes longer than this
    ///
    /// Applies to reads, writes and flushes, and only if the array survives without the member. off: wait for it.
    #[arg(long, value_parser = deadline, default_value = WRITE_DEADLINE, value_name = "TIME|off")]
    #[arg(help_heading = "Failing members")]
    pub(crate) write_deadline: Limit<Duration>,
    /// Fail a member after more corrected errors than this
    ///
    /// The count is halved every hour. A member is failed only if redundancy is left without it. off: never.
    #[arg(long, value_parser = errors, default_value = MAX_ERRORS, value_name = "N|off")]
    #[arg(help_heading = "Failing members")]
    pub(crate) max_errors: Limit<u32>,
}

impl Default for PatienceArgs {
    fn default() -> Self {
        Self {
            read_deadline: deadline(READ_DEADLINE).expect("a time"),
            write_deadline: deadline(WRITE_DEADLINE).expect("a time"),
            max_errors: errors(MAX_ERRORS).expect("a number"),
        }
    }
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit<T>(pub(crate) Option<T>);

/// The limits as the reactor applies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    pub(crate) deadlines: Deadlines,
    /// For each reactor.
    pub(crate) max_errors: Option<u32>,
}

impl From<PatienceArgs> for Patience {
    fn from(args: PatienceArgs) -> Self {
        let PatienceArgs { read_deadline, write_deadline, max_errors } = args;
        Self { deadlines: Deadlines { read: read_deadline.0, write: write_deadline.0 }, max_errors: max_errors.0 }
    }
}

impl Patience {
    /// These limits with another value for `key`. Returns `None` if there is no such key.
    ///
    /// # Errors
    /// If the value is invalid; the error says why.
    pub(crate) fn with(mut self, key: &str, value: &str) -> Option<Result<Self>> {
        let set = match key {
            "read-deadline" => deadline(value).map(|limit| self.deadlines.read = limit.0),
            "write-deadline" => deadline(value).map(|limit| self.deadlines.write = limit.0),
            "max-errors" => errors(value).map(|limit| self.max_errors = limit.0),
            _ => return None,
        };
        Some(set.map(|()| self).map_err(|error| anyhow!("{key}: {error}")))
    }
}

fn deadline(text: &str) -> Result<Limit<Duration>, String> {
    if text == "off" {
        return Ok(Limit(None));
    }
    let digits = text.len() - text.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" | "min" => Some(60 * 1000),
        _ => None,
    };
    let time = number.parse::<u64>().ok().zip(milliseconds).and_then(|(number, unit)| number.checked_mul(unit));
    let time = time.ok_or("a time is a number with a unit, such as 2s, 500ms or 1m, or it is off")?;
    let time = Duration::from_millis(time);
    if time < DEADLINE_MIN || time > DEADLINE_MAX {
        return Err(format!("a deadline is between {DEADLINE_MIN:?} and 24 hours, or off"));
    }
    Ok(Limit(Some(time)))
}

fn errors(text: &str) -> Result<Limit<u32>, String> {
    if text == "off" {
        return Ok(Limit(None));
    }
    text.parse().map(|most| Limit(Some(most))).map_err(|_| "it is a number, or off".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, milliseconds) in
            [("2s", 2000), ("500ms", 500), ("100ms", 100), ("1m", 60_000), ("24000s", 24_000_000)]
        {
            assert_eq!(deadline(text), Ok(Limit(Some(Duration::from_millis(milliseconds)))), "{text}");
        }
        assert_eq!(deadline("off"), Ok(Limit(None)));
        for text in ["", "2", "s", "-1s", "2 s", "1.5s", "99ms", "0s", "86401s", "18446744073709551615m", "never"] {
            assert!(deadline(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_set_is_what_was_named() {
        let none = Patience { deadlines: Deadlines::default(), max_errors: None };
        let set = |key, value| none.with(key, value).expect("there is such a thing");
        assert_eq!(set("read-deadline", "1s").unwrap().deadlines.read, Some(Duration::from_secs(1)));
        assert_eq!(set("write-deadline", "1s").unwrap().deadlines.write, Some(Duration::from_secs(1)));
        assert_eq!(set("max-errors", "7").unwrap().max_errors, Some(7));
        assert_eq!(set("max-errors", "off").unwrap(), none);
        assert!(set("read-deadline", "soon").unwrap_err().to_string().contains("read-deadline"));
        assert!(none.with("cache", "writeback").is_none());
    }
}
