//! What all connections of a server have in common.

use std::{rc::Rc, sync::Arc};

use super::{budget::Budget, certificates::Tls, limits::Limits, rates::Rates};

/// See the module.
#[derive(Debug)]
pub(super) struct Common<E> {
    pub(super) export: Rc<E>,
    pub(super) limits: Limits,
    pub(super) budget: Rc<Budget>,
    pub(super) rates: Arc<Rates>,
    /// If set, no client is served without it.
    pub(super) tls: Option<Tls>,
}

impl<E> Clone for Common<E> {
    fn clone(&self) -> Self {
        let Self { export, limits, budget, rates, tls } = self;
        Self {
            export: Rc::clone(export),
            limits: *limits,
            budget: Rc::clone(budget),
            rates: Arc::clone(rates),
            tls: tls.clone(),
        }
    }
}
