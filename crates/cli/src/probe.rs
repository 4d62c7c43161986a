//! Measures a disk with a few reads: the time to reach a random place, and the rate of reading from there.
//!
//! Nothing is written and the disk is not locked, so other users of the disk affect the result.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use rustix::fs::{SeekFrom, seek};
use uraid_io::buf::Buf;
use uraid_io::member::{Access, Member};
use uraid_layout::Bytes;
use uraid_random::Random;

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Average time until a read at a random place begins.
    pub(crate) positioning_ms: f64,
    /// Rate of long reads, in units of 10^6 bytes per second.
    pub(crate) transfer_mb_s: f64,
}

/// Minimum size to measure; a disk's own memory holds less.
const SIZE_MIN: Bytes = Bytes(64 << 20);
const BLOCK: Bytes = Bytes(4 << 10);
const LONG_BLOCK: Bytes = Bytes(1 << 20);
/// Reads at random places, and how long they may take together.
const RANDOM_READS_MAX: u32 = 300;
const RANDOM_TIME_MAX: Duration = Duration::from_secs(3);
/// Places to start long reads from, and the number of long reads at each.
const PLACES: u64 = 4;
const LONG_READS: u64 = 16;

/// Measures a file or block device in a few seconds.
pub(crate) fn measure(path: &Path) -> Result<Measured> {
    let name = path.display();
    ensure!(
        !has_holes(path).with_context(|| format!("can't look at {name}"))?,
        "{name} is sparse: no disk is read for what was never written to a file, so measuring it tells nothing; name \
         the block device, or a file that was written in full (dd if=/dev/urandom of=FILE bs=1M count=256)"
    );
    let member = Member::open(path, Access::Inspect)?;
    ensure!(
        member.is_direct(),
        "{name} is read through the machine's memory, so its disk can't be measured; name a block device, or a file on \
         a file system with direct I/O"
    );
    ensure!(member.size() >= SIZE_MIN, "{name} is too small to tell; name a file or device of at least 64 MiB");
    let transfer_mb_s = transfer(&member)?;
    let positioning_ms = (positioning(&member)? - BLOCK.0 as f64 / transfer_mb_s / 1e3).max(0.001);
    Ok(Measured { positioning_ms, transfer_mb_s })
}

/// Whether a file has parts that are not on its disk, because they were never written or are compressed.
fn has_holes(path: &Path) -> io::Result<bool> {
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Ok(false);
    }
    // Space that is allocated but not written is a hole, too. There is always a hole at the end of a file.
    let hole = seek(&File::open(path)?, SeekFrom::Hole(0)).unwrap_or(metadata.len());
    Ok(hole < metadata.len() || metadata.blocks() * 512 < metadata.len())
}

/// The rate of sequential reads, without the first read at each place, in units of 10^6 bytes per second.
fn transfer(member: &Member) -> Result<f64> {
    let mut buffer = Buf::zeroed(LONG_BLOCK);
    let (mut time, mut bytes) = (Duration::ZERO, 0);
    let blocks = member.size().0 / LONG_BLOCK.0;
    for place in 0..PLACES {
        let first = place * (blocks - LONG_READS) / PLACES;
        let mut begun = Instant::now();
        for read in 0..LONG_READS {
            member.read_at(Bytes((first + read) * LONG_BLOCK.0), &mut buffer)?;
            if read == 0 {
                begun = Instant::now();
            } else {
                bytes += LONG_BLOCK.0;
            }
        }
        time += begun.elapsed();
    }
    Ok(bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9))
}

/// The mean time of a short read at a random place, in milliseconds.
fn positioning(member: &Member) -> Result<f64> {
    let mut buffer = Buf::zeroed(BLOCK);
    // Use other places each time, because a disk caches what was read last.
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut random = Random::new(since.as_nanos() as u64);
    let begun = Instant::now();
    let mut reads = 0;
    while reads < RANDOM_READS_MAX && begun.elapsed() < RANDOM_TIME_MAX {
        let block = random.below(member.size().0 / BLOCK.0);
        member.read_at(Bytes(block * BLOCK.0), &mut buffer)?;
        reads += 1;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3 / f64::from(reads))
}
