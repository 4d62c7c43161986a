//! The paper's Tables I and II, for arrays that were measured.

use std::path::Path;

use serde::Serialize;
use uraid_layout::Bytes;
use uraid_model::figure::{Axis, Figure, Series};

use super::files::Collection;
use super::observed::{Observation, Results, estimate};
use super::volume::Way;
use crate::Error;
use crate::plan::Config;
use crate::report::{self, Block, CURVES, Table, Value, digits, interval};
use crate::stats::Estimate;

/// What results say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What a gigabyte of the members costs.
    pub price: f64,
    /// The arrays, by falling Bang.
    pub rows: Vec<Row>,
}

/// An array.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which.
    pub config: Config,
    /// The average retrieval time in seconds.
    pub art_s: Estimate,
    /// The additional time for each further process, in seconds.
    pub aat_s: Estimate,
    /// 10^6 bytes a second.
    pub bang: Estimate,
    /// The mean time of a file with 1, 2 and more processes, in seconds.
    pub mean_s: Vec<Estimate>,
    /// What a gigabyte of the array costs.
    pub cost: f64,
    /// Bang for the cost of a gigabyte.
    pub worth: Estimate,
}

impl Summary {
    /// Judges results; `None` if nothing was measured. `price` is what a gigabyte of the members costs.
    #[must_use]
    pub fn of(results: &Results, price: f64) -> Option<Self> {
        let row = |config: Config| {
            let of = |value: &dyn Fn(&Observation) -> f64| estimate(results, &config, value);
            let observed = results.observations.iter().find(|it| it.config == config)?;
            let cost = price * observed.raw as f64 / observed.size as f64;
            let bang = of(&Observation::bang)?;
            let mean_s = (0..observed.mean_s.len()).filter_map(|index| of(&|it| it.mean_s[index])).collect();
            let (art_s, aat_s) = (of(&Observation::art_s)?, of(&Observation::aat_s)?);
            Some(Row { art_s, aat_s, bang, mean_s, cost, worth: report::scaled(bang, 1.0 / cost), config })
        };
        let mut rows: Vec<Row> = results.plan.arrays.configs().into_iter().filter_map(row).collect();
        rows.sort_by(|left, right| right.bang.median.total_cmp(&left.bang.median));
        (!rows.is_empty()).then_some(Self { price, rows })
    }

    /// Which array is the best, and which is for its price: a sentence each.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let best = |value: fn(&Row) -> Estimate| {
            let mut rows: Vec<&Row> = self.rows.iter().collect();
            rows.sort_by(|left, right| value(right).median.total_cmp(&value(left).median));
            let (first, rest) = (rows[0], &rows[1..]);
            let near: Vec<String> = rest
                .iter()
                .filter(|row| value(row).high >= value(first).low)
                .map(|row| row.config.to_string())
                .collect();
            let near = match near.as_slice() {
                [] => String::new(),
                near => format!(" Not distinguishable from it: {}.", near.join("; ")),
            };
            (first, value(first).median, near)
        };
        let (fastest, bang, near) = best(|row| row.bang);
        let mut sentences = vec![format!(
            "{} has the most Bang, {} MB/s: a file takes {} ms, and {} ms more for each further process.{near}",
            fastest.config,
            digits(bang),
            digits(fastest.art_s.median * 1e3),
            digits(fastest.aat_s.median * 1e3),
        )];
        if self.rows.iter().any(|row| row.config.level != fastest.config.level) {
            let (cheapest, worth, near) = best(|row| row.worth);
            sentences.push(format!("{} has the most Bang per cost, {}.{near}", cheapest.config, digits(worth)));
        }
        sentences
    }

    /// Table I.
    fn speed(&self) -> Table {
        let ms = |it: Estimate| interval(&report::scaled(it, 1e3));
        let cells = |row: &Row| [ms(row.art_s), ms(row.aat_s), interval(&row.bang)];
        let columns = ["array", "ART, ms", "AAT, ms", "Bang, MB/s"];
        let values: [fn(&Row) -> f64; 3] = [|row| -row.art_s.median, |row| -row.aat_s.median, |row| row.bang.median];
        self.table("Table I: how fast files are read", &columns, cells, values)
    }

    /// Table II.
    fn worth(&self) -> Table {
        let cells = |row: &Row| [interval(&row.bang), digits(row.cost), interval(&row.worth)];
        let columns = ["array", "Bang, MB/s", "cost of a GB", "Bang per cost"];
        let values: [fn(&Row) -> f64; 3] = [|row| row.bang.median, |row| -row.cost, |row| row.worth.median];
        self.table("Table II: what that is worth", &columns, cells, values)
    }

    /// A table in which the highest of each column's values stands out.
    fn table<const N: usize>(
        &self,
        title: &str,
        columns: &[&str],
        cells: impl Fn(&Row) -> [String; N],
        values: [fn(&Row) -> f64; N],
    ) -> Table {
        let most = values.map(|value| self.rows.iter().map(value).fold(f64::NEG_INFINITY, f64::max));
        let row = |row: &Row| {
            let texts = cells(row).into_iter().enumerate();
            let marked = texts.map(|(column, text)| Value { text, is_best: values[column](row) >= most[column] });
            (row.config.to_string(), marked.collect())
        };
        let columns = columns.iter().map(|&name| name.to_owned()).collect();
        Table { title: title.to_owned(), columns, rows: self.rows.iter().map(row).collect() }
    }

    /// The mean time against the number of processes.
    fn figures(&self) -> Vec<Figure> {
        let curve = |row: &Row| {
            let found = || (1..).map(f64::from).zip(&row.mean_s);
            let points = found().map(|(x, estimate)| (x, estimate.median * 1e3)).collect();
            let bars = found().map(|(x, estimate)| (x, estimate.low * 1e3, estimate.high * 1e3)).collect();
            Series::line(row.config.to_string(), points).with_intervals(bars)
        };
        let parts = self.rows.chunks(CURVES).enumerate();
        let figure = |(part, rows): (usize, &[Row])| {
            let name = if part == 0 { "retrieval".to_owned() } else { format!("retrieval-{}", part + 1) };
            let series: Vec<Series> = rows.iter().map(curve).collect();
            let y = report::axis("ms", &series);
            Figure::new(&name, "Mean time of a file", Axis::linear("processes"), y, series)
        };
        parts.map(figure).collect()
    }
}

/// Writes `report.md`, `report.html`, `summary.json` and the figures beside the results, and returns the names of the
/// files.
///
/// # Errors
/// If a file can't be written.
pub fn write(results: &Results, summary: &Summary, out: &Path) -> Result<Vec<&'static str>, Error> {
    let mut blocks = vec![Block::Lead(summary.sentences()), Block::Table(summary.speed())];
    blocks.extend(summary.figures().into_iter().map(|figure| Block::Figure(Box::new(figure))));
    blocks.push(Block::Table(summary.worth()));
    blocks.push(Block::Text(format!(
        "A gigabyte of the members costs {}. A gigabyte of an array costs so much more as it has less room than its \
         members.",
        digits(summary.price)
    )));
    blocks.push(Block::Heading("How it was measured".into()));
    blocks.push(Block::Text(method(results)));
    blocks.push(Block::Table(report::machine(&results.machine)));
    let title = format!("Reading files from arrays with {} members", results.plan.arrays.members);
    report::write_document(&title, &blocks, summary, out)
}

/// The protocol in words.
fn method(results: &Results) -> String {
    let plan = &results.plan;
    let rounds = results.observations.iter().map(|it| it.round + 1).max().unwrap_or(0);
    let files = Collection::new(plan.files);
    let Bytes(bytes) = files.bytes();
    format!(
        "As in Hauser, Berman & Thoma, Is the Bang Worth the Buck? (1996): each array has an ext4 with {} files of ten \
         sizes from 50 to 275 KiB, as many of each, {:.0} MB in all. For each number of processes from 1 to {}, the \
         file system was mounted anew, and the processes began whole files in random order for {} s, each file at most \
         once. ART is the mean time of a file with one process, AAT what each further process adds to the mean (linear \
         regression), Bang the mean size over ART + AAT. The time includes opening the file. Members were {}, the \
         server's cache {}, and the kernel got at the array through {}. Values are medians of {rounds} rounds with the \
         interval that holds the true median with 95 % (from 6 rounds on). The order of the arrays changes from round \
         to round.",
        plan.files,
        bytes as f64 / 1e6,
        plan.processes,
        plan.seconds,
        report::place(&plan.arrays),
        crate::plan::size(plan.arrays.cache_size),
        match plan.way {
            Way::Nbd => "its NBD client",
            Way::Nbdfuse => "`nbdfuse` and a loop device, which take time of their own",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::observed::Plan;
    use super::*;
    use crate::machine::Machine;
    use crate::plan::Arrays;
    use crate::plan::tests::{ROUNDS, arrays};

    /// Level 10 is a fifth faster than level 5 and has half of its members' space instead of four fifths.
    fn results() -> Results {
        let arrays = Arrays { levels: vec!["5".into(), "10".into()], chunks: vec![16 << 10], ..arrays() };
        let plan = Plan { arrays, files: 10, processes: 2, seconds: 1, way: Way::Nbd };
        let mut results = Results::new(plan, ROUNDS, Machine::default());
        for round in 0..6 {
            for config in results.plan.arrays.configs() {
                let (art, size) = if config.level == "5" { (0.12, 80) } else { (0.1, 50) };
                let mean_s = vec![art, art * 1.5 + round as f64 * 1e-6];
                results.observations.push(Observation { round, config, mean_s, files: 10, size, raw: 100 });
            }
        }
        results
    }

    #[test]
    fn the_fastest_array_is_not_the_best_for_its_price() {
        let summary = Summary::of(&results(), 2.0).expect("all is there");
        let levels: Vec<&str> = summary.rows.iter().map(|row| row.config.level.as_str()).collect();
        assert_eq!(levels, ["10", "5"]);
        // 0.1664 MB over 0.15 and over 0.18 s; 2 for a GB are 4 and 2.5.
        let close = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-3, "{found} {wanted}");
        close(summary.rows[0].bang.median, 0.1664 / 0.15);
        close(summary.rows[0].worth.median, 0.1664 / 0.15 / 4.0);
        close(summary.rows[1].worth.median, 0.1664 / 0.18 / 2.5);
        let sentences = summary.sentences();
        assert!(
            sentences[0].starts_with("RAID 10, chunk 16K, writeback has the most Bang, 1.11 MB/s"),
            "{sentences:?}"
        );
        assert!(sentences[1].starts_with("RAID 5") && !sentences[0].contains("distinguishable"), "{sentences:?}");
    }

    #[test]
    fn a_document_has_both_tables_and_the_curves() {
        let (results, directory) = (results(), tempfile::tempdir().expect("a directory"));
        let summary = Summary::of(&results, 1.0).expect("all is there");
        write(&results, &summary, directory.path()).expect("it is written");
        let markdown = std::fs::read_to_string(directory.path().join("report.md")).expect("it is there");
        assert!(markdown.contains("Table I:") && markdown.contains("Table II:"), "{markdown}");
        assert!(markdown.contains("| RAID 10, chunk 16K, writeback | **100** | **50.0** | **1.11** |"), "{markdown}");
        assert!(directory.path().join("figures/retrieval.svg").exists());
    }
}
