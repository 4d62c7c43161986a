//! Debian's stock kernel, unpacked and not installed, and the initramfs that it starts with: both kept under
//! `target/vm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::project::{eprint_step, output, run_program};

/// The package that depends on the newest kernel's package.
const META_PACKAGE: &str = "linux-image-amd64";
/// What the initramfs loads: enough to see the host's file system. Everything else is loaded from there.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "9p", "9pnet_virtio", "overlay"];
const INIT: &str = include_str!("guest/init");

/// A kernel that can be started.
pub(super) struct Kernel {
    /// The kernel itself.
    pub(super) image: PathBuf,
    /// Its first file system.
    pub(super) initramfs: PathBuf,
    /// The directory that holds its modules, as `/lib/modules` does.
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// The kernel in `cache`; fetched and unpacked first, unless it is there.
    ///
    /// # Errors
    /// When the package can't be downloaded, or a program that this takes fails.
    pub(super) fn prepare(cache: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(cache).with_context(|| format!("creating {}", cache.display()))?;
        let unpacked = cache.join("kernel");
        if !unpacked.exists() {
            fetch(cache, &unpacked)?;
        }
        let modules = unpacked.join("lib/modules");
        let release = only_entry(&modules, "")?;
        let image = unpacked.join("boot").join(only_entry(&unpacked.join("boot"), "vmlinuz-")?);
        let initramfs = cache.join("initramfs");
        make_initramfs(&unpacked, &release, cache, &initramfs).context("making the initramfs")?;
        Ok(Self { image, initramfs, modules })
    }
}

/// Downloads the newest kernel's package into `cache` and unpacks it; the directory appears when it is whole.
fn fetch(cache: &Path, unpacked: &Path) -> anyhow::Result<()> {
    let package = match newest() {
        Ok(package) => package,
        // A fresh machine has no lists of packages yet.
        Err(_) if rustix::process::geteuid().is_root() => {
            run_program(Command::new("apt-get").arg("update"))?;
            newest()?
        }
        Err(error) => return Err(error.context("`sudo apt-get update` may help")),
    };
    eprint_step(&format!("fetching {package}"));
    let download = cache.join("download");
    discard(&download)?;
    fs::create_dir_all(&download)?;
    run_program(Command::new("apt-get").args(["download", &package]).current_dir(&download))?;
    let archive = download.join(only_entry(&download, "linux-image-")?);
    let partial = cache.join("kernel.partial");
    discard(&partial)?;
    run_program(Command::new("dpkg").arg("-x").arg(&archive).arg(&partial))?;
    let release = only_entry(&partial.join("lib/modules"), "")?;
    run_program(Command::new("depmod").arg("-b").arg(&partial).arg(&release))?;
    fs::rename(&partial, unpacked).context("keeping the unpacked kernel")?;
    discard(&download)
}

/// The package of Debian's newest kernel.
fn newest() -> anyhow::Result<String> {
    let listed = output(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
    let depended = listed.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = depended.with_context(|| format!("{META_PACKAGE} depends on a kernel"))?;
    ensure!(package.starts_with("linux-image-"), "{META_PACKAGE} depends on {package}, which is no kernel");
    Ok(package.to_owned())
}

/// Packs busybox, [`INIT`] and [`MODULES`] with what they need.
fn make_initramfs(unpacked: &Path, release: &str, cache: &Path, initramfs: &Path) -> anyhow::Result<()> {
    let tree = cache.join("initramfs.tree");
    discard(&tree)?;
    for directory in ["bin", "proc", "sys", "dev", "lower", "upper", "root", "modules"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    fs::copy(busybox.context("busybox-static is not installed")?, tree.join("bin/busybox"))?;
    fs::write(tree.join("init"), INIT)?;
    run_program(Command::new("chmod").arg("755").arg(tree.join("init")))?;
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let mut modprobe = Command::new("modprobe");
        modprobe.args(["--config", "/dev/null", "--show-depends", "--dirname"]).arg(unpacked);
        let listed = output(modprobe.args(["--set-version", release, module]))?;
        for path in listed.lines().filter_map(|line| line.strip_prefix("insmod ")).map(str::trim) {
            let name = Path::new(path).file_name().context("a module has a name")?.to_string_lossy().into_owned();
            if !order.contains(&name) {
                fs::copy(path, tree.join("modules").join(&name)).with_context(|| format!("copying {path}"))?;
                order.push(name);
            }
        }
    }
    ensure!(!order.is_empty(), "no module of {} was found", MODULES.join(", "));
    fs::write(tree.join("modules/order"), order.join("\n") + "\n")?;
    let mut pack = Command::new("sh");
    pack.args(["-c", "find . | cpio --quiet --create --format=newc >\"$0\""]).arg(initramfs).current_dir(&tree);
    output(&mut pack)?;
    discard(&tree)
}

/// Removes a directory and what is in it, if it is there.
fn discard(directory: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// The name of the one entry of `directory` that begins with `prefix`.
fn only_entry(directory: &Path, prefix: &str) -> anyhow::Result<String> {
    let entries = fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name.starts_with(prefix));
    match names.as_slice() {
        [name] => Ok(name.clone()),
        _ => bail!("{} holds {} entries that begin with '{prefix}' instead of one", directory.display(), names.len()),
    }
}
