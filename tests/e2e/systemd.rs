//! What a service manager sees of a server, played by this harness.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use rustix::io::FdFlags;
use uraid_tests::array::Array;
use uraid_tests::image::Random;
use uraid_tests::run::{is_installed, run};
use uraid_tests::server::Server;
use uraid_tests::shape;

/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The messages up to the one that is waited for.
pub(crate) fn until(manager: &UnixDatagram, awaited: &str) -> Vec<String> {
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut messages = Vec::new();
    let mut buffer = [0; 4096];
    while messages.last().is_none_or(|last| last != awaited) {
        let length = manager.recv(&mut buffer).unwrap_or_else(|error| panic!("{awaited} after {messages:?}: {error}"));
        messages.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
    }
    messages
}

#[test]
fn the_manager_hears_when_the_server_is_ready_lives_and_stops() {
    for is_abstract in [false, true] {
        let array = Array::create(&shape::raid1_of_2());
        let name = array.path("notify");
        let name = name.to_str().unwrap();
        let (manager, variable) = if is_abstract {
            let address = SocketAddr::from_abstract_name(name).unwrap();
            (UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}"))
        } else {
            (UnixDatagram::bind(name).unwrap(), name.to_owned())
        };
        let mut command = Server::command(&array, array.members(), &[]);
        command.env("NOTIFY_SOCKET", variable).env("WATCHDOG_USEC", "100000");
        let server = Server::spawn(command, array.socket()).unwrap();
        let messages = until(&manager, "READY=1");
        assert_eq!(messages, ["READY=1"], "nothing is said before");
        let messages = until(&manager, "WATCHDOG=1");
        let uuid = array.examine()["uuid"].as_str().unwrap().to_owned();
        assert!(messages.contains(&format!("STATUS={uuid} is whole")), "{messages:?}");
        let _ = until(&manager, "WATCHDOG=1");
        let _ = server.stop();
        let _ = until(&manager, "STOPPING=1");
    }
}

#[test]
fn a_manager_that_is_gone_or_another_ones_watchdog_is_no_harm() {
    let array = Array::create(&shape::raid1_of_2());
    let name = array.path("notify");
    let manager = UnixDatagram::bind(&name).unwrap();
    let mut command = Server::command(&array, array.members(), &[]);
    command.env("NOTIFY_SOCKET", &name).env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1");
    let server = Server::spawn(command, array.socket()).unwrap();
    let _ = until(&manager, "READY=1");
    drop(manager);
    std::fs::remove_file(&name).unwrap();
    server.connect().write(0, &Random::new(1).bytes(512));
    let _ = server.stop();
}

/// The server gets its listening socket as descriptor 3, as `sd_listen_fds(3)` has it.
fn activated(array: &Array, listener: &(impl AsFd + AsRawFd)) -> Command {
    let server = Server::command(array, array.members(), &[]);
    rustix::io::fcntl_setfd(listener, FdFlags::empty()).unwrap();
    let mut command = Command::new("bash");
    let script = format!("exec 3<&{}; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"", listener.as_raw_fd());
    command.args(["-c", &script, "bash"]).arg(server.get_program()).args(server.get_args());
    command
}

/// Nobody could connect there.
#[test]
fn a_socket_that_does_not_listen_is_refused() {
    let array = Array::create(&shape::raid1_of_2());
    let (connected, _other) = UnixStream::pair().unwrap();
    let refused = run(activated(&array, &connected)).code_is(1).stderr;
    assert!(refused.contains("a socket that was handed over is not listening"), "{refused}");
}

#[test]
fn clients_may_connect_before_the_server_runs() {
    let array = Array::create(&shape::raid5_of_3());
    let listener = UnixListener::bind(array.socket()).unwrap();
    let server = start_activated(activated(&array, &listener), &array);
    let data = Random::new(2).bytes(64 << 10);
    let mut client = server.connect();
    client.write(0, &data);
    client.disconnect();
    assert!(array.path("nbd.ctl").exists(), "the control socket is beside it");
    let _ = server.stop();
    assert!(array.socket().exists(), "the socket is the manager's");

    // What connects while nobody serves waits for the next server.
    let waiting = UnixStream::connect(array.socket()).unwrap();
    let server = start_activated(activated(&array, &listener), &array);
    let mut greeting = [0; 8];
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Read::read_exact(&mut &waiting, &mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    assert_eq!(server.connect().read(0, data.len()), data);
    let _ = server.stop();
}

#[test]
fn a_socket_that_is_handed_over_is_the_one_that_is_meant() {
    let array = Array::create(&shape::raid1_of_2());
    let other = array.path("other.sock");
    let listener = UnixListener::bind(&other).unwrap();
    let refused = Server::spawn(activated(&array, &listener), other).unwrap_err().code_is(2);
    assert!(refused.stderr.contains("other.sock"), "{}", refused.stderr);
}

#[test]
fn the_unit_files_are_right() {
    if !is_installed("systemd-analyze") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/cli/systemd");
    let mut paths = Vec::new();
    for name in ["uraid.service", "uraid@.service", "uraid@.socket"] {
        let text = std::fs::read_to_string(format!("{units}/{name}")).unwrap();
        // The program that the service runs has to be there.
        let text = text.replace("/usr/bin/uraid", "/bin/true");
        let path = directory.path().join(name.replace('@', "@vault"));
        std::fs::write(&path, &text).unwrap();
        std::fs::write(directory.path().join(name), text).unwrap();
        paths.push(path);
    }
    let mut command = Command::new("systemd-analyze");
    // Manual pages are where the package is.
    command.args(["verify", "--man=no"]).args(&paths);
    let output = run(command).success();
    assert!(!output.stderr.contains("uraid"), "{}", output.stderr);
}

fn start_activated(command: Command, array: &Array) -> Server {
    Server::spawn(command, array.socket()).unwrap_or_else(|output| panic!("it serves: {}", output.stderr))
}

#[test]
fn nothing_is_said_where_nobody_listens() {
    let array = Array::create(&shape::raid1_of_2());
    let name = array.path("notify");
    let manager = UnixDatagram::bind(&name).unwrap();
    let server = Server::start(&array);
    let _ = server.stop();
    manager.set_nonblocking(true).unwrap();
    assert_eq!(manager.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
