//! Where blocks live according to the papers' formulas and md's tables, written out one level at a time and with no
//! regard for speed. Shares nothing with the crate but its vocabulary.

use uraid_layout::{Bytes, Level, Placement, Rotation, Sectors, Spec};

/// A chunk of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chunk {
    pub(crate) member: u64,
    pub(crate) index: u64,
}

/// Where a data unit lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) stripe: u64,
    pub(crate) at: Chunk,
    /// The group's number in its stripe and the place of its parity unit.
    pub(crate) parity: Vec<(u64, Chunk)>,
}

/// A specification with everything in chunks.
pub(crate) struct Oracle {
    pub(crate) spec: Spec,
    n: u64,
    member_chunks: u64,
}

impl Oracle {
    pub(crate) fn new(spec: Spec) -> Self {
        let chunk_sectors = spec.chunk.0 / 512;
        Self { spec, n: u64::from(spec.members), member_chunks: spec.member_size.0 / chunk_sectors }
    }

    /// How many data units the array has.
    pub(crate) fn units(&self) -> u64 {
        let (n, rows) = (self.n, self.member_chunks);
        match self.spec.level {
            Level::Raid0 => rows * n,
            Level::Raid1 => rows,
            Level::Raid10 { copies } => rows * n / u64::from(copies),
            Level::Raid5 { .. } => rows * (n - 1),
            Level::Raid6 { .. } => rows * (n - 2),
            Level::Rm2 { height, .. } => rows / u64::from(height) * n * (u64::from(height) - 1),
        }
    }

    /// Where data unit `u` lives.
    pub(crate) fn unit(&self, u: u64) -> Unit {
        let n = self.n;
        match self.spec.level {
            Level::Raid0 => Unit { stripe: u / n, at: Chunk { member: u % n, index: u / n }, parity: vec![] },
            Level::Raid1 => {
                let copies = (1..n).map(|k| (k - 1, Chunk { member: k, index: u })).collect();
                Unit { stripe: u, at: Chunk { member: 0, index: u }, parity: copies }
            }
            Level::Raid10 { copies } => self.near(u, u64::from(copies)),
            Level::Raid5 { rotation } => raid5(n, rotation, u),
            Level::Raid6 { rotation } => raid6(n, rotation, u),
            Level::Rm2 { height, placement } => self.rm2(u, u64::from(height), placement),
        }
    }

    /// md: chunk c starts at x = c*near, dev = x%N, row = x/N; each near copy is dev+1; wrapping to 0 adds a row.
    fn near(&self, c: u64, near: u64) -> Unit {
        let n = self.n;
        let pattern = (1..).find(|rows| (rows * n).is_multiple_of(near)).expect("near rows are enough") * n / near;
        let first = c % pattern * (near - 1);
        let x = c * near;
        let at = Chunk { member: x % n, index: x / n };
        let mut last = at;
        let mut parity = Vec::new();
        for copy in 1..near {
            last.member += 1;
            if last.member == n {
                last = Chunk { member: 0, index: last.index + 1 };
            }
            parity.push((first + copy - 1, last));
        }
        Unit { stripe: c / pattern, at, parity }
    }

    /// Park & Choe's modified (Figure 6) and original (Figure 5) placements, with parity in row 0.
    fn rm2(&self, block: u64, m: u64, placement: Placement) -> Unit {
        let n = self.n;
        let stripe_count = self.member_chunks / m;
        let ps = block / (n * (m - 1));
        let u = block % (n * (m - 1));
        let (disk, k) = (u % n, u / n + 1);
        let index = |row| match placement {
            Placement::Adjacent => ps * m + row,
            Placement::Partitioned => row * stripe_count + ps,
        };
        let (a, b) = seed(n, m)[usize::try_from(k - 1).expect("a seed is short")];
        let mut groups = [(disk + a) % n, (disk + b) % n];
        groups.sort_unstable();
        let parity = groups.map(|group| (group, Chunk { member: group, index: index(0) })).to_vec();
        Unit { stripe: ps, at: Chunk { member: disk, index: index(k) }, parity }
    }
}

fn raid5(n: u64, rotation: Rotation, u: u64) -> Unit {
    let (s, d) = (u / (n - 1), u % (n - 1));
    let p = match rotation {
        Rotation::LeftAsymmetric | Rotation::LeftSymmetric => n - 1 - s % n,
        Rotation::RightAsymmetric | Rotation::RightSymmetric => s % n,
    };
    let member = match rotation {
        Rotation::LeftAsymmetric | Rotation::RightAsymmetric => {
            if d >= p {
                d + 1
            } else {
                d
            }
        }
        Rotation::LeftSymmetric | Rotation::RightSymmetric => (p + 1 + d) % n,
    };
    Unit { stripe: s, at: Chunk { member, index: s }, parity: vec![(0, Chunk { member: p, index: s })] }
}

/// The cases of md's `raid5_compute_sector`, one by one.
fn raid6(n: u64, rotation: Rotation, u: u64) -> Unit {
    let (s, mut d) = (u / (n - 2), u % (n - 2));
    let p = match rotation {
        Rotation::LeftAsymmetric | Rotation::LeftSymmetric => n - 1 - s % n,
        Rotation::RightAsymmetric | Rotation::RightSymmetric => s % n,
    };
    let mut q = p + 1;
    match rotation {
        Rotation::LeftAsymmetric | Rotation::RightAsymmetric => {
            if p == n - 1 {
                d += 1;
                q = 0;
            } else if d >= p {
                d += 2;
            }
        }
        Rotation::LeftSymmetric | Rotation::RightSymmetric => {
            q = (p + 1) % n;
            d = (p + 2 + d) % n;
        }
    }
    let parity = [(0, p), (1, q)].map(|(group, member)| (group, Chunk { member, index: s })).to_vec();
    Unit { stripe: s, at: Chunk { member: d, index: s }, parity }
}

/// What a member's bytes are multiplied by in the parity of a group: in Q of RAID 6 by 2 to the number of members
/// between Q's and it, going up and around; elsewhere by 1.
pub(crate) fn factor(level: Level, n: u64, group: u64, parity: u64, member: u64) -> u8 {
    let is_q = matches!(level, Level::Raid6 { .. }) && group == 1 && parity != member;
    let doublings = if is_q { (member + n - parity - 1) % n } else { 0 };
    (0..doublings).fold(1, |power, _| product(power, 2))
}

/// A product in the field of RAID 6, as on paper: shift, and subtract the polynomial.
pub(crate) fn product(a: u8, b: u8) -> u8 {
    if a == 0 || b == 1 {
        return a;
    }
    let shifted = (0..8).filter(|bit| b >> bit & 1 == 1).map(|bit| u16::from(a) << bit);
    let sum = shifted.fold(0, |sum, part| sum ^ part);
    (8..16).rev().fold(sum, |sum, bit| if sum >> bit & 1 == 1 { sum ^ 0x11d << (bit - 8) } else { sum }) as u8
}

/// The heights for which the papers promise that the nested seed decodes.
pub(crate) fn is_published(n: u64, m: u64) -> bool {
    m >= 2 && if n % 2 == 1 { n + 2 >= 3 * m } else { n + 5 >= 4 * m }
}

/// The seeds that the oracle knows: the nested one within the published bound, and a few others as found by search.
pub(crate) fn seed(n: u64, m: u64) -> Vec<(u64, u64)> {
    if is_published(n, m) {
        return (1..m).map(|k| (m - k, m - 1 + k)).collect();
    }
    match (n, m) {
        (6, 3) => vec![(1, 2), (3, 5)],
        (9, 4) => vec![(1, 2), (3, 7), (5, 8)],
        (10, 4) => vec![(1, 2), (3, 5), (4, 8)],
        (10, 5) => vec![(1, 2), (3, 5), (4, 8), (6, 9)],
        (11, 5) => vec![(4, 5), (3, 6), (2, 7), (1, 8)],
        _ => panic!("the oracle has no seed for N = {n}, M = {m}"),
    }
}

/// Every kind of geometry with few members.
pub(crate) fn small_levels() -> Vec<(Level, u8)> {
    let mut levels = Vec::new();
    for members in 2..=6 {
        levels.push((Level::Raid0, members));
        levels.push((Level::Raid1, members));
        levels.extend((2..=members).map(|copies| (Level::Raid10 { copies }, members)));
    }
    for members in 3..=7 {
        levels.extend(Rotation::ALL.map(|rotation| (Level::Raid5 { rotation }, members)));
    }
    for members in 4..=7 {
        levels.extend(Rotation::ALL.map(|rotation| (Level::Raid6 { rotation }, members)));
    }
    for (members, heights) in [(4, 2..=2), (5, 2..=2), (6, 2..=3), (7, 2..=3), (8, 2..=3), (9, 4..=4)] {
        for height in heights {
            for placement in [Placement::Adjacent, Placement::Partitioned] {
                levels.push((Level::Rm2 { height, placement }, members));
            }
        }
    }
    levels
}

/// A specification with members of `chunks` chunks and a few sectors that make no chunk.
pub(crate) fn spec(level: Level, members: u8, chunk_kib: u64, chunks: u64) -> Spec {
    let chunk = Bytes(chunk_kib << 10);
    Spec { level, members, chunk, member_size: Sectors(chunks * chunk_kib * 2 + 7) }
}

/// The rank of a matrix over the field of RAID 6.
pub(crate) fn field_rank(mut rows: Vec<Vec<u8>>) -> usize {
    let mut rank = 0;
    while let Some(row) = rows.pop() {
        let Some(column) = row.iter().position(|&factor| factor != 0) else { continue };
        rank += 1;
        // Cross-multiplied: there is no division on paper.
        for other in &mut rows {
            let (ours, theirs) = (row[column], other[column]);
            let cells = other.iter_mut().zip(&row);
            cells.for_each(|(other, &factor)| *other = product(*other, ours) ^ product(factor, theirs));
        }
    }
    rank
}

/// The rank over GF(2) of a matrix, each row a set of columns.
pub(crate) fn rank(mut rows: Vec<u64>) -> u32 {
    let mut rank = 0;
    while let Some(row) = rows.pop() {
        if row == 0 {
            continue;
        }
        rank += 1;
        let pivot = row & row.wrapping_neg();
        for other in &mut rows {
            if *other & pivot != 0 {
                *other ^= row;
            }
        }
    }
    rank
}
