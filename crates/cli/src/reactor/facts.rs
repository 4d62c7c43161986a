//! What can be seen of the reactors while they run, and what can be changed then.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::oneshot;
use tokio::time::timeout;
use uraid_io::engine::{CacheMode, Counters, Fill};
use uraid_layout::{Bytes, MemberSet};
use uraid_nbd::Command;

use super::Reactor;
use super::post::Message;
use crate::control::protocol::Traffic;

/// How long a reactor may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a reactor is, or several together.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) counters: Counters,
    pub(crate) traffic: Traffic,
    pub(crate) missing: MemberSet,
    pub(crate) is_frozen: bool,
    pub(crate) survives: usize,
    pub(crate) cache_mode: Option<CacheMode>,
    pub(crate) cache: Option<Fill>,
    pub(crate) log: Option<Fill>,
}

impl Reactor {
    /// How all reactors are; this one is the keeper, or the only one.
    pub(crate) async fn all_facts(&self) -> Result<Facts> {
        let mut facts = self.facts();
        for other in self.ask_peers() {
            let other = timeout(PATIENCE, other).await.ok().and_then(Result::ok);
            let other = other.context("a reactor does not say how it is: the server is stopping, or a member hangs")?;
            facts.add(&other);
        }
        Ok(facts)
    }

    /// Changes when writes are replied to that come from now on, in all reactors; false: there is no cache.
    pub(crate) fn set_cache_mode(&self, mode: CacheMode) -> bool {
        if let Some(peers) = &self.peers {
            peers.outboxes.post_all(|| Message::CacheMode(mode));
            peers.outboxes.deliver();
        }
        self.engine.borrow_mut().set_cache_mode(mode)
    }

    /// How this reactor is.
    pub(super) fn facts(&self) -> Facts {
        let engine = self.engine.borrow();
        Facts {
            counters: engine.counters().clone(),
            traffic: self.traffic.get(),
            missing: engine.missing(),
            is_frozen: engine.is_frozen(),
            survives: engine.survives(),
            cache_mode: engine.cache_mode(),
            cache: engine.cache_fill(),
            log: engine.log_fill(),
        }
    }

    /// Counts a client's command.
    pub(super) fn count<B>(&self, command: &Command<B>) {
        let mut traffic = self.traffic.get();
        match command {
            Command::Read { span, .. } => {
                traffic.reads += 1;
                traffic.read_bytes += u64::from(span.length_bytes);
            }
            Command::Write { span, .. } | Command::WriteZeroes { span, .. } | Command::Trim { span, .. } => {
                traffic.writes += 1;
                traffic.written_bytes += u64::from(span.length_bytes);
            }
            Command::Flush => traffic.flushes += 1,
            Command::Cache { .. } | Command::BlockStatus { .. } => {}
        }
        self.traffic.set(traffic);
    }

    fn ask_peers(&self) -> Vec<oneshot::Receiver<Facts>> {
        let Some(peers) = &self.peers else { return Vec::new() };
        let others = peers.bands.shards().filter(|&shard| shard != peers.shard);
        let answers = others.map(|shard| {
            let (sender, answer) = oneshot::channel();
            peers.outboxes.post(shard, Message::Look(sender));
            answer
        });
        let answers = answers.collect();
        peers.outboxes.deliver();
        answers
    }
}

impl Facts {
    fn add(&mut self, other: &Self) {
        let sum = |a: Option<Fill>, b: Option<Fill>| match (a, b) {
            (Some(a), Some(b)) => Some(Fill { used: Bytes(a.used.0 + b.used.0), limit: Bytes(a.limit.0 + b.limit.0) }),
            (one, other) => one.or(other),
        };
        self.counters.add(&other.counters);
        self.traffic = self.traffic.plus(other.traffic);
        self.is_frozen |= other.is_frozen;
        self.cache = sum(self.cache, other.cache);
        self.log = sum(self.log, other.log);
    }
}
