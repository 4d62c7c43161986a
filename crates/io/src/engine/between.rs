//! The way from one shape to another, of an array that is being reshaped while it is served.
//!
//! What is below the mark is in one shape, what is not is in the other: see [`Course`]. Each has stripes, locks and a
//! cache of its own ([`Parts`](super::parts::Parts)), and an address is in one of them. The mark moves while nothing
//! else is under way ([`ops::reshape`](super::ops::reshape)), so no operation sees it move.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use uraid_layout::reshape::{Course, Heading, Pace};
use uraid_layout::{Bytes, Lba};

use super::record::Record;
use crate::array::reshape::moving::MEMORY;
use crate::array::reshape::saved::{self, Copies};
use crate::buf::Pool;

/// Which of the shapes that the array has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The only one; while it is being reshaped, that of what is below the mark.
    Below,
    /// That of what is not.
    Above,
}

/// A window, and what nobody has of it.
type Moved = (Range<Lba>, Vec<Range<Lba>>);

/// See the module.
#[derive(Debug)]
pub(super) struct Between {
    pub(super) course: Course,
    /// How much can move at once, and how it is saved.
    pub(super) pace: Pace,
    pub(super) copies: Copies,
    /// The mark that is on record.
    pub(super) mark: Cell<Lba>,
    /// It is to go back.
    pub(super) is_back: Cell<bool>,
    /// How much moves at once, at most.
    pub(super) window: Cell<Bytes>,
    /// Where content is that could not be moved when that was tried last.
    pub(super) stuck: Cell<Option<Lba>>,
    /// Memory for what moves.
    pub(super) memory: Pool,
    /// The window whose places change, and what nobody has of it, whatever lists say of either shape.
    pub(super) moving: RefCell<Option<Moved>>,
    /// Something that members lacked was written: what could not move may.
    pub(super) is_mended: Cell<bool>,
}

impl Between {
    /// The way on which the members say that the array is.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let own = record.any();
        let (course, reshape) = (own.course()?, own.reshape?);
        let (room, unit) = (saved::room(record.superblocks().flatten()), course.unit());
        let copies = Copies::of(&course);
        let pace = saved::pace(&course, copies, room).unwrap_or(Pace { plain: unit, saved: unit });
        let (mark, is_back) = (Cell::new(reshape.mark), Cell::new(reshape.is_back));
        Some(Self {
            course,
            pace,
            copies,
            mark,
            is_back,
            window: Cell::new(Bytes(u64::MAX)),
            stuck: Cell::new(None),
            memory: Pool::new(MEMORY),
            moving: RefCell::default(),
            is_mended: Cell::new(false),
        })
    }

    /// Which shape has an address.
    pub(super) fn side(&self, lba: Lba) -> Side {
        if lba < self.mark.get() { Side::Below } else { Side::Above }
    }

    /// Where the mark moves.
    pub(super) fn heading(&self) -> Heading {
        self.course.heading(self.is_back.get())
    }

    /// Whether all content is where it is to be.
    pub(super) fn is_over(&self) -> bool {
        self.mark.get() == self.course.end(self.heading())
    }
}
