//! Blank regions: those of a new array that nobody has written to. They are zeros to clients, whatever members hold.
//!
//! Before anything is written to a blank region, all of it is made zeros on the members, and then their map says so
//! ([`initialise`](super::ops::initialise)). That goes on in the background, too, until none is left.
//!
//! Invariants:
//! - Nothing of a blank region is read from members or taken into memory, and nothing is written there but the zeros
//!   that make it.
//! - A bit of the map is written only when the zeros are durable on all members that are there.
//! - Whoever writes to a region waits until its bit is written to all of them. So whatever makes content durable on a
//!   member makes the bit durable there, too.
//! - When the array is opened for writing, all members have the same map ([`assemble`](crate::array)).
//!
//! It does not know who writes or why.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use uraid_layout::{Bytes, Geometry, Lba, MemberIndex, Sectors, StripeId};

use super::members::Members;
use super::record::{Writes, bitmap_writes};
use super::tasks::{Tasks, Waiters};
use crate::format::bitmap::{Bitmap, RegionId, Regions, Seal};
use crate::format::superblock::{Allocation, Blank, Superblock};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Blanks {
    /// None: nothing is blank.
    map: RefCell<Option<Map>>,
    is_saving: Cell<bool>,
    /// A region was made, or given up, or the map was written.
    changed: Waiters,
}

#[derive(Debug)]
struct Map {
    seal: Seal,
    allocation: Allocation,
    /// The regions that are not blank, as all members that are there say.
    made: Bitmap,
    /// Those, and others that are durably zeros.
    zeroed: Bitmap,
    /// Those that somebody is making.
    claimed: Bitmap,
    /// The blocks in which members do not have what is zeroed.
    stale: Vec<bool>,
}

/// What has to be done before stripes are written.
#[derive(Debug)]
pub(super) enum Claim<'a> {
    /// Nothing.
    Made,
    /// Somebody else is making a region.
    Busy,
    /// This is to be made.
    Making(Making<'a>),
}

/// Blank regions that a task makes, until this is dropped.
#[derive(Debug)]
pub(super) struct Making<'a> {
    blanks: &'a Blanks,
    tasks: &'a Tasks,
    regions: Range<u32>,
    stripes: Range<StripeId>,
}

impl Blanks {
    /// The regions of an array that are not blank, as they were found on its members.
    pub(super) fn restart(&self, own: &Superblock, made: Bitmap) {
        let (Some(Blank { allocation, .. }), Some((seal, regions))) = (own.blank, own.blank_map()) else { return };
        assert_eq!(regions, made.regions(), "the map is of this array");
        let (zeroed, stale) = (made.clone(), vec![false; regions.blocks()]);
        let map = Map { seal, allocation, made, zeroed, claimed: Bitmap::empty(regions), stale };
        *self.map.borrow_mut() = Some(map);
    }

    /// The regions that are not blank, where any are.
    pub(super) fn map(&self) -> Option<Bitmap> {
        self.map.borrow().as_ref().map(|map| map.made.clone())
    }

    /// Whether any region is blank.
    pub(super) fn has_any(&self) -> bool {
        self.map.borrow().is_some()
    }

    /// Whether zeros need no space on the members.
    pub(super) fn may_punch(&self) -> bool {
        self.map.borrow().as_ref().is_some_and(|map| map.allocation == Allocation::Sparse)
    }

    /// The regions, where any are blank.
    pub(super) fn regions(&self) -> Option<Regions> {
        self.map.borrow().as_ref().map(|map| map.made.regions())
    }

    /// How much of an array is not blank; none where nothing is.
    pub(super) fn made(&self, geometry: &Geometry) -> Option<Sectors> {
        let map = self.map.borrow();
        let Map { made, .. } = map.as_ref()?;
        let (regions, size) = (made.regions(), geometry.stripe_sectors().0);
        // The last region may be shorter than the others, and its last stripe.
        let last = RegionId(u32::try_from(regions.count() - 1).expect("regions are few"));
        let all = (made.len() as u64 * size) << regions.shift();
        let beyond = ((regions.count() as u64 * size) << regions.shift()) - geometry.capacity().0;
        Some(Sectors(all - if made.contains(last) { beyond } else { 0 }))
    }

    /// Whether what begins at an address is blank, and up to where it is as that is; at most up to `end`.
    pub(super) fn run(&self, geometry: &Geometry, from: Lba, end: Lba) -> (bool, Lba) {
        let map = self.map.borrow();
        let Some(map) = map.as_ref() else { return (false, end) };
        let stripe = |lba: Lba| geometry.split(lba).0;
        let mut at = map.made.regions().of(stripe(from));
        let (is_blank, last) = (map.is_blank(at), map.made.regions().of(stripe(Lba(end.0 - 1))));
        while at < last && map.is_blank(RegionId(at.0 + 1)) == is_blank {
            at.0 += 1;
        }
        let next = map.made.regions().stripes(at).end.0.saturating_mul(geometry.stripe_sectors().0);
        (is_blank, Lba(next.min(end.0)))
    }

    /// Whether any of these sectors, of which there are some, is blank.
    pub(super) fn touches(&self, geometry: &Geometry, range: &Range<Lba>) -> bool {
        self.has_any() && self.run(geometry, range.start, range.end) != (false, range.end)
    }

    /// The first stripe from one on that is not blank; `end` where there is none before.
    pub(super) fn next_made(&self, from: u64, end: u64) -> u64 {
        self.next(from, end, |map, region| !map.is_blank(region))
    }

    /// The first stripe from one on that is blank; `end` where there is none before.
    pub(super) fn next_blank(&self, from: u64, end: u64) -> u64 {
        self.next(from, end, Map::is_blank)
    }

    fn next(&self, from: u64, end: u64, is_wanted: impl Fn(&Map, RegionId) -> bool) -> u64 {
        let map = self.map.borrow();
        let Some(map) = map.as_ref() else {
            // As if all regions were made.
            return from;
        };
        let (regions, mut at) = (map.made.regions(), from);
        while at < end && !is_wanted(map, regions.of(StripeId(at))) {
            at = regions.stripes(regions.of(StripeId(at))).end.0;
        }
        at.clamp(from, end.max(from))
    }

    /// Claims the first blank regions among those of stripes.
    pub(super) fn claim<'a>(&'a self, stripes: Range<u64>, tasks: &'a Tasks) -> Claim<'a> {
        let map = &mut *self.map.borrow_mut();
        let Some(map) = map else { return Claim::Made };
        let regions = map.made.regions();
        let mut blank = regions.of_all(&stripes).skip_while(|&region| map.made.contains(RegionId(region)));
        let Some(first) = blank.next() else { return Claim::Made };
        if map.zeroed.contains(RegionId(first)) || map.claimed.contains(RegionId(first)) {
            return Claim::Busy;
        }
        let is_free = |map: &Map, region| !map.zeroed.contains(region) && !map.claimed.contains(region);
        let end = 1 + blank.take_while(|&region| is_free(map, RegionId(region))).last().unwrap_or(first);
        for region in first..end {
            let _ = map.claimed.insert(RegionId(region));
        }
        let stripes = regions.stripes(RegionId(first)).start..regions.stripes(RegionId(end - 1)).end;
        Claim::Making(Making { blanks: self, tasks, regions: first..end, stripes })
    }

    /// Waits until something changes.
    pub(super) async fn wait(&self, tasks: &Tasks) {
        self.changed.wait(tasks).await;
    }

    /// Has all of the map written with what is saved next: there is a new member.
    pub(super) fn rewrite(&self) {
        if let Some(map) = &mut *self.map.borrow_mut() {
            map.stale.fill(true);
        }
    }

    /// Writes the map to all members that are there. Who can't be written has failed, as with any write.
    pub(super) async fn save(&self, members: &Members) {
        while self.is_saving.get() {
            self.changed.wait(&members.tasks).await;
        }
        let place = |member| members.record().blank_map_offset(member);
        let begun = if members.is_frozen() { None } else { self.begin_save(members, place) };
        let Some((zeroed, writes)) = begun else { return };
        self.is_saving.set(true);
        members.round(writes, || members.present(), false).await;
        self.is_saving.set(false);
        if let Some(map) = self.map.borrow_mut().as_mut().filter(|_| !members.is_frozen()) {
            map.made = zeroed;
        }
        self.changed.wake(&members.tasks);
    }

    fn begin_save(&self, members: &Members, place: impl Fn(MemberIndex) -> Bytes) -> Option<(Bitmap, Writes)> {
        let map = &mut *self.map.borrow_mut();
        let map = map.as_mut().filter(|map| map.stale.contains(&true))?;
        let Map { seal, zeroed, stale, .. } = map;
        let areas: Vec<_> = members.present().iter().map(|member| (member, place(member))).collect();
        let blocks = (0..stale.len()).filter(|&block| std::mem::take(&mut stale[block]));
        Some((zeroed.clone(), bitmap_writes(zeroed, *seal, blocks, &areas)))
    }

    /// The writes of all of the map to somebody who is none of the members yet, with this superblock.
    pub(super) fn writes_to(&self, seat: MemberIndex, own: &Superblock) -> Writes {
        let map = self.map.borrow();
        let area = [(seat, own.areas.blank_map())];
        map.as_ref().map_or_else(Writes::new, |map| bitmap_writes(&map.zeroed, map.seal, 0..map.stale.len(), &area))
    }

    /// Forgets the map when no region is blank any more; true: that has just become so.
    pub(super) fn end(&self) -> bool {
        let map = &mut *self.map.borrow_mut();
        let ends = map.as_ref().is_some_and(|map| map.made.is_full() || planted!(BlankForgotten) && map.made.len() > 1);
        if ends {
            *map = None;
        }
        ends
    }
}

impl Map {
    fn is_blank(&self, region: RegionId) -> bool {
        !self.made.contains(region)
    }
}

impl Making<'_> {
    /// The parity stripes of the regions.
    pub(super) fn stripes(&self) -> Range<StripeId> {
        self.stripes.clone()
    }

    /// Notes that the zeros are durable.
    pub(super) fn note_zeroed(&self) {
        let map = &mut *self.blanks.map.borrow_mut();
        let Some(map) = map else { return };
        for region in self.regions.clone().map(RegionId) {
            let _ = map.zeroed.insert(region);
            map.stale[map.made.regions().block(region)] = true;
        }
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if let Some(map) = &mut *self.blanks.map.borrow_mut() {
            self.regions.clone().for_each(|region| map.claimed.remove(RegionId(region)));
        }
        self.blanks.changed.wake(self.tasks);
    }
}
