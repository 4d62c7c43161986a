//! A reactor needs no files: here its members are in memory.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{EventfdFlags, eventfd};
use uraid_io::disk::{Completion, Disk, DiskOp, Latencies, MemDisk};
use uraid_io::engine::{Command, Record};
use uraid_io::format::superblock::{Areas, Consistency, Integrity, Superblock};
use uraid_io::member::Member;
use uraid_layout::{Geometry, Lba, Level, Rotation, Sectors, Spec};
use uuid::Uuid;

use super::snapshot::Snapshot;
use super::*;

struct InMemory {
    disk: MemDisk,
    event: OwnedFd,
    latencies: Latencies,
}

impl Disk for InMemory {
    fn submit(&mut self, op: DiskOp) {
        self.disk.submit(op);
    }

    fn kick(&mut self) -> Result<(), uraid_io::Error> {
        self.disk.kick()
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.disk.reap(completions);
    }

    fn wait(&mut self) -> Result<(), uraid_io::Error> {
        self.disk.wait()
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }
}

impl AsFd for InMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl LiveDisk for InMemory {
    fn members(&self) -> &[Option<Arc<Member>>] {
        &[]
    }

    fn put(&mut self, _: MemberIndex, member: Option<Arc<Member>>) -> Result<Option<Arc<Member>>, Option<Arc<Member>>> {
        Err(member)
    }

    fn is_awaited(&self, _: MemberIndex) -> bool {
        self.disk.in_flight() > 0
    }

    fn release(&mut self) {}

    fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    fn forget_latencies(&mut self, _: MemberIndex) {}
}

fn reactor() -> Reactor<InMemory> {
    let member_size = Bytes(8 << 20);
    let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
    let spec = Spec { level, members: 3, chunk: Bytes(64 << 10), member_size: Sectors((1 << 20) / 512) };
    let areas = Areas::new(member_size, Bytes(0), Integrity::None).expect("large enough");
    let uuids = [1, 2, 3].map(|number| (Uuid::from_bytes([number; 16]), areas));
    let superblocks = Superblock::of_new_array(Uuid::from_bytes([9; 16]), spec, &uuids).into_iter();
    let record = superblocks.map(|own| Some(Superblock { consistency: Consistency::None, ..own })).collect();
    let disk = InMemory {
        disk: MemDisk::zeroed(3, member_size),
        event: eventfd(0, EventfdFlags::CLOEXEC).expect("an event"),
        latencies: Latencies::new(3),
    };
    let geometry = Geometry::new(spec).expect("an array");
    let engine = Engine::new(disk, geometry, Record::new(record), false).expect("all members are there");
    let patience = Patience { deadlines: engine.deadlines(), max_errors: engine.max_errors() };
    let settings = Settings {
        busy_poll: Duration::ZERO,
        caching: None,
        limits: Limits::default(),
        patience,
        log_sums: true,
        last_resort: LastResort::default(),
    };
    let info = ExportInfo::new(4 << 20);
    let size = ExportSize::new(&info);
    Reactor::new(engine, info, size, settings, None, Arc::default())
}

#[test]
fn members_need_not_be_files() {
    let reactor = reactor();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let buf = reactor.pool.try_alloc(Bytes(4096)).expect("memory is left");
        reactor.administer(Command::Write { lba: Lba(0), buf, fua: false }).await.expect("it is written");
        reactor.administer(Command::Fail { member: MemberIndex(1) }).await.expect("the array survives it");
        let snapshot = Snapshot::take(&reactor).await.expect("no other thread is asked");
        assert_eq!(snapshot.condition.missing, MemberSet::EMPTY.with(MemberIndex(1)));
        assert!(snapshot.counters.total().writes > 0);
        reactor.close().await.expect("the others are marked clean");
    });
}
