//! What the model gives beside what can be computed by hand or is printed in the papers.

mod arrays;
mod caches;
mod disks;
mod journals;
mod logs;
mod statistics;

use uraid_layout::{Bytes, Lba, Level, Rotation, Sectors};

use super::disk::{DiskSpec, Flash, Mechanism, Rotating, Seek};
use super::{ArraySpec, Nanos, Outcome, StopRule, System};
use super::{Request, Source};

const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

/// Requests of a list, one process's after the other.
struct List {
    requests: Vec<Request>,
    at: usize,
}

impl List {
    fn new(requests: Vec<Request>) -> Self {
        Self { requests, at: 0 }
    }

    fn of(is_write: bool, spans: &[(u64, u64)]) -> Self {
        let request = |&(lba, len)| Request { volume: 0, is_write, lba: Lba(lba), len: Sectors(len) };
        Self::new(spans.iter().map(request).collect())
    }
}

impl Source for List {
    fn next(&mut self, _process: usize, _now: Nanos) -> Option<Request> {
        self.at += 1;
        self.requests.get(self.at - 1).copied()
    }
}

/// Runs all requests of a list, counting each.
fn run_list(array: &ArraySpec, mut list: List, processes: usize) -> Outcome {
    let mut system = System::new(std::slice::from_ref(array)).expect("a good array");
    let rule = StopRule { warm_up: 0, requests_min: 1 << 40, requests_max: 1 << 40, ..StopRule::default() };
    system.run(&mut list, processes, &rule).expect("requests within the array")
}

/// A disk with round figures: 100 cylinders of 4 tracks of 10 sectors, 10 ms a revolution, 2 ms to the next cylinder.
fn round_disk() -> DiskSpec {
    let mechanism = Mechanism::Rotating(Rotating {
        cylinders: 100,
        tracks_per_cylinder: 4,
        sectors_per_track: 10,
        revolution_ms: 10.0,
        seek: Seek { minimum_ms: 2.0, average_ms: None, maximum_ms: 100.0 },
        head_switch_ms: 0.0,
        skewed: false,
        command_ms: 0.0,
    });
    DiskSpec { name: "round".into(), source: String::new(), mechanism }
}

/// A disk that takes 100 us and 1 us a sector, one operation at a time.
fn fixed_disk() -> DiskSpec {
    let mechanism = Mechanism::Flash(Flash {
        capacity_gb: 1.0,
        read_us: 100.0,
        write_us: 100.0,
        read_mb_s: 512.0,
        write_mb_s: 512.0,
        read_channels: 1,
        write_channels: 1,
    });
    DiskSpec { name: "fixed".into(), source: String::new(), mechanism }
}

fn alone(disk: DiskSpec) -> ArraySpec {
    ArraySpec::new(disk, 1, Level::Raid0, Bytes(4096))
}

#[track_caller]
fn assert_near(value: f64, expected: f64, share: f64) {
    assert!((value - expected).abs() <= share * expected.abs(), "{value} is not within {share} of {expected}");
}
