//! What a run's array is made of, drawn from its seed.

use uraid_io::engine::CacheMode;
use uraid_io::format::log::RING_BYTES_MIN;
use uraid_io::format::superblock::{Areas, Consistency, Integrity, MEMBER_MIN, Superblock};
use uraid_layout::geometry::default_height;
use uraid_layout::{Bytes, Geometry, Level, Placement, Rotation, Sectors, Spec};
use uuid::Uuid;

use uraid_random::Random;

/// The memory unit of a cache.
const PAGE: u64 = 4096;

/// An array, and how it is used.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its geometry.
    pub geometry: Geometry,
    /// The superblocks of the new array.
    pub superblocks: Vec<Superblock>,
    /// The engine's cache, and its size; none.
    pub cache: Option<(CacheMode, Bytes)>,
    /// Whether the engine reads ahead.
    pub reads_ahead: bool,
}

impl Scenario {
    /// A small array of any level, kept consistent in one of the ways that are given.
    ///
    /// # Panics
    /// When no way is given.
    pub fn draw(random: &mut Random, ways: &[Consistency]) -> Self {
        Self::complete(draw_geometry(random), MEMBER_MIN, random, ways)
    }

    /// One with a write-intent bitmap of several regions, where one of the ways has any.
    ///
    /// # Panics
    /// When no way is given.
    pub(super) fn draw_wide(random: &mut Random, ways: &[Consistency]) -> Self {
        loop {
            let spec = *draw_geometry(random).spec();
            let chunk = *random.pick(&[16, 32, 64]) << 10;
            let of_one = Spec { chunk: Bytes(chunk), member_size: Sectors(chunk / 512), ..spec };
            let Ok(one) = Geometry::new(Spec { member_size: Sectors(of_one.member_size.0 * 16), ..of_one }) else {
                continue;
            };
            if one.tolerance() == 0 {
                continue;
            }
            // Regions are of as many stripes as make up 1 MiB, rounded up to a power of two; the last one may have
            // fewer.
            let of_region = (1_u64 << 20).div_ceil(one.stripe_sectors().bytes().0).next_power_of_two();
            let stripes = of_region * random.within(1, 2) + random.within(1, of_region);
            let of_stripe = one.used_sectors().0 / one.stripes().0;
            let spec = Spec { member_size: Sectors(of_stripe * stripes), ..of_one };
            if let Ok(geometry) = Geometry::new(spec) {
                return Self::complete(geometry, Bytes(2 * MEMBER_MIN.0), random, ways);
            }
        }
    }

    fn complete(geometry: Geometry, member: Bytes, random: &mut Random, ways: &[Consistency]) -> Self {
        let suits = |way: &&Consistency| match way {
            Consistency::None | Consistency::Log => true,
            Consistency::Bitmap => geometry.tolerance() > 0,
        };
        let ways: Vec<Consistency> = ways.iter().filter(suits).copied().collect();
        let consistency = if ways.is_empty() { Consistency::None } else { *random.pick(&ways) };
        let superblocks = superblocks(&geometry, member, consistency, random);
        let pages = *random.pick(&[32, 64, 64, 256, 1024]) * PAGE;
        let cache = match random.below(5) {
            0 => None,
            1 => Some((CacheMode::WriteThrough, Bytes(pages))),
            _ => Some((CacheMode::WriteBack, Bytes(pages))),
        };
        Self { geometry, superblocks, cache, reads_ahead: cache.is_some() && random.chance(1, 4) }
    }

    /// How the array is kept consistent.
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        self.superblocks[0].consistency
    }
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Spec { level, members, chunk, .. } = self.geometry.spec();
        let (stripes, consistency) = (self.geometry.stripes(), self.consistency());
        write!(
            f,
            "{level:?} of {members} members, chunk {chunk}, {} stripes, {consistency:?}, {:?}, cache {:?}",
            stripes.0, self.superblocks[0].integrity, self.cache
        )
    }
}

fn draw_geometry(random: &mut Random) -> Geometry {
    loop {
        if let Ok(geometry) = Geometry::new(draw_spec(random)) {
            return geometry;
        }
    }
}

pub(super) fn draw_spec(random: &mut Random) -> Spec {
    let (level, members, rows) = match random.below(10) {
        0 => (Level::Raid0, random.within(2, 4), 1),
        1 => (Level::Raid1, random.within(2, 4), 1),
        2 | 3 => {
            let members = random.within(2, 5);
            let copies = u8::try_from(random.within(2, members.min(3))).expect("small");
            (Level::Raid10 { copies }, members, 1)
        }
        4 | 5 => (Level::Raid5 { rotation: *random.pick(&Rotation::ALL) }, random.within(3, 6), 1),
        6 => (Level::Raid6 { rotation: *random.pick(&Rotation::ALL) }, random.within(4, 7), 1),
        _ => {
            let members = random.within(4, 8);
            let most = default_height(u8::try_from(members).expect("small"));
            let height = u8::try_from(random.within(2, u64::from(most.max(2)))).expect("small");
            let placement = *random.pick(&[Placement::Adjacent, Placement::Partitioned]);
            (Level::Rm2 { height, placement }, members, u64::from(height))
        }
    };
    let chunk = *random.pick(&[4096, 4096, 8192, 16384]);
    // A last chunk in part, now and then.
    let size = chunk * (rows * random.within(2, 6) + random.below(2)) + *random.pick(&[0, 0, 512]);
    let member_size = Sectors(size / 512);
    Spec { level, members: u8::try_from(members).expect("small"), chunk: Bytes(chunk), member_size }
}

fn superblocks(geometry: &Geometry, member: Bytes, consistency: Consistency, random: &mut Random) -> Vec<Superblock> {
    let spec = geometry.spec();
    let array = uuid(random);
    let uuids: Vec<Uuid> = (0..spec.members).map(|_| uuid(random)).collect();
    let is_checked = consistency == Consistency::Log && random.chance(1, 2);
    let integrity = if is_checked { Integrity::Crc32 } else { Integrity::None };
    let mut areas = Areas::new(member, Bytes(0), integrity).expect("a member has room for its areas");
    // As small as a log can be, so that it is filled many times over, or a few times that.
    let rows = geometry.rows() as u64;
    let least = (2 * (spec.chunk.0 * rows + 4 * PAGE)).max(RING_BYTES_MIN.0);
    areas.log.size = Bytes(areas.log.size.0.min(least * *random.pick(&[1, 1, 2, 4, 16])));
    let members: Vec<(Uuid, Areas)> = uuids.into_iter().map(|uuid| (uuid, areas)).collect();
    let complete = |new| Superblock { name: "simulated".into(), consistency, integrity, ..new };
    Superblock::of_new_array(array, *spec, &members).into_iter().map(complete).collect()
}

/// A UUID that nobody has drawn before.
pub(super) fn uuid(random: &mut Random) -> Uuid {
    Uuid::from_u64_pair(random.bits() | 1, random.bits())
}
