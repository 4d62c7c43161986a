//! fio with its nbd engine: job files, and what is read from its JSON.
//!
//! A job file needs three variables: `URAID_URI`, `URAID_SIZE` in bytes and `URAID_SEED`. So the one that was measured
//! can be run by hand.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use uraid_layout::Bytes;
use uraid_model::mech::sizes::{Sizes, UNIT};
use uraid_model::mech::workload::{Component, Pattern};
use uraid_model::workloads::{Demand, Workload};

use crate::Error;
use crate::load::{Kind, Load};
use crate::plan::Plan;
use crate::results::Measured;

/// What the results don't have of the job's own; the laboratory says it.
const OURS: [&str; 12] = [
    "ioengine",
    "filename",
    "directory",
    "uri",
    "size",
    "io_size",
    "time_based",
    "runtime",
    "ramp_time",
    "loops",
    "randseed",
    "unified_rw_reporting",
];

/// fio takes at most 64 sizes.
const BINS: usize = 50;

const ADVICE: &str = "install fio 3.17 or later with its nbd engine (Debian: apt install fio), or take --driver native";

/// Checks that there is a fio with the nbd engine, and returns its version.
///
/// # Errors
/// If there is none; the error says what to do.
pub fn version() -> Result<String, Error> {
    let missing = Error::Missing { program: "fio", advice: ADVICE };
    let run = |argument: &str| Command::new("fio").arg(argument).stdin(Stdio::null()).output();
    let Ok(version) = run("--version") else { return Err(missing) };
    let engines = run("--enghelp").map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if !engines.unwrap_or_default().lines().any(|line| line.trim() == "nbd") {
        return Err(missing);
    }
    Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned())
}

/// The job file of a load; `None` if fio can't run it.
#[must_use]
pub fn job(load: &Load, plan: &Plan) -> Option<String> {
    let body = match &load.kind {
        Kind::Demand(Demand::Mix(workload)) => section(&load.name, workload),
        Kind::Job(text) => stripped(text),
        Kind::Demand(Demand::Trace(_)) => return None,
    };
    let Plan { warm_up_s, seconds, .. } = plan;
    Some(format!(
        "; {title}
; To run it by hand{warning}:
; URAID_URI='nbd+unix:///NAME?socket=PATH' URAID_SIZE=1G URAID_SEED=1 fio {name}.fio
[global]
ioengine=nbd
uri=${{URAID_URI}}
size=${{URAID_SIZE}}
randseed=${{URAID_SEED}}
norandommap=1
time_based=1
ramp_time={warm_up_s}
runtime={seconds}
unified_rw_reporting=mixed
group_reporting=1
lat_percentiles=1
clat_percentiles=0
percentile_list=50:99

{body}",
        title = load.title,
        name = load.name,
        warning = if load.writes() { " (it overwrites what the array holds)" } else { "" },
    ))
}

/// The section of a workload.
fn section(name: &str, workload: &Workload) -> String {
    let components = &workload.components;
    let total: f64 = components.iter().map(|component| component.weight).sum();
    let share = |of: &dyn Fn(&Component) -> f64| -> f64 {
        components.iter().map(|component| component.weight / total * of(component)).sum()
    };
    let is_random = |component: &Component| matches!(component.pattern, Pattern::Random { .. });
    let reads = share(&|component| component.reads);
    let random = share(&|component| f64::from(u8::from(is_random(component))));
    let direction = match reads {
        _ if reads > 0.999 => "read",
        _ if reads < 0.001 => "write",
        _ => "rw",
    };
    let mut lines = vec![format!("[{name}]"), format!("rw={}{direction}", if random > 0.0 { "rand" } else { "" })];
    if direction == "rw" {
        lines.push(format!("rwmixread={:.0}", 100.0 * reads));
    }
    if random > 0.0 && random < 1.0 {
        // Of the reads and of the writes.
        let of = |reads: bool| {
            let part = |component: &Component| if reads { component.reads } else { 1.0 - component.reads };
            let all = share(&part);
            let random = share(&|component| if is_random(component) { part(component) } else { 0.0 });
            if all > 0.0 { 100.0 * random / all } else { 0.0 }
        };
        lines.push(format!("percentage_random={:.0},{:.0}", of(true), of(false)));
    }
    let sizes = sizes(components, total);
    match sizes.as_slice() {
        [(size, _)] => lines.push(format!("bs={}", size.0)),
        sizes => {
            let entries: Vec<String> = sizes.iter().map(|(size, percent)| format!("{}/{percent}", size.0)).collect();
            lines.push(format!("bssplit={}", entries.join(":")));
        }
    }
    let aligns = components.iter().filter_map(|component| match component.pattern {
        Pattern::Random { align } => Some(align.0),
        Pattern::Sequential | Pattern::Shared => None,
    });
    lines.extend(aligns.min().map(|align| format!("blockalign={align}")));
    lines.push(format!("iodepth={}", workload.depth));
    lines.join("\n") + "\n"
}

/// Sizes with whole percentages that sum up to 100.
fn sizes(components: &[Component], total: f64) -> Vec<(Bytes, u32)> {
    let mut shares: Vec<(Bytes, f64)> = Vec::new();
    for component in components {
        for (size, share) in bins(&component.sizes) {
            let share = share * component.weight / total;
            match shares.iter_mut().find(|(other, _)| *other == size) {
                Some((_, sum)) => *sum += share,
                None => shares.push((size, share)),
            }
        }
    }
    shares.sort_by_key(|(size, _)| *size);
    let mut percents: Vec<u32> = shares.iter().map(|(_, share)| (share * 100.0).floor() as u32).collect();
    // What rounding down left goes to those that lost most.
    let mut order: Vec<usize> = (0..shares.len()).collect();
    let lost = |index: usize, percents: &[u32]| shares[index].1 * 100.0 - f64::from(percents[index]);
    order.sort_by(|&left, &right| lost(right, &percents).total_cmp(&lost(left, &percents)));
    let left = 100_u32.saturating_sub(percents.iter().sum()) as usize;
    for &index in order.iter().cycle().take(left) {
        percents[index] += 1;
    }
    shares.into_iter().map(|(size, _)| size).zip(percents).filter(|(_, percent)| *percent > 0).collect()
}

/// A distribution as at most [`BINS`] sizes, each the mean of an equal part of it.
fn bins(sizes: &Sizes) -> Vec<(Bytes, f64)> {
    let all = sizes.probabilities();
    if let [(size, _)] = all.as_slice() {
        return vec![(size.bytes(), 1.0)];
    }
    let width = 1.0 / BINS as f64;
    let mut bins: Vec<(Bytes, f64)> = Vec::new();
    let (mut sum, mut filled) = (0.0, 0.0);
    for (size, mut share) in all {
        while share > 0.0 {
            let part = share.min(width - filled);
            sum += part * size.bytes().0 as f64;
            filled += part;
            share -= part;
            if filled >= width - 1e-9 {
                let mean = (sum / filled / UNIT.0 as f64).round().max(1.0) as u64 * UNIT.0;
                match bins.last_mut().filter(|(last, _)| last.0 == mean) {
                    Some((_, sum)) => *sum += filled,
                    None => bins.push((Bytes(mean), filled)),
                }
                (sum, filled) = (0.0, 0.0);
            }
            if share < 1e-12 {
                break;
            }
        }
    }
    bins
}

/// A user's job file without what the laboratory says.
fn stripped(text: &str) -> String {
    let is_ours = |line: &&str| OURS.contains(&line.split('=').next().unwrap_or_default().trim());
    let lines: Vec<&str> = text.lines().filter(|line| !is_ours(line)).collect();
    lines.join("\n") + "\n"
}

/// Runs a job file against an export of `size` bytes.
///
/// # Errors
/// If fio fails, or prints what can't be understood.
pub fn run(job: &Path, uri: &str, size: Bytes, seed: u64) -> Result<Measured, Error> {
    let failed = |said: String| Error::Program { program: format!("fio {}", job.display()), said };
    let output = Command::new("fio")
        .args(["--output-format=json"])
        .arg(job)
        .env("URAID_URI", uri)
        .env("URAID_SIZE", size.0.to_string())
        .env("URAID_SEED", seed.to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|_| Error::Missing { program: "fio", advice: ADVICE })?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = format!("{}{}", String::from_utf8_lossy(&output.stderr), &text);
        return Err(failed(said.lines().take(5).collect::<Vec<_>>().join("; ")));
    }
    measured(&text).map_err(failed)
}

/// What fio's JSON tells, or what is wrong with it.
fn measured(text: &str) -> Result<Measured, String> {
    // Notes of fio may precede the JSON.
    let json = &text[text.find('{').ok_or("it printed no JSON")?..];
    let report: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let jobs = report["jobs"].as_array().filter(|jobs| !jobs.is_empty()).ok_or("its JSON has no jobs")?;
    let mut all = Measured::default();
    let mut largest = 0.0;
    for job in jobs {
        if job["error"].as_i64() != Some(0) {
            return Err(format!("it reports error {} of job {}", job["error"], job["jobname"]));
        }
        let number =
            |path: &str| job.pointer(path).and_then(Value::as_f64).ok_or_else(|| format!("its JSON has no {path}"));
        let requests = number("/mixed/total_ios")?;
        all.requests += requests as u64;
        all.iops += number("/mixed/iops")?;
        all.mb_s += number("/mixed/bw_bytes")? / 1e6;
        all.mean_us += number("/mixed/lat_ns/mean")? / 1e3 * requests;
        // Percentiles of several groups can't be joined: the largest group's are taken.
        if requests > largest {
            largest = requests;
            all.p50_us = number("/mixed/lat_ns/percentile/50.000000")? / 1e3;
            all.p99_us = number("/mixed/lat_ns/percentile/99.000000")? / 1e3;
        }
    }
    if all.requests == 0 {
        return Err("it made no request in the time that counts".into());
    }
    all.mean_us /= all.requests as f64;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;
    use crate::plan::tests::plan;

    /// Cut from what fio 3.33 printed.
    const REPORT: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "esg-oltp",
      "error" : 0,
      "mixed" : {
        "io_bytes" : 754343936, "bw_bytes" : 376983476, "iops" : 92036.5, "runtime" : 2001, "total_ios" : 184166,
        "lat_ns" : { "min" : 49155, "mean" : 346221.5, "N" : 184166,
                     "percentile" : { "50.000000" : 321536, "99.000000" : 757760 } }
      }
    }
  ]
}"#;

    fn text(name: &str) -> String {
        job(&load::find(name, Bytes(4096)).expect("it is there")[0], &plan()).expect("fio can run it")
    }

    fn has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|it| it == *line), "no {line} in {text}");
        }
    }

    #[test]
    fn workloads_are_said_in_fios_words() {
        has(&text("esg-oltp"), &["rw=randrw", "rwmixread=67", "bs=4096", "blockalign=4096", "iodepth=16", "runtime=3"]);
        has(
            &text("esg-file-server"),
            &["bssplit=512/10:1024/5:2048/5:4096/60:8192/2:16384/4:32768/4:65536/10", "blockalign=512", "rwmixread=80"],
        );
        has(&text("esg-exchange-logs"), &["rw=write", "bs=65536"]);
        has(&text("esg-media-server"), &["rw=read", "bs=32768"]);
        // Reads: 65.7 random and 7 sequential. Writes: 24.3 and 3.
        has(&text("esg-exchange-data"), &["rw=randrw", "rwmixread=73", "percentage_random=90,89", "bs=4096"]);
        assert!(!text("esg-media-server").contains("blockalign"));
    }

    #[test]
    fn distributions_keep_their_mean() {
        for (name, mean) in
            [("exp4k", 4.0), ("exp16k", 16.0), ("norm100k", 100.0), ("norm400k", 400.0), ("norm1500k", 1500.0)]
        {
            let text = text(&format!("chen-lee-{name}-read-4"));
            let split = text.lines().find_map(|line| line.strip_prefix("bssplit=")).expect("there are sizes");
            let entries: Vec<(f64, f64)> = split
                .split(':')
                .map(|entry| entry.split_once('/').expect("a size and a share"))
                .map(|(size, share)| (size.parse().expect("a size"), share.parse().expect("a share")))
                .collect();
            assert!(entries.len() <= 64, "{split}");
            assert!((entries.iter().map(|entry| entry.1).sum::<f64>() - 100.0).abs() < 1e-9, "{split}");
            let found = entries.iter().map(|(size, share)| size / 1024.0 * share / 100.0).sum::<f64>();
            assert!((found / mean - 1.0).abs() < 0.03, "{name}: {found}");
        }
    }

    #[test]
    fn a_users_job_file_keeps_its_load() {
        let user =
            "[global]\nioengine=libaio\nfilename=/dev/sdb\nrw=randwrite\n[a]\nbs=8k\niodepth = 4\nruntime = 60\n";
        assert_eq!(stripped(user), "[global]\nrw=randwrite\n[a]\nbs=8k\niodepth = 4\n");
    }

    #[test]
    fn a_report_is_understood() {
        let found = measured(REPORT).expect("it is a report");
        assert_eq!((found.requests, found.iops, found.mean_us), (184_166, 92036.5, 346.2215));
        assert_eq!((found.mb_s, found.p50_us, found.p99_us), (376.983476, 321.536, 757.76));
        assert!(measured(&REPORT.replace("\"error\" : 0", "\"error\" : 5")).is_err_and(|why| why.contains("error 5")));
        assert!(measured(&REPORT.replace("184166,\n        \"lat", "0,\n        \"lat")).is_err());
        assert!(measured("fio: failed").is_err() && measured("{}").is_err());
    }
}
