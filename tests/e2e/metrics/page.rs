//! A strict reader of Prometheus' text format, written from its description: what it does not know is an error.

use std::collections::{BTreeMap, BTreeSet};

/// Names and values, in order of name.
pub(super) type Labels = BTreeMap<String, String>;

/// A page that was read.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) families: Vec<Family>,
}

/// A family of samples.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) help: String,
    /// Each with its full name.
    pub(super) samples: Vec<(String, Labels, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Page {
    /// Reads a page, and checks what holds for every one.
    pub(super) fn read(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line ends as all do");
        let mut families: Vec<Family> = Vec::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (name, help) =
                line.strip_prefix("# HELP ").unwrap_or_else(|| panic!("HELP before {line:?}")).split_once(' ').unwrap();
            let kind = lines
                .next()
                .unwrap()
                .strip_prefix(&format!("# TYPE {name} "))
                .unwrap_or_else(|| panic!("TYPE of {name}"));
            let kind = match kind {
                "counter" => Kind::Counter,
                "gauge" => Kind::Gauge,
                "histogram" => Kind::Histogram,
                other => panic!("type {other} of {name}"),
            };
            assert!(!families.iter().any(|family| family.name == name), "{name} comes once");
            let mut family = Family { name: name.to_owned(), kind, help: help.to_owned(), samples: Vec::new() };
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                family.samples.push(sample(line));
            }
            families.push(family);
        }
        families.iter().for_each(Family::check);
        Self { families }
    }

    /// One sample's value; its labels are exactly these.
    #[track_caller]
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Labels = labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut found = self.samples(name).filter(|(labels, _)| **labels == wanted);
        found.next().unwrap_or_else(|| panic!("a sample {name} {labels:?}")).1
    }

    /// The sum over all samples of one name with this label.
    pub(super) fn sum(&self, name: &str, label: (&str, &str)) -> f64 {
        let matches = |labels: &Labels| labels.get(label.0).is_some_and(|value| value == label.1);
        self.samples(name).filter(|(labels, _)| matches(labels)).map(|(_, value)| value).sum()
    }

    /// Every name that a query can use.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        self.families.iter().flat_map(|family| &family.samples).map(|(name, ..)| name.as_str()).collect()
    }

    pub(super) fn samples(&self, name: &str) -> impl Iterator<Item = (&Labels, f64)> {
        let samples = self.families.iter().flat_map(|family| &family.samples);
        samples.filter(move |sample| sample.0 == name).map(|(_, labels, value)| (labels, *value))
    }
}

impl Family {
    fn check(&self) {
        let name = &self.name;
        assert!(is_name(name) && name.starts_with("uraid_"), "{name} is a name of ours");
        assert!(self.help.len() > 5, "{name} has help");
        assert!(!self.samples.is_empty(), "{name} has samples");
        assert_eq!(
            name.ends_with("_total"),
            self.kind == Kind::Counter,
            "{name}: counters, and only they, end in _total"
        );
        let is_duration = name.ends_with("_seconds") && !name.ends_with("_timestamp_seconds");
        assert_eq!(is_duration, self.kind == Kind::Histogram, "{name}");
        let mut seen = BTreeSet::new();
        for (full, labels, value) in &self.samples {
            assert!(seen.insert((full, labels)), "{full} {labels:?} comes once");
            assert!(value.is_finite() && *value >= 0.0, "{full} {labels:?} is {value}");
            match self.kind {
                Kind::Histogram => {
                    let suffix = full.strip_prefix(name.as_str()).unwrap();
                    assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{full} in {name}");
                    assert_eq!(suffix == "_bucket", labels.contains_key("le"), "{full} {labels:?}");
                }
                Kind::Counter | Kind::Gauge => assert_eq!(full, name),
            }
        }
        if self.kind == Kind::Histogram {
            self.check_histograms();
        }
    }

    fn check_histograms(&self) {
        let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for (full, labels, value) in &self.samples {
            if full.ends_with("_bucket") {
                let mut labels = labels.clone();
                let bound = labels.remove("le").unwrap();
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
                series.entry(labels).or_default().push((bound, *value));
            }
        }
        let one = |suffix: &str, wanted: &Labels| {
            let full = format!("{}{suffix}", self.name);
            self.samples.iter().find(|(name, labels, _)| *name == full && labels == wanted).unwrap().2
        };
        assert_eq!(self.samples.iter().filter(|(name, ..)| name.ends_with("_count")).count(), series.len());
        for (labels, buckets) in series {
            let what = format!("{} {labels:?}: {buckets:?}", self.name);
            assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0), "bounds ascend: {what}");
            assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "buckets are cumulative: {what}");
            let (bound, all) = *buckets.last().unwrap();
            assert!(bound.is_infinite(), "the last bucket has everything: {what}");
            assert_eq!(all, one("_count", &labels), "{what}");
            assert_eq!(all > 0.0, one("_sum", &labels) > 0.0, "a sum of what was counted: {what}");
        }
    }
}

/// `name{label="value",...} number`
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line:?} has a value"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line:?}");
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("a label in {line:?}"));
            assert!(is_name(label) && !label.contains(':'), "{line:?}");
            let (value, after) = quoted(after, line);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{label} comes once in {line:?}");
            rest = after;
            match rest.split_at(1) {
                (",", after) => rest = after,
                ("}", after) => {
                    rest = after;
                    break;
                }
                _ => panic!("labels end in {line:?}"),
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("a space before the value in {line:?}"));
    (name.to_owned(), labels, value.parse().unwrap_or_else(|error| panic!("{line:?}: {error}")))
}

/// A value up to its closing quote, and what follows.
fn quoted<'a>(text: &'a str, line: &str) -> (String, &'a str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match characters.next() {
                Some((_, 'n')) => '\n',
                Some((_, escaped @ ('\\' | '"'))) => escaped,
                other => panic!("an escape {other:?} in {line:?}"),
            }),
            character => value.push(character),
        }
    }
    panic!("a quote is not closed in {line:?}");
}

fn is_name(text: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.chars().all(is_part) && !text.starts_with(|first: char| first.is_ascii_digit()) && !text.is_empty()
}
