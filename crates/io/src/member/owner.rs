//! Who may write to an export. Networks have no locks, so an export that a disk writes to has the mark of its process
//! ([`format::owner`](crate::format::owner)), which counts on.
//!
//! - Whoever opens an export for writing and finds a mark watches it for a while. If it counts on, the export is in
//!   use. If it does not, its owner is gone, or cut off: with [`Stealing`] the export is taken from it, and otherwise
//!   refused. A process of this machine that has ended is not waited for.
//! - A disk writes its own mark before anything else, waits, and looks whether it is still there. From then on it looks
//!   and counts on all the time. It writes nothing else to an export on which it has not found its own mark within the
//!   last [`LEASE`]; and nothing at all any more, to no member, when it has found another one.
//! - Whoever has taken an export from somebody waits for longer than that before it writes, and for what the former
//!   owner's system may still deliver.
//!
//! So two of them never write at a time, as long as: time passes alike on both; a server does at once what reaches it;
//! and what it has answered on one connection shows on the others.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use uraid_nbd::client::DELIVERY_MAX;
use uuid::Uuid;

use super::error::MemberError;
use crate::format::owner::{self, Owner, Testimony};

/// How often a mark counts on.
pub(crate) const BEAT_EVERY: Duration = Duration::from_secs(1);

/// How long an owner may write after it has found its own mark.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// How long a mark that does not count on is watched before its owner counts as gone.
const WATCHED: Duration = Duration::from_secs(8);

/// How long whoever has written its mark waits before it looks whether it is the only one: where nobody was before, and
/// where it was taken from somebody.
const CLAIM_TIME: Duration = Duration::from_millis(300);
const STEAL_TIME: Duration = Duration::from_secs(25);
/// What an owner has sent at the end of its lease is delivered by then, or never.
const _: () = assert!(WATCHED.as_secs() + STEAL_TIME.as_secs() > LEASE.as_secs() + DELIVERY_MAX.as_secs() + 2);

/// Where Linux has the name of the machine's start, and of the namespace of processes.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const NAMESPACE: &str = "/proc/self/ns/pid";

/// How many of them there are.
static STEALING: AtomicUsize = AtomicUsize::new(0);

/// As long as this exists, members that are opened are taken from owners that have fallen silent.
#[derive(Debug)]
pub struct Stealing(());

impl Stealing {
    /// From now on.
    #[must_use]
    pub fn begin() -> Self {
        STEALING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Stealing {
    fn drop(&mut self) {
        STEALING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What was found where this process is to have its mark.
#[derive(Clone, Debug)]
pub(crate) struct Vacancy {
    /// The bytes there.
    pub(crate) found: Vec<u8>,
    /// How far this process's mark had counted there already.
    pub(crate) beat: u64,
    /// How long to wait after the own mark is written.
    pub(crate) settling: Duration,
}

/// Finds out whether an export may be taken, of which `read` reads the mark; blocks for as long as it takes to know.
///
/// # Errors
/// When somebody has it, or had it and may still be there; when it can't be read.
pub(super) fn find_vacancy(
    path: &Path,
    mut read: impl FnMut() -> Result<Vec<u8>, MemberError>,
) -> Result<Vacancy, MemberError> {
    let found = read()?;
    let began = Instant::now();
    let mut now = found.clone();
    while !is_vacant(&now) {
        let owner = Owner::decode(&now).map_or_else(|| "another server".to_owned(), |owner| owner.to_string());
        if now != found {
            return Err(MemberError::Owned { path: path.into(), owner });
        }
        if began.elapsed() > WATCHED {
            if STEALING.load(Ordering::Relaxed) > 0 {
                tracing::warn!(path = %path.display(), owner, "it is taken from a server that has fallen silent");
                return Ok(Vacancy { found: now, beat: 0, settling: STEAL_TIME });
            }
            return Err(MemberError::OwnerSilent { path: path.into(), owner });
        }
        std::thread::sleep(BEAT_EVERY / 4);
        now = read()?;
    }
    Ok(Vacancy { beat: own_beat(&now), found: now, settling: CLAIM_TIME })
}

/// How far the mark of this process has counted, by what these bytes say; 0 if they say nothing of it.
fn own_beat(bytes: &[u8]) -> u64 {
    let own = this_process().run;
    let runs = Owner::decode(bytes).map_or_else(Vec::new, |owner| owner.runs(None));
    runs.into_iter().rev().find(|(run, _)| *run == own).map_or(0, |(_, beat)| beat)
}

/// Whether nobody is there any more by what these bytes say, or this process itself.
fn is_vacant(bytes: &[u8]) -> bool {
    let own = this_process();
    let is_gone = |owner: &Owner| owner.run.is_nil() || owner.run == own.run || has_ended(owner, own);
    !owner::is_one(bytes) || Owner::decode(bytes).as_ref().is_some_and(is_gone)
}

/// Whether it is known that another process has ended: it was one of this machine, since its start, and nobody has its
/// number, or nothing but that is left of it.
fn has_ended(owner: &Owner, own: &Owner) -> bool {
    let is_known = !own.boot.is_nil() && own.namespace != 0;
    let process = i32::try_from(owner.process).ok().and_then(Pid::from_raw);
    is_known
        && (owner.boot, owner.namespace) == (own.boot, own.namespace)
        && process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH) || is_zombie(process))
}

/// Whether all threads of a process have ended, and its parent has not asked for it.
fn is_zombie(process: Pid) -> bool {
    let directory = format!("/proc/{process}");
    let is_alone = std::fs::read_dir(format!("{directory}/task")).is_ok_and(|threads| threads.count() == 1);
    let state = std::fs::read_to_string(format!("{directory}/stat")).unwrap_or_default();
    is_alone && state.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
}

/// What this process writes on exports, with no beat yet.
pub(crate) fn this_process() -> &'static Owner {
    static OWN: OnceLock<Owner> = OnceLock::new();
    OWN.get_or_init(|| {
        let boot = std::fs::read_to_string(BOOT_ID).ok().and_then(|text| text.trim().parse().ok());
        let namespace = std::fs::metadata(NAMESPACE).map(|found| std::os::unix::fs::MetadataExt::ino(&found));
        Owner {
            run: Uuid::new_v4(),
            beat: 0,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: boot.unwrap_or_default(),
            process: std::process::id(),
            namespace: namespace.unwrap_or_default(),
            testimony: Testimony::default(),
            found: None,
        }
    })
}

/// How marks call this run of the program.
#[must_use]
pub fn this_run() -> Uuid {
    this_process().run
}

/// Has a process know who it is, before it gives up its view of the system.
pub fn know_oneself() {
    this_process();
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn other(beat: u64) -> Owner {
        Owner { run: Uuid::from_u128(1), beat, boot: Uuid::from_u128(2), ..this_process().clone() }
    }

    #[test]
    fn who_counts_on_has_it_and_who_lets_go_does_not() {
        let path = Path::new("nbd://host/");
        let beats = Cell::new(0);
        let counting = || {
            beats.set(beats.get() + 1);
            Ok(other(beats.get()).encode().to_vec())
        };
        let refused = find_vacancy(path, counting).unwrap_err();
        let owner = format!("in use by process {} of host ", std::process::id());
        assert!(refused.to_string().contains(&owner), "{refused}");
        let mut looks = 0;
        let leaving = || {
            looks += 1;
            Ok(if looks < 3 { other(7).encode().to_vec() } else { vec![0; owner::OWNER_BYTES] })
        };
        assert_eq!(find_vacancy(path, leaving).unwrap().settling, CLAIM_TIME);
    }

    #[test]
    fn nobody_waits_for_itself_or_for_who_has_ended() {
        let own = this_process();
        assert!(is_vacant(&own.encode()) && is_vacant(&[0; owner::OWNER_BYTES]));
        let again = Owner { beat: 7, ..own.clone() }.encode().to_vec();
        assert_eq!(find_vacancy(Path::new("nbd://host/"), || Ok(again.clone())).unwrap().beat, 7, "it counts on");
        // No process has this number: it is above the kernel's limit.
        let ended = Owner { run: Uuid::from_u128(1), beat: 7, process: (1 << 22) + 1, ..own.clone() };
        assert!(is_vacant(&ended.encode()));
        let beat = find_vacancy(Path::new("nbd://host/"), || Ok(ended.encode().to_vec())).unwrap().beat;
        assert_eq!(beat, 0, "another one's count says nothing");
        assert!(!is_vacant(&Owner { boot: Uuid::from_u128(3), ..ended.clone() }.encode()), "another machine's");
        assert!(!is_vacant(&Owner { namespace: 1, ..ended.clone() }.encode()), "another container's");
        assert!(!is_vacant(&Owner { process: 1, ..ended.clone() }.encode()), "one that lives");
        let mut torn = ended.encode();
        torn[100] ^= 1;
        assert!(!is_vacant(&torn), "who knows whose");
    }
}
