//! What the control socket sends: a line for each response.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::UnixStream;

use crate::protocol::Answer;

/// A response to an administrator.
pub(crate) type Response = crate::protocol::Response<Answer>;

/// A response as it is sent.
pub(crate) fn line(response: &Response) -> Vec<u8> {
    let mut text = serde_json::to_vec(response).expect("a response has no keys that JSON can't have");
    text.push(b'\n');
    text
}

/// Sends all of it.
pub(crate) async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until the peer has sent exactly that.
pub(crate) async fn expect(stream: &UnixStream, expected: &[u8]) -> io::Result<()> {
    let mut received = Vec::new();
    while received.len() < expected.len() {
        stream.readable().await?;
        match stream.try_read_buf(&mut received) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    if received == expected { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Whether a peer has closed its connection: one that only has nothing more to say has not.
pub(crate) fn has_left(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let told = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    told.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}
