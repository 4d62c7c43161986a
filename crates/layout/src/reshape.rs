//! The course of a reshape: in which order an array's content moves from one geometry to another on the same members.
//!
//! Of the two geometries one is *denser*: it takes no more of each member than the other for the same content. Content
//! below the *mark* is where the denser one has it, content from the mark on is where the other one has it. Moving the
//! mark up is one direction, moving it down is the other; so a reshape that turns round goes back the way that it came.
//!
//! Invariants: the mark moves in whole parity stripes of both geometries, so everything on one side of it has its
//! redundancy. A window's new places are never places of content that is neither in it nor moved: the denser geometry
//! has whatever is below the mark at lower addresses than the other one has what is above it. They may be the window's
//! own old places; then its content has to be saved first ([`Window::is_saved`]). Like everything here it does no I/O.

use core::ops::Range;

use crate::{Geometry, GeometryError, Lba, Level, Placement, Sectors, Spec};

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    from: Geometry,
    to: Geometry,
    kept: Sectors,
    /// Whether `to` is the denser one, so that the mark moves up on the way there.
    rises: bool,
    /// A multiple of the parity stripes of both.
    unit: Sectors,
}

/// Where the mark moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// Content moves to the denser geometry.
    Up,
    /// Content moves to the other one.
    Down,
}

/// Content that moves at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// What it is.
    pub content: Range<Lba>,
    /// Whether its new places are some of its old ones, so that its content has to be safe elsewhere first.
    pub is_saved: bool,
}

/// How much moves at once, at most; always at least one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Where nothing has to be saved.
    pub plain: Sectors,
    /// Where the content has to be saved first.
    pub saved: Sectors,
}

/// Why there is no way from one geometry to another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CourseError {
    /// One of them is impossible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A member's parts of a parity stripe are far from each other.
    #[error("an array with a partitioned placement can't be reshaped, nor become one; copy the content to a new array")]
    Partitioned,
    /// One of them has less room than there is content.
    #[error("the members have room for {room} sectors in that shape, and {kept} are to be kept")]
    NoRoom {
        /// The room.
        room: Sectors,
        /// The content.
        kept: Sectors,
    },
    /// There is nothing to move.
    #[error("nothing is to be kept")]
    Nothing,
    /// No number of sectors is a multiple of both parity stripes.
    #[error("the parity stripes have no common multiple")]
    Unlike,
}

impl Course {
    /// The course from one geometry to another, for so much content. Each is used as far as that needs it.
    ///
    /// # Errors
    /// See [`CourseError`].
    pub fn new(from: Spec, to: Spec, kept: Sectors) -> Result<Self, CourseError> {
        let (from, to) = (fitted(from, kept)?, fitted(to, kept)?);
        let (one, other) = (from.stripe_sectors().0, to.stripe_sectors().0);
        let unit = (one / gcd(one, other)).checked_mul(other).ok_or(CourseError::Unlike)?;
        let unit = Sectors(unit);
        let rises = rows(&to, unit) <= rows(&from, unit);
        Ok(Self { from, to, kept, rises, unit })
    }

    /// The geometry that the array had.
    #[must_use]
    pub fn from(&self) -> &Geometry {
        &self.from
    }

    /// The geometry that it is to get.
    #[must_use]
    pub fn to(&self) -> &Geometry {
        &self.to
    }

    /// The geometry of what is below the mark.
    #[must_use]
    pub fn below(&self) -> &Geometry {
        if self.rises { &self.to } else { &self.from }
    }

    /// The geometry of what is not.
    #[must_use]
    pub fn above(&self) -> &Geometry {
        if self.rises { &self.from } else { &self.to }
    }

    /// How much content there is.
    #[must_use]
    pub fn kept(&self) -> Sectors {
        self.kept
    }

    /// What the mark is a multiple of, unless everything is below it.
    #[must_use]
    pub fn unit(&self) -> Sectors {
        self.unit
    }

    /// Where the mark moves on the way to the new geometry, or on the way back.
    #[must_use]
    pub fn heading(&self, is_back: bool) -> Heading {
        if self.rises == is_back { Heading::Down } else { Heading::Up }
    }

    /// Where the mark ends in a direction.
    #[must_use]
    pub fn end(&self, heading: Heading) -> Lba {
        match heading {
            Heading::Up => Lba(self.kept.0),
            Heading::Down => Lba(0),
        }
    }

    /// Where the mark begins on the way to the new geometry.
    #[must_use]
    pub fn start(&self) -> Lba {
        self.end(self.heading(true))
    }

    /// The geometry that content comes from.
    #[must_use]
    pub fn source(&self, heading: Heading) -> &Geometry {
        match heading {
            Heading::Up => self.above(),
            Heading::Down => self.below(),
        }
    }

    /// The geometry that it gets to.
    #[must_use]
    pub fn target(&self, heading: Heading) -> &Geometry {
        match heading {
            Heading::Up => self.below(),
            Heading::Down => self.above(),
        }
    }

    /// Whether the mark can be there.
    #[must_use]
    pub fn is_mark(&self, mark: Lba) -> bool {
        mark.0 == self.kept.0 || mark.0 < self.kept.0 && mark.0.is_multiple_of(self.unit.0)
    }

    /// The content between the mark and where it is so much later; none beyond the end.
    #[must_use]
    pub fn ahead(&self, mark: Lba, heading: Heading, len: Sectors) -> Option<Range<Lba>> {
        let range = match heading {
            Heading::Up => mark.0..mark.0.checked_add(len.0)?,
            Heading::Down => mark.0.checked_sub(len.0)?..mark.0,
        };
        (range.end <= self.kept.0).then_some(Lba(range.start)..Lba(range.end))
    }

    /// What moves next; none at the end.
    ///
    /// # Panics
    /// When the mark can't be there.
    #[must_use]
    pub fn next(&self, mark: Lba, heading: Heading, pace: Pace) -> Option<Window> {
        assert!(self.is_mark(mark), "the mark is between whole stripes of both geometries");
        let unit = self.unit.0;
        // In units; of the last one there may be a part only.
        let (at, end) = (mark.0.div_ceil(unit), self.kept.0.div_ceil(unit));
        let (below, above) = (rows(self.below(), self.unit), rows(self.above(), self.unit));
        let window = |start: u64, end: u64, is_saved| Window {
            content: Lba(start * unit)..Lba((end * unit).min(self.kept.0)),
            is_saved,
        };
        let most = |pace: Sectors| (pace.0 / unit).max(1);
        if mark == self.end(heading) {
            return None;
        }
        Some(match heading {
            Heading::Up => {
                // What is below then ends where what is above begins now.
                let free = product(at, above) / u128::from(below);
                let free = u64::try_from(free).unwrap_or(u64::MAX).min(end);
                if free > at {
                    window(at, free.min(at.saturating_add(most(pace.plain))), false)
                } else {
                    window(at, end.min(at.saturating_add(most(pace.saved))), true)
                }
            }
            Heading::Down => {
                // What is above then begins where what is below ends now.
                let free = product(at, below).div_ceil(u128::from(above));
                let free = u64::try_from(free).expect("a quotient of at most one");
                if free < at {
                    window(free.max(at.saturating_sub(most(pace.plain))), at, false)
                } else {
                    window(at.saturating_sub(most(pace.saved)), at, true)
                }
            }
        })
    }
}

/// How many sectors of each member so much content takes, which is whole parity stripes.
fn rows(geometry: &Geometry, content: Sectors) -> u64 {
    content.0 / geometry.stripe_sectors().0 * stride(geometry)
}

/// How many sectors of each member a parity stripe takes.
fn stride(geometry: &Geometry) -> u64 {
    u64::try_from(geometry.rows()).expect("rows are few") * geometry.chunk().0
}

/// The geometry as far as it is needed for so much content.
fn fitted(spec: Spec, kept: Sectors) -> Result<Geometry, CourseError> {
    if matches!(spec.level, Level::Rm2 { placement: Placement::Partitioned, .. }) {
        return Err(CourseError::Partitioned);
    }
    let whole = Geometry::new(spec)?;
    match kept.0 {
        0 => return Err(CourseError::Nothing),
        kept if kept > whole.capacity().0 => {
            return Err(CourseError::NoRoom { room: whole.capacity(), kept: Sectors(kept) });
        }
        _ => {}
    }
    let stripes = kept.0.div_ceil(whole.stripe_sectors().0);
    if stripes == whole.stripes().0 {
        return Ok(whole);
    }
    Ok(Geometry::new(Spec { member_size: Sectors(stripes * stride(&whole)), ..spec })?)
}

fn product(one: u64, other: u64) -> u128 {
    u128::from(one) * u128::from(other)
}

fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
