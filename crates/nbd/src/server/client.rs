//! A client whose handshake has ended, and the same between two event loops.
//!
//! Sockets belong to the event loop that polls them. What leaves one is [`Detached`]: the socket, TLS if there is any,
//! bytes that were received beyond the handshake, and what the handshake settled. Nothing of it is lost on the way, and
//! whoever attaches it to another event loop goes on where the handshake has ended.

use std::io;

use tokio::net::{TcpStream, UnixStream};

use super::{
    receive::ReceiveBuffer,
    stream::{Portable, Stream},
    tls::Encrypted,
};
use crate::transmission::Session;

/// A client whose handshake has ended; `stream` is on an event loop or not.
pub(super) struct Client<S> {
    pub(super) stream: S,
    pub(super) received: ReceiveBuffer,
    pub(super) session: Session,
}

/// A client on an event loop.
pub(super) enum Attached<S: Stream> {
    Plain(Client<S>),
    Encrypted(Box<Client<Encrypted<S>>>),
}

/// A client on none.
pub(super) enum Detached<S: Portable> {
    Plain(Client<S::Detached>),
    Encrypted(Box<Client<<Encrypted<S> as Portable>::Detached>>),
}

/// A client between two event loops, whatever its socket is.
pub(super) enum InTransit {
    Unix(Detached<UnixStream>),
    Tcp(Detached<TcpStream>),
}

impl<S: Portable> Client<S> {
    fn detach(self) -> io::Result<Client<S::Detached>> {
        let Self { stream, received, session } = self;
        Ok(Client { stream: stream.detach()?, received, session })
    }

    fn attach(client: Client<S::Detached>) -> io::Result<Self> {
        let Client { stream, received, session } = client;
        Ok(Self { stream: S::attach(stream)?, received, session })
    }
}

impl<S: Stream> Attached<S> {
    /// What the client's handshake has settled.
    pub(super) fn session(&self) -> &Session {
        match self {
            Self::Plain(client) => &client.session,
            Self::Encrypted(client) => &client.session,
        }
    }
}

impl<S: Portable> Attached<S> {
    /// Takes the client off this thread's event loop.
    ///
    /// # Errors
    /// The system's; the connection is closed then.
    pub(super) fn detach(self) -> io::Result<Detached<S>> {
        Ok(match self {
            Self::Plain(client) => Detached::Plain(client.detach()?),
            Self::Encrypted(client) => Detached::Encrypted(Box::new(client.detach()?)),
        })
    }
}

impl<S: Portable> Detached<S> {
    /// Puts the client on this thread's event loop.
    ///
    /// # Errors
    /// The system's; the connection is closed then.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub(super) fn attach(self) -> io::Result<Attached<S>> {
        Ok(match self {
            Self::Plain(client) => Attached::Plain(Client::attach(client)?),
            Self::Encrypted(client) => Attached::Encrypted(Box::new(Client::attach(*client)?)),
        })
    }
}
