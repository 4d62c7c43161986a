//! Words and numbers for people: in messages, logs and what commands print.

use std::fmt;

/// `1, 3 and 4`.
#[must_use]
pub fn list(items: &[impl fmt::Display]) -> String {
    let mut text = String::new();
    for (index, item) in items.iter().enumerate() {
        text += match index {
            0 => "",
            _ if index + 1 == items.len() => " and ",
            _ => ", ",
        };
        text += &item.to_string();
    }
    text
}

/// `member 1`, or `members 1, 3 and 4`.
#[must_use]
pub fn name_members(slots: &[impl fmt::Display]) -> String {
    format!("member{} {}", if slots.len() == 1 { "" } else { "s" }, list(slots))
}

/// A text on one line, with control characters and other terminal tricks escaped.
#[must_use]
pub fn visible(text: &str) -> String {
    let escaped = |character: char| match character {
        '\'' | '"' => character.to_string(),
        _ => character.escape_debug().to_string(),
    };
    text.chars().map(escaped).collect()
}

/// A word, quoted for a shell.
#[must_use]
pub fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A size for people: `1.50 GiB`, `64 KiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = (bytes.max(1).ilog2() / 10).min(5);
    let unit = 1_u64 << (10 * power);
    let name = UNITS[power as usize];
    if bytes.is_multiple_of(unit) {
        return format!("{} {name}", bytes / unit);
    }
    let hundredths = (u128::from(bytes) * 100 + u128::from(unit) / 2) / u128::from(unit);
    format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
}

/// A duration for people: `2 d 3 h`, `4 min 5 s`.
#[must_use]
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// An error with its causes. Many messages end with their cause's message; each is printed once.
#[must_use]
pub fn chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        said if said.contains(&cause) => text,
        _ => text + ": " + &cause,
    })
}

#[cfg(test)]
mod tests {
    use super::{duration, list, size, visible};

    #[test]
    fn sizes_are_readable() {
        let shown = [0, 512, 1536, 65536, 3 << 30, u64::MAX].map(size);
        assert_eq!(shown, ["0 bytes", "512 bytes", "1.50 KiB", "64 KiB", "3 GiB", "16384.00 PiB"]);
    }

    #[test]
    fn durations_are_readable() {
        let shown = [0, 59, 60, 3599, 3660, 90_000].map(duration);
        assert_eq!(shown, ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 1 min", "1 d 1 h"]);
    }

    #[test]
    fn what_plays_tricks_on_a_terminal_is_escaped() {
        let shown = ["Bob's \"Ü\" disk", "a\nb\tc", "\x1b[2J", "\u{202e}x"].map(visible);
        assert_eq!(shown, ["Bob's \"Ü\" disk", r"a\nb\tc", r"\u{1b}[2J", r"\u{202e}x"]);
    }

    #[test]
    fn lists_are_sentences() {
        assert_eq!([list(&[0; 0]), list(&[1]), list(&[1, 3]), list(&[1, 3, 4])], ["", "1", "1 and 3", "1, 3 and 4"]);
    }
}
