//! What happened, for people to read after a failure, and as one number to compare runs by.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

/// How many events are kept.
pub const KEPT: usize = 50;

/// A handle on a run's events.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    events: Rc<RefCell<Events>>,
}

#[derive(Debug, Default)]
struct Events {
    count: u64,
    hash: Hash,
    last: VecDeque<String>,
}

/// FNV-1a, which is the same everywhere.
#[derive(Clone, Copy, Debug)]
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Trace {
    /// Notes an event.
    pub fn note(&self, event: fmt::Arguments<'_>) {
        let mut events = self.events.borrow_mut();
        let mut text = if events.last.len() == KEPT { events.last.pop_front() } else { None }.unwrap_or_default();
        text.clear();
        fmt::write(&mut text, event).expect("text takes everything");
        for byte in text.bytes().chain([b'\n']) {
            events.hash = Hash((events.hash.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
        }
        events.count += 1;
        events.last.push_back(text);
    }

    /// A number that two runs have in common when the same happened in both.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.events.borrow().hash.0
    }

    /// How many events there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.events.borrow().count
    }

    /// The last events, at most [`KEPT`].
    #[must_use]
    pub fn last(&self) -> Vec<String> {
        self.events.borrow().last.iter().cloned().collect()
    }
}
