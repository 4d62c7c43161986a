//! Members whose files were deleted while the array uses them: their content is lost when the server ends.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use uraid_io::disk::{log_at, log_place};
use uraid_io::format::superblock::{LogDevices, LogSet};
use uraid_io::member::Member;
use uraid_layout::{MemberIndex, MemberSet};

use super::Reactor;
use super::members::Members;
use super::reports::Checked;
use crate::disk::LiveDisk;

/// How often members' files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Finds the members whose files were deleted. Returns `None` if the check hangs.
pub(crate) async fn find<D: LiveDisk>(reactor: &Reactor<D>) -> Option<MemberSet> {
    let found = look(reactor).await?;
    Some(found.iter().map(|checked| checked.slot).collect())
}

/// Fails members whose files were deleted. Runs forever.
pub(crate) async fn watch<D: LiveDisk>(reactor: Rc<Reactor<D>>, members: Rc<Members<D>>) {
    let mut said = LogSet::EMPTY;
    loop {
        sleep(LOOK_EVERY).await;
        give_up(&reactor, &members).await;
        give_up_logs(&reactor, &members, &mut said).await;
    }
}

/// Does without the log devices whose files were deleted, as far as others are left. Those that are `said` are known.
async fn give_up_logs<D: LiveDisk>(reactor: &Reactor<D>, members: &Members<D>, said: &mut LogSet) {
    let places = (0..).map(MemberIndex).zip(reactor.engine.borrow().disk().members().to_vec());
    let known = reactor.engine.borrow().superblock().logs.as_ref().map(LogDevices::all).unwrap_or_default();
    let logs = places.filter_map(|(place, device)| Some((log_at(place)?, device?)));
    let logs: Vec<_> = logs.filter(|(log, _)| known.contains(*log)).collect();
    if logs.is_empty() {
        return;
    }
    let is_deleted = |(log, device): &(_, Arc<Member>)| device.is_deleted().then_some(*log);
    let look = move || -> LogSet { logs.iter().filter_map(is_deleted).collect() };
    let Some(Ok(deleted)) = timeout(LOOK_EVERY, spawn_blocking(look)).await.ok() else { return };
    let failed = reactor.engine.borrow().troubles().failed_logs;
    for log in deleted.minus(failed).minus(*said).iter() {
        tracing::error!(%log, "the log device's file was deleted");
        if let Err(error) = members.fail(log_place(log)).await {
            tracing::error!(%log, %error, "it is used until the server ends, and lost then: stop the server cleanly");
        }
        *said = said.with(log);
    }
    // Another device may have the number by now.
    *said = said.minus(said.minus(deleted));
    let failed = reactor.engine.borrow().troubles().failed_logs;
    reactor.reports.set_deleted_logs(deleted.minus(failed));
    reactor.turn();
}

/// Fails the members whose files are deleted by now, as far as the array can do without them.
pub(crate) async fn give_up<D: LiveDisk>(reactor: &Reactor<D>, members: &Members<D>) {
    let Some(found) = look(reactor).await else { return };
    let said = reactor.reports.deleted(reactor.engine.borrow().disk());
    let mut kept = Vec::new();
    for checked in found {
        let member = checked.slot;
        if !said.contains(member) {
            tracing::error!(%member, "the member's file was deleted");
        }
        match members.fail(member).await {
            Ok(()) => continue,
            Err(error) if !said.contains(member) => {
                tracing::error!(%member, %error, "it is used until the server ends, and is lost then: copy what the \
                    array holds");
            }
            Err(_) => {}
        }
        kept.push(checked);
    }
    reactor.reports.set_deleted(kept);
    reactor.turn();
}

async fn look<D: LiveDisk>(reactor: &Reactor<D>) -> Option<Vec<Checked>> {
    let members = reactor.engine.borrow().disk().members().to_vec();
    let look = move || -> Vec<Checked> {
        // Behind the slots are log devices.
        let slots = (0..64).map(MemberIndex).zip(&members);
        let deleted = slots.filter_map(|(slot, member)| Some((slot, member.as_ref().filter(|it| it.is_deleted())?)));
        deleted.map(|(slot, member)| Checked::new(slot, member)).collect()
    };
    let mut found = timeout(LOOK_EVERY, spawn_blocking(look)).await.ok()?.ok()?;
    let missing = reactor.engine.borrow().missing();
    found.retain(|checked| !missing.contains(checked.slot));
    Some(found)
}
