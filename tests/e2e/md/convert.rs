//! `uraid convert`: an array of Linux md becomes one of uraid where it is, and goes back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use uraid_tests::binary::{self, examine};
use uraid_tests::image::{assert_same, read_export, write_export};
use uraid_tests::process::Output;
use uraid_tests::run::run;
use uraid_tests::server::Server;

use super::image::{Made, Recipe};
use super::{RAID5, RAID6, import, without};

/// A member has 4 MiB at least.
const LARGE5: Recipe = Recipe { rows: 50, ..RAID5 };
const LARGE6: Recipe = Recipe { rows: 50, ..RAID6 };

fn convert(words: &[&str], members: &[PathBuf]) -> Output {
    let mut command = binary::command();
    command.arg("convert").args(words).args(members);
    run(command)
}

/// Converts members, with the undo file in the directory.
fn convert_keeping(directory: &TempDir, members: &[PathBuf]) -> PathBuf {
    let file = directory.path().join("undo");
    let _ = convert(&["--from-md", "--undo-file", file.to_str().unwrap()], members).success();
    file
}

fn take_back(file: &Path, members: &[PathBuf]) -> Output {
    convert(&["--undo", file.to_str().unwrap()], members)
}

#[track_caller]
fn refused(words: &[&str], members: &[PathBuf], why: &str) {
    let said = convert(words, members).code_is(1).stderr;
    assert!(said.contains(why), "{said}");
}

fn bytes(members: &[PathBuf]) -> Vec<Vec<u8>> {
    members.iter().map(|member| fs::read(member).unwrap()).collect()
}

#[track_caller]
fn serve(directory: &TempDir, words: &[&str], members: &[PathBuf]) -> Server {
    let socket = directory.path().join("own.sock");
    let mut command: Command = binary::command();
    command.args(["serve", "--socket", socket.to_str().unwrap()]).args(words).args(members);
    Server::spawn(command, socket).unwrap_or_else(|output| panic!("{}", output.stderr))
}

#[test]
fn content_stays_and_survives_as_many_members_as_before() {
    for (recipe, losses) in [(LARGE5, &[&[][..], &[1], &[3]][..]), (LARGE6, &[&[], &[0, 4], &[1, 2]])] {
        let directory = tempfile::tempdir().unwrap();
        let Made { members, content } = recipe.make(directory.path());
        let reversed: Vec<PathBuf> = members.iter().rev().cloned().collect();
        convert_keeping(&directory, &reversed);
        for lost in losses {
            let copies: Vec<PathBuf> = members.iter().map(|member| member.with_extension("copy")).collect();
            members.iter().zip(&copies).for_each(|(member, copy)| assert!(fs::copy(member, copy).unwrap() > 0));
            let words: &[&str] = if lost.is_empty() { &[] } else { &["--degraded"] };
            let server = serve(&directory, words, &without(&copies, lost));
            assert_same(&read_export(server.uri()), &content, &format!("{lost:?}"));
            let new: Vec<u8> = content.iter().map(|byte| !byte).collect();
            write_export(server.uri(), &new);
            let _ = server.stop();
            let server = serve(&directory, words, &without(&copies, lost));
            assert_same(&read_export(server.uri()), &new, &format!("written without {lost:?}"));
            let _ = server.stop();
        }
        assert_eq!(examine(&members)["name"], format!("vault{}", recipe.number));
    }
}

#[test]
fn it_goes_back_until_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, content } = LARGE5.make(directory.path());
    let before = bytes(&members);
    let file = convert_keeping(&directory, &members);
    assert!(bytes(&members) != before);
    let said = run({
        let mut command = binary::command();
        command.arg("import").args(&members);
        command
    });
    assert!(said.code_is(1).stderr.contains("no member of Linux md"), "Linux takes them for its own no more");
    let _ = take_back(&file, &[]).success();
    assert!(bytes(&members) == before);
    assert_eq!(import(&members)["arrays"][0]["error"], serde_json::Value::Null);

    fs::remove_file(&file).unwrap();
    let names: Vec<PathBuf> = members.iter().map(|member| member.file_name().unwrap().into()).collect();
    let mut command = binary::command();
    command.current_dir(&directory).args(["convert", "--from-md", "--undo-file", "undo"]).args(&names);
    let _ = run(command).success();
    // From another directory.
    let _ = take_back(&file, &[]).success();
    assert!(bytes(&members) == before);

    fs::remove_file(&file).unwrap();
    convert_keeping(&directory, &members);
    // Devices may have other names after the next start.
    let moved: Vec<PathBuf> = members.iter().rev().map(|member| member.with_extension("moved")).collect();
    members.iter().rev().zip(&moved).for_each(|(member, to)| fs::rename(member, to).unwrap());
    assert!(take_back(&file, &moved[1..]).code_is(1).stderr.contains("is not among the members"));
    let _ = take_back(&file, &moved).success();
    moved.iter().zip(members.iter().rev()).for_each(|(moved, member)| fs::rename(moved, member).unwrap());
    assert!(bytes(&members) == before);

    fs::remove_file(&file).unwrap();
    convert_keeping(&directory, &members);
    let server = serve(&directory, &[], &members);
    assert_same(&read_export(server.uri()), &content, "converted");
    let _ = server.stop();
    let _ = take_back(&file, &[]).success();
    assert!(bytes(&members) == before, "reading changes nothing");

    fs::remove_file(&file).unwrap();
    convert_keeping(&directory, &members);
    let server = serve(&directory, &[], &members);
    server.connect().write(0, &[1; 512]);
    let _ = server.stop();
    let after = bytes(&members);
    assert!(take_back(&file, &[]).code_is(1).stderr.contains("was written since"));
    assert!(bytes(&members) == after, "nothing is written then");
    let mut cut = fs::read(&file).unwrap();
    cut.pop();
    fs::write(&file, cut).unwrap();
    assert!(take_back(&file, &[]).code_is(1).stderr.contains("was changed or cut"));
}

#[test]
fn going_back_is_not_rehearsed() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, .. } = LARGE5.make(directory.path());
    let file = convert_keeping(&directory, &members);
    let before = bytes(&members);
    let words = ["--rehearse", "--undo", file.to_str().unwrap()];
    assert!(convert(&words, &[]).code_is(2).stderr.contains("cannot be used with"));
    assert!(bytes(&members) == before);
}

#[test]
fn members_that_are_served_are_not_converted() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, content } = LARGE5.make(directory.path());
    let (before, file) = (bytes(&members), directory.path().join("undo"));
    let words = ["--from-md", "--undo-file", file.to_str().unwrap()];
    let server = serve(&directory, &["--md"], &members);
    refused(&words, &members, "in use");
    assert!(bytes(&members) == before && !file.exists());
    assert_same(&read_export(server.uri()), &content, "as it was");
    let _ = server.stop();
    let _ = convert(&words, &members).success();
}

/// The next attempt may have the same name.
#[test]
fn an_undo_file_that_has_no_room_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, .. } = LARGE5.make(directory.path());
    let (before, file) = (bytes(&members), directory.path().join("undo"));
    let mut command = Command::new("bash");
    // Files may have 100 KiB; what is written beyond that is an error.
    command.args(["-c", r#"trap '' XFSZ; ulimit -f 100; exec "$@""#, "bash"]);
    command.arg(binary::command().get_program()).args(["convert", "--from-md", "--undo-file"]);
    command.arg(&file).args(&members);
    let said = run(command).code_is(1).stderr;
    assert!(said.contains("can't write"), "{said}");
    assert!(bytes(&members) == before && !file.exists());
    convert_keeping(&directory, &members);
}

#[test]
fn a_rehearsal_writes_nothing_and_finds_parity_that_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let Made { members, content } = LARGE6.make(directory.path());
    let rehearse = || convert(&["--from-md", "--rehearse", "--json"], &members).success().json();
    let before = bytes(&members);
    let report = rehearse();
    for (field, value) in [
        ("level", "RAID 6".into()),
        ("size", content.len().into()),
        ("consistency", "log".into()),
        ("is_done", false.into()),
        ("stripes", 50.into()),
        ("disagreeing", serde_json::Value::from(0)),
    ] {
        assert_eq!(report[field], value, "{field}: {report:#}");
    }
    assert!(bytes(&members) == before);
    // Data of two stripes, and a parity of a third.
    let mut changed = before[2].clone();
    [0, 3, 4].into_iter().for_each(|row| changed[(1 << 20) + row * 65536 + 100] ^= 4);
    fs::write(&members[2], changed).unwrap();
    assert_eq!(rehearse()["disagreeing"], 3);
}

#[test]
fn what_is_not_whole_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("undo");
    let words = ["--from-md", "--undo-file", file.to_str().unwrap()];
    let Made { members, .. } = LARGE5.make(directory.path());
    let before = bytes(&members);
    refused(&words, &members[1..], "the array is degraded");
    let old = Recipe { is_old: true, number: 7, ..LARGE5 }.make(directory.path()).members;
    refused(&words, &old, "its data begin at byte 0");
    let other = Recipe { number: 8, ..LARGE5 }.make(directory.path()).members;
    assert!(convert(&words, &[members.clone(), other].concat()).code_is(2).stderr.contains("several arrays"));
    let nothing = directory.path().join("nothing");
    fs::write(&nothing, vec![0; 5 << 20]).unwrap();
    refused(&words, &[members.clone(), vec![nothing]].concat(), "is no member of Linux md");
    Recipe::change(&members[1], 208, &0_u64.to_le_bytes());
    Recipe::change(&members[1], 200, &501_u64.to_le_bytes());
    refused(&words, &members, "was not stopped cleanly");
    fs::write(&members[1], &before[1]).unwrap();
    // What is on record as unreadable, in the list whose place the superblock says.
    Recipe::change(&members[2], 8, &8_u32.to_le_bytes());
    Recipe::change(&members[2], 184, &[0, 0, 8, 0, 16, 0, 0, 0]);
    let mut listed = fs::read(&members[2]).unwrap();
    listed[12288..12288 + 4096].fill(0xff);
    listed[12288..12296].copy_from_slice(&(100_u64 << 10 | 8).to_le_bytes());
    fs::write(&members[2], listed).unwrap();
    refused(&words, &members, "has bad blocks on record");
    fs::write(&members[2], &before[2]).unwrap();
    let spare = directory.path().join("spare");
    fs::write(&spare, LARGE5.newer(4, vec![0; 50 * 65536])).unwrap();
    refused(&words, &[members.clone(), vec![spare]].concat(), "name members that have all of the content");
    // Its only partition begins after 1 MiB.
    let (disk, mut partitioned) = (directory.path().join("disk"), vec![0; 1 << 20]);
    partitioned[446 + 4] = 0xfd;
    partitioned[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    partitioned[446 + 12..446 + 16].copy_from_slice(&(before[0].len() as u32 / 512).to_le_bytes());
    partitioned[510..512].copy_from_slice(&[0x55, 0xaa]);
    partitioned.extend(&before[0]);
    fs::write(&disk, partitioned).unwrap();
    refused(&words, &[vec![disk], members[1..].to_vec()].concat(), "are in partitions");
    // Parity first: a layout of md that no array here has.
    members.iter().for_each(|member| Recipe::change(member, 76, &4_u32.to_le_bytes()));
    refused(&words, &members, "is no level here");
    members.iter().zip(&before).for_each(|(member, bytes)| fs::write(member, bytes).unwrap());
    for (level, layout, why) in [(10_u32, 0x0201_u32, "is no level here"), (0, 0, "differ in size")] {
        for member in &members {
            Recipe::change(member, 72, &level.to_le_bytes());
            Recipe::change(member, 76, &layout.to_le_bytes());
        }
        if level == 0 {
            Recipe::change(&members[3], 136, &(49 * 128_u64).to_le_bytes());
        }
        refused(&words, &members, why);
        members.iter().zip(&before).for_each(|(member, bytes)| fs::write(member, bytes).unwrap());
    }
    // The file that is to keep what is overwritten is there already.
    fs::write(&file, "mine").unwrap();
    refused(&words, &members, "can't write");
    assert!(bytes(&members) == before && fs::read(&file).unwrap() == b"mine");
}
