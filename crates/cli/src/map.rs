//! `uraid map`: where a block and its parity are stored, and the operations to read and write it.

mod placed;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use uraid_io::format::badblocks::Lack;
use uraid_io::lost;
use uraid_layout::field::Factor;
use uraid_layout::geometry::Location;
use uraid_layout::plan::{Buffer, DiskIo, Extent, Method, Operand, Plan, PlanError, Planner, Slice, View};
use uraid_layout::repair::Repair;
use uraid_layout::stripe::Role;
use uraid_layout::{Cell, DiskSector, Geometry, Lba, MemberIndex, MemberSet, SECTOR_BYTES, Sectors};
use uraid_serve::text::name_members;

use crate::reshape::Shape;
use crate::terminal::{print, print_json};
use crate::values::members;
use placed::{Between, DescribedArgs, Placed};

/// Arguments of `uraid map`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid map --lba 2048 a.img b.img c.img
  uraid map --lba 0 --level rm2 --members 7 --rm2-m 3 --failed 1,3")]
pub(crate) struct MapArgs {
    /// Block: a 512-byte sector of the array
    #[arg(long, value_parser = lba, value_name = "N")]
    lba: Lba,
    /// Assume that these members are missing, such as 1,3
    #[arg(long, value_parser = members, default_value = "", hide_default_value = true, value_name = "SLOTS")]
    failed: MemberSet,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    described: DescribedArgs,
    /// Members of an array; or use --level and --members instead
    #[arg(value_name = "MEMBER", conflicts_with_all = ["level", "member_count"])]
    members: Vec<PathBuf>,
}

/// The answer. Sectors have 512 bytes.
#[derive(Debug, Serialize)]
struct Mapping {
    lba: u64,
    /// The parity stripe, the data unit within it and the sector within the chunk.
    stripe: u64,
    unit: u16,
    offset: u64,
    #[serde(flatten)]
    at: Sector,
    /// For mirrors, the other copies.
    parity: Vec<Sector>,
    failed: Vec<u8>,
    /// No member has it, because of bad blocks.
    lost: bool,
    /// The blank blocks around it, half-open: it reads as zeros, and the first write of it makes zeros of its region.
    blank: Option<[u64; 2]>,
    /// Set while the array is being reshaped: everything else here is of the shape that has the block.
    reshape: Option<Sides>,
    /// What bad blocks make impossible is `null`.
    read: Option<Operations>,
    write: Option<Operations>,
}

/// The two shapes of an array that is being reshaped.
#[derive(Debug, Serialize)]
struct Sides {
    /// The first block that is not in the shape `below`.
    mark: u64,
    below: Shape,
    above: Shape,
    /// Which of them has the block.
    side: &'static str,
    /// It goes back to the shape that the array had.
    back: bool,
    /// Somebody uses the members, so the mark may be elsewhere by now.
    in_use: bool,
}

/// A sector of a member, counted from the start of the member file.
#[derive(Debug, Serialize)]
struct Sector {
    member: u8,
    path: Option<String>,
    sector: u64,
    /// Why the member does not have its content: `absent` or `unread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    lacks: Option<&'static str>,
}

/// The operations of a plan, in order: reads, XORs, writes.
#[derive(Debug, Serialize)]
struct Operations {
    /// For writes: how parity is updated.
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'static str>,
    reads: Vec<Operation>,
    xors: Vec<Sum>,
    writes: Vec<Operation>,
}

/// One disk operation.
#[derive(Debug, Serialize)]
struct Operation {
    #[serde(flatten)]
    at: Sector,
    sectors: u64,
    /// Source or destination of the data.
    buffers: Vec<String>,
}

/// One XOR.
#[derive(Debug, Serialize)]
struct Sum {
    target: String,
    operands: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &MapArgs) -> Result<()> {
    let placed = placed::placed(&args.members, &args.described, args.lba)?;
    let capacity = placed.capacity();
    ensure!(args.lba < Lba(capacity.0), "block {} is beyond the array, which has {capacity} sectors", args.lba);
    let stranger = args.failed.minus(MemberSet::all(placed.members.len())).iter().next();
    ensure!(stranger.is_none(), "the array has no member {}", stranger.unwrap_or_default());
    // Of two shapes only one has the block, and may do without some members.
    let failed = args.failed.union(placed.missing);
    let failed = failed.minus(failed.minus(placed.geometry.all_members()));
    let mapping = mapping(&placed, args.lba, failed)?;
    if args.json { print_json(&mapping) } else { show(&placed, &mapping) }
}

fn mapping(placed: &Placed, lba: Lba, failed: MemberSet) -> Result<Mapping> {
    let geometry = &placed.geometry;
    let repair = Repair::new(geometry, failed).context("the array does not survive this")?;
    let (stripe, unit, offset) = geometry.split(lba);
    let blank = placed.blank(lba);
    let lacking = placed.lacking(stripe, offset);
    let repair = repair.beside(geometry, stripe, lacking.iter().copied());
    let view = View { missing: failed, ..View::new(geometry, &repair) };
    let (mut planner, mut plan) = (Planner::new(), Plan::default());
    let extents = [Extent::request(lba, Sectors(1))];
    let read = match blank {
        Some(_) => Some(operations(placed, &Plan::default(), None)),
        None => possible(planner.read(&mut plan, &view, &extents))?.map(|()| operations(placed, &plan, None)),
    };
    // A write that can't keep parity in agreement does without what of it is lost for good.
    let map = geometry.map(stripe);
    let is_lost = |&cell: &Cell| matches!(map.role(cell), Role::Parity(_)) && !repair.has(geometry, stripe, cell);
    let left_out: Vec<Cell> = lacking.into_iter().filter(is_lost).collect();
    let mut method = possible(planner.write(&mut plan, &view, &extents))?;
    if method.is_none() {
        method = possible(planner.write(&mut plan, &View { left_out: &left_out, ..view }, &extents))?;
    }
    let write = method.map(|method| operations(placed, &plan, Some(method)));
    Ok(Mapping {
        lba: lba.0,
        stripe: stripe.0,
        unit: unit.0,
        offset: offset.0,
        at: sector(placed, geometry.locate(lba)),
        parity: geometry.parity_of(lba).map(|at| sector(placed, at)).collect(),
        failed: failed.iter().map(|member| member.0).collect(),
        lost: is_lost_to(placed, lba, failed),
        blank: blank.map(|blank| [blank.start.0, blank.end.0]),
        reshape: placed.between.as_ref().map(|between| sides(between, lba)),
        read,
        write,
    })
}

fn sides(between: &Between, lba: Lba) -> Sides {
    let Between { course, mark, is_back, is_in_use, .. } = between;
    Sides {
        mark: mark.0,
        below: Shape::of(course.below().spec()),
        above: Shape::of(course.above().spec()),
        side: if between.is_below(lba) { "below" } else { "above" },
        back: *is_back,
        in_use: *is_in_use,
    }
}

/// A plan's result; none where what it needs can't be read.
fn possible<T>(planned: Result<T, PlanError>) -> Result<Option<T>, PlanError> {
    match planned {
        Ok(plan) => Ok(Some(plan)),
        Err(PlanError::Unreadable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_lost_to(placed: &Placed, lba: Lba, failed: MemberSet) -> bool {
    let list = |member: MemberIndex| placed.members[member.index()].bad_blocks.clone();
    lost(&placed.geometry, failed, &list).iter().any(|range| range.contains(&lba))
}

fn sector(placed: &Placed, at: Location) -> Sector {
    let member = &placed.members[at.member.index()];
    let sector = member.data_offset.0 / SECTOR_BYTES + at.sector.0;
    let path = member.path.as_ref().map(|path| path.display().to_string());
    let here = at.sector..DiskSector(at.sector.0 + 1);
    let is_bad = |lack| member.bad_blocks.within(here.clone(), lack).next().is_some();
    let lacks = [(Lack::Absent, "absent"), (Lack::Unread, "unread")].into_iter().find(|&(lack, _)| is_bad(lack));
    Sector { member: at.member.0, path, sector, lacks: lacks.map(|(_, name)| name) }
}

fn operations(placed: &Placed, plan: &Plan, method: Option<Method>) -> Operations {
    let operation = |io: &DiskIo| Operation {
        at: sector(placed, Location { member: io.member, sector: io.sector }),
        sectors: io.len.0,
        buffers: plan.slices(io).iter().map(buffer).collect(),
    };
    let method = method.map(|method| match method {
        Method::Full => "full",
        Method::Reconstruct => "reconstruct",
        Method::ReadModifyWrite => "read-modify-write",
    });
    let sum = |xor| {
        let operands: Vec<String> = plan.operands(xor).iter().map(operand).collect();
        Sum { target: buffer(&xor.target), operands }
    };
    Operations {
        method,
        reads: plan.reads().iter().map(operation).collect(),
        xors: plan.xors().iter().map(sum).collect(),
        writes: plan.writes().iter().map(operation).collect(),
    }
}

/// A factor other than 1 is of GF(2^8), in hexadecimal as in its literature.
fn operand(operand: &Operand) -> String {
    let content = buffer(&operand.content);
    match operand.factor {
        Factor::ONE => content,
        Factor(factor) => format!("{factor:#04x} * {content}"),
    }
}

fn buffer(slice: &Slice) -> String {
    let name = match slice.buffer {
        Buffer::Request => "request",
        Buffer::Scratch => "scratch",
        Buffer::Cache => "cache",
        Buffer::Zeroes => return "zeros".into(),
    };
    format!("{name}[{}..{}]", slice.start, slice.start.0 + slice.len.0)
}

fn show(placed: &Placed, mapping: &Mapping) -> Result<()> {
    let Mapping { lba, stripe, unit, offset, at, parity, failed, lost, blank, reshape, read, write } = mapping;
    let role = if is_mirrored(&placed.geometry, Lba(*lba)) { "copy" } else { "parity" };
    print(format_args!("block {lba}: {}", place(at)))?;
    for at in parity {
        print(format_args!("  {role}: {}", place(at)))?;
    }
    print(format_args!("  parity stripe {stripe}, unit {unit}, sector {offset} of its chunk"))?;
    if let Some(sides) = reshape {
        show_sides(sides)?;
    }
    if let Some([start, end]) = blank {
        print(format_args!(
            "  blank, as are blocks {start} to {end}: nobody has written there, and it reads as zeros"
        ))?;
    }
    match at.lacks {
        _ if *lost => print(format_args!("  it is lost: reads of it fail until it is written again"))?,
        Some(_) => print(format_args!("  its member lacks it, and the other members make up for it"))?,
        None => {}
    }
    let state = match failed.as_slice() {
        [] => String::new(),
        failed => format!(" without {}", name_members(failed)),
    };
    match read {
        Some(read) => {
            print(format_args!("reading it{state}: {}", count(read)))?;
            steps(read)?;
        }
        None => print(format_args!("reading it{state}: an I/O error"))?,
    }
    // What is written first is the region's affair, whoever writes to it.
    let first = if blank.is_some() { ", after its region was made zeros" } else { "" };
    match write {
        Some(write) => {
            let method = write.method.unwrap_or_default();
            print(format_args!("writing it{state}{first}: {} ({method})", count(write)))?;
            steps(write)
        }
        None => print(format_args!("writing it{state}: an I/O error, unless all of its parity stripe is written")),
    }
}

/// Says which shape a block is in, and where that ends.
fn show_sides(Sides { mark, below, above, side, back, in_use }: &Sides) -> Result<()> {
    let way = if *back { "reshaped, and goes back" } else { "reshaped" };
    print(format_args!("  {side} the mark of an array that is being {way}: the mark is at block {mark}"))?;
    print(format_args!("    blocks below it are in {below}"))?;
    print(format_args!("    the others are in {above}"))?;
    if *in_use {
        print(format_args!("    it moves while the array is in use, so ask again before you rely on this"))?;
    }
    Ok(())
}

fn is_mirrored(geometry: &Geometry, lba: Lba) -> bool {
    let (stripe, unit, _) = geometry.split(lba);
    let map = geometry.map(stripe);
    debug_assert_eq!(map.role(map.cell(unit)), Role::Data(unit));
    map.groups_of(unit).iter().any(|&group| map.group(group).is_mirror())
}

fn count(operations: &Operations) -> String {
    let plural = |count: usize, noun| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    format!("{}, {}", plural(operations.reads.len(), "read"), plural(operations.writes.len(), "write"))
}

fn steps(operations: &Operations) -> Result<()> {
    for Operation { at, buffers, .. } in &operations.reads {
        print(format_args!("  read   {} -> {}", place(at), buffers.join(" + ")))?;
    }
    for Sum { target, operands } in &operations.xors {
        print(format_args!("  xor    {} -> {target}", operands.join(" ^ ")))?;
    }
    for Operation { at, buffers, .. } in &operations.writes {
        print(format_args!("  write  {} -> {}", buffers.join(" + "), place(at)))?;
    }
    Ok(())
}

fn place(at: &Sector) -> String {
    let path = at.path.as_ref().map(|path| format!(" ({path})")).unwrap_or_default();
    let lacks = at.lacks.map(|lacks| format!(" ({lacks})")).unwrap_or_default();
    format!("member {}{path} sector {}{lacks}", at.member, at.sector)
}

fn lba(text: &str) -> Result<Lba, String> {
    text.parse().map(Lba).map_err(|_| format!("'{text}' is not a sector number"))
}

#[cfg(test)]
mod tests {
    use uraid_io::format::badblocks::BadBlocks;
    use uraid_layout::{Bytes, Level, Rotation, Spec};

    use super::*;
    use crate::map::placed::PlacedMember;

    /// A RAID 5 of three, left-symmetric: the first parity stripe has units on members 0 and 1, and parity on member 2.
    fn placed(absent: &[usize]) -> Placed {
        let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let spec = Spec { level, members: 3, chunk: Bytes(4096), member_size: Sectors(1 << 10) };
        let mut members = vec![PlacedMember::default(); 3];
        for &member in absent {
            let mut list = BadBlocks::default();
            list.add(DiskSector(0)..DiskSector(8), Lack::Absent).unwrap();
            members[member].bad_blocks = list;
        }
        Placed { geometry: Geometry::new(spec).unwrap(), members, missing: MemberSet::EMPTY, made: None, between: None }
    }

    fn members(operations: &[Operation]) -> Vec<u8> {
        operations.iter().map(|operation| operation.at.member).collect()
    }

    #[test]
    fn what_a_member_lacks_is_read_of_the_others() {
        let map = |absent: &[usize]| mapping(&placed(absent), Lba(0), MemberSet::EMPTY).unwrap();
        assert_eq!(members(&map(&[]).read.unwrap().reads), [0]);
        let made_up_for = map(&[0]);
        assert_eq!((members(&made_up_for.read.unwrap().reads), made_up_for.lost), (vec![1, 2], false));
        // Its old content is not what a write needs then.
        let write = made_up_for.write.unwrap();
        assert_eq!((members(&write.reads), members(&write.writes)), (vec![1], vec![0, 2]));
    }

    #[test]
    fn what_nobody_has_is_not_read_and_its_parity_not_needed() {
        let map = |absent: &[usize]| mapping(&placed(absent), Lba(0), MemberSet::EMPTY).unwrap();
        let lost = map(&[0, 2]);
        assert!(lost.read.is_none() && lost.lost);
        assert_eq!(members(&lost.write.unwrap().writes), [0, 2], "the other unit is there");
        // With both units lost, parity is nothing that a write could keep.
        let both = map(&[0, 1, 2]);
        assert_eq!((both.read.is_none(), members(&both.write.unwrap().writes)), (true, vec![0]));
    }
}
