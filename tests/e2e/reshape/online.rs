//! Reshapes that begin while the array is served.

use std::path::PathBuf;

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use super::{blank, full, served, text};
use crate::control::{ask, status, until};

/// A full RAID 5 of three, and files for more members.
fn prepared() -> (Array, Vec<u8>, Vec<PathBuf>) {
    let array = Array::create(&shape::raid5_of_3());
    let content = full(&array);
    let new = ["n3", "n4", "n5", "n6"].map(|name| blank(&array, name)).to_vec();
    (array, content, new)
}

/// A client that is connected goes on with what it has, the array gets its shape and then another one, and the next
/// start finds it.
#[test]
fn a_served_array_gets_another_shape_and_then_a_third() {
    let (array, mut content, new) = prepared();
    let server = Server::start(&array);
    let begun = ask(&array, &["reshape", "--add", text(&new[0])]).success().text();
    assert!(begun.contains("the reshape has begun"), "{begun}");
    content = {
        let content = Random::new(11).bytes(content.len());
        write_export(server.uri(), &content);
        content
    };
    let _ = ask(&array, &["wait"]).success();
    let now = until(&array, "it grows", |now| now["size_bytes"].as_u64() > Some(content.len() as u64));
    assert_eq!((now["members"].as_array().map(Vec::len), &now["reshape"]), (Some(4), &serde_json::Value::Null));
    assert_eq!(now["members"][3]["path"], text(&new[0]));
    let _ = ask(&array, &["wait"]).success();

    // A level with more redundancy, as slowly as it is limited to; what is not said stays.
    let _ = ask(&array, &["set", "--reshape-limit", "1M"]).success();
    let add = ["--add", text(&new[1]), "--add", text(&new[2]), "--add", text(&new[3])];
    let _ = ask(&array, &[&["reshape", "--level", "rm2", "--rm2-m", "3"][..], &add].concat()).success();
    let now = status(&array);
    assert_eq!((now["reshape"]["level"].as_str(), now["reshape"]["members"].as_u64()), (Some("rm2"), Some(7)));
    assert_eq!(now["reshape"]["chunk_bytes"], now["chunk_bytes"], "{now:#}");
    let refused = ask(&array, &["reshape", "--chunk", "8K"]).code_is(1).stderr;
    assert!(refused.contains("being reshaped"), "{refused}");
    server.kill();
    let all = [array.members(), &new].concat();
    let server = Server::start_members(&array, &all, &[]);
    assert_same(&read_export(server.uri())[..content.len()], &content, "after a kill");
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    let after = binary::examine(&all);
    assert_eq!((after["level"].as_str(), after["state"].as_str()), (Some("rm2"), Some("clean")), "{after:#}");
    assert_same(&served(&array, &all[2..], &["--degraded"])[..content.len()], &content, "without two members");
}

/// Blocks that have checksums have those of their new places, and so has what the array grows by.
#[test]
fn checksums_move_with_the_content() {
    let array = Array::planned(&shape::raid5_of_3());
    let _ = array.run_create(MEMBER_BYTES, &["--integrity", "crc32"]).success();
    let new = ["n3", "n4", "n5", "n6"].map(|name| blank(&array, name)).to_vec();
    let server = Server::start(&array);
    let _ = ask(&array, &["wait"]).success();
    let size = usize::try_from(status(&array)["size_bytes"].as_u64().unwrap()).unwrap();
    let content = Random::new(12).bytes(size);
    write_export(server.uri(), &content);
    for words in [&["--add", text(&new[0])][..], &["--level", "rm2", "--rm2-m", "3"]] {
        let add: Vec<&str> = new[1..].iter().flat_map(|path| ["--add", text(path)]).collect();
        let add = if words[0] == "--add" { Vec::new() } else { add };
        let _ = ask(&array, &[&["reshape"], words, &add].concat()).success();
        let _ = ask(&array, &["wait"]).success();
        let _ = ask(&array, &["scrub", "start"]).success();
        let _ = ask(&array, &["wait"]).success();
        let report = ask(&array, &["scrub", "status"]).success().text();
        assert!(report.contains("nothing wrong"), "{report}");
        assert_same(&read_export(server.uri())[..content.len()], &content, "content");
    }
    let _ = server.stop();
}

/// Whatever can't be begun is refused, with a remedy, and the array is served as before.
#[test]
fn what_can_not_begin_is_refused_and_the_array_goes_on() {
    let (array, content, new) = prepared();
    let used = blank(&array, "used");
    std::fs::write(&used, vec![7; MEMBER_BYTES]).unwrap();
    let small = array.path("small");
    std::fs::write(&small, vec![0; 4096]).unwrap();
    let server = Server::start(&array);
    let member = text(&array.members()[1]).to_owned();
    for (words, code, expected) in [
        (&["--add", text(&used)][..], 1, "use --force to overwrite it"),
        (&["--add", text(&small)], 1, "too few for a member"),
        (&["--add", "/nowhere/d9"], 1, "/nowhere/d9"),
        (&["--add", &member], 1, "is member 1 of this array already"),
        (&["--add", text(&new[0]), "--add", text(&new[0])], 1, text(&new[0])),
        (&["--remove", &member], 1, "only the members in the last slots can leave"),
        (&["--level", "1"], 1, "in that shape the members hold"),
        (&["--level", "rm2"], 1, "RM2"),
        (&["--layout", "left-symmetric"], 1, "the array has this shape already"),
        (&["--level", "5", "--rm2-m", "3"], 1, "--rm2-m is for level rm2 only"),
        (&["--add", text(&new[0]), "--remove", &member], 1, "members can join or leave, not both at once"),
        (&["--size", "1M"], 2, "--size is for stopped arrays"),
        (&["--rehearse", "--add", text(&new[0])], 2, "stop the array to rehearse"),
    ] {
        let refused = ask(&array, &[&["reshape"], words].concat());
        let said = refused.code_is(code).stderr;
        assert!(said.contains(expected), "{words:?}: {said}");
        let now = status(&array);
        assert_eq!((&now["reshape"], now["members"].as_array().map(Vec::len)), (&serde_json::Value::Null, Some(3)));
    }
    assert_same(&read_export(server.uri()), &content, "nothing has changed");
    // Nobody holds what was refused.
    let begun = ask(&array, &["reshape", "--json", "--add", text(&new[0]), "--add", text(&used), "--force"]).success();
    let begun: serde_json::Value = serde_json::from_slice(&begun.stdout).expect("JSON");
    assert!(begun.is_null() || begun["members"] == 5, "{begun:#}");
    let _ = ask(&array, &["wait"]).success();
    assert_same(&read_export(server.uri())[..content.len()], &content, "and then it begins");
    let _ = server.stop();
}
