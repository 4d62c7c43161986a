//! `uraid serve --metrics`: the page, the server that hands it out, and what is written about it.

mod page;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::image::Random;
use uraid_tests::nbd::{Client, Command};
use uraid_tests::server::Server;
use uraid_tests::shape;

use page::{Kind, Page};

/// Far more than an answer takes; only a hang reaches it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

const OPTIONS: [&str; 2] = ["--metrics", "0"];

/// A server whose metrics can be asked for.
struct Watched {
    server: Server,
    address: String,
}

impl Watched {
    fn start(array: &Array, options: &[&str]) -> Self {
        Self::start_members(array, array.members(), options)
    }

    fn start_members(array: &Array, members: &[std::path::PathBuf], options: &[&str]) -> Self {
        let server = Server::start_members(array, members, &[&OPTIONS, options].concat());
        let url = server.line_after("metrics at http://");
        let address = url.strip_suffix("/metrics").unwrap().to_owned();
        assert!(address.starts_with("127.0.0.1:"), "a port alone is on this machine: {address}");
        Self { server, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(ANSWER_TIME_MAX)).unwrap();
        stream.set_write_timeout(Some(ANSWER_TIME_MAX)).unwrap();
        stream
    }

    /// The status line, fields and body of the answer to a request.
    fn ask(&self, request: &str) -> (String, Vec<String>, String) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        answer(&mut stream)
    }

    fn page(&self) -> Page {
        let (status, fields, body) = self.ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(fields.contains(&"Content-Type: text/plain; version=0.0.4; charset=utf-8".to_owned()), "{fields:?}");
        Page::read(&body)
    }
}

fn answer(stream: &mut TcpStream) -> (String, Vec<String>, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("an answer has a head: {text:?}"));
    let mut lines = head.split("\r\n").map(str::to_owned);
    let status = lines.next().unwrap();
    let fields: Vec<String> = lines.collect();
    assert!(fields.contains(&"Connection: close".to_owned()), "{fields:?}");
    (status, fields, body.to_owned())
}

fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(|word| word.starts_with("uraid_")).map(str::to_owned).collect()
}

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)).unwrap()
}

/// Two whole stripes, twelve blocks and the rest as a client would: the page has exactly that.
#[test]
fn counters_are_what_a_client_did() {
    for threads in ["0", "3"] {
        let array = Array::create(&shape::raid5_of_5_left_symmetric());
        let watched = Watched::start(&array, &["--cache", "none", "--connection-threads", threads]);
        let before = watched.page();
        let mut client = watched.server.connect();
        let mut random = Random::new(17);
        let stripe = array.shape.chunk_bytes() * 4;
        for number in 0..2 {
            client.write(number * stripe, &random.bytes(stripe));
        }
        for block in 0..12 {
            client.write(8 * stripe + block * 2 * stripe, &random.bytes(4096));
        }
        for block in 0..5 {
            let _ = client.read(block * 8192, 8192);
        }
        client.flush();
        assert_eq!(client.call(Command::WriteZeroes, 0, 4096, &[]).error, 0);
        assert_eq!(client.call(Command::Trim, 0, u32::try_from(stripe).unwrap(), &[]).error, 0);
        let size = client.size();
        assert_ne!(client.call(Command::Read, size, 4096, &[]).error, 0, "the server itself refuses it");
        let after = watched.page();
        let requests = |command: &str| {
            let change =
                |name: &str| after.value(name, &[("command", command)]) - before.value(name, &[("command", command)]);
            (
                change("uraid_request_duration_seconds_count"),
                if command == "flush" { 0.0 } else { change("uraid_request_bytes_total") },
            )
        };
        assert_eq!(requests("write"), (14.0, (2 * stripe + 12 * 4096) as f64));
        assert_eq!(requests("read"), (5.0, 5.0 * 8192.0));
        assert_eq!((requests("flush"), requests("zero")), ((1.0, 0.0), (1.0, 4096.0)));
        assert_eq!(requests("trim"), (1.0, stripe as f64));
        let methods = |method: &str| after.value("uraid_stripe_writes_total", &[("method", method)]);
        // The zeroed block is written as the others are; the trimmed stripe is zeroed whole.
        assert_eq!(
            (methods("full"), methods("reconstruct"), methods("read_modify_write")),
            (3.0, 0.0, 13.0),
            "{threads}"
        );
        check_members(&after, &before, stripe, threads);
        client.disconnect();
        let _ = watched.server.stop();
    }
}

/// Members' operations: each small write reads and writes two blocks, on two members.
fn check_members(after: &Page, before: &Page, stripe: usize, threads: &str) {
    let by = |name: &str, operation: &str| {
        let label = ("operation", operation);
        after.sum(name, label) - before.sum(name, label)
    };
    assert_eq!(by("uraid_member_bytes_total", "read"), f64::from(13 * 2 * 4096 + 5 * 8192), "{threads}");
    assert_eq!(by("uraid_member_bytes_total", "write"), (13 * 2 * 4096 + 2 * stripe / 4 * 5) as f64, "{threads}");
    assert_eq!(by("uraid_member_operations_total", "read"), f64::from(13 * 2 + 5), "{threads}");
    for operation in ["read", "write"] {
        let timed = by("uraid_member_operation_duration_seconds_count", operation);
        assert!(timed >= by("uraid_member_operations_total", operation), "{operation} with {threads}");
    }
    for (name, expected) in [
        ("uraid_member_errors_total", 0.0),
        ("uraid_member_checksum_mismatches_total", 0.0),
        ("uraid_member_repaired_total", 0.0),
        ("uraid_member_unrepairable_total", 0.0),
        ("uraid_member_present", 5.0),
    ] {
        assert_eq!(after.samples(name).map(|(_, value)| value).sum::<f64>(), expected, "{name}");
    }
    let log = |name: &str| after.samples(name).map(|(_, value)| value).sum::<f64>();
    assert!(log("uraid_member_log_bytes_total") >= 26.0 * 4096.0 && log("uraid_member_log_records_total") > 0.0);
    assert!(log("uraid_member_log_used_bytes") <= log("uraid_member_log_size_bytes"));
}

/// Content that replaces what is not written out yet, and what is read back from memory.
#[test]
fn the_cache_is_seen_from_outside() {
    let array = Array::create(&shape::raid5_of_3());
    let watched = Watched::start(&array, &["--cache-size", "8M"]);
    let mut client = watched.server.connect();
    let mut random = Random::new(18);
    for _ in 0..10 {
        client.write(1 << 20, &random.bytes(4096));
    }
    let _ = client.read(1 << 20, 4096);
    let _ = client.read(3 << 20, 4096);
    client.flush();
    let page = watched.page();
    let value = |name: &str| page.value(name, &[]);
    assert_eq!(value("uraid_cache_write_bytes_total"), 40960.0);
    let (coalesced, destaged) = (value("uraid_cache_coalesced_bytes_total"), value("uraid_cache_destaged_bytes_total"));
    // The flush put it into the journal; some may have been written out before.
    let dirty = value("uraid_cache_dirty_bytes");
    assert_eq!(coalesced + destaged + dirty, 40960.0, "what was not written twice is written once");
    assert!(destaged + dirty >= 4096.0);
    assert_eq!(
        (value("uraid_cache_read_hit_bytes_total"), value("uraid_cache_read_miss_bytes_total")),
        (4096.0, 4096.0)
    );
    assert_eq!(value("uraid_cache_size_bytes"), f64::from(8 << 20));
    assert!(dirty <= value("uraid_cache_used_bytes"));
    client.disconnect();
    let _ = watched.server.stop();
}

/// A client announces data and does not send it: there has to be room for that, and room is made when it goes.
#[test]
fn the_memory_of_requests_is_seen_from_outside() {
    let array = Array::create(&shape::raid5_of_3());
    let watched = Watched::start(&array, &["--request-memory", "16M"]);
    let used_until = |awaited: f64| {
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        loop {
            let page = watched.page();
            assert_eq!(page.value("uraid_request_memory_size_bytes", &[]), f64::from(16 << 20));
            let used = page.value("uraid_request_memory_used_bytes", &[]);
            if used == awaited {
                return;
            }
            assert!(Instant::now() < deadline, "{used} bytes are used, not {awaited}");
        }
    };
    used_until(0.0);
    let mut client = watched.server.connect();
    let _ = client.submit(Command::Write, 0, 1 << 20, &[]).unwrap();
    used_until(f64::from(1 << 20));
    let _ = client.submit(Command::Read, 0, 4096, &[]);
    drop(client);
    used_until(0.0);
    let _ = watched.server.stop();
}

#[test]
fn who_the_array_is_and_how_it_stands() {
    let array = Array::planned(&shape::raid10_of_4());
    let _ = array.run_create(64 << 20, &["--name", "a \"b\" \\c"]).success();
    let facts = array.facts();
    let watched = Watched::start(&array, &[]);
    let page = watched.page();
    let (labels, value) = page.samples("uraid_array_info").next().unwrap();
    assert_eq!((labels["name"].as_str(), labels["level"].as_str(), value), ("a \"b\" \\c", "10", 1.0));
    assert_eq!(labels["uuid"], array.examine()["uuid"].as_str().unwrap());
    for (slot, member) in facts.iter().enumerate() {
        let found =
            page.samples("uraid_member_info").find(|(labels, _)| labels["member"] == slot.to_string()).unwrap().0;
        assert_eq!((&found["uuid"], found["path"].as_str()), (&member.uuid, array.members()[slot].to_str().unwrap()));
    }
    let standing = |page: &Page| {
        ["uraid_array_members", "uraid_array_members_missing", "uraid_array_spare_failures", "uraid_array_frozen"]
            .map(|name| page.value(name, &[]))
    };
    assert_eq!(standing(&page), [4.0, 0.0, 1.0, 0.0]);
    let array_size = array.expected_size() as f64;
    assert_eq!(page.value("uraid_array_size_bytes", &[]), array_size);
    let _ = watched.server.stop();
    array.remove(&[1]);
    let watched = Watched::start_members(&array, &array.without(&[1]), &["--degraded"]);
    let page = watched.page();
    assert_eq!(standing(&page), [4.0, 1.0, 0.0, 0.0], "the copy of what is missing must not fail, too");
    assert_eq!(page.value("uraid_member_present", &[("member", "1")]), 0.0);
    assert_eq!(page.value("uraid_member_present", &[("member", "0")]), 1.0);
    assert_eq!(page.value("uraid_array_unreadable_bytes", &[]), 0.0);
    let _ = watched.server.stop();
    // With both mirrors half of it is gone.
    array.remove(&[0]);
    let options = ["--degraded", "--force", "--read-only"];
    let watched = Watched::start_members(&array, &array.without(&[0, 1]), &options);
    assert_eq!(watched.page().value("uraid_array_unreadable_bytes", &[]), array_size / 2.0);
    let _ = watched.server.stop();
}

/// Four blocks of a member are overwritten behind the server's back; then the member is given up, and a spare takes its
/// place.
#[test]
fn scrubs_rebuilds_and_spares_are_seen_from_outside() {
    let array = Array::create(&shape::raid5_of_3());
    let spare = array.path("spare");
    std::fs::File::create_new(&spare).unwrap().set_len(shape::MEMBER_BYTES as u64).unwrap();
    let watched = Watched::start(&array, &["--spare", spare.to_str().unwrap()]);
    let socket = array.socket();
    let uraid = |words: &[&str]| binary::uraid([words, &["--socket", socket.to_str().unwrap()]].concat());
    let value = |page: &Page, name: &str| page.value(name, &[]);
    let page = watched.page();
    for name in ["uraid_rebuild_bytes_total", "uraid_scrub_bytes_total", "uraid_scrub_finished_timestamp_seconds"] {
        assert_eq!(value(&page, name), 0.0, "{name}");
    }
    assert_eq!(value(&page, "uraid_array_spares"), 1.0);
    let file = std::fs::File::options().write(true).open(&array.members()[1]).unwrap();
    file.write_all_at(&[0xA5; 4 * 4096], array.facts()[1].data_offset as u64).unwrap();
    let _ = uraid(&["scrub", "start", "--wait"]).code_is(1);
    let size = array.expected_size() as f64;
    let page = watched.page();
    assert_eq!(page.value("uraid_scrub_mismatched_bytes_total", &[("certainty", "unknown")]), 4.0 * 4096.0);
    assert_eq!(page.value("uraid_scrub_mismatched_bytes_total", &[("certainty", "certain")]), 0.0);
    assert_eq!(
        (value(&page, "uraid_scrub_bytes_total"), value(&page, "uraid_scrub_repaired_bytes_total")),
        (size, 0.0)
    );
    assert_eq!(page.value("uraid_sweep_running", &[("work", "scrub")]), 0.0);

    let _ = uraid(&["fail", "1"]).success();
    let _ = uraid(&["wait"]).success();
    let page = watched.page();
    assert_eq!((value(&page, "uraid_array_spares"), value(&page, "uraid_rebuild_members")), (0.0, 0.0));
    assert_eq!(value(&page, "uraid_rebuild_bytes_total"), size);
    assert_eq!(page.value("uraid_sweep_done_bytes", &[("work", "rebuild")]), 0.0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let finished = value(&page, "uraid_scrub_finished_timestamp_seconds");
    assert!((since - 3600.0..since + 1.0).contains(&finished), "{finished}");
    let _ = watched.server.stop();
}

#[test]
fn other_requests_get_the_errors_that_they_should() {
    let array = Array::create(&shape::raid5_of_3());
    let watched = Watched::start(&array, &[]);
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    for (request, expected) in [
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405 Method Not Allowed"),
        ("GET /metrics HTTP/3.0\r\n\r\n", "505 HTTP Version Not Supported"),
        ("nonsense\r\n\r\n", "400 Bad Request"),
        (&long, "431 Request Header Fields Too Large"),
    ] {
        let (status, ..) = watched.ask(request);
        assert_eq!(status, format!("HTTP/1.1 {expected}"), "{:.40}", request);
    }
    let (status, fields, body) = watched.ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 200 OK", ""));
    assert!(fields.iter().any(|field| field.starts_with("Content-Length: ")), "{fields:?}");
    let mut slow = watched.connect();
    slow.write_all(b"GET /met").unwrap();
    slow.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answer(&mut slow).0, "HTTP/1.1 400 Bad Request");
    let _ = watched.server.stop();
}

/// Clients that ask and never read, or never ask, neither hold up the array nor others who ask; nor does a stop wait
/// for them.
#[test]
fn clients_that_do_nothing_do_no_harm() {
    let array = Array::create(&shape::raid5_of_3());
    let watched = Watched::start(&array, &[]);
    let mut idle: Vec<TcpStream> = (0..40).map(|_| watched.connect()).collect();
    for stream in idle.iter_mut().step_by(2) {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    }
    let mut client = watched.server.connect();
    let data = Random::new(19).bytes(1 << 20);
    client.write(0, &data);
    assert_eq!(client.read(0, data.len()), data);
    // Fewer than are served at a time.
    idle.truncate(10);
    let page = watched.page();
    assert_eq!(page.value("uraid_request_duration_seconds_count", &[("command", "write")]), 1.0);
    client.disconnect();
    let _ = watched.server.stop();
    drop(idle);
}

#[test]
fn what_can_not_be_listened_on_is_refused() {
    let array = Array::create(&shape::raid5_of_3());
    let watched = Watched::start(&array, &[]);
    let other = Array::create(&shape::raid5_of_3());
    let refused = Server::refused(&other, other.members(), &["--metrics", &watched.address]);
    assert!(refused.stderr.contains("--metrics"), "{}", refused.stderr);
    let _ = watched.server.stop();
    for address in ["", "localhost", "127.0.0.1", "65536", "1.2.3.4:x"] {
        let mut arguments: Vec<std::ffi::OsString> = vec!["serve".into(), "--metrics".into(), address.into()];
        arguments.extend(other.members().iter().map(Into::into));
        let _ = binary::uraid(arguments).code_is(2);
    }
}

/// What is written about metrics names those that there are, no others, and leaves none out.
#[test]
fn documents_name_what_is_exported() {
    let array = Array::planned(&shape::raid5_of_3());
    let log = array.path("log");
    let options = ["--single-log-device", "--log-device", log.to_str().unwrap()];
    let _ = array.run_create(shape::MEMBER_BYTES, &options).success();
    let watched = Watched::start_members(&array, &[array.members(), &[log]].concat(), &[]);
    let mut client: Client = watched.server.connect();
    client.write(0, &[1; 4096]);
    client.flush();
    let page = watched.page();
    assert!(page.value("uraid_log_device_records_total", &[("log_device", "0")]) > 0.0);
    assert!((page.value("uraid_log_device_present", &[("log_device", "0")]) - 1.0).abs() < f64::EPSILON);
    client.disconnect();
    let _ = watched.server.stop();
    let described: BTreeSet<(String, String)> = document("metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| row.split_once("` | ").unwrap_or_else(|| panic!("a name and its type: {row}")))
        .map(|(name, rest)| (name.to_owned(), rest.split(' ').next().unwrap().to_owned()))
        .collect();
    let exported: BTreeSet<(String, String)> = page
        .families
        .iter()
        .map(|family| {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            (family.name.clone(), kind.to_owned())
        })
        .collect();
    assert_eq!(described, exported);
    check_dashboard(&page);
}

/// The dashboard has what an import needs, and asks only for what there is.
fn check_dashboard(page: &Page) {
    let dashboard: Value = serde_json::from_str(&document("grafana-dashboard.json")).unwrap();
    assert!(dashboard["title"].is_string() && dashboard["uid"].as_str().is_some_and(|uid| uid.len() <= 40));
    assert!(dashboard["id"].is_null(), "an imported dashboard gets its number there");
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 36));
    let inputs = dashboard["__inputs"].as_array().unwrap();
    assert!(inputs.iter().any(|input| input["pluginId"] == "prometheus" && input["type"] == "datasource"));
    assert!(dashboard["__requires"].is_array() && dashboard["templating"]["list"].is_array());
    let names = page.names();
    let mut asked = 0;
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has a number of its own");
        for side in ["x", "y", "w", "h"] {
            assert!(panel["gridPos"][side].is_u64(), "{title} has a place");
        }
        assert!(panel["gridPos"]["x"].as_u64().unwrap() + panel["gridPos"]["w"].as_u64().unwrap() <= 24, "{title}");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${DS_PROMETHEUS}", "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let used = names_in(query);
            assert!(!used.is_empty() && target["refId"].is_string(), "{title}: {query}");
            assert!(used.iter().all(|name| names.contains(name.as_str())), "{title}: {query}");
            asked += used.len();
        }
    }
    assert!(asked > 15, "the dashboard shows most of what there is");
    // Variables and annotations ask, too, and so do panels of rows that are folded.
    let mut texts = vec![&dashboard];
    while let Some(value) = texts.pop() {
        match value {
            Value::Object(fields) => texts.extend(fields.values()),
            Value::Array(items) => texts.extend(items),
            Value::String(text) => {
                let unknown: Vec<String> =
                    names_in(text).into_iter().filter(|name| !names.contains(name.as_str())).collect();
                assert!(unknown.is_empty(), "{unknown:?} in {text}");
            }
            _ => {}
        }
    }
}
