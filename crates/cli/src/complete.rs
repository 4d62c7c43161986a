//! Shell completion: the shell's script calls this program, which prints the possible continuations of the command
//! line.
//!
//! Only candidates are printed. A server that hangs delays them by no more than [`TIME_MAX`].

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use clap::builder::StyledStr;
use clap_complete::CompleteEnv;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter as _};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use crate::args::{self, CompletionsArgs, ServerArgs};
use crate::control::protocol::{MemberState, Request, Status};
use crate::running;

/// The scripts pass the name of the shell in this variable.
const VARIABLE: &str = "URAID_COMPLETE";

/// How long servers may take for a completion: a person is waiting.
const TIME_MAX: Duration = Duration::from_millis(500);

/// A shell for which there is a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// Put the script in ~/.local/share/bash-completion/completions/uraid
    Bash,
    /// Put the script as _uraid in a directory of $fpath
    Zsh,
    /// Put the script in ~/.config/fish/completions/uraid.fish
    Fish,
}

/// `uraid completions`: prints the script of a shell.
pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    let completer: &dyn EnvCompleter = match args.shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "uraid", "uraid", "uraid", &mut script)?;
    if args.shell == Shell::Bash {
        script = quoting(&script).context("the script is not as expected")?;
    }
    if args.shell == Shell::Zsh {
        // If zsh loads the script at the first completion, it also calls it for that one.
        writeln!(script, "[[ ${{funcstack[1]}} == _uraid ]] && _clap_dynamic_completer_uraid \"$@\"")?;
    }
    io::stdout().write_all(&script)?;
    Ok(())
}

/// The script for bash, with quoting of the words that it puts on the command line: file names may contain anything.
fn quoting(script: &[u8]) -> Option<Vec<u8>> {
    let script = std::str::from_utf8(script).ok()?;
    let (before, after) = script.split_once("    COMPREPLY=( $( ")?;
    let (answer, after) = after.split_once("    ) )\n    if [[ $? != 0 ]]; then\n        unset COMPREPLY\n")?;
    Some(
        format!(
            "{before}    local set=$-
    set -f
    COMPREPLY=( $( {answer}    ) )
    local status=$?
    [[ $set == *f* ]] || set +f
    local at
    for at in \"${{!COMPREPLY[@]}}\"; do
        printf -v \"COMPREPLY[at]\" %q \"${{COMPREPLY[at]}}\"
    done
    if [[ $status != 0 ]]; then
        unset COMPREPLY
{after}"
        )
        .into_bytes(),
    )
}

/// The command line to complete. Aliases of commands are understood, but not offered as candidates.
fn command() -> clap::Command {
    let mut command = args::command();
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, |command| {
            // The process ends once it has printed the candidates.
            let others: Vec<&'static str> =
                command.get_visible_aliases().map(|other| &*other.to_owned().leak()).collect();
            command.visible_alias(None::<&'static str>).aliases(others)
        });
    }
    command
}

/// Completes a command line if a shell's script is the caller. Returns `None` for an ordinary start.
pub(crate) fn complete() -> Option<ExitCode> {
    let here = env::current_dir().ok();
    let completed = CompleteEnv::with_factory(command).var(VARIABLE).try_complete(env::args_os(), here.as_deref());
    match completed {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        // Somebody who presses a key wants candidates, not messages.
        Err(_) => Some(ExitCode::FAILURE),
    }
}

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

/// Slots and paths of the members, and paths of the spares, of the server that the command line names or implies.
pub(crate) fn members(current: &OsStr) -> Vec<CompletionCandidate> {
    let server = ServerArgs { socket: named_socket(env::args_os()) };
    let status = in_time(move || server.connect()?.ask::<Status>(&Request::Status {}));
    let Some(Ok(Status { members, spares, .. })) = status else { return Vec::new() };
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
