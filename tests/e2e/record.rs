//! `uraid record`: every read and write of clients is in the trace, in order and with its place.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use uraid_tests::array::Array;
use uraid_tests::binary::{command, uraid};
use uraid_tests::process::Process;
use uraid_tests::server::Server;
use uraid_tests::shape;

const TIME_MAX: Duration = Duration::from_secs(60);

/// What a line of a trace says, apart from its time.
fn said(line: &str) -> &str {
    line.split_once(',').unwrap().1
}

/// Writes a marker until the recorder has seen one: it starts at a time of its own.
fn until_recording(server: &Server, trace: &std::path::Path) {
    let end = Instant::now() + TIME_MAX;
    let mut client = server.connect();
    while fs::read_to_string(trace).map_or(0, |text| text.len()) < 4096 {
        assert!(Instant::now() < end, "nothing is recorded");
        client.write(0, &[1; 4096]);
    }
    client.disconnect();
}

fn records(threads: &str) {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start_members(&array, array.members(), &["--connection-threads", threads]);
    let trace = array.path("trace.csv");
    let mut record = command();
    record.args(["record", "--socket"]).arg(server.socket()).arg(&trace);
    let recording = Process::start(record);
    until_recording(&server, &trace);
    let mut client = server.connect();
    let mut wanted = Vec::new();
    for index in 0..200_usize {
        let (offset, length) = (index * 7919 % 100 * 4096 + 4096, 512 << (index % 4));
        if index % 3 == 0 {
            client.write(offset, &vec![7; length]);
            wanted.push(format!("W,{offset},{length}"));
        } else {
            let _ = client.read(offset, length);
            wanted.push(format!("R,{offset},{length}"));
        }
    }
    client.disconnect();
    recording.signal(Signal::INT);
    let said_at_the_end = recording.finish(TIME_MAX).success().text();
    let text = fs::read_to_string(&trace).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "seconds,op,offset,bytes");
    assert!(said_at_the_end.contains(&format!("{} requests", lines.len() - 1)), "{said_at_the_end}");
    let found: Vec<&str> = lines[1..].iter().map(|line| said(line)).filter(|line| *line != "W,0,4096").collect();
    assert_eq!(found, wanted);
    let times: Vec<f64> = lines[1..].iter().map(|line| line.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let _ = server.stop();
}

#[test]
fn every_request_is_recorded() {
    records("0");
}

#[test]
fn all_threads_record_into_one_trace() {
    records("2");
}

/// The file is new, the time ends it, and what it holds is a trace.
#[test]
fn a_recording_ends_by_itself_and_overwrites_nothing() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let socket = server.socket().to_str().unwrap();
    let trace = array.path("trace.csv");
    let trace = trace.to_str().unwrap();
    let record = || uraid(["record", "--socket", socket, "--for", "1s", trace]);
    assert!(record().success().text().contains("0 requests"));
    assert_eq!(fs::read_to_string(trace).unwrap(), "seconds,op,offset,bytes\n");
    let refused = record().code_is(1);
    assert!(refused.stderr.contains("trace.csv"), "{}", refused.stderr);
    let member = array.members()[0].to_str().unwrap();
    let before = fs::read(member).unwrap();
    let _ = uraid(["record", "--socket", socket, member]).code_is(1);
    assert!(fs::read(member).unwrap() == before);
    let _ = server.stop();
}
