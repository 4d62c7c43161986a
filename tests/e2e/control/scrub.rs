//! Scrubs of an array that is being served: what they find of damage that is done behind the server's back, and what
//! they make right.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use uraid_tests::array::Array;
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::server::Server;
use uraid_tests::shape;

use super::{ask, status};

/// How long a scrub may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The member that is damaged, and how much of it.
const SLOT: usize = 2;
const DAMAGE: usize = 4096;

/// What the server tells the administrator's program, as it comes.
pub(crate) struct Events(Receiver<String>);

impl Events {
    /// A program that passes on what it is told.
    pub(crate) fn new(array: &Array) -> (Self, PathBuf) {
        let fifo = array.path("events");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        // Open for writing too, so that it does not end between two events.
        let reader = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        let (sender, events) = channel();
        std::thread::spawn(move || {
            BufReader::new(reader).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        (Self(events), super::hook_to(array, &fifo))
    }

    /// Waits for an event; gives those before it.
    #[track_caller]
    pub(crate) fn until(&self, awaited: &str) -> Vec<String> {
        self.lines_until(awaited).into_iter().map(|[event, _]| event).collect()
    }

    /// Waits for an event; gives the members that those before it of this name are about.
    #[track_caller]
    pub(crate) fn members_until(&self, awaited: &str, name: &str) -> Vec<String> {
        let lines = self.lines_until(awaited).into_iter();
        lines.filter(|[event, _]| event == name).map(|[_, member]| member).collect()
    }

    /// Waits for an event; gives those before it, and whom they are about.
    #[track_caller]
    fn lines_until(&self, awaited: &str) -> Vec<[String; 2]> {
        let mut events = Vec::new();
        loop {
            let line = self.0.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{awaited} comes after {events:?}"));
            let mut words = line.split('|').map(str::to_owned);
            let [event, _, member] = [(); 3].map(|()| words.next().unwrap_or_default());
            if event == awaited {
                return events;
            }
            events.push([event, member]);
        }
    }
}

#[track_caller]
fn report(array: &Array) -> Value {
    ask(array, &["scrub", "status", "--json"]).success().json()
}

/// Runs a scrub to its end; what it says, and what was told.
#[track_caller]
fn scrub(array: &Array, events: &Events, words: &[&str]) -> (Value, Vec<String>) {
    let _ = ask(array, &[&["scrub", "start"], words].concat()).success();
    let mut told = events.until("scrub-finished");
    assert_eq!(told.remove(0), "scrub-started");
    let report = report(array);
    assert_eq!(report["running"], false);
    assert_eq!(report["done_bytes"], report["total_bytes"]);
    assert_eq!(report["total_bytes"], status(array)["size_bytes"]);
    (report, told)
}

/// Inverts some of a member, from `row` chunks into its data area on.
pub(super) fn damage(array: &Array, row: usize) {
    let member = &array.facts()[SLOT];
    let file = std::fs::File::options().read(true).write(true).open(&array.members()[SLOT]).unwrap();
    let at = (member.data_offset + row * array.shape.chunk_bytes()) as u64;
    let mut bytes = vec![0; DAMAGE];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    file.write_all_at(&bytes, at).unwrap();
}

fn data(array: &Array) -> Vec<u8> {
    let member = &array.facts()[SLOT];
    let bytes = std::fs::read(&array.members()[SLOT]).unwrap();
    bytes[member.data_offset..member.data_offset + member.data_size].to_vec()
}

/// RM2's row 0 is parity, of which one unit that is wrong disagrees alone; data in another row has two parities against
/// it.
#[test]
fn damage_is_found_and_what_is_certain_repaired() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::rm2_of_7_adjacent());
        let server = Server::start(&array);
        let image = Random::new(5).bytes(array.expected_size());
        write_export(server.uri(), &image);
        let _ = server.stop();
        let sound = data(&array);
        let (events, hook) = Events::new(&array);
        let options = ["--connection-threads", threads, "--on-event", hook.to_str().unwrap()];
        let server = Server::start_members(&array, array.members(), &options);
        assert_eq!(events.until("started"), [""; 0]);

        let (clean, told) = scrub(&array, &events, &[]);
        assert_eq!((&clean["mismatched_bytes"], &clean["faults"]), (&0.into(), &json!([])));
        assert_eq!(told, [""; 0]);

        damage(&array, 0);
        let wrong = data(&array);
        assert_ne!(sound, wrong);
        let (found, told) = scrub(&array, &events, &["--dry-run"]);
        assert_eq!(told, ["scrub-mismatch"]);
        let fault = json!({
            "stripe": 0, "certainty": "certain", "slot": SLOT, "member_sector": 0, "sectors": DAMAGE / 512,
                "blocks": [], "repaired": false
        });
        assert_eq!(found["faults"], json!([fault]));
        assert_eq!((&found["mismatched_bytes"], &found["repaired_bytes"]), (&DAMAGE.into(), &0.into()));
        assert!(data(&array) == wrong, "a check writes nothing");
        let (repaired, _) = scrub(&array, &events, &["--repair"]);
        assert_eq!((&repaired["faults"][0]["repaired"], &repaired["repaired_bytes"]), (&true.into(), &DAMAGE.into()));
        assert!(data(&array) == sound, "parity is what it was");

        damage(&array, 1);
        let chunk = array.shape.chunk_bytes() / 512;
        let placement = array.placement(&array.facts());
        let unit = (0..placement.units()).find(|&unit| placement.copies(unit)[0] == (SLOT, 1)).unwrap();
        let (found, _) = scrub(&array, &events, &["--repair"]);
        let fault = &found["faults"][0];
        assert_eq!(
            (&fault["certainty"], &fault["slot"], &fault["repaired"]),
            (&"suspected".into(), &SLOT.into(), &false.into())
        );
        assert_eq!(fault["blocks"], json!([[unit * chunk, unit * chunk + DAMAGE / 512]]));
        let text = ask(&array, &["scrub", "status"]).success().text();
        assert!(text.contains("finished; 4 KiB wrong") && text.contains("member 2 may be wrong"), "{text}");
        let (_, _) = scrub(&array, &events, &["--repair-suspects"]);
        assert!(data(&array) == sound, "data is what it was");
        assert_same(&read_export(server.uri()), &image, "after all");
        let _ = server.stop();
    }
}

#[test]
fn scrubs_that_can_not_be_are_refused() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start_members(&array, array.members(), &["--read-only"]);
    let refusal = ask(&array, &["scrub", "status"]).code_is(1).stderr;
    assert!(refusal.contains("uraid scrub start"), "{refusal}");
    let refusal = ask(&array, &["scrub", "start", "--repair"]).code_is(1).stderr;
    assert!(refusal.contains("reading only"), "{refusal}");
    let _ = ask(&array, &["scrub", "start", "--repair", "--dry-run"]).code_is(2);
    let _ = server.stop();
}

/// What needs the missing member is not compared, so that a scrub is as due as it was.
#[test]
fn a_scrub_of_a_degraded_array_does_not_count() {
    let array = Array::create(&shape::raid5_of_3());
    let (events, hook) = Events::new(&array);
    let server = Server::start_members(&array, array.members(), &["--on-event", hook.to_str().unwrap()]);
    let _ = ask(&array, &["fail", "1"]).success();
    let _ = ask(&array, &["scrub", "start"]).success();
    assert_eq!(events.until("scrub-incomplete"), ["started", "member-failed", "degraded", "scrub-started"]);
    assert_eq!(status(&array)["scrub_finished_s"], Value::Null);
    // Who waits for it is not told that all is well.
    let waited = ask(&array, &["scrub", "start", "--wait"]).code_is(1);
    assert_eq!(events.until("scrub-incomplete"), ["scrub-started"]);
    assert!(waited.stderr.contains("the scrub is incomplete"), "{}", waited.stderr);
    let said = waited.text();
    assert!(said.contains("finished without missing members; "), "{said}");
    assert!(said.contains(" of parity could not be checked, nothing wrong in the rest"), "{said}");
    let found = &status(&array)["scrub"];
    assert!(found["missed_bytes"].as_u64() > Some(0) && found["missed_bytes"] == found["unchecked_bytes"], "{found:#}");
    let _ = ask(&array, &["add", array.members()[1].to_str().unwrap()]).success();
    let _ = events.until("recovered");
    let (_, told) = scrub(&array, &events, &[]);
    assert_eq!(told, [""; 0]);
    assert!(status(&array)["scrub_finished_s"].is_u64());
    let _ = server.stop();
}
