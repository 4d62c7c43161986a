//! Data integrity under load: fio's own verification, healthy and degraded, and overlapping writers with the members'
//! parity checked afterwards by the harness.

use std::sync::Barrier;

use uraid_tests::array::{Array, Content};
use uraid_tests::image::{Random, SECTOR, assert_same, read_export};
use uraid_tests::nbd::{Client, Command};
use uraid_tests::process::{Output, Process};
use uraid_tests::run::{client, client_command};
use uraid_tests::server::Server;
use uraid_tests::shape::Shape;

/// Range of each of fio's jobs: no multiple of any chunk above 4 KiB, so that jobs share stripes.
const JOB_KIB: usize = 3500;
const JOBS: usize = 3;

/// Overlapping writers: connections, requests in flight on each, requests of each.
const WRITERS: usize = 4;
const IN_FLIGHT: usize = 8;
const REQUESTS: usize = 300;
/// The region that they fight over.
const REGION: usize = 768 << 10;

mod fio {
    uraid_tests::for_every_shape!(super::fio_verifies);
}

mod overlapping {
    uraid_tests::for_every_shape!(super::overlapping_writers_never_mix);
}

fn fio_verifies(shape: &Shape) {
    let array = Array::create(shape);
    let server = Server::start(&array);
    fio_writes_and_verifies(server.uri(), 1);
    let image = read_export(server.uri());
    let _ = server.stop();
    Content::read(&array).assert_holds(&image, shape.name);

    let Some(absent) = shape.tolerated.last() else { return };
    array.remove(absent);
    let present = array.without(absent);
    let server = Server::start_members(&array, &present, &["--degraded"]);
    let _ = fio_verify(server.uri(), 1, &["--verify_only=1"]).success();
    fio_writes_and_verifies(server.uri(), 2);
    let _ = server.stop();
    let server = Server::start_members(&array, &present, &["--degraded"]);
    let _ = fio_verify(server.uri(), 2, &["--verify_only=1"]).success();
    let _ = server.stop();
}

/// Random writes of mixed sizes with reads of what was written in between, then all of it read once more.
fn fio_writes_and_verifies(uri: &str, seed: u64) {
    let report = fio_json(&fio_verify(uri, seed, &["--verify_backlog=32"]).success());
    let job = &report["jobs"][0];
    let bytes = |direction: &str| job[direction]["io_bytes"].as_u64().expect("fio counts bytes");
    assert_eq!(bytes("write"), (JOBS * JOB_KIB) as u64 * 1024, "fio wrote all of its ranges");
    assert!(bytes("read") >= bytes("write"), "fio read back what it wrote");
}

fn fio_verify(uri: &str, seed: u64, more: &[&str]) -> Output {
    let job = [
        format!("--uri={uri}"),
        format!("--size={JOB_KIB}k"),
        format!("--offset_increment={JOB_KIB}k"),
        format!("--numjobs={JOBS}"),
        format!("--randseed={seed}"),
    ];
    let fixed = [
        "--name=verify",
        "--ioengine=nbd",
        "--thread",
        "--rw=randwrite",
        "--bsrange=512-256k",
        "--iodepth=16",
        "--fsync=32",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--group_reporting",
        "--output-format=json",
    ];
    client("fio", fixed.into_iter().chain(job.iter().map(String::as_str)).chain(more.iter().copied()))
}

/// fio's report, which follows lines about its connections.
fn fio_json(output: &Output) -> serde_json::Value {
    let text = output.text();
    let start = text.find('{').unwrap_or_else(|| panic!("fio reports in JSON: {text}"));
    serde_json::from_str(&text[start..]).expect("fio reports in JSON")
}

/// Writers of the harness fight over one region while two fio jobs fight over the rest.
fn overlapping_writers_never_mix(shape: &Shape) {
    let array = Array::create(shape);
    let server = Server::start(&array);
    let fio = Process::start(fio_fighting_over(server.uri(), REGION, 4 << 20));
    let barrier = Barrier::new(WRITERS);
    let histories: Vec<Vec<(usize, usize)>> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let start = |writer| {
            let client = server.connect();
            scope.spawn(move || write_tagged(client, writer, barrier))
        };
        let threads: Vec<_> = (0..WRITERS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a writer that did not fail")).collect()
    });
    let _ = fio.finish(uraid_tests::run::CLIENT_TIME_MAX).success();

    let image = read_export(server.uri());
    for (sector, bytes) in image[..REGION].chunks(SECTOR).enumerate() {
        assert_one_write(bytes, sector, &histories);
    }
    let _ = server.stop();
    Content::read(&array).assert_holds(&image, shape.name);
}

fn fio_fighting_over(uri: &str, offset: usize, length: usize) -> std::process::Command {
    let mut fio = client_command("fio");
    fio.args(["--name=fight", "--ioengine=nbd", "--thread", "--rw=randwrite", "--norandommap", "--bsrange=512-192k"]);
    fio.args(["--numjobs=2", "--iodepth=16", "--refill_buffers", "--randseed=3", "--fsync=16"]);
    fio.arg(format!("--uri={uri}")).arg(format!("--offset={offset}")).arg(format!("--size={length}"));
    fio.arg(format!("--io_size={}", 2 * length));
    fio
}

/// Sends tagged writes over the region, always several in flight; returns offset and length of each.
fn write_tagged(mut client: Client, writer: usize, barrier: &Barrier) -> Vec<(usize, usize)> {
    let mut random = Random::new(writer as u64);
    let mut history = Vec::new();
    barrier.wait();
    let acknowledge = |client: &mut Client| {
        assert_eq!(client.reply().expect("a reply").error, 0, "a write of writer {writer}");
    };
    for request in 0..REQUESTS {
        let longest = [2048, 32 << 10, 160 << 10][request % 3];
        let (offset, length) = random.sectors(REGION, longest);
        if request >= IN_FLIGHT {
            acknowledge(&mut client);
        }
        let payload = tag(writer, request).repeat(length / SECTOR);
        let size = u32::try_from(length).expect("a request's length fits 32 bits");
        client.submit(Command::Write, offset as u64, size, &payload).expect("sending a write");
        history.push((offset, length));
    }
    (0..IN_FLIGHT).for_each(|_| acknowledge(&mut client));
    client.flush();
    client.disconnect();
    history
}

/// A sector that says all over who wrote it.
fn tag(writer: usize, request: usize) -> Vec<u8> {
    let word = 1 + (writer * REQUESTS + request) as u64;
    word.to_le_bytes().repeat(SECTOR / 8)
}

/// A sector is untouched, or whole from one write that covered it.
fn assert_one_write(bytes: &[u8], sector: usize, histories: &[Vec<(usize, usize)>]) {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let at = sector * SECTOR;
    let covered = |&(offset, length): &(usize, usize)| (offset..offset + length).contains(&at);
    if word == 0 {
        assert!(bytes.iter().all(|&byte| byte == 0), "sector {sector} is a mix");
        assert!(!histories.iter().flatten().any(covered), "sector {sector} was written, yet it is untouched");
        return;
    }
    let number = usize::try_from(word - 1).expect("a tag fits a size");
    let (writer, request) = (number / REQUESTS, number % REQUESTS);
    assert!(writer < WRITERS, "sector {sector} holds what nobody wrote: {word:#x}");
    assert_same(bytes, &tag(writer, request), &format!("sector {sector}, last written by {writer}, request {request}"));
    assert!(
        covered(&histories[writer][request]),
        "sector {sector} was not covered by writer {writer}, request {request}"
    );
}
