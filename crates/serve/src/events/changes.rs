//! The events between two conditions of an array.

use uraid_io::cache::Unwritten;
use uraid_io::engine::Stuck;
use uraid_layout::MemberIndex;

use super::event::Event;
use crate::condition::Condition;
use crate::protocol::{HealthState, Trouble};

/// The events between the `last` condition and the one `now`, causes first.
pub(super) fn between(last: Condition, now: Condition) -> Vec<Event> {
    let mut events = replacements(last, now);
    events.extend(now.missing.minus(last.missing).iter().map(Event::MemberFailed));
    events.extend(promoted(last, now).map(Event::ReplaceRebuilding));
    let into = |trouble| now.members_in(trouble).minus(last.members_in(trouble));
    events.extend(into(Trouble::Deleted).iter().map(Event::MemberDeleted));
    events.extend(into(Trouble::Failing).iter().map(Event::MemberFailing));
    events.extend(into(Trouble::NoRoom).iter().map(Event::MemberNoRoom));
    events.extend(into(Trouble::Stalled).iter().map(Event::MemberStalled));
    events.extend(into(Trouble::Lagging).iter().map(Event::MemberLagging));
    events.extend(into(Trouble::Smart).iter().map(Event::MemberSmart));
    events.extend(now.troubles.failed_logs.minus(last.troubles.failed_logs).iter().map(Event::LogDeviceFailed));
    events.extend(now.deleted_logs.minus(last.deleted_logs).iter().map(Event::LogDeviceDeleted));
    let stalled = now.troubles.stalled_logs.minus(last.troubles.stalled_logs);
    events.extend(stalled.iter().map(Event::LogDeviceStalled));
    events.extend(now.rebuilding.minus(last.rebuilding).iter().map(Event::RebuildStarted));
    events.extend(last.rebuilding.minus(now.rebuilding).minus(now.missing).iter().map(Event::RebuildFinished));
    match (last.is_blank, now.is_blank) {
        (false, true) => events.push(Event::InitialiseStarted),
        (true, false) => events.push(Event::InitialiseFinished),
        _ => {}
    }
    if now.reshape_stuck.is_some() && now.reshape_stuck != last.reshape_stuck {
        events.push(Event::ReshapeStuck);
    }
    if !last.is_degraded() && now.is_degraded() {
        events.push(Event::Degraded);
    }
    if has_lost_more(last, now) {
        events.push(Event::ContentLost(now.lacking.set()));
    } else if last.lacking.lost.is_some() && now.lacking.lost.is_none() {
        events.push(Event::ContentRestored);
    }
    let stripe = |stuck: Option<Stuck>| stuck.map(|stuck| stuck.stripe);
    if let Some(stuck) = now.rebuild_stuck.filter(|_| stripe(last.rebuild_stuck) != stripe(now.rebuild_stuck)) {
        events.push(Event::RebuildStuck(stuck.unreadable));
    }
    if let Some(stuck) = now.replace_stuck.filter(|_| stripe(last.replace_stuck) != stripe(now.replace_stuck)) {
        events.push(Event::ReplaceStuck(stuck.unreadable));
    }
    match (last.unwritten, now.unwritten) {
        (None, Some(Unwritten { cause, .. })) => {
            events.push(Event::Unwritten(cause.unreadable.union(cause.unwritable)));
        }
        (Some(_), None) => events.push(Event::WrittenOut),
        _ => {}
    }
    let (before, state) = (last.state(), now.state());
    match state {
        HealthState::Stalled if before < state => events.push(Event::Stalled),
        HealthState::Failing if before < state => events.push(Event::Failing),
        HealthState::Frozen if before < state => events.push(Event::Frozen(now.troubles.frozen_by)),
        HealthState::Whole if before > state => events.push(Event::Recovered),
        _ => {}
    }
    events
}

/// Whether more content is lost than before. While a rebuild or a copy finds it piece by piece, this is told each time
/// that the amount has doubled; the event of its end tells how much it is.
fn has_lost_more(last: Condition, now: Condition) -> bool {
    let [before, after] = [last, now].map(|condition| condition.lacking.lost_len().0);
    let is_sweeping = !now.rebuilding.is_empty() || now.replacing.is_some();
    after > before && (before == 0 || !is_sweeping || after.ilog2() > before.ilog2())
}

/// The events about copies between the `last` condition and the one `now`.
fn replacements(last: Condition, now: Condition) -> Vec<Event> {
    let taken = now.replaced.filter(|_| now.replaced != last.replaced).map(|(slot, _)| slot);
    let began = now.replacing.or(taken).filter(|_| last.replacing.is_none());
    let has_ended = now.replacing.is_none() && taken.is_none();
    // A rebuild that began instead may have finished already.
    let is_stopped = |&slot: &MemberIndex| {
        has_ended && !is_promoting(now, slot) && (last.promoting.is_none() || now.missing.contains(slot))
    };
    let stopped = last.replacing.or(last.promoting).filter(is_stopped);
    let started = began.map(Event::ReplaceStarted);
    let ended = taken.map(Event::ReplaceFinished).or(stopped.map(Event::ReplaceStopped));
    started.into_iter().chain(ended).collect()
}

/// The slot whose member failed between the `last` condition and the one `now`, and whose copy takes its place anyway.
fn promoted(last: Condition, now: Condition) -> Option<MemberIndex> {
    last.replacing.filter(|&slot| last.promoting.is_none() && is_promoting(now, slot))
}

/// Whether the intended copy of a member is being rebuilt in its place, or is about to be.
fn is_promoting(condition: Condition, slot: MemberIndex) -> bool {
    condition.promoting == Some(slot) || condition.rebuilding.contains(slot)
}

#[cfg(test)]
mod tests {
    use uraid_io::cache::Cause;
    use uraid_io::engine::Troubles;
    use uraid_layout::{Lba, MemberSet, Sectors, StripeId};

    use super::*;
    use crate::lacking::Lacking;

    fn condition(missing: &[u8], is_frozen: bool) -> Condition {
        let missing = missing.iter().map(|&slot| MemberIndex(slot)).collect();
        Condition { missing, is_frozen, ..Condition::default() }
    }

    #[test]
    fn initialising_is_told_from_its_start_to_its_end() {
        let [blank, made] = [true, false].map(|is_blank| Condition { is_blank, ..condition(&[], false) });
        assert_eq!(between(made, blank), [Event::InitialiseStarted]);
        assert_eq!(between(blank, made), [Event::InitialiseFinished]);
        assert_eq!((between(blank, blank), between(made, made)), (vec![], vec![]));
    }

    #[test]
    fn each_place_that_a_reshape_is_stuck_at_is_told_once() {
        let [moving, first, second] =
            [None, Some(Lba(8)), Some(Lba(16))].map(|at| Condition { reshape_stuck: at, ..condition(&[], false) });
        assert_eq!((between(moving, first), between(first, first)), (vec![Event::ReshapeStuck], vec![]));
        assert_eq!((between(first, second), between(second, moving)), (vec![Event::ReshapeStuck], vec![]));
    }

    #[test]
    fn a_rebuild_is_told_from_its_start_to_its_end() {
        let member = MemberIndex(2);
        let set = MemberSet::EMPTY.with(member);
        let (whole, degraded) = (condition(&[], false), condition(&[2], false));
        let rebuilding = Condition { rebuilding: set, ..whole };
        assert_eq!(between(degraded, rebuilding), [Event::RebuildStarted(member)]);
        assert_eq!(between(rebuilding, whole), [Event::RebuildFinished(member), Event::Recovered]);
        assert_eq!(between(rebuilding, degraded), [Event::MemberFailed(member)]);
        assert_eq!(between(whole, rebuilding), [Event::RebuildStarted(member), Event::Degraded]);
    }

    #[test]
    fn a_copy_is_told_from_its_start_to_its_end() {
        let member = MemberIndex(2);
        let whole = condition(&[], false);
        let copying = Condition { replacing: Some(member), replaced: Some((MemberIndex(1), 4)), ..whole };
        let before = Condition { replacing: None, ..copying };
        let done = Condition { replaced: Some((member, 5)), ..before };
        let missing = Condition { missing: MemberSet::EMPTY.with(member), ..before };
        let (started, finished) = (Event::ReplaceStarted(member), Event::ReplaceFinished(member));
        let stopped = Event::ReplaceStopped(member);
        assert_eq!(between(before, copying), [started]);
        assert_eq!(between(copying, done), [finished]);
        assert_eq!(between(before, done), [started, finished]);
        assert_eq!(between(copying, before), [stopped]);
        assert_eq!(between(copying, missing), [stopped, Event::MemberFailed(member), Event::Degraded]);
        // The old member failed, and the new one is rebuilt in its place.
        let (promoting, failed) = (Condition { promoting: Some(member), ..missing }, Event::MemberFailed(member));
        let joined = Condition { rebuilding: missing.missing, ..before };
        let (rebuilding, joins) = (Event::ReplaceRebuilding(member), Event::RebuildStarted(member));
        for held in [promoting, Condition { replacing: Some(member), ..promoting }] {
            assert_eq!(between(copying, held), [failed, rebuilding, Event::Degraded]);
            assert_eq!(between(held, promoting), []);
            assert_eq!(between(held, joined), [joins]);
            assert_eq!(between(held, missing), [stopped], "it could not join");
        }
        assert_eq!(between(copying, joined), [rebuilding, joins, Event::Degraded]);
    }

    #[test]
    fn lost_content_is_told_when_there_is_more_of_it_and_when_there_is_none() {
        let whole = Condition::default();
        let lost = |sectors: u64| Condition { lacking: Lacking::new(&[(1, 1), (3, 1)], Sectors(sectors)), ..whole };
        let told = Event::ContentLost([1, 3].map(MemberIndex).into_iter().collect());
        assert_eq!(between(whole, lost(8)), [Event::Degraded, told, Event::Failing]);
        assert_eq!(between(lost(8), lost(8)), []);
        assert_eq!(between(lost(32), lost(40)), [told]);
        assert_eq!(between(lost(40), lost(8)), [], "a part of it was written");
        let bad = Condition { lacking: Lacking::new(&[(1, 1)], Sectors(0)), ..whole };
        assert_eq!(between(lost(8), bad), [Event::ContentRestored]);
        assert_eq!(between(lost(8), whole), [Event::ContentRestored, Event::Recovered]);
        assert_eq!(between(bad, whole), [Event::Recovered]);
        assert_eq!(between(whole, bad), [Event::Degraded]);
        // A rebuild does not tell each block.
        let rebuilding = |sectors| Condition { rebuilding: MemberSet::EMPTY.with(MemberIndex(1)), ..lost(sectors) };
        assert_eq!(between(rebuilding(32), rebuilding(40)), []);
        assert_eq!(between(rebuilding(56), rebuilding(64)), [told]);
        assert_eq!(between(rebuilding(32), lost(40)), [Event::RebuildFinished(MemberIndex(1)), told]);
    }

    #[test]
    fn changes_are_told_causes_first() {
        let [one, three] = [1, 3].map(|slot| Event::MemberFailed(MemberIndex(slot)));
        let cases: [(Condition, Condition, &[Event]); 6] = [
            (condition(&[], false), condition(&[], false), &[]),
            (condition(&[], false), condition(&[1, 3], false), &[one, three, Event::Degraded]),
            (condition(&[1], false), condition(&[1, 3], false), &[three]),
            (condition(&[1], false), condition(&[1, 3], true), &[three, Event::Frozen(MemberSet::EMPTY)]),
            (condition(&[], false), condition(&[], true), &[Event::Frozen(MemberSet::EMPTY)]),
            (condition(&[1, 3], false), condition(&[], false), &[Event::Recovered]),
        ];
        for (before, after, events) in cases {
            assert_eq!(between(before, after), events, "{before:?} -> {after:?}");
        }
    }

    #[test]
    fn troubles_are_told_with_their_members() {
        let set = |slot| MemberSet::EMPTY.with(MemberIndex(slot));
        let [one, two] = [1, 2].map(MemberIndex);
        let whole = Condition::default();
        let in_trouble = |troubles| Condition { troubles, ..whole };
        let stalled = in_trouble(Troubles { stalled: set(1), ..Troubles::default() });
        let roomless = in_trouble(Troubles { roomless: set(2), ..Troubles::default() });
        let failing = in_trouble(Troubles { failing: set(1), ..Troubles::default() });
        let lagging = Condition { lagging: set(2), ..whole };
        assert_eq!(between(whole, lagging), [Event::MemberLagging(MemberIndex(2))], "and the array is whole");
        assert_eq!(between(lagging, lagging), []);
        let smart = Condition { smart: set(2), ..whole };
        assert_eq!(between(whole, smart), [Event::MemberSmart(MemberIndex(2))], "and the array is whole");
        let deleted = Condition { deleted: set(2), ..whole };
        let frozen_by = Troubles { frozen_by: set(2), ..Troubles::default() };
        let frozen = Condition { is_frozen: true, troubles: frozen_by, ..condition(&[1], false) };
        let stuck = Stuck { stripe: StripeId(4), start: Sectors(0), len: Sectors(8), unreadable: set(2) };
        let held_up = Condition { rebuild_stuck: Some(stuck), rebuilding: set(1), ..whole };
        let rebuilding = Condition { rebuild_stuck: None, ..held_up };
        let some = |len: u64| {
            let cause = Cause { unreadable: set(1), unwritable: set(2) };
            Condition { unwritten: Some(Unwritten::new(Sectors(len), cause, [Lba(0)..Lba(len)])), ..whole }
        };
        let cases: [(Condition, Condition, &[Event]); 12] = [
            (whole, some(8), &[Event::Unwritten(set(1).union(set(2))), Event::Failing]),
            (some(8), some(16), &[]),
            (some(8), whole, &[Event::WrittenOut, Event::Recovered]),
            (whole, stalled, &[Event::MemberStalled(one), Event::Stalled]),
            (whole, roomless, &[Event::MemberNoRoom(two), Event::Stalled]),
            (stalled, roomless, &[Event::MemberNoRoom(two)]),
            (whole, failing, &[Event::MemberFailing(one), Event::Failing]),
            (failing, deleted, &[Event::MemberDeleted(two)]),
            (condition(&[1], false), frozen, &[Event::Frozen(set(2))]),
            (stalled, whole, &[Event::Recovered]),
            (rebuilding, held_up, &[Event::RebuildStuck(set(2))]),
            (held_up, Condition { rebuild_stuck: Some(Stuck { len: Sectors(16), ..stuck }), ..held_up }, &[]),
        ];
        for (before, after, events) in cases {
            assert_eq!(between(before, after), events, "{before:?} -> {after:?}");
        }
    }
}
