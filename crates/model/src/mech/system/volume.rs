//! An array of a system: what prices its requests, and its cache, its log and its rebuild.

use uraid_layout::plan::Extent;
use uraid_layout::{Lba, Sectors, StripeId};

use super::super::array::{ArraySpec, Pricer, State};
use super::super::cache::WriteBack;
use super::super::{Error, Request};
use super::drives::Drives;
use super::index::index_u32;
use super::job::{Job, Kind};
use super::journal::Journal;
use super::log::Log;

#[derive(Debug)]
pub(super) struct Volume {
    pub(super) pricer: Pricer,
    pub(super) first_drive: u32,
    pub(super) has_locks: bool,
    pub(super) rebuild: Rebuild,
    pub(super) cache: Option<WriteBack>,
    pub(super) log: Option<Log>,
    pub(super) journal: Option<Journal>,
    /// Where the data begins on each disk.
    pub(super) data_start: u64,
}

/// How far the members are rebuilt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rebuild {
    pub(super) at_once: u32,
    pub(super) next: u64,
    pub(super) done: u64,
}

impl Volume {
    pub(super) fn new(array: &ArraySpec, first_drive: usize) -> Result<Self, Error> {
        let at_once = match array.state {
            State::Rebuilding { at_once, .. } => at_once,
            State::Healthy | State::Degraded(_) => 0,
        };
        let pricer = Pricer::new(array)?;
        let has_journal = array.journal.is_some();
        let cache = array.cache.map(|cache| WriteBack::new(cache, pricer.geometry(), has_journal)).transpose()?;
        let (ring, copies) = (array.log_sectors()..array.data_start(), pricer.geometry().tolerance() + 1);
        let journal = array.journal.filter(|_| cache.is_some()).map(|_| Journal::new(ring, copies, array.disks));
        Ok(Self {
            journal,
            pricer,
            first_drive: index_u32(first_drive),
            has_locks: array.locks,
            rebuild: Rebuild { at_once, ..Rebuild::default() },
            cache,
            log: array.log.map(|_| Log::new(array.log_sectors(), array.disks)),
            data_start: array.data_start(),
        })
    }

    /// As it was at first.
    pub(super) fn clear(&mut self) -> Result<(), Error> {
        self.rebuild = Rebuild { at_once: self.rebuild.at_once, ..Rebuild::default() };
        self.pricer.rebuilt(StripeId(0));
        self.pricer.methods = uraid_layout::plan::MethodCounts::default();
        if let Some(log) = &mut self.log {
            log.clear();
        }
        if let Some(journal) = &mut self.journal {
            journal.clear();
        }
        if let Some(cache) = &mut self.cache {
            *cache = WriteBack::new(cache.spec(), self.pricer.geometry(), self.journal.is_some())?;
        }
        Ok(())
    }

    /// Gives the cache a client's job, if there is one; after how long it answers, where nothing is left for the disks.
    pub(super) fn ask_cache(&mut self, job: u32, at: &mut Job) -> Option<u64> {
        let Request { is_write, lba, len, .. } = at.request;
        let cache = self.cache.as_mut()?;
        // What is beyond the array is for the planner to refuse.
        if lba.0.checked_add(len.0).is_none_or(|end| end > self.pricer.geometry().capacity().0) {
            return None;
        }
        let is_answered = if is_write {
            at.rest = cache.take_in(self.pricer.geometry(), lba, len);
            at.rest.is_empty()
        } else {
            cache.missing(job, lba, len).is_empty()
        };
        is_answered.then(|| cache.hit_ns())
    }

    /// Whether the cache ticks from now on, and did not before.
    pub(super) fn begins_to_tick(&mut self) -> bool {
        self.cache.as_mut().is_some_and(|cache| !std::mem::replace(&mut cache.ticks, true))
    }

    /// The disk operations of a job.
    pub(super) fn price(&mut self, job: u32, at: &mut Job, drives: &mut Drives) -> Result<(), Error> {
        let Request { is_write, .. } = at.request;
        match at.kind {
            Kind::Rebuild(stripe) => self.pricer.rebuild(stripe, &mut at.operations),
            Kind::Commit | Kind::Append => unreachable!("a record has its operations from the start"),
            Kind::Process(_) | Kind::Arrival | Kind::Destage if self.cache.is_some() => {
                self.price_cached(job, at, drives)
            }
            Kind::Process(_) | Kind::Arrival | Kind::Destage => {
                let has_choice = self.pricer.has_copies() && !is_write;
                let members = self.pricer.geometry().members();
                let queues = if has_choice { drives.how_busy(self.first_drive, members) } else { &[] };
                self.pricer.request(&at.request, queues, &mut at.operations)
            }
        }
    }

    /// The disk operations of a client's job or of destaging, with what is in memory.
    fn price_cached(&mut self, job: u32, at: &mut Job, drives: &mut Drives) -> Result<(), Error> {
        let Self { pricer, cache: Some(cache), first_drive, .. } = self else { return Ok(()) };
        let (lba, len) = (Lba(at.rest.start), Sectors(at.rest.end - at.rest.start));
        if at.kind == Kind::Destage {
            let stripes = pricer.stripes(lba, len);
            let contents = cache.take(pricer.geometry(), job, stripes);
            if !contents.extents().is_empty() {
                pricer.write(contents.extents(), contents.cached(), &mut at.operations)?;
            }
        } else if at.request.is_write {
            let contents = cache.look(pricer.geometry(), job, lba, len);
            pricer.write(&[Extent::request(lba, len)], contents.cached(), &mut at.operations)?;
            cache.take_over(pricer.geometry(), job, lba, len);
        } else {
            let members = pricer.geometry().members();
            let queues = if pricer.has_copies() { drives.how_busy(*first_drive, members) } else { &[] };
            return pricer.read(cache.missing(job, lba, len), queues, &mut at.operations);
        }
        if !at.operations.parts.is_empty() {
            pricer.count_methods();
            cache.keep_parity(pricer.geometry(), job, pricer.plan());
        }
        Ok(())
    }

    /// Ends what a job made fly.
    pub(super) fn settle(&mut self, job: u32, at: &Job) {
        let Self { pricer, cache: Some(cache), .. } = self else { return };
        if at.request.is_write {
            cache.settle(pricer.geometry(), job);
        }
        if at.kind == Kind::Destage {
            cache.destaging -= 1;
        }
    }

    /// The sectors that the cache wants written out next.
    pub(super) fn next_destage(&mut self) -> Option<(Lba, Sectors)> {
        let stripes = self.cache.as_mut()?.next_run()?;
        let geometry = self.pricer.geometry();
        let sectors = geometry.stripe_sectors().0;
        let (start, end) = (stripes.start * sectors, (stripes.end * sectors).min(geometry.capacity().0));
        Some((Lba(start), Sectors(end - start)))
    }
}
