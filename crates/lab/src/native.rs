//! The built-in load generator: connections that each keep a window of requests in flight.
//!
//! One thread serves each connection. It takes whatever replies one receive brings, and sends as many new requests in
//! one send, as a client with a queue does. It never waits for a send while replies may be waiting, so neither side can
//! block the other.

use std::io::Read as _;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use uraid_layout::{Bytes, Lba};
use uraid_model::mech::{Nanos, Request, Source};
use uraid_nbd_client::{Client, Command, REPLY_BYTES, cookie, request};
use uraid_random::Random;

use crate::Error;
use crate::results::Measured;
use crate::stats::percentile;

/// How long a generator works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Time before replies count.
    pub warm_up: Duration,
    /// Time in which replies count.
    pub measured: Duration,
}

const SECTOR: u64 = 512;
/// Most bytes of one receive.
const RECEIVE_BYTES: usize = 256 << 10;
/// No more requests are added to so many bytes that wait to be sent.
const SEND_BYTES: usize = 1 << 20;
/// How long a silent server is waited for.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Each write takes its data from a place of its own in so much content.
const CONTENT_BYTES: usize = 4 << 20;
/// A fill's requests, and how many of them are in flight.
const FILL_BYTES: u64 = 1 << 20;
const FILL_DEPTH: usize = 4;

/// Loads the export with the requests of `sources`, one connection each, `depth` in flight on each. It ends after the
/// time, or when the sources have ended.
///
/// # Errors
/// If the server refuses, answers with an error or stays silent.
pub fn load<S: Source + Send>(
    socket: &Path,
    export: &str,
    sources: Vec<S>,
    depth: usize,
    time: Time,
) -> Result<Measured, Error> {
    let connections = sources.iter().map(|_| open(socket, export)).collect::<Result<Vec<_>, _>>()?;
    let content = content();
    let started = Barrier::new(connections.len());
    let (content, started) = (&content, &started);
    let results: Vec<Result<Answered, Error>> = std::thread::scope(|scope| {
        let pipelines = connections.into_iter().zip(sources);
        let threads: Vec<_> = pipelines
            .map(|(connection, source)| {
                scope.spawn(move || {
                    let pipeline = Pipeline::new(connection, source, depth, content);
                    started.wait();
                    pipeline.run(time)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a pipeline does not panic")).collect()
    });
    let mut all = Answered::default();
    for result in results {
        let Answered { requests, bytes, latencies, time } = result?;
        all.requests += requests;
        all.bytes += bytes;
        all.latencies.extend(latencies);
        all.time = all.time.max(time);
    }
    Ok(all.measured())
}

/// Writes content to the whole export, in order, and makes it durable.
///
/// # Errors
/// If the server refuses, answers with an error or stays silent.
pub fn fill(socket: &Path, export: &str, span: Bytes) -> Result<(), Error> {
    let source = InOrder { next: 0, end: span.0, step: FILL_BYTES };
    let forever = Time { warm_up: Duration::ZERO, measured: Duration::MAX };
    load(socket, export, vec![source], FILL_DEPTH, forever)?;
    flush(socket, export)
}

/// Makes everything durable that was written before.
///
/// # Errors
/// If the server refuses, answers with an error or stays silent.
pub fn flush(socket: &Path, export: &str) -> Result<(), Error> {
    let mut connection = open(socket, export)?;
    connection.flush()?;
    Ok(connection.disconnect()?)
}

/// The size of an export.
///
/// # Errors
/// If the server refuses or stays silent.
pub fn size(socket: &Path, export: &str) -> Result<Bytes, Error> {
    let connection = open(socket, export)?;
    let size = Bytes(connection.size());
    connection.disconnect()?;
    Ok(size)
}

fn open(socket: &Path, export: &str) -> Result<Client, Error> {
    Ok(Client::connect(socket, export)?)
}

/// Bytes that no server can take for zeros or compress to a pattern.
pub(crate) fn content() -> Vec<u8> {
    let mut random = Random::new(1);
    std::iter::repeat_with(|| random.bits().to_le_bytes()).flatten().take(CONTENT_BYTES).collect()
}

/// Writes in order.
struct InOrder {
    next: u64,
    end: u64,
    step: u64,
}

impl Source for InOrder {
    fn next(&mut self, _process: usize, _now: Nanos) -> Option<Request> {
        let len = self.step.min(self.end - self.next);
        let (lba, len) = (Lba(self.next / SECTOR), Bytes(len).whole_sectors());
        self.next += len.bytes().0;
        (len.0 > 0).then_some(Request { volume: 0, is_write: true, lba, len })
    }
}

/// What a connection got.
#[derive(Default)]
struct Answered {
    requests: u64,
    bytes: u64,
    /// Of each reply, in nanoseconds; the longest that fit are 4.3 seconds.
    latencies: Vec<u32>,
    time: Duration,
}

impl Answered {
    fn measured(mut self) -> Measured {
        let seconds = self.time.as_secs_f64().max(1e-9);
        self.latencies.sort_unstable();
        let us = |nanos: u32| f64::from(nanos) / 1e3;
        let total: f64 = self.latencies.iter().map(|&nanos| f64::from(nanos)).sum();
        let at = |share| self.latencies.get(percentile(self.latencies.len(), share)).copied().map_or(0.0, us);
        Measured {
            requests: self.requests,
            iops: self.requests as f64 / seconds,
            mb_s: self.bytes as f64 / 1e6 / seconds,
            mean_us: total / 1e3 / self.latencies.len().max(1) as f64,
            p50_us: at(0.5),
            p99_us: at(0.99),
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy)]
struct InFlight {
    is_write: bool,
    len: u32,
    since: Instant,
}

/// One connection at work.
struct Pipeline<'a, S> {
    connection: Client,
    source: S,
    content: &'a [u8],
    /// By cookie.
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// Requests to send, of which `sent` bytes are sent.
    out: Vec<u8>,
    sent: usize,
    replies: Replies,
    begun: Instant,
    answered: Answered,
}

impl<'a, S: Source> Pipeline<'a, S> {
    fn new(connection: Client, source: S, depth: usize, content: &'a [u8]) -> Self {
        Self {
            connection,
            source,
            content,
            slots: vec![None; depth],
            free: (0..depth).collect(),
            out: Vec::new(),
            sent: 0,
            replies: Replies::default(),
            begun: Instant::now(),
            answered: Answered::default(),
        }
    }

    fn run(mut self, time: Time) -> Result<Answered, Error> {
        let begun = Instant::now();
        self.begun = begun;
        let from = begun + time.warm_up;
        let until = from.checked_add(time.measured);
        let mut has_more = true;
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let now = Instant::now();
            has_more &= until.is_none_or(|until| now < until);
            while has_more && self.out.len() < SEND_BYTES {
                let Some(cookie) = self.free.pop() else { break };
                has_more = self.add(cookie, now);
            }
            if self.free.len() == self.slots.len() {
                break;
            }
            self.send()?;
            let received = self.receive(&mut buffer)?;
            let now = Instant::now();
            let counts = now >= from && until.is_none_or(|until| now <= until);
            self.take(&buffer[..received], now, counts)?;
        }
        let end = until.unwrap_or_else(Instant::now).min(Instant::now());
        self.answered.time = end.saturating_duration_since(from);
        self.connection.disconnect()?;
        Ok(self.answered)
    }

    /// Adds the next request to what is to be sent; false if there is none.
    fn add(&mut self, cookie: usize, now: Instant) -> bool {
        let at = Nanos(u64::try_from((now - self.begun).as_nanos()).unwrap_or(u64::MAX));
        let Some(Request { is_write, lba, len, .. }) = self.source.next(cookie, at) else {
            self.free.push(cookie);
            return false;
        };
        let len = u32::try_from(len.bytes().0).expect("requests are below 4 GiB");
        let command = if is_write { Command::Write } else { Command::Read };
        let offset = lba.0 * SECTOR;
        self.out.extend_from_slice(&request(command, cookie as u64, offset, len));
        if is_write {
            // Another place for each request: no two blocks that follow each other are the same.
            let mut left = len as usize;
            let mut from = (offset as usize / 512 * 8) % (CONTENT_BYTES / 2);
            while left > 0 {
                let piece = left.min(CONTENT_BYTES - from);
                self.out.extend_from_slice(&self.content[from..from + piece]);
                (left, from) = (left - piece, 0);
            }
        }
        self.slots[cookie] = Some(InFlight { is_write, len, since: now });
        true
    }

    /// Sends what the socket takes.
    fn send(&mut self) -> Result<(), Error> {
        while self.sent < self.out.len() {
            match send(self.connection.stream(), &self.out[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed("can't send requests", error)),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(())
    }

    /// Receives replies; none if the socket takes more requests first.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        if !self.out.is_empty() {
            let flags = PollFlags::IN | PollFlags::OUT;
            let mut waiting = [PollFd::new(self.connection.stream(), flags)];
            let timeout = Timespec { tv_sec: SILENCE_MAX.as_secs().cast_signed(), tv_nsec: 0 };
            match poll(&mut waiting, Some(&timeout)) {
                Ok(0) => return Err(said("the server takes no requests and sends no replies")),
                Ok(_) if !waiting[0].revents().contains(PollFlags::IN) => return Ok(0),
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(0),
                Err(error) => return Err(failed("can't wait for replies", error)),
            }
        }
        match self.connection.stream().read(buffer) {
            Ok(0) => {
                let waiting = self.slots.len() - self.free.len();
                Err(said(&format!("the server closed the connection with {waiting} requests in flight")))
            }
            Ok(received) => Ok(received),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(0),
            Err(source) => Err(Error::Server { what: "no reply".into(), source: Some(source) }),
        }
    }

    /// Takes received bytes; replies count only if `counts`.
    fn take(&mut self, mut bytes: &[u8], now: Instant, counts: bool) -> Result<(), Error> {
        while let Some(cookie) = self.replies.next(&mut bytes, &self.slots)? {
            let InFlight { len, since, .. } = self.slots[cookie].take().expect("the reply was expected");
            self.free.push(cookie);
            if counts {
                self.answered.requests += 1;
                self.answered.bytes += u64::from(len);
                self.answered.latencies.push(u32::try_from((now - since).as_nanos()).unwrap_or(u32::MAX));
            }
        }
        Ok(())
    }
}

/// Replies in a stream of bytes that is cut anywhere.
#[derive(Default)]
struct Replies {
    header: Vec<u8>,
    /// Whose data is being received, and how much of it is still to come.
    data: Option<(usize, usize)>,
}

impl Replies {
    /// The cookie of the next reply that is complete; takes what it used off `bytes`.
    fn next(&mut self, bytes: &mut &[u8], slots: &[Option<InFlight>]) -> Result<Option<usize>, Error> {
        loop {
            if let Some((cookie, left)) = &mut self.data {
                let taken = (*left).min(bytes.len());
                *left -= taken;
                *bytes = &bytes[taken..];
                if *left > 0 {
                    return Ok(None);
                }
                let cookie = *cookie;
                self.data = None;
                return Ok(Some(cookie));
            }
            let taken = (REPLY_BYTES - self.header.len()).min(bytes.len());
            let (header, rest) = bytes.split_at(taken);
            self.header.extend_from_slice(header);
            *bytes = rest;
            let Some(header) = self.header.first_chunk() else { return Ok(None) };
            let cookie = cookie(header)?;
            self.header.clear();
            let index = usize::try_from(cookie).unwrap_or(usize::MAX);
            let Some(Some(request)) = slots.get(index) else {
                return Err(said(&format!("the server answered request {cookie}, which is not in flight")));
            };
            self.data = Some((index, if request.is_write { 0 } else { request.len as usize }));
        }
    }
}

fn said(what: &str) -> Error {
    Error::Server { what: what.to_owned(), source: None }
}

fn failed(what: &str, error: Errno) -> Error {
    Error::Server { what: what.to_owned(), source: Some(error.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(lengths: &[Option<u32>]) -> Vec<Option<InFlight>> {
        let slot = |&len: &Option<u32>| {
            Some(InFlight { is_write: len.is_none(), len: len.unwrap_or(512), since: Instant::now() })
        };
        lengths.iter().map(slot).collect()
    }

    /// A simple reply with `data` bytes behind it.
    fn reply(cookie: u8, data: usize) -> Vec<u8> {
        let mut bytes = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        bytes.push(cookie);
        bytes.resize(REPLY_BYTES + data, 0xee);
        bytes
    }

    fn cookies(replies: &mut Replies, mut bytes: &[u8], slots: &[Option<InFlight>]) -> Result<Vec<usize>, Error> {
        let mut cookies = Vec::new();
        while let Some(cookie) = replies.next(&mut bytes, slots)? {
            cookies.push(cookie);
        }
        Ok(cookies)
    }

    #[test]
    fn replies_may_be_cut_anywhere() {
        let slots = slots(&[Some(512), None, Some(4096)]);
        let stream = [reply(2, 4096), reply(0, 512), reply(1, 0)].concat();
        for cut in 0..=stream.len() {
            let mut replies = Replies::default();
            let mut found = cookies(&mut replies, &stream[..cut], &slots).unwrap();
            found.extend(cookies(&mut replies, &stream[cut..], &slots).unwrap());
            assert_eq!(found, [2, 0, 1], "cut at {cut}");
        }
    }

    #[test]
    fn a_reply_that_nobody_waits_for_is_an_error() {
        let mut waiting = slots(&[None, None]);
        waiting[1] = None;
        assert!(cookies(&mut Replies::default(), &reply(1, 0), &waiting).is_err(), "not in flight");
        assert!(cookies(&mut Replies::default(), &reply(9, 0), &waiting).is_err(), "never sent");
    }

    #[test]
    fn a_fill_covers_everything_once() {
        let mut source = InOrder { next: 0, end: 2560, step: 1024 };
        let found: Vec<_> = std::iter::from_fn(|| source.next(0, Nanos(0))).map(|it| (it.lba.0, it.len.0)).collect();
        assert_eq!(found, [(0, 2), (2, 2), (4, 1)]);
    }

    #[test]
    fn latencies_are_in_microseconds() {
        let latencies = (1..=100).map(|index| index * 1000).collect();
        let answered = Answered { requests: 100, bytes: 100 * 4096, latencies, time: Duration::from_millis(500) };
        let Measured { iops, mb_s, mean_us, p50_us, p99_us, .. } = answered.measured();
        assert!((iops - 200.0).abs() < 1e-9 && (mb_s - 0.8192).abs() < 1e-9 && (mean_us - 50.5).abs() < 1e-9);
        assert!((p50_us - 50.0).abs() < 1e-9 && (p99_us - 99.0).abs() < 1e-9);
    }
}
