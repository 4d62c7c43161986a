//! A file system on an array, where the kernel has no NBD client of its own: `nbdfuse` makes the export a file, a loop
//! device makes that a disk.
//!
//! Takes root, `/dev/fuse` and loop devices.

mod fsx;
mod fuse;
mod hang;
mod health;
mod opening;
mod reshape;
mod sectors;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Seek as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use uraid_tests::array::Array;
use uraid_tests::image::{Random, assert_same};
use uraid_tests::process::Process;
use uraid_tests::run::{CLIENT_TIME_MAX, client, client_command};
use uraid_tests::server::Server;
use uraid_tests::shape;

/// The command that serves an array, and the lines that it logs.
fn logged(array: &Array, options: &[&str]) -> (Command, impl Iterator<Item = String> + use<>) {
    let log = array.path("log");
    let _ = fs::remove_file(&log);
    mkfifoat(CWD, &log, Mode::RUSR | Mode::WUSR).unwrap();
    let (sender, lines) = channel();
    let fifo = log.clone();
    // Opening it waits for the server. Nobody else has it open for writing, so that it ends with the server.
    std::thread::spawn(move || send_lines(File::open(fifo).unwrap(), &sender));
    let server = Server::command(array, array.members(), options);
    let mut command = Command::new("bash");
    command.args(["-c", "exec \"$@\" 2>\"$0\""]).arg(&log).arg(server.get_program()).args(server.get_args());
    (command, patiently(lines))
}

/// The lines that a pipe has. They end with it, or when none comes for too long.
fn lines_of(pipe: impl Read + Send + 'static) -> impl Iterator<Item = String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || send_lines(pipe, &sender));
    patiently(lines)
}

fn send_lines(pipe: impl Read, sender: &Sender<String>) {
    BufReader::new(pipe).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
}

fn patiently(lines: Receiver<String>) -> impl Iterator<Item = String> + use<> {
    std::iter::from_fn(move || lines.recv_timeout(CLIENT_TIME_MAX).ok())
}

/// An export as a loop device, on a mount point of its own; taken down again when dropped.
struct Disk {
    nbdfuse: Process,
    device: String,
    mount_point: PathBuf,
    file: PathBuf,
}

impl Disk {
    /// Attaches what `server` exports.
    fn attach(array: &Array, server: &Server) -> Self {
        let (file, mount_point) = (array.path("disk"), array.path("mounted"));
        fs::write(&file, "").unwrap();
        fs::create_dir_all(&mount_point).unwrap();
        let mut command = client_command("nbdfuse");
        command.arg(&file).arg(server.uri());
        let nbdfuse = Process::start(command);
        let mut disk = Self { nbdfuse, device: String::new(), mount_point, file };
        until_mounted(&disk.file);
        let attached = client("losetup", [Path::new("--find"), Path::new("--show"), &disk.file]).success();
        disk.device = attached.text().trim().to_owned();
        disk
    }

    fn mount(&self) {
        let _ = client("mount", [Path::new(&self.device), &self.mount_point]).success();
    }

    fn unmount(&self) {
        let _ = client("umount", [&self.mount_point]).success();
        // Nothing is left to mend.
        let _ = client("fsck.ext4", ["-fn", &self.device]).success();
    }

    /// Writes a file. Nothing of the file system is opened here: what other tests are just starting has it open, too,
    /// until it runs, and keeps it from being unmounted.
    fn put(&self, name: &str, content: &[u8]) {
        let copied = self.file.with_file_name("copied");
        fs::write(&copied, content).unwrap();
        let _ = client("cp", [&copied, &self.mount_point.join(name)]).success();
    }

    /// What a file has.
    fn get(&self, name: &str) -> Vec<u8> {
        let copied = self.file.with_file_name("copied");
        let _ = client("cp", [&self.mount_point.join(name), &copied]).success();
        fs::read(&copied).unwrap()
    }

    fn sync(&self) {
        let _ = client("sync", [Path::new("-f"), &self.mount_point]).success();
    }

    /// Detaches it; everything that was written is the server's then.
    fn detach(mut self) {
        let _ = client("losetup", ["--detach", &self.device]).success();
        self.device.clear();
        let _ = client("umount", [&self.file]).success();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // After a failure some of it is there, and some is not.
        if !self.device.is_empty() {
            let _ = client("umount", [&self.mount_point]);
            let _ = client("losetup", ["--detach", &self.device]);
            self.nbdfuse.signal(Signal::TERM);
        }
    }
}

/// Waits for a file system to be mounted at `path`: the kernel says when the list of mounts has changed
/// (proc_pid_mounts(5)).
fn until_mounted(path: &Path) {
    let deadline = Instant::now() + CLIENT_TIME_MAX;
    let mut mounts = File::open("/proc/self/mounts").unwrap();
    loop {
        let mut listed = String::new();
        mounts.rewind().unwrap();
        mounts.read_to_string(&mut listed).unwrap();
        if listed.lines().any(|line| line.split(' ').nth(1) == path.to_str()) {
            return;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "nothing was mounted at {}", path.display());
        let patience = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap() + 1, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&mounts, PollFlags::PRI)], Some(&patience)).unwrap();
    }
}

#[test]
fn a_log_ends_with_its_server() {
    let array = Array::planned(&shape::raid1_of_2());
    let (command, mut log) = logged(&array, &[]);
    let _ = Process::start(command).finish(CLIENT_TIME_MAX).code_is(1);
    assert!(log.next().is_some_and(|line| line.contains("No such file")));
    assert_eq!(log.next(), None);
}

#[test]
fn ext4_is_made_used_and_clean_and_survives_lost_members() {
    let array = Array::create_sized(&shape::rm2_of_7_adjacent(), 32 << 20);
    let server = Server::start(&array);
    let disk = Disk::attach(&array, &server);
    let _ = client("mkfs.ext4", ["-q", &disk.device]).success();
    disk.mount();
    let mut random = Random::new(11);
    let mut content = || {
        let length = random.below(4 << 20);
        random.bytes(length)
    };
    let contents: Vec<Vec<u8>> = (0..12).map(|_| content()).collect();
    let name = |file: usize| format!("file{file}");
    for (file, content) in contents.iter().enumerate() {
        disk.put(&name(file), content);
    }
    let path = |file: usize| disk.mount_point.join(name(file));
    fs::remove_file(path(3)).unwrap();
    fs::rename(path(4), path(3)).unwrap();
    disk.unmount();
    disk.detach();
    let _ = server.stop();

    array.remove(&[1, 4]);
    let server = Server::start_members(&array, &array.without(&[1, 4]), &["--degraded"]);
    let disk = Disk::attach(&array, &server);
    disk.mount();
    for (file, content) in contents.iter().enumerate().filter(|(file, _)| *file != 3) {
        let found = disk.get(&name(if file == 4 { 3 } else { file }));
        assert_same(&found, content, &format!("file {file}"));
    }
    disk.put("more", &contents[0]);
    disk.unmount();
    disk.detach();
    let _ = server.stop();
}

/// What a file system does not need any more, the members' files do not keep.
#[test]
fn fstrim_gives_space_back() {
    let array = Array::planned(&shape::raid5_of_5_left_symmetric());
    let _ = array.run_create(64 << 20, &["--sparse"]).success();
    let server = Server::start(&array);
    let disk = Disk::attach(&array, &server);
    let _ = client("mkfs.ext4", ["-q", &disk.device]).success();
    disk.mount();
    let content = Random::new(12).bytes(96 << 20);
    disk.put("file", &content);
    disk.put("kept", &content[..1 << 20]);
    disk.sync();
    let full = array.space();
    assert!(full >= 96 << 20, "the file has space");
    fs::remove_file(disk.mount_point.join("file")).unwrap();
    // Before that is durable its blocks are not free.
    disk.sync();
    let _ = client("fstrim", [&disk.mount_point]).success();
    disk.sync();
    let left = array.space();
    assert!(left + (90 << 20) <= full, "{full} bytes became {left}");
    assert_same(&disk.get("kept"), &content[..1 << 20], "what is kept");
    disk.unmount();
    disk.detach();
    let _ = server.stop();
}
