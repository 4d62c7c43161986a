//! From one server to the next, without an error for its clients: sockets and clients go from process to process, and
//! so do the members' files with their locks, so that no third server gets in between.
//!
//! The new server asks the running one on its control socket. That one stops as always: it finishes what clients have
//! asked for, writes out its cache, and marks the members clean. Then it answers [`HandedOver`], and sends members'
//! files and each [`Parting`]: four bytes, big-endian, that say how long its note is, with the first of them the
//! descriptor (`SCM_RIGHTS`), and the note, which members have none of. The socket of metrics comes last, in the same
//! way. What clients ask for meanwhile waits in their sockets. The new server says with an empty line that it has
//! everything; without that, what was left is gone.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
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

use crate::client::Client;
use crate::lines;
use crate::protocol::{Answer, HandedOver, LINE_BYTES_MAX, Lost, Request, Response, Status};

/// What the new server says when it has everything.
const ALL_ARRIVED: &[u8] = b"\n";

/// How long the running server may take between one thing and the next that it hands over.
const NEXT_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a takeover may take before it says what it waits for.
const SOON: Duration = Duration::from_secs(2);

/// What is left of a server for the next one.
#[derive(Debug, Default)]
pub struct Left {
    /// The members' files, locked.
    pub members: Vec<OwnedFd>,
    /// Clients and sockets.
    pub partings: Vec<Parting>,
    /// Where metrics are asked for, if anywhere.
    pub metrics: Option<OwnedFd>,
}

/// A running server that another one is to take over from.
#[derive(Debug)]
pub struct Running {
    stream: StdUnixStream,
    control: PathBuf,
}

impl Running {
    /// The server with this control socket. `None` if no server answers there.
    ///
    /// # Errors
    /// If it can't be connected to.
    pub fn find(control: &Path) -> Result<Option<Self>> {
        match StdUnixStream::connect(control) {
            Ok(stream) => Ok(Some(Self { stream, control: control.to_owned() })),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("can't connect to {}", control.display())),
        }
    }

    /// Its state.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self) -> Result<Status> {
        Client::new(self.stream.try_clone()?, self.control.clone())?.ask(&Request::Status {})
    }

    /// Asks it to stop, and takes what is left of it.
    ///
    /// Waits as long as the server takes to write out what its clients have written. Calls `say` if that takes long.
    ///
    /// # Errors
    /// The server's reason to refuse, another `array` among them, or why it did not hand over everything.
    pub fn hand_over(self, array: Uuid, say: impl FnOnce()) -> Result<Left> {
        let Self { mut stream, control } = self;
        let path = control.display();
        let mut line = serde_json::to_vec(&Request::HandOver { array })?;
        line.push(b'\n');
        stream.write_all(&line).with_context(|| format!("can't ask the server at {path}"))?;
        if !answers_within(&stream, SOON) {
            say();
        }
        stream.set_read_timeout(None)?;
        let answer = read_line(&mut stream).with_context(|| {
            format!(
                "the server at {path} ended without an answer; start this one again: it takes over, or starts as \
                 always"
            )
        })?;
        let answer: Response<HandedOver> = serde_json::from_slice(&answer)
            .context("the server's answer is not understood: is it of another version?")?;
        let HandedOver { members, partings, metrics, lost } = match answer {
            Response::Result(handed_over) => handed_over,
            Response::Error(text) => bail!("the running server hands nothing over: {text}"),
        };
        for member in lost {
            tracing::warn!("member {} failed while the running server stopped", member.slot);
        }
        stream.set_read_timeout(Some(NEXT_TIME_MAX))?;
        let received = receive_all(&stream, members, partings, metrics);
        let left =
            received.context("the running server has stopped, but its clients and sockets did not all arrive")?;
        // One that has stopped waiting for this says so itself.
        let _ = stream.write_all(ALL_ARRIVED);
        Ok(left)
    }
}

/// Answers who has asked, and sends what is left, until it says that it has all of that.
pub(crate) async fn send(stream: &UnixStream, lost: Vec<Lost>, left: Left) -> io::Result<()> {
    let Left { members, partings, metrics } = left;
    let answer = HandedOver { members: members.len(), partings: partings.len(), metrics: metrics.is_some(), lost };
    lines::write_all(stream, &lines::line(&Response::Result(Answer::HandedOver(answer)))).await?;
    for member in &members {
        send_one(stream, member.as_fd(), &[]).await?;
    }
    for parting in &partings {
        let (descriptor, note) = parting.parts();
        send_one(stream, descriptor, note).await?;
    }
    if let Some(metrics) = &metrics {
        send_one(stream, metrics.as_fd(), &[]).await?;
    }
    lines::expect(stream, ALL_ARRIVED).await?;
    partings.into_iter().for_each(Parting::has_arrived);
    Ok(())
}

async fn send_one(stream: &UnixStream, descriptor: BorrowedFd<'_>, note: &[u8]) -> io::Result<()> {
    let length = u32::try_from(note.len()).expect("notes are short");
    let bytes = [&length.to_be_bytes()[..], note].concat();
    let descriptors = [descriptor];
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for a descriptor");
        Ok(sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    });
    let sent = sent.await?;
    lines::write_all(stream, &bytes[sent..]).await
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

fn receive_all(stream: &StdUnixStream, members: usize, partings: usize, has_metrics: bool) -> io::Result<Left> {
    let members = (0..members).map(|_| receive(stream).map(|(descriptor, _)| descriptor)).collect::<io::Result<_>>()?;
    let parting = |_| receive(stream).map(|(descriptor, note)| Parting::new(descriptor, note));
    let partings = (0..partings).map(parting).collect::<io::Result<_>>()?;
    let metrics = has_metrics.then(|| receive(stream).map(|(descriptor, _)| descriptor)).transpose()?;
    Ok(Left { members, partings, metrics })
}

/// A descriptor and its note.
fn receive(mut stream: &StdUnixStream) -> io::Result<(OwnedFd, Vec<u8>)> {
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
    Ok((descriptor, note))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use super::*;

    /// Sends what is left of a server to whoever has the other end.
    fn sending(left: Left) -> (StdUnixStream, JoinHandle<io::Result<()>>) {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        let sending = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                ours.set_nonblocking(true).unwrap();
                send(&UnixStream::from_std(ours).unwrap(), Vec::new(), left).await
            })
        });
        (theirs, sending)
    }

    #[test]
    fn descriptors_arrive_with_their_notes_in_order() {
        let sockets: Vec<(StdUnixStream, StdUnixStream)> = (0..300).map(|_| StdUnixStream::pair().unwrap()).collect();
        let note = |index: usize| vec![u8::try_from(index % 251).unwrap(); index * 37];
        let copy = |index: usize| OwnedFd::from(sockets[index].1.try_clone().unwrap());
        let members = (0..2).map(copy).collect();
        let partings = (2..299).map(|index| Parting::new(copy(index), note(index))).collect();
        let (mut stream, sending) = sending(Left { members, partings, metrics: Some(copy(299)) });
        let line = read_line(&mut stream).unwrap();
        assert_eq!(line, b"{\"result\":{\"members\":2,\"partings\":297,\"metrics\":true,\"lost\":[]}}\n");
        for (index, (other, _)) in sockets.iter().enumerate() {
            let (descriptor, got) = receive(&stream).unwrap();
            assert!(got == if (2..299).contains(&index) { note(index) } else { Vec::new() }, "note {index}");
            let sent = [u8::try_from(index % 256).unwrap()];
            StdUnixStream::from(descriptor).write_all(&sent).unwrap();
            let mut heard = [0];
            (&*other).read_exact(&mut heard).unwrap();
            assert_eq!(heard, sent, "descriptor {index}");
        }
        stream.write_all(ALL_ARRIVED).unwrap();
        sending.join().unwrap().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nothing more comes");
    }

    #[test]
    fn who_does_not_say_that_all_has_arrived_has_not_taken_over() {
        for said in [&b""[..], b"x"] {
            let (one, _other) = StdUnixStream::pair().unwrap();
            let (mut stream, sending) =
                sending(Left { members: vec![one.into()], partings: Vec::new(), metrics: None });
            read_line(&mut stream).unwrap();
            let _ = receive(&stream).unwrap();
            stream.write_all(said).unwrap();
            drop(stream);
            sending.join().unwrap().unwrap_err();
        }
    }

    #[test]
    fn where_no_server_is_there_is_none() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Running::find(&directory.path().join("none.ctl")).unwrap().is_none());
        let dead = directory.path().join("dead.ctl");
        drop(UnixListener::bind(&dead).unwrap());
        assert!(Running::find(&dead).unwrap().is_none());
    }

    #[test]
    fn an_answer_without_what_it_announces_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.ctl");
        let listener = UnixListener::bind(&path).unwrap();
        let answering = std::thread::spawn(move || {
            let announced = "{\"result\":{\"members\":0,\"partings\":1,\"lost\":[]}}\n\0\0\0\0";
            for answer in [announced, "{\"error\":\"no\"}\n", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                read_line(&mut stream).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        for expected in ["did not all arrive", "hands nothing over: no", "ended without an answer"] {
            let running = Running::find(&path).unwrap().unwrap();
            let error = format!("{:#}", running.hand_over(Uuid::nil(), || ()).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        answering.join().unwrap();
    }
}
