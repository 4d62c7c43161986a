//! The client side of the control socket: a command sends a request and waits.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::protocol::{Request, Response, Status};
use crate::running;

/// The socket of a server that was started in the working directory.
const DEFAULT_SOCKET: &str = "uraid.sock";

/// How long a server may take for an immediate request.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// How long it may take to say what it serves, where several are asked.
const STATUS_TIME_MAX: Duration = Duration::from_secs(3);

/// Maximum length of a response.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;

/// The server has ended, or closed the connection, before it answered.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the server ended without an answer; its log says why")]
pub struct Ended;

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    /// The server's socket.
    path: PathBuf,
}

impl Client {
    /// Connects to a server: the one with this socket, the one of this directory, or the only one that runs.
    ///
    /// # Errors
    /// If it does not answer, or none or several run.
    pub fn find(socket: Option<&Path>) -> Result<Self> {
        if let Some(socket) = socket {
            return Self::connect(socket);
        }
        if let Ok(client) = Self::connect(Path::new(DEFAULT_SOCKET)) {
            return Ok(client);
        }
        match running::servers().as_slice() {
            [] => bail!(
                "no server is running: start one with `uraid serve`, or name the socket of one that could not be \
                 found, with --socket"
            ),
            [socket] => Self::connect(socket),
            several => bail!(
                "several arrays are running; name one, with --array or --socket:\n  {}",
                several.iter().map(|socket| socket.display().to_string()).collect::<Vec<_>>().join("\n  ")
            ),
        }
    }

    /// Connects to the server of the array that has this name or UUID, where only one has.
    ///
    /// # Errors
    /// If none or several have it, or the server does not answer.
    pub fn of_array(array: &str) -> Result<Self> {
        let is_meant = |status: &Status| status.name == array || status.uuid.to_string() == array;
        let (answers, silent): (Vec<_>, Vec<_>) = states().into_iter().partition(|(_, state)| state.is_ok());
        let meant = answers.into_iter().filter(|(_, state)| state.as_ref().is_ok_and(is_meant));
        match meant.map(|(socket, _)| socket).collect::<Vec<_>>().as_slice() {
            [] if silent.is_empty() => bail!(
                "no array '{array}' is running: `uraid list` shows those that are, or name its --socket; one that is \
                 being opened, or waits for members, can't be asked yet"
            ),
            [] => bail!(
                "no array '{array}' answers, and these servers do not say what they serve; they may hang, or be \
                 stopping:\n  {}",
                silent.iter().map(|(socket, _)| socket.display().to_string()).collect::<Vec<_>>().join("\n  ")
            ),
            [socket] => Self::connect(socket),
            several => bail!(
                "several running arrays have the name '{array}'; name the socket of one, with --socket:\n  {}",
                several.iter().map(|socket| socket.display().to_string()).collect::<Vec<_>>().join("\n  ")
            ),
        }
    }

    /// Connects to the server with the control socket `socket`, or with the client socket `socket` beside it.
    ///
    /// # Errors
    /// If no server answers there.
    pub fn connect(socket: &Path) -> Result<Self> {
        let path = socket.with_extension("ctl");
        let stream = UnixStream::connect(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow::anyhow!(
                "no server answers at {}: name the socket that `uraid serve` printed, with --socket",
                path.display()
            ),
            _ => anyhow::Error::new(error).context(format!("can't connect to {}", path.display())),
        })?;
        Self::new(stream, path)
    }

    /// A connection to the server with this control socket.
    pub(crate) fn new(stream: UnixStream, control: PathBuf) -> Result<Self> {
        Self::within(stream, control, ANSWER_TIME_MAX)
    }

    fn within(stream: UnixStream, path: PathBuf, time_max: Duration) -> Result<Self> {
        stream.set_read_timeout(Some(time_max))?;
        stream.set_write_timeout(Some(time_max))?;
        Ok(Self { stream: BufReader::new(stream), path })
    }

    /// Connects again, to whoever has the same socket now.
    ///
    /// # Errors
    /// If nobody answers there.
    pub fn reconnect(&mut self) -> Result<()> {
        *self = Self::new(UnixStream::connect(&self.path)?, self.path.clone())?;
        Ok(())
    }

    /// Waits for each answer no longer than this.
    ///
    /// # Errors
    /// The system's.
    pub fn limit_patience(&self, time_max: Duration) -> Result<()> {
        self.stream.get_ref().set_read_timeout(Some(time_max))?;
        Ok(self.stream.get_ref().set_write_timeout(Some(time_max))?)
    }

    /// Removes the time limit for the server's answer.
    pub fn be_patient(&self) -> Result<()> {
        Ok(self.stream.get_ref().set_read_timeout(None)?)
    }

    /// As [`Client::ask`] without a time limit. Calls `say` if the answer takes longer than `soon`.
    pub fn ask_at_length<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        soon: Duration,
        say: impl FnOnce(),
    ) -> Result<T> {
        self.stream.get_ref().set_read_timeout(Some(soon))?;
        self.send(request)?;
        if self.stream.fill_buf().is_err_and(|error| is_timeout(&error)) {
            say();
        }
        self.be_patient()?;
        self.answer()
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// The server's reason, or why it does not answer; [`Ended`] where it has gone.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T> {
        self.send(request)?;
        self.answer()
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        // A server that refuses the connection sends its reason before closing it.
        let _ = self.stream.get_mut().write_all(&line);
        Ok(())
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut answer = Vec::new();
        let count = (&mut self.stream).take(RESPONSE_BYTES_MAX).read_until(b'\n', &mut answer);
        if let Err(error) = count {
            if error.kind() == ErrorKind::ConnectionReset {
                return Err(Ended.into());
            }
            let path = self.path.display();
            let time_max = self.stream.get_ref().read_timeout()?.filter(|_| is_timeout(&error));
            match time_max {
                Some(time_max) => bail!(
                    "the server at {path} did not answer within {} s: its log says more; it may hang, or be starting \
                     or stopping",
                    time_max.as_secs_f64()
                ),
                None => return Err(error).context(format!("the server at {path} did not answer; its log says more")),
            }
        }
        if answer.last() != Some(&b'\n') {
            return Err(Ended.into());
        }
        let answer = serde_json::from_slice(&answer);
        match answer.context("the server's answer is not understood: is it of another version?")? {
            Response::Result(value) => Ok(value),
            Response::Error(text) => bail!(text),
        }
    }
}

/// The state of every running server, by its control socket, or why it does not tell. All are asked at once, and none
/// is waited for longer than a few seconds; those that end meanwhile are left out.
#[must_use]
pub fn states() -> Vec<(PathBuf, Result<Status>)> {
    let mut states = states_of(running::servers(), STATUS_TIME_MAX);
    states.retain(|(_, state)| !state.as_ref().is_err_and(|error| error.is::<Ended>()));
    states
}

fn states_of(sockets: Vec<PathBuf>, time_max: Duration) -> Vec<(PathBuf, Result<Status>)> {
    let ask = move |socket: &Path| {
        let mut client = Client::connect(socket)?;
        client.limit_patience(time_max)?;
        client.ask(&Request::Status {})
    };
    let asked = sockets.into_iter().map(|socket| {
        let path = socket.clone();
        let thread = thread::Builder::new().name("status".into()).spawn(move || ask(&path));
        (socket, thread)
    });
    let asked: Vec<_> = asked.collect();
    let answers = asked.into_iter().map(|(socket, thread)| {
        let answer = thread.context("can't start a thread");
        let answer = answer.and_then(|thread| thread.join().unwrap_or_else(|_| bail!("the answer was too much")));
        (socket, answer)
    });
    answers.collect()
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_named() {
        let (stream, _silent) = UnixStream::pair().unwrap();
        let mut client = Client::within(stream, "/srv/vault.ctl".into(), Duration::from_millis(500)).unwrap();
        let error = client.ask::<serde_json::Value>(&Request::Status {}).unwrap_err();
        let text = crate::text::chain(&error);
        assert!(text.starts_with("the server at /srv/vault.ctl did not answer within 0.5 s"), "{text}");
        assert!(!text.contains("os error"), "{text}");
    }

    /// Servers that hang are waited for together.
    #[test]
    fn servers_are_asked_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let sockets: Vec<_> = (0..4).map(|index| directory.path().join(format!("{index}.ctl"))).collect();
        let silent: Vec<_> = sockets.iter().map(|socket| UnixListener::bind(socket).unwrap()).collect();
        let asked = thread::spawn(move || states_of(sockets, Duration::from_secs(3600)));
        // Each is asked although none before it has answered.
        let streams: Vec<_> = silent.iter().map(|listener| listener.accept().unwrap().0).collect();
        for mut stream in streams {
            stream.write_all(b"{\"error\":\"not now\"}\n").unwrap();
        }
        let answers = asked.join().unwrap();
        assert_eq!(answers.len(), 4);
        for (_, answer) in answers {
            assert_eq!(answer.unwrap_err().to_string(), "not now");
        }
    }

    #[test]
    fn who_takes_long_is_waited_for_and_that_is_said() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        let mut client = Client::within(stream, "/srv/vault.ctl".into(), Duration::from_secs(1)).unwrap();
        let mut has_said = false;
        let answer: serde_json::Value = client
            .ask_at_length(&Request::Stop { force: false }, Duration::from_millis(1), || {
                has_said = true;
                server.write_all(b"{\"result\":{}}\n").unwrap();
            })
            .unwrap();
        assert_eq!((answer, has_said), (serde_json::json!({}), true));
    }
}
