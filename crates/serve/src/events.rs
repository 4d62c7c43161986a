//! Events of a running array. They are found by comparing its condition between turns, logged, and passed on to the
//! administrator's program ([`Hook`]).

mod hook;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use uraid_io::cache::Unwritten;
use uraid_io::engine::Stuck;
use uraid_layout::{MemberIndex, MemberSet};

use crate::condition::Condition;
use crate::description::{Description, Member};
use crate::health::words;
use crate::protocol::{HealthState, Trouble};
use crate::systemd::Notifier;
use crate::text::list;
use hook::Call;

pub use hook::check_program;
pub(crate) use hook::{HOOK_TIME_MAX, Hook};

/// How long a member that stalls again is only logged. A member that stalls all the time is reported occasionally.
const STALL_QUIET: Duration = Duration::from_secs(10 * 60);

/// An event that administrators want to know about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The array is being served.
    Started,
    /// The array is no longer served.
    Stopped,
    /// A member failed, and the array continues without it.
    MemberFailed(MemberIndex),
    /// A member's file was deleted, and the array can't do without it.
    MemberDeleted(MemberIndex),
    /// A member lost content that the others can't make up for, or has many errors and the array can't do without it.
    MemberFailing(MemberIndex),
    /// Writes wait for room on a member's file system.
    MemberNoRoom(MemberIndex),
    /// A member does not answer, and somebody waits for it.
    MemberStalled(MemberIndex),
    /// Members are missing.
    Degraded,
    /// Clients wait for members, and nothing worse is the case.
    Stalled,
    /// Content is unavailable, or about to be lost.
    Failing,
    /// The rest of the array is read: members are out of date, or too many are gone.
    Salvage,
    /// More members failed than the level survives. The set holds the last of them.
    Frozen(MemberSet),
    /// Flushes fail, because acknowledged data can't be written out. The set holds the members that prevent it.
    FlushFailing(MemberSet),
    /// All of that data, or newer data in its place, has been written out.
    FlushRecovered,
    /// A rebuild can't continue, because these members can't be read.
    RebuildStuck(MemberSet),
    /// A copy can't continue, because these members can't be read.
    ReplaceStuck(MemberSet),
    /// A spare takes the place of a member.
    SpareTaken(MemberIndex),
    /// A member joined and is being rebuilt.
    RebuildStarted(MemberIndex),
    /// A member is complete.
    RebuildFinished(MemberIndex),
    /// A member is being copied to another one.
    ReplaceStarted(MemberIndex),
    /// The copy has taken the member's place.
    ReplaceFinished(MemberIndex),
    /// The copy was stopped, and the member keeps its place.
    ReplaceStopped(MemberIndex),
    /// The member being copied failed. The new one takes its place as it is, and is rebuilt.
    ReplaceRebuilding(MemberIndex),
    /// Every member is present and complete again.
    Recovered,
    /// A scrub has found a mismatch.
    ScrubMismatch,
    /// A scrub has compared everything.
    ScrubFinished,
    /// A scrub has compared what it could while members were missing. It does not count as complete.
    ScrubIncomplete,
    /// A member takes many times as long as the others.
    MemberLagging(MemberIndex),
    /// A member's disk reports that it is failing.
    MemberSmart(MemberIndex),
    /// A member was missing when the server started.
    MemberMissing(MemberIndex),
}

/// Watches for events.
pub(crate) struct Watcher {
    description: Rc<Description>,
    last: Cell<Condition>,
    hook: RefCell<Option<Hook>>,
    notifier: Rc<Notifier>,
    changed: Notify,
    /// Stalls that were reported, and when.
    stalls: RefCell<Vec<(Event, Instant)>>,
    /// The array stalls again, without a new report.
    is_quiet: Cell<bool>,
}

impl Event {
    /// The event's name for the program.
    fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::MemberFailed(_) => "member-failed",
            Self::MemberDeleted(_) => "member-deleted",
            Self::MemberFailing(_) => "member-failing",
            Self::MemberNoRoom(_) => "member-no-room",
            Self::MemberStalled(_) => "member-stalled",
            Self::Degraded => "degraded",
            Self::Stalled => "stalled",
            Self::Failing => "failing",
            Self::Salvage => "salvage",
            Self::Frozen(_) => "frozen",
            Self::FlushFailing(_) => "flush-failing",
            Self::FlushRecovered => "flush-recovered",
            Self::RebuildStuck(_) => "rebuild-stuck",
            Self::ReplaceStuck(_) => "replace-stuck",
            Self::SpareTaken(_) => "spare-taken",
            Self::RebuildStarted(_) => "rebuild-started",
            Self::RebuildFinished(_) => "rebuild-finished",
            Self::ReplaceStarted(_) => "replace-started",
            Self::ReplaceFinished(_) => "replace-finished",
            Self::ReplaceStopped(_) => "replace-stopped",
            Self::ReplaceRebuilding(_) => "replace-rebuilding",
            Self::Recovered => "recovered",
            Self::ScrubMismatch => "scrub-mismatch",
            Self::ScrubFinished => "scrub-finished",
            Self::ScrubIncomplete => "scrub-incomplete",
            Self::MemberLagging(_) => "member-lagging",
            Self::MemberSmart(_) => "member-smart",
            Self::MemberMissing(_) => "member-missing",
        }
    }

    /// The members that the event is about.
    fn members(self) -> MemberSet {
        match self {
            Self::Frozen(members)
            | Self::FlushFailing(members)
            | Self::RebuildStuck(members)
            | Self::ReplaceStuck(members) => members,
            Self::MemberFailed(member)
            | Self::MemberDeleted(member)
            | Self::MemberFailing(member)
            | Self::MemberNoRoom(member)
            | Self::MemberStalled(member)
            | Self::MemberLagging(member)
            | Self::MemberSmart(member)
            | Self::MemberMissing(member)
            | Self::SpareTaken(member)
            | Self::RebuildStarted(member)
            | Self::RebuildFinished(member)
            | Self::ReplaceStarted(member)
            | Self::ReplaceFinished(member)
            | Self::ReplaceStopped(member)
            | Self::ReplaceRebuilding(member) => MemberSet::EMPTY.with(member),
            _ => MemberSet::EMPTY,
        }
    }

    fn log(self, array: &str, members: &[String], health: &str) {
        let event = self.name();
        let member = (!members.is_empty()).then(|| list(members));
        match self {
            Self::MemberFailed(slot) => {
                tracing::error!(event, array, %slot, member, "a member failed, and the array continues without it");
            }
            Self::SpareTaken(slot) => {
                tracing::warn!(event, array, %slot, member, "a spare takes the place of a member");
            }
            Self::RebuildStarted(slot) => tracing::info!(event, array, %slot, member, "a member is being rebuilt"),
            Self::RebuildFinished(slot) => tracing::info!(event, array, %slot, member, "a member has been rebuilt"),
            Self::ReplaceStarted(slot) => {
                tracing::info!(event, array, %slot, member, "a member is being copied to another one");
            }
            Self::ReplaceFinished(slot) => {
                tracing::info!(event, array, %slot, member, "a member has taken over a slot from another one");
            }
            Self::ReplaceStopped(slot) => {
                tracing::warn!(event, array, %slot, member, "the copy of a member was stopped: the member keeps its \
                    slot");
            }
            Self::ReplaceRebuilding(slot) => {
                tracing::warn!(event, array, %slot, member, "a member failed while it was copied: the new one takes \
                    over its slot now and is rebuilt");
            }
            Self::MemberDeleted(slot) => {
                tracing::error!(event, array, %slot, member, "a member's file was deleted, and its content is lost \
                    when the server ends");
            }
            Self::MemberFailing(slot) => {
                tracing::error!(event, array, %slot, member, "a member lost content that the other members can't make \
                    up for, or has too many errors");
            }
            Self::MemberNoRoom(slot) => {
                tracing::error!(event, array, %slot, member, "writes wait for room on a member's file system");
            }
            Self::MemberStalled(slot) => {
                tracing::error!(event, array, %slot, member, "a member does not answer, and the array waits for it");
            }
            Self::Frozen(_)
            | Self::Salvage
            | Self::Failing
            | Self::FlushFailing(_)
            | Self::RebuildStuck(_)
            | Self::ReplaceStuck(_) => {
                tracing::error!(event, array, member, "the array is {health}");
            }
            Self::FlushRecovered => {
                tracing::info!(event, array, "all cached content can be written out again");
            }
            Self::Stalled => tracing::warn!(event, array, "the array is {health}"),
            Self::Degraded => tracing::warn!(event, array, "the array is degraded"),
            Self::ScrubMismatch => tracing::error!(
                event,
                array,
                "a scrub found members that disagree, or blocks that do not match their checksums"
            ),
            Self::ScrubFinished => tracing::info!(event, array, "a scrub is complete"),
            Self::ScrubIncomplete => tracing::warn!(
                event,
                array,
                "a scrub is incomplete because members are missing; the next one is due when the array is whole"
            ),
            Self::MemberLagging(slot) => {
                tracing::warn!(event, array, %slot, member, "a member is many times slower than the others and slows \
                    the array down");
            }
            Self::MemberSmart(slot) => {
                tracing::error!(event, array, %slot, member, "a member's disk says of itself that it fails (SMART): \
                    replace it");
            }
            Self::MemberMissing(slot) => {
                tracing::warn!(event, array, %slot, member, "a member is missing: the array is served without it");
            }
            Self::Started | Self::Stopped | Self::Recovered => tracing::info!(event, array, "the array is {self}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recovered => "whole again",
            event => event.name(),
        })
    }
}

impl Condition {
    /// The events between this condition and `now`, causes first.
    fn events(self, now: Self) -> Vec<Event> {
        let mut events = self.replacements(now);
        events.extend(now.missing.minus(self.missing).iter().map(Event::MemberFailed));
        events.extend(self.promoted(now).map(Event::ReplaceRebuilding));
        let into = |trouble| now.members_in(trouble).minus(self.members_in(trouble));
        events.extend(into(Trouble::Deleted).iter().map(Event::MemberDeleted));
        events.extend(into(Trouble::Failing).iter().map(Event::MemberFailing));
        events.extend(into(Trouble::NoRoom).iter().map(Event::MemberNoRoom));
        events.extend(into(Trouble::Stalled).iter().map(Event::MemberStalled));
        events.extend(into(Trouble::Lagging).iter().map(Event::MemberLagging));
        events.extend(into(Trouble::Smart).iter().map(Event::MemberSmart));
        events.extend(now.rebuilding.minus(self.rebuilding).iter().map(Event::RebuildStarted));
        events.extend(self.rebuilding.minus(now.rebuilding).minus(now.missing).iter().map(Event::RebuildFinished));
        if self.lost().is_empty() && !now.lost().is_empty() {
            events.push(Event::Degraded);
        }
        let stripe = |stuck: Option<Stuck>| stuck.map(|stuck| stuck.stripe);
        if let Some(stuck) = now.rebuild_stuck.filter(|_| stripe(self.rebuild_stuck) != stripe(now.rebuild_stuck)) {
            events.push(Event::RebuildStuck(stuck.unreadable));
        }
        if let Some(stuck) = now.replace_stuck.filter(|_| stripe(self.replace_stuck) != stripe(now.replace_stuck)) {
            events.push(Event::ReplaceStuck(stuck.unreadable));
        }
        match (self.unwritten, now.unwritten) {
            (None, Some(Unwritten { cause, .. })) => {
                events.push(Event::FlushFailing(cause.unreadable.union(cause.unwritable)));
            }
            (Some(_), None) => events.push(Event::FlushRecovered),
            _ => {}
        }
        let (before, state) = (self.state(), now.state());
        match state {
            HealthState::Stalled if before < state => events.push(Event::Stalled),
            HealthState::Failing if before < state => events.push(Event::Failing),
            HealthState::Frozen if before < state => events.push(Event::Frozen(now.troubles.frozen_by)),
            HealthState::Whole if before > state => events.push(Event::Recovered),
            _ => {}
        }
        events
    }
}

impl Condition {
    /// The events about copies between this condition and `now`.
    fn replacements(self, now: Self) -> Vec<Event> {
        let taken = now.replaced.filter(|_| now.replaced != self.replaced).map(|(slot, _)| slot);
        let began = now.replacing.or(taken).filter(|_| self.replacing.is_none());
        let has_ended = now.replacing.is_none() && taken.is_none();
        // A rebuild that began instead may have finished already.
        let is_stopped = |&slot: &MemberIndex| {
            has_ended && !now.is_promoting(slot) && (self.promoting.is_none() || now.missing.contains(slot))
        };
        let stopped = self.replacing.or(self.promoting).filter(is_stopped);
        let started = began.map(Event::ReplaceStarted);
        let ended = taken.map(Event::ReplaceFinished).or(stopped.map(Event::ReplaceStopped));
        started.into_iter().chain(ended).collect()
    }

    /// The slot whose member failed between this condition and `now`, and whose copy takes its place anyway.
    fn promoted(self, now: Self) -> Option<MemberIndex> {
        self.replacing.filter(|&slot| self.promoting.is_none() && now.is_promoting(slot))
    }

    /// Whether the intended copy of a member is being rebuilt in its place, or is about to be.
    fn is_promoting(self, slot: MemberIndex) -> bool {
        self.promoting == Some(slot) || self.rebuilding.contains(slot)
    }
}

impl Watcher {
    /// Watches an array in this condition, and reports that it is being served.
    pub(crate) fn new(
        description: Rc<Description>,
        now: Condition,
        hook: Option<Hook>,
        notifier: Rc<Notifier>,
    ) -> Self {
        let watcher = Self {
            description,
            last: Cell::new(now),
            hook: RefCell::new(hook),
            notifier,
            changed: Notify::new(),
            stalls: RefCell::default(),
            is_quiet: Cell::default(),
        };
        watcher.notify(now);
        watcher.tell(Event::Started);
        // Members that failed while nobody watched are reported, too.
        now.missing.iter().for_each(|member| watcher.tell(Event::MemberMissing(member)));
        if now.state() == HealthState::Salvage {
            watcher.tell(Event::Salvage);
        } else if !now.lost().is_empty() {
            watcher.tell(Event::Degraded);
        }
        watcher
    }

    /// Records the members in the slots and their paths.
    pub(crate) fn set_members(&self, members: Vec<Member>) {
        self.description.set_members(members);
    }

    /// Examines the array's condition. `members` returns the members in the slots and their paths.
    pub(crate) fn look(&self, now: Condition, members: impl FnOnce() -> Vec<Member>) {
        let last = self.last.replace(now);
        if last != now {
            self.set_members(members());
            last.events(now).into_iter().filter(|&event| self.is_news(event, last)).for_each(|event| self.tell(event));
            self.notify(now);
            self.changed.notify_one();
        }
    }

    /// Whether an event is news, and not a member that stalls again or the end of that.
    fn is_news(&self, event: Event, last: Condition) -> bool {
        match event {
            Event::MemberStalled(_) | Event::MemberNoRoom(_) | Event::Stalled => {
                let mut stalls = self.stalls.borrow_mut();
                stalls.retain(|(_, told)| told.elapsed() < STALL_QUIET);
                let is_news = stalls.iter().all(|(other, _)| *other != event);
                if is_news {
                    stalls.push((event, Instant::now()));
                }
                if event == Event::Stalled {
                    self.is_quiet.set(!is_news);
                }
                is_news
            }
            Event::Recovered => !(self.is_quiet.take() && last.state() == HealthState::Stalled),
            _ => true,
        }
    }

    /// Waits until the array's condition changes. Only one caller can wait at a time.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Reports that the array is no longer served. Waits until the program has been notified, or `hurried` completes.
    pub(crate) async fn end(&self, hurried: impl Future<Output = ()>) {
        self.tell(Event::Stopped);
        if let Some(hook) = self.hook.take() {
            hook.end(hurried).await;
        }
    }

    fn notify(&self, now: Condition) {
        let Condition { missing, rebuilding, .. } = now;
        let array = self.description.title();
        let rebuilding: Vec<_> = rebuilding.iter().collect();
        let missing: Vec<_> = missing.iter().collect();
        self.notifier.status(&match missing.as_slice() {
            _ if now.state() > HealthState::Degraded => {
                format!("{array} is {}", words(&now.health(&self.description, &[])))
            }
            [] if !rebuilding.is_empty() => format!("{array} is being rebuilt: member {}", list(&rebuilding)),
            [] => format!("{array} is whole"),
            missing => format!("{array} is degraded: without member {}", list(missing)),
        });
    }

    /// Logs an event and passes it on.
    pub(crate) fn tell(&self, event: Event) {
        let array = self.description.title();
        let members: Vec<String> = event.members().iter().map(|member| self.description.member(member)).collect();
        let health = words(&self.last.get().health(&self.description, &[]));
        event.log(&array, &members, &health);
        if let Some(hook) = &*self.hook.borrow() {
            hook.call(Call { event: event.name(), array, members, health });
        }
    }
}

#[cfg(test)]
mod tests {
    use uraid_io::cache::Cause;
    use uraid_io::engine::Troubles;
    use uraid_io::format::UnixSeconds;
    use uraid_layout::{Bytes, Geometry, Lba, Level, Rotation, Sectors, Spec, StripeId};
    use uuid::Uuid;

    use super::*;

    fn condition(missing: &[u8], is_frozen: bool) -> Condition {
        let missing = missing.iter().map(|&slot| MemberIndex(slot)).collect();
        Condition { missing, is_frozen, ..Condition::default() }
    }

    #[test]
    fn a_rebuild_is_told_from_its_start_to_its_end() {
        let member = MemberIndex(2);
        let set = MemberSet::EMPTY.with(member);
        let (whole, degraded) = (condition(&[], false), condition(&[2], false));
        let rebuilding = Condition { rebuilding: set, ..whole };
        assert_eq!(degraded.events(rebuilding), [Event::RebuildStarted(member)]);
        assert_eq!(rebuilding.events(whole), [Event::RebuildFinished(member), Event::Recovered]);
        assert_eq!(rebuilding.events(degraded), [Event::MemberFailed(member)]);
        assert_eq!(whole.events(rebuilding), [Event::RebuildStarted(member), Event::Degraded]);
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
        assert_eq!(before.events(copying), [started]);
        assert_eq!(copying.events(done), [finished]);
        assert_eq!(before.events(done), [started, finished]);
        assert_eq!(copying.events(before), [stopped]);
        assert_eq!(copying.events(missing), [stopped, Event::MemberFailed(member), Event::Degraded]);
        // The old member failed, and the new one is rebuilt in its place.
        let (promoting, failed) = (Condition { promoting: Some(member), ..missing }, Event::MemberFailed(member));
        let joined = Condition { rebuilding: missing.missing, ..before };
        let (rebuilding, joins) = (Event::ReplaceRebuilding(member), Event::RebuildStarted(member));
        for held in [promoting, Condition { replacing: Some(member), ..promoting }] {
            assert_eq!(copying.events(held), [failed, rebuilding, Event::Degraded]);
            assert_eq!(held.events(promoting), []);
            assert_eq!(held.events(joined), [joins]);
            assert_eq!(held.events(missing), [stopped], "it could not join");
        }
        assert_eq!(copying.events(joined), [rebuilding, joins, Event::Degraded]);
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
            assert_eq!(before.events(after), events, "{before:?} -> {after:?}");
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
        assert_eq!(whole.events(lagging), [Event::MemberLagging(MemberIndex(2))], "and the array is whole");
        assert_eq!(lagging.events(lagging), []);
        let smart = Condition { smart: set(2), ..whole };
        assert_eq!(whole.events(smart), [Event::MemberSmart(MemberIndex(2))], "and the array is whole");
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
            (whole, some(8), &[Event::FlushFailing(set(1).union(set(2))), Event::Failing]),
            (some(8), some(16), &[]),
            (some(8), whole, &[Event::FlushRecovered, Event::Recovered]),
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
            assert_eq!(before.events(after), events, "{before:?} -> {after:?}");
        }
    }

    fn watcher() -> Watcher {
        let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let spec = Spec { level, members: 3, chunk: Bytes(64 << 10), member_size: Sectors(1 << 16) };
        let member = |_| Member::new(Uuid::nil(), None);
        let description = Description {
            name: "vault".into(),
            uuid: Uuid::nil(),
            level: "5",
            layout: "left-symmetric",
            created: UnixSeconds(0),
            size: Bytes(0),
            chunk: spec.chunk,
            geometry: Geometry::new(spec).expect("an array"),
            uri: String::new(),
            config: None,
            is_read_only: false,
            salvage: None,
            connection_threads: 0,
            members: RefCell::new((0..3).map(member).collect()),
            spares: RefCell::default(),
        };
        Watcher::new(Rc::new(description), Condition::default(), None, Rc::new(Notifier::from_env()))
    }

    #[test]
    fn a_member_that_stalls_again_and_again_is_told_of_once() {
        let watcher = watcher();
        let stalled = |slots: &[u8]| {
            let stalled = slots.iter().map(|&slot| MemberIndex(slot)).collect();
            Condition { troubles: Troubles { stalled, ..Troubles::default() }, ..Condition::default() }
        };
        let told = |before: Condition, now: Condition| -> Vec<Event> {
            before.events(now).into_iter().filter(|&event| watcher.is_news(event, before)).collect()
        };
        let ([one, two], whole) = ([1, 2].map(|slot| Event::MemberStalled(MemberIndex(slot))), Condition::default());
        assert_eq!(told(whole, stalled(&[1])), [one, Event::Stalled]);
        assert_eq!(told(stalled(&[1]), whole), [Event::Recovered]);
        for _ in 0..3 {
            assert_eq!(told(whole, stalled(&[1])), []);
            assert_eq!(told(stalled(&[1]), whole), [], "nobody has heard of it");
        }
        assert_eq!(told(whole, stalled(&[1, 2])), [two]);
        // Other events are always reported.
        let degraded = Condition { missing: MemberSet::EMPTY.with(MemberIndex(1)), ..whole };
        assert_eq!(told(stalled(&[1, 2]), degraded), [Event::MemberFailed(MemberIndex(1)), Event::Degraded]);
        assert_eq!(told(degraded, whole), [Event::Recovered]);
    }
}
