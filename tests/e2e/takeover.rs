//! A server that takes over from another one, under clients that notice nothing but a pause.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::json;
use uraid_tests::array::{Array, Content};
use uraid_tests::binary::command;
use uraid_tests::image::Random;
use uraid_tests::nbd::{Client, Command, request};
use uraid_tests::process::{Output, Process};
use uraid_tests::run::{client, client_command, run};
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::scrub::Events;
use crate::control::{ask, status, sweep, until};
use crate::systemd;
use crate::tls::Certified;

const MEMBER_BYTES: usize = 24 << 20;

/// How long fio may take, of which it writes and reads for six seconds.
const FIO_TIME_MAX: Duration = Duration::from_secs(120);

/// A server that has taken over, with these options; and what the one before has said to its end.
fn take_over(array: &Array, before: Server, options: &[&str]) -> (Server, Output) {
    let options = [&["--takeover"], options].concat();
    let server = Server::start_members(array, array.members(), &options);
    let ended = before.end().success();
    // What it said of one that it had taken over from itself.
    assert!(!ended.stderr.contains("not stopped cleanly"), "{}", ended.stderr);
    (server, ended)
}

#[test]
fn clients_go_on_with_the_next_server() {
    for (shape, options) in
        [(shape::raid5_of_5_left_symmetric(), &[][..]), (shape::rm2_of_7_partitioned(), &["--connection-threads", "2"])]
    {
        let array = Array::create_sized(&shape, MEMBER_BYTES);
        let server = Server::start(&array);
        let mut random = Random::new(21);
        let (first, second) = (random.bytes(3_000_001), random.bytes(500_003));
        let mut one = server.connect();
        let mut other = server.connect();
        one.write(1001, &first);
        let (server, _) = take_over(&array, server, options);
        assert!(other.read(1001, first.len()) == first, "what the cache had is there");
        other.write(2_000_000, &second);
        // Back to a server without connection threads, with another cache.
        let (server, _) = take_over(&array, server, &["--cache", "none"]);
        assert!(one.read(2_000_000, second.len()) == second);
        one.flush();
        let mut late = server.connect();
        assert!(late.read(1001, 1_000_000) == first[..1_000_000]);
        let _ = server.stop();
        assert!(!array.socket().exists(), "the last server removes the socket");
        Content::read(&array).assert_consistent("after two servers have taken over");
    }
}

#[test]
fn fio_verifies_what_it_writes_while_servers_change() {
    let array = Array::create_sized(&shape::raid5_of_5_left_symmetric(), MEMBER_BYTES);
    let mut server = Server::start(&array);
    let mut fio = client_command("fio");
    fio.current_dir(array.path(".")).args(["--name=t", "--ioengine=nbd", "--rw=randwrite", "--bsrange=512-128K"]);
    fio.args(["--iodepth=16", "--verify=crc32c", "--verify_backlog=64", "--time_based", "--runtime=6"]);
    fio.args(["--thread", "--numjobs=2", "--offset_increment=50%", "--size=24M"])
        .arg(format!("--uri={}", server.uri()));
    let fio = Process::start(fio);
    let mut times = 0;
    let mut fio = Some(fio);
    while let Some(running) = &mut fio {
        if running.has_ended(Duration::from_millis(500)).unwrap() {
            let _ = fio.take().unwrap().finish(FIO_TIME_MAX).success();
            break;
        }
        (server, _) = take_over(&array, server, &[]);
        times += 1;
    }
    assert!(times >= 3, "fio wrote through {times} changes");
    let _ = server.stop();
    Content::read(&array).assert_consistent("after fio");
}

#[test]
fn qemu_goes_on_with_the_next_server() {
    let array = Array::create_sized(&shape::raid1_of_2(), MEMBER_BYTES);
    let server = Server::start(&array);
    let mut qemu = client_command("qemu-io");
    qemu.args(["-f", "raw", server.uri()]).stdin(Stdio::piped());
    let mut qemu = Process::start_with_open_stdout(qemu);
    let mut asked = qemu.take_stdin();
    let mut said = BufReader::new(qemu.take_stdout());
    let mut ask = |command: &str, answer: &str| {
        writeln!(asked, "{command}").unwrap();
        let mut line = String::new();
        while !line.contains(answer) {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "{command}: qemu-io has ended");
            assert!(!line.contains("failed") && !line.contains("rror"), "{command}: {line}");
        }
    };
    ask("write -P 0x5a 1000 700000", "wrote 700000/700000 bytes at offset 1000");
    let (server, _) = take_over(&array, server, &[]);
    ask("read -P 0x5a 1000 700000", "read 700000/700000 bytes at offset 1000");
    ask("write -P 0xa5 9000000 5000", "wrote 5000/5000 bytes at offset 9000000");
    let (server, _) = take_over(&array, server, &["--cache", "writethrough"]);
    ask("read -P 0xa5 9000000 5000", "read 5000/5000 bytes at offset 9000000");
    writeln!(asked, "quit").unwrap();
    let _ = qemu.finish(FIO_TIME_MAX).success();
    let _ = server.stop();
}

#[test]
fn without_a_server_there_is_nothing_to_take_over() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start_members(&array, array.members(), &["--takeover"]);
    server.connect().flush();
    server.kill();
    // A server that was killed leaves its sockets behind, and nobody answers there.
    let server = Server::start_members(&array, array.members(), &["--takeover"]);
    server.connect().flush();
    let _ = server.stop();
}

#[test]
fn a_server_that_could_not_start_takes_nothing() {
    let array = Array::create(&shape::raid5_of_5_left_symmetric());
    let server = Server::start(&array);
    let mut connected = server.connect();
    let stranger = array.path("stranger");
    std::fs::write(&stranger, [0; 4096]).unwrap();
    let members: Vec<PathBuf> = [array.members(), &[stranger]].concat();
    let refused = Server::refused(&array, &members, &["--takeover"]);
    assert!(refused.stderr.contains("the running server goes on"), "{}", refused.stderr);
    connected.flush();
    server.connect().flush();
    let _ = server.stop();
}

#[test]
fn another_array_or_a_part_of_it_takes_nothing() {
    let (array, other) = (Array::create(&shape::raid5_of_3()), Array::create(&shape::raid5_of_3()));
    let server = Server::start(&array);
    let mut connected = server.connect();
    connected.write(0, b"this array");
    for (members, reason) in [
        (other.members().to_vec(), "serves another array"),
        (array.without(&[1]), "member 1 of the array is not among the paths"),
        ([array.members(), other.members()].concat(), "the running server goes on"),
    ] {
        let refused = Server::refused(&array, &members, &["--takeover"]);
        assert!(refused.stderr.contains(reason), "{reason}: {}", refused.stderr);
    }
    let spare = array.members()[0].to_str().unwrap();
    let twice = run(Server::command(&array, array.members(), &["--takeover", "--spare", spare])).code_is(2);
    assert!(twice.stderr.contains("as a member or a spare"), "{}", twice.stderr);
    assert!(connected.read(0, 10) == b"this array");
    let _ = server.stop();
}

#[test]
fn an_array_with_log_devices_goes_on() {
    let array = Array::planned(&shape::raid5_of_3());
    let logs = [array.path("l0"), array.path("l1")];
    let options: Vec<&str> = logs.iter().flat_map(|log| ["--log-device", log.to_str().unwrap()]).collect();
    let _ = array.run_create(64 << 20, &options).success();
    let members = [array.members(), &logs].concat();
    let server = Server::start_members(&array, &members, &[]);
    let mut client = server.connect();
    client.write(12_345, b"flushed");
    client.flush();
    let next = Server::start_members(&array, &members, &["--takeover"]);
    let _ = server.end().success();
    assert!(client.read(12_345, 7) == b"flushed");
    let _ = next.stop();
}

#[test]
fn whoever_asks_and_leaves_stops_nothing() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut client = server.connect();
    // The server finds the request when whoever sent it has gone.
    server.signal(Signal::STOP);
    drop(asking(&array));
    server.signal(Signal::CONT);
    let mut status = command();
    status.args(["status", "--socket"]).arg(array.socket());
    let _ = run(status).success();
    client.flush();
    server.connect().flush();
    let _ = server.stop();
}

#[test]
fn no_running_server_is_told_of_where_there_is_none() {
    let array = Array::create(&shape::raid1_of_2());
    let nowhere = [array.path("nowhere")];
    let refused = Server::refused(&array, &nowhere, &["--takeover"]);
    assert!(!refused.stderr.contains("running server"), "{}", refused.stderr);
    let server = Server::start(&array);
    let refused = Server::refused(&array, &nowhere, &["--takeover"]);
    assert!(refused.stderr.contains("the running server goes on"), "{}", refused.stderr);
    let _ = server.stop();
}

#[test]
fn a_server_with_a_command_lets_nobody_take_over() {
    let array = Array::create(&shape::raid1_of_2());
    let socket = array.socket();
    let mut serving = command();
    serving.args(["serve", "--run", "echo $unixsocket; read line", "--socket"]).arg(&socket).args(array.members());
    serving.stdin(Stdio::piped());
    let mut serving = Process::start_with_open_stdout(serving);
    let mut first = String::new();
    BufReader::new(serving.take_stdout()).read_line(&mut first).unwrap();
    let refused = Server::refused(&array, array.members(), &["--takeover"]);
    assert!(refused.stderr.contains("no other can take over from it"), "{}", refused.stderr);
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let _ = client("nbdinfo", ["--size", &uri]).success();
    serving.signal(Signal::TERM);
    let _ = serving.finish(Duration::from_secs(60));
}

fn is_disconnected(client: &mut Client) -> bool {
    client.submit(Command::Flush, 0, 0, &[]).and_then(|_| client.reply()).is_err()
}

/// A connection to the control socket that has asked for the array.
fn asking(array: &Array) -> UnixStream {
    let uuid = array.examine()["uuid"].as_str().unwrap().to_owned();
    let mut asking = UnixStream::connect(array.socket().with_extension("ctl")).unwrap();
    writeln!(asking, "{{\"command\":\"hand-over\",\"array\":\"{uuid}\"}}").unwrap();
    asking
}

/// The number of the socket that listens at an IPv4 address, as the kernel has it.
#[track_caller]
fn listener_at(address: &str) -> String {
    let port = address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Its local address, the peer's, and its state, of which 0A is listening; later fields have its number.
    let number = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "0A";
        is_it.then(|| fields[9].to_owned())
    };
    sockets.lines().skip(1).find_map(number).unwrap()
}

#[test]
fn a_new_address_that_is_in_use_is_found_while_the_running_server_goes_on() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut connected = server.connect();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().unwrap().to_string();
    let socket = array.socket();
    for option in ["--listen", "--metrics"] {
        let options = ["--takeover", "--socket", socket.to_str().unwrap(), option, &busy];
        let mut serving = command();
        serving.arg("serve").args(options).args(array.members());
        let refused = run(serving).code_is(1);
        assert!(refused.stderr.contains("the running server goes on"), "{}", refused.stderr);
        connected.flush();
    }
    // One that is free is added, and goes along to a third server; so does the metrics' own.
    let options = ["--socket", socket.to_str().unwrap(), "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let (next, _) = take_over(&array, server, &options);
    let also = next.line_after("  also ");
    let metrics = next.line_after("metrics at http://");
    let metrics = metrics.strip_suffix("/metrics").unwrap();
    connected.flush();
    let _ = client("nbdinfo", ["--size", &also]).success();
    let address = also.strip_prefix("nbd://").unwrap().split('/').next().unwrap();
    let options = ["--socket", socket.to_str().unwrap(), "--listen", address, "--metrics", metrics];
    let listening = listener_at(metrics);
    let (last, _) = take_over(&array, next, &options);
    assert_eq!(listener_at(metrics), listening, "it has been the same socket all the time");
    assert_eq!(last.line_after("  also "), also);
    assert_eq!(last.line_after("metrics at http://"), format!("{metrics}/metrics"));
    let _ = client("nbdinfo", ["--size", &also]).success();
    connected.flush();
    // Nobody listens any more where the next server is not to be reached.
    let (without, _) = take_over(&array, last, &[]);
    for gone in [address, metrics] {
        assert!(TcpStream::connect(gone).is_err(), "{gone}");
    }
    connected.flush();
    let _ = without.stop();
}

#[test]
fn nobody_gets_in_between_two_servers() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let member = File::open(&array.members()[1]).unwrap();
    let has_ended = AtomicBool::new(false);
    let server = std::thread::scope(|scope| {
        let trying = scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                if flock(&member, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    return false;
                }
            }
            true
        });
        let server = (0..3).fold(server, |server, _| take_over(&array, server, &[]).0);
        has_ended.store(true, Ordering::Relaxed);
        assert!(trying.join().unwrap(), "a third one could lock a member");
        server
    });
    let _ = server.stop();
    flock(&member, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn who_asks_and_does_not_take_over_is_told_of_as_that() {
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let mut client = server.connect();
    client.write(0, b"all there");
    let mut line = String::new();
    // It leaves when everything is on its way to it.
    BufReader::new(asking(&array)).read_line(&mut line).unwrap();
    assert!(line.contains("\"partings\":2"), "{line}");
    let ended = server.end().code_is(1);
    assert!(ended.stderr.contains("whoever asked to take over has gone"), "{}", ended.stderr);
    assert!(!array.socket().exists() && !array.socket().with_extension("ctl").exists());
    assert!(is_disconnected(&mut client));
    let server = Server::start(&array);
    assert!(server.connect().read(0, 9) == b"all there");
    let _ = server.stop();
}

#[test]
fn a_client_that_stalls_is_named_when_it_is_disconnected() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid1_of_2());
        let options = ["--stop-deadline", "3s", "--connection-threads", threads];
        stall(&array, Server::start_members(&array, array.members(), &options));
    }
}

fn stall(array: &Array, server: Server) {
    let began = Instant::now();
    let mut fast = server.connect();
    let mut stalled = server.connect();
    // What comes with a request that is answered has been read.
    let begun = [request(Command::Flush, 1, 0, 0), request(Command::Write, 2, 0, 4096)].concat();
    stalled.stream().write_all(&[&begun[..], b"the beginning"].concat()).unwrap();
    assert_eq!(stalled.reply().unwrap().cookie, 1);
    let (next, ended) = take_over(array, server, &[]);
    assert!(began.elapsed() < Duration::from_secs(30), "that long is the deadline unless it is set");
    let named = format!("process {}", std::process::id());
    let told = ended.stderr.lines().find(|line| line.contains("did not end its requests in time"));
    assert!(told.is_some_and(|line| line.contains(&named)), "{}", ended.stderr);
    assert!(stalled.reply().is_err());
    fast.flush();
    next.signal(Signal::TERM);
    let said = next.end().success().stderr;
    assert!(said.contains("waiting for the running server: it finishes what clients have asked for"), "{said}");
}

#[test]
fn a_copy_ends_and_that_is_told() {
    let array = Array::create(&shape::raid5_of_3());
    let (events, hook) = Events::new(&array);
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    let new = array.path("new");
    let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
    let _ = ask(&array, &["replace", "--size", "16M", "1", new.to_str().unwrap()]).success();
    let _ = events.until("replace-started");
    let mut waiting = command();
    waiting.args(["wait", "--socket"]).arg(array.socket());
    let mut waiting = Process::start(waiting);
    assert!(!waiting.has_ended(Duration::from_millis(500)).unwrap());
    let (server, ended) = take_over(&array, server, &[]);
    assert_eq!(events.until("stopped"), ["replace-stopped"]);
    assert!(ended.stderr.contains("has to be started again"), "{}", ended.stderr);
    let waited = waiting.finish(Duration::from_secs(60)).code_is(1);
    assert!(waited.stderr.contains("start it again with `uraid replace`"), "{}", waited.stderr);
    let _ = server.stop();
}

#[test]
fn waiting_goes_on_with_the_next_server() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = ask(&array, &["set", "--rebuild-limit", "64K"]).success();
    let new = array.path("new");
    let _ = ask(&array, &["add", "--size", "16M", new.to_str().unwrap()]).success();
    let mut waiting = command();
    waiting.args(["wait", "--socket"]).arg(array.socket());
    let mut waiting = Process::start(waiting);
    assert!(!waiting.has_ended(Duration::from_millis(500)).unwrap());
    let members = [array.without(&[1]), vec![new]].concat();
    let next = Server::start_members(&array, &members, &["--takeover", "--rebuild-limit", "64K"]);
    let _ = server.end().success();
    assert!(sweep(&status(&array), "rebuild").is_some());
    assert!(!waiting.has_ended(Duration::from_millis(500)).unwrap());
    let _ = ask(&array, &["set", "--rebuild-limit", "none"]).success();
    let waited = waiting.finish(Duration::from_secs(60)).success();
    assert!(waited.text().contains("whole"), "{}", waited.text());
    let _ = next.stop();
}

#[test]
fn clients_that_use_tls_are_disconnected() {
    let array = Array::create(&shape::raid1_of_2());
    let certified = Certified::new();
    let directory = certified.path("server");
    let tls = ["--tls", "require", "--tls-certificates", directory.to_str().unwrap()];
    let server = Server::start_members(&array, array.members(), &tls);
    let mut qemu = client_command("qemu-io");
    let credentials = format!("tls-creds-x509,id=tls,dir={},endpoint=client", certified.path("client").display());
    let image = format!("driver=nbd,server.type=unix,server.path={},tls-creds=tls", array.socket().display());
    let image = format!("{image},tls-hostname=localhost");
    qemu.args(["--object", &credentials, "--image-opts", &image]).stdin(Stdio::piped());
    let qemu = Process::start(qemu);
    let _ = until(&array, "it is connected", |status| status["clients"] == 1);
    let (server, _) = take_over(&array, server, &tls);
    assert!(server.printed().contains("with 0 clients"), "{}", server.printed());
    let uri = format!("{}&tls-certificates={}", server.uri(), certified.path("client").display());
    let _ = client("nbdinfo", ["--size", &uri]).success();
    drop(qemu);
    let _ = server.stop();
}

#[test]
fn clients_in_the_clear_do_not_stay_where_tls_is_required() {
    let array = Array::create(&shape::raid1_of_2());
    for threads in ["0", "2"] {
        let server = Server::start_members(&array, array.members(), &["--connection-threads", threads]);
        let mut connected = server.connect();
        connected.write(0, b"in the clear");
        let certified = Certified::new();
        let directory = certified.path("server");
        let tls = ["--tls", "require", "--tls-certificates", directory.to_str().unwrap()];
        let (server, _) = take_over(&array, server, &[&tls[..], &["--connection-threads", threads]].concat());
        assert!(server.printed().contains("with 1 client\n"), "{}", server.printed());
        assert!(is_disconnected(&mut connected));
        let uri = format!("{}&tls-certificates={}", server.uri(), certified.path("client").display());
        let _ = client("nbdinfo", ["--size", &uri]).success();
        let _ = server.stop();
    }
}

#[test]
fn the_service_manager_hears_who_goes_on() {
    let array = Array::create(&shape::raid1_of_2());
    let name = array.path("notify");
    let manager = UnixDatagram::bind(&name).unwrap();
    let mut serving = Server::command(&array, array.members(), &[]);
    serving.env("NOTIFY_SOCKET", &name);
    let server = Server::spawn(serving, array.socket()).unwrap();
    let _ = systemd::until(&manager, "READY=1");
    let (server, _) = take_over(&array, server, &[]);
    let said = systemd::until(&manager, &format!("MAINPID={}", server.pid()));
    assert!(!said.iter().any(|message| message == "STOPPING=1"), "{said:?}");
    let _ = server.stop();
}

#[test]
fn the_control_socket_has_to_be_known() {
    let array = Array::create(&shape::raid1_of_2());
    let mut serving = command();
    serving.args(["serve", "--takeover", "--listen", "127.0.0.1:0"]).args(array.members());
    let refused = run(serving).code_is(2);
    assert!(refused.stderr.contains("name that with --control"), "{}", refused.stderr);
}

/// The sockets that go along are open to whom the next server lets in, and to nobody else.
#[test]
fn users_are_let_in_by_the_next_server() {
    let array = Array::create(&shape::raid1_of_2());
    let mut server = Server::start(&array);
    let mut connected = server.connect();
    for (options, mode) in [(&["--allow-uid", "1000"][..], 0o666), (&[], 0o600)] {
        (server, _) = take_over(&array, server, options);
        assert_eq!(array.socket().metadata().unwrap().permissions().mode() & 0o777, mode, "{options:?}");
        connected.flush();
    }
    let _ = server.stop();
}

/// A Unix socket that is new comes before the address that was there, as at any start.
#[test]
fn a_unix_socket_that_is_new_is_the_first_place() {
    let array = Array::create(&shape::raid1_of_2());
    let control = array.path("own.ctl");
    let options = ["--listen", "127.0.0.1:0", "--control", control.to_str().unwrap()];
    let server = Server::start_members(&array, array.members(), &options);
    let address = server.uri().strip_prefix("nbd://").unwrap().split('/').next().unwrap().to_owned();
    let socket = array.socket();
    let options = ["--socket", socket.to_str().unwrap(), "--listen", &address, "--control", options[3]];
    let (server, _) = take_over(&array, server, &options);
    assert!(server.uri().starts_with("nbd+unix:"), "{}", server.uri());
    assert!(server.line_after("  also ").contains(&address));
    server.connect().flush();
    let _ = server.stop();
}

/// What the next server limits holds for the clients that come along.
#[test]
fn clients_that_go_on_keep_the_limits_of_the_next_server() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid1_of_2());
        let server = Server::start_members(&array, array.members(), &["--connection-threads", threads]);
        let mut clients = [server.connect(), server.connect(), server.connect()];
        let options = ["--max-connections", "2", "--client-iops-limit", "1", "--connection-threads", threads];
        let (server, _) = take_over(&array, server, &options);
        let now = until(&array, "one too many", |status| status["clients"] == 2);
        assert_eq!(now["clients_max"], 2);
        // A flush does not wait for a limit.
        let gone: Vec<bool> = clients.iter_mut().map(is_disconnected).collect();
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 1, "{gone:?}");
        let stays = &mut clients[gone.iter().position(|gone| !gone).unwrap()];
        for part in 0..16 {
            let _ = stays.submit(Command::Write, part * 4096, 4096, &[7; 4096]).unwrap();
        }
        let done = status(&array)["requests"]["writes"].as_u64().unwrap();
        assert!(done < 16, "all writes are done at once");
        let _ = ask(&array, &["set", "--client-iops-limit", "none"]).success();
        (0..16).for_each(|_| assert_eq!(stays.reply().unwrap().error, 0));
        let _ = server.stop();
    }
}

/// While a server is being stopped, nobody can take over what is left of it.
#[test]
fn a_server_that_is_being_stopped_hands_nothing_over() {
    let array = Array::create(&shape::raid1_of_2());
    // It waits for its clients to leave.
    let server = Server::start_members(&array, array.members(), &["--drain", "eshutdown"]);
    let stays = server.connect();
    server.signal(Signal::TERM);
    let _ = until(&array, "it is being stopped", |status| !status["stopping"].is_null());
    let refused = Server::refused(&array, array.members(), &["--takeover"]);
    assert!(refused.stderr.contains("it is being stopped already"), "{}", refused.stderr);
    let refused = ask(&array, &["set", "--scrub-limit", "1M"]).code_is(1).stderr;
    assert!(refused.contains("the server is stopping for "), "{refused}");
    stays.disconnect();
    let _ = server.end().success();
}

/// Two blocks of a row are rotten, and a client has written one of them: only the running server has that, which goes
/// on.
#[test]
fn a_takeover_that_would_lose_content_is_refused() {
    let array = Array::planned(&shape::raid5_of_5_left_symmetric());
    // The log is too small for a journal.
    let _ = array.run_create(MEMBER_BYTES, &["--integrity", "crc32", "--log-size", "512K"]).success();
    let stripe = 4 * array.shape.chunk_bytes();
    let server = Server::start(&array);
    server.connect().write(0, &Random::new(22).bytes(stripe));
    let _ = server.stop();
    array.rot_first_row();
    let server = Server::start(&array);
    let mut client = server.connect();
    client.write(0, &[9; 4096]);
    assert_ne!(client.call(Command::Flush, 0, 0, &[]).error, 0);
    let refused = Server::refused(&array, array.members(), &["--takeover"]);
    assert!(refused.stderr.contains("are only in memory"), "{}", refused.stderr);
    assert_eq!(client.read(0, 4096), [9; 4096], "it is still there");
    client.write(0, &vec![8; stripe]);
    client.flush();
    let (server, _) = take_over(&array, server, &[]);
    assert_eq!(client.read(0, stripe), vec![8; stripe]);
    let _ = server.stop();
}

/// A member that the running server gives up as it stops is named where people look by then.
#[test]
fn a_member_that_fails_meanwhile_is_named_by_the_next_server() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let mut client = server.connect();
    client.write(0, b"on two of them");
    std::fs::remove_file(&array.members()[1]).unwrap();
    let next = Server::start_members(&array, &array.without(&[1]), &["--takeover", "--degraded"]);
    let _ = server.end().success();
    assert_eq!(client.read(0, 14), b"on two of them");
    assert_eq!(status(&array)["health"]["missing"], json!([1]));
    next.signal(Signal::TERM);
    let said = next.end().success().stderr;
    assert!(said.contains("member 1 failed while the running server stopped"), "{said}");
}
