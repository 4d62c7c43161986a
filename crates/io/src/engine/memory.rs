//! Working memory: what plans compute in.
//!
//! There is so much for all tasks together. A plan that needs more than there ever is, or than the system has, gets it
//! when nobody else has any, so every plan can be carried out. Who has to wait does so in line.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use uraid_layout::Bytes;

use super::tasks::{TaskId, Tasks};
use crate::buf::{Buf, Pool};

/// The stretch of zeros that zeros are written from.
pub(super) const ZEROES_BYTES: Bytes = Bytes(1 << 20);

/// See the module.
#[derive(Debug)]
pub(super) struct Memory {
    tasks: Rc<Tasks>,
    pool: Pool,
    waiting: RefCell<VecDeque<(TaskId, Bytes)>>,
    /// What tasks get that have waited.
    granted: RefCell<Vec<(TaskId, Buf)>>,
}

/// A plan's working memory, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Scratch<'a> {
    memory: &'a Memory,
    /// None: it was given back.
    buf: Option<Buf>,
}

impl Memory {
    pub(super) fn new(tasks: Rc<Tasks>, budget: Bytes) -> Self {
        Self { tasks, pool: Pool::new(budget), waiting: RefCell::default(), granted: RefCell::default() }
    }

    /// Waits for `need` bytes; none are needed: none.
    pub(super) async fn take(&self, need: Bytes) -> Option<Scratch<'_>> {
        if need.0 == 0 {
            return None;
        }
        let is_first = self.waiting.borrow().is_empty();
        let buf = match if is_first { self.allocate(need) } else { None } {
            Some(buf) => buf,
            None => self.wait(need).await,
        };
        Some(Scratch { memory: self, buf: Some(buf) })
    }

    async fn wait(&self, need: Bytes) -> Buf {
        let task = self.tasks.current();
        self.waiting.borrow_mut().push_back((task, need));
        self.tasks.park().await;
        let mut granted = self.granted.borrow_mut();
        let own = granted.iter().position(|(other, _)| *other == task).expect("who is woken was granted memory");
        granted.swap_remove(own).1
    }

    /// Gives memory that came back to those who wait for it.
    fn feed(&self) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(&(task, need)) = waiting.front() {
            let Some(buf) = self.allocate(need) else { return };
            self.granted.borrow_mut().push((task, buf));
            waiting.pop_front();
            self.tasks.wake(task);
        }
    }

    fn allocate(&self, need: Bytes) -> Option<Buf> {
        let is_alone = || self.pool.in_use() == Bytes(0);
        self.pool.try_alloc(need).or_else(|| is_alone().then(|| Buf::zeroed(need)))
    }
}

impl Deref for Scratch<'_> {
    type Target = Buf;

    fn deref(&self) -> &Buf {
        self.buf.as_ref().expect("it is given back when it is dropped")
    }
}

impl DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut Buf {
        self.buf.as_mut().expect("it is given back when it is dropped")
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let Some(buf) = self.buf.take() else { return };
        if buf.is_lent() {
            // An operation that was given up keeps it, and nobody else is to wait for that.
            buf.disown();
        } else {
            drop(buf);
        }
        self.memory.feed();
    }
}
