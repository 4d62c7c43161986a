//! Parity stripes that were being written when the array stopped, and of which the log has sums, not content; blocking,
//! over any [`Disk`].
//!
//! A sector with its sum is *new*: it has been written. Any other is *old*, and holds what it did before. A stripe's
//! older records were in place before it was begun, and durable when its own record was: what they have is done again
//! where sectors are old, and nowhere else, in particular not where a sector can't be read. A later record of some of
//! its units began when all of it was in place: what that has is done again, and relies on the others being new.
//!
//! In a column, one sector of each unit, parity agrees when all sectors are new, or all old. Elsewhere it is computed
//! again from the data. Where data is lost, too, what parity says of it would be invented: that parity goes into its
//! member's list of bad blocks, and the lost sectors can't be read. A level with two parities goes on with the one
//! whose sectors are all new.
//!
//! This can be cut off anywhere, and begun again without more members: parity that was computed here is neither new nor
//! what the others had before, so that its column counts as old only where all data is, and then it agrees.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::smallvec;
use uraid_layout::field::Factor;
use uraid_layout::stripe::Group;
use uraid_layout::{Bytes, Cell, DiskSector, Geometry, Location, MemberIndex, SECTOR_BYTES, Sectors, StripeId};

use super::blocking::perform;
use super::overlay::Overlay;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Disk, DiskError, DiskOp, OpKind, Segments};
use crate::format::BLOCK;
use crate::format::log::record::{self, Extent, Header, Kind, LogSequence, SUM_BYTES};
use crate::format::superblock::Superblock;
use crate::member::Access;
use crate::xor::combine_into;

/// What is read of a member at once.
const WINDOW: Sectors = Sectors((1 << 20) / SECTOR_BYTES);

/// See the module.
pub(super) struct Columns<'a> {
    geometry: &'a Geometry,
    /// By slot; none of members that are lost.
    superblocks: &'a [Option<Superblock>],
    /// By member, what the log has sums of.
    looked: Vec<Vec<Looked>>,
    /// By member, what it has the content of.
    redone: Vec<Vec<(LogSequence, Range<u64>)>>,
}

/// Sectors in a row of which a record has sums.
struct Looked {
    sequence: LogSequence,
    first: u64,
    states: Vec<State>,
}

/// What a sector is to the newest record that has its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Old,
    /// A later record has its content.
    Redone,
    /// Nobody knows: its member is missing, or can't read it.
    Lost,
}

/// What parity is worth in some columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Agrees,
    ToCompute,
    Worthless,
}

impl Looked {
    fn range(&self) -> Range<u64> {
        self.first..self.first + self.states.len() as u64
    }

    fn state(&self, sector: u64) -> State {
        self.states[usize::try_from(sector - self.first).expect("a sector of a record")]
    }
}

impl<'a> Columns<'a> {
    pub(super) fn new(geometry: &'a Geometry, superblocks: &'a [Option<Superblock>]) -> Self {
        let looked = superblocks.iter().map(|_| Vec::new()).collect();
        let redone = superblocks.iter().map(|_| Vec::new()).collect();
        Self { geometry, superblocks, looked, redone }
    }

    /// Takes note of a record that is done again, with what follows its header. Members hold what they did at the stop;
    /// for writing, that is written again.
    ///
    /// # Errors
    /// When the member fails as a whole.
    pub(super) fn note(
        &mut self,
        disk: &mut impl Disk,
        own: &Superblock,
        header: &Header,
        content: &[u8],
        access: Access,
    ) -> Result<(), Error> {
        for (Extent { sector, len, kind }, sums) in header.pieces(content) {
            if kind == Kind::Sums {
                let states = look(disk, own, (sector, len), sums, access)?;
                self.looked[own.slot.index()].push(Looked { sequence: header.sequence, first: sector.0, states });
            }
        }
        self.note_redone(header);
        Ok(())
    }

    /// The same of a record without sums.
    pub(super) fn note_redone(&mut self, header: &Header) {
        let content = header.extents.iter().filter(|extent| extent.kind != Kind::Sums);
        let ranges = content.map(|extent| (header.sequence, extent.sector.0..extent.sector.0 + extent.len.0));
        self.redone[header.slot.index()].extend(ranges);
    }

    /// What of a member's sectors a record is to be done again in: those that no later one has sums of, or that are old
    /// to it. What can't be read may have been new, and be what the others are to make again.
    pub(super) fn old(&self, member: MemberIndex, sequence: LogSequence, sectors: Range<u64>) -> Vec<Range<u64>> {
        let mut left = vec![sectors];
        let later = self.looked[member.index()].iter().filter(|looked| looked.sequence > sequence);
        for looked in later.filter(|_| !planted!(RedoneOverNew)) {
            let range = looked.range();
            let is_old = |sector| match looked.state(sector) {
                State::Old => true,
                State::Lost => planted!(RedoneOverUnreadable),
                State::New | State::Redone => false,
            };
            for run in runs(range.filter(|&sector| !is_old(sector))) {
                left = left.into_iter().flat_map(|part| without(part, &run)).collect();
            }
        }
        left
    }

    /// Makes parity agree in the stripes that the log has sums of, on the members or in `overlay`, when all else is
    /// done again. Not durable yet. Returns what parity is worth nothing.
    ///
    /// # Errors
    /// When a member fails.
    pub(super) fn agree(
        &self,
        disk: &mut impl Disk,
        mut overlay: Option<&mut Overlay>,
    ) -> Result<Vec<Location>, Error> {
        let mut worthless = Vec::new();
        for (stripe, sequences) in self.stripes() {
            for group in self.geometry.map(stripe).groups() {
                let parity = self.geometry.member(group.parity);
                if self.superblocks[parity.index()].is_none() {
                    continue;
                }
                for start in (0..self.geometry.chunk().0).step_by(usize::try_from(BLOCK.0).expect("a small number")) {
                    let sectors = self.geometry.sector(stripe, group.parity).0 + start;
                    let verdicts = self.judge(stripe, &sequences, group, start);
                    if verdicts.contains(&Verdict::ToCompute) {
                        self.compute(disk, overlay.as_deref_mut(), stripe, group, start)?;
                    }
                    let is_worthless = |&at: &u64| verdicts[at as usize] == Verdict::Worthless;
                    let places = (0..BLOCK.0).filter(is_worthless).map(|at| DiskSector(sectors + at));
                    worthless.extend(places.map(|sector| Location { member: parity, sector }));
                }
            }
        }
        Ok(worthless)
    }

    /// The stripes that records have sums of, and which records these are, the newest last.
    fn stripes(&self) -> BTreeMap<StripeId, Vec<LogSequence>> {
        let mut stripes = BTreeMap::<StripeId, Vec<LogSequence>>::new();
        let chunk = usize::try_from(self.geometry.chunk().0).expect("a chunk is small");
        for (member, looked) in (0..).map(MemberIndex).zip(&self.looked) {
            for looked in looked {
                let units = looked.range().step_by(chunk);
                let cells =
                    units.filter_map(|sector| self.geometry.cell_at(Location { member, sector: DiskSector(sector) }));
                for (stripe, ..) in cells {
                    let sequences = stripes.entry(stripe).or_default();
                    if let Err(place) = sequences.binary_search(&looked.sequence) {
                        sequences.insert(place, looked.sequence);
                    }
                }
            }
        }
        stripes
    }

    /// What parity is worth in the columns of a block.
    fn judge(&self, stripe: StripeId, sequences: &[LogSequence], group: &Group, start: u64) -> Vec<Verdict> {
        let newest = *sequences.last().expect("a stripe that a record has sums of");
        let state = |cell: Cell, at: u64| self.state(stripe, newest, cell, start + at);
        let columns = 0..BLOCK.0;
        let is_new =
            |at: u64| group.cells().all(|cell| [State::New, State::Redone, State::Lost].contains(&state(cell, at)));
        let lacks_data = columns.clone().any(|at| group.data.iter().any(|&cell| state(cell, at) == State::Lost));
        let all = || (0..).map(Cell).take(self.geometry.map(stripe).cells());
        // Of two records of a stripe it may be the older one that is there in part.
        let is_old = |at: u64| {
            let cells = if planted!(OldByGroup) { group.cells().collect() } else { all().collect::<Vec<_>>() };
            let mut states = cells.into_iter().map(|cell| state(cell, at));
            sequences.len() == 1 && states.all(|state| [State::Old, State::Lost].contains(&state))
        };
        let is_trusted = planted!(MixedTrusted);
        let of = |at| match () {
            () if is_new(at) || is_trusted => Verdict::Agrees,
            () if !lacks_data || planted!(LostDataComputed) => Verdict::ToCompute,
            () if is_old(at) => Verdict::Agrees,
            () => Verdict::Worthless,
        };
        columns.map(of).collect()
    }

    fn state(&self, stripe: StripeId, newest: LogSequence, cell: Cell, column: u64) -> State {
        let member = self.geometry.member(cell);
        let sector = self.geometry.sector(stripe, cell).0 + column;
        if self.superblocks[member.index()].is_none() {
            return State::Lost;
        }
        let mut redone = self.redone[member.index()].iter();
        if redone.any(|(sequence, sectors)| *sequence > newest && sectors.contains(&sector)) {
            return State::Redone;
        }
        let mut looked = self.looked[member.index()].iter();
        let looked = looked.find(|looked| looked.sequence == newest && looked.range().contains(&sector));
        looked.map_or(State::Lost, |looked| looked.state(sector))
    }

    /// Computes a block of parity from the data.
    fn compute(
        &self,
        disk: &mut impl Disk,
        overlay: Option<&mut Overlay>,
        stripe: StripeId,
        group: &Group,
        start: u64,
    ) -> Result<(), Error> {
        let place = |cell: Cell| {
            let (member, sectors) = self.geometry.columns(stripe, cell, Sectors(start), BLOCK);
            (member, sectors.start)
        };
        let mut data = Vec::with_capacity(group.data.len());
        for (cell, factor) in group.data_terms() {
            let (member, sector) = place(cell);
            let mut buf = Buf::zeroed(BLOCK.bytes());
            if let Some(own) = &self.superblocks[member.index()] {
                let len = buf.len();
                perform(disk, [op(own, OpKind::Read, sector, |segments| segments.push(buf.lease_write(0..len)))])?;
            }
            if let Some(overlay) = &overlay {
                overlay.apply(member, sector, buf.as_mut());
            }
            data.push((buf, if planted!(ColumnFactorsForgotten) { Factor::ONE } else { factor }));
        }
        let terms: Vec<(&[u8], Factor)> = data.iter().map(|(buf, factor)| (buf.as_ref(), *factor)).collect();
        let mut parity = Buf::zeroed(BLOCK.bytes());
        combine_into(parity.as_mut(), &terms);
        let (member, sector) = place(group.parity);
        let Some(own) = &self.superblocks[member.index()] else { return Ok(()) };
        match overlay {
            Some(overlay) => overlay.put(member, sector, BLOCK, Some(parity.as_ref())),
            None => {
                let len = parity.len();
                perform(disk, [op(own, OpKind::Write, sector, |segments| segments.push(parity.lease_read(0..len)))])?;
            }
        }
        Ok(())
    }
}

/// Compares what a member has with the sums of a record. The array's sectors are written in one piece, and done again
/// in one piece: all of one is new, or none of it.
fn look(
    disk: &mut impl Disk,
    own: &Superblock,
    (sector, len): (DiskSector, Sectors),
    sums: &[u8],
    access: Access,
) -> Result<Vec<State>, Error> {
    let mut states = Vec::with_capacity(sums.len() / SUM_BYTES);
    let mut sums = sums.chunks_exact(SUM_BYTES);
    let mut at = sector.0;
    while at < sector.0 + len.0 {
        let part = Sectors(WINDOW.0.min(sector.0 + len.0 - at));
        let found = read(disk, own, DiskSector(at), part, access)?;
        states.extend(found.into_iter().zip(sums.by_ref().take(usize::try_from(part.0).expect("a window"))).map(
            |(found, sum)| match found {
                Some(found) if found == *sum => State::New,
                Some(_) => State::Old,
                None => State::Lost,
            },
        ));
        at += part.0;
    }
    let sector = usize::try_from(own.sector_size.0 / SECTOR_BYTES).expect("a small number");
    for sector in states.chunks_mut(sector).filter(|_| !planted!(SectorsInPart)) {
        let lost = sector.contains(&State::Lost).then_some(State::Lost);
        let old = sector.contains(&State::Old).then_some(State::Old);
        sector.fill(lost.or(old).unwrap_or(State::New));
    }
    Ok(states)
}

/// The sums of what a member has, block by block where that fails; none of what it can't read. For writing, it is
/// written again: what a write left that failed may be shown without ever being durable.
fn read(
    disk: &mut impl Disk,
    own: &Superblock,
    sector: DiskSector,
    len: Sectors,
    access: Access,
) -> Result<Vec<Option<[u8; SUM_BYTES]>>, Error> {
    let mut buf = Buf::zeroed(len.bytes());
    let bytes = buf.len();
    let sectors = usize::try_from(len.0).expect("a window");
    match perform(disk, [op(own, OpKind::Read, sector, |segments| segments.push(buf.lease_write(0..bytes)))]) {
        Ok(()) => {
            if access == Access::ReadWrite && !planted!(SummedUnwritten) {
                perform(disk, [op(own, OpKind::Write, sector, |segments| segments.push(buf.lease_read(0..bytes)))])?;
            }
            let sector = usize::try_from(SECTOR_BYTES).expect("a small number");
            Ok(buf.as_ref().chunks_exact(sector).map(|sector| Some(record::sum(sector))).collect())
        }
        Err(Error::Disk(DiskError::TimedOut { op })) => Err(Error::Disk(DiskError::TimedOut { op })),
        Err(Error::Disk(_)) if len <= BLOCK => Ok(vec![None; sectors]),
        Err(Error::Disk(_)) => {
            let step = usize::try_from(BLOCK.0).expect("a small number");
            let mut found = Vec::with_capacity(sectors);
            for at in (0..len.0).step_by(step) {
                let len = Sectors(BLOCK.0.min(len.0 - at));
                found.extend(read(disk, own, DiskSector(sector.0 + at), len, access)?);
            }
            Ok(found)
        }
        Err(error) => Err(error),
    }
}

fn op(own: &Superblock, kind: OpKind, sector: DiskSector, lend: impl FnOnce(&mut Segments)) -> DiskOp {
    let offset = Bytes(own.areas.data.offset.0 + Sectors(sector.0).bytes().0);
    let mut segments = smallvec![];
    lend(&mut segments);
    DiskOp { tag: 0, member: own.slot, kind, offset, segments }
}

/// Numbers that follow each other, as ranges.
fn runs(numbers: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs = Vec::<Range<u64>>::new();
    for number in numbers {
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

/// What is left of a range without another one.
fn without(part: Range<u64>, cut: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = part.start..part.end.min(cut.start);
    let behind = part.start.max(cut.end)..part.end;
    [before, behind].into_iter().filter(|rest| rest.start < rest.end)
}
