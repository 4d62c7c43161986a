//! Park & Choe, Striping in Disk Array RM2 (1996): tables 2 to 4 and figures 11 to 13 and 15.

mod grid;
mod raid6;
#[cfg(test)]
mod tests;

use uraid_layout::plan::{Extent, Plan, Planner, View};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Geometry, Lba, Level, MemberSet, Placement, Rotation, Sectors, Spec};

use super::report::{Cell, Report, Table};
use super::{Item, Paper, Settings};
use crate::figure::{Axis, Figure, Series};
use crate::mech::WriteRule;
use grid::{
    Concurrency, Found, READS, SEEDS, Subject, best, greatest, in_turn, large_writes, large_writes_in_turn, scores,
    search,
};

/// What the paper's reproduction has.
pub(super) const PAPER: Paper = Paper {
    name: "rm2",
    title: "Park & Choe, Striping in Disk Array RM2 (1996)",
    items: &[
        Item { name: "table2", title: "theoretical throughput in that of RAID 0", run: table2 },
        Item { name: "table3", title: "best striping units by share of reads", run: table3 },
        Item { name: "table4", title: "best striping units for large writes, by M", run: table4 },
        Item { name: "fig11", title: "throughput by striping unit, RM2", run: fig11 },
        Item { name: "fig12", title: "throughput by striping unit, RAID 5", run: fig12 },
        Item { name: "fig13", title: "throughput by striping unit, RAID 0", run: fig13 },
        Item { name: "fig15", title: "throughput of large writes by striping unit, RM2 of 9 to 24 disks", run: fig15 },
        Item { name: "raid6", title: "RM2 beside RAID 6 of equal capacity", run: raid6::raid6 },
    ],
};

const RAID_5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

const fn rm2_level(height: u8) -> Level {
    Level::Rm2 { height, placement: Placement::Adjacent }
}

/// Six data disks' worth of capacity, as the paper has it, and DASim's rule for writes as far as its account goes.
const RM2: Subject =
    Subject { name: "RM2, read-modify-write", level: rm2_level(3), disks: 9, write_rule: WriteRule::ReadModifyWrite };
const RAID5: Subject = Subject { name: "RAID 5", level: RAID_5, disks: 7, write_rule: WriteRule::FewestOperations };
const RAID0: Subject =
    Subject { name: "RAID 0", level: Level::Raid0, disks: 6, write_rule: WriteRule::FewestOperations };

/// Other choices where the paper leaves them open.
const OTHERS: [Subject; 3] = [
    Subject { name: "RM2, all that is written is read", write_rule: WriteRule::ReadAllThatIsWritten, ..RM2 },
    Subject { name: "RM2, fewest operations", write_rule: WriteRule::FewestOperations, ..RM2 },
    Subject {
        name: "RM2, original placement",
        level: Level::Rm2 { height: 3, placement: Placement::Partitioned },
        ..RM2
    },
];

/// Table 3's cells for RM2, in KB, for each share of reads: the nearest power of two.
const TABLE_3: [f64; 4] = [64.0, 8.0, 8.0, 8.0];

/// Table 4: disks and M; a track of 24 KB then holds M units.
const TABLE_4: [(u8, u8); 6] = [(9, 3), (12, 4), (15, 5), (18, 6), (21, 7), (24, 8)];
const TRACK_KIB: f64 = 24.0;

fn table2(_: &Settings) -> Report {
    let mut report = Report::new("rm2 table2", "Theoretical throughput in that of RAID 0");
    let columns = ["small read", "small write", "large read", "large write", "storage efficiency"];
    let mut table = Table::new("Table 2 at N and M, by counting the planner's disk operations", "array", columns);
    for (name, level, members) in
        [("RAID 5, N = 7", RAID_5, 7), ("RM2, N = 9, M = 3", rm2_level(3), 9), ("RM2, N = 12, M = 4", rm2_level(4), 12)]
    {
        let n = f64::from(members);
        let (small, efficiency) = match level {
            Level::Rm2 { height, .. } => (1.0 / 6.0, f64::from(height - 1) / f64::from(height)),
            _ => (1.0 / 4.0, (n - 1.0) / n),
        };
        let paper = [1.0, small, 1.0, efficiency, efficiency];
        let found = counted(level, members);
        for ((column, found), paper) in columns.iter().zip(found).zip(paper) {
            report.given(
                format!("{name}: {column}"),
                format!("{paper:.3}"),
                format!("{found:.3}"),
                (found - paper).abs() < 1e-9,
            );
        }
        table.row(name, found.iter().zip(paper).map(|(found, paper)| Cell::beside(*found, paper, 3)).collect());
    }
    report.tables.push(table);
    report.method(
        "A small request is one unit, a large one a whole parity stripe; throughput is data units for each \
        disk operation, of which RAID 0 does one.",
    );
    report
}

/// Table 2's columns: data units for each operation of the planner's.
fn counted(level: Level, members: u8) -> [f64; 5] {
    let spec = Spec { level, members, chunk: Bytes(4 << 10), member_size: Sectors(1 << 12) };
    let geometry = Geometry::new(spec).expect("the paper's arrays can be had");
    let repair = Repair::new(&geometry, MemberSet::EMPTY).expect("nothing is missing");
    let view = View::new(&geometry, &repair);
    let (mut planner, mut plan) = (Planner::new(), Plan::default());
    let unit = geometry.chunk();
    let units = |len: Sectors| len.0 as f64 / unit.0 as f64;
    // Large requests are counted by the units that they move: neighbours on a disk go in one operation.
    let moved = |plan: &Plan| units(Sectors(plan.reads().iter().chain(plan.writes()).map(|io| io.len.0).sum()));
    let mut ratio = |len: Sectors, is_write: bool| {
        let extent = [Extent::request(Lba(0), len)];
        let planned = if is_write {
            planner.write(&mut plan, &view, &extent).map(drop)
        } else {
            planner.read(&mut plan, &view, &extent).map(drop)
        };
        planned.expect("the request lies within the array");
        units(len) / moved(&plan)
    };
    let large = geometry.stripe_sectors();
    let efficiency = geometry.capacity().0 as f64
        / (f64::from(members) * (geometry.stripes().0 * geometry.rows() as u64 * unit.0) as f64);
    [ratio(unit, false), ratio(unit, true), ratio(large, false), ratio(large, true), efficiency]
}

/// Runs a search, or says in the report why not.
fn searched(report: &mut Report, subject: &Subject, settings: &Settings) -> Option<Found> {
    match search(subject, &READS, settings) {
        Ok(found) => Some(found),
        Err(error) => {
            report.miss(format!("{} could not be simulated: {error}", subject.name));
            None
        }
    }
}

fn table3(settings: &Settings) -> Report {
    let mut report = Report::new("rm2 table3", "Best striping units by share of reads");
    let columns = READS.map(|reads| format!("{:.0} % reads", reads * 100.0));
    let mut powers = Table::new(
        "Best power of two, KB (Table 3; the paper's cells of the others are lost)",
        "array",
        columns.clone(),
    );
    let mut exact = Table::new(
        "Best unit of the grid, KB, and the least share of the greatest throughput that it gives",
        "array",
        columns.clone(),
    );
    let mut sets = Table::new(
        "RM2, read-modify-write: best power of two, KB, by the numbers of processes that count",
        "processes",
        columns,
    );
    for subject in [&RM2, &RAID5, &RAID0].into_iter().chain(&OTHERS) {
        let Some(found) = searched(&mut report, subject, settings) else { continue };
        let scored: Vec<_> = (0..READS.len()).map(|reads| scores(&found, reads, Concurrency::ALL)).collect();
        let cell = |(scores, paper): (&Vec<(u64, f64)>, f64)| {
            let power = best(scores, true).0 as f64;
            if subject.name == RM2.name { Cell::beside(power, paper, 0) } else { Cell::number(power, 0) }
        };
        powers.row(subject.name, scored.iter().zip(TABLE_3).map(cell).collect());
        let shown = |(unit, share): (u64, f64)| Cell::text(format!("{unit}, {share:.0} %"));
        exact.row(subject.name, scored.iter().map(|scores| shown(best(scores, false))).collect());
        if subject.name == RM2.name {
            check_best(&mut report, &scored);
            for set in Concurrency::SETS {
                let cells =
                    (0..READS.len()).map(|reads| Cell::number(best(&scores(&found, reads, set), true).0 as f64, 0));
                sets.row(set.title(), cells.collect());
            }
        }
        if subject.name == RAID0.name {
            let (all, none) = (best(&scored[0], true).0, best(&scored[3], true).0);
            // On RAID 0 a write takes the disks as long as a read.
            report.given(
                "the mix does not move RAID 0's best unit",
                "equal",
                format!("{all} and {none} KB"),
                all == none,
            );
        }
    }
    in_turn_powers(&mut report, &mut powers, settings);
    report.tables.extend([powers, exact, sets]);
    choices(&mut report);
    misses(&mut report);
    report
}

fn check_best(report: &mut Report, scored: &[Vec<(u64, f64)>]) {
    for ((reads, paper), scores) in READS.iter().zip(TABLE_3).zip(scored) {
        let (unit, share) = best(scores, true);
        let of_paper = scores.iter().find(|(unit, _)| *unit as f64 == paper).map_or(0.0, |(_, share)| *share);
        report.check(
            format!("RM2's best power of two, {:.0} % reads", reads * 100.0),
            format!("{paper} KB"),
            format!("{unit} KB ({share:.0} %; {paper} KB has {of_paper:.0} %)"),
            unit as f64 == paper,
        );
    }
}

fn choices(report: &mut Report) {
    report.method(
        "IBM 0661 disks with six disks' worth of data: RAID 0 of 6, RAID 5 of 7, RM2 of 9 with M = 3; exp4KB, exp16KB, \
         norm400KB and norm1.5MB, uniform. A unit's score is its least share of a workload's greatest throughput over \
         all units.",
    );
    report.choice(
        "The numbers of processes are not in the text: 1, 2, 4, 8, 16 and 32 count here; the last table of \
        table3 has other sets.",
    );
    report.choice(
        "DASim's rule for writes is not in the text. Parity groups that are written in part are read, modified and \
         written here; other rows have a reading of all that is written of a partial parity stripe, which gives the \
         text's 50 operations for 16 of 18 units, and the engine's rule of fewest operations.",
    );
}

fn misses(report: &mut Report) {
    let failed: Vec<String> = report.failed().map(|check| check.what.clone()).collect();
    if !failed.is_empty() {
        report.miss(format!(
            "{}. With reads and writes mixed, requests of all sizes share the disks, and the best unit moves evenly \
             from that for reads to that for writes; in the paper it jumps to 8 KB as soon as there are writes. Its \
             account rests on rotations that large read-modify-writes lose, which depends on how DASim orders the \
             reads and writes of a request's parity stripes. With one process, whose writes read all that they write \
             and take one parity stripe after the other, mixes have the paper's 8 KB; that reading stands beside.",
            failed.join("; ")
        ));
    }
}

fn figure_report(name: &str, subject: &Subject, settings: &Settings) -> Report {
    let mut report = Report::new(&format!("rm2 {name}"), &format!("Throughput by striping unit, {}", subject.name));
    let Some(found) = searched(&mut report, subject, settings) else { return report };
    for (index, reads) in READS.iter().enumerate() {
        let title = format!("{}: share of the greatest throughput, {:.0} % reads", subject.name, reads * 100.0);
        let least = scores(&found, index, Concurrency::ALL);
        let mut table =
            Table::new(title.clone(), "workload, processes", least.iter().map(|(unit, _)| format!("{unit} KB")));
        let mut series = Vec::new();
        for (name, processes, shares) in found.curves(index) {
            let points: Vec<(f64, f64)> =
                least.iter().map(|(unit, _)| *unit as f64).zip(shares.iter().copied()).collect();
            table.row(format!("{name}, {processes}"), shares.iter().map(|share| Cell::number(*share, 0)).collect());
            if processes == 4 || processes == 16 {
                series.push(Series::line(format!("{name}, {processes} processes"), points));
            }
        }
        table.row("least", least.iter().map(|(_, share)| Cell::number(*share, 0)).collect());
        series.push(Series::dashed(
            "least of all workloads",
            least.iter().map(|(unit, share)| (*unit as f64, *share)).collect(),
        ));
        if subject.level == RM2.level {
            let of_paper = least.iter().find(|(unit, _)| *unit as f64 == TABLE_3[index]);
            let points = of_paper.map(|(unit, share)| (*unit as f64, *share)).into_iter().collect();
            series.push(Series::points("the paper's best unit, table 3", points));
        }
        let axes = (Axis::log2("striping unit, KB"), Axis::linear("% of the greatest throughput").over(0.0, 100.0));
        report.figures.push(Figure::new(&format!("rm2-{name}-{:.0}", reads * 100.0), &title, axes.0, axes.1, series));
        report.tables.push(table);
    }
    choices(&mut report);
    report
}

fn fig11(settings: &Settings) -> Report {
    figure_report("fig11", &RM2, settings)
}

fn fig12(settings: &Settings) -> Report {
    figure_report("fig12", &RAID5, settings)
}

fn fig13(settings: &Settings) -> Report {
    figure_report("fig13", &RAID0, settings)
}

/// For each number of disks: its throughput by unit in KB, for each disk.
type LargeWrites = Vec<Vec<(f64, f64)>>;

fn large(report: &mut Report, rule: WriteRule, settings: &Settings) -> Option<LargeWrites> {
    match large_writes(&TABLE_4, rule, settings) {
        Ok(found) => Some(found),
        Err(error) => {
            report.miss(format!("large writes could not be simulated: {error}"));
            None
        }
    }
}

fn table4(settings: &Settings) -> Report {
    let mut report = Report::new("rm2 table4", "Best striping units for large writes, by M");
    let columns = TABLE_4.map(|(disks, height)| format!("N={disks}, M={height}"));
    let mut table = Table::new("Unit, KB", "", columns);
    let rule = TABLE_4.map(|(_, height)| TRACK_KIB / f64::from(height));
    let paper = [8.0, 6.0, 4.8, 4.0, 3.43, 3.0];
    table.row(
        "a track of 24 KB / M",
        rule.iter().zip(paper).map(|(rule, paper)| Cell::beside(*rule, paper, 2)).collect(),
    );
    let right = rule.iter().zip(paper).filter(|(rule, paper)| (*rule - paper).abs() < 0.005).count();
    report.given("Table 4's units from M", "all six", format!("{right} of 6"), right == 6);
    let rules = [
        ("simulated, read-modify-write", WriteRule::ReadModifyWrite),
        ("simulated, all that is written is read", WriteRule::ReadAllThatIsWritten),
        ("simulated, fewest operations", WriteRule::FewestOperations),
    ];
    for (name, rule) in rules {
        let Some(found) = large(&mut report, rule, settings) else { continue };
        let bests: Vec<f64> = found.iter().map(|curve| greatest(curve)).collect();
        table.row(name, bests.iter().zip(paper).map(|(best, paper)| Cell::beside(*best, paper, 2)).collect());
        if rule == WriteRule::ReadModifyWrite {
            let shares = found.iter().zip(paper).map(|(curve, paper)| {
                let top = curve.iter().map(|point| point.1).fold(0.0, f64::max);
                let nearest = curve.iter().min_by(|a, b| (a.0 - paper).abs().total_cmp(&(b.0 - paper).abs()));
                nearest.map_or(0.0, |point| 100.0 * point.1 / top)
            });
            let shares: Vec<f64> = shares.collect();
            let (low, high) =
                shares.iter().fold((100.0_f64, 0.0_f64), |(low, high), share| (low.min(*share), high.max(*share)));
            let near = bests.iter().zip(paper).all(|(best, paper)| (best - paper).abs() <= 0.5);
            report.check(
                "they are the best in simulation",
                "N = 9, 12, 18, 24 and nearly 15, 21",
                format!("they give {low:.0} to {high:.0} % of the best"),
                near,
            );
        }
    }
    in_turn_row(&mut report, &mut table, &paper, settings);
    report.tables.push(table);
    if report.failed().next().is_some() {
        report.miss(
            "With several processes and whole stripes that are not read, small units are best for large writes alone: \
             requests of 400 KB then hold more whole parity stripes, of which nothing has to be read. The paper's \
             optimum needs each parity stripe to be read and written on its own, with the rotation between that a \
             track of M units saves. That reading meets it: see the last row. DASim's order of operations is not in \
             the text.",
        );
    }
    report.method(
        "Writes of norm400KB, 8 processes; units in steps of half a kilobyte about the rule's, (18, 6) and \
        (24, 8) with the search seeds.",
    );
    report
}

/// The reading that Table 4's optimum needs: one process, writes that take one parity stripe after the other, and read
/// all that they write, whole stripes too.
const IN_TURN: &str = "one process, one parity stripe after the other, everything read";

/// Table 4's row of that reading, with several seeds.
fn in_turn_row(report: &mut Report, table: &mut Table, paper: &[f64; 6], settings: &Settings) {
    let found: Result<Vec<Vec<f64>>, _> = SEEDS
        .iter()
        .map(|more| {
            let curves = large_writes_in_turn(&TABLE_4, &Settings { seed: settings.seed + more, ..*settings })?;
            Ok(curves.iter().map(|curve| greatest(curve)).collect())
        })
        .collect::<Result<_, crate::mech::Error>>();
    let by_seed = match found {
        Ok(found) => found,
        Err(error) => return report.miss(format!("{IN_TURN} could not be simulated: {error}")),
    };
    let of_array = |array: usize| by_seed.iter().map(move |bests| bests[array]);
    let cell = |array: usize| {
        let (low, high) =
            of_array(array).fold((f64::MAX, 0.0_f64), |(low, high), best| (low.min(best), high.max(best)));
        let range = if low < high { format!("{low} to {high}") } else { low.to_string() };
        Cell::text(format!("{range} ({})", paper[array]))
    };
    table.row(format!("simulated, {IN_TURN}; {} seeds", SEEDS.len()), (0..paper.len()).map(cell).collect());
    let is_near = |array: usize| of_array(array).all(|best| (best - paper[array]).abs() <= 1.0);
    let near = (0..paper.len()).filter(|&array| is_near(array)).count();
    report.check(
        format!("they are the best in simulation with {IN_TURN}"),
        "within 1 KB, all six with every seed",
        format!("{near} of 6"),
        near == 6,
    );
}

/// Table 3's row of the same reading.
fn in_turn_powers(report: &mut Report, powers: &mut Table, settings: &Settings) {
    match in_turn(&RM2, &READS, settings) {
        Ok(found) => {
            let power = |reads| best(&scores(&found, reads, Concurrency::ONE), true).0 as f64;
            let cells = (0..READS.len()).map(|reads| Cell::beside(power(reads), TABLE_3[reads], 0));
            powers.row(format!("RM2, {IN_TURN}"), cells.collect());
            let mixes: Vec<f64> = (1..READS.len()).map(power).collect();
            report.check(
                format!("with writes RM2's best power of two is 8 KB, {IN_TURN}"),
                "8, 8 and 8 KB",
                format!("{mixes:?} KB"),
                mixes.iter().all(|unit| *unit == 8.0),
            );
        }
        Err(error) => report.miss(format!("{IN_TURN} could not be simulated: {error}")),
    }
}

fn fig15(settings: &Settings) -> Report {
    let mut report = Report::new("rm2 fig15", "Throughput of large writes by striping unit, for each disk");
    let Some(found) = large(&mut report, RM2.write_rule, settings) else { return report };
    let units: Vec<String> = found[0].iter().map(|(unit, _)| format!("{unit} KB")).collect();
    let mut table = Table::new("Throughput for each disk, KB/s", "disks, M", units);
    let mut series = Vec::new();
    for ((disks, height), curve) in TABLE_4.iter().zip(&found) {
        table.row(format!("{disks}, {height}"), curve.iter().map(|point| Cell::number(point.1, 0)).collect());
        series.push(Series::line(format!("N = {disks}, M = {height}"), curve.clone()));
    }
    let best = TABLE_4.iter().zip(&found).filter_map(|((_, height), curve)| {
        let paper = TRACK_KIB / f64::from(*height);
        curve.iter().min_by(|a, b| (a.0 - paper).abs().total_cmp(&(b.0 - paper).abs())).copied()
    });
    series.push(Series::points("the paper's best units, table 4", best.collect()));
    report.tables.push(table);
    let axes = (Axis::log2("striping unit, KB"), Axis::linear("KB/s for each disk"));
    report.figures.push(Figure::new("rm2-fig15", "RM2: large writes by striping unit", axes.0, axes.1, series));
    report.method("Writes of norm400KB, 8 processes, read-modify-write; see table4 for what other rules change.");
    report
}
