//! Log devices: what they lose and what they keep, when they fail, are left out, come back, are exchanged, and lose
//! power.

use std::collections::HashSet;
use std::path::PathBuf;

use rustix::io::Errno;
use uraid_io::array::{
    Array, Assembled, Candidate, Mark, Named, OpenError, OpenOptions, Opened, OpenedLog, Patience, RecoverError,
    SetAside, judge, recover,
};
use uraid_io::buf::{Buf, Pool};
use uraid_io::disk::{Disk as _, Fault, Image, OpName, log_place, places};
use uraid_io::engine::{CacheMode, Command, Deadlines, Engine, Reply};
use uraid_io::format::Epoch;
use uraid_io::format::log_device::{LogHeader, decode_mark};
use uraid_io::format::superblock::{
    Consistency, Integrity, LogDevices, LogIndex, LogSet, Superblock, decode, encode, newest, positions,
};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Placement, Sectors};
use uuid::Uuid;

use crate::rebuild::{joining, new_bytes};
use crate::reshape::Power;
use crate::support::{Members, RAID5, Random, Shape, buf, rm2, size, small};

/// What the array's devices have for each member; enough for a journal of pages, or not.
pub(crate) const SHARES: [u64; 2] = [256 << 10, 64 << 10];

const PAGES: u64 = 64;

pub(crate) fn device(log: u8) -> Uuid {
    Uuid::from_bytes([200 + log; 16])
}

pub(crate) fn log(number: u8) -> LogIndex {
    LogIndex(number)
}

/// An array with log devices, as it was made: members by slot, and its log devices at their places.
pub(crate) struct Made {
    pub(crate) shape: Shape,
    pub(crate) share: Bytes,
    pub(crate) images: Members,
}

impl Made {
    pub(crate) fn new(shape: Shape, share: u64, logs: u8) -> Self {
        let (shape, share) = (Shape { consistency: Consistency::Log, ..shape }, Bytes(share));
        let table = LogDevices::new(share, (0..logs).map(device), Epoch(1));
        let mut members = shape.members(MemberSet::EMPTY);
        for (own, image) in shape.superblocks().into_iter().zip(&mut members) {
            let own = Superblock { logs: Some(table.clone()).filter(|_| logs > 0), ..own };
            for position in own.write_positions() {
                image.as_mut().expect("all are there").write(size(position), &encode(&own));
            }
        }
        let blank = || Some(Image::zeroed(size(LogHeader::size_min(share, shape.members))));
        let images = places(members, (0..logs).map(|_| blank()).collect());
        Self { shape, share, images }
    }
}

fn superblock(bytes: &[u8]) -> Option<Superblock> {
    let positions = positions(Bytes(bytes.len() as u64)).expect("large enough");
    newest(positions.map(|position| decode(&bytes[size(position)..][..4096]))).ok()
}

/// What the members say of the log devices.
pub(crate) fn on_record(images: &Members) -> LogDevices {
    let newest = images.iter().flatten().filter_map(|bytes| superblock(bytes)).max_by_key(|own| own.epoch);
    newest.expect("a member").logs.expect("the array has log devices")
}

/// The array of these images, without the log devices in `hidden`.
fn open<'a>(
    power: &'a mut Power,
    images: &Members,
    hidden: LogSet,
    access: Access,
) -> Result<Assembled<&'a mut Power>, RecoverError> {
    let candidate = |(slot, bytes): (usize, &Image)| {
        Some(Candidate { path: PathBuf::from(format!("place{slot}")), superblock: superblock(bytes)? })
    };
    let present = images.iter().enumerate().filter_map(|(slot, bytes)| Some((slot, bytes.as_ref()?)));
    let candidates: Vec<Candidate> = present.filter_map(candidate).collect();
    let mut verdict = judge(&candidates).expect("an array");
    let active = verdict.superblock.logs.as_ref().map(LogDevices::active).unwrap_or_default();
    verdict.lost_logs = active.minus(active.minus(hidden));
    let marked = |log: LogIndex| is_marked(images[log_place(log).index()].as_deref(), verdict.superblock.journal);
    assert!(verdict.superblock.is_clean || active.minus(hidden).iter().all(marked), "all have what the run has");
    let generation = Uuid::from_u128(7 + u128::from(verdict.superblock.epoch.0));
    Assembled::new(power, &verdict, &candidates, access, generation)
}

/// Whether a log device says, in both places, that it has everything of a run; or is not there.
fn is_marked(device: Option<&[u8]>, run: Uuid) -> bool {
    let says =
        |bytes: &[u8], at: usize| bytes[at..at + 8] == *b"\x8dULRUN\r\n" && bytes[at + 16..at + 32] == *run.as_bytes();
    device.is_none_or(|bytes| [24 << 10, 56 << 10].into_iter().all(|at| says(bytes, at)))
}

/// What each sector may hold: of each the last version that was flushed, and those that came after that.
pub(crate) struct Model {
    pub(crate) versions: Vec<Vec<u64>>,
    next: u64,
}

/// A write that was not replied to, or not flushed.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    lba: u64,
    len: u64,
    version: u64,
}

fn content(version: u64, lba: u64) -> [u8; 512] {
    let mut random = Random(version.wrapping_mul(1 << 20).wrapping_add(lba));
    let mut bytes = [0; 512];
    if version > 0 {
        bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random.below(u64::MAX).to_le_bytes()));
    }
    bytes
}

impl Model {
    pub(crate) fn new(capacity: Sectors) -> Self {
        Self { versions: vec![vec![0]; size(Bytes(capacity.0))], next: 1 }
    }

    pub(crate) fn begin(&mut self, lba: u64, len: u64) -> (Pending, Vec<u8>) {
        let pending = Pending { lba, len, version: self.next };
        self.next += 1;
        let sectors = lba..lba + len;
        sectors.clone().for_each(|lba| self.versions[size(Bytes(lba))].push(pending.version));
        (pending, sectors.flat_map(|lba| content(pending.version, lba)).collect())
    }

    /// Everything that was replied to before is durable, up to this version of each sector.
    pub(crate) fn durable(&mut self, Pending { lba, len, version }: Pending) {
        for lba in lba..lba + len {
            self.versions[size(Bytes(lba))].retain(|&other| other >= version);
        }
    }

    /// Looks at what is there: that is what counts from now on.
    pub(crate) fn look(&mut self, found: &[u8], context: &str) {
        for (lba, (bytes, versions)) in (0..).zip(found.chunks(512).zip(&mut self.versions)) {
            let is = |version: &&u64| content(**version, lba) == *bytes;
            let version = versions.iter().find(is);
            let version = *version.unwrap_or_else(|| panic!("{context}: sector {lba} is none of {versions:?}"));
            *versions = vec![version];
        }
    }
}

pub(crate) type LogEngine<'a> = Engine<&'a mut Power, u64>;

/// Runs the engine until it has nothing to do, or the power is off; the replies.
pub(crate) fn settle(engine: &mut LogEngine<'_>) -> Vec<Reply<u64>> {
    let mut replies = Vec::new();
    for _ in 0..2000 {
        if engine.turn(&mut replies).is_err() || engine.disk().left == 0 {
            break;
        }
        let is_idle = engine.in_flight() == 0 && engine.disk().in_flight() == 0 && !engine.wants_turn();
        if is_idle && !engine.has_replies() {
            break;
        }
    }
    replies
}

pub(crate) fn read_all(engine: &mut LogEngine<'_>) -> Vec<u8> {
    let capacity = engine.geometry().capacity();
    let mut all = Vec::new();
    for lba in (0..capacity.0).step_by(64) {
        let len = (capacity.0 - lba).min(64);
        engine.submit(0, Command::Read { lba: Lba(lba), buf: Buf::zeroed(Sectors(len).bytes()) });
        let mut replies = settle(engine);
        let reply = replies.pop().expect("a reply").result.expect("read").expect("its buffer");
        all.extend_from_slice(reply.as_ref());
    }
    all
}

/// Writes and flushes as long as there is power. Those that were replied to are in the model.
pub(crate) fn work(engine: &mut LogEngine<'_>, model: &mut Model, random: &mut Random, commands: u64) {
    let capacity = engine.geometry().capacity().0;
    let is_checked = engine.superblock().integrity != Integrity::None;
    let mut replied: Vec<Pending> = Vec::new();
    for _ in 0..commands {
        let mut submitted = Vec::new();
        let before = replied.clone();
        for token in 0..=random.below(3) {
            if random.below(4) == 0 {
                engine.submit(token, Command::Flush);
                submitted.push(None);
                continue;
            }
            let len = [1, 8, 8, 8, 16, 24][size(Bytes(random.below(6)))].max(if is_checked { 8 } else { 1 });
            let lba = (random.below(capacity - len + 1) / 8 * 8).min(capacity - len);
            let is_taken = |other: &Option<(Pending, bool)>| {
                other.is_some_and(|(other, _)| other.lba < lba + len && lba < other.lba + other.len)
            };
            if submitted.iter().any(is_taken) {
                submitted.push(None);
                engine.submit(token, Command::Flush);
                continue;
            }
            let (pending, bytes) = model.begin(lba, len);
            let fua = random.below(4) == 0;
            engine.submit(token, Command::Write { lba: Lba(lba), buf: buf(&bytes), fua });
            submitted.push(Some((pending, fua)));
        }
        let replies = settle(engine);
        let mut is_frozen = false;
        for Reply { token, result } in replies {
            is_frozen |= result.is_err();
            match submitted[size(Bytes(token))] {
                _ if result.is_err() => {}
                None => before.iter().for_each(|&pending| model.durable(pending)),
                Some((pending, true)) => model.durable(pending),
                Some((pending, false)) => replied.push(pending),
            }
        }
        if engine.disk().left == 0 || is_frozen {
            return;
        }
        if random.below(6) == 0 {
            (0..random.below(40)).for_each(|_| engine.tick());
            drop(settle(engine));
        }
    }
}

pub(crate) fn shapes() -> [Shape; 5] {
    let wide = |shape| Shape { chunk: 8 << 10, ..shape };
    let checked = Shape { integrity: Integrity::Crc32, ..wide(small(RAID5, 3)) };
    let mirror = small(Level::Raid10 { copies: 2 }, 4);
    [small(RAID5, 4), wide(small(RAID5, 3)), small(rm2(2, Placement::Adjacent), 5), mirror, checked]
}

/// Lives of an array, each of which ends with the power, or with a kill, anywhere: in service, and while it recovers.
/// In some of them a log device or a member fails, or is not there, and is back in the next one.
fn live(seed: u64) {
    let mut random = Random(seed);
    let shape = shapes()[size(Bytes(random.below(5)))];
    let share = SHARES[size(Bytes(random.below(2)))];
    let logs = 2 + u8::try_from(random.below(2)).expect("few");
    let Made { shape, mut images, .. } = Made::new(shape, share, logs);
    let mut model = Model::new(shape.geometry().capacity());
    let mut lost = MemberSet::EMPTY;
    // Where the log has sums of whole stripes, what was being written is lost with a member.
    let has_sums = seed.is_multiple_of(3);
    for life in 0..6 {
        let context = format!("seed {seed}, life {life}, {shape:?}");
        let active = on_record(&images).active();
        let (mut hidden, mut left) = (LogSet::EMPTY, 5);
        if active.len() > 1 && random.below(4) == 0 {
            hidden = active.iter().take(1 + size(Bytes(random.below(active.len() as u64 - 1)))).collect();
        }
        if lost.is_empty() && !has_sums && random.below(5) == 0 {
            lost = lost.with(MemberIndex(u8::try_from(random.below(shape.members.into())).expect("few")));
        }
        let mut there = images.clone();
        lost.iter().for_each(|slot| there[slot.index()] = None);
        hidden.iter().for_each(|log| there[log_place(log).index()] = None);
        // What recovery was cut off in goes on from there.
        let recovered = loop {
            left += if random.below(3) == 0 { 1000 } else { random.below(60) };
            let mut power = Power::new(there.clone(), size(Bytes(left)));
            power.late = Some(Random(random.below(u64::MAX)));
            let is_done = match open(&mut power, &there, hidden, Access::ReadWrite) {
                Ok(assembled) => recover_where_needed(assembled).is_some(),
                Err(_) => false,
            };
            let is_cut = power.left == 0;
            there = power.cut(&mut random);
            assert!(is_done || is_cut, "{context}: it can't be recovered");
            if is_done {
                break there;
            }
        };
        there = recovered;
        let mut power = Power::new(there.clone(), usize::MAX);
        power.late = Some(Random(random.below(u64::MAX)));
        let (mut engine, _pool) = engine_of(&mut power, &there, hidden);
        engine.log_sums(has_sums);
        model.look(&read_all(&mut engine), &context);
        let failing = active.minus(hidden).iter().nth(size(Bytes(random.below(4))));
        if let Some(log) = failing.filter(|_| random.below(3) == 0) {
            let (member, name, after) = (log_place(log), OpName::Write, random.below(60));
            engine.disk_mut().inner.fail(Fault { member, name, after, count: u64::MAX, errno: Errno::IO });
        }
        let most = random.below(500);
        if random.below(6) > 0 {
            engine.disk_mut().left = size(Bytes(most));
        }
        work(&mut engine, &mut model, &mut random, 60);
        if engine.disk().left > 0 && !engine.is_frozen() && random.below(3) == 0 {
            engine.submit(0, Command::Close);
            if settle(&mut engine).iter().all(|reply| reply.result.is_ok()) && engine.disk().left > 0 {
                // Nothing is lost of an array that was closed.
                model.versions.iter_mut().for_each(|versions| versions.drain(..versions.len() - 1).for_each(drop));
            }
        }
        drop(engine);
        let survived = power.cut(&mut random);
        // Whoever was not there is back as it was.
        for (place, bytes) in survived.into_iter().enumerate() {
            if bytes.is_some() {
                images[place] = bytes;
            }
        }
    }
}

pub(crate) fn recover_where_needed(assembled: Assembled<&mut Power>) -> Option<Assembled<&mut Power>> {
    if assembled.needs_recovery() { recover(assembled, |_| ()).ok() } else { Some(assembled) }
}

#[test]
fn what_was_flushed_is_there_whatever_becomes_of_the_log_devices() {
    let only = std::env::var("URAID_LOG_SEED").ok().and_then(|seed| seed.parse().ok());
    let rounds = std::env::var("URAID_LOG_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(40);
    let (first, end) = only.map_or((0, rounds), |seed: u64| (seed, seed + 1));
    (first..end).for_each(live);
}

/// The engine of an array that is opened, with a cache.
pub(crate) fn engine_of<'a>(power: &'a mut Power, images: &Members, hidden: LogSet) -> (LogEngine<'a>, Pool) {
    let assembled = open(power, images, hidden, Access::ReadWrite).expect("opened");
    let assembled = recover_where_needed(assembled).expect("recovered");
    let pool = Pool::new(Bytes((PAGES + 1024) * 4096));
    let engine: LogEngine<'_> = assembled.into_engine().expect("an engine");
    (engine.with_cache(CacheMode::WriteBack, &pool, Bytes(PAGES * 4096)), pool)
}

/// Writes a block durably, that no journal had before.
pub(crate) fn put(engine: &mut LogEngine<'_>, lba: u64, fill: u8) -> Vec<Reply<u64>> {
    engine.submit(lba, Command::Write { lba: Lba(lba), buf: buf(&[fill; 4096]), fua: true });
    settle(engine)
}

pub(crate) fn block_of(engine: &mut LogEngine<'_>, lba: u64) -> u8 {
    read_all(engine)[size(Bytes(lba * 512))]
}

pub(crate) fn journaled() -> Made {
    Made::new(Shape { chunk: 8 << 10, ..small(RAID5, 3) }, SHARES[0], 2)
}

/// What has come to one device alone when the power goes, which is not there at the next start, does not count when it
/// is back.
#[test]
fn a_device_that_was_missing_once_is_never_read_again() {
    let Made { images, .. } = journaled();
    let mut power = Power::new(images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &images, LogSet::EMPTY);
    assert!(put(&mut engine, 0, 1)[0].result.is_ok());
    engine.disk_mut().hung = Some(log_place(log(0)));
    assert!(put(&mut engine, 8, 2).is_empty(), "it is on one device alone");
    drop(engine);
    let left = power.cut(&mut Random(1));
    let mut there = left.clone();
    there[log_place(log(1)).index()] = None;
    let mut power = Power::new(there.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &there, LogSet::EMPTY.with(log(1)));
    assert_eq!([0, 8].map(|lba| block_of(&mut engine, lba)), [1, 0]);
    assert!(put(&mut engine, 16, 3)[0].result.is_ok());
    assert_eq!(engine.superblock().logs.as_ref().expect("still there").active(), LogSet::EMPTY.with(log(0)));
    drop(engine);
    let mut again = power.cut(&mut Random(2));
    again[log_place(log(1)).index()].clone_from(&left[log_place(log(1)).index()]);
    let mut power = Power::new(again.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &again, LogSet::EMPTY);
    assert_eq!([0, 8, 16].map(|lba| block_of(&mut engine, lba)), [1, 0, 3]);
}

/// What is left of an array when the power goes after the first block was written durably.
fn cut_after_a_write(images: &Members, fill: u8) -> Members {
    let mut power = Power::new(images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, images, LogSet::EMPTY);
    assert!(put(&mut engine, 0, fill)[0].result.is_ok());
    drop(engine);
    power.cut(&mut Random(1))
}

/// Which of an array's log devices it takes, as they are in these images.
fn taken(images: &Members, options: OpenOptions) -> Result<Vec<bool>, OpenError> {
    let sector_size = Bytes(512);
    let (mut members, mut logs) = (Vec::new(), Vec::new());
    for (place, bytes) in images.iter().enumerate().filter_map(|(place, bytes)| Some((place, bytes.as_ref()?))) {
        let (path, size) = (PathBuf::from(format!("place{place}")), Bytes(bytes.len() as u64));
        if let Some(superblock) = superblock(bytes) {
            members.push(Opened {
                member: (),
                candidate: Candidate { path, superblock },
                size,
                sector_size,
                mark: Mark::default(),
            });
            continue;
        }
        let (array, uuid) = (members[0].candidate.superblock.array, device(u8::try_from(place - 64).expect("few")));
        let header = LogHeader { array, name: String::new(), uuid, size, share: Bytes(SHARES[0]), slots: 3 };
        let runs = [24 << 10, 56 << 10].iter().filter_map(|&at| decode_mark(&bytes[at..])).collect();
        logs.push(OpenedLog { device: (), path, header, runs, size, sector_size });
    }
    let mut taken = Vec::new();
    let disk = |places: Vec<Option<()>>| {
        taken = places[log_place(log(0)).index()..].iter().map(Option::is_some).collect();
        Err::<&mut Power, _>(uraid_io::Error::Ring {
            action: "go on",
            source: std::io::Error::other("enough is known"),
        })
    };
    let named = Named { members, logs, unreadable: Vec::new() };
    match Array::of(named, options, MemberSet::EMPTY, &mut Patience::endless(), disk) {
        Err(OpenError::Io(uraid_io::Error::Ring { .. })) => Ok(taken),
        other => Err(other.map(drop).expect_err("it has no disk")),
    }
}

/// Log devices that are from before a run have nothing of it: where that was not ended they do not count, one or all of
/// them; where it was, they do.
#[test]
fn log_devices_that_went_back_in_time_do_not_count() {
    let options = |allow_degraded| OpenOptions { access: Access::ReadWrite, allow_degraded, force: true };
    let with = |left: &Members, numbers: &[u8], other: &Members| {
        let mut left = left.clone();
        numbers.iter().map(|&number| log_place(log(number)).index()).for_each(|at| left[at].clone_from(&other[at]));
        left
    };
    let Made { images: new, .. } = journaled();
    let mut before = new.clone();
    for run in 0..3 {
        let killed = cut_after_a_write(&before, 1 + run);
        assert_eq!(taken(&killed, options(false)).expect("all are there"), [true, true]);
        for other in [&new, &before] {
            let old = with(&killed, &[1], other);
            assert!(matches!(taken(&old, options(false)), Err(OpenError::LogsMissing { set_aside, .. })
                if matches!(set_aside[..], [(_, SetAside::LogOld)])));
            assert_eq!(taken(&old, options(true)).expect("one is there"), [true, false]);
            let old = with(&killed, &[0, 1], other);
            assert!(matches!(taken(&old, options(true)), Err(OpenError::NoLogs { set_aside, .. })
                if matches!(set_aside[..], [(_, SetAside::LogOld), (_, SetAside::LogOld)])));
        }
        // A run that goes on is the same one.
        let mut power = Power::new(killed.clone(), usize::MAX);
        let (mut engine, _pool) = engine_of(&mut power, &killed, LogSet::EMPTY);
        assert_eq!(block_of(&mut engine, 0), 1 + run);
        engine.submit(0, Command::Close);
        assert!(settle(&mut engine)[0].result.is_ok());
        drop(engine);
        let closed = power.cut(&mut Random(2));
        for other in [&new, &before] {
            assert_eq!(
                taken(&with(&closed, &[0, 1], other), options(false)).expect("nothing on them counts"),
                [true; 2]
            );
        }
        before = closed;
    }
}

/// What only log devices have is not done without because the last of them fails while the array is opened.
#[test]
fn opening_goes_on_without_a_log_device_that_fails_and_not_without_the_last_one() {
    let left = cut_after_a_write(&journaled().images, 1);
    for failing in [1, 2] {
        let mut power = Power::new(left.clone(), usize::MAX);
        for member in (0..failing).map(|number| log_place(log(number))) {
            power.inner.fail(Fault { member, name: OpName::Flush, after: 0, count: u64::MAX, errno: Errno::IO });
        }
        let opened = open(&mut power, &left, LogSet::EMPTY, Access::ReadWrite);
        match failing {
            1 => assert!(opened.is_ok(), "the other one has everything"),
            _ => assert!(matches!(opened, Err(RecoverError::LogsLost { .. }))),
        }
    }
}

/// A record that has rotted on one device is read from the other, and written to the first again before that may be
/// all that is left.
#[test]
fn what_one_device_lacks_it_gets_from_the_other() {
    let Made { images, share, shape } = journaled();
    let mut power = Power::new(images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &images, LogSet::EMPTY);
    // One page of each stripe: whole ones don't go into the journal.
    let lbas = [0, 32, 64, 96, 128, 160];
    (1..).zip(lbas).for_each(|(fill, lba)| assert!(put(&mut engine, lba, fill)[0].result.is_ok()));
    drop(engine);
    for rotten in 0..2 {
        let mut left = images.clone();
        let source = |place: usize| power.inner.member(MemberIndex(u8::try_from(place).expect("few")));
        left.iter_mut().enumerate().for_each(|(place, bytes)| *bytes = source(place).cloned());
        let logs = LogDevices::new(share, [device(0)], Epoch(1));
        for slot in 0..shape.members {
            // The second half is the journal's.
            let area = logs.area(MemberIndex(slot));
            let start = size(area.offset) + size(area.size) / 2;
            left[log_place(log(rotten)).index()].as_mut().expect("there")[start..][..3 * 4096].fill(0xA5);
        }
        let mut again = Power::new(left.clone(), usize::MAX);
        let (engine, _pool) = engine_of(&mut again, &left, LogSet::EMPTY);
        drop(engine);
        let mut left = again.cut(&mut Random(1));
        left[log_place(log(1 - rotten)).index()] = None;
        let mut last = Power::new(left.clone(), usize::MAX);
        let (mut engine, _pool) = engine_of(&mut last, &left, LogSet::EMPTY.with(log(1 - rotten)));
        assert_eq!(lbas.map(|lba| block_of(&mut engine, lba)), [1, 2, 3, 4, 5, 6]);
    }
}

/// Nothing waits for a device that hangs for longer than writes may take, as long as there is another; then it is on
/// record that it lacks something.
#[test]
fn a_device_that_hangs_is_given_up_and_the_last_one_is_waited_for() {
    let Made { images, .. } = journaled();
    let mut power = Power::new(images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &images, LogSet::EMPTY);
    let second = Some(std::time::Duration::from_secs(1));
    engine.set_deadlines(Deadlines { read: second, write: second, hedges: false });
    assert!(put(&mut engine, 0, 1)[0].result.is_ok());
    engine.disk_mut().hung = Some(log_place(log(0)));
    assert!(put(&mut engine, 8, 2).is_empty());
    let mut replies = Vec::new();
    for _ in 0..40 {
        engine.tick();
        replies.extend(settle(&mut engine));
    }
    assert!(replies.len() == 1 && replies[0].result.is_ok(), "{replies:?}");
    assert_eq!(engine.superblock().logs.as_ref().expect("still there").active(), LogSet::EMPTY.with(log(1)));
    assert!(put(&mut engine, 16, 3)[0].result.is_ok());
    engine.disk_mut().hung = Some(log_place(log(1)));
    assert!(put(&mut engine, 24, 4).is_empty());
    for _ in 0..100 {
        engine.tick();
        assert!(settle(&mut engine).is_empty(), "nobody has it");
    }
    assert!(!engine.is_frozen(), "it may still answer");
    assert_eq!(engine.troubles().stalled_logs, LogSet::EMPTY.with(log(1)));
    assert_eq!(engine.missing(), MemberSet::EMPTY);
}

/// One failure after the other: the array goes on without the first, and is frozen with the last. What was replied to
/// before is there.
#[test]
fn an_array_whose_last_log_device_fails_is_frozen() {
    let Made { images, .. } = journaled();
    let mut power = Power::new(images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &images, LogSet::EMPTY);
    assert!(put(&mut engine, 0, 1)[0].result.is_ok());
    let fault = |number| {
        let member = log_place(log(number));
        Fault { member, name: OpName::Write, after: 0, count: u64::MAX, errno: Errno::IO }
    };
    engine.disk_mut().inner.fail(fault(1));
    assert!(put(&mut engine, 8, 2)[0].result.is_ok(), "the other one has it");
    assert_eq!(engine.superblock().logs.as_ref().expect("still there").failed(), LogSet::EMPTY.with(log(1)));
    engine.disk_mut().inner.fail(fault(0));
    let replies = put(&mut engine, 16, 3);
    assert!(replies.len() == 1 && replies[0].result.is_err(), "{replies:?}");
    assert!(engine.is_frozen() && engine.troubles().frozen_by_logs == LogSet::EMPTY.with(log(0)));
    assert_eq!(engine.survives(), 0);
    drop(engine);
    let left = power.cut(&mut Random(3));
    let mut power = Power::new(left.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &left, LogSet::EMPTY);
    assert_eq!([0, 8].map(|lba| block_of(&mut engine, lba)), [1, 2]);
}

/// Lets time pass until everything is in place and rebuilt.
pub(crate) fn rest(engine: &mut LogEngine<'_>) {
    for _ in 0..400 {
        engine.tick();
        assert!(settle(engine).is_empty());
    }
    assert!(!engine.is_dirty() && engine.rebuilding().is_none());
}

/// What a slot's part of the journal has of the time before a member came, or came back, is not done again, though
/// whoever else had it is lost by then.
#[test]
fn a_member_that_joins_brings_nothing_back() {
    for logs in [0, 2] {
        let made = Made::new(Shape { chunk: 8 << 10, log: 256 << 10, ..small(RAID5, 3) }, SHARES[0], logs);
        let Made { images, shape, .. } = made;
        let mut power = Power::new(images.clone(), usize::MAX);
        let (mut engine, _pool) = engine_of(&mut power, &images, LogSet::EMPTY);
        assert!(put(&mut engine, 0, 1)[0].result.is_ok());
        let has_it = |slot: &MemberIndex| engine.log_fill_of(*slot).is_some_and(|fill| fill.used > Bytes(0));
        let [first, second] = [0, 1, 2].map(MemberIndex).into_iter().filter(has_it).collect::<Vec<_>>()[..] else {
            panic!("two have the record")
        };
        engine.submit(0, Command::Fail { member: first });
        assert!(settle(&mut engine)[0].result.is_ok());
        engine.submit(0, Command::Write { lba: Lba(0), buf: buf(&[2; 4096]), fua: false });
        assert!(settle(&mut engine)[0].result.is_ok());
        rest(&mut engine);
        // With log devices a new member comes; without them the one that was given up, with its log.
        let mut joining = joining(&shape, first, 7);
        joining.superblock = engine.superblock().clone();
        joining.superblock.slot = first;
        joining.superblock.member = match logs {
            0 => shape.superblocks()[first.index()].member,
            _ => Uuid::from_bytes([99; 16]),
        };
        if logs > 0 {
            engine.disk_mut().inner.replace(first, Some(new_bytes(&shape, first)));
        }
        engine.submit(0, Command::Join(Box::new(joining)));
        let joined = settle(&mut engine);
        assert!(joined.len() == 1 && joined[0].result.is_ok(), "{logs} log devices: {joined:?}");
        rest(&mut engine);
        assert_eq!(engine.missing(), MemberSet::EMPTY);
        drop(engine);
        let mut left = power.cut(&mut Random(1));
        left[second.index()] = None;
        let mut power = Power::new(left.clone(), usize::MAX);
        let (mut engine, _pool) = engine_of(&mut power, &left, LogSet::EMPTY);
        assert_eq!(block_of(&mut engine, 0), 2, "{logs} log devices");
    }
}

/// With log devices nothing of the log is on the members, and every record is on each device.
#[test]
fn records_are_on_every_log_device_and_on_no_member() {
    for (shape, share) in shapes().into_iter().zip([SHARES[0], SHARES[1], SHARES[0], SHARES[0], SHARES[1]]) {
        let Made { shape, share, images } = Made::new(shape, share, 2);
        let mut power = Power::new(images.clone(), usize::MAX);
        let (mut engine, _pool) = engine_of(&mut power, &images, LogSet::EMPTY);
        assert!(put(&mut engine, 8, 7)[0].result.is_ok());
        (0..100).for_each(|_| engine.tick());
        drop(settle(&mut engine));
        let records: Vec<_> = [0, 1].map(|number| engine.counters().log_device(log(number)).log_records).into();
        assert!(records[0] > 0 && records[0] == records[1], "{shape:?}: {records:?}");
        drop(engine);
        let logs: Vec<&Image> = [0, 1].map(|number| power.inner.member(log_place(log(number))).expect("there")).into();
        assert_eq!(logs[0], logs[1], "{shape:?}: they mirror each other");
        let area = LogDevices::new(share, [device(0)], Epoch(1));
        let used = |slot: u8| {
            let area = area.area(MemberIndex(slot));
            logs[0][size(area.offset)..][..size(area.size)].iter().any(|&byte| byte != 0)
        };
        let slots: HashSet<u8> = (0..shape.members).filter(|&slot| used(slot)).collect();
        assert!(slots.len() > 1, "{shape:?}: {slots:?}");
        for own in shape.superblocks() {
            let bytes = power.inner.member(own.slot).expect("there");
            let own_area = &bytes[size(own.areas.log.offset)..][..size(own.areas.log.size)];
            assert!(own_area.iter().all(|&byte| byte == 0), "{shape:?}: member {} has a part of the log", own.slot);
        }
    }
}
