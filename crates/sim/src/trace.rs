//! What happened, for people to read after a failure, and as one number to compare runs by.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

/// How many events are kept, unless somebody wants more.
pub const KEPT: usize = 50;

/// A handle on a run's events.
#[derive(Clone, Debug)]
pub struct Trace {
    events: Rc<RefCell<Events>>,
}

#[derive(Debug)]
struct Events {
    kept: usize,
    count: u64,
    /// FNV-1a, which is the same everywhere.
    hash: u64,
    last: VecDeque<String>,
}

impl Default for Trace {
    fn default() -> Self {
        Self::keeping(KEPT)
    }
}

impl Trace {
    /// A trace that keeps so many events.
    #[must_use]
    pub fn keeping(kept: usize) -> Self {
        let events = Events { kept, count: 0, hash: 0xCBF2_9CE4_8422_2325, last: VecDeque::new() };
        Self { events: Rc::new(RefCell::new(events)) }
    }

    /// Notes an event.
    pub fn note(&self, event: fmt::Arguments<'_>) {
        let mut events = self.events.borrow_mut();
        let mut text =
            if events.last.len() >= events.kept { events.last.pop_front() } else { None }.unwrap_or_default();
        text.clear();
        fmt::write(&mut text, event).expect("text takes everything");
        for byte in text.bytes().chain([b'\n']) {
            events.hash = (events.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        events.count += 1;
        events.last.push_back(text);
    }

    /// A number that two runs have in common when the same happened in both.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.events.borrow().hash
    }

    /// How many events there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.events.borrow().count
    }

    /// The last events, as many as are kept.
    #[must_use]
    pub fn last(&self) -> Vec<String> {
        self.events.borrow().last.iter().cloned().collect()
    }
}
