//! The cache's part of the event loop: what it answers, what it writes out, and when it ticks.

use uraid_layout::plan::Extent;
use uraid_layout::{Lba, Sectors};

use super::super::Error;
use super::super::cache::{TICK_NS, WriteBack};
use super::super::workload::Request;
use super::job::Kind;
use super::{Drive, Event, System, Volume, index_u32};

impl System {
    /// Gives the cache a client's job, if its array has one; whether the answer is under way and nothing is left for
    /// the disks.
    pub(super) fn ask_cache(&mut self, job: u32) -> bool {
        let at = self.jobs.at_mut(job);
        let Request { volume, is_write, lba, len } = at.request;
        let Volume { pricer, cache: Some(cache), .. } = &mut self.volumes[volume] else { return false };
        // What is beyond the array is for the planner to refuse.
        if lba.0.checked_add(len.0).is_none_or(|end| end > pricer.geometry().capacity().0) {
            return false;
        }
        let is_answered = if is_write {
            at.rest = cache.take_in(pricer.geometry(), lba, len);
            at.rest.is_empty()
        } else {
            cache.missing(job, lba, len).is_empty()
        };
        let hit_ns = cache.hit_ns();
        if is_answered {
            self.push_event(self.now + hit_ns, Event::Reply(job));
        }
        self.start_ticks(volume);
        is_answered
    }

    /// The disk operations of a client's job or of destaging, with what is in memory; nothing where the array has no
    /// cache.
    pub(super) fn price_cached(&mut self, job: u32) -> Result<bool, Error> {
        let at = self.jobs.at_mut(job);
        let Request { volume, is_write, .. } = at.request;
        let Volume { pricer, cache: Some(cache), first_drive, .. } = &mut self.volumes[volume] else {
            return Ok(false);
        };
        let (lba, len) = (Lba(at.rest.start), Sectors(at.rest.end - at.rest.start));
        if at.kind == Kind::Destage {
            let stripes = pricer.stripes(lba, len);
            let contents = cache.take(pricer.geometry(), job, stripes);
            if !contents.extents().is_empty() {
                pricer.write(contents.extents(), contents.cached(), &mut at.operations)?;
            }
        } else if is_write {
            let contents = cache.look(pricer.geometry(), job, lba, len);
            pricer.write(&[Extent::request(lba, len)], contents.cached(), &mut at.operations)?;
            cache.take_over(pricer.geometry(), job, lba, len);
        } else {
            let first = *first_drive as usize;
            let drives = &self.drives[first..first + pricer.geometry().members()];
            self.busy.clear();
            self.busy.extend(drives.iter().map(Drive::how_busy));
            let queues = if pricer.has_copies() { &self.busy[..] } else { &[] };
            return pricer.read(cache.missing(job, lba, len), queues, &mut at.operations).map(|()| true);
        }
        if !at.operations.parts.is_empty() {
            pricer.count_methods();
            cache.keep_parity(pricer.geometry(), job, pricer.plan());
        }
        Ok(true)
    }

    /// Ends what a job made fly.
    pub(super) fn settle(&mut self, job: u32) {
        let Request { volume, is_write, .. } = self.jobs.at(job).request;
        let is_destage = self.jobs.at(job).kind == Kind::Destage;
        let Volume { pricer, cache: Some(cache), .. } = &mut self.volumes[volume] else { return };
        if is_write {
            cache.settle(pricer.geometry(), job);
        }
        if is_destage {
            cache.destaging -= 1;
        }
    }

    /// Begins to write out what the caches want written.
    pub(super) fn destage(&mut self) -> Result<(), Error> {
        for index in 0..self.volumes.len() {
            while let Some(stripes) = self.volumes[index].cache.as_mut().and_then(WriteBack::next_run) {
                let geometry = self.volumes[index].pricer.geometry();
                let sectors = geometry.stripe_sectors().0;
                let (start, end) = (stripes.start * sectors, (stripes.end * sectors).min(geometry.capacity().0));
                let request = Request { volume: index, is_write: true, lba: Lba(start), len: Sectors(end - start) };
                let job = self.jobs.add(Kind::Destage, request, self.now);
                if self.lock(job) {
                    self.begin(job)?;
                }
            }
        }
        Ok(())
    }

    /// Lets a cache know that time has passed, for as long as something is dirty.
    pub(super) fn tick(&mut self, volume: u32) {
        let goes_on = self.volumes[volume as usize].cache.as_mut().is_some_and(WriteBack::tick);
        if goes_on {
            self.push_event(self.now + TICK_NS, Event::Tick(volume));
        }
    }

    fn start_ticks(&mut self, volume: usize) {
        let Some(cache) = &mut self.volumes[volume].cache else { return };
        if !std::mem::replace(&mut cache.ticks, true) {
            self.push_event(self.now + TICK_NS, Event::Tick(index_u32(volume)));
        }
    }
}
