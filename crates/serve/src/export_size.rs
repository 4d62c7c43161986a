//! The size of the export, which all threads that serve clients tell those who connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uraid_layout::Bytes;
use uraid_nbd::ExportInfo;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct ExportSize(Arc<AtomicU64>);

impl ExportSize {
    /// The size that it has at first.
    pub(crate) fn new(info: &ExportInfo) -> Self {
        Self(Arc::new(AtomicU64::new(info.size_bytes)))
    }

    /// The export has grown: clients that connect from now on see that. Those that are there know the size that it had.
    pub(crate) fn set(&self, size: Bytes) {
        self.0.store(size.0, Ordering::Relaxed);
    }

    /// What a client that connects now is told.
    pub(crate) fn of(&self, info: &ExportInfo) -> ExportInfo {
        ExportInfo { size_bytes: self.0.load(Ordering::Relaxed), ..info.clone() }
    }
}
