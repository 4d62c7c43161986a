//! `uraid list`: lists the arrays of running servers and of the members that it finds.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, ensure};
use clap::Args;
use serde::Serialize;
use uraid_io::array::{Ignored, Look, Patience, look};
use uraid_io::member::{Member, exists};
use uraid_serve::client::states;
use uraid_serve::names::level_title;
use uraid_serve::protocol::Status;
use uraid_serve::text::{chain, list as enumerate, size, visible};
use uuid::Uuid;

use crate::examine::{self, ReshapeReport};
use crate::status::{condition, tone};
use crate::terminal::{Colours, Tone, print, print_json};

/// How long a path may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Number of paths to check at once.
const PATHS_AT_ONCE: usize = 32;

/// Arguments of `uraid list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid list                                          running servers, block devices, this directory
  uraid list /srv/images /dev/sd*
  uraid list --json | jq -r .[].uri")]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files, devices and directories; what is not a member is skipped
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// An array that was found.
#[derive(Debug, Default, Serialize)]
struct Found {
    /// `None` if only its server knows it, which does not answer.
    uuid: Option<Uuid>,
    name: String,
    level: String,
    size_bytes: u64,
    /// `running`, `stopping`, `stopped`, `in use` by a process that does not answer, or `silent`: the server does not
    /// answer.
    state: &'static str,
    /// The array's health, in words.
    health: String,
    /// The colour of the state.
    #[serde(skip)]
    tone: Option<Tone>,
    /// The URI that clients connect to; `None` if the array is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
    /// The shape that it is getting, and how far that has come; `null` if it has one.
    reshape: Option<ReshapeReport>,
    /// Number of the array's members.
    member_count: usize,
    /// Paths of its members that were found.
    members: Vec<String>,
    /// Paths that claim to be its members but no longer are.
    former: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &ListArgs) -> Result<()> {
    let mut groups: BTreeMap<Uuid, Vec<PathBuf>> = BTreeMap::new();
    let mut seen = Vec::new();
    for paths in candidates(&args.paths)?.chunks(PATHS_AT_ONCE) {
        for Look { path, found } in look(paths, &mut Patience::new(Some(ANSWER_TIME_MAX), || ()))? {
            let (id, array) = match found {
                Ok((id, superblock)) => (id, superblock.array),
                Err(Ignored::LogDevice { id, header, .. }) => (id, header.array),
                Err(_) => continue,
            };
            // Devices have several names.
            if !seen.contains(&id) {
                seen.push(id);
                groups.entry(array).or_default().push(path);
            }
        }
    }
    let states = states().into_iter();
    let mut arrays: Vec<Found> = states.map(|(_, state)| state.map_or_else(|error| silent(&error), served)).collect();
    for (uuid, paths) in groups {
        if !arrays.iter().any(|array| array.uuid == Some(uuid)) {
            arrays.push(stopped(uuid, &paths));
        }
    }
    arrays.sort_by(|one, other| (&one.name, one.uuid).cmp(&(&other.name, other.uuid)));
    if args.json {
        print_json(&arrays)?;
    } else if arrays.is_empty() {
        let places = if args.paths.is_empty() { "block devices or the files of this directory" } else { "these paths" };
        print(format_args!("no array found: no server is running, and none of {places} is a member"))?;
    } else {
        let colours = Colours::of(&io::stdout());
        arrays.iter().try_for_each(|array| show(array, colours))?;
    }
    let absent = args.paths.iter().filter(|path| !exists(path));
    let absent: Vec<_> = absent.map(|path| path.display()).collect();
    ensure!(absent.is_empty(), "there is no {}", enumerate(&absent));
    Ok(())
}

/// Possible members: the named paths and the files in named directories, or else block devices and the working
/// directory.
fn candidates(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for path in named {
        if path.is_dir() {
            paths.extend(files(path).with_context(|| format!("can't read {}", path.display()))?);
        } else {
            paths.push(path.clone());
        }
    }
    if named.is_empty() {
        paths.extend(block_devices());
        paths.extend(files(Path::new(".")).unwrap_or_default());
    }
    paths.sort();
    Ok(paths)
}

/// The block devices of this machine.
pub(crate) fn block_devices() -> impl Iterator<Item = PathBuf> {
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    devices.map(|entry| Path::new("/dev").join(entry.file_name()))
}

/// The files of a directory, except hidden ones.
pub(crate) fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
    let entries = fs::read_dir(directory)?.flatten().filter(|entry| !is_hidden(&entry.file_name()));
    let paths = entries.map(|entry| if directory == Path::new(".") { entry.file_name().into() } else { entry.path() });
    Ok(paths.filter(|path: &PathBuf| !path.is_dir()).collect())
}

/// What is known of an array whose server does not answer.
fn silent(error: &Error) -> Found {
    Found { state: "silent", health: chain(error), ..Found::default() }
}

/// An array according to its server.
fn served(status: Status) -> Found {
    let members: Vec<String> = status.members.iter().filter_map(|member| member.path.clone()).collect();
    let (reshape, health) = (ReshapeReport::of(&status), condition(&status));
    Found {
        uuid: Some(status.uuid),
        name: status.name,
        level: status.level,
        size_bytes: status.size_bytes,
        state: if status.stopping.is_some() { "stopping" } else { "running" },
        health,
        tone: Some(tone(status.health.state)),
        uri: Some(status.uri),
        reshape,
        member_count: status.reshape.as_ref().map_or(status.members.len(), |reshape| reshape.members_before.into()),
        members,
        former: Vec::new(),
    }
}

/// An array according to its members.
fn stopped(uuid: Uuid, paths: &[PathBuf]) -> Found {
    let members = paths.iter().map(|path| path.display().to_string()).collect();
    let nothing = Found { uuid: Some(uuid), state: "stopped", member_count: paths.len(), members, ..Found::default() };
    match examine::report(paths) {
        Err(error) => Found { health: format!("not usable: {}", chain(&error)), ..nothing },
        Ok(report) => {
            let (members, former) = report.paths();
            // Members in use must be left alone, whatever they claim.
            let user = paths.iter().find_map(|path| Member::user(path));
            let (state, health) = match user {
                None => ("stopped", report.health()),
                Some(pid) => ("in use", format!("process {pid} does not say how it is")),
            };
            Found {
                name: report.name.clone(),
                level: report.level.to_owned(),
                size_bytes: report.size,
                state,
                health,
                reshape: report.reshape.clone(),
                member_count: report.member_count,
                members,
                former,
                ..nothing
            }
        }
    }
}

/// Prints an array in a few lines for people.
fn show(array: &Found, colours: Colours) -> Result<()> {
    let Found { uuid, name, level, size_bytes, state, health, tone, uri, reshape, member_count, members, former } =
        array;
    let health = tone.map_or_else(|| health.clone(), |tone| colours.paint(health, tone));
    let name = match uuid {
        _ if !name.is_empty() => visible(name),
        Some(uuid) => uuid.to_string(),
        None => return print(format_args!("{health}")),
    };
    if level.is_empty() {
        print(format_args!("{name}: {health}"))?;
    } else {
        let level = level_title(level);
        print(format_args!("{name}: {level} of {member_count} members, {}, {state}, {health}", size(*size_bytes)))?;
    }
    if let Some(reshape) = reshape {
        print(format_args!("  {reshape}"))?;
    }
    if let Some(uri) = uri {
        print(format_args!("  {uri}"))?;
    }
    let shown = |paths: &[String]| enumerate(&paths.iter().map(|path| visible(path)).collect::<Vec<_>>());
    print(format_args!("  {}", shown(members)))?;
    match former.as_slice() {
        [] => Ok(()),
        former => print(format_args!("  not its members any more: {}", shown(former))),
    }
}
