//! Bringing an array back into agreement after an unclean stop: by its log, or by computing parity from the data.

use std::ops::Range;

use thiserror::Error;
use uraid_layout::{Bytes, MemberIndex, MemberSet, Sectors, StripeId};

use super::assemble::{Assembled, flush, perform};
use super::redo;
use crate::Error;
use crate::bitmap::Bitmap;
use crate::disk::Disk;
use crate::engine::{Command, Engine, EngineError};
use crate::log::record::Sequence;
use crate::log::replay::ReplayError;
use crate::superblock::Consistency;

/// Parity stripes that are worked on at once.
const CONCURRENT: usize = 16;

/// Columns of a parity stripe that are worked on at once, so that memory stays bounded for wide stripes of large chunks.
const COLUMNS: Sectors = Sectors((64 << 10) / 512);

/// Why an array can't be brought into agreement.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// A member failed.
    #[error(transparent)]
    Io(#[from] Error),
    /// The log can't be relied on.
    #[error(transparent)]
    Log(#[from] ReplayError),
    /// A member's log reads differently the second time.
    #[error("member {member} does not hold record {} of its log any more, which it had a moment ago: leave it out, with --degraded", sequence.0)]
    Unstable {
        /// The member.
        member: MemberIndex,
        /// The record.
        sequence: Sequence,
    },
    /// The array's creation has not ended, and a member was left out since the array was judged.
    #[error(
        "creating this array was cut off before its members were initialised, and of these {missing:?} can't be used: create it anew with --force"
    )]
    InitialisingDegraded {
        /// Their slots.
        missing: MemberSet,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl<D: Disk> Assembled<D> {
    /// How much content [`Assembled::recover`] computes parity for: what is in regions whose bits are set in the write-intent bitmap, or
    /// everything; nothing where a log says what to do. Of an array that is initialising, how much it zeroes on all members together.
    pub fn recovery(&self) -> Bytes {
        if self.is_initialising() {
            return self.initialisation();
        }
        if self.record.consistency() == Consistency::Log {
            return Bytes(0);
        }
        let stripes: u64 = self.suspects().iter().map(|stripes| stripes.end.0 - stripes.start.0).sum();
        let bytes = self.geometry.stripe_sectors().bytes().0 * stripes;
        Bytes(bytes.min(self.geometry.capacity().bytes().0))
    }

    /// The parity stripes in which redundancy may not agree.
    fn suspects(&self) -> Vec<Range<StripeId>> {
        match &self.bitmap {
            Some(bitmap) => bitmap.iter().map(|region| bitmap.regions().stripes(region)).collect(),
            None => vec![StripeId(0)..StripeId(self.geometry.stripes().0)],
        }
    }

    /// Brings the array into agreement and marks it clean; blocks. It can be cut off anywhere, and begun again by the next start. `progress` gets
    /// the bytes done so far: of the log, of array content, or of members that are initialised.
    ///
    /// # Errors
    /// When a member fails, or its log is damaged: the array stays marked.
    pub fn recover(self, progress: impl FnMut(Bytes)) -> Result<Self, RecoverError> {
        if self.is_initialising() {
            return self.initialise(progress);
        }
        if planted!(RecoverySkipped) {
            let mut skipped = self;
            skipped.record.renew(skipped.generation);
            skipped.is_recovered = true;
            return Ok(skipped.run(|_| Ok(()))?);
        }
        if self.record.consistency() == Consistency::Log { self.redo(progress) } else { Ok(self.resync(progress)?) }
    }

    /// Does again what the log says.
    fn redo(mut self, progress: impl FnMut(Bytes)) -> Result<Self, RecoverError> {
        // What is missing now may be back after another stop, and lack what is done without it: whether a record is done must not change
        // with that.
        if !planted!(ReplayUnrecorded) {
            self.settle_record()?;
        }
        let superblocks: Vec<_> = self.record.superblocks().map(Option::<&_>::cloned).collect();
        let records = redo::redo(&mut self.disk, &superblocks, &self.geometry, progress)?;
        tracing::info!(records, "did again what was in the log");
        let present = self.geometry.all_members().minus(self.record.missing());
        if !planted!(ReplayUnflushed) {
            perform(&mut self.disk, present.iter().map(flush))?;
        }
        if !planted!(GenerationKept) {
            self.record.renew(self.generation);
        }
        self.is_recovered = true;
        Ok(self.run(|_| Ok(()))?)
    }

    /// Computes parity from the data where it may not agree, and marks the array clean; blocks. `progress` gets the bytes of array content done
    /// so far. The bits of the bitmap's regions are kept until it is over.
    ///
    /// # Errors
    /// When a member fails: the array stays marked, and what is missing can't be made good.
    fn resync(self, mut progress: impl FnMut(Bytes)) -> Result<Self, EngineError> {
        let suspects = self.suspects();
        self.run(|engine| {
            let geometry = engine.geometry().clone();
            let stripes = suspects.into_iter().flat_map(|stripes| stripes.start.0..stripes.end.0);
            let mut columns = stripes.flat_map(|stripe| {
                let chunk = geometry.chunk().0;
                let starts = (0..chunk).step_by(usize::try_from(COLUMNS.0).expect("a small number"));
                starts.map(move |start| (stripe, start, COLUMNS.0.min(chunk - start)))
            });
            let share = |len: u64| Bytes(geometry.stripe_sectors().bytes().0 / geometry.chunk().0 * len);
            let mut done = Bytes(0);
            run_all(engine, CONCURRENT, |token| {
                done.0 += token;
                progress(done);
                let (stripe, start, len) = columns.next()?;
                let command = Command::Resync { stripe: StripeId(stripe), start: Sectors(start), len: Sectors(len) };
                Some((share(len).0, command))
            })
        })
    }

    /// Runs work on an engine of its own, then closes the array.
    fn run(self, work: impl FnOnce(&mut Engine<D, u64>) -> Result<(), EngineError>) -> Result<Self, EngineError> {
        let Self { geometry, record, disk, access, generation, overlay, bitmap, .. } = self;
        let mut engine = Engine::new(disk, geometry, record, false)?.with_intent(match bitmap {
            Some(set) if planted!(BitsDroppedByRecovery) => Some(Bitmap::empty(set.regions())),
            set => set,
        });
        work(&mut engine)?;
        engine.trust_parity();
        run_all(&mut engine, 1, {
            let mut close = Some(Command::Close);
            move |_| close.take().map(|command| (0, command))
        })?;
        let set = engine.intent().cloned();
        let (disk, geometry, record) = engine.into_parts();
        let is_whole = record.is_clean() && record.is_whole();
        let bitmap = set.map(|set| if is_whole { Bitmap::empty(set.regions()) } else { set });
        Ok(Self { geometry, record, disk, access, generation, overlay, is_recovered: true, bitmap })
    }
}

/// Runs commands, `concurrent` at a time; `next` is told of each one's end by its token, and of the start with 0.
fn run_all<D: Disk>(
    engine: &mut Engine<D, u64>,
    concurrent: usize,
    mut next: impl FnMut(u64) -> Option<(u64, Command)>,
) -> Result<(), EngineError> {
    let mut replies = Vec::new();
    while engine.in_flight() < concurrent {
        let Some((token, command)) = next(0) else { break };
        engine.submit(token, command);
    }
    loop {
        engine.turn(&mut replies)?;
        for reply in replies.drain(..) {
            reply.result?;
            if let Some((token, command)) = next(reply.token) {
                engine.submit(token, command);
            }
        }
        if engine.in_flight() == 0 && !engine.has_replies() {
            return Ok(());
        }
        let is_under_way = engine.disk_mut().in_flight() > 0 || engine.wants_turn();
        assert!(is_under_way, "commands of a recovery wait, and not for members");
        engine.disk_mut().wait().map_err(EngineError::Device)?;
    }
}
