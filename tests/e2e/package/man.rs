//! Manual pages.

use std::collections::BTreeSet;
use std::fs;

use uraid_tests::binary;
use uraid_tests::run::{client_command, run};

/// The commands that the overview lists.
fn commands() -> Vec<String> {
    let help = binary::uraid(["--help"]).success().text();
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    lines.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let _ = binary::uraid(["man", directory.path().to_str().unwrap()]).success();
    let pages: BTreeSet<String> =
        fs::read_dir(directory.path()).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    let mut expected: BTreeSet<String> = commands().iter().map(|command| format!("uraid-{command}.1")).collect();
    assert!(expected.len() > 20, "{expected:?}");
    expected.extend(["", "-scrub-start", "-scrub-stop", "-scrub-status"].map(|name| format!("uraid{name}.1")));
    expected.extend(["chunk", "compare", "retrieval", "workloads"].map(|name| format!("uraid-bench-{name}.1")));
    expected.insert("uraid-simulate-array.1".into());
    expected.insert("uraid-simulate-reliability.1".into());
    assert_eq!(pages, expected);
    let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    assert!(page("uraid-fail.1").contains("records that it has failed"));
    assert!(page("uraid-create.1").contains("uraid create \\-\\-level 5"), "{}", page("uraid-create.1"));
    for name in &pages {
        let mut command = client_command("man");
        command.args(["--warnings=w", "-l"]).arg(directory.path().join(name)).env("LC_ALL", "C.UTF-8");
        let output = run(command).success();
        assert!(output.text().contains("EXIT STATUS"), "{name}");
        assert_eq!(output.stderr, "", "{name}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let refused = binary::uraid(["man", "/nowhere/at/all"]).code_is(1);
    assert!(refused.stderr.contains("/nowhere/at/all/uraid"), "{}", refused.stderr);
}
