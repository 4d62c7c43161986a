//! What a superblock says, and when that makes sense.

use uraid_layout::reshape::Course;
use uraid_layout::{Bytes, Geometry, GeometryError, Level, MemberIndex, Sectors, Spec, StripeId};
use uuid::Uuid;

use super::areas::{Area, Areas};
use super::logs::{LogChange, LogChangeError, LogDevices};
use super::reshape::Reshape;
use super::scrub::{ScrubHistory, ScrubRun};
use super::settings::{Allocation, Consistency, Integrity, NAME_BYTES_MAX, SECTOR_SIZES};
use crate::format::BLOCK;
use crate::format::bitmap::{Regions, Seal};
use crate::format::units::{Epoch, UnixSeconds};

/// The smallest part of a journal.
const JOURNAL_BYTES_MIN: Bytes = Bytes(64 << 10);

/// The highest epoch and revision, so that the next one always fits.
const COUNT_MAX: u64 = u64::MAX / 2;

/// Counts the versions of a member's superblock; even and odd ones have a slot each at the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// What one member knows of its array and of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The array.
    pub array: Uuid,
    /// The array's name, at most [`NAME_BYTES_MAX`] bytes and without NUL; may be empty.
    pub name: String,
    /// When the array was created.
    pub created: UnixSeconds,
    /// Level, chunk, members, and how much of each member the array uses.
    pub spec: Spec,
    /// This member.
    pub member: Uuid,
    /// This member's place in the array.
    pub slot: MemberIndex,
    /// Where things are on this member.
    pub areas: Areas,
    /// What keeps stripes consistent over an unclean stop.
    pub consistency: Consistency,
    /// Where the log is if it is not on the members: the array's log devices.
    pub logs: Option<LogDevices>,
    /// How content is checked.
    pub integrity: Integrity,
    /// Which run of the log counts: a record of the log belongs to the array's state when it carries this. No client
    /// can guess it, so no content that looks like a record is taken for one.
    pub generation: Uuid,
    /// The same of the journal of pages, which goes on over an unclean stop for as long as it has any.
    pub journal: Uuid,
    /// In which round this was recorded.
    pub epoch: Epoch,
    /// Which version of this member's superblock this is.
    pub revision: Revision,
    /// Whether the array was stopped cleanly: no write was under way.
    pub is_clean: bool,
    /// Of an array whose creation has not ended: its members may hold anything, and get zeros first, with or without
    /// space of their own.
    pub initialising: Option<Allocation>,
    /// Of an array that was new a while ago: which of its regions are blank.
    pub blank: Option<Blank>,
    /// Of an array that is getting another shape: which, and how far it has come.
    pub reshape: Option<Reshape>,
    /// The array's sectors: offsets and lengths of all I/O in data areas are multiples of it. Chosen when the array is
    /// created, and never changed.
    pub sector_size: Bytes,
    /// Where a scrub is, and when the last one was finished.
    pub scrub: ScrubHistory,
    /// Every member of the array in slot order, this one too.
    pub slots: Vec<SlotEntry>,
}

/// An array of which no more was written yet than its map says. What is *blank* are zeros to clients, whatever the
/// members hold there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blank {
    /// Since when: the map belongs to it.
    pub since: Epoch,
    /// How large its regions are: of 2^shift parity stripes.
    pub shift: u32,
    /// Whether zeros take space of their own.
    pub allocation: Allocation,
}

/// What the array last knew of one of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotEntry {
    /// The member in that slot.
    pub member: Uuid,
    /// Whether its content is current.
    pub state: SlotState,
    /// The round that put this state on record, of which a rebuild's progress is no change.
    pub since: Epoch,
}

/// Whether a member's content is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It has every write.
    Active,
    /// It has missed writes, or failed; its content counts for nothing.
    Failed,
    /// It has every write since it joined, and of what was there before only some.
    Rebuilding {
        /// The first parity stripe of which it may not have everything.
        upto: StripeId,
        /// From there on it lacks everything, or may; otherwise only what is in regions whose bits are set in the
        /// write-intent bitmap.
        is_whole: bool,
    },
}

impl SlotState {
    /// Whether the member is written: it belongs to the array.
    #[must_use]
    pub fn is_written(self) -> bool {
        self != Self::Failed
    }

    /// Whether the member's content is being made.
    #[must_use]
    pub fn is_rebuilding(self) -> bool {
        matches!(self, Self::Rebuilding { .. })
    }

    /// Whether `next` is just how far this state has come.
    pub(crate) fn goes_on_as(self, next: Self) -> bool {
        self == next || self.is_rebuilding() && next.is_rebuilding()
    }
}

/// Why bytes are no superblock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// There is none.
    #[error(
        "has no uraid superblock: it was never a member, left its array in a reshape, or was wiped or overwritten. \
         Leave it out where the array is whole without it; otherwise `uraid serve --degraded` starts without it"
    )]
    NoMagic,
    /// Torn or damaged.
    #[error("the superblock is damaged: its checksum is {found:#010x} and should be {expected:#010x}")]
    BadChecksum {
        /// What the bytes give.
        expected: u32,
        /// What is stored.
        found: u32,
    },
    /// Written by a later program.
    #[error("the superblock has format version {version}, this program knows version 1: use a newer uraid")]
    UnknownVersion {
        /// The stored version.
        version: u32,
    },
    /// Written by a later program.
    #[error("the array uses features {flags:#x} that this program does not know: use a newer uraid")]
    UnknownFeatures {
        /// The unknown incompatible features.
        flags: u64,
    },
    /// The member was another program's, and is not yet this one's.
    #[error(
        "the conversion of array {array} was cut off: `uraid convert --undo FILE` with the file that was named then \
         takes it back, and it can be begun again"
    )]
    Converting {
        /// The array that it is to belong to.
        array: Uuid,
        /// The member.
        member: Uuid,
    },
    /// A field makes no sense although the checksum is right.
    #[error("the superblock's {field} is wrong")]
    Field {
        /// Which field.
        field: &'static str,
    },
    /// No array has this geometry.
    #[error("the superblock's geometry is wrong")]
    Geometry(#[from] GeometryError),
    /// The copies on one member belong to different arrays or members.
    #[error(
        "the copies of the superblock belong to different arrays, {first} and {second}: the creation of an array was \
         interrupted; create it again with --force"
    )]
    Mixed {
        /// One copy's array.
        first: Uuid,
        /// Another copy's array.
        second: Uuid,
    },
}

impl Superblock {
    /// What the array is read and written in: its sectors, or blocks where each has a checksum.
    #[must_use]
    pub fn unit(&self) -> Sectors {
        let sector = self.sector_size.whole_sectors();
        if self.integrity == Integrity::None { sector } else { sector.max(BLOCK) }
    }

    /// The first superblocks of the members of a new array, whose UUIDs and areas are given in the order of slots: all
    /// active, and stopped cleanly. Whoever makes it adds what an array may have: a name, the time, and what keeps its
    /// stripes consistent and checks them.
    ///
    /// # Panics
    /// When there are more members than an array can have.
    #[must_use]
    pub fn of_new_array(array: Uuid, spec: Spec, members: &[(Uuid, Areas)]) -> Vec<Self> {
        let slots: Vec<SlotEntry> = members
            .iter()
            .map(|&(member, _)| SlotEntry { member, state: SlotState::Active, since: Epoch(1) })
            .collect();
        let one = |(slot, &(member, areas)): (usize, &(Uuid, Areas))| Self {
            array,
            name: String::new(),
            created: UnixSeconds(0),
            spec,
            member,
            slot: MemberIndex(u8::try_from(slot).expect("members are at most 64")),
            areas,
            consistency: Consistency::None,
            logs: None,
            integrity: Integrity::None,
            generation: Uuid::nil(),
            journal: Uuid::nil(),
            epoch: Epoch(1),
            revision: Revision(0),
            is_clean: true,
            initialising: None,
            blank: None,
            reshape: None,
            sector_size: SECTOR_SIZES[0],
            scrub: ScrubHistory::default(),
            slots: slots.clone(),
        };
        members.iter().enumerate().map(one).collect()
    }

    /// Where this version of the superblock is written: its slot at the head, and the last copy. One flush for both is
    /// enough, since the other slot at the head keeps the version before.
    #[must_use]
    pub fn write_positions(&self) -> [Bytes; 2] {
        let [even, odd, last] = self.areas.copies();
        let head = if self.revision.0.is_multiple_of(2) || planted!(OneSlot) { even } else { odd };
        [head, if planted!(HeadOnly) { head } else { last }]
    }

    /// Where the version before this one is, and the next one goes: the other slot at the head.
    #[must_use]
    pub fn other_position(&self) -> Bytes {
        let [even, odd, _] = self.areas.copies();
        if self.revision.0.is_multiple_of(2) { odd } else { even }
    }

    /// Whether the array's log devices can change so.
    ///
    /// # Errors
    /// Why they can't.
    pub fn check_logs(&self, change: LogChange) -> Result<(), LogChangeError> {
        self.logs.as_ref().ok_or(LogChangeError::OnMembers)?.check(change)
    }

    /// What the bitmap on the members has to belong to; none where what is there counts for nothing: in an array
    /// without a bitmap, and in one with a log while all members have everything.
    #[must_use]
    pub fn seal(&self) -> Option<Seal> {
        let since = match self.consistency {
            Consistency::None => return None,
            Consistency::Bitmap => Epoch(0),
            Consistency::Log => {
                let lacking = self.slots.iter().filter(|entry| entry.state != SlotState::Active);
                let since = lacking.map(|entry| entry.since).min()?;
                if planted!(BitsOfAnyTime) { Epoch(0) } else { since }
            }
        };
        Some(Seal { array: self.array, since })
    }

    /// What the map of blank regions has to belong to, and its regions; none where nothing is blank.
    ///
    /// # Panics
    /// When the superblock does not pass [`Superblock::check`].
    #[must_use]
    pub fn blank_map(&self) -> Option<(Seal, Regions)> {
        let Blank { since, shift, .. } = self.blank?;
        let geometry = Geometry::new(self.spec).expect("a checked superblock has a geometry");
        let regions = Regions::of_shift(&geometry, shift).expect("a checked superblock has regions");
        Some((Seal { array: self.array, since }, regions))
    }

    /// The way that the array is on to another shape, if it is.
    ///
    /// # Panics
    /// When the superblock does not pass [`Superblock::check`].
    #[must_use]
    pub fn course(&self) -> Option<Course> {
        self.reshape.map(|reshape| reshape.course(self.spec).expect("a checked superblock has a way"))
    }

    /// The shapes that the array has: one, or while it is being reshaped the one that it had and the other, as far as
    /// they have content.
    ///
    /// # Panics
    /// When the superblock does not pass [`Superblock::check`].
    #[must_use]
    pub fn shapes(&self) -> Vec<Geometry> {
        match self.course() {
            Some(course) => vec![course.from().clone(), course.to().clone()],
            None => vec![Geometry::new(self.spec).expect("a checked superblock has a geometry")],
        }
    }

    /// Where this member's log is: on the member itself, or, where the array has log devices, on each of them.
    #[must_use]
    pub fn log_area(&self) -> Area {
        self.logs.as_ref().map_or(self.areas.log, |logs| logs.area(self.slot))
    }

    /// Where the log's ring is: in all of its area, or in the first half where the rest is for something else, the
    /// journal of pages or what a reshape saves.
    #[must_use]
    pub fn ring(&self) -> Area {
        let area = self.log_area();
        let is_shared = self.reshape.is_some() || self.journal_area().is_some();
        if is_shared { Area { size: half(area.size), ..area } } else { area }
    }

    /// Where this member's part of the journal of pages is, of an array that has parity and a log: in the second half
    /// of the log's area, where the first half is enough for the log. None while the array is being reshaped.
    #[must_use]
    pub fn journal_area(&self) -> Option<Area> {
        let rows = match self.spec.level {
            Level::Raid5 { .. } | Level::Raid6 { .. } => 1,
            Level::Rm2 { height, .. } => u64::from(height),
            Level::Raid0 | Level::Raid1 | Level::Raid10 { .. } => return None,
        };
        let Area { offset, size } = self.log_area();
        let enough = Areas::log_min(Bytes(self.spec.chunk.0 * rows)).max(JOURNAL_BYTES_MIN);
        let has_room = self.consistency == Consistency::Log && half(size) >= enough;
        let area = Area { offset: Bytes(offset.0 + half(size).0), size: Bytes(size.0 - half(size).0) };
        (has_room && self.reshape.is_none()).then_some(area)
    }

    /// Where an array that is being reshaped saves content: the rest of that area.
    #[must_use]
    pub fn saves(&self) -> Area {
        let (Area { offset, size }, ring) = (self.areas.log, half(self.areas.log.size));
        Area { offset: Bytes(offset.0 + ring.0), size: Bytes(size.0 - ring.0) }
    }

    /// How many slots the array has: those of both shapes while it is being reshaped.
    #[must_use]
    pub fn slot_count(&self) -> u8 {
        self.reshape.map_or(self.spec.members, |reshape| reshape.slots(self.spec))
    }

    /// How much of this member's data area the array uses: in the shapes that it has a place in.
    fn used(&self) -> Sectors {
        let shapes = [Some(self.spec), self.reshape.map(|reshape| reshape.to)];
        let own = shapes.into_iter().flatten().filter(|spec| self.slot.0 < spec.members);
        own.map(|spec| spec.member_size).max().unwrap_or_default()
    }

    /// Whether the fields make sense together.
    ///
    /// # Errors
    /// Which of them does not.
    pub fn check(&self) -> Result<(), SuperblockError> {
        let geometry = Geometry::new(self.spec)?;
        let require = |is_right: bool, field| if is_right { Ok(()) } else { Err(SuperblockError::Field { field }) };
        require(!self.array.is_nil(), "array UUID")?;
        require(!self.member.is_nil(), "member UUID")?;
        require(self.name.len() <= NAME_BYTES_MAX && !self.name.contains('\0'), "name")?;
        require(self.reshape.is_none_or(|reshape| reshape.is_sound(self.spec)), "reshape")?;
        require(self.slot.0 < self.slot_count(), "slot")?;
        require(self.areas.are_sound(self.used()), "area table")?;
        require(self.logs.as_ref().is_none_or(|logs| logs.is_sound(self.epoch)), "table of log devices")?;
        let has_place = self.logs.is_none() || self.consistency == Consistency::Log && self.reshape.is_none();
        require(has_place, "log devices without a log, or in a reshape")?;
        let is_checkable = self.integrity == Integrity::None || self.consistency == Consistency::Log;
        require(is_checkable, "integrity without a log")?;
        let needed = Regions::new(&geometry).bitmap_bytes();
        require(self.consistency == Consistency::None || self.areas.bitmap.size >= needed, "bitmap area")?;
        let has_room = self.integrity == Integrity::None || self.areas.sums_cover(self.used());
        require(has_room, "checksums' area")?;
        require((1..=COUNT_MAX).contains(&self.epoch.0), "epoch")?;
        require(SECTOR_SIZES.contains(&self.sector_size), "sector size")?;
        let is_new = !self.is_clean && self.slots.iter().all(|entry| entry.state == SlotState::Active);
        require(self.initialising.is_none() || is_new, "state of an array that is initialising")?;
        let is_mapped = |blank: Blank| {
            let regions = Regions::of_shift(&geometry, blank.shift);
            let has_room = regions.is_some_and(|regions| self.areas.has_room_for_map(regions.bitmap_bytes()));
            has_room && blank.since <= self.epoch && self.initialising.is_none()
        };
        require(self.blank.is_none_or(is_mapped), "blank regions")?;
        let is_at_rest = self.blank.is_none() && self.initialising.is_none() && self.scrub.run.is_none();
        require(self.reshape.is_none() || is_at_rest, "state of an array that is being reshaped")?;
        require(self.revision.0 <= COUNT_MAX, "revision")?;
        require(self.slots.len() == usize::from(self.slot_count()), "slot table")?;
        require(self.slots[self.slot.index()].member == self.member, "slot table's entry of this member")?;
        let is_past = |entry: &SlotEntry| entry.since <= self.epoch;
        require(self.slots.iter().all(is_past), "slot table's epochs")?;
        let exists = |entry: &SlotEntry| match entry.state {
            SlotState::Rebuilding { upto, .. } => {
                upto <= StripeId(geometry.stripes().0) && geometry.tolerance() > 0 && self.reshape.is_none()
            }
            SlotState::Active | SlotState::Failed => true,
        };
        require(self.slots.iter().all(exists), "slot table's progress")?;
        let is_within = |run: ScrubRun| run.position <= StripeId(geometry.stripes().0);
        require(self.scrub.run.is_none_or(is_within), "scrub")?;
        let mut uuids: Vec<Uuid> = self.slots.iter().map(|entry| entry.member).collect();
        uuids.sort_unstable();
        require(!uuids[0].is_nil() && uuids.windows(2).all(|pair| pair[0] != pair[1]), "slot table's UUIDs")
    }
}

/// Half of an area, in whole blocks.
fn half(size: Bytes) -> Bytes {
    let block = BLOCK.bytes().0;
    Bytes(size.0 / 2 / block * block)
}
