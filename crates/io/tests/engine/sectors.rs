//! Members that take whole sectors of 4096 bytes only: the engine gives them nothing smaller, whatever happens.

use uraid_io::array::recover;
use uraid_io::disk::{MemDisk, Order};
use uraid_io::engine::{CacheMode, Command};
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Placement, Sectors};

use crate::recovery::assembled;
use crate::support::{Members, RAID5, Random, Shape, images, noise, read, rm2, run, small, with_cache, write};
use uraid_io::format::superblock::Consistency;

const SECTOR_SIZE: usize = 4096;

/// Sectors of 512 bytes in one of those.
const STEP: u64 = 8;

#[test]
fn nothing_smaller_than_their_sectors_reaches_members() {
    let wide = |shape: Shape, consistency| Shape { chunk: 16 << 10, consistency, ..shape };
    let shapes = [
        wide(small(Level::Raid10 { copies: 2 }, 5), Consistency::Bitmap),
        wide(small(RAID5, 4), Consistency::Log),
        wide(small(RAID5, 4), Consistency::None),
        Shape { chunk: 8 << 10, ..wide(small(rm2(2, Placement::Adjacent), 5), Consistency::Log) },
        Shape { chunk: 8 << 10, ..small(rm2(2, Placement::Adjacent), 5) }.checked(),
    ];
    for shape in shapes {
        for caching in [None, Some((CacheMode::WriteBack, 16)), Some((CacheMode::WriteThrough, 16))] {
            let context = format!("{shape:?}, {caching:?}");
            let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), caching);
            engine.disk_mut().inner.set_sector_size(Bytes(SECTOR_SIZE as u64));
            let mut random = Random(3);
            let mut content = vec![0; usize::try_from(engine.geometry().capacity().bytes().0).expect("small")];
            let steps = engine.geometry().capacity().0 / STEP;
            for turn in 0..120 {
                let at = random.below(steps - 5);
                let len = 1 + random.below(5);
                let range = usize::try_from(at).expect("small") * SECTOR_SIZE
                    ..usize::try_from(at + len).expect("small") * SECTOR_SIZE;
                match random.below(8) {
                    0 => drop(run(&mut engine, Command::Flush).expect("flushed")),
                    1 => {
                        let (lba, len) = (Lba(at * STEP), Sectors(len * STEP));
                        drop(
                            run(&mut engine, Command::WriteZeroes { lba, len, fua: false, may_punch: false })
                                .expect("zeroed"),
                        );
                        content[range].fill(0);
                    }
                    2 => {
                        // One sector of 512 bytes can't be read, of a member that is drawn.
                        let member = MemberIndex(u8::try_from(random.below(u64::from(shape.members))).expect("few"));
                        let data = shape.superblocks()[0].areas.data.offset.0;
                        let sector = random.below(shape.geometry().used_sectors().0);
                        engine.disk_mut().inner.spoil(member, Bytes(data + sector * 512), Bytes(512));
                        let found = read(&mut engine, 0, steps * STEP).expect("read");
                        assert!(found == content, "{context}: turn {turn}");
                        engine.disk_mut().inner.clear_spoilt();
                    }
                    3 => {
                        let found = read(&mut engine, at * STEP, len * STEP).expect("read");
                        assert!(found == content[range], "{context}: turn {turn}");
                    }
                    _ => {
                        let bytes = noise(turn, len * STEP);
                        write(&mut engine, at * STEP, &bytes).expect("written");
                        content[range].copy_from_slice(&bytes);
                    }
                }
                assert!(engine.missing().is_empty(), "{context}: a member was given up at turn {turn}");
            }
            drop(run(&mut engine, Command::Flush).expect("flushed"));
            // What a crash leaves is recovered.
            let left: Members = images(&engine);
            let mut disk = MemDisk::new(left.clone(), Order::Fifo);
            disk.set_sector_size(Bytes(SECTOR_SIZE as u64));
            let opened = assembled(disk, &left);
            if opened.needs_recovery() {
                drop(recover(opened, |_| ()).expect("recovered"));
            }
            drop(run(&mut engine, Command::Fail { member: MemberIndex(1) }).expect("given up"));
            write(&mut engine, 0, &noise(500, STEP)).expect("written");
            content[..SECTOR_SIZE].copy_from_slice(&noise(500, STEP));
            assert!(read(&mut engine, 0, steps * STEP).expect("read") == content, "{context}: without a member");
            drop(run(&mut engine, Command::Close).expect("closed"));
            assert_eq!(engine.missing(), MemberSet::EMPTY.with(MemberIndex(1)), "{context}");
        }
    }
}
