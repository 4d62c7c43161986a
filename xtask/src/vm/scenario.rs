//! What is tried: each scenario's name, what it shows, its disks and its time.

use std::fmt::Write as _;
use std::time::Duration;

use clap::builder::PossibleValuesParser;

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
    /// One guest after the other runs this script and loses its power.
    Power(Power),
    /// One guest runs this script; what it leaves is judged here.
    Layouts(&'static str),
}

/// What loses its power.
pub(super) struct Power {
    pub(super) script: &'static str,
    /// Disks one of which can be lost together with the power.
    pub(super) losable: &'static [&'static [usize]],
    /// Cuts after which nothing new is to be seen.
    pub(super) cuts_max: u32,
}

pub(super) const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// All scenarios, in the order in which they begin: those that take longest first.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "power",
        about: "the power is cut under load, disks are lost with it: synced files are there, file systems are clean",
        kind: Kind::Power(Power {
            script: include_str!("scenario/power.sh"),
            // By the script's table: one of each RAID 5 and two of RM2, which have a log. Arrays without one are not
            // served then, unless they are made to.
            losable: &[&[8, 9, 10, 11], &[12, 13, 14], &[15, 16, 17], &[18, 19, 20]],
            cuts_max: u32::MAX,
        }),
        disks: 23,
        disk_mib: 64,
        time_max: minutes(5),
        ci: true,
    },
    Scenario {
        name: "layouts",
        about: "Linux md reads what uraid wrote, and the other way round; RM2 by its formulas",
        kind: Kind::Layouts(include_str!("scenario/layouts.sh")),
        disks: 7,
        disk_mib: 8,
        time_max: minutes(20),
        ci: false,
    },
    Scenario {
        name: "md_import",
        about: "arrays of Linux md, of all levels, layouts and versions, whole and not, are read from their members",
        kind: Kind::Script(include_str!("scenario/md_import.sh")),
        disks: 6,
        disk_mib: 12,
        time_max: minutes(40),
        ci: false,
    },
    Scenario {
        name: "md_convert",
        about: "arrays of Linux md become arrays of uraid where they are, go back, and lose nothing",
        kind: Kind::Script(include_str!("scenario/md_convert.sh")),
        disks: 6,
        disk_mib: 12,
        time_max: minutes(20),
        ci: false,
    },
    Scenario {
        name: "reshape",
        about: "RAID 5 of 3, which Linux md reads, becomes RM2 of 7 under a busy file system; the power is cut twice",
        kind: Kind::Power(Power { script: include_str!("scenario/reshape.sh"), losable: &[], cuts_max: 2 }),
        disks: 7,
        disk_mib: 64,
        time_max: minutes(8),
        ci: false,
    },
    Scenario {
        name: "mount",
        about: "ext4, xfs and btrfs over unix sockets and TCP: made, mounted, used, unmounted, clean",
        kind: Kind::Script(include_str!("scenario/mount.sh")),
        disks: 4,
        disk_mib: 256,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "verify",
        about: "fio checks what it wrote on RM2 with direct I/O, also after two members are gone",
        kind: Kind::Script(include_str!("scenario/verify.sh")),
        disks: 7,
        disk_mib: 256,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "discard",
        about: "blkdiscard and fstrim: what was discarded is zeros, and the members' space is free again",
        kind: Kind::Script(include_str!("scenario/discard.sh")),
        disks: 0,
        disk_mib: 0,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "resize",
        about: "a mounted file system grows with its array",
        kind: Kind::Script(include_str!("scenario/resize.sh")),
        disks: 0,
        disk_mib: 0,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "takeover",
        about: "one server after the other takes over under a mounted file system on nbd-client, which sees no error",
        kind: Kind::Script(include_str!("scenario/takeover.sh")),
        disks: 4,
        disk_mib: 64,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "restart",
        about: "the server stopped, killed and started again under a mounted file system",
        kind: Kind::Script(include_str!("scenario/restart.sh")),
        disks: 4,
        disk_mib: 256,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "sandbox",
        about: "a server of root's becomes nobody, in a sandbox with Landlock: what it serves, what is closed to it",
        kind: Kind::Script(include_str!("scenario/sandbox.sh")),
        disks: 3,
        disk_mib: 64,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "rebuild",
        about: "a member fails and is rebuilt under a busy file system",
        kind: Kind::Script(include_str!("scenario/rebuild.sh")),
        disks: 5,
        disk_mib: 256,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "retrieval",
        about: "whole files are read from an ext4 on temporary arrays over the kernel's client",
        kind: Kind::Script(include_str!("scenario/retrieval.sh")),
        disks: 3,
        disk_mib: 64,
        time_max: minutes(5),
        ci: false,
    },
    Scenario {
        name: "disconnect",
        about: "the device taken away under load",
        kind: Kind::Script(include_str!("scenario/disconnect.sh")),
        disks: 4,
        disk_mib: 256,
        time_max: minutes(5),
        ci: false,
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
