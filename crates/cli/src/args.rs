//! The command line: its commands, under headings. Each command has its arguments in its own file.

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::advise::AdviseArgs;
use crate::bench::BenchArgs;
use crate::completions::CompletionsArgs;
use crate::configure::{ConfigureArgs, RenameArgs};
use crate::convert::ConvertArgs;
use crate::create::CreateArgs;
use crate::examine::ExamineArgs;
use crate::grow::GrowArgs;
use crate::import::ImportArgs;
use crate::layout::LayoutArgs;
use crate::list::ListArgs;
use crate::man::ManArgs;
use crate::map::MapArgs;
use crate::members::{AddArgs, MemberArgs, RemoveArgs, ReplaceArgs};
use crate::quickstart::QuickstartArgs;
use crate::record::RecordArgs;
use crate::report::ReportArgs;
use crate::reshape::ReshapeArgs;
use crate::scrub::ScrubArgs;
use crate::serve::args::ServeArgs;
use crate::set::SetArgs;
use crate::simulate::SimulateArgs;
use crate::status::StatusArgs;
use crate::stop::StopArgs;
use crate::wait::WaitArgs;
use crate::wipe::WipeArgs;

/// Software RAID in user space, served as a network block device.
#[derive(Debug, Parser)]
#[command(name = "uraid", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Format of log lines on standard error: text or json
    ///
    /// URAID_LOG chooses what is logged: error, warn (default), info, debug or trace.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_short_help = true)]
    #[arg(help_heading = "Logging", hide_possible_values = true)]
    pub(crate) log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a small array of files and serve it
    Quickstart(QuickstartArgs),
    /// Create an array from files or block devices
    Create(CreateArgs),
    /// Serve an array over NBD, in the foreground
    #[command(visible_alias = "assemble")]
    Serve(Box<ServeArgs>),
    /// Show the state of a running array
    #[command(visible_alias = "detail")]
    Status(StatusArgs),
    /// Wait until no reshape, rebuild, copy, scrub or zeroing is under way
    ///
    /// Exits with 0 if the array is whole then, and with 1 if it is not or if the work can't go on.
    Wait(WaitArgs),
    /// Stop a server and mark its array clean
    Stop(StopArgs),
    /// Add a member and rebuild it, or add a spare or a log device
    #[command(visible_aliases = ["attach", "online"])]
    Add(AddArgs),
    /// Copy a member to a new one, then use the new one; or exchange a log device
    Replace(ReplaceArgs),
    /// Stop using a member or a log device
    ///
    /// A member itself records that it has failed, if it can still be written.
    #[command(visible_alias = "offline")]
    Fail(MemberArgs),
    /// Release a failed member or log device, or a spare
    #[command(visible_alias = "detach")]
    Remove(RemoveArgs),
    /// Check that the members agree, and repair them
    Scrub(ScrubArgs),
    /// Change settings of a running array
    Set(SetArgs),
    /// Find arrays: running ones, and those on devices and files
    ///
    /// Without PATH it looks at running servers, block devices and the files of the working directory.
    List(ListArgs),
    /// Show what members say about their array
    Examine(ExamineArgs),
    /// Show arrays of Linux md in images and devices, which `serve --md` serves
    Import(ImportArgs),
    /// Make an array of one of Linux md, in place, or take that back
    Convert(ConvertArgs),
    /// Rename a stopped array
    Rename(RenameArgs),
    /// Choose how a stopped array survives an unclean stop
    Configure(ConfigureArgs),
    /// Use the additional space of members that were enlarged
    Grow(GrowArgs),
    /// Change level, chunk, placement or number of members of an array, stopped or served
    Reshape(Box<ReshapeArgs>),
    /// Erase what makes a file or device a member
    Wipe(WipeArgs),
    /// Show where a block is, and how it is read and written
    Map(MapArgs),
    /// Draw where a RAID level puts data and parity
    Layout(LayoutArgs),
    /// Collect what a bug report needs, as one text
    Report(ReportArgs),
    /// Record what clients of a running array read and write
    Record(RecordArgs),
    /// Measure which chunk size, level and cache mode suit your disks and load
    Bench(BenchArgs),
    /// Recommend a chunk size
    Advise(AdviseArgs),
    /// Reproduce tables and figures of the papers, or simulate an array
    Simulate(SimulateArgs),
    /// Print a script that completes uraid's command lines
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory, for packages
    #[command(hide = true)]
    Man(ManArgs),
}

/// The commands under the headings of `uraid help`.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Use an array", &["quickstart", "create", "serve", "status", "wait", "stop"]),
    ("Change a running array", &["add", "replace", "fail", "remove", "scrub", "set"]),
    (
        "Find arrays, and change stopped ones",
        &["list", "examine", "import", "convert", "rename", "configure", "grow", "reshape", "wipe", "report"],
    ),
    ("Understand and plan", &["bench", "advise", "record", "map", "layout", "simulate"]),
    ("Set up a shell", &["completions"]),
];

/// The command line, with its commands under headings.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text += &format!("{heading}:\n");
        for &name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about).map(ToString::to_string);
            text += &format!("  {name:<12}{}\n", about.unwrap_or_default());
        }
        text.push('\n');
    }
    text += "`uraid COMMAND -h` lists the options of a command, `uraid COMMAND --help` explains them.\n\
        Exit status: 0 done, 1 failed, 2 wrong usage.\n\n\
        Start here: uraid quickstart";
    command.help_template("{about}\n\n{usage-heading} uraid <COMMAND>{after-help}").after_help(text)
}

/// How a log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Readable text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_under_one_heading() {
        let command = Cli::command();
        command.clone().debug_assert();
        let mut named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut offered: Vec<&str> = shown.map(clap::Command::get_name).collect();
        named.sort_unstable();
        offered.sort_unstable();
        assert_eq!(named, offered);
    }

    #[test]
    fn short_help_fits_a_screen() {
        let overview = command().render_help().to_string();
        assert!(overview.lines().count() <= 60, "{overview}");
        for command in command().get_subcommands_mut() {
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= 60, "{help}");
            assert!(!help.contains("--log-format"), "{help}");
            for line in help.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }
}
