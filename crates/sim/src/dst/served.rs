//! A reshape that goes on while the array is served: begun while it is stopped, then steered over several lives, while
//! clients go on, members fail and the power goes.
//!
//! What is expected is content by address, as ever: an address is in one of two shapes, and the array survives what
//! both survive. When all content is where it is to be, the array is given that shape as a server does it, and its life
//! goes on.

use uraid_io::format::superblock::{SlotEntry, SlotState, Superblock};
use uraid_layout::{Bytes, Lba, MemberIndex};

use super::report::Served;
use super::session::Session;
use crate::member::Member;
use crate::members::Members;
use uraid_random::Random;

/// How much may move at once: about a parity stripe, some, or all that can.
const WINDOWS: [Bytes; 5] = [Bytes(4096), Bytes(4096), Bytes(24 << 10), Bytes(64 << 10), Bytes(u64::MAX)];

/// The most ticks that pass at once: a window moves in one.
const TICKS_MAX: u64 = 8;

/// Who steers reshapes.
#[derive(Debug)]
pub(super) struct Mover {
    /// All of it is drawn from this.
    pub(super) random: Random,
    pub(super) counts: Served,
    /// Where the mark was when it was looked at last.
    mark: Option<Lba>,
    /// Whether the array may grow in this life.
    may_grow: bool,
    /// What is about beginnings without a stop is drawn from this.
    pub(super) beginnings: Random,
    /// Whether one may begin in this life.
    may_begin: bool,
}

impl Mover {
    pub(super) fn new(random: Random, beginnings: Random) -> Self {
        let counts = Served::default();
        Self { random, counts, mark: None, may_grow: false, beginnings, may_begin: false }
    }

    /// Begins another life of the array, in which it may grow, or begin to get another shape.
    pub(super) fn begin_life(&mut self, session: &Session<'_>, may_change: bool) {
        (self.mark, self.may_grow, self.may_begin) = (None, may_change, may_change);
        if let Some(way) = session.engine.reshape() {
            way.limit_window(*self.random.pick(&WINDOWS));
        }
    }

    /// Does something, now and then: how many ticks are to pass after it.
    pub(super) fn act(&mut self, session: &Session<'_>) -> usize {
        let Some(way) = session.engine.reshape() else { return 0 };
        let is_over = way.is_over();
        match self.random.below(24) {
            // What is about to be over goes the other way now and then: what has moved moves back.
            turn if turn == 0 || is_over && turn > 20 => {
                let is_back = if is_over { !way.progress().is_back } else { self.random.chance(1, 2) };
                self.counts.turns += u64::from(way.progress().is_back != is_back);
                way.turn(is_back);
                0
            }
            1 => {
                way.limit_window(*self.random.pick(&WINDOWS));
                0
            }
            2..=8 => usize::try_from(self.random.within(1, TICKS_MAX)).expect("few"),
            _ => 0,
        }
    }

    /// Whether the array is to grow now; once in a life.
    pub(super) fn wants_growth(&mut self, session: &Session<'_>) -> bool {
        let wants = self.may_grow && session.engine.reshape().is_none() && self.random.chance(1, 48);
        self.may_grow &= !wants;
        wants
    }

    /// Whether the array is to begin to get another shape now; once in a life, in which it does not grow.
    pub(super) fn wants_shape(&mut self, session: &Session<'_>) -> bool {
        let may_begin = self.may_begin && session.engine.reshape().is_none() && session.larger.is_none();
        let wants = may_begin && self.beginnings.chance(1, 48);
        self.may_begin &= !wants;
        self.may_grow &= !wants;
        wants
    }

    /// Takes note that a reshape has begun without a stop.
    pub(super) fn begun(&mut self, session: &Session<'_>) {
        self.counts.begun += 1;
        self.counts.begun_running += 1;
        if let Some(way) = session.engine.reshape() {
            way.limit_window(*self.beginnings.pick(&WINDOWS));
        }
    }

    /// Takes note of what a turn of the engine has moved.
    pub(super) fn turned(&mut self, session: &Session<'_>) {
        let mark = session.engine.superblock().reshape.map(|reshape| reshape.mark);
        let before = std::mem::replace(&mut self.mark, mark);
        if let (Some(mark), Some(before)) = (mark, before)
            && mark != before
        {
            self.counts.windows += 1;
            self.counts.windows_under_load += u64::from(session.pending() > 0);
        }
    }

    /// Takes note that a reshape is over.
    pub(super) fn ended(&mut self, is_back: bool) {
        self.mark = None;
        self.counts.ended += 1;
        self.counts.ended_back += u64::from(is_back);
    }
}

/// What the members of an array have on record, of both shapes while it is being reshaped; `truth` is of one that
/// counts.
pub(super) fn superblocks_of(truth: &Superblock, members: &Members) -> Vec<Superblock> {
    let own = |(slot, entry): (u8, &SlotEntry)| {
        let (slot, member) = (MemberIndex(slot), entry.member);
        let own = members.get(slot).and_then(|member| member.superblock().ok()).filter(|own| own.member == member);
        own.unwrap_or_else(|| Superblock { slot, member, ..truth.clone() })
    };
    (0..).zip(&truth.slots).map(own).collect()
}

/// The members that an array has on record as failed.
pub(super) fn given_up(truth: &Superblock) -> impl Iterator<Item = uuid::Uuid> {
    truth.slots.iter().filter(|entry| entry.state == SlotState::Failed).map(|entry| entry.member)
}

/// Whether a member may be of an array some time. Who has a smaller log than it needs now is rightly refused.
pub(super) fn suits(member: &Member, truth: &Superblock) -> bool {
    let fits = |own: Superblock| own.slot.index() < truth.slots.len() && own.areas.log.size >= truth.areas.log.size;
    member.superblock().is_ok_and(fits)
}
