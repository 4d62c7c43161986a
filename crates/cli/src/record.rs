//! `uraid record`: writes a running array's requests to a file, as a trace.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use uraid_serve::protocol::{Recorded, Recording, Request};
use uraid_serve::signals;

use crate::server_args::ServerArgs;
use crate::terminal::print;
use crate::values::period;

/// How often requests are fetched. The server keeps many more than arrive meanwhile.
const PERIOD: Duration = Duration::from_millis(100);

/// The heading of a trace; see the formats of `uraid_model::mech::trace`.
const HEADING: &str = "seconds,op,offset,bytes\n";

/// Arguments of `uraid record`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid record --for 10m monday.csv
  uraid advise --level 5 --members 6 --disk constellation-es --trace monday.csv
  uraid bench chunk --dir lab --driver native --workload trace:monday.csv")]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// End after this time, such as 10m [default: at Ctrl-C]
    #[arg(long = "for", value_parser = period, value_name = "TIME")]
    time: Option<Duration>,
    /// New file for the trace: lines of seconds, R or W, offset and length in bytes
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &RecordArgs) -> Result<()> {
    let name = args.file.display();
    let failed = || format!("can't write {name}");
    let mut client = args.server.connect()?;
    let file = OpenOptions::new().write(true).create_new(true).open(&args.file).with_context(failed)?;
    let mut out = BufWriter::new(file);
    out.write_all(HEADING.as_bytes()).with_context(failed)?;
    let stop = signals::stop_flag()?;
    let Recording { recording } = client.ask(&Request::RecordStart {})?;
    let end = args.time.map(|time| Instant::now() + time);
    let (mut count, mut ends) = (0, false);
    loop {
        let Recorded { trace, lost, has_more } = client.ask(&Request::RecordTake { recording, end: ends })?;
        out.write_all(trace.as_bytes()).with_context(failed)?;
        count += trace.lines().count();
        if ends && !has_more {
            out.flush().with_context(failed)?;
            print(format_args!("{count} requests are in {name}"))?;
            if lost > 0 {
                print(format_args!("{lost} more came too fast to be recorded"))?;
            }
            return Ok(());
        }
        ends |= stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
        if !ends && !has_more {
            let left = end.map_or(PERIOD, |end| end.saturating_duration_since(Instant::now()));
            std::thread::sleep(left.min(PERIOD));
        }
    }
}
