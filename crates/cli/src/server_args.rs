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
}

impl ServerArgs {
    /// Connects to the server.
    pub(crate) fn connect(&self) -> Result<Client> {
        Client::find(self.socket.as_deref())
    }
}
