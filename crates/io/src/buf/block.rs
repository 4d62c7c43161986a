//! One allocation and the record of which of its ranges are on loan. It hands out raw memory; [`super::Buf`] and
//! [`super::Lease`] uphold who may touch it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::Range;
use std::ptr::NonNull;

/// The alignment of every block and the unit of its size: enough for direct I/O on every device in use.
pub(super) const PAGE_BYTES: usize = 4096;

/// What the device does with leased memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It reads the memory: a disk write.
    Read,
    /// It fills the memory: a disk read.
    Write,
}

pub(super) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    loans: RefCell<Loans>,
}

#[derive(Default)]
struct Loans {
    entries: Vec<Option<(Range<usize>, Access)>>,
    vacant: Vec<usize>,
    reads: usize,
    writes: usize,
}

impl Block {
    /// A block of zeros; `bytes` is a positive multiple of a page.
    pub(super) fn zeroed(bytes: usize) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE_BYTES), "a block is whole pages");
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("a size class fits the address space");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout, loans: RefCell::default() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes(), "an offset is inside its block");
        // SAFETY: the offset is inside the allocation, or one past it.
        unsafe { self.start.add(offset).as_ptr() }
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
        if let Some(ticket) = loans.vacant.pop() {
            loans.entries[ticket] = Some((range, access));
            ticket
        } else {
            loans.entries.push(Some((range, access)));
            loans.entries.len() - 1
        }
    }

    /// Moves the end of a loan.
    pub(super) fn extend(&self, ticket: usize, end: usize) {
        let mut loans = self.loans.borrow_mut();
        let (range, _) = loans.entries[ticket].as_mut().expect("a loan that grows has not ended");
        range.end = end;
    }

    pub(super) fn end(&self, ticket: usize) {
        let mut loans = self.loans.borrow_mut();
        let (_, access) = loans.entries[ticket].take().expect("a loan ends once");
        *loans.count(access) -= 1;
        loans.vacant.push(ticket);
    }

    pub(super) fn is_filled_in(&self, range: &Range<usize>) -> bool {
        let loans = self.loans.borrow();
        loans.writes > 0 && loans.any(|(loan, access)| *access == Access::Write && overlap(loan, range))
    }

    pub(super) fn is_leased_in(&self, range: &Range<usize>) -> bool {
        let loans = self.loans.borrow();
        loans.reads + loans.writes > 0 && loans.any(|(loan, _)| overlap(loan, range))
    }
}

impl Loans {
    fn count(&mut self, access: Access) -> &mut usize {
        match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        }
    }

    fn any(&self, matches: impl Fn(&(Range<usize>, Access)) -> bool) -> bool {
        self.entries.iter().flatten().any(matches)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the pointer came from this allocator with this layout, and the last holder is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Whether two ranges share a byte.
pub(super) fn overlap(left: &Range<usize>, right: &Range<usize>) -> bool {
    left.start < right.end && right.start < left.end && !left.is_empty() && !right.is_empty()
}
