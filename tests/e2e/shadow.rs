//! Everything that clients can do, on four connections at once, compared with a model: while an array is whole, while
//! servers take over from each other, while a member is copied, without members, while they are rebuilt, and started
//! without others.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use uraid_tests::array::Array;
use uraid_tests::image::{Random, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shadow::{Counts, Shadow};
use uraid_tests::shape::{self, Shape};

use super::control::{ask, until};

const MEMBER_BYTES: usize = 16 << 20;

/// Operations in each state of an array.
const OPERATIONS: usize = 2000;

/// A number of operations, and a seed, in place of those that tests have.
const OPERATIONS_VARIABLE: &str = "URAID_SHADOW_OPERATIONS";
const SEED_VARIABLE: &str = "URAID_SHADOW_SEED";

/// How arrays are made and served; the smaller the cache, the more is read from members.
struct Life {
    shape: Shape,
    create: &'static [&'static str],
    serve: &'static [&'static str],
    /// Members that are lost, one after the other.
    lost: &'static [usize],
}

#[test]
fn raid5_with_little_memory() {
    lives(&Life { shape: shape::raid5_of_5_left_symmetric(), create: &[], serve: &["--cache-size", "2M"], lost: &[1] });
}

#[test]
fn raid5_with_checksums_and_without_a_cache() {
    let serve = &["--cache", "none", "--connection-threads", "2"];
    lives(&Life { shape: shape::raid5_of_3(), create: &["--integrity", "crc32"], serve, lost: &[2] });
}

#[test]
fn rm2_with_all_there_is() {
    lives(&Life {
        shape: shape::rm2_of_7_adjacent(),
        create: &[],
        serve: &["--connection-threads", "2"],
        lost: &[1, 4],
    });
}

#[test]
fn rm2_with_checksums_and_without_write_back() {
    let serve = &["--cache", "writethrough", "--cache-size", "1M"];
    lives(&Life { shape: shape::rm2_of_6(), create: &["--integrity", "crc32"], serve, lost: &[0, 3] });
}

/// What a test goes on with.
struct Session<'a> {
    array: &'a Array,
    shadow: Shadow,
    seed: u64,
    operations: usize,
    counts: Vec<Counts>,
}

impl Session<'_> {
    /// So many operations, and everything that is there then.
    fn run(&mut self, server: &Server, state: &str) {
        self.go(server, state);
        let what = format!("{} {state}, seed {}", self.array.shape.name, self.seed);
        self.shadow.assert_is(&read_export(server.uri()), &what);
    }

    fn go(&mut self, server: &Server, state: &str) {
        let what = format!("{} {state}, {SEED_VARIABLE}={}", self.array.shape.name, self.seed);
        let seed = Random::new(self.seed.wrapping_add(self.counts.len() as u64)).bits();
        self.counts.push(self.shadow.run(server, self.operations, seed, &what));
    }

    /// So many operations while servers take over from each other; the last of them.
    fn run_through_takeovers(&mut self, first: Server, options: &[&str]) -> Server {
        let options = [&["--takeover"], options].concat();
        let (array, has_ended) = (self.array, &AtomicBool::new(false));
        let last = std::thread::scope(|scope| {
            let taking_over = scope.spawn(move || {
                let mut last = Server::start_members(array, array.members(), &options);
                while !has_ended.load(Ordering::Relaxed) {
                    let next = Server::start_members(array, array.members(), &options);
                    let _ = std::mem::replace(&mut last, next).end().success();
                }
                last
            });
            let gone = catch_unwind(AssertUnwindSafe(|| self.go(&first, "during takeovers")));
            has_ended.store(true, Ordering::Relaxed);
            gone.and(taking_over.join()).unwrap_or_else(|panic| resume_unwind(panic))
        });
        let _ = first.end().success();
        last
    }

    fn set(&self, what: &str, value: &str) {
        let _ = ask(self.array, &["set", what, value]).success();
    }
}

fn lives(life: &Life) {
    let array = Array::planned(&life.shape);
    let _ = array.run_create(MEMBER_BYTES, life.create).success();
    let mut server = Server::start_members(&array, array.members(), life.serve);
    // What nobody has written is zeros, and known as such.
    let mut content = vec![0; array.expected_size()];
    let end = content.len() / 2;
    content[..end].copy_from_slice(&Random::new(7).bytes(end));
    write_export(server.uri(), &content[..end]);
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let mut session = Session {
        array: &array,
        shadow: Shadow::new(content),
        seed: number(SEED_VARIABLE).unwrap_or(1),
        operations: number(OPERATIONS_VARIABLE).map_or(OPERATIONS, |count| usize::try_from(count).unwrap()),
        counts: Vec::new(),
    };
    let mut members = array.members().to_vec();
    session.run(&server, "whole");
    server = session.run_through_takeovers(server, life.serve);
    session.run(&server, "after takeovers");
    let mut replace = |session: &mut Session<'_>, server: &Server, slot: usize, name: &str| {
        let new = array.path(name);
        session.set("--rebuild-limit", "64K");
        let words = ["replace", "--size", "16M", &slot.to_string(), new.to_str().unwrap()];
        let _ = ask(&array, &words).success();
        members[slot].clone_from(&new);
        // The beginning is there, and the rest is not.
        session.go(server, &format!("while member {slot} is replaced"));
        // The mark moves on under the load.
        session.set("--rebuild-limit", "none");
        session.run(server, &format!("when member {slot} is nearly replaced"));
        let _ = until(&array, "it does not end", |now| now["sweeps"].as_array().is_some_and(Vec::is_empty));
    };
    // It works until its copy takes its place.
    replace(&mut session, &server, life.lost[0], "copy");
    for slot in life.lost {
        let _ = ask(&array, &["fail", &slot.to_string()]).success();
    }
    session.run(&server, &format!("without {:?}", life.lost));
    for &slot in life.lost {
        replace(&mut session, &server, slot, &format!("new{slot}"));
    }
    let _ = until(&array, "it is not whole", |now| now["health"]["state"] == "whole");
    let _ = server.stop();

    // Others are absent, so that what was rebuilt counts.
    let others: Vec<usize> = (0..life.shape.members).filter(|slot| !life.lost.contains(slot)).collect();
    let absent = &others[..life.lost.len()];
    array.remove(absent);
    let is_present = |(slot, _): &(usize, &PathBuf)| !absent.contains(slot);
    let present: Vec<PathBuf> = members.iter().enumerate().filter(is_present).map(|(_, path)| path.clone()).collect();
    let options: Vec<&str> = life.serve.iter().copied().chain(["--degraded"]).collect();
    server = Server::start_members(&array, &present, &options);
    session.run(&server, &format!("started without {absent:?}"));
    let _ = server.stop();

    let done: Counts = session.counts.iter().copied().sum();
    let all = [done.reads, done.writes, done.zeroes, done.refused, done.trims, done.statuses, done.others];
    assert!(all.iter().all(|&count| count > 0) && done.told_bytes > 0, "nothing is left out: {done:?}");
}
