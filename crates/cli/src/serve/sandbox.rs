//! `--sandbox`: what the kernel refuses to the server from some point on, whatever a bug makes it ask for.
//!
//! Landlock closes the file system but for some paths, before anything is opened and before there are other threads:
//! they inherit that. A seccomp filter refuses system calls that the server has no use for, in all threads, when
//! everything has been opened. The programs that the server runs are in the same sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf, absolute};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus,
};
use rustix::fs::{FileType, Mode, OFlags};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use uraid_serve::protocol;

/// The kinds of access that are closed, as far as the kernel knows them. None of a later ABI has been tried.
const CLOSED: ABI = ABI::V5;

/// Where programs, libraries, settings and the kernel's files are.
const SYSTEM: [&str; 9] = ["/etc", "/lib", "/lib64", "/usr", "/bin", "/sbin", "/proc", "/sys", "/run/systemd"];

/// Where devices are: members, among others.
const DEVICES: &str = "/dev";

/// How long a file system may take to say where its directories are. One that hangs must not delay the start.
const OPEN_TIME_MAX: Duration = Duration::from_secs(2);

/// Whether there is a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxName {
    /// There is none
    #[default]
    Off,
    /// As far as this kernel has it; the log says what it lacks
    Auto,
    /// Refuse to start where this kernel lacks any of it
    On,
}

/// The sandbox that is asked for, as far as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sandbox {
    has_landlock: bool,
    has_seccomp: bool,
}

/// Paths that stay open.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    /// Files and sockets that exist, or may come to be: their directories may be used in every way.
    pub(super) files: Vec<PathBuf>,
    /// May be used in every way.
    pub(super) directories: Vec<PathBuf>,
    /// Files whose directories may be read, and what is in these may be run.
    pub(super) read: Vec<PathBuf>,
}

/// A path that stays open, and for what.
struct Opened {
    file: OwnedFd,
    access: BitFlags<AccessFs>,
}

impl Sandbox {
    /// The sandbox of this name.
    ///
    /// # Errors
    /// If all of it is asked for, and the kernel lacks something.
    pub(super) fn new(name: SandboxName) -> Result<Self> {
        if name == SandboxName::Off {
            return Ok(Self { has_landlock: false, has_seccomp: false });
        }
        let sandbox = Self { has_landlock: has_landlock(), has_seccomp: has_seccomp() };
        let lacking = match sandbox {
            Self { has_landlock: true, has_seccomp: true } => return Ok(sandbox),
            Self { has_landlock: false, has_seccomp: true } => "Landlock, which closes the file system",
            Self { has_landlock: true, has_seccomp: false } => "seccomp, which refuses system calls",
            Self { has_landlock: false, has_seccomp: false } => "Landlock and seccomp",
        };
        if name == SandboxName::On {
            bail!("--sandbox on: this kernel has no {lacking}; --sandbox auto does with what there is");
        }
        tracing::warn!("the sandbox is not complete: this kernel has no {lacking}");
        Ok(sandbox)
    }

    /// Whether the file system is closed.
    pub(super) fn closes_paths(self) -> bool {
        self.has_landlock
    }

    /// What users are told of it.
    pub(super) fn told(self) -> protocol::Sandbox {
        protocol::Sandbox { paths: self.has_landlock, calls: self.has_seccomp }
    }

    /// Whether there is any.
    pub(super) fn is_any(self) -> bool {
        self.has_landlock || self.has_seccomp
    }

    /// Whether programs can't be run, unless the server `runs` some.
    pub(super) fn stops_programs(self, runs: bool) -> bool {
        self.has_seccomp && !runs
    }

    /// Closes the file system to this thread and those that it starts, but for these paths.
    ///
    /// # Errors
    /// If the kernel does not do it.
    pub(super) fn close_paths(self, paths: &Paths) -> Result<()> {
        if !self.has_landlock {
            return Ok(());
        }
        let rules = open(wanted(paths));
        let closed = || -> Result<RulesetStatus, RulesetError> {
            let rules =
                rules.into_iter().map(|Opened { file, access }| Ok::<_, RulesetError>(PathBeneath::new(file, access)));
            let closed = Ruleset::default().handle_access(AccessFs::from_all(CLOSED))?.create()?;
            Ok(closed.add_rules(rules)?.restrict_self()?.ruleset)
        };
        let status = closed().context("--sandbox: Landlock can't be used")?;
        ensure!(status != RulesetStatus::NotEnforced, "--sandbox: the kernel does not do what Landlock asks for");
        Ok(())
    }

    /// Refuses system calls from now on, in all threads; that to run programs, too, unless the server `runs` some.
    ///
    /// # Errors
    /// If the kernel does not do it.
    pub(super) fn close_calls(self, runs: bool) -> Result<()> {
        if !self.has_seccomp {
            return Ok(());
        }
        let filter = filter(runs).context("--sandbox: there is no filter for this machine")?;
        seccompiler::apply_filter_all_threads(&filter).context("--sandbox: seccomp can't be used")
    }
}

/// Whether the kernel has Landlock, and lets this process use it.
fn has_landlock() -> bool {
    let needed = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    needed.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}

/// Whether the kernel has seccomp filters.
fn has_seccomp() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Seccomp_filters:"))
}

/// What a path is wanted for.
enum Wanted {
    /// It itself.
    Path(PathBuf, BitFlags<AccessFs>),
    /// The directory of a file, and that of the file that a link leads to.
    Around(PathBuf, BitFlags<AccessFs>),
}

fn wanted(Paths { files, directories, read }: &Paths) -> Vec<Wanted> {
    let (all, reading) = (AccessFs::from_all(CLOSED), AccessFs::from_read(CLOSED));
    let path = |path: &PathBuf| absolute(path).unwrap_or_else(|_| path.clone());
    let system = SYSTEM.map(|path| Wanted::Path(path.into(), reading));
    let mut wanted = vec![Wanted::Path(DEVICES.into(), all)];
    wanted.extend(system);
    wanted.extend(directories.iter().map(|directory| Wanted::Path(path(directory), all)));
    wanted.extend(files.iter().map(|file| Wanted::Around(path(file), all)));
    wanted.extend(read.iter().map(|file| Wanted::Around(path(file), reading)));
    wanted
}

/// Opens what is there, each on a thread of its own: a file system that hangs delays nobody.
fn open(wanted: Vec<Wanted>) -> Vec<Opened> {
    let (sender, opened) = channel();
    for wanted in wanted {
        let sender = sender.clone();
        let look = move || {
            let opened: Vec<Opened> = match &wanted {
                Wanted::Path(path, access) => open_one(path, *access).into_iter().collect(),
                Wanted::Around(path, access) => {
                    around(path).iter().filter_map(|directory| open_one(directory, *access)).collect()
                }
            };
            if let Wanted::Around(path, _) = &wanted
                && opened.is_empty()
            {
                tracing::warn!(path = %path.display(), "it is not in the sandbox: its directory does not exist");
            }
            // Nobody waits any longer for what comes late.
            let _ = sender.send(opened);
        };
        if let Err(error) = thread::Builder::new().name("paths".into()).spawn(look) {
            tracing::warn!(%error, "a path is not in the sandbox: there can't be a thread to look it up");
        }
    }
    drop(sender);
    let deadline = Instant::now() + OPEN_TIME_MAX;
    let mut all = Vec::new();
    loop {
        match opened.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(some) => all.extend(some),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("a file system does not answer: what is there is not in the sandbox");
                return all;
            }
        }
    }
}

/// Opens a path, if it is there: a directory with all that is in it, or a file.
fn open_one(path: &Path, access: BitFlags<AccessFs>) -> Option<Opened> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(file.as_fd()).ok()?.st_mode);
    let access = if kind == FileType::Directory { access } else { access & AccessFs::from_file(CLOSED) };
    Some(Opened { file, access })
}

/// The directories around a file and around what it leads to. In place of the root directory, which has everything,
/// the file itself.
fn around(file: &Path) -> Vec<PathBuf> {
    let real = file.canonicalize().ok().filter(|real| real != file);
    let directory = |file: PathBuf| {
        // A disk that is not mounted yet may have its directory made for it.
        let there = file.ancestors().skip(1).find(|directory| directory.exists());
        match there.filter(|directory| directory.parent().is_some()) {
            Some(directory) => directory.to_owned(),
            None => file,
        }
    };
    [Some(file.to_owned()), real].into_iter().flatten().map(directory).collect()
}

/// The filter of system calls.
fn filter(runs_programs: bool) -> Result<BpfProgram, BackendError> {
    let programs = if runs_programs { &[][..] } else { &[libc::SYS_execve, libc::SYS_execveat] };
    let numbers = REFUSED.iter().chain(REFUSED_HERE).chain(programs);
    let rules: BTreeMap<_, _> =
        numbers.flat_map(|number| every_number(*number)).map(|number| (number, vec![])).collect();
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, refused, machine)?.try_into()
}

/// What only the administrator's tools do, or attacks.
const REFUSED: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    // The kernel.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_personality,
    // Keys.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    // The machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
];

/// The same, on this kind of machine alone.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// The numbers of a system call. x86 has a second one for each (x32), where the kernel is built so; the calls that have
/// others there are refused by these.
#[cfg(target_arch = "x86_64")]
fn every_number(number: i64) -> impl Iterator<Item = i64> {
    const X32: i64 = 0x4000_0000;
    let other = match number {
        libc::SYS_execve => Some(520),
        libc::SYS_ptrace => Some(521),
        libc::SYS_kexec_load => Some(528),
        libc::SYS_process_vm_readv => Some(539),
        libc::SYS_process_vm_writev => Some(540),
        libc::SYS_execveat => Some(545),
        _ => None,
    };
    [Some(number), Some(number | X32), other.map(|other| other | X32)].into_iter().flatten()
}
#[cfg(not(target_arch = "x86_64"))]
fn every_number(number: i64) -> impl Iterator<Item = i64> {
    [number].into_iter()
}

#[cfg(test)]
mod tests;
