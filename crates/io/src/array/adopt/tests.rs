use std::fs;

use uraid_layout::{Level, MemberIndex, Rotation, Sectors};

use super::*;

const MIB: u64 = 1 << 20;

/// Members of another program: its data begin after 1 MiB and go to the end of each file, or nearly.
struct Before {
    directory: tempfile::TempDir,
    adoption: Adoption,
    bytes: Vec<Vec<u8>>,
}

impl Before {
    fn new(behind: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let spec = Spec { level, members: 3, chunk: Bytes(64 << 10), member_size: Sectors(3 * MIB / 512) };
        let noise = |seed: usize| {
            let step = |at: usize| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8 | 1;
            (0..usize::try_from(4 * MIB + behind).unwrap()).map(step).collect::<Vec<u8>>()
        };
        let bytes: Vec<Vec<u8>> = (0..3).map(noise).collect();
        let path = |slot: usize| directory.path().join(format!("member{slot}"));
        let members = (0..3).map(|slot| Place { path: path(slot), data: Bytes(MIB) }).collect();
        let (array, name, created) = (Uuid::from_bytes([7; 16]), "vault".to_owned(), UnixSeconds(1_700_000_000));
        let before = Self { adoption: Adoption { array, name, created, spec, members }, bytes, directory };
        before.write();
        before
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.adoption.members.iter().map(|place| place.path.clone()).collect()
    }

    fn write(&self) {
        self.paths().iter().zip(&self.bytes).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    }

    fn assert_is_back(&self, what: &str) {
        for (path, before) in self.paths().iter().zip(&self.bytes) {
            assert!(fs::read(path).unwrap() == *before, "{what}: {}", path.display());
        }
    }

    /// Converts the members: what is kept of them.
    fn convert(&self) -> Vec<Former> {
        let found = Adoptable::find(&self.adoption).unwrap();
        let formers = found.formers().unwrap();
        found.adopt().unwrap();
        formers
    }

    /// What is kept of the members, and how they are converted.
    fn conversion(&self) -> (Vec<Former>, [Vec<Write>; 3]) {
        let found = Adoptable::find(&self.adoption).unwrap();
        (found.formers().unwrap(), rounds(&found.superblocks))
    }

    /// What is kept of the members, which are converted, and how they go back.
    fn way_back(&self) -> (Vec<Former>, [Vec<Write>; 3]) {
        let formers = self.convert();
        let members = Member::open_all(&self.paths(), Access::ReadOnly).unwrap();
        let whole: Vec<_> = members.iter().map(|member| Some(load(member).unwrap())).collect();
        let rounds = rounds_back(&whole, &formers);
        (formers, rounds)
    }

    /// Does what these rounds do, up to a write, and then no more.
    fn cut(&self, rounds: [Vec<Write>; 3], writes: usize) {
        let members = Member::open_all(&self.paths(), Access::ReadWrite).unwrap();
        let all = rounds.into_iter().flatten().take(writes);
        perform(&members, all.collect()).unwrap();
    }

    /// Whose the members are: all have the other program's start; all say what the array is.
    fn belongs(&self) -> (bool, bool) {
        let members = Member::open_all(&self.paths(), Access::ReadOnly).unwrap();
        let is_former = |(member, before): (&Member, &Vec<u8>)| {
            member.peek(Bytes(0), Bytes(START as u64)).unwrap() == before[..START]
        };
        (members.iter().zip(&self.bytes).all(is_former), members.iter().all(|member| load(member).is_ok()))
    }
}

#[test]
fn members_become_an_array_and_go_back() {
    // The last copy of the superblock is behind the data if there is room, and otherwise in the head.
    let in_head = 28 << 10;
    for (behind, last) in [(0, in_head), (65_535, in_head), (65_536, 4 * MIB), (70_000, 4 * MIB + 4096)] {
        let before = Before::new(behind);
        let found = Adoptable::find(&before.adoption).unwrap();
        let formers = found.formers().unwrap();
        before.assert_is_back("nothing is changed");
        let own = found.adopt().unwrap();
        assert_eq!((own.consistency, own.is_clean), (Consistency::Log, true));
        let data = usize::try_from(MIB).unwrap()..usize::try_from(4 * MIB).unwrap();
        for (slot, path) in before.paths().iter().enumerate() {
            let after = fs::read(path).unwrap();
            assert_eq!(after.len(), before.bytes[slot].len());
            assert!(after[data.clone()] == before.bytes[slot][data.clone()], "data stay");
            let member = Member::open(path, Access::ReadOnly).unwrap();
            let own = load(&member).unwrap();
            assert_eq!(own.areas.copies(), [16 << 10, 48 << 10, last].map(Bytes));
            let is_copy = |at: usize| own.write_positions().contains(&Bytes(at as u64 / 4096 * 4096));
            assert!((0..HEAD).all(|at| after[at] == 0 || is_copy(at)), "nothing is left before the log");
            assert_eq!((own.slot.index(), own.array, own.revision), (slot, before.adoption.array, WHOLE));
            assert_eq!((own.areas.data.offset, own.spec), (Bytes(MIB), before.adoption.spec));
            let rest = usize::try_from(if last > MIB { last + 4096 } else { MIB }).unwrap();
            assert!(after[rest..] == before.bytes[slot][rest..], "what is behind it stays");
        }
        let paths: Vec<PathBuf> = before.paths().into_iter().rev().collect();
        give_back(&paths, &formers).unwrap();
        before.assert_is_back("back");
        give_back(&paths, &formers).unwrap();
        before.assert_is_back("once more");
    }
}

#[test]
fn cut_off_anywhere_they_are_nobodys_or_one_programs_and_go_back() {
    let before = Before::new(100);
    for writes in 0.. {
        let (formers, rounds) = before.conversion();
        let count: usize = rounds.iter().map(Vec::len).sum();
        before.cut(rounds, writes);
        let (is_former, is_array) = before.belongs();
        assert!(!is_former || !is_array, "after {writes} writes");
        assert_eq!(is_array, writes == count, "after {writes} writes");
        give_back(&before.paths(), &formers).unwrap();
        before.assert_is_back(&format!("after {writes} writes"));
        if writes == count {
            break;
        }
    }
}

#[test]
fn going_back_can_be_cut_off_anywhere_too() {
    let before = Before::new(100);
    for writes in 0.. {
        let (formers, rounds) = before.way_back();
        let count: usize = rounds.iter().map(Vec::len).sum();
        before.cut(rounds, writes);
        let (is_former, is_array) = before.belongs();
        assert!(!is_former || !is_array, "after {writes} writes");
        give_back(&before.paths(), &formers).unwrap();
        before.assert_is_back(&format!("after {writes} writes"));
        if writes == count {
            break;
        }
    }
}

#[test]
fn only_what_was_converted_and_not_used_goes_back() {
    let before = Before::new(0);
    let formers = before.convert();
    let mut paths = before.paths();
    let stranger = before.directory.path().join("stranger");
    fs::write(&stranger, vec![1; 5 << 20]).unwrap();
    let refused = |paths: &[PathBuf]| give_back(paths, &formers).unwrap_err();
    assert!(matches!(refused(&paths[1..]), AdoptError::Missing { path } if path == paths[0]));
    assert!(matches!(refused(&[&paths[..], std::slice::from_ref(&stranger)].concat()), AdoptError::Stranger { .. }));
    let copy = before.directory.path().join("copy");
    fs::copy(&paths[1], &copy).unwrap();
    let twice = refused(&[&paths[..], std::slice::from_ref(&copy)].concat());
    assert!(matches!(twice, AdoptError::Twice { second, .. } if second == copy));
    let used = Member::open(&paths[2], Access::ReadWrite).unwrap();
    let own = load(&used).unwrap();
    crate::superblock::store(&used, &Superblock { epoch: Epoch(2), revision: Revision(3), ..own }).unwrap();
    drop(used);
    assert!(matches!(refused(&paths), AdoptError::Used { path } if path == paths[2]));
    // The other program has changed what it has at the start.
    let before = Before::new(0);
    paths = before.paths();
    let formers = Adoptable::find(&before.adoption).unwrap().formers().unwrap();
    let mut bytes = fs::read(&paths[1]).unwrap();
    bytes[5000] ^= 1;
    fs::write(&paths[1], bytes).unwrap();
    assert!(matches!(give_back(&paths, &formers), Err(AdoptError::Stranger { .. })));
}

/// Bytes of what the other program has of its own on each member.
const ITS_OWN: usize = 5000;

/// It may have started the array as long as it finds its superblocks on enough members. What it did is not undone.
#[test]
fn what_the_other_program_went_on_with_does_not_go_back() {
    let before = Before::new(100);
    for is_going_back in [false, true] {
        for writes in 1.. {
            before.write();
            let (formers, rounds) = if is_going_back { before.way_back() } else { before.conversion() };
            let count: usize = rounds.iter().map(Vec::len).sum();
            if writes == count {
                break;
            }
            before.cut(rounds, writes);
            let mut goes_on = false;
            let mut after: Vec<Vec<u8>> = before.paths().iter().map(|path| fs::read(path).unwrap()).collect();
            for (bytes, before) in after.iter_mut().zip(&before.bytes) {
                if bytes[..START] == before[..START] {
                    bytes[ITS_OWN] ^= 1;
                    goes_on = true;
                }
            }
            before.paths().iter().zip(&after).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
            let back = give_back(&before.paths(), &formers);
            let what = format!("after {writes} writes, going back: {is_going_back}");
            if !goes_on {
                back.unwrap();
                before.assert_is_back(&what);
                continue;
            }
            assert!(matches!(back, Err(AdoptError::Stranger { .. })), "{what}: {back:?}");
            for (path, bytes) in before.paths().iter().zip(&after) {
                assert!(fs::read(path).unwrap() == *bytes, "{what}: nothing is written");
            }
        }
    }
}

#[test]
fn members_of_a_conversion_that_was_cut_off_are_not_converted_again() {
    let before = Before::new(100);
    let (formers, rounds) = before.conversion();
    let first = rounds[0].len();
    before.cut(rounds, first);
    let refused = Adoptable::find(&before.adoption).unwrap_err();
    let is_cut_off =
        matches!(&refused, AdoptError::Io(Error::Superblock { source: SuperblockError::Converting { .. }, .. }));
    assert!(is_cut_off, "{refused}");
    // The other program went on: what is left is taken away, and nothing else.
    let path = &before.paths()[0];
    let left = fs::read(path).unwrap();
    let member = Member::open(path, Access::ReadWrite).unwrap();
    crate::superblock::erase_conversion(&member).unwrap();
    drop(member);
    let after = fs::read(path).unwrap();
    let erased: Vec<usize> = (0..after.len()).step_by(4096).filter(|&at| after[at] != left[at]).collect();
    assert_eq!(erased, [16 << 10, 28 << 10]);
    let kept = |range: std::ops::Range<usize>| after[range.clone()] == left[range];
    assert!(kept(0..16 << 10) && kept(20 << 10..28 << 10) && kept(32 << 10..after.len()));
    assert!(after[16 << 10..20 << 10].iter().chain(&after[28 << 10..32 << 10]).all(|&byte| byte == 0));
    give_back(&before.paths(), &formers).unwrap();
    before.assert_is_back("with what was kept at first");
}

#[test]
fn members_without_a_trace_of_the_conversion_do_not_go_back() {
    let before = Before::new(100);
    let formers = before.convert();
    let path = &before.paths()[1];
    // Cut short, although all that would be written is within it.
    let whole = fs::read(path).unwrap();
    fs::write(path, &whole[..whole.len() - 4096]).unwrap();
    assert!(matches!(give_back(&before.paths(), &formers), Err(AdoptError::Stranger { .. })));
    fs::write(path, &whole).unwrap();
    // Written since, perhaps, and then made to forget its array.
    let member = Member::open(path, Access::ReadWrite).unwrap();
    crate::superblock::erase(&member).unwrap();
    drop(member);
    assert!(matches!(give_back(&before.paths(), &formers), Err(AdoptError::Stranger { .. })));
    fs::write(path, &whole).unwrap();
    give_back(&before.paths(), &formers).unwrap();
    before.assert_is_back("whole again");
}

#[test]
fn what_has_no_room_is_refused() {
    let before = Before::new(0);
    for data in [0, 4096, MIB + 512] {
        let mut adoption = before.adoption.clone();
        adoption.members[1].data = Bytes(data);
        let refused = Adoptable::find(&adoption).unwrap_err();
        assert!(matches!(&refused, AdoptError::NoRoomBefore { path, .. } if *path == before.paths()[1]), "{refused}");
    }
    before.assert_is_back("refused");
    // Stripes for which the log would have no room.
    let mut adoption = before.adoption.clone();
    adoption.spec.chunk = Bytes(MIB);
    let found = Adoptable::find(&adoption).unwrap();
    assert_eq!((found.superblock().consistency, found.superblock().slot), (Consistency::Bitmap, MemberIndex(0)));
}
