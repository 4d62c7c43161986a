//! Making an array: members examined first, then made, then [formatted](super::initialise).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use uraid_layout::{Bytes, Geometry, GeometryError, Level, Sectors, Spec};
use uuid::Uuid;

use super::initialise::{Content, format};
use super::join::unmake;
use super::new_logs::{FoundLogs, NewLogError, NewLogs, Shares};
use crate::Error;
use crate::disk::{DEFAULT_DEPTH, UringDisk};
use crate::format::UnixSeconds;
use crate::format::superblock::{
    Allocation, Areas, Consistency, Integrity, MEMBER_MIN, NameError, SECTOR_SIZES, Superblock, check_name,
};
use crate::member::{self, Access, Member, MemberError, is_same};
use crate::superblock;

/// What to make.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The level with its options.
    pub level: Level,
    /// The chunk.
    pub chunk: Bytes,
    /// The array's name.
    pub name: String,
    /// The size of members that do not exist yet.
    pub size: Option<Bytes>,
    /// How their space is reserved.
    pub allocation: Allocation,
    /// Overwrite what members hold.
    pub force: bool,
    /// What keeps stripes consistent; none: what suits the level.
    pub consistency: Option<Consistency>,
    /// How content is checked; anything but nothing needs a log.
    pub integrity: Integrity,
    /// The least size of each member's log; none: [`Areas::default_log`], and at least what the log needs.
    pub log_size: Option<Bytes>,
    /// The devices that the log is on.
    pub logs: NewLogs,
    /// The time of creation.
    pub created: UnixSeconds,
}

/// Why an array can't be made. Nothing has been written then, unless it says so.
#[derive(Debug, Error)]
pub enum CreateError {
    /// A member can't be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A member failed; those before it may be marked already.
    #[error(transparent)]
    Io(#[from] Error),
    /// There is no such array.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A file does not exist, and no size was given to create it with.
    #[error("{path}: does not exist; give --size to create it", path = path.display())]
    NoSize {
        /// The file.
        path: PathBuf,
    },
    /// A member is too small.
    #[error("{path}: {size} bytes are too few for a member; it needs at least {MEMBER_MIN}", path = path.display())]
    TooSmall {
        /// The member.
        path: PathBuf,
        /// Its size.
        size: Bytes,
    },
    /// A member has no room for a log and data.
    #[error(
        "{path}: a log of {log} bytes leaves no room for data in a member of {size}; make the members larger, or \
         choose a smaller --chunk or --log-size, or another --consistency", path = path.display()
    )]
    NoRoom {
        /// The member.
        path: PathBuf,
        /// Its size.
        size: Bytes,
        /// The log's size.
        log: Bytes,
    },
    /// The log has no room for what is written at once.
    #[error(
        "a log of {size} bytes is too small for parity stripes of this size; give --log-size {needed} or more, or \
         choose a smaller --chunk or another --consistency"
    )]
    LogTooSmall {
        /// The size that was asked for.
        size: Bytes,
        /// The least size.
        needed: Bytes,
    },
    /// What was asked for is of no use to the level.
    #[error(
        "{} has no redundancy to bring into agreement after a crash; choose --consistency none",
        level.name()
    )]
    Unsuited {
        /// The level.
        level: Level,
    },
    /// Checksums agree with content after an unclean stop only where a log has both.
    #[error(
        "checksums need a log, so that they match the content after a crash; choose --consistency log, or --integrity \
         none"
    )]
    NeedsLog,
    /// A member that exists is smaller than what was asked for.
    #[error("{path}: exists with {size} bytes, less than the {wanted} asked for with --size", path = path.display())]
    Smaller {
        /// The member.
        path: PathBuf,
        /// Its size.
        size: Bytes,
        /// What was asked for.
        wanted: Bytes,
    },
    /// A log device can't be made.
    #[error(transparent)]
    Log(#[from] NewLogError),
    /// No array can have the name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// More members than an array can have.
    #[error("{count} members are too many; an array has at most 64")]
    TooMany {
        /// How many were named.
        count: usize,
    },
    /// The members failed before they were initialised.
    #[error("the members failed before the array was initialised; create it again with --force")]
    Initialise(#[source] Error),
}

impl CreateError {
    /// Whether what was asked for makes no array, whatever the members.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        matches!(
            self,
            Self::Geometry(_)
                | Self::Name(_)
                | Self::TooMany { .. }
                | Self::NoSize { .. }
                | Self::LogTooSmall { .. }
                | Self::Unsuited { .. }
                | Self::NeedsLog
                | Self::Log(NewLogError::Single | NewLogError::TooMany { .. } | NewLogError::NoLog)
        )
    }
}

/// A member to be, as it was found.
struct Found<'a> {
    path: &'a Path,
    /// None: to be created.
    member: Option<Member>,
    areas: Areas,
}

/// Makes an array of the members at `paths`, in the order of their slots, and leaves it closed and clean. Files that do
/// not exist are created, and empty ones, which an attempt that was cut off may have left, get their size. Where
/// anything has to be zeroed, `progress` gets the bytes zeroed so far on all members together, and how many there will
/// be.
///
/// # Errors
/// See [`CreateError`].
pub fn create(
    paths: &[PathBuf],
    options: &CreateOptions,
    progress: impl FnMut(Bytes, Bytes),
) -> Result<Superblock, CreateError> {
    let count = u8::try_from(paths.len()).ok().filter(|&count| count <= 64);
    let count = count.ok_or(CreateError::TooMany { count: paths.len() })?;
    check_name(&options.name)?;
    let is_checked = options.integrity != Integrity::None;
    let suits = if is_checked || !options.logs.paths.is_empty() {
        Consistency::Log
    } else {
        Consistency::of_level(options.level)
    };
    let consistency = options.consistency.unwrap_or(suits);
    if is_checked && consistency != Consistency::Log {
        return Err(CreateError::NeedsLog);
    }
    if !options.logs.paths.is_empty() && consistency != Consistency::Log {
        return Err(NewLogError::NoLog.into());
    }
    if !consistency.suits(options.level) {
        return Err(CreateError::Unsuited { level: options.level });
    }
    let log_min = log_min(options, count, consistency)?;
    let mut found = find(paths, options, log_min)?;
    let member_size = found.iter().map(|found| found.areas.data_sectors()).min().unwrap_or_default();
    let spec = Spec { level: options.level, members: count, chunk: options.chunk, member_size };
    Geometry::new(spec)?;
    let logs = find_logs(&found, options, log_min)?;
    // Only now that nothing can be refused any more is anything changed.
    let is_used = found.iter().filter_map(|found| found.member.as_ref()).any(|member| !member.is_empty_file());
    let content = if is_used { Content::Unknown } else { Content::Zeros };
    let new: Vec<&Path> = found.iter().filter(|found| found.member.is_none()).map(|found| found.path).collect();
    let members = make(&mut found, options)?;
    let mut superblocks = superblocks(spec, &found, &members, options, consistency);
    // What they hold is the array's only when members say so.
    let made = logs.map(|logs| logs.make(superblocks[0].array, &options.name, superblocks[0].epoch)).transpose();
    let made = made.inspect_err(|_| new.iter().for_each(|path| unmake(path)))?;
    superblocks.iter_mut().for_each(|own| own.logs.clone_from(&made));
    tell_apart(&members, &superblocks).inspect_err(|_| new.iter().for_each(|path| unmake(path)))?;
    let mut disk = UringDisk::new(members.into_iter().map(Arc::new).map(Some).collect(), DEFAULT_DEPTH)?;
    let superblocks = format(&mut disk, superblocks, content, progress).map_err(CreateError::Initialise)?;
    Ok(superblocks.into_iter().next().expect("a geometry has members"))
}

/// The least log that members need, before anything is known of them.
fn log_min(options: &CreateOptions, members: u8, consistency: Consistency) -> Result<Bytes, CreateError> {
    if consistency != Consistency::Log {
        return Ok(Bytes(0));
    }
    // As if members were larger than any chunk allows a parity stripe to be.
    let member_size = Sectors(1 << 32);
    let spec = Spec { level: options.level, members, chunk: options.chunk, member_size };
    let needed = Areas::log_min(stripe_on_member(&Geometry::new(spec)?));
    match options.log_size.filter(|&size| size < needed) {
        Some(size) => Err(CreateError::LogTooSmall { size, needed }),
        None => Ok(needed),
    }
}

/// What a parity stripe takes of each member.
pub(super) fn stripe_on_member(geometry: &Geometry) -> Bytes {
    Bytes(geometry.chunk().bytes().0 * geometry.rows() as u64)
}

/// Looks at every member, and changes none.
fn find<'a>(paths: &'a [PathBuf], options: &CreateOptions, log_min: Bytes) -> Result<Vec<Found<'a>>, CreateError> {
    let (present, absent): (Vec<&PathBuf>, Vec<&PathBuf>) = paths.iter().partition(|path| member::exists(path));
    let mut members = Member::open_all(&present, Access::ReadWrite)?.into_iter();
    let mut found = Vec::with_capacity(paths.len());
    for (index, path) in paths.iter().enumerate() {
        let member = if absent.contains(&path) { None } else { members.next() };
        let size = match (&member, options.size) {
            (Some(member), Some(wanted)) if member.is_empty_file() => wanted,
            (Some(member), Some(wanted)) if member.size() < wanted => {
                return Err(CreateError::Smaller { path: path.clone(), size: member.size(), wanted });
            }
            (Some(member), _) => member.size(),
            (None, Some(size)) => size,
            (None, None) => return Err(CreateError::NoSize { path: path.clone() }),
        };
        let same = |other: &&PathBuf| is_same(path, other);
        if let Some(first) = paths[..index].iter().find(same).filter(|_| member.is_none()) {
            return Err(MemberError::SameFile { first: first.clone(), second: path.clone() }.into());
        }
        if let Some(member) = member.as_ref().filter(|_| !options.force) {
            member.check_unused()?;
        }
        if size < MEMBER_MIN {
            return Err(CreateError::TooSmall { path: path.clone(), size });
        }
        let log = options.log_size.unwrap_or(Areas::default_log(size).max(log_min));
        let areas = Areas::new(size, log, options.integrity).ok_or_else(|| CreateError::NoRoom {
            path: path.clone(),
            size,
            log,
        })?;
        found.push(Found { path, member, areas });
    }
    Ok(found)
}

/// Looks at the log devices, and changes none.
fn find_logs(found: &[Found<'_>], options: &CreateOptions, needed: Bytes) -> Result<Option<FoundLogs>, NewLogError> {
    let wanted = found.iter().map(|found| found.areas.log.size).max().unwrap_or_default();
    let slots = u8::try_from(found.len()).expect("members are at most 64");
    let shares = Shares { slots, needed, wanted, is_exact: options.log_size.is_some() };
    let members: Vec<_> =
        found.iter().map(|found| (found.path.to_path_buf(), found.member.as_ref().map(Member::id))).collect();
    options.logs.find(shares, &members, None)
}

/// Creates the files that do not exist, and gives empty ones their size; all or none of them.
fn make(found: &mut [Found<'_>], options: &CreateOptions) -> Result<Vec<Member>, CreateError> {
    let mut created: Vec<&Path> = Vec::new();
    let (mut members, mut filled) = (Vec::with_capacity(found.len()), Vec::new());
    for found in found {
        let member = match found.member.take() {
            Some(member) if member.is_empty_file() => {
                filled.push(members.len());
                member.fill(found.areas.member_size, options.allocation).map(|()| member)
            }
            Some(member) => Ok(member),
            None => Member::create(found.path, found.areas.member_size, options.allocation)
                .inspect(|_| created.push(found.path)),
        };
        match member {
            Ok(member) => members.push(member),
            Err(error) => {
                created.into_iter().for_each(unmake);
                filled.into_iter().filter_map(|index| members.get(index)).for_each(Member::empty);
                return Err(error.into());
            }
        }
    }
    Ok(members)
}

/// Finds out whether exports that have different names are the same: each is given a superblock, which the other would
/// have then. Those that are the same are left without any.
fn tell_apart(members: &[Member], superblocks: &[Superblock]) -> Result<(), CreateError> {
    let exports: Vec<(&Member, &Superblock)> =
        members.iter().zip(superblocks).filter(|(member, _)| member.is_export()).collect();
    if exports.len() < 2 {
        return Ok(());
    }
    for (member, _) in &exports {
        superblock::erase(member)?;
    }
    for (member, own) in &exports {
        superblock::store(member, own)?;
    }
    for (member, own) in &exports {
        let found = superblock::load(member)?;
        if found.member == own.member {
            continue;
        }
        for (member, _) in &exports {
            superblock::erase(member)?;
        }
        let path = |member: &Member| member.path().to_path_buf();
        let other = exports.iter().find(|(_, other)| other.member == found.member);
        let second = other.map_or_else(|| path(member), |(other, _)| path(other));
        return Err(MemberError::SameExport { first: path(member), second }.into());
    }
    Ok(())
}

fn superblocks(
    spec: Spec,
    found: &[Found<'_>],
    made: &[Member],
    options: &CreateOptions,
    consistency: Consistency,
) -> Vec<Superblock> {
    let members: Vec<(Uuid, Areas)> = found.iter().map(|found| (Uuid::new_v4(), found.areas)).collect();
    // What suits the largest suits all.
    let sector_size = made.iter().map(|member| member.alignment().offset).fold(SECTOR_SIZES[0], Bytes::max);
    let complete = |new| Superblock {
        name: options.name.clone(),
        created: options.created,
        consistency,
        integrity: options.integrity,
        is_clean: false,
        initialising: Some(options.allocation),
        sector_size,
        ..new
    };
    Superblock::of_new_array(Uuid::new_v4(), spec, &members).into_iter().map(complete).collect()
}
