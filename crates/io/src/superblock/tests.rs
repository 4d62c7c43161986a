use uraid_layout::Bytes;

use super::*;
use crate::format::Epoch;
use crate::format::superblock::tests::sample;
use crate::format::superblock::{Allocation, Areas, Revision, SlotState, positions};
use crate::member::Access;

const MIB: u64 = 1 << 20;

/// The version after `before`.
fn after(before: &Superblock) -> Superblock {
    let (epoch, revision) = (Epoch(before.epoch.0 + 1), Revision(before.revision.0 + 1));
    Superblock { epoch, revision, is_clean: !before.is_clean, ..before.clone() }
}

fn on_a_member(test: impl FnOnce(&Member)) {
    let directory = tempfile::tempdir().unwrap();
    test(&Member::create(&directory.path().join("member"), Bytes(16 * MIB), Allocation::Full).unwrap());
}

fn overwrite(member: &Member, position: Bytes, byte: u8, len: u64) {
    let mut buf = Buf::zeroed(Bytes(len));
    buf.as_mut().fill(byte);
    member.write_at(position, &buf).unwrap();
}

#[test]
fn versions_alternate_and_the_newest_is_found() {
    on_a_member(|member| {
        assert!(matches!(load(member), Err(Error::Superblock { source: SuperblockError::NoMagic, .. })));
        let mut superblock = sample();
        let mut places = Vec::new();
        for _ in 0..4 {
            superblock = after(&superblock);
            store(member, &superblock).unwrap();
            assert_eq!(load(member).unwrap(), superblock);
            places.push(superblock.write_positions()[0].0);
        }
        assert_eq!(places, [49152, 16384, 49152, 16384]);
    });
}

#[test]
fn a_write_torn_at_any_block_leaves_this_version_or_the_one_before() {
    on_a_member(|member| {
        let before = sample();
        store(member, &before).unwrap();
        let mut after = after(&before);
        after.slots[0].state = SlotState::Failed;
        let [old, new] = [encode(&before), encode(&after)];
        for torn in 0..256_u64 {
            // Each of the two copies holds any mix of the old bytes (which at the head are another version's) and the
            // new.
            let mix = |kept: u64| -> Vec<u8> {
                let part = |i: usize| if kept >> i & 1 == 1 { &new } else { &old };
                (0..4).flat_map(|i| part(i)[i * 1024..(i + 1) * 1024].to_vec()).collect()
            };
            let masks = [torn & 15, torn >> 4 & 15];
            for (position, kept) in after.write_positions().into_iter().zip(masks) {
                member.write_at(position, &Buf::of(&mix(kept))).unwrap();
            }
            let found = load(member).unwrap();
            let is_whole = masks.into_iter().any(|mask| mix(mask) == new);
            assert_eq!(found, if is_whole { after.clone() } else { before.clone() }, "{masks:?}");
        }
    });
}

#[test]
fn what_a_torn_write_left_where_the_next_version_goes_is_overwritten() {
    on_a_member(|member| {
        let now = sample();
        store(member, &now).unwrap();
        let other = now.other_position();
        assert_eq!(other, after(&now).write_positions()[0]);
        let read = |at| member.peek(at, Bytes(SUPERBLOCK_BYTES as u64)).unwrap();
        let found = read(other);
        mend_other(member, &now).unwrap();
        assert_eq!(read(other), found, "nothing was torn there");
        let mut torn = Buf::zeroed(Bytes(SUPERBLOCK_BYTES as u64));
        torn.as_mut()[..512].copy_from_slice(&encode(&after(&now))[..512]);
        member.write_at(other, &torn).unwrap();
        mend_other(member, &now).unwrap();
        assert_eq!(*read(other), encode(&now));
    });
}

/// Data reach to the end, and at the tail they are another member's superblock, of a later epoch.
#[test]
fn where_data_reach_over_the_tail_the_last_copy_is_in_the_head() {
    on_a_member(|member| {
        let areas = Areas::around(member.size(), Bytes(MIB), member.size()).unwrap();
        let [even, odd, inner] = areas.copies();
        assert_eq!([even, odd, inner], [16384, 49152, 28672].map(Bytes));
        let own = Superblock { areas, ..sample() };
        let guest = Superblock { array: uuid::Uuid::from_u128(1), epoch: Epoch(99), ..sample() };
        let tail = positions(member.size()).unwrap()[2];
        let put = |at: Bytes, superblock: &Superblock| {
            member.write_at(at, &Buf::of(&encode(superblock))).unwrap();
        };
        put(tail, &guest);
        store(member, &own).unwrap();
        let next = after(&own);
        store(member, &next).unwrap();
        assert_eq!(*member.peek(tail, Bytes(SUPERBLOCK_BYTES as u64)).unwrap(), encode(&guest), "data stay");
        assert_eq!(load(member).unwrap(), next);
        overwrite(member, next.write_positions()[0], 0x55, 4096);
        assert_eq!(load(member).unwrap(), next, "the copy at 28 KiB");
        overwrite(member, inner, 0x55, 4096);
        assert_eq!(load(member).unwrap(), own, "the version before");
        // Cut off as soon as the superblocks are gone, it is no member of its array any more.
        put(inner, &own);
        erase(member).unwrap();
        assert!(matches!(load(member), Err(Error::Superblock { source: SuperblockError::NoMagic, .. })));
    });
}

#[test]
fn the_tail_serves_when_the_head_is_gone() {
    on_a_member(|member| {
        store(member, &sample()).unwrap();
        overwrite(member, Bytes(0), 0x55, MIB);
        assert_eq!(load(member).unwrap(), sample());
        overwrite(member, positions(member.size()).unwrap()[2], 0x55, 4096);
        assert!(matches!(load(member), Err(Error::Superblock { source: SuperblockError::NoMagic, .. })));
    });
}

#[test]
fn erasing_leaves_no_signature_and_touches_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    for size in [4 * MIB, 16 * MIB + 512 * 3] {
        let path = directory.path().join(size.to_string());
        let mut bytes = vec![0x11; usize::try_from(size).unwrap()];
        bytes[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
        let last = bytes.len() - 512;
        bytes[last..last + 8].copy_from_slice(b"EFI PART");
        std::fs::write(&path, &bytes).unwrap();
        let member = Member::open(&path, Access::ReadWrite).unwrap();
        let signature = || crate::signature::detect(member.size(), |offset, len| member.peek(offset, len)).unwrap();
        assert!(signature().is_some());
        erase(&member).unwrap();
        assert_eq!(signature(), None);
        let after = std::fs::read(&path).unwrap();
        let tail = bytes.len() / 4096 * 4096 - 65536;
        assert!(after[..1 << 20].iter().chain(&after[tail..]).all(|&byte| byte == 0), "{size}");
        assert!(after[1 << 20..tail].iter().all(|&byte| byte == 0x11), "{size}");
    }
}
