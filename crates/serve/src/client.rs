//! The client side of the control socket: a command sends a request and waits.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::protocol::{Request, Response, Status};
use crate::running;

/// The socket of a server that was started in the working directory.
const DEFAULT_SOCKET: &str = "uraid.sock";

/// How long a server may take for an immediate request.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

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
        let is_meant = |socket: &PathBuf| {
            let status: Option<Status> =
                Self::connect(socket).and_then(|mut client| client.ask(&Request::Status {})).ok();
            status.is_some_and(|status| status.name == array || status.uuid.to_string() == array)
        };
        match running::servers().into_iter().filter(is_meant).collect::<Vec<_>>().as_slice() {
            [] => bail!("no array '{array}' is running: `uraid list` shows those that are, or name its --socket"),
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

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
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
