//! What the reactors of one array send each other, and how.
//!
//! Every reactor has an inbox: a queue of bounded length that wakes its thread. What finds an inbox full waits in the
//! sender's own queue, in order, and nobody waits for it: two reactors whose inboxes are both full still take in what
//! is in them. The sender's queue is as long as its own and its peers' clients have requests in flight at most, times
//! [`super::parts`]' parts of a request.

use std::cell::RefCell;
use std::collections::VecDeque;

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

/// Messages that an inbox holds.
const INBOX: usize = 1024;

/// The reactor that keeps the array's record.
pub(crate) const KEEPER: Shard = Shard(0);

/// What one reactor tells another. Data is a copy: request memory belongs to the thread that allocated it.
#[derive(Debug)]
pub(super) enum Message {
    /// Do a part of a request, and answer.
    Order { from: Shard, part: Part, order: Order, data: Option<Box<[u8]>> },
    /// The end of a part, with what a read has read.
    Answer { part: Part, result: Result<Option<Box<[u8]>>, NbdError> },
    /// To the keeper.
    Ask { from: Shard, ask: Ask },
    /// To the keeper, when it has changed: how the array is for the one that sends it.
    Condition { from: Shard, condition: Box<Condition> },
    /// From the keeper, when it has changed.
    Standing(Standing),
    /// From the keeper: the end of [`Ask::Flush`].
    Synced { members: MemberSet, failed: MemberSet },
    /// From the keeper: the end of [`Ask::Intend`].
    Intended { region: RegionId },
    /// From the keeper: say how you are.
    Look(oneshot::Sender<Facts>),
    /// From the keeper: writes that come from now on are replied to as this says.
    CacheMode(CacheMode),
    /// From the keeper: what members may get away with from now on.
    Patience(Patience),
    /// From the keeper: scrub what is yours, from there on.
    StartScrub(ScrubRun),
    /// From the keeper: of each member, in bytes a second.
    ScrubLimit(Option<Bytes>),
    /// From the keeper.
    StopScrub,
}

/// A part of a split request: what its answer comes back with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The request, at the reactor of its client.
    pub(super) request: u32,
    /// Where the part is in the request's memory, in bytes.
    pub(super) at: usize,
}

/// What is to be done with some sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) kind: Kind,
    pub(super) lba: Lba,
    pub(super) len: Sectors,
}

/// A request without its place and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write { fua: bool },
    WriteZeroes { fua: bool, may_punch: bool },
    Trim { fua: bool },
    Flush,
}

/// A reactor's place in the post, to be taken to its thread.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) shard: Shard,
    pub(crate) bands: Bands,
    /// By shard; none to itself.
    senders: Vec<Option<Sender<Message>>>,
    pub(super) inbox: Receiver<Message>,
}

/// A reactor's way to the others.
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
    /// An address for each reactor of an array.
    pub(crate) fn all(bands: Bands) -> Vec<Self> {
        let (senders, inboxes): (Vec<_>, Vec<_>) = bands.shards().map(|_| channel(INBOX)).unzip();
        let address = |(shard, inbox): (Shard, Receiver<Message>)| {
            let others = bands.shards().zip(&senders);
            let senders = others.map(|(other, sender)| (other != shard).then(|| sender.clone())).collect();
            Self { shard, bands, senders, inbox }
        };
        bands.shards().zip(inboxes).map(address).collect()
    }

    /// Takes the address into use.
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
    /// When it is to the sender itself.
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

    /// Sends what there is room for.
    pub(super) fn deliver(&self) {
        self.links.iter().flatten().for_each(Link::deliver);
    }

    /// Goes on sending to one inbox that was full when there is room again, for ever.
    pub(super) async fn go_on(&self, to: Shard) {
        let Some(link) = &self.links[to.index()] else { return };
        loop {
            link.is_full.notified().await;
            // An inbox that is closed is a thread that has ended, and with it the process or all clients' requests.
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
