//! From the command line to an array that is ready to be served, even if members are late, hanging, empty or out of
//! date.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, ensure};
use uraid_io::array::{
    Array, Ignored, Look, OpenError, OpenOptions, Patience, RecoverError, Wanted, candidates, look, select,
};
use uraid_io::format::log::replay::ReplayError;
use uraid_io::format::superblock::SuperblockError;
use uraid_io::member::{Access, MemberError, Stealing};
use uraid_layout::{Bytes, MemberIndex};
use uraid_serve::spare::Spare;
use uraid_serve::systemd::Notifier;
use uraid_serve::text::{list, size};
use uuid::Uuid;

use super::args::ServeArgs;
use super::{elsewhere, late, spares};
use crate::misuse::Misuse;
use crate::terminal::{Progress, print};

/// How often the start asks the service manager for more time, in ticks of 100 ms, and how much it asks for.
const EXTENDED_EVERY: u32 = 100;
const EXTENSION: Duration = Duration::from_secs(60);

/// An array that is ready to be served.
pub(super) struct Started {
    pub(super) array: Array,
    pub(super) spares: Vec<Spare>,
}

/// Opens the array that the arguments name, and brings its members into agreement. While members are late, `go_on` says
/// whether to go on waiting for them.
pub(super) fn start(args: &ServeArgs, notifier: &Rc<Notifier>, go_on: impl Fn() -> Result<()>) -> Result<Started> {
    ensure!(
        args.accept_stale.is_empty() || args.read_only,
        Misuse(
            "what is read of a member that is out of date can't be told from what is right afterwards, so nothing may \
             be written meanwhile: give --read-only with --accept-stale, copy the content off, and make a new array of \
             it"
            .into()
        )
    );
    let tick = extend(notifier);
    let _stealing = args.steal.then(Stealing::begin);
    let wanted = wanted(args);
    if let Some(time) = args.wait_for_members {
        late::wait(&args.members, &args.spares, wanted.as_ref(), time, notifier, tick.clone(), go_on)?;
    }
    let most = args.patience.write_deadline.0;
    let mut patience = Patience::new(most.filter(|_| args.degraded), tick.clone());
    let members = members(look(&args.members, &mut patience)?, wanted.as_ref())?;
    ensure_needed(&members, args.degraded)?;
    spares::ensure_once(&members, &args.spares)?;
    // If no member is missing, no spare has taken a member's place, and the start waits for none.
    let (taken, spares) = if late::lacking(&members, None).is_none() {
        (Vec::new(), args.spares.clone())
    } else {
        spares::sort(&members, look(&args.spares, &mut Patience::new(most, tick.clone()))?)
    };
    let members = members.into_iter().map(|look| look.path).chain(taken).collect();
    let array = open(members, args, &mut patience)
        .map_err(|error| elsewhere::explain(error, &args.members, args.config.as_deref()))?;
    warn(&array)?;
    let spares = spares::at_start(&array, spares, tick)?;
    Ok(Started { array, spares })
}

/// Looks at the members without opening the array, which a server may have open. Returns the array.
///
/// # Errors
/// If a start would fail, as far as that can be told.
pub(super) fn rehearse(args: &ServeArgs) -> Result<Uuid> {
    let mut patience = Patience::new(args.patience.write_deadline.0, || {});
    let mut looks = members(look(&args.members, &mut patience)?, wanted(args).as_ref())?;
    ensure_needed(&looks, args.degraded)?;
    spares::ensure_once(&looks, &args.spares)?;
    let is_wrong = |look: &Look| matches!(&look.found, Err(reason) if !matches!(reason, Ignored::LogDevice { .. }));
    if let Some(index) = looks.iter().position(is_wrong).filter(|_| !args.degraded) {
        looks.swap_remove(index).found?;
    }
    if late::lacking(&looks, None).is_some() {
        looks.extend(spares::taken(&looks, look(&args.spares, &mut patience)?));
    }
    late::array_of(&looks, args.degraded)
}

/// Asks the service manager periodically for more time.
fn extend(notifier: &Rc<Notifier>) -> impl FnMut() + Clone + 'static {
    let (notifier, mut ticks) = (Rc::clone(notifier), 0_u32);
    move || {
        if ticks.is_multiple_of(EXTENDED_EVERY) {
            notifier.extend(EXTENSION);
        }
        ticks = ticks.wrapping_add(1);
    }
}

/// The array to serve, if the paths may lead to several.
fn wanted(args: &ServeArgs) -> Option<Wanted> {
    let by_name = || args.wanted.name.clone().map(Wanted::Name);
    args.wanted.uuid.map(Wanted::Array).or_else(by_name)
}

/// The members among the given paths: those of the wanted array, or else all that exist. A path that leads nowhere may
/// belong to a replaced member; ignoring it keeps the same command line working.
fn members(looks: Vec<Look>, wanted: Option<&Wanted>) -> Result<Vec<Look>> {
    if let Some(wanted) = wanted {
        let (members, ignored) = select(looks, wanted);
        for reason in ignored {
            tracing::warn!("ignored: {}", Error::from(reason));
        }
        ensure!(!members.is_empty(), "none of the paths leads to a member of {wanted}");
        ensure_one(&members, wanted)?;
        return Ok(members);
    }
    let is_gone = |look: &Look| match &look.found {
        Err(Ignored::Member(MemberError::Io { source, .. })) => source.kind() == ErrorKind::NotFound,
        Err(Ignored::Member(MemberError::Silent { .. })) => true,
        _ => false,
    };
    let (gone, members): (Vec<Look>, Vec<Look>) = looks.into_iter().partition(is_gone);
    let reasons = gone.into_iter().filter_map(|look| look.found.err());
    if members.is_empty() {
        return reasons.map(Error::from).next().map_or(Ok(members), Err);
    }
    for reason in reasons {
        tracing::warn!("left out: {}", Error::from(reason));
    }
    Ok(members)
}

/// Refuses several arrays of one name, and says how to choose.
fn ensure_one(members: &[Look], wanted: &Wanted) -> Result<()> {
    let mut arrays: BTreeMap<Uuid, Vec<String>> = BTreeMap::new();
    for Look { path, found } in members {
        let Ok((_, superblock)) = found else { continue };
        arrays.entry(superblock.array).or_default().push(path.display().to_string());
    }
    let each: Vec<String> = arrays.iter().map(|(uuid, paths)| format!("{uuid} on {}", list(paths))).collect();
    ensure!(each.len() < 2, "{wanted} is not the only one: {}; choose one with --uuid", each.join("; "));
    Ok(())
}

/// Refuses what is no member, in other words where the array is whole without it; unless it `may_lack` members.
fn ensure_needed(looks: &[Look], may_lack: bool) -> Result<()> {
    let is_none = |look: &&Look| {
        let error = look.found.as_ref().err();
        matches!(error, Some(Ignored::Io(uraid_io::Error::Superblock { source: SuperblockError::NoMagic, .. })))
    };
    let none: Vec<_> = looks.iter().filter(is_none).map(|look| look.path.display()).collect();
    ensure!(
        none.is_empty() || may_lack || !late::is_whole(looks),
        "{}: no uraid superblock is there, and the array has all of its members without it: it left in a reshape, was \
         wiped, or never was a member; leave it out",
        list(&none)
    );
    Ok(())
}

/// Opens the array with these members, except those that hang.
fn open(mut members: Vec<PathBuf>, args: &ServeArgs, patience: &mut Patience) -> Result<Array> {
    let access = if args.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let options = OpenOptions { access, allow_degraded: args.degraded, force: args.force };
    let stale = args.accept_stale.iter().copied().map(MemberIndex).collect();
    loop {
        let opened = Array::open_patiently(&members, options, stale, patience);
        let opened = opened.map_err(Error::from).and_then(|array| recover(array, args, patience));
        let hung = patience.take_hung();
        if hung.is_empty() {
            match opened {
                Err(error) if args.degraded => leave_out_with_damaged_log(error, &mut members)?,
                opened => return opened,
            }
            continue;
        }
        for error in hung {
            tracing::error!("{error}: it is left out");
            let MemberError::Silent { path, .. } = error else { return Err(error.into()) };
            members.retain(|member| *member != path);
        }
    }
}

/// Leaves out the member whose damaged log prevents the array from starting.
///
/// # Errors
/// Returns `error` itself if it has any other cause.
fn leave_out_with_damaged_log(error: Error, members: &mut Vec<PathBuf>) -> Result<()> {
    let (damaged, record) = match error.downcast_ref() {
        Some(OpenError::Recover(RecoverError::Log(ReplayError::Lost { member, sequence }))) => (*member, sequence.0),
        _ => return Err(error),
    };
    let (count, found) = (members.len(), candidates(members, Access::Inspect)?.members);
    let is_damaged = |path: &PathBuf| {
        found.iter().any(|opened| opened.candidate.path == *path && opened.candidate.superblock.slot == damaged)
    };
    for path in members.extract_if(.., |path| is_damaged(path)) {
        let path = path.display();
        tracing::error!("member {damaged} ({path}) is left out: its log is damaged, and lacks record {record}");
    }
    if members.len() == count {
        return Err(error);
    }
    Ok(())
}

/// Brings parity into agreement where the last run left it inconsistent.
fn recover(array: Array, args: &ServeArgs, patience: &mut Patience) -> Result<Array> {
    if !array.needs_recovery() || args.read_only {
        return Ok(array);
    }
    let (part, all) = (array.recovery_bytes(), array.geometry.capacity().bytes());
    let (part_size, all_size) = (size(part.0), size(all.0));
    if array.is_initialising() {
        let members = list(&array.geometry.all_members().iter().collect::<Vec<_>>());
        tracing::warn!(
            "creating the array was cut off: it is finished first, on members {members}, {part_size} of zeros"
        );
        let mut bar = Progress::new("initialising", part.0);
        return array.recover_patiently(|done| bar.set(done.0), patience).context("the initialisation stopped");
    }
    tracing::warn!("the array was not stopped cleanly: bringing its members into agreement");
    if part.0 > 0 {
        tracing::warn!("what is kept twice is computed again for {part_size} of {all_size}");
    }
    let mut bar = Progress::new("recovering", if part.0 > 0 { part.0 } else { all.0 });
    array.recover_patiently(|done| bar.set(done.0), patience).context("the recovery stopped")
}

/// Warns about everything that is wrong with the array.
fn warn(array: &Array) -> Result<()> {
    for (path, reason) in &array.set_aside {
        tracing::warn!("{} is left out: {reason}", path.display());
    }
    let missing: Vec<_> = array.missing().iter().collect();
    if !missing.is_empty() {
        let noun = if missing.len() == 1 { "member" } else { "members" };
        tracing::warn!("serving without {noun} {}", list(&missing));
    }
    if let Some(lost) = array.unreadable() {
        tracing::error!("only what is left is served, for reading; the rest is an I/O error: {lost}");
    }
    for stale in &array.stale {
        let (path, epoch, newest) = (stale.path.display(), stale.epoch.0, stale.newest.0);
        tracing::error!(
            "member {} ({path}) is out of date, and read all the same: its epoch is {epoch}, the array's is {newest}",
            stale.slot
        );
    }
    let doubtful = array.doubtful();
    if doubtful.is_empty() {
        return Ok(());
    }
    let total: u64 = doubtful.iter().map(|range| range.end.0 - range.start.0).sum();
    let Bytes(all) = array.geometry.capacity().bytes();
    let (total, all) = (size(total), size(all));
    tracing::error!(
        "something was written in {total} of {all} since: what is read there may be old, or wrong where it is computed"
    );
    for range in doubtful {
        print(format_args!("may be old or wrong: bytes {} to {}", range.start.0, range.end.0 - 1))?;
    }
    Ok(())
}
