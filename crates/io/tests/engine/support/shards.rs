//! Several engines on the same members in memory, and what is carried between them: at once, or late and in pieces.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use uraid_io::Error;
use uraid_io::bands::{Bands, Shard};
use uraid_io::bitmap::RegionId;
use uraid_io::buf::Pool;
use uraid_io::disk::{Completion, Disk, DiskOp, MemDisk, OpKind, Order};
use uraid_io::engine::{Ask, CacheMode, Command, Engine, EngineError, Reply, Standing};
use uraid_layout::{Bytes, MemberSet};

use super::watch::Watch;
use super::{Random, Shape};

/// One engine's view of the members that all share.
pub(crate) struct Port {
    hub: Rc<RefCell<Hub>>,
    index: usize,
}

struct Hub {
    watch: Watch,
    /// By port, what has completed and was not reaped there yet.
    completed: Vec<Vec<Completion>>,
}

/// Something on its way to an engine.
#[derive(Debug)]
enum Mail {
    Ask { from: usize, ask: Ask },
    Standing(Standing),
    Synced { members: MemberSet, failed: MemberSet },
    Intended(RegionId),
}

/// Whom a reply is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Test(u64),
    Sync { from: usize, members: MemberSet },
    Intend { from: usize, region: RegionId },
}

/// A command's end, with what a read has read.
pub(crate) type Outcome = Result<Option<Vec<u8>>, EngineError>;

/// Engines that share an array; the first is the keeper.
pub(crate) struct Fleet {
    hub: Rc<RefCell<Hub>>,
    engines: Vec<Engine<Port, Token>>,
    /// By sender and receiver: in order, as threads' queues are.
    mail: Vec<Vec<VecDeque<Mail>>>,
    told: Standing,
    pub(crate) replies: Vec<(u64, Outcome)>,
}

impl Disk for Port {
    fn submit(&mut self, op: DiskOp) {
        let mut hub = self.hub.borrow_mut();
        let is_data =
            matches!(op.kind, OpKind::Read | OpKind::Write | OpKind::Zero { .. }) && hub.watch.is_data(op.offset);
        assert!(self.index == 0 || is_data, "a follower neither flushes nor writes superblocks: {:?}", op.info());
        assert_eq!(op.tag >> 48, 0, "the engine's tags leave room");
        hub.watch.submit(DiskOp { tag: op.tag | (self.index as u64) << 48, ..op });
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.hub.borrow_mut().watch.kick()
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let mut hub = self.hub.borrow_mut();
        let mut all = Vec::new();
        hub.watch.reap(&mut all);
        for completion in all {
            let port = usize::try_from(completion.tag >> 48).expect("a port");
            let tag = completion.tag & ((1 << 48) - 1);
            hub.completed[port].push(Completion { tag, ..completion });
        }
        completions.append(&mut hub.completed[self.index]);
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.kick()
    }

    fn in_flight(&self) -> usize {
        self.hub.borrow().watch.in_flight()
    }
}

impl Fleet {
    pub(crate) fn new(shape: &Shape, shards: u8, order: Order, caching: Option<CacheMode>) -> Self {
        let members = shape.members(MemberSet::EMPTY);
        let used = shape.geometry().used_sectors().bytes();
        let watch = Watch::new(MemDisk::new(members, order), shape.members, shape.superblocks()[0].areas, used);
        let hub = Hub { watch, completed: (0..shards).map(|_| Vec::new()).collect() };
        let hub = Rc::new(RefCell::new(hub));
        let geometry = shape.geometry();
        let bands = Bands::new(&geometry, shards);
        let keeper = shape.record(MemberSet::EMPTY);
        let mut records: Vec<_> = (1..shards).map(|_| keeper.follower()).collect();
        records.insert(0, keeper);
        let engine = |(index, record)| {
            let port = Port { hub: Rc::clone(&hub), index };
            let engine = Engine::new(port, geometry.clone(), record, false).expect("nobody is missing");
            let shard = Shard(u8::try_from(index).expect("few shards"));
            let engine = engine.with_bands(bands, shard).expect("no log");
            let pool = Pool::new(Bytes(4 << 20));
            match caching {
                Some(mode) => engine.with_cache(mode, pool, Bytes(1 << 20)),
                None => engine,
            }
        };
        let engines: Vec<_> = records.into_iter().enumerate().map(engine).collect();
        let mail = (0..shards).map(|_| (0..shards).map(|_| VecDeque::new()).collect()).collect();
        Self { told: engines[0].standing(), hub, engines, mail, replies: Vec::new() }
    }

    pub(crate) fn engine(&self, shard: usize) -> &Engine<Port, impl Sized> {
        &self.engines[shard]
    }

    pub(crate) fn watch<R>(&self, look: impl FnOnce(&mut Watch) -> R) -> R {
        look(&mut self.hub.borrow_mut().watch)
    }

    pub(crate) fn submit(&mut self, shard: usize, token: u64, command: Command) {
        self.engines[shard].submit(Token::Test(token), command);
    }

    /// One turn of one engine; what it has to say is on its way then.
    pub(crate) fn turn(&mut self, shard: usize) {
        let engine = &mut self.engines[shard];
        let mut replies = Vec::new();
        engine.turn(&mut replies).expect("memory does not break");
        let mut asks = Vec::new();
        engine.take_asks(&mut asks);
        if shard == 0 && std::mem::replace(&mut self.told, engine.standing()) != engine.standing() {
            self.mail[0][1..].iter_mut().for_each(|mail| mail.push_back(Mail::Standing(self.told)));
        }
        for Reply { token, result } in replies {
            match token {
                Token::Test(token) => {
                    self.replies.push((token, result.map(|buf| buf.map(|buf| buf.as_ref().to_vec()))));
                }
                Token::Sync { from, members } => {
                    let failed = match result {
                        Ok(_) | Err(EngineError::Frozen) => MemberSet::EMPTY,
                        Err(EngineError::FlushFailed { members }) => members,
                        Err(error) => panic!("a flush for another engine: {error}"),
                    };
                    self.mail[0][from].push_back(Mail::Synced { members, failed });
                }
                Token::Intend { from, region } => match result {
                    Ok(_) => self.mail[0][from].push_back(Mail::Intended(region)),
                    Err(EngineError::Frozen) => {}
                    Err(error) => panic!("a region for another engine: {error}"),
                },
            }
        }
        if shard > 0 {
            self.mail[shard][0].extend(asks.into_iter().map(|ask| Mail::Ask { from: shard, ask }));
        }
    }

    /// Hands over the first that is on its way from one engine to another; false: there is nothing.
    pub(crate) fn carry(&mut self, from: usize, to: usize) -> bool {
        let Some(mail) = self.mail[from][to].pop_front() else { return false };
        let engine = &mut self.engines[to];
        match mail {
            Mail::Ask { ask: Ask::Record(failed), .. } => engine.note(failed),
            Mail::Ask { from, ask: Ask::Flush(members) } => engine.sync(Token::Sync { from, members }, members),
            Mail::Ask { from, ask: Ask::Intend(region) } => engine.intend_for(Token::Intend { from, region }, region),
            Mail::Ask { ask: Ask::Settle(region), .. } => engine.settle_for(region),
            Mail::Ask { ask: Ask::Freeze(by), .. } => engine.freeze(by),
            Mail::Intended(region) => engine.intended(region),
            Mail::Standing(standing) => engine.learn(standing),
            Mail::Synced { members, failed } => engine.synced(members, failed),
        }
        true
    }

    /// Lets time pass for an engine.
    pub(crate) fn tick(&mut self, shard: usize) {
        self.engines[shard].tick();
    }

    /// Turns one engine until nothing happens, while nothing is carried.
    pub(crate) fn settle(&mut self, shard: usize) {
        for _ in 0..50 {
            self.turn(shard);
        }
    }

    /// Runs everything to its end; what is said is heard at once.
    pub(crate) fn run(&mut self) {
        for _ in 0..50 {
            for shard in 0..self.engines.len() {
                self.turn(shard);
                for other in 0..self.engines.len() {
                    while self.carry(shard, other) {}
                }
            }
        }
        let idle = self.engines.iter().map(Engine::in_flight).all(|jobs| jobs == 0);
        assert!(idle, "commands hang");
    }

    /// Whether commands have no reply yet.
    pub(crate) fn engines_busy(&self) -> bool {
        self.engines.iter().any(|engine| engine.in_flight() > 0)
    }

    /// Does one thing at random: a turn, or a delivery.
    pub(crate) fn step(&mut self, random: &mut Random) {
        let mut shard = || usize::try_from(random.below(self.engines.len() as u64)).expect("few shards");
        let (from, to) = (shard(), shard());
        if from == to || !self.carry(from, to) {
            self.turn(from);
        }
    }

    /// Runs a command to its end, together with everything else.
    pub(crate) fn call(&mut self, shard: usize, command: Command) -> Outcome {
        self.submit(shard, u64::MAX, command);
        self.run();
        let index = self.replies.iter().position(|(token, _)| *token == u64::MAX).expect("a reply");
        self.replies.swap_remove(index).1
    }
}
