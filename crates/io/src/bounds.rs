//! Bounds that recovery and the running engine share.

use uraid_layout::Sectors;

/// Columns of a parity stripe that are worked on at once where whole stripes are, so that memory stays bounded for wide
/// stripes of large chunks.
pub(crate) const COLUMNS: Sectors = Sectors((64 << 10) / 512);
