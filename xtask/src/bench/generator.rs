//! `cargo xtask bench generate`: connections that each keep a window of requests in flight.
//!
//! One thread a connection: it takes whatever replies one receive brings and sends as many new requests in one send, as
//! a client with a queue does. Neither side can block the other for good: the window is so small that whatever of one
//! direction has no data fits the socket's buffer.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::wire::{self, Connection, Operation, REPLY_BYTES, REQUEST_BYTES};

/// The load.
#[derive(Args)]
pub(crate) struct Options {
    /// Unix socket of the server
    #[arg(long)]
    socket: PathBuf,
    /// Name of the export
    #[arg(long, default_value = "")]
    export: String,
    /// What to do; writes destroy what the export holds
    #[arg(long, value_enum)]
    load: Load,
    /// Bytes of a request
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(512..=4 << 20))]
    block: u32,
    /// Connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=128))]
    window: u16,
    /// Bytes of the export to use, from its start
    #[arg(long)]
    span: u64,
    /// How long to go on
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// What is asked for, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Load {
    /// Reads at random places until the time is over
    Read,
    /// Writes at random places until the time is over
    Write,
    /// Writes every block once, in order; the time does not matter
    Fill,
}

/// Most bytes of one receive.
const RECEIVE_BYTES: usize = 256 << 10;

/// Loads the server and prints `{"requests": N, "seconds": S}`.
#[expect(clippy::print_stdout, reason = "the result is for the caller")]
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (requests, elapsed) = load(options)?;
    println!("{}", json!({ "requests": requests, "seconds": elapsed.as_secs_f64() }));
    Ok(())
}

/// Requests done within the time, and the time.
fn load(options: &Options) -> anyhow::Result<(u64, Duration)> {
    let blocks = options.span / u64::from(options.block);
    ensure!(blocks > 0, "--span holds no block of {} bytes", options.block);
    let connections: Vec<Connection> = (0..options.connections)
        .map(|_| Connection::open(&options.socket, &options.export))
        .collect::<anyhow::Result<_>>()?;
    for connection in &connections {
        ensure!(connection.size >= options.span, "the export has {} bytes only", connection.size);
    }
    let started = Barrier::new(connections.len());
    let count = u64::from(options.connections);
    let loads = connections.into_iter().zip(0..count).map(|(connection, number)| Pipeline {
        connection,
        operation: if options.load == Load::Read { Operation::Read } else { Operation::Write },
        block: options.block,
        window: usize::from(options.window),
        offsets: match options.load {
            Load::Fill => Offsets::InOrder { next: number, end: blocks, step: count },
            Load::Read | Load::Write => Offsets::random(blocks, number),
        },
    });
    let limit = (options.load != Load::Fill).then(|| Duration::from_secs(options.seconds));
    let started = &started;
    let results: Vec<anyhow::Result<(u64, Duration)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = loads
            .map(|pipeline| {
                scope.spawn(move || {
                    started.wait();
                    pipeline.run(limit)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a pipeline does not panic")).collect()
    });
    let mut total = (0, Duration::ZERO);
    for result in results {
        let (requests, elapsed) = result?;
        total = (total.0 + requests, total.1.max(elapsed));
    }
    Ok(total)
}

/// One connection's load.
struct Pipeline {
    connection: Connection,
    operation: Operation,
    block: u32,
    window: usize,
    offsets: Offsets,
}

impl Pipeline {
    /// Requests answered until `limit` or until there are no more, and how long that took; those in flight then are
    /// waited for but not counted.
    fn run(mut self, limit: Option<Duration>) -> anyhow::Result<(u64, Duration)> {
        let content = content(self.block as usize);
        let mut replies = Replies::new(self.operation, self.block as usize, self.window);
        let mut batch = Vec::new();
        let start = Instant::now();
        let free: Vec<u64> = (0..).take(self.window).collect();
        self.send(&free, &mut replies, &content, &mut batch)?;
        let (mut done, mut end) = (0, None);
        while replies.in_flight() > 0 {
            let answered = replies.receive(&mut self.connection)?;
            if end.is_some() {
                continue;
            }
            done += answered.len() as u64;
            let elapsed = start.elapsed();
            if limit.is_some_and(|limit| elapsed >= limit) {
                end = Some(elapsed);
            } else {
                self.send(&answered, &mut replies, &content, &mut batch)?;
            }
        }
        let elapsed = end.unwrap_or_else(|| start.elapsed());
        if self.operation == Operation::Write && limit.is_none() {
            self.connection.flush()?;
        }
        self.connection.close()?;
        Ok((done, elapsed))
    }

    /// Sends one request for each cookie, in one send.
    fn send(&mut self, cookies: &[u64], replies: &mut Replies, data: &[u8], batch: &mut Vec<u8>) -> anyhow::Result<()> {
        batch.clear();
        for &cookie in cookies {
            let Some(block) = self.offsets.next() else { break };
            let offset = block * u64::from(self.block);
            let header: [u8; REQUEST_BYTES] = wire::request(self.operation, cookie, offset, self.block);
            batch.extend_from_slice(&header);
            if self.operation == Operation::Write {
                batch.extend_from_slice(data);
            }
            replies.expect(cookie);
        }
        self.connection.stream.write_all(batch).context("sending requests")
    }
}

/// What has been received and what is still to come.
struct Replies {
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that hold the beginning of a reply.
    filled: usize,
    /// Bytes of a reply with its data.
    length: usize,
    waiting: Vec<bool>,
    in_flight: usize,
}

impl Replies {
    fn new(operation: Operation, block: usize, window: usize) -> Self {
        let length = REPLY_BYTES + if operation == Operation::Read { block } else { 0 };
        let buffer = vec![0; RECEIVE_BYTES.max(length)];
        Self { buffer, filled: 0, length, waiting: vec![false; window], in_flight: 0 }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn expect(&mut self, cookie: u64) {
        self.waiting[cookie as usize] = true;
        self.in_flight += 1;
    }

    /// The cookies of the replies that one receive completes.
    fn receive(&mut self, connection: &mut Connection) -> anyhow::Result<Vec<u64>> {
        let received = connection.stream.read(&mut self.buffer[self.filled..]).context("waiting for replies")?;
        ensure!(received > 0, "the server closed the connection with {} requests in flight", self.in_flight);
        self.filled += received;
        self.parse()
    }

    fn parse(&mut self) -> anyhow::Result<Vec<u64>> {
        let mut cookies = Vec::new();
        let complete = self.filled - self.filled % self.length;
        for reply in self.buffer[..complete].chunks_exact(self.length) {
            let cookie = wire::cookie(reply.first_chunk().expect("a reply is longer than its header"))?;
            let waiting = usize::try_from(cookie).ok().and_then(|slot| self.waiting.get_mut(slot));
            let expected = waiting.is_some_and(std::mem::take);
            ensure!(expected, "the server answered request {cookie}, which is not in flight");
            cookies.push(cookie);
        }
        self.in_flight -= cookies.len();
        self.buffer.copy_within(complete..self.filled, 0);
        self.filled -= complete;
        Ok(cookies)
    }
}

/// Which block comes next.
enum Offsets {
    InOrder {
        next: u64,
        end: u64,
        step: u64,
    },
    Random {
        blocks: u64,
        /// State of an xorshift generator; never 0.
        state: u64,
    },
}

impl Offsets {
    /// Uniform over `blocks` blocks; each `seed` has its own sequence, the same in every run.
    fn random(blocks: u64, seed: u64) -> Self {
        Self::Random { blocks, state: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    fn next(&mut self) -> Option<u64> {
        match self {
            Self::InOrder { next, end, step } => {
                let block = *next;
                *next += *step;
                (block < *end).then_some(block)
            }
            Self::Random { blocks, state } => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                Some(((u128::from(*state) * u128::from(*blocks)) >> 64) as u64)
            }
        }
    }
}

/// Bytes that no server can take for zeros or compress to a pattern.
fn content(length: usize) -> Vec<u8> {
    let mut words = Offsets::random(256, length as u64);
    std::iter::from_fn(|| words.next()).map(|word| word as u8).take(length).collect()
}

/// Fills `span` bytes of an export with content, and makes them durable. The child process that runs this ends itself
/// when the server stays silent.
pub(crate) fn fill_arguments(socket: &Path, export: &str, span: u64) -> Vec<String> {
    arguments(socket, export, span, &["--load=fill", "--block=1048576", "--window=4"])
}

/// The command line of a load on `span` bytes.
pub(crate) fn arguments(socket: &Path, export: &str, span: u64, load: &[&str]) -> Vec<String> {
    let target = [format!("--socket={}", socket.display()), format!("--export={export}"), format!("--span={span}")];
    let words = ["bench", "generate"].iter().chain(load).map(|word| (*word).to_owned());
    words.chain(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simple reply with `data` bytes behind it.
    fn reply(cookie: u8, data: usize) -> Vec<u8> {
        let mut bytes = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        bytes.push(cookie);
        bytes.resize(16 + data, 0xee);
        bytes
    }

    fn feed(replies: &mut Replies, bytes: &[u8]) -> anyhow::Result<Vec<u64>> {
        replies.buffer[replies.filled..][..bytes.len()].copy_from_slice(bytes);
        replies.filled += bytes.len();
        replies.parse()
    }

    #[test]
    fn replies_may_be_cut_anywhere() {
        let stream: Vec<u8> = [2, 0, 1].into_iter().flat_map(|cookie| reply(cookie, 512)).collect();
        for cut in 0..=stream.len() {
            let mut replies = Replies::new(Operation::Read, 512, 3);
            (0..3).for_each(|cookie| replies.expect(cookie));
            let mut cookies = feed(&mut replies, &stream[..cut]).unwrap();
            cookies.extend(feed(&mut replies, &stream[cut..]).unwrap());
            assert_eq!(cookies, [2, 0, 1]);
            assert_eq!((replies.in_flight(), replies.filled), (0, 0));
        }
    }

    #[test]
    fn a_reply_that_nobody_waits_for_is_an_error() {
        let mut replies = Replies::new(Operation::Write, 512, 2);
        replies.expect(1);
        assert_eq!(feed(&mut replies, &reply(1, 0)).unwrap(), [1]);
        assert!(feed(&mut replies, &reply(1, 0)).is_err(), "answered twice");
        let mut replies = Replies::new(Operation::Write, 512, 2);
        assert!(feed(&mut replies, &reply(9, 0)).is_err(), "never sent");
    }

    #[test]
    fn connections_fill_every_block_once() {
        let mut blocks: Vec<u64> = (0..3)
            .flat_map(|number| {
                let mut offsets = Offsets::InOrder { next: number, end: 10, step: 3 };
                std::iter::from_fn(move || offsets.next())
            })
            .collect();
        blocks.sort_unstable();
        assert_eq!(blocks, (0..10).collect::<Vec<u64>>());
    }

    #[test]
    fn random_blocks_are_in_range_and_reach_all() {
        let mut offsets = Offsets::random(8, 3);
        let mut seen = [0_u32; 8];
        (0..800).for_each(|_| seen[offsets.next().unwrap() as usize] += 1);
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
    }
}
