//! The administrator of a stopped array, who has it use more of its members, or gives it another shape.
//!
//! What is expected is content by address, whatever the shape: after a change the array holds what it held, as far as
//! that is kept, and zeros behind; its parity agrees, and it survives what its new level survives.

use uraid_io::array::judge;
use uraid_io::format::superblock::{SlotState, Superblock};
use uraid_layout::{Bytes, Geometry, Lba, MemberIndex, MemberSet, Sectors};

use super::altered::{Altered, Content, scatter};
use super::array::{Array, Opened, Seen};
use super::client::{Client, End};
use super::faults::areas_in_use;
use super::finding::Finding;
use super::found::Found;
use super::growing::Growing;
use super::report::Alterations;
use super::reshaping::Reshaper;
use super::roster::Roster;
use super::scenario::Scenario;
use super::shelf::Shelf;
use crate::disk::{Ending, SimDisk};
use crate::member::Member;
use crate::trace::Trace;
use uraid_random::Random;

/// How much of each member beyond what the array uses holds something.
const SCATTERED: Bytes = Bytes(64 << 10);

/// See the module.
pub(super) struct Stopped<'a> {
    pub(super) array: &'a mut Array,
    pub(super) shelf: &'a mut Shelf,
    pub(super) random: &'a mut Random,
    pub(super) trace: &'a Trace,
    pub(super) counts: &'a mut Alterations,
}

impl Stopped<'_> {
    /// Changes the array, if it was closed and enough of it is left.
    ///
    /// # Errors
    /// What must not be.
    pub(super) fn alter(&mut self, mut roster: Option<&mut Roster>) -> Result<(), Finding> {
        let Some(mut found) = self.shelf.stopped(roster.as_deref_mut(), self.random, self.trace)? else {
            return Ok(());
        };
        let used = found.verdict.geometry.used_sectors().bytes();
        scatter(&mut found.members, used..Bytes(used.0 + SCATTERED.0), self.random);
        let before = found.verdict.geometry.clone();
        // What members corrupt as it moves is content that they lost.
        let grows = self.random.chance(1, 3) || self.array.silent.is_some();
        let altered = if grows {
            Growing::new(&found, self.random, self.trace).run()?
        } else {
            Reshaper::new(&found, self.random, self.trace).run()?
        };
        self.count(&altered, &before, grows);
        self.settle(altered, &before, roster)
    }

    fn count(&mut self, altered: &Altered, before: &Geometry, grows: bool) {
        let Altered { members, failed, content, attempts, is_done } = altered;
        let counts = &mut *self.counts;
        match (is_done, grows) {
            (true, true) => counts.grown += 1,
            (true, false) => counts.reshaped += 1,
            (false, false) if matches!(content, Content::GivenUp(_)) || *attempts > 1 => counts.turned_back += 1,
            (false, _) => counts.left_alone += 1,
        }
        counts.resumed += attempts.saturating_sub(1);
        counts.given_up += failed.len() as u64;
        counts.joined += members.len().saturating_sub(before.members()) as u64;
        counts.left += before.members().saturating_sub(members.len()) as u64;
    }

    /// Takes note of what the array is now, and looks at all of it.
    fn settle(&mut self, altered: Altered, before: &Geometry, roster: Option<&mut Roster>) -> Result<(), Finding> {
        let Altered { members, failed, content, .. } = altered;
        let candidates = members.candidates();
        let verdict = judge(&candidates).map_err(|error| Finding::Refused { error: error.to_string() })?;
        let present = verdict.geometry.all_members().minus(verdict.missing());
        let found = Found { members: members.only(present), candidates, verdict };
        let geometry = found.verdict.geometry.clone();
        let spec = geometry.spec();
        self.trace.note(format_args!("the array is {spec:?} now: {content:?}"));
        self.take_over(&found, content);
        let truth = &found.verdict.superblock;
        let gone = truth.slots.iter().filter(|entry| entry.state == SlotState::Failed).map(|entry| entry.member);
        // Whoever has a smaller log than the array needs now is rightly refused.
        let fits = |member: &Member| {
            let suits =
                |own: Superblock| own.slot.index() < geometry.members() && own.areas.log.size >= truth.areas.log.size;
            member.superblock().is_ok_and(suits)
        };
        if let Some(roster) = roster {
            roster.altered(gone, fits);
        }
        self.array.may_lack |= !failed.is_empty();
        self.shelf.altered(&members, failed.union(found.verdict.missing()), fits);
        let disk = SimDisk::new(found.members.clone(), self.random.fork(), self.trace.clone());
        let (random, mut aside) = (&mut self.random.fork(), self.random.fork());
        let opened = self.array.open(&disk, &found, &Seen::new(), random, &mut aside)?;
        let Opened::Engine(engine) = opened else {
            return Err(Finding::Refused { error: "it does not open though nothing fails".into() });
        };
        let mut was_closed = true;
        if self.array.silent.is_some() {
            // A block has a checksum from when it is written.
            let scenario = Scenario { cache: None, ..self.array.scenario.clone() };
            let from = Lba(before.capacity().0);
            let model = &mut self.array.model;
            let mut client = Client::new(*engine, disk.clone(), &scenario, model, aside, Trace::default());
            was_closed =
                if from.0 < geometry.capacity().0 { client.zero(from)? } else { client.run(0, true)? } == End::Closed;
            self.array.scenario.superblocks = client.session.superblocks.clone();
        }
        self.array.model.stopped();
        let left = disk.leave(Ending::PowerCut, self.random);
        self.shelf.put(&left, MemberSet::EMPTY, was_closed, self.random);
        Ok(())
    }

    /// What the array is, and what it may hold.
    fn take_over(&mut self, found: &Found, content: Content) {
        let Array { scenario, model, silent, .. } = &mut *self.array;
        let truth = &found.verdict.superblock;
        let own = |slot: MemberIndex| {
            let own = found.members.get(slot).and_then(|member| member.superblock().ok());
            own.unwrap_or_else(|| Superblock { slot, member: truth.slots[slot.index()].member, ..truth.clone() })
        };
        scenario.geometry = found.verdict.geometry.clone();
        scenario.superblocks = scenario.geometry.all_members().iter().map(own).collect();
        match content {
            Content::Untouched | Content::Grown => model.resize(scenario.geometry.capacity()),
            Content::Kept(end) => {
                model.resize(Sectors(end.0));
                model.resize(scenario.geometry.capacity());
            }
            Content::GivenUp(from) => {
                model.resize(scenario.geometry.capacity());
                model.give_up(from);
            }
        }
        if let Some(silent) = silent {
            silent.areas = areas_in_use(&scenario.superblocks[0].areas, &scenario.geometry);
        }
    }
}
