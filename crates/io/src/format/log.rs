//! The redo log: what every write is about to do, durable before it does any of it.
//!
//! Each member has a ring ([`ring`]) in its head area, and logs what itself is about to get, as absolute values:
//! [`record`] is the bytes. What one commit writes to all of its participants is one record with one sequence number,
//! whole or not there at all. [`replay`] decides, from the records that the members hold after an unclean stop, which
//! are done again. The engine says when: `engine/log`.
//!
//! Why this closes the write hole, and what each rule is for, is in `docs/adr/0007-redo-log.md`.
//!
//! The log knows nothing of stripes and parity: a record is ranges of members' data areas.

pub mod record;
pub mod replay;
mod ring;

pub(crate) use ring::Ring;
use uraid_layout::Bytes;

use super::BLOCK;

/// The most that a record takes of one member: what recovery reads at once.
pub const RECORD_BYTES_MAX: Bytes = Bytes(16 << 20);

/// The smallest ring: room for a record of one block, the mark that frees it, and one block between them.
pub const RING_BYTES_MIN: Bytes = Bytes(4 * BLOCK.bytes().0);
