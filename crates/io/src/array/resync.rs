//! Making redundancy agree after an unclean stop where no log says how; blocking, over any [`Disk`].
//!
//! Parity is computed from the data, and of copies one is made the others' content: after a power cut each is as good
//! as any. All of it is written, since what a member shows after a flush that failed may not be durable. A copy that
//! can't be read is read from another one, written back and read again. Data that only parity could give is another
//! thing: where writes were under way parity may be wrong, and what is computed from it would be made up. Such data
//! goes into its member's list of bad blocks, and so does parity that can't be computed without it.
//!
//! A member that fails a write or a flush is given up, but only when all is done: until then parity that others hold
//! may not cover what it has, and what it shows is needed. The array goes on without it then, and nothing of what it
//! held is lost.

use std::iter;
use std::ops::Range;

use rustix::io::Errno;
use smallvec::smallvec;
use uraid_layout::field::Factor;
use uraid_layout::stripe::Group;
use uraid_layout::{Bytes, Cell, DiskSector, Geometry, MemberIndex, MemberSet, Sectors, StripeId};

use super::badblocks::write_list;
use super::blocking::{flush, run, run_all};
use super::error::RecoverError;
use super::losses::Losses;
use crate::Error;
use crate::bounds::COLUMNS;
use crate::buf::Buf;
use crate::disk::{Completion, Disk, DiskError, DiskOp, OpKind};
use crate::format::BLOCK;
use crate::format::badblocks::{BadBlocks, Lack};
use crate::format::superblock::Superblock;
use crate::xor::combine_into;

/// Memory for what is worked on at once, beside one [`COLUMNS`] of a stripe.
const BATCH_BYTES: u64 = 8 << 20;

/// See the module.
pub(super) struct Resync<'a, D> {
    pub(super) disk: &'a mut D,
    pub(super) geometry: &'a Geometry,
    /// By slot.
    pub(super) superblocks: &'a [Option<Superblock>],
    /// Who is missing, or does not have all content: nobody, unless the members hold copies. The others are made to
    /// agree.
    pub(super) absent: MemberSet,
    pub(super) losses: &'a mut Losses,
    /// What the members lack, by slot.
    pub(super) lists: &'a mut [BadBlocks],
}

/// The columns of a stripe, and what of them was read.
struct Piece {
    stripe: StripeId,
    start: Sectors,
    len: Sectors,
    cells: Vec<(Cell, Buf)>,
    /// The cells that could not be read.
    errors: Vec<(Cell, DiskError)>,
}

impl<D: Disk> Resync<'_, D> {
    /// Makes redundancy agree in these stripes, and that durable. `progress` gets the bytes of content done so far.
    ///
    /// # Errors
    /// [`RecoverError::BadBlocks`], [`RecoverError::Needed`].
    pub(super) fn run(
        &mut self,
        stripes: impl Iterator<Item = StripeId>,
        mut progress: impl FnMut(Bytes),
    ) -> Result<(), RecoverError> {
        let (chunk, before) = (self.geometry.chunk().0, self.lists.to_vec());
        let step = usize::try_from(COLUMNS.0).expect("a small number");
        let columns = |stripe| {
            (0..chunk).step_by(step).map(move |start| (stripe, Sectors(start), Sectors(COLUMNS.0.min(chunk - start))))
        };
        let mut pieces = stripes.flat_map(columns).peekable();
        let stripe = COLUMNS.bytes().0.saturating_mul(self.geometry.members() as u64);
        let batch = usize::try_from((BATCH_BYTES / stripe).max(1)).expect("a small number");
        let mut done = Bytes(0);
        while pieces.peek().is_some() {
            let batch: Vec<_> = pieces.by_ref().take(batch).collect();
            let share: u64 = batch.iter().map(|(.., len)| len.0).sum();
            let read = self.read(batch)?;
            let (torn, whole): (Vec<_>, Vec<_>) = read.into_iter().partition(|piece| !piece.errors.is_empty());
            self.write(&whole)?;
            torn.into_iter().try_for_each(|piece| self.mend(&piece))?;
            done.0 += self.geometry.stripe_sectors().bytes().0 / chunk * share;
            progress(done);
        }
        let members = self.geometry.all_members().minus(self.out());
        let failed = run(self.disk, members.iter().map(flush))?;
        failed.into_iter().try_for_each(|error| self.losses.give_up(error.into()))?;
        for own in self.superblocks.iter().flatten() {
            let (member, list) = (own.slot, &mut self.lists[own.slot.index()]);
            if *list != before[member.index()]
                && !self.losses.members().contains(member)
                && let Err(error) = write_list(self.disk, own, list)
            {
                self.losses.give_up(error)?;
            }
        }
        Ok(())
    }

    /// Reads the data of columns.
    fn read(&mut self, columns: Vec<(StripeId, Sectors, Sectors)>) -> Result<Vec<Piece>, Error> {
        let piece = |(stripe, start, len)| {
            let mut cells: Vec<Cell> =
                groups(self.geometry, stripe).flat_map(|group| group.data.iter().copied()).collect();
            cells.retain(|&cell| !self.is_absent(self.source(stripe, cell)));
            cells.sort_unstable();
            cells.dedup();
            let cells = cells.into_iter().map(|cell| (cell, Buf::zeroed(Sectors::bytes(len)))).collect();
            Piece { stripe, start, len, cells, errors: Vec::new() }
        };
        let mut pieces: Vec<Piece> = columns.into_iter().map(piece).collect();
        let mut places = Vec::new();
        let mut ops = Vec::new();
        for (index, piece) in pieces.iter_mut().enumerate() {
            let (stripe, start, len) = (piece.stripe, piece.start, piece.len);
            for (cell, buf) in &mut piece.cells {
                let segments = smallvec![buf.lease_write(0..size(len))];
                let op = self.op(stripe, self.source(stripe, *cell), start, OpKind::Read);
                ops.push(DiskOp { tag: places.len() as u64, segments, ..op });
                places.push((index, *cell));
            }
        }
        for Completion { tag, result, .. } in run_all(self.disk, ops)? {
            let (piece, cell) = places[usize::try_from(tag).expect("an index")];
            pieces[piece].errors.extend(result.err().map(|error| (cell, error)));
        }
        for piece in &mut pieces {
            let is_read = |cell: &Cell| piece.errors.iter().all(|(failed, _)| failed != cell);
            let read = piece.cells.iter().map(|(cell, _)| *cell).filter(is_read);
            let absent: Vec<Cell> = read.filter(|&cell| self.is_bad(piece, self.source(piece.stripe, cell))).collect();
            for cell in absent {
                let op = self.op(piece.stripe, self.source(piece.stripe, cell), piece.start, OpKind::Read).info();
                piece.errors.push((cell, DiskError::Io { op, errno: Errno::IO }));
            }
        }
        Ok(pieces)
    }

    /// Where a cell is read: another copy, where its member fails.
    fn source(&self, stripe: StripeId, cell: Cell) -> Cell {
        let fails = |cell: Cell| self.out().contains(self.geometry.member(cell));
        let mut copies = groups(self.geometry, stripe).filter(|group| group.data == [cell]).map(|group| group.parity);
        let other = fails(cell).then(|| copies.find(|&copy| !fails(copy))).flatten();
        other.unwrap_or(cell)
    }

    /// Computes parity, and writes it; the data, too, which reads may show though it is not durable.
    fn write(&mut self, pieces: &[Piece]) -> Result<(), RecoverError> {
        let (mut ops, mut written, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for piece in pieces {
            let mut put = |cell, content: &Buf| {
                let segments = smallvec![content.lease_read(0..size(piece.len))];
                if !self.out().contains(self.geometry.member(cell)) {
                    ops.push(DiskOp { segments, ..self.op(piece.stripe, cell, piece.start, OpKind::Write) });
                    written.push(self.place(piece, cell));
                }
            };
            if !planted!(ResyncedInPart) {
                piece.cells.iter().for_each(|(cell, content)| put(*cell, content));
            }
            for group in groups(self.geometry, piece.stripe) {
                let term = |(cell, factor)| {
                    Some((piece.content(cell)?, if planted!(ResyncFactorsForgotten) { Factor::ONE } else { factor }))
                };
                let terms: Option<Vec<(&[u8], Factor)>> = group.data_terms().map(term).collect();
                let Some(terms) = terms else {
                    // Of copies that nobody can read one counts should it be read again: they may differ.
                    let kept = self.source(piece.stripe, group.data[0]);
                    let is_copy = group.data.len() == 1;
                    let lost = group.cells().filter(|&cell| if is_copy { cell != kept } else { cell == group.parity });
                    let lost = lost.filter(|&cell| !self.out().contains(self.geometry.member(cell)));
                    unknown.extend(lost.map(|cell| self.place(piece, cell)));
                    continue;
                };
                let mut parity = Buf::zeroed(piece.len.bytes());
                combine_into(parity.as_mut(), &terms);
                put(group.parity, &parity);
            }
        }
        let failed = run(self.disk, ops)?;
        failed.into_iter().try_for_each(|error| self.losses.give_up(error.into()))?;
        for (member, sectors) in written {
            self.lists[member.index()].remove(sectors);
        }
        unknown
            .into_iter()
            .filter(|_| !planted!(ResyncKeepsParity))
            .try_for_each(|place| self.lose(place, Lack::Absent))
    }

    /// Where the columns of a piece are on a cell's member.
    fn place(&self, piece: &Piece, cell: Cell) -> (MemberIndex, Range<DiskSector>) {
        self.geometry.columns(piece.stripe, cell, piece.start, piece.len)
    }

    /// Whether a cell's member lacks some of a piece for good.
    fn is_bad(&self, piece: &Piece, cell: Cell) -> bool {
        let (member, sectors) = self.place(piece, cell);
        self.lists[member.index()].within(sectors, Lack::Absent).next().is_some() && !planted!(BadBlocksResynced)
    }

    /// Takes sectors into a member's list.
    fn lose(&mut self, (member, sectors): (MemberIndex, Range<DiskSector>), lack: Lack) -> Result<(), RecoverError> {
        let path = || self.losses.path(member);
        self.lists[member.index()].add(sectors, lack).map_err(|source| RecoverError::BadBlocks { path: path(), source })
    }

    /// Does columns of which something can't be read, in small parts.
    fn mend(&mut self, whole: &Piece) -> Result<(), RecoverError> {
        let end = whole.start.0 + whole.len.0;
        for start in (whole.start.0..end).step_by(usize::try_from(BLOCK.0).expect("a small number")) {
            let columns = (whole.stripe, Sectors(start), Sectors(BLOCK.0.min(end - start)));
            for mut piece in self.read(vec![columns])? {
                for (cell, error) in std::mem::take(&mut piece.errors) {
                    self.copy(&mut piece, cell, error)?;
                }
                self.write(&[piece])?;
            }
        }
        Ok(())
    }

    /// Takes a cell from another copy than the one that could not be read, and writes that again.
    fn copy(&mut self, piece: &mut Piece, cell: Cell, error: DiskError) -> Result<(), RecoverError> {
        let is_copy = |group: &&Group| group.data == [cell] || planted!(ResyncFromParity) && group.data.contains(&cell);
        let copies = groups(self.geometry, piece.stripe).filter(is_copy).map(|group| group.parity);
        let all: Vec<Cell> = iter::once(cell).chain(copies).collect();
        if all.len() == 1 {
            tracing::error!("{}: {error}; its content is lost", self.losses.path(error.op().member).display());
            piece.forget(cell);
            return self.lose(self.place(piece, cell), Lack::Unread);
        }
        let source = self.source(piece.stripe, cell);
        for copy in all {
            if copy == source || self.is_absent(copy) || self.is_bad(piece, copy) {
                continue;
            }
            let Some(content) = self.read_one(piece, copy)? else { continue };
            let op = self.op(piece.stripe, source, piece.start, OpKind::Write);
            let segments = smallvec![content.lease_read(0..size(piece.len))];
            let failed = run(self.disk, [DiskOp { segments, ..op }])?.into_iter().next();
            let is_back =
                failed.is_none() && self.read_one(piece, source)?.is_some_and(|back| back.as_ref() == content.as_ref());
            if is_back || planted!(ResyncUnchecked) {
                tracing::warn!("{}: {error}; another copy was written back", self.losses.path(op.member).display());
            } else {
                self.losses.give_up(failed.unwrap_or(error).into())?;
            }
            piece.put(cell, content);
            return Ok(());
        }
        // No copy is left, and so there is nothing that could be made equal: reading it is an error.
        tracing::error!("{}: {error}; no copy of that can be read", self.losses.path(error.op().member).display());
        piece.forget(cell);
        self.lose(self.place(piece, source), Lack::Unread)
    }

    /// Who is neither read nor written.
    fn out(&self) -> MemberSet {
        self.absent.union(self.losses.members())
    }

    fn is_absent(&self, cell: Cell) -> bool {
        self.absent.contains(self.geometry.member(cell))
    }

    /// Reads a cell; none where that fails.
    fn read_one(&mut self, piece: &Piece, cell: Cell) -> Result<Option<Buf>, Error> {
        let mut buf = Buf::zeroed(piece.len.bytes());
        let segments = smallvec![buf.lease_write(0..size(piece.len))];
        let op = DiskOp { segments, ..self.op(piece.stripe, cell, piece.start, OpKind::Read) };
        Ok(run(self.disk, [op])?.is_empty().then_some(buf))
    }

    fn op(&self, stripe: StripeId, cell: Cell, start: Sectors, kind: OpKind) -> DiskOp {
        let member = self.geometry.member(cell);
        let own = self.superblocks[member.index()].as_ref().expect("who is missing is neither read nor written");
        let sector = Sectors(self.geometry.sector(stripe, cell).0 + start.0);
        let offset = Bytes(own.areas.data.offset.0 + sector.bytes().0);
        DiskOp { tag: 0, member, kind, offset, segments: smallvec![] }
    }
}

impl Piece {
    /// What a cell has; none where nobody knows.
    fn content(&self, cell: Cell) -> Option<&[u8]> {
        self.cells.iter().find(|(other, _)| *other == cell).map(|(_, buf)| buf.as_ref())
    }

    fn put(&mut self, cell: Cell, content: Buf) {
        self.forget(cell);
        self.cells.push((cell, content));
    }

    fn forget(&mut self, cell: Cell) {
        self.cells.retain(|(other, _)| *other != cell);
    }
}

/// The parity groups of a stripe that the array uses.
fn groups(geometry: &Geometry, stripe: StripeId) -> impl Iterator<Item = &Group> {
    let is_used = move |group: &&Group| group.cells().all(|cell| geometry.uses(stripe, cell));
    geometry.map(stripe).groups().iter().filter(is_used)
}

fn size(len: Sectors) -> usize {
    usize::try_from(len.bytes().0).expect("columns fit the address space")
}
