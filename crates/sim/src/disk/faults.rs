//! What goes wrong on simulated members, and how often.

use uraid_io::disk::{DiskOp, OpName};
use uraid_io::format::superblock::{Area, Areas};
use uraid_layout::{Bytes, MemberIndex, MemberSet};

use uraid_random::Random;

/// How many of [`Rate::OF`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate(pub u32);

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails; any part of a write may be there.
    Eio,
    /// A write fails for want of space; any part of it may be there.
    NoSpace,
    /// It stops half-way.
    Short,
    /// It takes half a minute.
    Slow,
    /// It never ends.
    Hang,
    /// The member is gone with it: everything fails from then on.
    Vanish,
    /// A write is acknowledged and was never done. Only checksums tell.
    Lost,
    /// A write is acknowledged and was done elsewhere. Only checksums tell.
    Misdirected,
    /// A bit of what is read, or was just written, is another on the medium. Only checksums tell.
    Flipped,
}

/// How often what happens, and on which members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Who may fail.
    pub members: MemberSet,
    /// Of reads.
    pub read_eio: Rate,
    /// Of writes and zeroings.
    pub write_eio: Rate,
    /// Of flushes.
    pub flush_eio: Rate,
    /// Of writes.
    pub no_space: Rate,
    /// Of reads and writes.
    pub short: Rate,
    /// Of all operations.
    pub slow: Rate,
    /// Of all operations.
    pub hang: Rate,
    /// Of all operations.
    pub vanish: Rate,
    /// Of writes.
    pub lost: Rate,
    /// Of writes.
    pub misdirected: Rate,
    /// Of reads and writes.
    pub flipped: Rate,
    /// Members without an operation for zeroing.
    pub cannot_zero: MemberSet,
    /// What members corrupt of what checksums tell.
    pub silent: Option<Silent>,
}

/// How members of an array with checksums corrupt what they hold, so that checksums tell.
///
/// Of one member it is either the content or the table: of a table that says nothing any more the blocks are not
/// checked, and content that is lost together with its checksum agrees with it. A stray write stays within the area
/// that it was meant for: one that takes a sector of the table's place leaves 127 blocks unchecked, beside the one that
/// it should have replaced. Superblocks and bitmaps have checksums of their own and are not corrupted here. Of a log
/// nothing says that the newest record was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Whose content.
    pub content: MemberSet,
    /// Whose table.
    pub tables: MemberSet,
    /// Where these are, the same on all members.
    pub areas: Areas,
    /// Of writes.
    pub lost: Rate,
    /// Of writes.
    pub misdirected: Rate,
    /// Of reads and writes.
    pub flipped: Rate,
}

/// A fault that is to happen at a certain operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// On which member, or at which log device's place.
    pub member: MemberIndex,
    /// At which of the member's operations, counted from 0.
    pub index: usize,
    /// What happens.
    pub fault: Fault,
    /// Whether it happens to every later operation of the member, too.
    pub lasts: bool,
}

impl Rate {
    /// What rates are of.
    pub(crate) const OF: u32 = 10_000;

    /// Whether it happens this time.
    pub(crate) fn strikes(self, random: &mut Random) -> bool {
        self.0 > 0 && random.chance(u64::from(self.0), u64::from(Self::OF))
    }
}

impl Fault {
    /// Whether the member says nothing of it.
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(self, Self::Lost | Self::Misdirected | Self::Flipped)
    }

    /// Whether it can happen to operations of that kind.
    #[must_use]
    pub fn suits(self, name: OpName) -> bool {
        let is_write = matches!(name, OpName::Write | OpName::Zero);
        match self {
            Self::Eio | Self::Slow | Self::Hang | Self::Vanish => true,
            Self::NoSpace | Self::Lost | Self::Misdirected => is_write,
            Self::Short | Self::Flipped => is_write || name == OpName::Read,
        }
    }
}

impl Faults {
    /// What happens to an operation of a member of that size.
    pub fn draw(&self, op: &DiskOp, size: Bytes, random: &mut Random) -> Option<Fault> {
        let name = op.kind.name();
        if let Some(silent) = self.silent.filter(|silent| silent.area(op, size).is_some()) {
            return silent.draw(name, random);
        }
        if self.members.contains(op.member) { self.strike(name, random) } else { None }
    }

    /// What happens to an operation of that kind of whoever may fail.
    pub(super) fn strike(&self, name: OpName, random: &mut Random) -> Option<Fault> {
        let eio = match name {
            OpName::Read => self.read_eio,
            OpName::Write | OpName::Zero => self.write_eio,
            OpName::Flush => self.flush_eio,
        };
        let rates = [
            (Fault::Eio, eio),
            (Fault::NoSpace, self.no_space),
            (Fault::Short, self.short),
            (Fault::Slow, self.slow),
            (Fault::Hang, self.hang),
            (Fault::Vanish, self.vanish),
            (Fault::Lost, self.lost),
            (Fault::Misdirected, self.misdirected),
            (Fault::Flipped, self.flipped),
        ];
        first(&rates, name, random)
    }
}

impl Silent {
    /// Which of the areas an operation is on that its member corrupts, which has that size: one that has not grown with
    /// the others has a superblock where they have content.
    #[must_use]
    pub fn area(&self, op: &DiskOp, size: Bytes) -> Option<Area> {
        let Self { content, tables, areas, .. } = self;
        let end = Bytes(op.offset.0 + op.len().0);
        let is_within = |last: Bytes| end <= last && last <= size;
        let is_on = |area: Area| op.offset >= area.offset && area.end().is_some_and(is_within);
        let is_its = |(members, area): &(&MemberSet, Area)| members.contains(op.member) && is_on(*area);
        [(content, areas.data), (tables, areas.sums)].into_iter().find(is_its).map(|(_, area)| area)
    }

    fn draw(&self, name: OpName, random: &mut Random) -> Option<Fault> {
        let Self { lost, misdirected, flipped, .. } = *self;
        first(&[(Fault::Lost, lost), (Fault::Misdirected, misdirected), (Fault::Flipped, flipped)], name, random)
    }
}

/// The first fault that happens.
fn first(rates: &[(Fault, Rate)], name: OpName, random: &mut Random) -> Option<Fault> {
    rates.iter().find(|(fault, rate)| fault.suits(name) && rate.strikes(random)).map(|&(fault, _)| fault)
}
