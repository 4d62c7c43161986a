//! TLS for a socket that somebody else reads and writes: a thread that encrypts what it finds on one socket, and sends
//! it on another.
//!
//! Whoever has the near end can use it as any socket, from a ring as well: nothing of the encryption is in its way but
//! a copy and a switch. What was written to the near end is not yet sent, as with any socket; whoever wants it never
//! sent has to end the far one ([`Socket::abort`](super::Socket::abort)).

use std::{
    io,
    net::TcpStream,
    os::unix::net::UnixStream,
    sync::{Arc, OnceLock, mpsc::Sender},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, copy_buf, split},
    runtime::Builder,
    time::{timeout, timeout_at},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

/// How much is encrypted, or decrypted, at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// How long to wait for what a server has said before it took nothing more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The socket of the server's side.
pub(super) enum Far {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What a tunnel is about.
pub(super) struct Tunnel {
    pub(super) far: Far,
    /// The other end of the socket that its user has.
    pub(super) near: UnixStream,
    pub(super) config: Arc<ClientConfig>,
    pub(super) server: ServerName<'static>,
    /// TLS is established by then, or never.
    pub(super) until: Option<Instant>,
    /// Why it ended, if that is known.
    pub(super) fate: Arc<OnceLock<String>>,
}

impl Tunnel {
    /// Establishes TLS, tells whether that worked, and then carries what comes until one side ends.
    pub(super) fn run(self, established: &Sender<io::Result<()>>) {
        let fate = Arc::clone(&self.fate);
        // The user of the near end finds that it has ended when this is closed, too: why is known by then.
        let kept = self.near.try_clone();
        let ran = Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            // A tunnel that nobody hears of any more ends by itself.
            runtime.block_on(self.carry(|| drop(established.send(Ok(())))))
        });
        if let Err(error) = ran {
            let _ = fate.set(error.to_string());
            let _ = established.send(Err(error));
        }
        drop(kept);
    }

    async fn carry(self, established: impl FnOnce()) -> io::Result<()> {
        let Self { far, near, config, server, until, .. } = self;
        near.set_nonblocking(true)?;
        let near = tokio::net::UnixStream::from_std(near)?;
        match far {
            Far::Tcp(far) => {
                far.set_nonblocking(true)?;
                carry(tokio::net::TcpStream::from_std(far)?, near, config, server, until, established).await
            }
            Far::Unix(far) => {
                far.set_nonblocking(true)?;
                carry(tokio::net::UnixStream::from_std(far)?, near, config, server, until, established).await
            }
        }
    }
}

async fn carry(
    far: impl AsyncRead + AsyncWrite + Unpin,
    mut near: tokio::net::UnixStream,
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
    until: Option<Instant>,
    established: impl FnOnce(),
) -> io::Result<()> {
    let connecting = TlsConnector::from(config).connect(server, far);
    let far = match until {
        Some(until) => timeout_at(until.into(), connecting).await.map_err(|_| io::ErrorKind::TimedOut)??,
        None => connecting.await?,
    };
    established();
    let (from_far, mut to_far) = split(far);
    let (from_near, mut to_near) = near.split();
    let send = async {
        copy_buf(&mut BufReader::with_capacity(BUFFER_BYTES, from_near), &mut to_far).await?;
        to_far.shutdown().await
    };
    let receive = async { copy_buf(&mut BufReader::with_capacity(BUFFER_BYTES, from_far), &mut to_near).await };
    let mut receive = std::pin::pin!(receive);
    // Who ends one direction ends both: the protocol has no use for half of a connection.
    tokio::select! {
        sent = send => match sent {
            Ok(()) => Ok(()),
            // Before it closed its side it may have said why.
            Err(error) => match timeout(LAST_WORDS, receive).await {
                Ok(Err(said)) => Err(said),
                Ok(Ok(_)) | Err(_) => Err(error),
            },
        },
        received = &mut receive => received.map(drop),
    }
}
