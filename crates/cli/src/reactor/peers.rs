//! A reactor among several. It sends its clients' requests for other reactors' parity stripes there in parts, and
//! executes parts for the others' clients.
//!
//! The first reactor keeps the array's record. This module also carries the messages that the engines exchange about
//! it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use anyhow::{Context, Result};
use tokio::sync::mpsc::Receiver;
use uraid_io::bands::{Bands, Shard};
use uraid_io::bitmap::RegionId;
use uraid_io::buf::Buf;
use uraid_io::engine::{self, Ask, EngineError, Standing};
use uraid_layout::{Bytes, Lba, MemberSet};
use uraid_nbd::NbdError;

use crate::meter::Request;
use super::parts::Requests;
use super::post::{Address, KEEPER, Message, Order, Outboxes, Part};
use super::{Reactor, Token, nbd_error};
use crate::health::Condition;

/// Maximum number of messages to handle before the engine turns.
const BATCH: usize = 256;

/// A reactor's state for dealing with the others.
pub(super) struct Peers {
    pub(super) shard: Shard,
    pub(super) bands: Bands,
    pub(super) outboxes: Outboxes,
    inbox: Cell<Option<Receiver<Message>>>,
    requests: RefCell<Requests>,
    /// The standing last sent to the others.
    standing: Cell<Standing>,
    asks: RefCell<Vec<Ask>>,
    /// The array's condition as the other reactors see it, by shard. On a follower, only its own entry is used: the
    /// condition last sent to the keeper.
    conditions: RefCell<Vec<Condition>>,
}

/// The originator of engine work that is not a command of this reactor's clients.
#[derive(Clone, Copy)]
pub(crate) enum PeerToken {
    /// A part of a request from this reactor's client.
    Own(Part),
    /// A part of a request from another reactor's client.
    Guest { from: Shard, part: Part },
    /// A flush for another reactor's engine.
    Sync { from: Shard, members: MemberSet },
    /// A region held for another reactor's engine.
    Intend { from: Shard, region: RegionId },
}

impl Peers {
    /// Opens an address whose engine has this standing.
    pub(super) fn new(address: Address, standing: Standing) -> Self {
        let (shard, bands) = (address.shard, address.bands);
        let (outboxes, inbox) = address.open();
        Self {
            shard,
            bands,
            outboxes,
            inbox: Cell::new(Some(inbox)),
            requests: RefCell::default(),
            standing: Cell::new(standing),
            asks: RefCell::default(),
            conditions: RefCell::new(vec![Condition::default(); bands.shards().count()]),
        }
    }

    /// Whether a command touches only this reactor's stripes.
    pub(super) fn is_own(&self, command: &engine::Command) -> bool {
        let (lba, sectors) = match command {
            engine::Command::Read { lba, buf } | engine::Command::Write { lba, buf, .. } => {
                (*lba, buf.len() as u64 / 512)
            }
            engine::Command::WriteZeroes { lba, len, .. } | engine::Command::Trim { lba, len, .. } => (*lba, len.0),
            engine::Command::Flush | engine::Command::Close => return false,
            // A member that fails at one reactor fails at all.
            engine::Command::Fail { .. } | engine::Command::Join(_) | engine::Command::Replace(_) => return true,
        };
        let range = lba..Lba(lba.0 + sectors);
        self.bands.first(&range) == (self.shard, range)
    }

    /// Whether this reactor keeps the array's record.
    pub(super) fn is_keeper(&self) -> bool {
        self.shard == KEEPER
    }

    /// Tells the others what the engine has put on record, before they get any answer that relies on it.
    pub(super) fn announce(&self, standing: Standing) {
        if self.shard == KEEPER && self.standing.replace(standing) != standing {
            self.outboxes.post_all(|| Message::Standing(standing));
        }
    }

    /// The array's condition for all reactors, as far as this reactor knows. `own` is its own view; it reports changes
    /// in it to the keeper.
    pub(super) fn condition(&self, own: Condition) -> Condition {
        let mut conditions = self.conditions.borrow_mut();
        if self.is_keeper() {
            return conditions.iter().fold(own, |all, other| all.with(other));
        }
        let said = &mut conditions[self.shard.index()];
        if std::mem::replace(said, own) != own {
            self.outboxes.post(KEEPER, Message::Condition { from: self.shard, condition: Box::new(own) });
        }
        own
    }

    /// Whether all split requests of this reactor's clients have ended.
    pub(super) fn is_quiet(&self) -> bool {
        self.requests.borrow().is_empty()
    }
}

impl Reactor {
    /// Spawns tasks that receive messages and resend those that met a full inbox. They run forever.
    pub(super) fn spawn_peers(self: &Rc<Self>) {
        let Some(peers) = &self.peers else { return };
        let inbox = peers.inbox.take();
        let reactor = Rc::clone(self);
        tokio::task::spawn_local(async move { reactor.receive(inbox.expect("tasks are spawned once")).await });
        for shard in peers.bands.shards() {
            let reactor = Rc::clone(self);
            tokio::task::spawn_local(async move {
                if let Some(peers) = &reactor.peers {
                    peers.outboxes.go_on(shard).await;
                }
            });
        }
    }

    /// Flushes this reactor's engine, once no client has anything in flight. Closing the record is up to the keeper.
    pub(crate) async fn stop(&self) -> Result<()> {
        self.is_stopping.set(true);
        self.engine.borrow_mut().wind_down();
        while self.engine.borrow().in_flight() > 0 {
            self.turned.notified().await;
        }
        self.engine.borrow_mut().submit(Token::Close, engine::Command::Close);
        self.turn();
        loop {
            if let Some(ended) = self.ended.take() {
                return ended
                    .context("what was written could not all be made durable: the next start checks the members");
            }
            self.turned.notified().await;
        }
    }

    /// Waits until no request of this reactor's clients has parts elsewhere. Call it when there are no clients left.
    pub(crate) async fn quiesce(&self) {
        self.is_stopping.set(true);
        while self.peers.as_ref().is_some_and(|peers| !peers.is_quiet()) {
            self.turned.notified().await;
        }
    }

    /// Begins a request that does not belong to this reactor alone.
    pub(super) fn split(&self, peers: &Peers, command: engine::Command, reply: Request) {
        let (order, buf) = Order::of(command);
        let request = peers.requests.borrow_mut().insert(&peers.bands, order, buf, reply);
        self.begin_parts(peers, request);
    }

    /// Handles the end of the engine's work for `token`.
    pub(super) fn answer_peer(&self, token: PeerToken, result: Result<Option<Buf>, EngineError>) {
        let peers = self.peers.as_ref().expect("only peers' tokens come here");
        match token {
            PeerToken::Own(part) => {
                let result = result.map_err(|error| nbd_error(&error));
                self.end_part(peers, part, result.as_ref().map(Option::as_ref).map_err(|error| *error).map(bytes));
            }
            PeerToken::Guest { from, part } => {
                let result = result.map_err(|error| nbd_error(&error));
                let result = result.and_then(|buf| buf.map(|buf| copied(buf.as_ref())).transpose());
                peers.outboxes.post(from, Message::Answer { part, result });
            }
            PeerToken::Sync { from, members } => {
                let failed = match result {
                    // The peers already know that the array is frozen.
                    Ok(_) | Err(EngineError::Frozen) => MemberSet::EMPTY,
                    Err(EngineError::FlushFailed { members }) => members,
                    Err(_) => members,
                };
                peers.outboxes.post(from, Message::Synced { members, failed });
            }
            // The peers already know that the array is frozen.
            PeerToken::Intend { from, region } if result.is_ok() => {
                peers.outboxes.post(from, Message::Intended { region });
            }
            PeerToken::Intend { .. } => {}
        }
    }

    /// Sends all queued messages and the engine's asks.
    pub(super) fn deliver(&self, peers: &Peers) {
        if peers.shard != KEEPER {
            let mut asks = peers.asks.borrow_mut();
            self.engine.borrow_mut().take_asks(&mut asks);
            for ask in asks.drain(..) {
                peers.outboxes.post(KEEPER, Message::Ask { from: peers.shard, ask });
            }
        }
        peers.outboxes.deliver();
    }

    /// Handles messages as they arrive.
    async fn receive(&self, mut inbox: Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        while inbox.recv_many(&mut batch, BATCH).await > 0 {
            for message in batch.drain(..) {
                self.take_in(message);
            }
            self.turn();
        }
    }

    fn take_in(&self, message: Message) {
        let Some(peers) = &self.peers else { return };
        let engine = || self.engine.borrow_mut();
        match message {
            Message::Order { from, part, order, data } => {
                match order.command(|len| self.filled(len, data.as_deref())) {
                    Ok(command) => engine().submit(Token::Peer(PeerToken::Guest { from, part }), command),
                    Err(error) => peers.outboxes.post(from, Message::Answer { part, result: Err(error) }),
                }
            }
            Message::Answer { part, result } => {
                self.end_part(peers, part, result.as_ref().map(Option::as_deref).map_err(|error| *error));
            }
            Message::Ask { ask: Ask::Record(failed), .. } => engine().note(failed),
            Message::Ask { from, ask: Ask::Flush(members) } => {
                engine().sync(Token::Peer(PeerToken::Sync { from, members }), members);
            }
            Message::Ask { from, ask: Ask::Intend(region) } => {
                engine().intend_for(Token::Peer(PeerToken::Intend { from, region }), region);
            }
            Message::Ask { ask: Ask::Settle(region), .. } => engine().settle_for(region),
            Message::Ask { ask: Ask::Freeze(by), .. } => engine().freeze(by),
            Message::Condition { from, condition } => peers.conditions.borrow_mut()[from.index()] = *condition,
            Message::Standing(standing) => engine().learn(standing),
            Message::Synced { members, failed } => engine().synced(members, failed),
            Message::Intended { region } => engine().intended(region),
            // The requester may be gone.
            Message::Look(answer) => drop(answer.send(self.facts())),
            Message::CacheMode(mode) => {
                engine().set_cache_mode(mode);
            }
            Message::Patience(patience) => self.be_patient(patience),
            Message::StartScrub(run) => {
                if let Err(error) = engine().resume_scrub(run) {
                    tracing::warn!(%error, "a part of the array is not scrubbed");
                }
            }
            Message::ScrubLimit(limit) => engine().set_scrub_limit(limit),
            Message::StopScrub => engine().stop_scrub(),
        }
    }

    fn end_part(&self, peers: &Peers, part: Part, result: Result<Option<&[u8]>, NbdError>) {
        let is_done = peers.requests.borrow_mut().end(part, result);
        if !is_done && self.begin_parts(peers, part.request) {
            self.unfinished.notify_one();
        }
    }

    /// Begins the parts of a request that can begin now. Returns true if the engine has new work.
    fn begin_parts(&self, peers: &Peers, request: u32) -> bool {
        let mut is_own = false;
        let mut requests = peers.requests.borrow_mut();
        while let Some(begun) = requests.begin(&peers.bands, request) {
            let (owner, part, order) = (begun.owner, begun.part, begun.order);
            let sent = if owner == peers.shard {
                order.command(|len| self.filled(len, begun.data)).map(|command| {
                    is_own = true;
                    self.engine.borrow_mut().submit(Token::Peer(PeerToken::Own(part)), command);
                })
            } else {
                begun.data.map(copied).transpose().map(|data| {
                    peers.outboxes.post(owner, Message::Order { from: peers.shard, part, order, data });
                })
            };
            // If there is no memory for a part, its request ends, now or with the parts in flight.
            if let Err(error) = sent {
                requests.end(part, Err(error));
                break;
            }
        }
        is_own
    }

    /// Memory for a part, filled with the data of a write.
    fn filled(&self, len: Bytes, data: Option<&[u8]>) -> Option<Buf> {
        let mut buf = self.memory(len)?;
        data.iter().for_each(|data| buf.as_mut().copy_from_slice(data));
        Some(buf)
    }
}

/// A copy that can move to another thread.
fn copied(data: &[u8]) -> Result<Box<[u8]>, NbdError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(data.len()).map_err(|_| NbdError::NoMemory)?;
    copy.extend_from_slice(data);
    Ok(copy.into_boxed_slice())
}

fn bytes(buf: Option<&Buf>) -> Option<&[u8]> {
    buf.map(AsRef::as_ref)
}
