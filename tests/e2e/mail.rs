//! The program for `--on-event` that sends mail, with mail systems that write down what they get.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use uraid_tests::array::Array;
use uraid_tests::process::Output;
use uraid_tests::run::run;
use uraid_tests::server::Server;
use uraid_tests::shape;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/cli/contrib/on-event-mail.sh");

/// A program in a directory that writes down its arguments and its input.
fn recorder(directory: &Path, name: &str) -> PathBuf {
    let (program, told) = (directory.join(name), directory.join("told"));
    std::fs::write(&program, format!("#!/bin/sh\n{{ echo \"{name} $*\"; cat; }} >>'{}'\n", told.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    told
}

/// Runs the script where nothing but `programs` and what it needs itself can be found.
fn mail(directory: &Path, words: &[&str], variables: &[(&str, &str)]) -> Output {
    for needed in ["uname", "tr", "cat"] {
        let link = directory.join(needed);
        let found = ["/usr/bin", "/bin"].map(|bin| Path::new(bin).join(needed)).into_iter().find(|path| path.exists());
        if !link.exists() {
            std::os::unix::fs::symlink(found.unwrap(), link).unwrap();
        }
    }
    let mut command = Command::new("/bin/sh");
    command.arg(SCRIPT).args(words).env_clear().env("PATH", directory).envs(variables.iter().copied());
    run(command)
}

#[test]
fn a_mail_says_what_has_happened_to_what() {
    let directory = tempfile::tempdir().unwrap();
    let told = recorder(directory.path(), "sendmail");
    let variables = [("URAID_MAIL_TO", "admin@example.org"), ("URAID_HEALTH", "degraded: member 1 is missing")];
    let _ = mail(directory.path(), &["member-failed", "my\nvault", "/dev/my disk"], &variables).success();
    let text = std::fs::read_to_string(&told).unwrap();
    let (head, body) = text.split_once("\n\n").unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!(head.lines().next(), Some("sendmail -i -t"));
    for line in ["To: admin@example.org".to_owned(), format!("Subject: uraid on {host}: myvault: member-failed")] {
        assert!(head.lines().any(|other| other == line), "{line} in {head}");
    }
    for line in ["Event:  member-failed", "Member: /dev/my disk", "Health: degraded: member 1 is missing"] {
        assert!(body.lines().any(|other| other == line), "{line} in {body}");
    }
}

#[test]
fn only_events_that_are_wanted_are_mailed() {
    let directory = tempfile::tempdir().unwrap();
    let told = recorder(directory.path(), "sendmail");
    let _ = mail(directory.path(), &["started", "vault"], &[]).success();
    assert!(!told.exists(), "a start needs nobody");
    let _ = mail(directory.path(), &["member-failed", "vault"], &[("URAID_MAIL_EVENTS", "started stopped")]).success();
    assert!(!told.exists());
    let _ = mail(directory.path(), &["started", "vault"], &[("URAID_MAIL_EVENTS", "all")]).success();
    assert!(std::fs::read_to_string(&told).unwrap().contains("To: root\n"));
}

#[test]
fn without_sendmail_there_may_be_mail() {
    let directory = tempfile::tempdir().unwrap();
    if ["/usr/sbin/sendmail", "/usr/lib/sendmail"].iter().any(|path| Path::new(path).exists()) {
        return;
    }
    let refused = mail(directory.path(), &["frozen", "vault"], &[]).code_is(1).stderr;
    assert!(refused.contains("neither sendmail nor mail"), "{refused}");
    let told = recorder(directory.path(), "mail");
    let _ = mail(directory.path(), &["frozen", "vault"], &[]).success();
    let text = std::fs::read_to_string(&told).unwrap();
    assert!(text.starts_with("mail -s uraid on ") && text.contains("frozen root\nEvent:  frozen\n"), "{text}");
}

/// The server runs the script, and each event that it mails is one of the server's.
#[test]
fn a_server_sends_mail() {
    let array = Array::create(&shape::raid5_of_3());
    let directory = tempfile::tempdir().unwrap();
    let told = recorder(directory.path(), "sendmail");
    let mut command = Server::command(&array, &array.without(&[1]), &["--degraded", "--on-event", SCRIPT]);
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    command.env("PATH", path);
    let _ = Server::spawn(command, array.socket()).unwrap().stop();
    let text = std::fs::read_to_string(&told).unwrap();
    let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("Event:  ")).collect();
    assert_eq!(events, ["member-missing", "degraded"], "{text}");

    let script = std::fs::read_to_string(SCRIPT).unwrap();
    let (_, list) = script.split_once("wanted=${URAID_MAIL_EVENTS:-\"").unwrap();
    let help = uraid_tests::binary::uraid(["serve", "--help"]).success().text();
    let known: Vec<&str> = help.split([' ', ',', '.', '\n']).collect();
    for event in list.split('"').next().unwrap().split([' ', '\\', '\n']).filter(|event| !event.is_empty()) {
        assert!(known.contains(&event), "{event} is an event of `uraid serve --help`");
    }
}
