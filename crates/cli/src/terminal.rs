//! Output to the terminal: text, JSON and progress.

use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::AnsiColor;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Interval between two lines of progress.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// Standard output is closed, and nobody reads it anymore.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed: nobody reads what is printed")]
pub(crate) struct Closed;

/// Prints a line.
///
/// # Errors
/// [`Closed`], which ends most commands quietly.
pub(crate) fn print(line: fmt::Arguments<'_>) -> Result<()> {
    let mut out = io::stdout().lock();
    let printed = out.write_fmt(line).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    printed.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Closed.into(),
        _ => anyhow::Error::new(error).context("can't write to standard output"),
    })
}

/// Prints facts as indented JSON.
pub(crate) fn print_json(facts: &impl Serialize) -> Result<()> {
    print(format_args!("{}", serde_json::to_string_pretty(facts)?))
}

/// The meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it should be.
    Good,
    /// Somebody should look at it.
    Attention,
    /// Content is lost, or will be.
    Bad,
}

/// Whether text is coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Colours(bool);

impl Colours {
    #[cfg(test)]
    pub(crate) const NONE: Self = Self(false);

    /// The choice for a stream: colours on a terminal, unless `NO_COLOR` or `CLICOLOR=0` turns them off.
    pub(crate) fn of(stream: &impl RawStream) -> Self {
        Self(AutoStream::choice(stream) != ColorChoice::Never)
    }

    /// The text in the colour of its tone.
    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        let colour = match tone {
            Tone::Good => AnsiColor::Green,
            Tone::Attention => AnsiColor::Yellow,
            Tone::Bad => AnsiColor::Red,
        };
        let style = colour.on_default();
        if self.0 { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Progress of long work: a bar if standard error is a terminal, otherwise an occasional line.
pub(crate) struct Progress {
    what: &'static str,
    total: u64,
    bar: ProgressBar,
    /// When the next line is due.
    due: Instant,
}

impl Progress {
    /// Progress of work on `total` bytes.
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let style = ProgressStyle::with_template("{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
        let bar = ProgressBar::new(total).with_message(what);
        bar.set_style(style.expect("the template is valid"));
        Self { what, total, bar, due: Instant::now() + LINE_PERIOD }
    }

    /// Shows the number of bytes done.
    pub(crate) fn set(&mut self, done: u64) {
        self.bar.set_position(done);
        if self.bar.is_hidden()
            && let Some(line) = self.line(done, Instant::now())
        {
            // If standard error is closed, there is nobody to tell.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    fn line(&mut self, done: u64, now: Instant) -> Option<String> {
        if now < self.due {
            return None;
        }
        self.due = now + LINE_PERIOD;
        let per_cent = u128::from(done) * 100 / u128::from(self.total.max(1));
        Some(format!("{}: {per_cent} % of {}", self.what, size(self.total)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of work in steps: a bar if standard error is a terminal, otherwise an occasional line.
pub(crate) struct StepBar {
    bar: ProgressBar,
    /// When the next line is due.
    due: Instant,
}

impl StepBar {
    /// Nothing is done yet.
    pub(crate) fn new() -> Self {
        let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len} {wide_msg}");
        let bar = ProgressBar::new(0);
        bar.set_style(style.expect("the template is valid"));
        Self { bar, due: Instant::now() }
    }

    /// Shows how many steps are done, of how many, and what is done now.
    pub(crate) fn set(&mut self, done: usize, total: usize, what: &str) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what.to_owned());
        if self.bar.is_hidden() && Instant::now() >= self.due {
            self.due = Instant::now() + LINE_PERIOD;
            // If standard error is closed, there is nobody to tell.
            let _ = writeln!(io::stderr(), "{done}/{total} {what}");
        }
    }
}

impl Drop for StepBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
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

/// A text on one line, with control characters and other terminal tricks escaped.
pub(crate) fn visible(text: &str) -> String {
    let escaped = |character: char| match character {
        '\'' | '"' => character.to_string(),
        _ => character.escape_debug().to_string(),
    };
    text.chars().map(escaped).collect()
}

/// A word, quoted for a shell.
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

/// A duration for people: `2 d 3 h`, `4 min 5 s`.
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::{LINE_PERIOD, Progress, duration, list, size, visible};

    #[test]
    fn without_a_terminal_a_line_says_now_and_then_how_far_work_is() {
        let mut progress = Progress::new("rebuilding", 3 << 30);
        let start = progress.due - LINE_PERIOD;
        let mut line = |periods: f64, done| progress.line(done, start + LINE_PERIOD.mul_f64(periods));
        assert_eq!(line(0.9, 1 << 30), None, "short work says nothing");
        assert_eq!(line(1.0, 1 << 30).as_deref(), Some("rebuilding: 33 % of 3 GiB"));
        assert_eq!(line(1.9, 2 << 30), None);
        assert_eq!(line(2.0, 3 << 30).as_deref(), Some("rebuilding: 100 % of 3 GiB"));
        assert_eq!(
            Progress::new("nothing", 0).line(0, start + 3 * LINE_PERIOD).as_deref(),
            Some("nothing: 0 % of 0 bytes")
        );
    }

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
