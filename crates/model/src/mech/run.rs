//! Many runs, spread over processors, with the same results whatever their number.

use rayon::prelude::*;

use super::Error;
use uraid_random::Random;

/// The seed of a run: of one experiment's seed and the run's coordinates, so that it depends on neither order nor
/// threads.
#[must_use]
pub(crate) fn seed_of(seed: u64, coordinates: &[u64]) -> u64 {
    coordinates.iter().fold(Random::new(seed).bits(), |seed, &coordinate| {
        Random::new(seed ^ coordinate.wrapping_mul(0x9E37_79B9_7F4A_7C15)).bits()
    })
}

/// Does a piece of work for every point, on so many threads (0: one for each processor); results are in the points'
/// order.
///
/// # Errors
/// The first point's, in their order, or when the threads can't be had.
pub(crate) fn run_all<P: Sync, R: Send>(
    points: &[P],
    threads: usize,
    work: impl Fn(&P) -> Result<R, Error> + Sync + Send,
) -> Result<Vec<R>, Error> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let results: Vec<Result<R, Error>> = pool.install(|| points.par_iter().with_max_len(1).map(work).collect());
    results.into_iter().collect()
}
