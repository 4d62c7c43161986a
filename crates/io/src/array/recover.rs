//! Bringing an array back into agreement after an unclean stop: by its log, or by computing parity from the data.

use std::ops::Range;
use std::path::PathBuf;

use thiserror::Error;
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, Sectors, StripeId};

use super::assemble::{Assembled, flush, perform};
use super::redo;
use super::resync::Resync;
use crate::Error;
use crate::disk::{Disk, DiskError};
use crate::engine::{Command, Engine, EngineError};
use crate::format::bitmap::Bitmap;
use crate::format::log::record::LogSequence;
use crate::format::log::replay::ReplayError;
use crate::format::superblock::Consistency;

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
    #[error(
        "member {member} lost record {} of its log during the start: leave it out, and start with --degraded",
        sequence.0
    )]
    Unstable {
        /// The member.
        member: MemberIndex,
        /// The record.
        sequence: LogSequence,
    },
    /// The array's creation has not ended, and a member was left out since the array was judged.
    #[error(
        "the creation of this array was interrupted, and members {missing:?} can't be used: create it again with \
         --force"
    )]
    InitialisingDegraded {
        /// Their slots.
        missing: MemberSet,
    },
    /// A member fails that the array can't do without.
    #[error(
        "{path}: {source}; {level} needs this member{}: copy it to a disk that works, with a program that skips \
         unreadable sectors (ddrescue), and start the array with the copy in its place",
        describe(*beside),
        path = path.display()
    )]
    Needed {
        /// The member.
        path: PathBuf,
        /// The level's name.
        level: &'static str,
        /// Who is missing, being rebuilt or failing beside it.
        beside: MemberSet,
        /// What failed.
        source: DiskError,
    },
    /// Where writes were under way, data can't be read that only parity could give.
    #[error(
        "{path}: {source}. The array was stopped during writes there, and without a log its parity may be wrong, so \
         nothing can compute the array's bytes {from} to {to}. Either give these up (write zeros over {count} bytes \
         at byte {at} of {path}, and start again), or start without this member, with --degraded --force: wherever \
         writes were under way its content may then be wrong",
        path = path.display(), from = Sectors(lba.0).bytes(), to = Sectors(lba.0 + len.0).bytes().0 - 1,
            count = source.op().len, at = source.op().offset
    )]
    Unreadable {
        /// The member.
        path: PathBuf,
        /// Where that is in the array.
        lba: Lba,
        /// How much it is.
        len: Sectors,
        /// What failed.
        source: DiskError,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// ` beside members 1, 4, which are lost already`.
fn describe(lost: MemberSet) -> String {
    let slots: Vec<String> = lost.iter().map(|slot| slot.to_string()).collect();
    match slots.len() {
        0 => String::new(),
        1 => format!(" beside member {}, which is lost already", slots[0]),
        _ => format!(" beside members {}, which are lost already", slots.join(", ")),
    }
}

impl<D: Disk> Assembled<D> {
    /// How much content [`Assembled::recover`] computes parity for: what is in regions whose bits are set in the
    /// write-intent bitmap, or everything; nothing where a log says what to do. Of an array that is initialising, how
    /// much it zeroes on all members together.
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

    /// Brings the array into agreement and marks it clean; blocks. It can be cut off anywhere, and begun again by the
    /// next start. `progress` gets the bytes done so far: of the log, of array content, or of members that are
    /// initialised.
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
        if self.record.consistency() == Consistency::Log { self.redo(progress) } else { self.resync(progress) }
    }

    /// Does again what the log says. Where a member fails that, all of it is done again without the member.
    fn redo(mut self, mut progress: impl FnMut(Bytes)) -> Result<Self, RecoverError> {
        let records = loop {
            // What is missing now may be back after another stop, and lack what is done without it: whether a record is
            // done must not change with that.
            if !planted!(ReplayUnrecorded) {
                self.settle_record()?;
            }
            match self.redo_all(&mut progress) {
                Ok(records) => break records,
                Err(RecoverError::Io(error)) => self.give_up(error)?,
                Err(error) => return Err(error),
            }
        };
        tracing::info!(records, "did again what was in the log");
        if !planted!(GenerationKept) {
            self.record.renew(self.generation);
        }
        self.is_recovered = true;
        Ok(self.run(|_| Ok(()))?)
    }

    /// Does it, and makes it durable; how many records that were.
    fn redo_all(&mut self, progress: impl FnMut(Bytes)) -> Result<usize, RecoverError> {
        let superblocks = self.superblocks();
        let records = redo::redo(&mut self.disk, &superblocks, &self.geometry, progress)?;
        if !planted!(ReplayUnflushed) {
            perform(&mut self.disk, superblocks.iter().flatten().map(|own| flush(own.slot)))?;
        }
        Ok(records)
    }

    /// Computes parity from the data where it may not agree, and marks the array clean; blocks. `progress` gets the
    /// bytes of array content done so far. The bits of the bitmap's regions are kept until it is over.
    ///
    /// # Errors
    /// When the array can't do without what fails: it stays marked.
    fn resync(mut self, progress: impl FnMut(Bytes)) -> Result<Self, RecoverError> {
        let suspects = self.suspects();
        let superblocks = self.superblocks();
        let absent = self.record.lost();
        let Self { disk, geometry, losses, .. } = &mut self;
        let mut resync = Resync { disk, geometry, superblocks: &superblocks, absent, losses };
        let stripes = suspects.into_iter().flat_map(|stripes| stripes.start.0..stripes.end.0);
        resync.run(stripes.map(StripeId), progress)?;
        // Now that all agree, the array goes on without those that fail.
        self.record.fail(self.losses.members());
        Ok(self.run(|_| Ok(()))?)
    }

    /// Runs work on an engine of its own, then closes the array.
    fn run(self, work: impl FnOnce(&mut Engine<D, u64>) -> Result<(), EngineError>) -> Result<Self, EngineError> {
        let Self { geometry, record, disk, access, generation, overlay, losses, bitmap, .. } = self;
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
        Ok(Self { geometry, record, disk, access, generation, overlay, is_recovered: true, losses, bitmap })
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
