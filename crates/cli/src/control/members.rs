//! Members as administrators name them, and what is done with them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use uraid_io::array::JoinOptions;
use uraid_io::member::Allocation;
use uraid_layout::Bytes;

use super::Control;
use super::protocol::Added;
use crate::about::Member;

impl Control {
    pub(super) async fn fail(&self, name: &str) -> Result<()> {
        let _alone = self.changing.lock().await;
        self.reactor.fail_member(self.about.find(name)?).await
    }

    pub(super) async fn remove(&self, name: &str) -> Result<()> {
        let _alone = self.changing.lock().await;
        if self.drop_spare(name) {
            return Ok(());
        }
        let slot = self.about.find(name)?;
        self.reactor.take_out(slot)?;
        self.about.set_path(slot, None);
        Ok(())
    }

    /// Takes a member in, or makes a spare where none is missing.
    pub(super) async fn add(&self, path: PathBuf, force: bool, size: Option<u64>) -> Result<Added> {
        let _alone = self.changing.lock().await;
        // A member that has failed and was not removed is still held, and locked.
        if let Ok(slot) = self.about.find(&path.display().to_string()) {
            let _ = self.reactor.take_out(slot);
        }
        let options = JoinOptions { size: size.map(Bytes), allocation: Allocation::Full, force };
        let added = if self.reactor.vacancies().is_empty() {
            self.add_spare(path.clone(), options).await
        } else {
            self.take_in(path.clone(), options).await
        };
        added.with_context(|| format!("{} can't be added", path.display()))
    }

    async fn take_in(&self, path: PathBuf, options: JoinOptions) -> Result<Added> {
        let prepared = self.reactor.prepare(path.clone(), options).await?;
        let (slot, uuid) = (prepared.slot(), prepared.uuid());
        let before = self.about.set_member(slot, Member { uuid, path: Some(path.clone()) });
        match self.reactor.join(prepared).await {
            Ok(()) => {
                self.drop_spare(&path.display().to_string());
                Ok(Added { slot: Some(slot.0), uuid: Some(uuid) })
            }
            Err(error) => {
                self.about.set_member(slot, before);
                Err(error)
            }
        }
    }
}
