//! `cargo xtask network`: an array of three members on three machines, which are network namespaces, with what happens
//! to networks: a server is killed, a link goes down, a machine is cut off and started anew meanwhile, a server stands
//! still, packets are late and lost. Clients read and write all the time, and verify what they read.
//!
//! Each scene ends when the array is whole again. No request takes longer than the write deadline and a little; in the
//! end nothing is lost, and the members agree.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use rustix::process::Signal;
use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, read_export, write_export};
use uraid_tests::process::Process;
use uraid_tests::run::client_command;
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::counts::Counts;
use crate::packages;
use crate::project::{Profile, Project, eprint_step, run_program};

/// What each machine has.
const MEMBER_BYTES: u64 = 128 << 20;

/// What clients read and write of the array, from its start; what is behind it stays as it is.
const LOAD_BYTES: usize = 64 << 20;

/// How long members may take, and how long they have to answer before they return.
const DEADLINE: Duration = Duration::from_secs(3);
const OPTIONS: [&str; 6] = ["--read-deadline", "500ms", "--write-deadline", "3s", "--rejoin-after", "1s"];

/// What a request may take beside the deadline: a round of superblocks, and a busy machine.
const GRACE: Duration = Duration::from_secs(4);

/// How long until a member returns; only what is broken reaches it.
const PATIENCE: Duration = Duration::from_secs(90);

/// How the server is built.
#[derive(Args)]
pub(crate) struct Options {
    /// How the server is built, unless URAID_BIN names one
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
}

/// Plays all scenes.
///
/// # Errors
/// When a client waits for too long or reads what nobody wrote, a member does not return, or something is lost; and
/// when this is not root.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<Counts> {
    packages::ensure(packages::TESTS, false)?;
    if std::env::var_os("URAID_BIN").is_none() {
        binary::choose(&project.server(options.profile)?);
    }
    let mut network = Network::build()?;
    let uris: Vec<PathBuf> = network.hosts.iter().map(Host::uri).collect();
    let arguments = ["create", "--level", "5"].map(PathBuf::from).into_iter().chain(uris.iter().cloned());
    let _ = binary::uraid(arguments).success();
    let server = Server::start_members(&network.array, &uris, &OPTIONS);
    let image = Random::new(1).bytes(network.size()?);
    write_export(server.uri(), &image);
    let mut counts = Counts::new();
    for (name, host, scene) in SCENES {
        let slowest = network.play(&server, name, *host, *scene)?;
        let slowest_ms = u64::try_from(slowest.as_millis()).unwrap_or(u64::MAX);
        eprint_step(&format!("{name}: no request took longer than {slowest_ms} ms"));
        counts.insert(format!("slowest_ms_of_{}", name.replace(' ', "_")), slowest_ms.into());
    }
    let held = read_export(server.uri());
    ensure!(held[LOAD_BYTES..] == image[LOAD_BYTES..], "what clients left alone is not what it was");
    network.scrub()?;
    let _ = server.stop();
    Ok(counts)
}

/// What happens to a machine; the array is whole before and is to be whole afterwards.
type Scene = fn(&mut Network, usize) -> anyhow::Result<()>;

const SCENES: &[(&str, usize, Scene)] = &[
    ("a server that is killed", 1, |network, host| {
        network.hosts[host].signal(Signal::KILL);
        network.lost(host)?;
        network.hosts[host].serve()
    }),
    ("a link that is down", 2, |network, host| {
        network.hosts[host].set_link("down")?;
        network.lost(host)?;
        network.hosts[host].set_link("up")
    }),
    ("a machine that is started anew while it is cut off", 0, |network, host| {
        network.hosts[host].set_link("down")?;
        network.hosts[host].signal(Signal::KILL);
        network.lost(host)?;
        network.hosts[host].set_link("up")?;
        network.hosts[host].serve()
    }),
    ("a server that stands still", 1, |network, host| {
        network.hosts[host].signal(Signal::STOP);
        network.lost(host)?;
        network.hosts[host].signal(Signal::CONT);
        Ok(())
    }),
    ("a network that is slow and loses packets", 2, |network, host| {
        let netem = ["delay", "5ms", "2ms", "loss", "1%"];
        if network.hosts.iter().any(|host| host.disturb(&netem).is_err()) {
            eprint_step("this kernel can't delay or lose packets (sch_netem): the network stays as it is");
        }
        network.hosts[host].signal(Signal::KILL);
        network.lost(host)?;
        network.hosts[host].serve()
    }),
];

/// Machines around this one, and the array that is on them.
struct Network {
    array: Array,
    hosts: Vec<Host>,
}

/// A network namespace with a server in it.
struct Host {
    name: String,
    number: usize,
    directory: PathBuf,
    server: Option<Process>,
}

impl Network {
    fn build() -> anyhow::Result<Self> {
        let array = Array::planned(&shape::raid5_of_3());
        let hosts = (0..3).map(|number| Host::build(&array, number)).collect::<anyhow::Result<_>>()?;
        Ok(Self { array, hosts })
    }

    fn status(&self) -> Value {
        let socket = self.array.socket();
        binary::uraid(["status".as_ref(), "--json".as_ref(), "--socket".as_ref(), socket.as_os_str()]).success().json()
    }

    fn size(&self) -> anyhow::Result<usize> {
        let size = self.status()["size_bytes"].as_u64().context("a status has the size")?;
        Ok(usize::try_from(size)?)
    }

    /// Waits until the status is as it should be.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "{what} takes longer than {PATIENCE:?}: {status:#}");
        }
    }

    /// Waits until a machine's member is given up.
    fn lost(&self, host: usize) -> anyhow::Result<()> {
        self.until("giving up a member", |status| status["members"][host]["state"] == "missing")
    }

    /// Has something happen under load; how long the slowest request has taken.
    fn play(&mut self, server: &Server, name: &str, host: usize, scene: Scene) -> anyhow::Result<Duration> {
        let load = load(server);
        scene(self, host).with_context(|| name.to_owned())?;
        self.until("the member's return", |status| status["health"]["state"] == "whole")?;
        let output = load.finish(PATIENCE).success();
        // Notes of fio may precede the JSON.
        let text = output.text();
        let report: Value = serde_json::from_str(&text[text.find('{').context("fio printed no JSON")?..])?;
        let slowest = |way: &str| report["jobs"][0][way]["clat_ns"]["max"].as_f64().unwrap_or_default();
        let slowest = Duration::from_nanos(slowest("read").max(slowest("write")) as u64);
        ensure!(slowest > Duration::ZERO, "{name}: fio says nothing of its requests: {report:#}");
        ensure!(slowest < DEADLINE + GRACE, "{name}: a request took {slowest:?}");
        Ok(slowest)
    }

    /// Compares the members.
    fn scrub(&self) -> anyhow::Result<()> {
        let socket = self.array.socket();
        let ask = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).into()).chain(["--socket".into(), socket.clone().into()]);
            binary::uraid(words.collect::<Vec<std::ffi::OsString>>()).success()
        };
        let _ = ask(&["scrub", "start"]);
        let _ = ask(&["wait"]);
        let scrub = &self.status()["scrub"];
        if scrub["running"] != false || scrub["mismatched_bytes"] != 0 {
            bail!("the members do not agree: {scrub:#}");
        }
        Ok(())
    }
}

/// Clients that read and write for a while, and verify what they read.
fn load(server: &Server) -> Process {
    let mut fio = client_command("fio");
    fio.args(["--name=load", "--ioengine=nbd", "--thread", "--rw=randrw", "--bsrange=4k-128k", "--iodepth=16"]);
    fio.args(["--verify=crc32c", "--verify_backlog=64", "--verify_state_save=0", "--time_based", "--runtime=20"]);
    fio.args([format!("--size={LOAD_BYTES}"), format!("--uri={}", server.uri()), "--output-format=json".into()]);
    Process::start(fio)
}

impl Host {
    fn build(array: &Array, number: usize) -> anyhow::Result<Self> {
        let name = format!("uraid-{}-{number}", std::process::id());
        let directory = array.members()[number].with_extension("host");
        std::fs::create_dir(&directory)?;
        std::fs::File::create(directory.join("disk"))?.set_len(MEMBER_BYTES)?;
        ip(&["netns", "add", &name])?;
        let mut host = Self { name, number, directory, server: None };
        let (outside, inside) = (host.link(), "inside");
        ip(&["link", "add", &outside, "type", "veth", "peer", "name", inside, "netns", &host.name])?;
        ip(&["address", "add", &format!("{}/30", host.address(1)), "dev", &outside])?;
        ip(&["link", "set", &outside, "up"])?;
        ip(&["-n", &host.name, "address", "add", &format!("{}/30", host.address(2)), "dev", inside])?;
        ip(&["-n", &host.name, "link", "set", inside, "up"])?;
        host.serve()?;
        Ok(host)
    }

    /// Its end of the link is 2, and this machine's is 1. The network is one that is for documentation.
    fn address(&self, end: usize) -> String {
        format!("198.51.100.{}", 4 * self.number + end)
    }

    /// This machine's end of the link; the kernel takes 15 characters.
    fn link(&self) -> String {
        format!("ur{}-{}", std::process::id(), self.number)
    }

    fn uri(&self) -> PathBuf {
        format!("nbd://{}/", self.address(2)).into()
    }

    /// Starts its server.
    fn serve(&mut self) -> anyhow::Result<()> {
        let pid_file = self.directory.join("pid");
        let _ = std::fs::remove_file(&pid_file);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, "nbdkit", "-P"]).arg(&pid_file).arg("file");
        command.arg(self.directory.join("disk"));
        self.server = Some(Process::start_daemon(&mut command, &self.directory.join("log"), &pid_file)?);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        self.server.iter().for_each(|server| server.signal(signal));
    }

    fn set_link(&self, state: &str) -> anyhow::Result<()> {
        ip(&["link", "set", &self.link(), state])
    }

    /// Has packets to it delayed or lost.
    fn disturb(&self, how: &[&str]) -> anyhow::Result<()> {
        let link = self.link();
        let mut command = Command::new("tc");
        run_program(command.args(["qdisc", "replace", "dev", &link, "root", "netem"]).args(how))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.server.take());
        // The link goes with the namespace.
        if let Err(error) = ip(&["netns", "delete", &self.name]) {
            eprint_step(&format!("{} is left behind: {error:#}", self.name));
        }
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    run_program(Command::new("ip").args(arguments))
}
