//! The mark of whoever has an export open for writing, which is to an export what its lock is to a file. Behind it is
//! a counter, which moves as long as that process lives; `member::owner` says what follows from it.

use std::fmt;

use uraid_layout::Bytes;
use uuid::Uuid;

use super::{BLOCK_BYTES, Epoch};

/// Where the mark is: between the superblock's slots, where log devices have nothing, either.
pub const OWNER_AT: Bytes = Bytes(40 << 10);

/// The size of an encoded mark.
pub const OWNER_BYTES: usize = BLOCK_BYTES;

/// The longest name of a host.
const HOST_BYTES_MAX: usize = 64;

/// Of how many runs a mark says what they left, and of how many exports what is durable there.
const RUNS_MAX: usize = 32;
const RUN_BYTES: usize = 24;
const DURABLE_MAX: usize = 64;
const DURABLE_BYTES: usize = 40;
const _: () = assert!(at::RUNS + RUNS_MAX * RUN_BYTES <= at::DURABLE);
const _: () = assert!(at::DURABLE + DURABLE_MAX * DURABLE_BYTES <= OWNER_BYTES);

const MAGIC: [u8; 8] = *b"\x8dUOWNER\n";
const VERSION: u32 = 1;

/// Byte offsets of the fields.
mod at {
    pub(super) const CHECKSUM: usize = 8;
    pub(super) const VERSION: usize = 12;
    pub(super) const RUN: usize = 16;
    pub(super) const BEAT: usize = 32;
    pub(super) const BOOT: usize = 40;
    pub(super) const NAMESPACE: usize = 56;
    pub(super) const PROCESS: usize = 64;
    pub(super) const HOST: usize = 72;
    pub(super) const EPOCH: usize = 136;
    pub(super) const DURABLE_COUNT: usize = 144;
    pub(super) const FOUND: usize = 148;
    pub(super) const FOUND_EPOCH: usize = 152;
    pub(super) const RUNS_COUNT: usize = 160;
    pub(super) const RUNS: usize = 168;
    pub(super) const DURABLE: usize = 936;
}

/// Who has an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The run of a program: another one each time that it is started. Nil: it was let go of.
    pub run: Uuid,
    /// How often it has said that it is there.
    pub beat: u64,
    /// The machine's name, for people.
    pub host: String,
    /// The machine's start, as its kernel calls it; nil if that is not known.
    pub boot: Uuid,
    /// The process, and the namespace in which it has this number; 0 if that is not known.
    pub process: u32,
    /// See there.
    pub namespace: u64,
    /// What is known of the array's exports.
    pub testimony: Testimony,
    /// What was here before.
    pub found: Option<Found>,
}

/// What is known to be durable on an array's exports. A server that shows less of one has an older copy of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Testimony {
    /// The array's epoch at that time: it says nothing of another.
    pub epoch: Epoch,
    /// 64 at most.
    pub durable: Vec<Durable>,
}

/// How far a run's mark had counted that was made durable on an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// The member that the export is.
    pub member: Uuid,
    /// Whose mark.
    pub run: Uuid,
    /// How far.
    pub beat: u64,
}

/// What a run has found on an export. As long as the epoch is the same there, nothing was put on record since, and that
/// is what counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Of the member's superblock.
    pub epoch: Epoch,
    /// Somebody had used it and not let go of it.
    pub is_used: bool,
    /// Who had it in this epoch, and how far their marks had counted: the last 32. A nil one may be anybody.
    pub runs: Vec<(Uuid, u64)>,
}

impl Found {
    /// What these bytes say, where the mark is on a member whose superblock has this epoch; and what they testify to in
    /// it.
    #[must_use]
    pub fn of(bytes: &[u8], epoch: Epoch) -> (Self, Testimony) {
        let Some(owner) = Owner::decode(bytes) else {
            let is_torn = is_one(bytes);
            let runs = is_torn.then_some((Uuid::nil(), 0)).into_iter().collect();
            return (Self { epoch, is_used: is_torn, runs }, Testimony::default());
        };
        let found = owner.as_found(epoch);
        (found, Some(owner.testimony).filter(|says| says.epoch == epoch).unwrap_or_default())
    }
}

impl Owner {
    /// Its bytes. A name of a host that is too long is cut off, and so are lists that are too long.
    #[must_use]
    pub fn encode(&self) -> [u8; OWNER_BYTES] {
        let mut bytes = [0; OWNER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(at::VERSION, &VERSION.to_le_bytes());
        put(at::RUN, self.run.as_bytes());
        put(at::BEAT, &self.beat.to_le_bytes());
        put(at::BOOT, self.boot.as_bytes());
        put(at::NAMESPACE, &self.namespace.to_le_bytes());
        put(at::PROCESS, &self.process.to_le_bytes());
        let most = HOST_BYTES_MAX.min(self.host.len());
        let len = (0..=most).rev().find(|&len| self.host.is_char_boundary(len)).unwrap_or_default();
        put(at::HOST, &self.host.as_bytes()[..len]);
        let Testimony { epoch, durable } = &self.testimony;
        let durable = &durable[..durable.len().min(DURABLE_MAX)];
        put(at::EPOCH, &epoch.0.to_le_bytes());
        put(at::DURABLE_COUNT, &[durable.len() as u8]);
        for (at, Durable { member, run, beat }) in (at::DURABLE..).step_by(DURABLE_BYTES).zip(durable) {
            put(at, member.as_bytes());
            put(at + 16, run.as_bytes());
            put(at + 32, &beat.to_le_bytes());
        }
        if let Some(Found { epoch, is_used, runs }) = &self.found {
            let runs = &runs[runs.len().saturating_sub(RUNS_MAX)..];
            put(at::FOUND, &[1 + u8::from(*is_used)]);
            put(at::FOUND_EPOCH, &epoch.0.to_le_bytes());
            put(at::RUNS_COUNT, &[runs.len() as u8]);
            for (at, (run, beat)) in (at::RUNS..).step_by(RUN_BYTES).zip(runs) {
                put(at, run.as_bytes());
                put(at + 16, &beat.to_le_bytes());
            }
        }
        let checksum = checksum(&bytes);
        bytes[at::CHECKSUM..at::CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Who had the export, and how far their marks had counted, this one last; of what was found only what is of this
    /// epoch, if there is one.
    pub(crate) fn runs(&self, epoch: Option<Epoch>) -> Vec<(Uuid, u64)> {
        let found = self.found.iter().filter(|found| epoch.is_none_or(|epoch| found.epoch == epoch));
        let own = (!self.run.is_nil()).then_some((self.run, self.beat));
        found.flat_map(|found| found.runs.iter().copied()).chain(own).collect()
    }

    /// What is found when there is this mark, on a member with a superblock of this epoch.
    pub(crate) fn as_found(&self, epoch: Epoch) -> Found {
        let before = self.found.as_ref().filter(|found| found.epoch == epoch);
        Found { epoch, is_used: before.map_or(!self.run.is_nil(), |found| found.is_used), runs: self.runs(Some(epoch)) }
    }

    /// Reads a mark from its bytes, whatever they are; none if it is torn, or of another version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; OWNER_BYTES] = bytes.first_chunk()?;
        let is_sound = u32::from_le_bytes(field(bytes, at::CHECKSUM)) == checksum(bytes)
            && u32::from_le_bytes(field(bytes, at::VERSION)) == VERSION;
        let host: [u8; HOST_BYTES_MAX] = field(bytes, at::HOST);
        let len = host.iter().position(|&byte| byte == 0).unwrap_or(HOST_BYTES_MAX);
        let uuid = |at| Uuid::from_bytes(field(bytes, at));
        let number = |at| u64::from_le_bytes(field(bytes, at));
        let durable = |at| Durable { member: uuid(at), run: uuid(at + 16), beat: number(at + 32) };
        let durable = (at::DURABLE..).step_by(DURABLE_BYTES).map(durable);
        let runs = (at::RUNS..).step_by(RUN_BYTES).map(|at| (uuid(at), number(at + 16)));
        let found = || Found {
            epoch: Epoch(number(at::FOUND_EPOCH)),
            is_used: bytes[at::FOUND] > 1,
            runs: runs.take(usize::from(bytes[at::RUNS_COUNT]).min(RUNS_MAX)).collect(),
        };
        (is_one(bytes) && is_sound).then(|| Self {
            run: Uuid::from_bytes(field(bytes, at::RUN)),
            beat: u64::from_le_bytes(field(bytes, at::BEAT)),
            host: String::from_utf8_lossy(&host[..len]).into_owned(),
            boot: Uuid::from_bytes(field(bytes, at::BOOT)),
            process: u32::from_le_bytes(field(bytes, at::PROCESS)),
            namespace: u64::from_le_bytes(field(bytes, at::NAMESPACE)),
            testimony: Testimony {
                epoch: Epoch(number(at::EPOCH)),
                durable: durable.take(usize::from(bytes[at::DURABLE_COUNT]).min(DURABLE_MAX)).collect(),
            },
            found: (bytes[at::FOUND] > 0).then(found),
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of host {}", self.process, self.host)
    }
}

/// Whether bytes are a mark, if perhaps a torn one, or one of another version.
#[must_use]
pub fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

fn field<const N: usize>(bytes: &[u8; OWNER_BYTES], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("fields lie within a mark")
}

fn checksum(bytes: &[u8; OWNER_BYTES]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..at::CHECKSUM]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[at::CHECKSUM + 4..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        let [run, boot] = [7, 8].map(Uuid::from_u128);
        let durable = [12, 13].map(|number| Durable { member: Uuid::from_u128(number), run, beat: 3 << number });
        let testimony = Testimony { epoch: Epoch(14), durable: durable.into() };
        let found = Some(Found { epoch: Epoch(15), is_used: true, runs: vec![(boot, 16), (run, 17)] });
        Owner { run, beat: 9, host: "storage".into(), boot, process: 10, namespace: 11, testimony, found }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_no_other_is() {
        let bytes = owner().encode();
        assert_eq!(Owner::decode(&bytes), Some(owner()));
        for found in [None, Some(Found::default())] {
            let other = Owner { found, ..owner() };
            assert_eq!(Owner::decode(&other.encode()), Some(other));
        }
        let full = Owner {
            testimony: Testimony { durable: [owner().testimony.durable[0]; 70].into(), ..Testimony::default() },
            found: Some(Found { runs: (0..40).map(|run| (Uuid::from_u128(run), 1)).collect(), ..Found::default() }),
            ..owner()
        };
        let cut = Owner::decode(&full.encode()).unwrap();
        assert_eq!(cut.testimony.durable.len(), 64);
        assert_eq!(cut.found.unwrap().runs[..], full.found.unwrap().runs[8..], "the last ones");
        assert_eq!(owner().to_string(), "process 10 of host storage");
        for at in 0..240 {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Owner::decode(&damaged), None, "byte {at}");
            assert_eq!(is_one(&damaged), at >= 8, "byte {at}");
        }
        assert_eq!(Owner::decode(&bytes[1..]), None);
        assert!(!is_one(&[0; OWNER_BYTES]));
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let host = "x".repeat(HOST_BYTES_MAX - 1) + "ö";
        let read = Owner::decode(&Owner { host, ..owner() }.encode()).expect("a mark");
        assert_eq!(read.host, "x".repeat(HOST_BYTES_MAX - 1));
    }
}
