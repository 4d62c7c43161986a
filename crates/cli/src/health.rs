//! The condition of an array. One value holds it, combined from the reports of engines, disks and members' files.
//! Status and `wait`, JSON, metrics, events and the service manager each present it in their own way.

use std::ops::Range;
use std::time::Duration;

use uraid_io::cache::Unwritten;
use uraid_io::disk::Disk;
use uraid_io::engine::{Engine, Stuck, Troubles, survives};
use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, Lba, MemberIndex, MemberSet};

use crate::about::About;
use crate::control::protocol::{
    self, Ailing, Health, HealthState, HeldUp, Named, OutOfDate, Salvage, Trouble, Unreadable, Work,
};
use crate::reactor::LastResort;
use crate::terminal::{duration, list, size};

/// The condition of an array, as it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) missing: MemberSet,
    pub(crate) rebuilding: MemberSet,
    /// Their reads are overdue, and the others are read instead.
    pub(crate) slow: MemberSet,
    /// They take many times as long as the others.
    pub(crate) lagging: MemberSet,
    /// Their disks report that they are failing.
    pub(crate) smart: MemberSet,
    /// Their files were deleted, but they are still in use.
    pub(crate) deleted: MemberSet,
    pub(crate) last_resort: LastResort,
    pub(crate) troubles: Troubles,
    pub(crate) is_frozen: bool,
    /// Data that could not be written out, so that flushes fail.
    pub(crate) unwritten: Option<Unwritten>,
    /// Why a rebuild, and a copy, can't continue.
    pub(crate) rebuild_stuck: Option<Stuck>,
    pub(crate) replace_stuck: Option<Stuck>,
    /// The member being copied.
    pub(crate) replacing: Option<MemberIndex>,
    /// The slot of a member that failed while being copied. The new one is about to join in its place.
    pub(crate) promoting: Option<MemberIndex>,
    /// The slot whose member was last replaced, and how many were replaced so far.
    pub(crate) replaced: Option<(MemberIndex, u32)>,
}

impl Condition {
    /// The condition of an engine's array, given its deleted and lagging members. The caller adds the disks' own
    /// reports.
    pub(crate) fn of<D: Disk, T>(
        engine: &Engine<D, T>,
        deleted: MemberSet,
        lagging: MemberSet,
        last_resort: LastResort,
    ) -> Self {
        let (rebuild, replacement) = (engine.rebuilding(), engine.replacement());
        Self {
            missing: engine.missing(),
            rebuilding: rebuild.map_or(MemberSet::EMPTY, |progress| progress.members),
            slow: engine.slow(),
            lagging: lagging.minus(engine.missing()),
            smart: MemberSet::EMPTY,
            deleted: deleted.minus(engine.missing()),
            last_resort,
            troubles: engine.troubles(),
            is_frozen: engine.is_frozen(),
            unwritten: engine.unwritten(),
            rebuild_stuck: rebuild.and_then(|progress| progress.stuck),
            replace_stuck: replacement.and_then(|replacement| replacement.progress.stuck),
            replacing: replacement.map(|replacement| replacement.slot),
            promoting: engine.promoting(),
            replaced: engine.replaced(),
        }
    }

    /// Members that are missing or incomplete.
    pub(crate) fn lost(&self) -> MemberSet {
        self.missing.union(self.rebuilding)
    }

    /// Whether more members are gone than the level survives, and the rest is read.
    pub(crate) fn is_partial(&self) -> bool {
        self.troubles.is_partial || self.last_resort.is_partial
    }

    /// The array's worst condition.
    pub(crate) fn state(&self) -> HealthState {
        let Troubles { stalled, roomless, failing, is_partial, .. } = self.troubles;
        match () {
            () if self.is_frozen => HealthState::Frozen,
            () if is_partial || self.last_resort != LastResort::default() => HealthState::Salvage,
            () if !failing.union(self.deleted).is_empty() || self.unwritten.is_some() => HealthState::Failing,
            () if !stalled.union(roomless).is_empty() => HealthState::Stalled,
            () if !self.lost().is_empty() => HealthState::Degraded,
            () => HealthState::Whole,
        }
    }

    /// The members with such a trouble.
    pub(crate) fn members_in(&self, trouble: Trouble) -> MemberSet {
        match trouble {
            Trouble::Failed => self.troubles.frozen_by,
            Trouble::Deleted => self.deleted,
            Trouble::Failing => self.troubles.failing,
            Trouble::Stale => self.last_resort.stale,
            Trouble::NoRoom => self.troubles.roomless,
            Trouble::Stalled => self.troubles.stalled,
            Trouble::Slow => self.slow,
            Trouble::Lagging => self.lagging,
            Trouble::Smart => self.smart,
        }
    }

    /// A member's troubles, worst first.
    pub(crate) fn troubles_of(&self, member: MemberIndex) -> Vec<Trouble> {
        Trouble::ALL.into_iter().filter(|&trouble| self.members_in(trouble).contains(member)).collect()
    }

    /// The whole condition with names. `waits` holds how long each member has kept somebody waiting, by slot.
    pub(crate) fn health(&self, about: &About, waits: &[Option<Duration>]) -> Health {
        let path = |member: MemberIndex| about.path(member).map(|path| path.display().to_string());
        let ailing = |trouble: Trouble| {
            let members: Vec<_> = self.members_in(trouble).iter().collect();
            members.into_iter().map(move |member| {
                let waits = waits.get(member.index()).copied().flatten().filter(|_| trouble.is_wait());
                let waits_ms = waits.map(|waits| u64::try_from(waits.as_millis()).unwrap_or(u64::MAX));
                Ailing { slot: member.0, trouble, path: path(member), waits_ms }
            })
        };
        let held_up = |work: Work, members: MemberSet, lost: MemberSet, stuck: Stuck| {
            let geometry = &about.geometry;
            let unreadable = |(member, sector): (MemberIndex, uraid_layout::DiskSector)| Unreadable {
                slot: member.0,
                path: path(member),
                member_sector: sector.0,
            };
            HeldUp {
                work,
                slots: slots(members),
                stripe: stuck.stripe.0,
                unreadable: stuck.sectors(geometry).map(unreadable).collect(),
                sectors: stuck.len.0,
                blocks: stuck.lbas(geometry, lost).into_iter().map(blocks).collect(),
                stripe_blocks: blocks(stuck.stripe_lbas(geometry)),
            }
        };
        let named = |members: MemberSet| {
            members.iter().map(|member| Named { slot: member.0, path: path(member) }).collect::<Vec<_>>()
        };
        let unwritten = |unwritten: Unwritten| protocol::Unwritten {
            bytes: unwritten.len.bytes().0,
            blocks: unwritten.ranges().map(blocks).collect(),
            stripe_blocks: stripes(&about.geometry, unwritten.ranges()),
            unreadable: named(unwritten.cause.unreadable),
            unwritable: named(unwritten.cause.unwritable),
        };
        let replacing = self.replacing.into_iter().collect();
        let rebuild = self.rebuild_stuck.map(|stuck| held_up(Work::Rebuild, self.rebuilding, self.lost(), stuck));
        let replace = self.replace_stuck.map(|stuck| held_up(Work::Replace, replacing, self.lost(), stuck));
        let state = self.state();
        Health {
            state,
            survives: if state >= HealthState::Failing { 0 } else { survives(&about.geometry, self.lost()) },
            missing: slots(self.missing),
            rebuilding: slots(self.rebuilding),
            troubles: Trouble::ALL.into_iter().flat_map(ailing).collect(),
            held_up: rebuild.into_iter().chain(replace).collect(),
            unwritten: self.unwritten.map(unwritten),
            salvage: about.salvage.clone(),
        }
    }

    /// What a stop would lose, and what to do about it; `None` if nothing. `unwritten_bytes` is the amount of clients'
    /// data that is only in memory.
    pub(crate) fn loss(&self, geometry: &Geometry, unwritten_bytes: u64) -> Option<String> {
        let survives = |members: MemberSet| Repair::new(geometry, self.lost().union(members)).is_ok();
        if !self.deleted.is_empty() && !survives(self.deleted) {
            let members = self.deleted;
            return Some(format!(
                "the {} deleted, and the content is lost when the server ends: copy it first",
                if members.len() == 1 {
                    format!("file of member {members} was")
                } else {
                    format!("files of members {members} were")
                }
            ));
        }
        let late = self.troubles.stalled.union(self.troubles.roomless);
        let is_held_up = !late.is_empty() && !survives(late);
        if unwritten_bytes == 0 || self.is_frozen {
            return None;
        }
        let size = size(unwritten_bytes);
        let alone = |why: &str| Some(format!("{size} that clients have written are only in memory, and {why}"));
        match self.unwritten {
            _ if is_held_up => {
                alone("some members do not accept writes now: mend them first; `uraid status` names them")
            }
            Some(unwritten) => {
                let stripes: Vec<String> = stripes(geometry, unwritten.ranges()).iter().map(bytes).collect();
                alone(&format!(
                    "some of it can't be written out: write all of bytes {}{}, or mend the members, and flush; `uraid \
                     status` says why",
                    list(&stripes),
                    if is_all_told(&unwritten) { "" } else { " and more" },
                ))
            }
            None => None,
        }
    }
}

/// Whether the listed ranges hold all of it.
fn is_all_told(unwritten: &Unwritten) -> bool {
    unwritten.ranges().map(|range| range.end.0 - range.start.0).sum::<u64>() == unwritten.len.0
}

/// The array's sectors in the parity stripes of ascending ranges, as half-open ranges.
fn stripes(geometry: &Geometry, ranges: impl Iterator<Item = Range<Lba>>) -> Vec<[u64; 2]> {
    let (stripe, capacity) = (geometry.stripe_sectors().0, geometry.capacity().0);
    let mut all: Vec<[u64; 2]> = Vec::new();
    for Range { start, end } in ranges {
        let [start, end] = [start.0 / stripe * stripe, end.0.next_multiple_of(stripe).min(capacity)];
        match all.last_mut() {
            Some([_, last]) if *last >= start => *last = end,
            _ => all.push([start, end]),
        }
    }
    all
}

fn blocks(lbas: Range<Lba>) -> [u64; 2] {
    [lbas.start.0, lbas.end.0]
}

/// `0 to 4096`, for a half-open range of sectors.
fn bytes([start, end]: &[u64; 2]) -> String {
    format!("{} to {}", start * 512, end * 512)
}

/// The slots of members.
pub(crate) fn slots(members: MemberSet) -> Vec<u8> {
    members.iter().map(|member| member.0).collect()
}

/// The condition of an array, in words.
pub(crate) fn words(health: &Health) -> String {
    let survives = match health.survives {
        0 => "survives no failure".to_owned(),
        1 => "survives 1 more failure".to_owned(),
        more => format!("survives {more} more failures"),
    };
    let (degraded, causes) = (degraded(health), causes(health));
    let parts = match health.state {
        HealthState::Whole => vec![survives],
        HealthState::Degraded => [degraded, causes, vec![survives]].concat(),
        HealthState::Stalled => [causes, degraded, vec![survives]].concat(),
        HealthState::Failing => [causes, degraded].concat(),
        HealthState::Salvage => {
            let left = health.salvage.as_ref().map(left).unwrap_or_default();
            [left, degraded, causes, vec!["copy off what is left, and create a new array".to_owned()]].concat()
        }
        HealthState::Frozen => {
            let members: Vec<String> = of(health, Trouble::Failed).map(name).collect();
            let by = match members.as_slice() {
                [] => "frozen: more members failed".to_owned(),
                [one] => format!("frozen by member {one}: more failed"),
                more => format!("frozen by members {}: more failed", list(more)),
            };
            let what = "than the level survives, so requests fail; stop the server and check the members";
            return [vec![format!("{by} {what}")], degraded, causes].concat().join("; ");
        }
    };
    format!("{}: {}", health.state.name(), parts.join("; "))
}

/// The remains of an array that is served as a last resort.
fn left(salvage: &Salvage) -> Vec<String> {
    let Salvage { stale, doubtful_ranges, doubtful_bytes, unreadable_bytes, size_bytes, .. } = salvage;
    let name = |OutOfDate { slot, path, .. }: &OutOfDate| {
        path.as_ref().map_or_else(|| slot.to_string(), |path| format!("{slot} ({path})"))
    };
    let names: Vec<String> = stale.iter().map(name).collect();
    let all = size(*size_bytes);
    let mut left = Vec::new();
    let who = match names.as_slice() {
        [] => None,
        [one] => Some(format!("member {one} is read although it is out of date")),
        more => Some(format!("members {} are read although they are out of date", list(more))),
    };
    if let Some(who) = who {
        let ranges = if *doubtful_ranges == 1 { "1 range" } else { &format!("{doubtful_ranges} ranges") };
        left.push(match doubtful_ranges {
            0 => format!("{who}: nothing was written since"),
            _ => format!(
                "{who}: content in {ranges}, {} of {all}, may be old or wrong; the server listed them when it started",
                size(*doubtful_bytes)
            ),
        });
    }
    if *unreadable_bytes > 0 {
        left.push(format!("{} of {all} can't be read and give I/O errors", size(*unreadable_bytes)));
    }
    left
}

/// The missing and incomplete members.
fn degraded(health: &Health) -> Vec<String> {
    let missing = match health.missing.as_slice() {
        [] => None,
        [slot] => Some(format!("member {slot} is missing")),
        slots => Some(format!("members {} are missing", list(slots))),
    };
    let rebuilding = match health.rebuilding.as_slice() {
        [] => None,
        [slot] => Some(format!("member {slot} is being rebuilt")),
        slots => Some(format!("members {} are being rebuilt", list(slots))),
    };
    let parts: Vec<String> = missing.into_iter().chain(rebuilding).collect();
    if parts.is_empty() { Vec::new() } else { vec![parts.join(", ")] }
}

/// What is wrong, and what an administrator can do about it.
fn causes(health: &Health) -> Vec<String> {
    let names = |trouble| -> Vec<String> { of(health, trouble).map(name).collect() };
    let mut causes = Vec::new();
    match names(Trouble::Deleted).as_slice() {
        [] => {}
        [one] => causes.push(format!(
            "the file of member {one} was deleted, and its content is lost when the server ends: copy the array's \
             content"
        )),
        more => causes.push(format!(
            "the files of members {} were deleted, and their content is lost when the server ends: copy the array's \
             content",
            list(more)
        )),
    }
    match names(Trouble::Failing).as_slice() {
        [] => {}
        [one] => {
            causes.push(format!(
                "member {one} lost content that the other members can't make up for, or has too many \
                errors: replace it"
            ));
        }
        more => causes.push(format!(
            "members {} lost content that the other members can't make up for, or have too many errors: replace them",
            list(more)
        )),
    }
    let paths: Vec<String> =
        of(health, Trouble::NoRoom).map(|one| one.path.clone().unwrap_or_else(|| name(one))).collect();
    if !paths.is_empty() {
        causes.push(format!("waiting for room on {}{}", list(&paths), longest(health, Trouble::NoRoom, "for ")));
    }
    match names(Trouble::Stalled).as_slice() {
        [] => {}
        [one] => causes.push(format!("member {one} does not answer{}", longest(health, Trouble::Stalled, "for "))),
        more => causes.push(format!(
            "members {} do not answer{}",
            list(more),
            longest(health, Trouble::Stalled, "for up to ")
        )),
    }
    causes.extend(health.held_up.iter().map(held_up));
    causes.extend(health.unwritten.as_ref().map(unwritten));
    causes
}

/// Why flushes fail, and what helps, in one sentence.
fn unwritten(unwritten: &protocol::Unwritten) -> String {
    let protocol::Unwritten { bytes: all, blocks, stripe_blocks, unreadable, unwritable } = unwritten;
    let told: u64 = blocks.iter().map(|[start, end]| (end - start) * 512).sum();
    let more = if told < *all { " and more" } else { "" };
    let [blocks, stripe_blocks] =
        [blocks, stripe_blocks].map(|ranges| list(&ranges.iter().map(bytes).collect::<Vec<_>>()));
    let members = |members: &[Named], what: &str| {
        let name = |Named { slot, path }: &Named| {
            path.as_ref().map_or_else(|| slot.to_string(), |path| format!("{slot} ({path})"))
        };
        let names: Vec<String> = members.iter().map(name).collect();
        match names.len() {
            0 => None,
            1 => Some(format!("member {} {what}", names[0])),
            _ => Some(format!("members {} {what}", list(&names))),
        }
    };
    let why = [members(unreadable, "can't be read there"), members(unwritable, "can't be written there")];
    let why: Vec<String> = why.into_iter().flatten().collect();
    let because = if why.is_empty() { String::new() } else { format!(": {}", list(&why)) };
    let helps = if unwritable.is_empty() { "can be read there" } else { "take it" };
    format!(
        "flushes fail because {} that clients have written can't be written out, bytes {blocks}{more} of the \
         array{because}; reads give it from memory. Flushes succeed again after a write of all of bytes \
         {stripe_blocks}{more}, or when the members {helps}",
        size(*all)
    )
}

/// What holds up a rebuild or a copy, in one sentence.
pub(crate) fn held_up(held: &HeldUp) -> String {
    let HeldUp { work, slots, stripe, unreadable, sectors, blocks, stripe_blocks } = held;
    let doing = match work {
        Work::Rebuild => format!("rebuilding member {}", list(slots)),
        Work::Replace => format!("copying member {}", list(slots)),
    };
    let unread: Vec<String> = unreadable
        .iter()
        .map(|Unreadable { slot, path, member_sector }| {
            let path = path.as_ref().map_or_else(String::new, |path| format!(" ({path})"));
            format!("member {slot}{path} can't be read at sector {member_sector} of its data, for {sectors} sectors")
        })
        .collect();
    let because = if unread.is_empty() { String::new() } else { format!(": {}", list(&unread)) };
    let ranges: Vec<String> = blocks.iter().map(bytes).collect();
    let lost = if ranges.is_empty() {
        "no content is lost".to_owned()
    } else {
        format!("no member has bytes {} of the array", list(&ranges))
    };
    format!(
        "{doing} is held up at parity stripe {stripe}{because}; {lost}. It continues after a single write of all of \
         bytes {}, from a backup, and tries again every ten seconds",
        bytes(stripe_blocks)
    )
}

fn of(health: &Health, trouble: Trouble) -> impl Iterator<Item = &Ailing> {
    health.troubles.iter().filter(move |ailing| ailing.trouble == trouble)
}

/// `1 (/srv/d1)`.
fn name(ailing: &Ailing) -> String {
    let Ailing { slot, path, .. } = ailing;
    path.as_ref().map_or_else(|| slot.to_string(), |path| format!("{slot} ({path})"))
}

/// ` for 12 s`, if known.
fn longest(health: &Health, trouble: Trouble, before: &str) -> String {
    let waits = of(health, trouble).filter_map(|ailing| ailing.waits_ms).max();
    waits.map_or_else(String::new, |ms| format!(" {before}{}", duration(ms / 1000)))
}

#[cfg(test)]
mod tests;
