//! What all connections of a server have in common.

use std::rc::Rc;

use super::{budget::Budget, certificates::Tls, limits::Limits};

/// See the module.
#[derive(Debug)]
pub(super) struct Common<E> {
    pub(super) export: Rc<E>,
    pub(super) limits: Limits,
    pub(super) budget: Rc<Budget>,
    /// If set, no client is served without it.
    pub(super) tls: Option<Tls>,
}

impl<E> Clone for Common<E> {
    fn clone(&self) -> Self {
        let Self { export, limits, budget, tls } = self;
        Self { export: Rc::clone(export), limits: *limits, budget: Rc::clone(budget), tls: tls.clone() }
    }
}
