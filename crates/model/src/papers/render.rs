//! Reports as text for a terminal, as Markdown for documents and as CSV for programs. As JSON they are what serde makes
//! of them.

use std::fmt::Write;

use super::report::{Cell, Check, Compared, Note, NoteKind, Number, Report, Table};

/// A report for a terminal: tables in columns, then checks and notes.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = format!("{}: {}\n", report.name, report.title);
    for table in &report.tables {
        out += &format!("\n{}\n{}", table.title, aligned(&grid(table)));
    }
    if !report.checks.is_empty() {
        out += &format!("\nWhat the paper says\n{}", aligned(&check_grid(&report.checks)));
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for Note { kind, text } in &report.notes {
        out += &format!("{}: {text}\n", label(*kind));
    }
    out
}

/// A report as a section of a document; `link` says where each figure's drawing is.
#[must_use]
pub fn markdown(report: &Report, link: impl Fn(&str) -> String) -> String {
    let mut out = format!("## {}: {}\n\n`uraid simulate {}`\n", report.name, report.title, report.name);
    for table in &report.tables {
        out += &format!("\n{}:\n\n{}", table.title, piped(&grid(table)));
    }
    if !report.checks.is_empty() {
        out += &format!("\nWhat the paper says:\n\n{}", piped(&check_grid(&report.checks)));
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for Note { kind, text } in &report.notes {
        out += &format!("- *{}*: {text}\n", label(*kind));
    }
    for figure in &report.figures {
        out += &format!("\n![{}]({})\n", figure.title, link(&figure.name));
    }
    out
}

/// Every number of some reports, one a line: `report,kind,name,row,column,value,paper`. A figure's rows are its series
/// and its columns are x.
#[must_use]
pub fn csv(reports: &[Report]) -> String {
    let mut out = String::from("report,kind,name,row,column,value,paper\n");
    reports.iter().for_each(|report| write_csv(&mut out, report));
    out
}

fn write_csv(out: &mut String, report: &Report) {
    let mut line = |fields: [&str; 6]| {
        *out += &format!("{},", quoted(&report.name));
        let fields: Vec<String> = fields.iter().map(|field| quoted(field)).collect();
        *out += &fields.join(",");
        out.push('\n');
    };
    for table in &report.tables {
        for row in &table.rows {
            for (column, cell) in table.columns.iter().zip(&row.cells) {
                let (value, paper) = match cell {
                    Cell::Number(number) => (number.value.to_string(), number.paper.map(|paper| paper.to_string())),
                    Cell::Text(text) => (text.clone(), None),
                };
                line(["table", &table.title, &row.name, column, &value, &paper.unwrap_or_default()]);
            }
        }
    }
    for Check { what, wanted, got, holds, .. } in &report.checks {
        line(["check", "", what, if *holds { "holds" } else { "does not hold" }, got, wanted]);
    }
    for figure in &report.figures {
        for series in &figure.series {
            for (x, y) in &series.points {
                line(["figure", &figure.title, &series.name, &x.to_string(), &y.to_string(), ""]);
            }
        }
    }
}

fn label(kind: NoteKind) -> &'static str {
    match kind {
        NoteKind::Method => "Method",
        NoteKind::Choice => "Free choice",
        NoteKind::Miss => "Not reached",
    }
}

fn grid(table: &Table) -> Vec<Vec<String>> {
    let head = std::iter::once(table.rows_are.clone()).chain(table.columns.iter().cloned()).collect();
    let row = |row: &super::report::Row| {
        let cells = row.cells.iter().map(|cell| match cell {
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => shown(number),
        });
        std::iter::once(row.name.clone()).chain(cells).collect()
    };
    std::iter::once(head).chain(table.rows.iter().map(row)).collect()
}

fn check_grid(checks: &[Check]) -> Vec<Vec<String>> {
    let head = ["check", "wanted", "got", ""].map(str::to_owned).to_vec();
    let row = |Check { what, wanted, got, holds, is_given }: &Check| {
        let verdict = match (holds, is_given) {
            (true, true) => "holds, not counted",
            (true, false) => "holds",
            (false, _) => "DOES NOT HOLD",
        };
        vec![what.clone(), wanted.clone(), got.clone(), verdict.to_owned()]
    };
    std::iter::once(head).chain(checks.iter().map(row)).collect()
}

/// `0.23 (0.22, +4.5 %)`: the value, then the paper's and how far it is from that.
fn shown(number: &Number) -> String {
    let Number { value, paper, compared, decimals } = *number;
    let mut text = format!("{value:.decimals$}");
    let Some(paper) = paper else { return text };
    let unit = match compared {
        Compared::ByRatio => " %",
        Compared::ByDifference => " points",
    };
    let deviation = number.deviation().map(|deviation| format!(", {deviation:+.1}{unit}")).unwrap_or_default();
    write!(text, " ({paper:.decimals$}{deviation})").expect("a string takes everything");
    text
}

/// Columns of equal width, two blanks apart.
fn aligned(grid: &[Vec<String>]) -> String {
    let columns = grid.first().map_or(0, Vec::len);
    let width = |column: usize| grid.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in grid {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        out += &format!("  {}\n", cells.join("  ").trim_end());
    }
    out
}

fn piped(grid: &[Vec<String>]) -> String {
    let line = |row: &[String]| format!("| {} |\n", row.join(" | "));
    let Some((head, rows)) = grid.split_first() else { return String::new() };
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    line(head) + &rule + &rows.iter().map(|row| line(row)).collect::<String>()
}

/// A field as CSV has it.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Cell, Report, Table};
    use super::{csv, markdown, text};
    use crate::figure::{Axis, Figure, Series};

    fn example() -> Report {
        let mut report = Report::new("paper table1", "A table");
        let mut table = Table::new("Values, ms", "disk", ["a, b", "c"]);
        table.row("one", vec![Cell::beside(0.21, 0.20, 2), Cell::text("yes")]);
        table.row("another", vec![Cell::points(66.0, 70.0, 0), Cell::number(3.0, 1)]);
        report.tables.push(table);
        report.check("it grows", "yes", "no", false);
        report.choice("left open");
        let series = Series::line("s", vec![(1.0, 2.5)]);
        report.figures.push(Figure::new("fig", "A figure", Axis::linear("x"), Axis::linear("y"), vec![series]));
        report
    }

    #[test]
    fn a_terminal_gets_columns() {
        let wanted = "paper table1: A table\n\nValues, ms\n  disk     a, b                    c\n  one      0.21 \
            (0.20, +5.0 %)     yes\n  another  66 (70, -4.0 points)    3.0\n\nWhat the paper says\n  check     wanted  \
            got\n  it grows  yes     no   DOES NOT HOLD\n\nFree choice: left open\n";
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let got = text(&example());
        assert_eq!(squeeze(&got), squeeze(wanted));
        let lines: Vec<&str> = got.lines().collect();
        assert_eq!(lines[4].find("0.21"), lines[5].find("66"), "columns stand under each other:\n{got}");
    }

    #[test]
    fn a_document_gets_tables_and_links() {
        let got = markdown(&example(), |name| format!("figures/{name}.svg"));
        assert!(got.contains("| one | 0.21 (0.20, +5.0 %) | yes |"), "{got}");
        assert!(got.contains("|---|---|---|"), "{got}");
        assert!(got.contains("![A figure](figures/fig.svg)"), "{got}");
        assert!(got.contains("| it grows | yes | no | DOES NOT HOLD |"), "{got}");
    }

    #[test]
    fn programs_get_every_number_once() {
        let got = csv(&[example()]);
        let lines: Vec<&str> = got.lines().collect();
        assert_eq!(
            lines,
            [
                "report,kind,name,row,column,value,paper",
                "paper table1,table,\"Values, ms\",one,\"a, b\",0.21,0.2",
                "paper table1,table,\"Values, ms\",one,c,yes,",
                "paper table1,table,\"Values, ms\",another,\"a, b\",66,70",
                "paper table1,table,\"Values, ms\",another,c,3,",
                "paper table1,check,,it grows,does not hold,no,yes",
                "paper table1,figure,A figure,s,1,2.5,",
            ]
        );
    }
}
