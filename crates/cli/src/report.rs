//! `uraid report`: collects the facts for a bug report in one text. It contains none of the array's content.
//!
//! Each section is gathered on its own thread, with a deadline. If a server or a member hangs, only its section is
//! missing, and says so.

mod redact;

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use rustix::process::{Resource, getrlimit};
use uraid_io::array::{Patience, candidates, judge, look};
use uraid_io::disk::UringDisk;
use uraid_io::member::{Access, absolute};
use uraid_layout::draw::draw;
use uraid_serve::client::Client;
use uraid_serve::protocol::{Metrics, Request, Status};
use uraid_serve::text::chain;

use crate::examine;
use crate::layout;
use crate::output;
use crate::server_args::ServerArgs;
use crate::terminal::print;
use crate::values::period;
use redact::Redactor;

/// Maximum amount of another program's output; the rest is ignored.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// The first section, and the text that a report begins with because of it.
const FIRST: &str = "version";
const OPENING: &str = "== version ==";

/// Arguments of `uraid report`.
#[derive(Debug, Args)]
#[command(after_help = "It has nothing of the array's content. Read it before you send it.

Examples:
  uraid report --redact -o report.txt
  uraid report --socket /run/vault.sock --unit uraid@vault
  uraid report d0 d1 d2                               no server runs")]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace paths, host names, addresses, array names and UUIDs, each with the same word everywhere
    #[arg(long)]
    redact: bool,
    /// Unit whose last log lines are wanted
    #[arg(long, default_value = "uraid@*", value_name = "UNIT")]
    unit: String,
    /// How many log lines
    #[arg(long, default_value_t = 200, value_name = "N")]
    log_lines: u32,
    /// How long the server and each member may take
    #[arg(long, value_parser = period, default_value = "10s", value_name = "TIME")]
    deadline: Duration,
    /// Members [default: those that the server knows]
    #[arg(value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// The text, and the words in it that identify its owner.
#[derive(Default)]
struct Report {
    text: String,
    private: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let mut report = Report::default();
    report.section(FIRST, Ok(format!("uraid {}", env!("CARGO_PKG_VERSION"))));
    report.section("system", within(args.deadline, || Ok(system())));
    let status = status(args);
    if let Ok(status) = &status {
        report.private.extend(names(status));
    }
    let members = members(args, status.as_ref().ok());
    report.private.extend(members.iter().map(|member| member.display().to_string()));
    report.section("status of the server", status.and_then(|status| Ok(serde_json::to_string_pretty(&status)?)));
    report.section(
        "metrics of the server",
        ask(args, |client| {
            let Metrics { text } = client.ask(&Request::Metrics {})?;
            Ok(text)
        }),
    );
    let deadline = args.deadline;
    let paths = members.clone();
    report.section("members", within(2 * deadline, move || looks(&paths, deadline)));
    let paths = members.clone();
    let found = within(2 * deadline, move || examine::report(&readable(&paths, deadline)?));
    report.private.extend(found.iter().map(|found| found.name.clone()));
    report.section("the array on the members", found.and_then(|found| examined(&found)));
    report.section("layout", within(2 * deadline, move || drawn(&members, deadline)));
    report.section("log", journal(args));
    let Report { text, private } = report;
    let text = if args.redact { Redactor::new(private).redact(&text) } else { text };
    match &args.output {
        None => print(format_args!("{}", text.trim_end())),
        Some(path) => output::save(path, &text, OPENING),
    }
}

impl Report {
    /// Adds the content of a section, or why there is none.
    fn section(&mut self, title: &str, found: Result<String>) {
        let found = found.unwrap_or_else(|error| format!("not known: {}", chain(&error)));
        self.text += &format!("== {title} ==\n\n{}\n\n", found.trim_end());
    }
}

/// The result of `act`, which runs on its own thread, unless it takes longer than `time`.
fn within<T: Send + 'static>(time: Duration, act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, done) = channel();
    // Nobody waits for a late result.
    let run = move || drop(sender.send(act()));
    thread::Builder::new().name("report".into()).spawn(run).context("can't start a thread")?;
    done.recv_timeout(time).map_err(|_| anyhow!("no answer within {} s", time.as_secs()))?
}

/// Facts about the machine and its system.
fn system() -> String {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let memory = rustix::system::sysinfo();
    let total_mib = ((memory.totalram as u64).saturating_mul(memory.mem_unit.into())) >> 20;
    let limit =
        |resource| getrlimit(resource).current.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let uring = match UringDisk::new(Vec::new(), 8) {
        Ok(_) => "available".to_owned(),
        Err(error) => chain(&error.into()),
    };
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let os = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("not known").trim_matches('"');
    [
        format!("kernel: {} {} {}", text(uname.sysname()), text(uname.release()), text(uname.machine())),
        format!("kernel version: {}", text(uname.version())),
        format!("operating system: {os}"),
        format!("io_uring: {uring}"),
        format!("kernel.io_uring_disabled: {}", disabled.as_deref().map_or("not known", str::trim)),
        format!("processors: {}", thread::available_parallelism().map_or(0, usize::from)),
        format!("memory: {total_mib} MiB"),
        format!("limit of open files: {}", limit(Resource::Nofile)),
        format!("limit of locked memory: {}", limit(Resource::Memlock)),
        format!("runs as root: {}", rustix::process::geteuid().is_root()),
    ]
    .join("\n")
}

/// Sends requests to the server, within the deadline.
fn ask<T: Send + 'static>(args: &ReportArgs, act: impl FnOnce(&mut Client) -> Result<T> + Send + 'static) -> Result<T> {
    let server = args.server.clone();
    within(args.deadline, move || act(&mut server.connect()?))
}

fn status(args: &ReportArgs) -> Result<Status> {
    ask(args, |client| client.ask(&Request::Status {}))
}

/// The identifying words of a status.
fn names(status: &Status) -> Vec<String> {
    let members = status.members.iter().filter_map(|member| member.path.clone());
    let spares = status.spares.iter().map(|spare| spare.path.clone());
    members.chain(spares).chain([status.name.clone()]).collect()
}

/// The members that are named, or that the server knows.
fn members(args: &ReportArgs, status: Option<&Status>) -> Vec<PathBuf> {
    if !args.members.is_empty() {
        return args.members.iter().map(|path| absolute(path).unwrap_or_else(|_| path.clone())).collect();
    }
    let known = status.into_iter().flat_map(|status| &status.members);
    known.filter_map(|member| member.path.as_ref().map(PathBuf::from)).collect()
}

/// What each path leads to: its kind and size, and whether it is a member.
fn looks(paths: &[PathBuf], deadline: Duration) -> Result<String> {
    ensure!(!paths.is_empty(), "no server says where they are: name them, as in `uraid report MEMBER...`");
    let mut lines = Vec::new();
    for found in look(paths, &mut Patience::new(Some(deadline), || ()))? {
        let said = match found.found {
            Ok((_, superblock)) => format!("slot {} of {}", superblock.slot, superblock.array),
            Err(reason) => chain(&reason.into()),
        };
        lines.push(format!("{}: {said}", found.path.display()));
    }
    Ok(lines.join("\n"))
}

/// The paths that answer and are members.
fn readable(paths: &[PathBuf], deadline: Duration) -> Result<Vec<PathBuf>> {
    let found = look(paths, &mut Patience::new(Some(deadline), || ()))?;
    let readable: Vec<PathBuf> = found.into_iter().filter(|look| look.found.is_ok()).map(|look| look.path).collect();
    ensure!(!readable.is_empty(), "no member can be read");
    Ok(readable)
}

fn examined(found: &examine::Report) -> Result<String> {
    Ok(format!("{}\n{}", found.title(), serde_json::to_string_pretty(found)?))
}

fn drawn(paths: &[PathBuf], deadline: Duration) -> Result<String> {
    let opened = candidates(&readable(paths, deadline)?, Access::Inspect)?.members;
    let candidates: Vec<_> = opened.into_iter().map(|opened| opened.candidate).collect();
    let geometry = judge(&candidates)?.geometry;
    let stripes = layout::period(geometry.spec().level, geometry.spec().members);
    Ok(draw(&geometry, stripes.into()))
}

/// The last lines of servers' logs in the journal.
fn journal(args: &ReportArgs) -> Result<String> {
    let lines = args.log_lines.to_string();
    let words = ["--no-pager", "--quiet", "--output=short-iso", "--lines", &lines, "--unit", &args.unit];
    let text = said_by("journalctl", &words, args.deadline)?;
    ensure!(!text.trim().is_empty(), "the journal has nothing of {}; --unit names another unit", args.unit);
    Ok(text)
}

/// A program's output, if it ends in time.
fn said_by(program: &str, words: &[&str], time: Duration) -> Result<String> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("can't run {program}"))?;
    let pipe = child.stdout.take().context("a program has an output")?;
    let read = within(time, move || {
        let mut text = Vec::new();
        pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    });
    // It may have ended by itself, or have more output than the maximum.
    let _ = child.kill();
    let _ = child.wait();
    read.with_context(|| format!("{program} {}", words.join(" ")))
}
