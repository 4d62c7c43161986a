//! What shells are told of a command line that is not finished.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::run::{client_command, run};
use uraid_tests::server::Server;
use uraid_tests::shape;

/// What may come next: `words` begin with the program's name and end with the one that is completed.
fn candidates(words: &[&str], servers: &Path) -> Vec<String> {
    let mut command = binary::command();
    command.env("URAID_COMPLETE", "bash").env("_CLAP_IFS", "\n").env("URAID_RUNTIME_DIR", servers);
    command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string()).current_dir(servers).arg("--").args(words);
    let output = run(command).success();
    assert_eq!(output.stderr, "", "{words:?}");
    output.text().lines().map(str::to_owned).collect()
}

#[test]
fn every_script_is_one_that_its_shell_understands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = binary::uraid(["completions", shell]).success();
        assert!(output.text().contains("URAID_COMPLETE"), "{shell}: {}", output.text());
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, &output.stdout).unwrap();
        let mut command = client_command(shell);
        command.arg("-n").arg(&script);
        assert_eq!(run(command).success().stderr, "", "{shell}");
    }
    let _ = binary::uraid(["completions", "tcsh"]).code_is(2);
}

#[test]
fn bash_completes_with_the_script() {
    let directory = tempfile::tempdir().unwrap();
    symlink(binary::path(), directory.path().join("uraid")).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let script = "source <(uraid completions bash); COMP_WORDS=(uraid sta); COMP_CWORD=1; COMP_TYPE=9
        _clap_complete_uraid uraid sta uraid; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("PATH", path);
    let output = run(command).success();
    assert_eq!((output.text().as_str(), output.stderr.as_str()), ("status\n", ""));
}

#[test]
fn commands_options_and_values_are_completed() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("disk0"), "").unwrap();
    let complete = |words: &[&str]| candidates(words, directory.path());
    assert_eq!(complete(&["uraid", "fa"]), ["fail"]);
    assert_eq!(complete(&["uraid", "create", "--lev"]), ["--level"]);
    assert_eq!(complete(&["uraid", "create", "--level", "r"]), ["rm2"]);
    assert_eq!(complete(&["uraid", "create", "--level", "5", "di"]), ["disk0"]);
    assert!(!complete(&["uraid", ""]).contains(&"man".to_owned()), "packagers' command is hidden");
}

#[test]
fn members_and_sockets_of_running_servers_are_completed() {
    let directory = tempfile::tempdir().unwrap();
    let complete = |words: &[&str]| candidates(words, directory.path());
    let is_option = |word: &String| word.starts_with('-');
    let values = |words: &[&str]| complete(words).into_iter().filter(|word| !is_option(word)).collect::<Vec<_>>();
    assert_eq!(values(&["uraid", "fail", ""]), [""; 0], "nobody runs");

    let array = Array::create(&shape::raid5_of_3());
    let mut command = Server::command(&array, array.members(), &[]);
    command.env("URAID_RUNTIME_DIR", directory.path());
    let server = Server::spawn(command, array.socket()).unwrap();
    let paths: Vec<String> = array.members().iter().map(|path| path.display().to_string()).collect();
    let expected = ["0", &paths[0], "1", &paths[1], "2", &paths[2]];
    assert_eq!(values(&["uraid", "fail", ""]), expected);
    assert_eq!(values(&["uraid", "fail", "2"]), ["2"]);
    assert_eq!(values(&["uraid", "replace", &paths[1]]), [paths[1].as_str()]);
    let control = array.socket().with_extension("ctl").display().to_string();
    assert_eq!(values(&["uraid", "stop", "--socket", &control[..control.len() - 2]]), [control.as_str()]);

    // The server that the line names counts, and not the one that runs.
    let other = directory.path().join("other.sock").display().to_string();
    assert_eq!(values(&["uraid", "fail", "--socket", &other, ""]), [""; 0]);
    let named = array.socket().display().to_string();
    assert_eq!(values(&["uraid", "fail", "-s", &named, "1"]), ["1"]);
    let _ = server.stop();
}

#[test]
fn a_server_that_hangs_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("mute.ctl");
    // It takes connections and never answers, as a server that hangs does.
    let _mute = UnixListener::bind(&control).unwrap();
    let found = candidates(&["uraid", "fail", "-s", control.to_str().unwrap(), ""], directory.path());
    assert!(found.iter().all(|word| word.starts_with("--")), "{found:?}");
}

#[test]
fn names_of_files_are_words_for_bash_whatever_they_are() {
    let directory = tempfile::tempdir().unwrap();
    symlink(binary::path(), directory.path().join("uraid")).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    for (name, begun) in [("do$(touch PWNED)l", "do"), ("sp ace", "sp"), ("st*r", "st"), ("starter", "starte")] {
        std::fs::write(directory.path().join(name), "").unwrap();
        // What readline would run is a line with the answer in it.
        let script = format!(
            "source <(uraid completions bash); COMP_WORDS=(uraid list {begun}); COMP_CWORD=2; COMP_TYPE=9
            _clap_complete_uraid uraid {begun} list; eval \"printf '%s\\n' ${{COMPREPLY[*]}}\""
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).env("PATH", &path).current_dir(directory.path());
        assert_eq!(run(command).success().text(), format!("{name}\n"));
    }
    assert!(!directory.path().join("PWNED").exists());
}

#[test]
fn commands_are_offered_by_their_own_names() {
    let directory = tempfile::tempdir().unwrap();
    let offered = candidates(&["uraid", ""], directory.path());
    for (name, other) in [("serve", "assemble"), ("status", "detail"), ("remove", "detach")] {
        assert!(offered.contains(&name.to_owned()) && !offered.contains(&other.to_owned()), "{offered:?}");
    }
    assert!(candidates(&["uraid", "assemble", "--degr"], directory.path()).contains(&"--degraded".to_owned()));
}
