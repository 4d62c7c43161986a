//! Members with sectors of 4096 bytes: loop devices, which take root.

use std::fs;
use std::path::{Path, PathBuf};

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use crate::control::{ask, status};

/// A file as a device; taken down when dropped.
struct Loop {
    device: PathBuf,
}

impl Loop {
    fn of(file: &Path, sector_size: &str) -> Self {
        let words = ["--find", "--show", "--sector-size", sector_size, file.to_str().unwrap()];
        let device = client("losetup", words).success().text().trim().into();
        Self { device }
    }

    fn path(&self) -> &str {
        self.device.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = client("losetup", ["--detach", self.path()]);
    }
}

/// A blank device of the size of a member.
fn blank(array: &Array, name: &str, sector_size: &str) -> (PathBuf, Loop) {
    let file = array.path(name);
    fs::write(&file, vec![0; MEMBER_BYTES]).unwrap();
    let device = Loop::of(&file, sector_size);
    (file, device)
}

/// Asserts that a client may write and read less than a sector, and that nothing beside it changes.
fn assert_takes_bytes(server: &Server) {
    let mut client = server.connect();
    assert_eq!(client.block_sizes().map(|[smallest, ..]| smallest), Some(1));
    let mut expected = client.read(0, 8192);
    for (at, len) in [(100, 17), (4000, 200), (511, 2)] {
        let bytes = Random::new(at as u64).bytes(len);
        client.write(at, &bytes);
        expected[at..at + len].copy_from_slice(&bytes);
        assert_same(&client.read(at, len), &bytes, "what was written");
    }
    assert_same(&client.read(0, 8192), &expected, "what is around it");
    client.disconnect();
}

/// A member that has to be written in larger pieces is refused by whatever would take it in, and not written.
#[test]
fn larger_sectors_than_the_arrays_are_refused_before_anything_is_written() {
    let array = Array::create(&shape::raid5_of_3());
    assert_eq!(array.examine()["sector_size"], 512);
    let (file, large) = blank(&array, "large", "4096");
    let is_blank = || fs::read(&file).unwrap().iter().all(|&byte| byte == 0);

    // As a spare it keeps nobody from being served.
    let server = Server::start_members(&array, array.members(), &["--spare", large.path()]);
    let problem = status(&array)["spares"][0]["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("sectors of 4096 bytes"), "{problem}");
    let _ = ask(&array, &["remove", large.path()]).success();
    let image = Random::new(5).bytes(array.expected_size());
    write_export(server.uri(), &image);
    for words in
        [&["replace", "1", large.path()][..], &["replace", "1", large.path(), "--force"], &["add", large.path()]]
    {
        let refusal = ask(&array, words).code_is(1).stderr;
        assert!(refusal.contains("sectors of 4096 bytes"), "{words:?}: {refusal}");
    }
    let _ = ask(&array, &["fail", "1"]).success();
    for words in [&["add", large.path()][..], &["add", large.path(), "--force"]] {
        let refusal = ask(&array, words).code_is(1).stderr;
        assert!(refusal.contains("sectors of 4096 bytes"), "{words:?}: {refusal}");
    }
    assert!(is_blank(), "what is refused is not written");
    // One with small sectors is welcome.
    let (_, small) = blank(&array, "small", "512");
    let _ = ask(&array, &["add", small.path()]).success();
    let _ = ask(&array, &["wait"]).success();
    assert_same(&read_export(server.uri()), &image, "on the new member");
    assert_takes_bytes(&server);
    let _ = server.stop();
}

/// A member whose content was copied to a device with larger sectors.
#[test]
fn a_member_that_was_moved_to_larger_sectors_is_refused_by_name() {
    let array = Array::create(&shape::raid5_of_3());
    let copied = array.path("copied");
    fs::copy(&array.members()[1], &copied).unwrap();
    let device = Loop::of(&copied, "4096");
    let members = [array.members()[0].clone(), device.device.clone(), array.members()[2].clone()];
    let refusal = Server::refused(&array, &members, &[]).stderr;
    assert!(refusal.contains(device.path()) && refusal.contains("start without it, with --degraded"), "{refusal}");
    assert!(fs::read(&copied).unwrap() == fs::read(&array.members()[1]).unwrap(), "it is not written");
    let _ = Server::start_members(&array, &array.without(&[1]), &["--degraded"]).stop();
}

/// The largest sectors of any member are the array's, for ever, and all sorts of members suit it.
#[test]
fn an_array_of_unequal_sectors_has_the_largest_and_keeps_them() {
    let array = Array::planned(&shape::raid5_of_3());
    let (_, large) = blank(&array, "large", "4096");
    let (_, small) = blank(&array, "small", "512");
    let members: Vec<PathBuf> = vec![array.members()[0].clone(), large.device.clone(), small.device.clone()];
    let mut words: Vec<String> = vec!["create".into()];
    words.extend(array.shape.options());
    words.extend(["--size".into(), format!("{}M", MEMBER_BYTES >> 20)]);
    words.extend(members.iter().map(|member| member.to_str().unwrap().to_owned()));
    let _ = binary::uraid(words).success();
    assert_eq!(binary::examine(&members)["sector_size"], 4096);

    let server = Server::start_members(&array, &members, &[]);
    assert_takes_bytes(&server);
    let mut client = server.connect();
    let data = Random::new(6).bytes(4096);
    for at in (0..1 << 20).step_by(36 << 10) {
        client.write(at, &data);
    }
    client.flush();
    client.disconnect();
    // Another device with small sectors takes the large one's place.
    let (_, other) = blank(&array, "other", "512");
    let _ = ask(&array, &["replace", "1", other.path()]).success();
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    drop(large);
    let members: Vec<PathBuf> = vec![members[0].clone(), other.device.clone(), small.device.clone()];
    let server = Server::start_members(&array, &members, &[]);
    let _ = ask(&array, &["fail", "0"]).success();
    let mut client = server.connect();
    for at in (0..1 << 20).step_by(36 << 10) {
        assert_same(&client.read(at, 4096), &data, "without a member");
    }
    client.disconnect();
    let _ = server.stop();
}
