//! A file behind FUSE that nbdkit answers for, so that what is done with it can hang and fail.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use uraid_tests::process::Process;
use uraid_tests::run::{client, client_command};

use super::until_mounted;

/// It is unmounted when dropped.
pub(super) struct Fuse {
    nbdfuse: Process,
    file: PathBuf,
}

/// What the shell does first when nbdkit is asked for something: `$3` is the length, `$4` the offset.
#[derive(Default)]
pub(super) struct Before {
    pub(super) read: String,
    pub(super) write: String,
    pub(super) flush: String,
}

impl Fuse {
    /// `file` with the content of `disk`, which has `size` bytes.
    pub(super) fn on(file: PathBuf, disk: &Path, size: usize, before: &Before) -> Self {
        let (disk, Before { read, write, flush }) = (disk.display(), before);
        let script = [
            "--command".to_owned(),
            "nbdkit".to_owned(),
            "-s".to_owned(),
            "eval".to_owned(),
            format!("get_size=echo {size}"),
            format!(
                "pread={read}dd if={disk} bs=1M skip=$4 count=$3 iflag=count_bytes,skip_bytes,fullblock status=none"
            ),
            format!(
                "pwrite={write}dd of={disk} bs=1M conv=notrunc seek=$4 oflag=seek_bytes iflag=fullblock status=none"
            ),
            "can_write=exit 0".to_owned(),
            "can_flush=exit 0".to_owned(),
            format!("flush={flush}exit 0"),
        ];
        Self::mount(file, script.map(OsString::from))
    }

    /// `file` as nbdfuse makes it with these arguments.
    pub(super) fn mount(file: PathBuf, arguments: impl IntoIterator<Item = OsString>) -> Self {
        fs::write(&file, "").unwrap();
        let mut command = client_command("nbdfuse");
        command.arg(&file).args(arguments);
        let nbdfuse = Process::start(command);
        until_mounted(&file);
        Self { nbdfuse, file }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Whether nothing is answered any more.
    pub(super) fn hang(&self, is_on: bool) {
        self.nbdfuse.signal(if is_on { Signal::STOP } else { Signal::CONT });
    }

    /// Has everything fail from now on, what hangs too.
    pub(super) fn kill(&mut self) {
        self.nbdfuse.kill();
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // What waits for it gets an error then, and nothing that unmounts it hangs.
        self.kill();
        let _ = client("umount", [OsStr::new("--lazy"), self.file.as_os_str()]);
    }
}
