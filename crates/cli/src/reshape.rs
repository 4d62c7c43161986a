//! `uraid reshape`: gives an array another level, chunk, placement or number of members, stopped or while it is served.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use uraid_io::array::{
    Array, Found, GrowError, OpenOptions, Prepared, Rehearsed, ReshapeError, ReshapePlan, Reshaped, Reshaping, Target,
    UnderWay, open_for_reshape,
};
use uraid_io::disk::Disk;
use uraid_io::member::{Access, absolute};
use uraid_layout::{Bytes, Spec};
use uraid_serve::client::Client;
use uraid_serve::names::{layout_name, level_name, level_title};
use uraid_serve::protocol::{Request, Status};
use uraid_serve::shape::WantedShape;
use uraid_serve::signals::outlive_file_limits;
use uraid_serve::text::{duration, list, size, visible};
use uuid::Uuid;

use crate::examine;
use crate::level::ShapeArgs;
use crate::misuse::Misuse;
use crate::server_args::ServerArgs;
use crate::terminal::{Progress, print, print_json};
use crate::values::bytes;

/// What is read to estimate how long a reshape takes.
const SAMPLE: Bytes = Bytes(64 << 20);

/// Arguments of `uraid reshape`.
#[derive(Debug, Args)]
#[command(after_help = "What is not said stays as it is. A reshape that was interrupted goes on with `uraid reshape
MEMBERS`, all of them, old and new, or by itself while the array is served.

Examples:
  uraid reshape --add d.img a.img b.img c.img               one member more
  uraid reshape --level rm2 --add d --add e a b c           from RAID 5 to RM2
  uraid reshape --remove d.img --size 1G a.img b.img c.img d.img
  uraid reshape --rehearse --chunk 256K disk*.img
  uraid reshape --begin --add d.img a.img b.img c.img   then serve all four
  uraid reshape --add d.img                                 of the array that is served
  uraid reshape --abort                                     it goes back")]
pub(crate) struct ReshapeArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// An empty file or device that becomes a member; may be repeated
    #[arg(long, value_name = "PATH")]
    add: Vec<PathBuf>,
    /// A member that leaves, one of the last slots; may be repeated
    #[arg(long, value_name = "PATH")]
    remove: Vec<PathBuf>,
    /// Overwrite what new members hold
    #[arg(long)]
    force: bool,
    /// How much of the array's content to keep [default: all of it]
    ///
    /// Shrink the file system first: the array ends there, and what was behind it is gone.
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    size: Option<Bytes>,
    /// Say what would be done and how long it takes; write nothing
    #[arg(long)]
    rehearse: bool,
    /// Go back to the shape that the array had
    #[arg(long, conflicts_with_all = ["add", "remove", "size", "force", "level", "chunk", "layout", "rm2_m", "copies"])]
    abort: bool,
    /// Go on although members are missing
    #[arg(long)]
    degraded: bool,
    /// Only put it on record, which takes a moment: content moves while the array is served
    #[arg(long, conflicts_with_all = ["abort", "rehearse"])]
    begin: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// All members of a stopped array, in any order; none: the array that is served at --socket
    #[arg(value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// A rehearsal. Sizes are in bytes.
#[derive(Debug, Serialize)]
struct Rehearsal {
    from: Shape,
    to: Shape,
    /// How much content moves.
    content: u64,
    /// In how many steps, of at most so much.
    steps: u64,
    step_size: u64,
    /// In how many of these the content is saved first, and how much that is.
    saved_steps: u64,
    saved: u64,
    /// The array's size before and after.
    size_before: u64,
    size_after: u64,
    /// How many members may fail meanwhile, in any combination.
    tolerance: usize,
    /// About how long it takes, at the rate at which the members were read.
    seconds: u64,
    bytes_per_second: u64,
    /// How many steps were moved on copies in memory, and read back right; also without any one member.
    rehearsed_steps: u64,
    rehearsed: u64,
    rehearsed_losses: bool,
    /// Whether clients can use the array meanwhile (`--begin`).
    can_be_served: bool,
}

/// What an array's content is placed by.
#[derive(Debug, Serialize)]
pub(crate) struct Shape {
    level: &'static str,
    layout: &'static str,
    chunk: u64,
    members: u8,
}

/// Runs the command.
pub(crate) fn run(args: &ReshapeArgs) -> Result<()> {
    outlive_file_limits()?;
    if args.members.is_empty() {
        return administer(args);
    }
    match open(args)? {
        Found::AtRest(prepared) => begin(args, *prepared),
        Found::UnderWay(under_way) => resume(args, *under_way),
    }
}

/// Begins the reshape of a served array, or has it go on, or back.
fn administer(args: &ReshapeArgs) -> Result<()> {
    let ReshapeArgs { add, remove, force, size, rehearse, degraded, begin, abort, shape, json, .. } = args;
    if *rehearse {
        bail!(Misuse("stop the array to rehearse, and name all of its members".into()));
    }
    if size.is_some() {
        bail!(Misuse(
            "--size is for stopped arrays: stop this one, and name all of its members (--begin, then serve it again)"
                .into()
        ));
    }
    let is_shape = !shape.is_empty() || !add.is_empty() || !remove.is_empty();
    if !is_shape {
        if *force || *degraded || *begin {
            bail!(Misuse("say what to change: see `uraid reshape --help`".into()));
        }
        let mut client = args.server.connect()?;
        let _: Value = client.ask(&Request::Reshape { back: *abort })?;
        if *json {
            return show_state(&mut client);
        }
        return print(format_args!("the reshape goes {}", if *abort { "back" } else { "on" }));
    }
    let (level, variant) = shape.level();
    let all = |paths: &[PathBuf]| paths.iter().map(|path| absolute(path)).collect::<Result<Vec<_>, _>>();
    let wanted = WantedShape {
        level: level.map(str::to_owned),
        variant,
        chunk_bytes: shape.chunk.map(|chunk| chunk.0),
        add: all(add)?,
        remove: all(remove)?,
        force: *force,
        degraded: *degraded,
    };
    let mut client = args.server.connect()?;
    let _: Value = client.ask(&Request::ReshapeBegin(wanted))?;
    if *json {
        return show_state(&mut client);
    }
    print(format_args!(
        "the reshape has begun; `uraid status` says how far it is, and `uraid wait` waits for its end"
    ))?;
    let status: Status = client.ask(&Request::Status {})?;
    if let Some(file) = status.config.filter(|_| !add.is_empty()) {
        print(format_args!("{} has to name the new members from now on", visible(&file)))?;
    }
    Ok(())
}

/// Prints what `uraid status --json` says of a reshape.
fn show_state(client: &mut Client) -> Result<()> {
    let status: Status = client.ask(&Request::Status {})?;
    print_json(&status.reshape)
}

/// The array; of one that is being reshaped, new members may be named in either way.
fn open(args: &ReshapeArgs) -> Result<Found, ReshapeError> {
    let access = if args.rehearse { Access::ReadOnly } else { Access::ReadWrite };
    let found = open_for_reshape(&args.members, access, args.degraded)?;
    let is_named = |path: &&PathBuf| !args.members.contains(path);
    let more: Vec<PathBuf> = args.add.iter().filter(is_named).cloned().collect();
    match found {
        Found::UnderWay(under_way) if !more.is_empty() => {
            drop(under_way);
            open_for_reshape(&[args.members.clone(), more].concat(), access, args.degraded)
        }
        found => Ok(found),
    }
}

/// Plans a reshape and carries it out.
fn begin(args: &ReshapeArgs, prepared: Prepared) -> Result<()> {
    if args.abort {
        bail!(ReshapeError::NotUnderWay);
    }
    if !args.add.is_empty() && !args.remove.is_empty() {
        bail!(Misuse("members can join or leave, not both at once: exchange members with `uraid replace`".into()));
    }
    if args.shape.is_empty() && args.add.is_empty() && args.remove.is_empty() && args.size.is_none() {
        bail!(Misuse("no reshape is under way; say what to change: see `uraid reshape --help`".into()));
    }
    let access = if args.rehearse { Access::Inspect } else { Access::ReadWrite };
    let prepared = prepared.with(&args.add, &args.remove, access, args.force)?;
    let spec = *prepared.array.geometry.spec();
    let members = u8::try_from(prepared.member_count()).unwrap_or(u8::MAX);
    let target = Target {
        level: args.shape.level_after(spec.level, members)?,
        members,
        chunk: args.shape.chunk.unwrap_or(spec.chunk),
        kept: args.size,
        allow_degraded: args.degraded,
    };
    let plan = prepared.plan(&target)?;
    if args.begin {
        plan.check_served()?;
    }
    if args.rehearse {
        return rehearse(args, prepared, plan);
    }
    if !args.json {
        let (from, to) = (said(plan.from().spec()), said(plan.to().spec()));
        print(format_args!("reshaping from {from} to {to}"))?;
    }
    let reshaping = prepared.begin(plan)?;
    if args.begin {
        drop(reshaping);
        return examine::show(&examine::report(&[args.members.clone(), args.add.clone()].concat())?, args.json);
    }
    carry_out(args, reshaping, false)
}

/// Goes on with a reshape, or back.
fn resume(args: &ReshapeArgs, under_way: UnderWay) -> Result<()> {
    let (from, state) = (under_way.from(), under_way.state());
    let joined = usize::from(state.to.members).saturating_sub(usize::from(from.members));
    let left = usize::from(from.members).saturating_sub(usize::from(state.to.members));
    let is_same_count =
        (args.add.is_empty() || args.add.len() == joined) && (args.remove.is_empty() || args.remove.len() == left);
    let level = args.shape.level_after(from.level, state.to.members)?;
    let chunk = args.shape.chunk.unwrap_or(from.chunk);
    let is_same_shape = args.shape.is_empty() || (level, chunk) == (state.to.level, state.to.chunk);
    let is_same_size = args.size.is_none_or(|kept| kept == state.kept.bytes());
    let is_known = args.add.iter().all(|path| under_way.has(path));
    if !(is_same_count && is_same_shape && is_same_size && is_known) {
        bail!(ReshapeError::UnderWay);
    }
    if args.begin {
        bail!("this reshape is on record already: serve the array, with all members, and its content moves");
    }
    if args.rehearse {
        bail!("this reshape is under way: there is nothing to rehearse; `uraid examine` says how far it is");
    }
    let is_back = args.abort || state.is_back;
    let reshaping = under_way.open(is_back, args.degraded)?;
    let course = state.course(from)?;
    let done = state.mark.0.abs_diff(course.end(course.heading(!is_back)).0) * 512;
    let (source, target) = if is_back { (&state.to, &from) } else { (&from, &state.to) };
    if !args.json {
        let way = match (is_back, args.abort) {
            (false, _) => "going on",
            (true, true) => "going back",
            (true, false) => "going on back, as --abort was interrupted,",
        };
        print(format_args!(
            "{way} from {} to {}: {} of {} are there",
            said(source),
            said(target),
            size(done),
            size(state.kept.bytes().0)
        ))?;
    }
    carry_out(args, reshaping, is_back)
}

/// Moves the content, and shows the array that comes of it.
fn carry_out(args: &ReshapeArgs, reshaping: Reshaping<impl Disk>, is_back: bool) -> Result<()> {
    let (kept, course) = (reshaping.state().kept, reshaping.course().clone());
    // What was there before `--size` cut it is not known any more; what is as large as it was may become larger.
    let is_whole = course.from().capacity() == kept;
    let mut bar = Progress::new("reshaping", kept.bytes().0);
    let reshaped = reshaping.run(is_back, Uuid::new_v4(), |done| bar.set(done.0))?;
    drop(bar);
    let Reshaped { geometry, paths, losses, disk, .. } = reshaped;
    // They are held no longer.
    drop(disk);
    let paths: Vec<PathBuf> = paths.into_iter().flatten().collect();
    if is_whole && !is_back && losses.is_empty() && paths.len() == geometry.members() {
        grow(&paths)?;
    }
    examine::show(&examine::report(&paths)?, args.json)?;
    let failed: Vec<String> = losses.iter().map(|loss| format!("{} ({})", loss.path.display(), loss.error)).collect();
    ensure!(failed.is_empty(), "the array has its shape, and members failed meanwhile: {}", list(&failed));
    Ok(())
}

/// Has the array use all that its members have room for.
fn grow(paths: &[PathBuf]) -> Result<()> {
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: false, force: false };
    match Array::open(paths, options)?.grow(None) {
        Ok(_) | Err(GrowError::Nothing { .. }) => Ok(()),
        Err(error) => Err(error).context("the array has its shape, and can't use all of its members' space"),
    }
}

/// Says what a reshape comes to.
fn rehearse(args: &ReshapeArgs, mut prepared: Prepared, plan: ReshapePlan) -> Result<()> {
    let size_before = prepared.array.geometry.capacity().bytes().0;
    let work = plan.work();
    let begun = Instant::now();
    let read = prepared.sample(SAMPLE)?;
    let rate = read.0 as f64 / begun.elapsed().max(Duration::from_micros(1)).as_secs_f64();
    // Each byte is read and written; what is saved, once more.
    let moved = 2 * plan.kept().0 + work.saved.0;
    let is_cut = plan.kept().0 < size_before;
    let said = [plan.from().spec(), plan.to().spec()].map(said);
    let mut rehearsal = Rehearsal {
        from: Shape::of(plan.from().spec()),
        to: Shape::of(plan.to().spec()),
        content: plan.kept().0,
        steps: work.windows,
        step_size: plan.window().0,
        saved_steps: work.saved_windows,
        saved: work.saved.0,
        size_before,
        size_after: if is_cut { plan.to().capacity().bytes().0 } else { plan.room().0 },
        tolerance: plan.from().tolerance().min(plan.to().tolerance()),
        seconds: (moved as f64 / rate).ceil() as u64,
        bytes_per_second: rate as u64,
        rehearsed_steps: 0,
        rehearsed: 0,
        rehearsed_losses: false,
        can_be_served: plan.check_served().is_ok(),
    };
    let Rehearsed { windows, content, survives_any } = prepared.rehearse(plan)?;
    (rehearsal.rehearsed_steps, rehearsal.rehearsed, rehearsal.rehearsed_losses) = (windows, content.0, survives_any);
    if args.json {
        return print_json(&rehearsal);
    }
    let Rehearsal { content, steps, step_size, saved_steps, saved, tolerance, seconds, bytes_per_second, .. } =
        rehearsal;
    print(format_args!("from {}, {}", said[0], size(size_before)))?;
    print(format_args!("  to {}, {}", said[1], size(rehearsal.size_after)))?;
    print(format_args!("{} of content move in {steps} steps of at most {}", size(content), size(step_size)))?;
    print(format_args!("  {saved_steps} of these write over their own places: {} are saved first", size(saved)))?;
    print(format_args!(
        "about {}, at {} a second, the rate at which the members were read",
        duration(seconds),
        size(bytes_per_second)
    ))?;
    let which = if rehearsal.rehearsed_steps == 1 { "the only step" } else { "the first step and the last" };
    let without = if rehearsal.rehearsed_losses { ", also without any one member" } else { "" };
    print(format_args!(
        "{which}, {}, moved on copies in memory, and read back the same{without}",
        size(rehearsal.rehearsed)
    ))?;
    let losses = if tolerance == 1 { "one member".to_owned() } else { format!("{tolerance} members") };
    let use_of_it = if rehearsal.can_be_served { "can be served with --begin" } else { "can't be used" };
    print(format_args!(
        "cut off at any moment, it goes on with `uraid reshape MEMBERS`, or back with --abort; meanwhile the array \
         survives the loss of {losses}, and {use_of_it}"
    ))?;
    print(format_args!("nothing was written"))
}

impl Shape {
    /// That of a geometry.
    pub(crate) fn of(spec: &Spec) -> Self {
        let Spec { level, members, chunk, .. } = *spec;
        Self { level: level_name(level), layout: layout_name(level), chunk: chunk.0, members }
    }
}

impl fmt::Display for Shape {
    /// `RAID 5 left-symmetric of 4 members in chunks of 64 KiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, layout, chunk, members } = self;
        write!(f, "{} {layout} of {members} members in chunks of {}", level_title(level), size(*chunk))
    }
}

/// See [`Shape`].
fn said(spec: &Spec) -> String {
    Shape::of(spec).to_string()
}
