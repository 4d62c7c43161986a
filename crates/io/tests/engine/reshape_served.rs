//! Arrays that get another shape while clients use them: what clients wrote is there after any cut, on both sides of
//! the mark and across it, also when it turns round or a member fails.

use rustix::io::Errno;
use uraid_io::array::{
    Assembled, NewMember, OpenError, OpenOptions, ReshapeError, begin_reshape, begin_served, check_presence,
    finish_served, recover,
};
use uraid_io::buf::{Buf, Pool};
use uraid_io::disk::{Fault, Image, OpName};
use uraid_io::engine::{CacheMode, Command, Engine, EngineError, Reply, ScrubMode};
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Lba, Level, MemberIndex, Placement, Rotation, Sectors, StripeId};
use uuid::Uuid;

use crate::recovery::{assembled, superblock};
use crate::reshape::{Case, Power, assert_holds, case, content_of, is_old, joining, judged, plan};
use crate::support::model::content;
use crate::support::{Members, RAID5, RAID6, Random, SECTOR, Shape, rm2, size, small};

type Served<'a> = Engine<&'a mut Power, u64>;

/// Enough for all content.
const CACHE: Bytes = Bytes(1 << 20);

/// What moves at once: many windows for what there is.
const WINDOW: Bytes = Bytes(24 << 10);

/// How often each change of shape is cut off; more with `URAID_RESHAPE_ROUNDS`.
fn rounds() -> u64 {
    std::env::var("URAID_RESHAPE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(5)
}

/// What sectors may hold: each has numbers of writes; what was there before is of write 0.
struct Model {
    before: Vec<u8>,
    /// What may be there after a cut, the newest last.
    sectors: Vec<Vec<u64>>,
    next: u64,
    /// How often the array has become another one: what its log has of before counts for nothing.
    generations: u128,
}

impl Model {
    fn new(before: Vec<u8>) -> Self {
        let sectors = vec![vec![0]; before.len() / SECTOR];
        Self { before, sectors, next: 1, generations: 1 << 64 }
    }

    fn next_generation(&mut self) -> Uuid {
        self.generations += 1;
        Uuid::from_u128(self.generations)
    }

    fn bytes(&self, number: u64, lba: usize) -> [u8; SECTOR] {
        match number {
            0 => self.before[lba * SECTOR..][..SECTOR].try_into().expect("a sector"),
            number if number.is_multiple_of(5) => [0; SECTOR],
            number => content(number, lba),
        }
    }

    /// Everything that was replied to is durable.
    fn flushed(&mut self, sectors: std::ops::Range<usize>) {
        self.sectors[sectors].iter_mut().for_each(|sector| drop(sector.drain(..sector.len() - 1)));
    }

    /// Asserts that sectors hold what was written last, or after a cut what may be left, which is then known.
    fn assert(&mut self, lba: usize, bytes: &[u8], is_cut: bool, context: &str) {
        for (lba, found) in (lba..).zip(bytes.chunks_exact(SECTOR)) {
            let may_be = &self.sectors[lba][if is_cut { 0 } else { self.sectors[lba].len() - 1 }..];
            let shown = may_be.iter().rev().find(|&&number| found == self.bytes(number, lba)).copied();
            assert!(shown.is_some(), "{context}: sector {lba} holds none of {may_be:?}");
            if is_cut {
                self.sectors[lba] = shown.into_iter().collect();
            }
        }
    }

    fn content(&self) -> Vec<u8> {
        (0..).zip(&self.sectors).flat_map(|(lba, sector)| self.bytes(sector[sector.len() - 1], lba)).collect()
    }
}

fn cases() -> Vec<Case> {
    let logged = |shape: Shape| Shape { consistency: Consistency::Log, ..shape };
    let right = Level::Raid5 { rotation: Rotation::RightAsymmetric };
    let adjacent = |height| rm2(height, Placement::Adjacent);
    vec![
        case(logged(small(RAID5, 3)), RAID5, 4),
        case(logged(small(RAID5, 5)), RAID5, 4),
        case(logged(small(RAID5, 3)), adjacent(3), 7),
        case(logged(small(adjacent(3), 7)), RAID5, 4),
        case(logged(small(RAID5, 4)), right, 4),
        case(logged(small(Level::Raid1, 2)), RAID5, 3),
        case(small(Level::Raid0, 3), Level::Raid0, 4),
        // They have a log while content moves, and no longer.
        case(Shape { consistency: Consistency::Bitmap, ..small(Level::Raid1, 2) }, RAID5, 3),
        case(small(Level::Raid0, 3), RAID5, 4),
        // Each block has a checksum.
        case(small(RAID5, 3).checked(), RAID5, 4),
        case(small(RAID5, 3).checked(), adjacent(3), 7),
        case(small(Level::Raid1, 2).checked(), Level::Raid0, 3),
        case(Shape { consistency: Consistency::Bitmap, ..small(RAID5, 3) }, Level::Raid0, 3),
        case(logged(small(RAID5, 3)), RAID6, 5),
    ]
}

/// The members of an array whose reshape is on record and has moved nothing; and the content.
fn begun(case: &Case) -> (Members, Vec<u8>) {
    let (members, content) = case.members_with_log(Bytes(256 << 10));
    let mut power = Power::new(members.clone(), usize::MAX);
    let old: Members = members[..usize::from(case.from.members)].to_vec();
    let opened = assembled(&mut power, &old);
    let plan = plan(&opened, &members, case).expect("a plan");
    drop(begin_reshape(opened, plan, Uuid::from_u128(9), Ok).expect("begun"));
    (power.cut(&mut Random(0)), content)
}

/// Opens an array as a server does; none where the power went meanwhile.
fn open<'a>(power: &'a mut Power, members: &Members, mode: CacheMode, generation: u128) -> Option<(Served<'a>, Pool)> {
    let is_uncut = power.left == usize::MAX;
    let (candidates, verdict) = judged(members);
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: false };
    check_presence(&verdict, &candidates, options).expect("it can be served");
    let generation = Uuid::from_u128(generation);
    let opened = Assembled::new(power, &verdict, &candidates, Access::ReadWrite, generation);
    let opened = opened.and_then(|opened| if opened.needs_recovery() { recover(opened, |_| ()) } else { Ok(opened) });
    let error = opened.as_ref().err();
    assert!(error.is_none() || !is_uncut, "{error:?}");
    let opened = opened.ok()?;
    let pool = Pool::new(Bytes(4 << 20));
    let engine = opened.into_engine().expect("an engine");
    engine.reshape().into_iter().for_each(|way| way.limit_window(WINDOW));
    Some((engine.with_cache(mode, &pool, CACHE), pool))
}

/// A life of an array whose power stays on.
fn opened<'a>(
    power: &'a mut Power,
    now: &Members,
    generation: u128,
    model: &'a mut Model,
    context: &'a str,
) -> Life<'a> {
    let mode = CacheMode::WriteBack;
    let (engine, pool) = open(power, now, mode, generation).expect("opened");
    Life { engine, pool, mode, model, context }
}

/// A life of the array.
struct Life<'a> {
    engine: Served<'a>,
    pool: Pool,
    mode: CacheMode,
    model: &'a mut Model,
    context: &'a str,
}

impl Life<'_> {
    /// Carries commands out that are all there at once; none where the power went meanwhile.
    fn run(&mut self, commands: Vec<Command>) -> Option<Vec<Result<Option<Buf>, EngineError>>> {
        let count = commands.len();
        for (token, command) in (0..).zip(commands) {
            self.engine.submit(token, command);
        }
        let mut replies: Vec<Reply<u64>> = Vec::new();
        for _ in 0..10_000 {
            self.engine.turn(&mut replies).expect("memory does not break");
            if self.engine.disk().left == 0 {
                return None;
            }
            if replies.len() == count {
                replies.sort_by_key(|reply| reply.token);
                return Some(replies.into_iter().map(|reply| reply.result).collect());
            }
            self.engine.tick();
        }
        panic!("{}: commands hang", self.context);
    }

    fn run_one(&mut self, command: Command) -> Option<Option<Buf>> {
        let result = self.run(vec![command])?.remove(0);
        Some(result.unwrap_or_else(|error| panic!("{}: {error}", self.context)))
    }

    /// What requests are multiples of, in sectors.
    fn grain(&self) -> u64 {
        if self.engine.superblock().integrity == Integrity::None { 1 } else { 8 }
    }

    fn read_all(&mut self, is_cut: bool) -> Option<()> {
        let len = self.model.sectors.len() as u64;
        let found = self.run_one(Command::Read { lba: Lba(0), buf: Buf::zeroed(Sectors(len).bytes()) })?;
        self.model.assert(0, found.expect("its memory").as_ref(), is_cut, self.context);
        Some(())
    }

    /// Some commands of clients at once, none of which is about what another one is.
    fn step(&mut self, random: &mut Random) -> Option<()> {
        let (total, grain) = (self.model.sectors.len() as u64, self.grain());
        let (mut commands, mut meant) = (Vec::new(), Vec::new());
        let mut at = random.below(total / grain) * grain;
        for _ in 0..=random.below(6) {
            let len = (1 + random.below(60)).next_multiple_of(grain).min(total - at);
            if len == 0 {
                break;
            }
            let (lba, first) = (Lba(at), size(Bytes(at)));
            let sectors = first..first + size(Bytes(len));
            at = (at + len + random.below(30)).next_multiple_of(grain).min(total);
            let (number, fua) = (self.model.next, random.below(6) == 0);
            if random.below(3) == 0 {
                let buf = self.pool.try_alloc(Sectors(len).bytes()).expect("memory");
                commands.push(Command::Read { lba, buf });
                meant.push((sectors, false));
                continue;
            }
            self.model.next += 1;
            sectors.clone().for_each(|lba| self.model.sectors[lba].push(number));
            if number.is_multiple_of(5) {
                commands.push(Command::WriteZeroes { lba, len: Sectors(len), fua, may_punch: true });
            } else {
                let mut buf = self.pool.try_alloc(Sectors(len).bytes()).expect("memory");
                let bytes: Vec<u8> = sectors.clone().flat_map(|lba| content(number, lba)).collect();
                buf.as_mut().copy_from_slice(&bytes);
                commands.push(Command::Write { lba, buf, fua });
            }
            meant.push((sectors, fua));
        }
        for (result, (sectors, fua)) in self.run(commands)?.into_iter().zip(meant) {
            match result.unwrap_or_else(|error| panic!("{}: {error}", self.context)) {
                Some(buf) => self.model.assert(sectors.start, buf.as_ref(), false, self.context),
                None if fua => self.model.flushed(sectors),
                None => {}
            }
        }
        if random.below(8) == 0 {
            self.run_one(Command::Flush)?;
            self.model.flushed(0..self.model.sectors.len());
        }
        for _ in 0..random.below(3) {
            self.engine.tick();
            self.engine.turn(&mut Vec::new()).expect("memory does not break");
        }
        Some(())
    }

    fn close(&mut self) -> Option<()> {
        self.run_one(Command::Close)?;
        self.model.flushed(0..self.model.sectors.len());
        Some(())
    }

    /// Uses the array for a while, and begins to give it another shape; none where the power went meanwhile.
    fn begin(&mut self, case: &Case, new: &[NewMember], random: &mut Random) -> Option<()> {
        self.read_all(true)?;
        for _ in 0..random.below(6) {
            self.step(random)?;
        }
        self.close()?;
        let begun = begin_served(&mut self.engine, &case.target(), new, self.model.next_generation());
        if self.engine.disk().left == 0 {
            return None;
        }
        begun.unwrap_or_else(|error| panic!("{}: {error}", self.context));
        self.engine.reshape().expect("it has begun").limit_window(WINDOW);
        self.engine.install_cache(self.mode, &self.pool, CACHE);
        self.read_all(false)
    }

    /// Ends a reshape whose content is all where it is to be; none where the power went meanwhile.
    fn finish(&mut self) -> Option<()> {
        if self.engine.reshape().is_some_and(|way| way.is_over()) {
            self.close()?;
            if self.engine.reshape().is_none_or(|way| !way.is_over()) {
                // It was turned round meanwhile.
                return Some(());
            }
            let ended = finish_served(&mut self.engine, self.model.next_generation());
            if self.engine.disk().left == 0 {
                return None;
            }
            ended.unwrap_or_else(|error| panic!("{}: {error}", self.context));
            self.engine.install_cache(self.mode, &self.pool, CACHE);
        }
        Some(())
    }

    /// Serves the array until the reshape is over and a while longer, then closes it; none where the power went.
    fn live(&mut self, random: &mut Random, may_turn: bool) -> Option<()> {
        self.read_all(true)?;
        let (mut after, mut turns) = (0, if may_turn { random.below(4) } else { 0 });
        let mut steps = 0;
        while after < 10 {
            steps += 1;
            assert!(steps < 2000, "{}: it does not end: {:?}", self.context, self.engine.reshape());
            self.step(random)?;
            if turns > 0 && random.below(10) == 0 {
                turns -= 1;
                let is_back = random.below(2) == 0;
                self.engine.reshape().into_iter().for_each(|way| way.turn(is_back));
            }
            self.finish()?;
            after += u64::from(self.engine.reshape().is_none());
        }
        self.read_all(false)?;
        self.close()
    }
}

/// A whole reshape with so many cuts: the members at its end, and what the array holds.
fn whole(case: &Case, random: &mut Random, cuts: u64, context: &mut String, may_turn: bool) -> (Members, Vec<u8>) {
    let (now, content) = begun(case);
    whole_from(now, content, case, random, cuts, context, may_turn)
}

/// The same with these members, which hold that; a reshape that is not on record is begun while the array is served.
fn whole_from(
    mut now: Members,
    content: Vec<u8>,
    case: &Case,
    random: &mut Random,
    mut cuts: u64,
    context: &mut String,
    may_turn: bool,
) -> (Members, Vec<u8>) {
    let mut model = Model::new(content);
    let new = joining(&now, case);
    for generation in 100.. {
        let mode = [CacheMode::WriteBack, CacheMode::WriteThrough][size(Bytes(random.below(2)))];
        let left = if cuts > 0 { size(Bytes(1 + random.below(900))) } else { usize::MAX };
        cuts = cuts.saturating_sub(1);
        *context += &format!(", {left} operations");
        let mut power = Power::new(now.clone(), left);
        let late = (random.below(2) == 0).then(|| Random(random.below(1 << 32)));
        let is_over = open(&mut power, &now, mode, generation).is_some_and(|(mut engine, pool)| {
            engine.disk_mut().late = late;
            let mut life = Life { engine, pool, mode, model: &mut model, context };
            let is_wanted = life.engine.reshape().is_none() && is_old(&now, case) == Some(true);
            let begun = if is_wanted { life.begin(case, &new, random) } else { Some(()) };
            begun.and_then(|()| life.live(random, may_turn)).is_some()
        });
        now = power.cut(random);
        if is_over {
            break;
        }
    }
    (now, model.content())
}

#[test]
fn clients_see_what_they_wrote() {
    for case in cases() {
        let mut context = format!("{case:?}");
        let (after, content) = whole(&case, &mut Random(1), 0, &mut context, false);
        assert_eq!(is_old(&after, &case), Some(false), "{context}");
        assert_holds(&after, &content, &context);
        let expected = match (case.from.consistency, case.from.level, case.level) {
            (before, ..) if case.from.integrity != Integrity::None => before,
            (_, _, Level::Raid0) => Consistency::None,
            (_, Level::Raid0, _) => Consistency::Log,
            (Consistency::Bitmap, Level::Raid1, _) => Consistency::Log,
            (before, ..) => before,
        };
        assert_eq!(judged(&after).1.superblock.consistency, expected, "{context}");
    }
}

#[test]
fn cuts_and_turns_lose_nothing_that_clients_wrote() {
    for (index, case) in (0..).zip(cases()) {
        for round in 0..rounds() {
            let mut random = Random(round * 100 + index);
            let mut context = format!("{case:?}, round {round}");
            let cuts = 1 + random.below(8);
            let (after, content) = whole(&case, &mut random, cuts, &mut context, true);
            assert_holds(&after, &content, &context);
        }
    }
}

/// A served array gets another shape without a stop, and what is cut off as that begins is nothing, or goes on.
#[test]
fn a_served_array_begins_and_loses_nothing_at_any_cut() {
    for (index, case) in (0..).zip(cases()) {
        for round in 0..rounds() {
            let mut random = Random(7000 + round * 100 + index);
            let mut context = format!("{case:?}, round {round}, begun while it is served");
            let (members, content) = case.members_with_log(Bytes(256 << 10));
            let cuts = round.min(1 + random.below(8));
            let (after, content) = whole_from(members, content, &case, &mut random, cuts, &mut context, round > 2);
            assert_holds(&after, &content, &context);
        }
    }
}

/// However far the writes come that begin a reshape, the array is what it was, or between both shapes.
#[test]
fn a_beginning_that_is_cut_off_at_any_operation_is_nothing_or_goes_on() {
    for case in cases() {
        let (members, content) = case.members_with_log(Bytes(256 << 10));
        let mut seen = [0, 0];
        for left in (1..).step_by(5) {
            let context = format!("{case:?}, cut off after {left} operations");
            let mut power = Power::new(members.clone(), left);
            let (new, mode) = (joining(&members, &case), CacheMode::WriteThrough);
            let mut model = Model::new(content.clone());
            let begun = open(&mut power, &members, mode, 7).and_then(|(engine, pool)| {
                let mut life = Life { engine, pool, mode, model: &mut model, context: &context };
                life.begin(&case, &new, &mut Random(0))
            });
            let now = power.cut(&mut Random(u64::try_from(left).expect("few")));
            let is_between = is_old(&now, &case).is_none();
            assert!(is_between || begun.is_none(), "{context}: it has begun");
            seen[usize::from(is_between)] += 1;
            let mut power = Power::new(now.clone(), usize::MAX);
            let mut life = opened(&mut power, &now, 8, &mut model, &context);
            life.read_all(true).expect("the power is on");
            if begun.is_some() {
                break;
            }
        }
        assert!(seen.iter().all(|&count| count > 0), "{case:?}: {seen:?}");
    }
}

/// An array that was started without a member, and that nobody has written since, goes on record with that.
#[test]
fn a_reshape_begins_without_a_member_that_nobody_has_put_on_record() {
    for (case, slot) in [(0, 1), (1, 4), (2, 0), (5, 1)].map(|(case, slot)| (cases()[case], slot)) {
        let context = format!("{case:?} without member {slot}");
        let (mut members, content) = case.members_with_log(Bytes(256 << 10));
        let new = joining(&members, &case);
        members[slot] = None;
        let mut model = Model::new(content);
        let mut power = Power::new(members.clone(), usize::MAX);
        let mut life = opened(&mut power, &members, 7, &mut model, &context);
        life.begin(&case, &new, &mut Random(0)).expect("the power is on");
        life.live(&mut Random(2), false).expect("the power is on");
        drop(life);
        let mut after = power.cut(&mut Random(1));
        after.truncate(case.members.into());
        let (found, expected) = (content_of(&after).1, model.content());
        assert!(found[..expected.len()] == expected, "{context}");
    }
}

/// A new member that fails as it is made changes nothing: the array goes on as it was.
#[test]
fn a_new_member_that_fails_leaves_the_array_as_it_was() {
    for case in [0, 2, 5].map(|case| cases()[case]) {
        let context = format!("{case:?}");
        let (members, content) = case.members_with_log(Bytes(256 << 10));
        let new = joining(&members, &case);
        let mut model = Model::new(content);
        let mut power = Power::new(members.clone(), usize::MAX);
        let failing = MemberIndex(case.from.members);
        let errno = Errno::IO;
        power.inner.fail(Fault { member: failing, name: OpName::Write, after: 1, count: u64::MAX, errno });
        let mut life = opened(&mut power, &members, 7, &mut model, &context);
        life.close().expect("closed");
        let refused = begin_served(&mut life.engine, &case.target(), &new, Uuid::from_u128(6));
        assert!(refused.is_err() && !life.engine.is_frozen(), "{context}: {refused:?}");
        for _ in 0..20 {
            life.step(&mut Random(1)).expect("the power is on");
        }
        life.close().expect("closed");
        drop(life);
        assert_holds(&power.cut(&mut Random(1)), &model.content(), &context);
    }
}

/// A member that fails as the beginning goes on record, and that the array needs, ends its use: others may have it on
/// record already. Nothing is lost.
#[test]
fn a_needed_member_that_fails_as_it_begins_ends_the_use_of_the_array() {
    let case = cases()[6];
    let (members, content) = case.members_with_log(Bytes(256 << 10));
    let (new, mut model) = (joining(&members, &case), Model::new(content));
    let mut power = Power::new(members.clone(), usize::MAX);
    let mut life = opened(&mut power, &members, 7, &mut model, "a member fails");
    life.close().expect("closed");
    let failing = MemberIndex(1);
    life.engine.disk_mut().inner.fail(Fault {
        member: failing,
        name: OpName::Write,
        after: 0,
        count: u64::MAX,
        errno: Errno::IO,
    });
    let refused = begin_served(&mut life.engine, &case.target(), &new, Uuid::from_u128(6));
    assert!(refused.is_err() && life.engine.is_frozen(), "{refused:?}");
    drop(life);
    let now = power.cut(&mut Random(1));
    let mut power = Power::new(now.clone(), usize::MAX);
    let mut life = opened(&mut power, &now, 8, &mut model, "afterwards");
    life.live(&mut Random(1), false).expect("the power is on");
}

/// An array without redundancy that has a log all the same does not begin where half of the room for that is too
/// little for a log: no engine could go on with it.
#[test]
fn a_log_without_need_has_room_meanwhile_or_it_does_not_begin() {
    let case = case(Shape { consistency: Consistency::Log, ..small(Level::Raid0, 3) }, Level::Raid0, 4);
    let (members, content) = case.members_with_log(Bytes(64 << 10));
    let (new, mut model) = (joining(&members, &case), Model::new(content));
    let mut power = Power::new(members.clone(), usize::MAX);
    let mut life = opened(&mut power, &members, 7, &mut model, "a small log");
    life.close().expect("closed");
    let refused = begin_served(&mut life.engine, &case.target(), &new, Uuid::from_u128(6));
    assert!(matches!(refused, Err(ReshapeError::NotServed { .. })), "{refused:?}");
    assert!(!life.engine.is_frozen());
}

/// A member that fails while content moves is done without, in both shapes and at the end.
#[test]
fn a_member_that_fails_is_done_without_while_clients_write() {
    for (case, after) in [(0, 30), (1, 40), (2, 20), (3, 30), (4, 40)].map(|(case, after)| (cases()[case], after)) {
        let context = format!("{case:?}, after {after} writes");
        let (now, content) = begun(&case);
        let mut model = Model::new(content);
        let mut power = Power::new(now.clone(), usize::MAX);
        let failing = MemberIndex(1);
        power.inner.fail(Fault { member: failing, name: OpName::Write, after, count: u64::MAX, errno: Errno::IO });
        let mut life = opened(&mut power, &now, 7, &mut model, &context);
        life.live(&mut Random(after), false).expect("it ends");
        assert!(life.engine.missing().contains(failing), "{context}");
        drop(life);
        let mut left = power.cut(&mut Random(1));
        left[failing.index()] = None;
        left.truncate(case.members.into());
        assert!(judged(&left).1.superblock.reshape.is_none(), "{context}");
        let (found, expected) = (content_of(&left).1, model.content());
        assert!(found[..expected.len()] == expected, "{context}");
    }
}

/// What the log has can't be made durable any more: content stays where it is, and who wants something of the window is
/// answered.
#[test]
fn a_needed_member_that_fails_a_flush_holds_nobody_up() {
    let case = cases()[12];
    let (now, content) = begun(&case);
    let mut model = Model::new(content);
    let mut power = Power::new(now.clone(), usize::MAX);
    let (mode, context) = (CacheMode::WriteThrough, "a flush fails");
    let (engine, pool) = open(&mut power, &now, mode, 7).expect("opened");
    let mut life = Life { engine, pool, mode, model: &mut model, context };
    life.engine.reshape().expect("under way").limit_rate(Some(Bytes(1)));
    let len = Sectors(life.model.sectors.len() as u64).bytes();
    let mut buf = life.pool.try_alloc(len).expect("memory");
    buf.as_mut().fill(1);
    life.run_one(Command::Write { lba: Lba(0), buf, fua: false });
    let fault = Fault { member: MemberIndex(1), name: OpName::Flush, after: 0, count: u64::MAX, errno: Errno::IO };
    life.engine.disk_mut().inner.fail(fault);
    life.engine.reshape().expect("under way").limit_rate(None);
    for _ in 0..100 {
        life.engine.tick();
        let read = life.run_one(Command::Read { lba: Lba(0), buf: Buf::zeroed(len) });
        assert!(read.flatten().expect("its memory").as_ref().iter().all(|&byte| byte == 1));
    }
    let progress = life.engine.reshape().expect("under way").progress();
    assert!(progress.stuck.is_some() && progress.done < progress.total, "{progress:?}");
}

/// What is in memory of content that moves and comes back is what was written last, wherever that was.
#[test]
fn memory_does_not_outlive_a_move() {
    let (now, content) = begun(&cases()[0]);
    let mut model = Model::new(content);
    let mut power = Power::new(now.clone(), usize::MAX);
    let mut life = opened(&mut power, &now, 7, &mut model, "back and forth");
    life.engine.wind_down();
    let write = |life: &mut Life<'_>, byte: u8| {
        let mut buf = life.pool.try_alloc(Bytes(4096)).expect("memory");
        buf.as_mut().fill(byte);
        life.run_one(Command::Write { lba: Lba(0), buf, fua: false });
        life.run_one(Command::Flush);
    };
    let moved = |life: &mut Life<'_>| {
        for _ in 0..1000 {
            life.engine.tick();
            life.engine.turn(&mut Vec::new()).expect("memory does not break");
            if life.engine.reshape().expect("under way").is_over() {
                return;
            }
        }
        panic!("it does not end");
    };
    write(&mut life, 1);
    moved(&mut life);
    for (byte, is_back) in [(2, true), (3, false)] {
        write(&mut life, byte);
        life.engine.reshape().expect("under way").turn(is_back);
        moved(&mut life);
        let read = life.run_one(Command::Read { lba: Lba(0), buf: Buf::zeroed(Bytes(4096)) });
        assert!(read.flatten().expect("its memory").as_ref() == [byte; 4096], "what was written last: {byte}");
    }
}

/// Moves all that is left without letting time pass.
fn move_all(life: &mut Life<'_>) {
    for _ in 0..10_000 {
        if life.engine.reshape().expect("under way").is_over() {
            return;
        }
        life.engine.turn(&mut Vec::new()).expect("memory does not break");
    }
    panic!("{}: it does not end", life.context);
}

/// Ends a reshape all of whose content has moved, and asserts that the members hold what was written.
fn assert_ends(case: &Case, mut power: Power, now: &Members, prepare: impl Fn(&mut Life<'_>)) {
    let (context, content) = (format!("{case:?}"), begun(case).1);
    let mut model = Model::new(content);
    let mut life = opened(&mut power, now, 7, &mut model, &context);
    prepare(&mut life);
    move_all(&mut life);
    for _ in 0..100 {
        life.engine.tick();
        life.engine.turn(&mut Vec::new()).expect("memory does not break");
    }
    life.finish().expect("it ends");
    life.close().expect("closed");
    drop(life);
    assert_holds(&power.cut(&mut Random(1)), &model.content(), &context);
}

/// What was written and is only in memory is written out before it moves, not where it was before.
#[test]
fn what_is_dirty_is_written_out_before_it_moves() {
    for case in cases() {
        let now = begun(&case).0;
        assert_ends(&case, Power::new(now.clone(), usize::MAX), &now, |life| {
            for lba in (0..life.model.sectors.len()).step_by(8) {
                let (number, sectors) = (life.model.next, lba..lba + size(Bytes(life.grain())));
                life.model.next += 1;
                let bytes: Vec<u8> = sectors.clone().flat_map(|lba| life.model.bytes(number, lba)).collect();
                life.model.sectors[sectors].iter_mut().for_each(|sector| sector.push(number));
                let mut buf = life.pool.try_alloc(Bytes(bytes.len() as u64)).expect("memory");
                buf.as_mut().copy_from_slice(&bytes);
                life.run_one(Command::Write { lba: Lba(lba as u64), buf, fua: false }).expect("the power is on");
            }
        });
    }
}

/// What a member failed to give when content moved is not written back to where that was.
#[test]
fn what_could_not_be_read_when_it_moved_is_not_healed_where_it_was() {
    for case in [1, 3, 4].map(|case| cases()[case]) {
        let now = begun(&case).0;
        assert_ends(&case, Power::new(now.clone(), usize::MAX), &now, |life| {
            let data = life.engine.superblock().areas.data.offset;
            for chunk in [0, 2, 5].map(|chunk| chunk * case.from.chunk) {
                let place = Bytes(data.0 + chunk);
                life.engine.disk_mut().inner.spoil(MemberIndex(1), place, Bytes(4096));
            }
        });
    }
}

/// What has moved has its checksums when its mark is on record, however late members are with these.
#[test]
fn checksums_of_what_has_moved_are_durable_before_its_mark() {
    for case in cases().into_iter().filter(|case| case.from.integrity != Integrity::None) {
        for windows in 1..6 {
            let context = format!("{case:?}, cut off after {windows} windows");
            let (now, content) = begun(&case);
            let mut model = Model::new(content);
            let mut power = Power::new(now.clone(), usize::MAX);
            let sums = |bytes: &Option<Image>| superblock(bytes.as_ref().expect("present")).areas.sums;
            power.last = now.iter().map(sums).map(|area| area.offset.0..area.offset.0 + area.size.0).collect();
            let life = &mut opened(&mut power, &now, 7, &mut model, &context);
            let mark = |life: &Life<'_>| life.engine.superblock().reshape.expect("under way").mark;
            let (mut marks, mut before) = (0, mark(life));
            while marks < windows && !life.engine.reshape().expect("under way").is_over() {
                life.engine.turn(&mut Vec::new()).expect("memory does not break");
                marks += u64::from(std::mem::replace(&mut before, mark(life)) != before);
            }
            let now = power.cut(&mut Random(windows));
            let mut power = Power::new(now.clone(), usize::MAX);
            opened(&mut power, &now, 8, &mut model, &context).read_all(false).expect("the power is on");
        }
    }
}

/// Beside clients a window is with the members in small turns, so that nobody's operation waits behind much. When
/// nobody wants anything it is there at once.
#[test]
fn little_of_a_window_is_with_the_members_at_once_while_clients_want_something() {
    let mut case = cases()[0];
    case.from.chunks = 256;
    let (members, content) = begun(&case);
    for is_used in [false, true] {
        let mut power = Power::new(members.clone(), usize::MAX);
        let mut model = Model::new(content.clone());
        let mut life = opened(&mut power, &members, 7, &mut model, "a window");
        life.engine.reshape().expect("under way").limit_window(Bytes(u64::MAX));
        (0..10).for_each(|_| life.engine.tick());
        if is_used {
            life.engine.submit(0, Command::Read { lba: Lba(0), buf: Buf::zeroed(Bytes(4096)) });
        }
        life.engine.disk_mut().most = Bytes(0);
        for _ in 0..1000 {
            life.engine.turn(&mut Vec::new()).expect("memory does not break");
            if life.engine.reshape().expect("under way").is_over() {
                break;
            }
        }
        assert!(life.engine.reshape().expect("under way").is_over(), "used: {is_used}");
        let most = life.engine.disk().most;
        assert_eq!(most <= Bytes(128 << 10), is_used, "{most} bytes at once");
        // 512 chunks of 4 KiB, three in each parity stripe.
        let written = life.engine.counters().member(MemberIndex(3)).written_bytes;
        assert_eq!(written, 171 * 4096, "the new member's part is counted");
    }
}

/// A member that is not there when all content has moved is done without, though nothing else is written any more.
#[test]
fn a_reshape_ends_without_a_member_that_is_missing_from_the_start() {
    for (case, slot) in [(0, 3), (2, 1), (3, 0), (7, 2)].map(|(case, slot)| (cases()[case], slot)) {
        let context = format!("{case:?} without member {slot}");
        let (now, content) = begun(&case);
        let mut model = Model::new(content);
        let mut power = Power::new(now.clone(), usize::MAX);
        let mut life = opened(&mut power, &now, 7, &mut model, &context);
        move_all(&mut life);
        life.close().expect("closed");
        drop(life);
        let mut left = power.cut(&mut Random(1));
        left[slot] = None;
        let mut power = Power::new(left.clone(), usize::MAX);
        let mut life = opened(&mut power, &left, 8, &mut model, &context);
        life.finish().expect("the power is on");
        assert!(life.engine.reshape().is_none(), "{context}: it is over");
        life.close().expect("closed");
        drop(life);
        let mut after = power.cut(&mut Random(1));
        after.truncate(case.members.into());
        let (found, expected) = (content_of(&after).1, model.content());
        assert!(found[..expected.len()] == expected, "{context}");
    }
}

/// Turned round before anything has moved, it is over at once: the array has the shape that it had, and says so before
/// anything else.
#[test]
fn what_goes_back_before_it_moved_is_what_it_was() {
    for case in cases() {
        let context = format!("{case:?}");
        let (now, content) = begun(&case);
        let mut model = Model::new(content);
        let mut power = Power::new(now.clone(), usize::MAX);
        let mut life = opened(&mut power, &now, 7, &mut model, &context);
        life.engine.reshape().expect("under way").turn(true);
        let is_early = finish_served(&mut life.engine, Uuid::from_u128(5));
        assert!(is_early.is_err(), "{context}: it is not on record yet");
        life.live(&mut Random(1), false).expect("it ends");
        drop(life);
        let after = power.cut(&mut Random(1));
        assert_eq!(is_old(&after, &case), Some(true), "{context}");
        assert_eq!(judged(&after).1.superblock.consistency, case.from.consistency, "{context}");
        assert_holds(&after, &model.content(), &context);
    }
}

/// While content moves nobody joins or is copied, nothing is scrubbed, and nobody opens the array only to read it.
#[test]
fn what_can_not_be_done_meanwhile_says_so() {
    let (now, _) = begun(&cases()[0]);
    let mut power = Power::new(now.clone(), usize::MAX);
    let (mut engine, _) = open(&mut power, &now, CacheMode::WriteBack, 7).expect("opened");
    let scrub = engine.start_scrub(ScrubMode::Check, StripeId(0));
    assert!(matches!(scrub, Err(EngineError::Reshaping)), "{scrub:?}");
    let replace = engine.check_replaceable(MemberIndex(0));
    assert!(matches!(replace, Err(EngineError::Reshaping)), "{replace:?}");
    let (candidates, verdict) = judged(&now);
    for access in [Access::ReadOnly, Access::Inspect] {
        let options = OpenOptions { access, allow_degraded: true, force: true };
        let refused = check_presence(&verdict, &candidates, options);
        assert!(matches!(refused, Err(OpenError::Reshaping { .. })), "{refused:?}");
    }
}
