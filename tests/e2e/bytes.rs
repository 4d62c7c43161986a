//! Requests of any bytes, by our own client and by others.

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::{Client, Command, error};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

const MEMBER_BYTES: usize = 8 << 20;
const REQUESTS: usize = 150;

/// With every cache, with checksums, and without members.
const MODES: [(&[&str], &[&str], bool); 5] = [
    (&[], &[], false),
    (&[], &["--cache", "none"], false),
    (&[], &["--cache", "writethrough"], true),
    (&["--integrity", "crc32"], &[], true),
    (&["--integrity", "crc32"], &["--cache", "none"], false),
];

uraid_tests::for_every_shape!(takes_any_bytes);

fn takes_any_bytes(shape: &Shape) {
    for (create, serve, is_degraded) in MODES {
        let what = format!("{} {create:?} {serve:?}", shape.name);
        let array = Array::planned(shape);
        let _ = array.run_create(MEMBER_BYTES, create).success();
        let mut model = Random::new(1).bytes(array.expected_size());
        let server = Server::start_members(&array, array.members(), serve);
        write_export(server.uri(), &model);
        let _ = server.stop();
        let absent = shape.tolerated.last().filter(|_| is_degraded);
        let absent = absent.map_or(&[][..], Vec::as_slice);
        let serve: Vec<&str> = serve.iter().copied().chain((!absent.is_empty()).then_some("--degraded")).collect();
        let server = Server::start_members(&array, &array.without(absent), &serve);
        write_bytes(&server, &mut model, &what);
        assert_same(&read_export(server.uri()), &model, &what);
        let _ = server.stop();
        let server = Server::start_members(&array, &array.without(absent), &serve);
        assert_same(&read_export(server.uri()), &model, &format!("{what}, served again"));
        let _ = server.stop();
        if absent.is_empty() {
            Content::read(&array).assert_holds(&model, &what);
        }
    }
}

/// By two clients in turn, within little space, so that they come across each other's sectors.
fn write_bytes(server: &Server, model: &mut [u8], what: &str) {
    let mut clients = [server.connect(), server.connect()];
    let mut random = Random::new(2);
    let mut draw = |below: usize| usize::from_le_bytes(random.bytes(8).try_into().unwrap()) % below;
    let window = model.len().min(200 << 10);
    for turn in 0..REQUESTS {
        let client = &mut clients[draw(2)];
        let at = draw(window);
        let len = 1 + draw((window - at).min(20_000));
        let size = u32::try_from(len).unwrap();
        match draw(4) {
            0 => assert_same(&client.read(at, len), &model[at..at + len], &format!("{what}: {len} at {at}")),
            1 => {
                assert_eq!(client.call(Command::WriteZeroes, at as u64, size, &[]).error, 0, "{what}: {len} at {at}");
                model[at..at + len].fill(0);
            }
            2 if turn % 8 == 0 => client.flush(),
            _ => {
                let bytes = Random::new(turn as u64).bytes(len);
                client.write(at, &bytes);
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
    }
    clients.into_iter().for_each(Client::disconnect);
}

/// A trim of any bytes leaves what is around it; what it covers is zeros.
#[test]
fn a_trim_of_any_bytes_leaves_the_rest() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let mut image = Random::new(3).bytes(array.expected_size());
    write_export(server.uri(), &image);
    let mut client = server.connect();
    for (at, len) in [(1, 100), (1000, 600_000), (511, 1), (700_001, 300_001)] {
        assert_eq!(client.call(Command::Trim, at as u64, len as u32, &[]).error, 0, "{len} at {at}");
        image[at..at + len].fill(0);
    }
    assert_same(&read_export(server.uri()), &image, "after trims");
    client.disconnect();
    let _ = server.stop();
}

#[test]
fn bytes_beyond_the_end_are_refused() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let mut client = server.connect();
    let end = client.size();
    for (at, len) in [(end - 1, 2_u32), (end, 1), (u64::MAX, 1)] {
        assert_eq!(client.call(Command::Read, at, len, &[]).error, error::EINVAL, "{len} at {at}");
        assert_eq!(client.call(Command::Write, at, len, &[1, 2][..len as usize]).error, error::ENOSPC, "{len} at {at}");
    }
    client.disconnect();
    let _ = server.stop();
}

/// What other clients do that are not bound to sectors: `nbdcopy` of a file of any size, `qemu-io` anywhere.
#[test]
fn other_clients_write_any_bytes() {
    let array = Array::create(&shape::rm2_of_6());
    let server = Server::start(&array);
    let mut model = Random::new(4).bytes(array.expected_size());
    write_export(server.uri(), &model);

    let file = array.path("odd");
    let odd = Random::new(5).bytes(100_003);
    std::fs::write(&file, &odd).unwrap();
    let _ = client("nbdcopy", [file.to_str().unwrap(), server.uri()]).success();
    model[..odd.len()].copy_from_slice(&odd);
    assert_same(&read_export(server.uri()), &model, "after nbdcopy");

    let words = ["write -P 0x5a 100 700", "write -P 0x33 4095 4098", "write -z 200003 5001", "read -P 0x5a 100 700"];
    let words = words.iter().flat_map(|word| ["-c", word]);
    let _ = client("qemu-io", ["-f", "raw"].into_iter().chain(words).chain([server.uri()])).success();
    model[100..800].fill(0x5a);
    model[4095..8193].fill(0x33);
    model[200_003..205_004].fill(0);
    assert_same(&read_export(server.uri()), &model, "after qemu-io");
    let _ = server.stop();
}
