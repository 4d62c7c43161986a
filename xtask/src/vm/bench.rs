//! `cargo xtask vm bench`: RAID 5 by Linux md, exported by nbdkit, beside uraid: the same disks, the same kernel, the
//! same client.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, ensure};

/// What uraid is compared with, as the guest names it: with a bitmap, and with a partial parity log.
const PEERS: [&str; 2] = ["md", "md-ppl"];

/// uraid, as the guest names it: as it comes, and with a connection thread.
const OURS: [&str; 2] = ["uraid", "uraid-thread"];

/// A Markdown table of medians and of uraid's shares of the peers', from the guest's lines "SERVER WORKLOAD
/// BYTES_PER_SECOND".
///
/// # Errors
/// When a line is not like that, or a server lacks a workload.
pub(super) fn table(results: &str) -> anyhow::Result<String> {
    let mut runs: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for line in results.lines() {
        let [server, workload, speed] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            anyhow::bail!("not a result: {line}");
        };
        let speed: f64 = speed.parse().with_context(|| format!("not a number of bytes: {line}"))?;
        ensure!(speed > 0.0, "nothing was done: {line}");
        runs.entry((workload, server)).or_default().push(speed);
    }
    let mut table = String::from(
        "| workload, MiB/s | md | md with ppl | uraid | of md | of md with ppl | uraid, connection thread | of md | of \
         md with ppl |\n",
    );
    table += "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    let workloads: Vec<&str> = runs.keys().filter(|(_, server)| *server == PEERS[0]).map(|(name, _)| *name).collect();
    ensure!(!workloads.is_empty(), "the guest measured nothing");
    for workload in workloads {
        let speed = |server: &str| {
            let speeds = runs.get(&(workload, server)).with_context(|| format!("{server} lacks {workload}"))?;
            anyhow::Ok(median(speeds) / f64::from(1 << 20))
        };
        let [bitmap, ppl] = [speed(PEERS[0])?, speed(PEERS[1])?];
        write!(table, "| {workload} | {bitmap:.1} | {ppl:.1} |")?;
        for server in OURS {
            let own = speed(server)?;
            write!(table, " {own:.1} | {:.2} | {:.2} |", own / bitmap, own / ppl)?;
        }
        table.push('\n');
    }
    Ok(table)
}

/// The middle value of one at least, or the mean of the two middle ones.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_compared() {
        let results = "md read 1048576\nuraid read 4194304\nmd read 3145728\nuraid read 3145728\nmd read 2097152\n\
                       uraid read 1\nmd-ppl read 6291456\nuraid-thread read 9437184\n";
        let table = table(results).unwrap();
        assert!(table.ends_with("| read | 2.0 | 6.0 | 3.0 | 1.50 | 0.50 | 9.0 | 4.50 | 1.50 |\n"), "{table}");
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(table("md read 1\n").unwrap_err().to_string().contains("md-ppl lacks read"));
        assert!(table("md read\n").is_err());
        assert!(table("").is_err());
        assert!(table("md read 0\nuraid read 1\n").is_err());
    }
}
