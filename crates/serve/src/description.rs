//! The fixed properties of an array while it is served, and its current members and spares.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use uraid_io::array::Array;
use uraid_io::disk::Disk;
use uraid_io::engine::survives;
use uraid_io::format::UnixSeconds;
use uraid_io::format::superblock::LogIndex;
use uraid_io::member::absolute;
use uraid_layout::{Bytes, Geometry, MemberIndex, MemberSet};
use uraid_nbd::Endpoint;
use uuid::Uuid;

use crate::away::Away;
use crate::confinement::Confinement;
use crate::domains::{Domain, crowded};
use crate::log_devices::{self, Known};
use crate::names::level_name;
use crate::protocol::{OutOfDate, Salvage};
use crate::spare::Spare;
use crate::text::list;

/// An array's description.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) uuid: Uuid,
    pub(crate) created: UnixSeconds,
    /// As it is until the array grows, or has another shape.
    pub(crate) geometry: RefCell<Geometry>,
    /// While it is being reshaped, the other shape.
    pub(crate) other: RefCell<Option<Geometry>>,
    /// What the array holds.
    pub(crate) size: Cell<Bytes>,
    pub(crate) place: Place,
    /// Where its settings come from, if that is a file.
    pub(crate) config: Option<Config>,
    pub(crate) confinement: Confinement,
    pub(crate) is_read_only: bool,
    /// Set if the array is served as a last resort.
    pub(crate) salvage: Option<Salvage>,
    pub(crate) connection_threads: u8,
    /// By slot.
    pub(crate) members: RefCell<Vec<Member>>,
    /// By number.
    pub(crate) logs: RefCell<Vec<Known>>,
    /// In the order in which they are used.
    pub(crate) spares: RefCell<Vec<Spare>>,
    /// Which members fail together.
    pub(crate) domains: Vec<Domain>,
    /// Members that are wanted back.
    pub(crate) away: RefCell<Vec<Away>>,
}

/// Where an array is served.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// The URI that clients connect to.
    pub(crate) uri: String,
    /// All sockets that clients connect to.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The socket of metrics.
    pub(crate) metrics: Option<SocketAddr>,
}

/// Where an array's settings come from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The configuration file.
    pub path: PathBuf,
    /// The array's name there, if the file has several.
    pub array: Option<String>,
}

/// The member that is or was in a slot.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) uuid: Uuid,
    /// `None` if its path is not known.
    pub(crate) path: Option<PathBuf>,
}

impl Member {
    /// A member that is or was open.
    pub(crate) fn new(uuid: Uuid, path: Option<&Path>) -> Self {
        Self { uuid, path: path.map(|path| absolute(path).unwrap_or_else(|_| path.to_owned())) }
    }
}

impl Description {
    /// The description of an array before it is served at a `place`.
    pub(crate) fn new<D: Disk>(
        array: &Array<D>,
        place: Place,
        is_read_only: bool,
        connection_threads: u8,
        spares: Vec<Spare>,
    ) -> Self {
        let members = array
            .superblock
            .slots
            .iter()
            .zip(&array.paths)
            .map(|(record, path)| Member::new(record.member, path.as_deref()));
        Self {
            name: array.superblock.name.clone(),
            uuid: array.superblock.array,
            created: array.superblock.created,
            geometry: RefCell::new(array.geometry.clone()),
            other: RefCell::new(array.other_geometry()),
            size: Cell::new(array.capacity().bytes()),
            place,
            config: None,
            confinement: Confinement::default(),
            is_read_only,
            salvage: salvage(array),
            connection_threads,
            members: RefCell::new(members.collect()),
            logs: RefCell::new(log_devices::known(array)),
            spares: RefCell::new(spares),
            domains: Vec::new(),
            away: RefCell::default(),
        }
    }

    /// What the array holds.
    pub(crate) fn size(&self) -> Bytes {
        self.size.get()
    }

    /// Records another shape of the array.
    pub(crate) fn set_geometry(&self, geometry: Geometry) {
        self.size.set(geometry.capacity().bytes());
        self.geometry.replace(geometry);
        self.other.replace(None);
    }

    /// Records that the array has begun to get another shape; it holds as much as before.
    pub(crate) fn set_shapes(&self, from: Geometry, to: Option<Geometry>) {
        self.geometry.replace(from);
        self.other.replace(to);
    }

    /// The array's shape; while it is being reshaped, both.
    pub(crate) fn shapes(&self) -> Vec<Geometry> {
        [self.geometry.borrow().clone()].into_iter().chain(self.other.borrow().clone()).collect()
    }

    /// How many more members every shape of the array survives, whichever they are; see [`survives`].
    pub(crate) fn survives(&self, without: MemberSet) -> usize {
        self.shapes().iter().map(|shape| survives(shape, without)).min().unwrap_or_default()
    }

    /// Domains whose loss the array does not survive.
    pub(crate) fn crowded(&self) -> Vec<(String, MemberSet)> {
        let members = self.members.borrow();
        let paths = (0..).map(MemberIndex).zip(&*members);
        crowded(&self.domains, &self.shapes(), paths.filter_map(|(slot, member)| Some((slot, member.path.as_deref()?))))
    }

    /// The name of the array's level.
    pub(crate) fn level(&self) -> &'static str {
        level_name(self.geometry.borrow().spec().level)
    }

    /// The array's name, or its UUID if it has none.
    pub(crate) fn title(&self) -> String {
        if self.name.is_empty() { self.uuid.to_string() } else { self.name.clone() }
    }

    /// The slot of a member that is named by its slot, path or UUID.
    pub(crate) fn find(&self, name: &str) -> Result<MemberIndex> {
        let members = self.members.borrow();
        let is_meant = |(slot, Member { uuid, path }): (usize, &Member)| {
            let is_path = path.as_ref().is_some_and(|path| path.as_os_str() == name);
            is_path || slot.to_string() == name || uuid.to_string() == name
        };
        let Some(slot) = members.iter().enumerate().position(is_meant) else {
            bail!(
                "'{name}' is not a member of {}: name one by its slot, path or UUID, as `uraid status` shows them",
                self.title()
            );
        };
        Ok(MemberIndex(u8::try_from(slot).expect("slots are small numbers")))
    }

    /// The number of a log device that is named by its path or UUID.
    pub(crate) fn find_log(&self, name: &str) -> Option<LogIndex> {
        let logs = self.logs.borrow();
        log_devices::numbered(&logs).find(|(_, known)| known.is_called(name)).map(|(log, _)| log)
    }

    /// Records the member that is about to be in a slot.
    pub(crate) fn set_member(&self, slot: MemberIndex, member: Member) {
        self.members.borrow_mut()[slot.index()] = member;
    }

    /// Records the members in the slots and their paths.
    pub(crate) fn set_members(&self, members: Vec<Member>) {
        *self.members.borrow_mut() = members;
    }

    /// Members with their paths, for people: `members 1 (/srv/d1), 2 (/srv/d2)`.
    pub(crate) fn named(&self, members: MemberSet) -> String {
        let name = |slot: MemberIndex| {
            let path = self.path(slot).map_or_else(String::new, |path| format!(" ({})", path.display()));
            format!("{slot}{path}")
        };
        let names: Vec<String> = members.iter().map(name).collect();
        format!("member{} {}", if names.len() == 1 { "" } else { "s" }, list(&names))
    }

    /// A member's path, if known.
    pub(crate) fn path(&self, member: MemberIndex) -> Option<PathBuf> {
        self.members.borrow()[member.index()].path.clone()
    }

    /// A member's path, or its UUID if the path is not known.
    pub(crate) fn member(&self, member: MemberIndex) -> String {
        let Member { uuid, path } = &self.members.borrow()[member.index()];
        path.as_ref().map_or_else(|| uuid.to_string(), |path| path.display().to_string())
    }
}

/// Maximum number of listed ranges.
const RANGES_MAX: usize = 64;

/// The remains of an array with members that are out of date, or with too many gone.
fn salvage<D: Disk>(array: &Array<D>) -> Option<Salvage> {
    let (stale, doubtful) = (&array.stale, array.doubtful());
    if stale.is_empty() && array.unreadable().is_none() {
        return None;
    }
    let path = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    let out_of_date = stale.iter().map(|stale| OutOfDate {
        slot: stale.slot.0,
        path: Some(path(&stale.path)),
        epoch: stale.epoch.0,
        newest_epoch: stale.newest.0,
    });
    let blocks = doubtful.iter().take(RANGES_MAX).map(|range| [range.start.0 / 512, range.end.0 / 512]);
    Some(Salvage {
        stale: out_of_date.collect(),
        doubtful_ranges: doubtful.len() as u64,
        doubtful_bytes: doubtful.iter().map(|range| range.end.0 - range.start.0).sum(),
        doubtful: blocks.collect(),
        unreadable_bytes: array.unreadable_bytes().0,
        size_bytes: array.geometry.capacity().bytes().0,
    })
}
