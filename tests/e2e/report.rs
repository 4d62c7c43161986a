//! `uraid report` has what a report of a bug needs, whatever does not answer, and names nobody's things if asked.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::process::Output;
use uraid_tests::run::run;
use uraid_tests::server::Server;
use uraid_tests::shape;

/// The last lines of a journal that has a unit's.
const JOURNAL: &str = "#!/bin/sh\necho \"2026-01-01T00:00:00+00:00 $(uname -n) uraid[1]: $*\"\n";

/// Runs the command beside a journal that the test has made.
fn report(array: &Array, words: &[&str]) -> Output {
    let journal = array.path("journalctl");
    std::fs::write(&journal, JOURNAL).unwrap();
    std::fs::set_permissions(&journal, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = binary::command();
    command.arg("report").args(words).env("PATH", format!("{}:{path}", array.path("").display()));
    run(command)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The text under a heading.
fn section<'a>(report: &'a str, title: &str) -> &'a str {
    let (_, rest) = report.split_once(&format!("== {title} ==\n\n")).unwrap_or_else(|| panic!("{title} in {report}"));
    rest.split("\n== ").next().unwrap()
}

#[test]
fn a_report_has_all_that_can_be_known() {
    let array = Array::planned(&shape::raid5_of_3());
    let _ = array.run_create(16 << 20, &["--name", "vault"]).success();
    let server = Server::start(&array);
    server.connect().write(0, &[b'Z'; 4096]);
    let file = array.path("report.txt");
    let socket = array.socket();
    let words = ["--socket", text(&socket), "--unit", "raid.service", "--log-lines", "7"];
    assert_eq!(report(&array, &[&words[..], &["-o", text(&file)]].concat()).success().text(), "");
    let found = std::fs::read_to_string(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for (title, has) in [
        ("version", "uraid "),
        ("system", "io_uring: available"),
        ("system", "kernel: Linux"),
        ("status of the server", "\"health\""),
        ("metrics of the server", "uraid_build_info{"),
        ("the array on the members", "\"consistency\": \"log\""),
        ("layout", "disk0 disk1 disk2"),
        ("log", "--lines 7 --unit raid.service"),
    ] {
        assert!(section(&found, title).contains(has), "{has}: {found}");
    }
    let uuid = array.facts()[1].uuid.clone();
    for member in array.members() {
        assert!(section(&found, "members").contains(text(member)), "{found}");
    }
    assert!(found.contains("vault") && found.contains(&uuid), "{found}");
    assert!(!found.contains("ZZZZ"), "no content");

    let found = report(&array, &[&words[..], &["--redact"]].concat()).success().text();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let directory = text(&array.path("")).trim_end_matches('/').to_owned();
    for private in ["vault", &host, &directory, &uuid, array.examine()["uuid"].as_str().unwrap()] {
        assert!(!found.contains(private), "{private} is in {found}");
    }
    // The same member has the same name wherever it stands.
    let first = section(&found, "members").split(':').next().unwrap();
    assert!(first.starts_with("path-"), "{found}");
    let quoted = format!("\"{first}\"");
    for title in ["status of the server", "the array on the members"] {
        assert!(section(&found, title).contains(&quoted), "{first}: {found}");
    }
    let _ = server.stop();
}

#[test]
fn a_server_or_a_member_that_does_not_answer_costs_its_section() {
    let array = Array::create(&shape::raid5_of_3());
    // It takes connections, and answers nobody.
    let _deaf = UnixListener::bind(array.path("nbd.ctl")).unwrap();
    std::fs::write(&array.members()[1], [0; 4096]).unwrap();
    array.remove(&[2]);
    let socket = array.socket();
    let mut words = vec!["--socket", text(&socket), "--deadline", "1s"];
    words.extend(array.members().iter().map(|member| text(member)));
    let found = report(&array, &words).success().text();
    for title in ["status of the server", "metrics of the server"] {
        assert!(section(&found, title).starts_with("not known: no answer within 1 s"), "{found}");
    }
    let members = section(&found, "members");
    assert!(members.contains("slot 0") && members.contains("No such file"), "{members}");
    assert!(members.contains("has no uraid superblock") || members.contains("too small"), "{members}");
    assert!(section(&found, "the array on the members").contains("\"missing\""), "{found}");

    // Without anything at all it is a report, too.
    let none = array.path("none.sock");
    let found = report(&array, &["--socket", text(&none)]).success().text();
    assert!(section(&found, "status of the server").contains("no server answers"), "{found}");
    assert!(section(&found, "members").contains("uraid report MEMBER"), "{found}");
    let refused = report(&array, &["--socket", text(&none), "-o", "/"]).code_is(1).stderr;
    assert!(refused.contains("is a directory"), "{refused}");
}

#[test]
fn a_document_replaces_no_member() {
    let array = Array::create(&shape::raid5_of_3());
    let member = &array.members()[0];
    let before = std::fs::read(member).unwrap();
    let link = array.path("link");
    std::os::unix::fs::symlink(member, &link).unwrap();
    for file in [member, &link] {
        let refused = report(&array, &["-o", text(file), text(&array.members()[1])]).code_is(1);
        assert!(refused.stderr.contains("holds something else"), "{}", refused.stderr);
        let drawing = ["layout", "--level", "5", "--members", "3", "--svg", text(file)];
        let refused = binary::uraid(drawing).code_is(1);
        assert!(refused.stderr.contains("holds something else"), "{}", refused.stderr);
    }
    assert!(std::fs::read(member).unwrap() == before, "the member is as it was");
}
