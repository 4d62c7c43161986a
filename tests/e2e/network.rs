//! Members that are exports of NBD servers: other people's, which are killed, stopped and started again, and our own.

mod changes;
mod hedging;
mod lies;
mod older;
mod secure;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::process::Signal;
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::{Client, Command};
use uraid_tests::process::{Output, Process};
use uraid_tests::run::{client, client_command};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES, Shape};

use super::control::{PATIENCE, ask, status, until};
use super::tls::Certified;

/// A server of an export.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Nbdkit,
    /// The same, which can be told to pause.
    Pausing,
    QemuNbd,
    /// Nbdkit over TLS, with certificates on both sides.
    Secure,
}

/// Files of an array, each served as an export: what the array's members hold is read from the files.
struct Exports {
    array: Array,
    kind: Kind,
    servers: Vec<Process>,
    uris: Vec<PathBuf>,
    certified: Certified,
}

impl Exports {
    /// Servers of files that hold zeros.
    fn start(shape: &Shape, kind: Kind) -> Self {
        let array = Array::planned(shape);
        for path in array.members() {
            std::fs::File::create(path).unwrap().set_len(MEMBER_BYTES as u64).unwrap();
        }
        let mut exports = Self { array, kind, servers: Vec::new(), uris: Vec::new(), certified: Certified::new() };
        for slot in 0..shape.members {
            exports.servers.push(exports.serve(slot));
            exports.uris.push(exports.uri(slot, "client"));
        }
        exports
    }

    /// For a client with the certificates in the directory of this name, if there is TLS.
    fn uri(&self, slot: usize, client: &str) -> PathBuf {
        let plain = uri(&self.socket(slot));
        if !matches!(self.kind, Kind::Secure) {
            return plain;
        }
        let secure = plain.to_str().unwrap().replacen("nbd", "nbds", 1);
        format!("{secure}&tls-certificates={}", self.certified.path(client).display()).into()
    }

    fn socket(&self, slot: usize) -> PathBuf {
        self.array.path(&format!("export{slot}.sock"))
    }

    /// Where a server is told to pause.
    fn pause_control(&self, slot: usize) -> PathBuf {
        self.array.path(&format!("pause{slot}.sock"))
    }

    fn serve(&self, slot: usize) -> Process {
        let (socket, file) = (self.socket(slot), &self.array.members()[slot]);
        let pid_file = self.array.path(&format!("export{slot}.pid"));
        // A server that was killed has left both behind.
        let _ = (std::fs::remove_file(&socket), std::fs::remove_file(&pid_file));
        let mut command = match self.kind {
            Kind::Nbdkit | Kind::Pausing | Kind::Secure => {
                let mut command = client_command("nbdkit");
                command.arg("-P").arg(&pid_file).arg("-U").arg(&socket);
                if matches!(self.kind, Kind::Pausing) {
                    command.arg("--filter=pause");
                }
                if matches!(self.kind, Kind::Secure) {
                    let certificates = self.certified.path("server");
                    command.args(["--tls=require", "--tls-verify-peer"]);
                    command.arg(format!("--tls-certificates={}", certificates.display()));
                }
                command.arg("file").arg(file);
                if matches!(self.kind, Kind::Pausing) {
                    command.arg(format!("pause-control={}", self.pause_control(slot).display()));
                }
                command
            }
            Kind::QemuNbd => {
                let mut command = client_command("qemu-nbd");
                let pid = format!("--pid-file={}", pid_file.display());
                command.args(["--fork", "--persistent", "--format=raw", &pid]).arg("-k").arg(&socket).arg(file);
                command
            }
        };
        Process::start_daemon(&mut command, &self.array.path("log"), &pid_file).unwrap()
    }

    fn kill(&self, slot: usize) {
        self.servers[slot].signal(Signal::KILL);
    }

    /// Kills a member's server, and has the array find out by a write at its beginning.
    fn lose(&self, slot: usize, client: &mut Client, data: &[u8]) {
        self.kill(slot);
        client.write(0, data);
        client.flush();
        fails(&self.array, slot);
    }

    fn restart(&mut self, slot: usize) {
        self.servers[slot] = self.serve(slot);
    }

    fn create(&self) {
        let _ = self.run_create(&[]).success();
    }

    fn run_create(&self, more: &[&str]) -> Output {
        let mut arguments = vec![PathBuf::from("create")];
        arguments.extend(self.array.shape.options().into_iter().map(PathBuf::from));
        arguments.extend(more.iter().map(PathBuf::from));
        arguments.extend(self.uris.iter().cloned());
        binary::uraid(arguments)
    }

    /// Serves the array; members that were lost come back with `uraid add`.
    fn serve_array(&self, options: &[&str]) -> Server {
        Server::start_members(&self.array, &self.uris, &[options, &["--rejoin-after", "off"]].concat())
    }

    /// Serves the array, whose members return when their servers have answered for this long.
    fn serve_returning(&self, settling: &str, options: &[&str]) -> Server {
        Server::start_members(&self.array, &self.uris, &[options, &["--rejoin-after", settling]].concat())
    }

    /// Stops the array's server, and then those of the members, which hold this.
    fn stop_holding(self, server: Server, image: &[u8], what: &str) {
        let _ = server.stop();
        drop(self.servers);
        Content::read(&self.array).assert_holds(image, what);
    }

    fn add(&self, slot: usize) {
        let added = ask(&self.array, &["add", self.uris[slot].to_str().unwrap()]).success().text();
        assert!(added.contains("is being rebuilt"), "{added}");
        let _ = ask(&self.array, &["wait"]).success();
    }
}

fn uri(socket: &Path) -> PathBuf {
    format!("nbd+unix:///?socket={}", socket.display()).into()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

fn fails(array: &Array, slot: usize) {
    let is_failed = |status: &serde_json::Value| status["members"][slot]["state"] == "missing";
    until(array, "the member is given up", is_failed);
}

#[test]
fn an_array_of_exports_holds_what_one_of_files_does() {
    for kind in [Kind::Nbdkit, Kind::QemuNbd, Kind::Secure] {
        for shape in [shape::raid5_of_3(), shape::rm2_of_6()] {
            let exports = Exports::start(&shape, kind);
            exports.create();
            let server = exports.serve_array(&[]);
            let shown = status(&exports.array)["members"][1]["path"].as_str().map(PathBuf::from);
            assert_eq!(shown.as_ref(), Some(&exports.uris[1]));
            let uri = format!("--uri={}", server.uri());
            let verified =
                ["--name=v", "--ioengine=nbd", "--thread", "--rw=randwrite", "--bsrange=512-256k", "--size=16m"];
            let _ = client(
                "fio",
                verified.iter().copied().chain(["--iodepth=16", "--verify=crc32c", "--verify_state_save=0", &uri]),
            )
            .success();
            let image = Random::new(91).bytes(exports.array.expected_size());
            write_export(server.uri(), &image);
            assert_same(&read_export(server.uri()), &image, "read back");
            let _ = server.stop();
            let state = binary::examine(&exports.uris)["state"].as_str().map(str::to_owned);
            assert_eq!(state.as_deref(), Some("clean"), "{kind:?}");

            // Without one of them.
            let server = Server::start_members(&exports.array, &exports.uris[1..], &["--degraded", "--read-only"]);
            assert_same(&read_export(server.uri()), &image, "computed");
            let _ = server.stop();
            drop(exports.servers);
            Content::read(&exports.array).assert_holds(&image, shape.name);
        }
    }
}

#[test]
fn a_server_that_is_killed_under_load_costs_its_member_alone_and_comes_back() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let image = Random::new(92).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    for slot in [1, 2] {
        let mut fio = client_command("fio");
        fio.args(["--name=load", "--ioengine=nbd", "--thread", "--rw=randrw", "--bsrange=512-128k", "--iodepth=16"]);
        fio.args(["--size=8m", "--verify=crc32c", "--time_based", "--runtime=4", "--status-interval=1"]);
        fio.args(["--verify_backlog=64", "--verify_state_save=0", "--output-format=json"])
            .arg(format!("--uri={}", server.uri()));
        let mut fio = Process::start_with_open_stdout(fio);
        let mut lines = BufReader::new(fio.take_stdout()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("\"write\"")), "fio reports while it runs");
        exports.kill(slot);
        lines.for_each(drop);
        let _ = fio.finish(PATIENCE).success();
        fails(&exports.array, slot);
        exports.restart(slot);
        exports.add(slot);
    }
    write_export(server.uri(), &image);
    exports.stop_holding(server, &image, "brought up to date");
}

/// What is said of why a member that is away is not back.
fn problem(status: &serde_json::Value, slot: usize) -> &str {
    status["members"][slot]["away"]["problem"].as_str().unwrap_or_default()
}

fn has_trouble(status: &serde_json::Value, slot: usize, trouble: &str) -> bool {
    let troubles = status["health"]["troubles"].as_array().unwrap();
    troubles.iter().any(|one| one["slot"] == slot && one["trouble"] == trouble)
}

fn returns(array: &Array, slot: usize) {
    let is_whole = |status: &serde_json::Value| {
        let member = &status["members"][slot];
        member["state"] == "active" && member["away"].is_null() && status["health"]["state"] == "whole"
    };
    until(array, "the member returns", is_whole);
}

#[test]
fn a_member_returns_by_itself_when_its_server_is_back() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_returning("500ms", &[]);
    let mut random = Random::new(98);
    let mut image = random.bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let mut client = server.connect();
    for slot in [2, 0] {
        exports.kill(slot);
        let mut write = |client: &mut Client| {
            let (offset, length) = random.sectors(image.len(), 256 << 10);
            let data = random.bytes(length);
            client.write(offset, &data);
            client.flush();
            image[offset..offset + length].copy_from_slice(&data);
        };
        (0..20).for_each(|_| write(&mut client));
        fails(&exports.array, slot);
        let is_asked = |status: &serde_json::Value| {
            let waiting = &status["members"][slot]["away"]["waiting"];
            waiting == "server" && problem(status, slot).contains("can't connect")
        };
        until(&exports.array, "its server is asked for it", is_asked);
        let screen = ask(&exports.array, &["status"]).success().text();
        assert!(screen.contains(&format!("\naway     member {slot}, whose server is asked for it")), "{screen}");
        (0..20).for_each(|_| write(&mut client));
        exports.restart(slot);
        returns(&exports.array, slot);
    }
    client.disconnect();
    assert_same(&read_export(server.uri()), &image, "whole again");
    exports.stop_holding(server, &image, "brought up to date");
}

/// Servers that are started anew one after another, while nobody reads or writes: the array does without each in time.
#[test]
fn servers_that_are_restarted_in_turn_while_nobody_uses_the_array_cost_nothing() {
    for (shape, kind) in [(shape::raid5_of_3(), Kind::QemuNbd), (shape::raid1_of_2(), Kind::Nbdkit)] {
        let mut exports = Exports::start(&shape, kind);
        exports.create();
        let server = exports.serve_returning("500ms", &[]);
        let image = Random::new(99).bytes(exports.array.expected_size());
        write_export(server.uri(), &image);
        for slot in 0..shape.members {
            exports.kill(slot);
            // Nobody asks for content.
            fails(&exports.array, slot);
            exports.restart(slot);
            returns(&exports.array, slot);
        }
        assert_same(&read_export(server.uri()), &image, "whole");
        exports.stop_holding(server, &image, "whole");
    }
}

#[test]
fn a_member_returns_only_if_that_is_wanted() {
    let mut exports = Exports::start(&shape::raid1_of_2(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let mut client = server.connect();
    exports.lose(1, &mut client, &[7; 4096]);
    exports.restart(1);
    let now = status(&exports.array);
    assert!(now["members"][1]["away"].is_null(), "{now:#}");
    let _ = ask(&exports.array, &["set", "--rejoin-after", "100ms"]).success();
    returns(&exports.array, 1);

    // Whom an administrator fails stays failed, whatever its server does.
    let _ = ask(&exports.array, &["fail", "1"]).success();
    exports.kill(1);
    exports.restart(1);
    // The server of the array looks for members that are away every second.
    let before = status(&exports.array)["uptime_ms"].as_u64().unwrap();
    let now = until(&exports.array, "it has looked", |status| status["uptime_ms"].as_u64() > Some(before + 4000));
    assert!(now["members"][1]["state"] == "missing" && now["members"][1]["away"].is_null(), "{now:#}");
    exports.add(1);

    // Whom an administrator takes out stays out, until somebody adds it.
    exports.lose(1, &mut client, &[7; 4096]);
    let is_away = |status: &serde_json::Value| status["members"][1]["away"]["waiting"] == "server";
    until(&exports.array, "it is wanted back", is_away);
    let _ = ask(&exports.array, &["remove", "1"]).success();
    let now = status(&exports.array);
    assert_eq!(now["members"][1]["away"]["waiting"], "administrator", "{now:#}");
    exports.restart(1);
    exports.add(1);
    returns(&exports.array, 1);
    client.disconnect();
    let _ = server.stop();
}

/// The server of a member goes on after it was given up, with what its old connection still holds.
#[test]
fn a_server_that_hung_ends_what_it_had_before_its_member_returns() {
    // nbdkit 1.32 aborts now and then when a client resets its connection.
    let exports = Exports::start(&shape::raid5_of_3(), Kind::QemuNbd);
    exports.create();
    let server = exports.serve_returning("2s", &["--read-deadline", "200ms", "--write-deadline", "1s"]);
    let mut random = Random::new(99);
    let mut image = random.bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    exports.servers[1].signal(Signal::STOP);
    let mut client = server.connect();
    for _ in 0..40 {
        let (offset, length) = random.sectors(image.len(), 64 << 10);
        let data = random.bytes(length);
        client.write(offset, &data);
        image[offset..offset + length].copy_from_slice(&data);
    }
    client.flush();
    fails(&exports.array, 1);
    exports.servers[1].signal(Signal::CONT);
    returns(&exports.array, 1);
    client.disconnect();
    exports.stop_holding(server, &image, "with all that it missed");
}

#[test]
fn what_a_member_missed_is_all_that_it_is_sent() {
    let mut exports = Exports::start(&shape::raid1_of_2(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let image = Random::new(93).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    // From here on nothing is in doubt but what is written now.
    let _ = server.stop();
    let server = exports.serve_array(&[]);
    let mut client = server.connect();
    let data = Random::new(94).bytes(64 << 10);
    client.write(0, &data[..4096]);
    client.flush();
    exports.lose(1, &mut client, &data);
    // Where nobody wrote the member stays as it is, whatever that is.
    let facts = exports.array.facts();
    let quiet = facts[1].data_offset + facts[1].data_size - 4096;
    let file = std::fs::OpenOptions::new().write(true).open(&exports.array.members()[1]).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x5a; 512], quiet as u64).unwrap();
    exports.restart(1);
    exports.add(1);
    client.disconnect();
    let _ = server.stop();
    drop(exports.servers);
    let held = Content::read(&exports.array);
    let member = std::fs::read(&exports.array.members()[1]).unwrap();
    assert!(member[quiet..quiet + 512] == [0x5a; 512], "it was not copied");
    let start = held.facts()[1].data_offset;
    assert_same(&member[start..start + data.len()], &data, "what it missed");
}

#[test]
fn a_server_that_hangs_is_given_up_and_returns() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let options = ["--read-deadline", "500ms", "--write-deadline", "2s"];
    let server = exports.serve_array(&options);
    let mut image = Random::new(95).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    exports.servers[0].signal(Signal::STOP);
    let mut client = server.connect();
    let mut random = Random::new(96);
    for _ in 0..20 {
        let (offset, length) = random.sectors(image.len(), 64 << 10);
        let data = random.bytes(length);
        client.write(offset, &data);
        image[offset..offset + length].copy_from_slice(&data);
    }
    client.flush();
    fails(&exports.array, 0);
    client.disconnect();
    assert_same(&read_export(server.uri()), &image, "without it");
    // It might do what it still has of its old connection if it went on: it is started anew.
    exports.kill(0);
    exports.restart(0);
    exports.add(0);
    exports.stop_holding(server, &image, "with it again");
}

/// Nobody writes meanwhile, so no write is given up.
#[test]
fn a_server_that_hung_while_clients_only_read_gives_its_member_back() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::QemuNbd);
    exports.create();
    let deadlines = ["--read-deadline", "500ms", "--write-deadline", "2s"];
    let server = exports.serve_returning("500ms", &deadlines);
    let image = Random::new(95).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let _ = ask(&exports.array, &["wait"]).success();
    exports.servers[0].signal(Signal::STOP);
    assert_same(&read_export(server.uri()), &image, "without it");
    let is_away = |status: &serde_json::Value| status["members"][0]["away"]["waiting"] == "server";
    until(&exports.array, "it is given up, and wanted back", is_away);
    exports.servers[0].signal(Signal::CONT);
    returns(&exports.array, 0);
    assert_same(&read_export(server.uri()), &image, "with it again");
    exports.stop_holding(server, &image, "with it again");
}

/// It is told before anybody waits; and what was never sent counts as given up, too.
#[test]
fn a_server_that_hangs_while_another_is_away_is_told_of_and_gives_its_member_back() {
    let exports = Exports::start(&shape::raid6_of_4(), Kind::QemuNbd);
    exports.create();
    let deadlines = ["--read-deadline", "1s", "--write-deadline", "2s"];
    let server = exports.serve_returning("500ms", &deadlines);
    let image = Random::new(95).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    let _ = ask(&exports.array, &["wait"]).success();
    exports.kill(0);
    fails(&exports.array, 0);
    exports.servers[1].signal(Signal::STOP);
    until(&exports.array, "nobody waits for it, and it is told of", |status| has_trouble(status, 1, "stalled"));
    let mut client = server.connect();
    client.write(0, &image[..200_000]);
    client.flush();
    client.disconnect();
    let is_away = |status: &serde_json::Value| status["members"][1]["away"]["waiting"] == "server";
    until(&exports.array, "it is given up, and wanted back", is_away);
    exports.servers[1].signal(Signal::CONT);
    let is_back = |status: &serde_json::Value| status["members"][1]["state"] == "active";
    until(&exports.array, "it returns", is_back);
    assert_same(&read_export(server.uri()), &image, "with one away");
    let _ = server.stop();
}

/// A server that serves `plugin`, with these arguments.
fn nbdkit(directory: &Path, name: &str, arguments: &[&str]) -> (Process, PathBuf) {
    let (socket, pid_file) = (directory.join(format!("{name}.sock")), directory.join(format!("{name}.pid")));
    let mut command = client_command("nbdkit");
    command.arg("-P").arg(&pid_file).arg("-U").arg(&socket).args(arguments);
    (Process::start_daemon(&mut command, &directory.join("log"), &pid_file).unwrap(), uri(&socket))
}

#[test]
fn exports_that_can_not_be_members_are_refused_by_name_and_nothing_is_written() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let large = ["--filter=blocksize-policy", "memory", "32M", "blocksize-minimum=64K", "blocksize-preferred=64K"];
    let volatile = [
        "eval",
        "get_size=echo 33554432",
        "pread=dd if=/dev/zero count=$3 iflag=count_bytes",
        "can_write=exit 0",
        "pwrite=cat >/dev/null",
        "can_flush=exit 3",
    ];
    let cases: &[(&str, &[&str], &str)] = &[
        ("protected", &["-r", "memory", "32M"], "is read-only"),
        ("small", &["memory", "64K"], "too few for a member"),
        ("volatile", &volatile, "can't be flushed"),
        ("large", &large, "more than 4 KiB"),
    ];
    let mut others: Vec<(Option<Process>, PathBuf, &str)> = Vec::new();
    for (name, arguments, expected) in cases {
        let (process, uri) = nbdkit(place, name, arguments);
        others.push((Some(process), uri, expected));
    }
    let missing = uri(&place.join("nobody.sock"));
    others.push((None, missing, "can't connect to the server"));
    others.push((None, "nbd://127.0.0.1:1/x".into(), "can't connect to the server"));
    others.push((None, "nbd://no-such-host.invalid/x".into(), "can't find the host"));
    others.push((None, "nbd+unix:///x".into(), "socket"));
    others.push((None, "nbds://127.0.0.1:1/x?tls-certificates=/nowhere".into(), "can't read /nowhere/ca-cert.pem"));
    others.push((None, "nbd://127.0.0.1:99999/x".into(), "no port"));
    for (_, other, expected) in &others {
        let mut wrong = exports.uris.clone();
        wrong[2] = other.clone();
        let mut arguments = vec![PathBuf::from("create"), "--level".into(), "5".into()];
        arguments.extend(wrong);
        let refused = binary::uraid(arguments).code_is(1).stderr;
        let name = other.to_str().unwrap();
        assert!(refused.contains(expected) && refused.contains(name), "{name}: {refused}");
    }
    for member in exports.array.members() {
        assert!(std::fs::read(member).unwrap().iter().all(|byte| *byte == 0), "nothing is written");
    }
}

#[test]
fn an_export_by_two_names_is_refused() {
    let mut exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    let other = exports.array.path("other.sock");
    std::os::unix::fs::symlink(exports.socket(0), &other).unwrap();
    let own = std::mem::replace(&mut exports.uris[1], uri(&other));
    let refused = exports.run_create(&[]).code_is(1).stderr;
    assert!(refused.contains("the same export"), "{refused}");
    let refused = binary::uraid([Path::new("examine"), &exports.uris[0]]).code_is(1).stderr;
    assert!(refused.contains("no uraid superblock"), "{refused}");

    // The same name twice, and a member that is there already.
    exports.uris[1] = exports.uris[0].clone();
    let refused = exports.run_create(&[]).code_is(1).stderr;
    assert!(refused.contains("name each member once"), "{refused}");
    exports.uris[1] = own;
    exports.create();
    let server = exports.serve_array(&[]);
    let _ = ask(&exports.array, &["fail", "1"]).success();
    let refused = ask(&exports.array, &["add", "--force", uri(&other).to_str().unwrap()]).code_is(1).stderr;
    assert!(refused.contains("still uses the member"), "{refused}");
    let _ = server.stop();
}

/// One of them over the network, and TLS.
#[test]
fn members_are_exports_of_uraid_itself() {
    let outer = Array::planned(&shape::raid1_of_2());
    let (certified, inner) =
        (Certified::new(), [shape::raid0_of_4(), shape::raid5_of_3()].map(|it| Array::create(&it)));
    let servers = [Server::start(&inner[0]), certified.serve(&inner[1], &["--tls-verify-peer"])];
    let uris = [servers[0].uri().into(), PathBuf::from(certified.uri(&servers[1], "client"))];
    let arguments = ["create".into(), "--level".into(), "1".into()].into_iter().chain(uris.iter().cloned());
    let _ = binary::uraid(arguments).success();
    let server = Server::start_members(&outer, &uris, &[]);
    let mut client = server.connect();
    let data = Random::new(97).bytes(3 << 20);
    client.write(12_345 * 512, &data);
    client.flush();
    assert_same(&client.read(12_345 * 512, data.len()), &data, "through both");
    client.disconnect();
    let _ = server.stop();
    for server in servers {
        let _ = server.stop();
    }
}

/// Another server of the same members, beside the first.
fn refuse_second(exports: &Exports, options: &[&str]) -> String {
    let other = Array::planned(&exports.array.shape);
    Server::refused(&other, &exports.uris, options).stderr
}

#[test]
fn two_servers_of_the_same_exports_are_one_too_many() {
    let exports = Exports::start(&shape::raid1_of_2(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let in_use = format!("in use by process {}", server.pid());
    for options in [&[][..], &["--steal"], &["--degraded", "--force"]] {
        let refused = refuse_second(&exports, options);
        assert!(refused.contains(&in_use), "{options:?}: {refused}");
    }
    let arguments = ["create", "--force", "--level", "1"].map(PathBuf::from);
    let refused = binary::uraid(arguments.into_iter().chain(exports.uris.iter().cloned())).code_is(1).stderr;
    assert!(refused.contains(&in_use), "{refused}");
    let mut client = server.connect();
    client.write(0, &[9; 4096]);
    client.disconnect();

    // Who has ended is not waited for, however it did.
    let _ = server.stop();
    let server = exports.serve_array(&[]);
    server.kill();
    // Nor while its parent has not asked how.
    let ended = exports.serve_array(&[]);
    ended.signal(Signal::KILL);
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", ended.pid())).unwrap();
    wait_until("it is a zombie", || stat().contains(") Z "));
    let server = exports.serve_array(&[]);
    drop(ended);
    let mut client = server.connect();
    assert_eq!(client.read(0, 4096), [9; 4096]);
    client.disconnect();
    let _ = server.stop();
    let mark = |member: &PathBuf| std::fs::read(member).unwrap()[40 << 10..44 << 10].to_vec();
    assert!(exports.array.members().iter().all(|member| mark(member) == [0; 4096]), "nobody has them");
}

#[test]
fn who_was_robbed_writes_nothing_more() {
    let exports = Exports::start(&shape::raid1_of_2(), Kind::Nbdkit);
    exports.create();
    let first = exports.serve_array(&["--cache", "none"]);
    let mut former = first.connect();
    former.write(0, &[1; 64 << 10]);
    former.flush();
    first.signal(Signal::STOP);
    let refused = refuse_second(&exports, &[]);
    assert!(refused.contains("fallen silent") && refused.contains("--steal"), "{refused}");

    let other = Array::planned(&exports.array.shape);
    let second = Server::start_members(&other, &exports.uris, &["--steal"]);
    let mut client = second.connect();
    assert_eq!(client.read(0, 4096), [1; 4096]);
    let image = Random::new(100).bytes(exports.array.expected_size());
    write_export(second.uri(), &image);

    // The first one goes on with its clients.
    first.signal(Signal::CONT);
    let written = former.call(Command::Write, 0, 4096, &[3; 4096]);
    assert_ne!(written.error, 0, "{written:?}");
    let frozen = until(&exports.array, "it is frozen", |status| status["health"]["state"] == "frozen");
    let screen = ask(&exports.array, &["status"]).text();
    assert!(screen.contains("frozen: another server has taken member"), "{screen}");
    assert_eq!(frozen["members"][0]["away"], serde_json::Value::Null, "nobody returns there");
    first.kill();
    assert_same(&read_export(second.uri()), &image, "the second server's");
    client.disconnect();
    let whole = status(&other);
    assert_eq!(whole["health"]["state"], "whole", "{whole:#}");
    let _ = second.stop();
    drop(exports.servers);
    Content::read(&exports.array).assert_holds(&image, "by the second server alone");
}

/// A member that is used is not added, and goes on.
#[test]
fn an_export_that_is_used_already_stays_a_member_when_it_is_named_once_more() {
    let exports = Exports::start(&shape::raid1_of_2(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let member = exports.uris[1].to_str().unwrap();
    for words in [&["add", member][..], &["add", "--force", member], &["replace", "0", member]] {
        let refused = ask(&exports.array, words).code_is(1).stderr;
        assert!(refused.contains("still uses the member in slot 1"), "{words:?}: {refused}");
    }
    // It looks for its mark every second.
    let before = status(&exports.array)["uptime_ms"].as_u64().unwrap();
    let now = until(&exports.array, "it has looked", |status| status["uptime_ms"].as_u64() > Some(before + 3000));
    assert_eq!(now["health"]["state"], "whole", "{now:#}");
    let mut client = server.connect();
    client.write(0, &[1; 4096]);
    client.flush();
    client.disconnect();
    let _ = server.stop();
}

/// Nobody has to ask for content to be told.
#[test]
fn an_array_that_has_lost_more_servers_than_it_survives_is_not_called_degraded() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_returning("500ms", &[]);
    exports.kill(0);
    fails(&exports.array, 0);
    exports.kill(2);
    let told = until(&exports.array, "it is told", |status| has_trouble(status, 2, "cut-off"));
    // Blank regions are made zeros meanwhile, and a write that fails freezes the array.
    assert!(["failing", "frozen"].iter().any(|state| told["health"]["state"] == *state), "{told:#}");
    let screen = ask(&exports.array, &["status"]).text();
    assert!(screen.contains("the connection to member 2") && !screen.contains("replace it"), "{screen}");
    server.kill();
}

/// What is erased takes longer than the marks on them are left alone.
#[test]
fn an_array_is_created_on_exports_that_are_slow() {
    let directory = tempfile::tempdir().unwrap();
    let slow = |name| nbdkit(directory.path(), name, &["--filter=delay", "memory", "32M", "delay-zero=1"]);
    let servers = ["one", "two"].map(slow);
    let arguments = ["create", "--level", "1"].map(PathBuf::from).into_iter();
    let _ = binary::uraid(arguments.chain(servers.iter().map(|(_, uri)| uri.clone()))).success();
}

/// Nobody knows yet that the other one's server has gone.
#[test]
fn a_member_is_not_failed_when_another_one_has_just_gone() {
    let exports = Exports::start(&shape::raid5_of_3(), Kind::Nbdkit);
    exports.create();
    let server = exports.serve_array(&[]);
    let image = Random::new(108).bytes(exports.array.expected_size());
    write_export(server.uri(), &image);
    exports.kill(2);
    let refused = ask(&exports.array, &["fail", "1"]).code_is(1).stderr;
    assert!(refused.contains("the server of member 2 (") && refused.contains("does not answer"), "{refused}");
    fails(&exports.array, 2);
    assert_same(&read_export(server.uri()), &image, "without the one that has gone");
    let mut client = server.connect();
    client.write(0, &[7; 4096]);
    client.flush();
    client.disconnect();
    let _ = server.stop();
}

#[test]
fn who_shares_what_the_array_does_not_survive_is_warned_of() {
    let array = Array::planned(&shape::raid5_of_3());
    let named = [0, 2].map(|slot| format!("rack={}", array.members()[slot].display()));
    let options = ["--domain", &named[0], "--domain", &named[1]];
    let warned = array.run_create(MEMBER_BYTES, &options).success().stderr;
    assert!(warned.contains("rack: members 0 and 2 fail together"), "{warned}");
    let server = Server::start_members(&array, array.members(), &options);
    let expected = serde_json::json!([{ "domain": "rack", "slots": [0, 2] }]);
    assert_eq!(status(&array)["crowded_domains"], expected);
    let screen = ask(&array, &["status"]).success().text();
    assert!(screen.contains("\ndomain   rack: members 0 and 2 fail together"), "{screen}");
    let _ = server.stop();
    let server = Server::start_members(&array, array.members(), &options[..2]);
    assert_eq!(status(&array)["crowded_domains"], serde_json::json!([]));
    let _ = server.stop();
}
