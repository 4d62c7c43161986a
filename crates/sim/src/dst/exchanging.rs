//! A stopped array that gets other log devices, or has its log on its members again.
//!
//! Cut off anywhere it has those that it had, or those that it was to get.

use uraid_io::array::{Assembled, ConfigureError, OpenError, Setting, Target, configure, judge};
use uraid_io::format::log::RING_BYTES_MIN;
use uraid_io::format::log_device::LogHeader;
use uraid_io::format::superblock::{Consistency, LogDevices, Superblock};
use uraid_io::format::{BLOCK, Epoch};
use uraid_io::member::Access;
use uraid_layout::{Bytes, MemberSet, Spec};
use uuid::Uuid;

use super::finding::Finding;
use super::logs::{LogShelf, note_lost};
use super::outage::Outage;
use super::roster::Roster;
use super::scenario::uuid;
use super::shapes::log_min;
use super::shelf::Shelf;
use crate::member::{Member, Payload};
use crate::members::Members;
use crate::trace::Trace;

/// Attempts after which nothing goes wrong any more.
const ATTEMPTS_MAX: u64 = 3;

/// Exchanges the log devices of an array that was closed, if it is whole and has a log.
///
/// # Errors
/// What must not be.
pub(super) fn exchange(
    logs: &mut LogShelf,
    shelf: &mut Shelf,
    roster: Option<&mut Roster>,
    trace: &Trace,
) -> Result<(), Finding> {
    let Some(found) = shelf.stopped(roster, &mut logs.random, trace)? else { return Ok(()) };
    let truth = found.verdict.superblock.clone();
    if !found.verdict.lost().is_empty() || truth.consistency != Consistency::Log {
        return Ok(());
    }
    let is_taken_out = truth.logs.is_some() && logs.random.chance(1, 4);
    let new = if is_taken_out { None } else { Some(make(logs, &truth)) };
    trace.note(format_args!("log devices are exchanged: {:?} for {new:?}", truth.logs));
    let most = logs.random.below(ATTEMPTS_MAX + 1);
    let (mut members, mut has_been_cut_off) = (found.members, false);
    for attempt in 0.. {
        let outage = Outage::draw(members.clone(), MemberSet::EMPTY, attempt >= most, &mut logs.random, trace);
        let configured = try_once(&outage, &members, new.as_ref(), logs)?;
        members = outage.end(&mut logs.random, trace);
        let now = table(&members)?;
        let is_known = now == new || now == truth.logs;
        match configured {
            Ok(()) if now == new => break,
            Err(Some(ConfigureError::LogTooSmall { .. })) if is_taken_out && truth.areas.log.size < least(&truth) => {
                break;
            }
            // Cut off.
            _ if outage.disk.is_dark() && is_known => {}
            Ok(()) => return Err(Finding::Shape { found: format!("{now:?}"), expected: format!("{new:?}") }),
            Err(error) => {
                let error = error.map_or_else(|| "cut off".into(), |error| error.to_string());
                return Err(Finding::Refused { error });
            }
        }
        logs.counts.cut_off += 1;
        has_been_cut_off = true;
        if now == new {
            break;
        }
    }
    let is_done = table(&members)? == new;
    logs.counts.exchanged += u64::from(is_done && new.is_some());
    logs.counts.taken_out += u64::from(is_done && new.is_none());
    shelf.altered(&members, MemberSet::EMPTY, |_| true);
    if has_been_cut_off {
        shelf.disturbed();
    }
    Ok(())
}

/// What the members say of the log devices.
fn table(members: &Members) -> Result<Option<LogDevices>, Finding> {
    let verdict = judge(&members.candidates()).map_err(|error| Finding::Refused { error: error.to_string() })?;
    Ok(verdict.superblock.logs)
}

/// As `uraid configure` does it: the devices that the array has are not needed for it. An error without a reason: it
/// was cut off before.
fn try_once(
    outage: &Outage,
    members: &Members,
    new: Option<&LogDevices>,
    logs: &mut LogShelf,
) -> Result<Result<(), Option<ConfigureError>>, Finding> {
    let candidates = members.candidates();
    let mut verdict = judge(&candidates).map_err(|error| Finding::Refused { error: error.to_string() })?;
    note_lost(&mut verdict, members);
    let generation = uuid(&mut logs.random);
    let assembled = Assembled::new(outage.disk.clone(), &verdict, &candidates, Access::ReadWrite, generation);
    match assembled {
        Ok(assembled) => Ok(configure(assembled, &Setting::Logs(new.cloned())).map(drop).map_err(Some)),
        // Members are brought up first that the last attempt did not reach.
        Err(_) if outage.disk.is_dark() => Ok(Err(None)),
        Err(error) => Err(Finding::Refused { error: OpenError::from(error).to_string() }),
    }
}

/// Makes log devices, of new ones and of such that the array does without, which hold what they held.
fn make(logs: &mut LogShelf, truth: &Superblock) -> LogDevices {
    let slots = truth.spec.members;
    let wanted = least(truth).0.max(RING_BYTES_MIN.0) * *logs.random.pick(&[1, 2, 2, 4]);
    let share = Bytes(wanted.next_multiple_of(BLOCK.bytes().0));
    let size = LogHeader::size_min(share, slots);
    let count = *logs.random.pick(&[1, 2, 2, 2, 3, 4]);
    let uuids: Vec<Uuid> = (0..count).map(|_| uuid(&mut logs.random)).collect();
    let has = |uuid: &Uuid| truth.logs.iter().flat_map(|logs| &logs.devices).any(|device| device.uuid == *uuid);
    let mut former: Vec<Uuid> = logs.devices.keys().copied().filter(|uuid| !has(uuid)).collect();
    for &own in &uuids {
        let used = if logs.random.chance(1, 2) { former.pop() } else { None };
        let mut device = used.and_then(|uuid| logs.devices.remove(&uuid)).unwrap_or_else(|| Member::zeroed(size));
        if device.size() < size {
            device.enlarge(size);
        }
        let (array, name) = (truth.array, truth.name.clone());
        let header = LogHeader { array, name, uuid: own, size: device.size(), share, slots };
        let bytes = Payload::Bytes(header.encode().to_vec().into());
        let positions = header.positions().expect("it has room for its header");
        positions.into_iter().for_each(|position| device.write(position, bytes.clone()));
        device.recuperate();
        device.flush();
        logs.devices.insert(own, device);
    }
    LogDevices::new(share, uuids, Epoch(truth.epoch.0 + 1))
}

/// The least log of a member.
fn least(truth: &Superblock) -> Bytes {
    let Spec { level, members, chunk, .. } = truth.spec;
    log_min(&Target { level, members, chunk, kept: None, allow_degraded: true })
}
