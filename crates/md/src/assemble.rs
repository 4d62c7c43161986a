//! Judges the members of an array, and brings together those that belong.
//!
//! The rules are those of mdadm and of Linux (`analyze_sbs` and `super_1_validate` in `md.c`): the superblock with most
//! events is right. Who is one event behind belongs, in the role that the right superblock gives it, because an array
//! that stops for lack of power leaves that behind. Who is further behind has missed writes, and is left out.

use std::collections::BTreeMap;
use std::fmt;

use uraid_layout::Sectors;

use crate::geometry::{Geometry, GeometryError, Shape, ZoneOrder};
use crate::reader::{Array, Member};
use crate::scan::Found;
use crate::superblock::{ArrayUuid, Level, Role, Superblock};

/// By how many events a member may be behind.
const BEHIND_MAX: u64 = 1;

/// What may be done beyond what is certain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Believe parity although the array was not stopped cleanly.
    pub trust_parity: bool,
    /// The order of a RAID 0 of unequal members that has none on record.
    pub zone_order: Option<ZoneOrder>,
}

/// An array, as its members tell.
pub struct Assembly {
    /// What the right superblock says.
    pub superblock: Superblock,
    /// Every member that was found, in the order in which they were.
    pub members: Vec<Judged>,
    /// Slots without a member that has all of its content.
    pub missing: Vec<u16>,
    /// The array, or why it can't be read.
    pub array: Result<Array, AssembleError>,
}

/// A member, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// What people call it.
    pub label: String,
    /// Its events.
    pub events: u64,
    /// How many bad blocks it has on record.
    pub bad_blocks: usize,
    /// What becomes of it.
    pub standing: Standing,
}

/// What becomes of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is used.
    Active {
        /// Its slot.
        slot: u16,
    },
    /// It is used as far as it was brought up to date.
    Recovering {
        /// Its slot.
        slot: u16,
        /// Up to which sector of its data.
        recovered: Sectors,
    },
    /// It is not used.
    LeftOut(LeftOut),
}

/// Why a member is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// The array went on without it.
    Behind {
        /// By how many events.
        events: u64,
    },
    /// It has as many events as others, which say that it has failed.
    Faulty,
    /// It is a spare.
    Spare,
    /// It is a write journal.
    Journal,
    /// It is in the array and was never brought up to date.
    Joining,
    /// It says that the array has another shape.
    OtherShape,
    /// Another member has its slot.
    Replaced {
        /// That one's label.
        by: String,
    },
}

/// Why an array can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// It is between two shapes.
    #[error("a reshape was under way: let mdadm finish it first")]
    Reshape,
    /// It has a write journal, and what that has may be nowhere else.
    #[error("it has a write journal, which may hold content that is nowhere else: let mdadm assemble it once")]
    Journal,
    /// Its shape is not one that is read here.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Two members claim the same slot with the same right.
    #[error("{one} and {other} both are the member in slot {slot}: name only one of them")]
    Twice {
        /// The first.
        one: String,
        /// The second.
        other: String,
        /// Their slot.
        slot: u16,
    },
    /// Too many members are missing.
    #[error("too many members are missing: of {members} there are {}", members - missing)]
    TooFew {
        /// How many there should be.
        members: usize,
        /// How many are missing.
        missing: usize,
    },
    /// Content would have to be computed from parity that may be wrong.
    #[error(
        "it was not stopped cleanly and members are missing: what these held may be wrong wherever writes were under \
         way. Start anyway with --force"
    )]
    DirtyDegraded,
}

/// Brings together the members of each array that was found: the arrays come in the order of their UUIDs.
#[must_use]
pub fn assemble(found: Vec<Found>, options: &Options) -> Vec<Assembly> {
    let mut arrays: BTreeMap<ArrayUuid, Vec<Found>> = BTreeMap::new();
    for member in found {
        arrays.entry(member.superblock.array).or_default().push(member);
    }
    arrays.into_values().filter_map(|members| of_one(members, options)).collect()
}

/// Judges members of one array; `None` if there are none.
fn of_one(found: Vec<Found>, options: &Options) -> Option<Assembly> {
    let right = right(&found)?.clone();
    let mut standings: Vec<Standing> = found.iter().map(|member| standing(&right, member)).collect();
    let twice = seat(&found, &mut standings);
    let judged = found.iter().zip(&standings).map(|(member, standing)| Judged {
        label: member.label.clone(),
        events: member.superblock.events,
        bad_blocks: member.bad.len(),
        standing: standing.clone(),
    });
    let members = judged.collect();
    let mut seats: Vec<Option<(Found, Option<Sectors>)>> = vec![None; right.raid_disks.into()];
    for (member, standing) in found.into_iter().zip(standings) {
        let (slot, recovered) = match standing {
            Standing::Active { slot } => (slot, None),
            Standing::Recovering { slot, recovered } => (slot, Some(recovered)),
            Standing::LeftOut(_) => continue,
        };
        if let Some(seat) = seats.get_mut(usize::from(slot)) {
            *seat = Some((member, recovered));
        }
    }
    let is_whole = |seat: &Option<(Found, Option<Sectors>)>| seat.as_ref().is_some_and(|(_, part)| part.is_none());
    let missing: Vec<u16> = (0..).zip(&seats).filter(|(_, seat)| !is_whole(seat)).map(|(slot, _)| slot).collect();
    let array = match twice {
        Some(twice) => Err(twice),
        None => open(&right, seats, &missing, options),
    };
    Some(Assembly { superblock: right, members, missing, array })
}

/// The superblock that is right: that with most events, and of several the one with whose shape of the array most
/// agree. That of a spare knows less, and counts only if there is no other.
fn right(found: &[Found]) -> Option<&Superblock> {
    let agreeing = |one: &Superblock| found.iter().filter(|other| has_same_shape(one, &other.superblock)).count();
    let rank = |superblock: &&Superblock| (superblock.role() != Role::Spare, superblock.events, agreeing(superblock));
    // The first of several.
    found.iter().map(|member| &member.superblock).rev().max_by_key(rank)
}

/// What becomes of a member, but for others that claim its slot.
fn standing(right: &Superblock, member: &Found) -> Standing {
    let own = &member.superblock;
    let behind = right.events.saturating_sub(own.events);
    let left_out = match (own.role(), right.role_of(own.number)) {
        (Role::Journal, _) => LeftOut::Journal,
        (Role::Spare, _) => LeftOut::Spare,
        _ if own.created != right.created => LeftOut::OtherShape,
        _ if behind > BEHIND_MAX => LeftOut::Behind { events: behind },
        _ if !has_same_shape(own, right) => LeftOut::OtherShape,
        (_, Role::Active(slot)) if slot < right.raid_disks => {
            return match own.recovered.filter(|&recovered| recovered < own.data_size) {
                Some(recovered) => Standing::Recovering { slot, recovered },
                None => Standing::Active { slot },
            };
        }
        (_, Role::Joining(_)) => LeftOut::Joining,
        (_, Role::Spare) => LeftOut::Spare,
        (_, Role::Journal) => LeftOut::Journal,
        (_, Role::Faulty | Role::Active(_)) => LeftOut::Faulty,
    };
    Standing::LeftOut(left_out)
}

/// Whether two superblocks describe the same array.
fn has_same_shape(one: &Superblock, other: &Superblock) -> bool {
    let shape = |superblock: &Superblock| {
        let Superblock { version, level, layout, chunk, raid_disks, member_size, .. } = *superblock;
        // 1.0, 1.1 and 1.2 differ in place only, and mdadm mixes them no more than 0.90.
        (version, level, layout, chunk, raid_disks, member_size)
    };
    shape(one) == shape(other)
}

/// Lets one member have each slot: one that has all of its content goes before one that is being brought up to date,
/// and both before one that is to take its place.
/// Returns why the array can't be read, if there is no telling.
fn seat(found: &[Found], standings: &mut [Standing]) -> Option<AssembleError> {
    // From the best claim to the worst.
    let claim = |index: usize, standing: &Standing| {
        let is_own = found.get(index).is_some_and(|member| !member.superblock.is_replacement);
        match standing {
            Standing::Active { slot } => Some((*slot, (u64::MAX, is_own), index)),
            Standing::Recovering { slot, recovered } => Some((*slot, (recovered.0, is_own), index)),
            Standing::LeftOut(_) => None,
        }
    };
    let mut claims: Vec<_> =
        standings.iter().enumerate().filter_map(|(index, standing)| claim(index, standing)).collect();
    claims.sort_by_key(|&(slot, part, index)| (slot, std::cmp::Reverse(part), index));
    let label = |index: usize| found.get(index).map_or_else(String::new, |member| member.label.clone());
    let (mut holder, mut twice) = (None, None);
    for (slot, part, index) in claims {
        match holder {
            Some((held, holders_part, by)) if held == slot => {
                if part == holders_part {
                    twice.get_or_insert(AssembleError::Twice { one: label(by), other: label(index), slot });
                    continue;
                }
                standings[index] = Standing::LeftOut(LeftOut::Replaced { by: label(by) });
            }
            _ => holder = Some((slot, part, index)),
        }
    }
    twice
}

/// The array of these members.
fn open(
    right: &Superblock,
    seats: Vec<Option<(Found, Option<Sectors>)>>,
    missing: &[u16],
    options: &Options,
) -> Result<Array, AssembleError> {
    if right.is_reshaping {
        return Err(AssembleError::Reshape);
    }
    if right.has_journal {
        return Err(AssembleError::Journal);
    }
    let geometry = geometry(right, &seats, options);
    // What can't be told without all members is not the reason.
    if matches!(right.level, Level::Linear | Level::Raid0) && !missing.is_empty() {
        return Err(AssembleError::TooFew { members: right.raid_disks.into(), missing: missing.len() });
    }
    let geometry = geometry?;
    if !geometry.survives(|slot| !missing.contains(&slot.0)) {
        return Err(AssembleError::TooFew { members: right.raid_disks.into(), missing: missing.len() });
    }
    let doubted = right.resynced.filter(|_| right.level.has_parity() && !options.trust_parity);
    if doubted.is_some() && !missing.is_empty() {
        return Err(AssembleError::DirtyDegraded);
    }
    let member = |(Found { source, superblock, bad, .. }, recovered): (Found, Option<Sectors>)| Member {
        source,
        data_offset: superblock.data_offset,
        data_size: superblock.data_size,
        recovered,
        bad,
    };
    Ok(Array::new(geometry, seats.into_iter().map(|seat| seat.map(member)).collect(), doubted))
}

fn geometry(
    right: &Superblock,
    seats: &[Option<(Found, Option<Sectors>)>],
    options: &Options,
) -> Result<Geometry, GeometryError> {
    let size = |seat: &Option<(Found, Option<Sectors>)>| {
        seat.as_ref().map_or(Sectors(0), |(member, _)| member.superblock.data_size)
    };
    let on_record = match right.layout {
        1 => Some(ZoneOrder::Original),
        2 => Some(ZoneOrder::Alternate),
        _ => None,
    };
    Geometry::new(&Shape {
        level: right.level,
        layout: right.layout,
        chunk: right.chunk,
        member_size: right.member_size,
        sizes: seats.iter().map(size).collect(),
        zone_order: on_record.filter(|_| right.has_zone_order).or(options.zone_order),
    })
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active { .. } => f.write_str("active"),
            Self::Recovering { recovered, .. } => write!(f, "being rebuilt, up to sector {} of its data", recovered.0),
            Self::LeftOut(reason) => write!(f, "{reason}: left out"),
        }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind { events } => write!(f, "{events} events behind"),
            Self::Faulty => f.write_str("marked as failed by the others"),
            Self::Spare => f.write_str("a spare"),
            Self::Journal => f.write_str("a write journal"),
            Self::Joining => f.write_str("not rebuilt"),
            Self::OtherShape => f.write_str("describes another array under the same UUID"),
            Self::Replaced { by } => write!(f, "{by} has its slot"),
        }
    }
}
