//! `uraid-papers DIRECTORY [PAPER...]`: computes every table and figure of all papers, or of those that are named, and
//! writes a document for each paper and its drawings into the directory. `cargo xtask papers` calls it.

#![expect(clippy::print_stderr, reason = "a program's progress")]

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use uraid_model::papers::report::Report;
use uraid_model::papers::{PAPERS, Paper, Settings, paper, render};

/// The longest line of a document.
const WIDTH: usize = 120;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(directory) = arguments.next() else {
        eprintln!("usage: uraid-papers DIRECTORY [PAPER...]; see `cargo xtask papers --help`");
        return ExitCode::from(2);
    };
    match write(Path::new(&directory), &arguments.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uraid-papers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &Path, names: &[String]) -> Result<(), Box<dyn Error>> {
    let named: Vec<&Paper> = names.iter().map(|name| paper(name)).collect::<Result<_, _>>()?;
    let papers = if named.is_empty() { PAPERS.iter().collect() } else { named };
    let figures = directory.join("figures");
    fs::create_dir_all(&figures)?;
    fs::write(directory.join("README.md"), wrapped(&index()))?;
    for paper in papers {
        let reports: Vec<Report> = paper.items.iter().map(|item| timed(paper, item)).collect();
        for figure in reports.iter().flat_map(|report| &report.figures) {
            fs::write(figures.join(&figure.name).with_extension("svg"), figure.svg())?;
        }
        fs::write(directory.join(paper.name).with_extension("md"), wrapped(&document(paper, &reports)))?;
    }
    Ok(())
}

/// The text in lines of at most [`WIDTH`] characters; tables and pictures keep theirs.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut width = 0;
        for (index, word) in line.split(' ').enumerate() {
            let length = word.chars().count();
            if index > 0 && width + 1 + length > WIDTH && !line.starts_with(['|', '!']) {
                out += "\n";
                out += indent;
                width = indent.len();
            } else if index > 0 {
                out.push(' ');
                width += 1;
            }
            out += word;
            width += length;
        }
        out.push('\n');
    }
    out
}

/// What there is, and where.
fn index() -> String {
    let mut out = String::from(
        "# The papers' results, computed again\n\nWritten by `cargo xtask papers`, which runs everything in full; \
         `uraid simulate PAPER WHAT` runs one table or figure. Each document \
         says which of a paper's statements hold here, which do not, and which choices the numbers rest on.\n\n",
    );
    for paper in PAPERS {
        let items: Vec<&str> = paper.items.iter().map(|item| item.name).collect();
        out += &format!("- [{}]({}.md): {}\n", paper.title, paper.name, items.join(", "));
    }
    out
}

/// Runs one item, and says how long it took and what does not hold.
fn timed(paper: &Paper, item: &uraid_model::papers::Item) -> Report {
    let begun = Instant::now();
    let report = (item.run)(&Settings::default());
    let (all, failed) = (report.checks.len(), report.failed().count());
    eprintln!(
        "{} {}: {:.1} s, {} of {all} checks hold",
        paper.name,
        item.name,
        begun.elapsed().as_secs_f64(),
        all - failed
    );
    report
}

fn document(paper: &Paper, reports: &[Report]) -> String {
    let all = || reports.iter().flat_map(|report| &report.checks);
    let counted = all().filter(|check| !check.is_given).count();
    let given = all().filter(|check| check.is_given).count();
    let held = all().filter(|check| !check.is_given && check.holds).count();
    let failed: Vec<String> = reports
        .iter()
        .flat_map(|report| {
            report
                .failed()
                .map(|check| format!("- {}: {}; wanted {}, got {}\n", report.name, check.what, check.wanted, check.got))
        })
        .collect();
    let mut out =
        format!("# {}\n\nWritten by `cargo xtask papers`; a number in brackets is the paper's.\n\n", paper.title);
    out += &format!("{held} of {counted} checks hold");
    if given > 0 {
        let right = all().filter(|check| check.is_given && check.holds).count();
        out += &format!(
            " ({right} of {given} more, which follow from the paper's own numbers or repeat another check, are not \
             counted)"
        );
    }
    out += &if failed.is_empty() { ".\n".to_owned() } else { format!("; these do not:\n\n{}", failed.concat()) };
    for report in reports {
        out += &format!("\n{}", render::markdown(report, |name| format!("figures/{name}.svg")));
    }
    out
}
