//! What happens to an array: its names for administrators' programs, and its lines in the log.

use std::fmt;

use uraid_io::format::superblock::LogIndex;
use uraid_layout::{MemberIndex, MemberSet};

use crate::text::list;

const MISMATCH: &str = "a scrub found members that disagree, or blocks that do not match their checksums";

const INCOMPLETE: &str =
    "a scrub is incomplete because members are missing; the next one is due when the array is whole";

/// An event that administrators want to know about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The array is being served.
    Started,
    /// The array is no longer served.
    Stopped,
    /// A member failed, and the array continues without it.
    MemberFailed(MemberIndex),
    /// A member's file was deleted, and the array can't do without it.
    MemberDeleted(MemberIndex),
    /// A member lost content that the others can't make up for, or has many errors and the array can't do without it.
    MemberFailing(MemberIndex),
    /// Writes wait for room on a member's file system.
    MemberNoRoom(MemberIndex),
    /// A member does not answer, and somebody waits for it.
    MemberStalled(MemberIndex),
    /// Members are missing or lack content.
    Degraded,
    /// Clients wait for members, and nothing worse is the case.
    Stalled,
    /// Content is unavailable, lost, or about to be lost.
    Failing,
    /// The rest of the array is read: members are out of date, or too many are gone.
    Salvage,
    /// More members failed than the level survives. The set holds the last of them.
    Frozen(MemberSet),
    /// Flushes fail, because acknowledged data can't be written out. The set holds the members that prevent it.
    Unwritten(MemberSet),
    /// All of that data, or newer data in its place, has been written out.
    WrittenOut,
    /// Content is lost, or more than before. The set holds the members with bad blocks.
    ContentLost(MemberSet),
    /// No content is lost any more.
    ContentRestored,
    /// A rebuild can't continue: these members can't be read, and a list of bad blocks is full.
    RebuildStuck(MemberSet),
    /// A copy can't continue: these members can't be read, and a list of bad blocks is full.
    ReplaceStuck(MemberSet),
    /// What is new of the array becomes zeros on its members where nobody has written.
    InitialiseStarted,
    /// All of it is.
    InitialiseFinished,
    /// The array has grown while it is served.
    Grown,
    /// Content begins to move to another shape.
    ReshapeStarted,
    /// Content can't be moved now: it can't be read, or written where it is to be.
    ReshapeStuck,
    /// A reshape is over: the array has its new shape, or again the one that it had.
    ReshapeFinished {
        /// It went back.
        is_back: bool,
    },
    /// A spare takes the place of a member.
    SpareTaken(MemberIndex),
    /// A member on a network, whose connection broke, returns by itself.
    MemberReturns(MemberIndex),
    /// A member joined and is being rebuilt.
    RebuildStarted(MemberIndex),
    /// A member is complete.
    RebuildFinished(MemberIndex),
    /// A member is being copied to another one.
    ReplaceStarted(MemberIndex),
    /// The copy has taken the member's place.
    ReplaceFinished(MemberIndex),
    /// The copy was stopped, and the member keeps its place.
    ReplaceStopped(MemberIndex),
    /// The member being copied failed. The new one takes its place as it is, and is rebuilt.
    ReplaceRebuilding(MemberIndex),
    /// Every member is present and complete again.
    Recovered,
    /// A scrub has begun.
    ScrubStarted,
    /// A scrub has found a mismatch.
    ScrubMismatch,
    /// A scrub has compared everything.
    ScrubFinished,
    /// A scrub has compared what it could while members were missing. It does not count as complete.
    ScrubIncomplete,
    /// A member takes many times as long as the others.
    MemberLagging(MemberIndex),
    /// A member's disk reports that it is failing.
    MemberSmart(MemberIndex),
    /// A member was missing when the server started.
    MemberMissing(MemberIndex),
    /// A log device failed or is missing, and the array continues without it.
    LogDeviceFailed(LogIndex),
    /// A log device's file was deleted, and the array can't do without it.
    LogDeviceDeleted(LogIndex),
    /// A log device does not answer, and writes wait for it.
    LogDeviceStalled(LogIndex),
    /// A log device has come while the array is served.
    LogDeviceJoined(LogIndex),
}

impl Event {
    /// The event's name for the program.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::MemberFailed(_) => "member-failed",
            Self::MemberDeleted(_) => "member-deleted",
            Self::MemberFailing(_) => "member-failing",
            Self::MemberNoRoom(_) => "member-no-room",
            Self::MemberStalled(_) => "member-stalled",
            Self::Degraded => "degraded",
            Self::Stalled => "stalled",
            Self::Failing => "failing",
            Self::Salvage => "salvage",
            Self::Frozen(_) => "frozen",
            Self::Unwritten(_) => "unwritten",
            Self::WrittenOut => "written-out",
            Self::ContentLost(_) => "content-lost",
            Self::ContentRestored => "content-restored",
            Self::RebuildStuck(_) => "rebuild-stuck",
            Self::ReplaceStuck(_) => "replace-stuck",
            Self::InitialiseStarted => "initialise-started",
            Self::InitialiseFinished => "initialise-finished",
            Self::Grown => "grown",
            Self::ReshapeStarted => "reshape-started",
            Self::ReshapeStuck => "reshape-stuck",
            Self::ReshapeFinished { .. } => "reshape-finished",
            Self::SpareTaken(_) => "spare-taken",
            Self::MemberReturns(_) => "member-returns",
            Self::RebuildStarted(_) => "rebuild-started",
            Self::RebuildFinished(_) => "rebuild-finished",
            Self::ReplaceStarted(_) => "replace-started",
            Self::ReplaceFinished(_) => "replace-finished",
            Self::ReplaceStopped(_) => "replace-stopped",
            Self::ReplaceRebuilding(_) => "replace-rebuilding",
            Self::Recovered => "recovered",
            Self::ScrubStarted => "scrub-started",
            Self::ScrubMismatch => "scrub-mismatch",
            Self::ScrubFinished => "scrub-finished",
            Self::ScrubIncomplete => "scrub-incomplete",
            Self::MemberLagging(_) => "member-lagging",
            Self::MemberSmart(_) => "member-smart",
            Self::MemberMissing(_) => "member-missing",
            Self::LogDeviceFailed(_) => "log-device-failed",
            Self::LogDeviceDeleted(_) => "log-device-deleted",
            Self::LogDeviceStalled(_) => "log-device-stalled",
            Self::LogDeviceJoined(_) => "log-device-joined",
        }
    }

    /// What it is about beside members, for the program's environment: a variable and its value.
    pub(super) fn detail(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::ReshapeFinished { is_back } => Some(("URAID_SHAPE", if is_back { "old" } else { "new" })),
            _ => None,
        }
    }

    /// The log device that the event is about.
    pub(super) fn log_device(self) -> Option<LogIndex> {
        match self {
            Self::LogDeviceFailed(log)
            | Self::LogDeviceDeleted(log)
            | Self::LogDeviceStalled(log)
            | Self::LogDeviceJoined(log) => Some(log),
            _ => None,
        }
    }

    /// The members that the event is about.
    pub(super) fn members(self) -> MemberSet {
        match self {
            Self::Frozen(members)
            | Self::Unwritten(members)
            | Self::ContentLost(members)
            | Self::RebuildStuck(members)
            | Self::ReplaceStuck(members) => members,
            Self::MemberFailed(member)
            | Self::MemberDeleted(member)
            | Self::MemberFailing(member)
            | Self::MemberNoRoom(member)
            | Self::MemberStalled(member)
            | Self::MemberLagging(member)
            | Self::MemberSmart(member)
            | Self::MemberMissing(member)
            | Self::SpareTaken(member)
            | Self::MemberReturns(member)
            | Self::RebuildStarted(member)
            | Self::RebuildFinished(member)
            | Self::ReplaceStarted(member)
            | Self::ReplaceFinished(member)
            | Self::ReplaceStopped(member)
            | Self::ReplaceRebuilding(member) => MemberSet::EMPTY.with(member),
            _ => MemberSet::EMPTY,
        }
    }

    /// Logs the event, of an array in such a health.
    pub(super) fn log(self, array: &str, members: &[String], health: &str) {
        let event = self.name();
        let member = (!members.is_empty()).then(|| list(members));
        match self {
            Self::MemberFailed(slot) => {
                tracing::error!(event, array, %slot, member, "a member failed, and the array continues without it");
            }
            Self::SpareTaken(slot) => {
                tracing::warn!(event, array, %slot, member, "a spare takes the place of a member");
            }
            Self::MemberReturns(slot) => log_returning(event, array, slot, members),
            Self::RebuildStarted(slot) => tracing::info!(event, array, %slot, member, "a member is being rebuilt"),
            Self::RebuildFinished(slot) => tracing::info!(event, array, %slot, member, "a member has been rebuilt"),
            Self::ReplaceStarted(slot) => {
                tracing::info!(event, array, %slot, member, "a member is being copied to another one");
            }
            Self::ReplaceFinished(slot) => {
                tracing::info!(event, array, %slot, member, "a member has taken over a slot from another one");
            }
            Self::ReplaceStopped(slot) => {
                tracing::warn!(event, array, %slot, member, "the copy of a member was stopped: the member keeps its \
                    slot, and the copy has to be started again");
            }
            Self::ReplaceRebuilding(slot) => {
                tracing::warn!(event, array, %slot, member, "a member failed while it was copied: the new one takes \
                    over its slot now and is rebuilt");
            }
            Self::MemberDeleted(slot) => {
                tracing::error!(event, array, %slot, member, "a member's file was deleted, and its content is lost \
                    when the server ends");
            }
            Self::MemberFailing(slot) => {
                tracing::error!(event, array, %slot, member, "a member lost content that the other members can't make \
                    up for, or has too many errors");
            }
            Self::MemberNoRoom(slot) => {
                tracing::error!(event, array, %slot, member, "writes wait for room on a member's file system");
            }
            Self::MemberStalled(slot) => {
                tracing::error!(event, array, %slot, member, "a member does not answer, and the array waits for it");
            }
            Self::Frozen(_)
            | Self::Salvage
            | Self::Failing
            | Self::Unwritten(_)
            | Self::ContentLost(_)
            | Self::RebuildStuck(_)
            | Self::ReplaceStuck(_) => {
                tracing::error!(event, array, member, "the array is {health}");
            }
            Self::WrittenOut => tracing::info!(event, array, "all cached content can be written out again"),
            Self::ContentRestored => tracing::info!(event, array, "no content is lost any more"),
            Self::Grown => tracing::info!(event, array, "clients that connect again see the array's new size"),
            Self::Stalled => tracing::warn!(event, array, "the array is {health}"),
            Self::Degraded => tracing::warn!(event, array, "the array is degraded"),
            Self::MemberLagging(slot) => {
                tracing::warn!(event, array, %slot, member, "a member is many times slower than the others and slows \
                    the array down");
            }
            Self::MemberSmart(slot) => {
                tracing::error!(event, array, %slot, member, "a member's disk says of itself that it fails (SMART): \
                    replace it");
            }
            Self::MemberMissing(slot) => {
                tracing::warn!(event, array, %slot, member, "a member is missing: the array is served without it");
            }
            Self::LogDeviceFailed(log) => log_lost(event, array, log, members),
            Self::LogDeviceDeleted(log) => log_deleted(event, array, log, members),
            Self::LogDeviceStalled(log) => log_stalled(event, array, log, members),
            Self::LogDeviceJoined(log) => log_joined(event, array, log, members),
            Self::Started | Self::Stopped | Self::Recovered => tracing::info!(event, array, "the array is {self}"),
            Self::InitialiseStarted => tracing::info!(event, array, "what is new becomes zeros on the members"),
            Self::InitialiseFinished => tracing::info!(event, array, "the array is initialised"),
            Self::ReshapeStarted => tracing::info!(event, array, "content moves to another shape"),
            Self::ReshapeStuck => tracing::error!(event, array, "content can't be moved to another shape now"),
            Self::ReshapeFinished { is_back } => log_reshaped(event, array, is_back),
            Self::ScrubStarted => tracing::info!(event, array, "a scrub has begun"),
            Self::ScrubMismatch => tracing::error!(event, array, "{MISMATCH}"),
            Self::ScrubFinished => tracing::info!(event, array, "a scrub is complete"),
            Self::ScrubIncomplete => tracing::warn!(event, array, "{INCOMPLETE}"),
        }
    }
}

fn log_returning(event: &str, array: &str, slot: MemberIndex, members: &[String]) {
    let member = members.first();
    tracing::info!(event, array, %slot, member, "a member returns by itself: its server answers again");
}

fn log_lost(event: &str, array: &str, log: LogIndex, device: &[String]) {
    let device = device.first();
    tracing::error!(event, array, %log, device, "a log device failed or is missing, and the array goes on without it");
}

fn log_deleted(event: &str, array: &str, log: LogIndex, device: &[String]) {
    let device = device.first();
    tracing::error!(event, array, %log, device, "a log device's file was deleted, and is used until the server ends: \
        put another one in");
}

fn log_stalled(event: &str, array: &str, log: LogIndex, device: &[String]) {
    let device = device.first();
    tracing::error!(event, array, %log, device, "a log device does not answer, and writes wait for it");
}

fn log_joined(event: &str, array: &str, log: LogIndex, device: &[String]) {
    let device = device.first();
    tracing::info!(event, array, %log, device, "a log device has come, and has every record from now on");
}

fn log_reshaped(event: &str, array: &str, back: bool) {
    let end =
        if back { "went back: the array has the shape that it had" } else { "is over: the array has its new shape" };
    tracing::info!(event, array, back, "a reshape {end}; clients that connect again see its size");
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recovered => "whole again",
            event => event.name(),
        })
    }
}
