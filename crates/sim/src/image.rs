//! The content of a member: sparse, and shared with its clones until one is changed.
//!
//! What was never written is zeros and takes no memory, so a member of 4 MiB is cloned by copying a few dozen pointers.

use std::sync::Arc;

use uraid_layout::{Bytes, SECTOR_BYTES};

/// The bytes of a sector.
pub(crate) type Sector = [u8; SECTOR];

/// How many they are.
pub(crate) const SECTOR: usize = 512;

/// A sector of zeros.
pub(crate) static ZEROS: Sector = [0; SECTOR];

const SECTORS_IN_PAGE: usize = 8;
const PAGES_IN_BRANCH: usize = 32;
const SECTORS_IN_BRANCH: usize = SECTORS_IN_PAGE * PAGES_IN_BRANCH;

type Page = [Sector; SECTORS_IN_PAGE];
static ZERO_PAGE: Page = [ZEROS; SECTORS_IN_PAGE];

type Branch = [Option<Arc<Page>>; PAGES_IN_BRANCH];

/// A member's bytes.
#[derive(Clone, Debug)]
pub struct Image {
    size: Bytes,
    branches: Vec<Option<Arc<Branch>>>,
}

impl Image {
    /// An image of zeros.
    ///
    /// # Panics
    /// When the size is not a whole number of sectors, or does not fit the address space.
    #[must_use]
    pub fn zeroed(size: Bytes) -> Self {
        assert!(size.0.is_multiple_of(SECTOR_BYTES), "a member has whole sectors");
        let branches = (size.0 / SECTOR_BYTES).div_ceil(SECTORS_IN_BRANCH as u64);
        Self { size, branches: vec![None; usize::try_from(branches).expect("an image fits the address space")] }
    }

    /// How many bytes there are.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Makes it larger; what is new is zeros.
    ///
    /// # Panics
    /// When it would be smaller, or as [`Image::zeroed`].
    pub fn enlarge(&mut self, size: Bytes) {
        assert!(size >= self.size, "an image does not shrink");
        let larger = Self::zeroed(size);
        self.branches.resize(larger.branches.len(), None);
        self.size = size;
    }

    /// The sector at a byte offset.
    ///
    /// # Panics
    /// When the offset is not a sector's.
    #[must_use]
    pub fn sector(&self, offset: Bytes) -> &Sector {
        let [branch, page, sector] = self.place(offset);
        let page = self.branches[branch].as_ref().and_then(|branch| branch[page].as_ref());
        page.map_or(&ZEROS, |page| &page[sector])
    }

    /// Replaces the sector at a byte offset.
    ///
    /// # Panics
    /// When the offset is not a sector's.
    pub fn set(&mut self, offset: Bytes, content: &Sector) {
        let [branch, page, sector] = self.place(offset);
        let branch = &mut self.branches[branch];
        let is_there = branch.as_ref().is_some_and(|branch| branch[page].is_some());
        if !is_there && *content == ZEROS {
            return;
        }
        let branch = Arc::make_mut(branch.get_or_insert_with(Arc::default));
        let page = branch[page].get_or_insert_with(|| Arc::new([ZEROS; SECTORS_IN_PAGE]));
        Arc::make_mut(page)[sector] = *content;
    }

    /// Replaces whole sectors from a byte offset on.
    ///
    /// # Panics
    /// When the offset is not a sector's.
    pub fn put(&mut self, offset: Bytes, bytes: &[u8]) {
        for (at, sector) in (offset.0..).step_by(SECTOR).zip(bytes.as_chunks().0) {
            self.set(Bytes(at), sector);
        }
    }

    /// Copies bytes out, of whole sectors.
    ///
    /// # Panics
    /// When the range is not of whole sectors of the image.
    pub fn read(&self, offset: Bytes, into: &mut [u8]) {
        assert!(into.len().is_multiple_of(SECTOR), "whole sectors are read");
        for (at, sector) in (offset.0..).step_by(SECTOR).zip(into.chunks_exact_mut(SECTOR)) {
            sector.copy_from_slice(self.sector(Bytes(at)));
        }
    }

    /// Where the sectors begin in which two images of one size differ, ascending.
    ///
    /// # Panics
    /// When the sizes differ.
    pub fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Bytes> + 'a {
        assert_eq!(self.size, other.size, "images of one size are compared");
        let pages = self.branches.iter().zip(&other.branches).enumerate().filter(|(_, (a, b))| !same_place(a, b));
        let pages = pages.flat_map(|(at, (a, b))| {
            (0..PAGES_IN_BRANCH).filter_map(move |page| {
                let [a, b] = [a, b].map(|branch| branch.as_ref().and_then(|branch| branch[page].as_ref()));
                let is_same = match (a, b) {
                    (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                    (a, b) => a.is_none() && b.is_none(),
                };
                (!is_same).then_some((at * PAGES_IN_BRANCH + page, a, b))
            })
        });
        pages.flat_map(|(at, a, b)| {
            let [a, b] = [a, b].map(|page| page.map_or(&ZERO_PAGE, |page| &**page));
            let sectors = (0..SECTORS_IN_PAGE).filter(move |&sector| a[sector] != b[sector]);
            sectors.map(move |sector| Bytes(((at * SECTORS_IN_PAGE + sector) * SECTOR) as u64))
        })
    }

    /// The branch, the page in it, and the sector in that.
    fn place(&self, offset: Bytes) -> [usize; 3] {
        assert!(
            offset.0.is_multiple_of(SECTOR_BYTES) && offset < self.size,
            "byte {offset} begins a sector of {}",
            self.size
        );
        let sector = usize::try_from(offset.0 / SECTOR_BYTES).expect("an image fits the address space");
        let page = sector / SECTORS_IN_PAGE;
        [page / PAGES_IN_BRANCH, page % PAGES_IN_BRANCH, sector % SECTORS_IN_PAGE]
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (&Option<Arc<Branch>>, &Option<Arc<Branch>>)| match (a, b) {
            (Some(a), Some(b)) => {
                Arc::ptr_eq(a, b) || (0..PAGES_IN_BRANCH).all(|page| same_page(a[page].as_deref(), b[page].as_deref()))
            }
            (Some(one), None) | (None, Some(one)) => one.iter().all(|page| same_page(page.as_deref(), None)),
            (None, None) => true,
        };
        self.size == other.size && self.branches.iter().zip(&other.branches).all(same)
    }
}

impl Eq for Image {}

/// Whether two branches share their memory.
fn same_place(a: &Option<Arc<Branch>>, b: &Option<Arc<Branch>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn same_page(a: Option<&Page>, b: Option<&Page>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) if std::ptr::eq(a, b) => true,
        (a, b) => a.unwrap_or(&ZERO_PAGE) == b.unwrap_or(&ZERO_PAGE),
    }
}
