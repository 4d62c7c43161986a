//! The log devices of an array between its lives: which of them are there at a start, what has rotted on them, and what
//! fails.
//!
//! What must hold: as long as one is there that is active on record and has lost nothing, the array opens, and
//! everything is there that clients were promised, whatever becomes of the others. Without any it is refused. One that
//! is on record as failed is neither read nor written any more.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use uraid_io::Error;
use uraid_io::array::{Array, Mark, Named, OpenError, Opened, OpenedLog, Patience, Verdict};
use uraid_io::disk::log_place;
use uraid_io::format::BLOCK;
use uraid_io::format::log_device::{HEADER_BYTES, LogHeader, MARKS, decode_mark};
use uraid_io::format::superblock::{LogDevices, LogIndex, LogSet, Superblock, positions};
use uraid_layout::{Bytes, MemberIndex, MemberSet, SECTOR_BYTES};
use uuid::Uuid;

use super::faults::draw_of;
use super::finding::Finding;
use super::found::Found;
use super::report::Logged;
use super::rot::records;
use super::scenario::uuid;
use super::shelf::OPTIONS;
use crate::disk::{Faults, Rate, SimDisk};
use crate::member::Member;
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// Most places of a log device that rot between two lives.
const ROT_MAX: u64 = 4;

/// What is read at once at least.
const SECTOR: usize = SECTOR_BYTES as usize;

/// See the module.
#[derive(Debug)]
pub(super) struct LogShelf {
    /// Everything about log devices is drawn from it.
    pub(super) random: Random,
    /// How often the array gets other ones.
    pub(super) exchanges: u64,
    /// Every device that the array has, or had.
    pub(super) devices: BTreeMap<Uuid, Member>,
    /// Those of which something has rotted that may count.
    rotten: BTreeSet<Uuid>,
    /// Those that have failed something, or lost it, at some time, though they may count.
    suspects: BTreeSet<Uuid>,
    /// Those that are not there in this life, or are done without for another reason.
    excused: LogSet,
    pub(super) counts: Logged,
}

impl LogShelf {
    pub(super) fn new(random: Random, exchanges: u64) -> Self {
        let (devices, rotten, suspects) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { random, exchanges, devices, rotten, suspects, excused: LogSet::EMPTY, counts: Logged::default() }
    }

    /// Has log devices there at a start, if the array has any: in rough weather some are missing, and some have rotted,
    /// but one that is active on record is there and sound.
    ///
    /// # Errors
    /// When the array takes another set of them than it must.
    pub(super) fn bring(&mut self, found: &mut Found, is_rough: bool, trace: &Trace) -> Result<(), Finding> {
        let truth = found.verdict.superblock.clone();
        let Some(table) = &truth.logs else { return Ok(()) };
        self.counts.lives += 1;
        let active = table.active();
        let is_sound = |log: &LogIndex| !self.rotten.contains(&uuid_of(table, *log));
        let sound: Vec<LogIndex> = active.iter().filter(is_sound).collect();
        // Whoever counts is best asked alone where it lacked something.
        let suspects: Vec<LogIndex> =
            sound.iter().copied().filter(|log| self.suspects.contains(&uuid_of(table, *log))).collect();
        let is_suspect = !suspects.is_empty() && self.random.chance(1, 2);
        let kept = *self.random.pick(if is_suspect { &suspects } else { &sound });
        let others = active.minus(LogSet::EMPTY.with(kept));
        let mut hidden = LogSet::EMPTY;
        // What is on them counts for more where the array was not closed.
        let often = if truth.is_clean { 6 } else { 2 };
        if is_rough && (is_suspect || self.random.chance(1, often)) {
            let is_alone = is_suspect || self.random.chance(1, 2);
            hidden = others.iter().filter(|_| is_alone || self.random.chance(1, 2)).collect();
        }
        if is_rough && self.random.chance(1, often) {
            others.minus(hidden).iter().for_each(|log| self.rot(&truth, table, log, trace));
        }
        if self.random.chance(1, 4) {
            self.expect_refusals(found, table)?;
        }
        let lost = active.iter().filter(|log| self.rotten.contains(&uuid_of(table, *log))).collect();
        self.excused = hidden.union(table.failed()).union(lost);
        self.counts.missing += u64::from(!hidden.is_empty());
        trace.note(format_args!("log devices: {active} active, {hidden} missing, {lost} rotten"));
        self.admit(found, table, hidden)
    }

    /// Gives the array those log devices that are named, and that it accepts.
    fn admit(&mut self, found: &mut Found, table: &LogDevices, hidden: LogSet) -> Result<(), Finding> {
        let is_there = |log: LogIndex| !hidden.contains(log);
        let absent: BTreeSet<Uuid> = hidden.iter().map(|log| uuid_of(table, log)).collect();
        let mut named: Vec<Uuid> = self.devices.keys().copied().filter(|uuid| !absent.contains(uuid)).collect();
        self.random.shuffle(&mut named);
        let named = named.iter().map(|uuid| Says::of(&self.devices[uuid])).collect::<Result<Vec<_>, Finding>>()?;
        let accepted = judged(found, &named).map_err(|error| Finding::Refused { error: error.to_string() })?;
        let numbers = || (0..).map(LogIndex).zip(&table.devices);
        let expected = numbers().map(|(log, device)| Some(device.uuid).filter(|_| device.is_active && is_there(log)));
        if !accepted.iter().copied().eq(expected) {
            return Err(Finding::WrongLogs { accepted });
        }
        // Nobody has a reason to touch one that is on record as failed, though it is there.
        let shows_failed = self.random.chance(1, 2);
        let is_shown = |log, is_active| if is_active { is_there(log) } else { shows_failed };
        let device = |uuid: &Uuid| self.devices.get(uuid).cloned();
        let logs = numbers().map(|(log, at)| device(&at.uuid).filter(|_| is_shown(log, at.is_active))).collect();
        let members = std::mem::replace(&mut found.members, Members::of(Vec::new()));
        found.members = members.with_logs(logs);
        note_lost(&mut found.verdict, &found.members);
        Ok(())
    }

    /// Without its log devices the array must be refused, with another array's, and with a copy of one.
    fn expect_refusals(&mut self, found: &Found, table: &LogDevices) -> Result<(), Finding> {
        let named = table.active().iter().map(|log| Says::of(&self.devices[&uuid_of(table, log)]));
        let mut named = named.collect::<Result<Vec<Says>, Finding>>()?;
        let is_right = match self.random.below(3) {
            0 => matches!(judged(found, &[]), Err(OpenError::NoLogs { .. })),
            1 => {
                named[0].header.array = uuid(&mut self.random);
                matches!(judged(found, &named), Err(OpenError::ForeignLog { .. }))
            }
            _ => {
                named.push(named[0].clone());
                matches!(judged(found, &named), Err(OpenError::LogTwice { .. }))
            }
        };
        self.counts.refused += u64::from(is_right);
        if is_right { Ok(()) } else { Err(Finding::LogStranger) }
    }

    /// Changes bits of a device's rings, or makes blocks of them unreadable.
    fn rot(&mut self, truth: &Superblock, table: &LogDevices, log: LogIndex, trace: &Trace) {
        let (uuid, random) = (uuid_of(table, log), &mut self.random);
        let Some(device) = self.devices.get_mut(&uuid).filter(|_| random.chance(1, 2)) else { return };
        for _ in 0..random.within(1, ROT_MAX) {
            let slot = MemberIndex(u8::try_from(random.below(truth.slots.len() as u64)).expect("few members"));
            let own = Superblock { slot, ..truth.clone() };
            let (area, records) = (own.log_area(), records(device, &own, truth));
            let mut at = random.below(area.size.0);
            if !records.is_empty() && random.chance(3, 4) {
                let range = &random.pick(&records).range;
                at = random.within(range.start, range.end - 1);
            }
            let sector = Bytes(area.offset.0 + at / SECTOR_BYTES * SECTOR_BYTES);
            if random.chance(1, 6) {
                trace.note(format_args!("log device {log} can't read byte {sector} any more"));
                device.spoil(Bytes(sector.0 / BLOCK.bytes().0 * BLOCK.bytes().0), BLOCK.bytes());
            } else {
                trace.note(format_args!("log device {log} rots at byte {at} of member {slot}'s share"));
                let byte = usize::try_from(at % SECTOR_BYTES).expect("inside a sector");
                device.rot(sector, byte, 1 << random.below(8));
            }
            self.counts.rotten += 1;
        }
        self.rotten.insert(uuid);
        self.suspects.insert(uuid);
    }

    /// Takes note that the array is open: whatever counted of what has rotted is whole on all devices again.
    pub(super) fn opened(&mut self, disk: &SimDisk) {
        let rotten = std::mem::take(&mut self.rotten);
        if rotten.is_empty() {
            return;
        }
        // Of those that are not there nothing counts, unless the array was clean.
        let absent = self.devices.iter_mut().filter(|(uuid, _)| rotten.contains(uuid));
        absent.for_each(|(_, device)| device.recuperate());
        disk.with_members(|members| {
            for log in members.present_logs().iter() {
                members.get_mut(log_place(log)).expect("it is there").recuperate();
            }
        });
    }

    /// Whether log devices may fail before the array is open: not as long as others have lost something.
    pub(super) fn may_fail_early(&self) -> bool {
        self.rotten.is_empty()
    }

    /// Which log devices may fail in a life, and how: mostly not all of them.
    pub(super) fn faults(&mut self, found: &Found, is_rough: bool, has_deadlines: bool) -> (LogSet, Faults) {
        let present = active(&found.verdict.superblock).minus(found.verdict.lost_logs);
        let random = &mut self.random;
        if present.is_empty() || !is_rough || random.chance(1, 2) {
            return (LogSet::EMPTY, Faults::default());
        }
        let mut failing: LogSet = present.iter().filter(|_| random.chance(1, 2)).collect();
        if failing == present && random.chance(3, 4) {
            let kept = *random.pick(&present.iter().collect::<Vec<_>>());
            failing = failing.minus(LogSet::EMPTY.with(kept));
        }
        // They get fewer operations than members.
        let mut faults = draw_of(MemberSet::EMPTY, random);
        let mut often = |usual, most| {
            if random.chance(1, 2) { Rate(u32::try_from(random.within(1, most)).expect("small")) } else { usual }
        };
        (faults.read_eio, faults.write_eio) = (often(faults.read_eio, 5000), often(faults.write_eio, 5000));
        faults.vanish = often(faults.vanish, 1000);
        if has_deadlines {
            (faults.hang, faults.slow) = (often(faults.hang, 1500), often(faults.slow, 1500));
        }
        (failing, faults)
    }

    /// Whether the array did without some at the end of a life that are `failed` on record then, and have done nothing
    /// for it.
    ///
    /// # Errors
    /// If so.
    pub(super) fn check(&mut self, failed: LogSet, disk: &SimDisk, has_deadline: bool) -> Result<(), Finding> {
        let late = if has_deadline { disk.late_logs() } else { LogSet::EMPTY };
        let new = failed.minus(self.excused);
        self.counts.given_up += new.len() as u64;
        let wrong = new.minus(disk.struck_logs()).minus(late);
        if wrong.is_empty() { Ok(()) } else { Err(Finding::LogsGivenUp { logs: wrong }) }
    }

    /// Takes the log devices back after a life, in which some were `struck` by faults.
    ///
    /// # Errors
    /// When one was written that was on record as failed.
    pub(super) fn put(&mut self, left: &Members, truth: &Superblock, struck: LogSet) -> Result<(), Finding> {
        let Some(table) = &truth.logs else { return Ok(()) };
        self.suspects.extend(struck.iter().map(|log| uuid_of(table, log)));
        for (log, device) in left.logs() {
            let uuid = uuid_of(table, log);
            let before = self.devices.insert(uuid, device.clone());
            // What a killed program left with the kernel the power may take.
            let is_known = |before: &Member| before.unflushed().next().is_none();
            let is_same = before.filter(is_known).is_none_or(|before| before.current() == device.current());
            if !table.active().contains(log) && !is_same {
                return Err(Finding::LogWritten { log });
            }
        }
        Ok(())
    }
}

/// The active log devices of an array.
pub(super) fn active(truth: &Superblock) -> LogSet {
    truth.logs.as_ref().map(LogDevices::active).unwrap_or_default()
}

/// Takes note of the log devices that should be there, and are not.
pub(super) fn note_lost(verdict: &mut Verdict, members: &Members) {
    verdict.lost_logs = active(&verdict.superblock).minus(members.present_logs());
}

fn uuid_of(table: &LogDevices, log: LogIndex) -> Uuid {
    table.devices[usize::from(log.0)].uuid
}

/// What a log device says of itself.
#[derive(Clone, Debug)]
struct Says {
    header: LogHeader,
    runs: Vec<Uuid>,
    size: Bytes,
}

impl Says {
    fn of(device: &Member) -> Result<Self, Finding> {
        let positions = positions(device.size()).expect("a log device has room for its header");
        let copies = positions.map(|position| LogHeader::decode(&read::<HEADER_BYTES>(device, position)));
        let header = LogHeader::any(copies).map_err(|error| Finding::Refused { error: error.to_string() })?;
        let runs = MARKS.into_iter().filter_map(|at| decode_mark(&read::<SECTOR>(device, at))).collect();
        Ok(Self { header, runs, size: device.size() })
    }
}

fn read<const N: usize>(device: &Member, at: Bytes) -> [u8; N] {
    let mut bytes = [0; N];
    device.read(at, &mut bytes);
    bytes
}

/// Which of the log devices that say this the array accepts, by number.
fn judged(found: &Found, named: &[Says]) -> Result<Vec<Option<Uuid>>, OpenError> {
    let sector_size = Bytes(SECTOR_BYTES);
    let members = found.candidates.iter().cloned().map(|candidate| {
        let size = candidate.superblock.areas.member_size;
        Opened { member: None, candidate, size, sector_size, mark: Mark::default() }
    });
    let logs = named.iter().cloned().zip(0..).map(|(Says { header, runs, size }, number)| {
        let path = PathBuf::from(format!("log{number}"));
        OpenedLog { device: Some(header.uuid), path, header, runs, size, sector_size }
    });
    let named = Named { members: members.collect(), logs: logs.collect(), unreadable: Vec::new() };
    let mut accepted = None;
    // What is wanted is who would be there; nobody opens the array.
    let disk = |places: Vec<Option<Option<Uuid>>>| -> Result<SimDisk, Error> {
        let logs = places.into_iter().skip(log_place(LogIndex(0)).index());
        accepted = Some(logs.map(Option::flatten).collect());
        Err(Error::Ring { action: "open members", source: std::io::Error::other("nobody wants it") })
    };
    let opened = Array::of(named, OPTIONS, MemberSet::EMPTY, &mut Patience::endless(), disk);
    match (accepted, opened) {
        (Some(accepted), _) => Ok(accepted),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => unreachable!("an array has a disk"),
    }
}
