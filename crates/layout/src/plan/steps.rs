//! What a plan consists of.

use alloc::vec::Vec;

use crate::field::Factor;
use crate::{DiskSector, GroupId, Lba, MemberIndex, Sectors};

/// Which buffer a [`Slice`] is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffer {
    /// The request's own: what a write brings, or where a read's answer goes.
    Request,
    /// The plan's working memory, of [`Plan::scratch`] sectors, undefined at the start.
    Scratch,
    /// What the caller has in memory: [`Cached`](super::Cached) old content, and what [`Extent`]s of a write bring from
    /// there.
    Cache,
    /// Zeros without end; read only.
    Zeroes,
}

/// A range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// The buffer.
    pub buffer: Buffer,
    /// Where in it, in sectors.
    pub start: Sectors,
    /// How long.
    pub len: Sectors,
}

impl Slice {
    /// `len` sectors of the slice from `offset`; of zeros, any.
    ///
    /// # Panics
    /// When the slice has no such part.
    #[must_use]
    pub fn part(self, offset: u64, len: u64) -> Self {
        assert!(offset + len <= self.len.0, "a slice's part is within it");
        Self { buffer: self.buffer, start: Sectors(self.start.0 + offset), len: Sectors(len) }
    }
}

/// A run of the array's sectors, and where its content is or is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first sector.
    pub lba: Lba,
    /// The content; the slice's length is the run's.
    pub content: Slice,
}

impl Extent {
    /// `len` sectors from `lba` that are all that the request buffer holds.
    #[must_use]
    pub fn request(lba: Lba, len: Sectors) -> Self {
        Self { lba, content: Slice { buffer: Buffer::Request, start: Sectors(0), len } }
    }

    /// `len` sectors of zeros from `lba`.
    #[must_use]
    pub fn zeroes(lba: Lba, len: Sectors) -> Self {
        Self { lba, content: Slice { buffer: Buffer::Zeroes, start: Sectors(0), len } }
    }
}

/// One disk operation: adjacent sectors of one member, gathered from or scattered to slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskIo {
    /// The member.
    pub member: MemberIndex,
    /// The first sector in its data area.
    pub sector: DiskSector,
    /// How many sectors: the sum of the slices' lengths.
    pub len: Sectors,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// One XOR: `target` becomes the XOR of the operands, each times its factor, all of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xor {
    /// What is computed; always scratch or request.
    pub target: Slice,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// What a XOR adds: a slice, each byte of it times a factor in GF(2^8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The bytes.
    pub content: Slice,
    /// The factor; never zero, and 1 but where RAID 6's Q is involved.
    pub factor: Factor,
}

/// Old content of a member that the plan computes from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The member that is not read.
    pub member: MemberIndex,
    /// The first sector in its data area.
    pub sector: DiskSector,
    /// Where its content is when the XORs are done.
    pub content: Slice,
}

/// What a parity group's cells differ by: their XOR, each times its factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The group.
    pub group: GroupId,
    /// Where the XOR is when the XORs are done; zeros where the group agrees.
    pub content: Slice,
}

/// How a write brings parity up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Nothing needs to be read.
    Full,
    /// The unwritten data of the touched groups is read, and parity computed from all of it.
    Reconstruct,
    /// The old content of what is written and of its parity is read, and the change applied to the parity.
    ReadModifyWrite,
}

/// How many parity stripes a plan writes by each [`Method`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodCounts {
    /// [`Method::Full`].
    pub full: u64,
    /// [`Method::Reconstruct`].
    pub reconstruct: u64,
    /// [`Method::ReadModifyWrite`].
    pub read_modify_write: u64,
}

/// What a request takes. Reusable: [`Plan::clear`] keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(crate) reads: Vec<DiskIo>,
    pub(crate) xors: Vec<Xor>,
    pub(crate) writes: Vec<DiskIo>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) operands: Vec<Operand>,
    pub(crate) recovered: Vec<Recovered>,
    pub(crate) differences: Vec<Difference>,
    pub(crate) scratch: Sectors,
    pub(crate) methods: MethodCounts,
}

impl Plan {
    /// The reads, ordered by member and sector; no two of them adjacent on one member.
    #[must_use]
    pub fn reads(&self) -> &[DiskIo] {
        &self.reads
    }

    /// The XORs, in the order in which they are to be done.
    #[must_use]
    pub fn xors(&self) -> &[Xor] {
        &self.xors
    }

    /// The writes, ordered by member and sector; no two of them adjacent on one member.
    #[must_use]
    pub fn writes(&self) -> &[DiskIo] {
        &self.writes
    }

    /// Where a disk operation's data goes to or comes from, in order.
    #[must_use]
    pub fn slices(&self, io: &DiskIo) -> &[Slice] {
        &self.slices[io.first as usize..][..io.count as usize]
    }

    /// A XOR's operands.
    #[must_use]
    pub fn operands(&self, xor: &Xor) -> &[Operand] {
        &self.operands[xor.first as usize..][..xor.count as usize]
    }

    /// What the XORs compute of what members that can't be read hold, or should hold.
    #[must_use]
    pub fn recovered(&self) -> &[Recovered] {
        &self.recovered
    }

    /// What the XORs compute of parity groups that are checked, by group.
    #[must_use]
    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// How much working memory the plan needs.
    #[must_use]
    pub fn scratch(&self) -> Sectors {
        self.scratch
    }

    /// How many parity stripes a write's plan writes by each method; none for what is no write.
    #[must_use]
    pub fn methods(&self) -> MethodCounts {
        self.methods
    }

    /// Empties the plan and keeps its memory for the next one.
    pub fn clear(&mut self) {
        self.reads.clear();
        self.xors.clear();
        self.writes.clear();
        self.slices.clear();
        self.operands.clear();
        self.recovered.clear();
        self.differences.clear();
        self.scratch = Sectors(0);
        self.methods = MethodCounts::default();
    }
}

impl MethodCounts {
    pub(crate) fn add(&mut self, method: Method) {
        *match method {
            Method::Full => &mut self.full,
            Method::Reconstruct => &mut self.reconstruct,
            Method::ReadModifyWrite => &mut self.read_modify_write,
        } += 1;
    }
}

impl core::ops::AddAssign for MethodCounts {
    fn add_assign(&mut self, more: Self) {
        self.full += more.full;
        self.reconstruct += more.reconstruct;
        self.read_modify_write += more.read_modify_write;
    }
}
