//! The content of one parity stripe: which cell holds what, and the parity groups as equations.

use alloc::vec::Vec;

use crate::field::Factor;
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

/// A parity group: the XOR of its parity cell and its data cells, each of these times its factor in GF(2^8), is zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where the parity unit is.
    pub parity: Cell,
    /// The data cells that it covers, ascending; never empty.
    pub data: Vec<Cell>,
    /// By data cell; never zero.
    factors: Vec<Factor>,
}

impl Group {
    /// A group of data cells with their factors.
    ///
    /// # Panics
    /// When there is no data, or a factor is zero.
    pub(crate) fn new(parity: Cell, mut terms: Vec<(Cell, Factor)>) -> Self {
        assert!(!terms.is_empty(), "a parity group covers data");
        assert!(terms.iter().all(|&(_, factor)| factor != Factor::ZERO), "a group's data counts");
        terms.sort_unstable();
        let (data, factors) = terms.into_iter().unzip();
        Self { parity, data, factors }
    }

    /// A group whose parity is the XOR of its data cells.
    ///
    /// # Panics
    /// When there is no data.
    pub(crate) fn xor(parity: Cell, data: impl IntoIterator<Item = Cell>) -> Self {
        Self::new(parity, data.into_iter().map(|cell| (cell, Factor::ONE)).collect())
    }

    /// Every cell of the group, parity last.
    pub fn cells(&self) -> impl Iterator<Item = Cell> + Clone + '_ {
        self.data.iter().copied().chain([self.parity])
    }

    /// Every cell with its factor, parity last: that has the factor 1.
    pub fn terms(&self) -> impl Iterator<Item = (Cell, Factor)> + Clone + '_ {
        self.data_terms().chain([(self.parity, Factor::ONE)])
    }

    /// The data cells with their factors: the parity is their sum.
    pub fn data_terms(&self) -> impl ExactSizeIterator<Item = (Cell, Factor)> + Clone + '_ {
        self.data.iter().copied().zip(self.factors.iter().copied())
    }

    /// The factor of a cell.
    ///
    /// # Panics
    /// When the cell is not of the group.
    #[must_use]
    pub fn factor(&self, cell: Cell) -> Factor {
        self.terms().find(|&(other, _)| other == cell).expect("the cell is of the group").1
    }

    /// Whether parity is the plain XOR of the data.
    #[must_use]
    pub fn is_xor(&self) -> bool {
        self.factors.iter().all(|&factor| factor == Factor::ONE)
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
    pub(crate) fn new(cells: usize, data: Vec<Cell>, groups: Vec<Group>) -> Self {
        let mut roles = alloc::vec![None; cells];
        let mut assign = |cell: Cell, role| {
            let before = roles[usize::from(cell.0)].replace(role);
            assert!(before.is_none(), "cell {cell} has one role");
        };
        for (unit, &cell) in data.iter().enumerate() {
            assign(cell, Role::Data(DataUnit(index_u16(unit))));
        }
        for (group, equation) in groups.iter().enumerate() {
            assign(equation.parity, Role::Parity(GroupId(index_u16(group))));
        }
        let roles: Vec<Role> = roles.into_iter().map(|role| role.expect("every cell of a stripe has a role")).collect();
        let mut groups_of = alloc::vec![Vec::new(); data.len()];
        for (group, equation) in groups.iter().enumerate() {
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

    /// The groups that cover a data unit: none on RAID 0, one on RAID 5, two on RAID 6 and RM2, one for each further
    /// copy on mirrors.
    #[must_use]
    pub fn groups_of(&self, unit: DataUnit) -> &[GroupId] {
        &self.groups_of[usize::from(unit.0)]
    }
}

fn index_u16(index: usize) -> u16 {
    u16::try_from(index).expect("a stripe has fewer than 65536 cells")
}
