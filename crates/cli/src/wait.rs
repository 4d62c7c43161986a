//! `uraid wait`: waits until a server has no background work left.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use uraid_serve::client::{Client, Ended};
use uraid_serve::health::words;
use uraid_serve::protocol::{HealthState, Replace, Request, Status};
use uraid_serve::sweeps::Work;

use crate::server_args::ServerArgs;
use crate::terminal::{Progress, print};

/// Polling interval.
const PERIOD: Duration = Duration::from_millis(200);

/// How long another server may take to go on where the first one has ended.
const SUCCESSOR_TIME_MAX: Duration = Duration::from_secs(10);

/// Arguments of `uraid wait`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid replace d3.img /dev/sdf && uraid wait")]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    server: ServerArgs,
}

/// Waits until no background work is left, or until some can't go on. Succeeds if the array is whole then: no member is
/// missing, and none lacks content.
pub(crate) fn run(args: &WaitArgs) -> Result<()> {
    let health = until_none(&mut args.server.connect()?, &Work::ALL)?.health;
    ensure!(health.state == HealthState::Whole, "{}", words(&health));
    print(format_args!("{}", words(&health)))
}

/// Waits for the end of a scrub.
pub(crate) fn until_scrubbed(client: &mut Client) -> Result<Status> {
    until_none(client, &[Work::Scrub])
}

/// Waits for the end of such works, and shows the progress. Returns the final status.
fn until_none(client: &mut Client, works: &[Work]) -> Result<Status> {
    let mut shown: Option<(&str, Progress)> = None;
    let mut last: Option<Status> = None;
    loop {
        let status = status(client, last.as_ref())?;
        let Some((doing, done, total)) = under_way(&status, works)? else { return Ok(status) };
        match &mut shown {
            Some((last, progress)) if *last == doing => progress.set(done),
            _ => shown = Some((doing, Progress::new(doing, total))),
        }
        last = Some(status);
        std::thread::sleep(PERIOD);
    }
}

/// The state of the array, also where another server has taken over from the one that told the `last` one.
///
/// # Errors
/// If no server answers, or the next one does not go on with what the last one was doing.
fn status(client: &mut Client, last: Option<&Status>) -> Result<Status> {
    let error = match client.ask(&Request::Status {}) {
        Err(error) if error.is::<Ended>() => error,
        answer => return answer,
    };
    let Some(last) = last else { return Err(error) };
    let deadline = Instant::now() + SUCCESSOR_TIME_MAX;
    while client.reconnect().is_err() {
        if Instant::now() >= deadline {
            return Err(error);
        }
        std::thread::sleep(PERIOD);
    }
    let status: Status = client.ask(&Request::Status {})?;
    if status.uuid != last.uuid {
        return Err(error);
    }
    let is_taken = |replace: &Replace| status.members.iter().any(|member| member.uuid == replace.uuid);
    match &last.replace {
        Some(replace) if status.replace.is_none() && !is_taken(replace) => bail!(
            "the server that copied member {} has ended, and with it the copy: start it again with `uraid replace`",
            replace.slot
        ),
        _ => Ok(status),
    }
}

/// What a server is doing first of `works`, with its progress and its total in bytes.
///
/// # Errors
/// If it can't go on.
fn under_way(status: &Status, works: &[Work]) -> Result<Option<(&'static str, u64, u64)>> {
    let first = status.sweeps.iter().find(|sweep| works.contains(&sweep.work));
    let Some(sweep) = first else {
        let is_taking = works.contains(&Work::Rebuild) && !status.read_only && takes_spare(status);
        return Ok(is_taking.then_some(("taking a spare", 0, status.size_bytes)));
    };
    ensure!(status.health.state != HealthState::Frozen, "{}", words(&status.health));
    match status.reshape.as_ref().and_then(|reshape| reshape.stuck_block) {
        Some(block) => bail!(
            "the reshape can't go on: content can't be moved from block {block} of 512 bytes on; the log says why"
        ),
        None => ensure!(!sweep.stuck, "{}", words(&status.health)),
    }
    Ok(Some((sweep.work.doing(), sweep.done_bytes, sweep.total_bytes)))
}

/// Whether a spare is about to take a member's place: a suitable one is taken at once.
fn takes_spare(status: &Status) -> bool {
    let is_served = status.health.state == HealthState::Degraded || status.health.lost.is_some();
    let is_empty = is_served && !status.health.missing.is_empty();
    is_empty && status.spares.iter().any(|spare| spare.problem.is_none())
}
