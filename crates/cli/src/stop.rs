//! `uraid stop`: stops a server, and waits until the members are marked clean.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use uraid_serve::health::words;
use uraid_serve::protocol::{Lost, Replace, Request, Status, Stopped};
use uraid_serve::text::size;

use crate::server_args::ServerArgs;
use crate::terminal::print;

/// How long a stop may take before it says what it waits for.
const SOON: Duration = Duration::from_secs(2);

/// Arguments of `uraid stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Stop even if content is lost
    ///
    /// Content is lost if files of members were deleted, or if members do not take what clients have written.
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub(crate) fn run(args: &StopArgs) -> Result<()> {
    // A server that is stopping answers nobody else. A late answer to this request must not be mistaken for the answer
    // to the stop, so this request has its own connection.
    let before: Result<Status> = args.server.connect()?.ask(&Request::Status {});
    let mut client = args.server.connect()?;
    let request = Request::Stop { force: args.force };
    let before = &before;
    let Stopped { lost } = client.ask_at_length(&request, SOON, || {
        // If standard error is closed, nobody wants to know.
        let _ = writeln!(io::stderr(), "{}", waiting(before.as_ref().ok()));
    })?;
    print(format_args!("stopped"))?;
    if let Some(Replace { slot, path, .. }) = before.as_ref().ok().and_then(|before| before.replace.as_ref()) {
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

/// What a stop waits for, according to the status when it began.
fn waiting(before: Option<&Status>) -> String {
    let Some(Status { cache, health, clients, .. }) = before else {
        return "stopping: waiting for the server".to_owned();
    };
    let unwritten = cache.map_or(0, |fill| fill.used_bytes);
    let what = match unwritten {
        0 => "for what clients have asked for, and for the members".to_owned(),
        bytes => format!("for the members to take {} that clients have written", size(bytes)),
    };
    let clients = if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
    format!("stopping: waiting {what}; there were {clients}, and the array was {}", words(health))
}
