//! From paths to the members that they lead to, whatever hangs: see [`wait`](super::wait).

use std::path::{Path, PathBuf};
use std::time::Duration;

use uraid_layout::Bytes;

use super::error::OpenError;
use super::judge::{Candidate, SetAside};
use super::logs::OpenedLog;
use super::older::Mark;
use super::select::{Ignored, Look};
use super::wait::Patience;
use crate::Error;
use crate::format::log_device::{LogHeader, LogHeaderError};
use crate::format::superblock::{Superblock, SuperblockError};
use crate::member::{self, Access, FileId, Member, MemberError};
use crate::{log_device, superblock};

/// What was named and is open.
#[derive(Debug)]
pub struct Named<M> {
    /// Members, and what is known of them.
    pub members: Vec<Opened<M>>,
    /// Log devices.
    pub logs: Vec<OpenedLog<M>>,
    /// Paths whose devices fail before they say who they are.
    pub unreadable: Vec<(PathBuf, SetAside)>,
}

/// A member that is open, by whatever means.
#[derive(Debug)]
pub struct Opened<M> {
    /// What it is reached by.
    pub member: M,
    /// Where it is, and what it says.
    pub candidate: Candidate,
    /// Its size now.
    pub size: Bytes,
    /// The least that it reads and writes at once.
    pub sector_size: Bytes,
    /// What was found where the mark of an owner is.
    pub mark: Mark,
}

/// Opens members and reads what they say. Those that can't be read are set aside.
///
/// # Errors
/// When one can't be opened for another reason, has no valid superblock, or is named twice; when none can be read.
pub fn candidates(paths: &[impl AsRef<Path>], access: Access) -> Result<Named<Member>, OpenError> {
    gather(paths, access, false, &mut Patience::endless())
}

/// Looks what paths lead to, without holding anything.
///
/// # Errors
/// When there is no thread to be had.
pub fn look(paths: &[PathBuf], patience: &mut Patience) -> Result<Vec<Look>, MemberError> {
    let steps = paths.iter().cloned().map(|path| (path.clone(), move || examine(&path)));
    let found = patience.each("say what it is", Duration::ZERO, steps)?;
    let look = |(path, found): (&PathBuf, Result<Result<_, Ignored>, _>)| Look {
        path: path.clone(),
        found: found.unwrap_or_else(|silent: MemberError| Err(silent.into())),
    };
    Ok(paths.iter().zip(found).map(look).collect())
}

fn examine(path: &Path) -> Result<(FileId, Superblock), Ignored> {
    let member = Member::open(path, Access::Inspect)?;
    match load(&member)? {
        Read::Superblock(superblock) => Ok((member.id(), *superblock)),
        Read::LogHeader(header) => Err(Ignored::LogDevice { path: path.into(), id: member.id(), header }),
    }
}

/// What a file or device says of itself.
enum Read {
    Superblock(Box<Superblock>),
    LogHeader(LogHeader),
}

/// Reads a superblock, or the header of a log device.
fn load(member: &Member) -> Result<Read, Error> {
    let missing = match superblock::load(member) {
        Err(missing @ Error::Superblock { source: SuperblockError::NoMagic, .. }) => missing,
        superblock => return Ok(Read::Superblock(Box::new(superblock?))),
    };
    match log_device::load(member) {
        Err(Error::LogHeader { source: LogHeaderError::NoMagic, .. }) => Err(missing),
        header => Ok(Read::LogHeader(header?)),
    }
}

/// Opens members and reads what they say. Those that hang or can't be read are set aside, and so is what has no
/// superblock where it `may_lack` one.
///
/// # Errors
/// When one can't be opened for another reason, has no valid superblock, or is named twice; when none is left.
pub(super) fn gather(
    paths: &[impl AsRef<Path>],
    access: Access,
    may_lack: bool,
    patience: &mut Patience,
) -> Result<Named<Member>, OpenError> {
    let mut sieve = Sieve { patience, may_lack, set_aside: Vec::new(), first: None };
    let paths = paths.iter().map(|path| (path.as_ref().to_path_buf(), ())).collect();
    let ids = sieve.pass(paths, "answer", Duration::ZERO, |path, ()| Ok(FileId::of(path)?))?;
    // Who is named twice would be locked by itself.
    for (index, (second, id)) in ids.iter().enumerate() {
        if let Some((first, _)) = ids[..index].iter().find(|(_, other)| other == id) {
            return Err(MemberError::SameFile { first: first.clone(), second: second.clone() }.into());
        }
    }
    // Whoever is used by somebody else does not hang, and nobody may go on without it.
    let open = move |path: &Path, _| Ok(Member::open(path, access)?);
    let members = sieve.pass(ids, "open", member::LOCK_WAIT_MAX, open)?;
    let read = move |path: &Path, member: Member| {
        let (size, sector_size) = (member.size(), member.alignment().offset);
        let path = path.to_path_buf();
        let superblock = match load(&member)? {
            Read::Superblock(superblock) => *superblock,
            Read::LogHeader(header) => {
                let runs = log_device::runs(&member);
                return Ok(Either::Log(Box::new(OpenedLog { device: member, path, header, runs, size, sector_size })));
            }
        };
        let expected = superblock.areas.member_size;
        if may_lack && size < expected {
            return Err(OpenError::Truncated { path, size, expected });
        }
        let mark = Mark::of(&member, superblock.epoch);
        let candidate = Candidate { path, superblock };
        Ok(Either::Member(Box::new(Opened { member, candidate, size, sector_size, mark })))
    };
    let read = sieve.pass(members, "give its superblock", Duration::ZERO, read)?;
    match sieve.first.filter(|_| read.iter().all(|(_, read)| matches!(read, Either::Log(_)))) {
        Some(first) => Err(first),
        None => {
            let mut named = Named { members: Vec::new(), logs: Vec::new(), unreadable: sieve.set_aside };
            for (_, read) in read {
                match read {
                    Either::Member(member) => named.members.push(*member),
                    Either::Log(log) => named.logs.push(*log),
                }
            }
            Ok(named)
        }
    }
}

/// What a path leads to.
enum Either {
    Member(Box<Opened<Member>>),
    Log(Box<OpenedLog<Member>>),
}

/// Lets those through who can go on.
struct Sieve<'a> {
    patience: &'a mut Patience,
    may_lack: bool,
    set_aside: Vec<(PathBuf, SetAside)>,
    /// Why the first of them is.
    first: Option<OpenError>,
}

impl Sieve<'_> {
    fn pass<T: Send + 'static, U: Send + 'static>(
        &mut self,
        items: Vec<(PathBuf, T)>,
        action: &'static str,
        own_wait: Duration,
        step: impl Fn(&Path, T) -> Result<U, OpenError> + Copy + Send + 'static,
    ) -> Result<Vec<(PathBuf, U)>, OpenError> {
        let paths: Vec<PathBuf> = items.iter().map(|(path, _)| path.clone()).collect();
        let steps = items.into_iter().map(|(path, item)| (path.clone(), move || step(&path, item)));
        let found = self.patience.each(action, own_wait, steps)?;
        let mut left = Vec::with_capacity(found.len());
        for (path, found) in paths.into_iter().zip(found) {
            match found.unwrap_or_else(|silent| Err(silent.into())) {
                Ok(item) => left.push((path, item)),
                Err(error) => {
                    let Some(reason) = self.reason(&error) else { return Err(error) };
                    self.set_aside.push((path, reason));
                    self.first.get_or_insert(error);
                }
            }
        }
        Ok(left)
    }

    /// Why a path can be set aside on which a step failed like this; none: somebody has to mend it.
    fn reason(&self, error: &OpenError) -> Option<SetAside> {
        match error {
            OpenError::Member(error) | OpenError::Io(Error::Member(error)) => match error {
                MemberError::Silent { action, .. } => Some(SetAside::Silent { action }),
                error => {
                    let protection = || error.protection().filter(|_| self.may_lack);
                    error.failure().or_else(protection).map(|(action, errno)| SetAside::Unreadable { action, errno })
                }
            },
            OpenError::Truncated { size, expected, .. } => {
                Some(SetAside::Truncated { size: *size, expected: *expected })
            }
            OpenError::Io(Error::Superblock { source, .. }) if self.may_lack => match source {
                SuperblockError::NoMagic => Some(SetAside::Blank),
                SuperblockError::BadChecksum { .. } => Some(SetAside::Damaged),
                _ => None,
            },
            _ => None,
        }
    }
}
