//! Arrays that get another shape: power cuts at any operation, turning back at any of them, and members that fail
//! meanwhile. What is left is compared with a pattern, and each member with an encoder that knows no reshape.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustix::io::Errno;
use uraid_io::Error;
use uraid_io::array::{
    Assembled, Candidate, NewMember, OpenError, OpenOptions, ReshapeError, Reshaped, Reshaping, Target, Verdict,
    begin_reshape, check_presence, first_and_last, grow, judge, plan_reshape, rehearse_moves,
};
use uraid_io::buf::Buf;
use uraid_io::disk::{Completion, Disk, DiskOp, Fault, Image, MemDisk, OpKind, OpName, Order};
use uraid_io::engine::{Command, Engine};
use uraid_io::format::bitmap::{Bitmap, Regions};
use uraid_io::format::superblock::{Consistency, Integrity, Superblock, decode, encode, newest, positions};
use uraid_io::member::Access;
use uraid_layout::reshape::CourseError;
use uraid_layout::{
    Bytes, DiskSector, Geometry, Lba, Level, Location, MemberIndex, MemberSet, Placement, Rotation, Sectors,
};
use uuid::Uuid;

use crate::recovery::{assembled, superblock, try_assembled};
use crate::support::{
    Members, RAID5, RAID6, Random, SECTOR, Shape, buf, encoded, images, noise, rm2, run, size, small, tolerated, write,
};

/// How often each change of shape is cut off; more with `URAID_RESHAPE_ROUNDS`.
fn rounds() -> u64 {
    std::env::var("URAID_RESHAPE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(8)
}

/// Members that lose power after some operations. Each takes effect at once, and is durable after the next flush that
/// begins when it has been told that it ended; a durable write is when that is told.
pub(crate) struct Power {
    pub(crate) inner: MemDisk,
    /// By member: what is durable of each sector that may be lost.
    durable: Vec<BTreeMap<usize, Vec<u8>>>,
    pub(crate) left: usize,
    pub(crate) done: usize,
    /// Operations that the members never got.
    lost: usize,
    /// What has ended and was not told, with what the sectors held before that it has written.
    untold: Vec<Untold>,
    /// How it is late with telling what has ended; none: it tells at once.
    pub(crate) late: Option<Random>,
    /// Where writes end, by member, that are told only when nothing else is left to be told.
    pub(crate) last: Vec<std::ops::Range<u64>>,
    /// The most that was to be read and written at once.
    pub(crate) most: Bytes,
    /// What is given to this place never ends, and does nothing.
    pub(crate) hung: Option<MemberIndex>,
    hanging: Vec<DiskOp>,
}

/// What sectors held, by sector.
type Before = Vec<(usize, Vec<u8>)>;

/// An operation that has ended.
struct Untold {
    ended: Completion,
    len: Bytes,
    /// What it has written over.
    before: Before,
    is_last: bool,
    is_fua: bool,
}

impl Power {
    pub(crate) fn new(members: Members, left: usize) -> Self {
        let durable = vec![BTreeMap::new(); members.len()];
        Self {
            inner: MemDisk::new(members, Order::Fifo),
            durable,
            left,
            done: 0,
            lost: 0,
            untold: Vec::new(),
            late: None,
            last: Vec::new(),
            most: Bytes(0),
            hung: None,
            hanging: Vec::new(),
        }
    }

    /// Puts other bytes in at a place.
    pub(crate) fn replace(&mut self, place: MemberIndex, bytes: Image) {
        drop(self.inner.replace(place, Some(bytes)));
        self.durable[place.index()].clear();
    }

    /// What is left when the power goes: of what is not durable, any sectors.
    pub(crate) fn cut(self, random: &mut Random) -> Members {
        let Self { inner, durable, .. } = self;
        let one = |(index, durable): (u8, BTreeMap<usize, Vec<u8>>)| {
            let mut bytes = inner.member(MemberIndex(index))?.clone();
            for (sector, before) in durable {
                if random.below(2) == 0 {
                    bytes.write(sector * SECTOR, &before);
                }
            }
            Some(bytes)
        };
        (0..).zip(durable).map(one).collect()
    }

    fn note(&mut self, op: &DiskOp) -> Before {
        let Some(bytes) = self.inner.member(op.member) else { return Vec::new() };
        let sectors = op.offset.0 / 512..(op.offset.0 + op.len().0).div_ceil(512);
        let before = |sector: usize| (sector, bytes[sector * SECTOR..][..SECTOR].to_vec());
        let before: Before = sectors.map(|sector| before(size(Bytes(sector)))).collect();
        for (sector, bytes) in &before {
            self.durable[op.member.index()].entry(*sector).or_insert_with(|| bytes.clone());
        }
        before
    }

    /// A member was flushed: only what was not told to have ended may be lost.
    fn flushed(&mut self, member: MemberIndex) {
        let durable = &mut self.durable[member.index()];
        durable.clear();
        let untold = self.untold.iter().filter(|untold| untold.ended.member == member);
        for (sector, bytes) in untold.flat_map(|untold| &untold.before) {
            durable.entry(*sector).or_insert_with(|| bytes.clone());
        }
    }
}

impl Disk for &mut Power {
    fn submit(&mut self, op: DiskOp) {
        if self.hung == Some(op.member) {
            return self.hanging.push(op);
        }
        if self.left == 0 {
            self.lost += 1;
            return;
        }
        self.left -= 1;
        self.done += 1;
        let (kind, member, len) = (op.kind, op.member, op.len());
        self.most = self.most.max(Bytes(self.untold.iter().map(|untold| untold.len.0).sum::<u64>() + len.0));
        let is_last = self.last.get(member.index()).is_some_and(|range| range.contains(&op.offset.0));
        let before = if matches!(kind, OpKind::Read | OpKind::Flush) { Vec::new() } else { self.note(&op) };
        self.inner.submit(op);
        self.inner.kick().expect("memory does not break");
        let mut ended = Vec::new();
        self.inner.reap(&mut ended);
        let ended = ended.pop().expect("memory answers at once");
        if kind == OpKind::Flush && ended.result.is_ok() {
            self.flushed(member);
        }
        let (is_last, is_fua) = (is_last && kind == OpKind::Write, kind == OpKind::WriteFua);
        self.untold.push(Untold { ended, len, before, is_last, is_fua });
    }

    fn kick(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let Power { untold, late, durable, .. } = &mut **self;
        let mut tell = |Untold { ended, before, is_fua, .. }: Untold| {
            if is_fua && ended.result.is_ok() {
                before.iter().for_each(|(sector, _)| drop(durable[ended.member.index()].remove(sector)));
            }
            completions.push(ended);
        };
        let Some(random) = late else {
            let are_left = untold.iter().any(|untold| !untold.is_last);
            return untold.extract_if(.., |untold| !are_left || !untold.is_last).for_each(tell);
        };
        for _ in 0..random.below(4) {
            if !untold.is_empty() {
                tell(untold.remove(size(Bytes(random.below(untold.len() as u64)))));
            }
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        if self.left == 0 {
            return Err(Error::OldKernel { release: "none: the power is off".into() });
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.untold.len() + self.hanging.len() + self.lost
    }

    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        self.inner.exchange(one, other);
        self.durable.swap(one.index(), other.index());
        self.hung = self.hung.map(|hung| match hung {
            hung if hung == one => other,
            hung if hung == other => one,
            hung => hung,
        });
    }
}

/// A change of shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) from: Shape,
    pub(crate) level: Level,
    pub(crate) members: u8,
    pub(crate) chunk: u64,
    pub(crate) kept: Option<Bytes>,
}

impl Case {
    pub(crate) fn target(&self) -> Target {
        let Self { level, members, chunk, kept, .. } = *self;
        Target { level, members, chunk: Bytes(chunk), kept, allow_degraded: true }
    }

    /// The members of a full and clean array of the first shape, then blank ones; and the content.
    pub(crate) fn members(&self) -> (Members, Vec<u8>) {
        // As much as any array with a log has at least, and little enough for several saves.
        self.members_with_log(Bytes(192 << 10))
    }

    /// The same with so large an area for each member's log.
    pub(crate) fn members_with_log(&self, log: Bytes) -> (Members, Vec<u8>) {
        let mut engine = self.from.engine(MemberSet::EMPTY, Order::Fifo);
        let content = noise(self.members.into(), engine.geometry().capacity().0);
        write(&mut engine, 0, &content).expect("written");
        drop(run(&mut engine, Command::Close).expect("closed"));
        let mut members = images(&engine);
        for image in members.iter_mut().flatten() {
            let mut own = superblock(image);
            own.areas.log.size = log;
            for position in positions(own.areas.member_size).expect("large enough") {
                image.write(size(position), &encode(&own));
            }
        }
        let len = members[0].as_ref().expect("present").len();
        while members.len() < usize::from(self.members) {
            // A disk that held something.
            members.push(Some(noise(members.len() as u64, (len / SECTOR) as u64).into()));
        }
        (members, content)
    }
}

pub(crate) fn case(from: Shape, level: Level, members: u8) -> Case {
    Case { from: Shape { chunks: 24, ..from }, level, members, chunk: from.chunk, kept: None }
}

pub(crate) fn cases() -> Vec<Case> {
    let with = |shape: Shape, consistency| Shape { consistency, ..shape };
    let right = Level::Raid5 { rotation: Rotation::RightAsymmetric };
    let adjacent = |height| rm2(height, Placement::Adjacent);
    vec![
        case(with(small(RAID5, 3), Consistency::Log), RAID5, 4),
        case(with(small(RAID5, 5), Consistency::Bitmap), RAID5, 4),
        case(small(RAID5, 4), adjacent(3), 7),
        case(small(adjacent(3), 7), RAID5, 4),
        case(with(small(Level::Raid1, 2), Consistency::Bitmap), RAID5, 3),
        case(small(Level::Raid0, 3), Level::Raid10 { copies: 2 }, 5),
        Case { chunk: 12 << 10, ..case(small(Level::Raid10 { copies: 2 }, 5), Level::Raid10 { copies: 2 }, 5) },
        case(with(small(RAID5, 4), Consistency::Log), right, 4),
        Case { chunk: 8 << 10, ..case(small(RAID5, 5), Level::Raid0, 5) },
        Case { kept: Some(Bytes(9 * 4096)), ..case(small(RAID5, 4), Level::Raid1, 2) },
        case(with(small(RAID5, 3), Consistency::Log), RAID6, 4),
        case(small(RAID6, 5), adjacent(3), 7),
        // Each block has a checksum.
        case(small(RAID5, 3).checked(), adjacent(3), 7),
        case(small(RAID5, 4).checked(), right, 4),
        case(small(Level::Raid0, 3).checked(), RAID5, 4),
    ]
}

/// What a member says; none where it is none.
fn says(bytes: &[u8]) -> Option<Superblock> {
    let positions = positions(Bytes(bytes.len() as u64)).expect("large enough");
    newest(positions.map(|position| decode(&bytes[size(position)..][..4096]))).ok()
}

pub(crate) fn judged(members: &Members) -> (Vec<Candidate>, Verdict) {
    let named = members.iter().enumerate().filter_map(|(slot, bytes)| Some((slot, says(bytes.as_ref()?)?)));
    let candidate = |(slot, superblock)| Candidate { path: PathBuf::from(format!("member{slot}")), superblock };
    let candidates: Vec<Candidate> = named.map(candidate).collect();
    let verdict = judge(&candidates).expect("an array");
    (candidates, verdict)
}

/// Whether an array at rest has the shape that it had; none where it is not at rest.
pub(crate) fn is_old(members: &Members, case: &Case) -> Option<bool> {
    let (_, verdict) = judged(members);
    // What was given up of it stays so when it goes back.
    let (now, before) = (verdict.geometry.spec(), case.from.spec());
    let is_old = (now.level, now.members, now.chunk) == (before.level, before.members, before.chunk);
    verdict.superblock.reshape.is_none().then_some(is_old)
}

/// Begins a reshape, or goes on with one; none where the array is at rest, and has no way to go.
pub(crate) fn go(power: &mut Power, members: &Members, case: &Case, is_back: bool, degraded: bool) -> Option<Outcome> {
    let (candidates, verdict) = judged(members);
    let generation = Uuid::from_u128(77);
    if verdict.superblock.reshape.is_some() {
        let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true };
        let refused = check_presence(&verdict, &candidates, options);
        let has_log = verdict.superblock.consistency == Consistency::Log;
        let is_bare = verdict.superblock.consistency == Consistency::None && case.level == Level::Raid0;
        let is_refused = matches!(refused, Err(OpenError::Reshaping { .. }));
        assert!(is_refused || has_log || is_bare, "nothing else opens it: {refused:?}");
        let found = Reshaping::found(power, &verdict, &candidates, is_back, degraded);
        return Some(found.and_then(|reshaping| reshaping.run(is_back, generation, |_| ())).map(ended));
    }
    if is_back || is_old(members, case) == Some(false) {
        return None;
    }
    let old: Members = members[..usize::from(case.from.members)].to_vec();
    let opened = match try_assembled(&mut *power, &old, Access::ReadWrite) {
        Ok(opened) => opened,
        Err(error) => return Some(Err(OpenError::from(error).into())),
    };
    let begun = plan(&opened, members, case).and_then(|plan| begin_reshape(opened, plan, Uuid::from_u128(9), Ok));
    Some(begun.and_then(|reshaping| reshaping.run(is_back, generation, |_| ())).map(ended))
}

pub(crate) type Outcome = Result<Reshaped<()>, ReshapeError>;

fn ended<D>(reshaped: Reshaped<D>) -> Reshaped<()> {
    let Reshaped { geometry, is_back, paths, losses, .. } = reshaped;
    Reshaped { geometry, is_back, paths, losses, disk: () }
}

pub(crate) fn plan<D: Disk>(
    opened: &Assembled<D>,
    members: &Members,
    case: &Case,
) -> Result<uraid_io::array::ReshapePlan, ReshapeError> {
    plan_reshape(opened, &case.target(), &joining(members, case))
}

/// The members that join.
pub(crate) fn joining(members: &Members, case: &Case) -> Vec<NewMember> {
    let new = |(slot, bytes): (usize, &Option<Image>)| NewMember {
        path: PathBuf::from(format!("new{slot}")),
        size: Bytes(bytes.as_ref().expect("present").len() as u64),
        sector_size: Bytes(512),
        is_clear: false,
    };
    let joining = members.iter().enumerate().take(usize::from(case.members)).skip(usize::from(case.from.members));
    joining.map(new).collect()
}

pub(crate) fn reshape(
    members: &Members,
    case: &Case,
    is_back: bool,
    left: usize,
    random: &mut Random,
) -> (Option<Outcome>, Members, usize) {
    let mut power = Power::new(members.clone(), left);
    let outcome = go(&mut power, members, case, is_back, false);
    let done = power.done;
    (outcome, power.cut(random), done)
}

/// All of an array's content, whoever is missing.
pub(crate) fn content_of(members: &Members) -> (Geometry, Vec<u8>) {
    let disk = MemDisk::new(members.clone(), Order::Fifo);
    let opened = assembled(disk, members);
    let mut engine: Engine<MemDisk, u64> = opened.into_engine().expect("an engine");
    let content = all_of(&mut engine);
    (engine.geometry().clone(), content)
}

/// All that an engine gives, whose checksums are right.
fn all_of(engine: &mut Engine<MemDisk, u64>) -> Vec<u8> {
    let len = engine.geometry().capacity().bytes();
    let mut replies = Vec::new();
    engine.submit(0, Command::Read { lba: Lba(0), buf: Buf::zeroed(len) });
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    let content = replies.remove(0).result.expect("read").expect("its buffer").as_ref().to_vec();
    assert_eq!(engine.counters().total().mismatches, 0, "checksums are of what there is");
    content
}

/// Asserts that an array at rest has this content, then zeros; that its members agree; and that it survives what its
/// level does.
pub(crate) fn assert_holds(members: &Members, content: &[u8], context: &str) -> Geometry {
    let present: Members = members.iter().map(|bytes| bytes.clone().filter(|bytes| says(bytes).is_some())).collect();
    let (geometry, found) = content_of(&present);
    let differs = found.iter().zip(content).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{context}: the content differs at that byte");
    assert!(found.len() >= content.len() && found[content.len()..].iter().all(|&byte| byte == 0), "{context}: zeros");
    let present = &present[..geometry.members()];
    for (member, expected) in geometry.all_members().iter().zip(encoded(&geometry, &found)) {
        let bytes = present[member.index()].as_ref().expect("present");
        let data = &bytes[size(superblock(bytes).areas.data.offset)..][..expected.len()];
        let is_used =
            |at: usize| geometry.owner(Location { member, sector: DiskSector((at / SECTOR) as u64) }).is_some();
        let differs = data.iter().zip(&expected).enumerate().find(|(at, (a, b))| a != b && is_used(*at));
        assert!(differs.is_none(), "{context}: member {member} does not agree at that byte of its data: {differs:?}");
    }
    for lost in tolerated(&geometry).into_iter().step_by(3).skip(1) {
        let kept = |(slot, bytes): (u8, &Option<Image>)| bytes.clone().filter(|_| !lost.contains(MemberIndex(slot)));
        let fewer: Members = (0..).zip(present).map(kept).collect();
        // Cut off as its end went on record, it is known to few that it ended.
        if judged(&fewer).1.superblock.reshape.is_some() {
            continue;
        }
        assert!(content_of(&fewer).1 == found, "{context}: without {lost}");
    }
    geometry
}

fn assert_shape(members: &Members, case: &Case, is_back: bool, content: &[u8], context: &str) {
    let kept = case.kept.map_or(content.len(), size);
    // On the way back of an array that was to be cut, what was given up may be there or not.
    let geometry = if is_back && case.kept.is_some() {
        let present: Members = members[..usize::from(case.from.members)].to_vec();
        let (geometry, found) = content_of(&present);
        assert!(found[..kept] == content[..kept], "{context}");
        geometry
    } else {
        assert_holds(members, &content[..kept], context)
    };
    let spec = geometry.spec();
    let expected = if is_back {
        (case.from.level, case.from.members, Bytes(case.from.chunk))
    } else {
        (case.level, case.members, Bytes(case.chunk))
    };
    assert_eq!((spec.level, spec.members, spec.chunk), expected, "{context}");
    assert!(geometry.capacity().0 >= (kept / SECTOR) as u64, "{context}");
    let is_short = geometry.capacity().0 < (kept / SECTOR) as u64 + geometry.stripe_sectors().0;
    assert!(is_short || is_back && case.kept.is_some(), "{context}: what was given up can't be read");
}

/// On copies the first window and the last one move, and are read back as they were, without any member, too.
#[test]
fn a_rehearsal_moves_the_first_window_and_the_last() {
    for case in cases() {
        let context = format!("{case:?}");
        let (members, _) = case.members();
        let mut power = Power::new(members.clone(), usize::MAX);
        let old: Members = members[..usize::from(case.from.members)].to_vec();
        let opened = assembled(&mut power, &old);
        let plan = plan(&opened, &members, &case).expect("a plan");
        let (marks, windows, kept) = (first_and_last(&plan), plan.work().windows, plan.kept());
        assert_eq!(marks.len() as u64, windows.min(2), "{context}");
        let reshaping = begin_reshape(opened, plan, Uuid::from_u128(9), Ok).expect("begun");
        let rehearsed = rehearse_moves(reshaping, &marks).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(rehearsed.windows, windows.min(2), "{context}");
        assert!(rehearsed.content.0 > 0 && rehearsed.content <= kept, "{context}: {rehearsed:?}");
    }
}

#[test]
fn every_shape_becomes_every_other_one_and_back() {
    for case in cases() {
        let context = format!("{case:?}");
        let (members, content) = case.members();
        let mut random = Random(1);
        let (outcome, after, _) = reshape(&members, &case, false, usize::MAX, &mut random);
        let outcome = outcome.expect("it has another shape").expect("reshaped");
        assert!(outcome.losses.is_empty() && !outcome.is_back, "{context}");
        assert_shape(&after, &case, false, &content, &context);
        let mut left = after[usize::from(case.members)..].iter().flatten();
        assert!(left.all(|bytes| says(bytes).is_none()), "{context}: who left is no member");
        let own = superblock(after[0].as_ref().expect("present"));
        let suits = match (case.from.level, case.level) {
            _ if case.from.integrity != Integrity::None => case.from.consistency,
            (_, Level::Raid0) => Consistency::None,
            (Level::Raid0, _) => Consistency::Bitmap,
            (Level::Raid1, Level::Raid5 { .. }) => Consistency::Log,
            _ => case.from.consistency,
        };
        assert_eq!((own.consistency, own.is_clean), (suits, true), "{context}");
    }
}

#[test]
fn cuts_and_turns_lose_nothing() {
    for (index, case) in (0..).zip(cases()) {
        let (members, content) = case.members();
        let mut random = Random(index);
        let (_, _, all) = reshape(&members, &case, false, usize::MAX, &mut random);
        for round in 0..rounds() {
            let mut random = Random(round * 100 + index);
            let mut context = format!("{case:?}, round {round}");
            let (mut now, mut is_back) = (members.clone(), false);
            for _ in 0..=random.below(5) {
                let left = size(Bytes(random.below(all as u64)));
                let (outcome, after, _) = reshape(&now, &case, is_back, left, &mut random);
                context += &format!(", {left} operations{}", if is_back { " back" } else { "" });
                let is_over = outcome.as_ref().is_none_or(Result::is_ok);
                if let Some(Err(error)) = outcome {
                    let is_cut = matches!(error, ReshapeError::Io(_) | ReshapeError::Unmade(_) | ReshapeError::Open(_))
                        || matches!(error, ReshapeError::Unreadable { .. } | ReshapeError::SavedLost { .. })
                        || matches!(error, ReshapeError::Missing { .. });
                    assert!(is_cut, "{context}: {error}");
                }
                now = after;
                if is_over {
                    let is_back = is_old(&now, &case).expect("it is at rest");
                    assert_shape(&now, &case, is_back, &content, &context);
                    break;
                }
                is_back = random.below(3) == 0;
            }
            let (mut outcome, mut after, _) = reshape(&now, &case, is_back, usize::MAX, &mut random);
            if let Some(Err(ReshapeError::Missing { missing })) = &outcome {
                // It was cut off before all new members were some: there is only the way back.
                assert!(missing.iter().all(|slot| slot.0 >= case.from.members), "{context}");
                is_back = true;
                (outcome, after, _) = reshape(&now, &case, is_back, usize::MAX, &mut random);
            }
            let is_rest = outcome.is_none();
            outcome.map_or(Ok(()), |outcome| outcome.map(drop)).unwrap_or_else(|error| panic!("{context}: {error}"));
            let is_old = is_old(&after, &case).expect("it is at rest");
            assert!(is_rest || is_old == is_back, "{context}");
            assert_shape(&after, &case, is_old, &content, &context);
        }
    }
}

#[test]
fn the_power_goes_at_each_operation() {
    // All of its windows are saved, and it goes on or back from each cut.
    let case = Case { from: Shape { chunks: 8, ..cases()[7].from }, ..cases()[7] };
    let (members, content) = case.members();
    for left in 0.. {
        let mut random = Random(left as u64);
        let (outcome, after, _) = reshape(&members, &case, false, left, &mut random);
        let is_back = left % 2 == 0;
        let context = format!("cut after {left} operations, then back: {is_back}");
        let is_over = outcome.is_some_and(|outcome| outcome.is_ok());
        let (outcome, after, _) = reshape(&after, &case, is_back, usize::MAX, &mut random);
        outcome.map_or(Ok(()), |outcome| outcome.map(drop)).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_shape(&after, &case, is_old(&after, &case).expect("it is at rest"), &content, &context);
        if is_over {
            break;
        }
    }
}

/// A member that fails writes is done without, and it is on record that it failed; what it says of the array's regions
/// counts for nothing.
#[test]
fn a_member_that_fails_is_done_without() {
    for (case, after) in [(cases()[0], 3), (cases()[1], 9), (cases()[2], 16), (cases()[7], 12)] {
        let context = format!("{case:?}, after {after} writes");
        let (members, content) = case.members();
        let mut power = Power::new(members.clone(), usize::MAX);
        let failing = MemberIndex(1);
        power.inner.fail(Fault { member: failing, name: OpName::Write, after, count: u64::MAX, errno: Errno::IO });
        let outcome = go(&mut power, &members, &case, false, false).expect("another shape").expect("reshaped");
        let failed: Vec<MemberIndex> = outcome.losses.iter().map(|loss| loss.member).collect();
        assert_eq!(failed, [failing], "{context}");
        let mut left = power.cut(&mut Random(1));
        left[failing.index()] = None;
        let present: Members = left[..usize::from(case.members)].to_vec();
        let (geometry, found) = content_of(&present);
        assert!(found[..content.len()] == content, "{context}");
        let own = superblock(present[0].as_ref().expect("present"));
        if own.consistency == Consistency::None {
            continue;
        }
        let regions = Regions::new(&geometry);
        for bytes in present.iter().flatten() {
            let own = superblock(bytes);
            let area = &bytes[size(own.areas.bitmap.offset)..][..size(regions.bitmap_bytes())];
            let bitmap = Bitmap::decode(regions, own.seal().expect("it has a bitmap"), area);
            assert!(bitmap == Bitmap::full(regions), "{context}: the member lacks all of it");
        }
    }
}

/// What is saved comes from content and not from sectors: a bad one is made up for, beside a member that is missing,
/// and whoever has it stays.
#[test]
fn bad_sectors_cost_nothing_that_redundancy_has() {
    let rm2 = |height| rm2(height, Placement::Adjacent);
    let missing = case(small(rm2(2), 7), rm2(3), 7);
    for (case, lost) in [(cases()[7], None), (cases()[6], None), (missing, Some(MemberIndex(4)))] {
        let context = format!("{case:?}");
        let (mut members, content) = case.members();
        if let Some(lost) = lost {
            members[lost.index()] = None;
        }
        let mut power = Power::new(members.clone(), usize::MAX);
        let data = superblock(members[0].as_ref().expect("present")).areas.data.offset;
        for (member, sector) in [(0, 3), (0, 40), (2, 85), (1, 150)] {
            let offset = Bytes(data.0 + sector * 512);
            power.inner.spoil(MemberIndex(member), offset, Bytes(512));
        }
        let outcome = go(&mut power, &members, &case, false, true).expect("another shape").expect("reshaped");
        assert!(outcome.losses.is_empty(), "{context}: {:?}", outcome.losses);
        let (_, found) = content_of(&power.cut(&mut Random(1)));
        assert!(found[..content.len()] == content, "{context}");
    }
}

/// Content that nobody can give stops it: where, it says, and it can go back or on.
#[test]
fn content_that_is_lost_stops_it_where_it_is() {
    let case = Case { chunk: 8 << 10, ..case(small(Level::Raid0, 3), Level::Raid0, 3) };
    let (members, content) = case.members();
    let geometry = case.from.geometry();
    let at = geometry.locate(Lba(200));
    let mut power = Power::new(members.clone(), usize::MAX);
    let data = superblock(members[0].as_ref().expect("present")).areas.data.offset;
    power.inner.spoil(at.member, Bytes(data.0 + at.sector.0 * 512), Bytes(512));
    let error = go(&mut power, &members, &case, false, false).expect("another shape").expect_err("unreadable");
    assert!(matches!(error, ReshapeError::Unreadable { lba: Lba(200), .. }), "{error}");
    // The medium gives it again.
    let left = power.cut(&mut Random(1));
    for is_back in [true, false] {
        let (outcome, after, _) = reshape(&left, &case, is_back, usize::MAX, &mut Random(2));
        outcome.expect("it is under way").expect("it ends");
        assert_shape(&after, &case, is_back, &content, "after all");
    }
}

/// Until all new members have their superblocks nothing has begun: the array is what it was, and who was made a member
/// can be made one again.
#[test]
fn what_is_cut_off_before_all_new_members_are_made_has_not_begun() {
    let case = case(small(RAID5, 3), rm2(3, Placement::Adjacent), 7);
    let (members, content) = case.members();
    let (mut has_some, mut begun) = (false, None);
    for left in 0.. {
        let (_, after, _) = reshape(&members, &case, false, left, &mut Random(left as u64));
        let blank = (3..7).filter(|&slot| after[slot].as_deref().and_then(says).is_none()).count();
        if judged(&after).1.superblock.reshape.is_some() {
            assert_eq!(blank, 0, "cut after {left}");
            begun = Some(after);
            break;
        }
        assert!(content_of(&after[..3].to_vec()).1 == content, "cut after {left}");
        if blank == 2 && !std::mem::replace(&mut has_some, true) {
            let (outcome, end, _) = reshape(&after, &case, false, usize::MAX, &mut Random(1));
            outcome.expect("it begins anew").expect("reshaped");
            assert_shape(&end, &case, false, &content, "begun anew");
        }
    }
    assert!(has_some, "it is cut off among the new members");
    let mut fewer = begun.expect("it begins some time");
    fewer[1] = None;
    let (back, _, _) = reshape(&fewer, &case, true, usize::MAX, &mut Random(1));
    assert!(matches!(back, Some(Err(ReshapeError::Missing { .. }))), "an old member is not done without: {back:?}");
    let mut power = Power::new(fewer.clone(), usize::MAX);
    go(&mut power, &fewer, &case, true, true).expect("it is under way").expect("back, as it was allowed");
    let mut home = power.cut(&mut Random(1));
    home.truncate(3);
    assert!(content_of(&home).1 == content);
}

/// A new member that is gone is not needed to go back.
#[test]
fn going_back_needs_the_old_members_only() {
    let case = case(small(RAID5, 3), rm2(3, Placement::Adjacent), 7);
    let (members, content) = case.members();
    let mut after = (0..).map(|left| reshape(&members, &case, false, left, &mut Random(1)).1);
    let mut begun = after.find(|after| judged(after).1.superblock.reshape.is_some()).expect("it begins some time");
    begun[5] = None;
    let (forward, _, _) = reshape(&begun, &case, false, usize::MAX, &mut Random(1));
    assert!(matches!(forward, Some(Err(ReshapeError::Missing { .. }))), "{forward:?}");
    let (back, home, _) = reshape(&begun, &case, true, usize::MAX, &mut Random(1));
    assert!(back.expect("it is under way").expect("back").is_back);
    assert_shape(&home, &case, true, &content, "back");
}

/// A member that a round did not reach has all content, and one that missed more counts no more.
#[test]
fn who_is_behind_by_a_round_is_current() {
    let case = cases()[0];
    let (members, content) = case.members();
    let (_, _, all) = reshape(&members, &case, false, usize::MAX, &mut Random(1));
    for left in (40..all).step_by(7) {
        let (_, after, _) = reshape(&members, &case, false, left, &mut Random(left as u64));
        let (_, verdict) = judged(&after);
        if verdict.superblock.reshape.is_none() {
            continue;
        }
        let epochs: Vec<u64> = after.iter().flatten().filter_map(|bytes| Some(says(bytes)?.epoch.0)).collect();
        let newest = *epochs.iter().max().expect("members");
        assert!(epochs.iter().all(|&epoch| epoch + 1 >= newest), "cut after {left}: {epochs:?}");
        assert!(verdict.missing().is_empty(), "cut after {left}: {epochs:?}");
        // Cut off while they catch up, again and again, none falls further behind.
        let mut now = after;
        for again in [3, 5, 9, 17] {
            (_, now, _) = reshape(&now, &case, false, again, &mut Random(again as u64));
            assert!(judged(&now).1.missing().is_empty(), "cut after {left}, then {again}");
        }
        let (outcome, end, _) = reshape(&now, &case, false, usize::MAX, &mut Random(3));
        outcome.map_or(Ok(()), |outcome| outcome.map(drop)).expect("it ends");
        assert_shape(&end, &case, false, &content, "behind");
        // Who missed two rounds of the others' may lack a window.
        let mut stale = now.clone();
        let others = now.iter().enumerate().filter(|&(slot, _)| slot != 1);
        let newest = others.filter_map(|(_, bytes)| Some(says(bytes.as_ref()?)?.epoch.0)).max().expect("others");
        let Some(bytes) = stale[1].as_mut() else { continue };
        let mut own = superblock(bytes);
        if own.epoch.0 + 2 > newest || own.reshape.is_none() {
            own.epoch.0 = newest.saturating_sub(2);
            own.slots.iter_mut().for_each(|entry| entry.since.0 = entry.since.0.min(own.epoch.0));
        }
        for position in positions(own.areas.member_size).expect("large enough") {
            bytes[size(position)..][..4096].copy_from_slice(&encode(&own));
        }
        let (verdict, _) = (judged(&stale).1, ());
        assert!(verdict.missing().contains(MemberIndex(1)), "cut after {left}");
    }
}

/// What an array grows by afterwards is zeros, whatever the shape before had there, and so say its checksums.
#[test]
fn what_grows_after_a_reshape_is_zeros_with_their_checksums() {
    for case in cases().into_iter().filter(|case| case.members >= case.from.members && case.kept.is_none()) {
        let context = format!("{case:?}");
        let (members, content) = case.members();
        let (_, after, _) = reshape(&members, &case, false, usize::MAX, &mut Random(1));
        let sizes: Vec<_> = after.iter().map(|bytes| bytes.as_ref().map(|bytes| Bytes(bytes.len() as u64))).collect();
        let opened = assembled(MemDisk::new(after.clone(), Order::Fifo), &after);
        let grown = grow(opened, &sizes, None).unwrap_or_else(|error| panic!("{context}: {error}"));
        let mut engine: Engine<MemDisk, u64> = grown.into_engine().expect("an engine");
        let found = all_of(&mut engine);
        assert!(found.len() > content.len() && found[..content.len()] == content, "{context}: the content");
        assert!(found[content.len()..].iter().all(|&byte| byte == 0), "{context}: zeros");
    }
}

#[test]
fn what_can_not_be_reshaped_stays_as_it_is() {
    let refused = |case: Case, change: &dyn Fn(&mut Members)| {
        let (mut members, _) = case.members();
        change(&mut members);
        let old: Members = members[..usize::from(case.from.members)].to_vec();
        let opened = assembled(MemDisk::new(old.clone(), Order::Fifo), &old);
        plan(&opened, &members, &Case { kept: case.kept, ..case }).expect_err("refused")
    };
    let none = |_: &mut Members| ();
    let raid5 = case(small(RAID5, 3), RAID5, 3);
    assert!(matches!(refused(raid5, &none), ReshapeError::Same));
    let error = refused(Case { kept: Some(Bytes(1 << 40)), ..raid5 }, &none);
    assert!(matches!(error, ReshapeError::TooMuch { .. }), "{error}");
    let partitioned = refused(case(small(RAID5, 4), rm2(3, Placement::Partitioned), 7), &none);
    assert!(matches!(partitioned, ReshapeError::Course(CourseError::Partitioned)), "{partitioned}");
    let partitioned = refused(case(small(rm2(3, Placement::Partitioned), 7), RAID5, 7), &none);
    assert!(matches!(partitioned, ReshapeError::Course(CourseError::Partitioned)), "{partitioned}");
    // 700 chunks of two members do not fit one's 3 MiB.
    let full = Shape { chunks: 700, ..small(Level::Raid0, 3) };
    let error = refused(Case { from: full, level: Level::Raid1, members: 3, chunk: 4096, kept: None }, &none);
    assert!(matches!(error, ReshapeError::NoRoom { .. }), "{error}");
    let coarse = Case { chunk: 60 << 10, ..case(Shape { chunk: 56 << 10, ..small(RAID5, 14) }, RAID5, 14) };
    let error = refused(coarse, &none);
    assert!(matches!(error, ReshapeError::TooCoarse { .. }), "{error}");
    let alone = |members: &mut Members| members[1] = None;
    let (mut members, _) = raid5.members();
    alone(&mut members);
    let opened = assembled(MemDisk::new(members.clone(), Order::Fifo), &members);
    let target = Target { allow_degraded: false, chunk: Bytes(8192), ..raid5.target() };
    let error = plan_reshape(&opened, &target, &[]).expect_err("degraded");
    assert!(matches!(error, ReshapeError::NotWhole { .. }), "{error}");
    let target = Target { level: Level::Raid0, ..target };
    let error = plan_reshape(&opened, &Target { allow_degraded: true, ..target }, &[]).expect_err("too few");
    assert!(matches!(error, ReshapeError::TooFew { level: Level::Raid0, .. }), "{error}");
    let mut engine = raid5.from.engine(MemberSet::EMPTY, Order::Fifo);
    drop(run(&mut engine, Command::Write { lba: Lba(0), buf: buf(&[1; 4096]), fua: true }).expect("written"));
    let dirty: Members = images(&engine);
    let opened = assembled(MemDisk::new(dirty.clone(), Order::Fifo), &dirty);
    let error = plan_reshape(&opened, &Target { chunk: Bytes(8192), ..raid5.target() }, &[]).expect_err("dirty");
    assert!(matches!(error, ReshapeError::Dirty), "{error}");
}

#[test]
fn a_plan_says_how_much_work_it_is() {
    let case = cases()[7];
    let (members, content) = case.members();
    let opened = assembled(MemDisk::new(members.clone(), Order::Fifo), &members);
    let plan = plan(&opened, &members, &case).expect("a plan");
    let work = plan.work();
    assert_eq!((work.windows, work.saved_windows, work.saved), (work.saved_windows, work.windows, plan.kept()));
    assert_eq!(plan.kept(), Bytes(content.len() as u64));
    assert_eq!(plan.to().capacity(), Sectors((content.len() / SECTOR) as u64));
}
