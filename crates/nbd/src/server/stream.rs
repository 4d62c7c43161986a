//! Sockets as a connection uses them.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    task::{Context, Poll, ready},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::{
    io::AsyncWrite,
    net::{TcpStream, UnixStream},
};

/// A connected socket, or TLS on one.
///
/// Bytes that come while others are dealt with are found by asking again. `AsyncRead` would not ask: after a read that
/// did not fill its buffer it waits for the next event, which costs a turn of the event loop.
///
/// What is written may stay in the stream until it is flushed. Sockets keep nothing.
pub(super) trait Stream: AsyncWrite + Unpin {
    /// Receives into `target`. Ready with 0 at the end of the stream; pending only if the socket has nothing.
    fn poll_receive(&mut self, cx: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Whether the client has closed its side, whatever is still to be received.
    fn is_closed(&self) -> bool;

    /// Whether another process may go on with it.
    const MAY_PART: bool = false;

    /// Another descriptor of it, for another process.
    ///
    /// # Errors
    /// The system's, and if no other process may have one.
    fn for_another_process(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Tells the client that nothing more comes, where the stream has words for that, as far as the socket takes it at
    /// once.
    fn say_goodbye(&mut self, _: &mut Context<'_>) {}
}

/// A stream that can change its event loop.
pub(super) trait Portable: Stream + Sized {
    /// The stream on no event loop.
    type Detached;

    /// Takes it off its event loop.
    fn detach(self) -> io::Result<Self::Detached>;

    /// Puts it on the event loop of this thread.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    fn attach(detached: Self::Detached) -> io::Result<Self>;
}

impl Portable for UnixStream {
    type Detached = std::os::unix::net::UnixStream;

    fn detach(self) -> io::Result<Self::Detached> {
        self.into_std()
    }

    fn attach(detached: Self::Detached) -> io::Result<Self> {
        Self::from_std(detached)
    }
}

impl Portable for TcpStream {
    type Detached = std::net::TcpStream;

    fn detach(self) -> io::Result<Self::Detached> {
        self.into_std()
    }

    fn attach(detached: Self::Detached) -> io::Result<Self> {
        Self::from_std(detached)
    }
}

impl Stream for UnixStream {
    const MAY_PART: bool = true;

    fn for_another_process(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(cx))?;
            if let Some(received) = unless_empty(self.try_read(target)) {
                return Poll::Ready(received);
            }
        }
    }

    fn is_closed(&self) -> bool {
        is_closed(self)
    }
}

impl Stream for TcpStream {
    const MAY_PART: bool = true;

    fn for_another_process(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(cx))?;
            if let Some(received) = unless_empty(self.try_read(target)) {
                return Poll::Ready(received);
            }
        }
    }

    fn is_closed(&self) -> bool {
        is_closed(self)
    }
}

/// Whether the other side of a socket is closed, or can't be asked.
fn is_closed(socket: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).is_err() || !asked[0].revents().is_empty()
}

/// `None` if the socket had nothing; it has noted that, and the next question is answered by an event.
fn unless_empty(received: io::Result<usize>) -> Option<io::Result<usize>> {
    (!matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock)).then_some(received)
}
