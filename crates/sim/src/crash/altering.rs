//! Every crash of growing an array and of giving it another shape.
//!
//! Whatever is left is either an array with all that it held, or one that is between two shapes: nothing but a reshape
//! opens that, and it goes on, and back, to such an array. New space holds zeros, parity agrees, and members of any set
//! that both shapes survive may be lost with the crash. Some of the openings and resumptions are cut off, too.

use std::collections::HashSet;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use uraid_io::array::{
    Assembled, Candidate, NewMember, OpenError, OpenOptions, Reshaping, Target, Verdict, begin_reshape, check_presence,
    grow, judge, plan_reshape,
};
use uraid_io::disk::Disk;
use uraid_io::format::bitmap::{Bitmap, Regions};
use uraid_io::format::superblock::{Consistency, SlotState, Superblock};
use uraid_io::member::Access;
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, Rotation, Sectors, Spec};
use uuid::Uuid;

use super::check::recover;
use super::plain::Plain;
use super::shape::Shape;
use super::states::{Grain, Limit, States, mix};
use super::tape::{Event, Tape};
use super::workload::{Failing, Order};
use super::{Counts, Failure, Finding};
use crate::dst::audit::{Audit, tolerated};
use crate::dst::blank;
use crate::dst::model::Model;
use crate::image::{Image, SECTOR};
use crate::member::{Member, may_be_served, superblock_of};
use crate::members::Members;

/// Of one state in so many the resumption is cut off, too.
const NESTED_EVERY: u64 = 1 << 6;

/// All choices, where there are no more.
const CHOICES_MAX: u128 = 1 << 6;

const GENERATIONS: [Uuid; 2] = [Uuid::from_u128(0x9), Uuid::from_u128(0xA)];

/// A stopped array, and what is to become of it.
#[derive(Debug)]
pub struct Alteration {
    /// As it is before, with all members that take part: what states are told apart by.
    shape: Shape,
    change: Change,
    order: Order,
    /// Whether superblocks are torn sector by sector.
    is_fine: bool,
    /// Who fails writes and flushes from some time on, until the power has gone.
    failing: Option<Failing>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    /// It uses so much of each member.
    Grow(Bytes),
    Reshape(Target),
}

/// A moment at which the power may go, and what is left then.
struct Moment {
    states: States,
    /// Whoever asked for it was told that it was done.
    is_done: bool,
    is_nested: bool,
}

/// What a crash left, and what it says.
struct Left {
    images: Vec<Option<Image>>,
    candidates: Vec<Candidate>,
    verdict: Verdict,
}

impl Alteration {
    /// All of them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let (log, bitmap, none) = (Consistency::Log, Consistency::Bitmap, Consistency::None);
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let right = Level::Raid5 { rotation: Rotation::RightAsymmetric };
        let raid6 = Level::Raid6 { rotation: Rotation::LeftSymmetric };
        let rm2 = Level::Rm2 { height: 2, placement: Placement::Adjacent };
        let target = |level, members, chunk, kept| {
            Change::Reshape(Target { level, members, chunk: Bytes(chunk), kept, allow_degraded: true })
        };
        let to = |level, members| target(level, members, 4096, None);
        let fewer = target(Level::Raid1, 2, 8192, Some(Bytes(9 * 4096)));
        let grown = |chunks: u64| Change::Grow(Bytes(4096 * chunks));
        let longer = Shape::longer;
        vec![
            Self::new(longer(Level::Raid1, 2, bitmap, 1, 2), grown(4), Order::Fifo, true),
            Self::new(longer(raid5, 3, log, 1, 2), grown(4), Order::Lifo, false),
            Self::new(longer(Level::Raid10 { copies: 2 }, 5, none, 1, 3), grown(6), Order::Fifo, false),
            Self::new(Shape::checked(raid5, 3), grown(6), Order::Fifo, false),
            Self::new(longer(Level::Raid1, 2, bitmap, 2, 5), to(raid5, 3), Order::Fifo, true),
            Self::new(longer(raid5, 3, log, 4, 10), to(raid5, 4), Order::Fifo, false),
            Self::new(longer(raid5, 4, none, 2, 4), to(right, 4), Order::Lifo, false),
            Self::new(longer(raid5, 4, none, 2, 6), to(raid5, 3), Order::Lifo, false),
            Self::new(longer(rm2, 5, none, 2, 1), to(Level::Raid0, 3), Order::Fifo, false),
            Self::new(longer(raid5, 3, log, 6, 4), to(rm2, 5), Order::Fifo, false),
            Self::new(longer(raid5, 3, log, 4, 6), to(raid6, 4), Order::Fifo, false),
            Self::new(longer(Level::Raid0, 3, none, 2, 4), fewer, Order::Fifo, false),
            // Who fails is given up as the first content moves, and later.
            Self::new(longer(raid5, 3, log, 4, 10), to(raid5, 4), Order::Fifo, false).failing_at(8),
            Self::new(longer(raid5, 3, log, 4, 10), to(raid5, 4), Order::Fifo, false).failing_at(13),
            Self::new(longer(raid5, 4, none, 2, 4), to(right, 4), Order::Lifo, false).failing_at(12),
            // Where nobody can be done without, it ends, and goes on some time.
            Self::new(longer(Level::Raid0, 3, none, 2, 4), fewer, Order::Fifo, false).failing_at(9),
            Self::new(longer(raid5, 3, log, 1, 2), grown(4), Order::Lifo, false).failing_at(8),
        ]
    }

    /// The same; the second member fails at that one of its writes and flushes, and at all that come after.
    fn failing_at(self, index: usize) -> Self {
        Self { failing: Some(Failing { member: MemberIndex(1), index, lasts: true }), ..self }
    }

    fn new(mut shape: Shape, change: Change, order: Order, is_fine: bool) -> Self {
        let mut members = shape.members.clone();
        let used = shape.geometry.used_sectors().bytes().0;
        match change {
            Change::Grow(_) => members.enlarge(Bytes(shape.areas.member_size.0 + (1 << 20))),
            Change::Reshape(target) => {
                members.extend_to(usize::from(target.members));
                let new = shape.geometry.spec().members..target.members;
                new.for_each(|slot| drop(members.replace(MemberIndex(slot), Some(shape.newcomer.clone()))));
            }
        }
        // What the array does not use yet may hold anything.
        let images = (0..members.len()).map(|slot| MemberIndex(u8::try_from(slot).expect("few members"))).map(|slot| {
            let mut image = members.get(slot)?.current().clone();
            let start = shape.areas.data.offset.0 + used;
            (start..start + (64 << 10)).step_by(SECTOR).for_each(|at| image.set(Bytes(at), &[0x5A ^ slot.0; SECTOR]));
            Some(Member::of(image))
        });
        shape.members = Members::of(images.collect());
        Self { shape, change, order, is_fine, failing: None }
    }

    /// The array's shape before.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { shape, change, order, failing, .. } = self;
        let members = shape.geometry.members();
        let failing =
            failing.map_or_else(String::new, |failing| format!("/member{}-fails-at-{}", failing.member, failing.index));
        let name = match change {
            Change::Grow(used) => format!("{shape}/of-{members}/grows-to-{used}/{order:?}{failing}"),
            Change::Reshape(Target { level, members: to, chunk, kept, .. }) => {
                let kept = kept.map_or_else(String::new, |kept| format!("-keeping-{kept}"));
                format!("{shape}/of-{members}/becomes-{}-of-{to}-chunk-{chunk}{kept}/{order:?}{failing}", level.name())
            }
        };
        name.to_lowercase().replace(' ', "-")
    }

    /// Goes through all of it.
    ///
    /// # Errors
    /// The first state that is not as it must be.
    pub fn run(&self) -> Result<Counts, Box<Failure>> {
        let failure = |boundary: String, (choice, lost, finding): (String, MemberSet, Finding)| {
            Box::new(Failure { workload: self.name(), boundary, choice, lost, finding })
        };
        let tape = Tape::new(self.shape.members.clone(), self.order);
        tape.record();
        self.failing.into_iter().for_each(|failing| tape.fail(failing));
        let images = self.shape.members.iter().map(|(_, member)| Some(member.current().clone())).collect();
        let done = self.left(images).and_then(|left| self.alter(tape.clone(), &left));
        match done {
            Ok(()) => tape.note(Event::Replied),
            // What that has left is looked at.
            Err(_) if self.failing.is_some() => {}
            Err(finding) => return Err(failure("no time".into(), (String::new(), MemberSet::EMPTY, finding))),
        }
        let (mut counts, mut seen) = (Counts { workloads: 1, ..Counts::default() }, HashSet::new());
        for (at, (event, members)) in tape.take().into_iter().enumerate() {
            counts.boundaries += 1;
            let is_done = matches!(event, Event::Replied);
            let name = format!("boundary {at}, {event}");
            let states = States::of_stopped(&self.shape, &members);
            let moment = Moment { states, is_done, is_nested: false };
            self.visit(&moment, &mut seen, &mut counts).map_err(|found| failure(name, found))?;
        }
        Ok(counts)
    }

    /// Begins the change, and carries it out.
    fn alter<D: Disk>(&self, disk: D, left: &Left) -> Result<(), Finding> {
        let Left { candidates, verdict, .. } = left;
        let assembled = Assembled::new(disk, verdict, candidates, Access::ReadWrite, GENERATIONS[0]);
        let assembled = assembled.map_err(|error| failed(&error))?;
        match self.change {
            Change::Grow(used) => {
                let size = |image: &Option<Image>| image.as_ref().map(Image::size);
                let sizes: Vec<Option<Bytes>> = left.images.iter().map(size).collect();
                grow(assembled, &sizes, Some(used)).map(drop).map_err(|error| failed(&error))
            }
            Change::Reshape(target) => {
                let new = self.shape.members.iter().skip(self.shape.geometry.members());
                let new = new.map(|(slot, member)| NewMember {
                    path: format!("new{slot}").into(),
                    size: member.size(),
                    sector_size: Bytes(512),
                    is_clear: false,
                });
                let plan =
                    plan_reshape(&assembled, &target, &new.collect::<Vec<_>>()).map_err(|error| failed(&error))?;
                let begun = begin_reshape(assembled, plan, GENERATIONS[0], Ok).map_err(|error| failed(&error))?;
                begun.run(false, GENERATIONS[1], |_| ()).map(drop).map_err(|error| failed(&error))
            }
        }
    }

    /// Goes on with what was cut off, or back.
    fn resume<D: Disk>(&self, disk: D, left: &Left, is_back: bool) -> Result<(), Finding> {
        let Left { candidates, verdict, .. } = left;
        let is_degraded = !verdict.missing().is_empty();
        let found =
            Reshaping::found(disk, verdict, candidates, is_back, is_degraded).map_err(|error| failed(&error))?;
        found.run(is_back, GENERATIONS[1], |_| ()).map(drop).map_err(|error| failed(&error))
    }

    fn visit(
        &self,
        moment: &Moment,
        seen: &mut HashSet<u64>,
        counts: &mut Counts,
    ) -> Result<(), (String, MemberSet, Finding)> {
        let all = MemberSet::all(self.shape.members.len());
        for lost in self.losses() {
            let left = all.minus(lost);
            let is_coarse = moment.is_nested || !self.is_fine || !lost.is_empty();
            let grain = if is_coarse { Grain::Areas } else { Grain::Singles };
            let limit = Limit { choices_max: CHOICES_MAX, grain };
            moment.states.visit(left, limit, |choice, hash| {
                counts.generated += 1;
                let bits = left.iter().fold(u64::from(moment.is_done), |bits, member| bits | 4 << member.0);
                if !seen.insert(mix(hash ^ mix(bits))) {
                    return Ok(());
                }
                counts.states += 1;
                counts.nested += u64::from(moment.is_nested);
                let images = moment.states.images(choice, left);
                let checked = catch_unwind(AssertUnwindSafe(|| self.check(&images, lost, moment.is_done)));
                let found = checked.unwrap_or_else(|panic| Err(Finding::of_panic(&*panic)));
                let found = found.and_then(|is_under_way| {
                    counts.recoveries += u64::from(is_under_way);
                    if !moment.is_nested && hash.is_multiple_of(NESTED_EVERY) {
                        self.cut_off(images, lost, moment, seen, counts)?;
                    }
                    Ok(())
                });
                found.map_err(|finding| (moment.states.describe(choice, left), lost, finding))
            })?;
        }
        Ok(())
    }

    /// Cuts off what goes on with a state at each of its boundaries.
    fn cut_off(
        &self,
        images: Vec<Option<Image>>,
        lost: MemberSet,
        moment: &Moment,
        seen: &mut HashSet<u64>,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        if !lost.is_empty() {
            return Ok(());
        }
        let left = self.left(images)?;
        let members = left.images.iter().map(|image| image.clone().map(Member::of)).collect();
        let tape = Tape::new(Members::of(members), self.order);
        tape.record();
        match left.verdict.superblock.reshape {
            Some(_) => self.resume(tape.clone(), &left, counts.nested.is_multiple_of(2))?,
            None => drop(recover(tape.clone(), &left.verdict, &left.candidates)?),
        }
        for (event, members) in tape.take() {
            counts.boundaries += 1;
            let states = States::of_stopped(&self.shape, &members);
            let inner = Moment { states, is_done: moment.is_done, is_nested: true };
            self.visit(&inner, seen, counts).map_err(|(choice, lost, finding)| Finding::Nested {
                event: event.to_string(),
                choice,
                lost,
                finding: Box::new(finding),
            })?;
        }
        Ok(())
    }

    /// Sets of members that may be lost: both shapes survive that.
    fn losses(&self) -> Vec<MemberSet> {
        if self.failing.is_some() {
            return vec![MemberSet::EMPTY];
        }
        let other = match self.change {
            Change::Grow(_) => None,
            Change::Reshape(Target { level, members, chunk, .. }) => {
                let member_size = Sectors(self.shape.areas.data.size.0 / SECTOR as u64);
                Geometry::new(Spec { level, members, chunk, member_size }).ok()
            }
        };
        let larger = other.as_ref().filter(|other| other.members() > self.shape.geometry.members());
        let survives = |set: &MemberSet| {
            let shapes = [Some(&self.shape.geometry), other.as_ref()];
            shapes.into_iter().flatten().all(|shape| Repair::new(shape, *set).is_ok())
        };
        tolerated(larger.unwrap_or(&self.shape.geometry), MemberSet::EMPTY).into_iter().filter(survives).collect()
    }

    fn left(&self, images: Vec<Option<Image>>) -> Result<Left, Finding> {
        let members = self.shape.geometry.members();
        let present = (0u8..).zip(&images).filter_map(|(slot, image)| Some((MemberIndex(slot), image.as_ref()?)));
        let mut candidates = Vec::new();
        for (member, image) in present {
            match superblock_of(image) {
                Ok(superblock) => candidates.push(Candidate { path: format!("member{member}").into(), superblock }),
                // Who joins may have none yet, and who leaves none any more.
                Err(source) if member.index() < members.min(self.members_after()) => {
                    return Err(Finding::NoSuperblock { member, source });
                }
                Err(_) => {}
            }
        }
        let verdict = judge(&candidates).map_err(|error| Finding::Refused { error: error.to_string() })?;
        Ok(Left { images, candidates, verdict })
    }

    fn members_after(&self) -> usize {
        match self.change {
            Change::Grow(_) => self.shape.geometry.members(),
            Change::Reshape(target) => usize::from(target.members),
        }
    }

    /// Looks at what a crash left, goes on and back with it where it is between two shapes, and looks at that; whether
    /// it was.
    fn check(&self, images: &[Option<Image>], lost: MemberSet, is_done: bool) -> Result<bool, Finding> {
        let left = self.left(images.to_vec())?;
        let failing: MemberSet = self.failing.iter().map(|failing| failing.member).collect();
        let lost = lost.union(failing);
        if is_done {
            let leaving = (0u8..).zip(images).skip(self.members_after());
            let mut leaving = leaving.filter_map(|(slot, image)| Some((MemberIndex(slot), image.as_ref()?)));
            if let Some((member, _)) = leaving.find(|(_, image)| superblock_of(image).is_ok()) {
                return Err(Finding::Stays { member });
            }
        }
        let aside = left.verdict.missing().minus(lost);
        if !aside.is_empty() {
            return Err(Finding::SetAside { members: aside });
        }
        let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: false };
        let presence = check_presence(&left.verdict, &left.candidates, options);
        if left.verdict.superblock.reshape.is_none() {
            presence.map_err(|error| Finding::Refused { error: error.to_string() })?;
            self.check_content(&left, None, is_done)?;
            return Ok(false);
        }
        let reading = OpenOptions { access: Access::ReadOnly, ..options };
        let is_read =
            !matches!(check_presence(&left.verdict, &left.candidates, reading), Err(OpenError::Reshaping { .. }));
        let is_served = !matches!(presence, Err(OpenError::Reshaping { .. }));
        if is_done || is_read || is_served && !may_be_served(&left.verdict.superblock) {
            return Err(Finding::Unfinished);
        }
        for is_back in [false, true] {
            let disk = Plain::new(left.images.clone());
            self.resume(disk.clone(), &left, is_back)?;
            let after = self.left(disk.images())?;
            let aside = after.verdict.missing().minus(lost);
            if !aside.is_empty() {
                return Err(Finding::SetAside { members: aside });
            }
            if after.verdict.superblock.reshape.is_some() {
                return Err(Finding::Unfinished);
            }
            self.check_content(&after, Some(is_back), !is_back)?;
        }
        Ok(true)
    }

    /// Holds an array at rest against what it must hold. `is_back`: how it came there, if it was under way.
    fn check_content(&self, left: &Left, is_back: Option<bool>, is_new: bool) -> Result<(), Finding> {
        let disk = Plain::new(left.images.clone());
        recover(disk.clone(), &left.verdict, &left.candidates)?;
        let images = disk.images();
        let Verdict { geometry, superblock, .. } = &left.verdict;
        let before = self.shape.geometry.spec();
        let is_old = (geometry.spec().level, geometry.spec().members, geometry.spec().chunk)
            == (before.level, before.members, before.chunk);
        let is_old = is_old && (geometry.capacity() == self.shape.geometry.capacity() || self.kept().is_some());
        if is_new && is_old || is_back == Some(true) && !is_old {
            return Err(Finding::Unfinished);
        }
        let missing = left.verdict.missing();
        let members = images.into_iter().map(|image| image.map(Member::of)).collect();
        let members = Members::of(members).only(geometry.all_members().minus(missing));
        let data = |slot: usize| {
            let own = members.get(MemberIndex(u8::try_from(slot).expect("few members")));
            own.and_then(|member| member.superblock().ok()).map_or(Bytes(0), |own| own.areas.data.offset)
        };
        let made = blank::made(superblock, geometry, &members);
        let is_blank = |stripe| blank::is_blank(made.as_ref(), stripe);
        let audit = Audit::new(geometry, &members, data, geometry.chunk(), |_, _| true, |_, _| true, is_blank);
        if !is_old {
            check_bits(superblock, geometry, &members)?;
        }
        audit.check_parity().map_err(|wrong| Finding::Parity {
            stripe: wrong.stripe,
            group: usize::from(wrong.group.0),
            column: wrong.byte as u64 / SECTOR as u64,
        })?;
        let mut model = self.shape.model.clone();
        let kept = self.kept().filter(|_| !is_old);
        kept.into_iter().for_each(|kept| model.resize(kept));
        model.resize(geometry.capacity());
        if is_old && let Some(kept) = self.kept().filter(|_| is_back == Some(true) || geometry != &self.shape.geometry)
        {
            model.give_up(Lba(kept.0));
        }
        for lost in tolerated(geometry, missing) {
            let undecodable = Finding::Undecodable { stripe: uraid_layout::StripeId(0) };
            for piece in audit.content(lost).ok_or(undecodable)? {
                let Some(bytes) = piece.bytes else { continue };
                hold(&model, piece.lba, &bytes)?;
            }
        }
        Ok(())
    }

    /// How much of the content is kept, where that is not all.
    fn kept(&self) -> Option<Sectors> {
        match self.change {
            Change::Grow(_) => None,
            Change::Reshape(target) => target.kept.map(Bytes::whole_sectors),
        }
    }
}

/// Of an array that has got another shape, a member that is on record as failed lacks all of it: so say the bits of all
/// others, where there are any.
fn check_bits(truth: &Superblock, geometry: &Geometry, members: &Members) -> Result<(), Finding> {
    let is_failed = truth.slots.iter().any(|entry| entry.state == SlotState::Failed);
    if !is_failed || geometry.tolerance() == 0 {
        return Ok(());
    }
    let regions = Regions::new(geometry);
    for (slot, member) in members.iter() {
        let own = member.superblock().map_err(|source| Finding::NoSuperblock { member: slot, source })?;
        let Some(seal) = own.seal() else { continue };
        let mut bytes = vec![0; usize::try_from(regions.bitmap_bytes().0).expect("small")];
        member.read(own.areas.bitmap.offset, &mut bytes);
        if Bitmap::decode(regions, seal, &bytes) != Bitmap::full(regions) {
            return Err(Finding::Bits { member: slot });
        }
    }
    Ok(())
}

fn hold(model: &Model, lba: Lba, bytes: &[u8]) -> Result<(), Finding> {
    model.check_left(lba, bytes).map_err(Finding::Content)
}

fn failed(error: &dyn Display) -> Finding {
    Finding::NotRecovered { error: error.to_string() }
}

/// Goes through all of it.
///
/// # Errors
/// The first state that is not as it must be.
pub fn run() -> Result<Counts, Box<Failure>> {
    Alteration::all().iter().try_fold(Counts::default(), |sum, alteration| Ok(sum.plus(alteration.run()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_crash_of_growing_or_reshaping_an_array_loses_anything() {
        let sum = run().unwrap_or_else(|failure| panic!("{failure}"));
        assert!(sum.states > 5000 && sum.recoveries > 1000 && sum.nested > 500, "{sum:?}");
    }
}
