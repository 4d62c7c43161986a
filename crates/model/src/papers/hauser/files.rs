//! Processes that read whole files, and how long each file takes them.

use uraid_layout::{Bytes, Lba, Level, Sectors};

use crate::mech::stats::regression;
use crate::mech::{ArraySpec, Error, Nanos, Request, Source, Spindles, StopRule, System, presets};
use uraid_random::Random;

/// How the machine reads a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// What it asks for at a time; unless given, the whole file.
    cluster: Option<Bytes>,
    /// Whether opening a file reads a block of the file system's own, anywhere in the volume.
    opens: bool,
    /// Whether what is beyond a file's direct blocks is elsewhere, behind an indirect block.
    spills: bool,
    /// Whether a disk takes time for each command.
    has_command_time: bool,
    spindles: Spindles,
}

/// How long files take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Retrieval {
    /// The mean with one process, in seconds.
    pub(super) alone_s: f64,
    /// What each process more adds to the mean, in seconds.
    pub(super) additional_s: f64,
}

/// Sizes of files in KB. There are as many files of each; the mean is 162.5 KB.
pub const SIZES_KIB: [u64; 10] = [50, 75, 100, 125, 150, 175, 200, 225, 250, 275];

/// What the paper's disks have for users' data: 863 MB.
const USED: Sectors = Sectors(863_000_000 / 512);

/// The file system's block, and what it reads at a time.
const BLOCK: Sectors = Sectors(16);
const CLUSTER: Bytes = Bytes(56 << 10);

/// What an inode's twelve direct blocks reach. Beyond it a file has an indirect block and goes on in another cylinder
/// group: McKusick, Joy, Leffler & Fabry, A Fast File System for UNIX (1984), section 3.3, whose 48 KB are twelve
/// blocks of 4 KB.
const DIRECT: Sectors = Sectors(12 * BLOCK.0);

/// The most processes at a time.
pub const PROCESSES: usize = 12;

impl Reading {
    /// As the machine's file system does: a block for the inode, then clusters of 7 blocks of 8 KB, one after the
    /// other; beyond 96 KB an indirect block, and the rest behind it in another cylinder group.
    pub(super) const OPENED: Self =
        Self { cluster: Some(CLUSTER), opens: true, spills: true, has_command_time: true, spindles: Spindles::Apart };

    /// Other ways to read: with other clusters or none, with and without opening, files in one piece.
    pub(super) fn others() -> Vec<Self> {
        let together = Self { spindles: Spindles::Together, ..Self::OPENED };
        let clusters = [8, 16, 32, 56, 128].map(|kib| Some(Bytes(kib << 10)));
        let readings = clusters.into_iter().chain([None]);
        let whole = Self { spills: false, ..Self::OPENED };
        let others = readings.flat_map(|cluster| [true, false].map(|opens| Self { cluster, opens, ..whole }));
        let free = Self { has_command_time: false, ..Self::OPENED };
        [Self::OPENED, together, free].into_iter().chain(others).collect()
    }

    pub(super) fn title(self) -> String {
        let opened = if self.opens { "files opened, then " } else { "files " };
        let pieces = if self.spills { ", large ones in two pieces" } else { "" };
        let pieces = if self.has_command_time { pieces.to_owned() } else { format!("{pieces}, commands without time") };
        let turning = if self.spindles == Spindles::Together { ", spindles synchronised" } else { "" };
        match self.cluster {
            Some(cluster) => format!("{opened}read {} KB at a time{pieces}{turning}", cluster.0 >> 10),
            None => format!("{opened}read in one request{pieces}{turning}"),
        }
    }
}

/// Reads files with 1 to 12 processes: ART and AAT.
pub(super) fn simulate(
    level: Level,
    disks: u8,
    volumes: usize,
    unit_kib: Option<u64>,
    reading: Reading,
    files: u64,
    seed: u64,
) -> Result<Retrieval, Error> {
    // A simple volume is one disk, and its unit is nothing that matters.
    let chunk = Bytes(unit_kib.unwrap_or(64) << 10);
    let command_ms = if reading.has_command_time { presets::COMMAND_MS } else { 0.0 };
    let spec = ArraySpec {
        used: Some(USED),
        spindles: reading.spindles,
        ..ArraySpec::new(presets::with_commands(presets::st31200w(), command_ms), disks, level, chunk)
    };
    let mut system = System::new(&vec![spec; volumes])?;
    let capacity = system.geometry(0).capacity();
    let mut means = Vec::new();
    for processes in 1..=PROCESSES {
        let mut reader = Reader::new(capacity, volumes, processes, reading, files, seed ^ processes as u64);
        system.run(&mut reader, processes, &StopRule::exactly(0, u64::MAX))?;
        means.push((processes as f64, reader.mean_s()));
    }
    Ok(Retrieval { alone_s: means[0].1, additional_s: regression(&means) })
}

/// Processes that read file after file.
struct Reader {
    random: Random,
    capacity: Sectors,
    volumes: usize,
    cluster: Sectors,
    reading: Reading,
    /// Each process's file.
    open: Vec<Option<Open>>,
    left: u64,
    read: u64,
    total_ns: u128,
}

/// A file that is being read.
#[derive(Clone, Copy)]
struct Open {
    volume: usize,
    /// The piece that is being read.
    next: Lba,
    left: Sectors,
    /// What is behind an indirect block elsewhere.
    beyond: Sectors,
    is_open: bool,
    begun: Nanos,
}

impl Reader {
    fn new(capacity: Sectors, volumes: usize, processes: usize, reading: Reading, files: u64, seed: u64) -> Self {
        let cluster = reading.cluster.map_or(Sectors(u64::MAX), Bytes::whole_sectors);
        let open = vec![None; processes];
        Self { random: Random::new(seed), capacity, volumes, cluster, reading, open, left: files, read: 0, total_ns: 0 }
    }

    fn mean_s(&self) -> f64 {
        self.total_ns as f64 / self.read.max(1) as f64 / 1e9
    }

    /// Another file, anywhere.
    fn another(&mut self, now: Nanos) -> Option<Open> {
        self.left = self.left.checked_sub(1)?;
        let size = Bytes(self.random.pick(&SIZES_KIB) << 10).whole_sectors();
        let volume = self.random.index(self.volumes);
        let left = if self.reading.spills { size.min(DIRECT) } else { size };
        let beyond = Sectors(size.0 - left.0);
        let next = self.place(left);
        Some(Open { volume, next, left, beyond, is_open: !self.reading.opens, begun: now })
    }

    /// Anywhere in a volume, at a block.
    fn place(&mut self, len: Sectors) -> Lba {
        Lba(self.random.below((self.capacity.0 - len.0) / BLOCK.0) * BLOCK.0)
    }
}

impl Source for Reader {
    fn next(&mut self, process: usize, now: Nanos) -> Option<Request> {
        let file = self.open[process].take();
        let file = match file {
            Some(file) if file.left.0 > 0 => file,
            Some(Open { beyond: beyond @ Sectors(1..), volume, .. }) => {
                // The indirect block, which is in front of the rest.
                let lba = self.place(Sectors(BLOCK.0 + beyond.0));
                let rest =
                    Open { next: Lba(lba.0 + BLOCK.0), left: beyond, beyond: Sectors(0), ..file.expect("it is open") };
                self.open[process] = Some(rest);
                return Some(Request { volume, is_write: false, lba, len: BLOCK });
            }
            finished => {
                if let Some(file) = finished {
                    self.total_ns += u128::from(now.0 - file.begun.0);
                    self.read += 1;
                }
                self.another(now)?
            }
        };
        if !file.is_open {
            self.open[process] = Some(Open { is_open: true, ..file });
            return Some(Request { volume: file.volume, is_write: false, lba: self.place(BLOCK), len: BLOCK });
        }
        let len = Sectors(file.left.0.min(self.cluster.0));
        let rest = Open { next: Lba(file.next.0 + len.0), left: Sectors(file.left.0 - len.0), ..file };
        self.open[process] = Some(rest);
        Some(Request { volume: file.volume, is_write: false, lba: file.next, len })
    }
}
