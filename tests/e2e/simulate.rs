//! `uraid simulate` prints the papers' tables and figures, and what does not exist is a misuse.

use uraid_tests::binary::uraid;

/// The service time of 16 KB on one RA81, by hand: a third of its cylinders, half a revolution, 32 of 52 sectors, 0.11
/// ms of processor.
#[test]
fn a_figure_is_numbers_and_a_drawing() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("figures");
    let words = ["simulate", "salem", "fig4b", "--json", "--svg", svg.to_str().unwrap()];
    let report = uraid(words).success().json();
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let total = rows.iter().find(|row| row["name"] == "total").unwrap();
    let wanted = 7.0 + 43.0 * (1258.0 / 3.0 - 1.0) / 1256.0 + 50.0 / 6.0 + 32.0 / 52.0 * 50.0 / 3.0 + 0.11;
    let got = total["cells"][0]["value"].as_f64().unwrap();
    assert!((got - wanted).abs() < 1e-6, "{got}, by hand {wanted}");
    let drawing = std::fs::read_to_string(svg.join("salem-fig4b.svg")).unwrap();
    assert!(drawing.starts_with("<svg") && drawing.contains("transfer"));
}

#[test]
fn a_paper_is_all_of_its_figures() {
    let text = uraid(["simulate", "salem", "--csv"]).success().text();
    for figure in ["fig4a", "fig4b", "fig4c", "fig4d", "fig5a", "fig5b", "fig6"] {
        assert!(text.lines().any(|line| line.starts_with(&format!("salem {figure},figure,"))), "{figure}");
    }
    let lists = uraid(["simulate"]).success().text();
    assert!(lists.contains("salem") && lists.contains("fig5b"), "{lists}");
}

#[test]
fn what_is_not_there_is_a_misuse_that_tells_what_is() {
    for words in [&["simulate", "nobody"][..], &["simulate", "salem", "fig9"]] {
        let refused = uraid(words);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("choose"), "{}", refused.stderr);
    }
}

/// One read of 4 KiB at a time from a disk of this kind takes the mean seek, half a revolution and the transfer: 8.5 +
/// 4.17 + 0.04 ms. A missing member costs reads, and what is rebuilt takes a while.
#[test]
fn an_array_of_ones_own_is_simulated() {
    let words = ["simulate", "array", "--json", "--level", "5", "--members", "6"];
    let disk = ["--disk", "constellation-es", "--workload", "mix:size=4K,reads=100,depth=1"];
    let run = |more: &[&str]| uraid(words.iter().chain(&disk).chain(more)).success().json();
    let number = |found: &serde_json::Value, name: &str| found[name].as_f64().unwrap();
    let whole = run(&[]);
    assert!((number(&whole, "mean_ms") / (8.5 + 25.0 / 6.0 + 0.04) - 1.0).abs() < 0.05, "{whole:#}");
    assert!((number(&whole, "operations") - 1.0).abs() < 1e-9 && whole["rebuild_s"].is_null(), "{whole:#}");
    // A sixth of the reads takes the five others.
    let degraded = run(&["--failed", "2"]);
    assert!((number(&degraded, "operations") - (5.0 / 6.0 + 5.0 / 6.0)).abs() < 0.1, "{degraded:#}");
    let rebuilding = run(&["--rebuilding", "2"]);
    // 2 TB at 112 MB/s take 5 hours at least.
    assert!(number(&rebuilding, "rebuild_s") > 5.0 * 3600.0 * 0.9, "{rebuilding:#}");
}

/// RAID 6 has two parities: a small write is six operations, where RAID 5 has four.
#[test]
fn raid_6_is_simulated_with_two_members_missing() {
    let words = ["simulate", "array", "--json", "--members", "6", "--disk", "constellation-es"];
    let load = ["--workload", "mix:size=4K,reads=0,depth=1"];
    let run = |more: &[&str]| uraid(words.iter().chain(&load).chain(more)).success().json();
    for (level, operations) in [("5", 4.0), ("6", 6.0), ("rm2", 6.0)] {
        let found = run(&["--level", level])["operations"].as_f64().unwrap();
        assert!((found - operations).abs() < 0.05, "{level}: {found}");
    }
    assert!(run(&["--level", "6", "--rebuilding", "1"])["rebuild_s"].as_f64().unwrap() > 5.0 * 3600.0 * 0.9);
    // Where both are data a write still takes six; where one is parity, four or fewer.
    let degraded = run(&["--level", "6", "--layout", "right-asymmetric", "--failed", "1,2"])["operations"].as_f64();
    assert!(degraded.is_some_and(|operations| operations < 6.0), "{degraded:?}");
    let refused = uraid(words.iter().chain(&load).chain(&["--level", "6", "--failed", "1,2,3"])).code_is(1);
    assert!(refused.stderr.contains("bring back one of the members"), "{}", refused.stderr);
}

/// Patterson, Gibson & Katz (1988): MTTF^2 / (N (N-1) MTTR) for one failure, of pairs N / 2 times 2, and
/// MTTF^3 / (N (N-1) (N-2) MTTR^2) for two. A rebuild that reads 7 x 2 TB meets one bit in 10^15 with 10.6 %.
#[test]
fn levels_are_compared_by_when_they_lose_data() {
    let words = ["simulate", "reliability", "--members", "8", "--disk", "constellation-es"];
    let rates = ["--rebuild", "10h", "--mttf", "1000000"];
    let of = |more: &[&str]| uraid(words.iter().chain(&rates).chain(&["--json"]).chain(more)).success().json();
    let found = of(&["--level", "5,10,6,rm2,0"]);
    let years = 24.0 * 365.25;
    let expected = [1e12 / 560.0, 1e12 / 80.0, 1e18 / 33_600.0, 1e18 / 33_600.0, 1e6 / 8.0].map(|hours| hours / years);
    for (row, expected) in found.as_array().unwrap().iter().zip(expected) {
        let without = row["mttdl_failures_years"].as_f64().unwrap();
        assert!((without / expected - 1.0).abs() < 1e-3, "{row:#}: {expected}");
        assert!(row["mttdl_years"].as_f64().unwrap() <= without);
    }
    let unreadable = found[0]["unreadable"].as_f64().unwrap();
    let bits = 7.0 * 8.0 * 2e12;
    assert!((unreadable / (1.0 - f64::exp(-1e-15 * bits)) - 1.0).abs() < 0.01, "{unreadable}");
    let rooms: Vec<f64> = found.as_array().unwrap().iter().map(|row| row["capacity"].as_f64().unwrap()).collect();
    // Of eight members, RM2 has at most three rows.
    for (room, expected) in rooms.iter().zip([7.0 / 8.0, 0.5, 0.75, 2.0 / 3.0, 1.0]) {
        assert!((room - expected).abs() < 1e-3, "{rooms:?}");
    }
    let text = uraid(words.iter().chain(&["--level", "5,6", "--workload", "oltp"])).success().text();
    assert!(text.contains("RAID 6") && text.contains("beside oltp,"), "{text}");
    let refused = uraid(words[..2].iter().chain(&["--members", "7", "--level", "10"]).chain(&words[4..]).chain(&rates));
    assert!(refused.code == Some(2) && refused.stderr.contains("even"), "{}", refused.stderr);
}

/// A trace of a second, at its own pace and as fast as it goes, on a disk from a file.
#[test]
fn a_trace_is_played_at_its_pace() {
    let directory = tempfile::tempdir().unwrap();
    let [trace, disk] = ["t.csv", "d.toml"].map(|name| directory.path().join(name));
    let lines = (0..100_u64).map(|index| format!("{}.{:02},R,{},4096\n", index / 100, index % 100, index * 8192));
    std::fs::write(&trace, lines.collect::<String>()).unwrap();
    let flash = "capacity_gb = 100.0\nread_us = 100.0\nwrite_us = 50.0\nread_mb_s = 500.0\nwrite_mb_s = 400.0\n";
    let text = format!("name = 'mine'\n[mechanism.flash]\n{flash}read_channels = 4\nwrite_channels = 2\n");
    std::fs::write(&disk, &text).unwrap();
    let words = ["simulate", "array", "--json", "--level", "0", "--members", "2", "--disks", disk.to_str().unwrap()];
    let trace = ["--trace", trace.to_str().unwrap()];
    let iops = |more: &[&str]| {
        let found = uraid(words.iter().chain(&trace).chain(more)).success().json();
        assert_eq!(found["requests"], 100, "{found:#}");
        found["iops"].as_f64().unwrap()
    };
    assert!((iops(&["--paced"]) / 100.0 - 1.0).abs() < 0.03, "a hundred a second");
    assert!(iops(&[]) > 10_000.0, "eight channels of 100 us");
    let endless = uraid(words.iter().chain(&["--trace", "/dev/zero"])).code_is(1);
    assert!(endless.stderr.contains("longer than 1024 MiB"), "{}", endless.stderr);
    std::fs::write(&disk, text.replace("read_channels = 4", "read_channels = 0")).unwrap();
    let refused = uraid(words.iter().chain(&trace)).code_is(1);
    assert!(refused.stderr.contains("read_channels"), "{}", refused.stderr);
}
