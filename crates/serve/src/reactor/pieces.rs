//! Trims and zeros that are larger than a compact request can be: they are done in pieces of that size, one after
//! another. So a stop, a change of members and whoever takes the place of a dead client wait for a piece, not for the
//! whole array, and others can write to the rest of it meanwhile.

use uraid_io::engine;
use uraid_layout::{Bytes, Lba, SECTOR_BYTES, Sectors};

/// The largest piece.
const PIECE_MAX: Bytes = Bytes(1 << 32);

/// Makes a command its first piece: what is left. Pieces end where parity stripes do, which are so long.
pub(super) fn cut(command: &mut engine::Command, stripe: impl FnOnce() -> Sectors) -> Option<engine::Command> {
    use engine::Command::{WriteZeroes, ZeroBytes};
    match command {
        WriteZeroes { lba, len, fua, may_punch } if len.bytes() > PIECE_MAX => {
            let first = Sectors(length(lba.0, PIECE_MAX.whole_sectors().0, stripe().0));
            let rest = Sectors(len.0 - first.0);
            *len = first;
            Some(WriteZeroes { lba: Lba(lba.0 + first.0), len: rest, fua: *fua, may_punch: *may_punch })
        }
        ZeroBytes { at, len, fua, may_punch } if *len > PIECE_MAX => {
            let first = Bytes(length(at.0, PIECE_MAX.0, stripe().0 * SECTOR_BYTES));
            let rest = Bytes(len.0 - first.0);
            *len = first;
            Some(ZeroBytes { at: Bytes(at.0 + first.0), len: rest, fua: *fua, may_punch: *may_punch })
        }
        _ => None,
    }
}

/// The length of a piece that begins at `start` and is at most `most` long; `stripe`: that of a parity stripe.
fn length(start: u64, most: u64, stripe: u64) -> u64 {
    let end = (start + most) / stripe * stripe;
    if end > start { end - start } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of all pieces, in bytes.
    fn pieces(mut command: engine::Command, stripe: Sectors) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        loop {
            let rest = cut(&mut command, || stripe);
            let (start, length, options) = match command {
                engine::Command::WriteZeroes { lba, len, fua, may_punch } => {
                    (lba.0 * 512, len.0 * 512, (fua, may_punch))
                }
                engine::Command::ZeroBytes { at, len, fua, may_punch } => (at.0, len.0, (fua, may_punch)),
                other => panic!("{other:?}"),
            };
            assert_eq!(options, (true, false), "each is what the command is");
            pieces.push((start, start + length));
            match rest {
                Some(rest) => command = rest,
                None => return pieces,
            }
        }
    }

    #[test]
    fn pieces_are_all_of_the_command_and_end_with_parity_stripes() {
        const GIB: u64 = 1 << 30;
        let sectors = |start: u64, length: u64| {
            let (lba, len) = (Lba(start / 512), Sectors(length / 512));
            engine::Command::WriteZeroes { lba, len, fua: true, may_punch: false }
        };
        let bytes =
            |at, len| engine::Command::ZeroBytes { at: Bytes(at), len: Bytes(len), fua: true, may_punch: false };
        let stripe = Sectors(384);
        // 3 * 64 KiB; 4 GiB are 21845 of them and a third.
        let whole = 21845 * 3 * (64 << 10);
        assert_eq!(pieces(sectors(0, 4 * GIB), stripe), [(0, 4 * GIB)], "what a compact request can be");
        assert_eq!(pieces(sectors(0, 4 * GIB + 512), stripe), [(0, whole), (whole, 4 * GIB + 512)]);
        assert_eq!(pieces(bytes(1, 4 * GIB + 7), stripe), [(1, whole), (whole, 4 * GIB + 8)]);
        let many = pieces(sectors(1 << 40, 1 << 40), stripe);
        assert!(many.first().unwrap().0 == 1 << 40 && many.last().unwrap().1 == 2 << 40);
        assert!(many.windows(2).all(|two| two[0].1 == two[1].0 && two[1].0 % (3 * (64 << 10)) == 0));
        assert!(many.iter().all(|(start, end)| end - start <= 4 * GIB));
        assert_eq!(pieces(bytes(0, 5 * GIB), Sectors(1 << 40)), [(0, 4 * GIB), (4 * GIB, 5 * GIB)], "no stripe ends");
    }
}
