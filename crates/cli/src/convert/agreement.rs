//! Whether parity and copies agree with the data, before anything relies on them.

use anyhow::{Context as _, Result};
use uraid_layout::field::{self, Factor};
use uraid_layout::{Bytes, Cell, Geometry, SECTOR_BYTES, StripeId};
use uraid_md::Found;
use uraid_serve::text::visible;

use crate::terminal::Progress;

/// What was read.
pub(super) struct Agreement {
    /// How many parity stripes there are.
    pub(super) stripes: u64,
    /// In how many of them parity or copies are not what the data say.
    pub(super) disagreeing: u64,
}

/// Reads all stripes of members, which are in the order of slots.
///
/// # Errors
/// When a member can't be read.
pub(super) fn read(geometry: &Geometry, members: &[Found]) -> Result<Agreement> {
    let mut agreement = Agreement { stripes: geometry.stripes().0, disagreeing: 0 };
    // Of the array's content, as far as it is whole stripes.
    let bytes = geometry.stripe_sectors().bytes().0;
    let mut progress = Progress::new("reading", agreement.stripes * bytes);
    let chunk = usize::try_from(geometry.chunk().bytes().0).context("a chunk is small")?;
    let (mut sum, mut data) = (vec![0; chunk], vec![0; chunk]);
    for stripe in (0..agreement.stripes).map(StripeId) {
        let mut agrees = true;
        for group in geometry.map(stripe).groups() {
            if !geometry.uses(stripe, group.parity) {
                continue;
            }
            sum.fill(0);
            // With the parity itself, a group comes to nothing.
            for (cell, factor) in group.terms().filter(|&(cell, _)| geometry.uses(stripe, cell)) {
                read_cell(geometry, members, stripe, cell, &mut data)?;
                match factor {
                    Factor::ONE => field::add(&mut sum, &data),
                    factor => field::add_multiple(&mut sum, &data, factor),
                }
            }
            agrees &= sum.iter().all(|&byte| byte == 0);
        }
        agreement.disagreeing += u64::from(!agrees);
        progress.set((stripe.0 + 1) * bytes);
    }
    Ok(agreement)
}

fn read_cell(geometry: &Geometry, members: &[Found], stripe: StripeId, cell: Cell, data: &mut [u8]) -> Result<()> {
    let member = &members[geometry.member(cell).index()];
    let sector = member.superblock.data_offset.0 + geometry.sector(stripe, cell).0;
    let read = member.source.read_at(data, Bytes(sector * SECTOR_BYTES));
    read.with_context(|| format!("{}: sector {sector} can't be read", visible(&member.label)))
}
