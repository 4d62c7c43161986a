//! Every crash of creating an array, on members that held something or that were just made.
//!
//! Until all members durably say that they are of the new array, what is left may be nothing that can be used; data
//! areas are as they were, and a former array that is still there has lost nothing else. From then on the members of a
//! tolerated set may be gone only if the array does not say any more that it is initialising. Whatever is opened holds
//! zeros, parity too, wherever anything is kept twice, or says that all of that is blank, and knows of no checksum.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use uraid_io::array::{Candidate, Content, OpenError, OpenOptions, Verdict, check_presence, format, judge};
use uraid_io::format::Epoch;
use uraid_io::format::bitmap::Bitmap;
use uraid_io::format::superblock::{
    Allocation, Area, Consistency, Revision, SUPERBLOCK_BYTES, Superblock, SuperblockError, encode, positions,
};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Level, MemberIndex, MemberSet, Placement, Rotation, SECTOR_BYTES};
use uuid::Uuid;

use super::check::recover;
use super::plain::Plain;
use super::shape::Shape;
use super::states::{Grain, Limit, States, mix};
use super::tape::{Event, Tape};
use super::workload::Order;
use super::{Counts, Failure, Finding};
use crate::dst::audit::tolerated;
use crate::dst::blank::MAP_START;
use crate::image::{Image, SECTOR, ZEROS};
use crate::member::{Member, superblock_of};
use crate::members::Members;

/// Of one state in so many that are opened and finished, that is cut off, too.
const NESTED_EVERY: u64 = 1 << 4;

/// All choices, where there are no more.
const CHOICES_MAX: u128 = 1 << 6;

/// Arrays with more members are gone through by whole areas of members.
const FINE_MEMBERS: usize = 3;

/// The array that is created.
const ARRAY: Uuid = Uuid::from_u128(0xA11);

/// An array to be created.
#[derive(Debug)]
pub struct Creation {
    /// What it becomes, on members that hold it already, as a former array.
    shape: Shape,
    content: Content,
    order: Order,
    before: Vec<Image>,
}

/// How far the creation had come when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not all members durably have their first superblocks.
    Marking,
    Marked,
    /// Whoever asked for it was told that it was there.
    Made,
}

/// A moment at which the power may go, and what is left then.
struct Moment<'a> {
    states: States,
    stage: Stage,
    name: &'a str,
    is_nested: bool,
}

impl Creation {
    /// All of them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let (log, bitmap, none) = (Consistency::Log, Consistency::Bitmap, Consistency::None);
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let rm2 = Level::Rm2 { height: 2, placement: Placement::Adjacent };
        let shapes: [fn(Level, u8, Consistency) -> Shape; 2] =
            [Shape::new, |level, members, _| Shape::checked(level, members)];
        let [plain, checked] = shapes;
        let arrays = [
            (checked, Level::Raid0, 2, log),
            (plain, Level::Raid1, 2, bitmap),
            (plain, Level::Raid1, 2, none),
            (plain, raid5, 3, log),
            (checked, raid5, 3, log),
            (plain, Level::Raid6 { rotation: Rotation::LeftSymmetric }, 4, log),
            (plain, rm2, 5, log),
        ];
        let ways = [(Content::Unknown, Order::Fifo), (Content::Unknown, Order::Lifo), (Content::Zeros, Order::Fifo)];
        let all = arrays.into_iter().flat_map(|(shape, level, members, consistency)| {
            ways.map(|(content, order)| Self::new(shape(level, members, consistency), content, order))
        });
        all.collect()
    }

    fn new(shape: Shape, content: Content, order: Order) -> Self {
        let before = (0..shape.members.len()).map(|slot| MemberIndex(u8::try_from(slot).expect("few members")));
        let before = before.map(|slot| match content {
            Content::Unknown => former(&shape, slot),
            Content::Zeros => Image::zeroed(shape.areas.member_size),
        });
        Self { before: before.collect(), shape, content, order }
    }

    /// The array's shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> String {
        let content = if self.content == Content::Zeros { "blank" } else { "used" };
        let order = if self.order == Order::Fifo { "fifo" } else { "lifo" };
        format!("create/{}/{content}/{order}", self.shape)
    }

    /// Goes through all of it.
    ///
    /// # Errors
    /// The first state that is not as it must be.
    pub fn run(&self) -> Result<Counts, Box<Failure>> {
        let failure = |boundary: String, (choice, lost, finding): (String, MemberSet, Finding)| {
            Box::new(Failure { workload: self.name(), boundary, choice, lost, finding })
        };
        let members = Members::of(self.before.iter().map(|image| Some(Member::of(image.clone()))).collect());
        let mut tape = Tape::new(members, self.order);
        tape.record();
        let made = format(&mut tape, self.superblocks(), self.content, |_, _| {});
        made.map_err(|error| {
            let finding = Finding::NotRecovered { error: error.to_string() };
            failure("no time".into(), (String::new(), MemberSet::EMPTY, finding))
        })?;
        tape.note(Event::Replied);
        let (mut counts, mut seen) = (Counts { workloads: 1, ..Counts::default() }, HashSet::new());
        for (at, (event, members)) in tape.take().into_iter().enumerate() {
            counts.boundaries += 1;
            let is_marked =
                members.iter().all(|(_, member)| superblock_of(member.durable()).is_ok_and(|own| is_new(&own)));
            let stage = match event {
                Event::Replied => Stage::Made,
                _ if is_marked => Stage::Marked,
                _ => Stage::Marking,
            };
            let name = format!("boundary {at}, {event}");
            let moment = Moment { states: States::new(&self.shape, &members), stage, name: &name, is_nested: false };
            self.visit(&moment, &mut seen, &mut counts).map_err(|found| failure(name.clone(), found))?;
        }
        Ok(counts)
    }

    /// The new array's first superblocks.
    fn superblocks(&self) -> Vec<Superblock> {
        let members: Vec<_> = (0xB0..).map(Uuid::from_u128).zip(self.before.iter().map(|_| self.shape.areas)).collect();
        let Shape { consistency, integrity, .. } = self.shape;
        let initialising = Some(Allocation::Full);
        let complete = |new| Superblock { consistency, integrity, is_clean: false, initialising, ..new };
        Superblock::of_new_array(ARRAY, *self.shape.geometry.spec(), &members).into_iter().map(complete).collect()
    }

    fn visit(
        &self,
        moment: &Moment<'_>,
        seen: &mut HashSet<u64>,
        counts: &mut Counts,
    ) -> Result<(), (String, MemberSet, Finding)> {
        let all = self.shape.geometry.all_members();
        let grain = if all.len() > FINE_MEMBERS || moment.is_nested { Grain::Areas } else { Grain::Singles };
        let limit = Limit { choices_max: CHOICES_MAX, grain };
        for lost in tolerated(&self.shape.geometry, MemberSet::EMPTY) {
            let left = all.minus(lost);
            moment.states.visit(left, limit, |choice, hash| {
                counts.generated += 1;
                let bits = left.iter().fold(moment.stage as u64, |bits, member| bits | 4 << member.0);
                if !seen.insert(mix(hash ^ mix(bits))) {
                    return Ok(());
                }
                counts.states += 1;
                counts.nested += u64::from(moment.is_nested);
                let images = moment.states.images(choice, left);
                let checked = catch_unwind(AssertUnwindSafe(|| self.check(images.clone(), moment.stage)));
                let outcome = match checked.unwrap_or_else(|panic| Err(Finding::of_panic(&*panic))) {
                    Ok(outcome) => outcome,
                    Err(finding) => return Err((moment.states.describe(choice, left), lost, finding)),
                };
                match outcome {
                    Outcome::Nothing => counts.refused += 1,
                    Outcome::Whole => {}
                    Outcome::Finished => {
                        counts.recoveries += 1;
                        if !moment.is_nested && hash.is_multiple_of(NESTED_EVERY) {
                            self.cut_off(images, moment, seen, counts)
                                .map_err(|finding| (moment.states.describe(choice, left), lost, finding))?;
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Cuts off the opening that finishes the array at each of its boundaries.
    fn cut_off(
        &self,
        images: Vec<Option<Image>>,
        moment: &Moment<'_>,
        seen: &mut HashSet<u64>,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        let (candidates, verdict) = self.judged(&images)?;
        let tape = Tape::new(Members::of(images.into_iter().map(|image| image.map(Member::of)).collect()), self.order);
        tape.record();
        recover(tape.clone(), &verdict, &candidates)?;
        for (event, members) in tape.take() {
            counts.boundaries += 1;
            let states = States::new(&self.shape, &members);
            let inner = Moment { states, stage: Stage::Marked, name: moment.name, is_nested: true };
            self.visit(&inner, seen, counts).map_err(|(choice, lost, finding)| Finding::Nested {
                event: event.to_string(),
                choice,
                lost,
                finding: Box::new(finding),
            })?;
        }
        Ok(())
    }

    fn judged(&self, images: &[Option<Image>]) -> Result<(Vec<Candidate>, Verdict), Finding> {
        let candidates: Result<Vec<Candidate>, Finding> = superblocks(images)
            .map(|(member, superblock)| {
                let superblock = superblock.map_err(|source| Finding::NoSuperblock { member, source })?;
                Ok(Candidate { path: format!("member{member}").into(), superblock })
            })
            .collect();
        let candidates = candidates?;
        let verdict = judge(&candidates).map_err(|error| Finding::Refused { error: error.to_string() })?;
        Ok((candidates, verdict))
    }

    /// Looks at what a crash left, opens it where that can be, and looks at that.
    fn check(&self, images: Vec<Option<Image>>, stage: Stage) -> Result<Outcome, Finding> {
        if stage == Stage::Marking {
            self.check_data(&images)?;
        }
        let is_former = |(_, own): (_, Result<Superblock, _>)| own.is_ok_and(|own| !is_new(&own));
        if stage == Stage::Marking && superblocks(&images).all(is_former) {
            self.check_former(&images)?;
            return Ok(Outcome::Nothing);
        }
        let (candidates, verdict) = match self.judged(&images) {
            Err(_) if stage == Stage::Marking => return Ok(Outcome::Nothing),
            judged => judged?,
        };
        let presence =
            |access, force| check_presence(&verdict, &candidates, OpenOptions { access, allow_degraded: true, force });
        let is_unfinished = verdict.superblock.initialising.is_some();
        if is_unfinished {
            let has_refused = |access| {
                let refused = [false, true].map(|force| presence(access, force));
                refused.iter().all(|refused| {
                    matches!(refused, Err(OpenError::Initialising | OpenError::InitialisingDegraded { .. }))
                })
            };
            let must_write =
                has_refused(Access::ReadOnly) && (verdict.missing().is_empty() || has_refused(Access::ReadWrite));
            if !must_write || stage == Stage::Made {
                return Err(Finding::Unfinished);
            }
            if !verdict.missing().is_empty() {
                return Ok(Outcome::Nothing);
            }
        }
        presence(Access::ReadWrite, false).map_err(|error| Finding::Refused { error: error.to_string() })?;
        let disk = Plain::new(images);
        recover(disk.clone(), &verdict, &candidates)?;
        let after = disk.images();
        self.check_zeros(&after)?;
        let (candidates, verdict) = self.judged(&after)?;
        if verdict.superblock.initialising.is_some() {
            return Err(Finding::Unfinished);
        }
        let again = Plain::new(after.clone());
        let is_still = !recover(again.clone(), &verdict, &candidates)?.0 && again.images() == after;
        match () {
            () if !is_still => Err(Finding::NotStill),
            () if is_unfinished => Ok(Outcome::Finished),
            () => Ok(Outcome::Whole),
        }
    }

    /// Nothing of data areas is touched before all members are marked.
    fn check_data(&self, images: &[Option<Image>]) -> Result<(), Finding> {
        let Area { offset: start, size } = self.shape.areas.data;
        for (slot, (image, before)) in (0u8..).zip(images.iter().zip(&self.before)) {
            let Some(image) = image else { continue };
            let mut differences = image.differences(before);
            if let Some(offset) = differences.find(|offset| (start.0..start.0 + size.0).contains(&offset.0)) {
                return Err(Finding::Overwritten { member: MemberIndex(slot), offset });
            }
        }
        Ok(())
    }

    /// A former array has lost nothing but superblocks.
    fn check_former(&self, images: &[Option<Image>]) -> Result<(), Finding> {
        let places = positions(self.shape.areas.member_size).expect("a member is large enough");
        let is_copy =
            |offset: Bytes| places.iter().any(|at| (at.0..at.0 + SUPERBLOCK_BYTES as u64).contains(&offset.0));
        for (slot, (image, before)) in (0u8..).zip(images.iter().zip(&self.before)) {
            let Some(image) = image else { continue };
            if let Some(offset) = image.differences(before).find(|&offset| !is_copy(offset)) {
                return Err(Finding::Overwritten { member: MemberIndex(slot), offset });
            }
        }
        Ok(())
    }

    /// There is nothing on record of what members held before.
    fn check_zeros(&self, images: &[Option<Image>]) -> Result<(), Finding> {
        let Shape { areas, geometry, .. } = &self.shape;
        let used = geometry.used_sectors().bytes();
        for (slot, image) in (0u8..).zip(images) {
            let Some(image) = image else { continue };
            let own =
                superblock_of(image).map_err(|source| Finding::NoSuperblock { member: MemberIndex(slot), source })?;
            let map = own.blank_map();
            let is_blank = map.is_some_and(|(seal, regions)| {
                let mut bytes = vec![0; usize::try_from(regions.bitmap_bytes().0).expect("small")];
                image.read(Bytes(areas.bitmap.offset.0 + MAP_START), &mut bytes);
                Bitmap::decode(regions, seal, &bytes).is_empty()
            });
            let data = Area { size: if is_blank { Bytes(0) } else { used }, ..areas.data };
            for Area { offset, size } in [areas.sums, data] {
                let mut sectors = (offset.0..offset.0 + size.0).step_by(SECTOR).map(Bytes);
                if let Some(offset) = sectors.find(|&offset| *image.sector(offset) != ZEROS) {
                    return Err(Finding::NotZeroed { member: MemberIndex(slot), offset });
                }
            }
        }
        Ok(())
    }
}

/// What became of what a crash left.
enum Outcome {
    /// It is no array, and was not taken for one.
    Nothing,
    /// It was finished.
    Finished,
    /// It was whole.
    Whole,
}

/// A member of a former array that went on for longer than the new one will, with something in each of its areas.
fn former(shape: &Shape, slot: MemberIndex) -> Image {
    let mut image = shape.members.get(slot).expect("every slot has one").current().clone();
    let own = superblock_of(&image).expect("a shape's members have superblocks");
    for revision in [6, 7] {
        let former = Superblock { epoch: Epoch(revision + 2), revision: Revision(revision), ..own.clone() };
        for position in former.write_positions() {
            image.put(position, &encode(&former));
        }
    }
    for area in [shape.areas.bitmap, shape.areas.log, shape.areas.sums].into_iter().filter(|area| area.size.0 > 0) {
        image.put(area.offset, &[0xA5 ^ slot.0; SECTOR]);
    }
    image.put(Bytes(shape.areas.bitmap.offset.0 + MAP_START), &[0xA5 ^ slot.0; SECTOR]);
    image
}

fn superblocks(images: &[Option<Image>]) -> impl Iterator<Item = (MemberIndex, Result<Superblock, SuperblockError>)> {
    let present = (0u8..).zip(images).filter_map(|(slot, image)| Some((MemberIndex(slot), image.as_ref()?)));
    present.map(|(slot, image)| (slot, superblock_of(image)))
}

fn is_new(own: &Superblock) -> bool {
    own.array == ARRAY
}

/// Goes through all of it.
///
/// # Errors
/// The first state that is not as it must be.
pub fn run() -> Result<Counts, Box<Failure>> {
    Creation::all().iter().try_fold(Counts::default(), |sum, creation| Ok(sum.plus(creation.run()?)))
}

const _: () = assert!(SECTOR as u64 == SECTOR_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_crash_of_creating_an_array_leaves_what_must_not_be() {
        let sum = run().unwrap_or_else(|failure| panic!("{failure}"));
        println!("{sum:?}");
        assert!(sum.states > 10_000 && sum.recoveries > 500 && sum.refused > 1000 && sum.nested > 100, "{sum:?}");
    }
}
