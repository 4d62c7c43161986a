//! One simulated member: what reads see of it, and what a power cut may leave.
//!
//! Only a sector is written in one piece. Of each sector the member keeps the durable content and every *version*
//! issued since: a power cut leaves any one of them, independently of every other sector, so writes are dropped,
//! reordered and torn. A flush makes durable what had completed when the flush was begun, and nothing else: a write
//! that is still under way may be there after a power cut, or not, for as long as it has not completed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use uraid_io::format::BLOCK;
use uraid_io::format::badblocks::{BadBlocks, COPY_BYTES, Found};
use uraid_io::format::superblock::{
    Consistency, SUPERBLOCK_BYTES, Superblock, SuperblockError, decode, encode, newest, positions,
};
use uraid_layout::Bytes;

use crate::image::{Image, SECTOR, Sector, ZEROS};

/// A write under way on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

/// What a flush covers: the writes that had completed when it was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlushMark(u64);

/// What a write brings.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Bytes, of whole sectors.
    Bytes(Arc<[u8]>),
    /// Zeros, of whole sectors.
    Zeros(Bytes),
}

/// A member.
#[derive(Clone, Debug)]
pub struct Member {
    durable: Image,
    current: Image,
    /// By byte offset, the versions that a power cut may leave instead of the durable one. First those that took
    /// effect, in that order, then those that did not yet.
    unflushed: BTreeMap<u64, Versions>,
    writes: BTreeMap<WriteId, Write>,
    next: u64,
    /// Counts completions of writes.
    clock: u64,
    /// By byte offset, what the program has written to sectors that reads see something else of.
    rotten: BTreeMap<u64, Sector>,
    /// By byte offset, sectors that the medium does not give back until they are written.
    unreadable: BTreeSet<u64>,
}

type Versions = SmallVec<[Version; 2]>;

#[derive(Clone, Debug)]
struct Write {
    offset: Bytes,
    payload: Payload,
}

#[derive(Clone, Debug)]
struct Version {
    write: WriteId,
    /// The bytes and where in them the sector's are; none for zeros.
    content: Option<(Arc<[u8]>, usize)>,
    has_effect: bool,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    UnderWay,
    /// At that time of the clock.
    Completed(u64),
    /// A flush that covered it failed, or the write did: no later flush proves anything about it.
    Doubtful,
}

/// Whether an array that is between two shapes can be used: it has a log, or nothing that has to agree.
pub(crate) fn may_be_served(own: &Superblock) -> bool {
    own.consistency == Consistency::Log || own.shapes().iter().all(|shape| shape.tolerance() == 0)
}

/// The superblock that counts of a member that holds this.
///
/// # Errors
/// When there is none; see [`newest`].
pub(crate) fn superblock_of(image: &Image) -> Result<Superblock, SuperblockError> {
    let positions = positions(image.size()).ok_or(SuperblockError::NoMagic)?;
    newest(positions.map(|position| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        image.read(position, &mut bytes);
        DECODED.with_borrow_mut(|decoded| decoded.decode(&bytes))
    }))
}

/// The list of bad blocks of a member that holds this.
///
/// # Panics
/// When it is damaged: nothing here damages both of its copies.
pub(crate) fn bad_blocks_of(image: &Image, own: &Superblock) -> BadBlocks {
    let copy = |copy: u64| {
        let offset = Bytes(own.areas.bad_blocks.offset.0 + copy * COPY_BYTES.0);
        let mut len = BLOCK.bytes();
        loop {
            let mut bytes = vec![0; usize::try_from(len.0).expect("a copy is small")];
            image.read(offset, &mut bytes);
            match BadBlocks::decode(&bytes, own.member, own.areas.data_sectors().0 / BLOCK.0) {
                Found::Short(needed) => len = needed,
                found => return found,
            }
        }
    };
    BadBlocks::newest([copy(0), copy(1)]).expect("nothing damages both copies")
}

/// Superblocks that were decoded already: whoever looks at many states of the same members finds the same few.
#[derive(Default)]
struct Decoded(HashMap<u32, ([u8; SUPERBLOCK_BYTES], Superblock)>);

thread_local! {
    static DECODED: RefCell<Decoded> = RefCell::default();
}

/// It begins anew with more than this.
const DECODED_MAX: usize = 1024;

impl Decoded {
    fn decode(&mut self, bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Superblock, SuperblockError> {
        let hash = crc32fast::hash(bytes);
        match self.0.get(&hash) {
            Some((known, superblock)) if known == bytes => return Ok(superblock.clone()),
            _ if self.0.len() >= DECODED_MAX => self.0.clear(),
            _ => {}
        }
        let superblock = decode(bytes)?;
        self.0.insert(hash, (*bytes, superblock.clone()));
        Ok(superblock)
    }
}

/// What becomes of the part of a write that ends without having taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unseen {
    Stays,
    Goes,
}

impl Payload {
    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> Bytes {
        match self {
            Self::Bytes(bytes) => Bytes(bytes.len() as u64),
            Self::Zeros(len) => *len,
        }
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Bytes(0)
    }

    /// One of its sectors, which it has.
    fn sector(&self, index: usize) -> &Sector {
        match self {
            Self::Bytes(bytes) => bytes[index * SECTOR..].first_chunk().expect("a write has whole sectors"),
            Self::Zeros(_) => &ZEROS,
        }
    }
}

impl Version {
    fn content(&self) -> &Sector {
        self.content
            .as_ref()
            .map_or(&ZEROS, |(bytes, at)| bytes[*at..].first_chunk().expect("a write has whole sectors"))
    }
}

impl Member {
    /// A member of zeros.
    ///
    /// # Panics
    /// When the size is not a whole number of sectors.
    #[must_use]
    pub fn zeroed(size: Bytes) -> Self {
        Self::of(Image::zeroed(size))
    }

    /// A member whose content is all durable.
    #[must_use]
    pub fn of(image: Image) -> Self {
        let current = image.clone();
        let (unflushed, writes, rotten) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { durable: image, current, unflushed, writes, next: 0, clock: 0, rotten, unreadable: BTreeSet::new() }
    }

    /// A member that holds a superblock, durably, and zeros.
    ///
    /// # Panics
    /// When the superblock is unsound.
    #[must_use]
    pub(crate) fn formatted(superblock: &Superblock) -> Self {
        let mut image = Image::zeroed(superblock.areas.member_size);
        let bytes = encode(superblock);
        superblock.write_positions().into_iter().for_each(|position| image.put(position, &bytes));
        Self::of(image)
    }

    /// How many bytes the member has.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.current.size()
    }

    /// Makes the medium larger, durably; what is new is zeros.
    ///
    /// # Panics
    /// When it would be smaller, or the size is not a whole number of sectors.
    pub(crate) fn enlarge(&mut self, size: Bytes) {
        self.durable.enlarge(size);
        self.current.enlarge(size);
    }

    /// What reads see.
    #[must_use]
    pub fn current(&self) -> &Image {
        &self.current
    }

    /// What is durable at least: of a sector with unflushed versions the last durable one.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Begins a write: a power cut may leave any of its sectors from now on.
    ///
    /// # Panics
    /// When the range is not of whole sectors of the member.
    pub(crate) fn issue(&mut self, offset: Bytes, payload: Payload) -> WriteId {
        let (len, size) = (payload.len().0, self.size().0);
        let is_whole = offset.0.is_multiple_of(SECTOR as u64) && len.is_multiple_of(SECTOR as u64);
        assert!(
            is_whole && offset.0.checked_add(len).is_some_and(|end| end <= size),
            "whole sectors of the member are written"
        );
        let id = WriteId(self.next);
        self.next += 1;
        for (at, offset) in (offset.0..offset.0 + len).step_by(SECTOR).enumerate() {
            let content = match &payload {
                Payload::Bytes(bytes) => Some((Arc::clone(bytes), at * SECTOR)),
                Payload::Zeros(_) => None,
            };
            let version = Version { write: id, content, has_effect: false, end: End::UnderWay };
            self.unflushed.entry(offset).or_default().push(version);
        }
        self.writes.insert(id, Write { offset, payload });
        id
    }

    /// Lets reads see a part of a write, given as bytes of it; what they see already stays.
    ///
    /// # Panics
    /// When the write is not under way, or the part is not of whole sectors of it.
    pub(crate) fn take_effect(&mut self, id: WriteId, part: Range<u64>) {
        let offset = self.writes[&id].offset.0;
        assert!(part.end <= self.writes[&id].payload.len().0, "the part is the write's");
        for at in (offset + part.start..offset + part.end).step_by(SECTOR) {
            let Some(versions) = self.unflushed.get_mut(&at) else { continue };
            // Where there is none of it, its effect was there, and a stray write that took its place was flushed, or
            // rot has.
            let Some(index) = versions.iter().position(|version| version.write == id) else { continue };
            if !versions[index].has_effect {
                let mut version = versions.remove(index);
                version.has_effect = true;
                self.current.set(Bytes(at), version.content());
                self.rotten.remove(&at);
                let place = versions.iter().take_while(|version| version.has_effect).count();
                versions.insert(place, version);
            }
        }
    }

    /// Ends a write: reads see all of it, and a flush that is begun from now on covers it.
    ///
    /// # Panics
    /// When the write is not under way.
    pub fn complete(&mut self, id: WriteId) {
        let (start, len) = (self.writes[&id].offset.0, self.writes[&id].payload.len().0);
        self.take_effect(id, 0..len);
        self.unreadable.retain(|at| !(start..start + len).contains(at));
        self.clock += 1;
        self.end(id, End::Completed(self.clock), Unseen::Stays);
    }

    /// The same of a write that is durable when it ends.
    ///
    /// # Panics
    /// As [`Member::complete`].
    pub(crate) fn complete_fua(&mut self, id: WriteId) {
        let (start, len) = (self.writes[&id].offset.0, self.writes[&id].payload.len().0);
        self.complete(id);
        for at in (start..start + len).step_by(SECTOR) {
            let Some(versions) = self.unflushed.get_mut(&at) else { continue };
            let Some(own) = versions.iter().position(|version| version.write == id) else { continue };
            self.durable.set(Bytes(at), versions[own].content());
            versions.drain(..=own);
            if versions.is_empty() {
                self.unflushed.remove(&at);
            }
        }
    }

    /// Ends a write that failed: what reads see of it stays, and a power cut may leave any of it.
    ///
    /// # Panics
    /// When the write is not under way.
    pub fn abandon(&mut self, id: WriteId) {
        let Write { offset, ref payload } = self.writes[&id];
        for at in (offset.0..offset.0 + payload.len().0).step_by(SECTOR) {
            // Whatever is written from now on replaces what may be there of it.
            let Some(versions) = self.unflushed.get_mut(&at) else { continue };
            let is_unseen = |version: &Version| version.write == id && !version.has_effect;
            if let Some(index) = versions.iter().position(is_unseen) {
                let version = Version { has_effect: true, ..versions.remove(index) };
                let place = versions.iter().take_while(|version| version.has_effect).count();
                versions.insert(place, version);
            }
        }
        self.end(id, End::Doubtful, Unseen::Stays);
    }

    /// Ends a write of which nothing reached the member, though it says so: reads and power cuts never show what had
    /// not taken effect.
    ///
    /// # Panics
    /// When the write is not under way.
    pub fn lose(&mut self, id: WriteId) {
        let Write { offset, payload } = self.writes[&id].clone();
        for (index, at) in (offset.0..offset.0 + payload.len().0).step_by(SECTOR).enumerate() {
            self.note_rot(at, *payload.sector(index));
        }
        self.end(id, End::Doubtful, Unseen::Goes);
    }

    /// A write that was meant for another place. Where it brings what belongs there it does no harm.
    ///
    /// # Panics
    /// As [`Member::issue`].
    pub(crate) fn stray(&mut self, offset: Bytes, payload: Payload) {
        let sectors = (offset.0..offset.0 + payload.len().0).step_by(SECTOR);
        let meant: Vec<(u64, Sector)> = sectors.map(|at| (at, self.meant(at))).collect();
        self.write(offset, payload);
        meant.into_iter().for_each(|(at, meant)| self.note_rot(at, meant));
    }

    /// What the program has written to a sector.
    fn meant(&self, at: u64) -> Sector {
        self.rotten.get(&at).copied().unwrap_or_else(|| *self.current.sector(Bytes(at)))
    }

    /// Notes whether reads see something else of a sector than was meant to be there.
    fn note_rot(&mut self, at: u64, meant: Sector) {
        if *self.current.sector(Bytes(at)) == meant {
            self.rotten.remove(&at);
        } else {
            self.rotten.insert(at, meant);
        }
    }

    /// Whether reads see something else of one of so many bytes than the program has written there, as far as is known
    /// since a power cut.
    #[must_use]
    pub(crate) fn is_rotten(&self, offset: Bytes, len: Bytes) -> bool {
        self.rotten.range(offset.0..offset.0 + len.0).next().is_some()
    }

    /// Makes the medium unable to give back what it holds of so many bytes, until they are written.
    pub(crate) fn spoil(&mut self, offset: Bytes, len: Bytes) {
        self.unreadable.extend((offset.0..offset.0 + len.0).step_by(SECTOR));
    }

    /// Makes the medium give back what it holds.
    pub(crate) fn recuperate(&mut self) {
        self.unreadable.clear();
    }

    /// Whether the medium does not give back one of so many bytes.
    #[must_use]
    pub(crate) fn is_unreadable(&self, offset: Bytes, len: Bytes) -> bool {
        self.unreadable.range(offset.0..offset.0 + len.0).next().is_some()
    }

    /// Whether there is anything that it does not give back.
    #[must_use]
    pub(crate) fn is_spoilt(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// A write from its begin to its completion.
    ///
    /// # Panics
    /// As [`Member::issue`].
    pub fn write(&mut self, offset: Bytes, payload: Payload) {
        let id = self.issue(offset, payload);
        self.complete(id);
    }

    /// Begins a flush.
    #[must_use]
    pub fn flush_begins(&self) -> FlushMark {
        FlushMark(self.clock)
    }

    /// Ends a flush: what had completed at its begin is durable.
    pub fn flush_ends(&mut self, mark: FlushMark) {
        let Self { durable, unflushed, .. } = self;
        unflushed.retain(|&offset, versions| {
            let is_covered = |version: &Version| matches!(version.end, End::Completed(at) if at <= mark.0);
            if let Some(last) = versions.iter().rposition(is_covered) {
                durable.set(Bytes(offset), versions[last].content());
                versions.drain(..=last);
            }
            !versions.is_empty()
        });
    }

    /// Ends a flush that failed: what it was to cover may be lost though later flushes succeed.
    pub(crate) fn flush_fails(&mut self, mark: FlushMark) {
        for version in self.unflushed.values_mut().flatten() {
            if matches!(version.end, End::Completed(at) if at <= mark.0) {
                version.end = End::Doubtful;
            }
        }
    }

    /// Whether a flush that failed, or a write, has left something that no later flush covers.
    #[must_use]
    pub(crate) fn has_doubts(&self) -> bool {
        self.unflushed.values().flatten().any(|version| version.end == End::Doubtful)
    }

    /// A flush from its begin to its end.
    pub fn flush(&mut self) {
        self.flush_ends(self.flush_begins());
    }

    /// Copies out what reads see.
    ///
    /// # Panics
    /// When the range is not of whole sectors of the member.
    pub fn read(&self, offset: Bytes, into: &mut [u8]) {
        self.current.read(offset, into);
    }

    /// Where a power cut may leave more than one content, ascending, and how many different ones: the durable one is
    /// the first.
    pub fn unflushed(&self) -> impl Iterator<Item = (Bytes, usize)> + '_ {
        let count = |(&offset, versions): (&u64, &Versions)| (Bytes(offset), self.contents(offset, versions).len());
        self.unflushed.iter().map(count).filter(|&(_, count)| count > 1)
    }

    /// The same with the contents themselves: what is durable, then each write's version in the order of the writes,
    /// with the write.
    pub fn versions(
        &self,
    ) -> impl Iterator<Item = (Bytes, &Sector, impl Iterator<Item = (WriteId, &Sector)> + Clone)> + '_ {
        self.unflushed.iter().map(|(&offset, versions)| {
            let versions = versions.iter().map(|version| (version.write, version.content()));
            (Bytes(offset), self.durable.sector(Bytes(offset)), versions)
        })
    }

    /// What a power cut leaves. `choose` says for each sector of [`Member::unflushed`], by its byte offset, which of so
    /// many contents: 0 is the durable one, the others follow in the order of their writes.
    ///
    /// # Panics
    /// When the choice is not below the number of contents.
    #[must_use]
    pub fn cut(&self, mut choose: impl FnMut(Bytes, usize) -> usize) -> Self {
        let mut image = self.durable.clone();
        for (&offset, versions) in &self.unflushed {
            let contents = self.contents(offset, versions);
            if contents.len() > 1 {
                image.set(Bytes(offset), contents[choose(Bytes(offset), contents.len())]);
            }
        }
        Self { unreadable: self.unreadable.clone(), ..Self::of(image) }
    }

    /// Ends every write under way as the death of the program does that began them: `takes_effect` says for each
    /// sector, by its byte offset, whether it gets that far. Nothing more is durable than before.
    pub fn kill(&mut self, mut takes_effect: impl FnMut(Bytes) -> bool) {
        for id in self.writes.keys().copied().collect::<Vec<_>>() {
            let Write { offset, ref payload } = self.writes[&id];
            for at in (0..payload.len().0).step_by(SECTOR) {
                if takes_effect(Bytes(offset.0 + at)) {
                    self.take_effect(id, at..at + SECTOR as u64);
                }
            }
            // The kernel knows of what it has taken in, and flushes it.
            self.clock += 1;
            self.end(id, End::Completed(self.clock), Unseen::Goes);
        }
    }

    /// Changes bits of a sector behind everybody's back, durably.
    ///
    /// # Panics
    /// When the offset is not a sector's of the member.
    pub fn rot(&mut self, offset: Bytes, byte: usize, mask: u8) {
        let meant = self.meant(offset.0);
        let mut content = *self.current.sector(offset);
        content[byte] ^= mask;
        self.current.set(offset, &content);
        self.durable.set(offset, &content);
        self.note_rot(offset.0, meant);
        // Writes under way may still get there.
        if let Some(versions) = self.unflushed.get_mut(&offset.0) {
            versions.retain(|version| version.end == End::UnderWay);
            if versions.is_empty() {
                self.unflushed.remove(&offset.0);
            }
        }
    }

    /// The superblock that counts, as reads see it.
    ///
    /// # Errors
    /// When there is none; see [`newest`].
    pub fn superblock(&self) -> Result<Superblock, SuperblockError> {
        superblock_of(&self.current)
    }

    /// The list of bad blocks of a member with that superblock.
    ///
    /// # Panics
    /// When it is damaged: nothing here damages both of its copies.
    #[must_use]
    pub fn bad_blocks(&self, own: &Superblock) -> BadBlocks {
        bad_blocks_of(&self.current, own)
    }

    /// The different contents of a sector: the durable one, then the versions'.
    fn contents<'a>(&'a self, offset: u64, versions: &'a Versions) -> SmallVec<[&'a Sector; 4]> {
        let mut contents: SmallVec<[&Sector; 4]> = SmallVec::new();
        contents.push(self.durable.sector(Bytes(offset)));
        for version in versions {
            if !contents.contains(&version.content()) {
                contents.push(version.content());
            }
        }
        contents
    }

    /// Ends a write's versions.
    fn end(&mut self, id: WriteId, end: End, unseen: Unseen) {
        let Write { offset, payload } = self.writes.remove(&id).expect("a write that ends is under way");
        for at in (offset.0..offset.0 + payload.len().0).step_by(SECTOR) {
            let Some(versions) = self.unflushed.get_mut(&at) else { continue };
            versions.retain(|version| version.write != id || version.has_effect || unseen == Unseen::Stays);
            versions.iter_mut().filter(|version| version.write == id).for_each(|version| version.end = end);
        }
    }
}
