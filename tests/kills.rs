//! Real kills: servers on real files under load, ended by SIGKILL at random moments, started again and asked what they
//! hold.
//!
//! A [`Cycle`] is the life of one array: load, kill, now and then a member deleted or a start killed too, start, all of
//! it verified by the [`journal`], several times over; then a clean stop, after which the members must hold what the
//! export did, with every parity right. Everything but the interleaving of processes follows from the seed.
//!
//! It knows what a client may expect, and nothing of how the server does it. What a power cut loses beside a kill, it
//! can't show: the kernel keeps what it was given.

mod beside;
pub mod journal;
mod load;

use std::fmt;
use std::iter::Sum;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use crate::array::{Array, Content};
use crate::image::{Random, SECTOR};
use crate::placement::Level;
use crate::process::Process;
use crate::server::Server;
use crate::shape::Shape;
use beside::Beside;
use journal::Journal;
use load::Moment;

/// Most kills of one array.
const KILLS_MAX: usize = 5;
/// Bytes of one read while verifying.
const VERIFY_BYTES: usize = 1 << 20;
/// Longest time until a start is killed.
const START_KILLED_MAX: Duration = Duration::from_millis(40);

/// The life of one array, before it is lived.
#[derive(Clone, Debug)]
pub struct Cycle {
    seed: u64,
    shape: Shape,
    consistency: &'static str,
    place: PathBuf,
    kills: u64,
    has_fio: bool,
    random: Random,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Arrays.
    pub cycles: u64,
    /// Servers killed under load.
    pub kills: u64,
    /// Those of them without a write-back cache, which must have kept everything that they acknowledged.
    pub remembering: u64,
    /// Servers killed while they started.
    pub killed_starts: u64,
    /// Starts with members missing.
    pub degraded: u64,
    /// Kills with fio beside the load.
    pub fio: u64,
    /// Writes, zeroes and trims that were acknowledged.
    pub writes: u64,
    /// Writes that were sent with FUA.
    pub durable_writes: u64,
    /// Flushes that were acknowledged.
    pub flushes: u64,
    /// Reads under load, each verified.
    pub reads: u64,
    /// Sectors verified after starts.
    pub sectors: u64,
}

/// A cycle that went wrong.
#[derive(Debug)]
pub struct Failure {
    /// The cycle's seed.
    pub seed: u64,
    /// The array.
    pub shape: Shape,
    /// As `uraid create --consistency` takes it.
    pub consistency: &'static str,
    /// Where its members are kept.
    pub directory: PathBuf,
    /// What went wrong.
    pub what: String,
}

/// An array that is living its life.
struct Life<'a> {
    cycle: Cycle,
    array: &'a Array,
    journal: Journal,
    absent: Vec<usize>,
    /// Whether the server that runs has given everything that it acknowledged to the kernel: it has no write-back
    /// cache.
    remembers: bool,
    /// Whether the server that runs logs the content of whole stripes: without members nothing is lost then.
    logs_content: bool,
    counts: Counts,
}

impl Cycle {
    /// The cycle that `seed` says, with at most `kills` kills, of an array of one of `shapes`.
    ///
    /// # Panics
    /// When there are no shapes.
    #[must_use]
    pub fn new(seed: u64, shapes: &[Shape], kills: u64, has_fio: bool) -> Self {
        let mut random = Random::new(seed);
        let shape = shapes[random.below(shapes.len())].clone();
        let without_a_log = if shape.level == Level::Raid0 { "none" } else { "bitmap" };
        let consistency = random.pick(&["log", "log", "log", without_a_log, "none"]);
        let memory = PathBuf::from("/dev/shm");
        // Members in memory and members on a disk take turns.
        let place = if seed.is_multiple_of(2) && memory.is_dir() { memory } else { std::env::temp_dir() };
        let kills = kills.min(1 + random.below(KILLS_MAX) as u64);
        Self { seed, shape, consistency, place, kills, has_fio, random }
    }

    /// Lives it.
    ///
    /// # Errors
    /// What went wrong; the members are kept then.
    pub fn run(self) -> Result<Counts, Box<Failure>> {
        let (seed, shape, consistency) = (self.seed, self.shape.clone(), self.consistency);
        let array = Array::planned_in(&shape, &self.place);
        // The harness fails by panicking.
        let life = AssertUnwindSafe(|| Life::begin(self, &array).live());
        catch_unwind(life).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let what = text.unwrap_or("a panic without words").to_owned();
            Box::new(Failure { seed, shape, consistency, directory: array.keep(), what })
        })
    }
}

impl<'a> Life<'a> {
    fn begin(mut cycle: Cycle, array: &'a Array) -> Self {
        let member_bytes = (12 + cycle.random.below(13)) << 20;
        let _ = array.run_create(member_bytes, &["--consistency", cycle.consistency]).success();
        // fio has what is left of the export, and shares a stripe with the journal's sectors.
        let journal = Journal::new(cycle.seed, array.expected_size() / 4 * 3 / SECTOR);
        let counts = Counts { cycles: 1, ..Counts::default() };
        Self { cycle, array, journal, absent: Vec::new(), remembers: false, logs_content: false, counts }
    }

    fn live(mut self) -> Counts {
        for _ in 0..self.cycle.kills {
            let server = self.start();
            self.load_and_kill(server);
            if self.one_in(3) {
                self.delete_members();
            }
        }
        let server = self.start();
        let image = crate::image::read_export(server.uri());
        let _ = server.stop();
        if self.absent.is_empty() {
            Content::read(self.array).assert_holds(&image, "stopped cleanly at last");
        }
        self.counts
    }

    /// A server that was started, perhaps not for the first time, and holds what it may hold.
    fn start(&mut self) -> Server {
        while self.one_in(4) {
            self.kill_while_starting();
        }
        let options = self.draw_options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let server = Server::start_members(self.array, &self.array.without(&self.absent), &options);
        self.counts.degraded += u64::from(!self.absent.is_empty());
        self.verify(&server);
        server
    }

    /// Recovery can be cut off at any point.
    fn kill_while_starting(&mut self) {
        let options = self.draw_options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let command = Server::command(self.array, &self.array.without(&self.absent), &options);
        let mut running = Process::start(command);
        let microseconds = self.cycle.random.below(START_KILLED_MAX.as_micros() as usize) as u64;
        // Nothing is waited for: a moment in time is what is drawn. A start says nothing of itself before its recovery
        // is over, so there is no event to count, and only time reaches every point of it.
        std::thread::sleep(Duration::from_micros(microseconds));
        running.kill();
        self.counts.killed_starts += 1;
    }

    fn verify(&mut self, server: &Server) {
        let mut client = server.connect();
        let end = self.journal.sectors();
        for first in (0..end).step_by(VERIFY_BYTES / SECTOR) {
            let count = (end - first).min(VERIFY_BYTES / SECTOR);
            let bytes = client.read(first * SECTOR, count * SECTOR);
            let absent = &self.absent;
            self.journal.restarted(first, &bytes).unwrap_or_else(|wrong| {
                panic!("after kill {} of the array, without members {absent:?}: {wrong}", self.counts.kills)
            });
        }
        client.disconnect();
        self.counts.sectors += end as u64;
    }

    fn load_and_kill(&mut self, server: Server) {
        let fio_seed = self.cycle.random.bits() as u32;
        let beside = (self.cycle.has_fio && self.one_in(3))
            .then(|| Beside::start(server.uri(), self.journal.sectors() * SECTOR, fio_seed));
        let random = &mut self.cycle.random;
        let clients = (0..1 + random.below(2)).map(|_| server.connect()).collect();
        let moment = Moment::draw(random);
        let done = load::until_killed(clients, server.pid(), &mut self.journal, random, moment, self.remembers);
        let end = server.end();
        assert_eq!(end.code, None, "`{}` ended before it was killed: {}", end.line, end.stderr);
        self.counts = [self.counts, done].into_iter().sum();
        self.counts.kills += 1;
        self.counts.remembering += u64::from(self.remembers);
        if let Some(beside) = beside {
            beside.end();
            self.counts.fio += 1;
        }
    }

    /// Deletes members as far as the array must survive it.
    fn delete_members(&mut self) {
        if !self.survives_a_kill_without_members() {
            return;
        }
        let includes_absent = |set: &&Vec<usize>| self.absent.iter().all(|slot| set.contains(slot));
        let sets: Vec<&Vec<usize>> = self.cycle.shape.tolerated.iter().filter(includes_absent).collect();
        if sets.is_empty() {
            return;
        }
        let set = sets[self.cycle.random.below(sets.len())].clone();
        let gone: Vec<usize> = set.iter().copied().filter(|slot| !self.absent.contains(slot)).collect();
        self.array.remove(&gone);
        self.absent = set;
    }

    /// How the next server is started.
    fn draw_options(&mut self) -> Vec<String> {
        let random = &mut self.cycle.random;
        let cache = random.pick(&["writeback", "writeback", "writethrough", "none"]);
        let size = random.pick(&["64M", "8M", "1M", "256K"]);
        let threads = random.pick(&["0", "0", "2"]);
        let logged = random.pick(&["sums", "content"]);
        self.remembers = cache != "writeback";
        self.logs_content = logged == "content";
        let mut options = vec!["--cache", cache, "--cache-size", size, "--connection-threads", threads];
        options.extend(["--full-stripe-log", logged]);
        if !self.absent.is_empty() {
            options.push("--degraded");
            if self.cycle.consistency != "log" {
                options.push("--force");
            }
        }
        options.into_iter().map(String::from).collect()
    }

    /// Whether the array is right after a kill without members that it can spare. A log with content sees to that;
    /// copies are old or new each for itself.
    fn survives_a_kill_without_members(&self) -> bool {
        let is_mirror = matches!(self.cycle.shape.level, Level::Raid1 | Level::Raid10 { .. });
        self.cycle.consistency == "log" && self.logs_content || is_mirror
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.cycle.random.below(times) == 0
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            cycles: a.cycles + b.cycles,
            kills: a.kills + b.kills,
            remembering: a.remembering + b.remembering,
            killed_starts: a.killed_starts + b.killed_starts,
            degraded: a.degraded + b.degraded,
            fio: a.fio + b.fio,
            writes: a.writes + b.writes,
            durable_writes: a.durable_writes + b.durable_writes,
            flushes: a.flushes + b.flushes,
            reads: a.reads + b.reads,
            sectors: a.sectors + b.sectors,
        })
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills of {} arrays ({} with fio, {} without write-back), {} more while starting, {} starts without \
             members; {} writes ({} FUA), {} flushes, {} reads; {} sectors verified",
            self.kills,
            self.cycles,
            self.fio,
            self.remembering,
            self.killed_starts,
            self.degraded,
            self.writes,
            self.durable_writes,
            self.flushes,
            self.reads,
            self.sectors
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, shape, consistency, directory, what } = self;
        write!(
            f,
            "{} with consistency {consistency}, seed {seed}: {what}\nits members are in {}",
            shape.name,
            directory.display()
        )
    }
}
