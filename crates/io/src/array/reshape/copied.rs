//! Members of which only a copy in memory is written: what is done to them leaves no trace.

use std::collections::BTreeMap;

use rustix::io::Errno;
use uraid_layout::{Bytes, MemberIndex, SECTOR_BYTES};

use crate::Error;
use crate::disk::{Completion, Disk, DiskError, DiskOp, OpKind};

/// See the module. `R` reads what a member holds: aligned to sectors and within it.
pub(super) struct Copied<R> {
    read: R,
    /// By member.
    sizes: Vec<Bytes>,
    /// What was written, by sector.
    written: BTreeMap<(MemberIndex, u64), Box<[u8]>>,
    completions: Vec<Completion>,
}

impl<R: Fn(MemberIndex, Bytes, Bytes) -> Result<Vec<u8>, Errno>> Copied<R> {
    /// Copies of members of these sizes.
    pub(super) fn new(read: R, sizes: Vec<Bytes>) -> Self {
        Self { read, sizes, written: BTreeMap::new(), completions: Vec::new() }
    }

    fn carry_out(&mut self, op: &mut DiskOp) -> Result<(), DiskError> {
        let Some(&size) = self.sizes.get(op.member.index()) else { return Err(DiskError::Absent { op: op.info() }) };
        op.check_end(size)?;
        match op.kind {
            OpKind::Flush => Ok(()),
            // Whoever asks writes zeros instead.
            OpKind::Zero { .. } => Err(DiskError::Unsupported { op: op.info() }),
            OpKind::Write => {
                let segments = op.segments.iter().flat_map(|lease| lease.bytes().chunks(sector_bytes()));
                for (sector, bytes) in (op.offset.0 / SECTOR_BYTES..).zip(segments) {
                    self.written.insert((op.member, sector), bytes.into());
                }
                Ok(())
            }
            OpKind::Read => self.fill(op).map_err(|errno| DiskError::Io { op: op.info(), errno }),
        }
    }

    fn fill(&self, op: &mut DiskOp) -> Result<(), Errno> {
        let (member, first) = (op.member, op.offset.0 / SECTOR_BYTES);
        let mut bytes = (self.read)(member, op.offset, op.len())?;
        for ((_, sector), written) in self.written.range((member, first)..(member, first + op.len().0 / SECTOR_BYTES)) {
            let at = usize::try_from(sector - first).expect("within the operation") * sector_bytes();
            bytes[at..at + sector_bytes()].copy_from_slice(written);
        }
        let mut rest = bytes.as_slice();
        for segment in &mut op.segments {
            let (own, others) = rest.split_at(segment.len());
            segment.copy_from(own);
            rest = others;
        }
        Ok(())
    }
}

impl<R: Fn(MemberIndex, Bytes, Bytes) -> Result<Vec<u8>, Errno>> Disk for Copied<R> {
    fn submit(&mut self, mut op: DiskOp) {
        let result = self.carry_out(&mut op);
        self.completions.push(op.complete(result));
    }

    fn kick(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.completions);
    }

    fn wait(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.completions.len()
    }
}

fn sector_bytes() -> usize {
    usize::try_from(SECTOR_BYTES).expect("a sector is small")
}
