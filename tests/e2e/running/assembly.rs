//! An array is found by its UUID or its name among whatever is there.

use std::path::PathBuf;

use uraid_tests::array::Array;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::{MEMBER_BYTES, ask, paths};

fn named(shape: &shape::Shape, name: &str, seed: u64) -> (Array, Vec<u8>) {
    let array = Array::planned(shape);
    let _ = array.run_create(MEMBER_BYTES, &["--name", name]).success();
    let server = Server::start(&array);
    let image = Random::new(seed).bytes(array.expected_size());
    write_export(server.uri(), &image);
    let _ = server.stop();
    (array, image)
}

#[test]
fn an_array_is_found_by_uuid_and_by_name_in_any_order() {
    let (first, first_image) = named(&shape::raid5_of_5_left_symmetric(), "first", 1);
    let (second, second_image) = named(&shape::rm2_of_7_adjacent(), "second", 2);
    let junk = first.path("junk");
    std::fs::write(&junk, vec![7; 1 << 20]).unwrap();
    let again = first.path("again");
    std::os::unix::fs::symlink(&first.members()[1], &again).unwrap();
    let mut all: Vec<PathBuf> =
        [paths(&first), paths(&second), vec![junk.clone(), again, first.path("nowhere")]].concat();
    for round in 0..4 {
        all.rotate_left(5);
        all.swap(0, 3);
        for (array, image, name) in [(&first, &first_image, "first"), (&second, &second_image, "second")] {
            let uuid = array.examine()["uuid"].as_str().expect("an array has a UUID").to_owned();
            let wanted = if round % 2 == 0 { ["--uuid", &uuid] } else { ["--name", name] };
            let server = Server::start_members(array, &all, &wanted);
            assert_same(&read_export(server.uri()), image, name);
            let _ = ask(array, &["stop"]).success();
            let told = server.end().stderr;
            assert!(told.contains(junk.to_str().unwrap()), "what is ignored is named: {told}");
        }
    }
    // With members missing the array says so, whatever else is there.
    second.remove(&[2, 6]);
    let wanted = ["--name", "second"];
    let refusal = Server::refused(&second, &all, &wanted).stderr;
    assert!(refusal.contains("--degraded"), "{refusal}");
    let server = Server::start_members(&second, &all, &[&wanted[..], &["--degraded"]].concat());
    assert_same(&read_export(server.uri()), &second_image, "without two members");
    let _ = server.stop();

    let refusal = Server::refused(&first, &all, &["--name", "third"]).stderr;
    assert!(refusal.contains("none of the paths") && refusal.contains("third"), "{refusal}");
}
