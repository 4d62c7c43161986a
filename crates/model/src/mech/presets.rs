//! Disks that can be named.
//!
//! The three of Chen & Lee (1993) Table 1 and the three of Salem & Garcia-Molina (1986) are as the papers have them. Of
//! the others the data sheets or product manuals give speed, rates, mean seek and capacity; geometry is the mean that
//! gives these, and what is assumed is named in [`DiskSpec::source`].

use super::disk::{DiskSpec, Flash, Mechanism, Rotating, Seek};

/// The names that [`named`] knows.
pub const NAMES: [&str; 11] = [
    "lightning",
    "elite3",
    "wren4",
    "ra81",
    "ra80",
    "rp06",
    "st31200w",
    "cheetah-15k7",
    "constellation-es",
    "dc-s4500",
    "dc-p4500",
];

/// What a SCSI, SAS or SATA disk takes for each command before it seeks, in milliseconds. Assumed, for all papers whose
/// disks have such a bus alike: manuals of the time name a few tenths of it for decoding a command.
pub(crate) const COMMAND_MS: f64 = 0.1;

/// A rotating disk that takes this time for each command.
#[must_use]
pub(crate) fn with_commands(mut disk: DiskSpec, command_ms: f64) -> DiskSpec {
    if let Mechanism::Rotating(rotating) = &mut disk.mechanism {
        rotating.command_ms = command_ms;
    }
    disk
}

/// The disk of a name, upper or lower case; none when it is not of [`NAMES`].
#[must_use]
pub fn named(name: &str) -> Option<DiskSpec> {
    Some(match name.to_ascii_lowercase().as_str() {
        "lightning" => lightning(),
        "elite3" => elite3(),
        "wren4" => wren4(),
        "ra81" => ra81(),
        "ra80" => ra80(),
        "rp06" => rp06(),
        "st31200w" => st31200w(),
        "cheetah-15k7" => cheetah_15k7(),
        "constellation-es" => constellation_es(),
        "dc-s4500" => dc_s4500(),
        "dc-p4500" => dc_p4500(),
        _ => return None,
    })
}

/// IBM 0661 (Lightning), 3.5 inches, 311 MB.
#[must_use]
pub fn lightning() -> DiskSpec {
    let seek = Seek { minimum_ms: 2.0, average_ms: Some(12.5), maximum_ms: 25.0 };
    rotating("IBM 0661 Lightning", CHEN_LEE, [949, 14, 48], 13.9, seek)
}

/// Seagate ST-43400N (Elite3), 2667 MB.
#[must_use]
pub(crate) fn elite3() -> DiskSpec {
    let seek = Seek { minimum_ms: 1.7, average_ms: Some(11.0), maximum_ms: 22.5 };
    rotating("Seagate Elite3", CHEN_LEE, [2627, 21, 99], 11.1, seek)
}

/// Seagate ST-4350N (Wren4), 5.25 inches, 361 MB.
#[must_use]
pub(crate) fn wren4() -> DiskSpec {
    let seek = Seek { minimum_ms: 5.5, average_ms: Some(16.5), maximum_ms: 35.0 };
    rotating("Seagate Wren4", CHEN_LEE, [1549, 9, 53], 16.7, seek)
}

/// DEC RA81.
#[must_use]
pub(crate) fn ra81() -> DiskSpec {
    rotating("DEC RA81", SALEM, [1258, 14, 52], REVOLUTION_3600_MS, linear(7.0, 50.0))
}

/// DEC RA80.
#[must_use]
pub(crate) fn ra80() -> DiskSpec {
    rotating("DEC RA80", SALEM, [561, 14, 31], REVOLUTION_3600_MS, linear(6.0, 50.0))
}

/// DEC RP06.
#[must_use]
pub(crate) fn rp06() -> DiskSpec {
    rotating("DEC RP06", SALEM, [815, 19, 22], REVOLUTION_3600_MS, linear(10.0, 60.0))
}

/// A disk like Seagate's ST31200W (Hawk 2), 1.05 GB, 5411 rpm.
#[must_use]
pub(crate) fn st31200w() -> DiskSpec {
    let source = "nominal figures of the model (5411 rpm, 2700 cylinders, 9 heads, 84 sectors a track on average, mean \
        seek 10 ms); seeks of 1.2 and 22 ms to the next and over all cylinders, and skew, are assumed";
    let seek = Seek { minimum_ms: 1.2, average_ms: Some(10.0), maximum_ms: 22.0 };
    skewed(rotating("Seagate ST31200W", source, [2700, 9, 84], 60_000.0 / 5411.0, seek), 0.9)
}

/// Seagate Cheetah 15K.7 SAS, 600 GB, 15 000 rpm.
#[must_use]
pub(crate) fn cheetah_15k7() -> DiskSpec {
    let source = "product manual 100516226: 15000 rpm, seek 3.4 ms mean and 0.2 ms to the next track for reads, 122 to \
        204 MB/s, 600 GB, 8 heads; 1272 sectors a track give the mean rate of 163 MB/s; the greatest seek of 7 ms and \
        the head switch of 0.4 ms are assumed";
    let seek = Seek { minimum_ms: 0.2, average_ms: Some(3.4), maximum_ms: 7.0 };
    skewed(rotating("Seagate Cheetah 15K.7", source, [115_170, 8, 1272], 4.0, seek), 0.4)
}

/// Seagate Constellation ES SATA, 2 TB, 7200 rpm.
#[must_use]
pub(crate) fn constellation_es() -> DiskSpec {
    let source = "product manual of the ST32000644NS: 7200 rpm, mean seek 8.5 ms for reads, sustained rate up to 140 \
        MB/s, 2 TB, 8 heads; 1823 sectors a track give a mean rate of 112 MB/s; seeks of 0.6 and 18 ms to the next and \
        over all cylinders and the head switch of 0.8 ms are assumed";
    let seek = Seek { minimum_ms: 0.6, average_ms: Some(8.5), maximum_ms: 18.0 };
    skewed(rotating("Seagate Constellation ES", source, [267_900, 8, 1823], 60_000.0 / 7200.0, seek), 0.8)
}

/// Intel DC S4500, SATA, 960 GB.
#[must_use]
pub(crate) fn dc_s4500() -> DiskSpec {
    let source = "product specification of the S4500 series: random latency 110/52 us, 500/490 MB/s, 4 KB random \
        72000/33000 IOPS; 8 and 2 channels give these rates to within a sixth";
    flash("Intel DC S4500", source, 960.0, [110.0, 52.0], [500.0, 490.0], [8, 2])
}

/// Intel DC P4500, NVMe, 2 TB.
#[must_use]
pub(crate) fn dc_p4500() -> DiskSpec {
    let source = "product guide of the 2 TB P4500: random latency 85/20 us, 3200/1050 MB/s, 4 KB random 490000/38000 \
        IOPS; 42 and 1 channels give these rates to within a third";
    flash("Intel DC P4500", source, 2000.0, [85.0, 20.0], [3200.0, 1050.0], [42, 1])
}

const CHEN_LEE: &str = "Chen & Lee (1993), Table 1";
const SALEM: &str = "Salem & Garcia-Molina (1986)";
const REVOLUTION_3600_MS: f64 = 60_000.0 / 3600.0;

/// `counts`: cylinders, tracks of a cylinder, sectors of a track.
fn rotating(name: &str, source: &str, counts: [u32; 3], revolution_ms: f64, seek: Seek) -> DiskSpec {
    let [cylinders, tracks_per_cylinder, sectors_per_track] = counts;
    let (head_switch_ms, skewed, command_ms) = (0.0, false, 0.0);
    let mechanism = Mechanism::Rotating(Rotating {
        cylinders,
        tracks_per_cylinder,
        sectors_per_track,
        revolution_ms,
        seek,
        head_switch_ms,
        skewed,
        command_ms,
    });
    DiskSpec { name: name.to_owned(), source: source.to_owned(), mechanism }
}

fn linear(minimum_ms: f64, maximum_ms: f64) -> Seek {
    Seek { minimum_ms, average_ms: None, maximum_ms }
}

/// The same disk with heads that take a time to switch, and tracks that begin accordingly.
fn skewed(mut disk: DiskSpec, head_switch_ms: f64) -> DiskSpec {
    if let Mechanism::Rotating(rotating) = &mut disk.mechanism {
        (rotating.head_switch_ms, rotating.skewed) = (head_switch_ms, true);
    }
    disk
}

/// Pairs are of reads and writes: latencies in microseconds, rates in units of 10^6 bytes a second, channels.
fn flash(name: &str, source: &str, capacity_gb: f64, us: [f64; 2], mb_s: [f64; 2], channels: [u32; 2]) -> DiskSpec {
    let mechanism = Mechanism::Flash(Flash {
        capacity_gb,
        read_us: us[0],
        write_us: us[1],
        read_mb_s: mb_s[0],
        write_mb_s: mb_s[1],
        read_channels: channels[0],
        write_channels: channels[1],
    });
    DiskSpec { name: name.to_owned(), source: source.to_owned(), mechanism }
}
