//! What goes to the terminal: text, JSON and progress.

use std::fmt;
use std::io::{self, Write};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Prints a line. A closed pipe is an error like any other, not a panic.
pub(crate) fn print(line: fmt::Arguments<'_>) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(line)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints facts as indented JSON.
pub(crate) fn print_json(facts: &impl Serialize) -> Result<()> {
    print(format_args!("{}", serde_json::to_string_pretty(facts)?))
}

/// A bar on standard error that is drawn only on a terminal; `total` in bytes.
pub(crate) fn progress(what: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(total).with_message(what);
    bar.set_style(style.expect("the template is valid"));
    bar
}

/// `1, 3 and 4`.
pub(crate) fn list(items: &[impl fmt::Display]) -> String {
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

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A size for people: `1.50 GiB`, `64 KiB`.
pub(crate) fn size(bytes: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::{list, size};

    #[test]
    fn sizes_are_readable() {
        let shown = [0, 512, 1536, 65536, 3 << 30, u64::MAX].map(size);
        assert_eq!(shown, ["0 bytes", "512 bytes", "1.50 KiB", "64 KiB", "3 GiB", "16384.00 PiB"]);
    }

    #[test]
    fn lists_are_sentences() {
        assert_eq!([list(&[0; 0]), list(&[1]), list(&[1, 3]), list(&[1, 3, 4])], ["", "1", "1 and 3", "1, 3 and 4"]);
    }
}
