//! Members for an array that runs: a new one is prepared, a returning one is checked. Blocking, and apart from the engine: what comes out goes
//! to the engine with [`Command::Join`](crate::engine::Command::Join), once the member is at its slot of the disk.
//!
//! A new member has no superblock when it is prepared: the round of superblock writes that takes it in writes its first. So whatever cuts this off, no
//! member is of an array that does not know it.

use std::path::{Path, PathBuf};

use thiserror::Error;
use uraid_layout::{Bytes, MemberIndex, Sectors};
use uuid::Uuid;

use super::create::zero;
use crate::Error;
use crate::engine::Joining;
use crate::member::{Access, Allocation, Member, MemberError};
use crate::signature;
use crate::superblock::{self, Areas, Consistency, Epoch, Integrity, Sequence, SlotState, Superblock, SuperblockError};

/// How a member may be prepared.
#[derive(Clone, Copy, Debug)]
pub struct JoinOptions {
    /// The size of a file that does not exist yet.
    pub size: Option<Bytes>,
    /// How its space is reserved.
    pub allocation: Allocation,
    /// Overwrite what the member holds.
    pub force: bool,
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
    /// It holds something.
    #[error("{path}: holds {what} (at byte {offset}), which would be lost; use --force to overwrite it", path = path.display())]
    InUse {
        /// The member.
        path: PathBuf,
        /// What it holds.
        what: &'static str,
        /// Where that shows.
        offset: Bytes,
    },
    /// It has less room for data than the array uses of each member.
    #[error("{path}: has room for {room} sectors of data, and the array uses {needed} of each member; take a larger one", path = path.display())]
    TooSmall {
        /// The member.
        path: PathBuf,
        /// What it has.
        room: Sectors,
        /// What the array uses.
        needed: Sectors,
    },
    /// The array can't use it as it was divided.
    #[error("{path}: does not suit the array any more; add it as a new member, with --force", path = path.display())]
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
    #[error("{path}: its slot {slot} belongs to member {owner} now; add it as a new member, with --force", path = path.display())]
    Replaced {
        /// The member.
        path: PathBuf,
        /// Its slot.
        slot: MemberIndex,
        /// Who has it.
        owner: Uuid,
    },
    /// The array has it already.
    #[error("{path}: the array goes on with the member in slot {slot}; it has not failed", path = path.display())]
    Present {
        /// The member.
        path: PathBuf,
        /// Its slot.
        slot: MemberIndex,
    },
    /// It was used after the array had given it up.
    #[error(
        "{path}: was used after the array had given it up in epoch {}; it says epoch {}: both sides have writes that the other lacks. If what \
         it holds may be lost, add it as a new member, with --force", since.0, epoch.0, path = path.display()
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
    #[error(
        "{path}: is of epoch {}, and the array gave it up in epoch {} only: what it lacks beyond that is not known. Add it as a new member, with \
         --force, which makes all of it anew", epoch.0, since.0, path = path.display()
    )]
    Stale {
        /// The member.
        path: PathBuf,
        /// What it says.
        epoch: Epoch,
        /// When it was given up.
        since: Epoch,
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
    let found = path.symlink_metadata().is_ok().then(|| Member::open(path, Access::ReadWrite)).transpose()?;
    let size = match (&found, options.size) {
        (Some(member), _) => member.size(),
        (None, Some(size)) => size,
        (None, None) => return Err(JoinError::NoSize { path: path.into() }),
    };
    if let Some(member) = found.as_ref().filter(|_| !options.force) {
        let signature = signature::detect(member.size(), |offset, len| member.peek(offset, len))?;
        if let Some(signature) = signature {
            let (what, offset) = (signature.name, signature.offset);
            return Err(JoinError::InUse { path: path.into(), what, offset });
        }
    }
    let (needed, log) = (truth.spec.member_size, truth.areas.log.size);
    let areas = Areas::new(size, log, truth.integrity).filter(|areas| areas.data_sectors() >= needed);
    let Some(areas) = areas else {
        let room = Areas::new(size, log, truth.integrity).map_or(Sectors(0), |areas| areas.data_sectors());
        return Err(JoinError::TooSmall { path: path.into(), room, needed });
    };
    let member = match found {
        Some(member) => member,
        None => Member::create(path, size, options.allocation)?,
    };
    superblock::erase(&member)?;
    for area in [areas.bitmap, areas.log, areas.sums] {
        zero(&member, area)?;
    }
    member.sync()?;
    let own = own(truth, Uuid::new_v4(), slot, areas, Sequence(0));
    Ok((member, Joining { superblock: own, is_whole: true, generation: Uuid::new_v4() }))
}

/// Checks a member that returns to an array of which `truth` is a present member's newest superblock. With a write-intent bitmap or a log it is
/// rebuilt where the bitmap says that it lacks something; otherwise, and with checksums, whole.
///
/// # Errors
/// See [`JoinError`].
pub fn rejoin(path: &Path, truth: &Superblock) -> Result<(Member, Joining), JoinError> {
    let member = Member::open(path, Access::ReadWrite)?;
    let own = superblock::load(&member)?;
    let joining = returning(path, &own, truth)?;
    if member.size() < own.areas.member_size {
        let (room, needed) = (member.size().whole_sectors(), truth.spec.member_size);
        return Err(JoinError::TooSmall { path: path.into(), room, needed });
    }
    if truth.integrity != Integrity::None {
        // It is made whole, and what its table says is of what it held before.
        zero(&member, own.areas.sums)?;
        member.sync()?;
    }
    Ok((member, joining))
}

/// Whether a member with this superblock may return to the array, and what it lacks.
///
/// # Errors
/// See [`JoinError`].
pub fn returning(path: &Path, own: &Superblock, truth: &Superblock) -> Result<Joining, JoinError> {
    let path: PathBuf = path.into();
    if own.array != truth.array {
        return Err(JoinError::Foreign { path, found: own.array, array: truth.array });
    }
    let slot = own.slot;
    let Some(record) = truth.slots.get(slot.index()).filter(|record| record.member == own.member) else {
        let owner = truth.slots.get(slot.index()).map_or(Uuid::nil(), |record| record.member);
        return Err(JoinError::Replaced { path, slot, owner });
    };
    if record.state.is_written() {
        return Err(JoinError::Present { path, slot });
    }
    let (epoch, since) = (own.epoch, record.since);
    if epoch >= since {
        return Err(JoinError::SplitBrain { path, epoch, since });
    }
    // A member that was being made when it was given up may lack anything.
    let was_made = matches!(own.slots[slot.index()].state, SlotState::Rebuilding { is_whole: true, .. });
    let is_stale = epoch.0 + 1 < since.0;
    if truth.consistency == Consistency::Bitmap && !was_made && is_stale {
        return Err(JoinError::Stale { path, epoch, since });
    }
    let superblock = self::own(truth, own.member, slot, own.areas, own.sequence);
    superblock.check().map_err(|source| JoinError::Unfit { path, source })?;
    // Its checksums are of what it held before.
    let is_known = truth.consistency != Consistency::None && truth.integrity == Integrity::None;
    let is_whole = was_made || is_stale || !is_known;
    Ok(Joining { superblock, is_whole, generation: Uuid::new_v4() })
}

fn own(truth: &Superblock, member: Uuid, slot: MemberIndex, areas: Areas, sequence: Sequence) -> Superblock {
    let mut own = Superblock { member, slot, areas, sequence, ..truth.clone() };
    own.slots[slot.index()].member = member;
    own
}
