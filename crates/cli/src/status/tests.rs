//! The text for people, for the array described here.

use uraid_io::histogram::Histogram;
use uraid_serve::protocol::{Ailing, Health, HealthState, Limits, Rebuild, Sandbox, Traffic};
use uuid::Uuid;

use super::*;

fn member(slot: u8, state: MemberState) -> Member {
    Member {
        slot,
        uuid: Uuid::from_u128(slot.into()),
        path: (state == MemberState::Active).then(|| format!("/srv/d{slot}")),
        state,
        away: None,
        bad_blocks: BadBlocks::default(),
        troubles: Vec::new(),
        slow: false,
        errors: 0,
        overdue: 0,
        hedged: 0,
        mismatches: 0,
        repaired: 0,
        unrepairable: 0,
        reads: 10,
        read_bytes: 1 << 20,
        writes: 5,
        written_bytes: 512 << 10,
        log_bytes: 512 << 10,
        flushes: 1,
        read_latency: latency(&[]),
        write_latency: latency(&[100, 300, 3000]),
    }
}

fn latency(micros: &[u64]) -> Latency {
    let mut histogram = Histogram::default();
    micros.iter().for_each(|&micros| histogram.record(Duration::from_micros(micros)));
    Latency::of(&histogram)
}

fn health(state: HealthState, survives: usize) -> Health {
    Health { state, survives, survives_elsewhere: survives, ..Health::default() }
}

fn status() -> Status {
    Status {
        version: "0.1.0".into(),
        name: "vault".into(),
        uuid: Uuid::nil(),
        level: "5".into(),
        layout: "left-symmetric".into(),
        size_bytes: 3 << 30,
        chunk_bytes: 64 << 10,
        uri: "nbd+unix:///vault?socket=/srv/uraid.sock".into(),
        endpoints: vec!["/srv/uraid.sock".into()],
        metrics: None,
        user: "uraid".into(),
        sandbox: Sandbox::default(),
        config: None,
        config_array: None,
        read_only: false,
        connection_threads: 0,
        uptime_ms: 192_500,
        clients: 2,
        clients_max: 64,
        clients_refused: 0,
        health: health(HealthState::Whole, 1),
        requests: Traffic { reads: 3, read_bytes: 4 << 20, writes: 4, written_bytes: 2 << 20, flushes: 7 },
        members: (0..3).map(|slot| member(slot, MemberState::Active)).collect(),
        log_devices: Vec::new(),
        spares: Vec::new(),
        crowded_domains: Vec::new(),
        limits: Limits::default(),
        cache_mode: "writeback".into(),
        cache_bypassed: false,
        cache: Some(Fill { used_bytes: 64 << 20, limit_bytes: 256 << 20 }),
        log: Some(Fill { used_bytes: 0, limit_bytes: 1 << 20 }),
        sweeps: Vec::new(),
        rebuild: None,
        replace: None,
        reshape: None,
        scrub: None,
        scrub_finished_s: None,
        stopping: None,
    }
}

#[test]
fn the_screen_of_a_degraded_array() {
    let mut status = status();
    status.health = Health { missing: vec![2], ..health(HealthState::Degraded, 0) };
    status.members[2] = member(2, MemberState::Missing);
    status.members[1] = Member { errors: 2, mismatches: 1, repaired: 3, unrepairable: 1, ..status.members[1].clone() };
    let expected = "\
vault: RAID 5 left-symmetric of 3 members, 3 GiB in chunks of 64 KiB
nbd+unix:///vault?socket=/srv/uraid.sock
up 3 min 12 s as uraid, 2 clients
degraded: member 2 is missing; survives no failure

   member                                state     read  written  operations  read ms     write ms  errors  repaired
0  /srv/d0                               active   1 MiB    1 MiB          15        -  1.13 / 4.10       0         0
1  /srv/d1                               active   1 MiB    1 MiB          15        -  1.13 / 4.10       3  3, not 1
2  00000000-0000-0000-0000-000000000002  missing  1 MiB    1 MiB          15        -  1.13 / 4.10       0         0

clients  read 4 MiB, wrote 2 MiB, 7 flushes
cache    [#######.......................] 64 MiB of 256 MiB to be written, writeback
log      [..............................] 0 bytes of 1 MiB";
    assert_eq!(screen(&status, None, Colours::NONE), expected);
}

#[test]
fn it_says_who_was_refused_and_what_is_limited() {
    let text = screen(&Status { clients_refused: 3, ..status() }, None, Colours::NONE);
    assert!(text.contains("up 3 min 12 s as uraid, 2 clients, 3 refused\n") && !text.contains("limited"), "{text}");
    let limits = |bytes, operations| Limits {
        client_bytes_per_second: bytes,
        client_operations_per_second: operations,
        ..Limits::default()
    };
    for (limits, told) in [
        (limits(Some(50 << 20), None), "7 flushes, limited to 50 MiB/s\n"),
        (limits(None, Some(500)), "7 flushes, limited to 500 requests/s\n"),
        (limits(Some(64 << 10), Some(1)), "7 flushes, limited to 64 KiB/s and 1 requests/s\n"),
    ] {
        let text = screen(&Status { limits, ..status() }, None, Colours::NONE);
        assert!(text.contains(told), "{text}");
    }
}

#[test]
fn it_says_what_the_sandbox_refuses() {
    for (paths, calls, told) in [
        (true, true, "as uraid in a sandbox (paths, system calls), 2 clients"),
        (true, false, "as uraid in a sandbox (paths), 2 clients"),
        (false, true, "as uraid in a sandbox (system calls), 2 clients"),
    ] {
        let text = screen(&Status { sandbox: Sandbox { paths, calls }, ..status() }, None, Colours::NONE);
        assert!(text.contains(told), "{text}");
    }
}

#[test]
fn it_says_that_writes_go_past_the_cache() {
    let text = screen(&Status { cache_bypassed: true, ..status() }, None, Colours::NONE);
    assert!(text.contains(" to be written, writeback; writes go past it, as it does not pay\n"), "{text}");
}

#[test]
fn what_is_only_read_is_not_to_be_written() {
    let text = screen(&Status { read_only: true, ..status() }, None, Colours::NONE);
    let expected =
        "\ncache    [#######.......................] 64 MiB of 256 MiB that the log has and nobody writes out\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_screen_says_what_each_member_lacks() {
    let mut status = status();
    status.members[1].bad_blocks = BadBlocks { blocks: 3, absent: 2, unread: 1 };
    let text = screen(&status, None, Colours::NONE);
    assert_eq!(text.matches("lacking").count(), 1, "{text}");
    assert!(text.contains("\nlacking  member 1: 3 bad blocks, 2 absent and 1 unread\n\nclients"), "{text}");
}

#[test]
fn the_screen_says_who_fails_together() {
    let crowded = Crowded { domain: "rack1".into(), slots: vec![0, 2] };
    let text = screen(&Status { crowded_domains: vec![crowded], ..status() }, None, Colours::NONE);
    let line = "\ndomain   rack1: members 0 and 2 fail together, and the array does not survive that\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn the_screen_says_what_a_members_return_waits_for() {
    let mut status = status();
    for (waiting, problem, line) in [
        (Waiting::Server, None, "whose server is asked for it again and again"),
        (Waiting::Server, Some("nobody listens"), "whose server is asked for it again and again: nobody listens"),
        (Waiting::Settling, None, "whose server answers: it is about to return"),
        (
            Waiting::Administrator,
            Some("it is of another array"),
            "which returns with `uraid add`: it is of another array",
        ),
    ] {
        status.members[1].away = Some(Away { waiting, problem: problem.map(str::to_owned) });
        let text = screen(&status, None, Colours::NONE);
        assert!(text.contains(&format!("\naway     member 1, {line}\n\nclients")), "{text}");
    }
}

#[test]
fn between_two_looks_rates_are_shown() {
    let before = status();
    let mut now = status();
    now.uptime_ms += 2000;
    now.requests.read_bytes += 30 << 20;
    now.members[0].read_bytes += 10 << 20;
    now.members[0].read_latency = latency(&[10, 16, 16]);
    let text = screen(&now, Some(&before), Colours::NONE);
    assert!(text.contains("read 34 MiB (15 MiB/s), wrote 2 MiB (0 bytes/s)"), "{text}");
    let row = text.lines().find(|line| line.contains("/srv/d0")).expect("a row for each member");
    assert!(row.contains("5 MiB/s"), "{row}");
    assert!(row.contains("  0.01 / 0.02  ") && row.contains("  -  "), "latencies between the two: {row}");
    assert_eq!(
        line(&now, Some(&before)),
        "vault: whole: survives 1 more failure; 2 clients, read 15 MiB/s, written 0 bytes/s, cache 25 %, log 0 %"
    );
}

#[test]
fn all_background_work_has_a_bar_and_the_time_that_is_left() {
    let sweep = |work, bytes_per_second, seconds_left| Sweep {
        work,
        done_bytes: (1 << 30) + (64 << 20),
        total_bytes: 3 << 30,
        bytes_per_second,
        seconds_left,
        stuck: false,
    };
    let rebuild = Rebuild { members: vec![1, 2], stuck_stripe: None };
    let sweeps = vec![
        sweep(Work::Rebuild, Some(64 << 20), Some(31)),
        sweep(Work::Initialise, None, None),
        Sweep { stuck: true, ..sweep(Work::Replace, Some(0), None) },
    ];
    let replace = Replace { slot: 1, uuid: Uuid::nil(), path: Some("/srv/new".into()), stuck_stripe: Some(4) };
    let now = Status { sweeps, rebuild: Some(rebuild), replace: Some(replace), ..status() };
    let text = screen(&now, None, Colours::NONE);
    let bar = "[##########....................] 1.06 GiB of 3 GiB";
    let expected = format!(
        "\nrebuild  {bar} (64 MiB/s, 31 s left), member 1 and 2\nzeroing  {bar}\nreplace  {bar} (STUCK), member 1 to \
         /srv/new"
    );
    assert!(text.ends_with(&expected), "{text}");
}

#[test]
fn a_scrub_says_what_it_found() {
    let scrub = Scrub {
        mode: ScrubMode::Check,
        running: true,
        done_bytes: (1 << 30) + (64 << 20),
        total_bytes: 3 << 30,
        mismatched_bytes: 8192,
        repaired_bytes: 0,
        unchecked_bytes: 0,
        missed_bytes: 0,
    };
    let (done_bytes, total_bytes) = (scrub.done_bytes, scrub.total_bytes);
    let (bytes_per_second, seconds_left) = (Some(64 << 20), Some(31));
    let sweep = Sweep { work: Work::Scrub, done_bytes, total_bytes, bytes_per_second, seconds_left, stuck: false };
    let now = Status { sweeps: vec![sweep], scrub: Some(scrub), ..status() };
    let text = screen(&now, None, Colours::NONE);
    let line =
        "scrub    [##########....................] 1.06 GiB of 3 GiB (64 MiB/s, 31 s left), checking; 8 KiB wrong";
    assert_eq!(text.lines().last(), Some(line));
    let done = Scrub { running: false, done_bytes: 3 << 30, repaired_bytes: 8192, ..scrub };
    assert!(scrub_line(&done).ends_with("3 GiB of 3 GiB, finished; 8 KiB wrong, 8 KiB repaired"));
    let unread = Scrub { mismatched_bytes: 0, repaired_bytes: 0, unchecked_bytes: 4096, ..done };
    let line = scrub_line(&unread);
    assert!(line.ends_with("finished; 4 KiB of parity could not be checked, nothing wrong in the rest"), "{line}");
    let missed = Scrub { missed_bytes: 4096, mismatched_bytes: 8192, ..unread };
    let line = scrub_line(&missed);
    assert!(line.ends_with("without missing members; 4 KiB of parity could not be checked, 8 KiB wrong"), "{line}");
    let stopped = Scrub { running: false, mismatched_bytes: 0, ..scrub };
    assert!(scrub_line(&stopped).ends_with("1.06 GiB of 3 GiB, stopped; nothing wrong"));
}

#[test]
fn a_bar_is_never_longer_than_it_is() {
    let text = bar(Fill { used_bytes: 10, limit_bytes: 5 });
    assert!(text.starts_with(&format!("[{}]", "#".repeat(30))), "{text}");
    assert!(bar(Fill { used_bytes: 0, limit_bytes: 0 }).starts_with("[...."));
}

#[test]
fn the_screen_says_who_keeps_clients_waiting() {
    let mut status = status();
    let path = Some("/srv/d1".to_owned());
    let ailing = Ailing { slot: 1, trouble: Trouble::NoRoom, path, waits_ms: Some(12_300) };
    status.health = Health { troubles: vec![ailing], ..health(HealthState::Stalled, 1) };
    status.members[1].troubles = vec![Trouble::NoRoom, Trouble::Slow];
    let text = screen(&status, None, Colours::NONE);
    assert!(text.contains("\nstalled: waiting for room on /srv/d1 for 12 s; survives 1 more failure\n"), "{text}");
    let row = text.lines().find(|line| line.starts_with("1  /srv/d1")).expect("a row for each member");
    assert!(row.contains("waiting for room  "), "{row}");
}
