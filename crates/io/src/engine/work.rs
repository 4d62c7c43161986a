//! Work: what a worker does from beginning to end, and who does it.

use std::ops::Range;

use uraid_layout::{Bytes, Lba, MemberIndex};

use super::background::ahead::Prefetch;
use super::background::sweep::Unit;
use super::between::Side;
use super::change::Change;
use super::command::Command;
use super::core::Core;
use super::damage::Piece;
use super::journal::Journal;
use super::ops::{bytes, close, destage, fail, flush, heal, initialise, join, journal, read, reshape, write};
use super::parts::Parts;
use super::replies::Ticket;
use super::sides::Sides;
use super::transfer::Workspace;
use crate::buf::Buf;

/// A piece of work.
#[derive(Debug)]
pub(super) enum Work {
    /// A client's read.
    Read(Ticket, Lba, Buf),
    /// A client's write, zeros among them.
    Write(write::Request),
    /// A client's read of bytes, and write.
    ReadBytes(Ticket, Bytes, Buf),
    WriteBytes(bytes::BytesRequest),
    Flush(Ticket),
    Close(Ticket),
    /// An administrator gives a member up.
    Fail(Ticket, MemberIndex),
    /// Who is there changes; none: nobody waits for it.
    Change(Option<Ticket>, Box<Change>),
    /// Write out what is dirty of these parity stripes.
    Destage(Side, Range<u64>),
    Heal(Side, Piece),
    Prefetch(Prefetch),
    /// A unit of a sweep.
    Unit(Unit),
    /// Move the next window of a reshape.
    Move,
    /// Put on record how far members are rebuilt.
    SaveRebuild,
    /// Make durable what was written, for the bits of the write-intent bitmap that are cleared then.
    Sync,
    /// Rounds of superblock writes, of the bitmap, of the log.
    KeepRecord,
    KeepIntent,
    Commit,
    CommitPages,
    /// Have the next batch of what the journal has be written out.
    Hurry,
}

impl Work {
    /// What a command takes, of which these sectors are left to do; or the change of who is there that it asks for.
    #[inline]
    pub(super) fn of(ticket: Ticket, command: Command, sectors: Range<Lba>) -> Result<Self, Box<Change>> {
        Ok(match command {
            Command::Read { lba, buf } => Self::Read(ticket, lba, buf),
            Command::Write { lba, buf, fua } => {
                let all = (lba, Bytes(buf.len() as u64).whole_sectors());
                Self::Write(write::Request::content(ticket, all, sectors, buf, fua))
            }
            Command::ReadBytes { at, buf } => Self::ReadBytes(ticket, at, buf),
            Command::WriteBytes { at, buf, fua } => {
                let len = Bytes(buf.len() as u64);
                Self::WriteBytes(bytes::BytesRequest { ticket, at, len, buf: Some(buf), fua, may_punch: false })
            }
            Command::ZeroBytes { at, len, fua, may_punch } => {
                Self::WriteBytes(bytes::BytesRequest { ticket, at, len, buf: None, fua, may_punch })
            }
            Command::WriteZeroes { fua, may_punch, .. } => {
                Self::Write(write::Request::zeroes(ticket, sectors, may_punch, fua))
            }
            Command::Flush => Self::Flush(ticket),
            Command::Close => Self::Close(ticket),
            Command::Fail { member } => Self::Fail(ticket, member),
            Command::Join(joining) => return Err(Box::new(Change::Join(*joining))),
            Command::Replace(joining) => return Err(Box::new(Change::Replace(*joining))),
            Command::ChangeLogs { change, generation } => return Err(Box::new(Change::Logs { change, generation })),
        })
    }

    /// Whether the engine is busy with it: rounds only serve what is.
    fn counts(&self) -> bool {
        !matches!(self, Self::KeepRecord | Self::KeepIntent | Self::Commit | Self::CommitPages)
    }

    /// Whether it reads or writes parity stripes, or relies on who is there to do so.
    fn is_transfer(&self) -> bool {
        let waits = matches!(self, Self::Flush(_) | Self::Close(_) | Self::Sync);
        self.counts() && !waits && !matches!(self, Self::Fail(..) | Self::Change(..))
    }

    /// What it touches, of an array that is being reshaped; sweeps that go over such an array touch nothing but what
    /// they hold back themselves.
    fn extent(&self, sides: &Sides) -> Option<Range<Lba>> {
        sides.below.members.between()?;
        match self {
            Self::Read(_, lba, buf) => Some(*lba..Lba(lba.0 + Bytes(buf.len() as u64).whole_sectors().0)),
            Self::Write(request) => Some(request.range.clone()),
            Self::ReadBytes(_, at, buf) => Some(sides.below.cover(*at, Bytes(buf.len() as u64))),
            Self::WriteBytes(request) => Some(sides.below.cover(request.at, request.len)),
            Self::Destage(side, stripes) => Some(sides.of(*side).content_of(stripes.clone())),
            Self::Heal(side, piece) => Some(sides.of(*side).content_of(piece.stripe.0..piece.stripe.0 + 1)),
            _ => None,
        }
    }
}

/// Does a piece of work.
pub(super) async fn perform(core: &Core, space: &mut Workspace, work: Work) {
    let parts = &core.sides.below;
    let reply = |ticket, result: Result<(), _>| parts.replies.give(ticket, result.map(|()| None));
    let _under_way = work.counts().then(|| core.begin(work.is_transfer(), work.extent(&core.sides)));
    match work {
        Work::Read(ticket, lba, buf) => read::read(core, space, ticket, lba, buf).await,
        Work::Write(request) => initialise::write(&core.sides, space, request).await,
        // Rare: their state is not part of every worker's.
        Work::ReadBytes(ticket, at, buf) => Box::pin(bytes::read(core, space, ticket, at, buf)).await,
        Work::WriteBytes(request) => Box::pin(bytes::write(core, space, request)).await,
        Work::Flush(ticket) => reply(ticket, flush::flush(&core.sides).await),
        Work::Close(ticket) => reply(ticket, close::close(core).await),
        Work::Fail(ticket, member) => reply(ticket, fail::fail(&parts.members, member).await),
        Work::Change(ticket, change) => {
            // Rare and large: its state is not part of every worker's.
            match (ticket, Box::pin(join::change(core, space, *change)).await) {
                (Some(ticket), result) => reply(ticket, result),
                (None, result) => core.background.copies.note_changed(parts, result),
            }
            core.end_change();
        }
        Work::Destage(side, stripes) => destage::destage(core.sides.of(side), space, stripes).await,
        Work::Heal(side, piece) => heal::heal(core.sides.of(side), space, piece).await,
        Work::Prefetch(prefetch) => core.ahead.prefetch(parts, space, prefetch).await,
        Work::Unit(unit) => core.background.perform(parts, space, unit).await,
        // Rare and large, too.
        Work::Move => Box::pin(reshape::advance(core, space)).await,
        Work::SaveRebuild => core.background.rebuild.save(parts).await,
        // Whoever relies on it finds out by itself whether it was.
        Work::Sync => drop(flush::durable(parts, flush::Covers::InPlace).await),
        Work::KeepRecord => {
            parts.members.keep_record().await;
            parts.intent.reseal(parts.members.record().any().seal(), &parts.members);
        }
        Work::KeepIntent => parts.intent.keep(&parts.members).await,
        Work::Commit => {
            let log = parts.log.as_ref().expect("what is committed waits for the log");
            log.commit(&parts.members, &parts.flusher, &parts.replies).await;
        }
        // Whoever needs the room finds out by itself whether there is any.
        Work::Hurry => drop(journal::hurry(parts).await),
        Work::CommitPages => {
            let log = &parts.journal.as_ref().expect("pages wait for the journal").log;
            log.commit(&parts.members, &parts.flusher, &parts.replies).await;
            if log.has_late() {
                journal::settle(parts);
            }
        }
    }
}

/// The rounds of superblocks, bitmap and logs that somebody waits for.
pub(super) fn rounds(parts: &Parts) -> impl Iterator<Item = Work> {
    let wants_pages = parts.journal.as_ref().is_some_and(|journal| journal.log.wants_commit());
    let rounds = [
        (parts.log.as_ref().is_some_and(|log| log.wants_commit()), Work::Commit),
        (wants_pages, Work::CommitPages),
        // Not while somebody waits until nothing is under way.
        (!parts.repairs.is_held.get() && parts.journal.as_ref().is_some_and(Journal::takes_up_hurry), Work::Hurry),
        (parts.members.wants_record_round(), Work::KeepRecord),
        (parts.intent.wants_round(), Work::KeepIntent),
    ];
    if parts.sums.as_ref().is_some_and(|sums| sums.write_dirty(&parts.members)) {
        parts.wake_repairs();
    }
    rounds.into_iter().filter_map(|(is_wanted, round)| is_wanted.then_some(round))
}
