//! The commands that send requests to a server.

use std::io::{self, Write as _};
use std::path::{PathBuf, absolute};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use uuid::Uuid;

use crate::args::{
    AddArgs, MemberArgs, Misuse, Rate, ReplaceArgs, ScrubAction, ScrubArgs, SetArgs, SettingArgs, StopArgs,
};
use crate::config;
use crate::control::client::Client;
use crate::control::protocol::{
    Added, Certainty, Lost, Replace, Replaced, Request, Scrub, ScrubFault, ScrubMode, ScrubReport, Status, Stopped,
};
use crate::health::words;
use crate::status;
use crate::terminal::{print, print_json, size};
use crate::wait;

/// How long a stop may take before it says what it waits for.
const SOON: Duration = Duration::from_secs(2);

/// `uraid stop`: waits until the members are marked clean.
pub(crate) fn stop(args: &StopArgs) -> Result<()> {
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

/// `uraid set`.
pub(crate) fn set(args: &SetArgs) -> Result<()> {
    let mut client = args.server.connect()?;
    let kept_in = if args.persist { Some(configuration(&mut client)?) } else { None };
    let SettingArgs { rebuild_limit, scrub_limit, cache, log, read_deadline, write_deadline, max_errors } =
        &args.settings;
    let mut set: Vec<(&str, String)> = Vec::new();
    let mut limit = |key, doing, rate: Rate, request: fn(Option<u64>) -> Request| {
        let bytes = rate.0.map(|rate| rate.0);
        let _: Value = client.ask(&request(bytes))?;
        let limited = bytes.map_or_else(|| "not limited".to_owned(), |bytes| format!("limited to {}/s", size(bytes)));
        set.push((key, bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string())));
        print(format_args!("{doing} each member is {limited}"))
    };
    if let Some(rate) = *rebuild_limit {
        limit("rebuild-limit", "rebuilding", rate, |bytes_per_second| Request::RebuildLimit { bytes_per_second })?;
    }
    if let Some(rate) = *scrub_limit {
        limit("scrub-limit", "scrubbing", rate, |bytes_per_second| Request::ScrubLimit { bytes_per_second })?;
    }
    let settings = [
        ("cache", cache),
        ("log", log),
        ("read-deadline", read_deadline),
        ("write-deadline", write_deadline),
        ("max-errors", max_errors),
    ];
    for (key, value) in settings.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
        let _: Value = client.ask(&Request::Set { key: key.to_owned(), value: value.clone() })?;
        set.push((key, value.clone()));
        print(format_args!("{key} is {value}"))?;
    }
    let Some(path) = kept_in else { return Ok(()) };
    config::keep(&path, &set).context("it is set until the server stops, and not kept for the next start")?;
    print(format_args!("kept in {}", path.display()))
}

/// The server's configuration file.
fn configuration(client: &mut Client) -> Result<PathBuf> {
    let status: Status = client.ask(&Request::Status {})?;
    let path = status.config.ok_or_else(|| {
        Misuse(
            "the server has no configuration file: start it with `uraid serve --config`, or give it the option".into(),
        )
    })?;
    Ok(path.into())
}

/// `uraid fail`.
pub(crate) fn fail(args: &MemberArgs) -> Result<()> {
    let request = Request::Fail { member: name(&args.member)? };
    let _: Value = args.server.connect()?.ask(&request)?;
    print(format_args!("the array continues without {}", args.member))
}

/// `uraid remove`.
pub(crate) fn remove(args: &MemberArgs) -> Result<()> {
    let request = Request::Remove { member: name(&args.member)? };
    let _: Value = args.server.connect()?.ask(&request)?;
    print(format_args!("{} is released", args.member))
}

/// `uraid add`: waits until the member has joined or is a spare, but not until it is rebuilt.
pub(crate) fn add(args: &AddArgs) -> Result<()> {
    let AddArgs { server, force, size, path } = args;
    let mut client = server.connect()?;
    // A new member's areas are zeroed first.
    client.be_patient()?;
    let request = Request::Add { path: absolute(path)?, force: *force, size_bytes: size.map(|size| size.0) };
    let Added { slot, uuid } = client.ask(&request)?;
    match (slot, uuid) {
        (Some(slot), Some(uuid)) => print(format_args!(
            "{} ({uuid}) is being rebuilt in slot {slot}; `uraid status` shows the progress",
            path.display()
        )),
        _ => print(format_args!(
            "no member is missing: {} is now a spare until the server ends; to keep it, use `uraid serve --spare`",
            path.display()
        )),
    }
}

/// `uraid replace`: waits until the copy has begun.
pub(crate) fn replace(args: &ReplaceArgs) -> Result<()> {
    let ReplaceArgs { server, force, size, old, new } = args;
    let mut client = server.connect()?;
    // A new member's areas are zeroed first.
    client.be_patient()?;
    let request = Request::Replace {
        member: name(old)?,
        path: absolute(new)?,
        force: *force,
        size_bytes: size.map(|size| size.0),
    };
    let Replaced { slot, uuid, rebuilding } = client.ask(&request)?;
    let new = new.display();
    if rebuilding {
        return print(format_args!(
            "slot {slot} had no member: {new} ({uuid}) is being rebuilt there; `uraid status` shows the progress"
        ));
    }
    print(format_args!(
        "{old} is being copied to {new} ({uuid}), which then takes over slot {slot}; `uraid status` shows the progress"
    ))
}

/// A member's name as the server knows it. The server may have another working directory.
fn name(word: &str) -> Result<String> {
    if word.parse::<u8>().is_ok() || word.parse::<Uuid>().is_ok() {
        return Ok(word.to_owned());
    }
    Ok(absolute(word)?.display().to_string())
}

/// `uraid scrub`.
pub(crate) fn scrub(args: &ScrubArgs) -> Result<()> {
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
    let &Scrub { done_bytes, total_bytes, mismatched_bytes, repaired_bytes, missed_bytes, .. } = scrub;
    ensure!(done_bytes == total_bytes, "the scrub was stopped");
    // RAID 0 has no redundancy that could agree.
    let wrong = if level == "0" { "blocks do not match their checksums" } else { "the members do not agree" };
    ensure!(mismatched_bytes == repaired_bytes, "{wrong}");
    ensure!(
        missed_bytes == 0,
        "the scrub is incomplete because members are missing; scrub again when the array is whole"
    );
    Ok(())
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
    }
}
