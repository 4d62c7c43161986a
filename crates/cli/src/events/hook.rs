//! The administrator's program, which is told of events.
//!
//! It never delays clients: a thread of its own runs it, once at a time; what comes while too much waits is logged
//! only.

use std::env;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Access;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::terminal::quoted;

/// Events that wait for the program.
const WAITING_MAX: usize = 64;

/// How long the program may take for one event; then it is killed, with what it has started.
pub(crate) const HOOK_TIME_MAX: Duration = Duration::from_secs(30);

/// The administrator's program.
pub(crate) struct Hook {
    queue: SyncSender<Call>,
    thread: JoinHandle<()>,
    /// When the program may run no longer, once the server ends.
    deadline: Arc<OnceLock<Instant>>,
}

/// One run of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) event: &'static str,
    pub(super) array: String,
    pub(super) members: Vec<String>,
    /// How the array is, in words.
    pub(super) health: String,
}

impl Hook {
    /// Runs `program` for each event, without a shell, as `PROGRAM EVENT ARRAY [MEMBER]...`, with the array's health in
    /// `URAID_HEALTH`.
    pub(crate) fn new(program: &Path, time_max: Duration) -> Result<Self> {
        let (queue, calls) = sync_channel(WAITING_MAX);
        let deadline = Arc::new(OnceLock::new());
        let (program, end) = (program.to_owned(), Arc::clone(&deadline));
        let run = move || run_calls(&program, &calls, time_max, &end);
        let thread = std::thread::Builder::new().name("on-event".into()).spawn(run).context("can't start a thread")?;
        Ok(Self { queue, thread, deadline })
    }

    /// Has the program told of an event, in its turn.
    pub(super) fn call(&self, call: Call) {
        if let Err(TrySendError::Full(call)) = self.queue.try_send(call) {
            let Call { event, array, .. } = call;
            tracing::warn!(event, array, "--on-event: {WAITING_MAX} events are waiting, so this one is dropped");
        }
    }

    /// Waits until the program has been told everything, or its time is over.
    pub(super) fn end(self) {
        let Self { queue, thread, deadline } = self;
        deadline.get_or_init(|| Instant::now() + HOOK_TIME_MAX);
        drop(queue);
        assert!(thread.join().is_ok(), "a panic ends the process");
    }
}

/// Refuses a program that can't be run, before anything is served. A name without a slash is looked for in `PATH`.
///
/// # Errors
/// That says what to do.
pub(crate) fn check_program(program: &Path) -> Result<()> {
    let name = program.display();
    if !program.as_os_str().as_bytes().contains(&b'/') {
        let path = env::var_os("PATH").unwrap_or_default();
        let is_found = env::split_paths(&path).any(|directory| is_executable_file(&directory.join(program)));
        ensure!(
            is_found,
            "--on-event {name}: PATH leads to no such program: write its whole path, or ./{name} for one in this \
             directory"
        );
        return Ok(());
    }
    match program.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("--on-event {name}: there is no such program: correct the name, and write its whole path")
        }
        Err(error) => Err(error).context(format!("--on-event {name}: can't look at the program")),
        Ok(metadata) if metadata.is_dir() => bail!("--on-event {name}: is a directory: name a program in it"),
        Ok(metadata) if !metadata.is_file() => bail!("--on-event {name}: is no program: name one"),
        Ok(_) => {
            let advice = quoted(&name.to_string());
            ensure!(is_executable_file(program), "--on-event {name}: is not executable: run chmod +x {advice}");
            Ok(())
        }
    }
}

fn is_executable_file(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

fn run_calls(program: &PathBuf, calls: &Receiver<Call>, time_max: Duration, deadline: &OnceLock<Instant>) {
    for Call { event, array, members, health } in calls {
        let until = Instant::now() + time_max;
        let until = deadline.get().map_or(until, |&deadline| until.min(deadline));
        let mut command = Command::new(program);
        command
            .arg(event)
            .arg(&array)
            .args(&members)
            .env("URAID_HEALTH", health)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        // What these say is for the server alone.
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        if deadline.get().is_some_and(|&deadline| deadline <= Instant::now()) {
            tracing::warn!(event, array, "--on-event: the server ends, and the program is not told of this event");
            continue;
        }
        match command.spawn().and_then(|child| wait(child, until)) {
            Ok(status) if status.success() => {}
            Ok(status) => {
                let program = program.display();
                tracing::warn!(event, array, %program, %status, "--on-event: the program failed");
            }
            Err(error) => {
                let program = program.display();
                tracing::warn!(event, array, %program, %error, "--on-event: the program could not be run");
            }
        }
    }
}

/// Waits for the end of the program, which is killed if it has not ended by `until`.
fn wait(mut child: Child, until: Instant) -> std::io::Result<ExitStatus> {
    let pid = Pid::from_child(&child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                tracing::warn!("--on-event: the program takes too long and is killed");
                // It may be gone by now, and was not reaped: its number is nobody else's.
                let _ = kill_process_group(pid, Signal::KILL);
                return child.wait();
            }
            Ok(_) => return child.wait(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A program that hangs at one event, and writes what it is called with at every other.
    fn program(directory: &Path) -> PathBuf {
        let path = directory.join("hook");
        let script =
            "#!/bin/sh\n[ \"$1\" = frozen ] && exec sleep 1000\necho \"$#:$1:$2:$3\" >>\"$(dirname \"$0\")/calls\"\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_the_next_event_told() {
        let directory = tempfile::tempdir().unwrap();
        let hook = Hook::new(&program(directory.path()), Duration::from_millis(300)).unwrap();
        let array = || "an array; with 'signs'".to_owned();
        hook.call(Call { event: "frozen", array: array(), members: vec![], health: String::new() });
        hook.call(Call {
            event: "member-failed",
            array: array(),
            members: vec!["/dev/x y".into()],
            health: String::new(),
        });
        hook.end();
        let calls = std::fs::read_to_string(directory.path().join("calls")).unwrap();
        assert_eq!(calls, "3:member-failed:an array; with 'signs':/dev/x y\n");
    }

    #[test]
    fn what_finds_no_room_is_dropped_without_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let hook = Hook::new(&program(directory.path()), Duration::from_secs(1)).unwrap();
        hook.call(Call { event: "frozen", array: String::new(), members: vec![], health: String::new() });
        for _ in 0..10 * WAITING_MAX {
            hook.call(Call { event: "degraded", array: String::new(), members: vec![], health: String::new() });
        }
        hook.end();
        let calls = std::fs::read_to_string(directory.path().join("calls")).unwrap();
        // The first may have been taken already, or wait with the others.
        assert!((WAITING_MAX - 1..10 * WAITING_MAX).contains(&calls.lines().count()), "{calls}");
    }

    #[test]
    fn a_program_that_can_not_be_run_is_refused_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let refusal = |program: &Path| check_program(program).unwrap_err().to_string();
        assert!(refusal(Path::new("/no/such/program")).contains("write its whole path"));
        assert!(refusal(Path::new("no-such-program-anywhere")).contains("PATH"));
        assert!(refusal(directory.path()).contains("is a directory"));
        let path = program(directory.path());
        check_program(&path).unwrap();
        check_program(Path::new("sh")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refusal(&path).contains(&format!("chmod +x {}", path.display())));
    }
}
