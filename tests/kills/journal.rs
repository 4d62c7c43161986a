//! What a client knows of every sector that it writes: which versions it sent, which were acknowledged, which were
//! flushed.
//!
//! Versions are the numbers of the writes, in the order in which they were sent. A write is *after* another when the
//! other had been acknowledged before it was sent; writes that overlap in flight may end in either order. A sector may
//! hold any version that was sent and is not before one that a flush or FUA has covered. The content of a sector
//! follows from the seed, its number and the version, so that a sector says by itself what it holds, and half a sector,
//! another sector's content or a made-up one is told from a whole version. Zeroed sectors can't say which version they
//! are; for these the history must have one.
//!
//! The journal knows neither servers nor connections.

use std::collections::VecDeque;
use std::ops::Range;

use crate::image::{Random, SECTOR};

/// A write's number, in the order in which they were sent; 0 is what a new array holds.
type Version = u64;

/// Bytes of the numbers at the start of a sector.
const HEADER: usize = 24;

/// What a write leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Content.
    Data,
    /// Zeroes.
    Zeroes,
}

/// A request that the journal follows until its reply.
#[derive(Clone, Debug)]
pub struct Request {
    sectors: Range<usize>,
    /// `None`: a read.
    write: Option<Write>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    version: Version,
    /// The oldest version that this write's sectors may hold once it counts: its own, or that of one that was under way
    /// as it was sent. A trim has 0: what was there before may stay.
    floor: Version,
    is_durable_when_acknowledged: bool,
}

/// The point up to which a flush covers what was acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct FlushMark(u64);

#[derive(Clone, Debug)]
struct Entry {
    version: Version,
    kind: Kind,
}

#[derive(Clone, Debug)]
struct Sector {
    /// Versions that it may hold after a kill, oldest first; never empty.
    history: VecDeque<Entry>,
    /// The oldest version that it may hold while the server lives.
    visible: Version,
}

/// What the client knows of its sectors, which are the first ones of the export.
#[derive(Clone, Debug)]
pub struct Journal {
    seed: u64,
    sectors: Vec<Sector>,
    sent: Version,
    in_flight: Vec<Request>,
    /// Acknowledged and not yet known to be durable.
    acknowledged: VecDeque<Request>,
    /// How many have left `acknowledged`.
    made_durable: u64,
}

impl Journal {
    /// The journal of `sectors` sectors that hold zeroes.
    #[must_use]
    pub fn new(seed: u64, sectors: usize) -> Self {
        let zeroes = Sector { history: [Entry { version: 0, kind: Kind::Zeroes }].into(), visible: 0 };
        Self {
            seed,
            sectors: vec![zeroes; sectors],
            sent: 0,
            in_flight: Vec::new(),
            acknowledged: VecDeque::new(),
            made_durable: 0,
        }
    }

    /// How many sectors it follows.
    #[must_use]
    pub fn sectors(&self) -> usize {
        self.sectors.len()
    }

    /// A write is about to be sent: the request, and its payload where it is data. `None` when a read is under way
    /// there, whose result would be anybody's guess.
    ///
    /// # Panics
    /// When the sectors are not the journal's.
    #[must_use]
    pub fn begin_write(&mut self, sectors: Range<usize>, kind: Kind, fua: bool) -> Option<(Request, Vec<u8>)> {
        let overlapping = || self.in_flight.iter().filter(|other| overlap(&other.sectors, &sectors));
        if overlapping().any(|other| other.write.is_none()) {
            return None;
        }
        let version = self.sent + 1;
        let earliest = overlapping().filter_map(|other| other.write).map(|other| other.version).min();
        let floor = earliest.unwrap_or(version);
        self.sent = version;
        for sector in &mut self.sectors[sectors.clone()] {
            sector.history.push_back(Entry { version, kind });
        }
        let payload = match kind {
            Kind::Data => sectors.clone().flat_map(|sector| content(self.seed, sector, version)).collect(),
            Kind::Zeroes => Vec::new(),
        };
        let write = Write { version, floor, is_durable_when_acknowledged: fua };
        let request = Request { sectors, write: Some(write) };
        self.in_flight.push(request.clone());
        Some((request, payload))
    }

    /// A read is about to be sent; `None` when a write is under way there.
    #[must_use]
    pub fn begin_read(&mut self, sectors: Range<usize>) -> Option<Request> {
        let is_busy = self.in_flight.iter().any(|other| other.write.is_some() && overlap(&other.sectors, &sectors));
        let request = Request { sectors, write: None };
        (!is_busy).then(|| self.in_flight.push(request.clone()))?;
        Some(request)
    }

    /// A write was acknowledged.
    pub fn end_write(&mut self, request: Request) {
        self.leave(&request);
        let write = request.write.expect("a write is ended as one");
        for sector in &mut self.sectors[request.sectors.clone()] {
            sector.visible = sector.visible.max(write.floor);
        }
        if write.is_durable_when_acknowledged {
            self.settle(&request);
        } else {
            self.acknowledged.push_back(request);
        }
    }

    /// A read returned `bytes`: each sector must hold a version that was sent, and none before one that was
    /// acknowledged.
    ///
    /// # Errors
    /// What is wrong with the first sector that does not.
    pub fn end_read(&mut self, request: &Request, bytes: &[u8]) -> Result<(), String> {
        self.leave(request);
        for (number, found) in request.sectors.clone().zip(bytes.chunks(SECTOR)) {
            let visible = self.sectors[number].visible;
            self.identify(number, found, visible).map_err(|wrong| format!("read while the server lived: {wrong}"))?;
        }
        Ok(())
    }

    /// A flush is about to be sent.
    #[must_use]
    pub fn begin_flush(&self) -> FlushMark {
        FlushMark(self.made_durable + self.acknowledged.len() as u64)
    }

    /// A flush was acknowledged.
    pub fn end_flush(&mut self, mark: FlushMark) {
        while self.made_durable < mark.0 {
            let request = self.acknowledged.pop_front().expect("a flush covers what was acknowledged before it");
            self.made_durable += 1;
            self.settle(&request);
        }
    }

    /// The server is gone: what was under way is done or not. What it acknowledged without a flush is there if the
    /// server `remembers` that, and may be lost otherwise.
    pub fn killed(&mut self, remembers: bool) {
        self.in_flight.clear();
        self.made_durable += self.acknowledged.len() as u64;
        for request in std::mem::take(&mut self.acknowledged) {
            if remembers {
                self.settle(&request);
            }
        }
    }

    /// A server that was started again returned `bytes` for the sectors from `first` on; what it returned counts from
    /// now on.
    ///
    /// # Errors
    /// What is wrong with the first sector that holds anything but a version that it may hold.
    ///
    /// # Panics
    /// When requests are under way.
    pub fn restarted(&mut self, first: usize, bytes: &[u8]) -> Result<(), String> {
        assert!(self.in_flight.is_empty() && self.acknowledged.is_empty(), "the kill was recorded");
        for (number, found) in (first..).zip(bytes.chunks(SECTOR)) {
            let entry = self.identify(number, found, 0)?;
            let sector = &mut self.sectors[number];
            sector.visible = entry.version;
            sector.history.clear();
            sector.history.push_back(entry);
        }
        Ok(())
    }

    fn leave(&mut self, request: &Request) {
        let is_it = |other: &Request| {
            other.sectors == request.sectors
                && other.write.map(|write| write.version) == request.write.map(|write| write.version)
        };
        let at = self.in_flight.iter().position(is_it).expect("a request is under way until its reply");
        self.in_flight.swap_remove(at);
    }

    /// The request is durable: nothing before it can come back.
    fn settle(&mut self, request: &Request) {
        let floor = request.write.expect("a write is settled").floor;
        for sector in &mut self.sectors[request.sectors.clone()] {
            while sector.history.len() > 1 && sector.history[0].version < floor {
                sector.history.pop_front();
            }
        }
    }

    /// Which version `found` is, of those from `oldest` on that the sector may hold.
    fn identify(&self, number: usize, found: &[u8], oldest: Version) -> Result<Entry, String> {
        let history = &self.sectors[number].history;
        let is_zero = found.iter().all(|&byte| byte == 0);
        let version = word(found, 2);
        let matches = |entry: &&Entry| match entry.kind {
            Kind::Zeroes => is_zero,
            Kind::Data => entry.version == version && found == content(self.seed, number, version),
        };
        let entry = history.iter().rev().take_while(|entry| entry.version >= oldest).find(matches);
        entry.cloned().ok_or_else(|| {
            let allowed = history.iter().filter(|entry| entry.version >= oldest).map(|entry| match entry.kind {
                Kind::Data => entry.version.to_string(),
                Kind::Zeroes => format!("{} (zeroes)", entry.version),
            });
            let allowed = allowed.collect::<Vec<_>>().join(", ");
            format!("sector {number} holds {}; it may hold version {allowed}", self.describe(number, found))
        })
    }

    /// What a sector that is wrong holds.
    fn describe(&self, number: usize, found: &[u8]) -> String {
        let [seed, sector, version] = [0, 1, 2].map(|index| word(found, index));
        if found.iter().all(|&byte| byte == 0) {
            return "zeroes".into();
        }
        let Some(sector) = usize::try_from(sector).ok().filter(|_| seed == self.seed && version <= self.sent) else {
            return format!("what nobody wrote: {:02x?}...", &found[..HEADER]);
        };
        let whole = content(self.seed, sector, version);
        let same = whole.iter().zip(found).take_while(|(a, b)| a == b).count();
        let what = if same == SECTOR { String::new() } else { format!("the first {same} bytes of ") };
        let place = if sector == number { String::new() } else { format!(" of sector {sector}") };
        format!("{what}version {version}{place}")
    }
}

/// A sector's content: seed, sector, version, then what follows from these.
fn content(seed: u64, sector: usize, version: Version) -> [u8; SECTOR] {
    let sector = sector as u64;
    let mut bytes = [0; SECTOR];
    for (field, value) in bytes.chunks_exact_mut(8).zip([seed, sector, version]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    let mut random = Random::new(seed ^ sector.rotate_left(40) ^ version.rotate_left(17));
    for field in bytes[HEADER..].chunks_exact_mut(8) {
        field.copy_from_slice(&random.bits().to_le_bytes());
    }
    bytes
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("eight bytes"))
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests;
