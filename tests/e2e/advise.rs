//! `uraid advise` says which chunk to take, by numbers that the papers have, and what it measures it does not write.

use uraid_tests::binary::uraid;

/// 17 of Chen & Lee's Lightning disks: 33 KB go by while one positions, so half of it is 16 KB; reads alone 24 KB,
/// writes alone 6 KB.
#[test]
fn the_papers_disks_get_the_papers_chunks() {
    let disks = ["advise", "--json", "--level", "5", "--members", "17", "--positioning", "19.2", "--transfer", "1.768"];
    for (reads, wanted_kib, chunks_kib) in
        [(None, 16.0, [16, 16]), (Some("100"), 24.0, [16, 32]), (Some("0"), 6.0, [4, 8])]
    {
        let load = reads.map(|reads| ["--reads", reads]);
        let advised = uraid(disks.iter().copied().chain(load.iter().flatten().copied())).success().json();
        let exact_kib = advised["rules"][0]["exact"].as_f64().unwrap() / 1024.0;
        assert!((exact_kib / wanted_kib - 1.0).abs() < 0.1, "{exact_kib} KiB, the paper {wanted_kib}: {advised:#}");
        let chunk_kib = advised["chunk"].as_u64().unwrap() >> 10;
        assert!(chunks_kib.contains(&chunk_kib), "{advised:#}");
    }
}

/// Chen & Lee's Lightning by name: the simulation tries every power of two that is possible, and takes the smallest
/// that is as good as any other.
#[test]
fn simulating_tries_every_chunk() {
    let words = ["advise", "--json", "--level", "5", "--members", "5", "--disk", "lightning", "--simulate"];
    let load = ["--reads", "100", "--concurrency", "1", "--request", "400K"];
    let advised = uraid(words.iter().chain(&load)).success().json();
    let trials = advised["simulated"][0]["chunks"].as_array().unwrap();
    let kib: Vec<u64> = trials.iter().map(|trial| trial["chunk"].as_u64().unwrap() >> 10).collect();
    assert_eq!(kib, [4, 8, 16, 32, 64, 128, 256, 512, 1024]);
    let number = |trial: &serde_json::Value, name: &str| trial[name].as_f64().unwrap();
    let best = trials.iter().map(|trial| number(trial, "percent")).fold(0.0, f64::max);
    let chosen = trials.iter().find(|trial| trial["chunk"] == advised["chunk"]).unwrap();
    assert!(number(chosen, "percent") >= best - 2.0 || number(chosen, "high") >= best, "{advised:#}");
    assert!(number(&trials[8], "percent") < 60.0, "large requests one at a time want all disks: {advised:#}");
    assert!(trials.iter().all(|trial| number(trial, "low") <= number(trial, "percent")), "{advised:#}");
}

/// Small aligned requests fit any chunk, whatever rotates: nothing is won by a large one.
#[test]
fn named_loads_and_levels_are_compared() {
    let words = ["advise", "--json", "--members", "6", "--disk", "constellation-es", "--workload", "random-read"];
    let advised = uraid(words.iter().chain(&["--level", "5,10"])).success().json();
    assert_eq!(advised["chunk"].as_u64().unwrap(), 4096, "{advised:#}");
    let levels: Vec<&str> =
        advised["simulated"].as_array().unwrap().iter().map(|it| it["level"].as_str().unwrap()).collect();
    assert_eq!(levels.len(), 2);
    assert!(advised["rules"].as_array().unwrap().is_empty(), "rules are for one level");
    let gain = |level: &str| {
        let found = advised["simulated"].as_array().unwrap().iter().find(|it| it["level"] == level).unwrap();
        found["gain"].as_f64().unwrap()
    };
    assert!((0.9..1.1).contains(&gain("5")), "{advised:#}");
    assert!(gain("10") > 0.9, "{advised:#}");
}

/// A trace is played to the simulator. What is no trace, or unknown, is refused.
#[test]
fn a_trace_is_simulated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.csv");
    let lines = (0..500_u64).map(|index| format!("{}.0,W,{},4096\n", index, index * 7919 % 10_000 * 4096));
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    let path = path.to_str().unwrap();
    let words = ["advise", "--json", "--members", "5", "--disk", "constellation-es", "--level", "5", "--trace"];
    let caches = ["--cache", "writeback,none"];
    let advised = uraid(words.iter().chain(&[path]).chain(&caches)).success().json();
    let found = advised["simulated"].as_array().unwrap();
    assert_eq!(found[0]["cache"], "writeback", "a cache joins scattered writes: {advised:#}");
    assert!(found[0]["gain"].as_f64().unwrap() > found[1]["gain"].as_f64().unwrap());
    std::fs::write(path, "nonsense,x,y,z\n1,R,2,3\n").unwrap();
    let refused = uraid(words.iter().chain(&[path])).code_is(1);
    assert!(refused.stderr.contains("line 2"), "{}", refused.stderr);
    let unknown = uraid(words[..8].iter().chain(&["--workload", "nothing"])).code_is(2);
    assert!(unknown.stderr.contains("uraid bench workloads"), "{}", unknown.stderr);
}

/// What is measured stands beside what is simulated, and nothing stays behind. A load has to be named.
#[test]
fn a_calibration_measures_what_is_simulated() {
    let directory = tempfile::tempdir().unwrap();
    let lab = directory.path().join("lab");
    let words = ["advise", "--json", "--level", "5", "--members", "3", "--disk", "dc-s4500", "--calibrate"];
    let words: Vec<&str> = words.into_iter().chain([lab.to_str().unwrap()]).collect();
    let advised = uraid(words.iter().copied().chain(["--workload", "random-read"])).success().json();
    let calibration = &advised["calibration"];
    let cells = calibration["cells"].as_array().unwrap();
    let chunks: Vec<u64> = cells.iter().map(|cell| cell["chunk"].as_u64().unwrap() >> 10).collect();
    assert_eq!(chunks, [16, 64, 256]);
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let ratios: Vec<f64> =
        cells.iter().map(|cell| number(&cell["measured_mb_s"]) / number(&cell["simulated_mb_s"])).collect();
    assert!(ratios.iter().all(|ratio| *ratio > 0.0), "{calibration:#}");
    let mean = ratios.iter().product::<f64>().cbrt();
    assert!((number(&calibration["ratio"][0]) / mean - 1.0).abs() < 1e-6, "{calibration:#}");
    assert_eq!((&calibration["disks"], &calibration["members"]), (&1.into(), &3.into()));
    assert_eq!(std::fs::read_dir(&lab).unwrap().count(), 0, "nothing stays behind");
    let refused = uraid(words).code_is(2);
    assert!(refused.stderr.contains("--workload"), "{}", refused.stderr);
}

/// What is advised can be had.
#[test]
fn create_takes_what_is_advised() {
    let directory = tempfile::tempdir().unwrap();
    let disks =
        ["advise", "--level", "rm2", "--members", "5", "--positioning", "12.7", "--transfer", "150", "--rpm", "7200"];
    let text = uraid(disks).success().text();
    let chunk = text.lines().next().unwrap().strip_prefix("--chunk ").expect("the first line is an option");
    let members = (0..5).map(|member| directory.path().join(member.to_string()).into_os_string());
    let words =
        ["create", "--level", "rm2", "--sparse", "--size", "256M", "--chunk", chunk].map(std::ffi::OsString::from);
    let _ = uraid(words.into_iter().chain(members)).success();
    assert!(text.contains("because: Park & Choe"), "{text}");
}

/// A file on a disk is measured and stays what it was; one in memory is refused with the reason.
#[test]
fn measuring_only_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member");
    let content: Vec<u8> = (0_u32..16 << 20).flat_map(|word| word.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    std::fs::write(&path, &content).unwrap();
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    let measured = uraid(["advise", "--json", "--level", "5", "--members", "5", "--measure", path.to_str().unwrap()]);
    if measured.code == Some(0) {
        let facts = measured.json();
        let [positioning, transfer] =
            ["positioning_ms", "transfer_mb_s"].map(|fact| facts["disk"][fact].as_f64().unwrap());
        assert!(positioning > 0.0 && transfer > 0.0, "{facts:#}");
    } else {
        assert!(measured.stderr.contains("machine's memory"), "{measured:?}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
    assert!(std::fs::read(&path).unwrap() == content, "its content is what it was");
}

/// Reads of what was never written reach no disk.
#[test]
fn a_sparse_file_is_not_measured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member");
    std::fs::write(&path, [7; 4096]).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(128 << 20).unwrap();
    let words = ["advise", "--level", "5", "--members", "5", "--measure", path.to_str().unwrap()];
    let refused = uraid(words).code_is(1);
    for advice in [path.to_str().unwrap(), "sparse", "block device", "written in full"] {
        assert!(refused.stderr.contains(advice), "{advice}: {}", refused.stderr);
    }
    assert_eq!(refused.text(), "", "nothing is advised");
}

/// Each option changes what is said, on one level at least; where the rules make no use of it, they say so.
#[test]
fn every_option_counts() {
    let numbers = ["--positioning", "12.7", "--transfer", "150"];
    let say = |words: &[&str]| uraid([&["advise"], words].concat()).success().text();
    let question = |level: &'static str, members: &'static str, more: &[&'static str]| {
        say(&[&["--level", level, "--members", members][..], more, &numbers].concat())
    };
    let raid5 = question("5", "6", &[]);
    for (option, changed) in [
        ("--level", question("0", "6", &[])),
        ("--members", question("5", "9", &[])),
        ("--reads", question("5", "6", &["--reads", "100"])),
        ("--reads", question("5", "6", &["--reads", "50"])),
        ("--concurrency", question("5", "6", &["--concurrency", "8"])),
        ("--request", question("5", "6", &["--request", "64K"])),
        ("--rpm", question("5", "6", &["--rpm", "7200"])),
        ("--positioning", say(&["--level", "5", "--members", "6", "--positioning", "4", "--transfer", "150"])),
        ("--transfer", say(&["--level", "5", "--members", "6", "--positioning", "12.7", "--transfer", "90"])),
        ("--disk", say(&["--level", "5", "--members", "6", "--disk", "cheetah-15k7"])),
    ] {
        assert_ne!(raid5, changed, "{option}");
    }
    assert_ne!(question("rm2", "9", &["--rm2-m", "3"]), question("rm2", "9", &["--rm2-m", "4"]));
    assert_ne!(question("10", "6", &["--copies", "2"]), question("10", "6", &["--copies", "3"]));
    let unused = question("1", "2", &["--reads", "50", "--concurrency", "8", "--request", "64K"]);
    for fact in ["the share of reads", "the number of requests", "the size of requests"] {
        assert!(unused.contains(fact), "{fact}: {unused}");
    }
    assert!(!unused.contains("changes nothing"), "{unused}");
    assert!(unused.contains("RAID 1: the default, as every member has all of the data"), "{unused}");
}

#[test]
fn questions_without_sense_are_misuses() {
    let raid5 = ["advise", "--level", "5", "--members"];
    let numbers = ["--positioning", "10", "--transfer", "100"];
    let cases: [Vec<&str>; 9] = [
        [&raid5[..], &["5", "--rm2-m", "3"], &numbers].concat(),
        [&raid5[..], &["5", "--copies", "2"], &numbers].concat(),
        [&raid5[..], &["5", "--disk", "lightning", "--rpm", "7200"]].concat(),
        [&raid5[..], &["2"], &numbers].concat(),
        [&raid5[..], &["5"]].concat(),
        [&raid5[..], &["5", "--disk", "floppy"]].concat(),
        [&raid5[..], &["5", "--positioning", "10"]].concat(),
        [&raid5[..], &["5", "--positioning", "NaN", "--transfer", "100"]].concat(),
        [&raid5[..], &["5", "--reads", "101"], &numbers].concat(),
    ];
    for words in cases {
        let refused = uraid(&words);
        assert_eq!(refused.code, Some(2), "{words:?}: {refused:?}");
    }
}
