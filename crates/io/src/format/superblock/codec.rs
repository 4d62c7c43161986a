//! The superblock's bytes: little-endian, fixed places, CRC32 over the whole.

use uraid_layout::{Bytes, Lba, Level, MemberIndex, Placement, Rotation, Sectors, Spec, StripeId};
use uuid::Uuid;

use super::areas::{Area, Areas, SUPERBLOCK_BYTES};
use super::content::{Blank, Revision, SlotEntry, SlotState, Superblock, SuperblockError};
use super::logs::{LOGS_MAX, LogDevice, LogDevices};
use super::reshape::Reshape;
use super::scrub::{ScrubFound, ScrubHistory, ScrubMode, ScrubRun};
use super::settings::{Allocation, Consistency, Integrity, NAME_BYTES_MAX, SECTOR_SIZES};
use crate::format::units::{Epoch, UnixSeconds};

/// No text, so that no text file is taken for a member; the line ends tell of a transfer that changed them.
pub(crate) const MAGIC: [u8; 8] = *b"\x8dURAID\r\n";
const VERSION: u32 = 1;

/// The incompatible features: what a program that uses the array must know of. A member with an unknown one is refused.
mod feature {
    pub(super) const BITMAP: u64 = 1;
    pub(super) const LOG: u64 = 2;
    pub(super) const CRC32: u64 = 4;
    pub(super) const INITIALISING: u64 = 8;
    pub(super) const SECTORS: u64 = 16;
    pub(super) const BAD_BLOCKS: u64 = 32;
    pub(super) const BLANK: u64 = 64;
    pub(super) const RESHAPE: u64 = 128;
    pub(super) const LOG_SUMS: u64 = 256;
    pub(super) const LOG_PAGES: u64 = 512;
    pub(super) const LOG_OPEN: u64 = 1024;
    pub(super) const LOG_DEVICES: u64 = 2048;
    pub(super) const CONVERTING: u64 = 4096;
    /// What a log takes.
    pub(super) const LOGGED: u64 = LOG | LOG_SUMS | LOG_PAGES | LOG_OPEN;
    pub(super) const KNOWN: u64 =
        BITMAP | LOGGED | CRC32 | INITIALISING | SECTORS | BAD_BLOCKS | BLANK | RESHAPE | LOG_DEVICES;
}

const FLAG_CLEAN: u8 = 1;
/// Of an array that is initialising, or of which regions are blank: zeros take no space.
const FLAG_SPARSE: u8 = 2;

/// Codes of states, of members and log devices.
const ACTIVE: u8 = 1;
const FAILED: u8 = 2;

/// Of the scrubs: one is owed.
const SCRUB_OWED: u8 = 1;

/// Byte offsets of the fields.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const CHECKSUM: usize = 8;
    pub(super) const VERSION: usize = 12;
    pub(super) const INCOMPATIBLE: usize = 16;
    pub(super) const ARRAY: usize = 32;
    pub(super) const NAME: usize = 48;
    pub(super) const CREATED: usize = 112;
    pub(super) const MEMBER: usize = 120;
    pub(super) const SLOT: usize = 136;
    pub(super) const MEMBERS: usize = 137;
    pub(super) const LEVEL: usize = 138;
    pub(super) const FLAGS: usize = 141;
    pub(super) const ZERO: usize = 142;
    pub(super) const CHUNK: usize = 144;
    pub(super) const USED: usize = 152;
    pub(super) const MEMBER_SIZE: usize = 160;
    pub(super) const DATA: usize = 168;
    pub(super) const BITMAP: usize = 184;
    pub(super) const LOG: usize = 200;
    pub(super) const EPOCH: usize = 216;
    pub(super) const REVISION: usize = 224;
    pub(super) const SUMS: usize = 232;
    pub(super) const GENERATION: usize = 248;
    pub(super) const SCRUB_MODE: usize = 264;
    pub(super) const SECTOR_SIZE: usize = 265;
    pub(super) const SCRUB_FLAGS: usize = 266;
    pub(super) const SCRUB_POSITION: usize = 272;
    pub(super) const SCRUB_MISMATCHED: usize = 280;
    pub(super) const SCRUB_REPAIRED: usize = 288;
    pub(super) const SCRUB_UNCHECKED: usize = 296;
    pub(super) const SCRUB_FINISHED: usize = 304;
    pub(super) const LIST: usize = 312;
    pub(super) const BLANK_SINCE: usize = 328;
    pub(super) const BLANK_SHIFT: usize = 336;
    pub(super) const MARK: usize = 344;
    pub(super) const KEPT: usize = 352;
    pub(super) const SAVED: usize = 360;
    pub(super) const TO_USED: usize = 368;
    pub(super) const TO_CHUNK: usize = 376;
    pub(super) const TO_LEVEL: usize = 380;
    pub(super) const TO_MEMBERS: usize = 383;
    pub(super) const IS_BACK: usize = 384;
    pub(super) const BEFORE: usize = 385;
    pub(super) const SAVE: usize = 392;
    pub(super) const JOURNAL: usize = 400;
    pub(super) const LOG_SHARE: usize = 416;
    pub(super) const LOG_COUNT: usize = 424;
    pub(super) const LOG_TABLE: usize = 432;
    pub(super) const LOG_ENTRY_BYTES: usize = 32;
    pub(super) const TABLE: usize = 1024;
    pub(super) const ENTRY_BYTES: usize = 48;
    pub(super) const STATE: usize = 16;
    pub(super) const WHOLE: usize = 17;
    pub(super) const SINCE: usize = 24;
    pub(super) const UPTO: usize = 32;
}

/// The bytes of a superblock.
///
/// # Panics
/// When the superblock does not pass [`Superblock::check`].
#[must_use]
pub fn encode(superblock: &Superblock) -> [u8; SUPERBLOCK_BYTES] {
    superblock.check().expect("a superblock is sound before it is written");
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    let spec = &superblock.spec;
    put(at::MAGIC, &MAGIC);
    put(at::VERSION, &VERSION.to_le_bytes());
    put(at::INCOMPATIBLE, &features(superblock).to_le_bytes());
    put(at::ARRAY, superblock.array.as_bytes());
    put(at::NAME, superblock.name.as_bytes());
    put(at::CREATED, &superblock.created.0.to_le_bytes());
    put(at::MEMBER, superblock.member.as_bytes());
    put(at::SLOT, &[superblock.slot.0]);
    put(at::MEMBERS, &[spec.members]);
    put(at::LEVEL, &level_bytes(spec.level));
    put(at::FLAGS, &[flags(superblock)]);
    put(at::SECTOR_SIZE, &[sector_code(superblock.sector_size)]);
    put(at::GENERATION, superblock.generation.as_bytes());
    put(at::JOURNAL, superblock.journal.as_bytes());
    put(at::CHUNK, &chunk_bytes(spec.chunk));
    put(at::USED, &spec.member_size.0.to_le_bytes());
    let areas = &superblock.areas;
    put(at::MEMBER_SIZE, &areas.member_size.0.to_le_bytes());
    let places = [
        (at::DATA, areas.data),
        (at::BITMAP, areas.bitmap),
        (at::LOG, areas.log),
        (at::SUMS, areas.sums),
        (at::LIST, areas.bad_blocks),
    ];
    for (at, area) in places {
        put(at, &area.offset.0.to_le_bytes());
        put(at + 8, &area.size.0.to_le_bytes());
    }
    if let Some(Blank { since, shift, .. }) = superblock.blank {
        put(at::BLANK_SINCE, &since.0.to_le_bytes());
        put(at::BLANK_SHIFT, &shift.to_le_bytes());
    }
    if let Some(Reshape { to, kept, mark, is_back, saved, save, before }) = superblock.reshape {
        put(at::MARK, &mark.0.to_le_bytes());
        put(at::KEPT, &kept.0.to_le_bytes());
        put(at::SAVED, &saved.0.to_le_bytes());
        put(at::TO_USED, &to.member_size.0.to_le_bytes());
        put(at::TO_CHUNK, &chunk_bytes(to.chunk));
        put(at::TO_LEVEL, &level_bytes(to.level));
        put(at::TO_MEMBERS, &[to.members]);
        put(at::IS_BACK, &[u8::from(is_back)]);
        put(at::SAVE, &save.to_le_bytes());
        put(at::BEFORE, &[CONSISTENCIES.iter().position(|&one| one == before).expect("all have a code") as u8]);
    }
    superblock.logs.iter().for_each(|logs| put_log_devices(logs, &mut put));
    put(at::EPOCH, &superblock.epoch.0.to_le_bytes());
    put(at::REVISION, &superblock.revision.0.to_le_bytes());
    if let Some(ScrubRun { mode, position, found }) = superblock.scrub.run {
        put(at::SCRUB_MODE, &[mode.code()]);
        put(at::SCRUB_POSITION, &position.0.to_le_bytes());
        put(at::SCRUB_MISMATCHED, &found.mismatched.0.to_le_bytes());
        put(at::SCRUB_REPAIRED, &found.repaired.0.to_le_bytes());
        put(at::SCRUB_UNCHECKED, &found.unchecked.0.to_le_bytes());
    }
    put(at::SCRUB_FLAGS, &[if superblock.scrub.is_owed { SCRUB_OWED } else { 0 }]);
    put(at::SCRUB_FINISHED, &superblock.scrub.finished.map_or(0, |at| at.0).to_le_bytes());
    for (slot, entry) in superblock.slots.iter().enumerate() {
        let start = at::TABLE + slot * at::ENTRY_BYTES;
        let (code, is_whole, upto) = state_fields(entry.state);
        put(start, entry.member.as_bytes());
        put(start + at::STATE, &[code, u8::from(is_whole)]);
        put(start + at::SINCE, &entry.since.0.to_le_bytes());
        put(start + at::UPTO, &upto.0.to_le_bytes());
    }
    let checksum = checksum(&bytes);
    bytes[at::CHECKSUM..at::CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The bytes of a superblock that says of its member that it is being converted, and that nobody opens.
///
/// # Panics
/// As [`encode`].
#[must_use]
pub(crate) fn encode_converting(superblock: &Superblock) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = encode(superblock);
    let features = features(superblock) | feature::CONVERTING;
    bytes[at::INCOMPATIBLE..at::INCOMPATIBLE + 8].copy_from_slice(&features.to_le_bytes());
    let checksum = checksum(&bytes);
    bytes[at::CHECKSUM..at::CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Reads a superblock from its bytes, whatever they are.
///
/// Reserved bytes and unknown compatible features are ignored: a program that does not know them writes zeros there.
///
/// # Errors
/// What is wrong, checked in this order: magic, checksum, version, features, fields. Fewer bytes than
/// [`SUPERBLOCK_BYTES`] are no superblock.
pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
    let bytes: &[u8; SUPERBLOCK_BYTES] = bytes.first_chunk().ok_or(SuperblockError::NoMagic)?;
    if bytes[at::MAGIC..].first_chunk() != Some(&MAGIC) {
        return Err(SuperblockError::NoMagic);
    }
    let (found, expected) = (u32_at(bytes, at::CHECKSUM), checksum(bytes));
    if found != expected {
        return Err(SuperblockError::BadChecksum { expected, found });
    }
    let version = u32_at(bytes, at::VERSION);
    if version != VERSION {
        return Err(SuperblockError::UnknownVersion { version });
    }
    let features = u64_at(bytes, at::INCOMPATIBLE);
    if features & feature::CONVERTING != 0 {
        return Err(SuperblockError::Converting {
            array: uuid_at(bytes, at::ARRAY),
            member: uuid_at(bytes, at::MEMBER),
        });
    }
    let unknown = features & !feature::KNOWN;
    if unknown != 0 {
        return Err(SuperblockError::UnknownFeatures { flags: unknown });
    }
    // Programs of before the first release had no list of bad blocks, and told here of the log and the checksums.
    if features & feature::BAD_BLOCKS == 0 {
        return Err(SuperblockError::Field { field: "list of features, which lacks bad blocks," });
    }
    // Their logs had other records, and no journal beside them.
    if ![0, feature::LOGGED].contains(&(features & feature::LOGGED)) {
        return Err(SuperblockError::Field { field: "list of features, which has a part of what a log takes," });
    }
    if array_at(bytes, at::ZERO) != [0; 2] {
        return Err(SuperblockError::Field { field: "bytes 142 and 143" });
    }
    let members = bytes[at::MEMBERS];
    let reshape = if features & feature::RESHAPE == 0 { None } else { Some(reshape(bytes)?) };
    let slots = reshape.map_or(members, |reshape| members.max(reshape.to.members));
    let superblock = Superblock {
        array: uuid_at(bytes, at::ARRAY),
        name: name(bytes)?,
        created: UnixSeconds(u64_at(bytes, at::CREATED)),
        spec: Spec {
            level: level(array_at(bytes, at::LEVEL))?,
            members,
            chunk: Bytes(u64::from(u32_at(bytes, at::CHUNK))),
            member_size: Sectors(u64_at(bytes, at::USED)),
        },
        member: uuid_at(bytes, at::MEMBER),
        slot: MemberIndex(bytes[at::SLOT]),
        areas: Areas {
            member_size: Bytes(u64_at(bytes, at::MEMBER_SIZE)),
            bitmap: area(bytes, at::BITMAP),
            bad_blocks: area(bytes, at::LIST),
            log: area(bytes, at::LOG),
            sums: area(bytes, at::SUMS),
            data: area(bytes, at::DATA),
        },
        epoch: Epoch(u64_at(bytes, at::EPOCH)),
        revision: Revision(u64_at(bytes, at::REVISION)),
        consistency: consistency(features)?,
        logs: if features & feature::LOG_DEVICES == 0 { None } else { Some(log_devices(bytes)?) },
        integrity: if features & feature::CRC32 == 0 { Integrity::None } else { Integrity::Crc32 },
        generation: uuid_at(bytes, at::GENERATION),
        journal: uuid_at(bytes, at::JOURNAL),
        is_clean: bytes[at::FLAGS] & FLAG_CLEAN != 0,
        initialising: (features & feature::INITIALISING != 0).then(|| allocation(bytes[at::FLAGS])),
        blank: (features & feature::BLANK != 0).then(|| Blank {
            since: Epoch(u64_at(bytes, at::BLANK_SINCE)),
            shift: u32_at(bytes, at::BLANK_SHIFT),
            allocation: allocation(bytes[at::FLAGS]),
        }),
        reshape,
        sector_size: sector_size(features, bytes[at::SECTOR_SIZE])?,
        scrub: ScrubHistory {
            finished: Some(UnixSeconds(u64_at(bytes, at::SCRUB_FINISHED))).filter(|&at| at != UnixSeconds(0)),
            run: scrub_run(bytes)?,
            is_owed: bytes[at::SCRUB_FLAGS] & SCRUB_OWED != 0,
        },
        slots: slot_table(bytes, slots)?,
    };
    superblock.check()?;
    Ok(superblock)
}

/// CRC32 (the polynomial of zlib and Ethernet) over the superblock with zeros for the checksum.
fn checksum(bytes: &[u8; SUPERBLOCK_BYTES]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..at::CHECKSUM]);
    crc.update(&[0; 4]);
    crc.update(&bytes[at::CHECKSUM + 4..]);
    crc.finalize()
}

fn chunk_bytes(chunk: Bytes) -> [u8; 4] {
    u32::try_from(chunk.0).expect("a chunk is at most 1 MiB").to_le_bytes()
}

/// The level's code and its two options.
fn level_bytes(level: Level) -> [u8; 3] {
    match level {
        Level::Raid0 => [0, 0, 0],
        Level::Raid1 => [1, 0, 0],
        Level::Raid10 { copies } => [10, copies, 0],
        Level::Raid5 { rotation } => [5, rotation as u8, 0],
        Level::Raid6 { rotation } => [6, rotation as u8, 0],
        Level::Rm2 { height, placement: Placement::Adjacent } => [32, height, 0],
        Level::Rm2 { height, placement: Placement::Partitioned } => [32, height, 1],
    }
}

fn level(bytes: [u8; 3]) -> Result<Level, SuperblockError> {
    Ok(match bytes {
        [0, 0, 0] => Level::Raid0,
        [1, 0, 0] => Level::Raid1,
        [10, copies, 0] => Level::Raid10 { copies },
        [5, number, 0] => Level::Raid5 { rotation: rotation(number)? },
        [6, number, 0] => Level::Raid6 { rotation: rotation(number)? },
        [32, height, 0] => Level::Rm2 { height, placement: Placement::Adjacent },
        [32, height, 1] => Level::Rm2 { height, placement: Placement::Partitioned },
        _ => return Err(SuperblockError::Field { field: "level" }),
    })
}

fn rotation(number: u8) -> Result<Rotation, SuperblockError> {
    Rotation::ALL.get(usize::from(number)).copied().ok_or(SuperblockError::Field { field: "level" })
}

/// By code, where one is not told by features.
const CONSISTENCIES: [Consistency; 3] = [Consistency::None, Consistency::Bitmap, Consistency::Log];

fn features(superblock: &Superblock) -> u64 {
    let consistency = match superblock.consistency {
        Consistency::None => 0,
        Consistency::Bitmap => feature::BITMAP,
        Consistency::Log => feature::LOGGED,
    };
    let integrity = match superblock.integrity {
        Integrity::None => 0,
        Integrity::Crc32 => feature::CRC32,
    };
    let initialising = if superblock.initialising.is_some() { feature::INITIALISING } else { 0 };
    let sectors = if superblock.sector_size == SECTOR_SIZES[0] { 0 } else { feature::SECTORS };
    let blank = if superblock.blank.is_some() { feature::BLANK } else { 0 };
    let reshape = if superblock.reshape.is_some() { feature::RESHAPE } else { 0 };
    let logs = if superblock.logs.is_some() { feature::LOG_DEVICES } else { 0 };
    consistency | integrity | initialising | sectors | blank | reshape | logs | feature::BAD_BLOCKS
}

fn flags(superblock: &Superblock) -> u8 {
    let clean = if superblock.is_clean { FLAG_CLEAN } else { 0 };
    let allocation = superblock.initialising.or(superblock.blank.map(|blank| blank.allocation));
    clean | if allocation == Some(Allocation::Sparse) { FLAG_SPARSE } else { 0 }
}

fn allocation(flags: u8) -> Allocation {
    if flags & FLAG_SPARSE == 0 { Allocation::Full } else { Allocation::Sparse }
}

/// How often 512 bytes are doubled.
fn sector_code(size: Bytes) -> u8 {
    let code = SECTOR_SIZES.iter().position(|&other| other == size).expect("a sector size that was checked");
    u8::try_from(code).expect("there are four")
}

fn sector_size(features: u64, code: u8) -> Result<Bytes, SuperblockError> {
    let size = SECTOR_SIZES.get(usize::from(code)).filter(|_| (features & feature::SECTORS != 0) == (code != 0));
    size.copied().ok_or(SuperblockError::Field { field: "sector size" })
}

fn consistency(features: u64) -> Result<Consistency, SuperblockError> {
    Ok(match (features & feature::BITMAP != 0, features & feature::LOG != 0) {
        (false, false) => Consistency::None,
        (true, false) => Consistency::Bitmap,
        (false, true) => Consistency::Log,
        (true, true) => return Err(SuperblockError::Field { field: "features: a bitmap and a log" }),
    })
}

/// A state's code, and of a rebuild whether it is a whole one and how far it has come.
fn state_fields(state: SlotState) -> (u8, bool, StripeId) {
    match state {
        SlotState::Active => (ACTIVE, false, StripeId(0)),
        SlotState::Failed => (FAILED, false, StripeId(0)),
        SlotState::Rebuilding { upto, is_whole } => (3, is_whole, upto),
    }
}

fn scrub_run(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Option<ScrubRun>, SuperblockError> {
    let sectors = |at| Sectors(u64_at(bytes, at));
    let found = ScrubFound {
        mismatched: sectors(at::SCRUB_MISMATCHED),
        repaired: sectors(at::SCRUB_REPAIRED),
        unchecked: sectors(at::SCRUB_UNCHECKED),
    };
    let (code, position) = (bytes[at::SCRUB_MODE], StripeId(u64_at(bytes, at::SCRUB_POSITION)));
    match ScrubMode::of_code(code) {
        Some(mode) => Ok(Some(ScrubRun { mode, position, found })),
        None if code == 0 && position == StripeId(0) && found == ScrubFound::default() => Ok(None),
        None => Err(SuperblockError::Field { field: "scrub" }),
    }
}

fn reshape(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Reshape, SuperblockError> {
    Ok(Reshape {
        to: Spec {
            level: level(array_at(bytes, at::TO_LEVEL))?,
            members: bytes[at::TO_MEMBERS],
            chunk: Bytes(u64::from(u32_at(bytes, at::TO_CHUNK))),
            member_size: Sectors(u64_at(bytes, at::TO_USED)),
        },
        kept: Sectors(u64_at(bytes, at::KEPT)),
        mark: Lba(u64_at(bytes, at::MARK)),
        is_back: match bytes[at::IS_BACK] {
            0 => false,
            1 => true,
            _ => return Err(SuperblockError::Field { field: "direction of a reshape" }),
        },
        saved: Sectors(u64_at(bytes, at::SAVED)),
        save: u64_at(bytes, at::SAVE),
        before: *CONSISTENCIES
            .get(usize::from(bytes[at::BEFORE]))
            .ok_or(SuperblockError::Field { field: "consistency before a reshape" })?,
    })
}

/// Puts the table of log devices.
fn put_log_devices(LogDevices { share, devices }: &LogDevices, put: &mut impl FnMut(usize, &[u8])) {
    put(at::LOG_SHARE, &share.0.to_le_bytes());
    put(at::LOG_COUNT, &[u8::try_from(devices.len()).expect("there are at most four")]);
    for (number, device) in devices.iter().enumerate() {
        let start = at::LOG_TABLE + number * at::LOG_ENTRY_BYTES;
        put(start, device.uuid.as_bytes());
        put(start + at::STATE, &[if device.is_active { ACTIVE } else { FAILED }]);
        put(start + at::SINCE, &device.since.0.to_le_bytes());
    }
}

fn log_devices(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<LogDevices, SuperblockError> {
    let wrong = SuperblockError::Field { field: "table of log devices" };
    let count = usize::from(bytes[at::LOG_COUNT]);
    if count > LOGS_MAX {
        return Err(wrong);
    }
    let device = |number: usize| {
        let start = at::LOG_TABLE + number * at::LOG_ENTRY_BYTES;
        let is_active = match bytes[start + at::STATE] {
            ACTIVE => true,
            FAILED => false,
            _ => return Err(wrong.clone()),
        };
        let (uuid, since) = (uuid_at(bytes, start), Epoch(u64_at(bytes, start + at::SINCE)));
        Ok(LogDevice { uuid, is_active, since })
    };
    let devices = (0..count).map(device).collect::<Result<_, _>>()?;
    Ok(LogDevices { share: Bytes(u64_at(bytes, at::LOG_SHARE)), devices })
}

fn slot_table(bytes: &[u8; SUPERBLOCK_BYTES], members: u8) -> Result<Vec<SlotEntry>, SuperblockError> {
    if members > 64 {
        return Err(SuperblockError::Field { field: "number of members" });
    }
    let entry = |slot: usize| {
        let start = at::TABLE + slot * at::ENTRY_BYTES;
        let upto = StripeId(u64_at(bytes, start + at::UPTO));
        let state = match (bytes[start + at::STATE], bytes[start + at::WHOLE]) {
            (ACTIVE, 0) => SlotState::Active,
            (FAILED, 0) => SlotState::Failed,
            (3, whole @ 0..=1) => SlotState::Rebuilding { upto, is_whole: whole == 1 },
            _ => return Err(SuperblockError::Field { field: "slot table's state" }),
        };
        Ok(SlotEntry { member: uuid_at(bytes, start), state, since: Epoch(u64_at(bytes, start + at::SINCE)) })
    };
    (0..usize::from(members)).map(entry).collect()
}

fn name(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<String, SuperblockError> {
    let field: [u8; NAME_BYTES_MAX] = array_at(bytes, at::NAME);
    let len = field.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES_MAX);
    let wrong = SuperblockError::Field { field: "name" };
    if field[len..].iter().any(|&byte| byte != 0) {
        return Err(wrong);
    }
    String::from_utf8(field[..len].to_vec()).map_err(|_| wrong)
}

fn area(bytes: &[u8; SUPERBLOCK_BYTES], at: usize) -> Area {
    Area { offset: Bytes(u64_at(bytes, at)), size: Bytes(u64_at(bytes, at + 8)) }
}

fn uuid_at(bytes: &[u8; SUPERBLOCK_BYTES], at: usize) -> Uuid {
    Uuid::from_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8; SUPERBLOCK_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8; SUPERBLOCK_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8; SUPERBLOCK_BYTES], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("fields are inside the superblock")
}
