//! Making redundancy agree after an unclean stop where no log says how; blocking, over any [`Disk`].
//!
//! Parity is computed from the data, and of copies one is made the others' content: after a power cut each is as good
//! as any. All of it is written, since what a member shows after a flush that failed may not be durable. A copy that
//! can't be read is read from another one, written back and read again. Data that only parity could give is another
//! thing: where writes were under way parity may be wrong, and what is computed from it would be made up. That is
//! refused.
//!
//! A member that fails a write or a flush is given up, but only when all is done: until then parity that others hold
//! may not cover what it has, and what it shows is needed. The array goes on without it then, and nothing of what it
//! held is lost.

use std::iter;

use smallvec::smallvec;
use uraid_layout::stripe::Group;
use uraid_layout::{Bytes, Cell, Geometry, Lba, MemberSet, Sectors, StripeId};

use super::blocking::{flush, run, run_all};
use super::error::RecoverError;
use super::losses::Losses;
use crate::Error;
use crate::bounds::COLUMNS;
use crate::buf::Buf;
use crate::disk::{Completion, Disk, DiskError, DiskOp, OpKind};
use crate::format::BLOCK;
use crate::format::superblock::Superblock;
use crate::xor::xor_into;

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
    /// [`RecoverError::Unreadable`], [`RecoverError::Needed`].
    pub(super) fn run(
        &mut self,
        stripes: impl Iterator<Item = StripeId>,
        mut progress: impl FnMut(Bytes),
    ) -> Result<(), RecoverError> {
        let chunk = self.geometry.chunk().0;
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
        failed.into_iter().try_for_each(|error| self.losses.give_up(error.into()))
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
        let mut ops = Vec::new();
        for piece in pieces {
            let mut put = |cell, content: &Buf| {
                let segments = smallvec![content.lease_read(0..size(piece.len))];
                if !self.out().contains(self.geometry.member(cell)) {
                    ops.push(DiskOp { segments, ..self.op(piece.stripe, cell, piece.start, OpKind::Write) });
                }
            };
            if !planted!(ResyncedInPart) {
                piece.cells.iter().for_each(|(cell, content)| put(*cell, content));
            }
            for group in groups(self.geometry, piece.stripe) {
                let sources: Option<Vec<&[u8]>> = group.data.iter().map(|&cell| piece.content(cell)).collect();
                let Some(sources) = sources else { continue };
                let mut parity = Buf::zeroed(piece.len.bytes());
                xor_into(parity.as_mut(), &sources);
                put(group.parity, &parity);
            }
        }
        let failed = run(self.disk, ops)?;
        failed.into_iter().try_for_each(|error| self.losses.give_up(error.into()))
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
            return Err(self.unreadable(piece, cell, error));
        }
        let source = self.source(piece.stripe, cell);
        for copy in all {
            if copy == source || self.is_absent(copy) {
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
        Ok(())
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

    fn unreadable(&self, piece: &Piece, cell: Cell, source: DiskError) -> RecoverError {
        let unit = self.geometry.map(piece.stripe).data().iter().position(|&data| data == cell).unwrap_or_default();
        let stripe = piece.stripe.0 * self.geometry.stripe_sectors().0;
        let lba = Lba(stripe + unit as u64 * self.geometry.chunk().0 + piece.start.0);
        RecoverError::Unreadable { path: self.losses.path(source.op().member), lba, len: piece.len, source }
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
