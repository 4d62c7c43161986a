//! Changing settings of an array that nobody uses: how it is kept consistent, and its name.
//!
//! It takes one round of superblock writes. Cut off anywhere, it leaves members of two adjacent epochs; the next
//! opening brings those up that it did not reach, so the change is made on all members or on none. An array that is
//! clean needs nothing of what the former setting kept.

use std::path::PathBuf;

use thiserror::Error;
use uraid_layout::{Bytes, Level, MemberIndex, MemberSet};

use super::assemble::Assembled;
use super::bitmap::read_bitmap;
use super::blocking::store_all;
use super::create::stripe_on_member;
use super::error::are;
use super::new_logs::{FoundLogs, NewLogError, NewLogs, Shares};
use crate::Error;
use crate::disk::Disk;
use crate::engine::Record;
use crate::format::Epoch;
use crate::format::superblock::{
    Areas, Consistency, LogDevices, NameError, Revision, Superblock, SuperblockError, check_name,
};
use crate::member::{Access, FileId};

/// What is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// How the array is kept consistent.
    Consistency(Consistency),
    /// The devices that its log is on, which were made for the next round; none: the log is on its members.
    Logs(Option<LogDevices>),
    /// Its name.
    Name(String),
}

/// Why an array can't be configured. Nothing has been changed then, unless it says so.
#[derive(Debug, Error)]
pub enum ConfigureError {
    /// Members are missing, or being rebuilt.
    #[error(
        "{} missing or not rebuilt: name all members of the array, and replace failed ones first",
        are(*missing)
    )]
    NotWhole {
        /// Their slots.
        missing: MemberSet,
    },
    /// The array was not stopped cleanly.
    #[error(
        "the array was not stopped cleanly, or its creation was interrupted: serve it and stop it once, then change it"
    )]
    Dirty,
    /// It is between two shapes.
    #[error(
        "the array is being reshaped: let that end with `uraid reshape MEMBERS`, or go back with `uraid reshape \
         --abort MEMBERS`, and change it then; nothing was changed"
    )]
    Reshaping,
    /// The setting is of no use to the level.
    #[error(
        "{} has no redundancy to bring into agreement after a crash; choose --consistency none",
        level.name()
    )]
    Unsuited {
        /// The level.
        level: Level,
    },
    /// Its log is on devices of its own.
    #[error(
        "the log of this array is on log devices: take them out first, with `uraid configure --no-log-devices MEMBERS`"
    )]
    LogDevices,
    /// Log devices can't be made.
    #[error(transparent)]
    NewLog(#[from] NewLogError),
    /// No array can have the name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A member was made with too small a log.
    #[error(
        "the log of member {member} has {size} bytes, but parity stripes of this size need {needed}; only `uraid \
         create --log-size` sets the size of logs"
    )]
    LogTooSmall {
        /// The member.
        member: MemberIndex,
        /// The size of its log.
        size: Bytes,
        /// The least size.
        needed: Bytes,
    },
    /// A member's areas don't allow the setting.
    #[error("can't configure member {member}")]
    Unfit {
        /// The member.
        member: MemberIndex,
        /// What is wrong.
        source: SuperblockError,
    },
    /// A member failed. The change is made by the next opening if any member has it on record, else it is not made.
    #[error("a member failed; `uraid examine` shows the recorded state")]
    Member(#[from] Error),
}

/// Changes a setting, durably; blocks.
///
/// # Errors
/// When the array is not clean, the setting does not suit it, or a member fails; when the array is not whole, unless it
/// is about log devices, which may be lost together with members.
///
/// # Panics
/// When the array is open for reading only.
pub fn configure<D: Disk>(assembled: Assembled<D>, setting: &Setting) -> Result<Assembled<D>, ConfigureError> {
    assert_eq!(assembled.access, Access::ReadWrite, "configuring writes superblocks");
    if let Setting::Name(name) = setting {
        check_name(name)?;
    }
    check_settled(&assembled, matches!(setting, Setting::Logs(_)))?;
    let Assembled { geometry, record, mut disk, .. } = assembled;
    let level = geometry.spec().level;
    if let &Setting::Consistency(consistency) = setting
        && !consistency.suits(level)
    {
        return Err(ConfigureError::Unsuited { level });
    }
    check_logs(record.any(), setting)?;
    let mut superblocks: Vec<Option<Superblock>> = record.into_superblocks();
    let needed = Areas::log_min(stripe_on_member(&geometry));
    for superblock in superblocks.iter_mut().flatten() {
        let (member, size) = (superblock.slot, superblock.areas.log.size);
        match setting {
            Setting::Consistency(Consistency::Log) if size < needed => {
                return Err(ConfigureError::LogTooSmall { member, size, needed });
            }
            Setting::Logs(None) if superblock.consistency == Consistency::Log && size < needed => {
                return Err(ConfigureError::LogTooSmall { member, size, needed });
            }
            Setting::Logs(logs) => superblock.logs.clone_from(logs),
            Setting::Consistency(consistency) => superblock.consistency = *consistency,
            Setting::Name(name) => superblock.name.clone_from(name),
        }
        superblock.epoch = Epoch(superblock.epoch.0 + 1);
        superblock.revision = Revision(superblock.revision.0 + 1);
        superblock.check().map_err(|source| ConfigureError::Unfit { member, source })?;
    }
    // A single round: a member that it does not reach is one epoch behind, and the next opening brings it up.
    store_all(&mut disk, superblocks.iter().flatten())?;
    // Of an array that is clean and whole no bit has to be set.
    let bitmap = read_bitmap(&mut disk, &geometry, true, &superblocks);
    let record = Record::new(superblocks);
    Ok(Assembled { geometry, record, disk, bitmap, ..assembled })
}

/// Whether settings of an array can be changed: it is whole, or `may_lack` members, and nothing was cut off.
///
/// # Errors
/// [`ConfigureError::Reshaping`]; [`ConfigureError::NotWhole`]; [`ConfigureError::Dirty`].
pub(super) fn check_settled<D>(assembled: &Assembled<D>, may_lack: bool) -> Result<(), ConfigureError> {
    let record = &assembled.record;
    if record.any().reshape.is_some() {
        return Err(ConfigureError::Reshaping);
    }
    if !record.lost().is_empty() && !may_lack {
        return Err(ConfigureError::NotWhole { missing: record.lost() });
    }
    if !record.is_clean() {
        return Err(ConfigureError::Dirty);
    }
    Ok(())
}

/// Whether the log can be where a setting has it.
fn check_logs(truth: &Superblock, setting: &Setting) -> Result<(), ConfigureError> {
    match setting {
        Setting::Consistency(other) if truth.logs.is_some() && *other != Consistency::Log => {
            Err(ConfigureError::LogDevices)
        }
        Setting::Logs(Some(_)) if truth.consistency != Consistency::Log => Err(NewLogError::NoLog.into()),
        _ => Ok(()),
    }
}

/// Looks at the log devices that an array is to have, whose members are at these paths, and changes none.
///
/// # Errors
/// See [`NewLogError`].
pub(super) fn find_logs<D>(
    assembled: &Assembled<D>,
    new: &NewLogs,
    members: &[(PathBuf, Option<FileId>)],
) -> Result<Option<FoundLogs>, ConfigureError> {
    let truth = assembled.record.any();
    if truth.consistency != Consistency::Log && !new.paths.is_empty() {
        return Err(NewLogError::NoLog.into());
    }
    let sizes = assembled.record.superblocks().flatten().map(|own| own.areas.log.size);
    let needed = Areas::log_min(stripe_on_member(&assembled.geometry));
    let wanted = sizes.max().unwrap_or_default();
    let shares = Shares { slots: truth.spec.members, needed, wanted, is_exact: false };
    Ok(new.find(shares, members, Some(truth.array))?)
}
