//! What a cut has left of a window that was saved: it is brought to its places from where it is safe.

use std::ops::Range;

use uraid_layout::{Lba, Sectors};

use super::error::ReshapeError;
use super::lacking::Listed;
use super::members::Members;
use super::saved;
use super::saved::Copies;
use crate::disk::Disk;
use crate::format::superblock::{Reshape, Superblock};

/// Brings a window that was saved back to where the direction wants it, and turns round if it is to.
///
/// # Errors
/// When a member fails that can't be done without, or no member has what was saved.
pub(in crate::array) fn restore<D: Disk>(members: &mut Members<D>, is_back: bool) -> Result<(), ReshapeError> {
    let (Reshape { mark, saved, is_back: was_back, .. }, course) = (members.reshape(), members.course());
    let heading = course.heading(was_back);
    let window = course.ahead(mark, heading, saved).expect("a superblock is sound");
    let (mut next, is_saved) = (mark, saved > Sectors(0) && !planted!(ReshapeUnrestored));
    if is_saved {
        let content = saved::read(members, Copies::of(&course), &window)?;
        let goes_on = is_back == was_back || planted!(ReshapeTurnedEarly);
        let shape = if goes_on { course.target(heading) } else { course.source(heading) };
        let Listed { lists, more } = members.listed(shape, &window, &content)?;
        if let Some(lba) = more {
            tracing::error!(
                %lba,
                "content is lost beside other that was lost before, as a member has failed since it was saved"
            );
        }
        members.settle(shape, &window, &content, lists)?;
    }
    if is_saved && is_back == was_back {
        next = beyond(&window, mark);
    }
    if is_saved || is_back != was_back {
        members.record(|own| {
            advance(own, |reshape| (reshape.mark, reshape.saved, reshape.is_back) = (next, Sectors(0), is_back));
        })?;
    }
    Ok(())
}

/// Where the mark is when a window at it has moved.
pub(super) fn beyond(window: &Range<Lba>, mark: Lba) -> Lba {
    if window.start == mark { window.end } else { window.start }
}

pub(super) fn advance(own: &mut Superblock, change: impl FnOnce(&mut Reshape)) {
    change(own.reshape.as_mut().expect("the array is being reshaped"));
}
