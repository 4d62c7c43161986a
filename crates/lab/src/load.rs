//! What an array is loaded with: a named workload, a job file for fio, or a trace.

use std::fs;
use std::path::{Path, PathBuf};

use uraid_layout::Bytes;
use uraid_sim::mech::trace::{self, Format, Pace, Record, Replay};
use uraid_sim::mech::workload::Mix;
use uraid_sim::mech::{Nanos, Request, Source};
use uraid_sim::workloads::{self, Workload};

use crate::Error;

/// Requests in flight while a trace is replayed.
const TRACE_DEPTH: usize = 32;

/// A load, which belongs to one column of the results.
#[derive(Clone, Debug)]
pub struct Load {
    /// Its name, also of its files: letters, digits, `-`, `.` and `_`.
    pub name: String,
    /// A line for people.
    pub title: String,
    /// A checksum of everything that it depends on, so that results of another load are not mistaken for its own.
    pub digest: u32,
    /// Where its requests come from.
    pub kind: Kind,
}

/// Where requests come from.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A workload, for either driver.
    Workload(Workload),
    /// A job file, for fio alone.
    Job(String),
    /// Recorded requests, for the native generator alone: each as soon as there is room for it.
    Trace(Vec<Record>),
}

/// The loads that an argument selects: a name of [`workloads::CATALOGUE`], `fio:FILE` or `trace:FILE`.
///
/// # Errors
/// If there is no such workload, or the file can't be read.
pub fn find(spec: &str, align: Bytes) -> Result<Vec<Load>, Error> {
    if let Some(path) = spec.strip_prefix("fio:").map(Path::new) {
        let text = read(path)?;
        let title = format!("fio's job file {}", path.display());
        return Ok(vec![Load {
            name: file_name(path),
            title,
            digest: crc32fast::hash(text.as_bytes()),
            kind: Kind::Job(text),
        }]);
    }
    if let Some(path) = spec.strip_prefix("trace:").map(Path::new) {
        let text = read(path)?;
        let records = trace::parse(&text, format(&text))?;
        if records.is_empty() {
            return Err(Error::Refused(format!("{} has no reads or writes", path.display())));
        }
        let title = format!("the trace {}, {} requests, {TRACE_DEPTH} in flight", path.display(), records.len());
        let digest = crc32fast::hash(text.as_bytes());
        return Ok(vec![Load { name: file_name(path), title, digest, kind: Kind::Trace(records) }]);
    }
    let found = workloads::find(spec, align)?;
    let load = |workload: Workload| {
        let name = plain(&workload.name);
        let digest = crc32fast::hash(format!("{workload:?}").as_bytes());
        Load { name, title: workload.title.clone(), digest, kind: Kind::Workload(workload) }
    };
    Ok(found.into_iter().map(load).collect())
}

/// The format of a trace, by its first lines.
fn format(text: &str) -> Format {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if first.starts_with("fio version") {
        Format::Iolog
    } else if first.split(',').count() == 5 {
        Format::Spc
    } else if first.contains(',') && first.split(',').count() == 4 {
        Format::Csv
    } else {
        Format::Blkparse
    }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

fn file_name(path: &Path) -> String {
    plain(&path.file_stem().unwrap_or_default().to_string_lossy())
}

/// A name that is good for a file.
fn plain(name: &str) -> String {
    name.chars().map(|it| if it.is_ascii_alphanumeric() || "-._".contains(it) { it } else { '-' }).collect()
}

impl Load {
    /// Whether it writes to the array.
    #[must_use]
    pub fn writes(&self) -> bool {
        match &self.kind {
            Kind::Workload(workload) => workload.components.iter().any(|component| component.reads < 1.0),
            Kind::Job(_) => true,
            Kind::Trace(records) => records.iter().any(|record| record.is_write),
        }
    }

    /// The native generator's requests to an array of this size, and how many are in flight; `None` for a job file.
    ///
    /// # Errors
    /// If the load does not fit the array.
    pub fn source(&self, size: Bytes, seed: u64) -> Result<Option<(Requests, usize)>, Error> {
        let capacity = size.whole_sectors();
        Ok(match &self.kind {
            Kind::Workload(workload) => {
                let mix = Mix::new(workload.components.clone(), capacity, seed)?;
                Some((Requests::Mix(mix), workload.depth))
            }
            Kind::Job(_) => None,
            Kind::Trace(records) => {
                let replay = Replay::new(records.clone(), Pace::AsFast, capacity)?;
                Some((Requests::Trace { replay, records: records.clone(), size }, TRACE_DEPTH))
            }
        })
    }
}

/// Where the native generator's requests come from.
#[derive(Clone, Debug)]
pub enum Requests {
    /// Drawn from a workload.
    Mix(Mix),
    /// Recorded; from the first again after the last.
    Trace {
        /// What is left of it.
        replay: Replay,
        /// All of it.
        records: Vec<Record>,
        /// The array's.
        size: Bytes,
    },
}

impl Source for Requests {
    fn next(&mut self, process: usize, now: Nanos) -> Option<Request> {
        match self {
            Self::Mix(mix) => mix.next(process, now),
            Self::Trace { replay, records, size } => replay.next(process, now).or_else(|| {
                *replay = Replay::new(records.clone(), Pace::AsFast, size.whole_sectors()).ok()?;
                replay.next(process, now)
            }),
        }
    }
}

/// Where the job file of a load is, under the results.
#[must_use]
pub fn job_path(out: &Path, name: &str) -> PathBuf {
    out.join("jobs").join(format!("{name}.fio"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_are_good_for_files() {
        let found = &find("mix:size=8K,reads=50", Bytes(4096)).expect("it makes sense")[0];
        assert_eq!(found.name, "mix-size-8K-reads-50");
        assert!(found.writes() && !find("random-read", Bytes(4096)).expect("it is there")[0].writes());
        let other = &find("mix:size=8K,reads=60", Bytes(4096)).expect("it makes sense")[0];
        assert_ne!(found.digest, other.digest);
    }

    #[test]
    fn a_trace_starts_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("two.csv");
        fs::write(&path, "0,R,0,4096\n1,W,8192,512\n").expect("a file");
        let load = &find(&format!("trace:{}", path.display()), Bytes(4096)).expect("a trace")[0];
        let (mut source, _) = load.source(Bytes(1 << 20), 1).expect("it fits").expect("it has requests");
        let next = std::iter::from_fn(|| source.next(0, Nanos(0))).take(3);
        assert_eq!(next.map(|request| request.lba.0).collect::<Vec<_>>(), [0, 16, 0]);
        assert!(load.source(Bytes(2048), 1).is_err(), "it does not fit");
    }

    #[test]
    fn formats_are_told_by_their_first_line() {
        for (text, wanted) in [
            ("fio version 2 iolog\n", Format::Iolog),
            ("0,20941264,8192,W,0.551706\n", Format::Spc),
            ("seconds,op,offset,bytes\n", Format::Csv),
            ("\n8,0 1 1 0.0 42 Q R 8 + 8 [fio]\n", Format::Blkparse),
        ] {
            assert_eq!(format(text), wanted, "{text}");
        }
    }
}
