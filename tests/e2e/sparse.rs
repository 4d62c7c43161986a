//! What reads as zeros is told to clients, which then need not read it.

use std::ops::Range;
use std::time::{Duration, Instant};

use uraid_tests::array::{Array, Content, space};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

use crate::control::ask;

/// How long a server may take to find out what reads as zeros.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(60);

const DATA: u64 = 0;
const ZERO: u64 = 2;
const HOLE: u64 = 3;

fn shapes() -> [Shape; 4] {
    [shape::raid0_of_4(), shape::raid10_of_4(), shape::raid5_of_5_left_symmetric(), shape::rm2_of_7_adjacent()]
}

fn sparse(shape: &Shape) -> Array {
    let array = Array::planned(shape);
    let _ = array.run_create(shape::MEMBER_BYTES, &["--sparse"]).success();
    array
}

/// What `nbdinfo --map` prints: the status of each extent, as the protocol has it, and its bytes.
fn map(uri: &str) -> Vec<(u64, Range<u64>)> {
    let printed = client("nbdinfo", ["--map", "--json", uri]).success().json();
    let number = |extent: &serde_json::Value, key: &str| extent[key].as_u64().expect("a number");
    let extents = printed.as_array().expect("a list").iter();
    let extents = extents.map(|extent| {
        let start = number(extent, "offset");
        (number(extent, "type"), start..start + number(extent, "length"))
    });
    extents.collect()
}

fn status_of(map: &[(u64, Range<u64>)], byte: u64) -> u64 {
    map.iter().find(|(_, extent)| extent.contains(&byte)).expect("the map covers the export").0
}

/// The bytes of each status.
fn bytes_of(map: &[(u64, Range<u64>)], wanted: u64) -> u64 {
    map.iter().filter(|(status, _)| *status == wanted).map(|(_, extent)| extent.end - extent.start).sum()
}

#[test]
fn a_new_sparse_array_is_a_hole_and_a_page_of_content_makes_no_more_than_that_data() {
    for (shape, options) in
        shapes().iter().flat_map(|shape| [(shape, &[][..]), (shape, &["--connection-threads", "2"])])
    {
        let array = sparse(shape);
        let size = array.expected_size() as u64;
        let server = Server::start_members(&array, array.members(), options);
        let uri = server.uri();
        assert_eq!(map(uri), [(HOLE, 0..size)], "{}: a new array", shape.name);

        let at = size / 2 / 4096 * 4096 + 4096;
        let write = format!("write -P 0xc5 {at} 4k");
        let _ = client("qemu-io", ["-f", "raw", "-c", &write, "-c", "flush", uri]).success();
        let told = map(uri);
        assert_eq!(status_of(&told, at), DATA, "{}: {told:?}", shape.name);
        assert_eq!(bytes_of(&told, DATA), 4096, "{}: {told:?}", shape.name);

        let mut image = vec![0; size as usize];
        image[at as usize..][..4096].fill(0xc5);
        for (name, copy) in [("nbdcopy", array.path("nbdcopy.img")), ("qemu-img", array.path("qemu.img"))] {
            let to = copy.to_str().unwrap();
            let _ = match name {
                "nbdcopy" => client(name, [uri, to]).success(),
                _ => client(name, ["convert", "-f", "raw", "-O", "raw", uri, to]).success(),
            };
            assert_same(&std::fs::read(&copy).unwrap(), &image, name);
            assert!(space(&copy) <= 256 << 10, "{name} copied zeros: {} bytes", space(&copy));
        }
        let told = client("qemu-img", ["map", "--output=json", "-f", "raw", uri]).success().json();
        let data: Vec<_> = told.as_array().unwrap().iter().filter(|extent| extent["zero"] == false).collect();
        let is_page = data.len() == 1 && data[0]["start"] == at && data[0]["length"] == 4096;
        assert!(is_page, "{}: qemu-img map: {told:#}", shape.name);
        let _ = server.stop();
    }
}

#[test]
fn what_the_members_have_no_space_for_is_known_after_a_restart() {
    for shape in shapes() {
        let array = sparse(&shape);
        let size = array.expected_size() as u64;
        let at = size / 3 / 4096 * 4096;
        let server = Server::start(&array);
        let write = format!("write -P 0xc5 {at} 4k");
        let _ = client("qemu-io", ["-f", "raw", "-c", &write, server.uri()]).success();
        // Nothing is blank any more.
        let _ = ask(&array, &["wait"]).success();
        let _ = server.stop();

        let server = Server::start(&array);
        let begun = Instant::now();
        // A file system may give what is around it space, too.
        let told = loop {
            let told = map(server.uri());
            if bytes_of(&told, DATA) < size / 2 {
                break told;
            }
            assert!(begun.elapsed() < SEARCH_TIME_MAX, "{}: {told:?}", shape.name);
        };
        assert_eq!(status_of(&told, at), DATA, "{}: {told:?}", shape.name);
        let mut image = vec![0; size as usize];
        image[at as usize..][..4096].fill(0xc5);
        assert_same(&read_export(server.uri()), &image, shape.name);
        let _ = server.stop();
    }
}

#[test]
fn content_is_never_said_to_be_zeros() {
    for shape in shapes() {
        let array = sparse(&shape);
        let size = array.expected_size();
        let server = Server::start(&array);
        let image = Random::new(5).bytes(size);
        write_export(server.uri(), &image);
        assert_eq!(map(server.uri()), [(DATA, 0..size as u64)], "{}", shape.name);
        let zero = format!("write -z 1M {}", size - (2 << 20));
        let _ = client("qemu-io", ["-f", "raw", "-c", &zero, server.uri()]).success();
        let told = map(server.uri());
        assert_eq!((status_of(&told, 0), status_of(&told, size as u64 - 1)), (DATA, DATA), "{}", shape.name);
        assert!(bytes_of(&told, DATA) <= 2 << 20, "{}: {told:?}", shape.name);
        assert!(told.iter().any(|(status, _)| [ZERO, HOLE].contains(status)), "{}: {told:?}", shape.name);
        // Restarted, content that looks like nothing is content.
        let _ = server.stop();
        let server = Server::start(&array);
        let copy = read_export(server.uri());
        assert_same(&copy[..1 << 20], &image[..1 << 20], shape.name);
        assert!(copy[1 << 20..size - (1 << 20)].iter().all(|&byte| byte == 0), "{}", shape.name);
        let _ = server.stop();
    }
}

fn qemu_io(uri: &str, commands: &[String]) {
    let arguments = commands.iter().flat_map(|command| ["-c", command]);
    let _ = client("qemu-io", ["-f", "raw", "-d", "unmap"].into_iter().chain(arguments).chain([uri])).success();
}

#[test]
fn a_trim_reads_as_zeros_and_gives_space_back_and_zeros_do_not_take_it_again() {
    for shape in shapes() {
        let array = sparse(&shape);
        let size = array.expected_size();
        let server = Server::start(&array);
        let uri = server.uri();
        let mut image = Random::new(9).bytes(size);
        write_export(uri, &image);
        let full = array.space();

        // Neither end is at the border of anything.
        let (start, end) = (size / 8 + 1234, size / 8 * 7 - 77);
        qemu_io(uri, &[format!("discard {start} {}", end - start), String::from("flush")]);
        image[start..end].fill(0);
        assert_same(&read_export(uri), &image, shape.name);
        let (trimmed, told) = (array.space(), map(uri));
        let half = (end - start) as u64 / 2;
        assert!(trimmed + half <= full, "{}: {full} bytes became {trimmed}", shape.name);
        assert!(bytes_of(&told, HOLE) >= half, "{}: {told:?}", shape.name);

        // Zeros that need no space get none, and others do.
        let within = size / 4..size / 2;
        let zeros = format!("write -z -u {} {}", within.start, within.len());
        qemu_io(uri, &[zeros, String::from("flush")]);
        assert!(array.space() <= trimmed + (64 << 10), "{}: zeros took space", shape.name);
        let zeros = format!("write -z {} {}", within.start, within.len());
        qemu_io(uri, &[zeros, String::from("flush")]);
        let taken = array.space() - trimmed;
        assert!(taken >= (within.len() / 8 * 7) as u64, "{}: they were to have space, and got {taken}", shape.name);
        assert_same(&read_export(uri), &image, shape.name);
        let _ = server.stop();
        Content::read(&array).assert_holds(&image, shape.name);
    }
}

#[test]
fn a_sparse_image_takes_no_more_space_than_its_content() {
    let shape = shape::raid5_of_5_left_symmetric();
    let array = Array::planned(&shape);
    let _ = array.run_create(64 << 20, &["--sparse"]).success();
    let server = Server::start(&array);
    let source = array.path("source.img");
    let mut image = vec![0; 150 << 20];
    image[100 << 20..][..4096].fill(0xc5);
    let file = std::fs::File::create(&source).unwrap();
    file.set_len(image.len() as u64).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &image[100 << 20..][..4096], 100 << 20).unwrap();
    let before = array.space();
    for time in ["at first", "once more"] {
        let _ = client("nbdcopy", [source.to_str().unwrap(), server.uri()]).success();
        let taken = array.space() - before;
        assert!(taken <= 4 << 20, "{time} 4 KiB of content took {taken} bytes");
        let read = read_export(server.uri());
        assert_same(&read[..image.len()], &image, time);
    }
    // Nothing of it is blank afterwards.
    let _ = ask(&array, &["wait"]).success();
    let _ = client("nbdcopy", [source.to_str().unwrap(), server.uri()]).success();
    let taken = array.space() - before;
    assert!(taken <= 4 << 20, "4 KiB of content took {taken} bytes");
    let _ = server.stop();
}

/// What is not faster than writing is refused, and nothing of it done.
#[test]
fn fast_zeros_are_refused_where_they_would_be_written() {
    let shape = shape::raid5_of_5_left_symmetric();
    let array = sparse(&shape);
    let server = Server::start(&array);
    let uri = server.uri();
    let image = Random::new(9).bytes(array.expected_size());
    write_export(uri, &image);
    let fast = |offset: usize, len: usize| {
        let zeros = format!("write -z -u -n {offset} {len}");
        client("qemu-io", ["-f", "raw", "-d", "unmap", "-c", &zeros, uri])
    };
    for (offset, len) in [(0, 4096), (4096, 4 * shape.chunk_bytes())] {
        let refused = fast(offset, len).code_is(1);
        assert!(refused.text().contains("not supported"), "{len} at {offset}: {}", refused.text());
        assert_same(&read_export(uri), &image, "after what was refused");
    }
    let _ = fast(0, 4 << 20).success();
    assert!(read_export(uri)[..4 << 20].iter().all(|&byte| byte == 0));
    // They are there.
    let _ = fast(4096, 4096).success();
    let _ = server.stop();
}
