//! What does not change about an array while it is served, and who its members are.

use std::path::PathBuf;

use uraid_io::array::Array;
use uraid_layout::{Bytes, MemberIndex};
use uuid::Uuid;

use crate::shape::{layout_name, level_name};

/// An array, as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) uuid: Uuid,
    pub(crate) level: &'static str,
    pub(crate) layout: &'static str,
    pub(crate) size: Bytes,
    pub(crate) chunk: Bytes,
    /// Where clients find it.
    pub(crate) uri: String,
    pub(crate) is_read_only: bool,
    pub(crate) reactors: u8,
    /// By slot.
    pub(crate) members: Vec<Member>,
}

/// Who is in a slot, or was.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) uuid: Uuid,
    /// None: it is not known where it is.
    pub(crate) path: Option<PathBuf>,
}

impl About {
    /// What is known of an array before it is served at `uri`.
    pub(crate) fn new(array: &Array, uri: String, is_read_only: bool, reactors: u8) -> Self {
        let level = array.geometry.spec().level;
        let members = array.superblock.slots.iter().zip(&array.paths);
        Self {
            name: array.superblock.name.clone(),
            uuid: array.superblock.array,
            level: level_name(level),
            layout: layout_name(level),
            size: array.geometry.capacity().bytes(),
            chunk: array.geometry.chunk().bytes(),
            uri,
            is_read_only,
            reactors,
            members: members.map(|(record, path)| Member { uuid: record.member, path: path.clone() }).collect(),
        }
    }

    /// The array's name, or its UUID where it has none.
    pub(crate) fn title(&self) -> String {
        if self.name.is_empty() { self.uuid.to_string() } else { self.name.clone() }
    }

    /// A member's path, or its UUID where it is not known.
    pub(crate) fn member(&self, member: MemberIndex) -> String {
        let Member { uuid, path } = &self.members[member.index()];
        path.as_ref().map_or_else(|| uuid.to_string(), |path| path.display().to_string())
    }
}
