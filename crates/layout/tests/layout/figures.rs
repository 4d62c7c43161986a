//! The papers' figures, as they are printed.

use uraid_layout::draw::draw;
use uraid_layout::{Geometry, Level, Placement, Rotation};

use crate::oracle::spec;

fn drawn(level: Level, members: u8, chunks: u64, stripes: usize) -> String {
    draw(&Geometry::new(spec(level, members, 4, chunks)).expect("a valid geometry"), stripes)
}

/// Compares word by word: figures differ in their spacing alone.
fn assert_figure(drawing: &str, figure: &str) {
    let words = |text: &str| -> Vec<Vec<String>> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines.map(|line| line.split_whitespace().map(String::from).collect()).collect()
    };
    assert_eq!(words(drawing), words(figure), "\n{drawing}");
}

#[test]
fn chen_and_lee_figure_1_raid5_left_symmetric() {
    let rotation = Rotation::default();
    assert_figure(
        &drawn(Level::Raid5 { rotation }, 5, 100, 5),
        "disk0 disk1 disk2 disk3 disk4
           0     1     2     3    P0
           5     6     7    P1     4
          10    11    P2     8     9
          15    P3    12    13    14
          P4    16    17    18    19",
    );
}

#[test]
fn raid5_other_rotations() {
    let figures = [
        (
            Rotation::LeftAsymmetric,
            "disk0 disk1 disk2 disk3
             0  1  2  P0
             3  4  P1 5
             6  P2 7  8
             P3 9  10 11
             12 13 14 P4",
        ),
        (
            Rotation::RightAsymmetric,
            "disk0 disk1 disk2 disk3
             P0 0  1  2
             3  P1 4  5
             6  7  P2 8
             9  10 11 P3
             P4 12 13 14",
        ),
        (
            Rotation::RightSymmetric,
            "disk0 disk1 disk2 disk3
             P0 0  1  2
             5  P1 3  4
             7  8  P2 6
             9  10 11 P3
             P4 12 13 14",
        ),
    ];
    for (rotation, figure) in figures {
        assert_figure(&drawn(Level::Raid5 { rotation }, 4, 100, 5), figure);
    }
}

/// The tables in the comments of md's `raid5_compute_sector`, a stripe a line.
#[test]
fn raid6_as_md_has_it() {
    let figures = [
        (
            Rotation::LeftSymmetric,
            "disk0 disk1 disk2 disk3 disk4
             Q0 0  1  2  P0
             3  4  5  P1 Q1
             7  8  P2 Q2 6
             11 P3 Q3 9  10
             P4 Q4 12 13 14",
        ),
        (
            Rotation::LeftAsymmetric,
            "disk0 disk1 disk2 disk3 disk4
             Q0 0  1  2  P0
             3  4  5  P1 Q1
             6  7  P2 Q2 8
             9  P3 Q3 10 11
             P4 Q4 12 13 14",
        ),
        (
            Rotation::RightAsymmetric,
            "disk0 disk1 disk2 disk3 disk4
             P0 Q0 0  1  2
             3  P1 Q1 4  5
             6  7  P2 Q2 8
             9  10 11 P3 Q3
             Q4 12 13 14 P4",
        ),
        (
            Rotation::RightSymmetric,
            "disk0 disk1 disk2 disk3 disk4
             P0 Q0 0  1  2
             5  P1 Q1 3  4
             7  8  P2 Q2 6
             9  10 11 P3 Q3
             Q4 12 13 14 P4",
        ),
    ];
    for (rotation, figure) in figures {
        assert_figure(&drawn(Level::Raid6 { rotation }, 5, 100, 5), figure);
    }
}

#[test]
fn rm2_of_seven_members_and_three_rows() {
    let level = Level::Rm2 { height: 3, placement: Placement::Adjacent };
    assert_figure(
        &drawn(level, 7, 100, 1),
        "               disk0 disk1 disk2 disk3 disk4 disk5 disk6
        row 0 (parity)  P0    P1    P2    P3    P4    P5    P6
        row 1           D2,3  D3,4  D4,5  D5,6  D0,6  D0,1  D1,2
        row 2           D1,4  D2,5  D3,6  D0,4  D1,5  D2,6  D0,3",
    );
}

#[test]
fn rm2_partitioned_keeps_each_row_together() {
    let level = Level::Rm2 { height: 2, placement: Placement::Partitioned };
    assert_figure(
        &drawn(level, 4, 4, 9),
        "                        disk0 disk1 disk2 disk3
        stripe 0 row 0 (parity)  P0    P1    P2    P3
        stripe 1 row 0 (parity)  P0    P1    P2    P3
        stripe 0 row 1           D1,2  D2,3  D0,3  D0,1
        stripe 1 row 1           D1,2  D2,3  D0,3  D0,1",
    );
}

#[test]
fn raid0_counts_across() {
    assert_figure(&drawn(Level::Raid0, 3, 100, 2), "disk0 disk1 disk2\n0 1 2\n3 4 5");
}

#[test]
fn raid1_has_one_unit_a_row() {
    assert_figure(&drawn(Level::Raid1, 3, 2, 5), "disk0 disk1 disk2\n0 0' 0'2\n1 1' 1'2");
}

#[test]
fn raid10_of_three_members_wraps_copies() {
    let level = Level::Raid10 { copies: 2 };
    assert_figure(
        &drawn(level, 3, 100, 2),
        "disk0 disk1 disk2
           0    0'    1
           1'   2     2'
           3    3'    4
           4'   5     5'",
    );
}

/// md's near layout on members of three chunks: nine places hold four units twice.
#[test]
fn raid10_uses_the_rows_of_a_partial_stripe() {
    let level = Level::Raid10 { copies: 2 };
    assert_figure(&drawn(level, 3, 3, 9), "disk0 disk1 disk2\n0 0' 1\n1' 2 2'\n3 3' -");
}
