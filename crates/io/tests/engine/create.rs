//! New arrays of members that held something: power cuts and errors at each of the operations that making them takes.

use rustix::io::Errno;
use uraid_io::array::{
    Candidate, ConfigureError, Content, GrowError, OpenError, OpenOptions, Setting, check_presence, configure, format,
    grow, judge, recover, recovery_bytes,
};
use uraid_io::disk::{Fault, Image, MemDisk, OpName, Order};
use uraid_io::engine::{Engine, EngineError};
use uraid_io::format::Epoch;
use uraid_io::format::bitmap::Bitmap;
use uraid_io::format::superblock::{
    Allocation, Consistency, Revision, Superblock, SuperblockError, decode, encode, newest, positions,
};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Level, MemberIndex, Placement};
use uuid::Uuid;

use crate::grow::Power;
use crate::recovery::{assembled, superblock};
use crate::support::{Members, RAID5, Random, Shape, block, noise, rm2, size, small};

fn cases() -> Vec<Shape> {
    vec![
        small(Level::Raid0, 2).checked(),
        Shape { consistency: Consistency::Bitmap, ..small(Level::Raid1, 2) },
        Shape { consistency: Consistency::Log, ..small(RAID5, 3) },
        small(RAID5, 3),
        small(rm2(2, Placement::Adjacent), 5).checked(),
    ]
}

/// The first superblocks of the array.
fn new(shape: &Shape, allocation: Allocation) -> Vec<Superblock> {
    let initialising = Some(allocation);
    shape.superblocks().into_iter().map(|own| Superblock { is_clean: false, initialising, ..own }).collect()
}

/// Members full of anything, that are of another array, which went on for longer than the new one will.
fn used(shape: &Shape) -> Members {
    let one = |own: Superblock| {
        let mut bytes = noise(own.slot.0.into(), own.areas.member_size.whole_sectors().0);
        let mut former = Superblock { array: Uuid::from_bytes([98; 16]), epoch: Epoch(8), ..own };
        for revision in [6, 7] {
            (former.epoch.0, former.revision) = (former.epoch.0 + 1, Revision(revision));
            for position in former.write_positions() {
                bytes[size(position)..][..4096].copy_from_slice(&encode(&former));
            }
        }
        Some(Image::from(bytes))
    };
    shape.superblocks().into_iter().map(one).collect()
}

fn load(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
    let positions = positions(Bytes(bytes.len() as u64)).expect("large enough");
    newest(positions.map(|position| decode(&bytes[size(position)..][..4096])))
}

fn is_new(shape: &Shape, bytes: &[u8]) -> bool {
    load(bytes).is_ok_and(|own| own.array == shape.superblocks()[0].array)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Asserts that the array is whole, that all is blank or zeros where anything is kept twice, and that there is no
/// checksum of anything.
fn assert_whole(shape: &Shape, members: &Members, context: &str) {
    for bytes in members.iter().flatten() {
        let own = superblock(bytes);
        assert!(own.is_clean && own.initialising.is_none(), "{context}: {own:?}");
        let (areas, used) = (own.areas, size(shape.geometry().used_sectors().bytes()));
        assert!(is_zero(&bytes[size(areas.sums.offset)..][..size(areas.sums.size)]), "{context}: checksums");
        let is_kept_twice = shape.geometry().tolerance() > 0;
        let is_blank = own.blank_map().is_some_and(|(seal, regions)| {
            let map = &bytes[96 << 10..][..size(regions.bitmap_bytes())];
            Bitmap::decode(regions, seal, map).is_empty()
        });
        let is_zero = || is_zero(&bytes[size(areas.data.offset)..][..used]);
        assert!(!is_kept_twice || is_blank || is_zero(), "{context}: data");
    }
    let opened = assembled(MemDisk::new(members.clone(), Order::Fifo), members);
    assert!(!opened.needs_recovery(), "{context}");
    let mut engine: Engine<MemDisk, u64> = opened.into_engine().expect("it can be used");
    if shape.geometry().tolerance() > 0 {
        for lba in (0..shape.geometry().capacity().0).step_by(8) {
            assert!(is_zero(&block(&mut engine, lba).expect("read")), "{context}: sector {lba}");
        }
    }
}

/// Opens what there is for writing, which finishes it; cut off after so many operations.
fn finish(members: &Members, left: usize, random: &mut Random) -> (bool, Members) {
    let mut power = Power::new(members, left);
    let candidates = candidates(members);
    let verdict = judge(&candidates).expect("an array");
    let opened = uraid_io::array::Assembled::new(
        &mut power,
        &verdict,
        &candidates,
        Access::ReadWrite,
        Uuid::from_bytes([5; 16]),
    );
    let is_done = opened.is_ok_and(|opened| !opened.needs_recovery() || recover(opened, |_| ()).is_ok());
    (is_done, power.cut(random))
}

fn candidates(members: &Members) -> Vec<Candidate> {
    let one = |bytes: &Image| Candidate { path: "member".into(), superblock: superblock(bytes) };
    members.iter().flatten().map(one).collect()
}

#[test]
fn the_power_goes_at_each_operation() {
    for shape in cases() {
        for content in [Content::Unknown, Content::Zeros] {
            let before = match content {
                Content::Unknown => used(&shape),
                Content::Zeros => {
                    shape.superblocks().iter().map(|own| Some(Image::zeroed(size(own.areas.member_size)))).collect()
                }
            };
            let mut random = Random(7);
            let (mut nothing, mut unfinished, mut whole) = (0, 0, 0);
            for left in 0.. {
                let context = format!("{shape:?}, {content:?}, cut after {left} operations");
                let mut power = Power::new(&before, left);
                let made = format(&mut &mut power, new(&shape, Allocation::Full), content, |_, _| ());
                let is_marked = power.durable.iter().all(|bytes| is_new(&shape, bytes));
                let after = power.cut(&mut random);
                if !after.iter().flatten().all(|bytes| is_new(&shape, bytes)) {
                    // Creating it anew is all that can be done. Until then nothing but zeros was written, and that only
                    // where it does no harm.
                    assert!(!is_marked && made.is_err(), "{context}");
                    for (bytes, before) in after.iter().flatten().zip(before.iter().flatten()) {
                        let data = size(shape.superblocks()[0].areas.data.offset)..bytes.len() - (64 << 10);
                        assert!(bytes[data.clone()] == before[data], "{context}: content was touched");
                    }
                    nothing += 1;
                    continue;
                }
                if superblock_of(&after).initialising.is_some() {
                    unfinished += 1;
                    assert!(made.is_err(), "{context}");
                } else {
                    whole += 1;
                }
                // Finishing it is cut off, too.
                let cut = usize::try_from(random.below(12)).expect("small");
                let (_, after) = finish(&after, cut, &mut random);
                let (is_done, after) = finish(&after, usize::MAX, &mut random);
                assert!(is_done, "{context}");
                assert_whole(&shape, &after, &context);
                if made.is_ok() {
                    break;
                }
            }
            let counts = format!("{shape:?}: {nothing} were nothing, {unfinished} unfinished, {whole} whole");
            assert!(nothing > 5 && unfinished > 2 && whole > 2, "{counts}");
        }
    }
}

/// What holds of several members.
fn superblock_of(members: &Members) -> Superblock {
    judge(&candidates(members)).expect("an array").superblock
}

#[test]
fn a_member_that_fails_leaves_no_array_that_seems_whole() {
    let shape = Shape { consistency: Consistency::Log, ..small(RAID5, 3) };
    for name in [OpName::Write, OpName::Zero, OpName::Flush] {
        for after in 0.. {
            let mut disk = MemDisk::new(used(&shape), Order::Lifo);
            let member = MemberIndex(1);
            disk.fail(Fault { member, name, after, count: 1, errno: Errno::IO });
            if format(&mut disk, new(&shape, Allocation::Full), Content::Unknown, |_, _| ()).is_ok() {
                // Of what members held, of its superblocks, the log, the map, and its superblocks again.
                let expected = [(OpName::Write, 13), (OpName::Zero, 1), (OpName::Flush, 5)];
                assert!(expected.contains(&(name, after)), "the {name} that is number {after} is none");
                break;
            }
            let others = [0, 2].map(|slot| disk.member(MemberIndex(slot)).expect("present").to_vec());
            let mut states = others.iter().filter_map(|bytes| load(bytes).ok().filter(|_| is_new(&shape, bytes)));
            // The round that ends it is begun when all else is durable.
            let is_last = name == OpName::Flush && after == 4 || name == OpName::Write && after >= 11;
            assert!(states.all(|own| own.initialising.is_some() != is_last), "{name} {after}");
        }
    }
}

#[test]
fn zeros_are_sent_where_a_member_has_no_operation_for_them() {
    for shape in cases() {
        let mut disk = MemDisk::new(used(&shape), Order::Fifo);
        let all =
            Fault { member: MemberIndex(1), name: OpName::Zero, after: 0, count: u64::MAX, errno: Errno::OPNOTSUPP };
        disk.fail(all);
        let mut last = (Bytes(0), Bytes(1));
        let made =
            format(&mut disk, new(&shape, Allocation::Sparse), Content::Unknown, |done, total| last = (done, total));
        made.expect("made");
        assert_eq!(last.0, last.1, "{shape:?}: progress ends");
        let members: Members = (0..shape.members).map(|slot| disk.member(MemberIndex(slot)).cloned()).collect();
        assert_whole(&shape, &members, &format!("{shape:?}"));
    }
}

/// An array that is initialising, of members that hold anything.
fn unfinished(shape: &Shape) -> Members {
    let mut members = used(shape);
    for (own, bytes) in new(shape, Allocation::Full).iter().zip(members.iter_mut().flatten()) {
        let places = positions(own.areas.member_size).expect("large enough");
        places.into_iter().for_each(|position| bytes[size(position)..][..4096].fill(0));
        let write = |position| bytes[size(position)..][..4096].copy_from_slice(&encode(own));
        own.write_positions().into_iter().for_each(write);
    }
    members
}

#[test]
fn what_is_not_finished_is_opened_for_writing_with_all_members_or_not_at_all() {
    for shape in cases() {
        let members = unfinished(&shape);
        let presence = |count: usize, access, force| {
            let candidates = candidates(&members[..count].to_vec());
            let verdict = judge(&candidates).expect("an array");
            check_presence(&verdict, &candidates, OpenOptions { access, allow_degraded: true, force })
        };
        let all = members.len();
        for force in [false, true] {
            assert!(presence(all, Access::ReadWrite, force).is_ok(), "{shape:?}");
            assert!(matches!(presence(all, Access::ReadOnly, force), Err(OpenError::Initialising)), "{shape:?}");
            for access in [Access::ReadWrite, Access::ReadOnly] {
                let refused = presence(all - 1, access, force);
                let Err(OpenError::InitialisingDegraded { missing, .. }) = refused else {
                    panic!("{shape:?}: {refused:?}")
                };
                assert_eq!(missing.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [MemberIndex(shape.members - 1)]);
            }
        }
        let opened = || assembled(MemDisk::new(members.clone(), Order::Fifo), &members);
        assert!(opened().is_initialising() && opened().needs_recovery(), "{shape:?}");
        let refused = opened().into_engine::<u64>();
        assert!(matches!(refused, Err(EngineError::NotRecovered)), "{shape:?}");
        let refused = configure(opened(), &Setting::Consistency(Consistency::None));
        assert!(matches!(refused, Err(ConfigureError::Dirty)), "{shape:?}: {refused:?}");
        let refused = grow(opened(), &vec![None; all], None);
        assert!(matches!(refused, Err(GrowError::Dirty)), "{shape:?}: {refused:?}");
        let (mut done, total) = (Bytes(0), recovery_bytes(&opened()));
        let finished = recover(opened(), |bytes| done = bytes).expect("finished");
        assert!(done == total && !finished.needs_recovery() && !finished.is_initialising(), "{shape:?}");
        let mut random = Random(1);
        assert_whole(&shape, &finish(&members, usize::MAX, &mut random).1, &format!("{shape:?}"));
    }
}
