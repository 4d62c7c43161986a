//! `uraid quickstart`: an array to try things with.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use uraid_io::array::{CreateOptions, NewLogs};
use uraid_io::format::superblock::{Allocation, Integrity};
use uraid_layout::{Bytes, Level, Rotation};
use uraid_serve::clock::now;

use crate::serve::args::{
    BusyPoll, CacheArgs, FullStripeLog, LimitArgs, MdArgs, PatienceArgs, ServeArgs, WantedArgs, WatchArgs,
};
use crate::serve::clients::ClientArgs;
use crate::serve::listen::EndpointArgs;
use crate::serve::privileges::PrivilegeArgs;
use crate::terminal::print;
use crate::{create, serve};

/// Arguments of `uraid quickstart`.
#[derive(Debug, Args)]
pub(crate) struct QuickstartArgs {
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Directory for the members
    #[arg(default_value = "./uraid-demo", value_name = "DIR")]
    dir: PathBuf,
}

/// The demonstration array: RAID 5 of four files of 64 MiB.
const MEMBERS: usize = 4;
const SIZE: Bytes = Bytes(64 << 20);

/// Creates the array if it does not exist, and serves it.
pub(crate) fn run(args: QuickstartArgs) -> Result<()> {
    let QuickstartArgs { mut endpoint, dir } = args;
    std::fs::create_dir_all(&dir).with_context(|| format!("can't create {}", dir.display()))?;
    let all: Vec<PathBuf> = (0..MEMBERS).map(|index| dir.join(format!("member{index}.img"))).collect();
    let mut members: Vec<PathBuf> = all.iter().filter(|path| path.exists()).cloned().collect();
    if members.is_empty() {
        let options = CreateOptions {
            level: Level::Raid5 { rotation: Rotation::default() },
            chunk: Bytes(64 << 10),
            name: "demo".into(),
            size: Some(SIZE),
            allocation: Allocation::Sparse,
            force: false,
            consistency: None,
            log_size: None,
            logs: NewLogs::default(),
            integrity: Integrity::None,
            created: now()?,
        };
        create::make(&all, &options)?;
        print(format_args!("created a RAID 5 of {MEMBERS} files in {}", dir.display()))?;
        members = all;
    }
    if endpoint.socket.is_none() && endpoint.listen.is_empty() {
        endpoint.socket = Some(dir.join("uraid.sock"));
    }
    serve::run(&ServeArgs {
        config: None,
        wanted: WantedArgs::default(),
        endpoint,
        md: MdArgs::default(),
        read_only: false,
        exit_with_parent: false,
        run: None,
        takeover: false,
        degraded: false,
        force: false,
        wait_for_members: None,
        steal: false,
        domains: Vec::new(),
        accept_stale: Vec::new(),
        busy_poll: BusyPoll::Auto,
        connection_threads: 0,
        spares: Vec::new(),
        scrub_every: None,
        cache: CacheArgs::default(),
        full_stripe_log: FullStripeLog::default(),
        patience: PatienceArgs::default(),
        limits: LimitArgs::default(),
        clients: ClientArgs::default(),
        watch: WatchArgs::default(),
        privileges: PrivilegeArgs::default(),
        members,
    })
    .map(|_| ())
}
