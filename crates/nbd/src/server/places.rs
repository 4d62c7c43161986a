//! How many connections there are, of how many there may be.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The connections that are open, of all servers of one export together.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<AtomicUsize>);

/// One of the connections that there may be, until it is dropped.
#[derive(Debug)]
pub(super) struct Place(Connections);

impl Connections {
    /// How many are open.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Room for another one, when there are fewer than `max`.
    pub(super) fn place(&self, max: usize) -> Option<Place> {
        let place = Place(self.clone());
        (self.0.fetch_add(1, Ordering::Relaxed) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
