//! Members that are given up, taken out and taken in while clients read and write.

use serde_json::json;
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::run::run;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

use super::scrub::Events;
use super::{ask, status};

/// An array that is served and full of random bytes, with somebody who hears what happens to it.
fn filled(shape: &Shape) -> (Array, Server, Events, Vec<u8>) {
    let array = Array::create(shape);
    let (events, hook) = Events::new(&array);
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    let image = Random::new(7).bytes(array.expected_size());
    write_export(server.uri(), &image);
    assert_eq!(events.until("started"), [""; 0]);
    (array, server, events, image)
}

/// Some writes, to the array and to the model.
fn write(server: &Server, model: &mut [u8], seed: u64) {
    let mut random = Random::new(seed);
    let mut client = server.connect();
    for longest in [4096, 256 << 10, 1 << 20] {
        let (offset, length) = random.sectors(model.len(), longest);
        let data = random.bytes(length);
        client.write(offset, &data);
        model[offset..offset + length].copy_from_slice(&data);
    }
    client.flush();
}

/// Nothing was written without it, so nothing says yet that it failed.
#[test]
fn a_member_that_was_away_at_the_start_is_taken_back() {
    let cases = [(shape::raid1_of_2(), &[1][..]), (shape::raid5_of_3(), &[1]), (shape::rm2_of_7_adjacent(), &[1, 4])];
    for (shape, away) in cases {
        let (array, server, _, model) = filled(&shape);
        let _ = server.stop();
        let server = Server::start_members(&array, &array.without(away), &["--degraded"]);
        assert_same(&read_export(server.uri()), &model, shape.name);
        for &slot in away {
            let _ = ask(&array, &["add", array.members()[slot].to_str().unwrap()]).success();
        }
        let _ = ask(&array, &["wait"]).success();
        let _ = server.stop();
        let server = Server::start(&array);
        assert_same(&read_export(server.uri()), &model, shape.name);
        let _ = server.stop();
        Content::read(&array).assert_holds(&model, shape.name);
    }
}

#[test]
fn a_member_that_was_away_is_taken_back_and_rebuilt() {
    for shape in [shape::raid1_of_2(), shape::raid5_of_3(), shape::rm2_of_7_adjacent()] {
        let (array, server, events, mut model) = filled(&shape);
        let path = array.members()[1].to_str().unwrap();
        let refusal = ask(&array, &["remove", "1"]).code_is(1).stderr;
        assert!(refusal.contains("fail it first"), "{refusal}");
        let _ = ask(&array, &["fail", path]).success();
        assert_eq!(events.until("degraded"), ["member-failed"], "{}", shape.name);
        assert_eq!(status(&array)["health"]["missing"], serde_json::json!([1]));
        write(&server, &mut model, 1);
        let _ = ask(&array, &["remove", "1"]).success();
        assert_eq!(status(&array)["members"][1]["path"], serde_json::Value::Null);
        write(&server, &mut model, 2);

        let _ = ask(&array, &["add", path]).success();
        write(&server, &mut model, 3);
        assert_eq!(events.until("recovered"), ["rebuild-started", "rebuild-finished"], "{}", shape.name);
        let now = status(&array);
        assert_eq!((&now["health"]["state"], &now["rebuild"]), (&"whole".into(), &serde_json::Value::Null));
        assert_eq!(now["members"][1]["path"], path);
        assert_same(&read_export(server.uri()), &model, shape.name);
        let _ = server.stop();
        Content::read(&array).assert_holds(&model, shape.name);
    }
}

#[test]
fn a_member_whose_file_is_deleted_is_given_up() {
    let (array, server, events, mut model) = filled(&shape::raid5_of_3());
    std::fs::remove_file(&array.members()[1]).unwrap();
    assert_eq!(events.until("degraded"), ["member-failed"]);
    assert_eq!(status(&array)["health"]["missing"], serde_json::json!([1]));
    write(&server, &mut model, 1);
    assert_same(&read_export(server.uri()), &model, "without it");
    // What its path leads to now is another file, for the same slot.
    let path = array.members()[1].to_str().unwrap();
    let _ = ask(&array, &["add", "--size", "64M", path]).success();
    assert_eq!(events.until("recovered"), ["rebuild-started", "rebuild-finished"]);
    let _ = server.stop();
}

#[test]
fn two_new_members_take_the_places_of_two_that_are_lost() {
    let (array, server, events, mut model) = filled(&shape::rm2_of_7_partitioned());
    let refusal = |words: &[&str], named: &str| {
        let refusal = ask(&array, words).code_is(1).stderr;
        assert!(refusal.contains(named), "{words:?}: {refusal}");
    };
    refusal(&["fail", "9"], "not a member");
    let _ = ask(&array, &["fail", "4"]).success();
    let _ = ask(&array, &["fail", "2"]).success();
    refusal(&["fail", "0"], "the array needs member");
    refusal(&["fail", "2"], "is missing already");
    assert_eq!(status(&array)["health"]["survives"], 0);
    write(&server, &mut model, 4);

    let new = [array.path("new2"), array.path("new4")];
    refusal(&["add", new[0].to_str().unwrap()], "--size");
    refusal(&["add", "--size", "1M", new[0].to_str().unwrap()], "room");
    refusal(&["add", array.members()[0].to_str().unwrap()], "member0");
    for path in &new {
        let _ = ask(&array, &["add", "--size", "16M", path.to_str().unwrap()]).success();
        write(&server, &mut model, 5);
    }
    let told = events.until("recovered");
    assert!(told.iter().filter(|event| *event == "rebuild-finished").count() == 2, "{told:?}");
    assert_same(&read_export(server.uri()), &model, "two are rebuilt");
    let _ = server.stop();
    let members: Vec<_> = (0..7)
        .map(|slot| match slot {
            2 => new[0].clone(),
            4 => new[1].clone(),
            _ => array.members()[slot].clone(),
        })
        .collect();
    // Without two others, so that all that was rebuilt counts.
    let left: Vec<_> = [1, 2, 3, 4, 6].map(|slot: usize| members[slot].clone()).to_vec();
    array.remove(&[0, 5]);
    let server = Server::start_members(&array, &left, &["--degraded"]);
    assert_same(&read_export(server.uri()), &model, "what was rebuilt, without two others");
    let _ = server.stop();
}

#[test]
fn a_rebuild_goes_on_where_it_was_when_the_server_is_started_again() {
    let (array, server, events, mut model) = filled(&shape::raid5_of_5_left_symmetric());
    let _ = ask(&array, &["fail", "3"]).success();
    assert_eq!(events.until("degraded"), ["member-failed"]);
    let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
    let _ = ask(&array, &["add", "--force", array.members()[3].to_str().unwrap()]).success();
    let now = status(&array);
    assert_eq!(now["members"][3]["state"], "rebuilding");
    assert_eq!((&now["health"]["state"], &now["health"]["survives"]), (&"degraded".into(), &0.into()));
    assert_eq!(now["rebuild"]["members"], serde_json::json!([3]));
    let examined = array.examine();
    assert_eq!((&examined["rebuilding"], &examined["members"][3]["state"]), (&json!([3]), &json!("rebuilding")));
    let mut examine = binary::command();
    examine.arg("examine").args(array.members());
    let examined = run(examine).success().text();
    assert!(examined.contains("degraded: rebuilding slots 3, survives 0 more failures"), "{examined}");
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains("member 3 is being rebuilt") && screen.contains("\nrebuild  ["), "{screen}");
    write(&server, &mut model, 6);
    let _ = server.stop();

    let hook = array.path("hook");
    let options = ["--degraded", "--on-event", hook.to_str().unwrap()];
    let server = Server::start_members(&array, array.members(), &options);
    let told = events.until("recovered");
    assert!(told.ends_with(&["rebuild-finished".to_owned()]), "{told:?}");
    assert_same(&read_export(server.uri()), &model, "rebuilt");
    let _ = server.stop();
    Content::read(&array).assert_holds(&model, "rebuilt");
}
