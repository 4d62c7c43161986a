//! Results as a document: Markdown, and one self-contained page with figures.

mod block;
mod markdown;
mod page;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;
use uraid_model::figure::{Axis, Figure, Series};
use uraid_model::papers::xyratex;
use uraid_model::workloads;

use crate::Error;
use crate::machine::Machine;
use crate::plan::{Arrays, Config, Driver, Plan, Storage, size};
use crate::results::Results;
use crate::stats::Estimate;
use crate::summary::{Cell, Group, Summary};
pub(crate) use block::{Block, Table, Value};

/// Curves in one figure; more are hard to tell apart.
pub(crate) const CURVES: usize = 10;

/// Writes `report.md`, `report.html`, `summary.json` and the figures beside the results, and returns the names of the
/// files.
///
/// # Errors
/// If a file can't be written.
pub fn write(results: &Results, summary: &Summary, out: &Path) -> Result<Vec<&'static str>, Error> {
    write_document(&title(&results.plan), &blocks(results, summary), summary, out)
}

/// Writes a document as Markdown and as a page, its figures, and its numbers as JSON.
///
/// # Errors
/// If a file can't be written.
pub(crate) fn write_document(
    title: &str,
    blocks: &[Block],
    numbers: &impl Serialize,
    out: &Path,
) -> Result<Vec<&'static str>, Error> {
    let json = serde_json::to_string_pretty(numbers).expect("numbers and text");
    let figures = out.join("figures");
    fs::create_dir_all(&figures).map_err(Error::io("make the directory", &figures))?;
    for block in blocks {
        if let Block::Figure(figure) = block {
            let path = figures.join(format!("{}.svg", figure.name));
            fs::write(&path, figure.svg()).map_err(Error::io("write", &path))?;
        }
    }
    let files = [
        ("report.md", markdown::render(title, blocks)),
        ("report.html", page::render(title, blocks)),
        ("summary.json", json + "\n"),
    ];
    for (name, text) in &files {
        let path = out.join(name);
        fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    Ok(files.iter().map(|(name, _)| *name).collect())
}

fn title(plan: &Plan) -> String {
    let levels: Vec<String> = plan.arrays.levels.iter().map(|level| crate::plan::level_title(level)).collect();
    format!("Chunk sizes of {} with {} members", levels.join(", "), plan.arrays.members)
}

/// The document.
fn blocks(results: &Results, summary: &Summary) -> Vec<Block> {
    let plan = &results.plan;
    let mut blocks = vec![Block::Lead(summary.sentences(plan))];
    if let Some(note) = imprecise(results, summary) {
        blocks.push(Block::Text(note));
    }
    for group in &summary.groups {
        blocks.push(Block::Heading(group.title.clone()));
        let cells = GroupCells { plan, summary, group };
        blocks.extend(cells.figures().into_iter().map(|figure| Block::Figure(Box::new(figure))));
        blocks.push(Block::Table(cells.scores()));
        blocks.push(Block::Table(cells.table("Throughput, MB/s", |cell| cell.mb_s, false)));
        blocks.push(Block::Table(cells.table("Requests a second", |cell| cell.iops, false)));
        blocks.push(Block::Table(cells.table("Mean response time, ms", |cell| scaled(cell.mean_us, 1e-3), true)));
        blocks.push(Block::Table(cells.table(
            "99th percentile of the response time, ms",
            |cell| scaled(cell.p99_us, 1e-3),
            true,
        )));
        blocks.extend(cells.esg().map(Block::Table));
    }
    blocks.push(Block::Heading("The loads".into()));
    let loads = plan.loads.iter().map(|load| (load.name.clone(), vec![Value::plain(load.title.clone())]));
    blocks.push(Block::Table(Table {
        title: String::new(),
        columns: vec!["load".into(), "what it is".into()],
        rows: loads.collect(),
    }));
    blocks.push(Block::Heading("How it was measured".into()));
    blocks.push(Block::Text(method(results)));
    blocks.push(Block::Table(machine(&results.machine)));
    blocks
}

/// The machine's facts.
pub(crate) fn machine(Machine(facts): &Machine) -> Table {
    let rows = facts.iter().map(|(name, value)| (name.clone(), vec![Value::plain(value.clone())]));
    Table { title: String::new(), columns: vec!["the machine".into(), String::new()], rows: rows.collect() }
}

/// Where members are, in words.
pub(crate) fn place(arrays: &Arrays) -> String {
    match &arrays.place {
        Storage::Directories { paths, member_size } => {
            let paths: Vec<String> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
            format!("files of {} in {}", size(*member_size), paths.join(", "))
        }
        Storage::Devices { paths } => format!("{} devices", paths.len()),
    }
}

pub(crate) fn scaled(estimate: Estimate, factor: f64) -> Estimate {
    let Estimate { median, low, high, .. } = estimate;
    Estimate { median: median * factor, low: low * factor, high: high * factor, ..estimate }
}

/// What is less precise than was asked for.
fn imprecise(results: &Results, summary: &Summary) -> Option<String> {
    let wide: Vec<&Cell> =
        summary.cells.iter().filter(|cell| cell.mb_s.precision() > results.rounds.precision).collect();
    let worst = wide.iter().map(|cell| cell.mb_s.precision()).fold(0.0, f64::max);
    let asked = results.rounds.precision * 100.0;
    (!wide.is_empty()).then(|| {
        let how = if worst.is_finite() {
            format!("the widest is ±{:.0} %", worst * 100.0)
        } else {
            "an interval takes at least 6 rounds".to_owned()
        };
        format!(
            "The medians of {} of {} cells are less precise than ±{asked:.0} %: {how}. More rounds (`--rounds`) help.",
            wide.len(),
            summary.cells.len()
        )
    })
}

/// The protocol in words.
fn method(results: &Results) -> String {
    let plan = &results.plan;
    let driver = match plan.driver {
        Driver::Fio => {
            "fio through its nbd engine (the job files are in `jobs/`; traces come from the built-in generator)"
        }
        Driver::Native => "the built-in generator",
    };
    let place = place(&plan.arrays);
    let rounds = results.observations.iter().map(|it| it.round + 1).max().unwrap_or(0);
    let mut text = format!(
        "The load came from {driver}. Members were {place}, the cache {}. Each array was filled before its first \
         measurement. A measurement took {} s after {} s of warm-up that don't count, and began with an empty cache. A \
         round measures every array under every load once, in an order that changes from round to round; there were \
         {rounds} rounds, and at most {} were allowed.",
        size(plan.arrays.cache_size),
        plan.seconds,
        plan.warm_up_s,
        results.rounds.max,
    );
    let _ = write!(
        text,
        " Values are medians over the rounds. Their intervals hold the true median with 95 % (order statistics; from 6 \
         rounds on). A load's share is its throughput as a share of the best one. A chunk is as good as its smallest \
         share. The recommendation is the smallest chunk that is not worse than the best one by more than {near:.0} \
         points, or {:.0} if that may be chance. Its confidence is how often no other chunk is better than it by more \
         than {near:.0} points when the rounds are drawn again.",
        crate::summary::NOISE_MAX * 100.0,
        near = crate::summary::NEAR * 100.0
    );
    text
}

/// The cells of one level and cache mode.
struct GroupCells<'a> {
    plan: &'a Plan,
    summary: &'a Summary,
    group: &'a Group,
}

impl GroupCells<'_> {
    fn config(&self, chunk: u64) -> Config {
        Config { level: self.group.level.clone(), cache: self.group.cache.clone(), chunk }
    }

    fn estimate(&self, chunk: u64, load: &str, of: impl Fn(&Cell) -> Estimate) -> Option<Estimate> {
        self.summary.cell(&self.config(chunk), load).map(of)
    }

    /// The best median of a load's throughput.
    fn best(&self, load: &str) -> f64 {
        let medians = self.plan.arrays.chunks.iter().filter_map(|&chunk| self.estimate(chunk, load, |cell| cell.mb_s));
        medians.map(|estimate| estimate.median).fold(0.0, f64::max)
    }

    /// A curve for each load.
    fn curves(&self, loads: &[crate::plan::LoadId], of: impl Fn(&Cell, &str) -> Estimate) -> Vec<Series> {
        let curve = |load: &crate::plan::LoadId| {
            let found = self.plan.arrays.chunks.iter().filter_map(|&chunk| {
                Some((chunk as f64 / 1024.0, self.estimate(chunk, &load.name, |cell| of(cell, &load.name))?))
            });
            let found: Vec<(f64, Estimate)> = found.collect();
            let points = found.iter().map(|(x, estimate)| (*x, estimate.median)).collect();
            Series::line(load.name.clone(), points)
                .with_intervals(found.iter().map(|(x, estimate)| (*x, estimate.low, estimate.high)).collect())
        };
        loads.iter().map(curve).collect()
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (part, loads) in self.plan.loads.chunks(CURVES).enumerate() {
            let part = if part == 0 { String::new() } else { format!("-{}", part + 1) };
            let group = format!("{}-{}", self.group.level, self.group.cache);
            // A single curve has no legend.
            let whose = match loads {
                [load] => format!("{}, {}", self.group.title, load.name),
                _ => self.group.title.clone(),
            };
            let mut add = |name: &str, title: &str, label: &str, series: Vec<Series>| {
                let title = format!("{whose}: {title}");
                let y = axis(label, &series);
                figures.push(Figure::new(
                    &format!("{name}-{group}{part}"),
                    &title,
                    Axis::log2("chunk, KiB"),
                    y,
                    series,
                ));
            };
            let share = |cell: &Cell, load: &str| scaled(cell.mb_s, 100.0 / self.best(load).max(1e-9));
            add("share", "per cent of the best throughput", "per cent", self.curves(loads, share));
            add("throughput", "throughput", "MB/s", self.curves(loads, |cell, _| cell.mb_s));
            let response = |cell: &Cell, _: &str| scaled(cell.mean_us, 1e-3);
            add("response", "mean response time", "ms", self.curves(loads, response));
        }
        figures
    }

    fn columns(&self) -> Vec<String> {
        std::iter::once("load".to_owned()).chain(self.plan.arrays.chunks.iter().map(|&chunk| size(chunk))).collect()
    }

    fn scores(&self) -> Table {
        let choice = &self.group.choice;
        let score = |chunk: &u64| choice.scores.iter().find(|score| score.config.chunk == *chunk);
        let least = |chunk: &u64| match score(chunk) {
            Some(score) => Value {
                text: format!("{:.0} ({:.0}–{:.0})", score.least * 100.0, score.low * 100.0, score.high * 100.0),
                is_best: score.config.chunk == choice.config.chunk,
            },
            None => Value::plain("–"),
        };
        let worst = |chunk: &u64| Value::plain(score(chunk).map_or("–", |score| score.worst.as_str()));
        let mut rows = vec![("smallest share, %".to_owned(), self.plan.arrays.chunks.iter().map(least).collect())];
        if self.plan.loads.len() > 1 {
            rows.push(("which load".to_owned(), self.plan.arrays.chunks.iter().map(worst).collect()));
        }
        let mut columns = self.columns();
        columns[0] = "chunk".into();
        Table { title: "How good each chunk is".into(), columns, rows }
    }

    fn table(&self, title: &str, of: impl Fn(&Cell) -> Estimate, less_is_better: bool) -> Table {
        let row = |load: &crate::plan::LoadId| {
            let found: Vec<Option<Estimate>> =
                self.plan.arrays.chunks.iter().map(|&chunk| self.estimate(chunk, &load.name, &of)).collect();
            let rank = |estimate: &Estimate| if less_is_better { -estimate.median } else { estimate.median };
            let best = found.iter().flatten().map(rank).max_by(f64::total_cmp);
            let value = |estimate: &Option<Estimate>| match estimate {
                Some(estimate) => {
                    Value { text: interval(estimate), is_best: best.is_some_and(|best| rank(estimate) >= best) }
                }
                None => Value::plain("–"),
            };
            (load.name.clone(), found.iter().map(value).collect())
        };
        Table { title: title.to_owned(), columns: self.columns(), rows: self.plan.loads.iter().map(row).collect() }
    }

    /// The Xyratex paper's table, if the plan has its chunks and workloads: the change of IOPS from 64 to 16 KiB.
    fn esg(&self) -> Option<Table> {
        let (large, small) = (64 << 10, 16 << 10);
        let row = |workload: &xyratex::Workload| {
            let name = workloads::esg_name(workload);
            let [before, after] = [large, small].map(|chunk| self.estimate(chunk, &name, |cell| cell.iops));
            let (before, after) = (before?, after?);
            let change = |percent: f64| Value::plain(format!("{percent:+.0} %"));
            let range = |values: &[f64]| {
                let (low, high) =
                    values.iter().fold((f64::MAX, f64::MIN), |it, &value| (it.0.min(value), it.1.max(value)));
                Value::plain(if low < high { format!("{low:+.0} to {high:+.0} %") } else { format!("{low:+.0} %") })
            };
            let found = change((after.median / before.median - 1.0) * 100.0);
            let cells = vec![
                Value::plain(interval(&before)),
                Value::plain(interval(&after)),
                found,
                range(&workload.sas),
                range(&workload.sata),
            ];
            Some((name, cells))
        };
        let rows: Vec<_> = xyratex::WORKLOADS.iter().filter_map(row).collect();
        let columns =
            ["load", "IOPS at 64K", "at 16K", "change", "in the paper: SAS", "SATA"].map(str::to_owned).to_vec();
        (!rows.is_empty()).then(|| Table {
            title: "IOPS with chunks of 16K against 64K, as in Xyratex (2008)".into(),
            columns,
            rows,
        })
    }
}

/// An axis from zero on, or a logarithmic one if the highest value is many times the lowest.
pub(crate) fn axis(label: &str, series: &[Series]) -> Axis {
    let ends = series.iter().flat_map(|it| it.intervals.iter().flat_map(|bar| [bar.1, bar.2]));
    let (low, high) = ends.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high > 10.0 * low { Axis::log10(label) } else { Axis::linear(label).over(0.0, high.max(1e-9) * 1.05) }
}

/// A median with its interval, in three digits.
pub(crate) fn interval(estimate: &Estimate) -> String {
    let (median, low, high) = (digits(estimate.median), digits(estimate.low), digits(estimate.high));
    if estimate.count < 2 || (low == median && high == median) { median } else { format!("{median} ({low}–{high})") }
}

/// At least three digits.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        it if it >= 100.0 => format!("{value:.0}"),
        it if it >= 10.0 => format!("{value:.1}"),
        it if it >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::LoadId;
    use crate::results::tests::results;

    fn found() -> Results {
        let mut found = results(6, |round, chunk, _| 100.0 + round as f64 + chunk as f64 / 4096.0);
        found.plan.loads[0].name = "esg-oltp".into();
        found.plan.loads[0].title = "a <b> & c | d".into();
        for it in &mut found.observations {
            if it.load == "small" {
                it.load = "esg-oltp".into();
            }
        }
        found
    }

    #[test]
    fn a_report_has_every_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let found = found();
        let summary = Summary::of(&found).expect("all is there");
        write(&found, &summary, directory.path()).expect("it is written");
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).expect(name);
        let markdown = read("report.md");
        assert!(markdown.contains("![") && markdown.contains("figures/share-5-writeback.svg"), "{markdown}");
        assert!(markdown.contains("a <b> & c \\| d"), "{markdown}");
        let page = read("report.html");
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("a &lt;b&gt; &amp; c | d") && !page.contains("<b>"), "{page}");
        assert!(
            !page.contains("http:")
                || page.matches("http:").count() == page.matches("http://www.w3.org/2000/svg").count()
        );
        let json: serde_json::Value = serde_json::from_str(&read("summary.json")).expect("it is JSON");
        assert_eq!(json["groups"][0]["choice"]["config"]["chunk"], 256 << 10);
        assert!(read("figures/response-5-writeback.svg").contains("chunk, KiB"));
    }

    /// 104.5 MB/s at 16K and 118.5 at 64K, that is 10 % less: (100 + 2.5 + 4) / (100 + 2.5 + 16) - 1 = -10.1 %.
    #[test]
    fn the_papers_table_stands_beside_ours() {
        let found = found();
        let summary = Summary::of(&found).expect("all is there");
        let cells = GroupCells { plan: &found.plan, summary: &summary, group: &summary.groups[0] };
        let table = cells.esg().expect("one of its loads was measured");
        let row: Vec<&str> = table.rows[0].1.iter().map(|value| value.text.as_str()).collect();
        assert_eq!(row[2..], ["-10 %", "-13 to -5 %", "-10 to -7 %"]);
        assert_eq!(table.rows.len(), 1);
    }

    #[test]
    fn many_loads_are_several_figures() {
        let mut found = found();
        let names: Vec<String> = (0..12).map(|index| format!("load{index}")).collect();
        let observation = found.observations[0].clone();
        found.plan.loads =
            names.iter().map(|name| LoadId { name: name.clone(), title: String::new(), digest: 0 }).collect();
        found.observations.clear();
        for config in found.plan.arrays.configs() {
            let config = &config;
            let of = |name: &String| crate::results::Observation {
                config: config.clone(),
                load: name.clone(),
                ..observation.clone()
            };
            found.observations.extend(names.iter().map(of));
        }
        let summary = Summary::of(&found).expect("all is there");
        let cells = GroupCells { plan: &found.plan, summary: &summary, group: &summary.groups[0] };
        let names: Vec<(String, usize)> = cells.figures().into_iter().map(|it| (it.name, it.series.len())).collect();
        assert_eq!(names[0], ("share-5-writeback".into(), 10));
        assert_eq!(names[3], ("share-5-writeback-2".into(), 2));
    }

    #[test]
    fn values_have_three_digits() {
        assert_eq!([1234.5, 99.94, 9.994, 0.12345].map(digits), ["1234", "99.9", "9.99", "0.123"]);
    }
}
