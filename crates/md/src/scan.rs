//! Finds members on devices and in their partitions.

use std::fmt;
use std::sync::Arc;

use uraid_layout::{Bytes, SECTOR_BYTES};

use crate::partitions::{Partition, PartitionError, partitions};
use crate::source::{OpenError, Source, Window};
use crate::superblock::{BadRange, Holding, Superblock, SuperblockError, Version, find};

/// A device with a sound superblock.
#[derive(Clone)]
pub struct Found {
    /// What people call it: its path, and the partition if it is one.
    pub label: String,
    /// Its bytes.
    pub source: Arc<dyn Source>,
    /// What it says.
    pub superblock: Superblock,
    /// Its sectors without content.
    pub bad: Vec<BadRange>,
}

/// Something that can't be used.
#[derive(Debug)]
pub struct Trouble {
    /// What people call it.
    pub label: String,
    /// Why.
    pub reason: TroubleReason,
}

/// Why something can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TroubleReason {
    /// Its superblock.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// Its partition table.
    #[error(transparent)]
    Partitions(#[from] PartitionError),
    /// It is not there, or nothing that could be read.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// What devices hold.
#[derive(Debug, Default)]
pub struct Scan {
    /// Members, of any arrays.
    pub found: Vec<Found>,
    /// What looks like a member and can't be used.
    pub troubles: Vec<Trouble>,
}

/// Looks at a whole device and at each of its partitions.
#[must_use]
pub fn scan(label: &str, device: &Arc<dyn Source>) -> Scan {
    let mut scan = Scan::default();
    let parts = partitions(device.as_ref()).unwrap_or_else(|error| {
        scan.troubles.push(Trouble { label: label.to_owned(), reason: error.into() });
        Vec::new()
    });
    let whole = find(device.as_ref());
    let is_of_part = |whole: &Superblock| parts.iter().any(|part| coincide(device, whole, part));
    match &whole.superblock {
        Some((superblock, _)) if is_of_part(superblock) => {}
        _ => scan.add(label.to_owned(), Arc::clone(device), whole),
    }
    for part in &parts {
        let source: Arc<dyn Source> = Arc::new(Window::new(Arc::clone(device), part.start, part.size));
        let holding = find(source.as_ref());
        scan.add(format!("{label} (partition {})", part.number), source, holding);
    }
    scan
}

/// Whether the superblock that was found on a whole disk is in truth that of a partition at its end. Version 0.90 does
/// not say where it is.
fn coincide(disk: &Arc<dyn Source>, whole: &Superblock, part: &Partition) -> bool {
    let place = |size: Bytes| ((size.0 / SECTOR_BYTES) & !127).checked_sub(128);
    let of_part = place(part.size).map(|sector| sector + part.start.0 / SECTOR_BYTES);
    whole.version == Version::V0_90 && of_part == place(disk.size())
}

impl Scan {
    fn add(&mut self, label: String, source: Arc<dyn Source>, holding: Holding) {
        let troubles = holding.troubles.into_iter();
        self.troubles.extend(troubles.map(|error| Trouble { label: label.clone(), reason: error.into() }));
        let found = holding.superblock.map(|(superblock, bad)| Found { label, source, superblock, bad });
        self.found.extend(found);
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, superblock, bad, source } = self;
        let mut shown = f.debug_struct("Found");
        shown.field("label", label).field("size", &source.size()).field("superblock", superblock).field("bad", bad);
        shown.finish()
    }
}
