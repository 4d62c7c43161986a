//! Connections on several threads, and one array on another: content, flushes and members are everybody's. Connections
//! go to the threads in turn.

use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, assert_same, read_export};
use uraid_tests::nbd::{Client, Command};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

use crate::control::ask;

/// Larger than what is planned at once with a log.
const LONGEST: usize = 5 << 20;

const COUNTS: [&str; 3] = ["0", "1", "3"];

mod random {
    uraid_tests::for_shapes!(super::requests_of_any_size_at_any_place:
        raid0_of_4, raid1_of_2, raid10_of_5, raid5_of_3, raid5_of_5_right_symmetric, rm2_of_7_partitioned);
}

fn serve(array: &Array, count: &str, more: &[&str]) -> Server {
    Server::start_members(array, array.members(), &[&["--connection-threads", count], more].concat())
}

/// Requests over connections of all threads, checked against a model as they go.
fn requests_of_any_size_at_any_place(shape: &Shape) {
    for (seed, count, cache) in
        [(1, "2", "writeback"), (2, "3", "writeback"), (3, "3", "none"), (4, "2", "writethrough")]
    {
        let what = format!("{}, {count} threads, {cache}", shape.name);
        let array = Array::create(shape);
        let server = serve(&array, count, &["--cache", cache, "--cache-size", "4M"]);
        let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        let mut random = Random::new(seed);
        let mut model = vec![0; array.expected_size()];
        for round in 0..48 {
            let (offset, length) = random.sectors(model.len(), [4096, 256 << 10, LONGEST][round % 3]);
            let size = u32::try_from(length).unwrap();
            let (one, other) = (random.below(4), random.below(4));
            match random.below(8) {
                0 => {
                    let zeroed = clients[one].call(Command::WriteZeroes, offset as u64, size, &[]);
                    assert_eq!(zeroed.error, 0, "{what}: zeroing {length} at {offset}");
                    model[offset..offset + length].fill(0);
                }
                1 => clients[one].flush(),
                _ => {
                    let data = random.bytes(length);
                    clients[one].write(offset, &data);
                    model[offset..offset + length].copy_from_slice(&data);
                }
            }
            let (offset, length) = random.sectors(model.len(), LONGEST);
            let found = clients[other].read(offset, length);
            assert_same(
                &found,
                &model[offset..offset + length],
                &format!("{what}, round {round}: {length} at {offset}"),
            );
        }
        clients.into_iter().for_each(Client::disconnect);
        let _ = server.stop();
        assert_eq!(array.examine()["state"].as_str(), Some("clean"), "{what}");
        Content::read(&array).assert_holds(&model, &what);
    }
}

/// Over all threads at once, with requests that overlap parity stripes.
#[test]
fn fio_verifies_what_jobs_on_all_threads_write() {
    for (count, shape) in
        COUNTS.into_iter().zip([shape::raid5_of_5_left_symmetric(), shape::rm2_of_6(), shape::raid10_of_4()])
    {
        let array = Array::create(&shape);
        let server = serve(&array, count, &[]);
        let uri = format!("--uri={}", server.uri());
        let job = ["--name=verify", "--ioengine=nbd", "--thread", "--rw=randwrite", "--bsrange=512-3m", "--iodepth=16"];
        let range = ["--numjobs=4", "--size=5000k", "--offset_increment=5000k", "--fsync=32", "--randseed=5"];
        let check = ["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=16", "--verify_state_save=0", &uri];
        let _ = client("fio", job.into_iter().chain(range).chain(check)).success();
        let image = read_export(server.uri());
        let _ = server.stop();
        assert_eq!(array.examine()["state"].as_str(), Some("clean"), "{}", shape.name);
        Content::read(&array).assert_holds(&image, shape.name);
    }
}

/// Zeroing and trimming ranges that are far larger than what is under way at once for one request.
#[test]
fn the_whole_array_is_zeroed_in_one_request() {
    let array = Array::create(&shape::raid5_of_5_left_symmetric());
    let server = serve(&array, "3", &[]);
    let mut client = server.connect();
    let size = array.expected_size();
    let data = Random::new(6).bytes(1 << 20);
    for command in [Command::WriteZeroes, Command::Trim] {
        for offset in (0..size - data.len()).step_by(data.len()) {
            client.write(offset, &data);
        }
        let whole = u32::try_from(size).unwrap();
        assert_eq!(client.call(command, 0, whole, &[]).error, 0, "{command:?}");
        let image = read_export(server.uri());
        assert!(image.len() == size && image.iter().all(|&byte| byte == 0), "{command:?}");
    }
    client.disconnect();
    let _ = server.stop();
}

/// A flush on any connection covers what was acknowledged on all others; what counts is what a killed server leaves.
#[test]
fn a_flush_from_another_connection_covers_all_threads() {
    for (seed, count) in [(7, "0"), (8, "1"), (9, "3")] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let mut random = Random::new(seed);
        let mut model = vec![0; array.expected_size()];
        for restart in COUNTS {
            let server = serve(&array, count, &[]);
            let mut writers: Vec<Client> = (0..3).map(|_| server.connect()).collect();
            let mut flusher = server.connect();
            for round in 0..30 {
                let (offset, length) = random.sectors(model.len(), [4096, 200 << 10, LONGEST][round % 3]);
                let data = random.bytes(length);
                writers[round % 3].write(offset, &data);
                model[offset..offset + length].copy_from_slice(&data);
            }
            flusher.flush();
            server.kill();
            let server = serve(&array, restart, &[]);
            assert_same(&read_export(server.uri()), &model, &format!("{count} threads, then {restart}"));
            let _ = server.stop();
            Content::read(&array).assert_holds(&model, &format!("{count} threads, then {restart}"));
        }
    }
}

#[test]
fn a_degraded_array_is_shared_too() {
    for shape in [shape::raid5_of_3(), shape::rm2_of_7_adjacent(), shape::raid10_of_4()] {
        let array = Array::create(&shape);
        let absent = shape.tolerated.last().unwrap();
        let mut random = Random::new(10);
        let mut model = vec![0; array.expected_size()];
        let write = |server: &Server, model: &mut [u8], random: &mut Random| {
            let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
            for round in 0..30 {
                let (offset, length) = random.sectors(model.len(), [4096, 200 << 10, LONGEST][round % 3]);
                let data = random.bytes(length);
                clients[round % 3].write(offset, &data);
                model[offset..offset + length].copy_from_slice(&data);
            }
        };
        let server = serve(&array, "3", &[]);
        write(&server, &mut model, &mut random);
        let _ = server.stop();
        array.remove(absent);
        for options in [&["--connection-threads", "3", "--degraded"][..], &["--connection-threads", "2"]] {
            // The second time it is on record that the array does without them.
            let server = Server::start_members(&array, &array.without(absent), options);
            assert_same(&read_export(server.uri()), &model, shape.name);
            write(&server, &mut model, &mut random);
            assert_same(&read_export(server.uri()), &model, shape.name);
            let _ = server.stop();
            let examined = binary::examine(&array.without(absent));
            assert_eq!(examined["state"].as_str(), Some("clean"), "{}", shape.name);
        }
    }
}

/// A member is cut short while it is used. Whichever thread notices, all go on without it, and it is on record before a
/// write is answered.
#[test]
fn a_member_that_is_lost_in_use_is_lost_for_all_threads() {
    for lost in 0..3 {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let server = serve(&array, "3", &["--cache", "none"]);
        let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
        let mut model = Random::new(11).bytes(array.expected_size());
        let step = 1 << 20;
        for (number, part) in model.chunks(step).enumerate() {
            clients[number % 3].write(number * step, part);
        }
        clients[0].flush();
        let file = std::fs::File::options().write(true).open(&array.members()[lost]).unwrap();
        file.set_len(1 << 20).unwrap();
        for (number, part) in model.chunks(step).enumerate() {
            let found = clients[(number + 1) % 3].read(number * step, part.len());
            assert_same(&found, part, &format!("read without member {lost}"));
        }
        let mut random = Random::new(12);
        for round in 0..12 {
            let (offset, length) = random.sectors(model.len(), 400 << 10);
            let data = random.bytes(length);
            clients[round % 3].write(offset, &data);
            model[offset..offset + length].copy_from_slice(&data);
        }
        clients[1].flush();
        server.kill();
        // It was not stopped cleanly and a member is missing, which is to be accepted; that the member is missing is on
        // record.
        let present = array.without(&[lost]);
        let server = Server::start_members(&array, &present, &["--connection-threads", "2", "--force"]);
        assert_same(&read_export(server.uri()), &model, &format!("without member {lost}"));
        let _ = server.stop();
    }
}

/// Acknowledged is kept by a clean stop, flushed or not, whoever stays connected.
#[test]
fn a_stop_keeps_what_every_thread_has_acknowledged() {
    for count in COUNTS {
        let array = Array::create(&shape::rm2_of_6());
        let server = serve(&array, count, &[]);
        let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        let mut random = Random::new(13);
        let mut model = vec![0; array.expected_size()];
        for round in 0..40 {
            let (offset, length) = random.sectors(model.len(), [4096, 64 << 10, LONGEST][round % 3]);
            let data = random.bytes(length);
            clients[round % 4].write(offset, &data);
            model[offset..offset + length].copy_from_slice(&data);
        }
        let _ = server.stop();
        drop(clients);
        assert_eq!(array.examine()["state"].as_str(), Some("clean"), "{count} threads");
        Content::read(&array).assert_holds(&model, &format!("{count} threads"));
    }
}

#[test]
fn nothing_is_written_by_threads_that_only_read() {
    let array = Array::create(&shape::raid5_of_3());
    let before: Vec<Vec<u8>> = array.members().iter().map(|member| std::fs::read(member).unwrap()).collect();
    for options in [&[][..], &["--read-only"]] {
        let server = serve(&array, "3", options);
        let mut client = server.connect();
        assert!(client.read(0, LONGEST).iter().all(|&byte| byte == 0));
        client.flush();
        client.disconnect();
        let _ = server.stop();
    }
    let after: Vec<Vec<u8>> = array.members().iter().map(|member| std::fs::read(member).unwrap()).collect();
    assert!(before == after, "an array that was only read stays as it was");
}

#[test]
fn numbers_of_threads_that_make_no_sense_are_refused() {
    let array = Array::create(&shape::raid5_of_3());
    for count in ["-1", "17", "many"] {
        let mut arguments = vec!["serve".into(), format!("--connection-threads={count}").into()];
        arguments.extend(array.members().iter().map(std::ffi::OsString::from));
        let refusal = binary::uraid(arguments).code_is(2);
        assert!(refusal.stderr.contains("--connection-threads"), "{}", refusal.stderr);
    }
}

/// Members come and go while clients of several threads read and write.
#[test]
fn members_fail_join_and_are_replaced() {
    let array = Array::create(&shape::raid5_of_5_left_symmetric());
    let [spare, new] = ["spare", "new"].map(|name| array.path(name));
    std::fs::File::create(&spare).unwrap().set_len(array.members()[0].metadata().unwrap().len()).unwrap();
    let server = serve(&array, "2", &["--spare", spare.to_str().unwrap()]);
    let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    let mut random = Random::new(14);
    let mut model = vec![0; array.expected_size()];
    let mut write = |clients: &mut [Client], model: &mut [u8]| {
        for round in 0..30 {
            let (offset, length) = random.sectors(model.len(), [4096, 200 << 10, LONGEST][round % 3]);
            let data = random.bytes(length);
            clients[round % 3].write(offset, &data);
            model[offset..offset + length].copy_from_slice(&data);
            let found = clients[(round + 1) % 3].read(offset, length);
            assert_same(&found, &data, &format!("round {round}: {length} at {offset}"));
        }
    };
    write(&mut clients, &mut model);
    let _ = ask(&array, &["fail", "1"]).success();
    write(&mut clients, &mut model);
    assert!(ask(&array, &["wait"]).success().text().starts_with("whole"), "the spare was taken");
    let _ = ask(&array, &["replace", "3", new.to_str().unwrap(), "--size", "16M"]).success();
    write(&mut clients, &mut model);
    assert!(ask(&array, &["wait"]).success().text().starts_with("whole"));
    clients.into_iter().for_each(Client::disconnect);
    assert_same(&read_export(server.uri()), &model, "after the changes");
    let _ = server.stop();
    let mut members = array.members().to_vec();
    (members[1], members[3]) = (spare, new);
    assert_eq!(binary::examine(&members)["state"].as_str(), Some("clean"));
}
