//! The papers' published results, computed again: a named command for each table and figure.
//!
//! A [`Paper`] is a list of [`Item`]s; running one gives a [`Report`], which has the paper's values beside those found,
//! says which of the paper's statements hold, and names every choice that the paper leaves open. Nothing is fitted to
//! single numbers. All of it is a function of [`Settings`]; whoever prints and stores reports is elsewhere.

mod chen_lee;
pub mod hauser;
mod paper;
pub mod render;
pub mod report;
mod rm2;
mod salem;
mod study;
pub mod xyratex;

pub use paper::{Grid, Item, Paper, Settings};
use report::Report;

/// Every paper, by year.
pub const PAPERS: &[Paper] = &[salem::PAPER, chen_lee::PAPER, rm2::PAPER, hauser::PAPER, xyratex::PAPER];

/// Nothing of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PapersError {
    /// No such paper.
    #[error("there is no paper '{name}'; choose {choices}")]
    Paper {
        /// What was asked for.
        name: String,
        /// What there is.
        choices: String,
    },
    /// The paper has no such table or figure.
    #[error("{paper} has no '{name}'; choose {choices}")]
    Item {
        /// The paper.
        paper: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        choices: String,
    },
}

/// A paper, by its name.
///
/// # Errors
/// When there is none of that name; the error lists them.
pub fn paper(name: &str) -> Result<&'static Paper, PapersError> {
    let choices = || listed(PAPERS.iter().map(|paper| paper.name));
    PAPERS
        .iter()
        .find(|paper| paper.name == name)
        .ok_or_else(|| PapersError::Paper { name: name.to_owned(), choices: choices() })
}

/// Computes a table or figure of a paper.
///
/// # Errors
/// When there is no such paper, or it has no such item; the error lists them.
pub fn run(paper_name: &str, what: &str, settings: &Settings) -> Result<Report, PapersError> {
    let paper = paper(paper_name)?;
    let choices = || listed(paper.items.iter().map(|item| item.name));
    let item = paper.items.iter().find(|item| item.name == what);
    let item =
        item.ok_or_else(|| PapersError::Item { paper: paper.name, name: what.to_owned(), choices: choices() })?;
    Ok((item.run)(settings))
}

/// `a, b or c`.
fn listed(names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{PAPERS, PapersError, Settings, run};

    #[test]
    fn names_are_found_and_others_are_told_what_there_is() {
        let unknown = run("nobody", "fig1", &Settings::default()).expect_err("there is none");
        assert!(matches!(unknown, PapersError::Paper { .. }) && unknown.to_string().contains("salem"), "{unknown}");
        let unknown = run("salem", "fig9", &Settings::default()).expect_err("there is none");
        assert!(unknown.to_string().ends_with("fig5a, fig5b or fig6"), "{unknown}");
    }

    #[test]
    fn every_name_is_there_once() {
        for paper in PAPERS {
            assert_eq!(PAPERS.iter().filter(|other| other.name == paper.name).count(), 1);
            for item in paper.items {
                assert_eq!(paper.items.iter().filter(|other| other.name == item.name).count(), 1, "{}", item.name);
            }
        }
    }
}
