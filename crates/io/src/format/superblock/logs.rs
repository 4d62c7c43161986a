//! The array's log devices, as its members' superblocks tell of them: which there are, whether they have every record,
//! and where each has a member's part of the log.
//!
//! A log device has a share for each slot, all of the same size, one after the other: what the log's area is on members
//! without them. What a device says of itself is in [`format::log_device`](crate::format::log_device); what counts is
//! what is here.

use std::fmt;

use uraid_layout::{Bytes, MemberIndex};
use uuid::Uuid;

use super::areas::{Area, HEAD_STEP};
use crate::format::BLOCK;
use crate::format::log::RING_BYTES_MIN;
use crate::format::units::Epoch;

/// The most log devices that an array has.
pub const LOGS_MAX: usize = 4;

/// The largest share of a member.
pub(crate) const SHARE_MAX: Bytes = Bytes(1 << 40);

/// A log device's number: its place in the superblocks' table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogIndex(pub u8);

/// Some of an array's log devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogSet(u8);

/// What is on record of an array's log devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDevices {
    /// What each has for each slot.
    pub share: Bytes,
    /// By number.
    pub devices: Vec<LogDevice>,
}

/// What is on record of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDevice {
    /// Who it is.
    pub uuid: Uuid,
    /// It has every record. Otherwise it failed or was not there, and what it has is never read again.
    pub is_active: bool,
    /// The round that put this on record.
    pub since: Epoch,
}

/// A change of an array's log devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChange {
    /// One more comes.
    Add {
        /// Who it is.
        device: Uuid,
    },
    /// One takes another one's place, and its number.
    Replace {
        /// Which.
        log: LogIndex,
        /// Who it is.
        device: Uuid,
    },
    /// One that has failed is forgotten. The last one gets its number.
    Remove {
        /// Which.
        log: LogIndex,
    },
}

/// Why log devices can't be changed, or one can't be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogChangeError {
    /// The log is on the members.
    #[error(
        "the log of this array is on its members: stop the array, and give it log devices with `uraid configure \
         --log-device`"
    )]
    OnMembers,
    /// There is no room for one more.
    #[error(
        "the array has {LOGS_MAX} log devices, and can't have more: remove one that failed, or put the new one in the \
         place of another with `uraid replace`"
    )]
    TooMany,
    /// There is no such device.
    #[error("the array has no log device {log}")]
    NoSuch {
        /// Its number.
        log: LogIndex,
    },
    /// It is used.
    #[error("the array still uses log device {log}: fail it first")]
    InUse {
        /// Its number.
        log: LogIndex,
    },
    /// The array goes on without it already.
    #[error("log device {log} has failed already")]
    HasFailed {
        /// Its number.
        log: LogIndex,
    },
    /// It has the only copy of the latest writes.
    #[error("log device {log} is the only one that works: add another one first, or put one in its place")]
    Last {
        /// Its number.
        log: LogIndex,
    },
}

impl LogDevices {
    /// Those of a new array, or which an array gets with the round of an epoch.
    #[must_use]
    pub fn new(share: Bytes, uuids: impl IntoIterator<Item = Uuid>, since: Epoch) -> Self {
        let device = |uuid| LogDevice { uuid, is_active: true, since };
        Self { share, devices: uuids.into_iter().map(device).collect() }
    }

    /// Where a slot's share is on each device.
    #[must_use]
    pub fn area(&self, slot: MemberIndex) -> Area {
        Area { offset: Bytes(HEAD_STEP.0 + u64::from(slot.0) * self.share.0), size: self.share }
    }

    /// Whether a slot can have a share of this size: no number of slots has shares that end beyond 64 bits then.
    pub(in crate::format) fn is_share(share: Bytes) -> bool {
        share.0.is_multiple_of(BLOCK.bytes().0) && (RING_BYTES_MIN..=SHARE_MAX).contains(&share)
    }

    /// Where the shares of so many slots end.
    #[must_use]
    pub fn end(share: Bytes, slots: u8) -> Bytes {
        Bytes(share.0.saturating_mul(u64::from(slots)).saturating_add(HEAD_STEP.0))
    }

    /// Those that have every record.
    #[must_use]
    pub fn active(&self) -> LogSet {
        (0..).map(LogIndex).zip(&self.devices).filter(|(_, device)| device.is_active).map(|(log, _)| log).collect()
    }

    /// Those that have not.
    #[must_use]
    pub fn failed(&self) -> LogSet {
        self.all().minus(self.active())
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> LogSet {
        (0..).map(LogIndex).zip(&self.devices).map(|(log, _)| log).collect()
    }

    /// Has these on record as failed, from a round on.
    pub(crate) fn fail(&mut self, failed: LogSet, since: Epoch) {
        for (log, device) in (0..).map(LogIndex).zip(&mut self.devices) {
            if device.is_active && failed.contains(log) {
                (device.is_active, device.since) = (false, since);
            }
        }
    }

    /// The number of the next one. A device has its place until it takes another one's.
    ///
    /// # Panics
    /// When there are more than there can be.
    #[must_use]
    pub fn next(&self) -> LogIndex {
        LogIndex(u8::try_from(self.devices.len()).expect("an array has at most four log devices"))
    }

    /// Whether they can change so.
    ///
    /// # Errors
    /// Why they can't.
    pub fn check(&self, change: LogChange) -> Result<(), LogChangeError> {
        match change {
            LogChange::Add { .. } if self.devices.len() == LOGS_MAX => Err(LogChangeError::TooMany),
            LogChange::Replace { log, .. } | LogChange::Remove { log } if !self.all().contains(log) => {
                Err(LogChangeError::NoSuch { log })
            }
            LogChange::Remove { log } if self.active().contains(log) => Err(LogChangeError::InUse { log }),
            LogChange::Add { .. } | LogChange::Replace { .. } | LogChange::Remove { .. } => Ok(()),
        }
    }

    /// The two that change places when they change so: whoever leaves is behind all others then.
    pub(crate) fn exchanged(&self, change: LogChange) -> Option<(LogIndex, LogIndex)> {
        match change {
            LogChange::Add { .. } => None,
            LogChange::Replace { log, .. } => Some((log, self.next())),
            LogChange::Remove { log } => Some((log, LogIndex(self.next().0 - 1))),
        }
    }

    /// Changes them, from a round on.
    pub(crate) fn change(&mut self, change: LogChange, since: Epoch) {
        let new = |uuid| LogDevice { uuid, is_active: true, since };
        match change {
            LogChange::Add { device } => self.devices.push(new(device)),
            LogChange::Replace { log, device } => self.devices[usize::from(log.0)] = new(device),
            LogChange::Remove { log } => {
                let _ = self.devices.swap_remove(usize::from(log.0));
            }
        }
    }

    /// Whether the table makes sense in a superblock of an epoch.
    pub(super) fn is_sound(&self, epoch: Epoch) -> bool {
        let has_some = (1..=LOGS_MAX).contains(&self.devices.len()) && !self.active().is_empty();
        let mut uuids: Vec<Uuid> = self.devices.iter().map(|device| device.uuid).collect();
        uuids.sort_unstable();
        let are_told_apart = uuids.windows(2).all(|pair| pair[0] != pair[1]) && uuids.iter().all(|uuid| !uuid.is_nil());
        has_some
            && Self::is_share(self.share)
            && are_told_apart
            && self.devices.iter().all(|device| device.since <= epoch)
    }
}

impl LogSet {
    /// None.
    pub const EMPTY: Self = Self(0);

    /// Whether a device is among them.
    #[must_use]
    pub const fn contains(self, log: LogIndex) -> bool {
        log.0 < 8 && self.0 >> log.0 & 1 == 1
    }

    /// These and one more.
    ///
    /// # Panics
    /// When there can't be such a device.
    #[must_use]
    pub const fn with(self, log: LogIndex) -> Self {
        assert!((log.0 as usize) < LOGS_MAX, "an array has at most four log devices");
        Self(self.0 | 1 << log.0)
    }

    /// Those in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not in the other set.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many there are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// They, in order.
    pub fn iter(self) -> impl Iterator<Item = LogIndex> {
        (0..LOGS_MAX as u8).map(LogIndex).filter(move |&log| self.contains(log))
    }
}

impl FromIterator<LogIndex> for LogSet {
    fn from_iter<I: IntoIterator<Item = LogIndex>>(logs: I) -> Self {
        logs.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As in a sentence: `0`, `0 and 1`; `none`.
impl fmt::Display for LogSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As members are told of.
        self.iter().map(|log| MemberIndex(log.0)).collect::<uraid_layout::MemberSet>().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::super::{Consistency, SuperblockError, decode, encode};
    use super::*;
    use crate::format::superblock::Superblock;

    /// An array whose second log device has failed in its fourth round.
    fn with_logs() -> Superblock {
        let uuids = [0xA0, 0xB0].map(|byte| Uuid::from_bytes([byte; 16]));
        let mut logs = LogDevices::new(Bytes(0x0012_3000), uuids, Epoch(2));
        logs.fail(LogSet::EMPTY.with(LogIndex(1)), Epoch(4));
        Superblock { logs: Some(logs), consistency: Consistency::Log, epoch: Epoch(5), ..sample() }
    }

    #[test]
    fn the_table_is_where_the_format_says() {
        let own = with_logs();
        let bytes = encode(&own);
        let features = u64::from_le_bytes(*bytes[16..].first_chunk().unwrap());
        assert_eq!((features & 2048, features & 2), (2048, 2));
        let mut expected = vec![0x00, 0x30, 0x12, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        for (uuid, state, since) in [(0xA0, 1, 2), (0xB0, 2, 4)] {
            expected.extend([uuid; 16]);
            expected.extend([state, 0, 0, 0, 0, 0, 0, 0, since, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(bytes[416..416 + expected.len()], expected);
        assert!(bytes[416 + expected.len()..1024].iter().all(|&byte| byte == 0));
        assert_eq!(decode(&bytes), Ok(own));
    }

    #[test]
    fn a_member_s_log_is_on_every_device_at_the_same_place() {
        let own = with_logs();
        let slot = u64::from(own.slot.0);
        let at = (1 << 20) + slot * 0x0012_3000;
        assert_eq!(own.log_area(), Area { offset: Bytes(at), size: Bytes(0x0012_3000) });
        assert_eq!(own.ring().offset, Bytes(at));
        assert_eq!(Superblock { logs: None, ..own.clone() }.log_area(), own.areas.log);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |change: &dyn Fn(&mut LogDevices)| {
            let mut own = with_logs();
            change(own.logs.as_mut().expect("it has log devices"));
            assert_eq!(own.check(), Err(SuperblockError::Field { field: "table of log devices" }));
        };
        refused(&|logs| logs.devices.clear());
        refused(&|logs| logs.devices.extend([logs.devices[0]; 4]));
        refused(&|logs| logs.devices[1].uuid = logs.devices[0].uuid);
        refused(&|logs| logs.devices[0].uuid = Uuid::nil());
        refused(&|logs| logs.devices[0].is_active = false);
        refused(&|logs| logs.devices[0].since = Epoch(6));
        refused(&|logs| logs.share.0 += 512);
        refused(&|logs| logs.share = Bytes(12 << 10));
        refused(&|logs| logs.share = Bytes(2 << 40));
        let without = Superblock { consistency: Consistency::None, ..with_logs() };
        assert!(matches!(without.check(), Err(SuperblockError::Field { .. })));
    }

    #[test]
    fn devices_come_and_go() {
        let mut logs = with_logs().logs.expect("it has log devices");
        let [zero, one, two] = [0, 1, 2].map(LogIndex);
        let device = |byte| Uuid::from_bytes([byte; 16]);
        let add = LogChange::Add { device: device(0xC0) };
        assert_eq!((logs.check(add), logs.exchanged(add)), (Ok(()), None));
        logs.change(add, Epoch(6));
        let remove = |log| LogChange::Remove { log };
        assert_eq!(logs.check(remove(zero)), Err(LogChangeError::InUse { log: zero }));
        assert_eq!(logs.check(remove(LogIndex(3))), Err(LogChangeError::NoSuch { log: LogIndex(3) }));
        assert_eq!((logs.check(remove(one)), logs.exchanged(remove(one))), (Ok(()), Some((one, two))));
        logs.change(remove(one), Epoch(7));
        let is_active = true;
        let third = LogDevice { uuid: device(0xC0), is_active, since: Epoch(6) };
        assert_eq!(logs.devices[1..], [third]);
        let replace = LogChange::Replace { log: zero, device: device(0xD0) };
        assert_eq!((logs.check(replace), logs.exchanged(replace)), (Ok(()), Some((zero, two))));
        logs.change(replace, Epoch(8));
        assert_eq!(logs.devices, [LogDevice { uuid: device(0xD0), is_active, since: Epoch(8) }, third]);
        logs.change(LogChange::Add { device: device(0xE0) }, Epoch(9));
        logs.change(LogChange::Add { device: device(0xF0) }, Epoch(10));
        assert_eq!(logs.check(add), Err(LogChangeError::TooMany));
    }

    #[test]
    fn sets_are_sets() {
        let [one, two] = [1, 2].map(LogIndex);
        let both: LogSet = [two, one].into_iter().collect();
        assert!(both.contains(one) && both.contains(two) && !both.contains(LogIndex(0)));
        assert!(!LogSet::EMPTY.contains(LogIndex(9)));
        assert_eq!(both.iter().collect::<Vec<_>>(), [one, two]);
        assert_eq!((both.len(), both.minus(LogSet::EMPTY.with(one))), (2, LogSet::EMPTY.with(two)));
        assert_eq!((both.to_string(), LogSet::EMPTY.to_string()), ("1 and 2".to_owned(), "none".to_owned()));
    }
}
