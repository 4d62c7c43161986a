//! Signatures of what may already be on a file or device, so that nothing of value is overwritten unasked.
//!
//! A table of magic bytes at fixed places from the start or the end, taken from each format's documentation, and
//! functions for the few formats whose place depends on the size. Detection errs on the side of finding something: a
//! false alarm costs a `--force`, a miss costs data. It does not prove that what it names is sound. What no table knows
//! is data all the same: only what reads as zeros at both ends is empty.

use std::fmt;

use uraid_layout::Bytes;

use crate::format::{log_device, superblock};

/// What was found, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    /// The format, as its users call it.
    pub(crate) name: &'static str,
    /// Where its magic bytes are.
    pub(crate) offset: Bytes,
}

/// Bytes read at each end: up to and including the first label of a ZFS device, and the last place of an md superblock.
const HEAD_BYTES: u64 = 256 << 10;
const TAIL_BYTES: u64 = 160 << 10;

/// What holds nothing reads as zeros in so much at its start, and at its end. It is a sample: nobody waits for a whole
/// disk to be read, and whoever wants a disk to count as empty can make it so quickly.
pub(crate) const ENDS: Bytes = Bytes(4 << 20);

/// What is read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Member files may end with less than this, which can't be written directly and is not looked at.
const STEP_BYTES: u64 = 4096;

/// Both ends of a file or device of `size` bytes, which may meet: where they begin, and their lengths.
#[must_use]
pub(crate) fn ends(size: Bytes) -> [(Bytes, Bytes); 2] {
    let size = size.0 / STEP_BYTES * STEP_BYTES;
    let head = size.min(ENDS.0);
    let tail = size.saturating_sub(ENDS.0).max(head);
    [(Bytes(0), Bytes(head)), (Bytes(tail), Bytes(size - tail))]
}

/// Looks for a known format, as [`detect`], or for anything that is not zero in either of the [`ends`].
///
/// # Errors
/// What `read_at` reports.
pub(crate) fn find<E>(
    size: Bytes,
    mut read_at: impl FnMut(Bytes, Bytes) -> Result<Vec<u8>, E>,
) -> Result<Option<Signature>, E> {
    if let Some(known) = detect(size, &mut read_at)? {
        return Ok(Some(known));
    }
    for (Bytes(start), Bytes(len)) in ends(size) {
        for at in (start..start + len).step_by(1 << 20) {
            let bytes = read_at(Bytes(at), Bytes(PIECE_BYTES.min(start + len - at)))?;
            if let Some(place) = bytes.iter().position(|&byte| byte != 0) {
                return Ok(Some(Signature { name: "data", offset: Bytes(at + place as u64) }));
            }
        }
    }
    Ok(None)
}

/// Looks for a known format on a file or device of `size` bytes; `read_at` reads at most the given length from an
/// offset, less where the file ends.
///
/// # Errors
/// What `read_at` reports.
pub(crate) fn detect<E>(
    size: Bytes,
    mut read_at: impl FnMut(Bytes, Bytes) -> Result<Vec<u8>, E>,
) -> Result<Option<Signature>, E> {
    let head = Window { start: 0, bytes: read_at(Bytes(0), Bytes(HEAD_BYTES))? };
    let start = size.0.saturating_sub(TAIL_BYTES);
    let tail = Window { start, bytes: read_at(Bytes(start), Bytes(TAIL_BYTES))? };
    let ends = Ends { head, tail, size: size.0 };
    let odd = [Ends::uraid, Ends::md, Ends::zfs].into_iter().find_map(|find| find(&ends));
    let from_start = FROM_START.iter().map(|&(name, offset, magic)| (name, Some(offset), magic));
    let from_end = FROM_END.iter().map(|&(name, back, magic)| (name, size.0.checked_sub(back), magic));
    let last_resort = LAST_RESORT.iter().map(|&(name, offset, magic)| (name, Some(offset), magic));
    let mut fixed = from_start.chain(from_end).chain(last_resort);
    let named = |(name, offset, magic): (_, Option<u64>, _)| {
        offset.filter(|_| ends.has(offset, magic)).map(|offset| Signature { name, offset: Bytes(offset) })
    };
    Ok(odd.or_else(|| fixed.find_map(named)))
}

/// Name, offset from the start, magic bytes.
const FROM_START: &[(&str, u64, &[u8])] = &[
    ("XFS", 0, b"XFSB"),
    ("ext2/3/4", 0x438, &[0x53, 0xef]),
    ("Btrfs", 0x10040, b"_BHRfS_M"),
    (
        "bcachefs",
        4096 + 24,
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
    (
        "bcache",
        4096 + 24,
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
    ("F2FS", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    ("EROFS", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("SquashFS", 0, b"hsqs"),
    ("SquashFS", 0, b"sqsh"),
    ("JFS", 0x8000, b"JFS1"),
    ("ReiserFS", 0x10034, b"ReIsEr"),
    ("GFS2", 0x10000, &[0x01, 0x16, 0x19, 0x70]),
    ("APFS", 32, b"NXSB"),
    ("HFS+", 0x400, b"H+\0\x04"),
    ("HFSX", 0x400, b"HX\0\x05"),
    ("NTFS", 3, b"NTFS    "),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("exFAT", 3, b"EXFAT   "),
    ("FAT", 54, b"FAT12   "),
    ("FAT", 54, b"FAT16   "),
    ("FAT", 54, b"FAT     "),
    ("FAT", 82, b"FAT32   "),
    ("ISO 9660", 0x8001, b"CD001"),
    ("UDF", 0x8001, b"BEA01"),
    ("swap", 4096 - 10, b"SWAPSPACE2"),
    ("swap", 4096 - 10, b"SWAP-SPACE"),
    ("swap", 16384 - 10, b"SWAPSPACE2"),
    ("swap", 65536 - 10, b"SWAPSPACE2"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LUKS", 0x4000, b"SKUL\xba\xbe"),
    ("LVM physical volume", 0, b"LABELONE"),
    ("LVM physical volume", 512, b"LABELONE"),
    ("LVM physical volume", 1024, b"LABELONE"),
    ("LVM physical volume", 1536, b"LABELONE"),
    ("Ceph BlueStore", 0, b"bluestore block device"),
    ("QCOW2 image", 0, b"QFI\xfb"),
    ("QED image", 0, b"QED\0"),
    ("VMDK image", 0, b"KDMV"),
    ("VMDK image", 0, b"# Disk DescriptorFile"),
    ("VHDX image", 0, b"vhdxfile"),
    ("VHD image", 0, b"conectix"),
    ("VDI image", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    ("GPT partition table", 512, b"EFI PART"),
    ("GPT partition table", 4096, b"EFI PART"),
];

/// Name, distance of the magic bytes from the end, magic bytes.
const FROM_END: &[(&str, u64, &[u8])] = &[
    ("GPT partition table (backup)", 512, b"EFI PART"),
    ("GPT partition table (backup)", 4096, b"EFI PART"),
    ("VHD image", 512, b"conectix"),
    ("Intel RAID metadata", 1024, b"Intel Raid ISM Cfg Sig. "),
    ("DDF RAID metadata", 512, &[0xde, 0x11, 0xde, 0x11]),
];

/// What many other formats carry too, and so is looked for last.
const LAST_RESORT: &[(&str, u64, &[u8])] = &[("MBR partition table or boot sector", 510, &[0x55, 0xaa])];

/// Linux md's magic number 0xa92b4efc, which version 0.90 stores in the machine's own byte order.
const MD_MAGIC: u32 = 0xa92b_4efc;

/// ZFS's uberblock magic, stored in the writer's byte order.
const ZFS_MAGIC: u64 = 0x00ba_b10c;

struct Ends {
    head: Window,
    tail: Window,
    size: u64,
}

/// Bytes of the file from `start` on.
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Ends {
    fn has(&self, offset: Option<u64>, magic: &[u8]) -> bool {
        let found = |window: &Window| {
            let at = usize::try_from(offset?.checked_sub(window.start)?).ok()?;
            Some(window.bytes.get(at..)?.starts_with(magic))
        };
        [&self.head, &self.tail].into_iter().any(|window| found(window) == Some(true))
    }

    fn uraid(&self) -> Option<Signature> {
        let places = superblock::places(Bytes(self.size))?;
        let kinds = [("uraid member", superblock::MAGIC), ("uraid log device", log_device::MAGIC)];
        kinds.into_iter().find_map(|(name, magic)| {
            let offset = places.into_iter().find(|position| self.has(Some(position.0), &magic))?;
            Some(Signature { name, offset })
        })
    }

    fn md(&self) -> Option<Signature> {
        let sectors = self.size / 512;
        let places = [
            ("Linux md member (version 1.2)", Some(4096)),
            ("Linux md member (version 1.1)", Some(0)),
            ("Linux md member (version 1.0)", sectors.checked_sub(16).map(|sector| sector / 8 * 8 * 512)),
            ("Linux md member (version 0.90)", (sectors / 128 * 128).checked_sub(128).map(|sector| sector * 512)),
        ];
        places.into_iter().find_map(|(name, offset)| {
            let found = [MD_MAGIC.to_le_bytes(), MD_MAGIC.to_be_bytes()].iter().any(|magic| self.has(offset, magic));
            found.then_some(Signature { name, offset: Bytes(offset?) })
        })
    }

    /// The uberblocks fill the second half of the first label; which of them are written depends on the pool's age.
    fn zfs(&self) -> Option<Signature> {
        let mut places = (128 << 10..256 << 10).step_by(1024);
        let magics = [ZFS_MAGIC.to_le_bytes(), ZFS_MAGIC.to_be_bytes()];
        let offset = places.find(|&place| magics.iter().any(|magic| self.has(Some(place), magic)))?;
        Some(Signature { name: "ZFS", offset: Bytes(offset) })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (signature at byte {})", self.name, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const SIZE: usize = 4 << 20;

    fn find(bytes: &[u8]) -> Option<Signature> {
        let read = |offset: Bytes, len: Bytes| -> Result<Vec<u8>, Infallible> {
            let start = usize::try_from(offset.0).unwrap().min(bytes.len());
            let end = (start + usize::try_from(len.0).unwrap()).min(bytes.len());
            Ok(bytes[start..end].to_vec())
        };
        detect(Bytes(bytes.len() as u64), read).unwrap()
    }

    fn with(size: usize, parts: &[(usize, &[u8])]) -> Option<Signature> {
        let mut bytes = vec![0; size];
        for (offset, part) in parts {
            bytes[*offset..offset + part.len()].copy_from_slice(part);
        }
        find(&bytes)
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        for size in [0, 1, 511, 512, 4096, 65536, SIZE] {
            assert_eq!(find(&vec![0; size]), None);
            assert_eq!(find(&vec![0xff; size]), None);
        }
    }

    #[test]
    fn what_nobody_knows_is_data_at_either_end() {
        let size = 3 * (4 << 20) + 100;
        let found = |offset: usize| {
            let mut bytes = vec![0; size];
            bytes[offset] = 1;
            let read = |at: Bytes, len: Bytes| -> Result<Vec<u8>, Infallible> {
                let start = usize::try_from(at.0).unwrap();
                Ok(bytes[start..start + usize::try_from(len.0).unwrap()].to_vec())
            };
            super::find(Bytes(size as u64), read).unwrap().map(|found| (found.name, found.offset.0))
        };
        for offset in [0, 1, (4 << 20) - 1, 2 * (4 << 20), size - 101] {
            assert_eq!(found(offset), Some(("data", offset as u64)));
        }
        for offset in [4 << 20, 2 * (4 << 20) - 4097, size - 1] {
            assert_eq!(found(offset), None, "{offset} is not looked at");
        }
    }

    #[test]
    fn formats_are_known_by_their_bytes() {
        let md = [0xfc, 0x4e, 0x2b, 0xa9];
        for (name, offset, magic) in [
            ("uraid member", 16384, &b"\x8dURAID\r\n"[..]),
            ("uraid member", 49152, b"\x8dURAID\r\n"),
            ("uraid member", SIZE - 65536, b"\x8dURAID\r\n"),
            ("ext2/3/4", 1024 + 56, &[0x53, 0xef]),
            ("XFS", 0, b"XFSB"),
            ("Btrfs", 65536 + 64, b"_BHRfS_M"),
            ("ZFS", 128 * 1024, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
            ("ZFS", 128 * 1024 + 37 * 1024, &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]),
            ("swap", 4086, b"SWAPSPACE2"),
            ("LUKS", 0, b"LUKS\xba\xbe\0\x02"),
            ("LVM physical volume", 512, b"LABELONE"),
            ("Linux md member (version 0.90)", SIZE - 65536, &md),
            ("Linux md member (version 0.90)", SIZE - 65536, &[0xa9, 0x2b, 0x4e, 0xfc]),
            ("Linux md member (version 1.0)", SIZE - 8192, &md),
            ("Linux md member (version 1.1)", 0, &md),
            ("Linux md member (version 1.2)", 4096, &md),
            ("GPT partition table", 512, b"EFI PART\0\0\x01\0"),
            ("GPT partition table (backup)", SIZE - 512, b"EFI PART"),
            ("MBR partition table or boot sector", 510, &[0x55, 0xaa]),
            ("NTFS", 3, b"NTFS    "),
            ("FAT", 82, b"FAT32   "),
            ("ISO 9660", 32769, b"CD001\x01"),
            ("SquashFS", 0, b"hsqs"),
            ("bcachefs", 4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
            ("QCOW2 image", 0, b"QFI\xfb\0\0\0\x03"),
            ("VMDK image", 0, b"KDMV\x01\0\0\0"),
            ("VHDX image", 0, b"vhdxfile"),
            ("VHD image", SIZE - 512, b"conectix"),
        ] {
            let expected = Signature { name, offset: Bytes(offset as u64) };
            assert_eq!(with(SIZE, &[(offset, magic)]), Some(expected));
        }
    }

    #[test]
    fn every_fixed_signature_is_found_where_it_is() {
        for &(name, offset, magic) in FROM_START.iter().chain(LAST_RESORT) {
            let found = with(SIZE, &[(usize::try_from(offset).unwrap(), magic)]);
            assert_eq!(found, Some(Signature { name, offset: Bytes(offset) }));
        }
    }

    #[test]
    fn a_boot_sector_is_named_by_what_it_boots() {
        let mark = (510, &[0x55, 0xaa][..]);
        for (name, offset, magic) in
            [("NTFS", 3, b"NTFS    "), ("FAT", 54, b"FAT16   "), ("GPT partition table", 512, b"EFI PART")]
        {
            assert_eq!(with(SIZE, &[mark, (offset, magic)]).unwrap().name, name);
        }
    }

    #[test]
    fn small_odd_sizes_are_read_within_their_bounds() {
        let size = 3 * 65536 + 700;
        let place = 2 * 65536;
        let found = with(size, &[(place, &[0xfc, 0x4e, 0x2b, 0xa9])]);
        assert_eq!(found.map(|found| (found.name, found.offset.0)), Some(("Linux md member (version 0.90)", 131_072)));
        assert_eq!(with(4, &[(0, b"XFSB")]).unwrap().name, "XFS");
        assert_eq!(with(600, &[(600 - 512, b"conectix")]).unwrap().name, "VHD image");
    }
}
