//! Exports that are not what they were, or not what their servers say.

use std::fs::File;
use std::path::PathBuf;

use rustix::process::Signal;

use super::{Exports, Kind, fails, nbdkit, problem, returns};
use crate::control::{ask, until};
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

fn resize(exports: &Exports, slot: usize, bytes: usize) {
    let file = File::options().write(true).open(&exports.array.members()[slot]).unwrap();
    file.set_len(bytes as u64).unwrap();
}

fn held(exports: &Exports) -> Vec<Vec<u8>> {
    exports.array.members().iter().map(|member| std::fs::read(member).unwrap()).collect()
}

#[test]
fn an_export_that_has_become_smaller_is_refused_by_name_and_nothing_is_written() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let image = Random::new(106).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let _ = server.stop();
    let whole = std::fs::read(&exports.array.members()[1]).unwrap();
    exports.kill(1);
    resize(&exports, 1, 12 << 20);
    exports.restart(1);
    let before = held(&exports);
    let refused = Server::refused(&exports.array, &exports.uris, &[]).stderr;
    let name = exports.uris[1].to_str().unwrap();
    assert!(refused.contains(name) && refused.contains("was truncated"), "{refused}");
    assert!(held(&exports) == before, "nothing is written to anybody");

    // The others go on without it, and don't take it.
    let others = [exports.uris[0].clone(), exports.uris[2].clone()];
    let server = Server::start_members(&exports.array, &others, &["--degraded"]);
    let refused = ask(&exports.array, &["add", name]).code_is(1).stderr;
    assert!(refused.contains(name) && refused.contains("too small"), "{refused}");
    assert!(std::fs::read(&exports.array.members()[1]).unwrap() == before[1], "nothing is written to it");
    exports.kill(1);
    std::fs::write(&exports.array.members()[1], whole).unwrap();
    exports.restart(1);
    exports.add(1);
    assert_same(&read_export(server.uri()), &image, "whole again");
    exports.stop_holding(server, &image, "whole again");
}

#[test]
fn a_member_whose_export_has_become_smaller_does_not_return_by_itself() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_returning("100ms", &[]);
    let image = Random::new(107).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let mut client = server.connect();
    exports.lose(2, &mut client, &image[..1 << 20]);
    resize(&exports, 2, 12 << 20);
    exports.restart(2);
    let now = until(&exports.array, "it is looked at", |now| problem(now, 2).contains("too small"));
    let found = (&now["members"][2]["state"], &now["members"][2]["away"]["waiting"]);
    assert_eq!(found, (&"missing".into(), &"administrator".into()), "{now:#}");
    exports.kill(2);
    resize(&exports, 2, MEMBER_BYTES);
    exports.restart(2);
    exports.add(2);
    returns(&exports.array, 2);
    client.disconnect();
    let _ = server.stop();
}

#[test]
fn who_is_not_the_member_that_broke_does_not_return_in_its_place() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_returning("100ms", &[]);
    let mut client = server.connect();
    let file = exports.array.members()[1].clone();
    let kept = exports.array.path("kept");
    let of_another = {
        let other = Array::create(&shape::raid5_of_3());
        std::fs::read(&other.members()[1]).unwrap()
    };
    exports.lose(1, &mut client, &[1; 200_000]);
    std::fs::rename(&file, &kept).unwrap();
    let twin = std::fs::read(&exports.array.members()[2]).unwrap();
    let blank = vec![0; MEMBER_BYTES];
    let another = "another member is there now";
    for (found, why) in [(&of_another, another), (&twin, another), (&blank, "no uraid superblock")] {
        std::fs::write(&file, found).unwrap();
        exports.restart(1);
        let now = until(&exports.array, "it is looked at", |now| problem(now, 1).contains(why));
        assert_eq!(now["members"][1]["state"], "missing", "{now:#}");
        exports.kill(1);
        assert!(&std::fs::read(&file).unwrap() == found, "nothing is written to it");
    }
    std::fs::rename(&kept, &file).unwrap();
    exports.restart(1);
    returns(&exports.array, 1);
    client.disconnect();
    let _ = server.stop();
}

/// The server answers reads, so the member is taken back, and breaks before it is a member again.
#[test]
fn who_breaks_while_it_returns_is_asked_for_again_and_made_anew() {
    let mut exports = Exports::start(&shape::raid1_of_2(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_returning("100ms", &["--read-deadline", "500ms", "--write-deadline", "1s"]);
    let mut client = server.connect();
    exports.lose(1, &mut client, &[1; 200_000]);
    for left in [exports.socket(1), exports.array.path("export1.pid")] {
        std::fs::remove_file(left).unwrap();
    }
    let file = exports.array.members()[1].to_str().unwrap();
    let slow = ["--filter=delay", "file", file, "wdelay=600"];
    let (slow, _) = nbdkit(&exports.array.path(""), "export1", &slow);
    let has_failed = |now: &serde_json::Value| {
        let problem = problem(now, 1);
        !problem.is_empty() && !problem.contains("can't connect") && now["members"][1]["state"] == "missing"
    };
    let now = until(&exports.array, "it breaks again", has_failed);
    assert_eq!(now["members"][1]["away"]["waiting"], "server", "{now:#}");
    slow.signal(Signal::KILL);
    exports.restart(1);
    // It has missed a superblock of the time when it was a member again, and is rebuilt completely.
    returns(&exports.array, 1);
    client.disconnect();
    let _ = server.stop();
}

/// Whoever says that an export is larger than it is can't write what is behind its end.
#[test]
fn an_export_that_is_smaller_than_its_server_says_is_given_up_by_name() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    let place = exports.array.path("");
    let small = exports.array.path("small");
    File::create(&small).unwrap().set_len(8 << 20).unwrap();
    let lying = ["--filter=truncate", "file", small.to_str().unwrap(), "truncate=16M"];
    let (process, uri) = nbdkit(&place, "liar", &lying);
    let name = uri.to_str().unwrap().to_owned();
    let members = [exports.uris[0].clone(), uri.clone(), exports.uris[2].clone()];
    let words = ["create", "--level", "5"].map(PathBuf::from).into_iter().chain(members);
    let refused = binary::uraid(words).code_is(1).stderr;
    assert!(refused.contains(&name) && refused.contains("No space left"), "{refused}");
    drop(process);

    // The same in the place of a member that was honest.
    let _ = exports.run_create(&["--force"]).success();
    let server = exports.serve_array(&[]);
    exports.kill(1);
    let mut image = Random::new(108).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    fails(&exports.array, 1);
    let member = exports.array.members()[1].clone();
    resize(&exports, 1, 8 << 20);
    let lying = ["--filter=truncate", "file", member.to_str().unwrap(), "truncate=16M"];
    let (process, uri) = nbdkit(&place, "again", &lying);
    let _ = ask(&exports.array, &["add", uri.to_str().unwrap()]);
    let mut client = server.connect();
    let tail = Random::new(109).bytes(1 << 20);
    let at = image.len() - tail.len();
    client.write(at, &tail);
    client.flush();
    image[at..].copy_from_slice(&tail);
    fails(&exports.array, 1);
    client.disconnect();
    assert_same(&read_export(server.uri()), &image, "without it");
    drop(process);
    let _ = server.stop();
}
