//! Members as administrators name them, and what is done with them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use uraid_io::array::JoinOptions;
use uraid_io::member::Allocation;
use uraid_layout::Bytes;

use super::Control;
use super::protocol::Added;

impl Control {
    pub(super) async fn fail(&self, name: &str) -> Result<()> {
        let _alone = self.changing.lock().await;
        self.reactor.fail_member(self.about.find(name)?).await
    }

    pub(super) async fn remove(&self, name: &str) -> Result<()> {
        let _alone = self.changing.lock().await;
        let slot = self.about.find(name)?;
        self.reactor.take_out(slot)?;
        self.about.set_path(slot, None, None);
        Ok(())
    }

    pub(super) async fn add(&self, path: PathBuf, force: bool, size: Option<u64>) -> Result<Added> {
        let _alone = self.changing.lock().await;
        // A member that has failed and was not removed is still held, and locked.
        if let Ok(slot) = self.about.find(&path.display().to_string()) {
            let _ = self.reactor.take_out(slot);
        }
        let options = JoinOptions { size: size.map(Bytes), allocation: Allocation::Full, force };
        let joined = self.reactor.admit(path.clone(), options).await;
        let (slot, uuid) = joined.with_context(|| format!("{} can't be added", path.display()))?;
        self.about.set_path(slot, Some(uuid), Some(path));
        Ok(Added { slot: slot.0, uuid })
    }
}
