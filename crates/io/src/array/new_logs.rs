//! Making log devices, for an array that is new, stopped or running: looked at first, then made. What they hold counts
//! for nothing before members' superblocks say that they are the array's.

use std::path::{Path, PathBuf};

use thiserror::Error;
use uraid_layout::Bytes;
use uuid::Uuid;

use super::join::unmake;
use crate::Error;
use crate::buf::Buf;
use crate::format::Epoch;
use crate::format::log_device::LogHeader;
use crate::format::superblock::{Allocation, LOGS_MAX, LogChangeError, LogDevices, MEMBER_MIN, SHARE_MAX, Superblock};
use crate::member::{self, Access, FileId, Member, MemberError, is_same};
use crate::{log_device, superblock};

/// What is written at once.
const STEP: u64 = 1 << 20;

/// Which log devices to make.
#[derive(Clone, Debug, Default)]
pub struct NewLogs {
    /// Where they are; files that do not exist are created. None: the log is on the members.
    pub paths: Vec<PathBuf>,
    /// One alone is enough.
    pub may_be_single: bool,
    /// Overwrite what they hold.
    pub force: bool,
    /// How the space of new files is reserved.
    pub allocation: Allocation,
}

/// Why log devices can't be made. Nothing has been written then, unless it says so.
#[derive(Debug, Error)]
pub enum NewLogError {
    /// There is only one.
    #[error(
        "one log device alone has the only copy of the latest writes: name a second one, which mirrors it, or accept \
         that with --single-log-device"
    )]
    Single,
    /// There are too many.
    #[error("{count} log devices are too many; an array has at most {LOGS_MAX}")]
    TooMany {
        /// How many were named.
        count: usize,
    },
    /// The array has no log.
    #[error("log devices are for arrays with a log: choose --consistency log")]
    NoLog,
    /// The array has none.
    #[error(transparent)]
    Change(#[from] LogChangeError),
    /// One can't be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// One failed; those before it may be written already.
    #[error(transparent)]
    Io(#[from] Error),
    /// It is named twice.
    #[error(
        "{path}: is a member of the array, one of its log devices, or named as a log device twice; each has to be a \
         file or device of its own",
        path = path.display()
    )]
    Twice {
        /// The path.
        path: PathBuf,
    },
    /// It is too small.
    #[error(
        "{path}: {size} bytes are too few for the log of {slots} members; a log device of this array needs at least \
         {needed}", path = path.display()
    )]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// Its size.
        size: Bytes,
        /// For how many members.
        slots: u8,
        /// The least size.
        needed: Bytes,
    },
    /// More than a share can be.
    #[error("a log of {size} bytes for each member is too large; on log devices it has at most {SHARE_MAX}")]
    TooLarge {
        /// What was asked for.
        size: Bytes,
    },
}

/// Log devices as they were found.
#[derive(Debug)]
pub struct FoundLogs {
    /// None: to be created.
    devices: Vec<(PathBuf, Option<Member>)>,
    share: Bytes,
    slots: u8,
    allocation: Allocation,
}

/// What the log takes of a device for each of so many slots.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// How many slots.
    pub slots: u8,
    /// The least that the log needs.
    pub needed: Bytes,
    /// What it should have.
    pub wanted: Bytes,
    /// Less will not do.
    pub is_exact: bool,
}

impl NewLogs {
    /// Looks at every device, and changes none; `members` are the array's, and `own` the array whose former log devices
    /// may be overwritten. None where none are wanted.
    ///
    /// # Errors
    /// See [`NewLogError`].
    pub fn find(
        &self,
        shares: Shares,
        members: &[(PathBuf, Option<FileId>)],
        own: Option<Uuid>,
    ) -> Result<Option<FoundLogs>, NewLogError> {
        let Shares { slots, needed, wanted, is_exact } = shares;
        match self.paths.len() {
            0 => return Ok(None),
            1 if !self.may_be_single => return Err(NewLogError::Single),
            count if count > LOGS_MAX => return Err(NewLogError::TooMany { count }),
            _ => {}
        }
        let mut taken: Vec<(PathBuf, Option<FileId>)> = members.to_vec();
        if is_exact && wanted > SHARE_MAX {
            return Err(NewLogError::TooLarge { size: wanted });
        }
        let (mut devices, mut share) = (Vec::new(), wanted.max(needed).min(SHARE_MAX));
        for path in &self.paths {
            let exists = member::exists(path);
            let id = exists.then(|| FileId::of(path)).transpose()?;
            if taken.iter().any(|(other, taken)| is_same(other, path) || id.is_some() && *taken == id) {
                return Err(NewLogError::Twice { path: path.clone() });
            }
            taken.push((path.clone(), id));
            let device = exists.then(|| Member::open(path, Access::ReadWrite)).transpose()?;
            if let Some(device) = &device {
                self.check_content(device, own)?;
                let room = LogHeader::share_max(device.size(), slots);
                let least = if is_exact { share } else { needed };
                if room < least || device.size() < MEMBER_MIN {
                    let (path, size, needed) = (path.clone(), device.size(), LogHeader::size_min(least, slots));
                    return Err(NewLogError::TooSmall { path, size, slots, needed });
                }
                share = share.min(room);
            }
            devices.push((path.clone(), device));
        }
        Ok(Some(FoundLogs { devices, share, slots, allocation: self.allocation }))
    }

    /// Refuses what holds something.
    fn check_content(&self, device: &Member, own: Option<Uuid>) -> Result<(), NewLogError> {
        let is_own = || own.is_some() && log_device::load(device).is_ok_and(|header| Some(header.array) == own);
        if self.force || is_own() {
            return Ok(());
        }
        Ok(device.check_unused()?)
    }
}

impl FoundLogs {
    /// Makes the devices an array's, to be taken in with the round of an epoch. Files that were made for this, and are
    /// not whole, are removed.
    ///
    /// # Errors
    /// When one fails.
    pub fn make(self, array: Uuid, name: &str, since: Epoch) -> Result<LogDevices, NewLogError> {
        let share = self.share;
        let made = self.make_open(array, name)?;
        Ok(LogDevices::new(share, made.into_iter().map(|(_, uuid)| uuid), since))
    }

    /// The same; they stay open.
    fn make_open(self, array: Uuid, name: &str) -> Result<Vec<(Member, Uuid)>, NewLogError> {
        let Self { devices, share, slots, allocation } = self;
        let (mut all, mut created) = (Vec::new(), Vec::new());
        for (path, device) in devices {
            let is_new = device.is_none();
            let made = make(&path, device, LogHeader::size_min(share, slots), allocation).and_then(|device| {
                created.extend(is_new.then(|| path.clone()));
                let (uuid, size) = (Uuid::new_v4(), device.size());
                let header = LogHeader { array, name: name.to_owned(), uuid, size, share, slots };
                fill(&device, &header, allocation)?;
                Ok((device, uuid))
            });
            match made {
                Ok(made) => all.push(made),
                Err(error) => {
                    created.iter().for_each(|path| unmake(path));
                    return Err(error);
                }
            }
        }
        Ok(all)
    }
}

/// Makes one more log device for an array that runs, of which `truth` is a present member's newest superblock, and
/// `used` are its members and log devices: the device, and who it is. It is the array's only when that is on record
/// ([`Command::ChangeLogs`](crate::engine::Command::ChangeLogs)).
///
/// # Errors
/// See [`NewLogError`].
///
/// # Panics
/// Never: one is wanted, and one is made.
pub fn make_log(
    path: &Path,
    force: bool,
    truth: &Superblock,
    used: &[(PathBuf, Option<FileId>)],
) -> Result<(Member, Uuid), NewLogError> {
    let share = truth.logs.as_ref().ok_or(LogChangeError::OnMembers)?.share;
    let allocation = Allocation::Full;
    let new = NewLogs { paths: vec![path.to_path_buf()], may_be_single: true, force, allocation };
    let shares = Shares { slots: truth.spec.members, needed: share, wanted: share, is_exact: true };
    let found = new.find(shares, used, Some(truth.array))?.expect("one is wanted");
    Ok(found.make_open(truth.array, &truth.name)?.pop().expect("one was made"))
}

fn make(path: &Path, device: Option<Member>, size: Bytes, allocation: Allocation) -> Result<Member, NewLogError> {
    match device {
        Some(device) => Ok(device),
        None => Ok(Member::create(path, size, allocation)?),
    }
}

/// Has a device hold nothing but its header. In a file every place of the log is written, unless it is to take no space
/// before it needs it: the file system has nothing to note then when a record is the first one there.
fn fill(device: &Member, header: &LogHeader, allocation: Allocation) -> Result<(), Error> {
    superblock::erase(device)?;
    if !device.is_device() && allocation == Allocation::Full {
        let end = LogDevices::end(header.share, header.slots).0;
        let zeros = Buf::zeroed(Bytes(STEP));
        for at in (LogDevices::end(Bytes(0), 0).0..end).step_by(1 << 20) {
            let rest = Bytes((end - at).min(STEP));
            if rest.0 < STEP {
                device.write_at(Bytes(at), &Buf::zeroed(rest))?;
            } else {
                device.write_at(Bytes(at), &zeros)?;
            }
        }
        device.sync()?;
    }
    log_device::store(device, header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_not_larger_than_superblocks_can_say() {
        let paths = ["a", "b"].map(|name| PathBuf::from("/nowhere").join(name)).to_vec();
        let new = NewLogs { paths, may_be_single: false, force: false, allocation: Allocation::Full };
        let find = |wanted: u64, is_exact| {
            let shares = Shares { slots: 3, needed: Bytes(1 << 20), wanted: Bytes(wanted), is_exact };
            new.find(shares, &[], None).map(|found| found.expect("devices are wanted").share)
        };
        let (tib, more) = (1 << 40, (1 << 40) + 4096);
        assert_eq!((find(tib, true).ok(), find(more, false).ok()), (Some(Bytes(tib)), Some(Bytes(tib))));
        assert!(matches!(find(more, true), Err(NewLogError::TooLarge { size }) if size.0 == more));
    }
}
