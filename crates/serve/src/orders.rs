//! Administrators' requests from within the process that serves an array, whether or not it has a control socket.

use std::rc::Rc;

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

use crate::control::Control;
use crate::disk::LiveDisk;
use crate::protocol::{Answer, Request};

/// The most requests that wait to be taken in.
const WAITING_MAX: usize = 64;

/// Sends requests to the thread that serves an array.
#[derive(Clone, Debug)]
pub struct Orders(mpsc::Sender<Order>);

/// The requests, at the thread that serves the array.
#[derive(Debug)]
pub struct Inbox(mpsc::Receiver<Order>);

#[derive(Debug)]
struct Order {
    request: Request,
    answer: oneshot::Sender<Result<Answer>>,
}

/// Both ends of a way for requests.
#[must_use]
pub fn orders() -> (Orders, Inbox) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Orders(sender), Inbox(receiver))
}

impl Orders {
    /// Has the array's thread do what an administrator may ask for.
    ///
    /// # Errors
    /// As on the control socket; and if the array is not served any more.
    pub async fn order(&self, request: Request) -> Result<()> {
        self.ask(request).await.map(drop)
    }

    /// The same, with the answer.
    pub(crate) async fn ask(&self, request: Request) -> Result<Answer> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Order { request, answer }).await.ok().context("the array is not served any more")?;
        answered.await.context("the array is not served any more")?
    }
}

impl Inbox {
    /// Answers requests, each in a task of its own. Runs as long as anybody may send any.
    pub(crate) async fn answer<D: LiveDisk>(mut self, control: Rc<Control<D>>) {
        while let Some(Order { request, answer }) = self.0.recv().await {
            let control = Rc::clone(&control);
            spawn_local(async move {
                // Whoever asked may not wait for the answer.
                let _ = answer.send(Box::pin(control.answer(request)).await);
            });
        }
    }
}
