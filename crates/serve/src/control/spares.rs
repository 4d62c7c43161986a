//! Spares that take the places of missing members.
//!
//! Spares are taken one at a time, in the order in which they were named. Once taken, a spare is a member, whatever
//! happens to it. A spare whose present state prevents it from being taken (in use, absent, or not empty) is tried
//! again later; one that hangs, when it has answered. A spare that fails while it is being prepared is never tried
//! again. So every spare is written at most once, and a member that can't be rebuilt does not cause an endless loop.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_blocking, spawn_local};
use tokio::time::timeout;
use uraid_io::array::{self, JoinError, JoinOptions};
use uraid_io::format::superblock::Allocation;
use uraid_io::member::{MemberError, Wait};
use uraid_layout::MemberIndex;

use crate::description::{Description, Member};
use crate::disk::LiveDisk;
use crate::events::Event;
use crate::protocol::Added;
use crate::reactor::members::Members;
use crate::reactor::{Reactor, blocking};
use crate::spare::{SPARE_TIME_MAX, Spare};

/// How long to wait before trying spares again that could not be taken. The pause doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The result of filling the slots without a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// There is nothing more to do until something changes.
    Settled,
    /// A slot is empty, and a spare may become fit for it.
    Open,
}

/// The spares of an array.
pub(crate) struct Spares<D> {
    description: Rc<Description>,
    reactor: Rc<Reactor<D>>,
    members: Rc<Members<D>>,
    /// Notified when a silent spare answers.
    answered: Notify,
}

impl<D: LiveDisk> Spares<D> {
    /// The spares that `description` lists.
    pub(crate) fn new(description: Rc<Description>, reactor: Rc<Reactor<D>>, members: Rc<Members<D>>) -> Self {
        Self { description, reactor, members, answered: Notify::new() }
    }

    /// Lets spares take the places of missing or failing members. Runs forever.
    pub(crate) async fn keep_whole(self: Rc<Self>) {
        let silent: Vec<PathBuf> = self
            .description
            .spares
            .borrow()
            .iter()
            .filter(|spare| spare.is_silent)
            .map(|spare| spare.path.clone())
            .collect();
        for path in silent {
            let (truth, spare) = (self.members.superblock(), path.clone());
            let look = spawn_blocking(move || array::check(&spare, &truth));
            spawn_local(Rc::clone(&self).await_answer(path, look));
        }
        let mut pause = PAUSE_MIN;
        loop {
            let outcome = self.fill_slots().await;
            let Some(watcher) = self.reactor.watcher() else { return };
            tokio::select! {
                () = watcher.changed() => pause = PAUSE_MIN,
                () = self.answered.notified() => {}
                () = tokio::time::sleep(pause), if outcome == Outcome::Open => pause = PAUSE_MAX.min(2 * pause),
            }
        }
    }

    /// Adds a spare that nobody uses.
    pub(super) async fn add(&self, path: PathBuf, options: JoinOptions) -> Result<Added> {
        ensure!(!self.description.is_read_only, "the array is open for reading only");
        self.members.ensure_can_join()?;
        ensure!(
            self.description.geometry.borrow().tolerance() > 0,
            "the array survives no failure, so it can't use a spare"
        );
        if self.description.spares.borrow().iter().any(|spare| spare.path == path && !spare.is_given_up) {
            bail!("it is a spare already");
        }
        let (truth, spare) = (self.members.superblock(), path.clone());
        let make = move || array::make_spare(&spare, options, &truth);
        let (made, _) = blocking::prepare(&self.reactor, path.clone(), make).await?;
        made?;
        self.put(&path.clone(), [Spare::new(path)]);
        Ok(Added { slot: None, uuid: None })
    }

    /// Removes a spare. Returns false if there is none of this name, or only one that is about to be a member.
    pub(super) fn remove(&self, name: &str) -> bool {
        let mut spares = self.description.spares.borrow_mut();
        let count = spares.len();
        spares.retain(|spare| spare.path.as_os_str() != name || spare.is_taken);
        spares.len() < count
    }

    /// Fills the slots without a member, as far as there are spares.
    async fn fill_slots(self: &Rc<Self>) -> Outcome {
        let _alone = self.members.change().await;
        if self.reactor.engine().reshape().is_some() {
            // Nobody can join before that is over.
            return Outcome::Open;
        }
        for slot in self.reactor.vacancies().iter() {
            if !self.may_be_filled() || self.members.ensure_can_join().is_err() {
                return Outcome::Settled;
            }
            if !self.members.let_go(slot) || !self.fill(slot).await {
                return Outcome::Open;
            }
        }
        Outcome::Settled
    }

    fn may_be_filled(&self) -> bool {
        self.description.spares.borrow().iter().any(Spare::is_worth_trying)
    }

    /// Fills a slot with the first suitable spare. Returns false if there is none now.
    async fn fill(self: &Rc<Self>, slot: MemberIndex) -> bool {
        let paths: Vec<PathBuf> = {
            let spares = self.description.spares.borrow();
            spares.iter().filter(|spare| spare.is_worth_trying()).map(|spare| spare.path.clone()).collect()
        };
        for path in paths {
            match self.take(&path, slot).await {
                Ok(()) => return true,
                Err(error) => self.note_problem(&path, &error),
            }
        }
        false
    }

    async fn take(self: &Rc<Self>, path: &Path, slot: MemberIndex) -> Result<()> {
        self.refuse_silent(path).await?;
        // If somebody uses this spare, the next one will do.
        let options = JoinOptions { size: None, allocation: Allocation::Full, force: false, wait: Wait::Never };
        let prepared = self.members.prepare_new(path.into(), options, slot).await?;
        let taken = Member { uuid: prepared.uuid(), path: Some(path.into()) };
        self.description.set_member(slot, taken);
        // It is shown until it is a member: whoever waits for the array sees that somebody is about to be rebuilt.
        let spare = Spare::new(path.into());
        self.put(path, [Spare { is_taken: true, ..spare.clone() }]);
        if let Some(watcher) = self.reactor.watcher() {
            watcher.tell(Event::SpareTaken(slot));
        }
        let joined = self.members.join(prepared).await;
        self.put(path, joined.is_err().then_some(spare));
        joined
    }

    /// Has this be all that is known of spares at a path.
    fn put(&self, path: &Path, now: impl IntoIterator<Item = Spare>) {
        let mut spares = self.description.spares.borrow_mut();
        spares.retain(|spare| spare.path != path);
        spares.extend(now);
    }

    /// Refuses a spare that hangs: nobody waits for it, however long it takes to answer.
    async fn refuse_silent(self: &Rc<Self>, path: &Path) -> Result<()> {
        let (truth, spare) = (self.members.superblock(), path.to_owned());
        let mut look = spawn_blocking(move || array::check(&spare, &truth));
        if timeout(SPARE_TIME_MAX, &mut look).await.is_ok() {
            return Ok(());
        }
        if let Some(spare) = self.description.spares.borrow_mut().iter_mut().find(|spare| spare.path == path) {
            spare.is_silent = true;
        }
        spawn_local(Rc::clone(self).await_answer(path.to_owned(), look));
        let (path, action) = (path.to_owned(), "say what it holds");
        Err(JoinError::from(MemberError::Silent { path, action, deadline: SPARE_TIME_MAX }).into())
    }

    /// Waits for a spare to answer, and then allows it to be tried.
    async fn await_answer(self: Rc<Self>, path: PathBuf, look: JoinHandle<Result<(), JoinError>>) {
        let Ok(checked) = look.await else { return };
        if let Some(spare) = self.description.spares.borrow_mut().iter_mut().find(|spare| spare.path == path) {
            spare.is_silent = false;
            spare.problem = None;
        }
        match checked {
            Ok(()) => tracing::info!(spare = %path.display(), "a spare that did not answer can be used now"),
            Err(error) => self.note_problem(&path, &error.into()),
        }
        self.answered.notify_one();
    }

    fn note_problem(&self, path: &Path, error: &anyhow::Error) {
        let problem = crate::text::chain(error);
        let mut spares = self.description.spares.borrow_mut();
        let Some(spare) = spares.iter_mut().find(|spare| spare.path == path) else { return };
        spare.is_given_up |= !is_untouched(error);
        if spare.problem.as_ref() != Some(&problem) {
            tracing::warn!(spare = %path.display(), "a spare can't be used: {problem}");
            spare.problem = Some(problem);
        }
    }
}

/// Whether a spare was refused before anything was written to it.
fn is_untouched(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(
            JoinError::Member(_) | JoinError::NoSize { .. } | JoinError::TooSmall { .. } | JoinError::SectorSize(_),
        ) => true,
        Some(_) | None => false,
    }
}
