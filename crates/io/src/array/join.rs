//! Members for an array that runs: a new one is prepared, a returning one is checked. Blocking, and apart from the
//! engine: what comes out goes to the engine with [`Command::Join`](crate::engine::Command::Join), once the member is
//! at its slot of the disk.
//!
//! A new member has no superblock when it is prepared: the round of superblock writes that takes it in writes its
//! first. So whatever cuts this off, no member is of an array that does not know it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use uraid_layout::{Bytes, MemberIndex, Sectors};
use uuid::Uuid;

use super::sectors::{LargeSectors, too_large};
use super::wait::Patience;
use crate::Error;
use crate::badblocks;
use crate::buf::Buf;
use crate::engine::Joining;
use crate::format::Epoch;
use crate::format::badblocks::{BadBlocks, Damaged};
use crate::format::superblock::{
    Allocation, Area, Areas, Consistency, Integrity, Revision, SlotEntry, SlotState, Superblock, SuperblockError,
};
use crate::member::{self, Access, Member, MemberError, Wait};
use crate::{signature, superblock};

/// How a member may be prepared.
#[derive(Clone, Copy, Debug)]
pub struct JoinOptions {
    /// The size of a file that does not exist yet.
    pub size: Option<Bytes>,
    /// How its space is reserved.
    pub allocation: Allocation,
    /// Overwrite what the member holds.
    pub force: bool,
    /// Whether to wait for whoever uses it.
    pub wait: Wait,
}

/// Why a member can't join. Nothing has been written then, unless it says so.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The member can't be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The member failed, or says nothing that can be used.
    #[error(transparent)]
    Io(#[from] Error),
    /// The file does not exist, and no size was given to create it with.
    #[error("{path}: does not exist; give --size to create it", path = path.display())]
    NoSize {
        /// The file.
        path: PathBuf,
    },
    /// It has less room for data than the array uses of each member.
    #[error(
        "{path}: is too small: it has room for {room} sectors of data, and the array uses {needed} of each member",
        path = path.display()
    )]
    TooSmall {
        /// The member.
        path: PathBuf,
        /// What it has.
        room: Sectors,
        /// What the array uses.
        needed: Sectors,
    },
    /// Its sectors are larger than the array's.
    #[error(transparent)]
    SectorSize(#[from] LargeSectors),
    /// The array can't use it as it was divided.
    #[error("{path}: no longer fits the array; add it as a new member, with --force", path = path.display())]
    Unfit {
        /// The member.
        path: PathBuf,
        /// What is wrong.
        source: SuperblockError,
    },
    /// It is of another array.
    #[error("{path}: belongs to array {found}, not to {array}", path = path.display())]
    Foreign {
        /// The member.
        path: PathBuf,
        /// Its array.
        found: Uuid,
        /// The array that it was to return to.
        array: Uuid,
    },
    /// Its slot has another member now.
    #[error(
        "{path}: its slot {slot} belongs to member {owner} now; add it as a new member, with \
         --force",
        path = path.display()
    )]
    Replaced {
        /// The member.
        path: PathBuf,
        /// Its slot.
        slot: MemberIndex,
        /// Who has it.
        owner: Uuid,
    },
    /// The array has no slot for it.
    #[error(
        "{path}: was in slot {slot}, which the array does not have: it left in a reshape, or was to join in one that \
         went back; add it as a new member, with --force",
        path = path.display()
    )]
    Left {
        /// The member.
        path: PathBuf,
        /// Its slot.
        slot: MemberIndex,
    },
    /// The array has it already.
    #[error("{path}: the array still uses the member in slot {slot}, which has not failed", path = path.display())]
    Present {
        /// The member.
        path: PathBuf,
        /// Its slot.
        slot: MemberIndex,
    },
    /// It was used after the array had given it up.
    #[error(
        "{path}: was used after the array gave it up: in epoch {}, and its own epoch is {}. Each side has writes that \
         the other lacks. To discard the content of this member, add it as a new one, with --force",
        since.0, epoch.0, path = path.display()
    )]
    SplitBrain {
        /// The member.
        path: PathBuf,
        /// What it says.
        epoch: Epoch,
        /// When it was given up.
        since: Epoch,
    },
    /// What it lacks is not known.
    #[error("{path}: {source}; add it as a new member, with --force", path = path.display())]
    BadBlocks {
        /// The member.
        path: PathBuf,
        /// What is wrong.
        source: Damaged,
    },
}

/// Makes a new member for a slot of an array of which `truth` is a present member's newest superblock
/// ([`Engine::superblock`](crate::engine::Engine::superblock)). Leaves no superblock on it.
///
/// # Errors
/// See [`JoinError`].
pub fn join(
    path: &Path,
    options: JoinOptions,
    truth: &Superblock,
    slot: MemberIndex,
) -> Result<(Member, Joining), JoinError> {
    let (found, size) = find(path, options, truth)?;
    if let Some(member) = found.as_ref().filter(|_| !options.force) {
        member.check_unused()?;
    }
    let areas = areas(path, size, truth)?;
    let is_new = found.is_none();
    let member = match found {
        Some(member) => member,
        None => make(path, size, options, truth)?,
    };
    if let Err(error) = clear(&member, &areas) {
        if is_new {
            unmake(path);
        }
        return Err(error.into());
    }
    let own = own(truth, Uuid::new_v4(), slot, areas, Revision(0));
    let bad_blocks = BadBlocks::default();
    Ok((member, Joining { superblock: own, is_whole: true, generation: Uuid::new_v4(), bad_blocks }))
}

/// Makes a spare of a file or device that nobody uses: blank, and large enough to [`join`]. Holds nothing when it
/// returns.
///
/// # Errors
/// See [`JoinError`].
pub fn make_spare(path: &Path, options: JoinOptions, truth: &Superblock) -> Result<(), JoinError> {
    let (found, size) = find(path, options, truth)?;
    areas(path, size, truth)?;
    match found {
        Some(member) if options.force => {
            superblock::erase(&member)?;
            for (offset, size) in signature::ends(member.size()) {
                zero(&member, Area { offset, size })?;
            }
            Ok(member.sync()?)
        }
        Some(member) => Ok(member.check_unused()?),
        None => {
            make(path, size, options, truth)?;
            Ok(())
        }
    }
}

/// Whether [`join`] would make new members of what is at these paths, without `force`; those that hang can't be. Writes
/// nothing and holds nothing, so it may be otherwise by then.
///
/// # Errors
/// When there is no thread to be had.
pub fn check_all(
    paths: &[PathBuf],
    truth: &Superblock,
    patience: &mut Patience,
) -> Result<Vec<Result<(), JoinError>>, MemberError> {
    let steps = paths.iter().cloned().map(|path| {
        let truth = truth.clone();
        (path.clone(), move || check(&path, &truth))
    });
    let checked = patience.each("say what it holds", Duration::ZERO, steps)?;
    Ok(checked.into_iter().map(|checked| checked.unwrap_or_else(|silent| Err(silent.into()))).collect())
}

/// As [`check_all`], of one, which may take as long as it likes.
///
/// # Errors
/// See [`JoinError`].
pub fn check(path: &Path, truth: &Superblock) -> Result<(), JoinError> {
    let member = Member::open(path, Access::Inspect)?;
    refuse_sectors(&member, truth)?;
    areas(path, member.size(), truth)?;
    Ok(member.check_unused()?)
}

/// Checks a member that returns to an array of which `truth` is a present member's newest superblock. With a
/// write-intent bitmap or a log it is rebuilt where the bitmap says that it lacks something; otherwise, with checksums,
/// and if it broke before the bitmap began to say that, whole. So is an export of which the server has an older copy
/// than was durable: than one on which this process's mark had counted up to what `flushed_beats` says of the member
/// ([`Member::flushed_beat`]); and so is one of which that says nothing.
///
/// # Errors
/// See [`JoinError`].
pub fn rejoin(
    path: &Path,
    truth: &Superblock,
    flushed_beats: &HashMap<Uuid, u64>,
) -> Result<(Member, Joining), JoinError> {
    let member = Member::open(path, Access::ReadWrite)?;
    refuse_sectors(&member, truth)?;
    let own = superblock::load(&member)?;
    let damaged = |source| JoinError::BadBlocks { path: path.into(), source };
    let bad_blocks = badblocks::load(&member, &own).map_err(damaged)?;
    let mut joining = returning(path, &own, bad_blocks, truth)?;
    match flushed_beats.get(&own.member) {
        Some(beat) if member.found_beat() < *beat => {
            tracing::warn!(path = %path.display(), "its server has an older copy of it than was durable: all of it is \
                made anew");
            joining.is_whole = true;
        }
        Some(_) => {}
        // Nobody knows how old it is.
        None => joining.is_whole |= member.is_export(),
    }
    if member.size() < own.areas.member_size {
        let (room, needed) = (member.size().whole_sectors(), truth.spec.member_size);
        return Err(JoinError::TooSmall { path: path.into(), room, needed });
    }
    superblock::mend_other(&member, &own)?;
    if truth.integrity != Integrity::None {
        // It is made whole, and what its table says is of what it held before.
        zero(&member, own.areas.sums)?;
        member.sync()?;
    }
    Ok((member, joining))
}

/// Whether a member with this superblock, and this list of bad blocks, may return to the array, and what it lacks.
///
/// # Errors
/// See [`JoinError`].
pub fn returning(
    path: &Path,
    own: &Superblock,
    bad_blocks: BadBlocks,
    truth: &Superblock,
) -> Result<Joining, JoinError> {
    let path: PathBuf = path.into();
    if own.array != truth.array {
        return Err(JoinError::Foreign { path, found: own.array, array: truth.array });
    }
    let slot = own.slot;
    let Some(entry) = truth.slots.get(slot.index()) else {
        return Err(JoinError::Left { path, slot });
    };
    if entry.member != own.member {
        return Err(JoinError::Replaced { path, slot, owner: entry.member });
    }
    if entry.state.is_written() {
        return Err(JoinError::Present { path, slot });
    }
    let (epoch, since) = (own.epoch, entry.since);
    if epoch >= since {
        return Err(JoinError::SplitBrain { path, epoch, since });
    }
    // A member that was being made when it was given up may lack anything.
    let is_unfinished = matches!(own.slots[slot.index()].state, SlotState::Rebuilding { is_whole: true, .. });
    let was_made = is_unfinished && !planted!(UnfinishedReturns);
    // It broke while nothing was written, or lacks more than the bitmap tells.
    let is_stale = epoch.0 + 1 < since.0 && !planted!(StaleReturns);
    let superblock = self::own(truth, own.member, slot, own.areas, own.revision);
    superblock.check().map_err(|source| JoinError::Unfit { path, source })?;
    // Its checksums are of what it held before.
    let is_known = truth.consistency != Consistency::None && truth.integrity == Integrity::None;
    let is_whole = was_made || is_stale || !is_known;
    Ok(Joining { superblock, is_whole, generation: Uuid::new_v4(), bad_blocks })
}

/// The member at `path`, held, or the size of the file that is to be made there.
fn find(path: &Path, options: JoinOptions, truth: &Superblock) -> Result<(Option<Member>, Bytes), JoinError> {
    let open = || Member::open_waiting(path, Access::ReadWrite, options.wait);
    let found = member::exists(path).then(open).transpose()?;
    found.iter().try_for_each(|member| refuse_sectors(member, truth))?;
    found.iter().try_for_each(|member| refuse_present(member, truth))?;
    let size = match (&found, options.size) {
        (Some(member), _) => member.size(),
        (None, Some(size)) => size,
        (None, None) => return Err(JoinError::NoSize { path: path.into() }),
    };
    Ok((found, size))
}

/// Makes the file of a new member; one that the array can't use is removed again.
fn make(path: &Path, size: Bytes, options: JoinOptions, truth: &Superblock) -> Result<Member, JoinError> {
    let member = Member::create(path, size, options.allocation)?;
    if let Err(refused) = refuse_sectors(&member, truth) {
        unmake(path);
        return Err(refused);
    }
    Ok(member)
}

/// Removes the file of a new member that does not join.
pub fn unmake(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "a new member file is left behind");
    }
}

/// Leaves nothing on a member that is to join that could be taken for something of the array.
pub(super) fn clear(member: &Member, areas: &Areas) -> Result<(), Error> {
    // Its own former superblocks go first, durably: cut off here, it is no member of anything.
    superblock::erase(member)?;
    for area in [areas.bitmap, areas.bad_blocks, areas.log, areas.sums] {
        zero(member, area)?;
    }
    Ok(member.sync()?)
}

/// Zeros an area of a member; checksums know nothing then.
fn zero(member: &Member, area: Area) -> Result<(), Error> {
    const STEP: u64 = 1 << 20;
    for at in (0..area.size.0).step_by(1 << 20) {
        let zeros = Buf::zeroed(Bytes(STEP.min(area.size.0 - at)));
        member.write_at(Bytes(area.offset.0 + at), &zeros)?;
    }
    Ok(())
}

/// Refuses a member that can't be written in pieces as small as the array's sectors.
fn refuse_sectors(member: &Member, truth: &Superblock) -> Result<(), JoinError> {
    match too_large(member.alignment().offset, truth.sector_size) {
        Some(found) => Err(LargeSectors { path: member.path().into(), found, sector_size: truth.sector_size }.into()),
        None => Ok(()),
    }
}

/// Refuses an export that is a present member, by another name perhaps: no lock does.
fn refuse_present(member: &Member, truth: &Superblock) -> Result<(), JoinError> {
    let Some(own) = member.is_export().then(|| superblock::load(member).ok()).flatten() else { return Ok(()) };
    let is_present = |entry: &&SlotEntry| entry.member == own.member && entry.state.is_written();
    match truth.slots.get(own.slot.index()).filter(|entry| own.array == truth.array && is_present(entry)) {
        Some(_) => Err(JoinError::Present { path: member.path().into(), slot: own.slot }),
        None => Ok(()),
    }
}

/// How a member of this size is divided.
fn areas(path: &Path, size: Bytes, truth: &Superblock) -> Result<Areas, JoinError> {
    let needed = truth.spec.member_size;
    let areas = Areas::new(size, truth.areas.log.size, truth.integrity);
    let room = areas.as_ref().map_or(Sectors(0), Areas::data_sectors);
    areas.filter(|_| room >= needed).ok_or_else(|| JoinError::TooSmall { path: path.into(), room, needed })
}

/// The superblock of a member of such areas in a slot, if it were one now.
pub(super) fn own(truth: &Superblock, member: Uuid, slot: MemberIndex, areas: Areas, revision: Revision) -> Superblock {
    let mut own = Superblock { member, slot, areas, revision, ..truth.clone() };
    own.slots[slot.index()].member = member;
    own
}
