//! What a disk has where: members by slot, one more place for a member that is to take another one's, and log devices
//! behind them, beyond what a [`MemberSet`](uraid_layout::MemberSet) can have. One more is for a log device that is to
//! take another one's place, too.

use uraid_layout::MemberIndex;

use crate::format::superblock::{LOGS_MAX, LogIndex};

/// The first place of a disk that is a log device's: those before it are members'.
const FIRST_LOG: u8 = 64;

/// How many places a disk has at most.
pub(crate) const PLACES: usize = FIRST_LOG as usize + LOGS_MAX + 1;

/// Where a disk has a log device.
#[must_use]
pub const fn log_place(log: LogIndex) -> MemberIndex {
    MemberIndex(FIRST_LOG + log.0)
}

/// The log device that a disk has at a place; none where that is a member's.
#[must_use]
pub const fn log_at(place: MemberIndex) -> Option<LogIndex> {
    match place.0.checked_sub(FIRST_LOG) {
        Some(log) => Some(LogIndex(log)),
        None => None,
    }
}

/// What a disk has, by place: members by slot, and log devices by number at their places.
#[must_use]
pub fn places<M>(members: Vec<Option<M>>, logs: Vec<Option<M>>) -> Vec<Option<M>> {
    if logs.is_empty() {
        return members;
    }
    let gap = usize::from(FIRST_LOG).saturating_sub(members.len());
    members.into_iter().chain(std::iter::repeat_with(|| None).take(gap)).chain(logs).collect()
}
