//! Members in memory, for tests: counted, failing on request, completing in a chosen deterministic order.
//!
//! An operation takes effect when it completes, so that the order is also the order of effects.

use std::ops::Range;

use rustix::io::Errno;
use uraid_layout::{Bytes, MemberIndex};

use super::{Completion, Disk, DiskError, DiskOp, Image, OpKind, OpName, PLACES};
use crate::buf::Lease;
use crate::error::Error;

/// In which order operations in flight complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All, oldest first.
    Fifo,
    /// All, newest first.
    Lifo,
    /// A few at a time, shuffled; the same seed gives the same order.
    Seeded(u64),
}

/// What a member was asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
    /// Zeroing operations.
    pub zeroings: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes of the read operations.
    pub bytes_read: Bytes,
    /// Bytes of the write operations.
    pub bytes_written: Bytes,
}

/// An order to fail operations of one kind on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// On which member.
    pub member: MemberIndex,
    /// Which operations.
    pub name: OpName,
    /// How many of them still succeed first.
    pub after: u64,
    /// How many fail then; `u64::MAX` for all.
    pub count: u64,
    /// The error that they report.
    pub errno: Errno,
}

/// The members of an array as images in memory.
#[derive(Debug)]
pub struct MemDisk {
    members: Vec<Option<Image>>,
    counters: Vec<Counters>,
    faults: Vec<Fault>,
    spoilt: Vec<(MemberIndex, Range<u64>)>,
    /// What offsets and lengths have to be multiples of.
    sector_size: Bytes,
    order: Order,
    random: u64,
    queued: Vec<DiskOp>,
    flying: Vec<DiskOp>,
}

impl MemDisk {
    /// A disk of the given members; `None` is an absent one.
    ///
    /// # Panics
    /// When there are more than there can be.
    #[must_use]
    pub fn new(members: Vec<Option<Image>>, order: Order) -> Self {
        assert!(members.len() <= PLACES, "an array has at most 64 members, and a few log devices");
        let counters = vec![Counters::default(); members.len()];
        let random = if let Order::Seeded(seed) = order { seed } else { 0 };
        Self {
            members,
            counters,
            faults: Vec::new(),
            spoilt: Vec::new(),
            sector_size: Bytes(1),
            order,
            random,
            queued: Vec::new(),
            flying: Vec::new(),
        }
    }

    /// A disk of `members` zeroed members of `size` bytes that completes in order.
    ///
    /// # Panics
    /// When there are over 64 members, or the size does not fit the address space.
    #[must_use]
    pub fn zeroed(members: usize, size: Bytes) -> Self {
        let size = usize::try_from(size.0).expect("a member in memory fits the address space");
        Self::new(vec![Some(Image::zeroed(size)); members], Order::Fifo)
    }

    /// Has members take whole sectors of this size only, as a device does that is used directly.
    pub fn set_sector_size(&mut self, size: Bytes) {
        self.sector_size = size;
    }

    /// Adds a fault.
    pub fn fail(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Makes a range of a member unreadable until it is written; what is written in part is readable there.
    pub fn spoil(&mut self, member: MemberIndex, offset: Bytes, len: Bytes) {
        self.spoilt.push((member, offset.0..offset.0 + len.0));
    }

    /// Makes everything readable.
    pub fn clear_spoilt(&mut self) {
        self.spoilt.clear();
    }

    /// Whether anything of a member is unreadable.
    #[must_use]
    pub fn is_spoilt(&self, member: MemberIndex) -> bool {
        self.spoilt.iter().any(|(spoilt, _)| *spoilt == member)
    }

    /// Removes every fault.
    pub fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// What a member was asked to do since the counters were last reset; failed operations count.
    #[must_use]
    pub fn counters(&self, member: MemberIndex) -> Counters {
        self.counters[member.index()]
    }

    /// Sets every counter to zero.
    pub fn reset_counters(&mut self) {
        self.counters.fill(Counters::default());
    }

    /// A member's bytes, or `None` when it is absent.
    #[must_use]
    pub fn member(&self, member: MemberIndex) -> Option<&Image> {
        self.members[member.index()].as_ref()
    }

    /// A member's bytes, to change behind the engine's back.
    #[must_use]
    pub fn member_mut(&mut self, member: MemberIndex) -> Option<&mut Image> {
        self.members[member.index()].as_mut()
    }

    /// Puts a member in, or takes it out with `None`; returns the one that was there. There may be one seat more than
    /// there were.
    ///
    /// # Panics
    /// When there is no such seat.
    pub fn replace(&mut self, member: MemberIndex, image: Option<Image>) -> Option<Image> {
        if member.index() == self.members.len() {
            self.members.push(None);
            self.counters.push(Counters::default());
        }
        std::mem::replace(&mut self.members[member.index()], image)
    }

    fn run(&mut self, mut op: DiskOp) -> Completion {
        let result = self.judge(&op).map(|range| {
            let image = self.members[op.member.index()].as_mut().expect("judge found the member");
            move_bytes(image, range, &mut op.segments, op.kind);
        });
        op.complete(result)
    }

    /// Counts an operation and finds the bytes that it covers, or why it fails.
    fn judge(&mut self, op: &DiskOp) -> Result<Range<usize>, DiskError> {
        self.count(op);
        let Some(Some(image)) = self.members.get(op.member.index()) else {
            return Err(DiskError::Absent { op: op.info() });
        };
        op.check_end(Bytes(image.len() as u64))?;
        if !op.offset.0.is_multiple_of(self.sector_size.0) || !op.len().0.is_multiple_of(self.sector_size.0) {
            return Err(DiskError::Io { op: op.info(), errno: Errno::INVAL });
        }
        if let Some(errno) = self.fault(op) {
            return Err(match errno {
                Errno::OPNOTSUPP => DiskError::Unsupported { op: op.info() },
                errno => DiskError::Io { op: op.info(), errno },
            });
        }
        let range = op.offset.0..op.offset.0 + op.len().0;
        match op.kind {
            OpKind::Read if self.meets_spoilt(op.member, &range) => {
                return Err(DiskError::Io { op: op.info(), errno: Errno::IO });
            }
            OpKind::Write | OpKind::WriteFua | OpKind::Zero { .. } => self.mend(op.member, &range),
            _ => {}
        }
        let start = usize::try_from(op.offset.0).expect("checked to be inside the member");
        let len = usize::try_from(op.len().0).expect("checked to be inside the member");
        Ok(start..start + len)
    }

    fn meets_spoilt(&self, member: MemberIndex, range: &Range<u64>) -> bool {
        let meets = |spoilt: &Range<u64>| spoilt.start < range.end && range.start < spoilt.end;
        self.spoilt.iter().any(|(on, spoilt)| *on == member && meets(spoilt))
    }

    fn mend(&mut self, member: MemberIndex, range: &Range<u64>) {
        let rest = |(on, spoilt): (MemberIndex, Range<u64>)| {
            if on != member {
                return [(on, spoilt), (on, 0..0)];
            }
            let (before, after) = (spoilt.start..spoilt.end.min(range.start), spoilt.start.max(range.end)..spoilt.end);
            [(on, before), (on, after)]
        };
        let spoilt = std::mem::take(&mut self.spoilt);
        self.spoilt = spoilt.into_iter().flat_map(rest).filter(|(_, spoilt)| !spoilt.is_empty()).collect();
    }

    fn count(&mut self, op: &DiskOp) {
        let Some(counters) = self.counters.get_mut(op.member.index()) else { return };
        match op.kind {
            OpKind::Read => {
                counters.reads += 1;
                counters.bytes_read.0 += op.len().0;
            }
            OpKind::Write | OpKind::WriteFua => {
                counters.writes += 1;
                counters.bytes_written.0 += op.len().0;
            }
            OpKind::Zero { .. } => counters.zeroings += 1,
            OpKind::Flush => counters.flushes += 1,
        }
    }

    fn fault(&mut self, op: &DiskOp) -> Option<Errno> {
        let mut hit = None;
        for fault in &mut self.faults {
            if fault.member != op.member || fault.name != op.kind.name() {
            } else if fault.after > 0 {
                fault.after -= 1;
            } else if fault.count > 0 {
                fault.count = if fault.count == u64::MAX { u64::MAX } else { fault.count - 1 };
                hit = hit.or(Some(fault.errno));
            }
        }
        hit
    }

    /// A number below `bound` (splitmix64).
    fn draw(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("below the bound")
    }
}

impl Disk for MemDisk {
    fn submit(&mut self, op: DiskOp) {
        op.check();
        self.queued.push(op);
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.flying.append(&mut self.queued);
        Ok(())
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let mut flying = std::mem::take(&mut self.flying);
        match self.order {
            Order::Fifo => completions.extend(flying.drain(..).map(|op| self.run(op))),
            Order::Lifo => completions.extend(flying.drain(..).rev().map(|op| self.run(op))),
            Order::Seeded(_) if flying.is_empty() => {}
            Order::Seeded(_) => {
                for _ in 0..=self.draw(flying.len()) {
                    let op = flying.swap_remove(self.draw(flying.len()));
                    completions.push(self.run(op));
                }
            }
        }
        self.flying = flying;
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.kick()
    }

    fn in_flight(&self) -> usize {
        self.queued.len() + self.flying.len()
    }

    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        self.members.swap(one.index(), other.index());
        self.counters.swap(one.index(), other.index());
        let moved = |at: MemberIndex| match at {
            at if at == one => other,
            at if at == other => one,
            at => at,
        };
        self.faults.iter_mut().for_each(|fault| fault.member = moved(fault.member));
        self.spoilt.iter_mut().for_each(|(member, _)| *member = moved(*member));
    }
}

fn move_bytes(image: &mut Image, range: Range<usize>, segments: &mut [Lease], kind: OpKind) {
    if matches!(kind, OpKind::Zero { .. }) {
        image.range_mut(range.clone()).fill(0);
    }
    let mut start = range.start;
    for segment in segments {
        let part = start..start + segment.len();
        start = part.end;
        match kind {
            OpKind::Read => segment.copy_from(&image[part]),
            OpKind::Write | OpKind::WriteFua => segment.copy_to(image.range_mut(part)),
            OpKind::Zero { .. } | OpKind::Flush => unreachable!("zeroing and flushing have no segments"),
        }
    }
}
