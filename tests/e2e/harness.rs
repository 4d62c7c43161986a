//! The harness proves itself: its placement against the published figures, its client against a server that others
//! wrote.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use uraid_tests::binary;
use uraid_tests::image::Random;
use uraid_tests::nbd::{Client, Command};
use uraid_tests::placement::{Group, Level, Placement, Rotation, Rows};
use uraid_tests::process::Process;
use uraid_tests::run::client_command;
use uraid_tests::shape;

/// Otherwise build scripts that look at it run anew whenever another program asks, and much is built again.
#[test]
fn a_build_is_not_told_who_asks_for_it() {
    let cargo = binary::cargo();
    let removed: BTreeSet<_> = cargo.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        assert!(removed.contains(OsStr::new(name)), "{name} is set, as cargo runs this test");
    }
}

/// Chen and Lee, Figure 1: left-symmetric, five disks.
#[test]
fn raid5_matches_the_published_figure() {
    let placement = Placement::new(&Level::Raid5(Rotation::LeftSymmetric), 5, 5);
    let figure = [[0, 1, 2, 3, -1], [5, 6, 7, -1, 4], [10, 11, -1, 8, 9], [15, -1, 12, 13, 14], [-1, 16, 17, 18, 19]];
    assert_eq!(placement.units(), 20);
    for unit in 0..20 {
        let (slot, row) = placement.copies(unit)[0];
        assert_eq!(usize::try_from(figure[row][slot]).ok(), Some(unit));
        let (parity, parity_row) = placement.parities(unit)[0];
        assert_eq!((figure[parity_row][parity], parity_row), (-1, row));
    }
}

/// The comment of md's `raid5_compute_sector` for its left-symmetric RAID 6, and the powers of the paper's generator.
#[test]
fn raid6_matches_the_published_tables() {
    let placement = Placement::new(&Level::Raid6(Rotation::LeftSymmetric), 5, 5);
    let figure = [[-2, 0, 1, 2, -1], [3, 4, 5, -1, -2], [7, 8, -1, -2, 6], [11, -1, -2, 9, 10], [-1, -2, 12, 13, 14]];
    assert_eq!(placement.units(), 15);
    for unit in 0..15 {
        let (slot, row) = placement.copies(unit)[0];
        assert_eq!(usize::try_from(figure[row][slot]).ok(), Some(unit));
        let parities = placement.parities(unit).into_iter().map(|(slot, row)| figure[row][slot]).collect::<Vec<_>>();
        assert_eq!(parities, [-1, -2]);
    }
    let of_eleven = Placement::new(&Level::Raid6(Rotation::LeftSymmetric), 11, 1).groups();
    let factors = |group: &Group| group.iter().map(|&(_, factor)| factor).collect::<Vec<_>>();
    assert_eq!(factors(&of_eleven[0]), [1; 10]);
    assert_eq!(factors(&of_eleven[1]), [1, 2, 4, 8, 16, 32, 64, 128, 0x1d, 1]);
}

/// The published RM2 example: row 0 is parity, and these are the groups of the data units in rows 1 and 2.
#[test]
fn rm2_matches_the_published_figure() {
    let placement = Placement::new(&Level::Rm2 { seed: vec![(2, 3), (1, 4)], rows: Rows::Adjacent }, 7, 3);
    let figure = [
        [[2, 3], [3, 4], [4, 5], [5, 6], [0, 6], [0, 1], [1, 2]],
        [[1, 4], [2, 5], [3, 6], [0, 4], [1, 5], [2, 6], [0, 3]],
    ];
    let groups = placement.groups();
    assert_eq!((placement.units(), groups.len()), (14, 7));
    for (index, row) in figure.iter().enumerate() {
        for (slot, pair) in row.iter().enumerate() {
            assert_eq!(placement.copies(index * 7 + slot), [(slot, index + 1)]);
            let is_in = |group: &usize| groups[*group].contains(&((slot, index + 1), 1));
            let of = (0..7).filter(is_in).collect::<Vec<_>>();
            assert_eq!(of, pair);
        }
    }
    assert!((0..7).all(|group| groups[group][0] == ((group, 0), 1)));
}

/// Every place holds one thing, and a unit's parities are those of the groups that it is in.
#[test]
fn placements_of_all_shapes_are_sound() {
    for shape in shape::all() {
        let placement = Placement::new(&shape.level, shape.members, 60);
        let groups = placement.groups();
        let mut taken = BTreeSet::new();
        for unit in 0..placement.units() {
            let copies = placement.copies(unit);
            for &place in &copies {
                assert!(place.0 < shape.members && place.1 < 60, "{}: unit {unit} lies in the members", shape.name);
                assert!(taken.insert(place), "{}: {place:?} holds one unit", shape.name);
            }
            for parity in placement.parities(unit) {
                let has = |group: &Group, place| group.iter().any(|&(other, _)| other == place);
                let covers = groups.iter().any(|group| has(group, parity) && has(group, copies[0]));
                assert!(covers, "{}: parity {parity:?} covers unit {unit}", shape.name);
            }
        }
    }
}

#[test]
fn the_plain_client_agrees_with_a_foreign_server() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbdkit.sock");
    let ready = directory.path().join("nbdkit.pid");
    let mut nbdkit = client_command("nbdkit");
    nbdkit.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).arg("--pidfile").arg(&ready);
    nbdkit.args(["--filter=blocksize-policy", "memory", "1M"]);
    nbdkit.args(["blocksize-minimum=512", "blocksize-preferred=4096", "blocksize-maximum=64K"]);
    nbdkit.arg("blocksize-error-policy=error");
    let server = ready_when_written(nbdkit, &ready);

    let mut client = Client::connect(&socket);
    assert_eq!(client.size(), 1 << 20);
    assert_eq!(client.block_sizes(), Some([512, 4096, 64 << 10]));
    let data = Random::new(1).bytes(8192);
    client.write(4096, &data);
    client.flush();
    assert_eq!(client.read(4096, 8192), data);
    assert_ne!(client.call(Command::Read, 1, 512, &[]).error, 0);
    assert_ne!(client.call(Command::Write, 1 << 20, 512, &data[..512]).error, 0);
    assert_eq!(client.read(4096 + 512, 512), data[512..1024]);
    client.disconnect();
    drop(server);
}

/// Starts nbdkit, which writes its pid file once it listens; a FIFO turns that into an event to wait for.
fn ready_when_written(command: std::process::Command, fifo: &std::path::Path) -> Process {
    rustix::fs::mkfifoat(rustix::fs::CWD, fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let server = Process::start(command);
    assert!(!std::fs::read(fifo).unwrap().is_empty(), "nbdkit wrote its pid");
    server
}
