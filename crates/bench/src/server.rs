//! The servers that are compared: how each is given its storage and started.
//!
//! Every server exports at least the same capacity under the same name on a unix socket in a directory of its own, and
//! is filled before it is measured. A mode of uraid is one line of [`SERVERS`].

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::fs::OFlags;
use uraid_nbd_client::Client;
use uraid_tests::binary;
use uraid_tests::process::{Memory, Process};

use super::{btrfs, generator};

/// A server of the comparison.
pub(crate) struct Server {
    /// Its column in the table.
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// MiB of its own cache, where it has one of a known size.
    pub(crate) cache_mib: Option<u64>,
    kind: Kind,
}

/// What a server takes part for; each workload says whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one that the others are compared with.
    Baseline,
    /// Another program.
    Peer,
    /// uraid as it comes.
    Default,
    /// uraid with its cache in another mode.
    Mode,
    /// uraid with a cache that soon is full.
    SmallCache,
    /// uraid without one of its members.
    Degraded,
    /// uraid with another way to keep redundancy right when the power fails, or none.
    Protection,
    /// uraid's two levels that survive two failures, with as many members and as much room; only where it is named.
    Twin,
}

enum Kind {
    /// An array of `shape`, without its first `missing` members, served with these options besides members and
    /// endpoint.
    Uraid {
        shape: &'static Shape,
        serve: &'static [&'static str],
        missing: usize,
    },
    Nbdkit,
    Qemu,
    NbdServer,
    /// nbdkit on a file of a btrfs RAID 5.
    Btrfs,
}

/// An array.
pub(crate) struct Shape {
    create: &'static [&'static str],
    pub(crate) members: u64,
    /// Members' worth of data, as a fraction.
    data: (u64, u64),
}

const RAID0: Shape = Shape { create: &["--level=0"], members: 4, data: (4, 1) };
pub(crate) const RAID5: Shape = Shape { create: &["--level=5"], members: 5, data: (4, 1) };
pub(crate) const RM2: Shape = Shape { create: &["--level=rm2", "--rm2-m=3"], members: 7, data: (14, 3) };

/// RAID 6 and RM2 with the same members and the same room: four members' worth of six.
pub(crate) const RAID6_OF_6: Shape = Shape { create: &["--level=6"], members: 6, data: (4, 1) };
pub(crate) const RM2_OF_6: Shape = Shape { create: &["--level=rm2", "--rm2-m=3"], members: 6, data: (4, 1) };

const fn without_log(shape: &Shape, create: &'static [&'static str]) -> Shape {
    Shape { create, members: shape.members, data: shape.data }
}

const RAID5_BITMAP: Shape = without_log(&RAID5, &["--level=5", "--consistency=bitmap"]);
const RAID5_NONE: Shape = without_log(&RAID5, &["--level=5", "--consistency=none"]);
const RM2_BITMAP: Shape = without_log(&RM2, &["--level=rm2", "--rm2-m=3", "--consistency=bitmap"]);
const RM2_NONE: Shape = without_log(&RM2, &["--level=rm2", "--rm2-m=3", "--consistency=none"]);

/// A way to serve an array.
struct Mode {
    role: Role,
    cache_mib: u64,
    serve: &'static [&'static str],
    missing: usize,
}

/// The server's own defaults: a write-back cache of 256 MiB.
const DEFAULT: Mode = Mode { role: Role::Default, cache_mib: 256, serve: &[], missing: 0 };
const WRITE_THROUGH: Mode = Mode { role: Role::Mode, cache_mib: 256, serve: &["--cache=writethrough"], missing: 0 };
const UNCACHED: Mode = Mode { role: Role::Mode, cache_mib: 0, serve: &["--cache=none"], missing: 0 };
const SMALL_CACHE: Mode = Mode { role: Role::SmallCache, cache_mib: 32, serve: &["--cache-size=32M"], missing: 0 };
const PROTECTION: Mode = Mode { role: Role::Protection, cache_mib: 256, serve: &[], missing: 0 };
const CONTENT: Mode =
    Mode { role: Role::Protection, cache_mib: 256, serve: &["--full-stripe-log=content"], missing: 0 };
const TWIN: Mode = Mode { role: Role::Twin, cache_mib: 256, serve: &[], missing: 0 };
const TWIN_UNCACHED: Mode = Mode { role: Role::Twin, cache_mib: 0, serve: &["--cache=none"], missing: 0 };
const TWIN_WITHOUT_ONE: Mode = Mode { role: Role::Twin, cache_mib: 256, serve: &["--degraded"], missing: 1 };
const TWIN_WITHOUT_TWO: Mode = Mode { role: Role::Twin, cache_mib: 256, serve: &["--degraded"], missing: 2 };
const DEGRADED: Mode = Mode { role: Role::Degraded, cache_mib: 256, serve: &["--degraded"], missing: 1 };

/// The server that the others are compared with.
pub(crate) const BASELINE: &str = "nbdkit file";

/// A server that does no RAID, and on a disk nothing but direct I/O.
pub(crate) const QEMU: &str = "qemu-nbd io_uring";

/// What is compared.
pub(crate) const SERVERS: &[Server] = &[
    Server { name: BASELINE, role: Role::Baseline, cache_mib: None, kind: Kind::Nbdkit },
    uraid("uraid RAID 0", &RAID0, &DEFAULT),
    uraid("uraid RAID 5", &RAID5, &DEFAULT),
    uraid("uraid RM2", &RM2, &DEFAULT),
    uraid("uraid RAID 0 write-through", &RAID0, &WRITE_THROUGH),
    uraid("uraid RAID 5 write-through", &RAID5, &WRITE_THROUGH),
    uraid("uraid RM2 write-through", &RM2, &WRITE_THROUGH),
    uraid("uraid RAID 0 uncached", &RAID0, &UNCACHED),
    uraid("uraid RAID 5 uncached", &RAID5, &UNCACHED),
    uraid("uraid RM2 uncached", &RM2, &UNCACHED),
    uraid("uraid RAID 5 small cache", &RAID5, &SMALL_CACHE),
    uraid("uraid RM2 small cache", &RM2, &SMALL_CACHE),
    uraid("uraid RAID 5 degraded", &RAID5, &DEGRADED),
    uraid("uraid RAID 5 content", &RAID5, &CONTENT),
    uraid("uraid RM2 content", &RM2, &CONTENT),
    uraid("uraid RAID 5 bitmap", &RAID5_BITMAP, &PROTECTION),
    uraid("uraid RM2 bitmap", &RM2_BITMAP, &PROTECTION),
    uraid("uraid RAID 5 none", &RAID5_NONE, &PROTECTION),
    uraid("uraid RM2 none", &RM2_NONE, &PROTECTION),
    uraid("uraid RAID 6 of 6", &RAID6_OF_6, &TWIN),
    uraid("uraid RM2 of 6", &RM2_OF_6, &TWIN),
    uraid("uraid RAID 6 of 6 uncached", &RAID6_OF_6, &TWIN_UNCACHED),
    uraid("uraid RM2 of 6 uncached", &RM2_OF_6, &TWIN_UNCACHED),
    uraid("uraid RAID 6 of 6 without one", &RAID6_OF_6, &TWIN_WITHOUT_ONE),
    uraid("uraid RM2 of 6 without one", &RM2_OF_6, &TWIN_WITHOUT_ONE),
    uraid("uraid RAID 6 of 6 without two", &RAID6_OF_6, &TWIN_WITHOUT_TWO),
    uraid("uraid RM2 of 6 without two", &RM2_OF_6, &TWIN_WITHOUT_TWO),
    peer(QEMU, Kind::Qemu),
    peer("nbd-server", Kind::NbdServer),
    peer("btrfs RAID 5 + nbdkit", Kind::Btrfs),
];

const fn uraid(name: &'static str, shape: &'static Shape, mode: &'static Mode) -> Server {
    let kind = Kind::Uraid { shape, serve: mode.serve, missing: mode.missing };
    Server { name, role: mode.role, cache_mib: Some(mode.cache_mib), kind }
}

const fn peer(name: &'static str, kind: Kind) -> Server {
    Server { name, role: Role::Peer, cache_mib: None, kind }
}

/// The export's name on every server.
pub(crate) const EXPORT: &str = "bench";

/// Most connections at a time to one server.
const CONNECTIONS_MAX: u64 = 32;
/// How long a server may take until it answers.
const START_MAX: Duration = Duration::from_secs(30);
/// How long creating or filling may take for each 64 MiB.
const PREPARE_MAX: Duration = Duration::from_secs(15);
const MIB: u64 = 1 << 20;

/// The programs that this workspace builds.
pub(crate) struct Programs {
    pub(crate) uraid: PathBuf,
    /// This program, optimised, as the load generator.
    pub(crate) generator: PathBuf,
}

impl Programs {
    /// The end-to-end tests' binary, and this program. The generator must not be what is measured.
    pub(crate) fn find() -> anyhow::Result<Self> {
        ensure!(!cfg!(debug_assertions), "start this through `cargo xtask bench`, which builds it with optimisation");
        let generator = std::env::current_exe().context("looking for this program")?;
        Ok(Self { uraid: binary::path().to_owned(), generator })
    }
}

/// A server that answers on its socket, with every block written. Dropping it stops the server.
pub(crate) struct Running {
    pub(crate) server: &'static Server,
    pub(crate) socket: PathBuf,
    /// How it was started, without the directories.
    pub(crate) command: String,
    process: Process,
}

impl Running {
    /// Gives `server` storage for so many bytes in `place`, starts it and fills it. An array that has a log has one of
    /// this size, or of the default.
    pub(crate) fn start(
        server: &'static Server,
        place: &Path,
        (capacity, log_bytes): (u64, Option<u64>),
        programs: &Programs,
    ) -> anyhow::Result<Self> {
        fs::create_dir(place).with_context(|| format!("creating {}", place.display()))?;
        let (socket, log, pid_file) = (place.join("socket"), place.join("server.log"), place.join("pid"));
        let within = PREPARE_MAX * u32::try_from(capacity.div_ceil(64 * MIB)).context("the capacity is too large")?;
        let mut command = match &server.kind {
            Kind::Uraid { shape, serve, missing } => {
                let members = create(shape, place, (capacity, log_bytes), &programs.uraid, within)?;
                let mut command = Command::new(&programs.uraid);
                command.arg("serve").args(*serve).args(["--export", EXPORT, "--socket"]).arg(&socket);
                command.args(&members[*missing..]);
                command
            }
            Kind::Nbdkit => nbdkit(&socket, &plain_file(place, capacity)?),
            Kind::Btrfs => nbdkit(&socket, &plain_file(&btrfs::mount(place, capacity)?, capacity)?),
            Kind::Qemu => {
                let cache = if direct_works(place) { "--cache=none" } else { "--cache=writeback" };
                let mut command = Command::new("qemu-nbd");
                command.args(["--aio=io_uring", cache, "--persistent", "--format=raw"]);
                command.arg(format!("--shared={CONNECTIONS_MAX}")).args(["--export-name", EXPORT, "--socket"]);
                command.arg(&socket).arg(plain_file(place, capacity)?);
                command
            }
            Kind::NbdServer => {
                let mut command = Command::new("nbd-server");
                command.arg("-C").arg(nbd_server_config(place, capacity, &socket)?).arg("-p").arg(&pid_file);
                command
            }
        };
        // nbd-server serves several clients only as a daemon.
        let process = match server.kind {
            Kind::NbdServer => Process::start_daemon(&mut command, &log, &pid_file)?,
            Kind::Uraid { .. } | Kind::Nbdkit | Kind::Qemu | Kind::Btrfs => Process::start_logged(&mut command, &log)?,
        };
        let command = described(&command, place);
        let mut running = Self { server, socket, command, process };
        running.await_answer(capacity)?;
        let mut fill = Command::new(&programs.generator);
        fill.args(generator::fill_arguments(&running.socket, EXPORT, capacity));
        Process::complete(&mut fill, &place.join("fill.log"), within).context("filling")?;
        Ok(running)
    }

    /// Makes everything durable that was written, so that no other server's measurement pays for it.
    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        let mut client = Client::connect(&self.socket, EXPORT)?;
        client.flush()?;
        Ok(client.disconnect()?)
    }

    /// Processor time since it started.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        self.process.processor_time()
    }

    /// Its memory now.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        self.process.memory()
    }

    /// Waits until the server negotiates; an error when it ends, stays silent or exports less than `capacity`.
    fn await_answer(&mut self, capacity: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_MAX;
        loop {
            self.process.check_alive()?;
            match Client::connect(&self.socket, EXPORT) {
                Ok(client) => {
                    let size = client.size();
                    ensure!(size >= capacity, "exports {size} bytes instead of {capacity}");
                    return Ok(client.disconnect()?);
                }
                Err(error) if Instant::now() >= deadline => {
                    return Err(anyhow::Error::new(error).context("it does not answer"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Creates an array with at least `capacity` bytes, and a log of this size where it has one; returns its members.
pub(crate) fn create(
    shape: &Shape,
    place: &Path,
    (capacity, log): (u64, Option<u64>),
    uraid: &Path,
    within: Duration,
) -> anyhow::Result<Vec<PathBuf>> {
    let members: Vec<PathBuf> = (0..shape.members).map(|slot| place.join(format!("member{slot}"))).collect();
    let mut command = Command::new(uraid);
    command
        .arg("create")
        .args(shape.create)
        .arg("--chunk=64K")
        .arg(format!("--size={}", member_bytes(shape, (capacity, log))));
    if let Some(log) = log.filter(|_| shape.has_log()) {
        command.arg(format!("--log-size={log}"));
    }
    Process::complete(command.args(&members), &place.join("create.log"), within)?;
    Ok(members)
}

impl Shape {
    /// Whether it has a log, as it does with redundancy unless it has something else.
    fn has_log(&self) -> bool {
        self.create != RAID0.create && !self.create.iter().any(|option| option.starts_with("--consistency"))
    }

    /// What `capacity` takes of each member.
    pub(crate) fn share(&self, capacity: u64) -> u64 {
        let (numerator, denominator) = self.data;
        (capacity * denominator).div_ceil(numerator)
    }

    /// What so much of each member gives.
    pub(crate) fn capacity(&self, share: u64) -> u64 {
        let (numerator, denominator) = self.data;
        share * numerator / denominator
    }
}

/// Size of each member: its share of the data, its log, which is 1/16 of it by default, what else is at its head and
/// tail, and an incomplete stripe.
fn member_bytes(shape: &Shape, (capacity, log): (u64, Option<u64>)) -> u64 {
    let share = shape.share(capacity);
    (share + log.unwrap_or(share / 14) + share / 64 + 8 * MIB).next_multiple_of(MIB)
}

fn nbdkit(socket: &Path, file: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket).arg("file").arg(file);
    command
}

fn plain_file(place: &Path, capacity: u64) -> anyhow::Result<PathBuf> {
    let path = place.join("file");
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    file.set_len(capacity)?;
    Ok(path)
}

/// Whether files in `place` can be opened for direct I/O.
fn direct_works(place: &Path) -> bool {
    let path = place.join("direct");
    let flags = i32::try_from(OFlags::DIRECT.bits()).expect("an open flag is a C int");
    let opened = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(&path);
    // What was created goes with the directory at the latest.
    let _ = fs::remove_file(&path);
    opened.is_ok()
}

fn nbd_server_config(place: &Path, capacity: u64, socket: &Path) -> anyhow::Result<PathBuf> {
    let file = plain_file(place, capacity)?;
    let path = place.join("config");
    let text = format!(
        "[generic]\nunixsock = {}\nmaxconnections = {CONNECTIONS_MAX}\n[{EXPORT}]\nexportname = {}\nflush = true\n",
        socket.display(),
        file.display()
    );
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// The command line, with every path cut to its last part.
fn described(command: &Command, place: &Path) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let prefix = format!("{}/", place.display());
    command.get_args().fold(program, |line, word| line + " " + &word.to_string_lossy().replace(&prefix, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_hold_the_capacity_and_their_own_areas() {
        for (shape, share) in [(&RAID0, 256), (&RAID5, 256), (&RM2, 220)] {
            let mib = member_bytes(shape, (1024 * MIB, None)) / MIB;
            assert!((share + 1 + share / 15..share + 32).contains(&mib), "{mib} MiB for {share} MiB of data");
        }
    }

    #[test]
    fn names_are_unique_and_one_is_the_baseline() {
        let mut names: Vec<&str> = SERVERS.iter().map(|server| server.name).collect();
        let baselines: Vec<&Server> = SERVERS.iter().filter(|server| server.role == Role::Baseline).collect();
        assert!(matches!(baselines[..], [Server { name: BASELINE, .. }]));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SERVERS.len());
    }

    #[test]
    fn commands_are_described_without_directories() {
        let mut command = Command::new("/usr/bin/server");
        command.args(["--unix", "/dev/shm/x/socket", "/dev/shm/x/file"]);
        assert_eq!(described(&command, Path::new("/dev/shm/x")), "server --unix socket file");
    }
}
