//! Requests that do not belong to one reactor alone. They are split into parts, one for each band that they touch.
//!
//! The client gets its reply when all parts have ended, with the first error among them. The number of parts in flight
//! for each request is bounded, so a request as large as the array takes no more memory than others.

use std::ops::Range;

use uraid_io::bands::{Bands, Shard};
use uraid_io::buf::Buf;
use uraid_io::engine::Command;
use uraid_layout::{Bytes, Lba, Sectors};
use uraid_nbd::{NbdError, Payload};

use crate::meter;
use super::post::{Kind, Order, Part};

/// Maximum number of parts of one request in flight. A flush has one part for each reactor.
const PARTS_MAX: usize = 16;

/// The split requests of one reactor's clients.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Request {
    reply: meter::Request,
    kind: Kind,
    buf: Option<Buf>,
    start: Lba,
    /// The sectors not begun yet; for a flush, the reactors not begun yet.
    rest: Range<Lba>,
    pending: usize,
    error: Option<NbdError>,
}

/// A part to begin.
#[derive(Debug)]
pub(super) struct Begun<'a> {
    pub(super) owner: Shard,
    pub(super) part: Part,
    pub(super) order: Order,
    /// The data of a write.
    pub(super) data: Option<&'a [u8]>,
}

impl Order {
    /// The order for a command, and the command's memory.
    ///
    /// # Panics
    /// If clients cannot send the command.
    pub(super) fn of(command: Command) -> (Self, Option<Buf>) {
        let order = |kind, lba, len| Self { kind, lba, len };
        let sectors = |buf: &Buf| Bytes(buf.len() as u64).whole_sectors();
        match command {
            Command::Read { lba, buf } => (order(Kind::Read, lba, sectors(&buf)), Some(buf)),
            Command::Write { lba, buf, fua } => (order(Kind::Write { fua }, lba, sectors(&buf)), Some(buf)),
            Command::WriteZeroes { lba, len, fua, may_punch } => {
                (order(Kind::WriteZeroes { fua, may_punch }, lba, len), None)
            }
            Command::Trim { lba, len, fua } => (order(Kind::Trim { fua }, lba, len), None),
            Command::Flush => (order(Kind::Flush, Lba(0), Sectors(0)), None),
            Command::Close | Command::Fail { .. } | Command::Join(_) | Command::Replace(_) => {
                unreachable!("no client asks for it")
            }
        }
    }

    /// The command. `buf` provides the memory of a read or write, if there is any.
    pub(super) fn command(self, buf: impl FnOnce(Bytes) -> Option<Buf>) -> Result<Command, NbdError> {
        let Self { kind, lba, len } = self;
        let buf = || buf(len.bytes()).ok_or(NbdError::NoMemory);
        Ok(match kind {
            Kind::Read => Command::Read { lba, buf: buf()? },
            Kind::Write { fua } => Command::Write { lba, buf: buf()?, fua },
            Kind::WriteZeroes { fua, may_punch } => Command::WriteZeroes { lba, len, fua, may_punch },
            Kind::Trim { fua } => Command::Trim { lba, len, fua },
            Kind::Flush => Command::Flush,
        })
    }
}

impl Requests {
    /// Adds a request. [`Requests::begin`] returns its parts.
    pub(super) fn insert(&mut self, bands: &Bands, order: Order, buf: Option<Buf>, reply: meter::Request) -> u32 {
        let Order { kind, lba, len } = order;
        let end = if kind == Kind::Flush { bands.shards().count() as u64 } else { lba.0 + len.0 };
        let rest = lba..Lba(end);
        let request = Request { reply, kind, buf, start: lba, rest, pending: 0, error: None };
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("connections have fewer requests in flight")
        });
        self.slots[id as usize] = Some(request);
        id
    }

    /// Begins the request's next part, unless it is too early or none is left. Call it until it returns `None`.
    pub(super) fn begin(&mut self, bands: &Bands, id: u32) -> Option<Begun<'_>> {
        let request = self.slots[id as usize].as_mut().expect("a request has parts until its last one ends");
        let is_next = request.rest.start < request.rest.end && request.error.is_none() && request.pending < PARTS_MAX;
        if !is_next {
            return None;
        }
        let kind = request.kind;
        request.pending += 1;
        let (owner, range) = if kind == Kind::Flush {
            let number = u8::try_from(request.rest.start.0).expect("there are fewer reactors");
            (Shard(number), request.rest.start..Lba(request.rest.start.0 + 1))
        } else {
            bands.first(&request.rest)
        };
        request.rest.start = range.end;
        let bytes =
            |sectors: u64| usize::try_from(Sectors(sectors).bytes().0).expect("a request fits the address space");
        let at = if request.buf.is_some() { bytes(range.start.0 - request.start.0) } else { 0 };
        let part = Part { request: id, at };
        let order = match kind {
            Kind::Flush => Order { kind, lba: Lba(0), len: Sectors(0) },
            kind => Order { kind, lba: range.start, len: Sectors(range.end.0 - range.start.0) },
        };
        let data = match (&request.buf, kind) {
            (Some(buf), Kind::Write { .. }) => Some(&buf.as_ref()[at..at + bytes(order.len.0)]),
            _ => None,
        };
        Some(Begun { owner, part, order, data })
    }

    /// Ends a part, with the data of a read. Replies if it was the last part; otherwise returns false, and another part
    /// may be ready to begin.
    pub(super) fn end(&mut self, part: Part, result: Result<Option<&[u8]>, NbdError>) -> bool {
        let slot = &mut self.slots[part.request as usize];
        let request = slot.as_mut().expect("a part that ends was begun");
        request.pending -= 1;
        match (result, &mut request.buf) {
            (Ok(Some(data)), Some(buf)) => buf.as_mut()[part.at..part.at + data.len()].copy_from_slice(data),
            (Ok(_), _) => {}
            (Err(error), _) => drop(request.error.get_or_insert(error)),
        }
        let is_done = request.rest.start >= request.rest.end || request.error.is_some();
        if request.pending > 0 || !is_done {
            return false;
        }
        let Request { reply, kind, buf, error, .. } = slot.take().expect("the request is there");
        self.free.push(part.request);
        let payload = buf.filter(|_| kind == Kind::Read).map_or(Payload::None, Payload::Data);
        reply.done(error.map_or(Ok(payload), Err));
        true
    }

    /// Whether no split request is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }
}
