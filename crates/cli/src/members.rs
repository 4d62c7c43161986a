//! `uraid fail`, `remove`, `add` and `replace`: change the members and log devices of a running array.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::Value;
use uraid_io::member::absolute;
use uraid_layout::Bytes;
use uraid_serve::protocol::{Added, LogAdded, Replaced, Request, Status, Successor};
use uraid_serve::text::visible;
use uuid::Uuid;

use crate::candidates;
use crate::misuse::Misuse;
use crate::naming::{Change, Configuration};
use crate::server_args::ServerArgs;
use crate::terminal::print;
use crate::values::bytes;

/// A member or log device of an array that is being served.
#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Slot, path or UUID of a member; path or UUID of a log device
    #[arg(value_name = "MEMBER", add = ArgValueCompleter::new(candidates::members))]
    member: String,
}

/// Arguments of `uraid remove`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    which: MemberArgs,
    /// Have the server's configuration file no longer name it
    #[arg(long)]
    persist: bool,
}

/// How a file or block device is taken in.
#[derive(Debug, Args)]
struct TakeArgs {
    /// Size of a file that does not exist yet
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    size: Option<Bytes>,
    /// Overwrite what the file or device holds
    #[arg(long)]
    force: bool,
    /// Name it in the server's configuration file, for the next start
    ///
    /// What a member is copied to is named as a spare beside it: the next start uses whichever is the member then.
    #[arg(long)]
    persist: bool,
}

/// Arguments of `uraid add`.
#[derive(Debug, Args)]
#[command(after_help = "A former member gets only what it missed. Anything else is added as a new member, or as a
spare if no member is missing.

With --log-device it becomes a log device of an array that has some. It mirrors the others at once.

Examples:
  uraid add d3.img                                    a former member, or an empty file
  uraid add --size 1G new.img                         a new file of this size
  uraid add --socket /run/vault.sock /dev/sdf         to another server
  uraid add --log-device /dev/nvme2n1p3               one more log device")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    taken: TakeArgs,
    /// Add it as a log device; a file that does not exist yet gets the size that the log needs
    #[arg(long, conflicts_with = "size")]
    log_device: bool,
    /// File, block device or URI of an export
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

/// Arguments of `uraid replace`.
#[derive(Debug, Args)]
#[command(
    after_help = "Redundancy is never reduced: the old member is used until the copy is complete. A log device is
exchanged at once, whether the old one works or not.

Examples:
  uraid replace 3 /dev/sdf                            the member in slot 3
  uraid replace --size 1G d3.img new.img              a new file of this size
  uraid replace 3 nbd://host4/                        by an export of an NBD server
  uraid fail new.img                                  gives up the copy
  uraid replace /dev/nvme1n1p3 /dev/nvme2n1p3         a log device"
)]
pub(crate) struct ReplaceArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    taken: TakeArgs,
    /// Slot, path or UUID of the member to replace, or path or UUID of the log device
    #[arg(value_name = "OLD", add = ArgValueCompleter::new(candidates::members))]
    old: String,
    /// File, block device or URI of an export
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

/// `uraid fail`.
pub(crate) fn fail(args: &MemberArgs) -> Result<()> {
    let request = Request::Fail { member: name(&args.member)? };
    let mut client = args.server.connect()?;
    let Status { name, .. } = client.ask(&Request::Status {})?;
    let _: Value = client.ask(&request)?;
    let is_slot = args.member.parse::<u8>().is_ok();
    print(format_args!("{} continues without {}{}", visible(&name), if is_slot { "member " } else { "" }, args.member))
}

/// `uraid remove`.
pub(crate) fn remove(args: &RemoveArgs) -> Result<()> {
    let RemoveArgs { which: MemberArgs { server, member }, persist } = args;
    let request = Request::Remove { member: name(member)? };
    let mut client = server.connect()?;
    let before: Status = client.ask(&Request::Status {})?;
    let kept_in = kept_in(&before, *persist)?;
    let _: Value = client.ask(&request)?;
    print(format_args!("{member} is released"))?;
    let gone = path_of(&before, &name(member)?);
    kept_in
        .map_or(Ok(()), |kept_in| kept_in.follow(Change { key: "members", gone: gone.as_deref(), new: None }, *persist))
}

/// `uraid add`: waits until the member has joined or is a spare, but not until it is rebuilt.
pub(crate) fn add(args: &AddArgs) -> Result<()> {
    let AddArgs { server, taken: TakeArgs { size, force, persist }, log_device, path } = args;
    let mut client = server.connect()?;
    let kept_in = kept_in(&client.ask(&Request::Status {})?, *persist)?;
    // A new member's areas are zeroed first.
    client.be_patient()?;
    let new = absolute(path)?;
    let named = new.display().to_string();
    let follow = |key| {
        let change = Change { key, gone: None, new: Some(&named) };
        kept_in.as_ref().map_or(Ok(()), |kept_in| kept_in.follow(change, *persist))
    };
    let request =
        Request::Add { path: new, force: *force, log_device: *log_device, size_bytes: size.map(|size| size.0) };
    if *log_device {
        let LogAdded { log_device, uuid } = client.ask(&request)?;
        print(format_args!("{} ({uuid}) is log device {log_device} now", path.display()))?;
        return follow("members");
    }
    let Added { slot, uuid } = client.ask(&request)?;
    match (slot, uuid) {
        (Some(slot), Some(uuid)) => {
            print(format_args!(
                "{} ({uuid}) is being rebuilt in slot {slot}; `uraid status` shows the progress",
                path.display()
            ))?;
            follow("members")
        }
        _ if *persist => {
            print(format_args!("no member is missing: {} is now a spare", path.display()))?;
            follow("spare")
        }
        _ => print(format_args!(
            "no member is missing: {} is now a spare until the server ends; to keep it, use `uraid serve --spare`",
            path.display()
        )),
    }
}

/// `uraid replace`: waits until the copy has begun, or a log device has been exchanged.
pub(crate) fn replace(args: &ReplaceArgs) -> Result<()> {
    let ReplaceArgs { server, taken: TakeArgs { size, force, persist }, old, new } = args;
    let mut client = server.connect()?;
    let before: Status = client.ask(&Request::Status {})?;
    let kept_in = kept_in(&before, *persist)?;
    // A new member's areas are zeroed first.
    client.be_patient()?;
    let path = absolute(new)?;
    let (named, gone) = (path.display().to_string(), path_of(&before, &name(old)?));
    let follow = |key, gone| {
        let change = Change { key, gone, new: Some(&named) };
        kept_in.as_ref().map_or(Ok(()), |kept_in| kept_in.follow(change, *persist))
    };
    let request = Request::Replace { member: name(old)?, path, force: *force, size_bytes: size.map(|size| size.0) };
    let new = new.display();
    let Replaced { slot, uuid, rebuilding } = match client.ask::<Successor>(&request)? {
        Successor::Member(replaced) => replaced,
        Successor::LogDevice(LogAdded { log_device, uuid }) => {
            print(format_args!("{new} ({uuid}) is log device {log_device} now, in the place of {old}"))?;
            return follow("members", gone.as_deref());
        }
    };
    if rebuilding {
        print(format_args!(
            "slot {slot} had no member: {new} ({uuid}) is being rebuilt there; `uraid status` shows the progress"
        ))?;
        return follow("members", gone.as_deref());
    }
    print(format_args!(
        "{old} is being copied to {new} ({uuid}), which then takes over slot {slot}; `uraid status` shows the progress"
    ))?;
    // Until then the array needs the old one, and a start takes spares that have become members for such.
    follow("spare", None)
}

/// The configuration file that a change concerns, if there is one.
///
/// # Errors
/// If there is none, and the change is to be kept there.
fn kept_in(status: &Status, persist: bool) -> Result<Option<Configuration>, Misuse> {
    if persist { Configuration::to_keep_in(status).map(Some) } else { Ok(Configuration::of(status)) }
}

/// The path of the member, log device or spare that has this name.
fn path_of(status: &Status, name: &str) -> Option<String> {
    let members = status.members.iter().map(|member| (member.slot.to_string(), member.uuid, &member.path));
    let logs = status.log_devices.iter().map(|log| (String::new(), log.uuid, &log.path));
    let found = members.chain(logs).find(|(slot, uuid, _)| slot == name || uuid.to_string() == name);
    match found {
        Some((_, _, path)) => path.clone(),
        None => Some(name.to_owned()),
    }
}

/// A member's name as the server knows it. The server may have another working directory.
fn name(word: &str) -> Result<String> {
    if word.parse::<u8>().is_ok() || word.parse::<Uuid>().is_ok() {
        return Ok(word.to_owned());
    }
    Ok(absolute(Path::new(word))?.display().to_string())
}
