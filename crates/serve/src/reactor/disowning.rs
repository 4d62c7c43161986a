//! Members that left the array: each is told so itself, as far as it can be written. Otherwise it would claim, opened
//! alone, to be the last one left of the array.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking, spawn_local};
use tokio::time::timeout;
use uraid_io::array::disown;
use uraid_io::format::superblock::Superblock;
use uraid_io::member::Member;

/// How long recording that on a member may take. It may hang.
const DISOWN_TIME_MAX: Duration = Duration::from_secs(2);

/// Members that are being told.
#[derive(Debug, Default)]
pub(super) struct Disowning {
    under_way: RefCell<Vec<JoinHandle<()>>>,
}

impl Disowning {
    /// Begins to record on a member that it is not part of the array of `truth`.
    pub(super) fn begin(&self, member: Arc<Member>, truth: Superblock) {
        let mut under_way = self.under_way.borrow_mut();
        under_way.retain(|one| !one.is_finished());
        under_way.push(spawn_local(tell(member, truth)));
    }

    /// Waits until all members that were begun with have been told, or can't be.
    pub(super) async fn finish(&self) {
        for one in self.under_way.take() {
            let _ = one.await;
        }
    }
}

/// Records on a member itself that it is no longer part of the array.
pub(super) async fn tell(member: Arc<Member>, truth: Superblock) {
    let path = member.path().to_owned();
    match timeout(DISOWN_TIME_MAX, spawn_blocking(move || disown(&member, &truth))).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!("a member that was given up could not be told: {error}"),
        Ok(Err(_)) | Err(_) => {
            let path = path.display();
            tracing::warn!(%path, "a member that was given up could not be told: it hangs");
        }
    }
}
