//! What a shell offers for an argument: sockets of running servers, and members of the one that is meant.
//!
//! A server that hangs delays the shell by no more than [`TIME_MAX`].

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use clap::builder::StyledStr;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter as _};
use uraid_serve::client::Client;
use uraid_serve::protocol::{LogDevice, MemberState, Request, Status};
use uraid_serve::running;

/// How long servers may take for a completion: a person is waiting.
const TIME_MAX: Duration = Duration::from_millis(500);

/// Sockets of running servers, and files.
pub(crate) fn sockets(current: &OsStr) -> Vec<CompletionCandidate> {
    let running = in_time(running::servers).unwrap_or_default();
    let running = running.into_iter().map(|socket| candidate(socket, "running server"));
    let mut candidates: Vec<_> = running.filter(|candidate| goes_on(candidate, current)).collect();
    let is_new = |file: &CompletionCandidate| candidates.iter().all(|known| known.get_value() != file.get_value());
    let files: Vec<_> = PathCompleter::any().complete(current).into_iter().filter(is_new).collect();
    candidates.extend(files);
    candidates
}

/// Slots and paths of the members, and paths of the log devices and spares, of the server that the command line names
/// or implies.
pub(crate) fn members(current: &OsStr) -> Vec<CompletionCandidate> {
    let socket = named_socket(env::args_os());
    let status = in_time(move || Client::find(socket.as_deref())?.ask::<Status>(&Request::Status {}));
    let Some(Ok(Status { members, log_devices, spares, .. })) = status else { return Vec::new() };
    let mut candidates = Vec::new();
    for member in members {
        let state = match member.state {
            MemberState::Active => "active",
            MemberState::Rebuilding => "rebuilding",
            MemberState::Missing => "missing",
        };
        let path = member.path.unwrap_or_else(|| member.uuid.to_string());
        candidates.push(candidate(member.slot.to_string(), &format!("{state}, {path}")));
        candidates.push(candidate(path, &format!("{state}, slot {}", member.slot)));
    }
    let log = |log: LogDevice| candidate(log.path.unwrap_or_else(|| log.uuid.to_string()), "log device");
    candidates.extend(log_devices.into_iter().map(log));
    candidates.extend(spares.into_iter().map(|spare| candidate(spare.path, "spare")));
    candidates.retain(|candidate| goes_on(candidate, current));
    candidates
}

fn candidate(value: impl Into<OsString>, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(StyledStr::from(help.to_owned())))
}

fn goes_on(candidate: &CompletionCandidate, current: &OsStr) -> bool {
    candidate.get_value().as_encoded_bytes().starts_with(current.as_encoded_bytes())
}

/// The result of `ask`, if it arrives in time. A thread that still waits ends with the process.
fn in_time<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = channel();
    thread::Builder::new().spawn(move || drop(sender.send(ask()))).ok()?;
    receiver.recv_timeout(TIME_MAX).ok()
}

/// The socket that a command line names with `--socket` or `-s`.
fn named_socket(words: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let mut words = words.skip_while(|word| word != "--").skip(1);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "--socket" || text == "-s" {
            return words.next().map(PathBuf::from);
        }
        if let Some(path) = text.strip_prefix("--socket=") {
            return Some(Path::new(path).to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_on_the_line_is_the_one_that_is_asked() {
        let named = |line: &str| named_socket(line.split(' ').map(OsString::from));
        assert_eq!(named("uraid -- uraid fail"), None);
        assert_eq!(named("uraid -s before -- uraid fail -s a.sock 1"), Some("a.sock".into()));
        assert_eq!(named("uraid -- uraid fail --socket=b.sock"), Some("b.sock".into()));
        assert_eq!(named("uraid -- uraid fail --socket"), None);
    }

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let (sender, never) = channel::<()>();
        assert_eq!(in_time(move || never.recv()), None);
        drop(sender);
        assert_eq!(in_time(|| 7), Some(7));
    }
}
