//! What each cache mode promises: reads see writes, a flush survives a kill, a clean stop leaves nothing in memory.

use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export};
use uraid_tests::nbd::Client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

/// Every mode; write-back also with so little memory that content is always on its way out, or written through.
const MODES: [&[&str]; 5] = [
    &["--cache", "writeback"],
    &["--cache", "writeback", "--cache-size", "512K"],
    &["--cache", "writeback", "--cache-size", "0"],
    &["--cache", "writethrough", "--cache-size", "1M"],
    &["--cache", "none"],
];

mod modes {
    uraid_tests::for_every_shape!(super::every_mode_keeps_its_promises);
}

/// The caches are far smaller; a log for chunks of 1 MiB takes half of it.
const MEMBER_BYTES: usize = 8 << 20;

fn every_mode_keeps_its_promises(shape: &Shape) {
    let array = Array::create_sized(shape, MEMBER_BYTES);
    let mut random = Random::new(61);
    let mut model = vec![0; array.expected_size()];
    for mode in MODES {
        let what = format!("{} with {mode:?}", shape.name);
        let server = Server::start_members(&array, array.members(), mode);
        let mut client = server.connect();
        write_and_read(&mut client, &mut random, &mut model, &what);
        client.flush();
        server.kill();

        let server = Server::start_members(&array, array.members(), mode);
        assert_same(&read_export(server.uri()), &model, &format!("{what}: flushed, then killed"));
        write_and_read(&mut server.connect(), &mut random, &mut model, &what);
        let _ = server.stop();
        Content::read(&array).assert_holds(&model, &format!("{what}: stopped"));
    }
}

/// Writes of one sector to several stripes' worth, each read back with some of what surrounds it.
fn write_and_read(client: &mut Client, random: &mut Random, model: &mut [u8], what: &str) {
    for turn in 0..150 {
        let longest = [512, 4096, 16 << 10, 256 << 10][turn % 4];
        let (offset, length) = random.sectors(model.len(), longest);
        let data = random.bytes(length);
        client.write(offset, &data);
        model[offset..offset + length].copy_from_slice(&data);
        let start = offset.saturating_sub(8192);
        let end = (offset + length + 8192).min(model.len());
        assert_same(&client.read(start, end - start), &model[start..end], &format!("{what}: read after write {turn}"));
    }
}

/// What is in memory can be read while a member is missing, and what is not is computed around it.
#[test]
fn dirty_content_of_a_degraded_array() {
    let array = Array::create(&shape::rm2_of_7_adjacent());
    let mut random = Random::new(62);
    let mut model = vec![0; array.expected_size()];
    array.remove(&[1, 4]);
    let present = array.without(&[1, 4]);
    let server = Server::start_members(&array, &present, &["--degraded"]);
    write_and_read(&mut server.connect(), &mut random, &mut model, "two members are missing");
    let _ = server.stop();
    let server = Server::start_members(&array, &present, &["--degraded"]);
    assert_same(&read_export(server.uri()), &model, "served again");
    let _ = server.stop();
}

#[test]
fn modes_that_do_not_exist_are_usage_errors() {
    for option in [["--cache", "sometimes"], ["--cache-size", "many"]] {
        let refusal = binary::uraid(["serve", option[0], option[1], "member"]).code_is(2);
        assert!(refusal.stderr.contains(option[1]), "{}", refusal.stderr);
    }
}
