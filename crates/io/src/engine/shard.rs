//! Several engines for one array, each with its own parity stripes: see [`Bands`].
//!
//! One of them, the keeper, has the array's record and flushes the members; the others, its followers, ask it. What
//! they ask and what it answers is data that somebody else carries, in order:
//! - A follower that wants another state on record than there is asks for it ([`Ask::Record`]), and its jobs wait. The
//!   keeper makes it durable ([`Engine::note`]). Whenever what is durable changes, every follower is told
//!   ([`Engine::standing`], [`Engine::learn`]), and the jobs that wait look again.
//! - A follower's flush is a flush by the keeper ([`Ask::Flush`], [`Engine::sync`], [`Engine::synced`]). So there is
//!   one place that learns of a member's failed flush, which the member reports once, and no flush after it can be
//!   taken for a success.
//! - A follower holds a region of the write-intent bitmap by having the keeper hold it ([`Ask::Intend`],
//!   [`Engine::intend_for`], [`Engine::intended`]), and writes no stripe of it before. It lets go when its own jobs
//!   have for a while and its writes there are flushed ([`Ask::Settle`], [`Engine::settle_for`]). So a bit is set on
//!   the members while any engine holds its region.
//! - An engine that can't go on without losing data freezes, and all others with it ([`Ask::Freeze`]).
//!
//! Invariants, for all engines together: no member is written before all are durably marked dirty; no write is replied
//! to before every member that missed it is durably recorded as failed; the members are marked clean by the keeper's
//! [`Command::Close`](super::Command::Close) alone, which is for when the followers have flushed and stopped.

use uraid_layout::{Lba, MemberSet, Sectors, StripeId};

use super::job::{Job, Work};
use super::log::Log;
use super::{Engine, EngineError, Reply};
use crate::bands::{Bands, Shard};
use crate::bitmap::RegionId;
use crate::disk::Disk;
use crate::log::record::Lane;

/// What a follower wants of the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// That the members be marked dirty and these be recorded as failed: [`Engine::note`].
    Record(MemberSet),
    /// That what was written to these become durable: [`Engine::sync`].
    Flush(MemberSet),
    /// That a region's bit be set in the write-intent bitmap and stay so: [`Engine::intend_for`].
    Intend(RegionId),
    /// That it need not stay so any longer: [`Engine::settle_for`].
    Settle(RegionId),
    /// That nothing be answered any more, as these failed: [`Engine::freeze`].
    Freeze(MemberSet),
}

/// What every engine of an array must know: what is durably on record, and whether the array can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Writes may be under way.
    pub is_dirty: bool,
    /// The members that are recorded as failed.
    pub missing: MemberSet,
    /// Nothing is answered any more.
    pub is_frozen: bool,
    /// As these failed, as far as that is known.
    pub frozen_by: MemberSet,
}

/// An engine's place among several.
#[derive(Debug)]
pub(super) struct Place {
    bands: Bands,
    shard: Shard,
    asks: Vec<Ask>,
    has_told_frozen: bool,
}

impl Place {
    /// Whether there are other engines.
    pub(super) fn is_shared(&self) -> bool {
        self.bands.shards().count() > 1
    }

    /// Asks something of the keeper.
    pub(super) fn ask(&mut self, ask: Ask) {
        self.asks.push(ask);
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// The engine as one of several, for the stripes that `bands` gives to `shard`.
    ///
    /// # Errors
    /// [`EngineError::LogTooSmall`] for that many; [`EngineError::Shared`] while members are being rebuilt.
    pub fn with_bands(mut self, bands: Bands, shard: Shard) -> Result<Self, EngineError> {
        let place = Place { bands, shard, asks: Vec::new(), has_told_frozen: false };
        if place.is_shared() && !self.record.rebuilding().is_empty() {
            return Err(EngineError::Shared);
        }
        if let Some(log) = &mut self.log {
            let lanes = u8::try_from(place.bands.shards().count()).expect("shards have small numbers");
            *log = Log::new(self.record.superblocks(), &self.geometry, Lane(shard.0), lanes)?;
        }
        self.place = Some(place);
        Ok(self)
    }

    /// What is durably on record; the keeper's.
    pub fn standing(&self) -> Standing {
        let (is_dirty, missing) = self.record.durable();
        Standing { is_dirty, missing, is_frozen: self.is_frozen, frozen_by: self.troubled.frozen_by() }
    }

    /// Appends what a follower wants since the last time.
    pub fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        asks.extend(self.record.take_demand().map(Ask::Record));
        self.take_intent_asks(asks);
        let Some(place) = &mut self.place else { return };
        asks.append(&mut place.asks);
        if self.is_frozen && !std::mem::replace(&mut place.has_told_frozen, true) {
            asks.push(Ask::Freeze(self.troubled.frozen_by()));
        }
    }

    /// Makes durable, at the keeper, what a follower wants on record: the next [`Engine::standing`]s say how far that
    /// is.
    pub fn note(&mut self, failed: MemberSet) {
        if self.fail_members(failed).is_err() {
            self.is_frozen = true;
        }
        self.record.demand_for_follower();
        self.run_record();
    }

    /// Tells a follower what is durably on record now, and lets the jobs look that wait for it.
    pub fn learn(&mut self, standing: Standing) {
        let missing = self.record.missing().union(standing.missing);
        if missing != self.record.missing() {
            match self.repairs(missing) {
                Ok((repair, lost)) => (self.repair, self.repair_lost) = (repair, lost),
                Err(_) => {
                    self.troubled.note_frozen(missing.minus(self.record.missing()));
                    self.is_frozen = true;
                }
            }
        }
        self.record.learn(standing.is_dirty, standing.missing);
        if standing.is_frozen {
            self.freeze(standing.frozen_by);
        }
        self.run_record();
    }

    /// Ends the array's service: more members failed than it survives, these last, as another engine has found.
    pub fn freeze(&mut self, by: MemberSet) {
        self.troubled.note_frozen(by);
        self.is_frozen = true;
        self.record.stop_waiting();
        self.give_up_intent();
        self.run_intent();
    }

    /// Makes durable, at the keeper, what a follower has written to `members`, and every failure of a member too;
    /// replies then.
    pub fn sync(&mut self, token: T, members: MemberSet) {
        if self.is_frozen {
            self.replies.push(Reply { token, result: Err(EngineError::Frozen) });
            return;
        }
        for member in members.iter() {
            self.flusher.wrote(member);
        }
        self.start(Job::new(Some(token), Work::Sync, Lba(0)..Lba(0)));
    }

    /// Tells a follower that the keeper is done with [`Ask::Flush`]; of `failed` nothing that was written before can be
    /// relied on.
    pub fn synced(&mut self, members: MemberSet, failed: MemberSet) {
        for member in members.iter() {
            if failed.contains(member) {
                self.flusher.failed(member);
            }
            self.flush_ended();
        }
    }

    /// Has the keeper flush the members, at a follower.
    pub(super) fn ask_flush(&mut self, members: MemberSet) {
        let place = self.place.as_mut().expect("a follower has a place among several engines");
        if !members.is_empty() {
            place.asks.push(Ask::Flush(members));
        }
    }

    /// The first parity stripe from `stripe` on that is this engine's; beyond the last: none is.
    pub(super) fn own_from(&self, stripe: StripeId) -> StripeId {
        let Some(Place { bands, shard, .. }) = &self.place else { return stripe };
        let sectors = self.geometry.stripe_sectors().0;
        let (start, end) = (Lba(stripe.0.saturating_mul(sectors)), Lba(self.geometry.capacity().0));
        let own = bands.parts(start..end).find(|(owner, _)| owner == shard);
        own.map_or(StripeId(self.geometry.stripes().0), |(_, part)| StripeId(part.start.0 / sectors))
    }

    /// How many of the array's first `end` sectors are this engine's.
    pub(super) fn own_below(&self, end: Sectors) -> Sectors {
        self.place.as_ref().map_or(end, |place| place.bands.share(place.shard, end))
    }

    /// The end of what is this engine's of the sectors from `start` to `end`; none when the first is another's.
    pub(super) fn own_end(&self, start: u64, end: u64) -> Option<u64> {
        let Some(Place { bands, shard, .. }) = &self.place else { return Some(end) };
        let (owner, part) = bands.first(&(Lba(start)..Lba(end)));
        (owner == *shard).then_some(part.end.0)
    }
}
