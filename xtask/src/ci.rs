//! `cargo xtask ci`: the one list of what continuous integration runs. `.ci/run` calls it.
//!
//! Some steps draw from what no single run can finish: seeds, crashes, faults, planted bugs, kills. What they draw
//! follows from the commit, so that every commit tries something new and whoever checks it out can repeat it. Seeds
//! that failed once run every time. Fuzzing takes longest to build, and is the nights'.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::project::{Project, eprint_step};
use crate::{crash, kills, lint, mutants, package, sim, sweep, test, vm};

/// A step and what it runs; the number is drawn from the commit.
type Step = (&'static str, fn(&Project, u64) -> anyhow::Result<()>);

/// In this order: what fails soonest goes first.
const STEPS: &[Step] = &[
    ("lint", |project, _| {
        package::ensure_tool(project, "cargo-deny")?;
        lint::run(project)
    }),
    ("test", |project, _| test::run(project, &test::Options::default())),
    ("seeds that failed once", |project, _| sim::failed_once(project)),
    ("fresh seeds", |project, draw| done(sim::run(project, &sim::Options::seeds(first_seed(draw), 300)))),
    ("crash points", |project, draw| done(crash::run(project, &crash::Options::states(50_000, draw)))),
    ("fault sweep", |project, draw| done(sweep::run(project, &sweep::Options::sample(draw, 2500)))),
    ("planted bugs", |project, draw| done(mutants::run(project, &mutants::Options::sample(draw, 1)))),
    ("kills", |project, draw| done(kills::run(project, &kills::Options::rounds(8, draw).checked()))),
    ("virtual machines", |project, draw| done(vm::run(project, &vm::Options::ci(draw)))),
];

/// Runs every step until one fails, and says how long each took.
///
/// # Errors
/// The first step that failed, by name.
pub(crate) fn run(project: &Project) -> anyhow::Result<()> {
    let commit = project.commit()?;
    let draw = draw(&commit).with_context(|| format!("the commit {commit} is a hexadecimal number"))?;
    eprint_step(&format!("ci at commit {commit}, which draws {draw}"));
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for (name, step) in STEPS {
        eprint_step(&format!("== {name}"));
        let begun = Instant::now();
        step(project, draw).with_context(|| format!("the step '{name}' failed"))?;
        times.push((name, begun.elapsed()));
    }
    for (name, time) in &times {
        eprint_step(&format!("{:5} s  {name}", time.as_secs()));
    }
    report(times.len());
    Ok(())
}

/// The first 32 bits of the commit's number.
fn draw(commit: &str) -> Option<u64> {
    u64::from_str_radix(commit.get(..8)?, 16).ok()
}

/// Far from the seeds that people try by hand.
fn first_seed(draw: u64) -> u64 {
    1_000_000_000 + 10_000 * draw
}

fn done<T>(result: anyhow::Result<T>) -> anyhow::Result<()> {
    result.map(drop)
}

#[expect(clippy::print_stdout, reason = "the result")]
fn report(steps: usize) {
    println!("steps: {steps} passed, 0 failed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_draw_different_seeds() {
        assert_eq!(draw("00000010ffff"), Some(16));
        assert_eq!(draw("35b25889"), Some(0x35b2_5889));
        assert_eq!((draw("35b2"), draw("no commit")), (None, None));
        assert_ne!(first_seed(1), first_seed(2));
    }
}
