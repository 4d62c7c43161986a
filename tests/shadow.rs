//! Clients on several connections that do everything that can be done to an export, at any bytes, beside a model of
//! what it must hold.
//!
//! All of it follows from a seed, but for how the connections interleave. While a request is in flight its bytes are
//! held in the model, so that nothing that overlaps it is sent: what a read must bring is known to the byte. Requests
//! that merely touch are in flight together, also within one sector. Half of the connections have simple replies and
//! several requests in flight, the others have extended headers and one.

use std::collections::HashMap;
use std::fmt;
use std::iter::Sum;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::image::{Random, assert_same};
use crate::nbd::extended::{ExtendedClient, Extent, PAYLOAD_LEN};
use crate::nbd::{Client, Command, REQUEST_BYTES, error, flag};
use crate::server::Server;

/// Connections of each of the two kinds.
const PAIRS: usize = 2;

/// Most requests in flight on a connection that has several.
const DEPTH_MAX: usize = 8;

/// Where half of the requests go: a few parity stripes, which are written again and again.
const HOT_BYTES: usize = 3 << 20;

/// Where half of the shortest go, so that several are under way within a sector, none of which may undo another.
const SHARED_BYTES: usize = 8 << 10;
const SHORT_BYTES: usize = 1000;

/// Longest requests in bytes, of which one is drawn for each; those without data have another factor.
const LONGEST: [usize; 6] = [16, 700, 9000, 9000, 70_000, 400_000];
const LONGER_WITHOUT_DATA: usize = 6;

/// In the sense of `base:allocation`: that it is a hole, that it is zeros.
const HOLE_OR_ZERO: u64 = 1 | 2;

/// What an export must hold, shared by its clients.
#[derive(Debug)]
pub struct Shadow(Mutex<Model>);

#[derive(Debug)]
struct Model {
    bytes: Vec<u8>,
    /// Of requests in flight.
    held: Vec<Held>,
}

#[derive(Debug, PartialEq, Eq)]
struct Held {
    range: Range<usize>,
    is_change: bool,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Reads, each of them compared.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Zeroes that were written without data.
    pub zeroes: u64,
    /// Zeroes that would not have been fast.
    pub refused: u64,
    /// Trims.
    pub trims: u64,
    /// Questions what is allocated and what is zeros.
    pub statuses: u64,
    /// Bytes that such an answer called a hole or zeros.
    pub told_bytes: u64,
    /// Flushes, and hints for the cache.
    pub others: u64,
}

/// A request.
#[derive(Debug)]
struct Work {
    command: Command,
    flags: u16,
    range: Range<usize>,
    data: Vec<u8>,
}

/// What the server said to one.
enum Answer<'a> {
    Error(u32),
    Data(&'a [u8]),
    Extents(&'a [Extent]),
}

/// What the connections of one run share.
struct Run<'a> {
    shadow: &'a Shadow,
    what: String,
    left: AtomicUsize,
}

impl Shadow {
    /// A model of an export that holds these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Mutex::new(Model { bytes, held: Vec::new() }))
    }

    /// Does so many operations on four connections; `what` is for messages.
    ///
    /// # Panics
    /// When the server answers wrongly.
    pub fn run(&self, server: &Server, operations: usize, seed: u64, what: &str) -> Counts {
        let what = format!("{what}, seed {seed}");
        let run = &Run { shadow: self, what, left: AtomicUsize::new(operations) };
        let mut random = Random::new(seed);
        let counts = std::thread::scope(|scope| {
            let mut connections = Vec::new();
            for _ in 0..PAIRS {
                let (plain, extended) = (server.connect(), run.extended(server));
                let draws = [random.bits(), random.bits()].map(Random::new);
                let [one, other] = draws;
                connections.push(scope.spawn(move || run.plain(plain, one)));
                connections.push(scope.spawn(move || run.one_by_one(extended, other)));
            }
            let ended: Vec<_> = connections.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            ended.into_iter().map(|counts| counts.unwrap_or_else(|panic| resume_unwind(panic))).sum()
        });
        assert!(self.model().held.is_empty(), "{}: every request was answered", run.what);
        counts
    }

    /// Fails unless this is what the export must hold.
    #[track_caller]
    pub fn assert_is(&self, found: &[u8], what: &str) {
        assert_same(found, &self.model().bytes, what);
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.0.lock().expect("no other client failed")
    }
}

impl Run<'_> {
    /// A connection with extended headers.
    fn extended(&self, server: &Server) -> ExtendedClient {
        ExtendedClient::connect(server.socket()).unwrap_or_else(|error| panic!("{}: {error}", self.what))
    }

    /// Has several requests in flight on a connection with simple replies. The last of them has arrived in part when
    /// another one is answered: whoever serves the connection then has to keep that.
    fn plain(&self, mut client: Client, mut random: Random) -> Counts {
        let (mut counts, mut sent) = (Counts::default(), HashMap::new());
        loop {
            let depth = 1 + random.below(DEPTH_MAX);
            while sent.len() < depth && self.is_more() {
                let work = self.next(&mut random, false);
                let Work { command, flags, ref range, ref data } = work;
                let length = u32::try_from(range.len()).expect("requests are short");
                let is_last = !sent.is_empty() && sent.len() + 1 == depth;
                let bytes = if is_last { 1 + random.below(REQUEST_BYTES + data.len() - 1) } else { usize::MAX };
                let cookie = client.submit_part(flags, command, range.start as u64, length, data, bytes);
                sent.insert(cookie.unwrap_or_else(|error| panic!("{}: {error}", self.what)), work);
            }
            if sent.is_empty() {
                client.disconnect();
                return counts;
            }
            let reply = client.reply().unwrap_or_else(|error| panic!("{}: {error}", self.what));
            client.submit_rest().unwrap_or_else(|error| panic!("{}: {error}", self.what));
            let work = sent.remove(&reply.cookie).unwrap_or_else(|| panic!("{}: {reply:?} to nothing", self.what));
            let answer = match work.command {
                Command::Read if reply.error == 0 => Answer::Data(&reply.data),
                _ => Answer::Error(reply.error),
            };
            self.end(&work, &answer, &mut counts);
        }
    }

    /// Has one request in flight, on a connection with extended headers.
    fn one_by_one(&self, mut client: ExtendedClient, mut random: Random) -> Counts {
        let mut counts = Counts::default();
        while self.is_more() {
            let work = self.next(&mut random, true);
            let (offset, length) = (work.range.start as u64, work.range.len() as u64);
            if work.command == Command::BlockStatus {
                let extents = client.status_with(work.flags, offset, length);
                let extents = extents.unwrap_or_else(|error| panic!("{}: {error}", self.what));
                self.end(&work, &Answer::Extents(&extents), &mut counts);
                continue;
            }
            let carries = if work.command == Command::Write { PAYLOAD_LEN } else { 0 };
            let chunk = client.call(work.flags | carries, work.command, offset, length, &work.data);
            let chunk = chunk.unwrap_or_else(|error| panic!("{}: {error}", self.what));
            let answer = match (chunk.error(), chunk.data(offset)) {
                (Some(error), _) => Answer::Error(error),
                (None, Some(data)) => Answer::Data(data),
                (None, None) => panic!("{}: {chunk:?} to {:?} at {:?}", self.what, work.command, work.range),
            };
            self.end(&work, &answer, &mut counts);
        }
        counts
    }

    /// Whether another operation is to be done; it is counted.
    fn is_more(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Draws what to do next, until it overlaps nothing in flight, and holds its bytes. There are far more bytes than
    /// those in flight.
    fn next(&self, random: &mut Random, has_status: bool) -> Work {
        let size = self.shadow.model().bytes.len();
        loop {
            let work = Work::draw(random, size, has_status);
            if self.shadow.model().hold(&work) {
                return work;
            }
        }
    }

    /// Compares an answer with the model, takes in what was changed, and lets go of the bytes.
    fn end(&self, work: &Work, answer: &Answer<'_>, counts: &mut Counts) {
        let what = format_args!("{}: {:?} {:#x} of {:?}", self.what, work.command, work.flags, work.range);
        let mut model = self.shadow.model();
        let bytes = &mut model.bytes[work.range.clone()];
        match (work.command, answer) {
            (Command::Read, Answer::Data(data)) => {
                assert_same(data, bytes, &what.to_string());
                counts.reads += 1;
            }
            (Command::BlockStatus, Answer::Extents(extents)) => {
                counts.told_bytes += told(bytes, extents, what);
                counts.statuses += 1;
            }
            (Command::Write, Answer::Error(0)) => {
                bytes.copy_from_slice(&work.data);
                counts.writes += 1;
            }
            (Command::WriteZeroes, Answer::Error(0)) => {
                bytes.fill(0);
                counts.zeroes += 1;
            }
            (Command::WriteZeroes, Answer::Error(error::ENOTSUP)) if work.flags & flag::FAST_ZERO != 0 => {
                counts.refused += 1;
            }
            (Command::Trim, Answer::Error(0)) => {
                bytes.fill(0);
                counts.trims += 1;
            }
            (Command::Flush | Command::Cache, Answer::Error(0)) => counts.others += 1,
            (_, Answer::Error(error)) => panic!("{what}: error {error}"),
            (_, Answer::Data(_) | Answer::Extents(_)) => panic!("{what}: an answer to something else"),
        }
        model.release(work);
    }
}

/// How many bytes `extents` call holes or zeros. All of those must be zeros.
fn told(bytes: &[u8], extents: &[Extent], what: fmt::Arguments<'_>) -> u64 {
    let (mut at, mut told) = (0, 0);
    for extent in extents {
        assert!(extent.length > 0, "{what}: an empty extent in {extents:?}");
        let length = usize::try_from(extent.length).expect("an extent fits the address space").min(bytes.len() - at);
        if extent.status & HOLE_OR_ZERO != 0 {
            let content = bytes[at..at + length].iter().position(|&byte| byte != 0);
            assert!(content.is_none(), "{what}: content at {content:?} behind byte {at} is called {extent:?}");
            told += length as u64;
        }
        at += length;
    }
    told
}

impl Model {
    /// Holds the bytes of a request that may be sent now.
    fn hold(&mut self, work: &Work) -> bool {
        let wanted = work.held();
        let overlaps = |held: &Held| {
            let is_apart = held.range.end <= wanted.range.start || wanted.range.end <= held.range.start;
            !is_apart && (held.is_change || wanted.is_change)
        };
        let is_free = !self.held.iter().any(overlaps);
        if is_free {
            self.held.push(wanted);
        }
        is_free
    }

    fn release(&mut self, work: &Work) {
        let held = work.held();
        let at = self.held.iter().position(|other| *other == held).expect("it was held");
        self.held.swap_remove(at);
    }
}

impl Work {
    fn draw(random: &mut Random, size: usize, has_status: bool) -> Self {
        let (command, flags) = match random.below(100) {
            0..30 => (Command::Read, 0),
            30..50 => (Command::Write, 0),
            50..60 => (Command::Write, flag::FUA),
            60..75 => (Command::WriteZeroes, random.pick(&[0, flag::NO_HOLE, flag::FAST_ZERO, flag::FUA])),
            75..82 => (Command::Trim, random.pick(&[0, 0, flag::FUA])),
            82..86 => (Command::Cache, 0),
            86..90 => (Command::Flush, 0),
            _ if has_status => (Command::BlockStatus, random.pick(&[0, 0, flag::REQ_ONE])),
            _ => (Command::Read, 0),
        };
        let range = match command {
            Command::Flush => 0..0,
            Command::Read | Command::Write => range(random, size, 1),
            _ => range(random, size, LONGER_WITHOUT_DATA),
        };
        let data = if command == Command::Write { random.bytes(range.len()) } else { Vec::new() };
        Self { command, flags, range, data }
    }

    fn held(&self) -> Held {
        let is_change = matches!(self.command, Command::Write | Command::WriteZeroes | Command::Trim);
        Held { range: self.range.clone(), is_change }
    }
}

/// Some bytes: any, or whole sectors, or whole pages.
fn range(random: &mut Random, size: usize, factor: usize) -> Range<usize> {
    let longest = random.pick(&LONGEST) * factor;
    let within = match longest {
        ..SHORT_BYTES => random.pick(&[SHARED_BYTES, SHARED_BYTES, HOT_BYTES, size]).min(size),
        _ => random.pick(&[HOT_BYTES, size]).min(size),
    };
    let length = 1 + random.below(longest.min(within));
    let start = random.below(within - length + 1);
    let unit = random.pick(&[1, 1, 512, 4096]);
    let (first, end) = (start / unit * unit, (start + length) / unit * unit);
    if first < end { first..end } else { start..start + length }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            reads: a.reads + b.reads,
            writes: a.writes + b.writes,
            zeroes: a.zeroes + b.zeroes,
            refused: a.refused + b.refused,
            trims: a.trims + b.trims,
            statuses: a.statuses + b.statuses,
            told_bytes: a.told_bytes + b.told_bytes,
            others: a.others + b.others,
        })
    }
}
