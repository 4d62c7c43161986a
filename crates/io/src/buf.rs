//! Memory for device operations: page-aligned blocks within a byte budget, and leases that keep them alive.
//!
//! The kernel may read or fill a buffer at any time between an operation's submission and its completion. Three rules
//! make that safe without locks or copies:
//! - a [`Lease`] owns a share of the block, so that memory is never freed or reused under a device operation;
//! - a lease that the device fills is taken through `&mut Buf` and where no lease to read is, so that no Rust reference
//!   is live at that moment;
//! - a reference into a [`Buf`] is handed out only for a range that no conflicting lease covers.
//!
//! Everything here belongs to one thread, but a [`Parcel`], which takes a buffer's memory to another one. The module
//! knows nothing of files, members or plans.
#![expect(unsafe_code, reason = "memory shared with the kernel is reached through raw pointers")]

mod block;

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr;
use std::rc::Rc;

use smallvec::SmallVec;
use uraid_layout::Bytes;

use block::{Access, PAGE_BYTES};

/// The most operands of one XOR that need no allocation. A degraded read-modify-write can have about twice as many
/// operands as the array has members.
const INLINE_SOURCES: usize = 64;

/// Blocks of up to this size are mapped many at a time, as many as fit this.
const SMALL_BYTES: usize = 64 << 10;
const REGION_BYTES: usize = 2 << 20;

/// A block whose home is a pool.
type Block = block::Block<Shared>;

/// The operands of one XOR.
pub type Sources<'a> = SmallVec<[&'a [u8]; INLINE_SOURCES]>;

/// Zeros to compare with, to send or to XOR; as a device operation's memory use a zeroed [`Buf`].
pub static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Where buffers come from and go back to: a handle on one thread's memory with a fixed budget.
///
/// Freed blocks are kept by size class, so that a steady load allocates nothing. In use and kept together never exceed
/// the budget. Memory is zeroed when it is first allocated and *not* when it is used again: a buffer can show an
/// earlier request's bytes until it is filled.
#[derive(Clone)]
pub struct Pool {
    shared: Rc<Shared>,
}

struct Shared {
    budget: usize,
    in_use: Cell<usize>,
    kept: Cell<usize>,
    free: RefCell<Vec<Vec<Rc<Block>>>>,
}

/// A block of page-aligned memory with one owner.
pub struct Buf {
    hold: Hold,
    len: usize,
}

/// A buffer on its way to another thread: [`Buf::into_parcel`], [`Pool::adopt`]. It counts against no budget.
pub struct Parcel {
    /// The only share of the block. The block belongs to no pool.
    block: Rc<Block>,
    len: usize,
}

// SAFETY: the parcel has the only share of its block, which `Rc::get_mut` has proved, and shares are made from `Hold`s
// only. The block refers to no pool, and its region may be shared between threads.
unsafe impl Send for Parcel {}

/// A range of a [`Buf`]'s memory on loan to a device operation.
///
/// Dropping the lease ends the loan; the memory goes back to its pool when the buffer and all leases are gone.
pub struct Lease {
    hold: Hold,
    ticket: u32,
    start: u32,
    len: u32,
    access: Access,
}

/// A share of a block; the last share to go returns the block to its pool.
struct Hold {
    block: Rc<Block>,
}

impl Pool {
    /// A pool that lends at most `budget` bytes, counted in whole size classes.
    ///
    /// # Panics
    /// When the budget does not fit the address space.
    #[must_use]
    pub fn new(budget: Bytes) -> Self {
        let budget = usize::try_from(budget.0).expect("a memory budget fits the address space");
        Self { shared: Rc::new(Shared { budget, in_use: Cell::new(0), kept: Cell::new(0), free: RefCell::default() }) }
    }

    /// A buffer of `len` bytes, or `None` while the budget or the system does not allow it: wait until buffers are
    /// dropped.
    ///
    /// A length whose size class is over the whole budget never fits; see [`Pool::fits`].
    #[must_use]
    pub fn try_alloc(&self, len: Bytes) -> Option<Buf> {
        let len = usize::try_from(len.0).ok()?;
        let class = Class::of(len)?;
        let shared = &self.shared;
        if class.bytes > shared.budget - shared.in_use.get() {
            return None;
        }
        let block = shared.take(class).or_else(|| shared.map(class))?;
        shared.in_use.set(shared.in_use.get() + class.bytes);
        Some(Buf { hold: Hold { block }, len })
    }

    /// A buffer of memory that comes from another thread. It counts against the budget if that has room, and is freed
    /// at its end otherwise.
    #[must_use]
    pub fn adopt(&self, parcel: Parcel) -> Buf {
        let Parcel { mut block, len } = parcel;
        let (shared, bytes) = (&self.shared, block.bytes());
        shared.make_room(bytes);
        if shared.in_use.get() + shared.kept.get() + bytes <= shared.budget {
            unshared(&mut block).join(shared);
            shared.in_use.set(shared.in_use.get() + bytes);
        }
        Buf { hold: Hold { block }, len }
    }

    /// Kept memory for `len` bytes, for another thread; `None` if none is kept.
    #[must_use]
    pub fn spare(&self, len: Bytes) -> Option<Parcel> {
        let len = usize::try_from(len.0).ok()?;
        let mut block = self.shared.take(Class::of(len)?)?;
        unshared(&mut block).leave();
        Some(Parcel { block, len })
    }

    /// Whether the budget has room for `len` bytes now.
    #[must_use]
    pub fn has_room(&self, len: Bytes) -> bool {
        let class = usize::try_from(len.0).ok().and_then(Class::of);
        class.is_some_and(|class| class.bytes <= self.shared.budget - self.shared.in_use.get())
    }

    /// Whether a buffer of `len` bytes can ever be had from this pool.
    #[must_use]
    pub fn fits(&self, len: Bytes) -> bool {
        let class = usize::try_from(len.0).ok().and_then(Class::of);
        class.is_some_and(|class| class.bytes <= self.shared.budget)
    }

    /// Whether a buffer's memory came from this pool and counts against its budget.
    #[must_use]
    pub fn owns(&self, buf: &Buf) -> bool {
        buf.hold.block.home().is_some_and(|home| Rc::ptr_eq(&home, &self.shared))
    }

    /// The bytes on loan, in whole size classes.
    #[must_use]
    pub fn in_use(&self) -> Bytes {
        Bytes(self.shared.in_use.get() as u64)
    }

    /// The bytes kept for reuse.
    #[must_use]
    pub fn kept(&self) -> Bytes {
        Bytes(self.shared.kept.get() as u64)
    }

    /// The most bytes that the pool lends.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        Bytes(self.shared.budget as u64)
    }
}

impl Shared {
    fn take(&self, class: Class) -> Option<Rc<Block>> {
        let block = self.free.borrow_mut().get_mut(class.index)?.pop()?;
        self.kept.set(self.kept.get() - class.bytes);
        Some(block)
    }

    /// A new block: of a small class one of many, of which the others are kept as far as the budget goes.
    fn map(self: &Rc<Self>, class: Class) -> Option<Rc<Block>> {
        self.make_room(class.bytes);
        let room = self.budget - self.in_use.get() - self.kept.get();
        let count = if class.bytes <= SMALL_BYTES { (REGION_BYTES.min(room) / class.bytes).max(1) } else { 1 };
        let home = Rc::downgrade(self);
        let mut blocks = Block::many(class.bytes, count, &home)?.map(Rc::new);
        let block = blocks.next().expect("at least one block");
        self.free_list(class).extend(blocks);
        self.kept.set(self.kept.get() + class.bytes * (count - 1));
        Some(block)
    }

    fn free_list(&self, class: Class) -> RefMut<'_, Vec<Rc<Block>>> {
        RefMut::map(self.free.borrow_mut(), |free| {
            if free.len() <= class.index {
                free.resize_with(class.index + 1, Vec::new);
            }
            &mut free[class.index]
        })
    }

    /// Frees kept blocks, largest classes first, until `bytes` more fit the budget.
    fn make_room(&self, bytes: usize) {
        let mut free = self.free.borrow_mut();
        for class in free.iter_mut().rev() {
            while self.in_use.get() + self.kept.get() + bytes > self.budget {
                let Some(block) = class.pop() else { break };
                self.kept.set(self.kept.get() - block.bytes());
            }
        }
    }

    /// Takes a block out of the account that does not come back.
    fn disown(&self, bytes: usize) {
        self.in_use.set(self.in_use.get() - bytes);
    }

    fn put_back(&self, block: Rc<Block>) {
        let class = Class::of(block.bytes()).expect("a block has its class's size");
        self.free_list(class).push(block);
        self.in_use.set(self.in_use.get() - class.bytes);
        self.kept.set(self.kept.get() + class.bytes);
    }
}

/// A block that has only one share.
fn unshared(block: &mut Rc<Block>) -> &mut Block {
    Rc::get_mut(block).expect("a block that is not used, or that a buffer has without leases, has one share")
}

impl Drop for Hold {
    fn drop(&mut self) {
        if Rc::strong_count(&self.block) == 1
            && let Some(home) = self.block.home()
        {
            home.put_back(Rc::clone(&self.block));
        }
    }
}

impl Hold {
    fn share(&self) -> Self {
        Self { block: Rc::clone(&self.block) }
    }
}

impl Buf {
    /// A buffer of `len` zero bytes outside any budget: for superblocks, tools and tests.
    ///
    /// # Panics
    /// When `len` is beyond the address space.
    #[must_use]
    pub fn zeroed(len: Bytes) -> Self {
        let len = usize::try_from(len.0).expect("a buffer fits the address space");
        let class = Class::of(len).expect("a buffer fits the address space");
        Self { hold: Hold { block: Rc::new(Block::zeroed(class.bytes)) }, len }
    }

    /// A buffer with these bytes, outside any budget.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(Bytes(bytes.len() as u64));
        buf.as_mut().copy_from_slice(bytes);
        buf
    }

    /// A buffer of `len` zero bytes outside any budget, or `None` where the system has too little memory left: for
    /// those that can do without.
    #[must_use]
    pub fn try_zeroed(len: Bytes) -> Option<Self> {
        let len = usize::try_from(len.0).ok()?;
        let block = Block::try_zeroed(Class::of(len)?.bytes)?;
        Some(Self { hold: Hold { block: Rc::new(block) }, len })
    }

    /// How many bytes the buffer has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a device operation may be using the memory.
    #[must_use]
    pub(crate) fn is_lent(&self) -> bool {
        self.hold.block.is_leased_in(&(0..self.hold.block.bytes()))
    }

    /// Whether a device operation may be filling the memory.
    #[must_use]
    pub(crate) fn is_being_filled(&self) -> bool {
        self.hold.block.is_filled_in(&(0..self.hold.block.bytes()))
    }

    /// Gives the buffer up to operations that may keep it for ever: it counts against no budget from now on, and the
    /// memory is freed with the last lease.
    pub fn disown(self) {
        if let Some(home) = self.hold.block.disown() {
            home.disown(self.hold.block.bytes());
        }
    }

    /// Takes the memory out of its pool's account, to go to another thread.
    ///
    /// # Panics
    /// When a part of it is leased.
    #[must_use]
    pub fn into_parcel(self) -> Parcel {
        let Self { hold, len } = self;
        let hold = ManuallyDrop::new(hold);
        // SAFETY: `hold` is neither used nor dropped from here on, so that this is the share's only owner.
        let mut block = unsafe { ptr::read(&raw const hold.block) };
        if let Some(home) = unshared(&mut block).leave() {
            home.disown(block.bytes());
        }
        Parcel { block, len }
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// When the range is not inside the buffer, or a device operation may be filling a part of it.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.check(&range);
        assert!(!self.hold.block.is_filled_in(&range), "a device may be filling the bytes that are read");
        // SAFETY: the range is inside the block, which `self` keeps alive; no lease lets a device write to it, and none
        // can be taken while this borrow of `self` lives, as that needs `&mut self`.
        unsafe { self.hold.block.slice(range) }
    }

    /// The bytes of a range, to change.
    ///
    /// # Panics
    /// When the range is not inside the buffer, or a part of it is leased.
    #[must_use]
    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.check(&range);
        assert!(!self.hold.block.is_leased_in(&range), "a device may be using the bytes that are changed");
        // SAFETY: the range is inside the block, which `self` keeps alive; no lease covers a part of it, none can be
        // taken while this exclusive borrow lives, and a buffer is its block's only owner beside leases.
        unsafe { self.hold.block.slice_mut(range) }
    }

    /// One range to change together with ranges to read: the target and the operands of a XOR in one buffer.
    ///
    /// # Panics
    /// When a source overlaps the target, a range is not inside the buffer, or a device may be using one.
    #[must_use]
    pub fn disjoint(
        &mut self,
        target: Range<usize>,
        sources: impl IntoIterator<Item = Range<usize>>,
    ) -> (&mut [u8], Sources<'_>) {
        self.check(&target);
        assert!(!self.hold.block.is_leased_in(&target), "a device may be using the bytes that are changed");
        let block = &self.hold.block;
        let sources = sources.into_iter().map(|source| {
            self.check(&source);
            assert!(!block::overlap(&source, &target), "an operand does not overlap the target");
            assert!(!block.is_filled_in(&source), "a device may be filling an operand");
            // SAFETY: as in `bytes`, for the lifetime of the exclusive borrow of `self`; the one exclusive slice that
            // is handed out with it does not overlap it.
            unsafe { block.slice(source) }
        });
        let sources = sources.collect();
        // SAFETY: as in `bytes_mut`; the shared slices that are handed out with it do not overlap it.
        (unsafe { block.slice_mut(target) }, sources)
    }

    /// Lends a range to an operation whose device reads the memory: a disk write.
    ///
    /// The buffer can still be read meanwhile, and so can the lease.
    ///
    /// # Panics
    /// When the range is not inside the buffer, or a device operation may be filling a part of it.
    #[must_use]
    pub fn lease_read(&self, range: Range<usize>) -> Lease {
        assert!(!self.hold.block.is_filled_in(&range), "a device may be filling the bytes that are lent");
        self.lease(range, Access::Read)
    }

    /// Lends a range to an operation whose device fills the memory: a disk read.
    ///
    /// # Panics
    /// When the range is not inside the buffer, or a part of it is leased.
    #[must_use]
    #[expect(clippy::needless_pass_by_ref_mut, reason = "proves that no reference into the buffer is live")]
    pub fn lease_write(&mut self, range: Range<usize>) -> Lease {
        assert!(!self.hold.block.is_leased_in(&range), "a lease may be using the bytes that are filled");
        self.lease(range, Access::Write)
    }

    fn lease(&self, range: Range<usize>, access: Access) -> Lease {
        self.check(&range);
        Lease::new(&self.hold, range, access)
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "range {range:?} is inside {} bytes", self.len);
    }
}

impl AsRef<[u8]> for Buf {
    /// All bytes.
    ///
    /// # Panics
    /// As [`Buf::bytes`].
    fn as_ref(&self) -> &[u8] {
        self.bytes(0..self.len)
    }
}

impl AsMut<[u8]> for Buf {
    /// All bytes, to change.
    ///
    /// # Panics
    /// As [`Buf::bytes_mut`].
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(0..self.len)
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Parcel {
    /// How many bytes the buffer has.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Lease {
    fn new(hold: &Hold, range: Range<usize>, access: Access) -> Self {
        let to_u32 = |number: usize| u32::try_from(number).expect("a buffer that is lent has less than 4 GiB");
        let (start, len) = (to_u32(range.start), to_u32(range.len()));
        let ticket = to_u32(hold.block.lend(range, access));
        Self { hold: hold.share(), ticket, start, len, access }
    }

    fn range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }

    /// How many bytes are on loan.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no byte is on loan.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the device may change the memory.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.access == Access::Write
    }

    /// The bytes of a lease to read: content that outlives its buffer.
    ///
    /// # Panics
    /// When the device may change the memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        assert!(!self.is_writable(), "what a device may be filling is not read");
        // SAFETY: the range is inside the block, which the lease keeps alive. While this lease to read exists, `Buf`
        // hands out neither an exclusive reference into it nor a lease that a device fills.
        unsafe { self.hold.block.slice(self.range()) }
    }

    /// A lease to read a part of what this one may read.
    ///
    /// # Panics
    /// When the device may change the memory, or the range is not inside the lease.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(!self.is_writable(), "only what is read is shared");
        assert!(range.start <= range.end && range.end <= self.len(), "range {range:?} is inside {} bytes", self.len);
        let start = self.range().start;
        Self::new(&self.hold, start + range.start..start + range.end, Access::Read)
    }

    /// Grows this lease to read over the bytes of `next`, when they follow in the same memory; whether they do.
    pub(crate) fn extend_over(&mut self, next: &Self) -> bool {
        let follows = Rc::ptr_eq(&self.hold.block, &next.hold.block) && self.start + self.len == next.start;
        let extends = follows && !self.is_writable() && !next.is_writable();
        if extends {
            self.len += next.len;
            self.hold.block.extend(self.ticket as usize, next.range().end);
        }
        extends
    }

    /// Fills the memory as a device would.
    ///
    /// # Panics
    /// When the lengths differ, or the device may only read the memory.
    pub fn copy_from(&mut self, source: &[u8]) {
        assert!(self.is_writable(), "only a lease taken for writing is filled");
        assert_eq!(source.len(), self.len(), "a lease is filled whole");
        // SAFETY: the range is inside the block, which the lease keeps alive, and `lease_write` made sure that no
        // reference into it is live: `Buf` hands none out while this lease exists.
        unsafe { self.as_ptr().copy_from(source.as_ptr(), self.len()) }
    }

    /// Fills a part of the memory, from `start` on, as a device would.
    ///
    /// # Panics
    /// When the part is not inside the lease, or the device may only read the memory.
    pub(crate) fn copy_part(&mut self, start: usize, source: &[u8]) {
        assert!(self.is_writable(), "only a lease taken for writing is filled");
        assert!(source.len() <= self.len() && start <= self.len() - source.len(), "the part is inside the lease");
        // SAFETY: the part is inside the range, which is inside the block, which the lease keeps alive; and
        // `lease_write` made sure that no reference into it is live: `Buf` hands none out while this lease exists.
        unsafe { self.as_ptr().wrapping_add(start).copy_from(source.as_ptr(), source.len()) }
    }

    /// Reads the memory as a device would.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len(), "a lease is read whole");
        // SAFETY: the range is inside the block, which the lease keeps alive; `Buf` hands out no exclusive reference
        // into it while this lease exists.
        unsafe { self.as_ptr().copy_to(target.as_mut_ptr(), self.len()) }
    }

    /// The first byte, for an operation that keeps this lease until the device is done.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.hold.block.at(self.range().start)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.hold.block.end(self.ticket as usize);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, len, access, .. } = self;
        write!(f, "Lease({start}..{} for {access:?})", start + len)
    }
}

impl fmt::Debug for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parcel").field("len", &self.len).finish_non_exhaustive()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (in_use, kept) = (self.in_use(), self.kept());
        f.debug_struct("Pool")
            .field("budget", &self.shared.budget)
            .field("in_use", &in_use)
            .field("kept", &kept)
            .finish()
    }
}

/// A size class: up to four pages exact, then four classes for each doubling, so that at most a fifth is wasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    index: usize,
    bytes: usize,
}

impl Class {
    fn of(len: usize) -> Option<Self> {
        let pages = len.div_ceil(PAGE_BYTES).max(1);
        if pages <= 4 {
            return Some(Self { index: pages - 1, bytes: pages * PAGE_BYTES });
        }
        let power = (pages - 1).ilog2() as usize;
        let step = 1_usize << (power - 2);
        let steps = (pages - (1 << power)).div_ceil(step);
        let bytes = ((1_usize << power) + steps * step).checked_mul(PAGE_BYTES)?;
        let bytes = (bytes <= isize::MAX as usize - PAGE_BYTES).then_some(bytes)?;
        Some(Self { index: 4 + (power - 2) * 4 + steps - 1, bytes })
    }
}

#[cfg(test)]
mod tests;
