//! A member on a network: an export of an NBD server.
//!
//! There is one connection. Whoever reads and writes with blocking calls uses it where it is; a
//! [disk](crate::disk::UringDisk) borrows it. One that failed is made anew by the next blocking call, never by a disk.
//!
//! Networks have no locks. What keeps two processes off the same export is a mark on it: see [`owner`].

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uraid_layout::Bytes;
use uraid_nbd::Command;
use uraid_nbd::client::{Address, Agreed, Connection, Error, Socket, Uri};
use uuid::Uuid;

use super::error::MemberError;
use super::lock::Access;
use super::owner::{self, LEASE, Vacancy, this_process};
use crate::disk::Claim;
use crate::format::owner::{Found, OWNER_AT, OWNER_BYTES, Owner, Testimony};
use crate::format::superblock::SECTOR_SIZES;

/// How long connecting and each blocking call may take.
const CALL_MAX: Duration = Duration::from_secs(20);

/// How long letting go of it may take, where its server hangs.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// A server that is asked every second and does not answer for so long is said not to. It is not much longer than its
/// mark is relied on.
const SILENT_AFTER: Duration = Duration::from_secs(LEASE.as_secs() + 3);

/// A connection with nothing under way.
pub(crate) type Idle = Connection<Socket>;

/// An export that is used as a member.
#[derive(Debug)]
pub(crate) struct Export {
    uri: Uri,
    agreed: Agreed,
    connection: Mutex<Option<Idle>>,
    /// The connection failed while a disk used it.
    is_cut_off: AtomicBool,
    /// For writing: what is known of its mark, unless a disk keeps it.
    claim: Mutex<Option<Claim>>,
    /// Another process has it now.
    is_robbed: AtomicBool,
    /// How far this process's mark had counted when it was opened.
    found_beat: u64,
    /// How far the mark had counted that a flush has made durable.
    flushed_beat: AtomicU64,
    /// What was where the mark is when it was opened, if it has room for one.
    found: Vec<u8>,
    /// What this process's mark is to say of the array's exports, and of what was there before.
    testimony: Mutex<Testimony>,
    before: Mutex<Option<Found>>,
    /// The array was stopped cleanly.
    is_stopped: AtomicBool,
    /// When the server last showed this process's mark, to a disk that looks for it.
    heard: Mutex<Option<Instant>>,
}

/// The URI that a path is, if it is meant as one.
///
/// # Errors
/// When it is no sound one.
pub(super) fn uri(path: &Path) -> Result<Option<Uri>, MemberError> {
    let bytes = path.as_os_str().as_bytes();
    if !Uri::is_meant(bytes) {
        return Ok(None);
    }
    Uri::parse(&String::from_utf8_lossy(bytes)).map(Some).map_err(|source| MemberError::Uri { source })
}

impl Export {
    /// Connects, and refuses what can't be a member.
    ///
    /// # Errors
    /// When the server can't be reached, or refuses, or the export can't be used.
    pub(super) fn open(path: &Path, uri: Uri, access: Access) -> Result<Self, MemberError> {
        let mut connection = connect(&uri, CALL_MAX).map_err(|error| not_opened(path, error))?;
        let agreed = *connection.agreed();
        let writes = access == Access::ReadWrite;
        let unfit = match () {
            () if writes && agreed.is_read_only() => Some("is read-only: have the server export it for writing"),
            () if writes && !agreed.can_flush() => {
                Some("can't be flushed, so nothing that is written to it is known to be durable: use another server")
            }
            () if Bytes(agreed.block_sizes().minimum_bytes.into()) > SECTOR_SIZES[SECTOR_SIZES.len() - 1] => {
                Some("takes only blocks of more than 4 KiB, and members are written in smaller ones")
            }
            () => None,
        };
        if let Some(what) = unfit {
            return Err(MemberError::UnfitExport { path: path.into(), what });
        }
        let has_room = agreed.size_bytes() >= OWNER_AT.0 + OWNER_BYTES as u64;
        let vacancy = if writes && has_room { Some(find_vacancy(path, &mut connection)?) } else { None };
        let found_beat = vacancy.as_ref().map_or(0, |vacancy| vacancy.beat);
        let found = match &vacancy {
            Some(vacancy) => vacancy.found.clone(),
            None if has_room => read_mark(path, &mut connection)?,
            None => Vec::new(),
        };
        let (connection, claim) = (Mutex::new(Some(connection)), Mutex::new(vacancy.map(Claim::new)));
        let [is_cut_off, is_robbed, is_stopped] = [(); 3].map(|()| AtomicBool::new(false));
        let (flushed_beat, testimony, before, heard) =
            (AtomicU64::new(0), Mutex::default(), Mutex::default(), Mutex::new(None));
        Ok(Self {
            uri,
            agreed,
            connection,
            is_cut_off,
            claim,
            is_robbed,
            found_beat,
            flushed_beat,
            found,
            testimony,
            before,
            is_stopped,
            heard,
        })
    }

    /// What the server says of it.
    pub(crate) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Bytes that can be used: whole blocks.
    pub(super) fn size(&self) -> Bytes {
        let block = u64::from(self.agreed.block_sizes().minimum_bytes);
        Bytes(self.agreed.size_bytes() / block * block)
    }

    pub(super) fn sector_size(&self) -> Bytes {
        Bytes(self.agreed.block_sizes().minimum_bytes.into()).max(SECTOR_SIZES[0])
    }

    /// The connection, if it is there: whoever takes it gives it back, unless it has failed.
    pub(crate) fn borrow(&self) -> Option<Idle> {
        let mut connection = self.held().take()?;
        connection.stream().set_deadline(None);
        Some(connection)
    }

    /// Takes the connection back.
    pub(crate) fn give_back(&self, connection: Idle) {
        *self.held() = Some(connection);
    }

    /// What is known of its mark; whoever borrows the connection takes it, and puts it back.
    pub(crate) fn take_claim(&self) -> Option<Claim> {
        self.claim.lock().expect("nobody panics with it").take()
    }

    /// Takes that back.
    pub(crate) fn put_claim(&self, claim: Claim) {
        if claim.is_robbed() {
            self.rob();
        }
        *self.claim.lock().expect("nobody panics with it") = Some(claim);
    }

    /// Notes that another process has the export: nothing is written to it any more.
    pub(crate) fn rob(&self) {
        self.is_robbed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_robbed(&self) -> bool {
        self.is_robbed.load(Ordering::Relaxed)
    }

    fn check_own(&self) -> io::Result<()> {
        if self.is_robbed() { Err(Errno::STALE.into()) } else { Ok(()) }
    }

    /// Lets go of the export: nobody has to wait for this process.
    fn let_go(&self) {
        let Some(claim) = self.take_claim().filter(Claim::has_marked) else { return };
        if self.check_own().is_err() || self.is_cut_off() {
            return;
        }
        let left = self.left(claim.beat());
        let connection = self.held().take();
        let Ok(mut connection) = connection.map_or_else(|| connect(&self.uri, FAREWELL_MAX), Ok) else { return };
        connection.stream().set_deadline(Some(Instant::now() + FAREWELL_MAX));
        match connection.write_at(OWNER_AT.0, &left) {
            Ok(()) => *self.held() = Some(connection),
            Err(error) => tracing::warn!(%error, "whoever uses an export next has to wait"),
        }
    }

    /// How far this process's mark had counted when the export was opened.
    pub(super) fn found_beat(&self) -> u64 {
        self.found_beat
    }

    /// What was where the mark is when it was opened; empty if it has no room for one.
    pub(super) fn found(&self) -> &[u8] {
        &self.found
    }

    /// Notes what its mark said when it was opened. This process's says that, too, as long as the member's superblock
    /// has the same epoch.
    pub(super) fn note_found(&self, found: &Found, testimony: &Testimony) {
        *self.before.lock().expect("nobody panics with it") = Some(found.clone());
        self.testify(testimony);
    }

    /// This process's mark, when it has counted so far.
    pub(crate) fn mark(&self, beat: u64) -> Owner {
        let testimony = self.testimony.lock().expect("nobody panics with it").clone();
        let before = self.before.lock().expect("nobody panics with it").clone();
        // What was put on record since says more.
        let found = before.filter(|found| testimony.epoch <= found.epoch);
        Owner { beat, testimony, found, ..this_process().clone() }
    }

    /// What is left on the export when this process lets go of it, whose mark has counted so far. Nothing need be known
    /// of an array that was stopped cleanly, or is being made.
    fn left(&self, beat: u64) -> [u8; OWNER_BYTES] {
        let mark = self.mark(beat);
        let is_known = mark.found.is_some() || mark.testimony != Testimony::default();
        if self.is_stopped.load(Ordering::Relaxed) || !is_known {
            return [0; OWNER_BYTES];
        }
        let epoch = mark.found.as_ref().map_or(mark.testimony.epoch, |found| found.epoch);
        let is_used = mark.found.as_ref().is_some_and(|found| found.is_used);
        let found = Some(Found { is_used, ..mark.as_found(epoch) });
        Owner { run: Uuid::nil(), found, ..mark }.encode()
    }

    /// Notes that the array was stopped cleanly.
    pub(super) fn stopped(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Has the mark say that from its next count on.
    pub(super) fn testify(&self, testimony: &Testimony) {
        self.testimony.lock().expect("nobody panics with it").clone_from(testimony);
    }

    /// Notes that the server has just shown this process's mark.
    pub(crate) fn note_heard(&self) {
        *self.heard.lock().expect("nobody panics with it") = Some(Instant::now());
    }

    /// Whether the server has shown the mark to such a disk since, if there is one.
    pub(super) fn was_heard_since(&self, time: Instant) -> bool {
        self.heard.lock().expect("nobody panics with it").is_none_or(|heard| heard > time)
    }

    /// Whether a disk that looks for the mark has not seen it for so long that something is wrong.
    pub(super) fn is_silent(&self) -> bool {
        let heard = *self.heard.lock().expect("nobody panics with it");
        heard.is_some_and(|heard| heard.elapsed() > SILENT_AFTER)
    }

    /// See [`Member::flushed_beat`](super::Member::flushed_beat).
    pub(crate) fn flushed_beat(&self) -> u64 {
        self.flushed_beat.load(Ordering::Relaxed)
    }

    /// Notes that the mark is durable that had counted so far.
    pub(crate) fn note_flushed_beat(&self, beat: u64) {
        self.flushed_beat.fetch_max(beat, Ordering::Relaxed);
    }

    /// Notes that the connection failed while it was borrowed.
    pub(crate) fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }

    pub(super) fn read_at(&self, offset: Bytes, data: &mut [u8]) -> io::Result<()> {
        self.call(|connection| connection.read_at(offset.0, data))
    }

    pub(super) fn write_at(&self, offset: Bytes, data: &[u8]) -> io::Result<()> {
        self.check_own()?;
        self.call(|connection| connection.write_at(offset.0, data))
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.call(|connection| connection.perform(&Command::Flush))
    }

    /// Makes one call, on a new connection if there is none. One on which it fails is not used again; so what was
    /// written before is not known to be durable then, and a flush on the next one says nothing of it.
    fn call(&self, work: impl FnOnce(&mut Idle) -> Result<(), Error>) -> io::Result<()> {
        let mut held = self.held();
        let mut connection = match held.take() {
            Some(connection) => connection,
            None => self.reconnect()?,
        };
        connection.stream().set_deadline(Some(Instant::now() + CALL_MAX));
        let done = work(&mut connection);
        if matches!(done, Ok(()) | Err(Error::Answered { .. })) {
            *held = Some(connection);
        }
        done.map_err(into_io)
    }

    fn reconnect(&self) -> io::Result<Idle> {
        let connection = connect(&self.uri, CALL_MAX).map_err(into_io)?;
        if *connection.agreed() == self.agreed {
            return Ok(connection);
        }
        Err(io::Error::other("its server offers another export than before by the same name"))
    }

    fn held(&self) -> MutexGuard<'_, Option<Idle>> {
        self.connection.lock().expect("nobody panics with it")
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.let_go();
        if let Some(mut connection) = self.held().take() {
            // A word of farewell, which fits into the socket or is not needed.
            connection.stream().set_deadline(Some(Instant::now() + Duration::from_millis(100)));
            if let Err(error) = connection.disconnect() {
                tracing::debug!(%error, "a server is not told that its client leaves");
            }
        }
    }
}

fn connect(uri: &Uri, time_max: Duration) -> Result<Idle, Error> {
    Connection::open(uri, Instant::now() + time_max)
}

/// Finds out whether nobody else writes to an export.
fn find_vacancy(path: &Path, connection: &mut Idle) -> Result<Vacancy, MemberError> {
    owner::find_vacancy(path, || read_mark(path, connection))
}

fn read_mark(path: &Path, connection: &mut Idle) -> Result<Vec<u8>, MemberError> {
    let mut mark = vec![0; OWNER_BYTES];
    connection.stream().set_deadline(Some(Instant::now() + CALL_MAX));
    let failed = |error| MemberError::Io { path: path.into(), action: "read who uses it", source: into_io(error) };
    connection.read_at(OWNER_AT.0, &mut mark).map_err(failed)?;
    Ok(mark)
}

/// Why a member can't be opened. What is the network's fault, or may pass, looks like a device's failure.
fn not_opened(path: &Path, error: Error) -> MemberError {
    let path = path.into();
    match error {
        Error::Socket { action, source } => MemberError::Io { path, action, source: with_errno(source) },
        Error::UnexpectedEnd => MemberError::Io { path, action: "agree with its server", source: into_io(error) },
        // A server that was killed looks like one that does not know the client.
        Error::TurnedAway { source } => {
            let action = "agree on TLS with its server, which ended the connection (it may want a certificate that it \
                knows)";
            MemberError::Io { path, action, source: ended(source) }
        }
        Error::Tls { source } if is_end(source.kind()) => {
            MemberError::Io { path, action: "agree on TLS with its server", source: ended(source) }
        }
        source => MemberError::Server { path, source },
    }
}

/// The system's error that stands for a client's.
fn into_io(error: Error) -> io::Error {
    match error {
        Error::Socket { source, .. } => with_errno(source),
        Error::UnexpectedEnd => io::Error::from_raw_os_error(libc::ECONNRESET),
        Error::Answered { code } => io::Error::from_raw_os_error(code.cast_signed()),
        error => io::Error::other(error),
    }
}

/// Whether a connection was ended by its other side.
fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | UnexpectedEof)
}

/// The same with the system's number, whoever noticed it.
fn ended(error: io::Error) -> io::Error {
    match error.kind() {
        _ if error.raw_os_error().is_some() => error,
        io::ErrorKind::TimedOut => with_errno(error),
        _ => io::Error::from_raw_os_error(libc::ECONNRESET),
    }
}

/// Time that has run out has an error number, too.
fn with_errno(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::TimedOut { io::Error::from_raw_os_error(libc::ETIMEDOUT) } else { error }
}

/// Whether a path is meant as the URI of an export.
#[must_use]
pub fn is_uri(path: &Path) -> bool {
    Uri::is_meant(path.as_os_str().as_bytes())
}

/// The host that an export is on, if a path is the URI of one that is not on this machine.
#[must_use]
pub fn host(path: &Path) -> Option<String> {
    match uri(path).ok()??.address {
        Address::Tcp(host, _) => Some(host),
        Address::Unix(_) => None,
    }
}

/// The directory whose certificates an export is reached with, if a path is the URI of one that is reached over TLS.
#[must_use]
pub fn certificates(path: &Path) -> Option<PathBuf> {
    Some(uri(path).ok()??.tls?.directory())
}

/// Whether a path stands for something that is there: a URI always does. May block.
#[must_use]
pub fn exists(path: &Path) -> bool {
    is_uri(path) || path.symlink_metadata().is_ok()
}

/// The path from the root of the file system on. A URI stays as it is, but for the paths in it.
///
/// # Errors
/// When the working directory is not known.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    if !is_uri(path) {
        return std::path::absolute(path);
    }
    // Whoever opens it says what is wrong with it.
    let Ok(mut uri) = Uri::parse(&path.to_string_lossy()) else { return Ok(path.into()) };
    let socket = match &mut uri.address {
        Address::Unix(socket) => Some(socket),
        Address::Tcp(..) => None,
    };
    let certificates = uri.tls.as_mut().and_then(|tls| tls.certificates.as_mut());
    let mut relative = socket.into_iter().chain(certificates).filter(|path| path.is_relative()).peekable();
    if relative.peek().is_none() {
        return Ok(path.into());
    }
    for path in relative {
        *path = std::path::absolute(&*path)?;
    }
    Ok(uri.to_string().into())
}
