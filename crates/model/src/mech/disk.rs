//! What is known of a disk: plain figures, as data sheets and papers have them, and the model that is made of them.
//!
//! A rotating disk is Chen & Lee's (1993, 3.1 and Table 1): seek(0) = 0, seek(x) = a*sqrt(x-1) + b*(x-1) + c for x
//! cylinders, with a, b and c from the least, the mean and the greatest seek time; tracks of one length everywhere;
//! spindles that turn together. A flash disk has no seek: an access takes its latency in one of several channels, and
//! its data then goes over one interface.
//!
//! ```
//! let disk = uraid_model::mech::DiskSpec::from_toml(r#"
//!     name = "one of mine"
//!     [mechanism.rotating]
//!     cylinders = 949
//!     tracks_per_cylinder = 14
//!     sectors_per_track = 48
//!     revolution_ms = 13.9
//!     seek = { minimum_ms = 2.0, average_ms = 12.5, maximum_ms = 25.0 }
//! "#)?;
//! assert_eq!(disk.name, "one of mine");
//! # Ok::<(), uraid_model::mech::Error>(())
//! ```

use serde::{Deserialize, Serialize};
use uraid_layout::{Bytes, Sectors};

use super::Error;

/// A disk as its data sheet has it. Plain data; [`Disk::new`] says whether it makes sense.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// What it is called.
    pub name: String,
    /// Where the figures are from, and which of them are assumed.
    #[serde(default)]
    pub source: String,
    /// How it works.
    pub mechanism: Mechanism,
}

/// How a disk works.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// Platters and an arm.
    Rotating(Rotating),
    /// Memory.
    Flash(Flash),
}

/// The figures of a disk with platters. Sectors have 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotating {
    /// Cylinders of the whole disk.
    pub cylinders: u32,
    /// Tracks (heads) of a cylinder.
    pub tracks_per_cylinder: u32,
    /// Sectors of a track; of a zoned disk the mean.
    pub sectors_per_track: u32,
    /// One revolution, in milliseconds.
    pub revolution_ms: f64,
    /// The arm.
    pub seek: Seek,
    /// The change to the next head of a cylinder, in milliseconds.
    #[serde(default)]
    pub head_switch_ms: f64,
    /// Whether tracks begin where the head arrives from the track before, so that a transfer goes on after the switch
    /// or seek to the next one. Otherwise all tracks begin at one angle, and a switch that takes any time costs whole
    /// revolutions.
    #[serde(default)]
    pub skewed: bool,
    /// What the disk's electronics take for each operation before it begins to seek, in milliseconds.
    #[serde(default)]
    pub command_ms: f64,
}

/// The time to move the arm, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seek {
    /// To the next cylinder.
    pub minimum_ms: f64,
    /// Between two cylinders drawn at random. Without it the time grows linearly from the least to the greatest, as
    /// Salem & Garcia-Molina (1986) have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_ms: Option<f64>,
    /// From the first cylinder to the last.
    pub maximum_ms: f64,
}

/// The figures of a disk of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flash {
    /// Its size, in units of 10^9 bytes.
    pub capacity_gb: f64,
    /// The latency of a read, in microseconds.
    pub read_us: f64,
    /// The latency of a write, in microseconds.
    pub write_us: f64,
    /// The rate of large reads, in units of 10^6 bytes a second.
    pub read_mb_s: f64,
    /// The rate of large writes, in units of 10^6 bytes a second.
    pub write_mb_s: f64,
    /// Reads whose latencies overlap.
    pub read_channels: u32,
    /// Writes whose latencies overlap: at most `read_channels`.
    pub write_channels: u32,
}

/// A checked disk: the model that serves operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    spec: DiskSpec,
    pub(super) model: Model,
    capacity: Sectors,
}

/// What serving needs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Model {
    Rotating(Platters),
    Flash(Memory),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Platters {
    pub(super) sectors_per_track: u64,
    pub(super) sectors_per_cylinder: u64,
    pub(super) revolution: u64,
    pub(super) head_switch: u64,
    pub(super) next_cylinder: u64,
    pub(super) command: u64,
    pub(super) is_skewed: bool,
    curve: Curve,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Memory {
    pub(super) read: u64,
    pub(super) write: u64,
    pub(super) read_sector: f64,
    pub(super) write_sector: f64,
    pub(super) read_channels: u32,
    pub(super) write_channels: u32,
}

/// seek(x) = root*sqrt(x-1) + line*(x-1) + least, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Curve {
    root: f64,
    line: f64,
    least: f64,
}

/// The most cylinders, tracks of a cylinder or sectors of a track.
const COUNT_MAX: u32 = 1 << 22;

/// The longest time of any kind: a minute, in milliseconds.
const TIME_MAX_MS: f64 = 60_000.0;

const NS_PER_MS: f64 = 1e6;

/// Times are whole nanoseconds, sectors' are not: what is missed by less is not missed.
const ROUNDING_NS: u64 = 2000;

impl DiskSpec {
    /// Reads a disk from TOML; see the module for one.
    ///
    /// # Errors
    /// When it can't be read, or [`Disk::new`] would refuse it.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        let spec: Self = toml::from_str(text)?;
        Disk::new(spec).map(|disk| disk.spec)
    }
}

impl Disk {
    /// Checks a disk's figures.
    ///
    /// # Errors
    /// [`Error::Disk`] with the figure that makes no sense.
    pub fn new(spec: DiskSpec) -> Result<Self, Error> {
        let check = Check(&spec.name);
        let (model, capacity) = match spec.mechanism {
            Mechanism::Rotating(rotating) => (Model::Rotating(platters(check, &rotating)?), rotating.capacity()),
            Mechanism::Flash(flash) => memory(check, &flash)?,
        };
        Ok(Self { spec, model, capacity })
    }

    /// The figures that it was made of.
    #[must_use]
    pub fn spec(&self) -> &DiskSpec {
        &self.spec
    }

    /// Its size.
    #[must_use]
    pub fn capacity(&self) -> Sectors {
        self.capacity
    }

    /// The time to move the arm over some cylinders, in milliseconds; nothing on a flash disk.
    #[cfg(test)]
    pub(crate) fn seek_ms(&self, cylinders: u32) -> f64 {
        match &self.model {
            Model::Rotating(platters) => platters.seek(cylinders.into()) as f64 / NS_PER_MS,
            Model::Flash(_) => 0.0,
        }
    }

    /// The mean time to move the arm between two cylinders that are drawn independently and uniformly among those that
    /// hold the first `used` sectors, in milliseconds: the exact sum, the pairs without a move among them.
    #[must_use]
    pub(crate) fn mean_seek_ms(&self, used: Sectors) -> f64 {
        let Model::Rotating(platters) = &self.model else { return 0.0 };
        let cylinders = used.0.min(self.capacity.0).div_ceil(platters.sectors_per_cylinder).max(1);
        let pairs = (cylinders * cylinders) as f64;
        let share = |distance: u64| 2.0 * (cylinders - distance) as f64 / pairs;
        (1..cylinders).map(|distance| share(distance) * platters.curve.at(distance)).sum::<f64>() / NS_PER_MS
    }

    /// The mean positioning time: the mean seek within the first `used` sectors and half a revolution (Chen & Lee Table
    /// 1), or a read's latency, in milliseconds.
    #[must_use]
    pub fn positioning_ms(&self, used: Sectors) -> f64 {
        match &self.model {
            Model::Rotating(platters) => self.mean_seek_ms(used) + platters.revolution as f64 / 2.0 / NS_PER_MS,
            Model::Flash(memory) => memory.read as f64 / NS_PER_MS,
        }
    }

    /// The rate of large reads, in KiB a millisecond.
    #[must_use]
    pub(crate) fn transfer_kib_per_ms(&self) -> f64 {
        let sector_ns = match &self.model {
            Model::Rotating(platters) => platters.revolution as f64 / platters.sectors_per_track as f64,
            Model::Flash(memory) => memory.read_sector,
        };
        0.5 * NS_PER_MS / sector_ns
    }

    /// The disk performance product, positioning time times transfer rate (Chen & Lee 2.1), in KiB.
    #[must_use]
    pub(crate) fn performance_product_kib(&self, used: Sectors) -> f64 {
        self.positioning_ms(used) * self.transfer_kib_per_ms()
    }

    /// The cylinder of a sector, for queues that go by it.
    #[inline]
    pub(super) fn cylinder(&self, sector: u64) -> u64 {
        match &self.model {
            Model::Rotating(platters) => sector / platters.sectors_per_cylinder,
            Model::Flash(_) => 0,
        }
    }

    /// The operations that the disk has under way at once.
    pub(super) fn servers(&self) -> u32 {
        match &self.model {
            Model::Rotating(_) => 1,
            Model::Flash(memory) => memory.read_channels,
        }
    }

    /// How many of them may be writes.
    pub(super) fn write_servers(&self) -> u32 {
        match &self.model {
            Model::Rotating(_) => 1,
            Model::Flash(memory) => memory.write_channels,
        }
    }
}

impl Rotating {
    fn capacity(&self) -> Sectors {
        let track = u64::from(self.sectors_per_track) * u64::from(self.tracks_per_cylinder);
        Sectors(track * u64::from(self.cylinders))
    }
}

impl Platters {
    /// The time to move the arm over some cylinders, in nanoseconds.
    #[inline]
    pub(super) fn seek(&self, distance: u64) -> u64 {
        if distance == 0 { 0 } else { self.curve.at(distance) as u64 }
    }

    /// How long a sector takes to come under the head.
    #[inline]
    pub(super) fn wait(&self, now: u64, sector: u64, cylinder: u64) -> u64 {
        let track = sector / self.sectors_per_track;
        let mut angle = (sector - track * self.sectors_per_track) * self.revolution / self.sectors_per_track;
        if self.is_skewed {
            angle = (angle + (track - cylinder) * self.head_switch + cylinder * self.next_cylinder) % self.revolution;
        }
        let now = now % self.revolution;
        let wait = if angle >= now { angle - now } else { angle + self.revolution - now };
        if wait + ROUNDING_NS >= self.revolution { 0 } else { wait }
    }

    /// How long the sectors take to pass, switches to the next tracks and cylinders included.
    #[inline]
    pub(super) fn transfer(&self, sector: u64, len: u64, cylinders: u64) -> u64 {
        let passing = len * self.revolution / self.sectors_per_track;
        let mut switches = 0;
        if cylinders > 0 {
            switches += cylinders * self.crossing(self.next_cylinder);
        }
        if self.head_switch > 0 {
            let track = |sector: u64| sector / self.sectors_per_track;
            let tracks = track(sector + len - 1) - track(sector);
            switches += (tracks - cylinders) * self.crossing(self.head_switch);
        }
        passing + switches
    }

    /// What a change of track that takes `time` costs a transfer.
    #[inline]
    fn crossing(&self, time: u64) -> u64 {
        if self.is_skewed { time } else { time.next_multiple_of(self.revolution) }
    }
}

impl Curve {
    /// Chen & Lee's coefficients, which meet the three times over `cylinders` cylinders.
    fn of(seek: &Seek, cylinders: u32) -> Self {
        let (least, most) = (seek.minimum_ms * NS_PER_MS, seek.maximum_ms * NS_PER_MS);
        let cylinders = f64::from(cylinders);
        match seek.average_ms.map(|average| average * NS_PER_MS) {
            Some(mean) => Self {
                root: (-10.0 * least + 15.0 * mean - 5.0 * most) / (3.0 * cylinders.sqrt()),
                line: (7.0 * least - 15.0 * mean + 8.0 * most) / (3.0 * cylinders),
                least,
            },
            None => Self { root: 0.0, line: (most - least) / (cylinders - 2.0).max(1.0), least },
        }
    }

    /// The time for a distance of at least one cylinder.
    #[inline]
    fn at(&self, distance: u64) -> f64 {
        let beyond = (distance - 1) as f64;
        self.root * beyond.sqrt() + self.line * beyond + self.least
    }
}

/// Says which figure of a disk makes no sense.
#[derive(Clone, Copy)]
struct Check<'a>(&'a str);

impl Check<'_> {
    fn that(self, holds: bool, field: &'static str, value: f64, rule: &'static str) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(Error::Disk { disk: self.0.to_owned(), field, value, rule }) }
    }

    fn count(self, field: &'static str, value: u32) -> Result<(), Error> {
        self.that((1..=COUNT_MAX).contains(&value), field, value.into(), "1 to 4194304")
    }

    fn time(self, field: &'static str, ms: f64) -> Result<u64, Error> {
        self.that((0.0..=TIME_MAX_MS).contains(&ms), field, ms, "a time of at most a minute")?;
        Ok((ms * NS_PER_MS).round() as u64)
    }
}

fn platters(check: Check<'_>, disk: &Rotating) -> Result<Platters, Error> {
    check.count("cylinders", disk.cylinders)?;
    check.count("tracks_per_cylinder", disk.tracks_per_cylinder)?;
    check.count("sectors_per_track", disk.sectors_per_track)?;
    check.that(disk.capacity().0 <= 1 << 40, "cylinders", disk.cylinders.into(), "at most 2^40 sectors in all")?;
    let revolution = check.time("revolution_ms", disk.revolution_ms)?;
    let is_slow = revolution >= u64::from(disk.sectors_per_track);
    check.that(is_slow, "revolution_ms", disk.revolution_ms, "at least a nanosecond for each sector")?;
    let Seek { minimum_ms, average_ms, maximum_ms } = disk.seek;
    check.time("seek.minimum_ms", minimum_ms)?;
    check.time("seek.maximum_ms", maximum_ms)?;
    let average_ms = average_ms.unwrap_or(minimum_ms);
    check.that(minimum_ms <= average_ms, "seek.average_ms", average_ms, "at least the minimum")?;
    check.that(average_ms <= maximum_ms, "seek.average_ms", average_ms, "at most the maximum")?;
    let curve = Curve::of(&disk.seek, disk.cylinders);
    let is_rising = (1..u64::from(disk.cylinders)).all(|distance| curve.at(distance) >= 0.0);
    check.that(is_rising, "seek.average_ms", average_ms, "such that no seek takes less than no time")?;
    Ok(Platters {
        sectors_per_track: disk.sectors_per_track.into(),
        sectors_per_cylinder: u64::from(disk.sectors_per_track) * u64::from(disk.tracks_per_cylinder),
        revolution,
        head_switch: check.time("head_switch_ms", disk.head_switch_ms)?,
        next_cylinder: curve.least as u64,
        command: check.time("command_ms", disk.command_ms)?,
        is_skewed: disk.skewed,
        curve,
    })
}

fn memory(check: Check<'_>, disk: &Flash) -> Result<(Model, Sectors), Error> {
    let is_size = (1e-6..=5e5).contains(&disk.capacity_gb);
    check.that(is_size, "capacity_gb", disk.capacity_gb, "0.000001 to 500000")?;
    check.count("read_channels", disk.read_channels)?;
    check.count("write_channels", disk.write_channels)?;
    let is_few = disk.read_channels <= 1024;
    check.that(is_few, "read_channels", disk.read_channels.into(), "at most 1024")?;
    let is_fewer = disk.write_channels <= disk.read_channels;
    check.that(is_fewer, "write_channels", disk.write_channels.into(), "at most read_channels")?;
    let sector_ns = |field, mb_s: f64| {
        check.that((0.001..=1e6).contains(&mb_s), field, mb_s, "0.001 to 1000000")?;
        Ok::<f64, Error>(512.0 * 1e3 / mb_s)
    };
    let model = Memory {
        read: check.time("read_us", disk.read_us / 1e3)?,
        write: check.time("write_us", disk.write_us / 1e3)?,
        read_sector: sector_ns("read_mb_s", disk.read_mb_s)?,
        write_sector: sector_ns("write_mb_s", disk.write_mb_s)?,
        read_channels: disk.read_channels,
        write_channels: disk.write_channels,
    };
    Ok((Model::Flash(model), Bytes((disk.capacity_gb * 1e9) as u64).whole_sectors()))
}
