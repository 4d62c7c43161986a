use uraid_layout::{Level, Rotation, Sectors};

use super::*;
use crate::format::bitmap::{RegionId, Regions};

/// A RAID 5 of three with 64 KiB chunks: regions of 1 MiB of content are eight stripes of 128 KiB.
fn geometry() -> Geometry {
    let level = Level::Raid5 { rotation: Rotation::default() };
    let (chunk, member_size) = (Bytes(64 << 10), Sectors(128 * 36));
    Geometry::new(Spec { level, chunk, members: 3, member_size }).unwrap()
}

fn stale(is_known: bool) -> Stale {
    Stale { slot: MemberIndex(1), path: "member".into(), epoch: Epoch(3), newest: Epoch(5), is_known }
}

#[test]
fn what_is_in_doubt_is_what_is_marked() {
    const MIB: u64 = 1 << 20;
    let geometry = geometry();
    let mut bitmap = Bitmap::empty(Regions::new(&geometry));
    let ranges = |stale: &[Stale], bitmap: Option<&Bitmap>| -> Vec<(u64, u64)> {
        doubtful(&geometry, stale, bitmap).into_iter().map(|range| (range.start.0, range.end.0)).collect()
    };
    assert_eq!(ranges(&[stale(true)], Some(&bitmap)), []);
    for region in [0, 2, 3, 4] {
        bitmap.insert(RegionId(region));
    }
    // Thirty-six stripes of 128 KiB are four and a half regions.
    let marked = [(0, MIB), (2 * MIB, 4 * MIB + MIB / 2)];
    assert_eq!(ranges(&[stale(true)], Some(&bitmap)), marked);
    let all = [(0, 4 * MIB + MIB / 2)];
    assert_eq!(ranges(&[stale(true), stale(false)], Some(&bitmap)), all);
    assert_eq!(ranges(&[stale(true)], None), all);
    assert_eq!(ranges(&[], Some(&bitmap)), [], "nothing is out of date");
    assert_eq!(ranges(&[], None), [], "nor where there is no bitmap");
}
