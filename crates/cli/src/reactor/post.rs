//! Messages between the reactors of one array.
//!
//! Every reactor has an inbox: a bounded queue that wakes its thread. Messages to a full inbox wait in the sender's own
//! queue, in order. The sender does not block, so two reactors with full inboxes still drain them. The length of the
//! sender's queue is bounded by the requests in flight from its own and its peers' clients, times the parts of a
//! request (see [`super::parts`]).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Notify, oneshot};
use uraid_io::bands::{Bands, Shard};
use uraid_io::bitmap::RegionId;
use uraid_io::engine::{Ask, CacheMode, Standing};
use uraid_io::superblock::ScrubRun;
use uraid_layout::{Bytes, Lba, MemberSet, Sectors};
use uraid_nbd::NbdError;

use super::Facts;
use crate::health::Condition;
use crate::patience::Patience;
use crate::recorder::Recorder;

/// Capacity of an inbox, in messages.
const INBOX: usize = 1024;

/// The reactor that keeps the array's record.
pub(crate) const KEEPER: Shard = Shard(0);

/// A message from one reactor to another. Data is copied, because request memory belongs to the thread that allocated
/// it.
#[derive(Debug)]
pub(super) enum Message {
    /// Execute a part of a request, and answer.
    Order { from: Shard, part: Part, order: Order, data: Option<Box<[u8]>> },
    /// The result of a part, with the data of a read.
    Answer { part: Part, result: Result<Option<Box<[u8]>>, NbdError> },
    /// To the keeper.
    Ask { from: Shard, ask: Ask },
    /// To the keeper, on change: the array's condition as the sender sees it.
    Condition { from: Shard, condition: Box<Condition> },
    /// From the keeper, on change.
    Standing(Standing),
    /// From the keeper: completion of [`Ask::Flush`].
    Synced { members: MemberSet, failed: MemberSet },
    /// From the keeper: completion of [`Ask::Intend`].
    Intended { region: RegionId },
    /// From the keeper: report your facts.
    Look(oneshot::Sender<Facts>),
    /// From the keeper: the cache mode for all writes from now on.
    CacheMode(CacheMode),
    /// From the keeper: the members' deadlines and error limit from now on.
    Patience(Patience),
    /// From the keeper: scrub your own stripes, starting there.
    StartScrub(ScrubRun),
    /// From the keeper: the limit for each member, in bytes per second.
    ScrubLimit(Option<Bytes>),
    /// From the keeper.
    StopScrub,
}

/// A part of a split request. Its answer carries it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The request's number at its client's reactor.
    pub(super) request: u32,
    /// The part's offset in the request's memory, in bytes.
    pub(super) at: usize,
}

/// An operation on a range of sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) kind: Kind,
    pub(super) lba: Lba,
    pub(super) len: Sectors,
}

/// The kind of a request, without its range and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write { fua: bool },
    WriteZeroes { fua: bool, may_punch: bool },
    Trim { fua: bool },
    Flush,
}

/// A reactor's address, to be moved to its thread.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) shard: Shard,
    pub(crate) bands: Bands,
    /// All reactors' recorder of clients' requests.
    pub(crate) recorder: Arc<Recorder>,
    /// By shard; `None` for the reactor itself.
    senders: Vec<Option<Sender<Message>>>,
    pub(super) inbox: Receiver<Message>,
}

/// Queues of messages to the other reactors.
#[derive(Debug)]
pub(super) struct Outboxes {
    links: Vec<Option<Link>>,
}

#[derive(Debug)]
struct Link {
    inbox: Sender<Message>,
    waiting: RefCell<VecDeque<Message>>,
    is_full: Notify,
}

impl Address {
    /// One address for each reactor of an array.
    pub(crate) fn all(bands: Bands) -> Vec<Self> {
        let recorder = Arc::<Recorder>::default();
        let (senders, inboxes): (Vec<_>, Vec<_>) = bands.shards().map(|_| channel(INBOX)).unzip();
        let address = |(shard, inbox): (Shard, Receiver<Message>)| {
            let others = bands.shards().zip(&senders);
            let senders = others.map(|(other, sender)| (other != shard).then(|| sender.clone())).collect();
            Self { shard, bands, recorder: Arc::clone(&recorder), senders, inbox }
        };
        bands.shards().zip(inboxes).map(address).collect()
    }

    /// Puts the address to use.
    pub(super) fn open(self) -> (Outboxes, Receiver<Message>) {
        let link = |inbox| Link { inbox, waiting: RefCell::default(), is_full: Notify::new() };
        let links = self.senders.into_iter().map(|sender| sender.map(link)).collect();
        (Outboxes { links }, self.inbox)
    }
}

impl Outboxes {
    /// Queues a message; [`Outboxes::deliver`] sends it.
    ///
    /// # Panics
    /// If the sender addresses itself.
    pub(super) fn post(&self, to: Shard, message: Message) {
        let link = self.links[to.index()].as_ref().expect("nobody sends to itself");
        link.waiting.borrow_mut().push_back(message);
    }

    /// Queues a message for every other reactor.
    pub(super) fn post_all(&self, message: impl Fn() -> Message) {
        for link in self.links.iter().flatten() {
            link.waiting.borrow_mut().push_back(message());
        }
    }

    /// Sends as many messages as the inboxes have room for.
    pub(super) fn deliver(&self) {
        self.links.iter().flatten().for_each(Link::deliver);
    }

    /// Keeps sending to one inbox after it was full, whenever there is room again. Runs forever.
    pub(super) async fn go_on(&self, to: Shard) {
        let Some(link) = &self.links[to.index()] else { return };
        loop {
            link.is_full.notified().await;
            // An inbox closes when its thread ends, and with it the process or all clients' requests.
            let Ok(room) = link.inbox.reserve().await else { return };
            let message = link.waiting.borrow_mut().pop_front();
            if let Some(message) = message {
                room.send(message);
            }
            link.deliver();
        }
    }
}

impl Link {
    fn deliver(&self) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(message) = waiting.pop_front() {
            match self.inbox.try_send(message) {
                Ok(()) => {}
                Err(TrySendError::Full(message)) => {
                    waiting.push_front(message);
                    self.is_full.notify_one();
                    return;
                }
                Err(TrySendError::Closed(_)) => {}
            }
        }
    }
}
