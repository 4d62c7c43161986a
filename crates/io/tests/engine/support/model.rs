//! What every sector of an array may hold, from the history of the commands that wrote it.

use super::SECTOR;

/// One write of a sector. A write that failed never gets a reply: it may show or not, for good.
#[derive(Clone, Copy, Debug)]
struct Version {
    number: u64,
    is_zero: bool,
    submitted: u64,
    replied: Option<u64>,
}

/// The sectors' histories, and a clock of submissions and replies.
pub(crate) struct Model {
    sectors: Vec<Vec<Version>>,
    clock: u64,
    next: u64,
}

/// A write of the model that has no reply yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) number: u64,
    lba: usize,
    len: usize,
}

/// What a version holds in a sector.
pub(crate) fn content(number: u64, lba: usize) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    for (index, word) in (0u64..).zip(bytes.chunks_exact_mut(8)) {
        let mixed = (number << 24 | (lba as u64) << 6 | index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.copy_from_slice(&mixed.to_le_bytes());
    }
    bytes
}

impl Model {
    /// An array of zeros.
    pub(crate) fn new(sectors: usize) -> Self {
        let zeros = Version { number: 0, is_zero: true, submitted: 0, replied: Some(0) };
        Self { sectors: vec![vec![zeros]; sectors], clock: 1, next: 1 }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    pub(crate) fn submit(&mut self, lba: usize, len: usize, is_zero: bool) -> Pending {
        self.clock += 1;
        let number = self.next;
        self.next += 1;
        for sector in &mut self.sectors[lba..lba + len] {
            sector.push(Version { number, is_zero, submitted: self.clock, replied: None });
        }
        Pending { number, lba, len }
    }

    pub(crate) fn replied(&mut self, pending: Pending, is_ok: bool) {
        self.clock += 1;
        for sector in self.sectors[pending.lba..pending.lba + pending.len].iter_mut().filter(|_| is_ok) {
            let version = sector.iter_mut().find(|version| version.number == pending.number);
            version.expect("submitted before").replied = Some(self.clock);
        }
    }

    pub(crate) fn data(&self, pending: Pending) -> Vec<u8> {
        (pending.lba..pending.lba + pending.len).flat_map(|lba| content(pending.number, lba)).collect()
    }

    /// Asserts that a read that was submitted at `since` and is over now returned sectors that it may have seen: each
    /// of one version, none that a later one had replaced for sure before the read began.
    pub(crate) fn assert_read(&self, lba: usize, bytes: &[u8], since: u64, context: &str) {
        for (lba, sector) in (lba..).zip(bytes.chunks_exact(SECTOR)) {
            let history = &self.sectors[lba];
            let is_allowed = |version: &&Version| {
                let gone = |later: &Version| {
                    later.replied.is_some_and(|replied| replied <= since)
                        && version.replied.is_some_and(|replied| replied < later.submitted)
                };
                !history.iter().any(gone)
            };
            let shows = |version: &Version| {
                if version.is_zero {
                    sector.iter().all(|&byte| byte == 0)
                } else {
                    sector == content(version.number, lba)
                }
            };
            if history.iter().rev().find(|version| shows(version)).is_some_and(|version| is_allowed(&version)) {
                continue;
            }
            // Of several versions that look the same, an older one may be the allowed one.
            let allowed: Vec<&Version> = history.iter().filter(is_allowed).collect();
            let found = history.iter().find(|version| shows(version));
            let is_fine = allowed.iter().any(|version| shows(version));
            assert!(is_fine, "{context}: sector {lba} holds {found:?}, allowed are {allowed:?}");
        }
    }
}
