//! A guest: QEMU without hardware help, Debian's kernel, the host's file system read-only under a memory overlay.
//!
//! The guest runs one script. What it prints goes to a console log; what it has to say of itself is one line in the
//! file `verdict` of the directory that both share. A guest that says nothing has failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use uraid_tests::process::Process;

use super::kernel::Kernel;

const LIBRARY: &str = include_str!("guest/lib.sh");
/// A guest's memory.
const MEMORY: &str = "4G";
/// File of the share that gets what the guest writes to its second serial port, at once and in order.
pub(super) const REPORTS: &str = "reports";
/// How much of a console log is shown of a guest that failed.
const SHOWN_LINES: usize = 60;

/// What a guest is made of.
#[derive(Clone, Copy)]
pub(super) struct Setup<'a> {
    pub(super) kernel: &'a Kernel,
    /// The program that is tried.
    pub(super) uraid: &'a Path,
    /// Directory that the guest sees as `/run/vm`.
    pub(super) share: &'a Path,
    /// What becomes `/dev/vda` and so on.
    pub(super) disks: Disks<'a>,
    /// The planted bug that every process of the guest has.
    pub(super) planted: Option<&'a str>,
    /// What runs after the library.
    pub(super) script: &'a str,
    /// More variables for the script.
    pub(super) variables: &'a [(&'a str, String)],
}

/// A guest's disks. To the guest each has a write cache that a flush empties.
#[derive(Clone, Copy)]
pub(super) enum Disks<'a> {
    /// Image files, opened past the host's page cache. What is written to them stays, flushed or not.
    Images(&'a [PathBuf]),
    /// Sockets of [`VolatileDisks`](super::volatile::VolatileDisks).
    Volatile(&'a [PathBuf]),
}

/// A guest that runs. Dropping it pulls its plug.
pub(super) struct Machine {
    process: Process,
    share: PathBuf,
    console: PathBuf,
}

impl Machine {
    /// Starts a guest.
    ///
    /// # Errors
    /// When the share can't be written or QEMU does not start.
    pub(super) fn start(setup: &Setup<'_>) -> anyhow::Result<Self> {
        prepare_share(setup)?;
        let console = setup.share.join("console.log");
        let mut command = qemu(setup);
        for file in [&console, &setup.share.join(REPORTS)] {
            command.arg("-serial").arg(format!("file:{}", file.display()));
        }
        let process = Process::start_logged(&mut command, &setup.share.join("qemu.log"))?;
        Ok(Self { process, share: setup.share.to_owned(), console })
    }

    /// Waits for its end and for its verdict.
    ///
    /// # Errors
    /// When it takes longer than `within`, fails or says nothing; with the end of its console log.
    pub(super) fn finish(mut self, within: Duration) -> anyhow::Result<()> {
        let ended = self.process.has_ended(within).map_err(|error| self.explained(&format!("{error:#}")))?;
        if !ended {
            return Err(self.explained(&format!("it did not end within {} s", within.as_secs())));
        }
        match fs::read_to_string(self.share.join("verdict")).unwrap_or_default().trim() {
            "pass" => Ok(()),
            "" => Err(self.explained("it ended without a verdict")),
            verdict => Err(self.explained(verdict)),
        }
    }

    /// What the guest has printed so far.
    pub(super) fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).replace('\r', "")
    }

    /// An error when the guest has ended by itself.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        self.process.check_alive().map_err(|error| self.explained(&format!("{error:#}")))
    }

    /// Cuts the power: nothing that QEMU had not given to its disks reaches them.
    pub(super) fn cut_power(mut self) {
        self.process.kill();
    }

    /// An error that ends with the last lines of the console.
    pub(super) fn explained(&self, what: &str) -> anyhow::Error {
        let printed = self.printed();
        let lines: Vec<&str> = printed.lines().collect();
        let shown = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        anyhow::anyhow!("{what}\n--- the end of {}\n{shown}\n---", self.console.display())
    }
}

/// Runs a guest with the terminal as its console until it is switched off.
///
/// # Errors
/// As [`Machine::start`].
pub(super) fn interactive(setup: &Setup<'_>) -> anyhow::Result<()> {
    prepare_share(setup)?;
    let mut command = qemu(setup);
    command.args(["-serial", "mon:stdio"]);
    let status = command.status().context("starting qemu-system-x86_64")?;
    ensure!(status.success(), "QEMU failed ({status})");
    Ok(())
}

fn qemu(setup: &Setup<'_>) -> Command {
    // Whatever happens to this process, no guest outlives it.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", MEMORY]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"]);
    command.args(["-append", "console=ttyS0 quiet panic=-1"]);
    command.arg("-kernel").arg(&setup.kernel.image).arg("-initrd").arg(&setup.kernel.initramfs);
    let shared = |path: &Path, name: &str, more: &str| {
        let path = path.display().to_string().replace(',', ",,");
        let fsdev = format!("local,id={name},path={path},security_model=none,multidevs=remap{more}");
        ["-fsdev".to_owned(), fsdev, "-device".to_owned(), format!("virtio-9p-pci,fsdev={name},mount_tag={name}")]
    };
    command.args(shared(Path::new("/"), "host", ",readonly=on"));
    command.args(shared(setup.share, "share", ""));
    let (paths, file) = match setup.disks {
        Disks::Images(images) => (images, "discard=unmap,file="),
        Disks::Volatile(sockets) => (sockets, "file.driver=nbd,file.server.type=unix,file.server.path="),
    };
    for (slot, path) in paths.iter().enumerate() {
        let path = path.display().to_string().replace(',', ",,");
        command.arg("-drive").arg(format!("if=none,id=disk{slot},format=raw,cache=none,{file}{path}"));
        command.args(["-device", &format!("virtio-blk-pci,drive=disk{slot},serial=disk{slot}")]);
    }
    command
}

/// Puts what the guest begins with into the share, and takes away what an earlier one left.
fn prepare_share(setup: &Setup<'_>) -> anyhow::Result<()> {
    fs::create_dir_all(setup.share).with_context(|| format!("creating {}", setup.share.display()))?;
    let verdict = setup.share.join("verdict");
    if verdict.exists() {
        fs::remove_file(&verdict)?;
    }
    fs::write(setup.share.join(REPORTS), "")?;
    let mut run = String::new();
    let fixed = [("URAID", setup.uraid.display().to_string()), ("MODULES", setup.kernel.modules.display().to_string())];
    for (name, value) in fixed.iter().chain(setup.variables) {
        if value.contains('\'') {
            bail!("{name}={value}: a path with a quotation mark can't be told to the guest");
        }
        run += &format!("{name}='{value}'\n");
    }
    if let Some(bug) = setup.planted {
        run += &format!("export URAID_MUTANT='{bug}'\n");
    }
    run += LIBRARY;
    run += setup.script;
    run += "\npass\n";
    fs::write(setup.share.join("run"), run).context("writing the guest's script")
}
