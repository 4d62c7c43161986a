//! `uraid wait`: waits until a server has no background work left.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use uraid_serve::client::Client;
use uraid_serve::health::words;
use uraid_serve::protocol::{HealthState, Request, Status};

use crate::server_args::ServerArgs;
use crate::terminal::{Progress, print};

/// Polling interval.
const PERIOD: Duration = Duration::from_millis(200);

/// Arguments of `uraid wait`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid replace d3.img /dev/sdf && uraid wait")]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    server: ServerArgs,
}

/// Waits until no reshape, rebuild, copy or scrub is running and a new array is initialised, or until one can't go on.
/// Succeeds if the array is whole then: no member is missing, and none lacks content.
pub(crate) fn run(args: &WaitArgs) -> Result<()> {
    let health = until_none(&mut args.server.connect()?, &Work::ALL)?.health;
    ensure!(health.state == HealthState::Whole, "{}", words(&health));
    print(format_args!("{}", words(&health)))
}

/// Waits for the end of a scrub.
pub(crate) fn until_scrubbed(client: &mut Client) -> Result<Status> {
    until_none(client, &[Work::Scrubbing])
}

/// Waits for the end of such works, and shows the progress. Returns the final status.
fn until_none(client: &mut Client, works: &[Work]) -> Result<Status> {
    let mut shown: Option<(Work, Progress)> = None;
    loop {
        let status: Status = client.ask(&Request::Status {})?;
        let Some((work, done, total)) = under_way(&status, works) else { return Ok(status) };
        if let Some(block) = status.reshape.as_ref().and_then(|reshape| reshape.stuck_block) {
            bail!(
                "the reshape can't go on: content can't be moved from block {block} of 512 bytes on; the log says why"
            );
        }
        let is_held_up = matches!(work, Work::Rebuilding | Work::Copying) && !status.health.held_up.is_empty();
        if is_held_up || status.health.state == HealthState::Frozen {
            bail!("{}", words(&status.health));
        }
        match &mut shown {
            Some((last, progress)) if *last == work => progress.set(done),
            _ => shown = Some((work, Progress::new(work.name(), total))),
        }
        std::thread::sleep(PERIOD);
    }
}

/// Work that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Taking,
    Rebuilding,
    Copying,
    Scrubbing,
    Initialising,
    Reshaping,
}

impl Work {
    const ALL: [Self; 6] =
        [Self::Reshaping, Self::Taking, Self::Rebuilding, Self::Copying, Self::Scrubbing, Self::Initialising];

    fn name(self) -> &'static str {
        match self {
            Self::Taking => "taking a spare",
            Self::Rebuilding => "rebuilding",
            Self::Copying => "copying",
            Self::Scrubbing => "scrubbing",
            Self::Initialising => "initialising",
            Self::Reshaping => "reshaping",
        }
    }
}

/// The first of `works` that a server is doing, with its progress and its total in bytes.
fn under_way(status: &Status, works: &[Work]) -> Option<(Work, u64, u64)> {
    let Status { rebuild, replace, scrub, initialise, reshape, health, spares, read_only, .. } = status;
    let progress = |work| match work {
        // A suitable spare is taken at once.
        Work::Taking => {
            let is_served = health.state == HealthState::Degraded || health.lost.is_some();
            let is_empty = is_served && !health.missing.is_empty();
            (is_empty && spares.iter().any(|spare| spare.problem.is_none())).then_some((0, status.size_bytes))
        }
        Work::Rebuilding => rebuild.as_ref().map(|rebuild| (rebuild.done_bytes, rebuild.total_bytes)),
        Work::Copying => replace.as_ref().map(|replace| (replace.done_bytes, replace.total_bytes)),
        Work::Scrubbing => {
            scrub.as_ref().filter(|scrub| scrub.running).map(|scrub| (scrub.done_bytes, scrub.total_bytes))
        }
        Work::Reshaping => reshape.as_ref().map(|one| (one.done_bytes, one.total_bytes)),
        Work::Initialising => initialise.filter(|_| !read_only).map(|one| (one.done_bytes, one.total_bytes)),
    };
    works.iter().find_map(|&work| progress(work).map(|(done, total)| (work, done, total)))
}
