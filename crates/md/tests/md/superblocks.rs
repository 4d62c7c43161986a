//! Superblocks: every field, every refusal, and any bytes.

use proptest::prelude::*;
use uraid_layout::{DiskSector, Sectors};
use uraid_md::superblock::{BadRange, Level, Role, Superblock, Version};
use uraid_md::{Options, Scan, assemble};

use crate::image::{Recipe, found, put};

fn read(device: &[u8]) -> Superblock {
    let Scan { mut found, troubles } = found(&[device.to_vec()]);
    assert!(troubles.is_empty() && found.len() == 1, "{troubles:?}");
    found.pop().unwrap().superblock
}

fn trouble(device: &[u8]) -> String {
    let Scan { found, troubles } = found(&[device.to_vec()]);
    assert!(found.is_empty() && troubles.len() == 1, "{found:?} {troubles:?}");
    troubles[0].reason.to_string()
}

#[test]
fn fields_of_all_versions() {
    for (number, version) in [(0, Version::V1_0), (1, Version::V1_1), (2, Version::V1_2), (90, Version::V0_90)] {
        let superblock = read(&Recipe::new(number, 5, 2, 3).blank(1));
        let Superblock { level, layout, chunk, raid_disks, member_size, created, events, resynced, .. } = superblock;
        assert_eq!((superblock.version, level, layout, chunk), (version, Level::Raid5, 2, Sectors(8)));
        assert_eq!((raid_disks, member_size, created, events, resynced), (3, Sectors(64), 1000, 20, None));
        assert_eq!((superblock.number, superblock.role(), superblock.role_of(77)), (1, Role::Active(1), Role::Spare));
        let (name, uuid) = match number {
            90 => ("", "00000001:00000002:00000003:00000007"),
            _ => ("host:vault", "07070707:07070707:07070707:07070707"),
        };
        assert_eq!((superblock.name.as_str(), superblock.array.to_string().as_str()), (name, uuid));
        let data = if matches!(number, 1 | 2) { (64, 64) } else { (0, if number == 0 { 64 } else { 256 }) };
        assert_eq!((superblock.data_offset, superblock.data_size), (DiskSector(data.0), Sectors(data.1)));
    }
}

#[test]
fn an_old_array_that_was_not_stopped_says_up_to_where_it_agrees() {
    let recipe = Recipe::new(90, 5, 2, 3);
    let mut device = recipe.blank(0);
    recipe.change(&mut device, 33 * 4, &0_u32.to_le_bytes());
    recipe.change(&mut device, 43 * 4, &24_u32.to_le_bytes());
    assert_eq!(read(&device).resynced, Some(Sectors(24)));
    // The place was noted before something else happened.
    recipe.change(&mut device, 41 * 4, &19_u32.to_le_bytes());
    assert_eq!(read(&device).resynced, Some(Sectors(0)));
}

#[test]
fn lists_of_bad_blocks_have_their_own_unit() {
    let recipe = Recipe::new(2, 1, 0, 2);
    let mut device = recipe.blank(0);
    recipe.change(&mut device, 8, &8_u32.to_le_bytes());
    recipe.change(&mut device, 185, &[3, 1, 0, 16, 0, 0, 0]);
    let entries = [100 << 10 | 5, 0, 7 << 10 | 512, u64::MAX, 9 << 10 | 1];
    for (index, entry) in entries.iter().enumerate() {
        put(&mut device, (8 + 16) * 512 + index * 8, &entry.to_le_bytes());
    }
    let range = |start, len| BadRange { start: DiskSector(start), len: Sectors(len) };
    assert_eq!(found(&[device.clone()]).found[0].bad, [range(800, 40), range(56, 4096)]);
    recipe.change(&mut device, 188, &i32::MAX.to_le_bytes());
    assert_eq!(trouble(&device), "its list of bad blocks can't be read");
}

#[test]
fn every_refusal_says_what_is_wrong() {
    let recipe = Recipe::new(2, 5, 2, 3);
    let changed = |at, bytes: &[u8]| {
        let mut device = recipe.blank(0);
        recipe.change(&mut device, at, bytes);
        trouble(&device)
    };
    let mut damaged = recipe.blank(0);
    put(&mut damaged, recipe.place() + 93, &[1]);
    assert!(trouble(&damaged).contains("(version 1.2) is damaged: the checksum is"), "{}", trouble(&damaged));
    assert_eq!(changed(8, &0x6000_u32.to_le_bytes()), "its superblock has features that are not known: bits 0x6000");
    assert!(changed(12, &[1]).contains("a reserved field is not zero"));
    assert!(changed(240, &[1]).contains("a reserved field is not zero"));
    assert!(changed(144, &[9]).contains("is at sector 8 and says that it is at sector 9"));
    assert!(changed(136, &[4]).contains("no room for data"));
    assert!(changed(136, &[65]).contains("it ends after 128 sectors, and its data after 129: it was cut short"));
    assert!(changed(128, &[0xff; 8]).contains("beyond what can be counted"));
    for offset in [0_u64, 8] {
        assert!(changed(128, &offset.to_le_bytes()).contains("its data begin before it ends"), "{offset}");
    }
    assert!(changed(92, &[0, 0]).contains("no members"));
    assert!(changed(220, &[0xff, 0xff]).contains("more devices than there can be"));
    assert!(changed(80, &[65]).contains("uses more of it than it has"));
    assert_eq!(trouble(&recipe.blank(0)[..4096 + 300]), "its superblock is cut short");

    let old = Recipe::new(90, 5, 2, 3);
    let mut device = old.blank(0);
    old.change(&mut device, 8, &92_u32.to_le_bytes());
    assert_eq!(trouble(&device), "its superblock has version 0.92, which is not known");
    let place = old.place();
    device[place..place + 4096].chunks_exact_mut(4).for_each(<[u8]>::reverse);
    assert!(trouble(&device).contains("big-endian"));
}

#[test]
fn the_block_size_of_newer_kernels_is_no_unknown_field() {
    let recipe = Recipe::new(2, 5, 2, 3);
    let mut device = recipe.blank(0);
    recipe.change(&mut device, 224, &512_u32.to_le_bytes());
    assert_eq!(read(&device).version, Version::V1_2);
}

#[test]
fn of_several_superblocks_the_array_that_was_made_last_counts() {
    let (old, new) = (Recipe::new(0, 5, 2, 3), Recipe { size: 32, ..Recipe::new(2, 1, 0, 2) });
    let mut device = old.blank(0);
    let newer = new.blank(1);
    device[4096..8192].copy_from_slice(&newer[4096..8192]);
    new.change(&mut device, 64, &2000_u64.to_le_bytes());
    assert_eq!(read(&device).version, Version::V1_2);
    new.change(&mut device, 64, &500_u64.to_le_bytes());
    assert_eq!(read(&device).version, Version::V1_0);
}

#[test]
fn nothing_is_found_where_nothing_is() {
    for len in [0, 1, 511, 512, 4096, 8192, 65536, 200_000] {
        let Scan { found, troubles } = found(&[vec![0; len]]);
        assert!(found.is_empty() && troubles.is_empty(), "{len} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Changed fields are refused, or describe something whose content can be read or not: nothing panics.
    #[test]
    fn any_field_may_be_anything(
        version in prop::sample::select(vec![0_u32, 1, 2, 90]),
        changes in prop::collection::vec((0..1024_usize, any::<u64>()), 1..6),
        trust_parity: bool,
    ) {
        let recipe = Recipe::new(version, [0, 1, 5, 6, 10][changes.len() - 1], 0x102, 4);
        let mut devices: Vec<_> = (0..4).map(|slot| recipe.blank(slot)).collect();
        for (at, value) in changes {
            devices.iter_mut().for_each(|device| recipe.change(device, at / 4 * 4 % 508, &value.to_le_bytes()[..4]));
        }
        for assembly in assemble(found(&devices).found, &Options { trust_parity, zone_order: None }) {
            let _ = assembly.members.iter().map(|member| member.standing.to_string()).collect::<String>();
            let Ok(array) = assembly.array else { continue };
            let mut bytes = vec![0; array.capacity().0.min(1 << 16) as usize];
            let _ = array.read(uraid_layout::Bytes(0), &mut bytes);
        }
    }
}
