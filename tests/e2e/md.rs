//! Arrays of Linux md: `uraid import` shows them, `uraid serve --md` serves them for reading.

mod convert;
mod image;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use uraid_tests::array::Array;
use uraid_tests::binary::{self, uraid};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::{Command as Request, error};
use uraid_tests::placement::{Level, Rotation};
use uraid_tests::process::Output;
use uraid_tests::run::{client, run};
use uraid_tests::server::Server;
use uraid_tests::shape::Shape;

use image::{Made, Recipe};

const RAID5: Recipe = Recipe { level: 5, members: 4, rows: 12, is_old: false, number: 1 };
const RAID6: Recipe = Recipe { level: 6, members: 5, rows: 12, is_old: false, number: 2 };

fn command(words: &[&str], members: &[PathBuf]) -> Command {
    let mut command = binary::command();
    command.args(["serve", "--md"]).args(words).args(members);
    command
}

/// A server of these members, on a socket in the directory.
#[track_caller]
fn serve(directory: &TempDir, words: &[&str], members: &[PathBuf]) -> Server {
    let socket = directory.path().join("md.sock");
    let words = [&["--socket", socket.to_str().unwrap()], words].concat();
    Server::spawn(command(&words, members), socket).unwrap_or_else(|output| panic!("{}", output.stderr))
}

/// What is said when members are refused.
#[track_caller]
fn refused(words: &[&str], members: &[PathBuf]) -> Output {
    run(command(&[&["--run", "true"], words].concat(), members)).code_is(1)
}

fn import(members: &[PathBuf]) -> Value {
    let words = ["import", "--json"].map(OsStr::new).into_iter();
    uraid(words.chain(members.iter().map(|member| member.as_os_str()))).success().json()
}

/// All members but these.
fn without(members: &[PathBuf], lost: &[usize]) -> Vec<PathBuf> {
    let left = members.iter().enumerate().filter(|(slot, _)| !lost.contains(slot));
    left.map(|(_, member)| member.clone()).rev().collect()
}

/// The data areas of a RAID 6 hold what md's would, byte for byte: with superblocks of md before them, they are one of
/// its arrays.
#[test]
fn members_of_a_raid_6_have_the_data_of_ones_of_md() {
    let (level, chunk_kib) = (|rotation| Level::Raid6(rotation), Some(64));
    let by_number =
        [Rotation::LeftAsymmetric, Rotation::RightAsymmetric, Rotation::LeftSymmetric, Rotation::RightSymmetric];
    for (layout, rotation) in (0_u8..).zip(by_number) {
        let (tolerated, fatal) = (vec![], None);
        let shape = Shape { name: "RAID 6 of 5", level: level(rotation), members: 5, chunk_kib, tolerated, fatal };
        let array = Array::create_sized(&shape, 8 << 20);
        let server = Server::start(&array);
        let content = Random::new(layout.into()).bytes(array.expected_size());
        write_export(server.uri(), &content);
        let _ = server.stop();
        let directory = tempfile::tempdir().unwrap();
        let recipe = Recipe { number: 10 + layout, ..RAID6 };
        let with_superblock = |(slot, path): (usize, &PathBuf)| {
            let (facts, bytes) = (&array.facts()[slot], std::fs::read(path).unwrap());
            let data =
                facts.data_offset..facts.data_offset + facts.data_size / shape.chunk_bytes() * shape.chunk_bytes();
            let path = directory.path().join(format!("md{slot}.img"));
            std::fs::write(&path, recipe.newer(slot, bytes[data].to_vec())).unwrap();
            Recipe::change(&path, 76, &u32::from(layout).to_le_bytes());
            path
        };
        let members: Vec<PathBuf> = array.members().iter().enumerate().map(with_superblock).collect();
        for lost in [&[][..], &[2], &[0, 3]] {
            let server = serve(&directory, &[], &without(&members, lost));
            assert_same(&read_export(server.uri()), &content, &format!("{rotation:?} without {lost:?}"));
            let _ = server.stop();
        }
    }
}

#[test]
fn arrays_are_read_whole_and_without_as_many_members_as_they_survive() {
    let directory = tempfile::tempdir().unwrap();
    for (recipe, losses) in [
        (RAID5, &[&[][..], &[0], &[3]][..]),
        (Recipe { is_old: true, number: 3, ..RAID5 }, &[&[], &[1]]),
        (RAID6, &[&[], &[2], &[0, 1], &[1, 4]]),
        (Recipe { is_old: true, number: 4, ..RAID6 }, &[&[], &[2, 3]]),
    ] {
        let Made { members, content } = recipe.make(directory.path());
        let before: Vec<_> = members.iter().map(|member| std::fs::read(member).unwrap()).collect();
        for lost in losses {
            let server = serve(&directory, &[], &without(&members, lost));
            let what = format!("RAID {} without {lost:?}, old: {}", recipe.level, recipe.is_old);
            assert_same(&read_export(server.uri()), &content, &what);
            let _ = server.stop();
        }
        let after: Vec<_> = members.iter().map(|member| std::fs::read(member).unwrap()).collect();
        assert!(before == after, "nothing is written");
        let most = losses[losses.len() - 1];
        let next = (0..members.len()).find(|slot| !most.contains(slot)).unwrap();
        let more = [most, &[next]].concat();
        let said = refused(&[], &without(&members, &more)).stderr;
        assert!(said.contains("too many members are missing"), "{said}");
    }
}

#[test]
fn nothing_can_be_written_and_any_bytes_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, content } = RAID5.make(directory.path());
    let server = serve(&directory, &[], &members[1..]);
    let info = client("nbdinfo", ["--json", server.uri()]).success().json();
    assert_eq!(info["exports"][0]["is_read_only"], true, "{info:#}");
    assert_eq!(info["exports"][0]["export-name"], "vault1");
    let mut client = server.connect();
    assert_eq!(client.call(Request::Write, 0, 512, &[1; 512]).error, error::EPERM);
    assert_eq!(client.call(Request::Trim, 0, 512, &[]).error, error::EPERM);
    for (at, length) in [(0, 1), (511, 2), (65535, 70000), (content.len() - 3, 3), (300_000, 1 << 20)] {
        assert_same(&client.read(at, length), &content[at..at + length], &format!("{length} at {at}"));
    }
    client.disconnect();
    let _ = server.stop();
}

#[test]
fn a_command_copies_what_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, content } = RAID6.make(directory.path());
    let rescued = directory.path().join("rescued");
    let copy = format!("nbdcopy \"$uri\" {}", rescued.display());
    let said = run(command(&["--run", &copy], &members[2..])).success();
    assert!(said.stderr.contains("degraded without members 0 and 1"), "{}", said.stderr);
    assert_same(&std::fs::read(&rescued).unwrap(), &content, "the copy");
    assert_eq!(run(command(&["--run", "exit 7"], &members)).code_is(7).text(), "");
}

#[test]
fn import_says_who_belongs_and_who_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, content } = RAID5.make(directory.path());
    Recipe::change(&members[2], 200, &88_u64.to_le_bytes());
    let report = import(&members);
    let array = &report["arrays"][0];
    for (field, value) in [
        ("uuid", Value::from("01010101:01010101:01010101:01010101")),
        ("name", "host:vault1".into()),
        ("metadata", "1.2".into()),
        ("level", "raid5".into()),
        ("layout", "left-symmetric".into()),
        ("chunk_bytes", 65536.into()),
        ("size_bytes", content.len().into()),
        ("member_count", 4.into()),
        ("missing", vec![2].into()),
        ("events", 500.into()),
        ("is_clean", true.into()),
        ("error", Value::Null),
    ] {
        assert_eq!(array[field], value, "{field} in {report:#}");
    }
    assert_eq!(array["members"][2]["state"], "412 events behind: left out");
    assert_eq!(array["members"][3]["slot"], 3);
    let said = uraid([OsStr::new("import")].into_iter().chain(members.iter().map(|path| path.as_os_str())));
    let text = said.success().text();
    assert!(text.starts_with("vault1: RAID 5 of 4 members, left-symmetric, in chunks of 64 KiB, "), "{text}");
    assert!(text.contains(&format!("{}: 412 events behind: left out", members[2].display())), "{text}");

    let server = serve(&directory, &[], &members);
    assert_same(&read_export(server.uri()), &content, "without the stale member");
    let _ = server.stop();
}

#[test]
fn one_of_several_arrays_is_chosen() {
    let directory = tempfile::tempdir().unwrap();
    let (five, six) = (RAID5.make(directory.path()), RAID6.make(directory.path()));
    let all = [five.members, six.members].concat();
    let said = refused(&[], &all).stderr;
    assert!(said.contains("several arrays") && said.contains("vault1") && said.contains("vault2"), "{said}");
    for (choice, content) in [
        (["--name", "vault1"], &five.content),
        (["--name", "host:vault2"], &six.content),
        (["--uuid", "02020202:02020202:02020202:02020202"], &six.content),
        (["--uuid", "01010101-0101-0101-0101-010101010101"], &five.content),
    ] {
        let server = serve(&directory, &choice, &all);
        assert_same(&read_export(server.uri()), content, choice[1]);
        let _ = server.stop();
    }
    assert!(refused(&["--name", "other"], &all).stderr.contains("no such array"));
}

#[test]
fn what_is_wrong_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, .. } = RAID5.make(directory.path());
    let nothing = directory.path().join("nothing");
    std::fs::write(&nothing, [0; 70000]).unwrap();
    assert!(refused(&[], std::slice::from_ref(&nothing)).stderr.contains("no member of Linux md was found"));
    let mut damaged = std::fs::read(&members[0]).unwrap();
    damaged[4096 + 33] ^= 1;
    std::fs::write(&nothing, &damaged).unwrap();
    assert!(refused(&[], std::slice::from_ref(&nothing)).stderr.contains("the checksum is"));
    std::fs::write(&nothing, &damaged[..100_000]).unwrap();
    let report = import(&[nothing, members[1].clone()]);
    assert!(report["troubles"][0]["reason"].as_str().unwrap().contains("is damaged"), "{report:#}");
    Recipe::change(&members[1], 208, &0_u64.to_le_bytes());
    Recipe::change(&members[1], 200, &501_u64.to_le_bytes());
    assert!(refused(&[], &members[1..]).stderr.contains("Start anyway with --force"));
    // A path that leads nowhere, or to what can't be read, is told of, and does not hide the rest.
    let (absent, directory) = (directory.path().join("absent"), directory.path().to_owned());
    let report = import(&[absent.clone(), members[0].clone(), directory.clone()]);
    let reason = |index: usize| report["troubles"][index]["reason"].as_str().unwrap();
    assert!(reason(0).contains("No such file") && reason(1).contains("neither a file nor a block device"));
    assert_eq!(report["arrays"][0]["members"].as_array().unwrap().len(), 1);
    assert!(refused(&[], &[absent, directory]).stderr.contains("can't be opened"));
    // Words that mean nothing to such an array.
    let spare = run(command(&["--spare", "x"], &members)).code_is(2).stderr;
    assert!(spare.contains("cannot be used with"), "{spare}");
}
