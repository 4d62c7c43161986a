//! Every level with every foreign client: what one writes, another reads, and the members hold it where they should.

use std::os::unix::fs::MetadataExt as _;

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

uraid_tests::for_every_shape!(clients_agree);

fn clients_agree(shape: &Shape) {
    let array = Array::create(shape);
    let size = array.expected_size();
    let examined = array.examine();
    assert_eq!(examined["size"].as_u64(), Some(size as u64), "{}: size from the level's formula", shape.name);
    assert_eq!(examined["chunk"].as_u64(), Some(shape.chunk_bytes() as u64), "{}: chunk", shape.name);

    let server = Server::start(&array);
    let uri = server.uri();
    assert_facts(uri, size);
    assert!(read_export(uri).iter().all(|&byte| byte == 0), "{}: a new array reads as zeroes", shape.name);

    let mut image = Random::new(7).bytes(size);
    let source = array.path("source.img");
    std::fs::write(&source, &image).unwrap();
    write_export(uri, &image);
    let source = source.to_str().unwrap();
    let copy = array.path("copy.img");
    let copy = copy.to_str().unwrap();
    let _ = client("qemu-img", ["convert", "-f", "raw", "-O", "raw", uri, copy]).success();
    assert_same(&std::fs::read(copy).unwrap(), &image, "written by nbdcopy, read by qemu-img convert");
    let _ = client("qemu-img", ["compare", "-f", "raw", "-F", "raw", source, uri]).success();

    write_patterns_with_qemu_io(uri, &mut image, shape.chunk_bytes());
    assert_same(&read_export(uri), &image, "written by qemu-io, read by nbdcopy");
    let differing = client("qemu-img", ["compare", "-f", "raw", "-F", "raw", source, uri]).code_is(1);
    assert!(differing.text().contains("mismatch"), "qemu-img compare sees what qemu-io wrote: {}", differing.text());

    let _ = server.stop();
    Content::read(&array).assert_holds(&image, shape.name);
    assert_eq!(array.examine()["missing"].as_array().map(Vec::len), Some(0), "{}: nobody is missing", shape.name);
}

fn assert_facts(uri: &str, size: usize) {
    let printed = client("nbdinfo", ["--size", uri]).success().text();
    assert_eq!(printed.trim().parse(), Ok(size), "nbdinfo --size");

    let info = client("nbdinfo", ["--json", uri]).success().json();
    let export = &info["exports"][0];
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    assert_eq!(export["export-size"].as_u64(), Some(size as u64));
    assert_eq!(export["is_read_only"], false);
    for ability in ["can_flush", "can_fua", "can_trim", "can_zero", "can_fast_zero", "can_multi_conn", "can_cache"] {
        assert_eq!(export[ability], true, "{ability} in {export:#}");
    }
    let smallest = export["block_size_minimum"].as_u64().expect("a smallest request");
    let largest = export["block_size_maximum"].as_u64().expect("a largest request");
    assert!(smallest <= 512 && largest >= 1 << 20, "block sizes in {export:#}");

    let map = client("nbdinfo", ["--map", "--json", uri]).success().json();
    let extents = map.as_array().expect("nbdinfo --map prints a list");
    let lengths = extents.iter().map(|extent| extent["length"].as_u64().expect("an extent has a length"));
    assert_eq!(lengths.sum::<u64>(), size as u64, "the extents cover the export");

    let list = client("nbdinfo", ["--list", "--json", uri]).success().json();
    assert_eq!(list["exports"].as_array().map(Vec::len), Some(1), "one export is listed: {list:#}");
    assert_eq!(list["exports"][0]["export-size"].as_u64(), Some(size as u64));
}

/// Patterns inside a chunk, across chunks, over several stripes, at both ends; zeroes and a discard at the end.
fn write_patterns_with_qemu_io(uri: &str, image: &mut [u8], chunk: usize) {
    let size = image.len();
    let writes = [
        (0xa1, 0, 512),
        (0xa2, chunk - 512, 1024),
        (0xa3, 3 * chunk / 2 / 512 * 512, chunk),
        (0xa4, 5 * chunk, 7 * chunk / 2 / 512 * 512),
        (0xa5, size - 4096, 4096),
        (0x00, 2 * chunk, chunk / 2 / 512 * 512),
    ];
    let mut arguments = vec![String::from("-f"), String::from("raw")];
    for (byte, offset, length) in writes {
        let write = if byte == 0 { String::from("write -z") } else { format!("write -P {byte:#x}") };
        arguments.extend([String::from("-c"), format!("{write} {offset} {length}")]);
        image[offset..offset + length].fill(byte);
    }
    for (byte, offset, length) in [writes[1], writes[4], writes[5]] {
        arguments.extend([String::from("-c"), format!("read -P {byte:#x} {offset} {length}")]);
    }
    arguments.extend([String::from("-c"), String::from("flush"), uri.to_owned()]);
    let output = client("qemu-io", &arguments).success();
    assert!(!output.text().contains("verification failed"), "{}", output.text());
}

#[test]
fn a_server_says_whether_its_members_rotate() {
    let array = Array::create(&shape::raid1_of_2());
    let device = array.members()[0].metadata().unwrap().dev();
    let place = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let queues = ["queue", "../queue"].map(|queue| std::fs::read_to_string(format!("{place}/{queue}/rotational")));
    let rotates = queues.into_iter().flatten().any(|said| said.trim() == "1");
    let server = Server::start(&array);
    let told = client("nbdinfo", ["--json", server.uri()]).success().json();
    assert_eq!(told["exports"][0]["is_rotational"], rotates, "{place}: {told:#}");
    let _ = server.stop();
}

#[test]
fn nbd_client_lists_a_tcp_export() {
    let array = Array::create(&shape::raid5_of_3());
    let options = ["--listen", "127.0.0.1:0", "--export", "disk"];
    let server = Server::start_members(&array, array.members(), &options);
    let address = server.uri().strip_prefix("nbd://").expect("a TCP URI");
    let (address, export) = address.split_once('/').expect("a URI that names the export");
    let (host, port) = address.rsplit_once(':').expect("a URI that names the port");
    assert_eq!((host, export), ("127.0.0.1", "disk"));
    let listed = client("nbd-client", ["-l", host, port]).success().text();
    assert!(listed.lines().any(|line| line.split(':').next() == Some("disk")), "{listed}");

    let mut random = Random::new(8);
    let image = random.bytes(array.expected_size());
    write_export(server.uri(), &image);
    assert_same(&read_export(server.uri()), &image, "over TCP");
    let _ = client("nbdinfo", ["--size", &format!("nbd://{address}/other")]).code_is(1);
    assert_same(&read_export(server.uri()), &image, "after a client asked for another export");
    let _ = server.stop();
}

#[test]
fn a_server_listens_on_a_port_or_a_name_of_this_machine() {
    let array = Array::create(&shape::raid1_of_2());
    for (listen, hosts) in [("0", &["127.0.0.1:"][..]), ("localhost:0", &["127.0.0.1:", "[::1]:"])] {
        let server = Server::start_members(&array, array.members(), &["--listen", listen]);
        let address = server.uri().strip_prefix("nbd://").expect("a TCP URI");
        assert!(hosts.iter().any(|host| address.starts_with(host)), "{listen}: {address}");
        let _ = client("nbdinfo", ["--size", server.uri()]).success();
        let _ = server.stop();
    }
}

#[test]
fn where_nobody_can_listen_is_refused_before_anything_is_written() {
    let array = Array::create(&shape::raid1_of_2());
    let before: Vec<Vec<u8>> = array.members().iter().map(|member| std::fs::read(member).unwrap()).collect();
    let refused = Server::refused(&array, array.members(), &["--listen", "no-such-host.invalid:10809"]);
    assert!(refused.stderr.contains("no-such-host.invalid") && refused.stderr.contains("/etc/hosts"), "{refused:?}");
    let refused = Server::try_start(&array, array.members(), &["--listen", "::1"]).unwrap_err().code_is(2);
    assert!(refused.stderr.contains("[::1]:10809"), "{refused:?}");
    let after: Vec<Vec<u8>> = array.members().iter().map(|member| std::fs::read(member).unwrap()).collect();
    assert!(before == after);
}

#[test]
fn the_server_prints_lines_for_its_clients() {
    use std::os::unix::fs::PermissionsExt as _;

    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mode = std::fs::metadata(server.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the socket is its owner's");
    let uri = server.uri().to_owned();
    let printed = server.stop().join("\n");
    for program in ["nbd-client", "qemu-img", "fio"] {
        assert!(printed.contains(program), "a line for {program} in:\n{printed}");
    }
    assert!(printed.contains(&uri), "the lines name {uri}:\n{printed}");
}
