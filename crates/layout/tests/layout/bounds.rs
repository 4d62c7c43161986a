//! What arrays can be had, and what is said about those that can't.

use uraid_layout::geometry::default_height;
use uraid_layout::{
    Bytes, DiskSector, Geometry, GeometryError, Lba, Level, Location, MemberIndex, Placement, Rotation, Sectors, Spec,
};

use crate::oracle::spec;

const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
const RAID6: Level = Level::Raid6 { rotation: Rotation::LeftSymmetric };

fn rm2(height: u8) -> Level {
    Level::Rm2 { height, placement: Placement::Adjacent }
}

fn error(spec: Spec) -> GeometryError {
    Geometry::new(spec).expect_err("this is no array")
}

#[test]
fn members_are_bounded() {
    let levels = [
        (Level::Raid0, 2, 64),
        (Level::Raid1, 2, 64),
        (Level::Raid10 { copies: 2 }, 2, 64),
        (RAID5, 3, 64),
        (RAID6, 4, 64),
        (rm2(2), 4, 32),
    ];
    for (level, min, max) in levels {
        for members in 0..=255 {
            let result = Geometry::new(spec(level, members, 64, 1000));
            if (min..=max).contains(&members) {
                assert_eq!(result.unwrap().members(), usize::from(members));
            } else {
                assert_eq!(result, Err(GeometryError::Members { level, members, min, max }));
            }
        }
    }
    assert_eq!(error(spec(RAID5, 2, 64, 1000)).to_string(), "RAID 5 takes 3 to 64 members, not 2");
}

#[test]
fn copies_are_bounded_by_the_members() {
    for copies in [0, 1, 5, 255] {
        let level = Level::Raid10 { copies };
        assert_eq!(error(spec(level, 4, 64, 100)), GeometryError::Copies { members: 4, copies });
    }
    assert_eq!(Geometry::new(spec(Level::Raid10 { copies: 4 }, 4, 64, 100)).unwrap().tolerance(), 3);
}

#[test]
fn heights_are_bounded_by_what_decodes() {
    for (members, tallest) in [(4, 2), (5, 2), (6, 3), (7, 3), (8, 3), (9, 4), (10, 5), (17, 8), (31, 15), (32, 16)] {
        assert_eq!(default_height(members), tallest);
        assert!(Geometry::new(spec(rm2(tallest), members, 64, 100)).is_ok());
        for height in [0, 1, tallest + 1, 255] {
            let refusal = GeometryError::Height { members, height, max: tallest };
            assert_eq!(error(spec(rm2(height), members, 64, 100)), refusal);
        }
    }
    assert_eq!([0, 3, 33, 255].map(default_height), [0; 4]);
}

#[test]
fn chunks_are_multiples_of_4_kib_up_to_1_mib() {
    for (bytes, is_good) in [
        (0, false),
        (512, false),
        (4095, false),
        (4096, true),
        (6144, false),
        (12288, true),
        (1 << 20, true),
        ((1 << 20) + 4096, false),
        (u64::MAX, false),
    ] {
        let spec = Spec { chunk: Bytes(bytes), ..spec(RAID5, 5, 64, 1000) };
        let refusal = GeometryError::Chunk { chunk: Bytes(bytes) };
        assert_eq!(Geometry::new(spec).err(), (!is_good).then_some(refusal), "{bytes}");
    }
}

#[test]
fn arrays_on_paper_have_any_chunk_of_whole_sectors() {
    for (bytes, is_good) in [(0, false), (512, true), (1000, false), (6144, true), (3 << 20, true), (u64::MAX, false)] {
        let spec = Spec { chunk: Bytes(bytes), ..spec(RAID5, 5, 64, 1000) };
        let refusal = GeometryError::ModelledChunk { chunk: Bytes(bytes) };
        let found = Geometry::modelled(Spec { member_size: Sectors(1 << 20), ..spec });
        assert_eq!(found.err(), (!is_good).then_some(refusal), "{bytes}");
    }
    // 6 KiB on 5 members: sector 25 is the second of unit 2, which is on member 2 of row 0.
    let geometry = Geometry::modelled(Spec { chunk: Bytes(6144), ..spec(RAID5, 5, 64, 100) }).unwrap();
    assert_eq!(geometry.locate(Lba(25)), Location { member: MemberIndex(2), sector: DiskSector(1) });
}

#[test]
fn only_on_paper_has_raid_0_one_member() {
    let one = spec(Level::Raid0, 1, 64, 100);
    assert!(matches!(error(one), GeometryError::Members { min: 2, .. }));
    let geometry = Geometry::modelled(one).unwrap();
    assert_eq!(geometry.locate(Lba(777)), Location { member: MemberIndex(0), sector: DiskSector(777) });
    assert!(Geometry::modelled(spec(RAID5, 2, 64, 100)).is_err());
}

#[test]
fn members_hold_one_parity_stripe_at_least() {
    for (level, members, rows) in [
        (Level::Raid0, 2, 1),
        (Level::Raid1, 2, 1),
        (Level::Raid10 { copies: 2 }, 3, 1),
        (RAID5, 3, 1),
        (RAID6, 4, 1),
        (rm2(3), 7, 3),
    ] {
        let needed = Sectors(rows * 8);
        let with_size = |member_size| Spec { member_size, ..spec(level, members, 4, 0) };
        let member_size = Sectors(needed.0 - 1);
        assert_eq!(error(with_size(member_size)), GeometryError::MemberTooSmall { member_size, needed });
        let geometry = Geometry::new(with_size(needed)).unwrap();
        assert_eq!((geometry.stripes().0, geometry.used_sectors()), (1, needed));
    }
}

#[test]
fn the_largest_array_fits_64_bits_of_bytes() {
    let largest = Spec { member_size: Sectors(1 << 47), ..spec(Level::Raid0, 64, 1024, 0) };
    assert_eq!(Geometry::new(largest).unwrap().capacity().bytes(), Bytes(1 << 62));
    for member_size in [(1 << 47) + 1, u64::MAX].map(Sectors) {
        assert_eq!(error(Spec { member_size, ..largest }), GeometryError::MemberTooLarge { member_size });
    }
}

#[test]
fn facts_of_each_level() {
    let facts = |level, members| {
        let geometry = Geometry::new(spec(level, members, 4, 100)).unwrap();
        (geometry.rows(), geometry.tolerance(), geometry.maps().len(), geometry.stripe_sectors().0 / 8)
    };
    assert_eq!(facts(Level::Raid0, 5), (1, 0, 1, 5));
    assert_eq!(facts(Level::Raid1, 5), (1, 4, 1, 1));
    assert_eq!(facts(Level::Raid10 { copies: 2 }, 4), (1, 1, 1, 2));
    assert_eq!(facts(Level::Raid10 { copies: 2 }, 5), (2, 1, 1, 5));
    assert_eq!(facts(Level::Raid10 { copies: 4 }, 6), (2, 3, 1, 3));
    assert_eq!(facts(RAID5, 5), (1, 1, 5, 4));
    assert_eq!(facts(RAID6, 6), (1, 2, 6, 4));
    assert_eq!(facts(rm2(3), 7), (3, 2, 1, 14));
}
