//! Who changes members: one at a time. A client that leaves while it waits for its turn does not get it.

use std::cell::Cell;
use std::pin::pin;

use tokio::sync::{Mutex, MutexGuard};
use tokio::{select, task_local};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<()>);

task_local! {
    /// Whether what a client has asked for waits for its turn.
    static WAITS: Cell<bool>;
}

impl Turns {
    /// Waits until nobody else changes members. While the guard is held, nobody else does.
    pub(crate) async fn take(&self) -> MutexGuard<'_, ()> {
        // What no client has asked for waits as long as it takes.
        let _ = WAITS.try_with(|waits| waits.set(true));
        let turn = self.0.lock().await;
        let _ = WAITS.try_with(|waits| waits.set(false));
        turn
    }
}

/// Does what a client has asked for. None: the client `left` while that waited for its turn, and nothing was done.
pub(crate) async fn unless_left<T>(work: impl Future<Output = T>, left: impl Future<Output = ()>) -> Option<T> {
    let asked = async {
        let mut work = pin!(work);
        select! {
            biased;
            done = &mut work => Some(done),
            () = left => match WAITS.with(Cell::get) {
                true => None,
                false => Some(work.await),
            }
        }
    };
    WAITS.scope(Cell::new(false), asked).await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::rc::Rc;

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test)
    }

    #[test]
    fn who_leaves_before_its_turn_does_not_get_it() {
        run(async {
            let (turns, has_changed) = (Turns::default(), Rc::new(Cell::new(false)));
            let change = || async {
                let _turn = turns.take().await;
                has_changed.set(true);
            };
            let turn = turns.take().await;
            assert_eq!(unless_left(change(), ready(())).await, None);
            assert!(!has_changed.get());
            drop(turn);
            assert_eq!(unless_left(change(), pending()).await, Some(()));
            assert!(has_changed.get());
        });
    }

    #[test]
    fn who_leaves_later_has_done_what_was_begun() {
        run(async {
            let turns = Turns::default();
            let change = async {
                let _turn = turns.take().await;
                tokio::task::yield_now().await;
                7
            };
            assert_eq!(unless_left(change, ready(())).await, Some(7));
        });
    }
}
