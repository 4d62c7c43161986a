//! One member: a regular file, a block device, or an export of an NBD server, opened, locked and measured.
//!
//! A [`Member`] that is a file or a device holds an advisory lock for as long as it lives: exclusive to write, shared
//! to read, so that two processes of ours never write the same array, also where one has a file and the other a loop
//! device that is made of it. It bypasses the page cache where the file system allows that. An export has no lock. It
//! knows nothing of what the member contains.

mod create;
mod error;
mod export;
mod inheritance;
mod lock;
mod loops;
mod owner;
mod sysfs;

use std::fs::{File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Seek};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{
    AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags, fallocate, fstatfs, ioctl_blksszget, seek, statx,
};
use rustix::io::Errno;
use uraid_layout::Bytes;
use uraid_nbd::client::Uri;

use crate::buf::Buf;
use crate::format::owner::{Found, OWNER_AT, Owner, Testimony};
use crate::format::superblock::{Allocation, SECTOR_SIZES};
use crate::signature::{self, Signature};

pub use error::MemberError;
pub(crate) use export::{Export, Idle};
pub use export::{absolute, certificates, exists, host, is_uri};
pub use inheritance::Inheritance;
pub(crate) use lock::WAIT_MAX as LOCK_WAIT_MAX;
pub use lock::{Access, Wait};
pub(crate) use owner::{BEAT_EVERY, LEASE, Vacancy, this_process};
pub use owner::{Stealing, know_oneself, this_run};

/// How much is tried out.
const PROBE_BYTES: u64 = 4096;

/// What stat(2) counts a file's space in.
const STAT_BLOCK: u64 = 512;

/// How statfs(2) names a tmpfs.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The same of file systems that ask another process or machine: FUSE, NFS, SMB (old and new), Ceph, 9P.
const STALLING_MAGICS: [rustix::fs::FsWord; 6] =
    [0x6573_5546, 0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x00C3_6400, 0x0102_1997];

/// What every operation's offset, length and memory are multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// For offsets on the member and for lengths.
    pub offset: Bytes,
    /// For addresses in memory.
    pub memory: Bytes,
}

/// Which file or device a path leads to, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// An open member.
#[derive(Debug)]
pub struct Member {
    medium: Medium,
    path: PathBuf,
    id: FileId,
    access: Access,
    size: AtomicU64,
    alignment: Alignment,
    is_direct: bool,
    is_device: bool,
    is_in_memory: bool,
    may_stall: bool,
    /// What it said of the array's exports when it was opened, which holds for its superblock.
    testimony: OnceLock<Testimony>,
}

/// What has a member's bytes.
#[derive(Debug)]
enum Medium {
    /// A regular file or a block device.
    File {
        file: File,
        /// The file that a loop device is made of, locked.
        beneath: Option<File>,
        /// Loop devices that are made of the file, which the kernel may not use as long as these are open.
        _above: Vec<File>,
        /// Another process has file and what is beneath, too, and their locks go on.
        is_left: AtomicBool,
    },
    Export(Box<Export>),
}

impl Member {
    /// A member on something that is no file: a pipe hangs.
    #[cfg(test)]
    pub(crate) fn of(file: File, size: Bytes) -> Self {
        let alignment = alignment(&file, false);
        let (path, access) = (PathBuf::from("pipe"), Access::ReadWrite);
        let id = FileId { device: 0, inode: 0 };
        Self {
            medium: Medium::File { file, beneath: None, _above: Vec::new(), is_left: AtomicBool::new(false) },
            path,
            id,
            access,
            size: AtomicU64::new(size.0),
            alignment,
            is_direct: false,
            is_device: false,
            is_in_memory: false,
            may_stall: false,
            testimony: OnceLock::new(),
        }
    }

    /// A member whose device takes whole sectors of this size only.
    #[cfg(test)]
    pub(crate) fn demanding(self, sector_size: Bytes) -> Self {
        let mut member = self;
        member.alignment.offset = sector_size;
        member
    }

    /// Whether its file was deleted: what it holds is gone when it is closed. May block.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.metadata().is_some_and(|metadata| metadata.nlink() == 0)
    }

    /// The process that uses the member at a path, where the kernel says so.
    #[must_use]
    pub fn user(path: &Path) -> Option<u32> {
        // Opening a pipe would wait.
        let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path).ok()?;
        lock::holder(&file)
    }

    /// Whether its file is shorter than it was when it was opened. May block.
    pub(crate) fn is_cut(&self) -> bool {
        self.metadata().is_some_and(|metadata| metadata.is_file() && metadata.len() < self.size().0)
    }

    /// What the system says of its file, where it has one and the system does.
    fn metadata(&self) -> Option<Metadata> {
        self.file().and_then(|file| file.metadata().ok())
    }

    /// Its file or device, unless it is an export.
    pub(crate) fn file(&self) -> Option<&File> {
        match &self.medium {
            Medium::File { file, .. } => Some(file),
            Medium::Export(_) => None,
        }
    }

    /// Its export, unless it is a file or a device.
    pub(crate) fn export(&self) -> Option<&Export> {
        match &self.medium {
            Medium::File { .. } => None,
            Medium::Export(export) => Some(export),
        }
    }

    /// Whether it is a file that has nothing in it.
    pub(crate) fn is_empty_file(&self) -> bool {
        self.file().is_some() && self.size() == Bytes(0)
    }

    /// Whether it is an export of an NBD server.
    #[must_use]
    pub fn is_export(&self) -> bool {
        self.export().is_some()
    }

    /// Whether it is an export of which the connection broke while the member was used: it does not come back, but the
    /// export may, as another [`Member`].
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.export().is_some_and(Export::is_cut_off)
    }

    /// Whether it is an export that another process has taken: nothing is done on it any more.
    #[must_use]
    pub fn is_robbed(&self) -> bool {
        self.export().is_some_and(Export::is_robbed)
    }

    /// Whether it is an export that is used, and of which the server, who is asked every second, has not answered for
    /// some seconds.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.export().is_some_and(|export| export.is_silent() && !export.is_cut_off() && !export.is_robbed())
    }

    /// Whether its server has answered since, if it is an export that is used for writing: it is asked every second.
    #[must_use]
    pub fn was_heard_since(&self, time: Instant) -> bool {
        self.export().is_none_or(|export| export.was_heard_since(time))
    }

    /// What was where the mark of an owner is when it was opened, if it is an export.
    pub(crate) fn found_mark(&self) -> Option<&[u8]> {
        self.export().map(Export::found)
    }

    /// Notes what its mark said when it was opened: of who had it, and of the array's exports.
    pub(crate) fn note_found(&self, found: &Found, testimony: &Testimony) {
        if let Some(export) = self.export() {
            export.note_found(found, testimony);
        }
        // It is found once.
        let _ = self.testimony.set(testimony.clone());
    }

    /// What it said of the array's exports when it was opened.
    #[must_use]
    pub fn found_testimony(&self) -> Option<&Testimony> {
        self.testimony.get()
    }

    /// Notes that the array was stopped cleanly: nobody need know who had it.
    pub fn note_stopped(&self) {
        if let Some(export) = self.export() {
            export.stopped();
        }
    }

    /// Has an export say what is known to be durable on the array's exports, with the next count of its mark.
    ///
    /// # Panics
    /// When it is no export.
    pub fn testify(&self, testimony: &Testimony) {
        self.export().expect("only an export counts on").testify(testimony);
    }

    /// Has a member that is open for writing say that now. May block.
    ///
    /// # Errors
    /// When it fails.
    pub fn testify_now(&self, testimony: &Testimony) -> Result<(), MemberError> {
        let owner = Owner { testimony: testimony.clone(), ..this_process().clone() };
        self.write_at(OWNER_AT, &Buf::of(&owner.encode()))
    }

    /// How far the count of this process's mark on an export is known to be durable, since it was opened; 0 of a file
    /// or a device. Where its server shows a lower one later, it has an older copy, which lacks more than the writes
    /// that were not flushed.
    #[must_use]
    pub fn flushed_beat(&self) -> u64 {
        self.export().map_or(0, Export::flushed_beat)
    }

    /// How far this process's mark on an export had counted when it was opened; 0 where there was none.
    pub(crate) fn found_beat(&self) -> u64 {
        self.export().map_or(0, Export::found_beat)
    }

    /// Whether asking its file system for anything, also for a file's size, may take as long as some other process or
    /// machine likes.
    #[must_use]
    pub(crate) fn may_stall(&self) -> bool {
        self.may_stall
    }

    /// Whether what stops one stops the other: they are files of one file system, or exports of one server.
    #[must_use]
    pub(crate) fn shares_fate(&self, other: &Self) -> bool {
        !self.is_device && !other.is_device && self.id.device == other.id.device
    }

    /// Creates a file of `size` zero bytes with mode 0600, makes it and its name durable, and opens it for writing. A
    /// file that can't be made whole is removed.
    ///
    /// # Errors
    /// When the path exists, the file system has no room, or a system call fails.
    pub fn create(path: &Path, size: Bytes, allocation: Allocation) -> Result<Self, MemberError> {
        create::new_file(path, size, allocation, || Self::open(path, Access::ReadWrite))
    }

    /// Gives an empty file `size` zero bytes, and makes it and its name durable. Where that fails it is empty again.
    ///
    /// # Errors
    /// When the file system has no room, or a system call fails.
    ///
    /// # Panics
    /// If it is an export.
    pub(crate) fn fill(&self, size: Bytes, allocation: Allocation) -> Result<(), MemberError> {
        let file = self.file().expect("only a file is empty");
        create::fill(file, &self.path, size, allocation).inspect_err(|_| self.empty())?;
        self.size.store(size.0, Ordering::Relaxed);
        Ok(())
    }

    /// Takes everything out of a file.
    pub(crate) fn empty(&self) {
        if let Some(Err(error)) = self.file().map(|file| file.set_len(0)) {
            tracing::warn!(path = %self.path.display(), %error, "a member file that was empty is left as it is now");
        }
    }

    /// Opens and locks one member. Waits for two seconds for whoever uses it, who may only be looking, and for ten
    /// where nobody does who is alive.
    ///
    /// # Errors
    /// When the path leads to no regular file or block device, or it can't be opened, or it is in use.
    pub fn open(path: &Path, access: Access) -> Result<Self, MemberError> {
        Self::open_waiting(path, access, Wait::Briefly)
    }

    /// As [`Member::open`], and waits for others as it is told.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn open_waiting(path: &Path, access: Access, wait: Wait) -> Result<Self, MemberError> {
        if let Some(uri) = export::uri(path)? {
            return Self::open_export(path, uri, access);
        }
        let id = FileId::of(path)?;
        let (file, is_direct) = match inheritance::take(path, access) {
            Some(inherited) => inherited,
            None => lock::patiently(|| open_direct(path, access), wait, std::thread::sleep)?,
        };
        // The file stays open meanwhile: closing a device that was open for writing has udev look at it once more.
        lock::patiently(|| lock::take(&file, path, access), wait, std::thread::sleep)?;
        let fail = |action| move |source| MemberError::Io { path: path.into(), action, source };
        let metadata = file.metadata().map_err(fail("examine it"))?;
        let is_device = metadata.file_type().is_block_device();
        if access == Access::ReadWrite && is_device && is_read_only(metadata.rdev()) {
            return Err(fail("write to it, as the device is set read-only")(Errno::ACCESS.into()));
        }
        let beneath = if is_device { loops::lock_beneath(path, metadata.rdev(), access, wait)? } else { None };
        let above = if access == Access::ReadWrite { loops::claim_above(path, wait)? } else { Vec::new() };
        let size = size_of(&file, is_device).map_err(fail("find its size"))?;
        if is_device && size == Bytes(0) {
            return Err(fail("find anything on it")(Errno::NOMEDIUM.into()));
        }
        // A device has its name in /dev, which is in memory, and nothing else there.
        let file_system = fstatfs(&file).ok().filter(|_| !is_device).map(|told| told.f_type);
        let is_in_memory = file_system == Some(TMPFS_MAGIC);
        let may_stall = file_system.is_some_and(|magic| STALLING_MAGICS.contains(&magic));
        let member = Self {
            alignment: alignment(&file, is_direct),
            medium: Medium::File { file, beneath, _above: above, is_left: AtomicBool::new(false) },
            path: path.into(),
            id,
            access,
            size: AtomicU64::new(size.0),
            is_direct,
            is_device,
            is_in_memory,
            may_stall,
            testimony: OnceLock::new(),
        };
        Ok(member)
    }

    fn open_export(path: &Path, uri: Uri, access: Access) -> Result<Self, MemberError> {
        let id = FileId::of_export(&uri);
        let export = Export::open(path, uri, access)?;
        Ok(Self {
            size: AtomicU64::new(export.size().0),
            alignment: Alignment { offset: export.sector_size(), memory: Bytes(1) },
            medium: Medium::Export(Box::new(export)),
            path: path.into(),
            id,
            access,
            is_direct: true,
            is_device: false,
            is_in_memory: false,
            may_stall: false,
            testimony: OnceLock::new(),
        })
    }

    /// Opens and locks members, each of them once.
    ///
    /// # Errors
    /// As [`Member::open`], and when two paths lead to the same file.
    pub(crate) fn open_all(paths: &[impl AsRef<Path>], access: Access) -> Result<Vec<Self>, MemberError> {
        let mut members: Vec<Self> = Vec::with_capacity(paths.len());
        for path in paths {
            let path = path.as_ref();
            let id = FileId::of(path)?;
            if let Some(first) = members.iter().find(|member| member.id == id) {
                return Err(MemberError::SameFile { first: first.path.clone(), second: path.into() });
            }
            members.push(Self::open(path, access)?);
        }
        Ok(members)
    }

    /// Its file for another process, where an [`Inheritance`] has it, and the one that it is made of if it is a loop
    /// device: locks are held as long as either process has the files. None of an export, which the other process
    /// connects to itself. The kernel is kept off loop devices above a file by this process alone: between the two, it
    /// can be told to use one, and then the other process refuses the member.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn leave(&self) -> io::Result<Vec<OwnedFd>> {
        let Medium::File { file, beneath, is_left, .. } = &self.medium else { return Ok(Vec::new()) };
        let files = [file].into_iter().chain(beneath);
        let files = files.map(|file| Ok(file.try_clone()?.into())).collect::<io::Result<_>>()?;
        is_left.store(true, Ordering::Relaxed);
        Ok(files)
    }

    /// The path that the member was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which file or device it is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// What it was opened for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its size when it was opened, or measured last.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.size.load(Ordering::Relaxed))
    }

    /// Finds out whether it was enlarged; its size from now on. One that has become smaller keeps the size that it
    /// had, and so does an export, of which that is told when it is opened. May block.
    ///
    /// # Errors
    /// When the system does not say its size.
    pub fn measure(&self) -> Result<Bytes, MemberError> {
        let fail = |source| MemberError::Io { path: self.path.clone(), action: "find its size", source };
        if let Some(file) = self.file() {
            let now = size_of(file, self.is_device).map_err(fail)?;
            self.size.fetch_max(now.0, Ordering::Relaxed);
        }
        Ok(self.size())
    }

    /// What operations on it must be aligned to; one byte when it goes through the page cache.
    #[must_use]
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Whether it bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether it is a file on a tmpfs, which has no device to wait for.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// The holes of its file, ascending, and whether it has any: space that it lacks. It may have unwritten space that
    /// reads as zeros, too. At most so many holes, the first ones; none of a device or an export. May block.
    ///
    /// # Errors
    /// When the file system does not say.
    pub fn holes(&self, most: usize) -> Result<(Vec<Range<Bytes>>, bool), MemberError> {
        let mut holes = Vec::new();
        let Some(file) = self.file().filter(|_| !self.is_device) else { return Ok((holes, false)) };
        let metadata = file.metadata().map_err(self.fail("examine it"))?;
        let size = self.size().0;
        let next = |from: SeekFrom| match seek(file, from) {
            Ok(at) => Ok(at.min(size)),
            // There is no more data.
            Err(Errno::NXIO) => Ok(size),
            Err(errno) => Err(self.fail("find its holes")(errno.into())),
        };
        let mut at = 0;
        while at < size && holes.len() < most {
            let start = next(SeekFrom::Hole(at))?;
            at = if start < size { next(SeekFrom::Data(start))? } else { size };
            if start < at {
                holes.push(Bytes(start)..Bytes(at));
            }
        }
        Ok((holes, metadata.blocks() < size.div_ceil(STAT_BLOCK)))
    }

    /// Whether it can give space back, as far as its file system or device says. Changes nothing. May block.
    #[must_use]
    pub fn can_punch(&self) -> bool {
        if self.access != Access::ReadWrite {
            return false;
        }
        let file = match &self.medium {
            Medium::Export(export) => return export.agreed().can_zero(),
            Medium::File { file, .. } => file,
        };
        if self.is_device {
            return largest_zeroing(file).is_some_and(|largest| largest > 0);
        }
        // Nothing is there.
        let beyond = self.size().0.next_multiple_of(PROBE_BYTES);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, beyond, PROBE_BYTES).is_ok()
    }

    /// Fills `buf` from `offset` on, blocking; offset and length are aligned.
    ///
    /// # Errors
    /// When the device fails or the member ends first.
    pub fn read_at(&self, offset: Bytes, buf: &mut Buf) -> Result<(), MemberError> {
        let read = match &self.medium {
            Medium::File { file, .. } => file.read_exact_at(buf.as_mut(), offset.0),
            Medium::Export(export) => export.read_at(offset, buf.as_mut()),
        };
        read.map_err(self.fail("read it"))
    }

    /// Writes `buf` at `offset`, blocking; offset and length are aligned. Not durable before [`Member::sync`].
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When the member is open for reading only.
    pub fn write_at(&self, offset: Bytes, buf: &Buf) -> Result<(), MemberError> {
        assert_eq!(self.access, Access::ReadWrite, "only a member open for writing is written");
        let written = match &self.medium {
            Medium::File { file, .. } => file.write_all_at(buf.as_ref(), offset.0),
            Medium::Export(export) => export.write_at(offset, buf.as_ref()),
        };
        written.map_err(self.fail("write it"))
    }

    /// Makes completed writes durable, blocking.
    ///
    /// # Errors
    /// When the device fails; then nothing tells which writes are durable, and trying again proves nothing.
    pub fn sync(&self) -> Result<(), MemberError> {
        let synced = match &self.medium {
            Medium::File { file, .. } => file.sync_data(),
            Medium::Export(export) => export.sync(),
        };
        synced.map_err(self.fail("flush it"))
    }

    /// Refuses what holds something, for all that can be told, so that it is not overwritten.
    ///
    /// # Errors
    /// [`MemberError::InUse`]; when the device fails.
    pub(crate) fn check_unused(&self) -> Result<(), MemberError> {
        match signature::find(self.size(), |offset, len| self.peek(offset, len))? {
            Some(Signature { name: what, offset }) => Err(MemberError::InUse { path: self.path.clone(), what, offset }),
            None => Ok(()),
        }
    }

    /// Reads any range, aligned or not, blocking; shorter where the member ends.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn peek(&self, offset: Bytes, len: Bytes) -> Result<Vec<u8>, MemberError> {
        const STEP: u64 = 4096;
        let end = offset.0.saturating_add(len.0).min(self.size().0);
        let start = offset.0 / STEP * STEP;
        if offset.0 >= end {
            return Ok(Vec::new());
        }
        let mut buf = Buf::zeroed(Bytes((end - start).next_multiple_of(STEP)));
        let bytes = buf.as_mut();
        let range = |at: u64| usize::try_from(at - start).expect("inside a buffer");
        let file = match &self.medium {
            Medium::File { file, .. } => file,
            Medium::Export(export) => {
                let whole = range(end.next_multiple_of(STEP).min(self.size().0));
                export.read_at(Bytes(start), &mut bytes[..whole]).map_err(self.fail("read it"))?;
                return Ok(bytes[range(offset.0)..range(end)].to_vec());
            }
        };
        let mut done = 0;
        while start + (done as u64) < end {
            match file.read_at(&mut bytes[done..], start + done as u64) {
                Ok(0) => return Err(self.fail("read it")(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail("read it")(error)),
            }
        }
        Ok(bytes[range(offset.0)..range(end)].to_vec())
    }

    fn fail(&self, action: &'static str) -> impl Fn(io::Error) -> MemberError {
        move |source| MemberError::Io { path: self.path.clone(), action, source }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A child process that is just being started has a copy of the descriptor, which would keep the lock for a
        // moment.
        if let Medium::File { file, beneath, is_left, .. } = &self.medium
            && !is_left.load(Ordering::Relaxed)
        {
            [file].into_iter().chain(beneath).for_each(lock::release);
        }
    }
}

impl FileId {
    /// What a path leads to. A loop device is the file that it is made of, if it has all of it. An export is known by
    /// its URI, which is not asked whether it leads anywhere.
    ///
    /// # Errors
    /// When it leads to nothing, or to no regular file or block device.
    pub fn of(path: &Path) -> Result<Self, MemberError> {
        if let Some(uri) = export::uri(path)? {
            return Ok(Self::of_export(&uri));
        }
        let metadata = std::fs::metadata(path);
        let fail = |source| MemberError::Io { path: path.into(), action: "open it", source };
        let metadata = metadata.map_err(fail)?;
        let kind = metadata.file_type();
        if kind.is_block_device() {
            let made_of = loops::beneath(metadata.rdev()).filter(|beneath| beneath.is_whole);
            let file = made_of.and_then(|beneath| Self::of(&beneath.path).ok());
            return Ok(file.unwrap_or(Self { device: metadata.rdev(), inode: 0 }));
        }
        if kind.is_file() {
            return Ok(Self { device: metadata.dev(), inode: metadata.ino() });
        }
        let kind = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_char_device() => "a character device",
            () if kind.is_fifo() => "a pipe",
            () if kind.is_socket() => "a socket",
            () => "something else",
        };
        Err(MemberError::WrongKind { path: path.into(), kind })
    }

    /// Which export a URI leads to, by its name; others may lead there, too.
    fn of_export(uri: &Uri) -> Self {
        let hash = |value: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            value(&mut hasher);
            hasher.finish()
        };
        // No device of this machine has such a number.
        let server = hash(&|hasher| uri.address.hash(hasher)) | 1 << 63;
        Self { device: server, inode: hash(&|hasher| uri.export.hash(hasher)) }
    }
}

/// Opens past the page cache, or through it where the file system refuses that.
fn open_direct(path: &Path, access: Access) -> Result<(File, bool), MemberError> {
    let fail = |source: io::Error| match source.raw_os_error() {
        Some(errno) if errno == Errno::BUSY.raw_os_error() => busy(path),
        _ => MemberError::Io { path: path.into(), action: "open it", source },
    };
    let open = |flags: OFlags| {
        let flags = i32::try_from(flags.bits()).expect("open flags fit an int");
        OpenOptions::new().read(true).write(access == Access::ReadWrite).custom_flags(flags).open(path)
    };
    let is_device = std::fs::metadata(path).map_err(fail)?.file_type().is_block_device();
    // On a block device, O_EXCL without O_CREAT asks that neither the kernel nor another such opener uses it.
    let exclusive = if is_device && access == Access::ReadWrite { OFlags::EXCL } else { OFlags::empty() };
    let through_cache = || Ok((open(exclusive).map_err(fail)?, false));
    match open(exclusive | OFlags::DIRECT) {
        Ok(file) => {
            let needed = alignment(&file, true);
            let usable = |bytes: Bytes| (1..=4096).contains(&bytes.0);
            if usable(needed.offset) && usable(needed.memory) { Ok((file, true)) } else { through_cache() }
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => through_cache(),
        Err(error) => Err(fail(error)),
    }
}

/// Why a device refuses an exclusive open: another process of ours, which then has the lock of the device or of the
/// file that it is made of, or the kernel.
fn busy(path: &Path) -> MemberError {
    let locked = |file: File| {
        lock::take(&file, path, Access::ReadWrite)?;
        let device = file.metadata().map(|metadata| metadata.rdev());
        device.map_or(Ok(None), |device| loops::lock_beneath(path, device, Access::ReadWrite, Wait::Never))
    };
    match File::open(path).map(locked) {
        Ok(Err(locked @ MemberError::Locked { .. })) => locked,
        Ok(_) | Err(_) => MemberError::Busy { path: path.into() },
    }
}

/// The alignment that direct I/O needs, from the kernel where it tells (Linux 6.1 and newer), otherwise from trying.
fn alignment(file: &File, is_direct: bool) -> Alignment {
    if !is_direct {
        return Alignment { offset: Bytes(1), memory: Bytes(1) };
    }
    match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(told) if told.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => Alignment {
            offset: Bytes(u64::from(told.stx_dio_offset_align)),
            memory: Bytes(u64::from(told.stx_dio_mem_align)),
        },
        Ok(_) | Err(_) => Alignment { offset: sector_size(file), memory: Bytes(4096) },
    }
}

/// Whether two paths, of files that need not exist, lead to the same place.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let within = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        within.canonicalize().ok().zip(path.file_name().map(ToOwned::to_owned))
    };
    one == other || place(one).is_some_and(|one| Some(one) == place(other))
}

/// The size of a device or a file.
fn size_of(mut file: &File, is_device: bool) -> io::Result<Bytes> {
    let size = if is_device { file.seek(io::SeekFrom::End(0)) } else { file.metadata().map(|metadata| metadata.len()) };
    size.map(Bytes)
}

/// The size of a device's sectors, or of a file's that are read directly.
fn sector_size(file: &File) -> Bytes {
    ioctl_blksszget(file).map_or_else(|_| smallest_direct(file), |size| Bytes(u64::from(size)))
}

/// Whether a device rotates, or the one that a file is on; not where nobody says.
#[must_use]
pub fn is_rotational(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    queue_setting(device, "rotational") == Some(1)
}

/// The most that a device makes zeros in one operation, which is none of its own where that is 0.
fn largest_zeroing(file: &File) -> Option<u64> {
    queue_setting(file.metadata().ok()?.rdev(), "write_zeroes_max_bytes")
}

/// What the system says of a device's queue.
fn queue_setting(device: u64, name: &str) -> Option<u64> {
    // A partition has its disk's queue.
    ["queue", "../queue"].iter().find_map(|queue| sysfs::told(device, &format!("{queue}/{name}"))?.parse().ok())
}

/// Whether a device takes no writes, though it can be opened for them.
fn is_read_only(device: u64) -> bool {
    sysfs::told(device, "ro").as_deref() == Some("1")
}

/// The smallest sectors that can be read directly.
fn smallest_direct(file: &File) -> Bytes {
    let refuses = |&size: &Bytes| {
        let read = file.read_at(Buf::zeroed(size).as_mut(), size.0);
        read.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
    };
    let usable = SECTOR_SIZES.into_iter().find(|size| !refuses(size));
    usable.unwrap_or(SECTOR_SIZES[SECTOR_SIZES.len() - 1])
}

#[cfg(test)]
mod tests;
