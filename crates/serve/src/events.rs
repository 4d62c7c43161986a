//! Events of a running array. They are found by comparing its condition between turns, logged, and passed on to the
//! administrator's program ([`Hook`]).

mod changes;
mod event;
mod hook;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::condition::Condition;
use crate::description::{Description, Member};
use crate::health::words;
use crate::log_devices::Known;
use crate::protocol::HealthState;
use crate::systemd::Notifier;
use crate::text::list;
use changes::between;
use hook::Run;

pub(crate) use event::Event;
pub use hook::check_program;
pub(crate) use hook::{HOOK_TIME_MAX, Hook};

/// How long a member that stalls again is only logged. A member that stalls all the time is reported occasionally.
const STALL_QUIET: Duration = Duration::from_secs(10 * 60);

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
        now.troubles.failed_logs.iter().for_each(|log| watcher.tell(Event::LogDeviceFailed(log)));
        if now.state() == HealthState::Salvage {
            watcher.tell(Event::Salvage);
        } else if now.is_degraded() {
            watcher.tell(Event::Degraded);
        }
        if now.lacking.lost.is_some() {
            watcher.tell(Event::ContentLost(now.lacking.set()));
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
            between(last, now)
                .into_iter()
                .filter(|&event| self.is_news(event, last))
                .for_each(|event| self.tell(event));
            self.notify(now);
            self.changed.notify_one();
        }
    }

    /// Whether an event is news, and not a member that stalls again or the end of that.
    fn is_news(&self, event: Event, last: Condition) -> bool {
        match event {
            Event::MemberStalled(_) | Event::MemberNoRoom(_) | Event::LogDeviceStalled(_) | Event::Stalled => {
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

    /// Reports that the array is no longer served, nor a copy continued. Waits until the program has been notified, or
    /// `hurried` completes.
    pub(crate) async fn end(&self, hurried: impl Future<Output = ()>) {
        // Nothing on record tells the next server of a copy.
        let copied = self.last.get().replacing;
        copied.into_iter().for_each(|slot| self.tell(Event::ReplaceStopped(slot)));
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
            _ if now.state() > HealthState::Degraded || !now.lacking.set().is_empty() => {
                format!("{array} is {}", words(&now.health(&self.description, &[])))
            }
            [] if !rebuilding.is_empty() => format!("{array} is being rebuilt: member {}", list(&rebuilding)),
            [] if now.is_degraded() => format!("{array} is {}", words(&now.health(&self.description, &[]))),
            [] => format!("{array} is whole"),
            missing => format!("{array} is degraded: without member {}", list(missing)),
        });
    }

    /// Logs an event and passes it on.
    pub(crate) fn tell(&self, event: Event) {
        let array = self.description.title();
        let members = event.members();
        let members = members.iter().map(|member| self.description.member(member));
        let logs = self.description.logs.borrow();
        let log = event.log_device().and_then(|log| logs.get(usize::from(log.0)));
        let members: Vec<String> = members.chain(log.map(Known::name)).collect();
        let health = words(&self.last.get().health(&self.description, &[]));
        event.log(&array, &members, &health);
        if let Some(hook) = &*self.hook.borrow() {
            hook.call(Run { event: event.name(), array, members, health, detail: event.detail() });
        }
    }
}

#[cfg(test)]
mod tests {
    use uraid_io::engine::Troubles;
    use uraid_io::format::UnixSeconds;
    use uraid_layout::{Bytes, Geometry, Level, MemberIndex, MemberSet, Rotation, Sectors, Spec};
    use uuid::Uuid;

    use super::*;
    use crate::confinement::Confinement;
    use crate::description::Place;

    fn watcher() -> Watcher {
        let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let spec = Spec { level, members: 3, chunk: Bytes(64 << 10), member_size: Sectors(1 << 16) };
        let member = |_| Member::new(Uuid::nil(), None);
        let description = Description {
            name: "vault".into(),
            uuid: Uuid::nil(),
            created: UnixSeconds(0),
            geometry: RefCell::new(Geometry::new(spec).expect("an array")),
            other: RefCell::default(),
            size: Cell::new(Bytes(0)),
            place: Place::default(),
            config: None,
            confinement: Confinement::default(),
            is_read_only: false,
            salvage: None,
            connection_threads: 0,
            members: RefCell::new((0..3).map(member).collect()),
            logs: RefCell::default(),
            spares: RefCell::default(),
            domains: Vec::new(),
            away: RefCell::default(),
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
            between(before, now).into_iter().filter(|&event| watcher.is_news(event, before)).collect()
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
