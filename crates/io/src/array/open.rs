//! Opening an array: from what was named to members that may be used.
//!
//! How members are reached is somebody else's affair: [`Array::of`] takes them opened, whatever they are, with what
//! their superblocks say, and gets a [`Disk`] of those that it accepts. Only [`Array::open`] knows files and io_uring.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uraid_layout::repair::{Repair, Unrecoverable};
use uraid_layout::{Bytes, Geometry, MemberSet, Sectors, StripeId};
use uuid::Uuid;

use super::assemble::Assembled;
use super::badblocks::LostList;
use super::configure::{ConfigureError, Setting, check_settled, configure, find_logs};
use super::create::stripe_on_member;
use super::error::OpenError;
use super::gather::{Named, Opened, gather};
use super::grow::{GrowError, grow};
use super::judge::{Candidate, SetAside, Verdict, judge};
use super::logs::{self, OpenedLog};
use super::new_logs::NewLogs;
use super::older::{self, Mark};
use super::recover::{recover, recovery_bytes};
use super::reshape::Unserved;
use super::sectors::too_large;
use super::stale::{self, Stale, accept_stale};
use super::wait::{Patience, Watched};
use crate::Error;
use crate::disk::{DEFAULT_DEPTH, Disk, UringDisk, places};
use crate::engine::{Engine, EngineError};
use crate::format::superblock::{Areas, Consistency, Superblock};
use crate::format::{BLOCK, Epoch};
use crate::member::{Access, FileId, Member};

/// How an array may be opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// For reading only, nothing is written at all.
    pub access: Access,
    /// Although members are missing that it had when it was last used.
    pub allow_degraded: bool,
    /// Although it was not stopped cleanly and members are missing, or nobody knows what a member lacks that is needed.
    pub force: bool,
}

/// An array whose members are open.
#[derive(Debug)]
pub struct Array<D = UringDisk> {
    /// What its newest superblock says.
    pub superblock: Superblock,
    /// Its geometry.
    pub geometry: Geometry,
    /// The paths of the present members by slot.
    pub paths: Vec<Option<PathBuf>>,
    /// The paths of the present log devices by number.
    pub log_paths: Vec<Option<PathBuf>>,
    /// Members that were named and are not part of it now.
    pub set_aside: Vec<(PathBuf, SetAside)>,
    /// Members that it is read from although it went on without them.
    pub stale: Vec<Stale>,
    pub(super) assembled: Assembled<D>,
}

impl Array<UringDisk> {
    /// Opens the array that the files and devices at `paths` make up, named in any order, and holds them.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing has been written then, unless a member fails while it catches up with a round of
    /// superblock writes that was cut off.
    pub fn open(paths: &[impl AsRef<Path>], options: OpenOptions) -> Result<Self, OpenError> {
        Self::open_patiently(paths, options, MemberSet::EMPTY, &mut Patience::endless())
    }

    /// As [`Array::open`], with patience, and with members that are out of date: see [`Array::of`].
    ///
    /// # Errors
    /// See [`OpenError`]. Where members are in [`Patience::take_hung`] then, try again without them.
    ///
    /// # Panics
    /// As [`Array::of`].
    pub fn open_patiently(
        paths: &[impl AsRef<Path>],
        options: OpenOptions,
        stale: MemberSet,
        patience: &mut Patience,
    ) -> Result<Self, OpenError> {
        let named = gather(paths, options.access, options.allow_degraded, patience)?;
        let disk = |members: Vec<Option<Member>>| {
            let mut disk =
                UringDisk::new(members.into_iter().map(|member| member.map(Arc::new)).collect(), DEFAULT_DEPTH)?;
            // A member without room would be given up otherwise; only whoever writes can run out of it.
            disk.set_waits_for_room(options.access == Access::ReadWrite);
            disk.claim()?;
            Ok(disk)
        };
        Self::of(named, options, stale, patience, disk)
    }

    /// See [`grow`]; each member is as large as it was found. A member that does not answer is waited for, which the
    /// log says.
    ///
    /// # Errors
    /// See there.
    ///
    /// # Panics
    /// When the array is open for reading only.
    pub fn grow(self, used: Option<Bytes>) -> Result<Self, GrowError> {
        let members = self.assembled.disk.members();
        let sizes: Vec<Option<Bytes>> = members.iter().map(|member| Some(member.as_ref()?.size())).collect();
        let names = names(&self.paths, &self.log_paths);
        let watched = self.assembled.with_disk(|disk| Some(Watched::new(disk, names, Patience::endless())));
        let grown = grow(watched.expect("it has another disk"), &sizes, used)?;
        let assembled = grown.with_disk(Watched::into_inner).expect("who waits for ever gives nothing up");
        let superblock = assembled.record.any().clone();
        let geometry = assembled.geometry.clone();
        Ok(Self { superblock, geometry, assembled, ..self })
    }

    /// As [`Array::open`] for writing, to change settings of an array that was stopped cleanly: its log devices are not
    /// needed for that, and not held.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_stopped(paths: &[impl AsRef<Path>]) -> Result<Self, OpenError> {
        let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true };
        let mut patience = Patience::endless();
        let mut named = gather(paths, options.access, true, &mut patience)?;
        if judge_all(&named)?.superblock.is_clean {
            // Whoever holds them may make them anew.
            named.logs.clear();
        }
        let disk = |members: Vec<Option<Member>>| {
            UringDisk::new(members.into_iter().map(|member| member.map(Arc::new)).collect(), DEFAULT_DEPTH)
        };
        Self::of_some(named, options, MemberSet::EMPTY, &mut patience, (disk, false))
    }

    /// Gives the array these log devices, in the place of all that it has, or none.
    ///
    /// # Errors
    /// See [`configure`].
    ///
    /// # Panics
    /// As [`Array::configure`].
    pub fn set_logs(self, new: &NewLogs) -> Result<(), ConfigureError> {
        let members: Vec<(PathBuf, Option<FileId>)> =
            self.paths.iter().flatten().map(|path| (path.clone(), FileId::of(path).ok())).collect();
        // What is wrong with the array goes first: nothing is written then.
        check_settled(&self.assembled, true)?;
        let Superblock { array, name, epoch, .. } = self.assembled.record.any().clone();
        let found = find_logs(&self.assembled, new, &members)?;
        let made = found.map(|found| found.make(array, &name, Epoch(epoch.0 + 1))).transpose()?;
        configure(self.assembled, &Setting::Logs(made)).map(drop)
    }

    /// Whether all members are in memory: see [`Member::is_in_memory`].
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.assembled.disk.members().iter().flatten().all(|member| member.is_in_memory())
    }
}

impl<D: Disk> Array<D> {
    /// The array of members that were opened already, whatever they are and whatever reaches them: `disk` makes a disk
    /// of the accepted ones, by [place](places). `stale` are slots whose members are taken in although the array went
    /// on without them: what is read of those, and what is computed from it, may be old or wrong as
    /// [`Array::doubtful`] says.
    ///
    /// # Errors
    /// See [`OpenError`]. Where members are in [`Patience::take_hung`] then, try again without them.
    ///
    /// # Panics
    /// When there are such slots, and the array is not opened for reading only.
    pub fn of<M>(
        named: Named<M>,
        options: OpenOptions,
        stale: MemberSet,
        patience: &mut Patience,
        disk: impl FnOnce(Vec<Option<M>>) -> Result<D, Error>,
    ) -> Result<Self, OpenError> {
        Self::of_some(named, options, stale, patience, (disk, true))
    }

    /// The same; whether log devices are needed, too.
    fn of_some<M>(
        named: Named<M>,
        options: OpenOptions,
        stale: MemberSet,
        patience: &mut Patience,
        (disk, needs_logs): (impl FnOnce(Vec<Option<M>>) -> Result<D, Error>, bool),
    ) -> Result<Self, OpenError> {
        let Named { members, logs, unreadable } = named;
        let candidates: Vec<Candidate> = members.iter().map(|opened| opened.candidate.clone()).collect();
        let mut verdict = judge(&candidates)?;
        let marks: Vec<&Mark> = members.iter().map(|opened| &opened.mark).collect();
        older::set_aside(&mut verdict, &candidates, &marks);
        let stale = accept_stale(&mut verdict, &candidates, stale)?;
        let found = logs::find(&verdict.superblock, &logs)?;
        verdict.lost_logs = found.lost;
        check_sizes(&members, &verdict)?;
        check_presence(&verdict, &candidates, options).map_err(|error| error.beside(&unreadable))?;
        let logs_beside = [found.set_aside.clone(), unreadable.clone()].concat();
        let may = (options.access, options.allow_degraded, options.force);
        if needs_logs || !verdict.superblock.is_clean {
            logs::check_presence(&verdict.superblock, found.lost, &logs_beside, may)?;
        }
        let set_aside = [verdict.asides(&candidates), found.set_aside, unreadable].concat();
        let path = |index: &Option<usize>| index.map(|index| candidates[index].path.clone());
        let paths: Vec<Option<PathBuf>> = verdict.slots.iter().map(path).collect();
        let mut members: Vec<Option<M>> = members.into_iter().map(|opened| Some(opened.member)).collect();
        let present = verdict.slots.iter().map(|index| index.and_then(|index| members[index].take())).collect();
        let mut logs: Vec<Option<OpenedLog<M>>> = logs.into_iter().map(Some).collect();
        let logs = found.devices.iter().map(|index| index.and_then(|index| logs[index].take()));
        let (log_paths, devices): (Vec<_>, Vec<_>) =
            logs.map(|log| log.map(|log| (log.path, log.device)).unzip()).unzip();
        let disk = Watched::new(disk(places(present, devices))?, names(&paths, &log_paths), patience);
        let lost_list = if options.force { LostList::Trusted } else { LostList::Refused };
        let assembled = Assembled::with_lists(disk, &verdict, &candidates, options.access, Uuid::new_v4(), lost_list)?;
        let assembled = assembled.with_disk(Watched::into_inner).ok_or(OpenError::Hung)?;
        let Verdict { superblock, geometry, .. } = verdict;
        Ok(Self { superblock, geometry, paths, log_paths, set_aside, stale, assembled })
    }

    /// The slots without a member.
    #[must_use]
    pub fn missing(&self) -> MemberSet {
        self.assembled.missing()
    }

    /// How large it is.
    #[must_use]
    pub fn capacity(&self) -> Sectors {
        self.superblock.reshape.map_or_else(|| self.geometry.capacity(), |reshape| reshape.kept)
    }

    /// While it is being reshaped, the shape that it is to get.
    #[must_use]
    pub fn other_geometry(&self) -> Option<Geometry> {
        self.superblock.shapes().into_iter().nth(1)
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

    /// See [`configure`].
    ///
    /// # Errors
    /// See there.
    ///
    /// # Panics
    /// When the array is open for reading only.
    pub fn configure(self, setting: &Setting) -> Result<Self, ConfigureError> {
        let assembled = configure(self.assembled, setting)?;
        let superblock = assembled.record.any().clone();
        Ok(Self { superblock, assembled, ..self })
    }

    /// See [`recovery_bytes`].
    #[must_use]
    pub fn recovery_bytes(&self) -> Bytes {
        recovery_bytes(&self.assembled)
    }

    /// See [`recover`].
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
        let names = names(&self.paths, &self.log_paths);
        let watched = self.assembled.with_disk(|disk| Some(Watched::new(disk, names, patience)));
        let recovered = recover(watched.expect("it has another disk"), progress)?;
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
    pub fn into_engine<T>(self) -> Result<Engine<D, T>, EngineError> {
        self.assembled.into_engine()
    }
}

/// What the superblocks of those that were named say together.
fn judge_all<M>(named: &Named<M>) -> Result<Verdict, OpenError> {
    let candidates: Vec<Candidate> = named.members.iter().map(|opened| opened.candidate.clone()).collect();
    Ok(judge(&candidates)?)
}

pub(super) fn check_sizes<M>(members: &[Opened<M>], verdict: &Verdict) -> Result<(), OpenError> {
    for &index in verdict.slots.iter().flatten() {
        let Opened { candidate: Candidate { path, superblock }, size, sector_size: found, .. } = &members[index];
        let expected = superblock.areas.member_size;
        if *size < expected {
            return Err(OpenError::Truncated { path: path.clone(), size: *size, expected });
        }
        let sector_size = verdict.superblock.sector_size;
        if let Some(found) = too_large(*found, sector_size) {
            return Err(OpenError::SectorSize { path: path.clone(), found, sector_size });
        }
    }
    Ok(())
}

/// Whether what is there of an array may be used as `options` say.
///
/// # Errors
/// [`OpenError::Reshaping`], [`OpenError::Initialising`], [`OpenError::InitialisingDegraded`], [`OpenError::TooFew`],
/// [`OpenError::TooFewBetween`], [`OpenError::Degraded`] or [`OpenError::DirtyDegraded`].
pub fn check_presence(verdict: &Verdict, candidates: &[Candidate], options: OpenOptions) -> Result<(), OpenError> {
    let name = |slots: MemberSet| {
        slots.iter().map(|slot| (slot, verdict.superblock.slots[slot.index()].member)).collect::<Vec<_>>()
    };
    let set_aside = verdict.asides(candidates);
    if verdict.superblock.reshape.is_some() {
        let unserved = why_unserved([&verdict.superblock]);
        if unserved.is_some() || options.access != Access::ReadWrite {
            return Err(OpenError::Reshaping { unserved });
        }
    }
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
    if !verdict.is_readable() && verdict.superblock.reshape.is_some() {
        return Err(OpenError::TooFewBetween { missing: name(verdict.lost()), set_aside });
    }
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

/// Why an array of these members, all of which say that it is being reshaped, can't be used meanwhile; none if it can.
pub(super) fn why_unserved<'a>(members: impl IntoIterator<Item = &'a Superblock>) -> Option<Unserved> {
    members.into_iter().filter_map(why_member_unserved).min_by_key(|unserved| unserved.size)
}

fn why_member_unserved(own: &Superblock) -> Option<Unserved> {
    let shapes = own.shapes();
    // Who keeps a log without need has to have room for it, too.
    let keeps_log = own.consistency == Consistency::Log;
    let level = shapes.iter().find(|shape| shape.tolerance() > 0 || keeps_log)?.spec().level;
    let halves: Vec<Bytes> = shapes.iter().map(stripe_on_member).map(Areas::log_min).collect();
    let half = halves.iter().copied().max().unwrap_or_default();
    let whole = |half: Bytes| Bytes(2 * half.0.next_multiple_of(BLOCK.bytes().0));
    let size = own.areas.log.size;
    let can_be = keeps_log && own.ring().size >= half;
    let is_for_new = halves.first().is_some_and(|&first| whole(first) <= size);
    (!can_be).then_some(Unserved { level, member: own.slot, size, needed: whole(half), is_for_new })
}

/// The paths by place, where there is one.
fn names(paths: &[Option<PathBuf>], logs: &[Option<PathBuf>]) -> Vec<PathBuf> {
    places(paths.to_vec(), logs.to_vec()).into_iter().map(Option::unwrap_or_default).collect()
}
