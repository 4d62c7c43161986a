//! What servers give up: root's identity (`--user`), and what a sandbox takes (`--sandbox`).

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use landlock::{ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::process::Output;
use uraid_tests::run::{client_command, run};
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::scrub::Events;
use crate::control::{PATIENCE, ask, status, until};

/// The user that servers become.
pub(crate) const USER: &str = "nobody";

/// What the system says of a user: `-u` for the number, `-g` and `-G` for groups.
pub(crate) fn id(what: &str) -> String {
    let mut command = Command::new("id");
    command.args([what, USER]);
    run(command).success().text().trim().to_owned()
}

fn uid() -> u32 {
    id("-u").parse().unwrap()
}

/// Whether there can be servers as other users; otherwise says what is left out.
#[expect(clippy::print_stdout, reason = "what a test leaves out is said")]
pub(crate) fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("left out: only root can start a server that becomes another user");
    }
    is_root
}

/// What the kernel says of each thread of a process, those for its own use included, with their names.
fn threads(pid: u32) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    // One may end meanwhile.
    let read = |task: std::path::PathBuf| {
        let name = fs::read_to_string(task.join("comm")).ok()?;
        Some((name.trim().to_owned(), fs::read_to_string(task.join("status")).ok()?))
    };
    tasks.filter_map(read).collect()
}

/// A field of a thread's status.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("{name} in {status}")).trim()
}

/// Fails unless each thread of a process is the user's alone.
#[track_caller]
pub(crate) fn assert_is_nobodys(pid: u32) {
    let [user, group, groups] = ["-u", "-g", "-G"].map(id);
    let [users, groups_of_it] = [&user, &group].map(|id| [id.as_str(); 4].join("\t"));
    let all = threads(pid);
    // Workers of io_uring keep the identity that they were born with, and use that of each request.
    let own: Vec<_> = all.iter().filter(|(name, _)| !name.starts_with("iou-")).collect();
    assert!(!own.is_empty(), "{all:?}");
    for (name, status) in own {
        let said = ["Uid", "Gid", "Groups", "NoNewPrivs"].map(|name| field(status, name));
        assert_eq!(said, [users.as_str(), &groups_of_it, &groups, "1"], "{name}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(u64::from_str_radix(field(status, set), 16), Ok(0), "{name}: {set}");
        }
    }
}

/// Fails unless there is a filter of system calls for each thread of a process.
#[track_caller]
pub(crate) fn assert_is_filtered(pid: u32) {
    let all = threads(pid);
    assert!(!all.is_empty());
    for (name, status) in all {
        assert_eq!((field(&status, "Seccomp"), field(&status, "NoNewPrivs")), ("2", "1"), "{name}");
    }
}

/// Whether the kernel has Landlock, asked without the program under test.
fn has_landlock() -> bool {
    let needed = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    needed.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn end(server: Server) -> Output {
    server.signal(Signal::TERM);
    server.end()
}

#[test]
fn a_server_of_roots_becomes_a_user_who_serves_roots_members() {
    if !is_root() {
        return;
    }
    let number = id("-u");
    for options in [&["--user", USER][..], &["--user", number.as_str(), "--connection-threads", "2", "--metrics", "0"]]
    {
        let array = Array::create(&shape::raid5_of_3());
        let image = Random::new(1).bytes(array.expected_size());
        // Its directory is root's, and only root's.
        allow(&array.path(""), 0o700);
        for round in 0..2 {
            let server = Server::start_members(&array, array.members(), options);
            assert_is_nobodys(server.pid());
            for socket in [array.socket(), array.path("nbd.ctl")] {
                let socket = socket.metadata().unwrap();
                assert_eq!((socket.uid(), socket.permissions().mode() & 0o777), (uid(), 0o600));
            }
            if round == 0 {
                write_export(server.uri(), &image);
            }
            let mut client = server.connect();
            client.write(0, &image[..512]);
            client.flush();
            assert_same(&read_export(server.uri()), &image, "what was written");
            let told = status(&array);
            assert_eq!((&told["health"]["state"], &told["user"]), (&"whole".into(), &USER.into()));
            client.disconnect();
            let stopped = end(server).success();
            assert!(stopped.stderr.contains("it stays until the next server replaces it"), "{}", stopped.stderr);
            assert!(array.socket().exists(), "its directory is root's");
            assert_eq!(array.examine()["state"], "clean");
            assert!(array.members().iter().all(|member| member.metadata().unwrap().uid() == 0));
        }
        Content::read(&array).assert_holds(&image, "stopped");
    }
}

#[test]
fn the_users_own_clients_may_connect() {
    if !is_root() {
        return;
    }
    let array = Array::create(&shape::raid1_of_2());
    allow(&array.path(""), 0o755);
    let size = |client: u32| {
        let mut command = client_command("nbdinfo");
        command.args(["--size", &format!("nbd+unix:///?socket={}", array.socket().display())]).uid(client);
        run(command)
    };
    let server = Server::start_members(&array, array.members(), &["--user", USER]);
    assert_eq!(size(uid()).success().text().trim(), array.expected_size().to_string());
    let _ = size(uid() - 1).code_is(1);
    let _ = end(server).success();
    let server = Server::start(&array);
    let _ = size(uid()).code_is(1);
    let _ = server.stop();
}

#[test]
fn who_it_can_not_become_is_refused_before_anything_is_written() {
    let array = Array::create(&shape::raid1_of_2());
    let before: Vec<_> = array.members().iter().map(|member| fs::read(member).unwrap()).collect();
    let refused = |user: &str, code| {
        let refused = Server::try_start(&array, array.members(), &["--user", user]).unwrap_err().code_is(code);
        let now: Vec<_> = array.members().iter().map(|member| fs::read(member).unwrap()).collect();
        assert!(now == before, "nothing was written");
        assert!(!array.socket().exists() && !array.path("nbd.ctl").exists());
        refused.stderr
    };
    let unknown = refused("no-such-user", 1);
    assert!(unknown.contains("no-such-user") && unknown.contains("there is no such user"), "{unknown}");
    assert!(refused("root", 2).contains("name another user"));
    let alone = Server::try_start(&array, array.members(), &["--allow-path", "/"]).unwrap_err().code_is(2);
    assert!(alone.stderr.contains("--sandbox auto"), "{}", alone.stderr);
}

#[test]
fn an_ordinary_user_serves_as_itself_alone() {
    let array = Array::create(&shape::raid1_of_2());
    // Where every user can run it.
    let program = array.path("uraid");
    fs::copy(binary::path(), &program).unwrap();
    let name = if is_root() { USER.to_owned() } else { geteuid().as_raw().to_string() };
    let serve = |user: &str| {
        let serve = Server::command(&array, array.members(), &["--user", user]);
        let mut command = Command::new(&program);
        command.args(serve.get_args()).env("NO_COLOR", "1").env("URAID_RUNTIME_DIR", "/dev/null");
        if geteuid().is_root() {
            command.uid(uid()).gid(uid());
        }
        Server::spawn(command, array.socket())
    };
    if geteuid().is_root() {
        let all = array.members().iter().cloned().chain([array.path(""), program.clone()]);
        all.for_each(|path| chown(path, Some(uid()), Some(uid())).unwrap());
    }
    let refused = serve("daemon").unwrap_err().code_is(1);
    assert!(refused.stderr.contains("only root can become another user"), "{}", refused.stderr);
    assert!(!array.socket().exists());
    let server = serve(&name).unwrap_or_else(|output| panic!("it is that user already: {}", output.stderr));
    server.connect().write(0, &[1; 512]);
    let _ = end(server).success();
    assert!(!array.socket().exists(), "it could remove its socket");
}

/// The kernel forgets whose end ends a process when its user changes.
#[test]
fn a_server_that_became_another_user_still_ends_with_its_parent() {
    if !is_root() {
        return;
    }
    let array = Array::create(&shape::raid1_of_2());
    let serve = Server::command(&array, array.members(), &["--user", USER, "--exit-with-parent"]);
    let mut command = Command::new("sh");
    let file = array.path("pid");
    // The shell becomes a program that only waits.
    command.args(["-c", &format!("\"$@\" & echo $! >{}; exec sleep 1000", file.display()), "sh"]);
    command.arg(serve.get_program()).args(serve.get_args());
    let server = Server::spawn(command, array.socket()).unwrap();
    let pid = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    assert_is_nobodys(pid);
    server.connect().write(0, &[1; 512]);
    server.kill();
    let deadline = Instant::now() + PATIENCE;
    while Path::new(&format!("/proc/{pid}")).exists() {
        if Instant::now() > deadline {
            let _ = kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL);
            panic!("the server goes on");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(array.examine()["state"], "clean", "it was stopped");
}

#[test]
fn a_command_beside_the_server_is_the_users_too() {
    if !is_root() {
        return;
    }
    let array = Array::create(&shape::raid1_of_2());
    let temporary = array.path("tmp");
    fs::create_dir(&temporary).unwrap();
    allow(&array.path(""), 0o755);
    allow(&temporary, 0o1777);
    let serve = |more: &[&str]| {
        let mut command = binary::command();
        let script = "id -u; nbdinfo --size \"$uri\"; grep NoNewPrivs /proc/self/status";
        command.env("TMPDIR", &temporary).args(["serve", "--run", script]).args(more).args(array.members());
        let output = run(command).success();
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "its directory is gone");
        output.text().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let size = array.expected_size().to_string();
    let number = id("-u");
    for more in [&["--user", USER][..], &["--user", USER, "--sandbox", "auto"]] {
        assert_eq!(serve(more), [number.as_str(), &size, "NoNewPrivs:", "1"], "{more:?}");
    }
    assert_eq!(serve(&[]), ["0", size.as_str(), "NoNewPrivs:", "0"]);
}

#[test]
fn a_sandbox_has_what_a_server_needs_and_no_more() {
    let array = Array::create(&shape::raid5_of_3());
    let elsewhere = tempfile::tempdir().unwrap();
    let new = elsewhere.path().join("new");
    let add = |array: &Array| ask(array, &["add", "--size", "16M", new.to_str().unwrap()]);
    let image = Random::new(2).bytes(array.expected_size());
    let server = Server::start_members(&array, array.members(), &["--sandbox", "auto", "--connection-threads", "1"]);
    assert_is_filtered(server.pid());
    let told = status(&array);
    assert_eq!(told["sandbox"], serde_json::json!({"paths": has_landlock(), "calls": true}));
    let shown = ask(&array, &["status"]).success().text();
    assert!(shown.contains(if has_landlock() {
        "in a sandbox (paths, system calls)"
    } else {
        "in a sandbox (system calls)"
    }));
    write_export(server.uri(), &image);
    assert_same(&read_export(server.uri()), &image, "through the sandbox");
    let _ = ask(&array, &["fail", "1"]).success();
    if has_landlock() {
        let refused = add(&array).code_is(1).stderr;
        assert!(refused.contains("--allow-path") && !new.exists(), "{refused}");
        let stopped = end(server).success();
        let allowed = elsewhere.path().to_str().unwrap();
        let options = ["--degraded", "--sandbox", "on", "--allow-path", allowed];
        let server = Server::start_members(&array, &array.without(&[1]), &options);
        let _ = add(&array).success();
        let _ = ask(&array, &["wait"]).success();
        assert!(!stopped.stderr.contains("the sandbox is not complete"), "{}", stopped.stderr);
        let _ = end(server).success();
    } else {
        let _ = add(&array).success();
        let _ = ask(&array, &["wait"]).success();
        let stopped = end(server).success();
        let lacking = "the sandbox is not complete: this kernel has no Landlock";
        assert!(stopped.stderr.contains(lacking), "{}", stopped.stderr);
        let refused = Server::refused(&array, array.members(), &["--sandbox", "on"]).stderr;
        assert!(refused.contains("this kernel has no Landlock") && refused.contains("--sandbox auto"), "{refused}");
    }
    assert!(!array.socket().exists(), "the server leaves nothing behind");
    let members = [array.without(&[1]), vec![new.clone()]].concat();
    let server = Server::start_members(&array, &members, &[]);
    assert_same(&read_export(server.uri()), &image, "after the sandbox");
    let _ = server.stop();
}

#[test]
fn there_is_no_sandbox_unless_one_is_asked_for() {
    let array = Array::create(&shape::raid1_of_2());
    for options in [&[][..], &["--sandbox", "off"]] {
        let server = Server::start_members(&array, array.members(), options);
        assert_eq!(status(&array)["sandbox"], serde_json::json!({"paths": false, "calls": false}));
        let own = fs::read_to_string("/proc/self/status").unwrap();
        for (_, status) in threads(server.pid()) {
            for name in ["Seccomp", "NoNewPrivs", "Uid", "CapEff"] {
                assert_eq!(field(&status, name), field(&own, name), "{name}");
            }
        }
        let _ = server.stop();
    }
}

#[test]
fn the_user_that_is_told_is_who_the_system_says() {
    let array = Array::create(&shape::raid1_of_2());
    let mut command = Server::command(&array, array.members(), &[]);
    command.env("USER", "somebody-else");
    let server = Server::spawn(command, array.socket()).unwrap();
    let mut own = Command::new("id");
    own.arg("-un");
    assert_eq!(status(&array)["user"], run(own).success().text().trim());
    let _ = server.stop();
}

#[test]
fn programs_run_in_the_sandbox_where_they_are_asked_for() {
    let user = if is_root() { &["--user", USER][..] } else { &[] };
    for more in [&[][..], user] {
        let array = Array::create(&shape::raid1_of_2());
        let (events, hook) = Events::new(&array);
        if !more.is_empty() {
            // The program has to be the user's to run, and what it writes to as well.
            [array.path(""), hook.clone(), array.path("events")].iter().for_each(|path| {
                chown(path, Some(uid()), None).unwrap();
            });
        }
        let options = [&["--sandbox", "auto", "--on-event", hook.to_str().unwrap()][..], more].concat();
        let server = Server::start_members(&array, array.members(), &options);
        assert_is_filtered(server.pid());
        let _ = events.until("started");
        let _ = ask(&array, &["fail", "1"]).success();
        let told = events.until("degraded");
        assert!(told.contains(&"member-failed".to_owned()), "{told:?}");
        let _ = until(&array, "degraded", |status| status["health"]["state"] == "degraded");
        let _ = end(server).success();
        let _ = events.until("stopped");
    }
}

/// A spare is opened when it is taken, by the user that the server is then.
#[test]
fn a_spare_that_the_user_can_not_use_is_told_at_once() {
    if !is_root() {
        return;
    }
    let array = Array::create(&shape::raid1_of_2());
    let spare = array.path("spare");
    fs::File::create(&spare).unwrap().set_len(16 << 20).unwrap();
    let options = ["--user", USER, "--spare", spare.to_str().unwrap()];
    let command = Server::command(&array, array.members(), &options);
    let warned = "the spare can't be taken: let nobody read and write it";
    let stopped = |command| end(Server::spawn(command, array.socket()).unwrap()).success();
    // It is looked at beside everything else; the stop may come first.
    let deadline = Instant::now() + PATIENCE;
    while !stopped(Server::command(&array, array.members(), &options)).stderr.contains(warned) {
        assert!(Instant::now() < deadline);
    }
    chown(array.path(""), Some(uid()), None).unwrap();
    chown(&spare, Some(uid()), None).unwrap();
    let server = Server::spawn(command, array.socket()).unwrap();
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = ask(&array, &["wait"]).success();
    let stopped = end(server).success();
    assert!(!stopped.stderr.contains(warned), "{}", stopped.stderr);
    assert_eq!(
        binary::examine(&[array.members()[0].clone(), spare])["missing"],
        serde_json::json!([]),
        "it is a member"
    );
}
