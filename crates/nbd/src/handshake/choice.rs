//! The exports that a client may choose from.

use std::ops;

use crate::ExportInfo;

/// The place of an export among [`Exports`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Index(usize);

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exports(Vec<ExportInfo>);

impl Exports {
    /// These exports, of different names.
    pub(crate) fn new(exports: Vec<ExportInfo>) -> Self {
        Self(exports)
    }

    /// The export that a client means by a name. The empty name is that of the default export: of the one that is
    /// called so, or the only one that there is.
    pub(super) fn find(&self, name: &[u8]) -> Option<Index> {
        let only = || (name.is_empty() && self.0.len() == 1).then_some(0);
        self.0.iter().position(|export| export.name.as_bytes() == name).or_else(only).map(Index)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ExportInfo> {
        self.0.iter()
    }
}

impl From<ExportInfo> for Exports {
    fn from(export: ExportInfo) -> Self {
        Self(vec![export])
    }
}

impl ops::Index<Index> for Exports {
    type Output = ExportInfo;

    fn index(&self, Index(index): Index) -> &ExportInfo {
        &self.0[index]
    }
}

impl Index {
    /// As a number from 0 on.
    pub(crate) fn get(self) -> usize {
        self.0
    }
}
