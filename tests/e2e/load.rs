//! Many clients, and clients that are slow or stand still: everybody gets what was asked for.

use std::io::{ErrorKind, Read as _};
use std::process::Command as Program;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::Value;
use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::nbd::{Client, Command};
use uraid_tests::process::Process;
use uraid_tests::run::client_command;
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::{ask, status, until};

const BLOCK: usize = 4096;

/// Lets this process open as many files as it may.
fn raise_own_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// Each writes blocks of its own, all at the same time, and then reads those of the next one.
#[test]
fn a_thousand_clients_write_and_read() {
    const CLIENTS: usize = 1000;
    const ROUNDS: usize = 3;
    raise_own_limit();
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let options = ["--max-connections", "1000", "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &options);
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
        assert_eq!(status(&array)["clients"], CLIENTS);
        let image = Random::new(91).bytes(CLIENTS * ROUNDS * BLOCK);
        let place = |client: usize, round: usize| (round * CLIENTS + client) % (CLIENTS * ROUNDS) * BLOCK;
        for (number, client) in clients.iter_mut().enumerate() {
            for at in (0..ROUNDS).map(|round| place(number, round)) {
                let _ = client.submit(Command::Write, at as u64, BLOCK as u32, &image[at..at + BLOCK]).unwrap();
            }
        }
        for client in &mut clients {
            (0..ROUNDS).for_each(|_| assert_eq!(client.reply().unwrap().error, 0));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let at = place((number + 1) % CLIENTS, number % ROUNDS);
            let _ = client.submit(Command::Read, at as u64, BLOCK as u32, &[]).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let at = place((number + 1) % CLIENTS, number % ROUNDS);
            let reply = client.reply().unwrap();
            assert_eq!(reply.error, 0);
            assert_same(&reply.data, &image[at..at + BLOCK], "what another one wrote");
        }
        assert_eq!(status(&array)["clients_refused"], 0);
        clients.into_iter().for_each(Client::disconnect);
        let _ = server.stop();
        let content = Content::read(&array);
        content.assert_consistent("after a thousand clients");
        assert_same(&content.image()[..image.len()], &image, "on the members");
    }
}

/// They take a few bytes of their replies now and then, while another one is served at its own pace.
#[test]
fn slow_readers_get_everything_and_hold_up_nobody() {
    const PART: usize = 1 << 20;
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let options = ["--cache-size", "32M", "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &options);
        let image = Random::new(92).bytes(8 * PART);
        let mut other = server.connect();
        image.chunks(PART).enumerate().for_each(|(part, data)| other.write(part * PART, data));
        let slow: Vec<Client> = (0..8)
            .map(|_| {
                let mut client = server.connect();
                for part in 0..8 {
                    let _ = client.submit(Command::Read, (part * PART) as u64, PART as u32, &[]).unwrap();
                }
                client.stream().set_nonblocking(true).unwrap();
                client
            })
            .collect();
        // Replies come in any order; each is as long as the next.
        let mut received = vec![Vec::new(); slow.len()];
        let all = 8 * (16 + PART);
        let mut buffer = vec![0; 48 << 10];
        let mut round = 0;
        while received.iter().any(|bytes| bytes.len() < all) {
            for (client, bytes) in slow.iter().zip(&mut received) {
                match client.stream().read(&mut buffer) {
                    Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            let at = round % 2048 * BLOCK;
            assert_same(&other.read(at, BLOCK), &image[at..at + BLOCK], "beside slow readers");
            round += 1;
        }
        for bytes in received {
            assert_eq!(bytes.len(), all);
            // The cookies of a client's requests follow one another.
            let mut replies: Vec<&[u8]> = bytes.chunks(16 + PART).collect();
            replies.sort_by(|one, other| one[8..16].cmp(&other[8..16]));
            for (reply, part) in replies.iter().zip(image.chunks(PART)) {
                assert_eq!(reply[4..8], [0; 4]);
                assert_same(&reply[16..], part, "what a slow reader got");
            }
        }
        let _ = server.stop();
        Content::read(&array).assert_consistent("after slow readers");
    }
}

/// Foreign clients that are stopped in the middle of what they do: nobody else notices, and they go on afterwards.
#[test]
fn clients_that_are_stopped_go_on_where_they_were() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let options = ["--cache-size", "8M", "--request-memory", "8M", "--connection-threads", threads];
        let server = Server::start_members(&array, array.members(), &options);
        let image = Random::new(93).bytes(array.expected_size());
        let source = array.path("source.img");
        std::fs::write(&source, &image).unwrap();
        // Who reads holes has soon done.
        write_export(server.uri(), &image);
        // They are in the middle as long as this limit holds.
        let _ = ask(&array, &["set", "--client-limit", "1M"]).success();
        let mut write = client_command("nbdcopy");
        write.args(["--connections=4", "--requests=64"]).arg(&source).arg(server.uri());
        let copies: Vec<Program> = (0..2)
            .map(|number| {
                let mut read = client_command("nbdcopy");
                read.arg(server.uri()).arg(array.path(&format!("copy{number}.img")));
                read
            })
            .collect();
        let stopped: Vec<Process> = [write].into_iter().chain(copies).map(Process::start).collect();
        let all_are_there = |now: &Value| now["clients"].as_u64().is_some_and(|clients| clients >= 3);
        let _ = until(&array, "not all are there", all_are_there);
        stopped.iter().for_each(|process| process.signal(Signal::STOP));
        let _ = ask(&array, &["set", "--client-limit", "none"]).success();
        let mut other = server.connect();
        let end = image.len() - BLOCK;
        for round in 0..200_u8 {
            other.write(end, &[round; BLOCK]);
            assert_same(&other.read(end, BLOCK), &[round; BLOCK], "beside clients that stand still");
        }
        stopped.iter().for_each(|process| process.signal(Signal::CONT));
        for process in stopped {
            let _ = process.finish(std::time::Duration::from_secs(120)).success();
        }
        // The last block is whoever's wrote it last.
        assert_same(&read_export(server.uri())[..end], &image[..end], "after they went on");
        let _ = server.stop();
        Content::read(&array).assert_consistent("after clients that stood still");
    }
}
