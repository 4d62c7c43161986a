//! RAID 4, 5 and 6: where data and parities are in each stripe of chunks.
//!
//! Source: `raid5_compute_sector`, `raid6_d0` and `raid6_idx_to_slot` in Linux, `raid5.c`.

use uraid_layout::{DiskSector, Lba, Sectors, field};

use super::place::{GeometryError, Located, Place, Slot, Stripe};
use crate::superblock::Level;

/// An array with one parity, or two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parity {
    members: u64,
    chunk: u64,
    stripes: u64,
    turn: Turn,
    order: Order,
    q: Q,
}

/// On which member P is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// From the last member of those that take turns to the first. The DDF layout that does so is a stripe ahead.
    Left {
        ahead: u64,
    },
    Right,
    First,
    /// The last that Q leaves.
    Last,
}

/// Where data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// From the first member on, where no parity is.
    Asymmetric,
    /// From the parities on.
    Symmetric,
}

/// Where Q is, if there is one, and how data count in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Q {
    None,
    /// Behind P. Data count from there on.
    Behind,
    /// The same; data count by their members' slots.
    BehindBySlot,
    /// Before P; data count by their members' slots.
    BeforeBySlot,
    /// On the last member; P takes turns among the others.
    Last,
}

impl Parity {
    /// # Errors
    /// [`GeometryError`] if the level has no such layout, chunk or number of members.
    pub(super) fn new(
        level: Level,
        layout: u32,
        members: u16,
        chunk: Sectors,
        member_size: Sectors,
    ) -> Result<Self, GeometryError> {
        let unknown = GeometryError::Layout { level, layout };
        let (turn, order, q) = match level {
            Level::Raid6 => double(layout).ok_or(unknown)?,
            Level::Raid5 => {
                let (turn, order) = single(layout).ok_or(unknown)?;
                (turn, order, Q::None)
            }
            // RAID 4 has no layouts: whatever the field has, the kernel does not look at it.
            _ => (Turn::Last, Order::Asymmetric, Q::None),
        };
        let is_enough = if level == Level::Raid6 { members >= 4 } else { members >= 2 };
        if !is_enough || (q != Q::None && usize::from(members) > field::ORDER) {
            return Err(GeometryError::Members { level, members });
        }
        if !chunk.0.is_power_of_two() || chunk.0 < 8 {
            return Err(GeometryError::Chunk { level, chunk });
        }
        let stripes = member_size.0 / chunk.0;
        Ok(Self { members: members.into(), chunk: chunk.0, stripes, turn, order, q })
    }

    pub(super) fn capacity(&self) -> Sectors {
        Sectors(self.stripes * self.chunk * self.data_members())
    }

    /// How many members can be lost.
    pub(super) fn parities(&self) -> u64 {
        if self.q == Q::None { 1 } else { 2 }
    }

    /// Where a sector is; `None` beyond the end.
    pub(super) fn locate(&self, lba: Lba) -> Option<Located> {
        let (stripe, index, offset) = self.split(lba)?;
        let (p, q) = self.parity_members(stripe);
        let place = Place { slot: Slot(self.data_member(p, q, index) as u16), sector: self.sector(stripe, offset) };
        Some(Located { copies: vec![place], run: Sectors(self.chunk - offset) })
    }

    /// What a sector can be computed from; `None` beyond the end.
    pub(super) fn stripe(&self, lba: Lba) -> Option<Stripe> {
        let (stripe, index, offset) = self.split(lba)?;
        let (p, q) = self.parity_members(stripe);
        let slots = (0..self.data_members()).map(|index| self.data_member(p, q, index));
        let data = slots.map(|slot| (Slot(slot as u16), self.exponent(p, q, slot))).collect();
        Some(Stripe {
            sector: self.sector(stripe, offset),
            own: Slot(self.data_member(p, q, index) as u16),
            data,
            p: Slot(p as u16),
            q: q.map(|q| Slot(q as u16)),
        })
    }

    fn data_members(&self) -> u64 {
        self.members - self.parities()
    }

    /// The stripe of a sector, the index of its chunk there, and its offset in the chunk.
    fn split(&self, lba: Lba) -> Option<(u64, u64, u64)> {
        let (chunk, offset) = (lba.0 / self.chunk, lba.0 % self.chunk);
        let (stripe, index) = (chunk / self.data_members(), chunk % self.data_members());
        (stripe < self.stripes).then_some((stripe, index, offset))
    }

    fn sector(&self, stripe: u64, offset: u64) -> DiskSector {
        DiskSector(stripe * self.chunk + offset)
    }

    /// The members with P and Q.
    fn parity_members(&self, stripe: u64) -> (u64, Option<u64>) {
        // Q on the last member leaves a RAID 5 of the others.
        let turning = if self.q == Q::Last { self.members - 1 } else { self.members };
        let p = match self.turn {
            Turn::Left { ahead } => turning - 1 - (stripe + ahead) % turning,
            Turn::Right => stripe % turning,
            Turn::First => 0,
            Turn::Last => self.data_members(),
        };
        let q = match self.q {
            Q::None => None,
            Q::Behind | Q::BehindBySlot => Some((p + 1) % self.members),
            Q::BeforeBySlot => Some((p + self.members - 1) % self.members),
            Q::Last => Some(self.members - 1),
        };
        (p, q)
    }

    /// The member with the data of this index.
    fn data_member(&self, p: u64, q: Option<u64>, index: u64) -> u64 {
        match (self.order, self.q) {
            (Order::Symmetric, Q::None | Q::BeforeBySlot) => (p + 1 + index) % self.members,
            (Order::Symmetric, Q::Behind | Q::BehindBySlot) => (p + 2 + index) % self.members,
            (Order::Symmetric, Q::Last) => (p + 1 + index) % (self.members - 1),
            // In ascending order of members, past the parities.
            (Order::Asymmetric, _) => {
                let (low, high) = q.map_or((p, u64::MAX), |q| (p.min(q), p.max(q)));
                let past_low = index + u64::from(index >= low);
                past_low + u64::from(past_low >= high)
            }
        }
    }

    /// The power of 2 by which a member's data count in Q.
    fn exponent(&self, p: u64, q: Option<u64>, slot: u64) -> usize {
        let Some(q) = q else { return 0 };
        let exponent = match self.q {
            Q::BehindBySlot | Q::BeforeBySlot => slot,
            // Members are counted from Q on, without P.
            _ => {
                let behind = |slot: u64| (slot + self.members - q - 1) % self.members;
                behind(slot) - u64::from(behind(p) < behind(slot))
            }
        };
        exponent as usize
    }
}

/// RAID 5's layouts.
fn single(layout: u32) -> Option<(Turn, Order)> {
    Some(match layout {
        0 => (Turn::Left { ahead: 0 }, Order::Asymmetric),
        1 => (Turn::Right, Order::Asymmetric),
        2 => (Turn::Left { ahead: 0 }, Order::Symmetric),
        3 => (Turn::Right, Order::Symmetric),
        4 => (Turn::First, Order::Asymmetric),
        5 => (Turn::Last, Order::Asymmetric),
        _ => return None,
    })
}

/// RAID 6's layouts.
fn double(layout: u32) -> Option<(Turn, Order, Q)> {
    let of_raid5 = |layout, q| single(layout).map(|(turn, order)| (turn, order, q));
    match layout {
        0..=5 => of_raid5(layout, Q::Behind),
        8 => Some((Turn::Right, Order::Asymmetric, Q::BehindBySlot)),
        9 => Some((Turn::Left { ahead: 1 }, Order::Asymmetric, Q::BehindBySlot)),
        10 => Some((Turn::Left { ahead: 0 }, Order::Symmetric, Q::BeforeBySlot)),
        16..=20 => of_raid5(layout - 16, Q::Last),
        _ => None,
    }
}
