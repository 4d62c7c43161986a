//! The administrator's program, which is run for each event.
//!
//! It never delays clients: a separate thread runs it, one event at a time. If too many events are waiting, further
//! ones are only logged.

use std::env;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::Access;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::task::spawn_blocking;

use crate::text::quoted;

/// Maximum number of events that wait for the program.
const WAITING_MAX: usize = 64;

/// How long the program may take for one event before it is killed, together with its process group.
pub(crate) const HOOK_TIME_MAX: Duration = Duration::from_secs(30);

/// The administrator's program.
pub(crate) struct Hook {
    queue: SyncSender<Run>,
    thread: JoinHandle<()>,
    end: Arc<End>,
}

/// How long the program may still run once the server ends.
struct End {
    deadline: OnceLock<Instant>,
    /// Becomes readable when the program must end at once, regardless of the deadline.
    hurry: OwnedFd,
}

/// One run of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) event: &'static str,
    pub(super) array: String,
    pub(super) members: Vec<String>,
    /// The array's health, in words.
    pub(super) health: String,
    /// A variable for its environment, and the value.
    pub(super) detail: Option<(&'static str, &'static str)>,
}

impl Hook {
    /// Runs `program` for each event, without a shell, as `PROGRAM EVENT ARRAY [MEMBER]...`, with the array's health in
    /// `URAID_HEALTH`, and what else an event tells in a variable of its own.
    pub(crate) fn new(program: &Path, time_max: Duration) -> Result<Self> {
        let (queue, calls) = sync_channel(WAITING_MAX);
        let hurry = eventfd(0, EventfdFlags::CLOEXEC).context("can't make an eventfd")?;
        let end = Arc::new(End { deadline: OnceLock::new(), hurry });
        let (program, ends) = (program.to_owned(), Arc::clone(&end));
        let span = tracing::Span::current();
        let run = move || span.in_scope(|| run_calls(&program, &calls, time_max, &ends));
        let thread = std::thread::Builder::new().name("on-event".into()).spawn(run).context("can't start a thread")?;
        Ok(Self { queue, thread, end })
    }

    /// Queues an event for the program.
    pub(super) fn call(&self, call: Run) {
        if let Err(TrySendError::Full(call)) = self.queue.try_send(call) {
            let Run { event, array, .. } = call;
            tracing::warn!(event, array, "--on-event: {WAITING_MAX} events are waiting, so this one is dropped");
        }
    }

    /// Waits until the program has been run for all events, its time is over, or `hurried` completes.
    pub(super) async fn end(self, hurried: impl Future<Output = ()>) {
        let Self { queue, thread, end } = self;
        end.deadline.get_or_init(|| Instant::now() + HOOK_TIME_MAX);
        drop(queue);
        let mut joined = spawn_blocking(move || thread.join());
        let joined = tokio::select! {
            joined = &mut joined => joined,
            () = hurried => {
                tracing::warn!("--on-event: the program is not waited for any longer");
                end.hurry();
                joined.await
            }
        };
        assert!(joined.is_ok_and(|joined| joined.is_ok()), "a panic ends the process");
    }
}

impl End {
    /// Makes the program end now.
    fn hurry(&self) {
        // The counter starts at zero, so there is room for one.
        let _ = rustix::io::write(&self.hurry, &1_u64.to_ne_bytes());
    }

    /// The deadline of a call that begins now.
    fn until(&self, time_max: Duration) -> Instant {
        let until = Instant::now() + time_max;
        self.deadline.get().map_or(until, |&deadline| until.min(deadline))
    }

    /// Whether no call may begin anymore.
    fn is_over(&self) -> bool {
        let is_hurried = poll(&mut [PollFd::new(&self.hurry, PollFlags::IN)], Some(&Timespec::default())) == Ok(1);
        is_hurried || self.deadline.get().is_some_and(|&deadline| deadline <= Instant::now())
    }
}

/// Refuses a program that can't be run, before anything is served. A name without a slash is looked up in `PATH`.
///
/// # Errors
/// The error says what to do.
pub fn check_program(program: &Path) -> Result<()> {
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

fn run_calls(program: &PathBuf, calls: &Receiver<Run>, time_max: Duration, end: &End) {
    for Run { event, array, members, health, detail } in calls {
        let until = end.until(time_max);
        let mut command = Command::new(program);
        command
            .arg(event)
            .arg(&array)
            .args(&members)
            .env("URAID_HEALTH", health)
            .envs(detail)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        // These variables are for the server alone.
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        if end.is_over() {
            tracing::warn!(event, array, "--on-event: the server ends, and the program is not told of this event");
            continue;
        }
        match command.spawn().and_then(|child| wait(child, until, &end.hurry)) {
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

/// Waits for the program to end. Kills it if it has not ended by `until`, or when `hurry` is readable.
fn wait(mut child: Child, until: Instant, hurry: &OwnedFd) -> std::io::Result<ExitStatus> {
    let pid = Pid::from_child(&child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        let mut awaited = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(hurry, PollFlags::IN)];
        let count = poll(&mut awaited, Some(&timeout));
        let has_ended = !awaited[0].revents().is_empty();
        match count {
            Ok(_) if !has_ended => {
                tracing::warn!("--on-event: the program takes too long and is killed");
                // The process may be gone by now, but it has not been reaped, so nobody else has its number.
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

    /// A program that hangs at one event, and writes down its arguments at every other.
    fn program(directory: &Path) -> PathBuf {
        let path = directory.join("hook");
        let script =
            "#!/bin/sh\n[ \"$1\" = frozen ] && exec sleep 1000\necho \"$#:$1:$2:$3\" >>\"$(dirname \"$0\")/calls\"\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn end(hook: Hook) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(hook.end(std::future::pending()));
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_the_next_event_told() {
        let directory = tempfile::tempdir().unwrap();
        let hook = Hook::new(&program(directory.path()), Duration::from_millis(300)).unwrap();
        let array = || "an array; with 'signs'".to_owned();
        hook.call(Run { event: "frozen", array: array(), members: vec![], health: String::new(), detail: None });
        hook.call(Run {
            event: "member-failed",
            array: array(),
            members: vec!["/dev/x y".into()],
            health: String::new(),
            detail: None,
        });
        end(hook);
        let calls = std::fs::read_to_string(directory.path().join("calls")).unwrap();
        assert_eq!(calls, "3:member-failed:an array; with 'signs':/dev/x y\n");
    }

    #[test]
    fn what_finds_no_room_is_dropped_without_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let hook = Hook::new(&program(directory.path()), Duration::from_secs(1)).unwrap();
        hook.call(Run { event: "frozen", array: String::new(), members: vec![], health: String::new(), detail: None });
        for _ in 0..10 * WAITING_MAX {
            hook.call(Run {
                event: "degraded",
                array: String::new(),
                members: vec![],
                health: String::new(),
                detail: None,
            });
        }
        end(hook);
        let calls = std::fs::read_to_string(directory.path().join("calls")).unwrap();
        // The first event may have been taken already, or wait with the others.
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
