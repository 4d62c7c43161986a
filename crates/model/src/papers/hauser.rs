//! Hauser, Berman & Thoma, Is the Bang Worth the Buck? (1996): Table I from what they measured and from a simulation,
//! and Table II.

mod files;
#[cfg(test)]
mod tests;

use uraid_layout::{Level, Rotation};

use super::report::{Cell, Report, Table};
use super::{Grid, Item, Paper, Settings};
use crate::figure::{Axis, Figure, Series};
use crate::mech;
pub use files::{PROCESSES, SIZES_KIB};
use files::{Reading, Retrieval, simulate};

/// What the paper's reproduction has.
pub const PAPER: Paper = Paper {
    name: "hauser",
    title: "Hauser, Berman & Thoma, Is the Bang Worth the Buck? (1996)",
    items: &[
        Item { name: "table1", title: "speed of retrieving files, by configuration", run: table1 },
        Item { name: "table2", title: "speed for the money", run: table2 },
    ],
};

/// The mean size of the files, in the paper's megabytes.
const FILE_MB: f64 = 0.1625;

/// A row of Table I.
#[derive(Clone, Copy, Debug)]
struct Configuration {
    name: &'static str,
    unit_kib: Option<u64>,
    level: Level,
    /// Of each volume.
    disks: u8,
    volumes: usize,
    /// Seconds.
    retrieval: f64,
    additional: f64,
    bang: f64,
}

const RAID_0: Level = Level::Raid0;
const RAID_01: Level = Level::Raid10 { copies: 2 };
const RAID_5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

/// Table I, by falling Bang.
#[rustfmt::skip]
const TABLE_1: [Configuration; 14] = [
    row("3-disk RAID 0+1 (mirrored)", Some(160), RAID_01, 6, 1, [0.109, 0.032, 1.152]),
    row("6-disk RAID 0", Some(160), RAID_0, 6, 1, [0.115, 0.033, 1.098]),
    row("3-disk RAID 0+1 (mirrored)", Some(16), RAID_01, 6, 1, [0.106, 0.044, 1.083]),
    row("two 3-disk RAID 0", Some(160), RAID_0, 3, 2, [0.118, 0.033, 1.076]),
    row("5-disk RAID 0", Some(160), RAID_0, 5, 1, [0.114, 0.039, 1.062]),
    row("6 simple volumes", None, RAID_0, 1, 6, [0.122, 0.032, 1.055]),
    row("two 3-disk RAID 0", Some(16), RAID_0, 3, 2, [0.114, 0.045, 1.022]),
    row("6-disk RAID 0", Some(16), RAID_0, 6, 1, [0.113, 0.048, 1.009]),
    row("4-disk RAID 0", Some(160), RAID_0, 4, 1, [0.114, 0.048, 1.003]),
    row("6-disk RAID 5", Some(160), RAID_5, 6, 1, [0.127, 0.041, 0.967]),
    row("5-disk RAID 0", Some(16), RAID_0, 5, 1, [0.113, 0.058, 0.950]),
    row("3 simple volumes", None, RAID_0, 1, 3, [0.116, 0.057, 0.939]),
    row("4-disk RAID 0", Some(16), RAID_0, 4, 1, [0.110, 0.072, 0.893]),
    row("6-disk RAID 5", Some(16), RAID_5, 6, 1, [0.134, 0.054, 0.864]),
];

const fn row(
    name: &'static str,
    unit_kib: Option<u64>,
    level: Level,
    disks: u8,
    volumes: usize,
    measured: [f64; 3],
) -> Configuration {
    let [retrieval, additional, bang] = measured;
    Configuration { name, unit_kib, level, disks, volumes, retrieval, additional, bang }
}

/// Table II: configuration, Bang, thousands of dollars for a gigabyte, Bang for those; and what the gigabyte's price is
/// made of.
#[rustfmt::skip]
const TABLE_2: [(&str, f64, f64, f64, [f64; 2]); 4] = [
    ("3-disk RAID 0+1", 1.152, 3.442, 0.335, [26.733, 7.767]),
    ("6-disk RAID 5", 0.967, 2.065, 0.468, [26.733, 12.945]),
    ("6-disk RAID 0", 1.098, 1.721, 0.638, [26.733, 15.534]),
    ("simple volumes", 1.055, 1.545, 0.683, [24.0, 15.534]),
];

impl Configuration {
    fn title(&self) -> String {
        self.unit_kib.map_or_else(|| self.name.to_owned(), |unit| format!("{}, {unit} KB", self.name))
    }
}

/// The paper's Bang, from the average retrieval time and the additional time per process: the files' mean size over
/// their sum. Times are in seconds, Bang is in the paper's megabytes (1000 KB) a second.
#[must_use]
pub fn bang(retrieval: f64, additional: f64) -> f64 {
    FILE_MB / (retrieval + additional)
}

fn table2(_: &Settings) -> Report {
    let mut report = Report::new("hauser table2", "Speed for the money");
    let columns = ["Bang", "K$ for a GB", "Bang / K$ / GB"];
    let mut table = Table::new("Table II, from Table I and the prices", "configuration", columns);
    for (name, paper_bang, price, worth, [cost, gigabytes]) in TABLE_2 {
        let measured = TABLE_1.iter().find(|row| row.bang == paper_bang).expect("Table II takes its Bang from Table I");
        let found = bang(measured.retrieval, measured.additional);
        let computed = found / (cost / gigabytes);
        let cells = vec![
            Cell::beside(found, paper_bang, 3),
            Cell::beside(cost / gigabytes, price, 3),
            Cell::beside(computed, worth, 3),
        ];
        table.row(name, cells);
        report.given(
            format!("Bang for the money of {name}"),
            format!("{worth:.3}"),
            format!("{computed:.3}"),
            (computed - worth).abs() < 0.001,
        );
    }
    report.tables.push(table);
    report.choice(
        "The paper's 1.545 K$ for a gigabyte of simple volumes needs $24,000 for the hardware; the text says \
         approximately $20,000, which gives 1.287 and 0.820 Bang for it. The table's price is taken.",
    );
    report
}

fn table1(settings: &Settings) -> Report {
    let mut report = Report::new("hauser table1", "Speed of retrieving files, by configuration");
    let mut table = Table::new(
        "Bang, MB/s, from the measured times: 0.1625 MB / (ART + AAT)",
        "configuration",
        ["ART, s", "AAT, s", "Bang"],
    );
    let mut right = 0;
    for row in &TABLE_1 {
        let found = bang(row.retrieval, row.additional);
        right += usize::from((found - row.bang).abs() < 0.001);
        let cells =
            vec![Cell::number(row.retrieval, 3), Cell::number(row.additional, 3), Cell::beside(found, row.bang, 3)];
        table.row(row.title(), cells);
    }
    report.tables.push(table);
    report.given(
        "Bang from the measured times, to three digits",
        "all 14",
        format!("{right} of 14"),
        right == TABLE_1.len(),
    );
    let files = if settings.grid == Grid::Full { 20_000 } else { 2000 };
    match retrievals(Reading::OPENED, files, settings.seed) {
        Ok(found) => compare(&mut report, &found),
        Err(error) => report.miss(format!("the simulation could not be run: {error}")),
    }
    if settings.grid == Grid::Full {
        match sensitivity(settings.seed) {
            Ok(table) => report.tables.push(table),
            Err(error) => report.miss(format!("the simulation could not be run: {error}")),
        }
    }
    conclude(&mut report);
    report
}

/// ART and AAT of each row of Table I, from so many files for each number of processes.
fn retrievals(reading: Reading, files: u64, seed: u64) -> Result<Vec<Retrieval>, mech::Error> {
    mech::run::run_all(&TABLE_1, 0, |row| {
        simulate(row.level, row.disks, row.volumes, row.unit_kib, reading, files, seed)
    })
}

/// What becomes of the ranks when the machine reads files in other ways.
fn sensitivity(seed: u64) -> Result<Table, mech::Error> {
    let title = "Rank correlation of Bang with the paper's, by how files are read";
    let mut table = Table::new(title, "reading", ["all configurations", "without RAID 5"]);
    for reading in Reading::others() {
        let bangs = bangs(&retrievals(reading, 4000, seed)?);
        let cells = [|_: &Configuration| true, |row: &Configuration| row.level != RAID_5];
        let cells = cells.iter().map(|counts| Cell::number(correlation(&bangs, counts), 2)).collect();
        table.row(reading.title(), cells);
    }
    Ok(table)
}

fn bangs(found: &[Retrieval]) -> Vec<f64> {
    found.iter().map(|found| bang(found.alone_s, found.additional_s)).collect()
}

/// Spearman's correlation with Table I, of the configurations that count.
fn correlation(bangs: &[f64], counts: &dyn Fn(&Configuration) -> bool) -> f64 {
    let pairs = TABLE_1.iter().zip(bangs).filter(|(row, _)| counts(row));
    let (theirs, ours): (Vec<f64>, Vec<f64>) = pairs.map(|(row, bang)| (row.bang, *bang)).unzip();
    spearman(&ours, &theirs)
}

fn compare(report: &mut Report, found: &[Retrieval]) {
    let title = format!("Simulated, ST31200W, {}", Reading::OPENED.title());
    let columns = ["ART, s", "AAT, s", "Bang", "rank"];
    let mut table = Table::new(title, "configuration", columns);
    let bangs = bangs(found);
    let ranks = ranks(&bangs);
    for ((row, found), (bang, rank)) in TABLE_1.iter().zip(found).zip(bangs.iter().zip(&ranks)) {
        let place = TABLE_1.iter().position(|other| other.bang == row.bang).map_or(0, |place| place + 1);
        let cells = vec![
            Cell::beside(found.alone_s, row.retrieval, 4),
            Cell::beside(found.additional_s, row.additional, 4),
            Cell::beside(*bang, row.bang, 3),
            Cell::text(format!("{rank} ({place})")),
        ];
        table.row(row.title(), cells);
    }
    report.tables.push(table);
    report.choice(
        "How the machine reads a file is not in the paper, but that the time to open it counts. It is taken to be what \
         its file system does: a block of 8 KB for the inode, anywhere in the volume, then clusters of 7 blocks, each \
         when the one before is there. Beyond the twelve direct blocks, 96 KB, comes an indirect block and another \
         cylinder group (McKusick et al. 1984, section 3.3), which eight of the ten sizes reach. The last table has \
         other ways.",
    );
    check_trends(report, found, &bangs);
    let points = TABLE_1.iter().zip(&bangs).map(|(row, bang)| (row.bang, *bang)).collect();
    let series =
        vec![Series::points("configurations", points), Series::dashed("the same", vec![(0.85, 0.85), (1.2, 1.2)])];
    let axes = (Axis::linear("Bang in the paper, MB/s"), Axis::linear("Bang simulated, MB/s"));
    report.figures.push(Figure::new("hauser-table1", "Bang, measured and simulated", axes.0, axes.1, series));
}

/// What the paper says of its times.
fn check_trends(report: &mut Report, found: &[Retrieval], bangs: &[f64]) {
    let of = |name: &str, unit: u64| {
        let place =
            TABLE_1.iter().position(|row| row.name == name && row.unit_kib == Some(unit)).expect("a row of Table I");
        found[place]
    };
    let mut trend = |what: &str, wanted: &str, pairs: &[(Retrieval, Retrieval)], value: fn(&Retrieval) -> f64| {
        let less = pairs.iter().filter(|(less, more)| value(less) < value(more)).count();
        report.check(what, wanted, format!("{less} of {}", pairs.len()), less == pairs.len());
    };
    let alone: fn(&Retrieval) -> f64 = |found| found.alone_s;
    let additional: fn(&Retrieval) -> f64 = |found| found.additional_s;
    let striped =
        ["6-disk RAID 0", "5-disk RAID 0", "4-disk RAID 0", "two 3-disk RAID 0", "3-disk RAID 0+1 (mirrored)"];
    let narrow: Vec<_> = striped.iter().map(|name| (of(name, 16), of(name, 160))).collect();
    let wide: Vec<_> = narrow.iter().map(|(narrow, wide)| (*wide, *narrow)).collect();
    let raid5 = (of("6-disk RAID 5", 160), of("6-disk RAID 5", 16));
    trend("narrow units lower ART", "everywhere but on RAID 5", &narrow, alone);
    trend("on RAID 5 wide units lower ART", "0.127 and 0.134 s", &[raid5], alone);
    trend("wide units lower AAT", "everywhere", &[wide, vec![raid5]].concat(), additional);
    let [four, six] = [4, 6].map(|disks| [16, 160].map(|unit| of(&format!("{disks}-disk RAID 0"), unit)));
    trend(
        "more disks lower AAT",
        "RAID 0 of 6 against 4, both units",
        &[(six[0], four[0]), (six[1], four[1])],
        additional,
    );
    let longer = [0, 1].map(|unit| 1e3 * (six[unit].alone_s - four[unit].alone_s));
    report.check(
        "fewer disks lower ART",
        "6 disks against 4: +3 ms (16 KB), +1 ms (160 KB)",
        format!("{:+.1} ms and {:+.1} ms", longer[0], longer[1]),
        longer.iter().all(|longer| *longer > 0.0),
    );
    let all = correlation(bangs, &|_| true);
    let others = correlation(bangs, &|row| row.level != RAID_5);
    report.check("rank of the configurations by Bang (Spearman)", "0.8 or more", format!("{all:.2}"), all >= 0.8);
    report.check("the same without RAID 5", "0.8 or more", format!("{others:.2}"), others >= 0.8);
}

/// Says why what does not hold may not.
fn conclude(report: &mut Report) {
    let failed: Vec<String> = report.failed().map(|check| check.what.clone()).collect();
    report.method(
        "Only disks take time. Each process reads whole files one after the other, placed anywhere in a volume that is \
         full; ART is the mean with one process, AAT the slope of the mean over 1 to 12 processes, by linear \
         regression. Files are 50 to 275 KB in ten sizes, equally often.",
    );
    if !failed.is_empty() {
        report.miss(format!(
            "{}. RAID 5 reads slower than RAID 0 in the paper, for no reason that its disks give: nothing but data is \
             read. It was done by the machine's volume manager. Measured times of one process are twice a disk's: \
             opening the file, the file system's blocks, the bus and the array's controller take the rest, and none of \
             them is known. They are the same for all configurations of a disk-only model.",
            failed.join("; ")
        ));
    }
}

/// Places by falling value, from 1.
fn ranks(values: &[f64]) -> Vec<usize> {
    values.iter().map(|value| 1 + values.iter().filter(|other| *other > value).count()).collect()
}

/// Spearman's rank correlation of lists without equal values.
fn spearman(left: &[f64], right: &[f64]) -> f64 {
    let n = left.len() as f64;
    let squares: f64 = ranks(left).iter().zip(ranks(right)).map(|(l, r)| (*l as f64 - r as f64).powi(2)).sum();
    1.0 - 6.0 * squares / (n * (n * n - 1.0))
}
