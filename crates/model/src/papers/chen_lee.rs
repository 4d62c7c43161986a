//! Chen & Lee, Striping in a RAID Level 5 Disk Array (1993): table 2, figures 2 to 7, and every sentence about them
//! that can be checked.
//!
//! All of it is read from one [`experiment`]; [`rules`] are what the paper makes of throughputs, `coefficients` what it
//! makes of those.

mod coefficients;
pub(super) mod experiment;
mod figures;
pub(super) mod rules;
#[cfg(test)]
mod tests;

use super::{Item, Paper};

/// What the paper's reproduction has.
pub(super) const PAPER: Paper = Paper {
    name: "chen-lee",
    title: "Chen & Lee, Striping in a RAID Level 5 Disk Array (1993)",
    items: &[
        Item { name: "fig2", title: "read throughput by striping unit", run: figures::fig2 },
        Item { name: "fig3", title: "write throughput by striping unit", run: figures::fig3 },
        Item { name: "fig4", title: "read throughput as a share of the maximum", run: figures::fig4 },
        Item { name: "fig5", title: "write throughput as a share of the maximum", run: figures::fig5 },
        Item { name: "fig6", title: "good striping units by concurrency", run: figures::fig6 },
        Item { name: "table2", title: "the coefficients S and Z for three disks", run: coefficients::table2 },
        Item { name: "fig7", title: "the coefficients Z by the number of disks", run: figures::fig7 },
        Item {
            name: "choices",
            title: "what the choices that the paper leaves open change",
            run: coefficients::choices,
        },
    ],
};
