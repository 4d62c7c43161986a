//! Connections to the control socket, one task for each.

use std::cell::Cell;
use std::io;
use std::mem;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use uraid_nbd::UnixSocket;

use super::Control;
use crate::disk::LiveDisk;
use crate::lines::{self, Response, line, write_all};
use crate::protocol::{LINE_BYTES_MAX, Request};
use crate::turns;

/// Maximum number of connections. Another one replaces the one that has been idle longest.
const CONNECTIONS_MAX: usize = 16;

/// How many bytes to make room for before reading.
const READ_BYTES: usize = 4 << 10;

/// How long a peer may take to send its next line, and to receive a response.
const LINE_TIME_MAX: Duration = Duration::from_secs(60);
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(10);

/// How often to look whether a peer that waits for an answer has left.
const LEFT_LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long to stop accepting when the system is out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Whether the control socket is open.
#[derive(Default)]
pub(crate) struct Door {
    is_open: Cell<bool>,
    closes: Notify,
    closed: Notify,
}

impl Door {
    /// Stops listening, so that another server can listen. Existing connections stay.
    pub(crate) async fn close(&self) {
        if self.is_open.get() {
            self.closes.notify_one();
            self.closed.notified().await;
        }
    }
}

/// Accepts connections until the door closes, then serves the remaining ones to their end.
pub(crate) async fn serve<D: LiveDisk>(control: Rc<Control<D>>, socket: UnixSocket, door: Rc<Door>) {
    let mut connections = JoinSet::new();
    let mut peers = Peers::default();
    door.is_open.set(true);
    loop {
        // A connection that has ended makes room for the next one.
        tokio::select! {
            biased;
            () = door.closes.notified() => break,
            Some(_) = connections.join_next() => {}
            accepted = socket.accept() => match accepted {
                Ok(stream) => {
                    if connections.len() == CONNECTIONS_MAX && !peers.dismiss() {
                        refuse(&stream);
                        continue;
                    }
                    if connections.len() == CONNECTIONS_MAX {
                        connections.join_next().await;
                    }
                    let control = Rc::clone(&control);
                    let idle = Rc::new(Cell::new(None));
                    let idle_since = Rc::clone(&idle);
                    let conversation = Rc::new(stream);
                    let stream = Rc::downgrade(&conversation);
                    let task = connections.spawn_local(async move {
                        if let Err(error) = converse(&control, &conversation, &idle).await {
                            tracing::debug!(%error, "a control connection ended");
                        }
                    });
                    peers.add(Peer { idle_since, stream, task });
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept a control connection");
                    sleep(ACCEPT_BACKOFF).await;
                }
            },
        }
    }
    drop(socket);
    door.is_open.set(false);
    door.closed.notify_one();
    while connections.join_next().await.is_some() {}
}

/// A connection.
struct Peer {
    /// Since when it has waited for its next request; `None` while a request is being answered.
    idle_since: Rc<Cell<Option<Instant>>>,
    /// Its stream, to look at; the connection's task reads and writes it.
    stream: Weak<UnixStream>,
    task: AbortHandle,
}

impl Peer {
    /// Since when it has waited for a request; `None` while one is being answered or has not been read yet.
    fn idle_since(&self) -> Option<Instant> {
        let since = self.idle_since.get()?;
        let unread = rustix::io::ioctl_fionread(self.stream.upgrade()?).ok()?;
        (unread == 0).then_some(since)
    }
}

/// The current connections.
#[derive(Default)]
struct Peers(Vec<Peer>);

impl Peers {
    fn add(&mut self, peer: Peer) {
        self.0.retain(|peer| !peer.task.is_finished());
        self.0.push(peer);
    }

    /// Ends the connection that has waited longest for a request. Returns false if all are being answered.
    fn dismiss(&mut self) -> bool {
        self.0.retain(|peer| !peer.task.is_finished());
        let idle = self.0.iter().filter_map(|peer| Some((peer.idle_since()?, &peer.task)));
        let longest = idle.min_by_key(|(since, _)| *since);
        longest.inspect(|(_, task)| task.abort()).is_some()
    }
}

/// Tells a peer, if it reads, that there are too many connections.
fn refuse(stream: &UnixStream) {
    let text = format!("the server is answering {CONNECTIONS_MAX} control connections, and takes no more: try later");
    // An empty send buffer takes it at once.
    let _ = stream.try_write(&line(&Response::Error(text)));
}

/// Answers one peer line by line, until it leaves or sends an invalid line. Keeps track of its idle time.
async fn converse<D: LiveDisk>(
    control: &Control<D>,
    stream: &UnixStream,
    idle: &Cell<Option<Instant>>,
) -> io::Result<()> {
    let mut unread = Vec::new();
    loop {
        idle.set(Some(Instant::now()));
        let Some(text) = timeout(LINE_TIME_MAX, read_line(stream, &mut unread)).await?? else { return Ok(()) };
        idle.set(None);
        let (response, goes_on) = match text {
            Ok(text) => {
                if let Ok(Request::HandOver { array }) = Request::parse(&text) {
                    match Box::pin(control.hand_over(stream, array)).await {
                        None => return Ok(()),
                        Some(error) => (Response::Error(crate::text::chain(&error)), true),
                    }
                } else {
                    match turns::unless_left(Box::pin(answer(control, &text)), left(stream)).await {
                        Some(answer) => (answer, true),
                        None => return Ok(()),
                    }
                }
            }
            Err(error) => (Response::Error(error), false),
        };
        timeout(RESPONSE_TIME_MAX, write_all(stream, &line(&response))).await??;
        if !goes_on {
            return Ok(());
        }
    }
}

/// Completes soon after a peer has closed its connection. One that only has nothing more to say waits for its answer.
async fn left(stream: &UnixStream) {
    loop {
        sleep(LEFT_LOOK_EVERY).await;
        if lines::has_left(stream) {
            return;
        }
    }
}

/// The next line, or why it is invalid; `None` at the end. `unread` are bytes that were read before, beyond a line.
async fn read_line(stream: &UnixStream, unread: &mut Vec<u8>) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let mut searched = 0;
    loop {
        let end = unread[searched..].iter().position(|byte| *byte == b'\n').map(|at| searched + at + 1);
        if let Some(end) = end.filter(|end| *end <= LINE_BYTES_MAX) {
            let rest = unread.split_off(end);
            return Ok(Some(Ok(mem::replace(unread, rest))));
        }
        if unread.len() >= LINE_BYTES_MAX {
            let text = format!("the line is longer than {LINE_BYTES_MAX} bytes; send one JSON object a line");
            return Ok(Some(Err(text)));
        }
        searched = unread.len();
        stream.readable().await?;
        unread.reserve(READ_BYTES);
        match stream.try_read_buf(unread) {
            Ok(0) if unread.is_empty() => return Ok(None),
            Ok(0) => return Ok(Some(Err("the last line has no end: end each request with a newline".to_owned()))),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn answer<D: LiveDisk>(control: &Control<D>, text: &[u8]) -> Response {
    let request = match Request::parse(text) {
        Ok(request) => request,
        Err(error) => {
            return Response::Error(format!(r#"not a request: {error}; send a line such as {{"command":"status"}}"#));
        }
    };
    match control.answer(request).await {
        Ok(result) => Response::Result(result),
        Err(error) => Response::Error(crate::text::chain(&control.description.confinement.explain_paths(error))),
    }
}
