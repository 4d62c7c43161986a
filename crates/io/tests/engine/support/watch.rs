//! A disk that keeps account of what is durable on its members, and stops a test at once where the engine writes data
//! that a crash could make wrong.

use std::collections::HashMap;
use std::ops::Range;

use uraid_io::Error;
use uraid_io::disk::{Completion, Disk, DiskOp, Image, MemDisk, OpKind, OpName};
use uraid_io::format::bitmap::Seal;
use uraid_io::format::superblock::{Areas, SlotState, Superblock, SuperblockError, decode, newest, positions};
use uraid_layout::{Bytes, MemberIndex, MemberSet};

use super::intents::Intents;
use super::{Members, Random, SECTOR, size};

/// One operation as it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) member: MemberIndex,
    pub(crate) name: OpName,
    pub(crate) is_data: bool,
}

/// The writes of one job to one member: it goes on when all are over.
#[derive(Default)]
struct Group {
    ranges: Vec<Range<usize>>,
    pending: usize,
    is_failed: bool,
}

pub(crate) struct Watch {
    pub(crate) inner: MemDisk,
    areas: Areas,
    /// What a flush has made durable on each member.
    durable: Vec<Option<Superblock>>,
    /// What a flush under way will make durable.
    flushing: HashMap<(u64, MemberIndex), (Option<Superblock>, u64)>,
    /// Writes of data under way, by tag and member.
    writing: HashMap<(u64, MemberIndex), Group>,
    /// Counts completed writes of data.
    clock: u64,
    /// For each member those of them that are not durable.
    unflushed: Vec<Vec<(u64, Range<usize>)>>,
    /// What of each member's data area, as far as it is used, a power cut would leave at least.
    image: Vec<Option<Vec<u8>>>,
    pub(crate) ops: Vec<Op>,
    reaps: usize,
    /// What the members' write-intent bitmaps may hold, where the array has them.
    pub(crate) intents: Option<Intents>,
    /// What those may belong to, as far as that is known.
    seals: Option<Vec<Seal>>,
    /// Writes of superblocks, which change that.
    stating: Vec<(u64, MemberIndex)>,
    /// Members may be written that another engine has put on record as failed: what they hold counts for nothing.
    pub(crate) allows_late: bool,
    /// Operations that are not begun until [`Watch::let_go`].
    on_hold: Vec<(MemberIndex, OpName)>,
    /// Members whose next write of data is held, and no other.
    on_hold_once: MemberSet,
    roomless: MemberSet,
    held: Vec<DiskOp>,
    /// Operations that are held on a member whose place another has.
    elsewhere: Vec<DiskOp>,
    /// Members that are in one place.
    pub(crate) kin: MemberSet,
    ended: Vec<Completion>,
}

impl Watch {
    /// `used` is what the array uses of each member's data area.
    pub(crate) fn new(inner: MemDisk, members: u8, areas: Areas, used: Bytes) -> Self {
        let start = size(areas.data.offset);
        let image = |member| inner.member(MemberIndex(member)).map(|bytes| bytes[start..][..size(used)].to_vec());
        let mut watch = Self {
            areas,
            durable: Vec::new(),
            flushing: HashMap::new(),
            writing: HashMap::new(),
            clock: 0,
            unflushed: vec![Vec::new(); usize::from(members)],
            image: (0..members).map(image).collect(),
            ops: Vec::new(),
            reaps: usize::MAX,
            intents: None,
            seals: None,
            stating: Vec::new(),
            allows_late: false,
            on_hold: Vec::new(),
            on_hold_once: MemberSet::EMPTY,
            roomless: MemberSet::EMPTY,
            held: Vec::new(),
            elsewhere: Vec::new(),
            kin: MemberSet::EMPTY,
            ended: Vec::new(),
            inner,
        };
        watch.durable = (0..members).map(MemberIndex).map(|member| watch.superblock(member)).collect();
        let superblock = watch.durable.iter().flatten().next();
        watch.intents = superblock.and_then(|superblock| Intents::new(superblock, &watch.inner, &watch.find_seals()));
        watch
    }

    /// How many more times completions are handed out before the disk says that there are none for now.
    pub(crate) fn allow_reaps(&mut self, reaps: usize) {
        self.reaps = reaps;
    }

    /// Says of these members that writes to them wait for room, which the test holds.
    pub(crate) fn set_roomless(&mut self, members: MemberSet) {
        self.roomless = members;
    }

    /// Begins no more operations of this kind on a member until they are let go.
    pub(crate) fn hold(&mut self, member: MemberIndex, name: OpName) {
        self.on_hold.push((member, name));
    }

    /// Does not begin the next write of data to a member until it is let go.
    pub(crate) fn hold_next_data(&mut self, member: MemberIndex) {
        self.on_hold_once = self.on_hold_once.with(member);
    }

    /// The members as they are when of every write that is held all but its first block has come.
    pub(crate) fn torn(&self) -> Members {
        let members = (0..self.durable.len()).map(|slot| MemberIndex(u8::try_from(slot).expect("few")));
        let mut members: Vec<_> = members.map(|member| self.inner.member(member).cloned()).collect();
        for op in self.held.iter().filter(|op| op.kind.name() == OpName::Write) {
            let bytes: Vec<u8> = op.segments.iter().flat_map(|segment| segment.bytes().to_vec()).collect();
            let (start, first) = (size(op.offset), 4096.min(bytes.len()));
            let member = members[op.member.index()].as_mut().expect("a member that is written is present");
            member.write(start + first, &bytes[first..]);
        }
        members
    }

    /// Begins what was held of this kind on a member.
    pub(crate) fn let_go(&mut self, member: MemberIndex, name: OpName) {
        self.on_hold.retain(|&held| held != (member, name));
        let (gone, held) =
            std::mem::take(&mut self.held).into_iter().partition(|op| (op.member, op.kind.name()) == (member, name));
        self.held = held;
        Vec::into_iter(gone).for_each(|op| self.inner.submit(op));
    }

    /// Takes what is held of a member away with it; what is put in its place is not held.
    pub(crate) fn release_elsewhere(&mut self, member: MemberIndex) {
        self.on_hold.retain(|&(held, _)| held != member);
        self.elsewhere.extend(self.held.extract_if(.., |op| op.member == member));
    }

    /// Ends what was taken away, on the member that is not here.
    pub(crate) fn end_elsewhere(&mut self) {
        for mut op in self.elsewhere.drain(..) {
            for segment in op.segments.iter_mut().filter(|segment| segment.is_writable()) {
                segment.copy_from(&vec![0xDD; segment.len()]);
            }
            let key = (op.tag, op.member);
            self.flushing.remove(&key);
            self.writing.remove(&key);
            self.ended.push(op.complete(Ok(())));
        }
    }

    /// How many operations are held.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether a byte of a member is in its data area.
    pub(crate) fn is_data(&self, at: Bytes) -> bool {
        at >= self.areas.data.offset && at.0 < self.areas.data.end().expect("fits").0
    }

    /// Where the members' data areas begin.
    pub(crate) fn data_start(&self) -> Bytes {
        self.areas.data.offset
    }

    /// The first bytes of a member's data area.
    pub(crate) fn data(&self, member: MemberIndex, len: usize) -> &[u8] {
        &self.inner.member(member).expect("the member is present")[size(self.areas.data.offset)..][..len]
    }

    /// The same of what a power cut would leave at least.
    pub(crate) fn durable_data(&self, member: MemberIndex, len: usize) -> &[u8] {
        &self.image[member.index()].as_ref().expect("the member is present")[..len]
    }

    /// The members as a power cut may leave them: of what is not durable, each sector of data as it was or as it is,
    /// and any version of the bitmap. What is under way has not begun to reach them.
    pub(crate) fn cut(&self, random: &mut Random) -> Members {
        let start = size(self.areas.data.offset);
        let mut members = Vec::new();
        for (member, image) in (0..).map(MemberIndex).zip(&self.image) {
            let mut now = self.inner.member(member).cloned();
            if let (Some(now), Some(image)) = (&mut now, image) {
                let data = now.range_mut(start..start + image.len());
                let sectors = data.chunks_exact_mut(SECTOR).zip(image.chunks_exact(SECTOR));
                for (now, before) in sectors.filter(|(now, before)| now != before) {
                    if random.below(2) == 0 {
                        now.copy_from_slice(before);
                    }
                }
                if let Some(intents) = &self.intents {
                    let pick = usize::try_from(random.below(1 << 20)).expect("small");
                    let bitmap = intents.encoded(member, |count| pick % count);
                    now.write(size(self.areas.bitmap.offset), &bitmap);
                }
            }
            members.push(now);
        }
        members
    }

    /// Puts another member in at a slot, or at the seat beyond them; all of it is durable.
    pub(crate) fn put(&mut self, member: MemberIndex, bytes: Image) {
        let (slot, start) = (member.index(), size(self.areas.data.offset));
        if slot == self.image.len() {
            self.image.push(None);
            self.unflushed.push(Vec::new());
            self.durable.push(None);
        }
        let used = self.image.iter().flatten().map(Vec::len).next().expect("some member is there");
        self.image[slot] = Some(bytes[start..][..used].to_vec());
        self.unflushed[slot].clear();
        self.inner.replace(member, Some(bytes));
        self.durable[slot] = self.superblock(member);
        self.seals = None;
        let seals = self.seals();
        self.intents.iter_mut().for_each(|intents| intents.put(member, &self.inner, self.areas.bitmap.offset, &seals));
    }

    pub(crate) fn data_mut(&mut self, member: MemberIndex) -> &mut [u8] {
        let start = size(self.areas.data.offset);
        &mut self.inner.member_mut(member).expect("the member is present")[start..]
    }

    /// What a member's superblock says now.
    pub(crate) fn superblock(&self, member: MemberIndex) -> Option<Superblock> {
        let bytes = self.inner.member(member)?;
        let positions = positions(self.areas.member_size).expect("large enough");
        let copies = positions.map(|position: Bytes| decode(&bytes[size(position)..][..4096]));
        match newest(copies) {
            Ok(superblock) => Some(superblock),
            Err(SuperblockError::NoMagic) => None,
            Err(error) => panic!("a superblock is broken: {error}"),
        }
    }

    /// What a flush has made durable of a member's superblock.
    pub(crate) fn durable(&self, member: MemberIndex) -> Option<&Superblock> {
        self.durable[member.index()].as_ref()
    }

    /// The newest durable superblock.
    pub(crate) fn newest(&self) -> &Superblock {
        let key = |superblock: &&Superblock| (superblock.epoch, superblock.revision);
        self.durable.iter().flatten().max_by_key(key).expect("some member has one")
    }

    /// The writes of data that have completed so far.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// Asserts that what had completed at `clock` is durable on every member that is on record as active.
    pub(crate) fn assert_flushed(&self, clock: u64, context: &str) {
        for (slot, _) in (0..).zip(&self.newest().slots).filter(|(_, record)| record.state == SlotState::Active) {
            let is_durable = self.unflushed[slot].iter().all(|&(written, _)| written > clock);
            assert!(is_durable, "{context}: member {slot} has writes that are not durable");
        }
    }

    /// The members that are durably on record as active.
    pub(crate) fn active(&self) -> Vec<MemberIndex> {
        let slots = (0..).map(MemberIndex).zip(&self.newest().slots);
        slots.filter(|(_, record)| record.state == SlotState::Active).map(|(slot, _)| slot).collect()
    }

    fn seals(&mut self) -> Vec<Seal> {
        if self.seals.is_none() || !self.stating.is_empty() {
            self.seals = Some(self.find_seals());
        }
        self.seals.clone().expect("just found")
    }

    /// What the members' bitmap may belong to after a power cut: by what is durable on record, or was written over it.
    fn find_seals(&self) -> Vec<Seal> {
        let newest = self.durable.iter().flatten().max_by_key(|superblock| superblock.epoch);
        let slots = (0..self.durable.len()).map(|slot| MemberIndex(u8::try_from(slot).expect("few")));
        let written = slots.filter_map(|member| self.superblock(member));
        let later = written.filter(|own| newest.is_none_or(|newest| own.epoch > newest.epoch));
        newest.cloned().into_iter().chain(later).filter_map(|superblock| superblock.seal()).collect()
    }

    /// Whatever a power cut leaves now, what was written and may not be durable is in regions whose bits are set.
    fn assert_intended(&mut self) {
        let seals = self.seals();
        let active = self.active();
        let Some(intents) = &mut self.intents else { return };
        let start = size(self.areas.data.offset);
        let flying = self.writing.iter().flat_map(|((_, member), group)| {
            group.ranges.iter().filter(|_| group.pending > 0).map(move |range| (*member, range.clone()))
        });
        let unflushed = (0..).map(MemberIndex).zip(&self.unflushed);
        let unflushed =
            unflushed.flat_map(|(member, writes)| writes.iter().map(move |(_, range)| (member, range.clone())));
        let counts = |member: &MemberIndex| active.contains(member) || intents.has_log();
        let written = flying.chain(unflushed).filter(|(member, _)| counts(member));
        let written: Vec<_> = written.map(|(member, range)| (member, range.start - start..range.end - start)).collect();
        intents.assert_set(&active, &seals, written.iter().map(|(member, range)| (*member, range)));
    }

    /// Before any data is written that somebody relies on, every member that counts says durably that writes are under
    /// way.
    fn assert_marked(&self, op: &DiskOp) {
        let newest = self.newest();
        if newest.slots.get(op.member.index()).is_none_or(|record| record.state.is_rebuilding()) {
            // Nobody relies on it yet, or the others are written with it.
            return;
        }
        for (slot, record) in (0u8..).zip(&newest.slots).filter(|(_, record)| record.state == SlotState::Active) {
            let durable = self.durable(MemberIndex(slot));
            let is_marked =
                durable.is_some_and(|superblock| !superblock.is_clean && superblock.epoch.0 + 1 >= newest.epoch.0);
            assert!(is_marked, "{} before member {slot} ({record:?}) is durably marked dirty: {durable:?}", op.info());
        }
        assert!(!newest.is_clean, "a clean array is written");
        let state = newest.slots[op.member.index()].state;
        assert!(state == SlotState::Active || self.allows_late, "a failed member is written: {}", op.info());
    }
}

impl Disk for Watch {
    fn submit(&mut self, op: DiskOp) {
        let is_data = self.is_data(op.offset);
        self.ops.push(Op { member: op.member, name: op.kind.name(), is_data });
        match op.kind {
            OpKind::Write | OpKind::Zero { .. } if is_data => {
                self.assert_marked(&op);
                let start = size(op.offset);
                let range = start..start + size(op.len());
                let group = self.writing.entry((op.tag, op.member)).or_default();
                group.ranges.push(range);
                group.pending += 1;
                self.assert_intended();
            }
            OpKind::Write if op.offset == self.areas.bitmap.offset => {
                let seals = self.seals();
                let intents = self.intents.as_mut().expect("only an array with a bitmap has its bitmap written");
                intents.written(&op, &seals);
                self.assert_intended();
            }
            OpKind::Write if positions(self.areas.member_size).is_some_and(|all| all.contains(&op.offset)) => {
                self.stating.push((op.tag, op.member));
            }
            OpKind::Flush => {
                self.intents.iter_mut().for_each(|intents| intents.flushing(op.tag, op.member));
                let state = (self.superblock(op.member), self.clock);
                let before = self.flushing.insert((op.tag, op.member), state);
                assert!(before.is_none(), "one flush of a member at a time for one purpose");
            }
            _ => {}
        }
        let is_next = is_data && op.kind == OpKind::Write && self.on_hold_once.contains(op.member);
        if is_next {
            self.on_hold_once = self.on_hold_once.without(op.member);
        }
        if is_next || self.on_hold.contains(&(op.member, op.kind.name())) {
            return self.held.push(op);
        }
        self.inner.submit(op);
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.inner.kick()
    }

    fn roomless(&self) -> MemberSet {
        self.roomless
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        if self.reaps == 0 {
            return;
        }
        self.reaps -= 1;
        completions.append(&mut self.ended);
        let before = completions.len();
        self.inner.reap(completions);
        for completion in &completions[before..] {
            let (key, is_ok) = ((completion.tag, completion.member), completion.result.is_ok());
            let slot = completion.member.index();
            self.intents.iter_mut().for_each(|intents| intents.completed(completion));
            if let Some(place) = self.stating.iter().position(|stating| *stating == key) {
                self.stating.swap_remove(place);
                self.seals = None;
            }
            if let Some((superblock, written)) = self.flushing.remove(&key) {
                if is_ok {
                    // Of two flushes at once the one that was asked for first may end last.
                    let epoch =
                        |superblock: &Option<Superblock>| superblock.as_ref().map(|superblock| superblock.epoch);
                    if epoch(&superblock) > epoch(&self.durable[slot]) {
                        self.seals = None;
                        self.durable[slot] = superblock;
                    }
                    let start = size(self.areas.data.offset);
                    let now = self.inner.member(completion.member).expect("a member that is flushed is present");
                    let image = self.image[slot].as_mut().expect("the same");
                    self.unflushed[slot].retain(|(write, range)| {
                        if *write <= written {
                            image[range.start - start..range.end - start].copy_from_slice(&now[range.clone()]);
                        }
                        *write > written
                    });
                }
            } else if let Some(group) = self.writing.get_mut(&key).filter(|group| group.pending > 0) {
                group.pending -= 1;
                group.is_failed |= !is_ok;
                if group.pending == 0 {
                    let group = std::mem::take(group);
                    self.clock += 1;
                    let ranges = group.ranges.into_iter().filter(|_| !group.is_failed);
                    self.unflushed[slot].extend(ranges.map(|range| (self.clock, range)));
                }
            }
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.inner.wait()
    }

    fn kin(&self, member: MemberIndex) -> MemberSet {
        if self.kin.contains(member) { self.kin } else { MemberSet::EMPTY.with(member) }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len() + self.elsewhere.len() + self.ended.len()
    }

    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        let is_free = |member: MemberIndex| {
            let is_flushed = self.flushing.keys().all(|&(_, on)| on != member);
            is_flushed && self.writing.iter().all(|(&(_, on), group)| on != member || group.pending == 0)
        };
        assert!(is_free(one) && is_free(other), "nothing is in flight on members that change places");
        self.inner.exchange(one, other);
        self.image.swap(one.index(), other.index());
        self.unflushed.swap(one.index(), other.index());
        self.durable.swap(one.index(), other.index());
        self.intents.iter_mut().for_each(|intents| intents.exchange(one, other));
    }
}
