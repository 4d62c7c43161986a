//! fsx, the file system exerciser, on the file that `nbdfuse` makes of an array, where it may use any bytes, and in a
//! file system on that.
//!
//! It compares what it reads with what it wrote. The kernel may answer that from memory, so the array's content is
//! compared once more when all of it has left the kernel.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use uraid_tests::array::Array;
use uraid_tests::image::{assert_same, read_export};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::Disk;
use super::fuse::Fuse;

/// The seed of its draws, which it repeats exactly.
const SEED: &str = "1";

/// What goes without changing the size of a file. Now and then the kernel is advised to forget what it has.
const BYTES: &str = "
    blockmode = true
    flen = 3000000
    opsize = { max = 200000 }
    weights = { truncate = 0, read = 10, write = 10, mapread = 5, mapwrite = 5, fsync = 1, fdatasync = 1, \
                posix_fadvise = 10, punch_hole = 4, copy_file_range = 2, sendfile = 2 }";

/// All there is.
const FILE: &str = "
    flen = 3000000
    opsize = { max = 200000 }
    weights = { close_open = 2, truncate = 5, read = 10, write = 10, mapread = 5, mapwrite = 5, fsync = 2, \
                fdatasync = 2, posix_fadvise = 10, punch_hole = 4, posix_fallocate = 2, copy_file_range = 2, \
                sendfile = 2 }";

/// So many operations on a file, which must all go well.
fn exercise(array: &Array, file: &Path, config: &str, operations: &str) {
    let path = array.path("fsx.toml");
    fs::write(&path, config).unwrap();
    let directory = array.path("");
    let arguments = ["-S", SEED, "-N", operations, "-f", path.to_str().unwrap(), "-P", directory.to_str().unwrap()];
    let _ = client("fsx", arguments.iter().map(OsStr::new).chain([file.as_os_str()])).success();
}

#[test]
fn fsx_finds_nothing_in_the_file_of_an_array() {
    for (shape, absent) in [(shape::raid5_of_3(), &[1][..]), (shape::rm2_of_7_adjacent(), &[])] {
        let array = Array::create(&shape);
        array.remove(absent);
        let options: &[&str] = if absent.is_empty() { &[] } else { &["--degraded", "--cache", "none"] };
        let server = Server::start_members(&array, &array.without(absent), options);
        let fuse = Fuse::mount(array.path("disk"), [server.uri().into()]);
        exercise(&array, fuse.file(), BYTES, "1000");
        let seen = fs::read(fuse.file()).unwrap();
        assert_same(&read_export(server.uri()), &seen, "what is written is what the array has");
        drop(fuse);
        let _ = server.stop();
    }
}

#[test]
fn fsx_finds_nothing_in_a_file_system() {
    let array = Array::create_sized(&shape::rm2_of_7_adjacent(), 32 << 20);
    let server = Server::start_members(&array, array.members(), &["--cache-size", "2M"]);
    let disk = Disk::attach(&array, &server);
    let _ = client("mkfs.ext4", ["-q", &disk.device]).success();
    disk.mount();
    exercise(&array, &disk.mount_point.join("file"), FILE, "3000");
    let seen = disk.get("file");
    disk.unmount();
    disk.detach();
    let _ = server.stop();

    array.remove(&[0, 5]);
    let server = Server::start_members(&array, &array.without(&[0, 5]), &["--degraded"]);
    let disk = Disk::attach(&array, &server);
    disk.mount();
    assert_same(&disk.get("file"), &seen, "what fsx has left, without two members");
    exercise(&array, &disk.mount_point.join("other"), FILE, "1000");
    let other = disk.get("other");
    disk.unmount();
    disk.mount();
    assert_same(&disk.get("other"), &other, "what fsx has left in an array without two members");
    disk.unmount();
    disk.detach();
    let _ = server.stop();
}
