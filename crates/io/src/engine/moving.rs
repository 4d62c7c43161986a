//! The window of content that is on its way to another shape: what touches it waits, and what touched it before is
//! waited for. Everything else goes on.
//!
//! It knows work by the addresses that it touches, in whole parity stripes where it touches those. A window is of whole
//! parity stripes of both shapes, so who does not touch it finds all of its own in the shape that it began with.

use std::cell::RefCell;
use std::ops::Range;

use uraid_layout::{Bytes, Lba, Sectors};

use super::command::Command;
use super::replies::Ticket;
use super::tasks::{TaskId, Tasks, Waiters};
use crate::format::BLOCK;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Moving {
    window: RefCell<Option<Window>>,
    /// What work under way touches, by task.
    extents: RefCell<Vec<(TaskId, Range<Lba>)>>,
    /// Some of it has ended.
    ended: Waiters,
}

#[derive(Debug)]
struct Window {
    content: Range<Lba>,
    held: Vec<(Ticket, Command)>,
}

impl Moving {
    /// Has what touches a window wait, from now on.
    ///
    /// # Panics
    /// While another one moves.
    pub(super) fn begin(&self, content: Range<Lba>) {
        let before = self.window.borrow_mut().replace(Window { content, held: Vec::new() });
        assert!(before.is_none(), "one window moves at a time");
    }

    /// Ends that: the commands that have waited.
    pub(super) fn end(&self) -> Vec<(Ticket, Command)> {
        self.window.borrow_mut().take().map(|window| window.held).unwrap_or_default()
    }

    /// Whether addresses are in the window.
    pub(super) fn touches(&self, range: &Range<Lba>) -> bool {
        self.window.borrow().as_ref().is_some_and(|window| overlap(&window.content, range))
    }

    /// Whether a command has to wait.
    pub(super) fn holds_back(&self, command: &Command) -> bool {
        if self.window.borrow().is_none() || planted!(WindowUnheld) {
            return false;
        }
        let of_memory = |lba: Lba, len: usize| (lba, Bytes(len as u64).0.div_ceil(Sectors(1).bytes().0));
        // In blocks, which are the most that it takes of bytes.
        let block = BLOCK.bytes().0;
        let of_bytes = |at: Bytes, len: u64| {
            let (first, last) = (at.0 / block, at.0.saturating_add(len).div_ceil(block));
            (Lba(first * BLOCK.0), (last - first) * BLOCK.0)
        };
        let (lba, len) = match command {
            Command::Read { lba, buf } | Command::Write { lba, buf, .. } => of_memory(*lba, buf.len()),
            Command::WriteZeroes { lba, len, .. } => (*lba, len.0),
            Command::ReadBytes { at, buf } | Command::WriteBytes { at, buf, .. } => of_bytes(*at, buf.len() as u64),
            Command::ZeroBytes { at, len, .. } => of_bytes(*at, len.0),
            // A flush is of what was replied to; closing waits for the window by itself.
            Command::Flush
            | Command::Close
            | Command::Fail { .. }
            | Command::Join(_)
            | Command::Replace(_)
            | Command::ChangeLogs { .. } => return false,
        };
        self.touches(&(lba..Lba(lba.0.saturating_add(len))))
    }

    /// Has a command wait.
    ///
    /// # Panics
    /// When no window moves.
    pub(super) fn hold_back(&self, ticket: Ticket, command: Command) {
        self.window.borrow_mut().as_mut().expect("a window moves").held.push((ticket, command));
    }

    /// How many commands wait.
    pub(super) fn held(&self) -> usize {
        self.window.borrow().as_ref().map_or(0, |window| window.held.len())
    }

    /// Notes what a task's work touches until [`Moving::leave`].
    pub(super) fn enter(&self, task: TaskId, extent: Range<Lba>) {
        self.extents.borrow_mut().push((task, extent));
    }

    /// Notes that it has ended.
    ///
    /// # Panics
    /// When it has not begun.
    pub(super) fn leave(&self, task: TaskId, tasks: &Tasks) {
        let extents = &mut *self.extents.borrow_mut();
        let place = extents.iter().position(|(other, _)| *other == task);
        extents.swap_remove(place.expect("work that ends has begun"));
        self.ended.wake(tasks);
    }

    /// Waits until nothing under way touches the window.
    pub(super) async fn wait_untouched(&self, tasks: &Tasks) {
        while self.extents.borrow().iter().any(|(_, extent)| self.touches(extent)) && !planted!(WindowUnawaited) {
            self.ended.wait(tasks).await;
        }
    }
}

fn overlap(one: &Range<Lba>, other: &Range<Lba>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}
