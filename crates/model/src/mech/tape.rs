//! A workload that is drawn and planned once, and run many times.
//!
//! The n-th request that is asked for is the same in every run, whoever asks: runs with other disks, queues or numbers
//! of processes differ by those alone, so their ratios vary less than they do. And planning, which takes longer than
//! serving where a request has many chunks, is done once.
//!
//! A tape can be run on systems whose first array has the geometry, the write rule, the phases and the state that the
//! tape was made for; what the plans depend on otherwise (how busy mirrors are, how far a rebuild is) is not known when
//! it is made, so such arrays are refused.

use uraid_layout::Sectors;

use super::Request;
use super::array::{ArraySpec, Op, Operations, Part, Planned, Pricer, State};
use super::workload::{Mix, Source};
use super::{Error, Nanos};

/// See the module.
#[derive(Debug)]
pub struct Tape {
    mix: Mix,
    pricer: Pricer,
    requests: Vec<(Request, Ends)>,
    ops: Vec<Op>,
    parts: Vec<Part>,
    at: usize,
    scratch: Operations,
}

/// Where a request's operations and parts end; they begin where the last one's do.
#[derive(Clone, Copy, Debug)]
struct Ends {
    ops: usize,
    parts: usize,
}

impl Tape {
    /// A tape of requests to an array. The mix is of requests to volume 0 and to at most the array's capacity.
    ///
    /// # Errors
    /// When the array can't be had, its mirrors are read by how busy they are, or it is being rebuilt.
    pub fn new(array: &ArraySpec, mix: Mix) -> Result<Self, Error> {
        let is_static =
            !array.level.is_mirrored() && !matches!(array.state, State::Rebuilding { .. }) && array.cache.is_none();
        if !is_static {
            let what = "the plans of an array with mirrors, a cache or a rebuild can't be made before it runs; disks";
            return Err(Error::System { what, value: array.disks.into() });
        }
        let pricer = Pricer::new(array)?;
        Ok(Self {
            mix,
            pricer,
            requests: Vec::new(),
            ops: Vec::new(),
            parts: Vec::new(),
            at: 0,
            scratch: Operations::default(),
        })
    }

    /// How much the array holds.
    #[must_use]
    pub fn capacity(&self) -> Sectors {
        self.pricer.geometry().capacity()
    }

    /// Begins with the first request again.
    pub fn rewind(&mut self) {
        self.at = 0;
    }

    fn extend(&mut self) {
        let request = self.mix.draw(0);
        self.pricer.request(&request, &[], &mut self.scratch).expect("a mix is of requests within its array");
        self.ops.extend_from_slice(&self.scratch.ops);
        self.parts.extend_from_slice(&self.scratch.parts);
        self.requests.push((request, Ends { ops: self.ops.len(), parts: self.parts.len() }));
    }
}

impl Source for Tape {
    fn next(&mut self, _process: usize, _now: Nanos) -> Option<Request> {
        if self.at == self.requests.len() {
            self.extend();
        }
        self.at += 1;
        Some(self.requests[self.at - 1].0)
    }

    fn planned(&self) -> Option<Planned<'_>> {
        let last = self.at.checked_sub(1)?;
        let begin = last.checked_sub(1).map_or(Ends { ops: 0, parts: 0 }, |before| self.requests[before].1);
        let end = self.requests[last].1;
        Some(Planned { ops: &self.ops[begin.ops..end.ops], parts: &self.parts[begin.parts..end.parts] })
    }
}
