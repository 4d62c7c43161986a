//! A reshape of members that are files and devices: from paths to an array at rest or one that is under way.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, Spec};
use uuid::Uuid;

use super::content::{self, Lent};
use super::copied::Copied;
use super::error::ReshapeError;
use super::exchange::Exchange;
use super::members::Members;
use super::plan::{ReshapePlan, Target, plan_reshape};
use super::rehearse::{Rehearsed, first_and_last, rehearse_moves};
use super::{Reshaping, begin_reshape, saved};
use crate::array::assemble::Assembled;
use crate::array::error::OpenError;
use crate::array::gather::{Named, Opened, gather};
use crate::array::judge::{Candidate, SetAside, Verdict, judge};
use crate::array::open::{Array, OpenOptions, check_sizes};
use crate::array::wait::{Patience, Watched};
use crate::disk::{DEFAULT_DEPTH, Disk, UringDisk};
use crate::error::Error;
use crate::format::superblock::{Reshape, Superblock};
use crate::member::{Access, Member};

/// What is at some paths.
#[derive(Debug)]
pub enum Found {
    /// An array that has one shape.
    AtRest(Box<Prepared>),
    /// One that is being reshaped.
    UnderWay(Box<UnderWay>),
}

/// An array that has one shape, and new members for it.
#[derive(Debug)]
pub struct Prepared {
    /// The array.
    pub array: Array,
    exchange: Exchange,
}

/// An array that is being reshaped, as its superblocks have it; nothing of it was written.
#[derive(Debug)]
pub struct UnderWay {
    members: Vec<Opened<Member>>,
    candidates: Vec<Candidate>,
    verdict: Verdict,
}

/// Opens the array that the files and devices at `paths` make up, in any order, and holds them.
///
/// # Errors
/// See [`ReshapeError::Open`]; [`ReshapeError::Stranger`].
pub fn open_for_reshape(paths: &[PathBuf], access: Access, allow_degraded: bool) -> Result<Found, ReshapeError> {
    // Where a reshape was cut off as it began, a new member may have nothing of the array yet.
    let named = gather(paths, access, true, &mut Patience::endless())?;
    let candidates: Vec<Candidate> = named.members.iter().map(|opened| opened.candidate.clone()).collect();
    let verdict = judge(&candidates).map_err(OpenError::from)?;
    if verdict.superblock.reshape.is_some() {
        check_sizes(&named.members, &verdict)?;
        return Ok(Found::UnderWay(Box::new(UnderWay { members: named.members, candidates, verdict })));
    }
    let stranger = named.unreadable.iter().find(|(_, reason)| *reason == SetAside::Blank);
    if let Some((path, _)) = stranger.filter(|_| !allow_degraded) {
        return Err(ReshapeError::Stranger { path: path.clone() });
    }
    let Named { members, logs, unreadable } = named;
    let options = OpenOptions { access, allow_degraded: true, force: false };
    let named = Named { members, logs, unreadable };
    let array = Array::of(named, options, MemberSet::EMPTY, &mut Patience::endless(), |members| {
        UringDisk::new(members.into_iter().map(|member| member.map(Arc::new)).collect(), DEFAULT_DEPTH)
    })?;
    Ok(Found::AtRest(Box::new(Prepared { array, exchange: Exchange::default() })))
}

/// What nobody has of a window that an array's members have saved, which are not all there; `truth` is the newest of
/// their superblocks. None is saved: nothing.
#[must_use]
pub fn lost_of_saved(truth: &Superblock, members: &[(&Member, &Superblock)]) -> Vec<Range<Lba>> {
    saved::lost_of_saved(truth, |slot, at, len| {
        let (member, own) = members.iter().find(|(_, own)| own.slot == slot)?;
        member.peek(Bytes(own.saves().offset.0 + at.0), Bytes(len as u64)).ok()
    })
}

impl Prepared {
    /// Says who joins and who leaves: see [`Exchange::open`].
    ///
    /// # Errors
    /// See there.
    pub fn with(
        mut self,
        add: &[PathBuf],
        remove: &[PathBuf],
        access: Access,
        is_forced: bool,
    ) -> Result<Self, ReshapeError> {
        let Assembled { disk, record, .. } = &self.array.assembled;
        let known = (record.any(), record.missing().is_empty());
        self.exchange = Exchange::open(add, remove, disk.members(), known, access, is_forced)?;
        Ok(self)
    }

    /// How many members the array has then.
    #[must_use]
    pub fn member_count(&self) -> usize {
        self.exchange.count(self.array.geometry.members())
    }

    /// See [`plan_reshape`].
    ///
    /// # Errors
    /// See there.
    pub fn plan(&self, target: &Target) -> Result<ReshapePlan, ReshapeError> {
        plan_reshape(&self.array.assembled, target, &self.exchange.joining())
    }

    /// Reads the array's content from its beginning, for who measures how long that takes; how much it was, at most so
    /// much.
    ///
    /// # Errors
    /// [`ReshapeError::Unreadable`].
    pub fn sample(&mut self, most: Bytes) -> Result<Bytes, ReshapeError> {
        let Assembled { disk, record, geometry, bad_blocks, .. } = &mut self.array.assembled;
        let own = record.superblocks().map(|own| own.cloned()).collect();
        let mut members = Members::new(Lent(disk), own, bad_blocks.clone(), Vec::new(), Vec::new());
        let end = Lba(most.whole_sectors().min(geometry.capacity()).0);
        let read = content::read(&mut members, geometry, &(Lba(0)..end))?;
        Ok(Bytes(read.bytes.len() as u64))
    }

    /// Moves the first window and the last one on copies, which are in memory. Nothing is written. The array is closed
    /// then.
    ///
    /// # Errors
    /// [`ReshapeError::Rehearsal`]; what would end the reshape.
    pub fn rehearse(self, plan: ReshapePlan) -> Result<Rehearsed, ReshapeError> {
        let Self { array, exchange } = self;
        let new = exchange.joining();
        let marks = first_and_last(&plan);
        let reshaping = begin_reshape(array.assembled, plan, Uuid::new_v4(), |disk| {
            let old = disk.members().to_vec();
            let size = |member: &Option<Arc<Member>>| member.as_ref().map_or(Bytes(0), |member| member.size());
            let sizes = old.iter().map(size).chain(new.iter().map(|new| new.size)).collect();
            let blank = old.len();
            let read = move |member: MemberIndex, offset, len| match &old[member.index()] {
                Some(member) => member.peek(offset, len).map_err(|_| Errno::IO),
                None => Err(Errno::NODEV),
            };
            Ok(Copied::new(read, sizes, blank))
        })?;
        rehearse_moves(reshaping, &marks)
    }

    /// See [`begin_reshape`]. A member that does not answer is waited for, which the log says.
    ///
    /// # Errors
    /// See there.
    pub fn begin(self, plan: ReshapePlan) -> Result<Reshaping<impl Disk + use<>>, ReshapeError> {
        let Self { array, exchange } = self;
        begin_reshape(array.assembled, plan, Uuid::new_v4(), |disk| {
            let old = disk.members().to_vec();
            drop(disk);
            watched(old.into_iter().chain(exchange.into_members().map(Some)).collect())
        })
    }
}

impl UnderWay {
    /// The shape that the array had.
    #[must_use]
    pub fn from(&self) -> Spec {
        self.verdict.superblock.spec
    }

    /// How far it has come.
    ///
    /// # Panics
    /// Never: the array is being reshaped.
    #[must_use]
    pub fn state(&self) -> Reshape {
        self.verdict.superblock.reshape.expect("the array is being reshaped")
    }

    /// Whether what is at a path says that it is one of its members.
    #[must_use]
    pub fn has(&self, path: &Path) -> bool {
        self.candidates.iter().any(|candidate| candidate.path == path)
    }

    /// See [`Reshaping::found`]. A member that does not answer is waited for, which the log says.
    ///
    /// # Errors
    /// See there.
    pub fn open(self, is_back: bool, allow_degraded: bool) -> Result<Reshaping<impl Disk + use<>>, ReshapeError> {
        let Self { members, candidates, verdict } = self;
        let mut members: Vec<Option<Arc<Member>>> =
            members.into_iter().map(|opened| Some(Arc::new(opened.member))).collect();
        let present = verdict.slots.iter().map(|index| index.and_then(|index| members[index].take())).collect();
        let disk = watched(present)?;
        Reshaping::found(disk, &verdict, &candidates, is_back, allow_degraded)
    }
}

/// A disk of these members, by slot, that says in the log for which of them it waits.
fn watched(members: Vec<Option<Arc<Member>>>) -> Result<impl Disk, Error> {
    let path =
        |member: &Option<Arc<Member>>| member.as_ref().map(|member| member.path().to_owned()).unwrap_or_default();
    let paths = members.iter().map(path).collect();
    Ok(Watched::new(UringDisk::new(members, DEFAULT_DEPTH)?, paths, Patience::endless()))
}
