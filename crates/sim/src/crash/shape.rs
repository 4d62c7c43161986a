//! The arrays whose crashes are enumerated: the smallest of every level, each in every way of being kept consistent
//! that suits it; some with a journal, and some with log devices.
//!
//! They hold content that nobody else writes, so that whatever is computed from a wrong parity shows.

use std::fmt;

use uraid_io::disk::log_place;
use uraid_io::format::Epoch;
use uraid_io::format::log_device::LogHeader;
use uraid_io::format::sums::{BlockNumber, PAGE_BYTES, Page, PageNumber, Tag};
use uraid_io::format::superblock::{
    Area, Areas, Consistency, Integrity, LogDevices, LogIndex, MEMBER_MIN, Revision, Superblock,
};
use uraid_layout::field;
use uraid_layout::{
    Bytes, Cell, Geometry, Lba, Level, Location, MemberIndex, MemberSet, Placement, Rotation, SECTOR_BYTES, Sectors,
    Spec, StripeId,
};
use uuid::Uuid;

use crate::dst::model::{Model, Number, content};
use crate::image::{Image, SECTOR, Sector};
use crate::member::Member;
use crate::members::Members;

/// Parity stripes of an array: workloads touch the first, and the second must stay as it is.
const STRIPES: u64 = 2;

const CHUNK: Bytes = Bytes(4096);

/// An array as it is before anything happens to it.
#[derive(Debug)]
pub struct Shape {
    /// Its geometry.
    pub geometry: Geometry,
    /// How it is kept consistent.
    pub consistency: Consistency,
    /// Whether it has checksums.
    pub integrity: Integrity,
    /// Whether flushes put pages into a journal: its log has room for one.
    pub has_journal: bool,
    /// How many log devices it has.
    pub logs: u8,
    /// Its members: marked clean, in agreement, all of it durable. Behind them and one more seat are its log devices:
    /// see [`Shape::log_slot`].
    pub members: Members,
    /// What it holds.
    pub model: Model,
    /// The member areas, the same on all.
    pub areas: Areas,
    /// What a member holds that comes new: anything, where data will be.
    pub(super) newcomer: Member,
}

const RAID6: Level = Level::Raid6 { rotation: Rotation::LeftSymmetric };

impl Shape {
    /// The levels that there are, by the name in [`Shape::level`].
    pub const LEVELS: [&'static str; 7] = ["0", "1", "10", "5", "6", "rm2-m2", "rm2-m3"];

    /// Every array.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let (log, bitmap, none) = (Consistency::Log, Consistency::Bitmap, Consistency::None);
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let rm2 = |height| Level::Rm2 { height, placement: Placement::Adjacent };
        [
            (Level::Raid0, 3, vec![none]),
            (Level::Raid1, 3, vec![bitmap, log, none]),
            (Level::Raid10 { copies: 2 }, 4, vec![bitmap, log, none]),
            (raid5, 4, vec![log, none]),
            (RAID6, 5, vec![log, none]),
            (rm2(2), 5, vec![log, none]),
            (rm2(3), 7, vec![log, none]),
        ]
        .into_iter()
        .flat_map(|(level, members, ways)| ways.into_iter().map(move |way| Self::new(level, members, way)))
        .collect()
    }

    /// Every level with checksums, which need a log. Only whole blocks of these are written.
    #[must_use]
    pub(crate) fn all_checked() -> Vec<Self> {
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let rm2 = |height| Level::Rm2 { height, placement: Placement::Adjacent };
        let mirrored = [(Level::Raid0, 3), (Level::Raid1, 3), (Level::Raid10 { copies: 2 }, 4)];
        let parity = [(raid5, 4), (RAID6, 4), (rm2(2), 5), (rm2(3), 7)];
        mirrored.into_iter().chain(parity).map(|(level, members)| Self::checked(level, members)).collect()
    }

    /// Arrays in which flushes put pages into a journal.
    fn all_journaled() -> Vec<Self> {
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let rm2 = |height| Level::Rm2 { height, placement: Placement::Adjacent };
        [(raid5, 4), (RAID6, 4), (rm2(2), 5), (rm2(3), 7)]
            .into_iter()
            .map(|(level, members)| Self::with_log(level, members, 4))
            .collect()
    }

    /// Arrays with two log devices that mirror each other, without a journal and with one.
    fn all_logged() -> Vec<Self> {
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let rm2 = Level::Rm2 { height: 2, placement: Placement::Adjacent };
        [(Level::Raid1, 3, 1), (raid5, 4, 1), (raid5, 4, 4), (rm2, 5, 4)]
            .into_iter()
            .map(|(level, members, times)| Self::with_log_devices(level, members, times))
            .collect()
    }

    /// Every array, without checksums and with, with a journal, and with log devices.
    #[must_use]
    pub fn every() -> Vec<Self> {
        let with_log = Self::all_checked().into_iter().chain(Self::all_journaled()).chain(Self::all_logged());
        Self::all().into_iter().chain(with_log).collect()
    }

    /// A small array.
    ///
    /// # Panics
    /// When there is no such array.
    #[must_use]
    pub fn new(level: Level, members: u8, consistency: Consistency) -> Self {
        Self::of(level, members, (consistency, 1, 0), Integrity::None, STRIPES)
    }

    /// A small array of so many parity stripes, with a log so many times as large as it has to be.
    ///
    /// # Panics
    /// When there is no such array.
    #[must_use]
    pub(super) fn longer(level: Level, members: u8, consistency: Consistency, times: u64, stripes: u64) -> Self {
        Self::of(level, members, (consistency, times, 0), Integrity::None, stripes)
    }

    /// A small array with checksums.
    ///
    /// # Panics
    /// When there is no such array.
    #[must_use]
    pub fn checked(level: Level, members: u8) -> Self {
        Self::of(level, members, (Consistency::Log, 1, 0), Integrity::Crc32, STRIPES)
    }

    /// A small array with a log so many times as large as it has to be.
    ///
    /// # Panics
    /// When there is no such array.
    #[must_use]
    pub(crate) fn with_log(level: Level, members: u8, times: u64) -> Self {
        Self::of(level, members, (Consistency::Log, times, 0), Integrity::None, STRIPES)
    }

    /// A small array whose log, so many times as large as it has to be, is on two log devices.
    ///
    /// # Panics
    /// When there is no such array.
    #[must_use]
    pub(super) fn with_log_devices(level: Level, members: u8, times: u64) -> Self {
        Self::of(level, members, (Consistency::Log, times, 2), Integrity::None, STRIPES)
    }

    fn of(
        level: Level,
        members: u8,
        (consistency, times, logs): (Consistency, u64, u8),
        integrity: Integrity,
        stripes: u64,
    ) -> Self {
        // Two blocks, where only these can be written, so that a chunk can be written in part.
        let chunk = if integrity == Integrity::None { CHUNK } else { Bytes(2 * CHUNK.0) };
        let rows = if let Level::Rm2 { height, .. } = level { u64::from(height) } else { 1 };
        let member_size = Sectors(stripes * rows * chunk.0 / SECTOR_BYTES);
        let geometry = Geometry::new(Spec { level, members, chunk, member_size }).expect("an array of the list");
        let areas = areas(rows * chunk.0, times, integrity);
        let mut superblocks = superblocks(&geometry, areas, consistency, integrity);
        let table = LogDevices::new(areas.log.size, (0..logs).map(|log| uuid(300 + u64::from(log))), Epoch(1));
        superblocks.iter_mut().for_each(|own| own.logs = Some(table.clone()).filter(|_| logs > 0));
        let mut images: Vec<Image> =
            superblocks.iter().map(|superblock| Member::formatted(superblock).current().clone()).collect();
        let mut model = Model::new(geometry.capacity());
        let filling = model.begin(Lba(0), geometry.capacity(), false);
        fill(&mut images, &geometry, areas.data.offset, filling.number);
        if integrity == Integrity::Crc32 {
            images.iter_mut().zip(&superblocks).for_each(|(image, own)| sum_up(image, own, &geometry));
        }
        model.replied(filling, true);
        model.settle();
        let device = |_| Some(Member::zeroed(LogHeader::size_min(areas.log.size, members)));
        let members =
            Members::of(behind(images.into_iter().map(|image| Some(Member::of(image))), (0..logs).map(device)));
        let newcomer = newcomer(&geometry, areas);
        let has_journal = superblocks.iter().all(|own| own.journal_area().is_some());
        Self { geometry, consistency, integrity, has_journal, logs, members, model, areas, newcomer }
    }

    /// Where a log device is among the members here: a set of members has no room for the places that disks have for
    /// them.
    #[must_use]
    pub fn log_slot(&self, log: LogIndex) -> MemberIndex {
        MemberIndex(self.geometry.spec().members + 1 + log.0)
    }

    /// Where all of them are.
    #[must_use]
    pub fn log_slots(&self) -> MemberSet {
        (0..self.logs).map(|log| self.log_slot(LogIndex(log))).collect()
    }

    /// The members with the log devices at their places, as a [`SimDisk`](crate::disk::SimDisk) has them.
    #[must_use]
    pub(crate) fn apart(&self) -> Members {
        let slots = self.geometry.all_members().iter().map(|slot| self.members.get(slot).cloned()).collect();
        let logs = self.log_slots().iter().map(|slot| self.members.get(slot).cloned()).collect();
        Members::of(slots).with_logs(logs)
    }

    /// What has become of [these](Shape::apart), with the log devices behind the members again.
    #[must_use]
    pub(crate) fn together(&self, apart: &Members) -> Members {
        let slots = self.geometry.all_members().iter().map(|slot| apart.get(slot).cloned());
        let logs = (0..self.logs).map(|log| apart.get(log_place(LogIndex(log))).cloned());
        Members::of(behind(slots, logs))
    }

    /// What [states](super::states) are told apart by: how far what a member holds is from this.
    pub(super) fn base(&self, slot: MemberIndex) -> &Image {
        self.members.get(slot).unwrap_or(&self.newcomer).current()
    }

    /// A new member's superblock, for a slot of an array of which this is what members say.
    pub(super) fn new_superblock(&self, truth: &Superblock, slot: MemberIndex) -> Superblock {
        let member = Uuid::from_u64_pair(0xC0FF_EE00, 200);
        let mut own = Superblock { member, slot, areas: self.areas, revision: Revision(0), ..truth.clone() };
        own.slots[slot.index()].member = member;
        own
    }

    /// The level's name here.
    #[must_use]
    pub fn level(&self) -> &'static str {
        match self.geometry.spec().level {
            Level::Raid0 => Self::LEVELS[0],
            Level::Raid1 => Self::LEVELS[1],
            Level::Raid10 { .. } => Self::LEVELS[2],
            Level::Raid5 { .. } => Self::LEVELS[3],
            Level::Raid6 { .. } => Self::LEVELS[4],
            Level::Rm2 { height: 2, .. } => Self::LEVELS[5],
            Level::Rm2 { .. } => Self::LEVELS[6],
        }
    }

    /// The name of the way in which it is kept consistent.
    #[must_use]
    pub fn mode(&self) -> &'static str {
        match self.consistency {
            Consistency::Log => "log",
            Consistency::Bitmap => "bitmap",
            Consistency::None => "none",
        }
    }

    /// Where a sector of a member's data area is in the member.
    #[must_use]
    pub fn offset(&self, at: Location) -> Bytes {
        Bytes(self.areas.data.offset.0 + at.sector.0 * SECTOR_BYTES)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level(), self.mode())?;
        f.write_str(if self.integrity == Integrity::Crc32 { "/crc32" } else { "" })?;
        f.write_str(if self.has_journal { "/journal" } else { "" })?;
        f.write_str(if self.logs > 0 { "/devices" } else { "" })
    }
}

/// Log devices behind members and one more seat, as [`Shape::log_slot`] counts; without any there is no seat.
pub(super) fn behind<T>(
    members: impl Iterator<Item = Option<T>>,
    logs: impl ExactSizeIterator<Item = Option<T>>,
) -> Vec<Option<T>> {
    let seat = (logs.len() > 0).then_some(None);
    members.chain(seat).chain(logs).collect()
}

/// Areas with the smallest log that the engine takes, as recovery reads all of it, or a few times that.
fn areas(stripe: u64, times: u64, integrity: Integrity) -> Areas {
    let areas = Areas::new(MEMBER_MIN, Bytes(0), integrity).expect("a member has room for its areas");
    let size = Bytes(2 * (stripe + 4 * 4096) * times);
    Areas { log: Area { size, ..areas.log }, ..areas }
}

fn uuid(number: u64) -> Uuid {
    Uuid::from_u64_pair(0xC0FF_EE00, number)
}

fn superblocks(geometry: &Geometry, areas: Areas, consistency: Consistency, integrity: Integrity) -> Vec<Superblock> {
    let spec = *geometry.spec();
    let members: Vec<(Uuid, Areas)> = (1..=u64::from(spec.members)).map(|number| (uuid(number), areas)).collect();
    let superblocks = Superblock::of_new_array(uuid(100), spec, &members).into_iter();
    superblocks.map(|new| Superblock { consistency, integrity, ..new }).collect()
}

fn newcomer(geometry: &Geometry, areas: Areas) -> Member {
    let mut image = Image::zeroed(areas.member_size);
    let used = geometry.used_sectors().bytes().0;
    (0..used).step_by(SECTOR).for_each(|at| image.set(Bytes(areas.data.offset.0 + at), &[0xA5; SECTOR]));
    Member::of(image)
}

/// Gives every data sector the content of a write, and parity what follows from it.
fn fill(images: &mut [Image], geometry: &Geometry, data: Bytes, number: Number) {
    for lba in (0..geometry.capacity().0).map(Lba) {
        let (bytes, at) = (content(number, lba), geometry.locate(lba));
        images[at.member.index()].set(Bytes(data.0 + at.sector.0 * SECTOR_BYTES), &bytes);
    }
    for stripe in (0..geometry.stripes().0).map(StripeId) {
        for group in geometry.map(stripe).groups() {
            for column in 0..geometry.chunk().0 {
                let place = |cell: Cell| {
                    let offset = data.0 + (geometry.sector(stripe, cell).0 + column) * SECTOR_BYTES;
                    (geometry.member(cell).index(), Bytes(offset))
                };
                let mut sum: Sector = [0; SECTOR];
                for (cell, factor) in group.data_terms() {
                    let (member, offset) = place(cell);
                    field::add_multiple(&mut sum, images[member].sector(offset), factor);
                }
                let (member, offset) = place(group.parity);
                images[member].set(offset, &sum);
            }
        }
    }
}

/// Gives every block of a member its checksum.
fn sum_up(image: &mut Image, own: &Superblock, geometry: &Geometry) {
    let (tag, mut page) = (Tag::new(own.array, own.member), Page::unknown());
    for block in 0..geometry.used_sectors().bytes().0 / CHUNK.0 {
        let mut content = [0; 4096];
        image.read(Bytes(own.areas.data.offset.0 + block * CHUNK.0), &mut content);
        let (number, index) = BlockNumber(block).place();
        assert_eq!(number, PageNumber(0), "a small member has one page of checksums");
        page.set(index, tag.sum(BlockNumber(block), &content));
    }
    let mut bytes = [0; PAGE_BYTES];
    page.encode(&tag, PageNumber(0), &mut bytes);
    for (at, sector) in (own.areas.sums.offset.0..).step_by(SECTOR).zip(bytes.chunks_exact(SECTOR)) {
        image.set(Bytes(at), sector.first_chunk().expect("a whole sector"));
    }
}
