//! Whatever the shape: every sector has places of its own, within the members, and survives what it should.

use std::collections::BTreeSet;

use uraid_layout::{Lba, Sectors};
use uraid_md::geometry::{Geometry, Place, Shape, Slot, ZoneOrder};
use uraid_md::superblock::Level;

const CHUNK: u64 = 8;

/// All shapes of up to eight members that there are.
fn shapes() -> Vec<Shape> {
    let mut layouts = vec![(Level::Raid1, 0), (Level::Raid4, 0)];
    layouts.extend((0..6).map(|layout| (Level::Raid5, layout)));
    layouts.extend([0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20].map(|layout| (Level::Raid6, layout)));
    for (near, far) in (1..=8).flat_map(|near| (1..=8).map(move |far| (near, far))) {
        layouts.extend([0, 0x1_0000, 0x2_0000, 0x4_0000, 0x5_0000].map(|kind| (Level::Raid10, kind | far << 8 | near)));
    }
    let sizes = |members: usize, size| vec![Sectors(size); members];
    let shape = |level, layout, members: usize, rows: u64| {
        let size = rows * CHUNK + 5;
        let sizes = sizes(members, size);
        Shape { level, layout, chunk: Sectors(CHUNK), member_size: Sectors(size), sizes, zone_order: None }
    };
    let all = layouts.into_iter().flat_map(|layout| (1..=8).map(move |members| (layout, members)));
    all.flat_map(|((level, layout), members)| [7, 24].map(|rows| shape(level, layout, members, rows))).collect()
}

/// Checks a geometry; returns how many places it uses.
fn check(geometry: &Geometry, shape: &Shape) -> usize {
    let mut taken = BTreeSet::new();
    let end = |slot: Slot| shape.sizes[usize::from(slot.0)].0;
    for lba in 0..geometry.capacity().0 {
        let located = geometry.locate(Lba(lba)).unwrap();
        assert!(located.run.0 > 0, "{shape:?}: {lba}");
        let stripe = geometry.stripe(Lba(lba));
        // Parities belong to each of a stripe's sectors: they count with the first.
        let first = stripe.as_ref().and_then(|stripe| stripe.data.first()).map(|&(slot, _)| slot);
        let parities = stripe.iter().filter(|stripe| first == Some(stripe.own));
        let parities =
            parities.flat_map(|s| [Some(s.p), s.q].map(|slot| slot.map(|slot| Place { slot, sector: s.sector })));
        for place in located.copies.iter().copied().chain(parities.flatten()) {
            assert!(place.sector.0 < end(place.slot), "{shape:?}: {lba} is at {place:?}");
            assert!(taken.insert(place), "{shape:?}: {lba} is at {place:?}, as is another");
        }
        if let Some(next) = geometry.locate(Lba(lba + 1)).filter(|_| located.run.0 > 1) {
            assert_eq!(next.copies[0].slot, located.copies[0].slot, "{shape:?}: {lba} has a run");
            assert_eq!(next.copies[0].sector.0, located.copies[0].sector.0 + 1, "{shape:?}: {lba} has a run");
        }
    }
    assert_eq!(geometry.locate(Lba(geometry.capacity().0)), None, "{shape:?}");
    taken.len()
}

#[test]
fn every_sector_has_places_of_its_own() {
    let mut geometries = 0;
    for shape in shapes() {
        let Ok(geometry) = Geometry::new(&shape) else { continue };
        check(&geometry, &shape);
        geometries += 1;
    }
    assert!(geometries > 600, "{geometries} shapes are more than the refused ones");
}

#[test]
fn raid_0_and_linear_use_all_whole_chunks() {
    // Every triple of sizes, in rows of chunks.
    for number in 0..5_u64.pow(3) {
        let rows = [number % 5, number / 5 % 5, number / 25];
        let sizes: Vec<Sectors> = rows.iter().map(|rows| Sectors(rows * CHUNK + 3)).collect();
        for (level, order) in [
            (Level::Linear, None),
            (Level::Raid0, Some(ZoneOrder::Original)),
            (Level::Raid0, Some(ZoneOrder::Alternate)),
        ] {
            let (chunk, member_size) = (Sectors(CHUNK), Sectors(0));
            let shape = Shape { level, layout: 0, chunk, member_size, sizes: sizes.clone(), zone_order: order };
            let places = check(&Geometry::new(&shape).unwrap(), &shape);
            assert_eq!(places as u64, rows.iter().sum::<u64>() * CHUNK, "{shape:?}");
        }
    }
}

/// Which members may be lost together follows from where copies are, sector by sector.
#[test]
fn what_survives_is_what_still_has_all_content() {
    for shape in shapes().into_iter().filter(|shape| shape.sizes.len() <= 6 && shape.sizes[0].0 > 100) {
        let Ok(geometry) = Geometry::new(&shape) else { continue };
        for lost in 0..1_u32 << shape.sizes.len() {
            let is_there = |slot: Slot| lost >> slot.0 & 1 == 0;
            let has = |lba| {
                let gone = |slot: Slot| u32::from(!is_there(slot));
                let parities = geometry.stripe(Lba(lba)).map(|stripe| {
                    let data: u32 = stripe.data.iter().map(|&(slot, _)| gone(slot)).sum();
                    data + gone(stripe.p) + stripe.q.map_or(0, gone) <= 1 + u32::from(stripe.q.is_some())
                });
                parities.unwrap_or_else(|| geometry.locate(Lba(lba)).unwrap().copies.iter().any(|c| is_there(c.slot)))
            };
            let all = (0..geometry.capacity().0).step_by(CHUNK as usize).all(has);
            assert_eq!(geometry.survives(is_there), all, "{shape:?} without {lost:b}");
        }
    }
}
