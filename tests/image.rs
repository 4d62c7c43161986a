//! Contents to write and to compare: reproducible random bytes, and comparison that names the first difference.

use crate::run::client;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// A small reproducible generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator that this seed starts.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a size fits 64 bits");
        usize::try_from(self.bits() % bound).expect("less than a usize")
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(self.bits().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// A range of whole sectors inside `length` bytes, at most `longest` bytes long: offset and length in bytes.
    pub fn sectors(&mut self, length: usize, longest: usize) -> (usize, usize) {
        let count = 1 + self.below(longest.min(length) / SECTOR);
        let first = self.below(length / SECTOR - count + 1);
        (first * SECTOR, count * SECTOR)
    }
}

/// Everything that the export at `uri` holds, read by nbdcopy.
#[must_use]
#[track_caller]
pub fn read_export(uri: &str) -> Vec<u8> {
    client("nbdcopy", [uri, "-"]).success().stdout
}

/// Writes to the export at `uri`, from its start, with nbdcopy, flushed.
///
/// # Panics
/// When no temporary file can be written.
#[track_caller]
pub fn write_export(uri: &str, content: &[u8]) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(&file, content).expect("a temporary file is written");
    let file = file.path().to_str().expect("temporary paths are UTF-8");
    let _ = client("nbdcopy", ["--flush", file, uri]).success();
}

/// Fails with the first difference between what was found and what was expected.
#[track_caller]
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    if found == expected {
        return;
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    let sectors = found.chunks(SECTOR).zip(expected.chunks(SECTOR)).filter(|(a, b)| a != b).count();
    panic!(
        "{what}: differs from byte {at} (sector {}), {sectors} sectors in all; found {} bytes, expected {}",
        at / SECTOR,
        found.len(),
        expected.len()
    );
}
