//! Erasure peeling: the ordered XOR steps that bring lost cells back, or the proof that they can't be had.

use alloc::vec::Vec;

use crate::{Cell, GroupId, MemberSet};

/// One XOR step: `target` is the XOR of every other cell of `group`, each present or the target of an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The lost cell.
    pub target: Cell,
    /// The group that gives it back.
    pub group: GroupId,
}
#[allow(unused, reason = "interface")]
type _Unused = (Vec<u8>, MemberSet);
