//! Administrators' requests from within the process that serves an array, whether or not it has a control socket.

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, oneshot};

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
    /// The next request, and who waits for its answer; `None` if nobody can send any more.
    pub(crate) async fn next(&mut self) -> Option<(Request, oneshot::Sender<Result<Answer>>)> {
        self.0.recv().await.map(|Order { request, answer }| (request, answer))
    }
}
