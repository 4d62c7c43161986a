//! Arrays in memory for the engine's tests: members that are watched, a model of what every sector may hold, and an
//! encoder that says what the members must hold.

pub(crate) mod intents;
pub(crate) mod model;
pub(crate) mod watch;

use uraid_io::array::{Assembled, Candidate, judge, recover};
use uraid_io::buf::{Buf, Pool};
use uraid_io::disk::{Disk, Image, MemDisk, Order};
use uraid_io::engine::{CacheMode, Command, Engine, EngineError, MemberCounters, Record, Reply};
use uraid_io::format::superblock::{self, Areas, Consistency, Integrity, Superblock, encode};
use uraid_io::member::Access;
use uraid_layout::field;
use uraid_layout::stripe::Role;
use uraid_layout::{Bytes, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, Rotation, Sectors, Spec, StripeId};
use uuid::Uuid;
use watch::Watch;

pub(crate) const SECTOR: usize = 512;
pub(crate) const CHUNK: u64 = 4096;

pub(crate) type TestEngine = Engine<Watch, u64>;

/// What is on each member; none for one that is not there.
pub(crate) type Members = Vec<Option<Image>>;

/// A generator of numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// What a test's array is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) level: Level,
    pub(crate) members: u8,
    pub(crate) chunk: u64,
    /// Of data on each member.
    pub(crate) chunks: u64,
    pub(crate) consistency: Consistency,
    pub(crate) integrity: Integrity,
    /// What the log's area has, in bytes.
    pub(crate) log: u64,
}

pub(crate) fn small(level: Level, members: u8) -> Shape {
    let (consistency, integrity) = (Consistency::None, Integrity::None);
    Shape { level, members, chunk: CHUNK, chunks: 9, consistency, integrity, log: LOG }
}

/// So little that its places are used again all the time, and too little for a journal of pages.
const LOG: u64 = 64 << 10;

pub(crate) const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

pub(crate) const RAID6: Level = Level::Raid6 { rotation: Rotation::LeftSymmetric };

pub(crate) fn rm2(height: u8, placement: Placement) -> Level {
    Level::Rm2 { height, placement }
}

/// Every level, small.
pub(crate) fn shapes() -> Vec<Shape> {
    let mut shapes = vec![
        small(Level::Raid0, 4),
        small(Level::Raid1, 2),
        small(Level::Raid1, 3),
        small(Level::Raid10 { copies: 2 }, 4),
        small(Level::Raid10 { copies: 2 }, 5),
        small(Level::Raid10 { copies: 3 }, 5),
        small(rm2(2, Placement::Adjacent), 5),
        small(rm2(3, Placement::Adjacent), 7),
        small(rm2(3, Placement::Partitioned), 7),
        small(rm2(3, Placement::Adjacent), 6),
    ];
    shapes.extend(Rotation::ALL.map(|rotation| small(Level::Raid5 { rotation }, 5)));
    shapes.push(small(RAID5, 3));
    shapes.push(small(RAID6, 4));
    shapes.push(small(Level::Raid6 { rotation: Rotation::RightAsymmetric }, 6));
    shapes
}

/// Every set of members that the level survives, whichever they are; the empty one first.
pub(crate) fn tolerated(geometry: &Geometry) -> Vec<MemberSet> {
    let members = || geometry.all_members().iter();
    let mut sets = vec![MemberSet::EMPTY];
    if geometry.tolerance() >= 1 {
        sets.extend(members().map(|member| MemberSet::EMPTY.with(member)));
    }
    if geometry.tolerance() >= 2 {
        let pairs = members().flat_map(|a| members().filter(move |&b| a < b).map(move |b| (a, b)));
        sets.extend(pairs.map(|(a, b)| MemberSet::EMPTY.with(a).with(b)));
    }
    sets
}

impl Shape {
    /// The same with a log and checksums.
    pub(crate) fn checked(self) -> Self {
        Self { consistency: Consistency::Log, integrity: Integrity::Crc32, ..self }
    }

    /// What a member's file needs: head, data, tail.
    fn member_bytes(&self) -> Bytes {
        Bytes((self.chunk * self.chunks + (3 << 20)).max(4 << 20))
    }

    /// Where things are on a member.
    fn areas(&self) -> Areas {
        let size = self.member_bytes();
        let mut areas = Areas::new(size, Bytes(self.log), self.integrity).expect("large enough");
        areas.log.size = Bytes(self.log);
        areas
    }

    pub(crate) fn spec(&self) -> Spec {
        let member_size = Sectors(self.chunk * self.chunks / 512);
        Spec { level: self.level, members: self.members, chunk: Bytes(self.chunk), member_size }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry::new(self.spec()).expect("a test's geometry")
    }

    /// The superblocks of a new, clean array.
    pub(crate) fn superblocks(&self) -> Vec<Superblock> {
        let uuid = |number: u8| Uuid::from_bytes([number; 16]);
        let members: Vec<_> = (1..=self.members).map(|number| (uuid(number), self.areas())).collect();
        let (consistency, integrity) = (self.consistency, self.integrity);
        let superblocks = Superblock::of_new_array(uuid(99), self.spec(), &members).into_iter();
        superblocks.map(|new| Superblock { consistency, integrity, ..new }).collect()
    }

    /// A new array of zeros whose superblocks are on its members, without the missing ones.
    pub(crate) fn members(&self, missing: MemberSet) -> Members {
        let one = |superblock: Superblock| {
            let mut image = Image::zeroed(size(self.member_bytes()));
            for position in superblock.write_positions() {
                image.write(size(position), &encode(&superblock));
            }
            (!missing.contains(superblock.slot)).then_some(image)
        };
        self.superblocks().into_iter().map(one).collect()
    }

    pub(crate) fn record(&self, missing: MemberSet) -> Record {
        let present = |superblock: Superblock| (!missing.contains(superblock.slot)).then_some(superblock);
        Record::new(self.superblocks().into_iter().map(present).collect())
    }

    pub(crate) fn engine(&self, missing: MemberSet, order: Order) -> TestEngine {
        self.engine_on(self.members(missing), missing, order, false)
    }

    pub(crate) fn engine_on(
        &self,
        members: Members,
        missing: MemberSet,
        order: Order,
        is_read_only: bool,
    ) -> TestEngine {
        let used = self.geometry().used_sectors().bytes();
        let disk = Watch::new(MemDisk::new(members, order), self.members, self.superblocks()[0].areas, used);
        Engine::new(disk, self.geometry(), self.record(missing), is_read_only).expect("a tolerated set is missing")
    }
}

impl Shape {
    /// An engine for the members as another one left them; no superblock is older than another.
    pub(crate) fn reopened(&self, members: Members, order: Order) -> TestEngine {
        let used = self.geometry().used_sectors().bytes();
        let disk = Watch::new(MemDisk::new(members, order), self.members, self.superblocks()[0].areas, used);
        let superblocks = (0..self.members).map(|slot| disk.superblock(MemberIndex(slot))).collect();
        Engine::new(disk, self.geometry(), Record::new(superblocks), false).expect("a tolerated set is missing")
    }
}

/// How an engine caches, with how many pages.
pub(crate) type Caching = Option<(CacheMode, u64)>;

/// The engine with a cache, and the pool that its memory is of.
pub(crate) fn with_cache(engine: TestEngine, caching: Caching) -> (TestEngine, Pool) {
    let pages = caching.map_or(0, |(_, pages)| pages);
    let pool = Pool::new(Bytes((pages + 1024) * 4096));
    let Some((mode, pages)) = caching else { return (engine, pool) };
    (engine.with_cache(mode, &pool, Bytes(pages * 4096)), pool)
}

pub(crate) fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.0).expect("fits")
}

pub(crate) fn buf(bytes: &[u8]) -> Buf {
    let mut buf = Buf::zeroed(Bytes(bytes.len() as u64));
    buf.as_mut().copy_from_slice(bytes);
    buf
}

/// Bytes that differ everywhere and with every seed.
pub(crate) fn noise(seed: u64, sectors: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..sectors * 64).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect()
}

/// What every member has on it now; none for one that is not there.
pub(crate) fn images(engine: &TestEngine) -> Members {
    let all = engine.geometry().all_members();
    all.iter().map(|member| engine.disk().inner.member(member).cloned()).collect()
}

/// Runs commands that are all submitted at once; the replies in the commands' order.
pub(crate) fn run_all(engine: &mut TestEngine, commands: Vec<Command>) -> Vec<Result<Option<Buf>, EngineError>> {
    let count = commands.len();
    for (token, command) in (0..).zip(commands) {
        engine.submit(token, command);
    }
    engine.disk_mut().allow_reaps(usize::MAX);
    let mut replies = Vec::new();
    engine.turn(&mut replies).expect("memory does not break");
    while engine.wants_turn() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert_eq!(engine.in_flight(), 0, "commands hang");
    assert_eq!(replies.len(), count, "one reply for each command");
    replies.sort_by_key(|reply| reply.token);
    replies.into_iter().map(|Reply { result, .. }| result).collect()
}

pub(crate) fn run(engine: &mut TestEngine, command: Command) -> Result<Option<Buf>, EngineError> {
    run_all(engine, vec![command]).pop().expect("one reply")
}

pub(crate) fn write(engine: &mut TestEngine, lba: u64, bytes: &[u8]) -> Result<(), EngineError> {
    run(engine, Command::Write { lba: Lba(lba), buf: buf(bytes), fua: false }).map(drop)
}

pub(crate) fn read(engine: &mut TestEngine, lba: u64, sectors: u64) -> Result<Vec<u8>, EngineError> {
    let buf = Buf::zeroed(Sectors(sectors).bytes());
    let reply = run(engine, Command::Read { lba: Lba(lba), buf })?;
    Ok(reply.expect("a read's buffer comes back").as_ref().to_vec())
}

/// Reads a block of 4096 bytes.
pub(crate) fn block<D: Disk>(engine: &mut Engine<D, u64>, lba: u64) -> Result<Vec<u8>, EngineError> {
    let mut replies = Vec::new();
    engine.submit(lba, Command::Read { lba: Lba(lba), buf: Buf::zeroed(Bytes(4096)) });
    engine.turn(&mut replies).expect("memory does not break");
    let reply = replies.pop().expect("a reply");
    reply.result.map(|buf| buf.expect("a read's buffer comes back").as_ref().to_vec())
}

/// What every member's data area holds when the array holds `content`.
pub(crate) fn encoded(geometry: &Geometry, content: &[u8]) -> Vec<Vec<u8>> {
    let chunk = size(geometry.chunk().bytes());
    let used = size(geometry.used_sectors().bytes());
    let mut members = vec![vec![0; used]; geometry.members()];
    for stripe in (0..geometry.stripes().0).map(StripeId) {
        let map = geometry.map(stripe);
        let place = |cell| {
            let start = size(Sectors(geometry.sector(stripe, cell).0).bytes());
            (geometry.member(cell).index(), start..start + chunk)
        };
        let exists = |cell| matches!(map.role(cell), Role::Data(unit) if geometry.exists(stripe, unit));
        let first = usize::try_from(stripe.0).expect("fits") * map.data().len();
        for (unit, &cell) in map.data().iter().enumerate().filter(|&(_, &cell)| exists(cell)) {
            let (member, range) = place(cell);
            members[member][range].copy_from_slice(&content[(first + unit) * chunk..][..chunk]);
        }
        for group in map.groups() {
            let mut parity = vec![0; chunk];
            for (cell, factor) in group.data_terms().filter(|&(cell, _)| exists(cell)) {
                let (member, range) = place(cell);
                field::add_multiple(&mut parity, &members[member][range], factor);
            }
            if group.data.iter().any(|&cell| exists(cell)) {
                let (member, range) = place(group.parity);
                members[member][range].copy_from_slice(&parity);
            }
        }
    }
    members
}

/// The array's content as a power cut would leave it at least; no member is missing.
pub(crate) fn durable_content(engine: &TestEngine) -> Vec<u8> {
    let geometry = engine.geometry();
    let len = size(geometry.used_sectors().bytes());
    let members: Vec<&[u8]> =
        geometry.all_members().iter().map(|member| engine.disk().durable_data(member, len)).collect();
    let mut content = Vec::with_capacity(size(geometry.capacity().bytes()));
    for lba in 0..geometry.capacity().0 {
        let at = geometry.locate(Lba(lba));
        content.extend_from_slice(&members[at.member.index()][size(Sectors(at.sector.0).bytes())..][..SECTOR]);
    }
    content
}

/// Asserts that every present member holds what the encoder says.
pub(crate) fn assert_encoded(engine: &TestEngine, content: &[u8], context: &str) {
    let present = engine.geometry().all_members().minus(engine.missing());
    let expected = encoded(engine.geometry(), content);
    for member in present.iter() {
        let data = engine.disk().data(member, expected[member.index()].len());
        let differs = data.iter().zip(&expected[member.index()]).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{context}: member {member} differs from the encoder's at that byte of its data");
    }
}

/// The array as it is found after a kill.
pub(crate) fn recovered(shape: &Shape, members: Members) -> Engine<MemDisk, u64> {
    let member_size = shape.superblocks()[0].areas.member_size;
    let positions = superblock::positions(member_size).expect("large enough");
    let candidates: Vec<Candidate> = members
        .iter()
        .flatten()
        .map(|bytes| {
            let copies = positions.map(|at| superblock::decode(&bytes[size(at)..][..4096]));
            Candidate { path: "member".into(), superblock: superblock::newest(copies).expect("a superblock") }
        })
        .collect();
    let verdict = judge(&candidates).expect("they belong together");
    let disk = MemDisk::new(members, Order::Fifo);
    let assembled =
        Assembled::new(disk, &verdict, &candidates, Access::ReadWrite, Uuid::from_u128(7)).expect("assembled");
    let assembled = recover(assembled, |_| ()).expect("recovered");
    assembled.into_engine().expect("an engine")
}

/// What `work` adds to all members' counters together.
pub(crate) fn cost(engine: &mut TestEngine, work: impl FnOnce(&mut TestEngine)) -> MemberCounters {
    let before = engine.counters().total();
    work(engine);
    let after = engine.counters().total();
    MemberCounters {
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        flushes: after.flushes - before.flushes,
        log_records: after.log_records - before.log_records,
        log_bytes: after.log_bytes - before.log_bytes,
        ..MemberCounters::default()
    }
}
