//! Opening an array: from paths to members that may be used.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use uraid_layout::repair::{Repair, Unrecoverable};
use uraid_layout::{Bytes, Geometry, MemberIndex, MemberSet, StripeId};
use uuid::Uuid;

use super::assemble::Assembled;
use super::gather::gather;
use super::judge::{Candidate, Refusal, SetAside, Verdict, judge};
use super::recover::RecoverError;
use super::sectors::too_large;
use super::stale::{self, Stale, StaleError};
use super::wait::{Patience, Watched};
use crate::Error;
use crate::disk::{DEFAULT_DEPTH, UringDisk};
use crate::engine::{Engine, EngineError};
use crate::format::BLOCK;
use crate::format::superblock::{Consistency, Integrity, Superblock};
use crate::member::{Access, Member, MemberError};

/// How an array may be opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// For reading only, nothing is written at all.
    pub access: Access,
    /// Although members are missing that it had when it was last used.
    pub allow_degraded: bool,
    /// Although it was not stopped cleanly and members are missing.
    pub force: bool,
}

/// Why an array can't be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A member can't be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A member says nothing that can be used, or the members can't be reached.
    #[error(transparent)]
    Io(#[from] Error),
    /// The members contradict each other.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A member is smaller than it was.
    #[error(
        "{path}: was truncated: it had {expected} bytes as a member and has {size} now. Start without it, with \
         --degraded",
        path = path.display()
    )]
    Truncated {
        /// The member.
        path: PathBuf,
        /// Its size.
        size: Bytes,
        /// What its superblock says.
        expected: Bytes,
    },
    /// Too many members are missing.
    #[error(
        "too few members: {} missing or not rebuilt, and {level} survives {tolerance} missing{}. To copy off what is \
         still readable, use --read-only --degraded --force; --accept-stale SLOT also reads a member that is out of \
         date",
        describe(missing),
        asides(set_aside)
    )]
    TooFew {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// The level's name.
        level: &'static str,
        /// How many may be missing, whichever they are.
        tolerance: usize,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// Members are missing that were there when the array was last used.
    #[error(
        "{} missing; name all members, or start without these with --degraded{}",
        describe(missing),
        asides(set_aside)
    )]
    Degraded {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// The array was not stopped cleanly and is not whole.
    #[error(
        "the array was not stopped cleanly, and {}{}",
        unsound(missing, rebuilding, *is_mirrored),
        asides(set_aside)
    )]
    DirtyDegraded {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// Who is there, and not rebuilt yet.
        rebuilding: Vec<(MemberIndex, Uuid)>,
        /// Whether its members hold copies, and not parity.
        is_mirrored: bool,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// The array's creation has not ended, and would have to be ended by writing.
    #[error(
        "the creation of this array was interrupted, so it holds nothing yet: serve it for writing, which finishes the \
         creation, or create it again with --force"
    )]
    Initialising,
    /// The array's creation has not ended, and members are missing.
    #[error(
        "the creation of this array was interrupted, and {} missing: name all of its members, which finishes the \
         creation, or create it again with --force{}",
        describe(missing),
        asides(set_aside)
    )]
    InitialisingDegraded {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// A member's sectors are larger than the array's.
    #[error(
        "{path}: has sectors of {found} bytes, but the array writes sectors of {sector_size} bytes; move the member to \
         a device with sectors of {sector_size} bytes, or start without it, with --degraded", path = path.display()
    )]
    SectorSize {
        /// The member.
        path: PathBuf,
        /// Its sectors.
        found: Bytes,
        /// The array's.
        sector_size: Bytes,
    },
    /// The members can't be brought into agreement.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A member is to be read that is out of date, and is not there as such.
    #[error(transparent)]
    Stale(#[from] StaleError),
    /// Operations on members were given up: see [`Patience::take_hung`].
    #[error("a member hangs")]
    Hung,
}

impl OpenError {
    /// The same, where something can't be read that was named: it may be a member that is missing.
    fn beside(mut self, unreadable: &[(PathBuf, SetAside)]) -> Self {
        if let Self::TooFew { set_aside, .. }
        | Self::Degraded { set_aside, .. }
        | Self::InitialisingDegraded { set_aside, .. }
        | Self::DirtyDegraded { set_aside, .. } = &mut self
        {
            set_aside.extend_from_slice(unreadable);
        }
        self
    }
}

/// An array whose members are open and locked.
#[derive(Debug)]
pub struct Array {
    /// What its newest superblock says.
    pub superblock: Superblock,
    /// Its geometry.
    pub geometry: Geometry,
    /// The paths of the present members by slot.
    pub paths: Vec<Option<PathBuf>>,
    /// Members that were named and are not part of it now.
    pub set_aside: Vec<(PathBuf, SetAside)>,
    /// Members that it is read from although it went on without them.
    pub stale: Vec<Stale>,
    pub(super) assembled: Assembled<UringDisk>,
    pub(super) is_in_memory: bool,
}

/// What the paths that were named lead to.
#[derive(Debug)]
pub struct Named {
    /// Members, and what they say.
    pub members: Vec<(Member, Candidate)>,
    /// Paths whose devices fail before they say who they are.
    pub unreadable: Vec<(PathBuf, SetAside)>,
}

/// Opens members and reads what they say. Those that can't be read are set aside.
///
/// # Errors
/// When one can't be opened for another reason, has no valid superblock, or is named twice; when none can be read.
pub fn candidates(paths: &[impl AsRef<Path>], access: Access) -> Result<Named, OpenError> {
    gather(paths, access, false, &mut Patience::endless())
}

impl Array {
    /// Opens the array that the members at `paths` make up, named in any order.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing has been written then, unless a member fails while it catches up with a round of
    /// superblock writes that was cut off.
    pub fn open(paths: &[impl AsRef<Path>], options: OpenOptions) -> Result<Self, OpenError> {
        Self::open_patiently(paths, options, MemberSet::EMPTY, &mut Patience::endless())
    }

    /// As [`Array::open`], with patience. `stale` are slots whose members are taken in although the array went on
    /// without them: what is read of those, and what is computed from it, may be old or wrong as [`Array::doubtful`]
    /// says.
    ///
    /// # Errors
    /// See [`OpenError`]. Where members are in [`Patience::take_hung`] then, try again without them.
    ///
    /// # Panics
    /// When there are such slots, and the array is not opened for reading only.
    pub fn open_patiently(
        paths: &[impl AsRef<Path>],
        options: OpenOptions,
        stale: MemberSet,
        patience: &mut Patience,
    ) -> Result<Self, OpenError> {
        let Named { members, unreadable } = gather(paths, options.access, options.allow_degraded, patience)?;
        let (members, candidates): (Vec<Member>, Vec<Candidate>) = members.into_iter().unzip();
        let mut verdict = judge(&candidates)?;
        let stale = verdict.accept_stale(&candidates, stale)?;
        check_sizes(&members, &candidates, &verdict)?;
        check_presence(&verdict, &candidates, options).map_err(|error| error.beside(&unreadable))?;
        let set_aside = [verdict.asides(&candidates), unreadable].concat();
        let mut members: Vec<Option<Member>> = members.into_iter().map(Some).collect();
        let present: Vec<Option<Arc<Member>>> =
            verdict.slots.iter().map(|index| index.and_then(|index| members[index].take()).map(Arc::new)).collect();
        let paths: Vec<Option<PathBuf>> =
            present.iter().map(|member| member.as_ref().map(|member| member.path().to_path_buf())).collect();
        let is_in_memory = present.iter().flatten().all(|member| member.is_in_memory());
        let mut disk = UringDisk::new(present, DEFAULT_DEPTH)?;
        disk.set_waits_for_room(options.access == Access::ReadWrite);
        let disk = Watched::new(disk, names(&paths), patience);
        let assembled = Assembled::new(disk, &verdict, &candidates, options.access, Uuid::new_v4())?;
        let assembled = assembled.with_disk(Watched::into_inner).ok_or(OpenError::Hung)?;
        let Verdict { superblock, geometry, .. } = verdict;
        Ok(Self { superblock, geometry, paths, set_aside, stale, assembled, is_in_memory })
    }

    /// The slots without a member.
    #[must_use]
    pub fn missing(&self) -> MemberSet {
        self.assembled.missing()
    }

    /// What offsets and lengths of requests are multiples of: the array's sectors, and blocks where each has a
    /// checksum.
    #[must_use]
    pub fn alignment(&self) -> Bytes {
        let sector_size = self.superblock.sector_size;
        if self.superblock.integrity == Integrity::None { sector_size } else { sector_size.max(BLOCK.bytes()) }
    }

    /// Whether all members are in memory: see [`Member::is_in_memory`].
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// See [`Assembled::needs_recovery`].
    #[must_use]
    pub fn needs_recovery(&self) -> bool {
        self.assembled.needs_recovery()
    }

    /// See [`Assembled::is_initialising`].
    #[must_use]
    pub fn is_initialising(&self) -> bool {
        self.assembled.is_initialising()
    }

    /// See [`Assembled::recovery`].
    #[must_use]
    pub fn recovery(&self) -> Bytes {
        self.assembled.recovery()
    }

    /// See [`Assembled::recover`].
    ///
    /// # Errors
    /// See there.
    pub fn recover(self, progress: impl FnMut(Bytes)) -> Result<Self, OpenError> {
        self.recover_patiently(progress, &mut Patience::endless())
    }

    /// As [`Array::recover`], with patience.
    ///
    /// # Errors
    /// As [`Array::open_patiently`].
    pub fn recover_patiently(self, progress: impl FnMut(Bytes), patience: &mut Patience) -> Result<Self, OpenError> {
        let names = names(&self.paths);
        let watched = self.assembled.with_disk(|disk| Some(Watched::new(disk, names, patience)));
        let recovered = watched.expect("it has another disk").recover(progress)?;
        let assembled = recovered.with_disk(Watched::into_inner).ok_or(OpenError::Hung)?;
        Ok(Self { superblock: assembled.record.any().clone(), assembled, ..self })
    }

    /// What may be old or wrong where members are out of date: ranges of the array, ascending. Whatever was written
    /// while such a member was away is there; so are neighbours of it.
    #[must_use]
    pub fn doubtful(&self) -> Vec<Range<Bytes>> {
        stale::doubtful(&self.geometry, &self.stale, self.assembled.bitmap.as_ref())
    }

    /// What can't be had, where more members are gone than the level survives.
    #[must_use]
    pub fn unreadable(&self) -> Option<Unrecoverable> {
        Repair::new(&self.geometry, self.assembled.record.lost()).err()
    }

    /// How much of the array that is: what members held that are gone and nobody else does.
    #[must_use]
    pub fn unreadable_bytes(&self) -> Bytes {
        let (geometry, lost) = (&self.geometry, self.assembled.record.lost());
        let (repair, maps) = (Repair::partial(geometry, lost), geometry.maps().len() as u64);
        let units = |stripe: StripeId| {
            geometry.map(stripe).data().iter().filter(|cell| !repair.has(geometry, stripe, **cell)).count() as u64
        };
        // Every so many stripes they are placed alike.
        let stripes = geometry.stripes().0;
        let lacking = (0..maps.min(stripes)).map(|first| units(StripeId(first)) * (stripes - first).div_ceil(maps));
        Bytes(lacking.sum::<u64>() * geometry.chunk().bytes().0).min(geometry.capacity().bytes())
    }

    /// The engine that serves the array.
    ///
    /// # Errors
    /// [`EngineError::TooManyMissing`]: not after a successful [`Array::open`].
    pub fn into_engine<T>(self) -> Result<Engine<UringDisk, T>, EngineError> {
        self.assembled.into_engine()
    }
}

fn check_sizes(members: &[Member], candidates: &[Candidate], verdict: &Verdict) -> Result<(), OpenError> {
    for &index in verdict.slots.iter().flatten() {
        let (size, expected) = (members[index].size(), candidates[index].superblock.areas.member_size);
        if size < expected {
            return Err(OpenError::Truncated { path: candidates[index].path.clone(), size, expected });
        }
        let sector_size = verdict.superblock.sector_size;
        if let Some(found) = too_large(&members[index], sector_size) {
            return Err(OpenError::SectorSize { path: candidates[index].path.clone(), found, sector_size });
        }
    }
    Ok(())
}

/// Whether what is there of an array may be used as `options` say.
///
/// # Errors
/// [`OpenError::Initialising`], [`OpenError::InitialisingDegraded`], [`OpenError::TooFew`], [`OpenError::Degraded`] or
/// [`OpenError::DirtyDegraded`].
pub fn check_presence(verdict: &Verdict, candidates: &[Candidate], options: OpenOptions) -> Result<(), OpenError> {
    let name = |slots: MemberSet| {
        slots.iter().map(|slot| (slot, verdict.superblock.slots[slot.index()].member)).collect::<Vec<_>>()
    };
    let set_aside = verdict.asides(candidates);
    if verdict.superblock.initialising.is_some() {
        let missing = verdict.missing();
        return match options.access {
            _ if !missing.is_empty() && !planted!(InitialisingDegraded) => {
                Err(OpenError::InitialisingDegraded { missing: name(missing), set_aside })
            }
            Access::ReadWrite => Ok(()),
            Access::ReadOnly | Access::Inspect => Err(OpenError::Initialising),
        };
    }
    let is_read = options.access == Access::ReadOnly || planted!(LastResortWritten);
    let is_last_resort = is_read && options.allow_degraded && options.force;
    if !verdict.is_readable() && !is_last_resort {
        let (level, tolerance) = (verdict.geometry.spec().level.name(), verdict.geometry.tolerance());
        return Err(OpenError::TooFew { missing: name(verdict.lost()), level, tolerance, set_aside });
    }
    let newly_missing = verdict.newly_missing();
    if !newly_missing.is_empty() && !options.allow_degraded {
        return Err(OpenError::Degraded { missing: name(newly_missing), set_aside });
    }
    let is_logged = verdict.superblock.consistency == Consistency::Log;
    let lost = verdict.lost();
    let is_mirrored = verdict.geometry.spec().level.is_mirrored();
    // Who was lost before took no part in the writes that were under way: all that there is, is in the other copies.
    let was_known = is_mirrored && newly_missing.is_empty();
    let is_sound = verdict.superblock.is_clean || lost.is_empty() || is_logged || was_known;
    if is_sound || options.force {
        return Ok(());
    }
    let (missing, rebuilding) = (name(verdict.missing()), name(verdict.rebuilding()));
    Err(OpenError::DirtyDegraded { missing, rebuilding, is_mirrored, set_aside })
}

/// Why an array should be whole that was not stopped cleanly, and what can be done about it.
fn unsound(missing: &[(MemberIndex, Uuid)], rebuilding: &[(MemberIndex, Uuid)], is_mirrored: bool) -> String {
    let gone = (!missing.is_empty()).then(|| format!("{} missing", describe(missing)));
    let new = (!rebuilding.is_empty()).then(|| format!("{} there, but not rebuilt yet", describe(rebuilding)));
    let who: Vec<String> = gone.into_iter().chain(new).collect();
    let risk = if is_mirrored {
        "writes that were under way may be in some copies and not in others. The copies that are left count then: what \
         was read before the stop, and never flushed, may be older again"
    } else {
        "writes that were under way may have left parity that does not match, and what is computed from it would be \
         wrong there"
    };
    let way = match missing.len() {
        0 => {
            "What is to be there is with the others alone, so there is nothing to bring back: accept that with --force"
        }
        1 => "Bring the missing member back, or accept that with --force",
        _ => "Bring the missing members back, or accept that with --force",
    };
    format!("{}: {risk}. {way}", who.join(", and "))
}

/// `member 2 (UUID) is`, `members 2 (UUID), 3 (UUID) are`.
fn describe(members: &[(MemberIndex, Uuid)]) -> String {
    let names: Vec<String> = members.iter().map(|(slot, uuid)| format!("{slot} ({uuid})")).collect();
    let (noun, verb) = if members.len() == 1 { ("member", "is") } else { ("members", "are") };
    format!("{noun} {} {verb}", names.join(", "))
}

/// The paths by slot, where there is one.
fn names(paths: &[Option<PathBuf>]) -> Vec<PathBuf> {
    paths.iter().map(|path| path.clone().unwrap_or_default()).collect()
}

fn asides(set_aside: &[(PathBuf, SetAside)]) -> String {
    set_aside.iter().map(|(path, reason)| format!("; {} does not count: {reason}", path.display())).collect()
}
