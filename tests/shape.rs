//! The kinds of array that are tested: how each is created, and which failures it must survive.
//!
//! Member sets are lists of slots, written out from each level's definition.

use crate::placement::{Level, Rotation, Rows};

/// Size of a member file, unless a test needs another.
pub const MEMBER_BYTES: usize = 16 << 20;

/// One kind of array.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Name for messages.
    pub name: &'static str,
    /// Level and what belongs to it.
    pub level: Level,
    /// How many members.
    pub members: usize,
    /// Chunk, as `uraid create --chunk` takes it; `None` leaves the default of 64 KiB.
    pub chunk_kib: Option<usize>,
    /// Sets of failed slots that the array must survive.
    pub tolerated: Vec<Vec<usize>>,
    /// A set of failed slots that loses data, so that serving must be refused; `None` where no member would be left.
    pub fatal: Option<Vec<usize>>,
}

impl Shape {
    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_kib.unwrap_or(64) << 10
    }

    /// The options of `uraid create` and `uraid map` that describe the array, without its members.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        let mut options = vec!["--level", self.level.name()];
        let (copies, height);
        match &self.level {
            Level::Raid0 | Level::Raid1 => {}
            Level::Raid10 { copies: count } => {
                copies = count.to_string();
                options.extend(["--copies", &copies]);
            }
            Level::Raid5(rotation) | Level::Raid6(rotation) => options.extend(["--layout", rotation.name()]),
            Level::Rm2 { seed, rows } => {
                height = (seed.len() + 1).to_string();
                options.extend(["--rm2-m", &height, "--layout", rows.name()]);
            }
        }
        let chunk = self.chunk_kib.map(|kib| [String::from("--chunk"), format!("{kib}K")]);
        options.into_iter().map(String::from).chain(chunk.into_iter().flatten()).collect()
    }
}

/// RAID 0.
#[must_use]
pub fn raid0_of_4() -> Shape {
    shape("RAID 0 of 4", Level::Raid0, 4, Some(64), vec![], Some(vec![2]))
}

/// Two mirrors, default chunk.
#[must_use]
pub fn raid1_of_2() -> Shape {
    shape("RAID 1 of 2", Level::Raid1, 2, None, singles(2), None)
}

/// Three mirrors: one is enough.
#[must_use]
pub fn raid1_of_3() -> Shape {
    shape("RAID 1 of 3", Level::Raid1, 3, Some(4), [singles(3), pairs(3)].concat(), None)
}

/// Two mirrored pairs: slots 0 and 1, 2 and 3.
#[must_use]
pub fn raid10_of_4() -> Shape {
    let tolerated = [singles(4), vec![vec![0, 2], vec![1, 2]]].concat();
    shape("RAID 10 of 4", Level::Raid10 { copies: 2 }, 4, Some(1024), tolerated, Some(vec![2, 3]))
}

/// Odd number of members: the two copies of a block lie on neighbours, also on slots 4 and 0.
#[must_use]
pub fn raid10_of_5() -> Shape {
    let tolerated = [singles(5), vec![vec![0, 2], vec![1, 4]]].concat();
    shape("RAID 10 of 5", Level::Raid10 { copies: 2 }, 5, Some(12), tolerated, Some(vec![0, 4]))
}

/// Three copies on any three neighbours, so any two members may fail.
#[must_use]
pub fn raid10_of_5_with_3_copies() -> Shape {
    let tolerated = [singles(5), pairs(5)].concat();
    shape("RAID 10 of 5, 3 copies", Level::Raid10 { copies: 3 }, 5, Some(64), tolerated, Some(vec![0, 1, 2]))
}

/// The smallest RAID 5, with the smallest chunk.
#[must_use]
pub fn raid5_of_3() -> Shape {
    shape("RAID 5 of 3", Level::Raid5(Rotation::LeftSymmetric), 3, Some(4), singles(3), Some(vec![0, 2]))
}

/// RAID 5 in its default rotation.
#[must_use]
pub fn raid5_of_5_left_symmetric() -> Shape {
    raid5_of_5("RAID 5 left-symmetric", Rotation::LeftSymmetric, 64)
}

/// RAID 5 with a chunk that is no power of two.
#[must_use]
pub fn raid5_of_5_left_asymmetric() -> Shape {
    raid5_of_5("RAID 5 left-asymmetric", Rotation::LeftAsymmetric, 12)
}

/// RAID 5 with the largest chunk.
#[must_use]
pub fn raid5_of_5_right_symmetric() -> Shape {
    raid5_of_5("RAID 5 right-symmetric", Rotation::RightSymmetric, 1024)
}

/// RAID 5 right-asymmetric.
#[must_use]
pub fn raid5_of_5_right_asymmetric() -> Shape {
    raid5_of_5("RAID 5 right-asymmetric", Rotation::RightAsymmetric, 64)
}

/// The smallest RAID 6.
#[must_use]
pub fn raid6_of_4() -> Shape {
    raid6("RAID 6 of 4", Rotation::LeftSymmetric, 4, 4, vec![0, 1, 3])
}

/// RAID 6 whose data does not begin after its parities.
#[must_use]
pub fn raid6_of_6_right_asymmetric() -> Shape {
    raid6("RAID 6 right-asymmetric", Rotation::RightAsymmetric, 6, 64, vec![0, 2, 5])
}

/// The published RM2 example, N = 7 and M = 3.
#[must_use]
pub fn rm2_of_7_adjacent() -> Shape {
    rm2("RM2 of 7 adjacent", 7, vec![(2, 3), (1, 4)], Rows::Adjacent, 64)
}

/// The original placement: all parity first.
#[must_use]
pub fn rm2_of_7_partitioned() -> Shape {
    rm2("RM2 of 7 partitioned", 7, vec![(2, 3), (1, 4)], Rows::Partitioned, 12)
}

/// N = 6 and M = 3, beyond what the nested seed decodes.
#[must_use]
pub fn rm2_of_6() -> Shape {
    rm2("RM2 of 6", 6, vec![(1, 2), (3, 5)], Rows::Adjacent, 4)
}

/// Every shape, for tests that look at all of them.
#[must_use]
pub fn all() -> Vec<Shape> {
    vec![
        raid0_of_4(),
        raid1_of_2(),
        raid1_of_3(),
        raid10_of_4(),
        raid10_of_5(),
        raid10_of_5_with_3_copies(),
        raid5_of_3(),
        raid5_of_5_left_symmetric(),
        raid5_of_5_left_asymmetric(),
        raid5_of_5_right_symmetric(),
        raid5_of_5_right_asymmetric(),
        raid6_of_4(),
        raid6_of_6_right_asymmetric(),
        rm2_of_7_adjacent(),
        rm2_of_7_partitioned(),
        rm2_of_6(),
    ]
}

fn raid5_of_5(name: &'static str, rotation: Rotation, chunk_kib: usize) -> Shape {
    shape(name, Level::Raid5(rotation), 5, Some(chunk_kib), singles(5), Some(vec![1, 3]))
}

fn raid6(name: &'static str, rotation: Rotation, members: usize, chunk_kib: usize, fatal: Vec<usize>) -> Shape {
    let tolerated = [singles(members), pairs(members)].concat();
    shape(name, Level::Raid6(rotation), members, Some(chunk_kib), tolerated, Some(fatal))
}

fn rm2(name: &'static str, members: usize, seed: Vec<(usize, usize)>, rows: Rows, chunk_kib: usize) -> Shape {
    let tolerated = [singles(members), pairs(members)].concat();
    shape(name, Level::Rm2 { seed, rows }, members, Some(chunk_kib), tolerated, Some(vec![0, 1, 3]))
}

fn shape(
    name: &'static str,
    level: Level,
    members: usize,
    chunk_kib: Option<usize>,
    tolerated: Vec<Vec<usize>>,
    fatal: Option<Vec<usize>>,
) -> Shape {
    Shape { name, level, members, chunk_kib, tolerated, fatal }
}

fn singles(members: usize) -> Vec<Vec<usize>> {
    (0..members).map(|slot| vec![slot]).collect()
}

fn pairs(members: usize) -> Vec<Vec<usize>> {
    (0..members).flat_map(|first| (first + 1..members).map(move |second| vec![first, second])).collect()
}
