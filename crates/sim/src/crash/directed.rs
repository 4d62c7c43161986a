//! Crashes that few workloads come to, looked for where they are: a member or a log device fails while commands are
//! under way, the log has gone around, the program is killed and the power goes while the array is opened again,
//! members that were lost come back after a recovery that was cut off, and a member that just joined does.

use uraid_io::format::superblock::{Consistency, LogIndex};
use uraid_layout::{Level, MemberIndex, MemberSet, Rotation};

use super::shape::Shape;
use super::workload::{After, Between, Cache, Change, ChangeKind, Failing, Op, OpKind, Order, Workload};
use super::{Counts, Enumeration, Failure, Grain, Options};

/// States of one workload at most.
const STATES_MAX: u64 = 4000;

const DURABLE: bool = true;

/// Which of the arrays has log devices.
const LOGGED: usize = 5;

/// The arrays that they are about: small ones.
#[must_use]
pub fn shapes() -> Vec<Shape> {
    let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
    vec![
        Shape::new(Level::Raid1, 2, Consistency::Log),
        Shape::new(raid5, 3, Consistency::Log),
        Shape::new(Level::Raid1, 2, Consistency::Bitmap),
        // Its records are of two blocks, and one of both stripes has three.
        Shape::with_log(Level::Raid1, 2, 2),
        Shape::new(Level::Raid1, 3, Consistency::Log),
        Shape::with_log_devices(raid5, 3, 1),
    ]
}

/// The workloads, with how thoroughly each is gone through, of the arrays of [`shapes`].
#[must_use]
pub fn workloads() -> Vec<(Workload, Options)> {
    let coarse = Options { grain: Grain::Areas, nested_every: u64::MAX, ..Options::default() };
    let mut all = Vec::new();
    for shape in 0..3 {
        all.extend(kills(shape).map(|workload| (workload, Options { kills: true, ..coarse })));
        all.extend(failures(shape).map(|workload| (workload, coarse)));
    }
    let fine = Options { grain: Grain::Singles, choices_max: 1, states_max: STATES_MAX, ..coarse };
    for shape in 0..2 {
        all.extend(returns(shape).map(|workload| (workload, Options { nested_every: 1 << 2, ..coarse })));
    }
    all.extend(log_failures(LOGGED, &shapes()[LOGGED]).map(|workload| (workload, coarse)));
    all.extend(kills(LOGGED).map(|workload| (workload, Options { kills: true, ..coarse })));
    all.extend(returns(LOGGED).map(|workload| (workload, Options { nested_every: 1 << 2, ..coarse })));
    all.extend(around(3).map(|workload| (workload, fine)));
    all.extend([join(4), copy(0)].map(|workload| (workload, Options { nested_every: 1, ..coarse })));
    all
}

/// Goes through all of it.
///
/// # Errors
/// The first state that is not as it must be.
pub fn run() -> Result<Counts, Box<Failure>> {
    let shapes = shapes();
    let mut sum = Counts::default();
    for (workload, options) in workloads() {
        sum = sum.plus(Enumeration::new(&shapes, options).run(&workload)?);
    }
    Ok(sum)
}

fn base(shape: usize, ops: &[OpKind]) -> Workload {
    Workload {
        shape,
        missing: MemberSet::EMPTY,
        cache: Cache::None,
        order: Order::Fifo,
        prelude: 0,
        ops: ops.iter().map(|&kind| Op { kind, fua: DURABLE }).collect(),
        between: Between::Wait,
        after: After::Flush,
        change: None,
        failing: None,
    }
}

fn kills(shape: usize) -> impl Iterator<Item = Workload> {
    let ends = [After::Flush, After::Close];
    ends.into_iter().map(move |after| Workload { after, ..base(shape, &[OpKind::Sector(0)]) })
}

/// Each of two members fails at each of its first operations: one of them, or all from then on.
fn failures(shape: usize) -> impl Iterator<Item = Workload> {
    let faults =
        (0..2).flat_map(|member| (0..8).flat_map(move |index| [false, true].map(|lasts| (member, index, lasts))));
    faults.flat_map(move |(member, index, lasts)| {
        let failing = Some(Failing { member: MemberIndex(member), index, lasts });
        // The second is in the next parity stripe, so that neither waits for the other.
        let next = if shape == 1 { OpKind::Sector(2) } else { OpKind::Sector(1) };
        let one = Workload { failing, ..base(shape, &[OpKind::Stripe]) };
        let two = Workload { failing, prelude: 1, between: Between::Midway, ..base(shape, &[OpKind::Sector(0), next]) };
        [one, two]
    })
}

/// Each of two log devices fails at each of its first operations: one of them, or all from then on.
fn log_failures(shape: usize, of: &Shape) -> impl Iterator<Item = Workload> {
    let faults = (0..2).flat_map(|log| (0..8).flat_map(move |index| [false, true].map(|lasts| (log, index, lasts))));
    let [first, second] = [0, 1].map(|log| of.log_slot(LogIndex(log)));
    faults.map(move |(log, index, lasts)| {
        let failing = Some(Failing { member: if log == 0 { first } else { second }, index, lasts });
        let ops = [OpKind::Sector(0), OpKind::Sector(2)];
        Workload { failing, prelude: 1, between: Between::Midway, ..base(shape, &ops) }
    })
}

/// The log goes around, and a record of several blocks is torn over older ones of the same sectors.
fn around(shape: usize) -> impl Iterator<Item = Workload> {
    [9, 10, 19, 20].into_iter().map(move |prelude| Workload { prelude, ..base(shape, &[OpKind::All]) })
}

/// Recoveries are cut off.
fn returns(shape: usize) -> impl Iterator<Item = Workload> {
    [OpKind::Stripe, OpKind::Sector(0)].into_iter().map(move |kind| base(shape, &[kind]))
}

/// A member joins after a write that only the log has, and is lost with the power as soon as it says that it belongs to
/// the array; it returns after a recovery of the others that was cut off.
fn join(shape: usize) -> Workload {
    let slot = MemberIndex(2);
    let missing = MemberSet::EMPTY.with(MemberIndex(1)).with(slot);
    let change = Some(Change { kind: ChangeKind::Join, slot, steps: None });
    let write = base(shape, &[OpKind::Stripe]);
    Workload { missing, cache: Cache::Back, prelude: 4, after: After::Close, change, ..write }
}

/// A copy takes a member's place, and is lost with the power as soon as it says so; it returns after a recovery of the
/// others that was cut off.
fn copy(shape: usize) -> Workload {
    let change = Some(Change { kind: ChangeKind::Copy, slot: MemberIndex(1), steps: Some(8) });
    let write = base(shape, &[OpKind::Stripe, OpKind::Sector(0)]);
    Workload { cache: Cache::Back, prelude: 4, after: After::Close, change, ..write }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_crash_that_is_looked_for_leaves_what_must_not_be() {
        let sum = run().unwrap_or_else(|failure| panic!("{failure}"));
        assert!(sum.states > 10_000 && sum.nested > 1000 && sum.recoveries > 5000 && sum.corrupt == 0, "{sum:?}");
    }
}
