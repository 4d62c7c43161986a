//! `uraid convert`: makes an array of uraid of one of Linux md, in place, and takes that back.

mod agreement;
mod shape;
mod undo;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use uraid_io::array::{Adoptable, Adoption, Place, give_back};
use uraid_io::format::UnixSeconds;
use uraid_io::format::superblock::Consistency;
use uraid_layout::{Bytes, Geometry, SECTOR_BYTES};
use uraid_md::{Assembly, FileSource, Found, Options, Source, Standing, assemble, scan};
use uraid_serve::text::{quoted, size, visible};
use uuid::Uuid;

use crate::md::{name, said};
use crate::misuse::Misuse;
use crate::terminal::{print, print_json};

/// Arguments of `uraid convert`.
#[derive(Debug, Args)]
#[command(after_help = "The content stays where it is: only what is before it is written, and behind it if there
is room. Stop the array in Linux first (mdadm --stop), and have a backup.

Examples:
  uraid convert --from-md --rehearse /dev/sd[b-e]
  uraid convert --from-md --undo-file /root/vault.undo /dev/sd[b-e]
  uraid convert --undo /root/vault.undo                until something is written to the array")]
pub(crate) struct ConvertArgs {
    /// Convert an array of Linux md: RAID 0, 1, 5, 6 or 10, clean and with all of its members
    #[arg(long, required_unless_present = "undo", conflicts_with = "undo")]
    from_md: bool,
    /// Write nothing: check whether it can be converted, and whether parity and copies agree everywhere
    #[arg(long, requires = "from_md", conflicts_with_all = ["undo_file", "undo"])]
    rehearse: bool,
    /// Where to keep what is overwritten: a new file, not on this array
    #[arg(long, value_name = "FILE", required_unless_present_any = ["rehearse", "undo"], conflicts_with = "undo")]
    undo_file: Option<PathBuf>,
    /// Give the members back to Linux md, with the file that was named with --undo-file
    #[arg(long, value_name = "FILE")]
    undo: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// All members, in any order; for --undo only where they are not found where they were
    #[arg(value_name = "MEMBER", required_unless_present = "undo")]
    members: Vec<PathBuf>,
}

/// What is made, or would be. Sizes are in bytes.
#[derive(Serialize)]
struct Report {
    uuid: String,
    name: String,
    level: String,
    chunk: u64,
    size: u64,
    /// By slots.
    members: Vec<String>,
    consistency: &'static str,
    /// Whether members were written.
    is_done: bool,
    /// Parity stripes that were read to see whether they agree; `null` where nothing was read.
    stripes: Option<u64>,
    disagreeing: Option<u64>,
}

/// An array of Linux md that can be converted.
struct Convertible {
    geometry: Geometry,
    adoption: Adoption,
    /// By slots.
    members: Vec<Found>,
}

/// Runs the command.
pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    if let Some(file) = &args.undo {
        return take_back(file, args);
    }
    let Convertible { geometry, adoption, members } = find(&args.members)?;
    let found = Adoptable::find(&adoption)?;
    let own = found.superblock();
    let mut report = Report {
        uuid: own.array.to_string(),
        name: own.name.clone(),
        level: adoption.spec.level.to_string(),
        chunk: adoption.spec.chunk.0,
        size: geometry.capacity().bytes().0,
        members: adoption.members.iter().map(|place| place.path.display().to_string()).collect(),
        consistency: match own.consistency {
            Consistency::Log => "log",
            Consistency::Bitmap => "bitmap",
            Consistency::None => "none",
        },
        is_done: false,
        stripes: None,
        disagreeing: None,
    };
    match &args.undo_file {
        None => {
            let agreement = agreement::read(&geometry, &members)?;
            (report.stripes, report.disagreeing) = (Some(agreement.stripes), Some(agreement.disagreeing));
        }
        Some(file) => {
            undo::keep(file, &found.formers()?)?;
            found.adopt().with_context(|| format!("take it back with: {}", take_back_command(file)))?;
            report.is_done = true;
        }
    }
    if args.json {
        return print_json(&report);
    }
    print(format_args!("{report}"))?;
    match &args.undo_file {
        None => print(format_args!("nothing was written")),
        Some(file) => {
            let members: Vec<String> = report.members.iter().map(|member| quoted(member)).collect();
            print(format_args!("converted; serve it with"))?;
            print(format_args!("  uraid serve {}", members.join(" ")))?;
            print(format_args!("or give it back to Linux md, as long as nothing was written to it, with"))?;
            print(format_args!("  {}", take_back_command(file)))
        }
    }
}

fn take_back_command(file: &Path) -> String {
    format!("uraid convert --undo {}", quoted(&file.display().to_string()))
}

fn take_back(file: &Path, args: &ConvertArgs) -> Result<()> {
    let formers = undo::read(file)?;
    let paths: Vec<PathBuf> = match args.members.as_slice() {
        [] => formers.iter().map(|former| former.path.clone()).collect(),
        named => named.to_vec(),
    };
    give_back(&paths, &formers)?;
    print(format_args!("Linux md has its {} members back", formers.len()))
}

/// The array whose members these are.
fn find(paths: &[PathBuf]) -> Result<Convertible> {
    let mut found: Vec<Found> = Vec::new();
    for path in paths {
        let label = path.display().to_string();
        let source: Arc<dyn Source> = Arc::new(FileSource::open(path).with_context(|| visible(&label))?);
        let scanned = scan(&label, &source);
        if let Some(trouble) = scanned.troubles.first() {
            bail!("{}", said(trouble));
        }
        match scanned.found.as_slice() {
            [] => bail!("{}: is no member of Linux md", visible(&label)),
            [member] if member.label == label => {}
            [..] => bail!(
                "{}: its members are in partitions: name these (losetup --partscan makes devices of those of an image)",
                visible(&label)
            ),
        }
        found.extend(scanned.found);
    }
    let mut arrays = assemble(found.clone(), &Options::default());
    let Some(assembly) = arrays.pop().filter(|_| arrays.is_empty()) else {
        bail!(Misuse("these are members of several arrays: name those of one".into()));
    };
    let members = seats(&assembly, found)?;
    let geometry = shape::of(&assembly, &members)?;
    let Assembly { superblock, .. } = &assembly;
    let by_label: BTreeMap<String, &PathBuf> = paths.iter().map(|path| (path.display().to_string(), path)).collect();
    let places = members.iter().map(|member| Place {
        path: by_label[&member.label].clone(),
        data: Bytes(member.superblock.data_offset.0.saturating_mul(SECTOR_BYTES)),
    });
    let adoption = Adoption {
        array: Uuid::from_bytes(superblock.array.0),
        name: name(superblock),
        created: UnixSeconds(superblock.created),
        spec: *geometry.spec(),
        members: places.collect(),
    };
    Ok(Convertible { geometry, adoption, members })
}

/// The members by slots. All have to be there, and to have all of their content.
fn seats(assembly: &Assembly, found: Vec<Found>) -> Result<Vec<Found>> {
    let Assembly { superblock, members, missing, array } = assembly;
    if let Err(error) = array {
        bail!("the array can't be converted: {error}");
    }
    for member in members {
        let label = visible(&member.label);
        let is_active = matches!(member.standing, Standing::Active { .. });
        ensure!(is_active, "{label}: {}: name members that have all of the content", member.standing);
        ensure!(member.bad_blocks == 0, "{label}: has bad blocks on record: replace it in Linux first");
    }
    ensure!(missing.is_empty(), "the array is degraded: let Linux make it whole first, or name all of its members");
    ensure!(
        superblock.resynced.is_none(),
        "the array was not stopped cleanly: start it once in Linux, and stop it when parity and copies agree"
    );
    let mut seats: Vec<Option<Found>> = vec![None; superblock.raid_disks.into()];
    for (member, judged) in found.into_iter().zip(members) {
        if let Standing::Active { slot } = judged.standing
            && let Some(seat) = seats.get_mut(usize::from(slot))
        {
            *seat = Some(member);
        }
    }
    seats.into_iter().collect::<Option<_>>().context("the array is degraded")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, level, chunk, members, .. } = self;
        let count = members.len();
        writeln!(
            f,
            "{}: {level} of {count} members in chunks of {}, {}",
            visible(name),
            size(*chunk),
            size(self.size)
        )?;
        for (slot, member) in members.iter().enumerate() {
            writeln!(f, "  {slot:3}  {}", visible(member))?;
        }
        write!(f, "  writes are protected by: {}", self.consistency)?;
        match (self.stripes, self.disagreeing) {
            (Some(stripes), Some(0)) => write!(f, "\n  parity and copies agree in all of {stripes} stripes"),
            (Some(stripes), Some(wrong)) => write!(
                f,
                "\n  parity or copies do NOT agree in {wrong} of {stripes} stripes: have Linux repair them first (echo \
                 repair > sync_action), or know that what a lost member had there would come back wrong"
            ),
            _ => Ok(()),
        }
    }
}
