//! The engine's write-back cache in front of a modelled array: the code that the engine runs decides what is taken in,
//! joined and written out, and what is read again.
//!
//! Pages are real memory, of any content. As in the engine whole parity stripes are written through, and so is what
//! there is no room for; what is dirty is destaged in runs of adjacent stripes, [`DESTAGES_MAX`] at a time. An answer
//! from the cache takes [`CacheSpec::hit_us`]; the memory itself takes no time.

use std::collections::BTreeSet;
use std::ops::Range;

use uraid_io::buf::{Buf, Pool, ZEROS};
use uraid_io::cache::{Cache, Contents, DESTAGES_MAX, FlushLeft, FlushMark, Source, Wanted};
use uraid_io::format::log::record::LogSequence;
use uraid_layout::plan::{Buffer, Extent, Plan};
use uraid_layout::{Bytes, DiskSector, Geometry, Lba, Location, Owner, Sectors};

use super::Error;

/// A write-back cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheSpec {
    /// How much it holds: 1 MiB to 4 GiB.
    pub size: Bytes,
    /// What an answer from it takes, in microseconds.
    pub hit_us: f64,
}

/// The time between two ticks, in nanoseconds.
pub(super) const TICK_NS: u64 = uraid_io::cache::TICK.as_nanos() as u64;

/// What the engine has of it.
#[derive(Debug)]
pub(super) struct WriteBack {
    spec: CacheSpec,
    cache: Cache,
    pool: Pool,
    zeroes: Buf,
    /// What each job has taken, by its number.
    contents: Vec<Contents>,
    pub(super) destaging: usize,
    pub(super) ticks: bool,
    /// The newest record of a journal, and those that are still needed.
    newest: LogSequence,
    needed: BTreeSet<LogSequence>,
}

const PAGE_BYTES: u64 = 4096;

impl WriteBack {
    /// A cache; where it `has_journal`, flushes put pages there.
    pub(super) fn new(spec: CacheSpec, geometry: &Geometry, has_journal: bool) -> Result<Self, Error> {
        let error = |field, value, rule| Err(Error::Workload { field, value, rule });
        if !(1 << 20..=4 << 30).contains(&spec.size.0) {
            return error("cache size", spec.size.0 as f64, "1 MiB to 4 GiB");
        }
        if !(0.001..=1e9).contains(&spec.hit_us) {
            return error("hit_us", spec.hit_us, "0.001 to 10^9");
        }
        if !geometry.chunk().bytes().0.is_multiple_of(PAGE_BYTES) {
            return error("chunk", geometry.chunk().bytes().0 as f64, "a multiple of 4 KiB where there is a cache");
        }
        // Requests have their memory from the pool, too.
        let pool = Pool::new(Bytes(spec.size.0 * 2));
        let zeroes = Pool::new(Bytes(PAGE_BYTES)).try_alloc(Bytes(PAGE_BYTES)).expect("a page fits a pool of one");
        let mut cache = Cache::new(geometry, pool.clone(), spec.size);
        if has_journal {
            cache.journal_mut().turn_on();
        }
        Ok(Self {
            spec,
            cache,
            pool,
            zeroes,
            contents: Vec::new(),
            destaging: 0,
            ticks: false,
            newest: LogSequence(0),
            needed: BTreeSet::new(),
        })
    }

    pub(super) fn hit_ns(&self) -> u64 {
        (self.spec.hit_us * 1e3) as u64
    }

    /// Takes a write in as far as it goes; what is to be written through.
    pub(super) fn take_in(&mut self, geometry: &Geometry, lba: Lba, len: Sectors) -> Range<u64> {
        self.cache.note_activity();
        self.cache.reclaim(len.bytes());
        let Some(buf) = self.pool.try_alloc(len.bytes()) else { return lba.0..lba.0 + len.0 };
        let (mut start, mut end) = (lba.0, lba.0 + len.0);
        let stripe = geometry.stripe_sectors().0;
        let (first, last) = (start.next_multiple_of(stripe), end / stripe * stripe);
        let mut take = |from: u64, to: u64| {
            let byte = |at: u64| usize::try_from((at - lba.0) * 512).expect("a buffer fits the address space");
            from < to && self.cache.write(Lba(from), &buf, byte(from)..byte(to))
        };
        if first >= last {
            return if take(start, end) { end..end } else { start..end };
        }
        if take(start, first) {
            start = first;
        }
        if take(last, end) {
            end = last;
        }
        start..end
    }

    /// What a read does not find in memory.
    pub(super) fn missing(&mut self, job: u32, lba: Lba, len: Sectors) -> &[Extent] {
        self.cache.note_activity();
        let index = self.slot(job);
        let missing = self.contents[index].missing();
        match self.pool.try_alloc(len.bytes()) {
            Some(mut buf) if !self.cache.is_empty() => self.cache.read(lba, len, &mut buf, Bytes(0), missing),
            _ => missing.push(Extent::request(lba, len)),
        }
        self.contents[index].extents()
    }

    /// The next parity stripes to write out.
    pub(super) fn next_run(&mut self) -> Option<Range<u64>> {
        if self.destaging == DESTAGES_MAX {
            return None;
        }
        let (stripes, _) = self.cache.next_run()?;
        self.destaging += 1;
        Some(stripes)
    }

    /// Makes what is dirty of stripes fly, whose locks the job holds.
    pub(super) fn take(&mut self, geometry: &Geometry, job: u32, stripes: Range<u64>) -> &Contents {
        let index = self.slot(job);
        self.cache.take(geometry, stripes, &mut self.contents[index]);
        &self.contents[index]
    }

    /// What is in memory that a write-through can use.
    pub(super) fn look(&mut self, geometry: &Geometry, job: u32, lba: Lba, len: Sectors) -> &Contents {
        let index = self.slot(job);
        self.cache.look(geometry, lba, len, &mut self.contents[index]);
        &self.contents[index]
    }

    /// Lets a write-through take the place of what is in memory.
    pub(super) fn take_over(&mut self, geometry: &Geometry, job: u32, lba: Lba, len: Sectors) {
        let index = self.slot(job);
        let keeps = len.0 < geometry.stripe_sectors().0;
        let source = Source::Zeroes(&self.zeroes);
        self.cache.take_over(geometry, (lba, len), source, keeps, &mut self.contents[index]);
    }

    /// Keeps the parity that a plan computes.
    pub(super) fn keep_parity(&mut self, geometry: &Geometry, job: u32, plan: &Plan) {
        let index = self.slot(job);
        let contents = &self.contents[index];
        if !contents.flies() {
            return;
        }
        let most = Sectors(ZEROS.len() as u64 / 512);
        for io in plan.writes() {
            let mut sector = io.sector.0;
            for slice in plan.slices(io) {
                let end = sector + slice.len.0;
                while slice.buffer == Buffer::Scratch && sector < end {
                    let at = Location { member: io.member, sector: DiskSector(sector) };
                    let Some(Owner::Parity { stripe, group, offset }) = geometry.owner(at) else { break };
                    let len = (geometry.chunk().0 - offset.0).min(end - sector).min(most.0);
                    let bytes = usize::try_from(len * 512).expect("at most the zeros there are");
                    self.cache.put_parity(contents, stripe, group, offset, &ZEROS[..bytes]);
                    sector += len;
                }
                sector = end;
            }
        }
    }

    /// What a flush that begins now is about.
    pub(super) fn flush(&self) -> FlushMark {
        self.cache.journal().mark()
    }

    /// What a flush is still to do.
    pub(super) fn flush_left(&self, mark: FlushMark) -> FlushLeft {
        self.cache.journal().left(mark)
    }

    /// Has what is not in the journal go there: the number of the batch, and how much it is.
    pub(super) fn begin_record(&mut self) -> (u64, Sectors) {
        let mut pages = Vec::new();
        let batch = self.cache.journal_mut().take(usize::MAX, Wanted::Fresh, &mut pages);
        (batch, Sectors(pages.iter().map(|(_, page)| page.len() as u64 / 512).sum()))
    }

    /// A batch is in the journal.
    pub(super) fn end_record(&mut self, batch: u64) {
        self.newest.0 += 1;
        self.needed.insert(self.newest);
        self.cache.journal_mut().journaled(batch, Some(self.newest));
        self.trim();
    }

    /// Records that nobody needs any more are none, once there are no older ones.
    fn trim(&mut self) {
        while let Some(record) = self.cache.journal_mut().released() {
            self.needed.remove(&record);
        }
        let upto = self.needed.first().map_or(self.newest, |oldest| LogSequence(oldest.0 - 1));
        self.cache.journal_mut().marked(upto);
    }

    /// Ends a job's flight.
    pub(super) fn settle(&mut self, geometry: &Geometry, job: u32) {
        let index = self.slot(job);
        self.cache.settle(geometry, &mut self.contents[index], true);
        self.contents[index].clear();
        self.trim();
    }

    /// Whether ticks are to go on.
    pub(super) fn tick(&mut self) -> bool {
        self.cache.tick();
        self.ticks = self.cache.is_dirty();
        self.ticks
    }

    /// What went through it.
    pub(super) fn traffic(&self) -> uraid_io::cache::Traffic {
        self.cache.traffic()
    }

    pub(super) fn spec(&self) -> CacheSpec {
        self.spec
    }

    fn slot(&mut self, job: u32) -> usize {
        let index = job as usize;
        if self.contents.len() <= index {
            self.contents.resize_with(index + 1, Contents::default);
        }
        index
    }
}
