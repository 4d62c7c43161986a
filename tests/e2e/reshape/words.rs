//! What is said of an array that is being reshaped, or was: events, reasons, and what to do.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::{blank, full, reshape, text};
use crate::control::ask;

/// Whoever hears of the end of a reshape hears which way it went: in the log, in its fields, and as a program.
#[test]
fn the_end_of_a_reshape_says_which_way_it_went() {
    for is_back in [false, true] {
        let array = Array::create(&shape::raid5_of_3());
        let _ = full(&array);
        let (old, new) = (array.members().to_vec(), blank(&array, "n3"));
        let all = [old.clone(), vec![new.clone()]].concat();
        let _ = reshape(&["--begin", "--add", text(&new)], &old).success();
        let (hook, told) = (array.path("hook"), array.path("told"));
        std::fs::write(&hook, format!("#!/bin/sh\necho \"$1|$URAID_SHAPE\" >>{}\n", told.display())).unwrap();
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
        let options = ["--log-format", "json", "--on-event", text(&hook), "--reshape-limit", "1M"];
        let mut command = Server::command(&array, &all, &options);
        command.env("URAID_LOG", "info");
        let server = Server::spawn(command, array.socket()).unwrap();
        if is_back {
            let _ = ask(&array, &["reshape", "--abort"]).success();
        }
        let _ = ask(&array, &["set", "--reshape-limit", "none"]).success();
        let _ = ask(&array, &["wait"]).success();
        let _ = ask(&array, &["stop"]).success();
        let log = server.end().success().stderr;
        let mut lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        let ended = lines.find(|line| line["event"] == "reshaped").unwrap_or_else(|| panic!("it ends: {log}"));
        let (said, shape) = if is_back { ("went back", "old") } else { ("has its new shape", "new") };
        assert_eq!(ended["back"], is_back, "{ended}");
        assert!(ended["message"].as_str().is_some_and(|message| message.contains(said)), "{ended}");
        let told = std::fs::read_to_string(&told).unwrap();
        assert!(told.lines().any(|line| line == format!("reshaped|{shape}")), "{told}");
        assert!(told.lines().any(|line| line == "started|"), "{told}");
    }
}
