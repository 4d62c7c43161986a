//! An array that goes on while members fail, return and are compared, under a client that checks what it reads.

mod assembly;
mod failures;
mod returning;
mod scrubs;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::image::{Random, assert_same, write_export};
use uraid_tests::nbd::Client;
use uraid_tests::server::Server;
use uraid_tests::shape::Shape;

use crate::control::scrub::Events;
use crate::control::{ask, status};

/// Small, so that a rebuild of all of it is short.
const MEMBER_BYTES: usize = 6 << 20;

/// An array that is served and full of random bytes, with somebody who hears what happens to it.
fn filled(shape: &Shape) -> (Array, Server, Events, Vec<u8>) {
    let array = Array::create_sized(shape, MEMBER_BYTES);
    let (events, hook) = Events::new(&array);
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    let image = Random::new(7).bytes(array.expected_size());
    write_export(server.uri(), &image);
    assert_eq!(events.until("started"), [""; 0]);
    (array, server, events, image)
}

/// A client that writes and reads back at random, and knows what it has written.
struct Load {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u8>>,
}

impl Load {
    fn start(server: &Server, model: Vec<u8>, seed: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (client, until) = (server.connect(), Arc::clone(&is_over));
        Self { is_over, thread: std::thread::spawn(move || go_on(client, model, seed, &until)) }
    }

    /// Ends it; what the array holds.
    #[track_caller]
    fn finish(self) -> Vec<u8> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the client has read what it wrote")
    }
}

fn go_on(mut client: Client, mut model: Vec<u8>, seed: u64, is_over: &AtomicBool) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut last = false;
    while !last {
        // One round more than asked for, so that there is one after whatever was done last.
        last = is_over.load(Ordering::Relaxed);
        let (offset, length) = random.sectors(model.len(), 64 << 10);
        let data = random.bytes(length);
        client.write(offset, &data);
        model[offset..offset + length].copy_from_slice(&data);
        let (offset, length) = random.sectors(model.len(), 64 << 10);
        assert_same(&client.read(offset, length), &model[offset..offset + length], "under load");
        if random.below(16) == 0 {
            client.flush();
        }
    }
    client.flush();
    model
}

fn path(array: &Array, slot: usize) -> &str {
    array.members()[slot].to_str().unwrap()
}

fn paths(array: &Array) -> Vec<PathBuf> {
    array.members().to_vec()
}

/// A number that a member's line of the status has.
fn of_member(array: &Array, slot: usize, field: &str) -> u64 {
    status(array)["members"][slot][field].as_u64().unwrap_or_else(|| panic!("{field} of member {slot}"))
}

fn is_rebuilding(array: &Array) -> bool {
    status(array)["rebuild"] != Value::Null
}

/// Asks for something that is refused, with a reason that names this.
#[track_caller]
fn refuse(array: &Array, words: &[&str], named: &str) {
    let refusal = ask(array, words).code_is(1).stderr;
    assert!(refusal.contains(named), "{words:?}: {refusal}");
}
