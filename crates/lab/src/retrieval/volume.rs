//! A file system on a served array: attached as a block device, formatted with ext4, mounted and unmounted.
//!
//! Mounts are made in a mount namespace of this process's own, so they disappear with it, whatever ends it. The loop
//! device of `nbdfuse`'s file is freed with its last mount, and `nbdfuse` ends with this process.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde::{Deserialize, Serialize};
use uraid_layout::Bytes;

use crate::stage::{EXPORT, Server};
use crate::{Error, native};

/// How the kernel gets at the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The kernel's NBD client, set up by `nbd-client`.
    Nbd,
    /// `nbdfuse`, whose file a loop device makes a block device.
    Nbdfuse,
}

/// Who needs the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A served array as a block device.
pub(super) struct Volume {
    /// The device, or the file that `nbdfuse` makes of the array.
    path: PathBuf,
    /// Where it is mounted.
    root: PathBuf,
    socket: PathBuf,
    attachment: Attachment,
}

enum Attachment {
    Nbd,
    Nbdfuse(Child),
    Detached,
}

/// What a file system needs for its own tables at least.
pub(super) const OVERHEAD: Bytes = Bytes(16 << 20);

/// Connections to the server.
const CONNECTIONS: &str = "4";

/// How long `nbdfuse` or the kernel may take to connect.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(5);

impl Way {
    /// The one that this machine has: the kernel's client if it can be had, or `nbdfuse`.
    ///
    /// # Errors
    /// If it has neither; the error says what to install.
    pub fn of_this_machine() -> Result<Self, Error> {
        let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
        let driver = || {
            let modprobe = Command::new("modprobe").args(["--quiet", "nbd"]).status();
            Path::new("/sys/module/nbd").exists() || modprobe.is_ok_and(|status| status.success())
        };
        if has("nbd-client") && driver() {
            return Ok(Self::Nbd);
        }
        if has("nbdfuse") && has("setpriv") && Path::new("/dev/fuse").exists() {
            return Ok(Self::Nbdfuse);
        }
        Err(Error::Refused(
            "a file system on an array needs nbd-client and the kernel's nbd driver, or nbdfuse and FUSE (Debian: apt \
             install nbd-client, or apt install libnbd-bin fuse3)"
                .into(),
        ))
    }
}

/// Checks that this process may mount file systems and has the program that makes them.
///
/// # Errors
/// If not; the error says what to do.
pub fn ensure_root() -> Result<(), Error> {
    if !geteuid().is_root() {
        return Err(Error::Refused("only root can mount the file systems that are measured: use sudo".into()));
    }
    match Command::new("mkfs.ext4").arg("-V").output() {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::Missing { program: "mkfs.ext4", advice: "install e2fsprogs" }),
    }
}

/// Has mounts that are made from now on disappear with this process and those that it starts.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn keep_mounts_private() -> Result<(), Error> {
    let of_its_own = || {
        #[expect(deprecated, reason = "no descriptor table is unshared, which is what makes its replacement unsafe")]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS)?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
    };
    of_its_own().map_err(|error| Error::io("make a mount namespace at", Path::new("/"))(error.into()))
}

impl Volume {
    /// Makes a block device of an array; it keeps its files in `directory`.
    pub(super) fn attach(server: &Server, way: Way, directory: &Path) -> Result<Self, Error> {
        let root = directory.join("mount");
        fs::create_dir_all(&root).map_err(Error::io("make the directory", &root))?;
        let (path, attachment) = match way {
            Way::Nbd => (connect(server)?, Attachment::Nbd),
            Way::Nbdfuse => {
                let path = directory.join("array");
                let nbdfuse = start_nbdfuse(server, &path)?;
                (path, Attachment::Nbdfuse(nbdfuse))
            }
        };
        Ok(Self { path, root, socket: server.socket.clone(), attachment })
    }

    /// Makes an empty file system, all of whose tables are written.
    pub(super) fn format(&self) -> Result<(), Error> {
        let options = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
        run(Command::new("mkfs.ext4").args(options).arg(&self.path))
    }

    /// Does something with the mounted file system, and unmounts it. What was written is durable then, and no cache of
    /// the kernel keeps any of it.
    pub(super) fn mounted<T>(&self, access: Access, run: impl FnOnce(&Path) -> Result<T, Error>) -> Result<T, Error> {
        let mut options = vec![if access == Access::Read { "ro" } else { "rw" }];
        if matches!(self.attachment, Attachment::Nbdfuse(_)) {
            options.push("loop");
        }
        self::run(Command::new("mount").args(["-t", "ext4", "-o", &options.join(",")]).args([&self.path, &self.root]))?;
        let done = run(&self.root);
        let unmounted = self::run(Command::new("umount").arg(&self.root));
        let done = done?;
        unmounted?;
        if access == Access::Write {
            native::flush(&self.socket, EXPORT)?;
        }
        Ok(done)
    }

    /// Takes the block device away. The array can be stopped then.
    pub(super) fn detach(mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.attachment, Attachment::Detached) {
            Attachment::Nbd => run(Command::new("nbd-client").arg("-d").arg(&self.path)),
            Attachment::Nbdfuse(child) => end(child, &self.path),
            Attachment::Detached => Ok(()),
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if !matches!(self.attachment, Attachment::Detached) {
            // Something failed before; that is what is reported.
            let _ = run(Command::new("umount").arg("--quiet").arg(&self.root));
            let _ = self.release();
        }
    }
}

/// Connects the first NBD device that is free.
fn connect(server: &Server) -> Result<PathBuf, Error> {
    let entries = fs::read_dir("/sys/block").map_err(Error::io("read", Path::new("/sys/block")))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut devices: Vec<String> = names.filter(|name| name.starts_with("nbd")).collect();
    devices.sort_by_key(|name| (name.len(), name.clone()));
    let is_free = |name: &&String| !Path::new("/sys/block").join(name).join("pid").exists();
    let Some(name) = devices.iter().find(is_free) else {
        return Err(Error::Refused(
            "every NBD device of the kernel is in use: disconnect one with nbd-client -d".into(),
        ));
    };
    let device = Path::new("/dev").join(name);
    let mut client = Command::new("nbd-client");
    client.arg("-unix").arg(&server.socket).arg(&device).args(["-N", EXPORT, "-C", CONNECTIONS]);
    run(&mut client)?;
    let sectors = Path::new("/sys/block").join(name).join("size");
    await_size(server.size, || {
        let text = fs::read_to_string(&sectors).unwrap_or_default();
        Ok(text.trim().parse::<u64>().unwrap_or(0) * 512)
    })?;
    Ok(device)
}

/// Starts `nbdfuse`, which puts the array in place of an empty file. It ends with this process.
fn start_nbdfuse(server: &Server, path: &Path) -> Result<Child, Error> {
    File::create(path).map_err(Error::io("make", path))?;
    let mut nbdfuse = Command::new("setpriv");
    nbdfuse.args(["--pdeathsig", "TERM", "--", "nbdfuse", "-C", CONNECTIONS]).arg(path).arg(&server.uri);
    nbdfuse.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C is for the laboratory, which unmounts first.
    nbdfuse.process_group(0);
    let mut child = nbdfuse.spawn().map_err(Error::io("run", Path::new("nbdfuse")))?;
    let connected = await_size(server.size, || match child.try_wait() {
        Ok(Some(status)) => Err(Error::Program { program: "nbdfuse".into(), said: status.to_string() }),
        _ => Ok(fs::metadata(path).map_or(0, |metadata| metadata.len())),
    });
    match connected {
        Ok(()) => Ok(child),
        Err(error) => {
            // The reason why it did not connect is reported.
            let _ = end(child, path);
            Err(error)
        }
    }
}

/// Waits until a device or file has the array's size.
fn await_size(size: Bytes, mut found: impl FnMut() -> Result<u64, Error>) -> Result<(), Error> {
    let end = Instant::now() + CONNECT_MAX;
    while found()? != size.0 {
        if Instant::now() >= end {
            return Err(Error::Refused("the block device of the array does not appear".into()));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Ends `nbdfuse`.
fn end(mut child: Child, path: &Path) -> Result<(), Error> {
    if matches!(child.try_wait(), Ok(None)) {
        // It may have ended by itself.
        let _ = Pid::from_raw(child.id().cast_signed()).map(|pid| kill_process(pid, Signal::TERM));
    }
    child.wait().map_err(Error::io("wait for", Path::new("nbdfuse")))?;
    // It unmounts its file, unless it was killed.
    let _ = unmount(path, UnmountFlags::DETACH);
    Ok(())
}

fn run(command: &mut Command) -> Result<(), Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source: io::Error| Error::io("run", Path::new(&program))(source))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Program { program, said })
}
