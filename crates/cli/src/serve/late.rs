//! Members that come late: disks that spin up, or are found, after the server was started.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use uraid_io::array::{Candidate, Look, Patience, Wanted, judge, look};
use uraid_io::cache::TICK;
use uraid_io::superblock::Superblock;

use crate::systemd::Notifier;
use crate::terminal::list;

/// How long the first who is missing may take before anything is said.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Waits until all members are there that the array had when it was last used, spares that were taken among them, but
/// no longer than `time`. About every 100 ms it calls `tick`.
pub(super) fn wait(
    members: &[PathBuf],
    spares: &[PathBuf],
    wanted: Option<&Wanted>,
    time: Duration,
    notifier: &Notifier,
    mut tick: impl FnMut() + Clone + 'static,
) -> Result<()> {
    let (began, mut said) = (Instant::now(), None);
    loop {
        let left = time.saturating_sub(began.elapsed());
        // What hangs counts as not there; the others are asked again only when it has answered.
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
    }
}

/// Who is missing that the array had when it was last used, and the verb; none: nobody, or nobody whose coming would
/// help.
pub(super) fn lacking(looks: &[Look], wanted: Option<&Wanted>) -> Option<String> {
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
    if candidates.is_empty() {
        return Some("members are".into());
    }
    // What contradicts itself does not get better by waiting.
    let verdict = judge(&candidates).ok()?;
    let Superblock { slots, name, array, .. } = &verdict.superblock;
    let awaited: Vec<_> = verdict.missing().iter().filter(|slot| slots[slot.index()].state.is_written()).collect();
    if awaited.is_empty() {
        return None;
    }
    let (noun, verb) = if awaited.len() == 1 { ("member", "is") } else { ("members", "are") };
    let mut text = format!("{noun} {} of ", list(&awaited));
    let _ = if name.is_empty() { write!(text, "{array} {verb}") } else { write!(text, "{name} {verb}") };
    Some(text)
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}
