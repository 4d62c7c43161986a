//! `uraid stop`: stops a server, and waits until the members are marked clean.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use uraid_serve::health::{force, stopping as stopping_words, words};
use uraid_serve::protocol::{Lost, Replace, Request, Status, Stopped};
use uraid_serve::text::size;

use crate::server_args::ServerArgs;
use crate::terminal::print;

/// How long a stop may take before it says what it waits for: longer than the server takes to see that nothing moves.
const SOON: Duration = Duration::from_secs(3);

/// Arguments of `uraid stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Stop even if content is lost
    ///
    /// Content is lost if files of members were deleted, or if members do not take what clients have written. A server
    /// that is stopping already then waits for nothing any more that does not move.
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub(crate) fn run(args: &StopArgs) -> Result<()> {
    // A late answer to this request must not be mistaken for the answer to the stop, so it has its own connection.
    let look = || -> Option<Status> { args.server.connect().ok()?.ask(&Request::Status {}).ok() };
    let before = look();
    let is_stopping = before.as_ref().is_some_and(|before| before.stopping.is_some());
    let mut client = args.server.connect()?;
    if is_stopping && !args.force {
        say(before.as_ref());
    }
    let request = Request::Stop { force: args.force };
    let Stopped { lost } = client.ask_at_length(&request, SOON, || {
        if !is_stopping {
            say(look().as_ref());
        }
    })?;
    print(format_args!("stopped"))?;
    if let Some(Replace { slot, path, .. }) = before.as_ref().and_then(|before| before.replace.as_ref()) {
        let path = path.as_ref().map_or_else(String::new, |path| format!(" to {path}"));
        print(format_args!(
            "the copy{path} was not finished, and member {slot} stays: to begin it again, run `uraid replace --force`"
        ))?;
    }
    for Lost { slot, path } in lost {
        let path = path.map_or_else(String::new, |path| format!(" ({path})"));
        print(format_args!("member {slot}{path} failed meanwhile: the array continues without it"))?;
    }
    Ok(())
}

/// Says what a stop waits for, and what would end that.
fn say(status: Option<&Status>) {
    // If standard error is closed, nobody wants to know.
    let _ = writeln!(io::stderr(), "{}", waiting(status));
}

/// What a stop waits for, and what would end that, according to the server's status now.
fn waiting(status: Option<&Status>) -> String {
    let Some(Status { stopping, cache, health, clients, .. }) = status else {
        return "stopping: waiting for the server".to_owned();
    };
    let unwritten_bytes = cache.map_or(0, |fill| fill.used_bytes);
    let clients = if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
    // A stop that has not begun is being checked.
    let begun = stopping.as_ref().map_or_else(|| "stopping".to_owned(), stopping_words);
    format!(
        "{begun}; {clients}, {} to be written, {}; {}",
        size(unwritten_bytes),
        words(health),
        force(unwritten_bytes)
    )
}
