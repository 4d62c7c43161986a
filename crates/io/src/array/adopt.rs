//! Making members of files and devices that have an array's content in place already, as another program left it.
//!
//! The data stay where they are; what the other program had before them becomes the head. What is overwritten is copied
//! first, and whoever keeps the copy can take all of it back until the array has been written.
//!
//! There is no moment at which both programs would take the members for theirs. First they get superblocks that say
//! that they are being *converted*, which nobody opens; then the other program's are erased; then the superblocks say
//! what the array is. Each of these rounds is durable before the next begins, and going back has the same rounds. Where
//! either is cut off the other program may still have all that it needs, and go on: going back would undo what it did
//! since, so its superblocks have to be as they were, or erased.

use std::path::{Path, PathBuf};

use thiserror::Error;
use uraid_layout::{Bytes, Geometry, GeometryError, SECTOR_BYTES, Spec};
use uuid::Uuid;

use super::create::stripe_on_member;
use crate::Error;
use crate::buf::Buf;
use crate::format::superblock::{
    Areas, Consistency, NameError, Revision, SECTOR_SIZES, SUPERBLOCK_BYTES, Superblock, SuperblockError, check_name,
    encode, encode_converting,
};
use crate::format::{Epoch, UnixSeconds};
use crate::member::{Access, Member, MemberError};
use crate::superblock::{check_not_converting, load};

/// What is overwritten of a head: everything before the log, whose old records belong to no run of this array.
const HEAD: usize = 512 << 10;

/// Where the other program has its superblock, if it has it at the start; no superblock of an array is in it.
const START: usize = 16 << 10;

/// The first version that says what the array is. It takes the place of the one that says that it is being converted,
/// which has the same slot, as both are even.
const WHOLE: Revision = Revision(2);

/// What says once more that the array is being converted.
const TAKEN_BACK: Revision = Revision(4);

/// An array whose content is in place.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// The array.
    pub array: Uuid,
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: UnixSeconds,
    /// Its shape, with as much of each member as it uses.
    pub spec: Spec,
    /// The members, by slots.
    pub members: Vec<Place>,
}

/// Where a member has its data.
#[derive(Clone, Debug)]
pub struct Place {
    /// The member.
    pub path: PathBuf,
    /// Where its data begin.
    pub data: Bytes,
}

/// Why members can't be adopted, or given back. Nothing was changed then, but with [`AdoptError::Io`].
#[derive(Debug, Error)]
pub enum AdoptError {
    /// A member can't be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A member failed.
    #[error(transparent)]
    Io(#[from] Error),
    /// There is no such array.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// No array can have the name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The data begin too early, or nowhere that they could.
    #[error(
        "{path}: its data begin at byte {data}; there is room for what belongs before them only if they begin at a \
         whole number of MiB, and not at 0. Copy the content instead", path = path.display()
    )]
    NoRoomBefore {
        /// The member.
        path: PathBuf,
        /// Where its data begin.
        data: Bytes,
    },
    /// There can be no such members.
    #[error("there can be no such array: {0}")]
    Unsound(#[source] SuperblockError),
    /// It is not one of those that were converted.
    #[error(
        "{path}: is none of the members that were converted, or was changed since by another program. If Linux has \
         used the array since, it is Linux's: `uraid wipe` takes away what a conversion left that was cut off",
        path = path.display()
    )]
    Stranger {
        /// The member.
        path: PathBuf,
    },
    /// Two are the same one of those that were converted.
    #[error(
        "{first} and {second}: both are what one member became: name the one that is not a copy",
        first = first.display(),
        second = second.display()
    )]
    Twice {
        /// One.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// One of those that were converted was not found.
    #[error("what was {path} is not among the members that were named: name all of them", path = path.display())]
    Missing {
        /// Where it was.
        path: PathBuf,
    },
    /// The array was written since, or changed.
    #[error(
        "{path}: the array was written since it was converted, so what it was before is of no use any more",
        path = path.display()
    )]
    Used {
        /// The member.
        path: PathBuf,
    },
}

/// What a member had where it is overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    /// Where it was found.
    pub path: PathBuf,
    /// The member that it becomes.
    pub member: Uuid,
    /// How large it is.
    pub size: Bytes,
    /// Its first bytes.
    pub head: Vec<u8>,
    /// Where the last copy of the superblock has its place: behind the data, or in the head.
    pub last: Bytes,
    /// What was there.
    pub behind: Vec<u8>,
}

/// Members that can become an array; they are open and locked.
#[derive(Debug)]
pub struct Adoptable {
    members: Vec<Member>,
    superblocks: Vec<Superblock>,
}

/// Bytes for a member.
struct Write {
    slot: usize,
    offset: Bytes,
    bytes: Vec<u8>,
}

impl Adoptable {
    /// Looks at the members, and changes nothing. None may have anything of a conversion that was cut off: a copy of
    /// that would be of no use to the other program.
    ///
    /// # Errors
    /// See [`AdoptError`].
    ///
    /// # Panics
    /// When there are not as many members as the shape has.
    pub fn find(adoption: &Adoption) -> Result<Self, AdoptError> {
        check_name(&adoption.name)?;
        let geometry = Geometry::new(adoption.spec)?;
        assert_eq!(adoption.members.len(), geometry.members(), "each slot has a member");
        let paths: Vec<&Path> = adoption.members.iter().map(|place| place.path.as_path()).collect();
        let members = Member::open_all(&paths, Access::ReadWrite)?;
        members.iter().try_for_each(check_not_converting)?;
        let areas = members.iter().zip(&adoption.members).map(|(member, place)| areas(member, place, adoption.spec));
        let areas: Vec<Areas> = areas.collect::<Result<_, _>>()?;
        let consistency = consistency(&geometry, &areas);
        let sector_size = members.iter().map(|member| member.alignment().offset).fold(SECTOR_SIZES[0], Bytes::max);
        let complete = |new| Superblock {
            name: adoption.name.clone(),
            created: adoption.created,
            consistency,
            sector_size,
            ..new
        };
        let uuids: Vec<(Uuid, Areas)> = areas.into_iter().map(|areas| (Uuid::new_v4(), areas)).collect();
        let superblocks = Superblock::of_new_array(adoption.array, adoption.spec, &uuids);
        let superblocks: Vec<Superblock> = superblocks.into_iter().map(complete).collect();
        superblocks.iter().try_for_each(Superblock::check).map_err(AdoptError::Unsound)?;
        Ok(Self { members, superblocks })
    }

    /// What the first member will say of itself and the array.
    ///
    /// # Panics
    /// Never: an array has members.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.superblocks.first().expect("an array has members")
    }

    /// Copies what would be overwritten.
    ///
    /// # Errors
    /// When a member can't be read.
    pub fn formers(&self) -> Result<Vec<Former>, AdoptError> {
        let former = |(member, own): (&Member, &Superblock)| {
            let [.., last] = own.areas.copies();
            Ok(Former {
                path: member.path().to_path_buf(),
                member: own.member,
                size: member.size(),
                head: member.peek(Bytes(0), Bytes(HEAD as u64))?,
                last,
                behind: member.peek(last, Bytes(SUPERBLOCK_BYTES as u64))?,
            })
        };
        self.members.iter().zip(&self.superblocks).map(former).collect()
    }

    /// Makes the array of the members. Whoever has [the copies](Self::formers) can take it back.
    ///
    /// # Errors
    /// When a member fails.
    pub fn adopt(self) -> Result<Superblock, AdoptError> {
        for round in rounds(&self.superblocks) {
            perform(&self.members, round)?;
        }
        Ok(of_revision(self.superblock(), WHOLE))
    }
}

/// Gives members back to the program that they were of: `paths` in any order, all of those that were converted.
///
/// # Errors
/// See [`AdoptError`].
pub fn give_back(paths: &[PathBuf], formers: &[Former]) -> Result<(), AdoptError> {
    let mut seats: Vec<Option<(Member, Option<Superblock>)>> = formers.iter().map(|_| None).collect();
    for member in Member::open_all(paths, Access::ReadWrite)? {
        let (slot, own) = recognise(&member, formers)?;
        if let Some((first, _)) = &seats[slot] {
            let (first, second) = (first.path().to_path_buf(), member.path().to_path_buf());
            return Err(AdoptError::Twice { first, second });
        }
        seats[slot] = Some((member, own));
    }
    let mut members = Vec::with_capacity(formers.len());
    for (seat, former) in seats.into_iter().zip(formers) {
        members.push(seat.ok_or_else(|| AdoptError::Missing { path: former.path.clone() })?);
    }
    let (members, superblocks): (Vec<Member>, Vec<Option<Superblock>>) = members.into_iter().unzip();
    for round in rounds_back(&superblocks, formers) {
        perform(&members, round)?;
    }
    Ok(())
}

/// Which of the members this is, and its superblock if it says what the array is.
fn recognise(member: &Member, formers: &[Former]) -> Result<(usize, Option<Superblock>), AdoptError> {
    let path = || member.path().to_path_buf();
    let by_uuid = |uuid: Uuid| formers.iter().position(|former| former.member == uuid);
    let start = member.peek(Bytes(0), Bytes(START as u64))?;
    let (slot, own) = match load(member) {
        Ok(own) if (own.epoch, own.revision) == (Epoch(1), WHOLE) => (by_uuid(own.member), Some(own)),
        Ok(own) if by_uuid(own.member).is_some() => return Err(AdoptError::Used { path: path() }),
        Ok(_) => (None, None),
        Err(Error::Superblock { source: SuperblockError::Converting { member: uuid, .. }, .. }) => {
            (by_uuid(uuid), None)
        }
        Err(Error::Superblock { source: SuperblockError::NoMagic, .. }) => {
            (formers.iter().position(|former| former.head.starts_with(&start)), None)
        }
        // It was cut off in the middle of its superblocks: where the rest is erased only its path tells.
        Err(Error::Superblock { source: SuperblockError::BadChecksum { .. }, .. }) => {
            let is_erased = is_zero(&start);
            let is_it = |former: &Former| former.head.starts_with(&start) || is_erased && former.path == member.path();
            (formers.iter().position(is_it), None)
        }
        Err(error) => return Err(error.into()),
    };
    let is_as_left = |slot: &usize| formers[*slot].is_as_left(&start) && member.size() >= formers[*slot].size;
    let slot = slot.filter(is_as_left).ok_or_else(|| AdoptError::Stranger { path: path() })?;
    Ok((slot, own))
}

impl Former {
    /// Whether a member's start is what the other program left there, or erased, sector by sector: it has not used the
    /// member since.
    fn is_as_left(&self, start: &[u8]) -> bool {
        let sectors = |bytes| <[u8]>::chunks(bytes, SECTOR_BYTES as usize);
        sectors(start).zip(sectors(&self.head)).all(|(now, before)| now == before || is_zero(now))
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// What makes the array, round by round.
fn rounds(superblocks: &[Superblock]) -> [Vec<Write>; 3] {
    let mut rounds = [const { Vec::new() }; 3];
    for (slot, own) in superblocks.iter().enumerate() {
        let zeros = |from: Bytes, to: Bytes| {
            let bytes = vec![0; usize::try_from(to.0 - from.0).expect("a head is small")];
            Write { slot, offset: from, bytes }
        };
        let [_, odd, _] = own.areas.copies();
        let behind = |place: Bytes| Bytes(place.0 + SUPERBLOCK_BYTES as u64);
        let (bitmap, head) = (own.areas.bitmap.offset, Bytes(HEAD as u64));
        // The bitmap and the list of bad blocks say nothing, and what was in the other slot is no superblock.
        rounds[0].extend([zeros(odd, behind(odd)), zeros(bitmap, head)]);
        rounds[0].extend(superblock_writes(slot, own, &encode_converting(own)));
        let mut copies = own.areas.copies();
        copies.sort_unstable();
        let mut from = Bytes(0);
        for to in copies.into_iter().filter(|&copy| copy < bitmap).chain([bitmap]) {
            rounds[1].push(zeros(from, to));
            from = behind(to);
        }
        rounds[2].extend(superblock_writes(slot, own, &encode(&of_revision(own, WHOLE))));
    }
    rounds
}

/// What gives the members back, round by round: those that say what the array is say first that it is not.
fn rounds_back(superblocks: &[Option<Superblock>], formers: &[Former]) -> [Vec<Write>; 3] {
    let mut rounds = [const { Vec::new() }; 3];
    for (slot, own) in superblocks.iter().enumerate().filter_map(|(slot, own)| Some((slot, own.as_ref()?))) {
        rounds[0].extend(superblock_writes(slot, own, &encode_converting(&of_revision(own, TAKEN_BACK))));
    }
    for (slot, former) in formers.iter().enumerate() {
        let (start, rest) = former.head.split_at(START.min(former.head.len()));
        rounds[1].push(Write { slot, offset: Bytes(0), bytes: start.to_vec() });
        rounds[2].push(Write { slot, offset: Bytes(START as u64), bytes: rest.to_vec() });
        rounds[2].push(Write { slot, offset: former.last, bytes: former.behind.clone() });
    }
    rounds
}

fn superblock_writes(slot: usize, own: &Superblock, bytes: &[u8]) -> [Write; 2] {
    own.write_positions().map(|offset| Write { slot, offset, bytes: bytes.to_vec() })
}

fn of_revision(own: &Superblock, revision: Revision) -> Superblock {
    Superblock { revision, ..own.clone() }
}

/// Writes, and makes all of it durable.
fn perform(members: &[Member], round: Vec<Write>) -> Result<(), AdoptError> {
    for Write { slot, offset, bytes } in round {
        members[slot].write_at(offset, &Buf::of(&bytes))?;
    }
    Ok(members.iter().try_for_each(Member::sync)?)
}

/// Where things are on a member whose data are in place.
fn areas(member: &Member, place: &Place, spec: Spec) -> Result<Areas, AdoptError> {
    let used = spec.member_size.bytes();
    let path = || place.path.clone();
    let end =
        place.data.0.checked_add(used.0).ok_or_else(|| AdoptError::NoRoomBefore { path: path(), data: place.data })?;
    Areas::around(member.size(), place.data, Bytes(end))
        .ok_or_else(|| AdoptError::NoRoomBefore { path: path(), data: place.data })
}

/// What suits the level: where the log would have no room, a bitmap.
fn consistency(geometry: &Geometry, areas: &[Areas]) -> Consistency {
    let log_min = Areas::log_min(stripe_on_member(geometry));
    match Consistency::of_level(geometry.spec().level) {
        Consistency::Log if areas.iter().any(|areas| areas.log.size < log_min) => Consistency::Bitmap,
        suits => suits,
    }
}

#[cfg(test)]
mod tests;
