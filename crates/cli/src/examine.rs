//! `uraid examine`: shows members' own records about their array.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use uraid_io::array::{Candidate, Look, Named, Patience, Verdict, candidates, judge, look};
use uraid_io::format::superblock::{Consistency, Integrity, SlotState, Superblock};
use uraid_io::member::Access;
use uraid_layout::MemberIndex;
use uraid_serve::clock::now;
use uraid_serve::names::{layout_name, level_name, level_title};
use uraid_serve::text::{chain, duration, list, size, visible};
use uuid::Uuid;

use crate::terminal::{print, print_json};

/// Arguments of `uraid examine`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid examine --json disk*.img | jq .missing")]
pub(crate) struct ExamineArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Members; one is enough
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// An array according to its members. Sizes are in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    uuid: Uuid,
    pub(crate) name: String,
    pub(crate) level: &'static str,
    layout: &'static str,
    chunk: u64,
    /// RM2: rows of a parity stripe.
    #[serde(skip_serializing_if = "Option::is_none")]
    rm2_m: Option<u8>,
    /// RAID 10: copies of each block.
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<u8>,
    epoch: u64,
    /// `clean`, `dirty`, or `initialising`: its creation was interrupted, and it is still empty.
    state: &'static str,
    /// How the members are kept consistent across an unclean stop: `log`, `bitmap` or `none`.
    consistency: &'static str,
    /// How content is verified: `crc32` or `none`.
    integrity: &'static str,
    pub(crate) size: u64,
    /// The granularity of requests, unless checksums increase it.
    sector_size: u64,
    /// When the last complete scrub finished, in seconds since 1970.
    scrub_finished_s: Option<u64>,
    /// How many members may fail, in any combination.
    tolerance: usize,
    /// Number of the array's members.
    #[serde(skip)]
    pub(crate) member_count: usize,
    /// Slots whose member is being rebuilt.
    rebuilding: Vec<u8>,
    /// Slots whose member was not named or does not count.
    missing: Vec<u8>,
    members: Vec<MemberReport>,
}

#[derive(Debug, Serialize)]
struct MemberReport {
    path: String,
    uuid: Uuid,
    slot: u8,
    /// `active`, `rebuilding`, or why it does not count: `failed`, `stale`, `truncated`.
    state: &'static str,
    epoch: u64,
    log_size: u64,
    data_offset: u64,
    data_size: u64,
}

/// Runs the command.
pub(crate) fn run(args: &ExamineArgs) -> Result<()> {
    let error = match report(&args.members) {
        Ok(report) => return show(&report, args.json),
        Err(error) => error,
    };
    // The other members' records are still worth showing.
    let looks = look(&args.members, &mut Patience::endless())?;
    let (members, others): (Vec<Look>, Vec<Look>) = looks.into_iter().partition(|look| look.found.is_ok());
    if others.is_empty() || args.members.len() == 1 {
        return Err(error);
    }
    if !members.is_empty() {
        let paths: Vec<PathBuf> = members.into_iter().map(|look| look.path).collect();
        show(&report(&paths)?, args.json)?;
    }
    let reasons: Vec<String> =
        others.into_iter().filter_map(|look| look.found.err()).map(|reason| chain(&reason.into())).collect();
    bail!("{}", reasons.join("\nuraid: "))
}

/// The report of the members at `paths`.
pub(crate) fn report(paths: &[impl AsRef<Path>]) -> Result<Report> {
    let Named { members, unreadable } = candidates(paths, Access::Inspect)?;
    for (path, reason) in unreadable {
        tracing::warn!("{}: {reason}", path.display());
    }
    let known = members.into_iter().map(|opened| (opened.size, opened.candidate));
    let (sizes, candidates): (Vec<_>, Vec<_>) = known.unzip();
    let verdict = judge(&candidates)?;
    let (superblock, geometry) = (&verdict.superblock, &verdict.geometry);
    let level = geometry.spec().level;
    let mut members: Vec<MemberReport> =
        candidates.iter().enumerate().map(|(index, candidate)| member(&verdict, index, candidate)).collect();
    for (member, (size, candidate)) in members.iter_mut().zip(sizes.into_iter().zip(&candidates)) {
        if size < candidate.superblock.areas.member_size {
            member.state = "truncated";
        }
    }
    members.sort_by_key(|member| member.slot);
    let counts = |slot: &MemberIndex| members.iter().any(|member| member.slot == slot.0 && member.counts());
    let missing = geometry.all_members().iter().filter(|slot| !counts(slot)).map(|slot| slot.0).collect();
    Ok(Report {
        uuid: superblock.array,
        name: superblock.name.clone(),
        level: level_name(level),
        layout: layout_name(level),
        chunk: geometry.chunk().bytes().0,
        rm2_m: if let uraid_layout::Level::Rm2 { height, .. } = level { Some(height) } else { None },
        copies: if let uraid_layout::Level::Raid10 { copies } = level { Some(copies) } else { None },
        epoch: superblock.epoch.0,
        state: state(superblock),
        consistency: consistency_name(superblock.consistency),
        integrity: integrity_name(superblock.integrity),
        size: geometry.capacity().bytes().0,
        sector_size: superblock.sector_size.0,
        scrub_finished_s: superblock.scrub.finished.map(|at| at.0),
        tolerance: geometry.tolerance(),
        member_count: geometry.members(),
        rebuilding: verdict.rebuilding().iter().map(|slot| slot.0).collect(),
        missing,
        members,
    })
}

fn state(superblock: &Superblock) -> &'static str {
    match superblock.initialising {
        Some(_) => "initialising",
        None if superblock.is_clean => "clean",
        None => "dirty",
    }
}

fn member(verdict: &Verdict, index: usize, candidate: &Candidate) -> MemberReport {
    let superblock = &candidate.superblock;
    let failed = |slot: MemberIndex| {
        verdict.superblock.slots.get(slot.index()).is_none_or(|record| record.state == SlotState::Failed)
    };
    let state = match superblock.slot {
        slot if verdict.slots.get(slot.index()) == Some(&Some(index)) => {
            if verdict.rebuilding().contains(slot) {
                "rebuilding"
            } else {
                "active"
            }
        }
        slot if failed(slot) => "failed",
        _ => "stale",
    };
    MemberReport {
        path: candidate.path.display().to_string(),
        uuid: superblock.member,
        slot: superblock.slot.0,
        state,
        epoch: superblock.epoch.0,
        log_size: superblock.areas.log.size.0,
        data_offset: superblock.areas.data.offset.0,
        data_size: verdict.geometry.spec().member_size.bytes().0,
    }
}

impl MemberReport {
    /// Whether it is part of the array.
    fn counts(&self) -> bool {
        ["active", "rebuilding"].contains(&self.state)
    }
}

impl Report {
    /// The paths of the members that belong to the array, and of those that no longer do.
    pub(crate) fn paths(&self) -> (Vec<String>, Vec<String>) {
        let (own, former): (Vec<&MemberReport>, Vec<_>) = self.members.iter().partition(|member| member.counts());
        let paths = |members: Vec<&MemberReport>| members.into_iter().map(|member| member.path.clone()).collect();
        (paths(own), paths(former))
    }

    /// The array's condition, in a few words.
    pub(crate) fn health(&self) -> String {
        let state = match self.state {
            "initialising" => return "its creation was interrupted".to_owned(),
            "clean" => "clean",
            _ => "not stopped cleanly",
        };
        match self.missing.as_slice() {
            [] if !self.rebuilding.is_empty() => {
                format!("{state}, all members found, rebuilding {}", list(&self.rebuilding))
            }
            [] => format!("{state}, all members found"),
            [slot] => format!("{state}, member {slot} not found"),
            missing => format!("{state}, members {} not found", list(missing)),
        }
    }

    /// One line for people: `array 'vault' (RM2 adjacent, 3 GiB in chunks of 64 KiB)`.
    pub(crate) fn title(&self) -> String {
        let Self { name, level, layout, chunk, .. } = self;
        let name = if name.is_empty() { String::new() } else { format!(" '{}'", visible(name)) };
        let level = level_title(level);
        format!("array{name} ({level} {layout}, {} in chunks of {})", size(self.size), size(*chunk))
    }
}

/// Prints the report, for people or as JSON.
pub(crate) fn show(report: &Report, json: bool) -> Result<()> {
    if json {
        return print_json(report);
    }
    let Report { uuid, epoch, state, consistency, integrity, rebuilding, missing, members, .. } = report;
    print(format_args!("{}", report.title()))?;
    print(format_args!("  {uuid}, {state}, epoch {epoch}, consistency: {consistency}, integrity: {integrity}"))?;
    let survives = report.tolerance.saturating_sub(missing.len() + rebuilding.len());
    let failures = if survives == 1 { "1 more failure".to_owned() } else { format!("{survives} more failures") };
    if *state == "initialising" {
        print(format_args!(
            "  its creation was interrupted, and it holds nothing yet: serve all of its members to finish it"
        ))?;
    }
    match missing.as_slice() {
        [] if *state == "initialising" => {}
        [] if rebuilding.is_empty() => print(format_args!("  whole: survives {failures}"))?,
        [] => print(format_args!("  degraded: rebuilding slots {}, survives {failures}", list(rebuilding)))?,
        missing => print(format_args!("  missing here: slots {}", list(missing)))?,
    }
    match (report.scrub_finished_s, now()) {
        (Some(finished), Ok(now)) => {
            print(format_args!("  scrubbed {} ago", duration(now.0.saturating_sub(finished))))?;
        }
        _ => print(format_args!("  never scrubbed"))?,
    }
    for member in members {
        let MemberReport { path, uuid, slot, state, data_offset, data_size, .. } = member;
        print(format_args!("  {slot:>2}  {state:<10} {uuid}  data {data_offset}+{data_size}  {path}"))?;
    }
    Ok(())
}

/// The consistency as `--consistency` takes it.
fn consistency_name(consistency: Consistency) -> &'static str {
    match consistency {
        Consistency::Log => "log",
        Consistency::Bitmap => "bitmap",
        Consistency::None => "none",
    }
}

/// The integrity as `--integrity` takes it.
fn integrity_name(integrity: Integrity) -> &'static str {
    match integrity {
        Integrity::Crc32 => "crc32",
        Integrity::None => "none",
    }
}
