//! `uraid layout`: draws a level's placement, in the style of the papers.

mod svg;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use uraid_layout::draw::{Picture, draw};
use uraid_layout::field::Factor;
use uraid_layout::stripe::Role;
use uraid_layout::{Bytes, Geometry, Level, Spec, StripeId};
use uraid_serve::names;

use crate::level::{LevelName, MEMBERS_MAX, PlacementArgs};
use crate::misuse::Misuse;
use crate::output;
use crate::terminal::{print, print_json};

/// Arguments of `uraid layout`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid layout --level 5 --members 5
  uraid layout --level rm2 --members 7 --rm2-m 3 --svg rm2.svg")]
pub(crate) struct LayoutArgs {
    /// RAID level
    #[arg(long, value_enum)]
    level: LevelName,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Number of members
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=MEMBERS_MAX), value_name = "N")]
    members: u8,
    /// Number of stripes to draw [default: until the placement repeats]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    stripes: Option<u16>,
    /// Write the picture as SVG; -: to standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parity groups as equations over cells (row, member).
#[derive(Debug, Serialize)]
struct Drawing {
    level: &'static str,
    layout: &'static str,
    members: usize,
    tolerance: usize,
    stripes: Vec<Stripe>,
}

#[derive(Debug, Serialize)]
struct Stripe {
    stripe: u64,
    data: Vec<Cell>,
    groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
struct Cell {
    member: u8,
    row: usize,
}

#[derive(Debug, Serialize)]
struct Group {
    parity: Cell,
    data: Vec<usize>,
    /// What each data unit is multiplied by in GF(2^8); only where that is not 1 for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    factors: Option<Vec<u8>>,
}

/// Runs the command.
pub(crate) fn run(args: &LayoutArgs) -> Result<()> {
    let level = args.placement.level(args.level, args.members)?;
    let stripes = args.stripes.unwrap_or_else(|| period(level, args.members));
    let geometry = drawn(level, args.members, args.placement.chunk, stripes)?;
    if args.json {
        return print_json(&drawing(&geometry));
    }
    let stripes = usize::try_from(geometry.stripes().0).unwrap_or(usize::MAX);
    let legend = Picture::new(&geometry, stripes).legend();
    if let Some(path) = &args.svg {
        let title = format!(
            "{} {}, {} members: a column for each member, a line for each of its chunks",
            names::level_title(names::level_name(level)),
            names::layout_name(level),
            args.members
        );
        return write(path, &svg::svg(&Picture::new(&geometry, stripes), &title, &legend));
    }
    print(format_args!("{}", draw(&geometry, stripes).trim_end()))?;
    print(format_args!("\na column for each member, a line for each of its chunks:"))?;
    let width = legend.iter().map(|(sign, _)| sign.len()).max().unwrap_or(0);
    legend.iter().try_for_each(|(sign, meaning)| print(format_args!("  {sign:<width$}  {meaning}")))
}

/// Writes a document to a file, or to standard output for `-`.
fn write(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(format_args!("{}", text.trim_end()));
    }
    output::save(path, text, "<svg")
}

/// The geometry that `uraid layout` draws: `stripes` of the level's own parity stripes.
fn drawn(level: Level, members: u8, chunk: Bytes, stripes: u16) -> Result<Geometry> {
    ensure!(stripes > 0, Misuse("there is nothing to draw in 0 stripes".into()));
    let height = if let Level::Rm2 { height, .. } = level { height } else { 1 };
    let member_size =
        chunk.0.checked_mul(u64::from(stripes) * u64::from(height)).map(|bytes| Bytes(bytes).whole_sectors());
    let member_size = member_size.context("the chunk is too large; it can be up to 1M")?;
    Ok(Geometry::new(Spec { level, members, chunk, member_size })?)
}

/// Stripes until the placement repeats; for RAID 0 and 1, where all stripes are alike, two.
pub(crate) fn period(level: Level, members: u8) -> u16 {
    let members = u16::from(members);
    match level {
        Level::Raid0 | Level::Raid1 => 2,
        Level::Raid5 { .. } | Level::Raid6 { .. } => members,
        Level::Raid10 { copies } => u16::from(copies),
        Level::Rm2 { .. } => 1,
    }
}

fn drawing(geometry: &Geometry) -> Drawing {
    let place = |cell| Cell { member: geometry.member(cell).0, row: geometry.row(cell) };
    let stripe = |id: u64| {
        let map = geometry.map(StripeId(id));
        let unit = |&cell: &_| match map.role(cell) {
            Role::Data(unit) => Some(usize::from(unit.0)),
            Role::Parity(_) => None,
        };
        let groups = map.groups().iter();
        Stripe {
            stripe: id,
            data: map.data().iter().map(|&cell| place(cell)).collect(),
            groups: groups
                .map(|group| Group {
                    parity: place(group.parity),
                    data: group.data.iter().filter_map(unit).collect(),
                    factors: (!group.is_xor()).then(|| group.data_terms().map(|(_, Factor(factor))| factor).collect()),
                })
                .collect(),
        }
    };
    Drawing {
        level: names::level_name(geometry.spec().level),
        layout: names::layout_name(geometry.spec().level),
        members: geometry.members(),
        tolerance: geometry.tolerance(),
        stripes: (0..geometry.stripes().0).map(stripe).collect(),
    }
}
