//! The handshake on a socket: from a connection to a client that has chosen an export.

use std::{future::poll_fn, io, task::Poll};

use tokio::io::AsyncWriteExt as _;

use super::{
    certificates::{Fingerprint, Tls},
    client::{Attached, Client},
    receive::ReceiveBuffer,
    stream::Stream,
    tls::Encrypted,
};
use crate::{
    Error,
    handshake::{Ended, Exports, Handshake, Index, Security},
};

/// Shakes hands, in TLS if that is required. `exports` says what a client with this certificate may choose from.
/// `None` if the client left in good order.
pub(super) async fn negotiate<S: Stream>(
    mut stream: S,
    mut exports: impl FnMut(Option<Fingerprint>) -> Exports,
    tls: Option<&Tls>,
) -> Result<Option<(Index, Attached<S>)>, Error> {
    let mut received = ReceiveBuffer::for_handshake();
    let Some(tls) = tls else {
        let mut handshake = Handshake::new(exports(None), Security::Plain);
        return match shake_hands(&mut stream, &mut received, &mut handshake).await? {
            Ended::Transmission(export, session) => {
                Ok(Some((export, Attached::Plain(Client { stream, received, session }))))
            }
            Ended::Aborted => Ok(None),
            Ended::StartTls => unreachable!("TLS is started where there is any"),
        };
    };
    // Nothing is told in the clear.
    let mut handshake = Handshake::new(Exports::default(), Security::TlsRequired);
    match shake_hands(&mut stream, &mut received, &mut handshake).await? {
        Ended::Transmission(..) => unreachable!("TLS comes first"),
        Ended::Aborted => return Ok(None),
        Ended::StartTls => {}
    }
    assert!(received.is_empty(), "nothing in the clear is taken into TLS");
    let mut stream = Encrypted::accept(stream, tls).await?;
    let mut handshake = handshake.in_tls(exports(stream.peer()));
    match shake_hands(&mut stream, &mut received, &mut handshake).await? {
        Ended::Transmission(export, session) => {
            let client = Client { stream, received, session };
            Ok(Some((export, Attached::Encrypted(Box::new(client)))))
        }
        Ended::Aborted => {
            say_goodbye(&mut stream).await;
            Ok(None)
        }
        Ended::StartTls => unreachable!("TLS is not started in TLS"),
    }
}

async fn shake_hands<S: Stream>(
    stream: &mut S,
    received: &mut ReceiveBuffer,
    handshake: &mut Handshake,
) -> Result<Ended, Error> {
    loop {
        let output = handshake.take_output();
        stream.write_all(&output).await.map_err(failed("sending to the client"))?;
        stream.flush().await.map_err(failed("sending to the client"))?;
        if let Some(ended) = handshake.ended() {
            return Ok(ended);
        }
        let filled = poll_fn(|cx| received.poll_fill(stream, cx)).await.map_err(failed("receiving from the client"))?;
        if filled == 0 {
            return Err(Error::UnexpectedEnd);
        }
        let consumed = handshake.receive(received.unread())?;
        received.consume(consumed);
    }
}

/// Tells the client that nothing more comes.
pub(super) async fn say_goodbye<S: Stream>(stream: &mut S) {
    poll_fn(|cx| {
        stream.say_goodbye(cx);
        Poll::Ready(())
    })
    .await;
}

/// Names what failed on a client's socket.
pub(super) fn failed(operation: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Connection { operation, source }
}
