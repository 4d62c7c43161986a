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
    std::fs::write(&disk, text.replace("read_channels = 4", "read_channels = 0")).unwrap();
    let refused = uraid(words.iter().chain(&trace)).code_is(1);
    assert!(refused.stderr.contains("read_channels"), "{}", refused.stderr);
}
