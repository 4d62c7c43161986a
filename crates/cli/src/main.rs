//! The `uraid` command. Exit status: 0 success, 1 failure, 2 misuse; `uraid serve --run` has that of its command.

mod advise;
mod args;
mod bench;
mod candidates;
mod completions;
mod config;
mod config_file;
mod configure;
mod convert;
mod create;
mod examine;
mod grow;
mod import;
mod layout;
mod level;
mod list;
mod man;
mod map;
mod md;
mod members;
mod misuse;
mod naming;
mod output;
mod probe;
mod quickstart;
mod record;
mod report;
mod reshape;
mod scrub;
mod serve;
mod server_args;
mod set;
mod simulate;
mod status;
mod stop;
mod terminal;
mod values;
mod wait;
mod wipe;

use std::io::{self, Write};
use std::panic;
use std::process::{self, ExitCode};

use clap::FromArgMatches as _;
use uraid_io::array::{ConfigureError, CreateError, ReshapeError};
use uraid_layout::GeometryError;
use uraid_serve::logging;
use uraid_serve::text::chain;

use args::{Cli, Command, LogFormat};
use config::Expanded;
use misuse::Misuse;
use terminal::{Closed, Colours, Tone};

fn main() -> ExitCode {
    abort_on_panic();
    if let Some(code) = completions::complete(args::command) {
        return code;
    }
    let given = args::command().get_matches();
    let cli = Cli::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    let format = match cli.log_format {
        LogFormat::Text => logging::Format::Text,
        LogFormat::Json => logging::Format::Json,
    };
    let expanded = config::expand(cli, &given);
    logging::init(format);
    let cli = match expanded {
        Ok(Expanded::Command(cli)) => cli,
        Ok(Expanded::Several(source)) => return serve::several::run(&source).unwrap_or_else(|error| fail(&error)),
        Err(error) => return fail(&error),
    };
    let serves = matches!(cli.command, Command::Serve(_) | Command::Quickstart(_));
    let mut code = ExitCode::SUCCESS;
    let result = match cli.command {
        Command::Create(args) => create::run(&args),
        Command::Serve(args) if args.md.md => serve::md::run(&args).map(|ended| code = ended),
        Command::Serve(args) => serve::run(&args).map(|ended| code = ended),
        Command::List(args) => list::run(&args),
        Command::Examine(args) => examine::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Rename(args) => configure::rename(&args),
        Command::Configure(args) => configure::run(&args),
        Command::Wipe(args) => wipe::run(&args),
        Command::Grow(args) => grow::run(&args),
        Command::Reshape(args) => reshape::run(&args),
        Command::Map(args) => map::run(&args),
        Command::Layout(args) => layout::run(&args),
        Command::Quickstart(args) => quickstart::run(args),
        Command::Status(args) => status::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Fail(args) => members::fail(&args),
        Command::Remove(args) => members::remove(&args),
        Command::Add(args) => members::add(&args),
        Command::Replace(args) => members::replace(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Wait(args) => wait::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Stop(args) => stop::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args, args::command()),
    };
    match result {
        Ok(()) => code,
        // The command has done its work, and the reader has seen enough.
        Err(error) if error.is::<Closed>() && !serves => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Prints an error.
fn fail(error: &anyhow::Error) -> ExitCode {
    let name = Colours::of(&io::stderr()).paint("uraid:", Tone::Bad);
    // If standard error is closed, there is nobody to tell.
    let _ = writeln!(io::stderr(), "{name} {}", chain(error));
    if is_misuse(error) { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// A broken invariant ends the process. The engine must not continue, nor mark members clean, in an unintended state.
/// The members are then as after a crash, and the next start recovers them.
fn abort_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
}

/// Whether the command line itself is wrong, regardless of the members.
fn is_misuse(error: &anyhow::Error) -> bool {
    error.is::<Misuse>()
        || error.is::<GeometryError>()
        || error.downcast_ref::<CreateError>().is_some_and(CreateError::is_misuse)
        || error.downcast_ref::<ReshapeError>().is_some_and(ReshapeError::is_misuse)
        || matches!(error.downcast_ref(), Some(ConfigureError::Unsuited { .. } | ConfigureError::Name(_)))
}
