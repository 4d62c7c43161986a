//! Layouts against pictures: rows are rows of chunks, columns are members; numbers are chunks of the array.
//!
//! The pictures are made by hand, from the formulas of Linux and the manual page md(4).

use uraid_layout::{DiskSector, Lba, Sectors};
use uraid_md::geometry::{Geometry, GeometryError, Place, Shape, Slot, ZoneOrder};
use uraid_md::superblock::Level;

/// Sectors of a chunk.
const CHUNK: u64 = 8;

fn shape(level: Level, layout: u32, members: usize, rows: u64) -> Shape {
    let size = Sectors(rows * CHUNK);
    Shape { level, layout, chunk: Sectors(CHUNK), member_size: size, sizes: vec![size; members], zone_order: None }
}

fn place(slot: usize, row: usize) -> Place {
    Place { slot: Slot(slot as u16), sector: DiskSector(row as u64 * CHUNK) }
}

/// Holds a geometry against a picture, in which each chunk is a number, and P, Q and `-` are no data.
#[track_caller]
fn check(geometry: &Geometry, picture: &[&str]) {
    let rows: Vec<Vec<&str>> = picture.iter().map(|row| row.split_whitespace().collect()).collect();
    let chunks = geometry.capacity().0 / CHUNK;
    for chunk in 0..chunks {
        let cells = rows.iter().enumerate().flat_map(|(row, cells)| cells.iter().enumerate().map(move |c| (row, c)));
        let mut wanted: Vec<Place> = cells
            .filter(|(_, (_, cell))| **cell == chunk.to_string())
            .map(|(row, (slot, _))| place(slot, row))
            .collect();
        let mut found = geometry.locate(Lba(chunk * CHUNK)).unwrap().copies;
        wanted.sort();
        found.sort();
        assert_eq!(found, wanted, "chunk {chunk}");
        let Some(stripe) = geometry.stripe(Lba(chunk * CHUNK)) else { continue };
        let row = (stripe.sector.0 / CHUNK) as usize;
        let at = |what: &str| rows[row].iter().position(|cell| *cell == what).map(|slot| Slot(slot as u16));
        assert_eq!((Some(stripe.p), stripe.q), (at("P"), at("Q")), "row {row}");
    }
    let drawn: Option<u64> = rows.iter().flatten().filter_map(|cell| cell.parse().ok()).max();
    assert_eq!(drawn, chunks.checked_sub(1), "the picture has all chunks");
}

fn raid(level: Level, layout: u32, picture: &[&str]) {
    let members = picture[0].split_whitespace().count();
    check(&Geometry::new(&shape(level, layout, members, picture.len() as u64)).unwrap(), picture);
}

#[test]
fn raid_5_in_all_layouts() {
    raid(Level::Raid5, 0, &["0 1 2 P", "3 4 P 5", "6 P 7 8", "P 9 10 11", "12 13 14 P"]);
    raid(Level::Raid5, 1, &["P 0 1 2", "3 P 4 5", "6 7 P 8", "9 10 11 P", "P 12 13 14"]);
    raid(Level::Raid5, 2, &["0 1 2 P", "4 5 P 3", "8 P 6 7", "P 9 10 11", "12 13 14 P"]);
    raid(Level::Raid5, 3, &["P 0 1 2", "5 P 3 4", "7 8 P 6", "9 10 11 P", "P 12 13 14"]);
    raid(Level::Raid5, 4, &["P 0 1 2", "P 3 4 5"]);
    raid(Level::Raid5, 5, &["0 1 2 P", "3 4 5 P"]);
    raid(Level::Raid4, 0, &["0 1 2 P", "3 4 5 P"]);
}

#[test]
fn raid_6_in_all_layouts() {
    raid(Level::Raid6, 0, &["Q 0 1 2 P", "3 4 5 P Q", "6 7 P Q 8", "9 P Q 10 11", "P Q 12 13 14", "Q 15 16 17 P"]);
    raid(Level::Raid6, 1, &["P Q 0 1 2", "3 P Q 4 5", "6 7 P Q 8", "9 10 11 P Q", "Q 12 13 14 P"]);
    raid(Level::Raid6, 2, &["Q 0 1 2 P", "3 4 5 P Q", "7 8 P Q 6", "11 P Q 9 10", "P Q 12 13 14"]);
    raid(Level::Raid6, 3, &["P Q 0 1 2", "5 P Q 3 4", "7 8 P Q 6", "9 10 11 P Q", "Q 12 13 14 P"]);
    raid(Level::Raid6, 4, &["P Q 0 1 2", "P Q 3 4 5"]);
    raid(Level::Raid6, 5, &["0 1 2 P Q", "3 4 5 P Q"]);
    raid(Level::Raid6, 8, &["P Q 0 1 2", "3 P Q 4 5", "6 7 P Q 8", "9 10 11 P Q", "Q 12 13 14 P"]);
    raid(Level::Raid6, 9, &["0 1 2 P Q", "3 4 P Q 5", "6 P Q 7 8", "P Q 9 10 11", "Q 12 13 14 P"]);
    raid(Level::Raid6, 10, &["0 1 2 Q P", "4 5 Q P 3", "8 Q P 6 7", "Q P 9 10 11", "P 12 13 14 Q"]);
    raid(Level::Raid6, 16, &["0 1 2 P Q", "3 4 P 5 Q", "6 P 7 8 Q", "P 9 10 11 Q", "12 13 14 P Q"]);
    raid(Level::Raid6, 17, &["P 0 1 2 Q", "3 P 4 5 Q", "6 7 P 8 Q", "9 10 11 P Q", "P 12 13 14 Q"]);
    raid(Level::Raid6, 18, &["0 1 2 P Q", "4 5 P 3 Q", "8 P 6 7 Q", "P 9 10 11 Q", "12 13 14 P Q"]);
    raid(Level::Raid6, 19, &["P 0 1 2 Q", "5 P 3 4 Q", "7 8 P 6 Q", "9 10 11 P Q", "P 12 13 14 Q"]);
    raid(Level::Raid6, 20, &["P 0 1 2 Q", "P 3 4 5 Q"]);
}

/// Which member counts how often in Q, in the row of this chunk: slots with the power of 2, in order of slots.
fn exponents(layout: u32, members: usize, chunk: u64) -> Vec<(u16, usize)> {
    let geometry = Geometry::new(&shape(Level::Raid6, layout, members, 8)).unwrap();
    let mut data: Vec<_> =
        geometry.stripe(Lba(chunk * CHUNK)).unwrap().data.into_iter().map(|(slot, power)| (slot.0, power)).collect();
    data.sort_unstable();
    data
}

#[test]
fn q_counts_members_from_itself_on_and_ddf_counts_them_by_slots() {
    // The rows are those of the pictures above.
    assert_eq!(exponents(0, 5, 6), [(0, 1), (1, 2), (4, 0)]);
    assert_eq!(exponents(2, 5, 6), [(0, 1), (1, 2), (4, 0)]);
    assert_eq!(exponents(2, 5, 0), [(1, 0), (2, 1), (3, 2)]);
    assert_eq!(exponents(3, 5, 3), [(0, 2), (3, 0), (4, 1)]);
    assert_eq!(exponents(4, 5, 0), [(2, 0), (3, 1), (4, 2)]);
    assert_eq!(exponents(8, 5, 3), [(0, 0), (3, 3), (4, 4)]);
    assert_eq!(exponents(9, 5, 3), [(0, 0), (1, 1), (4, 4)]);
    assert_eq!(exponents(10, 5, 3), [(0, 0), (1, 1), (4, 4)]);
    assert_eq!(exponents(16, 5, 3), [(0, 0), (1, 1), (3, 2)]);
}

#[test]
fn raid_10_with_near_copies() {
    raid(Level::Raid10, 0x102, &["0 0 1 1", "2 2 3 3"]);
    raid(Level::Raid10, 0x102, &["0 0 1", "1 2 2", "3 3 -"]);
    raid(Level::Raid10, 0x103, &["0 0 0 1 1", "1 2 2 2 3", "3 3 4 4 4"]);
}

#[test]
fn raid_10_with_far_copies() {
    raid(Level::Raid10, 0x201, &["0 1 2 3", "4 5 6 7", "3 0 1 2", "7 4 5 6"]);
    raid(Level::Raid10, 0x201, &["0 1 2", "3 4 5", "2 0 1", "5 3 4", "- - -"]);
    raid(Level::Raid10, 0x301, &["0 1 2 3", "3 0 1 2", "2 3 0 1"]);
    raid(Level::Raid10, 0x202, &["0 0 1 1", "2 2 3 3", "1 1 0 0", "3 3 2 2"]);
}

#[test]
fn raid_10_with_offset_copies() {
    raid(Level::Raid10, 0x1_0201, &["0 1 2 3", "3 0 1 2", "4 5 6 7", "7 4 5 6"]);
    raid(Level::Raid10, 0x1_0301, &["0 1 2 3", "3 0 1 2", "2 3 0 1"]);
    raid(Level::Raid10, 0x1_0202, &["0 0 1 1", "1 1 0 0", "2 2 3 3", "3 3 2 2"]);
}

#[test]
fn raid_10_with_far_copies_in_sets() {
    raid(Level::Raid10, 0x4_0201, &["0 1 2 3", "4 5 6 7", "1 0 3 2", "5 4 7 6"]);
    raid(Level::Raid10, 0x4_0201, &["0 1 2 3 4", "1 0 4 2 3"]);
    raid(Level::Raid10, 0x2_0201, &["0 1 2 3 4", "1 0 4 2 3"]);
    raid(Level::Raid10, 0x4_0202, &["0 0 1 1 2 2", "2 2 0 0 1 1"]);
}

#[test]
fn raid_1_is_the_same_everywhere() {
    raid(Level::Raid1, 0, &["0 0 0", "1 1 1"]);
}

/// Members of one, two and four rows, and a bit more that is not used.
fn unequal(level: Level, zone_order: Option<ZoneOrder>) -> Result<Geometry, GeometryError> {
    let sizes = [CHUNK + 3, 2 * CHUNK, 4 * CHUNK + 7].map(Sectors).to_vec();
    Geometry::new(&Shape { level, layout: 0, chunk: Sectors(CHUNK), member_size: Sectors(0), sizes, zone_order })
}

#[test]
fn raid_0_goes_round_those_that_are_left() {
    check(&unequal(Level::Raid0, Some(ZoneOrder::Alternate)).unwrap(), &["0 1 2", "- 3 4", "- - 5", "- - 6"]);
    check(&unequal(Level::Raid0, Some(ZoneOrder::Original)).unwrap(), &["0 1 2", "- 4 3", "- - 5", "- - 6"]);
    assert_eq!(unequal(Level::Raid0, None), Err(GeometryError::ZoneOrder));
    raid(Level::Raid0, 0, &["0 1 2", "3 4 5"]);
}

/// Found by comparison with Linux 6.12: three members of 47104 sectors in chunks of 24 have 141216, and not 141264.
#[test]
fn raid_0_shows_as_much_as_the_kernel_if_chunks_are_no_power_of_two() {
    let sizes = vec![Sectors(47104); 3];
    let shape = Shape { chunk: Sectors(24), sizes, ..shape(Level::Raid0, 0, 3, 0) };
    let geometry = Geometry::new(&shape).unwrap();
    assert_eq!((geometry.capacity(), geometry.locate(Lba(141_216))), (Sectors(141_216), None));
    // Chunk 5883 is the last: the 1962nd of member 0 is its number 1961.
    assert_eq!(geometry.locate(Lba(141_215)).unwrap().copies, [Place { sector: DiskSector(47087), ..place(0, 0) }]);
}

#[test]
fn linear_is_one_behind_the_other() {
    check(&unequal(Level::Linear, None).unwrap(), &["0 1 3", "- 2 4", "- - 5", "- - 6"]);
    let sizes = [11, 16].map(Sectors).to_vec();
    let shape = Shape { chunk: Sectors(0), sizes, ..shape(Level::Linear, 0, 2, 0) };
    let geometry = Geometry::new(&shape).unwrap();
    let located = geometry.locate(Lba(11)).unwrap();
    assert_eq!((geometry.capacity(), located.copies, located.run), (Sectors(27), vec![place(1, 0)], Sectors(16)));
    assert_eq!((geometry.locate(Lba(4)).unwrap().run, geometry.locate(Lba(27))), (Sectors(7), None));
}

#[test]
fn what_there_is_not_is_refused() {
    let refused = |level, layout, members| Geometry::new(&shape(level, layout, members, 8)).unwrap_err();
    for (level, layout) in [
        (Level::Raid5, 6),
        (Level::Raid6, 6),
        (Level::Raid6, 15),
        (Level::Raid6, 21),
        (Level::Raid10, 0x002),
        (Level::Raid10, 0x200),
        (Level::Raid10, 0x302),
        (Level::Raid10, 0x6_0201),
    ] {
        assert_eq!(refused(level, layout, 5), GeometryError::Layout { level, layout });
    }
    let few = |level, members| GeometryError::Members { level, members };
    assert_eq!(refused(Level::Raid6, 2, 3), few(Level::Raid6, 3));
    assert_eq!(refused(Level::Raid5, 2, 1), few(Level::Raid5, 1));
    assert_eq!(refused(Level::Raid6, 2, 256), few(Level::Raid6, 256));
    // By the kernel's formulas chunk 2 and chunk 1 would both be on member 0, row 1.
    assert_eq!(refused(Level::Raid10, 0x1_0202, 5), GeometryError::Overlap { members: 5 });
    assert_eq!(refused(Level::Raid10, 0x2_0202, 7), GeometryError::Overlap { members: 7 });
    assert_eq!(refused(Level::Other(-4), 0, 2), GeometryError::Level(Level::Other(-4)));
    for (level, chunk) in [(Level::Raid5, 12), (Level::Raid10, 4), (Level::Raid6, 0), (Level::Raid0, 0)] {
        let chunk = Sectors(chunk);
        let layout = if level == Level::Raid10 { 0x102 } else { 2 };
        let shape = Shape { chunk, ..shape(level, layout, 5, 8) };
        assert_eq!(Geometry::new(&shape), Err(GeometryError::Chunk { level, chunk }));
    }
}
