//! Which server a command asks.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use uraid_serve::client::Client;

use crate::candidates;

/// Which server is meant.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// Socket or control socket of the server [default: ./uraid.sock, or the only running server]
    #[arg(long, short, value_name = "PATH", add = ArgValueCompleter::new(candidates::sockets))]
    socket: Option<PathBuf>,
    /// Name or UUID of its array, where several are running
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    array: Option<String>,
}

impl ServerArgs {
    /// Connects to the server.
    pub(crate) fn connect(&self) -> Result<Client> {
        match &self.array {
            Some(array) => Client::of_array(array),
            None => Client::find(self.socket.as_deref()),
        }
    }
}
