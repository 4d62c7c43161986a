//! Any bytes in a log ring: they are no record, or one that can be told whole; and what members hold decides what is
//! done again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::Input;
use uraid_fuzz::members::seal;
use uraid_io::format::BLOCK;
use uraid_io::format::log::record::{Extent, Header, Kind, LogSequence, RecordError, SUM_BYTES, decode, may_begin};
use uraid_io::format::log::{RECORD_BYTES_MAX, replay};
use uraid_layout::{Bytes, DiskSector, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

/// Most records that are put before recovery.
const RECORDS_MAX: u8 = 12;
/// The size of the records' content, whatever their extents say.
const CONTENT_BYTES: usize = 3 * 512 + SUM_BYTES;

const GENERATION: Uuid = Uuid::from_bytes([0xc0; 16]);

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut input = Input(bytes);
    let count = input.byte() % RECORDS_MAX;
    let accepted = input.members();
    let mut held: Vec<Header> = (0..count).filter_map(|_| check(&record(&mut input))).collect();
    held.retain(|held| accepted.contains(held.slot));
    let mut all = replay::Held::default();
    held.iter().cloned().for_each(|header| all.add(header));
    let Ok(chosen) = replay::choose(accepted, &all) else { return };
    for sequence in &chosen.redo {
        let copies = || held.iter().filter(|held| held.sequence == *sequence);
        assert!(copies().count() > 0, "what is done again was there");
        let holders: MemberSet = copies().map(|copy| copy.slot).collect();
        for copy in copies() {
            let must_hold = |member: &MemberIndex| accepted.contains(*member);
            assert!(
                copy.participants.iter().filter(must_hold).all(|member| holders.contains(member)),
                "all of them hold it"
            );
            assert!(!held.iter().any(|other| other.trim >= copy.sequence), "it was not in place yet");
        }
    }
    assert!(chosen.redo.is_sorted(), "in order");
});

/// Decodes bytes; what is a record says where it ends, and says the same when it is written again.
fn check(bytes: &[u8]) -> Option<Header> {
    let _ = may_begin(bytes, GENERATION);
    match decode(bytes) {
        Ok((header, content)) => {
            assert!(content.start == header.bytes() && content.end <= bytes.len());
            assert_eq!(Bytes(content.len() as u64), header.content());
            assert!(header.total().0 <= RECORD_BYTES_MAX.0 + BLOCK.bytes().0);
            let mut again = vec![0; header.bytes()];
            header.encode(&mut again);
            again.extend_from_slice(&bytes[content.clone()]);
            assert_eq!(decode(&again), Ok((header.clone(), content)), "what was decoded can be written");
            Some(header)
        }
        Err(RecordError::Short { needed }) => {
            assert!(needed.0 > bytes.len() as u64 && needed <= RECORD_BYTES_MAX, "{needed:?} of {}", bytes.len());
            None
        }
        Err(_) => None,
    }
}

/// A record with fields of few values, so that records meet each other, then changed, and mostly with the right
/// checksum.
fn record(input: &mut Input<'_>) -> Vec<u8> {
    let content: Vec<u8> = (0..CONTENT_BYTES).map(|at| at as u8).collect();
    let kinds = [Kind::Content, Kind::Sums, Kind::Content, Kind::Zeros, Kind::Content];
    let extent = |(number, kind): (u64, Kind)| Extent { sector: DiskSector(8 * number), len: Sectors(1), kind };
    let sequence = u64::from(input.byte() % 8);
    let header = Header {
        generation: GENERATION,
        sequence: LogSequence(sequence + 1),
        trim: LogSequence(sequence.saturating_sub(u64::from(input.byte() % 8))),
        participants: input.members(),
        previous: std::array::from_fn(|_| input.members()),
        open: std::array::from_fn(|_| LogSequence(u64::from(input.byte()) % (sequence + 1))),
        slot: MemberIndex(input.byte() % 8),
        position: Bytes(u64::from(input.byte()) * BLOCK.bytes().0),
        content_checksum: crc32fast::hash(&content),
        extents: (0..).zip(kinds).map(extent).collect(),
    };
    let mut bytes = vec![0; header.bytes()];
    header.encode(&mut bytes);
    let at = if input.byte() % 4 == 3 { 4096 } else { 256 };
    input.change(&mut bytes[..at]);
    if input.byte() % 8 != 7 {
        seal(&mut bytes);
    }
    bytes.extend(content);
    bytes
}
