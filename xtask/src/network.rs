//! `cargo xtask network`: an array of three members on three machines, which are network namespaces, with what happens
//! to networks: a server is killed, a link goes down, a machine is cut off and started anew meanwhile, a server stands
//! still, packets are late and lost. The same with images of a small Ceph, where one is installed, whose servers and
//! OSDs are killed. Clients read and write all the time, and verify what they read.
//!
//! Each scene ends when the array is whole again. No request takes longer than the write deadline and a little; in the
//! end nothing is lost, and the members agree.

mod ceph;
mod rig;

use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use rustix::process::Signal;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::process::Process;
use uraid_tests::shape;

use crate::counts::Counts;
use crate::packages;
use crate::project::{Profile, Project, eprint_step, run_program};
use rig::Rig;

/// What each machine has.
const MEMBER_BYTES: u64 = 128 << 20;

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
    let mut counts = Counts::new();
    play_network(&mut counts)?;
    ceph::play(&mut counts)?;
    Ok(counts)
}

fn play_network(counts: &mut Counts) -> anyhow::Result<()> {
    let array = Array::planned(&shape::raid5_of_3());
    let mut hosts = (0..3).map(|number| Host::build(&array, number)).collect::<anyhow::Result<Vec<_>>>()?;
    let uris: Vec<PathBuf> = hosts.iter().map(Host::uri).collect();
    let rig = Rig::start(&array, &uris)?;
    for (name, host, scene) in SCENES {
        rig.play(counts, name, |rig| scene(rig, &mut hosts, *host))?;
    }
    counts.insert("hedged".to_owned(), rig.hedged().into());
    rig.finish()
}

/// What happens to a machine; the array is whole before and is to be whole afterwards.
type Scene = fn(&Rig<'_>, &mut [Host], usize) -> anyhow::Result<()>;

const SCENES: &[(&str, usize, Scene)] = &[
    ("a server that is killed", 1, |rig, hosts, host| {
        hosts[host].signal(Signal::KILL);
        rig.lost(host)?;
        hosts[host].serve()
    }),
    ("a link that is down", 2, |rig, hosts, host| {
        hosts[host].set_link("down")?;
        rig.lost(host)?;
        hosts[host].set_link("up")
    }),
    ("a machine that is started anew while it is cut off", 0, |rig, hosts, host| {
        hosts[host].set_link("down")?;
        hosts[host].signal(Signal::KILL);
        rig.lost(host)?;
        hosts[host].set_link("up")?;
        hosts[host].serve()
    }),
    ("a server that stands still", 1, |rig, hosts, host| {
        hosts[host].signal(Signal::STOP);
        rig.lost(host)?;
        hosts[host].signal(Signal::CONT);
        Ok(())
    }),
    ("a network that is slow and loses packets", 2, |rig, hosts, host| {
        hosts.iter().try_for_each(Host::disturb)?;
        hosts[host].signal(Signal::KILL);
        rig.lost(host)?;
        hosts[host].serve()
    }),
];

/// A network namespace with a server in it.
struct Host {
    name: String,
    number: usize,
    directory: PathBuf,
    server: Option<Process>,
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

    /// Has packets to it delayed and lost: at random, or, where the kernel can't do that, whenever more is on its way
    /// than a slow line takes.
    fn disturb(&self) -> anyhow::Result<()> {
        let link = self.link();
        let set = |how: &[&str]| {
            let mut command = Command::new("tc");
            run_program(command.args(["qdisc", "replace", "dev", &link, "root"]).args(how))
        };
        set(&["netem", "delay", "5ms", "2ms", "loss", "1%"]).or_else(|_| {
            eprint_step("this kernel can't delay or lose packets at random (sch_netem): a slow line does it (sch_tbf)");
            set(&["tbf", "rate", "100mbit", "burst", "64k", "latency", "10ms"])
        })
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
