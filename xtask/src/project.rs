//! The workspace as the commands see it: where it is, what cargo says of it, how to run a program in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde_json::Value;
use uraid_tests::binary;

/// How the server is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// As users build it
    #[default]
    Release,
    /// As tests build it, with assertions
    Checked,
}

/// The workspace that this program belongs to.
pub(crate) struct Project {
    root: PathBuf,
}

impl Project {
    /// The workspace around the package that cargo runs.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("start this through `cargo xtask`")?;
        let root = Path::new(&manifest).parent().context("the xtask package lies inside the workspace")?;
        Ok(Self { root: root.to_owned() })
    }

    /// The workspace's top directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A cargo command in the workspace.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = binary::cargo();
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// What `cargo metadata` prints of the workspace's own packages.
    pub(crate) fn metadata(&self) -> anyhow::Result<Value> {
        let output = output(&mut self.cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
        serde_json::from_str(&output).context("cargo metadata prints JSON")
    }

    /// What `cargo metadata` prints of the workspace's packages and of all that they depend on.
    pub(crate) fn metadata_of_all(&self) -> anyhow::Result<Value> {
        let output = output(&mut self.cargo(&["metadata", "--locked", "--format-version", "1"]))?;
        serde_json::from_str(&output).context("cargo metadata prints JSON")
    }

    /// Where cargo puts what it builds.
    pub(crate) fn target(&self) -> anyhow::Result<PathBuf> {
        let metadata = self.metadata()?;
        let target = metadata["target_directory"].as_str().context("cargo metadata names the target directory")?;
        Ok(target.into())
    }

    /// Builds the server: its path.
    pub(crate) fn server(&self, profile: Profile) -> anyhow::Result<PathBuf> {
        if profile == Profile::Checked {
            return self.checked("uraid");
        }
        run_program(&mut self.cargo(&["build", "--release", "--package", "uraid"]))?;
        Ok(self.target()?.join("release/uraid"))
    }

    /// Builds a program as tests build it: its path. It is built as a part of the workspace and beside a small test, so
    /// that libraries have the features that tests ask for; without, many would be built again for tests.
    pub(crate) fn checked(&self, program: &str) -> anyhow::Result<PathBuf> {
        let (bin, beside) = (["--bin", program], ["--test", "allocations"]);
        let mut build = self.cargo(&["build", "--workspace", "--profile=checked"]);
        run_program(build.args(bin).args(beside))?;
        Ok(self.target()?.join("checked").join(program))
    }

    /// The commit's full number.
    pub(crate) fn commit(&self) -> anyhow::Result<String> {
        let mut git = Command::new("git");
        git.args(["-c", "safe.directory=*", "rev-parse", "HEAD"]).current_dir(&self.root);
        Ok(output(&mut git)?.trim().to_owned())
    }

    /// Every file of the work tree that git tracks or would track, relative to the top directory, in order.
    pub(crate) fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut git = Command::new("git");
        git.args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = output(git.current_dir(&self.root))?;
        let mut files: Vec<PathBuf> = listed.split_terminator('\0').map(PathBuf::from).collect();
        files.retain(|file| self.root.join(file).exists());
        files.sort();
        files.dedup();
        Ok(files)
    }
}

/// Runs a command that inherits the terminal; an error when it can't start or doesn't exit with 0.
pub(crate) fn run_program(command: &mut Command) -> anyhow::Result<()> {
    let line = command_line(command);
    eprint_step(&line);
    let status = command.status().with_context(|| format!("starting `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Says on standard error what is being done.
#[expect(clippy::print_stderr, reason = "progress for the person at the terminal")]
pub(crate) fn eprint_step(step: &str) {
    eprintln!("xtask: {step}");
}

/// What a command prints; an error when it can't start or doesn't exit with 0.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let line = command_line(command);
    let output = command.output().with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` prints UTF-8"))
}

/// A command as a person would type it.
pub(crate) fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
