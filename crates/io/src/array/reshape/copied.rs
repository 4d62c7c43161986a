//! Members of which only a copy in memory is written: what is done to them leaves no trace.

use std::collections::BTreeMap;

use rustix::io::Errno;
use uraid_layout::{Bytes, MemberIndex, SECTOR_BYTES};

use crate::Error;
use crate::disk::{Completion, Disk, DiskError, DiskOp, OpKind};

/// See the module. `R` reads what a member holds: aligned to sectors and within it, and not of a blank one.
pub(super) struct Copied<R> {
    read: R,
    /// By member.
    sizes: Vec<Bytes>,
    /// Members from here on hold zeros.
    blank: usize,
    /// What was written, by sector; of a blank member what is not zeros.
    written: BTreeMap<(MemberIndex, u64), Box<[u8]>>,
    completions: Vec<Completion>,
}

impl<R: Fn(MemberIndex, Bytes, Bytes) -> Result<Vec<u8>, Errno>> Copied<R> {
    /// Copies of members of these sizes. Whatever those from `blank` on hold, their copies hold zeros.
    pub(super) fn new(read: R, sizes: Vec<Bytes>, blank: usize) -> Self {
        Self { read, sizes, blank, written: BTreeMap::new(), completions: Vec::new() }
    }

    fn carry_out(&mut self, op: &mut DiskOp) -> Result<(), DiskError> {
        let Some(&size) = self.sizes.get(op.member.index()) else { return Err(DiskError::Absent { op: op.info() }) };
        op.check_end(size)?;
        match op.kind {
            OpKind::Flush => Ok(()),
            // Whoever asks writes zeros instead.
            OpKind::Zero { .. } => Err(DiskError::Unsupported { op: op.info() }),
            OpKind::Write | OpKind::WriteFua => {
                let segments = op.segments.iter().flat_map(|lease| lease.bytes().chunks(sector_bytes()));
                for (sector, bytes) in (op.offset.0 / SECTOR_BYTES..).zip(segments) {
                    // An area for a log is as large as it likes; most of it is only zeros.
                    if op.member.index() >= self.blank && bytes.iter().all(|&byte| byte == 0) {
                        self.written.remove(&(op.member, sector));
                    } else {
                        self.written.insert((op.member, sector), bytes.into());
                    }
                }
                Ok(())
            }
            OpKind::Read => self.fill(op).map_err(|errno| DiskError::Io { op: op.info(), errno }),
        }
    }

    fn fill(&self, op: &mut DiskOp) -> Result<(), Errno> {
        let (member, first) = (op.member, op.offset.0 / SECTOR_BYTES);
        let mut bytes = if member.index() < self.blank {
            (self.read)(member, op.offset, op.len())?
        } else {
            vec![0; usize::try_from(op.len().0).expect("an operation fits the address space")]
        };
        for ((_, sector), written) in self.written.range((member, first)..(member, first + op.len().0 / SECTOR_BYTES)) {
            let at = usize::try_from(sector - first).expect("within the operation") * sector_bytes();
            bytes[at..at + sector_bytes()].copy_from_slice(written);
        }
        op.fill(&bytes);
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
