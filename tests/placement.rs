//! Where the blocks of each level lie, from the published formulas: the oracle for what is found in member files.
//!
//! A *unit* is a chunk of the array, in logical order. A *place* is a chunk of a member: its slot and its row, counted
//! in chunks from the start of the data area. A *group* is a set of places whose XOR is zero, each times its factor in
//! GF(2^8), which is 1 but in the group of RAID 6's Q; two copies are a group of two. Sources: for RAID 10 the near
//! layout of Linux md, for RAID 5 and 6 its four rotations, for Q Anvin's "The mathematics of RAID-6", for RM2 the
//! redundancy matrix of Park and Choe with unit k of disk j in groups (j+a_k) and (j+b_k) mod N.

/// A level and what its placement depends on, besides the number of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// Striping.
    Raid0,
    /// Every member the same.
    Raid1,
    /// Near layout.
    Raid10 {
        /// Copies of every block.
        copies: usize,
    },
    /// One rotating parity.
    Raid5(Rotation),
    /// Two: P, and Q on the member after it.
    Raid6(Rotation),
    /// Two parity groups for every unit.
    Rm2 {
        /// (a_k, b_k) for k = 1..M-1.
        seed: Vec<(usize, usize)>,
        /// Where the rows of a parity stripe lie.
        rows: Rows,
    },
}

/// Rotations of RAID 5 and 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Parity moves left, data starts after it.
    LeftSymmetric,
    /// Parity moves left, data starts at slot 0.
    LeftAsymmetric,
    /// Parity moves right, data starts after it.
    RightSymmetric,
    /// Parity moves right, data starts at slot 0.
    RightAsymmetric,
}

/// Placements of RM2's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The rows of a parity stripe lie together.
    Adjacent,
    /// A member is M partitions, one for each row.
    Partitioned,
}

/// A chunk of a member: slot and row.
pub type MemberRow = (usize, usize);

/// The places of a group with their factors.
pub type Group = Vec<(MemberRow, u8)>;

/// A level over members with a known number of chunks.
#[derive(Clone, Debug)]
pub struct Placement {
    level: Level,
    members: usize,
    rows: usize,
}

impl Level {
    /// Name for `uraid create --level`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Raid0 => "0",
            Self::Raid1 => "1",
            Self::Raid10 { .. } => "10",
            Self::Raid5(_) => "5",
            Self::Raid6(_) => "6",
            Self::Rm2 { .. } => "rm2",
        }
    }
}

impl Rotation {
    /// Name for `uraid create --layout`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LeftSymmetric => "left-symmetric",
            Self::LeftAsymmetric => "left-asymmetric",
            Self::RightSymmetric => "right-symmetric",
            Self::RightAsymmetric => "right-asymmetric",
        }
    }
}

impl Rows {
    /// Name for `uraid create --layout`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Adjacent => "adjacent",
            Self::Partitioned => "partitioned",
        }
    }
}

impl Placement {
    /// The placement of `level` over `members` members whose data areas hold `rows` whole chunks each.
    #[must_use]
    pub fn new(level: &Level, members: usize, rows: usize) -> Self {
        Self { level: level.clone(), members, rows }
    }

    /// How many units the array holds: every whole stripe of the members; RM2 every whole parity stripe.
    #[must_use]
    pub fn units(&self) -> usize {
        let n = self.members;
        match &self.level {
            Level::Raid0 => self.rows * n,
            Level::Raid1 => self.rows,
            Level::Raid10 { copies } => self.rows * n / copies,
            Level::Raid5(_) => self.rows * (n - 1),
            Level::Raid6(_) => self.rows * (n - 2),
            Level::Rm2 { seed, .. } => self.parity_stripes() * n * seed.len(),
        }
    }

    /// The places that hold `unit`'s data: one, or one for each copy.
    #[must_use]
    pub fn copies(&self, unit: usize) -> Vec<MemberRow> {
        let n = self.members;
        match &self.level {
            Level::Raid0 => vec![(unit % n, unit / n)],
            Level::Raid1 => (0..n).map(|slot| (slot, unit)).collect(),
            Level::Raid10 { copies } => {
                (unit * copies..(unit + 1) * copies).map(|slice| (slice % n, slice / n)).collect()
            }
            Level::Raid5(rotation) => vec![raid5(*rotation, n, unit)],
            Level::Raid6(rotation) => vec![raid6(*rotation, n, unit)],
            Level::Rm2 { seed, .. } => {
                let (stripe, within) = (unit / (n * seed.len()), unit % (n * seed.len()));
                vec![(within % n, self.rm2_row(stripe, within / n + 1))]
            }
        }
    }

    /// The parity places that cover `unit`, beside its copies: none, one, or two.
    #[must_use]
    pub fn parities(&self, unit: usize) -> Vec<MemberRow> {
        let n = self.members;
        match &self.level {
            Level::Raid0 | Level::Raid1 | Level::Raid10 { .. } => vec![],
            Level::Raid5(rotation) => {
                let stripe = unit / (n - 1);
                vec![(raid5_parity(*rotation, n, stripe), stripe)]
            }
            Level::Raid6(rotation) => {
                let stripe = unit / (n - 2);
                let p = raid5_parity(*rotation, n, stripe);
                vec![(p, stripe), ((p + 1) % n, stripe)]
            }
            Level::Rm2 { seed, .. } => {
                let (stripe, within) = (unit / (n * seed.len()), unit % (n * seed.len()));
                let (a, b) = seed[within / n];
                [a, b].map(|offset| ((within % n + offset) % n, self.rm2_row(stripe, 0))).to_vec()
            }
        }
    }

    /// Every group of the array.
    #[must_use]
    pub fn groups(&self) -> Vec<Group> {
        let n = self.members;
        match &self.level {
            Level::Raid0 => vec![],
            Level::Raid1 | Level::Raid10 { .. } => (0..self.units())
                .flat_map(|unit| {
                    let places = self.copies(unit);
                    places[1..].iter().map(|&copy| vec![(places[0], 1), (copy, 1)]).collect::<Vec<_>>()
                })
                .collect(),
            Level::Raid5(_) => (0..self.rows).map(|row| (0..n).map(|slot| ((slot, row), 1)).collect()).collect(),
            Level::Raid6(rotation) => {
                (0..self.rows).flat_map(|row| raid6_groups(raid5_parity(*rotation, n, row), n, row)).collect()
            }
            Level::Rm2 { seed, .. } => (0..self.parity_stripes())
                .flat_map(|stripe| (0..n).map(move |group| (stripe, group)))
                .map(|(stripe, group)| self.rm2_group(seed, stripe, group))
                .collect(),
        }
    }

    fn rm2_group(&self, seed: &[(usize, usize)], stripe: usize, group: usize) -> Group {
        let n = self.members;
        let mut places = vec![((group, self.rm2_row(stripe, 0)), 1)];
        for disk in 0..n {
            for (index, &(a, b)) in seed.iter().enumerate() {
                if (disk + a) % n == group || (disk + b) % n == group {
                    places.push(((disk, self.rm2_row(stripe, index + 1)), 1));
                }
            }
        }
        places
    }

    fn parity_stripes(&self) -> usize {
        let Level::Rm2 { seed, .. } = &self.level else { return self.rows };
        self.rows / (seed.len() + 1)
    }

    /// Row of a member that holds row `row` of parity stripe `stripe`; row 0 is parity.
    fn rm2_row(&self, stripe: usize, row: usize) -> usize {
        match &self.level {
            Level::Rm2 { rows: Rows::Partitioned, .. } => row * self.parity_stripes() + stripe,
            Level::Rm2 { seed, .. } => stripe * (seed.len() + 1) + row,
            other => panic!("level {} has no parity stripes of several rows", other.name()),
        }
    }
}

fn raid5(rotation: Rotation, n: usize, unit: usize) -> MemberRow {
    let (stripe, index) = (unit / (n - 1), unit % (n - 1));
    let parity = raid5_parity(rotation, n, stripe);
    let slot = match rotation {
        Rotation::LeftSymmetric | Rotation::RightSymmetric => (parity + 1 + index) % n,
        Rotation::LeftAsymmetric | Rotation::RightAsymmetric => index + usize::from(index >= parity),
    };
    (slot, stripe)
}

/// As in the comments of md's `raid5_compute_sector`.
fn raid6(rotation: Rotation, n: usize, unit: usize) -> MemberRow {
    let (stripe, index) = (unit / (n - 2), unit % (n - 2));
    let p = raid5_parity(rotation, n, stripe);
    let slot = match rotation {
        Rotation::LeftSymmetric | Rotation::RightSymmetric => (p + 2 + index) % n,
        // Slot 0 has Q.
        _ if p == n - 1 => index + 1,
        _ if index >= p => index + 2,
        _ => index,
    };
    (slot, stripe)
}

/// P's group and Q's, in which the first slot behind Q counts once, the next one twice, and so on around.
fn raid6_groups(p: usize, n: usize, row: usize) -> [Group; 2] {
    let q = (p + 1) % n;
    let behind = |place: usize| ((q + 1 + place) % n, row);
    let data = || (0..n - 2).map(behind);
    let powers = std::iter::successors(Some(1), |&power| Some(product(2, power)));
    [data().chain([(p, row)]).map(|place| (place, 1)).collect(), data().zip(powers).chain([((q, row), 1)]).collect()]
}

/// The product of two numbers of the field of RAID 6: shift, and subtract x^8 + x^4 + x^3 + x^2 + 1.
#[must_use]
pub fn product(a: u8, b: u8) -> u8 {
    let (mut product, mut shifted) = (0, a);
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= shifted;
        }
        shifted = shifted << 1 ^ if shifted & 0x80 == 0 { 0 } else { 0x1d };
    }
    product
}

fn raid5_parity(rotation: Rotation, n: usize, stripe: usize) -> usize {
    match rotation {
        Rotation::LeftSymmetric | Rotation::LeftAsymmetric => n - 1 - stripe % n,
        Rotation::RightSymmetric | Rotation::RightAsymmetric => stripe % n,
    }
}
