//! `uraid wipe`: makes members forget their array.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;
use uraid_io::Error;
use uraid_io::format::superblock::SuperblockError;
use uraid_io::member::{Access, FileId, Member};
use uraid_io::{log_device, superblock};
use uraid_serve::text::visible;
use uuid::Uuid;

use crate::terminal::{patiently, print};

/// Arguments of `uraid wipe`.
#[derive(Debug, Args)]
#[command(after_help = "Without --force it shows what the members belong to, and changes nothing.

Example:
  uraid wipe --force /dev/sdf")]
pub(crate) struct WipeArgs {
    /// Wipe: the array can't use these members any more
    #[arg(long)]
    force: bool,
    /// Members and log devices that no server uses
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// Whether two paths lead to the same file. Opening it twice would conflict with its own lock.
fn same_file(one: &Path, other: &Path) -> bool {
    one == other || matches!((FileId::of(one), FileId::of(other)), (Ok(one), Ok(other)) if one == other)
}

/// Runs the command. Nothing is wiped unless all members can be.
pub(crate) fn run(args: &WipeArgs) -> Result<()> {
    let mut found = Vec::new();
    for (index, path) in args.members.iter().enumerate() {
        let is_same = |other: &PathBuf| same_file(other, path);
        ensure!(!args.members[..index].iter().any(is_same), "{} is named twice", path.display());
        let member = patiently(path, || Member::open(path, Access::ReadWrite))?;
        let named = |name: &str, array: Uuid| match visible(name) {
            name if name.is_empty() => array.to_string(),
            name => format!("'{name}'"),
        };
        let mut erase: fn(&Member) -> Result<(), Error> = superblock::erase;
        let what = match patiently(path, || superblock::load(&member)) {
            Err(Error::Superblock { source: SuperblockError::Converting { array, .. }, .. }) => {
                erase = superblock::erase_conversion;
                format!("what a conversion to array {array} left that was cut off")
            }
            Err(Error::Superblock { source: SuperblockError::NoMagic, .. }) => match log_device::load(&member) {
                Ok(header) => format!("a log device of array {}", named(&header.name, header.array)),
                Err(_) => bail!("{}: is no member, so there is nothing to wipe", path.display()),
            },
            loaded => loaded.map(|own| format!("member {} of array {}", own.slot, named(&own.name, own.array)))?,
        };
        found.push((member, erase, format!("{}: {what}", path.display())));
    }
    ensure!(
        args.force,
        "{}\nNothing is wiped yet; --force makes {} forget it",
        found.iter().map(|(.., text)| text.as_str()).collect::<Vec<_>>().join("\n"),
        if found.len() == 1 { "the member" } else { "all of them" },
    );
    for (member, erase, text) in &found {
        patiently(member.path(), || erase(member))?;
        print(format_args!("{text}: wiped"))?;
    }
    Ok(())
}
