//! Keeps time while an array is being stopped, and says what that waits for: members may not answer.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};
use tokio::sync::watch;
use uraid_io::cache::TICK;
use uraid_io::engine::{Deadlines, Engine};
use uraid_layout::{Bytes, MemberIndex};

use crate::disk::LiveDisk;
use crate::health::lost_by_force;
use crate::protocol::Stopping;
use crate::text::list;

/// Minimum wait, if there is a limit at all.
const WAIT_MIN: Duration = Duration::from_secs(30);

/// When to say what a stop waits for, although nothing moves.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// The stop of an array, from when it is asked for.
#[derive(Debug, Default)]
pub(super) struct Stop {
    has_begun: watch::Sender<bool>,
    clock: RefCell<Option<StopClock>>,
    /// Clients are gone, and what is in memory is being written out.
    is_closing: Cell<bool>,
    haste: Cell<Haste>,
}

/// How long a stop waits for members while nothing moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Haste {
    /// For members that the array needs longer than for others.
    #[default]
    None,
    /// Until members that the array can do without have been given up.
    Forced,
    /// Not any more.
    Insisted,
}

/// Keeps time for an engine that is being stopped.
#[derive(Debug)]
pub(super) struct StopClock {
    began: Instant,
    ticked: Instant,
    /// When something last moved, and how far everything was then.
    moved: Instant,
    progress: [u64; 4],
    has_said: bool,
}

impl Stop {
    /// Whether it has been asked for.
    pub(super) fn has_begun(&self) -> bool {
        *self.has_begun.borrow()
    }

    /// Whether clients are gone.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// Clients are gone.
    pub(super) fn close(&self) {
        self.is_closing.set(true);
    }

    /// How long to wait while nothing moves; `None` means forever.
    fn limit(&self, deadlines: Deadlines) -> Option<Duration> {
        match self.haste.get() {
            // Clients have a time of their own.
            Haste::None if !self.is_closing.get() => None,
            Haste::None => limit(deadlines),
            Haste::Forced => Some(deadlines.write.map_or(WAIT_MIN, |write| write * 5 / 4)),
            Haste::Insisted => Some(SAID_AFTER),
        }
    }
}

/// How long to wait for members while nothing moves; `None` means forever.
fn limit(deadlines: Deadlines) -> Option<Duration> {
    // Members that can be given up are given up by then.
    deadlines.write.map(|write| (write * 2).max(WAIT_MIN))
}

impl StopClock {
    pub(super) fn new<D: LiveDisk, T>(engine: &Engine<D, T>) -> Self {
        let now = Instant::now();
        Self { began: now, ticked: now, moved: now, progress: progress(engine), has_said: false }
    }

    /// Waits for a completion or a tick. Blocks, and nothing else may run meanwhile.
    ///
    /// # Errors
    /// If the ring is broken, or nothing has moved for too long.
    pub(super) fn wait<D: LiveDisk, T>(&mut self, engine: &mut Engine<D, T>) -> Result<()> {
        engine.disk_mut().wait_at_most(TICK)?;
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            engine.tick();
        }
        self.look(engine, limit(engine.deadlines()), true)
    }

    /// Looks whether something has moved; where `all_at_rest` nothing need be under way for that.
    ///
    /// # Errors
    /// If nothing has for so long.
    fn look<D: LiveDisk, T>(
        &mut self,
        engine: &Engine<D, T>,
        limit: Option<Duration>,
        all_at_rest: bool,
    ) -> Result<()> {
        let now = progress(engine);
        let is_idle = engine.in_flight() == 0 && !all_at_rest;
        if now != self.progress || is_idle {
            (self.moved, self.progress) = (Instant::now(), now);
        }
        if self.stands_still() && !std::mem::replace(&mut self.has_said, true) {
            tracing::warn!("stopping waits for {}", awaited(engine));
        }
        if limit.is_some_and(|limit| self.moved.elapsed() >= limit) {
            let lost = lost_by_force(unwritten(engine).0).map_or_else(String::new, |lost| format!("; {lost}"));
            bail!("gave up waiting for {}{lost}", awaited(engine));
        }
        Ok(())
    }

    /// Whether nothing has moved for a while.
    fn stands_still(&self) -> bool {
        self.moved.elapsed() >= SAID_AFTER
    }
}

impl Stop {
    /// The array is to be stopped.
    pub(super) fn begin<D: LiveDisk, T>(&self, engine: &Engine<D, T>) {
        self.clock.borrow_mut().get_or_insert_with(|| StopClock::new(engine));
        self.has_begun.send_replace(true);
    }

    /// It is to be stopped whatever is lost. If it is being stopped already, nothing is waited for any more that does
    /// not move.
    pub(super) fn force(&self) {
        self.haste.set(if self.has_begun() { Haste::Insisted } else { Haste::Forced });
    }

    /// How far it is, once it has begun.
    pub(super) fn stopping<D: LiveDisk, T>(&self, engine: &Engine<D, T>) -> Option<Stopping> {
        let clock = self.clock.borrow();
        let clock = clock.as_ref()?;
        let waits_for = match () {
            () if clock.stands_still() => awaited(engine),
            () if !self.is_closing() => "what clients have asked for".to_owned(),
            () => "the members to take what is in memory".to_owned(),
        };
        let for_ms = u64::try_from(clock.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Some(Stopping { for_ms, waits_for })
    }

    /// Completes when it has begun. Cancel safe.
    pub(super) async fn begun(&self) {
        // The sender is here.
        let _ = self.has_begun.subscribe().wait_for(|has_begun| *has_begun).await;
    }

    /// Looks how far it is: why it has waited long enough, if it has. Says in the log what it waits for before that.
    pub(super) fn look<D: LiveDisk, T>(&self, engine: &Engine<D, T>) -> Option<Error> {
        let at_rest = self.is_closing() || self.haste.get() == Haste::Insisted;
        let limit = self.limit(engine.deadlines());
        self.clock.borrow_mut().as_mut().and_then(|clock| clock.look(engine, limit, at_rest).err())
    }

    /// Says in the log what it waits for, and what would end that.
    pub(super) fn say<D: LiveDisk, T>(&self, engine: &Engine<D, T>) {
        if let Some(stopping) = self.stopping(engine) {
            tracing::warn!("{}; {}", crate::health::stopping(&stopping), crate::health::force(unwritten(engine).0));
        }
    }
}

/// How far everything is: what is under way, and what members have been given so far.
fn progress<D: LiveDisk, T>(engine: &Engine<D, T>) -> [u64; 4] {
    let total = engine.counters().total();
    let given = total.written_bytes + total.log_bytes + total.read_bytes;
    [engine.in_flight() as u64, engine.disk().in_flight() as u64, given, total.flushes]
}

/// What clients have written and is only in memory.
fn unwritten<D: LiveDisk, T>(engine: &Engine<D, T>) -> Bytes {
    engine.cache_fill().map_or(Bytes(0), |fill| fill.used)
}

/// What a stop waits for that stands still.
fn awaited<D: LiveDisk, T>(engine: &Engine<D, T>) -> String {
    let roomless = engine.troubles().roomless;
    let has_deadlines = engine.deadlines().write.is_some();
    let is_awaited = |member: &MemberIndex| match has_deadlines {
        true => engine.waits_for(*member).is_some(),
        false => engine.disk().is_awaited(*member),
    };
    let members: Vec<String> = engine
        .slots()
        .iter()
        .filter(is_awaited)
        .map(|member| {
            let open = engine.disk().members().get(member.index()).and_then(Option::as_ref);
            let path = open.map_or_else(String::new, |open| format!(" ({})", open.path().display()));
            let reason = if roomless.contains(member) { "has no room" } else { "does not answer" };
            format!("member {member}{path}, which {reason}")
        })
        .collect();
    match () {
        () if !members.is_empty() => list(&members),
        () if engine.in_flight() == 0 => "clients that are in the middle of a request".to_owned(),
        () => "members whose names are not known".to_owned(),
    }
}
