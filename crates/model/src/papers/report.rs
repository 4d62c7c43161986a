//! What a reproduction found: tables of measured values beside the paper's, checks, notes and figures.
//!
//! A report is plain data; [`render`](super::render) writes it for terminals, documents and programs. Nothing here
//! knows a paper or a disk.

use serde::Serialize;

use crate::figure::Figure;

/// The result of one reproduction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The command's words: `salem fig4a`.
    pub name: String,
    /// What the paper's table or figure shows.
    pub title: String,
    /// Numbers, in the paper's arrangement.
    pub tables: Vec<Table>,
    /// What the paper says in words, held against what was found.
    pub checks: Vec<Check>,
    /// What a reader must know to judge the numbers.
    pub notes: Vec<Note>,
    /// Curves, with the paper's axes.
    pub figures: Vec<Figure>,
}

/// A table: a row has a name and as many cells as there are columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// What it shows, and in which unit.
    pub title: String,
    /// What the rows are.
    pub rows_are: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it is about.
    pub name: String,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// A number or a word.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A number.
    Number(Number),
    /// A word.
    Text(String),
}

/// A number, beside the paper's where the paper has it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Number {
    /// What was found.
    pub value: f64,
    /// What the paper has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
    /// How the two are compared.
    pub compared: Compared,
    /// How many decimals are shown.
    #[serde(skip)]
    pub decimals: usize,
}

/// How a value is compared with the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Compared {
    /// By the quotient: how many per cent more or less.
    ByRatio,
    /// By the difference, for what is per cent already.
    ByDifference,
}

/// Something that the paper says, and whether it was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What is looked at.
    pub what: String,
    /// What the paper says of it.
    pub wanted: String,
    /// What was found.
    pub got: String,
    /// Whether that is what the paper says.
    pub holds: bool,
    /// Whether it follows from the paper's own numbers, or was counted elsewhere: it says nothing about a simulation,
    /// and does not count.
    pub is_given: bool,
}

/// What a reader must know to judge the numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Note {
    /// What kind of note it is.
    pub kind: NoteKind,
    /// A sentence or a few.
    pub text: String,
}

/// Kinds of notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// How something was done.
    Method,
    /// Something that the paper leaves open, how it was chosen, and what another choice changes.
    Choice,
    /// A number of the paper's that was not reached, and why that may be.
    Miss,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(name: &str, title: &str) -> Self {
        let (name, title) = (name.to_owned(), title.to_owned());
        Self { name, title, tables: Vec::new(), checks: Vec::new(), notes: Vec::new(), figures: Vec::new() }
    }

    /// Adds a check.
    pub fn check(&mut self, what: impl Into<String>, wanted: impl Into<String>, got: impl Into<String>, holds: bool) {
        self.checks.push(Check { what: what.into(), wanted: wanted.into(), got: got.into(), holds, is_given: false });
    }

    /// Adds a check of what follows from the paper's own numbers, or is counted elsewhere.
    pub fn given(&mut self, what: impl Into<String>, wanted: impl Into<String>, got: impl Into<String>, holds: bool) {
        self.checks.push(Check { what: what.into(), wanted: wanted.into(), got: got.into(), holds, is_given: true });
    }

    /// Notes how something was done.
    pub fn method(&mut self, text: impl Into<String>) {
        self.notes.push(Note { kind: NoteKind::Method, text: text.into() });
    }

    /// Notes how something was chosen that the paper leaves open.
    pub fn choice(&mut self, text: impl Into<String>) {
        self.notes.push(Note { kind: NoteKind::Choice, text: text.into() });
    }

    /// Notes what was not reached, and why that may be.
    pub fn miss(&mut self, text: impl Into<String>) {
        self.notes.push(Note { kind: NoteKind::Miss, text: text.into() });
    }

    /// The checks that do not hold.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.holds)
    }
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(title: impl Into<String>, rows_are: &str, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { title: title.into(), rows_are: rows_are.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it does not have as many cells as there are columns.
    pub fn row(&mut self, name: impl Into<String>, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(Row { name: name.into(), cells });
    }
}

impl Cell {
    /// A number that the paper does not have.
    #[must_use]
    pub fn number(value: f64, decimals: usize) -> Self {
        Self::Number(Number { value, paper: None, compared: Compared::ByRatio, decimals })
    }

    /// A number beside the paper's, compared by the quotient.
    #[must_use]
    pub fn beside(value: f64, paper: f64, decimals: usize) -> Self {
        Self::Number(Number { value, paper: Some(paper), compared: Compared::ByRatio, decimals })
    }

    /// Per cent beside the paper's, compared by the difference.
    #[must_use]
    pub fn points(value: f64, paper: f64, decimals: usize) -> Self {
        Self::Number(Number { value, paper: Some(paper), compared: Compared::ByDifference, decimals })
    }

    /// A word.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

impl Number {
    /// How far the value is from the paper's: in per cent of that, or in points.
    #[must_use]
    pub(crate) fn deviation(&self) -> Option<f64> {
        let paper = self.paper?;
        match self.compared {
            Compared::ByDifference => Some(self.value - paper),
            Compared::ByRatio => (paper != 0.0).then(|| (self.value / paper - 1.0) * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cell, Number};

    fn deviation(cell: &Cell) -> Option<f64> {
        let Cell::Number(number) = cell else { return None };
        Number::deviation(number).map(|deviation| (deviation * 1e9).round() / 1e9)
    }

    #[test]
    fn deviations_are_per_cent_of_the_papers_value_or_points() {
        assert_eq!(deviation(&Cell::beside(0.21, 0.20, 2)), Some(5.0));
        assert_eq!(deviation(&Cell::beside(-0.1, 0.0, 2)), None, "nothing is so many per cent of zero");
        assert_eq!(deviation(&Cell::points(66.0, 70.0, 0)), Some(-4.0));
        assert_eq!(deviation(&Cell::number(1.0, 0)), None);
    }
}
