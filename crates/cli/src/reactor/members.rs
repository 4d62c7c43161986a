//! Members that administrators give up, take out and take in while the array is served.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use uraid_io::array::{JoinOptions, join, rejoin};
use uraid_io::engine::{Command, Joining};
use uraid_io::member::{Access, Member};
use uraid_io::superblock::{self, Superblock};
use uraid_layout::{Bytes, MemberIndex};
use uuid::Uuid;

use super::{Reactor, Token};

/// What a member is to be prepared for.
struct Place {
    truth: Superblock,
    slot: MemberIndex,
}

impl Reactor {
    /// Gives a member up; ready when that is on record.
    pub(crate) async fn fail_member(&self, member: MemberIndex) -> Result<()> {
        self.command(Command::Fail { member }).await
    }

    /// Lets go of a member that the array does without already.
    pub(crate) fn take_out(&self, slot: MemberIndex) -> Result<()> {
        ensure!(
            self.peers.is_none(),
            "members are taken out where one reactor serves the array; serve it with --reactors 1"
        );
        let mut engine = self.engine.borrow_mut();
        ensure!(engine.missing().contains(slot), "the array goes on with member {slot}: fail it first");
        match engine.disk_mut().put(slot, None) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => bail!("slot {slot} has no member"),
            Err(_) => bail!("operations on member {slot} are still under way; try again when they have ended"),
        }
    }

    /// Takes a member in, which is rebuilt from then on: one that returns, or a new one for a slot without a member. Gives its slot and UUID when
    /// that is on record. Nothing else may be done with members meanwhile.
    pub(crate) async fn admit(&self, path: PathBuf, options: JoinOptions) -> Result<(MemberIndex, Uuid)> {
        ensure!(
            self.peers.is_none(),
            "members are rebuilt where one reactor serves the array; serve it with --reactors 1"
        );
        let place = {
            let engine = self.engine.borrow();
            let slot = engine.missing().iter().next().context("no member is missing")?;
            Place { truth: engine.superblock().clone(), slot }
        };
        let prepared = spawn_blocking(move || prepare(&path, options, &place)).await;
        let (member, joining) = prepared.context("the member could not be prepared")??;
        let (slot, uuid) = (joining.superblock.slot, joining.superblock.member);
        {
            let mut engine = self.engine.borrow_mut();
            ensure!(engine.missing().contains(slot), "slot {slot} has a member");
            if engine.disk_mut().put(slot, Some(Arc::new(member))).is_err() {
                bail!(
                    "operations on the member that was in slot {slot} are still under way; try again when they have ended"
                );
            }
        }
        let joined = self.command(Command::Join(Box::new(joining))).await;
        if joined.is_err() {
            // It keeps nothing that an array relies on; where operations are under way it goes with the server.
            let _ = self.engine.borrow_mut().disk_mut().put(slot, None);
        }
        joined.map(|()| (slot, uuid))
    }

    /// Limits how fast each member is rebuilt, in bytes a second.
    pub(crate) fn set_rebuild_limit(&self, limit: Option<Bytes>) {
        self.engine.borrow_mut().set_rebuild_limit(limit);
        self.turn();
    }

    async fn command(&self, command: Command) -> Result<()> {
        let (sender, reply) = oneshot::channel();
        self.engine.borrow_mut().submit(Token::Administrator(sender), command);
        self.turn();
        Ok(reply.await.context("the server is stopping")??)
    }
}

/// Opens a member and makes it ready; blocks.
fn prepare(path: &Path, options: JoinOptions, place: &Place) -> Result<(Member, Joining)> {
    let Place { truth, slot } = place;
    let returns = !options.force && path.exists() && {
        let member = Member::open(path, Access::Inspect)?;
        superblock::load(&member).is_ok_and(|own| own.array == truth.array)
    };
    Ok(if returns { rejoin(path, truth)? } else { join(path, options, truth, *slot)? })
}
