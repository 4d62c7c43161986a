//! One request at a time over a stream that blocks: what a program does before it has an event loop.

use std::{
    io::{self, ErrorKind, Read, Write},
    time::Instant,
};

use tokio_rustls::rustls::pki_types::ServerName;

use super::{
    agreed::Agreed,
    certificates,
    error::Error,
    handshake::{Ended, Goal, Handshake, Listed},
    socket::Socket,
    transmission::{Part, Transmission},
    uri::{Address, Tls, Uri},
};
use crate::{Command, Span};

/// How much of replies is read ahead of their data.
const INPUT_BYTES: usize = 4096;

/// A connection in the transmission phase, with nothing under way.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    agreed: Agreed,
    transmission: Transmission,
    /// What was received of the next reply.
    input: Vec<u8>,
}

impl Connection<Socket> {
    /// Connects to the server of a URI and negotiates its export, over TLS where the URI has that.
    ///
    /// # Errors
    /// When the server can't be reached until then, does not prove itself, refuses, or says what it may not.
    pub fn open(uri: &Uri, until: Instant) -> Result<Self, Error> {
        let Some(tls) = &uri.tls else {
            return Self::negotiate(Socket::connect(&uri.address, until)?, &uri.export);
        };
        let (config, server) = (certificates::config(&tls.directory())?, server_name(uri, tls)?);
        let handshake = Handshake::new(Goal::Use { export: uri.export.clone() }, true);
        let (stream, handshake) = shake_hands(Socket::connect(&uri.address, until)?, handshake)?;
        let encrypted = shake_hands(stream.encrypted(config, server)?, handshake.in_tls());
        let (stream, handshake) = encrypted.map_err(turned_away)?;
        Ok(Self::after(stream, &handshake))
    }
}

impl<S: Read + Write> Connection<S> {
    /// Negotiates an export, in the clear.
    ///
    /// # Errors
    /// When the stream fails, or the server refuses or says what it may not.
    pub fn negotiate(stream: S, export: &str) -> Result<Self, Error> {
        let handshake = Handshake::new(Goal::Use { export: export.into() }, false);
        let (stream, handshake) = shake_hands(stream, handshake)?;
        Ok(Self::after(stream, &handshake))
    }

    fn after(stream: S, handshake: &Handshake) -> Self {
        let Some(&Ended::Transmission(agreed)) = handshake.ended() else {
            unreachable!("a handshake ends with its goal")
        };
        Self { stream, agreed, transmission: Transmission::new(&agreed, 1), input: Vec::new() }
    }

    /// What client and server have agreed on.
    #[must_use]
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// The stream, with nothing under way.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The stream, with nothing under way.
    pub fn into_stream(self) -> S {
        self.stream
    }

    /// Fills `data` from `offset_bytes` on. The caller minds what the export takes.
    ///
    /// # Errors
    /// When the stream fails, or the server answers with an error or with what it may not.
    pub fn read_at(&mut self, offset_bytes: u64, data: &mut [u8]) -> Result<(), Error> {
        let step = self.agreed.block_sizes.maximum_bytes as usize;
        let mut at = offset_bytes;
        for piece in data.chunks_mut(step) {
            let span = Span { offset_bytes: at, length_bytes: piece.len() as u64 };
            self.call(&Command::Read { span, buffer: () }, &[], piece)?;
            at += span.length_bytes;
        }
        Ok(())
    }

    /// Writes `data` at `offset_bytes`. The caller minds what the export takes.
    ///
    /// # Errors
    /// As [`Connection::read_at`].
    pub fn write_at(&mut self, offset_bytes: u64, data: &[u8]) -> Result<(), Error> {
        let step = self.agreed.block_sizes.maximum_bytes as usize;
        let mut at = offset_bytes;
        for piece in data.chunks(step) {
            let span = Span { offset_bytes: at, length_bytes: piece.len() as u64 };
            self.call(&Command::Write { span, buffer: (), fua: false }, piece, &mut [])?;
            at += span.length_bytes;
        }
        Ok(())
    }

    /// Does what has no data.
    ///
    /// # Errors
    /// As [`Connection::read_at`].
    ///
    /// # Panics
    /// If the command is a read or a write.
    pub fn perform(&mut self, command: &Command<()>) -> Result<(), Error> {
        let has_data = matches!(command, Command::Read { .. } | Command::Write { .. });
        assert!(!has_data, "what has data has a function of its own");
        self.call(command, &[], &mut [])
    }

    /// Ends the session, and tells the server.
    ///
    /// # Errors
    /// When the stream fails.
    pub fn disconnect(mut self) -> Result<(), Error> {
        self.stream
            .write_all(self.transmission.farewell().as_bytes())
            .map_err(|source| failed("send a request", source))
    }

    fn call(&mut self, command: &Command<()>, sent: &[u8], data: &mut [u8]) -> Result<(), Error> {
        let (request, header) = self.transmission.begin(command).expect("nothing is under way");
        let send = |source| failed("send a request", source);
        self.stream.write_all(header.as_bytes()).map_err(send)?;
        self.stream.write_all(sent).map_err(send)?;
        loop {
            let mut rest = &self.input[..];
            let received = self.transmission.next(&mut rest)?;
            let used = self.input.len() - rest.len();
            self.input.drain(..used);
            let Some(received) = received else {
                let mut more = [0; INPUT_BYTES];
                let count = read_some(&mut self.stream, &mut more)?;
                self.input.extend_from_slice(&more[..count]);
                continue;
            };
            assert_eq!(received.request, request, "nothing else is under way");
            let place = |at: u32, length: u32| at as usize..(at + length) as usize;
            match received.part {
                Part::None => {}
                Part::Zeros { at_bytes, length_bytes } => data[place(at_bytes, length_bytes)].fill(0),
                Part::Data { at_bytes, length_bytes } => {
                    let piece = &mut data[place(at_bytes, length_bytes)];
                    let there = self.input.len().min(piece.len());
                    piece[..there].copy_from_slice(&self.input[..there]);
                    self.input.drain(..there);
                    fill(&mut self.stream, &mut piece[there..])?;
                }
            }
            match received.ended {
                Some(Ok(())) => return self.settle(),
                Some(Err(code)) => {
                    self.settle()?;
                    return Err(Error::Answered { code });
                }
                None => {}
            }
        }
    }

    /// Sees that nothing follows the last reply.
    fn settle(&mut self) -> Result<(), Error> {
        let mut rest = &self.input[..];
        match self.transmission.next(&mut rest)? {
            None if self.input.is_empty() => Ok(()),
            _ => Err(Error::Reply { what: "more than an answer to its request" }),
        }
    }
}

/// Hears which exports a server has, in the clear.
///
/// # Errors
/// When the stream fails, or the server refuses or says what it may not.
pub fn list(stream: impl Read + Write) -> Result<Vec<Listed>, Error> {
    let (_, handshake) = shake_hands(stream, Handshake::new(Goal::List, false))?;
    let Some(Ended::Listed(listed)) = handshake.ended() else { unreachable!("a handshake ends with its goal") };
    Ok(listed.clone())
}

/// Carries a handshake on until it has ended.
fn shake_hands<S: Read + Write>(mut stream: S, mut handshake: Handshake) -> Result<(S, Handshake), Error> {
    loop {
        stream.write_all(&handshake.take_output()).map_err(|source| failed("send an option", source))?;
        if handshake.ended().is_some() {
            return Ok((stream, handshake));
        }
        let mut received = [0; INPUT_BYTES];
        let count = read_some(&mut stream, &mut received)?;
        if handshake.receive(&received[..count])? != count {
            return Err(Error::Reply { what: "no request" });
        }
    }
}

/// What it may mean that a connection ends when it has just been encrypted.
fn turned_away(error: Error) -> Error {
    match error {
        Error::Socket { source, .. } if source.kind() != ErrorKind::TimedOut => Error::TurnedAway { source },
        Error::UnexpectedEnd => Error::TurnedAway { source: ErrorKind::ConnectionReset.into() },
        error => error,
    }
}

/// Whom the server's certificate has to be for.
fn server_name(uri: &Uri, tls: &Tls) -> Result<ServerName<'static>, Error> {
    let name = match (&tls.hostname, &uri.address) {
        (Some(name), _) | (None, Address::Tcp(name, _)) => name.as_str(),
        (None, Address::Unix(_)) => "localhost",
    };
    let unfit = |_| Error::ServerName { name: name.into() };
    Ok(ServerName::try_from(name).map_err(unfit)?.to_owned())
}

fn failed(action: &'static str, source: io::Error) -> Error {
    Error::Socket { action, source }
}

/// At least one byte.
fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Error> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(Error::UnexpectedEnd),
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(source) => return Err(failed("receive from the server", source)),
        }
    }
}

fn fill(stream: &mut impl Read, buffer: &mut [u8]) -> Result<(), Error> {
    stream.read_exact(buffer).map_err(|source| match source.kind() {
        ErrorKind::UnexpectedEof => Error::UnexpectedEnd,
        _ => failed("receive from the server", source),
    })
}
