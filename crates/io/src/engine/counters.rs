//! What the engine has done, counted where it happens.

use uraid_layout::plan::MethodCounts;
use uraid_layout::{Bytes, MemberIndex, Sectors};

use crate::disk::log_at;
use crate::format::superblock::{LOGS_MAX, LogChange, LogIndex};

/// How much of something bounded is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// What is in use.
    pub used: Bytes,
    /// The most that can be.
    pub limit: Bytes,
}

impl Fill {
    /// Both together.
    pub(super) fn plus(self, other: Self) -> Self {
        Self { used: Bytes(self.used.0 + other.used.0), limit: Bytes(self.limit.0 + other.limit.0) }
    }
}

/// One member's disk operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounters {
    /// Reads, and what they moved.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes of content.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Operations that zero a range without moving it.
    pub zeroes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Records written to its log.
    pub log_records: u64,
    /// What they moved.
    pub log_bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that took longer than they may, and were given up.
    pub overdue: u64,
    /// Reads of a member on a network that took longer than its reads do, and were computed from the others.
    pub hedged: u64,
    /// Blocks that were read and are not what was written there, and pages of checksums that are damaged.
    pub mismatches: u64,
    /// Pieces that could not be read and were computed from the others and written back.
    pub repaired: u64,
    /// Pieces that could not be read and not be computed either, or not be written back.
    pub unrepairable: u64,
}

impl MemberCounters {
    fn plus(self, member: Self) -> Self {
        Self {
            reads: self.reads + member.reads,
            read_bytes: self.read_bytes + member.read_bytes,
            writes: self.writes + member.writes,
            written_bytes: self.written_bytes + member.written_bytes,
            zeroes: self.zeroes + member.zeroes,
            flushes: self.flushes + member.flushes,
            log_records: self.log_records + member.log_records,
            log_bytes: self.log_bytes + member.log_bytes,
            errors: self.errors + member.errors,
            overdue: self.overdue + member.overdue,
            hedged: self.hedged + member.hedged,
            mismatches: self.mismatches + member.mismatches,
            repaired: self.repaired + member.repaired,
            unrepairable: self.unrepairable + member.unrepairable,
        }
    }
}

/// The operations on members' data areas and logs; superblocks are not in them, nor is what is copied to a member that
/// is to take another one's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    members: Vec<MemberCounters>,
    /// Of log devices, by number.
    logs: [MemberCounters; LOGS_MAX],
    methods: MethodCounts,
    cache_hit: Bytes,
    cache_missed: Bytes,
    rebuilt: Bytes,
    scrub: ScrubCounters,
}

/// What scrubs have compared and found, those before the present one among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounters {
    /// What of the array was compared.
    pub compared: Bytes,
    /// What was certainly wrong.
    pub certain: Bytes,
    /// What was likely to be.
    pub suspected: Bytes,
    /// What did not agree, of which it can't be told who is wrong.
    pub unknown: Bytes,
    /// What of all that was made right.
    pub repaired: Bytes,
    /// Parity that could not be checked.
    pub unchecked: Bytes,
}

impl Counters {
    pub(super) fn new(members: usize) -> Self {
        Self {
            members: vec![MemberCounters::default(); members],
            logs: Default::default(),
            methods: MethodCounts::default(),
            cache_hit: Bytes(0),
            cache_missed: Bytes(0),
            rebuilt: Bytes(0),
            scrub: ScrubCounters::default(),
        }
    }

    /// How many parity stripes were to be written by each method. A write that is planned anew, since a member failed,
    /// counts again.
    pub fn methods(&self) -> MethodCounts {
        self.methods
    }

    /// What reads found in the cache, and what they did not; without a cache both are nothing.
    pub fn cache_reads(&self) -> (Bytes, Bytes) {
        (self.cache_hit, self.cache_missed)
    }

    /// Adds what another engine of the same array has done.
    ///
    /// # Panics
    /// When that one's array has another number of members.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.members.len(), other.members.len(), "engines of one array have the same members");
        for (member, &other) in self.members.iter_mut().zip(&other.members) {
            *member = member.plus(other);
        }
        for (log, &other) in self.logs.iter_mut().zip(&other.logs) {
            *log = log.plus(other);
        }
        self.methods += other.methods;
        self.cache_hit.0 += other.cache_hit.0;
        self.cache_missed.0 += other.cache_missed.0;
        self.rebuilt.0 += other.rebuilt.0;
        let ScrubCounters { compared, certain, suspected, unknown, repaired, unchecked } = &mut self.scrub;
        compared.0 += other.scrub.compared.0;
        certain.0 += other.scrub.certain.0;
        suspected.0 += other.scrub.suspected.0;
        unknown.0 += other.scrub.unknown.0;
        repaired.0 += other.scrub.repaired.0;
        unchecked.0 += other.scrub.unchecked.0;
    }

    /// What of the array was made for members that are being rebuilt.
    pub fn rebuilt_bytes(&self) -> Bytes {
        self.rebuilt
    }

    /// What scrubs have done.
    pub fn scrubs(&self) -> ScrubCounters {
        self.scrub
    }

    /// How many members the array has.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// One member's.
    ///
    /// # Panics
    /// When the array has no such member.
    pub fn member(&self, member: MemberIndex) -> &MemberCounters {
        &self.members[member.index()]
    }

    /// One log device's.
    ///
    /// # Panics
    /// When there can't be such a device.
    pub fn log_device(&self, log: LogIndex) -> &MemberCounters {
        &self.logs[usize::from(log.0)]
    }

    /// Those of what has a place of the disk.
    fn at(&mut self, place: MemberIndex) -> &mut MemberCounters {
        match log_at(place) {
            Some(log) => &mut self.logs[usize::from(log.0)],
            None => &mut self.members[place.index()],
        }
    }

    /// All members' together.
    pub fn total(&self) -> MemberCounters {
        self.members.iter().fold(MemberCounters::default(), |sum, &member| sum.plus(member))
    }

    /// The same of an array that has so many members now.
    pub(super) fn of(mut self, members: usize) -> Self {
        self.members.resize_with(members, MemberCounters::default);
        self
    }

    /// Begins anew for another member in a slot.
    pub(super) fn forget(&mut self, member: MemberIndex) {
        self.members[member.index()] = MemberCounters::default();
    }

    /// Begins anew for a log device that comes, of which there were so many. Whoever gets another number keeps its own.
    pub(super) fn change_logs(&mut self, change: LogChange, count: usize) {
        let forgotten = match change {
            LogChange::Add { .. } => count,
            LogChange::Replace { log, .. } => usize::from(log.0),
            LogChange::Remove { log } => {
                self.logs.swap(usize::from(log.0), count - 1);
                count - 1
            }
        };
        self.logs[forgotten] = MemberCounters::default();
    }

    pub(super) fn planned(&mut self, methods: MethodCounts) {
        self.methods += methods;
    }

    pub(super) fn looked_up(&mut self, len: Sectors, missed: Sectors) {
        let (Bytes(len), Bytes(missed)) = (len.bytes(), missed.bytes());
        self.cache_hit.0 += len - missed;
        self.cache_missed.0 += missed;
    }

    pub(super) fn rebuilt(&mut self, len: Sectors) {
        self.rebuilt.0 += len.bytes().0;
    }

    pub(super) fn scrubs_mut(&mut self) -> &mut ScrubCounters {
        &mut self.scrub
    }

    pub(super) fn read(&mut self, member: MemberIndex, len: Sectors) {
        let Bytes(bytes) = len.bytes();
        let member = &mut self.members[member.index()];
        member.reads += 1;
        member.read_bytes += bytes;
    }

    pub(super) fn write(&mut self, member: MemberIndex, len: Sectors) {
        if let Some(member) = self.members.get_mut(member.index()) {
            member.writes += 1;
            member.written_bytes += len.bytes().0;
        }
    }

    pub(super) fn zero(&mut self, member: MemberIndex) {
        self.members.get_mut(member.index()).into_iter().for_each(|member| member.zeroes += 1);
    }

    pub(super) fn flush(&mut self, member: MemberIndex) {
        self.members[member.index()].flushes += 1;
    }

    pub(super) fn log(&mut self, member: MemberIndex, len: Bytes) {
        let member = self.at(member);
        member.log_records += 1;
        member.log_bytes += len.0;
    }

    pub(super) fn mismatch(&mut self, member: MemberIndex) {
        self.members[member.index()].mismatches += 1;
    }

    pub(super) fn repaired(&mut self, member: MemberIndex) {
        self.members[member.index()].repaired += 1;
    }

    pub(super) fn unrepairable(&mut self, member: MemberIndex) {
        self.members[member.index()].unrepairable += 1;
    }

    pub(super) fn overdue(&mut self, member: MemberIndex) {
        self.members[member.index()].overdue += 1;
    }

    pub(super) fn hedged(&mut self, member: MemberIndex) {
        self.members[member.index()].hedged += 1;
    }

    pub(super) fn error(&mut self, member: MemberIndex) {
        self.at(member).errors += 1;
    }
}
