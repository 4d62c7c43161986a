//! A Unix socket and TCP addresses of one server: whoever comes by either finds the same array, and the same rules.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::Command;

use rustix::io::FdFlags;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::status;

/// The URIs of a server: the first, and those that it prints after it.
fn uris(server: &Server, others: usize) -> Vec<String> {
    let others = (0..others).map(|_| server.line_after("  also "));
    [server.uri().to_owned()].into_iter().chain(others).collect()
}

#[test]
fn a_unix_socket_and_tcp_addresses_lead_to_the_same_array() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_3());
        let socket = array.socket();
        let options = ["--listen", "127.0.0.1:0", "--socket", socket.to_str().unwrap(), "--listen", "127.0.0.2:0"];
        let options = [&options[..], &["--connection-threads", threads]].concat();
        let server = Server::start_members(&array, array.members(), &options);
        let uris = uris(&server, 2);
        for (uri, start) in uris.iter().zip(["nbd+unix:///", "nbd://127.0.0.1:", "nbd://127.0.0.2:"]) {
            assert!(uri.starts_with(start), "{uris:?}");
        }
        for (seed, writer) in (0..).zip(&uris) {
            let image = Random::new(seed).bytes(array.expected_size());
            write_export(writer, &image);
            uris.iter().for_each(|reader| assert_same(&read_export(reader), &image, &format!("{writer} {reader}")));
        }
        let said = status(&array);
        assert_eq!(said["uri"], server.uri(), "the control socket is beside the Unix socket");
        let mode = socket.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let printed = server.stop().join("\n");
        assert!(printed.contains("nbd-client -unix"), "{printed}");
        assert!(!socket.exists() && !array.path("nbd.ctl").exists(), "the server leaves nothing behind");
    }
}

/// The file says what options say, and an option for either place replaces both of the file's.
#[test]
fn a_file_names_both_places() {
    let array = Array::create(&shape::raid1_of_2());
    let (file, socket) = (array.path("array.toml"), array.socket());
    let members: Vec<String> = array.members().iter().map(|member| member.display().to_string()).collect();
    let text = format!("members = {members:?}\nsocket = {socket:?}\nlisten = ['127.0.0.1:0', '127.0.0.2:0']\n");
    std::fs::write(&file, text).unwrap();
    let serve = |more: &[&str]| {
        let mut command = binary::command();
        command.args(["serve", "--config"]).arg(&file).args(more);
        Server::spawn(command, socket.clone()).unwrap()
    };
    let server = serve(&[]);
    let found = uris(&server, 2);
    assert!(found[0].starts_with("nbd+unix:") && found[2].starts_with("nbd://127.0.0.2:"), "{found:?}");
    assert!(found.iter().all(|uri| read_export(uri).len() == array.expected_size()));
    let _ = server.stop();
    let server = serve(&["--listen", "127.0.0.3:0"]);
    assert!(server.uri().starts_with("nbd://127.0.0.3:"), "{}", server.uri());
    assert!(!socket.exists(), "the command line says where, and does not name the socket");
    let _ = server.stop();
}

#[test]
fn users_are_let_in_where_there_is_a_socket() {
    let array = Array::create(&shape::raid1_of_2());
    let refused = Server::try_start(&array, array.members(), &["--listen", "127.0.0.1:0", "--allow-uid", "1000"]);
    let refused = refused.unwrap_err().code_is(2);
    assert!(refused.stderr.contains("--allow-uid") && refused.stderr.contains("--socket"), "{refused:?}");
    let socket = array.socket();
    let both = ["--listen", "127.0.0.1:0", "--socket", socket.to_str().unwrap(), "--allow-uid", "1000"];
    let server = Server::start_members(&array, array.members(), &both);
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    assert!(uris(&server, 1).iter().all(|uri| read_export(uri).len() == array.expected_size()));
    let _ = server.stop();
    let options = ["--listen", "127.0.0.1:0", "--socket", both[3], "--control", both[3]];
    let refused = Server::try_start(&array, array.members(), &options).unwrap_err().code_is(2);
    assert!(refused.stderr.contains("--control"), "{refused:?}");
}

/// A service manager's sockets are descriptors from 3 on, as `sd_listen_fds(3)` has it.
#[test]
fn a_service_manager_hands_over_several_sockets() {
    let array = Array::create(&shape::raid1_of_2());
    let unix = UnixListener::bind(array.socket()).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    rustix::io::fcntl_setfd(&unix, FdFlags::empty()).unwrap();
    rustix::io::fcntl_setfd(&tcp, FdFlags::empty()).unwrap();
    let activated = |count: usize, options: &[&str]| {
        let (first, second) = (unix.as_raw_fd(), tcp.as_raw_fd());
        // Neither is overwritten before it is copied: bash takes numbers that are free.
        let copy = format!("exec {{a}}<&{first} {{b}}<&{second}; exec 3<&$a 4<&$b");
        let mut command = Command::new("bash");
        command.args(["-c", &format!("{copy}; LISTEN_PID=$$ LISTEN_FDS={count} exec \"$@\""), "bash"]);
        command.arg(binary::path()).arg("serve").args(options).args(array.members());
        Server::spawn(command, array.socket())
    };
    let socket = array.socket();
    let socket = socket.to_str().unwrap();
    for options in [&[][..], &["--socket", socket, "--listen", &address]] {
        let server = activated(2, options).unwrap();
        let found = uris(&server, 1);
        assert_eq!(found[1].strip_prefix("nbd://").unwrap().split('/').next(), Some(&address[..]));
        assert!(found.iter().all(|uri| read_export(uri).len() == array.expected_size()));
        assert_eq!(status(&array)["uri"], server.uri());
        let _ = server.stop();
    }
    for (count, options, named) in [
        (2, &["--socket", socket][..], &address[..]),
        (2, &["--listen", &address], socket),
        (1, &["--socket", socket, "--listen", &address], &address),
    ] {
        let refused = activated(count, options).unwrap_err().code_is(2);
        assert!(refused.stderr.contains(named), "{}", refused.stderr);
    }
}
