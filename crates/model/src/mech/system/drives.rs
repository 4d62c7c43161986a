//! The disks of a system at work: their queues, and what serves them.

use uraid_layout::DiskSector;
use uraid_layout::plan::Queue as Busy;
use uraid_random::Random;

use super::super::array::{ArraySpec, Spindles};
use super::super::disk::Disk;
use super::super::drive::{Head, Span};
use super::super::queue::{Discipline, Queue, Waiting};
use super::index::index_u32;

/// All disks, those of an array one after the other.
#[derive(Debug, Default)]
pub(super) struct Drives {
    drives: Vec<Drive>,
    servers: Vec<Server>,
    /// Drives that got operations, or whose servers became idle.
    kicked: Vec<u32>,
    busy: Vec<Busy>,
}

#[derive(Debug)]
struct Drive {
    disk: Disk,
    discipline: Discipline,
    merges: bool,
    head: Head,
    queue: Queue,
    idle: Vec<u32>,
    writing: u32,
    is_kicked: bool,
    /// For each end of operations: busy until then.
    busy_ns: u64,
}

/// What serves one operation at a time: a disk's arm, or one channel of it.
#[derive(Debug)]
struct Server {
    drive: u32,
    is_write: bool,
    parts: Vec<u32>,
}

/// An operation, perhaps a merged one, that a server has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) server: u32,
    pub(super) end: u64,
    pub(super) is_write: bool,
    pub(super) sectors: u64,
    /// Operations that were merged into it.
    pub(super) planned: u64,
}

/// How far a disk's spindle is ahead of the clock: up to a second, which is many turns and some part of one.
fn ahead(spindles: Spindles, drive: u32) -> u64 {
    match spindles {
        Spindles::Together => 0,
        Spindles::Apart => Random::new(drive.into()).below(1_000_000_000),
    }
}

impl Drives {
    pub(super) fn count(&self) -> usize {
        self.drives.len()
    }

    /// Adds the disks of an array.
    pub(super) fn add(&mut self, array: &ArraySpec, disk: &Disk) {
        for _ in 0..array.disks {
            let first = index_u32(self.servers.len());
            let drive = index_u32(self.drives.len());
            let servers = (0..disk.servers()).map(|_| Server { drive, is_write: false, parts: Vec::new() });
            self.servers.extend(servers);
            self.drives.push(Drive {
                disk: disk.clone(),
                discipline: array.discipline,
                merges: array.merges,
                head: Head::at_rest(ahead(array.spindles, drive)),
                queue: Queue::default(),
                idle: (first..index_u32(self.servers.len())).rev().collect(),
                writing: 0,
                is_kicked: false,
                busy_ns: 0,
            });
        }
    }

    /// All heads at rest, and nothing to do.
    pub(super) fn clear(&mut self) {
        self.kicked.clear();
        for drive in &mut self.drives {
            drive.head = Head::at_rest(drive.head.ahead);
            drive.queue.clear();
            drive.idle.clear();
            (drive.writing, drive.is_kicked, drive.busy_ns) = (0, false, 0);
        }
        for (index, server) in self.servers.iter_mut().enumerate().rev() {
            server.parts.clear();
            self.drives[server.drive as usize].idle.push(index_u32(index));
        }
    }

    /// How busy so many drives are, from the first of an array on.
    pub(super) fn how_busy(&mut self, first: u32, count: usize) -> &[Busy] {
        let first = first as usize;
        self.busy.clear();
        self.busy.extend(self.drives[first..first + count].iter().map(Drive::how_busy));
        &self.busy
    }

    /// For how long they have served, and will serve what they have begun, all together.
    pub(super) fn busy_ns(&self) -> u64 {
        self.drives.iter().map(|drive| drive.busy_ns).sum()
    }

    /// Queues an operation of a part of a job.
    pub(super) fn queue(&mut self, drive: u32, sector: u64, len: u32, is_write: bool, part: u32) {
        let at = &mut self.drives[drive as usize];
        at.queue.push(Waiting { sector, cylinder: at.disk.cylinder(sector), len, is_write, part });
        self.kick(drive);
    }

    /// Lets an idle server begin what its disk has to do next; none when nothing can begin.
    pub(super) fn begin(&mut self, now: u64) -> Option<Begun> {
        while let Some(&index) = self.kicked.last() {
            let begun = self.begin_on(index, now);
            if begun.is_some() {
                return begun;
            }
            self.kicked.pop();
            self.drives[index as usize].is_kicked = false;
        }
        None
    }

    fn begin_on(&mut self, index: u32, now: u64) -> Option<Begun> {
        let drive = &mut self.drives[index as usize];
        let &server = drive.idle.last()?;
        if drive.queue.next_is_write() && drive.writing >= drive.disk.write_servers() {
            return None;
        }
        let at = &mut self.servers[server as usize];
        let next = drive.queue.pop(drive.discipline, drive.merges, &mut drive.head, &mut at.parts)?;
        drive.idle.pop();
        let Waiting { sector, len, is_write, .. } = next;
        drive.writing += u32::from(is_write);
        at.is_write = is_write;
        let end = drive.head.serve(&drive.disk, now, Span { sector, len: len.into(), is_write });
        drive.busy_ns += end - now;
        Some(Begun { server, end, is_write, sectors: len.into(), planned: at.parts.len() as u64 })
    }

    /// Ends what a server did; the parts of jobs that it was for, to be given back with [`Drives::give_back`].
    pub(super) fn end(&mut self, server: u32) -> Vec<u32> {
        let at = &mut self.servers[server as usize];
        let parts = std::mem::take(&mut at.parts);
        let (index, is_write) = (at.drive, at.is_write);
        let drive = &mut self.drives[index as usize];
        drive.writing -= u32::from(is_write);
        drive.idle.push(server);
        self.kick(index);
        parts
    }

    /// Takes back the memory of a server's parts.
    pub(super) fn give_back(&mut self, server: u32, mut parts: Vec<u32>) {
        parts.clear();
        self.servers[server as usize].parts = parts;
    }

    fn kick(&mut self, drive: u32) {
        if !std::mem::replace(&mut self.drives[drive as usize].is_kicked, true) {
            self.kicked.push(drive);
        }
    }
}

impl Drive {
    fn how_busy(&self) -> Busy {
        let depth = self.queue.len() as u64 + (u64::from(self.disk.servers()) - self.idle.len() as u64);
        Busy { depth: u32::try_from(depth).unwrap_or(u32::MAX), head: DiskSector(self.head.sector) }
    }
}
