//! Clients that take more than their part, of servers that have little.

use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same};
use uraid_tests::nbd::{Client, Command, error, request};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::{ask, status, until};

const MIB: usize = 1 << 20;

fn limit(server: &Server, resource: Resource, most: u64) {
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap());
    prlimit(pid, resource, Rlimit { current: Some(most), maximum: Some(most) }).unwrap();
}

/// Leaves a server so much more memory than it has now.
fn limit_memory(server: &Server, more_mib: u64) {
    limit(server, Resource::As, server.memory().mapped + (more_mib << 20));
}

/// A client that asks for 100 MiB and takes none of it.
fn hog(server: &Server) -> Client {
    let mut client = server.connect();
    for _ in 0..100 {
        let _ = client.submit(Command::Read, 0, 1 << 20, &[]).unwrap();
    }
    client
}

/// What clients have asked for and don't read waits for them within a budget, and what others wrote is safe.
#[test]
fn clients_that_never_read_cost_no_more_than_the_budget() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let options = ["--cache-size", "32M", "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &options);
        limit_memory(&server, 256);
        let mut other = server.connect();
        let data = Random::new(31).bytes(MIB);
        other.write(0, &data);
        let hogs: Vec<Client> = (0..20).map(|_| hog(&server)).collect();
        // Each of these is a turn in which the server takes in what the others ask for.
        for _ in 0..200 {
            assert_same(&other.read(0, 4096), &data[..4096], "beside clients that don't read");
        }
        other.write(MIB, &data[..4096]);
        assert_eq!(status(&array)["clients"], 21);
        drop(hogs);
        let model = [&data[..], &data[..4096]].concat();
        assert_same(&other.read(0, model.len()), &model, "after clients that did not read");
        let _ = server.stop();
        let content = Content::read(&array);
        content.assert_consistent("after clients that did not read");
        assert_same(&content.image()[..model.len()], &model, "on the members");
    }
}

/// Where the budget is more than there is, a request that finds no memory is refused, and the server goes on.
#[test]
fn memory_that_is_not_there_is_an_error_to_who_asks_for_it() {
    let array = Array::create(&shape::raid5_of_5_left_symmetric());
    let server = Server::start_members(&array, array.members(), &["--cache-size", "8M", "--request-memory", "8G"]);
    let mut other = server.connect();
    let data = Random::new(32).bytes(MIB);
    other.write(0, &data);
    limit_memory(&server, 192);
    let hogs: Vec<Client> = (0..20).map(|_| hog(&server)).collect();
    let mut refused = 0;
    for _ in 0..200 {
        let reply = other.call(Command::Read, 0, 4 << 20, &[]);
        assert!([0, error::ENOMEM].contains(&reply.error), "{}", reply.error);
        refused += usize::from(reply.error != 0);
    }
    assert!(refused > 0, "the memory was enough for all");
    assert_eq!(status(&array)["clients"], 21);
    drop(hogs);
    let _ = until(&array, "the others are still there", |now| now["clients"] == 1);
    assert_same(&other.read(0, MIB), &data, "when the others are gone");
    let _ = server.stop();
    let content = Content::read(&array);
    content.assert_consistent("after requests without memory");
    assert_same(&content.image()[..MIB], &data, "on the members");
}

#[test]
fn silent_connections_keep_nobody_out() {
    let array = Array::create(&shape::raid1_of_3());
    let server = Server::start_members(&array, array.members(), &["--listen", "127.0.0.1:0"]);
    let address = server.uri().trim_start_matches("nbd://").split('/').next().unwrap().to_owned();
    let mut silent: Vec<_> = (0..64).map(|_| TcpStream::connect(&address).unwrap()).collect();
    silent[63].read_exact(&mut [0; 18]).unwrap();
    let size = client("nbdinfo", ["--size", server.uri()]).success();
    assert_eq!(size.text().trim(), array.expected_size().to_string());
    let _ = server.stop();
}

/// Half of them say nothing, and half of them not all. This end keeps some hundreds of them open, for its own sake.
#[test]
fn ten_thousand_half_open_connections_cost_little_and_keep_nobody_out() {
    let array = Array::create(&shape::raid1_of_3());
    let server = Server::start(&array);
    let mut other = server.connect();
    let data = Random::new(33).bytes(4096);
    other.write(0, &data);
    let before = server.memory().resident;
    let mut half_open = VecDeque::new();
    for number in 1..=10_000 {
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        if number % 2 == 0 {
            // The server may have closed it already, for others.
            let _ = stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0");
        }
        half_open.push_back(stream);
        if half_open.len() > 400 {
            let _ = half_open.pop_front();
        }
        if number % 500 == 0 {
            assert_same(&other.read(0, 4096), &data, "whoever was there");
            let mut newcomer = server.connect();
            assert_same(&newcomer.read(0, 4096), &data, "whoever comes");
            newcomer.disconnect();
        }
    }
    let grown = server.memory().peak.saturating_sub(before);
    assert!(grown <= 64 << 20, "{grown} bytes more");
    let _ = server.stop();
}

/// Sends `message` again and again until the server takes no more of it although others are served.
fn fill(writer: &Client, other: &mut Client, message: &[u8]) {
    const MOST: usize = 1 << 30;
    let mut stream = writer.stream();
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut refusals) = (0, 0);
    while refusals < 20 {
        match stream.write(&message[sent % message.len()..]) {
            Ok(taken) => (sent, refusals) = (sent + taken, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = other.read(0, 512);
                refusals += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < MOST, "the server takes in requests whose replies nobody takes");
    }
}

#[test]
fn a_client_that_writes_and_takes_no_replies_stalls_only_itself() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let server = Server::start_members(&array, array.members(), &["--connection-threads", threads]);
        let mut other = server.connect();
        let data = Random::new(34).bytes(MIB);
        other.write(0, &data);
        let before = server.memory().resident;
        let writer = server.connect();
        let write = [&request(Command::Write, 7, 2 * MIB as u64, 512)[..], &[0x3c; 512]].concat();
        fill(&writer, &mut other, &write.repeat(64));
        let grown = server.memory().resident.saturating_sub(before);
        assert!(grown <= 64 << 20, "{grown} bytes more");
        assert_same(&other.read(0, MIB), &data, "beside a client that takes no replies");
        drop(writer);
        let mut newcomer = server.connect();
        assert_same(&newcomer.read(2 * MIB, 512), &[0x3c; 512], "what it wrote");
        newcomer.disconnect();
        let _ = server.stop();
        Content::read(&array).assert_consistent("after a client that took no replies");
    }
}

#[test]
fn connections_that_are_refused_are_summed_up() {
    let array = Array::create(&shape::raid1_of_3());
    let server = Server::start(&array);
    let clients: Vec<Client> = (0..64).map(|_| server.connect()).collect();
    for _ in 0..30 {
        let mut refused = UnixStream::connect(server.socket()).unwrap();
        assert!(matches!(refused.read(&mut [0]), Ok(0)), "the connection is closed");
    }
    let _ = ask(&array, &["stop"]).success();
    let output = server.end().success();
    let lines: Vec<_> = output.stderr.lines().filter(|line| line.contains("refused")).collect();
    let count = |line: &str| -> usize { line.split_whitespace().find_map(|word| word.parse().ok()).unwrap() };
    assert_eq!(lines.iter().map(|line| count(line)).sum::<usize>(), 30, "{lines:?}");
    assert!(lines.len() < 30, "{lines:?}");
    drop(clients);
}

/// The last descriptors are for those who look after the array.
#[test]
fn status_works_when_clients_use_up_the_descriptors() {
    let array = Array::create(&shape::raid1_of_3());
    let server = Server::start(&array);
    let in_use = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count() as u64;
    limit(&server, Resource::Nofile, in_use + 40);
    let clients: Vec<Client> = (0..64).filter_map(|_| Client::try_connect(server.socket()).ok()).collect();
    let silent: Vec<_> = (0..64).map(|_| UnixStream::connect(server.socket()).unwrap()).collect();
    assert!((1..64).contains(&clients.len()), "{} clients", clients.len());
    assert_eq!(status(&array)["clients"], clients.len());
    drop((clients, silent));
    let _ = until(&array, "they are still there", |now| now["clients"] == 0);
    let mut client = server.connect();
    client.write(0, &[1; 4096]);
    let _ = ask(&array, &["stop"]).success();
    let output = server.end().success();
    assert!(output.stderr.contains("too few file descriptors are left"), "{}", output.stderr);
}

/// A server with so few file descriptors says so, whatever would have failed first.
#[test]
fn a_limit_of_open_files_that_is_too_low_is_said_with_what_is_needed() {
    let array = Array::create(&shape::raid5_of_3());
    let start = |most: u64| {
        let uraid = Server::command(&array, array.members(), &[]);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -n \"$0\"; exec \"$@\"", &most.to_string()]).arg(uraid.get_program());
        command.args(uraid.get_args());
        Server::spawn(command, array.path("nbd.sock"))
    };
    let mut needed = 0;
    for most in [8, 12, 16, 24] {
        let said = start(most).unwrap_err().code_is(1).stderr;
        let said =
            said.split_once(&format!("the limit of open files is {most}, and serving 3 members needs ")).unwrap();
        needed = said.1.split(':').next().unwrap().parse().unwrap();
    }
    let server = start(needed).expect("as many are enough");
    let mut client = server.connect();
    assert_eq!(client.read(0, 4096).len(), 4096);
    assert_eq!(status(&array)["health"]["state"], "whole");
    drop(client);
    let _ = server.stop();
}
