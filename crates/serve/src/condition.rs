//! The condition of an array. One value holds it, combined from the reports of engines, disks and members' files.
//! Status and `wait`, JSON, metrics, events and the service manager each present it in their own way.

use std::ops::Range;
use std::time::Duration;

use uraid_io::cache::Unwritten;
use uraid_io::disk::Disk;
use uraid_io::engine::{Engine, Stuck, Troubles};
use uraid_io::format::superblock::LogSet;
use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, Lba, MemberIndex, MemberSet};

use crate::description::Description;
use crate::health::bytes;
use crate::lacking::{Lacking, LostContent};
use crate::log_devices;
use crate::protocol::{self, Ailing, Health, HealthState, HeldUp, Named, Trouble, Unreadable};
use crate::sweeps::Work;
use crate::text::{list, size};

/// How far an array is served as a last resort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastResort {
    /// Members that are read although they are out of date.
    pub stale: MemberSet,
    /// More members are gone than the level survives.
    pub is_partial: bool,
}

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
    /// They are exports to which the connection is broken, but the array can't do without them.
    pub(crate) cut_off: MemberSet,
    /// They are exports that another server has taken.
    pub(crate) taken: MemberSet,
    /// Log devices whose files were deleted, but that are still in use.
    pub(crate) deleted_logs: LogSet,
    pub(crate) last_resort: LastResort,
    pub(crate) troubles: Troubles,
    pub(crate) is_frozen: bool,
    /// Data that could not be written out: flushes fail, unless there is a journal with room for it.
    pub(crate) unwritten: Option<Unwritten>,
    /// There is a journal; and it has room for what flushes put there.
    pub(crate) has_journal: bool,
    pub(crate) has_room: bool,
    /// What members' lists of bad blocks say.
    pub(crate) lacking: Lacking,
    /// Why a rebuild, and a copy, can't continue.
    pub(crate) rebuild_stuck: Option<Stuck>,
    pub(crate) replace_stuck: Option<Stuck>,
    /// Where content is that a reshape can't move.
    pub(crate) reshape_stuck: Option<Lba>,
    /// The member being copied.
    pub(crate) replacing: Option<MemberIndex>,
    /// The slot of a member that failed while being copied. The new one is about to join in its place.
    pub(crate) promoting: Option<MemberIndex>,
    /// The slot whose member was last replaced, and how many were replaced so far.
    pub(crate) replaced: Option<(MemberIndex, u32)>,
    /// Regions of a new array are not zeros on its members yet.
    pub(crate) is_blank: bool,
    /// See [`ScrubHistory::is_owed`](uraid_io::format::superblock::ScrubHistory::is_owed).
    pub(crate) is_scrub_owed: bool,
}

impl Condition {
    /// The engine's part of it. What members lack is summed up beside the engine, which also holds for deleted, lagging
    /// and failing members.
    pub(crate) fn of<D: Disk, T>(engine: &Engine<D, T>) -> Self {
        let (rebuild, replacement) = (engine.rebuilding(), engine.replacement());
        Self {
            missing: engine.missing(),
            rebuilding: rebuild.map_or(MemberSet::EMPTY, |progress| progress.members),
            slow: engine.slow(),
            troubles: engine.troubles(),
            is_frozen: engine.is_frozen(),
            unwritten: engine.unwritten(),
            has_journal: engine.cache().is_some_and(|cache| cache.journal().is_on()),
            has_room: engine.cache().is_some_and(|cache| cache.journal().has_room()),
            rebuild_stuck: rebuild.and_then(|progress| progress.stuck),
            replace_stuck: replacement.and_then(|replacement| replacement.progress.stuck),
            reshape_stuck: engine.reshape().and_then(|way| way.progress().stuck),
            replacing: replacement.map(|replacement| replacement.slot),
            promoting: engine.promoting(),
            replaced: engine.replaced(),
            is_blank: engine.initialising().is_some(),
            is_scrub_owed: engine.scrub_record().is_owed,
            ..Self::default()
        }
    }

    /// Members that are missing or being rebuilt.
    pub(crate) fn lost(&self) -> MemberSet {
        self.missing.union(self.rebuilding)
    }

    /// Whether redundancy is incomplete anywhere, or may be.
    pub(crate) fn is_degraded(&self) -> bool {
        let is_lacking = !self.lost().is_empty() || !self.lacking.set().is_empty();
        is_lacking || self.is_scrub_owed || !self.troubles.failed_logs.is_empty()
    }

    /// Whether more members are gone than the level survives, and the rest is read.
    pub(crate) fn is_partial(&self) -> bool {
        self.troubles.is_partial || self.last_resort.is_partial
    }

    /// The array's worst condition.
    pub(crate) fn state(&self) -> HealthState {
        let Troubles { stalled, roomless, failing, is_partial, stalled_logs, .. } = self.troubles;
        match () {
            () if self.is_frozen || !self.taken.is_empty() => HealthState::Frozen,
            () if is_partial || self.last_resort != LastResort::default() => HealthState::Salvage,
            () if !failing.union(self.deleted).union(self.cut_off).is_empty() => HealthState::Failing,
            () if !self.deleted_logs.is_empty() => HealthState::Failing,
            () if self.unwritten.is_some() || self.lacking.lost.is_some() => HealthState::Failing,
            () if !stalled.union(roomless).is_empty() || !stalled_logs.is_empty() => HealthState::Stalled,
            () if self.is_degraded() => HealthState::Degraded,
            () => HealthState::Whole,
        }
    }

    /// The members with such a trouble.
    pub(crate) fn members_in(&self, trouble: Trouble) -> MemberSet {
        match trouble {
            Trouble::Taken => self.taken,
            Trouble::Failed => self.troubles.frozen_by,
            Trouble::Deleted => self.deleted,
            Trouble::CutOff => self.cut_off,
            // It did what it could.
            Trouble::Failing => self.troubles.failing.minus(self.cut_off),
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
    pub(crate) fn health(&self, description: &Description, waits: &[Option<Duration>]) -> Health {
        let path = |member: MemberIndex| description.path(member).map(|path| path.display().to_string());
        let ailing = |trouble: Trouble| {
            let members: Vec<_> = self.members_in(trouble).iter().collect();
            members.into_iter().map(move |member| {
                let waits = waits.get(member.index()).copied().flatten().filter(|_| trouble.is_wait());
                let waits_ms = waits.map(|waits| u64::try_from(waits.as_millis()).unwrap_or(u64::MAX));
                Ailing { slot: member.0, trouble, path: path(member), waits_ms }
            })
        };
        let held_up = |work: Work, members: MemberSet, lost: MemberSet, stuck: Stuck| {
            let geometry = &*description.geometry.borrow();
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
            stripe_blocks: stripes(&description.shapes(), unwritten.ranges()),
            unreadable: named(unwritten.cause.unreadable),
            unwritable: named(unwritten.cause.unwritable),
            flushes_fail: !self.has_room,
            replacing: if self.has_journal { named(self.replacing.into_iter().collect()) } else { Vec::new() },
        };
        let replacing = self.replacing.into_iter().collect();
        let rebuild = self.rebuild_stuck.map(|stuck| held_up(Work::Rebuild, self.rebuilding, self.lost(), stuck));
        let replace = self.replace_stuck.map(|stuck| held_up(Work::Replace, replacing, self.lost(), stuck));
        let lost = |lost: LostContent| protocol::LostContent {
            bytes: lost.len.bytes().0,
            ranges: lost.ranges as u64,
            blocks: lost.first().map(blocks).collect(),
        };
        let lacking =
            |(member, blocks): (MemberIndex, u64)| protocol::Lacking { slot: member.0, path: path(member), blocks };
        let state = self.state();
        let survives = |without: MemberSet| {
            if state >= HealthState::Failing { 0 } else { description.survives(without) }
        };
        let mut health = Health {
            state,
            // As if all bad blocks were in the same parity stripe.
            survives: if self.is_scrub_owed { 0 } else { survives(self.lost().union(self.lacking.set())) },
            survives_elsewhere: survives(self.lost()),
            missing: slots(self.missing),
            rebuilding: slots(self.rebuilding),
            troubles: Trouble::ALL.into_iter().flat_map(ailing).collect(),
            held_up: rebuild.into_iter().chain(replace).collect(),
            unwritten: self.unwritten.map(unwritten),
            lost: self.lacking.lost.map(lost),
            lacking: self.lacking.members().map(lacking).collect(),
            scrub_owed: self.is_scrub_owed,
            salvage: description.salvage.clone(),
            ..Health::default()
        };
        log_devices::add_to(
            &mut health,
            [self.troubles.failed_logs, self.deleted_logs, self.troubles.stalled_logs],
            &description.logs.borrow(),
        );
        health
    }

    /// The members that keep somebody waiting.
    pub(crate) fn late(&self) -> MemberSet {
        self.troubles.stalled.union(self.troubles.roomless)
    }

    /// The members that keep somebody waiting; empty if the array, with a shape or two, can do without them.
    pub(crate) fn awaited(&self, shapes: &[Geometry]) -> MemberSet {
        let late = self.late();
        if self.survives(shapes, late) { MemberSet::EMPTY } else { late }
    }

    /// Whether the array, with a shape or two, goes on without these members, too.
    pub(crate) fn survives(&self, shapes: &[Geometry], without: MemberSet) -> bool {
        shapes.iter().all(|shape| Repair::new(shape, self.lost().union(without)).is_ok())
    }

    /// Whether a flush may put into the journal what can't be written out.
    pub(crate) fn is_kept_by_a_flush(&self) -> bool {
        self.unwritten.is_some() && self.has_journal && !self.is_frozen && self.late().is_empty()
    }

    /// What a stop would lose, and what to do about it; `None` if nothing. `unwritten_bytes` is the amount of clients'
    /// data that is only in memory.
    pub(crate) fn loss(&self, shapes: &[Geometry], unwritten_bytes: u64) -> Option<String> {
        let survives = |members: MemberSet| self.survives(shapes, members);
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
        let is_held_up = !self.awaited(shapes).is_empty();
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
                let stripes: Vec<String> = stripes(shapes, unwritten.ranges()).iter().map(bytes).collect();
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

/// The array's sectors in the parity stripes of ascending ranges, as half-open ranges; in whole ones of every shape.
fn stripes(shapes: &[Geometry], ranges: impl Iterator<Item = Range<Lba>>) -> Vec<[u64; 2]> {
    let stripe = shapes.iter().map(|shape| shape.stripe_sectors().0).fold(1, common_multiple);
    let capacity = shapes.iter().map(|shape| shape.capacity().0).min().unwrap_or_default();
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

/// The least one of two numbers above 0.
fn common_multiple(one: u64, other: u64) -> u64 {
    (1..=other).map(|times| one.saturating_mul(times)).find(|all| all.is_multiple_of(other)).unwrap_or(u64::MAX)
}

fn blocks(lbas: Range<Lba>) -> [u64; 2] {
    [lbas.start.0, lbas.end.0]
}

/// The slots of members.
pub(crate) fn slots(members: MemberSet) -> Vec<u8> {
    members.iter().map(|member| member.0).collect()
}

#[cfg(test)]
mod tests {
    use uraid_io::cache::Cause;
    use uraid_layout::{Bytes, Level, Rotation, Sectors, Spec};

    use super::*;

    fn members(slots: &[u8]) -> MemberSet {
        slots.iter().map(|&slot| MemberIndex(slot)).collect()
    }

    #[test]
    fn the_worst_is_the_state() {
        let degraded = Condition { missing: members(&[1]), ..Condition::default() };
        let troubles = |troubles| Condition { troubles, ..degraded };
        let stalled = Troubles { stalled: members(&[2]), ..Troubles::default() };
        let roomless = Troubles { roomless: members(&[2]), ..Troubles::default() };
        let failing = Troubles { failing: members(&[2]), ..stalled };
        for (condition, state) in [
            (Condition::default(), HealthState::Whole),
            (Condition { slow: members(&[1]), ..Condition::default() }, HealthState::Whole),
            (degraded, HealthState::Degraded),
            (Condition { lacking: Lacking::new(&[(1, 3)], Sectors(0)), ..Condition::default() }, HealthState::Degraded),
            (Condition { lacking: Lacking::new(&[(1, 3)], Sectors(8)), ..Condition::default() }, HealthState::Failing),
            (Condition { rebuilding: members(&[1]), ..Condition::default() }, HealthState::Degraded),
            (Condition { is_scrub_owed: true, ..Condition::default() }, HealthState::Degraded),
            (troubles(stalled), HealthState::Stalled),
            (troubles(roomless), HealthState::Stalled),
            (troubles(failing), HealthState::Failing),
            (Condition { deleted: members(&[2]), ..troubles(stalled) }, HealthState::Failing),
            (Condition { cut_off: members(&[2]), ..degraded }, HealthState::Failing),
            (Condition { taken: members(&[2]), ..Condition::default() }, HealthState::Frozen),
            (
                Condition { unwritten: Some(Unwritten::new(Sectors(8), Cause::default(), [])), ..degraded },
                HealthState::Failing,
            ),
            (troubles(Troubles { is_partial: true, ..failing }), HealthState::Salvage),
            (
                Condition { last_resort: LastResort { stale: members(&[2]), is_partial: false }, ..degraded },
                HealthState::Salvage,
            ),
            (
                Condition { last_resort: LastResort { is_partial: true, ..LastResort::default() }, ..degraded },
                HealthState::Salvage,
            ),
            (Condition { is_frozen: true, ..troubles(failing) }, HealthState::Frozen),
        ] {
            assert_eq!(condition.state(), state, "{condition:?}");
        }
        assert!(HealthState::ALL.is_sorted());
    }

    #[test]
    fn a_stop_loses_what_nobody_has_afterwards() {
        let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let spec = Spec { level, members: 4, chunk: Bytes(64 << 10), member_size: Sectors(1 << 16) };
        let whole = Condition::default();
        let shapes = [Geometry::new(spec).expect("an array")];
        let loss = |condition: Condition, bytes| condition.loss(&shapes, bytes).is_some();
        assert!(!loss(whole, 1 << 20));
        // In the second stripe; stripes have 3 x 128 sectors.
        let unwritten = Unwritten::new(Sectors(8), Cause::default(), [Lba(400)..Lba(408)]);
        let stuck = Condition { unwritten: Some(unwritten), ..whole };
        assert!(!loss(stuck, 0));
        let text = stuck.loss(&shapes, 8192).expect("what could not be written is lost");
        assert!(text.contains("8 KiB that clients have written are only in memory"), "{text}");
        assert!(text.contains("write all of bytes 196608 to 393216, or mend the members, and flush"), "{text}");
        let more = Unwritten::new(Sectors(16), Cause::default(), unwritten.ranges());
        let text = Condition { unwritten: Some(more), ..whole }.loss(&shapes, 8192).expect("the same");
        assert!(text.contains("to 393216 and more, or "), "{text}");
        // The array survives the loss of one of four members, but not of two.
        let deleted = |slots| Condition { deleted: members(slots), ..whole };
        assert!(!loss(deleted(&[1]), 0) && loss(deleted(&[1, 2]), 0));
        assert!(loss(Condition { missing: members(&[0]), ..deleted(&[1]) }, 0));
        let late = |stalled, roomless| {
            let troubles = Troubles { stalled: members(stalled), roomless: members(roomless), ..Troubles::default() };
            Condition { troubles, ..whole }
        };
        assert!(loss(late(&[1], &[2]), 4096) && !loss(late(&[1], &[2]), 0));
        assert!(!loss(late(&[1], &[]), 4096), "it is given up");
        assert!(!loss(Condition { is_frozen: true, ..late(&[1], &[2]) }, 4096), "that is lost already");
    }

    #[test]
    fn what_another_shape_needs_is_awaited_and_its_stripes_are_whole() {
        let spec =
            |members| Spec { level: Level::Raid0, members, chunk: Bytes(64 << 10), member_size: Sectors(1 << 16) };
        let shapes = [3, 4].map(|members| Geometry::new(spec(members)).expect("an array"));
        let roomless = Troubles { roomless: members(&[3]), ..Troubles::default() };
        let waiting = Condition { troubles: roomless, ..Condition::default() };
        assert_eq!(waiting.awaited(&shapes[..1]), MemberSet::EMPTY, "the shape does not have that member");
        assert_eq!(waiting.awaited(&shapes), members(&[3]));
        assert!(waiting.loss(&shapes, 512).is_some());
        // Stripes of 384 and of 512 sectors.
        assert_eq!(stripes(&shapes, [Lba(1600)..Lba(1608)].into_iter()), [[1536, 3072]]);
    }
}
