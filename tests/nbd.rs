//! The plain client as tests want it: mostly of the default export, and what must not fail panics. It sends what no
//! foreign client can be made to send: requests that are wrong, and chosen overlapping requests in flight together.

use std::ops::{Deref, DerefMut};
use std::path::Path;

pub use uraid_nbd_client::{ClientError, Command, REQUEST_BYTES, Reply, error, extended, flag, request};

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Client {
    plain: uraid_nbd_client::Client,
}

impl Client {
    /// Connects to the server's default export.
    #[must_use]
    #[track_caller]
    pub fn connect(socket: &Path) -> Self {
        Self::try_connect(socket).unwrap_or_else(|error| panic!("connecting to {}: {error}", socket.display()))
    }

    /// As [`Client::connect`].
    ///
    /// # Errors
    /// When the server does not take the connection.
    pub fn try_connect(socket: &Path) -> Result<Self, ClientError> {
        Ok(Self { plain: uraid_nbd_client::Client::connect(socket, "")? })
    }

    /// Connects to one of a server's exports.
    ///
    /// # Errors
    /// When the server does not take the connection, or has no such export.
    pub fn of_export(socket: &Path, export: &str) -> Result<Self, ClientError> {
        Ok(Self { plain: uraid_nbd_client::Client::connect(socket, export)? })
    }

    /// Sends one request and waits for its reply, while no other is in flight.
    #[track_caller]
    pub fn call(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> Reply {
        let sent = self.submit(command, offset, length, payload);
        let cookie = sent.unwrap_or_else(|error| panic!("sending {command:?} at {offset}: {error}"));
        let reply = self.reply().unwrap_or_else(|error| panic!("{command:?} of {length} at {offset}: {error}"));
        assert_eq!(reply.cookie, cookie, "the only request in flight is the one answered");
        reply
    }

    /// Writes `data` at `offset`; it must succeed.
    #[track_caller]
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("a request's length fits 32 bits");
        let reply = self.call(Command::Write, offset as u64, length, data);
        assert_eq!(reply.error, 0, "write of {length} at {offset}");
    }

    /// Reads `length` bytes at `offset`; it must succeed.
    #[must_use]
    #[track_caller]
    pub fn read(&mut self, offset: usize, length: usize) -> Vec<u8> {
        let length = u32::try_from(length).expect("a request's length fits 32 bits");
        let reply = self.call(Command::Read, offset as u64, length, &[]);
        assert_eq!(reply.error, 0, "read of {length} at {offset}");
        reply.data
    }

    /// Flushes; it must succeed.
    #[track_caller]
    pub fn flush(&mut self) {
        assert_eq!(self.call(Command::Flush, 0, 0, &[]).error, 0, "flush");
    }

    /// Ends the connection as the protocol asks.
    pub fn disconnect(self) {
        // The server closes without a reply, perhaps before it read everything.
        drop(self.plain.disconnect());
    }
}

impl Deref for Client {
    type Target = uraid_nbd_client::Client;

    fn deref(&self) -> &Self::Target {
        &self.plain
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.plain
    }
}
