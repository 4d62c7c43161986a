//! Keeps time while an array is being closed. Nothing else does then, and members may not answer.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use uraid_io::cache::TICK;
use uraid_io::engine::Engine;
use uraid_layout::{Bytes, MemberIndex};

use crate::disk::LiveDisk;
use crate::text::{list, size};

/// Minimum wait, if there is a limit at all.
const WAIT_MIN: Duration = Duration::from_secs(30);

/// When to log which members a stop waits for.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Keeps time for an engine that is being stopped.
pub(super) struct StopClock {
    ticked: Instant,
    /// When an operation last completed, and the operations in flight at that time.
    moved: Instant,
    under_way: (usize, usize),
    has_said: bool,
    /// How long to wait without any completion; `None` means forever.
    limit: Option<Duration>,
}

impl StopClock {
    pub(super) fn new<D: LiveDisk, T>(engine: &Engine<D, T>) -> Self {
        let now = Instant::now();
        // Members that can be given up are given up by then.
        let limit = engine.deadlines().write.map(|write| (write * 2).max(WAIT_MIN));
        Self { ticked: now, moved: now, under_way: (0, 0), has_said: false, limit }
    }

    /// Waits for a completion or a tick.
    ///
    /// # Errors
    /// If the ring is broken, or nothing has completed for too long.
    pub(super) fn wait<D: LiveDisk, T>(&mut self, engine: &mut Engine<D, T>) -> Result<()> {
        engine.disk_mut().wait_at_most(TICK)?;
        let now = Instant::now();
        if now - self.ticked >= TICK {
            self.ticked = now;
            engine.tick();
        }
        let under_way = (engine.in_flight(), engine.disk().in_flight());
        if under_way != self.under_way {
            (self.moved, self.under_way) = (now, under_way);
        }
        if now - self.moved >= SAID_AFTER && !std::mem::replace(&mut self.has_said, true) {
            tracing::warn!("stopping waits for {}", awaited(engine));
        }
        let is_late = self.limit.is_some_and(|limit| now - self.moved >= limit);
        ensure!(!is_late, "gave up waiting for {}{}", awaited(engine), lost(engine));
        Ok(())
    }
}

/// The data that is lost with the server's memory: the log may have what was flushed.
fn lost<D: LiveDisk, T>(engine: &Engine<D, T>) -> String {
    let unwritten = engine.cache_fill().map_or(Bytes(0), |fill| fill.used);
    let lost = format!("; what was not flushed of {} that clients have written is lost", size(unwritten.0));
    if unwritten == Bytes(0) { String::new() } else { lost }
}

/// The members that a stop waits for.
fn awaited<D: LiveDisk, T>(engine: &Engine<D, T>) -> String {
    let roomless = engine.troubles().roomless;
    let is_awaited = |member: &MemberIndex| engine.waits_for(*member).is_some();
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
    if members.is_empty() { "members whose names are not known".to_owned() } else { list(&members) }
}
