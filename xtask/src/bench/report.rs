//! From samples to medians, ratios and tables. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::goals;
use super::server::{BASELINE, Role};
use super::workload::{Sample, Unit};
use crate::process::Memory;

/// Everything that a run found.
pub(crate) struct Report {
    /// Processor, cores and kernel.
    pub(crate) machine: String,
    /// Where the members and files were.
    pub(crate) medium: String,
    pub(crate) rounds: u32,
    /// Seconds of each measurement.
    pub(crate) seconds: u64,
    /// Bytes of each export that were used.
    pub(crate) capacity: u64,
    /// In the order of the table.
    pub(crate) servers: Vec<Served>,
    /// Name of each server that could not take part, and why.
    pub(crate) left_out: Vec<(&'static str, String)>,
    /// What could not be measured.
    pub(crate) failed: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// A server that took part.
pub(crate) struct Served {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// MiB of its own cache, where it has one of a known size.
    pub(crate) cache_mib: Option<u64>,
    /// How it was started.
    pub(crate) command: String,
    /// At the end of the run, if it was still there.
    pub(crate) memory: Option<Memory>,
}

/// One row's samples.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// By server, as in [`Report::servers`], then by round; none of a server that the workload is not for.
    pub(crate) samples: Vec<Vec<Sample>>,
}

/// One server's result in one row.
#[derive(Debug, PartialEq)]
struct Summary {
    median: f64,
    min: f64,
    max: f64,
    /// Median of the rounds' ratios to the baseline; `None` without a baseline.
    ratio: Option<f64>,
    /// Median microseconds of the server's processor time for each request, where it can be told.
    processor: Option<f64>,
}

/// Why writing to a string is no error.
pub(super) const INFALLIBLE: &str = "a string takes every write";

/// Servers of the first table of ratios.
const AS_THEY_COME: &[Role] = &[Role::Baseline, Role::Default, Role::Peer];
/// Those that make a table of cache modes worth it; uraid's defaults stand beside them.
const CACHE_MODES: &[Role] = &[Role::Mode, Role::SmallCache];

impl Report {
    /// All tables and what was left out, as markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("{}; {}; {} rounds of {} s", self.machine, self.medium, self.rounds, self.seconds);
        writeln!(text, "; {} MiB on each server.", self.capacity >> 20).expect(INFALLIBLE);
        let tables = [
            ("Goals beside results", goals::table(self)),
            ("Ratios to the baseline", self.ratios()),
            ("Ratios to the baseline, by cache mode", self.modes()),
            ("Memory, MiB", self.memory()),
            ("All figures", self.details()),
        ];
        for (title, table) in tables.iter().filter(|(_, table)| !table.is_empty()) {
            write!(text, "\n## {title}\n\n{table}").expect(INFALLIBLE);
        }
        for (server, reason) in &self.left_out {
            writeln!(text, "\nLeft out: {server} ({reason}).").expect(INFALLIBLE);
        }
        for failure in &self.failed {
            writeln!(text, "\nFailed: {failure}.").expect(INFALLIBLE);
        }
        text
    }

    /// Everything, with every round's values.
    pub(crate) fn json(&self) -> Value {
        let servers = self.servers.iter().map(|server| {
            json!({
                "name": server.name, "command": server.command, "cache_mib": server.cache_mib,
                "resident_bytes": server.memory.map(|memory| memory.resident),
                "resident_peak_bytes": server.memory.map(|memory| memory.peak),
            })
        });
        let left_out = self.left_out.iter().map(|(name, reason)| json!({ "name": name, "reason": reason }));
        json!({
            "machine": self.machine, "medium": self.medium, "rounds": self.rounds, "seconds": self.seconds,
            "capacity": self.capacity, "baseline": BASELINE, "servers": servers.collect::<Vec<Value>>(),
            "left_out": left_out.collect::<Vec<Value>>(), "failed": self.failed, "goals": goals::list(self),
            "results": self.rows.iter().flat_map(|row| self.json_row(row)).collect::<Vec<Value>>(),
        })
    }

    /// Median over the rounds of what `server` has in a row divided by what `other` has there.
    pub(super) fn ratio(
        &self,
        row: &str,
        server: &str,
        other: &str,
        figure: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<f64> {
        let row = self.rows.iter().find(|candidate| candidate.name == row)?;
        ratio(&row.samples[self.index(server)?], &row.samples[self.index(other)?], figure)
    }

    /// MiB of a server's memory at its most, less its cache.
    pub(super) fn mebibytes_beyond_cache(&self, server: &str) -> Option<f64> {
        let server = &self.servers[self.index(server)?];
        Some(mebibytes(server.memory?.peak) - server.cache_mib? as f64)
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.servers.iter().position(|server| server.name == name)
    }

    fn json_row(&self, row: &Row) -> Vec<Value> {
        let results = self.servers.iter().zip(self.summaries(row)).zip(&row.samples);
        results
            .filter_map(|((server, summary), samples)| {
                let summary = summary?;
                let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
                Some(json!({
                    "workload": row.name, "server": server.name, "unit": row.unit.symbol(), "median": summary.median,
                    "min": summary.min, "max": summary.max, "ratio": summary.ratio,
                    "server_cpu_us_per_request": summary.processor, "rounds": values,
                }))
            })
            .collect()
    }

    /// A column for each server as it comes, a row for each that any of them was measured in.
    fn ratios(&self) -> String {
        let columns = self.of_roles(AS_THEY_COME);
        let names: Vec<&str> = columns.iter().map(|&index| self.servers[index].name).collect();
        let mut text = format!("| ratio | {} |\n|---|{}\n", names.join(" | "), "---:|".repeat(columns.len()));
        for row in self.rows.iter().filter(|row| row.has_any(&columns)) {
            write!(text, "| {} |", row.name).expect(INFALLIBLE);
            for &index in &columns {
                write!(text, " {} |", figure(self.ratio_to_baseline(row, index), 2)).expect(INFALLIBLE);
            }
            text += "\n";
        }
        text
    }

    /// The other way round, for there are more modes than workloads that show them. Empty when no mode took part.
    fn modes(&self) -> String {
        let modes = self.of_roles(CACHE_MODES);
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.has_any(&modes)).collect();
        if rows.is_empty() {
            return String::new();
        }
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        let mut text = format!("| ratio | {} |\n|---|{}\n", names.join(" | "), "---:|".repeat(rows.len()));
        for index in self.of_roles(&[Role::Default]).into_iter().chain(modes) {
            write!(text, "| {} |", self.servers[index].name).expect(INFALLIBLE);
            for row in &rows {
                write!(text, " {} |", figure(self.ratio_to_baseline(row, index), 2)).expect(INFALLIBLE);
            }
            text += "\n";
        }
        text
    }

    fn of_roles(&self, roles: &[Role]) -> Vec<usize> {
        (0..self.servers.len()).filter(|&index| roles.contains(&self.servers[index].role)).collect()
    }

    fn ratio_to_baseline(&self, row: &Row, index: usize) -> Option<f64> {
        let baseline = self.index(BASELINE)?;
        ratio(&row.samples[index], &row.samples[baseline], |sample| Some(sample.value))
    }

    /// A row for each server.
    fn memory(&self) -> String {
        let mut text = String::from("| server | own cache | resident | most resident |\n|---|---:|---:|---:|\n");
        for Served { name, cache_mib, memory, .. } in &self.servers {
            let cache = cache_mib.map_or_else(|| "-".to_owned(), |mib| mib.to_string());
            let resident = figure(memory.map(|memory| mebibytes(memory.resident)), 0);
            let peak = figure(memory.map(|memory| mebibytes(memory.peak)), 0);
            writeln!(text, "| {name} | {cache} | {resident} | {peak} |").expect(INFALLIBLE);
        }
        text
    }

    /// A row for each workload and server: what was measured.
    fn details(&self) -> String {
        let mut text = String::from("| workload | server | median | min..max | ratio | server CPU us per request |\n");
        text += "|---|---|---:|---:|---:|---:|\n";
        for row in &self.rows {
            for (server, summary) in self.servers.iter().zip(self.summaries(row)) {
                let Some(Summary { median, min, max, ratio, processor }) = summary else { continue };
                let (unit, ratio, processor) = (row.unit.symbol(), figure(ratio, 2), figure(processor, 1));
                let (workload, server) = (row.name, server.name);
                writeln!(
                    text,
                    "| {workload} | {server} | {median:.1} {unit} | {min:.1}..{max:.1} | {ratio} | {processor} |"
                )
                .expect(INFALLIBLE);
            }
        }
        text
    }

    fn summaries(&self, row: &Row) -> Vec<Option<Summary>> {
        let baseline = self.index(BASELINE).map_or(&[][..], |index| row.samples[index].as_slice());
        row.samples.iter().map(|samples| summary(samples, baseline)).collect()
    }
}

impl Row {
    /// Whether any of those servers was measured.
    fn has_any(&self, servers: &[usize]) -> bool {
        servers.iter().any(|&index| !self.samples[index].is_empty())
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// Summary of one server's rounds, of which there may be none; `baseline` has the baseline's of the same rounds.
fn summary(samples: &[Sample], baseline: &[Sample]) -> Option<Summary> {
    let values = || samples.iter().map(|sample| sample.value);
    Some(Summary {
        median: median(values().collect())?,
        min: values().fold(f64::INFINITY, f64::min),
        max: values().fold(f64::NEG_INFINITY, f64::max),
        ratio: ratio(samples, baseline, |sample| Some(sample.value)),
        processor: median(samples.iter().filter_map(|sample| sample.processor).collect()),
    })
}

/// Median of the rounds' ratios; `None` where no round has both.
fn ratio(samples: &[Sample], others: &[Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let figures = samples.iter().zip(others).filter_map(|(sample, other)| Some((figure(sample)?, figure(other)?)));
    median(figures.filter(|(_, of)| *of > 0.0).map(|(value, of)| value / of).collect())
}

/// The middle value, or the mean of the two middle ones; `None` of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], upper) } else { upper })
}

#[cfg(test)]
mod tests {
    use super::super::workload::RANDOM_READ;
    use super::*;

    fn samples(values: &[f64]) -> Vec<Sample> {
        values.iter().map(|&value| Sample { value, processor: Some(value / 10.0) }).collect()
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 9.0, 2.0]), Some(3.0));
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios() {
        // By round 2, 0.5 and 3; the ratio of the medians would be 15 / 10.
        let found = summary(&samples(&[20.0, 5.0, 15.0]), &samples(&[10.0, 10.0, 5.0])).unwrap();
        assert_eq!(found, Summary { median: 15.0, min: 5.0, max: 20.0, ratio: Some(2.0), processor: Some(1.5) });
        assert_eq!(summary(&samples(&[1.0]), &[]).unwrap().ratio, None);
        assert_eq!(summary(&[], &samples(&[1.0])), None);
    }

    fn served(name: &'static str, role: Role, cache_mib: Option<u64>) -> Served {
        let memory = Some(Memory { resident: 20 << 20, peak: 300 << 20 });
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
        let found = report().markdown();
        assert!(found.starts_with("two cores; tmpfs; 1 rounds of 2 s; 512 MiB on each server.\n\n## Goals"), "{found}");
        assert!(found.ends_with(expected), "{found}");
    }

    #[test]
    fn goals_stand_beside_what_was_found() {
        let found = report().markdown();
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
    fn cache_modes_have_their_own_table() {
        let mut report = report();
        assert!(!report.markdown().contains("by cache mode"));
        report.servers[2] = served("uraid RAID 5 uncached", Role::Mode, Some(0));
        let found = report.markdown();
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
        assert!(report.markdown().contains("| fio 4K random read QD32 | - |"));
        assert_eq!(report.json()["results"][0]["ratio"], Value::Null);
    }

    #[test]
    fn json_has_every_round() {
        let json = report().json();
        assert_eq!(json["results"][1]["ratio"], 1.5);
        assert_eq!(json["results"][1]["rounds"], json!([150.0]));
        assert_eq!(json["results"].as_array().unwrap().len(), 4, "no result of what was not measured");
        assert_eq!(json["left_out"][0]["name"], "nbd-server");
        assert_eq!(json["servers"][1]["command"], "uraid RAID 5");
        assert_eq!(json["servers"][1]["resident_peak_bytes"], 300 << 20);
        assert_eq!(json["goals"][0]["found"], json!([null, 1.5, null]));
    }
}
