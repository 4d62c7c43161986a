//! Planning within one parity stripe.
//!
//! The columns that a request touches are cut into *bands*, in each of which a cell is either wholly touched or not at
//! all; every value is then one (cell, band), and partial chunks need no special case. For each value the [`Grid`]
//! knows the old content's whereabouts (in memory, to be read, to be recovered) and the new content. Planning marks
//! what old content a method needs, compares, and only then gives out working memory, in the members' order so that a
//! disk operation's memory is in one piece.

use alloc::vec::Vec;

use super::output::{Output, index_u32};
use super::steps::{Buffer, Difference, Method, Operand, Plan, Recovered, Slice, Xor};
use super::view::View;
use crate::field::Factor;
use crate::stripe::{Group, StripeMap};
use crate::{Cell, DataUnit, DiskSector, GroupId, Sectors, StripeId};

/// The part of one data unit that one extent touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnitRange {
    pub(super) stripe: StripeId,
    pub(super) unit: DataUnit,
    /// Where in the chunk, in sectors.
    pub(super) start: u64,
    pub(super) content: Slice,
}

/// Working memory for planning one stripe.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// The bands' boundaries, ascending, in sectors of the chunk.
    cuts: Vec<u64>,
    old: Vec<Old>,
    new: Vec<Option<Slice>>,
    /// For each group and band: how its parity is to be computed.
    update: Vec<Update>,
    needs: Needs,
    /// The cells that are rebuilt.
    wanted: Vec<Cell>,
}

/// Where the old content of a (cell, band) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    /// Nobody has asked.
    Unasked,
    /// In memory, now or once the reads and the XORs planned so far are done.
    At(Slice),
    /// Asked for: on its member.
    Read,
    /// Asked for: from others of the stripe, into the request buffer where a read wants it there.
    Recover { wanted: Option<Slice> },
}

/// How a group's parity is brought up to date in a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Update {
    /// Untouched, or its parity unit is missing.
    None,
    /// Every data unit is written.
    Full,
    /// Some are.
    Partial,
}

/// The old content that a method needs.
#[derive(Debug, Default)]
struct Needs {
    reads: Vec<(Cell, usize)>,
    /// In an order in which they can be done.
    recoveries: Vec<(Cell, usize)>,
    /// Whether something was asked for that can't be had.
    is_unmet: bool,
}

/// The stripe being planned.
#[derive(Clone, Copy)]
struct Stripe<'a> {
    view: &'a View<'a>,
    id: StripeId,
    map: &'a StripeMap,
}

impl<'a> Stripe<'a> {
    /// Whether the cell's old content can't be read from its member.
    fn is_lost(&self, cell: Cell) -> bool {
        self.view.repair.lacks(self.view.geometry, self.id, cell)
    }

    /// Whether all of a group's cells can be read from their members.
    fn is_whole(&self, group: &Group) -> bool {
        group.cells().all(|cell| !self.is_lost(cell) && self.view.geometry.uses(self.id, cell))
    }

    /// Whether the cell is not written.
    fn is_missing(&self, cell: Cell) -> bool {
        self.view.missing.contains(self.view.geometry.member(cell)) || self.view.left_out.contains(&cell)
    }

    /// What a lost cell is computed from; none when it can't be had.
    fn sources(&self, cell: Cell) -> Option<&'a [(Cell, Factor)]> {
        let (repair, index) = (self.view.repair, self.view.geometry.map_index(self.id));
        repair.step_for(index, cell).map(|step| repair.sources(index, step))
    }
}

impl Grid {
    /// Plans the read of ranges of which some are on missing members or in memory; none when some can't be had.
    pub(super) fn read(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        part: &[UnitRange],
        out: &mut Output,
    ) -> Option<()> {
        let stripe = self.start(view, part);
        // What a member has is read to where it is wanted, and serves the recoveries from there.
        for range in part {
            let cell = stripe.map.cell(range.unit);
            let source = view.source(stripe.id, range.unit, range.start);
            for band in self.bands_of(range) {
                let wanted = self.slice_of(range, band);
                if let Old::At(cached) = *self.old_at(cell, band) {
                    let first = plan.operands.len();
                    push(plan, cached, Factor::ONE);
                    finish_xor(plan, wanted, first);
                } else if let Some(source) = source {
                    out.read(view, stripe.id, source, self.cuts[band], wanted);
                    *self.old_at(cell, band) = Old::At(wanted);
                }
            }
        }
        self.needs.clear();
        for range in part {
            let cell = stripe.map.cell(range.unit);
            for band in self.bands_of(range) {
                self.ask(&stripe, cell, band);
                let slice = self.slice_of(range, band);
                if let Old::Recover { wanted } = self.old_at(cell, band) {
                    *wanted = Some(slice);
                }
            }
        }
        self.fetch(plan, &stripe, out)
    }

    /// Plans the write of ranges and of the parity that covers them; none when the parity can't be computed.
    pub(super) fn write(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        part: &[UnitRange],
        method: Option<Method>,
        out: &mut Output,
    ) -> Option<Method> {
        let stripe = self.start(view, part);
        for range in part {
            let cell = stripe.map.cell(range.unit);
            for band in self.bands_of(range) {
                let slice = self.slice_of(range, band);
                *self.new_at(cell, band) = Some(slice);
            }
        }
        self.mark_updates(&stripe);
        let method = match method {
            Some(method) => self.ask_for(&stripe, method),
            None => self.choose(&stripe),
        };
        self.fetch(plan, &stripe, out)?;
        self.compute_parity(plan, &stripe, method);
        for cell in 0..stripe.map.cells() {
            let cell = Cell(u16::try_from(cell).expect("a stripe has fewer than 65536 cells"));
            if stripe.is_missing(cell) {
                continue;
            }
            for band in 0..self.bands() {
                if let Some(slice) = *self.new_at(cell, band) {
                    out.write(view, stripe.id, cell, self.cuts[band], slice);
                }
            }
        }
        Some(method)
    }

    /// Plans the computation of lost cells in the columns `start..+len`, and their writes; none when one can't be had.
    pub(super) fn rebuild(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        id: StripeId,
        cells: impl Iterator<Item = Cell>,
        (start, len): (Sectors, Sectors),
        out: &mut Output,
    ) -> Option<()> {
        let stripe = self.start_columns(view, id, (start, len));
        self.wanted.clear();
        for cell in cells {
            self.ask(&stripe, cell, 0);
            self.wanted.push(cell);
        }
        self.fetch(plan, &stripe, out)?;
        for index in 0..self.wanted.len() {
            let cell = self.wanted[index];
            let slice = self.content(cell, 0);
            out.write(view, id, cell, start.0, slice);
        }
        Some(())
    }

    /// Plans the reads of all cells in the columns `start..+len`, and the XOR of each group.
    pub(super) fn scrub(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        id: StripeId,
        (start, len): (Sectors, Sectors),
        out: &mut Output,
    ) {
        let stripe = self.start_columns(view, id, (start, len));
        for cell in 0..stripe.map.cells() {
            let cell = Cell(u16::try_from(cell).expect("a stripe has fewer than 65536 cells"));
            if !stripe.is_lost(cell) && view.geometry.uses(id, cell) {
                self.ask(&stripe, cell, 0);
            }
        }
        self.fetch(plan, &stripe, out).expect("only what can be read was asked for");
        for (group, equation) in stripe.map.groups().iter().enumerate() {
            if !stripe.is_whole(equation) {
                continue;
            }
            let group = GroupId(u16::try_from(group).expect("a stripe has fewer than 65536 groups"));
            let content = self.scratch(plan, 0);
            let first = plan.operands.len();
            for (cell, factor) in equation.terms() {
                push(plan, self.content(cell, 0), factor);
            }
            finish_xor(plan, content, first);
            plan.differences.push(Difference { group, content });
        }
    }

    /// One band, the columns `start..+len`, whatever is in memory.
    fn start_columns<'a>(&mut self, view: &'a View<'a>, id: StripeId, (start, len): (Sectors, Sectors)) -> Stripe<'a> {
        let stripe = Stripe { view, id, map: view.geometry.map(id) };
        self.cuts.clear();
        self.cuts.extend([start.0, start.0 + len.0]);
        self.reset(&stripe);
        self.needs.clear();
        stripe
    }

    /// Cuts the bands and enters what is in memory of the columns between the first and the last that are touched.
    fn start<'a>(&mut self, view: &'a View<'a>, part: &[UnitRange]) -> Stripe<'a> {
        let id = part[0].stripe;
        let stripe = Stripe { view, id, map: view.geometry.map(id) };
        self.cuts.clear();
        let (mut first, mut last) = (u64::MAX, 0);
        for range in part {
            let end = range.start + range.content.len.0;
            self.cuts.extend([range.start, end]);
            (first, last) = (first.min(range.start), last.max(end));
        }
        let cached = view.cached_of(id);
        for cached in cached {
            let ends = [cached.start.0, cached.start.0 + cached.content.len.0];
            self.cuts.extend(ends.into_iter().filter(|&end| first < end && end < last));
        }
        self.cuts.sort_unstable();
        self.cuts.dedup();
        self.reset(&stripe);
        for cached in cached {
            let end = cached.start.0 + cached.content.len.0;
            for band in self.cuts.partition_point(|&cut| cut < cached.start.0)..self.bands() {
                let (from, to) = (self.cuts[band], self.cuts[band + 1]);
                if to > end {
                    break;
                }
                let slice = cached.content.part(from - cached.start.0, to - from);
                *self.old_at(cached.cell, band) = Old::At(slice);
            }
        }
        stripe
    }

    fn reset(&mut self, stripe: &Stripe<'_>) {
        let bands = self.bands();
        let values = stripe.map.cells() * bands;
        self.old.clear();
        self.old.resize(values, Old::Unasked);
        self.new.clear();
        self.new.resize(values, None);
        self.update.clear();
        self.update.resize(stripe.map.groups().len() * bands, Update::None);
    }

    fn bands(&self) -> usize {
        self.cuts.len() - 1
    }

    fn bands_of(&self, range: &UnitRange) -> core::ops::Range<usize> {
        let find = |at: u64| self.cuts.binary_search(&at).expect("a range's ends are cuts");
        find(range.start)..find(range.start + range.content.len.0)
    }

    fn slice_of(&self, range: &UnitRange, band: usize) -> Slice {
        range.content.part(self.cuts[band] - range.start, self.cuts[band + 1] - self.cuts[band])
    }

    fn old_at(&mut self, cell: Cell, band: usize) -> &mut Old {
        let bands = self.bands();
        &mut self.old[usize::from(cell.0) * bands + band]
    }

    fn new_at(&mut self, cell: Cell, band: usize) -> &mut Option<Slice> {
        let bands = self.bands();
        &mut self.new[usize::from(cell.0) * bands + band]
    }

    fn update(&mut self, group: GroupId, band: usize) -> &mut Update {
        let bands = self.bands();
        &mut self.update[usize::from(group.0) * bands + band]
    }

    /// Finds the groups that the new content touches and that still have their parity unit.
    fn mark_updates(&mut self, stripe: &Stripe<'_>) {
        for (unit, &cell) in stripe.map.data().iter().enumerate() {
            let unit = DataUnit(u16::try_from(unit).expect("a stripe has fewer than 65536 cells"));
            for band in 0..self.bands() {
                if self.new_at(cell, band).is_none() {
                    continue;
                }
                for &group in stripe.map.groups_of(unit) {
                    let equation = stripe.map.group(group);
                    if stripe.is_missing(equation.parity) || *self.update(group, band) != Update::None {
                        continue;
                    }
                    let is_full = equation.data.iter().all(|&cell| self.new_at(cell, band).is_some());
                    *self.update(group, band) = if is_full { Update::Full } else { Update::Partial };
                }
            }
        }
    }

    /// Asks for what the cheaper of the methods needs that are possible.
    fn choose(&mut self, stripe: &Stripe<'_>) -> Method {
        if !self.update.contains(&Update::Partial) {
            self.needs.clear();
            return Method::Full;
        }
        self.ask_for(stripe, Method::ReadModifyWrite);
        let (is_modify_unmet, modify) = (self.needs.is_unmet, self.cost(stripe));
        self.forget();
        self.ask_for(stripe, Method::Reconstruct);
        if (self.needs.is_unmet, self.cost(stripe)) <= (is_modify_unmet, modify) {
            return Method::Reconstruct;
        }
        self.forget();
        self.ask_for(stripe, Method::ReadModifyWrite)
    }

    /// Takes back what was asked for.
    fn forget(&mut self) {
        for old in &mut self.old {
            if matches!(old, Old::Read | Old::Recover { .. }) {
                *old = Old::Unasked;
            }
        }
    }

    /// Asks for the old content that a method needs for the groups that are written in part.
    fn ask_for(&mut self, stripe: &Stripe<'_>, method: Method) -> Method {
        self.needs.clear();
        if !self.update.contains(&Update::Partial) {
            return Method::Full;
        }
        let modify = method == Method::ReadModifyWrite;
        for (group, equation) in stripe.map.groups().iter().enumerate() {
            let group = GroupId(u16::try_from(group).expect("a stripe has fewer than 65536 groups"));
            for band in 0..self.bands() {
                if *self.update(group, band) != Update::Partial {
                    continue;
                }
                for &cell in &equation.data {
                    if self.new_at(cell, band).is_some() == modify {
                        self.ask(stripe, cell, band);
                    }
                }
                if modify {
                    self.ask(stripe, equation.parity, band);
                }
            }
        }
        if modify { Method::ReadModifyWrite } else { Method::Reconstruct }
    }

    /// Asks for the old content of a (cell, band), from its member or, where that is missing, from others.
    fn ask(&mut self, stripe: &Stripe<'_>, cell: Cell, band: usize) {
        if *self.old_at(cell, band) != Old::Unasked {
            return;
        }
        if !stripe.is_lost(cell) {
            *self.old_at(cell, band) = Old::Read;
            self.needs.reads.push((cell, band));
            return;
        }
        let Some(sources) = stripe.sources(cell) else {
            self.needs.is_unmet = true;
            return;
        };
        *self.old_at(cell, band) = Old::Recover { wanted: None };
        for &(source, _) in sources {
            self.ask(stripe, source, band);
        }
        self.needs.recoveries.push((cell, band));
    }

    /// Disk operations and sectors that the reads asked for come to.
    fn cost(&mut self, stripe: &Stripe<'_>) -> (usize, u64) {
        self.sort_reads(stripe);
        let (mut operations, mut sectors) = (0, 0);
        let mut end = None;
        for &(cell, band) in &self.needs.reads {
            let member = stripe.view.geometry.member(cell);
            let start = stripe.view.geometry.sector(stripe.id, cell).0 + self.cuts[band];
            let len = self.cuts[band + 1] - self.cuts[band];
            operations += usize::from(end != Some((member, start)));
            sectors += len;
            end = Some((member, start + len));
        }
        (operations, sectors)
    }

    fn sort_reads(&mut self, stripe: &Stripe<'_>) {
        let geometry = stripe.view.geometry;
        self.needs.reads.sort_unstable_by_key(|&(cell, band)| (geometry.member(cell), geometry.row(cell), band));
    }

    /// Plans the reads and recoveries that were asked for; none when something can't be had.
    fn fetch(&mut self, plan: &mut Plan, stripe: &Stripe<'_>, out: &mut Output) -> Option<()> {
        if self.needs.is_unmet {
            return None;
        }
        self.sort_reads(stripe);
        for index in 0..self.needs.reads.len() {
            let (cell, band) = self.needs.reads[index];
            if *self.old_at(cell, band) == Old::Read {
                let slice = self.scratch(plan, band);
                out.read(stripe.view, stripe.id, cell, self.cuts[band], slice);
                *self.old_at(cell, band) = Old::At(slice);
            }
        }
        for index in 0..self.needs.recoveries.len() {
            let (cell, band) = self.needs.recoveries[index];
            let Old::Recover { wanted } = *self.old_at(cell, band) else { continue };
            let target = wanted.unwrap_or_else(|| self.scratch(plan, band));
            let first = plan.operands.len();
            for &(source, factor) in stripe.sources(cell).expect("a recovery has sources") {
                push(plan, self.content(source, band), factor);
            }
            finish_xor(plan, target, first);
            let member = stripe.view.geometry.member(cell);
            let sector = DiskSector(stripe.view.geometry.sector(stripe.id, cell).0 + self.cuts[band]);
            plan.recovered.push(Recovered { member, sector, content: target });
            *self.old_at(cell, band) = Old::At(target);
        }
        Some(())
    }

    /// The old content's place, once its read or recovery is planned.
    fn content(&mut self, cell: Cell, band: usize) -> Slice {
        match *self.old_at(cell, band) {
            Old::At(slice) => slice,
            state => unreachable!("cell {cell} is an operand and was planned for, not {state:?}"),
        }
    }

    /// Plans the new parity of every touched group.
    fn compute_parity(&mut self, plan: &mut Plan, stripe: &Stripe<'_>, method: Method) {
        for (group, equation) in stripe.map.groups().iter().enumerate() {
            let group = GroupId(u16::try_from(group).expect("a stripe has fewer than 65536 groups"));
            for band in 0..self.bands() {
                let update = *self.update(group, band);
                if update == Update::None {
                    continue;
                }
                let modify = update == Update::Partial && method == Method::ReadModifyWrite;
                let first = plan.operands.len();
                if modify {
                    push(plan, self.content(equation.parity, band), Factor::ONE);
                }
                for (cell, factor) in equation.data_terms() {
                    let new = *self.new_at(cell, band);
                    if new.is_some() == modify {
                        push(plan, self.content(cell, band), factor);
                    }
                    if let Some(new) = new.filter(|slice| slice.buffer != Buffer::Zeroes) {
                        push(plan, new, factor);
                    }
                }
                let parity = match plan.operands[first..] {
                    [] => Slice { buffer: Buffer::Zeroes, start: Sectors(0), len: self.len_of(band) },
                    // The XOR of one operand is the operand: nothing to compute, and mirrors are written from the
                    // request itself.
                    [Operand { content, factor: Factor::ONE }] => {
                        plan.operands.truncate(first);
                        content
                    }
                    _ => {
                        let target = self.scratch(plan, band);
                        finish_xor(plan, target, first);
                        target
                    }
                };
                *self.new_at(equation.parity, band) = Some(parity);
            }
        }
    }

    fn len_of(&self, band: usize) -> Sectors {
        Sectors(self.cuts[band + 1] - self.cuts[band])
    }

    /// Takes working memory for a value of this band.
    fn scratch(&self, plan: &mut Plan, band: usize) -> Slice {
        let slice = Slice { buffer: Buffer::Scratch, start: plan.scratch, len: self.len_of(band) };
        plan.scratch.0 += slice.len.0;
        slice
    }
}

impl Needs {
    fn clear(&mut self) {
        self.reads.clear();
        self.recoveries.clear();
        self.is_unmet = false;
    }
}

fn push(plan: &mut Plan, content: Slice, factor: Factor) {
    plan.operands.push(Operand { content, factor });
}

/// The operands from `first` on are the XOR's.
fn finish_xor(plan: &mut Plan, target: Slice, first: usize) {
    let count = index_u32(plan.operands.len() - first);
    plan.xors.push(Xor { target, first: index_u32(first), count });
}
