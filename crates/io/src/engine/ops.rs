//! Operations: what the engine does, each as one straight line over its parts.

pub(super) mod bytes;
mod calm;
pub(super) mod close;
pub(super) mod destage;
pub(super) mod fail;
pub(super) mod flush;
pub(super) mod handover;
pub(super) mod heal;
mod held;
pub(super) mod initialise;
pub(super) mod join;
pub(super) mod journal;
mod logs;
pub(super) mod read;
pub(super) mod reshape;
pub(super) mod write;
