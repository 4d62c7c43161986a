//! A RAID 5 of three images of a small Ceph, each on one OSD of its own, through qemu-nbd. A qemu-nbd is killed, and an
//! OSD is: of that nobody tells the array, whose requests hang until it is there again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use uraid_tests::array::Array;
use uraid_tests::process::Process;
use uraid_tests::run::{client_command, is_installed};
use uraid_tests::shape;

use super::rig::Rig;
use crate::counts::Counts;
use crate::project::{eprint_step, output};

/// What Debian has all of it in.
const PACKAGES: &str = "ceph-mon ceph-osd ceph-common qemu-block-extra";

const PROGRAMS: [&str; 6] = ["monmaptool", "ceph-mon", "ceph-osd", "ceph", "rbd", "qemu-nbd"];

/// Of each image. An OSD has room for more.
const IMAGE: &str = "128M";
const OSD_BYTES: u64 = 1 << 30;

/// How long a part of the cluster may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the monitor listens: what Ceph has for it.
const PORTS: [u16; 2] = [3300, 6789];

/// Plays the scenes, where a Ceph is installed.
///
/// # Errors
/// As those of the network.
pub(super) fn play(counts: &mut Counts) -> anyhow::Result<()> {
    if !PROGRAMS.iter().all(|program| is_installed(program)) {
        eprint_step(&format!("no scenes with Ceph, which is not installed: apt-get install {PACKAGES}"));
        return Ok(());
    }
    let array = Array::planned(&shape::raid5_of_3());
    let mut ceph = Ceph::start(&array)?;
    let uris: Vec<PathBuf> = (0..3).map(|number| ceph.uri(number)).collect();
    let rig = Rig::start(&array, &uris)?;
    rig.play(counts, "a qemu-nbd that is killed", |rig| {
        ceph.exports[1].signal(Signal::KILL);
        rig.lost(1)?;
        ceph.exports[1] = ceph.export(1)?;
        Ok(())
    })?;
    rig.play(counts, "an OSD that is killed", |rig| {
        ceph.osds[2].signal(Signal::KILL);
        rig.lost(2)?;
        ceph.osds[2] = ceph.osd(2)?;
        Ok(())
    })?;
    rig.finish()
}

/// A monitor, three OSDs, and a server of each one's image; the servers end first, and the monitor last.
struct Ceph {
    directory: PathBuf,
    exports: Vec<Process>,
    osds: Vec<Process>,
    monitor: Option<Process>,
}

impl Ceph {
    fn start(array: &Array) -> anyhow::Result<Self> {
        let directory = array.path("ceph");
        std::fs::create_dir_all(directory.join("mon"))?;
        let mut ceph = Self { directory, exports: Vec::new(), osds: Vec::new(), monitor: None };
        std::fs::write(ceph.configuration(), ceph.settings())?;
        let [one, other] = PORTS;
        let (map, at) = (ceph.path("monmap"), format!("[v2:127.0.0.1:{one},v1:127.0.0.1:{other}]"));
        let mut command = client_command("monmaptool");
        command.args(["--create", "--fsid", FSID, "--addv", "a", &at]).arg(&map);
        ceph.complete(&mut command)?;
        let mut command = ceph.command("ceph-mon");
        command.args(["--mkfs", "-i", "a", "--monmap"]).arg(&map);
        ceph.complete(&mut command)?;
        let mut command = ceph.command("ceph-mon");
        ceph.monitor = Some(ceph.daemon(command.args(["-i", "a"]), "mon.a")?);
        for number in 0..3 {
            ceph.make_osd(number)?;
        }
        for number in 0..3 {
            ceph.make_image(number)?;
        }
        Ok(ceph)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn configuration(&self) -> PathBuf {
        self.path("ceph.conf")
    }

    fn settings(&self) -> String {
        let at = self.directory.display();
        format!(
            "[global]
fsid = {FSID}
mon initial members = a
mon host = [v2:127.0.0.1:{},v1:127.0.0.1:{}]
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd objectstore = bluestore
bluestore block size = {OSD_BYTES}
osd memory target = 1073741824
run dir = {at}
log file = {at}/$name.log
admin socket = {at}/$name.asok
pid file = {at}/$name.pid
[mon.a]
mon data = {at}/mon
[osd]
osd data = {at}/osd$id
",
            PORTS[0], PORTS[1]
        )
    }

    /// A program of this Ceph, to be given arguments.
    fn command(&self, program: &str) -> Command {
        let mut command = client_command(program);
        command.arg("-c").arg(self.configuration());
        command
    }

    fn complete(&self, command: &mut Command) -> anyhow::Result<()> {
        Process::complete(command, &self.path("log"), PATIENCE)
    }

    /// Starts a daemon that writes its process id where it is told to.
    fn daemon(&self, command: &mut Command, name: &str) -> anyhow::Result<Process> {
        let pid_file = self.path(&format!("{name}.pid"));
        let _ = std::fs::remove_file(&pid_file);
        Process::start_daemon(command, &self.path("log"), &pid_file)
    }

    fn make_osd(&mut self, number: usize) -> anyhow::Result<()> {
        std::fs::create_dir(self.path(&format!("osd{number}")))?;
        let uuid = format!("00000000-0000-4000-8000-00000000000{number}");
        self.complete(self.command("ceph").args(["osd", "new", &uuid]))?;
        let number_text = number.to_string();
        self.complete(self.command("ceph-osd").args(["-i", &number_text, "--mkfs", "--osd-uuid", &uuid]))?;
        let osd = self.osd(number)?;
        self.osds.push(osd);
        Ok(())
    }

    /// Starts an OSD that was made.
    fn osd(&self, number: usize) -> anyhow::Result<Process> {
        self.daemon(self.command("ceph-osd").args(["-i", &number.to_string()]), &format!("osd.{number}"))
    }

    /// An image in a pool of its own, which one OSD alone has; and a server of it.
    fn make_image(&mut self, number: usize) -> anyhow::Result<()> {
        let [osd, class, rule, pool] = ["osd.", "class", "rule", "pool"].map(|kind| format!("{kind}{number}"));
        self.until_up(&osd)?;
        let commands: [&[&str]; 5] = [
            &["osd", "crush", "rm-device-class", &osd],
            &["osd", "crush", "set-device-class", &class, &osd],
            &["osd", "crush", "rule", "create-replicated", &rule, "default", "osd", &class],
            &["osd", "pool", "create", &pool, "1", "1", "replicated", &rule],
            &["osd", "pool", "application", "enable", &pool, "rbd"],
        ];
        for words in commands {
            self.complete(self.command("ceph").args(words))?;
        }
        let image = format!("{pool}/disk");
        // With a lock of Ceph's own a server that is killed keeps the next one waiting for half a minute.
        let features = ["--image-feature", "layering"];
        self.complete(self.command("rbd").args(["create", &image, "--size", IMAGE]).args(features))?;
        let export = self.export(number)?;
        self.exports.push(export);
        Ok(())
    }

    /// Waits until an OSD serves, and has the class that it finds for itself.
    fn until_up(&self, osd: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let said = output(self.command("ceph").args(["osd", "info", osd])).unwrap_or_default();
            let class = output(self.command("ceph").args(["osd", "crush", "get-device-class", osd]));
            if said.contains(" up ") && class.is_ok_and(|class| !class.trim().is_empty()) {
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "{osd} does not serve: {said}");
        }
    }

    fn socket(&self, number: usize) -> PathBuf {
        self.path(&format!("export{number}.sock"))
    }

    fn uri(&self, number: usize) -> PathBuf {
        format!("nbd+unix:///?socket={}", self.socket(number).display()).into()
    }

    /// Starts a server of an image. While the one before it still has a connection it has the socket's path.
    fn export(&self, number: usize) -> anyhow::Result<Process> {
        let socket = self.socket(number);
        let _ = std::fs::remove_file(&socket);
        let name = format!("export{number}");
        let mut command = client_command("qemu-nbd");
        command.args(["--fork", "--persistent", "--shared=8", "--format=raw", "-k"]).arg(&socket);
        command.arg(format!("--pid-file={}", self.path(&format!("{name}.pid")).display()));
        command.arg(image(number, &self.configuration()));
        self.daemon(&mut command, &name).with_context(|| format!("serving image {number}"))
    }
}

/// A cluster that lives for some minutes, and knows no other one.
const FSID: &str = "00000000-0000-4000-8000-0000000000ff";

fn image(number: usize, configuration: &Path) -> String {
    format!("rbd:pool{number}/disk:conf={}", configuration.display())
}
