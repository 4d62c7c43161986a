//! TLS on a client's socket.
//!
//! The library holds at most [`SEND_BUFFER_BYTES`] of replies that the socket does not take, and one record, or one
//! message of its handshake, of what was received; [`RECEIVE_BUFFER_BYTES`] of the latter are buffered before it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    certificates::{Fingerprint, Tls},
    stream::{Portable, Stream},
};
use crate::Error;

/// Replies that leave in one system call.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// What one system call receives: the library itself asks for 4 KiB at a time.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;

/// What is decrypted before other connections get their turns.
const RECEIVE_BYTES_MAX: usize = 256 << 10;

/// A socket on which TLS is established.
pub(super) struct Encrypted<S>(TlsStream<BufReader<Socket<S>>>);

impl<S: Stream> Encrypted<S> {
    /// Shakes hands as TLS has it. What takes long, or never comes, is the caller's to limit.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub(super) async fn accept(socket: S, tls: &Tls) -> Result<Self, Error> {
        let socket = BufReader::with_capacity(RECEIVE_BUFFER_BYTES, Socket(Some(socket)));
        let acceptor = TlsAcceptor::from(tls.config());
        let accepting = acceptor.accept_with(socket, |session| session.set_buffer_limit(Some(SEND_BUFFER_BYTES)));
        accepting.await.map(Self).map_err(|source| Error::Tls { source })
    }

    /// The client's certificate, if it was asked for one.
    pub(super) fn peer(&self) -> Option<Fingerprint> {
        let (_, session) = self.0.get_ref();
        session.peer_certificates()?.first().map(Fingerprint::of)
    }
}

/// TLS and its socket on no event loop.
pub(super) struct Detached<S: Portable> {
    /// Without a socket.
    tls: Encrypted<S>,
    socket: S::Detached,
}

impl<S: Portable> Portable for Encrypted<S> {
    type Detached = Detached<S>;

    fn detach(mut self) -> io::Result<Detached<S>> {
        let socket = self.0.get_mut().0.get_mut().0.take().expect("TLS has a socket");
        Ok(Detached { socket: socket.detach()?, tls: self })
    }

    fn attach(Detached { mut tls, socket }: Detached<S>) -> io::Result<Self> {
        tls.0.get_mut().0.get_mut().0 = Some(S::attach(socket)?);
        Ok(tls)
    }
}

impl<S: Stream> Stream for Encrypted<S> {
    /// An end without TLS's word for it is an error: anybody in between can close a connection.
    fn poll_receive(&mut self, cx: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        let most = target.len().min(RECEIVE_BYTES_MAX);
        let mut target = ReadBuf::new(&mut target[..most]);
        // Each time brings one record. What goes wrong after some is said when it is asked again.
        while target.remaining() > 0 {
            let before = target.filled().len();
            let read = Pin::new(&mut self.0).poll_read(cx, &mut target);
            let received = target.filled().len();
            match read {
                Poll::Ready(Ok(())) if received > before => {}
                _ if received > 0 => break,
                read => return read.map_ok(|()| 0),
            }
        }
        Poll::Ready(Ok(target.filled().len()))
    }

    fn is_closed(&self) -> bool {
        self.0.get_ref().0.get_ref().socket().is_closed()
    }

    fn say_goodbye(&mut self, cx: &mut Context<'_>) {
        // The connection is over, whether or not the client hears of it.
        let _ = Pin::new(&mut self.0).poll_shutdown(cx);
    }
}

impl<S: Stream> AsyncWrite for Encrypted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A stream as tokio reads it; none while TLS is between two event loops.
struct Socket<S>(Option<S>);

impl<S> Socket<S> {
    fn socket(&self) -> &S {
        self.0.as_ref().expect("who has no socket is not used")
    }

    fn socket_mut(&mut self) -> &mut S {
        self.0.as_mut().expect("who has no socket is not used")
    }
}

impl<S: Stream> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, target: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let received = ready!(self.socket_mut().poll_receive(cx, target.initialize_unfilled()))?;
        target.advance(received);
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self.socket_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.socket_mut()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.socket_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.socket_mut()).poll_shutdown(cx)
    }
}
