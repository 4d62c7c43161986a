//! Salem & Garcia-Molina's model of the service time of striped disks, and of a task that processes a file (Disk
//! Striping, 1986).
//!
//! The text version of the paper has lost its formulas; these are derived from its words and checked against its
//! numbers. Time is in milliseconds. There are no queues and nothing is random: expected values only.

use uraid_layout::Bytes;

/// A disk of the paper's Table 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drive {
    /// What it is called.
    pub name: &'static str,
    /// The longest seek.
    pub seek_max_ms: f64,
    /// The seek to the next track.
    pub seek_one_track_ms: f64,
    /// Tracks of a cylinder.
    pub heads: f64,
    /// Cylinders.
    pub cylinders: f64,
    /// Sectors of a track, of 512 bytes.
    pub sectors: f64,
}

/// The enhancements of section 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Enhancements {
    /// A transfer begins anywhere in its block.
    pub immediate_reading: bool,
    /// The pieces of a block are at the same place of all disks.
    pub matched_disks: bool,
    /// Blocks are read in the order in which they lie.
    pub ordered_blocks: bool,
}

/// Where a request's time goes, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Service {
    /// The processor's time.
    pub cpu_ms: f64,
    /// Until the slowest disk's heads are there.
    pub seek_ms: f64,
    /// Until the slowest disk has turned to the data.
    pub rotation_ms: f64,
    /// Of one disk's piece.
    pub transfer_ms: f64,
}

/// Reading a file through a buffer and processing each byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Task {
    /// The file's size.
    pub file: Bytes,
    /// The buffer's size; blocks are of up to half of it.
    pub buffer: Bytes,
    /// Processor time for each byte, in nanoseconds.
    pub ns_per_byte: f64,
}

/// What bounds a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// The disks.
    Disks,
    /// The processor: more disks do not help.
    Processor,
}

/// Digital's RA81, on which most of the paper's figures rest.
pub(crate) const RA81: Drive =
    Drive { name: "RA81", seek_max_ms: 50.0, seek_one_track_ms: 7.0, heads: 14.0, cylinders: 1258.0, sectors: 52.0 };

/// Digital's RA80.
pub(crate) const RA80: Drive =
    Drive { name: "RA80", seek_max_ms: 50.0, seek_one_track_ms: 6.0, heads: 14.0, cylinders: 561.0, sectors: 31.0 };

/// Digital's RP06.
pub(crate) const RP06: Drive =
    Drive { name: "RP06", seek_max_ms: 60.0, seek_one_track_ms: 10.0, heads: 19.0, cylinders: 815.0, sectors: 22.0 };

/// 3600 revolutions a minute, all three drives.
const REVOLUTION_MS: f64 = 1000.0 / 60.0;
const SECTOR_BYTES: f64 = 512.0;
/// The processor's time for a request, and for each disk that takes part.
const CPU_REQUEST_MS: f64 = 0.010;
const CPU_DISK_MS: f64 = 0.100;
/// The smallest block that a task considers.
const BLOCK_MIN_BYTES: u64 = 512;

impl Drive {
    /// What the whole drive holds.
    #[must_use]
    pub(super) fn capacity(&self) -> Bytes {
        Bytes((self.cylinders * self.cylinder_bytes()) as u64)
    }

    fn track_bytes(&self) -> f64 {
        self.sectors * SECTOR_BYTES
    }

    fn cylinder_bytes(&self) -> f64 {
        self.heads * self.track_bytes()
    }

    /// How long a request for a block takes that is striped over `disks` of these, when all data is `space`.
    ///
    /// # Panics
    /// When there is no disk.
    #[must_use]
    pub(super) fn service(&self, block: Bytes, disks: u32, space: Bytes, with: Enhancements) -> Service {
        assert!(disks > 0, "a block is on some disk");
        let n = f64::from(disks);
        let piece = block.0 as f64 / n;
        // Data of more than one drive's capacity does not make that drive's seeks longer.
        let cylinders = (space.0 as f64 / (n * self.cylinder_bytes())).min(self.cylinders);
        let seek_ms = match with {
            Enhancements { ordered_blocks: true, .. } => {
                self.seek_one_track_ms * (piece / self.cylinder_bytes()).min(1.0)
            }
            Enhancements { matched_disks: true, .. } => self.seek(longest(1, cylinders)),
            _ => self.seek(longest(disks, cylinders)),
        };
        let turned = if with.immediate_reading {
            let elsewhere = 1.0 - (piece / self.track_bytes()).min(1.0);
            elsewhere - elsewhere.powf(n + 1.0) / (n + 1.0)
        } else {
            n / (n + 1.0)
        };
        Service {
            cpu_ms: CPU_REQUEST_MS + CPU_DISK_MS * n,
            seek_ms,
            rotation_ms: turned * REVOLUTION_MS,
            transfer_ms: piece / self.track_bytes() * REVOLUTION_MS,
        }
    }

    /// A seek over so many cylinders, at least one.
    fn seek(&self, cylinders: f64) -> f64 {
        let slope = (self.seek_max_ms - self.seek_one_track_ms) / (self.cylinders - 2.0);
        self.seek_one_track_ms + slope * (cylinders.max(1.0) - 1.0)
    }

    /// How many seconds a task takes with the best block, and what bounds it.
    #[must_use]
    pub(super) fn task(&self, task: &Task, disks: u32, with: Enhancements) -> (f64, Bound) {
        let file = task.file.0 as f64;
        let processing = file * task.ns_per_byte / 1e9;
        let blocks = std::iter::successors(Some(BLOCK_MIN_BYTES), |block| Some(block * 2));
        let reading = blocks
            .take_while(|&block| block <= task.buffer.0 / 2)
            .map(|block| file / block as f64 * self.service(Bytes(block), disks, task.file, with).total_ms() / 1e3)
            .fold(f64::INFINITY, f64::min);
        if reading > processing { (reading, Bound::Disks) } else { (processing, Bound::Processor) }
    }
}

impl Service {
    /// All of it.
    #[must_use]
    pub(crate) fn total_ms(&self) -> f64 {
        self.cpu_ms + self.seek_ms + self.rotation_ms + self.transfer_ms
    }
}

/// By how many per cent a time is shorter than another: the paper's effectiveness.
#[must_use]
pub(crate) fn effectiveness(one: f64, striped: f64) -> f64 {
    100.0 * (one - striped) / one
}

/// The expected longest of the seeks of so many disks, each between two places that are spread evenly over `cylinders`:
/// L (1 - (2n)!! / (2n+1)!!).
fn longest(disks: u32, cylinders: f64) -> f64 {
    let quotient: f64 = (1..=disks).map(|k| f64::from(2 * k) / f64::from(2 * k + 1)).product();
    cylinders * (1.0 - quotient)
}

#[cfg(test)]
mod tests {
    use uraid_layout::Bytes;

    use super::{Drive, Enhancements, RA81, REVOLUTION_MS, effectiveness, longest};
    use uraid_random::Random;

    const PLAIN: Enhancements = Enhancements { immediate_reading: false, matched_disks: false, ordered_blocks: false };

    fn unit(random: &mut Random) -> f64 {
        random.below(1 << 40) as f64 / (1_u64 << 40) as f64
    }

    /// The mean over `draws` of the largest of `of` drawn numbers.
    fn mean_largest(of: u32, draws: u32, mut draw: impl FnMut() -> f64) -> f64 {
        let total: f64 = (0..draws).map(|_| (0..of).map(|_| draw()).fold(0.0, f64::max)).sum();
        total / f64::from(draws)
    }

    #[test]
    fn the_papers_example_of_effectiveness() {
        assert!((effectiveness(25.0, 18.0) - 28.0).abs() < 1e-12);
    }

    #[test]
    fn the_longest_of_n_seeks_is_what_drawing_places_gives() {
        assert!((longest(1, 900.0) - 300.0).abs() < 1e-9, "a third of the cylinders");
        let mut random = Random::new(1);
        for disks in [1, 2, 5, 10] {
            let drawn = mean_largest(disks, 40_000, || (unit(&mut random) - unit(&mut random)).abs());
            assert!((longest(disks, 1.0) - drawn).abs() < 0.005, "{disks} disks: {drawn}");
        }
    }

    #[test]
    fn rotation_is_what_drawing_angles_gives() {
        let mut random = Random::new(2);
        let space = RA81.capacity();
        for (disks, block) in [(1, 4 << 10), (4, 32 << 10), (10, 64 << 10), (3, 256 << 10)] {
            let wanted = mean_largest(disks, 40_000, || unit(&mut random)) * REVOLUTION_MS;
            let plain = RA81.service(Bytes(block), disks, space, PLAIN);
            assert!((plain.rotation_ms - wanted).abs() < 0.1, "{disks} disks: {wanted}");
            let share = (block as f64 / f64::from(disks) / (52.0 * 512.0)).min(1.0);
            // A head within the piece starts at once, and reads its beginning last, a revolution after it began; any
            // other waits for the beginning.
            let wait = |random: &mut Random| {
                let ahead = unit(random);
                if ahead > 1.0 - share { 1.0 - share } else { ahead }
            };
            let wanted = mean_largest(disks, 40_000, || wait(&mut random)) * REVOLUTION_MS;
            let immediate = Enhancements { immediate_reading: true, ..PLAIN };
            let got = RA81.service(Bytes(block), disks, space, immediate).rotation_ms;
            assert!((got - wanted).abs() < 0.1, "{disks} disks, {share} of a track: {got}, drawn {wanted}");
        }
    }

    #[test]
    fn a_single_drive_is_the_sum_of_its_parts() {
        // 16 KB of an RA81's 26 KB tracks; a third of 1258 cylinders; half a revolution.
        let service = RA81.service(Bytes(16 << 10), 1, RA81.capacity(), PLAIN);
        assert!((service.transfer_ms - 32.0 / 52.0 * REVOLUTION_MS).abs() < 1e-9);
        assert!((service.rotation_ms - REVOLUTION_MS / 2.0).abs() < 1e-9);
        assert!((service.seek_ms - (7.0 + 43.0 * (1258.0 / 3.0 - 1.0) / 1256.0)).abs() < 1e-9);
        assert!((service.cpu_ms - 0.11).abs() < 1e-9);
        let smaller = Drive { cylinders: 629.0, ..RA81 };
        assert_eq!(smaller.capacity().0 * 2, RA81.capacity().0);
    }
}
