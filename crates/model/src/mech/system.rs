//! The event loop: requests begin, wait for locks, go to disks, and end.
//!
//! Events are ends of disk operations, arrivals, replies and ticks. At one time they are handled in the order in which
//! they were made. A process's next request begins when its last one ends. Which disk is idle is looked at when an
//! event has been handled entirely, so that a request's operations are all in their queues before the first is served,
//! and are merged.

mod cached;
mod job;
mod log;
mod outcome;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use uraid_layout::plan::Queue as Busy;
use uraid_layout::{DiskSector, Lba, Sectors, StripeId};

use super::array::{ArraySpec, Pricer, Spindles, State};
use super::cache::WriteBack;
use super::disk::{Disk, Model};
use super::drive::{Head, Span};
use super::locks::Locks;
use super::queue::{Discipline, Queue, Waiting};
use super::stats::{BatchMeans, StopRule};
use super::workload::{Request, Source};
use super::{Error, Nanos};
use job::{Job, Jobs, Kind};
use log::Log;
pub use outcome::Outcome;
use uraid_random::Random;

/// Some arrays, each on disks of its own.
#[derive(Debug)]
pub struct System {
    volumes: Vec<Volume>,
    drives: Vec<Drive>,
    servers: Vec<Server>,
    jobs: Jobs,
    locks: Locks,
    events: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    now: u64,
    /// Drives that got operations.
    kicked: Vec<u32>,
    /// Jobs that have their locks.
    granted: Vec<u32>,
    /// Clients' jobs that have ended.
    ended: Vec<u32>,
    busy: Vec<Busy>,
    seen: Outcome,
    /// When the first request was counted.
    since: Option<u64>,
}

#[derive(Debug)]
struct Volume {
    pricer: Pricer,
    first_drive: u32,
    has_locks: bool,
    rebuild: Rebuild,
    cache: Option<WriteBack>,
    log: Option<Log>,
    /// Where the data begins on each disk.
    data_start: u64,
}

/// How far the members are rebuilt.
#[derive(Clone, Copy, Debug, Default)]
struct Rebuild {
    at_once: u32,
    next: u64,
    done: u64,
}

#[derive(Debug)]
struct Drive {
    disk: Disk,
    discipline: Discipline,
    merges: bool,
    head: Head,
    queue: Queue,
    idle: Vec<u32>,
    writing: u32,
    write_servers: u32,
    is_kicked: bool,
    /// For each end of operations: busy until then.
    busy_ns: u64,
}

/// What serves one operation at a time: a disk's arm, or one channel of it.
#[derive(Debug)]
struct Server {
    drive: u32,
    is_write: bool,
    parts: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: u64,
    sequence: u64,
    event: Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// By a server.
    Served(u32),
    Arrival,
    /// The cache's, to a job.
    Reply(u32),
    /// Of an array's cache.
    Tick(u32),
}

/// The most disks of a system.
const DRIVES_MAX: usize = 4096;

/// How far a disk's spindle is ahead of the clock: up to a second, which is many turns and some part of one.
fn ahead(spindles: Spindles, drive: u32) -> u64 {
    match spindles {
        Spindles::Together => 0,
        Spindles::Apart => Random::new(drive.into()).below(1_000_000_000),
    }
}

impl System {
    /// Arrays that requests name by their index.
    ///
    /// # Errors
    /// When an array can't be had so, or there is none.
    pub fn new(arrays: &[ArraySpec]) -> Result<Self, Error> {
        let count = arrays.iter().map(|array| usize::from(array.disks)).sum();
        if arrays.is_empty() || count > DRIVES_MAX {
            return Err(Error::System {
                what: "a system has at least one array and at most 4096 disks, not",
                value: count,
            });
        }
        let mut system = Self {
            volumes: Vec::new(),
            drives: Vec::new(),
            servers: Vec::new(),
            jobs: Jobs::default(),
            locks: Locks::default(),
            events: BinaryHeap::new(),
            sequence: 0,
            now: 0,
            kicked: Vec::new(),
            granted: Vec::new(),
            ended: Vec::new(),
            busy: Vec::new(),
            seen: Outcome::default(),
            since: None,
        };
        for array in arrays {
            system.add(array)?;
        }
        Ok(system)
    }

    fn add(&mut self, array: &ArraySpec) -> Result<(), Error> {
        let disk = Disk::new(array.disk.clone())?;
        let at_once = match array.state {
            State::Rebuilding { at_once, .. } => at_once,
            State::Healthy | State::Degraded(_) => 0,
        };
        let pricer = Pricer::new(array)?;
        let cache = array.cache.map(|cache| WriteBack::new(cache, pricer.geometry())).transpose()?;
        self.volumes.push(Volume {
            pricer,
            first_drive: index_u32(self.drives.len()),
            has_locks: array.locks,
            rebuild: Rebuild { at_once, ..Rebuild::default() },
            cache,
            log: array.log.map(|_| Log::new(array.log_sectors(), array.disks)),
            data_start: array.log_sectors(),
        });
        for _ in 0..array.disks {
            let write_servers = match &disk.model {
                Model::Rotating(_) => 1,
                Model::Flash(memory) => memory.write_channels,
            };
            let first = index_u32(self.servers.len());
            let drive = index_u32(self.drives.len());
            let servers = (0..disk.servers()).map(|_| Server { drive, is_write: false, parts: Vec::new() });
            self.servers.extend(servers);
            self.drives.push(Drive {
                disk: disk.clone(),
                discipline: array.discipline,
                merges: array.merges,
                head: Head::at_rest(ahead(array.spindles, drive)),
                queue: Queue::default(),
                idle: (first..index_u32(self.servers.len())).rev().collect(),
                writing: 0,
                write_servers,
                is_kicked: false,
                busy_ns: 0,
            });
        }
        Ok(())
    }

    /// The geometry of an array.
    ///
    /// # Panics
    /// When there is no such array.
    #[must_use]
    pub fn geometry(&self, volume: usize) -> &uraid_layout::Geometry {
        self.volumes[volume].pricer.geometry()
    }

    /// Runs requests of a source, of which so many processes ask, from an idle system at time 0 with all heads at the
    /// first cylinder, until the rule has seen enough or nothing is left. What was rebuilt before is rebuilt anew.
    ///
    /// # Errors
    /// When a request can't be planned, or the rule makes no sense.
    pub fn run<S: Source>(&mut self, source: &mut S, processes: usize, rule: &StopRule) -> Result<Outcome, Error> {
        rule.check()?;
        self.reset()?;
        let mut responses = BatchMeans::new(*rule);
        for volume in 0..self.volumes.len() {
            for _ in 0..self.volumes[volume].rebuild.at_once {
                self.rebuild_next(volume)?;
            }
        }
        for process in 0..processes {
            self.ask(source, process)?;
        }
        let mut next_arrival = self.expect_arrival(source);
        self.destage()?;
        self.kick();
        let mut is_enough = false;
        while !is_enough && let Some(Reverse(Entry { at, event, .. })) = self.events.pop() {
            self.now = at;
            match event {
                Event::Served(server) => self.served(server)?,
                Event::Arrival => {
                    let request = next_arrival.take().expect("an arrival has its request");
                    self.start(source, Kind::Arrival, request)?;
                    next_arrival = self.expect_arrival(source);
                }
                Event::Reply(job) => self.ended.push(job),
                Event::Tick(volume) => self.tick(volume),
            }
            while let Some(job) = self.ended.pop() {
                is_enough |= self.count(job, &mut responses);
                let Job { kind, parts_left, .. } = *self.jobs.at(job);
                // What is answered from the log is still on its way.
                if parts_left == 0 {
                    self.jobs.free(job);
                }
                if let Kind::Process(process) = kind
                    && !is_enough
                {
                    self.ask(source, process)?;
                }
            }
            self.destage()?;
            self.kick();
        }
        Ok(self.outcome(&responses, rule))
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.jobs.clear();
        self.locks.clear();
        self.events.clear();
        (self.sequence, self.now) = (0, 0);
        self.kicked.clear();
        self.granted.clear();
        self.ended.clear();
        self.seen = Outcome::default();
        self.since = None;
        for drive in &mut self.drives {
            drive.head = Head::at_rest(drive.head.ahead);
            drive.queue.clear();
            drive.idle.clear();
            (drive.writing, drive.is_kicked, drive.busy_ns) = (0, false, 0);
        }
        for (index, server) in self.servers.iter_mut().enumerate().rev() {
            server.parts.clear();
            self.drives[server.drive as usize].idle.push(index_u32(index));
        }
        for volume in &mut self.volumes {
            volume.rebuild = Rebuild { at_once: volume.rebuild.at_once, ..Rebuild::default() };
            volume.pricer.rebuilt(StripeId(0));
            volume.pricer.methods = uraid_layout::plan::MethodCounts::default();
            if let Some(log) = &mut volume.log {
                log.clear();
            }
            if let Some(cache) = &mut volume.cache {
                *cache = WriteBack::new(cache.spec(), volume.pricer.geometry())?;
            }
        }
        Ok(())
    }

    /// Begins the next request of a process.
    fn ask<S: Source>(&mut self, source: &mut S, process: usize) -> Result<(), Error> {
        let Some(request) = source.next(process, Nanos(self.now)) else { return Ok(()) };
        self.start(source, Kind::Process(process), request)
    }

    fn expect_arrival<S: Source>(&mut self, source: &mut S) -> Option<Request> {
        let (Nanos(at), request) = source.arrival()?;
        self.push_event(at.max(self.now), Event::Arrival);
        Some(request)
    }

    fn start<S: Source>(&mut self, source: &S, kind: Kind, request: Request) -> Result<(), Error> {
        let value = request.volume;
        let what = "a request names an array that the system does not have";
        let volume = self.volumes.get(value).ok_or(Error::System { what, value })?;
        let needs_locks = request.is_write && volume.has_locks;
        let job = self.jobs.add(kind, request, self.now);
        if let Some(planned) = source.planned() {
            self.jobs.at_mut(job).operations.copy(planned);
        }
        if self.ask_cache(job) || needs_locks && !self.lock(job) {
            return Ok(());
        }
        self.begin(job)
    }

    /// Whether a job has the locks of its stripes already.
    fn lock(&mut self, job: u32) -> bool {
        let at = self.jobs.at_mut(job);
        let volume = at.request.volume;
        at.is_locked = true;
        let (lba, len) = (Lba(at.rest.start), Sectors(at.rest.end - at.rest.start));
        let range = self.volumes[volume].pricer.stripes(lba, len);
        self.locks.take(super::locks::Stripes { volume: index_u32(volume), range }, job)
    }

    /// Begins what a job has to do on disks.
    fn begin(&mut self, job: u32) -> Result<(), Error> {
        let Job { request, kind, .. } = *self.jobs.at(job);
        let is_rebuild = matches!(kind, Kind::Rebuild(_));
        let is_priced = !self.jobs.at(job).operations.parts.is_empty() || !is_rebuild && self.price_cached(job)?;
        if !is_priced {
            let volume = &mut self.volumes[request.volume];
            let operations = &mut self.jobs.at_mut(job).operations;
            match kind {
                Kind::Process(_) | Kind::Arrival | Kind::Destage => {
                    let queues = if volume.pricer.has_copies() && !request.is_write {
                        let first = volume.first_drive as usize;
                        let drives = &self.drives[first..first + volume.pricer.geometry().members()];
                        self.busy.clear();
                        self.busy.extend(drives.iter().map(Drive::how_busy));
                        &self.busy[..]
                    } else {
                        &[]
                    };
                    volume.pricer.request(&request, queues, operations)?;
                }
                Kind::Rebuild(stripe) => volume.pricer.rebuild(stripe, operations)?,
                Kind::Commit => unreachable!("a commit has its operations from the start"),
            }
        }
        let at = self.jobs.at_mut(job);
        at.parts_left = index_u32(at.operations.parts.len());
        at.unlogged = at.parts_left;
        if at.parts_left == 0 {
            return self.end(job);
        }
        for part in 0..self.jobs.at(job).operations.parts.len() {
            self.go_on(job, part)?;
        }
        Ok(())
    }

    /// Sends a part's reads to the disks or, when they have ended, its writes, or ends it.
    fn go_on(&mut self, job: u32, part: usize) -> Result<(), Error> {
        loop {
            if self.waits_for_log(job, part)? {
                return Ok(());
            }
            let at = self.jobs.at_mut(job);
            let Some((range, is_write)) = at.advance(part) else { break };
            let Volume { first_drive, data_start, .. } = self.volumes[at.request.volume];
            let start = if at.kind == Kind::Commit { 0 } else { data_start };
            at.pending[part] = index_u32(range.len());
            for op in &at.operations.ops[range.clone()] {
                let index = first_drive + u32::from(op.member);
                let drive = &mut self.drives[index as usize];
                let sector = start + op.sector;
                drive.queue.push(Waiting {
                    sector,
                    cylinder: drive.disk.cylinder(sector),
                    len: op.len,
                    is_write,
                    part: Jobs::part_number(job, part),
                });
                if !std::mem::replace(&mut drive.is_kicked, true) {
                    self.kicked.push(index);
                }
            }
            if !range.is_empty() {
                return Ok(());
            }
        }
        let at = self.jobs.at_mut(job);
        at.parts_left -= 1;
        if at.parts_left == 0 { self.end(job) } else { Ok(()) }
    }

    /// Ends a job: its locks go on, and the client has its answer.
    fn end(&mut self, job: u32) -> Result<(), Error> {
        let Job { kind, request, is_locked, is_answered, .. } = *self.jobs.at(job);
        if kind == Kind::Commit {
            self.jobs.free(job);
            return self.committed(request.volume);
        }
        if !matches!(kind, Kind::Rebuild(_)) {
            self.settle(job);
        }
        if is_locked {
            let mut granted = std::mem::take(&mut self.granted);
            self.locks.release(job, &mut granted);
            for next in granted.drain(..) {
                self.begin(next)?;
            }
            self.granted = granted;
        }
        if kind == Kind::Destage || is_answered {
            self.jobs.free(job);
            return Ok(());
        }
        if let Kind::Rebuild(_) = kind {
            self.jobs.free(job);
            let volume = &mut self.volumes[request.volume];
            volume.rebuild.done += 1;
            if volume.rebuild.done == volume.rebuild.next {
                volume.pricer.rebuilt(StripeId(volume.rebuild.done));
            }
            self.seen.stripes_rebuilt += 1;
            return self.rebuild_next(request.volume);
        }
        self.ended.push(job);
        Ok(())
    }

    /// Begins to rebuild the next stripe, under its lock.
    fn rebuild_next(&mut self, index: usize) -> Result<(), Error> {
        let volume = &mut self.volumes[index];
        let stripe = volume.rebuild.next;
        if stripe >= volume.pricer.stripe_count().0 {
            return Ok(());
        }
        volume.rebuild.next += 1;
        let sectors = volume.pricer.geometry().stripe_sectors();
        let lba = Lba(stripe * sectors.0);
        let request = Request { volume: index, is_write: true, lba, len: sectors };
        let has_locks = volume.has_locks;
        let job = self.jobs.add(Kind::Rebuild(StripeId(stripe)), request, self.now);
        if has_locks && !self.lock(job) {
            return Ok(());
        }
        self.begin(job)
    }

    /// Starts what idle disks have to do.
    fn kick(&mut self) {
        while let Some(index) = self.kicked.pop() {
            let drive = &mut self.drives[index as usize];
            drive.is_kicked = false;
            while let Some(&server) = drive.idle.last() {
                let parts = &mut self.servers[server as usize].parts;
                if drive.queue.next_is_write() && drive.writing >= drive.write_servers {
                    break;
                }
                let Some(next) = drive.queue.pop(drive.discipline, drive.merges, &mut drive.head, parts) else { break };
                drive.idle.pop();
                let Waiting { sector, len, is_write, .. } = next;
                drive.writing += u32::from(is_write);
                let merged = self.servers[server as usize].parts.len() as u64;
                self.servers[server as usize].is_write = is_write;
                let end = drive.disk.serve(&mut drive.head, self.now, Span { sector, len: len.into(), is_write });
                drive.busy_ns += end - self.now;
                self.seen.add_service(is_write, len.into(), merged);
                self.sequence += 1;
                let entry = Entry { at: end, sequence: self.sequence, event: Event::Served(server) };
                self.events.push(Reverse(entry));
            }
        }
    }

    /// Ends what a server did.
    fn served(&mut self, server: u32) -> Result<(), Error> {
        let at = &mut self.servers[server as usize];
        let mut parts = std::mem::take(&mut at.parts);
        let drive = &mut self.drives[at.drive as usize];
        drive.writing -= u32::from(at.is_write);
        drive.idle.push(server);
        if !std::mem::replace(&mut drive.is_kicked, true) {
            self.kicked.push(at.drive);
        }
        for &number in &parts {
            let (job, part) = Jobs::of_part(number);
            let pending = &mut self.jobs.at_mut(job).pending[part];
            *pending -= 1;
            if *pending == 0 {
                self.go_on(job, part)?;
            }
        }
        parts.clear();
        self.servers[server as usize].parts = parts;
        Ok(())
    }

    fn push_event(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(Entry { at, sequence: self.sequence, event }));
    }
}

impl Drive {
    fn how_busy(&self) -> Busy {
        let depth = self.queue.len() as u64 + (u64::from(self.disk.servers()) - self.idle.len() as u64);
        Busy { depth: u32::try_from(depth).unwrap_or(u32::MAX), head: DiskSector(self.head.sector) }
    }
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a system has fewer than 2^32 of anything")
}
