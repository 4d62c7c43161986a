//! What an array is loaded with: a named workload, a job file for fio, or a trace.

use std::path::{Path, PathBuf};

use uraid_layout::Bytes;
use uraid_model::input::{DESCRIPTION_MAX, TRACE_MAX, read_text};
use uraid_model::mech::trace::{self, Format};
use uraid_model::workloads::{self, Demand, Requests, TRACE_DEPTH, Workload};

use crate::Error;
use crate::plan::LoadId;

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

impl Load {
    /// What a plan keeps of it.
    #[must_use]
    pub fn id(&self) -> LoadId {
        LoadId { name: self.name.clone(), title: self.title.clone(), digest: self.digest }
    }
}

/// Where requests come from.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A workload, for either driver, or a trace, for the native generator alone.
    Demand(Demand),
    /// A job file, for fio alone.
    Job(String),
}

/// The loads that an argument selects: a name of [`workloads::CATALOGUE`], `fio:FILE` or `trace:FILE`.
///
/// # Errors
/// If there is no such workload, or the file can't be read.
pub fn find(spec: &str, align: Bytes) -> Result<Vec<Load>, Error> {
    if let Some(path) = spec.strip_prefix("fio:").map(Path::new) {
        let text = read(path, DESCRIPTION_MAX)?;
        let title = format!("fio's job file {}", path.display());
        return Ok(vec![Load {
            name: file_name(path),
            title,
            digest: crc32fast::hash(text.as_bytes()),
            kind: Kind::Job(text),
        }]);
    }
    if let Some(path) = spec.strip_prefix("trace:").map(Path::new) {
        let text = read(path, TRACE_MAX)?;
        let records = trace::parse(&text, Format::of(&text))?;
        if records.is_empty() {
            return Err(Error::Refused(format!("{} has no reads or writes", path.display())));
        }
        let title = format!("the trace {}, {} requests, {TRACE_DEPTH} in flight", path.display(), records.len());
        let digest = crc32fast::hash(text.as_bytes());
        return Ok(vec![Load { name: file_name(path), title, digest, kind: Kind::Demand(Demand::Trace(records)) }]);
    }
    let found = workloads::find(spec, align)?;
    let load = |workload: Workload| {
        let name = plain(&workload.name);
        let digest = crc32fast::hash(format!("{workload:?}").as_bytes());
        Load { name, title: workload.title.clone(), digest, kind: Kind::Demand(Demand::Mix(workload)) }
    };
    Ok(found.into_iter().map(load).collect())
}

fn read(path: &Path, max: u64) -> Result<String, Error> {
    read_text(path, max).map_err(Error::io("read", path))
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
            Kind::Demand(demand) => demand.writes(),
            Kind::Job(_) => true,
        }
    }

    /// The native generator's requests to an array of this size, and how many are in flight; `None` for a job file.
    ///
    /// # Errors
    /// If the load does not fit the array.
    pub fn source(&self, size: Bytes, seed: u64) -> Result<Option<(Requests, usize)>, Error> {
        match &self.kind {
            Kind::Demand(demand) => Ok(Some(demand.source(size.whole_sectors(), seed)?)),
            Kind::Job(_) => Ok(None),
        }
    }
}

/// Where the job file of a load is, under the results.
#[must_use]
pub(crate) fn job_path(out: &Path, name: &str) -> PathBuf {
    out.join("jobs").join(format!("{name}.fio"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use uraid_model::mech::{Nanos, Source as _};

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
}
