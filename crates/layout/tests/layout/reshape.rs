//! A reshape loses nothing, wherever it is cut off or turned round: every block of every member is looked at.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uraid_layout::reshape::{Course, CourseError, Heading, Pace, Window};
use uraid_layout::{
    Bytes, Geometry, Lba, Level, Location, MemberIndex, Placement, Rotation, SECTOR_BYTES, Sectors, Spec, StripeId,
};

/// Chunks are whole blocks of 4 KiB, so nothing is smaller.
const BLOCK: u64 = 4096 / SECTOR_BYTES;

/// What a block of a member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// A block of the array, or a copy of it.
    Content(Lba),
    /// What only a geometry's parity can be: of the block whose parity it is first.
    Parity { level: Level, members: u8, chunk: Bytes, of: (StripeId, u16, u64) },
    /// Zeros behind the content.
    Nothing,
}

/// The blocks of the members.
#[derive(Default)]
struct Members(BTreeMap<(MemberIndex, u64), Held>);

impl Members {
    /// Writes whole parity stripes that hold this content.
    fn write(&mut self, geometry: &Geometry, content: &std::ops::Range<Lba>) {
        for (at, held) in stripes(geometry, content) {
            self.0.insert(at, held);
        }
    }

    fn assert_holds(&self, geometry: &Geometry, content: &std::ops::Range<Lba>, context: &str) {
        for (at, held) in stripes(geometry, content) {
            assert_eq!(self.0.get(&at), Some(&held), "{context}: member {} at sector {}", at.0, at.1);
        }
    }
}

/// What the members hold of the parity stripes of this content, block by block; each place comes from the geometry's
/// look-up of a single sector.
fn stripes(geometry: &Geometry, content: &std::ops::Range<Lba>) -> Vec<((MemberIndex, u64), Held)> {
    let (stripe_sectors, chunk) = (geometry.stripe_sectors().0, geometry.chunk().0);
    let end = content.end.0.div_ceil(stripe_sectors) * stripe_sectors;
    let spec = geometry.spec();
    let mut found = Vec::new();
    if content.is_empty() {
        return found;
    }
    for lba in (content.start.0..end.min(geometry.capacity().0))
        .step_by(usize::try_from(BLOCK).expect("a whole number"))
        .map(Lba)
    {
        let held = if lba < content.end { Held::Content(lba) } else { Held::Nothing };
        let place = |at: Location| (at.member, at.sector.0);
        found.push((place(geometry.locate(lba)), held));
        let (stripe, unit, offset) = geometry.split(lba);
        let groups = geometry.map(stripe).groups_of(unit);
        for (at, group) in geometry.parity_of(lba).zip(groups) {
            let of = (stripe, group.0, offset.0);
            let parity = Held::Parity { level: spec.level, members: spec.members, chunk: Bytes(chunk), of };
            let is_copy = geometry.map(stripe).group(*group).is_mirror();
            found.push((place(at), if is_copy { held } else { parity }));
        }
    }
    found
}

fn levels() -> impl Strategy<Value = (Level, u8)> {
    prop_oneof![
        (2_u8..7).prop_map(|members| (Level::Raid0, members)),
        (2_u8..5).prop_map(|members| (Level::Raid1, members)),
        (2_u8..7, 2_u8..4).prop_map(|(members, copies)| (Level::Raid10 { copies: copies.min(members) }, members)),
        (3_u8..8, 0_usize..4)
            .prop_map(|(members, rotation)| (Level::Raid5 { rotation: Rotation::ALL[rotation] }, members)),
        (4_u8..8, 0_usize..4)
            .prop_map(|(members, rotation)| (Level::Raid6 { rotation: Rotation::ALL[rotation] }, members)),
        (5_u8..9).prop_map(|members| (Level::Rm2 { height: 2, placement: Placement::Adjacent }, members)),
        Just((Level::Rm2 { height: 3, placement: Placement::Adjacent }, 7)),
    ]
}

fn specs(chunks: std::ops::Range<u64>) -> impl Strategy<Value = Spec> {
    (levels(), 1_u64..4, chunks).prop_map(|((level, members), chunk, rows)| Spec {
        level,
        members,
        chunk: Bytes(chunk * 4096),
        member_size: Sectors(rows * chunk * BLOCK),
    })
}

/// Moves a window, and looks at all that there is: before it is written, halfway, and after.
fn go(members: &mut Members, course: &Course, mark: Lba, heading: Heading, window: &Window, context: &str) -> Lba {
    let Window { content, is_saved } = window;
    let (source, target) = (course.source(heading), course.target(heading));
    members.assert_holds(source, content, context);
    let target_places: Vec<_> = stripes(target, content).into_iter().map(|(at, _)| at).collect();
    let is_overwritten = stripes(source, content).iter().any(|(at, _)| target_places.contains(at));
    assert!(*is_saved || !is_overwritten, "{context}: {content:?} is overwritten, and not saved");
    members.write(target, content);
    let (next, next_mark) = match heading {
        Heading::Up => {
            assert_eq!(content.start, mark, "{context}");
            (content.end, content.end)
        }
        Heading::Down => {
            assert_eq!(content.end, mark, "{context}");
            (content.start, content.start)
        }
    };
    assert!(course.is_mark(next), "{context}: {next}");
    assert_all(members, course, next_mark, context);
    next
}

/// What is below the mark is where the one geometry has it, and the rest where the other one does.
fn assert_all(members: &Members, course: &Course, mark: Lba, context: &str) {
    members.assert_holds(course.below(), &(Lba(0)..mark), context);
    members.assert_holds(course.above(), &(mark..Lba(course.kept().0)), context);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_window_overwrites_what_has_yet_to_move(
        from in specs(3..28),
        to in specs(3..40),
        share in 1_u64..=100,
        turns in proptest::collection::vec(1_usize..12, 0..4),
        plain in 1_u64..40,
        saved in 1_u64..20,
    ) {
        let (Ok(whole), Ok(goal)) = (Geometry::new(from), Geometry::new(to)) else { return Ok(()) };
        let room = whole.capacity().min(goal.capacity());
        let kept = Sectors((room.0 * share / 100 / BLOCK * BLOCK).max(BLOCK));
        let course = Course::new(from, to, kept).unwrap();
        let context = format!("{from:?} to {to:?}, {kept} sectors");
        let pace = Pace { plain: Sectors(plain * BLOCK * 4), saved: Sectors(saved * BLOCK * 4) };
        let mut members = Members::default();
        members.write(course.from(), &(Lba(0)..Lba(kept.0)));
        let (mut mark, mut is_back) = (course.start(), false);
        assert_all(&members, &course, mark, &context);
        for steps in turns {
            for _ in 0..steps {
                let heading = course.heading(is_back);
                let Some(window) = course.next(mark, heading, pace) else { break };
                mark = go(&mut members, &course, mark, heading, &window, &context);
            }
            is_back = !is_back;
        }
        let heading = course.heading(is_back);
        while let Some(window) = course.next(mark, heading, pace) {
            mark = go(&mut members, &course, mark, heading, &window, &context);
        }
        prop_assert_eq!(mark, course.end(heading));
        let all = Lba(0)..Lba(kept.0);
        members.assert_holds(course.target(heading), &all, &context);
    }
}

#[test]
fn most_windows_of_a_growing_array_need_no_saving() {
    let raid5 = |members, rows: u64| Spec {
        level: Level::Raid5 { rotation: Rotation::LeftSymmetric },
        members,
        chunk: Bytes(64 << 10),
        member_size: Sectors(rows * 128),
    };
    let course = Course::new(raid5(3, 6000), raid5(4, 6000), Sectors(6000 * 2 * 128)).unwrap();
    let pace = Pace { plain: Sectors(1 << 13), saved: Sectors(1 << 12) };
    let (mut mark, heading) = (course.start(), course.heading(false));
    let (mut plain, mut saved) = (0, 0);
    while let Some(Window { content, is_saved }) = course.next(mark, heading, pace) {
        (plain, saved) = if is_saved { (plain, saved + 1) } else { (plain + 1, saved) };
        mark = content.end;
    }
    // The first 384 KiB in two dozen chunks, and from then on what there is room for.
    assert_eq!((mark, saved), (Lba(6000 * 2 * 128), 1));
    assert!((150..400).contains(&plain), "{plain} windows");
}

#[test]
fn what_has_no_course_is_refused() {
    let spec =
        |level, members, rows: u64| Spec { level, members, chunk: Bytes(4096), member_size: Sectors(rows * BLOCK) };
    let partitioned = Level::Rm2 { height: 3, placement: Placement::Partitioned };
    let refused = |from, to, kept| Course::new(from, to, Sectors(kept)).unwrap_err();
    assert_eq!(refused(spec(partitioned, 7, 9), spec(Level::Raid0, 7, 9), 8), CourseError::Partitioned);
    assert_eq!(refused(spec(Level::Raid0, 7, 9), spec(partitioned, 7, 9), 8), CourseError::Partitioned);
    assert_eq!(refused(spec(Level::Raid0, 3, 9), spec(Level::Raid0, 2, 9), 0), CourseError::Nothing);
    let expected = CourseError::NoRoom { room: Sectors(18 * BLOCK), kept: Sectors(27 * BLOCK) };
    assert_eq!(refused(spec(Level::Raid0, 3, 9), spec(Level::Raid0, 2, 9), 27 * BLOCK), expected);
    let impossible = refused(spec(Level::Raid0, 3, 9), spec(Level::Raid0, 1, 9), 8);
    assert!(matches!(impossible, CourseError::Geometry(_)), "{impossible}");
}
