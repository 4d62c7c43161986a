//! What is tried: each scenario's name, what it shows, its disks and its time.

use std::fmt::Write as _;
use std::time::Duration;

use clap::builder::PossibleValuesParser;

use super::minutes;

/// Something that is tried in one or more guests.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// What it shows, as one line.
    about: &'static str,
    pub(super) kind: Kind,
    /// Disks that a guest begins with, and the size of each.
    pub(super) disks: usize,
    pub(super) disk_mib: u64,
    /// How long a guest may take; far above what it needs.
    pub(super) time_max: Duration,
    /// Whether continuous integration runs it.
    pub(super) ci: bool,
}

/// What is done.
pub(super) enum Kind {
    /// One guest runs this script.
    Script(&'static str),
}

/// All scenarios, in the order in which they run.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "mount",
        about: "ext4, xfs and btrfs over unix sockets and TCP: made, mounted, used, unmounted, clean",
        kind: Kind::Script(include_str!("scenario/mount.sh")),
        disks: 4,
        disk_mib: 256,
        time_max: minutes(5),
        ci: true,
    },
];

/// The names, for the command line.
pub(super) fn names() -> PossibleValuesParser {
    SCENARIOS.iter().map(|scenario| scenario.name).into()
}

/// What there is, for the command line's help.
pub(super) fn list() -> String {
    let mut list = String::from("Scenarios:\n");
    for Scenario { name, about, ci, .. } in SCENARIOS {
        let mark = if *ci { "*" } else { " " };
        writeln!(list, "  {name:<12}{mark} {about}").expect("a string takes every write");
    }
    list + "Those with a * are run by continuous integration."
}
