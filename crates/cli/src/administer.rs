//! The commands that ask a server to do something.

use anyhow::Result;
use serde_json::Value;

use crate::args::{ScrubAction, ScrubArgs, ServerArgs, SetArgs};
use crate::control::client::Client;
use crate::control::protocol::{Certainty, Request, Scrub, ScrubFault, ScrubMode, ScrubReport};
use crate::status;
use crate::terminal::{print, print_json, size};

/// `uraid stop`: waits until the members are marked clean.
pub(crate) fn stop(args: &ServerArgs) -> Result<()> {
    let mut client = Client::connect(&args.socket)?;
    client.be_patient()?;
    let _: Value = client.ask(&Request::Stop {})?;
    print(format_args!("stopped"))
}

/// `uraid set`.
pub(crate) fn set(args: &SetArgs) -> Result<()> {
    let mut client = Client::connect(&args.server.socket)?;
    for (key, value) in &args.settings {
        let _: Value = client.ask(&Request::Set { key: key.clone(), value: value.clone() })?;
        print(format_args!("{key}={value}"))?;
    }
    Ok(())
}

/// `uraid scrub`.
pub(crate) fn scrub(args: &ScrubArgs) -> Result<()> {
    match args.action {
        ScrubAction::Start { ref server, repair, repair_suspects, dry_run: _ } => {
            let mode = match (repair, repair_suspects) {
                (_, true) => ScrubMode::RepairSuspects,
                (true, false) => ScrubMode::Repair,
                (false, false) => ScrubMode::Check,
            };
            let scrub: Scrub = Client::connect(&server.socket)?.ask(&Request::ScrubStart { mode })?;
            print(format_args!("{}", status::scrub_line(&scrub)))
        }
        ScrubAction::Stop { ref server } => {
            let scrub: Scrub = Client::connect(&server.socket)?.ask(&Request::ScrubStop {})?;
            print(format_args!("{}", status::scrub_line(&scrub)))
        }
        ScrubAction::Status { ref server, json } => {
            let report: ScrubReport = Client::connect(&server.socket)?.ask(&Request::ScrubStatus {})?;
            if json { print_json(&report) } else { show(&report) }
        }
    }
}

fn show(report: &ScrubReport) -> Result<()> {
    let ScrubReport { scrub, faults, unlisted } = report;
    print(format_args!("{}", status::scrub_line(scrub)))?;
    if scrub.unchecked_bytes > 0 {
        let unchecked = size(scrub.unchecked_bytes);
        print(format_args!("{unchecked} of parity could not be checked: members are missing or can't be read"))?;
    }
    for ScrubFault { stripe, certainty, slot, member_sector, sectors, blocks, repaired } in faults {
        let who = match (certainty, slot, member_sector) {
            (Certainty::Certain, Some(slot), Some(sector)) => {
                format!("member {slot} is wrong, from sector {sector} of its data")
            }
            (_, Some(slot), Some(sector)) => format!("member {slot} may be wrong, from sector {sector} of its data"),
            _ => "it can't be told which member is wrong".to_owned(),
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
