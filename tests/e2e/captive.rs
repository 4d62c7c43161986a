//! A command that runs beside a server (`--run`), which ends with it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same};
use uraid_tests::process::{Output, Process};
use uraid_tests::shape;

use crate::control::ask;

/// How long a server may take from its start to its end.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The command that serves an array while `run` runs. Temporary directories are in one of the array's own.
fn serve(array: &Array, run: &str, options: &[&str]) -> Command {
    let temporary = array.path("tmp");
    fs::create_dir_all(&temporary).unwrap();
    let mut command = binary::command();
    command.env("TMPDIR", temporary).args(["serve", "--run", run]).args(options).args(array.members());
    command
}

fn run(array: &Array, run: &str, options: &[&str]) -> Output {
    Process::start(serve(array, run, options)).finish(TIME_MAX)
}

fn fifo(array: &Array, name: &str) -> PathBuf {
    let path = array.path(name);
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    path
}

/// A line that a command writes to a FIFO.
fn line(fifo: &Path) -> String {
    let mut text = String::new();
    let _ = fs::File::open(fifo).unwrap().read_to_string(&mut text).unwrap();
    text.trim().to_owned()
}

/// Whether nothing is left in the directory for temporary ones, and the members are marked clean.
fn assert_nothing_is_left(array: &Array) {
    assert_eq!(fs::read_dir(array.path("tmp")).unwrap().count(), 0);
    assert_eq!(array.examine()["state"], "clean", "{:#}", array.examine());
}

#[test]
fn a_client_runs_as_the_servers_command_and_its_status_is_the_servers() {
    let array = Array::create(&shape::raid5_of_3());
    let image = Random::new(71).bytes(array.expected_size());
    let (source, copy) = (array.path("source.img"), array.path("copy.img"));
    fs::write(&source, &image).unwrap();
    let write = format!("nbdcopy {} \"$uri\" && nbdinfo --size \"$uri\"", source.display());
    let output = run(&array, &write, &[]).success();
    assert_eq!(output.text().trim(), image.len().to_string(), "only the command prints: {output:?}");
    Content::read(&array).assert_holds(&image, "written by a command");
    let read = format!("nbdcopy \"$uri\" {}; exit 7", copy.display());
    let _ = run(&array, &read, &["--connection-threads", "2"]).code_is(7);
    assert_same(&fs::read(&copy).unwrap(), &image, "read by a command");
    let _ = run(&array, "kill -KILL $$", &[]).code_is(128 + Signal::KILL.as_raw());
    let _ = run(&array, "no-such-program-anywhere 2> /dev/null", &[]).code_is(127);
    assert_nothing_is_left(&array);
}

#[test]
fn a_command_is_told_the_parts_of_the_place() {
    let array = Array::create(&shape::raid1_of_2());
    let socket = array.socket();
    let socket = socket.to_str().unwrap();
    let show = "printf '%s\n' \"$uri\" \"${unixsocket-none}\" \"${port-none}\" \"$exportname\"; \
                test -S \"$unixsocket\"; stat --format=%a \"$(dirname \"$unixsocket\")\"";
    let lines = |options: &[&str]| -> Vec<String> {
        let output = run(&array, show, options);
        output.text().lines().map(str::to_owned).collect()
    };
    let own = lines(&["--export", "a disk"]);
    assert_eq!(own[0], format!("nbd+unix:///a%20disk?socket={}", own[1]));
    assert!(own[1].starts_with(array.path("tmp").to_str().unwrap()), "{own:?}");
    assert_eq!(own[2..], ["none", "a disk", "700"]);
    let both = lines(&["--socket", socket, "--listen", "127.0.0.1:0", "--export", "x"]);
    assert_eq!(both[..2], [format!("nbd+unix:///x?socket={socket}"), socket.to_owned()]);
    assert!(both[2].parse::<u16>().is_ok_and(|port| port > 0), "{both:?}");
    let tcp = lines(&["--listen", "127.0.0.1:0", "--export", "x"]);
    assert_eq!(tcp[..2], [format!("nbd://127.0.0.1:{}/x", tcp[2]), "none".to_owned()]);
    assert_nothing_is_left(&array);
}

/// A command gets SIGTERM when the server stops for another reason, and can still say how it ended.
#[test]
fn a_server_that_stops_ends_its_command() {
    let array = Array::create(&shape::raid1_of_2());
    let ready = fifo(&array, "ready");
    let socket = array.socket();
    let command = format!(
        "trap 'exit 5' TERM; nbdsh --version > /dev/null; echo $$ > {}; while :; do sleep 1; done",
        ready.display()
    );
    let started = || {
        let server = Process::start(serve(&array, &command, &["--socket", socket.to_str().unwrap()]));
        let pid: i32 = line(&ready).parse().unwrap();
        (server, Pid::from_raw(pid).unwrap())
    };
    let (server, _) = started();
    server.signal(Signal::TERM);
    let _ = server.finish(TIME_MAX).code_is(5);
    let (server, _) = started();
    let _ = ask(&array, &["stop"]).success();
    let _ = server.finish(TIME_MAX).code_is(5);
    // The command's own end is what stops this one.
    let (server, pid) = started();
    kill_process(pid, Signal::INT).unwrap();
    let _ = server.finish(TIME_MAX).code_is(128 + Signal::INT.as_raw());
    assert_nothing_is_left(&array);
}

/// A command whose shell waits for a program that says which process it is.
fn waiting(ready: &Path) -> String {
    format!("sh -c 'echo $$ > {}; exec sleep 1000'; true", ready.display())
}

/// A process, to be waited for.
fn watched(pid: &str) -> OwnedFd {
    pidfd_open(Pid::from_raw(pid.parse().unwrap()).unwrap(), PidfdFlags::empty()).unwrap()
}

#[track_caller]
fn assert_ends(process: &OwnedFd) {
    let time_max = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&time_max)).unwrap(), 1, "it goes on");
}

/// The shell is not the only one who gets the signal.
#[test]
fn a_program_that_the_shell_waits_for_ends_with_the_server() {
    let array = Array::create(&shape::raid1_of_2());
    let ready = fifo(&array, "ready");
    let mut command = serve(&array, &waiting(&ready), &[]);
    // Whoever runs the tests may do so in a terminal.
    command.process_group(0);
    let server = Process::start(command);
    let program = watched(&line(&ready));
    server.signal(Signal::TERM);
    let _ = server.finish(TIME_MAX).code_is(128 + Signal::TERM.as_raw());
    assert_ends(&program);
    assert_nothing_is_left(&array);
}

#[test]
fn the_keys_of_a_terminal_reach_the_server_and_its_command() {
    let array = Array::create(&shape::raid1_of_2());
    let ready = fifo(&array, "ready");
    let server = serve(&array, &waiting(&ready), &[]);
    let words: Vec<_> = [server.get_program()].into_iter().chain(server.get_args()).collect();
    let line_of = words.iter().map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''")));
    let mut command = Command::new("script");
    command.env("TMPDIR", array.path("tmp")).stdin(Stdio::piped());
    command.args(["--quiet", "--return", "--command", &line_of.collect::<Vec<_>>().join(" "), "/dev/null"]);
    let mut terminal = Process::start(command);
    let program = watched(&line(&ready));
    let mut keys = terminal.take_stdin();
    keys.write_all(b"\x03").unwrap();
    // Whether its shell gets the server's SIGTERM before it has ended is a race.
    let ended = terminal.finish(TIME_MAX).code;
    assert!([Signal::INT, Signal::TERM].map(|signal| Some(128 + signal.as_raw())).contains(&ended), "{ended:?}");
    assert_ends(&program);
    assert_nothing_is_left(&array);
}

/// What a command wrote and did not flush is on the members when its server has ended.
#[test]
fn what_a_command_wrote_is_kept_also_without_a_flush() {
    let array = Array::create(&shape::raid5_of_3());
    let write = "qemu-io -f raw -t unsafe -c 'write -P 0xa7 4096 65536' \"$uri\" > /dev/null";
    let _ = run(&array, write, &[]).success();
    let content = Content::read(&array);
    content.assert_consistent("after a command");
    assert!(content.image()[4096..4096 + 65536].iter().all(|&byte| byte == 0xa7));
    assert_nothing_is_left(&array);
}

#[test]
fn a_server_that_can_not_start_runs_no_command() {
    let array = Array::create(&shape::raid1_of_2());
    let touched = array.path("touched");
    let touch = format!("touch {}", touched.display());
    let refused = run(&array, &touch, &["--listen", "no-such-host.invalid:1"]).code_is(1);
    assert!(refused.stderr.contains("no-such-host.invalid"), "{refused:?}");
    assert!(!touched.exists());
    let refused = run(&array, &touch, &["--socket", "/no/such/directory/nbd.sock"]).code_is(1);
    assert!(refused.stderr.contains("/no/such/directory"), "{refused:?}");
    assert!(!touched.exists());
    assert_nothing_is_left(&array);
}
