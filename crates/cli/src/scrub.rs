//! `uraid scrub`: compares the members of a running array, and repairs them.

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use uraid_serve::protocol::{Certainty, Request, Scrub, ScrubFault, ScrubMode, ScrubReport};
use uraid_serve::text::size;

use crate::server_args::ServerArgs;
use crate::status;
use crate::terminal::{print, print_json};
use crate::wait;

/// Arguments of `uraid scrub`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid scrub start                                   compare, and write nothing
  uraid scrub start --repair --wait                   compare and repair, and show the result
  uraid scrub status --json | jq .faults")]
pub(crate) struct ScrubArgs {
    /// What to do
    #[command(subcommand)]
    action: ScrubAction,
}

/// What to do about a scrub.
#[derive(Debug, Subcommand)]
pub(crate) enum ScrubAction {
    /// Start a scrub; clients have priority
    Start {
        #[command(flatten)]
        server: ServerArgs,
        /// Repair what is certainly wrong
        ///
        /// That is a block that a checksum contradicts, the copy that differs from most others, or the only parity
        /// that disagrees.
        #[arg(long)]
        repair: bool,
        /// Also repair data that both of its parity units contradict
        ///
        /// Only for arrays that were not written since they were found wrong.
        #[arg(long)]
        repair_suspects: bool,
        /// Write nothing (default)
        #[arg(long, conflicts_with_all = ["repair", "repair_suspects"])]
        dry_run: bool,
        /// Wait for the end and show the result; exit with 1 unless everything is right
        #[arg(long, short)]
        wait: bool,
    },
    /// Stop the running scrub
    Stop {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show progress and results of the last scrub
    Status {
        #[command(flatten)]
        server: ServerArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ScrubArgs) -> Result<()> {
    match args.action {
        ScrubAction::Start { ref server, repair, repair_suspects, dry_run: _, wait } => {
            let mode = match (repair, repair_suspects) {
                (_, true) => ScrubMode::RepairSuspects,
                (true, false) => ScrubMode::Repair,
                (false, false) => ScrubMode::Check,
            };
            let mut client = server.connect()?;
            let scrub: Scrub = client.ask(&Request::ScrubStart { mode })?;
            if !wait {
                return print(format_args!("{}", status::scrub_line(&scrub)));
            }
            let level = wait::until_scrubbed(&mut client)?.level;
            let report: ScrubReport = client.ask(&Request::ScrubStatus {})?;
            show(&report)?;
            judge(&report.scrub, &level)
        }
        ScrubAction::Stop { ref server } => {
            let scrub: Scrub = server.connect()?.ask(&Request::ScrubStop {})?;
            print(format_args!("{}", status::scrub_line(&scrub)))
        }
        ScrubAction::Status { ref server, json } => {
            let report: ScrubReport = server.connect()?.ask(&Request::ScrubStatus {})?;
            if json { print_json(&report) } else { show(&report) }
        }
    }
}

/// Whether everything was compared and is right now.
fn judge(scrub: &Scrub, level: &str) -> Result<()> {
    let &Scrub { done_bytes, total_bytes, mismatched_bytes, repaired_bytes, unchecked_bytes, missed_bytes, .. } = scrub;
    ensure!(done_bytes == total_bytes, "the scrub was stopped");
    // RAID 0 has no redundancy that could agree.
    let wrong = if level == "0" { "blocks do not match their checksums" } else { "the members do not agree" };
    ensure!(mismatched_bytes == repaired_bytes, "{wrong}");
    ensure!(
        missed_bytes == 0,
        "the scrub is incomplete because members are missing; scrub again when the array is whole"
    );
    ensure!(
        unchecked_bytes == 0,
        "{} of parity could not be checked, because members can't be read there: see `uraid status`",
        size(unchecked_bytes)
    );
    Ok(())
}

fn show(report: &ScrubReport) -> Result<()> {
    let ScrubReport { scrub, faults, unlisted } = report;
    print(format_args!("{}", status::scrub_line(scrub)))?;
    for ScrubFault { stripe, certainty, slot, member_sector, sectors, blocks, repaired } in faults {
        let who = match (certainty, slot, member_sector) {
            (Certainty::Certain, Some(slot), Some(sector)) => {
                format!("member {slot} is wrong, from sector {sector} of its data")
            }
            (_, Some(slot), Some(sector)) => format!("member {slot} may be wrong, from sector {sector} of its data"),
            _ => "unknown which member is wrong".to_owned(),
        };
        let blocks: Vec<String> = blocks.iter().map(|[from, end]| format!("{from}..{end}")).collect();
        let what = if blocks.is_empty() { "parity".to_owned() } else { format!("blocks {}", blocks.join(", ")) };
        let done = if *repaired { "; repaired" } else { "" };
        print(format_args!("  stripe {stripe}, {sectors} sectors: {who} ({what}){done}"))?;
    }
    if *unlisted > 0 {
        print(format_args!("  and {unlisted} more"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_right_where_everything_was_compared_and_agrees() {
        let done = Scrub {
            mode: ScrubMode::Check,
            running: false,
            done_bytes: 8192,
            total_bytes: 8192,
            mismatched_bytes: 0,
            repaired_bytes: 0,
            unchecked_bytes: 0,
            missed_bytes: 0,
        };
        let wrong = Scrub { mismatched_bytes: 4096, ..done };
        let said = |scrub: &Scrub, level| judge(scrub, level).map_err(|error| error.to_string());
        assert_eq!(said(&done, "5"), Ok(()));
        assert_eq!(said(&Scrub { repaired_bytes: 4096, ..wrong }, "5"), Ok(()));
        assert_eq!(said(&wrong, "5"), Err("the members do not agree".into()));
        assert_eq!(said(&wrong, "0"), Err("blocks do not match their checksums".into()));
        assert_eq!(said(&Scrub { done_bytes: 4096, ..done }, "5"), Err("the scrub was stopped".into()));
        let missed = said(&Scrub { unchecked_bytes: 4096, missed_bytes: 4096, ..done }, "5").unwrap_err();
        assert!(missed.contains("members are missing") && missed.contains("incomplete"), "{missed}");
        let unread = said(&Scrub { unchecked_bytes: 4096, ..done }, "5").unwrap_err();
        assert!(unread.starts_with("4 KiB of parity could not be checked"), "{unread}");
    }
}
