//! Shell completion: the shell's script calls this program, which prints the possible continuations of the command
//! line.
//!
//! Only candidates are printed.

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use clap_complete::CompleteEnv;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

/// The scripts pass the name of the shell in this variable.
const VARIABLE: &str = "URAID_COMPLETE";

/// A shell for which there is a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// Put the script in ~/.local/share/bash-completion/completions/uraid
    Bash,
    /// Put the script as _uraid in a directory of $fpath
    Zsh,
    /// Put the script in ~/.config/fish/completions/uraid.fish
    Fish,
}

/// Arguments of `uraid completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(uraid completions bash)                    for this shell
  uraid completions fish > ~/.config/fish/completions/uraid.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
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

/// A command line as it is completed. Aliases of commands are understood, but not offered as candidates.
fn completed(mut command: clap::Command) -> clap::Command {
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

/// Completes a `command` line if a shell's script is the caller. Returns `None` for an ordinary start.
pub(crate) fn complete(command: fn() -> clap::Command) -> Option<ExitCode> {
    let here = env::current_dir().ok();
    let answered =
        CompleteEnv::with_factory(|| completed(command())).var(VARIABLE).try_complete(env::args_os(), here.as_deref());
    match answered {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        // Somebody who presses a key wants candidates, not messages.
        Err(_) => Some(ExitCode::FAILURE),
    }
}
