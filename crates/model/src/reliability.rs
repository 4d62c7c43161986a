//! The mean time to data loss of an array whose members fail independently.
//!
//! A Markov chain counts the members that are missing, from none to as many as the level survives (Gibson 1992;
//! Thomasian & Blaum 2009). A member fails after an exponential time of mean [`Disk::mttf_h`]; a missing one is rebuilt
//! in an exponential time of mean [`Array::rebuild_h`], one after another. Data is lost when one more member fails than
//! the level survives, or when a rebuild that needs all that is left comes upon a sector that can't be read.
//!
//! Failures that come together (one batch, one power supply, one mistake) are not in it, so the result compares levels
//! and is no promise.

/// A member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disk {
    /// Mean time to failure in hours.
    pub mttf_h: f64,
    /// Unreadable bits among those that are read: 1e-15 is one in 10^15.
    pub unreadable: f64,
    /// What a member holds, in bytes.
    pub bytes: f64,
}

/// How an array keeps data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array {
    /// Members.
    pub members: u32,
    /// How many may be missing, whichever they are; of mirrors, of each pair.
    pub tolerance: u32,
    /// Pairs of mirrors that don't know of each other; 1 of all other levels, whose members are one set.
    pub sets: u32,
    /// Mean time in hours until a missing member is rebuilt.
    pub rebuild_h: f64,
}

/// What becomes of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Mean time to data loss in hours, from failing members alone.
    pub mttdl_failures_h: f64,
    /// The same with sectors that can't be read during a rebuild.
    pub mttdl_h: f64,
    /// The probability that a rebuild which needs all that is left comes upon such a sector.
    pub unreadable: f64,
}

const HOURS_A_YEAR: f64 = 24.0 * 365.25;

impl Array {
    /// What becomes of such an array of such members.
    #[must_use]
    pub fn loss(&self, disk: &Disk) -> Loss {
        let set = f64::from(self.members / self.sets);
        // A rebuild of the last member that may be missing reads all that are left.
        let read_bits = (set - f64::from(self.tolerance)) * disk.bytes * 8.0;
        let unreadable = -(-disk.unreadable * read_bits).exp_m1();
        let of_set =
            |unreadable| time_to_loss(set, self.tolerance, 1.0 / disk.mttf_h, 1.0 / self.rebuild_h, unreadable);
        let sets = f64::from(self.sets);
        Loss { mttdl_failures_h: of_set(0.0) / sets, mttdl_h: of_set(unreadable) / sets, unreadable }
    }
}

impl Loss {
    /// The mean time to data loss in years.
    #[must_use]
    pub fn mttdl_years(&self) -> f64 {
        self.mttdl_h / HOURS_A_YEAR
    }

    /// The same from failing members alone.
    #[must_use]
    pub fn mttdl_failures_years(&self) -> f64 {
        self.mttdl_failures_h / HOURS_A_YEAR
    }

    /// The probability of losing data within so many years.
    #[must_use]
    pub fn within(&self, years: f64) -> f64 {
        -(-years / self.mttdl_years()).exp_m1()
    }
}

/// The mean time from no member missing to data loss, in the inverse of the rates' unit.
///
/// With `k` members missing, the time is `a(k) + (1 - c(k)) x` that with `k - 1`. From the last `k` downwards the sums
/// below have only positive terms, so nothing cancels however seldom data is lost.
fn time_to_loss(members: f64, tolerance: u32, fails: f64, rebuilds: f64, unreadable: f64) -> f64 {
    let failing = |missing: u32| (members - f64::from(missing)) * fails;
    if tolerance == 0 {
        return 1.0 / failing(0);
    }
    let total = failing(tolerance) + rebuilds;
    let mut time = 1.0 / total;
    let mut complement = (failing(tolerance) + rebuilds * unreadable) / total;
    for missing in (1..tolerance).rev() {
        let total = failing(missing) + rebuilds;
        let (further, back) = (failing(missing) / total, rebuilds / total);
        let denominator = back + further * complement;
        time = (1.0 / total + further * time) / denominator;
        complement = further * complement / denominator;
    }
    (1.0 / failing(0) + time) / complement
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, wanted: f64, share: f64) {
        assert!((found / wanted - 1.0).abs() < share, "{found} {wanted}");
    }

    const DISK: Disk = Disk { mttf_h: 1e6, unreadable: 0.0, bytes: 4e12 };

    fn array(members: u32, tolerance: u32, sets: u32) -> Array {
        Array { members, tolerance, sets, rebuild_h: 10.0 }
    }

    /// Patterson, Gibson & Katz (1988): MTTF^2 / (N (N-1) MTTR); their approximation for two failures:
    /// MTTF^3 / (N (N-1) (N-2) MTTR^2). Both hold where rebuilding is much quicker than failing.
    #[test]
    fn rare_failures_have_the_published_times() {
        close(array(8, 1, 1).loss(&DISK).mttdl_failures_h, 1e12 / (8.0 * 7.0 * 10.0), 1e-3);
        close(array(8, 2, 1).loss(&DISK).mttdl_failures_h, 1e18 / (8.0 * 7.0 * 6.0 * 100.0), 1e-3);
        close(array(8, 1, 4).loss(&DISK).mttdl_failures_h, 1e12 / (4.0 * 2.0 * 10.0), 1e-3);
        close(array(5, 0, 1).loss(&DISK).mttdl_failures_h, 2e5, 1e-9);
    }

    /// Two members, of which one may be missing, exactly: (3 f + r) / (2 f^2).
    #[test]
    fn frequent_failures_are_exact() {
        close(time_to_loss(2.0, 1, 1.0, 1.0, 0.0), 2.0, 1e-12);
        close(time_to_loss(2.0, 1, 1.0, 5.0, 0.0), 4.0, 1e-12);
        // A rebuild that always meets a sector that can't be read helps nobody: two failures, or one and a rebuild.
        close(time_to_loss(2.0, 1, 1.0, 5.0, 1.0), 0.5 + 1.0 / 6.0, 1e-12);
        // Three members, of which two may be missing, without rebuilding: 1/3 + 1/2 + 1.
        close(time_to_loss(3.0, 2, 1.0, 1e-12, 0.0), 11.0 / 6.0, 1e-9);
    }

    /// The chain, played out: 200,000 times from no member missing to loss.
    #[test]
    fn the_chain_played_out_takes_as_long() {
        let mut random = uraid_random::Random::new(1);
        let (members, tolerance, fails, rebuilds, unreadable) = (4.0, 2, 1.0, 3.0, 0.3);
        let runs = 200_000;
        let mut time = 0.0;
        for _ in 0..runs {
            let mut missing = 0_u32;
            loop {
                let failing = (members - f64::from(missing)) * fails;
                let total = failing + if missing > 0 { rebuilds } else { 0.0 };
                time -= (1.0 - random.unit()).ln() / total;
                if random.unit() * total < failing {
                    missing += 1;
                    if missing > tolerance {
                        break;
                    }
                } else if missing == tolerance && random.unit() < unreadable {
                    break;
                } else {
                    missing -= 1;
                }
            }
        }
        close(time / f64::from(runs), time_to_loss(members, tolerance, fails, rebuilds, unreadable), 0.01);
    }

    /// Eight members of 4 TB leave 28 TB to be read: 2.24e14 bits, of which 1e-15 are 20 %.
    #[test]
    fn unreadable_sectors_cost_most_where_nothing_else_is_left() {
        let disk = Disk { unreadable: 1e-15, ..DISK };
        let [raid5, raid6] = [array(8, 1, 1), array(8, 2, 1)].map(|array| array.loss(&disk));
        close(raid5.unreadable, 1.0 - (-0.224_f64).exp(), 1e-9);
        close(raid5.mttdl_h, 1e6 / 8.0 / (raid5.unreadable + 7.0 * 10.0 / 1e6), 1e-3);
        assert!(raid6.mttdl_h > 1e3 * raid5.mttdl_h, "{raid6:?} {raid5:?}");
        close(raid5.within(raid5.mttdl_years()), 1.0 - (-1.0_f64).exp(), 1e-9);
    }
}
