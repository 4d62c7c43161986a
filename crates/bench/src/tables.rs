//! All that a run found, for people and for programs. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::goals;
use super::report::{INFALLIBLE, Report};
use super::server::BASELINE;

/// All tables and what was left out, as markdown.
pub(crate) fn markdown(report: &Report) -> String {
    let mut text = format!("{}; {}; {} rounds of {} s", report.machine, report.medium, report.rounds, report.seconds);
    writeln!(text, "; {} MiB on each server.", report.capacity >> 20).expect(INFALLIBLE);
    let tables = [
        ("Goals beside results", goals::table(report)),
        ("Ratios to the baseline", report.ratios()),
        ("Ratios to the baseline, by mode", report.modes()),
        ("Memory, MiB", report.memory()),
        ("All figures", report.details()),
    ];
    for (title, table) in tables.iter().filter(|(_, table)| !table.is_empty()) {
        write!(text, "\n## {title}\n\n{table}").expect(INFALLIBLE);
    }
    for (server, reason) in &report.left_out {
        writeln!(text, "\nLeft out: {server} ({reason}).").expect(INFALLIBLE);
    }
    for failure in &report.failed {
        writeln!(text, "\nFailed: {failure}.").expect(INFALLIBLE);
    }
    text
}

/// Everything, with every round's values.
pub(crate) fn json(report: &Report) -> Value {
    let servers = report.servers.iter().map(|server| {
        json!({
            "name": server.name, "command": server.command, "cache_mib": server.cache_mib,
            "resident_bytes": server.memory.map(|memory| memory.resident),
            "resident_peak_bytes": server.memory.map(|memory| memory.peak),
        })
    });
    let left_out = report.left_out.iter().map(|(name, reason)| json!({ "name": name, "reason": reason }));
    json!({
        "machine": report.machine, "medium": report.medium, "rounds": report.rounds, "seconds": report.seconds,
        "capacity": report.capacity, "baseline": BASELINE, "servers": servers.collect::<Vec<Value>>(),
        "left_out": left_out.collect::<Vec<Value>>(), "failed": report.failed, "goals": goals::list(report),
        "results": report.rows.iter().flat_map(|row| report.results(row)).collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use uraid_tests::process::Memory;

    use super::super::measured::{Sample, Unit};
    use super::super::report::{Row, Served};
    use super::super::server::Role;
    use super::super::workload::RANDOM_READ;
    use super::*;

    fn samples(values: &[f64]) -> Vec<Sample> {
        values.iter().map(|&value| Sample { value, processor: Some(value / 10.0) }).collect()
    }

    fn served(name: &'static str, role: Role, cache_mib: Option<u64>) -> Served {
        let memory = Some(Memory { mapped: 400 << 20, resident: 20 << 20, peak: 300 << 20 });
        Served { name, role, cache_mib, command: name.to_owned(), memory }
    }

    fn report() -> Report {
        Report {
            machine: "two cores".to_owned(),
            medium: "tmpfs".to_owned(),
            rounds: 1,
            seconds: 2,
            capacity: 512 << 20,
            servers: vec![
                served(BASELINE, Role::Baseline, None),
                served("uraid RAID 5", Role::Default, Some(256)),
                served("uraid RAID 5 degraded", Role::Degraded, Some(256)),
            ],
            left_out: vec![("nbd-server", "nbd-server is not installed".to_owned())],
            failed: vec!["p99 against uraid RAID 5: no answer".to_owned()],
            rows: vec![
                Row {
                    name: RANDOM_READ,
                    unit: Unit::Kiops,
                    samples: vec![samples(&[100.0]), samples(&[150.0]), samples(&[75.0])],
                },
                Row {
                    name: "p99",
                    unit: Unit::Microseconds,
                    samples: vec![vec![Sample { value: 8.0, processor: None }], vec![], vec![]],
                },
            ],
        }
    }

    #[test]
    fn tables() {
        let expected = "
## Ratios to the baseline

| ratio | nbdkit file | uraid RAID 5 |
|---|---:|---:|
| fio 4K random read QD32 | 1.00 | 1.50 |
| p99 | 1.00 | - |

## Memory, MiB

| server | own cache | resident | most resident |
|---|---:|---:|---:|
| nbdkit file | - | 20 | 300 |
| uraid RAID 5 | 256 | 20 | 300 |
| uraid RAID 5 degraded | 256 | 20 | 300 |

## All figures

| workload | server | median | min..max | ratio | server CPU us per request |
|---|---|---:|---:|---:|---:|
| fio 4K random read QD32 | nbdkit file | 100.0 kIOPS | 100.0..100.0 | 1.00 | 10.0 |
| fio 4K random read QD32 | uraid RAID 5 | 150.0 kIOPS | 150.0..150.0 | 1.50 | 15.0 |
| fio 4K random read QD32 | uraid RAID 5 degraded | 75.0 kIOPS | 75.0..75.0 | 0.75 | 7.5 |
| p99 | nbdkit file | 8.0 us | 8.0..8.0 | 1.00 | - |

Left out: nbd-server (nbd-server is not installed).

Failed: p99 against uraid RAID 5: no answer.
";
        let found = markdown(&report());
        assert!(found.starts_with("two cores; tmpfs; 1 rounds of 2 s; 512 MiB on each server.\n\n## Goals"), "{found}");
        assert!(found.ends_with(expected), "{found}");
    }

    #[test]
    fn goals_stand_beside_what_was_found() {
        let found = markdown(&report());
        for line in [
            "| work | against | goal | RAID 0 | RAID 5 | RM2 | reached |",
            "| fio 4K random read QD32 | nbdkit file | >= 1.8 | - | 1.50 | - | no |",
            "| 4K random read QD32 without a member | own healthy | >= 0.6 |  | 0.50 |  | no |",
            "| server CPU for each 4K read, fio QD32 | nbdkit file | <= 0.6 | - | 1.50 | - | no |",
            "| most resident memory, MiB beyond | cache size | <= 64 | - | 44.00 | - | RAID 5 |",
            "| 1M sequential read | nbdkit file | >= 1.1 | - | - | - | not measured |",
        ] {
            assert!(found.lines().any(|candidate| candidate == line), "{line}\n{found}");
        }
    }

    #[test]
    fn modes_have_their_own_table() {
        let mut report = report();
        assert!(!markdown(&report).contains("by mode"));
        report.servers[2] = served("uraid RAID 5 uncached", Role::Mode, Some(0));
        let found = markdown(&report);
        let table = "| ratio | fio 4K random read QD32 |
|---|---:|
| uraid RAID 5 | 1.50 |
| uraid RAID 5 uncached | 0.75 |
";
        assert!(found.contains(table), "{found}");
    }

    #[test]
    fn without_a_baseline_there_are_no_ratios() {
        let mut report = report();
        report.servers.remove(0);
        report.rows.iter_mut().for_each(|row| drop(row.samples.remove(0)));
        assert!(markdown(&report).contains("| fio 4K random read QD32 | - |"));
        assert_eq!(json(&report)["results"][0]["ratio"], Value::Null);
    }

    #[test]
    fn json_has_every_round() {
        let json = json(&report());
        assert_eq!(json["results"][1]["ratio"], 1.5);
        assert_eq!(json["results"][1]["rounds"], json!([150.0]));
        assert_eq!(json["results"].as_array().unwrap().len(), 4, "no result of what was not measured");
        assert_eq!(json["left_out"][0]["name"], "nbd-server");
        assert_eq!(json["servers"][1]["command"], "uraid RAID 5");
        assert_eq!(json["servers"][1]["resident_peak_bytes"], 300 << 20);
        assert_eq!(json["goals"][0]["found"], json!([null, 1.5, null]));
    }
}
