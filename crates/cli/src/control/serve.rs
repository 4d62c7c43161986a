//! Connections to the control socket, one task for each.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use uraid_nbd::UnixSocket;

use super::Control;
use super::protocol::{Answer, LINE_BYTES_MAX, Request};

type Response = super::protocol::Response<Answer>;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 16;

/// How long a peer may take for its next line, and for taking in a response.
const LINE_TIME_MAX: Duration = Duration::from_secs(60);
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long to leave off accepting when the system is out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Answers whoever connects until the door closes, and then those who are connected.
pub(crate) async fn serve(control: Rc<Control>, socket: UnixSocket) {
    let mut connections = JoinSet::new();
    control.door.is_open.set(true);
    loop {
        // A connection that has ended makes room for the next one.
        tokio::select! {
            biased;
            () = control.door.closes.notified() => break,
            Some(_) = connections.join_next() => {}
            accepted = socket.accept() => match accepted {
                Ok(stream) if connections.len() < CONNECTIONS_MAX => {
                    let control = Rc::clone(&control);
                    connections.spawn_local(async move {
                        if let Err(error) = converse(&control, stream).await {
                            tracing::debug!(%error, "a control connection ended");
                        }
                    });
                }
                Ok(stream) => refuse(&stream),
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

/// Says that there are too many, to those who look.
fn refuse(stream: &UnixStream) {
    let text = format!("there are {CONNECTIONS_MAX} control connections already, and no more are allowed: close one");
    // An empty send buffer takes it at once.
    let _ = stream.try_write(&line(&Response::Error(text)));
}

/// Answers one peer line by line until it leaves, or sends what is no line.
async fn converse(control: &Rc<Control>, stream: UnixStream) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let Some(text) = timeout(LINE_TIME_MAX, read_line(&mut read)).await?? else { return Ok(()) };
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

/// The next line, or why there is none; nothing at the end.
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
