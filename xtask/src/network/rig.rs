//! An array whose members are elsewhere, clients that read and write it all the time and verify what they read, and
//! what is to be true of it in the end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, read_export, write_export};
use uraid_tests::process::Process;
use uraid_tests::run::client_command;
use uraid_tests::server::Server;

use crate::counts::Counts;
use crate::project::eprint_step;

/// What clients read and write of the array, from its start; what is behind it stays as it is.
const LOAD_BYTES: usize = 64 << 20;

/// How long members may take, and how long they have to answer before they return.
const DEADLINE: Duration = Duration::from_secs(3);
const OPTIONS: [&str; 6] = ["--read-deadline", "500ms", "--write-deadline", "3s", "--rejoin-after", "1s"];

/// What a request may take beside the deadline: a round of superblocks, and a busy machine.
const GRACE: Duration = Duration::from_secs(4);

/// How long until a member returns; only what is broken reaches it.
const PATIENCE: Duration = Duration::from_secs(90);

/// A RAID 5 that is served.
pub(super) struct Rig<'a> {
    array: &'a Array,
    server: Server,
    /// What it held at first.
    image: Vec<u8>,
}

impl<'a> Rig<'a> {
    /// An array of these members. `array` has a place for its socket.
    ///
    /// # Errors
    /// When its status has no size.
    pub(super) fn start(array: &'a Array, uris: &[PathBuf]) -> anyhow::Result<Self> {
        let arguments = ["create", "--level", "5"].map(PathBuf::from).into_iter().chain(uris.iter().cloned());
        let _ = binary::uraid(arguments).success();
        let server = Server::start_members(array, uris, &OPTIONS);
        let mut rig = Self { array, server, image: Vec::new() };
        let size = rig.status()["size_bytes"].as_u64().context("a status has the size")?;
        rig.image = Random::new(1).bytes(usize::try_from(size)?);
        write_export(rig.server.uri(), &rig.image);
        Ok(rig)
    }

    /// Waits until a member is given up.
    ///
    /// # Errors
    /// When it takes too long.
    pub(super) fn lost(&self, slot: usize) -> anyhow::Result<()> {
        self.until("giving up a member", |status| status["members"][slot]["state"] == "missing")
    }

    /// Has something happen under load, after which the array is to be whole again; `counts` has how long the slowest
    /// request took.
    ///
    /// # Errors
    /// When it is not, or a request took too long.
    pub(super) fn play(
        &self,
        counts: &mut Counts,
        name: &str,
        scene: impl FnOnce(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let load = load(&self.server);
        let returned = |status: &Value| status["health"]["state"] == "whole";
        let played = scene(self).and_then(|()| self.until("the member's return", returned));
        played.with_context(|| name.to_owned())?;
        let output = load.finish(PATIENCE).success();
        // Notes of fio may precede the JSON.
        let text = output.text();
        let report: Value = serde_json::from_str(&text[text.find('{').context("fio printed no JSON")?..])?;
        let slowest = |way: &str| report["jobs"][0][way]["clat_ns"]["max"].as_f64().unwrap_or_default();
        let slowest = Duration::from_nanos(slowest("read").max(slowest("write")) as u64);
        ensure!(slowest > Duration::ZERO, "{name}: fio says nothing of its requests: {report:#}");
        ensure!(slowest < DEADLINE + GRACE, "{name}: a request took {slowest:?}");
        let slowest_ms = u64::try_from(slowest.as_millis()).unwrap_or(u64::MAX);
        eprint_step(&format!("{name}: no request took longer than {slowest_ms} ms"));
        counts.insert(format!("slowest_ms_of_{}", name.replace(' ', "_")), slowest_ms.into());
        Ok(())
    }

    /// Stops the array, when it is sure that nothing was lost.
    ///
    /// # Errors
    /// When something was, or the members don't agree.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let held = read_export(self.server.uri());
        ensure!(held[LOAD_BYTES..] == self.image[LOAD_BYTES..], "what clients left alone is not what it was");
        self.scrub()?;
        let _ = self.server.stop();
        Ok(())
    }

    /// How many reads of the members were computed from others as they took unusually long.
    pub(super) fn hedged(&self) -> u64 {
        let members = &self.status()["members"];
        members.as_array().into_iter().flatten().filter_map(|member| member["hedged"].as_u64()).sum()
    }

    fn status(&self) -> Value {
        let socket = self.array.socket();
        binary::uraid(["status".as_ref(), "--json".as_ref(), "--socket".as_ref(), socket.as_os_str()]).success().json()
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
