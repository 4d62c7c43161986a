//! What changes an array whose members are exports: the next server, more room, another shape. Each has the exports to
//! itself, and leaves them to the next.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Exports, Kind, nbdkit, refuse_second};
use crate::control::{ask, status, until};
use uraid_tests::array::Content;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::process::Output;
use uraid_tests::shape::{self, MEMBER_BYTES};

/// Where the mark on an export says who has it, by the description of the format.
const RUN: std::ops::Range<usize> = (40 << 10) + 16..(40 << 10) + 32;

fn is_marked(member: &Path) -> bool {
    std::fs::read(member).unwrap()[RUN].iter().any(|&byte| byte != 0)
}

/// Runs a command on an array that is not served, with these words before its members.
fn run(words: &[&str], uris: &[PathBuf]) -> Output {
    binary::uraid(words.iter().map(PathBuf::from).chain(uris.iter().cloned()))
}

#[test]
fn the_next_server_has_the_exports_of_the_one_before_and_its_clients() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let before = exports.serve_array(&[]);
    let mut image = Random::new(102).bytes(exports.array.expected_size());
    write_export(before.uri(), &image);
    let mut client = before.connect();
    let data = Random::new(103).bytes(300_000);
    client.write(77_777, &data);
    image[77_777..77_777 + data.len()].copy_from_slice(&data);
    let former = before.pid();
    let server = exports.serve_array(&["--takeover"]);
    let _ = before.end().success();
    assert_ne!(server.pid(), former);
    assert!(client.read(77_777, data.len()) == data, "what the cache had");
    client.write(0, &data);
    image[..data.len()].copy_from_slice(&data);
    client.flush();
    let refused = refuse_second(&exports, &[]);
    assert!(refused.contains(&format!("in use by process {}", server.pid())), "{refused}");
    client.disconnect();
    let now = status(&exports.array);
    assert_eq!(now["health"]["state"], "whole", "{now:#}");
    let _ = server.stop();
    assert!(!exports.array.members().iter().any(|member| is_marked(member)), "nobody has them");
    drop(exports.servers);
    Content::read(&exports.array).assert_holds(&image, "by both servers");
}

#[test]
fn what_is_served_is_not_changed_by_another_command() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let in_use = format!("in use by process {}", server.pid());
    let commands: [&[&str]; 5] = [
        &["grow"],
        &["reshape", "--chunk", "16K"],
        &["configure", "--consistency", "bitmap"],
        &["rename", "other"],
        &["wipe", "--force"],
    ];
    for words in commands {
        let refused = run(words, &exports.uris);
        assert!(refused.code != Some(0) && refused.stderr.contains(&in_use), "{words:?}: {refused:?}");
    }
    let mut client = server.connect();
    client.write(0, &[5; 4096]);
    client.flush();
    client.disconnect();
    let now = status(&exports.array);
    assert_eq!(now["health"]["state"], "whole", "{now:#}");
    let _ = server.stop();
}

#[test]
fn an_array_grows_with_its_exports_while_it_is_stopped() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let image = Random::new(104).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let _ = server.stop();
    for slot in 0..3 {
        let file = File::options().write(true).open(&exports.array.members()[slot]).unwrap();
        file.set_len(MEMBER_BYTES as u64 + (9 << 20)).unwrap();
        exports.kill(slot);
        exports.restart(slot);
    }
    let grown = run(&["grow"], &exports.uris).success().text();
    assert!(grown.starts_with("grew from "), "{grown}");
    assert!(!exports.array.members().iter().any(|member| is_marked(member)), "nobody has them");
    let server = exports.serve_array(&[]);
    let held = read_export(server.uri());
    assert!(held.len() >= image.len() + (16 << 20), "{} bytes", held.len());
    assert_same(&held[..image.len()], &image, "what there was");
    let _ = server.stop();
}

#[test]
fn a_spare_that_is_an_export_takes_the_place_of_a_member() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let file = exports.array.path("spare");
    File::create(&file).unwrap().set_len(MEMBER_BYTES as u64).unwrap();
    let (spare, uri) = nbdkit(exports.array.path("").as_path(), "spare", &["file", file.to_str().unwrap()]);
    let server = exports.serve_array(&["--spare", uri.to_str().unwrap()]);
    let image = Random::new(110).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let _ = ask(&exports.array, &["fail", "0"]).success();
    let is_taken = |now: &serde_json::Value| {
        now["members"][0]["path"].as_str().map(Path::new) == Some(&uri) && now["health"]["state"] == "whole"
    };
    let _ = until(&exports.array, "the spare is a member", is_taken);
    assert!(is_marked(&file), "it is the server's");
    assert_same(&read_export(server.uri()), &image, "with the spare");
    let _ = server.stop();
    assert!(!is_marked(&file), "nobody has it");
    drop(spare);
}

#[test]
fn an_array_gets_another_shape_with_one_more_export() {
    for is_served in [true, false] {
        let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
        exports.create();
        let first = exports.serve_array(&[]);
        let image = Random::new(105).bytes(exports.array.expected_size());
        write_export(first.uri(), &image);
        let file = exports.array.path("more");
        File::create(&file).unwrap().set_len(MEMBER_BYTES as u64).unwrap();
        let (more, uri) = nbdkit(exports.array.path("").as_path(), "more", &["file", file.to_str().unwrap()]);
        exports.servers.push(more);
        let words = ["reshape", "--add", uri.to_str().unwrap()];
        exports.uris.push(uri.clone());
        let server = if is_served {
            let _ = ask(&exports.array, &words).success();
            let _ = until(&exports.array, "it has the shape", |now| now["reshape"].is_null());
            assert!(is_marked(&file), "the new one is the server's, too");
            let refused = refuse_second(&exports, &[]);
            assert!(refused.contains(&format!("in use by process {}", first.pid())), "{refused}");
            first
        } else {
            let _ = first.stop();
            let _ = run(&words, &exports.uris[..3]).success();
            assert!(!is_marked(&file), "nobody has it");
            exports.serve_array(&[])
        };
        let now = status(&exports.array);
        assert_eq!((now["members"].as_array().map(Vec::len), &now["health"]["state"]), (Some(4), &"whole".into()));
        assert_same(&read_export(server.uri())[..image.len()], &image, "in the new shape");
        let _ = server.stop();
        assert!(!is_marked(&file), "nobody has it");
        assert!(!exports.array.members().iter().any(|member| is_marked(member)), "nobody has them");
    }
}
