//! Wrong command lines.

/// Words that are right one by one and together describe nothing that can be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(pub(crate) String);
