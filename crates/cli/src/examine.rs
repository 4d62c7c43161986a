//! `uraid examine`: shows members' own records about their array.

mod logs;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use uraid_io::array::{
    Candidate, Ignored, Look, Named, Opened, Patience, Verdict, candidates, judge, look, lost_of_saved,
};
use uraid_io::badblocks;
use uraid_io::engine::survives;
use uraid_io::format::badblocks::{BadBlocks, Damaged, Lack};
use uraid_io::format::superblock::{Consistency, Integrity, Reshape, SlotState, Superblock};
use uraid_io::member::Access;
use uraid_io::{lost, lost_between};
use uraid_layout::{Geometry, Lba, MemberIndex, MemberSet, SECTOR_BYTES, Spec};
use uraid_serve::clock::now;
use uraid_serve::health::{RANGES_TOLD, SCRUB_OWED, ranges};
use uraid_serve::names::{layout_name, level_name, level_title};
use uraid_serve::protocol::{self, LostContent};
use uraid_serve::sweeps::{Sweep, Work};
use uraid_serve::text::{chain, duration, list, name_members, size, visible};
use uuid::Uuid;

use self::logs::LogReport;
use crate::status::counted;
use crate::terminal::{print, print_json};

/// Arguments of `uraid examine`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid examine --json disk*.img | jq .missing
  uraid examine --bad-blocks disk*.img")]
pub(crate) struct ExamineArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List all bad blocks, and all that is lost
    ///
    /// Bad blocks are sectors of a member's data area that lack their content: it could not be computed (absent), or
    /// the medium did not give it (unread). Name all members to see which bytes of the array no member has.
    #[arg(long)]
    bad_blocks: bool,
    /// Members, one is enough; and log devices
    ///
    /// Files, block devices, and exports of NBD servers by their URIs, such as nbd://HOST/NAME.
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
    /// `clean`, `dirty`, `reshaping`, or `initialising`: its creation was interrupted, and it is still empty.
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
    /// The map of blank regions was damaged on all members: they may not agree until a repairing scrub is complete.
    scrub_owed: bool,
    /// Some regions are blank: nobody has written them, and members do not hold them as zeros yet.
    blank: bool,
    /// The shape that it is getting, and how far that has come; `null` if it has one.
    pub(crate) reshape: Option<ReshapeReport>,
    /// It was stopped cleanly.
    #[serde(skip)]
    is_clean: bool,
    /// How many members may fail, in any combination.
    tolerance: usize,
    /// How many more may fail beside those that are missing or incomplete; between two shapes, in both.
    #[serde(skip)]
    survives: usize,
    /// Number of the array's members.
    #[serde(skip)]
    pub(crate) member_count: usize,
    /// Slots whose member is being rebuilt.
    rebuilding: Vec<u8>,
    /// Slots whose member was not named or does not count.
    missing: Vec<u8>,
    /// Content that none of these members has because of their bad blocks; `null` if there is none.
    lost: Option<LostContent>,
    members: Vec<MemberReport>,
    /// Empty if the members keep the log.
    log_devices: Vec<LogReport>,
}

/// An array between two shapes. Sizes are in bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReshapeReport {
    level: String,
    layout: String,
    chunk: u64,
    members: u8,
    /// How much content there is, and how much of it has the new shape.
    content: u64,
    moved: u64,
    /// It goes back to the shape that it had.
    back: bool,
}

#[derive(Debug, Serialize)]
struct MemberReport {
    path: String,
    uuid: Uuid,
    slot: u8,
    /// `active`, `rebuilding`, or why it does not count: `failed`, `stale`, `truncated`, `bad-list`, or `left` if the
    /// array has no slot for it any more.
    state: &'static str,
    /// `null` if the list is damaged.
    bad_blocks: Option<protocol::BadBlocks>,
    /// Sectors of the data area, as half-open ranges; only if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    absent: Option<Vec<[u64; 2]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<Vec<[u64; 2]>>,
    epoch: u64,
    log_size: u64,
    data_offset: u64,
    data_size: u64,
}

/// Runs the command.
pub(crate) fn run(args: &ExamineArgs) -> Result<()> {
    let error = match detailed(&args.members, args.bad_blocks) {
        Ok(report) => return show(&report, args.json),
        Err(error) => error,
    };
    // The other members' records are still worth showing.
    let looks = look(&args.members, &mut Patience::endless())?;
    let (members, others): (Vec<Look>, Vec<Look>) = looks.into_iter().partition(|look| look.found.is_ok());
    let (logs, others): (Vec<Look>, Vec<Look>) = others
        .into_iter()
        .partition(|look| matches!(look.found, Err(Ignored::LogDevice { .. })) && !members.is_empty());
    if others.is_empty() || args.members.len() == 1 {
        return Err(error);
    }
    if !members.is_empty() {
        let paths: Vec<PathBuf> = members.into_iter().chain(logs).map(|look| look.path).collect();
        show(&detailed(&paths, args.bad_blocks)?, args.json)?;
    }
    let reasons: Vec<String> =
        others.into_iter().filter_map(|look| look.found.err()).map(|reason| chain(&reason.into())).collect();
    bail!("{}", reasons.join("\nuraid: "))
}

/// The report of the members at `paths`.
pub(crate) fn report(paths: &[impl AsRef<Path>]) -> Result<Report> {
    detailed(paths, false)
}

/// The report of the members at `paths`, with every range of bad blocks if they `are_listed`.
fn detailed(paths: &[impl AsRef<Path>], are_listed: bool) -> Result<Report> {
    let Named { members, logs, unreadable } = candidates(paths, Access::Inspect)?;
    if let ([], Some(log)) = (members.as_slice(), logs.first()) {
        let (path, array, name) = (log.path.display(), log.header.array, visible(&log.header.name));
        bail!(
            "{path}: is a log device of array {array} ('{name}'), and no member was named beside it: name members, too"
        );
    }
    for (path, reason) in unreadable {
        tracing::warn!("{}: {reason}", path.display());
    }
    let (mut opened, mut facts, mut candidates) = (Vec::new(), Vec::new(), Vec::new());
    for Opened { member, candidate, size, .. } in members {
        facts.push((size, badblocks::load(&member, &candidate.superblock)));
        opened.push(member);
        candidates.push(candidate);
    }
    let verdict = judge(&candidates)?;
    let (superblock, geometry) = (&verdict.superblock, &verdict.geometry);
    let level = geometry.spec().level;
    let mut members: Vec<MemberReport> =
        candidates.iter().enumerate().map(|(index, candidate)| member(&verdict, index, candidate)).collect();
    for (member, ((size, list), candidate)) in members.iter_mut().zip(facts.iter().zip(&candidates)) {
        member.set_bad_blocks(list, are_listed);
        if *size < candidate.superblock.areas.member_size {
            member.state = "truncated";
        }
    }
    let counted = members.iter().zip(facts).filter(|(member, _)| member.counts());
    let lists: Vec<(MemberIndex, BadBlocks)> =
        counted.filter_map(|(member, (_, list))| Some((MemberIndex(member.slot), list.ok()?))).collect();
    let missing = MemberSet::all(superblock.slots.len()).minus(lists.iter().map(|&(slot, _)| slot).collect());
    let (shapes, lost_members) = (superblock.shapes(), missing.union(verdict.rebuilding()));
    let held: Vec<_> = opened.iter().zip(&candidates).map(|(member, own)| (member, &own.superblock)).collect();
    let saved = lost_of_saved(superblock, &held);
    let lost = lost_of(&verdict, lost_members, &lists, saved, are_listed);
    members.sort_by_key(|member| member.slot);
    let log_devices = logs::reports(superblock, &logs)?;
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
        is_clean: superblock.is_clean,
        consistency: consistency_name(superblock.consistency),
        integrity: integrity_name(superblock.integrity),
        size: geometry.capacity().bytes().0,
        sector_size: superblock.sector_size.0,
        scrub_finished_s: superblock.scrub.finished.map(|at| at.0),
        scrub_owed: superblock.scrub.is_owed,
        blank: superblock.blank.is_some(),
        reshape: superblock.reshape.and_then(|reshape| reshape_report(superblock, &reshape)),
        tolerance: shapes.iter().map(Geometry::tolerance).min().unwrap_or_default(),
        survives: shapes.iter().map(|shape| survives(shape, lost_members)).min().unwrap_or_default(),
        member_count: geometry.members(),
        rebuilding: verdict.rebuilding().iter().map(|slot| slot.0).collect(),
        missing: missing.iter().map(|slot| slot.0).collect(),
        lost,
        members,
        log_devices,
    })
}

/// What is lost in an array of which some members are missing or incomplete, and the others have such bad blocks; with
/// every range if they `are_listed`.
fn lost_of(
    verdict: &Verdict,
    missing: MemberSet,
    lists: &[(MemberIndex, BadBlocks)],
    saved: Vec<Range<Lba>>,
    are_listed: bool,
) -> Option<LostContent> {
    let list = |slot: MemberIndex| {
        let found = lists.iter().find(|(member, _)| *member == slot);
        found.map_or_else(BadBlocks::default, |(_, list)| list.clone())
    };
    let lost = match verdict.superblock.course().zip(verdict.superblock.reshape) {
        Some((course, reshape)) => lost_between(&course, &reshape, missing, &list, saved),
        None => lost(&verdict.geometry, missing, &list),
    };
    LostContent::of(&lost, if are_listed { usize::MAX } else { RANGES_TOLD })
}

impl ReshapeReport {
    /// What a server says of the array that it serves.
    pub(crate) fn of(served: &protocol::Status) -> Option<Self> {
        let protocol::Reshape { level, layout, chunk_bytes, members, back, .. } = served.reshape.as_ref()?;
        let Sweep { done_bytes, total_bytes, .. } = served.sweep(Work::Reshape)?;
        Some(Self {
            level: level.clone(),
            layout: layout.clone(),
            chunk: *chunk_bytes,
            members: *members,
            content: *total_bytes,
            moved: if *back { total_bytes.saturating_sub(*done_bytes) } else { *done_bytes },
            back: *back,
        })
    }
}

impl fmt::Display for ReshapeReport {
    /// `being reshaped to RAID 5 of 4 members in chunks of 64 KiB: 1 GiB of 3 GiB have moved, and it goes back`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, layout, chunk, members, content, moved, back } = self;
        let (level, chunk) = (level_title(level), size(*chunk));
        write!(f, "being reshaped to {level} {layout} of {members} members in chunks of {chunk}: ")?;
        write!(f, "{} of {} have moved{}", size(*moved), size(*content), if *back { ", and it goes back" } else { "" })
    }
}

fn reshape_report(superblock: &Superblock, reshape: &Reshape) -> Option<ReshapeReport> {
    let course = reshape.course(superblock.spec).ok()?;
    let moved = reshape.mark.0.abs_diff(course.start().0) * SECTOR_BYTES;
    let Spec { level, members, chunk, .. } = reshape.to;
    Some(ReshapeReport {
        level: level_name(level).to_owned(),
        layout: layout_name(level).to_owned(),
        chunk: chunk.0,
        members,
        content: reshape.kept.bytes().0,
        moved,
        back: reshape.is_back,
    })
}

fn state(superblock: &Superblock) -> &'static str {
    match superblock.initialising {
        Some(_) => "initialising",
        None if superblock.reshape.is_some() => "reshaping",
        None if superblock.is_clean => "clean",
        None => "dirty",
    }
}

fn member(verdict: &Verdict, index: usize, candidate: &Candidate) -> MemberReport {
    let superblock = &candidate.superblock;
    let slots = &verdict.superblock.slots;
    let failed = |slot: MemberIndex| slots.get(slot.index()).is_some_and(|record| record.state == SlotState::Failed);
    let state = match superblock.slot {
        slot if verdict.slots.get(slot.index()) == Some(&Some(index)) => {
            if verdict.rebuilding().contains(slot) {
                "rebuilding"
            } else {
                "active"
            }
        }
        slot if failed(slot) => "failed",
        slot if slot.index() >= slots.len() => "left",
        _ => "stale",
    };
    MemberReport {
        path: candidate.path.display().to_string(),
        uuid: superblock.member,
        slot: superblock.slot.0,
        state,
        bad_blocks: None,
        absent: None,
        unread: None,
        epoch: superblock.epoch.0,
        log_size: superblock.areas.log.size.0,
        data_offset: superblock.areas.data.offset.0,
        data_size: verdict.geometry.spec().member_size.bytes().0,
    }
}

impl MemberReport {
    /// Takes its list of bad blocks in, with every range if they `are_listed`. A member whose list is damaged does not
    /// count.
    fn set_bad_blocks(&mut self, list: &Result<BadBlocks, Damaged>, are_listed: bool) {
        let Ok(list) = list else {
            self.state = "bad-list";
            return;
        };
        self.bad_blocks = Some(protocol::BadBlocks::of(list));
        if are_listed {
            let [absent, unread] = [Lack::Absent, Lack::Unread]
                .map(|lack| Some(list.all(lack).map(|run| [run.start.0, run.end.0]).collect()));
            (self.absent, self.unread) = (absent, unread);
        }
    }

    /// Whether it is part of the array.
    fn counts(&self) -> bool {
        ["active", "rebuilding"].contains(&self.state)
    }
}

impl Report {
    /// Whether members have bad blocks.
    fn lacks(&self) -> bool {
        self.members.iter().any(|member| member.bad_blocks.is_some_and(|bad| bad.blocks > 0))
    }

    /// The paths of the members that belong to the array, and of those that no longer do.
    pub(crate) fn paths(&self) -> (Vec<String>, Vec<String>) {
        let (own, former): (Vec<&MemberReport>, Vec<_>) = self.members.iter().partition(|member| member.counts());
        let paths =
            |members: Vec<&MemberReport>| members.into_iter().map(|member| member.path.clone()).collect::<Vec<_>>();
        (paths(own).into_iter().chain(logs::paths(&self.log_devices)).collect(), paths(former))
    }

    /// The array's condition, in a few words.
    pub(crate) fn health(&self) -> String {
        let state = match self.state {
            "initialising" => return "its creation was interrupted".to_owned(),
            "clean" => "clean",
            "reshaping" => "being reshaped",
            _ => "not stopped cleanly",
        };
        let logs = logs::health(&self.log_devices);
        match self.missing.as_slice() {
            [] if logs.is_some() => format!("{state}, {}", logs.unwrap_or_default()),
            [] if !self.rebuilding.is_empty() => {
                format!("{state}, all members found, rebuilding {}", list(&self.rebuilding))
            }
            [] if self.scrub_owed => format!("{state}, all members found, a scrub is owed"),
            [] if self.blank => format!("{state}, all members found, not initialised yet"),
            [] => format!("{state}, all members found"),
            missing => format!("{state}, {} not found", name_members(missing)),
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
    let survives = report.survives;
    let failures = if survives == 1 { "1 more failure".to_owned() } else { format!("{survives} more failures") };
    if *state == "initialising" {
        print(format_args!(
            "  its creation was interrupted, and it holds nothing yet: serve all of its members to finish it"
        ))?;
    }
    if let Some(reshape) = &report.reshape {
        print(format_args!("  {reshape}"))?;
        let next = if report.is_clean {
            "go on with `uraid reshape MEMBERS`, or back with `uraid reshape --abort MEMBERS`"
        } else {
            "it was not stopped cleanly: serve it, and it goes on, or back after `uraid reshape --abort`"
        };
        print(format_args!("  {next}"))?;
    }
    if report.blank {
        print(format_args!(
            "  new: what nobody has written yet reads as zeros, and becomes zeros on the members while it is served"
        ))?;
    }
    match missing.as_slice() {
        [] if *state == "initialising" => {}
        [] if rebuilding.is_empty() && report.lacks() => {
            print(format_args!("  members lack content: survives {failures} where all have it"))?;
        }
        [] if rebuilding.is_empty() && report.reshape.is_some() => {
            print(format_args!("  all members found: survives {failures}"))?;
        }
        [] if rebuilding.is_empty() && report.scrub_owed => {
            print(format_args!("  survives {failures} where members agree"))?;
        }
        [] if rebuilding.is_empty() => print(format_args!("  whole: survives {failures}"))?,
        [] => print(format_args!("  degraded: rebuilding slots {}, survives {failures}", list(rebuilding)))?,
        missing => print(format_args!("  missing here: slots {}", list(missing)))?,
    }
    if let Some(what) = logs::health(&report.log_devices) {
        print(format_args!("  {what}"))?;
    }
    if let Some(lost) = &report.lost {
        show_lost(lost, missing)?;
    }
    if report.scrub_owed {
        print(format_args!("  {SCRUB_OWED}"))?;
    }
    match (report.scrub_finished_s, now()) {
        (Some(finished), Ok(now)) => {
            print(format_args!("  scrubbed {} ago", duration(now.0.saturating_sub(finished))))?;
        }
        _ => print(format_args!("  never scrubbed"))?,
    }
    for member in members {
        let MemberReport { path, uuid, slot, state, bad_blocks, absent, unread, data_offset, data_size, .. } = member;
        print(format_args!("  {slot:>2}  {state:<10} {uuid}  data {data_offset}+{data_size}  {path}"))?;
        match bad_blocks.map(counted) {
            None => print(format_args!("      its list of bad blocks is damaged: the array is served without it"))?,
            Some(Some(blocks)) => print(format_args!("      {blocks}"))?,
            Some(None) => {}
        }
        for (lack, runs) in [("absent", absent), ("unread", unread)] {
            for [start, end] in runs.iter().flatten() {
                print(format_args!("      {lack}  sectors {start} to {end} of its data"))?;
            }
        }
    }
    logs::show(&report.log_devices)
}

/// Prints what is lost without these members: in one line, or with each range on its own if all are listed and do not
/// fit.
fn show_lost(lost: &LostContent, missing: &[u8]) -> Result<()> {
    let without = match missing {
        [] => String::new(),
        slots => format!(" without {}", name_members(slots)),
    };
    let what = format!("{} of the array are lost{without}", size(lost.bytes));
    if lost.blocks.len() <= RANGES_TOLD {
        return print(format_args!("  {what}, {}", ranges(lost)));
    }
    print(format_args!("  {what}:"))?;
    for [start, end] in lost.blocks.iter().map(|range| range.map(|sector| sector * SECTOR_BYTES)) {
        print(format_args!("    bytes {start} to {end}"))?;
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
