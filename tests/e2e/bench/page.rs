//! The report's page, as a browser lays it out.

use std::fs;

use uraid_tests::run::{client_command, run};

use super::{Lab, NATIVE, words};

/// Run in the page: what a reader would see, as text in the document's title.
const LOOK: &str = "<script>
const box = (it) => it.getBoundingClientRect();
const seen = (it) => box(it).width > 300 && box(it).height > 100;
const texts = [...document.querySelectorAll('svg text')];
const inside = (it) => { const a = box(it), b = box(it.closest('svg'));
  return a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1; };
document.title = JSON.stringify({
  figures: [...document.querySelectorAll('figure svg')].filter(seen).length,
  texts: texts.length, outside: texts.filter((it) => !inside(it)).length,
  lead: document.querySelector('.lead').innerText, leadTop: box(document.querySelector('.lead')).top,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  back: getComputedStyle(document.body).backgroundColor, text: getComputedStyle(document.body).color,
  requests: performance.getEntriesByType('resource').length });
</script>";

/// What the browser says of the page in a window `width` wide.
fn look(page: &str, lab: &Lab, width: u32, more: &[&str]) -> serde_json::Value {
    let path = lab.path("look.html");
    fs::write(&path, page.replace("</html>", &format!("{LOOK}</html>"))).unwrap();
    let mut browser = client_command("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", lab.path("profile").display())).arg(format!("--window-size={width},800"));
    browser.args(more).arg(format!("file://{}", path.display()));
    let text = run(browser).success().text();
    let title =
        text.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>")).expect("there is a title").0;
    serde_json::from_str(&title.replace("&quot;", "\"").replace("&amp;", "&")).expect(title)
}

/// Red, green and blue of `rgb(1, 2, 3)`, summed up.
fn brightness(colour: &serde_json::Value) -> u32 {
    let colour = colour.as_str().unwrap();
    let numbers = colour.trim_start_matches("rgb(").trim_end_matches(')').split(", ");
    numbers.map(|number| number.parse::<u32>().unwrap()).sum()
}

#[test]
fn the_page_is_readable_in_light_and_dark() {
    let lab = Lab::new();
    let _ = lab.measure(&words(&NATIVE, &["--workload", "vm", "--rounds", "1"])).success();
    let page = fs::read_to_string(lab.path("lab/report.html")).unwrap();
    let light = look(&page, &lab, 1000, &["--blink-settings=preferredColorScheme=1"]);
    assert_eq!(light["figures"], 3, "{light:#}");
    assert!(light["texts"].as_u64().unwrap() > 30 && light["outside"] == 0, "{light:#}");
    assert!(light["lead"].as_str().unwrap().starts_with("For RAID 5, writeback: chunk "), "{light:#}");
    assert!(light["leadTop"].as_f64().unwrap() < 200.0, "the recommendation is what is seen first: {light:#}");
    assert_eq!(light["requests"], 0, "the page needs nothing else");
    assert!(brightness(&light["back"]) > 700 && brightness(&light["text"]) < 150, "{light:#}");
    let dark = look(&page, &lab, 1000, &["--blink-settings=preferredColorScheme=0"]);
    assert!(brightness(&dark["back"]) < 150 && brightness(&dark["text"]) > 600, "{dark:#}");
    let phone = look(&page, &lab, 500, &[]);
    for found in [&light, &dark, &phone] {
        assert_eq!(found["overflow"], 0, "only tables scroll sideways: {found:#}");
    }
}
