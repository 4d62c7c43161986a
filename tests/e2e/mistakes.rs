//! What users get wrong on a command line: nothing is written, and they are told what to do.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::process::Output;
use uraid_tests::run::run;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES};

use crate::control::{ask, status};

/// Where members have their logs: docs/on-disk-format.md.
const LOG_OFFSET: u64 = 512 << 10;

/// The command with these words, then an array's members.
fn on_members(array: &Array, words: &[&str]) -> Output {
    let mut command = binary::command();
    command.args(words).args(array.members());
    run(command)
}

#[test]
fn an_array_s_name_fits_its_members_and_a_terminal() {
    let long = "\u{e4}".repeat(33);
    let array = Array::planned(&shape::raid5_of_3());
    for (name, told) in [(long.as_str(), "66 bytes; at most 64"), ("two\nlines", "control characters")] {
        let refused = array.run_create(MEMBER_BYTES, &["--name", name]).code_is(2);
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
    }
    assert!(array.members().iter().all(|member| !member.exists()), "nothing was made");
    let _ = array.run_create(MEMBER_BYTES, &["--name", "first"]).success();
    for (name, told) in [(long.as_str(), "66 bytes; at most 64"), ("two\nlines", "control characters")] {
        let refused = on_members(&array, &["rename", name]).code_is(2);
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
        assert_eq!(array.examine()["name"], "first");
    }
    let _ = on_members(&array, &["rename", "\u{e4}"]).success();
    assert_eq!(array.examine()["name"], "\u{e4}");
}

#[test]
fn clients_and_administrators_have_a_socket_each() {
    let array = Array::create(&shape::raid1_of_2());
    let socket = array.socket();
    let socket = socket.to_str().unwrap();
    let refused = on_members(&array, &["serve", "--socket", socket, "--control", socket]).code_is(2);
    assert!(refused.stderr.contains("is the socket for clients"), "{}", refused.stderr);
    let beside = array.path("uraid.sock");
    let refused = on_members(&array, &["serve", "--control", beside.to_str().unwrap()]).code_is(2);
    assert!(refused.stderr.contains("is the socket for clients"), "{}", refused.stderr);
}

#[test]
fn values_that_can_not_be_are_refused_with_those_that_can() {
    let array = Array::create(&shape::raid1_of_2());
    for (words, told) in [
        (&["layout", "--level", "5", "--members", "0"][..], "1..=64"),
        (&["layout", "--level", "5", "--members", "65"], "1..=64"),
        (&["layout", "--level", "5", "--members", "5", "--stripes", "0"], "not in 1.."),
        (&["map", "--lba", "0", "--level", "5", "--members", "0"], "1..=64"),
        (&["serve", "--cache-size", "5", "x"], "write a unit"),
        (&["serve", "--request-memory", "64", "x"], "write a unit"),
        (&["serve", "--listen", "-1", "x"], "storage.lan:10809"),
        (&["serve", "--metrics", "-1", "x"], "storage.lan:9187"),
        (&["serve", "--metrics", "localhost", "x"], "storage.lan:9187"),
        (&["serve", "--cache-size", "1024T", "x"], "memory that this machine has"),
        (&["serve", "--allow-uid", "4294967295", "x"], "0..=4294967294"),
        (&["set", "--client-limit", "1025T"], "write none for no limit"),
        (&["set", "--client-iops-limit", "1125899906842625"], "write none for no limit"),
    ] {
        let refused = binary::uraid(words).code_is(2);
        assert!(refused.stderr.contains(told), "{words:?}: {}", refused.stderr);
        assert!(!refused.stderr.contains("-- -1"), "{words:?}: {}", refused.stderr);
    }
    let file = array.path("array.toml");
    fs::write(&file, "members = [1, 2]\n").unwrap();
    let refused = binary::uraid(["serve".as_ref(), "--config".as_ref(), file.as_os_str()]).code_is(2);
    assert!(refused.stderr.contains("quotation marks"), "{}", refused.stderr);
}

#[test]
fn what_is_not_there_is_named() {
    let array = Array::create(&shape::raid1_of_2());
    let nothing = array.path("nothing");
    let listed = on_members(&array, &["list", nothing.to_str().unwrap()]).code_is(1);
    assert!(listed.text().contains("RAID 1"), "what is there is listed: {}", listed.text());
    assert!(listed.stderr.contains(&format!("there is no {}", nothing.display())), "{}", listed.stderr);
    fs::write(&nothing, vec![0; 1 << 20]).unwrap();
    let refused = binary::uraid(["wipe".as_ref(), nothing.as_os_str()]).code_is(1);
    assert!(refused.stderr.contains("nothing to wipe") && !refused.stderr.contains("serve"), "{}", refused.stderr);
}

/// A limit of files' sizes fails what exceeds it, and what was made for it goes again.
#[test]
fn a_limit_of_file_sizes_is_an_error_like_others() {
    let array = Array::planned(&shape::raid5_of_3());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 2048; exec \"$@\"", "sh"]).arg(binary::path());
    command.args(["create", "--level", "5", "--size", "16M"]).args(array.members());
    let refused = run(command).code_is(1);
    assert!(refused.stderr.contains("File too large"), "{}", refused.stderr);
    assert!(array.members().iter().all(|member| !member.exists()), "nothing is left");
}

#[test]
fn a_name_with_a_line_break_keeps_to_its_line() {
    let array = Array::create(&shape::raid1_of_2());
    let odd = array.path("a\nb");
    fs::rename(&array.members()[1], &odd).unwrap();
    let server = Server::start_members(&array, &[array.members()[0].clone(), odd], &[]);
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains(r"/a\nb "), "{screen}");
    let _ = server.stop();
}

#[test]
fn metrics_are_where_a_name_leads() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start_members(&array, array.members(), &["--metrics", "localhost:0"]);
    let url = server.line_after("metrics at http://");
    assert!(url.starts_with("127.0.0.1:") || url.starts_with("[::1]:"), "{url}");
    let _ = server.stop();
}

/// As under the service manager: root's commands reach a server that runs as somebody else.
#[test]
fn a_server_that_may_not_create_a_file_says_who_it_is() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        println!("left out: only root can start a server as another user");
        return;
    }
    let array = Array::create(&shape::raid5_of_3());
    let place = array.path("");
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    own(&place);
    array.members().iter().for_each(|member| own(member));
    let locked = place.join("locked");
    fs::create_dir(&locked).unwrap();
    let serve = Server::command(&array, &array.without(&[1]), &["--degraded"]);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(serve.get_program());
    command.args(serve.get_args()).env("USER", "root");
    let server = Server::spawn(command, array.socket()).unwrap();
    let new = locked.join("new");
    let add = |words: &[&str]| ask(&array, &[&["add"], words, &[new.to_str().unwrap()]].concat());
    let refused = add(&["--size", "16M"]).code_is(1).stderr;
    assert!(refused.contains("the server runs as user nobody") && refused.contains("chown"), "{refused}");
    // What it advises works.
    File::create(&new).unwrap().set_len(16 << 20).unwrap();
    own(&new);
    let _ = add(&[]).success();
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
}

/// A member whose log lost what it must have is left out where that was allowed, as if it had not been named.
#[test]
fn a_member_with_a_damaged_log_is_left_out_of_a_degraded_start() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let mut client = server.connect();
    // So that each member takes part.
    let at = |number: u8| usize::from(number) << 16;
    for number in 0..20_u8 {
        client.write(at(number), &[number; 4096]);
        client.flush();
    }
    server.kill();
    let size = array.examine()["members"][1]["log_size"].as_u64().expect("examine tells");
    let member = File::options().write(true).open(&array.members()[1]).unwrap();
    member.write_all_at(&vec![0; usize::try_from(size).unwrap()], LOG_OFFSET).unwrap();
    let refused = Server::refused(&array, array.members(), &[]).stderr;
    assert!(refused.contains("member 1 lost record") && refused.contains("--degraded"), "{refused}");
    for options in [&["--degraded", "--read-only"][..], &["--degraded"]] {
        let server = Server::start_members(&array, array.members(), options);
        let mut client = server.connect();
        for number in 0..20_u8 {
            assert_eq!(client.read(at(number), 4096), [number; 4096], "{options:?}");
        }
        assert_eq!(status(&array)["health"]["missing"], serde_json::json!([1]), "{options:?}");
        let _ = ask(&array, &["stop"]).success();
        let said = server.end().success().stderr;
        let path = array.members()[1].display();
        let told = format!("member 1 ({path}) is left out: its log is damaged, and lacks record ");
        assert!(said.contains(&told), "{said}");
    }
}
