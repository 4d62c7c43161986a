//! Members that are missing because nobody has named them: `uraid replace` and `uraid add` gave the array others since
//! the command line or the configuration file was written. They are looked for where they may be, and never used
//! unasked: another path may lead to a copy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Error;
use uraid_io::array::{Look, OpenError, Patience, look};
use uraid_io::member::is_uri;
use uraid_layout::MemberIndex;
use uraid_serve::text::list;
use uuid::Uuid;

use crate::list::{block_devices, files};

/// How long a path may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// How many paths to look at, and how many of them at once.
const PATHS_MAX: usize = 1024;
const PATHS_AT_ONCE: usize = 32;

/// Why an array can't be opened with the members that were `named`, in `config` if that is where; and where those are
/// that are missing, if they are on a block device or beside another member.
pub(super) fn explain(error: Error, named: &[PathBuf], config: Option<&Path>) -> Error {
    let missing = error.downcast_ref().map_or(&[][..], OpenError::missing).to_vec();
    let found: Vec<String> =
        find(&missing, named).into_iter().map(|(slot, path)| format!("member {slot} is {}", path.display())).collect();
    if found.is_empty() {
        return error;
    }
    let place = config.map_or_else(String::new, |config| format!(" in {}", config.display()));
    let which = if found.len() == 1 { "which is not named: name it" } else { "which are not named: name them" };
    error.context(format!("{}, {which}{place}, too", list(&found)))
}

fn find(missing: &[(MemberIndex, Uuid)], named: &[PathBuf]) -> Vec<(MemberIndex, PathBuf)> {
    let mut found: Vec<(MemberIndex, PathBuf)> = Vec::new();
    // A file that is found where exports are members may be what one of them is made of.
    if missing.is_empty() || named.iter().any(|path| is_uri(path)) {
        return found;
    }
    let mut directories: Vec<&Path> = named.iter().filter_map(|path| path.parent()).collect();
    directories.sort_unstable();
    directories.dedup();
    let here = |directory: &Path| if directory.as_os_str().is_empty() { ".".into() } else { directory.to_owned() };
    let beside = directories.into_iter().map(here).flat_map(|directory: PathBuf| files(&directory).unwrap_or_default());
    let paths: Vec<PathBuf> = beside.chain(block_devices()).take(PATHS_MAX).collect();
    for paths in paths.chunks(PATHS_AT_ONCE) {
        let looks = look(paths, &mut Patience::new(Some(ANSWER_TIME_MAX), || ())).unwrap_or_default();
        for Look { path, found: known } in looks {
            let Ok((_, superblock)) = known else { continue };
            let meant = missing.iter().find(|(_, uuid)| *uuid == superblock.member);
            let Some((slot, _)) = meant else { continue };
            if found.iter().all(|(other, _)| other != slot) {
                found.push((*slot, path));
            }
        }
    }
    found
}
