//! What clients may use of a server (`--max-connections` and the like), and how fast they may go on.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command as Program;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::{Client, Command, error, request};
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::{ask, metric, status};

const THREADS: [&str; 2] = ["0", "2"];

/// Only so that a failing test ends.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

fn is_closed(mut stream: impl std::io::Read) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn connect(server: &Server) -> UnixStream {
    let stream = UnixStream::connect(server.socket()).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
    stream
}

/// Connects until somebody is let in: a place is free some time after its client has gone.
fn connect_at_last(server: &Server) -> Client {
    loop {
        if let Ok(client) = Client::try_connect(server.socket()) {
            return client;
        }
    }
}

#[test]
fn connections_are_as_many_as_is_said_and_others_are_counted() {
    for threads in THREADS {
        let array = Array::create(&shape::raid1_of_2());
        let options = ["--max-connections", "3", "--connection-threads", threads, "--metrics", "0"];
        let server = Server::start_members(&array, array.members(), &options);
        let page = server.line_after("metrics at http://");
        let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
        // Who is answered has finished its handshake, and gives way to nobody.
        clients.iter_mut().for_each(|client| assert_eq!(client.read(0, 512).len(), 512));
        for _ in 0..5 {
            assert!(is_closed(connect(&server)));
        }
        let said = status(&array);
        assert_eq!(
            (&said["clients"], &said["clients_max"], &said["clients_refused"]),
            (&json!(3), &json!(3), &json!(5))
        );
        for (name, value) in [("", "3"), ("_max", "3"), ("_refused_total", "5")] {
            let line = format!("uraid_connections{name} ");
            assert_eq!(metric(&page, &line).as_deref(), Some(value), "{line}");
        }
        let screen = ask(&array, &["status"]).success().text();
        assert!(screen.contains("3 clients, 5 refused"), "{screen}");
        clients.iter_mut().for_each(|client| assert_eq!(client.read(0, 512).len(), 512));
        drop(clients.remove(0));
        assert_eq!(connect_at_last(&server).read(0, 512).len(), 512);
        let _ = server.stop();
    }
}

/// A client over TCP that has finished its handshake, and is served.
fn served(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0").unwrap();
    stream.write_all(&request(Command::Flush, 7, 0, 0)).unwrap();
    let mut received = Vec::new();
    while !received.ends_with(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &7_u64.to_be_bytes()].concat()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        received.push(byte[0]);
    }
    stream
}

#[test]
fn a_host_has_its_own_limit() {
    let array = Array::create(&shape::raid1_of_2());
    let socket = array.socket();
    let options = ["--listen", "127.0.0.1:0", "--socket", socket.to_str().unwrap()];
    let options = [&options[..], &["--max-connections", "6", "--max-connections-per-host", "2"]].concat();
    let server = Server::start_members(&array, array.members(), &options);
    let tcp = server.line_after("  also nbd://");
    let address = tcp.split('/').next().unwrap();
    let hosts = [served(address), served(address)];
    assert!(is_closed(TcpStream::connect(address).unwrap()), "the host has two already");
    let local: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    assert_eq!(status(&array)["clients"], 6, "on the Unix socket nobody counts as a host");
    assert_eq!(status(&array)["clients_refused"], 1);
    drop((local, hosts));
    let _ = server.stop();
}

#[test]
fn more_connections_than_by_default_are_served_with_as_many_files() {
    let array = Array::create(&shape::raid1_of_2());
    let limited = |most: &str, options: &[&str]| {
        let uraid = Server::command(&array, array.members(), options);
        let mut command = Program::new("sh");
        command.args(["-c", "ulimit -S -n 64; ulimit -H -n \"$0\"; exec \"$@\"", most]).arg(uraid.get_program());
        command.args(uraid.get_args());
        Server::spawn(command, array.socket())
    };
    let options = ["--max-connections", "200"];
    let refused = limited("128", &options).unwrap_err().code_is(1).stderr;
    assert!(refused.contains("--max-connections 200 needs"), "{refused}");
    let needed: u64 = refused.split("needs ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
    let server = limited(&needed.to_string(), &options).unwrap();
    let mut clients: Vec<Client> = (0..200).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.read(0, 512).len(), 512));
    assert!(is_closed(connect(&server)));
    let _ = server.stop();
}

/// Clients that want more than the limit wait, and what they wanted is done in the end; flushes of others never wait.
#[test]
fn a_limit_holds_for_all_clients_together_until_it_is_changed() {
    for threads in THREADS {
        let array = Array::create(&shape::raid5_of_3());
        let options = ["--client-iops-limit", "1", "--client-limit", "1M", "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &options);
        let limits = |bytes: Value, operations: Value| {
            let limits = status(&array)["limits"].clone();
            assert_eq!(limits["client_bytes_per_second"], bytes);
            assert_eq!(limits["client_operations_per_second"], operations);
        };
        limits(json!(1 << 20), json!(1));
        let screen = ask(&array, &["status"]).success().text();
        assert!(screen.contains("limited to 1 MiB/s and 1 requests/s"), "{screen}");
        let data = Random::new(81).bytes(4096);
        let mut writers: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        for (number, writer) in (0..).zip(&mut writers) {
            for part in 0..16 {
                let _ = writer.submit(Command::Write, (16 * number + part) * 4096, 4096, &data).unwrap();
            }
        }
        let mut flushing = server.connect();
        (0..10).for_each(|_| flushing.flush());
        let done = status(&array)["requests"]["writes"].as_u64().unwrap();
        assert!(done < 64, "all writes are done at once");
        let _ = ask(&array, &["set", "--client-iops-limit", "none", "--client-limit", "100G"]).success();
        limits(json!(100_u64 << 30), Value::Null);
        for writer in &mut writers {
            (0..16).for_each(|_| assert_eq!(writer.reply().unwrap().error, 0));
        }
        let _ = ask(&array, &["set", "--client-limit", "none"]).success();
        limits(Value::Null, Value::Null);
        drop((writers, flushing));
        let image = read_export(server.uri());
        assert!(image[..64 * 4096].chunks(4096).all(|part| part == data), "threads: {threads}");
        let _ = server.stop();
        Content::read(&array).assert_holds(&image, "after limits");
    }
}

/// What a limit delays is counted, and what an image of it has is the same as without.
#[test]
fn foreign_clients_do_not_mind_a_limit() {
    let array = Array::create(&shape::raid5_of_3());
    let options = ["--client-limit", "64M", "--client-iops-limit", "2000", "--metrics", "0"];
    let server = Server::start_members(&array, array.members(), &options);
    let page = server.line_after("metrics at http://");
    let image = Random::new(82).bytes(array.expected_size());
    write_export(server.uri(), &image);
    assert_same(&read_export(server.uri()), &image, "at a limited rate");
    for (name, value) in [("bytes", "67108864"), ("requests", "2000")] {
        let line = format!("uraid_client_limit_{name}_per_second ");
        assert_eq!(metric(&page, &line).as_deref(), Some(value), "{line}");
    }
    let _ = ask(&array, &["set", "--client-iops-limit", "1"]).success();
    let mut client = server.connect();
    assert_eq!([client.read(0, 512), client.read(512, 512)].concat(), image[..1024]);
    let delayed: u64 = metric(&page, "uraid_requests_delayed_total ").unwrap().parse().unwrap();
    assert!(delayed >= 1, "{delayed}");
    let _ = server.stop();
    Content::read(&array).assert_holds(&image, "after limits");
}

/// A configuration file has the same keys, and `set --persist` writes them there.
#[test]
fn limits_are_kept_in_the_file() {
    let array = Array::create(&shape::raid1_of_2());
    let file = array.path("array.toml");
    let members: Vec<String> = array.members().iter().map(|member| member.display().to_string()).collect();
    fs::write(&file, format!("members = {members:?}\nmax-connections = 2\nclient-limit = '5M'\n")).unwrap();
    let serve = || {
        let mut command = binary::command();
        command.args(["serve", "--config"]).arg(&file).arg("--socket").arg(array.socket());
        Server::spawn(command, array.socket()).unwrap()
    };
    let server = serve();
    assert_eq!(status(&array)["clients_max"], 2);
    assert_eq!(status(&array)["limits"]["client_bytes_per_second"], 5 << 20);
    let set = ["set", "--client-limit", "none", "--client-iops-limit", "70", "--persist"];
    let told = ask(&array, &set).success().text();
    assert!(told.contains("not limited") && told.contains("limited to 70/s"), "{told}");
    let _ = server.stop();
    let server = serve();
    assert_eq!(status(&array)["limits"]["client_bytes_per_second"], Value::Null);
    assert_eq!(status(&array)["limits"]["client_operations_per_second"], 70);
    let _ = server.stop();
}

#[test]
fn who_is_silent_is_disconnected() {
    for threads in THREADS {
        let array = Array::create(&shape::raid1_of_2());
        let deadlines = ["--handshake-deadline", "200ms", "--idle-deadline", "500ms", "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &deadlines);
        let mut shaking = connect(&server);
        shaking.read_exact(&mut [0; 18]).unwrap();
        assert!(is_closed(shaking), "it did not finish its handshake");
        let idle = server.connect();
        assert!(is_closed(idle.stream()), "it asked for nothing");
        let _ = server.stop();
    }
}

/// Of one connection no more is in flight than is said; all of it is answered.
#[test]
fn requests_in_flight_are_as_many_as_is_said() {
    let array = Array::create(&shape::raid5_of_3());
    let options = ["--max-requests", "2", "--client-memory", "64K", "--metrics", "0"];
    let server = Server::start_members(&array, array.members(), &options);
    let page = server.line_after("metrics at http://");
    let image = Random::new(83).bytes(1 << 20);
    let mut client = server.connect();
    client.write(0, &image);
    let count = 64_u64;
    for part in 0..count {
        let _ = client.submit(Command::Read, part % 16 * 65536, 65536, &[]).unwrap();
    }
    let used: u64 = metric(&page, "uraid_request_memory_used_bytes ").unwrap().parse().unwrap();
    assert!(used <= 65536, "{used}");
    let mut replies: Vec<_> = (0..count).map(|_| client.reply().unwrap()).collect();
    replies.sort_by_key(|reply| reply.cookie);
    for (part, reply) in replies.iter().enumerate() {
        assert_same(&reply.data, &image[part % 16 * 65536..][..65536], "a reply");
    }
    let _ = server.stop();
}

#[test]
fn values_that_make_no_sense_are_refused_with_what_to_write() {
    for (options, told) in [
        (&["--max-connections", "0"][..], "1..=10000"),
        (&["--max-connections", "100000"], "1..=10000"),
        (&["--max-connections", "8", "--max-connections-per-host", "9"], "lower the first or raise the second"),
        (&["--max-requests", "0"], "1..=65536"),
        (&["--client-memory", "64"], "write a unit"),
        (&["--client-limit", "0"], "50M"),
        (&["--client-iops-limit", "0"], "500"),
        (&["--client-iops-limit", "fast"], "500"),
        (&["--handshake-deadline", "off"], "10s"),
        (&["--handshake-deadline", "10"], "unit"),
        (&["--idle-deadline", "1ms"], "100ms"),
        (&["--stop-deadline", "off"], "10s"),
        (&["--drain", "never"], "eshutdown"),
    ] {
        let refused = binary::uraid([&["serve"], options, &["x"]].concat()).code_is(2);
        assert!(refused.stderr.contains(told), "{options:?}: {}", refused.stderr);
    }
}

/// With `--drain eshutdown` what comes during a stop fails at once; otherwise it is not read, and nobody gets an error.
#[test]
fn requests_during_a_stop_are_refused_or_left_to_the_next_server() {
    for threads in THREADS {
        for drain in ["close", "eshutdown"] {
            let array = Array::create(&shape::raid5_of_3());
            let options = ["--drain", drain, "--connection-threads", threads];
            let server = Server::start_members(&array, array.members(), &options);
            let mut client = server.connect();
            let data = Random::new(84).bytes(1 << 20);
            client.write(0, &data);
            server.signal(Signal::TERM);
            while server.socket().exists() {
                thread::yield_now(); // it goes when the stop begins
            }
            // Until it notices that, a connection may still serve.
            let last = loop {
                let sent = client.submit(Command::Write, 0, 4096, &data[..4096]);
                match sent.and_then(|_| client.reply()) {
                    Ok(reply) if reply.error == 0 => {}
                    last => break last,
                }
            };
            if drain == "eshutdown" {
                assert_eq!(last.unwrap().error, error::ESHUTDOWN);
                for command in [Command::Read, Command::Flush, Command::Trim] {
                    let length = if matches!(command, Command::Flush) { 0 } else { 4096 };
                    assert_eq!(client.call(command, 0, length, &[]).error, error::ESHUTDOWN, "{command:?}");
                }
                client.disconnect();
            } else {
                assert!(last.is_err(), "the connection is closed, and that is all: {last:?}");
            }
            let output = server.end().success();
            assert!(!output.stderr.contains("not answered in time"), "{}", output.stderr);
            assert_same(&Content::read(&array).image()[..data.len()], &data, "what was written before");
        }
    }
}
