//! The members' lists of bad blocks: which of their sectors do not have their content.
//!
//! A sweep that can't compute what a member is to hold takes that into the member's list, and goes on. What is *absent*
//! is never read: to whoever plans it is as if the member failed to read it. What is *unread* is read all the same, as
//! a medium may change its mind; that it is in the list is for administrators. What is written leaves the list.
//!
//! Invariants:
//! - A list that has more in it is durable before anything on record relies on what the sweep made.
//! - A list from which something was taken out is durable only after the content that was written there, and before the
//!   write counts as in place.
//! - One copy of a list is durable before the other is overwritten.
//!
//! It does not know who writes or why.

use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;
use std::rc::Rc;

use uraid_layout::plan::Extent;
use uraid_layout::{Bytes, Cell as Unit, DiskSector, Geometry, Lba, MemberIndex, MemberSet, Spec, StripeId};
use uuid::Uuid;

use super::error::EngineError;
use super::members::Members;
use super::tasks::Waiters;
use crate::array::reshape::lacking::{Listed, listed};
use crate::buf::Buf;
use crate::format::badblocks::{BadBlocks, Full, Lack};
use crate::format::superblock::Superblock;
use crate::lost::{Piece, lost, pieces};

/// See the module.
#[derive(Debug)]
pub(super) struct BadLists {
    /// By slot, and one more for the seat; none for members that are missing from the start.
    places: RefCell<Vec<Option<Place>>>,
    /// Whether any list has anything in it.
    has_any: Cell<bool>,
    /// What clients have lost of each shape, as long as the lists don't change.
    lost: RefCell<Vec<Known>>,
    /// Members that failed to take theirs, and that the array can't do without.
    owed: Cell<MemberSet>,
    /// A task is writing lists.
    is_writing: Cell<bool>,
    written: Waiters,
}

/// What clients have lost of a shape without these members.
type Known = ((Spec, MemberSet), Rc<[Range<Lba>]>);

/// Parity of a stripe that a write can't keep in agreement, and does not have to.
#[derive(Clone, Debug, Default)]
pub(super) struct LostParity {
    pub(super) stripe: StripeId,
    pub(super) cells: Vec<Unit>,
    pub(super) sectors: Vec<(MemberIndex, Range<DiskSector>)>,
}

#[derive(Debug)]
struct Place {
    member: Uuid,
    /// Where the copies are.
    copies: [Bytes; 2],
    list: BadBlocks,
    /// The member does not have it as it is.
    is_dirty: bool,
}

impl BadLists {
    /// Empty lists of the members with these superblocks.
    pub(super) fn new<'a>(superblocks: impl Iterator<Item = Option<&'a Superblock>>) -> Self {
        let places = superblocks.map(|own| own.map(|own| Place::new(own, BadBlocks::default()))).chain([None]);
        Self {
            places: RefCell::new(places.collect()),
            has_any: Cell::new(false),
            lost: RefCell::default(),
            owed: Cell::new(MemberSet::EMPTY),
            is_writing: Cell::new(false),
            written: Waiters::default(),
        }
    }

    /// What the members have, by slot.
    pub(super) fn restart(&self, lists: Vec<BadBlocks>) {
        for (place, list) in self.places.borrow_mut().iter_mut().zip(lists) {
            place.iter_mut().for_each(|place| place.list.clone_from(&list));
        }
        self.look();
    }

    /// Takes another member at a slot, or at the seat beyond them.
    pub(super) fn replace(&self, own: &Superblock, list: BadBlocks) {
        self.places.borrow_mut()[own.slot.index()] = Some(Place::new(own, list));
        self.look();
    }

    /// Lets the members in two places change them.
    pub(super) fn exchange(&self, one: MemberIndex, other: MemberIndex) {
        if !planted!(BadBlocksStay) {
            self.places.borrow_mut().swap(one.index(), other.index());
        }
        self.look();
    }

    /// The array's sectors that nobody has without the `missing` members: see [`lost`](crate::lost::lost).
    pub(super) fn lost(&self, geometry: &Geometry, missing: MemberSet) -> Rc<[Range<Lba>]> {
        let (known, key) = (&mut *self.lost.borrow_mut(), (*geometry.spec(), missing));
        if let Some((_, lost)) = known.iter().find(|(of, _)| *of == key) {
            return Rc::clone(lost);
        }
        let list = |member| self.of(member).map(|list| list.clone()).unwrap_or_default();
        let lost: Rc<[_]> = if self.is_empty() { Rc::default() } else { lost(geometry, missing, &list).into() };
        known.retain(|((_, without), _)| *without == missing);
        known.push((key, Rc::clone(&lost)));
        lost
    }

    /// What the members lack when content is in its places of a shape, but for what of it is `lost`: by slot, and where
    /// more is lost by that. None: nothing changes.
    ///
    /// # Errors
    /// [`EngineError::BadBlocks`].
    pub(super) fn listed(
        &self,
        geometry: &Geometry,
        missing: MemberSet,
        content: &Range<Lba>,
        lost: &[Range<Lba>],
    ) -> Result<Option<Listed>, EngineError> {
        if self.is_empty() && lost.is_empty() {
            return Ok(None);
        }
        let list = |place: &Option<Place>| place.as_ref().map(|place| place.list.clone()).unwrap_or_default();
        let lists = self.places.borrow().iter().map(list).collect();
        let listed = listed(geometry, missing, lists, content, lost);
        listed.map(Some).map_err(|(member, source)| EngineError::BadBlocks { member, source })
    }

    /// Takes lists, by slot, in the place of those that there are.
    pub(super) fn change(&self, lists: Vec<BadBlocks>) {
        for (place, list) in self.places.borrow_mut().iter_mut().zip(lists) {
            let Some(place) = place.as_mut().filter(|place| place.list != list) else { continue };
            (place.list, place.is_dirty) = (list, true);
        }
        self.look();
    }

    /// Takes note of a change.
    fn look(&self) {
        self.lost.borrow_mut().clear();
        self.has_any.set(self.places.borrow().iter().flatten().any(|place| !place.list.is_empty()));
    }

    /// Whether all members have everything.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_any.get()
    }

    /// The list of the member in a slot.
    pub(super) fn of(&self, member: MemberIndex) -> Option<Ref<'_, BadBlocks>> {
        Ref::filter_map(self.places.borrow(), |places| Some(&places.get(member.index())?.as_ref()?.list)).ok()
    }

    /// The runs of sectors within these that are in a member's list for a reason.
    pub(super) fn within(&self, member: MemberIndex, sectors: Range<DiskSector>, lack: Lack) -> Vec<Range<DiskSector>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.of(member).map_or_else(Vec::new, |list| list.within(sectors, lack).collect())
    }

    /// Whether a member lacks some of these sectors for a reason.
    pub(super) fn lacks(&self, member: MemberIndex, sectors: Range<DiskSector>, lack: Lack) -> bool {
        !self.is_empty() && self.of(member).is_some_and(|list| list.within(sectors, lack).next().is_some())
    }

    /// Whether any of these sectors is in the member's list.
    pub(super) fn touches(&self, member: MemberIndex, sectors: &Range<DiskSector>) -> bool {
        !self.is_empty() && self.of(member).is_some_and(|list| list.touches(sectors))
    }

    /// The parity of what is to be written that tells nothing: it is in its member's list, or two of its units are in
    /// theirs, of which one is to be written. A write that can't keep it in agreement does without. None: there is no
    /// such parity, it is to be kept in other columns, what is to be written is of several stripes, or nobody else
    /// would have it, as its member is `missing`.
    pub(super) fn lost_parity(
        &self,
        geometry: &Geometry,
        missing: MemberSet,
        extents: &[Extent],
    ) -> Option<LostParity> {
        let (mut lost, mut kept) = (LostParity::default(), Vec::new());
        let is_first = Cell::new(true);
        let range = |extent: &Extent| extent.lba..Lba(extent.lba.0 + extent.content.len.0);
        for piece in extents.iter().flat_map(|extent| pieces(geometry, range(extent))) {
            let Piece { stripe, cell, start, len } = piece;
            if !is_first.replace(false) && stripe != lost.stripe {
                return None;
            }
            lost.stripe = stripe;
            let place = |cell: Unit| geometry.columns(stripe, cell, start, len);
            let is_bad = |cell: Unit| self.covers(place(cell).0, &place(cell).1);
            let lacks = |other: Unit| other != cell && self.touches(place(other).0, &place(other).1);
            let groups = geometry.map(stripe).groups().iter().filter(|group| group.data.contains(&cell));
            let kept_before = kept.len();
            for group in groups {
                let (member, sectors) = place(group.parity);
                let tells_nothing = is_bad(cell) && group.data.iter().any(|&other| lacks(other));
                if is_bad(group.parity) || tells_nothing {
                    lost.cells.push(group.parity);
                    lost.sectors.push((member, sectors));
                } else {
                    kept.push(group.parity);
                }
            }
            let is_somewhere = kept.len() > kept_before || !missing.contains(geometry.member(cell));
            if !is_somewhere && !planted!(WrittenNowhere) {
                return None;
            }
        }
        let is_apart = !lost.cells.iter().any(|cell| kept.contains(cell));
        (!lost.cells.is_empty() && is_apart && !planted!(ParityNeeded)).then_some(lost)
    }

    /// Whether all of these sectors are in a member's list.
    fn covers(&self, member: MemberIndex, sectors: &Range<DiskSector>) -> bool {
        let runs = [Lack::Absent, Lack::Unread].into_iter().flat_map(|lack| self.within(member, sectors.clone(), lack));
        runs.map(|run| run.end.0 - run.start.0).sum::<u64>() == sectors.end.0 - sectors.start.0
    }

    /// Takes sectors into a member's list.
    ///
    /// # Errors
    /// [`Full`].
    pub(super) fn add(&self, member: MemberIndex, sectors: Range<DiskSector>, lack: Lack) -> Result<(), Full> {
        let mut places = self.places.borrow_mut();
        let Some(place) = places[member.index()].as_mut() else { return Ok(()) };
        let is_in = place.list.within(sectors.clone(), lack).eq([sectors.clone()]);
        place.is_dirty |= !is_in;
        let added = place.list.add(sectors, lack);
        drop(places);
        self.look();
        added
    }

    /// Takes sectors out of a member's list that were written; whether any was in it.
    pub(super) fn remove(&self, member: MemberIndex, sectors: Range<DiskSector>) -> bool {
        self.take_out(member, |list| list.remove(sectors))
    }

    /// Takes sectors out of a member's list that were read after all.
    pub(super) fn note_read(&self, member: MemberIndex, sectors: Range<DiskSector>) {
        if !self.is_empty() {
            self.take_out(member, |list| list.remove_unread(sectors));
        }
    }

    fn take_out(&self, member: MemberIndex, take_out: impl FnOnce(&mut BadBlocks) -> bool) -> bool {
        let has_changed = self.places.borrow_mut()[member.index()].as_mut().is_some_and(|place| {
            let has_changed = take_out(&mut place.list);
            place.is_dirty |= has_changed;
            has_changed
        });
        if has_changed {
            self.look();
        }
        has_changed
    }

    /// Makes the lists durable that have changed, after everything that was written to their members before. Who fails
    /// that is returned.
    pub(super) async fn keep(&self, members: &Members) -> MemberSet {
        while self.is_writing.get() {
            self.written.wait(&members.tasks).await;
        }
        self.owed.set(self.owed.get().minus(members.missing()));
        let dirty = self.dirty().minus(members.missing());
        let dirty = if members.twin().is_some() { dirty } else { dirty.minus(members.seat().into_iter().collect()) };
        if dirty.is_empty() {
            return MemberSet::EMPTY;
        }
        self.is_writing.set(true);
        let failed = self.write(members, dirty).await;
        self.is_writing.set(false);
        self.written.wake(&members.tasks);
        failed
    }

    async fn write(&self, members: &Members, dirty: MemberSet) -> MemberSet {
        // What changes from now on is for the next time: what was taken out up to now is written, and the flush covers
        // that.
        let blocks: Vec<(MemberIndex, [Bytes; 2], Buf)> = {
            let mut places = self.places.borrow_mut();
            let next = |member: MemberIndex| {
                let place = places[member.index()].as_mut().expect("a list that has changed is there");
                place.is_dirty = false;
                (member, place.copies, place.list.encode_next(place.member))
            };
            dirty.iter().map(next).collect()
        };
        let mut failed = MemberSet::EMPTY;
        for copy in 0..2 {
            let is_early = [planted!(BadBlocksEarly), planted!(BadBlocksUnflushed)][copy];
            if !is_early {
                failed = failed.union(members.operations.flush_all(dirty.iter()).await.failed);
            }
            let write = |(member, copies, block): &(MemberIndex, [Bytes; 2], Buf)| {
                (*member, copies[copy], block.lease_read(0..block.len()))
            };
            failed = failed.union(members.operations.write_all(blocks.iter().map(write)).await.failed);
        }
        dirty.iter().filter(|&member| !members.is_seat(member)).for_each(|member| members.note_written(member));
        self.owed.set(self.owed.get().minus(dirty).union(failed));
        failed
    }

    /// Whether a member has failed to take its list: what was taken out of it since does not count as in place.
    pub(super) fn is_owed(&self) -> bool {
        !self.owed.get().is_empty()
    }

    /// The places whose members do not have their list as it is.
    fn dirty(&self) -> MemberSet {
        let places = self.places.borrow();
        let dirty = (0..).zip(places.iter()).filter(|(_, place)| place.as_ref().is_some_and(|place| place.is_dirty));
        let dirty: MemberSet = dirty.map(|(index, _)| MemberIndex(index)).collect();
        dirty.union(self.owed.get())
    }
}

impl Place {
    fn new(own: &Superblock, list: BadBlocks) -> Self {
        let copies = [0, 1].map(|copy| own.areas.bad_blocks_copy(copy));
        Self { member: own.member, copies, list, is_dirty: false }
    }
}
