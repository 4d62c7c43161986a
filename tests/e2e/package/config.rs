//! `uraid serve --config`: an array that a file describes.

use std::fs;
use std::process::Command;

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::Random;
use uraid_tests::run::{Output, run};
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::status;

/// The command, under its other name, that serves what a file with this text describes.
fn serve(array: &Array, text: &str, words: &[&str]) -> Command {
    let file = array.path("array.toml");
    fs::write(&file, text).unwrap();
    let mut command = binary::command();
    command.arg("assemble").args(words).arg("--config").arg(file);
    command
}

fn members(array: &Array) -> String {
    format!("members = {:?}\n", array.members())
}

fn refused(array: &Array, text: &str) -> Output {
    let output = run(serve(array, text, &[]));
    assert!(output.stderr.contains("array.toml: "), "{}", output.stderr);
    assert!(!output.stderr.contains("Usage:"), "it is not the command line that is wrong: {}", output.stderr);
    output
}

#[test]
fn an_array_is_served_as_its_file_says() {
    let array = Array::create(&shape::raid5_of_3());
    let text = members(&array) + &format!("socket = {:?}\ncache = 'writethrough'\nreactors = 2\n", array.socket());
    let server = Server::spawn(serve(&array, &text, &[]), array.socket()).unwrap();
    let said = status(&array);
    assert_eq!((&said["cache_mode"], &said["reactors"]), (&"writethrough".into(), &2.into()), "{said:#}");
    server.connect().write(0, &Random::new(1).bytes(512));
    let _ = server.stop();
}

#[test]
fn the_command_line_counts_more() {
    let array = Array::create(&shape::raid5_of_3());
    let text = members(&array) + "socket = '/nowhere/at/all.sock'\ncache = 'none'\nread-only = true\n";
    let socket = array.socket();
    let words = ["--socket", socket.to_str().unwrap(), "--cache", "writethrough"];
    let server = Server::spawn(serve(&array, &text, &words), array.socket()).unwrap();
    let said = status(&array);
    assert_eq!((&said["cache_mode"], &said["read_only"]), (&"writethrough".into(), &true.into()), "{said:#}");
    let _ = server.stop();
}

#[test]
fn members_that_are_missing_are_waited_for_and_then_refused() {
    let array = Array::create(&shape::raid5_of_3());
    let without = format!("members = {:?}\nsocket = {:?}\n", array.without(&[1]), array.socket());
    let refused = run(serve(&array, &(without.clone() + "wait-for-members = '1s'\n"), &[])).code_is(1);
    assert!(refused.stderr.contains("not there after 1 s"), "{}", refused.stderr);
    let degraded = without + "wait-for-members = '1s'\ndegraded = true\n";
    let server = Server::spawn(serve(&array, &degraded, &[]), array.socket()).unwrap();
    let _ = server.stop();
}

#[test]
fn a_file_that_is_wrong_is_refused_by_the_name_of_the_key() {
    let array = Array::create(&shape::raid1_of_2());
    let good = members(&array);
    for (text, named) in [
        (good.clone() + "sockets = 'x'", "there is no key 'sockets'"),
        (good.clone() + "degraded = 1", "degraded can't be a TOML integer"),
        (good.clone() + "cache = 'sometimes'", "'--cache <MODE>'"),
        (good.clone() + "cache-size = 'much'", "'--cache-size <SIZE>'"),
        (good.clone() + "uuid = 'x'", "'--uuid <UUID>'"),
        (good.clone() + "socket = 'a.sock'\nlisten = '127.0.0.1:0'", "cannot be used with"),
        ("degraded = true".into(), "names no members"),
        ("members = [".into(), "line 1"),
    ] {
        let output = refused(&array, &text).code_is(2);
        assert!(output.stderr.contains(named), "{text}: {}", output.stderr);
    }
    let mut command = binary::command();
    let missing = run({
        command.args(["serve", "--config", "/nowhere/array.toml"]);
        command
    });
    assert!(missing.code_is(1).stderr.contains("can't read /nowhere/array.toml"));
    let _ = binary::uraid(["serve"]).code_is(2);
}
