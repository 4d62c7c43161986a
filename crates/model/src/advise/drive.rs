//! What is known of a disk, as figures that rules take.

use uraid_layout::Bytes;

use super::AdviseError;
use crate::mech::disk::{Flash, Mechanism, Rotating, Seek};
use crate::mech::{Disk, DiskSpec, Error};

/// What is known of the array's disks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drive {
    /// Mean time until a read at a random place begins, in milliseconds.
    pub positioning_ms: f64,
    /// The rate of long reads, in units of 10^6 bytes a second.
    pub transfer_mb_s: f64,
    /// How much a track holds, where the disk has tracks and that is known.
    pub track: Option<Bytes>,
}

/// A disk that positions faster than this does not rotate.
pub(super) const FLASH_MAX_MS: f64 = 1.0;

const REVOLUTION_7200_MS: f64 = 60_000.0 / 7200.0;

/// Chen & Lee's Lightning's quickest and longest seek in its mean one.
const SEEK_RANGE: [f64; 2] = [0.16, 2.0];

impl Drive {
    /// The performance product: the bytes that go by while the disk positions.
    #[must_use]
    pub fn product(&self) -> Bytes {
        Bytes(self.product_bytes() as u64)
    }

    pub(super) fn product_bytes(&self) -> f64 {
        self.positioning_ms * self.transfer_mb_s * 1e3
    }

    pub(super) fn check(&self) -> Result<(), AdviseError> {
        let numbers = [
            ("the positioning time in ms", self.positioning_ms, 1e5),
            ("the transfer rate in MB/s", self.transfer_mb_s, 1e6),
        ];
        for (what, value, max) in numbers {
            if !(value > 0.0 && value <= max) {
                return Err(AdviseError::Number { what, value, wanted: "more than nothing, and possible" });
            }
        }
        Ok(())
    }

    /// What the rules need of a disk.
    ///
    /// # Errors
    /// When the disk's figures make no sense.
    pub fn of(disk: &DiskSpec) -> Result<Self, Error> {
        let checked = Disk::new(disk.clone())?;
        let track = match &disk.mechanism {
            Mechanism::Rotating(rotating) => Some(Bytes(u64::from(rotating.sectors_per_track) * 512)),
            Mechanism::Flash(_) => None,
        };
        let positioning_ms = checked.positioning_ms(checked.capacity());
        Ok(Self { positioning_ms, transfer_mb_s: checked.transfer_kib_per_ms() * 1.024, track })
    }

    /// A disk with these figures: of memory where it positions within a millisecond and no revolution is named,
    /// otherwise one that turns 7200 times a minute unless something else is said.
    ///
    /// # Errors
    /// When it positions faster than it turns.
    pub fn disk(&self, revolution_ms: Option<f64>) -> Result<DiskSpec, AdviseError> {
        let Self { positioning_ms, transfer_mb_s, .. } = *self;
        self.check()?;
        let mechanism = if revolution_ms.is_none() && positioning_ms < FLASH_MAX_MS {
            let us = positioning_ms * 1e3;
            Mechanism::Flash(Flash {
                capacity_gb: 1000.0,
                read_us: us,
                write_us: us,
                read_mb_s: transfer_mb_s,
                write_mb_s: transfer_mb_s,
                read_channels: 8,
                write_channels: 8,
            })
        } else {
            let revolution_ms = revolution_ms.unwrap_or(REVOLUTION_7200_MS);
            let average_ms = positioning_ms - revolution_ms / 2.0;
            if average_ms <= 0.0 {
                let (what, wanted) =
                    ("the positioning time in ms", "more than half a revolution; say how fast the disk turns");
                return Err(AdviseError::Number { what, value: positioning_ms, wanted });
            }
            let [least, longest] = SEEK_RANGE.map(|factor| factor * average_ms);
            let sectors = (transfer_mb_s * 1e3 * revolution_ms / 512.0).round().clamp(1.0, 1e6);
            Mechanism::Rotating(Rotating {
                cylinders: 50_000,
                tracks_per_cylinder: 8,
                sectors_per_track: sectors as u32,
                revolution_ms,
                seek: Seek { minimum_ms: least, average_ms: Some(average_ms), maximum_ms: longest },
                head_switch_ms: 0.0,
                skewed: true,
                command_ms: 0.0,
            })
        };
        Ok(DiskSpec { name: "as described".to_owned(), source: String::new(), mechanism })
    }
}
