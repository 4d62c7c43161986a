//! `uraid wait`: until a server has nothing left to do for its array but serve it.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::args::ServerArgs;
use crate::control::client::Client;
use crate::control::protocol::{HealthState, Request, Status};
use crate::status::words;
use crate::terminal::{Progress, print};

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(200);

/// Waits until nothing is being rebuilt or scrubbed any more; succeeds where the array is whole then.
pub(crate) fn run(args: &ServerArgs) -> Result<()> {
    let health = until_idle(&mut Client::connect(&args.socket)?)?.health;
    ensure!(health.state == HealthState::Whole, "{}", words(&health));
    print(format_args!("{}", words(&health)))
}

/// Waits, and shows how far the server is; gives how it is in the end.
pub(crate) fn until_idle(client: &mut Client) -> Result<Status> {
    let mut shown: Option<(Work, Progress)> = None;
    loop {
        let status: Status = client.ask(&Request::Status {})?;
        let Some((work, done, total)) = under_way(&status) else { return Ok(status) };
        match &mut shown {
            Some((last, progress)) if *last == work => progress.set(done),
            _ => shown = Some((work, Progress::new(work.name(), total))),
        }
        std::thread::sleep(PERIOD);
    }
}

/// What takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Replacing,
    Rebuilding,
    Scrubbing,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Replacing => "taking a spare",
            Self::Rebuilding => "rebuilding",
            Self::Scrubbing => "scrubbing",
        }
    }
}

/// What a server is at, how far that is, and how much it is in bytes.
fn under_way(status: &Status) -> Option<(Work, u64, u64)> {
    let Status { rebuild, scrub, health, spares, .. } = status;
    let is_about_to_be = health.state == HealthState::Degraded && !health.missing.is_empty();
    match (rebuild, scrub.as_ref().filter(|scrub| scrub.running)) {
        (Some(rebuild), _) => Some((Work::Rebuilding, rebuild.done_bytes, rebuild.total_bytes)),
        // What fits is taken at once.
        _ if is_about_to_be && spares.iter().any(|spare| spare.problem.is_none()) => {
            Some((Work::Replacing, 0, status.size_bytes))
        }
        (None, Some(scrub)) => Some((Work::Scrubbing, scrub.done_bytes, scrub.total_bytes)),
        (None, None) => None,
    }
}
