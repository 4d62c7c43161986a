//! Clients and sockets on their way to another process, which goes on with them where this one has stopped.
//!
//! A client goes when nothing of it is under way: every request that was begun is executed and answered. What was
//! received of the next ones goes along, and what was not stays in its socket. Sockets go with those who wait there to
//! be accepted. Whoever uses TLS stays, and is disconnected: its keys belong to this process.
//!
//! What never arrives anywhere is gone: clients are disconnected, and a socket's file is removed.

use std::{
    io, mem,
    net::{TcpListener as StdTcpListener, TcpStream as StdTcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{SocketAddr, UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
};

use super::{
    client::{Client, Detached, InTransit},
    peer::Peer,
    receive::ReceiveBuffer,
    shared::Introduced,
    socket::FileIdentity,
};
use crate::transmission::{SESSION_BYTES, Session};

/// The first byte of a note: what the descriptor is.
const UNIX_SOCKET: u8 = b'u';
const FOREIGN_UNIX_SOCKET: u8 = b'f';
const TCP_SOCKET: u8 = b't';
const CLIENT: u8 = b'c';

/// One of them: a descriptor, and a note on what it is.
#[derive(Debug)]
pub struct Parting {
    descriptor: OwnedFd,
    /// Empty once somebody else goes on with it.
    note: Vec<u8>,
}

/// What has arrived in another process.
pub(super) enum Arrived {
    /// A socket, and the file that is to be removed with it, if there is one.
    Unix(StdUnixListener, Option<FileIdentity>),
    Tcp(StdTcpListener),
    Client(Introduced),
}

impl Parting {
    /// The longest note there is: that of a client of which as much was received as there is room for.
    pub const NOTE_BYTES_MAX: usize = 1 + SESSION_BYTES + ReceiveBuffer::BYTES_MAX;

    /// One of these parts.
    #[must_use]
    pub fn new(descriptor: OwnedFd, note: Vec<u8>) -> Self {
        Self { descriptor, note }
    }

    /// Its descriptor and its note, as [`Parting::new`] makes the same of them in another process.
    #[must_use]
    pub fn parts(&self) -> (BorrowedFd<'_>, &[u8]) {
        (self.descriptor.as_fd(), &self.note)
    }

    /// It has arrived in another process, which goes on with it.
    pub fn has_arrived(mut self) {
        self.note.clear();
    }

    /// Whether it is a client.
    #[must_use]
    pub fn is_client(&self) -> bool {
        self.note.first() == Some(&CLIENT)
    }

    /// Whether it is a Unix socket that clients connect to.
    #[must_use]
    pub fn is_unix_socket(&self) -> bool {
        matches!(self.note.first(), Some(&(UNIX_SOCKET | FOREIGN_UNIX_SOCKET)))
    }

    /// A socket, and its file if that is this server's to remove.
    pub(super) fn of_unix_socket(socket: OwnedFd, file: Option<FileIdentity>) -> Self {
        let note = file.map_or(vec![FOREIGN_UNIX_SOCKET], |file| [&[UNIX_SOCKET], &file.to_bytes()[..]].concat());
        Self::new(socket, note)
    }

    pub(super) fn of_tcp_socket(socket: OwnedFd) -> Self {
        Self::new(socket, vec![TCP_SOCKET])
    }

    /// A client of this session, of which something is received that no request was begun with.
    pub(super) fn of_client(stream: OwnedFd, session: &Session, received: &[u8]) -> Self {
        Self::new(stream, [&[CLIENT], &session.to_bytes()[..], received].concat())
    }

    /// What it is here.
    ///
    /// # Errors
    /// If the note does not say, or is not true.
    pub(super) fn arrive(mut self) -> io::Result<Arrived> {
        let descriptor = self.descriptor.try_clone()?;
        let note = mem::take(&mut self.note);
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "what was handed over is of another version");
        match note.split_first().ok_or_else(unknown)? {
            (&UNIX_SOCKET, file) => {
                let file = FileIdentity::from_bytes(file.try_into().map_err(|_| unknown())?);
                Ok(Arrived::Unix(descriptor.into(), Some(file)))
            }
            (&FOREIGN_UNIX_SOCKET, []) => Ok(Arrived::Unix(descriptor.into(), None)),
            (&TCP_SOCKET, []) => Ok(Arrived::Tcp(descriptor.into())),
            (&CLIENT, rest) => {
                let (session, received) = rest.split_first_chunk().ok_or_else(unknown)?;
                let session = Session::from_bytes(*session).ok_or_else(unknown)?;
                let received = ReceiveBuffer::of(received).ok_or_else(unknown)?;
                client(descriptor, received, session).map(Arrived::Client)
            }
            _ => Err(unknown()),
        }
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        let Some((&UNIX_SOCKET, file)) = self.note.split_first() else { return };
        let Ok(file) = file.try_into().map(FileIdentity::from_bytes) else { return };
        let address = self.descriptor.try_clone().and_then(|socket| StdUnixListener::from(socket).local_addr());
        if let Some(path) = address.ok().as_ref().and_then(SocketAddr::as_pathname) {
            file.remove(path);
        }
    }
}

/// A client on this socket.
fn client(stream: OwnedFd, received: ReceiveBuffer, session: Session) -> io::Result<Introduced> {
    let domain = rustix::net::sockopt::socket_domain(&stream)?;
    if domain == rustix::net::AddressFamily::UNIX {
        let process = rustix::net::sockopt::socket_peercred(&stream).ok().map(|peer| peer.pid.as_raw_nonzero().get());
        let stream = StdUnixStream::from(stream);
        stream.set_nonblocking(true)?;
        let client = InTransit::Unix(Detached::Plain(Client { stream, received, session }));
        return Ok(Introduced { client, peer: Peer::Local(process) });
    }
    let stream = StdTcpStream::from(stream);
    stream.set_nonblocking(true)?;
    let peer = Peer::Remote(stream.peer_addr()?);
    Ok(Introduced { client: InTransit::Tcp(Detached::Plain(Client { stream, received, session })), peer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExportInfo, Headers};

    fn session() -> Session {
        Session::new(&ExportInfo::new(1 << 20), Headers::Extended, true)
    }

    #[test]
    fn a_client_arrives_with_its_session_and_what_was_received() {
        let (stream, _other) = StdUnixStream::pair().unwrap();
        let parting = Parting::of_client(stream.into(), &session(), b"half a request");
        assert!(parting.is_client());
        let Arrived::Client(Introduced { client: InTransit::Unix(Detached::Plain(client)), peer }) =
            parting.arrive().unwrap()
        else {
            panic!("it was a client on a Unix socket");
        };
        assert_eq!(client.session, session());
        assert_eq!(client.received.unread(), b"half a request");
        assert_eq!(peer, Peer::Local(Some(std::process::id().cast_signed())));
    }

    #[test]
    fn a_client_of_another_host_arrives_with_its_address() {
        let listener = StdTcpListener::bind("127.0.0.1:0").unwrap();
        let _other = StdTcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, address) = listener.accept().unwrap();
        let arrived = Parting::of_client(stream.into(), &session(), &[]).arrive().unwrap();
        let Arrived::Client(Introduced { peer, .. }) = arrived else { panic!("it was a client") };
        assert_eq!(peer, Peer::Remote(address));
    }

    #[test]
    fn notes_that_nobody_wrote_are_refused() {
        let note = |note: &[u8]| {
            let (stream, _) = StdUnixStream::pair().unwrap();
            Parting::new(stream.into(), note.to_vec()).arrive().map(drop)
        };
        let client = [&[CLIENT], &session().to_bytes()[..]].concat();
        note(&client).unwrap();
        for wrong in [&[][..], b"x", b"ux", &client[..client.len() - 1]] {
            note(wrong).unwrap_err();
        }
        let too_much = [&client[..], &vec![0; ReceiveBuffer::BYTES_MAX + 1]].concat();
        note(&too_much).unwrap_err();
    }
}
