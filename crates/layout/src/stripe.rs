//! The content of one parity stripe: which cell holds what, and the parity groups as XOR equations.

use alloc::vec::Vec;

use crate::{Cell, DataUnit, GroupId};

/// What a cell holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Data, in logical order.
    Data(DataUnit),
    /// The parity unit of a group; of a group with one data cell, that cell's copy.
    Parity(GroupId),
}

impl Role {
    /// The data unit, if it is one.
    #[must_use]
    pub fn unit(self) -> Option<DataUnit> {
        match self {
            Self::Data(unit) => Some(unit),
            Self::Parity(_) => None,
        }
    }
}

/// A parity group: the XOR of its data cells and its parity cell is zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where the parity unit is.
    pub parity: Cell,
    /// The data cells that it covers, ascending; never empty.
    pub data: Vec<Cell>,
}

impl Group {
    /// Every cell of the group, parity last.
    pub fn cells(&self) -> impl Iterator<Item = Cell> + Clone + '_ {
        self.data.iter().copied().chain([self.parity])
    }

    /// Whether the group's two cells are copies of each other.
    #[must_use]
    pub fn is_mirror(&self) -> bool {
        self.data.len() == 1
    }
}

/// One parity stripe's map. Every cell of the stripe has one role; a data cell can be in any number of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeMap {
    roles: Vec<Role>,
    data: Vec<Cell>,
    groups: Vec<Group>,
    groups_of: Vec<Vec<GroupId>>,
}

impl StripeMap {
    /// Builds the map of a stripe of `cells` cells from its data units in logical order and its groups.
    ///
    /// # Panics
    /// When a cell has no role or two, or when a group's data cell is not a data unit: a geometry's tables are wrong.
    pub(crate) fn new(cells: usize, data: Vec<Cell>, mut groups: Vec<Group>) -> Self {
        let mut roles = alloc::vec![None; cells];
        let mut assign = |cell: Cell, role| {
            let before = roles[usize::from(cell.0)].replace(role);
            assert!(before.is_none(), "cell {cell} has one role");
        };
        for (unit, &cell) in data.iter().enumerate() {
            assign(cell, Role::Data(DataUnit(index_u16(unit))));
        }
        for (group, equation) in groups.iter_mut().enumerate() {
            equation.data.sort_unstable();
            assign(equation.parity, Role::Parity(GroupId(index_u16(group))));
        }
        let roles: Vec<Role> = roles.into_iter().map(|role| role.expect("every cell of a stripe has a role")).collect();
        let mut groups_of = alloc::vec![Vec::new(); data.len()];
        for (group, equation) in groups.iter().enumerate() {
            assert!(!equation.data.is_empty(), "a parity group covers data");
            for &cell in &equation.data {
                let Role::Data(unit) = roles[usize::from(cell.0)] else { panic!("cell {cell} of a group holds data") };
                groups_of[usize::from(unit.0)].push(GroupId(index_u16(group)));
            }
        }
        Self { roles, data, groups, groups_of }
    }

    /// What `cell` holds.
    #[must_use]
    pub fn role(&self, cell: Cell) -> Role {
        self.roles[usize::from(cell.0)]
    }

    /// How many cells the stripe has: members x rows.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.roles.len()
    }

    /// The data cells in logical order.
    #[must_use]
    pub fn data(&self) -> &[Cell] {
        &self.data
    }

    /// The cell of a data unit.
    #[must_use]
    pub fn cell(&self, unit: DataUnit) -> Cell {
        self.data[usize::from(unit.0)]
    }

    /// The parity groups; indexed by [`GroupId`].
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// One parity group.
    #[must_use]
    pub fn group(&self, group: GroupId) -> &Group {
        &self.groups[usize::from(group.0)]
    }

    /// The groups that cover a data unit: none on RAID 0, one on RAID 5, two on RM2, one for each further copy on
    /// mirrors.
    #[must_use]
    pub fn groups_of(&self, unit: DataUnit) -> &[GroupId] {
        &self.groups_of[usize::from(unit.0)]
    }
}

fn index_u16(index: usize) -> u16 {
    u16::try_from(index).expect("a stripe has fewer than 65536 cells")
}
