//! What can't be asked.

/// What can't be asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AdviseError {
    /// A number makes no sense.
    #[error("{what} can't be {value}; it has to be {wanted}")]
    Number {
        /// What it is of.
        what: &'static str,
        /// What it is.
        value: f64,
        /// What it can be.
        wanted: &'static str,
    },
}
