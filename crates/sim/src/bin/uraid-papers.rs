//! `uraid-papers DIRECTORY [PAPER...]`: computes every table and figure of all papers, or of those that are named, and
//! writes a document for each paper and its drawings into the directory. `cargo xtask papers` calls it.

#![expect(clippy::print_stderr, reason = "a program's progress")]

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use uraid_sim::papers::report::Report;
use uraid_sim::papers::{PAPERS, Paper, Settings, paper, render};

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
    fs::write(directory.join("README.md"), index())?;
    for paper in papers {
        let reports: Vec<Report> = paper.items.iter().map(|item| timed(paper, item)).collect();
        for figure in reports.iter().flat_map(|report| &report.figures) {
            fs::write(figures.join(&figure.name).with_extension("svg"), figure.svg())?;
        }
        fs::write(directory.join(paper.name).with_extension("md"), document(paper, &reports))?;
    }
    Ok(())
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
fn timed(paper: &Paper, item: &uraid_sim::papers::Item) -> Report {
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
    let checks = reports.iter().map(|report| report.checks.len()).sum::<usize>();
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
    out += &format!("{} of {checks} checks hold", checks - failed.len());
    out += &if failed.is_empty() { ".\n".to_owned() } else { format!("; these do not:\n\n{}", failed.concat()) };
    for report in reports {
        out += &format!("\n{}", render::markdown(report, |name| format!("figures/{name}.svg")));
    }
    out
}
