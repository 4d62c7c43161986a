//! From samples to medians, ratios and their tables. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};
use uraid_tests::process::Memory;

use super::measured::{Sample, Unit};
use super::server::{BASELINE, Role};

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
pub(crate) const INFALLIBLE: &str = "a string takes every write";

/// Servers of the first table of ratios.
const AS_THEY_COME: &[Role] = &[Role::Baseline, Role::Default, Role::Peer];
/// Those that make a table of modes worth it; uraid's defaults stand beside them.
const MODES: &[Role] = &[Role::Mode, Role::SmallCache, Role::Protection];

impl Report {
    /// Median over the rounds of what `server` has in a row divided by what `other` has there.
    pub(crate) fn ratio(
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
    pub(crate) fn mebibytes_beyond_cache(&self, server: &str) -> Option<f64> {
        let server = &self.servers[self.index(server)?];
        Some(mebibytes(server.memory?.peak) - server.cache_mib? as f64)
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.servers.iter().position(|server| server.name == name)
    }

    /// The results of each server in a row.
    pub(crate) fn results(&self, row: &Row) -> Vec<Value> {
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
    pub(crate) fn ratios(&self) -> String {
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
    pub(crate) fn modes(&self) -> String {
        let modes = self.of_roles(MODES);
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
    pub(crate) fn memory(&self) -> String {
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
    pub(crate) fn details(&self) -> String {
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
}
