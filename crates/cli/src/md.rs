//! Arrays of Linux md in files and devices, for the commands that show and serve them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, ensure};
use uraid_md::superblock::Superblock;
use uraid_md::{Assembly, FileSource, OpenError, Options, Source, Trouble, assemble, scan};
use uraid_serve::text::{list, name_members, visible};

/// So many missing members are named; of more it is said how many there are.
const MEMBERS_NAMED: usize = 16;

/// What paths lead to.
pub(crate) struct Gathered {
    /// The arrays, in the order of their UUIDs.
    pub(crate) arrays: Vec<Assembly>,
    /// What looks like a member and can't be used.
    pub(crate) troubles: Vec<Trouble>,
}

/// Finds the arrays whose members these paths lead to, which are opened by `open`. A file that is named twice counts
/// once.
///
/// # Errors
/// If none leads to a member.
pub(crate) fn gather(
    paths: &[PathBuf],
    open: impl Fn(&Path) -> Result<FileSource, OpenError>,
    options: &Options,
) -> Result<Gathered> {
    let (mut seen, mut found, mut troubles) = (Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        let label = path.display().to_string();
        let file = match open(path) {
            Ok(file) => file,
            Err(error) => {
                troubles.push(Trouble { label, reason: error.into() });
                continue;
            }
        };
        if seen.contains(&file.identity()) {
            continue;
        }
        seen.push(file.identity());
        let source: Arc<dyn Source> = Arc::new(file);
        let scanned = scan(&label, &source);
        found.extend(scanned.found);
        troubles.extend(scanned.troubles);
    }
    let arrays = assemble(found, options);
    if arrays.is_empty() {
        let shown: Vec<_> = paths.iter().map(|path| visible(&path.display().to_string())).collect();
        let reasons: Vec<_> = troubles.iter().map(said).collect();
        ensure!(reasons.is_empty(), "no member of Linux md can be used: {}", reasons.join("; "));
        ensure!(!shown.is_empty(), "no path is named");
        anyhow::bail!("no member of Linux md was found in {}", list(&shown));
    }
    Ok(Gathered { arrays, troubles })
}

/// What is the matter with something.
pub(crate) fn said(trouble: &Trouble) -> String {
    format!("{}: {}", visible(&trouble.label), trouble.reason)
}

/// The array's name for people: without the host that made it, or its UUID if it has none.
pub(crate) fn name(superblock: &Superblock) -> String {
    let short = superblock.name.rsplit_once(':').map_or(superblock.name.as_str(), |(_, short)| short);
    match short {
        "" => superblock.array.to_string(),
        short => visible(short),
    }
}

/// How the array is, in words; the same whether it can be read or not.
pub(crate) fn health(assembly: &Assembly) -> String {
    let Assembly { superblock, missing, array, .. } = assembly;
    let mut words = Vec::new();
    if let Err(error) = array {
        words.push(format!("it can't be read: {error}"));
    }
    if superblock.resynced.is_some() {
        words.push("not stopped cleanly".to_owned());
    }
    if !missing.is_empty() {
        words.push(format!("degraded without {}", lacking(missing, superblock.raid_disks)));
    }
    if array.as_ref().is_ok_and(|array| array.capacity().0 == 0) {
        words.push("it has no content: its size is 0".to_owned());
    }
    if words.is_empty() { "clean".to_owned() } else { words.join(", ") }
}

/// The members that an array of so many lacks.
fn lacking(missing: &[u16], members: u16) -> String {
    if missing.len() > MEMBERS_NAMED {
        format!("{} of its {members} members", missing.len())
    } else {
        name_members(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_missing_members_are_counted() {
        assert_eq!(lacking(&[3], 4), "member 3");
        assert_eq!(lacking(&(0..16).collect::<Vec<_>>(), 384).split(", ").count(), 15);
        assert_eq!(lacking(&(0..17).collect::<Vec<_>>(), 384), "17 of its 384 members");
    }
}
