//! Every block is where the papers' formulas and md's tables put it, alone, and can be found back.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uraid_layout::{
    Bytes, DiskSector, Geometry, GroupId, Lba, Level, Location, MemberIndex, Owner, Placement, Rotation, Sectors, Spec,
    StripeId,
};

use crate::oracle::{Chunk, Oracle, small_levels, spec};

fn location(chunk: Chunk, chunk_sectors: u64, offset: u64) -> Location {
    let member = MemberIndex(u8::try_from(chunk.member).expect("members fit a byte"));
    Location { member, sector: DiskSector(chunk.index * chunk_sectors + offset) }
}

/// Checks one address against the oracle; gives the places that it takes.
fn check_address(geometry: &Geometry, oracle: &Oracle, lba: u64) -> Vec<(Location, Owner)> {
    let chunk_sectors = geometry.chunk().0;
    let unit = oracle.unit(lba / chunk_sectors);
    let offset = lba % chunk_sectors;
    let data = location(unit.at, chunk_sectors, offset);
    assert_eq!(geometry.locate(Lba(lba)), data, "{lba}");
    let mut places = vec![(data, Owner::Data(Lba(lba)))];
    for &(group, at) in &unit.parity {
        let owner = Owner::Parity {
            stripe: StripeId(unit.stripe),
            group: GroupId(u16::try_from(group).expect("cells and groups fit 16 bits")),
            offset: Sectors(offset),
        };
        places.push((location(at, chunk_sectors, offset), owner));
    }
    let parity: Vec<Location> = places[1..].iter().map(|&(location, _)| location).collect();
    assert_eq!(geometry.parity_of(Lba(lba)).collect::<Vec<_>>(), parity, "{lba}");
    for &(location, owner) in &places {
        assert_eq!(geometry.owner(location), Some(owner), "{lba} at {location:?}");
        let is_copied = matches!(oracle.spec.level, Level::Raid1 | Level::Raid10 { .. }) || geometry.members() == 2;
        let others = places.iter().map(|&(other, _)| other).filter(|&other| is_copied && other != location);
        assert!(geometry.copies(location).eq(others), "{lba} at {location:?}");
        assert!(location.sector.0 < geometry.used_sectors().0);
    }
    let (stripe, data_unit, in_chunk) = geometry.split(Lba(lba));
    assert_eq!((stripe, in_chunk), (StripeId(unit.stripe), Sectors(offset)));
    assert!(geometry.exists(stripe, data_unit));
    places
}

/// Whether RAID 10's rows end amid its pattern, so that places remain unused.
fn is_partial(geometry: &Geometry) -> bool {
    geometry.capacity().0 != geometry.stripes().0 * geometry.stripe_sectors().0
}

#[test]
fn every_sector_of_small_arrays_has_its_place() {
    for (level, members) in small_levels() {
        for (chunk_kib, chunks) in [(4, 9), (12, 6), (8, 7)] {
            let spec = spec(level, members, chunk_kib, chunks);
            let (geometry, oracle) = (Geometry::new(spec).unwrap(), Oracle::new(spec));
            assert_eq!(geometry.capacity().0, oracle.units() * chunk_kib * 2, "{spec:?}");
            let mut taken = BTreeMap::new();
            for lba in 0..geometry.capacity().0 {
                for (location, owner) in check_address(&geometry, &oracle, lba) {
                    let before = taken.insert(location, owner);
                    assert!(before.is_none_or(|before| before == owner), "{spec:?}: {location:?} is taken twice");
                }
            }
            for member in 0..=members {
                for sector in 0..spec.member_size.0 + 20 {
                    let at = Location { member: MemberIndex(member), sector: DiskSector(sector) };
                    assert_eq!(geometry.owner(at), taken.get(&at).copied(), "{spec:?}: {at:?}");
                }
            }
            let used = geometry.used_sectors().0 * u64::from(members);
            assert!(geometry.used_sectors().0 <= spec.member_size.0);
            assert!(taken.len() as u64 == used || is_partial(&geometry), "{spec:?}: every used sector has an owner");
        }
    }
}

#[test]
fn cells_and_sectors_agree_with_the_owner() {
    for (level, members) in small_levels() {
        let geometry = Geometry::new(spec(level, members, 12, 12)).unwrap();
        for stripe in (0..geometry.stripes().0).map(StripeId) {
            let map = geometry.map(stripe);
            for (unit, &cell) in map.data().iter().enumerate() {
                let unit = uraid_layout::DataUnit(u16::try_from(unit).unwrap());
                if !geometry.exists(stripe, unit) {
                    continue;
                }
                let at = Location { member: geometry.member(cell), sector: geometry.sector(stripe, cell) };
                let lba = stripe.0 * geometry.stripe_sectors().0 + u64::from(unit.0) * geometry.chunk().0;
                assert_eq!(geometry.owner(at), Some(Owner::Data(Lba(lba))));
                assert_eq!(usize::from(cell.0), geometry.row(cell) * usize::from(members) + at.member.index());
            }
        }
    }
}

#[test]
fn nothing_exists_beyond_the_last_stripe() {
    for (level, members) in small_levels() {
        let geometry = Geometry::new(spec(level, members, 4, 7)).unwrap();
        let (stripe, unit, _) = geometry.split(Lba(geometry.capacity().0));
        assert!(!geometry.exists(stripe, unit), "{level:?} of {members}");
        assert!(!geometry.exists(StripeId(u64::MAX), unit));
    }
}

fn any_level() -> impl Strategy<Value = (Level, u8)> {
    let placement = prop_oneof![Just(Placement::Adjacent), Just(Placement::Partitioned)];
    let rm2 = (4u8..=32).prop_flat_map(|members| {
        let tallest =
            (2..=16).filter(|&m| crate::oracle::is_published(members.into(), m)).max().expect("there is one at least");
        (Just(members), 2..=u8::try_from(tallest).expect("heights fit a byte"))
    });
    prop_oneof![
        (2u8..=64).prop_map(|members| (Level::Raid0, members)),
        (2u8..=64).prop_map(|members| (Level::Raid1, members)),
        (2u8..=64).prop_flat_map(|n| (2..=n).prop_map(move |copies| (Level::Raid10 { copies }, n))),
        (3u8..=64, 0usize..4).prop_map(|(n, number)| (Level::Raid5 { rotation: Rotation::ALL[number] }, n)),
        (4u8..=64, 0usize..4).prop_map(|(n, number)| (Level::Raid6 { rotation: Rotation::ALL[number] }, n)),
        (rm2, placement).prop_map(|((n, height), placement)| (Level::Rm2 { height, placement }, n)),
    ]
}

fn any_spec() -> impl Strategy<Value = Spec> {
    // Sizes are spread over all orders of magnitude, to the largest member that there can be.
    let size = (17u32..=47, any::<u64>()).prop_map(|(bits, size)| (1 << (bits - 1)) + size % (1 << (bits - 1)) + 1);
    (any_level(), 1u64..=256, size).prop_map(|((level, members), chunk, size)| Spec {
        level,
        members,
        chunk: Bytes(chunk * 4096),
        member_size: Sectors(size),
    })
}

proptest! {
    #[test]
    fn any_sector_of_any_array_has_its_place(spec in any_spec(), picks in prop::collection::vec(any::<u64>(), 8)) {
        let geometry = Geometry::new(spec).unwrap();
        let oracle = Oracle::new(spec);
        let capacity = geometry.capacity().0;
        prop_assert_eq!(capacity, oracle.units() * geometry.chunk().0);
        for lba in picks.into_iter().map(|pick| pick % capacity).chain([0, capacity - 1]) {
            check_address(&geometry, &oracle, lba);
        }
    }

    #[test]
    fn any_sector_of_any_member_leads_back(spec in any_spec(), picks in prop::collection::vec(any::<(u8, u64)>(), 8)) {
        let geometry = Geometry::new(spec).unwrap();
        let used = geometry.used_sectors().0;
        for (member, sector) in picks {
            let at = Location { member: MemberIndex(member % spec.members), sector: DiskSector(sector % used) };
            match geometry.owner(at) {
                Some(Owner::Data(lba)) => prop_assert_eq!(geometry.locate(lba), at),
                Some(Owner::Parity { stripe, group, offset }) => {
                    let parity = geometry.map(stripe).group(group).parity;
                    let sector = DiskSector(geometry.sector(stripe, parity).0 + offset.0);
                    prop_assert_eq!(Location { member: geometry.member(parity), sector }, at);
                }
                None => prop_assert!(is_partial(&geometry)),
            }
            let beyond = Location { sector: DiskSector(used + sector % 1000), ..at };
            prop_assert_eq!(geometry.owner(beyond), None);
        }
    }
}
