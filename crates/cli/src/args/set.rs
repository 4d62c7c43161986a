//! Arguments of `uraid set`.

use clap::Args;

use super::values::rate;
use super::{Rate, ServerArgs};

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
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    /// Keep it for the next start, in the server's configuration file
    #[arg(long, conflicts_with = "log")]
    pub(crate) persist: bool,
}

/// What can be set while an array is served. The server checks the values.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct SettingArgs {
    /// Most bytes per second to rebuild on each member, such as 50M; none: no limit
    #[arg(long, value_parser = rate, value_name = "RATE|none")]
    pub(crate) rebuild_limit: Option<Rate>,
    /// Most bytes per second that scrubs read from each member; none: no limit
    #[arg(long, value_parser = rate, value_name = "RATE|none")]
    pub(crate) scrub_limit: Option<Rate>,
    /// When writes are answered: writeback or writethrough
    #[arg(long, value_name = "MODE")]
    pub(crate) cache: Option<String>,
    /// What is logged: error, warn, info, debug, trace or off
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// As for `uraid serve`
    #[arg(long, value_name = "TIME|off")]
    pub(crate) read_deadline: Option<String>,
    /// As for `uraid serve`
    #[arg(long, value_name = "TIME|off")]
    pub(crate) write_deadline: Option<String>,
    /// As for `uraid serve`
    #[arg(long, value_name = "N|off")]
    pub(crate) max_errors: Option<String>,
}
