//! Connections to the control socket, one task for each.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use uraid_nbd::UnixSocket;

use super::Control;
use super::protocol::{Answer, LINE_BYTES_MAX, Request};

type Response = super::protocol::Response<Answer>;

/// Maximum number of connections. Another one replaces the one that has been idle longest.
const CONNECTIONS_MAX: usize = 16;

/// How long a peer may take to send its next line, and to receive a response.
const LINE_TIME_MAX: Duration = Duration::from_secs(60);
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long to stop accepting when the system is out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Accepts connections until the door closes, then serves the remaining ones to their end.
pub(crate) async fn serve(control: Rc<Control>, socket: UnixSocket) {
    let mut connections = JoinSet::new();
    let mut peers = Peers::default();
    control.door.is_open.set(true);
    loop {
        // A connection that has ended makes room for the next one.
        tokio::select! {
            biased;
            () = control.door.closes.notified() => break,
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
                    let task = connections.spawn_local(async move {
                        if let Err(error) = converse(&control, stream, &idle).await {
                            tracing::debug!(%error, "a control connection ended");
                        }
                    });
                    peers.add(Peer { idle_since, task });
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept a control connection");
                    sleep(ACCEPT_BACKOFF).await;
                }
            },
        }
    }
    drop(socket);
    control.door.is_open.set(false);
    control.door.closed.notify_one();
    while connections.join_next().await.is_some() {}
}

/// A connection.
struct Peer {
    /// Since when it has waited for its next request; `None` while a request is being answered.
    idle_since: Rc<Cell<Option<Instant>>>,
    task: AbortHandle,
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
        let idle = self.0.iter().filter_map(|peer| Some((peer.idle_since.get()?, &peer.task)));
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
async fn converse(control: &Rc<Control>, stream: UnixStream, idle: &Cell<Option<Instant>>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        idle.set(Some(Instant::now()));
        let Some(text) = timeout(LINE_TIME_MAX, read_line(&mut read)).await?? else { return Ok(()) };
        idle.set(None);
        let (response, goes_on) = match text {
            Ok(text) => (answer(control, &text).await, true),
            Err(error) => (Response::Error(error), false),
        };
        timeout(RESPONSE_TIME_MAX, write.write_all(&line(&response))).await??;
        if !goes_on {
            return Ok(());
        }
    }
}

/// The next line, or why it is invalid; `None` at the end.
async fn read_line(read: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let mut text = Vec::new();
    let most = u64::try_from(LINE_BYTES_MAX).expect("a line is short");
    let count = read.take(most).read_until(b'\n', &mut text).await?;
    Ok(match text.last() {
        None => None,
        Some(b'\n') => Some(Ok(text)),
        Some(_) if count == LINE_BYTES_MAX => {
            Some(Err(format!("the line is longer than {LINE_BYTES_MAX} bytes; send one JSON object a line")))
        }
        Some(_) => Some(Err("the last line has no end: end each request with a newline".to_owned())),
    })
}

async fn answer(control: &Rc<Control>, text: &[u8]) -> Response {
    let request = match Request::parse(text) {
        Ok(request) => request,
        Err(error) => {
            return Response::Error(format!(r#"not a request: {error}; send a line such as {{"command":"status"}}"#));
        }
    };
    match control.answer(request).await {
        Ok(result) => Response::Result(result),
        Err(error) => Response::Error(crate::chain(&error)),
    }
}

fn line(response: &Response) -> Vec<u8> {
    let mut text = serde_json::to_vec(response).expect("a response has no keys that JSON can't have");
    text.push(b'\n');
    text
}
