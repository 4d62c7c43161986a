//! Which members suit an array's sectors: those that take reads and writes as small as the array's.

use std::path::PathBuf;

use thiserror::Error;
use uraid_layout::Bytes;

/// A new member's sectors are larger than the array's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{path}: has sectors of {found} bytes, but the array writes sectors of {sector_size} bytes; use a member with \
     sectors of {sector_size} bytes", path = path.display()
)]
pub struct LargeSectors {
    /// The member.
    pub path: PathBuf,
    /// Its sectors.
    pub found: Bytes,
    /// The array's.
    pub sector_size: Bytes,
}

/// The size of a member's sectors, where they are larger than the array's: smaller writes would fail.
pub(super) fn too_large(found: Bytes, sector_size: Bytes) -> Option<Bytes> {
    (found > sector_size && !planted!(SectorsIgnored)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::Allocation;
    use crate::member::Member;

    #[test]
    fn members_with_larger_sectors_than_the_arrays_do_not_suit_it() {
        let directory = tempfile::tempdir().unwrap();
        for (found, sector_size, is_refused) in [
            (1, 512, false),
            (512, 512, false),
            (1024, 512, true),
            (4096, 512, true),
            (4096, 4096, false),
            (512, 4096, false),
        ] {
            let path = directory.path().join(format!("{found}-{sector_size}"));
            let member = Member::create(&path, Bytes(1 << 20), Allocation::Sparse).unwrap().demanding(Bytes(found));
            let refused = too_large(member.alignment().offset, Bytes(sector_size));
            assert_eq!(refused, is_refused.then_some(Bytes(found)), "{found} of {sector_size}");
        }
    }
}
