//! Members that administrators give up, take out and take in while the array is served.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use uraid_io::array::{JoinError, JoinOptions, join, rejoin};
use uraid_io::disk::UringDisk;
use uraid_io::engine::{Command, Engine, EngineError, Joining};
use uraid_io::member::{Access, Member};
use uraid_io::superblock::{self, Superblock};
use uraid_layout::{Bytes, MemberIndex, MemberSet};
use uuid::Uuid;

use super::{Reactor, Token};

/// How often members' files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A member that is ready to join.
#[derive(Debug)]
pub(crate) struct Prepared {
    member: Member,
    joining: Joining,
}

impl Prepared {
    /// The slot that it is for.
    pub(crate) fn slot(&self) -> MemberIndex {
        self.joining.superblock.slot
    }

    /// Who it is.
    pub(crate) fn uuid(&self) -> Uuid {
        self.joining.superblock.member
    }
}

impl Reactor {
    /// Gives a member up; ready when that is on record.
    pub(crate) async fn fail_member(&self, member: MemberIndex) -> Result<()> {
        self.command(Command::Fail { member }).await
    }

    /// Lets go of a member that the array does without already.
    pub(crate) fn take_out(&self, slot: MemberIndex) -> Result<()> {
        self.ensure_alone()?;
        let mut engine = self.engine.borrow_mut();
        ensure!(engine.missing().contains(slot), "the array goes on with member {slot}: fail it first");
        match engine.disk_mut().put(slot, None) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => bail!("slot {slot} has no member"),
            Err(_) => bail!("operations on member {slot} are still under way; try again when they have ended"),
        }
    }

    /// Lets go of a member that the array does without, if it has one; false: operations on it are still under way.
    pub(crate) fn let_go(&self, slot: MemberIndex) -> bool {
        self.engine.borrow_mut().disk_mut().put(slot, None).is_ok()
    }

    /// The slots without a member.
    pub(crate) fn vacancies(&self) -> MemberSet {
        self.engine.borrow().missing()
    }

    /// Refuses what only an array can do that one reactor serves, and that is not frozen.
    pub(crate) fn ensure_can_join(&self) -> Result<()> {
        self.ensure_alone()?;
        ensure!(!self.engine.borrow().is_frozen(), EngineError::Frozen);
        Ok(())
    }

    /// What the members that are there have on record.
    pub(crate) fn superblock(&self) -> Superblock {
        self.engine.borrow().superblock().clone()
    }

    /// Makes a member ready for a slot without one: one that returns is for its own, a new one for the first. Nothing else may be done with members meanwhile.
    pub(crate) async fn prepare(&self, path: PathBuf, options: JoinOptions) -> Result<Prepared> {
        self.ensure_can_join()?;
        let slot = self.vacancies().iter().next().context("no member is missing")?;
        let truth = self.superblock();
        prepare(move || {
            let returns = !options.force && path.exists() && {
                let member = Member::open(&path, Access::Inspect)?;
                superblock::load(&member).is_ok_and(|own| own.array == truth.array)
            };
            if returns { rejoin(&path, &truth) } else { join(&path, options, &truth, slot) }
        })
        .await
    }

    /// As [`Reactor::prepare`], a new one for this slot.
    pub(crate) async fn prepare_new(&self, path: PathBuf, options: JoinOptions, slot: MemberIndex) -> Result<Prepared> {
        self.ensure_can_join()?;
        let truth = self.superblock();
        prepare(move || join(&path, options, &truth, slot)).await
    }

    /// Takes a member in, which is rebuilt from then on; ready when that is on record.
    pub(crate) async fn join(&self, prepared: Prepared) -> Result<()> {
        let slot = prepared.slot();
        {
            let mut engine = self.engine.borrow_mut();
            ensure!(engine.missing().contains(slot), "slot {slot} has a member");
            if engine.disk_mut().put(slot, Some(Arc::new(prepared.member))).is_err() {
                bail!(
                    "operations on the member that was in slot {slot} are still under way; try again when they have ended"
                );
            }
        }
        let joined = self.command(Command::Join(Box::new(prepared.joining))).await;
        if joined.is_err() {
            // It keeps nothing that an array relies on; where operations are under way it goes with the server.
            let _ = self.engine.borrow_mut().disk_mut().put(slot, None);
        }
        joined
    }

    /// Limits how fast each member is rebuilt, in bytes a second.
    pub(crate) fn set_rebuild_limit(&self, limit: Option<Bytes>) {
        self.engine.borrow_mut().set_rebuild_limit(limit);
        self.turn();
    }

    fn ensure_alone(&self) -> Result<()> {
        ensure!(
            self.peers.is_none(),
            "members are taken out and in where one reactor serves the array; serve it with --reactors 1"
        );
        Ok(())
    }

    /// Gives members up whose files were deleted, for ever: what they hold ends with the server.
    pub(super) async fn miss_deleted(&self) {
        let mut said = MemberSet::EMPTY;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let look = deleted(&self.engine.borrow());
            let deleted = spawn_blocking(look).await.unwrap_or_default();
            let missing = self.engine.borrow().missing();
            // Another member may have the slot by now.
            said = said.iter().filter(|&member| deleted.contains(member)).collect();
            for member in deleted.minus(said).minus(missing).iter() {
                tracing::error!(%member, "the member's file was deleted");
                said = said.with(member);
                if let Err(error) = self.fail_member(member).await {
                    tracing::error!(%member, %error, "it is used until the server ends, and is lost then: copy what the array holds");
                }
            }
        }
    }

    async fn command(&self, command: Command) -> Result<()> {
        let (sender, reply) = oneshot::channel();
        self.engine.borrow_mut().submit(Token::Administrator(sender), command);
        self.turn();
        Ok(reply.await.context("the server is stopping")??)
    }
}

/// Finds members whose files were deleted; blocks.
fn deleted(engine: &Engine<UringDisk, Token>) -> impl FnOnce() -> MemberSet + Send + 'static {
    let members = engine.disk().members().to_vec();
    move || {
        let slots = (0..).map(MemberIndex).zip(members);
        slots
            .filter(|(_, member)| member.as_ref().is_some_and(|member| member.is_deleted()))
            .map(|(slot, _)| slot)
            .collect()
    }
}

/// Makes a member ready on a thread that may block.
async fn prepare(work: impl FnOnce() -> Result<(Member, Joining), JoinError> + Send + 'static) -> Result<Prepared> {
    let (member, joining) = spawn_blocking(work).await.context("the member could not be prepared")??;
    Ok(Prepared { member, joining })
}
