//! Futures that are asked only when there is something to ask.
//!
//! A task asks everything that it waits for whenever anything wakes it. What happens rarely then costs as much as what
//! happens with each request, which adds up.

use std::future::poll_fn;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

/// The same future, which is polled only when it was woken, however often others have its task run. The main future of
/// an event loop should be one: [`tokio::task::LocalSet`] polls that each time that it runs any task.
pub async fn when_woken<F: Future>(future: F) -> F::Output {
    let mut only = FuturesUnordered::from_iter([future]);
    poll_fn(|cx| only.poll_next_unpin(cx)).await.expect("the only one was not ready yet")
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use tokio::sync::Notify;

    use super::*;

    #[test]
    fn it_is_asked_once_for_each_time_that_it_is_woken() {
        let (asked, notify) = (Cell::new(0), Notify::new());
        let mut inner = Box::pin(async {
            notify.notified().await;
            notify.notified().await;
            "done"
        });
        let counted = poll_fn(|cx| {
            asked.set(asked.get() + 1);
            inner.as_mut().poll(cx)
        });
        let mut woken = pin!(when_woken(counted));
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = || woken.as_mut().poll(&mut context);
        for _ in 0..3 {
            assert_eq!(poll(), Poll::Pending);
        }
        assert_eq!(asked.get(), 1);
        notify.notify_one();
        for _ in 0..3 {
            assert_eq!(poll(), Poll::Pending);
        }
        assert_eq!(asked.get(), 2);
        notify.notify_one();
        assert_eq!(poll(), Poll::Ready("done"));
    }
}
