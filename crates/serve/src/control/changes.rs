//! Requests about members, and the names that administrators use for them.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, ensure};
use rustix::process::geteuid;
use tokio::sync::Notify;
use uraid_io::array::{Exchange, JoinOptions, Target};
use uraid_io::disk::log_place;
use uraid_io::engine::{EngineError, Troubles};
use uraid_io::format::superblock::{Allocation, LogIndex};
use uraid_io::member::{Access, Wait};
use uraid_layout::{Bytes, MemberIndex, MemberSet};

use super::returns::Returns;
use super::spares::Spares;
use crate::confinement::{Confinement, is_refusal};
use crate::description::Description;
use crate::disk::LiveDisk;
use crate::events::Event;
use crate::log_devices;
use crate::protocol::{Added, Answer, Grown, LogAdded, Replaced};
use crate::reactor::Reactor;
use crate::reactor::grow::grow;
use crate::reactor::members::Members;
use crate::reactor::{blocking, logs, reshape, slots};
use crate::shape::WantedShape;
use crate::text::list;

/// How often to look whether it is on record which way a reshape goes.
const TURN_PERIOD: Duration = Duration::from_millis(20);

/// How long that may take: longer than until what failed is tried once more.
const TURN_TIME_MAX: Duration = Duration::from_secs(15);

/// Changes of an array's members that administrators ask for.
pub(super) struct Changes<D> {
    pub(super) description: Rc<Description>,
    pub(super) reactor: Rc<Reactor<D>>,
    pub(super) members: Rc<Members<D>>,
    pub(super) spares: Rc<Spares<D>>,
    pub(super) returns: Rc<Returns<D>>,
    /// A reshape has begun.
    pub(super) begun: Notify,
}

impl<D: LiveDisk> Changes<D> {
    pub(super) async fn fail(&self, name: &str) -> Result<()> {
        let _alone = self.members.change().await;
        if let Some((replacement, member)) = self.members.replacement() {
            let is_path = member.path.is_some_and(|path| path.as_os_str() == name);
            if is_path || replacement.member.to_string() == name {
                return self.members.stop_replacing();
            }
        }
        if let Some(log) = self.description.find_log(name) {
            return self.members.fail(log_place(log)).await;
        }
        let slot = self.description.find(name)?;
        let member = self.members.superblock().slots[slot.index()].member;
        self.returns.leave(slot);
        let failed = async {
            self.ensure_not_awaited()?;
            self.returns.hear_from_others(slot).await?;
            self.members.fail(slot).await
        };
        failed.await.inspect_err(|_| self.returns.want(member))?;
        self.members.disown(slot).await;
        Ok(())
    }

    pub(super) async fn remove(&self, name: &str) -> Result<()> {
        let _alone = self.members.change().await;
        if self.spares.remove(name) {
            return Ok(());
        }
        if let Some(log) = self.description.find_log(name) {
            let removed = logs::remove(&self.reactor, log).await;
            self.note_logs();
            return removed;
        }
        let slot = self.description.find(name)?;
        self.members.take_out(slot)?;
        self.returns.leave(slot);
        self.reactor.tell_members();
        Ok(())
    }

    /// Adds a member, or a spare if no member is missing.
    pub(super) async fn add(&self, path: PathBuf, force: bool, size: Option<u64>) -> Result<Added> {
        let _alone = self.members.change().await;
        self.ensure_at_rest()?;
        self.take_in(path, force, size, None).await
    }

    /// Adds a log device, or takes one back that failed.
    pub(super) async fn add_log(&self, path: PathBuf, force: bool, size: Option<u64>) -> Result<LogAdded> {
        let _alone = self.members.change().await;
        let failed = self.reactor.engine().troubles().failed_logs;
        let former = self.description.find_log(&path.display().to_string()).filter(|log| failed.contains(*log));
        self.take_in_log(former, path, force, size).await
    }

    /// Has a new member take the place of another one, or a new log device that of another one.
    pub(super) async fn replace(&self, name: &str, path: PathBuf, force: bool, size: Option<u64>) -> Result<Answer> {
        let _alone = self.members.change().await;
        match self.description.find_log(name) {
            Some(log) => self.take_in_log(Some(log), path, force, size).await.map(Answer::LogAdded),
            None => self.replace_member(name, path, force, size).await.map(Answer::Replaced),
        }
    }

    async fn take_in_log(
        &self,
        replaced: Option<LogIndex>,
        path: PathBuf,
        force: bool,
        size: Option<u64>,
    ) -> Result<LogAdded> {
        ensure!(size.is_none(), "a log device's file gets the size that the log needs: leave --size out");
        let taken = logs::take_in(&self.reactor, replaced, &path, force).await;
        self.note_logs();
        let (log, uuid) = taken
            .with_context(|| format!("{} can't be a log device", path.display()))
            .map_err(|error| with_owner(error, &self.description.confinement))?;
        self.spares.remove(&path.display().to_string());
        self.reactor.watcher().into_iter().for_each(|watcher| watcher.tell(Event::LogDeviceJoined(log)));
        Ok(LogAdded { log_device: log.0, uuid })
    }

    /// Records the log devices that the array has now.
    fn note_logs(&self) {
        let logs = &self.description.logs;
        let now = log_devices::now(&self.reactor.engine(), &logs.borrow());
        logs.replace(now);
    }

    async fn replace_member(&self, name: &str, path: PathBuf, force: bool, size: Option<u64>) -> Result<Replaced> {
        self.ensure_at_rest()?;
        let slot = self.description.find(name)?;
        if self.reactor.vacancies().contains(slot)
            && let Added { slot: Some(slot), uuid: Some(uuid) } =
                self.take_in(path.clone(), force, size, Some(slot)).await?
        {
            return Ok(Replaced { slot, uuid, rebuilding: true });
        }
        let replaced = self.members.replace(slot, path.clone(), options(force, size)).await;
        let uuid = replaced
            .with_context(|| format!("{} can't take the place of {name}", path.display()))
            .map_err(|error| with_owner(error, &self.description.confinement))?;
        Ok(Replaced { slot: slot.0, uuid, rebuilding: false })
    }

    /// Has the array use the room of members that were enlarged.
    pub(super) async fn grow(&self, used: Option<Bytes>) -> Result<Grown> {
        let _alone = self.members.change().await;
        let before = self.description.size().0;
        let geometry = grow(&self.reactor, used).await?;
        self.description.set_geometry(geometry);
        let size_bytes = self.description.size().0;
        tracing::info!(before, now = size_bytes, "the array has grown");
        self.reactor.watcher().into_iter().for_each(|watcher| watcher.tell(Event::Grown));
        Ok(Grown { size_bytes_before: before, size_bytes })
    }

    /// Begins to give the array another shape.
    ///
    /// # Errors
    /// If that can't be; see [`reshape::begin`].
    pub(super) async fn begin_reshape(&self, wanted: WantedShape) -> Result<()> {
        let _alone = self.members.change().await;
        self.ensure_at_rest()?;
        let WantedShape { level, variant, chunk_bytes, add, remove, force, degraded } = wanted;
        ensure!(
            add.is_empty() || remove.is_empty(),
            "members can join or leave, not both at once: exchange members with `uraid replace`"
        );
        let (truth, is_whole) = (self.members.superblock(), self.reactor.vacancies().is_empty());
        let (spec, slots) = (truth.spec, usize::from(truth.spec.members));
        let members = self.reactor.engine().disk().members()[..slots].to_vec();
        let paths: Vec<String> = add.iter().chain(&remove).map(|path| path.display().to_string()).collect();
        let open = move || Exchange::open(&add, &remove, &members, (&truth, is_whole), Access::ReadWrite, force);
        let exchange = blocking::within_deadline(&self.reactor, &list(&paths), open).await?;
        let mut exchange =
            exchange.map_err(Error::from).map_err(|error| with_owner(error, &self.description.confinement))?;
        let count = u8::try_from(exchange.count(slots)).context("an array has at most 64 members")?;
        let target = Target {
            level: variant.level_after(level.as_deref(), spec.level, count).map_err(Error::msg)?,
            members: count,
            chunk: chunk_bytes.map_or(spec.chunk, Bytes),
            kept: None,
            allow_degraded: degraded,
        };
        reshape::check(&self.reactor, &target, &exchange)?;
        let truth = self.members.superblock();
        let clear = move || exchange.clear(&truth).map(|()| exchange);
        let exchange = blocking::within_deadline(&self.reactor, &list(&paths), clear).await??;
        let description = Rc::clone(&self.description);
        reshape::begin(&self.reactor, &target, exchange, move |engine| {
            let to = engine.superblock().shapes().into_iter().nth(1);
            description.set_shapes(engine.geometry().clone(), to);
            description.set_members(slots::members(engine));
        })
        .await?;
        for path in &paths {
            // One of them may have been a spare.
            let _ = self.spares.remove(path);
        }
        self.reactor.tell_members();
        self.begun.notify_one();
        tracing::info!(level = %target.level.name(), members = target.members, "the array gets another shape");
        self.reactor.watcher().into_iter().for_each(|watcher| watcher.tell(Event::ReshapeStarted));
        Ok(())
    }

    /// Has a reshape go on, or back.
    ///
    /// # Errors
    /// If the array is not being reshaped, or it is not on record that it goes that way.
    pub(super) async fn turn_reshape(&self, is_back: bool) -> Result<()> {
        // It is not turned while it ends.
        let _alone = self.members.change().await;
        let failed = "it can't be put on record now which way the reshape goes";
        self.reactor.engine().check_changes().context(failed)?;
        let turned = self.reactor.adjust(|engine| engine.reshape().map(|way| way.turn(is_back)));
        ensure!(turned.is_some(), "the array is not being reshaped");
        let (begun, way) = (Instant::now(), if is_back { "back" } else { "on" });
        while self.reactor.engine().reshape().is_some_and(|way| !way.progress().is_turned) {
            if self.reactor.engine().is_frozen() {
                self.reactor.adjust(|engine| engine.reshape().into_iter().for_each(|way| way.turn(!is_back)));
                return Err(EngineError::Frozen).context(failed);
            }
            let late = self.awaited();
            ensure!(
                late.is_empty(),
                "the reshape goes {way} only when what is moving now is written, which waits for {}; `uraid status` \
                 says why. If the server ends before that, it goes on as before",
                self.description.named(late)
            );
            ensure!(
                begun.elapsed() < TURN_TIME_MAX,
                "it is not on record yet that the reshape goes {way}; that is tried again, and the log says why. If \
                 the server ends before, it goes on as before"
            );
            tokio::time::sleep(TURN_PERIOD).await;
        }
        tracing::info!(is_back, "the reshape has been turned");
        Ok(())
    }

    /// Ends a reshape when all content is where it is to be; whether there was one.
    ///
    /// # Errors
    /// If the server ends.
    pub(super) async fn finish_reshape(&self) -> Result<bool> {
        let _alone = loop {
            if !reshape::is_over(&self.reactor).await {
                return Ok(false);
            }
            let alone = self.members.change().await;
            // It may have been turned meanwhile.
            if self.reactor.engine().reshape().is_some_and(|way| way.is_over()) {
                break alone;
            }
        };
        let is_back = self.reactor.engine().reshape().is_some_and(|way| way.progress().is_back);
        let geometry = reshape::finish(&self.reactor).await?;
        self.description.members.borrow_mut().truncate(geometry.members());
        tracing::info!(level = %geometry.spec().level, members = geometry.members(), is_back, "the reshape is over");
        self.description.set_geometry(geometry);
        self.reactor.tell_members();
        self.reactor.watcher().into_iter().for_each(|watcher| watcher.tell(Event::ReshapeFinished { is_back }));
        Ok(true)
    }

    /// Refuses what is not for an array between two shapes, before anything is written.
    fn ensure_at_rest(&self) -> Result<()> {
        if self.reactor.engine().reshape().is_some() { Err(EngineError::Reshaping.into()) } else { Ok(()) }
    }

    /// Refuses what would wait, with everything else, until members take what is moving to another shape.
    fn ensure_not_awaited(&self) -> Result<()> {
        let late = self.awaited();
        ensure!(
            late.is_empty(),
            "content is moving to another shape, and waits for {}; `uraid status` says why. Mend that and try again; a \
             member that the array can do without is given up by itself, when the write deadline is over",
            self.description.named(late)
        );
        Ok(())
    }

    /// The members that what is moving to another shape waits for.
    fn awaited(&self) -> MemberSet {
        let engine = self.reactor.engine();
        let Troubles { stalled, roomless, .. } = engine.troubles();
        if engine.reshape().is_some() { stalled.union(roomless) } else { MemberSet::EMPTY }
    }

    /// Adds a member. A new one gets this slot, or the first vacant one; without a vacant slot it becomes a spare.
    async fn take_in(&self, path: PathBuf, force: bool, size: Option<u64>, slot: Option<MemberIndex>) -> Result<Added> {
        // A failed member that was not removed is still open and locked.
        if let Ok(slot) = self.description.find(&path.display().to_string()) {
            let _ = self.members.take_out(slot);
        }
        let options = options(force, size);
        let added = if slot.is_none() && self.reactor.vacancies().is_empty() {
            self.spares.add(path.clone(), options).await
        } else {
            self.rebuild_on(path.clone(), options, slot).await
        };
        added
            .with_context(|| format!("{} can't be added", path.display()))
            .map_err(|error| with_owner(error, &self.description.confinement))
    }

    async fn rebuild_on(&self, path: PathBuf, options: JoinOptions, slot: Option<MemberIndex>) -> Result<Added> {
        self.members.record_missing().await?;
        let prepared = self.members.prepare(path.clone(), options, slot).await?;
        let (slot, uuid) = (prepared.slot(), prepared.uuid());
        self.members.join(prepared).await?;
        self.returns.want(uuid);
        self.spares.remove(&path.display().to_string());
        Ok(Added { slot: Some(slot.0), uuid: Some(uuid) })
    }
}

/// Names the server's user where it lacks the permission that the administrator has.
fn with_owner(error: Error, confinement: &Confinement) -> Error {
    if geteuid().is_root() || !is_refusal(&error) {
        return error;
    }
    let user = confinement.user();
    anyhow!(
        "{}; the server runs as user {user}: create the file yourself (truncate --size), and make {user} its owner \
         (chown)",
        crate::text::chain(&confinement.explain_paths(error))
    )
}

fn options(force: bool, size: Option<u64>) -> JoinOptions {
    JoinOptions { size: size.map(Bytes), allocation: Allocation::Full, force, wait: Wait::Briefly }
}
