//! The clients that people use. They come with Debian's libnbd-bin and qemu-utils.

use std::{
    ffi::OsStr,
    fs,
    process::{Command, Output},
    sync::atomic::Ordering::SeqCst,
};

use uraid_nbd::{ExportInfo, Limits};

use crate::{
    memory::{Finish, SIZE_BYTES, info},
    support::TestServer,
};

fn run(program: &str, arguments: &[impl AsRef<OsStr>]) -> Output {
    let output = Command::new(program).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}: install libnbd-bin and qemu-utils"))
}

fn succeed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{stdout}{stderr}", output.status);
    assert_eq!(stderr, "", "{program} {arguments:?}");
    stdout.into_owned()
}

fn server() -> TestServer {
    TestServer::start(Finish::Later)
}

#[test]
fn nbdinfo_reads_what_is_served() {
    let server = server();
    let told = succeed("nbdinfo", &["--json", &server.uri]);
    for fact in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"TLS\": false",
        "\"structured\": true",
        "\"export-name\": \"mem\"",
        "\"description\": \"memory of a test\"",
        "\"base:allocation\"",
        "\"is_read_only\": false",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 4194304",
        "\"export-size\": 8388608",
    ] {
        assert!(told.contains(fact), "{fact} is missing:\n{told}");
    }
    let default = format!("nbd+unix:///?socket={}", server.socket.display());
    assert_eq!(succeed("nbdinfo", &["--size", &default]).trim(), SIZE_BYTES.to_string());
    assert!(succeed("nbdinfo", &["--list", &default]).contains("export=\"mem\""));
    let unknown = format!("nbd+unix:///other?socket={}", server.socket.display());
    assert!(!run("nbdinfo", &[unknown]).status.success());
}

#[test]
fn nbdinfo_sees_a_read_only_export() {
    let server = TestServer::with(Finish::AtOnce, ExportInfo { read_only: true, ..info() }, Limits::default());
    succeed("nbdinfo", &["--is", "read-only", &server.uri]);
    assert!(!run("nbdinfo", &["--is", "rotational", &server.uri]).status.success());
    assert!(!run("nbdinfo", &["--can", "trim", &server.uri]).status.success());
}

#[test]
fn nbdinfo_sees_an_export_that_rotates() {
    let server = TestServer::with(Finish::AtOnce, ExportInfo { rotational: true, ..info() }, Limits::default());
    succeed("nbdinfo", &["--is", "rotational", &server.uri]);
}

#[test]
fn nbdcopy_brings_back_what_it_took() {
    let server = server();
    let (original, copy) = (server.directory.path().join("original"), server.directory.path().join("copy"));
    let mut bytes: Vec<u8> =
        (0..SIZE_BYTES as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bytes[1 << 20..3 << 20].fill(0); // a hole for block status to find
    fs::write(&original, &bytes).unwrap();
    let connections = ["--connections=4", "--flush"];
    succeed("nbdcopy", &[connections[0], connections[1], original.to_str().unwrap(), &server.uri]);
    succeed("nbdcopy", &[connections[0], &server.uri, copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == bytes, "the copy differs");
    let map = succeed("nbdinfo", &["--map", &server.uri]);
    let extents: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(extents.len(), 3, "{map}");
    assert_eq!(extents[1][..3], ["1048576", "2097152", "3"], "{map}");
    let counts = server.counts.clone();
    assert!(server.stop_and_join());
    assert_eq!(counts.buffers_live.load(SeqCst), 0);
}

#[test]
fn qemu_img_converts_and_compares() {
    let server = server();
    let original = server.directory.path().join("original");
    let bytes: Vec<u8> = (0..SIZE_BYTES as u32).map(|index| (index >> 9) as u8).collect();
    fs::write(&original, &bytes).unwrap();
    let original = original.to_str().unwrap();
    succeed("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", original, &server.uri]);
    let told = succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", original, &server.uri]);
    assert!(told.contains("Images are identical."), "{told}");
    assert!(succeed("qemu-img", &["info", &server.uri]).contains("virtual size: 8 MiB (8388608 bytes)"));
}

#[test]
fn qemu_io_writes_zeroes_and_discards() {
    let server = server();
    let script = [
        "write -P 0x5a 0 2M",
        "write -f -P 0x11 1M 4k",
        "write -z -u 64k 64k",
        "write -z 256k 4k",
        "discard 512k 64k",
        "flush",
        "read -P 0x5a 0 64k",
        "read -P 0 64k 64k",
        "read -P 0 256k 4k",
        "read -P 0 512k 64k",
        "read -P 0x11 1M 4k",
        "aio_write -P 0x22 4M 1M",
        "aio_write -P 0x33 5M 1M",
        "aio_flush",
        "read -P 0x22 4M 1M",
        "read -P 0x33 5M 1M",
    ];
    let mut arguments = vec!["-f", "raw"];
    script.iter().for_each(|line| arguments.extend(["-c", line]));
    arguments.push(&server.uri);
    let told = succeed("qemu-io", &arguments);
    assert!(!told.contains("failed"), "{told}");
    assert_eq!(told.matches("read ").count(), 7, "{told}");
    // The pattern check itself works.
    assert!(!run("qemu-io", &["-f", "raw", "-c", "read -P 0x77 0 4k", &server.uri]).status.success());
}
