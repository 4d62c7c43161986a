//! The Debian packages that commands need: found by their programs, installed with apt-get when root.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::project::{eprint_step, run_program};

/// A Debian package and a program of it.
type Package = (&'static str, &'static str);

/// What the end-to-end tests run.
pub(crate) const TESTS: &[Package] = &[
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("libnbd-bin", "nbdcopy"),
    ("libnbd-bin", "nbdinfo"),
    ("libnbd-bin", "nbdfuse"),
    // nbdinfo asks it what an export holds.
    ("file", "file"),
    ("e2fsprogs", "mkfs.ext4"),
    ("mount", "losetup"),
    ("nbd-client", "nbd-client"),
    ("qemu-utils", "qemu-img"),
    ("qemu-utils", "qemu-io"),
    // What prints fingerprints of certificates.
    ("openssl", "openssl"),
    // What draws drawings.
    ("librsvg2-bin", "rsvg-convert"),
    // Told by `mogrify`: some machines have another program of the name `convert`.
    ("imagemagick", "mogrify"),
    // What looks at pages.
    ("chromium", "chromium"),
    // Shells that completions are for, and what shows manual pages.
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("man-db", "man"),
];

/// What those of them run that mount file systems, and cargo installs.
pub(crate) const MOUNT_CRATES: &[&str] = &["fsx"];

/// What the fuzzer's own library is built with.
pub(crate) const FUZZ: &[Package] = &[("g++", "c++")];

/// What the Debian package is made with.
pub(crate) const PACKAGE: &[Package] = &[("dpkg-dev", "dpkg-shlibdeps"), ("binutils", "strip"), ("git", "git")];

/// What a fresh Debian is made with.
pub(crate) const TRIAL: &[Package] = &[("debootstrap", "debootstrap")];

/// What virtual machines are made of, and what is run in them.
pub(crate) const VM: &[Package] = &[
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("busybox-static", "busybox"),
    ("kmod", "modprobe"),
    ("cpio", "cpio"),
    ("util-linux", "setpriv"),
    ("e2fsprogs", "mkfs.ext4"),
    ("xfsprogs", "mkfs.xfs"),
    ("btrfs-progs", "mkfs.btrfs"),
    ("mdadm", "mdadm"),
    ("nbd-client", "nbd-client"),
    ("nbdkit", "nbdkit"),
    ("fio", "fio"),
    ("qemu-utils", "qemu-nbd"),
    ("gcc", "gcc"),
    ("make", "make"),
];

/// Where Debian puts programs that an ordinary user's `PATH` may not name.
const SYSTEM_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Makes sure that every program of `needed` is there: installs what is missing when `install` is allowed and the user
/// is root, else fails with the command to run.
///
/// # Errors
/// When apt-get fails, or a program is missing although apt-get succeeded.
pub(crate) fn ensure(needed: &[Package], install: bool) -> anyhow::Result<()> {
    let absent = missing(needed);
    if absent.is_empty() {
        return Ok(());
    }
    if !install || !rustix::process::geteuid().is_root() {
        bail!("{}", advice(&absent));
    }
    eprint_step(&format!("installing packages that this needs: {}", absent.join(" ")));
    run_program(Command::new("apt-get").arg("update").env("DEBIAN_FRONTEND", "noninteractive"))?;
    apt_install(&absent)?;
    // Where a package came from another release (backports, say), apt removes it for a new one that breaks it. The
    // whole list then brings it back in the version that goes with the rest.
    if !missing(needed).is_empty() {
        apt_install(&packages(needed.iter()))?;
    }
    let still = missing(needed);
    if still.is_empty() {
        return Ok(());
    }
    bail!("apt-get succeeded, yet programs of these packages are not in PATH: {}", still.join(" "))
}

fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("apt-get");
    command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    run_program(command.env("DEBIAN_FRONTEND", "noninteractive"))
}

/// The packages of which a program is missing, each once.
fn missing(needed: &[Package]) -> Vec<&'static str> {
    packages(needed.iter().filter(|(_, program)| !installed(program)))
}

/// The packages' names, each once.
fn packages<'a>(needed: impl Iterator<Item = &'a Package>) -> Vec<&'static str> {
    let mut packages: Vec<&str> = needed.map(|&(package, _)| package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Whether there is such a program.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
        || SYSTEM_DIRECTORIES.iter().any(|directory| Path::new(directory).join(program).is_file())
}

fn advice(absent: &[&str]) -> String {
    let mut advice = String::from("programs are missing from these Debian packages:\n");
    for package in absent {
        writeln!(advice, "    {package}").expect("a string takes every write");
    }
    let sudo = if rustix::process::geteuid().is_root() { "" } else { "sudo " };
    write!(advice, "Install them with:\n    {sudo}apt-get update && {sudo}apt-get install --yes ")
        .expect("a string takes every write");
    advice + "--no-install-recommends " + &absent.join(" ")
}
