//! Workloads by name: published ones, and common ones.
//!
//! A workload is closed: `depth` requests are in flight at any time, and each reply makes room for the next request.

use uraid_layout::{Bytes, Sectors};

use crate::mech::trace::{Pace, Record, Replay};
use crate::mech::{Error, Nanos, Request, Source};

use crate::mech::sizes::{Choices, Sizes};
use crate::mech::workload::{Component, Mix, Pattern};
use crate::papers::xyratex::{self, Access};

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its name, which selects it.
    pub name: String,
    /// A line for people.
    pub title: String,
    /// Requests in flight.
    pub depth: usize,
    /// The kinds of requests.
    pub components: Vec<Component>,
}

/// What an array is asked for.
#[derive(Clone, Debug)]
pub enum Demand {
    /// Requests drawn from a workload.
    Mix(Workload),
    /// Recorded requests, [`TRACE_DEPTH`] in flight; from the first again after the last.
    Trace(Vec<Record>),
}

/// Requests in flight while a trace is played.
pub const TRACE_DEPTH: usize = 32;

/// Where a demand's requests come from.
#[derive(Clone, Debug)]
pub enum Requests {
    /// Drawn from a workload.
    Mix(Mix),
    /// Recorded.
    Trace(Replay),
}

impl Demand {
    /// The requests to an array of this size, and how many are in flight.
    ///
    /// # Errors
    /// If the demand does not fit the array.
    pub fn source(&self, capacity: Sectors, seed: u64) -> Result<(Requests, usize), Error> {
        Ok(match self {
            Self::Mix(workload) => {
                (Requests::Mix(Mix::new(workload.components.clone(), capacity, seed)?), workload.depth)
            }
            Self::Trace(records) => {
                (Requests::Trace(Replay::new(records.clone(), Pace::AsFast, capacity)?), TRACE_DEPTH)
            }
        })
    }

    /// Whether it writes to the array.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            Self::Mix(workload) => workload.components.iter().any(|component| component.reads < 1.0),
            Self::Trace(records) => records.iter().any(|record| record.is_write),
        }
    }

    /// Bytes of a mean request.
    #[must_use]
    pub fn mean_bytes(&self) -> f64 {
        match self {
            Self::Mix(workload) => {
                let weights: f64 = workload.components.iter().map(|component| component.weight).sum();
                let sum = workload.components.iter().map(|it| it.weight * it.sizes.mean_sectors()).sum::<f64>();
                sum / weights * 512.0
            }
            Self::Trace(records) => {
                records.iter().map(|record| record.len.0 as f64).sum::<f64>() / records.len().max(1) as f64
            }
        }
    }
}

impl Source for Requests {
    fn next(&mut self, process: usize, now: Nanos) -> Option<Request> {
        match self {
            Self::Mix(mix) => mix.next(process, now),
            Self::Trace(replay) => replay.next(process, now).or_else(|| {
                replay.rewind();
                replay.next(process, now)
            }),
        }
    }
}

/// A name, or a prefix of several, with a line for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What [`find`] takes.
    pub name: &'static str,
    /// What it selects.
    pub title: &'static str,
}

/// Why there is no such workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no workload '{spec}': {reason}")]
pub struct UnknownWorkload {
    spec: String,
    reason: String,
}

/// What can be asked for.
pub const CATALOGUE: &[Entry] = &[
    Entry { name: "esg", title: "all ten of the Enterprise Storage Group (Xyratex 2008), 16 requests in flight" },
    Entry { name: "esg-oltp", title: "4K random, 67 % reads" },
    Entry { name: "esg-file-server", title: "512 to 64K random, 80 % reads" },
    Entry { name: "esg-web-server", title: "512 to 512K random, reads" },
    Entry { name: "esg-4k-random-read", title: "4K random reads" },
    Entry { name: "esg-4k-random-write", title: "4K random writes" },
    Entry { name: "esg-512k-sequential-write", title: "512K sequential writes" },
    Entry { name: "esg-512k-sequential-read", title: "512K sequential reads" },
    Entry { name: "esg-media-server", title: "32K sequential reads" },
    Entry { name: "esg-exchange-data", title: "4K, 90 % random with 73 % reads, the rest sequential" },
    Entry { name: "esg-exchange-logs", title: "64K sequential writes" },
    Entry {
        name: "chen-lee",
        title: "Chen & Lee 1993: five sizes, reads and writes, with 1, 4 and 16 requests in flight. A part selects \
                fewer: chen-lee-exp4k, chen-lee-norm400k-write, chen-lee-exp16k-read-20",
    },
    Entry { name: "sequential", title: "1M sequential reads, then writes, 8 in flight (also sequential-read, -write)" },
    Entry { name: "random", title: "4K random reads, then writes, 32 in flight (also random-read, random-write)" },
    Entry { name: "oltp", title: "8K random, 70 % reads, 16 in flight" },
    Entry { name: "vm", title: "images of virtual machines: 4K to 256K random, 65 % reads, 32 in flight" },
    Entry {
        name: "mix:KEY=VALUE,...",
        title: "your own: size=8K,reads=70,depth=16, with `sequential` for one stream (defaults: 4K, 100, 32, random)",
    },
];

/// The concurrency that `chen-lee` selects unless it is named; the paper has 1 to 20.
const CHEN_LEE_DEPTHS: [usize; 3] = [1, 4, 16];
const CHEN_LEE_DEPTH_MAX: usize = 20;
const ESG_DEPTH: usize = 16;
const DEPTH_MAX: usize = 1024;
const SIZE_MAX: Bytes = Bytes(16 << 20);

/// A component that makes requests of one size.
fn fixed(size: Bytes, weight: f64, reads: f64, pattern: Pattern) -> Component {
    Component { weight, sizes: Sizes::fixed(size).expect("the size was checked"), reads, pattern }
}

/// The workloads that a name selects. Random requests begin at multiples of `align`, or of their component's smallest
/// size if that is less.
///
/// # Errors
/// If nothing has that name.
pub fn find(spec: &str, align: Bytes) -> Result<Vec<Workload>, UnknownWorkload> {
    let unknown = |reason: &str| UnknownWorkload { spec: spec.to_owned(), reason: reason.to_owned() };
    let random = |smallest: Bytes| Pattern::Random { align: Bytes(align.0.min(smallest.0)) };
    let one = |title: &str, depth, components| {
        Ok(vec![Workload { name: spec.to_owned(), title: title.to_owned(), depth, components }])
    };
    let both = |kind: &str| {
        let found = ["read", "write"].map(|direction| find(&format!("{kind}-{direction}"), align));
        found.into_iter().collect::<Result<Vec<_>, _>>().map(|found| found.concat())
    };
    match spec {
        "random" | "sequential" => both(spec),
        "random-read" | "random-write" => {
            let reads = if spec == "random-read" { 1.0 } else { 0.0 };
            let size = Bytes(4 << 10);
            one("4K random", 32, vec![fixed(size, 1.0, reads, random(size))])
        }
        "sequential-read" | "sequential-write" => {
            let reads = if spec == "sequential-read" { 1.0 } else { 0.0 };
            one("1M sequential", 8, vec![fixed(Bytes(1 << 20), 1.0, reads, Pattern::Shared)])
        }
        "oltp" => {
            let size = Bytes(8 << 10);
            one("8K random, 70 % reads", 16, vec![fixed(size, 1.0, 0.7, random(size))])
        }
        "vm" => {
            let kinds = [(4, 55.0), (16, 25.0), (64, 15.0), (256, 5.0)];
            let components = kinds.map(|(kib, weight)| fixed(Bytes(kib << 10), weight, 0.65, random(Bytes(4 << 10))));
            one("4K to 256K random, 65 % reads", 32, components.to_vec())
        }
        _ if spec == "esg" || spec.starts_with("esg-") => {
            let all = xyratex::WORKLOADS.iter().map(|workload| esg(workload, align));
            let found: Vec<Workload> = all.filter(|workload| spec == "esg" || workload.name == spec).collect();
            if found.is_empty() { Err(unknown("`uraid bench workloads` lists them")) } else { Ok(found) }
        }
        _ => match (spec.strip_prefix("mix:"), spec.strip_prefix("chen-lee")) {
            (Some(settings), _) => mix(spec, settings, align).map_err(|reason| unknown(&reason)),
            (_, Some(part)) => chen_lee(part, align).ok_or_else(|| {
                unknown("it is chen-lee[-exp4k|-exp16k|-norm100k|-norm400k|-norm1500k][-read|-write][-1 to -20]")
            }),
            _ => Err(unknown("`uraid bench workloads` lists them")),
        },
    }
}

/// The name by which [`find`] knows one of the Enterprise Storage Group's.
#[must_use]
pub fn esg_name(workload: &xyratex::Workload) -> String {
    match workload.name {
        "4K OLTP" => "esg-oltp".to_owned(),
        name => format!("esg-{}", name.to_lowercase().replace(' ', "-")),
    }
}

/// One of the Enterprise Storage Group's.
fn esg(workload: &xyratex::Workload, align: Bytes) -> Workload {
    let name = esg_name(workload);
    let component = |&(sectors, weight, reads, place): &xyratex::Kind| {
        let size = Bytes(sectors * 512);
        let pattern = match place {
            Access::Random => Pattern::Random { align: Bytes(align.0.min(size.0)) },
            Access::Sequential => Pattern::Shared,
        };
        fixed(size, weight, reads, pattern)
    };
    let components = workload.kinds.iter().map(component).collect();
    Workload { name, title: format!("{} (Xyratex 2008)", workload.name), depth: ESG_DEPTH, components }
}

/// Chen & Lee's, of which the part after `chen-lee` selects some; `None` if it makes no sense.
fn chen_lee(part: &str, align: Bytes) -> Option<Vec<Workload>> {
    let words = if part.is_empty() { Vec::new() } else { part.strip_prefix('-')?.split('-').collect() };
    let mut words = words.into_iter().peekable();
    let sizes = Sizes::chen_lee(Choices::default()).map(|(name, sizes)| (name.replace("KB", "k"), sizes));
    let size = words.next_if(|word| sizes.iter().any(|(name, _)| name == word));
    let direction = words.next_if(|word| ["read", "write"].contains(word));
    let depths = match words.next() {
        None => CHEN_LEE_DEPTHS.to_vec(),
        Some(word) => vec![word.parse().ok().filter(|depth| (1..=CHEN_LEE_DEPTH_MAX).contains(depth))?],
    };
    if words.next().is_some() {
        return None;
    }
    // The paper aligns requests to kilobytes.
    let pattern = Pattern::Random { align: Bytes(align.0.min(1024)) };
    let mut found = Vec::new();
    for (name, sizes) in sizes.into_iter().filter(|(name, _)| size.is_none_or(|size| size == name)) {
        let directions = [("read", 1.0), ("write", 0.0)];
        for (direction, reads) in directions.into_iter().filter(|(name, _)| direction.is_none_or(|it| it == *name)) {
            found.extend(depths.iter().map(|&depth| Workload {
                name: format!("chen-lee-{name}-{direction}-{depth}"),
                title: format!("{name} {direction}s, {depth} in flight (Chen & Lee 1993)"),
                depth,
                components: vec![Component { weight: 1.0, sizes: sizes.clone(), reads, pattern }],
            }));
        }
    }
    Some(found)
}

/// A workload from its settings, or why not.
fn mix(spec: &str, settings: &str, align: Bytes) -> Result<Vec<Workload>, String> {
    let (mut size, mut reads, mut depth, mut is_sequential) = (Bytes(4 << 10), 100, 32, false);
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        match setting.split_once('=').unwrap_or((setting, "")) {
            ("size", value) => {
                size = parse_size(value)
                    .filter(|size| size.0.is_multiple_of(512) && (512..=SIZE_MAX.0).contains(&size.0))
                    .ok_or("size is whole sectors of 512 bytes, up to 16M, such as 8K")?;
            }
            ("reads", value) => {
                reads = value.parse().ok().filter(|reads| *reads <= 100).ok_or("reads is a percentage, 0 to 100")?;
            }
            ("depth", value) => {
                let parsed = value.parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
                depth = parsed.ok_or("depth is a number of requests, 1 to 1024")?;
            }
            ("sequential", "") => is_sequential = true,
            (other, _) => return Err(format!("'{other}' is not size=, reads=, depth= or sequential")),
        }
    }
    let pattern = if is_sequential { Pattern::Shared } else { Pattern::Random { align: Bytes(align.0.min(size.0)) } };
    let order = if is_sequential { "sequential" } else { "random" };
    let title = format!("{} {order}, {reads} % reads, {depth} in flight", self::size(size.0));
    let components = vec![fixed(size, 1.0, f64::from(reads) / 100.0, pattern)];
    Ok(vec![Workload { name: spec.to_owned(), title, depth, components }])
}

/// A size with its unit: `64K`, `1M`.
#[must_use]
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// A size such as `4096`, `8K` or `1M`.
fn parse_size(text: &str) -> Option<Bytes> {
    let (number, shift) = match text.strip_suffix(['K', 'k']) {
        Some(number) => (number, 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 0), |number| (number, 20)),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).map(Bytes)
}

#[cfg(test)]
mod tests {
    use uraid_layout::Bytes;

    use super::{CATALOGUE, find, size};
    use crate::mech::workload::Pattern;

    const ALIGN: Bytes = Bytes(4096);

    fn names(spec: &str) -> Vec<String> {
        find(spec, ALIGN).expect(spec).into_iter().map(|workload| workload.name).collect()
    }

    #[test]
    fn what_the_catalogue_lists_is_there() {
        for entry in CATALOGUE.iter().filter(|entry| !entry.name.contains(':')) {
            assert!(!names(entry.name).is_empty(), "{}", entry.name);
        }
        let listed: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
        assert!(names("esg").iter().all(|name| listed.contains(&name.as_str())), "{listed:?}");
    }

    #[test]
    fn parts_of_a_name_select() {
        assert_eq!(names("chen-lee").len(), 5 * 2 * 3);
        assert_eq!(names("chen-lee-exp4k-write-20"), ["chen-lee-exp4k-write-20"]);
        assert_eq!(names("chen-lee-read-1").len(), 5);
        assert_eq!(names("esg").len(), 10);
        for nothing in
            ["", "chen-leek", "chen-lee-exp5k", "chen-lee-read-21", "chen-lee-4-read", "esg-x", "MIX:", "vm "]
        {
            assert!(find(nothing, ALIGN).is_err(), "{nothing}");
        }
    }

    #[test]
    fn settings_make_a_workload() {
        let found = &find("mix:size=64K,reads=30,depth=4,sequential", ALIGN).expect("it makes sense")[0];
        let component = &found.components[0];
        assert_eq!(
            (found.depth, component.sizes.largest().bytes(), component.pattern),
            (4, Bytes(65536), Pattern::Shared)
        );
        assert!((component.reads - 0.3).abs() < 1e-9);
        for wrong in ["size=0", "size=100", "size=17M", "reads=101", "depth=0", "depth=", "sequential=1", "x"] {
            assert!(find(&format!("mix:{wrong}"), ALIGN).is_err(), "{wrong}");
        }
    }

    #[test]
    fn random_requests_begin_at_the_alignment_or_their_size() {
        let file_server = &find("esg-file-server", ALIGN).expect("it is there")[0];
        let aligns = file_server.components.iter().map(|component| match component.pattern {
            Pattern::Random { align } => align.0,
            other => panic!("{other:?}"),
        });
        assert_eq!(aligns.collect::<Vec<_>>(), [512, 1024, 2048, 4096, 4096, 4096, 4096, 4096]);
    }

    #[test]
    fn sizes_have_the_largest_whole_unit() {
        assert_eq!([512, 4096, 1 << 20, 3 << 29, 1 << 30].map(size), ["512", "4K", "1M", "1536M", "1G"]);
    }
}
