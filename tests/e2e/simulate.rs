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
