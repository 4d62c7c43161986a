//! Work that has a plan: what it is for, which part of it is being done, and what it has to do without.
//!
//! A transfer goes through a command part by part. A part is planned as often as it takes: a member that failed a read,
//! or took too long, is done without the next time. What failed together need not fail alone, so a part that can't be
//! had becomes a shorter one: its first parity stripe, its first unit, its first block. How a part is
//! [read](reading) and [written](writing) is written in terms of this.

pub(super) mod content;
pub(super) mod proof;
pub(super) mod reading;
pub(super) mod writing;

use std::ops::Range;
use std::rc::Rc;

use smallvec::SmallVec;
use uraid_layout::plan::{DiskIo, Extent, Plan, PlanError, Planner, Slice, View};
use uraid_layout::repair::Repair;
use uraid_layout::{Cell, DiskSector, Geometry, Lba, Location, MemberIndex, MemberSet, Sectors, StripeId};

use super::badblocks::{BadLists, LostParity};
use super::damage::Damage;
use super::error::EngineError;
use super::locks::Guard;
use super::parts::Parts;
use super::shares::Class;
use super::sums::{Pins, block_at};
use super::zeros::Zeroing;
use crate::buf::Buf;
use crate::cache::Contents;
use crate::format::BLOCK;
use crate::format::badblocks::Lack;
use crate::format::sums::Sum;
use content::Content;

/// The part of a command that is planned at once.
pub(super) const PART: Sectors = Sectors((32 << 20) / 512);

/// What a transfer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    Read,
    /// Read what a stream of reads will want next into the cache.
    Ahead,
    Write,
    Zero {
        may_punch: bool,
    },
    /// Write out what is dirty of parity stripes.
    Destage,
    /// Compute what a member failed to read, and write it back.
    Heal {
        stripe: StripeId,
        cell: Cell,
        start: Sectors,
        /// The checksum of what the member gave.
        found: Option<Sum>,
    },
    /// Read every unit of a parity stripe, in the columns of each chunk from `start` on, to compare them.
    Scrub {
        stripe: StripeId,
        start: Sectors,
    },
    /// Compute what these members lack of a parity stripe; the range are the columns.
    Rebuild {
        stripe: StripeId,
        lacking: MemberSet,
    },
    /// Copy what a member has of a parity stripe to the one that is to take its place; the range are the columns.
    Copy {
        stripe: StripeId,
        member: MemberIndex,
    },
}

/// Memory of a worker that transfers use one after another.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    plan: Plan,
    cached: Contents,
    wanted: Vec<Extent>,
    damage: Vec<Damage>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    pub(super) parts: &'a Parts,
    pub(super) goal: Goal,
    /// Of a rebuild or a copy, the one cell that is to be made; none: all of them.
    pub(super) only: Option<Cell>,
    /// The part that is being done.
    pub(super) at: Lba,
    pub(super) len: Sectors,
    pub(super) plan: &'a mut Plan,
    pub(super) content: Content<'a>,
    /// The stripes' locks, where it has them.
    pub(super) guard: Option<Guard<'a>>,
    pub(super) pins: Pins<'a>,
    sought: Sought<'a>,
    /// Members that failed a read of this part.
    pub(super) unreadable: MemberSet,
    /// Members that took too long for a read of this part.
    pub(super) overdue: MemberSet,
    /// Members of which nothing is to be used, whatever they give.
    pub(super) shunned: MemberSet,
    /// Each unit is read by itself, so that it is known which of them fails.
    pub(super) reads_apart: bool,
    around: Around,
    /// Parity that the plan leaves out of agreement.
    pub(super) without: LostParity,
    /// Zeros that it writes; and whether members have given back all space of the part.
    zeroing: Option<Zeroing<'a>>,
    pub(super) is_punched: bool,
    /// What of the part was asked for, which is a whole parity stripe: the rest is zeros.
    pub(super) asked: Option<(Lba, Sectors)>,
    /// What exactly was failed, to be healed when the part has been done without it.
    pub(super) damage: &'a mut Vec<Damage>,
}

/// What a read looked for in memory.
#[derive(Debug)]
struct Sought<'a> {
    range: Range<u64>,
    /// What of it was not there.
    missing: &'a mut Vec<Extent>,
}

/// What a plan goes around.
#[derive(Debug)]
struct Around {
    /// How to do without members that failed a read of the part, and the lost ones.
    detour: Option<Rc<Repair>>,
    /// The members that were slow when it was planned.
    slow: MemberSet,
}

impl Workspace {
    /// Lets go of what the last transfer took from the cache.
    pub(super) fn clear(&mut self) {
        self.cached.clear();
        self.damage.clear();
    }
}

impl<'a> Transfer<'a> {
    /// A transfer that moves the request's memory, if there is any; no part of it is begun.
    pub(super) fn new(parts: &'a Parts, space: &'a mut Workspace, goal: Goal, request: Option<Buf>) -> Self {
        let Workspace { plan, cached, wanted, damage } = space;
        let content = Content { request, base: Sectors(0), scratch: None, cached, zeroes: &parts.means.zeroes };
        Self {
            parts,
            goal,
            only: None,
            at: Lba(0),
            len: Sectors(0),
            plan,
            content,
            guard: None,
            pins: Pins::default(),
            sought: Sought { range: 0..0, missing: wanted },
            unreadable: MemberSet::EMPTY,
            overdue: MemberSet::EMPTY,
            shunned: MemberSet::EMPTY,
            reads_apart: false,
            around: Around { detour: None, slow: MemberSet::EMPTY },
            without: LostParity::default(),
            zeroing: None,
            is_punched: false,
            asked: None,
            damage,
        }
    }

    /// Begins a part, `base` sectors into the request's memory.
    pub(super) fn begin(&mut self, at: Lba, len: Sectors, base: Sectors) {
        (self.at, self.len, self.content.base) = (at, len, base);
        (self.unreadable, self.overdue) = (MemberSet::EMPTY, MemberSet::EMPTY);
        self.reads_apart = false;
        (self.is_punched, self.asked) = (false, None);
    }

    /// Begins a range that is written in parts: whether it is zeros is known then.
    pub(super) fn begin_zeroing(&mut self, range: &Range<Lba>) {
        if matches!(self.goal, Goal::Zero { .. }) {
            self.zeroing = Some(self.parts.zeros.zeroing(range));
        }
    }

    /// Notes that the range reads as zeros, if it was zeros: the log has the last of it.
    pub(super) fn note_zeroed(&self) {
        self.zeroing.iter().for_each(Zeroing::note);
    }

    /// Ends such a range, all of which was written.
    pub(super) fn end_zeroing(&mut self) {
        self.note_zeroed();
        self.zeroing = None;
    }

    /// What of the part was asked for.
    pub(super) fn asked(&self) -> (Lba, Sectors) {
        self.asked.unwrap_or((self.at, self.len))
    }

    /// Has the units of a part that can't be made smaller read each by itself; false: they are, or a member has but one
    /// of a stripe.
    pub(super) fn read_apart(&mut self) -> bool {
        let (first, last) = self.span();
        let is_news = !self.reads_apart && first == last && self.parts.geometry().rows() > 1;
        if is_news && !planted!(CellsByMember) {
            self.reads_apart = true;
            self.unreadable =
                self.own().map_or(MemberSet::EMPTY, |own| MemberSet::EMPTY.with(self.parts.geometry().member(own)));
            self.damage.clear();
        }
        is_news && self.reads_apart
    }

    /// The unit that is healed.
    fn own(&self) -> Option<Cell> {
        if let Goal::Heal { cell, .. } = self.goal { Some(cell) } else { None }
    }

    /// The parity stripes of the part: the first and the last.
    pub(super) fn span(&self) -> (StripeId, StripeId) {
        match self.goal {
            Goal::Heal { stripe, .. }
            | Goal::Scrub { stripe, .. }
            | Goal::Rebuild { stripe, .. }
            | Goal::Copy { stripe, .. } => (stripe, stripe),
            _ => self.parts.stripes_of(self.at, self.len),
        }
    }

    /// The cells that a rebuild or a copy is to make; none of others.
    pub(super) fn cells(&self) -> impl Iterator<Item = Cell> + use<'a> {
        let members = &self.parts.members;
        let (stripe, of) = match self.goal {
            Goal::Rebuild { stripe, lacking } => (stripe, lacking.minus(lacking.minus(members.rebuilding()))),
            Goal::Copy { stripe, member } => (stripe, MemberSet::EMPTY.with(member)),
            _ => (StripeId(0), MemberSet::EMPTY),
        };
        let only = self.only;
        cells_of(self.parts.geometry(), stripe, of).filter(move |&cell| only.is_none_or(|only| only == cell))
    }

    /// The members that can't be read in the part.
    pub(super) fn lost(&self) -> MemberSet {
        self.parts.members.lost(self.span().1)
    }

    /// The members that are read only where that can't be helped.
    pub(super) fn slow(&self) -> MemberSet {
        let members = &self.parts.members;
        members.slow().union(self.overdue.minus(members.missing()))
    }

    /// Looks for a range in the cache: what is there is copied to the request's memory, what is missing is what is to
    /// be read of it.
    pub(super) fn look_up(&mut self, at: Lba, len: Sectors, base: Sectors) {
        let Self { parts, content, sought: Sought { missing: wanted, .. }, .. } = self;
        wanted.clear();
        self.sought.range = at.0..at.0 + len.0;
        let found = parts.writeback.with(|cache| {
            if cache.is_empty() {
                wanted.push(Extent::request(at, len));
            } else {
                let buf = content.request.as_mut().expect("a read has a buffer");
                cache.read(at, len, buf, base.bytes(), wanted);
            }
            wanted.iter().map(|extent| extent.content.len.0).sum()
        });
        match found {
            Some(missed) => parts.members.counters.borrow_mut().looked_up(len, Sectors(missed)),
            None => wanted.push(Extent::request(at, len)),
        }
    }

    /// Fills some of the request's memory with zeros.
    pub(super) fn fill_with_zeroes(&mut self, base: Sectors, len: Sectors) {
        let buf = self.content.request.as_mut().expect("a read has a buffer");
        buf.bytes_mut(content::bytes(base)..content::bytes(Sectors(base.0 + len.0))).fill(0);
    }

    /// Takes all of a range to be read of which nothing is in the cache.
    pub(super) fn look_for_absent(&mut self, at: Lba, len: Sectors) {
        let wanted = &mut *self.sought.missing;
        wanted.clear();
        self.sought.range = at.0..at.0 + len.0;
        let _ = self.parts.writeback.with(|cache| cache.absent(at, len, wanted));
    }

    /// Plans the part, or a shorter one where it can't be had: around members that are lost, that failed a read of it,
    /// and, where that can be, that are slow.
    ///
    /// # Errors
    /// [`EngineError::Unreadable`]; [`EngineError::Frozen`]: a write may have changed parity and not data, or the other
    /// way round.
    pub(super) fn plan(&mut self) -> Result<(), EngineError> {
        loop {
            match self.plan_whole() {
                // Somebody may have failed since what could not be read was gone around.
                Err(EngineError::Unreadable { .. }) if self.goal != Goal::Ahead && self.narrow() => {}
                planned => return planned,
            }
        }
    }

    fn plan_whole(&mut self) -> Result<(), EngineError> {
        let members = &self.parts.members;
        members.check_frozen()?;
        self.consult_cache();
        let last = self.span().1;
        let base = members.detour(self.parts.side, last);
        let is_making = matches!(self.goal, Goal::Rebuild { .. } | Goal::Copy { .. });
        let cells = is_making.then(|| self.cells()).into_iter().flatten();
        self.find_detour(&base, members.lost(last), self.slow())?;
        let Self { parts, content, plan, at, len, without, .. } = self;
        let geometry = parts.geometry();
        let repair = self.around.detour.as_deref().unwrap_or(&base);
        let (missing, queues) = (members.missing(), members.operations.queues());
        let cached = content.cached.cached();
        let view = View { missing, cached, queues: &queues, ..View::new(geometry, repair) };
        let planner = &mut *parts.means.planner.borrow_mut();
        let unreadable = EngineError::Unreadable { lba: *at, len: *len, members: self.unreadable };
        let columns = (Sectors(at.0), *len);
        let planned = match self.goal {
            Goal::Read | Goal::Ahead | Goal::Destage if content.cached.extents().is_empty() => {
                plan.clear();
                Ok(())
            }
            Goal::Read | Goal::Ahead => planner.read(plan, &view, content.cached.extents()),
            Goal::Destage => {
                write(planner, plan, &parts.bad, &view, content.cached.extents()).map(|lost| *without = lost)
            }
            Goal::Write => {
                write(planner, plan, &parts.bad, &view, &[Extent::request(*at, *len)]).map(|lost| *without = lost)
            }
            Goal::Zero { .. } => {
                write(planner, plan, &parts.bad, &view, &[Extent::zeroes(*at, *len)]).map(|lost| *without = lost)
            }
            Goal::Heal { cell, .. } if missing.contains(geometry.member(cell)) => return Err(unreadable),
            Goal::Heal { stripe, cell, start, .. } => planner.rebuild(plan, &view, stripe, [cell], (start, *len)),
            Goal::Scrub { stripe, start } => planner.scrub(plan, &view, stripe, (Sectors(start.0 + at.0), *len)),
            Goal::Rebuild { stripe, .. } => planner.rebuild(plan, &view, stripe, cells, columns),
            Goal::Copy { member, .. } if missing.contains(member) => return Err(unreadable),
            Goal::Copy { stripe, .. } => planner.copy(plan, &view, stripe, cells, columns),
        };
        planned.map_err(|error| match error {
            PlanError::Unreadable { .. } => unreadable,
            error => EngineError::Plan(error),
        })?;
        members.counters.borrow_mut().planned(plan.methods());
        Ok(())
    }

    /// Takes from the cache what the plan is made of: what a read still misses, what a destage writes, what the members
    /// are known to hold.
    fn consult_cache(&mut self) {
        let Self { parts, content: Content { cached, .. }, sought, at, len, .. } = self;
        let (geometry, end) = (parts.geometry(), at.0 + len.0);
        match self.goal {
            Goal::Read | Goal::Ahead => {
                cached.missing().extend(sought.missing.iter().filter_map(|extent| clip(extent, at.0..end)));
            }
            Goal::Destage if !cached.flies() => {
                let stripe = geometry.stripe_sectors().0;
                let _ = parts.writeback.with(|cache| {
                    cache.take(geometry, at.0 / stripe..end.div_ceil(stripe), cached);
                });
            }
            Goal::Write | Goal::Zero { .. } if !cached.flies() => {
                let _ = parts.writeback.with(|cache| cache.look(geometry, *at, *len, cached));
            }
            _ => {}
        }
    }

    /// Finds how to do without the members that failed a read of this part and without those that are lost by now, and,
    /// where that can be, without those that are `slow`, too. `base` does without those that are lost.
    fn find_detour(&mut self, base: &Repair, lost: MemberSet, slow: MemberSet) -> Result<(), EngineError> {
        (self.around.detour, self.around.slow) = (None, slow);
        let (members, side) = (&self.parts.members, self.parts.side);
        let needed = self.unreadable.union(self.shunned).union(lost);
        let wanted = needed.union(slow);
        if wanted != lost {
            self.around.detour = members.find_detour(side, wanted);
        }
        if self.around.detour.is_none() && needed != lost {
            self.around.detour = members.find_detour(side, needed);
        }
        if self.around.detour.is_none() && (needed != lost || !base.is_total()) {
            if matches!(self.goal, Goal::Scrub { .. }) || self.goal.is_write() && planted!(WriteNeedsAll) {
                return Err(self.unreadable_error());
            }
            // What is enough for this part is not for another's: a mirror's copy may be on a member that is there, and
            // a write may not need what can't be had. The planner finds out.
            self.around.detour = Some(Rc::new(self.do_with_rest(lost)));
        }
        Ok(())
    }

    /// How to do without what the members failed to give of the part, and not without what else they have, where the
    /// part is of one parity stripe; without those that are `lost` altogether.
    pub(super) fn do_with_rest(&self, lost: MemberSet) -> Repair {
        let (geometry, (stripe, last)) = (self.parts.geometry(), self.span());
        let lost = lost.union(self.shunned);
        if stripe != last || planted!(CellsByMember) {
            return Repair::partial(geometry, lost.union(self.unreadable));
        }
        let failed = self.damage.iter().flat_map(|damage| damage.pieces(geometry));
        let failed = failed.filter(|piece| piece.stripe == stripe).map(|piece| piece.cell);
        let cells: SmallVec<[Cell; 8]> = failed.chain(self.own()).collect();
        let told: MemberSet = cells.iter().map(|&cell| geometry.member(cell)).collect();
        Repair::partial(geometry, lost.union(self.unreadable.minus(told))).beside(geometry, stripe, cells)
    }

    /// Has the part planned again, in other memory where an operation that was given up may still fill what it has.
    pub(super) fn renew_memory(&mut self) {
        let is_filled = |buf: &mut Buf| buf.is_being_filled() && !planted!(LateMemoryKept);
        let Some(old) = self.content.request.take_if(is_filled) else { return };
        let mut new = Buf::zeroed(uraid_layout::Bytes(old.len() as u64));
        let mut keep = |from: u64, to: u64| {
            let range = content::bytes(Sectors(from))..content::bytes(Sectors(to));
            new.bytes_mut(range.clone()).copy_from_slice(old.bytes(range));
        };
        // What is before the part was read; of the part, what was in the cache. What was not is read again.
        let base = self.content.base.0;
        keep(0, base);
        let mut from = base;
        for extent in self.sought.missing.iter().filter_map(|extent| clip(extent, self.at.0..self.sought.range.end)) {
            keep(from, base + extent.content.start.0);
            from = base + extent.content.start.0 + extent.content.len.0;
        }
        if !self.sought.range.is_empty() {
            keep(from, base + self.sought.range.end - self.at.0);
        }
        self.content.request = Some(new);
        old.disown();
    }

    /// Lets go of the working memory and the checksums that the plan needed.
    pub(super) fn let_go(&mut self) {
        self.content.scratch = None;
        self.pins = Pins::default();
    }

    /// Makes a part that spans parity stripes end with its first, one that spans units with its first, one within a
    /// unit with its first block, and at last one within a block some sectors of which are lacking with its first
    /// sector; false: it is none of them. So: what failed together, or is lacking together, need not be so there.
    pub(super) fn narrow(&mut self) -> bool {
        if matches!(self.goal, Goal::Destage | Goal::Heal { .. }) {
            // It fails, and is tried again in smaller pieces.
            return false;
        }
        let shorter = self.shorter();
        if let Some(len) = shorter {
            self.len = len;
            self.forget_failures();
        }
        shorter.is_some()
    }

    /// Has everybody asked again for what members failed to give of the part.
    pub(super) fn forget_failures(&mut self) {
        self.let_go();
        self.unreadable = MemberSet::EMPTY;
        self.damage.clear();
    }

    /// The next smaller length of the part: its first parity stripe, its first unit, its first block, its first sector
    /// if lists tell apart the sectors of that.
    fn shorter(&self) -> Option<Sectors> {
        let geometry = self.parts.geometry();
        let sizes = [geometry.stripe_sectors(), geometry.chunk(), BLOCK];
        let shorter = |size: Sectors| Sectors(size.0 - self.at.0 % size.0);
        let larger = sizes.into_iter().map(shorter).find(|&len| len < self.len);
        larger.or_else(|| (self.len > Sectors(1) && self.lacks_in_part()).then_some(Sectors(1)))
    }

    /// Whether some member lacks some of the columns of a part within a block, and not all.
    fn lacks_in_part(&self) -> bool {
        let (geometry, bad) = (self.parts.geometry(), &self.parts.bad);
        let (stripe, start) = match self.goal {
            Goal::Scrub { .. } => return false,
            Goal::Rebuild { stripe, .. } | Goal::Copy { stripe, .. } => (stripe, Sectors(self.at.0)),
            _ => {
                let (stripe, _, start) = geometry.split(self.at);
                (stripe, start)
            }
        };
        let is_partial = |cell: Cell| {
            let (member, sectors) = geometry.columns(stripe, cell, start, self.len);
            bad.within(member, sectors.clone(), Lack::Absent).iter().any(|run| *run != sectors)
        };
        let mut cells = (0_u16..).map(Cell).take(geometry.map(stripe).cells());
        !planted!(BlockOrNothing) && !bad.is_empty() && cells.any(is_partial)
    }

    /// Whether a block that has lost its checksum is taken for what was written there, as nothing else says what that
    /// is. It is not as long as the block could be had if what can't be read elsewhere in the part were not in the way:
    /// the part is made smaller, or tried again as a smaller one.
    pub(super) fn has_to_believe(&self, at: Location) -> bool {
        let needed = self.unreadable.union(self.lost()).with(at.member);
        let can_do_without = Repair::new(self.parts.geometry(), needed).is_ok() || self.can_read_without(needed);
        let is_smaller_tried = match self.goal {
            Goal::Ahead => true,
            Goal::Read | Goal::Write | Goal::Zero { .. } => self.shorter().is_some(),
            Goal::Destage => self.span().0 != self.span().1,
            _ => false,
        };
        !can_do_without && !self.can_compute(at, is_smaller_tried)
    }

    /// Whether a block that has lost its checksum comes back, unit by unit, from what has not in its parity stripe.
    /// What members failed to give of the stripe is in the way, unless that is tried again.
    fn can_compute(&self, at: Location, is_tried_again: bool) -> bool {
        let (geometry, lost) = (self.parts.geometry(), self.lost());
        let Some((stripe, cell, column)) = geometry.cell_at(at) else { return false };
        let without = if is_tried_again {
            Repair::partial(geometry, lost.union(self.shunned))
        } else if self.span() == (stripe, stripe) && !matches!(self.goal, Goal::Scrub { .. }) {
            self.do_with_rest(lost)
        } else {
            return false;
        };
        let has_lost_sum = |&cell: &Cell| {
            let (member, sector) = (geometry.member(cell), DiskSector(geometry.sector(stripe, cell).0 + column.0));
            self.parts.sums.as_ref().is_some_and(|sums| sums.has_lost(member, block_at(sector)))
        };
        let is_doubted =
            |other: &Cell| has_lost_sum(other) || planted!(SumsLostByMember) && geometry.member(*other) == at.member;
        let doubted = cells_of(geometry, stripe, geometry.all_members()).filter(is_doubted).chain([cell]);
        without.beside(geometry, stripe, doubted).has(geometry, stripe, cell)
    }

    /// Whether the part can be read though others are lost with these members.
    fn can_read_without(&self, without: MemberSet) -> bool {
        let geometry = self.parts.geometry();
        let detour = Repair::partial(geometry, without);
        match self.goal {
            Goal::Read => (self.at.0..self.at.0 + self.len.0).all(|lba| {
                let (stripe, unit, _) = geometry.split(Lba(lba));
                detour.has(geometry, stripe, geometry.map(stripe).cell(unit))
            }),
            Goal::Heal { stripe, cell, .. } => detour.has(geometry, stripe, cell),
            Goal::Copy { stripe, .. } => self.cells().all(|cell| detour.has(geometry, stripe, cell)),
            _ => false,
        }
    }

    /// Whether a member gave a block with this checksum, which was not the one that is known.
    pub(super) fn has_found(&self, at: Location, sum: Sum) -> bool {
        let is_same = |damage: &Damage| {
            (damage.member, damage.sector, damage.len) == (at.member, at.sector, BLOCK) && damage.found == Some(sum)
        };
        let is_heal = matches!(self.goal, Goal::Heal { cell, found, .. } if self.len == BLOCK
            && self.parts.geometry().member(cell) == at.member && found == Some(sum));
        is_heal || self.damage.iter().any(is_same)
    }

    /// The error of a part that can't be read.
    pub(super) fn unreadable_error(&self) -> EngineError {
        EngineError::Unreadable { lba: self.at, len: self.len, members: self.unreadable }
    }

    /// Ends what flies of the cache for the transfer, with this error or none. False: nothing flew.
    pub(super) fn settle(&mut self, error: Option<&EngineError>) -> bool {
        self.parts.writeback.settle(self.parts.geometry(), self.content.cached, error)
    }

    /// Counts what the transfer found and could not do without.
    pub(super) fn give_up_on_damage(&mut self) {
        for Damage { member, sector, len, .. } in self.damage.drain(..) {
            self.parts.members.counters.borrow_mut().unrepairable(member);
            // What could not be written out is told of by itself for as long as that lasts: it is still in memory. So
            // is what is in the list of bad blocks.
            let is_told =
                self.goal == Goal::Destage || self.parts.bad.touches(member, &(sector..DiskSector(sector.0 + len.0)));
            if !is_told {
                self.parts.members.troubled.borrow_mut().note_lost(MemberSet::EMPTY.with(member));
            }
        }
    }
}

impl Goal {
    /// Whether it changes the members.
    pub(super) fn is_write(self) -> bool {
        !matches!(self, Self::Read | Self::Ahead | Self::Scrub { .. })
    }

    /// Whether it writes only what nobody on record relies on.
    pub(super) fn is_sweep(self) -> bool {
        matches!(self, Self::Rebuild { .. } | Self::Copy { .. })
    }

    /// Whose share of the members its operations count to.
    pub(super) fn class(self) -> Class {
        match self {
            Self::Read | Self::Ahead => Class::Read,
            Self::Write | Self::Zero { .. } => Class::Write,
            Self::Destage | Self::Heal { .. } => Class::Background,
            Self::Scrub { .. } => Class::Scrub,
            Self::Rebuild { .. } | Self::Copy { .. } => Class::Rebuild,
        }
    }
}

/// Plans a write. Where that needs parity which its member does not have, and which can't be computed: without it.
fn write(
    planner: &mut Planner,
    plan: &mut Plan,
    bad: &BadLists,
    view: &View<'_>,
    extents: &[Extent],
) -> Result<LostParity, PlanError> {
    match planner.write(plan, view, extents) {
        Err(error @ PlanError::Unreadable { .. }) => {
            let without = bad.lost_parity(view.geometry, view.missing, extents).ok_or(error)?;
            let repair = view.repair.beside(view.geometry, without.stripe, without.cells.iter().copied());
            let view = View { repair: &repair, left_out: &without.cells, ..*view };
            planner.write(plan, &view, extents).map(|_| without)
        }
        planned => planned.map(|_| LostParity::default()),
    }
}

/// Where an operation ends on its member.
pub(super) fn end(io: &DiskIo) -> DiskSector {
    DiskSector(io.sector.0 + io.len.0)
}

/// The cells of a stripe that members have.
fn cells_of(geometry: &Geometry, stripe: StripeId, members: MemberSet) -> impl Iterator<Item = Cell> + '_ {
    let cells = (0_u16..).map(Cell).take(geometry.map(stripe).cells());
    cells.filter(move |&cell| members.contains(geometry.member(cell)))
}

/// What of an extent is within a part, from whose start its content counts.
fn clip(extent: &Extent, part: Range<u64>) -> Option<Extent> {
    let (start, end) = (extent.lba.0.max(part.start), (extent.lba.0 + extent.content.len.0).min(part.end));
    let (from, len) = (Sectors(start.saturating_sub(part.start)), Sectors(end.saturating_sub(start)));
    let content = Slice { buffer: extent.content.buffer, start: from, len };
    (start < end).then_some(Extent { lba: Lba(start), content })
}
