//! One type per quantity: an index, a count and a size are different things.

use core::fmt;

/// Bytes in a sector, the unit of every address in the project.
pub const SECTOR_BYTES: u64 = 512;

/// A sector of the array, as its clients see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// A sector of a member, counted from the start of the member's data area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskSector(pub u64);

/// A number of sectors: a length, or an offset inside a chunk or a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sectors(pub u64);

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A member's slot in the array, 0 to 63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberIndex(pub u8);

/// A parity stripe of the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeId(pub u64);

/// A number of parity stripes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stripes(pub u64);

/// A parity group within its parity stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

/// A chunk within a parity stripe: `row * members + member`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell(pub u16);

/// A data unit within a parity stripe, in logical order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataUnit(pub u16);

/// A set of members.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberSet(u64);

impl Sectors {
    /// The same length in bytes.
    ///
    /// # Panics
    /// When the length does not fit 64 bits of bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        assert!(self.0 <= u64::MAX / SECTOR_BYTES, "length in bytes fits 64 bits");
        Bytes(self.0 * SECTOR_BYTES)
    }
}

impl Bytes {
    /// The whole sectors that fit in this many bytes.
    #[must_use]
    pub const fn whole_sectors(self) -> Sectors {
        Sectors(self.0 / SECTOR_BYTES)
    }
}

impl MemberIndex {
    /// The index as a slice index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl MemberSet {
    /// No members.
    pub const EMPTY: Self = Self(0);

    /// The members 0 to `members` - 1.
    ///
    /// # Panics
    /// When `members` is over 64.
    #[must_use]
    pub const fn all(members: usize) -> Self {
        assert!(members <= 64, "an array has at most 64 members");
        if members == 64 { Self(u64::MAX) } else { Self((1 << members) - 1) }
    }

    /// Whether `member` is in the set.
    #[must_use]
    pub const fn contains(self, member: MemberIndex) -> bool {
        member.0 < 64 && self.0 >> member.0 & 1 == 1
    }

    /// The set with `member` added.
    ///
    /// # Panics
    /// When `member` is over 63.
    #[must_use]
    pub const fn with(self, member: MemberIndex) -> Self {
        assert!(member.0 < 64, "a member's slot is at most 63");
        Self(self.0 | 1 << member.0)
    }

    /// The set with `member` removed.
    #[must_use]
    pub const fn without(self, member: MemberIndex) -> Self {
        if member.0 < 64 { Self(self.0 & !(1 << member.0)) } else { self }
    }

    /// Members in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Members of this set that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many members the set has.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set has no member.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = MemberIndex> + Clone {
        (0..64u8).map(MemberIndex).filter(move |&member| self.contains(member))
    }
}

impl FromIterator<MemberIndex> for MemberSet {
    fn from_iter<I: IntoIterator<Item = MemberIndex>>(members: I) -> Self {
        members.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// As in a sentence: `1`, `1 and 3`, `1, 3 and 4`; `none`.
impl fmt::Display for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, member) in self.iter().enumerate() {
            f.write_str(match index {
                0 => "",
                _ if index + 1 == self.len() => " and ",
                _ => ", ",
            })?;
            write!(f, "{member}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|member| member.0)).finish()
    }
}

macro_rules! display_as_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_as_number!(Lba, DiskSector, Sectors, Bytes, MemberIndex, StripeId, Stripes, GroupId, Cell, DataUnit);

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn members_are_listed_as_in_a_sentence() {
        let said = |slots: &[u8]| slots.iter().map(|&slot| MemberIndex(slot)).collect::<MemberSet>().to_string();
        assert_eq!([said(&[]), said(&[7]), said(&[1, 3]), said(&[4, 1, 3])], ["none", "7", "1 and 3", "1, 3 and 4"]);
    }
}
