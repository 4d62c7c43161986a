//! What documents are made of.

use uraid_model::figure::Figure;

/// A part of a document.
pub(crate) enum Block {
    Heading(String),
    Text(String),
    /// What a reader must not miss.
    Lead(Vec<String>),
    Table(Table),
    Figure(Box<Figure>),
}

/// A table: names to the left, values to the right.
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<Value>)>,
}

/// A value of a table; the best one of its row stands out.
pub(crate) struct Value {
    pub(crate) text: String,
    pub(crate) is_best: bool,
}

impl Value {
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_best: false }
    }
}
