//! From one server to the next, without an error for its clients: sockets and clients go from process to process.
//!
//! The new server asks the running one on its control socket. That one stops as always: it finishes what clients have
//! asked for, writes out its cache, and marks the members clean. Then it answers [`HandedOver`], and sends each
//! [`Parting`]: four bytes, big-endian, that say how long its note is, with the first of them the descriptor
//! (`SCM_RIGHTS`), and the note. What clients ask for meanwhile waits in their sockets.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use uraid_nbd::Parting;
use uuid::Uuid;

use crate::lines;
use crate::protocol::{Answer, HandedOver, LINE_BYTES_MAX, Request, Response};

/// How long the running server may take between one thing and the next that it hands over.
const NEXT_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a takeover may take before it says what it waits for.
const SOON: Duration = Duration::from_secs(2);

/// Asks the server with this control socket to stop, and takes what is left of it. `None` if no server answers there.
///
/// Waits as long as the server takes to write out what its clients have written. Calls `say` if that takes long.
///
/// # Errors
/// The server's reason to refuse, another `array` among them, or why it did not hand over everything.
pub fn ask(control: &Path, array: Uuid, say: impl FnOnce()) -> Result<Option<Vec<Parting>>> {
    let path = control.display();
    let mut stream = match StdUnixStream::connect(control) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("can't connect to {path}")),
    };
    let mut line = serde_json::to_vec(&Request::HandOver { array })?;
    line.push(b'\n');
    stream.write_all(&line).with_context(|| format!("can't ask the server at {path}"))?;
    if !answers_within(&stream, SOON) {
        say();
    }
    let answer = read_line(&mut stream).with_context(|| {
        format!(
            "the server at {path} ended without an answer; start this one again: it takes over, or starts as always"
        )
    })?;
    let answer: Response<HandedOver> =
        serde_json::from_slice(&answer).context("the server's answer is not understood: is it of another version?")?;
    let HandedOver { partings, lost } = match answer {
        Response::Result(handed_over) => handed_over,
        Response::Error(text) => bail!("the running server hands nothing over: {text}"),
    };
    for member in lost {
        tracing::warn!("member {} failed while the running server stopped", member.slot);
    }
    stream.set_read_timeout(Some(NEXT_TIME_MAX))?;
    let received = (0..partings).map(|_| receive(&stream)).collect::<io::Result<_>>();
    received.map(Some).context("the running server has stopped, but its clients and sockets did not all arrive")
}

/// Answers who has asked, and sends what is left.
pub(crate) async fn send(stream: &UnixStream, answer: HandedOver, partings: Vec<Parting>) -> io::Result<()> {
    lines::write_all(stream, &lines::line(&Response::Result(Answer::HandedOver(answer)))).await?;
    for parting in partings {
        let (descriptor, note) = parting.into_parts();
        let length = u32::try_from(note.len()).expect("notes are short");
        let bytes = [&length.to_be_bytes()[..], &note].concat();
        let descriptors = [descriptor.as_fd()];
        let sent = stream.async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for a descriptor");
            Ok(sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
        });
        let sent = sent.await?;
        lines::write_all(stream, &bytes[sent..]).await?;
    }
    Ok(())
}

/// Whether there is something to read within that time.
fn answers_within(stream: &StdUnixStream, time: Duration) -> bool {
    let time = Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
    let mut polled = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut polled, Some(&time)).is_ok_and(|count| count > 0)
}

/// A line, and nothing beyond it: a descriptor may follow, which an ordinary read would lose.
fn read_line(stream: &mut StdUnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        if line.len() >= LINE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "its answer is too long"));
        }
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(line)
}

fn receive(mut stream: &StdUnixStream) -> io::Result<Parting> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut target = [IoSliceMut::new(&mut length)];
    let received =
        rustix::io::retry_on_intr(|| recvmsg(stream, &mut target, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?.bytes;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let Some(descriptor) = descriptor else {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "what should follow did not come"));
    };
    stream.read_exact(&mut length[received..])?;
    let length = u32::from_be_bytes(length) as usize;
    if length > Parting::NOTE_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, "what was handed over is of another version"));
    }
    let mut note = vec![0; length];
    stream.read_exact(&mut note)?;
    Ok(Parting::new(descriptor, note))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    /// Two ends of a pipe's worth of sockets: what is sent on one side comes out of the other.
    fn passed(partings: Vec<Parting>) -> Vec<Parting> {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        let count = partings.len();
        let sending = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                ours.set_nonblocking(true).unwrap();
                let stream = UnixStream::from_std(ours).unwrap();
                send(&stream, HandedOver { partings: count, lost: Vec::new() }, partings).await.unwrap();
            });
        });
        let mut stream = theirs;
        let line = read_line(&mut stream).unwrap();
        assert_eq!(line, format!("{{\"result\":{{\"partings\":{count},\"lost\":[]}}}}\n").as_bytes());
        let received = (0..count).map(|_| receive(&stream).unwrap()).collect();
        sending.join().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nothing more comes");
        received
    }

    #[test]
    fn descriptors_arrive_with_their_notes_in_order() {
        let sockets: Vec<(StdUnixStream, StdUnixStream)> = (0..300).map(|_| StdUnixStream::pair().unwrap()).collect();
        let note = |index: usize| vec![u8::try_from(index % 251).unwrap(); index * 37];
        let parting = |(index, (_, socket)): (usize, &(StdUnixStream, StdUnixStream))| {
            Parting::new(OwnedFd::from(socket.try_clone().unwrap()), note(index))
        };
        let arrived = passed(sockets.iter().enumerate().map(parting).collect());
        assert_eq!(arrived.len(), sockets.len());
        for (index, (parting, (other, _))) in arrived.into_iter().zip(&sockets).enumerate() {
            let (descriptor, got) = parting.into_parts();
            assert!(got == note(index), "note {index}");
            let sent = [u8::try_from(index % 256).unwrap()];
            StdUnixStream::from(descriptor).write_all(&sent).unwrap();
            let mut heard = [0];
            (&*other).read_exact(&mut heard).unwrap();
            assert_eq!(heard, sent, "descriptor {index}");
        }
    }

    #[test]
    fn where_no_server_is_nothing_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        assert!(ask(&directory.path().join("none.ctl"), Uuid::nil(), || ()).unwrap().is_none());
        let dead = directory.path().join("dead.ctl");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        assert!(ask(&dead, Uuid::nil(), || ()).unwrap().is_none());
    }

    #[test]
    fn an_answer_without_what_it_announces_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.ctl");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let answering = std::thread::spawn(move || {
            for answer in ["{\"result\":{\"partings\":1,\"lost\":[]}}\n\0\0\0\0", "{\"error\":\"no\"}\n", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                read_line(&mut stream).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        for expected in ["did not all arrive", "hands nothing over: no", "ended without an answer"] {
            let error = format!("{:#}", ask(&path, Uuid::nil(), || ()).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        answering.join().unwrap();
    }
}
