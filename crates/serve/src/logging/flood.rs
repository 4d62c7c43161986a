//! Repeated log lines: a few lines of each kind are logged per second, and the others are counted.
//!
//! A kind is a place in the code together with the array, if several are served, and a member, if the line names one.
//! Each second, a separate thread logs how many lines of each kind were left out. Lines that are named for
//! administrators' programs (the field `event`) are always logged.
//!
//! Before [`Flood::begin`], every line is logged, because the start reports on each path.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit, display};
use tracing::span::Id;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Lines of a kind that are logged in each period.
const LINES_MAX: u64 = 3;

/// How often the lines that were left out are summarised.
const PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of kinds in a period. Lines of further kinds are logged.
const KINDS_MAX: usize = 1024;

/// Target of the summary lines, which are always logged.
const TARGET: &str = "uraid::more";

/// See the module.
pub(super) struct Flood {
    /// `None`: nothing is summarised.
    kinds: Mutex<Option<Kinds>>,
    /// How many want that.
    users: AtomicU32,
}

/// The lines of the current period, by place, span of the array, and member.
type Kinds = HashMap<(Identifier, Option<Id>, Option<String>), Kind>;

/// Lines of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    level: Level,
    span: Option<Id>,
    text: String,
    member: Option<String>,
    count: u64,
}

/// Repeated lines are summarised as long as this exists.
pub(crate) struct Summing {
    flood: &'static Flood,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    pub(super) const fn new() -> Self {
        Self { kinds: Mutex::new(None), users: AtomicU32::new(0) }
    }

    /// Starts to summarise.
    pub(super) fn begin(&'static self) -> std::io::Result<Summing> {
        let (stop, stopped) = sync_channel(0);
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || self.sum_up(&stopped))?;
        self.users.fetch_add(1, Ordering::Relaxed);
        self.lock().get_or_insert_default();
        Ok(Summing { flood: self, stop: Some(stop), thread: Some(thread) })
    }

    fn sum_up(&self, stopped: &Receiver<()>) {
        while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            self.tell_rest();
        }
    }

    /// Ends the period: logs how many lines were left out in it.
    fn tell_rest(&self) {
        let Some(kinds) = self.lock().as_mut().map(std::mem::take) else { return };
        for Kind { level, span, text, member, count } in kinds.into_values().filter(|kind| kind.count > LINES_MAX) {
            let (member, more) = (member.map(display), count - LINES_MAX);
            match level {
                Level::ERROR => {
                    tracing::error!(target: TARGET, parent: span, member, "{text}: and {more} more like it");
                }
                Level::WARN => tracing::warn!(target: TARGET, parent: span, member, "{text}: and {more} more like it"),
                Level::INFO => tracing::info!(target: TARGET, parent: span, member, "{text}: and {more} more like it"),
                Level::DEBUG => {
                    tracing::debug!(target: TARGET, parent: span, member, "{text}: and {more} more like it");
                }
                _ => tracing::trace!(target: TARGET, parent: span, member, "{text}: and {more} more like it"),
            }
        }
    }

    /// Whether an event is logged.
    fn admits(&self, event: &Event<'_>, span: Option<Id>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == TARGET || metadata.fields().field("event").is_some() {
            return true;
        }
        let mut kinds = self.lock();
        let Some(kinds) = &mut *kinds else { return true };
        let mut said = Said::default();
        event.record(&mut said);
        let key = (metadata.callsite(), span.clone(), said.member.clone());
        if kinds.len() >= KINDS_MAX && !kinds.contains_key(&key) {
            return true;
        }
        let Said { text, member } = said;
        let kind = kinds.entry(key).or_insert(Kind { level: *metadata.level(), span, text, member, count: 0 });
        kind.count += 1;
        kind.count <= LINES_MAX
    }

    fn lock(&self) -> MutexGuard<'_, Option<Kinds>> {
        self.kinds.lock().expect("a panic ends the process")
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for &'static Flood {
    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        self.admits(event, context.lookup_current().map(|span| span.id()))
    }
}

impl Drop for Summing {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "a panic ends the process");
        self.flood.tell_rest();
        if self.flood.users.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.flood.lock() = None;
        }
    }
}

/// The parts of a line that determine its kind.
#[derive(Debug, Default)]
struct Said {
    text: String,
    member: Option<String>,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => write!(self.text, "{value:?}").expect("a string takes everything"),
            "member" => self.member = Some(format!("{value:?}")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// The written lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        /// The lines since the last call.
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            String::from_utf8(bytes).unwrap().lines().map(|line| line.trim().to_owned()).collect()
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// Runs without the thread that ends the periods.
    fn with_flood(sums_up: bool, test: impl FnOnce(&'static Flood, &Lines)) {
        let flood: &'static Flood = Box::leak(Box::new(Flood::new()));
        *flood.lock() = sums_up.then(Kinds::new);
        let lines = Lines::default();
        let layer = tracing_subscriber::fmt::layer().with_writer(lines.clone());
        let layer = layer.with_target(false).with_ansi(false).without_time();
        let subscriber = tracing_subscriber::registry().with(flood).with(layer);
        tracing::subscriber::with_default(subscriber, || test(flood, &lines));
    }

    fn fail(member: u8) {
        tracing::error!(%member, "a block is wrong");
    }

    #[test]
    fn what_comes_again_and_again_is_counted_and_begins_anew() {
        with_flood(true, |flood, lines| {
            (0..40).for_each(|_| fail(1));
            (0..3).for_each(|_| fail(2));
            let one = vec!["ERROR a block is wrong member=1"; 3];
            assert_eq!(lines.take(), [one, vec!["ERROR a block is wrong member=2"; 3]].concat());
            flood.tell_rest();
            assert_eq!(lines.take(), ["ERROR a block is wrong: and 37 more like it member=1"]);
            flood.tell_rest();
            assert_eq!(lines.take(), [""; 0]);
            fail(1);
            assert_eq!(lines.take().len(), 1, "another period");
        });
    }

    #[test]
    fn arrays_are_told_apart() {
        with_flood(true, |flood, lines| {
            let spans = ["x", "y"].map(|array| tracing::error_span!("serving", array));
            spans.iter().for_each(|span| span.in_scope(|| (0..5).for_each(|_| fail(1))));
            let said = |array: &str| format!("ERROR serving{{array=\"{array}\"}}: a block is wrong");
            let three = |array: &str| vec![said(array) + " member=1"; 3];
            assert_eq!(lines.take(), [three("x"), three("y")].concat());
            flood.tell_rest();
            let mut rest = lines.take();
            rest.sort();
            assert_eq!(rest, ["x", "y"].map(|array| said(array) + ": and 2 more like it member=1"));
        });
    }

    #[test]
    fn two_servers_sum_up_until_both_have_ended() {
        with_flood(true, |flood, lines| {
            flood.users.store(2, Ordering::Relaxed);
            let [first, second] = [(); 2].map(|()| Summing { flood, stop: None, thread: None });
            drop(first);
            (0..5).for_each(|_| fail(1));
            assert_eq!(lines.take().len(), 3);
            drop(second);
            (0..5).for_each(|_| fail(1));
            assert_eq!(lines.take().len(), 6, "what was left, and everything from now on");
        });
    }

    #[test]
    fn what_programs_are_told_is_always_told() {
        with_flood(true, |_, lines| {
            (0..40).for_each(|slot| tracing::error!(event = "member-failed", slot, "a member failed"));
            assert_eq!(lines.take().len(), 40);
        });
    }

    #[test]
    fn a_start_says_everything() {
        with_flood(false, |flood, lines| {
            (0..40).for_each(|_| fail(1));
            flood.tell_rest();
            assert_eq!(lines.take().len(), 40);
        });
    }

    #[test]
    fn the_end_tells_what_is_left() {
        with_flood(true, |flood, lines| {
            flood.users.store(1, Ordering::Relaxed);
            let summing = Summing { flood, stop: None, thread: None };
            (0..5).for_each(|_| fail(1));
            drop(summing);
            assert_eq!(lines.take().last().unwrap(), "ERROR a block is wrong: and 2 more like it member=1");
            (0..5).for_each(|_| fail(1));
            assert_eq!(lines.take().len(), 5, "nothing is summed up any more");
        });
    }
}
