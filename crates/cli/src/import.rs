//! `uraid import`: shows arrays of Linux md.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use uraid_layout::Sectors;
use uraid_md::superblock::{Level, layout_words};
use uraid_md::{Array, Assembly, FileSource, Judged, Options, Standing};
use uraid_serve::text::{size, visible};

use crate::md::{Gathered, gather, health, name, said};
use crate::terminal::{print, print_json};

/// Arguments of `uraid import`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid import /srv/images/*.img
  uraid import --json /dev/sd? | jq -r '.arrays[].uuid'
  uraid serve --md --run 'nbdcopy \"$uri\" rescued.img' disk0.img disk1.img

Nothing is written. The paths may be whole disks: GPT and MBR partitions are looked at, too.")]
pub(crate) struct ImportArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Images, devices and whole disks, of any arrays
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// What was found, for programs.
#[derive(Serialize)]
struct Report {
    arrays: Vec<ArrayReport>,
    /// What looks like a member and can't be used.
    troubles: Vec<TroubleReport>,
}

#[derive(Serialize)]
struct TroubleReport {
    path: String,
    reason: String,
}

#[derive(Serialize)]
struct ArrayReport {
    uuid: String,
    /// As it is on record: with the host that made it.
    name: String,
    /// The version of the superblocks.
    metadata: String,
    /// `linear`, `raid0`...
    level: String,
    /// In mdadm's words; `null` if the level has no layouts.
    layout: Option<String>,
    chunk_bytes: u64,
    /// `null` if it can't be read.
    size_bytes: Option<u64>,
    /// How many members a whole array has.
    member_count: u16,
    /// Slots without a member that has all of its content.
    missing: Vec<u16>,
    events: u64,
    is_clean: bool,
    has_bitmap: bool,
    has_ppl: bool,
    /// Why it can't be read; `null` if it can be.
    error: Option<String>,
    members: Vec<MemberReport>,
}

#[derive(Serialize)]
struct MemberReport {
    path: String,
    /// `null` if it is left out.
    slot: Option<u16>,
    events: u64,
    bad_blocks: usize,
    /// In words.
    state: String,
}

/// Runs the command.
pub(crate) fn run(args: &ImportArgs) -> Result<()> {
    let Gathered { arrays, troubles } = gather(&args.paths, FileSource::open, &Options::default())?;
    if args.json {
        let report = |trouble: &uraid_md::Trouble| TroubleReport {
            path: trouble.label.clone(),
            reason: trouble.reason.to_string(),
        };
        let troubles = troubles.iter().map(report).collect();
        return print_json(&Report { arrays: arrays.iter().map(report_of).collect(), troubles });
    }
    arrays.iter().try_for_each(show)?;
    troubles.iter().try_for_each(|trouble| print(format_args!("{}", said(trouble))))
}

fn report_of(assembly: &Assembly) -> ArrayReport {
    let Assembly { superblock, members, missing, array } = assembly;
    ArrayReport {
        uuid: superblock.array.to_string(),
        name: superblock.name.clone(),
        metadata: superblock.version.to_string(),
        level: level_name(superblock.level),
        layout: layout_words(superblock.level, superblock.layout),
        chunk_bytes: superblock.chunk.bytes().0,
        size_bytes: array.as_ref().ok().map(|array| array.capacity().0),
        member_count: superblock.raid_disks,
        missing: missing.clone(),
        events: superblock.events,
        is_clean: superblock.resynced.is_none(),
        has_bitmap: superblock.has_bitmap,
        has_ppl: superblock.has_ppl,
        error: array.as_ref().err().map(ToString::to_string),
        members: members.iter().map(member_report).collect(),
    }
}

fn member_report(member: &Judged) -> MemberReport {
    let Judged { label, events, bad_blocks, standing } = member;
    let slot = slot_of(standing);
    MemberReport { path: label.clone(), slot, events: *events, bad_blocks: *bad_blocks, state: standing.to_string() }
}

fn slot_of(standing: &Standing) -> Option<u16> {
    match standing {
        Standing::Active { slot } | Standing::Recovering { slot, .. } => Some(*slot),
        Standing::LeftOut(_) => None,
    }
}

/// The level as mdadm's options have it.
fn level_name(level: Level) -> String {
    level.to_string().replace("RAID ", "raid").replace(' ', "-")
}

/// Prints an array for people.
fn show(assembly: &Assembly) -> Result<()> {
    let Assembly { superblock, members, array, .. } = assembly;
    let mut words = vec![format!("{} of {} members", superblock.level, superblock.raid_disks)];
    words.extend(layout_words(superblock.level, superblock.layout));
    let chunk = superblock.chunk;
    words.extend((chunk > Sectors(0)).then(|| format!("in chunks of {}", size(chunk.bytes().0))));
    words.extend(array.as_ref().map(Array::capacity).map(|capacity| size(capacity.0)).ok());
    print(format_args!("{}: {}", name(superblock), words.join(", ")))?;
    print(format_args!("  {}", health(assembly)))?;
    let mut notes = format!("superblock {}, {} events", superblock.version, superblock.events);
    for (is_there, note) in
        [(superblock.has_bitmap, ", write-intent bitmap"), (superblock.has_ppl, ", log of partial parity (PPL)")]
    {
        notes += if is_there { note } else { "" };
    }
    print(format_args!("  uuid {}, {notes}", superblock.array))?;
    members.iter().try_for_each(show_member)
}

fn show_member(member: &Judged) -> Result<()> {
    let Judged { label, bad_blocks, standing, .. } = member;
    let slot = slot_of(standing).map_or_else(|| "-".to_owned(), |slot| slot.to_string());
    let bad = match bad_blocks {
        0 => String::new(),
        1 => ", 1 range of bad blocks".to_owned(),
        ranges => format!(", {ranges} ranges of bad blocks"),
    };
    print(format_args!("  {slot:>3}  {}: {standing}{bad}", visible(label)))
}
