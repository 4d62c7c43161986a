//! Output to the terminal: text, JSON and progress.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::AnsiColor;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use uraid_serve::text::size;

/// How long a member may take before it is said that it is waited for.
const SAID_AFTER: Duration = Duration::from_secs(2);

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

/// Does something for which members are waited for, and says on standard error which if that takes long.
pub(crate) fn patiently<T>(member: &Path, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    thread::scope(|scope| {
        let say = move || {
            if is_done.recv_timeout(SAID_AFTER) == Err(RecvTimeoutError::Timeout) {
                // If standard error is closed, there is nobody to tell.
                let _ = writeln!(io::stderr(), "waiting for {} to answer", member.display());
            }
        };
        // Without a thread nothing is said.
        let _ = thread::Builder::new().name("waiting".into()).spawn_scoped(scope, say);
        let result = work();
        drop(done);
        result
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

#[cfg(test)]
mod tests {
    use super::{LINE_PERIOD, Progress};

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
}
