//! What goes wrong on simulated members, and how often.

use uraid_io::disk::OpName;
use uraid_layout::{MemberIndex, MemberSet};

use crate::random::Random;

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
}

/// A fault that is to happen at a certain operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// On which member.
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
    pub const OF: u32 = 10_000;

    /// Whether it happens this time.
    pub fn strikes(self, random: &mut Random) -> bool {
        self.0 > 0 && random.chance(u64::from(self.0), u64::from(Self::OF))
    }
}

impl Fault {
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
    /// What happens to an operation on a member.
    pub fn draw(&self, member: MemberIndex, name: OpName, random: &mut Random) -> Option<Fault> {
        if !self.members.contains(member) {
            return None;
        }
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
        let mut strikes = rates.into_iter().filter(|(fault, rate)| fault.suits(name) && rate.strikes(random));
        strikes.next().map(|(fault, _)| fault)
    }
}
