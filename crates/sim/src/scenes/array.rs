//! An array between its lives, and the engine in one.

use std::path::PathBuf;

use uraid_io::array::{Assembled, Candidate, OpenOptions, Verdict, check_presence, judge, recover};
use uraid_io::buf::Buf;
use uraid_io::disk::Disk as _;
use uraid_io::engine::{Command, Engine, Reply};
use uraid_io::format::superblock::{
    Areas, Consistency, Integrity, MEMBER_MIN, Revision, ScrubHistory, SlotEntry, SlotState, Superblock,
};
use uraid_io::format::{Epoch, UnixSeconds};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Geometry, Level, Location, MemberIndex, MemberSet, Rotation, SECTOR_BYTES, Sectors, Spec};
use uuid::Uuid;

use crate::disk::Steps;
use crate::dst::model::{Number, content};
use crate::members::{MemberSector, Members};
use crate::trace::Trace;
use crate::{SimDisk, member};
use uraid_random::Random;

pub(super) const BLOCK: u64 = 4096;

/// Turns after which an engine that has not replied never will.
const TURNS_MAX: u32 = 20_000;

pub(super) const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

/// An array whose engine is not running.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) geometry: Geometry,
    pub(super) areas: Areas,
    pub(super) members: Members,
    /// Which of several copies of an array it is.
    pub(super) line: u64,
}

/// A life of it.
pub(super) struct Life {
    engine: Engine<SimDisk, u64>,
    pub(super) disk: SimDisk,
}

/// Whether an array that is opened is brought into agreement first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Recovered,
    AsItIs,
    ForReading,
}

impl Array {
    /// A new array of blocks, each in a unit of its own.
    pub(super) fn new(level: Level, members: u8, consistency: Consistency, integrity: Integrity, blocks: u64) -> Self {
        let member_size = Bytes(blocks * BLOCK).whole_sectors();
        let geometry = Geometry::new(Spec { level, members, chunk: Bytes(BLOCK), member_size }).expect("a geometry");
        let areas = Areas::new(MEMBER_MIN, Bytes(0), integrity).expect("a member has room for its areas");
        let uuid = |number| Uuid::from_u64_pair(0x5CE7E, number);
        let slots: Vec<SlotEntry> = (1..=u64::from(members))
            .map(|slot| SlotEntry { member: uuid(slot), state: SlotState::Active, since: Epoch(1) })
            .collect();
        let superblock = |slot: u8| Superblock {
            logs: None,
            array: uuid(100),
            name: "scene".into(),
            created: UnixSeconds(0),
            spec: *geometry.spec(),
            member: slots[usize::from(slot)].member,
            slot: MemberIndex(slot),
            areas,
            consistency,
            integrity,
            generation: Uuid::nil(),
            journal: Uuid::nil(),
            epoch: Epoch(1),
            revision: Revision(0),
            is_clean: true,
            initialising: None,
            blank: None,
            reshape: None,
            sector_size: Bytes(SECTOR_BYTES),
            scrub: ScrubHistory::default(),
            slots: slots.clone(),
        };
        let superblocks: Vec<Superblock> = (0..members).map(superblock).collect();
        let members = Members::new(&superblocks);
        Self { geometry, areas, members, line: 0 }
    }

    /// How many blocks it has for content.
    pub(super) fn blocks(&self) -> u64 {
        self.geometry.capacity().bytes().0 / BLOCK
    }

    /// Where a block of the array is on a member.
    pub(super) fn place(&self, block: u64) -> MemberSector {
        let Location { member, sector } = self.geometry.locate(uraid_layout::Lba(block * BLOCK / SECTOR_BYTES));
        MemberSector { member, offset: Bytes(self.areas.data.offset.0 + Sectors(sector.0).bytes().0) }
    }

    /// Bytes of a member.
    pub(super) fn bytes(&self, place: MemberSector, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).expect("a few bytes")];
        self.members.get(place.member).expect("it is there").read(place.offset, &mut bytes);
        bytes
    }

    /// Puts bytes on a member, durably, which nobody wrote there.
    pub(super) fn put(&mut self, place: MemberSector, bytes: &[u8]) {
        let member = self.members.get_mut(place.member).expect("it is there");
        member.write(place.offset, member::Payload::Bytes(bytes.into()));
        member.flush();
    }

    /// Without some members.
    pub(super) fn without(&self, lost: MemberSet) -> Self {
        let left = self.geometry.all_members().minus(lost);
        Self { members: self.members.only(left), ..self.clone() }
    }

    /// What the members' superblocks say of each other.
    pub(super) fn judge(&self) -> Result<(Vec<Candidate>, Verdict), String> {
        let mut candidates = Vec::new();
        for (slot, superblock) in self.members.superblocks() {
            let superblock = superblock.map_err(|error| format!("member {slot}: {error}"))?;
            candidates.push(Candidate { path: PathBuf::from(format!("member{slot}")), superblock });
        }
        let verdict = judge(&candidates).map_err(|error| error.to_string())?;
        Ok((candidates, verdict))
    }

    /// Opens it.
    pub(super) fn open(&self, opening: Opening) -> Result<Life, String> {
        let (candidates, verdict) = self.judge()?;
        let access = if opening == Opening::ForReading { Access::ReadOnly } else { Access::ReadWrite };
        let options = OpenOptions { access, allow_degraded: true, force: false };
        check_presence(&verdict, &candidates, options).map_err(|error| error.to_string())?;
        let accepted = self.geometry.all_members().minus(verdict.missing());
        let disk = SimDisk::new(self.members.only(accepted), Random::new(1), Trace::default());
        let generation = Uuid::from_u64_pair(verdict.superblock.epoch.0, 0x9 + self.line);
        let assembled = Assembled::new(disk.clone(), &verdict, &candidates, access, generation);
        let mut assembled = assembled.map_err(|error| error.to_string())?;
        if opening == Opening::Recovered && assembled.needs_recovery() {
            assembled = recover(assembled, |_| {}).map_err(|error| format!("not recovered: {error}"))?;
        }
        let engine = assembled.into_engine().map_err(|error| error.to_string())?;
        Ok(Life { engine, disk })
    }

    /// Opens and recovers it and goes on with `then`, with the power going after so many steps; whether all was over
    /// before.
    pub(super) fn cut_off(
        &self,
        steps: u64,
        then: impl FnOnce(&mut Life) -> Result<(), String>,
    ) -> Result<(Members, bool), String> {
        let (candidates, verdict) = self.judge()?;
        let disk = SimDisk::new(self.members.clone(), Random::new(1), Trace::default());
        disk.cut_after(Steps(steps));
        let assembled =
            Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadWrite, Uuid::from_u128(steps.into()));
        let ended = assembled
            .and_then(|assembled| if assembled.needs_recovery() { recover(assembled, |_| {}) } else { Ok(assembled) });
        let is_over = match ended {
            Ok(recovered) => {
                let engine = recovered.into_engine().map_err(|error| error.to_string())?;
                then(&mut Life { engine, disk: disk.clone() }).is_ok()
            }
            Err(_) => false,
        };
        Ok((disk.members(), is_over))
    }

    /// A life in which some blocks are written with the content of a number, and the array is closed.
    pub(super) fn with_written(mut self, blocks: std::ops::Range<u64>, number: u64) -> Result<Self, String> {
        let mut life = self.open(Opening::Recovered)?;
        for block in blocks {
            life.write(block, number)?;
        }
        life.run(Command::Close)?;
        self.members = life.disk.members();
        Ok(self)
    }
}

impl Life {
    /// Writes a block.
    pub(super) fn write(&mut self, block: u64, number: u64) -> Result<(), String> {
        self.write_all(block..block + 1, number)
    }

    /// Writes blocks at once.
    pub(super) fn write_all(&mut self, blocks: std::ops::Range<u64>, number: u64) -> Result<(), String> {
        let bytes: Vec<u8> = blocks.clone().flat_map(|block| expected(block, number)).collect();
        let mut buf = Buf::zeroed(Bytes(bytes.len() as u64));
        buf.as_mut().copy_from_slice(&bytes);
        self.run(Command::Write { lba: uraid_layout::Lba(blocks.start * 8), buf, fua: false }).map(drop)
    }

    /// Reads a block.
    pub(super) fn read(&mut self, block: u64) -> Result<Vec<u8>, String> {
        let buf = Buf::zeroed(Bytes(BLOCK));
        let buf = self.run(Command::Read { lba: uraid_layout::Lba(block * 8), buf })?;
        Ok(buf.expect("a read comes with its memory").as_ref().to_vec())
    }

    /// What the members that are there have on record.
    pub(super) fn superblock(&self) -> Superblock {
        self.engine.superblock().clone()
    }

    /// Whether a member's list of bad blocks has anything in it.
    pub(super) fn lacks(&self, member: MemberIndex) -> bool {
        self.engine.bad_blocks(member).is_some_and(|list| !list.is_empty())
    }

    /// The members that the array does without.
    pub(super) fn missing(&self) -> MemberSet {
        self.engine.missing()
    }

    /// Lets time pass until nothing is being copied any more.
    pub(super) fn copy(&mut self) -> Result<(), String> {
        self.pass(|engine| engine.replacement().is_none())
    }

    /// Lets time pass until nothing is being rebuilt any more.
    pub(super) fn rebuild(&mut self) -> Result<(), String> {
        self.pass(|engine| engine.rebuilding().is_none())
    }

    fn pass(&mut self, is_over: impl Fn(&Engine<SimDisk, u64>) -> bool) -> Result<(), String> {
        for _ in 0..TURNS_MAX {
            if is_over(&self.engine) {
                return Ok(());
            }
            self.engine.tick();
            self.engine.turn(&mut Vec::new()).map_err(|error| error.to_string())?;
            if self.disk.in_flight() > 0 {
                self.disk.wait().map_err(|error| error.to_string())?;
            }
        }
        Err("what was begun does not end".into())
    }

    /// Runs a command until nothing is under way any more.
    pub(super) fn run(&mut self, command: Command) -> Result<Option<Buf>, String> {
        self.engine.submit(0, command);
        let mut replies: Vec<Reply<u64>> = Vec::new();
        for _ in 0..TURNS_MAX {
            self.engine.turn(&mut replies).map_err(|error| error.to_string())?;
            let is_idle = self.engine.in_flight() == 0 && self.disk.in_flight() == 0 && !self.engine.wants_turn();
            if is_idle && !replies.is_empty() {
                return replies.remove(0).result.map_err(|error| error.to_string());
            }
            if self.disk.in_flight() > 0 {
                self.disk.wait().map_err(|error| error.to_string())?;
            }
        }
        Err("a command is never replied to".into())
    }
}

/// What a block holds after a write of that number.
pub(super) fn expected(block: u64, number: u64) -> Vec<u8> {
    (block * 8..block * 8 + 8).flat_map(|lba| content(Number(number), uraid_layout::Lba(lba))).collect()
}
