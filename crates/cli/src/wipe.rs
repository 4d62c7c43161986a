//! `uraid wipe`: makes members forget their array.

use anyhow::{Result, ensure};
use uraid_io::member::{Access, Member};
use uraid_io::superblock;

use crate::args::WipeArgs;
use crate::terminal::print;

/// Runs the command. Nothing is wiped unless all can be.
pub(crate) fn run(args: &WipeArgs) -> Result<()> {
    let mut found = Vec::new();
    for path in &args.members {
        let member = Member::open(path, Access::ReadWrite)?;
        let superblock = superblock::load(&member)?;
        let name = superblock.name.escape_debug().to_string();
        let array = if name.is_empty() { superblock.array.to_string() } else { format!("'{name}'") };
        found.push((member, format!("{}: member {} of array {array}", path.display(), superblock.slot)));
    }
    ensure!(
        args.force,
        "{}\nNothing is wiped yet; --force makes {} forget it",
        found.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n"),
        if found.len() == 1 { "the member" } else { "all of them" },
    );
    for (member, text) in &found {
        superblock::erase(member)?;
        print(format_args!("{text}: wiped"))?;
    }
    Ok(())
}
