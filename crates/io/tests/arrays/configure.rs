//! How an array is kept consistent: what is chosen when it is made, and changing it later.

use std::path::PathBuf;

use tempfile::TempDir;
use uraid_io::array::{Array, ConfigureError, CreateError, CreateOptions, OpenError, OpenOptions, Setting, create};
use uraid_io::format::Epoch;
use uraid_io::format::superblock::{Consistency, Revision, Superblock};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Level, Placement, Rotation};

use crate::support::{options, paths, store, stored};

const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
const RM2: Level = Level::Rm2 { height: 3, placement: Placement::Adjacent };
const MIB: u64 = 1 << 20;

fn made(options: &CreateOptions, members: usize) -> Result<(TempDir, Vec<PathBuf>), CreateError> {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = paths(&directory, members);
    create(&paths, options, |_, _| ())?;
    Ok((directory, paths))
}

fn open(paths: &[PathBuf]) -> Result<Array, OpenError> {
    Array::open(paths, OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true })
}

#[test]
fn each_level_has_what_suits_it_unless_told_otherwise() {
    let cases = [
        (Level::Raid0, 2, Consistency::None),
        (Level::Raid1, 2, Consistency::Bitmap),
        (Level::Raid10 { copies: 2 }, 5, Consistency::Bitmap),
        (RAID5, 3, Consistency::Log),
        (Level::Raid6 { rotation: Rotation::LeftSymmetric }, 4, Consistency::Log),
        (RM2, 7, Consistency::Log),
    ];
    for (level, members, expected) in cases {
        let (_directory, paths) = made(&options(level), members).expect("made");
        assert!(paths.iter().all(|path| stored(path).consistency == expected), "{level:?}");
        for consistency in [Consistency::None, Consistency::Bitmap, Consistency::Log] {
            let chosen = CreateOptions { consistency: Some(consistency), ..options(level) };
            let made = made(&chosen, members);
            if level == Level::Raid0 && consistency == Consistency::Bitmap {
                assert!(matches!(made, Err(CreateError::Unsuited { .. })), "{made:?}");
                continue;
            }
            let (_directory, paths) = made.expect("made");
            assert!(paths.iter().all(|path| stored(path).consistency == consistency), "{level:?}");
        }
    }
}

#[test]
fn a_log_has_room_for_a_few_parity_stripes() {
    // The log is what is left of whole mebibytes after the first 512 KiB.
    let log_of = |options: &CreateOptions, members| {
        let (_directory, paths) = made(options, members).expect("made");
        stored(&paths[0]).areas.log.size
    };
    let small = options(RM2);
    assert_eq!(log_of(&small, 7), Bytes(MIB / 2), "the default");
    assert_eq!(log_of(&CreateOptions { log_size: Some(Bytes(MIB)), ..small.clone() }, 7), Bytes(MIB + MIB / 2));
    // Three rows of 256 KiB, four times, and 64 KiB: 3.0625 MiB.
    let large = CreateOptions { chunk: Bytes(256 << 10), size: Some(Bytes(16 * MIB)), ..options(RM2) };
    assert_eq!(log_of(&large, 7), Bytes(3 * MIB + MIB / 2));
    for consistency in [Consistency::None, Consistency::Bitmap] {
        let without = CreateOptions { consistency: Some(consistency), ..large.clone() };
        assert_eq!(log_of(&without, 7), Bytes(MIB + MIB / 2), "{consistency:?} needs none: the default");
    }
    let asked = CreateOptions { log_size: Some(Bytes(3 * MIB)), ..large.clone() };
    let needed = Bytes(3 * MIB + (64 << 10));
    let refused = made(&asked, 7).expect_err("64 KiB are missing");
    assert!(matches!(refused, CreateError::LogTooSmall { needed: least, .. } if least == needed), "{refused}");
    let cramped = CreateOptions { size: Some(Bytes(4 * MIB)), ..large };
    let refused = made(&cramped, 7).expect_err("nothing is left for data");
    assert!(matches!(refused, CreateError::NoRoom { log, .. } if log == needed), "{refused}");
}

#[test]
fn every_setting_can_be_changed_to_every_other() {
    let (_directory, paths) = made(&options(RAID5), 3).expect("made");
    let modes = [Consistency::None, Consistency::Bitmap, Consistency::Log];
    let mut epoch = 2;
    for (from, to) in modes.iter().flat_map(|from| modes.iter().map(move |to| (*from, *to))) {
        for consistency in [from, to] {
            let array = open(&paths).expect("opens").configure(&Setting::Consistency(consistency)).expect("configured");
            assert_eq!(array.superblock.consistency, consistency);
            drop(array);
            epoch += 1;
            for path in &paths {
                let superblock = stored(path);
                assert_eq!((superblock.consistency, superblock.epoch), (consistency, Epoch(epoch)));
                assert!(superblock.is_clean);
            }
        }
    }
}

#[test]
fn only_a_whole_and_clean_array_is_configured() {
    let (_directory, paths) = made(&options(RAID5), 3).expect("made");
    let refused = open(&paths[1..])
        .expect("opens")
        .configure(&Setting::Consistency(Consistency::None))
        .expect_err("a member is missing");
    assert!(matches!(refused, ConfigureError::NotWhole { .. }), "{refused}");
    for path in &paths {
        store(path, &Superblock { is_clean: false, revision: Revision(2), ..stored(path) });
    }
    let refused =
        open(&paths).expect("opens").configure(&Setting::Consistency(Consistency::None)).expect_err("it is dirty");
    assert!(matches!(refused, ConfigureError::Dirty), "{refused}");
    assert!(paths.iter().all(|path| stored(path).consistency == Consistency::Log), "nothing is changed");

    let (_directory, paths) = made(&options(Level::Raid0), 2).expect("made");
    let refused =
        open(&paths).expect("opens").configure(&Setting::Consistency(Consistency::Bitmap)).expect_err("of no use");
    assert!(matches!(refused, ConfigureError::Unsuited { .. }), "{refused}");

    let large = CreateOptions {
        chunk: Bytes(256 << 10),
        size: Some(Bytes(16 * MIB)),
        consistency: Some(Consistency::None),
        ..options(RM2)
    };
    let (_directory, paths) = made(&large, 7).expect("made");
    let refused = open(&paths)
        .expect("opens")
        .configure(&Setting::Consistency(Consistency::Log))
        .expect_err("the log is too small");
    assert!(matches!(refused, ConfigureError::LogTooSmall { .. }), "{refused}");
    assert!(paths.iter().all(|path| stored(path).epoch == Epoch(2)), "nothing is changed");
}

/// The round is cut off after the first member, whichever that is: the others follow.
#[test]
fn a_change_that_is_cut_off_is_made_on_all_members() {
    for first in 0..3 {
        let (_directory, paths) = made(&options(RAID5), 3).expect("made");
        let before = stored(&paths[first]);
        let (epoch, revision) = (Epoch(before.epoch.0 + 1), Revision(before.revision.0 + 1));
        store(&paths[first], &Superblock { consistency: Consistency::Bitmap, epoch, revision, ..before });
        let array = open(&paths).expect("opens");
        assert!(array.missing().is_empty());
        drop(array);
        assert!(paths.iter().all(|path| stored(path).consistency == Consistency::Bitmap), "begun at {first}");
    }
}
