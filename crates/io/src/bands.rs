//! How an array is divided between several engines: by bands of adjacent parity stripes.
//!
//! What guards a parity stripe (its lock, its pages in the cache) is then in one engine and nowhere else. A band is
//! long enough that few requests cross one, and short enough that a busy region of the array is everybody's.
//!
//! It is arithmetic alone; who runs where and how requests get there is not known here.

use std::fmt;
use std::ops::Range;

use uraid_layout::{Bytes, Geometry, Lba, Sectors};

/// The least data of a band.
const BAND_MIN: Bytes = Bytes(1 << 20);

/// One of the engines that an array is divided between, from 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u8);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bands {
    /// Sectors of a band: whole parity stripes.
    band: u64,
    shards: u8,
}

impl Shard {
    /// The shard's place in a list of all of them.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Bands {
    /// The bands of an array that `shards` engines share.
    ///
    /// # Panics
    /// When there are no shards.
    #[must_use]
    pub fn new(geometry: &Geometry, shards: u8) -> Self {
        assert!(shards > 0, "an array belongs to somebody");
        let stripe = geometry.stripe_sectors().0;
        Self { band: BAND_MIN.whole_sectors().0.next_multiple_of(stripe), shards }
    }

    /// Who shares the array.
    pub fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..self.shards).map(Shard)
    }

    /// Whose a sector is.
    #[must_use]
    pub fn owner(&self, lba: Lba) -> Shard {
        let shard = lba.0 / self.band % u64::from(self.shards);
        Shard(u8::try_from(shard).expect("below the number of shards"))
    }

    /// How many of the array's first `end` sectors are a shard's.
    #[must_use]
    pub fn share(&self, shard: Shard, end: Sectors) -> Sectors {
        let round = self.band * u64::from(self.shards);
        let before = self.band * u64::from(shard.0);
        Sectors(end.0 / round * self.band + (end.0 % round).saturating_sub(before).min(self.band))
    }

    /// The part of a range, from its start on, that has one owner, and the owner. The range is not empty.
    #[must_use]
    pub fn first(&self, range: &Range<Lba>) -> (Shard, Range<Lba>) {
        let end = if self.shards == 1 { u64::MAX } else { (range.start.0 / self.band + 1).saturating_mul(self.band) };
        (self.owner(range.start), range.start..range.end.min(Lba(end)))
    }

    /// The parts of a range in order, each with its owner.
    pub fn parts(&self, range: Range<Lba>) -> impl Iterator<Item = (Shard, Range<Lba>)> + use<> {
        let (bands, mut rest) = (*self, range);
        std::iter::from_fn(move || {
            let part = (rest.start < rest.end).then(|| bands.first(&rest))?;
            rest.start = part.1.end;
            Some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uraid_layout::{Level, Rotation, Spec};

    /// Each sector of each range is in the part that its parity stripe's number says, and parts are as long as can be.
    #[test]
    fn every_range_is_split_where_the_owner_changes() {
        // Sectors of a parity stripe, found by hand: data members times the chunk. The stripes of a band have at least
        // 2048 sectors together.
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        for (level, members, chunk_kib, stripe, stripes_of_band) in [
            (raid5, 4, 1024, 3 * 2048, 1),
            (raid5, 3, 512, 2 * 1024, 1),
            (raid5, 4, 128, 3 * 256, 3),
            (Level::Raid0, 5, 64, 5 * 128, 4),
            (Level::Raid1, 2, 256, 512, 4),
        ] {
            let member_size = Sectors(chunk_kib * 2 * 24);
            let spec = Spec { level, members, chunk: Bytes(chunk_kib << 10), member_size };
            let geometry = Geometry::new(spec).expect("a test's geometry");
            let capacity = geometry.capacity().0;
            for shards in 1..=4_u8 {
                let bands = Bands::new(&geometry, shards);
                let owner = |sector: u64| sector / stripe / stripes_of_band % u64::from(shards);
                let edges = (0..=capacity).step_by(128).chain((0..=capacity).step_by(2048).map(|lba| lba.max(1) - 1));
                let edges: Vec<u64> = edges.filter(|edge| edge % 512 < 256).collect();
                for (index, &start) in edges.iter().enumerate().step_by(7) {
                    for &end in edges[index..].iter().step_by(11).filter(|&&end| end > start) {
                        let mut at = start;
                        for (shard, part) in bands.parts(Lba(start)..Lba(end)) {
                            let context = format!("{level:?} of {shards}: {start}..{end}: {part:?} of {shard}");
                            assert_eq!(part.start.0, at, "{context}: parts follow each other");
                            assert!(part.end.0 > at && part.end.0 <= end, "{context}");
                            let sectors = [part.start.0, part.end.0 - 1];
                            assert!(sectors.iter().all(|&sector| owner(sector) == u64::from(shard.0)), "{context}");
                            assert!(part.end.0 - at <= stripe * stripes_of_band || shards == 1, "{context}: one band");
                            let changes = part.end.0 == end || owner(part.end.0) != u64::from(shard.0);
                            assert!(changes, "{context}: it could be longer");
                            at = part.end.0;
                        }
                        assert_eq!(at, end, "{level:?} of {shards}: {start}..{end} is covered");
                    }
                }
                for end in [0, 1, capacity / 3, capacity - 1, capacity] {
                    for shard in bands.shards() {
                        let count = (0..end).filter(|&sector| owner(sector) == u64::from(shard.0)).count() as u64;
                        assert_eq!(bands.share(shard, Sectors(end)), Sectors(count), "{shard} of {shards} below {end}");
                    }
                }
                assert!((0..capacity).step_by(64).all(|lba| u64::from(bands.owner(Lba(lba)).0) == owner(lba)));
            }
        }
    }

    #[test]
    fn an_empty_range_has_no_parts_and_one_shard_has_everything() {
        let spec = Spec { level: Level::Raid0, members: 2, chunk: Bytes(4096), member_size: Sectors(1 << 20) };
        let geometry = Geometry::new(spec).expect("a test's geometry");
        assert_eq!(Bands::new(&geometry, 3).parts(Lba(7)..Lba(7)).count(), 0);
        let parts: Vec<_> = Bands::new(&geometry, 1).parts(Lba(0)..Lba(1 << 21)).collect();
        assert_eq!(parts, [(Shard(0), Lba(0)..Lba(1 << 21))]);
    }
}
