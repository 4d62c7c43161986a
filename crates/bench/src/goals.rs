//! What the server is meant to reach, beside what a run found. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::report::{INFALLIBLE, Report};
use super::server::{BASELINE, QEMU};
use super::workload::{
    DURABLE, GENERATOR_READ_4, RANDOM_READ, RANDOM_WRITE_BURST, RANDOM_WRITE_FLUSHED, RANDOM_WRITE_FSYNC,
    RANDOM_WRITE_FSYNC_32, RANDOM_WRITE_SUSTAINED, READ_LATENCY, SEQUENTIAL_READ, SEQUENTIAL_WRITE,
    SEQUENTIAL_WRITE_FLUSHED, WORKLOADS, Workload,
};

/// A line of the table.
struct Goal {
    work: &'static str,
    against: &'static str,
    figure: Figure,
    bound: Bound,
    /// For each of [`LEVELS`], the server that is measured for it and its limit.
    targets: [Option<(&'static str, f64)>; LEVELS.len()],
}

/// What is compared.
enum Figure {
    /// A row's values, as a ratio to the baseline's.
    Value(&'static str),
    /// A row's values, as a ratio to those of another server.
    ValueBeside(&'static str, &'static str),
    /// A row's values, as a ratio to those of the same array in another mode, whose name ends like that.
    ValueBesideOwn(&'static str, &'static str),
    /// The server's processor time for each request of a row, as a ratio to the baseline's.
    Processor(&'static str),
    /// MiB that ever were resident, beyond the cache's size.
    MemoryBeyondCache,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast,
    AtMost,
}

const LEVELS: [&str; 3] = ["RAID 0", "RAID 5", "RM2"];

const HEALTHY: &str = "uraid RAID 5";
const RM2: &str = "uraid RM2";

/// What is to be reached where writes have to survive a power failure, on a medium that has something to wait for.
const DURABLE_GOALS: &[Goal] = &[
    beside_bitmap("1M sequential write, flushed at the end", SEQUENTIAL_WRITE_FLUSHED, 0.95),
    beside_bitmap("4K random write QD32, flushed at the end", RANDOM_WRITE_FLUSHED, 0.85),
    beside_qemu("4K random write QD32, flushed after each 32", RANDOM_WRITE_FSYNC_32, [1.5, 1.2]),
    beside_qemu("4K random write QD1, flushed after each", RANDOM_WRITE_FSYNC, [0.75, 0.65]),
];

/// A goal for what the log costs, against an array whose bitmap leaves the write hole open.
const fn beside_bitmap(work: &'static str, row: &'static str, limit: f64) -> Goal {
    let targets = [None, Some((HEALTHY, limit)), Some((RM2, limit))];
    Goal { work, against: "own bitmap", figure: Figure::ValueBesideOwn(row, " bitmap"), bound: Bound::AtLeast, targets }
}

/// A goal against a server that does no RAID.
const fn beside_qemu(work: &'static str, row: &'static str, [raid5, rm2]: [f64; 2]) -> Goal {
    let targets = [None, Some((HEALTHY, raid5)), Some((RM2, rm2))];
    Goal { work, against: QEMU, figure: Figure::ValueBeside(row, QEMU), bound: Bound::AtLeast, targets }
}

/// What is to be reached otherwise.
const GOALS: &[Goal] = &[
    by_default("fio 4K random read QD32", Figure::Value(RANDOM_READ), Bound::AtLeast, [1.8, 1.8, 1.8]),
    by_default("generator 4K random read, 4 connections", Figure::Value(GENERATOR_READ_4), Bound::AtLeast, [2.2; 3]),
    by_default(
        "fio 4K random write QD32, burst that fits the cache",
        Figure::Value(RANDOM_WRITE_BURST),
        Bound::AtLeast,
        [1.2; 3],
    ),
    Goal {
        work: "fio 4K random write QD32, sustained far beyond the cache",
        against: BASELINE,
        figure: Figure::Value(RANDOM_WRITE_SUSTAINED),
        bound: Bound::AtLeast,
        targets: [None, Some(("uraid RAID 5 small cache", 0.7)), Some(("uraid RM2 small cache", 0.5))],
    },
    by_default("1M sequential write", Figure::Value(SEQUENTIAL_WRITE), Bound::AtLeast, [1.4, 1.1, 0.9]),
    by_default("1M sequential read", Figure::Value(SEQUENTIAL_READ), Bound::AtLeast, [1.1; 3]),
    by_default("4K random read QD1 latency", Figure::Value(READ_LATENCY), Bound::AtMost, [1.0; 3]),
    Goal {
        work: "4K random read QD32 without a member",
        against: "own healthy",
        figure: Figure::ValueBeside(RANDOM_READ, HEALTHY),
        bound: Bound::AtLeast,
        targets: [None, Some(("uraid RAID 5 degraded", 0.6)), None],
    },
    by_default("server CPU for each 4K read, fio QD32", Figure::Processor(RANDOM_READ), Bound::AtMost, [0.6; 3]),
    by_default(
        "server CPU for each 4K read, generator, 4 connections",
        Figure::Processor(GENERATOR_READ_4),
        Bound::AtMost,
        [0.6; 3],
    ),
    Goal {
        against: "cache size",
        ..by_default("most resident memory, MiB beyond", Figure::MemoryBeyondCache, Bound::AtMost, [64.0; 3])
    },
];

/// A goal for uraid as it comes, against the baseline.
const fn by_default(work: &'static str, figure: Figure, bound: Bound, limits: [f64; 3]) -> Goal {
    let [raid0, raid5, rm2] = limits;
    let targets = [Some(("uraid RAID 0", raid0)), Some((HEALTHY, raid5)), Some((RM2, rm2))];
    Goal { work, against: BASELINE, figure, bound, targets }
}

impl Goal {
    /// What the run found for each level; `None` where it is no target or was not measured.
    fn found(&self, report: &Report) -> [Option<f64>; LEVELS.len()] {
        self.targets.map(|target| {
            let (server, _) = target?;
            match self.figure {
                Figure::Value(row) => report.ratio(row, server, BASELINE, |sample| Some(sample.value)),
                Figure::ValueBeside(row, other) => report.ratio(row, server, other, |sample| Some(sample.value)),
                Figure::ValueBesideOwn(row, mode) => {
                    report.ratio(row, server, &format!("{server}{mode}"), |sample| Some(sample.value))
                }
                Figure::Processor(row) => report.ratio(row, server, BASELINE, |sample| sample.processor),
                Figure::MemoryBeyondCache => report.mebibytes_beyond_cache(server),
            }
        })
    }

    /// The bound and its limits, as `>= 1.4 / 1.1 / 0.9`, or one that all levels share.
    fn limits(&self) -> String {
        let mut limits: Vec<String> = self.targets.iter().flatten().map(|(_, limit)| limit.to_string()).collect();
        limits.dedup();
        let sign = match self.bound {
            Bound::AtLeast => ">=",
            Bound::AtMost => "<=",
        };
        format!("{sign} {}", limits.join(" / "))
    }

    /// Which levels reach their limits: yes, no, or those that do.
    fn reached(&self, found: &[Option<f64>; LEVELS.len()]) -> String {
        let holds = |found: f64, limit: f64| match self.bound {
            Bound::AtLeast => found >= limit,
            Bound::AtMost => found <= limit,
        };
        let judged = self.targets.iter().zip(found).zip(LEVELS).filter_map(|((target, found), level)| {
            let (_, limit) = (*target)?;
            Some((level, found.map(|found| holds(found, limit))))
        });
        let judged: Vec<(&str, Option<bool>)> = judged.collect();
        if judged.iter().all(|(_, reached)| reached.is_none()) {
            return "not measured".to_owned();
        }
        let reached: Vec<&str> =
            judged.iter().filter(|(_, reached)| *reached == Some(true)).map(|(level, _)| *level).collect();
        match reached.len() {
            0 => "no".to_owned(),
            count if count == judged.len() => "yes".to_owned(),
            _ => reached.join(", "),
        }
    }
}

/// The goals for what was to be measured.
fn goals(report: &Report) -> impl Iterator<Item = &'static Goal> {
    let has = |workloads: &[Workload]| {
        let mut names = workloads.iter().flat_map(|workload| workload.rows).map(|(name, _)| *name);
        names.any(|name| report.rows.iter().any(|row| row.name == name))
    };
    let [usual, durable] = [(WORKLOADS, GOALS), (DURABLE, DURABLE_GOALS)]
        .map(|(workloads, goals)| if has(workloads) { goals } else { &[] });
    usual.iter().chain(durable)
}

/// The goals beside what was found, as markdown.
pub(crate) fn table(report: &Report) -> String {
    let mut text = format!("| work | against | goal | {} | reached |\n", LEVELS.join(" | "));
    text += "|---|---|---:|---:|---:|---:|---|\n";
    for goal in goals(report) {
        let found = goal.found(report);
        write!(text, "| {} | {} | {} |", goal.work, goal.against, goal.limits()).expect(INFALLIBLE);
        for (target, found) in goal.targets.iter().zip(&found) {
            let cell = found.map_or("-".to_owned(), |found| format!("{found:.2}"));
            write!(text, " {} |", if target.is_some() { &cell } else { "" }).expect(INFALLIBLE);
        }
        writeln!(text, " {} |", goal.reached(&found)).expect(INFALLIBLE);
    }
    text
}

/// The same for programs.
pub(crate) fn list(report: &Report) -> Vec<Value> {
    let goals = goals(report).map(|goal| {
        let found = goal.found(report);
        json!({
            "work": goal.work, "against": goal.against, "goal": goal.limits(), "levels": LEVELS, "found": found,
            "reached": goal.reached(&found),
        })
    });
    goals.collect()
}

#[cfg(test)]
mod tests {
    use super::super::server::SERVERS;
    use super::*;

    #[test]
    fn goals_name_servers_and_rows_that_are_measured() {
        for goal in GOALS.iter().chain(DURABLE_GOALS) {
            for (server, _) in goal.targets.iter().flatten() {
                let (row, other) = match goal.figure {
                    Figure::Value(row) | Figure::Processor(row) => (row, BASELINE.to_owned()),
                    Figure::ValueBeside(row, other) => (row, other.to_owned()),
                    Figure::ValueBesideOwn(row, mode) => (row, format!("{server}{mode}")),
                    Figure::MemoryBeyondCache => continue,
                };
                let role = |name: &str| SERVERS.iter().find(|server| server.name == name).unwrap().role;
                let mut all = WORKLOADS.iter().chain(DURABLE);
                let workload = all.find(|workload| workload.rows.iter().any(|(name, _)| *name == row));
                let workload = workload.unwrap_or_else(|| panic!("{row} is no row"));
                assert!(workload.is_for(role(server)) && workload.is_for(role(&other)), "{} on {server}", goal.work);
            }
        }
    }

    #[test]
    fn limits_are_told_once_where_all_levels_share_them() {
        let limits: Vec<String> = GOALS.iter().map(Goal::limits).collect();
        assert!(limits.contains(&">= 1.4 / 1.1 / 0.9".to_owned()), "{limits:?}");
        assert!(limits.contains(&">= 1.8".to_owned()) && limits.contains(&"<= 64".to_owned()), "{limits:?}");
    }

    #[test]
    fn each_level_is_judged_by_its_own_limit() {
        let write = by_default("", Figure::Value(SEQUENTIAL_WRITE), Bound::AtLeast, [1.4, 1.1, 0.9]);
        assert_eq!(write.reached(&[Some(1.4), Some(1.2), Some(0.9)]), "yes");
        assert_eq!(write.reached(&[Some(1.3), Some(1.2), Some(0.9)]), "RAID 5, RM2");
        assert_eq!(write.reached(&[Some(1.3), Some(1.0), Some(0.8)]), "no");
        assert_eq!(write.reached(&[None, Some(1.2), None]), "RAID 5");
        assert_eq!(write.reached(&[None; 3]), "not measured");
        let latency = by_default("", Figure::Value(READ_LATENCY), Bound::AtMost, [1.0; 3]);
        assert_eq!(latency.reached(&[Some(0.5), Some(1.0), Some(1.1)]), "RAID 0, RAID 5");
    }
}
