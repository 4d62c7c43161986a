//! A paper, its tables and figures, and how they are run.

use super::report::Report;

/// How reproductions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What simulations draw their workloads from.
    pub seed: u64,
    /// How much is run.
    pub grid: Grid,
}

/// How much of a paper's grid of parameters is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// All that the paper has.
    Full,
    /// Enough to see the trends, in a second or two.
    Reduced,
}

/// A paper, and what of it can be computed again.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// What commands call it.
    pub name: &'static str,
    /// Authors, title and year.
    pub title: &'static str,
    /// Its tables and figures.
    pub items: &'static [Item],
}

/// A table or figure.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// What commands call it.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Computes it.
    pub run: fn(&Settings) -> Report,
}

impl Default for Settings {
    fn default() -> Self {
        Self { seed: 1, grid: Grid::Full }
    }
}
