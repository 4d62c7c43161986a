//! Every level with members absent, each of them and pairs at every distance, and the refusal of too many.
//!
//! That every level decodes without every set that it tolerates is shown by the layout's and the engine's own tests.

use std::path::PathBuf;

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

/// Small, so that many pairs of failed members can be tried.
const MEMBER_BYTES: usize = 6 << 20;

/// Writes to a degraded array, in each of its states.
const WRITES: usize = 24;

uraid_tests::for_every_shape!(survives_what_it_must);

fn survives_what_it_must(shape: &Shape) {
    let (whole, image) = filled(shape);
    // Rows turn by one member: two pairs at the same distance differ in where the stripes begin.
    let begins = [0, shape.members / 2];
    for absent in shape.tolerated.iter().filter(|absent| absent.len() < 2 || begins.contains(&absent[0])) {
        let what = format!("{} without {absent:?}", shape.name);
        let array = whole.copy();
        let mut model = image.clone();
        array.remove(absent);
        let mut present = array.without(absent);
        let refusal = Server::refused(&array, &present, &[]);
        assert!(refusal.stderr.contains("--degraded"), "{what}: the refusal says what to do: {}", refusal.stderr);

        present.reverse();
        let server = Server::start_members(&array, &present, &["--degraded"]);
        assert_same(&read_export(server.uri()), &model, &what);
        write_at_random(&server, &mut model, absent.iter().sum());
        assert_same(&read_export(server.uri()), &model, &format!("{what}, after writes"));
        let _ = server.stop();

        present.rotate_left(1);
        let server = Server::start_members(&array, &present, &["--degraded"]);
        assert_same(&read_export(server.uri()), &model, &format!("{what}, served again"));
        let _ = server.stop();

        array.restore(absent);
        assert_stale_members_are_not_believed(&array, &model, &what);
    }
}

/// Every level that some set of failures destroys, with such a set.
#[test]
fn too_few_members_are_refused() {
    for shape in shape::all().iter().filter(|shape| shape.fatal.is_some()) {
        refuses_what_it_cannot_survive(shape);
    }
}

fn refuses_what_it_cannot_survive(shape: &Shape) {
    let absent = shape.fatal.as_ref().expect("a set of failures that loses data");
    let (array, image) = filled(shape);
    let facts = array.facts();
    array.remove(absent);
    let present = array.without(absent);
    let before = contents(&present);
    for options in [&[][..], &["--degraded"], &["--degraded", "--read-only"]] {
        let refusal = Server::refused(&array, &present, options).stderr;
        for &slot in absent {
            let named = [facts[slot].uuid.clone(), format!("slot {slot}"), format!("member {slot}")];
            assert!(named.iter().any(|name| refusal.contains(name)), "{}: {named:?} in: {refusal}", shape.name);
        }
    }
    assert!(contents(&present) == before, "{}: a refused array is not written to", shape.name);
    array.restore(absent);
    let server = Server::start(&array);
    assert_same(&read_export(server.uri()), &image, "the whole array once more");
    let _ = server.stop();
}

/// The order of members on the command line says nothing: slots come from the superblocks.
#[test]
fn member_order_does_not_matter() {
    for shape in [shape::raid0_of_4(), shape::raid10_of_5(), shape::raid5_of_5_left_symmetric(), shape::rm2_of_6()] {
        let (array, mut model) = filled(&shape);
        let mut members = array.members().to_vec();
        for round in 0..3 {
            members.rotate_left(1);
            members.swap(0, 2);
            let server = Server::start_members(&array, &members, &[]);
            assert_same(&read_export(server.uri()), &model, shape.name);
            write_at_random(&server, &mut model, round);
            let _ = server.stop();
            Content::read(&array).assert_holds(&model, shape.name);
        }
    }
}

/// Members of another array, and the same member twice, are refused by name.
#[test]
fn strangers_and_duplicates_are_refused() {
    let shape = shape::raid5_of_3();
    let (array, other) = (Array::create(&shape), Array::create(&shape));
    let mut members = array.members().to_vec();
    members[1] = other.members()[1].clone();
    let before = contents(&members);
    let refusal = Server::refused(&array, &members, &["--degraded"]).stderr;
    assert!(refusal.contains(members[1].to_str().unwrap()), "the stranger is named: {refusal}");

    let clone = array.path("clone");
    std::fs::copy(&array.members()[0], &clone).unwrap();
    let mut cloned = array.members().to_vec();
    cloned.push(clone.clone());
    let refusal = Server::refused(&array, &cloned, &[]).stderr;
    assert!(refusal.contains(clone.to_str().unwrap()), "the clone is named: {refusal}");
    assert!(contents(&members) == before, "a refused array is not written to");
}

/// An array full of random bytes, stopped, and what it holds.
fn filled(shape: &Shape) -> (Array, Vec<u8>) {
    // Of the largest chunks the log takes five.
    let array = Array::create_sized(shape, MEMBER_BYTES.max(9 * shape.chunk_bytes()));
    let image = Random::new(11).bytes(array.expected_size());
    let server = Server::start(&array);
    write_export(server.uri(), &image);
    let _ = server.stop();
    (array, image)
}

/// Writes parts of chunks, chunks and runs of chunks at random places, and the same to the model; flushed.
fn write_at_random(server: &Server, model: &mut [u8], seed: usize) {
    let mut random = Random::new(seed as u64);
    let mut client = server.connect();
    for round in 0..WRITES {
        let longest = [4096, 64 << 10, 512 << 10][round % 3];
        let (offset, length) = random.sectors(model.len(), longest);
        let data = random.bytes(length);
        client.write(offset, &data);
        model[offset..offset + length].copy_from_slice(&data);
    }
    client.flush();
    client.disconnect();
}

/// Members that missed writes are back: they may be refused or left out, but what they hold is never served.
fn assert_stale_members_are_not_believed(array: &Array, model: &[u8], what: &str) {
    let what = format!("{what}, stale members back");
    let mut stale_first = array.members().to_vec();
    stale_first.reverse();
    for options in [&["--degraded"][..], &[]] {
        match Server::try_start(array, &stale_first, options) {
            Ok(server) => {
                assert_same(&read_export(server.uri()), model, &what);
                let _ = server.stop();
            }
            Err(output) => {
                assert!(options.is_empty(), "{what}: --degraded serves without them: {}", output.stderr);
                let _ = output.code_is(1);
            }
        }
    }
}

fn contents(members: &[PathBuf]) -> Vec<Vec<u8>> {
    members.iter().map(|member| std::fs::read(member).unwrap()).collect()
}
