//! Limits for members: how long their operations may take, and how many errors they may make.

use std::time::Duration;

use anyhow::{Result, anyhow};
use uraid_io::disk::Disk;
use uraid_io::engine::{Deadlines, Engine};

/// How often members' error counts are halved.
pub(crate) const FORGIVEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// Maximum deadline.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Minimum deadline: the engine's unit of time.
const DEADLINE_MIN: Duration = uraid_io::cache::TICK;

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit<T>(pub Option<T>);

/// The limits as the reactor applies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long their operations may take.
    pub deadlines: Deadlines,
    /// How many errors each may make.
    pub max_errors: Option<u32>,
}

impl Patience {
    /// The limits of an engine.
    pub(crate) fn of<D: Disk, T>(engine: &Engine<D, T>) -> Self {
        Self { deadlines: engine.deadlines(), max_errors: engine.max_errors() }
    }

    /// Has an engine apply these limits from now on.
    pub(crate) fn apply<D: Disk, T>(self, engine: &mut Engine<D, T>) {
        engine.set_deadlines(self.deadlines);
        engine.set_max_errors(self.max_errors);
    }

    /// These limits with another value for `key`. Returns `None` if there is no such key.
    ///
    /// # Errors
    /// If the value is invalid; the error says why.
    pub(crate) fn with(mut self, key: &str, value: &str) -> Option<Result<Self>> {
        let set = match key {
            "read-deadline" => deadline(value).map(|limit| self.deadlines.read = limit.0),
            "write-deadline" => deadline(value).map(|limit| self.deadlines.write = limit.0),
            "hedge" => hedge(value).map(|hedges| self.deadlines.hedges = hedges),
            "max-errors" => errors(value).map(|limit| self.max_errors = limit.0),
            _ => return None,
        };
        Some(set.map(|()| self).map_err(|error| anyhow!("{key}: {error}")))
    }
}

/// A deadline such as `2s`, `500ms` or `1m`, or `off`.
///
/// # Errors
/// If it is something else; the error says what to write.
pub fn deadline(text: &str) -> Result<Limit<Duration>, String> {
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

/// Whether reads of members on a network are hedged: `auto` or `off`.
///
/// # Errors
/// If it is something else; the error says what to write.
pub fn hedge(text: &str) -> Result<bool, String> {
    match text {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is auto or off".to_owned()),
    }
}

/// A number of errors, or `off`.
///
/// # Errors
/// If it is something else; the error says what to write.
pub fn errors(text: &str) -> Result<Limit<u32>, String> {
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
        assert!(set("hedge", "auto").unwrap().deadlines.hedges);
        assert!(!set("hedge", "off").unwrap().deadlines.hedges);
        assert!(set("hedge", "2s").unwrap_err().to_string().contains("auto or off"));
        assert_eq!(set("max-errors", "7").unwrap().max_errors, Some(7));
        assert_eq!(set("max-errors", "off").unwrap(), none);
        assert!(set("read-deadline", "soon").unwrap_err().to_string().contains("read-deadline"));
        assert!(none.with("cache", "writeback").is_none());
    }
}
