//! Reads an array's content, and computes what members do not have.
//!
//! Every sector is read from a member that has it by all that is on record, or computed from members that have what it
//! takes. If there are none the read fails: nothing is made up.

use std::io;
use std::sync::Arc;

use uraid_layout::field::{self, Factor};
use uraid_layout::{Bytes, DiskSector, Lba, SECTOR_BYTES, Sectors};

use crate::geometry::{Geometry, Slot, Stripe};
use crate::source::Source;
use crate::superblock::BadRange;

/// The most that is read, or computed, in one piece.
const PIECE_BYTES_MAX: usize = 256 << 10;
const SECTOR: usize = SECTOR_BYTES as usize;

/// A member as it is read.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) source: Arc<dyn Source>,
    /// Where its data begin, and how long they are.
    pub(crate) data_offset: DiskSector,
    pub(crate) data_size: Sectors,
    /// Up to where it has its content, from the start of its data; `None`: everywhere.
    pub(crate) recovered: Option<Sectors>,
    /// Where it does not, from the start of the device.
    pub(crate) bad: Vec<BadRange>,
}

/// An array that can be read.
pub struct Array {
    geometry: Geometry,
    /// By slots.
    members: Vec<Option<Member>>,
    /// Parity counts before this sector of each member; `None`: everywhere.
    parity_end: Option<Sectors>,
}

/// Why content can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No member has it, nor can it be computed.
    #[error("sector {0} of the array can't be read from any member, nor be computed")]
    Lost(Lba),
    /// It is beyond the end of the array.
    #[error("it is beyond the end of the array")]
    BeyondEnd,
}

impl Member {
    /// Fills `buf` with the data from `sector` on, if the member has them.
    fn read(&self, sector: DiskSector, buf: &mut [u8]) -> io::Result<()> {
        let none = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let sectors = (buf.len() / SECTOR) as u64;
        let end = sector.0.checked_add(sectors).ok_or_else(none)?;
        let limit = self.recovered.map_or(self.data_size, |recovered| recovered.min(self.data_size));
        let start = self.data_offset.0.checked_add(sector.0).filter(|_| end <= limit.0).ok_or_else(none)?;
        let is_bad = |bad: &BadRange| bad.start.0 < start + sectors && start < bad.start.0.saturating_add(bad.len.0);
        let at = start.checked_mul(SECTOR_BYTES).filter(|_| !self.bad.iter().any(is_bad)).ok_or_else(none)?;
        self.source.read_at(buf, Bytes(at))
    }
}

impl Array {
    pub(crate) fn new(geometry: Geometry, members: Vec<Option<Member>>, parity_end: Option<Sectors>) -> Self {
        Self { geometry, members, parity_end }
    }

    /// The array's size.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        self.geometry.capacity().bytes()
    }

    /// Where everything is.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Fills `buf` with the content from byte `at` on; both are anything.
    ///
    /// # Errors
    /// [`ReadError`]. What `buf` holds then is not content.
    pub fn read(&self, at: Bytes, mut buf: &mut [u8]) -> Result<(), ReadError> {
        let end = at.0.checked_add(buf.len() as u64).filter(|&end| end <= self.capacity().0);
        end.ok_or(ReadError::BeyondEnd)?;
        let mut at = at.0;
        while !buf.is_empty() {
            let (lba, within) = (Lba(at / SECTOR_BYTES), (at % SECTOR_BYTES) as usize);
            let len = if within > 0 || buf.len() < SECTOR {
                let mut sector = [0; SECTOR];
                self.read_piece(lba, &mut sector)?;
                let len = buf.len().min(SECTOR - within);
                buf[..len].copy_from_slice(&sector[within..within + len]);
                len
            } else {
                let whole = buf.len() - buf.len() % SECTOR;
                self.read_piece(lba, &mut buf[..whole])?
            };
            buf = &mut buf[len..];
            at += len as u64;
        }
        Ok(())
    }

    /// Fills `buf`, which is whole sectors, as far as its first chunk goes, and returns how many bytes that are.
    fn read_piece(&self, lba: Lba, buf: &mut [u8]) -> Result<usize, ReadError> {
        let located = self.geometry.locate(lba).ok_or(ReadError::BeyondEnd)?;
        let run = usize::try_from(located.run.0.saturating_mul(SECTOR_BYTES)).unwrap_or(usize::MAX);
        let len = run.min(PIECE_BYTES_MAX).min(buf.len());
        let buf = &mut buf[..len];
        if located.copies.iter().any(|copy| self.read_member(copy.slot, copy.sector, buf)) {
            return Ok(len);
        }
        if self.geometry.stripe(lba).is_some_and(|stripe| self.compute(&stripe, buf)) {
            return Ok(len);
        }
        if buf.len() <= SECTOR {
            return Err(ReadError::Lost(lba));
        }
        // Other members may have what one lacks, sector by sector.
        for (lba, sector) in (lba.0..).zip(buf.chunks_mut(SECTOR)) {
            self.read_piece(Lba(lba), sector)?;
        }
        Ok(len)
    }

    /// Reads from a member; false if it is missing, or does not have that.
    fn read_member(&self, slot: Slot, sector: DiskSector, buf: &mut [u8]) -> bool {
        let member = self.members.get(usize::from(slot.0)).and_then(Option::as_ref);
        member.is_some_and(|member| member.read(sector, buf).is_ok())
    }

    /// Computes what a stripe's own member should have; false if that is not possible.
    fn compute(&self, stripe: &Stripe, buf: &mut [u8]) -> bool {
        let end = stripe.sector.0 + (buf.len() / SECTOR) as u64;
        if self.parity_end.is_some_and(|parity| end > parity.0) {
            return false;
        }
        self.compute_by_p(stripe, buf) || stripe.q.is_some_and(|q| self.compute_by_q(stripe, q, buf))
    }

    /// The same, if all other members of the stripe's XOR are there.
    fn compute_by_p(&self, stripe: &Stripe, buf: &mut [u8]) -> bool {
        let mut other = vec![0; buf.len()];
        buf.fill(0);
        let slots = stripe.data.iter().map(|&(slot, _)| slot).chain([stripe.p]);
        slots.filter(|&slot| slot != stripe.own).all(|slot| {
            let is_read = self.read_member(slot, stripe.sector, &mut other);
            field::add(buf, &other);
            is_read
        })
    }

    /// The same with Q, and with P if another member's data are missing, too.
    ///
    /// With x for what is wanted and y for what else is missing: P + (other data) = x + y, and Q + (other data by their
    /// factors) = ax + by.
    fn compute_by_q(&self, stripe: &Stripe, q: Slot, buf: &mut [u8]) -> bool {
        let (mut other, mut sum) = (vec![0; buf.len()], vec![0; buf.len()]);
        let (mut own, mut lost) = (None, None);
        if !self.read_member(q, stripe.sector, buf) {
            return false;
        }
        for &(slot, exponent) in &stripe.data {
            let factor = Factor::power(exponent);
            if slot == stripe.own {
                own = Some(factor);
            } else if self.read_member(slot, stripe.sector, &mut other) {
                field::add_multiple(buf, &other, factor);
                field::add(&mut sum, &other);
            } else if lost.replace(factor).is_some() {
                return false;
            }
        }
        let Some(own) = own else { return false };
        let divisor = match lost {
            None => own,
            Some(lost) => {
                if !self.read_member(stripe.p, stripe.sector, &mut other) {
                    return false;
                }
                field::add(&mut sum, &other);
                field::add_multiple(buf, &sum, lost);
                own.plus(lost)
            }
        };
        let Some(inverse) = divisor.inverse() else { return false };
        field::scale(buf, inverse);
        true
    }
}
