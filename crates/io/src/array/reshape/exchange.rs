//! Who joins an array with its new shape, and who leaves it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use uraid_layout::{MemberIndex, MemberSet};

use super::error::ReshapeError;
use super::plan::NewMember;
use crate::array::join::clear;
use crate::format::superblock::{Areas, Superblock};
use crate::member::{Access, FileId, Member};
use crate::superblock;

/// See the module. New members are open.
#[derive(Debug, Default)]
pub struct Exchange {
    new: Vec<Member>,
    leaving: u8,
    /// New members have zeros where members have anything but content.
    is_clear: bool,
}

impl Exchange {
    /// The files and devices at `add` join, whatever they hold if that `is_forced`, and those at `remove` leave an
    /// array that has these members, by slot. `truth` is what they have on record, all of them if it `is_whole`.
    /// Nothing is written.
    ///
    /// # Errors
    /// [`ReshapeError::New`], [`ReshapeError::Present`], [`ReshapeError::Leftover`],
    /// [`ReshapeError::Stranger`], [`ReshapeError::NotLast`].
    pub fn open(
        add: &[PathBuf],
        remove: &[PathBuf],
        members: &[Option<Arc<Member>>],
        (truth, is_whole): (&Superblock, bool),
        access: Access,
        is_forced: bool,
    ) -> Result<Self, ReshapeError> {
        for path in add {
            if let Some(slot) = slot_of(members, path)? {
                return Err(ReshapeError::Present { path: path.clone(), slot });
            }
        }
        let new = Member::open_all(add, access)?;
        for member in &new {
            refuse_content(member, truth, is_whole, is_forced)?;
        }
        Ok(Self { new, leaving: leaving(members, remove)?, is_clear: false })
    }

    /// Leaves nothing on who joins an array with such a superblock that could be taken for something of it: what takes
    /// time, of large members, before clients have to wait.
    ///
    /// # Errors
    /// When one can't be written, or is too small.
    pub fn clear(&mut self, truth: &Superblock) -> Result<(), ReshapeError> {
        for member in &self.new {
            let areas = Areas::new(member.size(), truth.areas.log.size, truth.integrity);
            let too_small = || ReshapeError::TooSmall { path: member.path().into(), size: member.size() };
            clear(member, &areas.ok_or_else(too_small)?).map_err(ReshapeError::Unmade)?;
        }
        self.is_clear = true;
        Ok(())
    }

    /// How many members an array of `before` has then.
    #[must_use]
    pub fn count(&self, before: usize) -> usize {
        before + self.new.len() - usize::from(self.leaving)
    }

    /// Who joins.
    #[must_use]
    pub fn joining(&self) -> Vec<NewMember> {
        let new = |member: &Member| NewMember {
            path: member.path().into(),
            size: member.size(),
            sector_size: member.alignment().offset,
            is_clear: self.is_clear,
        };
        self.new.iter().map(new).collect()
    }

    /// The files and devices that join.
    pub fn into_members(self) -> impl Iterator<Item = Arc<Member>> {
        self.new.into_iter().map(Arc::new)
    }
}

/// The slot of the member at a path, if it is one of these.
fn slot_of(members: &[Option<Arc<Member>>], path: &Path) -> Result<Option<MemberIndex>, ReshapeError> {
    let id = FileId::of(path)?;
    let is_it = |member: &Option<Arc<Member>>| member.as_ref().is_some_and(|member| member.id() == id);
    Ok((0..).zip(members).find_map(|(slot, member)| is_it(member).then_some(MemberIndex(slot))))
}

/// How many members leave, which have to be the last ones.
fn leaving(members: &[Option<Arc<Member>>], remove: &[PathBuf]) -> Result<u8, ReshapeError> {
    let mut slots = MemberSet::EMPTY;
    for path in remove {
        let slot = slot_of(members, path)?.ok_or_else(|| ReshapeError::Stranger { path: path.clone() })?;
        slots = slots.with(slot);
    }
    let left = members.len() - slots.len();
    if let Some(slot) = slots.iter().find(|slot| slot.index() < left) {
        let path = |member: &Option<Arc<Member>>| {
            member.as_ref().map_or_else(PathBuf::new, |member| member.path().to_path_buf())
        };
        let last = members[left..].iter().map(path).collect();
        return Err(ReshapeError::NotLast { path: path(&members[slot.index()]), slot, last });
    }
    Ok(u8::try_from(slots.len()).expect("members are at most 64"))
}

/// Refuses to overwrite what a new member holds, unless that `is_forced`, or it is certainly of no value: it is of a
/// reshape of this array that never began or is over. A member that the array has is refused in any case.
fn refuse_content(member: &Member, truth: &Superblock, is_whole: bool, is_forced: bool) -> Result<(), ReshapeError> {
    let path = || member.path().to_path_buf();
    let own = superblock::load(member).ok().filter(|own| own.array == truth.array);
    if let Some(own) = &own {
        if let Some(slot) =
            (0..).zip(&truth.slots).find_map(|(slot, entry)| (entry.member == own.member).then_some(slot))
        {
            return Err(ReshapeError::Present { path: path(), slot: MemberIndex(slot) });
        }
        // Whoever is missing may have gone on with it; so does a later epoch than that of all who are here.
        let is_known_to_none = is_whole && own.epoch <= truth.epoch;
        if is_known_to_none && own.reshape.is_some() {
            return Ok(());
        }
    }
    if is_forced {
        return Ok(());
    }
    if own.is_some_and(|own| own.reshape.is_some()) {
        return Err(ReshapeError::Leftover { path: path() });
    }
    Ok(member.check_unused()?)
}
