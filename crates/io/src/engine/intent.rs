//! Write intent: no region is written before its bit is durably set on all present members.
//!
//! A task holds its regions from before its writes until their end. Bits that are missing are set in rounds: a write of
//! the blocks that changed, then a flush, for everybody who waits; whoever comes meanwhile is in the next. A task whose
//! bits are set costs nothing. A bit is cleared when nobody has held its region for a while, and a flush has covered
//! what was written there; that is written when time passes, and nobody waits for it.
//!
//! While members are missing or being rebuilt no bit is cleared: the bits say where what they hold is out of date. An
//! array with a log has a bitmap for that alone. As long as every member has everything, its bits are kept in memory
//! only, and nobody waits for them. What is on the members then is of another [`Seal`], and stands for bits that are
//! all set. When it is on record that a member lacks something, the bits are written under the new seal; from then on a
//! bit that is set later is waited for.

use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;

use uraid_layout::{Bytes, Geometry, MemberIndex, MemberSet};

use super::error::EngineError;
use super::flusher::Flusher;
use super::members::Members;
use super::record::{Record, Writes, bitmap_writes};
use super::tasks::Waiters;
use crate::format::bitmap::{Bitmap, RegionId, Regions, Seal};
use crate::format::superblock::Consistency;

/// How long nobody holds a region before its bit is cleared, in ticks: setting it again costs a flush.
const QUIET_TICKS: u32 = 50;

/// How often such regions are looked for, in ticks.
const SWEEP_TICKS: u32 = 10;

/// The intent of an array that may have a bitmap; see the module.
#[derive(Debug)]
pub(super) struct Intent {
    bits: RefCell<Option<Bits>>,
    /// Somebody wants the members to have what is wanted.
    is_demanded: Cell<bool>,
    /// A round has ended, or bits were granted.
    changed: Waiters,
}

/// A task's hold on the regions that it writes; it ends when this is dropped, once the writes are over.
#[derive(Debug)]
pub(super) struct Hold<'a> {
    intent: &'a Intent,
    flusher: &'a Flusher,
    members: &'a Members,
    regions: Range<u32>,
}

#[derive(Debug)]
struct Bits {
    regions: Regions,
    /// What the members' bitmap belongs to; none: it is not written.
    seal: Option<Seal>,
    /// The bits that members are to have.
    wanted: Bitmap,
    /// Those that all present members durably have, and others that what they have stands for.
    durable: Bitmap,
    /// Those that the present round writes, while there is one.
    flying: Option<Bitmap>,
    /// The blocks in which members do not have what is wanted.
    stale: Vec<bool>,
    holds: Vec<Held>,
    ticks: u32,
}

/// What keeps a region's bit set.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Tasks that write the region, or are about to.
    holders: u32,
    /// When the last of them ended.
    tick: u32,
    /// The flush that covers what they wrote.
    flush: u64,
}

impl Intent {
    /// The intent of an array with a bitmap or a log; without redundancy there is none. The bits of an array that is
    /// clean and whole are none, those of another all.
    pub(super) fn of(geometry: &Geometry, record: &Record) -> Self {
        let superblock = record.any();
        // Between two shapes no region is where it was: whoever is missing then lacks everything.
        let is_placed = superblock.reshape.is_none();
        let has_bitmap = is_placed && superblock.consistency != Consistency::None && geometry.tolerance() > 0;
        let regions = Regions::new(geometry);
        let is_known = record.is_clean() && record.is_whole();
        let set = || if is_known { Bitmap::empty(regions) } else { Bitmap::full(regions) };
        let bits = has_bitmap.then(|| Bits::new(superblock.seal(), set()));
        Self { bits: RefCell::new(bits), is_demanded: Cell::new(false), changed: Waiters::default() }
    }

    /// Has the bits of `set` taken to be set; what members have is not known.
    ///
    /// # Panics
    /// When the array has no bitmap, or one of other regions.
    pub(super) fn restart(&self, set: Bitmap) {
        let bits = &mut *self.bits.borrow_mut();
        let bits = bits.as_mut().expect("the array has a bitmap");
        assert_eq!(bits.regions, set.regions(), "the bitmap is of this array");
        *bits = Bits::new(bits.seal, set);
    }

    /// What has to be taken to be set on the members, where there is a bitmap.
    pub(super) fn wanted(&self) -> Option<Ref<'_, Bitmap>> {
        Ref::filter_map(self.bits.borrow(), |bits| bits.as_ref().map(|bits| &bits.wanted)).ok()
    }

    /// Holds the regions of stripes, and waits until their bits are durably set.
    ///
    /// # Errors
    /// [`EngineError::Frozen`].
    pub(super) async fn hold<'a>(
        &'a self,
        stripes: &Range<u64>,
        members: &'a Members,
        flusher: &'a Flusher,
    ) -> Result<Option<Hold<'a>>, EngineError> {
        members.check_frozen()?;
        let regions = {
            let bits = &mut *self.bits.borrow_mut();
            let Some(bits) = bits else { return Ok(None) };
            let regions = bits.regions.of_all(stripes);
            let regions = if planted!(BitOfFirstRegion) { regions.start..regions.start + 1 } else { regions };
            regions.clone().for_each(|region| bits.hold(RegionId(region)));
            regions
        };
        let hold = Hold { intent: self, flusher, members, regions };
        let is_unrecorded = [planted!(BitFailureUnrecorded), planted!(FailureUnrecorded)].contains(&true);
        loop {
            if !self.has_durably(&hold.regions) && !planted!(BitNotAwaited) {
                self.is_demanded.set(true);
                self.changed.wait(&members.tasks).await;
            } else if !members.record().has_failures_on_record() && !is_unrecorded {
                // A member that could not be marked must not count while the others are written.
                members.wait_record().await;
            } else {
                return Ok(Some(hold));
            }
            members.check_frozen()?;
        }
    }

    fn has_durably(&self, regions: &Range<u32>) -> bool {
        let bits = self.bits.borrow();
        let bits = bits.as_ref().expect("what is held is there");
        regions.clone().all(|region| bits.durable.contains(RegionId(region)))
    }

    /// Whether a round is to begin, as members do not have what is wanted.
    pub(super) fn wants_round(&self) -> bool {
        let bits = self.bits.borrow();
        self.is_demanded.get() && bits.as_ref().is_some_and(|bits| bits.flying.is_none() && bits.is_stale())
    }

    /// Whether the bitmap is being written, or is about to be.
    fn is_busy(&self) -> bool {
        let is_due = |bits: &Bits| self.is_demanded.get() && bits.is_stale();
        self.bits.borrow().as_ref().is_some_and(|bits| bits.flying.is_some() || is_due(bits))
    }

    /// Waits, once, where the bitmap is being written; whether it was.
    pub(super) async fn wait_idle(&self, members: &Members) -> bool {
        let is_busy = self.is_busy() && !members.is_frozen();
        if is_busy {
            self.changed.wait(&members.tasks).await;
        }
        is_busy
    }

    /// Writes what is wanted to the members, round by round, and lets those go on who wait for it. Who can't be written
    /// has failed, as with any write.
    pub(super) async fn keep(&self, members: &Members) {
        self.is_demanded.set(false);
        loop {
            let offset = |member| members.record().bitmap_offset(member);
            let begun = if members.is_frozen() { None } else { self.begin_round(members.present(), offset) };
            let Some((writes, sets_bits)) = begun else { break };
            members.round(writes, || members.present(), sets_bits && !planted!(BitUnflushed)).await;
            if let Some(bits) = &mut *self.bits.borrow_mut() {
                bits.end_round();
            }
            self.changed.wake(&members.tasks);
        }
        self.changed.wake(&members.tasks);
    }

    /// Begins a round: what is written, and whether it sets bits, so that somebody relies on it. Where bits are only
    /// cleared, it does not matter when that becomes durable.
    fn begin_round(&self, present: MemberSet, offset: impl Fn(MemberIndex) -> Bytes) -> Option<(Writes, bool)> {
        let bits = &mut *self.bits.borrow_mut();
        let bits = bits.as_mut().filter(|bits| bits.is_stale())?;
        let seal = bits.seal.expect("what is stale is written");
        let Bits { wanted, stale, .. } = bits;
        let areas: Vec<_> = present.iter().map(|member| (member, offset(member))).collect();
        let blocks = (0..stale.len()).filter(|&block| std::mem::take(&mut stale[block]));
        let writes = bitmap_writes(wanted, seal, blocks, &areas);
        bits.flying = Some(bits.wanted.clone());
        Some((writes, bits.flying.as_ref() != Some(&bits.durable)))
    }

    /// Takes note of what is on record now: under another seal what the members have stands for bits that are all set,
    /// or counts for nothing.
    pub(super) fn reseal(&self, seal: Option<Seal>, members: &Members) {
        let bits = &mut *self.bits.borrow_mut();
        let Some(bits) = bits.as_mut().filter(|bits| bits.seal != seal) else { return };
        match seal {
            Some(_) => bits.durable.clone_from(&bits.wanted),
            None => bits.durable = Bitmap::full(bits.regions),
        }
        bits.stale.fill(true);
        bits.seal = seal;
        self.is_demanded.set(true);
        self.changed.wake(&members.tasks);
    }

    /// Has all of the bitmap written again: a member has joined.
    pub(super) fn rewrite(&self) {
        if let Some(bits) = self.bits.borrow_mut().as_mut().filter(|bits| bits.seal.is_some()) {
            bits.stale.fill(true);
            bits.durable = Bitmap::empty(bits.regions);
        }
        self.is_demanded.set(true);
    }

    /// Notes that time has passed: bits of regions that are quiet are cleared. True: a flush is to cover first what was
    /// written there.
    pub(super) fn tick(&self, members: &Members, flusher: &Flusher) -> bool {
        let may_clear = may_clear(members);
        let bits = &mut *self.bits.borrow_mut();
        let Some(bits) = bits else { return false };
        bits.ticks = bits.ticks.wrapping_add(1);
        // In a round a bit that is on its way to the members must not be taken back.
        if !may_clear || bits.flying.is_some() || !bits.ticks.is_multiple_of(SWEEP_TICKS) {
            return false;
        }
        self.is_demanded.set(true);
        bits.sweep(flusher.flushed()) && bits.seal.is_some()
    }

    /// Whether bits are set that will be cleared as time passes.
    pub(super) fn is_settling(&self, members: &Members) -> bool {
        // Bits in memory may stay as long as nothing else makes time pass.
        let is_kept = |bits: &Bits| bits.seal.is_some() && !bits.wanted.is_empty();
        may_clear(members) && self.bits.borrow().as_ref().is_some_and(is_kept)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let flush = self.flusher.covering(self.members);
        let bits = &mut *self.intent.bits.borrow_mut();
        let bits = bits.as_mut().expect("what is held is there");
        self.regions.clone().for_each(|region| bits.release(RegionId(region), flush));
    }
}

impl Bits {
    /// Bits of which those of `set` have to be taken to be set; what members have is not known.
    fn new(seal: Option<Seal>, set: Bitmap) -> Self {
        let regions = set.regions();
        let durable = if seal.is_none() { Bitmap::full(regions) } else { Bitmap::empty(regions) };
        let (stale, holds) = (vec![true; regions.blocks()], vec![Held::default(); regions.count()]);
        Self { regions, seal, durable, flying: None, wanted: set, stale, holds, ticks: 0 }
    }

    fn is_stale(&self) -> bool {
        self.seal.is_some() && self.stale.contains(&true)
    }

    /// Holds a region: its bit is not cleared from now on.
    fn hold(&mut self, region: RegionId) {
        self.holds[region.index()].holders += 1;
        if self.wanted.insert(region) {
            self.stale[self.regions.block(region)] = true;
        }
    }

    /// Ends a hold; `flush` is the one that covers what was written under it.
    fn release(&mut self, region: RegionId, flush: u64) {
        let hold = &mut self.holds[region.index()];
        hold.holders = hold.holders.checked_sub(1).expect("a hold that ends has begun");
        (hold.tick, hold.flush) = (self.ticks, flush);
    }

    /// Ends a round; where the members' bitmap has become nobody's meanwhile, it says nothing.
    fn end_round(&mut self) {
        let flying = self.flying.take().expect("a round that ends has begun");
        if self.seal.is_some() {
            self.durable = if planted!(BitWantedCounts) { self.wanted.clone() } else { flying };
        }
    }

    /// Clears the bits of regions that were quiet for a while and whose writes the flush numbered `flushed` covers;
    /// true: there are such regions that it does not cover.
    fn sweep(&mut self, flushed: u64) -> bool {
        let mut needs_flush = false;
        let Self { wanted, durable, stale, holds, regions, ticks, seal, .. } = self;
        let quiet = |region: &RegionId| {
            let hold = holds[region.index()];
            (hold.holders == 0 || planted!(BitClearedHeld)) && ticks.wrapping_sub(hold.tick) >= QUIET_TICKS
        };
        let quiet: Vec<RegionId> = wanted.iter().filter(quiet).collect();
        for region in quiet {
            if holds[region.index()].flush > flushed && !planted!(BitClearedUnflushed) {
                needs_flush = true;
                continue;
            }
            wanted.remove(region);
            // What is on the members stands for it all the same where it is of another seal.
            if seal.is_some() && !planted!(BitClearedCounts) {
                durable.remove(region);
            }
            stale[regions.block(region)] = true;
        }
        needs_flush
    }
}

/// Whether everything that was written is as good on all members as on any.
fn may_clear(members: &Members) -> bool {
    let record = members.record();
    let is_rebuilding = planted!(BitClearedRebuilding) && record.missing().is_empty();
    let is_whole = record.is_whole() || planted!(BitClearedDegraded) || is_rebuilding;
    !members.is_frozen() && !members.is_suspect() && is_whole
}
