//! The load: connections that write, zero, trim, read and flush at random until the server is gone, with the journal in
//! step.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::Counts;
use super::journal::{FlushMark, Journal, Kind, Request};
use crate::image::{Random, SECTOR};
use crate::nbd::{Client, ClientError, Command};

/// Longest writes in sectors, of which one is drawn for each.
const WRITE_MAX: [usize; 5] = [1, 8, 8, 64, 512];
/// Longest read in sectors.
const READ_MAX: usize = 64;
/// Where half of the requests go: a few stripes that are written again and again.
const HOT_SECTORS: usize = 2048;
/// Most requests in flight on a connection.
const DEPTH_MAX: usize = 24;

/// When a server is killed: so long after so many replies, which the load does not wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    replies: u64,
    then: Duration,
}

/// How often things happen, in percent of the requests.
#[derive(Clone, Copy, Debug)]
struct Mix {
    flush: usize,
    fua: usize,
    zeroes: usize,
    read: usize,
    depth: usize,
}

/// What waits for a reply.
#[derive(Debug)]
enum Sent {
    Write(Request),
    Read(Request),
    Flush(FlushMark),
}

/// One connection under load.
struct Connection<'a> {
    client: Client,
    journal: &'a Mutex<Journal>,
    random: Random,
    mix: Mix,
    sent: HashMap<u64, Sent>,
    counts: Counts,
}

impl Moment {
    /// Some are early, some are when caches are full; some right after a reply, some at any time.
    pub(super) fn draw(random: &mut Random) -> Self {
        let replies_max = random.pick(&[1, 100, 1000, 4000]);
        let microseconds_max = random.pick(&[1, 1000, 30_000]);
        let replies = 1 + random.below(replies_max) as u64;
        let microseconds = random.below(microseconds_max) as u64;
        Self { replies, then: Duration::from_micros(microseconds) }
    }
}

/// Loads the server `pid` over `clients` and kills it at `moment`. Whether a server that is killed `remembers` what it
/// acknowledged is told to the journal.
///
/// # Panics
/// When it answers wrongly, or stops answering before it is killed.
pub(super) fn until_killed(
    clients: Vec<Client>,
    pid: u32,
    journal: &mut Journal,
    random: &mut Random,
    moment: Moment,
    remembers: bool,
) -> Counts {
    let mix = Mix::draw(random);
    let shared = Mutex::new(std::mem::replace(journal, Journal::new(0, 0)));
    let replies = AtomicU64::new(0);
    let (due, reached) = sync_channel(1);
    let counts = std::thread::scope(|scope| {
        let connections = clients.into_iter().map(|client| {
            let random = Random::new(random.bits());
            let connection =
                Connection { client, journal: &shared, random, mix, sent: HashMap::new(), counts: Counts::default() };
            let (replies, due) = (&replies, due.clone());
            scope.spawn(move || connection.run(replies, moment.replies, &due))
        });
        let connections: Vec<_> = connections.collect();
        drop(due);
        let killed = scope.spawn(move || kill_when(&reached, pid, moment.then));
        let ends: Vec<(Counts, ClientError)> = connections.into_iter().map(joined).collect();
        let killed = joined(killed);
        assert!(killed, "the server stopped answering before it was killed: {}", ends[0].1);
        ends.into_iter().map(|(counts, _)| counts).sum()
    });
    *journal = shared.into_inner().expect("no client failed");
    journal.killed(remembers);
    counts
}

/// What the thread came to; its panic is this one's.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Kills `pid` so long after `reached` tells that it is time; `false` when it never does.
fn kill_when(reached: &Receiver<()>, pid: u32, then: Duration) -> bool {
    if reached.recv().is_err() {
        return false;
    }
    // Nothing is waited for: a moment in time is what is drawn. Replies alone would always end a server at the same
    // point of its work, just after a commit. What comes then (content in the log and not in place, data without its
    // parity) no event that a client sees falls into.
    std::thread::sleep(then);
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a child has a process id");
    kill_process(pid, Signal::KILL).is_ok()
}

impl Mix {
    fn draw(random: &mut Random) -> Self {
        Self {
            flush: random.pick(&[1, 4, 20]),
            fua: random.pick(&[0, 5, 30]),
            zeroes: random.pick(&[0, 6, 12]),
            read: random.pick(&[0, 5, 10]),
            depth: random.pick(&[1, DEPTH_MAX / 3, DEPTH_MAX]),
        }
    }
}

impl Connection<'_> {
    /// Sends and receives until the connection is gone; what was done, and how it went.
    fn run(mut self, replies: &AtomicU64, due_at: u64, due: &SyncSender<()>) -> (Counts, ClientError) {
        let mut is_sending = true;
        loop {
            while is_sending && self.sent.len() < self.mix.depth {
                // Replies may still be there for what was sent before.
                is_sending = self.send().is_ok();
            }
            if let Err(error) = self.receive() {
                return (self.counts, error);
            }
            if replies.fetch_add(1, Ordering::Relaxed) + 1 == due_at {
                due.send(()).expect("the killer waits");
            }
        }
    }

    fn send(&mut self) -> Result<(), ClientError> {
        let Mix { flush, fua, zeroes, read, .. } = self.mix;
        let draw = self.random.below(100);
        if draw < flush {
            let mark = self.journal().begin_flush();
            let cookie = self.client.submit(Command::Flush, 0, 0, &[])?;
            self.sent.insert(cookie, Sent::Flush(mark));
            return Ok(());
        }
        let command = match draw {
            _ if draw < flush + read => Command::Read,
            _ if draw >= flush + read + zeroes => Command::Write,
            _ => self.random.pick(&[Command::WriteZeroes, Command::Trim]),
        };
        let sectors = self.draw_sectors(command);
        let offset = (sectors.start * SECTOR) as u64;
        let length = u32::try_from(sectors.len() * SECTOR).expect("requests are short");
        if command == Command::Read {
            let Some(request) = self.journal().begin_read(sectors) else { return Ok(()) };
            let cookie = self.client.submit(Command::Read, offset, length, &[])?;
            self.sent.insert(cookie, Sent::Read(request));
            return Ok(());
        }
        let kind = match command {
            Command::WriteZeroes | Command::Trim => Kind::Zeroes,
            _ => Kind::Data,
        };
        let fua = self.random.below(100) < fua;
        let Some((request, payload)) = self.journal().begin_write(sectors, kind, fua) else { return Ok(()) };
        let cookie = if fua {
            self.client.submit_durable(command, offset, length, &payload)?
        } else {
            self.client.submit(command, offset, length, &payload)?
        };
        self.counts.durable_writes += u64::from(fua);
        self.sent.insert(cookie, Sent::Write(request));
        Ok(())
    }

    fn receive(&mut self) -> Result<(), ClientError> {
        let reply = self.client.reply()?;
        let sent = self.sent.remove(&reply.cookie).expect("one reply to each request");
        assert_eq!(reply.error, 0, "{sent:?} was refused");
        match sent {
            Sent::Write(request) => {
                self.journal().end_write(request);
                self.counts.writes += 1;
            }
            Sent::Read(request) => {
                let result = self.journal().end_read(&request, &reply.data);
                result.unwrap_or_else(|wrong| panic!("{wrong}"));
                self.counts.reads += 1;
            }
            Sent::Flush(mark) => {
                self.journal().end_flush(mark);
                self.counts.flushes += 1;
            }
        }
        Ok(())
    }

    /// Any sectors, half of them in the hot region and half of them on blocks of 4 KiB.
    fn draw_sectors(&mut self, command: Command) -> Range<usize> {
        let all = self.journal().sectors();
        let random = &mut self.random;
        let within = random.pick(&[all, all.min(HOT_SECTORS)]);
        let longest = match command {
            Command::Read => READ_MAX,
            Command::Write => random.pick(&WRITE_MAX),
            // Without a payload, longer than any parity stripe.
            _ => random.pick(&WRITE_MAX) * 16,
        };
        let count = 1 + random.below(longest.min(within));
        let first = random.below(within - count + 1);
        if random.below(2) == 0 && count >= 8 {
            return first / 8 * 8..first / 8 * 8 + count / 8 * 8;
        }
        first..first + count
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().expect("no other client failed")
    }
}
