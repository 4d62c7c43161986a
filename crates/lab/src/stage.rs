//! The arrays of a run: makes their members, serves them, and removes everything again.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use uraid_layout::Bytes;

use crate::plan::{Arrays, Config, Storage};
use crate::{Error, native};

/// The name of arrays and exports.
pub(crate) const EXPORT: &str = "uraid-bench";

/// What `uraid create` looks at to tell whether a member is blank, at either end.
const ENDS: u64 = 4 << 20;

/// Directories and devices of a run.
pub(crate) struct Stage<'a> {
    arrays: &'a Arrays,
    program: &'a Path,
    /// This run's directories, which are removed at the end: for sockets, then for members.
    scratch: Vec<PathBuf>,
    /// What the servers say.
    log: PathBuf,
    /// Whether the devices hold an array of this run.
    is_used: bool,
}

/// A server.
pub(crate) struct Server {
    child: Child,
    /// Kept open: the server writes to it.
    _lines: BufReader<ChildStdout>,
    pub(crate) socket: PathBuf,
    pub(crate) uri: String,
    pub(crate) size: Bytes,
    /// Whether the array was made for this server, and nobody has filled it.
    pub(crate) is_new: bool,
}

impl<'a> Stage<'a> {
    /// The directories that a run uses, which nobody else has.
    pub(crate) fn scratch(arrays: &Arrays) -> Vec<PathBuf> {
        let name = format!("uraid-bench-{}", std::process::id());
        let members = match &arrays.place {
            Storage::Directories { paths, .. } => paths.as_slice(),
            Storage::Devices { .. } => &[],
        };
        std::iter::once(std::env::temp_dir()).chain(members.iter().cloned()).map(|path| path.join(&name)).collect()
    }

    /// Makes a run's directories.
    pub(crate) fn set_up(
        arrays: &'a Arrays,
        program: &'a Path,
        scratch: Vec<PathBuf>,
        out: &Path,
    ) -> Result<Self, Error> {
        for path in &scratch {
            // The same directory may be named twice.
            fs::create_dir_all(path).map_err(Error::io("make the directory", path))?;
        }
        Ok(Self { arrays, program, scratch, log: log(out), is_used: false })
    }

    /// Removes the servers' log if they had nothing to say.
    pub(crate) fn drop_empty_log(out: &Path) {
        let log = log(out);
        if fs::metadata(&log).is_ok_and(|metadata| metadata.len() == 0) {
            // An empty file does no harm.
            let _ = fs::remove_file(log);
        }
    }

    /// Removes what a run left, if it is a run's.
    pub(crate) fn sweep(scratch: &[PathBuf]) -> Result<(), Error> {
        let is_ours = |path: &&PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("uraid-bench-")) && path.is_dir()
        };
        let remove = |path: &PathBuf| fs::remove_dir_all(path).map_err(Error::io("remove", path));
        // What can't be removed must not keep the rest.
        let results: Vec<_> = scratch.iter().filter(is_ours).map(remove).collect();
        results.into_iter().collect()
    }

    /// The members of an array; different caches share them.
    fn members(&self, config: &Config) -> Vec<PathBuf> {
        match &self.arrays.place {
            Storage::Devices { paths } => paths.clone(),
            Storage::Directories { .. } => {
                let places = self.scratch[1..].iter().cycle().take(self.arrays.members);
                let name = |index| format!("{}-{}-member{index}.img", config.level, config.chunk);
                places.enumerate().map(|(index, place)| place.join(name(index))).collect()
            }
        }
    }

    /// A directory of this run, not on its members' disks.
    pub(crate) fn directory(&self) -> &Path {
        &self.scratch[0]
    }

    /// What the members of an array have room for, together.
    pub(crate) fn raw(&self, config: &Config) -> Result<Bytes, Error> {
        let size = |path: PathBuf| {
            let end = File::open(&path).and_then(|mut file| file.seek(SeekFrom::End(0)));
            end.map_err(Error::io("read", &path))
        };
        self.members(config).into_iter().map(size).sum::<Result<u64, Error>>().map(Bytes)
    }

    /// Serves an array, and makes it first unless it is there.
    pub(crate) fn serve(&mut self, config: &Config) -> Result<Server, Error> {
        let members = self.members(config);
        let is_there = match &self.arrays.place {
            Storage::Directories { .. } => members[0].exists(),
            // The other caches of an array follow each other, but the next array is on the same devices.
            Storage::Devices { .. } => false,
        };
        if !is_there {
            self.create(config, &members)?;
        }
        let mut server = self.start(config, &members)?;
        server.is_new = !is_there;
        Ok(server)
    }

    fn create(&mut self, config: &Config, members: &[PathBuf]) -> Result<(), Error> {
        let mut create = Command::new(self.program);
        create.args(["create", "--name", EXPORT, "--level", &config.level, "--chunk", &config.chunk.to_string()]);
        match &self.arrays.place {
            Storage::Directories { member_size, .. } => {
                create.arg("--size").arg(member_size.to_string());
            }
            Storage::Devices { .. } if self.is_used => {
                create.arg("--force");
            }
            // The first creation refuses what is not blank.
            Storage::Devices { .. } => {}
        }
        let output = create.args(members).stdin(Stdio::null()).output().map_err(Error::io("run", self.program))?;
        if !output.status.success() {
            return Err(failed("create", &String::from_utf8_lossy(&output.stderr)));
        }
        self.is_used = matches!(self.arrays.place, Storage::Devices { .. });
        Ok(())
    }

    fn start(&self, config: &Config, members: &[PathBuf]) -> Result<Server, Error> {
        let socket = self.scratch[0].join("s");
        let log =
            OpenOptions::new().create(true).append(true).open(&self.log).map_err(Error::io("write", &self.log))?;
        let mut serve = Command::new(self.program);
        serve.args(["serve", "--exit-with-parent", "--export", EXPORT, "--cache", &config.cache, "--socket"]);
        serve.arg(&socket).arg("--cache-size").arg(self.arrays.cache_size.to_string()).args(members);
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        // Ctrl-C is for the laboratory, which stops its servers when nothing uses them any more.
        serve.process_group(0);
        let mut child = serve.spawn().map_err(Error::io("run", self.program))?;
        let mut lines = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut line = String::new();
        // The first line is the URI, and comes when clients can connect.
        let is_served = lines.read_line(&mut line).is_ok_and(|_| line.starts_with("nbd+unix:"));
        let mut server =
            Server { child, _lines: lines, socket, uri: line.trim().to_owned(), size: Bytes(0), is_new: false };
        if !is_served {
            drop(server);
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            return Err(failed("serve", said.lines().next_back().unwrap_or_default()));
        }
        server.size = native::size(&server.socket, EXPORT)?;
        Ok(server)
    }
}

/// What the servers say.
fn log(out: &Path) -> PathBuf {
    out.join("server.log")
}

fn failed(command: &str, said: &str) -> Error {
    let said = said.trim().trim_start_matches("uraid: ").to_owned();
    Error::Program { program: format!("uraid {command}"), said }
}

impl Server {
    /// Stops the server and waits for its end.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        self.signal(Signal::TERM);
        let status = self.child.wait().map_err(Error::io("wait for", Path::new("uraid serve")))?;
        if status.success() { Ok(()) } else { Err(failed("serve", &status.to_string())) }
    }

    fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = Pid::from_raw(self.child.id().cast_signed()).map(|pid| kill_process(pid, signal));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let _ = Self::sweep(&self.scratch);
        if self.is_used
            && let Storage::Devices { paths } = &self.arrays.place
        {
            // As they were found.
            for path in paths {
                let _ = blank(path);
            }
        }
    }
}

/// Zeroes the ends of a device, which make it a member.
fn blank(path: &Path) -> std::io::Result<()> {
    let mut device = File::options().write(true).open(path)?;
    let size = device.seek(SeekFrom::End(0))?;
    for start in [0, size.saturating_sub(ENDS)] {
        device.seek(SeekFrom::Start(start))?;
        device.write_all(&vec![0; usize::try_from(ENDS.min(size - start)).unwrap_or(0)])?;
    }
    device.sync_all()
}
