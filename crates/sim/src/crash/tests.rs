use uraid_io::format::Epoch;
use uraid_io::format::superblock::{Consistency, Integrity, Revision, SUPERBLOCK_BYTES, Superblock, encode};
use uraid_layout::{Level, MemberIndex, Rotation};

use super::check::{Given, admit, check, recover};
use super::run::boundaries;
use super::shape::Shape;
use super::states::{Grain, Limit, States};
use super::tape::{Event, Tape};
use super::workload::{Order, Workload, Workloads};
use super::{Enumeration, Options, *};
use crate::image::{Image, SECTOR};
use crate::member::{Member, Payload, superblock_of};
use crate::members::Members;

const SLOT: MemberIndex = MemberIndex(0);
const EVERY: Limit = Limit { choices_max: 1 << 10, grain: Grain::Pairs };

/// The first workload of an array with a name like that.
fn find(shapes: &[Shape], name: &str) -> Workload {
    let workloads = Workloads::new(shapes, |_| true);
    let mut all = (0..workloads.len()).filter_map(|number| workloads.get(number));
    all.find(|workload| workload.name(shapes) == name).expect("there is such a workload")
}

#[test]
fn no_crash_of_the_first_workloads_leaves_what_must_not_be() {
    let shapes = Shape::every();
    let first = |name: &str, workloads: &Workloads<'_>, numbers: std::ops::Range<usize>| {
        let options = Options { states_max: 1000, choices_max: 1 << 6, ..Options::default() };
        let enumeration = Enumeration::new(&shapes, options);
        let mut sum = Counts::default();
        for workload in numbers.filter_map(|number| workloads.get(number)) {
            sum = sum.plus(enumeration.run(&workload).unwrap_or_else(|failure| panic!("{failure}")));
            if enumeration.is_over() {
                break;
            }
        }
        assert!(sum.states >= 1000 && sum.corrupt == 0, "{name}: {sum:?}");
        sum
    };
    for level in Shape::LEVELS {
        for integrity in [Integrity::None, Integrity::Crc32] {
            let name = format!("{level}, {integrity:?}");
            let workloads = Workloads::new(&shapes, |shape| (shape.level(), shape.integrity) == (level, integrity));
            let sum = first(&name, &workloads, 0..workloads.changes().start);
            let is_logged = level != "0" || integrity != Integrity::None;
            assert!((sum.recoveries > 50) == is_logged, "{name}: {sum:?}");
            first(&format!("{name}, members come"), &workloads, workloads.changes());
        }
    }
}

/// The crash takes the new member and one that knows of it, the array goes on with the old one, and that one comes
/// back.
#[test]
fn a_copy_that_has_taken_its_place_and_is_lost_with_the_power_is_known_to_who_comes_back() {
    let shapes = [Shape::new(Level::Raid1, 3, Consistency::None)];
    let name = format!("{}/all/back/fifo/4/sector0/close/20-after-copy-1", shapes[0]);
    let counts = Enumeration::new(&shapes, Options::default()).run(&find(&shapes, &name));
    let counts = counts.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(counts.states > 1000, "{counts:?}");
}

/// Sector and parity of one unit are under way: what is left of four choices, without each of five members in turn.
#[test]
fn without_a_log_a_lost_member_shows_the_write_hole() {
    let count = |consistency| {
        let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let shapes = [Shape::new(level, 5, consistency)];
        let workload = find(&shapes, &format!("{}/all/none/fifo/0/sector0/nothing", shapes[0]));
        let shape = &shapes[0];
        let data = shape.areas.data.offset;
        let in_place = |boundary: &&run::Boundary| {
            let places: Vec<_> = boundary.members.unflushed().filter(|(place, _)| place.offset >= data).collect();
            places.len() == 2 && boundary.members.unflushed().count() == 2
        };
        let boundaries = boundaries(shape, &workload).expect("it runs");
        let boundary = boundaries.iter().find(in_place).expect("there is such a moment");
        let (states, all) = (States::new(shape, &boundary.members), shape.geometry.all_members());
        let (mut corrupt, mut total) = (0, 0);
        for lost in all.iter() {
            let given =
                Given { left: all.without(lost), returned: MemberSet::EMPTY, joining: MemberSet::EMPTY, forced: true };
            let visited: Result<(), Finding> = states.visit(all, EVERY, |choice, _| {
                total += 1;
                match check(shape, &states.images(choice, given.left), &boundary.expect, given) {
                    Err(finding) if finding.is_corruption() => corrupt += 1,
                    outcome => drop(outcome?),
                }
                Ok(())
            });
            visited.expect("nothing but corruption");
        }
        (corrupt, total)
    };
    // A model of the protocols alone says 48 of 160, and none of 480 with a log.
    assert_eq!(count(Consistency::None), (6, 20));
    assert_eq!(count(Consistency::Log), (0, 20));
}

#[test]
fn a_forced_enumeration_finds_corruption_and_one_that_is_not_is_refused() {
    let shapes = Shape::all();
    let workload = find(&shapes, "5/none/all/none/fifo/0/sector0/flush");
    let run = |forced| {
        let options = Options { forced, choices_max: 1 << 6, ..Options::default() };
        Enumeration::new(&shapes, options).run(&workload).unwrap_or_else(|failure| panic!("{failure}"))
    };
    let (forced, refused) = (run(true), run(false));
    assert!(forced.corrupt > 0 && forced.refused == 0, "{forced:?}");
    assert!(refused.corrupt == 0 && refused.refused > 0, "{refused:?}");
}

#[test]
fn every_workload_has_a_name_of_its_own_and_there_are_so_many() {
    let shapes = [Shape::new(Level::Raid0, 3, Consistency::None)];
    let workloads = Workloads::new(&shapes, |_| true);
    let mut names: Vec<String> = (0..workloads.len())
        .filter_map(|number| workloads.get(number))
        .map(|workload| workload.name(&shapes))
        .collect();
    names.sort_unstable();
    names.dedup();
    // 3 caches, 2 orders, 2 preludes, 3 ends; 8 commands with FUA and without, and 4 ways between two; each of 3
    // members copied, at 5 times.
    assert_eq!(names.len(), 36 * (16 + 4 * 16 * 16 + 3 * 5 * 16));
    assert_eq!((workloads.len(), workloads.singles()), (names.len(), 36 * 16));
}

/// The superblock's write was torn in the slot at the head, and only the copy at the tail says so. The next write must
/// not tear that, too.
#[test]
fn a_superblock_that_is_whole_at_the_tail_alone_is_never_lost() {
    let shape = Shape::new(Level::Raid1, 2, Consistency::Log);
    let mut image = shape.members.get(SLOT).expect("there").current().clone();
    let before = superblock_of(&image).expect("sound");
    let after = Superblock { epoch: Epoch(2), revision: Revision(1), is_clean: false, ..before };
    let bytes = encode(&after);
    let [head, tail] = after.write_positions();
    image.put(head, &bytes[..SECTOR]);
    image.put(tail, &bytes);
    assert_eq!(superblock_of(&image).expect("at the tail"), after);
    let other = shape.members.get(MemberIndex(1)).expect("there").current().clone();
    let count = visit_recovery(&shape, [image, other], |found, event| {
        assert!(found[0].is_some(), "{event}");
    });
    assert!(count > 100, "{count}");
}

/// The write of a superblock is torn, and the first one of the recovery to the same slot in the other half: together
/// they would be a whole superblock that never counted, beside others of the recovery.
#[test]
fn two_torn_writes_do_not_make_a_superblock_whole() {
    let shape = Shape::new(Level::Raid1, 2, Consistency::Log);
    let images = [0, 1].map(|slot| {
        let mut image = shape.members.get(MemberIndex(slot)).expect("there").current().clone();
        let first = superblock_of(&image).expect("sound");
        let before = Superblock { epoch: Epoch(2), revision: Revision(1), is_clean: false, ..first };
        before.write_positions().into_iter().for_each(|at| image.put(at, &encode(&before)));
        let torn = Superblock { epoch: Epoch(3), revision: Revision(2), is_clean: true, ..before.clone() };
        let mut half = [0; SUPERBLOCK_BYTES];
        half[..SECTOR].copy_from_slice(&encode(&torn)[..SECTOR]);
        image.put(torn.write_positions()[0], &half);
        assert_eq!(superblock_of(&image).expect("the version before"), before);
        (image, torn)
    });
    let [(one, torn), (other, _)] = images;
    let mut mixed = 0;
    let count = visit_recovery(&shape, [one, other], |found, event| {
        let [one, other] = found.map(|found| found.expect("one of two versions"));
        let is_new = |own: &Superblock| own.epoch == torn.epoch && own.generation != torn.generation;
        assert!(one != torn || !is_new(&other), "{event}");
        mixed += u32::from(is_new(&one) != is_new(&other));
    });
    assert!(count > 100 && mixed > 10, "{count}, {mixed}");
}

/// Recovers a mirror and calls `visit` with the members' superblocks, and when that is, for everything that a power cut
/// may leave meanwhile; how many states that were.
fn visit_recovery(shape: &Shape, images: [Image; 2], mut visit: impl FnMut([Option<Superblock>; 2], &Event)) -> u32 {
    let given = Given { left: MemberSet::all(2), returned: MemberSet::EMPTY, joining: MemberSet::EMPTY, forced: false };
    let found: Vec<_> = images.iter().cloned().map(Some).collect();
    let admitted = admit(shape, &found, given).expect("admitted").expect("admitted");
    let members = images.map(|image| Some(Member::of(image)));
    let tape = Tape::new(Members::of(members.into()), Order::Lifo);
    tape.record();
    assert!(recover(tape.clone(), &admitted.verdict, &admitted.candidates).expect("recovered").0);
    let mut count = 0;
    for (event, members) in tape.take() {
        let states = States::new(shape, &members);
        let visited: Result<(), Finding> = states.visit(MemberSet::all(2), EVERY, |choice, _| {
            count += 1;
            let images = states.images(choice, MemberSet::all(2));
            let found = |slot: usize| images[slot].as_ref().and_then(|image| superblock_of(image).ok());
            visit([0, 1].map(found), &event);
            Ok(())
        });
        visited.expect("no errors");
    }
    count
}

/// What members hold after writes of one sector each, where the last was not flushed.
#[test]
fn states_are_every_choice_and_different_ones_have_different_hashes() {
    let shape = Shape::new(Level::Raid1, 2, Consistency::None);
    let mut members = shape.members.clone();
    let member = members.get_mut(SLOT).expect("there");
    let bytes = |value: u8, sectors: usize| Payload::Bytes(vec![value; sectors * SECTOR].into());
    member.write(shape.areas.log.offset, bytes(1, 2));
    member.write(shape.areas.data.offset, bytes(2, 8));
    member.write(shape.areas.data.offset, bytes(3, 1));
    let states = States::new(&shape, &members);
    // Two sectors of the log; the unit's first column with two versions, and its others.
    assert_eq!(states.count(MemberSet::all(2)), 2 * 2 * 3 * 2);
    let mut hashes = Vec::new();
    let visited: Result<(), Finding> = states.visit(MemberSet::all(2), EVERY, |_, hash| {
        hashes.push(hash);
        Ok(())
    });
    visited.expect("no errors");
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 24);
    assert_eq!(states.count(MemberSet::EMPTY.with(MemberIndex(1))), 1);
    assert_eq!(SUPERBLOCK_BYTES, 8 * SECTOR);
}
