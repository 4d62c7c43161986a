//! Arrays and servers that are found, and members that are made to be none.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::process::Output;
use uraid_tests::run::run;
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::control::ask;

/// Runs a command where servers leave links in a directory.
fn uraid(directory: &Path, words: &[&str]) -> Output {
    let mut command = binary::command();
    command.env("URAID_RUNTIME_DIR", directory).current_dir(directory).args(words);
    run(command)
}

fn served(array: &Array, directory: &Path) -> Server {
    let mut command = Server::command(array, array.members(), &[]);
    command.env("URAID_RUNTIME_DIR", directory);
    Server::spawn(command, array.socket()).unwrap()
}

fn names(listed: &Value) -> Vec<&str> {
    listed.as_array().unwrap().iter().map(|array| array["state"].as_str().unwrap()).collect()
}

#[test]
fn the_only_server_needs_no_name_and_several_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let none = uraid(directory.path(), &["status"]).code_is(1);
    assert!(none.stderr.contains("no server is running"), "{}", none.stderr);
    let (first, second) = (Array::create(&shape::raid5_of_3()), Array::create(&shape::raid1_of_2()));
    let killed = served(&second, directory.path());
    killed.kill();
    let server = served(&first, directory.path());
    assert!(uraid(directory.path(), &["status"]).success().text().contains("RAID 5"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the link of the killed server is gone");

    let other = served(&second, directory.path());
    let several = uraid(directory.path(), &["stop"]).code_is(1);
    for array in [&first, &second] {
        let control = array.socket().with_extension("ctl").display().to_string();
        assert!(several.stderr.contains(&control), "{}", several.stderr);
    }
    let _ = other.stop();
    let _ = uraid(directory.path(), &["stop"]).success();
    let _ = server.end().success();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "a server that ends takes its link along");
}

#[test]
fn arrays_are_found_among_other_files_and_running_servers() {
    let directory = tempfile::tempdir().unwrap();
    let empty = uraid(directory.path(), &["list", directory.path().to_str().unwrap()]).success();
    assert!(empty.text().contains("no array found"), "{}", empty.text());
    let (stopped, running) = (Array::create(&shape::raid5_of_3()), Array::create(&shape::raid1_of_2()));
    let place = stopped.members()[0].parent().unwrap().to_owned();
    fs::write(place.join("notes.txt"), "no member").unwrap();
    let server = served(&running, directory.path());
    fs::remove_file(&stopped.members()[1]).unwrap();
    let list = || uraid(directory.path(), &["list", "--json", place.to_str().unwrap()]).success().json();
    let listed = list();
    let mut states = names(&listed);
    states.sort_unstable();
    assert_eq!(states, ["running", "stopped"], "{listed:#}");
    let found = listed.as_array().unwrap().iter().find(|array| array["state"] == "stopped").unwrap();
    assert_eq!((&found["member_count"], found["members"].as_array().unwrap().len()), (&3.into(), 2), "{found:#}");
    assert_eq!(found["health"], "clean, member 1 not found");
    let served = listed.as_array().unwrap().iter().find(|array| array["state"] == "running").unwrap();
    assert_eq!(served["uri"].as_str().unwrap(), server.uri());
    let text = uraid(directory.path(), &["list", place.to_str().unwrap()]).success().text();
    assert!(text.contains("RAID 5 of 3 members") && text.contains(server.uri()), "{text}");
    let _ = server.stop();
}

#[test]
fn a_server_that_hangs_is_listed_beside_others() {
    let directory = tempfile::tempdir().unwrap();
    let (hung, running) = (Array::create(&shape::raid5_of_3()), Array::create(&shape::raid1_of_2()));
    let [hangs, runs] = [&hung, &running].map(|array| served(array, directory.path()));
    hangs.signal(Signal::STOP);
    let listed = uraid(directory.path(), &["list", "--json"]).success().json();
    let mut states = names(&listed);
    states.sort_unstable();
    assert_eq!(states, ["running", "silent"], "{listed:#}");
    let control = hung.socket().with_extension("ctl").display().to_string();
    let text = uraid(directory.path(), &["list"]).success().text();
    assert!(text.contains(&format!("{control} did not answer")) && text.contains(runs.uri()), "{text}");
    let refused = uraid(directory.path(), &["status", "--array", "none"]).code_is(1);
    assert!(refused.stderr.contains(&control), "{}", refused.stderr);
    hangs.signal(Signal::CONT);
    let _ = (hangs.stop(), runs.stop());
}

#[test]
fn who_was_replaced_is_not_listed_among_the_members() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let new = array.path("new");
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = ask(&array, &["remove", "1"]).success();
    let _ = ask(&array, &["add", "--size", "16M", new.to_str().unwrap()]).success();
    let _ = ask(&array, &["wait"]).success();
    let _ = server.stop();
    let place = new.parent().unwrap().to_str().unwrap();
    let listed = binary::uraid(["list", "--json", place]).success().json();
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    assert_eq!(listed[0]["members"], serde_json::json!([name(&array.members()[0]), name(&new)]), "{listed:#}");
    assert_eq!(listed[0]["former"], serde_json::json!([name(&array.members()[1])]), "{listed:#}");
    let text = binary::uraid(["list", place]).success().text();
    assert!(text.contains("not its members any more") && text.contains("all members found"), "{text}");
}

#[test]
fn a_stopped_array_gets_another_name() {
    let array = Array::create(&shape::raid5_of_3());
    let rename = |name: &str| {
        let mut words = vec!["rename".into(), "--json".into(), name.to_owned()];
        words.extend(array.members().iter().map(|member| member.display().to_string()));
        binary::uraid(words)
    };
    assert_eq!(rename("archive").success().json()["name"], "archive");
    assert_eq!(array.examine()["name"], "archive");
    let server = Server::start(&array);
    assert!(server.uri().contains("/archive?"), "{}", server.uri());
    let busy = rename("other").code_is(1);
    assert!(busy.stderr.contains(&server.pid().to_string()), "who uses it: {}", busy.stderr);
    let _ = server.stop();
}

#[test]
fn members_are_wiped_only_when_that_is_meant() {
    let array = Array::create(&shape::raid5_of_3());
    let member = array.members()[2].to_str().unwrap();
    let stranger = array.path("stranger");
    fs::write(&stranger, vec![7; 4 << 20]).unwrap();
    let stranger = stranger.to_str().unwrap();

    let asked = binary::uraid(["wipe", member]).code_is(1);
    assert!(asked.stderr.contains("member 2 of array") && asked.stderr.contains("--force"), "{}", asked.stderr);
    let _ = binary::uraid(["wipe", "--force", member, stranger]).code_is(1);
    assert!(fs::read(stranger).unwrap().iter().all(|&byte| byte == 7));
    let server = Server::start(&array);
    let busy = binary::uraid(["wipe", "--force", member]).code_is(1);
    assert!(busy.stderr.contains(&server.pid().to_string()), "who uses it: {}", busy.stderr);
    let _ = server.stop();
    assert_eq!(array.examine()["missing"], serde_json::json!([]), "nothing was wiped");

    let said = binary::uraid(["wipe", "--force", member]).success();
    assert!(said.text().contains("wiped"), "{}", said.text());
    let gone = binary::uraid(["examine", member]).code_is(1);
    assert!(gone.stderr.contains(member), "{}", gone.stderr);
    let refused = Server::refused(&array, array.members(), &[]);
    assert!(refused.stderr.contains(member), "{}", refused.stderr);
    let _ = Server::start_members(&array, &array.without(&[2]), &["--degraded"]).stop();
}

#[test]
fn an_array_whose_server_does_not_answer_is_not_called_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let array = Array::create(&shape::raid5_of_3());
    let server = served(&array, directory.path());
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    // As a server that hangs: nobody finds it any more.
    fs::remove_file(array.socket().with_extension("ctl")).unwrap();
    let members: Vec<&str> = array.members().iter().map(|path| path.to_str().unwrap()).collect();
    let listed = uraid(directory.path(), &[&["list", "--json"][..], &members].concat()).success().json();
    assert_eq!(names(&listed), ["in use"], "{listed:#}");
    let text = uraid(directory.path(), &[&["list"][..], &members].concat()).success().text();
    assert!(text.contains(&format!("process {}", server.pid())), "{text}");
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let _ = server.end();
}
