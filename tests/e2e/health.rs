//! Members whose files are deleted while the array is served.

use std::time::{Duration, Instant};

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::scrub::Events;
use crate::control::{ask, status};

/// How long something may take that takes seconds; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn deleted_members_are_seen_and_a_stop_does_not_lose_the_array() {
    for (shape, threads) in [(shape::raid0_of_4(), "0"), (shape::raid5_of_3(), "0"), (shape::raid5_of_3(), "2")] {
        let array = Array::create(&shape);
        let (events, hook) = Events::new(&array);
        let options = ["--on-event", hook.to_str().unwrap(), "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &options);
        let image = Random::new(5).bytes(array.expected_size());
        write_export(server.uri(), &image);
        // At once, so that the server does not look between the two.
        let gone: Vec<usize> = (0..shape.members).collect();
        gone.iter().for_each(|&slot| std::fs::remove_file(&array.members()[slot]).unwrap());
        // A stop looks for itself.
        let refusal = ask(&array, &["stop"]).code_is(1).stderr;
        assert!(refusal.contains("were deleted") && refusal.contains("--force"), "{refusal}");
        let told = events.until("failing");
        assert!(told.contains(&"member-deleted".to_owned()), "{told:?}");
        let deadline = Instant::now() + PATIENCE;
        let now = loop {
            let now = status(&array);
            // What can be spared is given up.
            if shape.name.starts_with("RAID 0") || now["health"]["missing"] == serde_json::json!([0]) {
                break now;
            }
            assert!(Instant::now() < deadline, "{now:#}");
        };
        assert_eq!(now["health"]["state"], "failing", "{now:#}");
        assert_eq!(now["members"][1]["troubles"], serde_json::json!(["deleted"]), "{now:#}");
        let screen = ask(&array, &["status"]).success().text();
        assert!(
            screen.contains("content is lost when the server ends") && screen.contains("copy the array's content"),
            "{screen}"
        );
        assert_same(&read_export(server.uri()), &image, "it can still be copied");
        let refusal = ask(&array, &["stop"]).code_is(1).stderr;
        assert!(refusal.contains("--force"), "{refusal}");
        let _ = ask(&array, &["stop", "--force"]).success();
        let _ = server.end().success();
    }
}

#[test]
fn a_member_that_can_be_spared_does_not_keep_a_server_from_stopping() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    std::fs::remove_file(&array.members()[1]).unwrap();
    let said = ask(&array, &["stop"]).success().text();
    assert!(said.contains("member 1") && said.contains("continues without it"), "{said}");
    let _ = server.end().success();
    assert_eq!(binary::examine(&array.without(&[1]))["missing"], serde_json::json!([1]), "that is on record");
}

/// A write at the end would give the file its size again, and what it lost would read as zeros.
#[test]
fn a_member_that_was_truncated_is_given_up_before_a_write_hides_it() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let mut image = Random::new(6).bytes(array.expected_size());
    write_export(server.uri(), &image);
    std::fs::File::options().write(true).open(&array.members()[0]).unwrap().set_len(0).unwrap();
    // Whichever member has the array's last units, and their parity.
    let tail = 1 << 20;
    let end = Random::new(7).bytes(tail);
    let mut client = server.connect();
    client.write(image.len() - tail, &end);
    client.flush();
    let at = image.len() - tail;
    image[at..].copy_from_slice(&end);
    assert_same(&read_export(server.uri()), &image, "without the member that was truncated");
    assert_eq!(status(&array)["health"]["missing"], serde_json::json!([0]));
    let _ = server.stop();
    let server = Server::start_members(&array, array.members(), &["--degraded"]);
    assert_same(&read_export(server.uri()), &image, "a degraded start leaves it out");
    let _ = server.stop();
}
