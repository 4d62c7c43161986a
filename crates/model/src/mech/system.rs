//! The event loop: requests begin, wait for locks, go to disks, and end.
//!
//! Events are ends of disk operations, arrivals, replies and ticks. At one time they are handled in the order in which
//! they were made. A process's next request begins when its last one ends. Which disk is idle is looked at when an
//! event has been handled entirely, so that a request's operations are all in their queues before the first is served,
//! and are merged.

mod drives;
mod index;
mod job;
mod journal;
mod log;
mod outcome;
mod volume;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use uraid_io::cache::Traffic;
use uraid_layout::plan::MethodCounts;
use uraid_layout::{Lba, Sectors, StripeId};

use super::array::ArraySpec;
use super::cache::{TICK_NS, WriteBack};
use super::disk::Disk;
use super::locks::Locks;
use super::stats::{BatchMeans, StopRule};
use super::workload::Source;
use super::{Error, Nanos, Request};
use drives::Drives;
use index::index_u32;
use job::{Job, Jobs, Kind};
pub use outcome::Outcome;
use volume::Volume;

/// Some arrays, each on disks of its own.
#[derive(Debug)]
pub struct System {
    volumes: Vec<Volume>,
    drives: Drives,
    jobs: Jobs,
    locks: Locks,
    events: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    now: u64,
    /// Jobs that have their locks.
    granted: Vec<u32>,
    /// Clients' jobs that have ended.
    ended: Vec<u32>,
    seen: Outcome,
    /// When the first request was counted.
    since: Option<u64>,
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
            drives: Drives::default(),
            jobs: Jobs::default(),
            locks: Locks::default(),
            events: BinaryHeap::new(),
            sequence: 0,
            now: 0,
            granted: Vec::new(),
            ended: Vec::new(),
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
        self.volumes.push(Volume::new(array, self.drives.count())?);
        self.drives.add(array, &disk);
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
                Event::Tick(volume) => self.tick(volume)?,
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
        self.granted.clear();
        self.ended.clear();
        self.seen = Outcome::default();
        self.since = None;
        self.drives.clear();
        self.volumes.iter_mut().try_for_each(Volume::clear)
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
        if self.ask_cache(job)? || needs_locks && !self.lock(job) {
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
        let at = self.jobs.at_mut(job);
        if at.operations.parts.is_empty() {
            self.volumes[at.request.volume].price(job, at, &mut self.drives)?;
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
            let start = if matches!(at.kind, Kind::Commit | Kind::Append) { 0 } else { data_start };
            at.pending[part] = index_u32(range.len());
            for op in &at.operations.ops[range.clone()] {
                let (drive, sector) = (first_drive + u32::from(op.member), start + op.sector);
                self.drives.queue(drive, sector, op.len, is_write, Jobs::part_number(job, part));
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
        if kind == Kind::Append {
            self.jobs.free(job);
            return self.appended(request.volume, job);
        }
        if !matches!(kind, Kind::Rebuild(_)) {
            self.volumes[request.volume].settle(job, self.jobs.at(job));
            self.append(request.volume)?;
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
        while let Some(begun) = self.drives.begin(self.now) {
            self.seen.add_service(begun.is_write, begun.sectors, begun.planned);
            self.push_event(begun.end, Event::Served(begun.server));
        }
    }

    /// Ends what a server did.
    fn served(&mut self, server: u32) -> Result<(), Error> {
        let parts = self.drives.end(server);
        for &number in &parts {
            let (job, part) = Jobs::of_part(number);
            let pending = &mut self.jobs.at_mut(job).pending[part];
            *pending -= 1;
            if *pending == 0 {
                self.go_on(job, part)?;
            }
        }
        self.drives.give_back(server, parts);
        Ok(())
    }

    /// Gives the cache a client's job, if its array has one; whether the answer is under way and nothing is left for
    /// the disks but a record of the journal.
    fn ask_cache(&mut self, job: u32) -> Result<bool, Error> {
        let at = self.jobs.at_mut(job);
        let Request { volume, is_write, .. } = at.request;
        let hit_ns = self.volumes[volume].ask_cache(job, at);
        let Volume { cache, journal, .. } = &mut self.volumes[volume];
        match (hit_ns, journal.as_mut().zip(cache.as_ref()).filter(|_| is_write)) {
            (Some(_), Some((journal, cache))) => {
                journal.wait(job, cache);
                self.append(volume)?;
            }
            (Some(hit_ns), None) => self.push_event(self.now + hit_ns, Event::Reply(job)),
            (None, _) => {}
        }
        if self.volumes[volume].begins_to_tick() {
            self.push_event(self.now + TICK_NS, Event::Tick(index_u32(volume)));
        }
        Ok(hit_ns.is_some())
    }

    /// Begins to write out what the caches want written.
    fn destage(&mut self) -> Result<(), Error> {
        for volume in 0..self.volumes.len() {
            while let Some((lba, len)) = self.volumes[volume].next_destage() {
                let request = Request { volume, is_write: true, lba, len };
                let job = self.jobs.add(Kind::Destage, request, self.now);
                if self.lock(job) {
                    self.begin(job)?;
                }
            }
        }
        Ok(())
    }

    /// Lets a cache know that time has passed, for as long as something is dirty.
    fn tick(&mut self, volume: u32) -> Result<(), Error> {
        let goes_on = self.volumes[volume as usize].cache.as_mut().is_some_and(WriteBack::tick);
        if goes_on {
            self.push_event(self.now + TICK_NS, Event::Tick(volume));
        }
        self.append(volume as usize)
    }

    /// Whether a part of a job waits for the log now, before it writes.
    fn waits_for_log(&mut self, job: u32, part: usize) -> Result<bool, Error> {
        let at = self.jobs.at_mut(job);
        let volume = at.request.volume;
        let is_logged = !matches!(at.kind, Kind::Rebuild(_) | Kind::Commit | Kind::Append);
        let Some(log) = self.volumes[volume].log.as_mut().filter(|_| is_logged) else { return Ok(false) };
        if !at.wait_for_log(part) {
            return Ok(false);
        }
        if log.wait(Jobs::part_number(job, part)) {
            self.commit(volume)?;
        }
        Ok(true)
    }

    /// Writes a record of all that waits, if anything does.
    fn commit(&mut self, volume: usize) -> Result<(), Error> {
        let Some(ops) = self.volumes[volume].log.as_mut().and_then(|log| log.commit(&self.jobs)) else { return Ok(()) };
        let record = self.jobs.add_record(Kind::Commit, volume, ops, self.now);
        self.begin(record)
    }

    /// Begins a record of the journal of what clients wait for, if one may begin; those that wait for nothing any more
    /// have their answers.
    fn append(&mut self, volume: usize) -> Result<(), Error> {
        let Volume { journal: Some(journal), cache: Some(cache), first_drive, pricer, .. } = &mut self.volumes[volume]
        else {
            return Ok(());
        };
        journal.settle(cache, &mut self.ended);
        let queues = self.drives.how_busy(*first_drive, pricer.geometry().members());
        let Some((batch, ops)) = journal.begin(cache, queues) else { return Ok(()) };
        let record = self.jobs.add_record(Kind::Append, volume, ops, self.now);
        journal.begun(record, batch);
        self.begin(record)
    }

    /// A record of the journal is on its disks.
    fn appended(&mut self, volume: usize, record: u32) -> Result<(), Error> {
        if let Volume { journal: Some(journal), cache: Some(cache), .. } = &mut self.volumes[volume] {
            journal.ended(record, cache);
        }
        self.append(volume)
    }

    /// A record is on the disks: what it holds is written in place, its clients have their answers, and what waited
    /// meanwhile is the next record.
    fn committed(&mut self, volume: usize) -> Result<(), Error> {
        let Some(log) = &mut self.volumes[volume].log else { return Ok(()) };
        for number in log.committed() {
            let (job, part) = Jobs::of_part(number);
            let at = self.jobs.at_mut(job);
            at.unlogged -= 1;
            if at.unlogged == 0 && matches!(at.kind, Kind::Process(_) | Kind::Arrival) {
                at.is_answered = true;
                self.ended.push(job);
            }
            self.go_on(job, part)?;
        }
        self.commit(volume)
    }

    /// Counts a client's job that has ended; whether the run has seen enough.
    fn count(&mut self, job: u32, responses: &mut BatchMeans) -> bool {
        let job = self.jobs.at(job);
        let (response, len) = (self.now - job.begun, job.request.len);
        let is_enough = responses.add(Nanos(response));
        if responses.counts() {
            // The first that counts opens the window in which throughput is measured.
            if self.since.is_some() {
                self.seen.requests += 1;
                self.seen.bytes.0 += len.bytes().0;
                self.seen.time.0 = self.now;
            } else {
                self.since = Some(self.now);
            }
        }
        is_enough
    }

    fn outcome(&self, responses: &BatchMeans, rule: &StopRule) -> Outcome {
        let response = responses.estimate();
        let busy = self.drives.busy_ns();
        let (mut methods, mut traffic) = (MethodCounts::default(), Traffic::default());
        for volume in &self.volumes {
            methods += volume.pricer.methods;
            let of_cache = volume.cache.as_ref().map(WriteBack::traffic).unwrap_or_default();
            traffic.taken.0 += of_cache.taken.0;
            traffic.coalesced.0 += of_cache.coalesced.0;
            traffic.destaged.0 += of_cache.destaged.0;
        }
        let since = self.since.unwrap_or(0);
        Outcome {
            response,
            is_precise: response.half_width <= rule.precision * response.mean,
            time: Nanos(self.seen.time.0.saturating_sub(since)),
            end: Nanos(self.now),
            utilisation: busy as f64 / (self.now.max(1) as f64 * self.drives.count() as f64),
            lock_waits: self.locks.waits,
            methods,
            traffic,
            ..self.seen
        }
    }

    fn push_event(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(Entry { at, sequence: self.sequence, event }));
    }
}
