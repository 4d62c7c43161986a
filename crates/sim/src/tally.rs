//! The last line of a program's output, for programs: `counted: ` and what it counted, as one flat JSON object.

use std::fmt;

/// What stands beside a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// How many.
    Count(u64),
    /// How long, in seconds.
    Seconds(f64),
    /// Names: of letters, digits and punctuation that needs no escape.
    Names(Vec<String>),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Seconds(seconds) => write!(f, "{seconds:.1}"),
            Self::Names(names) => {
                let is_plain = |name: &String| name.chars().all(|c| !c.is_control() && c != '"' && c != '\\');
                assert!(names.iter().all(is_plain), "names need no escape");
                write!(f, "{names:?}")
            }
        }
    }
}

/// The line.
#[must_use]
pub fn line(fields: &[(&str, Value)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("counted: {{{}}}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_one_flat_json_object() {
        let names = |names: &[&str]| Value::Names(names.iter().map(|&name| name.into()).collect());
        let fields = [
            ("planted", 3_u64.into()),
            ("alive", names(&["A", "B"])),
            ("none", names(&[])),
            ("seconds", Value::Seconds(1.25)),
        ];
        assert_eq!(line(&fields), r#"counted: {"planted":3,"alive":["A", "B"],"none":[],"seconds":1.2}"#);
    }
}
