//! Who is in the slots of an engine's array, and where those are.

use std::path::PathBuf;

use uraid_io::engine::{Engine, Replacement};
use uraid_layout::MemberIndex;

use crate::description::Member;
use crate::disk::LiveDisk;

/// The members in the slots.
pub(crate) fn members<D: LiveDisk, T>(engine: &Engine<D, T>) -> Vec<Member> {
    let superblock = engine.superblock();
    let slots = superblock.slots.iter().zip(engine.disk().members());
    slots.map(|(slot, member)| Member::new(slot.member, member.as_ref().map(|member| member.path()))).collect()
}

/// The copy in progress, and its target.
pub(super) fn replacement<D: LiveDisk, T>(engine: &Engine<D, T>) -> Option<(Replacement, Member)> {
    let replacement = engine.replacement()?;
    let member = engine.seat().and_then(|seat| engine.disk().members().get(seat.index())?.as_ref());
    let path = member.map(|member| member.path());
    Some((replacement, Member::new(replacement.member, path)))
}

/// The present members and their paths.
pub(super) fn present_paths<D: LiveDisk, T>(engine: &Engine<D, T>) -> Vec<(MemberIndex, PathBuf)> {
    let slots = engine.slots().minus(engine.missing());
    let path = |slot: MemberIndex| Some(engine.disk().members().get(slot.index())?.as_ref()?.path().to_owned());
    slots.iter().filter_map(|slot| Some((slot, path(slot)?))).collect()
}

/// Notes on members of an array that was stopped cleanly that nobody need know who had them; not where one is missing,
/// and not on record as such.
pub(super) fn note_stopped<D: LiveDisk, T>(engine: &Engine<D, T>) {
    let superblock = engine.superblock();
    let is_unrecorded =
        |slot: MemberIndex| superblock.slots.get(slot.index()).is_none_or(|slot| slot.state.is_written());
    if superblock.is_clean && !engine.missing().iter().any(is_unrecorded) {
        engine.disk().members().iter().flatten().for_each(|member| member.note_stopped());
    }
}
