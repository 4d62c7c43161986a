//! Salem & Garcia-Molina, Disk Striping (1986): figures 4a to 4d, 5a, 5b and 6, and every sentence about them that can
//! be checked.

mod model;
#[cfg(test)]
mod tests;

use model::{Bound, Drive, Enhancements, RA80, RA81, RP06, Service, Task, effectiveness};

use uraid_layout::Bytes;

use super::report::{Cell, Report, Table};
use super::{Item, Paper, Settings};
use crate::figure::{Axis, Figure, Series};

/// What the paper's reproduction has.
pub(super) const PAPER: Paper = Paper {
    name: "salem",
    title: "Salem & Garcia-Molina, Disk Striping (1986)",
    items: &[
        Item { name: "fig4a", title: "effectiveness of striping by block size", run: fig4a },
        Item { name: "fig4b", title: "what a 16 KB request's time is made of", run: fig4b },
        Item { name: "fig4c", title: "effectiveness with enhancements, 4 KB", run: fig4c },
        Item { name: "fig4d", title: "effectiveness with other drives, 32 KB", run: fig4d },
        Item { name: "fig5a", title: "processing a file, by buffer size", run: fig5a },
        Item { name: "fig5b", title: "processing a file with enhancements, 32 KB", run: fig5b },
        Item { name: "fig6", title: "processing a file in five years' time", run: fig6 },
    ],
};

/// The most disks that the paper's figures go to.
const DISKS: u32 = 10;

/// Table 5's file; the other size that the paper's text speaks of.
const FILE: Bytes = Bytes(100_000_000);
const LARGER_FILE: Bytes = Bytes(200_000_000);

const PLAIN: Enhancements = Enhancements { immediate_reading: false, matched_disks: false, ordered_blocks: false };

/// None, then each of the three.
const ENHANCED: [(&str, Enhancements); 4] = [
    ("none", PLAIN),
    ("immediate reading", Enhancements { immediate_reading: true, ..PLAIN }),
    ("matched disks", Enhancements { matched_disks: true, ..PLAIN }),
    ("ordered blocks", Enhancements { ordered_blocks: true, ..PLAIN }),
];

/// A value for 1 to [`DISKS`] disks.
type Curve = Vec<f64>;

/// How much data there is, by the drive.
type Space = fn(&Drive) -> Bytes;

fn kb(kilobytes: u64) -> Bytes {
    Bytes(kilobytes << 10)
}

/// The effectiveness for each number of disks, from what it takes with that many.
fn effects(takes: impl Fn(u32) -> f64) -> Curve {
    (1..=DISKS).map(|disks| effectiveness(takes(1), takes(disks))).collect()
}

/// The effectiveness of striping single requests.
fn service_effects(drive: &Drive, block: Bytes, space: Bytes, with: Enhancements) -> Curve {
    effects(|disks| drive.service(block, disks, space, with).total_ms())
}

/// The effectiveness of striping the file that a task processes.
fn task_effects(task: &Task, with: Enhancements) -> Curve {
    effects(|disks| RA81.task(task, disks, with).0)
}

/// Table 5's task with another buffer.
fn present_day(file: Bytes, buffer: Bytes) -> Task {
    Task { file, buffer, ns_per_byte: 1000.0 }
}

/// What is left with the most disks.
fn at_most(curve: &[f64]) -> f64 {
    *curve.last().expect("a curve has a value for each number of disks")
}

/// Whether each step of a curve gains less than the one before.
fn flattens(curve: &[f64]) -> bool {
    let steps: Vec<f64> = curve.windows(2).map(|pair| pair[1] - pair[0]).collect();
    steps.windows(2).all(|pair| pair[1] <= pair[0] + 1e-9)
}

fn table(title: &str, rows_are: &str, curves: &[(String, Curve)]) -> Table {
    let mut table = Table::new(title, rows_are, (1..=DISKS).map(|disks| format!("n={disks}")));
    for (name, curve) in curves {
        table.row(name, curve.iter().map(|value| Cell::number(*value, 1)).collect());
    }
    table
}

fn figure(name: &str, title: &str, y: Axis, curves: &[(String, Curve)]) -> Figure {
    let points = |curve: &Curve| (1..=DISKS).map(f64::from).zip(curve.iter().copied()).collect();
    let series = curves.iter().map(|(name, curve)| Series::line(name, points(curve))).collect();
    Figure::new(&format!("salem-{name}"), title, Axis::linear("number of disks").over(1.0, f64::from(DISKS)), y, series)
}

/// A report whose table and figure both are these curves of effectiveness.
fn effectiveness_report(what: &str, title: &str, rows_are: &str, curves: &[(String, Curve)]) -> Report {
    let mut report = Report::new(&format!("salem {what}"), title);
    report.tables.push(table(
        "Effectiveness, %: by how much less time a request or task takes than with one disk",
        rows_are,
        curves,
    ));
    report.figures.push(figure(what, title, Axis::linear("effectiveness, %"), curves));
    report
}

/// Draws a number of the paper's text into a report's figure.
fn draw_papers(report: &mut Report, what: &str, points: Vec<(f64, f64)>) {
    if let Some(figure) = report.figures.last_mut() {
        figure.series.push(Series::points(format!("the paper, {what}"), points));
    }
}

fn note_space(report: &mut Report) {
    report.choice(format!(
        "The size of the task data space of section 4 is not in the text. A whole drive's worth ({} MB on the RA81) \
         makes its numbers come out; with section 5's 10^8 bytes they do not: see the second table. Data of more than \
         one drive's capacity makes that drive's seeks no longer than its longest.",
        RA81.capacity().0 / 1_000_000
    ));
}

fn fig4a(_: &Settings) -> Report {
    let curves = |space: Bytes| -> Vec<(String, Curve)> {
        let blocks = (0..=8).map(|power| 1_u64 << power);
        blocks.map(|block| (format!("{block} KB"), service_effects(&RA81, kb(block), space, PLAIN))).collect()
    };
    let whole = curves(RA81.capacity());
    let mut report = effectiveness_report("fig4a", "Effectiveness of striping by block size, RA81", "block", &whole);
    draw_papers(&mut report, "1 KB", vec![(f64::from(DISKS), 13.0)]);
    report.tables.push(table("The same with a data space of 10^8 bytes", "block", &curves(FILE)));
    let ends: Vec<f64> = whole.iter().map(|(_, curve)| at_most(curve)).collect();
    let shown = |value: f64| format!("{value:+.1} %");
    report.check(
        "larger blocks are more effective, n = 10",
        "each more than the one before",
        format!("{} at 1 KB to {} at 256 KB", shown(ends[0]), shown(ends[8])),
        ends.is_sorted_by(|less, more| less < more),
    );
    report.check("1 KB blocks gain, too, n = 10", "+13 %", shown(ends[0]), (ends[0] - 13.0).abs() < 0.5);
    let bent = whole.iter().filter(|(_, curve)| flattens(curve)).count();
    report.check("the curves flatten", "every one", format!("{bent} of {}", whole.len()), bent == whole.len());
    note_space(&mut report);
    report
}

fn fig4b(_: &Settings) -> Report {
    let services: Vec<Service> = (1..=DISKS).map(|disks| RA81.service(kb(16), disks, RA81.capacity(), PLAIN)).collect();
    let part = |name: &str, of: fn(&Service) -> f64| (name.to_owned(), services.iter().map(of).collect::<Curve>());
    let curves = [
        part("total", Service::total_ms),
        part("seek and rotation", |service| service.seek_ms + service.rotation_ms),
        part("seek", |service| service.seek_ms),
        part("rotation", |service| service.rotation_ms),
        part("transfer", |service| service.transfer_ms),
        part("processor", |service| service.cpu_ms),
    ];
    let title = "What the time of a 16 KB request is made of, RA81";
    let mut report = Report::new("salem fig4b", title);
    report.tables.push(table("Service time, ms", "part", &curves));
    report.figures.push(figure("fig4b", title, Axis::linear("ms"), &curves));
    let saved = |curve: &Curve| curve[0] - at_most(curve);
    let (positioning, transfer) = (&curves[1].1, &curves[4].1);
    let total = saved(&curves[0].1);
    report.check(
        "most of what is saved is transfer time, n = 10",
        "more than half",
        format!("{:.1} of {total:.1} ms", saved(transfer)),
        saved(transfer) > total / 2.0,
    );
    report.check(
        "seek and rotation shrink, too, n = 1 to 10",
        "29.7 to 25.3 ms",
        format!("{:.1} to {:.1} ms", positioning[0], at_most(positioning)),
        (positioning[0] - 29.7).abs() < 0.05 && (at_most(positioning) - 25.3).abs() < 0.05,
    );
    note_space(&mut report);
    report.notes[0].text = report.notes[0].text.replace(": see the second table", " (fig4a shows both)");
    report
}

fn enhanced(effects: impl Fn(Enhancements) -> Curve) -> Vec<(String, Curve)> {
    ENHANCED.iter().map(|(name, with)| ((*name).to_owned(), effects(*with))).collect()
}

fn fig4c(_: &Settings) -> Report {
    let curves = |space| enhanced(|with| service_effects(&RA81, kb(4), space, with));
    let whole = curves(RA81.capacity());
    let mut report =
        effectiveness_report("fig4c", "Effectiveness of striping with enhancements, 4 KB, RA81", "enhancement", &whole);
    report.tables.push(table("The same with a data space of 10^8 bytes", "enhancement", &curves(FILE)));
    let times = enhanced(|with| {
        (1..=DISKS).map(|disks| RA81.service(kb(4), disks, RA81.capacity(), with).total_ms()).collect()
    });
    report.tables.push(table("Service time, ms", "enhancement", &times));
    let [none, immediate, ..] = [0, 1].map(|index| at_most(&whole[index].1));
    report.check(
        "immediate reading makes striping slightly less effective, n = 10",
        "less, by little",
        format!("{immediate:.1} % and {none:.1} % without"),
        immediate < none && none - immediate < 2.0,
    );
    let is_no_slower = times[0].1.iter().zip(&times[1].1).all(|(plain, immediate)| immediate <= plain);
    report.check(
        "the service time is not longer with it",
        "for no number of disks",
        format!("{:.1} ms and {:.1} ms without, n = 10", at_most(&times[1].1), at_most(&times[0].1)),
        is_no_slower,
    );
    report.method(
        "With ordered blocks striping has no long seeks left to shorten, and every disk's rotation to wait for: its \
         effectiveness is below zero though each request takes less time.",
    );
    note_space(&mut report);
    report
}

fn fig4d(_: &Settings) -> Report {
    let drives = [RA81, RA80, RP06];
    let curves = |space: Space| -> Vec<(String, Curve)> {
        drives
            .iter()
            .map(|drive| (drive.name.to_owned(), service_effects(drive, kb(32), space(drive), PLAIN)))
            .collect()
    };
    let own = curves(Drive::capacity);
    let mut report = effectiveness_report("fig4d", "Effectiveness of striping with other drives, 32 KB", "drive", &own);
    let others: [(&str, Space); 2] =
        [("10^8 bytes", |_| FILE), ("an RA81's capacity for all drives", |_| RA81.capacity())];
    for (space, of) in others {
        report.tables.push(table(&format!("The same with a data space of {space}"), "drive", &curves(of)));
    }
    for other in &own[1..] {
        let above = (1..DISKS as usize).filter(|&index| other.1[index] > own[0].1[index]).count();
        report.check(
            format!("striping is more effective with the {} than with the RA81", other.0),
            "for every n above 1",
            format!("for {above} of {}; {:.1} % and {:.1} %, n = 10", DISKS - 1, at_most(&other.1), at_most(&own[0].1)),
            above == DISKS as usize - 1,
        );
    }
    report.choice(
        "The data space is each drive's own capacity; so it holds with 10^8 bytes. An RA81's capacity is more than one \
         RA80 or RP06 can hold, and the first disks then save nothing of the seeks.",
    );
    report
}

fn fig5a(_: &Settings) -> Report {
    let buffers = [8, 32, 64, 128];
    let curves = |file| -> Vec<(String, Curve)> {
        buffers
            .iter()
            .map(|&buffer| (format!("{buffer} KB"), task_effects(&present_day(file, kb(buffer)), PLAIN)))
            .collect()
    };
    let small = curves(FILE);
    let mut report = effectiveness_report("fig5a", "Processing a file of 10^8 bytes, by buffer size", "buffer", &small);
    report.tables.push(table("The same with a file of 2*10^8 bytes", "buffer", &curves(LARGER_FILE)));
    report.check(
        "with 8 KB striping is not worthwhile",
        "next to nothing, or less",
        format!("{:+.1} %, n = 10", at_most(&small[0].1)),
        small[0].1.iter().all(|effect| *effect < 2.0),
    );
    report.check(
        "with 32 KB it is",
        "+10 % or more",
        format!("{:+.1} %, n = 10", at_most(&small[1].1)),
        at_most(&small[1].1) > 10.0,
    );
    let first = |file, buffer| {
        let task = present_day(file, kb(buffer));
        (1..=DISKS).find(|&disks| RA81.task(&task, disks, PLAIN).1 == Bound::Processor)
    };
    let shown = |disks: Option<u32>| disks.map_or("never".to_owned(), |disks| format!("from n = {disks}"));
    let (now, larger) = (first(FILE, 64), first(LARGER_FILE, 64));
    report.check(
        "64 KB: the disks outrace the processor, 2*10^8 bytes",
        "from n = 3",
        shown(larger),
        larger == Some(3),
    );
    let always = [FILE, LARGER_FILE].map(|file| first(file, 128));
    report.check("128 KB: they do with one disk", "from n = 1", shown(always[0]), always == [Some(1); 2]);
    report.choice(format!(
        "Table 5 has a file of 10^8 bytes, Figure 6's \"present day\" curve one of 2*10^8. With the former the disks \
         outrace the processor {} with 64 KB: what the text says of 64 KB is true of the latter, all else of both.",
        shown(now)
    ));
    report.method(
        "The data space is the file. Blocks are the powers of two from 512 bytes to half the buffer, of \
        which the best is taken.",
    );
    report
}

fn fig5b(_: &Settings) -> Report {
    let task = |file| present_day(file, kb(32));
    let curves = enhanced(|with| task_effects(&task(FILE), with));
    let title = "Processing a file of 10^8 bytes through 32 KB, with enhancements";
    let mut report = effectiveness_report("fig5b", title, "enhancement", &curves);
    report.tables.push(table(
        "The same with a file of 2*10^8 bytes",
        "enhancement",
        &enhanced(|with| task_effects(&task(LARGER_FILE), with)),
    ));
    let bound = (1..=DISKS).filter(|&disks| RA81.task(&task(FILE), disks, ENHANCED[3].1).1 == Bound::Processor);
    let bound: Vec<String> = bound.map(|disks| disks.to_string()).collect();
    report.check(
        "with ordered blocks the processor becomes the bottleneck",
        "as with large buffers",
        format!("at n = {}", bound.join(", ")),
        !bound.is_empty(),
    );
    let [none, immediate, matched] = [0, 1, 2].map(|index| at_most(&curves[index].1));
    report.check(
        "matched disks do not change much, n = 10",
        "not significantly",
        format!("{matched:.1} % and {none:.1} % without"),
        (matched - none).abs() < 3.0,
    );
    report.check(
        "the loss by immediate reading is more pronounced than in fig4c, n = 10",
        "less effective",
        format!("{immediate:.1} % and {none:.1} % without"),
        none - immediate > 2.0,
    );
    report
}

fn fig6(_: &Settings) -> Report {
    let future = Task { file: Bytes(2_000_000_000), buffer: kb(512), ns_per_byte: 1.0 };
    let tasks = [
        ("future: 2 GB, 512 KB, 1 ns a byte", future, 5),
        ("present day: 200 MB, 32 KB", present_day(LARGER_FILE, kb(32)), 1),
    ];
    let gain = |task: &Task, disks| RA81.task(task, 1, PLAIN).0 / RA81.task(task, disks, PLAIN).0;
    let title = "Processing a file in five years' time";
    let mut report = Report::new("salem fig6", title);
    let mut table = Table::new("Speed, in that of one disk", "task", (1..=DISKS).map(|disks| format!("n={disks}")));
    let mut series = Vec::new();
    let paper = |disks| [(5, 2.5), (8, 3.3), (10, 3.7)].into_iter().find(|(at, _)| *at == disks).map(|(_, gain)| gain);
    for (name, task, from) in &tasks {
        let cell = |disks| match (disks >= *from, paper(disks).filter(|_| *from == 5)) {
            (false, _) => Cell::text("-"),
            (true, Some(wanted)) => Cell::beside(gain(task, disks), wanted, 2),
            (true, None) => Cell::number(gain(task, disks), 2),
        };
        table.row(*name, (1..=DISKS).map(cell).collect());
        let effect = |disks| (f64::from(disks), 100.0 * (1.0 - 1.0 / gain(task, disks)));
        series.push(Series::line(*name, (*from..=DISKS).map(effect).collect()));
    }
    report.tables.push(table);
    let axes = (Axis::linear("number of disks").over(1.0, f64::from(DISKS)), Axis::linear("effectiveness, %"));
    report.figures.push(Figure::new("salem-fig6", title, axes.0, axes.1, series));
    let stated = (1..=DISKS).filter_map(|disks| Some((f64::from(disks), 100.0 * (1.0 - 1.0 / paper(disks)?))));
    draw_papers(&mut report, "future", stated.collect());
    for (disks, wanted) in [(5, 2.5), (8, 3.3), (10, 3.7)] {
        let got = gain(&future, disks);
        report.check(
            format!("gain at n = {disks}"),
            format!("{wanted} x"),
            format!("{got:.2} x"),
            (got - wanted).abs() < 0.05,
        );
    }
    let typical = [present_day(FILE, kb(32)), present_day(FILE, kb(64)), present_day(LARGER_FILE, kb(32)), future];
    let gains = typical.map(|task| 100.0 * (1.0 - 1.0 / gain(&task, DISKS)));
    let (low, high) =
        gains.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), gain| (low.min(*gain), high.max(*gain)));
    report.check(
        "gains of typical tasks, n = 10",
        "10 to 70 %, up to about 3 to 1",
        format!("{low:.0} to {high:.0} %"),
        low >= 10.0 && high < 75.0,
    );
    report.method(
        "Five disks are the fewest that hold 2 GB, so the curve begins there; what it is compared with is one RA81 \
         that seeks over all its cylinders.",
    );
    report
}
