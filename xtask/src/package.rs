//! `cargo xtask package`: the Debian package, and what software it is made of, into `package` in the target directory.
//!
//! The same commit makes the same package, wherever its source is: times come from the commit, and paths are left out
//! of the program. `--twice` shows it, `--try` installs the package in a fresh Debian and uses it there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::packages;
use crate::project::{Project, eprint_step, output, run_program};

/// What to do beside making the package.
#[derive(Args)]
pub(crate) struct Options {
    /// Make it once more from a clone of the commit in another directory, and compare
    #[arg(long)]
    twice: bool,
    /// Install it in a fresh Debian, serve an array with its unit's command, and remove it; as root
    #[arg(long = "try")]
    trial: bool,
    /// Make a program without shared libraries, too, for containers
    #[arg(long = "static")]
    is_static: bool,
}

/// The target triple of the static program: the C library is glibc's, since rustc has no other without rustup.
const STATIC_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Makes the package and does what `options` ask for.
///
/// # Errors
/// A program that is missing or fails, two packages that differ, a package that does not do its work.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    packages::ensure(packages::PACKAGE, true)?;
    for tool in ["cargo-deb", "cargo-cyclonedx"] {
        ensure_tool(project, tool)?;
    }
    let directory = project.target()?.join("package");
    if options.twice {
        // A clone has nothing else.
        ensure!(source_is_committed(project)?, "there are changes that are not committed: --twice compares commits");
    }
    let source = Source { root: project.root().to_owned(), target: directory.join("build") };
    let package = source.package(project, &directory)?;
    list_software(project, &directory)?;
    if options.is_static {
        source.static_program(project, &directory)?;
    }
    if options.twice {
        compare(project, &directory, &package)?;
    }
    if options.trial {
        try_out(&package, &directory)?;
    }
    eprint_step(&format!("package: {}", package.display()));
    Ok(())
}

/// Whether the work tree is as its commit has it.
fn source_is_committed(project: &Project) -> anyhow::Result<bool> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "status", "--porcelain"]).current_dir(project.root());
    Ok(output(&mut git)?.is_empty())
}

/// Installs a command of cargo, where it is not there; without optimisation, which would take minutes more than it
/// saves.
pub(crate) fn ensure_tool(project: &Project, tool: &str) -> anyhow::Result<()> {
    if is_installed(project, tool) {
        return Ok(());
    }
    install(project, tool)
}

/// The same with a program that is no command of cargo.
pub(crate) fn ensure_program(project: &Project, program: &str) -> anyhow::Result<()> {
    if packages::installed(program) {
        return Ok(());
    }
    install(project, program)
}

fn install(project: &Project, tool: &str) -> anyhow::Result<()> {
    run_program(&mut project.cargo(&["install", tool, "--locked", "--quiet", "--debug"]))
}

/// Whether cargo has a command.
pub(crate) fn is_installed(project: &Project, tool: &str) -> bool {
    let command = tool.trim_start_matches("cargo-");
    let mut help = project.cargo(&[command, "--help"]);
    help.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// A work tree, and where cargo puts what it makes of it.
struct Source {
    root: PathBuf,
    target: PathBuf,
}

impl Source {
    /// Makes the package in `directory`: its path.
    fn package(&self, project: &Project, directory: &Path) -> anyhow::Result<PathBuf> {
        run_program(&mut self.cargo(project, &["build", "--release", "--locked", "--package", "uraid"], "")?)?;
        let release = self.target.join("release");
        let made = release.join("package");
        if made.exists() {
            fs::remove_dir_all(&made)?;
        }
        let (man, completions) = (made.join("man"), made.join("completions"));
        fs::create_dir_all(&man)?;
        fs::create_dir_all(&completions)?;
        let program = release.join("uraid");
        run_program(Command::new(&program).arg("man").arg(&man))?;
        for (shell, file) in [("bash", "uraid"), ("zsh", "_uraid"), ("fish", "uraid.fish")] {
            fs::write(completions.join(file), output(Command::new(&program).args(["completions", shell]))?)?;
        }
        let changelog = made.join("changelog.Debian");
        fs::write(&changelog, self.changelog(&program)?)?;
        // Without the time, which it would take from the file.
        run_program(Command::new("gzip").args(["-9", "--no-name", "--recursive"]).arg(&changelog).arg(&man))?;
        fs::create_dir_all(directory)?;
        let mut deb =
            self.cargo(project, &["deb", "--package", "uraid", "--no-build", "--no-dbgsym", "--strip"], "")?;
        let printed = output(deb.arg("--output").arg(directory))?;
        let path = printed.lines().last().context("cargo deb prints the path of the package")?;
        Ok(PathBuf::from(path))
    }

    /// Makes a program that needs no shared library: `uraid` in `directory`, beside what makes an image of it.
    fn static_program(&self, project: &Project, directory: &Path) -> anyhow::Result<()> {
        let build = ["build", "--release", "--locked", "--package", "uraid", "--target", STATIC_TARGET];
        run_program(&mut self.cargo(project, &build, "-C target-feature=+crt-static")?)?;
        let container = directory.join("container");
        fs::create_dir_all(&container)?;
        let program = container.join("uraid");
        fs::copy(self.target.join(STATIC_TARGET).join("release/uraid"), &program)?;
        run_program(Command::new("strip").arg(&program))?;
        fs::copy(self.root.join("crates/cli/container/Containerfile"), container.join("Containerfile"))?;
        let headers = output(Command::new("readelf").arg("--program-headers").arg(&program))?;
        ensure!(!headers.contains("INTERP"), "{} needs a dynamic loader", program.display());
        let version = output(Command::new(&program).arg("--version"))?;
        eprint_step(&format!("static: {} is {}", program.display(), version.trim()));
        Ok(())
    }

    /// A cargo command that makes the same from the same commit, with further `flags` of rustc.
    fn cargo(&self, project: &Project, arguments: &[&str], flags: &str) -> anyhow::Result<Command> {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
        let home = home.context("neither CARGO_HOME nor HOME is set")?;
        let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
        let flags =
            [remap(&home, "/cargo"), remap(&self.root, "/uraid"), remap(&self.target, "/target"), flags.to_owned()];
        let mut command = project.cargo(arguments);
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join(" ").trim_end().replace(' ', "\u{1f}"));
        command.env("SOURCE_DATE_EPOCH", self.git(&["log", "-1", "--format=%ct"])?);
        Ok(command)
    }

    /// Debian's list of changes: one entry, which names the project's.
    fn changelog(&self, program: &Path) -> anyhow::Result<String> {
        let version = output(Command::new(program).arg("--version"))?;
        let version = version.trim().rsplit(' ').next().unwrap_or_default();
        let date = self.git(&["log", "-1", "--date=format-local:%a, %d %b %Y %H:%M:%S +0000", "--format=%cd"])?;
        Ok(format!(
            "uraid ({version}-1) unstable; urgency=medium\n\n  * See /usr/share/doc/uraid/changelog.gz.\n\n \
             -- uraid contributors <uraid@users.noreply.github.com>  {date}\n"
        ))
    }

    fn git(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut git = Command::new("git");
        git.args(["-c", "safe.directory=*"])
            .args(arguments)
            .current_dir(&self.root)
            .env("TZ", "UTC")
            .env("LC_ALL", "C");
        Ok(output(&mut git)?.trim().to_owned())
    }
}

/// Writes which packages of crates.io the program is made of, as CycloneDX.
fn list_software(project: &Project, directory: &Path) -> anyhow::Result<()> {
    let arguments = ["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--target", STATIC_TARGET];
    let mut command = project.cargo(&arguments);
    // It writes beside the manifest of every package of the workspace, and has no option for another place.
    command.args(["--override-filename", "software-of-uraid", "--manifest-path", "crates/cli/Cargo.toml"]);
    let made = run_program(&mut command);
    for file in project.files()?.iter().filter(|file| file.ends_with("software-of-uraid.json")) {
        let file = project.root().join(file);
        if made.is_ok() && file == project.root().join("crates/cli/software-of-uraid.json") {
            fs::copy(&file, directory.join("uraid.cdx.json"))?;
        }
        fs::remove_file(&file)?;
    }
    made?;
    let list = directory.join("uraid.cdx.json");
    ensure!(list.exists(), "cargo cyclonedx wrote no list of software");
    eprint_step(&format!("software: {}", list.display()));
    Ok(())
}

/// Makes the package once more, from a clone in a directory of another name, and compares it with `package`.
fn compare(project: &Project, directory: &Path, package: &Path) -> anyhow::Result<()> {
    let place = directory.join("another-directory");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    let source = Source { root: place.join("source"), target: place.join("target") };
    let mut clone = Command::new("git");
    clone.args(["-c", "safe.directory=*", "clone", "--quiet"]).arg(project.root()).arg(&source.root);
    run_program(&mut clone)?;
    let again = source.package(project, &place)?;
    ensure!(
        fs::read(package)? == fs::read(&again)?,
        "two builds of one commit differ: compare {} and {} with diffoscope",
        package.display(),
        again.display()
    );
    eprint_step("twice: two builds of one commit are the same package");
    Ok(())
}

/// Installs the package in a fresh Debian, lets its unit's command serve an array, and removes the package.
fn try_out(package: &Path, directory: &Path) -> anyhow::Result<()> {
    packages::ensure(packages::TRIAL, true)?;
    ensure!(rustix::process::geteuid().is_root(), "--try takes root, for chroot");
    let root = directory.join("debian");
    if !root.join("usr/bin/apt-get").exists() {
        let mut bootstrap = Command::new("debootstrap");
        bootstrap.args(["--variant=minbase", "--include=systemd,libnbd-bin,man-db,bash-completion", "bookworm"]);
        run_program(bootstrap.arg(&root).arg("http://deb.debian.org/debian"))?;
    }
    let inside = |script: &str| {
        // What is mounted in a namespace of mounts goes with it.
        let mut command = Command::new("unshare");
        command.args(["--mount", "/bin/sh", "-euc", ENTER]).arg(&root).arg(script);
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8").env_remove("TMPDIR");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    };
    fs::copy(package, root.join("tmp/uraid.deb"))?;
    // It may be there from a trial that failed.
    run_program(&mut inside("dpkg --purge uraid; rm -rf /etc/uraid /srv/vault"))?;
    let before = output(&mut inside(FILES))?;
    run_program(&mut inside("dpkg --install /tmp/uraid.deb"))?;
    run_program(&mut inside(CHECK_INSTALLED))?;
    run_program(&mut inside(SERVE))?;
    run_program(&mut inside("dpkg --remove uraid && test -d /etc/uraid"))?;
    run_program(&mut inside("rm -r /etc/uraid/vault.toml /srv/vault /run/uraid/vault; dpkg --purge uraid"))?;
    let after = output(&mut inside(FILES))?;
    let left: Vec<&str> = after.lines().filter(|file| !before.lines().any(|known| known == *file)).collect();
    ensure!(left.is_empty(), "the package leaves behind: {}", left.join(" "));
    eprint_step("try: installed, served and removed");
    Ok(())
}

/// Names every file, but those of the package manager's own records and of accounts, which Debian's packages leave.
const FILES: &str = "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run/systemd \
    -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache -o -path /etc/.pwd.lock -o -name '*-' \\) \
    -prune -o -print";

/// What the package brings is there, and does its work.
const CHECK_INSTALLED: &str = "
    getent passwd uraid
    systemd-analyze verify /lib/systemd/system/uraid@.service /lib/systemd/system/uraid@.socket
    man uraid-create >/dev/null
    bash -n /usr/share/bash-completion/completions/uraid
    test -s /usr/share/doc/uraid/copyright && test -s /usr/share/doc/uraid/changelog.gz
    test -s /usr/share/doc/uraid/examples/array.toml
    test -d /run/uraid/servers";

/// Goes into a directory's Debian and runs a script there.
const ENTER: &str = "mount -t proc proc \"$0/proc\"; exec chroot \"$0\" /bin/sh -euc \"$1\"";

/// The unit's own command serves, as its user, an array that a file describes. A client writes and reads; root's
/// commands find the server without its name, and stop it.
const SERVE: &str = "
    mkdir -p /srv/vault /run/uraid/vault
    uraid create --force --level 5 --name vault --size 32M /srv/vault/a /srv/vault/b /srv/vault/c
    chown -R uraid: /srv/vault /run/uraid/vault
    echo 'members = [\"/srv/vault/a\", \"/srv/vault/b\", \"/srv/vault/c\"]' >/etc/uraid/vault.toml
    command=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/uraid@.service | sed 's/%i/vault/g')
    rm -f /tmp/log && mkfifo /tmp/log
    setpriv --reuid uraid --regid uraid --groups disk env URAID_RUNTIME_DIR=/run/uraid/servers $command >/tmp/log 2>&1 &
    exec 3</tmp/log
    sed -u '/stop with Ctrl-C/q' <&3
    uraid status
    head -c 1048576 /dev/urandom >/tmp/written
    nbdcopy /tmp/written 'nbd+unix:///vault?socket=/run/uraid/vault/nbd.sock'
    nbdcopy 'nbd+unix:///vault?socket=/run/uraid/vault/nbd.sock' - | cmp -n 1048576 - /tmp/written
    uraid stop
    wait $!";
