//! Mapped memory, blocks of it, and the record of which of a block's ranges are on loan. It hands out raw memory;
//! [`super::Buf`] and [`super::Lease`] uphold who may touch it.
//!
//! A block knows its home, to which it goes back, but not what a home is: that is the type parameter.
//!
//! The memory of pools is mapped, not allocated: blocks are whole pages, of which an allocator would lose one to every
//! page that it aligns.
//!
//! Memory that may be refused is taken only where [`HEADROOM_BYTES`] more could be had, so that there is always room
//! for what can't be refused.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use smallvec::SmallVec;

/// The alignment of every block and the unit of its size: enough for direct I/O on every device in use.
pub(super) const PAGE_BYTES: usize = 4096;

/// The size of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// What is left to those that can't do without when somebody who can is refused memory: a plan's working memory, and
/// what the allocator needs.
const HEADROOM_BYTES: usize = 32 << 20;

/// A block of its own of up to this comes from the allocator: a mapping costs two system calls and a fault.
const ALLOCATED_MAX: usize = 64 << 10;

/// What the device does with leased memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It reads the memory: a disk write.
    Read,
    /// It fills the memory: a disk read.
    Write,
}

pub(super) struct Block<Home> {
    /// Where it goes back to.
    home: Weak<Home>,
    /// It does not go back.
    is_disowned: Cell<bool>,
    region: Arc<Region>,
    start: usize,
    bytes: usize,
    loans: RefCell<Loans>,
}

/// Pages that are zeros at first. They go with the last of their blocks.
struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Of a mapping of its own, or else from the allocator.
    is_mapped: bool,
}

/// The first few are kept in the block itself: most blocks never have more, and every look elsewhere is a miss of the
/// processor's caches.
#[derive(Default)]
struct Loans {
    entries: SmallVec<[Loan; 2]>,
    vacant: Option<usize>,
    reads: usize,
    writes: usize,
}

enum Loan {
    Open(Range<usize>, Access),
    /// Ended; the ticket that was vacant before.
    Vacant(Option<usize>),
}

impl<Home> Block<Home> {
    /// A block of zeros; `bytes` is a positive multiple of a page.
    pub(super) fn zeroed(bytes: usize) -> Self {
        Self::of(if bytes <= ALLOCATED_MAX { Region::allocate(bytes) } else { Region::map(bytes) })
    }

    /// A block of zeros, or `None` where memory is short; `bytes` is a positive multiple of a page.
    pub(super) fn try_zeroed(bytes: usize) -> Option<Self> {
        Region::try_map(bytes, HEADROOM_BYTES).map(Self::of)
    }

    /// All of a region.
    fn of(region: Region) -> Self {
        let bytes = region.bytes;
        let (home, is_disowned, region) = (Weak::new(), Cell::new(false), Arc::new(region));
        Self { home, is_disowned, region, start: 0, bytes, loans: RefCell::default() }
    }

    /// `count` blocks of zeros that are neighbours in one mapping, or `None` where memory is short; `bytes`, of each,
    /// is a positive multiple of a page.
    pub(super) fn many(bytes: usize, count: usize, home: &Weak<Home>) -> Option<impl Iterator<Item = Self>> {
        let (region, home) = (Arc::new(Region::try_map(bytes * count, HEADROOM_BYTES)?), Weak::clone(home));
        let block = move |index| Self {
            home: Weak::clone(&home),
            is_disowned: Cell::new(false),
            region: Arc::clone(&region),
            start: index * bytes,
            bytes,
            loans: RefCell::default(),
        };
        Some((0..count).map(block))
    }

    /// Where it goes back to, if that is still there.
    pub(super) fn home(&self) -> Option<Rc<Home>> {
        if self.is_disowned.get() { None } else { self.home.upgrade() }
    }

    /// Takes the block away from its home, which is returned.
    pub(super) fn disown(&self) -> Option<Rc<Home>> {
        let home = self.home();
        self.is_disowned.set(true);
        home
    }

    /// Leaves the block without a home; returns the one that it had.
    pub(super) fn leave(&mut self) -> Option<Rc<Home>> {
        let home = self.home();
        self.home = Weak::new();
        home
    }

    /// Gives the block a home.
    pub(super) fn join(&mut self, home: &Rc<Home>) {
        self.home = Rc::downgrade(home);
        self.is_disowned.set(false);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "an offset is inside its block");
        // SAFETY: a block is inside its region's mapping, and the offset is inside the block, or one past it.
        unsafe { self.region.start.add(self.start + offset).as_ptr() }
    }

    /// # Safety
    /// The range is inside the block, and nothing changes it while the slice lives.
    pub(super) unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the memory is initialised and inside one allocation; the caller upholds the rest.
        unsafe { std::slice::from_raw_parts(self.at(range.start), range.len()) }
    }

    /// # Safety
    /// The range is inside the block, and nothing else reads or changes it while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the caller proves exclusive access; a block has many holders")]
    pub(super) unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: the memory is initialised and inside one allocation; the caller upholds the rest.
        unsafe { std::slice::from_raw_parts_mut(self.at(range.start), range.len()) }
    }

    /// Records a loan and returns the ticket that ends it.
    pub(super) fn lend(&self, range: Range<usize>, access: Access) -> usize {
        let mut loans = self.loans.borrow_mut();
        *loans.count(access) += 1;
        let loan = Loan::Open(range, access);
        let Some(ticket) = loans.vacant else {
            loans.entries.push(loan);
            return loans.entries.len() - 1;
        };
        match std::mem::replace(&mut loans.entries[ticket], loan) {
            Loan::Vacant(next) => loans.vacant = next,
            Loan::Open(..) => unreachable!("a vacant ticket has no loan"),
        }
        ticket
    }

    /// Moves the end of a loan.
    pub(super) fn extend(&self, ticket: usize, end: usize) {
        let mut loans = self.loans.borrow_mut();
        match &mut loans.entries[ticket] {
            Loan::Open(range, _) => range.end = end,
            Loan::Vacant(_) => unreachable!("a loan that grows has not ended"),
        }
    }

    pub(super) fn end(&self, ticket: usize) {
        let mut loans = self.loans.borrow_mut();
        let vacant = Loan::Vacant(loans.vacant);
        match std::mem::replace(&mut loans.entries[ticket], vacant) {
            Loan::Open(_, access) => *loans.count(access) -= 1,
            Loan::Vacant(_) => unreachable!("a loan ends once"),
        }
        loans.vacant = Some(ticket);
    }

    pub(super) fn is_filled_in(&self, range: &Range<usize>) -> bool {
        let loans = self.loans.borrow();
        loans.writes > 0 && loans.any(|loan, access| access == Access::Write && overlap(loan, range))
    }

    pub(super) fn is_leased_in(&self, range: &Range<usize>) -> bool {
        let loans = self.loans.borrow();
        loans.reads + loans.writes > 0 && loans.any(|loan, _| overlap(loan, range))
    }
}

impl Loans {
    fn count(&mut self, access: Access) -> &mut usize {
        match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        }
    }

    fn any(&self, matches: impl Fn(&Range<usize>, Access) -> bool) -> bool {
        self.entries.iter().any(|loan| matches!(loan, Loan::Open(range, access) if matches(range, *access)))
    }
}

impl Region {
    fn allocate(bytes: usize) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE_BYTES), "a region is whole pages");
        let layout = Self::layout(bytes);
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, bytes, is_mapped: false }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, PAGE_BYTES).expect("a size class fits the address space")
    }

    fn map(bytes: usize) -> Self {
        Self::try_map(bytes, 0).unwrap_or_else(|| handle_alloc_error(Self::layout(bytes)))
    }

    /// `None` where the system does not have as much, and `headroom` bytes beside it; both are multiples of a page.
    fn try_map(bytes: usize, headroom: usize) -> Option<Self> {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE_BYTES), "a region is whole pages");
        let all = bytes.checked_add(headroom)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), all, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        if headroom > 0 {
            // SAFETY: the range is the end of the new mapping, which nobody knows of yet.
            let given_back = unsafe { libc::munmap(start.wrapping_byte_add(bytes), headroom) };
            assert_eq!(given_back, 0, "the end of a mapping can be given back");
        }
        let region = Self { start: NonNull::new(start.cast::<u8>())?, bytes, is_mapped: true };
        if bytes >= HUGE_BYTES {
            // SAFETY: the range is the mapping's own. It is a wish: one fault instead of five hundred.
            unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        }
        Some(region)
    }
}

// SAFETY: a region is an address range that it owns. It hands out pointers into it and reads or writes nothing itself.
unsafe impl Send for Region {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Region {}

impl<Home> Drop for Block<Home> {
    /// Gives the pages back, where other blocks keep the mapping alive. Of a home that is gone they go with the region,
    /// which those of its blocks that are still used keep: one system call for all blocks of a region, not for each.
    fn drop(&mut self) {
        if Arc::strong_count(&self.region) > 1 && self.home.strong_count() > 0 {
            let start = self.at(0);
            // SAFETY: the range is this block's part of the mapping, whose last holder is gone. Should the kernel
            // refuse, the pages go with the region.
            unsafe { libc::madvise(start.cast(), self.bytes, libc::MADV_DONTNEED) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.is_mapped {
            // SAFETY: the mapping is this region's own, whole, and the last block in it is gone.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        } else {
            // SAFETY: the allocator gave the memory with this layout, and the last block in it is gone.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) };
        }
    }
}

/// Whether two ranges share a byte.
pub(super) fn overlap(left: &Range<usize>, right: &Range<usize>) -> bool {
    left.start < right.end && right.start < left.end && !left.is_empty() && !right.is_empty()
}
