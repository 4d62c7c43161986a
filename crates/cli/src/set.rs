//! `uraid set`: changes settings of a running array, and keeps them in the server's configuration file if wanted.

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::Value;
use uraid_serve::protocol::{Request, Status};
use uraid_serve::text::size;

use crate::naming::Configuration;
use crate::server_args::ServerArgs;
use crate::terminal::print;
use crate::values::{Operations, Rate, operations, rate};

/// Arguments of `uraid set`.
#[derive(Debug, Args)]
#[command(
    override_usage = "uraid set [OPTIONS]",
    after_help = "Settings last until the server stops. --persist writes them to the file that `uraid serve --config`
was given, too. Without such a file give the same option to `uraid serve`; for --log set URAID_LOG.

Examples:
  uraid set --rebuild-limit 50M
  uraid set --rebuild-limit 50M --persist
  uraid set --cache writethrough --log info"
)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    settings: SettingArgs,
    /// Keep it for the next start, in the server's configuration file
    #[arg(long, conflicts_with_all = ["log", "reload_certificates"])]
    persist: bool,
}

/// What can be set while an array is served. The server checks the values.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct SettingArgs {
    /// Most bytes per second to rebuild on each member, such as 50M; none: no limit
    #[arg(long, value_parser = rate, value_name = "RATE|none")]
    rebuild_limit: Option<Rate>,
    /// Most bytes per second that scrubs read from each member; none: no limit
    #[arg(long, value_parser = rate, value_name = "RATE|none")]
    scrub_limit: Option<Rate>,
    /// Most bytes of content per second that a reshape moves; none: no limit
    #[arg(long, value_parser = rate, value_name = "RATE|none")]
    reshape_limit: Option<Rate>,
    /// Most bytes per second that all clients together read and write; none: no limit
    #[arg(long, value_parser = rate, value_name = "RATE|none")]
    client_limit: Option<Rate>,
    /// Most requests per second of all clients together, such as 500; none: no limit
    #[arg(long, value_parser = operations, value_name = "N|none")]
    client_iops_limit: Option<Operations>,
    /// When writes are answered: writeback or writethrough
    #[arg(long, value_name = "MODE")]
    cache: Option<String>,
    /// What is logged: error, warn, info, debug, trace or off
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// As for `uraid serve`
    #[arg(long, value_name = "TIME|off")]
    read_deadline: Option<String>,
    /// As for `uraid serve`
    #[arg(long, value_name = "TIME|off")]
    write_deadline: Option<String>,
    /// As for `uraid serve`
    #[arg(long, value_name = "N|off")]
    max_errors: Option<String>,
    /// As for `uraid serve`
    #[arg(long, value_name = "TIME|off")]
    rejoin_after: Option<String>,
    /// As for `uraid serve`
    #[arg(long, value_name = "auto|off")]
    hedge: Option<String>,
    /// Read the certificates of TLS anew, for clients that connect from now on
    #[arg(long)]
    reload_certificates: bool,
}

/// Runs the command.
pub(crate) fn run(args: &SetArgs) -> Result<()> {
    let mut client = args.server.connect()?;
    let kept_in =
        if args.persist { Some(Configuration::to_keep_in(&client.ask::<Status>(&Request::Status {})?)?) } else { None };
    let SettingArgs {
        rebuild_limit,
        scrub_limit,
        reshape_limit,
        client_limit,
        client_iops_limit,
        cache,
        log,
        read_deadline,
        write_deadline,
        max_errors,
        rejoin_after,
        hedge,
        reload_certificates,
    } = &args.settings;
    let mut set: Vec<(&str, String)> = Vec::new();
    let mut limit = |key, doing, rate: Rate, request: fn(Option<u64>) -> Request| {
        let bytes = rate.0.map(|rate| rate.0);
        let _: Value = client.ask(&request(bytes))?;
        let limited = bytes.map_or_else(|| "not limited".to_owned(), |bytes| format!("limited to {}/s", size(bytes)));
        set.push((key, bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string())));
        print(format_args!("{doing} is {limited}"))
    };
    if let Some(rate) = *rebuild_limit {
        limit("rebuild-limit", "rebuilding each member", rate, |bytes_per_second| Request::RebuildLimit {
            bytes_per_second,
        })?;
    }
    if let Some(rate) = *scrub_limit {
        limit("scrub-limit", "scrubbing each member", rate, |bytes_per_second| Request::ScrubLimit {
            bytes_per_second,
        })?;
    }
    if let Some(rate) = *reshape_limit {
        limit("reshape-limit", "reshaping", rate, |bytes_per_second| Request::ReshapeLimit { bytes_per_second })?;
    }
    if let Some(rate) = *client_limit {
        limit("client-limit", "what clients read and write", rate, |bytes_per_second| Request::ClientLimit {
            bytes_per_second,
        })?;
    }
    if let Some(Operations(operations_per_second)) = *client_iops_limit {
        let _: Value = client.ask(&Request::ClientIopsLimit { operations_per_second })?;
        let count = operations_per_second.map_or_else(|| "none".to_owned(), |count| count.to_string());
        let limited = operations_per_second.map_or("not limited".to_owned(), |count| format!("limited to {count}/s"));
        set.push(("client-iops-limit", count));
        print(format_args!("the number of clients' requests is {limited}"))?;
    }
    let settings = [
        ("cache", cache),
        ("log", log),
        ("read-deadline", read_deadline),
        ("write-deadline", write_deadline),
        ("max-errors", max_errors),
        ("rejoin-after", rejoin_after),
        ("hedge", hedge),
    ];
    for (key, value) in settings.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
        let _: Value = client.ask(&Request::Set { key: key.to_owned(), value: value.clone() })?;
        set.push((key, value.clone()));
        print(format_args!("{key} is {value}"))?;
    }
    if *reload_certificates {
        let _: Value = client.ask(&Request::ReloadCertificates {})?;
        print(format_args!("the certificates have been read anew"))?;
    }
    let Some(kept_in) = kept_in else { return Ok(()) };
    kept_in.keep(&set).context("it is set until the server stops, and not kept for the next start")?;
    print(format_args!("kept in {}", kept_in.place()))
}
