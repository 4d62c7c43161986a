//! Throughput over a grid: arrays by workloads by numbers of processes.

use crate::mech::run::run_all;
use crate::mech::sizes::Sizes;
use crate::mech::workload::Mix;
use crate::mech::{ArraySpec, Error, StopRule, System, Tape};

/// One array under one workload, with several numbers of processes.
#[derive(Clone, Debug)]
pub(super) struct Study {
    pub(super) array: ArraySpec,
    pub(super) sizes: Sizes,
    /// The share of reads.
    pub(super) reads: f64,
    pub(super) seed: u64,
}

/// The throughput of each study with each number of processes, in units of 10^6 bytes a second.
pub(super) fn throughputs(studies: &[Study], processes: &[usize], rule: &StopRule) -> Result<Vec<Vec<f64>>, Error> {
    run_all(studies, 0, |study| {
        let mut system = System::new(std::slice::from_ref(&study.array))?;
        let capacity = system.geometry(0).capacity();
        let mix = Mix::uniform(study.sizes.clone(), study.reads, capacity, study.seed)?;
        let mut tape = Tape::new(&study.array, mix)?;
        let each = processes.iter().map(|&processes| {
            tape.rewind();
            Ok(system.run(&mut tape, processes, rule)?.megabytes_per_second())
        });
        each.collect()
    })
}
