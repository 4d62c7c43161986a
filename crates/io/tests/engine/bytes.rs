//! Requests of any bytes, many at once: pieces that share a sector, or a block, each leave the others' bytes alone.

use uraid_io::buf::Buf;
use uraid_io::disk::Order;
use uraid_io::engine::{CacheMode, Command, EngineError, Reply};
use uraid_io::format::superblock::Consistency;
use uraid_layout::{Bytes, Lba, Level, MemberSet};

use crate::content::caching;
use crate::support::{
    Caching, RAID5, Random, Shape, TestEngine, assert_encoded, buf, durable_content, noise, read, run, shapes, size,
    small, tolerated, with_cache,
};

/// What a round of requests is about, and into how many pieces it is cut.
const WINDOW: u64 = 24 << 10;
const PIECES: u64 = 24;

/// What a piece has to be like when the round is over.
enum Expected {
    Read(usize, usize),
    Done,
}

/// An array and what it must hold.
struct Lives {
    engine: TestEngine,
    content: Vec<u8>,
    random: Random,
    context: String,
}

impl Lives {
    fn new(shape: Shape, missing: MemberSet, order: Order, seed: u64, caching: Caching) -> Self {
        let (mut engine, _) = with_cache(shape.engine(missing, order), caching);
        let capacity = engine.geometry().capacity();
        let content = noise(seed, capacity.0);
        run(&mut engine, Command::Write { lba: Lba(0), buf: buf(&content), fua: false }).expect("written");
        let context = format!("{shape:?} without {missing:?}, {order:?}, {caching:?}, seed {seed}");
        Self { engine, content, random: Random(seed), context }
    }

    /// Cuts a window into pieces, at any byte or at a sector, and has something done with each, all at once.
    fn round(&mut self) {
        let end = self.content.len() as u64;
        let window = WINDOW.min(end);
        let start = self.random.below(end - window + 1);
        let mut cuts: Vec<u64> = (0..PIECES).map(|_| start + self.random.below(window)).collect();
        for cut in &mut cuts {
            if self.random.below(3) == 0 {
                *cut = (*cut).next_multiple_of(512).min(start + window);
            }
        }
        cuts.extend([start, start + window]);
        cuts.sort_unstable();
        cuts.dedup();
        let (mut commands, mut expected) = (Vec::new(), Vec::new());
        for piece in cuts.windows(2) {
            let (from, to) = (usize::try_from(piece[0]).expect("small"), usize::try_from(piece[1]).expect("small"));
            let (command, outcome) = self.draw(from, to);
            commands.push(command);
            expected.push(outcome);
        }
        // In another order than that of the addresses.
        let turn = usize::try_from(self.random.below(commands.len() as u64)).expect("small");
        commands.rotate_left(turn);
        expected.rotate_left(turn);
        for (result, expected) in self.run_by_and_by(commands).into_iter().zip(expected) {
            let result = result.unwrap_or_else(|error| panic!("{}: {error}", self.context));
            if let Expected::Read(from, to) = expected {
                let read = result.expect("a read's buffer comes back");
                assert!(read.as_ref() == &self.content[from..to], "{}: read {from}..{to}", self.context);
            }
        }
    }

    /// Runs commands that are submitted while those before them are under way; the replies in the commands' order.
    fn run_by_and_by(&mut self, commands: Vec<Command>) -> Vec<Result<Option<Buf>, EngineError>> {
        let mut replies = Vec::new();
        for (token, command) in (0..).zip(commands) {
            self.engine.submit(token, command);
            let reaps = usize::try_from(self.random.below(4)).expect("small");
            self.engine.disk_mut().allow_reaps(reaps);
            self.engine.turn(&mut replies).expect("memory does not break");
        }
        replies.extend(finish(&mut self.engine));
        replies.sort_by_key(|reply| reply.token);
        replies.into_iter().map(|reply| reply.result).collect()
    }

    fn draw(&mut self, from: usize, to: usize) -> (Command, Expected) {
        let (at, len, fua) = (Bytes(from as u64), Bytes((to - from) as u64), self.random.below(6) == 0);
        match self.random.below(5) {
            0 => (Command::ReadBytes { at, buf: Buf::zeroed(len) }, Expected::Read(from, to)),
            1 => {
                self.content[from..to].fill(0);
                (Command::ZeroBytes { at, len, fua, may_punch: fua }, Expected::Done)
            }
            // One that is about whole sectors goes the usual way where the array has no larger units.
            draw => {
                let new = noise(self.random.below(u64::MAX), len.0.div_ceil(512));
                self.content[from..to].copy_from_slice(&new[..to - from]);
                let buf = buf(&self.content[from..to]);
                let unit = self.engine.superblock().unit().bytes().0;
                if draw == 2 && at.0.is_multiple_of(unit) && len.0.is_multiple_of(unit) {
                    (Command::Write { lba: Lba(at.0 / 512), buf, fua }, Expected::Done)
                } else {
                    (Command::WriteBytes { at, buf, fua }, Expected::Done)
                }
            }
        }
    }

    fn finish(mut self) {
        let capacity = self.engine.geometry().capacity().0;
        let content = read(&mut self.engine, 0, capacity).expect("everything can be read");
        assert!(content == self.content, "{}: read at the end", self.context);
        run(&mut self.engine, Command::Close).expect("closes");
        assert_encoded(&self.engine, &self.content, &self.context);
    }
}

/// Lets all that is under way end.
fn finish(engine: &mut TestEngine) -> Vec<Reply<u64>> {
    let mut replies = Vec::new();
    engine.disk_mut().allow_reaps(usize::MAX);
    engine.turn(&mut replies).expect("memory does not break");
    while engine.wants_turn() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert_eq!(engine.in_flight(), 0, "commands hang");
    replies
}

/// A write of whole sectors comes before or while one of them is being changed in part, and perhaps a flush after it,
/// at every point of that: what the change is not about is the other write's.
#[test]
fn a_change_does_not_bring_back_what_was_there_before() {
    // A page, and a parity stripe, which is not kept in memory.
    for sectors in [8, 24] {
        come_in_between(&noise(3, sectors));
    }
}

fn come_in_between(whole: &[u8]) {
    let sectors = whole.len() as u64 / 512;
    let orders = [Order::Fifo, Order::Lifo];
    let cases = (0..6).flat_map(|number| orders.map(|order| (number, order)));
    let cases =
        cases.flat_map(|case| (0..6).flat_map(move |before| (0..6).map(move |between| (case, before, between))));
    for (((number, order), before, between), (is_first, is_flushed)) in
        cases.flat_map(|case| [(false, false), (false, true), (true, false), (true, true)].map(|how| (case, how)))
    {
        let (mut engine, _) = with_cache(small(RAID5, 4).engine(MemberSet::EMPTY, order), caching(number));
        let mut replies = Vec::new();
        let part = Command::WriteBytes { at: Bytes(512 + 10), buf: buf(&[0xAA; 20]), fua: false };
        let newer = Command::Write { lba: Lba(0), buf: buf(whole), fua: false };
        let [one, other] = if is_first { [newer, part] } else { [part, newer] };
        engine.submit(0, one);
        engine.disk_mut().allow_reaps(before);
        engine.turn(&mut replies).expect("memory does not break");
        engine.submit(1, other);
        engine.disk_mut().allow_reaps(between);
        engine.turn(&mut replies).expect("memory does not break");
        if is_flushed {
            engine.submit(2, Command::Flush);
        }
        finish(&mut engine).into_iter().chain(replies).for_each(|reply| drop(reply.result.expect("done")));
        let context =
            format!("{order:?}, {:?}, {before}, {between}, {is_first}, {is_flushed}, {sectors}", caching(number));
        let mut read = read(&mut engine, 0, sectors).expect("read");
        let changed = &mut read[512 + 10..512 + 30];
        assert!(*changed == [0xAA; 20] || *changed == whole[512 + 10..512 + 30], "{context}");
        changed.copy_from_slice(&whole[512 + 10..512 + 30]);
        assert!(read == whole, "{context}");
    }
}

#[test]
fn pieces_that_share_sectors_leave_each_other_alone() {
    for (index, shape) in (0..).zip(shapes()) {
        for number in 0..6 {
            let order = [Order::Fifo, Order::Lifo, Order::Seeded(number)][size(Bytes((number + index) % 3))];
            let shape = match (number + index) % 3 {
                0 => shape,
                1 => Shape { consistency: Consistency::Log, ..shape },
                _ => shape.checked(),
            };
            let mut lives = Lives::new(shape, MemberSet::EMPTY, order, 100 * index + number, caching(number));
            (0..12).for_each(|_| lives.round());
            lives.finish();
        }
    }
}

#[test]
fn so_they_do_without_members() {
    for (index, shape) in (0..).zip(shapes()) {
        for (turn, missing) in (0..).zip(tolerated(&shape.geometry())).skip(1) {
            let shape = if (turn + index) % 2 == 0 { shape } else { shape.checked() };
            let seed = 5000 + 100 * index + turn;
            let mut lives = Lives::new(shape, missing, Order::Seeded(turn), seed, caching(turn));
            (0..6).for_each(|_| lives.round());
            lives.finish();
        }
    }
}

/// With a journal of pages, where what is live there may not be written past the cache.
#[test]
fn so_they_do_beside_a_journal() {
    for (number, members) in [(0, 3), (1, 5), (2, 4), (3, 3), (4, 4), (5, 5)] {
        let shape = Shape { consistency: Consistency::Log, log: 2 << 20, ..small(RAID5, members) };
        let mut lives = Lives::new(shape, MemberSet::EMPTY, Order::Seeded(number), number, caching(number));
        for _ in 0..20 {
            lives.round();
            if lives.random.below(3) == 0 {
                run(&mut lives.engine, Command::Flush).expect("flushes");
            }
        }
        lives.finish();
    }
}

/// What FUA says is durable is, edges and all.
#[test]
fn a_durable_write_of_bytes_is_durable() {
    for number in 0..6 {
        for (from, to) in [(100, 200), (100, 5000), (512, 700), (1, 8191), (4096, 4097)] {
            let (mut engine, _) = with_cache(small(RAID5, 4).engine(MemberSet::EMPTY, Order::Fifo), caching(number));
            let mut content = vec![0; size(engine.geometry().capacity().bytes())];
            content[from..to].copy_from_slice(&noise(7, 16)[..to - from]);
            let command = Command::WriteBytes { at: Bytes(from as u64), buf: buf(&content[from..to]), fua: true };
            run(&mut engine, command).expect("written");
            assert!(durable_content(&engine) == content, "{from}..{to}, {:?}", caching(number));
        }
    }
}

#[test]
fn bytes_beyond_the_array_are_refused() {
    let mut engine = small(RAID5, 3).engine(MemberSet::EMPTY, Order::Fifo);
    let end = engine.geometry().capacity().bytes();
    for (at, len) in [(end.0 - 1, 2), (end.0, 1), (u64::MAX, 1), (u64::MAX - 5, 100)] {
        let commands = [
            Command::ReadBytes { at: Bytes(at), buf: Buf::zeroed(Bytes(len)) },
            Command::WriteBytes { at: Bytes(at), buf: Buf::zeroed(Bytes(len)), fua: false },
            Command::ZeroBytes { at: Bytes(at), len: Bytes(len), fua: false, may_punch: true },
        ];
        for command in commands {
            let result = run(&mut engine, command);
            assert!(matches!(result, Err(EngineError::OutOfRange { .. })), "{at}+{len}: {result:?}");
        }
    }
    // The last byte is the array's.
    let last = Command::WriteBytes { at: Bytes(end.0 - 1), buf: buf(&[7]), fua: false };
    run(&mut engine, last).expect("written");
    let read = run(&mut engine, Command::ReadBytes { at: Bytes(end.0 - 1), buf: Buf::zeroed(Bytes(1)) });
    assert_eq!(read.expect("read").expect("its buffer").as_ref(), [7]);
}

/// What can't be read can't be changed in part, and is left as it is; as a whole it can be replaced.
#[test]
fn a_unit_that_nobody_has_is_not_made_up() {
    for caching in [None, Some((CacheMode::WriteBack, 64))] {
        let (mut engine, _) = with_cache(small(Level::Raid0, 3).engine(MemberSet::EMPTY, Order::Fifo), caching);
        let at = engine.geometry().locate(Lba(3));
        let offset = engine.disk().data_start().0 + at.sector.0 * 512;
        engine.disk_mut().inner.spoil(at.member, Bytes(offset), Bytes(512));
        for command in [
            Command::WriteBytes { at: Bytes(3 * 512 + 10), buf: buf(&[1; 20]), fua: false },
            Command::ZeroBytes { at: Bytes(3 * 512 + 10), len: Bytes(20), fua: false, may_punch: false },
            Command::ReadBytes { at: Bytes(3 * 512 + 10), buf: Buf::zeroed(Bytes(20)) },
        ] {
            let result = run(&mut engine, command);
            assert!(matches!(result, Err(EngineError::Unreadable { .. })), "{result:?}");
        }
        run(&mut engine, Command::Flush).expect("there is nothing that can't be written");
        let beside = Command::WriteBytes { at: Bytes(2 * 512 + 10), buf: buf(&[1; 502]), fua: false };
        run(&mut engine, beside).expect("written");
        run(&mut engine, Command::Write { lba: Lba(3), buf: buf(&[2; 512]), fua: true }).expect("written");
        let mut expected = vec![0; 10];
        expected.extend([1; 502]);
        expected.extend([2; 512]);
        assert_eq!(read(&mut engine, 2, 2).expect("read"), expected);
    }
}
