//! Members whose files were deleted while the array uses them: their content is lost when the server ends.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use uraid_layout::{MemberIndex, MemberSet};

use super::Reactor;
use super::reports::Checked;
use crate::disk::LiveDisk;

/// How often members' files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl<D: LiveDisk> Reactor<D> {
    /// Finds the members whose files were deleted. Returns `None` if the check hangs.
    pub(crate) async fn find_deleted(&self) -> Option<MemberSet> {
        let found = self.look_for_deleted().await?;
        Some(found.iter().map(|checked| checked.slot).collect())
    }

    async fn look_for_deleted(&self) -> Option<Vec<Checked>> {
        let members = self.engine.borrow().disk().members().to_vec();
        let look = move || -> Vec<Checked> {
            let slots = (0..).map(MemberIndex).zip(&members);
            let deleted =
                slots.filter_map(|(slot, member)| Some((slot, member.as_ref().filter(|it| it.is_deleted())?)));
            deleted.map(|(slot, member)| Checked::new(slot, member)).collect()
        };
        let mut found = timeout(LOOK_EVERY, spawn_blocking(look)).await.ok()?.ok()?;
        let missing = self.engine.borrow().missing();
        found.retain(|checked| !missing.contains(checked.slot));
        Some(found)
    }

    /// Fails members whose files were deleted: their content is lost when the server ends. Runs forever.
    pub(crate) async fn miss_deleted(&self) {
        loop {
            sleep(LOOK_EVERY).await;
            self.give_up_deleted().await;
        }
    }

    /// Fails the members whose files are deleted by now, as far as the array can do without them.
    pub(crate) async fn give_up_deleted(&self) {
        let Some(found) = self.look_for_deleted().await else { return };
        let said = self.reports.deleted(self.engine.borrow().disk());
        let mut kept = Vec::new();
        for checked in found {
            let member = checked.slot;
            if !said.contains(member) {
                tracing::error!(%member, "the member's file was deleted");
            }
            match self.fail_member(member).await {
                Ok(()) => continue,
                Err(error) if !said.contains(member) => {
                    tracing::error!(%member, %error, "it is used until the server ends, and is lost then: copy \
                        what the array holds");
                }
                Err(_) => {}
            }
            kept.push(checked);
        }
        self.reports.set_deleted(kept);
        self.turn();
    }
}
