//! From samples to medians, ratios and tables. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::server::BASELINE;
use super::workload::{Sample, Unit};

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
    /// Name and command line of each server, in the order of the table.
    pub(crate) servers: Vec<(&'static str, String)>,
    /// Name of each server that could not take part, and why.
    pub(crate) left_out: Vec<(&'static str, String)>,
    pub(crate) rows: Vec<Row>,
}

/// One workload's samples.
pub(crate) struct Row {
    pub(crate) workload: &'static str,
    pub(crate) unit: Unit,
    /// By server, as in [`Report::servers`], then by round.
    pub(crate) samples: Vec<Vec<Sample>>,
}

/// One server's result in one workload.
#[derive(Debug, PartialEq)]
struct Summary {
    median: f64,
    min: f64,
    max: f64,
    /// Median of the rounds' ratios to the baseline; `None` without a baseline.
    ratio: Option<f64>,
    /// Median microseconds of the server's processor time for each request.
    processor: f64,
}

impl Report {
    /// Both tables and what was left out, as markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("{}; {}; {} rounds of {} s", self.machine, self.medium, self.rounds, self.seconds);
        writeln!(text, "; {} MiB on each server.\n", self.capacity >> 20).expect(INFALLIBLE);
        text += &self.ratios();
        text += "\n";
        text += &self.details();
        for (server, reason) in &self.left_out {
            writeln!(text, "\nLeft out: {server} ({reason}).").expect(INFALLIBLE);
        }
        text
    }

    /// Everything, with every round's values.
    pub(crate) fn json(&self) -> Value {
        let named = |list: &[(&str, String)], key: &str| -> Vec<Value> {
            list.iter().map(|(name, text)| json!({ "name": name, key: text })).collect()
        };
        let results: Vec<Value> = self.rows.iter().flat_map(|row| self.json_row(row)).collect();
        json!({
            "machine": self.machine, "medium": self.medium, "rounds": self.rounds, "seconds": self.seconds,
            "capacity": self.capacity, "baseline": BASELINE, "servers": named(&self.servers, "command"),
            "left_out": named(&self.left_out, "reason"), "results": results,
        })
    }

    fn json_row(&self, row: &Row) -> Vec<Value> {
        let results = self.servers.iter().zip(self.summaries(row)).zip(&row.samples);
        results
            .map(|(((server, _), summary), samples)| {
                let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
                json!({
                    "workload": row.workload, "server": server, "unit": row.unit.symbol(), "median": summary.median,
                    "min": summary.min, "max": summary.max, "ratio": summary.ratio,
                    "server_cpu_us_per_request": summary.processor, "rounds": values,
                })
            })
            .collect()
    }

    /// A row for each workload, a column for each server: ratios to the baseline.
    fn ratios(&self) -> String {
        let mut text = String::from("| ratio to the baseline |");
        for (server, _) in &self.servers {
            write!(text, " {server} |").expect(INFALLIBLE);
        }
        text += "\n|---|";
        text += &"---:|".repeat(self.servers.len());
        text += "\n";
        for row in &self.rows {
            write!(text, "| {} |", row.workload).expect(INFALLIBLE);
            for summary in self.summaries(row) {
                write!(text, " {} |", ratio_text(summary.ratio)).expect(INFALLIBLE);
            }
            text += "\n";
        }
        text
    }

    /// A row for each workload and server: what was measured.
    fn details(&self) -> String {
        let mut text = String::from("| workload | server | median | min..max | ratio | server CPU us per request |\n");
        text += "|---|---|---:|---:|---:|---:|\n";
        for row in &self.rows {
            for ((server, _), summary) in self.servers.iter().zip(self.summaries(row)) {
                let Summary { median, min, max, ratio, processor } = summary;
                let (unit, ratio) = (row.unit.symbol(), ratio_text(ratio));
                let workload = row.workload;
                writeln!(
                    text,
                    "| {workload} | {server} | {median:.1} {unit} | {min:.1}..{max:.1} | {ratio} | {processor:.1} |"
                )
                .expect(INFALLIBLE);
            }
        }
        text
    }

    fn summaries(&self, row: &Row) -> Vec<Summary> {
        let baseline = self.servers.iter().position(|(server, _)| *server == BASELINE);
        let baseline = baseline.map(|index| row.samples[index].as_slice());
        row.samples.iter().map(|samples| summary(samples, baseline)).collect()
    }
}

const INFALLIBLE: &str = "a string takes every write";

fn ratio_text(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Summary of one server's rounds; `baseline` has the baseline's of the same rounds.
fn summary(samples: &[Sample], baseline: Option<&[Sample]>) -> Summary {
    let values = || samples.iter().map(|sample| sample.value);
    let ratios = |baseline: &[Sample]| {
        median(values().zip(baseline).filter(|(_, of)| of.value > 0.0).map(|(value, of)| value / of.value).collect())
    };
    Summary {
        median: median(values().collect()).unwrap_or(f64::NAN),
        min: values().fold(f64::INFINITY, f64::min),
        max: values().fold(f64::NEG_INFINITY, f64::max),
        ratio: baseline.and_then(ratios),
        processor: median(samples.iter().map(|sample| sample.processor).collect()).unwrap_or(f64::NAN),
    }
}

/// The middle value, or the mean of the two middle ones; `None` of nothing.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], upper) } else { upper })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Vec<Sample> {
        values.iter().map(|&value| Sample { value, processor: value / 10.0 }).collect()
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
        let found = summary(&samples(&[20.0, 5.0, 15.0]), Some(&samples(&[10.0, 10.0, 5.0])));
        assert_eq!(found, Summary { median: 15.0, min: 5.0, max: 20.0, ratio: Some(2.0), processor: 1.5 });
        assert_eq!(summary(&samples(&[1.0]), None).ratio, None);
    }

    fn report() -> Report {
        Report {
            machine: "two cores".to_owned(),
            medium: "tmpfs".to_owned(),
            rounds: 1,
            seconds: 2,
            capacity: 512 << 20,
            servers: vec![(BASELINE, "nbdkit file".to_owned()), ("uraid RAID 5", "uraid serve".to_owned())],
            left_out: vec![("nbd-server", "nbd-server is not installed".to_owned())],
            rows: vec![Row {
                workload: "fio 4K",
                unit: Unit::Kiops,
                samples: vec![samples(&[100.0]), samples(&[150.0])],
            }],
        }
    }

    #[test]
    fn tables() {
        let expected = "two cores; tmpfs; 1 rounds of 2 s; 512 MiB on each server.

| ratio to the baseline | nbdkit file | uraid RAID 5 |
|---|---:|---:|
| fio 4K | 1.00 | 1.50 |

| workload | server | median | min..max | ratio | server CPU us per request |
|---|---|---:|---:|---:|---:|
| fio 4K | nbdkit file | 100.0 kIOPS | 100.0..100.0 | 1.00 | 10.0 |
| fio 4K | uraid RAID 5 | 150.0 kIOPS | 150.0..150.0 | 1.50 | 15.0 |

Left out: nbd-server (nbd-server is not installed).
";
        assert_eq!(report().markdown(), expected);
    }

    #[test]
    fn without_a_baseline_there_are_no_ratios() {
        let mut report = report();
        report.servers.remove(0);
        report.rows[0].samples.remove(0);
        assert!(report.markdown().contains("| fio 4K | - |"));
        assert_eq!(report.json()["results"][0]["ratio"], Value::Null);
    }

    #[test]
    fn json_has_every_round() {
        let json = report().json();
        assert_eq!(json["results"][1]["ratio"], 1.5);
        assert_eq!(json["results"][1]["rounds"], json!([150.0]));
        assert_eq!(json["left_out"][0]["name"], "nbd-server");
        assert_eq!(json["servers"][1]["command"], "uraid serve");
    }
}
