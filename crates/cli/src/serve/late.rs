//! Members that arrive late: disks that spin up, or are detected, after the server starts.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use uraid_io::array::{Candidate, Ignored, Look, Patience, Wanted, judge, look};
use uraid_io::cache::TICK;
use uraid_io::format::superblock::Superblock;
use uraid_serve::systemd::Notifier;
use uraid_serve::text::list;
use uuid::Uuid;

/// How long to wait for missing members before logging it.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Waits until all members that the array had at its last use are present, including spares that were taken, but no
/// longer than `time`. Calls `tick` about every 100 ms, and `go_on` at least as often while no path hangs.
///
/// # Errors
/// That of `go_on`, which ends the wait, and the system's.
pub(super) fn wait(
    members: &[PathBuf],
    spares: &[PathBuf],
    wanted: Option<&Wanted>,
    time: Duration,
    notifier: &Notifier,
    mut tick: impl FnMut() + Clone + 'static,
    go_on: impl Fn() -> Result<()>,
) -> Result<()> {
    let (began, mut said) = (Instant::now(), None);
    loop {
        let left = time.saturating_sub(began.elapsed());
        // A hanging path counts as absent. The other paths are not checked again until it answers.
        let look = |paths: &[PathBuf]| look(paths, &mut Patience::new(Some(left), tick.clone()));
        let mut looks = look(members)?;
        if lacking(&looks, wanted).is_some() {
            looks.extend(look(spares)?);
        }
        let Some(lacking) = lacking(&looks, wanted) else { return Ok(()) };
        if began.elapsed() >= time {
            tracing::warn!("{lacking} not there after {}: not waiting any longer", seconds(time));
            return Ok(());
        }
        if began.elapsed() >= SAID_AFTER && said.as_ref() != Some(&lacking) {
            let text = format!("{lacking} not there yet: waiting for {} at most", seconds(time));
            tracing::warn!("{text}");
            notifier.status(&text);
            said = Some(lacking);
        }
        sleep(TICK);
        tick();
        go_on()?;
    }
}

/// The missing members that the array had at its last use, with the verb. `None` if nobody is missing, or if nobody's
/// arrival would help.
pub(super) fn lacking(looks: &[Look], wanted: Option<&Wanted>) -> Option<String> {
    let candidates = candidates(looks, wanted);
    if candidates.is_empty() {
        return Some("members are".into());
    }
    // Waiting does not resolve a contradiction between members.
    let verdict = judge(&candidates).ok()?;
    let Superblock { slots, name, array, .. } = &verdict.superblock;
    let awaited: Vec<_> = verdict.missing().iter().filter(|slot| slots[slot.index()].state.is_written()).collect();
    if awaited.is_empty() {
        return lacking_log(looks, &verdict.superblock);
    }
    let (noun, verb) = if awaited.len() == 1 { ("member", "is") } else { ("members", "are") };
    let mut text = format!("{noun} {} of ", list(&awaited));
    let _ = if name.is_empty() { write!(text, "{array} {verb}") } else { write!(text, "{name} {verb}") };
    Some(text)
}

/// The log devices among them that the array had at its last use, with the verb. `None` if none is missing.
fn lacking_log(looks: &[Look], truth: &Superblock) -> Option<String> {
    let is_there = |uuid: Uuid| {
        looks.iter().any(|look| matches!(&look.found, Err(Ignored::LogDevice { header, .. }) if header.uuid == uuid))
    };
    let active = truth.logs.iter().flat_map(|logs| &logs.devices).filter(|device| device.is_active);
    let awaited: Vec<_> = active.filter(|device| !is_there(device.uuid)).map(|device| device.uuid).collect();
    let (noun, verb) = if awaited.len() == 1 { ("log device", "is") } else { ("log devices", "are") };
    (!awaited.is_empty()).then(|| format!("{noun} {} {verb}", list(&awaited)))
}

/// The array of these members.
///
/// # Errors
/// If they contradict each other, or lack some that the array has, unless it `may_lack` members.
pub(super) fn array_of(looks: &[Look], may_lack: bool) -> Result<Uuid> {
    let verdict = judge(&candidates(looks, None))?;
    let missing = verdict.missing();
    let missing: Vec<_> = missing.iter().collect();
    ensure!(
        missing.is_empty() || may_lack,
        "member {} of the array is not among the paths: name the members that it has now, which `uraid status` lists, \
         or give --degraded",
        list(&missing)
    );
    let lacking = lacking_log(looks, &verdict.superblock).filter(|_| !may_lack);
    ensure!(lacking.is_none(), "{} not among the paths: name the log devices, too", lacking.unwrap_or_default());
    Ok(verdict.superblock.array)
}

/// Whether the array has every member that it has a slot for.
pub(super) fn is_whole(looks: &[Look]) -> bool {
    judge(&candidates(looks, None)).is_ok_and(|verdict| verdict.missing().is_empty())
}

/// The members of the array, each once.
fn candidates(looks: &[Look], wanted: Option<&Wanted>) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut ids = Vec::new();
    let found = looks.iter().filter_map(|look| Some((&look.path, look.found.as_ref().ok()?)));
    for (path, (id, superblock)) in
        found.filter(|(_, (_, superblock))| wanted.is_none_or(|wanted| wanted.is(superblock)))
    {
        if !ids.contains(id) {
            ids.push(*id);
            candidates.push(Candidate { path: path.clone(), superblock: superblock.clone() });
        }
    }
    candidates
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}
