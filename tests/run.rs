//! Programs that others wrote, found and run to their end.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::process::{Output, Process};

/// How long any client may take; far above what it needs, so that only a hang reaches it.
pub const CLIENT_TIME_MAX: Duration = Duration::from_secs(120);

/// Debian package of each foreign program, for the message when it is missing.
const PACKAGES: &[(&str, &str)] = &[
    ("script", "bsdutils"),
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("losetup", "mount"),
    ("fstrim", "util-linux"),
    ("sync", "coreutils"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("fsck.ext4", "e2fsprogs"),
    ("nbd-client", "nbd-client"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("rsvg-convert", "librsvg2-bin"),
    ("convert", "imagemagick"),
    ("chromium", "chromium"),
    ("openssl", "openssl"),
    ("bash", "bash"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("man", "man-db"),
];

/// Foreign programs that cargo installs.
const CRATES: &[&str] = &["fsx"];

/// Runs a foreign client to its end with the arguments given.
#[track_caller]
pub fn client<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Output {
    let mut command = client_command(program);
    command.args(arguments);
    run(command)
}

/// A foreign client's command, to be given arguments.
#[must_use]
#[track_caller]
pub fn client_command(program: &str) -> Command {
    let Some(found) = find(program) else {
        if CRATES.contains(&program) {
            panic!("{program} is missing: `cargo install --locked {program}`, or run `cargo xtask test`");
        }
        let package = PACKAGES.iter().find(|(name, _)| *name == program).map_or(program, |(_, package)| package);
        panic!("{program} is missing: `apt-get install {package}`, or run `cargo xtask test` as root");
    };
    Command::new(found)
}

/// Whether a foreign client is there.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// Runs `command` to its end within [`CLIENT_TIME_MAX`].
#[must_use]
#[track_caller]
pub fn run(command: Command) -> Output {
    Process::start(command).finish(CLIENT_TIME_MAX)
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let further = ["/usr/sbin".into(), "/sbin".into()].into_iter().chain(cargo.map(|home| home.join("bin")));
    let mut directories = std::env::split_paths(&path).chain(further);
    directories.find_map(|directory| Some(directory.join(program)).filter(|file| file.is_file()))
}
