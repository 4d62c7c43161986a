//! Sockets as a connection uses them.

use std::{
    io,
    task::{Context, Poll, ready},
};

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

    /// Tells the client that nothing more comes, where the stream has words for that, as far as the socket takes it at
    /// once.
    fn say_goodbye(&mut self, _: &mut Context<'_>) {}
}

impl Stream for UnixStream {
    fn poll_receive(&mut self, cx: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(cx))?;
            if let Some(received) = unless_empty(self.try_read(target)) {
                return Poll::Ready(received);
            }
        }
    }
}

impl Stream for TcpStream {
    fn poll_receive(&mut self, cx: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(cx))?;
            if let Some(received) = unless_empty(self.try_read(target)) {
                return Poll::Ready(received);
            }
        }
    }
}

/// `None` if the socket had nothing; it has noted that, and the next question is answered by an event.
fn unless_empty(received: io::Result<usize>) -> Option<io::Result<usize>> {
    (!matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock)).then_some(received)
}
