//! The servers that are compared: how each is given its storage and started.
//!
//! Every server exports at least the same capacity under the same name on a unix socket in a directory of its own, and is
//! filled before it is measured. A mode of uraid is one line of [`SERVERS`].

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::fs::OFlags;

use super::generator;
use super::process::Process;
use super::wire::Connection;

/// A server of the comparison.
pub(crate) struct Server {
    /// Its column in the table.
    pub(crate) name: &'static str,
    kind: Kind,
}

enum Kind {
    /// An array of `shape`, served with these options besides the members and the endpoint.
    Uraid {
        shape: &'static Shape,
        serve: &'static [&'static str],
    },
    Nbdkit,
    Qemu,
    NbdServer,
}

/// An array.
struct Shape {
    create: &'static [&'static str],
    members: u64,
    /// Members' worth of data, as a fraction.
    data: (u64, u64),
}

const RAID0: Shape = Shape { create: &["--level=0"], members: 4, data: (4, 1) };
const RAID5: Shape = Shape { create: &["--level=5"], members: 5, data: (4, 1) };
const RM2: Shape = Shape { create: &["--level=rm2", "--rm2-m=3"], members: 7, data: (14, 3) };

/// The server that the others are compared with.
pub(crate) const BASELINE: &str = "nbdkit file";

/// What is compared.
pub(crate) const SERVERS: &[Server] = &[
    Server { name: BASELINE, kind: Kind::Nbdkit },
    Server { name: "uraid RAID 0", kind: Kind::Uraid { shape: &RAID0, serve: &[] } },
    Server { name: "uraid RAID 5", kind: Kind::Uraid { shape: &RAID5, serve: &[] } },
    Server { name: "uraid RM2", kind: Kind::Uraid { shape: &RM2, serve: &[] } },
    Server { name: "qemu-nbd io_uring", kind: Kind::Qemu },
    Server { name: "nbd-server", kind: Kind::NbdServer },
];

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

/// A server that answers on its socket, with every block written. Dropping it stops the server.
pub(crate) struct Running {
    pub(crate) name: &'static str,
    pub(crate) socket: PathBuf,
    /// How it was started, without the directories.
    pub(crate) command: String,
    process: Process,
}

impl Running {
    /// Gives `server` storage for `capacity` bytes in `place`, starts it and fills it.
    pub(crate) fn start(server: &Server, place: &Path, capacity: u64, programs: &Programs) -> anyhow::Result<Self> {
        fs::create_dir(place).with_context(|| format!("creating {}", place.display()))?;
        let (socket, log, pid_file) = (place.join("socket"), place.join("server.log"), place.join("pid"));
        let within = PREPARE_MAX * u32::try_from(capacity.div_ceil(64 * MIB)).context("the capacity is too large")?;
        let mut command = match &server.kind {
            Kind::Uraid { shape, serve } => {
                let members = create(shape, place, capacity, &programs.uraid, within)?;
                let mut command = Command::new(&programs.uraid);
                command.arg("serve").args(*serve).args(["--export", EXPORT, "--socket"]).arg(&socket).args(members);
                command
            }
            Kind::Nbdkit => {
                let mut command = Command::new("nbdkit");
                command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
                command.arg("file").arg(plain_file(place, capacity)?);
                command
            }
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
            Kind::Uraid { .. } | Kind::Nbdkit | Kind::Qemu => Process::start(&mut command, &log)?,
        };
        let command = described(&command, place);
        let mut running = Self { name: server.name, socket, command, process };
        running.await_answer(capacity)?;
        let mut fill = Command::new(&programs.generator);
        fill.args(generator::fill_arguments(&running.socket, EXPORT, capacity));
        Process::complete(&mut fill, &place.join("fill.log"), within).context("filling")?;
        Ok(running)
    }

    /// Makes everything durable that was written, so that no other server's measurement pays for it.
    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        let mut connection = Connection::open(&self.socket, EXPORT)?;
        connection.flush()?;
        connection.close()
    }

    /// Processor time since it started.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        self.process.processor_time()
    }

    /// Waits until the server negotiates; an error when it ends, stays silent or exports less than `capacity`.
    fn await_answer(&mut self, capacity: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_MAX;
        loop {
            self.process.check_alive()?;
            match Connection::open(&self.socket, EXPORT) {
                Ok(connection) => {
                    ensure!(connection.size >= capacity, "exports {} bytes instead of {capacity}", connection.size);
                    return connection.close();
                }
                Err(error) if Instant::now() >= deadline => return Err(error.context("it does not answer")),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Creates an array with at least `capacity` bytes; returns its members.
fn create(shape: &Shape, place: &Path, capacity: u64, uraid: &Path, within: Duration) -> anyhow::Result<Vec<PathBuf>> {
    let members: Vec<PathBuf> = (0..shape.members).map(|slot| place.join(format!("member{slot}"))).collect();
    let mut command = Command::new(uraid);
    command
        .arg("create")
        .args(shape.create)
        .arg("--chunk=64K")
        .arg(format!("--size={}", member_bytes(shape, capacity)));
    Process::complete(command.args(&members), &place.join("create.log"), within)?;
    Ok(members)
}

/// Size of each member: its share of the data, the head area of at most 1 MiB + 1/64, and an incomplete stripe.
fn member_bytes(shape: &Shape, capacity: u64) -> u64 {
    let (numerator, denominator) = shape.data;
    let share = (capacity * denominator).div_ceil(numerator);
    (share + share / 32 + 8 * MIB).next_multiple_of(MIB)
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
        "[generic]\nunixsock = {}\nmaxconnections = {CONNECTIONS_MAX}\n[{EXPORT}]\nexportname = {}\n",
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
            let mib = member_bytes(shape, 1024 * MIB) / MIB;
            assert!((share + 1 + share / 64..share + 32).contains(&mib), "{mib} MiB for {share} MiB of data");
        }
    }

    #[test]
    fn names_are_unique_and_one_is_the_baseline() {
        let mut names: Vec<&str> = SERVERS.iter().map(|server| server.name).collect();
        assert_eq!(names.iter().filter(|name| **name == BASELINE).count(), 1);
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
